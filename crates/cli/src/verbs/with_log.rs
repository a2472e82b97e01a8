//! Pools as they would be if their intent logs were replayed (`--with-log`).
//!
//! The pool is really imported and its logs are really replayed, on devices that keep in memory what is written to
//! them: the real ones are only read. So the result is exactly what the next import will make of the logs. The changes
//! may take as much memory as the cache (`zfs_arc_max`).

use std::path::PathBuf;
use std::sync::Arc;

use base::tunable;
use pool::{Dataset, Hooks, ImportOptions, OpenOptions, Pool, Spa};
use vdev::import::{Candidate, PoolState};
use vdev::{Device, Overlay, Room};

use crate::error::{Failure, failed};
use crate::{replay, writable};

/// Returns whether the log of a dataset without its key holds records that are not shown.
pub(super) fn is_sealed(dataset: &Dataset) -> bool {
    // the header can be read without the key; a caller that reads the dataset gets the error if it cannot
    let header = dataset.objset().ok().map(|objset| objset.phys().zil_header.clone());
    header.is_some_and(|header| zil::claim::needs_replay(&header))
}

/// Opens `candidate` with its logs replayed in memory. `keys` loads the keys that are available. Once the result is
/// dropped, nothing read from the pool may be used any more.
pub(super) fn open(
    candidate: &Candidate,
    name: Option<String>,
    keys: impl FnOnce(&Arc<Pool>) -> Result<(), Failure>,
) -> Result<(Arc<Spa>, Arc<Pool>), Failure> {
    let cannot = |why: String| failed(format!("cannot open '{}': {why}", candidate.name));
    let room = Room::new(tunable::ZFS_ARC_MAX.get());
    let over = |device: &vdev::import::FoundDevice| -> (PathBuf, Arc<dyn Device>) {
        (device.path.clone(), Arc::new(Overlay::new(device.device.clone(), room.clone())))
    };
    let mut devices: Vec<_> = candidate.devices.iter().map(over).collect();
    let aside = candidate.spares.iter().chain(&candidate.l2cache);
    devices.extend(aside.map(|device| (device.path.clone(), device.device.clone())));
    let again = vdev::import::scan_devices(devices).into_iter().find(|found| found.guid == candidate.guid);
    let again = again.ok_or_else(|| cannot("its devices are not there any more".to_owned()))?;
    let temporary_name = name.is_some();
    let open = OpenOptions { name, arc_bytes: tunable::ZFS_ARC_MAX.get(), ..OpenOptions::default() };
    // nobody else can see it: other users of the pool are not disturbed
    let is_open = candidate.state == PoolState::Active;
    let options = ImportOptions { open, again: is_open, force: true, temporary_name, ..ImportOptions::default() };
    let why = |e: &pool::Error| cannot(writable::why(e));
    let hooks = Hooks { held_elsewhere: None, readers: None, synced: None, ..writable::hooks() };
    let spa = Spa::import(&again, &options, hooks).map_err(|e| why(&e))?;
    keys(&spa.view().map_err(|e| why(&e))?)?;
    replay::all(&spa)?;
    let view = spa.view().map_err(|e| why(&e))?;
    Ok((spa, view))
}
