//! Between the words of FUSE and those of the engine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::Errno;
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use zpl::live::Stat;
use zpl::{Kind, Time};

/// The first number that the kernel does not take for an error of Linux.
const ERRNO_END: i32 = 512;
/// Nanoseconds of a second.
const NSEC_PER_SEC: u32 = 1_000_000_000;
/// The bits of a mode that are not the type.
const PERMISSIONS: u32 = 0o7777;

/// Returns the error number that the caller sees: a checksum that does not match is an error of a device to him, as are numbers of ZFS's own.
pub(crate) fn errno(error: Errno) -> fuser::Errno {
    match error {
        Errno::ECKSUM => fuser::Errno::EIO,
        error if (1..ERRNO_END).contains(&error.raw()) => fuser::Errno::from_i32(error.raw()),
        _ => fuser::Errno::EIO,
    }
}

/// Returns the attributes that the kernel is told; `node` is the number by which it knows the file.
pub(crate) fn file_attr(stat: &Stat, node: u64) -> FileAttr {
    let attrs = &stat.attrs;
    let (major, minor) = attrs.device().unwrap_or((0, 0));
    FileAttr {
        ino: INodeNo(node),
        size: attrs.size,
        blocks: stat.blocks,
        atime: system_time(attrs.atime),
        mtime: system_time(attrs.mtime),
        ctime: system_time(attrs.ctime),
        crtime: system_time(attrs.crtime),
        kind: file_type(attrs.kind()),
        perm: (attrs.mode & PERMISSIONS) as u16,
        nlink: u32::try_from(attrs.links).unwrap_or(u32::MAX),
        uid: attrs.uid(),
        gid: attrs.gid(),
        rdev: (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12),
        blksize: u32::try_from(stat.block_size).unwrap_or(u32::MAX),
        flags: 0,
    }
}

/// Returns major and minor number of a device as the kernel passes them in requests: minor 8@0 and 12@20, major 12@8.
pub(crate) const fn device(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

/// Returns the type of a file. Numbers that Linux never writes are shown as files.
pub(crate) const fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File | Kind::Other(_) => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
    }
}

/// Returns a point in time; one that the system cannot represent, which only a damaged file has, is its beginning. The first second of all is
/// never given: a program that sets the times that it sees would set it, and `fuser` 0.18 panics on that.
fn system_time(time: Time) -> SystemTime {
    let (sec, nsec) = (time.sec.max(i64::MIN + 1), time.nsec.min(NSEC_PER_SEC - 1));
    let whole = Duration::from_secs(sec.unsigned_abs());
    let second = if sec < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second.and_then(|second| second.checked_add(Duration::from_nanos(nsec.into()))).unwrap_or(UNIX_EPOCH)
}

/// Returns a time of a request; `None` for now. Nanoseconds count forward, also before 1970; `fuser` 0.18 counts them backward then.
pub(crate) fn given_time(time: TimeOrNow) -> Option<Time> {
    let TimeOrNow::SpecificTime(time) = time else { return None };
    Some(match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Time { sec: after.as_secs().cast_signed(), nsec: after.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            Time { sec: before.as_secs().cast_signed().wrapping_neg(), nsec: before.subsec_nanos() }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970() {
        let time = system_time(Time { sec: -2, nsec: 800_000_000 });
        assert_eq!(UNIX_EPOCH.duration_since(time).map(|d| d.as_millis()).ok(), Some(1200));
        assert_eq!(system_time(Time { sec: 5, nsec: u32::MAX }), UNIX_EPOCH + Duration::new(5, 999_999_999));
        for sec in [i64::MIN, i64::MAX] {
            let _ = system_time(Time { sec, nsec: 5 });
        }
        let first = UNIX_EPOCH.duration_since(system_time(Time { sec: i64::MIN, nsec: 0 }));
        assert_eq!(first.map(|before| before.as_secs()).ok(), Some(i64::MAX as u64));
        // as fuser gives -5 seconds and 7 nanoseconds
        let given = TimeOrNow::SpecificTime(UNIX_EPOCH - Duration::new(5, 7));
        assert_eq!(given_time(given), Some(Time { sec: -5, nsec: 7 }));
        assert_eq!(given_time(TimeOrNow::Now), None);
    }

    #[test]
    fn devices_as_the_kernel_encodes_them() {
        assert_eq!(device(0x0010_0201), (2, 0x101));
        assert_eq!(device(0xabcd_efff), (0xdef, 0xa_bcff));
    }

    #[test]
    fn errors_that_the_kernel_takes() {
        assert_eq!(errno(Errno::ENOENT), fuser::Errno::ENOENT);
        assert_eq!(errno(Errno::ECKSUM), fuser::Errno::EIO);
        assert_eq!(errno(Errno::ZFS_ERR_BADPROP), fuser::Errno::EIO);
        assert_eq!(errno(Errno::from_raw(0)), fuser::Errno::EIO);
    }
}
