//! Commands that a server carries out do, print and answer what they do where there is none.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/lines.rs"]
mod lines;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A state folder, and a folder with images where commands run.
struct World {
    dir: tempfile::TempDir,
    server: Option<Child>,
}

/// What a command line left.
#[derive(Debug, PartialEq)]
struct Ran {
    status: Option<i32>,
    out: String,
    err: String,
}

impl World {
    fn new() -> World {
        let world = World { dir: tempfile::tempdir().unwrap(), server: None };
        for folder in ["state", "here", "bin"] {
            std::fs::create_dir(world.path(folder)).unwrap();
        }
        for tool in ["zfs", "zpool", "zuse"] {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_zuse"), world.path("bin").join(tool)).unwrap();
        }
        for image in ["disk.img", "log.img"] {
            std::fs::File::create(world.path("here").join(image)).unwrap().set_len(128 << 20).unwrap();
        }
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        command.env("ZUSE_STATE", self.path("state")).env("TZ", "UTC").env("PATH", path).current_dir(self.path("here"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Begins to serve; ends with the world.
    fn serve(&mut self) {
        let mut command = self.command(env!("CARGO_BIN_EXE_zuse"));
        let child = command.arg("serve").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.server = Some(child.spawn().unwrap());
        let socket = self.path("state").join("server.socket");
        until("it serves", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    }

    /// Runs a line of the shell.
    fn run(&self, line: &str, input: &str) -> Ran {
        let mut child = self.command("sh").arg("-c").arg(line).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // a command that ends early does not read it
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let done = child.wait_with_output().unwrap();
        let here = self.dir.path().canonicalize().unwrap().display().to_string();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&here, "WORLD");
        Ran { status: done.status.code(), out: text(&done.stdout), err: text(&done.stderr) }
    }

    fn ok(&self, line: &str) -> String {
        let ran = self.run(line, "");
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{line}: {ran:?}");
        ran.out
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = kill_process(Pid::from_child(&server), Signal::TERM);
            let _ = server.wait();
        }
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: not in a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A text without its numbers, which are those of a pool.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' | '.' if out.ends_with('#') => {}
            '0'..='9' => out.push('#'),
            ' ' if out.ends_with(' ') => {}
            c => out.push(c),
        }
    }
    // sizes with and without a unit
    ["K", "M", "G", "B"].iter().fold(out, |out, unit| out.replace(&format!("#{unit}"), "#"))
}

#[test]
fn each_command_is_what_it_is_without_a_server() {
    let (alone, mut served) = (World::new(), World::new());
    served.serve();
    for (n, (line, input)) in lines::ALL.iter().enumerate() {
        let (before, after) = (alone.run(line, input), served.run(line, input));
        assert!(before.status.is_some_and(|status| status < 100 || status == 255), "line {n}: {line}: {before:?}");
        let shown = |ran: &Ran| (ran.status, without_numbers(&ran.out), without_numbers(&ran.err));
        assert_eq!(shown(&after), shown(&before), "line {n}: {line}");
    }
    assert!(served.server.as_mut().unwrap().try_wait().unwrap().is_none(), "the server has ended");
}
