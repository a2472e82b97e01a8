//! Mirrors that are split: one device of each becomes a pool of its own (OpenZFS: `spa_vdev_split_mirror`).
//!
//! # Procedure
//! 1. The intent logs end, and none begins until the split is over. In a sync task the devices are taken offline, for this process alone: they have
//!    the state of the txg before, whole, with its uberblock. From now on they miss what the pool writes.
//! 2. The new pool is opened from them, with a configuration that is made of the pool's: the devices in the places of their mirrors, holes in those of logs, another
//!    name and guid. Its first txg makes that its own, and the labels of the devices. Then objects go that belong to devices it does not have; it is exported.
//! 3. A sync task takes the devices out of the pool, all in one txg.
//!
//! # After a crash
//! Before the first txg of the new pool is committed the devices are those of the old one, and a resilver brings what they miss; labels that name both pools count as
//! their uberblocks say (`vdev::import`). From then on they are those of the new pool; if the old one has not yet let go of them, they are missing there, and can be detached. The
//! old pool is whole either way: nothing was on these devices alone.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::Guid;
use nvlist::NvList;
use ondisk::label::key;
use vdev::import::{Candidate, PoolState};
use vdev::{Device, TopVdev, VdevConfig, VdevState, VdevTree, VdevType};

use crate::spa::config::describe_tops;
use crate::spa::datasets::Datasets;
use crate::spa::metaslab::alloc::{forget_leaf, forget_vdev};
use crate::spa::vdevs::hole;
use crate::spa::{Hooks, Spa, TaskCx, VdevRefusal, detach, surgery};
use crate::{Error, ImportOptions, OpenOptions, Value};

/// How often, and how many times, it is looked whether a device is still written that is split off.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const LOOKS: u32 = 2000;

/// The states of a leaf in a configuration that a new pool does not take over.
const OF_OLD: [&str; 7] =
    [key::DTL, key::RESILVER_TXG, key::OFFLINE, key::FAULTED, key::DEGRADED, key::REMOVED, key::AUX_STATE];

/// A device that is split off.
struct Leaving {
    guid: Guid,
    device: Arc<dyn Device>,
}

impl Spa {
    /// Makes the pool `name` of one device of each mirror, and exports it. `chosen` has these devices in the order of the top-level vdevs, guid 0 in the places of
    /// logs, holes and removed vdevs; logs at the end may be left out. The properties `props` are set in the new pool. Datasets may be open. Returns its guid.
    ///
    /// # Errors
    /// [`Error::Vdevs`], and nothing was done: [`VdevRefusal::BadValue`] if there cannot be such a pool, [`VdevRefusal::NoVdev`], [`VdevRefusal::NoReplicas`] for
    /// a device that alone has something, or has missed something, [`VdevRefusal::Checkpoint`]; when the new pool cannot be made, and the devices stay in the
    /// old one; [`Error::Suspended`].
    pub fn split(self: &Arc<Self>, name: &str, chosen: &[Guid], props: Vec<(String, Value)>) -> Result<Guid, Error> {
        crate::check_pool_name(name).map_err(|bad| Error::InvalidName { name: name.to_owned(), why: bad.why() })?;
        let _alone = self.vdev_change.lock();
        self.check_no_checkpoint()?;
        check_chosen(&self.tree(), chosen)?;
        let _paused = self.pause_logs()?;
        // all devices have a state of their own to begin with
        self.edit_config(|_| {});
        self.sync()?;
        let own: Vec<Guid> = chosen.iter().copied().filter(|guid| guid.0 != 0).collect();
        let taken = own.clone();
        let (leaving, config) = self.sync_task(move |cx| cx.take_aside(&taken))?;
        let guid = self.new_guid();
        let made = split_config(config, (name, guid), chosen).and_then(|config| {
            leaving.iter().for_each(wait_until_idle);
            let found = found(&leaving, &config, (name, guid))?;
            drop(leaving);
            self.make_split(found, config, props)
        });
        if let Err(error) = made {
            self.take_back(&own);
            return Err(error);
        }
        self.sync_task(move |cx| own.iter().try_for_each(|guid| cx.let_go(*guid)))?;
        self.notify("config_sync", &NvList::new());
        Ok(guid)
    }

    /// Opens the new pool from its devices, makes it its own, and exports it.
    fn make_split(&self, found: Candidate, config: NvList, props: Vec<(String, Value)>) -> Result<(), Error> {
        let hooks = Hooks {
            held_elsewhere: None,
            readers: None,
            suspend_watch: None,
            synced: None,
            starts: None,
            never_suspends: true,
            ..self.hooks.clone()
        };
        let open = OpenOptions { assemble: Some(Arc::new(config)), ..OpenOptions::default() };
        let options = ImportOptions { open, force: true, ..ImportOptions::default() };
        let new = Spa::import_own(found, &options, hooks)?;
        let from = format!("from pool {}", self.name());
        let old = self.config.lock().nv.clone();
        let settled = new.sync_task(move |cx| {
            cx.forget_others(&old)?;
            cx.spa.log_internal(cx.mos, cx.tx, "split", &from)
        });
        let settled = settled.and_then(|()| if props.is_empty() { Ok(()) } else { new.set_pool_props(props) });
        // the error is what counts
        let exported = new.export();
        settled.and(exported)
    }

    /// Uses devices again that were taken aside.
    fn take_back(self: &Arc<Self>, own: &[Guid]) {
        let tree = self.tree();
        own.iter().filter_map(|guid| tree.leaf(*guid)).for_each(|leaf| tree.bring_online(leaf));
        self.reopen_devices(&|leaf| own.contains(&leaf.guid()));
        self.want_resilver();
    }
}

/// Checks that the devices can be split off.
fn check_chosen(tree: &VdevTree, chosen: &[Guid]) -> Result<(), Error> {
    let refuse = |why| Err(Error::Vdevs(why));
    let is_aside = |top: &TopVdev| top.config().is_log || !(top.is_concrete() || top.is_indirect());
    let logs_at_end = tree.tops().iter().rev().take_while(|top| is_aside(top)).count();
    if chosen.len() + logs_at_end != tree.tops().len() || chosen.is_empty() {
        return refuse(VdevRefusal::BadValue);
    }
    for (top, guid) in tree.tops().iter().zip(chosen) {
        if is_aside(top) || top.is_indirect() {
            match guid.0 {
                0 => continue,
                _ => return refuse(VdevRefusal::BadValue),
            }
        }
        if tree.config().walk().all(|vdev| vdev.guid != *guid) {
            return refuse(VdevRefusal::NoVdev);
        }
        let config = top.config();
        let child = config.children.iter().find(|child| child.guid == *guid);
        let is_good = child.is_some_and(|child| child.kind.is_leaf() && config.kind == VdevType::Mirror);
        let leaf = tree.leaf(*guid).filter(|leaf| is_good && leaf.is_writable());
        let leaf = leaf.ok_or(Error::Vdevs(VdevRefusal::BadValue))?;
        if leaf.health().state != VdevState::Healthy {
            return refuse(VdevRefusal::BadValue);
        }
        if leaf.is_stale() || tree.is_required(*guid) {
            return refuse(VdevRefusal::NoReplicas);
        }
    }
    Ok(())
}

/// Waits until nothing is under way on a device that its pool does not use any more.
fn wait_until_idle(leaving: &Leaving) {
    for _ in 0..LOOKS {
        if Arc::strong_count(&leaving.device) == 1 {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The configuration of the new pool.
fn split_config(mut config: NvList, (name, guid): (&str, Guid), chosen: &[Guid]) -> Result<NvList, Error> {
    let bad = || Error::Bug("a device that is split off is in no mirror".to_string());
    let root = config.get_nvlist_mut(key::VDEV_TREE).ok_or_else(bad)?;
    root.insert(key::GUID, guid.0);
    let tops = root.get_nvlist_array_mut(key::CHILDREN).ok_or_else(bad)?;
    tops.truncate(chosen.len());
    for (id, (top, chosen)) in (0u64..).zip(tops.iter_mut().zip(chosen)) {
        if chosen.0 == 0 {
            if top.get_str(key::TYPE) != Some(VdevType::Indirect.name()) {
                *top = hole(id);
            }
            continue;
        }
        let children = top.get_nvlist_array(key::CHILDREN).unwrap_or(&[]);
        let mut leaf =
            children.iter().find(|leaf| leaf.get_u64(key::GUID) == Some(chosen.0)).cloned().ok_or_else(bad)?;
        surgery::move_place(&mut top.clone(), &mut leaf);
        leaf.insert(key::ID, id);
        for name in OF_OLD {
            leaf.remove_all(name);
        }
        *top = leaf;
    }
    config.insert(key::POOL_NAME, name);
    config.insert(key::POOL_GUID, guid.0);
    config.insert(key::POOL_STATE, PoolState::Active.number());
    config.remove_all(key::HOLE_ARRAY);
    describe_tops(&mut config);
    Ok(config)
}

/// The new pool, as if it had been found on its devices.
fn found(leaving: &[Leaving], config: &NvList, (name, guid): (&str, Guid)) -> Result<Candidate, Error> {
    let devices = leaving.iter().map(|one| (PathBuf::from(one.device.name()), Arc::clone(&one.device))).collect();
    let lost = || Error::Bug("the devices that are split off are not found again".to_string());
    let found = vdev::import::scan_devices(devices).into_iter().next().ok_or_else(lost)?;
    let devices: Vec<_> = found.devices.iter().chain(&found.stale).cloned().collect();
    if devices.len() != leaving.len() {
        return Err(lost());
    }
    Ok(Candidate {
        guid,
        name: name.to_owned(),
        state: PoolState::Active,
        config: config.clone(),
        devices,
        stale: Vec::new(),
        missing: Vec::new(),
        missing_tops: Vec::new(),
        errors: Arc::default(),
        ..found
    })
}

impl TaskCx<'_> {
    /// Takes devices offline before the txg is written, and gives them with the configuration that the pool has. They have the txg before.
    fn take_aside(&self, own: &[Guid]) -> Result<(Vec<Leaving>, NvList), Error> {
        let tree = self.spa.tree();
        let mut leaving = Vec::new();
        for guid in own {
            let leaf = tree.leaf(*guid).ok_or(Error::Vdevs(VdevRefusal::NoVdev))?;
            let device = leaf.device().filter(|_| leaf.health().state == VdevState::Healthy && !leaf.is_stale());
            let device = device.ok_or(Error::Vdevs(VdevRefusal::BadValue))?;
            leaving.push(Leaving { guid: *guid, device });
        }
        let is_offline = |one: &Leaving| tree.leaf(one.guid).is_some_and(|leaf| tree.take_offline(leaf, true, false));
        match leaving.iter().all(is_offline) {
            true => Ok((leaving, self.spa.config.lock().nv.clone())),
            false => {
                leaving.clear();
                self.spa.take_back(own);
                Err(Error::Vdevs(VdevRefusal::NoReplicas))
            }
        }
    }

    /// Takes a device out of its mirror for good.
    fn let_go(&self, guid: Guid) -> Result<(), Error> {
        let path = self.spa.tree().leaf(guid).and_then(|leaf| leaf.path()).unwrap_or_else(|| "none".to_owned());
        detach::detach(self, guid, None)?;
        self.spa.log_internal(self.mos, self.tx, "detach", &format!("vdev={path}"))
    }

    /// Frees the objects of the vdevs that the pool does not have any more, of those in the configuration `old`: siblings of its devices, logs, spares and caches.
    fn forget_others(&self, old: &NvList) -> Result<(), Error> {
        let own = self.spa.tree();
        let vdevs = old.get_nvlist(key::VDEV_TREE).ok_or_else(|| Error::Bug("a pool without vdevs".to_string()))?;
        for top in VdevConfig::parse(vdevs)?.children {
            let is_there = own.top(top.id).is_some_and(|own| own.is_concrete() || own.is_indirect());
            if !is_there && top.is_log {
                forget_vdev(self, &top)?;
            }
            if is_there && top.kind == VdevType::Mirror {
                let mut leaves = top.leaves().cloned().collect::<Vec<_>>();
                for leaf in &mut leaves {
                    if own.leaf(leaf.guid).is_some() {
                        // its missed txgs are those of the old pool
                        leaf.leaf_zap = base::ObjectId::NONE;
                    }
                    forget_leaf(self, leaf)?;
                }
            }
        }
        for name in [key::SPARES, key::L2CACHE] {
            if !self.aux(name)?.is_empty() {
                self.spa.aux_list(self.mos, self.tx, name, &[])?;
            }
        }
        Ok(())
    }
}
