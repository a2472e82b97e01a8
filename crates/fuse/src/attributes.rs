//! Requests about attributes, and about space.

use base::Errno;
use fuser::{FileAttr, INodeNo, Request, TimeOrNow};
use zpl::live::{SetAttr, StatFs};

use crate::convert::given_time;
use crate::served::{Answer, Served};

/// The permission bits of an `access`.
const RWX: i32 = 7;

/// Attributes that a request changes.
#[derive(Default)]
pub(crate) struct Change {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<TimeOrNow>,
    pub(crate) mtime: Option<TimeOrNow>,
    /// True if the file is open, and was opened for writing if its size changes.
    pub(crate) is_open: bool,
}

impl Change {
    /// Returns the change without the size.
    fn set(&self) -> SetAttr {
        let is_now = |time: Option<TimeOrNow>| time == Some(TimeOrNow::Now);
        let (atime_now, mtime_now) = (is_now(self.atime), is_now(self.mtime));
        let touch = atime_now && mtime_now;
        // a truncation stamps the file by itself
        let single = !touch && self.size.is_none();
        SetAttr {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            atime: self.atime.and_then(given_time),
            mtime: self.mtime.and_then(given_time),
            touch: touch && self.size.is_none(),
            atime_now: single && atime_now,
            mtime_now: single && mtime_now,
            ..SetAttr::default()
        }
    }
}

impl Served {
    pub(crate) fn getattr(&self, file: INodeNo) -> Answer<FileAttr> {
        self.attr(self.file(file)?)
    }

    pub(crate) fn setattr(&self, req: &Request, file: INodeNo, change: &Change) -> Answer<FileAttr> {
        let id = self.file(file)?;
        let caller = self.caller(req);
        if let Some(size) = change.size {
            let caller = self.cutter(req, id, caller.clone())?;
            let cut = if change.is_open {
                self.vfs.truncate(&caller, id, size)
            } else {
                self.vfs.setattr(&caller, id, &SetAttr { size: Some(size), ..SetAttr::default() })
            };
            cut.map_err(|error| error.errno())?;
        }
        let set = change.set();
        if set != SetAttr::default() {
            self.vfs.setattr(&caller, id, &set).map_err(|error| error.errno())?;
        }
        self.attr(id)
    }

    /// Checks a caller's permissions. The kernel asks only if it does not decide.
    pub(crate) fn access(&self, req: &Request, file: INodeNo, mask: i32) -> Answer<()> {
        let mask = u8::try_from(mask & RWX).map_err(|_| Errno::EINVAL)?;
        self.vfs.access(&self.accessing_caller(req), self.file(file)?, mask).map_err(|error| error.errno())
    }

    pub(crate) fn statfs(&self) -> Answer<StatFs> {
        self.vfs.statfs().map_err(|error| error.errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};
    use zpl::Time;

    #[test]
    fn times_are_given_or_now() {
        let (now, given) = (Some(TimeOrNow::Now), Some(TimeOrNow::SpecificTime(UNIX_EPOCH + Duration::from_secs(9))));
        let of = |atime, mtime, size| Change { atime, mtime, size, ..Change::default() }.set();
        let none = SetAttr::default();
        assert_eq!(of(now, now, None), SetAttr { touch: true, ..none });
        assert_eq!(of(None, now, None), SetAttr { mtime_now: true, ..none });
        assert_eq!(of(now, None, None), SetAttr { atime_now: true, ..none });
        let nine = Some(Time { sec: 9, nsec: 0 });
        assert_eq!(of(given, now, None), SetAttr { atime: nine, mtime_now: true, ..none });
        assert_eq!(of(None, now, Some(5)), none);
    }
}
