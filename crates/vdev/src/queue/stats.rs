//! The account of a queue, as `zpool iostat` shows it (OpenZFS: `vdev_stat_t`, `vdev_stat_ex_t`).
//!
//! All is counted when an I/O has ended well. Figures are one array of words, so that sums and differences are those of arrays.

use std::time::Duration;

use base::tunable;

use super::class::CLASSES;
use super::{IoClass, Request};

/// Powers of two of nanoseconds that are told apart (OpenZFS: `VDEV_L_HISTO_BUCKETS`). The last has all that took longer.
pub const LATENCY_BUCKETS: usize = 37;
/// Powers of two of bytes that are told apart (OpenZFS: `VDEV_RQ_HISTO_BUCKETS`). The last has all that is larger.
pub const SIZE_BUCKETS: usize = 25;
/// Whether an I/O that took its device so long was slow.
pub(crate) fn is_slow(took: Duration) -> bool {
    took > Duration::from_millis(tunable::ZIO_SLOW_IO_MS.get())
}

/// Classes that are told apart.
const SHOWN: usize = 7;
const SHOWN_CLASSES: [IoClass; SHOWN] = [
    IoClass::SyncRead,
    IoClass::SyncWrite,
    IoClass::AsyncRead,
    IoClass::AsyncWrite,
    IoClass::Scrub,
    IoClass::Trim,
    IoClass::Rebuild,
];

/// Operations, bytes, slow operations, for each direction.
const COUNTS: usize = 3;
const TOTAL: usize = 2 * COUNTS;
const DISK: usize = TOTAL + 2 * LATENCY_BUCKETS;
const WAIT: usize = DISK + 2 * LATENCY_BUCKETS;
const INDIVIDUAL: usize = WAIT + SHOWN * LATENCY_BUCKETS;
const AGGREGATED: usize = INDIVIDUAL + SHOWN * SIZE_BUCKETS;
const WORDS: usize = AGGREGATED + SHOWN * SIZE_BUCKETS;

/// The direction of the bytes of an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// The account of one leaf, or of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoFigures(Vec<u64>);

impl Default for IoFigures {
    fn default() -> Self {
        IoFigures(vec![0; WORDS])
    }
}

impl IoFigures {
    pub(super) fn count(&mut self, request: &Request, waited: Duration, took: Duration) {
        let direction = request.direction as usize;
        let shown = shown(request);
        let latency = |time: Duration| bucket(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), LATENCY_BUCKETS);
        let sizes = if request.aggregated { AGGREGATED } else { INDIVIDUAL };
        self.add_to(direction * COUNTS, 1);
        self.add_to(direction * COUNTS + 1, request.len);
        self.add_to(direction * COUNTS + 2, u64::from(is_slow(took)));
        self.add_to(TOTAL + direction * LATENCY_BUCKETS + latency(waited + took), 1);
        self.add_to(DISK + direction * LATENCY_BUCKETS + latency(took), 1);
        self.add_to(WAIT + shown * LATENCY_BUCKETS + latency(waited), 1);
        self.add_to(sizes + shown * SIZE_BUCKETS + bucket(request.len, SIZE_BUCKETS), 1);
    }

    fn add_to(&mut self, word: usize, n: u64) {
        if let Some(word) = self.0.get_mut(word) {
            *word = word.saturating_add(n);
        }
    }

    fn word(&self, word: usize) -> u64 {
        self.0.get(word).copied().unwrap_or(0)
    }

    fn slice(&self, from: usize, len: usize) -> &[u64] {
        self.0.get(from..from + len).unwrap_or(&[])
    }

    /// Reads or writes.
    #[must_use]
    pub fn operations(&self, direction: Direction) -> u64 {
        self.word(direction as usize * COUNTS)
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.word(direction as usize * COUNTS + 1)
    }

    /// The number of I/Os that their device had for longer than `zio_slow_io_ms`.
    #[must_use]
    pub fn slow(&self, direction: Direction) -> u64 {
        self.word(direction as usize * COUNTS + 2)
    }

    /// Forgets which were slow.
    pub fn clear_slow(&mut self) {
        for direction in [Direction::Read, Direction::Write] {
            if let Some(word) = self.0.get_mut(direction as usize * COUNTS + 2) {
                *word = 0;
            }
        }
    }

    /// How many took from 2^n nanoseconds to twice that from being asked for to their end, for each n.
    #[must_use]
    pub fn total_wait(&self, direction: Direction) -> &[u64] {
        self.slice(TOTAL + direction as usize * LATENCY_BUCKETS, LATENCY_BUCKETS)
    }

    /// The same of the time that their device had them.
    #[must_use]
    pub fn disk_wait(&self, direction: Direction) -> &[u64] {
        self.slice(DISK + direction as usize * LATENCY_BUCKETS, LATENCY_BUCKETS)
    }

    /// The same of the time in the queue, of each class that `zpool iostat` tells apart: sync read, sync write, async read, async write, scrub, trim,
    /// rebuild.
    pub fn queue_wait(&self) -> impl Iterator<Item = &[u64]> {
        self.slice(WAIT, SHOWN * LATENCY_BUCKETS).chunks_exact(LATENCY_BUCKETS)
    }

    /// How many had from 2^n bytes to twice that, of each class as in [`IoFigures::queue_wait`]: those that were asked for as they are, and those that were
    /// made of several.
    pub fn sizes(&self) -> impl Iterator<Item = (&[u64], &[u64])> {
        let each = |from| self.slice(from, SHOWN * SIZE_BUCKETS).chunks_exact(SIZE_BUCKETS);
        each(INDIVIDUAL).zip(each(AGGREGATED))
    }

    /// All histograms one after the other: total time of reads and writes, their time in the device, time in the queue of each class; sizes of each class
    /// as they were asked for, and of each class made of several.
    pub fn histograms(&self) -> impl Iterator<Item = &[u64]> {
        let latencies = self.slice(TOTAL, INDIVIDUAL - TOTAL).chunks_exact(LATENCY_BUCKETS);
        latencies.chain(self.slice(INDIVIDUAL, WORDS - INDIVIDUAL).chunks_exact(SIZE_BUCKETS))
    }

    /// Figures from operations, bytes and slow operations of reads and of writes, and from histograms in the order of [`IoFigures::histograms`]. What
    /// is not given is 0.
    pub fn from_parts<'a>(counts: [[u64; COUNTS]; 2], histograms: impl IntoIterator<Item = &'a [u64]>) -> IoFigures {
        let mut figures = IoFigures::default();
        let (head, rest) = figures.0.split_at_mut(TOTAL);
        head.copy_from_slice(counts.as_flattened());
        let (latencies, sizes) = rest.split_at_mut(INDIVIDUAL - TOTAL);
        let chunks = latencies.chunks_exact_mut(LATENCY_BUCKETS).chain(sizes.chunks_exact_mut(SIZE_BUCKETS));
        for (to, from) in chunks.zip(histograms) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
        figures
    }

    /// Whether there was no I/O.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.operations(Direction::Read) == 0 && self.operations(Direction::Write) == 0
    }

    /// These and `other` together.
    pub fn add(&mut self, other: &IoFigures) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
    }

    /// Returns the figures since `before`.
    #[must_use]
    pub fn since(&self, before: &IoFigures) -> IoFigures {
        IoFigures(self.0.iter().zip(&before.0).map(|(now, before)| now.saturating_sub(*before)).collect())
    }

    /// The words that are not zero, each after its number: what a record keeps.
    #[must_use]
    pub fn to_sparse(&self) -> Vec<u64> {
        let words = (0u64..).zip(&self.0).filter(|(_, word)| **word != 0);
        words.flat_map(|(n, word)| [n, *word]).collect()
    }

    /// The reverse of [`IoFigures::to_sparse`]; `None` for what that does not give.
    #[must_use]
    pub fn from_sparse(sparse: &[u64]) -> Option<IoFigures> {
        let mut figures = IoFigures::default();
        let (pairs, rest) = sparse.as_chunks::<2>();
        for [n, word] in pairs {
            *figures.0.get_mut(usize::try_from(*n).ok()?)? = *word;
        }
        rest.is_empty().then_some(figures)
    }
}

/// The I/Os that wait and are active in the queue of a leaf, or of several, for each class as in [`IoFigures::queue_wait`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueDepths(pub [[u64; 2]; SHOWN]);

impl QueueDepths {
    pub(super) fn of(queued: &[u64; CLASSES], active: &[u64; CLASSES]) -> QueueDepths {
        let get = |table: &[u64; CLASSES], class: IoClass| table.get(class.index()).copied().unwrap_or(0);
        QueueDepths(SHOWN_CLASSES.map(|class| [get(queued, class), get(active, class)]))
    }

    /// Whether nothing waits or is active.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == QueueDepths::default()
    }

    /// These and `other` together.
    pub fn add(&mut self, other: &QueueDepths) {
        let words = self.0.as_flattened_mut().iter_mut().zip(other.0.as_flattened());
        words.for_each(|(sum, n)| *sum = sum.saturating_add(*n));
    }
}

/// The class that a request is shown under: some have no columns of their own.
fn shown(request: &Request) -> usize {
    let class = match (request.class, request.direction) {
        (IoClass::Removal, Direction::Read) => IoClass::AsyncRead,
        (IoClass::Removal | IoClass::Initializing, _) => IoClass::AsyncWrite,
        (class, _) => class,
    };
    SHOWN_CLASSES.iter().position(|shown| *shown == class).unwrap_or(0)
}

/// The power of two of a number (OpenZFS: `HISTO`).
fn bucket(n: u64, buckets: usize) -> usize {
    (n.max(1).ilog2() as usize).min(buckets - 1)
}
