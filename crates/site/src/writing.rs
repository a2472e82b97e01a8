//! Imported pools, opened for writing.
//!
//! A process that changes a pool locks its devices, opens it for writing, does its work, and closes the pool, which
//! stays imported on this machine. Two such processes wait for each other, for as long as the tunable `busy_wait` says;
//! those that only read need no lock, and see the pool as its last synced txg left it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use base::Guid;
use control::{Caller, Control, Failed};
use nvlist::NvList;
use pool::{Hooks, ImportOptions, OpenOptions, Spa};
use vdev::import::Candidate;
use vdev::{Access, Device, device};
use zpl::UsedByBonus;

use crate::long_holds::OtherCommands;
use crate::patience::patiently_for_devices;
use crate::readers::OtherReaders;
use crate::{Error, Front, Imported, Site, devices, iostats, left, suspended};

/// A device with the path that it was opened by.
type Opened = (PathBuf, Arc<dyn Device>);

/// Who gets a pool that is being opened ([`Hooks::starts`]).
pub(crate) type Starts = Arc<pool::Starts>;

/// The callbacks through which this crate takes part in pools that are written.
#[must_use]
pub fn hooks(front: &Arc<dyn Front>) -> Hooks {
    let held_elsewhere = Some(Arc::new(OtherCommands::new(front.clone())) as _);
    let readers = Some(Arc::new(OtherReaders) as _);
    let note = |pool, txg| {
        left::note(pool, txg);
        suspended::synced(pool);
    };
    let (synced, suspend_watch) = (Some(Arc::new(note) as _), Some(Arc::new(suspended::Watch(front.clone())) as _));
    let used_by = Some(Arc::new(UsedByBonus) as _);
    Hooks { used_by, held_elsewhere, readers, synced, suspend_watch, ..Hooks::default() }
}

/// Opens a remembered pool for writing. Devices that missed writes are left as they are. `starts` gets it as in [`import`].
pub(crate) fn open(record: &Imported, front: &Arc<dyn Front>, starts: Option<Starts>) -> Result<Arc<Spa>, Error> {
    let name = || record.name.clone();
    if record.readonly {
        return Err(Error::ReadOnly { name: name() });
    }
    let locked = lock(&devices::candidate(record)?, front);
    let candidate = locked.map_err(|source| Error::Devices { name: name(), source })?;
    devices::remember_devices(record, &candidate);
    // a permanent name is on the devices since the import; a temporary one must not be written there
    let temporary_name = record.name != record.name_on_disk;
    let open = OpenOptions { name: temporary_name.then(name), ..devices::options(record) };
    let options = ImportOptions { open, temporary_name, again: true, ..ImportOptions::default() };
    let spa = import(candidate, &options, front, starts).map_err(|source| Error::Open { name: name(), source })?;
    record_lost(&spa);
    Ok(spa)
}

/// Opens a pool for writing. It may be suspended while that is under way: `starts` gets it before, to clear it or to give it up.
pub(crate) fn import(
    locked: Candidate,
    options: &ImportOptions,
    front: &Arc<dyn Front>,
    starts: Option<Starts>,
) -> Result<Arc<Spa>, pool::Error> {
    let (began, starts) = noted(starts);
    let opened = Spa::import_own(locked, options, hooks_until_open(front, starts));
    opened.inspect_err(|_| forget(&began))
}

/// `starts`, and where it is noted which pool it got. Before that a pool of this guid that is suspended in this process is that of another site.
fn noted(starts: Option<Starts>) -> (Arc<OnceLock<Guid>>, Starts) {
    let began = Arc::new(OnceLock::new());
    let of_pool = began.clone();
    let noted: Starts = Arc::new(move |spa| {
        let _known = of_pool.set(spa.guid());
        starts.iter().for_each(|starts| starts(spa));
    });
    (began, noted)
}

/// A pool that began and could not be opened is suspended no more.
fn forget(began: &OnceLock<Guid>) {
    began.get().into_iter().for_each(|guid| suspended::forget(*guid));
}

/// The hooks of a pool that is being opened, which `starts` gets.
fn hooks_until_open(front: &Arc<dyn Front>, starts: Starts) -> Hooks {
    let starts = move |spa: &Arc<Spa>| {
        iostats::watch_txgs(spa);
        starts(spa);
    };
    Hooks { starts: Some(Arc::new(starts)), ..hooks(front) }
}

/// Makes a new pool, as [`Control::create_pool`]. `starts` gets it as in [`import`].
pub(crate) fn create(
    name: &str,
    input: &NvList,
    (site, caller): (&Site, Caller),
    starts: Option<Starts>,
) -> Result<Control, Failed> {
    let (began, starts) = noted(starts);
    let hooks = hooks_until_open(site.front(), starts);
    let made = Control::create_pool(name, input, (hooks, caller), Arc::new(site.clone()));
    made.inspect_err(|_| forget(&began))
}

/// Enters the blocks that earlier commands found lost in the pool's error log.
fn record_lost(spa: &Arc<Spa>) {
    let lost = iostats::record(spa.guid()).lost;
    spa.note_lost(&lost.iter().copied().collect::<Vec<_>>());
    if !lost.is_empty() && spa.sync().is_ok() {
        iostats::forget_lost(spa.guid(), &lost);
    }
}

/// The pool again with the devices of its vdevs open for writing, and locked ([`Candidate::lock`]); waits for another writer to be done.
///
/// # Errors
/// When a device cannot be opened, or is still in use after the time of `busy_wait`.
pub fn lock(found: &Candidate, front: &Arc<dyn Front>) -> Result<Candidate, vdev::Error> {
    let again = patiently_for_devices(&**front, || found.lock())?;
    iostats::watch(&again, front);
    Ok(again)
}

/// Opens devices for writing, all of them or none; waits for another writer to be done.
///
/// # Errors
/// As [`lock`].
pub fn lock_paths(paths: &[PathBuf], front: &dyn Front) -> Result<Vec<Opened>, vdev::Error> {
    let mut sorted = paths.to_vec();
    sorted.sort();
    let mut seen = HashSet::new();
    sorted.retain(|path| seen.insert(path.clone()));
    patiently_for_devices(front, || try_lock(&sorted))
}

/// Returns whether another process has the pool open for a change.
#[must_use]
pub fn is_used(record: &Imported) -> bool {
    let devices = record.devices.iter().filter(|path| path.exists());
    devices.into_iter().any(|path| device::is_busy(path))
}

fn try_lock(paths: &[PathBuf]) -> Result<Vec<Opened>, vdev::Error> {
    let open =
        |path: &PathBuf| -> Result<Opened, vdev::Error> { Ok((path.clone(), device::open(path, Access::Write)?)) };
    paths.iter().map(open).collect()
}
