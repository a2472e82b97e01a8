//! Encodes the entries that are appended to a space map.
//!
//! Each batch begins with a debug entry that gives the action, the txg and the pass. Two-word entries never straddle a block: the
//! last word of a block is padded. The result is contiguous: it is written at the map's current length, in one piece.
//! Words are little-endian. OpenZFS: `space_map_write`.

use std::ops::Range;

use base::Txg;
use ondisk::spacemap::{Action, Entry, HISTOGRAM_BUCKETS, ONE_WORD_OFFSET_MAX, ONE_WORD_RUN_MAX, TWO_WORD_RUN_MAX};

use crate::{FreeSpace, MapGeometry, RangeTree};

/// Encodes the entries that are appended to one map.
#[derive(Debug)]
pub struct Encoder {
    geometry: MapGeometry,
    block: u64,
    two_words: bool,
    /// The offset in the object of the first byte of `out`.
    at: u64,
    out: Vec<u8>,
    /// Allocated minus freed bytes in `out`.
    delta: i64,
}

impl Encoder {
    /// Creates an encoder for a map of `length` bytes so far, in blocks of `block` bytes. `two_words`: feature `spacemap_v2` is
    /// active.
    #[must_use]
    pub const fn new(geometry: MapGeometry, length: u64, block: u64, two_words: bool) -> Self {
        Encoder { geometry, block, two_words, at: length, out: Vec::new(), delta: 0 }
    }

    /// Writes the debug entry of the next action.
    pub fn intro(&mut self, action: Action, pass: u32, txg: Txg) {
        let pass = (pass & 0x3ff) as u16;
        self.push(&Entry::Debug { action, pass, txg });
    }

    fn push(&mut self, entry: &Entry) {
        let (first, second) = entry.encode();
        if second.is_some() && (self.at + self.out.len() as u64) % self.block == self.block - 8 {
            self.out.extend(Entry::PADDING.encode().0.to_le_bytes());
        }
        self.out.extend(first.to_le_bytes());
        self.out.extend(second.map(u64::to_le_bytes).into_iter().flatten());
    }

    /// Encodes one range; `vdev` for a log. The range is within the map.
    pub fn run(&mut self, action: Action, range: &Range<u64>, vdev: Option<u32>) {
        let whole = self.geometry.range();
        let (start, end) = (range.start.max(whole.start), range.end.min(whole.end));
        // what is not recorded would be allocated again, or never
        assert!(start == range.start && end == range.end && start <= end, "{range:x?} is not in {whole:x?}");
        let mut offset = (start - whole.start) >> self.geometry.shift;
        let mut left = (end - start) >> self.geometry.shift;
        let bytes = (left << self.geometry.shift) as i64;
        assert!(
            bytes as u64 == end - start && offset << self.geometry.shift == start - whole.start,
            "{range:x?} is not in units of 2^{}",
            self.geometry.shift
        );
        self.delta += if action == Action::Alloc { bytes } else { -bytes };
        let two = self.two_words && (vdev.is_some() || left > ONE_WORD_RUN_MAX || offset > ONE_WORD_OFFSET_MAX);
        // an offset that is cut off would be that of other space
        assert!(two || offset + left <= ONE_WORD_OFFSET_MAX + 1, "{range:x?} does not fit in one word");
        let most = if two { TWO_WORD_RUN_MAX } else { ONE_WORD_RUN_MAX };
        while left > 0 {
            let run = left.min(most);
            let vdev = vdev.or(Some(NO_VDEV)).filter(|_| two);
            self.push(&Entry::Run { action, offset, run, vdev, words: if two { 2 } else { 1 } });
            offset += run;
            left -= run;
        }
    }

    /// Encodes a batch: the debug entry, and all ranges. Writes nothing if there are none.
    pub fn batch(&mut self, action: Action, pass: u32, txg: Txg, ranges: &RangeTree, vdev: Option<u32>) {
        if ranges.is_empty() {
            return;
        }
        self.intro(action, pass, txg);
        ranges.iter().for_each(|range| self.run(action, &range, vdev));
    }

    /// Returns the bytes, and the change of the map's allocated space.
    #[must_use]
    pub fn finish(self) -> (Vec<u8>, i64) {
        (self.out, self.delta)
    }
}

/// The vdev field of a two-word entry without a vdev: the field is 24 bits wide, and OpenZFS's marker is one more than fits,
/// which leaves 0 (`SM_NO_VDEVID`).
const NO_VDEV: u32 = 0;

/// Adds a histogram of segments in memory to a map's histogram. The last bucket also counts all larger segments, each in
/// proportion to its size (OpenZFS: `space_map_histogram_add`).
pub fn add_to_histogram(histogram: &mut [u64; HISTOGRAM_BUCKETS], counts: impl Iterator<Item = u64>, shift: u32) {
    for (log, count) in counts.enumerate().skip(shift as usize).filter(|(_, n)| *n > 0) {
        let n = log - shift as usize;
        let bucket = n.min(HISTOGRAM_BUCKETS - 1);
        if let Some(b) = histogram.get_mut(bucket) {
            *b = b.saturating_add(count << (n - bucket));
        }
    }
}

/// Returns the estimated length of a map that says only what is free, computed from the counts of free segments (OpenZFS:
/// `space_map_estimate_optimal_size`).
#[must_use]
pub fn optimal_length(free: &FreeSpace, geometry: &MapGeometry, block: u64, two_words: bool) -> u64 {
    let one_word_below = 15 + geometry.shift as usize;
    let two_words_below = 36 + geometry.shift as usize;
    let mut size = 0u64;
    for (log, count) in free.counts().iter().map(|n| u64::from(*n)).enumerate() {
        size += match log {
            _ if log < one_word_below => count * 8,
            _ if !two_words => (count * 8) << (log + 1 - one_word_below).min(32),
            _ if log < two_words_below => count * 16,
            _ => (count * 16) << (log + 1 - two_words_below).min(32),
        };
    }
    if two_words { size + (size / block.max(1) + 1) * 8 } else { size }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
