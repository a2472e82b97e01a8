//! Pools on block devices: loop devices, if there are any. Otherwise the test prints why it does nothing.
#![allow(clippy::unwrap_used)]

#[path = "support/loops.rs"]
mod loops;
mod support;

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use loops::Loop;
use oracle::judge;
use support::Session;
use vdev::FileDevice;

/// More than the minimum, so that a file system fits too.
const MIB: u64 = 96;

/// One test at a time: each finds its pool by name among all devices of the machine.
static ALONE: Mutex<()> = Mutex::new(());

/// Devices `a`, `b`, `log` and `other` in a folder. The devices are dropped before the folder.
struct Lab {
    a: Loop,
    b: Loop,
    log: Loop,
    other: Loop,
    dir: tempfile::TempDir,
    session: Session,
    _alone: MutexGuard<'static, ()>,
}

impl Lab {
    /// Makes the devices; `None`, after printing why, if there are no loop devices.
    fn new() -> Option<Lab> {
        if let Some(why) = Loop::missing() {
            eprintln!("no loop devices here ({why}): pools on block devices are not tested");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let make = |name| Loop::new(dir.path(), name, MIB);
        let (a, b, log, other) = (make("a"), make("b"), make("log"), make("other"));
        Some(Lab { a, b, log, other, dir, session: Session::empty(), _alone: alone })
    }

    /// A command line with the devices in it.
    fn words<'a>(&'a self, line: &'a str) -> Vec<&'a str> {
        let word = |word| match word {
            "A" => self.a.path(),
            "B" => self.b.path(),
            "LOG" => self.log.path(),
            "OTHER" => self.other.path(),
            word => word,
        };
        line.split(' ').map(word).collect()
    }

    fn ok(&self, line: &str) -> String {
        self.session.ok(&self.words(line))
    }

    fn fails(&self, line: &str, says: &str) {
        self.session.fails(&self.words(line), 1, says);
    }

    /// Checks that the judge finds nothing wrong with the exported pool, on the devices themselves and in the files
    /// behind them.
    fn judge(&self) {
        judge::no_leaks(self.dir.path(), "tank");
        let Some(out) = judge::run("zdb", &["-l", self.a.path()]) else { return };
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.contains("name: 'tank'") && text.contains("type: 'disk'"), "{text}");
    }
}

#[test]
fn a_pool_lives_on_block_devices() {
    let Some(lab) = Lab::new() else { return };
    lab.ok("zpool create -m none tank mirror A B log LOG");
    let status = lab.ok("zpool status tank");
    for name in ["mirror-0  ", lab.a.name(), lab.b.name(), lab.log.name()] {
        assert!(status.contains(name) && !status.contains("/dev/"), "{status}");
    }
    assert!(lab.ok("zpool status -P tank").contains(lab.a.path()));

    lab.ok("zfs create tank/files");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
    let put = lab.session.feed(&["put", "tank/files:/data"], &bytes);
    assert_eq!((put.code, put.err.as_str()), (0, ""));
    lab.ok("zpool scrub -w tank");
    assert!(lab.ok("zpool iostat -v tank").contains(&format!("\n    {} ", lab.b.name())));
    lab.ok("zpool export tank");
    lab.judge();
    for device in [&lab.a, &lab.b, &lab.log] {
        let own = lab.session.ok(&["zdb", "-l", device.path()]);
        assert!(own.contains("name: 'tank'") && own.contains(&format!("path: '{}'", device.path())), "{own}");
    }

    // a whole folder of devices of all kinds is searched
    let found = lab.ok("zpool import -d /dev");
    assert!(found.contains("  pool: tank\n") && found.contains(lab.log.name()), "{found}");
    lab.ok("zpool import -N -d /dev tank");
    assert_eq!(lab.session.run(&["cat", "tank/files:/data"]).out.len(), String::from_utf8_lossy(&bytes).len());
    assert_eq!(lab.ok("zpool status -x"), "all pools are healthy\n");
    lab.ok("zpool export tank");
    lab.ok(&format!("zpool import -d {} -d {} -d {} tank", lab.a.path(), lab.b.path(), lab.log.path()));
    lab.ok("zpool remove tank LOG");
    lab.ok("zpool export tank");
    lab.judge();
}

#[test]
fn devices_in_use_are_refused() {
    let Some(lab) = Lab::new() else { return };
    lab.ok("zpool create -m none tank mirror A B");
    let a = lab.a.path();
    lab.fails("zpool create -m none second A", &format!("{a} is part of active pool 'tank'\n"));
    lab.fails("zpool create -f -m none second A", &format!("{a} is part of active pool 'tank'\n"));
    lab.fails("zpool add tank log B", &format!("{} is part of active pool 'tank'\n", lab.b.path()));

    // another process holds it
    let held = FileDevice::open_read_write(Path::new(a)).unwrap();
    let busy = lab.session.run(&["-o", "busy_wait=1", "zfs", "create", "tank/x"]);
    assert!(busy.code == 1 && busy.err.starts_with("cannot open 'tank': pool is busy\n"), "{busy:?}");
    drop(held);
    lab.ok("zfs create tank/x");
    lab.ok("zpool export tank");
    lab.fails("zpool create -m none second A", &format!("{a} is part of exported pool 'tank'\n"));
    lab.judge();
}

#[test]
fn another_file_system_is_named_and_refused() {
    let Some(lab) = Lab::new() else { return };
    let made = Command::new("mkfs.ext4").args(["-q", "-F", lab.other.path()]).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("no mkfs.ext4 here: file systems on block devices are not tested");
        return;
    }
    let says = format!("{} contains a filesystem of type 'ext4'\n", lab.other.path());
    lab.fails("zpool create -m none tank OTHER", &says);
    let mounted = lab.dir.path().join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    let mount = Command::new("mount").args([lab.other.path(), mounted.to_str().unwrap()]).status();
    if mount.is_ok_and(|status| status.success()) {
        // nor with force
        let run = lab.session.run(&lab.words("-o busy_wait=1 zpool create -f -m none tank OTHER"));
        let unmounted = Command::new("umount").arg(&mounted).status().unwrap();
        assert!(run.code == 1 && run.err.contains(&format!("{} is in use", lab.other.path())), "{run:?}");
        assert!(unmounted.success());
    }
    lab.ok("zpool create -f -m none tank OTHER");
    lab.ok("zpool export tank");
    judge::no_leaks(lab.dir.path(), "tank");
    // nothing is left of the old contents
    lab.fails("zpool create -m none second OTHER", "is part of exported pool 'tank'\n");
}
