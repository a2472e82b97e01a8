//! Opening a pool for writing, and the views that readers get (OpenZFS: `spa_import`, `spa_load`).

use std::borrow::Borrow;
use std::sync::{Arc, OnceLock};

use base::{Endian, Env, Guid, ObjectId, Txg};
use dmu::Objset;
use ondisk::label::key;
use parking_lot::Mutex;
use vdev::VdevTree;
use vdev::import::Candidate;

use crate::dsl::Names;
use crate::spa::config::{self, Config, PoolState};
use crate::spa::datasets::{Datasets, LostLogs};
use crate::spa::feature::State;
use crate::spa::metaslab::alloc::PoolSpace;
use crate::spa::mos::Mos;
use crate::spa::mos::known::Known;
use crate::spa::multihost;
use crate::spa::open::{self, AllocBias, LoadPolicy};
use crate::spa::pool::StoredConfig;
use crate::spa::{Hooks, Parts, Spa};
use crate::{Error, LoadInfo, OpenOptions, Pool};

/// No pool ever reaches this txg; from here on numbers could overflow.
const TXG_MAX: u64 = 1 << 62;
/// From this version on deadlists are sorted by birth, directories list their clones and destroyed datasets are freed in the background
/// (OpenZFS: `SPA_VERSION_DIR_CLONES`): older pools are read-only.
const VERSION_DIR_CLONES: u64 = 26;

/// The options of an import for writing.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The options that a read-only open has too: another name, a txg to rewind to, a missing log.
    pub open: OpenOptions,
    /// Take the pool although another machine seems to use it (`-f`).
    pub force: bool,
    /// Rewind to an older txg if the newest cannot be used (`-F`).
    pub rewind: bool,
    /// Rewind to any txg that can be used (`-FX`).
    pub extreme: bool,
    /// The name in `open` lasts only while the pool is open: on disk the pool keeps its own (`-t`).
    pub temporary_name: bool,
    /// The pool is open already on this machine, by `zpool`'s record: this is not a new import, but the next command.
    pub again: bool,
}

impl ImportOptions {
    /// Returns the checks that a state must pass before it is imported.
    #[must_use]
    pub fn load_policy(&self) -> LoadPolicy {
        LoadPolicy { rewind: self.rewind || self.open.txg.is_some(), extreme: self.extreme, ..LoadPolicy::default() }
    }
}

/// The data that all views of a pool share.
#[derive(Debug)]
pub(crate) struct ViewBase {
    name: String,
    guid: Guid,
    options: OpenOptions,
    info: LoadInfo,
    load_guid: u64,
    /// The classes of top-level vdevs, and the tree that they are of.
    biases: Mutex<Option<(Arc<VdevTree>, Vec<AllocBias>)>>,
    /// The snapshot `$ORIGIN@$ORIGIN`, once it was found: it stays.
    origin_snap: OnceLock<ObjectId>,
}

impl ViewBase {
    pub(crate) fn new(name: String, guid: Guid, altroot: Option<String>, arc_bytes: u64, env: &Env) -> ViewBase {
        let options = OpenOptions { altroot, arc_bytes, ..OpenOptions::default() };
        ViewBase {
            name,
            guid,
            options,
            info: LoadInfo::default(),
            load_guid: env.random_u64(),
            biases: Mutex::new(None),
            origin_snap: OnceLock::new(),
        }
    }

    fn of(pool: &Pool) -> ViewBase {
        ViewBase {
            name: pool.name.clone(),
            guid: pool.guid,
            options: pool.options.clone(),
            info: pool.load_info.clone(),
            load_guid: pool.load_guid,
            biases: Mutex::new(Some((pool.tree.clone(), pool.biases.clone()))),
            origin_snap: pool.origin_snap_obj.map_or_else(OnceLock::new, OnceLock::from),
        }
    }

    fn origin_snap(&self, view: &Pool) -> Result<Option<ObjectId>, Error> {
        if let Some(id) = self.origin_snap.get() {
            return Ok(Some(*id));
        }
        let found = open::origin_snap(view)?;
        Ok(found.map(|id| *self.origin_snap.get_or_init(|| id)))
    }
}

impl Spa {
    /// Opens the pool of `candidate` for writing. Its devices must have been opened for writing. Unless the pool is open already, the
    /// metadata blocks of its last txgs are verified first; its data blocks too, if a rewind is allowed.
    ///
    /// # Errors
    /// As [`Pool::open`]; when another machine uses the pool; when the pool cannot be written here: it was written in the other byte order,
    /// or uses unknown features.
    pub fn import(candidate: &Candidate, options: &ImportOptions, hooks: Hooks) -> Result<Arc<Spa>, Error> {
        Spa::import_any(candidate, options, hooks)
    }

    /// As [`Spa::import`], of a candidate that nobody else has: a device that goes meanwhile, and is back, can be opened again.
    ///
    /// # Errors
    /// As [`Spa::import`].
    pub fn import_own(candidate: Candidate, options: &ImportOptions, hooks: Hooks) -> Result<Arc<Spa>, Error> {
        Spa::import_any(candidate, options, hooks)
    }

    fn import_any(candidate: impl Borrow<Candidate>, options: &ImportOptions, hooks: Hooks) -> Result<Arc<Spa>, Error> {
        let verify = options.open.verify.or_else(|| (!options.again).then(|| options.load_policy()));
        let pool = Pool::open(candidate.borrow(), &OpenOptions { verify, ..options.open.clone() })?;
        let newest = open::newest(candidate.borrow());
        // else an older identity would come to count, by an uberblock that follows without labels
        let is_torn = candidate.borrow().devices.iter().chain(&candidate.borrow().stale).any(|found| found.is_torn);
        // its devices stay locked while somebody has them: one that goes, and is back, could not be opened again
        drop(candidate);
        check_writable(&pool, options, newest)?;
        check_alone(&pool, options, &hooks.env)?;
        let uberblock = pool.uberblock();
        let mut nv = pool.config().clone();
        let exported = nv.get_u64(key::POOL_STATE) != Some(PoolState::Active as u64);
        let (id, host) = config::host();
        nv.insert(key::POOL_STATE, PoolState::Active as u64);
        nv.insert(key::HOSTID, u64::from(id));
        nv.insert(key::HOSTNAME, host.as_str());
        if options.open.name.is_some() && !options.temporary_name {
            nv.insert(key::POOL_NAME, pool.name());
        }
        // write a txg at once, so that this state is the newest
        let rewound = uberblock.txg < newest;
        let changed = exported || rewound || is_torn || nv != *pool.config();
        let mut txgs = uberblock.txg;
        if options.rewind || options.open.txg.is_some() {
            // abandoned newer states must not come back: the next txg is above them
            txgs = newest.max(txgs);
        }
        if options.open.checkpoint {
            txgs = Txg(newest.0 + 1);
        }
        let readers = hooks.readers.clone().filter(|_| rewound || options.open.checkpoint);
        // blocks that readers see only in abandoned states are free from now on, though no txg freed them; and a reader that starts before
        // the new state is on disk reads an abandoned one
        let overtaking = readers.map(|readers| readers.overtake_all(pool.guid()));
        let spa = Spa::to_write(&pool, hooks, Config::new(nv, changed), txgs)?;
        if let Some(props) = spa.live_mos()?.named_zap("pool_props")? {
            spa.multihost.set(props.lookup_u64("multihost")? == Some(1), &spa.txgs)?;
            spa.suspension.set_failmode(props.lookup_u64("failmode")?.unwrap_or(0));
            spa.set_autotrim(props.lookup_u64("autotrim")? == Some(1));
        }
        if options.open.checkpoint {
            spa.settle_at_checkpoint(txgs)?;
        }
        if options.again {
            spa.recall_removed();
        }
        let missing_ok = options.open.missing_log_ok;
        // what the import gave up is gone; what was logged since is not given up
        let lost_ok = LostLogs { unknown: missing_ok, gone: missing_ok, unread: missing_ok && !options.again };
        let claimed = spa.claim(&pool, lost_ok)?;
        spa.watch_reads();
        spa.start()?;
        let to_write = changed || !claimed.is_empty();
        let settled = spa.settle(to_write).and_then(|()| {
            drop(overtaking);
            spa.opened(&claimed)?;
            tracing::info!(target: "zuse::open", pool = spa.name(), txg = uberblock.txg.0, rewound, claimed = claimed.len(), "imported");
            spa.resume_leaf_work(options.again)?;
            if options.again { Ok(()) } else { spa.resume_scan() }
        });
        if let Err(e) = settled {
            // its sync thread may wait for devices, and keeps them open; the error is what counts
            spa.abandon();
            let _closed = spa.close();
            return Err(e);
        }
        Ok(spa)
    }

    /// Goes on with what the last close has interrupted, and writes the first txg if there is something `to_write`.
    fn settle(self: &Arc<Self>, to_write: bool) -> Result<(), Error> {
        self.resume_destroys()?;
        self.resume_discard()?;
        if to_write {
            self.txgs.note_work();
            self.sync()?;
        }
        Ok(())
    }

    /// Opens the pool of `pool` for writing.
    fn to_write(pool: &Arc<Pool>, hooks: Hooks, config: Config, last: Txg) -> Result<Arc<Spa>, Error> {
        let uberblock = pool.uberblock().clone();
        let zio = pool.zio().clone();
        zio.set_env(hooks.env.clone());
        let mos = Objset::open_writable(zio.clone(), ObjectId::MOS, &uberblock.rootbp)?;
        let readers = hooks.readers.as_ref().and_then(|readers| readers.oldest(pool.guid()));
        let space = PoolSpace::open(pool, &Mos::open(mos.clone())?, readers)?;
        zio.set_space(space.clone());
        let spa = Spa::assemble(Parts {
            name: pool.name().to_string(),
            guid: pool.guid(),
            hooks,
            zio,
            mos,
            space,
            last,
            config,
            uberblock,
            view: Some(pool.clone()),
            view_base: ViewBase::of(pool),
            carried: pool.known.carried().clone(),
        })?;
        for feature in pool.features() {
            if let Some(def) = feature.def {
                spa.apply_feature(def.name, feature.state);
            }
        }
        Ok(spa)
    }

    /// Returns the pool as its last synced txg left it.
    ///
    /// # Errors
    /// When its MOS cannot be read.
    pub fn view(&self) -> Result<Arc<Pool>, Error> {
        if let Some(view) = &*self.view.read() {
            view.entered.get_or_init(|| self.views.enter(|| view.uberblock.txg));
            return Ok(view.clone());
        }
        let made = self.make_view()?;
        let mut view = self.view.write();
        // a txg may have been synced meanwhile
        if made.uberblock().txg == self.uberblock().txg {
            return Ok(view.get_or_insert(made).clone());
        }
        Ok(made)
    }

    /// The classes of the top-level vdevs of `tree`, as `mos` has them.
    fn biases(&self, mos: &Mos, tree: &Arc<VdevTree>) -> Result<Vec<AllocBias>, Error> {
        if let Some((_, biases)) = self.view_base.biases.lock().as_ref().filter(|(of, _)| Arc::ptr_eq(of, tree)) {
            return Ok(biases.clone());
        }
        let biases = open::alloc_biases(mos, tree)?;
        *self.view_base.biases.lock() = Some((tree.clone(), biases.clone()));
        Ok(biases)
    }

    fn make_view(&self) -> Result<Arc<Pool>, Error> {
        let mut synced = None;
        let entered = self.views.enter(|| synced.insert(self.synced()).0.txg);
        let (uberblock, tree) = synced.unwrap_or_else(|| self.synced());
        let mos = Mos::open(Objset::open(self.zio.clone(), ObjectId::MOS, &uberblock.rootbp)?)?;
        let known = Known::new(uberblock.txg, self.carried.clone());
        let config_object = mos.id_of("config")?.unwrap_or(ObjectId::NONE);
        let config = known.of(config_object, || Ok(StoredConfig(mos.nvlist(config_object, "pool configuration")?)))?;
        let features = crate::spa::feature::load::load(&known, &mos, uberblock.version)?;
        let root_dir_obj = mos.id_of("root_dataset")?.unwrap_or(ObjectId::NONE);
        let base = &self.view_base;
        let biases = self.biases(&mos, &tree)?;
        let mut pool = Pool {
            name: base.name.clone(),
            guid: base.guid,
            uberblock,
            config,
            mos,
            zio: self.zio.clone(),
            tree,
            features,
            biases,
            root_dir_obj,
            origin_snap_obj: None,
            options: base.options.clone(),
            load_info: base.info.clone(),
            load_guid: base.load_guid,
            names: Names::default(),
            known,
            space_state: OnceLock::new(),
            adjusted: OnceLock::new(),
            spa: self.this.clone(),
            entered: OnceLock::from(entered),
        };
        pool.origin_snap_obj = base.origin_snap(&pool)?;
        Ok(Arc::new(pool))
    }
}

/// With multihost on, checks that no other machine writes the pool (OpenZFS: `spa_activity_check_required`).
fn check_alone(pool: &Pool, options: &ImportOptions, env: &Env) -> Result<(), Error> {
    if options.again {
        return Ok(());
    }
    pool.check_alone(true, options.rewind, env)
}

impl Pool {
    /// With multihost on, watches for a while whether another machine writes the pool, which is to be imported read-only (OpenZFS:
    /// `spa_ld_activity_check`).
    ///
    /// # Errors
    /// [`Error::ActiveElsewhere`]; [`Error::NoHostid`].
    pub fn watch_others(&self, env: &Env) -> Result<(), Error> {
        self.check_alone(false, false, env)
    }

    /// `rewind`: an older state than the newest may have been opened.
    fn check_alone(&self, to_write: bool, rewind: bool, env: &Env) -> Result<(), Error> {
        let state = self.config().get_u64(key::POOL_STATE);
        let (own, _) = config::host();
        let left_by_us = state == Some(PoolState::Exported as u64) && own != 0 && self.host().0 == Some(own.into());
        if left_by_us || state == Some(PoolState::Destroyed as u64) {
            return Ok(());
        }
        let back = rewind || self.options.checkpoint || self.options.txg.is_some();
        multihost::take(self.tree(), (!back).then(|| self.uberblock()), self.host(), to_write, env)
    }
}

/// Checks that the pool can be written here, and by this machine.
fn check_writable(pool: &Pool, options: &ImportOptions, newest: Txg) -> Result<(), Error> {
    if pool.uberblock().endian != Endian::Little {
        return Err(Error::NotWritable("it was written on a machine of the other byte order".to_string()));
    }
    if let Some((txg, why)) = pool.load_info().skipped.first().filter(|_| !options.rewind && options.open.txg.is_none())
    {
        let back = pool.uberblock().txg;
        return Err(Error::NeedsRewind { txg: *txg, why: why.clone(), back });
    }
    let uberblock = pool.uberblock();
    let refuse = |why: &str| Err(Error::NotWritable(why.to_string()));
    if uberblock.version < VERSION_DIR_CLONES {
        let (is, from) = (uberblock.version, VERSION_DIR_CLONES);
        return refuse(&format!("it is of version {is}, and those from version {from} on are written"));
    }
    if uberblock.txg.max(newest).0 >= TXG_MAX {
        return refuse("its txg is beyond all that can be");
    }
    let tops = pool.tree().tops();
    if tops.iter().any(|top| top.config().raidz_expanding) || uberblock.reflow_scratch_state() != 0 {
        return refuse("a raidz is being expanded");
    }
    if tops.iter().any(|top| top.config().removing) {
        return refuse("a device is being removed");
    }
    let active = pool.config().get_u64(key::POOL_STATE) == Some(PoolState::Active as u64);
    if options.again && !active {
        return Err(Error::Closed);
    }
    let unknown: Vec<String> = pool
        .features()
        .iter()
        .filter(|f| f.def.is_none() && f.state == State::Active)
        .map(|f| f.guid.clone())
        .collect();
    if !unknown.is_empty() {
        return Err(Error::NotWritable(format!("it uses features not known here: {}", unknown.join(", "))));
    }
    let (own, _) = config::host();
    match pool.host() {
        // another machine may have taken it since it was last open here, too
        (Some(id), host) if active && id != 0 && id != u64::from(own) && !options.force => {
            let host = host.unwrap_or("").to_string();
            Err(Error::InUseByHost { host, id })
        }
        _ => Ok(()),
    }
}
