//! Random operations on pools and on a model: both must agree, live, after every import, and when opened for reading.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{Work, devices, work_on};
use crash::model::{Model, Thing};
use crash::pools::{Shape, check_read_only};
use crash::{Driver, Limits, Rng};

const SHAPES: [Shape; 6] = [
    Shape { name: "single", vdevs: "d0", size: 128 << 20, ashift: 9, without: &[] },
    Shape { name: "raidz1", vdevs: "raidz1 d0 d1 d2", size: 64 << 20, ashift: 12, without: &[] },
    Shape {
        name: "mirrors",
        vdevs: "mirror d0 d1 mirror d2 d3",
        size: 64 << 20,
        ashift: 13,
        without: &["log_spacemap"],
    },
    Shape { name: "old", vdevs: "d0", size: 128 << 20, ashift: 12, without: OLD },
    Shape { name: "full", vdevs: "d0", size: 64 << 20, ashift: 12, without: &[] },
    Shape { name: "background", vdevs: "d0 d1", size: 64 << 20, ashift: 9, without: &[] },
];
/// Recent features, which old pools lack.
const OLD: &[&str] = &[
    "log_spacemap",
    "spacemap_v2",
    "lz4_compress",
    "embedded_data",
    "hole_birth",
    "spacemap_histogram",
    "enabled_txg",
];

#[test]
fn single() {
    work_on("model", &SHAPES[0], 1000, Work::default());
}

#[test]
fn raidz1() {
    work_on("model", &SHAPES[1], 1000, Work::default());
}

#[test]
fn mirrors() {
    work_on("model", &SHAPES[2], 1000, Work::default());
}

#[test]
fn old() {
    let seen = work_on("model", &SHAPES[3], 1000, Work::default());
    assert_eq!((seen.embedded, seen.mos_lz4, seen.flushed), (0, 0, 0), "features that the pool does not have");
}

#[test]
fn full() {
    let limits = Limits { bytes: 1 << 30, objects: 100, write: 1 << 20 };
    let seen = work_on("model", &SHAPES[4], 1000, Work { limits, ..Work::default() });
    assert!(seen.no_space > 0, "the pool was never full");
}

/// Changes while the previous txg is being synced. (Here timing decides where txgs end, so runs are not reproducible.)
#[test]
fn background() {
    work_on("model", &SHAPES[5], 1000, Work { background: true, ..Work::default() });
}

/// Tests the comparison: it notices any difference.
#[test]
fn a_wrong_model_is_noticed() {
    let devices = devices(&SHAPES[0]);
    let spa = SHAPES[0].create(&devices, 5).unwrap();
    let mut driver = Driver::new(spa, Model::default(), Rng::new(5), Limits::default()).unwrap();
    (0..150).for_each(|_| driver.step().unwrap());
    driver.sync().unwrap();
    check_read_only(&devices, driver.model()).unwrap();
    let wrong = |what: &str, change: &dyn Fn(&mut Thing) -> bool| {
        let mut model = driver.model().clone();
        let changed = model.objects.values_mut().any(|thing| change(Arc::make_mut(thing)));
        assert!(changed, "no object to change: {what}");
        assert!(check_read_only(&devices, &model).is_err(), "{what}");
    };
    wrong("a byte", &|thing| match thing {
        Thing::Data(data) => data.blocks.values_mut().any(|block| {
            Arc::make_mut(block)[511] ^= 1;
            true
        }),
        Thing::Zap(_) => false,
    });
    wrong("a block", &|thing| match thing {
        Thing::Data(data) => {
            let full = data.blocks.iter().find(|(_, block)| block.iter().any(|byte| *byte != 0)).map(|(n, _)| *n);
            full.is_some_and(|number| data.blocks.remove(&number).is_some())
        }
        Thing::Zap(_) => false,
    });
    wrong("a bonus buffer", &|thing| match thing {
        Thing::Data(data) => data.bonus.first_mut().map(|byte| *byte ^= 1).is_some(),
        Thing::Zap(_) => false,
    });
    wrong("a spill block", &|thing| match thing {
        Thing::Data(data) => data.spill.take().is_some(),
        Thing::Zap(_) => false,
    });
    wrong("an entry", &|thing| match thing {
        Thing::Zap(zap) => zap.entries.pop_first().is_some(),
        Thing::Data(_) => false,
    });
    wrong("a value", &|thing| match thing {
        Thing::Zap(zap) => zap.entries.values_mut().next().map(|(_, ints)| ints[0] ^= 1).is_some(),
        Thing::Data(_) => false,
    });
    let mut model = driver.model().clone();
    model.objects.pop_last();
    assert!(check_read_only(&devices, &model).is_err(), "an object");
}
