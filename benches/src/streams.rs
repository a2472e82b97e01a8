//! Pools to be sent, and what a piece of work costs. The peer makes the pools, for it cannot read all that Zuse's own have.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ::pool::{OpenOptions, Pool};
use stream::send::{Base, Progress, SendFlags};

use crate::{run_peer, spent_cpu_seconds};

/// The share of the blocks that an incremental stream brings, in percent.
pub const PERCENT: u64 = 10;
/// Blocks that lie together in the clumped increment.
const CLUMP: u64 = 64;
/// `-c -e -L`, as the peer sends.
pub const FLAGS: SendFlags =
    SendFlags { embed: true, large_block: true, compress: true, raw: false, resume: None, saved: None };

/// Two pools in a directory: `pb` with one object of `blocks` blocks of 8 KiB that compress to 2.5 KiB, and snapshots `s1`, `s2` (a tenth of the
/// blocks changed, in clumps) and `s3` (a tenth, scattered); `pf` with `files` objects of one such block each, and `s1`.
#[derive(Debug)]
pub struct Source {
    /// Their place.
    pub dir: PathBuf,
    /// Blocks of the large object.
    pub blocks: u64,
    /// Small objects.
    pub files: u64,
}

/// A stream that is measured.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Its name in the table.
    pub name: &'static str,
    /// The pool.
    pub pool: &'static str,
    /// The snapshot that it starts from.
    pub from: Option<&'static str>,
    /// The snapshot that it brings.
    pub to: &'static str,
}

/// All of them.
pub const SENT: [Sent; 4] = [
    Sent { name: "full", pool: "pb", from: None, to: "s1" },
    Sent { name: "10 % in clumps", pool: "pb", from: Some("s1"), to: "s2" },
    Sent { name: "10 % scattered", pool: "pb", from: Some("s2"), to: "s3" },
    Sent { name: "small files", pool: "pf", from: None, to: "s1" },
];

impl Source {
    /// Makes the pools in `base`, or takes those that an earlier run made; `None`, with a word about it, if the peer cannot.
    #[must_use]
    pub fn new(peer: &PathBuf, base: &Path, blocks: u64, files: u64) -> Option<Source> {
        let dir = base.join(format!("send-{blocks}-{files}"));
        let complete = dir.join("complete");
        let source = Source { dir, blocks, files };
        if complete.exists() {
            return Some(source);
        }
        println!("making pools of {blocks} blocks and {files} files in {}", source.dir.display());
        std::fs::create_dir_all(&source.dir).ok()?;
        let (at, count) = (format!("dir={}", source.dir.display()), format!("blocks={blocks}"));
        let modify = |clump: u64, to: &str, seed: u64| {
            let (clump, to, seed) = (format!("clump={clump}"), format!("to={to}"), format!("seed={seed}"));
            !run_peer(peer, &["modify", &at, &count, &format!("pct={PERCENT}"), &clump, &to, &seed]).is_empty()
        };
        let small = [format!("blocks={files}"), format!("objs={files}")];
        let made = !run_peer(peer, &["mk", &at, &count]).is_empty()
            && modify(CLUMP, "s2", 2)
            && modify(1, "s3", 3)
            && !run_peer(peer, &["mk", &at, "pool=pf", &small[0], &small[1]]).is_empty();
        if !made {
            println!("skipped: the peer cannot make the pools");
            return None;
        }
        std::fs::write(complete, "").ok()?;
        Some(source)
    }

    /// Blocks that a stream brings.
    #[must_use]
    pub fn blocks_of(&self, sent: &Sent) -> u64 {
        match (sent.pool, sent.from) {
            ("pf", _) => self.files,
            (_, None) => self.blocks,
            (_, Some(_)) => self.blocks * PERCENT / 100,
        }
    }

    /// Opens a pool anew, its cache empty.
    ///
    /// # Panics
    /// When it cannot be opened: there is nothing to measure then.
    #[must_use]
    #[allow(clippy::expect_used)]
    pub fn open(&self, pool: &str) -> Arc<Pool> {
        let found = vdev::import::scan(&[self.dir.join(format!("{pool}.v0"))]).expect("the pool's file");
        Pool::open(found.first().expect("a pool"), &OpenOptions::default()).expect("an opened pool")
    }

    /// Sends a stream from a pool that [`Source::open`] gave.
    ///
    /// # Panics
    /// When it cannot be sent.
    #[allow(clippy::expect_used)]
    pub fn send(&self, pool: &Arc<Pool>, sent: &Sent, out: &mut File) {
        let open = |snap: &str| pool.dataset(&format!("{}/fs@{snap}", sent.pool)).expect("a snapshot");
        let to = open(sent.to);
        let base = sent.from.map(|from| Base::of_snapshot(&open(from), &to).expect("a base"));
        stream::send::send(&to, base.as_ref(), &FLAGS, out, &Progress::default()).expect("a stream");
    }
}

/// The cost of a piece of work for this process.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Seconds.
    pub wall: f64,
    /// Seconds of all threads.
    pub cpu: f64,
    /// The most memory that the process had meanwhile, in MB.
    pub peak_mb: f64,
}

/// Returns the cost of `work`.
pub fn cost(work: impl FnOnce()) -> Cost {
    // where the kernel does not forget the peak, it is that of the whole process
    drop(std::fs::write("/proc/self/clear_refs", "5"));
    let (cpu, wall) = (spent_cpu_seconds(), Instant::now());
    work();
    let wall = wall.elapsed().as_secs_f64();
    Cost { wall, cpu: spent_cpu_seconds() - cpu, peak_mb: peak_mb().unwrap_or(f64::NAN) }
}

fn peak_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes * 1024.0 / 1e6)
}

/// A number of a peer's result.
#[must_use]
pub fn figure(result: &crate::PeerResult, key: &str) -> f64 {
    result.get(key).and_then(|v| v.parse().ok()).unwrap_or(f64::NAN)
}

/// Before a clock starts: what others wrote is on its disk, and the machine has as many GiB at hand (a process of its own touches them and ends). A
/// virtual machine gives what is freed back to its host, and a GiB touched anew costs up to seconds of CPU time, whoever touches it.
pub fn warm(gib: u64) {
    rustix::fs::sync();
    let toucher =
        std::env::current_exe().map(|own| std::process::Command::new(own).arg(format!("touch={gib}")).status());
    drop(toucher);
}

/// Does the work of the process of [`warm`]; returns whether this is one.
#[must_use]
pub fn touched() -> bool {
    let gib = crate::number("touch", 0);
    let mut memory = vec![0_u8; (gib as usize) << 30];
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
    gib > 0
}

/// The directory in which pools are kept from run to run: `$ZUSE_BENCH_DIR`, or `target/bench`.
#[must_use]
pub fn kept() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::env::var_os("ZUSE_BENCH_DIR").map_or_else(default, PathBuf::from)
}
