//! Commits: who leads and who follows, and in which order batches become safe.
//!
//! A leader has the chain to himself while what he takes gets its place in it, and gives it back before his blocks go to the devices: so the
//! next batch need not wait for one that takes long. (It waits for as long as is usual: to write all at once would make blocks many and small,
//! and costs more than it gains where all come back together.) Each flushes for itself; but none is over, and nobody who waits for it is told,
//! before the ones before it are: the chain is whole up to whatever was promised. A batch behind one that failed has failed, too, for no
//! reader will come that far.

use std::sync::Arc;

use base::{Txg, tunable};

use super::Zil;
use super::chain::{Chain, Flight};
use super::pending::{Batch, Part, Taken};
use crate::Error;

/// A batch that is closed and not over. However it comes to its end, the ones before it are over first; if its records are not in the log
/// then, their txg is waited for.
struct Closed<'a> {
    zil: &'a Zil,
    batch: Arc<Batch>,
    before: Option<Arc<Batch>>,
    waiters: usize,
    /// Whether its records are in the log, or no more needed there.
    safe: bool,
}

impl Closed<'_> {
    /// Waits for the ones before.
    fn its_turn(&mut self) {
        if let Some(before) = self.before.take() {
            before.wait();
        }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.its_turn();
        if !self.safe {
            self.zil.owe(self.zil.now());
        }
        let now = self.zil.device.env().instant();
        self.zil.pending.lock().over(&self.batch, self.waiters, now);
        // a leader may have waited for it
        self.zil.joined.notify_one();
        self.batch.end(self.safe);
    }
}

impl Zil {
    /// Waits until all changes of `object`, and all that do not wait for a commit of their object, are on stable storage; with `None` all
    /// changes. The caller must hold neither a place in a txg nor a lock that a [`WriteSource`](super::WriteSource) takes.
    ///
    /// # Errors
    /// When the pool is suspended: neither the log nor a txg could be written.
    pub fn commit(&self, object: Option<u64>) -> Result<(), Error> {
        if !self.logs() {
            return Ok(());
        }
        self.stats.commit_count.add(1);
        let part = self.pending.lock().join(object);
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
        let owed = self.owed();
        if owed <= self.device.synced() {
            return Ok(());
        }
        self.device.wait_synced(owed).inspect_err(|_| self.stats.commit_crash_count.add(1))
    }

    /// Writes the next batch. Whether it is in the log.
    fn lead(&self) -> bool {
        let (mut closed, flight) = {
            let mut chain = self.chain.lock();
            self.gather();
            let Taken { itxs, batch, before, waiters } = self.pending.lock().take(self.device.env().instant());
            let closed = Closed { zil: self, batch, before, waiters, safe: false };
            self.stats.commit_writer_count.add(1);
            let flight = self.prepare(&mut chain, itxs).unwrap_or_else(|_| {
                self.stall(&chain);
                None
            });
            (closed, flight)
        };
        closed.safe = match flight {
            Some(flight) => self.fly(flight, &mut closed),
            None => true,
        };
        closed.safe
    }

    /// Where many commit at a time, waits a little for others to join.
    fn gather(&self) {
        let clock = self.device.env();
        if clock.is_seeded() {
            return;
        }
        let percent = u32::try_from(tunable::ZFS_COMMIT_TIMEOUT_PCT.get().min(100)).unwrap_or(0);
        let since = clock.instant();
        let mut pending = self.pending.lock();
        while let Some(until) = pending.patience(since, percent).filter(|until| *until > clock.instant()) {
            self.joined.wait_until(&mut pending, until);
        }
    }

    /// Brings a batch to stable storage, and tells whether the chain leads to it. Where it does not, nobody knows what is on the devices.
    fn fly(&self, mut flight: Flight, closed: &mut Closed<'_>) -> bool {
        let clock = self.device.env();
        let started = clock.instant();
        let worked = self.write_out(&mut flight).is_ok();
        if worked {
            self.pending.lock().took(started.elapsed());
        }
        closed.its_turn();
        self.lwbs.lock().landed(flight.batch, worked)
    }

    /// What was to be logged is waited for with its txg, before the next batch tries (OpenZFS: `zil_commit_writer_stall`).
    fn stall(&self, chain: &Chain) {
        let why = if chain.closed { &self.stats.commit_suspend_count } else { &self.stats.commit_stall_count };
        why.add(1);
        let txg = self.now();
        self.owe(txg);
        let _told_to_who_waits = self.device.wait_synced(txg);
    }

    /// The open txg: all that was changed is in it, or in earlier ones.
    fn now(&self) -> Txg {
        // nobody can get a place only if nothing is ever synced again: waiting tells
        self.device.open().map_or(Txg(u64::MAX), |tx| tx.txg())
    }

    /// Ends the chain: the next txg frees it, and no other begins. Waits for commits that are under way. Commits then wait for txgs.
    pub fn close(&self) {
        let mut chain = self.chain.lock();
        chain.close();
        let last = self.pending.lock().last();
        if let Some(last) = last {
            last.wait();
        }
        self.lwbs.lock().end();
    }
}
