//! Devices that are added to a pool and removed, mainly log devices. OpenZFS's `zdb` judges what is on them.
#![allow(clippy::unwrap_used)]

#[path = "support/devices.rs"]
mod devices;
mod support;

use devices::Lab;
use oracle::judge;

impl Lab {
    /// Sparse files of 64 MiB.
    fn files(&self, names: &str) {
        names.split(' ').for_each(|name| drop(self.file(name, 64)));
    }

    /// Exports the pool, checks it with OpenZFS's `zdb` and engine, and imports it again. Returns the configuration that `zdb`
    /// printed.
    fn judged(&self) -> Option<String> {
        self.ok("zpool export tank");
        let place = self.dir.path().display().to_string();
        let said = judge::run("zdb", &["-e", "-p", &place, "-bccCd", "tank"]);
        let said = said.map(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let all = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success() && text.contains("No leaks"), "{all}");
            judge::imports(self.dir.path(), "tank").unwrap_or_else(|said| panic!("{said}"));
            text
        });
        self.ok("zpool import -d / tank");
        said
    }
}

/// The part of `zdb -C` about a top-level vdev.
fn child(said: &str, id: usize) -> String {
    let from = said.split(&format!("children[{id}]:")).nth(1).unwrap();
    from.split("children[").next().unwrap().to_owned()
}

#[test]
fn logs_come_and_go() {
    let lab = Lab::new();
    lab.files("a b l m n");
    lab.ok("zpool create -m none tank /a");
    lab.fails("zpool add tank", 2, "missing vdev specification");
    lab.fails("zpool add tank log /a", 1, "/a is part of active pool 'tank'");
    lab.fails(
        "zpool add -o ashift=12 tank log /l",
        1,
        "adding devices with different physical sector sizes is not allowed",
    );
    let shown = lab.ok("zpool add -n tank log mirror /l /m");
    let want = "would update 'tank' to the following configuration:\n\n\ttank\n\t  DIR/a\n\tlogs\n\t  mirror\n\t    DIR/l\n\t    DIR/m\n";
    assert_eq!(shown, want.replace("DIR", lab.dir.path().to_str().unwrap()));
    assert_eq!(lab.ok("zpool add tank log mirror /l /m"), "");
    let status = lab.ok("zpool status tank");
    assert!(status.contains("\tlogs\t\n") && status.contains("mirror-1"), "{status}");
    if let Some(said) = lab.judged() {
        assert!(child(&said, 1).contains("is_log: 1"), "{said}");
        assert!(said.contains("vdev_children: 2"), "{said}");
    }
    lab.fails("zpool remove tank /a", 1, "cannot remove DIR/a: out of space");
    lab.fails("zpool remove tank /l", 1, "cannot remove DIR/l: operation not supported on this type of pool");
    lab.fails("zpool remove tank /x", 1, "cannot remove DIR/x: no such device in pool");
    assert_eq!(lab.ok("zpool remove -n tank mirror-1"), "Memory that will be used after removing mirror-1: 0\n");
    assert_eq!(lab.ok("zpool remove tank mirror-1"), "");
    assert!(!lab.ok("zpool status tank").contains("logs"));
    // the vdev number is not reused; the devices are free
    assert_eq!(lab.ok("zpool add tank log /l"), "");
    assert_eq!(lab.ok("zpool add tank /b spare /m cache /n"), "");
    let status = lab.ok("zpool status tank");
    for part in ["logs", "/l", "/b", "cache", "/n", "spares", "/m"] {
        assert!(status.contains(part), "{part}: {status}");
    }
    if let Some(said) = lab.judged() {
        assert!(child(&said, 1).contains("type: 'hole'") && child(&said, 1).contains("is_hole: 1"), "{said}");
        assert!(child(&said, 2).contains("is_log: 1") && child(&said, 3).contains("is_log: 0"), "{said}");
        assert!(said.contains("hole_array[0]: 1") && said.contains("vdev_children: 4"), "{said}");
    }
    for device in ["/l", "/m", "/n"] {
        assert_eq!(lab.ok(&format!("zpool remove tank {device}")), "");
    }
    let status = lab.ok("zpool status tank");
    assert!(!["logs", "cache", "spares"].into_iter().any(|part| status.contains(part)), "{status}");
    lab.fails("zpool remove tank /b", 1, "cannot remove DIR/b: out of space");
    let history = lab.ok("zpool history -i tank");
    let dir = lab.dir.path().display();
    for line in [
        "vdev remove tank vdev (log) -".to_owned(),
        format!("vdev remove tank vdev (log) {dir}/l"),
        format!("vdev remove tank vdev (spare) {dir}/m"),
        format!("vdev remove tank vdev (l2cache) {dir}/n"),
        format!("zpool add tank {dir}/b spare {dir}/m cache {dir}/n"),
        "zpool remove tank mirror-1".to_owned(),
    ] {
        assert!(history.contains(&line), "{line}: {history}");
    }
    lab.judged();
}

#[test]
fn a_pool_goes_on_without_its_log_device() {
    let lab = Lab::new();
    lab.files("a l");
    lab.ok("zpool create -m none tank /a log /l");
    lab.ok("zpool export tank");
    std::fs::rename(lab.path("l"), lab.path("gone")).unwrap();
    std::fs::write(lab.path("gone"), b"").unwrap();
    lab.fails("zpool import -d / tank", 1, "cannot import 'tank': one or more devices is currently unavailable");
    lab.ok("zpool import -m -d / tank");
    let status = lab.ok("zpool status tank");
    assert!(status.contains("UNAVAIL"), "{status}");
    lab.ok("zfs create tank/fs");
    // its guid is its name now
    let guid = status.lines().find(|line| line.contains("UNAVAIL")).and_then(|l| l.split_whitespace().next());
    assert_eq!(lab.ok(&format!("zpool remove tank {}", guid.unwrap())), "");
    assert!(!lab.ok("zpool status tank").contains("UNAVAIL"));
    lab.judged();
}

/// The state that `zpool status` has of a device.
fn state(lab: &Lab, device: &str) -> String {
    let status = lab.ok("zpool status -P tank");
    let line = status.lines().find(|line| line.contains(device)).unwrap_or_else(|| panic!("{device}: {status}"));
    line.split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn logs_and_caches_go_offline_and_come_online() {
    let lab = Lab::new();
    lab.files("a l m n c");
    lab.ok("zpool create -m none tank /a log /l cache /c");
    for device in ["/l", "/c"] {
        assert_eq!(lab.ok(&format!("zpool offline tank {device}")), "");
        assert_eq!(state(&lab, &lab.path(&device[1..])), "OFFLINE");
    }
    lab.ok("zfs create tank/fs");
    // it stays so, and the pool needs neither
    lab.judged();
    for device in ["/l", "/c"] {
        assert_eq!(state(&lab, &lab.path(&device[1..])), "OFFLINE");
        assert_eq!(lab.ok(&format!("zpool online tank {device}")), "");
        assert_eq!(state(&lab, &lab.path(&device[1..])), "ONLINE");
    }
    lab.ok("zpool remove tank /l");
    // of a mirror both may go, one after the other
    lab.ok("zpool add tank log mirror /m /n");
    lab.ok("zpool offline tank /m /n");
    assert_eq!(state(&lab, "mirror-2"), "UNAVAIL");
    let told = "warning: device 'mirror-2' onlined, but remains in faulted state\nuse 'zpool replace' to replace devices that are no longer present\n";
    assert_eq!(lab.ok("zpool online tank mirror-2"), told);
    lab.ok("zfs create tank/fs/more");
    assert_eq!(lab.ok("zpool online tank /m /n"), "");
    assert_eq!(state(&lab, "mirror-2"), "ONLINE");
    assert_eq!(lab.ok("zpool online tank mirror-2"), "");
    lab.judged();
}

#[test]
fn a_checkpoint_that_has_nothing_on_a_log_device_lets_it_go() {
    let lab = Lab::new();
    lab.files("a l");
    lab.ok("zpool create -m none tank /a log /l");
    lab.ok("zpool checkpoint tank");
    // nothing of the checkpoint is on it
    assert_eq!(lab.ok("zpool offline tank /l"), "");
    assert_eq!(lab.ok("zpool online tank /l"), "");
    lab.ok("zpool checkpoint -d -w tank");
    lab.judged();
}
