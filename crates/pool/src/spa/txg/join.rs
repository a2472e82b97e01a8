//! Transactions: how they join a txg, what they reserve, and how they leave it.
//!
//! Before it begins, a transaction reserves the most that it may dirty. When it ends it keeps what it did dirty: a block that was already
//! dirty in the txg is written once, however often it changes (OpenZFS: `dsl_dir_tempreserve_clear`, `dnode_willuse_space`).
//!
//! While a txg quiesces, transactions join the next one: all but those that may change an object which a running transaction of the closed txg
//! may change as well ([`dmu::TxObjects`]). So one slow transaction holds up the sync of its txg and those that want its objects, no other
//! writer, until the next txg is full.
//!
//! OpenZFS: `dmu_tx.c`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ObjectId, Txg};
use dmu::{Tx, TxHold, TxObjects};
use parking_lot::Mutex;

use super::{State, Txgs, dirty, slot};
use crate::Error;

/// The least that a transaction that dirties anything keeps reserved, because the metadata above a small block is written with it.
const KEPT_MIN: u64 = 16 << 10;

/// The limits that a dataset's transactions count against, besides the pool's space.
pub(crate) trait Limits: Send + Sync {
    /// Adds the bytes that a transaction may dirty.
    fn book(&self, txg: Txg, bytes: u64);
    /// Subtracts the bytes that a transaction reserved and did not dirty.
    fn unbook(&self, txg: Txg, bytes: u64);
}

/// The reservation of a transaction.
#[derive(Clone, Default)]
pub(crate) struct Reservation {
    /// The most bytes that it may dirty.
    pub(crate) bytes: u64,
    /// True if all of it counts until the txg is on disk, however much is dirtied.
    pub(crate) keeps: bool,
    /// The limits of a dataset that it counts against as well.
    pub(crate) quota: Option<Arc<dyn Limits>>,
    /// The objects that it may change.
    pub(crate) objects: TxObjects,
}

/// The objects that a running transaction may change. Locked after the state of the txgs.
pub(super) type Objects = Arc<Mutex<TxObjects>>;

/// A transaction's hold on a txg.
struct TxgHold {
    txgs: Arc<Txgs>,
    /// Its reservation; the list of objects is `objects`.
    reservation: Reservation,
    objects: Objects,
    /// Bytes that it dirtied and that were not dirty before.
    dirtied: AtomicU64,
}

impl TxHold for TxgHold {
    fn broken(&self, _txg: Txg, why: String) {
        self.txgs.fail(Arc::new(Error::Bug(why)));
    }

    fn release(&self, txg: Txg) {
        let kept = match self.dirtied.load(Ordering::Relaxed) {
            _ if self.reservation.keeps => u64::MAX,
            0 => 0,
            dirtied => dirtied.max(KEPT_MIN),
        };
        let unused = self.reservation.bytes.saturating_sub(kept);
        if let Some(quota) = self.reservation.quota.as_ref().filter(|_| unused > 0) {
            quota.unbook(txg, unused);
        }
        self.txgs.leave(txg, unused, Some(&self.objects));
    }

    fn dirtied(&self, txg: Txg, bytes: u64) {
        self.dirtied.fetch_add(bytes, Ordering::Relaxed);
        self.txgs.dirtied(txg, bytes);
    }

    fn undirtied(&self, txg: Txg, bytes: u64) {
        self.txgs.undirtied(txg, bytes);
    }

    fn burdened(&self, txg: Txg, bytes: u64) {
        self.txgs.burdened(txg, bytes);
    }

    fn covers(&self, objects: &TxObjects) -> bool {
        self.objects.lock().covers(objects)
    }

    fn may_change(&self, objset: ObjectId, object: ObjectId) -> bool {
        self.objects.lock().has(objset, object)
    }

    fn claim(&self, txg: Txg, objects: &TxObjects) -> bool {
        self.txgs.claim(txg, &self.objects, objects)
    }

    fn made(&self, objset: ObjectId, object: ObjectId) {
        self.objects.lock().add_object(objset, object);
    }
}

impl State {
    /// Returns whether a running transaction of `txg` may change one of `objects`.
    fn is_in(&self, txg: Txg, objects: &TxObjects) -> bool {
        self.objects[slot(txg)].iter().any(|running| running.lock().meets(objects))
    }
}

impl Txgs {
    /// Begins a transaction in the open txg that dirties no data of its own, but may change `objects`. Waits while too much is dirty.
    pub(crate) fn assign(self: &Arc<Self>, objects: TxObjects) -> Result<Tx, Error> {
        match self.assign_if(Reservation { objects, ..Reservation::default() }, &|_| true)? {
            Some(tx) => Ok(tx),
            None => Err(Error::NoSpace),
        }
    }

    /// Begins a transaction in the open txg with `reservation`, if `fits` accepts everything reserved and not yet on disk, this
    /// included.
    pub(crate) fn assign_if(
        self: &Arc<Self>,
        mut reservation: Reservation,
        fits: &dyn Fn(u64) -> bool,
    ) -> Result<Option<Tx>, Error> {
        // a caller delayed here must not hold up the txg: it joins afterwards
        self.delay();
        let mut state = self.state.lock();
        let (mut waited, mut pressed) = (false, false);
        loop {
            let full = dirty::is_full();
            // no object is changed in two txgs at a time
            let taken = state.is_in(Txg(state.open.0 - 1), &reservation.objects);
            if state.refusal().is_some() || !(full || taken || state.suspended.is_some()) {
                break;
            }
            if full && !std::mem::replace(&mut pressed, true) {
                waited = true;
                drop(state);
                dirty::press_pools();
                state = self.state.lock();
                continue;
            }
            state.waiting += 1;
            self.room.wait(&mut state);
            state.waiting -= 1;
            pressed = false;
        }
        if let Some(refusal) = state.refusal() {
            return Err(refusal);
        }
        let pending: u64 = state.reserved.iter().sum();
        if !fits(pending.saturating_add(reservation.bytes)) {
            return Ok(None);
        }
        let open = state.open;
        state.holds[slot(open)] += 1;
        state.reserved[slot(open)] += reservation.bytes;
        let objects = Arc::new(Mutex::new(std::mem::take(&mut reservation.objects)));
        state.objects[slot(open)].push(objects.clone());
        drop(state);
        if let Some(quota) = &reservation.quota {
            quota.book(open, reservation.bytes);
        }
        self.stats.assigned.add(1);
        if waited {
            self.stats.dirty_over_max.add(1);
        }
        Ok(Some(Tx::held(
            open,
            Arc::new(TxgHold { txgs: self.clone(), reservation, objects, dirtied: AtomicU64::new(0) }),
        )))
    }

    /// Reserves `bytes` more in `txg`, which is not closed yet.
    pub(crate) fn set_aside(&self, txg: Txg, bytes: u64) {
        self.state.lock().reserved[slot(txg)] += bytes;
    }

    /// Adds `more` to the objects that a transaction of `txg` may change, unless a transaction of a neighbouring txg may change one of them.
    fn claim(&self, txg: Txg, objects: &Objects, more: &TxObjects) -> bool {
        let state = self.state.lock();
        let neighbours = [txg.0.checked_sub(1), (txg < state.open).then_some(txg.0 + 1)];
        if neighbours.into_iter().flatten().any(|other| state.is_in(Txg(other), more)) {
            return false;
        }
        objects.lock().add(more);
        true
    }

    /// Ends a transaction of `txg`, which could change `objects`, and releases the `unused` bytes of its reservation.
    fn leave(&self, txg: Txg, unused: u64, objects: Option<&Objects>) {
        let mut state = self.state.lock();
        let at = slot(txg);
        if let Some(objects) = objects {
            state.objects[at].retain(|running| !Arc::ptr_eq(running, objects));
        }
        match (state.holds[at].checked_sub(1), state.reserved[at].checked_sub(unused)) {
            (Some(holds), Some(reserved)) => (state.holds[at], state.reserved[at]) = (holds, reserved),
            // with a wrong count a txg could be synced while a transaction still changes it
            _ => self.stop_for_bug(&mut state, format!("txg {txg} was left by a transaction that was not in it")),
        }
        if txg < state.open {
            if state.holds[at] == 0 {
                self.quiet.notify_one();
            }
            if state.waiting > 0 {
                self.room.notify_all();
            }
        }
    }

    /// Begins a transaction in the open txg at once, however much is dirty and while the txg before quiesces: for the intent log, which
    /// changes no object.
    pub(crate) fn assign_now(self: &Arc<Self>) -> Result<Tx, Error> {
        let mut state = self.state.lock();
        if let Some(refusal) = state.refusal() {
            return Err(refusal);
        }
        let open = state.open;
        state.holds[slot(open)] += 1;
        Ok(Tx::held(open, self.clone()))
    }
}

impl TxHold for Txgs {
    fn release(&self, txg: Txg) {
        self.leave(txg, 0, None);
    }

    fn covers(&self, _objects: &TxObjects) -> bool {
        false
    }

    fn may_change(&self, _objset: ObjectId, _object: ObjectId) -> bool {
        false
    }

    fn claim(&self, _txg: Txg, _objects: &TxObjects) -> bool {
        false
    }

    fn dirtied(&self, txg: Txg, bytes: u64) {
        self.add_dirty(txg, bytes);
    }

    fn undirtied(&self, txg: Txg, bytes: u64) {
        self.sub_dirty(txg, bytes);
    }
}
