//! Power cuts while devices are attached, detached, replaced and resilvered: nothing that was synced is lost, and the work goes on or is undone.
//!
//! `ZUSE_CUTS` sets the total number of cuts, `ZUSE_SEED` the seed of the run; `ZUSE_CUT` is the seed of one cut, to reproduce it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{EXCHANGES, cut};
use crash::number_from_env;
use crash::pools::Shape;

const SHAPES: [Shape; 4] = [
    Shape { name: "single", vdevs: "d0", size: 64 << 20, ashift: 9, without: &[] },
    Shape { name: "mirrors", vdevs: "mirror d0 d1 d2 mirror d3 d4", size: 64 << 20, ashift: 12, without: &[] },
    Shape { name: "raidz1", vdevs: "raidz1 d0 d1 d2", size: 64 << 20, ashift: 9, without: &[] },
    Shape { name: "raidz2", vdevs: "raidz2 d0 d1 d2 d3", size: 64 << 20, ashift: 12, without: &["log_spacemap"] },
];
/// Default total number of cuts.
const CUTS: u64 = 800;

fn cut_share(shape: &Shape) {
    cut(EXCHANGES, shape, number_from_env("ZUSE_CUTS", CUTS).div_ceil(SHAPES.len() as u64));
}

#[test]
fn single() {
    cut_share(&SHAPES[0]);
}

#[test]
fn mirrors() {
    cut_share(&SHAPES[1]);
}

#[test]
fn raidz1() {
    cut_share(&SHAPES[2]);
}

#[test]
fn raidz2() {
    cut_share(&SHAPES[3]);
}
