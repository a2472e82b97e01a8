//! Mounting many file systems: one below the mount point of another after that, all others at the same time (OpenZFS: `zfs_foreach_mountpoint`).

use std::path::Path;

use parking_lot::{Condvar, Mutex};

/// The work that is left.
struct Left {
    /// Of each item the number of those that wait for it.
    blocks: Vec<Vec<usize>>,
    /// Those that can begin, the last one next.
    ready: Vec<usize>,
    /// Those that have not ended.
    open: usize,
}

/// Calls `work` with the place of each mount point, in as many as `threads` threads: of those with the mount points above it, or the same one and before it,
/// none is left then. Returns once all calls have returned.
pub fn in_order(points: &[&Path], threads: usize, work: impl Fn(usize) + Sync) {
    let (mut blocks, mut ready) = (vec![Vec::new(); points.len()], Vec::new());
    let mut sorted: Vec<usize> = (0..points.len()).collect();
    sorted.sort_by_key(|at| points.get(*at));
    // the mount points that lead to the one that is looked at
    let mut above: Vec<usize> = Vec::new();
    for at in sorted {
        let point = points.get(at).copied().unwrap_or(Path::new(""));
        while above.last().is_some_and(|last| points.get(*last).is_none_or(|last| !point.starts_with(last))) {
            above.pop();
        }
        match above.last().and_then(|last| blocks.get_mut(*last)) {
            Some(block) => block.push(at),
            None => ready.push(at),
        }
        above.push(at);
    }
    ready.reverse();
    let left = Mutex::new(Left { blocks, ready, open: points.len() });
    let changed = Condvar::new();
    let run = || {
        let mut left = left.lock();
        while left.open > 0 {
            let Some(at) = left.ready.pop() else {
                changed.wait(&mut left);
                continue;
            };
            parking_lot::MutexGuard::unlocked(&mut left, || work(at));
            left.open -= 1;
            let mut next = left.blocks.get_mut(at).map(std::mem::take).unwrap_or_default();
            next.reverse();
            left.ready.extend(next);
            changed.notify_all();
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(points.len()) {
            // without it there are fewer
            let _ = std::thread::Builder::new().name("mount".to_owned()).spawn_scoped(scope, run);
        }
        run();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_comes_after_what_is_above() {
        let paths = ["/a/b/c", "/x", "/a", "/a/b", "/ab", "/x/y", "/a/d", "/x", "/a-b", "/a/b/c/d"].map(Path::new);
        for threads in [1, 4] {
            let done = Mutex::new(Vec::new());
            in_order(&paths, threads, |at| {
                let mut done = done.lock();
                for before in 0..paths.len() {
                    let is_above = paths[at] != paths[before] && paths[at].starts_with(paths[before]);
                    let is_same = paths[at] == paths[before] && before < at;
                    assert!(!is_above && !is_same || done.contains(&before), "{at} before {before}: {done:?}");
                }
                done.push(at);
            });
            assert_eq!(done.into_inner().len(), paths.len());
        }
        in_order(&[], 4, |_| panic!("there is nothing to do"));
    }

    #[test]
    fn independent_ones_run_at_the_same_time() {
        let paths = ["/a", "/b"].map(Path::new);
        let barrier = std::sync::Barrier::new(2);
        in_order(&paths, 2, |_| {
            barrier.wait();
        });
    }
}
