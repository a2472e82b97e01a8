//! What can go wrong between bytes and bytes.

use crate::{ChecksumKind, Compress};

/// Why a block could not be checked, decompressed or decrypted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The checksum found is not the one expected (OpenZFS: `ECKSUM`).
    #[error("{what}: {} checksum mismatch", kind.name())]
    Checksum {
        /// What was checked.
        what: &'static str,
        /// With which function.
        kind: ChecksumKind,
    },
    /// A self-checksummed block does not end in the magic number of its trailer (OpenZFS: `ECKSUM`).
    #[error("{what}: no checksum trailer (magic number not found)")]
    NoTrailer {
        /// What was checked.
        what: &'static str,
    },
    /// A checksum that stands inside its block was asked for as one of a whole block.
    #[error("checksum {} stands inside its block", .0.name())]
    Embedded(ChecksumKind),
    /// A salted checksum was asked for, and the pool has no salt.
    #[error("checksum {} needs the pool's salt, and there is none", .0.name())]
    NoSalt(ChecksumKind),
    /// A buffer has a length that the format forbids.
    #[error("{what}: impossible length {len}")]
    Length {
        /// Which buffer.
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
        /// Length that they ought to expand to.
        dst: usize,
        /// What the decompressor says.
        why: &'static str,
    },
    /// The wrapping key does not open the dataset's key (OpenZFS: `EACCES`).
    #[error("incorrect key")]
    WrongKey,
    /// A key is malformed: wrong length or not hexadecimal.
    #[error("invalid key: {0}")]
    BadKey(&'static str),
    /// A cipher suite or key version that this program does not know (OpenZFS: `ZFS_ERR_CRYPTO_NOTSUP`).
    #[error("unsupported {what} {value} of an encrypted dataset")]
    Unsupported {
        /// What is unknown.
        what: &'static str,
        /// Its number.
        value: u64,
    },
    /// The message authentication code is wrong: tampered with, or the wrong key (OpenZFS: `ECKSUM`, seen as `EIO`).
    #[error("{0}: authentication failed")]
    Authentication(&'static str),
    /// A dnode or intent-log block is so damaged that its clear and encrypted parts cannot be told apart.
    #[error("{what}: {why}")]
    Malformed {
        /// Which block.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
}
