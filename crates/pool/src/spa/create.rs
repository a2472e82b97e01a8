//! A new pool (OpenZFS: `spa_create`, `dsl_pool_create`, `vdev_construct_zaps`).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use base::{Guid, ObjectId, Txg, tunable};
use dmu::{NewZap, Objset, Tx, Zap, ZapValue};
use nvlist::NvList;
use ondisk::label::key;
use ondisk::{BlkPtr, ObjectType, ObjsetType, Uberblock};
use vdev::create::NewPool;
use vdev::{Device, VdevConfig, VdevTree};
use zio::Zio;

use crate::NewKey;
use crate::spa::bpobj::Bpobj;
use crate::spa::config::{self, Config};
use crate::spa::datasets::Datasets;
use crate::spa::feature;
use crate::spa::feature::write as features;
use crate::spa::import::{ImportOptions, ViewBase};
use crate::spa::metaslab::alloc::{ALL_VDEV_ZAPS, PoolSpace};
use crate::spa::mos::Mos;
use crate::spa::mos::edit;
use crate::spa::mos::known::Carried;
use crate::spa::props::write::check_pool_props;
use crate::spa::{Hooks, Parts, Spa};
use crate::{Error, OpenOptions, Value, check_new_pool_name};

/// The txg that makes a pool.
pub(crate) const TXG_INITIAL: Txg = vdev::create::TXG_INITIAL;
/// The version of pools with features.
pub(crate) const VERSION: u64 = 5000;
/// The entry of the MOS directory that holds the salt of checksums.
pub(crate) const CHECKSUM_SALT: &str = "org.illumos:checksum_salt";
/// Block size of the list of what is freed in the background: the largest block size before feature large_blocks.
const FREE_BPOBJ_BLOCK: u64 = 128 << 10;
/// Block size of the list of deferred frees.
const SYNC_BPOBJ_BLOCK: u64 = 16 << 10;

/// Fills the root file system of a new pool.
pub type Populate = Box<dyn FnOnce(&Arc<Objset>, &Tx) -> Result<(), dmu::Error> + Send>;

/// The settings of the root file system of a new pool.
pub(crate) struct NewRoot {
    pub(crate) key: Option<NewKey>,
    pub(crate) props: Vec<(String, Value)>,
    pub(crate) populate: Option<Populate>,
}

/// The settings of a new pool.
pub struct CreateOptions {
    /// The pool's name on disk.
    pub name: String,
    /// The name while it is open, if it is another (`zpool create -t`).
    pub temporary_name: Option<String>,
    /// Features to enable, by name; features that they depend on are enabled too.
    pub features: Vec<&'static str>,
    /// Properties of the pool.
    pub props: Vec<(String, crate::Value)>,
    /// Properties of the root file system, except limits and those fixed at creation, which `populate` and `key` set.
    pub fs_props: Vec<(String, crate::Value)>,
    /// The key of the root file system, if it is to be encrypted.
    pub key: Option<NewKey>,
    /// Puts the first files into the root file system.
    pub populate: Option<Populate>,
    /// Directory under which file systems are mounted.
    pub altroot: Option<String>,
    /// Upper bound of the cache, in bytes.
    pub arc_bytes: u64,
}

impl CreateOptions {
    /// Returns the settings of a pool with all features and default properties.
    #[must_use]
    pub fn new(name: impl Into<String>) -> CreateOptions {
        CreateOptions {
            name: name.into(),
            temporary_name: None,
            features: feature::FEATURES.iter().map(|f| f.name).collect(),
            props: Vec::new(),
            fs_props: Vec::new(),
            key: None,
            populate: None,
            altroot: None,
            arc_bytes: tunable::ZFS_ARC_MAX.get(),
        }
    }
}

impl std::fmt::Debug for CreateOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateOptions")
            .field("name", &self.name)
            .field("features", &self.features)
            .finish_non_exhaustive()
    }
}

impl Spa {
    /// Makes a pool of new vdevs. The previous contents of the devices are lost.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::Refused`] for a property that cannot be set, [`Error::Features`]: the devices are then unchanged.
    /// When the devices cannot be written.
    pub fn create(new: NewPool, options: CreateOptions, hooks: Hooks) -> Result<Arc<Spa>, Error> {
        check_options(&options)?;
        let import = ImportOptions {
            open: OpenOptions {
                name: options.temporary_name.clone(),
                altroot: options.altroot.clone(),
                arc_bytes: options.arc_bytes,
                ..OpenOptions::default()
            },
            temporary_name: true,
            again: true,
            ..ImportOptions::default()
        };
        init_aside(&new)?;
        let vdev_tree = new.vdev_tree;
        let guid = vdev_tree.require_u64(key::GUID).map_err(incomplete)?;
        let nv = config::new_config(&options.name, guid, VERSION, TXG_INITIAL, vdev_tree);
        init_labels(&nv, &new.devices, TXG_INITIAL)?;
        let parsed = VdevConfig::parse(nv.require_nvlist(key::VDEV_TREE).map_err(incomplete)?)?;
        let tree = Arc::new(VdevTree::open(&parsed, &|leaf: Guid| new.devices.get(&leaf).cloned())?);
        let zio = Arc::new(Zio::new(tree, options.arc_bytes));
        zio.set_env(hooks.env.clone());
        let tx = Tx::syncing(TXG_INITIAL);
        let mos = Objset::create(zio.clone(), ObjectId::MOS, ObjsetType::Meta, 0, &tx)?;
        let directory = NewZap {
            id: Some(ObjectId::POOL_DIRECTORY),
            object_type: ObjectType::OBJECT_DIRECTORY,
            ..NewZap::default()
        };
        Zap::create_with(&tx, &mos, &directory)?;
        let space = PoolSpace::create(&zio)?;
        zio.set_space(space.clone());
        let uberblock = Uberblock {
            version: VERSION,
            txg: Txg(TXG_INITIAL.0 - 1),
            guid_sum: Guid(0),
            timestamp: hooks.env.now_s(),
            rootbp: BlkPtr::HOLE,
            software_version: VERSION,
            mmp: None,
            checkpoint_txg: Txg(0),
            raidz_reflow_info: 0,
            endian: edit::OURS,
        };
        let name = options.temporary_name.clone().unwrap_or_else(|| options.name.clone());
        let spa = Spa::assemble(Parts {
            view_base: ViewBase::new(name.clone(), Guid(guid), options.altroot.clone(), options.arc_bytes, &hooks.env),
            name,
            guid: Guid(guid),
            // there is no pool yet that somebody could clear
            hooks: Hooks { never_suspends: true, ..hooks.clone() },
            zio,
            mos,
            space,
            last: TXG_INITIAL,
            config: Config::new(nv, true),
            carried: Carried::new(uberblock.txg),
            uberblock,
            view: None,
        })?;
        spa.fill_new_pool(&tx, &new.spares, &new.l2cache, options)?;
        spa.sync_first(&tx)?;
        drop(spa);
        let spa = reopen(new.devices, import, hooks)?;
        spa.notify("config_sync", &NvList::new());
        spa.notify("pool_create", &NvList::new());
        Ok(spa)
    }

    /// The objects of a new pool, in the order in which OpenZFS makes them.
    fn fill_new_pool(
        self: &Arc<Self>,
        tx: &Tx,
        spares: &[NvList],
        l2cache: &[NvList],
        options: CreateOptions,
    ) -> Result<(), Error> {
        let mos = self.live_mos()?;
        let root = self.create_dirs(&mos, tx)?;
        let free = Bpobj::create(&mos, tx, FREE_BPOBJ_BLOCK)?;
        mos.root_zap()?.add_id(tx, "free_bpobj", free)?;
        // the lists of features come first here: the origin needs them for its deadlist
        features::create_lists(&mos, tx)?;
        for name in &options.features {
            if let Some(def) = feature::by_name(name) {
                self.feature_enable(&mos, tx, def)?;
            }
        }
        let new = NewRoot { key: options.key, props: options.fs_props, populate: options.populate };
        self.create_root(&mos, tx, root, new)?;
        self.log_creation(&mos, tx, &options.features)?;
        let config = mos.new_nvlist(tx)?;
        let zap = mos.root_zap()?;
        zap.add_id(tx, "config", config)?;
        zap.add_u64(tx, "creation_version", VERSION)?;
        zap.add_u64(tx, "deflate", 1)?;
        let sync_bpobj = Bpobj::create(&mos, tx, SYNC_BPOBJ_BLOCK)?;
        mos.object(sync_bpobj)?.set_compress(tx, codec::Compress::Off as u8)?;
        zap.add_id(tx, super::frees::SYNC_BPOBJ, sync_bpobj)?;
        self.put_salt(&zap, tx)?;
        self.aux_list(&mos, tx, key::SPARES, spares)?;
        self.aux_list(&mos, tx, key::L2CACHE, l2cache)?;
        self.construct_zaps(&mos, tx)?;
        self.space.init_vdevs(&mos, tx, self)?;
        for (name, value) in &options.props {
            self.put_prop(&mos, tx, name, value)?;
        }
        Ok(())
    }

    /// Gives the pool the salt of its checksums.
    pub(crate) fn put_salt(&self, root: &Zap, tx: &Tx) -> Result<(), Error> {
        let mut salt = [0; 32];
        self.env().fill_random(&mut salt);
        root.add_value(tx, CHECKSUM_SALT, &ZapValue::from_bytes(&salt))?;
        self.zio.set_salt(salt);
        Ok(())
    }

    fn log_creation(&self, mos: &Mos, tx: &Tx, features: &[&'static str]) -> Result<(), Error> {
        let uts = rustix::system::uname();
        let part = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let software = concat!("zuse-", env!("CARGO_PKG_VERSION"));
        let (node, release, machine) = (part(uts.nodename()), part(uts.release()), part(uts.machine()));
        let what = format!(
            "pool version {VERSION}; software version {software}; uts {node} {release} {} {machine}",
            part(uts.version())
        );
        self.log_internal(mos, tx, "create", &what)?;
        features.iter().try_for_each(|name| self.log_internal(mos, tx, "set", &format!("feature@{name}=enabled")))
    }

    /// Sets the list of the pool's spares or caches (OpenZFS: `spa_sync_aux_dev`). The list does not exist before the first device.
    pub(crate) fn aux_list(&self, mos: &Mos, tx: &Tx, name: &str, devices: &[NvList]) -> Result<(), Error> {
        let id = match mos.id_of(name)? {
            Some(id) => id,
            None if devices.is_empty() => return Ok(()),
            None => {
                let id = mos.new_nvlist(tx)?;
                mos.root_zap()?.add_id(tx, name, id)?;
                id
            }
        };
        let mut list = NvList::new();
        list.insert(name, nvlist::Value::NvListArray(devices.to_vec()));
        mos.put_nvlist(tx, id, &list)
    }

    /// Makes the ZAPs of vdevs that have none (OpenZFS: `vdev_construct_zaps`).
    pub(crate) fn construct_zaps(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        let all = match mos.named_zap(ALL_VDEV_ZAPS)? {
            Some(all) => all,
            None => Zap::create_link(tx, &mos.root_zap()?, ALL_VDEV_ZAPS, ObjectType::OTN_ZAP_METADATA)?,
        };
        let one = |vdev: &mut NvList, name: &str| -> Result<ObjectId, Error> {
            let id = mos.new_zap(tx, ObjectType::OTN_ZAP_METADATA)?;
            all.add_int(tx, id.0, id.0)?;
            vdev.insert(name, id.0);
            Ok(id)
        };
        let mut tree = self.config.lock().nv.require_nvlist(key::VDEV_TREE).map_err(incomplete)?.clone();
        if !tree.contains(key::VDEV_ROOT_ZAP) && self.feature_enabled(mos, "vdev_zaps_v2")? {
            one(&mut tree, key::VDEV_ROOT_ZAP)?;
            self.feature_increment(mos, tx, "vdev_zaps_v2")?;
        }
        let gone = |top: &NvList| matches!(top.get_str(key::TYPE), Some("hole" | "missing" | "indirect"));
        let new = |top: &&mut NvList| !top.contains(key::VDEV_TOP_ZAP) && !gone(top);
        for top in tree.get_nvlist_array_mut(key::CHILDREN).into_iter().flatten().filter(new) {
            leaf_zaps(top, &one)?;
            let zap = one(top, key::VDEV_TOP_ZAP)?;
            if let Some(nvlist::Value::String(bias)) = top.remove(key::ALLOCATION_BIAS) {
                let bias = bias.to_string();
                mos.zap(zap)?.add_value(tx, "org.zfsonlinux:allocation_bias", &ZapValue::from_text(&bias))?;
                if bias != "log" {
                    self.feature_increment(mos, tx, "allocation_classes")?;
                }
            }
            if top.get_str(key::TYPE) == Some("draid") {
                self.feature_increment(mos, tx, "draid")?;
            }
        }
        self.edit_config(|nv| nv.insert(key::VDEV_TREE, tree));
        Ok(())
    }
}

/// The error for a configuration that lacks something.
fn incomplete(source: nvlist::Error) -> Error {
    Error::Nvlist { what: "configuration of vdevs", source }
}

/// Checks the options as far as possible without the devices.
fn check_options(options: &CreateOptions) -> Result<(), Error> {
    for name in std::iter::once(&options.name).chain(&options.temporary_name) {
        check_new_pool_name(name).map_err(|bad| Error::InvalidName { name: name.clone(), why: bad.why() })?;
    }
    let unknown = |name: &&&str| feature::by_name(name).is_none();
    let unknown: Vec<String> = options.features.iter().filter(unknown).map(|name| (*name).to_owned()).collect();
    if !unknown.is_empty() {
        return Err(Error::Features(unknown));
    }
    check_pool_props(&options.props)?;
    Spa::check_root_props(&options.fs_props)
}

fn leaf_zaps(vdev: &mut NvList, one: &dyn Fn(&mut NvList, &str) -> Result<ObjectId, Error>) -> Result<(), Error> {
    match vdev.get_nvlist_array_mut(key::CHILDREN) {
        Some(children) if !children.is_empty() => children.iter_mut().try_for_each(|child| leaf_zaps(child, one)),
        _ => one(vdev, key::VDEV_LEAF_ZAP).map(drop),
    }
}

/// A property's value as a ZAP holds it.
pub(crate) fn stored(value: &crate::Value) -> ZapValue {
    match value {
        crate::Value::Number(n) => ZapValue::from_u64(*n),
        crate::Value::String(text) => ZapValue::from_text(text),
    }
}

/// Opens the new pool like any other, so that everything works on what is on the devices.
fn reopen(devices: HashMap<Guid, Arc<dyn Device>>, import: ImportOptions, hooks: Hooks) -> Result<Arc<Spa>, Error> {
    let found = devices.into_values().map(|device| (PathBuf::from(device.name()), device)).collect();
    let candidate = vdev::import::scan_devices(found).into_iter().next();
    let candidate = candidate.ok_or_else(|| Error::NoUberblock("the new pool is not found".to_string()))?;
    Spa::import_own(candidate, &import, hooks)
}

/// Writes the labels of spares and caches: they are not in a pool's tree, and their labels name no pool.
pub(crate) fn init_aside(new: &NewPool) -> Result<(), Error> {
    let spares = new.spares.iter().map(|list| (list, vdev::label::AuxUse::Spare));
    let caches =
        new.l2cache.iter().map(|list| (list, vdev::label::AuxUse::L2cache(list.get_u64(key::ASHIFT).unwrap_or(9))));
    for (list, aux) in spares.chain(caches) {
        let guid = Guid(list.require_u64(key::GUID).map_err(incomplete)?);
        // a distributed spare has no device
        if let Some(device) = new.devices.get(&guid) {
            vdev::label::init(&**device, &vdev::label::aux_config(VERSION, guid, list.get_str(key::PATH), aux))?;
        }
    }
    Ok(())
}

/// Writes the first labels of `devices`, which are leaves of the pool that `nv` configures, added in `txg`.
pub(crate) fn init_labels(nv: &NvList, devices: &HashMap<Guid, Arc<dyn Device>>, txg: Txg) -> Result<(), Error> {
    let tree = nv.require_nvlist(key::VDEV_TREE).map_err(incomplete)?;
    for top in tree.get_nvlist_array(key::CHILDREN).unwrap_or(&[]) {
        let parsed = VdevConfig::parse(top)?;
        for leaf in parsed.leaves() {
            if let Some(device) = devices.get(&leaf.guid) {
                let config = vdev::label::initial_config(nv, top, leaf.guid, txg);
                vdev::label::init(&**device, &config)?;
            }
        }
    }
    Ok(())
}
