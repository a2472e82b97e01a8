//! `cargo bench -p zuse-benches --bench fileio [-- mb=1024 reads=2000000 rounds=3]`: a large file written and read in order, beside a plain
//! file on the same disk in the same run, and 4 KiB read at random from the ARC by two threads.
//!
//! In order both write and read pieces of 1 MiB of text-like bytes, which are at hand before the clock starts, and what is written counts when it is
//! on the disk (`sync_all`, `fsync` of the file in the pool). The pool is one file with lz4. Both are read from the disk: the
//! system's cache is told to drop the file (`posix_fadvise`), and the pool is imported anew. So the row is what `cp` to a sink does. At random a file that
//! is held open is read.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ::pool::{CreateOptions, Hooks, ImportOptions, Spa};
use base::Env;
use benches::{median, number, process_cpu_seconds};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};
use zpl::Kind;
use zpl::create::{FsProps, create_fs};
use zpl::live::{Cred, NewFile, Zfs};

const PIECE: usize = 1 << 20;
const SMALL: usize = 4096;
/// Pieces that differ; then they come again.
const PIECES: u64 = 64;
/// What is read at random: all of it in the ARC.
const HOT: u64 = 256 << 20;
const THREADS: u64 = 2;

#[allow(clippy::expect_used)]
fn main() {
    let dir = std::env::var_os("ZUSE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into).join("zuse-fileio");
    std::fs::create_dir_all(&dir).expect("directory");
    let (bytes, reads, rounds) = (number("mb", 1024) << 20, number("reads", 2_000_000), number("rounds", 3));
    let mut all = [const { Vec::new() }; 6];
    let pieces: Vec<Vec<u8>> = (0..PIECES).map(filled).collect();
    for _ in 0..rounds {
        let (plain, ours) = (plain(&dir, bytes, &pieces), zuse(&dir, bytes, reads, &pieces));
        plain.into_iter().chain(ours).zip(&mut all).for_each(|(rate, all)| all.push(rate));
    }
    std::fs::remove_dir_all(&dir).expect("directory");
    let [plain_write, plain_read, write, read, random, cpu] = all.map(median);
    println!("MB per second, median of {rounds} rounds of {} MiB", bytes >> 20);
    println!("{:<10}{:>10}{:>10}{:>8}", "", "zuse", "plain", "ratio");
    for (what, ours, theirs) in [("write", write, plain_write), ("read", read, plain_read)] {
        println!("{what:<10}{:>10.0}{:>10.0}{:>8.2}", ours / 1e6, theirs / 1e6, ours / theirs);
    }
    println!("thousand random reads of 4 KiB per second, {THREADS} threads: {:.0}", random / 1e3);
    println!("  per CPU second: {:.0}", cpu / 1e3);
}

fn rate(count: u64, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    count as f64 / start.elapsed().as_secs_f64().max(1e-9)
}

/// Bytes that compress about as text does; each piece is another.
fn filled(n: u64) -> Vec<u8> {
    let mut piece = vec![0; PIECE];
    let mut at = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for line in piece.chunks_mut(16) {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (noise, text) = line.split_at_mut(line.len().min(8));
        noise.copy_from_slice(&at.to_le_bytes()[..noise.len()]);
        text.fill(b' ');
    }
    piece
}

/// Writes what the system's cache has of a file to the disk, and makes it forget it.
#[allow(clippy::expect_used)]
fn forget(path: &Path) {
    let file = File::open(path).expect("file");
    file.sync_all().expect("sync");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
}

/// Bytes per second of a plain file: written, read.
#[allow(clippy::expect_used)]
fn plain(dir: &Path, bytes: u64, pieces: &[Vec<u8>]) -> [f64; 2] {
    let path = dir.join("plain");
    let mut piece = vec![0; PIECE];
    let write = rate(bytes, || {
        let mut file = File::create(&path).expect("file");
        for piece in pieces.iter().cycle().take((bytes / PIECE as u64) as usize) {
            file.write_all(piece).expect("write");
        }
        file.sync_all().expect("sync");
    });
    forget(&path);
    let read = rate(bytes, || {
        let mut file = File::open(&path).expect("file");
        while file.read(&mut piece).expect("read") > 0 {}
    });
    std::fs::remove_file(&path).expect("file");
    [write, read]
}

/// Bytes per second of a file in a pool: written, read; and random reads per second.
#[allow(clippy::expect_used)]
fn zuse(dir: &Path, bytes: u64, reads: u64, pieces: &[Vec<u8>]) -> [f64; 4] {
    let path = dir.join("pool");
    let spa = make(&path, bytes + bytes / 4 + (1 << 30));
    let zfs = Zfs::open(&spa, "z").expect("file system");
    let id = zfs.create(&Cred::ROOT, zfs.fs().root(), b"large", &NewFile::new(Kind::File, 0o644)).expect("file").0;
    let mut piece = vec![0; PIECE];
    let write = rate(bytes, || {
        for (n, piece) in (0..bytes / PIECE as u64).zip(pieces.iter().cycle()) {
            zfs.write(&Cred::ROOT, id, n * PIECE as u64, piece).expect("write");
        }
        zfs.fsync(id).expect("sync");
    });
    drop(zfs);
    spa.export().expect("export");
    drop(spa);
    forget(&path);
    let spa = import(&path);
    let zfs = Zfs::open(&spa, "z").expect("file system");
    let read = rate(bytes, || {
        let mut at = 0;
        while let Some(n) = Some(zfs.read(id, at, &mut piece).expect("read")).filter(|n| *n > 0) {
            at += n as u64;
        }
    });
    let hot = HOT.min(bytes);
    for n in 0..hot / PIECE as u64 {
        zfs.read(id, n * PIECE as u64, &mut piece).expect("read");
    }
    let before = process_cpu_seconds();
    let random = rate(reads, || random_reads(&zfs, id, hot, reads));
    let cpu = reads as f64 / (process_cpu_seconds() - before).max(1e-9);
    drop(zfs);
    spa.export().expect("export");
    std::fs::remove_file(&path).expect("file");
    [write, read, random, cpu]
}

#[allow(clippy::expect_used)]
fn random_reads(zfs: &Zfs, id: u64, hot: u64, reads: u64) {
    let file = &zfs.hold(id).expect("file");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let (mut buf, mut at) = ([0; SMALL], thread + 1);
                for _ in 0..reads / THREADS {
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let offset = (at >> 20) % (hot / SMALL as u64) * SMALL as u64;
                    assert_eq!(zfs.read_node(file.node(), offset, &mut buf).expect("read"), SMALL);
                }
            });
        }
    });
}

fn hooks() -> Hooks {
    Hooks { env: Env::system(), used_by: Some(Arc::new(zpl::UsedByBonus)), ..Hooks::default() }
}

#[allow(clippy::expect_used)]
fn make(path: &Path, size: u64) -> Arc<Spa> {
    let spec = VdevSpec::parse(&[path.display().to_string()]).expect("spec");
    let open =
        |path: &str| -> Option<Arc<dyn Device>> { Some(Arc::new(FileDevice::create(Path::new(path), size).ok()?)) };
    let new = layout(&spec, &open, LayoutOptions { ashift: Some(12), ..LayoutOptions::default() }, &hooks().env);
    let mut create = CreateOptions::new("z");
    create.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
    Spa::create(new.expect("layout"), create, hooks()).expect("pool")
}

#[allow(clippy::expect_used)]
fn import(path: &Path) -> Arc<Spa> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(path).expect("device"));
    let found = vdev::import::scan_devices(vec![(path.to_path_buf(), device)]);
    Spa::import(found.first().expect("pool"), &ImportOptions::default(), hooks()).expect("import")
}
