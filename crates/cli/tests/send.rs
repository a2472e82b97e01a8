//! `zfs send` and `zfs receive` with streams of the OpenZFS kernel module: they are received, and sending the result
//! again gives the same streams.
#![allow(clippy::unwrap_used)]

#[path = "support/lab.rs"]
mod lab;
mod support;

use std::collections::{BTreeMap, BTreeSet};

use lab::{Lab, receive_all, records, streams};
use ondisk::send::feature;
use oracle::{fixtures, judge};

#[test]
fn plain_streams_are_received_and_sent_again() {
    let lab = receive_all("stbasic-a");
    let all = streams("stbasic-a");
    for (name, options) in [
        ("full", "recva/a@1"),
        ("incr-1-2", "-i @1 recva/a@2"),
        ("incr-1-4", "-i @1 recva/e1@4"),
        ("empty-full", "recva/g@s"),
        ("empty-incr", "-i @s recva/g@t"),
    ] {
        let ours = lab.ok(&format!("zfs send {options}"), b"");
        let (ours, theirs) = (records(&lab, &ours), records(&lab, &all[&format!("{name}.zstream")]));
        assert!(ours == theirs, "{name}: {} records, not {}", ours.len(), theirs.len());
    }
    lab.judge("recva");
}

/// The properties that the laboratory set on its pools itself.
const OF_THE_LABORATORY: [&str; 3] = ["atime", "mountpoint", "snapdev"];

#[test]
fn packages_bring_names_properties_and_clones() {
    let lab = receive_all("strepl-a");
    let manifest = fixtures::json("strepl-a", "recv/manifest.json");
    let text = lab.text("zfs get -Hp -r -t all -o name,property,value,source all recva");
    let ours: BTreeMap<(&str, &str), (&str, &str)> = text
        .lines()
        .map(|line| {
            let cells: Vec<&str> = line.split('\t').collect();
            ((cells[0], cells[1]), (cells[2], cells[3]))
        })
        .collect();
    let mut differences = Vec::new();
    for (name, props) in manifest["properties"].as_object().unwrap() {
        for (prop, said) in props.as_object().unwrap() {
            let (value, source) = (said[0].as_str().unwrap(), said[1].as_str().unwrap());
            let is_identity = (prop == "guid" && name.contains('@')) || prop == "origin" || prop == "volsize";
            let is_set = matches!(source, "local" | "received") && !OF_THE_LABORATORY.contains(&prop.as_str());
            let found = ours.get(&(name.as_str(), prop.as_str()));
            if (is_identity || is_set) && found != Some(&(value, source)) {
                differences.push(format!("{name} {prop}: {value} ({source}), found {found:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
    let theirs: BTreeSet<&str> = manifest["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    let ours: BTreeSet<&str> = ours.keys().map(|(name, _)| *name).collect();
    assert_eq!(ours, theirs);
    lab.judge("recva");
}

#[test]
fn a_package_goes_from_pool_to_pool() {
    let lab = receive_all("strepl-a");
    lab.add("other");
    let package = lab.ok("zfs send -R recva/R@r4", b"");
    lab.ok("zfs receive -u other/copy", &package);
    let list = |top: &str| {
        let text = lab.text(&format!("zfs list -H -r -t filesystem,volume,snapshot -o name,guid,type {top}"));
        let mut lines: Vec<String> =
            text.lines().filter(|line| line.contains('@')).map(|line| line.replacen(top, "", 1)).collect();
        lines.sort();
        lines
    };
    assert_eq!(list("other/copy"), list("recva/R"));
    lab.judge("other");
}

#[test]
fn sizes_are_told_as_openzfs_tells_them() {
    let lab = receive_all("stbasic-a");
    let told = lab.text("zfs send -nP recva/a@1");
    let size = told.lines().last().unwrap().strip_prefix("size\t").unwrap().to_owned();
    assert_eq!(told, format!("full\trecva/a@1\t{size}\nsize\t{size}\n"));
    let told = lab.text("zfs send -nP -i @1 recva/a@2");
    assert!(told.starts_with("incremental\trecva/a@1\trecva/a@2\t"), "{told}");
    let told = lab.text("zfs send -nv recva/a@1");
    assert!(told.starts_with("full send of recva/a@1 estimated size is "), "{told}");
    assert!(told.contains("\ntotal estimated size is "), "{told}");
    let told = lab.text("zfs send -nP -I @1 recva/a@4");
    assert!(told.starts_with("incremental\t1\trecva/a@2\t"), "{told}");
}

#[test]
fn what_does_not_work_is_said_in_openzfs_words() {
    let lab = Lab::new("tank");
    let stream = &streams("stbasic-a")["full.zstream"];
    let incremental = &streams("stbasic-a")["incr-1-4.zstream"];
    lab.fails(
        "zfs receive tank/a",
        b"no stream at all, but of some length so that a record could be in it".as_slice(),
        "cannot receive: ",
    );
    lab.fails(
        "zfs receive tank/a",
        incremental,
        "cannot receive incremental stream: destination 'tank/a' does not exist",
    );
    lab.ok("zfs receive tank/a", stream);
    lab.fails(
        "zfs receive tank/a",
        stream,
        "cannot receive new filesystem stream: destination 'tank/a' exists\nmust specify -F to overwrite it",
    );
    lab.fails("zfs receive tank/a/b/c", stream, "cannot open 'tank/a/b': dataset does not exist");
    lab.fails(
        "zfs receive tank/cut",
        &stream[..stream.len() / 2],
        "cannot receive new filesystem stream: incomplete stream",
    );
    lab.fails("zfs list tank/cut", b"", "dataset does not exist");
    lab.fails("zfs send tank/a@nothing", b"", "cannot open 'tank/a@nothing': dataset does not exist");
    lab.fails("zfs send -i @nothing tank/a@1", b"", "cannot open 'tank/a@nothing': dataset does not exist");
    lab.fails("zfs receive -A tank/a", b"", "'tank/a' does not have any resumable receive state to abort");
    lab.judge("tank");
}

#[test]
fn an_interrupted_receive_goes_on_where_it_was() {
    let lab = receive_all("stbasic-a");
    let whole = lab.ok("zfs send recva/a@4", b"");
    lab.add("other");
    lab.fails("zfs receive -s other/a", &whole[..whole.len() * 2 / 3], "zfs send -t 1-");
    let token = lab.text("zfs get -H -o value receive_resume_token other/a");
    let rest = lab.ok(&format!("zfs send -t {}", token.trim_end()), b"");
    lab.ok("zfs receive -s other/a", &rest);
    let again = lab.ok("zfs send other/a@4", b"");
    assert_eq!(records(&lab, &again), records(&lab, &whole));
    lab.judge("other");
}

#[test]
fn streams_are_changed_on_their_way() {
    let lab = Lab::new("tank");
    let stream = &streams("stbasic-a")["full.zstream"];
    let small = lab.ok("zstream recompress lz4", stream);
    assert!(small.len() < stream.len());
    let plain = lab.ok("zstream recompress off", &small);
    assert_eq!(records(&lab, &plain), records(&lab, stream));
    let compressed = |stream: &[u8]| {
        let text = String::from_utf8(lab.ok("zstream dump -v", stream)).unwrap();
        let number = |line: &str, name: &str| {
            let (_, rest) = line.split_once(&format!(" {name} = ")).unwrap();
            rest.split(' ').next().unwrap().to_owned()
        };
        let features = text.lines().find_map(|line| line.trim().strip_prefix("features = ")).unwrap().to_owned();
        let features = u64::from_str_radix(&features, 16).unwrap();
        let writes = text.lines().filter(|line| line.starts_with("WRITE "));
        let kinds: BTreeSet<String> = writes.map(|line| number(line, "compression type")).collect();
        (features & (feature::COMPRESSED | feature::LZ4 | feature::ZSTD), kinds)
    };
    let kinds = |list: &[&str]| list.iter().map(|kind| (*kind).to_owned()).collect();
    assert_eq!(compressed(&plain), (0, kinds(&["0"])));
    let zstd = lab.ok("zstream recompress zstd", &small);
    assert_eq!(compressed(&zstd).0, feature::COMPRESSED | feature::ZSTD);
    assert_eq!(compressed(&lab.ok("zstream recompress off", &zstd)), (0, kinds(&["0"])));
    for (words, kind) in [("gzip-9", "13"), ("gzip-1", "5"), ("gzip", "10"), ("-l 3 gzip", "7")] {
        let (flags, used) = compressed(&lab.ok(&format!("zstream recompress {words}"), stream));
        assert!(flags == feature::COMPRESSED && used.contains(kind), "{words}: {flags:#x} {used:?}");
    }
    for words in ["gzip-0", "gzip-10", "gzip-", "-l 0 gzip"] {
        lab.fails(&format!("zstream recompress {words}"), stream, "invalid compression type: gzip");
    }
    lab.ok("zfs receive tank/a", &small);
    let path = lab.dir.path().join("small");
    std::fs::write(&path, &small).unwrap();
    if let Some(out) = judge::run("zstream", &["dump", path.to_str().unwrap()]) {
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    lab.judge("tank");
}
