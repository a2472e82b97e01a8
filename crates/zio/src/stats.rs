use std::collections::BTreeMap;

use base::Guid;
use base::counter::Counter;
use parking_lot::Mutex;
use vdev::{FaultKind, LeafFault};

/// What reading has met so far, by counters that only grow.
#[derive(Debug, Default)]
pub struct Stats {
    /// Physical blocks read (cache misses, raw reads, scrubbed copies).
    pub blocks: Counter,
    /// Their bytes.
    pub bytes: Counter,
    /// Gang headers followed.
    pub gangs: Counter,
    /// Blocks decrypted or authenticated.
    pub decrypts: Counter,
    /// Blocks that a second copy, a mirror side or parity saved.
    pub recovered: Counter,
    /// Blocks without any good copy.
    pub lost: Counter,
    /// Copies that were wrong and have been overwritten with what they should hold.
    pub healed: Counter,
    /// Blocks that an ordinary read found damaged in part, and that were made whole since.
    pub mended: Counter,
    /// Copies of blocks written, gang headers and pieces apiece.
    pub written: Counter,
    /// Their bytes.
    pub written_bytes: Counter,
    /// Runs of neighbouring blocks of the MOS among them: as many writes on vdevs of one leaf.
    pub written_mos: Counter,
    /// Allocated bytes of these.
    pub written_mos_bytes: Counter,
    /// Runs of neighbouring blocks of other metadata, with indirect blocks of data.
    pub written_metadata: Counter,
    /// Allocated bytes of these.
    pub written_metadata_bytes: Counter,
    leaves: Mutex<BTreeMap<Guid, ReadStats>>,
}

/// What went wrong on one leaf device, in blocks (OpenZFS: the vdev's read and checksum error counts).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ReadStats {
    /// Reads that the device refused.
    pub io: u64,
    /// Reads that gave other bytes than were written.
    pub checksum: u64,
    /// Reads that went elsewhere as the device, or that range of it, is missing.
    pub missing: u64,
}

impl Stats {
    /// The faults of each leaf that had any.
    #[must_use]
    pub fn leaves(&self) -> BTreeMap<Guid, ReadStats> {
        self.leaves.lock().clone()
    }

    /// Adds the faults that a read got round.
    pub(crate) fn record(&self, faults: &[LeafFault]) {
        if faults.is_empty() {
            return;
        }
        let mut leaves = self.leaves.lock();
        for fault in faults {
            let leaf = leaves.entry(fault.leaf).or_default();
            match fault.kind {
                FaultKind::Io => leaf.io += 1,
                FaultKind::Checksum => leaf.checksum += 1,
                FaultKind::Missing => leaf.missing += 1,
            }
        }
    }
}
