//! Bonus buffers.

use base::{Endian, bytes};
use dmu::Object;
use ondisk::BLKPTR_SIZE;

/// A bonus buffer with all the space that its dnode has for one.
pub(super) struct Bonus {
    pub(super) bytes: Vec<u8>,
    pub(super) endian: Endian,
}

impl Bonus {
    pub(super) fn of(object: &Object) -> Bonus {
        let dn = object.phys();
        let room = dn.size().saturating_sub(64 + dn.blkptr.len() * BLKPTR_SIZE);
        let mut bytes = object.bonus().to_vec();
        bytes.resize(room.max(bytes.len()), 0);
        Bonus { bytes, endian: object.endian() }
    }

    /// Word `n`; 0 behind the end.
    pub(super) fn word(&self, n: usize) -> u64 {
        bytes::u64(&self.bytes, n * 8, self.endian).unwrap_or(0)
    }
}
