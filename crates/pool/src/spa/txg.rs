//! The transaction groups of an open pool: the open, quiescing and syncing txg, and the callers that wait for them.
//!
//! At most three txgs live at a time. A transaction joins the *open* one and holds it until it commits. A txg that shall be written is
//! closed (a new one opens at once), *quiesces* until the last transaction in it has committed,
//! and is *synced* by the one sync thread. A txg is closed when it is [`ZFS_TXG_TIMEOUT`](tunable::ZFS_TXG_TIMEOUT) seconds old and
//! anything is dirty, when the dirty data reaches its share, or when a caller waits for it.
//!
//! How transactions join a txg, and what they reserve, is in [`join`]; the bound of dirty data, over all pools of the process, in [`dirty`].
//!
//! OpenZFS: `txg.c`.

mod dirty;
mod join;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::counter::Counter;
use base::{Txg, tunable};
use parking_lot::{Condvar, Mutex};

use crate::Error;
use join::Objects;

pub(crate) use join::{Limits, Reservation};

/// The most txgs alive at a time, plus one for the frees of the last.
const TXG_SIZE: usize = 4;
/// The most txgs that the history keeps.
const HISTORY_MAX: usize = 100;

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

/// The statistics of pools that are closed: figures of the process never go back.
static PAST: DmuTxStats = DmuTxStats::new();

impl DmuTxStats {
    const fn new() -> DmuTxStats {
        DmuTxStats {
            assigned: Counter::new(),
            delayed: Counter::new(),
            delay_ns: Counter::new(),
            dirty_over_max: Counter::new(),
            no_space: Counter::new(),
        }
    }

    /// The figures under OpenZFS's names, which has one set for all pools.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("dmu_tx_assigned", self.assigned.get()),
            ("dmu_tx_dirty_delay", self.delayed.get()),
            ("dmu_tx_dirty_delay_ns", self.delay_ns.get()),
            ("dmu_tx_dirty_over_max", self.dirty_over_max.get()),
            ("dmu_tx_quota", self.no_space.get()),
        ]
    }

    /// The figures of all pools that this process has closed.
    #[must_use]
    pub fn of_closed() -> [(&'static str, u64); 5] {
        PAST.named()
    }

    fn add_to(&self, sum: &DmuTxStats) {
        let pairs = [
            (&sum.assigned, &self.assigned),
            (&sum.delayed, &self.delayed),
            (&sum.delay_ns, &self.delay_ns),
            (&sum.dirty_over_max, &self.dirty_over_max),
            (&sum.no_space, &self.no_space),
        ];
        pairs.iter().for_each(|(sum, n)| sum.add(n.get()));
    }
}

impl Drop for DmuTxStats {
    fn drop(&mut self) {
        self.add_to(&PAST);
    }
}

/// One line of the history of txgs (OpenZFS: kstat `txgs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxgRecord {
    /// Its number.
    pub txg: u64,
    /// The time at which it was opened.
    pub born: Option<Instant>,
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
    /// Blocks that were read from devices while it was synced, by whomever, and their bytes.
    pub read: (u64, u64),
    /// Copies of blocks that were written meanwhile, and their bytes.
    pub written: (u64, u64),
}

/// How far a txg is (OpenZFS: `txg_state_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxgState {
    /// Transactions join it.
    Open,
    /// It is closed, and its last transactions end.
    Quiescing,
    /// It is being written.
    Syncing,
    /// It is on disk.
    Committed,
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
    /// The txg that was closed last, until it is on disk, and whether its transactions have ended.
    closed: Option<(TxgRecord, bool)>,
    /// The txg that is being synced, and since when; nothing once it was told to take too long.
    sync: Option<(Txg, Instant)>,
    failed: Option<Arc<Error>>,
    /// The pool waits for its devices: why, and whether all others wait as well.
    suspended: Option<(Arc<Error>, bool)>,
    history: VecDeque<TxgRecord>,
}

impl State {
    /// Returns the error that callers get now; those that wait for a suspended pool get none.
    fn refusal(&self) -> Option<Error> {
        let suspended = || self.suspended.as_ref().filter(|(_, waits)| !waits).map(|(cause, _)| cause);
        self.failed.as_ref().or_else(suspended).map(|cause| Error::Suspended(cause.clone()))
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
                closed: None,
                sync: None,
                failed: None,
                suspended: None,
                history: VecDeque::new(),
            }),
            work_to_do: Condvar::new(),
            quiet: Condvar::new(),
            room: Condvar::new(),
            on_disk: Condvar::new(),
            work: AtomicBool::new(false),
            stats: DmuTxStats::default(),
        });
        dirty::register(&txgs);
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

    /// The last txgs and those that are alive, the oldest first, each with how far it is. Nothing is waited for.
    pub fn recent(&self) -> Vec<(TxgRecord, TxgState)> {
        let state = self.state.lock();
        let mut all: Vec<_> = state.history.iter().map(|record| (*record, TxgState::Committed)).collect();
        let closed = state.closed.iter();
        all.extend(closed.map(|(txg, quiet)| (*txg, if *quiet { TxgState::Syncing } else { TxgState::Quiescing })));
        let (txg, born) = (state.open.0, Some(state.open_since));
        let dirty = state.dirtied[slot(state.open)];
        all.push((TxgRecord { txg, born, dirty, ..TxgRecord::default() }, TxgState::Open));
        all
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
        self.wait(txg, false, None).map(drop)
    }

    /// As [`Txgs::wait_synced`], but no longer than until `deadline`. Returns whether it is on disk.
    pub(crate) fn wait_synced_until(&self, txg: Txg, deadline: Option<Instant>) -> Result<bool, Error> {
        self.wait(txg, false, deadline)
    }

    /// As [`Txgs::wait_synced`], but does not wait for a suspended pool.
    pub(crate) fn wait_synced_or_suspended(&self, txg: Txg) -> Result<(), Error> {
        self.wait(txg, true, None).map(drop)
    }

    fn wait(&self, txg: Txg, or_suspended: bool, deadline: Option<Instant>) -> Result<bool, Error> {
        let mut state = self.state.lock();
        loop {
            if state.synced >= txg {
                return Ok(true);
            }
            if let Some(refusal) = state.refusal() {
                return Err(refusal);
            }
            if let Some((cause, _)) = state.suspended.as_ref().filter(|_| or_suspended) {
                return Err(Error::Suspended(cause.clone()));
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            self.want(&mut state, txg);
            match deadline {
                Some(deadline) => drop(self.on_disk.wait_until(&mut state, deadline)),
                None => self.on_disk.wait(&mut state),
            }
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
            let dirty = state.dirty_total();
            let some = dirty > 0 || self.work.load(Ordering::Acquire);
            let much = dirty > 0 && dirty::is_much();
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
        let (born, open_ns) = (Some(state.open_since), state.open_since.elapsed().as_nanos() as u64);
        let record = TxgRecord { txg: txg.0, born, open_ns, ..TxgRecord::default() };
        state.closed = Some((record, false));
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
        state.sync = Some((txg, Instant::now()));
        let record = TxgRecord { dirty, quiesce_ns, ..record };
        state.closed = Some((record, true));
        Some(Quiesced { txg, record })
    }

    /// Returns the txg whose sync takes longer than `limit`, and how long it has taken, once for each txg (OpenZFS: `spa_deadman`). A suspended pool has
    /// none.
    pub fn overdue_sync(&self, limit: Duration) -> Option<(Txg, Duration)> {
        let mut state = self.state.lock();
        if state.suspended.is_some() || state.failed.is_some() {
            return None;
        }
        let overdue = state.sync.take_if(|(_, since)| since.elapsed() > limit);
        overdue.map(|(txg, since)| (txg, since.elapsed()))
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
        state.sync = None;
        state.closed = None;
        state.set_dirty(Txg(record.txg), 0);
        state.reserved[slot(Txg(record.txg))] = 0;
        if state.history.len() >= HISTORY_MAX {
            state.history.pop_front();
        }
        state.history.push_back(record);
        self.on_disk.notify_all();
        self.room.notify_all();
        drop(state);
        dirty::wake_writers();
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
        dirty::wake_writers();
    }

    /// Lets callers wait, or refuses them, until the pool [goes on](Txgs::resume).
    pub(crate) fn suspend(&self, cause: &Arc<Error>, waits: bool) {
        let mut state = self.state.lock();
        state.suspended = Some((cause.clone(), waits));
        // what cannot be written now must not hold up the writers of other pools
        state.set_counts(false);
        self.wake_all();
        drop(state);
        dirty::wake_writers();
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

impl std::fmt::Debug for Txgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        write!(f, "txg {} open, {} synced, {} bytes dirty", state.open, state.synced, state.dirty_total())
    }
}

#[cfg(test)]
mod tests;
