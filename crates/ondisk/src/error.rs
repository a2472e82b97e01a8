/// The reason why bytes are not a valid structure of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Fewer bytes than the structure needs.
    #[error("{what}: {have} bytes where {need} are needed")]
    Truncated {
        /// The structure.
        what: &'static str,
        /// Bytes needed.
        need: u64,
        /// Bytes present.
        have: u64,
    },
    /// A magic number matches in neither byte order.
    #[error("{what}: bad magic number {found:#x}")]
    BadMagic {
        /// The structure.
        what: &'static str,
        /// The number found.
        found: u64,
    },
    /// A field has an impossible value.
    #[error("{what}: {field} is {value}, which is not possible")]
    Invalid {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl Error {
    /// Makes an [`Error::Truncated`] from `usize` lengths.
    #[must_use]
    pub fn short(what: &'static str, need: usize, have: usize) -> Self {
        Error::Truncated { what, need: need as u64, have: have as u64 }
    }
}
