//! Blocks that a command could not read are among the pool's permanent errors, whichever command met them.
#![allow(clippy::unwrap_used)]

#[path = "support/devices.rs"]
mod devices;
mod support;

use devices::Lab;

/// Destroys what is on a device of a file that was filled with this byte.
fn damage(device: &str, filled: u8) {
    let mut bytes = std::fs::read(device).unwrap();
    let mut hit = 0;
    // between the labels
    for sector in bytes[4 << 20..].chunks_mut(512).filter(|sector| sector.iter().all(|byte| *byte == filled)) {
        sector.fill(!filled);
        hit += 1;
    }
    assert!(hit > 10, "{hit}");
    std::fs::write(device, bytes).unwrap();
}

/// The files in the list of permanent errors.
fn listed(lab: &Lab) -> Vec<String> {
    let told = lab.ok("zpool status -v tank");
    let Some((_, list)) = told.split_once("Permanent errors have been detected in the following files:\n\n") else {
        assert!(told.contains("errors: No known data errors"), "{told}");
        return Vec::new();
    };
    list.lines().map(|line| line.trim().to_owned()).collect()
}

fn pool() -> Lab {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank /a");
    lab.ok("zfs create -o compression=off tank/files");
    for (name, byte) in [("a", 7), ("b", 11), ("c", 13)] {
        assert_eq!(lab.session.feed(&["put", &format!("tank/files:/{name}")], &vec![byte; 1 << 20]).code, 0);
    }
    lab.ok("zfs snapshot tank/files@s");
    lab
}

#[test]
fn what_a_reader_cannot_read_is_a_permanent_error() {
    let lab = pool();
    assert_eq!(listed(&lab), [""; 0]);
    damage(&lab.path("a"), 7);
    assert_eq!(listed(&lab), [""; 0], "nobody has met it");
    assert_eq!(lab.session.run(&["cat", "tank/files:/a"]).code, 1);
    assert_eq!(listed(&lab), ["tank/files:/a"]);
    let json = lab.session.json(&["zpool", "status", "-j", "--json-int", "tank"]);
    assert_eq!(json["pools"]["tank"]["error_count"], 8, "each block of it");
    assert!(lab.ok("zpool status -x").contains("One or more devices has experienced an error resulting in data"));

    // of what a copy passes over all is listed, of a snapshot under its file system; the command that writes next records it
    damage(&lab.path("a"), 11);
    let to = lab.path("out");
    assert_eq!(lab.session.run(&["cp", "-a", "tank/files@s:/", &to]).code, 1);
    assert_eq!(listed(&lab), ["tank/files:/a", "tank/files:/b"]);
    let count = |lab: &Lab| {
        let json = lab.session.json(&["zpool", "status", "-j", "--json-int", "tank"]);
        json["pools"]["tank"]["error_count"].as_u64().unwrap()
    };
    assert_eq!(count(&lab), 16);
    lab.ok("zfs set atime=off tank/files");
    assert_eq!((listed(&lab).len(), count(&lab)), (2, 16));
    let entries = std::fs::read_dir(lab.session.state()).unwrap().map(|entry| entry.unwrap().path());
    let record = entries.into_iter().find(|path| path.extension().is_some_and(|end| end == "io")).unwrap();
    std::fs::remove_file(record).unwrap();
    assert_eq!((listed(&lab).len(), count(&lab)), (2, 16), "it is on the devices");

    // a command that writes records what it meets itself
    damage(&lab.path("a"), 13);
    lab.ok("zfs create -o recordsize=16K tank/other");
    assert_eq!(lab.session.run(&["cp", "tank/files:/c", "tank/other:/c"]).code, 1, "its blocks do not fit as they are");
    assert_eq!(listed(&lab), ["tank/files:/a", "tank/files:/b", "tank/files:/c"]);
    // an export takes the list along, and a scrub without them ends it
    lab.ok("zpool export tank");
    lab.session.ok(&["zpool", "import", "-d", lab.dir(), "tank"]);
    assert_eq!(listed(&lab), ["tank/files:/a", "tank/files:/b", "tank/files:/c"]);
    lab.ok("zfs destroy tank/files@s");
    for name in ["a", "b", "c"] {
        lab.ok(&format!("rm tank/files:/{name}"));
    }
    lab.ok("zpool scrub tank");
    assert_eq!(listed(&lab), [""; 0]);
    lab.export_and_judge("tank");
}

#[test]
fn a_pool_that_is_only_read_is_not_changed_by_what_is_lost() {
    let lab = pool();
    damage(&lab.path("a"), 7);
    lab.ok("zpool export tank");
    let before = std::fs::read(lab.path("a")).unwrap();
    lab.session.ok(&["zpool", "import", "-o", "readonly=on", "-d", lab.dir(), "tank"]);
    assert_eq!(lab.session.run(&["cat", "tank/files:/a"]).code, 1);
    assert_eq!(listed(&lab), ["tank/files:/a"]);
    lab.ok("zpool export tank");
    assert!(std::fs::read(lab.path("a")).unwrap() == before, "the device has changed");
    lab.session.ok(&["zpool", "import", "-d", lab.dir(), "tank"]);
    assert_eq!(listed(&lab), [""; 0]);
}

/// A copy within a pool reports what is damaged and goes on, as one to the host does; what is damaged takes no good file's place, under
/// whatever name it comes.
#[test]
fn a_damaged_file_ends_no_copy_and_takes_no_good_files_place() {
    let lab = pool();
    let small = vec![7; 100 << 10];
    assert_eq!(lab.session.feed(&["put", "tank/files:/small"], &small).code, 0);
    lab.ok("ln tank/files:/a tank/files:/z");
    let fresh = |name: &str, good: &[&str]| {
        // blocks of another size are read, not shared
        lab.ok(&format!("zfs create -o recordsize=16K tank/{name}"));
        for file in good {
            assert_eq!(lab.session.feed(&["put", &format!("tank/{name}:/{file}")], b"good").code, 0);
        }
    };
    damage(&lab.path("a"), 7);
    let digest = |target: &str| lab.session.json(&["ls", "--json", "--sha256", target])["sha256"].clone();
    let is_whole = |name: &str| {
        ["b", "c"].iter().all(|file| digest(&format!("tank/{name}:/{file}")) == digest(&format!("tank/files:/{file}")))
    };
    let keeps = |name: &str, good: &[&str]| {
        good.iter().for_each(|file| assert!(lab.ok(&format!("cat tank/{name}:/{file}")) == "good", "{name}/{file}"));
        let listed = lab.ok(&format!("ls -a tank/{name}:/"));
        assert!(!listed.contains("zuse-new"), "{listed}");
    };
    for (name, good) in [("none", &[][..]), ("all", &["a", "small", "z"]), ("first", &["a"]), ("last", &["z"])] {
        fresh(name, good);
        let ran = lab.session.run(&["cp", "-a", "tank/files:/", &format!("tank/{name}:/")]);
        assert!(ran.code == 1 && ran.err.contains("a: bytes 0-") && ran.err.contains("small: "), "{}", ran.err);
        assert!(is_whole(name), "{name}: {}", ran.err);
        keeps(name, good);
        // one by one
        let all: Vec<String> = ["a", "b", "z", "small", "c"].iter().map(|file| format!("tank/files:/{file}")).collect();
        let ran = lab.session.run(
            &[&["cp"], &all.iter().map(String::as_str).collect::<Vec<_>>()[..], &[&format!("tank/{name}:/")]].concat(),
        );
        assert!(ran.code == 1 && is_whole(name), "{name}: {}", ran.err);
        keeps(name, good);
    }
    fresh("moved", &["a", "small", "z"]);
    let ran = lab.session.run(&[
        "mv",
        "tank/files:/a",
        "tank/files:/b",
        "tank/files:/small",
        "tank/files:/z",
        "tank/files:/c",
        "tank/moved:/",
    ]);
    assert!(ran.code == 1, "{}", ran.err);
    keeps("moved", &["a", "small", "z"]);
    assert_eq!(lab.ok("ls tank/files:/"), "a\nsmall\nz\n");
    assert_eq!(lab.ok("ls tank/moved:/"), "a\nb\nc\nsmall\nz\n");
    lab.fails("mv tank/files:/a tank/moved:/new", 1, "nothing was removed");
    assert_eq!(lab.ok("ls tank/files:/"), "a\nsmall\nz\n");
}

/// A copy into a volume reports what is damaged and goes on, as one to the host does; what is lost becomes zeros.
#[test]
fn a_damaged_source_of_a_volume_is_copied_past_its_damage() {
    let lab = pool();
    lab.ok("zfs create -o compression=off -V 3M tank/v");
    lab.ok("zfs create -o compression=off -V 3M tank/w");
    let parts = |bytes: [u8; 3]| bytes.iter().flat_map(|byte| vec![*byte; 1 << 20]).collect::<Vec<u8>>();
    assert_eq!(lab.session.feed(&["put", "tank/v"], &parts([17, 19, 23])).code, 0);
    assert_eq!(lab.session.feed(&["put", "tank/files:/file"], &parts([17, 19, 23])).code, 0);
    damage(&lab.path("a"), 19);
    for source in ["tank/v:/", "tank/files:/file"] {
        assert_eq!(lab.session.feed(&["put", "tank/w"], &parts([29, 29, 29])).code, 0);
        let ran = lab.session.run(&["cp", source, "tank/w:/"]);
        assert!(ran.code == 1 && ran.err.contains(&format!("lost: {source}: bytes 1048576-")), "{}", ran.err);
        assert!(ran.err.contains("copied 2097152 bytes of data"), "{}", ran.err);
        assert!(lab.ok("cat tank/w").as_bytes() == parts([17, 0, 23]), "{source}");
    }
}
