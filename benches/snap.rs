//! `cargo bench -p zuse-benches --bench snap [-- ops=4000 writes=0 many=0]`: snapshots of one file system made one by one, of a hundred in one call
//! each round, and all of the first destroyed in one call, beside OpenZFS's own engine in the same run.
//!
//! Prints snapshots per CPU second. Each new deadlist holds a key per older snapshot, so the time per snapshot grows with their number: compare at the
//! same `ops`. With `writes=N` so many blocks of 8 KiB are overwritten before each snapshot; the peer has no such mode.
//! With `many=N` a pool of N file systems is made instead, and a snapshot of each in one call, which another one destroys; `keep=1` leaves the pool, as
//! it is with its snapshots, for `zdb` to look at.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ::pool::{NewDataset, Spa};
use benches::pool::{self as bench, Shape};
use benches::{mix, number, run_peer, spent_cpu_seconds, zpeer};
use dmu::Object;
use ondisk::ObjsetType;

const BLOCK: usize = 8192;
/// File systems whose snapshots are made in one call.
const BATCH: u64 = 100;
/// Threads that make the file systems of `many`.
const MAKERS: u64 = 64;
/// Blocks of the file that changes.
const BLOCKS: u64 = 20_000;

fn main() {
    benches::set_tunables();
    let dir = std::env::var_os("ZUSE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into).join("zuse-snap");
    drop(std::fs::create_dir_all(&dir));
    let many = number("many", 0);
    if many > 0 {
        return of_many(&dir, many, number("keep", 0) != 0);
    }
    println!("{:<32}{:>14}{:>14}", "snapshots per CPU second", "zuse", "libzpool");
    let ops = number("ops", 4000);
    let theirs = theirs(&dir, ops);
    for (name, ours) in ours(&dir, ops, number("writes", 0)) {
        let peer = theirs.iter().find(|(key, _)| *key == name).map_or(f64::NAN, |(_, rate)| *rate);
        println!("{name:<32}{ours:>14.0}{peer:>14.0}");
    }
    drop(std::fs::remove_dir_all(&dir));
}

fn rate(ops: u64, work: impl FnOnce()) -> f64 {
    let start = spent_cpu_seconds();
    work();
    ops as f64 / (spent_cpu_seconds() - start)
}

#[allow(clippy::expect_used)]
fn overwrite(spa: &Arc<Spa>, object: &Object, writes: u64, state: &mut u64) {
    for _ in 0..writes {
        *state = mix(*state);
        let mut block = vec![0; BLOCK];
        bench::fill(&mut block, *state);
        let tx = spa.tx(BLOCK as u64).expect("tx");
        object.write_block(&tx, *state % BLOCKS, block).expect("write");
    }
}

#[allow(clippy::expect_used)]
fn ours(dir: &Path, ops: u64, writes: u64) -> Vec<(&'static str, f64)> {
    let shape = Shape { vdevs: 1, size: 6 << 30, lz4: true, log_spacemap: true, ms_shift: 28, counts: false };
    let (spa, _traffic) = bench::make(dir, &shape);
    let (objset, object) = bench::object(&spa, BLOCK as u64, 17);
    let fs = spa.name().to_string();
    let snaps: Vec<String> = (0..ops).map(|n| format!("{fs}@auto-{n:06}")).collect();
    let mut state = 1;
    let one_by_one = rate(ops, || {
        for name in &snaps {
            overwrite(&spa, &object, writes, &mut state);
            spa.snapshot(std::slice::from_ref(name), &[]).expect("snapshot");
        }
    });
    for n in 0..BATCH {
        make_fs(&spa, format!("{fs}/b{n:03}"));
    }
    let rounds = ops / BATCH;
    let batched = rate(rounds * BATCH, || {
        for round in 0..rounds {
            let names: Vec<String> = (0..BATCH).map(|n| format!("{fs}/b{n:03}@auto-{round:06}")).collect();
            spa.snapshot(&names, &[]).expect("snapshots");
        }
    });
    let destroyed = rate(ops, || {
        spa.destroy_snapshots(&snaps, false).expect("destroyed");
        spa.wait_freed().expect("freed");
    });
    drop((object, objset));
    spa.export().expect("export");
    vec![("snap_create_seq", one_by_one), ("snap_create_100fs_per_nvl", batched), ("snap_destroy_one_nvl", destroyed)]
}

#[allow(clippy::expect_used)]
fn make_fs(spa: &Arc<Spa>, name: String) {
    let new = NewDataset::inheriting(name, ObjsetType::Zfs);
    spa.create_dataset(new, Box::new(|_, _| Ok(()))).expect("a file system");
}

/// One snapshot of each of many file systems, in one call; then they are destroyed in one.
#[allow(clippy::expect_used)]
fn of_many(dir: &Path, many: u64, keep: bool) {
    let shape = Shape { vdevs: 1, size: 6 << 30, lz4: true, log_spacemap: true, ms_shift: 28, counts: false };
    let (spa, _traffic) = bench::make(dir, &shape);
    let fs = spa.name().to_string();
    println!("{:<32}{:>14}{:>14}", format!("{many} of them"), "seconds", "CPU seconds");
    let timed = |what: &str, work: &mut dyn FnMut()| {
        let (start, cpu) = (Instant::now(), spent_cpu_seconds());
        work();
        println!("{what:<32}{:>14.2}{:>14.2}", start.elapsed().as_secs_f64(), spent_cpu_seconds() - cpu);
    };
    timed("file systems, one by one", &mut || {
        // those that come at the same time share a txg
        std::thread::scope(|scope| {
            for first in 0..MAKERS {
                let (spa, fs) = (&spa, &fs);
                scope.spawn(move || {
                    (first..many).step_by(MAKERS as usize).for_each(|n| make_fs(spa, format!("{fs}/f{n:05}")));
                });
            }
        });
    });
    let snaps: Vec<String> = (0..many).map(|n| format!("{fs}/f{n:05}@all")).collect();
    timed("snapshots created in one call", &mut || spa.snapshot(&snaps, &[]).expect("snapshots"));
    if keep {
        spa.export().expect("export");
        return println!("{}", dir.display());
    }
    timed("destroyed in one call", &mut || spa.destroy_snapshots(&snaps, false).expect("destroyed"));
    timed("their blocks freed", &mut || spa.wait_freed().expect("freed"));
    spa.export().expect("export");
    drop(std::fs::remove_dir_all(dir));
}

/// The peer's figures, by the names that it gives them.
fn theirs(dir: &Path, ops: u64) -> Vec<(String, f64)> {
    let Some(peer) = zpeer() else { return Vec::new() };
    let (dir, ops) = (format!("dir={}", dir.display()), format!("ops={ops}"));
    let results = run_peer(&peer, &["snap", &dir, "pool=s", &ops]);
    let row = |r: &benches::PeerResult| Some((r.get("name")?.clone(), r.get("per_cpu")?.parse().ok()?));
    results.iter().filter_map(row).collect()
}
