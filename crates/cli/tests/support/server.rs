//! A server with a pool `t`, and commands that it carries out.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "until.rs"]
mod until;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
pub use until::{until, until_served};

/// A state folder, a pool in a file, and a server of it.
pub struct World {
    pub dir: tempfile::TempDir,
    server: Option<Child>,
}

/// What a command line left.
#[derive(Debug)]
pub struct Ran {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

impl World {
    /// Makes the pool, of this many MiB.
    pub fn new(mib: u64) -> World {
        let world = World { dir: tempfile::tempdir().unwrap(), server: None };
        ["state", "pool"].iter().for_each(|folder| std::fs::create_dir(world.path(folder)).unwrap());
        std::fs::File::create(world.path("pool/a")).unwrap().set_len(mib << 20).unwrap();
        world.ok(&format!("zpool create -m none t {}", world.path("pool/a").display()));
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
        command.args(words).env("ZUSE_STATE", self.path("state")).env("ZUSE_ON_DEMAND", "no").env("TZ", "UTC");
        command.current_dir(self.dir.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Begins to serve, and returns the first lines that it prints.
    pub fn serve(&mut self, words: &[&str], lines: usize) -> Vec<String> {
        let mut child = self.command(&[&["serve"], words].concat()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let said: Vec<String> = said.lines().take(lines).map(Result::unwrap).collect();
        assert_eq!(said.len(), lines, "{:?}", child.wait_with_output());
        self.server = Some(child);
        until_served(&self.path("state/server.socket"));
        said
    }

    pub fn run(&self, line: &str) -> Ran {
        let done = self.command(&line.split(' ').collect::<Vec<_>>()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran { status: done.status.code(), out: text(&done.stdout), err: text(&done.stderr) }
    }

    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        let ran = self.run(line);
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{line}: {ran:?}");
        ran.out
    }

    #[track_caller]
    pub fn fails(&self, line: &str, status: i32, says: &str) {
        let ran = self.run(line);
        assert!(ran.status == Some(status) && ran.err.contains(says), "{line}: {ran:?}");
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Ends the server, which says nothing.
    pub fn end(&mut self) {
        let server = self.server.take().unwrap();
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        let done = server.wait_with_output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    }

    /// Ends the server; returns what it has said on standard error.
    pub fn warned(&mut self) -> String {
        let server = self.server.take().unwrap();
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        String::from_utf8_lossy(&server.wait_with_output().unwrap().stderr).into_owned()
    }

    /// Ends the server as `zuse serve --stop` does.
    pub fn stop(&mut self) {
        self.ok("serve --stop");
        let done = self.server.take().unwrap().wait_with_output().unwrap();
        assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    }

    /// Has OpenZFS's zdb check the pool.
    pub fn judge(&self) {
        self.ok("zpool export t");
        oracle::judge::no_leaks(&self.path("pool"), "t");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ended = kill_process(Pid::from_child(&server), Signal::TERM);
            let _waited = server.wait();
        }
        unmount_below(self.dir.path());
    }
}

/// Unmounts what is mounted below a directory.
fn unmount_below(dir: &Path) {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1));
    for point in points.filter(|point| Path::new(point).starts_with(dir)).collect::<Vec<_>>().into_iter().rev() {
        let _gone = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Runs a program; `None` if it is not installed.
///
/// # Panics
/// If it fails, and in CI if it is not installed.
pub fn program(name: &str, args: &[&str]) -> Option<String> {
    let done = match Command::new(name).args(args).output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            assert!(std::env::var_os("CI").is_none(), "{name} is missing; scripts/setup installs it");
            eprintln!("no {name} here: skipped");
            return None;
        }
        done => done.unwrap(),
    };
    assert!(done.status.success(), "{name} {args:?}: {done:?}");
    Some(String::from_utf8_lossy(&done.stdout).into_owned())
}
