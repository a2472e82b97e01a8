//! Batches of work on all cores.
//!
//! The unit is a batch of independent items whose results are needed in the order of the items. The threads are rayon's, one per core,
//! shared by the whole process. [`inline`] makes the calling thread process everything itself, for reproducible runs.

use std::cell::Cell;

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

thread_local! {
    static INLINE: Cell<bool> = const { Cell::new(false) };
}

/// The result of `f` for each item, in order, on all cores. The caller's thread processes the items itself if they are few or if it works
/// [`inline`].
pub fn map<T: Send, R: Send>(items: Vec<T>, f: impl Fn(T) -> R + Sync + Send) -> Vec<R> {
    if items.len() < 2 || INLINE.get() {
        return items.into_iter().map(f).collect();
    }
    items.into_par_iter().with_max_len(64).map(f).collect()
}

/// Stable sort by `key`, on all cores.
pub fn sort_by_key<T: Send, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K + Sync) {
    if INLINE.get() { items.sort_by_key(key) } else { items.par_sort_by_key(key) }
}

/// Runs `work` with every [`map`] of this thread processed by the thread itself.
pub fn inline<R>(work: impl FnOnce() -> R) -> R {
    let before = INLINE.replace(true);
    let result = work();
    INLINE.set(before);
    result
}

/// The number of cores that [`map`] uses.
#[must_use]
pub fn width() -> usize {
    if INLINE.get() { 1 } else { rayon::current_num_threads() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_come_in_order() {
        let squares: Vec<u64> = (0..1000).map(|n| n * n).collect();
        assert_eq!(super::map((0..1000u64).collect(), |n| n * n), squares);
        assert_eq!(super::inline(|| super::map((0..1000u64).collect(), |n| n * n)), squares);
    }
}
