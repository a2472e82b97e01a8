//! The transaction groups of an open pool: the open, quiescing and syncing txg, and the callers that wait for them.
//!
//! At most three txgs live at a time. A transaction joins the *open* one and holds it until it commits. A txg that shall be written is
//! closed (a new one opens at once), *quiesces* until the last transaction in it has committed,
//! and is *synced* by the one sync thread. A txg is closed when it is [`ZFS_TXG_TIMEOUT`](tunable::ZFS_TXG_TIMEOUT) seconds old and
//! anything is dirty, when the dirty data reaches its share, or when a caller waits for it.
//!
//! Dirty data is bounded, over all pools of the process. From [`ZFS_DELAY_MIN_DIRTY_PERCENT`](tunable::ZFS_DELAY_MIN_DIRTY_PERCENT) of the bound on each new transaction
//! is delayed, along a hyperbola that goes to infinity at the bound: writers settle at the speed of the devices and never stop abruptly.
//!
//! Before it begins, a transaction reserves the most that it may dirty. When it ends it keeps what it did dirty: a block that was already
//! dirty in the txg is written once, however often it changes (OpenZFS: `dsl_dir_tempreserve_clear`, `dnode_willuse_space`).
//!
//! While a txg quiesces, transactions join the next one: all but those that may change an object which a running transaction of the closed txg
//! may change as well ([`dmu::TxObjects`]). So one slow transaction holds up the sync of its txg and those that want its objects, no other
//! writer, until the next txg is full.
//!
//! OpenZFS: `txg.c`, `dmu_tx.c` (`dmu_tx_delay`), `dsl_pool.c` (`dsl_pool_need_dirty_delay`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::counter::Counter;
use base::{Txg, tunable};
use dmu::{Tx, TxHold, TxObjects};
use parking_lot::{Condvar, Mutex};

use crate::Error;

/// Bytes that are dirty in all pools of the process, but for suspended ones.
static DIRTY: AtomicU64 = AtomicU64::new(0);
/// The pools of the process.
static POOLS: Mutex<Vec<Weak<Txgs>>> = Mutex::new(Vec::new());

/// The most txgs alive at a time, plus one for the frees of the last.
const TXG_SIZE: usize = 4;
/// The longest delay of one transaction (OpenZFS: `zfs_delay_max_ns`).
const DELAY_MAX: Duration = Duration::from_millis(100);
/// The most txgs that the history keeps.
const HISTORY_MAX: usize = 100;
/// The least that a transaction that dirties anything keeps reserved, because the metadata above a small block is written with it.
const KEPT_MIN: u64 = 16 << 10;

const fn slot(txg: Txg) -> usize {
    (txg.0 % TXG_SIZE as u64) as usize
}

/// Statistics of how transactions joined their txg (OpenZFS: kstat `dmu_tx`).
#[derive(Debug, Default)]
pub struct DmuTxStats {
    /// Transactions that joined a txg.
    pub assigned: Counter,
    /// The assigned transactions that were delayed because much was dirty.
    pub delayed: Counter,
    /// Nanoseconds of these delays.
    pub delay_ns: Counter,
    /// Transactions that waited because too much was dirty.
    pub dirty_over_max: Counter,
    /// Transactions refused for lack of space.
    pub no_space: Counter,
}

/// One line of the history of txgs (OpenZFS: kstat `txgs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxgRecord {
    /// Its number.
    pub txg: u64,
    /// Bytes that were dirtied in it.
    pub dirty: u64,
    /// Sync passes that it took.
    pub passes: u32,
    /// Nanoseconds that it was open.
    pub open_ns: u64,
    /// Nanoseconds that it quiesced.
    pub quiesce_ns: u64,
    /// Nanoseconds that its sync took.
    pub sync_ns: u64,
    /// Nanoseconds of the first sync pass.
    pub first_pass_ns: u64,
}

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
type Objects = Arc<Mutex<TxObjects>>;

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
    fn broken(&self, txg: Txg) {
        self.txgs.fail(Arc::new(Error::Bug(format!("a thread panicked within a change of txg {txg}"))));
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

    fn may_change(&self, objset: u64, object: u64) -> bool {
        self.objects.lock().has(objset, object)
    }

    fn claim(&self, txg: Txg, objects: &TxObjects) -> bool {
        self.txgs.claim(txg, &self.objects, objects)
    }

    fn made(&self, objset: u64, object: u64) {
        self.objects.lock().add_object(objset, object);
    }
}

struct State {
    open: Txg,
    open_since: Instant,
    synced: Txg,
    /// The txg that a caller waits for.
    wanted: Txg,
    holds: [u64; TXG_SIZE],
    /// The objects of running transactions, by txg.
    objects: [Vec<Objects>; TXG_SIZE],
    dirty: [u64; TXG_SIZE],
    /// True while the dirty data counts against the bound: it does not once the pool is suspended, which must not hold up others.
    counts: bool,
    /// Bytes reserved by running transactions and kept by finished ones; they count until the txg is on disk and the space maps include
    /// them.
    reserved: [u64; TXG_SIZE],
    /// Bytes dirtied in total, for the history.
    dirtied: [u64; TXG_SIZE],
    stop: bool,
    /// Number of writers that wait to join a txg.
    waiting: u32,
    /// True while the sync thread works on a txg, and so has a handle on the pool.
    syncing: bool,
    failed: Option<Arc<Error>>,
    /// The pool waits for its devices: why, and whether all others wait as well.
    suspended: Option<(Arc<Error>, bool)>,
    history: std::collections::VecDeque<TxgRecord>,
}

impl State {
    /// Returns the error that callers get now; those that wait for a suspended pool get none.
    fn refusal(&self) -> Option<Error> {
        let suspended = || self.suspended.as_ref().filter(|(_, waits)| !waits).map(|(cause, _)| cause);
        self.failed.as_ref().or_else(suspended).map(|cause| Error::Suspended(cause.clone()))
    }

    fn dirty_total(&self) -> u64 {
        self.dirty.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Sets the dirty bytes of `txg`.
    fn set_dirty(&mut self, txg: Txg, bytes: u64) {
        let before = std::mem::replace(&mut self.dirty[slot(txg)], bytes);
        if self.counts {
            count_dirty(before, bytes);
        }
    }

    /// Counts the dirty data against the bound, or does not.
    fn set_counts(&mut self, counts: bool) {
        let total = self.dirty_total();
        match (std::mem::replace(&mut self.counts, counts), counts) {
            (true, false) => count_dirty(total, 0),
            (false, true) => count_dirty(0, total),
            _ => {}
        }
    }

    /// Returns whether a running transaction of `txg` may change one of `objects`.
    fn is_in(&self, txg: Txg, objects: &TxObjects) -> bool {
        self.objects[slot(txg)].iter().any(|running| running.lock().meets(objects))
    }
}

/// The state of the txg engine, shared by writers and the sync thread. Each kind of waiter has a condition variable of its own, so that the
/// end of a transaction or the write of a block wakes only those that wait for it.
pub struct Txgs {
    state: Mutex<State>,
    /// Wakes the sync thread: there may be a txg to sync.
    work_to_do: Condvar,
    /// Wakes the sync thread: the last transaction of the closing txg has ended.
    quiet: Condvar,
    /// Wakes writers: a transaction may join again.
    room: Condvar,
    /// Wakes callers that wait for a txg to be on disk, or for the sync thread to be idle.
    on_disk: Condvar,
    /// True if something is dirty that no transaction accounted for.
    work: AtomicBool,
    /// Statistics of transactions.
    pub stats: DmuTxStats,
}

/// A closed and quiet txg, for the sync thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quiesced {
    pub(crate) txg: Txg,
    pub(crate) record: TxgRecord,
}

impl Txgs {
    /// The engine of a pool whose last synced txg is `synced`.
    pub(crate) fn new(synced: Txg) -> Arc<Txgs> {
        let txgs = Arc::new(Txgs {
            state: Mutex::new(State {
                open: Txg(synced.0 + 1),
                open_since: Instant::now(),
                synced,
                wanted: Txg(0),
                holds: [0; TXG_SIZE],
                objects: Default::default(),
                dirty: [0; TXG_SIZE],
                counts: true,
                reserved: [0; TXG_SIZE],
                dirtied: [0; TXG_SIZE],
                stop: false,
                waiting: 0,
                syncing: false,
                failed: None,
                suspended: None,
                history: std::collections::VecDeque::new(),
            }),
            work_to_do: Condvar::new(),
            quiet: Condvar::new(),
            room: Condvar::new(),
            on_disk: Condvar::new(),
            work: AtomicBool::new(false),
            stats: DmuTxStats::default(),
        });
        POOLS.lock().push(Arc::downgrade(&txgs));
        txgs
    }

    /// The open txg.
    pub fn open(&self) -> Txg {
        self.state.lock().open
    }

    /// The last txg that is on disk.
    pub fn synced(&self) -> Txg {
        self.state.lock().synced
    }

    /// Bytes that are reserved in txgs that are not yet on disk.
    pub fn reserved(&self) -> u64 {
        self.state.lock().reserved.iter().sum()
    }

    /// Bytes that are dirty in all txgs together.
    pub fn dirty(&self) -> u64 {
        self.state.lock().dirty_total()
    }

    /// How hard devices are to be pressed with what is dirty: bytes, or all there can be where somebody waits for a txg.
    pub(crate) fn pressure(&self) -> u64 {
        let state = self.state.lock();
        if state.wanted > state.synced { u64::MAX } else { state.dirty_total() }
    }

    /// The last txgs, the oldest first.
    pub fn history(&self) -> Vec<TxgRecord> {
        self.state.lock().history.iter().copied().collect()
    }

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
        let (max, from) = limits();
        // a caller delayed here must not hold up the txg: it joins afterwards
        self.delay(DIRTY.load(Ordering::Relaxed), from, max);
        let mut state = self.state.lock();
        let (mut waited, mut pressed) = (false, false);
        loop {
            let full = DIRTY.load(Ordering::Relaxed) >= max;
            // no object is changed in two txgs at a time
            let taken = state.is_in(Txg(state.open.0 - 1), &reservation.objects);
            if state.refusal().is_some() || !(full || taken || state.suspended.is_some()) {
                break;
            }
            if full && !std::mem::replace(&mut pressed, true) {
                waited = true;
                drop(state);
                press_pools();
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

    fn delay(&self, dirty: u64, from: u64, max: u64) {
        if dirty <= from || dirty >= max {
            return;
        }
        let ns = u128::from(tunable::ZFS_DELAY_SCALE.get()) * u128::from(dirty - from) / u128::from(max - dirty);
        let delay = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).min(DELAY_MAX);
        self.stats.delayed.add(1);
        self.stats.delay_ns.add(delay.as_nanos() as u64);
        std::thread::sleep(delay);
    }

    /// Notes that something that no transaction accounted for is to be written with the open txg.
    pub(crate) fn note_work(&self) {
        self.work.store(true, Ordering::Release);
    }

    /// Makes the open txg sync directly after the one being synced, though no caller waits for it; not in a pool that is being closed.
    pub(crate) fn follow_up(&self) {
        let mut state = self.state.lock();
        if !state.stop {
            state.wanted = state.wanted.max(state.open);
            self.work_to_do.notify_one();
        }
    }

    /// Waits until `txg` is on disk, and has it synced.
    ///
    /// # Errors
    /// When the pool is suspended: the error that stopped it.
    pub fn wait_synced(&self, txg: Txg) -> Result<(), Error> {
        self.wait(txg, false)
    }

    /// As [`Txgs::wait_synced`], but does not wait for a suspended pool.
    pub(crate) fn wait_synced_or_suspended(&self, txg: Txg) -> Result<(), Error> {
        self.wait(txg, true)
    }

    fn wait(&self, txg: Txg, or_suspended: bool) -> Result<(), Error> {
        let mut state = self.state.lock();
        loop {
            if state.synced >= txg {
                return Ok(());
            }
            if let Some(refusal) = state.refusal() {
                return Err(refusal);
            }
            if let Some((cause, _)) = state.suspended.as_ref().filter(|_| or_suspended) {
                return Err(Error::Suspended(cause.clone()));
            }
            self.want(&mut state, txg);
            self.on_disk.wait(&mut state);
        }
    }

    /// Has a txg synced soon.
    fn want(&self, state: &mut State, txg: Txg) {
        if state.wanted < txg {
            state.wanted = txg;
            self.work_to_do.notify_one();
        }
    }

    /// Waits for the next txg to write, closes and quiesces it. `None`: the pool is being closed. `idle` is called every few seconds meanwhile.
    pub(crate) fn next(&self, idle: &dyn Fn()) -> Option<Quiesced> {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.syncing) {
            self.on_disk.notify_all();
        }
        loop {
            let timeout = Duration::from_secs(tunable::ZFS_TXG_TIMEOUT.get().max(1));
            let share = tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.get().min(100) * (limits().0 / 100);
            let dirty = state.dirty_total();
            let some = dirty > 0 || self.work.load(Ordering::Acquire);
            let much = dirty > 0 && DIRTY.load(Ordering::Relaxed) >= share.max(1);
            let due = some && (state.open_since.elapsed() >= timeout || much);
            if due || state.wanted >= state.open {
                break;
            }
            if state.stop {
                return None;
            }
            let left = timeout.saturating_sub(state.open_since.elapsed()).max(Duration::from_millis(10));
            let wait = if some { left } else { timeout };
            if self.work_to_do.wait_for(&mut state, wait).timed_out() && !some {
                state.syncing = true;
                parking_lot::MutexGuard::unlocked(&mut state, idle);
                state.syncing = false;
                self.on_disk.notify_all();
            }
        }
        let txg = state.open;
        let open_ns = state.open_since.elapsed().as_nanos() as u64;
        state.open = Txg(txg.0 + 1);
        state.open_since = Instant::now();
        let opened = slot(state.open);
        state.dirtied[opened] = 0;
        self.work.store(false, Ordering::Release);
        let closed = Instant::now();
        while state.holds[slot(txg)] > 0 {
            self.quiet.wait(&mut state);
        }
        let quiesce_ns = closed.elapsed().as_nanos() as u64;
        let dirty = state.dirtied[slot(txg)];
        state.syncing = true;
        Some(Quiesced { txg, record: TxgRecord { txg: txg.0, dirty, open_ns, quiesce_ns, ..TxgRecord::default() } })
    }

    /// Waits until the sync thread works on no txg.
    pub(crate) fn wait_idle(&self) {
        let mut state = self.state.lock();
        while state.syncing && state.failed.is_none() {
            self.on_disk.wait(&mut state);
        }
    }

    /// Records that `txg` is on disk.
    pub(crate) fn done(&self, record: TxgRecord) {
        let mut state = self.state.lock();
        state.synced = Txg(record.txg);
        state.set_dirty(Txg(record.txg), 0);
        state.reserved[slot(Txg(record.txg))] = 0;
        if state.history.len() >= HISTORY_MAX {
            state.history.pop_front();
        }
        state.history.push_back(record);
        self.on_disk.notify_all();
        self.room.notify_all();
        drop(state);
        wake_writers();
    }

    /// Suspends the pool because an invariant is broken: nothing more is committed.
    fn stop_for_bug(&self, state: &mut State, what: String) {
        state.failed.get_or_insert_with(|| Arc::new(Error::Bug(what)));
        state.set_counts(false);
        self.wake_all();
    }

    /// Suspends the pool: every waiting caller gets the error.
    pub(crate) fn fail(&self, error: Arc<Error>) {
        let mut state = self.state.lock();
        state.failed.get_or_insert(error);
        state.set_counts(false);
        self.wake_all();
        drop(state);
        wake_writers();
    }

    /// Lets callers wait, or refuses them, until the pool [goes on](Txgs::resume).
    pub(crate) fn suspend(&self, cause: &Arc<Error>, waits: bool) {
        let mut state = self.state.lock();
        state.suspended = Some((cause.clone(), waits));
        // what cannot be written now must not hold up the writers of other pools
        state.set_counts(false);
        self.wake_all();
        drop(state);
        wake_writers();
    }

    pub(crate) fn resume(&self) {
        let mut state = self.state.lock();
        state.suspended = None;
        if state.failed.is_none() {
            state.set_counts(true);
        }
        self.wake_all();
    }

    fn wake_all(&self) {
        self.work_to_do.notify_all();
        self.quiet.notify_all();
        self.room.notify_all();
        self.on_disk.notify_all();
    }

    /// Returns the error that suspended the pool, if one did.
    pub fn failed(&self) -> Option<Arc<Error>> {
        self.state.lock().failed.clone()
    }

    /// Makes [`Txgs::next`] end once nothing is wanted any more.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.work_to_do.notify_one();
    }
}

/// The most dirty bytes that are counted of one txg: a dnode from disk may claim any number of blocks below it.
const DIRTY_MOST: u64 = 1 << 48;

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
fn press_pools() {
    for pool in pools() {
        let mut state = pool.state.lock();
        if state.dirty_total() > 0 {
            let open = state.open;
            pool.want(&mut state, open);
        }
    }
}

/// Wakes the writers of all pools that wait. The state of no pool is locked.
fn wake_writers() {
    for pool in pools() {
        if pool.state.lock().waiting > 0 {
            pool.room.notify_all();
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

/// Returns the bound of dirty data, and the amount from which on writers are delayed.
fn limits() -> (u64, u64) {
    let max = tunable::ZFS_DIRTY_DATA_MAX.get().max(1 << 20);
    (max, max / 100 * tunable::ZFS_DELAY_MIN_DIRTY_PERCENT.get().min(100))
}

impl TxHold for Txgs {
    fn release(&self, txg: Txg) {
        self.leave(txg, 0, None);
    }

    fn covers(&self, _objects: &TxObjects) -> bool {
        false
    }

    fn may_change(&self, _objset: u64, _object: u64) -> bool {
        false
    }

    fn claim(&self, _txg: Txg, _objects: &TxObjects) -> bool {
        false
    }

    fn dirtied(&self, txg: Txg, bytes: u64) {
        let share = tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.get().min(100) * (limits().0 / 100);
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

    fn undirtied(&self, txg: Txg, bytes: u64) {
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

impl std::fmt::Debug for Txgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        write!(f, "txg {} open, {} synced, {} bytes dirty", state.open, state.synced, state.dirty_total())
    }
}

#[cfg(test)]
mod tests;
