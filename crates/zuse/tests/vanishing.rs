//! Devices that go while a pool is open, and come back.
#![allow(clippy::unwrap_used)]

#[path = "support/shelf.rs"]
mod shelf;

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::tunable::{ZFS_TXG_TIMEOUT, ZUSE_CATCH_UP_MS};
use oracle::judge;
use pool::Spa;
use pool::testing::{BLOCK, noise, object, write};
use vdev::VdevState;
use zuse::CaughtUp;

use shelf::Shelf;

fn states(spa: &Arc<Spa>) -> (VdevState, Vec<VdevState>) {
    let root = spa.tree().status();
    (root.state, root.walk().filter(|v| v.children.is_empty()).map(|v| v.state).collect())
}

/// Waits for something that the sync thread does when it has nothing else to do.
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The contents of an object, from the devices.
fn reads(spa: &Arc<Spa>, file: &dmu::Object, blocks: usize, seed: u64) -> bool {
    spa.zio().arc().clear();
    file.read_vec(0, blocks * BLOCK).is_ok_and(|read| read == noise(blocks, seed))
}

const SHAPES: [(&str, usize); 5] = [
    ("mirror d0 d1", 2),
    ("raidz1 d0 d1 d2", 3),
    ("raidz2 d0 d1 d2 d3", 4),
    ("draid1:2d:4c d0 d1 d2 d3", 4),
    ("mirror d0 d1 log mirror d2 d3", 4),
];

/// One disk is pulled while blocks are written, and comes back; then the other. Each is missed, used again, and brought up to date.
#[test]
fn single_faults_one_after_another_lose_nothing() {
    ZFS_TXG_TIMEOUT.set(1);
    ZUSE_CATCH_UP_MS.set(600_000);
    for (words, count) in SHAPES {
        let shelf = Shelf::new(count);
        let spa = shelf.create(words);
        let file = object(&spa);
        write(&spa, &file, 8, 1).unwrap();
        for (round, n) in [0, 1, 0].into_iter().enumerate() {
            let (seed, disk) = (10 + round as u64, &shelf.disks[n]);
            disk.pull_after(3);
            write(&spa, &file, 8, seed).unwrap();
            assert!(disk.is_pulled(), "{words}");
            let (root, leaves) = states(&spa);
            assert_eq!((root, leaves[n]), (VdevState::Degraded, VdevState::Removed), "{words}");
            assert!(spa.tree().leaves()[n].last_error().unwrap().contains("cannot write"), "{words}");
            assert!(reads(&spa, &file, 8, seed), "{words}");
            disk.push();
            wait_for(words, || states(&spa).1[n] == VdevState::Healthy);
            assert!(reads(&spa, &file, 8, seed), "{words}");
            assert_eq!(zuse::catch_up(&spa).unwrap(), CaughtUp::Yes, "{words}");
            assert_eq!(states(&spa).0, VdevState::Healthy, "{words}");
        }
        spa.export().unwrap();
        drop((file, spa));
        let dir = tempfile::tempdir().unwrap();
        shelf.dump(dir.path());
        judge::no_leaks(dir.path(), "t");
    }
}
