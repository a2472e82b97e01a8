//! A new pool to receive into, and the streams of the fixtures.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};

use oracle::{fixtures, judge};

use crate::support::Session;

/// A new pool to receive into.
pub struct Lab {
    pub dir: tempfile::TempDir,
    pub session: Session,
}

/// The result of a command, its output as bytes.
pub struct Ran {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Lab {
    pub fn new(pool: &str) -> Lab {
        let lab = Lab { dir: tempfile::tempdir().unwrap(), session: Session::empty() };
        lab.add(pool);
        lab
    }

    pub fn add(&self, pool: &str) {
        let device = self.dir.path().join(pool);
        let file = std::fs::File::create(&device).unwrap();
        file.set_len(256 << 20).unwrap();
        self.session.ok(&["zpool", "create", "-m", "none", pool, device.to_str().unwrap()]);
    }

    pub fn run(&self, line: &str, input: &[u8]) -> Ran {
        let mut child = Command::new(env!("CARGO_BIN_EXE_zuse"))
            .args(line.split(' '))
            .env("TZ", "UTC")
            .env("ZUSE_STATE", self.session.state())
            .env("ZUSE_ON_DEMAND", "no")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // a command that ends early does not read everything
        let feeder = std::thread::spawn(move || drop(std::io::Write::write_all(&mut stdin, &input)));
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        Ran { code: output.status.code().unwrap_or(-1), out: output.stdout, err }
    }

    /// The output of a command that must succeed.
    pub fn ok(&self, line: &str, input: &[u8]) -> Vec<u8> {
        let ran = self.run(line, input);
        assert!(ran.code == 0, "{line}: {} {}", ran.code, ran.err);
        ran.out
    }

    pub fn text(&self, line: &str) -> String {
        String::from_utf8(self.ok(line, b"")).unwrap()
    }

    pub fn fails(&self, line: &str, input: &[u8], says: &str) {
        let ran = self.run(line, input);
        assert!(ran.code == 1 && ran.err.contains(says), "{line}: {} {}", ran.code, ran.err);
    }

    /// Exports the pool, and checks that the judge finds no leak in it.
    pub fn judge(&self, pool: &str) {
        self.ok(&format!("zpool export {pool}"), b"");
        judge::no_leaks(self.dir.path(), pool);
    }
}

/// The streams of a fixture by name.
pub fn streams(fixture: &str) -> BTreeMap<String, Vec<u8>> {
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

/// The objects that a stream writes, and where there is data in them. Left out is what a receiver may do differently:
/// how its blocks are stored and checksummed, and how it divides free ranges.
pub fn records(lab: &Lab, stream: &[u8]) -> Vec<String> {
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
pub fn receive_all(fixture: &str) -> Lab {
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
