//! Pools that are suspended in some process, because devices are gone: `GUID.suspended` and `GUID.clear`.
//!
//! The process holds the lock of the first file for as long as its pool waits, and writes there what `zpool status` shows; a file that nobody has locked
//! is left from a process that ended. The second file is a request: another process asks for the pool, or one device, to be cleared. The process
//! that waits takes it, tries, and either the lock is released with the next txg, or the count of suspensions in the file grows.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::Guid;
use pool::{FailMode, SuspendWatch, SuspendedPool};
use serde_json::{Value, json};
use vdev::{Health, VdevAux, VdevState};

use crate::patience::busy_wait;
use crate::state::{self, Folder, Lock, Patience};
use crate::{Front, iostats, records};

/// Interval at which the outcome of a request is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// How often, and at which interval, a file is read that its process is writing.
const DECODE_TRIES: u32 = 100;
const DECODE_EVERY: Duration = Duration::from_millis(10);

/// The files of the pools that are suspended in this process, and whether they are going on.
static HELD: Mutex<BTreeMap<Guid, Held>> = Mutex::new(BTreeMap::new());

struct Held {
    file: File,
    resuming: bool,
}

/// The end of the name of a file that says how a pool is suspended.
const SUSPENDED: &str = ".suspended";

/// The file that says how a pool is suspended.
fn told(guid: Guid) -> String {
    format!("{guid}{SUSPENDED}")
}

/// The request to clear it.
fn asked(guid: Guid) -> String {
    format!("{guid}.clear")
}

/// The watch of the pools of this process; the front takes the warning.
pub(crate) struct Watch(pub(crate) Arc<dyn Front>);

impl SuspendWatch for Watch {
    fn suspended(&self, pool: &SuspendedPool) {
        // the front may wait for whoever reads its messages: no other pool waits for that
        if note(pool) {
            self.0.suspended(pool);
        }
    }

    fn clear_wanted(&self, pool: Guid) -> Option<Option<Guid>> {
        let (folder, name) = (Folder::open().ok()?, asked(pool));
        let text = String::from_utf8(folder.read(&name).ok()?).ok()?;
        folder.remove(&name).ok()?;
        Some(text.trim().parse().ok().map(Guid))
    }

    fn cleared(&self, pool: Guid, vdevs: Option<&[Guid]>) {
        if records::is_remembered(pool) {
            iostats::clear(pool, |vdev| vdevs.is_none_or(|vdevs| vdevs.contains(&vdev)));
        }
    }

    fn resumed(&self, pool: Guid) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held.get_mut(&pool) {
            held.resuming = true;
        }
    }
}

/// Notes that a pool is suspended, for others to see. Returns whether that is new.
fn note(pool: &SuspendedPool) -> bool {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let is_new = !held.contains_key(&pool.guid);
    if is_new {
        held.extend(hold(pool.guid).map(|file| (pool.guid, Held { file, resuming: false })));
    }
    if let Some(held) = held.get_mut(&pool.guid) {
        held.resuming = false;
        let text = encode(pool).to_string();
        // what cannot be written is not seen by others
        let _written = held.file.set_len(0).and_then(|()| held.file.write_all_at(text.as_bytes(), 0));
    }
    is_new
}

/// Notes that a txg of a pool is on disk: a pool that was suspended is not any more.
pub(crate) fn synced(pool: Guid) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if held.get(&pool).is_some_and(|held| held.resuming) {
        drop(Folder::open().and_then(|folder| folder.remove(&told(pool))));
        held.remove(&pool);
    }
}

/// Notes that this process has a pool open no more: if it was suspended, it was given up, or is destroyed.
pub(crate) fn forget(pool: Guid) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if held.contains_key(&pool) {
        drop(Folder::open().and_then(|folder| folder.remove(&told(pool))));
        held.remove(&pool);
    }
}

/// Opens and locks the file of a pool that is suspended in this process. Others who just look for suspended pools have it locked for a moment.
fn hold(guid: Guid) -> Option<File> {
    let file = Folder::open().and_then(|folder| folder.shared_file(&told(guid))).ok()?;
    state::lock(&file, Lock::Exclusive, Patience::Moment).ok().map(|()| file)
}

/// A pool that is suspended in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspended {
    /// The failure that suspended it.
    pub cause: String,
    /// Whether those who use it wait (`failmode=wait`), or get errors.
    pub waits: bool,
    /// The vdevs with their states.
    pub vdevs: BTreeMap<Guid, Health>,
    /// The name of the pool, which may not be imported yet.
    pool: String,
    /// The names of the vdevs, of leaves the paths.
    names: BTreeMap<Guid, String>,
    /// How often it was suspended, if that is known.
    count: Option<u64>,
}

/// The numbers of the property `failmode`.
const FAILMODE_WAIT: u64 = 0;
const FAILMODE_CONTINUE: u64 = 1;

impl Suspended {
    /// The number of the pool's property `failmode`.
    #[must_use]
    pub fn failmode(&self) -> u64 {
        if self.waits { FAILMODE_WAIT } else { FAILMODE_CONTINUE }
    }

    /// Returns the vdev that the user calls `wanted`: by its guid, its name, or the last component of its path.
    #[must_use]
    pub fn vdev(&self, wanted: &str) -> Option<Guid> {
        let is = |(guid, name): &(&Guid, &String)| {
            guid.to_string() == wanted
                || *name == wanted
                || name.rsplit_once('/').is_some_and(|(_, last)| last == wanted)
        };
        self.names.iter().find(is).map(|(guid, _)| *guid)
    }
}

/// Returns how a pool is suspended, if some process has it open and it is.
#[must_use]
pub fn of(guid: Guid) -> Option<Suspended> {
    let file = open(guid)?;
    for _ in 0..DECODE_TRIES {
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => {}
            // the process has ended
            _ => return None,
        }
        if let Some(suspended) = state::read_all(&file).ok().and_then(|bytes| decode(&bytes)) {
            return Some(suspended);
        }
        // it is being written
        std::thread::sleep(DECODE_EVERY);
    }
    let cause = format!("in use{}, which does not say why", vdev::device::lock_holder(&file));
    let (vdevs, names) = (BTreeMap::new(), BTreeMap::new());
    Some(Suspended { cause, waits: true, vdevs, pool: String::new(), names, count: None })
}

/// The pool of this name that is suspended in some process, also while that creates or imports it and no record tells of it.
#[must_use]
pub fn named(pool: &str) -> Option<(Guid, Suspended)> {
    let guid = |name: &String| name.strip_suffix(SUSPENDED)?.parse().ok().map(Guid);
    let guids: Vec<Guid> = Folder::open().and_then(|folder| folder.names()).ok()?.iter().filter_map(guid).collect();
    guids.into_iter().filter_map(|guid| Some((guid, of(guid)?))).find(|(_, suspended)| suspended.pool == pool)
}

fn open(guid: Guid) -> Option<File> {
    Folder::open().and_then(|folder| folder.file(&told(guid))).ok()
}

/// Asks the process that has a suspended pool open to clear one device, or all, and waits for the outcome.
///
/// # Errors
/// The failure that suspended the pool again, or the reason why nobody can be asked.
pub fn clear(guid: Guid, before: &Suspended, device: Option<Guid>) -> Result<(), String> {
    let patience = busy_wait();
    let text = device.map_or_else(|| "all".to_owned(), |device| device.0.to_string());
    let name = asked(guid);
    let folder = Folder::open().map_err(|e| e.to_string())?;
    let cannot = |e: io::Error| format!("{}: {e}", folder.path().join(&name).display());
    folder.replace_shared(&name, text.as_bytes()).map_err(cannot)?;
    let (mut begun, mut taken) = (Instant::now(), false);
    let outcome = loop {
        let Some(now) = of(guid) else { break Ok(()) };
        if now.count.zip(before.count).is_some_and(|(now, before)| now > before) {
            break Err(now.cause);
        }
        if !taken && !folder.has(&name) {
            (begun, taken) = (Instant::now(), true);
        }
        if begun.elapsed() >= patience {
            let holder = open(guid).map(|file| vdev::device::lock_holder(&file)).unwrap_or_default();
            let seconds = patience.as_secs();
            break Err(format!("The pool is in use{holder}, which did not answer within {seconds} seconds."));
        }
        std::thread::sleep(LOOK);
    };
    // nobody took it: the process ended, or was stopped
    drop(folder.remove(&name));
    outcome
}

fn encode(pool: &SuspendedPool) -> Value {
    let vdevs = pool
        .vdevs
        .iter()
        .map(|vdev| (vdev.guid.0.to_string(), json!([vdev.health.state.name(), vdev.health.aux.message(), vdev.name])));
    json!({
        "pool": pool.name,
        "cause": pool.cause,
        "waits": pool.failmode != FailMode::Continue,
        "count": pool.count,
        "vdevs": vdevs.collect::<serde_json::Map<String, Value>>(),
    })
}

fn decode(bytes: &[u8]) -> Option<Suspended> {
    let v: Value = serde_json::from_slice(bytes).ok()?;
    let health = |v: &Value| {
        let (state, aux) = (v.get(0)?.as_str()?, v.get(1)?.as_str()?);
        let state = VdevState::ALL.into_iter().find(|s| s.name() == state)?;
        Some(Health { state, aux: VdevAux::ALL.into_iter().find(|a| a.message() == aux)? })
    };
    let vdevs = v.get("vdevs")?.as_object()?;
    let name = |v: &Value| Some(v.get(2)?.as_str()?.to_owned());
    Some(Suspended {
        cause: v.get("cause")?.as_str()?.to_owned(),
        waits: v.get("waits")?.as_bool()?,
        vdevs: vdevs.iter().filter_map(|(guid, v)| Some((Guid(guid.parse().ok()?), health(v)?))).collect(),
        pool: v.get("pool").and_then(Value::as_str).unwrap_or_default().to_owned(),
        names: vdevs.iter().filter_map(|(guid, v)| Some((Guid(guid.parse().ok()?), name(v)?))).collect(),
        count: Some(v.get("count")?.as_u64()?),
    })
}
