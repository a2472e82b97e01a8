//! `zpool initialize` and `zpool trim`, alone and in a server, on files and on block devices.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/devices.rs"]
mod devices;
#[path = "support/loops.rs"]
mod loops;
#[path = "support/server.rs"]
mod server;
mod support;

use std::os::unix::fs::MetadataExt;

use devices::Lab;
use loops::Loop;
use server::{World, until};

/// Bytes that a file takes.
fn bytes(path: &str) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// What the status of the pool says behind the numbers of a device.
fn remark(lab: &Lab, flags: &str, device: &str) -> String {
    let told = lab.ok(&format!("zpool status {flags} tank"));
    let line = told.lines().find(|line| line.trim_start().starts_with(device)).unwrap();
    line.split_once("0     0     0").unwrap().1.to_owned()
}

#[test]
fn free_space_is_initialized_and_trimmed_while_the_command_waits() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 128M tank mirror /a /b");
    lab.ok("zfs create tank/files");
    assert_eq!(lab.session.feed(&["put", "tank/files:/data"], &vec![7; 4 << 20]).code, 0);
    let (a, b) = (lab.path("a"), lab.path("b"));
    assert_eq!(lab.ok("zpool initialize -w tank"), "");
    assert!(bytes(&a) > 100 << 20 && bytes(&b) > 100 << 20);
    assert!(remark(&lab, "-i", &a).starts_with("  (100% initialized, completed at "));
    assert_eq!(remark(&lab, "-t", &a), "  (untrimmed)");
    assert_eq!(remark(&lab, "-L", &a), "");

    lab.ok("zpool trim -w tank /b");
    assert!(bytes(&a) > 100 << 20 && bytes(&b) < 40 << 20);
    assert_eq!(remark(&lab, "-t", &a), "  (untrimmed)");
    assert!(remark(&lab, "-t", &b).starts_with("  (100% trimmed, completed at "));
    lab.ok("zpool trim --wait --rate 10G -a");
    assert!(bytes(&a) < 40 << 20);

    let history = lab.ok("zpool history -i tank");
    for (event, word, device) in
        [("initialize", "activated", &a), ("initialize", "complete", &b), ("trim", "complete", &a)]
    {
        assert!(history.contains(&format!("] {event} vdev={device} {word}")), "{history}");
    }
    let events = lab.ok("zpool events tank");
    assert!(["trim_start", "trim_finish"].iter().all(|class| events.contains(class)), "{events}");

    // done is done; forgotten, it begins anew
    lab.ok("zpool initialize -w tank");
    assert!(bytes(&a) < 40 << 20);
    lab.ok("zpool initialize -u tank /a");
    assert_eq!(remark(&lab, "-i", &a), "  (uninitialized)");
    lab.ok("zpool initialize -wz tank /a");
    assert!(bytes(&a) > 100 << 20 && bytes(&b) < 40 << 20);
    assert!(lab.ok("cat tank/files:/data").bytes().eq(std::iter::repeat_n(7, 4 << 20)));
    lab.export_and_judge("tank");
}

#[test]
fn what_is_begun_goes_on_with_the_next_command() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 256M tank /a");
    let a = lab.path("a");
    lab.ok("zpool trim -r 1 tank");
    assert_eq!(remark(&lab, "-L", &a), "  (trimming)");
    assert!(remark(&lab, "-t", &a).contains("% trimmed, started at "));
    let json = lab.session.json(&["zpool", "status", "-j", "-t", "tank"]);
    let leaf = &json["pools"]["tank"]["vdevs"]["tank"]["vdevs"][&a];
    assert_eq!((&leaf["trim_state"], &leaf["trim_notsup"]), (&"ACTIVE".into(), &"0".into()));
    lab.fails("zpool trim tank", 255, "cannot trim 'DIR/a': currently trimming");
    lab.ok("zpool trim -s tank");
    assert!(remark(&lab, "-t", &a).contains("% trimmed, suspended, started at "));
    lab.ok("zpool wait -t trim tank");
    lab.fails("zpool trim -s tank /a", 255, "cannot trim 'DIR/a': there is no active trim");
    lab.ok("zpool trim -r 1T tank");
    lab.ok("zpool wait -t initialize,trim tank");
    assert!(remark(&lab, "-t", &a).starts_with("  (100% trimmed, completed at "));
    lab.ok("zpool initialize tank");
    lab.ok("zpool initialize -c tank");
    assert_eq!(remark(&lab, "-i", &a), "  (uninitialized)");
    lab.fails("zpool initialize -c tank", 255, "cannot initialize 'DIR/a': there is no active initialization");
    lab.export_and_judge("tank");
}

#[test]
fn misuse_is_refused_in_the_words_of_openzfs() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank mirror /a /b");
    for (line, code, says) in [
        ("zpool trim", 2, "missing pool name argument"),
        ("zpool trim -c -s tank", 2, "-s cannot be combined with other options"),
        ("zpool trim -c -d tank", 2, "-d cannot be combined with the -c or -s options"),
        ("zpool trim -s -r 1M tank", 2, "-r cannot be combined with the -c or -s options"),
        ("zpool trim -r fast tank", 2, "invalid value for rate: bad numeric value 'fast'"),
        ("zpool trim -w -c tank", 2, "-w cannot be used with -c or -s options"),
        ("zpool trim -a tank", 2, "-a cannot be combined with individual zpools or vdevs"),
        ("zpool initialize -u -s tank", 2, "-s cannot be combined with other options"),
        ("zpool initialize -a tank", 2, "-a cannot be combined with individual pools or vdevs"),
        ("zpool initialize -z -c tank", 2, "-z cannot be used with -c, -s or -u"),
        ("zpool trim none", 255, "cannot open 'none': no such pool"),
        ("zpool trim tank /a /c", 255, "cannot trim 'DIR/c': no such device in pool"),
        ("zpool trim tank mirror-0", 255, "cannot trim 'mirror-0': invalid device"),
        ("zpool trim -d tank", 255, "cannot trim 'DIR/b': trim operations are not supported by this device"),
    ] {
        lab.fails(line, code, says);
    }
    assert_eq!(remark(&lab, "-t", &lab.path("a")), "  (untrimmed)");
}

#[test]
fn a_block_device_is_trimmed() {
    if let Some(why) = Loop::missing() {
        eprintln!("skipped: {why}");
        return;
    }
    let lab = Lab::new();
    let device = Loop::new(lab.dir.path(), "a", 128);
    lab.session.ok(&["zpool", "create", "-m", "none", "tank", device.path()]);
    lab.ok("zpool initialize -w tank");
    assert!(bytes(&lab.path("a")) > 100 << 20);
    lab.fails("zpool trim -d tank", 255, "trim operations are not supported by this device");
    lab.ok("zpool trim -w tank");
    assert!(bytes(&lab.path("a")) < 40 << 20);
    lab.ok("zpool export tank");
}

#[test]
fn in_a_server_it_goes_on_behind_the_command() {
    let mut world = World::new(256);
    world.serve(&[], 0);
    let a = world.path("pool/a").display().to_string();
    let status = |flags: &str| world.ok(&format!("zpool status {flags} t"));
    world.ok("zpool initialize t");
    until("it is initialized", || status("-i").contains("(100% initialized, completed at "));
    assert!(bytes(&a) > 200 << 20);
    world.ok("zpool trim -r 1 t");
    assert!(status("-L").contains("  (trimming)"));
    world.ok("zpool trim -s t");
    assert!(status("-t").contains("% trimmed, suspended, started at "));
    world.ok("zpool trim -w -r 1T t");
    assert!(status("-t").contains("(100% trimmed, completed at ") && bytes(&a) < 60 << 20);
    let refused = world.run("zpool trim -c t");
    assert_eq!(refused.status, Some(255), "{refused:?}");
    assert_eq!(refused.err.trim_end(), format!("cannot trim '{a}': there is no active trim"));
}
