//! A program's handle on the imported pools: each is opened once for reading, and once for writing. Where a process runs several programs at once, each
//! has its own, and they are to each other what processes are; or, with [`Site::of_machine`], all of them use the pools that one machine has open.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use base::{Guid, Txg};
use control::{Caller, Control, Devices, Failed, Ioc};
use nvlist::NvList;
use pool::{OpenOptions, Pool, Readers, Spa, SuspendedPool};
use vdev::import::Candidate;
use zio::ReadGuard;
use zpl::live::{ReplayProgress, replay_all};

use crate::catch_up::{CaughtUp, catch_up};
use crate::error::opening;
use crate::machine::{Lent, Pools};
use crate::query::DevicePaths;
use crate::readers::{OtherReaders, Reading};
use crate::with_log::{self, Replayed};
use crate::writing::Starts;
use crate::{Error, Imported, Machine, devices, iostats, keys, records, writing};

/// Limit on reopening a pool that other processes keep changing.
const OPEN_TRIES: u32 = 5;

/// The program that uses a site, as far as it is told something while pools are found and opened.
pub trait Front: Send + Sync {
    /// Takes a warning about something that does not keep a pool from being used.
    fn warn(&self, _warning: &str) {}

    /// Takes the device that a writer waits for, after a second, and what is known of the process that has it.
    fn waiting(&self, _device: &str, _holder: &str) {}

    /// Takes a pool that is suspended, because its devices are gone.
    fn suspended(&self, _pool: &SuspendedPool) {}

    /// Takes a line about an I/O that does not end.
    fn overdue(&self, _line: &str) {}

    /// Ends the process, because the administrator wants that rather than to wait for a device.
    fn panic(&self, _message: &str) {
        std::process::abort();
    }

    /// Loads keys that only the program knows of into a pool that was opened.
    fn opened(&self, _pool: &Arc<Pool>) {}
}

/// A program that is told nothing.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Front for Silent {}

/// The imported pools, as one program uses them. Cheap to clone.
#[derive(Clone)]
pub struct Site {
    front: Arc<dyn Front>,
    /// Pools that were opened for reading: opening reads labels, the MOS and the state of every device.
    reading: Arc<Mutex<Vec<Reader>>>,
    /// Pools that this process writes: lookups in them see the changes made so far.
    writing: Arc<Mutex<Vec<Arc<Spa>>>>,
    /// The machine whose open pools it uses.
    machine: Option<Arc<Pools>>,
    /// The pools that it has from there on loan.
    lent: Arc<Mutex<Vec<Arc<Lent>>>>,
}

/// A pool that was opened for reading.
struct Reader {
    record: Imported,
    pool: Arc<Pool>,
    devices: DevicePaths,
}

impl Devices for Site {
    fn open(&self, paths: &[PathBuf]) -> Result<control::Opened, vdev::Error> {
        self.lock_new(paths)
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").finish_non_exhaustive()
    }
}

impl Site {
    /// The site of a program.
    #[must_use]
    pub fn new(front: Arc<dyn Front>) -> Site {
        Site { front, reading: Arc::default(), writing: Arc::default(), machine: None, lent: Arc::default() }
    }

    /// The site of a program that runs where a machine has pools open, and uses these: it sees them as they are now, and closing them leaves them open. What a pool that is imported
    /// or created there tells of later is told to the front of the machine.
    #[must_use]
    pub fn of_machine(front: Arc<dyn Front>, machine: &Machine) -> Site {
        Site { machine: Some(machine.0.clone()), ..Site::new(front) }
    }

    /// Takes requests to the pools of the site.
    #[must_use]
    pub fn machine(&self) -> Machine {
        self.machine.clone().map_or_else(|| Machine::new(self.clone()), Machine)
    }

    /// Whether the pools of a machine are used, which stay open.
    #[must_use]
    pub fn is_of_machine(&self) -> bool {
        self.machine.is_some()
    }

    /// The program that is told of warnings.
    #[must_use]
    pub fn front(&self) -> &Arc<dyn Front> {
        &self.front
    }

    fn reading(&self) -> MutexGuard<'_, Vec<Reader>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> MutexGuard<'_, Vec<Arc<Spa>>> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lent(&self) -> MutexGuard<'_, Vec<Arc<Lent>>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pools of a machine that are used here.
impl Site {
    /// The pool that this one has on loan, with the machine.
    fn on_loan(&self, guid: Guid) -> Option<(Arc<Lent>, &Arc<Pools>)> {
        let lent = self.lent().iter().find(|lent| lent.record().guid == guid).cloned()?;
        Some((lent, self.machine.as_ref()?))
    }

    /// Borrows a pool from the machine if that has it open.
    fn borrow_if_open(&self, record: &Imported) -> Option<Arc<Lent>> {
        let machine = self.machine.as_ref()?;
        if let Some((lent, _)) = self.on_loan(record.guid) {
            return Some(lent);
        }
        let lent = Arc::new(machine.lend_if_open(record)?);
        self.lent().push(lent.clone());
        Some(lent)
    }

    /// Borrows a pool from the machine, which opens it if it is not open.
    fn borrow(&self, machine: &Pools, record: &Imported) -> Result<Arc<Lent>, Error> {
        if let Some((lent, _)) = self.on_loan(record.guid) {
            return Ok(lent);
        }
        let lent = machine.lend(record).map_err(|failed| Error::of_machine(&record.name, failed))?;
        let lent = Arc::new(lent);
        self.lent().push(lent.clone());
        Ok(lent)
    }

    /// Gives a pool back to the machine: it can be closed.
    fn give_back(&self, guid: Guid) {
        self.lent().retain(|lent| lent.record().guid != guid);
    }

    /// Lets go of pools that are only read, until they are opened again: they may be exported meanwhile.
    pub fn rest(&self) {
        self.reading().clear();
        let writing: Vec<Guid> = self.writing().iter().map(|spa| spa.guid()).collect();
        self.lent().retain(|lent| writing.contains(&lent.record().guid));
    }

    /// Has a pool exported or destroyed by the machine, which forgets it; `None` if there is no machine.
    pub fn leave_pool(
        &self,
        record: &Imported,
        ioc: Ioc,
        input: &NvList,
        caller: Caller,
    ) -> Option<Result<(), Failed>> {
        self.machine.as_ref()?;
        self.look_again_at(record.guid);
        self.give_back(record.guid);
        Some(self.machine().own_session(caller).call(ioc, &record.name, input).map(drop))
    }

    /// Gives a pool another identity, for which it is closed. Its record has that afterwards.
    ///
    /// # Errors
    /// EBUSY if others use the pool here, or file systems of it are mounted; as [`Control::call`]; when the record cannot be written.
    pub fn reguid(&self, record: &Imported, input: &NvList, caller: Caller) -> Result<(), Failed> {
        self.look_again_at(record.guid);
        self.give_back(record.guid);
        self.machine().own_session(caller).call(Ioc::PoolReguid, &record.name, input).map(drop)
    }

    /// Forgets a pool that is left as it is.
    ///
    /// # Errors
    /// EBUSY if others use it here; when the record cannot be removed.
    pub fn forget(&self, record: &Imported) -> Result<(), Failed> {
        let Some(machine) = &self.machine else { return records::forget(record.guid).map_err(opening) };
        self.look_again_at(record.guid);
        self.give_back(record.guid);
        machine.forget(record.guid)
    }

    /// Notes that keys of a pool were loaded: logs of its datasets may be replayed.
    pub fn has_new_keys(&self, guid: Guid) {
        if let Some((lent, _)) = self.on_loan(guid) {
            lent.has_new_key();
        }
    }

    /// Unloads the keys that the program had for itself alone, by pool and encryption root, from pools that it uses with others of a machine. Where others use the pool they may read
    /// with it: then the last of them unloads it. Where a dataset under it is in use it stays loaded.
    pub fn drop_keys(&self, keys: &[(Guid, String)]) {
        if self.machine.is_none() {
            return;
        }
        let all = if keys.is_empty() { Vec::new() } else { self.all().unwrap_or_default() };
        for (pool, root) in keys {
            let record = all.iter().find(|record| record.guid == *pool);
            record.and_then(|record| self.borrow_if_open(record)).into_iter().for_each(|lent| lent.leave_key(root));
        }
        let lent = self.lent().clone();
        for (lent, root) in lent.iter().flat_map(|lent| lent.left_keys().into_iter().map(move |root| (lent, root))) {
            let _unloaded = match (lent.spa(), lent.read_only()) {
                (Some(spa), _) => spa.unload_key(&root),
                (None, Some(view)) => view.unload_key(&root),
                (None, None) => Ok(()),
            };
            self.key_is_gone();
        }
    }

    /// Notes that a key was unloaded: what sessions of the machine keep open is let go.
    pub fn key_is_gone(&self) {
        if let Some(machine) = &self.machine {
            machine.kept.forget();
        }
    }

    /// Keeps others that use the pool here from adding and removing vdevs, while `work` does.
    pub(crate) fn alone_with_vdevs<R>(&self, guid: Guid, work: impl FnOnce() -> R) -> R {
        let lent = self.on_loan(guid).map(|(lent, _)| lent);
        let _alone = lent.as_ref().map(|lent| lent.lock_vdevs());
        work()
    }
}

/// The records of pools.
impl Site {
    /// All imported pools, sorted by name.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub fn all(&self) -> Result<Vec<Imported>, Error> {
        records::all(&|warning| self.front.warn(warning))
    }

    /// The pool that was imported under this name.
    ///
    /// # Errors
    /// As [`Site::all`].
    pub fn find(&self, name: &str) -> Result<Option<Imported>, Error> {
        Ok(self.all()?.into_iter().find(|record| record.name == name))
    }

    /// The current record of an open pool; `None` if it is not imported any more.
    #[must_use]
    pub fn record(&self, pool: &Pool) -> Option<Imported> {
        self.all().ok()?.into_iter().find(|record| record.guid == pool.guid())
    }
}

/// Pools that are read.
impl Site {
    /// Opens a remembered pool for reading, and loads the keys that are kept; one that is open already is given again.
    /// A pool that this process writes is seen as its last synced txg left it.
    ///
    /// # Errors
    /// When its devices are gone, or it does not open.
    pub fn open(&self, record: &Imported) -> Result<Arc<Pool>, Error> {
        let cannot = |source| Error::Open { name: record.name.clone(), source };
        if let Some(spa) = self.own_change(record) {
            return control::view(&spa).map_err(cannot);
        }
        let seen = self.reading().iter().find(|one| one.record.guid == record.guid).map(|one| one.pool.clone());
        if let Some(pool) = seen {
            return Ok(pool);
        }
        let (pool, devices) = match self.live_view(record) {
            Some(pool) => (pool?, DevicePaths::default()),
            None => {
                let (pool, devices) = self.open_to_read(record)?;
                (pool, Arc::new(OnceLock::from(devices)))
            }
        };
        self.reading().push(Reader { record: record.clone(), pool: pool.clone(), devices });
        Ok(pool)
    }

    /// A pool that the machine has open, as it is now. One that cannot be read as it is there is read from its devices, as far as they are there.
    fn live_view(&self, record: &Imported) -> Option<Result<Arc<Pool>, Error>> {
        let lent = self.borrow_if_open(record)?;
        if let Some(pool) = lent.read_only() {
            self.front.opened(pool);
            return Some(Ok(pool.clone()));
        }
        let spa = lent.spa().filter(|spa| spa.is_readable())?;
        let view = spa.view().map_err(|source| Error::Open { name: record.name.clone(), source });
        Some(view.inspect(|view| self.front.opened(view)))
    }

    /// As [`Site::open`], as the devices have the pool now, with their paths. A pool that this process writes has none.
    pub(crate) fn open_anew(&self, record: &Imported) -> Result<(Arc<Pool>, HashMap<Guid, String>), Error> {
        match self.changing(record) {
            Some(spa) => {
                let view = control::view(&spa).map_err(|source| Error::Open { name: record.name.clone(), source })?;
                Ok((view, HashMap::new()))
            }
            None => self.open_to_read(record),
        }
    }

    fn open_to_read(&self, record: &Imported) -> Result<(Arc<Pool>, HashMap<Guid, String>), Error> {
        let (candidate, pool, reading) = self.open_held(record)?;
        reading.into_iter().for_each(|reading| reading.of(&pool));
        self.load_keys(&pool, record);
        Ok((pool, devices::paths(&candidate)))
    }

    /// Opens a pool for reading; retries if other processes reused the space of what was read meanwhile.
    fn open_held(&self, record: &Imported) -> Result<(Candidate, Arc<Pool>, Option<Reading>), Error> {
        let mut tries = 0;
        loop {
            let reading = Reading::begin();
            let candidate = devices::candidate(record)?;
            iostats::watch(&candidate, &self.front);
            let opened = Pool::open(&candidate, &devices::options(record));
            tries += 1;
            if tries < OPEN_TRIES && reading.as_ref().is_some_and(ReadGuard::is_overtaken) {
                continue;
            }
            let pool = opened.map_err(|source| Error::Open { name: record.name.clone(), source })?;
            return Ok((candidate, pool, reading));
        }
    }

    /// Opens the pool that `find` finds for reading, imported or not: the process is known as a reader from before it is looked for.
    ///
    /// # Errors
    /// As `find`, or when it does not open.
    pub fn read<E: From<Error>>(
        &self,
        find: impl FnOnce() -> Result<Candidate, E>,
        options: &OpenOptions,
    ) -> Result<Arc<Pool>, E> {
        let reading = Reading::begin();
        let candidate = find()?;
        let pool =
            Pool::open(&candidate, options).map_err(|source| Error::Open { name: candidate.name.clone(), source })?;
        reading.into_iter().for_each(|reading| reading.of(&pool));
        Ok(pool)
    }

    /// As [`Site::read`], with the logs of the pool replayed in memory ([`with_log`]).
    ///
    /// # Errors
    /// As [`Site::read`], and as `keys` and `replay` say; when another process changes the pool meanwhile.
    pub fn read_replayed<E: From<Error>>(
        &self,
        find: impl FnOnce() -> Result<(Candidate, Option<String>), E>,
        keys: impl FnOnce(&Arc<Pool>) -> Result<(), E>,
        replay: impl FnOnce(&Arc<Spa>) -> Result<(), E>,
    ) -> Result<Replayed, E> {
        let reading = Reading::begin();
        let (candidate, name) = find()?;
        let (spa, view) = with_log::open(&candidate, name, keys, replay)?;
        if let Some(reading) = reading {
            if reading.is_overtaken() {
                return Err(Error::ChangedMeanwhile { name: view.name().to_owned() }.into());
            }
            reading.settle(spa.guid(), Txg(0), spa.zio());
        }
        Ok((spa, view))
    }

    /// The pool that a dataset is in, open for reading; `None` if it is not imported.
    ///
    /// # Errors
    /// As [`Site::open`].
    pub fn of_dataset(&self, dataset: &str) -> Result<Option<Arc<Pool>>, Error> {
        let name = dataset.split(['/', '@', '#']).next().unwrap_or("");
        self.find(name)?.map(|record| self.open(&record)).transpose()
    }

    /// Makes pools that are only read be opened anew from now on: they may have changed since.
    pub fn look_again(&self) {
        self.rest();
    }

    /// As [`Site::look_again`], for one pool.
    pub(crate) fn look_again_at(&self, guid: Guid) {
        self.reading().retain(|one| one.record.guid != guid);
    }

    /// Lets go of all pools at the end of a program: other processes do not wait for what it has read.
    pub fn leave(&self) {
        self.reading().clear();
        self.writing().clear();
        self.lent().clear();
    }

    /// The paths of the devices of a pool that was opened for reading.
    #[must_use]
    pub fn devices(&self, pool: &Pool) -> HashMap<Guid, String> {
        self.opened_as(pool).and_then(|(_, devices)| devices.get().cloned()).unwrap_or_default()
    }

    /// The record of a pool at the time when it was opened for reading, and the paths of its devices.
    pub(crate) fn opened_as(&self, pool: &Pool) -> Option<(Imported, DevicePaths)> {
        let reading = self.reading();
        let seen = reading.iter().find(|one| one.record.guid == pool.guid())?;
        Some((seen.record.clone(), seen.devices.clone()))
    }

    /// Returns whether another process has changed or exported an open pool since it was opened.
    #[must_use]
    pub fn is_changed(&self, pool: &Pool) -> bool {
        let Some(record) = self.record(pool) else { return true };
        if let Some(spa) = self.changing(&record) {
            return spa.view().is_ok_and(|now| now.uberblock().txg > pool.uberblock().txg);
        }
        let candidate = devices::candidate(&record).ok();
        let now = candidate.and_then(|found| Pool::open(&found, &devices::options(&record)).ok());
        now.is_some_and(|now| now.uberblock().txg > pool.uberblock().txg)
    }

    /// Loads the keys that earlier commands have loaded, and those that the program has.
    pub fn load_keys(&self, pool: &Arc<Pool>, record: &Imported) {
        keys::load_kept(pool, record, &*self.front);
        self.front.opened(pool);
    }
}

/// Pools that are written.
impl Site {
    /// Opens a remembered pool for writing, and waits for another process that writes it. Devices that missed writes are left as they are.
    ///
    /// # Errors
    /// When the pool is read-only, busy, or does not open.
    pub fn write(&self, record: &Imported) -> Result<Arc<Spa>, Error> {
        let Some(machine) = &self.machine else { return writing::open(record, &self.front, None) };
        let read_only = || Error::ReadOnly { name: record.name.clone() };
        if record.readonly {
            return Err(read_only());
        }
        self.borrow(machine, record)?.spa().cloned().ok_or_else(read_only)
    }

    /// Ends a change: everything is written, and the pool is closed, if it is not a machine's.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn close(&self, spa: &Arc<Spa>) -> Result<(), pool::Error> {
        if !self.is_kept_open(spa) {
            return spa.close();
        }
        let synced = spa.sync();
        self.close_synced(spa)?;
        synced
    }

    /// Whether it is the machine's, on loan or not: it is not closed here.
    fn is_kept_open(&self, spa: &Arc<Spa>) -> bool {
        self.machine.as_ref().is_some_and(|machine| machine.has(spa))
    }

    /// As [`Site::close`], if all that was changed is on disk.
    ///
    /// # Errors
    /// As [`Site::close`].
    pub fn close_synced(&self, spa: &Arc<Spa>) -> Result<(), pool::Error> {
        if !self.is_kept_open(spa) {
            return spa.close();
        }
        self.look_again_at(spa.guid());
        self.give_back(spa.guid());
        Ok(())
    }

    /// As [`Site::write`]; `starts` gets the pool while it is being opened.
    pub(crate) fn write_seen(&self, record: &Imported, starts: Starts) -> Result<Arc<Spa>, Error> {
        writing::open(record, &self.front, Some(starts))
    }

    /// Makes a new pool, which is not remembered, as [`Control::create_pool`] with the devices and hooks of the site.
    ///
    /// # Errors
    /// As [`Control::create_pool`].
    pub fn create_pool(&self, name: &str, input: &NvList, caller: Caller) -> Result<Control, Failed> {
        let of_pool = self.machine.as_ref().map_or(self, |machine| &machine.site);
        writing::create(name, input, (of_pool, caller), None)
    }

    /// Remembers a new pool, which a machine keeps open.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn remember_new(&self, record: &Imported, spa: &Arc<Spa>) -> Result<(), Error> {
        let Some(machine) = &self.machine else { return records::remember_new(record) };
        machine.adopt(record, spa)?;
        self.borrow(machine, record).map(drop)
    }

    /// Makes [`Site::open`] give the pool as this process changes it, until [`Site::hide_changes`]; keys that are kept are loaded.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn show_changes(&self, record: &Imported, spa: &Arc<Spa>) -> Result<(), Error> {
        self.keep(spa);
        let view = spa.view().map_err(|source| Error::Open { name: record.name.clone(), source })?;
        match &self.machine {
            // the keys that are kept were loaded when it was opened
            Some(_) => self.front.opened(&view),
            None => self.load_keys(&view, record),
        }
        Ok(())
    }

    /// Brings the contents of a pool that was opened for a change to where its last user has left them: the intent logs of datasets whose keys are loaded are replayed.
    /// What such a log has promised belongs to what is snapshotted, cloned or renamed then. `watch` is told of the progress, and the program of logs that cannot be replayed.
    /// Returns whether all could be.
    ///
    /// # Errors
    /// When the datasets cannot be listed.
    pub fn replay(&self, spa: &Arc<Spa>, watch: &mut dyn FnMut(&ReplayProgress)) -> Result<bool, Failed> {
        if let Some((lent, machine)) = self.on_loan(spa.guid()) {
            return lent.make_ready(machine).map(|()| true);
        }
        let mut whole = true;
        for (name, opened) in replay_all(spa, watch)? {
            if let Err(why) = opened {
                self.front.warn(&format!("cannot replay the intent log of '{name}': {why}"));
                whole = false;
            }
        }
        Ok(whole)
    }

    /// Brings the devices of a pool that was opened for a change up to date, as [`Site::catch_up`]. Where a machine has it open that is done once for all, and logs are replayed with it.
    pub fn make_ready(&self, spa: &Arc<Spa>) {
        match self.on_loan(spa.guid()) {
            // the change itself fails if it cannot be made
            Some((lent, machine)) => drop(lent.make_ready(machine)),
            None => self.catch_up(spa),
        }
    }

    /// Brings devices that missed writes up to date, if that does not take long ([`catch_up`]). The program is told if it would.
    pub fn catch_up(&self, spa: &Arc<Spa>) {
        let name = spa.name();
        let behind = format!("devices of '{name}' have missed writes and");
        match catch_up(spa) {
            Ok(CaughtUp::Yes) => {}
            Ok(CaughtUp::No) => self
                .front
                .warn(&format!("{behind} are not up to date: use 'zpool resilver {name}' or 'zpool scrub {name}'")),
            Err(e) => self.front.warn(&format!("{behind} cannot be resilvered: {e}")),
        }
    }

    /// As [`Site::show_changes`], without keys.
    pub(crate) fn keep(&self, spa: &Arc<Spa>) {
        let mut writing = self.writing();
        writing.retain(|one| one.guid() != spa.guid());
        writing.push(spa.clone());
    }

    /// The pool, if this process changes it ([`Site::show_changes`], or a [`Machine`]).
    #[must_use]
    pub fn changing(&self, record: &Imported) -> Option<Arc<Spa>> {
        self.own_change(record).or_else(|| self.borrow_if_open(record)?.spa().cloned())
    }

    /// The pool, if the program changes it.
    fn own_change(&self, record: &Imported) -> Option<Arc<Spa>> {
        self.writing().iter().find(|spa| spa.guid() == record.guid).cloned()
    }

    /// Ends [`Site::show_changes`]: the process no longer changes this pool.
    pub fn hide_changes(&self, spa: &Arc<Spa>) {
        self.writing().retain(|one| one.guid() != spa.guid());
    }

    /// Locks devices that get new contents. Readers of the pools that they belonged to are overtaken until the result is dropped.
    fn lock_new(&self, paths: &[PathBuf]) -> Result<control::Opened, vdev::Error> {
        let devices = writing::lock_paths(paths, &*self.front)?;
        let lost = vdev::import::scan_devices(devices.clone());
        let meanwhile: Vec<_> = lost.iter().map(|lost| OtherReaders.overtake_all(lost.guid)).collect();
        Ok(control::Opened { devices, meanwhile: Box::new(meanwhile) })
    }

    /// Locks the devices of a remembered pool, and waits for another process that writes it: until the result is dropped no process opens it for a change.
    ///
    /// # Errors
    /// When its devices are gone, or in use.
    pub fn keep_out(&self, record: &Imported) -> Result<Candidate, Error> {
        let locked = self.lock(&devices::candidate(record)?);
        locked.map_err(|source| Error::Devices { name: record.name.clone(), source })
    }

    /// Locks the devices of a pool that was found, and gives it with these devices open for writing.
    ///
    /// # Errors
    /// As [`writing::lock`].
    pub fn lock(&self, found: &Candidate) -> Result<Candidate, vdev::Error> {
        writing::lock(found, &self.front)
    }
}
