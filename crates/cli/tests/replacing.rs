//! `zpool attach`, `replace` and `detach`, and hot spares, through the command line.
#![allow(clippy::unwrap_used)]

#[path = "support/devices.rs"]
mod devices;
mod support;

use devices::Lab;

/// Enough time on the slowest machine.
const PATIENT: &str = "-o zuse_catch_up_ms=600000";
/// No time: devices stay as they are.
const IDLE: &str = "-o zuse_catch_up_ms=0";

impl Lab {
    fn put(&self, name: &str, seed: u8) {
        let run = self.session.feed(&["put", &format!("tank:/{name}")], &content(seed));
        assert!(run.code == 0 && run.err.is_empty(), "{run:?}");
    }

    fn has(&self, name: &str, seed: u8) {
        let run = self.session.run(&["cat", &format!("tank:/{name}")]);
        assert!(run.out.as_bytes() == content(seed), "{name} has other bytes: {}", run.err);
    }

    /// The configuration of the pool: names of vdevs, states, remarks, by depth.
    fn shape(&self) -> Vec<String> {
        let status = self.ok("zpool status tank");
        let lines =
            status.lines().skip_while(|line| !line.contains("NAME ")).skip(2).take_while(|line| !line.is_empty());
        let dir = format!("{}/", self.dir());
        lines.map(|line| line.replace(&dir, "/").split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    fn lose(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }
}

fn content(seed: u8) -> Vec<u8> {
    let letter = |n: u32| b'a' + (((n.wrapping_mul(2_654_435_761) >> 13) as u8).wrapping_add(seed) % 26);
    (0..3 << 20).map(letter).collect()
}

fn lab(devices: &[&str]) -> Lab {
    let lab = Lab::new();
    devices.iter().for_each(|name| drop(lab.file(name, 128)));
    lab
}

#[test]
fn a_disk_dies_and_is_replaced() {
    let lab = lab(&["a", "b", "c", "d"]);
    lab.ok("zpool create tank raidz1 /a /b /c");
    lab.put("one", 1);
    lab.lose("b");
    assert_eq!(lab.shape()[2].split(' ').nth(1), Some("UNAVAIL"));
    lab.ok(&format!("{PATIENT} zpool replace tank /b /d"));
    assert_eq!(lab.shape(), ["raidz1-0 ONLINE 0 0 0", "/a ONLINE 0 0 0", "/d ONLINE 0 0 0", "/c ONLINE 0 0 0"]);
    // the new disk has everything: another may go
    lab.lose("a");
    lab.has("one", 1);
    // in its place comes one of the same name
    lab.file("a", 128);
    lab.ok("zpool replace -w tank /a");
    assert_eq!(lab.shape()[1], "/a ONLINE 0 0 0");
    let history = lab.ok("zpool history -i tank").replace(lab.dir(), "");
    assert!(history.contains("vdev attach replace vdev=/d for vdev=/b"), "{history}");
    assert!(history.contains("vdev attach replace vdev=/a for vdev=/a/old"), "{history}");
    assert!(history.contains("detach vdev=/a/old"), "{history}");
    lab.has("one", 1);
    lab.export_and_judge("tank");
}

#[test]
fn a_mirror_is_made_and_unmade() {
    let lab = lab(&["a", "b", "c"]);
    lab.ok("zpool create tank /a");
    lab.put("one", 1);
    lab.ok("zpool attach -w tank /a /b");
    assert_eq!(lab.shape(), ["mirror-0 ONLINE 0 0 0", "/a ONLINE 0 0 0", "/b ONLINE 0 0 0"]);
    lab.ok("zpool attach -w tank /b /c");
    lab.ok("zpool detach tank /a");
    lab.ok("zpool detach tank /b");
    assert_eq!(lab.shape(), ["/c ONLINE 0 0 0"]);
    lab.lose("a");
    lab.lose("b");
    lab.has("one", 1);
    lab.fails("zpool detach tank /c", 1, "cannot detach DIR/c: only applicable to mirror and replacing vdevs");
    lab.export_and_judge("tank");
}

#[test]
fn refusals_are_those_of_openzfs() {
    let lab = lab(&["a", "b", "c", "d", "s", "o"]);
    lab.file("small", 100);
    lab.ok("zpool create tank raidz1 /a /b /c spare /s");
    lab.ok("zpool create other /o");
    let before = (lab.shape(), lab.ok("zpool history -i tank"));
    for (line, says) in [
        ("attach tank /a /d", "cannot attach DIR/d to DIR/a: can only attach to mirrors and top-level disks"),
        ("attach tank /a /s", "DIR/s is reserved as a hot spare for pool tank"),
        ("detach tank /a", "cannot detach DIR/a: only applicable to mirror and replacing vdevs"),
        ("detach tank /s", "cannot detach DIR/s: device is reserved as a hot spare"),
        ("detach tank /x", "cannot detach DIR/x: no such device in pool"),
        ("replace tank /x /d", "cannot replace DIR/x with DIR/d: no such device in pool"),
        ("replace tank /s /d", "cannot replace DIR/s with DIR/d: device is reserved as a hot spare"),
        ("replace tank /a /small", "cannot replace DIR/a with DIR/small: device is too small"),
        ("replace tank /a /b", "DIR/b is part of active pool 'tank'"),
        ("replace -f tank /a /o", "DIR/o is part of active pool 'other'"),
        ("replace -o ashift=12 tank /a /d", "The new device cannot have a higher alignment requirement"),
    ] {
        lab.fails(&format!("zpool {line}"), 1, says);
    }
    for (line, says) in [
        ("attach", "missing pool name argument"),
        ("attach tank /a", "missing <new_device> specification"),
        ("replace tank", "missing <device> specification"),
        ("replace tank /a /b /c", "too many arguments"),
        ("detach tank", "missing <device> specification"),
    ] {
        lab.fails(&format!("zpool {line}"), 2, says);
    }
    assert_eq!((lab.shape(), lab.ok("zpool history -i tank")), before, "something was changed");
    lab.export_and_judge("tank");
}

#[test]
fn a_spare_takes_over_and_goes_back() {
    let lab = lab(&["a", "b", "c", "s"]);
    lab.ok("zpool create tank raidz1 /a /b /c spare /s");
    lab.put("one", 1);
    let away = lab.path("away");
    std::fs::create_dir(&away).unwrap();
    std::fs::rename(lab.path("b"), format!("{away}/b")).unwrap();
    lab.ok(&format!("{IDLE} zfs create tank/x"));
    assert_eq!(lab.shape().last().unwrap(), "/s AVAIL", "it had no time");
    lab.ok(&format!("{PATIENT} zfs create tank/y"));
    let shape = lab.shape();
    assert_eq!((shape[2].as_str(), shape[4].as_str()), ("spare-1 DEGRADED 0 0 0", "/s ONLINE 0 0 0"), "{shape:?}");
    assert_eq!(shape.last().unwrap(), "/s INUSE currently in use", "{shape:?}");
    lab.put("two", 2);
    // the device comes back: it gets what it missed, and the spare is free again
    std::fs::rename(format!("{away}/b"), lab.path("b")).unwrap();
    lab.ok(&format!("{PATIENT} zfs create tank/z"));
    let whole =
        ["raidz1-0 ONLINE 0 0 0", "/a ONLINE 0 0 0", "/b ONLINE 0 0 0", "/c ONLINE 0 0 0", "spares", "/s AVAIL"];
    assert_eq!(lab.shape(), whole);
    // it serves once more, and stays for good
    lab.lose("b");
    lab.ok(&format!("{PATIENT} zfs create tank/w"));
    assert_eq!(lab.shape().last().unwrap(), "/s INUSE currently in use");
    lab.ok("zpool detach tank /b");
    assert_eq!(lab.shape(), ["raidz1-0 ONLINE 0 0 0", "/a ONLINE 0 0 0", "/s ONLINE 0 0 0", "/c ONLINE 0 0 0"]);
    lab.lose("a");
    lab.has("one", 1);
    lab.has("two", 2);
    std::fs::remove_dir(&away).unwrap();
}

#[test]
fn a_spare_that_serves_elsewhere_is_not_taken() {
    let lab = lab(&["a", "b", "c", "d", "s"]);
    lab.ok("zpool create tank mirror /a /b spare /s");
    lab.ok("zpool create other mirror /c /d");
    lab.ok("zpool add other spare /s");
    lab.lose("c");
    lab.ok(&format!("{PATIENT} zfs create other/x"));
    assert!(lab.ok("zpool status other").contains("INUSE"), "the spare serves in the other pool");
    lab.put("one", 1);
    lab.lose("b");
    lab.ok(&format!("{PATIENT} zfs create tank/x"));
    assert!(!lab.ok("zpool status tank").contains("spare-0"), "the spare is the other pool's");
    lab.fails("zpool replace tank /b /s", 1, "DIR/s is part of active pool 'other'");
    lab.ok("zpool scrub -w other");
    let status = lab.ok("zpool status other");
    let spare = status.lines().find(|line| line.contains(&format!("{} ", lab.path("s")))).unwrap();
    assert!(spare.split_whitespace().skip(1).eq(["ONLINE", "0", "0", "0"]), "it was overwritten: {status}");
}
