//! `cargo bench -p zuse-benches --bench verify [-- rounds=5 blocks=1000000]`: `zuse verify` and the scrub of OpenZFS's own engine, in
//! turn, on one pool of that many blocks of 8 KiB.
//!
//! Prints blocks per CPU second (user and system, of the whole process) and per second of wall time, medians, and ratios. The peer is
//! `zpeer` (`peer/build-peer target/peer`); the pool is made by it and kept in `$ZUSE_BENCH_DIR` (`target/bench`) for the next time.
//! Scrub checks what the verification checks, but for space maps and overlaps, which it leaves out.

use std::path::{Path, PathBuf};

use benches::{median, number, run_peer, timed, zpeer, zuse};

fn main() {
    let (rounds, blocks) = (number("rounds", 5), number("blocks", 1_000_000));
    let (Some(peer), Some(zuse)) = (zpeer(), zuse()) else {
        println!("verify: skipped; it needs target/release/zuse and the peer (scripts/bench makes both)");
        return;
    };
    let Some(dir) = pool(&peer, blocks) else { return };
    let dir = dir.display().to_string();
    let (mut ours, mut theirs) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        for result in run_peer(&peer, &["scrub", &format!("dir={dir}")]) {
            for (samples, key) in theirs.iter_mut().zip(["per_cpu", "rate"]) {
                samples.extend(result.get(key).and_then(|v| v.parse::<f64>().ok()));
            }
        }
        let Some(time) = timed(&zuse, &["verify", "-q", "-d", &dir, "pb"]) else {
            println!("verify: zuse fails");
            return;
        };
        for (samples, seconds) in ours.iter_mut().zip([time.cpu, time.wall]) {
            samples.push(blocks as f64 / seconds);
        }
    }
    println!("thousand blocks of 8 KiB per second, {blocks} blocks, median of {rounds} rounds in turn");
    println!("{:<16}{:>12}{:>12}{:>9}", "", "zuse verify", "scrub", "ratio");
    for ((what, ours), theirs) in ["per CPU second", "wall"].into_iter().zip(ours).zip(theirs) {
        let (ours, theirs) = (median(ours), median(theirs));
        println!("{what:<16}{:>12.1}{:>12.1}{:>8.1}x", ours / 1e3, theirs / 1e3, ours / theirs);
    }
}

/// The pool of `blocks` blocks, made now if it is not there; `None` if it cannot be made.
fn pool(peer: &PathBuf, blocks: u64) -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    let base = std::env::var_os("ZUSE_BENCH_DIR").map_or_else(default, PathBuf::from);
    let dir = base.join(format!("blocks-{blocks}"));
    let complete = dir.join("complete");
    if !complete.exists() {
        println!("making a pool of {blocks} blocks in {}", dir.display());
        std::fs::create_dir_all(&dir).ok()?;
        let made = run_peer(peer, &["mk", &format!("dir={}", dir.display()), &format!("blocks={blocks}")]);
        if made.is_empty() {
            println!("verify: skipped; the pool cannot be made");
            return None;
        }
        std::fs::write(&complete, "").ok()?;
    }
    Some(dir)
}
