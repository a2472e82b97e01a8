//! Freed space that may not be used again yet.
//!
//! What is freed in a txg is handed out again two txgs later at the earliest, so that the pool can be opened as it was a txg or two ago; and while
//! somebody reads the pool as it was at the end of txg R, what was freed after R stays as it is. So what is held is kept by the txg that freed it.
//!
//! Each command of a user may be an import of its own, so this must outlive them. What the last txgs freed stands in their logs, and in the maps of
//! metaslabs that were flushed meanwhile, as far as that is told there: what was allocated and freed since the flush before would leave no trace in the
//! map, and a map that is rewritten has none of any free. So of what is held both say that it was allocated, and that this txg freed it. OpenZFS holds back in memory only (`ms_defer`), for its imports are rare.

use std::collections::BTreeMap;
use std::ops::Range;

use base::Txg;

use crate::{Error, RangeTree};

/// Txgs whose frees matter when a pool is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Recent {
    /// Those later than this one …
    pub after: Txg,
    /// … up to this one.
    pub upto: Txg,
}

impl Recent {
    /// None at all.
    pub const NONE: Recent = Recent { after: Txg(0), upto: Txg(0) };

    /// Whether what was freed in `txg` is held.
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
    /// How many bytes are held.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Whether nothing is.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// How many segments there are, in how many txgs.
    #[must_use]
    pub fn segments(&self) -> (usize, usize) {
        (self.by_txg.values().map(RangeTree::len).sum(), self.by_txg.len())
    }

    /// What is held, by txg.
    pub fn by_txg(&self) -> impl Iterator<Item = (Txg, &RangeTree)> {
        self.by_txg.iter().map(|(txg, tree)| (*txg, tree))
    }

    /// All of it, txg by txg.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.by_txg.values().flat_map(RangeTree::iter)
    }

    /// Whether any of `range` is held.
    #[must_use]
    pub fn intersects(&self, range: &Range<u64>) -> bool {
        self.by_txg.values().any(|tree| tree.intersects(range.clone()))
    }

    /// Holds what `txg` freed.
    ///
    /// # Errors
    /// [`Error::Overlap`] if the same txg freed it before.
    pub fn add(&mut self, txg: Txg, range: Range<u64>) -> Result<(), Error> {
        let len = range.end.saturating_sub(range.start);
        self.by_txg.entry(txg).or_default().add(range)?;
        self.total += len;
        Ok(())
    }

    /// Holds all that `txg` freed.
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

    /// Holds nothing of `range` any more. The parts that were held, with the txgs that freed them.
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

    /// Holds no more what was freed up to `upto`: what that is.
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
