//! `zuse serve`, beside commands that do not ask it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;
#[path = "support/until.rs"]
mod until;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::Session;
use until::{until, until_served};

fn begin(session: &Session, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
    command.arg("serve").args(args).env("ZUSE_STATE", session.state()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    until_served(&session.state().join("server.socket"));
    child
}

fn end(child: &mut Child, signal: Signal) -> (Option<i32>, Vec<String>) {
    kill_process(Pid::from_child(child), signal).unwrap();
    let status = child.wait().unwrap();
    (status.code(), BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap).collect())
}

#[test]
fn a_server_has_the_pools_until_it_is_told_to_end() {
    let session = Session::empty();
    let disk = session.state().join("disk").display().to_string();
    session.ok(&["zpool", "create", "--size", "96M", "t", &disk]);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut server = begin(&session, &[]);
        until("it has opened the pool", || vdev::device::is_busy(disk.as_ref()));
        // who does not ask it reads, and does not write
        assert!(session.ok(&["zfs", "list", "-H", "-o", "name"]).contains('t'));
        let holder = format!("in use by process {}", server.id());
        session.fails(&["-o", "busy_wait=0", "zfs", "snapshot", "t@s"], 1, &holder);
        session.fails(&["serve"], 1, "are already served by process");
        assert_eq!(end(&mut server, signal), (Some(0), Vec::new()));
        assert!(!session.state().join("server.socket").exists());
        session.ok(&["zfs", "snapshot", &format!("t@{}", signal.as_raw())]);
    }
    // a pool that is gone keeps it from nothing
    std::fs::remove_file(&disk).unwrap();
    let mut server = begin(&session, &["--delegation"]);
    // one that is told to end before that opens no pool
    let mut messages = BufReader::new(server.stderr.take().unwrap());
    let mut said = String::new();
    messages.read_line(&mut said).unwrap();
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!((server.wait().unwrap().code(), messages.lines().count()), (Some(0), 0));
    assert!(said.starts_with("warning: cannot open 't'"), "{said:?}");
}

#[test]
fn options_are_checked_and_an_idle_server_ends() {
    let session = Session::empty();
    session.fails(&["serve", "-d", "x"], 2, "invalid option 'd'");
    session.fails(&["serve", "tank"], 2, "'tank': no operand is expected");
    session.fails(&["serve", "--idle", "0"], 2, "--idle 0: a number of seconds is expected");
    assert!(session.ok(&["help", "serve"]).contains("Exit status: 0 it ended as it was told"));
    assert!(begin(&session, &["--idle", "1"]).wait().unwrap().success());
}
