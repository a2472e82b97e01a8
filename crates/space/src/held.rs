//! Held space: freed space that may not be reused yet.
//!
//! Space freed in a txg is reused two txgs later at the earliest, so that the pool can be opened as it was a txg or two ago; and
//! while a reader uses the pool as of the end of txg R, space freed after R is kept unchanged. So held space is stored by the txg
//! that freed it.
//!
//! Each user command may be an import of its own, so held space must survive imports. The frees of the last txgs are in their
//! logs, and in the maps of metaslabs flushed since, as far as these record them: space both allocated and freed since the
//! previous flush would leave no trace in the map, and a rewritten map has no trace of any free. So both a flush and a rewrite
//! record held space as allocated, and as freed in its txg. OpenZFS defers frees only in memory (`ms_defer`), because its imports
//! are rare.

use std::collections::BTreeMap;
use std::ops::Range;

use base::Txg;

use crate::{Error, RangeTree};

/// The txgs whose frees matter when a pool is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Recent {
    /// Txgs later than this one …
    pub after: Txg,
    /// … up to this one.
    pub upto: Txg,
}

impl Recent {
    /// No txg.
    pub const NONE: Recent = Recent { after: Txg(0), upto: Txg(0) };

    /// True if space freed in `txg` is held.
    #[must_use]
    pub fn contains(&self, txg: Txg) -> bool {
        self.after < txg && txg <= self.upto
    }
}

/// Freed ranges of one metaslab by the txg that freed them. No two of them overlap.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Held {
    by_txg: BTreeMap<Txg, RangeTree>,
    total: u64,
}

impl Held {
    /// Returns the number of bytes held.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// True if nothing is held.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns the number of segments and the number of txgs.
    #[must_use]
    pub fn segments(&self) -> (usize, usize) {
        (self.by_txg.values().map(RangeTree::len).sum(), self.by_txg.len())
    }

    /// Returns the held ranges by txg.
    pub fn by_txg(&self) -> impl Iterator<Item = (Txg, &RangeTree)> {
        self.by_txg.iter().map(|(txg, tree)| (*txg, tree))
    }

    /// Returns all held ranges, txg by txg.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.by_txg.values().flat_map(RangeTree::iter)
    }

    /// True if any part of `range` is held.
    #[must_use]
    pub fn intersects(&self, range: &Range<u64>) -> bool {
        self.by_txg.values().any(|tree| tree.intersects(range.clone()))
    }

    /// Holds a range that `txg` freed.
    ///
    /// # Errors
    /// [`Error::Overlap`] if the same txg freed it before.
    pub fn add(&mut self, txg: Txg, range: Range<u64>) -> Result<(), Error> {
        let len = range.end.saturating_sub(range.start);
        self.by_txg.entry(txg).or_default().add(range)?;
        self.total += len;
        Ok(())
    }

    /// Holds all ranges that `txg` freed.
    ///
    /// # Errors
    /// [`Error::Overlap`] if the same txg freed it before.
    pub fn add_all(&mut self, txg: Txg, freed: RangeTree) -> Result<(), Error> {
        match self.by_txg.get_mut(&txg) {
            None if freed.is_empty() => {}
            None => {
                self.total += freed.total();
                self.by_txg.insert(txg, freed);
            }
            Some(_) => freed.iter().try_for_each(|range| self.add(txg, range))?,
        }
        Ok(())
    }

    /// Releases all of `range`. Returns the parts that were held, with the txgs that freed them.
    pub fn take(&mut self, range: &Range<u64>) -> Vec<(Txg, Range<u64>)> {
        let mut parts = Vec::new();
        for (txg, tree) in &mut self.by_txg {
            let here = parts.len();
            parts.extend(tree.overlaps(range.clone()).map(|part| (*txg, part)));
            if parts.len() > here {
                self.total -= tree.clear(range.clone());
            }
        }
        self.by_txg.retain(|_, tree| !tree.is_empty());
        parts
    }

    /// Releases everything freed up to `upto`, and returns it.
    pub fn release(&mut self, upto: Txg) -> Vec<RangeTree> {
        if self.by_txg.first_key_value().is_none_or(|(txg, _)| *txg > upto) {
            return Vec::new();
        }
        let later = self.by_txg.split_off(&Txg(upto.0.saturating_add(1)));
        let released: Vec<RangeTree> = std::mem::replace(&mut self.by_txg, later).into_values().collect();
        self.total -= released.iter().map(RangeTree::total).sum::<u64>();
        released
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_goes_by_the_txg_that_freed_it() {
        let mut held = Held::default();
        held.add(Txg(7), 0..10).unwrap();
        held.add(Txg(9), 20..30).unwrap();
        held.add_all(Txg(9), [40..50].into_iter().collect()).unwrap();
        held.add_all(Txg(8), RangeTree::new()).unwrap();
        assert_eq!((held.total(), held.segments()), (30, (3, 2)));
        assert!(held.add(Txg(9), 25..26).is_err());
        assert!(held.intersects(&(5..25)) && !held.intersects(&(10..20)));
        assert!(held.release(Txg(6)).is_empty());
        assert_eq!(held.take(&(5..25)), [(Txg(7), 5..10), (Txg(9), 20..25)]);
        assert_eq!(held.total(), 20);
        let released = held.release(Txg(8));
        assert_eq!(released.iter().flat_map(RangeTree::iter).collect::<Vec<_>>(), [0..5]);
        assert_eq!(held.release(Txg(u64::MAX)).iter().map(RangeTree::total).sum::<u64>(), 15);
        assert!(held.is_empty() && held.segments() == (0, 0));
    }
}
