//! `zfs send` and `zfs receive` with streams of the OpenZFS kernel module: what it made is received, and sent again it is the same.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::process::{Command, Stdio};

use oracle::{fixtures, judge};
use support::Session;

/// A pool of its own to receive into.
struct Lab {
    dir: tempfile::TempDir,
    session: Session,
}

/// What a command gave, its output as bytes.
struct Ran {
    code: i32,
    out: Vec<u8>,
    err: String,
}

impl Lab {
    fn new(pool: &str) -> Lab {
        let lab = Lab { dir: tempfile::tempdir().unwrap(), session: Session::empty() };
        lab.add(pool);
        lab
    }

    fn add(&self, pool: &str) {
        let device = self.dir.path().join(pool);
        let file = std::fs::File::create(&device).unwrap();
        file.set_len(256 << 20).unwrap();
        self.session.ok(&["zpool", "create", "-m", "none", pool, device.to_str().unwrap()]);
    }

    fn run(&self, line: &str, input: &[u8]) -> Ran {
        let mut child = Command::new(env!("CARGO_BIN_EXE_zuse"))
            .args(line.split(' '))
            .env("TZ", "UTC")
            .env("ZUSE_STATE", self.session.state())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // a command that ends early does not read all
        let feeder = std::thread::spawn(move || drop(std::io::Write::write_all(&mut stdin, &input)));
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        Ran { code: output.status.code().unwrap_or(-1), out: output.stdout, err }
    }

    /// What a command that succeeds writes.
    fn ok(&self, line: &str, input: &[u8]) -> Vec<u8> {
        let ran = self.run(line, input);
        assert!(ran.code == 0, "{line}: {} {}", ran.code, ran.err);
        ran.out
    }

    fn text(&self, line: &str) -> String {
        String::from_utf8(self.ok(line, b"")).unwrap()
    }

    fn fails(&self, line: &str, input: &[u8], says: &str) {
        let ran = self.run(line, input);
        assert!(ran.code == 1 && ran.err.contains(says), "{line}: {} {}", ran.code, ran.err);
    }

    /// Exports the pool; the judge finds no leak in it.
    fn judge(&self, pool: &str) {
        self.ok(&format!("zpool export {pool}"), b"");
        let dir = self.dir.path().to_str().unwrap();
        let Some(out) = judge::run("zdb", &["-e", "-p", dir, "-bcc", pool]) else { return };
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && text.contains("No leaks"), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    }
}

/// The streams of a fixture by name.
fn streams(fixture: &str) -> BTreeMap<String, Vec<u8>> {
    let bytes = fixtures::read_zst(&fixtures::dir(fixture).join("streams.tar.zst"));
    let mut found = BTreeMap::new();
    for member in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
        let mut member = member.unwrap();
        let name = member.path().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let mut stream = Vec::new();
        member.read_to_end(&mut stream).unwrap();
        found.insert(name, stream);
    }
    found
}

/// What a stream writes: objects, and where there is data in them. Left out is what a receiver may do otherwise: how its blocks are
/// stored and summed, and how it divides what is free.
fn records(lab: &Lab, stream: &[u8]) -> Vec<String> {
    let text = String::from_utf8(lab.ok("zstream dump -v", stream)).unwrap();
    let mut lines = Vec::new();
    for line in text.lines() {
        let field = |name: &str| {
            let (_, rest) = line.split_once(&format!(" {name} = "))?;
            Some(format!("{name} {}", rest.split(' ').next()?))
        };
        let fields: &[&str] = match line.split(' ').next() {
            Some("OBJECT") => &["object", "type", "bonustype", "blksz", "bonuslen", "dn_slots"],
            Some("WRITE" | "WRITE_EMBEDDED") => &["object", "offset"],
            Some("SPILL") => &["object", "length"],
            _ => continue,
        };
        let kind = line.split('_').next().unwrap().split(' ').next().unwrap();
        lines.push(
            fields.iter().fold(kind.to_owned(), |text, name| format!("{text} {}", field(name).unwrap_or_default())),
        );
    }
    lines
}

/// Receives all streams of a fixture through the program.
fn receive_all(fixture: &str) -> Lab {
    let lab = Lab::new("recva");
    let all = streams(fixture);
    for line in fixtures::json(fixture, "streams.json").as_array().unwrap() {
        let text = |key: &str| line[key].as_str().unwrap_or("").to_owned();
        let options = format!("-u {}", text("recv_opts"));
        let command =
            format!("zfs receive {} {}", options.split_whitespace().collect::<Vec<_>>().join(" "), text("received_as"));
        let ran = lab.run(&command, &all[&text("stream")]);
        assert_eq!(ran.code, line["recv_rc"].as_i64().unwrap() as i32, "{}: {command}: {}", text("stream"), ran.err);
        assert_eq!(ran.err.trim_end(), text("recv_output"), "{}", text("stream"));
    }
    lab
}

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

/// What the laboratory set on its pools itself.
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
    lab.ok("zfs receive tank/a", &small);
    let path = lab.dir.path().join("small");
    std::fs::write(&path, &small).unwrap();
    if let Some(out) = judge::run("zstream", &["dump", path.to_str().unwrap()]) {
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    lab.judge("tank");
}
