//! Batches of work on all cores.
//!
//! The unit is a batch of independent items whose results are needed in the order of the items. The threads are rayon's, one per core,
//! shared by the whole process: an item must not wait for a device, which may hang, or for a pool, which may be suspended, because that would
//! hold up all other pools ([`pump`](crate::pump) is for such items). [`inline`] makes the calling thread process everything itself, for reproducible runs.

use std::cell::Cell;

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

thread_local! {
    static INLINE: Cell<bool> = const { Cell::new(false) };
    static MARK: Cell<Mark> = const { Cell::new(Mark { syncing: false, can_fail: false, never_waits: false }) };
}

/// The purpose of a thread.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    syncing: bool,
    can_fail: bool,
    never_waits: bool,
}

/// Puts a mark of this thread back when it is dropped.
struct Before(Mark);

impl Drop for Before {
    fn drop(&mut self) {
        MARK.set(self.0);
    }
}

/// Runs `work` as a part of the sync of a txg, with every [`map`] in it (OpenZFS: `dsl_pool_sync_context`).
pub fn syncing<R>(work: impl FnOnce() -> R) -> R {
    marked(Mark { syncing: true, ..MARK.get() }, work)
}

/// Runs `work`, which can do without what it reads, as a part of whatever the thread works for (OpenZFS: `ZIO_FLAG_CANFAIL`).
pub fn can_fail<R>(work: impl FnOnce() -> R) -> R {
    marked(Mark { can_fail: true, ..MARK.get() }, work)
}

/// Runs `work`, which gets an error where it would wait for devices that are gone.
pub fn never_waiting<R>(work: impl FnOnce() -> R) -> R {
    marked(Mark { never_waits: true, ..MARK.get() }, work)
}

/// Returns whether this thread does not wait for devices that are gone.
#[must_use]
pub fn never_waits() -> bool {
    MARK.get().never_waits
}

/// Returns whether this thread works for the sync of a txg.
#[must_use]
pub fn is_syncing() -> bool {
    MARK.get().syncing
}

/// Returns whether this thread works for the sync of a txg, which cannot go on without what it reads.
#[must_use]
pub fn must_succeed() -> bool {
    let mark = MARK.get();
    mark.syncing && !mark.can_fail
}

/// What this thread works for.
pub(crate) fn mark() -> Mark {
    MARK.get()
}

pub(crate) fn marked<R>(mark: Mark, work: impl FnOnce() -> R) -> R {
    let _before = Before(MARK.replace(mark));
    work()
}

/// The result of `f` for each item, in order, on all cores. The caller's thread processes the items itself if they are few or if it works
/// [`inline`].
pub fn map<T: Send, R: Send>(items: Vec<T>, f: impl Fn(T) -> R + Sync + Send) -> Vec<R> {
    if items.len() < 2 || INLINE.get() {
        return items.into_iter().map(f).collect();
    }
    let mark = MARK.get();
    items.into_par_iter().with_max_len(64).map(|item| marked(mark, || f(item))).collect()
}

/// Stable sort by `key`, on all cores.
pub fn sort_by_key<T: Send, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K + Sync) {
    if INLINE.get() { items.sort_by_key(key) } else { items.par_sort_by_key(key) }
}

/// Runs `work` with every [`map`] of this thread processed by the thread itself.
pub fn inline<R>(work: impl FnOnce() -> R) -> R {
    /// Puts back what was before, however the work ends.
    struct Inline(bool);
    impl Drop for Inline {
        fn drop(&mut self) {
            INLINE.set(self.0);
        }
    }
    let _before = Inline(INLINE.replace(true));
    work()
}

/// The number of cores that [`map`] uses.
#[must_use]
pub fn width() -> usize {
    if INLINE.get() { 1 } else { rayon::current_num_threads() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_works_for_a_sync_knows_it() {
        let all = |wanted: bool| super::map(vec![(); 100], |()| super::is_syncing()).iter().all(|is| *is == wanted);
        assert!(all(false) && super::syncing(|| all(true)) && all(false));
        assert!(!super::must_succeed() && super::syncing(super::must_succeed));
        super::syncing(|| {
            assert!(super::can_fail(|| all(true) && !super::must_succeed()));
            assert!(super::must_succeed());
        });
    }

    #[test]
    fn what_never_waits_says_so_on_all_cores() {
        let all = || super::map(vec![(); 100], |()| super::never_waits());
        assert!(super::never_waiting(all).into_iter().all(|never| never) && !all().into_iter().any(|never| never));
    }

    #[test]
    fn results_come_in_order() {
        let squares: Vec<u64> = (0..1000).map(|n| n * n).collect();
        assert_eq!(super::map((0..1000u64).collect(), |n| n * n), squares);
        assert_eq!(super::inline(|| super::map((0..1000u64).collect(), |n| n * n)), squares);
    }
}
