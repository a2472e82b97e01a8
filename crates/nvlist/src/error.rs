//! Errors of reading, packing and lookups.

use crate::{DataType, NvString};
use base::Errno;

/// The reason why a list could not be read or packed, or a lookup failed. Offsets count from the first byte of the packed list's header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes end too early.
    #[error("packed nvlist is cut short at byte {offset}: {needed} more bytes are needed")]
    Truncated {
        /// Offset of the first missing byte.
        offset: usize,
        /// Number of missing bytes.
        needed: usize,
    },
    /// The first byte is not a known encoding.
    #[error("unknown nvlist encoding {0} (0 is native, 1 is XDR)")]
    Encoding(u8),
    /// The second byte is not a known byte order.
    #[error("unknown byte order {0} in a packed nvlist (0 is big, 1 is little)")]
    ByteOrder(u8),
    /// The list's version is not 0.
    #[error("nvlist at byte {offset} has version {version}, only version 0 is known")]
    Version {
        /// Offset of the version.
        offset: usize,
        /// The version found.
        version: i32,
    },
    /// A pair that contradicts itself.
    #[error("corrupt nvpair at byte {offset}: {what}")]
    Pair {
        /// Offset of the pair.
        offset: usize,
        /// The contradiction.
        what: &'static str,
    },
    /// A type number that does not exist.
    #[error("nvpair at byte {offset} has the unknown data type {number}")]
    Type {
        /// Offset of the pair.
        offset: usize,
        /// The number found.
        number: i32,
    },
    /// A name occurs twice in a list flagged as unique by name.
    #[error("nvpair at byte {offset} repeats the name '{name}' in a list of unique names")]
    Duplicate {
        /// Offset of the second pair.
        offset: usize,
        /// Its name.
        name: NvString,
    },
    /// The list is larger than the caller allows (or than the format can express).
    #[error("nvlist exceeds the limit of {limit} {what}")]
    Limit {
        /// The unit that the limit counts.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// No pair of this name.
    #[error("nvlist has no '{name}'")]
    Missing {
        /// The name asked for.
        name: NvString,
    },
    /// The pair exists, but has another type.
    #[error("nvpair '{name}' is a {found}, not a {expected}")]
    WrongType {
        /// The name asked for.
        name: NvString,
        /// The type asked for.
        expected: DataType,
        /// The type found.
        found: DataType,
    },
    /// The value is a string, but its bytes are not UTF-8.
    #[error("nvpair '{name}' is not UTF-8 text")]
    NotText {
        /// The name asked for.
        name: NvString,
    },
    /// The pair cannot be expressed in the packed form.
    #[error("nvpair '{name}' cannot be packed: {what}")]
    Unpackable {
        /// Its name.
        name: NvString,
        /// The reason.
        what: &'static str,
    },
}

impl Error {
    /// The errno that OpenZFS's functions return in this case.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Error::Missing { .. } | Error::WrongType { .. } => Errno::ENOENT,
            Error::Encoding(_) | Error::ByteOrder(_) | Error::Version { .. } => Errno::ENOTSUP,
            Error::Limit { .. } | Error::Unpackable { .. } | Error::NotText { .. } => Errno::EINVAL,
            Error::Truncated { .. } | Error::Pair { .. } | Error::Type { .. } | Error::Duplicate { .. } => {
                Errno::EFAULT
            }
        }
    }
}
