//! The size of log blocks, predicted from recent commits.
//!
//! The next block of the chain is allocated before its content is known. The records of one commit are a *burst*; the last eight
//! are kept, and the next block is made large enough for seven of the eight. A single burst cannot make blocks large: a second
//! one must be at least half as large.
//! OpenZFS: `zil_lwb_plan`, `zil_lwb_predict`, `zil_burst_done`.

use ondisk::zil::{WRITE_RECORD_SIZE, ZIL_CHAIN_SIZE, ZIL_MIN_BLKSZ};

use super::policy::max_log_data;

/// Number of bursts that are kept.
const BURSTS: usize = 8;

/// Sizes of a block's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The smallest size that makes worthwhile progress.
    pub(crate) min: u64,
    /// The size that fits best.
    pub(crate) best: u64,
}

/// The bursts of one log.
#[derive(Debug)]
pub(crate) struct Bursts {
    max_block: u64,
    last: [Plan; BURSTS],
    at: usize,
}

impl Bursts {
    /// Creates the state of a log with blocks of up to `max_block` bytes that has logged nothing yet.
    pub(crate) fn new(max_block: u64) -> Bursts {
        Bursts { max_block, last: [Plan { min: 0, best: max_log_data(max_block, 0) }; BURSTS], at: 0 }
    }

    /// Returns the space at the end of a block that may be wasted so that a write is split into fewer pieces (OpenZFS:
    /// `zil_max_waste_space`).
    pub(crate) fn waste_max(&self) -> u64 {
        max_log_data(self.max_block, WRITE_RECORD_SIZE) / 16
    }

    /// Returns the sizes for the first block of a burst of `size` bytes whose longest record has `longest` bytes.
    pub(crate) fn plan(&self, size: u64, longest: u64) -> Plan {
        let room = max_log_data(self.max_block, 0);
        let waste = self.waste_max().max(longest);
        if size <= room {
            return Plan { min: size, best: size };
        }
        if size > 8 * room {
            return Plan { min: waste, best: room };
        }
        // blocks of equal size use several log devices best
        let blocks = size.div_ceil(max_log_data(self.max_block, WRITE_RECORD_SIZE).max(1));
        let each = size.div_ceil(blocks.max(1));
        let filled = room.saturating_sub(waste);
        if each > filled {
            return Plan { min: waste, best: room };
        }
        Plan { min: size.saturating_sub(filled * (blocks - 1)).max(waste), best: each }
    }

    /// Records a burst of `size` bytes.
    pub(crate) fn done(&mut self, size: u64, longest: u64) {
        if size == 0 {
            return;
        }
        self.at = (self.at + 1) % BURSTS;
        let plan = self.plan(size, longest);
        if let Some(slot) = self.last.get_mut(self.at) {
            *slot = plan;
        }
    }

    /// Returns the minimum and best sizes of the next block, in whole blocks.
    pub(crate) fn predict(&self) -> Plan {
        let (mut first, mut second) = (0, 0);
        for plan in &self.last {
            if plan.min >= first {
                (first, second) = (plan.min, first);
            } else {
                second = second.max(plan.min);
            }
        }
        let steady = |first: u64, second: u64| if first < second.saturating_mul(2) { first } else { second };
        let least = self.last.iter().map(|plan| plan.best).min().unwrap_or(0);
        let best = self.block_of(steady(first.max(least), second.max(least)));
        Plan { min: self.block_of(steady(first, second)).min(best), best }
    }

    /// Returns the size of the block that holds `content` bytes, at most the largest block.
    pub(crate) fn block_of(&self, content: u64) -> u64 {
        content.saturating_add(ZIL_CHAIN_SIZE as u64).next_multiple_of(ZIL_MIN_BLKSZ).min(self.max_block)
    }
}

#[cfg(test)]
mod tests {
    use super::{Bursts, Plan};

    const MAX: u64 = 128 << 10;

    #[test]
    fn small_bursts_get_one_block_and_large_ones_blocks_of_one_size() {
        let bursts = Bursts::new(MAX);
        assert_eq!(bursts.plan(5000, 200), Plan { min: 5000, best: 5000 });
        let two = bursts.plan(150 << 10, 200);
        assert_eq!(two.best, 75 << 10);
        assert!(two.min < two.best, "the rest fits if the others are full");
        assert_eq!(bursts.plan(10 << 20, 200).best, MAX - 184);
        assert_eq!(bursts.plan(255 << 10, 200).best, MAX - 184, "nothing is gained by equal blocks");
    }

    #[test]
    fn the_next_block_holds_what_most_bursts_brought() {
        let mut bursts = Bursts::new(MAX);
        assert_eq!(bursts.predict(), Plan { min: 4096, best: MAX }, "nothing is known");
        (0..8).for_each(|_| bursts.done(300, 300));
        assert_eq!(bursts.predict(), Plan { min: 4096, best: 4096 });
        bursts.done(100 << 10, 300);
        assert_eq!(bursts.predict().best, 4096, "one is none");
        bursts.done(90 << 10, 300);
        assert_eq!(bursts.predict(), Plan { min: 104 << 10, best: 104 << 10 });
    }

    #[test]
    fn a_block_is_never_larger_than_allowed() {
        let mut bursts = Bursts::new(8192);
        (0..8).for_each(|_| bursts.done(1 << 20, 8000));
        assert_eq!(bursts.predict().best, 8192);
        assert_eq!(bursts.block_of(8192 - 184), 8192);
        assert_eq!(bursts.block_of(4096 - 183), 8192);
    }
}
