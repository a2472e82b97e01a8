//! `zpool events`: what happened to the pools of this machine, from one command to the next.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;
#[path = "support/until.rs"]
mod until;

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::Session;
use until::until_served;

/// A command that follows events, and its lines.
struct Follower {
    child: Child,
    lines: Receiver<String>,
}

impl Follower {
    fn new(session: &Session, options: &[&str]) -> Follower {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
        command.args(["zpool", "events", "-f"]).args(options).env("ZUSE_STATE", session.state()).env("TZ", "UTC");
        let mut child = command.env("ZUSE_ON_DEMAND", "no").stdout(Stdio::piped()).spawn().unwrap();
        let (tell, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Follower { child, lines }
    }

    /// The lines up to one that has these words.
    fn up_to(&self, words: &str) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(60));
            all.push(line.unwrap_or_else(|_| panic!("{words} never came: {all:?}")));
            if all.last().unwrap().contains(words) {
                return all;
            }
        }
    }

    /// Interrupts it; it ends by that.
    fn interrupt(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(Signal::INT.as_raw()));
    }
}

/// A server of the session's pools, until dropped.
struct Server(Child);

impl Server {
    fn new(session: &Session) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
        command.args(["serve", "--no-mounts"]).env("ZUSE_STATE", session.state());
        let server = Server(command.stderr(Stdio::null()).spawn().unwrap());
        until_served(&session.state().join("server.socket"));
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Follows the events of a pool while it and another one come and go.
fn follow_pools(session: &Session, dir: &std::path::Path) {
    let (a, b) = (dir.join("a").display().to_string(), dir.join("b").display().to_string());
    let all = Follower::new(session, &[]);
    let (of_t, long) = (Follower::new(session, &["-H", "t"]), Follower::new(session, &["-vH", "t"]));
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "u", &b]);
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "t", &a]);
    let seen = all.up_to("pool_create");
    assert_eq!(seen[0], format!("{:<30} CLASS", "TIME"));
    all.up_to("pool_create");
    for _ in 0..2 {
        session.ok(&["zpool", "export", "t"]);
        session.ok(&["zpool", "export", "u"]);
        assert!(of_t.up_to("pool_export").iter().all(|line| line.as_bytes()[30] == b'\t'));
        all.up_to("pool_export");
        all.up_to("pool_export");
        session.ok(&["zpool", "import", "-d", dir.to_str().unwrap(), "-a"]);
        of_t.up_to("sysevent.fs.zfs.pool_import");
        all.up_to("pool_import");
        all.up_to("pool_import");
    }
    // what it says of each is on disk long before the next comes
    let first = long.up_to("pool_import");
    assert!(first.contains(&"        pool = \"t\"".to_owned()), "{first:?}");
    assert!(!first.iter().any(|line| line.contains("\"u\"")), "{first:?}");
    // those that were there before come first
    let late = Follower::new(session, &["-H", "t"]);
    let seen = late.up_to("pool_import");
    assert!(seen.iter().any(|line| line.ends_with("pool_create")), "{seen:?}");
    session.ok(&["zpool", "events", "-c"]);
    session.ok(&["zpool", "destroy", "t"]);
    late.up_to("pool_destroy");
    [all, of_t, long, late].into_iter().for_each(Follower::interrupt);
}

#[test]
fn events_are_followed_while_pools_come_and_go() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    follow_pools(&session, dir.path());
}

#[test]
fn events_of_a_server_are_followed() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let _server = Server::new(&session);
    follow_pools(&session, dir.path());
}

/// Returns the classes of all events, oldest first, and checks the form of their lines.
fn classes(session: &Session, pool: &[&str]) -> Vec<String> {
    let listed = session.ok(&[&["zpool", "events", "-H"], pool].concat());
    let class = |line: &str| {
        let (when, class) = line.split_once('\t').unwrap();
        // `Nov 24 2026 06:05:12.123456789`
        assert!(when.len() == 30 && when.as_bytes()[20] == b'.' && when[21..].parse::<u32>().is_ok(), "{line}");
        class.to_owned()
    };
    listed.lines().map(class).collect()
}

#[test]
fn events_of_commands_are_kept_and_shown_as_openzfs_shows_them() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let paths = ["a", "b", "c"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let [a, b, c] = paths.each_ref().map(String::as_str);
    assert_eq!(session.ok(&["zpool", "events"]), format!("{:<30} CLASS\n", "TIME"));
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "tank", "mirror", a, b]);
    let created = classes(&session, &[]);
    for class in ["history_event", "config_sync", "pool_create"] {
        assert!(created.contains(&format!("sysevent.fs.zfs.{class}")), "{class}: {created:?}");
    }
    assert!(classes(&session, &["other"]).is_empty());
    // one side is damaged: reads are healed, and tell
    let file = dir.path().join("data");
    std::fs::write(&file, vec![7u8; 4 << 20]).unwrap();
    assert_eq!(session.run(&["cp", file.to_str().unwrap(), "tank:/data"]).code, 0);
    let mut side = OpenOptions::new().write(true).open(a).unwrap();
    side.seek(SeekFrom::Start(5 << 20)).unwrap();
    side.write_all(&vec![0xa5u8; 50 << 20]).unwrap();
    session.ok(&["zpool", "scrub", "tank"]);
    std::fs::File::create(c).unwrap().set_len(64 << 20).unwrap();
    session.ok(&["zpool", "add", "-f", "tank", "log", c]);
    session.ok(&["zpool", "remove", "tank", c]);
    session.ok(&["zpool", "export", "tank"]);
    session.ok(&["zpool", "import", "-d", dir.path().to_str().unwrap(), "tank"]);
    let all = classes(&session, &["tank"]);
    let at = |class: &str| all.iter().position(|c| c == class).unwrap_or_else(|| panic!("{class}: {all:?}"));
    let order =
        ["pool_create", "scrub_start", "scrub_finish", "vdev_add", "vdev_remove_dev", "pool_export", "pool_import"];
    assert!(order.map(|class| at(&format!("sysevent.fs.zfs.{class}"))).is_sorted(), "{all:?}");
    at("ereport.fs.zfs.checksum");
    let long = session.ok(&["zpool", "events", "-v", "tank"]);
    let report = long.split("\n\n").find(|event| event.contains("ereport.fs.zfs.checksum")).unwrap();
    let pool_guid = session.ok(&["zpool", "get", "-Ho", "value", "guid", "tank"]);
    let pool_guid = format!("{:#x}", pool_guid.trim().parse::<u64>().unwrap());
    for line in [
        "        class = \"ereport.fs.zfs.checksum\"",
        "        pool = \"tank\"",
        &format!("        pool_guid = {pool_guid}"),
        "        detector = (embedded nvlist)",
        "                scheme = \"zfs\"",
        "        (end detector)",
        "        zio_err = 0x34",
    ] {
        assert!(report.lines().any(|l| l == line), "{line}: {report}");
    }
    assert!(report.contains(&format!("        vdev_path = \"{a}\"")), "{report}");
    // each has the number after that of the one before
    let numbers = long.lines().filter_map(|line| line.trim().strip_prefix("eid = 0x"));
    let numbers: Vec<u64> = numbers.map(|n| u64::from_str_radix(n, 16).unwrap()).collect();
    assert!(numbers.len() == all.len() && numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
    let count = classes(&session, &[]).len();
    assert_eq!(session.ok(&["zpool", "events", "-c"]), format!("cleared {count} events\n"));
    assert!(classes(&session, &[]).is_empty());
    session.fails(&["zpool", "events", "-c", "-v"], 2, "invalid options combined with -c");
    session.fails(&["zpool", "events", "-H", "a", "b"], 2, "too many arguments");
}

#[test]
fn events_tell_of_devices_that_change_their_state() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let paths = ["a", "b"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let [a, b] = paths.each_ref().map(String::as_str);
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "tank", "mirror", a, b]);
    session.run(&["zpool", "events", "-c"]);
    session.ok(&["zpool", "offline", "tank", b]);
    session.ok(&["zpool", "online", "tank", b]);
    session.ok(&["zpool", "offline", "-f", "tank", b]);
    session.ok(&["zpool", "clear", "tank"]);
    let of_devices = |class: &String| class.contains("statechange") || class.contains("fs.zfs.vdev_");
    let all: Vec<String> = classes(&session, &["tank"]).into_iter().filter(of_devices).collect();
    let change = "resource.fs.zfs.statechange";
    let (online, clear) = ("sysevent.fs.zfs.vdev_online", "sysevent.fs.zfs.vdev_clear");
    assert_eq!(all, [change, change, online, change, change, clear]);
    let long = session.ok(&["zpool", "events", "-v", "tank"]);
    let report = long.split("\n\n").find(|event| event.contains(change)).unwrap();
    for line in [
        "        class = \"resource.fs.zfs.statechange\"".to_owned(),
        "        vdev_state = \"OFFLINE\" (0x2)".to_owned(),
        format!("        vdev_path = \"{b}\""),
        "        vdev_laststate = \"ONLINE\" (0x7)".to_owned(),
    ] {
        assert!(report.lines().any(|l| l == line), "{line}: {report}");
    }
}
