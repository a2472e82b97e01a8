use std::collections::BTreeMap;
use std::ops::Range;

use crate::Error;

/// A set of bytes (or of txgs), kept as segments that neither overlap nor touch (OpenZFS: `zfs_range_tree_t`).
///
/// Every change is O(log n) in the number of segments, and O(k) in the segments that it absorbs. Adding or removing an empty
/// range does nothing.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RangeTree {
    /// Start to end.
    segments: BTreeMap<u64, u64>,
    total: u64,
}

impl RangeTree {
    /// Creates an empty set.
    #[must_use]
    pub const fn new() -> Self {
        RangeTree { segments: BTreeMap::new(), total: 0 }
    }

    /// Returns the number of bytes in the set.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of segments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// True if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns the segments in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.segments.iter().map(|(s, e)| *s..*e)
    }

    /// Returns the segment that contains byte `at`.
    #[must_use]
    pub fn segment_at(&self, at: u64) -> Option<Range<u64>> {
        let (s, e) = self.segments.range(..=at).next_back()?;
        (*e > at).then_some(*s..*e)
    }

    /// True if all of `range` is in the set (OpenZFS: `zfs_range_tree_contains`).
    #[must_use]
    pub fn contains(&self, range: Range<u64>) -> bool {
        range.is_empty() || self.segment_at(range.start).is_some_and(|s| range.end <= s.end)
    }

    /// True if any part of `range` is in the set.
    #[must_use]
    pub fn intersects(&self, range: Range<u64>) -> bool {
        self.last_overlap(&range).is_some()
    }

    /// Returns the last segment that contains any part of `range`.
    fn last_overlap(&self, range: &Range<u64>) -> Option<Range<u64>> {
        if range.is_empty() {
            return None;
        }
        let (s, e) = self.segments.range(..range.end).next_back()?;
        (*e > range.start).then_some(*s..*e)
    }

    /// Returns the parts of `range` that are in the set, in order.
    pub fn overlaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.segment_at(range.start).map_or(range.start, |s| s.start);
        // a range that ends before it starts would panic in the map
        let stop = range.end.max(first);
        self.segments
            .range(first..stop)
            .map(move |(s, e)| (*s).max(range.start)..(*e).min(range.end))
            .filter(|r| !r.is_empty())
    }

    /// Returns the parts of `range` that are not in the set, in order.
    pub fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = range.start;
        let last = std::iter::once(range.end..range.end);
        self.overlaps(range).chain(last).filter_map(move |r| {
            let gap = at..r.start;
            at = r.end;
            (!gap.is_empty()).then_some(gap)
        })
    }

    /// Adds `range` (OpenZFS: `zfs_range_tree_add`).
    ///
    /// # Errors
    /// [`Error::Overlap`] if any part of it is in the set already; the set is then unchanged.
    pub fn add(&mut self, range: Range<u64>) -> Result<(), Error> {
        if range.is_empty() {
            return Ok(());
        }
        let taken = Error::Overlap { start: range.start, end: range.end };
        let mut near = self.segments.range_mut(..=range.end).rev();
        let mut before = near.next();
        // a segment that begins where the range ends is joined to it
        let mut end = range.end;
        if let Some((_, e)) = before.take_if(|(s, _)| **s == range.end) {
            end = *e;
            before = near.next();
        }
        match before {
            Some((_, e)) if *e > range.start => return Err(taken),
            Some((_, e)) if *e == range.start => *e = end,
            _ => {
                self.segments.insert(range.start, end);
            }
        }
        if end != range.end {
            self.segments.remove(&range.end);
        }
        self.total += range.end - range.start;
        Ok(())
    }

    /// Removes `range` (OpenZFS: `zfs_range_tree_remove`).
    ///
    /// # Errors
    /// [`Error::Absent`] if any part of it is not in the set; the set is then unchanged.
    pub fn remove(&mut self, range: Range<u64>) -> Result<(), Error> {
        if range.is_empty() {
            return Ok(());
        }
        let Some(segment) = self.segment_at(range.start).filter(|s| range.end <= s.end) else {
            return Err(Error::Absent { start: range.start, end: range.end });
        };
        self.total -= range.end - range.start;
        if segment.start < range.start {
            self.segments.insert(segment.start, range.start);
        } else {
            self.segments.remove(&segment.start);
        }
        if range.end < segment.end {
            self.segments.insert(range.end, segment.end);
        }
        Ok(())
    }

    /// Makes sure that all of `range` is in the set; returns the number of bytes added.
    pub fn cover(&mut self, range: Range<u64>) -> u64 {
        let before = self.total;
        self.clear(range.clone());
        // nothing overlaps after `clear`
        let added = self.add(range);
        assert!(added.is_ok(), "{added:?} after it was cleared");
        self.total - before
    }

    /// Makes sure that nothing of `range` is in the set; returns the number of bytes removed (OpenZFS: `zfs_range_tree_clear`).
    pub fn clear(&mut self, range: Range<u64>) -> u64 {
        let before = self.total;
        let parts: Vec<_> = self.overlaps(range).collect();
        for part in parts {
            let removed = self.remove(part);
            assert!(removed.is_ok(), "{removed:?}, which was found there");
        }
        before - self.total
    }

    /// Removes the parts of `range` that are in this set, and adds the other parts to `other` (OpenZFS:
    /// `zfs_range_tree_remove_xor_add_segment`).
    ///
    /// # Errors
    /// [`Error::Overlap`] if `other` already holds some of the bytes to be added. Both sets are then partly changed.
    pub fn remove_xor_add(&mut self, range: Range<u64>, other: &mut RangeTree) -> Result<(), Error> {
        match self.last_overlap(&range) {
            None => return other.add(range),
            Some(only) if only.start <= range.start => {
                let common = only.end.min(range.end);
                self.remove(range.start..common)?;
                return other.add(common..range.end);
            }
            Some(_) => {}
        }
        let gaps: Vec<_> = self.gaps(range.clone()).collect();
        self.clear(range);
        gaps.into_iter().try_for_each(|gap| other.add(gap))
    }

    /// Returns the longest segment, the first one of several.
    #[must_use]
    pub fn largest(&self) -> Option<Range<u64>> {
        self.iter().reduce(|best, s| if s.end - s.start > best.end - best.start { s } else { best })
    }

    /// Returns the number of segments by size: bucket i counts those of 2^i to 2^(i+1) − 1 bytes.
    #[must_use]
    pub fn histogram(&self) -> [u64; 64] {
        let mut buckets = [0; 64];
        for s in self.iter() {
            if let Some(bucket) = (s.end - s.start).checked_ilog2().and_then(|n| buckets.get_mut(n as usize)) {
                *bucket += 1;
            }
        }
        buckets
    }

    /// Returns the part of `within` that is not in this set.
    #[must_use]
    pub fn complement(&self, within: Range<u64>) -> RangeTree {
        // gaps come in order and never touch
        let segments: BTreeMap<u64, u64> = self.gaps(within).map(|g| (g.start, g.end)).collect();
        let total = segments.iter().map(|(s, e)| e - s).sum();
        RangeTree { segments, total }
    }
}

impl FromIterator<Range<u64>> for RangeTree {
    /// Builds the union of the ranges, which may come in any order.
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|r| !r.is_empty()).collect();
        ranges.sort_unstable_by_key(|r| r.start);
        ranges.dedup_by(|next, last| {
            let joined = next.start <= last.end;
            if joined {
                last.end = last.end.max(next.end);
            }
            joined
        });
        let total = ranges.iter().map(|r| r.end - r.start).sum();
        RangeTree { segments: ranges.into_iter().map(|r| (r.start, r.end)).collect(), total }
    }
}

#[cfg(test)]
#[path = "range_tree_tests.rs"]
mod tests;
