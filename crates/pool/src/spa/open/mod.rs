//! Opening a pool (OpenZFS: `spa_load`).
//!
//! Labels know the vdevs only as far as each device goes, and may be wrong; the MOS knows them all. So a pool is opened twice: a
//! provisional tree from the labels leads to the MOS, whose `config` gives the trusted tree, through which the MOS is opened again. Then
//! follows what is needed to read all of the pool: mappings of removed vdevs (last removed first, because the mapping of an older one may
//! lie on a newer one), features, the salt of checksums, dirty time logs.
//!
//! The state is chosen among the uberblocks of all devices: the newest one; with a rewind, the newest one not after a txg, or the one that
//! the checkpoint keeps. If it does not lead to a readable MOS, or lacks blocks of its last txgs ([`LoadPolicy`]), the next older one is
//! tried, and the skipped ones are reported in [`LoadInfo`]. Nothing is written, so trying costs nothing. An import goes on to an older state only from
//! one of the last txgs, whose blocks are not reused yet, unless any state will do (OpenZFS: `spa_load_best`).

mod uberblocks;
mod vdevs;
mod verify;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, OnceLock, Weak};

use base::{Guid, ObjectId, Txg, tunable};
use dmu::Objset;
use nvlist::NvList;
use ondisk::Uberblock;
use ondisk::label::key;
use vdev::import::Candidate;
use vdev::{VdevConfig, VdevState, VdevTree};
use zio::Zio;

pub(crate) use uberblocks::newest;
pub use vdevs::AllocBias;
pub(crate) use vdevs::alloc_biases;
pub use verify::{LoadErrors, LoadPolicy};
pub(crate) use verify::{TXG_DEFER_SIZE, read_back, verify};

use crate::dsl::Names;
use crate::spa::create::CHECKSUM_SALT;
use crate::spa::feature::FeatureState;
use crate::spa::mos::Mos;
use crate::spa::mos::known::Known;
use crate::spa::pool::StoredConfig;
use crate::{Error, LoadInfo, Pool};

/// The most states that are tried.
const TRIES_MAX: usize = 128;
/// Newest version of the format.
const VERSION_FEATURES: u64 = 5000;
/// Newest version before features.
const VERSION_BEFORE_FEATURES: u64 = 28;

/// The options of opening a pool.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The name to give the pool, if not its own (`zpool import POOL NEWNAME`).
    pub name: Option<String>,
    /// Open the newest state that is not after this txg (`zpool import -T`).
    pub txg: Option<Txg>,
    /// Open the state that the checkpoint keeps (`zpool import --rewind-to-checkpoint`).
    pub checkpoint: bool,
    /// The txg in which the pool was last written, as far as is known: an older state is not opened, because the devices with a newer one
    /// are missing.
    pub least: Option<Txg>,
    /// Open the pool though log devices are missing (`zpool import -m`).
    pub missing_log_ok: bool,
    /// Open the pool though whole top-level vdevs are missing, and read what is there.
    pub missing_tops_ok: bool,
    /// Open only a state whose last txgs can be read, as far as this policy demands; `None` demands only what opening needs.
    pub verify: Option<LoadPolicy>,
    /// Directory under which mountpoints are shown (`zpool import -R`).
    pub altroot: Option<String>,
    /// True if the allocated space is counted. OpenZFS does not count it in a read-only import (its tunable `spa_mode_readable_spacemaps`),
    /// and shows nothing as allocated.
    pub space_maps: bool,
    /// Upper limit of the cache in bytes.
    pub arc_bytes: u64,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            name: None,
            txg: None,
            checkpoint: false,
            least: None,
            missing_log_ok: false,
            missing_tops_ok: false,
            verify: None,
            altroot: None,
            space_maps: true,
            arc_bytes: tunable::ZFS_ARC_MAX.get(),
        }
    }
}

/// A loaded state of a pool.
struct Loaded {
    uberblock: Uberblock,
    config: NvList,
    mos: Mos,
    zio: Arc<Zio>,
    known: Known,
    features: Vec<FeatureState>,
    biases: Vec<AllocBias>,
}

impl Pool {
    /// Opens the pool of `candidate`.
    ///
    /// # Errors
    /// [`Error::NoUberblock`] if no state fits; [`Error::Unreadable`] if none can be read; [`Error::Features`],
    /// [`Error::Version`], [`Error::MissingVdevs`], [`Error::NoCheckpoint`].
    pub fn open(candidate: &Candidate, options: &OpenOptions) -> Result<Arc<Pool>, Error> {
        crate::spa::feature::load::check_labels(candidate)?;
        let provisional = candidate.vdev_config()?;
        let states = uberblocks::choose(candidate, options.txg)?;
        let least = options.least.filter(|_| options.txg.is_none() && !options.checkpoint);
        let mut info = LoadInfo { rewound: options.txg.is_some() || options.checkpoint, ..LoadInfo::default() };
        let newest = states.first().map_or(Txg(0), |uberblock| uberblock.txg);
        let mut first: Option<(Txg, Error)> = None;
        let bound = options.verify.is_some_and(|policy| !policy.extreme) && options.txg.is_none();
        for uberblock in states.into_iter().take(TRIES_MAX) {
            let txg = uberblock.txg;
            if bound && info.skipped.last().is_some_and(|(tried, _)| !verify::is_held(*tried, newest)) {
                break;
            }
            if let Some(left) = least.filter(|left| *left > txg) {
                let why = first.map(|(txg, e)| format!("txg {txg}: {e}"));
                return Err(Error::Behind { left, found: txg, why });
            }
            match load(candidate, &provisional, uberblock, options)
                .and_then(|l| l.finish(candidate, (options, newest), &mut info))
            {
                Ok(pool) => return Ok(pool),
                Err(e) if is_final(&e) => return Err(e),
                Err(e) => {
                    info.skipped.push((txg, e.to_string()));
                    first.get_or_insert((txg, e));
                }
            }
        }
        Err(match first {
            Some((txg, e)) => Error::Unreadable { txg, source: Box::new(e) },
            None => Error::NoUberblock("the pool has no valid uberblock".to_string()),
        })
    }
}

/// Returns whether an older state would not help.
fn is_final(e: &Error) -> bool {
    matches!(e, Error::Features(_) | Error::Version(_) | Error::NoCheckpoint | Error::MissingVdevs(_))
}

fn load(
    candidate: &Candidate,
    provisional: &VdevConfig,
    uberblock: Uberblock,
    options: &OpenOptions,
) -> Result<Loaded, Error> {
    check_version(&uberblock)?;
    // first pass: through the labels' tree, with a small cache
    let zio =
        Arc::new(Zio::new(Arc::new(open_tree(candidate, provisional, &uberblock)?), options.arc_bytes.min(64 << 20)));
    let mut mos = Mos::open(Objset::open(zio.clone(), ObjectId::MOS, &uberblock.rootbp)?)?;
    let mut uberblock = uberblock;
    if options.checkpoint {
        uberblock = checkpointed(&mos)?;
        check_version(&uberblock)?;
        mos = Mos::open(Objset::open(zio, ObjectId::MOS, &uberblock.rootbp)?)?;
    }
    let config_object = mos
        .id_of("config")?
        .ok_or_else(|| Error::corrupt(ObjectId::POOL_DIRECTORY, "the MOS directory has no 'config'"))?;
    let config = mos.nvlist(config_object, "pool configuration")?;
    let guid = config.require_u64(key::POOL_GUID).map_err(config_error)?;
    if Guid(guid) != candidate.guid {
        return Err(Error::corrupt(config_object, format!("the MOS belongs to the pool with guid {guid}")));
    }
    // second pass: through the MOS's tree
    let trusted = VdevConfig::parse(config.require_nvlist(key::VDEV_TREE).map_err(config_error)?)?;
    let tree = Arc::new(open_tree(candidate, &trusted, &uberblock)?);
    let zio = Arc::new(Zio::new(tree, options.arc_bytes));
    zio.live_tree().count_in(&candidate.errors);
    // a device that was absent need not have what it missed: as far as that can be read before removed vdevs are known
    vdevs::load_dtls(&mos, &zio, uberblock.txg);
    let mos = Mos::open(Objset::open(zio.clone(), ObjectId::MOS, &uberblock.rootbp)?)?;
    vdevs::load_mappings(&mos, &zio)?;
    let known = Known::alone(uberblock.txg);
    let features = crate::spa::feature::load::load(&known, &mos, uberblock.version)?;
    let active = |name: &str| crate::spa::feature::load::is_active(&features, name);
    zio.set_dynamic_gang(active("dynamic_gang_header"));
    if let Some(salt) = mos.directory.lookup(CHECKSUM_SALT)? {
        let salt = salt.as_bytes().and_then(|b| b.try_into().ok());
        zio.set_salt(
            salt.ok_or_else(|| Error::corrupt(ObjectId::POOL_DIRECTORY, "the checksum salt has a wrong length"))?,
        );
    }
    vdevs::load_dtls(&mos, &zio, uberblock.txg);
    let biases = vdevs::alloc_biases(&mos, &zio.tree())?;
    Ok(Loaded { uberblock, config, mos, zio, known, features, biases })
}

fn config_error(source: nvlist::Error) -> Error {
    Error::Nvlist { what: "pool configuration", source }
}

fn check_version(uberblock: &Uberblock) -> Result<(), Error> {
    match uberblock.version {
        1..=VERSION_BEFORE_FEATURES | VERSION_FEATURES => Ok(()),
        version => Err(Error::Version(version)),
    }
}

fn open_tree(candidate: &Candidate, config: &VdevConfig, uberblock: &Uberblock) -> Result<VdevTree, Error> {
    let devices: HashMap<Guid, _> = [&candidate.devices, &candidate.stale, &candidate.spares, &candidate.l2cache]
        .into_iter()
        .rev()
        .flatten()
        .map(|found| (found.guid, found.device.clone()))
        .collect();
    let tree = VdevTree::open(config, &|leaf| devices.get(&leaf).cloned())?;
    for top in tree.tops().iter().filter(|top| top.config().raidz_expanding) {
        tree.set_reflow_offset(top.id(), uberblock.reflow_offset(), uberblock.reflow_scratch_state());
    }
    Ok(tree)
}

/// Returns the uberblock that the checkpoint keeps in the MOS directory.
fn checkpointed(mos: &Mos) -> Result<Uberblock, Error> {
    let words = mos.directory.lookup("com.delphix:zpool_checkpoint")?.ok_or(Error::NoCheckpoint)?.u64s();
    // the words are already decoded: encode them in one byte order
    let raw: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut padded = raw;
    padded.resize(padded.len().max(Uberblock::SIZE), 0);
    let mut uberblock =
        Uberblock::decode(&padded).map_err(|source| Error::Format { object: ObjectId::POOL_DIRECTORY, source })?;
    uberblock.endian = uberblock.rootbp.endian();
    if uberblock.checkpoint_txg.0 == 0 {
        uberblock.checkpoint_txg = uberblock.txg;
    }
    Ok(uberblock)
}

/// Returns the pool as its checkpoint keeps it, over the same devices; `None` if it has none.
pub(crate) fn at_checkpoint(pool: &Pool) -> Result<Option<Arc<Pool>>, Error> {
    let uberblock = match checkpointed(&pool.mos) {
        Err(Error::NoCheckpoint) => return Ok(None),
        found => found?,
    };
    let mos = Mos::open(Objset::open(pool.zio.clone(), ObjectId::MOS, &uberblock.rootbp)?)?;
    let known = Known::alone(uberblock.txg);
    let root_dir_obj = mos.id_of("root_dataset")?.unwrap_or(ObjectId::NONE);
    let mut then = Pool {
        name: pool.name.clone(),
        guid: pool.guid,
        features: crate::spa::feature::load::load(&known, &mos, uberblock.version)?,
        uberblock,
        config: pool.config.clone(),
        mos,
        zio: pool.zio.clone(),
        tree: pool.tree.clone(),
        biases: pool.biases.clone(),
        root_dir_obj,
        origin_snap_obj: None,
        options: pool.options.clone(),
        load_info: pool.load_info.clone(),
        load_guid: pool.load_guid,
        names: Names::default(),
        known,
        space_state: OnceLock::new(),
        adjusted: OnceLock::new(),
        entered: OnceLock::new(),
        spa: Weak::new(),
    };
    then.origin_snap_obj = origin_snap(&then)?;
    Ok(Some(Arc::new(then)))
}

impl Loaded {
    fn finish(
        self,
        candidate: &Candidate,
        (options, newest): (&OpenOptions, Txg),
        info: &mut LoadInfo,
    ) -> Result<Arc<Pool>, Error> {
        info.missing_tops = missing_tops(&self.zio.tree(), options)?;
        info.errors = verify((&self.mos, &self.zio), &self.uberblock, newest, options)?;
        let tree_sum = self.zio.tree().config().walk().fold(0u64, |sum, v| sum.wrapping_add(v.guid.0));
        info.guid_sum_differs = tree_sum != self.uberblock.guid_sum.0;
        let root_dir_obj = self
            .mos
            .id_of("root_dataset")?
            .ok_or_else(|| Error::corrupt(ObjectId::POOL_DIRECTORY, "the MOS directory has no 'root_dataset'"))?;
        let stored = || self.config.get_str(key::POOL_NAME).map(str::to_owned);
        let name = options.name.clone().or_else(stored).unwrap_or_else(|| candidate.name.clone());
        let (guid, txg) = (candidate.guid.0, self.uberblock.txg.0);
        tracing::debug!(target: "zuse::open", pool = name, guid, txg, "opened");
        let mut pool = Pool {
            name,
            guid: candidate.guid,
            uberblock: self.uberblock,
            config: Arc::new(StoredConfig(self.config)),
            mos: self.mos,
            tree: Arc::clone(&self.zio.tree()),
            zio: self.zio,
            features: self.features,
            biases: self.biases,
            root_dir_obj,
            origin_snap_obj: None,
            options: options.clone(),
            load_info: info.clone(),
            load_guid: RandomState::new().build_hasher().finish(),
            names: Names::default(),
            known: self.known,
            space_state: OnceLock::new(),
            adjusted: OnceLock::new(),
            entered: OnceLock::new(),
            spa: Weak::new(),
        };
        pool.origin_snap_obj = origin_snap(&pool)?;
        Ok(Arc::new(pool))
    }
}

/// Returns the snapshot `$ORIGIN@$ORIGIN`, the origin on disk of everything that was not cloned. Pools before version 11 have none.
pub(crate) fn origin_snap(pool: &Pool) -> Result<Option<ObjectId>, Error> {
    use ondisk::dsl::DslDirPhys;
    let dir = |id| Mos::bonus(&pool.mos.object(id)?, DslDirPhys::decode);
    let Some(children) = pool.mos.zap_if(dir(pool.root_dir_obj)?.child_dir_zapobj)? else { return Ok(None) };
    let Some(origin) = children.lookup_id("$ORIGIN")? else { return Ok(None) };
    match dir(origin)?.head_dataset_obj {
        ObjectId::NONE => Ok(None),
        head => Ok(Some(pool.dataset_phys(head)?.prev_snap_obj).filter(|id| id.is_some())),
    }
}

fn missing_tops(tree: &VdevTree, options: &OpenOptions) -> Result<Vec<u64>, Error> {
    let status = tree.status();
    let dead = |id: usize| status.children.get(id).is_some_and(|s| s.state == VdevState::CantOpen);
    let gone: Vec<&vdev::TopVdev> =
        tree.tops().iter().enumerate().filter(|(id, _)| dead(*id)).map(|(_, top)| top).collect();
    let tolerable = |top: &&&vdev::TopVdev| {
        let may_miss_log = options.missing_log_ok || tree.is_put_aside(top);
        options.missing_tops_ok || (top.config().is_log && may_miss_log)
    };
    let fatal: Vec<String> = gone.iter().filter(|top| !tolerable(top)).map(|top| top.config().name()).collect();
    if !fatal.is_empty() {
        return Err(Error::MissingVdevs(fatal));
    }
    Ok(gone.iter().map(|top| top.id()).collect())
}
