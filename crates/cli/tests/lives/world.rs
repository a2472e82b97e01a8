//! A pool, its devices, and the program that works on them.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use oracle::judge;
use serde_json::Value;

use super::model::{Contents, Seen};

/// The name of every pool here.
pub const POOL: &str = "life";
/// Bytes of a volume.
pub const VOLUME: usize = 256 << 10;
/// Bytes of a device.
const DEVICE: &str = "160M";

/// The end of a command.
#[derive(Debug)]
pub enum Ended {
    /// By itself, with this status.
    By(i32),
    /// It was killed.
    Killed,
}

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub ended: Ended,
    pub out: Vec<u8>,
    pub err: String,
}

impl Ran {
    pub fn is_ok(&self) -> bool {
        matches!(self.ended, Ended::By(0))
    }
}

/// A folder with a pool's devices, its keys, and the program's state.
pub struct World {
    dir: tempfile::TempDir,
    pub devices: Vec<String>,
    /// The commands so far, for the report of a failure.
    pub typed: Vec<String>,
}

fn zuse() -> PathBuf {
    std::env::var_os("ZUSE").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_zuse")), PathBuf::from)
}

/// Copies the files of a folder, keeping their holes.
fn copy_images(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let status = Command::new("cp").args(["-r", "--sparse=always"]).arg(from.join(".")).arg(to).status().unwrap();
    assert!(status.success(), "cp {} {}", from.display(), to.display());
}

impl World {
    /// Makes a pool of these vdevs; `dN` is a device.
    pub fn new(vdevs: &str) -> World {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["state", "images", "away"] {
            std::fs::create_dir(dir.path().join(sub)).unwrap();
        }
        std::fs::write(dir.path().join("key"), [7; 32]).unwrap();
        let is_device = |word: &&str| word.strip_prefix('d').is_some_and(|n| n.parse::<u8>().is_ok());
        let devices = vdevs.split(' ').filter(is_device).map(str::to_owned).collect();
        let mut world = World { dir, devices, typed: Vec::new() };
        let images = world.images();
        let path = |word: &str| match is_device(&word) {
            true => images.join(word).display().to_string(),
            false => word.to_owned(),
        };
        let mut args: Vec<String> =
            ["zpool", "create", "--size", DEVICE, "-O", "mountpoint=none", POOL].map(str::to_owned).into();
        args.extend(vdevs.split(' ').map(path));
        let ran = world.run(&args, &[], None);
        assert!(ran.is_ok(), "{args:?}: {}", ran.err);
        world
    }

    /// A separate world with a copy of the devices, on which no command has run yet.
    pub fn copy(&self) -> World {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("state")).unwrap();
        std::fs::copy(self.dir.path().join("key"), dir.path().join("key")).unwrap();
        copy_images(&self.images(), &dir.path().join("images"));
        World { dir, devices: self.devices.clone(), typed: Vec::new() }
    }

    pub fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    /// The URL of the key.
    pub fn key(&self) -> String {
        format!("file://{}", self.dir.path().join("key").display())
    }

    /// A file for streams.
    pub fn stream(&self) -> PathBuf {
        self.dir.path().join("stream")
    }

    /// Moves a device away.
    pub fn leave(&mut self, device: &str) {
        self.typed.push(format!("mv images/{device} away"));
        std::fs::rename(self.images().join(device), self.dir.path().join("away").join(device)).unwrap();
    }

    /// Brings a device back.
    pub fn come_back(&mut self, device: &str) {
        self.typed.push(format!("mv away/{device} images"));
        std::fs::rename(self.dir.path().join("away").join(device), self.images().join(device)).unwrap();
    }

    /// Leaves the folder in place for inspection.
    pub fn keep(self) -> PathBuf {
        self.dir.keep()
    }

    /// Runs the program; kills it after `kill`.
    pub fn run(&mut self, args: &[String], input: &[u8], kill: Option<Duration>) -> Ran {
        let mut child = Command::new(zuse())
            .args(args)
            .env("ZUSE_STATE", self.dir.path().join("state"))
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        std::thread::scope(|scope| {
            // a command that ends early does not read everything
            scope.spawn(move || drop(stdin.write_all(input)));
            if let Some(after) = kill {
                // the child is not reaped before this thread has ended, so the pid is still its own
                std::thread::sleep(after);
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        });
        let output = child.wait_with_output().unwrap();
        let ended = match output.status.signal() {
            Some(9) if kill.is_some() => Ended::Killed,
            _ => Ended::By(output.status.code().unwrap_or(-1)),
        };
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        self.typed.push(format!("zuse {}  # {ended:?} {}", args.join(" "), err.trim_end().replace('\n', " | ")));
        Ran { ended, out: output.stdout, err }
    }

    /// The output of a command that must succeed.
    pub fn ok(&mut self, line: &str) -> Result<Vec<u8>, String> {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let ran = self.run(&args, &[], None);
        if ran.is_ok() { Ok(ran.out) } else { Err(format!("{line}: {:?}: {}", ran.ended, ran.err)) }
    }

    /// Reads everything that the pool contains.
    pub fn look(&mut self) -> Result<Seen, String> {
        let list = self.ok(&format!("zfs list -H -t filesystem,volume,snapshot -o name -r {POOL}"))?;
        let volumes = self.ok(&format!("zfs list -H -t volume -o name -r {POOL}"))?;
        let (list, volumes) = (String::from_utf8_lossy(&list), String::from_utf8_lossy(&volumes));
        let volumes: Vec<&str> = volumes.lines().collect();
        let (blocks, files): (Vec<&str>, Vec<&str>) =
            list.lines().partition(|name| volumes.contains(&name.split('@').next().unwrap_or(name)));
        let mut seen: Seen = files.iter().map(|name| ((*name).to_owned(), Contents::Files(BTreeMap::new()))).collect();
        for line in self.ok(&format!("ls -R --json --sha256 {}", files.join(" ")))?.split(|byte| *byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            let entry: Value = serde_json::from_slice(line).map_err(|e| format!("ls: {e}"))?;
            let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
            if let (Some(Contents::Files(files)), "f") = (seen.get_mut(&text("dataset")), text("type").as_str()) {
                files.insert(text("path"), text("sha256"));
            }
        }
        if !blocks.is_empty() {
            let bytes = self.ok(&format!("cat {}", blocks.join(" ")))?;
            for (name, bytes) in blocks.iter().zip(bytes.chunks(VOLUME)) {
                seen.insert((*name).to_owned(), Contents::Volume(Arc::new(bytes.to_vec())));
            }
        }
        Ok(seen)
    }

    /// Has OpenZFS's engine import the pool for writing, and leave it exported.
    pub fn zhack(&self) -> Result<(), String> {
        let images = self.images().display().to_string();
        let args = ["-d", &images, "-o", "metaslab_debug_load=1", "action", "idle", "-t", "1", POOL];
        match judge::run("zhack", &args) {
            Some(out) if !out.status.success() => {
                let said = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
                Err(format!("zhack: {}: {said}", out.status))
            }
            _ => Ok(()),
        }
    }

    /// Has zdb check all blocks of the exported pool.
    pub fn zdb(&self) -> Result<(), String> {
        match judge::blocks(&self.images(), POOL) {
            Some(blocks) if !blocks.are_good() => Err(blocks.said),
            _ => Ok(()),
        }
    }
}
