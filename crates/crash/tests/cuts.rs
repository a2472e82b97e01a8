//! Power cuts: pools of several shapes are recorded in one run each, and cut at many positions. No cut may lose what was promised, leak, or
//! leave a pool that cannot be imported.
//!
//! `ZUSE_CUTS` sets the total number of cuts, `ZUSE_SEED` the seed of the run; `ZUSE_CUT` is the seed of one cut, to reproduce it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{cut, tape};
use crash::pools::{Shape, check};
use crash::{Cut, number_from_env, try_cuts};

const SHAPES: [Shape; 6] = [
    Shape { name: "single", vdevs: "d0", size: 64 << 20, ashift: 9, without: &[] },
    Shape { name: "single_without_logs", vdevs: "d0", size: 64 << 20, ashift: 12, without: &["log_spacemap"] },
    Shape { name: "mirror", vdevs: "mirror d0 d1", size: 64 << 20, ashift: 12, without: &[] },
    Shape { name: "mirror_without_logs", vdevs: "mirror d0 d1", size: 64 << 20, ashift: 9, without: &["log_spacemap"] },
    Shape { name: "raidz1", vdevs: "raidz1 d0 d1 d2", size: 64 << 20, ashift: 9, without: &[] },
    Shape {
        name: "raidz1_without_logs",
        vdevs: "raidz1 d0 d1 d2",
        size: 64 << 20,
        ashift: 12,
        without: &["log_spacemap"],
    },
];
/// Default total number of cuts.
const CUTS: u64 = 2000;

fn cut_share(shape: &Shape) {
    cut("cuts", shape, number_from_env("ZUSE_CUTS", CUTS).div_ceil(SHAPES.len() as u64));
}

/// The labels at the front of a device, and the boot area.
const FRONT: u64 = 4 << 20;

/// Tests the harness: it notices a missing flush.
#[test]
fn a_pool_that_forgets_a_flush_is_found_out() {
    base::tunable::ZFS_TXG_TIMEOUT.set(600);
    for (shape, what) in [(&SHAPES[0], "before the uberblock"), (&SHAPES[2], "behind it"), (&SHAPES[4], "at all")] {
        let (tape, history) = tape("cuts", shape, 77);
        let end = shape.size - (512 << 10);
        let data = move |last: u64| (FRONT..end).contains(&last);
        let tape = match what {
            "before the uberblock" => tape.without_flushes(|_, last| data(last)),
            "behind it" => tape.without_flushes(|_, last| !data(last)),
            _ => tape.without_flushes(|_, _| true),
        };
        let cuts = (0..100).map(|n| Cut::draw(&tape, n)).collect();
        let failures = try_cuts(&tape, cuts, 2, &|state| check(state, &history));
        eprintln!("{}: no flush {what}: {} of 100 cuts show it", shape.name, failures.len());
        assert!(failures.len() >= 5, "{}: no flush {what}: only {} of 100 cuts show it", shape.name, failures.len());
    }
}

#[test]
fn single() {
    cut_share(&SHAPES[0]);
}

#[test]
fn single_without_logs() {
    cut_share(&SHAPES[1]);
}

#[test]
fn mirror() {
    cut_share(&SHAPES[2]);
}

#[test]
fn mirror_without_logs() {
    cut_share(&SHAPES[3]);
}

#[test]
fn raidz1() {
    cut_share(&SHAPES[4]);
}

#[test]
fn raidz1_without_logs() {
    cut_share(&SHAPES[5]);
}
