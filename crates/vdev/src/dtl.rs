//! The dirty time log of a leaf: the txgs that it missed.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use base::Txg;

/// The txgs that a leaf missed (its dirty time log). Most leaves have none, and asking costs them one load.
#[derive(Debug, Default)]
pub(crate) struct Dtl {
    any: AtomicBool,
    /// Whether it grew by itself, and nobody has taken notice.
    dirty: AtomicBool,
    ranges: RwLock<Vec<Range<u64>>>,
}

impl Dtl {
    /// The txgs, ascending.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it has any.
    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Whether it changed since it was last taken.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Notes whether what it has is on disk.
    pub(crate) fn set_dirty(&self, dirty: bool) {
        self.dirty.store(dirty, Ordering::Release);
    }

    /// Returns whether it changed since this was last asked.
    pub(crate) fn take_dirty(&self) -> bool {
        self.dirty.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn set(&self, mut ranges: Vec<Range<u64>>) {
        merge(&mut ranges);
        let any = !ranges.is_empty();
        *self.ranges.write().unwrap_or_else(PoisonError::into_inner) = ranges;
        self.any.store(any, Ordering::Release);
    }

    pub(crate) fn add(&self, txg: Txg) {
        if self.contains(txg) || txg.0 == u64::MAX {
            return;
        }
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        match ranges.last_mut() {
            Some(last) if last.end == txg.0 => last.end = txg.0 + 1,
            Some(last) if last.end > txg.0 => {
                // all of it under one lock: nobody must find the leaf up to date meanwhile
                ranges.push(txg.0..txg.0 + 1);
                merge(&mut ranges);
            }
            _ => ranges.push(txg.0..txg.0 + 1),
        }
        drop(ranges);
        self.any.store(true, Ordering::Release);
        self.dirty.store(true, Ordering::Release);
    }

    pub(crate) fn remove(&self, gone: &Range<u64>) {
        let mut left = Vec::new();
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        for range in ranges.iter() {
            left.push(range.start..range.end.min(gone.start));
            left.push(range.start.max(gone.end)..range.end);
        }
        left.retain(|range| range.start < range.end);
        self.any.store(!left.is_empty(), Ordering::Release);
        *ranges = left;
        drop(ranges);
        self.dirty.store(true, Ordering::Release);
    }

    pub(crate) fn contains(&self, txg: Txg) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let after = ranges.partition_point(|r| r.start <= txg.0);
        after.checked_sub(1).and_then(|n| ranges.get(n)).is_some_and(|r| txg.0 < r.end)
    }
}

/// Sorts ranges, and joins those that meet.
fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.retain(|r| r.start < r.end);
    ranges.sort_by_key(|r| r.start);
    ranges.dedup_by(|next, kept| {
        let joins = next.start <= kept.end;
        if joins {
            kept.end = kept.end.max(next.end);
        }
        joins
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_dtl_is_sorted_and_merged() {
        let dtl = Dtl::default();
        assert!(!dtl.contains(Txg(5)));
        dtl.set(vec![20..30, 5..8, 7..12, 12..13, 40..40]);
        let missed: Vec<u64> = (0..50).filter(|t| dtl.contains(Txg(*t))).collect();
        assert_eq!(missed, (5..13).chain(20..30).collect::<Vec<_>>());
        dtl.set(Vec::new());
        assert!(!dtl.contains(Txg(25)));
        assert!(!dtl.dirty.load(Ordering::Relaxed));
        for txg in [7, 8, 9, 8, 20, 3] {
            dtl.add(Txg(txg));
        }
        assert_eq!(*dtl.ranges.read().unwrap(), [3..4, 7..10, 20..21]);
        assert!(dtl.dirty.load(Ordering::Relaxed) && dtl.contains(Txg(20)));
        dtl.remove(&(8..9));
        assert_eq!(*dtl.ranges.read().unwrap(), [3..4, 7..8, 9..10, 20..21]);
        dtl.remove(&(0..20));
        assert!(
            dtl.ranges.read().unwrap().as_slice() == std::slice::from_ref(&(20..21))
                && dtl.contains(Txg(20))
                && !dtl.contains(Txg(9))
        );
        dtl.remove(&(20..30));
        assert!(!dtl.contains(Txg(20)) && !dtl.any.load(Ordering::Relaxed));
    }
}
