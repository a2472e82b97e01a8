//! Pools of a machine whose devices are gone: they are shown, cleared, closed and exported while requests wait.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use base::Errno;
use control::{Caller, Ioc};
use nvlist::NvList;
use site::Session;
use support::{create, in_own_state, list, machine, new_fs};

/// No wait of these tests is as long.
const LONG: Duration = Duration::from_secs(60);

/// Takes the devices of the pool away, and brings them back.
fn move_devices(dir: &Path, are_away: bool) {
    let away = dir.join("away");
    std::fs::create_dir_all(&away).unwrap();
    for (here, there) in ["a", "b"].map(|name| (dir.join(name), away.join(name))) {
        let (from, to) = if are_away { (here, there) } else { (there, here) };
        std::fs::rename(from, to).unwrap();
    }
}

/// Waits until the pool is suspended.
fn wait_suspended(session: &Session) -> NvList {
    let begun = Instant::now();
    loop {
        let stats = session.call(Ioc::PoolStats, "t", &NvList::new()).unwrap();
        if stats.contains("suspended") {
            return stats;
        }
        assert!(begun.elapsed() < LONG, "it is not suspended");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_suspended_pool_is_shown_and_keeps_nobody_waiting() {
    in_own_state("a_suspended_pool_is_shown_and_keeps_nobody_waiting", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        move_devices(dir, true);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| new_fs(&session, "t/meanwhile"));
            let other = machine.own_session(Caller::default());
            let stats = wait_suspended(&other);
            assert_eq!(stats.get_u64("suspended"), Some(0));
            let config = other.call(Ioc::PoolConfigs, "", &NvList::new()).unwrap();
            assert_eq!(config.get_nvlist("t").unwrap().get_u64("state"), Some(0));
            let health = other.call(Ioc::PoolGetProps, "t", &NvList::new()).unwrap();
            assert_eq!(health.get_nvlist("health").unwrap().get_str("value"), Some("SUSPENDED"));
            assert_eq!(new_fs(&other, "t/none"), Err(Errno::EAGAIN));
            let listed = other.call(Ioc::DatasetListNext, "t", &NvList::new());
            assert_eq!(listed.unwrap_err().errno, Errno::EAGAIN);
            assert!(!waiting.is_finished());
            move_devices(dir, false);
            other.call(Ioc::Clear, "t", &NvList::new()).unwrap();
            waiting.join().unwrap().unwrap();
        });
        assert_eq!(session.call(Ioc::DatasetListNext, "t", &NvList::new()).unwrap().len(), 1);
    });
}

#[test]
fn a_suspended_pool_can_be_closed_while_requests_wait_for_its_devices() {
    in_own_state("a_suspended_pool_can_be_closed_while_requests_wait_for_its_devices", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        move_devices(dir, true);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| new_fs(&session, "t/meanwhile"));
            // it is suspended before the close or while that waits for the request
            let closing = scope.spawn(|| machine.close("t").map_err(|e| e.errno));
            let begun = Instant::now();
            while !(waiting.is_finished() && closing.is_finished()) {
                assert!(begun.elapsed() < LONG, "the pool is wedged");
                thread::sleep(Duration::from_millis(20));
            }
        });
        assert!(machine.open_pools().is_empty());
        move_devices(dir, false);
        new_fs(&session, "t/after").unwrap();
    });
}

#[test]
fn a_failed_export_leaves_no_dead_pool() {
    in_own_state("a_failed_export_leaves_no_dead_pool", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        let props = list(&[("failmode", 1u64.into())]);
        session.call(Ioc::PoolSetProps, "t", &list(&[("props", props.into())])).unwrap();
        new_fs(&session, "t/before").unwrap();
        move_devices(dir, true);
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap_err();
        assert!(machine.open_pools().is_empty());
        move_devices(dir, false);
        new_fs(&session, "t/after").unwrap();
        session.call(Ioc::PoolExport, "t", &NvList::new()).unwrap();
    });
}

#[test]
fn an_export_that_waits_for_devices_keeps_nobody_else_waiting() {
    in_own_state("an_export_that_waits_for_devices_keeps_nobody_else_waiting", |dir| {
        let (machine, session) = machine();
        create(&session, dir);
        new_fs(&session, "t/before").unwrap();
        let export = || session.call(Ioc::PoolExport, "t", &NvList::new()).map_err(|e| e.errno);
        let other = machine.own_session(Caller::default());
        // it goes on when the pool is cleared, and fails when it is closed
        for cleared in [false, true] {
            move_devices(dir, true);
            thread::scope(|scope| {
                let exporting = scope.spawn(export);
                wait_suspended(&other);
                assert_eq!(new_fs(&other, "t/none"), Err(Errno::EAGAIN));
                assert!(!exporting.is_finished());
                if cleared {
                    move_devices(dir, false);
                    other.call(Ioc::Clear, "t", &NvList::new()).unwrap();
                } else {
                    machine.close("t").unwrap();
                }
                assert_eq!(exporting.join().unwrap().is_ok(), cleared);
            });
            assert!(machine.open_pools().is_empty());
            if !cleared {
                move_devices(dir, false);
                new_fs(&session, "t/after").unwrap();
            }
        }
        assert_eq!(new_fs(&session, "t/none"), Err(Errno::ENOENT));
    });
}
