//! A place in a transaction group.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::Txg;

/// What hands out places in the open txg and counts dirty data: the pool (OpenZFS: `txg_hold_open`, `dsl_pool_dirty_space`).
pub trait TxHold: Send + Sync {
    /// A [`Tx`] of `txg` has ended.
    fn release(&self, txg: Txg);
    /// So many bytes more will be written when `txg` is synced.
    fn dirtied(&self, txg: Txg, bytes: u64);
    /// So many bytes of `txg` have been written, or need not be any more.
    fn undirtied(&self, txg: Txg, bytes: u64);
    /// The sync of `txg` will keep so many bytes more in memory until it is on disk. They count as dirty, and end with the txg.
    fn burdened(&self, txg: Txg, bytes: u64) {
        self.dirtied(txg, bytes);
    }
}

/// A place in a txg: what is changed with it reaches the disk with that txg, or not at all (OpenZFS: `dmu_tx_t`). Dropping it
/// commits. Changes of one block, bonus buffer or size must come in the order of their txgs: whoever may hold places in two txgs
/// at a time orders changes of the same object by a lock that is taken before the place.
pub struct Tx {
    txg: Txg,
    hold: Option<Arc<dyn TxHold>>,
    syncing: bool,
    /// Something was changed with it, or a change was begun.
    used: AtomicBool,
    /// Changes left until one fails.
    left: AtomicU64,
}

impl Tx {
    /// The place of the thread that syncs `txg`: its changes belong to the txg that is being written.
    #[must_use]
    pub fn syncing(txg: Txg) -> Tx {
        Tx { txg, hold: None, syncing: true, used: AtomicBool::new(false), left: AtomicU64::new(u64::MAX) }
    }

    /// A place in the open txg, given back to `hold` in the end.
    #[must_use]
    pub fn held(txg: Txg, hold: Arc<dyn TxHold>) -> Tx {
        Tx { txg, hold: Some(hold), syncing: false, used: AtomicBool::new(false), left: AtomicU64::new(u64::MAX) }
    }

    /// The txg.
    #[must_use]
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// Whether this is the thread that syncs.
    #[must_use]
    pub fn is_syncing(&self) -> bool {
        self.syncing
    }

    /// Says that so many bytes more are to be written.
    pub fn dirtied(&self, bytes: u64) {
        if let Some(hold) = self.hold.as_ref().filter(|_| bytes > 0) {
            hold.dirtied(self.txg, bytes);
        }
    }

    /// Says that the sync will have so many bytes more to keep in memory.
    pub fn burdened(&self, bytes: u64) {
        if let Some(hold) = self.hold.as_ref().filter(|_| bytes > 0) {
            hold.burdened(self.txg, bytes);
        }
    }

    /// Whether anything was changed with it, or may have been: a change that failed half-way counts.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Has all changes fail but the first `changes`: to see what comes of it.
    pub fn fail_after(&self, changes: u64) {
        self.left.store(changes, Ordering::Relaxed);
    }

    /// A change begins. `false`: it is to fail.
    pub(crate) fn begin_change(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left != u64::MAX {
            self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        }
        if left > 0 {
            self.used.store(true, Ordering::Relaxed);
        }
        left > 0
    }

    pub(crate) fn hold(&self) -> Option<&Arc<dyn TxHold>> {
        self.hold.as_ref()
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if let Some(hold) = &self.hold {
            hold.release(self.txg);
        }
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tx in txg {}{}", self.txg, if self.syncing { ", syncing" } else { "" })
    }
}
