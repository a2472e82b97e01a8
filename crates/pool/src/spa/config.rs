//! The pool's configuration: an nvlist in the MOS, and a part of it in each label (OpenZFS: `spa_config.c`).

use std::sync::Arc;

use base::{Guid, ObjectId, Txg, tunable};
use dmu::Tx;
use nvlist::NvList;
use ondisk::Uberblock;
use ondisk::label::key;
use vdev::label::PoolLabel;

use crate::Error;
use crate::spa::Spa;
use crate::spa::mos::Mos;

/// The state of a pool, as its configuration says it (OpenZFS: `pool_state_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PoolState {
    Active = 0,
    Exported = 1,
    Destroyed = 2,
}

/// The configuration and whether it has to be written.
#[derive(Debug, Default)]
pub(crate) struct Config {
    pub(crate) nv: NvList,
    pub(crate) dirty: bool,
    /// The configuration to write to the labels, as the MOS has it, if they are rewritten with the txg being synced. Concurrent edits of
    /// the configuration take effect in the next txg.
    pub(crate) labels: Option<NvList>,
}

impl Config {
    /// Returns a configuration, and whether it has to be written.
    pub(crate) fn new(nv: NvList, dirty: bool) -> Config {
        Config { nv, dirty, labels: None }
    }
}

/// Edits the vdev with this guid, anywhere in the tree; returns whether it was found.
pub(crate) fn edit_vdev(tree: &mut NvList, guid: u64, edit: &mut dyn FnMut(&mut NvList)) -> bool {
    if tree.get_u64(key::GUID) == Some(guid) {
        edit(tree);
        return true;
    }
    let Some(children) = tree.get_nvlist_array_mut(key::CHILDREN) else { return false };
    children.iter_mut().any(|child| edit_vdev(child, guid, edit))
}

impl Spa {
    /// Edits the configuration of the vdev with this guid. Returns whether there is one.
    pub(crate) fn edit_vdev(&self, guid: u64, edit: &mut dyn FnMut(&mut NvList)) -> bool {
        let mut config = self.config.lock();
        let found = config.nv.get_nvlist_mut(key::VDEV_TREE).is_some_and(|tree| edit_vdev(tree, guid, edit));
        config.dirty |= found;
        found
    }

    /// Looks at the configuration of the vdev with this guid.
    pub(crate) fn look_at_vdev(&self, guid: u64, look: &mut dyn FnMut(&NvList)) {
        let mut config = self.config.lock();
        if let Some(tree) = config.nv.get_nvlist_mut(key::VDEV_TREE) {
            edit_vdev(tree, guid, &mut |vdev| look(vdev));
        }
    }

    /// Takes what was recorded of a device, or of all, from the configuration (OpenZFS: `vdev_clear`); states that are still so are recorded anew.
    pub(crate) fn record_cleared(self: &Arc<Self>, device: Option<Guid>) -> Result<(), Error> {
        self.sync_task(move |cx| {
            cx.spa.edit_config(|nv| {
                if let Some(tree) = nv.get_nvlist_mut(key::VDEV_TREE) {
                    forgive(tree, device.map(|device| device.0));
                }
            });
            cx.spa.forget_health();
            cx.spa.record_health();
            Ok(())
        })
    }

    /// Edits the configuration.
    pub(crate) fn edit_config(&self, edit: impl FnOnce(&mut NvList)) {
        let mut config = self.config.lock();
        edit(&mut config.nv);
        config.dirty = true;
        self.txgs.note_work();
    }

    /// Writes the configuration into the MOS, if it changed.
    pub(crate) fn sync_config(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        let mut config = self.config.lock();
        if !config.dirty {
            return Ok(());
        }
        config.dirty = false;
        config.nv.insert(key::POOL_TXG, tx.txg().0);
        config.labels = Some(config.nv.clone());
        let id = mos
            .id_of("config")?
            .ok_or_else(|| Error::corrupt(ObjectId::POOL_DIRECTORY, "the MOS directory has no 'config'"))?;
        mos.put_nvlist(tx, id, &config.nv)
    }

    /// Makes `uberblock` the state of the pool on its devices.
    pub(crate) fn commit_uberblock(&self, uberblock: &Uberblock) -> Result<(), Error> {
        // kept until it is written: this may have to be tried again
        let config = self.config.lock().labels.clone();
        let label = |pool| {
            let vdev_tree = NvList::get_nvlist(pool, key::VDEV_TREE);
            // labels without it would belong to no pool that could be found again
            let vdev_tree = vdev_tree.ok_or_else(|| Error::Bug("the configuration has no vdevs".to_string()))?;
            Ok::<_, Error>(PoolLabel { pool, vdev_tree, tops: &[] })
        };
        let label = config.as_ref().map(label).transpose()?;
        vdev::label::commit(&self.tree(), label.as_ref(), uberblock)?;
        self.config.lock().labels = None;
        Ok(())
    }
}

/// Clears the faulted state of vdevs: `vdev` and all below it, or the device with everything below it.
fn forgive(vdev: &mut NvList, device: Option<u64>) {
    let device = device.filter(|device| Some(*device) != vdev.get_u64(key::GUID));
    if device.is_none() {
        for state in [key::FAULTED, key::DEGRADED, key::REMOVED, key::AUX_STATE] {
            vdev.remove_all(state);
        }
    }
    for child in vdev.get_nvlist_array_mut(key::CHILDREN).into_iter().flatten() {
        forgive(child, device);
    }
}

/// The pool's part of a new configuration.
pub(crate) fn new_config(name: &str, guid: u64, version: u64, txg: Txg, vdev_tree: NvList) -> NvList {
    let mut nv = NvList::new();
    nv.insert(key::VERSION, version);
    nv.insert(key::POOL_NAME, name);
    nv.insert(key::POOL_STATE, PoolState::Active as u64);
    nv.insert(key::POOL_TXG, txg.0);
    nv.insert(key::POOL_GUID, guid);
    nv.insert(key::ERRATA, 0u64);
    if let Some((min, max)) = smallest_allocations(&vdev_tree) {
        nv.insert(key::MIN_ALLOC, min);
        nv.insert(key::MAX_ALLOC, max);
    }
    let (id, host) = host();
    if id != 0 {
        nv.insert(key::HOSTID, u64::from(id));
    }
    nv.insert(key::HOSTNAME, host.as_str());
    nv.insert("com.delphix:has_per_vdev_zaps", nvlist::Value::Boolean);
    nv.insert(key::VDEV_CHILDREN, vdev_tree.get_nvlist_array(key::CHILDREN).map_or(0, <[_]>::len) as u64);
    nv.insert(key::VDEV_TREE, vdev_tree);
    nv.insert(key::FEATURES_FOR_READ, NvList::new());
    nv
}

/// The minimum and the maximum, over top-level vdevs, of their smallest allocation.
fn smallest_allocations(vdev_tree: &NvList) -> Option<(u64, u64)> {
    let tops = vdev_tree.get_nvlist_array(key::CHILDREN).unwrap_or(&[]);
    let is_data = |top: &&NvList| top.get_u64(key::IS_LOG) != Some(1) && top.get_str(key::TYPE) != Some("hole");
    let sizes = tops.iter().filter(is_data).filter_map(|top| {
        top.get_u64(key::MIN_ALLOC).or_else(|| top.get_u64(key::ASHIFT).and_then(|a| 1u64.checked_shl(a as u32)))
    });
    let (min, max) = sizes.fold((u64::MAX, 0), |(min, max), n| (min.min(n), max.max(n)));
    (max > 0).then_some((min, max))
}

/// Updates what a configuration says of its top-level vdevs (OpenZFS: `vdev_top_config_generate`).
pub(crate) fn describe_tops(nv: &mut NvList) {
    let Some(tree) = nv.get_nvlist(key::VDEV_TREE) else { return };
    let tops = tree.get_nvlist_array(key::CHILDREN).unwrap_or(&[]);
    let count = tops.len() as u64;
    let holes = tops.iter().filter(|top| top.get_str(key::TYPE) == Some("hole"));
    let holes: Vec<u64> = holes.filter_map(|top| top.get_u64(key::ID)).collect();
    // older pools do not record it
    if let Some((min, max)) = smallest_allocations(tree).filter(|_| nv.contains(key::MIN_ALLOC)) {
        nv.insert(key::MIN_ALLOC, min);
        nv.insert(key::MAX_ALLOC, max);
    }
    if !holes.is_empty() {
        nv.insert(key::HOLE_ARRAY, holes);
    }
    nv.insert(key::VDEV_CHILDREN, count);
}

/// This machine: its hostid (as OpenZFS finds it: the tunable `spl_hostid`, else `/etc/hostid`, else 0) and its name.
pub(crate) fn host() -> (u32, String) {
    let file = || std::fs::read("/etc/hostid").ok().and_then(|bytes| Some(u32::from_le_bytes(*bytes.first_chunk()?)));
    let id = match tunable::SPL_HOSTID.get() as u32 {
        0 => file().unwrap_or(0),
        given => given,
    };
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    (id, name)
}
