//! Putting the tree of a pool together from the labels of its devices.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use base::{Guid, Txg};
use nvlist::NvList;
use ondisk::label::key;

use super::probe::STATE_SPARE;
use super::{Candidate, FoundDevice, PoolState};
use crate::config::{VdevConfig, VdevType};
use crate::label::read_uberblocks;

/// More top-level vdevs than any pool has; a label that claims more is not believed.
const TOPS_MAX: u64 = 1 << 12;

/// The keys that a pool's own configuration takes over from its newest label.
const COMMON: [&str; 9] = [
    key::VERSION,
    key::POOL_NAME,
    key::POOL_STATE,
    key::POOL_TXG,
    key::POOL_GUID,
    key::HOSTID,
    key::HOSTNAME,
    key::COMMENT,
    key::COMPATIBILITY,
];

/// Sorts devices by pool and puts each pool together.
pub(super) fn pools(mut found: Vec<FoundDevice>) -> Vec<Candidate> {
    settle_identities(&mut found);
    let (mut spares, mut l2cache) = (Vec::new(), Vec::new());
    let mut pools: BTreeMap<Guid, Vec<FoundDevice>> = BTreeMap::new();
    for device in found {
        let state = device.label.config.get_u64(key::POOL_STATE).unwrap_or(0);
        match (state, device.label.pool_guid()) {
            (STATE_SPARE, _) => spares.push(device),
            (s, _) if s > STATE_SPARE => l2cache.push(device),
            (_, Some(guid)) => pools.entry(guid).or_default().push(device),
            _ => {}
        }
    }
    let assembled = pools.into_iter().filter_map(|(guid, devices)| pool(guid, devices, &spares, &l2cache));
    let mut candidates: Vec<Candidate> = assembled.collect();
    candidates.sort_by(|a, b| (&a.name, a.guid).cmp(&(&b.name, b.guid)));
    candidates
}

/// Decides to which pool a device belongs whose labels name two. Labels are written in two rounds, with the uberblocks in between: the newer ones count if any
/// device of that pool has an uberblock of their txg, or of a later one.
fn settle_identities(found: &mut [FoundDevice]) {
    if found.iter().all(|device| device.other.is_none()) {
        return;
    }
    for device in found.iter_mut() {
        if let Some(other) = device.other.as_mut().filter(|other| other.txg() > device.label.txg()) {
            std::mem::swap(&mut device.label, other);
        }
    }
    let is_committed = |device: &FoundDevice| {
        let tree = device.label.config.get_nvlist(key::VDEV_TREE);
        let ashift = tree.and_then(|tree| tree.get_u64(key::ASHIFT)).unwrap_or(9);
        read_uberblocks(&*device.device, ashift).first().is_some_and(|ub| ub.txg >= device.label.txg())
    };
    let committed: HashSet<Guid> =
        found.iter().filter(|device| is_committed(device)).filter_map(|device| device.label.pool_guid()).collect();
    for device in found.iter_mut() {
        let counts = device.label.pool_guid().is_some_and(|pool| committed.contains(&pool));
        if let Some(other) = device.other.take().filter(|_| !counts) {
            device.label = *other;
        }
    }
}

/// One device for each leaf: the newest label, then the most labels, then the first found.
fn one_for_each_leaf(devices: Vec<FoundDevice>) -> Vec<FoundDevice> {
    let mut kept: Vec<FoundDevice> = Vec::with_capacity(devices.len());
    let mut places: HashMap<Guid, usize> = HashMap::new();
    for device in devices {
        match places.get(&device.guid).and_then(|n| kept.get_mut(*n)) {
            None => {
                places.insert(device.guid, kept.len());
                kept.push(device);
            }
            Some(other) => {
                if (device.label.txg(), device.labels) > (other.label.txg(), other.labels) {
                    *other = device;
                }
            }
        }
    }
    kept
}

fn pool(guid: Guid, devices: Vec<FoundDevice>, spares: &[FoundDevice], l2cache: &[FoundDevice]) -> Option<Candidate> {
    let devices = one_for_each_leaf(devices);
    // of equally new labels the first device's
    let newest = &devices.iter().rev().max_by_key(|d| d.label.txg())?.label;
    let mut config = NvList::new();
    for name in COMMON {
        if let Some(value) = newest.config.get(name) {
            config.insert(name, value.clone());
        }
    }
    let tops = top_configs(&newest.config, &devices);
    let root = root_config(guid, &newest.config, &tops, &mut config);
    let tree = VdevConfig::parse(&root).ok()?;
    config.insert(key::VDEV_TREE, root);

    let in_tree: HashSet<Guid> = tree.leaves().map(|l| l.guid).collect();
    let (devices, stale): (Vec<_>, Vec<_>) = devices.into_iter().partition(|d| in_tree.contains(&d.guid));
    let present: HashSet<Guid> = devices.iter().map(|d| d.guid).collect();
    let text = |name| config.get_string(name).map(|s| s.to_string_lossy().into_owned());
    Some(Candidate {
        guid,
        name: text(key::POOL_NAME)?,
        state: PoolState::from_number(config.get_u64(key::POOL_STATE)?)?,
        hostid: config.get_u64(key::HOSTID),
        hostname: text(key::HOSTNAME),
        version: config.get_u64(key::VERSION)?,
        txg: Txg(config.get_u64(key::POOL_TXG)?),
        missing: tree.leaves().map(|l| l.guid).filter(|g| !present.contains(g)).collect(),
        missing_tops: tree.children.iter().filter(|t| t.kind == VdevType::Missing).map(|t| t.id).collect(),
        config,
        devices,
        stale,
        spares: spares.to_vec(),
        l2cache: l2cache.to_vec(),
        errors: Arc::default(),
    })
}

/// The newest configuration of each top-level vdev, by its number.
///
/// A tree that does not parse is passed over: another device may know the vdev better.
fn top_configs(newest: &NvList, devices: &[FoundDevice]) -> BTreeMap<u64, NvList> {
    let count = newest.get_u64(key::VDEV_CHILDREN).unwrap_or(TOPS_MAX).min(TOPS_MAX);
    let mut tops: BTreeMap<u64, (Txg, &NvList)> = BTreeMap::new();
    for device in devices {
        let Some(tree) = device.label.config.get_nvlist(key::VDEV_TREE) else { continue };
        let Some(id) = tree.get_u64(key::ID).filter(|id| *id < count) else { continue };
        let txg = device.label.txg();
        let is_newer = tops.get(&id).is_none_or(|(seen, _)| txg > *seen);
        if is_newer && VdevConfig::parse(tree).is_ok_and(|t| t.kind != VdevType::Root) {
            tops.insert(id, (txg, tree));
        }
    }
    tops.into_iter().map(|(id, (_, tree))| (id, tree.clone())).collect()
}

/// The root with all top-level vdevs in their places; where nothing is known of one, a hole or a missing vdev.
fn root_config(guid: Guid, newest: &NvList, tops: &BTreeMap<u64, NvList>, config: &mut NvList) -> NvList {
    let known = tops.keys().next_back().map_or(0, |last| last + 1);
    let count = newest.get_u64(key::VDEV_CHILDREN).unwrap_or(known).min(TOPS_MAX);
    let holes = newest.get_u64_array(key::HOLE_ARRAY).unwrap_or(&[]);
    config.insert(key::VDEV_CHILDREN, count);
    if !holes.is_empty() {
        config.insert(key::HOLE_ARRAY, holes.to_vec());
    }
    let child = |id| {
        tops.get(&id).cloned().unwrap_or_else(|| {
            let kind = if holes.contains(&id) { VdevType::Hole } else { VdevType::Missing };
            let mut list = NvList::new();
            list.insert(key::TYPE, kind.name());
            list.insert(key::ID, id);
            list.insert(key::GUID, 0u64);
            list
        })
    };
    let mut root = NvList::new();
    root.insert(key::TYPE, VdevType::Root.name());
    root.insert(key::ID, 0u64);
    root.insert(key::GUID, guid.0);
    root.insert(key::CHILDREN, (0..count).map(child).collect::<Vec<NvList>>());
    root
}
