//! The hash index: maps a name to its first slot.
//!
//! A table of buckets of one cache line, seven entries each. An entry holds a 32-bit hash and a slot. A search compares seven hashes at
//! once and nearly always continues to one slot, or to none: it has no branch that depends on the data and could be mispredicted, so the
//! processor is already busy with the next lookup while memory answers this one. (An entry that finds its bucket full is stored in the next
//! one; each bucket counts the entries that overflowed it, so that a search knows when to stop and a removal leaves no tombstone.)
//!
//! The home bucket is given by the *upper* bits of the hash, so growing the table reads and writes it from front to back.

use crate::hash::Key;

const WAYS: usize = 7;

#[derive(Clone, Default)]
#[repr(align(64))]
struct Bucket {
    /// Hashes, which are odd, or 0 for no entry. The last element is twice the number of entries that found this bucket full and
    /// overflowed: an even number, so that all eight elements can be compared at once.
    tags: [u32; WAYS + 1],
    slots: [u32; WAYS],
}

impl Bucket {
    /// The first way with this tag, or [`WAYS`].
    #[inline(always)]
    fn way(&self, tag: u32) -> usize {
        let mut found = WAYS;
        for way in (0..WAYS).rev() {
            found = if self.tags[way] == tag { way } else { found };
        }
        found
    }

    #[inline(always)]
    fn passed(&self) -> u32 {
        self.tags[WAYS]
    }
}

/// The table. It holds distinct names only.
#[derive(Clone)]
pub(crate) struct Index {
    buckets: Box<[Bucket]>,
    /// The shift that turns a tag into its home bucket.
    shift: u32,
    len: usize,
    key: &'static Key,
}

/// True if a table of `buckets` may hold `len` entries: at most four per bucket, so that few are full.
const fn fits(len: usize, buckets: usize) -> bool {
    len <= 4 * buckets
}

impl Index {
    /// An empty index with room for `len` names.
    pub(crate) fn for_len(len: usize) -> Index {
        Index::with_bits(Index::bits_for(len))
    }

    fn bits_for(len: usize) -> u32 {
        let mut bits = 2;
        while !fits(len, 1 << bits) && bits < 31 {
            bits += 1;
        }
        bits
    }

    fn with_bits(bits: u32) -> Index {
        Index {
            buckets: vec![Bucket::default(); 1 << bits].into_boxed_slice(),
            shift: 32 - bits,
            len: 0,
            key: Key::get(),
        }
    }

    /// The tag of a name: an odd number.
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

    /// The probable position of the name with this tag: nearly always in its home, and the only entry with its tag there.
    #[inline(always)]
    pub(crate) fn guess(&self, tag: u32) -> Guess {
        let bucket = self.home(tag);
        let Some(at) = self.buckets.get(bucket) else {
            return Guess::Absent;
        };
        let way = at.way(tag);
        match at.slots.get(way) {
            Some(slot) => Guess::Perhaps(EntryPosition { slot: *slot, bucket: bucket as u32, way: way as u32 }),
            None if at.passed() == 0 => Guess::Absent,
            None => Guess::Elsewhere,
        }
    }

    /// The entry with this tag whose slot satisfies `is`.
    pub(crate) fn find(&self, tag: u32, is: impl Fn(u32) -> bool) -> Option<EntryPosition> {
        let mask = self.mask();
        let mut at = self.home(tag);
        loop {
            let bucket = &self.buckets[at & mask];
            for way in (0..WAYS).filter(|way| bucket.tags[*way] == tag) {
                let slot = bucket.slots[way];
                if is(slot) {
                    return Some(EntryPosition { slot, bucket: (at & mask) as u32, way: way as u32 });
                }
            }
            if bucket.passed() == 0 {
                return None;
            }
            at += 1;
        }
    }

    /// Adds an entry for a name that is not in the index.
    #[inline]
    pub(crate) fn insert(&mut self, tag: u32, slot: u32) {
        if !fits(self.len + 1, self.buckets.len()) {
            self.grow();
        }
        self.place(tag, slot);
        self.len += 1;
    }

    #[inline]
    fn place(&mut self, tag: u32, slot: u32) {
        let mask = self.mask();
        let mut at = self.home(tag);
        loop {
            let bucket = &mut self.buckets[at & mask];
            let way = bucket.way(0);
            if way < WAYS {
                bucket.tags[way] = tag;
                bucket.slots[way] = slot;
                return;
            }
            bucket.tags[WAYS] += 2;
            at += 1;
        }
    }

    #[cold]
    fn grow(&mut self) {
        self.rebuild(33 - self.shift);
    }

    fn rebuild(&mut self, bits: u32) {
        let mut fresh = Index::with_bits(bits);
        for bucket in &self.buckets {
            for (tag, slot) in bucket.tags.iter().zip(&bucket.slots).filter(|(tag, _)| **tag != 0) {
                fresh.place(*tag, *slot);
            }
        }
        fresh.len = self.len;
        *self = fresh;
    }

    /// Updates the slot numbers after slots moved, and shrinks the table if it can: a small one stays in the cache.
    pub(crate) fn moved(&mut self, to: impl Fn(u32) -> u32) {
        for bucket in &mut self.buckets {
            for (_, slot) in bucket.tags.iter().zip(&mut bucket.slots).filter(|(tag, _)| **tag != 0) {
                *slot = to(*slot);
            }
        }
        if fits(2 * self.len, self.buckets.len()) {
            self.rebuild(Index::bits_for(self.len));
        }
    }

    /// Points an entry to another slot.
    #[inline]
    pub(crate) fn set_slot(&mut self, place: EntryPosition, slot: u32) {
        self.buckets[place.bucket as usize].slots[place.way as usize] = slot;
    }

    /// Removes an entry.
    #[inline]
    pub(crate) fn remove(&mut self, place: EntryPosition) {
        let mask = self.mask();
        let tag = std::mem::take(&mut self.buckets[place.bucket as usize].tags[place.way as usize]);
        let mut at = self.home(tag);
        while at != place.bucket as usize {
            self.buckets[at].tags[WAYS] -= 2;
            at = (at + 1) & mask;
        }
        self.len -= 1;
    }

    /// Bytes allocated.
    pub(crate) fn capacity(&self) -> usize {
        size_of_val(&*self.buckets)
    }
}

/// The result of a first look at the index.
#[derive(Clone, Copy)]
pub(crate) enum Guess {
    /// The name is not in the list.
    Absent,
    /// If the name in this slot is the one asked for, this is its entry; if not, [`Index::find`] must search.
    Perhaps(EntryPosition),
    /// [`Index::find`] must search.
    Elsewhere,
}

/// The position of an entry, valid until the table changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EntryPosition {
    /// The slot it points to.
    pub(crate) slot: u32,
    bucket: u32,
    way: u32,
}

impl EntryPosition {
    /// A slot found without an index.
    pub(crate) fn unindexed(slot: u32) -> EntryPosition {
        EntryPosition { slot, ..EntryPosition::default() }
    }
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
            // few tags, clustered at both ends: long runs, and runs that wrap around
            let tag = ((seed >> 33) as u32 % 900).wrapping_sub(450) << 1 | 1;
            match (index.find(tag, |_| true), step % 5) {
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
                    index.insert(tag, step);
                }
            }
            assert_eq!(index.len, model.len());
            if step % 4096 == 0 {
                index.moved(|slot| slot);
            }
        }
        for (tag, slot) in &model {
            assert_eq!(index.find(*tag, |_| true).map(|p| p.slot), Some(*slot));
        }
        for tag in model.into_keys() {
            let place = index.find(tag, |_| true);
            index.remove(place.expect("was there"));
        }
        assert!(index.buckets.iter().all(|b| b.tags == [0; WAYS + 1]));
    }
}
