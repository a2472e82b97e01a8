//! Many concurrent reads, for work that waits for devices.
//!
//! The threads belong to the call: if they wait for a device that hangs, or for a suspended pool, nobody else's work is held up.
//!
//! Hundreds of reads that wait for a remote device can wait together, while a read that finds its block in memory only costs CPU time. Each
//! thread has a cost too, above all the memory that it starts with. So the number of threads follows the recent time per item, its
//! [`Pace`].

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::Instant;

use parking_lot::Mutex;

use crate::tasks;

/// Maximum number of concurrent reads.
const DEPTH: usize = 64;
/// Maximum number of concurrent reads into the cache, which bounds them: as many as remote devices can use.
const DEPTH_CACHED: usize = 256;
/// Approximate CPU time of an item. An item that takes n times as long leaves its core free for n threads.
const CORE_NS: u64 = 25_000;
/// Work that justifies a thread; none is started for less.
const THREAD_NS: u64 = 200_000;
/// Weight of an item in the moving mean is 1 / `MEAN_OF`.
const MEAN_OF: u64 = 32;
/// An item that takes longer than this waits for devices.
const QUICK_NS: u64 = 50_000;
/// Number of quick items that a thread reports together.
const TOLD: usize = 16;
/// Number of items after which it is known whether they are quick.
const TRIED: usize = 128;

/// The moving mean of the time per item.
#[derive(Debug, Default)]
pub struct Pace(AtomicU64);

impl Pace {
    /// Records an item that started at `begun` and is now done. Returns the nanoseconds that it took.
    pub fn saw(&self, begun: Instant) -> u64 {
        let took = begun.elapsed().as_nanos() as u64;
        self.saw_many(1, took);
        took
    }

    /// Records `count` items that took `took` nanoseconds together.
    fn saw_many(&self, count: u64, took: u64) {
        let mean = self.0.load(Ordering::Relaxed);
        // a concurrent update may be lost: the mean is only an estimate
        self.0.store(mean - mean / MEAN_OF * count.min(MEAN_OF) + took / MEAN_OF, Ordering::Relaxed);
    }

    /// True if recent items did not wait for devices.
    pub fn is_quick(&self) -> bool {
        self.0.load(Ordering::Relaxed) < QUICK_NS
    }

    /// The number of threads that `left` items justify, at most `most`.
    pub fn threads(&self, left: usize, most: usize) -> usize {
        let (mean, cores) = (self.0.load(Ordering::Relaxed), tasks::width() as u64);
        let useful = (mean / CORE_NS).max(cores).min(mean.saturating_mul(left as u64) / THREAD_NS);
        usize::try_from(useful).unwrap_or(usize::MAX).min(left).min(most).max(1)
    }
}

/// The items of one thread that it has not yet reported: updating a shared word for each item costs more than a quick item does.
#[derive(Debug)]
pub struct Tally {
    count: usize,
    spent_ns: u64,
    last: Instant,
}

impl Tally {
    /// Starts counting now.
    pub fn begin() -> Tally {
        Tally { count: 0, spent_ns: 0, last: Instant::now() }
    }

    /// Counts an item as done. Returns the number of items reported if it was time to report: after several quick ones, or a slow one.
    pub fn did(&mut self, pace: &Pace) -> Option<usize> {
        let now = Instant::now();
        self.spent_ns += now.duration_since(self.last).as_nanos() as u64;
        (self.count, self.last) = (self.count + 1, now);
        (self.count >= TOLD || self.spent_ns >= QUICK_NS).then(|| self.tell(pace))
    }

    /// Reports the items not reported yet, and returns their number.
    pub fn tell(&mut self, pace: &Pace) -> usize {
        let count = std::mem::take(&mut self.count);
        pace.saw_many(count as u64, std::mem::take(&mut self.spent_ns));
        count
    }
}

/// The result of `work` for each item, in the order of the items, on as many threads as keep devices busy.
pub fn all<T: Sync, R: Send>(items: Vec<T>, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    Pump::new(&items, work, DEPTH, false).run()
}

/// Like [`all`], for prefetching: the work leaves its blocks in the cache, at most as many as fit there. If it turns out to be quick,
/// prefetching is of no use, and the rest is skipped.
pub fn ahead<T: Sync, R: Send>(items: Vec<T>, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    Pump::new(&items, work, DEPTH_CACHED, true).run()
}

/// The result of `work` for each item, in the order of the items, with all of them at the same time from the start: for a few items, each of
/// which waits for a device of its own.
pub fn together<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let most = if tasks::width() == 1 { 1 } else { items.len().min(DEPTH) };
    if most < 2 {
        return items.into_iter().map(work).collect();
    }
    let mut done: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let rest = Mutex::new(items.into_iter().zip(&mut done));
    let mark = tasks::mark();
    let go = || {
        while let Some((item, place)) = { rest.lock().next() } {
            *place = Some(tasks::marked(mark, || work(item)));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..most {
            // without a thread it only takes longer
            let _thread = std::thread::Builder::new().name("wait".to_owned()).spawn_scoped(scope, go);
        }
        go();
    });
    drop(rest);
    done.into_iter().flatten().collect()
}

struct Pump<'a, T, R, F> {
    items: &'a [T],
    work: F,
    /// What the caller's thread works for.
    mark: tasks::Mark,
    most: usize,
    /// True if the rest is skipped when the work is quick.
    leaves: bool,
    pace: Pace,
    /// Total time so far. The mean of all items decides on skipping the rest, not the recent one: if only one read in a hundred waits,
    /// prefetching is still worthwhile.
    spent_ns: AtomicU64,
    next: AtomicUsize,
    threads: AtomicUsize,
    done: Mutex<Vec<(usize, R)>>,
}

impl<'a, T: Sync, R: Send, F: Fn(&T) -> R + Sync> Pump<'a, T, R, F> {
    fn new(items: &'a [T], work: F, most: usize, leaves: bool) -> Self {
        // with one thread, the items are processed in order
        let most = if tasks::width() == 1 { 1 } else { most };
        let (pace, spent_ns) = (Pace::default(), AtomicU64::new(0));
        let (next, threads) = (AtomicUsize::new(0), AtomicUsize::new(1));
        Pump { items, work, mark: tasks::mark(), most, leaves, pace, spent_ns, next, threads, done: Mutex::default() }
    }

    fn run(self) -> Vec<R> {
        std::thread::scope(|scope| self.go(scope));
        let mut done = self.done.into_inner();
        done.sort_unstable_by_key(|(n, _)| *n);
        done.into_iter().map(|(_, result)| result).collect()
    }

    fn go<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let mut done = Vec::new();
        loop {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = self.items.get(n).filter(|_| !self.is_idle(n)) else { break };
            let begun = Instant::now();
            done.push((n, (self.work)(item)));
            self.spent_ns.fetch_add(self.pace.saw(begun), Ordering::Relaxed);
            self.grow(scope, n);
        }
        self.done.lock().append(&mut done);
    }

    /// True if item `n` need not be processed.
    fn is_idle(&self, n: usize) -> bool {
        self.leaves && n >= TRIED && self.spent_ns.load(Ordering::Relaxed) / (n as u64) < QUICK_NS
    }

    /// Starts as many threads as the items after `n` justify.
    fn grow<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, n: usize) {
        let wanted = self.pace.threads(self.items.len().saturating_sub(n), self.most);
        grow(&self.threads, wanted, || {
            let go = || tasks::marked(self.mark, || self.go(scope));
            std::thread::Builder::new().name("read".to_owned()).spawn_scoped(scope, go).is_ok()
        });
    }
}

/// Starts threads until there are as many as `wanted`. If one cannot be started, the work only takes longer.
pub fn grow(threads: &AtomicUsize, wanted: usize, begin: impl Fn() -> bool) {
    let one_more = |there: usize| (there < wanted).then_some(there + 1);
    while threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok() && begin() {}
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn results_come_in_order() {
        let squares: Vec<u64> = (0..1000).map(|n| n * n).collect();
        assert_eq!(all((0..1000u64).collect(), |n| n * n), squares);
        assert!(all(Vec::<u64>::new(), |n| *n).is_empty());
    }

    #[test]
    fn a_few_wait_at_the_same_time_and_hold_up_nobody() {
        let all = std::sync::Barrier::new(8);
        let waited = tasks::syncing(|| {
            together((0..8u64).collect(), |n| {
                all.wait();
                // also while all of them wait
                (n, tasks::is_syncing(), tasks::map((0..100u64).collect(), |n| n).len())
            })
        });
        assert_eq!(waited, (0..8).map(|n| (n, true, 100)).collect::<Vec<_>>());
        assert!(together(Vec::<u64>::new(), |n| n).is_empty());
        assert!(tasks::syncing(|| super::all((0..1000u64).collect(), |_| tasks::is_syncing())).iter().all(|is| *is));
    }

    #[test]
    fn what_waits_waits_together() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let wait = |n: &u64| {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(10));
            now.fetch_sub(1, Ordering::Relaxed);
            *n
        };
        let items: Vec<u64> = (0..500).collect();
        assert_eq!(ahead(items.clone(), wait), items);
        let most = most.into_inner();
        assert!((50..=DEPTH_CACHED).contains(&most), "{most}");
    }

    #[test]
    fn what_is_quick_is_not_done_ahead() {
        let done = ahead((0..100_000u64).collect(), |n| *n);
        // on a busy machine some more are done
        assert!((TRIED..50_000).contains(&done.len()), "{}", done.len());
        assert!(done.is_sorted());
    }
}
