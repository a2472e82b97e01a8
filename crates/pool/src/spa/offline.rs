//! Devices that the administrator takes out of use, and puts to use again (OpenZFS: `vdev_offline`, `vdev_fault`, `vdev_online`).
//!
//! A device that alone has something is not taken out of use. A log device may be the only one: it is no longer allocated from, then every intent log
//! ends its chain, and when nothing is left on it the device goes. Logs are placed elsewhere until it is online again. A cache device is needed by
//! nobody; the pool's list of caches says that it is offline.

use std::sync::Arc;

use base::Guid;
use nvlist::NvList;
use ondisk::label::key;
use vdev::{Leaf, TopVdev, VdevState, VdevTree, VdevType};

use crate::Error;
use crate::spa::datasets::Datasets;
use crate::spa::{Spa, VdevRefusal};

impl Spa {
    /// Takes a device offline, `temporarily` until the pool is opened anew. Until it is online again it misses what is written.
    ///
    /// # Errors
    /// [`Error::Vdevs`], and nothing was done: [`VdevRefusal::NoDevice`], [`VdevRefusal::NotSupported`] if it is a vdev of devices,
    /// [`VdevRefusal::NoReplicas`] if it alone has something, [`VdevRefusal::UnplayedLogs`] and [`VdevRefusal::Checkpoint`] if a log device cannot be
    /// emptied; [`Error::Suspended`].
    pub fn offline_vdev(self: &Arc<Self>, guid: Guid, temporarily: bool) -> Result<(), Error> {
        let _alone = self.vdev_change.lock();
        let tree = self.tree();
        let Some(leaf) = tree.leaf(guid) else {
            return match self.cache(guid)? {
                // no command looks into it before the pool is opened anew
                Some(_) if temporarily => Ok(()),
                Some(_) => self.mark_cache(guid, true),
                None => Err(no_leaf(&tree, guid)),
            };
        };
        if is_distributed_spare(&tree, guid) {
            return Err(Error::Vdevs(VdevRefusal::NotSupported));
        }
        let is_alone = leaf.health().state != VdevState::Offline && tree.is_required(guid);
        match log_of(&tree, guid).filter(|_| is_alone) {
            Some(log) => self.offline_log(log, leaf, temporarily)?,
            None if !tree.take_offline(leaf, temporarily, false) => return Err(Error::Vdevs(VdevRefusal::NoReplicas)),
            None => {}
        }
        self.record_now()
    }

    /// Empties a log device, and takes `leaf` offline, without which it cannot be used.
    fn offline_log(self: &Arc<Self>, log: &TopVdev, leaf: &Leaf, temporarily: bool) -> Result<(), Error> {
        let retired = self.space.retire(log.id());
        let done = self.pause_logs().and_then(|_paused| {
            match self.is_empty_log(log.id()) {
                true => {}
                false if self.feature_active(&self.live_mos()?, "zpool_checkpoint")? => {
                    return Err(Error::Vdevs(VdevRefusal::Checkpoint));
                }
                false => return Err(Error::Vdevs(VdevRefusal::UnplayedLogs)),
            }
            match self.tree().take_offline(leaf, temporarily, true) {
                true => Ok(()),
                false => Err(Error::Vdevs(VdevRefusal::NoReplicas)),
            }
        });
        if retired && done.is_err() {
            self.space.reinstate(log.id());
        }
        done
    }

    /// Gives a device up because the administrator says so, `temporarily` until the pool is opened anew. One that alone has something is degraded, and
    /// used on. Returns its state.
    ///
    /// # Errors
    /// [`Error::Vdevs`] with [`VdevRefusal::NoDevice`] or [`VdevRefusal::NotSupported`]; [`Error::Suspended`].
    pub fn fault_vdev(self: &Arc<Self>, guid: Guid, temporarily: bool) -> Result<VdevState, Error> {
        let _alone = self.vdev_change.lock();
        let tree = self.tree();
        let leaf = tree.leaf(guid).ok_or_else(|| no_leaf(&tree, guid))?;
        tree.fault(leaf, temporarily);
        self.record_now()?;
        Ok(leaf.health().state)
    }

    /// Uses a device again that was offline or gone. Returns the state that it is in then; what it missed a resilver brings. Of a vdev of devices those
    /// that are gone are looked for.
    ///
    /// # Errors
    /// [`Error::Vdevs`] with [`VdevRefusal::NoDevice`]; [`Error::Suspended`].
    pub fn online_vdev(self: &Arc<Self>, guid: Guid) -> Result<VdevState, Error> {
        let _alone = self.vdev_change.lock();
        let tree = self.tree();
        let Some(leaf) = tree.leaf(guid) else {
            return match tree.config().walk().any(|vdev| vdev.guid == guid) {
                true => self.online_inner(&tree, guid),
                false => self.online_cache(guid),
            };
        };
        let before = leaf.health().state;
        tree.bring_online(leaf);
        self.reopen_devices(&|leaf| leaf.guid() == guid);
        self.tell_states();
        let now = leaf.health().state;
        if before == VdevState::Offline || came_back(before, now) {
            self.notify_leaf("sysevent", "vdev_online", leaf, &[]);
        }
        if let Some(log) = log_of(&tree, guid).filter(|log| tree.can_be_written(log)) {
            self.space.reinstate(log.id());
        }
        self.record_now()?;
        self.want_resilver();
        self.wake_leaf_work();
        Ok(leaf.health().state)
    }

    /// Looks for the devices of a vdev that has some below it. Returns its state.
    fn online_inner(self: &Arc<Self>, tree: &VdevTree, guid: Guid) -> Result<VdevState, Error> {
        let state = || tree.status().walk().find(|vdev| vdev.guid == guid).map(|vdev| vdev.state);
        let no_device = || Error::Vdevs(VdevRefusal::NoDevice);
        let vdev = tree.config().walk().find(|vdev| vdev.guid == guid).ok_or_else(no_device)?;
        let before = state().ok_or_else(no_device)?;
        tree.look();
        self.reopen_devices(&|leaf| vdev.leaves().any(|own| own.guid == leaf.guid()));
        self.tell_states();
        let now = state().ok_or_else(no_device)?;
        if came_back(before, now) {
            self.notify_vdev("vdev_online", guid, None);
        }
        self.record_now()?;
        self.want_resilver();
        self.wake_leaf_work();
        Ok(now)
    }

    fn online_cache(self: &Arc<Self>, guid: Guid) -> Result<VdevState, Error> {
        let Some(cache) = self.cache(guid)? else { return Err(Error::Vdevs(VdevRefusal::NoDevice)) };
        if cache.get_u64(key::OFFLINE) == Some(1) {
            self.mark_cache(guid, false)?;
            self.notify_vdev("vdev_online", guid, cache.get_str(key::PATH));
        }
        Ok(VdevState::Healthy)
    }

    /// The cache device of this guid, as the pool's list has it.
    fn cache(&self, guid: Guid) -> Result<Option<NvList>, Error> {
        let caches = self.view()?.l2cache()?;
        Ok(caches.into_iter().find(|cache| cache.get_u64(key::GUID) == Some(guid.0)))
    }

    /// Notes in the pool's list whether a cache device is offline.
    fn mark_cache(self: &Arc<Self>, guid: Guid, offline: bool) -> Result<(), Error> {
        self.sync_task(move |cx| {
            let mut caches = cx.aux(key::L2CACHE)?;
            for cache in caches.iter_mut().filter(|cache| cache.get_u64(key::GUID) == Some(guid.0)) {
                cache.remove_all(key::OFFLINE);
                if offline {
                    cache.insert(key::OFFLINE, 1u64);
                }
            }
            cx.spa.aux_list(cx.mos, cx.tx, key::L2CACHE, &caches)
        })
    }
}

/// Returns the reason why there is no leaf of this guid.
fn no_leaf(tree: &VdevTree, guid: Guid) -> Error {
    let known = tree.config().walk().any(|vdev| vdev.guid == guid);
    Error::Vdevs(if known { VdevRefusal::NotSupported } else { VdevRefusal::NoDevice })
}

/// Returns the log device that a leaf belongs to.
fn log_of(tree: &VdevTree, leaf: Guid) -> Option<&TopVdev> {
    let mut logs = tree.tops().iter().filter(|top| top.config().is_log);
    logs.find(|top| top.config().leaves().any(|own| own.guid == leaf))
}

fn is_distributed_spare(tree: &VdevTree, guid: Guid) -> bool {
    tree.config().leaves().any(|leaf| leaf.guid == guid && leaf.kind == VdevType::DraidSpare)
}

fn came_back(before: VdevState, now: VdevState) -> bool {
    before < VdevState::Degraded && now >= VdevState::Degraded
}
