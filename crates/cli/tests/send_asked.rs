//! What a send asks for before its streams begin: what it sends is held from then on, and only what it sends is needed.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/devices.rs"]
mod devices;
mod support;
#[path = "support/until.rs"]
mod until;

use std::io::{Read, Write, pipe};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use devices::Lab;
use pool::{OpenOptions, Pool};
use support::Session;
use until::until;
use vdev::{Device, FileDevice};

/// Bytes of a pipe that nobody reads.
const PIPE: usize = 64 << 10;

fn pool() -> Lab {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 128M tank /a");
    for name in ["tank/a", "tank/a/b"] {
        lab.ok(&format!("zfs create {name}"));
        put(&lab.session, &format!("{name}:/file"));
    }
    lab.ok("zfs snapshot -r tank/a@1");
    lab
}

fn put(session: &Session, path: &str) {
    assert_eq!(session.feed(&["put", path], &base::Env::noise(1, 1 << 20)).code, 0);
}

/// A stream, which is not text.
fn bytes(session: &Session, args: &[&str]) -> Vec<u8> {
    let run = Command::new(env!("CARGO_BIN_EXE_zuse")).args(args).env("ZUSE_STATE", session.state()).output().unwrap();
    assert!(run.status.success(), "{args:?}: {}", String::from_utf8_lossy(&run.stderr));
    run.stdout
}

/// Runs a command whose messages are not read, until it holds something; then `meanwhile`, and the rest of the command.
fn while_it_tells(session: &Session, args: &[&str], meanwhile: impl FnOnce()) -> Vec<u8> {
    let (mut messages, mut full) = pipe().unwrap();
    full.write_all(&[b'.'; PIPE]).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_zuse"))
        .args(args)
        .env("ZUSE_STATE", session.state())
        .stdout(Stdio::piped())
        .stderr(full)
        .spawn()
        .unwrap();
    let is_held = || {
        let entries = std::fs::read_dir(session.state().join("holds")).into_iter().flatten();
        entries.flatten().any(|entry| entry.path().extension().is_some_and(|end| end == "held"))
    };
    until("it holds what it sends", is_held);
    meanwhile();
    let reader = std::thread::spawn(move || messages.read_to_end(&mut Vec::new()));
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    assert!(child.wait().unwrap().success(), "{args:?}");
    reader.join().unwrap().unwrap();
    out
}

#[test]
fn what_is_sent_is_held_while_its_size_is_told() {
    let lab = pool();
    let session = &lab.session;
    let busy = |what: &str| session.fails(&["zfs", "destroy", what], 1, "dataset is busy");
    let alone = bytes(session, &["zfs", "send", "tank/a@1"]);
    for options in ["-v", "-vp", "-vR"] {
        let whole = while_it_tells(session, &["zfs", "send", options, "tank/a@1"], || busy("tank/a@1"));
        assert!(options != "-v" || whole == alone);
    }
    // a head is not changed either
    let whole = while_it_tells(session, &["zfs", "send", "-v", "tank/a"], || {
        assert_eq!(session.feed(&["put", "tank/a:/more"], b"more").code, 1);
    });
    assert!(whole == bytes(session, &["zfs", "send", "tank/a"]));
    // nor the part of a stream that was received
    assert_eq!(session.feed(&["zfs", "receive", "-s", "tank/c"], &alone[..alone.len() / 2]).code, 1);
    while_it_tells(session, &["zfs", "send", "-v", "-S", "tank/c"], || {
        assert_eq!(session.run(&["zfs", "receive", "-A", "tank/c"]).code, 1);
    });
    session.ok(&["zfs", "receive", "-A", "tank/c"]);
    session.ok(&["zfs", "destroy", "tank/a@1"]);
}

/// Destroys the root block of a head, all copies of it.
fn lose_root(device: &Path, head: &str) {
    let file: Arc<dyn Device> = Arc::new(FileDevice::open_read_only(device).unwrap());
    let found = vdev::import::scan_devices(vec![(device.to_owned(), file)]);
    let pool = Pool::open(&found[0], &OpenOptions::default()).unwrap();
    let head = pool.dataset(head).unwrap();
    let mut bytes = std::fs::read(device).unwrap();
    for dva in head.phys().bp.dvas() {
        // behind the labels and the boot block
        let at = usize::try_from(dva.offset()).unwrap() + (4 << 20);
        bytes[at..at + 512].fill(0x5a);
    }
    std::fs::write(device, bytes).unwrap();
}

#[test]
fn a_package_needs_no_root_block_of_a_head() {
    let lab = pool();
    let session = &lab.session;
    let send = ["zfs", "send", "-R", "tank/a@1"];
    let alone = bytes(session, &send);
    put(session, "tank/a/b:/newer");
    lose_root(Path::new(&lab.path("a")), "tank/a/b");
    assert_eq!(session.run(&["ls", "tank/a/b:/"]).code, 1);
    assert!(bytes(session, &send) == alone);
}

/// A name that is too long to be one is that of nothing.
#[test]
fn names_may_be_as_long_as_they_can_be() {
    let lab = pool();
    let session = &lab.session;
    let (long, first) = (format!("tank/a/{}", "l".repeat(243)), "f".repeat(100));
    session.ok(&["zfs", "snapshot", &format!("tank/a@{first}")]);
    session.ok(&["zfs", "create", &long]);
    session.ok(&["zfs", "snapshot", "-r", "tank/a@2"]);
    // the long one has no snapshot of that name, and is sent whole
    let told = session.ok(&["zfs", "send", "-nP", "-R", "-i", &first, "tank/a@2"]);
    assert!(told.contains(&format!("full\t{long}@2\t")), "{told}");
    // nor a clone to receive into
    let run = session.run(&["zfs", "send", "-S", &long]);
    assert_eq!((run.code, run.err.as_str()), (1, ""), "it has received nothing");
}
