//! Vdevs added to an open pool, and the steps that all changes of its tree share.
//!
//! # Procedure
//! A change of the tree is a sync task. It makes or frees the objects of the MOS that belong to the vdevs, edits the configuration, and
//! publishes another tree ([`vdev::LiveTree`]), which shares the unchanged vdevs with the one before. Readers and writers take the current
//! tree for one operation and never wait; datasets stay open. The commit of the txg does the rest without knowing of the change: it writes
//! labels to all devices of the new tree around an uberblock with their guid sum. One change is made at a time.
//!
//! Nothing is allocated on a new vdev before its txg is on disk: a block of an intent log that was acknowledged there would be lost with a crash,
//! after which the pool does not know the device.
//!
//! # Indices
//! A top-level vdev's index is never reused: log space maps that are older than a removal name it. A removed vdev leaves a hole in the
//! tree, which `hole_array` names, and new vdevs are appended.
//!
//! # After a crash
//! Until the commit the pool is the one before: new devices have first labels by then, with txg 0, in use by no pool. From then on it is
//! the new one.
//!
//! OpenZFS: `spa_vdev_add`, `spa_vdev_config_exit`, `spa_config_update`.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Errno, Guid, Txg};
use nvlist::NvList;
use ondisk::label::key;
use vdev::create::{LayoutOptions, NewPool};
use vdev::{Device, Newcomers, VdevConfig, VdevTree, VdevType};

use crate::Error;
use crate::spa::create::{init_aside, init_labels};
use crate::spa::mos::Mos;
use crate::spa::{Spa, TaskCx, worst_case};

/// The reason why the vdevs of a pool stay as they are, in OpenZFS's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VdevRefusal {
    /// No vdev, spare or cache of this guid (ENOENT).
    #[error("no such device in pool")]
    NoDevice,
    /// No vdev of this guid (ENODEV).
    #[error("no such device in pool")]
    NoVdev,
    /// The device alone has something (EBUSY).
    #[error("no valid replicas")]
    NoReplicas,
    /// A device that the pool has already (EBUSY).
    #[error("one or more vdevs refer to the same device")]
    InUse,
    /// A spare that has taken the place of a device (EBUSY).
    #[error("Pool busy; removal may already be in progress")]
    Busy,
    /// The parent of the device is another one by now (EBUSY).
    #[error("the device has another parent")]
    OtherParent,
    /// The new device is too small for what the other has (EOVERFLOW).
    #[error("device is too small")]
    TooSmall,
    /// The sectors of the new device are larger than those of the vdev (`ZFS_ERR_ASHIFT_MISMATCH`).
    #[error("The new device cannot have a higher alignment requirement than the top-level vdev.")]
    Alignment,
    /// A spare for a device that has one already (EEXIST).
    #[error("the device has a spare already")]
    DoubleSpare,
    /// A resilver runs, beside which no sequential rebuild can (`ZFS_ERR_RESILVER_IN_PROGRESS`).
    #[error("resilver in progress")]
    Resilvering,
    /// A sequential rebuild runs, beside which no resilver can (`ZFS_ERR_REBUILD_IN_PROGRESS`).
    #[error("rebuild in progress")]
    Rebuilding,
    /// The data of a vdev is being moved away (`ZFS_ERR_DEVRM_IN_PROGRESS`).
    #[error("device removal in progress")]
    Removing,
    /// A log device holds records that are not replayed yet (EBUSY).
    #[error("Mount encrypted datasets to replay logs.")]
    LogBusy,
    /// A log device holds an intent log that is not replayed (EEXIST).
    #[error("log device has unplayed intent logs")]
    UnplayedLogs,
    /// The pool has a checkpoint (`ZFS_ERR_CHECKPOINT_EXISTS`).
    #[error("checkpoint exists")]
    Checkpoint,
    /// Data cannot be moved off such a vdev (ENOTSUP).
    #[error("operation not supported on this type of pool")]
    NotSupported,
    /// Data cannot be moved in such a pool (EINVAL).
    #[error("invalid config; all top-level vdevs must have the same sector size and not be raidz.")]
    NotAlike,
    /// The remaining devices have no room for the data (ENOSPC).
    #[error("out of space")]
    NoSpace,
    /// A distributed spare is part of its dRAID (ENOTSUP).
    #[error("dRAID spares cannot be removed")]
    DistributedSpare,
    /// Raidz and dRAID cannot be combined with removed vdevs (EINVAL).
    #[error("invalid config; a pool with removing/removed vdevs does not support adding raidz or dRAID vdevs")]
    ParityBesideRemoved,
    /// A sector size other than the pool's (`ZFS_ERR_ASHIFT_MISMATCH`).
    #[error("adding devices with different physical sector sizes is not allowed")]
    SectorSize,
    /// Such a vdev does not have the property (ENOTSUP).
    #[error("property not supported for this vdev")]
    NotSettable,
    /// The identity is that of a pool which is imported (EEXIST).
    #[error("pool already exists")]
    SameGuid,
    /// A device is not well (ENXIO).
    #[error("one or more devices is currently unavailable")]
    Unavailable,
    /// The value is not valid for this vdev (EINVAL).
    #[error("Invalid argument")]
    BadValue,
}

impl VdevRefusal {
    /// OpenZFS's errno.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            VdevRefusal::NoDevice => Errno::ENOENT,
            VdevRefusal::NoVdev => Errno::ENODEV,
            VdevRefusal::UnplayedLogs | VdevRefusal::DoubleSpare | VdevRefusal::SameGuid => Errno::EEXIST,
            VdevRefusal::Unavailable => Errno::ENXIO,
            VdevRefusal::InUse
            | VdevRefusal::Busy
            | VdevRefusal::LogBusy
            | VdevRefusal::NoReplicas
            | VdevRefusal::OtherParent => Errno::EBUSY,
            VdevRefusal::TooSmall => Errno::EOVERFLOW,
            VdevRefusal::Resilvering => Errno::ZFS_ERR_RESILVER_IN_PROGRESS,
            VdevRefusal::Rebuilding => Errno::ZFS_ERR_REBUILD_IN_PROGRESS,
            VdevRefusal::Removing => Errno::ZFS_ERR_DEVRM_IN_PROGRESS,
            VdevRefusal::NotAlike | VdevRefusal::ParityBesideRemoved | VdevRefusal::BadValue => Errno::EINVAL,
            VdevRefusal::NoSpace => Errno::ENOSPC,
            VdevRefusal::NotSupported | VdevRefusal::DistributedSpare | VdevRefusal::NotSettable => Errno::ENOTSUP,
            VdevRefusal::Checkpoint => Errno::ZFS_ERR_CHECKPOINT_EXISTS,
            VdevRefusal::SectorSize | VdevRefusal::Alignment => Errno::ZFS_ERR_ASHIFT_MISMATCH,
        }
    }
}

impl Spa {
    /// Returns the layout options for new vdevs of this pool.
    #[must_use]
    pub fn layout_options(&self, ashift: Option<u64>) -> LayoutOptions {
        let first_id = self.tree().tops().len() as u64;
        LayoutOptions { ashift, first_id, create_txg: Txg(self.uberblock().txg.0 + 1) }
    }

    /// Adds top-level vdevs, spares and caches, laid out with [`Spa::layout_options`]; the previous contents of their devices are lost.
    /// Datasets may be open. `any_ashift`: sector sizes other than the pool's are accepted.
    ///
    /// # Errors
    /// [`Error::Vdevs`], and nothing was done; when the new devices cannot be written, and they are not in the pool; [`Error::Suspended`].
    pub fn add_vdevs(self: &Arc<Self>, new: NewPool, any_ashift: bool) -> Result<(), Error> {
        let _alone = self.vdev_change.lock();
        let mut tops = new.vdev_tree.get_nvlist_array(key::CHILDREN).unwrap_or(&[]).to_vec();
        self.check_new_vdevs(&tops, any_ashift)?;
        self.check_not_in_use(&new)?;
        // other vdevs may have been added since they were laid out
        for (top, id) in tops.iter_mut().zip(self.tree().tops().len() as u64..) {
            top.insert(key::ID, id);
        }
        init_aside(&new)?;
        let config = self.config_with(|children| children.extend(tops.clone()));
        init_labels(&config, &new.devices, self.layout_options(None).create_txg)?;
        self.sync_task(move |cx| {
            let NewPool { spares, l2cache, devices, .. } = new;
            if !tops.is_empty() {
                cx.join_vdevs(tops, &devices)?;
            }
            for (name, more) in [(key::SPARES, spares), (key::L2CACHE, l2cache)] {
                if !more.is_empty() {
                    let list = [cx.aux(name)?, more].concat();
                    cx.spa.aux_list(cx.mos, cx.tx, name, &list)?;
                }
            }
            Ok(())
        })?;
        self.notify("vdev_add", &NvList::new());
        self.notify("config_sync", &NvList::new());
        Ok(())
    }

    fn check_new_vdevs(&self, tops: &[NvList], any_ashift: bool) -> Result<(), Error> {
        let parity = |top: &NvList| matches!(top.get_str(key::TYPE), Some("raidz" | "draid"));
        if self.tree().tops().iter().any(|top| top.is_indirect()) && tops.iter().any(parity) {
            return Err(Error::Vdevs(VdevRefusal::ParityBesideRemoved));
        }
        let all_alike = |ashift: u64| tops.iter().all(|top| top.get_u64(key::ASHIFT) == Some(ashift));
        if let Some(ashift) = self.common_ashift().filter(|_| !any_ashift)
            && !all_alike(ashift)
        {
            return Err(Error::Vdevs(VdevRefusal::SectorSize));
        }
        Ok(())
    }

    /// Refuses devices that the pool has already, which their labels tell (OpenZFS: `vdev_inuse`).
    fn check_not_in_use(&self, new: &NewPool) -> Result<(), Error> {
        let (tree, mos) = (self.tree(), self.live_mos()?);
        let mut own: Vec<Guid> = tree.leaves().iter().map(|leaf| leaf.guid()).collect();
        for name in [key::SPARES, key::L2CACHE] {
            own.extend(aux(&mos, name)?.iter().filter_map(|list| list.get_u64(key::GUID)).map(Guid));
        }
        let is_own = |device: &Arc<dyn Device>| {
            let mut labels = vdev::label::read_labels(&**device).into_iter().flatten();
            labels.any(|label| label.guid().is_some_and(|guid| own.contains(&guid)))
        };
        if new.devices.values().any(is_own) { Err(Error::Vdevs(VdevRefusal::InUse)) } else { Ok(()) }
    }

    /// Returns the sector size of all vdevs of the normal class, as base-2 logarithm, if it is the same for all.
    pub(crate) fn common_ashift(&self) -> Option<u64> {
        let is_normal = |config: &vdev::VdevConfig| !config.is_log && config.alloc_bias.is_none();
        let tree = self.tree();
        let normal = tree.tops().iter().filter(|top| top.is_concrete() && is_normal(top.config()));
        let mut all = normal.map(|top| u64::from(top.ashift()));
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }

    /// Returns the configuration with its top-level vdevs changed.
    pub(crate) fn config_with(&self, change: impl FnOnce(&mut Vec<NvList>)) -> NvList {
        self.config_with_tree(|tree| tree.get_nvlist_array_mut(key::CHILDREN).map(change)).0
    }

    /// Returns the configuration with its tree of vdevs changed.
    pub(crate) fn config_with_tree<R>(&self, change: impl FnOnce(&mut NvList) -> R) -> (NvList, Option<R>) {
        let mut nv = self.config.lock().nv.clone();
        let changed = nv.get_nvlist_mut(key::VDEV_TREE).map(change);
        super::config::describe_tops(&mut nv);
        (nv, changed)
    }

    /// Returns the tree of configuration `nv`, which shares what it can with the current one.
    pub(crate) fn tree_of(&self, nv: &NvList, new: &Newcomers<'_>) -> Result<VdevTree, Error> {
        let vdevs = nv.require_nvlist(key::VDEV_TREE);
        let parsed = VdevConfig::parse(vdevs.map_err(|source| Error::Nvlist { what: "pool configuration", source })?)?;
        Ok(self.tree().changed(&parsed, new)?)
    }

    /// Makes `tree` the pool's current tree.
    pub(crate) fn publish(&self, tree: VdevTree) {
        *self.worst.write() = worst_case(&tree);
        self.zio.live_tree().publish(Arc::new(tree));
        // those of new leaves are not known, and those of all others may have been inherited
        self.forget_thresholds();
    }
}

impl TaskCx<'_> {
    /// Makes `tops` top-level vdevs of the pool. Their space can be allocated when the txg is on disk.
    fn join_vdevs(&self, tops: Vec<NvList>, devices: &HashMap<Guid, Arc<dyn Device>>) -> Result<(), Error> {
        let spa = self.spa;
        let nv = spa.config_with(|children| children.extend(tops));
        let new = Newcomers { devices: Some(devices), renamed: None };
        // an invalid tree is refused before anything is changed
        let classes = spa.space.classes_of_new(&spa.tree_of(&nv, &new)?);
        let before = std::mem::replace(&mut spa.config.lock().nv, nv);
        let joined = spa
            .construct_zaps(self.mos, self.tx)
            .and_then(|()| spa.space.make_arrays(self.mos, self.tx, spa))
            .and_then(|()| spa.tree_of(&spa.config.lock().nv.clone(), &new));
        match joined {
            Ok(tree) => {
                let histograms = spa.feature_enabled(self.mos, "spacemap_histogram")?;
                spa.space.join_when_synced(&tree, &classes, histograms)?;
                spa.publish(tree);
                Ok(())
            }
            Err(error) => {
                spa.config.lock().nv = before;
                Err(error)
            }
        }
    }

    /// Leaves a hole at the index of top-level vdev `id`, on which nothing is allocated. Returns its configuration as it was, and that of
    /// the pool as it is now.
    pub(crate) fn leave_hole(&self, id: u64) -> Result<(NvList, NvList), Error> {
        let spa = self.spa;
        let mut old = NvList::new();
        let new = spa.config_with(|children| {
            if let Some(child) = children.iter_mut().find(|child| child.get_u64(key::ID) == Some(id)) {
                old = std::mem::replace(child, hole(id));
            }
        });
        let tree = spa.tree_of(&new, &Newcomers::default())?;
        crate::spa::metaslab::alloc::forget_vdev(self, &VdevConfig::parse(&old)?)?;
        spa.edit_config(|nv| *nv = new.clone());
        spa.space.leave(id)?;
        spa.publish(tree);
        Ok((old, new))
    }

    /// Returns the pool's spares or caches.
    pub(crate) fn aux(&self, name: &'static str) -> Result<Vec<NvList>, Error> {
        aux(self.mos, name)
    }
}

/// Returns the spares or caches of the MOS.
fn aux(mos: &Mos, name: &'static str) -> Result<Vec<NvList>, Error> {
    let Some(id) = mos.id_of(name)? else { return Ok(Vec::new()) };
    let list = mos.nvlist(id, name)?;
    Ok(list.get_nvlist_array(name).unwrap_or(&[]).to_vec())
}

/// Returns the placeholder for a removed top-level vdev (OpenZFS: `vdev_hole_ops`).
pub(crate) fn hole(id: u64) -> NvList {
    let mut list = NvList::new();
    list.insert(key::TYPE, VdevType::Hole.name());
    list.insert(key::ID, id);
    list.insert(key::GUID, Guid(0).0);
    list.insert(key::WHOLE_DISK, 0u64);
    for name in [key::METASLAB_ARRAY, key::METASLAB_SHIFT, key::ASHIFT, key::ASIZE] {
        list.insert(name, 0u64);
    }
    list.insert(key::MIN_ALLOC, 1u64);
    list.insert(key::IS_LOG, 0u64);
    list.insert("is_hole", 1u64);
    list
}
