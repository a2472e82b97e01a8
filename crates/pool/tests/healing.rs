//! Reads heal what they find damaged, and nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ops::Range;
use std::sync::Arc;

use base::ObjectId;
use ondisk::BlkPtr;
use pool::Pool;
use pool::testing::{BLOCK, in_memory, noise, object};
use vdev::{Device, MemoryDevice};

/// Labels and boot area in front of what a DVA counts from.
const FRONT: u64 = 4 << 20;

fn pointer(view: &Arc<Pool>, id: ObjectId, blkid: u64) -> BlkPtr {
    let object = view.dataset("t").unwrap().objset().unwrap().object(id).unwrap();
    object.blkptr(0, blkid).unwrap().unwrap()
}

fn bytes(device: &MemoryDevice, range: &Range<u64>) -> Vec<u8> {
    let mut out = vec![0; (range.end - range.start) as usize];
    device.read_at(range.start, &mut out).unwrap();
    out
}

/// Damages what a device has of a block, reads the block, and expects the next txg to have made it whole. `width` devices share a row.
fn heals(words: &str, count: usize, width: u64) {
    let (spa, devices) = in_memory(words, count);
    let file = object(&spa);
    let data = noise(8, 5);
    file.write(&spa.tx(2 << 20).unwrap(), 0, &data).unwrap();
    spa.sync().unwrap();
    let dva = pointer(&spa.view().unwrap(), file.id(), 3).dva(0);
    // the rows that the block has for itself
    let rows = (dva.offset() >> 12).div_ceil(width)..((dva.offset() + dva.asize()) >> 12) / width;
    let range = FRONT + (rows.start << 12)..FRONT + (rows.end << 12);
    let recovered = || spa.zio().stats().recovered.get();
    let is_whole = || {
        spa.zio().arc().clear();
        let before = recovered();
        assert!(file.read_vec(0, data.len()).unwrap() == data, "{words}: redundancy gives the data");
        recovered() == before
    };
    // which device is read, as the first side or for data, depends on the place of the block
    let hit = devices.iter().find_map(|device| {
        let before = bytes(device, &range);
        device.write_at(range.start, &vec![0xa5; before.len()]).unwrap();
        if !is_whole() {
            return Some((device, before));
        }
        device.write_at(range.start, &before).unwrap();
        None
    });
    let (device, before) = hit.expect("no device is read");
    assert!(bytes(device, &range) != before, "{words}: a reader has written");
    spa.sync().unwrap();
    assert!(bytes(device, &range) == before, "{words}: the damage is still there");
    assert_eq!(spa.zio().stats().self_healed.get(), 1, "{words}");
    assert!(is_whole(), "{words}: damage is met again");
    spa.export().unwrap();
}

#[test]
fn a_read_heals_a_mirror() {
    heals("mirror d0 d1", 2, 1);
    heals("mirror d0 d1 d2", 3, 1);
}

#[test]
fn a_read_heals_a_raidz() {
    heals("raidz1 d0 d1 d2", 3, 3);
    heals("raidz2 d0 d1 d2 d3", 4, 4);
}

/// A reader with an old pointer finds the old block on one side of a mirror, and on the other the block that lies there now: to the
/// reader the new one is damage. It must not be overwritten.
#[test]
fn what_was_given_to_another_block_is_not_healed() {
    let (spa, devices) = in_memory("mirror d0 d1", 2);
    let file = object(&spa);
    file.write(&spa.tx(1 << 20).unwrap(), 0, &noise(1, 1)).unwrap();
    spa.sync().unwrap();
    let old = spa.view().unwrap();
    let dva = pointer(&old, file.id(), 0).dva(0);
    let range = FRONT + dva.offset()..FRONT + dva.offset() + dva.asize();
    let ghost = bytes(&devices[0], &range);
    file.write(&spa.tx(1 << 20).unwrap(), 0, &noise(1, 2)).unwrap();
    (0..4).for_each(|_| {
        spa.txgs().wait_synced(spa.txgs().open()).unwrap();
    });
    // until the place is taken again
    let other = object(&spa);
    let chunk = noise(8, 3);
    let taken = (0..500).any(|n: u64| {
        other.write(&spa.tx(chunk.len() as u64).unwrap(), n % 6 * chunk.len() as u64, &chunk).unwrap();
        spa.sync().unwrap();
        bytes(&devices[0], &range) != ghost
    });
    let now = bytes(&devices[0], &range);
    assert!(taken && now != ghost && bytes(&devices[1], &range) == now, "the place was not taken again");
    // the side that is read first has the new block, the other one the old
    let first = usize::from((dva.offset() >> 20) % 2 == 1);
    devices[1 - first].write_at(range.start, &ghost).unwrap();
    spa.zio().arc().clear();
    let recovered = spa.zio().stats().recovered.get();
    let seen = old.dataset("t").unwrap().objset().unwrap().object(file.id()).unwrap().read_vec(0, BLOCK);
    assert!(seen.unwrap() == noise(1, 1) && spa.zio().stats().recovered.get() > recovered, "the trap was not sprung");
    spa.sync().unwrap();
    assert!(bytes(&devices[first], &range) == now, "the new block was overwritten with the old one");
    assert_eq!(spa.zio().stats().self_healed.get(), 0);
    spa.close().unwrap();
}
