use std::collections::BTreeMap;

use base::Guid;
use base::counter::Counter;
use parking_lot::Mutex;
use vdev::{FaultKind, LeafFault};

/// Counters of reads and writes, which only grow.
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
    /// Blocks recovered from a second copy, a mirror side or parity.
    pub recovered: Counter,
    /// Blocks without any good copy.
    pub lost: Counter,
    /// Bad copies that were overwritten with good data.
    pub healed: Counter,
    /// Blocks that an ordinary read found damaged in part, and that have been healed since.
    pub self_healed: Counter,
    /// Copies of blocks written; gang headers and pieces count separately.
    pub written: Counter,
    /// Their bytes.
    pub written_bytes: Counter,
    /// Runs of neighbouring MOS blocks among them: equal to the number of writes on vdevs of one leaf.
    pub written_mos: Counter,
    /// Allocated bytes of these.
    pub written_mos_bytes: Counter,
    /// Runs of neighbouring blocks of other metadata, including indirect blocks of data.
    pub written_metadata: Counter,
    /// Allocated bytes of these.
    pub written_metadata_bytes: Counter,
    leaves: Mutex<BTreeMap<Guid, ReadStats>>,
}

/// The errors on one leaf device, in blocks (OpenZFS: the vdev's read and checksum error counts).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ReadStats {
    /// Reads that the device failed.
    pub io: u64,
    /// Reads that returned other bytes than were written.
    pub checksum: u64,
    /// Reads redirected because the device, or that range of it, is missing.
    pub missing: u64,
}

impl Stats {
    /// The faults of each leaf that had any.
    #[must_use]
    pub fn leaves(&self) -> BTreeMap<Guid, ReadStats> {
        self.leaves.lock().clone()
    }

    /// Adds the faults that a read recovered from.
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
