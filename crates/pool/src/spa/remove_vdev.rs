//! Removal of devices that hold no data: logs, spares, caches (OpenZFS: `spa_vdev_remove`, `spa_vdev_remove_log`).
//!
//! A log device is removed from an open pool: first it is no longer allocated from, then every intent log ends its chain (the next commit
//! begins another one, elsewhere), until nothing is allocated on it. The MOS objects for its space go with it, in the txg that leaves a
//! hole at its index; entries for it in log space maps are skipped when they are read. Data cannot be moved off a vdev in this version.

use std::sync::Arc;

use base::{Guid, Txg};
use nvlist::NvList;
use ondisk::label::key;
use vdev::{TopVdev, VdevType};

use crate::Error;
use crate::spa::Spa;
use crate::spa::VdevRefusal;
use crate::spa::datasets::Datasets;
use crate::spa::detach::relabel;

/// The device that a guid names.
enum Removable {
    /// A device of the list of this name.
    Auxiliary(&'static str, NvList),
    Log(TopVdev),
}

impl Spa {
    /// Removes the log, spare or cache with this guid. Datasets may be open.
    ///
    /// # Errors
    /// [`Error::Vdevs`], and the vdev stays; [`Error::Suspended`].
    pub fn remove_vdev(self: &Arc<Self>, guid: Guid) -> Result<(), Error> {
        let _alone = self.vdev_change.lock();
        if self.feature_active(&self.live_mos()?, "zpool_checkpoint")? {
            return Err(Error::Vdevs(VdevRefusal::Checkpoint));
        }
        match self.removable(guid)? {
            Removable::Auxiliary(name, list) => {
                self.remove_auxiliary(name, guid, list.get_str(key::PATH).unwrap_or("-"))
            }
            Removable::Log(top) => self.remove_log(&top),
        }
    }

    fn removable(&self, guid: Guid) -> Result<Removable, Error> {
        let view = self.view()?;
        let of = |list: Vec<NvList>| list.into_iter().find(|device| device.get_u64(key::GUID) == Some(guid.0));
        let refuse = |why| Err(Error::Vdevs(why));
        if let Some(spare) = of(view.spares()?) {
            return match self.tree().leaf(guid) {
                Some(_) => refuse(VdevRefusal::Busy),
                None if spare.get_str(key::TYPE) == Some("dspare") => refuse(VdevRefusal::DistributedSpare),
                None => Ok(Removable::Auxiliary(key::SPARES, spare)),
            };
        }
        if let Some(cache) = of(view.l2cache()?) {
            return Ok(Removable::Auxiliary(key::L2CACHE, cache));
        }
        let tree = self.tree();
        let top = tree.tops().iter().find(|top| top.config().walk().any(|vdev| vdev.guid == guid));
        match top {
            None => refuse(VdevRefusal::NoDevice),
            Some(top) if top.guid() != guid => refuse(VdevRefusal::NotSupported),
            Some(top) if top.config().is_log => Ok(Removable::Log(top.clone())),
            Some(top) => refuse(self.why_data_stays(top)?),
        }
    }

    /// Returns the reason why the data of a vdev cannot be moved (OpenZFS: `spa_vdev_remove_top_check`).
    fn why_data_stays(&self, top: &TopVdev) -> Result<VdevRefusal, Error> {
        if !top.is_concrete() || !self.feature_enabled(&self.live_mos()?, "device_removal")? {
            return Ok(VdevRefusal::NotSupported);
        }
        let own = self.space.vdev_figures(top.id());
        if self.space.available(false) < own.dspace {
            return Ok(VdevRefusal::NoSpace);
        }
        let has_parity = |top: &TopVdev| {
            top.is_concrete() && top.config().walk().any(|v| matches!(v.kind, VdevType::Raidz | VdevType::Draid))
        };
        match self.common_ashift().is_none() || self.tree().tops().iter().any(has_parity) {
            true => Ok(VdevRefusal::NotAlike),
            false => Ok(VdevRefusal::NotSupported),
        }
    }

    fn remove_auxiliary(self: &Arc<Self>, name: &'static str, guid: Guid, path: &str) -> Result<(), Error> {
        let kind = if name == key::SPARES { "spare" } else { "l2cache" };
        let what = format!("{} vdev ({kind}) {path}", self.name());
        self.sync_task(move |cx| {
            let mut list = cx.aux(name)?;
            list.retain(|device| device.get_u64(key::GUID) != Some(guid.0));
            cx.spa.aux_list(cx.mos, cx.tx, name, &list)?;
            cx.spa.log_internal(cx.mos, cx.tx, "vdev remove", &what)
        })?;
        self.notify_vdev("vdev_remove_aux", guid, Some(path));
        Ok(())
    }

    fn remove_log(self: &Arc<Self>, top: &TopVdev) -> Result<(), Error> {
        let id = top.id();
        let before = self.tree();
        let retired = self.space.retire(id);
        let removed = self.remove_retired(top);
        if retired && removed.is_err() {
            self.space.reinstate(id);
        }
        let (old, new) = removed?;
        self.notify_vdev("vdev_remove_dev", top.guid(), top.config().path.as_deref());
        for leaf in top.config().leaves() {
            relabel(&before, leaf.guid, &vdev::label::initial_config(&new, &old, leaf.guid, Txg(0)));
        }
        Ok(())
    }

    /// Returns whether nothing is allocated on a log device that is no longer allocated from.
    pub(crate) fn is_empty_log(&self, id: u64) -> bool {
        let figures = self.space.vdev_figures(id);
        figures.alloc <= figures.deferred
    }

    /// Removes a log that is no longer allocated from. Returns what [`TaskCx::leave_hole`] returns.
    fn remove_retired(self: &Arc<Self>, top: &TopVdev) -> Result<(NvList, NvList), Error> {
        let _suspended = self.pause_logs()?;
        let id = top.id();
        let is_empty = move |spa: &Spa| match spa.is_empty_log(id) {
            true => Ok(()),
            false => Err(Error::Vdevs(VdevRefusal::LogBusy)),
        };
        is_empty(self)?;
        let path = top.config().path.clone().unwrap_or_else(|| "-".to_string());
        let what = format!("{} vdev (log) {path}", self.name());
        self.sync_task(move |cx| {
            is_empty(cx.spa)?;
            let changed = cx.leave_hole(id)?;
            cx.spa.log_internal(cx.mos, cx.tx, "vdev remove", &what)?;
            Ok(changed)
        })
    }
}
