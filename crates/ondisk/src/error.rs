/// Why bytes are not the structure that they were taken for.
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
        /// Bytes there.
        have: u64,
    },
    /// A magic number is neither right nor byte-swapped.
    #[error("{what}: bad magic number {found:#x}")]
    BadMagic {
        /// The structure.
        what: &'static str,
        /// What stands in its place.
        found: u64,
    },
    /// A field holds what it cannot hold.
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
    /// A [`Error::Truncated`] from lengths in memory.
    #[must_use]
    pub fn short(what: &'static str, need: usize, have: usize) -> Self {
        Error::Truncated { what, need: need as u64, have: have as u64 }
    }
}
