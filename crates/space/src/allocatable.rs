//! The free space of a loaded metaslab, and the choice of a segment for an allocation.
//!
//! Segments are keyed by their **ends**: an allocation takes the front of a segment, and so changes a value in place but no key.
//! The number of segments of each size (a power of two) is always kept; an index by size is built when a search by size is first
//! needed, and maintained from then on.
//!
//! OpenZFS: `ms_allocatable`, `ms_allocatable_by_size`, `metaslab_df_alloc`, `metaslab_block_picker`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};

use crate::{Error, RangeTree};

/// If the largest segment is below this, the search is by size, not by position (OpenZFS: `metaslab_df_alloc_threshold`). A power
/// of two, so that the counts by size suffice for the decision.
const SIZE_SEARCH_BELOW: u64 = 128 << 10;
/// If the share of free space in percent is below this, likewise (`metaslab_df_free_pct`).
const SIZE_SEARCH_FREE_PCT: u64 = 4;
/// The distance from the cursor to which a search extends, in bytes (`metaslab_df_max_search`) …
const MAX_SEARCH: u64 = 16 << 20;
/// … but at least this many segments (`metaslab_min_search_count`).
const MIN_SEARCH_COUNT: usize = 100;
/// Number of segments of the wanted size class that are tried before a larger class is.
const CLASS_TRIES: usize = 32;

/// Sizes up to this many units have a class of their own.
const EXACT: u64 = 64;
/// Total number of classes: above the exact ones, four for each power of two.
const CLASSES: usize = EXACT as usize + 58 * 4;

/// The free space of one metaslab.
#[derive(Clone, Debug)]
pub struct FreeSpace {
    /// End to start.
    by_end: BTreeMap<u64, u64>,
    total: u64,
    /// Segments of 2^i to 2^(i+1) − 1 bytes.
    counts: [u32; 64],
    sizes: Option<Box<SizeIndex>>,
    /// The end of the last allocation of each alignment, 0 for the beginning.
    cursors: [u64; 64],
    /// Size of the metaslab in bytes, and log2 of the unit.
    size: u64,
    shift: u32,
}

impl FreeSpace {
    /// Creates it from the free segments of a metaslab of `size` bytes that allocates in units of 2^`shift` bytes.
    #[must_use]
    pub fn new(free: &RangeTree, size: u64, shift: u32) -> Self {
        let mut counts = [0; 64];
        counts.iter_mut().zip(free.histogram()).for_each(|(c, n)| *c = u32::try_from(n).unwrap_or(u32::MAX));
        FreeSpace {
            by_end: free.iter().map(|r| (r.end, r.start)).collect(),
            total: free.total(),
            counts,
            sizes: None,
            cursors: [0; 64],
            size,
            shift,
        }
    }

    /// Returns the free bytes.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of segments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_end.len()
    }

    /// True if nothing is free.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_end.is_empty()
    }

    /// Returns the segments in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.by_end.iter().map(|(e, s)| *s..*e)
    }

    /// Returns the number of segments of 2^i to 2^(i+1) − 1 bytes, by i.
    #[must_use]
    pub const fn counts(&self) -> &[u32; 64] {
        &self.counts
    }

    /// Returns an upper bound of the largest segment, less than twice its size; 0 if there is none.
    #[must_use]
    pub fn largest_bound(&self) -> u64 {
        match self.counts.iter().rposition(|n| *n > 0) {
            Some(63) => u64::MAX,
            Some(n) => (2 << n) - 1,
            None => 0,
        }
    }

    /// True if all of `range` is free.
    #[must_use]
    pub fn contains(&self, range: &Range<u64>) -> bool {
        self.after(range.start).is_some_and(|s| s.start <= range.start && range.end <= s.end)
    }

    /// True if any part of `range` is free.
    #[must_use]
    pub fn intersects(&self, range: &Range<u64>) -> bool {
        self.after(range.start).is_some_and(|s| s.start < range.end)
    }

    /// Returns the parts of `range` that are free, in order.
    pub fn overlaps(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let (start, end) = (range.start, range.end);
        let from = self.by_end.range((Bound::Excluded(start), Bound::Unbounded));
        from.take_while(move |(_, s)| **s < end).map(move |(e, s)| (*s).max(start)..(*e).min(end))
    }

    /// Returns the first segment that ends after `at`.
    fn after(&self, at: u64) -> Option<Range<u64>> {
        self.by_end.range((Bound::Excluded(at), Bound::Unbounded)).next().map(|(e, s)| *s..*e)
    }

    fn count(&mut self, segment: Range<u64>, up: bool) {
        let len = segment.end - segment.start;
        if let Some(n) = len.checked_ilog2().and_then(|n| self.counts.get_mut(n as usize)) {
            assert!(up || *n > 0, "a free segment of {len} bytes was not counted");
            *n = if up { n.saturating_add(1) } else { *n - 1 };
        }
        if let Some(sizes) = &mut self.sizes {
            sizes.set(len >> self.shift, segment.end, up);
        }
    }

    fn insert(&mut self, segment: Range<u64>) {
        self.by_end.insert(segment.end, segment.start);
        self.count(segment, true);
    }

    fn take(&mut self, segment: Range<u64>) {
        let was = self.by_end.remove(&segment.end);
        assert!(was == Some(segment.start), "free segment {segment:x?} began at {was:x?}");
        self.count(segment, false);
    }

    /// Adds free space.
    ///
    /// # Errors
    /// [`Error::Overlap`] if some of it is free already.
    pub fn add(&mut self, range: Range<u64>) -> Result<(), Error> {
        if range.is_empty() {
            return Ok(());
        }
        let mut joined = range.clone();
        let next = self.after(range.start);
        if let Some(next) = next.filter(|n| n.start <= range.end) {
            if next.start < range.end {
                return Err(Error::Overlap { start: range.start, end: range.end });
            }
            joined.end = next.end;
            self.take(next);
        }
        if let Some(before) = self.by_end.get(&range.start).map(|s| *s..range.start) {
            joined.start = before.start;
            self.take(before);
        }
        self.total += range.end - range.start;
        self.insert(joined);
        Ok(())
    }

    /// Removes exactly this space.
    ///
    /// # Errors
    /// [`Error::Absent`] if some of it is not free.
    pub fn remove(&mut self, range: Range<u64>) -> Result<(), Error> {
        if range.is_empty() {
            return Ok(());
        }
        let Some(segment) = self.after(range.start).filter(|s| s.start <= range.start && range.end <= s.end) else {
            return Err(Error::Absent { start: range.start, end: range.end });
        };
        self.take(segment.clone());
        if segment.start < range.start {
            self.insert(segment.start..range.start);
        }
        if range.end < segment.end {
            self.insert(range.end..segment.end);
        }
        self.total -= range.end - range.start;
        Ok(())
    }

    /// Allocates the front of a segment.
    fn take_front(&mut self, segment: Range<u64>, size: u64) -> u64 {
        let rest = segment.start + size..segment.end;
        self.total -= size;
        if rest.is_empty() {
            self.take(segment.clone());
        } else {
            let (was, is) = ((segment.end - segment.start).ilog2(), (rest.end - rest.start).ilog2());
            if was != is || self.sizes.is_some() {
                self.count(segment.clone(), false);
                self.count(rest.clone(), true);
            }
            if let Some(start) = self.by_end.get_mut(&rest.end) {
                *start = rest.start;
            }
        }
        segment.start
    }

    /// Allocates `size` bytes: near the last allocation of the same alignment or, if space is low, from a segment of that size or
    /// a little more.
    pub fn allocate(&mut self, size: u64) -> Option<u64> {
        if size == 0 || size > self.total {
            return None;
        }
        let slot = size.trailing_zeros() as usize;
        let low = self.largest_bound() < SIZE_SEARCH_BELOW || self.total < self.size / 100 * SIZE_SEARCH_FREE_PCT;
        let found = if low { None } else { self.near(self.cursors.get(slot).copied().unwrap_or(0), size) };
        let segment = match found {
            Some(segment) => segment,
            None => self.by_size(size)?,
        };
        let at = self.take_front(segment, size);
        if let Some(cursor) = self.cursors.get_mut(slot) {
            *cursor = at + size;
        }
        Some(at)
    }

    /// Returns the first segment of at least `size` bytes from `cursor` on, if it is near.
    fn near(&self, cursor: u64, size: u64) -> Option<Range<u64>> {
        let mut first = None;
        for (n, (end, start)) in self.by_end.range((Bound::Excluded(cursor), Bound::Unbounded)).enumerate() {
            if end - start >= size {
                return Some(*start..*end);
            }
            if start.saturating_sub(*first.get_or_insert(*start)) > MAX_SEARCH && n >= MIN_SEARCH_COUNT {
                break;
            }
        }
        None
    }

    /// Returns a segment of `size` bytes, or of the next larger size that exists.
    fn by_size(&mut self, size: u64) -> Option<Range<u64>> {
        if size > self.largest_bound() {
            return None;
        }
        if self.sizes.is_none() {
            let mut index = Box::<SizeIndex>::default();
            self.iter().for_each(|s| index.set((s.end - s.start) >> self.shift, s.end, true));
            self.sizes = Some(index);
        }
        let index = self.sizes.as_ref()?;
        let units = size.div_ceil(1 << self.shift);
        let segment = |end: &u64| self.by_end.get(end).map(|start| *start..*end);
        let fits = |s: &Range<u64>| s.end - s.start >= size;
        let own = || index.class(class_of(units)).filter_map(segment);
        let larger = || index.next_above(class_of(units)).and_then(segment);
        own().take(CLASS_TRIES).find(fits).or_else(larger).or_else(|| own().skip(CLASS_TRIES).find(fits))
    }
}

/// Segments by size class: a class for each small size, four for each power of two above.
#[derive(Clone, Debug)]
struct SizeIndex {
    /// The ends of the segments of each class.
    classes: Vec<BTreeSet<u64>>,
    /// A bitmap of the classes that are not empty.
    filled: [u64; CLASSES.div_ceil(64)],
}

impl Default for SizeIndex {
    fn default() -> Self {
        SizeIndex { classes: vec![BTreeSet::new(); CLASSES], filled: [0; CLASSES.div_ceil(64)] }
    }
}

/// Returns the class of a segment of `units` units.
fn class_of(units: u64) -> usize {
    if units < EXACT {
        return units as usize;
    }
    let log = units.ilog2();
    let quarter = (units >> (log - 2)) & 3;
    EXACT as usize + ((log - EXACT.ilog2()) * 4) as usize + quarter as usize
}

impl SizeIndex {
    fn set(&mut self, units: u64, end: u64, there: bool) {
        let class = class_of(units);
        let Some(set) = self.classes.get_mut(class) else { return };
        if there {
            set.insert(end);
        } else {
            set.remove(&end);
        }
        let empty = set.is_empty();
        if let Some(word) = self.filled.get_mut(class / 64) {
            *word = if empty { *word & !(1 << (class % 64)) } else { *word | 1 << (class % 64) };
        }
    }

    fn class(&self, class: usize) -> impl Iterator<Item = &u64> {
        self.classes.get(class).into_iter().flatten()
    }

    /// Returns the first segment of the next larger class that is not empty.
    fn next_above(&self, class: usize) -> Option<&u64> {
        let from = class + 1;
        let words = self.filled.iter().enumerate().skip(from / 64);
        let next = words.map(|(n, w)| (n, if n == from / 64 { w >> (from % 64) << (from % 64) } else { *w }));
        let (n, word) = next.into_iter().find(|(_, w)| *w != 0)?;
        self.classes.get(n * 64 + word.trailing_zeros() as usize)?.first()
    }
}

#[cfg(test)]
#[path = "allocatable_tests.rs"]
mod tests;
