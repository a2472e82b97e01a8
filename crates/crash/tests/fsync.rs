//! Power cuts while programs call `fsync`: everything that `fsync` promised is there after log replay.
//!
//! `ZUSE_CUTS` sets the total number of cuts, `ZUSE_SEED` the seed of the first run; `ZUSE_CUT` is the seed of one cut, to reproduce it.
#![allow(clippy::unwrap_used)]

use crash::fsynced::{check, record};
use crash::pools::Shape;
use crash::storage::Storage;
use crash::{Cut, number_from_env, report, try_cuts, writers};

const SHAPES: [Shape; 3] = [
    Shape { name: "in_pool", vdevs: "d0", size: 64 << 20, ashift: 9, without: &[] },
    Shape { name: "log_device", vdevs: "mirror d0 d1 log d2", size: 64 << 20, ashift: 12, without: &[] },
    Shape { name: "mirrored_log", vdevs: "d0 log mirror d1 d2", size: 64 << 20, ashift: 9, without: &["log_spacemap"] },
];
/// Default total number of cuts.
const CUTS: u64 = 2000;
/// Number of tests that share them.
const TESTS: u64 = 5;
/// Maximum number of cuts of one tape; then another run is recorded.
const CUTS_OF_A_TAPE: u64 = 350;
/// The labels at the front of a device, and the boot area.
const FRONT: u64 = 4 << 20;
/// Number of operations of a run.
const STEPS: u64 = 250;

fn cut(shape: &Shape, storage: Storage) {
    base::tunable::ZFS_TXG_TIMEOUT.set(600);
    let first = number_from_env("ZUSE_SEED", 1);
    let one: Option<u64> = std::env::var("ZUSE_CUT").ok().and_then(|cut| cut.parse().ok());
    let mut left = number_from_env("ZUSE_CUTS", CUTS).div_ceil(TESTS);
    for seed in first.. {
        let (tape, journal) = record(shape, storage, seed, STEPS).unwrap();
        let count = left.min(CUTS_OF_A_TAPE);
        let cuts: Vec<Cut> = match one {
            Some(cut) => vec![Cut::draw(&tape, cut)],
            None => (0..count).map(|n| Cut::draw(&tape, seed << 32 | n)).collect(),
        };
        let failures = try_cuts(&tape, cuts, 2, &|state| check(state, &journal));
        let again = |cut| {
            format!(
                "ZUSE_SEED={seed} ZUSE_CUT={cut} cargo test -p zuse-crash --test fsync ({}, {storage:?})",
                shape.name
            )
        };
        assert!(failures.is_empty(), "{}, seed {seed}: {}", shape.name, report(&failures, &again));
        left -= count;
        if left == 0 || one.is_some() {
            return;
        }
    }
}

#[test]
fn in_pool() {
    cut(&SHAPES[0], Storage::Plain);
}

#[test]
fn log_device() {
    cut(&SHAPES[1], Storage::Plain);
}

#[test]
fn mirrored_log() {
    cut(&SHAPES[2], Storage::Plain);
}

#[test]
fn encrypted() {
    cut(&SHAPES[0], Storage::Encrypted);
}

#[test]
fn deduplicated() {
    cut(&SHAPES[2], Storage::Dedup);
}

/// Several writers call `fsync` at the same time, and share batches of log blocks.
#[test]
fn several_writers() {
    base::tunable::ZFS_TXG_TIMEOUT.set(600);
    let first = number_from_env("ZUSE_SEED", 1);
    for (n, shape) in SHAPES.iter().enumerate() {
        let tape = writers::record(shape, first + n as u64, 40).unwrap();
        let count = number_from_env("ZUSE_CUTS", CUTS).div_ceil(SHAPES.len() as u64).min(CUTS_OF_A_TAPE);
        let cuts = (0..count).map(|n| Cut::draw(&tape, n)).collect();
        let failures = try_cuts(&tape, cuts, 2, &writers::check);
        // threads make a different tape each time
        let again = |cut| format!("cut {cut} of a tape of {}", shape.name);
        assert!(failures.is_empty(), "{}: {}", shape.name, report(&failures, &again));
    }
}

/// Tests the check: it notices a missing flush of a commit.
#[test]
fn a_log_that_forgets_its_flush_is_found_out() {
    base::tunable::ZFS_TXG_TIMEOUT.set(600);
    for shape in [&SHAPES[0], &SHAPES[1]] {
        let (tape, journal) = record(shape, Storage::Plain, 5, STEPS).unwrap();
        // labels are flushed as they should be; only the log's flushes are dropped
        let tape = tape.without_flushes(|_, last| last < shape.size - (512 << 10) && last >= FRONT);
        let cuts = (0..150).map(|n| Cut::draw(&tape, n)).collect();
        let failures = try_cuts(&tape, cuts, 2, &|state| check(state, &journal));
        eprintln!("{}: {} of 150 cuts show that no flush was made", shape.name, failures.len());
        assert!(failures.len() >= 5, "{}: only {} of 150 cuts show it", shape.name, failures.len());
    }
}
