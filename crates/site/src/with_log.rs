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

use crate::{Error, writing};

/// Returns whether the log of a dataset without its key holds records that are not shown.
#[must_use]
pub fn is_sealed(dataset: &Dataset) -> bool {
    // the header can be read without the key; a caller that reads the dataset gets the error if it cannot
    let header = dataset.objset().ok().map(|objset| objset.phys().zil_header.clone());
    header.is_some_and(|header| zil::claim::needs_replay(&header))
}

/// A pool with its logs replayed in memory, and its state after that. Once the first is dropped, nothing read from the
/// pool may be used any more.
pub type Replayed = (Arc<Spa>, Arc<Pool>);

/// Opens `candidate`, under another name if there is one, with its logs replayed in memory. `keys` loads the keys that
/// are available, `replay` replays all logs.
///
/// # Errors
/// When it does not open, or as the two say.
pub fn open<E: From<Error>>(
    candidate: &Candidate,
    name: Option<String>,
    keys: impl FnOnce(&Arc<Pool>) -> Result<(), E>,
    replay: impl FnOnce(&Arc<Spa>) -> Result<(), E>,
) -> Result<Replayed, E> {
    let spa = import(candidate, name)?;
    let view = || spa.view().map_err(|source| Error::Open { name: candidate.name.clone(), source });
    keys(&view()?)?;
    replay(&spa)?;
    let view = view()?;
    Ok((spa, view))
}

/// Imports a pool on devices that keep in memory what is written to them.
fn import(candidate: &Candidate, name: Option<String>) -> Result<Arc<Spa>, Error> {
    let room = Room::new(tunable::ZFS_ARC_MAX.get());
    let over = |device: &vdev::import::FoundDevice| -> (PathBuf, Arc<dyn Device>) {
        (device.path.clone(), Arc::new(Overlay::new(device.device.clone(), room.clone())))
    };
    let mut devices: Vec<_> = candidate.devices.iter().map(over).collect();
    let aside = candidate.spares.iter().chain(&candidate.l2cache);
    devices.extend(aside.map(|device| (device.path.clone(), device.device.clone())));
    let again = vdev::import::scan_devices(devices).into_iter().find(|found| found.guid == candidate.guid);
    let again = again.ok_or_else(|| Error::Gone { name: candidate.name.clone() })?;
    let temporary_name = name.is_some();
    let open = OpenOptions { name, arc_bytes: tunable::ZFS_ARC_MAX.get(), ..OpenOptions::default() };
    // nobody else can see it: other users of the pool are not disturbed
    let is_open = candidate.state == PoolState::Active;
    let options = ImportOptions { open, again: is_open, force: true, temporary_name, ..ImportOptions::default() };
    let silent: Arc<dyn crate::Front> = Arc::new(crate::Silent);
    let hooks =
        Hooks { held_elsewhere: None, readers: None, synced: None, suspend_watch: None, ..writing::hooks(&silent) };
    Spa::import(&again, &options, hooks).map_err(|source| Error::Open { name: candidate.name.clone(), source })
}
