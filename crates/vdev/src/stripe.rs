//! The places of the parts of one block on the children of a raidz or dRAID.

use ondisk::VDEV_LABEL_START_SIZE;
use smallvec::SmallVec;

/// One run of bytes on one child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    /// The child, by its place in the vdev.
    pub(crate) child: usize,
    /// The offset on the child, in bytes from the front of its device (labels included).
    pub(crate) offset: u64,
    /// Bytes; 0 for a column that the block does not reach.
    pub(crate) size: usize,
    /// For data, where the run belongs in the block.
    pub(crate) at: usize,
    /// Bytes behind the run that are zero on disk (dRAID).
    pub(crate) pad: usize,
}

/// A row: parity columns, then data columns; parity is computed over the row with short columns filled up with zeros.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// The columns, parity first.
    pub(crate) columns: SmallVec<[Column; 12]>,
    /// How many of them are parity.
    pub(crate) parity: usize,
}

impl Row {
    /// The data columns.
    pub(crate) fn data(&self) -> &[Column] {
        self.columns.get(self.parity..).unwrap_or(&[])
    }

    /// Bytes of the longest column.
    pub(crate) fn stride(&self) -> usize {
        self.columns.iter().map(|c| c.size).max().unwrap_or(0)
    }
}

/// All rows of a block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StripeMap {
    /// The rows, each with its own parity.
    pub(crate) rows: SmallVec<[Row; 1]>,
}

/// A block as a geometry takes it: a run of whole sectors on a vdev.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    /// Offset on the top-level vdev, in bytes.
    pub(crate) offset: u64,
    /// Bytes, a multiple of the sector size.
    pub(crate) size: u64,
    /// Base-2 logarithm of the sector size.
    pub(crate) ashift: u32,
}

impl Extent {
    /// First sector.
    pub(crate) const fn sector(&self) -> u64 {
        self.offset >> self.ashift
    }

    /// Number of sectors.
    pub(crate) const fn sectors(&self) -> u64 {
        self.size >> self.ashift
    }
}

/// The offset on a device of byte `offset` of a leaf's allocatable space.
pub(crate) const fn physical(offset: u64) -> u64 {
    offset.saturating_add(VDEV_LABEL_START_SIZE)
}
