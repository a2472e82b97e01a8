//! A server with a pool whose file systems are mounted below an alternate root in a directory of its own; whatever is left mounted there at its end is
//! unmounted.
#![allow(dead_code, unused_imports, unreachable_pub, clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "../support/until.rs"]
mod until;
mod user;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
pub use until::{until, until_served};

pub struct World {
    dir: tempfile::TempDir,
    server: Option<Child>,
    /// Tunables of the server.
    tunables: String,
    /// Where a user mounts instead of root.
    user: Option<user::Namespace>,
}

/// What a command line left.
#[derive(Debug, PartialEq)]
pub struct Ran {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

fn can_mount() -> bool {
    let may = File::options().read(true).write(true).open("/dev/fuse").is_ok() && rustix::process::geteuid().is_root();
    may_skip(may, "nothing can be mounted here")
}

/// Returns whether this is so; says why not if a test may be skipped for it.
fn may_skip(is_so: bool, why: &str) -> bool {
    assert!(is_so || std::env::var_os("ZUSE_FUSE").is_none_or(|word| word != "require"), "{why}");
    if !is_so {
        eprintln!("{why}: skipped (ZUSE_FUSE=require makes this a failure)");
    }
    is_so
}

impl World {
    /// A world with a server, and a pool `t` on one disk; `None` where nothing can be mounted.
    pub fn new() -> Option<World> {
        World::tuned("")
    }

    /// As [`World::new`], with these tunables: `NAME=VALUE,…`.
    pub fn tuned(tunables: &str) -> Option<World> {
        let mut world = World::empty()?;
        tunables.clone_into(&mut world.tunables);
        world.serve();
        world.ok("zpool create -R $R t $D/disk");
        Some(world)
    }

    pub fn empty() -> Option<World> {
        if !can_mount() {
            return None;
        }
        let world = World { dir: tempfile::tempdir().unwrap(), server: None, tunables: String::new(), user: None };
        for folder in ["state", "bin", "root"] {
            fs::create_dir(world.path(folder)).unwrap();
        }
        for tool in ["zfs", "zpool", "zuse", "mount.zfs"] {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_zuse"), world.path("bin").join(tool)).unwrap();
        }
        File::create(world.path("disk")).unwrap().set_len(256 << 20).unwrap();
        Some(world)
    }

    /// A world of a user, with a server, and a pool `t` on one disk; with this `/etc/fuse.conf`.
    pub fn of_user(conf: &str) -> Option<World> {
        let mut world = World::empty()?;
        // who may not pass to the folder of the build
        for tool in ["zfs", "zpool", "zuse", "mount.zfs"] {
            fs::remove_file(world.path("bin").join(tool)).unwrap();
            std::os::unix::fs::symlink("program", world.path("bin").join(tool)).unwrap();
        }
        fs::copy(env!("CARGO_BIN_EXE_zuse"), world.path("bin/program")).unwrap();
        world.user = user::Namespace::new(&world.path(""), conf);
        if !may_skip(world.user.is_some(), "no namespace for the mounts of a user can be made here") {
            return None;
        }
        world.serve();
        world.ok("zpool create -R $R t $D/disk");
        Some(world)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn command(&self, program: &str) -> Command {
        self.command_of(program, false)
    }

    /// A command; in the world of a user also by root.
    fn command_of(&self, program: &str, is_root: bool) -> Command {
        let mut command = match &self.user {
            Some(user) => user.command(program, is_root),
            None => Command::new(program),
        };
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.path("bin").display());
        command.env("ZUSE_STATE", self.path("state")).env("PATH", path).current_dir(self.dir.path());
        command.env("D", self.path("")).env("R", self.path("root"));
        if !self.tunables.is_empty() {
            command.env("ZUSE_TUNABLES", &self.tunables);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn serve(&mut self) {
        let mut command = self.command("zuse");
        let child = command.arg("serve").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.server = Some(child);
        until_served(&self.path("state/server.socket"));
    }

    /// Runs a line of the shell; `ROOT` stands for the alternate root in what it prints.
    pub fn run(&self, line: &str) -> Ran {
        self.run_by(line, false)
    }

    /// Runs a line as root in the world of a user.
    pub fn run_by_root(&self, line: &str) -> Ran {
        self.run_by(line, true)
    }

    fn run_by(&self, line: &str, is_root: bool) -> Ran {
        let done = self.command_of("sh", is_root).arg("-c").arg(line).output().unwrap();
        let root = self.path("root").display().to_string();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&root, "ROOT");
        Ran { status: done.status.code(), out: text(&done.stdout), err: text(&done.stderr) }
    }

    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        let ran = self.run(line);
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{line}: {ran:?}");
        ran.out
    }

    /// Runs a line that fails with this status and message.
    #[track_caller]
    pub fn fails(&self, line: &str, status: i32, message: &str) {
        let ran = self.run(line);
        assert_eq!((ran.status, ran.err.trim_end()), (Some(status), message), "{line}");
    }

    /// The mounts, as `zfs mount` lists them: `DATASET PATH`.
    pub fn mounted(&self) -> Vec<String> {
        let list = self.ok("zfs mount");
        list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    /// The mount points below this world in the kernel's table, in its order.
    pub fn in_kernel(&self) -> Vec<String> {
        let root = self.path("").display().to_string();
        let own = || fs::read_to_string("/proc/self/mounts").unwrap();
        let table = self.user.as_ref().map_or_else(own, user::Namespace::table);
        let words = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let ours = words.filter(|words| words[1].starts_with(&root) && words[2] == "fuse.zfs");
        ours.map(|words| words[1].to_owned()).collect()
    }

    /// The memory that the server uses.
    pub fn memory_kib(&self) -> u64 {
        let server = self.server.as_ref().unwrap().id();
        let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    fn end(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = kill_process(Pid::from_child(&server), Signal::TERM);
            let _ = server.wait();
        }
        let _ = self.command("zuse").args(["serve", "--stop"]).output();
    }

    /// Ends the server, and has OpenZFS's zdb check the pool.
    pub fn check(mut self) {
        self.ok("zpool export t");
        self.end();
        assert_eq!(self.in_kernel(), [] as [String; 0]);
        oracle::judge::no_leaks(self.dir.path(), "t");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.end();
        // with a namespace it is gone anyway
        for path in self.in_kernel().iter().rev().filter(|_| self.user.is_none()) {
            let _ = rustix::mount::unmount(path.as_str(), rustix::mount::UnmountFlags::DETACH);
        }
    }
}
