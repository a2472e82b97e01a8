//! The figures of what commands did with the devices of imported pools since the import, and of what went wrong: those that a kernel would count.
//!
//! A command opens the pool itself, and what it counts goes with it. So that `zpool iostat` and `status` can tell of all of them, each adds it to a record
//! beside that of the import, `GUID.io` in the same folder: once a second while it runs, and at its end. Who looks meanwhile sees the work go
//! on; who is killed leaves out his last second. A record that cannot be written is no reason for a command to fail. Not counted are programs
//! that open pools through the library, and those that only look at the figures.
//!
//! What waits in queues now is in the record, too, by process and with the time at which it was told: what is older than a few seconds counts no more.
//!
//! The thread that does this once a second is also the deadman: it tells the program ([`Front::overdue`]), and posts an event, once for each, of I/Os that
//! a device does not end, and of txgs whose sync does not; with `zfs_deadman_failmode` `panic` such an I/O ends the process ([`Front::panic`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use base::{Env, Guid, ObjectId, Txg, tunable};
use pool::{Spa, Txgs};
use serde_json::{Map, Value, json};
use vdev::import::Candidate;
use vdev::{FollowedLeaf, IoFigures, LostBlock, Overdue, PoolErrors, QueueDepths, VdevErrors};

use crate::state::{self, Folder, Lock, Patience};
use crate::{Front, events, records};

/// How often a command adds what it did.
const EVERY: Duration = Duration::from_secs(1);
/// The time for which the queues of a process count as it told of them.
const QUEUES_HOLD: Duration = Duration::from_secs(3);
/// I/Os that a device does not end and that are told of one by one.
const OVERDUE_LINES: usize = 8;
/// The number of `panic` among the words of `zfs_deadman_failmode`.
const FAILMODE_PANIC: u64 = 2;
/// Blocks in a record that were found lost.
const LOST_MAX: usize = 4096;

/// The record of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When it was begun, since 1970.
    pub since: Duration,
    /// The devices, by leaf.
    pub devices: HashMap<Guid, IoFigures>,
    /// I/Os in the queues of the leaves, by process.
    queues: BTreeMap<u32, Queues>,
    /// The vdevs that have failed.
    pub errors: BTreeMap<Guid, VdevErrors>,
    /// Blocks that reads found lost, which are in the error log when the pool is next opened for a change.
    pub lost: BTreeSet<LostBlock>,
}

/// I/Os in the queues of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Queues {
    /// When it was told, since 1970.
    at: Duration,
    leaves: BTreeMap<Guid, QueueDepths>,
}

impl Record {
    /// Returns the I/Os in the queue of a leaf `now`.
    #[must_use]
    pub fn queue(&self, leaf: Guid, now: Duration) -> QueueDepths {
        let mut sum = QueueDepths::default();
        let fresh = self.queues.values().filter(|queues| now.saturating_sub(queues.at) < QUEUES_HOLD);
        fresh.filter_map(|queues| queues.leaves.get(&leaf)).for_each(|depths| sum.add(depths));
        sum
    }
}

/// A pool that this process has opened, and what was told of it.
struct Watched {
    pool: Guid,
    /// Its name on disk.
    name: String,
    devices: Vec<Device>,
    errors: Arc<PoolErrors>,
    told: BTreeMap<Guid, VdevErrors>,
    told_lost: BTreeSet<LostBlock>,
    /// Whether something waited in its queues when that was told.
    told_queues: bool,
    /// The program that is told of I/Os that do not end.
    front: Arc<dyn Front>,
    /// Its txgs, once it is open for writing.
    txgs: Weak<Txgs>,
}

struct Device {
    leaf: FollowedLeaf,
    told: IoFigures,
}

/// Figures to be added to a record.
#[derive(Default)]
struct News {
    devices: Vec<(Guid, IoFigures)>,
    errors: Vec<(Guid, VdevErrors)>,
    lost: Vec<LostBlock>,
    queues: BTreeMap<Guid, QueueDepths>,
    /// Whether what waits in queues is news, though it may be nothing.
    queues_changed: bool,
}

impl News {
    fn is_none(&self) -> bool {
        self.devices.is_empty() && self.errors.is_empty() && self.lost.is_empty() && !self.queues_changed
    }
}

impl Watched {
    /// Takes notice of leaves that were opened since.
    fn look(&mut self) {
        let new = self.errors.leaves().into_iter().skip(self.devices.len());
        self.devices.extend(new.map(|leaf| Device { leaf, told: IoFigures::default() }));
    }

    /// Takes the figures since the last report.
    fn take_news(&mut self, news: &mut News) {
        self.look();
        let mut waits = false;
        for device in &mut self.devices {
            let (now, depths) = (device.leaf.queue.figures(), device.leaf.queue.depths());
            let new = now.since(&device.told);
            if !new.is_idle() {
                news.devices.push((device.leaf.guid, new));
                device.told = now;
            }
            if !depths.is_empty() {
                news.queues.entry(device.leaf.guid).or_default().add(&depths);
                waits = true;
            }
        }
        news.queues_changed |= waits || self.told_queues;
        self.told_queues = waits;
        let errors = self.errors.figures();
        news.errors.extend(self.untold(&errors));
        self.told = errors;
        news.lost.extend(self.errors.lost().into_iter().filter(|block| self.told_lost.insert(*block)));
    }

    /// Makes events of the failures of its devices, and of slow I/O, since the last time.
    fn post_ereports(&self) {
        let reports = self.errors.take_ereports();
        if !reports.is_empty() {
            pool::events::post_ereports(&Env::system(), (&self.imported_as(), self.pool), &reports);
        }
        for leaf in self.devices.iter().map(|device| &device.leaf) {
            let slow = leaf.queue.take_slow();
            if !slow.is_empty() {
                let pool = self.imported_as();
                pool::events::post_overdue(&Env::system(), (&pool, self.pool), pool::events::DELAY, leaf, &slow);
            }
        }
    }

    /// Its name: it may have been imported under another one than it has on disk.
    fn imported_as(&self) -> String {
        let all = records::all(&|_| ()).ok();
        let imported = all.and_then(|all| all.into_iter().find(|one| one.guid == self.pool));
        imported.map_or_else(|| self.name.clone(), |one| one.name)
    }

    /// Returns those of these errors that were not reported.
    fn untold(&self, errors: &BTreeMap<Guid, VdevErrors>) -> Vec<(Guid, VdevErrors)> {
        let told = |vdev| self.told.get(vdev).copied().unwrap_or_default();
        let new = errors.iter().map(|(vdev, errors)| (*vdev, errors.since(&told(vdev))));
        new.filter(|(_, new)| !new.is_none()).collect()
    }

    /// Whether there can be more to tell.
    fn is_open(&self) -> bool {
        Arc::strong_count(&self.errors) > 1 || self.errors.may_grow()
    }
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
static QUIET: AtomicBool = AtomicBool::new(false);
/// When this process began to count.
static BEGUN: OnceLock<Duration> = OnceLock::new();

/// Follows what the leaves of a pool do that is about to be opened.
pub fn watch(candidate: &Candidate, front: &Arc<dyn Front>) {
    follow(candidate.guid, candidate.name.clone(), candidate.errors.clone(), front);
}

/// Follows what the leaves of a pool do that was just created, from now on and what making it took.
pub(crate) fn watch_created(spa: &Spa, front: &Arc<dyn Front>) {
    let tree = spa.zio().live_tree();
    // it follows the leaves that there are only if somebody counts
    tree.count_in(&Arc::default());
    follow(spa.guid(), spa.name().to_owned(), tree.errors().clone(), front);
    watch_txgs(spa);
}

fn follow(pool: Guid, name: String, errors: Arc<PoolErrors>, front: &Arc<dyn Front>) {
    let (told, told_lost) = (BTreeMap::new(), BTreeSet::new());
    watched().push(Watched {
        pool,
        name,
        devices: Vec::new(),
        errors,
        told,
        told_lost,
        told_queues: false,
        front: front.clone(),
        txgs: Weak::new(),
    });
    BEGUN.get_or_init(|| {
        // it ends with the process, which publishes the rest itself: without a thread, everything
        let publisher = || {
            let mut looked = Duration::ZERO;
            loop {
                std::thread::sleep(EVERY);
                looked += EVERY;
                if looked >= Duration::from_millis(tunable::ZFS_DEADMAN_CHECKTIME_MS.get()) {
                    looked = Duration::ZERO;
                    report_overdue();
                }
                publish();
            }
        };
        drop(std::thread::Builder::new().name("iostats".to_owned()).spawn(publisher));
        now()
    });
}

/// Follows the txgs of a pool that was opened for writing.
pub(crate) fn watch_txgs(spa: &Spa) {
    let mut watched = watched();
    if let Some(one) = watched.iter_mut().rev().find(|one| one.pool == spa.guid()) {
        one.txgs = Arc::downgrade(spa.txgs());
    }
}

/// Tells of I/Os that devices do not end, and of txgs whose sync does not (OpenZFS: `vdev_deadman`, `spa_deadman`).
fn report_overdue() {
    if tunable::ZFS_DEADMAN_ENABLED.get() == 0 {
        return;
    }
    let limit = Duration::from_millis(tunable::ZFS_DEADMAN_ZIOTIME_MS.get());
    let sync_limit = Duration::from_millis(tunable::ZFS_DEADMAN_SYNCTIME_MS.get());
    let (mut lines, mut hung) = (Vec::new(), None);
    for one in watched().iter_mut() {
        one.look();
        let front = one.front.clone();
        if let Some((txg, age)) = one.txgs.upgrade().and_then(|txgs| txgs.overdue_sync(sync_limit)) {
            let pool = one.imported_as();
            pool::events::post_overdue_sync(&Env::system(), (&pool, one.pool), txg, age);
            let seconds = age.as_secs_f64();
            lines
                .push((front.clone(), format!("{pool}: the sync of txg {txg} is not done after {seconds:.1} seconds")));
        }
        for leaf in one.devices.iter().map(|device| &device.leaf) {
            let FollowedLeaf { name, queue, .. } = leaf;
            let overdue = queue.overdue(limit);
            if !overdue.is_empty() {
                let pool = one.imported_as();
                let told = overdue.get(..OVERDUE_LINES).unwrap_or(&overdue);
                pool::events::post_overdue(&Env::system(), (&pool, one.pool), pool::events::DEADMAN, leaf, told);
                hung = Some((front.clone(), pool));
            }
            for Overdue { class, offset, len, age, .. } in overdue {
                let (class, seconds) = (class.name(), age.as_secs_f64());
                let line =
                    format!("{name}: {class} of {len} bytes at offset {offset} is not done after {seconds:.1} seconds");
                lines.push((front.clone(), line));
            }
        }
    }
    // told without the lock: the program may be slow to take it
    lines.iter().take(OVERDUE_LINES).for_each(|(front, line)| front.overdue(line));
    if let (Some(more @ 1..), Some((front, _))) = (lines.len().checked_sub(OVERDUE_LINES), lines.last()) {
        front.overdue(&format!("and {more} more"));
    }
    if tunable::ZFS_DEADMAN_FAILMODE.get() == FAILMODE_PANIC
        && let Some((front, pool)) = hung
    {
        // the last thing that can be told
        events::publish();
        front.panic(&format!("deadman determined I/O to pool '{pool}' is hung."));
    }
}

/// Stops reporting the work of this process.
pub fn keep_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Adds what this process did since it last told of it.
pub fn publish() {
    if QUIET.load(Ordering::Relaxed) {
        return;
    }
    let mut watched = watched();
    for one in watched.iter_mut() {
        one.look();
        one.post_ereports();
    }
    events::publish();
    let mut news: HashMap<Guid, News> = HashMap::new();
    // closed pools are told of for the last time
    watched.retain_mut(|one| {
        let again = one.is_open();
        one.take_news(news.entry(one.pool).or_default());
        again
    });
    for (pool, new) in news {
        // a pool that is not imported any more, or not yet, has no record
        if !new.is_none() && records::is_remembered(pool) {
            let _told = add(pool, new);
        }
    }
}

/// The record of a pool, an empty one if there is none, with the errors that this process has met and not told of yet.
#[must_use]
pub fn record(pool: Guid) -> Record {
    let watched = watched();
    let text = Folder::open().and_then(|folder| folder.file(&name(pool))).ok().and_then(|file| {
        // whoever writes it is waited for
        let _locked = state::lock(&file, Lock::Shared, Patience::Moment);
        read(&file)
    });
    let known = text.and_then(|text| decode(&text));
    let mut record = known.unwrap_or_else(|| Record { since: now(), ..Record::default() });
    let untold = watched.iter().filter(|one| one.pool == pool).flat_map(|one| one.untold(&one.errors.figures()));
    for (vdev, new) in untold {
        record.errors.entry(vdev).or_default().add(&new);
    }
    record.lost.extend(watched.iter().filter(|one| one.pool == pool).flat_map(|one| one.errors.lost()));
    record
}

/// Drops lost blocks from the record of a pool: they are in its error log now.
pub(crate) fn forget_lost(pool: Guid, lost: &BTreeSet<LostBlock>) {
    let _forgotten = update(pool, |record| record.lost.retain(|block| !lost.contains(block)));
}

/// Forgets the errors of those vdevs of a pool that are `meant`, and that operations of theirs were slow (OpenZFS: `vdev_clear`).
pub fn clear(pool: Guid, meant: impl Fn(Guid) -> bool) {
    for one in watched().iter_mut().filter(|one| one.pool == pool) {
        one.told.extend(one.errors.figures().into_iter().filter(|(vdev, _)| meant(*vdev)));
    }
    let _cleared = update(pool, |record| {
        record.errors.retain(|vdev, _| !meant(*vdev));
        for (_, io) in record.devices.iter_mut().filter(|(leaf, _)| meant(**leaf)) {
            io.clear_slow();
        }
    });
}

/// Keeps the record of a pool that got another identity.
pub(crate) fn rename(from: Guid, to: Guid) {
    watched().iter_mut().filter(|one| one.pool == from).for_each(|one| one.pool = to);
    drop(Folder::open().and_then(|folder| folder.rename(&name(from), &name(to))));
}

/// Forgets the record of a pool.
pub fn forget(pool: Guid) {
    drop(Folder::open().and_then(|folder| folder.remove(&name(pool))));
}

/// The time now, since 1970.
#[must_use]
pub fn now() -> Duration {
    Env::system().now()
}

fn watched() -> MutexGuard<'static, Vec<Watched>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file in the state folder.
fn name(pool: Guid) -> String {
    format!("{}.io", pool.0)
}

fn read(file: &File) -> Option<String> {
    String::from_utf8(state::read_all(file).ok()?).ok()
}

fn add(pool: Guid, new: News) -> Option<()> {
    update(pool, |record| {
        for (leaf, io) in new.devices {
            record.devices.entry(leaf).or_default().add(&io);
        }
        for (vdev, errors) in new.errors {
            record.errors.entry(vdev).or_default().add(&errors);
        }
        record.lost.extend(new.lost.into_iter().take(LOST_MAX.saturating_sub(record.lost.len())));
        let at = now();
        // those who were killed are forgotten here
        record.queues.retain(|_, queues| at.saturating_sub(queues.at) < QUEUES_HOLD);
        record.queues.remove(&std::process::id());
        if !new.queues.is_empty() {
            record.queues.insert(std::process::id(), Queues { at, leaves: new.queues });
        }
    })
}

/// Changes the record of a pool; one process after the other.
fn update(pool: Guid, change: impl FnOnce(&mut Record)) -> Option<()> {
    let mut file = Folder::open().ok()?.shared_file(&name(pool)).ok()?;
    state::lock(&file, Lock::Exclusive, Patience::Moment).ok()?;
    let before = read(&file).and_then(|text| decode(&text));
    let since = || BEGUN.get().copied().unwrap_or_else(now);
    let mut record = before.unwrap_or_else(|| Record { since: since(), ..Record::default() });
    change(&mut record);
    let text = encode(&record).to_string();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.write_all(text.as_bytes()).ok()?;
    file.set_len(text.len() as u64).ok()
}

fn encode(record: &Record) -> Value {
    let devices = record.devices.iter().map(|(leaf, io)| (leaf.0.to_string(), json!(io.to_sparse())));
    let errors = |(vdev, e): (&Guid, &VdevErrors)| (vdev.0.to_string(), json!([e.read, e.write, e.checksum]));
    let depths = |(leaf, depths): (&Guid, &QueueDepths)| (leaf.0.to_string(), json!(depths.0.as_flattened()));
    let queues = record.queues.iter().map(|(process, queues)| {
        let leaves: Map<String, Value> = queues.leaves.iter().map(depths).collect();
        (process.to_string(), json!({ "at_ns": queues.at.as_nanos() as u64, "leaves": leaves }))
    });
    let lost = |LostBlock { objset, object, level, blkid, birth }: &LostBlock| {
        json!([objset.0, object.0, level.cast_unsigned(), blkid, birth.0])
    };
    json!({
        "lost": record.lost.iter().map(lost).collect::<Vec<_>>(),
        "since_ns": record.since.as_nanos() as u64,
        "io": devices.collect::<Map<String, Value>>(),
        "errors": record.errors.iter().map(errors).collect::<Map<String, Value>>(),
        "queues": queues.collect::<Map<String, Value>>(),
    })
}

fn decode(text: &str) -> Option<Record> {
    let value: Value = serde_json::from_str(text).ok()?;
    let words = |value: &Value| value.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>();
    let guid = |text: &String| Some(Guid(text.parse().ok()?));
    let time = |value: &Value, key: &str| Some(Duration::from_nanos(value.get(key)?.as_u64()?));
    let device = |(leaf, io): (&String, &Value)| Some((guid(leaf)?, IoFigures::from_sparse(&words(io)?)?));
    let errors = |(vdev, counts): (&String, &Value)| {
        let count = |n: usize| counts.get(n)?.as_u64();
        Some((guid(vdev)?, VdevErrors { read: count(0)?, write: count(1)?, checksum: count(2)? }))
    };
    let depths = |(leaf, depths): (&String, &Value)| {
        let mut of_leaf = QueueDepths::default();
        let words = words(depths)?;
        of_leaf.0.as_flattened_mut().iter_mut().zip(words).for_each(|(to, from)| *to = from);
        Some((guid(leaf)?, of_leaf))
    };
    let queues = |(process, queues): (&String, &Value)| {
        let leaves = queues.get("leaves")?.as_object()?.iter().map(depths).collect::<Option<_>>()?;
        Some((process.parse().ok()?, Queues { at: time(queues, "at_ns")?, leaves }))
    };
    let lost = |block: &Value| match *words(block)? {
        [objset, object, level, blkid, birth] => {
            let (objset, object) = (ObjectId(objset), ObjectId(object));
            Some(LostBlock { objset, object, level: level.cast_signed(), blkid, birth: Txg(birth) })
        }
        _ => None,
    };
    Some(Record {
        // records of 0.1 have none
        lost: value.get("lost").map_or(Some(BTreeSet::new()), |all| all.as_array()?.iter().map(lost).collect())?,
        since: time(&value, "since_ns")?,
        devices: value.get("io")?.as_object()?.iter().map(device).collect::<Option<_>>()?,
        errors: value.get("errors")?.as_object()?.iter().map(errors).collect::<Option<_>>()?,
        queues: value.get("queues")?.as_object()?.iter().map(queues).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let io = IoFigures::from_sparse(&[0, 7, 5, u64::MAX, 700, 1]).unwrap();
        let depths = QueueDepths([[1, 2], [3, 4], [0; 2], [0; 2], [0, 1], [0; 2], [0; 2]]);
        let at = Duration::from_secs(1_000_000);
        let record = Record {
            since: Duration::from_nanos(1 << 60),
            devices: HashMap::from([(Guid(u64::MAX), io)]),
            errors: BTreeMap::from([(Guid(7), VdevErrors { read: 1, write: u64::MAX, checksum: 3 })]),
            lost: BTreeSet::from([LostBlock {
                objset: ObjectId(1),
                object: ObjectId(2),
                level: -1,
                blkid: u64::MAX,
                birth: Txg(9),
            }]),
            queues: BTreeMap::from([(4, Queues { at, leaves: BTreeMap::from([(Guid(9), depths)]) })]),
        };
        assert_eq!(decode(&encode(&record).to_string()), Some(record.clone()));
        // of who was killed nothing is known after a while
        assert_eq!(record.queue(Guid(9), at + EVERY), depths);
        assert!(record.queue(Guid(9), at + QUEUES_HOLD).is_empty() && record.queue(Guid(8), at).is_empty());
        assert!(decode(r#"{"since_ns":1,"io":{},"errors":{"1":[1,2,3]},"queues":{}}"#).is_some());
        for bad in [
            "",
            "{}",
            r#"{"since_ns":1,"io":{"x":[1,2]},"errors":{},"queues":{}}"#,
            r#"{"since_ns":1,"io":{"1":[1]},"errors":{},"queues":{}}"#,
            r#"{"since_ns":1,"io":{},"errors":{"1":[1,-2,3]},"queues":{}}"#,
            r#"{"since_ns":1,"io":{},"errors":{},"queues":{"1":{}}}"#,
            r#"{"since_ns":1,"io":{}}"#,
            r#"{"since_ns":1,"io":{},"errors":{},"queues":{},"lost":[[1,2,3,4]]}"#,
        ] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
