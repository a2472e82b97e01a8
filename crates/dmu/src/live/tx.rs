//! Transactions: holds on a transaction group.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use base::{ObjectId, Txg};

use super::TxObjects;

/// The provider of holds on the open txg and counter of dirty data: the pool (OpenZFS: `txg_hold_open`,
/// `dsl_pool_dirty_space`).
pub trait TxHold: Send + Sync {
    /// A [`Tx`] of `txg` has ended.
    fn release(&self, txg: Txg);
    /// Half of an operation is done in `txg`, or may be, which must not reach the disk; `why` says how. Called before [`TxHold::release`].
    fn broken(&self, _txg: Txg, _why: String) {}
    /// `bytes` more will be written when `txg` is synced.
    fn dirtied(&self, txg: Txg, bytes: u64);
    /// `bytes` of `txg` have been written, or no longer need to be.
    fn undirtied(&self, txg: Txg, bytes: u64);
    /// The sync of `txg` will keep `bytes` more in memory until it is on disk. They count as dirty, and end with the txg.
    fn burdened(&self, txg: Txg, bytes: u64) {
        self.dirtied(txg, bytes);
    }
    /// Returns whether the transaction may change all of these objects.
    fn covers(&self, _objects: &TxObjects) -> bool {
        true
    }
    /// As [`TxHold::covers`], for one object.
    fn may_change(&self, _objset: ObjectId, _object: ObjectId) -> bool {
        true
    }
    /// Adds objects to those that the transaction of `txg` may change. `false`: one of them is another txg's.
    fn claim(&self, _txg: Txg, _objects: &TxObjects) -> bool {
        true
    }
    /// Adds an object that the transaction has made.
    fn made(&self, _objset: ObjectId, _object: ObjectId) {}
}

/// A hold on a txg: changes made with it reach the disk with that txg, or not at all (OpenZFS: `dmu_tx_t`). Dropping it
/// commits. It changes only the objects that it was assigned for, that it has claimed since, or made ([`TxObjects`]): so the changes of one
/// object come in the order of their txgs.
pub struct Tx {
    txg: Txg,
    hold: Option<Arc<dyn TxHold>>,
    syncing: bool,
    /// True if a change was made with it, or begun.
    used: AtomicBool,
    /// Number of changes allowed before one fails.
    left: AtomicU64,
    /// True if only one fails, and those after it are made again.
    once: AtomicBool,
}

impl Tx {
    /// The transaction of the thread that syncs `txg`: its changes belong to the txg that is being written.
    #[must_use]
    pub fn syncing(txg: Txg) -> Tx {
        Tx::new(txg, None, true)
    }

    /// A hold on the open txg, released to `hold` at the end.
    #[must_use]
    pub fn held(txg: Txg, hold: Arc<dyn TxHold>) -> Tx {
        Tx::new(txg, Some(hold), false)
    }

    fn new(txg: Txg, hold: Option<Arc<dyn TxHold>>, syncing: bool) -> Tx {
        let (used, left, once) = (AtomicBool::new(false), AtomicU64::new(u64::MAX), AtomicBool::new(false));
        Tx { txg, hold, syncing, used, left, once }
    }

    /// The txg.
    #[must_use]
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// Returns whether this is the transaction of the sync thread.
    #[must_use]
    pub fn is_syncing(&self) -> bool {
        self.syncing
    }

    /// Reports `bytes` more to be written.
    pub fn dirtied(&self, bytes: u64) {
        if let Some(hold) = self.hold.as_ref().filter(|_| bytes > 0) {
            hold.dirtied(self.txg, bytes);
        }
    }

    /// Reports `bytes` more that the sync will keep in memory.
    pub fn burdened(&self, bytes: u64) {
        if let Some(hold) = self.hold.as_ref().filter(|_| bytes > 0) {
            hold.burdened(self.txg, bytes);
        }
    }

    /// Returns whether it may change all of these objects.
    #[must_use]
    pub fn covers(&self, objects: &TxObjects) -> bool {
        self.hold.as_ref().is_none_or(|hold| hold.covers(objects))
    }

    /// As [`Tx::covers`], for one object.
    #[must_use]
    pub fn may_change(&self, objset: ObjectId, object: ObjectId) -> bool {
        self.hold.as_ref().is_none_or(|hold| hold.may_change(objset, object))
    }

    /// Adds objects to those that it may change. `false`: one of them is another txg's, and none was added.
    #[must_use]
    pub fn claim(&self, objects: &TxObjects) -> bool {
        self.hold.as_ref().is_none_or(|hold| hold.covers(objects) || hold.claim(self.txg, objects))
    }

    /// Adds an object that was made with it.
    pub(crate) fn made(&self, objset: ObjectId, object: ObjectId) {
        if let Some(hold) = &self.hold {
            hold.made(objset, object);
        }
    }

    /// Returns whether anything was changed with it, or may have been: a change that failed half-way counts.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Makes all changes but the first `changes` fail, to test the handling of errors.
    pub fn fail_after(&self, changes: u64) {
        self.left.store(changes, Ordering::Relaxed);
    }

    /// Makes the one change after the first `changes` fail, to test that what was changed before it is undone.
    pub fn fail_once(&self, changes: u64) {
        self.once.store(true, Ordering::Relaxed);
        self.fail_after(changes);
    }

    /// Returns whether a change that [`Tx::fail_once`] asked for has yet to fail.
    #[must_use]
    pub fn is_to_fail(&self) -> bool {
        self.left.load(Ordering::Relaxed) != u64::MAX
    }

    /// Keeps the txg off the disk, as an operation that failed half-way could not be undone. Nothing outside of the engine can be the cause: the
    /// undo of a change finds all that it needs in memory.
    pub fn break_txg(&self, why: &dyn fmt::Display) {
        if let Some(hold) = &self.hold {
            hold.broken(self.txg, format!("half of an operation of txg {} could not be undone: {why}", self.txg));
        }
    }

    /// Begins a change. `false`: it has to fail.
    pub(crate) fn begin_change(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 && self.once.load(Ordering::Relaxed) {
            self.left.store(u64::MAX, Ordering::Relaxed);
        } else if left != u64::MAX {
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
            if self.is_used() && thread::panicking() {
                hold.broken(self.txg, format!("a thread panicked within a change of txg {}", self.txg));
            }
            hold.release(self.txg);
        }
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tx in txg {}{}", self.txg, if self.syncing { ", syncing" } else { "" })
    }
}
