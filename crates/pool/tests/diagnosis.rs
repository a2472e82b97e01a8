//! Devices that give wrong bytes too often, while a pool is open: they are degraded, and used on.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use base::Guid;
use dmu::Object;
use pool::testing::{BLOCK, hooks, in_memory, noise, object};
use pool::{ImportOptions, ScrubRange, Spa, Value};
use vdev::import::scan_devices;
use vdev::{Device, Health, MemoryDevice, VdevAux, VdevState};

/// Labels and boot area in front of what a DVA counts from.
const FRONT: u64 = 4 << 20;
/// Blocks of the test's object: six megabytes, which a mirror reads from one side and the other in turn.
const BLOCKS: usize = 48;
const WELL: Health = Health { state: VdevState::Healthy, aux: VdevAux::None };
const DEGRADED: Health = Health { state: VdevState::Degraded, aux: VdevAux::ErrExceeded };

fn make(words: &str, count: usize) -> (Arc<Spa>, Vec<Arc<MemoryDevice>>, Object) {
    let (spa, devices) = in_memory(words, count);
    let file = object(&spa);
    file.write(&spa.tx(8 << 20).unwrap(), 0, &noise(BLOCKS, 5)).unwrap();
    spa.sync().unwrap();
    (spa, devices, file)
}

fn again(devices: &[Arc<MemoryDevice>]) -> Arc<Spa> {
    let all = devices.iter().map(|d| (d.name().into(), d.clone() as Arc<dyn Device>)).collect();
    Spa::import(&scan_devices(all)[0], &ImportOptions::default(), hooks()).unwrap()
}

/// Damages blocks of the object on a side of a mirror.
fn damage(spa: &Arc<Spa>, device: &MemoryDevice, file: &Object, blocks: std::ops::Range<u64>) {
    let object = spa.view().unwrap().dataset("t").unwrap().objset().unwrap().object(file.id()).unwrap();
    for blkid in blocks {
        let dva = object.blkptr(0, blkid).unwrap().unwrap().dva(0);
        device.write_at(FRONT + dva.offset(), &[0xa5; 512]).unwrap();
    }
}

fn read(spa: &Arc<Spa>, file: &Object) {
    let data = noise(BLOCKS, 5);
    spa.zio().arc().clear();
    assert!(file.read_vec(0, data.len()).unwrap() == data);
    spa.sync().unwrap();
}

fn health(spa: &Arc<Spa>) -> Vec<Health> {
    spa.tree().leaves().iter().map(|leaf| leaf.health()).collect()
}

fn checksum_errors(spa: &Arc<Spa>, leaf: usize) -> u64 {
    let guid = spa.tree().leaves()[leaf].guid();
    spa.tree().status().walk().find(|vdev| vdev.guid == guid).unwrap().errors.checksum
}

fn set(spa: &Arc<Spa>, vdev: Guid, props: &[(&str, u64)]) {
    let props = props.iter().map(|(name, value)| ((*name).to_owned(), Value::Number(*value))).collect();
    spa.set_vdev_props(vdev, props).unwrap();
}

#[test]
fn a_device_that_gives_wrong_bytes_too_often_is_degraded_and_used_on() {
    let (spa, devices, file) = make("mirror d0 d1", 2);
    damage(&spa, &devices[1], &file, 0..BLOCKS as u64);
    read(&spa, &file);
    assert!(checksum_errors(&spa, 1) >= 10, "{}", checksum_errors(&spa, 1));
    assert_eq!(health(&spa), [WELL, DEGRADED]);
    // it has what is written from now on, and what was wrong on it was healed
    file.write(&spa.tx(2 << 20).unwrap(), 0, &noise(4, 6)).unwrap();
    file.write(&spa.tx(2 << 20).unwrap(), 0, &noise(4, 5)).unwrap();
    spa.sync().unwrap();
    assert!(spa.tree().leaves()[1].is_writable() && !spa.tree().leaves()[1].is_stale());
    let before = checksum_errors(&spa, 1);
    read(&spa, &file);
    assert_eq!(checksum_errors(&spa, 1), before);
    spa.close().unwrap();
    drop((spa, file));
    // it is remembered
    let spa = again(&devices);
    assert_eq!(health(&spa), [WELL, DEGRADED]);
    spa.clear(None).unwrap();
    assert_eq!(health(&spa), [WELL, WELL]);
    spa.close().unwrap();
    drop(spa);
    let spa = again(&devices);
    assert_eq!(health(&spa), [WELL, WELL]);
    spa.export().unwrap();
}

/// One bad block may be read any number of times, and a scrub that repairs is no reason to do without the device.
#[test]
fn what_is_met_again_and_what_a_scrub_finds_does_not_count() {
    let (spa, devices, file) = make("d0", 1);
    damage(&spa, &devices[0], &file, 3..4);
    for _ in 0..30 {
        spa.zio().arc().clear();
        file.read_vec(0, BLOCKS * BLOCK).unwrap_err();
    }
    spa.sync().unwrap();
    assert!(checksum_errors(&spa, 0) >= 30);
    assert_eq!(health(&spa), [WELL]);
    spa.export().unwrap();

    let (spa, devices, file) = make("mirror d0 d1", 2);
    damage(&spa, &devices[1], &file, 0..BLOCKS as u64);
    spa.scrub(ScrubRange::default()).unwrap();
    spa.scan_wait(&mut |_| {}).unwrap();
    spa.sync().unwrap();
    assert!(checksum_errors(&spa, 1) >= BLOCKS as u64);
    assert_eq!(health(&spa), [WELL, WELL]);
    spa.export().unwrap();
}

/// A device is not to blame for errors that its neighbours have as well.
#[test]
fn devices_that_err_together_are_not_degraded() {
    let (spa, devices, file) = make("mirror d0 d1", 2);
    damage(&spa, &devices[0], &file, 0..7);
    damage(&spa, &devices[1], &file, 7..BLOCKS as u64);
    read(&spa, &file);
    assert!(checksum_errors(&spa, 0) > 0 && checksum_errors(&spa, 1) > 0);
    assert_eq!(health(&spa), [WELL, WELL]);
    spa.export().unwrap();
}

#[test]
fn thresholds_are_those_of_the_vdev_or_of_the_one_above() {
    for (of_root, of_leaf, degraded) in
        [(None, Some(3), true), (Some(3), None, true), (Some(3), Some(1000), false), (Some(1000), None, false)]
    {
        let (spa, devices, file) = make("mirror d0 d1", 2);
        let (root, leaf) = (spa.tree().config().guid, spa.tree().leaves()[1].guid());
        for (vdev, n) in [(root, of_root), (leaf, of_leaf)] {
            n.into_iter().for_each(|n| set(&spa, vdev, &[("checksum_n", n)]));
        }
        damage(&spa, &devices[1], &file, if degraded { 7..15 } else { 0..BLOCKS as u64 });
        read(&spa, &file);
        let errors = checksum_errors(&spa, 1);
        assert!(if degraded { (3..10).contains(&errors) } else { errors >= 10 }, "{errors}");
        assert_eq!(health(&spa)[1], if degraded { DEGRADED } else { WELL }, "{of_root:?} {of_leaf:?}");
        spa.export().unwrap();
    }
}

#[test]
fn errors_outside_of_the_time_do_not_count() {
    let (spa, devices, file) = make("mirror d0 d1", 2);
    set(&spa, spa.tree().leaves()[1].guid(), &[("checksum_t", 0)]);
    damage(&spa, &devices[1], &file, 0..BLOCKS as u64);
    read(&spa, &file);
    assert!(checksum_errors(&spa, 1) >= 10);
    assert_eq!(health(&spa), [WELL, WELL]);
    spa.export().unwrap();
}
