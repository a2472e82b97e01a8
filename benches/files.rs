//! `cargo bench -p zuse-benches --bench files [-- files=100000 rounds=3]`: files made and removed per CPU second, all threads of the process
//! and the syncs included.
//!
//! The pool is in memory. Files lie in directories of 10,000; they are made one by one, each with a place in a txg of its own, and in
//! batches that share places; removed in batches, and one by one as a mount does it: it holds a file that it removes, which is freed when the kernel forgets it.

use std::sync::Arc;

use ::pool::{CreateOptions, Hooks, Spa};
use base::{Env, ObjectId};
use benches::{median, number, spent_cpu_seconds};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, MemoryDevice};
use zpl::Kind;
use zpl::create::{FsProps, create_fs};
use zpl::live::{Cred, NewFile, Zfs};

const SIZE: u64 = 4 << 30;
const PER_DIRECTORY: u64 = 10_000;

fn main() {
    benches::set_tunables();
    let (files, rounds) = (number("files", 100_000), number("rounds", 3));
    let mut rates = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        round(files).into_iter().zip(&mut rates).for_each(|(rate, all)| all.push(rate));
    }
    println!("thousand files per CPU second, median of {rounds} rounds of {files} files");
    for (what, rates) in
        ["made one by one", "made in batches", "removed in batches", "removed one by one"].iter().zip(rates)
    {
        println!("{what:<20}{:>10.1}", median(rates) / 1e3);
    }
}

#[allow(clippy::expect_used)]
fn make() -> Arc<Spa> {
    let spec = VdevSpec::parse(&["/memory".to_string()]).expect("spec");
    let open = |_: &str| -> Option<Arc<dyn Device>> { Some(Arc::new(MemoryDevice::writable(SIZE))) };
    let hooks = Hooks { env: Env::system(), used_by: Some(Arc::new(zpl::UsedByBonus)), ..Hooks::default() };
    let new = layout(&spec, &open, LayoutOptions { ashift: Some(12), ..LayoutOptions::default() }, &hooks.env);
    let mut create = CreateOptions::new("z");
    create.populate = Some(Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default())));
    Spa::create(new.expect("layout"), create, hooks).expect("pool")
}

/// Files per CPU second: made one by one, made in batches, removed.
#[allow(clippy::expect_used)]
fn round(files: u64) -> [f64; 4] {
    let spa = make();
    let zfs = Zfs::open(&spa, "z").expect("file system");
    let alone = rate(&zfs, files, || fill(&zfs, "a", files));
    let together = rate(&zfs, files, || batch(&zfs, |zfs| fill(zfs, "b", files)));
    let removed = rate(&zfs, files, || batch(&zfs, |zfs| empty(zfs, "b", files)));
    let released = rate(&zfs, files, || release(&zfs, "a", files));
    drop(zfs);
    spa.export().expect("export");
    [alone, together, removed, released]
}

/// Does `work` with shared places in txgs.
#[allow(clippy::expect_used)]
fn batch(zfs: &Zfs, work: impl FnOnce(&Zfs)) {
    let done = zfs.batch(|zfs| {
        work(zfs);
        Ok(())
    });
    done.expect("batch");
}

#[allow(clippy::expect_used)]
fn rate(zfs: &Zfs, count: u64, work: impl FnOnce()) -> f64 {
    let cpu = spent_cpu_seconds();
    work();
    zfs.spa().sync().expect("sync");
    count as f64 / (spent_cpu_seconds() - cpu).max(1e-9)
}

#[allow(clippy::expect_used)]
fn fill(zfs: &Zfs, prefix: &str, files: u64) {
    let (mut dir, new) = (ObjectId::NONE, NewFile::new(Kind::File, 0o644));
    for n in 0..files {
        if n % PER_DIRECTORY == 0 {
            let name = format!("{prefix}{}", n / PER_DIRECTORY);
            let made = zfs.create(&Cred::ROOT, zfs.fs().root(), name.as_bytes(), &NewFile::new(Kind::Directory, 0o755));
            dir = made.expect("directory").0;
        }
        zfs.create(&Cred::ROOT, dir, format!("file-{n}").as_bytes(), &new).expect("file");
    }
}

#[allow(clippy::expect_used)]
fn empty(zfs: &Zfs, prefix: &str, files: u64) {
    for n in 0..files {
        let name = format!("{prefix}{}", n / PER_DIRECTORY);
        let dir = zfs.lookup(&Cred::ROOT, zfs.fs().root(), name.as_bytes()).expect("directory").0;
        zfs.unlink(&Cred::ROOT, dir, format!("file-{n}").as_bytes()).expect("file");
    }
}

#[allow(clippy::expect_used)]
fn release(zfs: &Zfs, prefix: &str, files: u64) {
    let mut dir = ObjectId::NONE;
    for n in 0..files {
        if n % PER_DIRECTORY == 0 {
            let name = format!("{prefix}{}", n / PER_DIRECTORY);
            dir = zfs.lookup(&Cred::ROOT, zfs.fs().root(), name.as_bytes()).expect("directory").0;
        }
        let name = format!("file-{n}");
        let file = zfs.lookup(&Cred::ROOT, dir, name.as_bytes()).expect("file").0;
        let held = zfs.open_file(&Cred::ROOT, file, 0).expect("handle");
        zfs.unlink(&Cred::ROOT, dir, name.as_bytes()).expect("file");
        drop(held);
    }
}
