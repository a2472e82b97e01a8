//! Errors of checksums, compression and encryption.

use crate::{ChecksumKind, Compress};

/// The reason why a block could not be checked, decompressed or decrypted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The computed checksum is not the expected one (OpenZFS: `ECKSUM`).
    #[error("{what}: {} checksum mismatch", kind.name())]
    Checksum {
        /// The block or area checked.
        what: &'static str,
        /// The checksum function.
        kind: ChecksumKind,
    },
    /// A block with an embedded checksum does not end with the magic number of its trailer (OpenZFS: `ECKSUM`).
    #[error("{what}: no checksum trailer (magic number not found)")]
    NoTrailer {
        /// The block or area checked.
        what: &'static str,
    },
    /// A checksum kind that is embedded in its block was requested as the checksum of a whole block.
    #[error("checksum {} is embedded in its block", .0.name())]
    Embedded(ChecksumKind),
    /// A salted checksum was requested, and the pool has no salt.
    #[error("checksum {} needs the pool's salt, and the pool has none", .0.name())]
    NoSalt(ChecksumKind),
    /// A buffer has a length that the format forbids.
    #[error("{what}: impossible length {len}")]
    Length {
        /// The buffer concerned.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
    },
    /// Compressed bytes are damaged, or do not expand to exactly the block's size (OpenZFS: `EIO`).
    #[error("cannot decompress {} block of {src} into {dst} bytes: {why}", kind.name())]
    Decompress {
        /// The compressor.
        kind: Compress,
        /// Length of the compressed bytes.
        src: usize,
        /// Length that they should expand to.
        dst: usize,
        /// The decompressor's message.
        why: &'static str,
    },
    /// The wrapping key does not unwrap the dataset's key (OpenZFS: `EACCES`).
    #[error("incorrect key")]
    WrongKey,
    /// A key is malformed: wrong length or not hexadecimal.
    #[error("invalid key: {0}")]
    BadKey(&'static str),
    /// An unknown cipher suite or key version (OpenZFS: `ZFS_ERR_CRYPTO_NOTSUP`).
    #[error("unsupported {what} {value} of an encrypted dataset")]
    Unsupported {
        /// The unknown property.
        what: &'static str,
        /// Its number.
        value: u64,
    },
    /// The message authentication code is wrong: the block was tampered with, or the key is wrong (OpenZFS: `ECKSUM`, seen as `EIO`).
    #[error("{0}: authentication failed")]
    Authentication(&'static str),
    /// A dnode or intent-log block is so damaged that its clear and encrypted parts cannot be separated.
    #[error("{what}: {why}")]
    Malformed {
        /// The block concerned.
        what: &'static str,
        /// The damage found.
        why: &'static str,
    },
}
