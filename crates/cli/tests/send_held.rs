//! Holds of a send: no other command destroys what one sends; and a package is complete, whatever others do to its
//! pool meanwhile.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use support::Session;

/// A pool with two file systems, and a file that does not compress in each.
fn pool() -> (Session, tempfile::TempDir, Vec<u8>) {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let device = dir.path().join("a").to_str().unwrap().to_owned();
    session.ok(&["zpool", "create", "-m", "none", "--size", "256M", "tank", &device]);
    let bytes = base::Env::noise(1, 8 << 20);
    for name in ["tank/a", "tank/a/b", "tank/a/c"] {
        session.ok(&["zfs", "create", name]);
        let run = session.feed(&["put", &format!("{name}:/file")], &bytes);
        assert_eq!(run.code, 0, "{run:?}");
    }
    session.ok(&["zfs", "snapshot", "-r", "tank/a@1"]);
    (session, dir, bytes)
}

/// A command whose output is not read yet: it has started, and is blocked.
fn begun(session: &Session, args: &[&str]) -> (Child, Vec<u8>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_zuse"))
        .args(args)
        .env("ZUSE_STATE", session.state())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = vec![0; 5000];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    (child, first)
}

fn rest((mut child, mut out): (Child, Vec<u8>)) -> Vec<u8> {
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    assert!(child.wait().unwrap().success());
    out
}

/// The complete output of a command.
fn whole(session: &Session, args: &[&str]) -> Vec<u8> {
    rest(begun(session, args))
}

const BUSY: &str = "dataset is busy";

#[test]
fn a_snapshot_is_not_destroyed_while_another_command_sends_it() {
    let (session, _dir, _) = pool();
    let send = ["zfs", "send", "tank/a@1"];
    let alone = whole(&session, &send);
    let sending = begun(&session, &send);
    session.fails(&["zfs", "destroy", "tank/a@1"], 1, BUSY);
    session.fails(&["zfs", "destroy", "-d", "tank/a@1"], 1, BUSY);
    session.fails(&["zfs", "destroy", "-r", "tank/a@1"], 1, BUSY);
    // another snapshot, tags, and the file system itself can still be destroyed
    session.ok(&["zfs", "destroy", "tank/a/b@1"]);
    session.ok(&["zfs", "snapshot", "tank/a@2"]);
    session.ok(&["zfs", "rollback", "tank/a@2"]);
    session.ok(&["zfs", "destroy", "tank/a@2"]);
    assert!(rest(sending) == alone);
    session.ok(&["zfs", "destroy", "tank/a@1"]);
    // a command that has ended holds nothing
    let (mut killed, _) = begun(&session, &["zfs", "send", "tank/a/c@1"]);
    session.fails(&["zfs", "destroy", "tank/a/c@1"], 1, BUSY);
    killed.kill().unwrap();
    killed.wait().unwrap();
    session.ok(&["zfs", "destroy", "tank/a/c@1"]);
    let left = std::fs::read_dir(session.state().join("holds")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name.to_str().unwrap().ends_with(".lock")), "{left:?}");
}

#[test]
fn a_file_system_is_not_changed_while_another_command_sends_it() {
    let (session, _dir, bytes) = pool();
    let sending = begun(&session, &["zfs", "send", "tank/a"]);
    let put = || session.feed(&["put", "tank/a:/more"], &bytes);
    assert_eq!(put().code, 1);
    session.ok(&["zfs", "snapshot", "tank/a@2"]);
    session.fails(&["zfs", "rollback", "tank/a@2"], 1, BUSY);
    rest(sending);
    assert_eq!(put().code, 0);
}

/// A command that writes a file until its input ends; it has already opened the file system.
fn writing(session: &Session, path: &str, bytes: &[u8]) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_zuse"))
        .args(["put", path])
        .env("ZUSE_STATE", session.state())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    child
}

#[test]
fn a_file_system_that_another_command_has_open_is_not_sent() {
    let (session, _dir, bytes) = pool();
    let alone = whole(&session, &["zfs", "send", "tank/a/b"]);
    let mut writes = writing(&session, "tank/a:/file", &bytes);
    let busy = "warning: cannot send 'tank/a': target is busy; if a filesystem, it must not be mounted";
    session.fails(&["zfs", "send", "tank/a"], 1, busy);
    session.fails(&["zfs", "send", "-i", "@1", "tank/a"], 1, busy);
    // its snapshots can be sent, and other file systems
    assert!(whole(&session, &["zfs", "send", "tank/a@1"]) != alone);
    assert!(whole(&session, &["zfs", "send", "tank/a/b"]) == alone);
    drop(writes.stdin.take());
    assert!(writes.wait().unwrap().success());
    whole(&session, &["zfs", "send", "tank/a"]);
    // a command that was killed has nothing open
    let mut writes = writing(&session, "tank/a/b:/file", &bytes);
    session.fails(&["zfs", "send", "tank/a/b"], 1, "target is busy");
    writes.kill().unwrap();
    writes.wait().unwrap();
    whole(&session, &["zfs", "send", "tank/a/b"]);
}

#[test]
fn a_package_is_whole_though_its_pool_goes_on() {
    let (session, _dir, bytes) = pool();
    let send = ["zfs", "send", "-R", "tank/a@1"];
    let alone = whole(&session, &send);
    let sending = begun(&session, &send);
    session.fails(&["zfs", "destroy", "-r", "tank/a@1"], 1, BUSY);
    // many txgs, and new blocks over old metadata
    for n in 0..5 {
        let run = session.feed(&["put", &format!("tank:/file{n}")], &bytes);
        assert_eq!(run.code, 0, "{run:?}");
        session.ok(&["zfs", "set", &format!("a:b={n}"), "tank"]);
    }
    assert!(rest(sending) == alone);
    session.ok(&["zfs", "destroy", "-r", "tank/a@1"]);
}
