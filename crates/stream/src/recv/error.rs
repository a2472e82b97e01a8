use base::Guid;
use ondisk::send::RecordType;

/// Why a stream was not received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The stream is cut off, changed, or cannot be read.
    #[error(transparent)]
    Stream(#[from] crate::Error),
    /// The target does not take the stream, or the pool fails.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// A record that cannot be, by itself or after those before it (EINVAL; ERANGE for sizes beyond a limit).
    #[error("stream offset {offset}: {kind:?} record: {why}")]
    Record {
        /// Where the record begins.
        offset: u64,
        /// Its kind.
        kind: RecordType,
        /// What is wrong.
        why: String,
        /// A size is beyond what the pool takes.
        range: bool,
    },
    /// A record cannot be applied (EINVAL, EIO).
    #[error("stream offset {offset}: {kind:?} record: {source}")]
    Apply {
        /// Where the record begins.
        offset: u64,
        /// Its kind.
        kind: RecordType,
        /// What the object set says.
        source: dmu::Error,
    },
    /// A compressed block cannot be taken apart (EINVAL).
    #[error("stream offset {offset}: the block does not decompress: {source}")]
    Decompress {
        /// Where the record begins.
        offset: u64,
        /// Why.
        source: codec::Error,
    },
    /// The end is that of another stream (EINVAL).
    #[error("stream offset {offset}: the stream of {expected} ends as that of {found}")]
    OtherEnd {
        /// Where the record begins.
        offset: u64,
        /// The snapshot that it began with.
        expected: Guid,
        /// The snapshot that it ends with.
        found: Guid,
    },
    /// The list in BEGIN is broken.
    #[error("the stream's BEGIN record: {0}")]
    NvList(#[from] nvlist::Error),
    /// The target's name is not that of a snapshot (EINVAL).
    #[error("'{0}' is not the name of a snapshot")]
    Name(String),
    /// What reads the stream has stopped without a word.
    #[error("the receive was stopped")]
    Stopped,
}

impl Error {
    /// The errno that OpenZFS gives on Linux in such a case.
    #[must_use]
    pub fn errno(&self) -> i32 {
        const EINTR: i32 = 4;
        const EIO: i32 = 5;
        const EINVAL: i32 = 22;
        const ERANGE: i32 = 34;
        const ECKSUM: i32 = 52;
        const ZFS_ERR_STREAM_TRUNCATED: i32 = 1040;
        match self {
            Error::Stream(crate::Error::Truncated { .. }) => ZFS_ERR_STREAM_TRUNCATED,
            Error::Stream(crate::Error::Checksum { .. }) => ECKSUM,
            Error::Stream(crate::Error::TooLarge { .. }) | Error::Record { range: true, .. } => ERANGE,
            Error::Stream(crate::Error::Io { source, .. }) => source.raw_os_error().unwrap_or(EIO),
            Error::Pool(error) => error.errno(),
            Error::Apply { source: dmu::Error::Zio(error), .. } => error.errno(),
            Error::Stopped => EINTR,
            _ => EINVAL,
        }
    }

    /// Whether the stream ended too early or was damaged on its way: the same stream, sent again, may be whole.
    #[must_use]
    pub fn is_interruption(&self) -> bool {
        matches!(
            self,
            Error::Stream(crate::Error::Truncated { .. } | crate::Error::Checksum { .. } | crate::Error::Io { .. })
        )
    }
}
