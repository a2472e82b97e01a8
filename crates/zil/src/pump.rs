//! Many reads at a time: a log's work waits for devices, not for cores.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Reads that are under way at a time, at most.
const DEPTH: usize = 64;
/// The same of reads into the cache, which bounds them: as many as far devices take.
const DEPTH_CACHED: usize = 256;

/// `work` of each item, in order of the items, on as many threads as keep devices busy.
pub(crate) fn all<T: Sync, R: Send>(items: Vec<T>, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    at_most(DEPTH, items, work)
}

/// As [`all`], for work that leaves what it reads in the cache, no more than has room there.
pub(crate) fn cached<T: Sync, R: Send>(items: Vec<T>, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    at_most(DEPTH_CACHED, items, work)
}

fn at_most<T: Sync, R: Send>(depth: usize, items: Vec<T>, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = items.len().min(depth);
    if threads < 2 || base::tasks::width() == 1 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        while let (n, Some(item)) = {
            let n = next.fetch_add(1, Ordering::Relaxed);
            (n, items.get(n))
        } {
            done.push((n, work(item)));
        }
        done
    };
    let mut all = std::thread::scope(|scope| {
        let mut helpers = Vec::new();
        for _ in 1..threads {
            // with fewer threads it only takes longer
            let Ok(helper) = std::thread::Builder::new().name("zil-read".to_owned()).spawn_scoped(scope, run) else {
                break;
            };
            helpers.push(helper);
        }
        let mut all = run();
        for helper in helpers {
            match helper.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_unstable_by_key(|(n, _)| *n);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_come_in_order() {
        let squares: Vec<u64> = (0..1000).map(|n| n * n).collect();
        assert_eq!(super::all((0..1000u64).collect(), |n| n * n), squares);
        assert!(super::all(Vec::<u64>::new(), |n| *n).is_empty());
    }
}
