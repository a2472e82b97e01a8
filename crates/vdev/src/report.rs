//! The findings of a read about the devices.

use base::Guid;

/// The fault of a leaf's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The device failed.
    Io,
    /// The device gave wrong bytes.
    Checksum,
    /// The leaf has no device, or missed the txg in which the block was written. Told in [scrub mode](crate::ReadMode::Scrub) only.
    Missing,
}

/// Bytes of a leaf that were not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeafFault {
    /// The leaf.
    pub leaf: Guid,
    /// The fault.
    pub kind: FaultKind,
    /// The offset, in bytes from the front of the device.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// The account of a block that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadReport {
    /// Wrong bytes that the redundancy made good. Empty (and not allocated) when all was well.
    pub repaired: Vec<LeafFault>,
    /// Ranges of leaves that were overwritten with what they should hold ([`crate::ReadCx::heal`]): those of `repaired` that could be written.
    pub healed: Vec<LeafFault>,
    /// Ranges of leaves that were read and found right.
    pub copies_checked: u32,
}

impl ReadReport {
    /// Whether nothing was wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.repaired.is_empty()
    }
}
