//! What commands did with the devices of imported pools since the import, and what went wrong: what a kernel would count.
//!
//! A command opens the pool itself, and what it counts goes with it. So that `zpool iostat` and `status` can tell of all of them, each adds it to a record
//! beside that of the import, `GUID.io` in the same folder: once a second while it runs, and at its end. Who looks meanwhile sees the work go
//! on; who is killed leaves out his last second. A record that cannot be written is no reason for a command to fail. Not counted are programs
//! that open pools through the library, and those that only look at the figures.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use base::{Env, Guid};
use serde_json::{Map, Value, json};
use vdev::import::Candidate;
use vdev::{Counted, IoCounters, IoFigures, PoolErrors, VdevErrors};

use crate::state;

/// How often a command adds what it did.
const EVERY: Duration = Duration::from_secs(1);
/// How long a command waits for another one that has a record, and how often it looks.
const LOCK_TRIES: u32 = 100;
const LOCK_EVERY: Duration = Duration::from_millis(10);
/// A record is not longer: some thousand devices.
const RECORD_MAX: u64 = 16 << 20;

/// What a device was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Io {
    pub(crate) read: IoFigures,
    pub(crate) write: IoFigures,
}

impl Io {
    /// These and `other` together.
    pub(crate) fn add(&mut self, other: &Io) {
        self.read.add(&other.read);
        self.write.add(&other.write);
    }

    /// What came since `before`.
    pub(crate) fn since(&self, before: &Io) -> Io {
        Io { read: self.read.since(&before.read), write: self.write.since(&before.write) }
    }

    fn of(counters: &IoCounters) -> Io {
        let (read, write) = counters.figures();
        Io { read, write }
    }

    fn is_idle(&self) -> bool {
        self.read.operations == 0 && self.write.operations == 0
    }
}

/// What is known of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// When it was begun, since 1970.
    pub(crate) since: Duration,
    /// The devices, by leaf.
    pub(crate) devices: HashMap<Guid, Io>,
    /// The vdevs that have failed.
    pub(crate) errors: BTreeMap<Guid, VdevErrors>,
}

/// A pool that this process has opened, and what was told of it.
struct Watched {
    pool: Guid,
    devices: Vec<Device>,
    errors: Arc<PoolErrors>,
    told: BTreeMap<Guid, VdevErrors>,
}

struct Device {
    leaf: Guid,
    counters: Arc<IoCounters>,
    told: Io,
}

/// What is to be added to a record.
#[derive(Default)]
struct News {
    devices: Vec<(Guid, Io)>,
    errors: Vec<(Guid, VdevErrors)>,
}

impl Watched {
    /// What came since it was last told.
    fn take_news(&mut self, news: &mut News) {
        for device in &mut self.devices {
            let now = Io::of(&device.counters);
            let new = now.since(&device.told);
            if !new.is_idle() {
                news.devices.push((device.leaf, new));
                device.told = now;
            }
        }
        let errors = self.errors.figures();
        news.errors.extend(self.untold(&errors));
        self.told = errors;
    }

    /// What of these errors was not told.
    fn untold(&self, errors: &BTreeMap<Guid, VdevErrors>) -> Vec<(Guid, VdevErrors)> {
        let told = |vdev| self.told.get(vdev).copied().unwrap_or_default();
        let new = errors.iter().map(|(vdev, errors)| (*vdev, errors.since(&told(vdev))));
        new.filter(|(_, new)| !new.is_none()).collect()
    }

    /// Whether there can be more to tell.
    fn is_open(&self) -> bool {
        let counted = self.devices.iter().any(|device| Arc::strong_count(&device.counters) > 1);
        counted || Arc::strong_count(&self.errors) > 1 || self.errors.may_grow()
    }
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
static QUIET: AtomicBool = AtomicBool::new(false);
/// When this process began to count.
static BEGUN: OnceLock<Duration> = OnceLock::new();

/// From now on the devices of a pool that is about to be opened are counted.
pub(crate) fn watch(candidate: &mut Candidate) {
    let mut devices = Vec::new();
    for found in &mut candidate.devices {
        let counted = Arc::new(Counted::new(found.device.clone()));
        devices.push(Device { leaf: found.guid, counters: counted.counters().clone(), told: Io::default() });
        found.device = counted;
    }
    let (pool, errors) = (candidate.guid, candidate.errors.clone());
    watched().push(Watched { pool, devices, errors, told: BTreeMap::new() });
    BEGUN.get_or_init(|| {
        // it ends with the process, which publishes the rest itself: without a thread, everything
        let publisher = || {
            loop {
                std::thread::sleep(EVERY);
                publish();
            }
        };
        drop(std::thread::Builder::new().name("iostats".to_owned()).spawn(publisher));
        now()
    });
}

/// What this process does is not to be told.
pub(crate) fn keep_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Adds what this process did since it last told of it.
pub(crate) fn publish() {
    if QUIET.load(Ordering::Relaxed) {
        return;
    }
    let mut watched = watched();
    let mut news: HashMap<Guid, News> = HashMap::new();
    // closed pools are told of for the last time
    watched.retain_mut(|one| {
        let again = one.is_open();
        one.take_news(news.entry(one.pool).or_default());
        again
    });
    for (pool, new) in news {
        // a pool that is not imported any more, or not yet, has no record
        if (!new.devices.is_empty() || !new.errors.is_empty()) && state::is_remembered(pool.0) {
            let _told = add(pool, new);
        }
    }
}

/// The record of a pool, an empty one if there is none, with the errors that this process has met and not told of yet.
pub(crate) fn record(pool: Guid) -> Record {
    let watched = watched();
    let text = path(pool).and_then(|path| {
        let mut file = File::open(path).ok()?;
        // whoever writes it is waited for
        let _locked = file.lock_shared();
        read(&mut file)
    });
    let known = text.and_then(|text| decode(&text));
    let mut record = known.unwrap_or_else(|| Record { since: now(), ..Record::default() });
    let untold = watched.iter().filter(|one| one.pool == pool).flat_map(|one| one.untold(&one.errors.figures()));
    for (vdev, new) in untold {
        record.errors.entry(vdev).or_default().add(&new);
    }
    record
}

/// Forgets the errors of those vdevs of a pool that are `meant`, and that operations of theirs were slow (OpenZFS: `vdev_clear`).
pub(crate) fn clear(pool: Guid, meant: impl Fn(Guid) -> bool) {
    for one in watched().iter_mut().filter(|one| one.pool == pool) {
        one.told.extend(one.errors.figures().into_iter().filter(|(vdev, _)| meant(*vdev)));
    }
    let _cleared = update(pool, |record| {
        record.errors.retain(|vdev, _| !meant(*vdev));
        for (_, io) in record.devices.iter_mut().filter(|(leaf, _)| meant(**leaf)) {
            (io.read.slow, io.write.slow) = (0, 0);
        }
    });
}

/// Forgets the record of a pool.
pub(crate) fn forget(pool: Guid) {
    if let Some(path) = path(pool) {
        drop(std::fs::remove_file(path));
    }
}

/// The time now, since 1970.
pub(crate) fn now() -> Duration {
    Env::system().now()
}

fn watched() -> MutexGuard<'static, Vec<Watched>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn path(pool: Guid) -> Option<PathBuf> {
    Some(state::folder().ok()?.join(format!("{}.io", pool.0)))
}

fn read(file: &mut File) -> Option<String> {
    let mut text = String::new();
    file.take(RECORD_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

fn add(pool: Guid, new: News) -> Option<()> {
    update(pool, |record| {
        for (leaf, io) in new.devices {
            record.devices.entry(leaf).or_default().add(&io);
        }
        for (vdev, errors) in new.errors {
            record.errors.entry(vdev).or_default().add(&errors);
        }
    })
}

/// Changes the record of a pool; one process after the other.
fn update(pool: Guid, change: impl FnOnce(&mut Record)) -> Option<()> {
    let mut file = crate::state::private().read(true).truncate(false).open(path(pool)?).ok()?;
    let mut tries = 0;
    // who was stopped in the middle of it must not stop others
    while file.try_lock().is_err() {
        tries += 1;
        if tries > LOCK_TRIES {
            return None;
        }
        std::thread::sleep(LOCK_EVERY);
    }
    let before = read(&mut file).and_then(|text| decode(&text));
    let since = || BEGUN.get().copied().unwrap_or_else(now);
    let mut record = before.unwrap_or_else(|| Record { since: since(), ..Record::default() });
    change(&mut record);
    let text = encode(&record).to_string();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.write_all(text.as_bytes()).ok()?;
    file.set_len(text.len() as u64).ok()
}

fn encode(record: &Record) -> Value {
    let figures = |io: &IoFigures| [&[io.operations, io.bytes, io.slow], io.latency.as_slice()].concat();
    let devices: Map<String, Value> = record
        .devices
        .iter()
        .map(|(leaf, io)| (leaf.0.to_string(), json!([figures(&io.read), figures(&io.write)])))
        .collect();
    let errors = |(vdev, e): (&Guid, &VdevErrors)| (vdev.0.to_string(), json!([e.read, e.write, e.checksum]));
    let errors: Map<String, Value> = record.errors.iter().map(errors).collect();
    json!({ "since_ns": record.since.as_nanos() as u64, "devices": devices, "errors": errors })
}

fn decode(text: &str) -> Option<Record> {
    let value: Value = serde_json::from_str(text).ok()?;
    let figures = |value: &Value| {
        let words: Vec<u64> = value.as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
        let [operations, bytes, slow, latency @ ..] = words.as_slice() else { return None };
        Some(IoFigures { operations: *operations, bytes: *bytes, slow: *slow, latency: latency.to_vec() })
    };
    let device = |(leaf, io): (&String, &Value)| {
        let io = Io { read: figures(io.get(0)?)?, write: figures(io.get(1)?)? };
        Some((Guid(leaf.parse().ok()?), io))
    };
    let errors = |(vdev, counts): (&String, &Value)| {
        let count = |n: usize| counts.get(n)?.as_u64();
        let errors = VdevErrors { read: count(0)?, write: count(1)?, checksum: count(2)? };
        Some((Guid(vdev.parse().ok()?), errors))
    };
    Some(Record {
        since: Duration::from_nanos(value.get("since_ns")?.as_u64()?),
        devices: value.get("devices")?.as_object()?.iter().map(device).collect::<Option<_>>()?,
        errors: value.get("errors")?.as_object()?.iter().map(errors).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let figures = |n: u64| IoFigures { operations: n, bytes: n << 40, slow: 1, latency: vec![0, n, u64::MAX] };
        let io = Io { read: figures(3), write: figures(4) };
        let record = Record {
            since: Duration::from_nanos(1 << 60),
            devices: HashMap::from([(Guid(u64::MAX), io)]),
            errors: BTreeMap::from([(Guid(7), VdevErrors { read: 1, write: u64::MAX, checksum: 3 })]),
        };
        assert_eq!(decode(&encode(&record).to_string()), Some(record));
        assert!(decode(r#"{"since_ns":1,"devices":{},"errors":{"1":[1,2,3]}}"#).is_some());
        for bad in [
            "",
            "{}",
            r#"{"since_ns":1,"devices":{"x":[[1,2,3],[1,2,3]]},"errors":{}}"#,
            r#"{"since_ns":1,"devices":{"1":[[1]]},"errors":{}}"#,
            r#"{"since_ns":1,"devices":{},"errors":{"1":[1,-2,3]}}"#,
            r#"{"since_ns":1,"devices":{}}"#,
        ] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
