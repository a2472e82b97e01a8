//! The one door to the pools of this machine: every request of `control`, and those about all pools.
//!
//! A [`Machine`] answers by itself what is about the machine: the pools that are imported ([`Ioc::PoolConfigs`]), and one that could be
//! ([`Ioc::PoolTryImport`]); a pool that becomes one of this machine ([`Ioc::PoolImport`], [`Ioc::PoolCreate`]) or ceases to be
//! ([`Ioc::PoolExport`], [`Ioc::PoolDestroy`]); the events of all pools. A question about one pool goes to a [`Query`](crate::Query), and a change to a
//! [`Control`] on the pool, which is opened for it unless this process has it open for a change already ([`Site::show_changes`]).
//!
//! OpenZFS: `zfsdev_ioctl_common`.

mod imports;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use control::{Caller, Control, EventSource, Events, Failed, Ioc, NewVdevs, traced};
use nvlist::NvList;
use pool::Spa;
use pool::events::News;

use crate::error::opening;
use crate::{Error, Imported, Site, events, records, writing};

/// Interval at which new events are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// The requests of one caller to the pools of this machine.
pub struct Machine {
    site: Site,
    caller: Caller,
    events: Events,
    keeps_open: bool,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("site", &self.site).field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl Machine {
    /// Takes requests from `caller` to the pools of `site`.
    #[must_use]
    pub fn new(site: Site, caller: Caller) -> Machine {
        Machine { site, caller, events: Events::default(), keeps_open: false }
    }

    /// The same, but a pool that it imports stays open for changes by this process ([`Site::changing`]), which closes it.
    #[must_use]
    pub fn keeping_open(self) -> Machine {
        Machine { keeps_open: true, ..self }
    }

    /// Answers what is asked, or does it: after that it is on disk, and the pool is closed.
    ///
    /// # Errors
    /// As [`Control::call`]; ENOENT for a pool that is not imported, EROFS for a change of one that was imported read-only.
    pub fn call(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let pool = ioc.pool_of(name)?;
        ioc.check(input)?;
        let traced = |work: &dyn Fn() -> Result<NvList, Failed>| traced(ioc, pool, Some(self.caller.uid), work);
        match ioc {
            Ioc::PoolConfigs => traced(&|| self.configs()),
            Ioc::PoolTryImport => traced(&|| self.try_import(input)),
            Ioc::PoolImport => traced(&|| self.import(name, input)),
            Ioc::PoolCreate => traced(&|| self.create(name, input)),
            Ioc::PoolExport | Ioc::PoolDestroy => self.leave(ioc, pool, input),
            Ioc::EventsNext | Ioc::EventsClear | Ioc::EventsSeek => {
                traced(&|| self.events.call(&OfMachine, ioc, input, &control::CancelToken::default()))
            }
            ioc if ioc.looks() => {
                let pool = self.site.open(&self.record(pool)?).map_err(opening)?;
                self.site.query(&pool).of(&self.caller).call(ioc, name, input)
            }
            ioc => self.change(ioc, &self.record(pool)?, (name, input)),
        }
    }

    /// The imported pool of this name.
    fn record(&self, pool: &str) -> Result<Imported, Failed> {
        let found = self.site.find(pool).map_err(opening)?;
        found.ok_or_else(|| opening(Error::NoSuchPool { name: pool.to_owned() }))
    }

    fn change(&self, ioc: Ioc, record: &Imported, (name, input): (&str, &NvList)) -> Result<NvList, Failed> {
        let on = |spa: Arc<Spa>| Control::new(spa, self.caller.clone()).on(Arc::new(self.site.clone()));
        let ask = |control: Control| match ioc {
            Ioc::VdevAdd => self.site.add_vdevs(&control, input),
            Ioc::VdevRemove => self.site.remove_vdev(&control, input),
            ioc => control.call(ioc, name, input),
        };
        if let Some(spa) = self.site.changing(record) {
            return ask(on(spa));
        }
        let spa = self.site.write(record).map_err(opening)?;
        let out = spa.view().map_err(Failed::from).and_then(|view| {
            self.site.load_keys(&view, record);
            ask(on(spa.clone()))
        });
        let closed = spa.close();
        self.site.look_again();
        let out = out?;
        closed?;
        Ok(out)
    }

    /// Exports or destroys a pool, and forgets it.
    fn leave(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let record = self.record(name)?;
        // nothing changes on the devices of a pool that is only read
        if !(record.readonly && ioc == Ioc::PoolExport) {
            let spa = self.site.write(&record).map_err(opening)?;
            if let Err(failed) = Control::new(spa.clone(), self.caller.clone()).call(ioc, name, input) {
                spa.close()?;
                return Err(failed);
            }
        }
        records::forget(record.guid).map_err(opening)?;
        self.site.look_again();
        Ok(NvList::new())
    }

    fn create(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let text = |key: &str| input.get_nvlist("props").and_then(|props| props.get_str(key)).map(str::to_owned);
        let visible = text("tname").unwrap_or_else(|| name.to_owned());
        let names = records::lock_names(&**self.site.front()).map_err(opening)?;
        if self.site.find(&visible).map_err(opening)?.is_some() {
            return Err(opening(Error::NameTaken { name: visible }));
        }
        let who = (writing::hooks(self.site.front()), self.caller.clone());
        let control = Control::create_pool(name, input, who, Arc::new(self.site.clone()))?;
        let view = control.spa().view()?;
        let new = NewVdevs::of_list(input.get_nvlist("config").unwrap_or(&NvList::new()))?;
        let devices = new.spec.paths().map(|(path, _)| PathBuf::from(path)).collect();
        let record = Imported {
            guid: control.spa().guid(),
            name: visible,
            name_on_disk: name.to_owned(),
            devices,
            readonly: false,
            altroot: text("altroot"),
            load_guid: view.load_guid(),
            ..Imported::default()
        };
        let remembered = records::remember(&record);
        drop(names);
        control.spa().close()?;
        remembered.map_err(opening)?;
        Ok(NvList::new())
    }
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
