//! `cargo bench -p zuse-benches --bench fsync [-- writers=1,8,64 seconds=3 rounds=3 gib=2 sparse=0 every=0 pause=50]`: writes of 4 KiB, each made safe before the
//! next begins, beside those of the host's file system in the same run.
//!
//! Each writer is a thread with a file of 16 MiB of its own, which exists, and writes to the next place in it: to a file of a pool in a file on the disk,
//! with `write` and `fsync` and real flushes; and to a plain file beside that, with `pwrite` and `fdatasync`. Zuse and the host take turns; told
//! are the medians of the rounds.
//!
//! The pool's file is written whole before, as the plain ones are, so that it is to the host what a disk is. With `sparse=1` it is not: then the
//! host's file system finds a place for each block of the log, and commits its own journal with it.
//!
//! With `every=20`, each twentieth flush of the pool's device takes `pause` milliseconds longer.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ::pool::{CreateOptions, Hooks, Spa};
use base::{Env, ObjectId};
use benches::{number, spent_cpu_seconds, text};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};
use zpl::Kind;
use zpl::create::{FsProps, create_fs};
use zpl::live::{Cred, NewFile, Zfs};

const FILE: u64 = 16 << 20;
const WRITE: u64 = 4096;

/// A device whose flushes are slow at times.
#[derive(Debug)]
struct Moody {
    file: FileDevice,
    every: u64,
    pause: Duration,
    flushes: AtomicU64,
}

impl Device for Moody {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.file.write_at(offset, data)
    }

    fn write_vectored_at(&self, offset: u64, data: &[std::io::IoSlice<'_>]) -> std::io::Result<()> {
        self.file.write_vectored_at(offset, data)
    }

    fn flush(&self) -> std::io::Result<()> {
        let number = self.flushes.fetch_add(1, Ordering::Relaxed) + 1;
        if number.is_multiple_of(self.every) {
            std::thread::sleep(self.pause);
        }
        self.file.flush()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.file.name()
    }
}

/// The result of one round of all writers.
struct Round {
    zuse: f64,
    host: f64,
    cpu_us: f64,
    batches: f64,
    txgs: u64,
}

#[allow(clippy::expect_used)]
fn main() {
    let dir = std::env::var_os("ZUSE_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from).join("zuse-fsync");
    std::fs::create_dir_all(&dir).expect("directory");
    let (seconds, rounds) = (number("seconds", 3).max(1), number("rounds", 3).max(1));
    let spa = make(&dir.join("pool"), number("gib", 2) << 30, number("sparse", 0) != 0);
    let zfs = Zfs::open(&spa, "f").expect("file system");
    println!(
        "{:>8}{:>14}{:>12}{:>10}{:>10}{:>14}",
        "writers", "zuse fsync/s", "CPU us each", "batches/s", "txgs", "host sync/s"
    );
    for writers in text("writers", "1,8,64").split(',').filter_map(|text| text.parse().ok()) {
        let (ids, files) = (ours(&zfs, writers), plain(&dir, writers));
        let all: Vec<Round> = (0..rounds).map(|_| round(&zfs, &ids, &files, seconds)).collect();
        let of = |value: &dyn Fn(&Round) -> f64| median(all.iter().map(value).collect());
        println!(
            "{writers:>8}{:>14.0}{:>12.1}{:>10.0}{:>10}{:>14.0}",
            of(&|round| round.zuse),
            of(&|round| round.cpu_us),
            of(&|round| round.batches),
            all.iter().map(|round| round.txgs).sum::<u64>(),
            of(&|round| round.host)
        );
    }
    drop(zfs);
    spa.close().expect("close");
    drop(std::fs::remove_dir_all(&dir));
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

#[allow(clippy::expect_used)]
fn round(zfs: &Zfs, ids: &[ObjectId], files: &[std::fs::File], seconds: u64) -> Round {
    let spa = zfs.spa();
    let (cpu, batches, txg) = (spent_cpu_seconds(), batches(spa), spa.txgs().synced());
    let zuse = run(ids.len(), seconds, &|writer, at, data| {
        let id = ids[writer];
        zfs.write(&Cred::ROOT, id, at, data).expect("write");
        zfs.fsync(id).expect("fsync");
    });
    let (cpu, txgs) = (spent_cpu_seconds() - cpu, spa.txgs().synced().0 - txg.0);
    let batches = self::batches(spa) - batches;
    let host = run(files.len(), seconds, &|writer, at, data| {
        files[writer].write_all_at(data, at).expect("write");
        files[writer].sync_data().expect("sync");
    });
    let each = |count: u64| count as f64 / seconds as f64;
    Round { zuse: each(zuse), host: each(host), cpu_us: cpu * 1e6 / zuse.max(1) as f64, batches: each(batches), txgs }
}

/// Batches of commits that were written so far.
fn batches(spa: &Arc<Spa>) -> u64 {
    spa.kstats().iter().find_map(|kstat| kstat.get("zil_commit_writer_count")).unwrap_or(0)
}

/// How often `work` is done by all writers together.
fn run(writers: usize, seconds: u64, work: &(dyn Fn(usize, u64, &[u8]) + Sync)) -> u64 {
    let (over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (over, count) = (&over, &count);
            scope.spawn(move || {
                let data: Vec<u8> = (0..WRITE).map(|n| benches::mix(n) as u8).collect();
                let mut at = 0;
                while !over.load(Ordering::Relaxed) {
                    work(writer, at, &data);
                    count.fetch_add(1, Ordering::Relaxed);
                    at = (at + WRITE) % FILE;
                }
            });
        }
        std::thread::sleep(Duration::from_secs(seconds));
        over.store(true, Ordering::Relaxed);
    });
    count.into_inner()
}

/// A file of zeros that all have their place.
fn fill(path: &Path, size: u64) -> std::io::Result<()> {
    let (file, zeros) = (std::fs::OpenOptions::new().write(true).open(path)?, vec![0; FILE as usize]);
    (0..size / FILE).try_for_each(|n| file.write_all_at(&zeros, n * FILE))?;
    file.sync_all()
}

#[allow(clippy::expect_used)]
fn make(path: &Path, size: u64, sparse: bool) -> Arc<Spa> {
    let hooks = Hooks { env: Env::system(), used_by: Some(Arc::new(zpl::UsedByBonus)), ..Hooks::default() };
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        let file = FileDevice::create(Path::new(path), size).ok()?;
        if !sparse {
            fill(Path::new(path), size).ok()?;
        }
        let (every, pause) = (number("every", 0), Duration::from_millis(number("pause", 50)));
        if every == 0 {
            return Some(Arc::new(file));
        }
        Some(Arc::new(Moody { file, every, pause, flushes: AtomicU64::new(0) }))
    };
    let spec = VdevSpec::parse(&[path.display().to_string()]).expect("file");
    let new = layout(&spec, &open, LayoutOptions { ashift: Some(12), ..LayoutOptions::default() }, &hooks.env);
    let mut create = CreateOptions::new("f");
    create.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
    Spa::create(new.expect("layout"), create, hooks).expect("pool")
}

#[allow(clippy::expect_used)]
fn ours(zfs: &Zfs, writers: usize) -> Vec<ObjectId> {
    let (root, new) = (zfs.fs().root(), NewFile::new(Kind::File, 0o644));
    let content = vec![1; FILE as usize];
    let ids = (0..writers).map(|n| {
        let id = zfs.create(&Cred::ROOT, root, format!("{writers}-{n}").as_bytes(), &new).expect("file").0;
        zfs.write(&Cred::ROOT, id, 0, &content).expect("write");
        id
    });
    let ids = ids.collect();
    zfs.sync().expect("sync");
    zfs.spa().sync().expect("sync");
    ids
}

#[allow(clippy::expect_used)]
fn plain(dir: &Path, writers: usize) -> Vec<std::fs::File> {
    let files = (0..writers).map(|n| {
        let file = std::fs::File::create(dir.join(format!("plain-{n}"))).expect("file");
        file.write_all_at(&vec![1; FILE as usize], 0).expect("write");
        file.sync_all().expect("sync");
        file
    });
    files.collect()
}
