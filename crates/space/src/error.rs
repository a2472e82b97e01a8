use base::{ObjectId, Txg};

/// Reasons why space cannot be accounted for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A range to be added is already in the set, in part or whole: a double allocation or a double free.
    #[error("range {start:#x}..{end:#x} is already present, at least in part (double allocation or double free)")]
    Overlap {
        /// First byte.
        start: u64,
        /// The end, exclusive.
        end: u64,
    },
    /// A range to be removed is not wholly in the set: a free of space that is not allocated, or an allocation of space that is
    /// not free.
    #[error(
        "range {start:#x}..{end:#x} is not present, or only in part (free of unallocated space, or claim of allocated space)"
    )]
    Absent {
        /// First byte.
        start: u64,
        /// The end, exclusive.
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
    /// An entry of a log lies in no metaslab of its vdev, or in two, or ends within a sector.
    #[error("log of txg {txg}: range {start:#x}+{size:#x} of vdev {vdev} is not made of whole sectors of one metaslab")]
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
    /// A log was to be applied after a later one; logs are applied in the order of their txgs.
    #[error("log of txg {txg} was to be applied after the log of txg {after}")]
    LogOrder {
        /// The log.
        txg: Txg,
        /// The one before it.
        after: Txg,
    },
    /// The header of a space map states another amount of allocated space than its entries.
    #[error("space map header says {header} bytes allocated, its entries {entries}")]
    Allocated {
        /// The amount in the header.
        header: i64,
        /// The sum of the entries.
        entries: u64,
    },
    /// The header of a space map states another amount of allocated space than is known of its metaslab.
    #[error("space map {object} has {header} bytes allocated and {changes} in logs, its metaslab {allocated}")]
    Miscount {
        /// The space map.
        object: ObjectId,
        /// The amount in the header.
        header: i64,
        /// The changes that are in logs only: allocated less freed.
        changes: i64,
        /// The amount that the metaslab counts.
        allocated: u64,
    },
    /// A space map is shorter than its header says.
    #[error("space map has {have} bytes of entries where its header says {need}")]
    Short {
        /// The length in the header.
        need: u64,
        /// The bytes that exist.
        have: u64,
    },
    /// Bytes that are not a valid space map entry.
    #[error(transparent)]
    Ondisk(#[from] ondisk::Error),
}

/// Reasons why no space was allocated or freed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No free segment of this size exists in any class that the block may be placed in.
    #[error("no space")]
    NoSpace,
    /// A space map cannot be used.
    #[error("metaslab {metaslab} of vdev {vdev} cannot be loaded: {cause}")]
    Load {
        /// The top-level vdev.
        vdev: u32,
        /// The metaslab.
        metaslab: u32,
        /// The cause.
        cause: String,
    },
    /// The vdev does not exist, or is smaller than the offset.
    #[error("offset {offset:#x} of vdev {vdev} does not exist")]
    Nowhere {
        /// The top-level vdev.
        vdev: u64,
        /// The offset.
        offset: u64,
    },
    /// A range is not in the expected state.
    #[error("vdev {vdev}: {source}")]
    State {
        /// The top-level vdev.
        vdev: u32,
        /// The inconsistency.
        source: Error,
    },
}
