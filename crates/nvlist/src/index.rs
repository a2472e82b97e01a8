//! The hash index: from a name to its first slot.
//!
//! A table of buckets of one cache line, five entries each. An entry holds 32 bits of hash, the slot, and where the name's bytes
//! are, so that the two places that a search must look at are fetched side by side, and a search has no branch that the data could
//! mislead: the processor is already busy with the next lookup while memory answers this one. (The entry of a full bucket goes to the next one; each bucket
//! counts those that passed it, so that a search knows when to stop and a removal leaves no tombstone.)
//!
//! A home is given by the *upper* bits of the hash, so a table that doubles is read and written from front to back.

use crate::hash::Key;

const WAYS: usize = 5;

#[derive(Clone, Default)]
#[repr(align(64))]
struct Bucket {
    /// Hashes; 0 where there is no entry.
    tags: [u32; WAYS],
    slots: [u32; WAYS],
    names: [u32; WAYS],
    /// Entries that found this bucket full and went on.
    passed: u32,
}

impl Bucket {
    /// The ways with this tag, as bits.
    #[inline(always)]
    fn with_tag(&self, tag: u32) -> u32 {
        let mut ways = 0;
        for (way, held) in self.tags.iter().enumerate() {
            ways |= u32::from(*held == tag) << way;
        }
        ways
    }
}

/// The table. It holds distinct names only.
#[derive(Clone)]
pub(crate) struct Index {
    buckets: Box<[Bucket]>,
    /// A tag shifted right by this is a home.
    shift: u32,
    len: usize,
    key: &'static Key,
}

/// Whether a table of `buckets` may hold `len` entries: at most three a bucket, so that few are full.
const fn fits(len: usize, buckets: usize) -> bool {
    len <= 3 * buckets
}

impl Index {
    /// An empty index with room for `len` names.
    pub(crate) fn for_len(len: usize) -> Index {
        let mut bits = 3;
        while !fits(len, 1 << bits) && bits < 31 {
            bits += 1;
        }
        Index::with_bits(bits)
    }

    fn with_bits(bits: u32) -> Index {
        Index {
            buckets: vec![Bucket::default(); 1 << bits].into_boxed_slice(),
            shift: 32 - bits,
            len: 0,
            key: Key::get(),
        }
    }

    /// The tag of a name: never 0.
    #[inline(always)]
    pub(crate) fn tag(&self, name: &[u8]) -> u32 {
        self.key.hash(name) | 1
    }

    #[inline(always)]
    fn mask(&self) -> usize {
        self.buckets.len() - 1
    }

    #[inline(always)]
    fn home(&self, tag: u32) -> usize {
        (tag >> self.shift) as usize
    }

    /// The entry with this tag for whose slot and name `is` says yes.
    #[inline(always)]
    pub(crate) fn find(&self, tag: u32, is: impl Fn(u32, u32) -> bool) -> Option<Place> {
        // nearly always the first candidate is the one, or there is none
        let at = self.home(tag);
        let bucket = self.buckets.get(at)?;
        let ways = bucket.with_tag(tag);
        if ways == 0 && bucket.passed == 0 {
            return None;
        }
        let way = ways.trailing_zeros() as usize;
        if let (Some(slot), Some(name)) = (bucket.slots.get(way), bucket.names.get(way))
            && is(*slot, *name)
        {
            return Some(Place { bucket: at, way, slot: *slot });
        }
        self.find_further(tag, is)
    }

    #[cold]
    #[inline(never)]
    fn find_further(&self, tag: u32, is: impl Fn(u32, u32) -> bool) -> Option<Place> {
        let mask = self.mask();
        let mut at = self.home(tag);
        loop {
            let bucket = &self.buckets[at & mask];
            for way in (0..WAYS).filter(|way| bucket.tags[*way] == tag) {
                let slot = bucket.slots[way];
                if is(slot, bucket.names[way]) {
                    return Some(Place { bucket: at & mask, way, slot });
                }
            }
            if bucket.passed == 0 {
                return None;
            }
            at += 1;
        }
    }

    /// Adds an entry for a name that has none.
    #[inline]
    pub(crate) fn insert(&mut self, tag: u32, slot: u32, name: u32) {
        if !fits(self.len + 1, self.buckets.len()) {
            self.grow();
        }
        self.place(tag, slot, name);
        self.len += 1;
    }

    #[inline]
    fn place(&mut self, tag: u32, slot: u32, name: u32) {
        let mask = self.mask();
        let mut at = self.home(tag);
        loop {
            let bucket = &mut self.buckets[at & mask];
            let way = bucket.with_tag(0).trailing_zeros() as usize;
            if way < WAYS {
                bucket.tags[way] = tag;
                bucket.slots[way] = slot;
                bucket.names[way] = name;
                return;
            }
            bucket.passed += 1;
            at += 1;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Index::with_bits(33 - self.shift);
        larger.take(self, |slot, name| (slot, name));
        *self = larger;
    }

    /// Inserts all entries of `other`, which point to what `new` says for their slot and name.
    fn take(&mut self, other: &Index, new: impl Fn(u32, u32) -> (u32, u32)) {
        for bucket in &other.buckets {
            for way in (0..WAYS).filter(|way| bucket.tags[*way] != 0) {
                let (slot, name) = new(bucket.slots[way], bucket.names[way]);
                self.place(bucket.tags[way], slot, name);
            }
        }
        self.len = other.len;
    }

    /// The same index in a table of fitting size, after a slot and its name moved to where `moved` says.
    pub(crate) fn moved(&self, moved: impl Fn(u32) -> (u32, u32)) -> Index {
        let mut fresh = Index::for_len(self.len);
        fresh.take(self, |slot, _| moved(slot));
        fresh
    }

    /// Lets an entry point to another slot.
    #[inline]
    pub(crate) fn set_slot(&mut self, place: Place, slot: u32) {
        self.buckets[place.bucket].slots[place.way] = slot;
    }

    /// Removes an entry.
    #[inline]
    pub(crate) fn remove(&mut self, place: Place) {
        let mask = self.mask();
        let tag = std::mem::take(&mut self.buckets[place.bucket].tags[place.way]);
        let mut at = self.home(tag);
        while at != place.bucket {
            self.buckets[at].passed -= 1;
            at = (at + 1) & mask;
        }
        self.len -= 1;
    }

    /// Bytes allocated.
    pub(crate) fn capacity(&self) -> usize {
        size_of_val(&*self.buckets)
    }
}

/// Where an entry is, good until the table changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    bucket: usize,
    way: usize,
    /// The slot it points to.
    pub(crate) slot: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_bucket_is_a_cache_line() {
        assert_eq!(size_of::<Bucket>(), 64);
    }

    #[test]
    fn keeps_entries_through_growth_collisions_and_removal() {
        let mut index = Index::for_len(0);
        let mut model = HashMap::new();
        let mut seed = 7u64;
        for step in 0..30_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // few tags, bunched at both ends: long runs, and runs around the end
            let tag = ((seed >> 33) as u32 % 900).wrapping_sub(450).max(1);
            match (index.find(tag, |_, _| true), step % 5) {
                (Some(place), 0 | 1) => {
                    assert_eq!(model.remove(&tag), Some(place.slot));
                    index.remove(place);
                }
                (Some(place), 2) => {
                    assert_eq!(model.insert(tag, step), Some(place.slot));
                    index.set_slot(place, step);
                }
                (Some(place), _) => assert_eq!(model.get(&tag), Some(&place.slot)),
                (None, _) => {
                    assert_eq!(model.insert(tag, step), None);
                    index.insert(tag, step, 0);
                }
            }
            assert_eq!(index.len, model.len());
            if step % 4096 == 0 {
                index = index.moved(|slot| (slot, 0));
            }
        }
        for (tag, slot) in &model {
            assert_eq!(index.find(*tag, |_, _| true).map(|p| p.slot), Some(*slot));
        }
        for tag in model.into_keys() {
            let place = index.find(tag, |_, _| true);
            index.remove(place.expect("was there"));
        }
        assert!(index.buckets.iter().all(|b| b.passed == 0 && b.tags == [0; WAYS]));
    }
}
