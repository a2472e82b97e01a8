//! Requests about attributes, and about space.

use base::{Errno, ObjectId};
use fuser::{INodeNo, ReplyAttr, Request, TimeOrNow};
use zpl::live::{Cred, SetAttr, Stat, StatFs, Vfs};

use crate::convert::{errno, file_attr, given_time};
use crate::pinned::Subject;
use crate::served::{Answer, Served, stat, ttl};
use crate::under_way::Answering;

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
    /// Returns the attributes of a file. The number that is shown is not that of the kernel for the root.
    pub(crate) fn getattr(&self, file: INodeNo) -> Answer<Stat> {
        let (pinned, id) = self.pin_file(file)?;
        stat(&*pinned, id)
    }

    /// Changes attributes, and answers; a change of the size in another thread, as what is cut off may be long.
    pub(crate) fn setattr(
        &self,
        req: &Request,
        subject: Subject,
        change: Change,
        answering: Answering,
        reply: ReplyAttr,
    ) {
        let (caller, id, longest) = (self.caller(req), subject.id, self.attr_ttl);
        let answer = move |done: Answer<Stat>| {
            match done {
                Ok(stat) => reply.attr(&ttl(longest, &stat), &file_attr(&stat, stat.inode)),
                Err(error) => reply.error(errno(error)),
            }
            drop(answering);
        };
        let pinned = match subject.pin() {
            Ok(pinned) => pinned,
            Err(error) => return answer(Err(error)),
        };
        let Some(size) = change.size else { return answer(change_attributes(&*pinned, id, &caller, &change)) };
        let cutter = match self.cutter(req, &pinned, id, caller.clone()) {
            Ok(cutter) => cutter,
            Err(error) => return answer(Err(error)),
        };
        drop(pinned);
        self.waiters.run(move || {
            let done = subject.pin().and_then(|pinned| {
                let cut = if change.is_open {
                    pinned.truncate(&cutter, id, size)
                } else {
                    pinned.setattr(&cutter, id, &SetAttr { size: Some(size), ..SetAttr::default() })
                };
                cut.map_err(|error| error.errno())?;
                change_attributes(&*pinned, id, &caller, &change)
            });
            answer(done);
        });
    }

    /// Checks a caller's permissions. The kernel asks only if it does not decide.
    pub(crate) fn access(&self, req: &Request, file: INodeNo, mask: i32) -> Answer<()> {
        let mask = u8::try_from(mask & RWX).map_err(|_| Errno::EINVAL)?;
        let (pinned, id) = self.pin_file(file)?;
        pinned.access(&self.accessing_caller(req), id, mask).map_err(|error| error.errno())
    }

    pub(crate) fn statfs(&self, file: INodeNo) -> Answer<StatFs> {
        self.pin()?.statfs_at(self.open_file(file)).map_err(|error| error.errno())
    }
}

/// Changes the attributes but for the size, and returns all.
fn change_attributes(vfs: &dyn Vfs, id: ObjectId, caller: &Cred, change: &Change) -> Answer<Stat> {
    let set = change.set();
    if set != SetAttr::default() {
        vfs.setattr(caller, id, &set).map_err(|error| error.errno())?;
    }
    stat(vfs, id)
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
