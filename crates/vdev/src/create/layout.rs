//! The configuration of new vdevs: identities, sector sizes, sizes.

use std::collections::HashMap;
use std::sync::Arc;

use base::tunable::{
    ZFS_VDEV_DEFAULT_MS_COUNT, ZFS_VDEV_DEFAULT_MS_SHIFT, ZFS_VDEV_MIN_MS_COUNT, ZFS_VDEV_MS_COUNT_LIMIT,
};
use base::{Env, Guid, Txg};
use nvlist::NvList;
use ondisk::label::{LABEL_SIZE, LABELS, MIN_DEVICE_SIZE, key};

use super::{Bias, DraidSpec, Group, TopSpec, VdevSpec};
use crate::device::DeviceKind;
use crate::draid;
use crate::stripe::physical;
use crate::{Device, Error};

/// The first txg of a pool (OpenZFS: `TXG_INITIAL`).
pub const TXG_INITIAL: Txg = Txg(4);
/// Sector sizes that OpenZFS takes, and the largest that it chooses by itself, as base-2 logarithms (`zfs_vdev_max_auto_ashift`).
const ASHIFT: std::ops::RangeInclusive<u64> = 9..=16;
const MAX_AUTO_ASHIFT: u64 = 14;
/// The size of a metaslab, as base-2 logarithm: at least that of the largest block, at most `zfs_vdev_max_ms_shift` where the count allows.
const MS_SHIFT_MIN: u64 = 24;
const MS_SHIFT_MAX: u64 = 34;

/// How new vdevs are to be laid out.
#[derive(Debug, Clone, Copy)]
pub struct LayoutOptions {
    /// Base-2 logarithm of the sector size; found out from the devices if `None`.
    pub ashift: Option<u64>,
    /// The number of the first new top-level vdev: how many the pool has.
    pub first_id: u64,
    /// The txg in which they are added.
    pub create_txg: Txg,
}

impl Default for LayoutOptions {
    fn default() -> Self {
        LayoutOptions { ashift: None, first_id: 0, create_txg: TXG_INITIAL }
    }
}

/// New vdevs.
#[derive(Debug, Clone)]
pub struct NewPool {
    /// A `vdev_tree` of the new top-level vdevs, with the names that the MOS has for them, but for the objects that are yet to be made:
    /// `metaslab_array` is 0, and there are no ZAPs. A top-level vdev for logs has `is_log` 1; one with another purpose tells it as
    /// `alloc_bias`, which is for the vdev's ZAP and must not get into the MOS. The root's guid is new too: that of the pool.
    pub vdev_tree: NvList,
    /// Hot spares as the MOS lists them, distributed ones included.
    pub spares: Vec<NvList>,
    /// Caches as the MOS lists them.
    pub l2cache: Vec<NvList>,
    /// The devices of all leaves, spares and caches.
    pub devices: HashMap<Guid, Arc<dyn Device>>,
}

impl NewPool {
    /// Lets the spare of this path be the one that other pools know as `guid`, so that they share it (OpenZFS: `vdev_label_init` of a spare that is in use).
    pub fn share_spare(&mut self, path: &str, guid: Guid) {
        let Some(spare) = self.spares.iter_mut().find(|spare| spare.get_str(key::PATH) == Some(path)) else { return };
        let device = spare.get_u64(key::GUID).and_then(|own| self.devices.remove(&Guid(own)));
        spare.insert(key::GUID, guid.0);
        self.devices.extend(device.map(|device| (guid, device)));
    }
}

/// Lays out new vdevs; `device` gives the device of a path.
///
/// # Errors
/// [`Error::Open`] for a path without a device, [`Error::TooSmall`], [`Error::Config`] for a sector size that cannot be.
pub fn layout(
    spec: &VdevSpec,
    device: &dyn Fn(&str) -> Option<Arc<dyn Device>>,
    options: LayoutOptions,
    env: &Env,
) -> Result<NewPool, Error> {
    if let Some(ashift) = options.ashift.filter(|ashift| !ASHIFT.contains(ashift)) {
        return Err(Error::config(Guid(0), format!("ashift {ashift}: only values between 9 and 16 are allowed")));
    }
    let mut builder = Builder { find: device, options, env, devices: HashMap::new() };
    let root_guid = builder.guid();
    let mut tops = Vec::with_capacity(spec.tops.len());
    let mut distributed = Vec::new();
    for (id, top) in (options.first_id..).zip(&spec.tops) {
        let list = builder.top(id, top)?;
        if let Group::Draid(draid) = top.group {
            let guid = list.get_u64(key::GUID).unwrap_or(0);
            distributed.extend((0..draid.nspares).map(|n| builder.distributed_spare(draid, id, n, guid)));
        }
        tops.push(list);
    }
    let mut spares = spec.spares.iter().map(|path| builder.spare(path)).collect::<Result<Vec<_>, _>>()?;
    spares.extend(distributed);
    let l2cache = spec.l2cache.iter().map(|path| builder.cache(path)).collect::<Result<Vec<_>, _>>()?;
    let mut root = NvList::new();
    root.insert(key::TYPE, "root");
    root.insert(key::ID, 0u64);
    root.insert(key::GUID, root_guid.0);
    root.insert(key::CREATE_TXG, options.create_txg.0);
    root.insert(key::CHILDREN, tops);
    Ok(NewPool { vdev_tree: root, spares, l2cache, devices: builder.devices })
}

/// Base-2 logarithm of the bytes of a metaslab of a new vdev with `asize` bytes (OpenZFS: `vdev_metaslab_set_size`): about 200 metaslabs
/// of 512 MiB to 16 GiB, fewer of a small vdev.
#[must_use]
pub fn metaslab_shift(asize: u64) -> u64 {
    let bits = |n: u64| u64::from(u64::BITS - n.leading_zeros());
    let (default_shift, default_count) =
        (ZFS_VDEV_DEFAULT_MS_SHIFT.get().min(63), ZFS_VDEV_DEFAULT_MS_COUNT.get().max(1));
    let (least, limit) = (ZFS_VDEV_MIN_MS_COUNT.get().max(1), ZFS_VDEV_MS_COUNT_LIMIT.get().max(1));
    let count = asize >> default_shift;
    let shift = if count < least {
        bits(asize / least)
    } else if count > default_count {
        bits(asize / default_count)
    } else {
        default_shift
    };
    let shift = if shift <= MS_SHIFT_MAX {
        shift.max(MS_SHIFT_MIN)
    } else if asize >> MS_SHIFT_MAX > limit {
        bits(asize / limit)
    } else {
        MS_SHIFT_MAX
    };
    // one at least
    shift.min(bits(asize).saturating_sub(1))
}

/// A device that is to be a leaf.
struct NewLeaf {
    list: NvList,
    kind: DeviceKind,
    asize: u64,
}

struct Builder<'a> {
    find: &'a dyn Fn(&str) -> Option<Arc<dyn Device>>,
    options: LayoutOptions,
    env: &'a Env,
    devices: HashMap<Guid, Arc<dyn Device>>,
}

impl Builder<'_> {
    /// A new identity; 0 means none (OpenZFS: `spa_generate_guid`).
    fn guid(&self) -> Guid {
        loop {
            let guid = Guid(self.env.random_u64());
            if guid.0 != 0 && !self.devices.contains_key(&guid) {
                return guid;
            }
        }
    }

    /// A leaf's own names: `type`, `id`, `guid`, `path`, `whole_disk`.
    fn leaf(&mut self, id: Option<u64>, path: &str) -> Result<NewLeaf, Error> {
        let missing = || Error::Open { path: path.to_owned(), source: std::io::ErrorKind::NotFound.into() };
        let device = (self.find)(path).ok_or_else(missing)?;
        let size = device.size() & !(LABEL_SIZE - 1);
        if size < MIN_DEVICE_SIZE {
            return Err(Error::BelowMinimum { device: device.name(), size: device.size() });
        }
        let (guid, kind) = (self.guid(), device.kind());
        let mut list = NvList::new();
        list.insert(key::TYPE, if kind.is_block { "disk" } else { "file" });
        if let Some(id) = id {
            list.insert(key::ID, id);
        }
        list.insert(key::GUID, guid.0);
        list.insert(key::PATH, path);
        if kind.is_block {
            // nothing is partitioned here: a disk is used as it is
            list.insert(key::WHOLE_DISK, 0u64);
        }
        self.devices.insert(guid, device);
        Ok(NewLeaf { list, kind, asize: size - physical(0) - LABEL_SIZE * (LABELS as u64 / 2) })
    }

    /// A top-level vdev.
    fn top(&mut self, id: u64, spec: &TopSpec) -> Result<NvList, Error> {
        let mut list = NvList::new();
        let leaves = if spec.group == Group::Single {
            let path = spec.paths.first().map_or("", String::as_str);
            let leaf = self.leaf(Some(id), path)?;
            list = leaf.list.clone();
            vec![leaf]
        } else {
            let guid = self.guid();
            list.insert(key::TYPE, spec.group.type_name());
            list.insert(key::ID, id);
            list.insert(key::GUID, guid.0);
            let leaves = (0..).zip(&spec.paths).map(|(n, path)| self.leaf(Some(n), path));
            leaves.collect::<Result<Vec<_>, _>>()?
        };
        spec.group.describe(&mut list, spec.paths.len());
        let ashift = self.ashift(&leaves)?;
        let asize = spec.group.asize(&leaves);
        if asize < MIN_DEVICE_SIZE - physical(0) - LABEL_SIZE * (LABELS as u64 / 2) {
            let name = spec.paths.first().cloned().unwrap_or_default();
            return Err(Error::BelowMinimum { device: name, size: asize });
        }
        if asize == 0 {
            return Err(Error::config(Guid(list.get_u64(key::GUID).unwrap_or(0)), "too small for its shape"));
        }
        let min_alloc = match spec.group {
            Group::Draid(draid) => draid.ndata << ashift,
            _ => 1 << ashift,
        };
        list.insert(key::METASLAB_ARRAY, 0u64);
        list.insert(key::METASLAB_SHIFT, metaslab_shift(asize));
        list.insert(key::ASHIFT, ashift);
        list.insert(key::ASIZE, asize);
        list.insert(key::MIN_ALLOC, min_alloc);
        list.insert(key::IS_LOG, u64::from(spec.bias == Some(Bias::Log)));
        if let Some(bias) = spec.bias {
            list.insert(key::ALLOCATION_BIAS, bias.name());
        }
        list.insert(key::CREATE_TXG, self.options.create_txg.0);
        if spec.group != Group::Single {
            let children = leaves.into_iter().map(|mut leaf| {
                leaf.list.insert(key::CREATE_TXG, self.options.create_txg.0);
                leaf.list
            });
            list.insert(key::CHILDREN, children.collect::<Vec<NvList>>());
        }
        Ok(list)
    }

    /// The sector size of a vdev over these devices (OpenZFS: `vdev_open`, `vdev_best_ashift`, `vdev_ashift_optimize`).
    fn ashift(&self, leaves: &[NewLeaf]) -> Result<u64, Error> {
        let logical = leaves.iter().map(|leaf| leaf.kind.logical_ashift).max().unwrap_or(9);
        // a sector size larger than OpenZFS dares to use is passed over where another device has a smaller one
        let physical = leaves.iter().map(|leaf| leaf.kind.physical_ashift).fold(0, |best, own| {
            let fits = |shift: u64| shift > logical && shift <= MAX_AUTO_ASHIFT;
            match (fits(best), fits(own)) {
                (true, false) => best,
                (false, true) => own,
                _ => best.max(own),
            }
        });
        let ashift = match self.options.ashift {
            Some(given) if given >= logical => given,
            _ if logical < physical && physical <= MAX_AUTO_ASHIFT => physical,
            _ => logical.max(*ASHIFT.start()),
        };
        if ashift > *ASHIFT.end() {
            return Err(Error::config(Guid(0), format!("a device has sectors of {} bytes", 1u64 << ashift.min(63))));
        }
        Ok(ashift)
    }

    fn spare(&mut self, path: &str) -> Result<NvList, Error> {
        let mut list = self.leaf(None, path)?.list;
        list.insert(key::IS_SPARE, 1u64);
        list.insert(key::CREATE_TXG, self.options.create_txg.0);
        Ok(list)
    }

    fn cache(&mut self, path: &str) -> Result<NvList, Error> {
        let leaf = self.leaf(None, path)?;
        let ashift = self.ashift(std::slice::from_ref(&leaf))?;
        let mut list = leaf.list;
        list.insert(key::ASHIFT, ashift);
        list.insert(key::CREATE_TXG, self.options.create_txg.0);
        Ok(list)
    }

    /// OpenZFS: `vdev_draid_spare_create`.
    fn distributed_spare(&self, draid: DraidSpec, top: u64, spare: u64, top_guid: u64) -> NvList {
        let path = format!("draid{}-{top}-{spare}", draid.nparity);
        let mut list = NvList::new();
        list.insert(key::TYPE, "dspare");
        list.insert(key::GUID, self.guid().0);
        list.insert(key::PATH, path.as_str());
        list.insert(key::TOP_GUID, top_guid);
        list.insert(key::SPARE_ID, spare);
        list.insert(key::WHOLE_DISK, 1u64);
        list.insert(key::IS_SPARE, 1u64);
        list.insert(key::CREATE_TXG, self.options.create_txg.0);
        list
    }
}

impl Group {
    const fn type_name(&self) -> &'static str {
        match self {
            Group::Single => "",
            Group::Mirror => "mirror",
            Group::Raidz(_) => "raidz",
            Group::Draid(_) => "draid",
        }
    }

    fn describe(&self, list: &mut NvList, width: usize) {
        match self {
            Group::Single | Group::Mirror => {}
            Group::Raidz(parity) => list.insert(key::NPARITY, *parity),
            Group::Draid(draid) => {
                list.insert(key::NPARITY, draid.nparity);
                list.insert(key::DRAID_NDATA, draid.ndata);
                list.insert(key::DRAID_NSPARES, draid.nspares);
                list.insert(key::DRAID_NGROUPS, draid.ngroups);
                if draid.nchildren != width as u64 {
                    list.insert(key::DRAID_NCHILDREN, draid.nchildren);
                }
            }
        }
    }

    /// Bytes of the vdev, from those of its devices (OpenZFS: the open function of each type).
    fn asize(&self, leaves: &[NewLeaf]) -> u64 {
        let width = leaves.len() as u64;
        let smallest = leaves.iter().map(|leaf| leaf.asize).min().unwrap_or(0);
        match self {
            Group::Single | Group::Mirror => smallest,
            Group::Raidz(_) => smallest.saturating_mul(width),
            Group::Draid(draid) => {
                let group_width = draid.ndata + draid.nparity;
                let DraidSpec { nchildren: children, nspares: spares, ngroups: groups, .. } = *draid;
                draid::Sizes { width, children, group_width, spares, groups }.asize(smallest).unwrap_or(0)
            }
        }
    }
}
