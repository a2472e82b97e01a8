//! Power cuts while a log device is added and removed: nothing that was synced or promised is lost, nothing leaks.
//!
//! `ZUSE_CUTS` sets the total number of cuts, `ZUSE_SEED` the seed of the first run; `ZUSE_CUT` is the seed of one cut, to reproduce it.
#![allow(clippy::unwrap_used)]

mod common;

use common::judge_state;
use crash::pools::Shape;
use crash::slog::{Setting, check, record};
use crash::{Cut, Cutter, number_from_env, report, try_cuts};

const SETTINGS: [Setting; 3] = [
    Setting { shape: Shape { name: "one", vdevs: "d0", size: 64 << 20, ashift: 9, without: &[] }, log: "log d1" },
    Setting {
        shape: Shape { name: "mirrored", vdevs: "mirror d0 d1", size: 64 << 20, ashift: 12, without: &[] },
        log: "log mirror d2 d3",
    },
    Setting {
        shape: Shape { name: "no_log_spacemap", vdevs: "d0 d1", size: 64 << 20, ashift: 9, without: &["log_spacemap"] },
        log: "log d2",
    },
];
/// Default total number of cuts.
const CUTS: u64 = 300;
/// Maximum number of cuts of one tape; then another run is recorded.
const CUTS_OF_A_TAPE: u64 = 50;
/// Number of states of a run that OpenZFS's zdb checks.
const JUDGED: usize = 2;

fn cut(setting: &Setting) {
    base::tunable::ZFS_TXG_TIMEOUT.set(600);
    let name = setting.shape.name;
    let first = number_from_env("ZUSE_SEED", 1);
    let one: Option<u64> = std::env::var("ZUSE_CUT").ok().and_then(|cut| cut.parse().ok());
    let mut left = number_from_env("ZUSE_CUTS", CUTS).div_ceil(SETTINGS.len() as u64);
    for seed in first.. {
        let (tape, journal) = record(setting, seed).unwrap();
        let count = left.min(CUTS_OF_A_TAPE);
        // most of them in the middle of a change
        let chosen =
            |cut: &Cut| cut.seed.is_multiple_of(5) || journal.changes.iter().any(|change| change.contains(&cut.at));
        let cuts: Vec<Cut> = match one {
            Some(cut) => vec![Cut::draw(&tape, cut)],
            None => (seed << 32..).map(|n| Cut::draw(&tape, n)).filter(chosen).take(count as usize).collect(),
        };
        if seed == first {
            let safe = cuts.iter().filter(|cut| tape.promised(cut.at).is_some());
            safe.take(JUDGED).for_each(|cut| judge_state(name, cut, &mut Cutter::new(&tape)));
        }
        let failures = try_cuts(&tape, cuts, 2, &|state| check(state, setting, &journal));
        let again = |cut| format!("ZUSE_SEED={seed} ZUSE_CUT={cut} cargo test -p zuse-crash --test slog {name}");
        assert!(failures.is_empty(), "{name}, seed {seed}: {}", report(&failures, &again));
        left -= count;
        if left == 0 || one.is_some() {
            return;
        }
    }
}

#[test]
fn one() {
    cut(&SETTINGS[0]);
}

#[test]
fn mirrored() {
    cut(&SETTINGS[1]);
}

#[test]
fn no_log_spacemap() {
    cut(&SETTINGS[2]);
}
