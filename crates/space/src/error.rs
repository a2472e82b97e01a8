use base::Txg;

/// Why space cannot be accounted for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A range that is to be added is in the tree already, in part or whole: allocated twice, or freed twice.
    #[error("range {start:#x}..{end:#x} is there already, at least in part")]
    Overlap {
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
    /// A range that is to be taken out is not wholly in the tree: freed without being allocated.
    #[error("range {start:#x}..{end:#x} is not there, or only in part")]
    Absent {
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
    /// An entry of a space map lies outside the map, or its numbers overflow.
    #[error("space map entry of {run:#x} units at {offset:#x} lies outside its map")]
    OutOfMap {
        /// Its offset in units of the map.
        offset: u64,
        /// Its length in units of the map.
        run: u64,
    },
    /// An entry of a log belongs to no metaslab of its vdev, or to two.
    #[error("log of txg {txg}: range {start:#x}+{size:#x} of vdev {vdev} is not within one metaslab")]
    NoMetaslab {
        /// The log.
        txg: Txg,
        /// The vdev.
        vdev: u32,
        /// First byte.
        start: u64,
        /// Bytes.
        size: u64,
    },
    /// An entry of a log names no vdev.
    #[error("log of txg {txg}: an entry names no vdev")]
    NoVdev {
        /// The log.
        txg: Txg,
    },
    /// Logs are applied in the order of their txgs.
    #[error("log of txg {txg} comes after the one of txg {after}")]
    LogOrder {
        /// The log.
        txg: Txg,
        /// The one before it.
        after: Txg,
    },
    /// The header of a space map says another amount of allocated space than its entries.
    #[error("space map header says {header} bytes allocated, its entries {entries}")]
    Allocated {
        /// What the header says.
        header: i64,
        /// What the entries give.
        entries: u64,
    },
    /// A space map has fewer bytes than its header says.
    #[error("space map has {have} bytes of entries where its header says {need}")]
    Short {
        /// What the header says.
        need: u64,
        /// What is there.
        have: u64,
    },
    /// Bytes are no space map entry.
    #[error(transparent)]
    Ondisk(#[from] ondisk::Error),
}

/// Why no space was allocated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No run of this size is free in any class that the block may lie in.
    #[error("no space")]
    NoSpace,
    /// A space map cannot be used.
    #[error("metaslab {metaslab} of vdev {vdev} cannot be loaded: {cause}")]
    Load {
        /// The top-level vdev.
        vdev: u32,
        /// The metaslab.
        metaslab: u32,
        /// Why.
        cause: String,
    },
    /// There is no such vdev, or no such place on it.
    #[error("there is no space at {offset:#x} of vdev {vdev}")]
    Nowhere {
        /// The top-level vdev.
        vdev: u64,
        /// Where.
        offset: u64,
    },
    /// A range is not in the state that it should be in.
    #[error("vdev {vdev}: {source}")]
    State {
        /// The top-level vdev.
        vdev: u32,
        /// What is wrong.
        source: Error,
    },
}
