//! Error numbers: those of Linux that OpenZFS returns there, and OpenZFS's own, from 1024.

use std::{fmt, io};

/// An error number, as OpenZFS's ioctls return it on Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(i32);

macro_rules! table {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Errno = Errno($number);)*
        }

        /// All numbers that have a name, in ascending order.
        const NAMES: &[(i32, &str)] = &[$(($number, stringify!($name)),)*];
    };
}

table! {
    /// The operation is not permitted.
    EPERM = 1;
    /// No such file, dataset or entry.
    ENOENT = 2;
    /// No such thing to act on.
    ESRCH = 3;
    /// Interrupted.
    EINTR = 4;
    /// A device failed, or what it holds is corrupt.
    EIO = 5;
    /// No such device or address.
    ENXIO = 6;
    /// A list or a value is too long.
    E2BIG = 7;
    /// The file is not open.
    EBADF = 9;
    /// Not now: try again.
    EAGAIN = 11;
    /// Out of memory.
    ENOMEM = 12;
    /// Permission denied, or a key that is not loaded.
    EACCES = 13;
    /// Data cannot be laid out as asked.
    EFAULT = 14;
    /// In use.
    EBUSY = 16;
    /// Exists already.
    EEXIST = 17;
    /// Crosses two pools, file systems or lines of descent.
    EXDEV = 18;
    /// No such device, or no base of a stream.
    ENODEV = 19;
    /// Not a directory.
    ENOTDIR = 20;
    /// A directory.
    EISDIR = 21;
    /// Invalid.
    EINVAL = 22;
    /// Not an operation of this file.
    ENOTTY = 25;
    /// Modified since its last snapshot.
    ETXTBSY = 26;
    /// The file is too large.
    EFBIG = 27;
    /// Out of space.
    ENOSPC = 28;
    /// Read-only.
    EROFS = 30;
    /// Too many links.
    EMLINK = 31;
    /// Nobody reads the pipe.
    EPIPE = 32;
    /// Out of range.
    ERANGE = 34;
    /// The name is too long.
    ENAMETOOLONG = 36;
    /// No such operation.
    ENOSYS = 38;
    /// The directory is not empty.
    ENOTEMPTY = 39;
    /// Too many symbolic links.
    ELOOP = 40;
    /// A checksum does not match (Linux: `EBADE`).
    ECKSUM = 52;
    /// Space is too fragmented (Linux: `EBADR`).
    EFRAGS = 53;
    /// No scan is active (Linux: `ENOANO`).
    ENOTACTIVE = 55;
    /// No such attribute.
    ENODATA = 61;
    /// The value is too large for its type.
    EOVERFLOW = 75;
    /// Not valid UTF-8.
    EILSEQ = 84;
    /// Not supported.
    ENOTSUP = 95;
    /// Nobody is at the other end.
    ENOTCONN = 107;
    /// Took too long.
    ETIMEDOUT = 110;
    /// Overtaken by a change.
    ESTALE = 116;
    /// Another host uses the pool.
    EREMOTEIO = 121;
    /// A quota is used up.
    EDQUOT = 122;
    /// Cancelled.
    ECANCELED = 125;
    /// The pool has a checkpoint.
    ZFS_ERR_CHECKPOINT_EXISTS = 1024;
    /// The checkpoint is being discarded.
    ZFS_ERR_DISCARDING_CHECKPOINT = 1025;
    /// The pool has no checkpoint.
    ZFS_ERR_NO_CHECKPOINT = 1026;
    /// A device is being removed.
    ZFS_ERR_DEVRM_IN_PROGRESS = 1027;
    /// The device is too big for its mapping to be stored.
    ZFS_ERR_VDEV_TOO_BIG = 1028;
    /// No such request.
    ZFS_ERR_IOC_CMD_UNAVAIL = 1029;
    /// The request has no such key.
    ZFS_ERR_IOC_ARG_UNAVAIL = 1030;
    /// The request lacks a key.
    ZFS_ERR_IOC_ARG_REQUIRED = 1031;
    /// A key's value is of the wrong type.
    ZFS_ERR_IOC_ARG_BADTYPE = 1032;
    /// The parent is not a file system.
    ZFS_ERR_WRONG_PARENT = 1033;
    /// A raw stream does not name the IV set of its base.
    ZFS_ERR_FROM_IVSET_GUID_MISSING = 1034;
    /// A raw stream's base has another IV set.
    ZFS_ERR_FROM_IVSET_GUID_MISMATCH = 1035;
    /// A raw stream does not say which objects have spill blocks.
    ZFS_ERR_SPILL_BLOCK_FLAG_MISSING = 1036;
    /// The stream has an unknown feature.
    ZFS_ERR_UNKNOWN_SEND_STREAM_FEATURE = 1037;
    /// The pool is being exported.
    ZFS_ERR_EXPORT_IN_PROGRESS = 1038;
    /// A bookmark's source is not in its dataset's past.
    ZFS_ERR_BOOKMARK_SOURCE_NOT_ANCESTOR = 1039;
    /// The stream ends early.
    ZFS_ERR_STREAM_TRUNCATED = 1040;
    /// The dataset has large blocks, the stream has none.
    ZFS_ERR_STREAM_LARGE_BLOCK_MISMATCH = 1041;
    /// A resilver is running.
    ZFS_ERR_RESILVER_IN_PROGRESS = 1042;
    /// A rebuild is running.
    ZFS_ERR_REBUILD_IN_PROGRESS = 1043;
    /// The value does not fit the property.
    ZFS_ERR_BADPROP = 1044;
    /// The vdev does not support it.
    ZFS_ERR_VDEV_NOTSUP = 1045;
    /// The descriptor is not a user namespace.
    ZFS_ERR_NOT_USER_NAMESPACE = 1046;
    /// A full stream would be resumed into what exists.
    ZFS_ERR_RESUME_EXISTS = 1047;
    /// The cipher is unknown.
    ZFS_ERR_CRYPTO_NOTSUP = 1048;
    /// A raidz vdev is being expanded.
    ZFS_ERR_RAIDZ_EXPAND_IN_PROGRESS = 1049;
    /// The device's sector size does not fit the pool's.
    ZFS_ERR_ASHIFT_MISMATCH = 1050;
    /// The dataset has large micro ZAPs, the stream has none.
    ZFS_ERR_STREAM_LARGE_MICROZAP = 1051;
}

impl Errno {
    /// Returns the error of that number.
    #[must_use]
    pub const fn from_raw(number: i32) -> Errno {
        Errno(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// Returns the system's number for `error`, or `otherwise` if the error does not come from the system.
    #[must_use]
    pub fn of_io(error: &io::Error, otherwise: Errno) -> Errno {
        error.raw_os_error().map_or(otherwise, Errno)
    }

    /// Returns the name, if it is one of this table.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let at = NAMES.binary_search_by_key(&self.0, |(number, _)| *number).ok()?;
        NAMES.get(at).map(|(_, name)| *name)
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.0)
    }
}

/// The number.
impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Errno, NAMES};

    #[test]
    fn each_number_has_one_name_and_the_systems_meaning() {
        assert!(NAMES.is_sorted_by(|a, b| a.0 < b.0), "a binary search needs them in order");
        assert_eq!(Errno::EDQUOT.name(), Some("EDQUOT"));
        assert_eq!(format!("{:?} {:?} {:>4}", Errno::ECKSUM, Errno::from_raw(999), Errno::EIO), "ECKSUM (52) 999    5");
        assert_eq!(std::io::Error::from(Errno::ENOENT).kind(), std::io::ErrorKind::NotFound);
        assert_eq!(std::io::Error::from(Errno::EROFS).kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert_eq!(Errno::of_io(&std::io::Error::other("x"), Errno::EPIPE), Errno::EPIPE);
    }
}
