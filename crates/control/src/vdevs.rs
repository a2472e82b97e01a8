//! Vdevs that come and go (OpenZFS: `zfs_ioc_vdev_add`, `zfs_ioc_vdev_remove`).

use std::path::PathBuf;

use base::Guid;
use nvlist::NvList;
use pool::{Kind, ListOptions};
use vdev::create::{LayoutOptions, NewPool, layout};
use zpl::live::{Volume, Zfs};

use crate::decode::require_list;
use crate::devices::{Devices, Opened};
use crate::{Control, Error, Failed, NewVdevs};

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

    pub(crate) fn vdev_remove(&self, input: &NvList) -> Result<NvList, Failed> {
        let guid = Guid(input.get_u64("guid").unwrap_or(0));
        if self.spa.tree().tops().iter().any(|top| top.guid() == guid && top.config().is_log) {
            self.replay_logs()?;
        }
        self.done(self.spa.remove_vdev(guid))
    }

    /// Replays the logs of all datasets whose keys are loaded, as anyone does who opens them. One that cannot be opened keeps its log, and the
    /// device.
    fn replay_logs(&self) -> Result<(), Failed> {
        let view = self.spa.view()?;
        for entry in view.list(self.spa.name(), &ListOptions::DATASETS)? {
            let Some(dataset) = entry.dataset() else { continue };
            let _replayed = match dataset.kind()? {
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
