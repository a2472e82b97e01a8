//! What commands did with the devices of imported pools since the import: what a kernel would count.
//!
//! A command opens the pool itself, and what it counts goes with it. So that `zpool iostat` can tell of all of them, each adds it to a record
//! beside that of the import, `GUID.io` in the same folder: once a second while it runs, and at its end. Who looks meanwhile sees the work go
//! on; who is killed leaves out his last second. A record that cannot be written is no reason for a command to fail. Not counted are programs
//! that open pools through the library, and those that only look at the figures.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base::{Env, Guid};
use serde_json::{Map, Value, json};
use vdev::import::Candidate;
use vdev::{Counted, IoCounters, IoFigures};

use crate::state;

/// How often a command adds what it did.
const EVERY: Duration = Duration::from_secs(1);
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
}

/// A device of this process, and what was told of it.
struct Watched {
    pool: Guid,
    leaf: Guid,
    counters: Arc<IoCounters>,
    told: Io,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
static QUIET: AtomicBool = AtomicBool::new(false);
/// When this process began to count.
static BEGUN: OnceLock<Duration> = OnceLock::new();

/// From now on the devices of a pool that is about to be opened are counted.
pub(crate) fn watch(candidate: &mut Candidate) {
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    for found in &mut candidate.devices {
        let counted = Arc::new(Counted::new(found.device.clone()));
        let counters = counted.counters().clone();
        watched.push(Watched { pool: candidate.guid, leaf: found.guid, counters, told: Io::default() });
        found.device = counted;
    }
    BEGUN.get_or_init(|| {
        // it ends with the process, which publishes the rest itself
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(EVERY);
                publish();
            }
        });
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
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut news: HashMap<Guid, Vec<(Guid, Io)>> = HashMap::new();
    for one in watched.iter_mut() {
        let now = Io::of(&one.counters);
        let new = now.since(&one.told);
        if !new.is_idle() {
            news.entry(one.pool).or_default().push((one.leaf, new));
            one.told = now;
        }
    }
    // closed devices have been told of for the last time
    watched.retain(|one| Arc::strong_count(&one.counters) > 1);
    for (pool, new) in news {
        // a pool that is not imported any more, or not yet, has no record
        if state::is_remembered(pool.0) {
            let _told = add(pool, new);
        }
    }
}

/// The record of a pool; an empty one if there is none.
pub(crate) fn record(pool: Guid) -> Record {
    let text = path(pool).and_then(|path| read(&mut File::open(path).ok()?));
    text.and_then(|text| decode(&text)).unwrap_or_else(|| Record { since: now(), ..Record::default() })
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

fn path(pool: Guid) -> Option<PathBuf> {
    Some(state::folder().ok()?.join(format!("{}.io", pool.0)))
}

fn read(file: &mut File) -> Option<String> {
    let mut text = String::new();
    file.take(RECORD_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Adds to the record of a pool; one process after the other.
fn add(pool: Guid, new: Vec<(Guid, Io)>) -> Option<()> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path(pool)?).ok()?;
    file.lock().ok()?;
    let before = read(&mut file).and_then(|text| decode(&text));
    let since = || BEGUN.get().copied().unwrap_or_else(now);
    let mut record = before.unwrap_or_else(|| Record { since: since(), ..Record::default() });
    for (leaf, io) in new {
        record.devices.entry(leaf).or_default().add(&io);
    }
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
    json!({ "since_ns": record.since.as_nanos() as u64, "devices": devices })
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
    Some(Record {
        since: Duration::from_nanos(value.get("since_ns")?.as_u64()?),
        devices: value.get("devices")?.as_object()?.iter().map(device).collect::<Option<_>>()?,
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
        let record = Record { since: Duration::from_nanos(1 << 60), devices: HashMap::from([(Guid(u64::MAX), io)]) };
        assert_eq!(decode(&encode(&record).to_string()), Some(record));
        for bad in
            ["", "{}", r#"{"since_ns":1,"devices":{"x":[[1,2,3],[1,2,3]]}}"#, r#"{"since_ns":1,"devices":{"1":[[1]]}}"#]
        {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
