//! OpenZFS's messages for an errno (`zfs_standard_error`, `libzfs_error_description`).

use control::Failed;

/// Error numbers of the system that have messages of their own (Linux).
pub(super) mod errno {
    pub(in crate::zfs) const EPERM: i32 = 1;
    pub(in crate::zfs) const ENOENT: i32 = 2;
    pub(in crate::zfs) const ESRCH: i32 = 3;
    pub(in crate::zfs) const EIO: i32 = 5;
    pub(in crate::zfs) const E2BIG: i32 = 7;
    pub(in crate::zfs) const EACCES: i32 = 13;
    pub(in crate::zfs) const EBUSY: i32 = 16;
    pub(in crate::zfs) const EEXIST: i32 = 17;
    pub(in crate::zfs) const EXDEV: i32 = 18;
    pub(in crate::zfs) const EINVAL: i32 = 22;
    pub(in crate::zfs) const ENOSPC: i32 = 28;
    pub(in crate::zfs) const EROFS: i32 = 30;
    pub(in crate::zfs) const ERANGE: i32 = 34;
    pub(in crate::zfs) const ENAMETOOLONG: i32 = 36;
    pub(in crate::zfs) const EBADE: i32 = 52;
    pub(in crate::zfs) const ENOTSUP: i32 = 95;
    pub(in crate::zfs) const EDQUOT: i32 = 122;
    /// OpenZFS's own.
    pub(in crate::zfs) const WRONG_PARENT: i32 = 1033;
    pub(in crate::zfs) const BADPROP: i32 = 1044;
}

use errno::*;

/// The message for an operation that does not apply to the dataset's type.
pub(super) const BAD_TYPE: &str = "operation not applicable to datasets of this type";

/// The usual message for a failure. If a device or damaged metadata is the cause, that is printed too.
pub(super) fn standard(failed: &Failed) -> String {
    match failed.errno {
        EIO | EBADE => format!("{} ({})", of_errno(failed.errno), failed.error),
        errno => of_errno(errno),
    }
}

/// The usual message for an errno.
pub(super) fn of_errno(errno: i32) -> String {
    let words = match errno {
        EPERM | EACCES => "permission denied",
        EIO => "I/O error",
        EBADE => "insufficient replicas",
        ENOENT => "dataset does not exist",
        ENOSPC | EDQUOT => "out of space",
        EEXIST => "dataset already exists",
        EBUSY => "dataset is busy",
        EROFS => "pool is read-only",
        ENAMETOOLONG => "dataset name is too long",
        ENOTSUP => "unsupported version or feature",
        WRONG_PARENT => "invalid parent dataset",
        BADPROP => "invalid property value",
        _ => return crate::error::cause(&std::io::Error::from_raw_os_error(errno)),
    };
    words.to_owned()
}

/// The message for a property that could not be set (OpenZFS: `zfs_setprop_error`).
pub(super) fn of_property(name: &str, failed: &Failed, errno: i32) -> String {
    let words = match (errno, name) {
        (ENOSPC, "quota" | "refquota") => "size is less than current used or reserved space",
        (ENOSPC, "reservation" | "refreservation") => "size is greater than available space",
        (EROFS, _) => "dataset is read-only",
        (E2BIG, _) => "property value too long",
        (ENOTSUP, _) => "pool and or dataset must be upgraded to set this property or value",
        (EACCES, "keylocation") => "keylocation may only be set on encryption roots",
        _ if errno == failed.errno => return standard(failed),
        _ => return of_errno(errno),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_words() {
        assert_eq!(of_errno(EBUSY), "dataset is busy");
        assert_eq!(of_errno(EDQUOT), "out of space");
        assert_eq!(of_errno(EINVAL), "Invalid argument");
        assert_eq!(of_errno(EXDEV), "Invalid cross-device link");
        assert_eq!(of_errno(ERANGE), "Numerical result out of range");
        assert_eq!(of_errno(ESRCH), "No such process");
    }
}
