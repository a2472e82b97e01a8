//! Vdevs that come and go (OpenZFS: `zfs_ioc_vdev_add`, `zfs_ioc_vdev_remove`).

use base::Guid;
use pool::{Kind, ListOptions};
use vdev::create::NewPool;
use zpl::live::{Volume, Zfs};

use crate::{Control, Failed};

impl Control {
    /// Adds vdevs, spares and caches, laid out with [`Spa::layout_options`](pool::Spa::layout_options). `any_ashift`: sectors of another size
    /// than the pool's are taken.
    ///
    /// # Errors
    /// [`Failed`] as the pool says; an errno that [`pool::VdevRefusal`] has means that nothing was done.
    pub fn add_vdevs(&self, new: NewPool, any_ashift: bool) -> Result<(), Failed> {
        self.spa.add_vdevs(new, any_ashift)?;
        self.note_change();
        Ok(())
    }

    /// Removes the log, spare or cache with this guid.
    ///
    /// # Errors
    /// As [`Control::add_vdevs`].
    pub fn remove_vdev(&self, guid: Guid) -> Result<(), Failed> {
        if self.spa.tree().tops().iter().any(|top| top.guid() == guid && top.config().is_log) {
            self.replay_logs()?;
        }
        self.spa.remove_vdev(guid)?;
        self.note_change();
        Ok(())
    }

    /// Replays the logs of all datasets whose keys are there: whoever opens them does. What cannot be opened keeps its log, and the device.
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
