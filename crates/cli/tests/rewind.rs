//! `zpool import -F`: a pool whose newest state cannot be used.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/devices.rs"]
mod devices;
mod support;

use std::os::unix::fs::FileExt;
use std::time::Duration;

use devices::Lab;

/// Bytes before the first that can be allocated: labels and boot block.
const FRONT: u64 = 4 << 20;

/// Destroys all copies of the root block of the newest state of an exported pool.
fn lose_the_root(lab: &Lab) {
    let told = lab.ok("zdb -e -p / -u tank");
    let device = std::fs::File::options().write(true).open(lab.path("a")).unwrap();
    let mut hit = 0;
    for dva in told.split("DVA[").skip(1).map(|part| part.split_once("]=<0:").unwrap().1) {
        let offset = u64::from_str_radix(dva.split_once(':').unwrap().0, 16).unwrap();
        device.write_all_at(&[0xa5; 512], FRONT + offset).unwrap();
        hit += 1;
    }
    assert_eq!(hit, 3, "{told}");
}

/// Reading only, a state that is older is taken on request only, as for writing; and then it is what all commands see.
#[test]
fn an_older_state_is_read_or_written_only_on_request() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank /a");
    assert_eq!(lab.session.feed(&["put", "tank:/file"], b"old").code, 0);
    lab.ok("zpool export tank");
    lose_the_root(&lab);
    let why = "cannot import 'tank': I/O error\n\tRecovery is possible, but will result in some data loss.\n";
    lab.fails("zpool import -d / tank", 1, why);
    lab.fails("zpool import -o readonly=on -d / tank", 1, why);
    let would = lab.ok("zpool import -Fn -d / tank");
    assert!(would.starts_with("Would be able to return tank to its state as of "), "{would}");
    assert_eq!(lab.ok("zpool import -Fn -o readonly=on -d / tank"), would);
    let did = would.replace("Would be able to return tank", "Pool tank returned").replace("Would discard", "Discarded");

    let before = std::fs::read(lab.path("a")).unwrap();
    assert_eq!(lab.ok("zpool import -F -o readonly=on -d / tank"), did);
    assert_eq!(lab.ok("cat tank:/file"), "old");
    assert_eq!(lab.ok("zpool status -x"), "all pools are healthy\n");
    lab.ok("zpool export tank");
    assert!(std::fs::read(lab.path("a")).unwrap() == before, "the device has changed");

    // the time that passes until the import is not lost
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(lab.ok("zpool import -F -d / tank"), did);
    assert_eq!(lab.session.feed(&["put", "tank:/file"], b"new").code, 0);
    lab.ok("zpool export tank");
    lab.ok("zpool import -d / tank");
    assert_eq!(lab.ok("cat tank:/file"), "new");
    lab.export_and_judge("tank");
}
