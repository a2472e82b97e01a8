//! `cargo bench -p zuse-benches --bench pipe [-- volume=10 tree=/usr/share]`: `zuse zfs send … | zuse zfs receive …` as two processes: of a tree of the
//! host's files, and of a volume of so many GiB, every block of it half random.
//!
//! Prints the rate and what each of the two took: seconds of CPU time, and the most memory. The pools are sparse files in `$ZUSE_BENCH_DIR`
//! (`target/bench`), removed at the end; they need as much room as the tree and the volume, and that twice.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use benches::streams::kept;
use benches::{mix, number, zuse};

/// Bytes of a pool's file beyond what goes in.
const SPARE_GIB: u64 = 8;
/// Bytes that a block of the volume has by default; the second half of each is zeros and a number.
const BLOCK: usize = 16 << 10;

/// The program, with a memory of its own.
struct Zuse {
    binary: PathBuf,
    dir: PathBuf,
}

/// The resources that a process took.
#[derive(Clone, Copy, Default)]
struct Took {
    cpu: f64,
    peak_mb: f64,
}

impl Zuse {
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(line.split(' ')).env("ZUSE_STATE", self.dir.join("state"));
        command
    }

    fn ok(&self, line: &str) {
        let status = self.command(line).stdout(Stdio::null()).status();
        assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "zuse {line}: {status:?}");
    }

    fn pool(&self, name: &str, gib: u64) {
        let device = self.dir.join(name);
        self.ok(&format!("zpool create -m none --size {gib}G {name} {}", device.display()));
    }

    /// Fills a volume of `gib` GiB.
    #[allow(clippy::expect_used)]
    fn fill(&self, name: &str, gib: u64) {
        self.ok(&format!("zfs create -s -V {gib}G -o compression=lz4 {name}"));
        let mut put = self.command(&format!("put {name}")).stdin(Stdio::piped()).spawn().expect("zuse");
        let mut input = put.stdin.take().expect("its input");
        let mut chunk = vec![0u8; 64 * BLOCK];
        for at in (0..gib << 30).step_by(chunk.len()) {
            for (nth, block) in (0..).zip(chunk.chunks_exact_mut(BLOCK)) {
                let seed = at + nth * BLOCK as u64;
                for (n, word) in (0..).zip(block.as_chunks_mut::<8>().0.iter_mut().take(BLOCK / 16)) {
                    *word = mix(seed + n).to_le_bytes();
                }
            }
            input.write_all(&chunk).expect("a volume that takes it");
        }
        drop(input);
        assert!(put.wait().is_ok_and(|status| status.success()), "put {name}");
    }

    /// Sends what `send` says into what `receive` says.
    #[allow(clippy::expect_used)]
    fn pipe(&self, send: &str, receive: &str) -> (f64, Took, Took) {
        let began = Instant::now();
        let mut sends = self.command(send).stdout(Stdio::piped()).spawn().expect("zuse");
        let input = sends.stdout.take().expect("its output");
        let receives = self.command(receive).stdin(input).spawn().expect("zuse");
        let (receiver, sender) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| watched(sends));
            (watched(receives), sender.join().expect("a thread"))
        });
        (began.elapsed().as_secs_f64(), sender, receiver)
    }
}

/// Returns the resources that a process takes until its end, which must be a good one.
#[allow(clippy::expect_used)]
fn watched(mut child: Child) -> Took {
    let mut took = Took::default();
    loop {
        took = took_by(child.id()).unwrap_or(took);
        match child.try_wait().expect("a process") {
            None => std::thread::sleep(Duration::from_millis(20)),
            Some(status) => {
                assert!(status.success(), "{status}");
                return took;
            }
        }
    }
}

fn took_by(pid: u32) -> Option<Took> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    // after the name, which stands in brackets: user and system time are the 12th and 13th
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = stat.rsplit(')').next()?.split_whitespace().skip(11).take(2);
    let cpu = ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0;
    Some(Took { cpu, peak_mb: kilobytes * 1024.0 / 1e6 })
}

/// Bytes of the files below a folder.
fn size_of(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    let sizes = entries.flatten().filter_map(|entry| {
        let meta = entry.metadata().ok()?;
        Some(if meta.is_dir() { size_of(&entry.path()) } else { meta.len() })
    });
    sizes.sum()
}

fn main() {
    let Some(binary) = zuse() else {
        println!("pipe: skipped; it needs the program (cargo build --release -p zuse-cli)");
        return;
    };
    let gib = number("volume", 1);
    let tree = std::env::args().find_map(|arg| arg.strip_prefix("tree=").map(PathBuf::from));
    let tree = tree.unwrap_or_else(|| PathBuf::from("/usr/share"));
    let zuse = Zuse { binary, dir: kept().join("pipe") };
    drop(std::fs::remove_dir_all(&zuse.dir));
    assert!(std::fs::create_dir_all(zuse.dir.join("state")).is_ok(), "{}", zuse.dir.display());
    let tree_bytes = size_of(&tree);
    for pool in ["from", "to"] {
        zuse.pool(pool, 2 * gib + (tree_bytes >> 30) + SPARE_GIB);
    }
    zuse.ok("zfs create -o compression=lz4 from/tree");
    zuse.ok(&format!("cp -q -a {} from/tree:/", tree.display()));
    zuse.fill("from/volume", gib);
    zuse.ok("zfs snapshot -r from@sent");
    println!(
        "{:<24}{:>8}{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "", "GB", "s", "MB/s", "send CPU", "send MB", "recv CPU", "recv MB"
    );
    for (what, name, bytes, flags) in [
        ("files", "tree", tree_bytes, ""),
        ("files, -Lec", "tree", tree_bytes, "-Lec "),
        ("volume", "volume", gib << 30, ""),
        ("volume, -Lec", "volume", gib << 30, "-Lec "),
    ] {
        let (wall, sender, receiver) =
            zuse.pipe(&format!("zfs send {flags}from/{name}@sent"), &format!("zfs receive -u to/{name}"));
        let bytes = bytes as f64;
        println!(
            "{what:<24}{:>8.2}{wall:>9.1}{:>10.0}{:>10.1}{:>10.0}{:>10.1}{:>10.0}",
            bytes / 1e9,
            bytes / 1e6 / wall,
            sender.cpu,
            sender.peak_mb,
            receiver.cpu,
            receiver.peak_mb
        );
        zuse.ok(&format!("zfs destroy -r to/{name}"));
    }
    drop(std::fs::remove_dir_all(&zuse.dir));
}
