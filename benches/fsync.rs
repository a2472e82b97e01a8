//! `cargo bench -p zuse-benches --bench fsync [-- writers=1,8,64 seconds=3 gib=8]`: writes of 4 KiB, each made safe before the next begins, beside those
//! of the host's file system in the same run.
//!
//! Each writer is a thread with a file of 16 MiB of its own, which exists, and writes to the next place in it: to a file of a pool in a file on the disk,
//! with `write` and `fsync` and real flushes; and to a plain file beside that, with `pwrite` and `fdatasync`. Zuse and the host take turns.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ::pool::{CreateOptions, Hooks, Spa};
use base::Env;
use benches::process_cpu_seconds;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};
use zpl::Kind;
use zpl::create::{FsProps, create_fs};
use zpl::live::{Cred, NewFile, Zfs};

const FILE: u64 = 16 << 20;
const WRITE: u64 = 4096;

fn text(name: &str, or: &str) -> String {
    let given = |a: String| Some(a.strip_prefix(name)?.strip_prefix('=')?.to_owned());
    std::env::args().find_map(given).unwrap_or_else(|| or.to_owned())
}

#[allow(clippy::expect_used)]
fn main() {
    let dir = std::env::var_os("ZUSE_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from).join("zuse-fsync");
    std::fs::create_dir_all(&dir).expect("directory");
    let seconds: u64 = text("seconds", "3").parse().unwrap_or(3);
    let spa = make(&dir.join("pool"), text("gib", "8").parse().unwrap_or(8) << 30);
    let zfs = Zfs::open(&spa, "f").expect("file system");
    println!(
        "{:>8}{:>14}{:>12}{:>10}{:>10}{:>14}",
        "writers", "zuse fsync/s", "CPU us each", "batches/s", "txgs", "host sync/s"
    );
    for writers in text("writers", "1,8,64").split(',').filter_map(|text| text.parse().ok()) {
        let (ids, files) = (ours(&zfs, writers), plain(&dir, writers));
        let (cpu, batches, txg) = (process_cpu_seconds(), batches(&spa), spa.txgs().synced());
        let zuse = run(writers, seconds, &|writer, at, data| {
            let id = ids[writer];
            zfs.write(&Cred::ROOT, id, at, data).expect("write");
            zfs.fsync(id).expect("fsync");
        });
        let (cpu, txgs) = (process_cpu_seconds() - cpu, spa.txgs().synced().0 - txg.0);
        let batches = (self::batches(&spa) - batches) / seconds;
        let host = run(writers, seconds, &|writer, at, data| {
            files[writer].write_all_at(data, at).expect("write");
            files[writer].sync_data().expect("sync");
        });
        println!(
            "{writers:>8}{:>14.0}{:>12.1}{batches:>10}{txgs:>10}{:>14.0}",
            zuse as f64 / seconds as f64,
            cpu * 1e6 / zuse.max(1) as f64,
            host as f64 / seconds as f64
        );
    }
    drop(zfs);
    spa.close().expect("close");
    drop(std::fs::remove_dir_all(&dir));
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

#[allow(clippy::expect_used)]
fn make(path: &Path, size: u64) -> Arc<Spa> {
    let hooks = Hooks { env: Env::system(), used_by: Some(Arc::new(zpl::UsedByBonus)) };
    let open =
        |path: &str| -> Option<Arc<dyn Device>> { Some(Arc::new(FileDevice::create(Path::new(path), size).ok()?)) };
    let spec = VdevSpec::parse(&[path.display().to_string()]).expect("file");
    let new = layout(&spec, &open, LayoutOptions { ashift: Some(12), ..LayoutOptions::default() }, &hooks.env);
    let mut create = CreateOptions::new("f");
    create.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
    Spa::create(new.expect("layout"), create, hooks).expect("pool")
}

#[allow(clippy::expect_used)]
fn ours(zfs: &Zfs, writers: usize) -> Vec<u64> {
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
