//! `cargo bench -p zuse-benches --bench dmu [-- mb=1024 rounds=3 kib=8,128,1024]`: blocks written and read through the DMU, in order and at random,
//! beside OpenZFS's own engine in the same run.
//!
//! Prints blocks per CPU second (all threads of the process) for blocks of 8 KiB, 128 KiB and 1 MiB, with lz4 and without
//! compression. Both write the same bytes into files on the same disk, and take flushes for done. What is in the cache Zuse lends to
//! the reader, where libzpool copies it: that is most of the difference in random reads, which both serve from the cache.

use std::path::Path;
use std::sync::Arc;

use ::pool::Spa;
use benches::pool::{self as bench, Shape};
use benches::{median, mix, number, run_peer, spent_cpu_seconds, zpeer};
use dmu::Object;

const PHASES: [&str; 4] = ["write", "read", "randread", "randwrite"];

fn main() {
    benches::set_tunables();
    let dir = std::env::var_os("ZUSE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into).join("zuse-dmu");
    drop(std::fs::create_dir_all(&dir));
    let (bytes, rounds) = (number("mb", 1024) << 20, number("rounds", 3));
    println!("thousand blocks per CPU second, median of {rounds} rounds");
    println!("{:<10}{:<6}{:<12}{:>10}{:>10}{:>8}", "block", "comp", "", "zuse", "libzpool", "ratio");
    let sizes = std::env::args().find_map(|a| Some(a.strip_prefix("kib=")?.to_string()));
    let sizes = sizes.unwrap_or("8,128,1024".to_string());
    for block in sizes.split(',').filter_map(|kib| Some(kib.parse::<u64>().ok()? << 10)) {
        for lz4 in [true, false] {
            let (mut ours, mut theirs) = ([const { Vec::new() }; 4], [const { Vec::new() }; 4]);
            for _ in 0..rounds {
                let blocks = bytes / block;
                zuse(&dir, block, blocks, lz4).into_iter().zip(&mut ours).for_each(|(n, all)| all.push(n));
                peer(&dir, block, blocks, lz4).into_iter().zip(&mut theirs).for_each(|(n, all)| all.extend(n));
            }
            for ((phase, ours), theirs) in PHASES.iter().zip(ours).zip(theirs) {
                let (ours, theirs) = (median(ours), median(theirs));
                let comp = if lz4 { "lz4" } else { "off" };
                println!(
                    "{:<10}{comp:<6}{phase:<12}{:>10.2}{:>10.2}{:>7.1}x",
                    format!("{} KiB", block >> 10),
                    ours / 1e3,
                    theirs / 1e3,
                    ours / theirs
                );
            }
        }
    }
    drop(std::fs::remove_dir_all(&dir));
}

/// Blocks per CPU second of `work`, which does `count`.
fn rate(count: u64, work: impl FnOnce()) -> f64 {
    let cpu = spent_cpu_seconds();
    work();
    count as f64 / (spent_cpu_seconds() - cpu).max(1e-9)
}

#[allow(clippy::expect_used)]
fn write(spa: &Arc<Spa>, object: &Object, block: u64, count: u64, place: &mut dyn FnMut(u64) -> u64, generation: u64) {
    let run = ((1 << 20) / block).max(1);
    let mut done = 0;
    while done < count {
        let now = run.min(count - done);
        let tx = spa.tx(now * block).expect("tx");
        for n in done..done + now {
            let blkid = place(n);
            let mut data = vec![0; block as usize];
            bench::fill(&mut data, blkid.wrapping_mul(1_000_003).wrapping_add(generation));
            object.write_block(&tx, blkid, data).expect("write");
        }
        done += now;
    }
    spa.sync().expect("sync");
}

#[allow(clippy::expect_used)]
fn zuse(dir: &Path, block: u64, blocks: u64, lz4: bool) -> [f64; 4] {
    let shape = Shape { vdevs: 1, size: 6 << 30, lz4, log_spacemap: true, ms_shift: 0, counts: false };
    let (spa, _) = bench::make(dir, &shape);
    let (_objset, object) = bench::object(&spa, block, 17);
    let written = rate(blocks, || write(&spa, &object, block, blocks, &mut |n| n, 1));
    spa.zio().arc().clear();
    let read = rate(blocks, || {
        let mut cursor = object.reload().expect("object").cursor();
        (0..blocks).for_each(|n| drop(cursor.block(n).expect("block")));
    });
    let reads = if block > 64 << 10 { 20_000 } else { 200_000 };
    let mut state = 12345;
    let randread = rate(reads, || {
        let object = object.reload().expect("object");
        for _ in 0..reads {
            state = mix(state);
            drop(object.block(state % blocks).expect("block"));
        }
    });
    let overwritten = blocks / 10;
    let mut state = 1;
    let mut anywhere = |_| {
        state = mix(state);
        state % blocks
    };
    let randwrite = rate(overwritten, || {
        for _ in 0..overwritten {
            write_one(&spa, &object, block, anywhere(0));
        }
        spa.sync().expect("sync");
    });
    spa.export().expect("export");
    [written, read, randread, randwrite]
}

#[allow(clippy::expect_used)]
fn write_one(spa: &Arc<Spa>, object: &Object, block: u64, blkid: u64) {
    let tx = spa.tx(block).expect("tx");
    let mut data = vec![0; block as usize];
    bench::fill(&mut data, blkid ^ 0x7777);
    object.write_block(&tx, blkid, data).expect("write");
}

fn peer(dir: &Path, block: u64, blocks: u64, lz4: bool) -> [Option<f64>; 4] {
    let Some(peer) = zpeer() else { return [None; 4] };
    let common = [
        format!("dir={}", dir.display()),
        "pool=p".to_string(),
        format!("bs={block}"),
        format!("blocks={blocks}"),
        format!("comp={}", if lz4 { "lz4" } else { "off" }),
        "vsize=6g".to_string(),
    ];
    let run = |cmd: &str, more: &[&str]| {
        let args: Vec<&str> =
            [cmd].into_iter().chain(common.iter().map(String::as_str)).chain(more.iter().copied()).collect();
        run_peer(&peer, &args)
    };
    let per_cpu = |results: &[benches::PeerResult], name: &str| {
        let found = results.iter().find(|r| r.get("name").is_some_and(|n| n == name))?;
        found.get("per_cpu")?.parse::<f64>().ok()
    };
    let made = run("mk", &[]);
    let reads = run("read", &["dropcache=0"]);
    let modified = run("modify", &["pct=10", "clump=1", "to=s2"]);
    [per_cpu(&made, "write"), per_cpu(&reads, "read"), per_cpu(&reads, "randread1thr"), per_cpu(&modified, "modify")]
}
