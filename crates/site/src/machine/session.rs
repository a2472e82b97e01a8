//! The requests of one caller.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::{Env, Errno, Guid};
use control::{Caller, CancelToken, Control, EventSource, Events, Failed, Ioc, Kept, NewVdevs, Who, traced};
use nvlist::NvList;
use pool::events::News;
use pool::{Pool, Spa};

use super::pools::{Filling, Held, Open, Pools, Use, busy};
use crate::error::opening;
use crate::suspended::Suspended;
use crate::writing::Starts;
use crate::{Error, Imported, Query, events, iostats, keys, records, suspended, writing};

/// The change of a key after which a dataset has the same (OpenZFS: `dcp_cmd_t`).
const FORCE_NEW_KEY: u64 = 4;

/// The user that administers every machine.
const ROOT: u32 = 0;

/// Interval at which new events are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// The requests of one caller to the pools of this machine. Several threads may make them at once.
pub struct Session {
    pub(super) machine: Arc<Pools>,
    pub(super) caller: Caller,
    /// The user that the pools belong to, where it is to be checked what the caller may do.
    owner: Option<u32>,
    events: Events,
    kept: Kept,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(machine: Arc<Pools>, caller: Caller, owner: Option<u32>) -> Session {
        let kept = Kept::default();
        machine.kept.add(&kept);
        Session { machine, caller, owner, events: Events::default(), kept }
    }

    /// The caller.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Answers what is asked, or does it: after that it is on disk.
    ///
    /// # Errors
    /// EPERM for a caller who may not ask; as [`Control::call`]; ENOENT for a pool that is not imported, EROFS for a change of one that was imported read-only,
    /// EBUSY where the pool is to be closed and others use it.
    pub fn call(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        self.call_until(ioc, name, input, &CancelToken::default())
    }

    /// As [`Session::call`], with waits that `cancel` ends.
    ///
    /// # Errors
    /// As [`Session::call`]; EINTR for a wait that was ended.
    pub fn call_until(&self, ioc: Ioc, name: &str, input: &NvList, cancel: &CancelToken) -> Result<NvList, Failed> {
        if let Some(owner) = self.owner
            && let Err(refused) = ioc.check_caller(&self.caller, owner)
        {
            return traced(ioc, "", Some(self.caller.uid), || Err(refused.into()));
        }
        if has_key(input) {
            keys::no_core_dumps();
        }
        let pool = ioc.pool_of(name)?;
        let traced = |work: &dyn Fn() -> Result<NvList, Failed>| {
            traced(ioc, pool, Some(self.caller.uid), || ioc.check(input).map_err(Failed::from).and_then(|()| work()))
        };
        if ioc == Ioc::Clear
            && let Some((guid, suspended)) = self.suspended_elsewhere(pool)
        {
            return traced(&|| clear(guid, &suspended, input));
        }
        match ioc {
            Ioc::PoolConfigs => traced(&|| self.configs()),
            Ioc::PoolTryImport => traced(&|| self.try_import(input)),
            Ioc::PoolImport => traced(&|| self.import(name, input)),
            Ioc::PoolCreate => traced(&|| self.create(name, input)),
            Ioc::PoolExport | Ioc::PoolDestroy => traced(&|| self.leave(ioc, pool, input)),
            Ioc::PoolReguid => traced(&|| self.reguid(pool, input)),
            Ioc::EventsNext | Ioc::EventsClear | Ioc::EventsSeek => {
                traced(&|| self.events.call(&OfMachine, ioc, input, cancel))
            }
            Ioc::Wait => self.wait((pool, name), input, cancel),
            ioc if ioc.looks() => {
                let answer = self.look(ioc, (pool, name), input, cancel);
                self.machine.kept.watch();
                answer
            }
            ioc => self.with(ioc, pool, input, |open| self.change(ioc, open, (name, input), cancel)),
        }
    }

    /// Whether the caller may do all.
    fn is_owner(&self) -> bool {
        self.owner.is_none_or(|owner| [ROOT, owner].contains(&self.caller.uid))
    }

    /// Takes requests of the caller to a pool that is open for a change.
    fn control(&self, spa: &Arc<Spa>) -> Control {
        let control = Control::new(spa.clone(), self.caller.clone());
        let control = control.on(Arc::new(self.machine.site.clone())).keeping(&self.kept);
        if self.is_owner() { control } else { control.of_stranger() }
    }

    /// Uses a pool for a request, which is checked before the pool is opened for it. Nobody but the owner of the pools has one opened for a change.
    fn with<R>(
        &self,
        ioc: Ioc,
        pool: &str,
        input: &NvList,
        work: impl FnOnce(&Open) -> Result<R, Failed>,
    ) -> Result<R, Failed> {
        ioc.check(input)?;
        if self.is_owner() {
            return self.machine.with(pool, Use::by(ioc), work);
        }
        self.machine.if_open(pool, Use::by(ioc), work).unwrap_or_else(|| {
            self.machine.record(pool)?;
            Err(control::Error::NotPermitted(ioc.name()).into())
        })
    }

    /// How a pool is suspended that is not open here: in another process, or while it is being opened.
    fn suspended_elsewhere(&self, pool: &str) -> Option<(Guid, Suspended)> {
        if self.machine.opened(pool).is_some() {
            return None;
        }
        match self.machine.record(pool) {
            Ok(record) => Some((record.guid, suspended::of(record.guid)?)),
            // another process may be importing or creating it
            Err(_) => suspended::named(pool),
        }
    }

    fn look(
        &self,
        ioc: Ioc,
        (pool, name): (&str, &str),
        input: &NvList,
        cancel: &CancelToken,
    ) -> Result<NvList, Failed> {
        let by = Use::by(ioc);
        if let Some(answer) = self.machine.if_open(pool, by, |open| self.look_at(open, ioc, (name, input), cancel)) {
            return answer;
        }
        let record = self.machine.record(pool)?;
        if record.readonly && self.is_owner() {
            return self.machine.with(pool, by, |open| self.look_at(open, ioc, (name, input), cancel));
        }
        // another process may write it, and nothing is opened to stay for a stranger
        let mut devices = HashMap::new();
        let view = self.kept.view(ioc, name, || {
            let (view, found) = self.machine.site.open_anew(&record).map_err(opening)?;
            devices = found;
            Ok(view)
        });
        let query = Query::of_imported(view?, record, Arc::new(OnceLock::from(devices)));
        query.of(&self.caller).keeping(&self.kept).until(cancel).call(ioc, name, input)
    }

    fn look_at(
        &self,
        open: &Open,
        ioc: Ioc,
        (name, input): (&str, &NvList),
        cancel: &CancelToken,
    ) -> Result<NvList, Failed> {
        let ask = |view: &Arc<Pool>| {
            let query = self.machine.query(open, view);
            query.of(&self.caller).keeping(&self.kept).until(cancel).call(ioc, name, input)
        };
        match &open.held {
            Held::Reading(pool, _) => ask(pool),
            // what is no such request has no answer either where the pool is suspended
            Held::Writing(spa) => ioc
                .check(input)
                .map_err(Failed::from)
                .and_then(|()| ioc.look_at(spa, || ask(&self.kept.view(ioc, name, || Ok(spa.view()?))?))),
        }
    }

    fn change(
        &self,
        ioc: Ioc,
        open: &Open,
        (name, input): (&str, &NvList),
        cancel: &CancelToken,
    ) -> Result<NvList, Failed> {
        // keys are needed before logs can be replayed, and devices that are away are cleared; what everybody may ask changes nothing
        let as_it_is = matches!(ioc, Ioc::LoadKey | Ioc::UnloadKey | Ioc::Clear) || ioc.who() == Who::Everybody;
        if !as_it_is {
            open.make_ready(&self.machine.site)?;
        }
        let site = &self.machine.site;
        let out = match (&open.held, ioc) {
            (Held::Reading(pool, _), _) => self.machine.query(open, pool).of(&self.caller).call(ioc, name, input),
            (Held::Writing(spa), ioc) if ioc.changes_devices() => {
                let _alone = open.lock_vdevs();
                site.change_vdevs(&self.control(spa), ioc, input)
            }
            (Held::Writing(spa), ioc) => self.control(spa).until(cancel).call(ioc, name, input),
        }?;
        self.keys_changed(ioc, open, name, input)?;
        Ok(out)
    }

    /// Does for keys that were loaded, unloaded or changed what outlives this process: one that was unloaded is nowhere kept any more.
    fn keys_changed(&self, ioc: Ioc, open: &Open, name: &str, input: &NvList) -> Result<(), Failed> {
        let query = || {
            let view = match &open.held {
                Held::Reading(pool, _) => pool.clone(),
                Held::Writing(spa) => spa.view()?,
            };
            Ok::<_, Failed>(self.machine.query(open, &view))
        };
        match ioc {
            Ioc::LoadKey if !input.contains("noop") => {
                open.has_new_key();
                keys::loaded(&query()?, name).map_err(opening)?;
            }
            Ioc::UnloadKey => {
                keys::unloaded(&query()?, name).map_err(opening)?;
                self.machine.kept.forget();
            }
            Ioc::ChangeKey if input.get_u64("crypt_cmd") != Some(FORCE_NEW_KEY) => {
                keys::forget(&query()?, name).map_err(opening)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Waits for an activity of a pool. It can be exported meanwhile: that ends the wait.
    fn wait(&self, (pool, name): (&str, &str), input: &NvList, cancel: &CancelToken) -> Result<NvList, Failed> {
        let control = self.with(Ioc::Wait, pool, input, |open| match &open.held {
            Held::Writing(spa) => Ok(self.control(spa).until(cancel)),
            Held::Reading(..) => Err(control::Error::ReadOnly.into()),
        })?;
        control.call(Ioc::Wait, name, input)
    }

    /// Exports or destroys a pool, and forgets it.
    fn leave(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let guid = self.machine.record(name)?.guid;
        self.machine.alone(guid, |filling| {
            // another request may have done it
            let record = self.machine.record(name)?;
            if record.guid != guid {
                return Err(busy());
            }
            match record.readonly {
                true if ioc == Ioc::PoolExport && self.machine.has_mounts(guid) => return Err(busy()),
                // nothing changes on the devices of a pool that is only read
                true if ioc == Ioc::PoolExport => {
                    filling.empty();
                    self.machine.kept.forget();
                }
                true => return Err(control::Error::ReadOnly.into()),
                false => self.leave_written(ioc, &record, input, filling)?,
            }
            records::forget(record.guid).map_err(opening)?;
            self.machine.site.look_again_at(record.guid);
            Ok(NvList::new())
        })
    }

    fn leave_written(
        &self,
        ioc: Ioc,
        record: &Imported,
        input: &NvList,
        filling: &mut Filling<'_>,
    ) -> Result<(), Failed> {
        let site = &self.machine.site;
        let spa = match self.write_alone(record, filling) {
            // an export was cut short before the record was forgotten
            Err(Error::Open { source: pool::Error::Closed, .. }) if ioc == Ioc::PoolExport => return Ok(()),
            opened => opened.map_err(opening)?,
        };
        let left = self.control(&spa).call(ioc, spa.name(), input);
        // nothing has its devices open any more; one that could not be left has been stopped as well, unless it was refused before
        if left.is_ok() || spa.is_stopped() {
            self.machine.kept.forget();
            site.hide_changes(&spa);
            suspended::forget(record.guid);
            filling.empty();
        } else if site.changing(record).is_none() {
            // why it could not be left is what counts
            let _closed = self.machine.close_written(&spa);
            filling.empty();
        }
        left.map(drop)
    }

    /// A pool that nobody else uses here, open for a change.
    fn write_alone(&self, record: &Imported, filling: &mut Filling<'_>) -> Result<Arc<Spa>, Error> {
        if let Some(Held::Writing(spa)) = filling.open().map(|open| &open.held) {
            return Ok(spa.clone());
        }
        let spa = self.machine.site.write_seen(record, filling.expects(record))?;
        filling.fill(Open::new(record.clone(), Held::Writing(spa.clone())));
        self.machine.site.catch_up(&spa);
        Ok(spa)
    }

    /// Gives a pool another identity. It is closed, as all that is known of an open pool goes by its guid; the next request opens it again.
    fn reguid(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let guid = self.machine.record(name)?.guid;
        self.machine.alone(guid, |filling| {
            let record = self.machine.record(name)?;
            if record.guid != guid || self.machine.has_mounts(guid) {
                return Err(busy());
            }
            if record.readonly {
                return Err(control::Error::ReadOnly.into());
            }
            let mut input = input.clone();
            let next = match input.get_u64("guid") {
                Some(next) => next,
                None => self.unused_guid(),
            };
            if self.machine.site.all().map_err(opening)?.iter().any(|other| other.guid.0 == next) {
                return Err(pool::Error::Vdevs(pool::VdevRefusal::SameGuid).into());
            }
            input.insert("guid", next);
            self.reguid_written(&record, Guid(next), &input, filling)
        })
    }

    fn reguid_written(
        &self,
        record: &Imported,
        next: Guid,
        input: &NvList,
        filling: &mut Filling<'_>,
    ) -> Result<NvList, Failed> {
        let site = &self.machine.site;
        let spa = self.write_alone(record, filling).map_err(opening)?;
        // a command after one that was killed in between finds the pool under either
        records::update(record.guid, |record| record.next_guid = Some(next)).map_err(opening)?;
        let done = self.control(&spa).call(Ioc::PoolReguid, spa.name(), input);
        self.machine.kept.forget();
        site.hide_changes(&spa);
        let closed = self.machine.close_written(&spa);
        suspended::forget(record.guid);
        filling.empty();
        site.look_again_at(record.guid);
        let recorded = match &done {
            Ok(_) => records::change_guid(record.guid, next),
            // one that was refused; else it is found out from the devices
            Err(failed) if closed.is_ok() && !failed.is_suspended() => {
                records::update(record.guid, |record| record.next_guid = None)
            }
            Err(_) => Ok(()),
        };
        let out = done?;
        closed?;
        recorded.map_err(opening)?;
        Ok(out)
    }

    /// A guid that no pool of this machine has.
    fn unused_guid(&self) -> u64 {
        let known = self.machine.site.all().unwrap_or_default();
        loop {
            let guid = Env::system().random_u64();
            if guid != 0 && known.iter().all(|record| record.guid.0 != guid) {
                return guid;
            }
        }
    }

    fn create(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let site = &self.machine.site;
        let text = |key: &str| input.get_nvlist("props").and_then(|props| props.get_str(key)).map(str::to_owned);
        let visible = text("tname").unwrap_or_else(|| name.to_owned());
        let invalid = |bad: pool::BadPoolName| pool::Error::InvalidName { name: visible.clone(), why: bad.why() };
        pool::check_new_pool_name(&visible).map_err(invalid)?;
        let names = records::reserve(&**site.front(), &visible, None).map_err(opening)?;
        if site.find(&visible).map_err(opening)?.is_some() {
            return Err(opening(Error::NameTaken { name: visible }));
        }
        let new = NewVdevs::of_list(input.get_nvlist("config").unwrap_or(&NvList::new()))?;
        let record = Imported {
            name: visible,
            name_on_disk: name.to_owned(),
            devices: new.spec.paths().map(|(path, _)| PathBuf::from(path)).collect(),
            readonly: false,
            altroot: text("altroot"),
            ..Imported::default()
        };
        let made = writing::create(name, input, (site, self.caller.clone()), Some(self.expects_new(&record)))?;
        let spa = made.spa();
        let place = self.machine.place(spa.guid());
        let mut filling = place.write();
        let remembered = spa.view().map_err(Failed::from).and_then(|view| {
            let record = Imported { guid: spa.guid(), load_guid: view.load_guid(), ..record };
            records::remember_new(&record).map_err(opening)?;
            Ok(record)
        });
        drop(names);
        match remembered {
            Ok(record) => {
                iostats::watch_created(spa, site.front());
                site.keep(spa);
                filling.fill(Open::new(record, Held::Writing(spa.clone())));
                Ok(NvList::new())
            }
            Err(failed) => {
                // the error is what counts
                let _closed = self.machine.close_written(spa);
                filling.empty();
                Err(failed)
            }
        }
    }

    /// Lets others see a new pool while it is being made; its record is known but for its guid.
    fn expects_new(&self, record: &Imported) -> Starts {
        let (pools, record) = (Arc::downgrade(&self.machine), record.clone());
        Arc::new(move |spa| {
            if let Some(pools) = pools.upgrade() {
                pools.place(spa.guid()).expect(Imported { guid: spa.guid(), ..record.clone() }, spa);
            }
        })
    }
}

/// Has a pool cleared by whoever waits for its devices.
fn clear(guid: Guid, suspended: &Suspended, input: &NvList) -> Result<NvList, Failed> {
    let cleared = suspended::clear(guid, suspended, input.get_u64("guid").map(Guid));
    cleared.map_err(|why| control::Error::Opening(Errno::EIO, why.into()))?;
    Ok(NvList::new())
}

/// Whether a request has a key in it.
fn has_key(input: &NvList) -> bool {
    let has = |list: &NvList| list.contains("hidden_args");
    has(input) || input.get_nvlist("props").is_some_and(has)
}

/// The events of all processes.
struct OfMachine;

impl EventSource for OfMachine {
    fn since(&self, seen: u64) -> Result<News, Failed> {
        events::since(seen).map_err(opening)
    }

    fn wait(&self, _seen: u64, limit: Duration) {
        std::thread::sleep(LOOK.min(limit));
    }

    fn clear(&self) -> Result<u64, Failed> {
        Ok(events::clear().map_err(opening)? as u64)
    }
}
