//! A pool under a name that it has on this machine only (`zpool import -t`): commands that change it know it by that
//! name, and the devices keep the other one.
#![allow(clippy::unwrap_used)]

#[path = "support/lab.rs"]
mod lab;
mod support;

use lab::Lab;

#[test]
fn a_pool_under_a_temporary_name_is_changed_under_it() {
    let lab = Lab::new("tank");
    let device = lab.dir.path().join("tank");
    let device = device.to_str().unwrap();
    lab.ok("zpool export tank", b"");
    lab.ok(&format!("zpool import -t -d {device} tank temp"), b"");
    for line in [
        "zfs create temp/x",
        "mkdir temp/x:/d",
        "zfs snapshot -r temp@s",
        "zfs hold k temp/x@s",
        "zfs clone temp/x@s temp/y",
        "zfs rename temp/y temp/z",
        "zfs set compression=lz4 temp/z",
        "zpool checkpoint temp",
        "zpool checkpoint -d temp",
        "zpool scrub temp",
        "zpool sync temp",
        "zpool set comment=words temp",
        "zpool ddtprune -p 10 temp",
    ] {
        lab.ok(line, b"");
    }
    lab.fails("zfs create tank/x", b"", "no such pool");
    let stream = lab.ok("zfs send temp/x@s", b"");
    lab.ok("zfs receive temp/copy", &stream);
    assert_eq!(lab.text("ls temp/copy"), "d\n");
    assert_eq!(lab.text("zfs list -Ho name -r temp"), "temp\ntemp/copy\ntemp/x\ntemp/z\n");
    let history = lab.text("zpool history -i temp");
    assert!(
        history.contains("ioctl zpool_checkpoint") && history.contains("ioctl zpool_discard_checkpoint"),
        "{history}"
    );
    lab.ok("zpool export temp", b"");
    oracle::judge::no_leaks(lab.dir.path(), "tank");
    lab.ok(&format!("zpool import -d {device} tank"), b"");
    assert_eq!(lab.text("zfs list -Ho name -r tank"), "tank\ntank/copy\ntank/x\ntank/z\n");
}
