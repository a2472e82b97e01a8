//! What can go wrong with a list.

use crate::{DataType, NvString};

/// Why a list could not be read, packed or asked. Offsets count from the first byte of the packed list's header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes end too early.
    #[error("packed nvlist is cut short at byte {offset}: {needed} more bytes are needed")]
    Truncated {
        /// Where the missing bytes would be.
        offset: usize,
        /// How many are missing.
        needed: usize,
    },
    /// The first byte names no known encoding.
    #[error("unknown nvlist encoding {0} (0 is native, 1 is XDR)")]
    Encoding(u8),
    /// The second byte names no byte order.
    #[error("unknown byte order {0} in a packed nvlist (0 is big, 1 is little)")]
    ByteOrder(u8),
    /// A list of another version than 0.
    #[error("nvlist at byte {offset} has version {version}, only version 0 is known")]
    Version {
        /// Where the version is.
        offset: usize,
        /// What it is.
        version: i32,
    },
    /// A pair that contradicts itself.
    #[error("corrupt nvpair at byte {offset}: {what}")]
    Pair {
        /// Where the pair starts.
        offset: usize,
        /// The contradiction.
        what: &'static str,
    },
    /// A type number that does not exist.
    #[error("nvpair at byte {offset} has the unknown data type {number}")]
    Type {
        /// Where the pair starts.
        offset: usize,
        /// The number found.
        number: i32,
    },
    /// A list that promises unique names has one twice.
    #[error("nvpair at byte {offset} repeats the name '{name}' in a list of unique names")]
    Duplicate {
        /// Where the second pair starts.
        offset: usize,
        /// Its name.
        name: NvString,
    },
    /// The list is larger than the caller allows (or than the format can say).
    #[error("nvlist exceeds the limit of {limit} {what}")]
    Limit {
        /// What there is too much of.
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
    /// The pair is there with another type.
    #[error("nvpair '{name}' is a {found}, not a {expected}")]
    WrongType {
        /// The name asked for.
        name: NvString,
        /// The type asked for.
        expected: DataType,
        /// The type found.
        found: DataType,
    },
    /// The pair is a string, but its bytes are not UTF-8.
    #[error("nvpair '{name}' is not UTF-8 text")]
    NotText {
        /// The name asked for.
        name: NvString,
    },
    /// The pair cannot be said in the packed form.
    #[error("nvpair '{name}' cannot be packed: {what}")]
    Unpackable {
        /// Its name.
        name: NvString,
        /// Why.
        what: &'static str,
    },
}

impl Error {
    /// The errno that OpenZFS's functions give in this case.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        const ENOENT: i32 = 2;
        const EFAULT: i32 = 14;
        const EINVAL: i32 = 22;
        const ENOTSUP: i32 = 95;
        match self {
            Error::Missing { .. } | Error::WrongType { .. } => ENOENT,
            Error::Encoding(_) | Error::ByteOrder(_) | Error::Version { .. } => ENOTSUP,
            Error::Limit { .. } | Error::Unpackable { .. } | Error::NotText { .. } => EINVAL,
            Error::Truncated { .. } | Error::Pair { .. } | Error::Type { .. } | Error::Duplicate { .. } => EFAULT,
        }
    }
}
