//! Tests of the harness: it must detect the bugs of a broken store, and report nothing for a correct one.
#![allow(clippy::unwrap_used)]

use crash::toy::{Bug, SIZE, Store, VALUE};
use crash::{Cut, Failure, Recording, Rng, State, Tape, number_from_env, report, try_cuts};

const PUTS: u64 = 12;

fn value(generation: u64) -> [u8; VALUE] {
    let mut bytes = [0; VALUE];
    Rng::new(generation).fill(&mut bytes);
    bytes
}

fn run(bug: Bug) -> Tape<()> {
    let recording = Recording::new(&[("a".to_string(), SIZE), ("b".to_string(), SIZE)], 16 << 20);
    let mut store = Store::new(recording.devices(), bug);
    for n in 1..=PUTS {
        let generation = store.put(&value(n)).unwrap();
        recording.promise(generation, ());
    }
    recording.finish()
}

/// Checks that each device has the promised value, or a newer one, intact.
fn check(state: &State<'_, ()>) -> Result<(), String> {
    let promised = state.promised.map_or(0, |promise| promise.txg);
    for (n, found) in Store::read(&state.devices()).map_err(|e| e.to_string())?.into_iter().enumerate() {
        let (generation, found) = found.unwrap_or((0, Vec::new()));
        if generation < promised {
            return Err(format!("device {n}: found {generation}, promised {promised}"));
        }
        if generation > 0 && found != value(generation) {
            return Err(format!("device {n}: the contents of {generation} are wrong"));
        }
    }
    Ok(())
}

fn failures(bug: Bug, cuts: u64, seed: u64) -> Vec<Failure> {
    let tape = run(bug);
    let cuts = (seed..seed + cuts).map(|seed| Cut::draw(&tape, seed)).collect();
    try_cuts(&tape, cuts, 2, &check)
}

#[test]
fn a_store_that_flushes_survives_every_cut() {
    let failures = failures(Bug::None, 4000, number_from_env("ZUSE_SEED", 1));
    let again = |seed| format!("ZUSE_SEED={seed} cargo test -p zuse-crash --test toy");
    assert!(failures.is_empty(), "{}", report(&failures, &again));
}

#[test]
fn every_bug_is_found_within_a_few_hundred_cuts() {
    for bug in [Bug::NoFlushBetween, Bug::NoFlushAfter, Bug::FlushesOneDevice, Bug::OneSlot, Bug::InPlace] {
        let found = failures(bug, 400, 7);
        assert!(found.len() >= 5, "{bug:?}: only {} of 400 cuts show it", found.len());
        // the cut alone reproduces it
        let tape = run(bug);
        let alone = try_cuts(&tape, vec![found[0].cut], 1, &check);
        assert_eq!(alone.len(), 1, "{bug:?}: {}", found[0].cut);
        assert_eq!(alone[0].what, found[0].what);
    }
}

#[test]
fn a_check_that_panics_has_failed() {
    let tape = run(Bug::None);
    let cuts = (0..10).map(|seed| Cut::draw(&tape, seed)).collect();
    let failures = try_cuts(&tape, cuts, 2, &|state| if state.cut.seed == 3 { panic!("no {}", 3) } else { Ok(()) });
    assert_eq!(failures.len(), 1);
    assert_eq!((failures[0].cut.seed, failures[0].what.as_str()), (3, "panic: no 3"));
    assert!(report(&failures, &|seed| format!("run {seed}")).contains("again: run 3"));
}
