//! The stream size that `zfs send -nP` prints, against the figures and the rule of OpenZFS.
#![allow(clippy::unwrap_used)]

#[path = "support/lab.rs"]
mod lab;
mod support;

use lab::{Lab, streams};
use oracle::fixtures;
use support::Session;

/// OpenZFS's rule (`dmu_adjust_send_estimate_for_indirects`): as if everything were data in blocks of one size, each
/// with a pointer that counts as space, and a record; BEGIN and END.
fn rule(size: u64, uncompressed: u64, block: u64) -> u64 {
    let blocks = uncompressed / block;
    size - blocks * 128 + blocks * 312 + 2 * 312
}

/// The size at the end of the output.
fn size(told: &str) -> u64 {
    told.lines().last().unwrap().strip_prefix("size\t").unwrap().parse().unwrap()
}

fn within_a_hundredth(ours: u64, theirs: u64) -> bool {
    ours.abs_diff(theirs) * 100 <= theirs
}

/// Full streams of pools that the kernel module made: it recorded how much a snapshot refers to.
#[test]
fn full_streams_of_the_kernels_pools() {
    for fixture in ["snaps-a", "zvol-a", "sparse-a"] {
        let session = Session::imported(fixture);
        let manifest = fixtures::manifest(fixture);
        let properties = manifest["properties"].as_object().unwrap();
        let number = |name: &str, prop: &str| properties.get(name)?.get(prop)?[0].as_str()?.parse::<u64>().ok();
        let mut checked = 0;
        for name in properties.keys() {
            let Some((head, _)) = name.split_once('@') else { continue };
            // for OpenZFS all volumes have blocks of the default size
            let block = number(head, "volblocksize").map(|_| 16 << 10).or_else(|| number(head, "recordsize")).unwrap();
            let refers_to = number(name, "logicalreferenced").unwrap();
            assert_eq!(size(&session.ok(&["zfs", "send", "-nP", name])), rule(refers_to, refers_to, block), "{name}");
            checked += 1;
        }
        assert!(checked > 3, "{fixture}: {checked}");
    }
}

/// The remaining sizes that the kernel module reported for two interrupted streams, one of them incremental: "1014K",
/// "475K".
#[test]
fn streams_of_which_the_kernel_said_how_long_they_are() {
    let lab = Lab::new("tank");
    let all = streams("stresume-a");
    for (name, bytes, left, start) in
        [("full", 0x15_61c0, 1014 << 10, "tank/r@1"), ("incr", 0x7_2b30, 475 << 10, "-i @1 tank/r@2")]
    {
        lab.ok("zfs receive -u tank/r", &all[&format!("{name}.zstream")]);
        let told = size(&lab.text(&format!("zfs send -nP {start}")));
        assert!(within_a_hundredth(told, left + bytes), "{name}: {told}, not {}", left + bytes);
    }
}

/// Each kind of stream. Only `-c` and `-w` count the space as it is stored; a package is the sum of its streams.
#[test]
fn every_kind_of_stream() {
    let lab = Lab::new("recva");
    let all = streams("stcomp-a");
    for (name, into) in [("r8-plain", "r8"), ("r1m-L", "r1m")] {
        lab.ok(&format!("zfs receive -u -o compression=lz4 recva/{into}"), &all[&format!("{name}.zstream")]);
    }
    lab.ok("zfs create recva/r8/child", b"");
    lab.ok("zfs snapshot recva/r8/child@1", b"");
    for snap in ["2", "3"] {
        lab.ok(&format!("put recva/r8:/more-{snap}"), "compressible\n".repeat(200_000).as_bytes());
        lab.ok(&format!("zfs snapshot -r recva/r8@{snap}"), b"");
        lab.ok(&format!("zfs bookmark recva/r8@{snap} #{snap}"), b"");
    }
    lab.ok("zfs bookmark recva/r8@1 #1", b"");
    let told = |options: &str| size(&lab.text(&format!("zfs send -nP {options}")));
    let space = |name: &str| -> (u64, f64) {
        let text = lab.text(&format!("zfs get -Hp -o value logicalreferenced,refcompressratio {name}"));
        let (bytes, ratio) = text.trim_end().split_once('\n').unwrap();
        (bytes.parse().unwrap(), ratio.trim_end_matches('x').parse().unwrap())
    };
    for (name, block) in [("recva/r8@3", 8 << 10), ("recva/r1m@1", 1 << 20)] {
        let head = name.split('@').next().unwrap();
        lab.ok(&format!("zfs set recordsize={block} {head}"), b"");
        let (plain, ratio) = space(name);
        let stored = (plain as f64 / ratio) as u64;
        assert!(ratio > 1.1, "{name} {ratio}");
        for flags in ["", "-L ", "-e ", "-p ", "-Le "] {
            assert_eq!(told(&format!("{flags}{name}")), rule(plain, plain, block), "{flags}{name}");
        }
        for flags in ["-c ", "-w ", "-Lec ", "-cp "] {
            let (ours, theirs) = (told(&format!("{flags}{name}")), rule(stored, plain, block));
            assert!(within_a_hundredth(ours, theirs), "{flags}{name}: {ours}, not {theirs}");
        }
    }
    // between snapshots: the difference is all data here
    let increments: Vec<u64> = ["-i @1 recva/r8@2", "-i @2 recva/r8@3"].map(told).to_vec();
    let added = space("recva/r8@2").0 - space("recva/r8@1").0;
    assert!(told("recva/r8@3") > told("recva/r8@2"));
    let theirs = rule(added, added, 8 << 10);
    assert!(within_a_hundredth(increments[0], theirs), "{increments:?}, not {theirs}");
    for mark in ["-i #1 recva/r8@2", "-i #2 recva/r8@3"].iter().zip(&increments) {
        assert_eq!(told(mark.0), *mark.1, "{}", mark.0);
    }
    assert_eq!(told("-I @1 recva/r8@3"), increments.iter().sum::<u64>());
    let child = told("recva/r8/child@1") + told("-i @1 recva/r8/child@2") + told("-i @2 recva/r8/child@3");
    assert_eq!(told("-R recva/r8@3"), told("recva/r8@1") + increments.iter().sum::<u64>() + child);
}
