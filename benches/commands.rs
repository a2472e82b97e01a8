//! `cargo bench -p zuse-benches --bench commands [-- runs=50 datasets=20 mounts=1000]`: commands that a server carries out, beside the same ones without a server; and how long it
//! takes to mount many file systems. For root, if anything is to be mounted.
//!
//! The pool is a file on the disk, with real flushes. *Through the server* is the whole command: the program starts, asks, and ends. Told are medians and the slowest.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use benches::{median, number, text};

/// Bytes of the pool's device.
const DEVICE: u64 = 4 << 30;
/// How long the server may take to begin.
const PATIENCE: Duration = Duration::from_secs(20);

/// A pool in a state folder of its own.
struct World {
    zuse: PathBuf,
    dir: PathBuf,
    server: Option<Child>,
}

impl World {
    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(&self.zuse);
        command.args(words.split(' ')).env("ZUSE_STATE", self.dir.join("state")).current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Runs a command to its end, and returns the milliseconds that it took.
    fn run(&self, words: &str) -> Option<f64> {
        let begun = Instant::now();
        let status = self.command(words).status().ok()?;
        status.success().then(|| begun.elapsed().as_secs_f64() * 1000.0)
    }

    fn serve(&mut self) -> Option<()> {
        self.server = Some(self.command("serve").spawn().ok()?);
        let (socket, begun) = (self.dir.join("state/server.socket"), Instant::now());
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            if begun.elapsed() > PATIENCE {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // its pool is opened by the first who asks
        self.run("zfs list").map(drop)
    }

    fn stop(&mut self) {
        let _ = self.run("serve --stop");
        if let Some(mut server) = self.server.take() {
            let _ = server.wait();
        }
    }
}

fn main() {
    let Some(zuse) = benches::zuse() else { return eprintln!("there is no release build of zuse") };
    let dir = PathBuf::from(text("dir", &std::env::var("ZUSE_BENCH_DIR").unwrap_or_else(|_| "/tmp".into())));
    let dir = dir.join("zuse-commands");
    let mut world = World { zuse, dir: dir.clone(), server: None };
    if measure(&mut world, &dir).is_none() {
        eprintln!("it cannot be measured");
    }
    world.stop();
    let _ = std::fs::remove_dir_all(&dir);
}

fn measure(world: &mut World, dir: &Path) -> Option<()> {
    std::fs::create_dir_all(dir.join("root")).ok()?;
    std::fs::File::create(dir.join("disk")).and_then(|disk| disk.set_len(DEVICE)).ok()?;
    world.run(&format!("zpool create -R {} t {}", dir.join("root").display(), dir.join("disk").display()))?;
    for n in 0..number("datasets", 20) {
        world.run(&format!("zfs create -o canmount=off t/fs{n}"))?;
    }
    println!("| command | who | median ms | slowest ms |");
    println!("|---|---|---|---|");
    row(world, "without a server")?;
    world.serve()?;
    row(world, "through the server")?;
    mount_many(world)
}

fn row(world: &World, who: &str) -> Option<()> {
    let runs = number("runs", 50);
    let say = |what: &str, mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        let slowest = times.last().copied().unwrap_or(f64::NAN);
        println!("| {what} | {who} | {:.1} | {slowest:.1} |", median(times));
    };
    say("zfs list", (0..runs).map(|_| world.run("zfs list")).collect::<Option<_>>()?);
    let serial = std::process::id();
    let snapshot = |n: u64| world.run(&format!("zfs snapshot t/fs0@{}-{serial}-{n}", who.len()));
    say("zfs snapshot", (0..runs).map(snapshot).collect::<Option<_>>()?);
    Some(())
}

fn mount_many(world: &World) -> Option<()> {
    let mounts = number("mounts", 1000);
    world.run("zfs create -u t/many")?;
    for n in 0..mounts {
        world.run(&format!("zfs create -u t/many/fs{n}"))?;
    }
    let mounted = world.run("zfs mount -a")?;
    let unmounted = world.run("zfs unmount -a")?;
    println!("{mounts} file systems: mounted in {:.1} s, unmounted in {:.1} s", mounted / 1000.0, unmounted / 1000.0);
    Some(())
}
