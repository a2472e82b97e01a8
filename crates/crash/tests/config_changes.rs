//! Power cuts while the devices of a pool grow, and while it gets another identity: nothing that was synced or promised is lost, nothing leaks.
//!
//! `ZUSE_CUTS` sets the total number of cuts, `ZUSE_SEED` the seed of the first run; `ZUSE_CUT` is the seed of one cut, to reproduce it.
#![allow(clippy::unwrap_used)]

mod common;

use common::judge_state;
use crash::config_changes::{Change, check, record};
use crash::pools::Shape;
use crash::{Cut, Cutter, number_from_env, report, try_cuts};

const SHAPES: [Shape; 4] = [
    Shape { name: "one", vdevs: "d0", size: 64 << 20, ashift: 9, without: &[] },
    Shape { name: "mirrored", vdevs: "mirror d0 d1", size: 64 << 20, ashift: 12, without: &["log_spacemap"] },
    Shape { name: "parity", vdevs: "raidz d0 d1 d2", size: 64 << 20, ashift: 12, without: &[] },
    Shape { name: "striped", vdevs: "d0 d1 d2", size: 64 << 20, ashift: 12, without: &[] },
];
/// Default total number of cuts.
const CUTS: u64 = 150;
/// Maximum number of cuts of one tape; then another run is recorded.
const CUTS_OF_A_TAPE: u64 = 50;
/// Number of states of a run that OpenZFS's zdb checks.
const JUDGED: usize = 2;

fn cut(shape: &Shape, change: Change) {
    base::tunable::ZFS_TXG_TIMEOUT.set(600);
    let name = shape.name;
    let first = number_from_env("ZUSE_SEED", 1);
    let one: Option<u64> = std::env::var("ZUSE_CUT").ok().and_then(|cut| cut.parse().ok());
    let mut left = number_from_env("ZUSE_CUTS", CUTS).div_ceil(SHAPES.len() as u64);
    for seed in first.. {
        let (tape, journal) = record(shape, change, seed).unwrap();
        let count = left.min(CUTS_OF_A_TAPE);
        // most of them in the middle of a change
        let chosen =
            |cut: &Cut| cut.seed.is_multiple_of(5) || journal.changes.iter().any(|change| change.contains(&cut.at));
        let cuts: Vec<Cut> = match one {
            Some(cut) => vec![Cut::draw(&tape, cut)],
            None => (seed << 32..).map(|n| Cut::draw(&tape, n)).filter(chosen).take(count as usize).collect(),
        };
        // OpenZFS's own import does not tell which identity counts while labels have both
        if seed == first && change != Change::Identity {
            let safe = cuts.iter().filter(|cut| tape.promised(cut.at).is_some());
            safe.take(JUDGED).for_each(|cut| judge_state(name, cut, &mut Cutter::new(&tape)));
        }
        let failures = try_cuts(&tape, cuts, 2, &|state| check(state, change, &journal));
        let again =
            |cut| format!("ZUSE_SEED={seed} ZUSE_CUT={cut} cargo test -p zuse-crash --test config_changes {name}");
        assert!(failures.is_empty(), "{name}, seed {seed}: {}", report(&failures, &again));
        left -= count;
        if left == 0 || one.is_some() {
            return;
        }
    }
}

#[test]
fn one() {
    cut(&SHAPES[0], Change::Growth);
}

#[test]
fn mirrored() {
    cut(&SHAPES[1], Change::Growth);
}

#[test]
fn parity() {
    cut(&SHAPES[2], Change::Growth);
}

#[test]
fn one_identity() {
    cut(&SHAPES[0], Change::Identity);
}

#[test]
fn mirrored_identity() {
    cut(&SHAPES[1], Change::Identity);
}

#[test]
fn striped_identity() {
    cut(&SHAPES[3], Change::Identity);
}
