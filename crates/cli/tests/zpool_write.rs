//! `zpool` on pools that it creates and changes. OpenZFS's `zdb` judges what is on the devices.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/devices.rs"]
mod devices;
mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::Env;
use devices::Lab;
use oracle::judge::{self, no_leaks};
use support::Session;

/// The minimum size of a device.
const SIZE: &str = "64M";

impl Lab {
    /// Creates a pool `tank`, with devices as long as needed.
    fn create(&self, line: &str) {
        assert_eq!(self.ok(&format!("zpool create -m none --size {SIZE} {line}")), "", "{line}");
    }
}

/// The bytes at the start of a device.
fn front(path: &str) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = vec![0; 1 << 20];
    std::fs::File::open(path).unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn pools_of_disks_and_mirrors() {
    for (n, vdevs) in ["/a /b", "mirror /a /b mirror /c /d"].iter().enumerate() {
        let lab = Lab::new();
        lab.create(&format!("tank{n} {vdevs}"));
        lab.export_and_judge(&format!("tank{n}"));
    }
}

#[test]
fn pools_with_parity() {
    for vdevs in ["raidz /a /b /c", "raidz2 /a /b /c /d", "raidz3 /a /b /c /d /e"] {
        let lab = Lab::new();
        lab.create(&format!("tank {vdevs}"));
        lab.export_and_judge("tank");
    }
    // the space that a dRAID reserves for expansions needs room
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 128M tank draid2:2d:6c:1s /a /b /c /d /e /f");
    lab.export_and_judge("tank");
}

#[test]
fn pools_with_devices_for_special_uses() {
    for vdevs in ["/a log /b", "mirror /a /b special mirror /c /d dedup mirror /e /f log mirror /g /h"] {
        let lab = Lab::new();
        lab.create(&format!("tank {vdevs}"));
        lab.export_and_judge("tank");
    }
    let lab = Lab::new();
    lab.create("tank /a spare /b cache /c");
    let status = lab.ok("zpool status tank");
    assert!(status.contains("AVAIL") && !status.contains("UNAVAIL"), "{status}");
    lab.export_and_judge("tank");
}

#[test]
fn pools_with_and_without_features() {
    for (options, edonr) in [
        ("-o compatibility=legacy", "disabled"),
        ("-o feature@log_spacemap=disabled", "enabled"),
        ("-d -o feature@edonr=enabled", "enabled"),
    ] {
        let lab = Lab::new();
        lab.create(&format!("{options} tank /a"));
        assert_eq!(lab.ok("zpool get -Ho value feature@edonr tank").trim(), edonr, "{options}");
        lab.export_and_judge("tank");
    }
}

#[test]
fn sectors_of_every_size() {
    for ashift in [9, 12, 13] {
        let lab = Lab::new();
        lab.create(&format!("-o ashift={ashift} tank raidz /a /b /c"));
        assert_eq!(lab.ok("zpool get -Hpo value ashift tank").trim(), ashift.to_string());
        lab.export_and_judge("tank");
    }
}

#[test]
fn properties_are_set_when_a_pool_is_made() {
    let lab = Lab::new();
    lab.create("-o comment=made -o autotrim=on -O compression=zstd-3 -O recordsize=1M -O a:b=c -O atime=off tank /a");
    assert_eq!(lab.ok("zpool get -Ho value comment,autotrim,readonly tank"), "made\non\noff\n");
    let wanted = "zstd-3\tlocal\n1M\tlocal\nc\tlocal\noff\tlocal\nnone\tlocal\n";
    assert_eq!(lab.ok("zfs get -Ho value,source compression,recordsize,a:b,atime,mountpoint tank"), wanted);
    lab.export_and_judge("tank");

    let lab = Lab::new();
    lab.create("-O casesensitivity=mixed -O normalization=formD tank /a");
    let wanted = "mixed\nformD\non\n";
    assert_eq!(lab.ok("zfs get -Ho value casesensitivity,normalization,utf8only tank"), wanted);
}

#[test]
fn snapshots_of_a_file_system_that_ignores_case_do_so_too() {
    let lab = Lab::new();
    lab.create("-O casesensitivity=insensitive tank /a");
    lab.ok("zfs create tank/i");
    lab.ok("zfs create -o casesensitivity=mixed tank/m");
    lab.ok("zfs create -s -V 1M tank/v");
    for name in ["i", "m", "v"] {
        lab.ok(&format!("zfs snapshot tank/{name}@Snap"));
    }
    lab.fails("zfs snapshot tank/i@sNAP", 1, "dataset already exists");
    lab.ok("zfs bookmark tank/i@snap tank/i#Mark");
    lab.fails("zfs bookmark tank/i@snap tank/i#mARK", 1, "bookmark exists");
    lab.ok("zfs clone tank/i@SNAP tank/c");
    lab.ok("zfs promote tank/c");
    lab.fails("zfs snapshot tank/c@sNAP", 1, "dataset already exists");
    lab.ok("zfs rename tank/c@snap tank/c@Other");
    assert_eq!(lab.ok("zfs list -Ho name -t snapshot -r tank/c"), "tank/c@Other\n");
    // the names of the other kind of file systems, of volumes and of the topmost file system are exact
    for name in ["m", "v"] {
        lab.ok(&format!("zfs snapshot tank/{name}@sNAP"));
    }
    lab.ok("zfs snapshot tank@Snap");
    lab.ok("zfs snapshot tank@sNAP");
    lab.ok("zpool export tank");
    if let Some(found) = judge::run("zdb", &["-e", "-p", &lab.path(""), "-d", "tank/c@OTHER"]) {
        assert!(found.status.success(), "{found:?}");
        let missing = judge::run("zdb", &["-e", "-p", &lab.path(""), "-d", "tank/m@SNAP"]).unwrap();
        assert!(!missing.status.success(), "{missing:?}");
    }
    lab.ok("zpool import -d / tank");
    lab.ok("zfs promote tank/i");
    lab.ok("zfs destroy -r tank/c");
    lab.ok("zfs destroy tank/i@oTHER");
    assert_eq!(lab.ok("zfs list -Ho name -t snapshot -r tank/i"), "");
    lab.export_and_judge("tank");
}

#[test]
fn a_dry_run_shows_the_layout_and_makes_nothing() {
    let lab = Lab::new();
    let line = "zpool create -fn --size 128M tank mirror /a /b raidz2 /c /d /e draid1:2d:4c:1s /f /g /h /i \
                log /j special mirror /k /l dedup /m cache /n spare /o";
    let shown = lab.ok(line).replace(lab.dir(), "");
    let wanted = "would create 'tank' with the following layout:\n\n\
                  \ttank\n\t  mirror\n\t    /a\n\t    /b\n\t  raidz2\n\t    /c\n\t    /d\n\t    /e\n\
                  \t  draid1:2d:4c:1s\n\t    /f\n\t    /g\n\t    /h\n\t    /i\n\
                  \tdedup\n\t  /m\n\tspecial\n\t  mirror\n\t    /k\n\t    /l\n\tlogs\n\t  /j\n\
                  \tcache\n\t  /n\n\tspares\n\t  /o\n";
    assert_eq!(shown, wanted);
    assert_eq!(std::fs::read_dir(lab.dir.path()).unwrap().count(), 0);
}

#[test]
fn bad_vdevs_are_refused_and_nothing_is_written() {
    let lab = Lab::new();
    for (name, mib) in [("a", 64), ("b", 64), ("c", 64), ("large", 128), ("small", 32)] {
        lab.file(name, mib);
    }
    let replication = "invalid vdev specification\nuse '-f' to override the following errors:\n";
    for (vdevs, says) in [
        ("nothere", "cannot open 'nothere': no such device in /dev\nmust be a full path or shorthand device name\n"),
        ("/nothere", "cannot resolve path 'DIR/nothere'\n"),
        ("/.", "cannot use 'DIR/.': must be a block device or regular file\n"),
        ("/small", "cannot create 'tank': one or more devices is less than the minimum size (64M)\n"),
        ("mirror /a", "invalid vdev specification: mirror requires at least 2 devices\n"),
        ("mirror /a /a", "cannot create 'tank': one or more vdevs refer to the same device, or one of\nthe devices"),
        ("mirror /a /large", &format!("{replication}mirror contains devices of different sizes\n")),
        (
            "/a mirror /b /c",
            &format!("{replication}mismatched replication level: both file and mirror vdevs are present\n"),
        ),
        ("log /a", "at least one general top-level vdev must be specified\n"),
        ("raidz1 /a /b spare", "spare requires at least 1 device"),
    ] {
        lab.fails(&format!("zpool create -m none tank {vdevs}"), 1, says);
    }
    lab.fails("zpool create", 2, "missing pool name argument\nusage:\n\tcreate [-fnd]");
    lab.fails("zpool create tank", 2, "missing vdev specification\nusage:\n\tcreate [-fnd]");
    for name in ["a", "b", "c", "large", "small"] {
        assert!(front(&lab.path(name)).iter().all(|byte| *byte == 0), "{name}");
    }
    assert_eq!(lab.ok("zpool list"), "no pools available\n");
}

#[test]
fn bad_names_and_properties_are_refused_and_nothing_is_written() {
    let lab = Lab::new();
    for (words, says) in [
        ("mirror1 /a", "cannot create 'mirror1': name is reserved\npool name may have been omitted\n"),
        ("1tank /a", "cannot create '1tank': name must begin with a letter\n"),
        ("tank@x /a", "cannot create 'tank@x': invalid character '@' in pool name\n"),
        (
            "tank/fs /a",
            "cannot create 'tank/fs': invalid character '/' in pool name\nuse 'zfs create' to create a dataset\n",
        ),
        (
            "-o ashift=8 tank /a",
            "cannot create 'tank': property 'ashift' number 8 is invalid, only values between 9 and 16 are allowed.\n",
        ),
        ("-o nope=1 tank /a", "property 'nope' is not a valid pool or vdev property\n"),
        ("-o ashift tank /a", "missing '=' for -o option\n"),
        ("-o ashift=9 -o ashift=9 tank /a", "property 'ashift' specified multiple times\n"),
        ("-o feature@nope=enabled tank /a", "cannot create 'tank': feature 'nope' unsupported by kernel\n"),
        ("-o failmode=x tank /a", "cannot create 'tank': 'failmode' must be one of 'wait | continue | panic'\n"),
        ("-o compatibility=nope tank /a", "Error: could not read/parse feature file(s): nope \n"),
        ("-O nope=1 tank /a", "property 'nope' is not a valid filesystem property\n"),
        ("-O recordsize=3K tank /a", "cannot create 'tank': 'recordsize' must be power of 2 from 512B to 16M\n"),
        ("-d -O compression=zstd tank /a", "cannot create 'tank': operation not supported on this type of pool\n"),
        ("-R nowhere tank /a", "invalid alternate root 'nowhere': must be an absolute path\n"),
    ] {
        lab.fails(&format!("zpool create -m none --size {SIZE} {words}"), 1, says);
    }
    let place = "invalid mountpoint 'x': must be an absolute path, 'legacy', or 'none'\n";
    lab.fails(&format!("zpool create --size {SIZE} -m x tank /a"), 1, place);
    lab.fails("zpool create -m none --size lots tank /a", 2, "--size: bad numeric value 'lots'");
    assert_eq!(std::fs::read_dir(lab.dir.path()).unwrap().count(), 0);
}

#[test]
fn devices_in_use_are_refused() {
    let lab = Lab::new();
    lab.create("tank /a cache /b spare /c");
    let refused = |force: bool, why: &str| match force {
        false => format!("invalid vdev specification\nuse '-f' to override the following errors:\n{why}\n"),
        true => format!("invalid vdev specification\nthe following errors must be manually repaired:\n{why}\n"),
    };
    let active = "DIR/a is part of active pool 'tank'";
    lab.fails("zpool create -m none other /a", 1, &refused(false, active));
    lab.fails("zpool create -f -m none other /a", 1, &refused(true, active));
    lab.fails("zpool create -f -m none other /b", 1, &refused(true, "DIR/b is part of active pool 'tank'"));
    let spare = "DIR/c is reserved as a hot spare for pool tank";
    lab.fails("zpool create -f -m none other /c", 1, &refused(true, spare));
    lab.fails(&format!("zpool create --size {SIZE} -m none tank /d"), 1, "cannot create 'tank': pool already exists\n");
    lab.fails("zpool labelclear -f /a", 1, "DIR/a is a member (ACTIVE) of pool \"tank\"");
    lab.ok("zpool export tank");
    lab.fails("zpool create -m none other /a", 1, &refused(false, "DIR/a is part of exported pool 'tank'"));
    lab.fails("zpool labelclear /a", 1, "DIR/a is a member of exported pool \"tank\"\n");
    lab.ok("zpool create -f -m none other /a");
    lab.ok("zpool export other");
    lab.ok("zpool labelclear -f /a");
    lab.fails("zpool labelclear /a", 1, "failed to read label from DIR/a\n");
    lab.fails("zpool import other", 1, "cannot import 'other': no such pool available\n");
}

#[test]
fn foreign_file_systems_are_refused() {
    let lab = Lab::new();
    let path = lab.file("a", 64);
    let mut device = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::io::Write::write_all(&mut device, b"XFSB").unwrap();
    let before = front(&path);
    let why = "use '-f' to override the following errors:\nDIR/a contains a filesystem of type 'xfs'\n";
    lab.fails("zpool create -m none tank /a", 1, why);
    assert_eq!(front(&path), before);
    lab.ok("zpool create -f -m none tank /a");
}

#[test]
fn a_pool_is_changed_exported_and_imported() {
    let lab = Lab::new();
    lab.create("tank /a");
    lab.fails("zpool set size=1 tank", 1, "cannot set property for 'tank': 'size' is readonly\n");
    lab.fails("zpool set nope=1 tank", 1, "cannot set property for 'tank': invalid property 'nope'\n");
    lab.fails("zpool set comment tank", 2, "missing value in property=value argument\n");
    lab.fails("zpool set comment=x nope", 1, "cannot open 'nope': is not a pool\n");
    for setting in ["comment=changed", "failmode=continue", "a:b=c", "bootfs=tank"] {
        lab.ok(&format!("zpool set {setting} tank"));
    }
    let wanted = "changed\ncontinue\nc\ntank\n";
    assert_eq!(lab.ok("zpool get -Ho value comment,failmode,a:b,bootfs tank"), wanted);
    let dir = lab.dir().to_owned();
    lab.ok("zpool export tank");
    assert_eq!(lab.ok("zpool list"), "no pools available\n");

    lab.session.ok(&["zpool", "import", "-d", &dir, "-o", "autotrim=on", "-R", "/alt", "tank", "other"]);
    let wanted = "other\nchanged\ncontinue\non\n/alt\n";
    assert_eq!(lab.ok("zpool get -Ho value name,comment,failmode,autotrim,altroot other"), wanted);
    lab.export_and_judge("other");

    let history = ["zpool import -d", "-o autotrim=on -R /alt tank other", "zpool set a:b=c tank", "zpool export tank"];
    lab.session.ok(&["zpool", "import", "-d", &dir, "-o", "readonly=on", "other"]);
    let shown = lab.ok("zpool history other");
    assert!(history.iter().all(|line| shown.contains(line)), "{shown}");
    assert!(
        shown.lines().nth(1).is_some_and(|line| line.contains(" zpool create -m none --size 64M tank ")),
        "{shown}"
    );
    lab.fails("zpool set comment=x other", 1, "cannot set property for 'other': pool is read-only\n");
    lab.fails("zpool destroy other", 1, "cannot destroy 'other': one or more devices is read only\n");
    assert_eq!(lab.ok("zpool get -Ho value readonly other"), "on\n");
}

#[test]
fn a_temporary_name_does_not_get_to_the_devices() {
    let lab = Lab::new();
    lab.create("-t now tank /a");
    lab.ok("zpool set comment=x now");
    lab.fails("zpool set comment=x tank", 1, "is not a pool");
    let dir = lab.dir().to_owned();
    lab.ok("zpool export now");
    lab.session.ok(&["zpool", "import", "-d", &dir, "-t", "tank", "later"]);
    lab.ok("zpool set comment=y later");
    lab.ok("zpool export later");
    no_leaks(lab.dir.path(), "tank");
}

#[test]
fn a_destroyed_pool_can_be_brought_back() {
    let lab = Lab::new();
    let dir = lab.dir().to_owned();
    lab.create("tank mirror /a /b");
    lab.fails("zpool destroy tank/fs", 1, "use 'zfs destroy' to destroy a dataset");
    lab.ok("zpool destroy tank");
    lab.fails("zpool destroy tank", 1, "cannot open 'tank': no such pool\n");
    lab.session.fails(&["zpool", "import", "-d", &dir, "tank"], 1, "no such pool available");
    assert!(lab.session.ok(&["zpool", "import", "-d", &dir, "-D"]).contains("ONLINE (DESTROYED)"));
    lab.session.ok(&["zpool", "import", "-d", &dir, "-D", "tank"]);
    lab.export_and_judge("tank");
}

#[test]
fn a_missing_log_needs_a_word() {
    let lab = Lab::new();
    let dir = lab.dir().to_owned();
    lab.create("tank /a log /b");
    lab.ok("zpool export tank");
    let away = tempfile::tempdir().unwrap();
    std::fs::copy(lab.path("b"), away.path().join("b")).unwrap();
    std::fs::remove_file(lab.path("b")).unwrap();
    let why = "cannot import 'tank': one or more devices is currently unavailable\n";
    lab.session.fails(&["zpool", "import", "-d", &dir, "tank"], 1, why);
    lab.session.ok(&["zpool", "import", "-d", &dir, "-m", "tank"]);
    lab.ok("zpool set comment=alone tank");
    lab.ok("zpool export tank");
    std::fs::copy(away.path().join("b"), lab.path("b")).unwrap();
    lab.session.ok(&["zpool", "import", "-d", &dir, "tank"]);
    assert_eq!(lab.ok("zpool get -Ho value comment,health tank"), "alone\nONLINE\n");
    lab.export_and_judge("tank");
}

#[test]
fn a_pool_of_another_host_needs_force() {
    let session = Session::on_copy("logsm-a");
    let images = session.images();
    let why = "cannot import 'logsma': pool was previously in use from another system.\n\
               Last accessed by oracle (hostid=12345678) at Sat Nov 21 08:38:22 2026\n\
               The pool can be imported, use 'zpool import -f' to import the pool.\n";
    session.fails(&["zpool", "import", "-d", &images, "logsma"], 1, why);
    session.ok(&["zpool", "import", "-d", &images, "-f", "logsma"]);
    session.ok(&["zpool", "export", "logsma"]);
    // it belongs to this host now
    session.ok(&["zpool", "import", "-d", &images, "logsma"]);
    session.ok(&["zpool", "export", "logsma"]);
    no_leaks(Path::new(&images), "logsma");
}

#[test]
fn pools_of_openzfs_are_changed() {
    for fixture in ["basic-a", "raidz2-a", "logsm-a"] {
        let session = Session::on_copy(fixture);
        let (images, pool) = (session.images(), session.pool());
        session.ok(&["zpool", "import", "-d", &images, "-f", &pool]);
        session.ok(&["zpool", "set", "comment=by Zuse", &pool]);
        session.ok(&["zpool", "condense", "-t", "log_spacemap", &pool]);
        session.ok(&["zpool", "export", &pool]);
        no_leaks(Path::new(&images), &pool);
    }
}

#[test]
fn features_are_enabled_later() {
    let lab = Lab::new();
    lab.create("-d tank /a");
    lab.ok("zpool set feature@edonr=enabled tank");
    let listed = lab.ok("zpool upgrade");
    assert!(listed.contains("POOL  FEATURE\n---------------\ntank\n      async_destroy\n"), "{listed}");
    assert!(!listed.contains("      edonr\n") && listed.contains("      dynamic_gang_header(*)\n"), "{listed}");
    let upgraded = lab.ok("zpool upgrade tank");
    assert!(upgraded.contains("Enabled the following features on 'tank':\n  async_destroy\n"), "{upgraded}");
    let again = "This system supports ZFS pool feature flags.\n\n\
                 Pool 'tank' already has all supported and requested features enabled.\n";
    assert_eq!(lab.ok("zpool upgrade tank"), again);
    lab.fails("zpool upgrade -a tank", 2, "-a option should not be used along with a pool name\n");
    lab.ok("zpool set compatibility=off tank");
    lab.export_and_judge("tank");
}

#[test]
fn a_scrub_is_recorded() {
    let lab = Lab::new();
    lab.create("tank raidz /a /b /c");
    lab.fails("zpool scrub -s tank", 1, "cannot cancel scrubbing tank: there is no active scrub\n");
    assert_eq!(lab.ok("zpool scrub -p tank"), "", "there is nothing to pause");
    lab.fails("zpool scrub -s -p tank", 2, "-s and -p are mutually exclusive\n");
    let refused = "invalid option combination: start/end date is available only with normal scrub\n";
    lab.fails("zpool scrub -C -S 2025-01-01 tank", 2, refused);
    lab.fails("zpool scrub -S 2025-01-03 -E 2025-01-01 tank", 2, "end date has to be later than start date\n");
    lab.fails("zpool scrub -E yesterday tank", 2, "Failed to parse the date.\n");
    assert_eq!(lab.ok("zpool scrub -w tank"), "");
    lab.ok("zpool checkpoint tank");
    let warning = "warning: will not scrub state that belongs to the checkpoint of pool 'tank'\n";
    assert_eq!(lab.ok("zpool scrub tank"), warning);
    assert_eq!(lab.ok("zpool scrub -e tank"), "");
    lab.ok("zpool checkpoint -d tank");
    lab.ok("zpool scrub -C tank");
    lab.ok("zpool scrub -S 2025-01-01 -E 2039-01-01 tank");
    // no block is known to be damaged
    assert_eq!(lab.ok("zpool scrub -e tank"), "");
    lab.fails("zpool ddtprune tank", 2, "missing amount option (-d|-p <value>)\n");
    lab.fails("zpool ddtprune -d 0 tank", 2, "invalid days value\n");
    lab.fails("zpool ddtprune -p 101 tank", 2, "invalid percentage value\n");
    lab.ok("zpool ddtprune -p 100 tank");
    lab.ok("zpool prefetch tank");
    lab.fails("zpool prefetch -t arc tank", 2, "unsupported prefetch type\n");
    lab.ok("zpool sync tank");
    let status = lab.ok("zpool status tank");
    assert!(status.contains("scan: scrub repaired 0B in 00:00:0") && status.contains("with 0 errors"), "{status}");
    lab.export_and_judge("tank");
}

#[test]
fn an_error_scrub_is_told_as_json() {
    let lab = Lab::new();
    lab.create("tank /a");
    let content = Env::noise(5, 4096);
    std::fs::write(lab.path("one"), &content).unwrap();
    lab.ok("cp -q /one tank:/one");
    let mut device = std::fs::read(lab.path("a")).unwrap();
    let at = device.windows(512).position(|bytes| bytes == &content[..512]).unwrap();
    device[at] ^= 1;
    std::fs::write(lab.path("a"), &device).unwrap();
    lab.ok("zpool scrub tank");
    assert!(!lab.ok("zpool status -j tank").contains("err_scrub"));
    // the times are whole seconds
    std::thread::sleep(Duration::from_millis(1100));
    lab.ok("zpool scrub -e tank");
    let told = lab.ok("zpool status -j --json-int tank");
    for part in [
        "\"err_scrub_func\":\"ERRORSCRUB\"",
        "\"err_scrub_state\":\"FINISHED\"",
        "\"err_scrub_examined\":1",
        "\"err_scrub_to_examine\":0",
        "\"err_scrub_pause\":0",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let history = lab.ok("zpool history -i tank");
    assert!(history.contains("ioctl scrub") && history.contains("scan_type: 3"), "{history}");
}

#[test]
fn commands_wait_for_each_other() {
    let lab = Lab::new();
    lab.create("tank /a");
    let device = std::fs::File::options().write(true).open(lab.path("a")).unwrap();
    device.lock().unwrap();
    let held = Duration::from_millis(300);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(held);
            device.unlock().unwrap();
        });
        // commands that only read need not wait
        assert_eq!(lab.ok("zpool list -Ho name"), "tank\n");
        lab.ok("zpool set comment=waited tank");
    });
    assert!(start.elapsed() >= held);
    assert_eq!(lab.ok("zpool get -Ho value comment tank"), "waited\n");
}

#[test]
fn a_busy_pool_is_told() {
    let lab = Lab::new();
    lab.create("tank /a");
    let device = std::fs::File::options().write(true).open(PathBuf::from(lab.path("a"))).unwrap();
    device.lock().unwrap();
    lab.fails(
        "-o busy_wait=1 zpool set comment=x tank",
        1,
        "cannot open 'tank': pool is busy\nDIR/a is in use by process ",
    );
    drop(device);
    lab.ok("zpool export tank");
}

#[test]
fn what_came_after_a_checkpoint_is_given_up() {
    let lab = Lab::new();
    lab.create("tank /a");
    lab.fails("zpool import --rewind-to-checkpoint -d / nopool", 1, "no such pool available");
    lab.ok("zfs create -o mountpoint=none tank/kept");
    lab.ok("zpool checkpoint tank");
    lab.ok("zfs create -o mountpoint=none tank/given-up");
    lab.ok("zfs destroy tank/kept");
    lab.ok("zpool export tank");
    // a read-only import of it changes nothing
    lab.ok("zpool import --rewind-to-checkpoint -o readonly=on -d / tank");
    assert_eq!(lab.ok("zfs list -Hro name tank"), "tank\ntank/kept\n");
    lab.ok("zpool export tank");
    lab.ok("zpool import -d / tank");
    assert_eq!(lab.ok("zfs list -Hro name tank"), "tank\ntank/given-up\n");
    lab.ok("zpool export tank");
    lab.ok("zpool import --rewind-to-checkpoint -d / tank");
    assert_eq!(lab.ok("zfs list -Hro name tank"), "tank\ntank/kept\n");
    lab.fails("zpool checkpoint -d tank", 1, "cannot discard checkpoint in 'tank': checkpoint does not exist");
    lab.ok("zfs create -o mountpoint=none tank/new");
    lab.export_and_judge("tank");
    lab.fails("zpool import --rewind-to-checkpoint -d / tank", 1, "cannot import 'tank'");
}

#[test]
fn a_state_to_go_back_to() {
    let lab = Lab::new();
    lab.create("tank mirror /a /b");
    assert_eq!(lab.ok("zpool checkpoint tank"), "");
    lab.fails("zpool checkpoint tank", 1, "cannot checkpoint 'tank': checkpoint exists");
    lab.ok("zpool set comment=since tank");
    assert!(lab.ok("zpool status tank").contains("checkpoint: created"));
    lab.export_and_judge("tank");
    lab.ok("zpool import -d / tank");
    assert_eq!(lab.ok("zpool checkpoint -d tank"), "");
    lab.fails("zpool checkpoint -d tank", 1, "cannot discard checkpoint in 'tank': checkpoint does not exist");
    assert_eq!(lab.ok("zpool clear tank"), "");
    lab.fails("zpool clear tank nodisk", 1, "cannot clear errors for nodisk: no such device in pool");
    lab.export_and_judge("tank");
}

#[test]
fn pools_share_a_spare_and_each_has_it_once() {
    let lab = Lab::new();
    lab.create("tank mirror /a /b spare /s");
    lab.create("made /c spare /s");
    lab.create("other /d");
    let line = |pool: &str| {
        let text = lab.ok(&format!("zpool status -g {pool}"));
        text.lines().skip_while(|line| line.trim() != "spares").nth(1).map(str::trim).unwrap_or_default().to_owned()
    };
    let spare = line("tank");
    assert!(spare.ends_with(" AVAIL"), "{spare}");
    lab.fails("zpool add tank spare /s", 1, "cannot add to 'tank': one or more vdevs refer to the same device");
    lab.ok("zpool add other spare /s");
    lab.fails("zpool add other spare /s", 1, "cannot add to 'other': one or more vdevs refer to the same device");
    for pool in ["tank", "made", "other"] {
        assert_eq!(line(pool).split(' ').next(), spare.split(' ').next(), "{pool}");
        assert!(line(pool).ends_with(" AVAIL"), "{pool}");
    }
    lab.fails("zpool labelclear /s", 1, "DIR/s is a member (SPARE) of pool \"made\"\n");
    lab.ok("zpool remove other /s");
    assert!(line("other").is_empty() && line("tank").ends_with(" AVAIL"));
    for pool in ["tank", "made", "other"] {
        lab.export_and_judge(pool);
    }
    lab.ok("zpool import -d / tank");
    assert_eq!(line("tank").split(' ').next(), spare.split(' ').next());
}

#[test]
fn a_pool_without_enough_devices_says_so() {
    let lab = Lab::new();
    lab.create("tank mirror /a /b log /c");
    lab.ok("zpool export tank");
    let why = "cannot import 'tank': one or more devices is currently unavailable\n";
    for device in ["a", "b"] {
        std::fs::remove_file(lab.path(device)).unwrap();
    }
    for options in ["", " -o readonly=on"] {
        lab.fails(&format!("zpool import -d /{options} tank"), 1, why);
    }
}
