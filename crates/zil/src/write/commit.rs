//! Commits: who leads and who follows.
//!
//! One batch is on its way at a time. Its leader has the chain to himself until it is over, however long that takes; all who come meanwhile are in
//! the next one. (To begin that earlier brings nothing: it is not safe before the one in front of it is, and a device flushes once at a time.)

use std::sync::Arc;

use base::{Txg, tunable};
use parking_lot::MutexGuard;

use super::Zil;
use super::chain::Chain;
use super::pending::{Batch, Part, Taken};
use crate::Error;

/// A batch that is closed and not over.
struct Closed<'a> {
    zil: &'a Zil,
    chain: MutexGuard<'a, Chain>,
    batch: Arc<Batch>,
    /// Whether its records are in the log, or no more needed there.
    safe: bool,
}

impl Drop for Closed<'_> {
    /// However it comes to its end: if it is not safe, nobody knows what is on the devices. Then nothing is written behind it, and its txg is waited
    /// for.
    fn drop(&mut self) {
        if !self.safe {
            self.zil.end(&mut self.chain);
            self.zil.owe(self.zil.now());
        }
        self.zil.pending.lock().over();
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

    /// Writes the next batch, when the one before is over. Whether it is in the log.
    fn lead(&self) -> bool {
        let chain = self.chain.lock();
        self.gather(&chain);
        let Taken { itxs, batch, waiters } = self.pending.lock().take();
        let mut closed = Closed { zil: self, chain, batch, safe: false };
        self.stats.commit_writer_count.add(1);
        // one who stays away is not missed for long
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

    /// Where many commit at a time, waits a little for those who have just been told of the last batch and will be back.
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
}
