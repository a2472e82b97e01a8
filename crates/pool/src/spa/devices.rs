//! The devices of an open pool: those that go, those that come back, and the record of it in the configuration (OpenZFS: `spa_async_remove`,
//! `vdev_reopen`, `vdev_fault`, `vdev_degrade`).
//!
//! A leaf changes its state at once, wherever its device fails ([`vdev::Leaf::health`]). The sync thread writes that into the configuration with the
//! next txg, so that other processes see it, too. Between txgs, and before each, it looks whether devices have gone that nobody uses just now, and
//! whether one is back.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Guid, Txg};
use nvlist::NvList;
use ondisk::label::key;
use parking_lot::Mutex;
use vdev::device::{self, Access};
use vdev::{Device, Health, Leaf, VdevAux, VdevState};

use crate::Error;
use crate::spa::Spa;

/// Opens the device of a leaf again: by its path, for writing.
pub type OpenDevice = dyn Fn(&str) -> Result<Arc<dyn Device>, vdev::Error> + Send + Sync;

/// Opens a device by its name, for writing.
pub(crate) fn open_named(name: &str) -> Result<Arc<dyn Device>, vdev::Error> {
    device::open(name.as_ref(), Access::Write)
}

/// The states of leaves as the configuration has them, and as events told of them.
#[derive(Debug, Default)]
pub(crate) struct Recorded(Mutex<HashMap<Guid, Health>>, Mutex<HashMap<Guid, VdevState>>);

impl Spa {
    /// Looks for devices that have gone and for those that are back.
    pub(crate) fn look_after_devices(&self) {
        self.tree().look();
        if self.reopen_devices(&|_| true) {
            self.want_resilver();
            self.wake_leaf_work();
        }
    }

    /// The same between txgs. A change is written with the next one, which follows at once.
    pub(crate) fn look_while_idle(&self) {
        self.look_after_devices();
        if self.is_health_unrecorded() || self.tree().has_new_ends() || self.is_about_to_grow() {
            self.txgs.note_work();
            self.txgs.follow_up();
        }
    }

    /// Opens the devices of those of the `wanted` leaves again that have none. Returns whether one is used again.
    pub(crate) fn reopen_devices(&self, wanted: &dyn Fn(&Leaf) -> bool) -> bool {
        let (tree, mut back) = (self.tree(), Vec::new());
        // the label may be of the txg that is being synced
        let last = Txg(self.txgs.synced().0 + 1);
        for leaf in tree.absent_leaves().filter(|leaf| wanted(leaf)) {
            let paths = [Some(leaf.name()), leaf.path()];
            let found = paths.iter().flatten().find_map(|path| (self.hooks.open_device)(path).ok());
            if let Some(device) = found {
                // a device that is not the right one leaves its reason with the leaf
                back.extend(tree.reopen(leaf, device, tree.config().guid, last).is_ok().then(|| leaf.guid()));
            }
        }
        self.unspare(&back);
        !back.is_empty()
    }

    /// Looks for devices that have gone and for those that are back (OpenZFS: `vdev_reopen` of the root). What those have missed a resilver brings, in the
    /// place of a scrub that is under way; if not `restart`, that goes on.
    ///
    /// # Errors
    /// When the MOS cannot be read; [`Error::Suspended`].
    pub fn reopen(self: &Arc<Self>, restart: bool) -> Result<(), Error> {
        let _alone = self.vdev_change.lock();
        let goes_on = !restart && self.is_scrubbing()?;
        self.tree().look();
        self.reopen_devices(&|_| true);
        self.record_now()?;
        if !goes_on {
            self.want_resilver();
            self.wake_leaf_work();
        }
        Ok(())
    }

    /// Writes the states of leaves, if they have changed, and waits for it.
    pub(crate) fn record_now(&self) -> Result<(), Error> {
        if self.has_afterthoughts() {
            self.txgs.note_work();
            self.sync()?;
        }
        Ok(())
    }

    pub(crate) fn is_health_unrecorded(&self) -> bool {
        let recorded = self.recorded.0.lock();
        let tree = self.tree();
        tree.leaves().iter().any(|leaf| recorded.get(&leaf.guid()) != Some(&leaf.health()))
    }

    /// Returns whether the end of a txg left something to record: txgs that leaves missed, errors to judge, states.
    pub(crate) fn has_afterthoughts(&self) -> bool {
        let tree = self.tree();
        tree.has_dirty_dtls() || tree.has_new_errors() || tree.has_new_ends() || self.is_health_unrecorded()
    }

    /// Forgets what the configuration has of the states of leaves.
    pub(crate) fn forget_health(&self) {
        self.recorded.0.lock().clear();
    }

    /// The pool was open before: devices that were pulled out then have changed their state if they are back.
    pub(crate) fn recall_removed(&self) {
        let mut told = self.recorded.1.lock();
        for config in self.tree().config().leaves().filter(|config| config.removed) {
            told.insert(config.guid, VdevState::Removed);
        }
    }

    /// Posts events of the leaves whose states have changed (OpenZFS: `zfs_post_state_change`). The first state of a leaf is no change.
    pub(crate) fn tell_states(&self) {
        let (mut told, mut any) = (self.recorded.1.lock(), false);
        for leaf in self.tree().leaves() {
            let state = leaf.health().state;
            if let Some(last) = told.insert(leaf.guid(), state).filter(|last| *last != state) {
                self.notify_leaf("resource", "statechange", leaf, &[("vdev_laststate", last.number())]);
                any = true;
            }
        }
        drop(told);
        if any {
            self.want_spares();
        }
    }

    /// Writes the states of leaves that have changed into the configuration.
    pub(crate) fn record_health(&self) {
        self.tell_states();
        let tree = self.tree();
        let mut recorded = self.recorded.0.lock();
        for leaf in tree.leaves() {
            let health = leaf.health();
            if recorded.insert(leaf.guid(), health) == Some(health) {
                continue;
            }
            let mut known = NvList::new();
            self.look_at_vdev(leaf.guid().0, &mut |vdev| known = vdev.clone());
            let mut new = known.clone();
            describe(&mut new, health, leaf);
            if new != known {
                self.edit_vdev(leaf.guid().0, &mut |vdev| *vdev = new.clone());
            }
        }
    }
}

/// Puts the state of a leaf into its configuration. A device that cannot be opened leaves there what was known of it.
fn describe(vdev: &mut NvList, health: Health, leaf: &Leaf) {
    let (Health { state, aux }, temporary) = (health, leaf.is_temporary());
    if vdev.is_empty() {
        return;
    }
    if state == VdevState::CantOpen {
        // it would say so if it were offline
        vdev.remove_all(key::OFFLINE);
        return;
    }
    for name in [key::OFFLINE, key::FAULTED, key::DEGRADED, key::REMOVED, key::AUX_STATE] {
        let flag = match name {
            key::OFFLINE => state == VdevState::Offline && !temporary,
            key::FAULTED => state == VdevState::Faulted && !temporary,
            key::DEGRADED => leaf.degraded().is_some(),
            key::REMOVED => state == VdevState::Removed,
            _ => false,
        };
        // a device that is gone is degraded for the same reason when it is back
        let why = match leaf.degraded().filter(|_| state == VdevState::Removed).unwrap_or(aux) {
            VdevAux::ErrExceeded => Some("err_exceeded"),
            VdevAux::External => Some("external"),
            _ => None,
        };
        match why.filter(|_| name == key::AUX_STATE && !temporary) {
            Some(why) => vdev.insert(name, why),
            None if flag => vdev.insert(name, 1u64),
            None if vdev.get_u64(name) != Some(0) => drop(vdev.remove_all(name)),
            None => {}
        }
    }
}
