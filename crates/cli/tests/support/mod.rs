//! The built program, run on fixtures as an administrator would.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::disallowed_methods)]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use oracle::fixtures::{self, Unpacked};
use serde_json::Value;

/// The result of a command.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// A state folder of its own, and the images of one fixture.
pub struct Session {
    state: tempfile::TempDir,
    images: Option<Unpacked>,
    fixture: String,
}

impl Session {
    /// A session without images.
    pub fn empty() -> Session {
        Session { state: tempfile::tempdir().unwrap(), images: None, fixture: String::new() }
    }

    /// A session with a fixture's images.
    pub fn on(fixture: &str) -> Session {
        Session { images: Some(fixtures::unpack(fixture)), fixture: fixture.to_owned(), ..Session::empty() }
    }

    /// A session with a copy of a fixture's images, which may be changed.
    pub fn on_copy(fixture: &str) -> Session {
        Session { images: Some(fixtures::unpack_private(fixture)), fixture: fixture.to_owned(), ..Session::empty() }
    }

    /// A session with a fixture's pool imported as the one of its truth was.
    pub fn imported(fixture: &str) -> Session {
        let session = Session::on(fixture);
        let images = session.images();
        session.ok(&["zpool", "import", "-d", &images, "-o", "readonly=on", "-f", "-R", "/m/truth", "-a"]);
        session
    }

    /// The state folder of the program.
    pub fn state(&self) -> &std::path::Path {
        self.state.path()
    }

    /// The folder of the images.
    pub fn images(&self) -> String {
        self.images.as_ref().unwrap().dir.to_str().unwrap().to_owned()
    }

    /// A file of the fixture.
    pub fn file(&self, path: &str) -> PathBuf {
        fixtures::dir(&self.fixture).join(path)
    }

    /// The kernel module's output for the pool, damaged as it is.
    pub fn truth(&self) -> Value {
        match self.file("kernel-says/manifest.json").exists() {
            true => fixtures::json(&self.fixture, "kernel-says/manifest.json"),
            false => fixtures::manifest(&self.fixture),
        }
    }

    /// The pool's name.
    pub fn pool(&self) -> String {
        fixtures::manifest(&self.fixture)["pool"].as_str().unwrap().to_owned()
    }

    /// Runs `zuse` with these arguments and this standard input.
    pub fn feed(&self, args: &[&str], input: &[u8]) -> Run {
        let mut child = Command::new(env!("CARGO_BIN_EXE_zuse"))
            .args(args)
            .env("ZUSE_STATE", self.state.path())
            .env("ZUSE_ON_DEMAND", "no")
            .env("TZ", "UTC")
            .env_remove("POSIXLY_CORRECT")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // a command that ends early does not read everything
        let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Run { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Runs `zuse`.
    pub fn run(&self, args: &[&str]) -> Run {
        self.feed(args, b"")
    }

    /// Standard output of a command that succeeds and prints no messages.
    pub fn ok(&self, args: &[&str]) -> String {
        let run = self.run(args);
        assert!(run.code == 0 && run.err.is_empty(), "{}: {args:?}: {run:#?}", self.fixture);
        run.out
    }

    /// The JSON output of a command.
    pub fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(args);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"))
    }

    /// Asserts that a command fails with this status and message.
    pub fn fails(&self, args: &[&str], code: i32, says: &str) {
        let run = self.run(args);
        assert!(run.code == code && run.err.contains(says), "{args:?}: {run:#?}");
    }
}

/// Lines with runs of blanks reduced to one, and devices by their file names.
pub fn squeeze(text: &str) -> Vec<String> {
    let word = |word: &str| match word.strip_suffix(".img") {
        Some(_) => word.rsplit('/').next().unwrap_or(word).to_owned(),
        None => word.to_owned(),
    };
    let line = |line: &str| {
        let indent: String = line.chars().take_while(|c| c.is_whitespace()).collect();
        indent + &line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
    };
    text.trim_end().lines().map(line).collect()
}

/// The lines of a table without a header, cut at the tabs.
pub fn cells(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split('\t').collect()).collect()
}
