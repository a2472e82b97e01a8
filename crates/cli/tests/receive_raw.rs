//! `zfs receive` of raw streams of the OpenZFS kernel module: without keys, then with them; and sending the received
//! datasets again.
#![allow(clippy::unwrap_used)]

#[path = "support/lab.rs"]
mod lab;
mod support;

use std::collections::BTreeMap;

use lab::{Lab, receive_all, records, streams};
use oracle::fixtures;
use serde_json::Value;

/// The fields of a file that are compared.
const TOLD: [&str; 8] = ["type", "size", "mode", "nlink", "uid", "gid", "sha256", "target"];

/// `-L` with a key of a fixture.
fn key(fixture: &str, file: &str) -> String {
    format!("file://{}", fixtures::dir(fixture).join("keys").join(file).canonicalize().unwrap().display())
}

type Files = BTreeMap<String, Vec<Value>>;

fn by_path<'a>(lines: impl Iterator<Item = &'a Value>) -> Files {
    let told = |line: &Value| (line["path"].to_string(), TOLD.iter().map(|key| line[*key].clone()).collect());
    // for the kernel the root of a snapshot was a directory of its own
    lines.filter(|line| line["path"] != ".").map(told).collect()
}

/// Checks that the files of a snapshot are those of one at the sender.
fn same_files(lab: &Lab, snapshot: &str, truth: &[Value], at_the_sender: &str) {
    let text = lab.text(&format!("ls -R --json --sha256 {snapshot}"));
    let ours: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let theirs = by_path(truth.iter().filter(|line| line["dataset"] == at_the_sender));
    assert!(theirs.len() > 10, "{at_the_sender}");
    assert!(by_path(ours.iter()) == theirs, "{snapshot} is not {at_the_sender}");
}

/// The lines of `zfs get` for datasets below a name, without its header.
fn get(lab: &Lab, property: &str, names: &str) -> String {
    lab.text(&format!("zfs get -H -o value {property} {names}"))
}

#[test]
fn raw_streams_and_packages() {
    const FIXTURE: &str = "stenc-a";
    let lab = receive_all(FIXTURE);
    let (all, truth) = (streams(FIXTURE), fixtures::json_lines(FIXTURE, "source/files.jsonl.zst"));
    // without a key nothing can be read, and everything can be sent on
    lab.fails("ls recva/we", b"", "key not loaded");
    lab.fails("zfs send recva/we@1", b"", "dataset key must be loaded");
    let again = [
        ("e-w", "-w recva/we@1"),
        ("e-w-incr", "-w -i @1 recva/we@2"),
        ("k-w", "-w recva/wk@1"),
        ("k-w-incr", "-w -i @1 recva/wk@2"),
        ("k-p-w", "-w -p recva/wkp@2"),
        ("vol-w", "-w recva/wv@2"),
        ("e-R-w", "-w -R recva/wR@2"),
    ];
    for (name, options) in again {
        let (ours, theirs) = (lab.ok(&format!("zfs send {options}"), b""), &all[&format!("{name}.zstream")]);
        let (ours, theirs) = (records(&lab, &ours), records(&lab, theirs));
        assert!(ours == theirs, "{name}: {} records, not {}", ours.len(), theirs.len());
        assert!(ours.len() > 5, "{name}");
    }
    // a package has one key for everything below its top, as at the sender
    assert_eq!(get(&lab, "encryptionroot", "recva/wR recva/wR/child recva/wR/vol"), "recva/wR\n".repeat(3));
    assert_eq!(get(&lab, "keystatus", "recva/we recva/wR/child recva/wv"), "unavailable\n".repeat(3));
    let wrong = lab.run(&format!("zfs load-key -L {} recva/we", key(FIXTURE, "raw.key")), b"");
    assert!(wrong.code == 255, "{} {}", wrong.code, wrong.err);
    for (root, file) in
        [("we", "pass.txt"), ("wk", "raw.key"), ("wkp", "raw.key"), ("wR", "pass.txt"), ("wv", "pass.txt")]
    {
        lab.ok(&format!("zfs load-key -L {} recva/{root}", key(FIXTURE, file)), b"");
    }
    assert_eq!(get(&lab, "keystatus", "recva/we recva/wR/child recva/wv"), "available\n".repeat(3));
    let pairs = [
        ("we@1", "e@1"),
        ("we@2", "e@2"),
        ("wk@1", "k@1"),
        ("wk@2", "k@2"),
        ("wkp@2", "k@2"),
        ("wR@1", "e@1"),
        ("wR@2", "e@2"),
        ("wR/child@2", "e/child@2"),
        ("pw@1", "plain@1"),
    ];
    for (here, there) in pairs {
        same_files(&lab, &format!("recva/{here}"), &truth, &format!("srca/{there}"));
    }
    let volume = lab.ok("cat recva/wv@2", b"");
    assert!(volume == lab.ok("cat recva/wR/vol@2", b"") && volume.iter().any(|byte| *byte != 0));

    // a stream that is sent again is received again, packages too, and is the same with the same key
    lab.add("other");
    lab.ok("zfs receive -u other/R", &lab.ok("zfs send -w -R recva/wR@2", b""));
    lab.ok("zfs receive -u other/e", &lab.ok("zfs send -w recva/we@1", b""));
    lab.fails(
        "zfs receive -u other/e",
        &all["k-w-incr.zstream"],
        "cannot receive incremental stream: most recent snapshot of other/e does not\nmatch incremental source",
    );
    lab.ok("zfs receive -u other/e", &lab.ok("zfs send -w -i @1 recva/we@2", b""));
    assert_eq!(get(&lab, "encryptionroot", "other/R/child other/R/vol other/e"), "other/R\nother/R\nother/e\n");
    for root in ["other/R", "other/e"] {
        lab.ok(&format!("zfs load-key -L {} {root}", key(FIXTURE, "pass.txt")), b"");
    }
    for (here, there) in [("R@2", "e@2"), ("R/child@1", "e/child@1"), ("e@1", "e@1"), ("e@2", "e@2")] {
        same_files(&lab, &format!("other/{here}"), &truth, &format!("srca/{there}"));
    }
    assert!(volume == lab.ok("cat other/R/vol@2", b""));
    // with the key the datasets can be written, and sent in streams that are not raw
    lab.ok("put other/e:/new", b"");
    let plain = lab.ok("zfs send recva/we@2", b"");
    lab.ok("zfs receive -u other/plain", &plain);
    assert_eq!(get(&lab, "encryption", "other/plain"), "off\n");
    same_files(&lab, "other/plain@2", &truth, "srca/e@2");
    lab.judge("other");
    lab.judge("recva");
}

#[test]
fn raw_streams_with_each_form_of_key() {
    const FIXTURE: &str = "enc-a";
    let lab = Lab::new("recva");
    let (all, truth) = (streams(FIXTURE), fixtures::files(FIXTURE));
    let received = [
        ("hex-full-w", "h"),
        ("hex-incr-w", "h"),
        ("raw-full-w", "r"),
        ("raw-incr-w", "r"),
        ("pass-full-w", "p"),
        ("pass-incr-w", "p"),
        ("pass-R-w", "P"),
        ("raw-full-plain", "plain"),
    ];
    for (name, fs) in received {
        lab.ok(&format!("zfs receive -u recva/{fs}"), &all[&format!("{name}.zstream")]);
    }
    assert_eq!(get(&lab, "encryptionroot", "recva/P/child recva/P/vol"), "recva/P\nrecva/P\n");
    let roots = ["h", "r", "p", "P"].map(|fs| lab.text(&format!("zfs get -H -o value keyformat recva/{fs}")));
    // the key of the first was changed from one format to another before it was sent
    for ((root, format), file) in ["h", "r", "p", "P"].iter().zip(&roots).zip(["", "raw.key", "pass.txt", "pass.txt"]) {
        let file = match (file, format.trim_end()) {
            ("", "hex") => "hex.key",
            ("", _) => "pass2.txt",
            (file, _) => file,
        };
        lab.ok(&format!("zfs load-key -L {} recva/{root}", key(FIXTURE, file)), b"");
    }
    let pairs = [
        ("h@s1", "hex@s1"),
        ("h@s2", "hex@s2"),
        ("r@s1", "raw@s1"),
        ("r@s2", "raw@s2"),
        ("p@s1", "pass@s1"),
        ("p@s2", "pass@s2"),
        ("P@s2", "pass@s2"),
        ("P/child@s2", "pass/child@s2"),
    ];
    for (here, there) in pairs {
        same_files(&lab, &format!("recva/{here}"), &truth, &format!("enca/{there}"));
    }
    lab.judge("recva");
}
