//! A mount namespace in which a user may mount: `/dev/fuse` is for all there, and `/etc/fuse.conf` is one of its own. It ends, with all mounts in it, with
//! the process that keeps it.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The user, who is on every system.
const USER: &str = "nobody";
/// What is mounted there: the device of FUSE for all, its configuration, the file system by which connections are ended. Mounts of others are not, as they
/// would not end before it does.
const SCRIPT: &str = "mount --make-rprivate / && for m in $(grep ' fuse.zfs ' /proc/self/mounts | cut -d' ' -f2); do umount -l $m 2>/dev/null; done; mount -t tmpfs -o dev none $D/dev && mknod -m 666 $D/dev/fuse c 10 229 &&
    mount --bind $D/dev/fuse /dev/fuse && mount --bind $D/fuse.conf /etc/fuse.conf &&
    { mountpoint -q /sys/fs/fuse/connections || mount -t fusectl none /sys/fs/fuse/connections; } && echo ready && exec sleep infinity";

pub struct Namespace(Child);

impl Namespace {
    /// Makes one; the folder becomes the user's. `None` if this system does not let root do that, as in a container.
    pub fn new(dir: &Path, conf: &str) -> Option<Namespace> {
        fs::create_dir(dir.join("dev")).unwrap();
        fs::write(dir.join("fuse.conf"), conf).unwrap();
        let all = Command::new("chown").args(["-R", USER]).arg(dir).status().unwrap();
        assert!(all.success());
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "sh", "-c", SCRIPT]).env("D", dir).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = unshare.spawn().unwrap();
        let mut word = [0; 6];
        let made = child.stdout.as_mut().unwrap().read_exact(&mut word);
        // it is ended if it is not given out
        let namespace = Namespace(child);
        made.is_ok().then_some(namespace)
    }

    /// Returns a command that runs a program in it as the user, or as root.
    pub fn command(&self, program: &str, is_root: bool) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-m", "-t", &self.0.id().to_string(), "--"]);
        if !is_root {
            command.args(["setpriv", "--reuid", USER, "--clear-groups", "--inh-caps=-all"]);
        }
        command.arg(program);
        command
    }

    /// Returns the mount table that is seen in it.
    pub fn table(&self) -> String {
        fs::read_to_string(format!("/proc/{}/mounts", self.0.id())).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
