//! Devices that come into a pool and leave it, in the pool's record as well: a command finds a pool on the devices that its record names.

use std::path::PathBuf;

use base::Guid;
use control::{Control, Failed, Ioc, NewVdevs};
use nvlist::NvList;
use ondisk::label::key;

use crate::error::opening;
use crate::{Error, Imported, Site, devices, records};

impl Site {
    /// Answers a request that [changes the devices](Ioc::changes_devices) of a pool, and records those that come and go.
    ///
    /// # Errors
    /// As [`Control::call`]; when the record cannot be written.
    pub fn change_vdevs(&self, control: &Control, ioc: Ioc, input: &NvList) -> Result<NvList, Failed> {
        self.alone_with_vdevs(control.spa().guid(), || match ioc {
            Ioc::VdevRemove | Ioc::VdevDetach => self.take_vdev(control, ioc, input),
            _ => self.bring_vdevs(control, ioc, input),
        })
    }

    fn bring_vdevs(&self, control: &Control, ioc: Ioc, input: &NvList) -> Result<NvList, Failed> {
        let name = control.spa().name();
        let new = input.get_nvlist("config").map(NewVdevs::of_list).transpose()?.unwrap_or_default();
        let before = self.record_of(control)?;
        let mut added: Vec<PathBuf> = new.spec.paths().map(|(path, _)| PathBuf::from(path)).collect();
        added.retain(|path| !before.devices.contains(path));
        // recorded first, so that a command after one that was killed finds them: a path that is no device of the pool is skipped
        records::update(before.guid, |record| record.add_devices(&added)).map_err(opening)?;
        let done = control.call(ioc, name, input);
        // what others have changed in it meanwhile stays
        let recorded = records::update(before.guid, |record| match &done {
            // another thread may have failed to add the same
            Ok(_) => record.add_devices(&added),
            // it may be done when the pool goes on
            Err(failed) if failed.is_suspended() => {}
            Err(_) => record.devices.retain(|path| !added.contains(path)),
        });
        // a failure to add them is what counts
        let out = done?;
        recorded.map_err(opening)?;
        Ok(out)
    }

    fn take_vdev(&self, control: &Control, ioc: Ioc, input: &NvList) -> Result<NvList, Failed> {
        let guid = Guid(input.get_u64("guid").unwrap_or(0));
        let record = self.record_of(control)?;
        // their labels are gone afterwards
        let paths = devices::candidate(&record).map(|found| devices::paths(&found)).unwrap_or_default();
        let tree = control.spa().tree();
        let leaves: Vec<Guid> = match tree.config().walk().find(|vdev| vdev.guid == guid) {
            Some(vdev) => vdev.leaves().map(|leaf| leaf.guid).collect(),
            // a spare or cache
            None => vec![guid],
        };
        drop(tree);
        let out = control.call(ioc, control.spa().name(), input)?;
        // a spare that is no longer in use is still the pool's
        let spares = control.spa().view()?.spares()?;
        let stays = |leaf: &&Guid| spares.iter().any(|spare| spare.get_u64(key::GUID) == Some(leaf.0));
        let gone: Vec<PathBuf> =
            leaves.iter().filter(|leaf| !stays(leaf)).filter_map(|leaf| paths.get(leaf)).map(PathBuf::from).collect();
        records::update(record.guid, |record| record.devices.retain(|path| !gone.contains(path))).map_err(opening)?;
        Ok(out)
    }

    /// The current record of a pool that is changed.
    fn record_of(&self, control: &Control) -> Result<Imported, Failed> {
        let (guid, name) = (control.spa().guid(), control.spa().name());
        let found = self.all().map_err(opening)?.into_iter().find(|record| record.guid == guid);
        found.ok_or_else(|| opening(Error::NoSuchPool { name: name.to_owned() }))
    }
}
