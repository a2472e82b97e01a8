//! Many reads at a time, where it is devices that work waits for.
//!
//! Of reads that wait for a device far away hundreds can wait together; one that finds its block in memory only costs a core. And each thread costs,
//! too, above all the memory that it begins with. So there are as many threads as that is worth which was done lately: its [`Pace`] tells.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::Instant;

use parking_lot::Mutex;

/// Reads that are under way at a time, at most.
const DEPTH: usize = 64;
/// The same of reads into the cache, which bounds them: as many as far devices take.
const DEPTH_CACHED: usize = 256;
/// What a piece of work costs a core, about: one that takes so many times as long lets as many threads go on meanwhile.
const CORE_NS: u64 = 25_000;
/// No thread is begun for less work than this.
const THREAD_NS: u64 = 200_000;
/// Each piece of work counts for so much of the mean; the others were before it.
const MEAN_OF: u64 = 32;
/// Work that takes longer than this waits for devices.
const QUICK_NS: u64 = 50_000;
/// So many quick pieces are told of together.
const TOLD: usize = 16;
/// After so many pieces it is known whether they are quick.
const TRIED: usize = 128;

/// How long a piece of work took lately.
#[derive(Debug, Default)]
pub struct Pace(AtomicU64);

impl Pace {
    /// A piece of work that began at `begun` is done. Gives the nanoseconds that it took.
    pub fn saw(&self, begun: Instant) -> u64 {
        let took = begun.elapsed().as_nanos() as u64;
        self.saw_many(1, took);
        took
    }

    /// So many pieces of work are done, in `took` nanoseconds together.
    fn saw_many(&self, count: u64, took: u64) {
        let mean = self.0.load(Ordering::Relaxed);
        // who is overtaken here is not counted
        self.0.store(mean - mean / MEAN_OF * count.min(MEAN_OF) + took / MEAN_OF, Ordering::Relaxed);
    }

    /// True if it did not wait for devices.
    pub fn is_quick(&self) -> bool {
        self.0.load(Ordering::Relaxed) < QUICK_NS
    }

    /// How many threads `left` pieces of work are worth, no more than `most`.
    pub fn threads(&self, left: usize, most: usize) -> usize {
        let (mean, cores) = (self.0.load(Ordering::Relaxed), crate::tasks::width() as u64);
        let useful = (mean / CORE_NS).max(cores).min(mean.saturating_mul(left as u64) / THREAD_NS);
        usize::try_from(useful).unwrap_or(usize::MAX).min(left).min(most).max(1)
    }
}

/// What one thread did, before it tells the others: a word that all write with each piece costs more than a quick piece does.
#[derive(Debug)]
pub struct Tally {
    count: usize,
    spent_ns: u64,
    last: Instant,
}

impl Tally {
    /// From now on.
    pub fn begin() -> Tally {
        Tally { count: 0, spent_ns: 0, last: Instant::now() }
    }

    /// A piece is done. Gives how many have been since it told last, if it is time to tell: after some that are quick, or one that is not.
    pub fn did(&mut self, pace: &Pace) -> Option<usize> {
        let now = Instant::now();
        self.spent_ns += now.duration_since(self.last).as_nanos() as u64;
        (self.count, self.last) = (self.count + 1, now);
        (self.count >= TOLD || self.spent_ns >= QUICK_NS).then(|| self.tell(pace))
    }

    /// Tells what was not told yet.
    pub fn tell(&mut self, pace: &Pace) -> usize {
        let count = std::mem::take(&mut self.count);
        pace.saw_many(count as u64, std::mem::take(&mut self.spent_ns));
        count
    }
}

/// `work` of each item, in order of the items, on as many threads as keep devices busy.
pub fn all<T: Sync, R: Send>(items: Vec<T>, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    Pump::new(&items, work, DEPTH, false).run()
}

/// As [`all`], for work that is done ahead: it leaves what it reads in the cache, no more than has room there. Where that turns out to be
/// quick nobody needs it ahead, and the rest is not done.
pub fn ahead<T: Sync, R: Send>(items: Vec<T>, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    Pump::new(&items, work, DEPTH_CACHED, true).run()
}

struct Pump<'a, T, R, F> {
    items: &'a [T],
    work: F,
    most: usize,
    /// True if quick work is left to others.
    leaves: bool,
    pace: Pace,
    /// How long all of it took so far: where one read in a hundred waits, that is worth waiting for ahead.
    spent_ns: AtomicU64,
    next: AtomicUsize,
    threads: AtomicUsize,
    done: Mutex<Vec<(usize, R)>>,
}

impl<'a, T: Sync, R: Send, F: Fn(&T) -> R + Sync> Pump<'a, T, R, F> {
    fn new(items: &'a [T], work: F, most: usize, leaves: bool) -> Self {
        // a thread that does everything itself does it in order
        let most = if crate::tasks::width() == 1 { 1 } else { most };
        let (pace, spent_ns) = (Pace::default(), AtomicU64::new(0));
        let (next, threads) = (AtomicUsize::new(0), AtomicUsize::new(1));
        Pump { items, work, most, leaves, pace, spent_ns, next, threads, done: Mutex::default() }
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

    /// True if there is no use in item `n`.
    fn is_idle(&self, n: usize) -> bool {
        self.leaves && n >= TRIED && self.spent_ns.load(Ordering::Relaxed) / (n as u64) < QUICK_NS
    }

    /// Begins as many threads as what is left behind item `n` is worth.
    fn grow<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, n: usize) {
        let wanted = self.pace.threads(self.items.len().saturating_sub(n), self.most);
        grow(&self.threads, wanted, || {
            std::thread::Builder::new().name("read".to_owned()).spawn_scoped(scope, || self.go(scope)).is_ok()
        });
    }
}

/// Begins threads until there are as many as are `wanted`. Where one cannot be had, with fewer it only takes longer.
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
        // on a machine that is busy a little more
        assert!((TRIED..50_000).contains(&done.len()), "{}", done.len());
        assert!(done.is_sorted());
    }
}
