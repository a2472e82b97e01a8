//! Writing the log.
//!
//! # The few ideas
//! * **A change is a record in memory first** ([`Zil::assign`]), in the list of its txg. A record that changes one object only
//!   may wait in a list of that object until a commit of the object. Most records are never written: their txg is on disk before
//!   any commit.
//! * **One leader commits for many** (`commit`). The first caller leads: it waits until the previous batch is finished, and then
//!   writes the records of all callers that arrived meanwhile, in one batch of blocks with one flush. The others follow: they
//!   sleep until that batch is finished ([`Zil::commit`]), or leave what is to be called then ([`Zil::commit_then`]).
//! * **The next block is allocated before it is needed**, and its size predicted (`bursts`), because its address is part of the
//!   block before. All blocks of a batch are therefore known before one is written, and are written to the devices together.
//! * **If the log fails, a txg takes its place.** The txg of any change that could not be logged is noted as *owed*: commits return
//!   when that txg is on disk. A change for which there is no record is *missed*: commits of its object return when its txg is on disk.
//! * **A synced txg cleans up** (`lwb`): its records are dropped, blocks that hold no younger records are freed, and the header
//!   then points to the first of the remaining blocks.
//!
//! # On disk
//! Chain blocks in the layout of `zilog2`, of which only the used part is written; the header in the object set. The first block
//! of a chain is empty when a txg brings the header to disk; the last one is always empty.
//!
//! # A crash
//! A crash leaves a chain that ends at the first block that was never, or not completely, written. All records whose commit
//! returned are before that point; after it there may be complete blocks of the same batch, which are unreachable and belong to
//! no commit that returned. Blocks that are younger than the last txg on disk are free in its space maps: a claim allocates them.
//!
//! # Locks
//! The chain lock (one leader at a time, held over its I/O) → the lock of the pending records, and the lock of the blocks. The
//! latter two are held briefly and never together. The sync thread takes only the latter two, and so never waits for a commit.
//!
//! OpenZFS: `zil.c`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use base::{ObjectId, Txg};
use dmu::Tx;
use parking_lot::{Condvar, Mutex, RwLock};

mod bursts;
mod chain;
mod commit;
mod device;
mod fill;
mod itx;
mod lwb;
mod pending;
mod policy;
mod source;
mod stats;
#[cfg(test)]
mod tests;

pub use commit::Lead;
pub use device::{LogDevice, Placed};
pub use itx::{Itx, ItxData};
pub use lwb::SyncedLog;
pub use pending::Then;
pub use policy::{LogBias, LogPlaces, SyncMode, WriteState, ZilPolicy};
pub use source::{BlockGot, Got, WriteSource};
pub use stats::{PlaceStats, ZilStats};

use chain::Chain;
use lwb::Lwbs;
use pending::Pending;

/// The log of one dataset that is open for writing (OpenZFS: `zilog_t`).
pub struct Zil {
    device: Arc<dyn LogDevice>,
    stats: Arc<ZilStats>,
    pending: Mutex<Pending>,
    /// Notified when the callers that a leader waits for have joined its batch.
    joined: Condvar,
    chain: Mutex<Chain>,
    lwbs: Mutex<Lwbs>,
    /// The txg that must be on disk before a commit returns: it holds changes that could not be logged.
    owed: AtomicU64,
    source: RwLock<Option<Weak<dyn WriteSource>>>,
    policy: RwLock<ZilPolicy>,
    replaying: AtomicBool,
    max_block: u64,
}

impl Zil {
    /// Creates the log of the dataset that `device` writes for.
    #[must_use]
    pub fn new(device: Arc<dyn LogDevice>, stats: Arc<ZilStats>) -> Arc<Zil> {
        let max_block = policy::max_block_size();
        Arc::new(Zil {
            device,
            stats,
            pending: Mutex::default(),
            joined: Condvar::new(),
            chain: Mutex::new(Chain::new(max_block)),
            lwbs: Mutex::default(),
            owed: AtomicU64::new(0),
            source: RwLock::new(None),
            policy: RwLock::default(),
            replaying: AtomicBool::new(false),
            max_block,
        })
    }

    /// Adds the record of a change that is made in `tx`. Must be called while the lock that orders the changes is still held.
    /// Does no I/O.
    pub fn assign(&self, tx: &Tx, itx: Itx) {
        if !self.logs() {
            return;
        }
        if itx.is_sound() && itx.record.len() as u64 <= self.max_record() {
            self.pending.lock().push(tx.txg(), itx);
        } else {
            self.owe(tx.txg());
        }
    }

    /// Notes that a change of `object` in the txg of `tx` cannot be logged: a commit of the object, or of all, waits for that txg.
    pub fn miss(&self, tx: &Tx, object: ObjectId) {
        if self.logs() {
            self.pending.lock().miss(tx.txg(), object);
        }
    }

    fn owe(&self, txg: Txg) {
        self.owed.fetch_max(txg.0, Ordering::AcqRel);
    }

    /// The txg that must be on disk before a commit returns.
    fn owed(&self) -> Txg {
        Txg(self.owed.load(Ordering::Acquire))
    }

    /// True if changes are logged: not while the log is replayed, nor with `sync=disabled`.
    #[must_use]
    pub fn logs(&self) -> bool {
        !self.replaying.load(Ordering::Relaxed) && self.policy.read().sync != SyncMode::Disabled
    }

    /// Drops the records that wait for a commit of `object`, which is freed (OpenZFS: `zil_remove_async`).
    pub fn forget(&self, object: ObjectId) {
        self.pending.lock().forget(object);
    }

    /// Sets the source of the data of writes.
    pub fn set_source(&self, source: Weak<dyn WriteSource>) {
        *self.source.write() = Some(source);
    }

    /// Sets the properties. After `sync=disabled` commits wait for the changes that were made under it.
    pub fn set_policy(&self, policy: ZilPolicy) {
        let before = std::mem::replace(&mut *self.policy.write(), policy);
        if before.sync == SyncMode::Disabled && policy.sync != SyncMode::Disabled {
            self.owe(self.device.newest());
        }
    }

    /// The properties.
    #[must_use]
    pub fn policy(&self) -> ZilPolicy {
        *self.policy.read()
    }

    /// Sets whether the dataset's log is being replayed.
    pub fn set_replaying(&self, replaying: bool) {
        self.replaying.store(replaying, Ordering::Relaxed);
    }

    /// True if the pool has log devices.
    #[must_use]
    pub fn has_slog(&self) -> bool {
        self.device.places().slog
    }

    /// The longest record that can be logged, in bytes.
    #[must_use]
    pub fn max_record(&self) -> u64 {
        policy::max_log_data(self.max_block, 0)
    }

    /// Returns how a write of `len` bytes to an object with blocks of `block_size` should be logged; `sync` says that the caller
    /// is going to wait for it.
    #[must_use]
    pub fn write_state(&self, len: u64, block_size: u64, sync: bool) -> WriteState {
        let places = self.device.places();
        policy::write_state(self.policy.read().logbias, places, self.max_block, len, block_size, sync)
    }

    /// True if blocks of a chain are allocated.
    #[must_use]
    pub fn has_chain(&self) -> bool {
        !self.lwbs.lock().is_empty()
    }

    /// True if it holds records that are not on disk, or blocks that are not freed yet.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.pending.lock().is_empty() || self.lwbs.lock().is_busy()
    }

    /// True if it holds records or blocks of a txg after `txg`.
    #[must_use]
    pub fn is_beyond(&self, txg: Txg) -> bool {
        self.pending.lock().is_beyond(txg) || self.lwbs.lock().is_beyond(txg)
    }

    /// Performs the log's part of the sync of `txg`, once per txg and before its object set is written. Returns the blocks to
    /// free, and the header if it changes (OpenZFS: `zil_sync`).
    #[must_use]
    pub fn sync(&self, txg: Txg) -> Option<SyncedLog> {
        self.lwbs.lock().sync(txg)
    }

    /// Drops the records of all txgs up to `synced`, which are on disk (OpenZFS: `zil_clean`).
    pub fn clean(&self, synced: Txg) {
        self.pending.lock().clean(synced);
    }
}

impl std::fmt::Debug for Zil {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "intent log of dataset {}", self.device.objset())
    }
}
