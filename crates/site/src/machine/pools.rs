//! The pools that a machine has open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Errno, Guid};
use control::{Failed, WeakKept};
use parking_lot::{RwLock, RwLockWriteGuard};
use pool::{Pool, Spa};

use crate::error::opening;
use crate::{Error, Imported, Query, Site, devices, keys};

/// The time that an export waits for the requests to its pool to end.
const MOMENT: Duration = Duration::from_millis(250);

/// The place of a pool: it is filled while the pool is open. Requests have it locked for reading, those that open and close for writing.
pub(super) type Place = Arc<RwLock<Option<Open>>>;

/// A pool that is open.
pub(super) struct Open {
    /// The record of its import, from when it was opened.
    pub(super) record: Imported,
    pub(super) held: Held,
}

/// How it is open.
pub(super) enum Held {
    /// For a change.
    Writing(Arc<Spa>),
    /// For reading, on these devices.
    Reading(Arc<Pool>, HashMap<Guid, String>),
}

/// The pools of a machine, and what its sessions keep of them.
pub(super) struct Pools {
    pub(super) site: Site,
    /// The places of pools by their guids; they stay, as somebody may be waiting for one.
    places: Mutex<HashMap<Guid, Place>>,
    kept: Mutex<Vec<WeakKept>>,
    /// Devices come and go one after the other: their paths are in the record of the pool.
    pub(super) vdevs: Mutex<()>,
}

impl Pools {
    pub(super) fn new(site: Site) -> Pools {
        Pools { site, places: Mutex::default(), kept: Mutex::default(), vdevs: Mutex::default() }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<Guid, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<WeakKept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes notice of what a session keeps.
    pub(super) fn watch(&self, kept: WeakKept) {
        self.kept().push(kept);
    }

    /// Lets go what sessions keep and have not used for a while.
    pub(super) fn drop_idle(&self) {
        self.kept().retain(WeakKept::drop_idle);
    }

    /// Lets go what sessions keep: a pool is closed, or a key is gone.
    pub(super) fn forget_kept(&self) {
        self.kept().retain(WeakKept::forget);
    }

    /// The imported pool of this name.
    pub(super) fn record(&self, pool: &str) -> Result<Imported, Failed> {
        let found = self.site.find(pool).map_err(opening)?;
        found.ok_or_else(|| opening(Error::NoSuchPool { name: pool.to_owned() }))
    }

    /// The place of the pool with this guid.
    pub(super) fn place(&self, guid: Guid) -> Place {
        self.places().entry(guid).or_default().clone()
    }

    /// The place of a pool that is open under this name.
    pub(super) fn opened(&self, pool: &str) -> Option<Place> {
        let is_it = |place: &Place| {
            place.try_read().is_some_and(|open| open.as_ref().is_some_and(|open| open.record.name == pool))
        };
        self.places().values().find(|place| is_it(place)).cloned()
    }

    pub(super) fn open_pools(&self) -> Vec<Imported> {
        let places: Vec<Place> = self.places().values().cloned().collect();
        // one that is being opened is not open yet
        let record = |place: &Place| Some(place.try_read()?.as_ref()?.record.clone());
        let mut open: Vec<Imported> = places.iter().filter_map(record).collect();
        open.sort_by(|a, b| a.name.cmp(&b.name));
        open
    }

    /// Uses a pool, which is opened if it is not open.
    pub(super) fn with<R>(&self, pool: &str, work: impl FnOnce(&Open) -> Result<R, Failed>) -> Result<R, Failed> {
        let place = match self.opened(pool) {
            Some(place) => place,
            None => self.place(self.record(pool)?.guid),
        };
        let open = place.read();
        if let Some(open) = &*open
            && open.record.name == pool
        {
            return work(open);
        }
        drop(open);
        let mut open = place.write();
        if open.as_ref().is_none_or(|open| open.record.name != pool) {
            // it may have been exported, or imported under another name, meanwhile
            let record = self.record(pool)?;
            if let Some(spa) = self.site.changing(&record) {
                // the program has it open besides, and closes it
                return work(&Open { record, held: Held::Writing(spa) });
            }
            *open = Some(self.open_now(record)?);
        }
        let open = RwLockWriteGuard::downgrade(open);
        match &*open {
            Some(open) => work(open),
            None => Err(opening(Error::NoSuchPool { name: pool.to_owned() })),
        }
    }

    fn open_now(&self, record: Imported) -> Result<Open, Failed> {
        if record.readonly {
            let pool = self.site.open(&record).map_err(opening)?;
            let held = Held::Reading(pool.clone(), self.site.devices(&pool));
            return Ok(Open { record, held });
        }
        let spa = self.site.write(&record).map_err(opening)?;
        self.site.show_changes(&record, &spa).map_err(opening)?;
        Ok(Open { record, held: Held::Writing(spa) })
    }

    /// The place of a pool, for a request that closes it: the others have ended.
    pub(super) fn alone<R>(
        &self,
        record: &Imported,
        work: impl FnOnce(&mut Option<Open>) -> Result<R, Failed>,
    ) -> Result<R, Failed> {
        let place = self.place(record.guid);
        let busy = || control::Error::Opening(Errno::EBUSY, "pool is busy".into());
        let mut open = place.try_write_for(MOMENT).ok_or_else(busy)?;
        work(&mut open)
    }

    pub(super) fn close(&self, pool: &str) -> Result<(), Failed> {
        let Some(place) = self.opened(pool) else { return Ok(()) };
        let mut open = place.write();
        self.close_now(&mut open)
    }

    pub(super) fn close_all(&self) -> Result<(), Failed> {
        let places: Vec<Place> = self.places().values().cloned().collect();
        let mut done = Ok(());
        for place in places {
            done = done.and(self.close_now(&mut place.write()));
        }
        done
    }

    fn close_now(&self, open: &mut Option<Open>) -> Result<(), Failed> {
        let Some(Open { record, held }) = open.take() else { return Ok(()) };
        self.forget_kept();
        let Held::Writing(spa) = held else {
            self.site.look_again_at(record.guid);
            return Ok(());
        };
        if spa.suspended().is_some() {
            spa.abandon();
        }
        let settled = spa.view().map_err(Failed::from).and_then(|view| keys::settle(&view).map_err(opening));
        self.site.hide_changes(&spa);
        spa.close()?;
        settled
    }

    pub(super) fn take(&self, pool: &str) -> Option<Arc<Spa>> {
        let place = self.opened(pool)?;
        let mut open = place.write();
        match open.take()? {
            Open { held: Held::Writing(spa), .. } => Some(spa),
            reading => {
                *open = Some(reading);
                None
            }
        }
    }

    /// Takes requests about a pool that is open for a change, in one of its states.
    pub(super) fn query(&self, open: &Open, view: &Arc<Pool>, finds_devices: bool) -> Query {
        let found = || {
            let record = self.site.all().ok()?.into_iter().find(|record| record.guid == open.record.guid)?;
            devices::candidate(&record).ok().map(|found| devices::paths(&found))
        };
        let devices = match &open.held {
            Held::Reading(_, devices) => devices.clone(),
            Held::Writing(_) if finds_devices => found().unwrap_or_default(),
            Held::Writing(_) => HashMap::new(),
        };
        Query::of_imported(view.clone(), open.record.clone(), devices)
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        if let Err(failed) = self.close_all() {
            tracing::warn!(target: "zuse::site", %failed, "a pool could not be closed");
        }
    }
}
