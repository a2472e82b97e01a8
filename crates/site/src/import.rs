//! Pools that become those of this machine (OpenZFS: `spa_tryimport`, `spa_import`).
//!
//! A pool is opened for reading first in any case: missing devices and damage are known before anything is written.
//! One that is imported read-only is only remembered then. Otherwise its devices are locked, it is opened for writing,
//! and marked as in use by this machine. The name is reserved from [`Import::begin`] until the record is written.

use std::path::PathBuf;
use std::sync::Arc;

use base::{Env, Guid};
use nvlist::NvList;
use pool::{ImportOptions, LoadPolicy, OpenOptions, Pool, Spa};
use vdev::import::{Candidate, PoolState};

use crate::records::{self, Imported, Names};
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
    /// Whether an older state is taken if the newest cannot be used.
    pub rewind: bool,
    /// Whether that may be any state.
    pub extreme: bool,
    /// The txg to go back to.
    pub txg: Option<u64>,
    /// Whether to go back to the checkpoint.
    pub checkpoint: bool,
    /// Whether log devices may be missing.
    pub missing_log: bool,
    /// The folder that mount points are below.
    pub altroot: Option<String>,
}

/// An import under way: its name is reserved.
#[derive(Debug)]
pub struct Import<'a> {
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
    pub fn begin(site: &'a Site, candidate: &'a Candidate, how: How) -> Result<Import<'a>, Error> {
        let name = how.name.clone().unwrap_or_else(|| candidate.name.clone());
        let reserved = records::lock_names(&**site.front())?;
        if site.all()?.iter().any(|other| other.name == name || other.guid == candidate.guid.0) {
            return Err(Error::NameTaken { name });
        }
        // left behind by a process that ended after the last export
        iostats::forget(candidate.guid);
        left::forget(candidate.guid.0);
        let record = Imported {
            guid: candidate.guid.0,
            name,
            name_on_disk: candidate.name.clone(),
            devices: devices_of(candidate),
            readonly: true,
            txg: how.txg,
            checkpoint: how.checkpoint,
            missing_log: how.missing_log,
            altroot: how.altroot.clone(),
            ..Imported::default()
        };
        Ok(Import { site, candidate, how, record, _reserved: reserved })
    }

    /// The name that the pool gets.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Opens the pool for reading, as the import would find it. What it passed over is in [`pool::LoadInfo::skipped`].
    ///
    /// # Errors
    /// When it does not open.
    pub fn look(&self) -> Result<Arc<Pool>, pool::Error> {
        let rewind = self.how.rewind || self.how.txg.is_some();
        let verify = Some(LoadPolicy { rewind, extreme: self.how.extreme, ..LoadPolicy::default() });
        Pool::open(self.candidate, &OpenOptions { verify, ..devices::options(&self.record) })
    }

    /// Remembers the pool as one that is only read; `seen` is as [`Import::look`] gave it: if that is not the newest state, all readers see it.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn read_only(self, seen: &Pool) -> Result<Imported, Error> {
        let back = (!seen.load_info().skipped.is_empty()).then(|| seen.uberblock().txg.0);
        let record = Imported { txg: self.record.txg.or(back), load_guid: seen.load_guid(), ..self.record };
        records::remember(&record)?;
        note_import(&record);
        Ok(record)
    }

    /// Locks the devices, for [`Import::write`].
    ///
    /// # Errors
    /// As [`Site::lock`].
    pub fn lock(&self) -> Result<Candidate, vdev::Error> {
        self.site.lock(self.candidate)
    }

    /// Opens the pool for writing, on the devices that [`Import::lock`] gave, and marks it as in use by this machine.
    ///
    /// # Errors
    /// When it does not open.
    pub fn write(&self, locked: &Candidate) -> Result<Arc<Spa>, pool::Error> {
        let import = ImportOptions {
            open: OpenOptions { name: self.renamed(), ..devices::options(&self.record) },
            force: self.how.force,
            rewind: self.how.rewind,
            extreme: self.how.extreme,
            ..ImportOptions::default()
        };
        let spa = Spa::import(locked, &import, writing::hooks(self.site.front()))?;
        iostats::watch_txgs(&spa);
        Ok(spa)
    }

    /// Remembers the pool that [`Import::write`] opened; its name is no longer reserved. The pool stays open also if the record cannot be
    /// written, which the second result tells.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn remember(self, spa: &Arc<Spa>) -> Result<(Imported, Result<(), Error>), pool::Error> {
        let view = spa.view()?;
        let renamed = self.renamed();
        // the state that was rewound to is the newest now
        let record = Imported {
            readonly: false,
            txg: None,
            checkpoint: false,
            name_on_disk: renamed.unwrap_or_else(|| self.candidate.name.clone()),
            load_guid: view.load_guid(),
            ..self.record
        };
        let remembered = records::remember(&record);
        note_import(&record);
        Ok((record, remembered))
    }

    /// The name that is written to the devices, if it is another.
    fn renamed(&self) -> Option<String> {
        let is_new = self.record.name != self.candidate.name && !self.how.temporary_name;
        is_new.then(|| self.record.name.clone())
    }
}

/// Returns whether another host used the pool last, and did not export it.
#[must_use]
pub fn is_foreign(candidate: &Candidate) -> bool {
    candidate.state != PoolState::Exported && candidate.hostid.unwrap_or(0) != hostid::id()
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
    let (env, of) = (Env::system(), (record.name.as_str(), Guid(record.guid)));
    pool::events::post(&env, of, "config_sync", &NvList::new());
    pool::events::post(&env, of, "pool_import", &NvList::new());
}

/// Opens a pool on its devices for writing, without remembering it: it is imported for as long as it is open.
///
/// # Errors
/// When it does not open.
pub fn for_now(locked: &Candidate, front: &Arc<dyn Front>) -> Result<Arc<Spa>, pool::Error> {
    let spa = Spa::import(locked, &ImportOptions::default(), writing::hooks(front))?;
    iostats::watch_txgs(&spa);
    Ok(spa)
}
