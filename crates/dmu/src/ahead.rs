//! Reading ahead of a cursor.
//!
//! A cursor that is asked for one block after the other reads the following blocks together, before it is asked for them: their reads are
//! under way at a time, neighbours in one operation. A window begins with 128 KiB and doubles up to 1 MiB. Files and volumes have threads
//! that read further ahead (`zpl::live`); this is for everything else (OpenZFS: `dmu_zfetch.c` for both).

use std::ops::Range;

/// Bytes of the first window of a run.
const FIRST: u64 = 128 << 10;
/// Bytes of the largest window.
const LARGEST: u64 = 1 << 20;

/// The run of blocks that a cursor is asked for.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// The block that continues the run.
    next: u64,
    /// The end of the blocks that were read ahead.
    until: u64,
    /// Bytes of the last window; 0 before the first.
    window: u64,
}

impl ReadAhead {
    /// Notes that block `blkid` is asked for; returns whether it continues a run beyond what was read ahead, so that a window begins there.
    pub(crate) fn note(&mut self, blkid: u64) -> bool {
        let continues = blkid == self.next && blkid > 0;
        self.next = blkid.saturating_add(1);
        if !continues {
            (self.until, self.window) = (self.next, 0);
        }
        continues && blkid >= self.until
    }

    /// Returns the blocks of the window that begins with the last noted block, if they are several: blocks of `size` bytes of an object that has `count`.
    /// `most` bytes can wait for their reader.
    pub(crate) fn window(&mut self, size: u64, count: u64, most: u64) -> Option<Range<u64>> {
        let first = self.next.saturating_sub(1);
        self.window = (self.window * 2).clamp(FIRST, LARGEST).min(most);
        let blocks = self.window.checked_div(size)?;
        self.until = first.saturating_add(blocks).min(count).max(self.next);
        (self.until > self.next).then_some(first..self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = u64::MAX;

    impl ReadAhead {
        fn ask(&mut self, blkid: u64, size: u64, count: u64, most: u64) -> Option<Range<u64>> {
            self.note(blkid).then(|| self.window(size, count, most)).flatten()
        }
    }

    #[test]
    fn windows_follow_each_other_and_double() {
        let mut ahead = ReadAhead::default();
        let windows: Vec<_> = (0..600).filter_map(|blkid| ahead.ask(blkid, 8192, 500, MOST)).collect();
        assert_eq!(windows, [1..17, 17..49, 49..113, 113..241, 241..369, 369..497, 497..500]);
    }

    #[test]
    fn other_orders_and_large_blocks_are_read_one_by_one() {
        let mut ahead = ReadAhead::default();
        let orders = [5, 5, 4, 9, 11, 0, 3];
        assert!(orders.iter().all(|blkid| ahead.ask(*blkid, 8192, 500, MOST).is_none()));
        assert!((0..50).all(|blkid| ahead.ask(blkid, 1 << 20, 500, MOST).is_none()));
        assert!((0..50).all(|blkid| ahead.ask(blkid, 0, 500, MOST).is_none()));
        assert!((0..50).all(|blkid| ahead.ask(blkid, 8192, 500, 8192).is_none()));
    }

    #[test]
    fn a_run_that_is_left_begins_anew() {
        let mut ahead = ReadAhead::default();
        assert_eq!((0..30).filter_map(|blkid| ahead.ask(blkid, 8192, 500, MOST)).last(), Some(17..49));
        assert_eq!(ahead.ask(200, 8192, 500, MOST), None);
        assert_eq!(ahead.ask(201, 8192, 500, MOST), Some(201..217));
    }
}
