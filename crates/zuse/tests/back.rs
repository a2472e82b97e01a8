//! Devices that come back into an open pool: they are brought up to date by themselves, and events tell of it.
#![allow(clippy::unwrap_used)]

#[path = "support/shelf.rs"]
mod shelf;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::tunable::{ZFS_SCAN_SUSPEND_PROGRESS, ZFS_TXG_TIMEOUT};
use nvlist::NvList;
use ondisk::scan::{ScanFunc, ScanState};
use pool::testing::{BLOCK, noise, object, write};
use pool::{Spa, events};
use vdev::{Health, VdevAux, VdevState};

use shelf::Shelf;

/// The ring of events and the tunables are those of the process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    ZFS_TXG_TIMEOUT.set(1);
    alone
}

/// A mirror of two disks, and nothing else.
fn mirror() -> (MutexGuard<'static, ()>, Shelf, Arc<Spa>) {
    let (alone, shelf) = (alone(), Shelf::new(2));
    let spa = shelf.create("mirror d0 d1");
    (alone, shelf, spa)
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn state(spa: &Arc<Spa>, leaf: usize) -> VdevState {
    spa.tree().leaves()[leaf].health().state
}

fn is_whole(spa: &Arc<Spa>) -> bool {
    spa.tree().leaves().iter().all(|leaf| !leaf.is_stale() && leaf.is_usable())
}

/// The events of the pool since the one with number `seen`, without what is the same in all.
fn told(seen: u64, class: &str) -> Vec<NvList> {
    let class = |event: &NvList| event.get_str("class").is_some_and(|own| own.ends_with(class));
    events::since(seen).events.into_iter().filter(class).collect()
}

fn last_event() -> u64 {
    events::since(0).last
}

fn scan(spa: &Arc<Spa>) -> Option<(ScanFunc, ScanState, u64)> {
    spa.view().unwrap().scan().unwrap().map(|phys| (phys.func, phys.state, phys.max_txg.0))
}

#[test]
fn a_device_that_comes_back_is_resilvered_by_itself() {
    let _alone = alone();
    for (words, count) in [("mirror d0 d1", 2), ("raidz1 d0 d1 d2", 3)] {
        let shelf = Shelf::new(count);
        let spa = shelf.create(words);
        let file = object(&spa);
        write(&spa, &file, 8, 1).unwrap();
        for n in [1, 0] {
            let seen = last_event();
            shelf.disks[n].pull(true);
            write(&spa, &file, 8, 10 + n as u64).unwrap();
            assert!(state(&spa, n) == VdevState::Removed && spa.tree().leaves()[n].is_stale());
            shelf.disks[n].push();
            wait_for("the resilver", || is_whole(&spa));
            wait_for("its end", || told(seen, "resilver_finish").len() == 1);
            assert_eq!(told(seen, "resilver_start").len(), 1);
        }
        // what the first one missed it has: it alone gives everything
        shelf.disks[0].pull(true);
        spa.zio().arc().clear();
        assert!(file.read_vec(0, 8 * BLOCK).unwrap() == noise(8, 10), "{words}");
        shelf.disks[0].push();
        spa.export().unwrap();
    }
}

/// Another device comes back while one is resilvered: it has to wait where the pool has `resilver_defer`; else the resilver begins anew.
#[test]
fn a_second_device_waits_or_the_resilver_begins_anew() {
    let _alone = alone();
    for defers in [true, false] {
        let shelf = Shelf::new(4);
        let spa = shelf.create_without("mirror d0 d1 mirror d2 d3", if defers { &[] } else { &["resilver_defer"] });
        let file = object(&spa);
        write(&spa, &file, 16, 1).unwrap();
        let seen = last_event();
        shelf.disks[1].pull(true);
        shelf.disks[3].pull(true);
        write(&spa, &file, 16, 2).unwrap();
        ZFS_SCAN_SUSPEND_PROGRESS.set(1);
        shelf.disks[1].push();
        wait_for("the first resilver", || told(seen, "resilver_start").len() == 1);
        // it is told before its txg is on disk
        wait_for("its record", || scan(&spa).is_some());
        let first = scan(&spa);
        write(&spa, &file, 16, 3).unwrap();
        shelf.disks[3].push();
        wait_for("the second device", || state(&spa, 3) == VdevState::Healthy);
        if defers {
            std::thread::sleep(Duration::from_millis(500));
            assert_eq!((scan(&spa), told(seen, "resilver_start").len()), (first, 1));
        } else {
            wait_for("another beginning", || told(seen, "resilver_start").len() == 2);
        }
        ZFS_SCAN_SUSPEND_PROGRESS.set(0);
        wait_for("the end", || is_whole(&spa));
        wait_for("all ends", || matches!(scan(&spa), Some((ScanFunc::Resilver, ScanState::Finished, _))));
        assert_eq!(told(seen, "resilver_start").len(), 2);
        assert_eq!(told(seen, "resilver_finish").len(), if defers { 2 } else { 1 });
        spa.export().unwrap();
    }
}

/// A scrub makes room for the resilver, as in OpenZFS.
#[test]
fn a_resilver_takes_the_place_of_a_scrub() {
    let (_alone, shelf, spa) = mirror();
    let file = object(&spa);
    write(&spa, &file, 8, 1).unwrap();
    ZFS_SCAN_SUSPEND_PROGRESS.set(1);
    spa.scrub(pool::ScrubRange::default()).unwrap();
    shelf.disks[1].pull(true);
    write(&spa, &file, 8, 2).unwrap();
    shelf.disks[1].push();
    wait_for("the resilver", || matches!(scan(&spa), Some((ScanFunc::Resilver, ..))));
    ZFS_SCAN_SUSPEND_PROGRESS.set(0);
    wait_for("the end", || is_whole(&spa));
    spa.export().unwrap();
}

#[test]
fn changes_of_state_are_told() {
    let (_alone, shelf, spa) = mirror();
    let guid = spa.tree().leaves()[1].guid();
    let mut seen = last_event();
    let mut changes = || {
        let all = told(seen, "resource.fs.zfs.statechange");
        seen = last_event();
        let states = |event: &NvList| {
            assert_eq!((event.get_str("pool"), event.get_str("vdev_path")), (Some("t"), Some("d1")));
            assert_eq!(event.get_u64("vdev_guid"), Some(guid.0));
            (event.get_u64("vdev_laststate").unwrap(), event.get_u64("vdev_state").unwrap())
        };
        all.iter().map(states).collect::<Vec<_>>()
    };
    assert_eq!(changes(), [], "it was opened as it is");
    let (offline, removed, faulted, healthy) = (2, 3, 5, 7);
    shelf.disks[1].pull(true);
    wait_for("that it is gone", || state(&spa, 1) == VdevState::Removed);
    spa.sync().unwrap();
    assert_eq!(changes(), [(healthy, removed)]);
    shelf.disks[1].push();
    wait_for("that it is back", || state(&spa, 1) == VdevState::Healthy);
    spa.sync().unwrap();
    assert_eq!(changes(), [(removed, healthy)]);

    let before = last_event();
    spa.offline_vdev(guid, false).unwrap();
    assert_eq!(changes(), [(healthy, offline)]);
    assert!(told(before, "vdev_online").is_empty());
    assert_eq!(spa.online_vdev(guid).unwrap(), VdevState::Healthy);
    assert_eq!(changes(), [(offline, healthy)]);
    let online = told(before, "sysevent.fs.zfs.vdev_online");
    assert_eq!(online.iter().map(|event| event.get_u64("vdev_guid")).collect::<Vec<_>>(), [Some(guid.0)]);
    assert_eq!((online[0].get_u64("vdev_state"), online[0].get_str("vdev_path")), (Some(healthy), Some("d1")));
    // it is online already
    let before = last_event();
    spa.online_vdev(guid).unwrap();
    assert!(told(before, "vdev_online").is_empty());

    spa.fault_vdev(guid, false).unwrap();
    assert_eq!(changes(), [(healthy, faulted)]);
    let before = last_event();
    spa.clear(None).unwrap();
    assert_eq!(changes(), [(faulted, healthy)]);
    let clear = told(before, "sysevent.fs.zfs.vdev_clear");
    assert_eq!(clear.iter().map(|event| event.get_u64("vdev_guid")).collect::<Vec<_>>(), [Some(guid.0)]);
    // nothing was wrong
    let before = last_event();
    spa.clear(None).unwrap();
    assert!(told(before, "vdev_clear").is_empty() && changes().is_empty());
    spa.export().unwrap();
}

/// With `zpool reopen -n` a scrub that is under way goes on.
#[test]
fn reopen_begins_a_resilver_unless_a_scrub_shall_go_on() {
    let (_alone, shelf, spa) = mirror();
    let file = object(&spa);
    write(&spa, &file, 8, 1).unwrap();
    shelf.disks[1].fail_writes(3);
    write(&spa, &file, 8, 2).unwrap();
    assert_eq!((state(&spa, 1), spa.tree().leaves()[1].is_stale()), (VdevState::Healthy, true));
    ZFS_SCAN_SUSPEND_PROGRESS.set(1);
    spa.scrub(pool::ScrubRange::default()).unwrap();
    spa.reopen(false).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(matches!(scan(&spa), Some((ScanFunc::Scrub, ScanState::Scanning, _))));
    spa.reopen(true).unwrap();
    wait_for("the resilver", || matches!(scan(&spa), Some((ScanFunc::Resilver, ..))));
    ZFS_SCAN_SUSPEND_PROGRESS.set(0);
    wait_for("the end", || is_whole(&spa));
    spa.export().unwrap();
}

/// A device that was pulled out is told to be faulted; when it is back, it can be cleared.
#[test]
fn a_device_that_was_faulted_while_it_was_away_can_be_cleared() {
    let (_alone, shelf, spa) = mirror();
    let guid = spa.tree().leaves()[1].guid();
    shelf.disks[1].pull(true);
    wait_for("that it is gone", || state(&spa, 1) == VdevState::Removed);
    assert_eq!(spa.fault_vdev(guid, false).unwrap(), VdevState::Faulted);
    shelf.disks[1].push();
    spa.clear(None).unwrap();
    assert_eq!(state(&spa, 1), VdevState::Healthy);
    spa.export().unwrap();
}

/// OpenZFS: `vdev_clear` opens a device again that is offline, which then still is.
#[test]
fn what_is_offline_is_not_cleared() {
    let (_alone, shelf, spa) = mirror();
    let guid = spa.tree().leaves()[1].guid();
    spa.offline_vdev(guid, false).unwrap();
    spa.close().unwrap();
    drop(spa);
    let spa = shelf.import().unwrap();
    let health = || spa.tree().leaf(guid).unwrap().health();
    assert_eq!(health().state, VdevState::Offline);
    spa.clear(None).unwrap();
    assert_eq!((health().state, health().aux), (VdevState::Offline, VdevAux::None));
    assert_eq!(spa.online_vdev(guid).unwrap(), VdevState::Healthy);
    spa.export().unwrap();
}

/// The administrator gave a device up that alone had something: it is degraded for that reason, also after it was away.
#[test]
fn a_device_is_degraded_for_the_same_reason_when_it_is_back() {
    let (_alone, shelf, spa) = mirror();
    let file = object(&spa);
    let guid = spa.tree().leaves()[0].guid();
    shelf.disks[1].pull(true);
    write(&spa, &file, 8, 1).unwrap();
    assert_eq!(spa.fault_vdev(guid, false).unwrap(), VdevState::Degraded);
    shelf.disks[1].push();
    wait_for("the resilver", || is_whole(&spa));
    shelf.disks[0].pull(true);
    write(&spa, &file, 8, 2).unwrap();
    assert_eq!(state(&spa, 0), VdevState::Removed);
    shelf.disks[0].push();
    wait_for("that it is back", || is_whole(&spa));
    let degraded = Health { state: VdevState::Degraded, aux: VdevAux::External };
    assert_eq!(spa.tree().leaf(guid).unwrap().health(), degraded);
    // and if the pool was opened anew meanwhile
    shelf.disks[0].pull(true);
    write(&spa, &file, 8, 3).unwrap();
    spa.close().unwrap();
    drop((spa, file));
    shelf.disks[0].push();
    let spa = shelf.import().unwrap();
    assert_eq!(spa.tree().leaf(guid).unwrap().health(), degraded);
    spa.export().unwrap();
}
