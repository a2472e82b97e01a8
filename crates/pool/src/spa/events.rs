//! Events: pools created, imported and exported, vdevs added and removed, devices that change their state, scans, history, errors of devices.
//!
//! An event is a name-value list with OpenZFS's class (`sysevent.fs.zfs.*`, `resource.fs.zfs.*`, `ereport.fs.zfs.*`) and keys, a time and a number. A ring of the process
//! keeps the last ones of all its pools (`zfs_zevent_len_max`); a reader asks for those after the last number it has seen and learns how many it
//! missed. An event says what has been done, not that it is on disk: after a crash the pool may be a txg older than its last event.
//!
//! Posting costs a lock and never fails. OpenZFS: `spa_event_notify`, `zfs_ereport_post`, `zfs_zevent_post`.

use std::collections::VecDeque;
use std::time::Duration;

use base::{Env, Errno, Guid, Txg, tunable};
use nvlist::NvList;
use parking_lot::{Condvar, Mutex};
use vdev::{Direction, Ereport, FaultKind, FollowedLeaf, IoClass, Leaf, Overdue};

use super::Spa;

/// The key of an event's class.
pub const CLASS: &str = "class";
/// The key of an event's time: seconds since 1970, nanoseconds.
pub const TIME: &str = "time";
/// The key of an event's number, which grows by one.
pub const EID: &str = "eid";
/// The key of the name of the pool that an event is about.
pub const POOL: &str = "pool";

/// The last events of a process.
#[derive(Default)]
struct Ring {
    /// The number of the newest event.
    last: u64,
    events: VecDeque<NvList>,
}

static RING: Mutex<Ring> = Mutex::new(Ring { last: 0, events: VecDeque::new() });
static POSTED: Condvar = Condvar::new();

/// Events that a reader had not seen.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// The events, oldest first.
    pub events: Vec<NvList>,
    /// The number of events that the ring no longer has.
    pub dropped: u64,
    /// The number of the newest event: to be given with the next question.
    pub last: u64,
}

/// Returns the events of this process after event `seen`; 0 for all that are kept.
#[must_use]
pub fn since(seen: u64) -> News {
    RING.lock().since(seen)
}

/// Waits until there are events after event `seen`, at most for `limit`, and returns them.
#[must_use]
pub fn wait_since(seen: u64, limit: std::time::Duration) -> News {
    let mut ring = RING.lock();
    if ring.last <= seen {
        POSTED.wait_for(&mut ring, limit);
    }
    ring.since(seen)
}

/// Forgets the events of this process; returns their number.
pub fn clear() -> u64 {
    let mut ring = RING.lock();
    let count = ring.events.len() as u64;
    ring.events.clear();
    count
}

impl Ring {
    fn since(&self, seen: u64) -> News {
        let new = self.last.saturating_sub(seen);
        let kept = new.min(self.events.len() as u64);
        let events = self.events.iter().skip(self.events.len() - kept as usize).cloned().collect();
        News { events, dropped: new - kept, last: self.last }
    }

    fn post(&mut self, mut event: NvList, env: &Env, max: u64) {
        let now = env.now();
        self.last += 1;
        event.insert(TIME, vec![now.as_secs() as i64, i64::from(now.subsec_nanos())]);
        event.insert(EID, self.last);
        self.events.push_back(event);
        while self.events.len() as u64 > max {
            self.events.pop_front();
        }
    }
}

/// Posts an event of the pool `name`: `class` is behind `sysevent.fs.zfs.`.
pub fn post(env: &Env, (name, guid): (&str, Guid), class: &str, more: &NvList) {
    let mut event = common(&format!("sysevent.fs.zfs.{class}"), name, guid);
    more.iter().for_each(|(name, value)| event.insert(name, value.clone()));
    put(env, event);
}

/// Posts failures of the devices of the pool `name` (OpenZFS: `zfs_ereport_start`).
pub fn post_ereports(env: &Env, (name, guid): (&str, Guid), reports: &[Ereport]) {
    for report in reports {
        let (class, errno) = match report.fault.kind {
            FaultKind::Checksum => ("checksum", Errno::ECKSUM),
            FaultKind::Io => ("io", Errno::EIO),
            FaultKind::Missing => continue,
        };
        let mut event = ereport(class, (name, guid), (report.fault.leaf, &report.name));
        event.insert("vdev_read_errors", report.errors.read);
        event.insert("vdev_write_errors", report.errors.write);
        event.insert("vdev_cksum_errors", report.errors.checksum);
        event.insert("zio_err", errno);
        event.insert("zio_offset", report.fault.offset);
        event.insert("zio_size", report.fault.len);
        put(env, event);
    }
}

/// The class of I/Os that a device has not done after a long time (OpenZFS: `zio_deadman`).
pub const DEADMAN: &str = "deadman";
/// The class of I/Os that a device has done, slowly.
pub const DELAY: &str = "delay";

/// Posts I/Os of a leaf of a pool that its device has, or had, for too long: of class [`DEADMAN`] or [`DELAY`].
pub fn post_overdue(env: &Env, pool: (&str, Guid), class: &str, leaf: &FollowedLeaf, overdue: &[Overdue]) {
    for one in overdue {
        let mut event = ereport(class, pool, (leaf.guid, &leaf.name));
        let priority = IoClass::ALL.iter().position(|class| *class == one.class).unwrap_or_default();
        event.insert("zio_err", 0i32);
        event.insert("zio_delta", u64::try_from(one.age.as_nanos()).unwrap_or(u64::MAX));
        // `ZIO_TYPE_READ`, `ZIO_TYPE_WRITE`
        event.insert("zio_type", if one.direction == Direction::Read { 1u32 } else { 2 });
        event.insert("zio_priority", priority as u32);
        event.insert("zio_offset", one.offset);
        event.insert("zio_size", one.len);
        put(env, event);
    }
}

/// Posts the txg of a pool whose sync is not done after the time `age`, as class [`DEADMAN`].
pub fn post_overdue_sync(env: &Env, pool: (&str, Guid), txg: Txg, age: Duration) {
    let mut event = pool_ereport(DEADMAN, pool, None);
    event.insert("zio_txg", txg.0);
    event.insert("zio_delta", u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
    put(env, event);
}

/// The keys that all reports of a leaf have.
fn ereport(class: &str, pool: (&str, Guid), (leaf, path): (Guid, &str)) -> NvList {
    let mut event = pool_ereport(class, pool, Some(leaf));
    event.insert("vdev_guid", leaf.0);
    event.insert("vdev_path", path);
    event
}

/// The keys that all reports have, of a vdev or of the pool as such.
fn pool_ereport(class: &str, (name, guid): (&str, Guid), vdev: Option<Guid>) -> NvList {
    let mut detector = NvList::new();
    detector.insert("version", 0u8);
    detector.insert("scheme", "zfs");
    detector.insert("pool", guid.0);
    if let Some(vdev) = vdev {
        detector.insert("vdev", vdev.0);
    }
    let mut event = common(&format!("ereport.fs.zfs.{class}"), name, guid);
    event.insert("detector", detector);
    event
}

/// The keys that all events have.
fn common(class: &str, name: &str, guid: Guid) -> NvList {
    let mut event = NvList::new();
    event.insert("version", 0u8);
    event.insert(CLASS, class);
    event.insert(POOL, name);
    event.insert("pool_guid", guid.0);
    // `POOL_STATE_ACTIVE`, `SPA_LOAD_NONE`
    event.insert("pool_state", 0u64);
    event.insert("pool_context", 0i32);
    event
}

fn put(env: &Env, event: NvList) {
    tracing::info!(target: "zuse::event", pool = event.get_str(POOL), class = event.get_str(CLASS));
    RING.lock().post(event, env, tunable::ZFS_ZEVENT_LEN_MAX.get());
    POSTED.notify_all();
}

impl Spa {
    /// Posts an event of this pool (OpenZFS: `spa_event_notify`).
    pub fn notify(&self, class: &str, more: &NvList) {
        post(self.env(), (self.name(), self.guid()), class, more);
    }

    /// Posts an event about one of its vdevs.
    pub(crate) fn notify_vdev(&self, class: &str, guid: Guid, path: Option<&str>) {
        let mut more = NvList::new();
        more.insert("vdev_guid", guid.0);
        if let Some(path) = path {
            more.insert("vdev_path", path);
        }
        self.notify(class, &more);
    }

    /// Posts an event about one of its leaves, of class `sysevent` or `resource` (OpenZFS: `zfs_event_create`).
    pub(crate) fn notify_leaf(&self, kind: &str, class: &str, leaf: &Leaf, more: &[(&str, u64)]) {
        let mut event = common(&format!("{kind}.fs.zfs.{class}"), self.name(), self.guid());
        event.insert("vdev_guid", leaf.guid().0);
        event.insert("vdev_state", leaf.health().state.number());
        if let Some(path) = leaf.path() {
            event.insert("vdev_path", path);
        }
        more.iter().for_each(|(name, value)| event.insert(*name, *value));
        put(self.env(), event);
    }

    /// Posts an entry of the history (OpenZFS: `spa_history_log_notify`).
    pub(crate) fn notify_history(&self, record: &NvList) {
        let mut more = NvList::new();
        for (from, to) in HISTORY {
            if let Some(value) = record.get(from) {
                more.insert(*to, value.clone());
            }
        }
        self.notify("history_event", &more);
    }
}

/// The keys of a record of the history, and those of its event.
const HISTORY: &[(&str, &str)] = &[
    ("history command", "history_command"),
    ("history zone", "history_zone"),
    ("history hostname", "history_hostname"),
    ("dsname", "history_dsname"),
    ("history internal str", "history_internal_str"),
    ("ioctl", "history_ioctl"),
    ("internal_name", "history_internal_name"),
    ("dsid", "history_dsid"),
    ("history txg", "history_txg"),
    ("history time", "history_time"),
    ("history who", "history_who"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_the_last_ones_and_tells_of_the_others() {
        let (mut ring, env) = (Ring::default(), Env::seeded(1));
        for n in 0..5u64 {
            let mut event = common("sysevent.fs.zfs.config_sync", "t", Guid(7));
            event.insert("n", n);
            ring.post(event, &env, 3);
        }
        let numbers = |news: &News| news.events.iter().map(|e| e.get_u64("n").unwrap()).collect::<Vec<_>>();
        let all = ring.since(0);
        assert_eq!((numbers(&all), all.dropped, all.last), (vec![2, 3, 4], 2, 5));
        assert_eq!(all.events[0].get_u64(EID), Some(3));
        let some = ring.since(4);
        assert_eq!((numbers(&some), some.dropped), (vec![4], 0));
        assert!(ring.since(5).events.is_empty());
    }
}
