//! `cargo bench -p zuse-benches --bench fileio [-- mb=1024 reads=2000000 rounds=3]`: a large file written and read in order, beside a plain
//! file on the same disk in the same run, and 4 KiB read at random from the ARC by two threads. The pool is on its device through the page cache
//! (`vdev_io=buffered`) and past it (`auto`), and so is the plain file (`O_DIRECT`), in turns.
//!
//! In order both write and read pieces of 1 MiB of text-like bytes, which are at hand before the clock starts, and what is written counts when it is
//! on the disk (`sync_all`, `fsync` of the file in the pool). The pool is one file with lz4. Both are read from the disk: the
//! system's cache is told to drop the file (`posix_fadvise`), and the pool is imported anew. So the row is what `cp` to a sink does. At random a file that
//! is held open is read. *CPU* are seconds of this process for a GiB: what the system writes later, its own threads do. *Cached* is what the system has of the
//! pool's file in memory when that is written and read.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ::pool::{CreateOptions, Hooks, ImportOptions, Spa};
use base::{Env, ObjectId};
use benches::{median, number, spent_cpu_seconds};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Access, Device, device};
use zpl::Kind;
use zpl::create::{FsProps, create_fs};
use zpl::live::{Cred, NewFile, Zfs};

const PIECE: usize = 1 << 20;
const SMALL: usize = 4096;
/// Pieces that differ; then they come again.
const PIECES: u64 = 64;
/// The bytes that are read at random: all of them in the ARC.
const HOT: u64 = 256 << 20;
const THREADS: u64 = 2;

#[allow(clippy::expect_used)]
fn main() {
    let dir = std::env::var_os("ZUSE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into).join("zuse-fileio");
    std::fs::create_dir_all(&dir).expect("directory");
    let (bytes, reads, rounds) = (number("mb", 1024) << 20, number("reads", 2_000_000), number("rounds", 3));
    let pieces: Vec<Vec<u8>> = (0..PIECES).map(filled).collect();
    let mut rows: [(&str, [Vec<f64>; 8]); 4] =
        ["plain", "plain, direct", "zuse, buffered", "zuse, auto"].map(|name| (name, Default::default()));
    for _ in 0..rounds {
        for (name, row) in &mut rows {
            let measured = match *name {
                "plain" => plain(&dir, bytes, &pieces, false),
                "plain, direct" => plain(&dir, bytes, &pieces, true),
                name => {
                    base::tunable::set("vdev_io", name.trim_start_matches("zuse, ")).expect("mode");
                    zuse(&dir, bytes, reads, &pieces)
                }
            };
            measured.into_iter().zip(row).for_each(|(figure, all)| all.push(figure));
        }
    }
    std::fs::remove_dir_all(&dir).expect("directory");
    println!("median of {rounds} rounds of {} MiB; random reads by {THREADS} threads", bytes >> 20);
    println!(
        "| | write, MB/s | CPU s a GiB | read, MB/s | CPU s a GiB | cached MB | peak MB | random reads, thousand/s | a CPU s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (name, row) in rows {
        let [write, write_cpu, read, read_cpu, cached, peak, random, random_cpu] = row.map(median);
        println!(
            "| {name} | {:.0} | {write_cpu:.2} | {:.0} | {read_cpu:.2} | {:.0} | {:.0} | {:.0} | {:.0} |",
            write / 1e6,
            read / 1e6,
            cached / 1e6,
            peak / 1e6,
            random / 1e3,
            random_cpu / 1e3
        );
    }
}

fn rate(count: u64, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    count as f64 / start.elapsed().as_secs_f64().max(1e-9)
}

/// The rate, and CPU seconds for a GiB.
fn rate_and_cpu(bytes: u64, work: impl FnOnce()) -> [f64; 2] {
    let before = spent_cpu_seconds();
    let rate = rate(bytes, work);
    [rate, (spent_cpu_seconds() - before) / (bytes as f64 / f64::from(1 << 30))]
}

/// Bytes of a file that the system has in memory; nothing where it has no `fincore`.
fn cached(path: &Path) -> f64 {
    let told = std::process::Command::new("fincore").args(["-n", "-b", "-o", "RES"]).arg(path).output();
    told.ok().and_then(|told| String::from_utf8(told.stdout).ok()?.trim().parse().ok()).unwrap_or(f64::NAN)
}

/// Bytes of memory of this process, at most since this was last asked.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kb = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    // the next one begins anew
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    kb.map_or(f64::NAN, |kb| kb * 1024.0)
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

/// A plain file: bytes per second and CPU seconds, written and read.
#[allow(clippy::expect_used)]
fn plain(dir: &Path, bytes: u64, pieces: &[Vec<u8>], direct: bool) -> [f64; 8] {
    use std::os::unix::fs::OpenOptionsExt;
    let path = dir.join("plain");
    let flags = if direct { rustix::fs::OFlags::DIRECT.bits() as i32 } else { 0 };
    // aligned, as direct I/O wants it
    let mut memory = vec![0; PIECE + SMALL];
    let from = memory.as_ptr().align_offset(SMALL);
    let piece = &mut memory[from..from + PIECE];
    let mut file =
        File::options().write(true).create(true).truncate(true).custom_flags(flags).open(&path).expect("file");
    let write = rate_and_cpu(bytes, || {
        for from in pieces.iter().cycle().take((bytes / PIECE as u64) as usize) {
            if direct {
                piece.copy_from_slice(from);
                file.write_all(piece).expect("write");
            } else {
                file.write_all(from).expect("write");
            }
        }
        file.sync_all().expect("sync");
    });
    forget(&path);
    let mut file = File::options().read(true).custom_flags(flags).open(&path).expect("file");
    let read = rate_and_cpu(bytes, || while file.read(piece).expect("read") > 0 {});
    let cached = cached(&path);
    std::fs::remove_file(&path).expect("file");
    [write[0], write[1], read[0], read[1], cached, peak(), f64::NAN, f64::NAN]
}

/// A file in a pool: the same, and random reads per second.
#[allow(clippy::expect_used)]
fn zuse(dir: &Path, bytes: u64, reads: u64, pieces: &[Vec<u8>]) -> [f64; 8] {
    let _before = peak();
    let path = dir.join("pool");
    let spa = make(&path, bytes + bytes / 4 + (1 << 30));
    let zfs = Zfs::open(&spa, "z").expect("file system");
    let id = zfs.create(&Cred::ROOT, zfs.fs().root(), b"large", &NewFile::new(Kind::File, 0o644)).expect("file").0;
    let mut piece = vec![0; PIECE];
    let write = rate_and_cpu(bytes, || {
        for (n, piece) in (0..bytes / PIECE as u64).zip(pieces.iter().cycle()) {
            zfs.write(&Cred::ROOT, id, n * PIECE as u64, piece).expect("write");
        }
        zfs.fsync(id).expect("sync");
    });
    drop(zfs);
    spa.export().expect("export");
    drop(spa);
    let mut in_cache = cached(&path);
    forget(&path);
    let spa = import(&path);
    let zfs = Zfs::open(&spa, "z").expect("file system");
    let read = rate_and_cpu(bytes, || {
        let mut at = 0;
        while let Some(n) = Some(zfs.read(id, at, &mut piece).expect("read")).filter(|n| *n > 0) {
            at += n as u64;
        }
    });
    in_cache = in_cache.max(cached(&path));
    let hot = HOT.min(bytes);
    for n in 0..hot / PIECE as u64 {
        zfs.read(id, n * PIECE as u64, &mut piece).expect("read");
    }
    let before = spent_cpu_seconds();
    let random = rate(reads, || random_reads(&zfs, id, hot, reads));
    let cpu = reads as f64 / (spent_cpu_seconds() - before).max(1e-9);
    drop(zfs);
    spa.export().expect("export");
    std::fs::remove_file(&path).expect("file");
    [write[0], write[1], read[0], read[1], in_cache, peak(), random, cpu]
}

#[allow(clippy::expect_used)]
fn random_reads(zfs: &Zfs, id: ObjectId, hot: u64, reads: u64) {
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
    let open = |path: &str| -> Option<Arc<dyn Device>> { device::open(Path::new(path), Access::Create(size)).ok() };
    let new = layout(&spec, &open, LayoutOptions { ashift: Some(12), ..LayoutOptions::default() }, &hooks().env);
    let mut create = CreateOptions::new("z");
    create.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
    Spa::create(new.expect("layout"), create, hooks()).expect("pool")
}

#[allow(clippy::expect_used)]
fn import(path: &Path) -> Arc<Spa> {
    let device = device::open(path, Access::Write).expect("device");
    let found = vdev::import::scan_devices(vec![(path.to_path_buf(), device)]);
    Spa::import(found.first().expect("pool"), &ImportOptions::default(), hooks()).expect("import")
}
