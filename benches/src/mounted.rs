//! File systems to mount beside each other: Zuse's, zfs-fuse's, and one that passes everything through to a directory of the host.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The datasets of each pool, of records of 128 KiB and of 8 KiB; to the pass-through they are directories.
pub const DATASETS: [(&str, &str); 2] = [("big", "128K"), ("small", "8K")];
/// Bytes of a pool's device.
const DEVICE: u64 = 12 << 30;
/// Bytes that each pool may cache, in MiB.
const ARC_MIB: u64 = 2048;
/// How long a program may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Mounted directories, and the program that serves them. It is ended when this is dropped.
#[derive(Debug)]
pub struct Mounted {
    /// What it is.
    pub name: &'static str,
    /// The directory with the directories of [`DATASETS`] in it.
    pub root: PathBuf,
    server: Child,
    /// What unmounts and ends it, one after another.
    end: Vec<Vec<String>>,
    env: Vec<(&'static str, String)>,
}

impl Mounted {
    /// Zuse: a server with a pool on a file in `dir`. `None`, with a word on stderr, if it cannot be had.
    #[must_use]
    pub fn zuse(dir: &Path) -> Option<Mounted> {
        let program = text(&crate::zuse()?);
        let env = vec![("ZUSE_STATE", text(&dir.join("state")))];
        let server = start(&[&program, "-o", &format!("zfs_arc_max={}", ARC_MIB << 20), "serve"], &env)?;
        let (root, device) = folder(dir)?;
        let end = vec![words(&[&program, "serve", "--stop"])];
        let mounted = Mounted { name: "Zuse", root, server, end, env };
        let socket = dir.join("state/server.socket");
        until(|| std::os::unix::net::UnixStream::connect(&socket).is_ok())?;
        mounted.pool("zuse", &[&program, "zpool"], &[&program, "zfs"], &device)
    }

    /// zfs-fuse 0.7, as `peer/build-mounts` got it into `peer`, with the timeouts that its help text advises for speed. It keeps a socket in `/var/run/zfs`,
    /// so that there can be one of it.
    #[must_use]
    pub fn zfs_fuse(peer: &Path, dir: &Path) -> Option<Mounted> {
        let sbin = |name: &str| text(&peer.join("root/sbin").join(name));
        let libraries = ["root/lib/x86_64-linux-gnu", "root/usr/lib/x86_64-linux-gnu"].map(|lib| text(&peer.join(lib)));
        let env = vec![("LD_LIBRARY_PATH", libraries.join(":"))];
        let arc = ARC_MIB.to_string();
        std::fs::create_dir_all("/var/run/zfs").ok()?;
        let options = ["--no-daemon", "--no-kstat-mount", "-a", "3600", "-e", "3600", "-m", &arc];
        let mut argv = vec![sbin("zfs-fuse")];
        argv.extend(options.map(str::to_owned));
        let server = start(&argv.iter().map(String::as_str).collect::<Vec<_>>(), &env)?;
        let (root, device) = folder(dir)?;
        let (zpool, zfs) = (sbin("zpool"), sbin("zfs"));
        // it keeps its file systems busy for a while
        let points = [root.join(DATASETS[0].0), root.join(DATASETS[1].0), root.clone()];
        let mut end: Vec<_> = points.iter().map(|point| words(&["umount", "-l", &text(point)])).collect();
        // what it refuses to destroy stays in its list of pools
        let name = format!("fuse{}", std::process::id());
        end.push(words(&[&zpool, "destroy", "-f", &name]));
        let mounted = Mounted { name: "zfs-fuse", root, server, end, env };
        until(|| mounted.run(&[&zpool, "list"]).is_some())?;
        mounted.pool(&name, &[&zpool], &[&zfs], &device)
    }

    /// libfuse's `passthrough_ll` over a directory of the host, with everything cached that it can cache.
    #[must_use]
    pub fn passthrough(peer: &Path, dir: &Path) -> Option<Mounted> {
        let (root, below) = (dir.join("mnt"), dir.join("below"));
        std::fs::create_dir_all(&root).ok()?;
        DATASETS.iter().try_for_each(|(name, _)| std::fs::create_dir_all(below.join(name))).ok()?;
        let source = format!("source={},cache=always,no_writeback", below.display());
        let program = text(&peer.join("passthrough_ll"));
        let server = start(&[&program, "-f", "-o", &source, &text(&root)], &[])?;
        let end = vec![words(&["umount", &text(&root)])];
        let mounted = Mounted { name: "pass-through", root, server, end, env: Vec::new() };
        until(|| mounted.root.join(DATASETS[0].0).exists())?;
        Some(mounted)
    }

    /// Makes the pool and its datasets, without compression, so that all write the same bytes. The names of pools differ: both have the same type in the
    /// mount table, in which zfs-fuse looks what is mounted.
    fn pool(self, name: &str, zpool: &[&str], zfs: &[&str], device: &Path) -> Option<Mounted> {
        let root = text(&self.root);
        self.run(&[zpool, &["create", "-m", &root, name, &text(device)]].concat())?;
        for (below, records) in DATASETS {
            let properties = [format!("recordsize={records}"), "compression=off".to_owned(), "atime=off".to_owned()];
            let mut argv = [zfs, &["create"]].concat();
            properties.iter().for_each(|property| argv.extend(["-o", property]));
            let dataset = format!("{name}/{below}");
            argv.push(&dataset);
            self.run(&argv)?;
        }
        Some(self)
    }

    fn run(&self, argv: &[&str]) -> Option<()> {
        let (program, args) = argv.split_first()?;
        let mut command = Command::new(program);
        command.args(args).envs(self.env.iter().map(|(name, value)| (name, value)));
        let done = command.stdin(Stdio::null()).output().ok()?;
        if !done.status.success() {
            eprintln!("{argv:?}: {}", String::from_utf8_lossy(&done.stderr).trim_end());
        }
        done.status.success().then_some(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for argv in std::mem::take(&mut self.end) {
            // a second try is for the kernel, which lets go of what has just been closed a little later
            let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
            let _ = self.run(&argv).or_else(|| self.run(&argv));
        }
        if until(|| self.server.try_wait().is_ok_and(|ended| ended.is_some()) || self.name == "zfs-fuse").is_none() {
            eprintln!("{} does not end", self.name);
        }
        // zfs-fuse has no command that ends it
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Makes the directory of mount points and the file of a pool.
fn folder(dir: &Path) -> Option<(PathBuf, PathBuf)> {
    let (root, device) = (dir.join("mnt"), dir.join("disk"));
    std::fs::create_dir_all(&root).ok()?;
    std::fs::File::create(&device).and_then(|file| file.set_len(DEVICE)).ok()?;
    Some((root, device))
}

fn start(argv: &[&str], env: &[(&str, String)]) -> Option<Child> {
    let (program, args) = argv.split_first()?;
    let mut command = Command::new(program);
    command.args(args).envs(env.iter().map(|(name, value)| (name, value)));
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    started.inspect_err(|error| eprintln!("{program}: {error}")).ok()
}

fn until(mut done: impl FnMut() -> bool) -> Option<()> {
    let begun = Instant::now();
    while !done() {
        if begun.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(())
}

fn words(argv: &[&str]) -> Vec<String> {
    argv.iter().map(|word| (*word).to_owned()).collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
