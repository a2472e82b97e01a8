//! Sets of block numbers, as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that neither overlap nor touch: start → end (exclusive; `u64::MAX` has no end).
#[derive(Clone, Default, Debug)]
pub(crate) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    /// Adds a range.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((s, e)) = self.0.range(..=end).next_back().map(|(s, e)| (*s, *e)) {
            if e < start {
                break;
            }
            self.0.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.0.insert(start, end);
    }

    /// The end of the range that holds `at`.
    pub(crate) fn end_of(&self, at: u64) -> Option<u64> {
        self.0.range(..=at).next_back().map(|(_, end)| *end).filter(|end| *end > at)
    }

    /// The first number from `at` on that is in the set.
    pub(crate) fn next(&self, at: u64) -> Option<u64> {
        if self.end_of(at).is_some() { Some(at) } else { self.0.range(at..).next().map(|(start, _)| *start) }
    }

    /// All ranges in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }
}

#[cfg(test)]
mod tests {
    use super::RangeSet;

    #[test]
    fn ranges_merge() {
        let mut set = RangeSet::default();
        let mut model = [false; 64];
        let mut rng = crate::testing::Rng(77);
        for round in 0..2000 {
            if round % 12 == 0 {
                (set, model) = (RangeSet::default(), [false; 64]);
            }
            let (a, n) = (rng.below(60), rng.below(9));
            model[a..(a + n).min(64)].fill(true);
            set.insert(a as u64..(a + n).min(64) as u64);
            for (at, want) in model.iter().enumerate() {
                assert_eq!(set.end_of(at as u64).is_some(), *want);
            }
            let all: Vec<_> = set.iter().collect();
            assert!(all.windows(2).all(|w| w[0].end < w[1].start) && all.iter().all(|r| r.start < r.end));
            let next = model[30..].iter().position(|set| *set).map(|n| n as u64 + 30);
            assert_eq!(set.next(30), next);
        }
    }
}
