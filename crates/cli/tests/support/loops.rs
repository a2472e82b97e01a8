//! Loop devices: files as block devices.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

/// A file as a block device, until it is dropped.
pub struct Loop {
    path: String,
}

impl Loop {
    /// Why there cannot be loop devices here; `None` if there can.
    pub fn missing() -> Option<String> {
        if !is_root() {
            return Some("only root has loop devices".to_owned());
        }
        let output = match Command::new("losetup").arg("--find").output() {
            Ok(output) => output,
            Err(e) => return Some(format!("losetup: {e}")),
        };
        let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match output.status.success() && Path::new(&path).exists() {
            true => None,
            false => Some(format!("no free loop device {path}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// A sparse file of this many MiB in `dir`, and its device.
    pub fn new(dir: &Path, name: &str, mib: u64) -> Loop {
        let file = dir.join(name);
        std::fs::File::create(&file).unwrap().set_len(mib << 20).unwrap();
        Loop::of(&file)
    }

    /// The device of a file that is there.
    pub fn of(file: &Path) -> Loop {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        Loop { path: String::from_utf8(output.stdout).unwrap().trim().to_owned() }
    }

    /// `/dev/loop7`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// `loop7`.
    pub fn name(&self) -> &str {
        self.path.strip_prefix("/dev/").unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // a device that is still open is detached by the last process that closes it
        let _gone = Command::new("losetup").arg("--detach").arg(&self.path).output();
    }
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status
            .lines()
            .any(|line| line.strip_prefix("Uid:").is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0")))
    })
}
