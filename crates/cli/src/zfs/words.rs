//! OpenZFS's messages for an errno (`zfs_standard_error`, `libzfs_error_description`).

use base::Errno;
use control::Failed;

/// The message for an operation that does not apply to the dataset's type.
pub(super) const BAD_TYPE: &str = "operation not applicable to datasets of this type";

/// The usual message for a failure. If a device or damaged metadata is the cause, that is printed too.
pub(super) fn standard(failed: &Failed) -> String {
    match failed.errno {
        Errno::EIO | Errno::ECKSUM => format!("{} ({})", of_errno(failed.errno), failed.error),
        errno => of_errno(errno),
    }
}

/// The usual message for an errno.
pub(super) fn of_errno(errno: Errno) -> String {
    let words = match errno {
        Errno::EPERM | Errno::EACCES => "permission denied",
        Errno::EIO => "I/O error",
        Errno::ECKSUM => "insufficient replicas",
        Errno::ENOENT => "dataset does not exist",
        Errno::ENOSPC | Errno::EDQUOT => "out of space",
        Errno::EEXIST => "dataset already exists",
        Errno::EBUSY => "dataset is busy",
        Errno::EROFS => "pool is read-only",
        Errno::ENAMETOOLONG => "dataset name is too long",
        Errno::ENOTSUP => "unsupported version or feature",
        Errno::ZFS_ERR_WRONG_PARENT => "invalid parent dataset",
        Errno::ZFS_ERR_BADPROP => "invalid property value",
        _ => return crate::error::cause(&std::io::Error::from(errno)),
    };
    words.to_owned()
}

/// The message for a property that could not be set (OpenZFS: `zfs_setprop_error`).
pub(super) fn of_property(name: &str, failed: &Failed, errno: Errno) -> String {
    let words = match (errno, name) {
        (Errno::ENOSPC, "quota" | "refquota") => "size is less than current used or reserved space",
        (Errno::ENOSPC, "reservation" | "refreservation") => "size is greater than available space",
        (Errno::EROFS, _) => "dataset is read-only",
        (Errno::E2BIG, _) => "property value too long",
        (Errno::ENOTSUP, _) => "pool and or dataset must be upgraded to set this property or value",
        (Errno::EACCES, "keylocation") => "keylocation may only be set on encryption roots",
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
        assert_eq!(of_errno(Errno::EBUSY), "dataset is busy");
        assert_eq!(of_errno(Errno::EDQUOT), "out of space");
        assert_eq!(of_errno(Errno::EINVAL), "Invalid argument");
        assert_eq!(of_errno(Errno::EXDEV), "Invalid cross-device link");
        assert_eq!(of_errno(Errno::ERANGE), "Numerical result out of range");
        assert_eq!(of_errno(Errno::ESRCH), "No such process");
    }
}
