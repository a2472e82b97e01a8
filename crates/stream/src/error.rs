use std::io;

/// Reasons why a stream or token cannot be read or rewritten.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading failed.
    #[error("stream offset {offset}: {source}")]
    Io {
        /// Number of bytes read before.
        offset: u64,
        /// The cause.
        source: io::Error,
    },
    /// Writing the output failed.
    #[error("cannot write: {0}")]
    Output(#[source] io::Error),
    /// The input does not start with a BEGIN record of either byte order.
    #[error("Invalid stream (bad magic number)")]
    BadMagic {
        /// The value found in place of the magic number.
        found: u64,
    },
    /// A record has an unknown type.
    #[error("stream offset {offset}: unknown record type {kind:#x}")]
    UnknownType {
        /// The offset of the record in the stream.
        offset: u64,
        /// Its type number.
        kind: u32,
    },
    /// The stream ends within a record or its payload, or before END.
    #[error("stream offset {offset}: the stream is cut off: {have} bytes where {need} are needed")]
    Truncated {
        /// The offset of the record in the stream.
        offset: u64,
        /// Bytes of the record or payload.
        need: u64,
        /// Bytes that are present.
        have: u64,
    },
    /// A record's checksum is not that of the bytes before it.
    #[error("stream offset {offset}: checksum mismatch: {found:x?} in the record, {computed:x?} computed")]
    Checksum {
        /// The offset of the record in the stream.
        offset: u64,
        /// The checksum computed over the bytes before it.
        computed: [u64; 4],
        /// The checksum stored in the record.
        found: [u64; 4],
    },
    /// A payload is longer than any block or nvlist may be.
    #[error("stream offset {offset}: a payload length of {claimed} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// The offset of the record in the stream.
        offset: u64,
        /// The length it claims.
        claimed: u64,
        /// The limit.
        limit: u64,
    },
    /// A record cannot be decoded.
    #[error("stream offset {offset}: {source}")]
    Record {
        /// The offset of the record in the stream.
        offset: u64,
        /// The cause.
        source: ondisk::Error,
    },
    /// A record does not allow the requested operation.
    #[error("stream offset {offset}: {why}")]
    Unfit {
        /// The offset of the record in the stream.
        offset: u64,
        /// The reason.
        why: &'static str,
    },
    /// The nvlist of a BEGIN record or token is invalid.
    #[error(transparent)]
    NvList(#[from] nvlist::Error),
    /// A resume token is invalid.
    #[error("resume token is corrupt ({0})")]
    Token(String),
}
