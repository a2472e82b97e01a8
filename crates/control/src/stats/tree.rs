//! The tree of vdevs with their figures (OpenZFS: `vdev_config_generate`, `vdev_config_generate_stats`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base::{Guid, ObjectId};
use nvlist::NvList;
use ondisk::label::key;
use ondisk::scan::{ScanFunc, ScanState};
use pool::{AllocClass, Error, LeafWork, Pool, Spa};
use vdev::{
    FollowedLeaf, IoFigures, PoolErrors, Queue, QueueDepths, TopVdev, VdevConfig, VdevErrors, VdevState, VdevStatus,
    VdevTree,
};

use super::figures::{self, Counted};
use super::{Activity, VdevStat, VdevStats, stored};

/// The words that tell of the work on the free space of a leaf: its state, the time of that, how far it is, and its end.
const INITIALIZE_WORDS: [VdevStat; 4] =
    [VdevStat::InitializeState, VdevStat::InitializeTime, VdevStat::InitializeDone, VdevStat::InitializeTotal];
const TRIM_WORDS: [VdevStat; 4] = [VdevStat::TrimState, VdevStat::TrimTime, VdevStat::TrimDone, VdevStat::TrimTotal];

/// The figures of this process.
struct Own {
    queues: HashMap<Guid, Arc<Queue>>,
    errors: BTreeMap<Guid, VdevErrors>,
}

impl Own {
    fn of(followed: &PoolErrors) -> Own {
        let queue = |leaf: FollowedLeaf| (leaf.guid, leaf.queue);
        Own { queues: followed.leaves().into_iter().map(queue).collect(), errors: followed.figures() }
    }
}

impl Counted for Own {
    fn io(&self, leaf: Guid) -> IoFigures {
        self.queues.get(&leaf).map(|queue| queue.figures()).unwrap_or_default()
    }

    fn queue(&self, leaf: Guid) -> QueueDepths {
        self.queues.get(&leaf).map(|queue| queue.depths()).unwrap_or_default()
    }

    fn errors(&self, vdev: Guid) -> VdevErrors {
        self.errors.get(&vdev).copied().unwrap_or_default()
    }

    fn since_ns(&self) -> u64 {
        0
    }
}

/// The `vdev_tree` of a pool, with `spares` and `l2cache`. Whether these are there is not known here: their state is 0.
pub(super) fn tree(view: &Arc<Pool>) -> Result<NvList, Error> {
    let activity = Activity::read(view);
    let mut root = of_devices(view.tree());
    for (id, top) in (0..).zip(root.get_nvlist_array_mut(key::CHILDREN).into_iter().flatten()) {
        put_space(view, id, top);
        activity.put_rebuild(id, top);
        put_work_below(view, id, top);
    }
    if let Some(scan) =
        activity.scan.as_ref().filter(|scan| scan.func == ScanFunc::Resilver && scan.state == ScanState::Scanning)
    {
        put_resilver(&mut root, scan.processed.max(1));
    }
    activity.put(&mut root);
    for (key, mut aside) in [(key::SPARES, view.spares()?), (key::L2CACHE, view.l2cache()?)] {
        if !aside.is_empty() {
            for device in &mut aside {
                device.remove_all(key::CHILDREN);
                stored::keep_stored(device);
            }
            root.insert(key, aside);
        }
    }
    figures::put(&mut root, &Own::of(view.zio().live_tree().errors()));
    Ok(root)
}

/// The `vdev_tree` of an open pool as its devices alone tell it, with the figures of this process.
pub(super) fn of_live(spa: &Spa) -> NvList {
    let mut root = of_devices(&spa.tree());
    figures::put(&mut root, &Own::of(spa.zio().live_tree().errors()));
    root
}

/// The `vdev_tree` of a pool as its devices alone tell it, with their states and sizes.
#[must_use]
pub fn of_devices(tree: &VdevTree) -> NvList {
    vdev(tree, None, tree.config(), &tree.status())
}

/// A vdev, which is at or below `top` if it is not the root, and all below, with what each has by itself.
fn vdev(tree: &VdevTree, top: Option<&TopVdev>, config: &VdevConfig, status: &VdevStatus) -> NvList {
    let mut list = config.raw.clone();
    // all that is below is made anew
    list.remove_all(key::CHILDREN);
    stored::keep_stored(&mut list);
    let below = config.children.iter().zip(&status.children);
    let children: Vec<NvList> =
        below.map(|(config, status)| vdev(tree, top.or_else(|| tree.top(config.id)), config, status)).collect();
    if !children.is_empty() {
        list.insert(key::CHILDREN, children);
    }
    let mut stats = VdevStats::default();
    stats.set_health(status.state, status.aux);
    stats.set(VdevStat::ResilverDeferred, status.is_stale.into());
    stats.set(VdevStat::Removing, config.removing.into());
    stats.set(VdevStat::NoAlloc, config.raw.get_u64(key::NON_ALLOCATING).unwrap_or(0));
    stats.set(VdevStat::ConfiguredAshift, config.ashift);
    stats.set(VdevStat::Esize, top.map_or(0, |top| tree.growth(top, config)));
    let device = tree.leaf(config.guid).and_then(|leaf| leaf.device());
    if config.kind.is_leaf() && device.is_none() && status.state == VdevState::CantOpen {
        list.insert(key::NOT_PRESENT, 1u64);
    }
    if let Some(device) = device.filter(|_| status.state >= VdevState::Degraded) {
        stats.set(VdevStat::Pspace, device.size());
        stats.set(VdevStat::LogicalAshift, device.kind().logical_ashift);
        stats.set(VdevStat::PhysicalAshift, device.kind().physical_ashift);
        stats.set(VdevStat::TrimUnsupported, (!device.discards().plainly).into());
    }
    stats.put(&mut list);
    list
}

/// Notes for the leaves that a resilver brings up to date what it has written until now. What each of them was given is not known.
fn put_resilver(list: &mut NvList, processed: u64) {
    list.get_nvlist_array_mut(key::CHILDREN).into_iter().flatten().for_each(|child| put_resilver(child, processed));
    let mut stats = VdevStats::of(list);
    if stats.get(VdevStat::ResilverDeferred) != 0 {
        stats.set(VdevStat::ScanProcessed, processed);
        stats.put(list);
    }
}

/// Sets how far initializing and trimming of the leaves below a top-level vdev are.
fn put_work_below(view: &Arc<Pool>, top: u64, list: &mut NvList) {
    list.get_nvlist_array_mut(key::CHILDREN).into_iter().flatten().for_each(|child| put_work_below(view, top, child));
    let [zap, leaf] = [key::VDEV_LEAF_ZAP, key::GUID].map(|key| list.get_u64(key).unwrap_or(0));
    if zap == 0 {
        return;
    }
    let mut stats = VdevStats::of(list);
    for (work, words) in [(LeafWork::Initialize, INITIALIZE_WORDS), (LeafWork::Trim, TRIM_WORDS)] {
        // what cannot be read is told as never begun
        let Ok(stored) = view.leaf_work(ObjectId(zap), work) else { continue };
        let progress = view.leaf_progress(top, Guid(leaf), &stored).unwrap_or_default();
        let numbers = [stored.state as u64, stored.time, progress.done, progress.total];
        words.into_iter().zip(numbers).for_each(|(word, number)| stats.set(word, number));
    }
    stats.put(list);
}

/// Sets the class and the space of a top-level vdev. Space that cannot be read is not told.
fn put_space(view: &Arc<Pool>, id: u64, list: &mut NvList) {
    let tree = view.tree();
    let Some(top) = tree.top(id) else { return };
    let bias = match view.vdev_class(top) {
        AllocClass::Log => Some("log"),
        AllocClass::Special => Some("special"),
        AllocClass::Dedup => Some("dedup"),
        _ => None,
    };
    if let Some(bias) = bias {
        list.insert(key::ALLOCATION_BIAS, bias);
    }
    if let Ok(Some(space)) = view.vdev_space(id) {
        let mut stats = VdevStats::of(list);
        stats.set(VdevStat::Alloc, space.allocated);
        stats.set(VdevStat::Space, space.size);
        stats.set(VdevStat::Dspace, top.deflated(space.size));
        stats.set(VdevStat::Fragmentation, space.fragmentation.unwrap_or(u64::MAX));
        stats.set(VdevStat::Checkpoint, space.checkpoint);
        stats.put(list);
    }
}
