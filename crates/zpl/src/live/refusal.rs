//! Reasons why an operation is refused.

use crate::Error;
use base::{Errno, ObjectId};

/// The reason why a file system refuses an operation, by the error number of Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The name already exists (EEXIST).
    Exists,
    /// The file has been removed, or the name does not exist (ENOENT).
    Gone,
    /// The directory has entries (ENOTEMPTY).
    NotEmpty,
    /// The caller's permissions do not suffice (EACCES).
    Denied,
    /// Only the owner, or only root, may do that, or a flag of the file forbids it (EPERM).
    NotPermitted,
    /// The request is invalid (EINVAL).
    Invalid(&'static str),
    /// It would cross a boundary: of projects, of file systems (EXDEV).
    CrossDevice,
    /// The file cannot have more links (EMLINK).
    TooManyLinks,
    /// The name is not UTF-8 (EILSEQ).
    NotUtf8,
    /// A quota of the user, the group or the project is used up (EDQUOT).
    Quota,
    /// The file system is read-only (EROFS).
    ReadOnly,
    /// A wait within a transaction, or the file system is mounted (EBUSY).
    Busy,
    /// The file is another by now: the contents of the file system were replaced (ESTALE).
    Stale,
    /// The extended attribute does not exist (ENODATA).
    NoAttribute,
    /// The buffer is too small (ERANGE).
    TooSmall,
    /// There is not enough space (ENOSPC).
    NoSpace,
    /// The file would exceed the maximum size (EFBIG).
    FileTooLarge,
    /// No data follows this offset (ENXIO).
    NoData,
    /// This file system does not support it (ENOTSUP).
    Unsupported(&'static str),
}

impl Refusal {
    /// Returns the error for object `object`.
    #[must_use]
    pub fn of(self, object: ObjectId) -> Error {
        Error::Refused { object, why: self }
    }

    /// Returns the error number on Linux.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Refusal::NotPermitted => Errno::EPERM,
            Refusal::Gone => Errno::ENOENT,
            Refusal::NoData => Errno::ENXIO,
            Refusal::Denied => Errno::EACCES,
            Refusal::Busy => Errno::EBUSY,
            Refusal::Stale => Errno::ESTALE,
            Refusal::Exists => Errno::EEXIST,
            Refusal::CrossDevice => Errno::EXDEV,
            Refusal::Invalid(_) => Errno::EINVAL,
            Refusal::NoSpace => Errno::ENOSPC,
            Refusal::FileTooLarge => Errno::EFBIG,
            Refusal::ReadOnly => Errno::EROFS,
            Refusal::TooManyLinks => Errno::EMLINK,
            Refusal::TooSmall => Errno::ERANGE,
            Refusal::NotEmpty => Errno::ENOTEMPTY,
            Refusal::NoAttribute => Errno::ENODATA,
            Refusal::NotUtf8 => Errno::EILSEQ,
            Refusal::Unsupported(_) => Errno::ENOTSUP,
            Refusal::Quota => Errno::EDQUOT,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refusal::Exists => "file exists",
            Refusal::Gone => "no such file or directory",
            Refusal::NotEmpty => "directory not empty",
            Refusal::Denied => "permission denied",
            Refusal::NotPermitted => "operation not permitted",
            Refusal::Invalid(what) | Refusal::Unsupported(what) => what,
            Refusal::CrossDevice => "invalid cross-device link",
            Refusal::TooManyLinks => "too many links",
            Refusal::NotUtf8 => "the name is not UTF-8",
            Refusal::Quota => "quota exceeded",
            Refusal::ReadOnly => "read-only file system",
            Refusal::Busy => "in use",
            Refusal::Stale => "stale file handle",
            Refusal::NoAttribute => "no such attribute",
            Refusal::TooSmall => "the buffer is too small",
            Refusal::NoSpace => "no space left",
            Refusal::FileTooLarge => "file too large",
            Refusal::NoData => "no data at or after this offset",
        })
    }
}
