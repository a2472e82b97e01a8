//! Two commands on one pool: the second waits for the first, and says who it is if that takes too long.
#![allow(clippy::unwrap_used)]

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
fn who_keeps_a_pool_busy_is_told() {
    let (session, _dir, device) = pool();
    let other = FileDevice::open_read_write(Path::new(&device)).unwrap();
    // what only reads needs no lock
    assert_eq!(session.ok(&["zfs", "list", "-H", "-o", "name"]), "tank\n");
    let busy = format!("cannot open 'tank': pool is busy\n{device} is in use by process {} (", std::process::id());
    for words in [&["zfs", "create", "tank/a"][..], &["zfs", "set", "a:b=c", "tank"]] {
        let run = session.run(words);
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{words:?}");
        assert!(run.err.starts_with(&busy), "{words:?}: {}", run.err);
    }
    drop(other);
    session.ok(&["zfs", "create", "tank/a"]);
}
