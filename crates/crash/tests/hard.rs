//! The same power cuts under stress: space maps are flushed and condensed all the time, blocks are ganged, ZAPs are split early; and vdevs
//! of every kind.
#![allow(clippy::unwrap_used)]

mod common;

use base::tunable;
use common::{Work, cut, work_on};
use crash::number_from_env;
use crash::pools::Shape;

const MODELLED: [Shape; 5] = [
    Shape { name: "special", vdevs: "d0 special d1 log d2", size: 128 << 20, ashift: 12, without: &[] },
    Shape { name: "draid", vdevs: "draid1:2d:4c:1s d0 d1 d2 d3", size: 192 << 20, ashift: 12, without: &[] },
    Shape { name: "raidz3", vdevs: "raidz3 d0 d1 d2 d3 d4", size: 64 << 20, ashift: 9, without: &[] },
    Shape { name: "large", vdevs: "d0", size: 1 << 30, ashift: 9, without: &["log_spacemap"] },
    Shape { name: "background", vdevs: "raidz2 d0 d1 d2 d3", size: 64 << 20, ashift: 12, without: &[] },
];
const CUT: [Shape; 4] = [
    Shape { name: "cut_large", vdevs: "d0", size: 512 << 20, ashift: 12, without: &[] },
    Shape { name: "cut_stripe", vdevs: "mirror d0 d1 d2", size: 128 << 20, ashift: 9, without: &[] },
    Shape { name: "cut_special", vdevs: "d0 special d1", size: 128 << 20, ashift: 9, without: &["log_spacemap"] },
    Shape { name: "cut_raidz2", vdevs: "raidz2 d0 d1 d2 d3", size: 64 << 20, ashift: 12, without: &[] },
];
const STEPS: u64 = 500;
const CUTS: u64 = 200;

fn harden() {
    tunable::ZFS_UNFLUSHED_LOG_BLOCK_MIN.set(3);
    tunable::ZFS_UNFLUSHED_LOG_BLOCK_MAX.set(6);
    tunable::ZFS_UNFLUSHED_LOG_TXG_MAX.set(5);
    // above the size of dRAID's gang header, which cannot be ganged itself
    tunable::METASLAB_FORCE_GANGING.set(10 << 10);
    tunable::METASLAB_FORCE_GANGING_PCT.set(20);
    tunable::ZAP_MICRO_MAX_SIZE.set(4 << 10);
}

fn model(shape: &Shape, work: Work) {
    harden();
    let seen = work_on("hard", shape, STEPS, work);
    let logs = !shape.without.contains(&"log_spacemap");
    eprintln!("{}: {seen:?}", shape.name);
    assert!(seen.ganged > 0 && seen.embedded > 0 && (seen.flushed > 0) == logs, "{}: {seen:?}", shape.name);
}

fn cuts(shape: &Shape) {
    harden();
    cut("hard", shape, number_from_env("ZUSE_CUTS", CUTS).div_ceil(CUT.len() as u64));
}

#[test]
fn special() {
    model(&MODELLED[0], Work::default());
}

#[test]
fn draid() {
    model(&MODELLED[1], Work::default());
}

#[test]
fn raidz3() {
    model(&MODELLED[2], Work::default());
}

#[test]
fn large() {
    model(&MODELLED[3], Work::default());
}

#[test]
fn background() {
    model(&MODELLED[4], Work { background: true, ..Work::default() });
}

#[test]
fn cut_large() {
    cuts(&CUT[0]);
}

#[test]
fn cut_stripe() {
    cuts(&CUT[1]);
}

#[test]
fn cut_special() {
    cuts(&CUT[2]);
}

#[test]
fn cut_raidz2() {
    cuts(&CUT[3]);
}
