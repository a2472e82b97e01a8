//! Locks on ranges of a file or volume (OpenZFS: `zfs_rangelock.c`).
//!
//! Readers share a range, a writer has it alone; holders of ranges that do not overlap do not wait for each other. A range is granted when no
//! holder's range conflicts with it, nor that of a caller that has waited longer: so neither readers nor writers starve.
//!
//! The range of a writer may depend on what the lock protects: an append begins at the end of the file, and a write that changes the block size
//! needs all of it. It is computed again each time before it is granted.
//!
//! A thread that holds a range must not ask for another one of the same lock: a caller in between may wait for the first.
//!
//! As with [`Versioned`](base::Versioned), a reader can do without the lock: what it has read is consistent if no writer was there when it
//! began, and none has come since.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::{Condvar, Mutex};

/// The whole file.
const WHOLE: Range<u64> = 0..u64::MAX;
/// Added to the version when a writer begins: the low bits count the writers that are there.
const BEGIN: u64 = (1 << 16) + 1;
/// The bits of the version that count the writers that are there.
const WRITERS: u64 = (1 << 16) - 1;

/// A lock on ranges. See the [module](self).
#[derive(Default)]
pub(crate) struct RangeLock {
    /// The number of writers so far, and of those that are there.
    version: AtomicU64,
    queue: Mutex<Queue>,
    /// Wakes callers that wait for a range.
    freed: Condvar,
}

/// The ranges that are held or waited for, by the time of their request.
#[derive(Default)]
struct Queue {
    entries: Vec<Entry>,
    next: u64,
    waiting: usize,
}

struct Entry {
    number: u64,
    range: Range<u64>,
    writes: bool,
    held: bool,
}

impl Queue {
    /// Returns whether entry `number` must wait for another.
    fn is_blocked(&self, number: u64, range: &Range<u64>, writes: bool) -> bool {
        self.entries.iter().any(|other| {
            let overlaps = other.range.start < range.end && range.start < other.range.end;
            let conflicts = overlaps && (writes || other.writes);
            conflicts && other.number != number && (other.held || other.number < number)
        })
    }
}

impl RangeLock {
    /// Takes all of it for reading.
    pub(crate) fn read(&self) -> RangeGuard<'_> {
        self.read_range(WHOLE)
    }

    /// Takes a range for reading.
    pub(crate) fn read_range(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.take(false, || range.clone())
    }

    /// Takes all of it for writing.
    pub(crate) fn write(&self) -> RangeGuard<'_> {
        self.write_range(|| WHOLE)
    }

    /// Takes the range for writing that `range` returns, which must not use this lock.
    pub(crate) fn write_range(&self, range: impl FnMut() -> Range<u64>) -> RangeGuard<'_> {
        let guard = self.take(true, range);
        self.version.fetch_add(BEGIN, Ordering::Relaxed);
        // a reader that sees a change also sees the version
        fence(Ordering::Release);
        guard
    }

    fn take(&self, writes: bool, mut range: impl FnMut() -> Range<u64>) -> RangeGuard<'_> {
        let mut queue = self.queue.lock();
        let number = queue.next;
        queue.next += 1;
        queue.entries.push(Entry { number, range: range(), writes, held: false });
        loop {
            let now = range();
            let blocked = queue.is_blocked(number, &now, writes);
            if let Some(entry) = queue.entries.iter_mut().find(|entry| entry.number == number) {
                (entry.range, entry.held) = (now.clone(), !blocked);
            }
            if !blocked {
                return RangeGuard { lock: self, number, range: now, writes };
            }
            queue.waiting += 1;
            self.freed.wait(&mut queue);
            queue.waiting -= 1;
        }
    }

    /// The current version; `None` while a writer is there.
    pub(crate) fn version(&self) -> Option<u64> {
        Some(self.version.load(Ordering::Acquire)).filter(|version| version & WRITERS == 0)
    }

    /// Returns whether no writer has come since the version was `version`.
    pub(crate) fn is(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version
    }
}

/// A range that is held.
pub(crate) struct RangeGuard<'a> {
    lock: &'a RangeLock,
    number: u64,
    range: Range<u64>,
    writes: bool,
}

impl RangeGuard<'_> {
    /// The range.
    pub(crate) fn range(&self) -> &Range<u64> {
        &self.range
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        if self.writes {
            self.lock.version.fetch_sub(1, Ordering::Release);
        }
        let mut queue = self.lock.queue.lock();
        queue.entries.retain(|entry| entry.number != self.number);
        if queue.waiting > 0 {
            self.lock.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Returns when `count` callers wait.
    fn await_waiting(lock: &RangeLock, count: usize) {
        while lock.queue.lock().waiting < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn ranges_that_do_not_overlap_are_held_together() {
        let lock = RangeLock::default();
        let (a, b) = (lock.write_range(|| 0..10), lock.write_range(|| 10..20));
        let (c, d) = (lock.read_range(20..30), lock.read_range(25..40));
        assert_eq!((a.range(), b.range()), (&(0..10), &(10..20)));
        assert_eq!(lock.version(), None);
        drop((a, b));
        let Some(version) = lock.version() else { panic!("no writer is there") };
        drop((c, d));
        assert!(lock.is(version), "readers change nothing");
        drop(lock.write());
        assert!(!lock.is(version) && lock.version().is_some());
    }

    #[test]
    fn callers_that_overlap_wait_in_their_order() {
        let lock = RangeLock::default();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let reader = lock.read_range(0..10);
            for (n, writes, range) in [(1, true, 5..15), (2, false, 0..6), (3, true, 0..u64::MAX)] {
                let (lock, order) = (&lock, &order);
                scope.spawn(move || {
                    let _guard = if writes { lock.write_range(|| range.clone()) } else { lock.read_range(range) };
                    order.lock().push(n);
                });
                await_waiting(lock, n);
            }
            // behind a waiting writer; a range that none of them wants is free but for the last
            assert!(order.lock().is_empty());
            drop(reader);
        });
        assert_eq!(*order.lock(), [1, 2, 3]);
    }

    #[test]
    fn an_append_begins_where_the_one_before_ended() {
        let (lock, end) = (RangeLock::default(), AtomicU64::new(0));
        let mut starts: Vec<u64> = std::thread::scope(|scope| {
            let append = || {
                let of = || {
                    let at = end.load(Ordering::Relaxed);
                    at..at + 7
                };
                let once = |_| {
                    let guard = lock.write_range(of);
                    let at = end.load(Ordering::Relaxed);
                    assert_eq!(guard.range(), &(at..at + 7));
                    end.store(at + 7, Ordering::Relaxed);
                    at
                };
                (0..200).map(once).collect::<Vec<u64>>()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(append)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
        });
        starts.sort_unstable();
        assert_eq!(starts, (0..800).map(|n| n * 7).collect::<Vec<u64>>());
    }

    #[test]
    fn a_reader_without_the_lock_notices_writers_of_any_range() {
        let (lock, rounds) = (RangeLock::default(), AtomicUsize::new(0));
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        std::thread::scope(|scope| {
            for n in 1..3u64 {
                let (lock, words, rounds) = (&lock, &words, &rounds);
                scope.spawn(move || {
                    for m in 0..10_000 {
                        let _guard = lock.write_range(|| 0..10);
                        words.iter().for_each(|word| word.store(n << 32 | m, Ordering::Relaxed));
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                });
            }
            while rounds.load(Ordering::Relaxed) < 2 {
                let Some(version) = lock.version() else { continue };
                let [a, b] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
                assert!(a == b || !lock.is(version));
            }
        });
    }
}
