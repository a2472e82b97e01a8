//! Devices that go while a pool is open, and come back.
//!
//! A device that is gone shows by the error of an I/O, by a flush, or when somebody looks ([`VdevTree::look`]): its leaf is *removed* at once, and misses
//! what is written. A device that comes back is used again when its labels say that it is this leaf, in no later state than the pool's, and when it has
//! room for what it had. What it missed is in its DTL, for a resilver.
//!
//! OpenZFS: `vdev_reopen`, `vdev_validate`, `spa_async_remove`.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Guid, Txg};

use crate::config::VdevType;
use crate::device::Device;
use crate::import::probe;
use crate::status::{VdevAux, VdevState};
use crate::tree::{leaf_shares, metaslab_bytes, room_for_blocks};
use crate::{Error, Leaf, TopVdev, VdevTree, label};

impl VdevTree {
    /// Looks whether the devices in use are still there.
    pub fn look(&self) {
        self.leaves().iter().filter(|leaf| leaf.is_usable()).for_each(|leaf| leaf.look_at_device());
    }

    /// The leaves whose devices are gone or could not be opened.
    pub fn absent_leaves(&self) -> impl Iterator<Item = &Arc<Leaf>> {
        let is_absent = |leaf: &&Arc<Leaf>| {
            let state = leaf.health().state;
            !leaf.has_device() && matches!(state, VdevState::Removed | VdevState::CantOpen)
        };
        self.leaves().iter().filter(|leaf| leaf.config().kind != VdevType::DraidSpare).filter(is_absent)
    }

    /// Uses `device` for a leaf of the pool `pool` that has none, if it is the one that the leaf had. The pool has written no txg after `last`.
    ///
    /// # Errors
    /// [`Error::NotReopened`], and the leaf stays without a device.
    pub fn reopen(&self, leaf: &Leaf, device: Arc<dyn Device>, pool: Guid, last: Txg) -> Result<(), Error> {
        let name = device.name();
        self.check_device(leaf, &device, pool, last).map_err(|what| {
            leaf.cannot_open(VdevAux::BadLabel);
            Error::NotReopened { device: name.clone(), what }
        })?;
        match leaf.fill(device) {
            true => Ok(()),
            false => Err(Error::NotReopened { device: name, what: "its vdev has a device" }),
        }
    }

    /// Forgets that a leaf was given up, or failed too often, and puts it to use again with the device that it has. Returns whether the device can be
    /// read and written; a leaf without one can be [reopened](VdevTree::reopen), and one that is offline stays so.
    pub fn recover(&self, leaf: &Leaf) -> bool {
        leaf.pardon();
        leaf.health().state != VdevState::Offline && self.put_to_use(leaf)
    }

    fn put_to_use(&self, leaf: &Leaf) -> bool {
        if !leaf.recover() {
            return false;
        }
        leaf.look_at_device();
        if label::probe(leaf) {
            leaf.forgive();
            return true;
        }
        if leaf.is_usable() {
            self.condemn(leaf);
        }
        false
    }

    /// Takes a leaf offline, `temporarily` until the pool is opened anew. Returns `false`, and nothing is done, if it alone has something; the
    /// caller knows of a log device that was `emptied` that it has not.
    #[must_use]
    pub fn take_offline(&self, leaf: &Leaf, temporarily: bool, emptied: bool) -> bool {
        let was_offline = leaf.health().state == VdevState::Offline;
        if !was_offline && !emptied && self.is_required(leaf.guid()) {
            return false;
        }
        leaf.take_offline(temporarily);
        true
    }

    /// Gives a leaf up because the administrator says so. If it alone has something, it is only degraded, and used on.
    pub fn fault(&self, leaf: &Leaf, temporarily: bool) {
        match self.is_required(leaf.guid()) {
            true if leaf.is_usable() => leaf.degrade(VdevAux::External),
            // its device is gone
            true => {}
            false => leaf.fault(temporarily),
        }
    }

    /// Ends that a leaf is offline: with the device that it has, if it has one; else it can be [reopened](VdevTree::reopen).
    pub fn bring_online(&self, leaf: &Leaf) {
        if leaf.health().state != VdevState::Offline {
            return;
        }
        if leaf.has_device() {
            self.put_to_use(leaf);
        } else {
            leaf.cannot_open(VdevAux::OpenFailed);
        }
    }

    fn check_device(&self, leaf: &Leaf, device: &Arc<dyn Device>, pool: Guid, last: Txg) -> Result<(), &'static str> {
        if !device.is_writable() {
            return Err("it cannot be written");
        }
        let top = self.tops().iter().find(|top| has_leaf(top, leaf));
        let mut shares = HashMap::new();
        if let Some(top) = top {
            leaf_shares(top.config(), metaslab_bytes(top.config()), &mut shares);
        }
        if shares.get(&leaf.guid()).is_some_and(|share| room_for_blocks(device.size()) < *share) {
            return Err("it is smaller than it was");
        }
        let found = probe::device(device.name().into(), device.clone()).ok_or("it has no label")?;
        if !found.may_be(leaf.guid()) || found.label.pool_guid() != Some(pool) {
            return Err("its labels are those of another device");
        }
        match found.label.txg() <= last {
            true => Ok(()),
            false => Err("its labels are of a later state of the pool"),
        }
    }
}

fn has_leaf(top: &TopVdev, leaf: &Leaf) -> bool {
    top.config().leaves().any(|one| one.guid == leaf.guid())
}
