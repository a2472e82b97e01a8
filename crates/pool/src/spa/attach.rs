//! Devices that get a sibling, for good or to be replaced by it (OpenZFS: `spa_vdev_attach`).
//!
//! The new device is written from the txg on that is being synced when it joins ([`super::vdevs`] has the procedure). Blocks of the two txgs behind
//! that one may be written before them, by who took the tree before; so it counts as having missed everything up to the last of them, and the resilver
//! that brings it waits for that one ([`super::scan`]).
//!
//! A device that replaces another is its sibling below a *replacing* vdev, a spare below a *spare* vdev. When a replacement has everything, the old device
//! is [detached](super::detach) by itself.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Guid, Txg};
use nvlist::NvList;
use ondisk::ObjectType;
use ondisk::label::key;
use vdev::create::NewPool;
use vdev::{Device, Newcomers, VdevConfig, VdevTree, VdevType};

use crate::Error;
use crate::spa::create::TXG_INITIAL;
use crate::spa::metaslab::alloc::ALL_VDEV_ZAPS;
use crate::spa::surgery::{self, Parent};
use crate::spa::{Spa, TaskCx, VdevRefusal};

/// The state in the labels of a spare that serves nowhere.
const POOL_STATE_SPARE: u64 = 3;
/// How many txgs are under way at a time (OpenZFS: `TXG_CONCURRENT_STATES`).
pub(crate) const CONCURRENT_TXGS: u64 = 3;

/// A device that is to be a leaf of a pool.
#[derive(Debug)]
struct Newcomer {
    /// Its configuration.
    leaf: NvList,
    guid: Guid,
    path: String,
    device: Arc<dyn Device>,
    /// Bytes between its labels.
    asize: u64,
    ashift: u64,
    /// Whether it is a spare of this pool.
    is_spare: bool,
}

impl Newcomer {
    /// Takes the only device of vdevs that were laid out as for [`Spa::add_vdevs`].
    fn of(mut new: NewPool) -> Result<Newcomer, Error> {
        let invalid = || Error::Vdevs(VdevRefusal::BadValue);
        let [top] = new.vdev_tree.get_nvlist_array(key::CHILDREN).unwrap_or(&[]) else { return Err(invalid()) };
        if !new.spares.is_empty() || !new.l2cache.is_empty() || top.contains(key::CHILDREN) {
            return Err(invalid());
        }
        let number = |name| top.get_u64(name).unwrap_or(0);
        let (guid, asize, ashift) = (Guid(number(key::GUID)), number(key::ASIZE), number(key::ASHIFT));
        let path = top.get_str(key::PATH).ok_or_else(invalid)?.to_owned();
        let mut leaf = top.clone();
        surgery::forget_place(&mut leaf);
        let device = new.devices.remove(&guid).ok_or_else(invalid)?;
        Ok(Newcomer { leaf, guid, path, device, asize, ashift, is_spare: false })
    }

    /// It is the spare that the pool knows by this guid.
    fn be_spare(&mut self, guid: Guid) {
        self.guid = guid;
        self.is_spare = true;
        self.leaf.insert(key::GUID, guid.0);
        self.leaf.insert(key::IS_SPARE, 1u64);
    }
}

impl Spa {
    /// Gives the device `old` a sibling, laid out with [`Spa::layout_options`] as a vdev of its own; with `replacing` one that takes its place as soon as
    /// it has everything. The previous contents of the new device are lost. A resilver begins in the background. Datasets may be open.
    ///
    /// # Errors
    /// [`Error::Vdevs`], and nothing was done; when the new device cannot be written, and it is not in the pool; [`Error::Suspended`].
    pub fn attach_vdev(self: &Arc<Self>, old: Guid, new: NewPool, replacing: bool) -> Result<(), Error> {
        self.attach(old, new, replacing, None)
    }

    /// As [`Spa::attach_vdev`]. With `spare`, only if the new device is that spare of the pool.
    pub(crate) fn attach(
        self: &Arc<Self>,
        old: Guid,
        new: NewPool,
        replacing: bool,
        spare: Option<Guid>,
    ) -> Result<(), Error> {
        let alone = self.vdev_change.lock();
        self.check_no_checkpoint()?;
        let tree = self.tree();
        check_idle(&tree)?;
        let (parent, old_config) = find_leaf(tree.config(), old)?;
        let mut new = Newcomer::of(new)?;
        let own = self.spare_on(&*new.device, &tree, replacing)?;
        if spare.is_some_and(|spare| own != Some(spare)) {
            return Err(Error::Vdevs(VdevRefusal::InUse));
        }
        if let Some(own) = own {
            new.be_spare(own);
        }
        let kind = check_kinship(&tree, parent, old_config, &new, replacing)?;
        check_fit(&tree, old_config, &new)?;
        let what = describe(&new, old_config, replacing);
        drop(tree);

        let parent = Parent { kind, guid: self.new_guid() };
        let joining = Joining { old, parent, leaf: new.leaf, guid: new.guid, device: new.device };
        joining.init_label(self)?;
        let guid = joining.guid;
        self.sync_task(move |cx| {
            joining.join(cx)?;
            cx.spa.log_internal(cx.mos, cx.tx, "vdev attach", &what)
        })?;
        drop(alone);
        if new.is_spare {
            self.notify_vdev("vdev_spare", guid, Some(&new.path));
        }
        self.notify_vdev("vdev_attach", guid, Some(&new.path));
        self.notify("config_sync", &NvList::new());
        Ok(())
    }

    /// Refuses what cannot be undone by a rewind to the checkpoint.
    pub(crate) fn check_no_checkpoint(&self) -> Result<(), Error> {
        match self.feature_active(&self.live_mos()?, "zpool_checkpoint")? {
            true => Err(Error::Vdevs(VdevRefusal::Checkpoint)),
            false => Ok(()),
        }
    }

    /// The spare of this pool that a device is, by its labels. A device that the pool uses, or has as a cache, is refused, and so is a spare that serves in
    /// another pool: its labels have its guid there, too (OpenZFS: `vdev_inuse`).
    fn spare_on(&self, device: &dyn Device, tree: &VdevTree, replacing: bool) -> Result<Option<Guid>, Error> {
        let view = self.view()?;
        let has = |list: &[NvList], guid: Guid| list.iter().any(|device| device.get_u64(key::GUID) == Some(guid.0));
        let (spares, caches) = (view.spares()?, view.l2cache()?);
        let mut found = None;
        for label in vdev::label::read_labels(device).into_iter().flatten() {
            let Some(guid) = label.guid() else { continue };
            let is_spare = has(&spares, guid);
            let is_aside = label.config.get_u64(key::POOL_STATE) == Some(POOL_STATE_SPARE);
            // a label with txg 0 is of nobody yet, or not any more
            let is_others = !is_aside && label.txg().0 != 0 && label.pool_guid() != Some(tree.config().guid);
            if tree.leaf(guid).is_some() || has(&caches, guid) || is_spare && (!replacing || is_others) {
                return Err(Error::Vdevs(VdevRefusal::InUse));
            }
            if is_spare {
                found = Some(guid);
            }
        }
        Ok(found)
    }

    /// Returns a guid that no vdev of the pool has.
    pub(crate) fn new_guid(&self) -> Guid {
        loop {
            let guid = Guid(self.env().random_u64());
            if guid.0 != 0 && self.tree().config().walk().all(|vdev| vdev.guid != guid) {
                return guid;
            }
        }
    }
}

/// Refuses a change of siblings while data is moved or rebuilt.
fn check_idle(tree: &VdevTree) -> Result<(), Error> {
    if tree.config().walk().any(|vdev| vdev.rebuild_txg.0 != 0) {
        return Err(Error::Vdevs(VdevRefusal::Rebuilding));
    }
    match tree.config().children.iter().any(|top| top.removing) {
        true => Err(Error::Vdevs(VdevRefusal::Removing)),
        false => Ok(()),
    }
}

/// The leaf of this guid and its parent.
pub(crate) fn find_leaf(root: &VdevConfig, guid: Guid) -> Result<(&VdevConfig, &VdevConfig), Error> {
    let found = root.walk().find_map(|parent| Some((parent, parent.children.iter().find(|vdev| vdev.guid == guid)?)));
    let (parent, vdev) = found.ok_or(Error::Vdevs(VdevRefusal::NoVdev))?;
    match vdev.kind.is_leaf() || vdev.kind == VdevType::DraidSpare {
        true => Ok((parent, vdev)),
        false => Err(Error::Vdevs(VdevRefusal::NotSupported)),
    }
}

pub(crate) fn is_spare(vdev: &VdevConfig) -> bool {
    vdev.raw.get_u64(key::IS_SPARE) == Some(1)
}

/// The top-level vdev that a vdev belongs to.
pub(crate) fn top_of(tree: &VdevTree, vdev: Guid) -> Option<&VdevConfig> {
    tree.config().children.iter().find(|top| top.walk().any(|below| below.guid == vdev))
}

/// The vdev that is to be the parent of both, if they may be siblings.
fn check_kinship(
    tree: &VdevTree,
    parent: &VdevConfig,
    old: &VdevConfig,
    new: &Newcomer,
    replacing: bool,
) -> Result<VdevType, Error> {
    let refuse = |why| Err(Error::Vdevs(why));
    if !replacing {
        return match parent.kind {
            VdevType::Mirror | VdevType::Root => Ok(VdevType::Mirror),
            _ => refuse(VdevRefusal::NotSupported),
        };
    }
    let is_log = top_of(tree, old.guid).is_some_and(|top| top.is_log);
    if new.is_spare && is_log {
        return refuse(VdevRefusal::NotSupported);
    }
    if parent.kind == VdevType::Spare && new.is_spare != is_spare(old) {
        return refuse(VdevRefusal::NotSupported);
    }
    // below a replacing vdev of a spare vdev as well
    let has_spare =
        |vdev: &VdevConfig| vdev.kind == VdevType::Spare && vdev.children.iter().any(|c| c.guid == parent.guid);
    if new.is_spare && parent.kind == VdevType::Replacing && tree.config().walk().any(has_spare) {
        return refuse(VdevRefusal::DoubleSpare);
    }
    Ok(if new.is_spare { VdevType::Spare } else { VdevType::Replacing })
}

/// Refuses a device that cannot hold what the other has.
fn check_fit(tree: &VdevTree, old: &VdevConfig, new: &Newcomer) -> Result<(), Error> {
    if tree.least_room(old.guid).is_some_and(|least| new.asize < least) {
        return Err(Error::Vdevs(VdevRefusal::TooSmall));
    }
    match top_of(tree, old.guid).is_some_and(|top| new.ashift > top.ashift) {
        true => Err(Error::Vdevs(VdevRefusal::Alignment)),
        false => Ok(()),
    }
}

/// The line of the history.
fn describe(new: &Newcomer, old: &VdevConfig, replacing: bool) -> String {
    let (verb, toward) = match (replacing, new.is_spare) {
        (true, true) => ("spare in", "for"),
        (true, false) => ("replace", "for"),
        (false, _) => ("attach", "to"),
    };
    let way = if old.path.as_deref() == Some(&new.path) { "/old" } else { "" };
    format!("{verb} vdev={} {toward} vdev={}{way}", new.path, old.path.as_deref().unwrap_or("none"))
}

/// A device that is about to join.
struct Joining {
    old: Guid,
    parent: Parent,
    leaf: NvList,
    guid: Guid,
    device: Arc<dyn Device>,
}

impl Joining {
    /// The configuration with the new device.
    fn config(&self, spa: &Spa) -> Result<NvList, Error> {
        let (nv, done) = spa.config_with_tree(|root| {
            surgery::make_way(root, self.old, self.leaf.get_str(key::PATH).unwrap_or_default());
            surgery::put_beside(root, self.old, &self.leaf, self.parent)
        });
        match done {
            Some(true) => Ok(nv),
            _ => Err(Error::Vdevs(VdevRefusal::NoVdev)),
        }
    }

    /// Writes the first labels of the new device, which is in use by no pool yet.
    fn init_label(&self, spa: &Spa) -> Result<(), Error> {
        let nv = self.config(spa)?;
        let top = nv.get_nvlist(key::VDEV_TREE).and_then(|root| surgery::top_with(root, self.guid));
        let top = top.ok_or(Error::Vdevs(VdevRefusal::NoVdev))?;
        let create_txg = spa.layout_options(None).create_txg;
        let label = vdev::label::initial_config(&nv, top, self.guid, create_txg);
        Ok(vdev::label::init(&*self.device, &label)?)
    }

    fn join(mut self, cx: &TaskCx<'_>) -> Result<(), Error> {
        let spa = cx.spa;
        let devices = HashMap::from([(self.guid, self.device.clone())]);
        let new = Newcomers { devices: Some(&devices), renamed: None };
        // an impossible tree is refused before anything is changed
        spa.tree_of(&self.config(spa)?, &new)?;
        let mut txg = cx.tx.txg();
        spa.look_at_vdev(self.old.0, &mut |old| txg = old.get_u64(key::CREATE_TXG).map_or(txg, Txg));
        self.leaf.insert(key::CREATE_TXG, txg.0);
        if let Some(all) = cx.mos.named_zap(ALL_VDEV_ZAPS)? {
            let zap = cx.mos.new_zap(cx.tx, ObjectType::OTN_ZAP_METADATA)?;
            all.add_int(cx.tx, zap.0, zap.0)?;
            self.leaf.insert(key::VDEV_LEAF_ZAP, zap.0);
        }
        self.leaf.insert(key::RESILVER_TXG, cx.tx.txg().0);
        let nv = self.config(spa)?;
        let tree = spa.tree_of(&nv, &new)?;
        let missed = TXG_INITIAL.0..cx.tx.txg().0 + CONCURRENT_TXGS;
        spa.edit_config(|config| *config = nv);
        // so that nobody finds it without
        spa.sync_dtl(cx.mos, cx.tx, self.guid, std::slice::from_ref(&missed))?;
        tree.begin_leaf(self.guid, missed);
        spa.publish(tree);
        spa.want_resilver();
        Ok(())
    }
}
