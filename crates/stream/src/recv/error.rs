use base::{Errno, Guid};
use ondisk::send::RecordType;

/// Reasons why a stream was not received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The stream is truncated, damaged, or cannot be read.
    #[error(transparent)]
    Stream(#[from] crate::Error),
    /// The target does not accept the stream, or the pool failed.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// A record is invalid, by itself or after the records before it (EINVAL; ERANGE for sizes beyond a limit).
    #[error("stream offset {offset}: {kind:?} record: {why}")]
    Record {
        /// The offset of the record in the stream.
        offset: u64,
        /// Its kind.
        kind: RecordType,
        /// The reason.
        why: String,
        /// True if a size exceeds the pool's limit.
        range: bool,
    },
    /// A record cannot be applied (EINVAL, EIO).
    #[error("stream offset {offset}: {kind:?} record: {source}")]
    Apply {
        /// The offset of the record in the stream.
        offset: u64,
        /// Its kind.
        kind: RecordType,
        /// The error of the object set.
        source: dmu::Error,
    },
    /// A block cannot be decompressed (EINVAL).
    #[error("stream offset {offset}: the block does not decompress: {source}")]
    Decompress {
        /// The offset of the record in the stream.
        offset: u64,
        /// The cause.
        source: codec::Error,
    },
    /// The END record belongs to another stream (EINVAL).
    #[error("stream offset {offset}: the stream of snapshot {expected} ends with the END of {found}")]
    OtherEnd {
        /// The offset of the record in the stream.
        offset: u64,
        /// The guid of the snapshot in BEGIN.
        expected: Guid,
        /// The guid of the snapshot in END.
        found: Guid,
    },
    /// The list in BEGIN is invalid.
    #[error("the stream's BEGIN record: {0}")]
    NvList(#[from] nvlist::Error),
    /// The target's name is not that of a snapshot (EINVAL).
    #[error("'{0}' is not the name of a snapshot")]
    Name(String),
    /// The reading thread ended without a result.
    #[error("the receive was stopped")]
    Stopped,
}

impl Error {
    /// Returns the errno that OpenZFS returns on Linux in such a case.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::Stream(crate::Error::Truncated { .. }) => Errno::ZFS_ERR_STREAM_TRUNCATED,
            Error::Stream(crate::Error::Checksum { .. }) => Errno::ECKSUM,
            Error::Stream(crate::Error::TooLarge { .. }) | Error::Record { range: true, .. } => Errno::ERANGE,
            Error::Stream(crate::Error::Io { source, .. }) => Errno::of_io(source, Errno::EIO),
            Error::Pool(error) => error.errno(),
            Error::Apply { source: dmu::Error::Zio(error), .. } => error.errno(),
            // not the stream is wrong
            Error::Apply {
                source:
                    dmu::Error::Bug { .. }
                    | dmu::Error::Corrupt { .. }
                    | dmu::Error::Fill { .. }
                    | dmu::Error::Format { .. },
                ..
            } => Errno::EIO,
            Error::Stopped => Errno::EINTR,
            _ => Errno::EINVAL,
        }
    }

    /// True if the stream ended too early or was damaged in transit: the same stream, sent again, may be intact.
    #[must_use]
    pub fn is_interruption(&self) -> bool {
        matches!(
            self,
            Error::Stream(crate::Error::Truncated { .. } | crate::Error::Checksum { .. } | crate::Error::Io { .. })
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ObjectId;

    #[test]
    fn a_damaged_target_is_no_invalid_stream() {
        let apply = |source| Error::Apply { offset: 0, kind: RecordType::Write, source }.errno();
        let (objset, object, what) = (ObjectId(5), ObjectId(7), "size");
        assert_eq!(apply(dmu::Error::Corrupt { objset, object, what, value: 1 }), Errno::EIO);
        assert_eq!(apply(dmu::Error::Bug { objset, object, what }), Errno::EIO);
        assert_eq!(apply(dmu::Error::Refused { objset, object, what, value: 1 }), Errno::EINVAL);
    }
}
