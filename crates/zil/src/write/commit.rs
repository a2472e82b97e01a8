//! Commits: leaders and followers.
//!
//! One batch is in flight at a time. Its leader holds the chain until it is finished, however long that takes; all callers that
//! arrive meanwhile join the next one. (Starting the next batch earlier gains nothing: it is not safe before the previous one is,
//! and a device does one flush at a time.)
//!
//! A batch of many bytes that are most of what is dirty in the pool is not logged: its txg, which has to write them anyway, is brought to disk. So the
//! end of a large copy writes its data once, not twice. The chain is held meanwhile, so that no record of a later change is in the log before.

use std::sync::Arc;

use base::{ObjectId, Txg, tunable};
use parking_lot::MutexGuard;

use super::chain::Chain;
use super::pending::{Batch, Part, Taken, Then};
use super::{Itx, Zil};
use crate::Error;

/// Bytes of changes in one batch from which on it may be quicker to end their txg than to log them.
const BULK: u64 = 16 << 20;
/// The most percent of the time of a write that others are waited for.
const PERCENT_MAX: u64 = 10_000;

/// A batch that is closed but not finished.
struct Closed<'a> {
    zil: &'a Zil,
    chain: MutexGuard<'a, Chain>,
    /// Dropped after the chain: the next leader need not wait until all are told.
    batch: Ending,
}

impl Drop for Closed<'_> {
    /// If the batch is not safe, the state of the devices is unknown: nothing more is written to this chain, and its txg is owed.
    fn drop(&mut self) {
        if !self.batch.safe {
            self.zil.end(&mut self.chain);
            // all changes are in the open txg or in earlier ones
            self.zil.owe(self.zil.device.newest());
        }
        self.zil.pending.lock().over();
    }
}

/// Ends a batch on every path.
struct Ending {
    batch: Arc<Batch>,
    /// True if its records are in the log, or no longer needed there.
    safe: bool,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.batch.end(self.safe);
    }
}

/// A batch that has to be written by a thread that may wait for devices ([`Lead::write`]): others wait for it.
#[must_use]
pub struct Lead(Option<Leading>);

struct Leading {
    zil: Arc<Zil>,
    missed: Option<Txg>,
    then: Then,
}

impl Lead {
    /// Writes the batch, and calls what its commit was begun with.
    pub fn write(self) {
        drop(self);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if let Some(Leading { zil, missed, then }) = self.0.take() {
            let safe = zil.lead();
            tell(zil, safe, missed, then);
        }
    }
}

impl std::fmt::Debug for Lead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a batch")
    }
}

/// Calls `then` at the end of a batch. Who is told may close the log next: nothing has it any more by then.
fn tell(zil: Arc<Zil>, safe: bool, missed: Option<Txg>, then: Then) {
    let done = zil.waits_for(safe, missed).is_none();
    drop(zil);
    then(done);
}

impl Zil {
    /// Waits until all changes of `object`, and all that do not wait for a commit of their object, are on stable storage; with
    /// `None`, all changes. The caller must hold neither a transaction nor a lock that a [`WriteSource`](super::WriteSource)
    /// takes.
    ///
    /// # Errors
    /// If the pool is suspended: neither the log nor a txg could be written.
    pub fn commit(&self, object: Option<ObjectId>) -> Result<(), Error> {
        if !self.logs() {
            return Ok(());
        }
        let (missed, part) = self.join(object);
        let safe = match part {
            Part::Nothing => true,
            Part::Lead => self.lead(),
            Part::Follow(batch) => batch.wait(),
        };
        match self.waits_for(safe, missed) {
            Some(owed) => self.device.wait_synced(owed).inspect_err(|_| self.stats.commit_crash_count.add(1)),
            None => Ok(()),
        }
    }

    /// As [`Zil::commit`], for a caller that does not wait. `then` is called once, by this thread or that of another caller, and must not wait: with
    /// `true` if the changes are on stable storage, with `false` if the caller has to commit again and wait. Returns the batch, if it is for this caller
    /// to have it written.
    pub fn commit_then(self: &Arc<Self>, object: Option<ObjectId>, then: Then) -> Option<Lead> {
        if !self.logs() {
            then(true);
            return None;
        }
        let (missed, part) = self.join(object);
        match part {
            Part::Nothing => tell(self.clone(), true, missed, then),
            Part::Lead => return Some(Lead(Some(Leading { zil: self.clone(), missed, then }))),
            Part::Follow(batch) => {
                let zil = self.clone();
                batch.then(Box::new(move |safe| tell(zil, safe, missed, then)));
            }
        }
        None
    }

    /// Joins the next batch. Returns the last txg with changes that the log cannot have.
    fn join(&self, object: Option<ObjectId>) -> (Option<Txg>, Part) {
        self.stats.commit_count.add(1);
        let mut pending = self.pending.lock();
        let joined = (pending.missed(object), pending.join(object));
        if pending.are_all_there() {
            self.joined.notify_one();
        }
        joined
    }

    /// Returns the txg that a commit has to wait for after its batch, if there is one.
    fn waits_for(&self, safe: bool, missed: Option<Txg>) -> Option<Txg> {
        if !safe {
            self.stats.commit_error_count.add(1);
        }
        Some(self.owed().max(missed.unwrap_or(Txg(0)))).filter(|owed| *owed > self.device.synced())
    }

    /// Writes the next batch once the previous one is finished. Returns true if it is safe.
    fn lead(&self) -> bool {
        let chain = self.chain.lock();
        self.gather(&chain);
        let Taken { itxs, batch, waiters } = self.pending.lock().take();
        let mut closed = Closed { zil: self, chain, batch: Ending { batch, safe: false } };
        self.stats.commit_writer_count.add(1);
        // the expected number of committers decays when fewer come back
        closed.chain.crowd = waiters.max(closed.chain.crowd - closed.chain.crowd.div_ceil(8));
        let bulk = self.bulk(&itxs);
        let prepared = if bulk.is_none() { self.prepare(&mut closed.chain, itxs) } else { Ok(None) };
        closed.batch.safe = match (prepared, bulk) {
            (Ok(Some(flight)), _) => self.fly(&mut closed.chain, flight).is_ok(),
            (Ok(None), None) => true,
            (Ok(None), Some(txg)) => {
                self.stats.commit_stall_count.add(1);
                self.await_txg(&mut closed.chain, txg);
                true
            }
            (Err(_), _) => {
                self.stall(&mut closed.chain);
                true
            }
        };
        closed.batch.safe
    }

    /// Returns the last txg of records that are not logged, as there is so much of them that its end is as near. A log device is for those who do not
    /// wait for the other devices.
    fn bulk(&self, itxs: &[(Txg, Itx)]) -> Option<Txg> {
        let synced = self.device.synced();
        let left = itxs.iter().filter(|(txg, _)| *txg > synced);
        let bytes: u64 = left.clone().map(|(_, itx)| itx.bytes()).sum();
        let is_bulk = bytes >= BULK && bytes >= self.device.dirty() / 2 && !self.device.places().slog;
        left.map(|(txg, _)| *txg).max().filter(|_| is_bulk)
    }

    /// If many commit at a time, waits briefly for those whose last batch has just finished and who will commit again.
    fn gather(&self, chain: &Chain) {
        let clock = self.device.env();
        if chain.crowd < 2 || clock.is_seeded() {
            return;
        }
        let percent = u32::try_from(tunable::ZFS_COMMIT_TIMEOUT_PCT.get().min(PERCENT_MAX)).unwrap_or(0);
        let until = clock.instant() + chain.latency * percent / 100;
        let mut pending = self.pending.lock();
        pending.expect(Some(chain.crowd));
        while !pending.has_waiting(chain.crowd) && !self.joined.wait_until(&mut pending, until).timed_out() {}
        pending.expect(None);
    }

    /// Waits for the txg of records that could not be logged, before the next batch tries (OpenZFS: `zil_commit_writer_stall`).
    fn stall(&self, chain: &mut Chain) {
        let why = if chain.closed || self.device.is_suspended() {
            &self.stats.commit_suspend_count
        } else {
            &self.stats.commit_stall_count
        };
        why.add(1);
        self.await_txg(chain, self.device.newest());
    }

    /// Waits for a txg whose changes are not in the log. If it does not get to disk, later changes must not be in the log without them.
    fn await_txg(&self, chain: &mut Chain, txg: Txg) {
        self.owe(txg);
        if self.device.wait_synced(txg).is_err() {
            // who waits is told
            self.end(chain);
        }
    }
}
