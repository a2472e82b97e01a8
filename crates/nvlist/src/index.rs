//! The hash index: from a name's hash to the place of its record.
//!
//! Open addressing with linear probing over `u64` entries: the upper half is 32 bits of the hash, the lower half the record plus one, and 0
//! is empty. A home is given by the *upper* bits of the hash, so a table that doubles is read and written from front to back. Eight entries share a
//! cache line: nearly every search ends in the line where it began. Removal shifts the entries behind it back; there are no tombstones.

use crate::sip::Key;

/// The table. It holds distinct names only.
#[derive(Clone)]
pub(crate) struct Index {
    entries: Box<[u64]>,
    /// A hash tag shifted right by this is a home.
    shift: u32,
    len: usize,
    key: Key,
}

const MIN_BITS: u32 = 5;

/// Whether a table of `slots` may hold `len` entries: at most five eighths, which keeps probes within a line.
const fn fits(len: usize, slots: usize) -> bool {
    len * 8 <= slots * 5
}

impl Index {
    /// An empty index with room for `len` names and a key of its own.
    pub(crate) fn for_len(len: usize) -> Index {
        let mut bits = MIN_BITS;
        while !fits(len, 1 << bits) && bits < 32 {
            bits += 1;
        }
        Index::with_bits(bits, Key::random())
    }

    fn with_bits(bits: u32, key: Key) -> Index {
        Index {
            entries: vec![0; 1 << bits].into_boxed_slice(),
            shift: 32 - bits,
            len: 0,
            key,
        }
    }

    /// The tag of a name.
    #[inline]
    pub(crate) fn tag(&self, name: &[u8]) -> u32 {
        (self.key.hash(name) >> 32) as u32
    }

    #[inline(always)]
    fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    #[inline(always)]
    fn home(&self, tag: u32) -> usize {
        (u64::from(tag) >> self.shift) as usize
    }

    /// The place of the entry with this tag for whose record `is` says yes, else the empty place where it would go.
    #[inline]
    pub(crate) fn find(&self, tag: u32, mut is: impl FnMut(u32) -> bool) -> Result<Place, Place> {
        let mask = self.mask();
        let mut at = self.home(tag) & mask;
        loop {
            let entry = self.entries[at & mask];
            if entry == 0 {
                return Err(Place { at, record: 0 });
            }
            let record = (entry as u32).wrapping_sub(1);
            if (entry >> 32) as u32 == tag && is(record) {
                return Ok(Place { at, record });
            }
            at = (at + 1) & mask;
        }
    }

    /// Makes room for one more entry, so that a place found next stays good.
    #[inline]
    pub(crate) fn reserve(&mut self) {
        if !fits(self.len + 1, self.entries.len()) {
            self.grow();
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Index::with_bits(33 - self.shift, self.key);
        larger.take(self, |record| record);
        *self = larger;
    }

    /// Inserts all entries of `other`, an index under the same key, with their records renamed.
    fn take(&mut self, other: &Index, mut rename: impl FnMut(u32) -> u32) {
        let mask = self.mask();
        for entry in other.entries.iter().copied().filter(|e| *e != 0) {
            let mut at = self.home((entry >> 32) as u32);
            while self.entries[at & mask] != 0 {
                at += 1;
            }
            let record = rename((entry as u32).wrapping_sub(1));
            self.entries[at & mask] = entry >> 32 << 32 | u64::from(record + 1);
        }
        self.len = other.len;
    }

    /// The same index after its records moved, in a table of fitting size.
    pub(crate) fn renamed(&self, rename: impl FnMut(u32) -> u32) -> Index {
        // half as much again: a list that shrank may well grow again
        let mut fresh = Index::for_len(self.len + self.len / 2);
        fresh.key = self.key;
        fresh.take(self, rename);
        fresh
    }

    /// Fills the empty place that [`Index::find`] gave after [`Index::reserve`].
    #[inline]
    pub(crate) fn fill(&mut self, empty: Place, tag: u32, record: u32) {
        let mask = self.mask();
        debug_assert_eq!(self.entries[empty.at & mask], 0);
        self.entries[empty.at & mask] = u64::from(tag) << 32 | u64::from(record + 1);
        self.len += 1;
    }

    /// Empties a place.
    #[inline]
    pub(crate) fn remove(&mut self, place: Place) {
        let mask = self.mask();
        let mut hole = place.at & mask;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = self.entries[at];
            if entry == 0 {
                break;
            }
            let home = self.home((entry >> 32) as u32);
            // an entry may move back only as far as its home
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole] = 0;
        self.len -= 1;
    }

    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes allocated.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len() * 8
    }
}

/// A place in the table, good until the table changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    at: usize,
    /// The record found there.
    pub(crate) record: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn keeps_entries_through_growth_collisions_and_removal() {
        let mut index = Index::for_len(0);
        let mut model = HashMap::new();
        let mut seed = 7u64;
        for step in 0..20_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // few tags, bunched at both ends: long runs, and runs around the end
            let tag = ((seed >> 33) as u32 % 900).wrapping_sub(450);
            index.reserve();
            match (index.find(tag, |_| true), step % 3 == 2) {
                (Ok(place), true) => {
                    assert_eq!(model.remove(&tag), Some(place.record));
                    index.remove(place);
                }
                (Ok(place), false) => assert_eq!(model.get(&tag), Some(&place.record)),
                (Err(place), _) => {
                    assert!(!model.contains_key(&tag));
                    model.insert(tag, step);
                    index.fill(place, tag, step);
                }
            }
            assert_eq!(index.len(), model.len());
            if step % 4096 == 0 {
                index = index.renamed(|r| r);
            }
        }
        for (tag, record) in model {
            assert_eq!(index.find(tag, |_| true).map(|p| p.record).ok(), Some(record));
        }
    }
}
