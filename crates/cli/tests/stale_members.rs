//! Devices that missed writes, through the command line: how they are reported, and how they are brought up to date.
#![allow(clippy::unwrap_used)]

#[path = "support/devices.rs"]
mod devices;
mod support;

use devices::Lab;

/// Enough time on the slowest machine: a small resilver is done at once.
const PATIENT: &str = "-o zuse_catch_up_ms=600000";
/// No time: a pool is opened for writing with devices as they are.
const IDLE: &str = "-o zuse_catch_up_ms=0";

impl Lab {
    /// Takes a device away, writes, and brings it back under a name.
    fn miss(&self, device: &str, back: &str) {
        let away = tempfile::tempdir().unwrap();
        std::fs::rename(self.path(device), away.path().join(device)).unwrap();
        let run = self.session.feed(&["put", &format!("tank:/{device}")], &vec![7; 3 << 20]);
        assert!(run.code == 0 && run.err.is_empty(), "{run:?}");
        std::fs::rename(away.path().join(device), self.path(back)).unwrap();
    }

    fn health(&self) -> String {
        self.ok("zpool list -H -o health tank").trim().to_owned()
    }
}

#[test]
fn a_stale_member_is_told_and_resilvered() {
    let lab = Lab::new();
    lab.ok("zpool create --size 128M tank raidz1 /a /b /c");
    lab.miss("b", "b");
    let status = lab.ok("zpool status tank");
    assert!(status.contains("needs to be resilvered") && status.contains("zpool resilver"));
    let line = |name: &str, status: &str| {
        let end = format!("{}  ", lab.path(name));
        status.lines().find(|line| line.contains(&end)).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(line("b", &status).ends_with("ONLINE 0 0 0 (awaiting resilver)"), "{status}");
    assert!(line("a", &status).ends_with("ONLINE 0 0 0"), "{status}");
    assert!(status.contains("state: DEGRADED") && lab.health() == "DEGRADED");
    assert!(lab.ok("zpool status -x").contains("needs to be resilvered"));
    assert!(lab.ok("zpool status -e tank").contains(&lab.path("b")));
    let json = lab.session.json(&["zpool", "status", "-j", "--json-int"]);
    let tank = &json["pools"]["tank"];
    let raidz = &tank["vdevs"]["tank"]["vdevs"]["raidz1-0"];
    assert_eq!((tank["state"].as_str(), raidz["state"].as_str()), (Some("DEGRADED"), Some("DEGRADED")));
    assert_eq!(raidz["vdevs"][lab.path("b")]["resilver_deferred"].as_u64(), Some(1));

    // a command that may not wait prints why
    let words = lab.words(&format!("{IDLE} zfs create tank/first"));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let run = lab.session.run(&words);
    assert!(run.code == 0 && run.err.contains("zpool resilver tank"), "{run:?}");
    assert_eq!(lab.health(), "DEGRADED");
    lab.ok(&format!("{PATIENT} zfs create tank/second"));
    assert_eq!((lab.health().as_str(), lab.ok("zpool status -x").as_str()), ("ONLINE", "all pools are healthy\n"));
    std::fs::rename(lab.path("c"), lab.path("c.away")).unwrap();
    assert_eq!(lab.session.run(&["cat", "tank:/b"]).out.len(), 3 << 20);
    std::fs::rename(lab.path("c.away"), lab.path("c")).unwrap();
    lab.ok("zpool scrub -w tank");
    assert!(lab.ok("zpool status tank").contains("scrub repaired 0B"), "something was left to repair");
    lab.export_and_judge("tank");
}

#[test]
fn a_device_that_comes_back_elsewhere_is_resilvered_on_request() {
    let lab = Lab::new();
    lab.ok("zpool create --size 128M tank mirror /a /b");
    lab.miss("b", "other");
    assert_eq!(lab.health(), "DEGRADED");
    assert_eq!(lab.ok("zpool resilver tank"), "");
    let status = lab.ok("zpool status tank");
    assert!(status.contains("scan: resilvered") && status.contains("with 0 errors"), "{status}");
    assert_eq!(lab.health(), "ONLINE");
    // nothing to do is no error
    assert_eq!(lab.ok("zpool resilver tank"), "");
    lab.fails("zpool resilver", 2, "missing pool name argument");
    std::fs::remove_file(lab.path("a")).unwrap();
    assert_eq!(lab.session.run(&["cat", "tank:/b"]).out.len(), 3 << 20);
}

#[test]
fn a_device_that_was_away_at_the_import_is_found_again() {
    let lab = Lab::new();
    lab.ok("zpool create --size 128M tank mirror /a /b");
    lab.ok("zpool export tank");
    std::fs::create_dir(lab.path("away")).unwrap();
    std::fs::rename(lab.path("b"), lab.path("away/b")).unwrap();
    lab.session.ok(&["zpool", "import", "-d", lab.dir(), "tank"]);
    assert_eq!(lab.health(), "DEGRADED");
    std::fs::rename(lab.path("away/b"), lab.path("b")).unwrap();
    lab.ok(&format!("{PATIENT} zfs create tank/x"));
    assert_eq!(lab.health(), "ONLINE");
    std::fs::remove_dir(lab.path("away")).unwrap();
    lab.export_and_judge("tank");
}
