use std::io;

use base::{Errno, ObjectId};

/// Reasons why a dataset cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool returned an error.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// An object cannot be read.
    #[error(transparent)]
    Dmu(#[from] dmu::Error),
    /// A block of pointers or dnodes cannot be read.
    #[error(transparent)]
    Zio(zio::Error),
    /// A block of data cannot be read (EIO, whatever the cause).
    #[error(transparent)]
    Unreadable(zio::Error),
    /// The BEGIN record's list cannot be packed.
    #[error(transparent)]
    NvList(#[from] nvlist::Error),
    /// Writing the stream failed.
    #[error("cannot write the stream: {0}")]
    Output(#[source] io::Error),
    /// A dnode or block has an invalid format.
    #[error("object {object}: {source}")]
    Format {
        /// The object.
        object: ObjectId,
        /// The decoding error.
        source: ondisk::Error,
    },
    /// A block of an encrypted dataset is not encrypted (EIO).
    #[error("object {object}: a block of an encrypted dataset is not encrypted")]
    Forged {
        /// The object.
        object: ObjectId,
    },
    /// A block tree has more blocks than the pool has space for (EIO).
    #[error("object {object}: its block tree has more blocks than the pool can hold")]
    Circle {
        /// The object.
        object: ObjectId,
    },
    /// The dataset has directories in blocks above 128 KiB (ZFS_ERR_STREAM_LARGE_MICROZAP).
    #[error("source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to generate stream")]
    LargeMicrozap {
        /// The dataset.
        name: String,
    },
    /// The keys are of a format that raw streams do not carry (ENOTSUP).
    #[error("'{name}': raw sends of this old encryption format are not supported")]
    OldKeys {
        /// The dataset.
        name: String,
    },
    /// The redaction that made the bookmark was interrupted (EINVAL).
    #[error("'{name}': the redaction list is not complete")]
    Unfinished {
        /// The bookmark.
        name: String,
    },
    /// Another stage of the send has failed and returns the cause.
    #[error("the send was stopped")]
    Stopped,
}

impl Error {
    pub(super) fn invalid(object: ObjectId, what: &'static str, field: &'static str, value: u64) -> Error {
        Error::Format { object, source: ondisk::Error::Invalid { what, field, value } }
    }

    /// Returns the errno that OpenZFS returns on Linux in such a case.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::Pool(e) => e.errno(),
            Error::Zio(e) | Error::Dmu(dmu::Error::Zio(e)) => e.errno(),
            Error::Output(e) => Errno::of_io(e, Errno::EPIPE),
            Error::LargeMicrozap { .. } => Errno::ZFS_ERR_STREAM_LARGE_MICROZAP,
            Error::OldKeys { .. } => Errno::ENOTSUP,
            Error::Unfinished { .. } => Errno::EINVAL,
            Error::Stopped => Errno::EINTR,
            _ => Errno::EIO,
        }
    }
}
