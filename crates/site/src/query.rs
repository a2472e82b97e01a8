//! Requests about one pool that change nothing, answered with what all processes of this machine know of it.
//!
//! A pool that is open here for reading knows neither what other processes have read and written, nor how it was imported, nor where its spares are now. A
//! [`Query`] lets `control` answer, and puts that into the answer.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::Guid;
use control::stats::figures::{self, Counted};
use control::stats::{SUSPENDED, VdevStat, VdevStats};
use control::{Caller, CancelToken, Failed, Ioc, Kept, ReadOnlyControl, traced};
use nvlist::{NvList, Value};
use ondisk::label::key;
use pool::{Pool, Source};
use vdev::{IoFigures, LostBlock, QueueDepths, VdevAux, VdevErrors, VdevState, VdevType};

use crate::iostats::{self, Record};
use crate::long_holds::Held;
use crate::sending::Seen;
use crate::suspended::{self, Suspended};
use crate::{Imported, Site, devices, records};

/// The paths of the devices of an open pool, once they are known.
pub(crate) type DevicePaths = Arc<OnceLock<HashMap<Guid, String>>>;

/// An open pool that is asked about.
#[derive(Clone)]
pub struct Query {
    pool: Arc<Pool>,
    /// The paths of its devices: looked for when they are asked for, if they are not known.
    devices: DevicePaths,
    /// The record of its import; `None` if it is not imported.
    record: Option<Imported>,
    /// Who asks.
    pub(crate) caller: Caller,
    pub(crate) control: ReadOnlyControl,
    /// The pools that it is one of, if other processes may change it.
    pub(crate) site: Option<Site>,
    /// What is held as long as it is asked.
    pub(crate) held: Option<Arc<Held>>,
    /// Whether what is sent is held, where that is not yet so.
    pub(crate) holds: bool,
    /// What was looked up to be sent, by the names that it had in the state that was opened.
    pub(crate) seen: Arc<HashMap<String, Seen>>,
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Site {
    /// Takes requests about a pool that was opened with [`Site::open`].
    #[must_use]
    pub fn query(&self, pool: &Arc<Pool>) -> Query {
        let Some((record, devices)) = self.opened_as(pool) else {
            return Query::of_found(pool.clone(), HashMap::new());
        };
        // what this process changes itself no other does
        let site = self.changing(&record).is_none().then(|| self.clone());
        Query { site, ..Query::of_imported(pool.clone(), record, devices) }
    }
}

impl Query {
    /// Takes requests about a pool that is not imported, and is open on these devices.
    #[must_use]
    pub fn of_found(pool: Arc<Pool>, devices: HashMap<Guid, String>) -> Query {
        let control = ReadOnlyControl::new(pool.clone()).of(&Caller::default());
        Query {
            pool,
            devices: Arc::new(OnceLock::from(devices)),
            record: None,
            caller: Caller::default(),
            control,
            site: None,
            held: None,
            holds: true,
            seen: Arc::default(),
        }
    }

    /// Takes requests about an imported pool that is open on these devices, as the record of its import tells.
    #[must_use]
    pub(crate) fn of_imported(pool: Arc<Pool>, record: Imported, devices: DevicePaths) -> Query {
        Query { record: Some(record), devices, ..Query::of_found(pool, HashMap::new()) }
    }

    /// The same with what other requests of the caller have opened.
    #[must_use]
    pub(crate) fn keeping(self, kept: &Kept) -> Query {
        Query { control: self.control.keeping(kept), ..self }
    }

    /// The same with streams that `cancel` ends.
    #[must_use]
    pub(crate) fn until(self, cancel: &CancelToken) -> Query {
        Query { control: self.control.until(cancel), ..self }
    }

    /// The same for a caller, to whose files streams can be sent.
    #[must_use]
    pub fn of(self, caller: &Caller) -> Query {
        Query { caller: caller.clone(), control: self.control.of(caller), ..self }
    }

    /// The same with what is held as long as it is asked, by the names under which it was looked up.
    pub(crate) fn holding(self, held: Held, seen: HashMap<String, Seen>) -> Query {
        Query { held: Some(Arc::new(held)), seen: Arc::new(seen), ..self }
    }

    /// The same for a caller who could not have the lock of holds ([`Looking`](crate::long_holds::Looking)): it is not waited for again with each stream.
    #[must_use]
    pub fn without_holds(self) -> Query {
        Query { holds: false, ..self }
    }

    /// The same in another state of the pool.
    pub(crate) fn seen_in(&self, pool: &Arc<Pool>) -> Query {
        Query { pool: pool.clone(), control: self.control.clone().seen_in(pool), ..self.clone() }
    }

    /// The name of the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        self.pool.name()
    }

    /// The pool itself, for programs that do more with it than to ask.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The identity of the pool.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.pool.guid()
    }

    /// Answers what is asked. What is sent is held meanwhile: no other process destroys it.
    ///
    /// # Errors
    /// As [`ReadOnlyControl::call`]; EBUSY for a stream of a head that another process has open.
    pub fn call(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        ioc.check_name(name, self.name())?;
        ioc.check(input)?;
        ioc.looking(|| self.answer(ioc, name, input))
    }

    fn answer(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let control = &self.control;
        // the error log is read once, with what is not in there yet
        match ioc {
            Ioc::ErrorLog | Ioc::PoolStats => {
                return traced(ioc, self.name(), Some(self.caller.uid), || match ioc {
                    Ioc::ErrorLog => control.error_log_with(&self.met()),
                    _ => {
                        let mut config = control.stats_with(input, &self.met())?;
                        self.complete(&mut config);
                        Ok(config)
                    }
                });
            }
            Ioc::SendNew => return self.send(name, input),
            _ => {}
        }
        let mut out = control.call(ioc, name, input)?;
        match ioc {
            Ioc::PoolGetProps => self.as_imported(&mut out),
            Ioc::VdevGetProps => self.count_errors(Guid(input.get_u64("vdevprops_get_vdev").unwrap_or(0)), &mut out),
            _ => {}
        }
        Ok(out)
    }

    /// Blocks that were found lost, and are not in the error log of the pool yet.
    fn met(&self) -> Vec<LostBlock> {
        iostats::record(self.guid()).lost.into_iter().collect()
    }

    /// The paths of its devices.
    fn devices(&self) -> &HashMap<Guid, String> {
        let find = || {
            let record = records::all(&|_| {}).ok()?.into_iter().find(|record| record.guid == self.guid())?;
            devices::candidate(&record).ok().map(|found| devices::paths(&found))
        };
        self.devices.get_or_init(|| find().unwrap_or_default())
    }

    /// Completes the configuration of the pool.
    fn complete(&self, config: &mut NvList) {
        let counted = Counts { record: iostats::record(self.guid()), now: iostats::now() };
        let suspended = suspended::of(self.guid());
        if let Some(suspended) = &suspended {
            config.insert(SUSPENDED, suspended.failmode());
        }
        let devices = self.devices();
        if let Some(root) = config.get_nvlist_mut(key::VDEV_TREE) {
            figures::put(root, &counted);
            place(root, devices, suspended.as_ref());
            let in_use: HashSet<u64> = guids_below(root).into_iter().collect();
            for aside in [key::SPARES, key::L2CACHE] {
                let aside = root.get_nvlist_array_mut(aside).into_iter().flatten();
                aside.for_each(|vdev| place_aside(vdev, devices, &in_use));
            }
        }
    }

    /// Sets the properties that say how the pool is imported: it is open for reading here however that was.
    fn as_imported(&self, props: &mut NvList) {
        // in their places, as the order of an answer is that of the properties
        let mut set = |name: &str, source: Source, value: Value| {
            if let Some(prop) = props.get_nvlist_mut(name) {
                prop.insert("source", source.number());
                prop.insert("value", value);
            }
        };
        if self.record.as_ref().is_some_and(|record| !record.readonly) {
            set("readonly", Source::Default, 0u64.into());
        }
        if suspended::of(self.guid()).is_some() {
            set("health", Source::None, "SUSPENDED".into());
        }
        if let Some(record) = self.record.as_ref().filter(|record| record.load_guid != 0) {
            set("load_guid", Source::None, record.load_guid.into());
        }
    }

    /// Sets the errors of a vdev to those since the import.
    fn count_errors(&self, vdev: Guid, props: &mut NvList) {
        let errors = iostats::record(self.guid()).errors.get(&vdev).copied().unwrap_or_default();
        let counts =
            [("read_errors", errors.read), ("write_errors", errors.write), ("checksum_errors", errors.checksum)];
        for (name, count) in counts {
            if let Some(prop) = props.get_nvlist_mut(name) {
                prop.insert("value", count);
            }
        }
    }
}

/// Sets the paths of the vdevs in a configuration to those of `devices`.
pub fn place_devices(config: &mut NvList, devices: &HashMap<Guid, String>) {
    if let Some(root) = config.get_nvlist_mut(key::VDEV_TREE) {
        place(root, devices, None);
    }
}

/// Sets the paths of a vdev and of all below, and their states as the process has them in which the pool is suspended.
fn place(vdev: &mut NvList, devices: &HashMap<Guid, String>, suspended: Option<&Suspended>) {
    let guid = Guid(vdev.get_u64(key::GUID).unwrap_or(0));
    if let Some(path) = devices.get(&guid) {
        vdev.insert(key::PATH, path.as_str());
    }
    if let Some(health) = suspended.and_then(|suspended| suspended.vdevs.get(&guid)) {
        let mut stats = VdevStats::of(vdev);
        stats.set_health(health.state, health.aux);
        stats.put(vdev);
        vdev.remove_all(key::NOT_PRESENT);
    }
    let children = vdev.get_nvlist_array_mut(key::CHILDREN).into_iter().flatten();
    children.for_each(|child| place(child, devices, suspended));
}

/// Sets the path, the state and the size of a spare or cache. It is there if its label was found.
fn place_aside(vdev: &mut NvList, devices: &HashMap<Guid, String>, in_use: &HashSet<u64>) {
    let is_in_use = vdev.get_u64(key::GUID).is_some_and(|guid| in_use.contains(&guid));
    let found = devices.get(&Guid(vdev.get_u64(key::GUID).unwrap_or(0)));
    let kind = vdev.get_str(key::TYPE).and_then(VdevType::from_name);
    let mut stats = VdevStats::of(vdev);
    match found.is_some() || kind == Some(VdevType::DraidSpare) {
        _ if is_in_use => stats.set_health(VdevState::CantOpen, VdevAux::Spared),
        _ if vdev.get_u64(key::OFFLINE) == Some(1) => stats.set_health(VdevState::Offline, VdevAux::None),
        true => stats.set_health(VdevState::Healthy, VdevAux::None),
        false => stats.set_health(VdevState::CantOpen, VdevAux::OpenFailed),
    }
    if let Some(path) = found {
        vdev.insert(key::PATH, path.as_str());
        stats.set(VdevStat::Pspace, std::fs::metadata(path).map_or(0, |meta| meta.len()));
    }
    stats.put(vdev);
}

/// The guids of all vdevs below one.
fn guids_below(vdev: &NvList) -> Vec<u64> {
    let children = vdev.get_nvlist_array(key::CHILDREN).unwrap_or(&[]);
    children.iter().flat_map(|child| child.get_u64(key::GUID).into_iter().chain(guids_below(child))).collect()
}

/// The figures of all processes since the import.
struct Counts {
    record: Record,
    now: Duration,
}

impl Counted for Counts {
    fn io(&self, leaf: Guid) -> IoFigures {
        self.record.devices.get(&leaf).cloned().unwrap_or_default()
    }

    fn queue(&self, leaf: Guid) -> QueueDepths {
        self.record.queue(leaf, self.now)
    }

    fn errors(&self, vdev: Guid) -> VdevErrors {
        self.record.errors.get(&vdev).copied().unwrap_or_default()
    }

    fn since_ns(&self) -> u64 {
        u64::try_from(self.now.saturating_sub(self.record.since).as_nanos()).unwrap_or(u64::MAX)
    }
}
