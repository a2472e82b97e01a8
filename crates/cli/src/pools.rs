//! Imported pools, opened for one command.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Guid, Txg};
use pool::{OpenOptions, Pool, Spa};
use vdev::import::Candidate;
use zuse::zio::ReadGuard;

use crate::error::{Failure, failed};
use crate::out::Out;
use crate::readers::Reading;
use crate::state::{self, Imported};
use crate::{iostats, keys, left};

/// Limit on reopening a pool that other commands keep changing.
const OPEN_TRIES: u32 = 5;

/// A pool that the command has opened.
struct Open {
    record: Imported,
    pool: Arc<Pool>,
    devices: HashMap<Guid, String>,
}

thread_local! {
    /// Pools that the command has opened already: opening reads labels, the MOS and the state of every device.
    static OPEN: RefCell<Vec<Open>> = const { RefCell::new(Vec::new()) };
    /// Pools that this command changes: lookups in them see the changes made so far.
    static WRITING: RefCell<Vec<Arc<Spa>>> = const { RefCell::new(Vec::new()) };
}

/// Makes later lookups see this pool as its last synced txg leaves it.
pub(crate) fn writing(spa: &Arc<Spa>) {
    WRITING.with_borrow_mut(|all| all.push(spa.clone()));
}

/// Ends [`writing`]: the command no longer changes this pool.
pub(crate) fn written(spa: &Arc<Spa>) {
    WRITING.with_borrow_mut(|all| all.retain(|one| one.guid() != spa.guid()));
}

/// The options with which a remembered pool is opened.
pub(crate) fn options(pool: &Imported) -> OpenOptions {
    OpenOptions {
        name: Some(pool.name.clone()),
        txg: pool.txg.map(Txg),
        checkpoint: pool.checkpoint,
        missing_log_ok: pool.missing_log,
        altroot: pool.altroot.clone(),
        least: left::of(pool.guid),
        arc_bytes: base::tunable::ZFS_ARC_MAX.get(),
        ..OpenOptions::default()
    }
}

/// Why a remembered pool does not open, and what can be done.
pub(crate) fn why_not(imported: &Imported, e: &pool::Error) -> String {
    match e {
        pool::Error::Behind { .. } => format!("{e} ('zpool export -f {}' forgets that)", imported.name),
        e => crate::writable::why(e),
    }
}

/// Finds a remembered pool on its devices.
pub(crate) fn candidate(imported: &Imported) -> Result<Candidate, Failure> {
    let gone = |why: String| failed(format!("cannot open '{}': {why}", imported.name));
    let paths: Vec<PathBuf> = imported.devices.iter().filter(|path| path.exists()).cloned().collect();
    let found = vdev::import::scan(&paths).map_err(|e| gone(e.to_string()))?;
    let candidate = found.into_iter().find(|c| c.guid.0 == imported.guid);
    let gone = || {
        gone(match vdev::import::denied(&imported.devices).first() {
            Some(path) => format!("{}: permission denied", path.display()),
            None => "its devices are not there any more".to_owned(),
        })
    };
    let candidate = candidate.ok_or_else(gone)?;
    if candidate.missing.is_empty() {
        return Ok(candidate);
    }
    // a device that was absent may be back, under its old path or another
    let mut more = elsewhere(imported, &candidate);
    more.retain(|path| !imported.devices.contains(path));
    Ok(if more.is_empty() { candidate } else { candidate.and(&more) })
}

/// Paths at which devices of a pool may be that were absent when it was imported, or came back under another name: the
/// paths recorded in the pool, and the folders of known devices. Folders of device nodes are not scanned for each
/// command. In a folder that others can write, a file that somebody else could have put there or changed is left out:
/// it would be given the pool's data.
fn elsewhere(imported: &Imported, candidate: &Candidate) -> Vec<PathBuf> {
    let config = candidate.vdev_config().ok();
    let told =
        config.iter().flat_map(|config| config.leaves()).filter_map(|leaf| leaf.path.as_ref().map(PathBuf::from));
    let mut paths: Vec<PathBuf> = told.filter(|path| path.exists()).collect();
    let mut folders: Vec<&Path> = imported.devices.iter().filter_map(|path| path.parent()).collect();
    folders.sort();
    folders.dedup();
    let owners: Vec<u32> =
        candidate.devices.iter().filter_map(|found| Some(found.path.metadata().ok()?.uid())).collect();
    for folder in folders.into_iter().filter(|folder| !folder.starts_with("/dev")) {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        paths.extend(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_like(path, &owners)));
    }
    paths.sort();
    paths.dedup();
    paths
}

/// Returns whether a path leads to a regular file that belongs to one of these users and that nobody else can write.
fn is_like(path: &Path, owners: &[u32]) -> bool {
    let same = |meta: std::fs::Metadata| meta.is_file() && meta.mode() & 0o022 == 0 && owners.contains(&meta.uid());
    path.symlink_metadata().is_ok_and(same)
}

/// Records the paths of devices that were not known.
pub(crate) fn remember_devices(imported: &Imported, candidate: &Candidate) {
    let new: Vec<PathBuf> = candidate.devices.iter().map(|found| found.path.clone()).collect();
    let new: Vec<PathBuf> = new.into_iter().filter(|path| !imported.devices.contains(path)).collect();
    if !new.is_empty() {
        let devices = imported.devices.iter().cloned().chain(new).collect();
        // the next command scans for them as this one did
        let _kept = state::remember(&Imported { devices, ..imported.clone() });
    }
}

/// Opens a remembered pool, and loads the keys that are kept.
pub(crate) fn open(imported: &Imported) -> Result<Arc<Pool>, Failure> {
    let writing = WRITING.with_borrow(|all| all.iter().find(|spa| spa.guid().0 == imported.guid).cloned());
    if let Some(spa) = writing {
        return spa.view().map_err(|e| failed(format!("cannot open '{}': {e}", imported.name)));
    }
    let seen = OPEN.with_borrow(|open| open.iter().find(|o| o.record.guid == imported.guid).map(|o| o.pool.clone()));
    if let Some(pool) = seen {
        return Ok(pool);
    }
    let (candidate, pool, reading) = open_held(imported)?;
    reading.into_iter().for_each(|reading| reading.of(&pool));
    keys::load_kept(&pool, imported);
    let devices = paths(&candidate);
    let opened = Open { record: imported.clone(), pool: pool.clone(), devices };
    OPEN.with_borrow_mut(|open| open.push(opened));
    Ok(pool)
}

/// Opens a pool for reading; retries if other commands reused the space of what was read meanwhile.
fn open_held(imported: &Imported) -> Result<(Candidate, Arc<Pool>, Option<Reading>), Failure> {
    let mut tries = 0;
    loop {
        let reading = Reading::begin();
        let candidate = candidate(imported)?;
        iostats::watch(&candidate);
        let opened = Pool::open(&candidate, &options(imported));
        tries += 1;
        if tries < OPEN_TRIES && reading.as_ref().is_some_and(ReadGuard::is_overtaken) {
            continue;
        }
        let pool = opened.map_err(|e| failed(format!("cannot open '{}': {}", imported.name, why_not(imported, &e))))?;
        return Ok((candidate, pool, reading));
    }
}

/// Makes pools that are only read be opened anew from now on: they may have changed since.
pub(crate) fn look_again() {
    OPEN.with_borrow_mut(Vec::clear);
}

/// The path of each device of a candidate, spares and cache devices included.
pub(crate) fn paths(candidate: &Candidate) -> HashMap<Guid, String> {
    let all = [&candidate.devices, &candidate.spares, &candidate.l2cache];
    all.into_iter().flatten().map(|d| (d.guid, d.path.to_string_lossy().into_owned())).collect()
}

/// The paths of the devices of an open pool.
pub(crate) fn devices(pool: &Pool) -> HashMap<Guid, String> {
    let find = |open: &Vec<Open>| open.iter().find(|o| o.record.guid == pool.guid().0).map(|o| o.devices.clone());
    OPEN.with_borrow(find).unwrap_or_default()
}

/// The record of an open pool at the time when it was opened.
pub(crate) fn opened_as<R>(pool: &Pool, look: impl FnOnce(&Imported) -> R) -> Option<R> {
    OPEN.with_borrow(|open| open.iter().find(|o| o.record.guid == pool.guid().0).map(|o| look(&o.record)))
}

/// The current record of an open pool.
pub(crate) fn record(pool: &Pool) -> Option<Imported> {
    state::all().ok()?.into_iter().find(|record| record.guid == pool.guid().0)
}

/// Returns whether another command has changed or exported an open pool since it was opened.
pub(crate) fn is_changed(pool: &Pool) -> bool {
    let Some(record) = record(pool) else { return true };
    let now = candidate(&record).ok().and_then(|found| Pool::open(&found, &options(&record)).ok());
    now.is_some_and(|now| now.uberblock().txg > pool.uberblock().txg)
}

/// Opens all imported pools. One that does not open is reported, and the others are returned.
pub(crate) fn open_all() -> Result<(Vec<Arc<Pool>>, bool), Failure> {
    let mut whole = true;
    let mut pools = Vec::new();
    for imported in state::all()? {
        match open(&imported) {
            Ok(pool) => pools.push(pool),
            Err(Failure::Failed(why)) => {
                eprintln!("{why}");
                whole = false;
            }
            Err(other) => return Err(other),
        }
    }
    Ok((pools, whole))
}

/// The pool that a dataset is in, if it is imported.
pub(crate) fn of_dataset(dataset: &str) -> Result<Option<Arc<Pool>>, Failure> {
    let name = dataset.split(['/', '@', '#']).next().unwrap_or("");
    state::find(name)?.map(|imported| open(&imported)).transpose()
}

/// The imported pools of these names, all if there are none, sorted. A name without a pool is reported, and makes the
/// status 1.
pub(crate) fn records(names: &[String]) -> Result<(Vec<Imported>, u8), Failure> {
    if names.is_empty() {
        return Ok((state::all()?, 0));
    }
    let mut status = 0;
    let mut records: Vec<Imported> = Vec::new();
    for name in names {
        match state::find(name)? {
            Some(record) if records.iter().any(|r| r.guid == record.guid) => {}
            Some(record) => records.push(record),
            None => {
                eprintln!("cannot open '{name}': {}", missing(name));
                status = 1;
            }
        }
    }
    records.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((records, status))
}

/// The imported pool of this name.
pub(crate) fn find(name: &str) -> Result<Imported, Failure> {
    state::find(name)?.ok_or_else(|| failed(format!("cannot open '{name}': {}", missing(name))))
}

/// Runs `work` on the pools of these names, on all if there are none, and reports each failure. Returns the exit
/// status.
pub(crate) fn for_each_record(
    names: &[String],
    mut work: impl FnMut(&Imported) -> Result<(), Failure>,
) -> Result<(u8, bool), Failure> {
    let (records, mut status) = records(names)?;
    let mut any = false;
    for record in records {
        match work(&record) {
            Ok(()) => any = true,
            Err(Failure::Failed(why)) => {
                if !why.is_empty() {
                    eprintln!("{why}");
                }
                status = 1;
            }
            Err(other) => return Err(other),
        }
    }
    Ok((status, any))
}

/// The same with each pool opened. Returns the exit status, and whether there was any pool.
pub(crate) fn for_each(
    names: &[String],
    mut work: impl FnMut(&Arc<Pool>) -> Result<(), Failure>,
) -> Result<(u8, bool), Failure> {
    for_each_record(names, |record| open(record).and_then(|pool| work(&pool)))
}

/// Why there is no pool of this name.
fn missing(name: &str) -> String {
    crate::names::check_pool(name).err().unwrap_or_else(|| "no such pool".to_owned())
}

/// Buffered standard output, for text.
pub(crate) fn stdout() -> io::BufWriter<Out> {
    io::BufWriter::with_capacity(64 << 10, Out::new())
}
