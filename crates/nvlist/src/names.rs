//! The names of a list: one byte arena.
//!
//! A record is `[first slot u32][length u32][bytes]`, padded to 8. Its place is counted in units of 8 bytes, so that 32 bits reach 32 GiB.

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

const HEADER: usize = 8;

/// The arena.
#[derive(Clone, Default)]
pub(crate) struct Names {
    bytes: Vec<u8>,
}

/// Bytes of a record for a name of this length.
pub(crate) const fn record_size(name: usize) -> usize {
    HEADER + name.next_multiple_of(8)
}

impl Names {
    /// An arena with room for `bytes` of records.
    pub(crate) fn with_capacity(bytes: usize) -> Names {
        Names {
            bytes: Vec::with_capacity(bytes),
        }
    }

    /// Appends a record.
    ///
    /// # Panics
    /// The arena would pass 32 GiB.
    #[inline]
    pub(crate) fn push(&mut self, name: &[u8], slot: u32) -> u32 {
        let at = self.bytes.len();
        let record = at / 8;
        assert!(
            record < NONE as usize - 1 && name.len() < NONE as usize,
            "nvlist: names pass 32 GiB"
        );
        let header = u64::from(slot) | (name.len() as u64) << 32;
        self.bytes.reserve(record_size(name.len()));
        self.bytes.extend_from_slice(&header.to_le_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(at + record_size(name.len()), 0);
        record as u32
    }

    #[inline(always)]
    fn header(&self, record: u32) -> u64 {
        let tail = self.bytes.get(record as usize * 8..);
        let header = tail.and_then(|b| b.first_chunk::<8>());
        u64::from_le_bytes(*header.unwrap_or(&[0; 8]))
    }

    /// The first slot of the name, [`NONE`] if the name is dead.
    #[inline(always)]
    pub(crate) fn head(&self, record: u32) -> u32 {
        self.header(record) as u32
    }

    /// Makes `slot` the first one of the name.
    #[inline(always)]
    pub(crate) fn set_head(&mut self, record: u32, slot: u32) {
        if let Some(header) = self.bytes.get_mut(record as usize * 8..).and_then(|b| b.first_chunk_mut::<4>()) {
            *header = slot.to_le_bytes();
        }
    }

    /// The name's bytes.
    #[inline(always)]
    pub(crate) fn get(&self, record: u32) -> &[u8] {
        let start = record as usize * 8 + HEADER;
        let len = (self.header(record) >> 32) as usize;
        self.bytes.get(start..start + len).unwrap_or_default()
    }

    /// The live record of a name, by reading all of them in order: for short lists.
    #[inline]
    pub(crate) fn scan(&self, name: &[u8]) -> Option<u32> {
        let mut at = 0;
        while at * 8 < self.bytes.len() {
            let record = at as u32;
            let held = self.get(record);
            if held == name && self.head(record) != NONE {
                return Some(record);
            }
            at += record_size(held.len()) / 8;
        }
        None
    }

    /// Bytes in use, dead records included.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes allocated.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}
