//! Two commands on one pool: the second waits for the first, and names it if that takes longer than it may wait.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use support::Session;
use vdev::FileDevice;

/// A pool of one device, and the device.
fn pool() -> (Session, tempfile::TempDir, String) {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let device = dir.path().join("a").to_str().unwrap().to_owned();
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "tank", &device]);
    (session, dir, device)
}

#[test]
fn a_command_waits_for_another_to_be_done() {
    let (session, _dir, device) = pool();
    let other = FileDevice::open_read_write(Path::new(&device)).unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let command = scope.spawn(|| session.run(&["zfs", "create", "tank/a"]));
        std::thread::sleep(Duration::from_millis(700));
        assert!(!command.is_finished());
        drop(other);
        let run = command.join().unwrap();
        assert_eq!((run.code, run.err.as_str()), (0, ""));
    });
    assert!(began.elapsed() >= Duration::from_millis(700));
    assert_eq!(session.ok(&["zfs", "list", "-H", "-o", "name"]), "tank\ntank/a\n");
}

#[test]
fn two_pools_that_are_imported_at_a_time_do_not_take_one_name() {
    let (elsewhere, _first, a) = pool();
    elsewhere.ok(&["zpool", "export", "tank"]);
    let (session, _second, b) = pool();
    session.ok(&["zpool", "export", "tank"]);
    let images = || [&a, &b].map(|device| std::fs::read(device).unwrap());
    for extra in [&["-o", "readonly=on"][..], &[]] {
        let before = images();
        let slowly = ["-o", "vdev_latency_ms=10", "zpool", "import", "-N"];
        let import = |device: &str| session.run(&[&slowly[..], extra, &["-d", device, "tank"]].concat());
        let runs = std::thread::scope(|scope| {
            [&a, &b].map(|device| scope.spawn(|| import(device))).map(|thread| thread.join().unwrap())
        });
        let (done, refused) = if runs[0].code == 0 { (0, 1) } else { (1, 0) };
        assert_eq!((runs[done].code, runs[done].err.as_str()), (0, ""));
        assert_eq!(runs[refused].code, 1, "both were imported");
        assert!(
            runs[refused].err.starts_with("cannot import 'tank': a pool with that name already exists"),
            "{runs:?}"
        );
        assert!(images()[refused] == before[refused], "the other pool was changed");
        assert_eq!(session.ok(&["zpool", "list", "-H", "-o", "name"]), "tank\n");
        session.ok(&["zpool", "export", "tank"]);
    }
}

#[test]
fn who_keeps_a_pool_busy_is_told() {
    let (session, _dir, device) = pool();
    let other = FileDevice::open_read_write(Path::new(&device)).unwrap();
    // a command that only reads needs no lock
    assert_eq!(session.ok(&["zfs", "list", "-H", "-o", "name"]), "tank\n");
    let busy = format!("cannot open 'tank': pool is busy\n{device} is in use by process {} (", std::process::id());
    for words in [&["zfs", "create", "tank/a"][..], &["zfs", "set", "a:b=c", "tank"]] {
        let run = session.run(&[&["-o", "busy_wait=1"], words].concat());
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{words:?}");
        assert!(run.err.starts_with(&busy), "{words:?}: {}", run.err);
    }
    drop(other);
    session.ok(&["zfs", "create", "tank/a"]);
}
