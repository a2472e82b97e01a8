//! A command whose pool loses its devices: it waits, other commands see it, and `zpool clear` lets it go on.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;
#[path = "support/until.rs"]
mod until;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::Session;
use until::until;

const SIGABRT: i32 = 6;

fn noise(bytes: usize) -> Vec<u8> {
    base::Env::noise(7, bytes)
}

/// A command that writes a file, of which so much has been given to it.
struct Writer {
    child: Child,
}

impl Writer {
    fn begin(session: &Session, data: &[u8]) -> Writer {
        let mut child = Command::new(env!("CARGO_BIN_EXE_zuse"))
            .args(["put", "tank:/f"])
            .env("ZUSE_STATE", session.state())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.as_mut().unwrap().write_all(data).unwrap();
        Writer { child }
    }

    /// Gives it the rest, as far as it takes that: one that waits, or has ended, does not.
    fn finish(&mut self, data: &[u8]) {
        let (mut stdin, data) = (self.child.stdin.take().unwrap(), data.to_vec());
        std::thread::spawn(move || drop(stdin.write_all(&data)));
    }
}

fn pool(words: &[&str], devices: &[&str]) -> (Session, tempfile::TempDir, Vec<PathBuf>) {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let paths: Vec<PathBuf> = devices.iter().map(|name| dir.path().join(name)).collect();
    let paths_as_text: Vec<&str> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    let create = ["zpool", "create", "-m", "none", "--size", "128M"];
    session.ok(&[&create[..], words, &paths_as_text[..]].concat());
    (session, dir, paths)
}

/// The path at which a device is put away: in its own folder it would be found under any name.
fn away(path: &Path) -> PathBuf {
    let elsewhere = path.parent().unwrap().join("elsewhere");
    std::fs::create_dir_all(&elsewhere).unwrap();
    elsewhere.join(path.file_name().unwrap())
}

/// The lines of a table of `zpool status` that count failures.
fn failures(status: &str) -> Vec<String> {
    let counts = |line: &&str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, _, read, write, cksum, ..] => [read, write, cksum].iter().any(|n| n.parse::<u64>().is_ok_and(|n| n > 0)),
        _ => false,
    };
    status.lines().filter(|line| line.starts_with('\t')).filter(counts).map(str::to_owned).collect()
}

#[test]
fn a_command_waits_for_its_devices_and_goes_on_after_clear() {
    let (session, _dir, devices) = pool(&["tank", "mirror"], &["a", "b"]);
    let data = noise(16 << 20);
    // a scrub finds, and counts, that one block is wrong
    assert_eq!(session.feed(&["put", "tank:/wrong"], &data[..4096]).code, 0);
    let mut device = std::fs::read(&devices[0]).unwrap();
    let at = device.windows(512).position(|bytes| bytes == &data[..512]).unwrap();
    device[at] ^= 1;
    std::fs::write(&devices[0], &device).unwrap();
    session.ok(&["zpool", "scrub", "tank"]);
    assert_eq!(failures(&session.ok(&["zpool", "status", "tank"])).len(), 1);
    let mut writer = Writer::begin(&session, &data[..4 << 20]);
    devices.iter().for_each(|path| std::fs::rename(path, away(path)).unwrap());
    writer.finish(&data[4 << 20..]);
    let status = || session.run(&["zpool", "status", "tank"]).out;
    until("suspended", || status().contains(" state: SUSPENDED\n"));
    for line in [
        "status: One or more devices are faulted in response to IO failures.",
        "action: Make sure the affected devices are connected, then run 'zpool clear'.",
        "   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-HC",
    ] {
        assert!(status().lines().any(|said| said == line), "{line}: {}", status());
    }
    assert_eq!(session.run(&["zpool", "list", "-H", "-o", "health", "tank"]).out, "SUSPENDED\n");
    session.fails(&["zpool", "clear", "tank"], 1, "cannot clear errors for tank: I/O error");
    session.fails(&["zpool", "clear", "tank", "x"], 1, "cannot clear errors for x: no such device in pool\n");
    let first = devices[0].to_str().unwrap();
    session.fails(&["zpool", "clear", "tank", first], 1, &format!("cannot clear errors for {first}: I/O error"));
    assert!(writer.child.try_wait().unwrap().is_none(), "it waits");
    devices.iter().for_each(|path| std::fs::rename(away(path), path).unwrap());
    session.fails(&["zpool", "clear", "tank", "x"], 1, "cannot clear errors for x: no such device in pool\n");
    assert!(status().contains("SUSPENDED"), "nothing was cleared");
    session.ok(&["zpool", "clear", "tank"]);
    assert_eq!(failures(&status()), Vec::<String>::new(), "{}", status());
    let done = writer.child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    assert_eq!(said.matches("WARNING: Pool 'tank' has encountered an uncorrectable I/O failure").count(), 1, "{said}");
    let mut found = tempfile::tempfile().unwrap();
    let copy = Command::new(env!("CARGO_BIN_EXE_zuse"))
        .args(["cat", "tank:/f"])
        .env("ZUSE_STATE", session.state())
        .stdout(found.try_clone().unwrap())
        .status()
        .unwrap();
    assert!(copy.success());
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut found).unwrap();
    std::io::Read::read_to_end(&mut found, &mut bytes).unwrap();
    assert!(bytes == data);
    assert!(!status().contains("SUSPENDED"));
}

#[test]
fn a_device_that_goes_while_a_command_writes_is_removed_and_one_that_is_back_is_brought_up_to_date() {
    let (session, _dir, devices) = pool(&["tank", "mirror"], &["a", "b"]);
    let data = noise(8 << 20);
    let mut writer = Writer::begin(&session, &data[..4 << 20]);
    std::fs::rename(&devices[1], away(&devices[1])).unwrap();
    writer.finish(&data[4 << 20..]);
    assert!(writer.child.wait().unwrap().success());
    let status = session.ok(&["zpool", "status", "tank"]);
    assert!(status.contains(" state: DEGRADED\n") && status.contains("REMOVED"), "{status}");
    std::fs::rename(away(&devices[1]), &devices[1]).unwrap();
    session.ok(&["zpool", "online", "tank", devices[1].to_str().unwrap()]);
    let status = session.ok(&["zpool", "status", "tank"]);
    assert!(status.contains(" state: ONLINE\n"), "{status}");
}

#[test]
fn devices_go_offline_and_come_online() {
    let (session, dir, devices) = pool(&["tank", "mirror"], &["a", "b"]);
    let [a, b] = [0, 1].map(|n: usize| devices[n].to_str().unwrap().to_owned());
    session.ok(&["zpool", "offline", "tank", &b]);
    let status = session.ok(&["zpool", "status", "tank"]);
    assert!(status.contains(" state: DEGRADED\n") && status.contains("OFFLINE"), "{status}");
    session.fails(&["zpool", "offline", "tank", &a], 1, &format!("cannot offline {a}: no valid replicas\n"));
    session.fails(&["zpool", "offline", "tank", "x"], 1, "cannot offline x: no such device in pool\n");
    session.fails(&["zpool", "offline", "-f", "tank", "x"], 1, "cannot fault x: no such device in pool\n");
    session.fails(&["zpool", "online", "tank", "x"], 1, "couldn't find device \"x\" in pool \"tank\"\n");
    let inner = "cannot offline mirror-0: operation not supported on this type of pool\n";
    session.fails(&["zpool", "offline", "tank", "mirror-0"], 1, inner);
    let spare = dir.path().join("spare").to_str().unwrap().to_owned();
    std::fs::File::create(&spare).unwrap().set_len(128 << 20).unwrap();
    session.ok(&["zpool", "add", "tank", "spare", &spare]);
    let refused = format!("reserved as a hot spare\nFailed to online \"{spare}\" in pool \"tank\": -1\n");
    session.fails(&["zpool", "online", "tank", &spare], 1, &refused);
    session.fails(&["zpool", "online", "--power", "tank", &b], 95, "Power control not supported\n");
    session.fails(&["zpool", "offline", "--power", "tank", &a], 95, &format!("unable to power off slot for {a} 95\n"));
    session.fails(&["zpool", "offline", "--power", "-f", "tank", &a], 2, "-0 and -f cannot be used together\n");
    session.ok(&["zpool", "offline", "-f", "tank", &a]);
    let status = session.ok(&["zpool", "status", "tank"]);
    let line = |status: &str, device: &str| status.lines().find(|line| line.contains(device)).unwrap().to_owned();
    assert!(line(&status, &a).contains("DEGRADED") && line(&status, &a).contains("external device fault"), "{status}");
    session.ok(&["zpool", "clear", "tank", &a]);
    assert!(line(&session.ok(&["zpool", "status", "tank"]), &a).contains("ONLINE"));
    session.fails(&["zpool", "offline", "tank"], 2, "missing device name\n");
    assert_eq!(session.feed(&["put", "tank:/f"], &noise(1 << 20)).code, 0);
    session.ok(&["zpool", "online", "tank", &b]);
    assert!(session.ok(&["zpool", "status", "tank"]).contains(" state: ONLINE\n"));
    // until the pool is opened anew: that is the next command
    session.ok(&["zpool", "offline", "-t", "tank", &a]);
    assert!(!session.ok(&["zpool", "status", "tank"]).contains("OFFLINE"));
    session.ok(&["zpool", "offline", "-f", "tank", &a]);
    let status = session.ok(&["zpool", "status", "tank"]);
    assert!(status.contains("FAULTED") && status.contains("external device fault"), "{status}");
    session.ok(&["zpool", "clear", "--power", "tank"]);
    assert!(session.ok(&["zpool", "status", "tank"]).contains(" state: ONLINE\n"));
    session.ok(&["zpool", "clear", "-nF", "tank"]);
    for alone in ["-n", "-X"] {
        session.fails(&["zpool", "clear", alone, "tank"], 2, "-n or -X only meaningful with -F\n");
    }
}

#[test]
fn with_failmode_panic_the_command_ends_and_the_pool_is_that_of_the_last_txg() {
    let (session, _dir, devices) = pool(&["-o", "failmode=panic", "tank"], &["a"]);
    assert_eq!(session.feed(&["put", "tank:/kept"], b"kept").code, 0);
    let data = noise(8 << 20);
    let mut writer = Writer::begin(&session, &data[..4 << 20]);
    std::fs::rename(&devices[0], away(&devices[0])).unwrap();
    writer.finish(&data[4 << 20..]);
    let done = writer.child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.signal(), Some(SIGABRT), "{said}");
    assert!(said.contains("the failure mode property for this pool is set to panic"), "{said}");
    std::fs::rename(away(&devices[0]), &devices[0]).unwrap();
    assert_eq!(session.ok(&["cat", "tank:/kept"]), "kept");
    assert_eq!(session.feed(&["put", "tank:/next"], b"next").code, 0);
}

#[test]
fn a_pool_that_a_command_waits_to_import_is_cleared_by_its_name() {
    let (session, dir, devices) = pool(&["tank", "mirror"], &["a", "b"]);
    let begun = Instant::now();
    loop {
        session.ok(&["zpool", "export", "tank"]);
        let mut import = Command::new(env!("CARGO_BIN_EXE_zuse"))
            .args(["zpool", "import", "-d", dir.path().to_str().unwrap(), "tank"])
            .env("ZUSE_STATE", session.state())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // they go as soon as they are locked: the first txg finds them gone
        while import.try_wait().unwrap().is_none() && !vdev::device::is_busy(&devices[0]) {}
        devices.iter().for_each(|path| std::fs::rename(path, away(path)).unwrap());
        let is_told = || {
            let mut names = std::fs::read_dir(session.state()).unwrap().map(|entry| entry.unwrap().file_name());
            names.any(|name| name.to_str().unwrap().ends_with(".suspended"))
        };
        let ended = loop {
            match import.try_wait().unwrap() {
                None if !is_told() => std::thread::sleep(Duration::from_millis(5)),
                ended => break ended,
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "it is never suspended");
        };
        let bring_back = || devices.iter().for_each(|path| std::fs::rename(away(path), path).unwrap());
        if ended.is_none() {
            session.fails(&["zpool", "clear", "none"], 1, "cannot open 'none': no such pool\n");
            session.fails(&["zpool", "clear", "tank", "x"], 1, "cannot clear errors for x: no such device in pool\n");
            bring_back();
            session.ok(&["zpool", "clear", "tank"]);
            assert!(import.wait().unwrap().success());
            break;
        }
        bring_back();
        if !ended.unwrap().success() {
            session.ok(&["zpool", "import", "-d", dir.path().to_str().unwrap(), "tank"]);
        }
    }
    assert_eq!(session.run(&["zpool", "list", "-H", "-o", "health", "tank"]).out, "ONLINE\n");
}
