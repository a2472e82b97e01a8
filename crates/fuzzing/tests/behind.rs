//! All fixtures with blocks that change behind their checksums. The inputs are the corpus and seeded ones: `ZUSE_BEHIND` sets their number
//! (200 by default), `ZUSE_BEHIND_FROM` the first seed, to repeat one.
#![allow(clippy::unwrap_used)]
#![cfg(debug_assertions)]

mod support;

use std::collections::BTreeMap;

use fuzzing::behind::{fixture_of, fuzz_behind};
use fuzzing::mutate::Rng;
use oracle::fixtures;
use support::{corpus, number, run, watch};

/// The input of a seed: pool, rate, changes per block, class of blocks, and its own seed.
fn input(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed.wrapping_mul(0x1_0003));
    let mut data = rng.next_u64().to_le_bytes()[..4].to_vec();
    data.extend(rng.next_u64().to_le_bytes());
    data
}

#[test]
fn blocks_that_change_behind_their_checksums_do_no_harm() {
    watch("behind");
    let (count, from) = (number("ZUSE_BEHIND", 200), number("ZUSE_BEHIND_FROM", 0));
    let seeded = (from..from + count).map(|seed| (format!("seed {seed}"), input(seed)));
    // grouped by fixture, so that each is unpacked once
    let mut inputs: BTreeMap<String, Vec<(String, Vec<u8>)>> = BTreeMap::new();
    for (what, data) in corpus("behind").into_iter().chain(seeded) {
        inputs.entry(fixture_of(&data).unwrap()).or_default().push((what, data));
    }
    let mut wrong = Vec::new();
    for (fixture, inputs) in inputs {
        let _images = fixtures::unpack(&fixture);
        for (what, data) in inputs {
            wrong.extend(run("behind", fuzz_behind, &data, &format!("{what} ({fixture})")));
        }
    }
    assert!(wrong.is_empty(), "{} inputs do harm:\n{}", wrong.len(), wrong.join("\n"));
}
