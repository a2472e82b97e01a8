//! Writing the log.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use base::Txg;
use dmu::Tx;
use parking_lot::{Mutex, RwLock};

use crate::Error;

mod device;
mod itx;
mod pending;
mod policy;
mod source;
mod stats;

pub use device::{LogDevice, Placed};
pub use itx::{Itx, ItxData};
pub use policy::{LogBias, LogPlaces, SyncMode, WriteState, ZilPolicy};
pub use source::{BlockGot, Got, WriteSource};
pub use stats::{PlaceStats, ZilStats};

use pending::{Part, Pending};

/// The log of one dataset that is open for writing (OpenZFS: `zilog_t`).
pub struct Zil {
    device: Arc<dyn LogDevice>,
    stats: Arc<ZilStats>,
    pending: Mutex<Pending>,
    source: RwLock<Option<Weak<dyn WriteSource>>>,
    policy: RwLock<ZilPolicy>,
    replaying: AtomicBool,
    max_block: u64,
}

impl Zil {
    /// The log of the dataset that `device` stands for.
    #[must_use]
    pub fn new(device: Arc<dyn LogDevice>, stats: Arc<ZilStats>) -> Arc<Zil> {
        Arc::new(Zil {
            device,
            stats,
            pending: Mutex::default(),
            source: RwLock::new(None),
            policy: RwLock::default(),
            replaying: AtomicBool::new(false),
            max_block: policy::max_block_size(),
        })
    }

    /// Notes a change that is made with `tx`. To be called while what orders the changes is still locked. Does no I/O.
    pub fn assign(&self, tx: &Tx, itx: Itx) {
        if self.logs() && itx.is_sound() {
            self.pending.lock().push(tx.txg(), itx);
        }
    }

    /// Waits until all changes of `object`, and all that do not wait for a commit of their object, are on stable storage; with `None` all
    /// changes. The caller must hold neither a place in a txg nor a lock that a [`WriteSource`] takes.
    ///
    /// # Errors
    /// When the pool is suspended: neither the log nor a txg could be written.
    pub fn commit(&self, object: Option<u64>) -> Result<(), Error> {
        if !self.logs() {
            return Ok(());
        }
        self.stats.commit_count.add(1);
        match self.pending.lock().join(object) {
            Part::Nothing => return Ok(()),
            Part::Follow(_) | Part::Lead => {}
        }
        let open = self.device.open()?.txg();
        self.device.wait_synced(open)
    }

    /// Whether changes are logged: not while the log is replayed, nor with `sync=disabled`.
    #[must_use]
    pub fn logs(&self) -> bool {
        !self.replaying.load(Ordering::Relaxed) && self.policy.read().sync != SyncMode::Disabled
    }

    /// Drops what waits for a commit of `object`, which is freed (OpenZFS: `zil_remove_async`).
    pub fn forget(&self, object: u64) {
        self.pending.lock().forget(object);
    }

    /// Says where the data of writes comes from.
    pub fn set_source(&self, source: Weak<dyn WriteSource>) {
        *self.source.write() = Some(source);
    }

    /// Sets the properties.
    pub fn set_policy(&self, policy: ZilPolicy) {
        *self.policy.write() = policy;
    }

    /// The properties.
    #[must_use]
    pub fn policy(&self) -> ZilPolicy {
        *self.policy.read()
    }

    /// Says whether the dataset's log is being replayed.
    pub fn set_replaying(&self, replaying: bool) {
        self.replaying.store(replaying, Ordering::Relaxed);
    }

    /// Whether the pool has log devices.
    #[must_use]
    pub fn has_slog(&self) -> bool {
        self.device.places().slog
    }

    /// The longest record that can be logged, in bytes.
    #[must_use]
    pub fn max_record(&self) -> u64 {
        policy::max_log_data(self.max_block, 0)
    }

    /// How a write of `len` bytes to an object of blocks of `block_size` should be logged; `sync`: its caller is going to wait for it.
    #[must_use]
    pub fn write_state(&self, len: u64, block_size: u64, sync: bool) -> WriteState {
        let places = self.device.places();
        policy::write_state(self.policy.read().logbias, places, self.max_block, len, block_size, sync)
    }

    /// What is on disk with `synced` needs no log any more.
    pub fn clean(&self, synced: Txg) {
        self.pending.lock().clean(synced);
    }
}

impl std::fmt::Debug for Zil {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "intent log of dataset {}", self.device.objset())
    }
}
