//! The one door to the pools of this machine: every request of `control`, and those about all pools.
//!
//! A [`Machine`] answers by itself what is about the machine: the pools that are imported ([`Ioc::PoolConfigs`]), and one that could be
//! ([`Ioc::PoolTryImport`]); a pool that becomes one of this machine ([`Ioc::PoolImport`], [`Ioc::PoolCreate`]) or ceases to be
//! ([`Ioc::PoolExport`], [`Ioc::PoolDestroy`]); the events of all pools. A question about one pool goes to a [`Query`](crate::Query), and a change to a
//! [`Control`] on the pool, which is opened for it unless this process has it open for a change already ([`Site::show_changes`]).
//!
//! OpenZFS: `zfsdev_ioctl_common`.

use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::{Errno, Guid};
use control::{Caller, Control, EventSource, Events, Failed, Ioc, NewVdevs, stats, traced};
use nvlist::{NvList, Value as Nv};
use ondisk::label::key;
use pool::events::News;
use pool::prop::check_pool_value;
use pool::{OpenOptions, Spa, Value};
use vdev::VdevConfig;
use vdev::import::Candidate;

use crate::error::opening;
use crate::import::{How, Import, is_foreign};
use crate::tryimport::{LOAD_INFO, try_import};
use crate::{Error, Imported, Site, devices, events, records, writing};

/// The state of a pool that is imported, and of one that does not open (OpenZFS: `pool_state_t`).
const STATE_ACTIVE: u64 = 0;
const STATE_UNAVAIL: u64 = 6;

/// Flags of an import (OpenZFS: `ZFS_IMPORT_*`).
const IMPORT_ANY_HOST: u64 = 0x2;
const IMPORT_MISSING_LOG: u64 = 0x4;
const IMPORT_TEMP_NAME: u64 = 0x10;
const IMPORT_CHECKPOINT: u64 = 0x80;
const IMPORT_KNOWN: u64 = IMPORT_ANY_HOST | IMPORT_MISSING_LOG | IMPORT_TEMP_NAME | IMPORT_CHECKPOINT;

/// The list in a configuration that says which state is to be loaded, and its keys (OpenZFS: `zpool_get_load_policy`).
const LOAD_POLICY: &str = "load-policy";
const REWIND_POLICY: &str = "load-rewind-policy";
const REQUEST_TXG: &str = "load-request-txg";
/// Bits of the policy: an older state is taken if need be, any one.
const DO_REWIND: u32 = 8;
const EXTREME_REWIND: u32 = 16;

/// Interval at which new events are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// The requests of one caller to the pools of this machine.
pub struct Machine {
    site: Site,
    caller: Caller,
    events: Events,
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
        Machine { site, caller, events: Events::default() }
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
                traced(&|| self.events.call(&OfMachine, ioc, input))
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
            guid: control.spa().guid().0,
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

/// The paths of the spares and caches in a tree of vdevs.
fn aside(tree: &NvList) -> Vec<PathBuf> {
    let lists = [key::SPARES, key::L2CACHE].into_iter().filter_map(|key| tree.get_nvlist_array(key));
    lists.flatten().filter_map(|vdev| vdev.get_str(key::PATH)).map(PathBuf::from).collect()
}

/// Pools that are not imported, or are about to be.
impl Machine {
    fn configs(&self) -> Result<NvList, Failed> {
        let mut out = NvList::new();
        for record in self.site.all().map_err(opening)? {
            let (mut config, state) = match self.site.open(&record) {
                Ok(pool) => (stats::stored(pool.config()), STATE_ACTIVE),
                // as far as its labels tell of it
                Err(_) => {
                    let found = devices::candidate(&record).ok();
                    (found.map(|found| stats::stored(&found.config)).unwrap_or_default(), STATE_UNAVAIL)
                }
            };
            config.insert(key::POOL_NAME, record.name.as_str());
            config.insert(key::POOL_GUID, record.guid);
            config.insert(key::POOL_STATE, state);
            out.insert(&record.name, config);
        }
        Ok(out)
    }

    fn try_import(&self, input: &NvList) -> Result<NvList, Failed> {
        let none = NvList::new();
        let config = input.get_nvlist("config").unwrap_or(&none);
        let (candidate, policy) = (found(config)?, Policy::of(config));
        let options = OpenOptions { txg: policy.txg.map(base::Txg), missing_log_ok: true, ..OpenOptions::default() };
        Ok(try_import(&candidate, &options))
    }

    fn import(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let none = NvList::new();
        let config = input.get_nvlist("config").unwrap_or(&none);
        let props = input.get_nvlist("props").unwrap_or(&none);
        if config.get_u64(key::POOL_GUID) != input.get_u64("guid") {
            return Err(invalid("the configuration is not that of the pool"));
        }
        let flags = input.get_u64("flags").unwrap_or(0);
        if flags & !IMPORT_KNOWN != 0 {
            return Err(control::Error::NotSupported(format!("flags {flags:#x}")).into());
        }
        let stored = stored_props(props)?;
        let (candidate, policy) = (found(config)?, Policy::of(config));
        let how = How {
            name: Some(name.to_owned()).filter(|name| *name != candidate.name),
            temporary_name: flags & IMPORT_TEMP_NAME != 0,
            readonly: props.get_u64("readonly").unwrap_or(0) != 0,
            force: flags & IMPORT_ANY_HOST != 0,
            rewind: policy.rewind,
            extreme: policy.extreme,
            txg: policy.txg,
            checkpoint: flags & IMPORT_CHECKPOINT != 0,
            missing_log: flags & IMPORT_MISSING_LOG != 0,
            altroot: props.get_str("altroot").map(str::to_owned),
        };
        let readonly = how.readonly;
        let import = Import::begin(&self.site, &candidate, how).map_err(opening)?;
        let seen = import.look()?;
        // a label without a hostid, or with 0, is of no host
        let of_a_host = candidate.hostid.is_some_and(|hostid| hostid != 0);
        if of_a_host && is_foreign(&candidate) && flags & IMPORT_ANY_HOST == 0 {
            let why = "pool was previously in use from another system";
            return Err(control::Error::Opening(Errno::EREMOTEIO, why.into()).into());
        }
        if policy.txg.is_none() && !policy.rewind && !seen.load_info().skipped.is_empty() {
            let why = "the newest state of the pool cannot be used";
            return Err(control::Error::Opening(Errno::EIO, why.into()).into());
        }
        if readonly {
            seen.watch_others(&writing::hooks(self.site.front()).env)?;
            import.read_only(&seen).map_err(opening)?;
        } else {
            let locked = import.lock()?;
            let spa = import.write(&locked)?;
            let done = self.set_and_remember(&spa, stored, import);
            let closed = spa.close();
            if done.is_err() {
                // the error is what counts
                let _forgotten = records::forget(candidate.guid.0);
            }
            done?;
            closed?;
        }
        let mut config = config.clone();
        config.insert(LOAD_INFO, NvList::new());
        Ok(config)
    }

    /// Sets properties of a pool that was opened to be imported, and remembers it as imported.
    fn set_and_remember(&self, spa: &Arc<Spa>, props: NvList, import: Import<'_>) -> Result<(), Failed> {
        if !props.is_empty() {
            let mut input = NvList::new();
            input.insert("props", props);
            Control::new(spa.clone(), self.caller.clone()).call(Ioc::PoolSetProps, spa.name(), &input)?;
        }
        import.remember(spa)?.1.map_err(opening)
    }
}

/// Returns those properties of an import that are stored, if the pool can have them.
fn stored_props(props: &NvList) -> Result<NvList, Failed> {
    let mut stored = NvList::new();
    for (name, value) in props.iter().filter(|(name, _)| !matches!(*name, "altroot" | "readonly" | "cachefile")) {
        let plain = match value {
            Nv::Uint64(number) => Value::Number(*number),
            Nv::String(text) => Value::String(text.to_string_lossy().into_owned()),
            _ => return Err(invalid(&format!("value of '{name}' is neither a number nor text"))),
        };
        check_pool_value(name, &plain).map_err(|bad| invalid(&format!("'{name}': {}", bad.why())))?;
        stored.insert(name, value.clone());
    }
    Ok(stored)
}

/// The state of a pool that is to be loaded.
struct Policy {
    rewind: bool,
    extreme: bool,
    txg: Option<u64>,
}

impl Policy {
    fn of(config: &NvList) -> Policy {
        let list = config.get_nvlist(LOAD_POLICY);
        let bits = list.and_then(|list| list.get_u32(REWIND_POLICY)).unwrap_or(0);
        Policy {
            rewind: bits & DO_REWIND != 0,
            extreme: bits & EXTREME_REWIND != 0,
            txg: list.and_then(|list| list.get_u64(REQUEST_TXG)).filter(|txg| *txg != u64::MAX),
        }
    }
}

/// The pool with this configuration, on the devices that it names.
fn found(config: &NvList) -> Result<Candidate, Failed> {
    let guid = Guid(config.get_u64(key::POOL_GUID).ok_or_else(|| invalid("the configuration has no guid"))?);
    let tree = config.get_nvlist(key::VDEV_TREE).ok_or_else(|| invalid("the configuration has no vdevs"))?;
    let leaves = VdevConfig::parse(tree)?;
    let mut paths: Vec<PathBuf> = leaves.leaves().filter_map(|leaf| leaf.path.as_ref().map(PathBuf::from)).collect();
    paths.extend(aside(tree));
    // a caller names devices, and has nothing else looked through
    let is_device = |meta: std::fs::Metadata| meta.is_file() || meta.file_type().is_block_device();
    paths.retain(|path| path.is_absolute() && path.metadata().is_ok_and(is_device));
    let all = vdev::import::scan(&paths)?;
    let name = || config.get_str(key::POOL_NAME).unwrap_or_default().to_owned();
    all.into_iter().find(|found| found.guid == guid).ok_or_else(|| opening(Error::Gone { name: name() }))
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

fn invalid(why: &str) -> Failed {
    control::Error::Invalid(why.to_owned()).into()
}
