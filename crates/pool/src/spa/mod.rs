//! A pool open for writing: its txgs, its space, its configuration.
//!
//! # What it is
//! A [`Spa`] owns a pool: its devices are locked, one thread syncs its txgs, and every change goes through it. It is made by
//! [`Spa::create`] and [`Spa::import`], and ends with [`Spa::export`], or with [`Spa::close`], which leaves the pool marked as in use.
//!
//! # The few ideas
//! * **Readers have views.** [`Spa::view`] is a [`Pool`]: the pool as its last synced txg left it. It carries over what earlier views read of
//!   the MOS, as far as that did not change (`mos::known`). A view answers everything that a pool opened read-only does, and as long as there
//!   is space nothing that it leads to is overwritten. Live object sets, which include dirty data, come from [`Spa::objset`].
//! * **Changes of the MOS are made by one thread.** A [sync task](Spa::sync_task) runs between the sync of the datasets and that of the
//!   MOS; all of it is in the txg, or nothing. It checks first, and changes only when nothing but the devices can fail any more.
//! * **A sync runs in passes until nothing is dirty.** Writing the MOS allocates and frees, which changes space maps, which are in the MOS.
//!   It converges because a block born in this txg is rewritten in place from pass 2 on, and nothing is compressed from pass 8 on.
//! * **Reads heal.** A copy that a read found damaged is rewritten at the beginning of a txg, if the last synced state still has the block.
//! * **Long work runs in the background.** A [`zthr`] works in slices, each within a txg, while users' operations go on.
//! * **Devices that are gone suspend the pool.** The sync waits for them where it is ([`FailMode`], `suspend`). Any other error in a sync ends
//!   it: the state on disk stays the last synced txg, and every waiting caller gets the error.
//!
//! # The layer above
//! The engine knows of the datasets only what it calls through [`Datasets`](datasets::Datasets): to make the first ones, to claim their logs at an
//! import, to sync those that are dirty. Their state hangs on the [`Spa`] and is `dsl`'s alone.
//!
//! # Lock order
//! `open_datasets` → `config` → the locks of `space` and `zio`. None is held over I/O except by the sync thread, which alone takes `config` for
//! long.
//!
//! # A crash
//! The uberblock is written last, behind a flush of everything that it leads to. Before it is on disk the pool is that of the txg before,
//! none of whose blocks has been overwritten: blocks freed in a txg are reused two txgs later at the earliest, even if another process
//! opens the pool in between.
//!
//! OpenZFS: `spa.c`, `txg.c`, `dsl_synctask.c`, `spa_config.c`.

mod attach;
mod background;
pub(crate) mod bpobj;
pub mod brt;
pub mod check;
mod checkpoint;
mod close;
pub(crate) mod config;
pub(crate) mod create;
pub(crate) mod datasets;
pub mod dbgmsg;
pub mod ddt;
mod detach;
mod devices;
mod dtl;
pub(crate) mod errlog;
pub mod events;
mod expand;
pub mod feature;
pub(crate) mod frees;
mod heal;
pub(crate) mod history;
mod import;
mod kstat;
mod leaf_work;
pub(crate) mod metaslab;
pub(crate) mod mos;
mod multihost;
mod offline;
pub(crate) mod open;
mod pool;
mod pool_name;
pub mod prop;
mod props;
mod readers;
mod reguid;
mod remove_vdev;
mod scan;
mod spares;
mod surgery;
mod suspend;
mod sync;
mod task;
mod thresholds;
mod txg;
mod vdev_prop;
mod vdevs;
mod watch;
pub(crate) mod zthr;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use ::space::{Class, DEFER_TXGS};
use base::{Env, Guid, ObjectId, Txg};
use dmu::{Objset, Tx, TxObjects, UsedBy};
use ondisk::Uberblock;
use parking_lot::{Mutex, RwLock};
use vdev::{TreeRef, VdevTree};
use zio::Zio;

use crate::Error;
use crate::dsl::DslPool;
use crate::spa::brt::LiveClones;
use crate::spa::ddt::LiveTables;
use crate::spa::mos::Mos;
use crate::spa::mos::known::Carried;

pub use background::Activity;
pub use bpobj::{Bpobj, Space};
pub use create::{CreateOptions, Populate};
pub use devices::OpenDevice;
pub use errlog::ErrorEntry;
pub use feature::FeatureState;
pub use history::HistoryRecord;
pub use import::ImportOptions;
pub use kstat::{Kstat, KstatData};
pub use leaf_work::{LeafCommand, LeafOptions, LeafProgress, LeafWork, LeafWorkState, StoredWork};
pub use metaslab::alloc::PoolSpace;
pub use metaslab::stats::{ClassSpace, SpaceStats};
pub use metaslab::vdev_stats::VdevSpace;
pub use metaslab::{AllocClass, MetaslabInfo};
pub use open::{AllocBias, LoadErrors, LoadPolicy, OpenOptions};
pub use pool::{LoadInfo, Pool};
pub use pool_name::{BadPoolName, check_new_pool_name, check_pool_name};
pub use prop::{PropValue, Source, Value};
pub(crate) use props::write::check_prop_room;
pub use readers::{HeldElsewhere, Readers};
pub use scan::{Nearest, ScanEnd, ScanFigures, ScrubCursor, ScrubRange, ScrubRefusal, ScrubResult, Target};
pub use suspend::{FailMode, SuspendWatch, SuspendedPool, SuspendedVdev};
pub use task::TaskCx;
pub use txg::{DmuTxStats, TxgRecord, TxgState, Txgs};
pub(crate) use txg::{Limits, Reservation};
pub use vdev_prop::VdevProps;
pub use vdevs::VdevRefusal;
pub(crate) use watch::Suspended;
pub use watch::{KeptObject, PropsWatch, Suspend};

/// Takes a pool that is being opened.
pub type Starts = dyn Fn(&Arc<Spa>) + Send + Sync;

/// The services that the layers above provide to a pool open for writing.
#[derive(Clone)]
pub struct Hooks {
    /// Clock and randomness.
    pub env: Env,
    /// Finds the owner of an object, for space accounting by user, group and project.
    pub used_by: Option<Arc<dyn UsedBy + Send + Sync>>,
    /// The long holds of other processes.
    pub held_elsewhere: Option<Arc<dyn HeldElsewhere>>,
    /// The readers in other processes, which read the pool from its devices.
    pub readers: Option<Arc<dyn Readers>>,
    /// Opens a device that was gone again, by its path.
    pub open_device: Arc<OpenDevice>,
    /// True if devices that go do not come back: a pool that cannot be written fails for good, instead of being suspended.
    pub never_suspends: bool,
    /// Is told when a pool is suspended, and may ask for it to be cleared.
    pub suspend_watch: Option<Arc<dyn SuspendWatch>>,
    /// Ends the process, with a message: a pool failed whose `failmode` is `panic`.
    pub panic: Arc<dyn Fn(&str) + Send + Sync>,
    /// Called with the pool's guid when a txg is on disk.
    pub synced: Option<Arc<dyn Fn(Guid, Txg) + Send + Sync>>,
    /// Called with a pool that is being opened, before it can be suspended: whoever is to clear it or give it up then does not get it otherwise.
    pub starts: Option<Arc<Starts>>,
}

impl Default for Hooks {
    fn default() -> Self {
        Hooks {
            env: Env::system(),
            used_by: None,
            held_elsewhere: None,
            readers: None,
            open_device: Arc::new(devices::open_named),
            never_suspends: false,
            suspend_watch: None,
            panic: Arc::new(|message| {
                eprintln!("panic: {message}");
                std::process::abort();
            }),
            synced: None,
            starts: None,
        }
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").field("env", &self.env).finish_non_exhaustive()
    }
}

/// A pool that is open for writing (OpenZFS: `spa_t`).
pub struct Spa {
    /// Handed to the pool's views.
    this: Weak<Spa>,
    name: String,
    guid: Guid,
    hooks: Hooks,
    zio: Arc<Zio>,
    mos: Arc<Objset>,
    space: Arc<PoolSpace>,
    txgs: Arc<Txgs>,
    pub(crate) config: Mutex<config::Config>,
    uberblock: Mutex<Uberblock>,
    /// The vdevs of that txg, for views; changed while `uberblock` is locked.
    synced_tree: Mutex<Arc<VdevTree>>,
    /// Its datasets.
    pub(crate) dsl: DslPool,
    tasks: task::Tasks,
    pub(crate) frees: frees::Frees,
    watches: watch::Watches,
    /// Tasks that run in the background.
    pub(crate) background: background::Background,
    pub(crate) scanner: scan::Scanner,
    leaf_works: leaf_work::LeafWorks,
    autotrim: leaf_work::Autotrim,
    /// Deduplicated blocks.
    pub(crate) dedup: Arc<LiveTables>,
    /// When the time of a txg was last noted.
    times: scan::LastNoted,
    recorded_miscounts: mos::miscount::Recorded,
    /// Cloned blocks.
    pub(crate) clones: Arc<LiveClones>,
    /// The largest sector size, as base-2 logarithm, and the worst-case inflation of a byte: see [`worst_case`].
    worst: RwLock<(u32, u64)>,
    /// Held while vdevs are added or removed: one change at a time (OpenZFS: `spa_vdev_enter`).
    vdev_change: Mutex<()>,
    /// Growth of the MOS itself that is not yet booked.
    mos_delta: Mutex<bpobj::Delta>,
    view: RwLock<Option<Arc<Pool>>>,
    /// What views know of the MOS; changed before `uberblock` is.
    carried: Arc<Carried>,
    /// The objects of the MOS that the txg being synced has written.
    changed: Mutex<BTreeSet<ObjectId>>,
    views: readers::Views,
    view_base: import::ViewBase,
    /// The pass of the sync that runs.
    pub(crate) pass: AtomicU64,
    /// Number of changes that the next task may make before it is made to fail, for tests; [`u64::MAX`] for no limit.
    task_fault: AtomicU64,
    /// True if headers of gang blocks may be large from the next txgs on.
    large_gang_headers: AtomicBool,
    multihost: Arc<multihost::Multihost>,
    recorded: devices::Recorded,
    pub(crate) suspension: suspend::Suspension,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The parts that a pool is assembled from.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) guid: Guid,
    pub(crate) hooks: Hooks,
    pub(crate) zio: Arc<Zio>,
    pub(crate) mos: Arc<Objset>,
    pub(crate) space: Arc<PoolSpace>,
    /// The last synced txg; the next one follows it.
    pub(crate) last: Txg,
    pub(crate) config: config::Config,
    pub(crate) uberblock: Uberblock,
    pub(crate) view: Option<Arc<Pool>>,
    pub(crate) view_base: import::ViewBase,
    pub(crate) carried: Arc<Carried>,
}

impl Spa {
    /// Assembles the pool; none of its threads runs yet.
    pub(crate) fn assemble(parts: Parts) -> Result<Arc<Spa>, Error> {
        let Parts { name, guid, hooks, zio, mos, space, last, config, uberblock, view, view_base, carried } = parts;
        let dedup = Arc::new(LiveTables::open(mos.clone())?);
        let clones = Arc::new(LiveClones::open(mos.clone())?);
        zio.set_dedup(dedup.clone());
        zio.set_clones(clones.clone());
        let synced_tree = Arc::clone(&zio.tree());
        Ok(Arc::new_cyclic(|this| Spa {
            this: this.clone(),
            name,
            guid,
            worst: RwLock::new(worst_case(&zio.tree())),
            times: scan::LastNoted::default(),
            recorded_miscounts: Default::default(),
            multihost: multihost::Multihost::new(zio.live_tree().clone(), hooks.env.clone()),
            hooks,
            zio,
            mos,
            space,
            txgs: Txgs::new(last),
            config: Mutex::new(config),
            uberblock: Mutex::new(uberblock),
            synced_tree: Mutex::new(synced_tree),
            dsl: DslPool::default(),
            tasks: Default::default(),
            frees: Default::default(),
            watches: Default::default(),
            background: Default::default(),
            scanner: Default::default(),
            leaf_works: Default::default(),
            autotrim: Default::default(),
            dedup,
            clones,
            vdev_change: Mutex::new(()),
            mos_delta: Default::default(),
            view: RwLock::new(view),
            carried,
            changed: Mutex::default(),
            views: Default::default(),
            view_base,
            pass: Default::default(),
            task_fault: AtomicU64::new(u64::MAX),
            large_gang_headers: Default::default(),
            recorded: Default::default(),
            suspension: Default::default(),
            thread: Mutex::new(None),
        }))
    }

    /// A handle that does not keep the pool open.
    pub(crate) fn weak(&self) -> Weak<Spa> {
        self.this.clone()
    }

    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pool's guid, as it was opened: see [`Spa::change_guid`].
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.guid
    }

    /// The I/O pipeline that reads and writes the pool's blocks.
    #[must_use]
    pub fn zio(&self) -> &Arc<Zio> {
        &self.zio
    }

    /// The current vdev tree, for one operation.
    #[must_use]
    pub fn tree(&self) -> TreeRef {
        self.zio.tree()
    }

    /// The transaction groups.
    #[must_use]
    pub fn txgs(&self) -> &Arc<Txgs> {
        &self.txgs
    }

    /// The allocator.
    #[must_use]
    pub fn space(&self) -> &Arc<PoolSpace> {
        &self.space
    }

    /// Clock and randomness.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.hooks.env
    }

    /// Returns whether the owners of file systems' objects can be found.
    pub(crate) fn hooks_used_by(&self) -> bool {
        self.hooks.used_by.is_some()
    }

    pub(crate) fn held_elsewhere(&self) -> Option<&dyn HeldElsewhere> {
        self.hooks.held_elsewhere.as_deref()
    }

    /// The uberblock of the last synced txg.
    #[must_use]
    pub fn uberblock(&self) -> Uberblock {
        self.uberblock.lock().clone()
    }

    /// The uberblock of the last synced txg, and the vdevs of that txg.
    fn synced(&self) -> (Uberblock, Arc<VdevTree>) {
        let uberblock = self.uberblock.lock();
        let tree = self.synced_tree.lock().clone();
        (uberblock.clone(), tree)
    }

    /// The MOS as it is now, unsynced changes included.
    pub(crate) fn live_mos(&self) -> Result<Mos, Error> {
        Mos::open(self.mos.clone())
    }

    /// Begins a transaction in the open txg for changes that dirty about `bytes` bytes. May wait when much is dirty.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if less than that is free, [`Error::Suspended`].
    pub fn tx(&self, bytes: u64) -> Result<Tx, Error> {
        self.reserve(Reservation { bytes, objects: TxObjects::all(), ..Reservation::default() }, false)
    }

    /// As [`Spa::tx`], for changes that free more than they allocate: they may use half of the slop space (OpenZFS: `dmu_tx_mark_netfree`).
    ///
    /// # Errors
    /// As [`Spa::tx`].
    pub fn tx_netfree(&self, bytes: u64) -> Result<Tx, Error> {
        self.reserve(Reservation { bytes, objects: TxObjects::all(), ..Reservation::default() }, true)
    }

    /// Begins a transaction that changes nothing: its txg is not synced while it is held, and no block of the views before it is reused.
    ///
    /// # Errors
    /// [`Error::Suspended`].
    pub fn tx_still(&self) -> Result<Tx, Error> {
        self.reserve(Reservation::default(), true)
    }

    /// Refuses transactions that the pool has no room for. Changes that are not yet on disk count at their worst case, so a refusal may be
    /// too early: then everything is written first, which makes the figures exact. What one transaction takes beyond them is covered by
    /// slop space.
    pub(crate) fn reserve(&self, reservation: Reservation, netfree: bool) -> Result<Tx, Error> {
        let (sector, inflation) = *self.worst.read();
        let reservation = || Reservation { bytes: reservation.bytes.max(1 << sector), ..reservation.clone() };
        let free = || self.space.available(netfree);
        let worst = |pending: u64| free() >= pending.saturating_mul(inflation);
        if let Some(tx) = self.txgs.assign_if(reservation(), &worst)? {
            return Ok(tx);
        }
        if self.txgs.reserved() > 0 {
            self.sync()?;
        }
        let enough = |pending: u64| free() >= pending.saturating_mul(ALONE);
        for _ in 0..=DEFER_TXGS {
            if let Some(tx) = self.txgs.assign_if(reservation(), &enough)? {
                return Ok(tx);
            }
            // blocks freed just now are allocated again some txgs later (OpenZFS: `dsl_dir_tempreserve_impl` waits for them as well)
            let soon = free().saturating_add(self.space.figures(Class::Normal).ddeferred);
            if soon < reservation().bytes.saturating_mul(ALONE) {
                break;
            }
            self.space.press();
            self.sync()?;
        }
        self.txgs.stats.no_space.add(1);
        Err(Error::NoSpace)
    }

    /// Waits until all earlier changes are on disk.
    ///
    /// # Errors
    /// [`Error::Suspended`].
    pub fn sync(&self) -> Result<(), Error> {
        self.txgs.wait_synced(self.txgs.open())
    }

    /// Waits until the sync thread is between two txgs: it then holds no handle on the pool, whose devices are closed when the last handle
    /// drops.
    pub fn wait_idle(&self) {
        self.txgs.wait_idle();
    }

    /// Waits until txg `txg` is on disk.
    ///
    /// # Errors
    /// [`Error::Suspended`].
    pub fn wait_synced(&self, txg: Txg) -> Result<(), Error> {
        self.txgs.wait_synced(txg)
    }
}

/// The most copies of a block.
pub(crate) const COPIES_MAX: u64 = 3;
/// The least inflation of a byte on disk for this check: the indirect blocks above it, and their copies.
const INFLATION_MIN: u64 = 6;

/// The largest sector size (as base-2 logarithm), and the worst-case inflation of a byte on disk: three copies, each with as much parity as
/// the smallest block has. OpenZFS uses 24 everywhere (`spa_asize_inflation`).
pub(crate) fn worst_case(tree: &VdevTree) -> (u32, u64) {
    let of = |top: &vdev::TopVdev| {
        let sector = 1u64 << top.ashift();
        COPIES_MAX * top.deflated(top.psize_to_asize(sector)).div_ceil(sector)
    };
    let tops = || tree.tops().iter().filter(|top| top.is_concrete());
    let ashift = tops().map(vdev::TopVdev::ashift).max().unwrap_or(9);
    (ashift, tops().map(of).max().unwrap_or(0).max(INFLATION_MIN))
}

/// The inflation assumed for the single transaction that takes the last space of a full pool: slop space covers the rest.
const ALONE: u64 = 2;

impl std::fmt::Debug for Spa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pool {} ({}), {:?}", self.name, self.guid, self.txgs)
    }
}
