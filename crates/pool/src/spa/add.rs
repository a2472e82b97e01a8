//! Other vdevs for a pool: some more ([`Spa::add_vdevs`]), or some less (`remove_log`).
//!
//! # The way
//! The tree of vdevs is fixed as long as a pool is open: whoever reads and writes blocks has it without a lock. So a pool whose vdevs change is
//! opened anew, in one process, with its devices locked all the while:
//!
//! 1. Everything is synced, and the pool stops.
//! 2. It is opened with the *new* tree, beside what its MOS says. New devices have first labels by then, with txg 0: in use by nobody.
//! 3. One txg makes the objects of new vdevs, frees those of removed ones, and writes the new configuration. Its commit does the rest
//!    without knowing: it writes labels to all devices of the new tree, old and new, around an uberblock with their guid sum.
//! 4. It is opened once more, as any pool: what is on the devices is what is worked with.
//!
//! A tree that grows under its readers would need a lock at every block, or copies of it at a dozen places, for the sake of something that
//! happens twice in a pool's life. The price is that nobody may have a dataset open meanwhile.
//!
//! # Numbers
//! A top-level vdev's number is never given again: logs of space changes that are older than a removal name it. What is removed leaves a
//! hole in the tree, which `hole_array` names, and new vdevs come behind.
//!
//! # After a crash
//! Until the commit of step 3 the pool is that of before. From then on it is the new one.
//!
//! OpenZFS: `spa_vdev_add`, `spa_vdev_config_exit`, `spa_config_update`.

use std::path::PathBuf;
use std::sync::Arc;

use base::{Guid, Txg};
use dmu::Tx;
use nvlist::NvList;
use ondisk::label::key;
use vdev::VdevType;
use vdev::create::{LayoutOptions, NewPool};
use vdev::import::Candidate;

use crate::Error;
use crate::dsl::Refusal;
use crate::open::Shape;
use crate::spa::create::{init_aside, init_labels};
use crate::spa::{Spa, TaskCx};

/// Why the vdevs of a pool stay as they are, in OpenZFS's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VdevRefusal {
    /// No vdev, spare or cache of this guid (ENOENT).
    #[error("no such device in pool")]
    NoDevice,
    /// A spare that has taken the place of a device (EBUSY).
    #[error("Pool busy; removal may already be in progress")]
    Busy,
    /// A log device holds what is not replayed yet (EBUSY).
    #[error("Mount encrypted datasets to replay logs.")]
    LogBusy,
    /// The pool has a checkpoint (`ZFS_ERR_CHECKPOINT_EXISTS`).
    #[error("checkpoint exists")]
    Checkpoint,
    /// Data cannot be moved off such a vdev (ENOTSUP).
    #[error("operation not supported on this type of pool")]
    NotSupported,
    /// Data cannot be moved in such a pool (EINVAL).
    #[error("invalid config; all top-level vdevs must have the same sector size and not be raidz.")]
    NotAlike,
    /// What is left has no room for the data (ENOSPC).
    #[error("out of space")]
    NoSpace,
    /// A distributed spare is part of its dRAID (ENOTSUP).
    #[error("dRAID spares cannot be removed")]
    DistributedSpare,
    /// Raidz and dRAID do not go with removed vdevs (EINVAL).
    #[error("invalid config; a pool with removing/removed vdevs does not support adding raidz or dRAID vdevs")]
    ParityBesideRemoved,
    /// Other sectors than those of the pool (`ZFS_ERR_ASHIFT_MISMATCH`).
    #[error("adding devices with different physical sector sizes is not allowed")]
    SectorSize,
    /// Such a vdev does not have the property (ENOTSUP).
    #[error("property not supported for this vdev")]
    NotSettable,
    /// A property's value that this vdev cannot have (EINVAL).
    #[error("Invalid argument")]
    BadValue,
}

impl VdevRefusal {
    /// OpenZFS's number.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            VdevRefusal::NoDevice => 2,
            VdevRefusal::Busy | VdevRefusal::LogBusy => 16,
            VdevRefusal::NotAlike | VdevRefusal::ParityBesideRemoved | VdevRefusal::BadValue => 22,
            VdevRefusal::NoSpace => 28,
            VdevRefusal::NotSupported | VdevRefusal::DistributedSpare | VdevRefusal::NotSettable => 95,
            VdevRefusal::Checkpoint => 1024,
            VdevRefusal::SectorSize => 1050,
        }
    }
}

impl Spa {
    /// How vdevs are to be laid out that this pool shall get.
    #[must_use]
    pub fn layout_options(&self, ashift: Option<u64>) -> LayoutOptions {
        let first_id = self.tree().tops().len() as u64;
        LayoutOptions { ashift, first_id, create_txg: Txg(self.uberblock().txg.0 + 1) }
    }

    /// Adds top-level vdevs, spares and caches, laid out with [`Spa::layout_options`]; what was on their devices is lost. Gives the pool,
    /// opened anew: this one is closed. `any_ashift`: sectors of another size than the pool's are taken.
    ///
    /// # Errors
    /// [`Error::Vdevs`] and [`Refusal::Busy`], then nothing was done; when devices cannot be written, then the pool is closed.
    pub fn add_vdevs(self: &Arc<Self>, new: NewPool, any_ashift: bool) -> Result<Arc<Spa>, Error> {
        let tops = new.vdev_tree.get_nvlist_array(key::CHILDREN).unwrap_or(&[]).to_vec();
        self.check_new_vdevs(&tops, any_ashift)?;
        self.check_unused()?;
        let create_txg = self.layout_options(None).create_txg;
        let config = self.reshaped_config(|children| children.extend(tops));
        init_aside(&new)?;
        init_labels(&config, &new.devices, create_txg)?;
        let NewPool { spares, l2cache, devices, .. } = new;
        self.reshape(Shape { config, devices }, |cx| {
            for (name, more) in [(key::SPARES, spares), (key::L2CACHE, l2cache)] {
                if !more.is_empty() {
                    let list = [cx.aux(name)?, more].concat();
                    cx.spa.aux_list(cx.mos, cx.tx, name, &list)?;
                }
            }
            Ok(())
        })
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

    /// The sector size of all vdevs of the normal class, as base-2 logarithm, if they have the same.
    pub(crate) fn common_ashift(&self) -> Option<u64> {
        let is_normal = |config: &vdev::VdevConfig| !config.is_log && config.alloc_bias.is_none();
        let normal = self.tree().tops().iter().filter(|top| top.is_concrete() && is_normal(top.config()));
        let mut all = normal.map(|top| u64::from(top.ashift()));
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }

    /// Whether nobody has a dataset open, so that the pool can be opened anew.
    pub(crate) fn check_unused(&self) -> Result<(), Error> {
        let ids: Vec<u64> = self.heads.all().iter().map(|head| head.id).collect();
        if self.heads.in_use(&ids) {
            return Err(Error::Refused { name: self.name().to_string(), why: Refusal::Busy });
        }
        Ok(())
    }

    /// The configuration with other top-level vdevs.
    pub(crate) fn reshaped_config(&self, change: impl FnOnce(&mut Vec<NvList>)) -> NvList {
        let mut nv = self.config.lock().nv.clone();
        if let Some(children) = nv.get_nvlist_mut(key::VDEV_TREE).and_then(|t| t.get_nvlist_array_mut(key::CHILDREN)) {
            change(children);
        }
        super::config::describe_tops(&mut nv);
        nv
    }

    /// Opens the pool anew with other vdevs; `work` is done in the txg that makes it so.
    pub(crate) fn reshape(
        self: &Arc<Self>,
        shape: Shape,
        work: impl FnOnce(&TaskCx<'_>) -> Result<(), Error>,
    ) -> Result<Arc<Spa>, Error> {
        let options = self.import_again();
        let own = self.tree().leaves().iter().filter_map(|leaf| leaf.device());
        let mut devices: Vec<(PathBuf, Arc<dyn vdev::Device>)> =
            own.map(|device| (PathBuf::from(device.name()), device.clone())).collect();
        self.close()?;
        let spa = Spa::import_shaped(&self.find_on(&devices)?, &options, self.hooks.clone(), &shape)?;
        let tx = Tx::syncing(Txg(spa.uberblock().txg.0 + 1));
        let mos = spa.live_mos()?;
        spa.construct_zaps(&mos, &tx)?;
        spa.space.init_vdevs(&mos, &tx, &spa)?;
        work(&TaskCx { spa: &spa, mos: &mos, tx: &tx })?;
        spa.sync_first(&tx)?;
        drop(spa);
        devices.extend(shape.devices.into_values().map(|device| (PathBuf::from(device.name()), device)));
        let spa = Spa::import(&self.find_on(&devices)?, &options, self.hooks.clone())?;
        spa.zio.keys().extend(self.zio.keys());
        Ok(spa)
    }

    fn find_on(&self, devices: &[(PathBuf, Arc<dyn vdev::Device>)]) -> Result<Candidate, Error> {
        let mut found = vdev::import::scan_devices(devices.to_vec()).into_iter();
        let own = found.find(|candidate| candidate.guid == self.guid());
        own.ok_or_else(|| Error::NoUberblock("the pool's devices are not there any more".to_string()))
    }
}

impl TaskCx<'_> {
    /// The pool's spares or caches.
    pub(crate) fn aux(&self, name: &'static str) -> Result<Vec<NvList>, Error> {
        let Some(id) = self.mos.number(name)? else { return Ok(Vec::new()) };
        let list = self.mos.nvlist(id, name)?;
        Ok(list.get_nvlist_array(name).unwrap_or(&[]).to_vec())
    }
}

/// What stands in the place of a top-level vdev that is gone (OpenZFS: `vdev_hole_ops`).
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
