//! Pools found on their devices: those that are imported, where they were or where they are now, and others by name.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::{Guid, Txg};
use pool::OpenOptions;
use vdev::import::Candidate;

use crate::{Error, Imported, left, records};

/// The options with which a remembered pool is opened.
#[must_use]
pub fn options(record: &Imported) -> OpenOptions {
    OpenOptions {
        name: Some(record.name.clone()),
        txg: record.txg.map(Txg),
        checkpoint: record.checkpoint,
        missing_log_ok: record.missing_log,
        altroot: record.altroot.clone(),
        least: left::of(record.guid),
        arc_bytes: base::tunable::ZFS_ARC_MAX.get(),
        ..OpenOptions::default()
    }
}

/// Finds a remembered pool on its devices.
///
/// # Errors
/// When it is not there.
pub fn candidate(record: &Imported) -> Result<Candidate, Error> {
    let paths: Vec<PathBuf> = record.devices.iter().filter(|path| path.exists()).cloned().collect();
    let found = vdev::import::scan(&paths).map_err(|source| Error::Devices { name: record.name.clone(), source })?;
    let candidate = found.into_iter().find(|c| c.guid == record.guid);
    let gone = || match vdev::import::denied(&record.devices).into_iter().next() {
        Some(path) => Error::Denied { name: record.name.clone(), path },
        None => Error::Gone { name: record.name.clone() },
    };
    let candidate = candidate.ok_or_else(gone)?;
    if candidate.missing.is_empty() {
        return Ok(candidate);
    }
    // a device that was absent may be back, under its old path or another
    let mut more = elsewhere(record, &candidate);
    more.retain(|path| !record.devices.contains(path));
    Ok(if more.is_empty() { candidate } else { candidate.and(&more) })
}

/// Paths at which devices of a pool may be that were absent when it was imported, or came back under another name: the
/// paths recorded in the pool, and the folders of known devices. Folders of device nodes are not scanned for each
/// command. In a folder that others can write, a file that somebody else could have put there or changed is left out:
/// it would be given the pool's data.
fn elsewhere(record: &Imported, candidate: &Candidate) -> Vec<PathBuf> {
    let config = candidate.vdev_config().ok();
    let told =
        config.iter().flat_map(|config| config.leaves()).filter_map(|leaf| leaf.path.as_ref().map(PathBuf::from));
    let mut paths: Vec<PathBuf> = told.filter(|path| path.exists()).collect();
    let mut folders: Vec<&Path> = record.devices.iter().filter_map(|path| path.parent()).collect();
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
pub(crate) fn remember_devices(record: &Imported, candidate: &Candidate) {
    let new: Vec<PathBuf> = candidate.devices.iter().map(|found| found.path.clone()).collect();
    let new: Vec<PathBuf> = new.into_iter().filter(|path| !record.devices.contains(path)).collect();
    if !new.is_empty() {
        // the next command scans for them as this one did
        let _kept = records::update(record.guid, |record| record.add_devices(&new));
    }
}

/// The path of each device of a candidate, spares and cache devices included.
#[must_use]
pub fn paths(candidate: &Candidate) -> HashMap<Guid, String> {
    let all = [&candidate.devices, &candidate.spares, &candidate.l2cache];
    all.into_iter().flatten().map(|d| (d.guid, d.path.to_string_lossy().into_owned())).collect()
}

/// The pool on these devices (or files, or folders of them) by name or guid.
///
/// # Errors
/// When there is none, or several have the name.
pub fn named(devices: &[PathBuf], name: &str) -> Result<Candidate, Error> {
    let found = vdev::import::scan(devices).map_err(|source| Error::Devices { name: name.to_owned(), source })?;
    let mut fitting: Vec<_> = found.into_iter().filter(|c| c.name == name || c.guid.to_string() == name).collect();
    if fitting.len() > 1 {
        let guids = fitting.iter().map(|c| c.guid.to_string()).collect();
        return Err(Error::SeveralPools { name: name.to_owned(), guids });
    }
    fitting.pop().ok_or_else(|| match vdev::import::denied(devices).into_iter().next() {
        Some(path) => Error::Denied { name: name.to_owned(), path },
        None => Error::NoSuchPool { name: name.to_owned() },
    })
}
