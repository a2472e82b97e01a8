//! The dirty data of all pools of the process, and its bound.
//!
//! From [`ZFS_DELAY_MIN_DIRTY_PERCENT`](tunable::ZFS_DELAY_MIN_DIRTY_PERCENT) of the bound on each new transaction is delayed, along a
//! hyperbola that goes to infinity at the bound: writers settle at the speed of the devices and never stop abruptly. At the bound all pools with
//! dirty data sync a txg. The dirty data of a suspended pool does not count, as it must not hold up the writers of others.
//!
//! OpenZFS: `dmu_tx_delay`, `dsl_pool_need_dirty_delay`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Txg, tunable};
use parking_lot::Mutex;

use super::{State, Txgs, slot};

/// Bytes that are dirty in all pools of the process, but for suspended ones.
static DIRTY: AtomicU64 = AtomicU64::new(0);
/// The pools of the process.
static POOLS: Mutex<Vec<Weak<Txgs>>> = Mutex::new(Vec::new());

/// The longest delay of one transaction (OpenZFS: `zfs_delay_max_ns`).
const DELAY_MAX: Duration = Duration::from_millis(100);
/// The most dirty bytes that are counted of one txg: a dnode from disk may claim any number of blocks below it.
const DIRTY_MOST: u64 = 1 << 48;

/// Adds a pool to those whose dirty data counts.
pub(super) fn register(txgs: &Arc<Txgs>) {
    POOLS.lock().push(Arc::downgrade(txgs));
}

/// Returns the bound of dirty data, and the amount from which on writers are delayed.
fn limits() -> (u64, u64) {
    let max = tunable::ZFS_DIRTY_DATA_MAX.get().max(1 << 20);
    (max, max / 100 * tunable::ZFS_DELAY_MIN_DIRTY_PERCENT.get().min(100))
}

/// Returns the amount of dirty data from which on txgs are closed, however young.
fn share() -> u64 {
    tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.get().min(100) * (limits().0 / 100)
}

/// Returns whether no transaction may begin.
pub(super) fn is_full() -> bool {
    DIRTY.load(Ordering::Relaxed) >= limits().0
}

/// Returns whether txgs are to be closed, however young.
pub(super) fn is_much() -> bool {
    DIRTY.load(Ordering::Relaxed) >= share().max(1)
}

/// Notes that the dirty bytes of a txg were `before`, and are `after`.
fn count_dirty(before: u64, after: u64) {
    if after >= before {
        DIRTY.fetch_add(after - before, Ordering::Relaxed);
    } else {
        DIRTY.fetch_sub(before - after, Ordering::Relaxed);
    }
}

fn pools() -> Vec<Arc<Txgs>> {
    POOLS.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Has all pools with dirty data sync a txg. The state of no pool is locked.
pub(super) fn press_pools() {
    for pool in pools() {
        let mut state = pool.state.lock();
        if state.dirty_total() > 0 {
            let open = state.open;
            pool.want(&mut state, open);
        }
    }
}

/// Wakes the writers of all pools that wait. The state of no pool is locked.
pub(super) fn wake_writers() {
    for pool in pools() {
        if pool.state.lock().waiting > 0 {
            pool.room.notify_all();
        }
    }
}

impl State {
    pub(super) fn dirty_total(&self) -> u64 {
        self.dirty.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Sets the dirty bytes of `txg`.
    pub(super) fn set_dirty(&mut self, txg: Txg, bytes: u64) {
        let before = std::mem::replace(&mut self.dirty[slot(txg)], bytes);
        if self.counts {
            count_dirty(before, bytes);
        }
    }

    /// Counts the dirty data against the bound, or does not.
    pub(super) fn set_counts(&mut self, counts: bool) {
        let total = self.dirty_total();
        match (std::mem::replace(&mut self.counts, counts), counts) {
            (true, false) => count_dirty(total, 0),
            (false, true) => count_dirty(0, total),
            _ => {}
        }
    }
}

impl Txgs {
    /// Delays a transaction that is about to begin, if much is dirty.
    pub(super) fn delay(&self) {
        let ((max, from), dirty) = (limits(), DIRTY.load(Ordering::Relaxed));
        if dirty <= from || dirty >= max {
            return;
        }
        let ns = u128::from(tunable::ZFS_DELAY_SCALE.get()) * u128::from(dirty - from) / u128::from(max - dirty);
        let delay = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).min(DELAY_MAX);
        self.stats.delayed.add(1);
        self.stats.delay_ns.add(delay.as_nanos() as u64);
        std::thread::sleep(delay);
    }

    /// Counts more dirty bytes of `txg`.
    pub(super) fn add_dirty(&self, txg: Txg, bytes: u64) {
        let share = share();
        let mut state = self.state.lock();
        let before = DIRTY.load(Ordering::Relaxed);
        let at = slot(txg);
        let dirty = state.dirty[at].saturating_add(bytes).min(DIRTY_MOST);
        state.set_dirty(txg, dirty);
        state.dirtied[at] = state.dirtied[at].saturating_add(bytes);
        if before < share && before.saturating_add(bytes) >= share {
            self.work_to_do.notify_one();
        }
    }

    /// Counts fewer dirty bytes of `txg`.
    pub(super) fn sub_dirty(&self, txg: Txg, bytes: u64) {
        let (max, before) = (limits().0, DIRTY.load(Ordering::Relaxed));
        let mut state = self.state.lock();
        // hostile sizes were summed up to the maximum only
        let dirty = state.dirty[slot(txg)].saturating_sub(bytes);
        state.set_dirty(txg, dirty);
        drop(state);
        if before >= max && DIRTY.load(Ordering::Relaxed) < max {
            wake_writers();
        }
    }
}

impl Drop for Txgs {
    fn drop(&mut self) {
        self.state.get_mut().set_counts(false);
        POOLS.lock().retain(|pool| pool.strong_count() > 0);
        wake_writers();
    }
}
