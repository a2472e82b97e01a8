use std::io;

/// Why a stream or token cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading failed.
    #[error("stream offset {offset}: {source}")]
    Io {
        /// Bytes read before.
        offset: u64,
        /// The cause.
        source: io::Error,
    },
    /// Writing what was found failed.
    #[error("cannot write: {0}")]
    Output(#[source] io::Error),
    /// It does not open with a BEGIN record of either byte order.
    #[error("Invalid stream (bad magic number)")]
    BadMagic {
        /// What stands in the magic number's place.
        found: u64,
    },
    /// A record of no known type.
    #[error("stream offset {offset}: unknown record type {kind:#x}")]
    UnknownType {
        /// Where the record begins.
        offset: u64,
        /// Its type number.
        kind: u32,
    },
    /// The stream ends within a record or its payload, or before END.
    #[error("stream offset {offset}: the stream is cut off: {have} bytes where {need} are needed")]
    Truncated {
        /// Where the record begins.
        offset: u64,
        /// Bytes of the record or payload.
        need: u64,
        /// Bytes that are there.
        have: u64,
    },
    /// A record does not carry the sum of what came before it.
    #[error("stream offset {offset}: checksum mismatch: {found:x?} in the record, {computed:x?} computed")]
    Checksum {
        /// Where the record begins.
        offset: u64,
        /// The sum of the bytes before.
        computed: [u64; 4],
        /// The sum that the record carries.
        found: [u64; 4],
    },
    /// A payload longer than any block or nvlist may be.
    #[error("stream offset {offset}: a payload of {claimed} bytes is claimed, the limit is {limit}")]
    TooLarge {
        /// Where the record begins.
        offset: u64,
        /// The length it claims.
        claimed: u64,
        /// The limit.
        limit: u64,
    },
    /// A record that cannot be decoded.
    #[error("stream offset {offset}: {source}")]
    Record {
        /// Where the record begins.
        offset: u64,
        /// The cause.
        source: ondisk::Error,
    },
    /// A record with which what is asked for cannot be done.
    #[error("stream offset {offset}: {why}")]
    Unfit {
        /// Where the record begins.
        offset: u64,
        /// Why.
        why: &'static str,
    },
    /// The nvlist of a BEGIN record or token.
    #[error(transparent)]
    NvList(#[from] nvlist::Error),
    /// A resume token that is none.
    #[error("resume token is corrupt ({0})")]
    Token(String),
}
