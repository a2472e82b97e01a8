//! Imported pools whose devices are gone, or may not be read.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Session, cells};

/// Two pools, the second without its device.
fn pools() -> (Session, tempfile::TempDir, PathBuf) {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "here", &path("a")]);
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "gone", &path("b")]);
    let lost = dir.path().join("b");
    std::fs::rename(&lost, dir.path().join("elsewhere")).unwrap();
    (session, dir, lost)
}

#[test]
fn a_pool_without_devices_is_told_and_the_other_works() {
    let (session, dir, lost) = pools();
    let status = session.ok(&["zpool", "status", "-x"]);
    for line in
        ["  pool: gone", " state: UNAVAIL", "status: One or more devices could not be opened.  There are insufficient"]
    {
        assert!(status.lines().any(|said| said == line), "{line}: {status}");
    }
    let row = |name: &str| status.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or("").to_owned();
    assert!(row("gone").contains("UNAVAIL") && row("gone").contains("insufficient replicas"), "{status}");
    let device = lost.to_str().unwrap();
    assert!(row(device).contains("UNAVAIL") && row(device).contains("cannot open"), "{status}");
    assert!(!status.contains("healthy") && !status.contains("pool: here"), "{status}");
    assert!(session.ok(&["zpool", "status"]).contains("  pool: here\n state: ONLINE"));
    let json = session.json(&["zpool", "status", "-x", "-j"]);
    assert_eq!(json["pools"]["gone"]["state"], "UNAVAIL");
    assert_eq!(json["pools"]["gone"]["vdevs"]["gone"]["vdevs"][device]["state"], "CANT_OPEN");
    assert!(json["pools"].get("here").is_none());
    let list = session.ok(&["zpool", "list", "-H", "-o", "name,health,size"]);
    let list = cells(&list);
    assert_eq!(list.first(), Some(&vec!["gone", "UNAVAIL", "-"]));
    assert_eq!(list.get(1).map(|row| &row[..2]), Some(&["here", "ONLINE"][..]));
    assert_eq!(session.json(&["zpool", "list", "-j"])["pools"]["gone"]["properties"]["health"]["value"], "UNAVAIL");
    let got = session.ok(&["zpool", "get", "-H", "-o", "name,value", "health,size", "gone"]);
    assert_eq!(got, "gone\tUNAVAIL\ngone\t-\n");
    assert!(session.ok(&["zpool", "get", "-H", "all", "gone"]).contains("gone\thealth\tUNAVAIL\t-\n"));
    assert_eq!(
        session.json(&["zpool", "get", "-j", "health"])["pools"]["gone"]["properties"]["health"]["value"],
        "UNAVAIL"
    );
    assert_eq!(session.ok(&["zfs", "list", "-H", "-o", "name", "here"]), "here\n");
    let all = session.run(&["zfs", "list", "-H", "-o", "name"]);
    assert_eq!((all.code, all.out.as_str()), (1, "here\n"), "{}", all.err);

    session.fails(&["zpool", "export", "gone"], 1, "'zpool export -f gone' forgets it");
    session.ok(&["zpool", "export", "-f", "gone"]);
    assert_eq!(session.ok(&["zpool", "status", "-x"]), "all pools are healthy\n");
    // its device can be imported again from the folder where it is now
    session.ok(&["zpool", "import", "-d", dir.path().join("elsewhere").to_str().unwrap(), "gone"]);
    session.ok(&["zpool", "export", "-a", "-f"]);
}

#[test]
fn a_pool_that_others_use_is_not_forgotten_with_force() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let device = dir.path().join("a");
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "tank", device.to_str().unwrap()]);
    let other = vdev::FileDevice::open_read_write(&device).unwrap();
    session.fails(&["-o", "busy_wait=0", "zpool", "export", "-f", "tank"], 1, "pool is busy");
    drop(other);
    assert_eq!(session.ok(&["zpool", "list", "-H", "-o", "name"]), "tank\n");
}

/// Runs a command without the right to read files whose mode forbids it: for the superuser, too.
fn humble(session: &Session, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
    command.args(args).env("ZUSE_STATE", session.state());
    if rustix::process::getuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let done = command.output().unwrap();
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_device_that_may_not_be_read_is_permission_denied() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let device = dir.path().join("a");
    let path = device.to_str().unwrap();
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "tank", path]);
    [session.state(), dir.path()].iter().for_each(|folder| chmod(folder, 0o755));
    chmod(&device, 0);
    // a record that another user may not read is skipped
    let (code, said) = humble(&session, &["zfs", "list", "tank"]);
    assert!(code == Some(1) && said.starts_with("warning: ") && said.contains("dataset does not exist"), "{said}");
    for entry in std::fs::read_dir(session.state()).unwrap() {
        chmod(&entry.unwrap().path(), 0o644);
    }
    let denied = format!("{path}: permission denied\n");
    for (args, doing) in [
        (&["zfs", "list", "tank"][..], "cannot open 'tank': "),
        (&["zpool", "export", "tank"], "cannot open 'tank': "),
        (&["ls", "-d", dir.path().to_str().unwrap(), "tank:/"], "zuse ls: cannot open 'tank': "),
    ] {
        let (code, said) = humble(&session, args);
        assert!(code == Some(1) && said.starts_with(&format!("{doing}{denied}")), "{args:?}: {said}");
    }
    let elsewhere = Session::empty();
    chmod(elsewhere.state(), 0o755);
    for place in [path, dir.path().to_str().unwrap()] {
        let (code, said) = humble(&elsewhere, &["zpool", "import", "-d", place]);
        assert_eq!((code, said), (Some(1), format!("cannot discover pools: {denied}")));
    }
}

#[test]
fn a_pool_that_is_imported_is_not_taken_by_its_devices() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let device = dir.path().join("a").to_str().unwrap().to_owned();
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "tank", &device]);
    session.fails(
        &["mkdir", "-d", &device, "tank:/a"],
        1,
        "cannot open 'tank': the pool is imported: name it without -d",
    );
    session.fails(&["cp", "-d", &device, "/etc/hostname", "tank:/a"], 1, "the pool is imported");
    session.ok(&["mkdir", "tank:/a"]);
    assert_eq!(session.ok(&["ls", "-d", &device, "tank:/"]), "a\n");
    session.ok(&["zpool", "export", "tank"]);
    session.ok(&["mkdir", "-d", &device, "tank:/b"]);
}

#[test]
fn reopen_finds_a_device_that_is_back_and_brings_it_up_to_date() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let [a, b, away] = ["a", "b", "away"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "tank", "mirror", &a, &b]);
    // out of the folder: one that is in it is found under any name
    let elsewhere = tempfile::tempdir().unwrap();
    let away = elsewhere.path().join(away.rsplit('/').next().unwrap());
    std::fs::copy(&b, &away).unwrap();
    std::fs::remove_file(&b).unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7u8; 1 << 20]).unwrap();
    assert_eq!(session.run(&["cp", file.to_str().unwrap(), "tank:/file"]).code, 0);
    assert_eq!(session.run(&["zpool", "reopen", "tank"]).code, 0);
    assert!(session.ok(&["zpool", "status", "tank"]).contains("UNAVAIL"));
    std::fs::copy(&away, &b).unwrap();
    session.ok(&["zpool", "reopen", "-n", "tank"]);
    let status = session.ok(&["zpool", "status", "tank"]);
    assert!(status.contains(" state: ONLINE\n") && status.contains("resilvered"), "{status}");
    assert!(session.ok(&["zpool", "history", "tank"]).contains(" zpool reopen -n tank\n"));
    // all pools; none; no such one
    session.ok(&["zpool", "reopen"]);
    session.fails(&["zpool", "reopen", "nosuch"], 1, "cannot open 'nosuch': no such pool");
    session.fails(&["zpool", "reopen", "-x", "tank"], 2, "invalid option 'x'\nusage:\n\treopen [-n] <pool>\n");
    session.ok(&["zpool", "export", "tank"]);
    assert_eq!(session.ok(&["zpool", "reopen"]), "");
}
