//! Vdevs that come and go, and their devices (OpenZFS: `zfs_ioc_vdev_add`, `zfs_ioc_vdev_attach`, `zfs_ioc_vdev_remove`,
//! `zfs_ioc_vdev_set_state`).

use std::path::PathBuf;

use base::Guid;
use nvlist::NvList;
use pool::{Kind, ListOptions};
use vdev::VdevState;
use vdev::create::{LayoutOptions, NewPool, layout};
use zpl::live::{Volume, Zfs};

use crate::decode::require_list;
use crate::devices::{Devices, Opened};
use crate::{Control, Error, Failed, NewVdevs};

/// The states that can be asked for (OpenZFS: `vdev_state_t`), and the flags (`ZFS_OFFLINE_TEMPORARY`, `VDEV_AUX_EXTERNAL_PERSIST`).
const STATE_OFFLINE: u64 = 2;
const STATE_FAULTED: u64 = 5;
const STATE_HEALTHY: u64 = 7;
const OFFLINE_TEMPORARY: u64 = 1;
const AUX_EXTERNAL_PERSIST: u64 = 17;
/// The flag of a device that is put to use in all its size (`ZFS_ONLINE_EXPAND`).
const ONLINE_EXPAND: u64 = 8;

impl Control {
    pub(crate) fn vdev_add(&self, input: &NvList) -> Result<NvList, Failed> {
        let new = NewVdevs::of_list(require_list(input, "config")?)?;
        let any_ashift = input.get_bool("check_ashift") == Some(false);
        let options = self.spa.layout_options(new.ashift);
        let (laid_out, opened) = lay_out(&new, &*self.devices, options, self.spa.env())?;
        self.spa.add_vdevs(laid_out, any_ashift)?;
        drop(opened);
        Ok(NvList::new())
    }

    pub(crate) fn vdev_attach(&self, input: &NvList) -> Result<NvList, Failed> {
        let new = NewVdevs::of_list(require_list(input, "config")?)?;
        if input.contains("rebuild") {
            return Err(Error::NotSupported("sequential reconstruction".to_owned()).into());
        }
        let old = Guid(input.get_u64("guid").unwrap_or(0));
        let options = self.spa.layout_options(new.ashift);
        let (laid_out, opened) = lay_out(&new, &*self.devices, options, self.spa.env())?;
        self.spa.attach_vdev(old, laid_out, input.contains("replacing"))?;
        drop(opened);
        Ok(NvList::new())
    }

    pub(crate) fn vdev_detach(&self, input: &NvList) -> Result<NvList, Failed> {
        let guid = Guid(input.get_u64("guid").unwrap_or(0));
        self.done(self.spa.detach_vdev(guid))
    }

    pub(crate) fn vdev_remove(&self, input: &NvList) -> Result<NvList, Failed> {
        let guid = Guid(input.get_u64("guid").unwrap_or(0));
        self.empty_log(guid)?;
        self.done(self.spa.remove_vdev(guid))
    }

    pub(crate) fn vdev_set_state(&self, input: &NvList) -> Result<NvList, Failed> {
        let number = |name| input.get_u64(name).unwrap_or(0);
        let (guid, flags) = (Guid(number("guid")), number("flags"));
        let state = match number("state") {
            STATE_OFFLINE => {
                self.empty_log(guid)?;
                self.spa.offline_vdev(guid, flags & OFFLINE_TEMPORARY != 0)?;
                VdevState::Offline
            }
            STATE_FAULTED => self.spa.fault_vdev(guid, flags != AUX_EXTERNAL_PERSIST)?,
            STATE_HEALTHY if flags & ONLINE_EXPAND != 0 => self.spa.expand_vdev(guid)?,
            STATE_HEALTHY => self.spa.online_vdev(guid)?,
            other => return Err(Error::Invalid(format!("no state {other} can be asked for")).into()),
        };
        let mut out = NvList::new();
        out.insert("state", state.number());
        Ok(out)
    }

    /// If the vdev is of a log device, has as little left on it as can be.
    fn empty_log(&self, guid: Guid) -> Result<(), Failed> {
        let tree = self.spa.tree();
        let mut logs = tree.tops().iter().filter(|top| top.config().is_log);
        match logs.any(|top| top.config().walk().any(|vdev| vdev.guid == guid)) {
            true => self.replay_logs(),
            false => Ok(()),
        }
    }

    /// Replays the logs of all datasets whose keys are loaded, as anyone does who opens them. One that cannot be opened keeps its log, and the
    /// device.
    fn replay_logs(&self) -> Result<(), Failed> {
        let view = self.spa.view()?;
        for entry in view.list(self.spa.name(), &ListOptions::DATASETS)? {
            let Some(dataset) = entry.dataset() else { continue };
            // one that cannot be read keeps its log
            let Ok(kind) = dataset.kind() else { continue };
            let _replayed = match kind {
                Kind::Filesystem => Zfs::open(&self.spa, dataset.name()).map(drop),
                Kind::Volume => Volume::open(&self.spa, dataset.name()).map(drop),
                _ => continue,
            };
        }
        Ok(())
    }
}

/// Opens the devices of new vdevs, and lays these out. The second result lasts until they belong to a pool.
pub(crate) fn lay_out(
    new: &NewVdevs,
    devices: &dyn Devices,
    options: LayoutOptions,
    env: &base::Env,
) -> Result<(NewPool, Opened), Error> {
    let paths: Vec<PathBuf> = new.spec.paths().map(|(path, _)| PathBuf::from(path)).collect();
    let opened = devices.open(&paths)?;
    let mut laid_out = layout(&new.spec, &|path| opened.device(path), options, env)?;
    new.shared.iter().for_each(|(path, guid)| laid_out.share_spare(path, *guid));
    Ok((laid_out, opened))
}
