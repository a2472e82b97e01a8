//! Pools that are suspended in some process, because devices are gone: `GUID.suspended` and `GUID.clear`.
//!
//! The process holds the lock of the first file for as long as its pool waits, and writes there what `zpool status` shows; a file that nobody has locked
//! is left from a process that ended. The second file is a request: another process asks for the pool, or one device, to be cleared. The process
//! that waits takes it, tries, and either the lock is released with the next txg, or the count of suspensions in the file grows.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::Guid;
use pool::{FailMode, SuspendWatch, SuspendedPool};
use serde_json::{Value, json};
use vdev::{Health, VdevAux, VdevState};

use crate::{Front, records};

/// Interval at which the outcome of a request is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// The files of the pools that are suspended in this process, and whether they are going on.
static HELD: Mutex<BTreeMap<u64, Held>> = Mutex::new(BTreeMap::new());

struct Held {
    file: File,
    resuming: bool,
}

fn path(guid: u64, extension: &str) -> Option<PathBuf> {
    Some(records::folder().ok()?.join(format!("{guid}.{extension}")))
}

/// The watch of the pools of this process; the front takes the warning.
pub(crate) struct Watch(pub(crate) Arc<dyn Front>);

impl SuspendWatch for Watch {
    fn suspended(&self, pool: &SuspendedPool) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if !held.contains_key(&pool.guid.0) {
            self.0.suspended(pool);
            let file = path(pool.guid.0, "suspended").and_then(|path| hold(&path));
            held.extend(file.map(|file| (pool.guid.0, Held { file, resuming: false })));
        }
        if let Some(held) = held.get_mut(&pool.guid.0) {
            held.resuming = false;
            let text = encode(pool).to_string();
            // what cannot be written is not seen by others
            let _written = held.file.set_len(0).and_then(|()| held.file.write_all_at(text.as_bytes(), 0));
        }
    }

    fn clear_wanted(&self, pool: Guid) -> Option<Option<Guid>> {
        let path = path(pool.0, "clear")?;
        let text = fs::read_to_string(&path).ok()?;
        fs::remove_file(&path).ok()?;
        Some(text.trim().parse().ok().map(Guid))
    }

    fn resumed(&self, pool: Guid) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held.get_mut(&pool.0) {
            held.resuming = true;
        }
    }
}

/// Notes that a txg of a pool is on disk: a pool that was suspended is not any more.
pub(crate) fn synced(pool: Guid) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if held.get(&pool.0).is_some_and(|held| held.resuming) {
        path(pool.0, "suspended").into_iter().for_each(|path| drop(fs::remove_file(path)));
        held.remove(&pool.0);
    }
}

/// Opens and locks the file of a pool that is suspended in this process.
fn hold(path: &Path) -> Option<File> {
    let file = records::private().truncate(false).open(path).ok()?;
    file.try_lock().ok().map(|()| file)
}

/// A pool that is suspended in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspended {
    /// The failure that suspended it.
    pub cause: String,
    /// Whether those who use it wait (`failmode=wait`), or get errors.
    pub waits: bool,
    /// The vdevs with their states.
    pub vdevs: BTreeMap<u64, Health>,
    /// How often it was suspended.
    count: u64,
}

/// Returns how a pool is suspended, if some process has it open and it is.
#[must_use]
pub fn of(guid: Guid) -> Option<Suspended> {
    let path = path(guid.0, "suspended")?;
    let file = File::open(&path).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => decode(&fs::read(&path).ok()?),
        // the process has ended
        _ => None,
    }
}

/// Asks the process that has a suspended pool open to clear one device, or all, and waits for the outcome.
///
/// # Errors
/// The failure that suspended the pool again, or the reason why nobody can be asked.
pub fn clear(guid: Guid, before: &Suspended, device: Option<Guid>) -> Result<(), String> {
    let ask = path(guid.0, "clear").ok_or("no folder for records")?;
    let text = device.map_or_else(|| "all".to_owned(), |device| device.0.to_string());
    let new = ask.with_extension(format!("clear.{}", std::process::id()));
    fs::write(&new, text).and_then(|()| fs::rename(&new, &ask)).map_err(|e| format!("{}: {e}", ask.display()))?;
    loop {
        match of(guid) {
            Some(now) if now.count > before.count => return Err(now.cause),
            Some(_) => std::thread::sleep(LOOK),
            None => break,
        }
    }
    // nobody took it: the process ended
    drop(fs::remove_file(ask));
    Ok(())
}

fn encode(pool: &SuspendedPool) -> Value {
    let vdevs = pool
        .vdevs
        .iter()
        .map(|(guid, health)| (guid.0.to_string(), json!([health.state.name(), health.aux.message()])));
    json!({
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
    let vdevs = v.get("vdevs")?.as_object()?.iter();
    Some(Suspended {
        cause: v.get("cause")?.as_str()?.to_owned(),
        waits: v.get("waits")?.as_bool()?,
        vdevs: vdevs.filter_map(|(guid, v)| Some((guid.parse().ok()?, health(v)?))).collect(),
        count: v.get("count")?.as_u64()?,
    })
}
