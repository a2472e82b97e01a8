//! Pools that become those of this machine (OpenZFS: `spa_tryimport`, `spa_import`).
//!
//! A pool is opened for reading first in any case: missing devices and damage are known before anything is written.
//! One that is imported read-only is only remembered then. Otherwise its devices are locked, it is opened for writing,
//! and marked as in use by this machine. The name is reserved from [`Import::begin`] until the record is written.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use base::Env;
use control::Failed;
use nvlist::{NvList, Value};
use pool::{ImportOptions, OpenOptions, Pool, Spa};
use vdev::import::{Candidate, PoolState};

use crate::error::opening;
use crate::records::{self, Imported, Names};
use crate::rewind::Policy;
use crate::writing::Starts;
use crate::{Error, Front, Site, devices, hostid, iostats, left, writing};

/// How a pool is imported.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// Another name for it; `None`: its own.
    pub name: Option<String>,
    /// Whether that name is not written to its devices.
    pub temporary_name: bool,
    /// Whether nothing is written.
    pub readonly: bool,
    /// Whether it is imported though another host used it last.
    pub force: bool,
    /// The state that is loaded.
    pub policy: Policy,
    /// Whether to go back to the checkpoint.
    pub checkpoint: bool,
    /// Whether log devices may be missing.
    pub missing_log: bool,
    /// The folder that mount points are below.
    pub altroot: Option<String>,
}

/// Flags of an import (OpenZFS: `ZFS_IMPORT_*`).
const ANY_HOST: u64 = 0x2;
const MISSING_LOG: u64 = 0x4;
const TEMP_NAME: u64 = 0x10;
const CHECKPOINT: u64 = 0x80;

impl How {
    /// The list of the request that imports a pool so ([`control::Ioc::PoolImport`]), with properties that are to be set in it. The name is that of the call.
    #[must_use]
    pub fn request(&self, candidate: &Candidate, mut props: NvList) -> NvList {
        let mut config = candidate.config.clone();
        self.policy.put(&mut config);
        if self.readonly {
            props.insert("readonly", 1u64);
        }
        if let Some(altroot) = &self.altroot {
            props.insert("altroot", altroot.as_str());
        }
        let set = [
            (self.force, ANY_HOST),
            (self.missing_log, MISSING_LOG),
            (self.temporary_name, TEMP_NAME),
            (self.checkpoint, CHECKPOINT),
        ];
        let flags: u64 = set.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
        let mut input = NvList::new();
        input.insert("guid", candidate.guid.0);
        input.insert("config", config);
        input.insert("props", props);
        input.insert("flags", flags);
        input.insert("devices", device_names(candidate));
        input
    }

    /// The list of the request that tells how the pool would be found if it was imported so ([`control::Ioc::PoolTryImport`]).
    #[must_use]
    pub fn trial(&self, candidate: &Candidate) -> NvList {
        let mut input = self.request(candidate, NvList::new());
        ["guid", "props"].into_iter().for_each(|key| drop(input.remove(key)));
        input
    }

    /// Reads it back, from a request of this name.
    ///
    /// # Errors
    /// When it has flags that are not known.
    pub(crate) fn of(name: &str, candidate: &Candidate, input: &NvList) -> Result<How, control::Error> {
        let none = NvList::new();
        let list = |key: &str| input.get_nvlist(key).unwrap_or(&none);
        let flags = flags_of(input)?;
        Ok(How {
            name: Some(name.to_owned()).filter(|name| *name != candidate.name),
            temporary_name: flags & TEMP_NAME != 0,
            readonly: list("props").get_u64("readonly").unwrap_or(0) != 0,
            force: flags & ANY_HOST != 0,
            policy: Policy::of(list("config")),
            checkpoint: flags & CHECKPOINT != 0,
            missing_log: flags & MISSING_LOG != 0,
            altroot: list("props").get_str("altroot").map(str::to_owned),
        })
    }
}

/// The flags of a request, if all of them are known.
fn flags_of(input: &NvList) -> Result<u64, control::Error> {
    let flags = input.get_u64("flags").unwrap_or(0);
    match flags & !(ANY_HOST | MISSING_LOG | TEMP_NAME | CHECKPOINT) {
        0 => Ok(flags),
        _ => Err(control::Error::NotSupported(format!("flags {flags:#x}"))),
    }
}

/// Whether a request takes a pool though log devices are absent.
///
/// # Errors
/// When it has flags that are not known.
pub(crate) fn takes_missing_logs(input: &NvList) -> Result<bool, control::Error> {
    Ok(flags_of(input)? & MISSING_LOG != 0)
}

/// An import under way: its name is reserved.
#[derive(Debug)]
pub(crate) struct Import<'a> {
    site: &'a Site,
    candidate: &'a Candidate,
    how: How,
    record: Imported,
    _reserved: Names,
}

impl<'a> Import<'a> {
    /// Reserves the name of a pool that was found. Stale records of it are removed.
    ///
    /// # Errors
    /// [`Error::NameTaken`]; when the records cannot be read.
    pub(crate) fn begin(site: &'a Site, candidate: &'a Candidate, how: How) -> Result<Import<'a>, Error> {
        let name = how.name.clone().unwrap_or_else(|| candidate.name.clone());
        let reserved = records::reserve(&**site.front(), &name, Some(candidate.guid))?;
        if site.all()?.iter().any(|other| other.name == name || other.guid == candidate.guid) {
            return Err(Error::NameTaken { name });
        }
        // left behind by a process that ended after the last export
        iostats::forget(candidate.guid);
        left::forget(candidate.guid);
        let record = Imported {
            guid: candidate.guid,
            name,
            name_on_disk: candidate.name.clone(),
            devices: devices_of(candidate),
            readonly: true,
            txg: how.policy.txg,
            checkpoint: how.checkpoint,
            missing_log: how.missing_log,
            altroot: how.altroot.clone(),
            ..Imported::default()
        };
        Ok(Import { site, candidate, how, record, _reserved: reserved })
    }

    /// The pool, as it was found.
    pub(crate) fn candidate(&self) -> &'a Candidate {
        self.candidate
    }

    /// Its record, as far as that is known before it is open.
    pub(crate) fn record(&self) -> &Imported {
        &self.record
    }

    /// How it is imported.
    pub(crate) fn how(&self) -> &How {
        &self.how
    }

    /// Opens the pool for reading, as the import would find it. What it passed over is in [`pool::LoadInfo::skipped`].
    ///
    /// # Errors
    /// When it does not open.
    pub(crate) fn look(&self) -> Result<Arc<Pool>, pool::Error> {
        let verify = Some(self.how.policy.verify());
        Pool::open(self.candidate, &OpenOptions { verify, ..devices::options(&self.record) })
    }

    /// Remembers the pool as one that is only read; `seen` is as [`Import::look`] gave it: if that is not the newest state, all readers see it.
    ///
    /// # Errors
    /// [`Error::NameTaken`]; when the record cannot be written.
    pub(crate) fn read_only(self, seen: &Pool) -> Result<(), Error> {
        let back = (!seen.load_info().skipped.is_empty()).then(|| seen.uberblock().txg.0);
        let record = Imported { txg: self.record.txg.or(back), load_guid: seen.load_guid(), ..self.record };
        records::remember_new(&record)?;
        note_import(&record);
        Ok(())
    }

    /// Locks the devices, for [`Import::write`].
    ///
    /// # Errors
    /// As [`Site::lock`].
    pub(crate) fn lock(&self) -> Result<Candidate, vdev::Error> {
        self.site.lock(self.candidate)
    }

    /// Opens the pool for writing, on the devices that [`Import::lock`] gave, and marks it as in use by this machine. `starts` gets it as in [`writing::import`].
    ///
    /// # Errors
    /// When it does not open.
    pub(crate) fn write(&self, locked: Candidate, starts: Starts) -> Result<Arc<Spa>, pool::Error> {
        let import = ImportOptions {
            open: OpenOptions { name: self.other_name(), ..devices::options(&self.record) },
            temporary_name: self.how.temporary_name,
            force: self.how.force,
            rewind: self.how.policy.rewind,
            extreme: self.how.policy.extreme,
            ..ImportOptions::default()
        };
        writing::import(locked, &import, self.site.front(), Some(starts))
    }

    /// Remembers the pool that [`Import::write`] opened; its name is no longer reserved.
    ///
    /// # Errors
    /// When the pool is suspended, it is imported already, or the record cannot be written. The pool stays open.
    pub(crate) fn remember(self, spa: &Arc<Spa>) -> Result<Imported, Failed> {
        let view = spa.view()?;
        let renamed = self.other_name().filter(|_| !self.how.temporary_name);
        // the state that was rewound to is the newest now
        let record = Imported {
            readonly: false,
            txg: None,
            checkpoint: false,
            name_on_disk: renamed.unwrap_or_else(|| self.candidate.name.clone()),
            load_guid: view.load_guid(),
            ..self.record
        };
        let remembered = records::remember_new(&record);
        note_import(&record);
        remembered.map_err(opening)?;
        Ok(record)
    }

    /// The name that the pool gets, if it is another.
    fn other_name(&self) -> Option<String> {
        (self.record.name != self.candidate.name).then(|| self.record.name.clone())
    }
}

/// Returns whether another host used the pool last, and did not export it.
#[must_use]
pub fn is_foreign(candidate: &Candidate) -> bool {
    candidate.state != PoolState::Exported && candidate.hostid.unwrap_or(0) != hostid::id()
}

/// The list of the request for a pool that was found, as it would be shown before anything is known of how it is imported ([`control::Ioc::PoolTryImport`]).
#[must_use]
pub fn trial(candidate: &Candidate) -> NvList {
    let mut input = NvList::new();
    input.insert("config", candidate.config.clone());
    input.insert("devices", device_names(candidate));
    input
}

/// The paths of a candidate's devices, as requests name them.
fn device_names(candidate: &Candidate) -> Value {
    Value::StringArray(devices_of(candidate).iter().map(|path| path.as_os_str().as_bytes().into()).collect())
}

/// All paths that opening the pool again may need.
fn devices_of(candidate: &Candidate) -> Vec<PathBuf> {
    let all = [&candidate.devices, &candidate.stale, &candidate.spares, &candidate.l2cache];
    let mut paths: Vec<PathBuf> = all.into_iter().flatten().map(|d| d.path.clone()).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Posts the event that a pool was imported.
fn note_import(record: &Imported) {
    let (env, of) = (Env::system(), (record.name.as_str(), record.guid));
    pool::events::post(&env, of, "config_sync", &NvList::new());
    pool::events::post(&env, of, "pool_import", &NvList::new());
}

/// Opens a pool on its devices for writing, without remembering it: it is imported for as long as it is open.
///
/// # Errors
/// When it does not open.
pub fn for_now(locked: Candidate, front: &Arc<dyn Front>) -> Result<Arc<Spa>, pool::Error> {
    writing::import(locked, &ImportOptions::default(), front, None)
}
