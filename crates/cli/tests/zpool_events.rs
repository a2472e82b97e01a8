//! `zpool events`: what happened to the pools of this machine, from one command to the next.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};

use support::Session;

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
