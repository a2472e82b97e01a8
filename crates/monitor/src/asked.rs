//! What requests to pools tell, without waiting for them for long.
//!
//! A pool has a thread that asks while somebody waits for its facts, and no other beside it. Who waits does so until a deadline and takes what is known by then, with its age: so a request that waits for
//! devices holds up nobody but itself. What is younger than a second is not asked for again.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use base::Guid;
use control::{Caller, ERROR_WORDS, Ioc};
use nvlist::{NvList, Value};
use parking_lot::{Condvar, Mutex};
use site::{LivePool, Machine};

/// What is not asked for again.
const FRESH: Duration = Duration::from_secs(1);
/// The properties of datasets that are shown.
pub(crate) const DATASET_PROPS: [&str; 6] = ["used", "available", "referenced", "logicalused", "quota", "volsize"];

/// What requests tell of a pool. What could not be asked is missing.
pub(crate) struct Facts {
    /// The configuration with the figures of vdevs.
    pub(crate) config: Option<NvList>,
    /// The properties.
    pub(crate) props: Option<NvList>,
    /// Blocks that are known to be damaged.
    pub(crate) errors: Option<u64>,
    /// The datasets but the root, each with its `props`, and the properties of the root.
    pub(crate) datasets: Option<(NvList, NvList)>,
    at: Instant,
}

impl Facts {
    /// How old they are.
    pub(crate) fn age(&self) -> Duration {
        self.at.elapsed()
    }
}

#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_asking: bool,
    last: Option<Arc<Facts>>,
}

/// The facts of the pools of a machine.
pub(crate) struct Asked {
    machine: Machine,
    pools: Mutex<HashMap<Guid, Arc<Slot>>>,
}

impl Asked {
    pub(crate) fn new(machine: Machine) -> Asked {
        Asked { machine, pools: Mutex::default() }
    }

    /// Returns the facts of these pools as they are known at the deadline, or before, if all are known then.
    pub(crate) fn of(&self, pools: &[LivePool], deadline: Instant) -> HashMap<Guid, Arc<Facts>> {
        let slots: Vec<(Guid, Arc<Slot>)> = {
            let mut known = self.pools.lock();
            let is_there = |guid: &Guid| pools.iter().any(|pool| pool.record.guid == *guid);
            known.retain(|guid, slot| is_there(guid) || slot.state.lock().is_asking);
            pools.iter().map(|pool| (pool.record.guid, known.entry(pool.record.guid).or_default().clone())).collect()
        };
        for ((_, slot), pool) in slots.iter().zip(pools) {
            self.ask(slot, pool);
        }
        let facts = |(guid, slot): (Guid, Arc<Slot>)| {
            let mut state = slot.state.lock();
            while state.is_asking && Instant::now() < deadline {
                let _timed_out = slot.changed.wait_until(&mut state, deadline);
            }
            Some((guid, state.last.clone()?))
        };
        slots.into_iter().filter_map(facts).collect()
    }

    /// Begins to ask for the facts of a pool, unless that is being done or has just been, or the pool is not open yet.
    fn ask(&self, slot: &Arc<Slot>, pool: &LivePool) {
        let mut state = slot.state.lock();
        if pool.is_opening || state.is_asking || state.last.as_ref().is_some_and(|facts| facts.age() < FRESH) {
            return;
        }
        let (machine, name, asking) = (self.machine.clone(), pool.record.name.clone(), Asking(slot.clone()));
        let ask = move || {
            let facts = facts(&machine, &name);
            asking.0.state.lock().last = Some(Arc::new(facts));
            drop(asking);
        };
        state.is_asking = true;
        drop(state);
        // without a thread it is dropped, and what was known last is shown
        let _spawned = thread::Builder::new().name("metrics-pool".to_owned()).spawn(ask);
    }
}

/// Whoever asks for the facts of a pool, until dropped, also by a panic.
struct Asking(Arc<Slot>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.state.lock().is_asking = false;
        self.0.changed.notify_all();
    }
}

fn facts(machine: &Machine, pool: &str) -> Facts {
    let session = machine.own_session(Caller::default());
    let call = |ioc, input: &NvList| session.call(ioc, pool, input).ok();
    let none = NvList::new();
    let mut brief = NvList::new();
    brief.insert("brief", ());
    let mut below = NvList::new();
    below.insert("props", Value::StringArray(DATASET_PROPS.iter().map(|name| (*name).into()).collect()));
    let root = below.clone();
    below.insert("depth", u64::MAX);
    let datasets = || Some((call(Ioc::DatasetListNext, &below)?, call(Ioc::ObjsetStats, &root)?));
    Facts {
        config: call(Ioc::PoolStats, &brief),
        props: call(Ioc::PoolGetProps, &none),
        errors: call(Ioc::ErrorLog, &none).map(|out| {
            let words = out.get_u64_array("errors").map_or(0, <[u64]>::len);
            (words / ERROR_WORDS) as u64
        }),
        datasets: datasets(),
        at: Instant::now(),
    }
}
