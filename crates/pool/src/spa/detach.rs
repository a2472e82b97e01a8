//! Devices that leave their siblings (OpenZFS: `spa_vdev_detach`, `spa_vdev_resilver_done`).
//!
//! A device may be detached as long as its siblings have everything. The tree without it is published in the txg that makes the change; who took the
//! tree before may still be writing to it. When the txg is on disk and these writes are over, its labels are overwritten: it is in no pool then. After a
//! crash in between they are of an older state of the pool, in which nobody misses them.

use std::sync::Arc;
use std::time::Duration;

use base::{Guid, Txg};
use nvlist::NvList;
use ondisk::label::key;
use vdev::{Leaf, Newcomers, VdevConfig, VdevTree, VdevType};

use crate::Error;
use crate::spa::attach::{find_leaf, is_spare};
use crate::spa::create::VERSION;
use crate::spa::metaslab::alloc::forget_leaf;
use crate::spa::surgery::{self, UNSPARE};
use crate::spa::{Spa, TaskCx, VdevRefusal};

/// The txgs that are written at a time: the one that is synced, and the next.
const WRITTEN_TXGS: usize = 2;
/// How often, and how many times, it is looked whether a device is still written that was detached.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const LOOKS: u32 = 2000;

/// A device that was detached.
struct Detached {
    /// Its configuration, and that of its top-level vdev, as they were.
    vdev: NvList,
    top: NvList,
    /// The configuration of the pool as it is.
    pool: NvList,
}

impl Spa {
    /// Takes a device out of its mirror, replacing or spare. What it holds is of no use any more.
    ///
    /// # Errors
    /// [`Error::Vdevs`], and nothing was done: [`VdevRefusal::NotSupported`] if it has no siblings, [`VdevRefusal::NoReplicas`] if it alone has
    /// something; [`Error::Suspended`].
    pub fn detach_vdev(self: &Arc<Self>, guid: Guid) -> Result<(), Error> {
        let _alone = self.vdev_change.lock();
        self.detach_now(guid, None)
    }

    fn detach_now(self: &Arc<Self>, guid: Guid, parent: Option<Guid>) -> Result<(), Error> {
        self.check_no_checkpoint()?;
        let (path, unspared) = {
            let tree = self.tree();
            let (own_parent, vdev) = find_leaf(tree.config(), guid)?;
            if parent.is_some_and(|parent| parent != own_parent.guid) {
                return Err(Error::Vdevs(VdevRefusal::OtherParent));
            }
            if !own_parent.kind.is_mirror_like() {
                return Err(Error::Vdevs(VdevRefusal::NotSupported));
            }
            if tree.is_required(guid) {
                return Err(Error::Vdevs(VdevRefusal::NoReplicas));
            }
            (vdev.path.clone().unwrap_or_else(|| "none".to_owned()), unspared(own_parent, vdev))
        };
        let before = Arc::clone(&*self.tree());
        let _leaving = self.take_leave(&before, guid)?;
        let what = format!("vdev={path}");
        let detached = self.sync_task(move |cx| {
            let detached = detach(cx, guid, unspared)?;
            cx.spa.log_internal(cx.mos, cx.tx, "detach", &what)?;
            Ok(detached)
        })?;
        self.notify_vdev("vdev_remove", guid, Some(&path));
        self.notify("config_sync", &NvList::new());
        erase(&before, guid, &detached);
        Ok(())
    }

    /// From now on nothing counts that only this device has. Waits until what was begun before is on disk, with its failures noted.
    fn take_leave(self: &Arc<Self>, tree: &VdevTree, guid: Guid) -> Result<Option<Leaving>, Error> {
        let Some(leaf) = tree.leaf(guid) else { return Ok(None) };
        leaf.set_leaving(true);
        let leaving = Leaving(Arc::clone(leaf));
        for _ in 0..WRITTEN_TXGS {
            self.txgs.note_work();
            self.sync()?;
        }
        Ok(Some(leaving))
    }

    /// Detaches the devices whose replacements have everything, and spares that nobody needs any more.
    pub(crate) fn detach_replaced(self: &Arc<Self>) {
        loop {
            let _alone = self.vdev_change.lock();
            let tree = self.tree();
            let Some(due) = due(&tree, &self.vdevs_now(&tree)) else { return };
            drop(tree);
            let spare = due.spare;
            let done = self.detach_now(due.guid, Some(due.parent));
            let done = done.and_then(|()| spare.map_or(Ok(()), |(spare, parent)| self.detach_now(spare, Some(parent))));
            if let Err(error) = done {
                tracing::debug!(target: "zuse::spa", %error, "a device that was replaced stays");
                return;
            }
        }
    }

    /// Returns whether a device is being replaced.
    pub(crate) fn is_replacing(&self) -> bool {
        self.tree().config().walk().any(|vdev| vdev.kind == VdevType::Replacing)
    }

    /// Returns whether [`Spa::detach_replaced`] would find something to do.
    pub(crate) fn has_replaced(&self) -> bool {
        let tree = self.tree();
        due(&tree, &self.vdevs_now(&tree)).is_some()
    }

    /// The vdevs as the configuration has them now.
    pub(crate) fn vdevs_now(&self, tree: &VdevTree) -> VdevConfig {
        let nv = self.config.lock().nv.get_nvlist(key::VDEV_TREE).cloned();
        nv.and_then(|nv| VdevConfig::parse(&nv).ok()).unwrap_or_else(|| tree.config().clone())
    }
}

/// A device that is about to leave. It stays where the change fails.
struct Leaving(Arc<Leaf>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.set_leaving(false);
    }
}

/// Overwrites the labels of a device that was detached, after its last write.
fn erase(before: &VdevTree, guid: Guid, detached: &Detached) {
    let label = match detached.vdev.get_u64(key::IS_SPARE) {
        Some(1) => vdev::label::aux_config(VERSION, guid, detached.vdev.get_str(key::PATH), vdev::label::AuxUse::Spare),
        _ => vdev::label::initial_config(&detached.pool, &detached.top, guid, Txg(0)),
    };
    relabel(before, guid, &label);
}

/// Writes first labels to a device that has left the pool, when nothing is under way to it any more.
pub(crate) fn relabel(before: &VdevTree, guid: Guid, label: &NvList) {
    let Some(leaf) = before.leaf(guid) else { return };
    let Some(device) = leaf.retire() else { return };
    for _ in 0..LOOKS {
        if leaf.queue().depths().is_empty() {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    // that it cannot be written may be the reason why it has left
    let _unwritten = vdev::label::init(&*device, label);
}

/// A spare that is a device of its own once the one that it stood in for is detached: its guid (OpenZFS: `unspare`).
fn unspared(parent: &VdevConfig, leaving: &VdevConfig) -> Option<Guid> {
    let first = parent.children.first()?;
    let last = parent.children.last()?;
    let is_first = parent.kind == VdevType::Spare && first.guid == leaving.guid;
    (is_first && is_spare(last) && last.kind != VdevType::DraidSpare).then_some(last.guid)
}

fn detach(cx: &TaskCx<'_>, guid: Guid, unspared: Option<Guid>) -> Result<Detached, Error> {
    let spa = cx.spa;
    let gone = || Error::Vdevs(VdevRefusal::NoVdev);
    if spa.tree().is_required(guid) {
        return Err(Error::Vdevs(VdevRefusal::NoReplicas));
    }
    let mut top = NvList::new();
    let (nv, taken) = spa.config_with_tree(|root| {
        top = surgery::top_with(root, guid).cloned().unwrap_or_default();
        if let Some(unspared) = unspared {
            super::config::edit_vdev(root, unspared.0, &mut |vdev| {
                vdev.remove_all(key::IS_SPARE);
                vdev.insert(UNSPARE, 1u64);
            });
        }
        surgery::take_out(root, guid)
    });
    let taken = taken.flatten().ok_or_else(gone)?;
    let tree = spa.tree_of(&nv, &Newcomers { devices: None, renamed: taken.renamed })?;
    let (vdev, mut spares) = (VdevConfig::parse(&taken.vdev)?, cx.aux(key::SPARES)?);
    forget_leaf(cx, &vdev)?;
    if let Some(unspared) = unspared {
        spares.retain(|spare| spare.get_u64(key::GUID) != Some(unspared.0));
        spa.aux_list(cx.mos, cx.tx, key::SPARES, &spares)?;
    }
    spa.edit_config(|config| *config = nv.clone());
    spa.publish(tree);
    Ok(Detached { vdev: taken.vdev, top, pool: nv })
}

/// A device whose time has come.
struct Due {
    guid: Guid,
    parent: Guid,
    /// A spare that goes with it, and its parent.
    spare: Option<(Guid, Guid)>,
}

/// Looks for a device that is to be detached, from the bottom up (OpenZFS: `spa_vdev_resilver_done_hunt`).
fn due(tree: &VdevTree, vdev: &VdevConfig) -> Option<Due> {
    vdev.children.iter().find_map(|child| due(tree, child)).or_else(|| {
        let guid = match vdev.kind {
            VdevType::Replacing => replaced(tree, vdev),
            VdevType::Spare => spared(tree, vdev),
            _ => None,
        }?;
        Some(Due { guid, parent: vdev.guid, spare: superfluous(tree, vdev) })
    })
}

/// The first device of a replacing vdev, if the last one has everything.
fn replaced(tree: &VdevTree, vdev: &VdevConfig) -> Option<Guid> {
    let (old, new) = (vdev.children.first()?, vdev.children.last()?);
    (old.guid != new.guid && tree.is_whole(new) && !tree.is_required(old.guid)).then_some(old.guid)
}

/// The device of a spare vdev that nobody needs any more: the old one, if its spare is to stay for good, or one of several spares.
fn spared(tree: &VdevTree, vdev: &VdevConfig) -> Option<Guid> {
    let (first, last) = (vdev.children.first()?, vdev.children.last()?);
    let stays = |vdev: &VdevConfig| vdev.raw.get_u64(UNSPARE) == Some(1);
    let goes_for = |old: &VdevConfig, new: &VdevConfig| tree.is_whole(new) && !tree.is_required(old.guid);
    let pair = if stays(last) { Some((first, last)) } else { stays(first).then_some((last, first)) };
    if let Some((old, new)) = pair
        && goes_for(old, new)
    {
        return Some(old.guid);
    }
    let second = vdev.children.get(1).filter(|_| vdev.children.len() > 2)?;
    (is_spare(second) && is_spare(last) && goes_for(second, last)).then_some(second.guid)
}

/// The spare beside a replacing vdev whose replacement has ended.
fn superfluous(tree: &VdevTree, replacing: &VdevConfig) -> Option<(Guid, Guid)> {
    let is_parent = |vdev: &&VdevConfig| {
        vdev.kind == VdevType::Spare && vdev.children.first().is_some_and(|c| c.guid == replacing.guid)
    };
    let parent = tree.config().walk().find(is_parent)?;
    match parent.children.as_slice() {
        [_, spare] if replacing.kind == VdevType::Replacing => Some((spare.guid, parent.guid)),
        _ => None,
    }
}
