//! What the users of open file systems and volumes do, by dataset (OpenZFS: `dataset_kstats.c`, kstat `objset-0x…`).
//!
//! A reader or writer counts one operation and its bytes. Threads count in cells of their own, one of a few, so that they do not contend for a line of the processors' caches (OpenZFS:
//! `wmsum_t`). The figures are there as long as somebody has the dataset open.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use base::ObjectId;
use parking_lot::Mutex;

use crate::spa::Spa;

/// Cells that threads share: a power of two.
const CELLS: usize = 8;
/// The names of the figures, as OpenZFS has them; those of streams follow, which it has for all datasets together.
const NAMES: [&str; NAMED] = ["writes", "nwritten", "reads", "nread", "nunlinks", "nunlinked"];
const NAMED: usize = 6;
const FIGURES: usize = NAMED + 2;
const WRITES: usize = 0;
const WRITTEN: usize = 1;
const READS: usize = 2;
const READ: usize = 3;
const UNLINKS: usize = 4;
const UNLINKED: usize = 5;
const CONTINUED: usize = 6;
const NOT_CONTINUED: usize = 7;

/// Reads that continued a stream and reads that did not, of datasets that are closed: figures of the process never go back.
static PAST_STREAMS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// The cell of the next thread.
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CELL: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The figures of some threads, in a line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; FIGURES]);

/// The figures of an open dataset, by operations and bytes.
#[derive(Debug)]
pub struct DatasetStats {
    id: ObjectId,
    name: Mutex<Arc<str>>,
    cells: [Line; CELLS],
}

impl DatasetStats {
    fn new(id: ObjectId, name: &str) -> DatasetStats {
        DatasetStats { id, name: Mutex::new(name.into()), cells: Default::default() }
    }

    /// The dataset.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// The name of the dataset.
    #[must_use]
    pub fn name(&self) -> Arc<str> {
        self.name.lock().clone()
    }

    /// Notes that the dataset has another name, if it has.
    pub fn is_named(&self, name: &str) {
        let mut known = self.name.lock();
        if **known != *name {
            *known = name.into();
        }
    }

    /// Counts a read of so many bytes.
    pub fn read(&self, bytes: u64) {
        self.add(READS, 1);
        self.add(READ, bytes);
    }

    /// Counts a write of so many bytes.
    pub fn wrote(&self, bytes: u64) {
        self.add(WRITES, 1);
        self.add(WRITTEN, bytes);
    }

    /// Counts files that have lost their last name, and are to be freed.
    pub fn unlinks(&self, files: u64) {
        self.add(UNLINKS, files);
    }

    /// Counts such files that have been freed.
    pub fn unlinked(&self, files: u64) {
        self.add(UNLINKED, files);
    }

    /// Counts a read of a file that can be read ahead of: whether it went on where one before had led to expect it (OpenZFS: kstat `zfetchstats`).
    pub fn streamed(&self, continued: bool) {
        self.add(if continued { CONTINUED } else { NOT_CONTINUED }, 1);
    }

    /// Reads that continued a stream, and reads that did not.
    #[must_use]
    pub fn streams(&self) -> [u64; 2] {
        [self.sum(CONTINUED), self.sum(NOT_CONTINUED)]
    }

    /// The same of all datasets of this process that are closed.
    #[must_use]
    pub fn streams_of_closed() -> [u64; 2] {
        PAST_STREAMS.each_ref().map(|sum| sum.load(Ordering::Relaxed))
    }

    fn add(&self, figure: usize, n: u64) {
        let cell = CELL.get().unwrap_or_else(|| {
            let cell = NEXT.fetch_add(1, Ordering::Relaxed) % CELLS;
            CELL.set(Some(cell));
            cell
        });
        if let Some(word) = self.cells.get(cell).and_then(|line| line.0.get(figure)) {
            word.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The figures under OpenZFS's names.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); NAMED] {
        let mut figure = 0;
        NAMES.map(|name| {
            figure += 1;
            (name, self.sum(figure - 1))
        })
    }

    fn sum(&self, figure: usize) -> u64 {
        let words = self.cells.iter().filter_map(|line| line.0.get(figure));
        words.fold(0u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)))
    }
}

impl Drop for DatasetStats {
    fn drop(&mut self) {
        for (sum, n) in PAST_STREAMS.iter().zip(self.streams()) {
            sum.fetch_add(n, Ordering::Relaxed);
        }
    }
}

impl Spa {
    /// The figures of a dataset that is being opened: they are shown as long as they are kept.
    #[must_use]
    pub fn count_dataset(&self, id: ObjectId, name: &str) -> Arc<DatasetStats> {
        let stats = Arc::new(DatasetStats::new(id, name));
        let mut all = self.dsl.stats.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&stats));
        stats
    }

    /// The figures of the datasets that are open, by number. Nothing is waited for.
    #[must_use]
    pub fn dataset_stats(&self) -> Vec<Arc<DatasetStats>> {
        let mut all: Vec<Arc<DatasetStats>> =
            self.dsl.stats.lock().iter().filter_map(std::sync::Weak::upgrade).collect();
        all.sort_by_key(|stats| stats.id);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_count_adds_up_under_openzfs_names() {
        let stats = DatasetStats::new(ObjectId(7), "t/a");
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    stats.read(100);
                    stats.wrote(3);
                    stats.unlinks(2);
                    stats.unlinked(1);
                });
            }
        });
        let named = stats.named();
        let wanted =
            [("writes", 20), ("nwritten", 60), ("reads", 20), ("nread", 2000), ("nunlinks", 40), ("nunlinked", 20)];
        assert_eq!(named, wanted);
        stats.streamed(true);
        stats.streamed(false);
        stats.streamed(true);
        assert_eq!(stats.streams(), [2, 1]);
        stats.is_named("t/b");
        assert_eq!((&*stats.name(), stats.id()), ("t/b", ObjectId(7)));
        drop(stats);
        let [continued, not] = DatasetStats::streams_of_closed();
        assert!(continued >= 2 && not >= 1);
    }
}
