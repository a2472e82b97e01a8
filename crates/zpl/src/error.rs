//! The errors of file systems and volumes.

use base::{Errno, ObjectId};

/// Reasons why an operation on a file, directory, attribute or volume failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The objects below could not be read.
    #[error(transparent)]
    Dmu(#[from] dmu::Error),
    /// The intent log cannot be replayed.
    #[error(transparent)]
    Log(#[from] zil::Error),
    /// The pool cannot open the dataset.
    #[error(transparent)]
    Pool(Box<pool::Error>),
    /// A packed nvlist is invalid.
    #[error("object {object}: {what}: {source}")]
    NvList {
        /// The object.
        object: ObjectId,
        /// The name of the list.
        what: &'static str,
        /// The cause.
        source: nvlist::Error,
    },
    /// The dataset is not of the requested kind.
    #[error("dataset {objset} is not a {wanted}")]
    WrongType {
        /// The dataset's object number.
        objset: ObjectId,
        /// `file system` or `volume`.
        wanted: &'static str,
    },
    /// The file system's version is newer than this program.
    #[error("dataset {objset}: file system version {version} is not supported")]
    Version {
        /// The dataset's object number.
        objset: ObjectId,
        /// The version.
        version: u64,
    },
    /// No such file, directory, snapshot or attribute.
    #[error("{}: no such file or directory", String::from_utf8_lossy(name))]
    NotFound {
        /// The name that was looked up.
        name: Vec<u8>,
    },
    /// A component of a path is not a directory.
    #[error("{}: not a directory", String::from_utf8_lossy(name))]
    NotDirectory {
        /// The path.
        name: Vec<u8>,
    },
    /// A file was expected, but the object is a directory.
    #[error("object {object}: is a directory")]
    IsDirectory {
        /// The object.
        object: ObjectId,
    },
    /// The object is not of the requested kind: not a symbolic link, or not a file of this file system.
    #[error("object {object}: not a {wanted}")]
    NotA {
        /// The object.
        object: ObjectId,
        /// The kind that was requested.
        wanted: &'static str,
    },
    /// Too many symbolic links along a path.
    #[error("{}: too many levels of symbolic links", String::from_utf8_lossy(name))]
    Loop {
        /// The path.
        name: Vec<u8>,
    },
    /// A name is longer than a directory can hold.
    #[error("a name of {len} bytes is too long")]
    NameTooLong {
        /// Its length.
        len: usize,
    },
    /// The file has no name: it is open but deleted, or its parents are gone.
    #[error("object {object} has no path")]
    NoPath {
        /// The object.
        object: ObjectId,
    },
    /// An extended attribute is larger than this program returns in one piece.
    #[error("object {object}: an extended attribute of {size} bytes is too large")]
    TooLarge {
        /// The attribute's object.
        object: ObjectId,
        /// Its size.
        size: u64,
    },
    /// An object holds an impossible value.
    #[error("object {object}: {what} is {value}, which is not possible")]
    Corrupt {
        /// The object.
        object: ObjectId,
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// An attribute that every file has is missing.
    #[error("object {object}: attribute {what} is missing")]
    Missing {
        /// The object.
        object: ObjectId,
        /// Its name.
        what: &'static str,
    },
    /// The block with the attributes that do not fit into the dnode is unreadable.
    #[error("object {object}: spill block: {why}")]
    Spill {
        /// The object.
        object: ObjectId,
        /// The reason why it is unreadable.
        why: String,
        /// The error number of that reason.
        errno: Errno,
        /// True if no device answered: it may be readable when they do again.
        unanswered: bool,
    },
    /// A change was refused.
    #[error("object {object}: {why}")]
    Refused {
        /// The object.
        object: ObjectId,
        /// The reason.
        why: crate::live::Refusal,
    },
    /// A snapshot was not made, destroyed or renamed.
    #[error("snapshot '{name}': error {errno}")]
    Snapshot {
        /// Its name.
        name: String,
        /// The error number.
        errno: Errno,
    },
    /// An access control list is invalid.
    #[error("object {object}: access control list: {why}")]
    BadAcl {
        /// The object; 0 if it is not known.
        object: ObjectId,
        /// The reason.
        why: &'static str,
    },
}

impl From<pool::Error> for Error {
    fn from(source: pool::Error) -> Self {
        Error::Pool(Box::new(source))
    }
}

impl Error {
    /// Returns the error number that a file system on Linux returns.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::Dmu(e) => Error::dmu_errno(e),
            Error::Spill { errno, .. } | Error::Snapshot { errno, .. } => *errno,
            Error::Pool(e) => e.errno(),
            Error::Log(_) => Errno::EIO,
            Error::NvList { .. } | Error::Corrupt { .. } | Error::Missing { .. } | Error::BadAcl { .. } => Errno::EIO,
            Error::NotFound { .. } => Errno::ENOENT,
            Error::TooLarge { .. } => Errno::E2BIG,
            Error::NotDirectory { .. } => Errno::ENOTDIR,
            Error::IsDirectory { .. } => Errno::EISDIR,
            Error::WrongType { .. } | Error::NotA { .. } => Errno::EINVAL,
            Error::NameTooLong { .. } => Errno::ENAMETOOLONG,
            Error::Loop { .. } => Errno::ELOOP,
            Error::Version { .. } => Errno::ENOTSUP,
            Error::NoPath { .. } => Errno::ESTALE,
            Error::Refused { why, .. } => why.errno(),
        }
    }

    /// True if no device said what a block holds: it may be readable when they answer again.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            Error::Dmu(error) => error.is_unanswered(),
            Error::Log(error) => error.is_unanswered(),
            Error::Pool(error) => error.is_unanswered(),
            Error::Spill { unanswered, .. } => *unanswered,
            _ => false,
        }
    }

    pub(crate) fn dmu_errno(e: &dmu::Error) -> Errno {
        match e {
            dmu::Error::Zio(e) => e.errno(),
            e if e.is_not_found() => Errno::ENOENT,
            dmu::Error::KeyExists { .. } => Errno::EEXIST,
            dmu::Error::Refused { .. } => Errno::EINVAL,
            dmu::Error::TooManyCollisions { .. } => Errno::ENOSPC,
            dmu::Error::ReadOnly { .. } => Errno::EROFS,
            _ => Errno::EIO,
        }
    }

    pub(crate) fn corrupt(object: ObjectId, what: &'static str, value: u64) -> Self {
        Error::Corrupt { object, what, value }
    }

    pub(crate) fn not_found(name: impl Into<Vec<u8>>) -> Self {
        Error::NotFound { name: name.into() }
    }
}
