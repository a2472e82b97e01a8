use std::io;

/// Why a dataset cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool does not give what is asked for.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// An object cannot be read.
    #[error(transparent)]
    Dmu(#[from] dmu::Error),
    /// A block of pointers or dnodes cannot be read.
    #[error(transparent)]
    Zio(zio::Error),
    /// A block of data cannot be read (EIO, whatever is wrong with it).
    #[error(transparent)]
    Unreadable(zio::Error),
    /// The BEGIN record's list cannot be packed.
    #[error(transparent)]
    NvList(#[from] nvlist::Error),
    /// The other end does not take the stream.
    #[error("cannot write the stream: {0}")]
    Output(#[source] io::Error),
    /// A dnode or block is not what it should be.
    #[error("object {object}: {source}")]
    Format {
        /// The object.
        object: u64,
        /// What is wrong.
        source: ondisk::Error,
    },
    /// A block of an encrypted dataset is not encrypted (EIO).
    #[error("object {object}: a block of an encrypted dataset is not encrypted")]
    Forged {
        /// The object.
        object: u64,
    },
    /// A block tree has more blocks than the pool has room for (EIO).
    #[error("object {object}: its blocks go in circles")]
    Circle {
        /// The object.
        object: u64,
    },
    /// The dataset has directories in blocks above 128 KiB (ZFS_ERR_STREAM_LARGE_MICROZAP).
    #[error("source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to generate stream")]
    LargeMicrozap {
        /// The dataset.
        name: String,
    },
    /// The keys are of a format that raw streams do not carry (ENOTSUP).
    #[error("'{name}': raw sends of its old encryption format are not supported")]
    OldKeys {
        /// The dataset.
        name: String,
    },
    /// The redaction that made the bookmark was interrupted (EINVAL).
    #[error("'{name}': its redaction list is not complete")]
    Unfinished {
        /// The bookmark.
        name: String,
    },
    /// Another stage of the send has failed, and tells why.
    #[error("the send was stopped")]
    Stopped,
}

impl Error {
    /// The errno that OpenZFS gives on Linux in such a case.
    #[must_use]
    pub fn errno(&self) -> i32 {
        const EINTR: i32 = 4;
        const EIO: i32 = 5;
        const EINVAL: i32 = 22;
        const EPIPE: i32 = 32;
        const ENOTSUP: i32 = 95;
        const ZFS_ERR_STREAM_LARGE_MICROZAP: i32 = 1051;
        match self {
            Error::Pool(e) => e.errno(),
            Error::Zio(e) => e.errno(),
            Error::Output(e) => e.raw_os_error().unwrap_or(EPIPE),
            Error::LargeMicrozap { .. } => ZFS_ERR_STREAM_LARGE_MICROZAP,
            Error::OldKeys { .. } => ENOTSUP,
            Error::Unfinished { .. } => EINVAL,
            Error::Stopped => EINTR,
            _ => EIO,
        }
    }
}
