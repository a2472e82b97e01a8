//! Commits: leaders and followers.
//!
//! One batch is in flight at a time. Its leader holds the chain until it is finished, however long that takes; all callers that
//! arrive meanwhile join the next one. (Starting the next batch earlier gains nothing: it is not safe before the previous one is,
//! and a device does one flush at a time.)

use std::sync::Arc;

use base::{ObjectId, Txg, tunable};
use parking_lot::MutexGuard;

use super::Zil;
use super::chain::Chain;
use super::pending::{Batch, Part, Taken};
use crate::Error;

/// A batch that is closed but not finished.
struct Closed<'a> {
    zil: &'a Zil,
    chain: MutexGuard<'a, Chain>,
    batch: Arc<Batch>,
    /// True if its records are in the log, or no longer needed there.
    safe: bool,
}

impl Drop for Closed<'_> {
    /// Ends the batch on every path. If it is not safe, the state of the devices is unknown: nothing more is written to this
    /// chain, and its txg is owed.
    fn drop(&mut self) {
        if !self.safe {
            self.zil.end(&mut self.chain);
            // all changes are in the open txg or in earlier ones
            self.zil.owe(self.zil.device.newest());
        }
        self.zil.pending.lock().over();
        self.batch.end(self.safe);
    }
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
        self.stats.commit_count.add(1);
        let (missed, part) = {
            let mut pending = self.pending.lock();
            (pending.missed(object), pending.join(object))
        };
        let safe = match part {
            Part::Nothing => true,
            Part::Lead => self.lead(),
            Part::Follow(batch) => {
                self.joined.notify_one();
                batch.wait()
            }
        };
        if !safe {
            self.stats.commit_error_count.add(1);
        }
        let owed = self.owed().max(missed.unwrap_or(Txg(0)));
        if owed <= self.device.synced() {
            return Ok(());
        }
        self.device.wait_synced(owed).inspect_err(|_| self.stats.commit_crash_count.add(1))
    }

    /// Writes the next batch once the previous one is finished. Returns true if it is safe.
    fn lead(&self) -> bool {
        let chain = self.chain.lock();
        self.gather(&chain);
        let Taken { itxs, batch, waiters } = self.pending.lock().take();
        let mut closed = Closed { zil: self, chain, batch, safe: false };
        self.stats.commit_writer_count.add(1);
        // the expected number of committers decays when fewer come back
        closed.chain.crowd = waiters.max(closed.chain.crowd - closed.chain.crowd.div_ceil(8));
        closed.safe = match self.prepare(&mut closed.chain, itxs) {
            Ok(Some(flight)) => self.fly(&mut closed.chain, flight).is_ok(),
            Ok(None) => true,
            Err(_) => {
                self.stall(&closed.chain);
                true
            }
        };
        closed.safe
    }

    /// If many commit at a time, waits briefly for those whose last batch has just finished and who will commit again.
    fn gather(&self, chain: &Chain) {
        let clock = self.device.env();
        if chain.crowd < 2 || clock.is_seeded() {
            return;
        }
        let percent = u32::try_from(tunable::ZFS_COMMIT_TIMEOUT_PCT.get().min(100)).unwrap_or(0);
        let until = clock.instant() + chain.latency * percent / 100;
        let mut pending = self.pending.lock();
        while pending.waiting() < chain.crowd && !self.joined.wait_until(&mut pending, until).timed_out() {}
    }

    /// Waits for the txg of records that could not be logged, before the next batch tries (OpenZFS: `zil_commit_writer_stall`).
    fn stall(&self, chain: &Chain) {
        let why = if chain.closed || self.device.is_suspended() {
            &self.stats.commit_suspend_count
        } else {
            &self.stats.commit_stall_count
        };
        why.add(1);
        let txg = self.device.newest();
        self.owe(txg);
        let _told_to_who_waits = self.device.wait_synced(txg);
    }
}
