//! Random schedules of failures: disks are pulled and pushed in, fail to read, write and flush, turn read-only, are taken offline, while a pool is written.
//! Whatever happens, what was acknowledged is there, and a pool whose disks are back goes on.
//!
//! `ZUSE_SEED=7 ZUSE_LIVES=1 cargo test -p zuse --test schedules` repeats one schedule.
#![allow(clippy::unwrap_used)]

#[path = "support/shelf.rs"]
mod shelf;

use std::sync::Arc;

use base::Env;
use base::tunable::{ZFS_TXG_TIMEOUT, ZUSE_CATCH_UP_MS};
use dmu::Object;
use oracle::judge;
use pool::testing::{BLOCK, noise, object};
use pool::{Error, Spa, Value};
use vdev::VdevState;

use shelf::Shelf;

const SHAPES: [(&str, usize); 6] = [
    ("d0 d1", 2),
    ("mirror d0 d1", 2),
    ("raidz1 d0 d1 d2", 3),
    ("raidz2 d0 d1 d2 d3", 4),
    ("draid1:2d:4c d0 d1 d2 d3", 4),
    ("mirror d0 d1 log d2", 3),
];
const BLOCKS: usize = 24;
const STEPS: usize = 60;
const CONTINUE: u64 = 1;

/// A pool, and what must be in it.
struct Life {
    what: String,
    chance: Env,
    shelf: Shelf,
    /// The pool and an object in it; `None` between two openings.
    open: Option<(Arc<Spa>, Object)>,
    /// The seed of each block as it is now.
    now: Vec<u64>,
    /// The same in each state that may be that on the disks: the last that was acknowledged, and those of later txgs.
    maybe: Vec<Vec<u64>>,
}

impl Life {
    fn new(seed: u64) -> Life {
        let (words, count) = SHAPES[seed as usize % SHAPES.len()];
        let shelf = Shelf::new(count);
        let spa = shelf.create(words);
        spa.set_prop("failmode", Value::Number(CONTINUE)).unwrap();
        let file = object(&spa);
        let chance = Env::seeded(seed);
        let mut life = Life {
            what: format!("ZUSE_SEED={seed} ({words})"),
            chance,
            shelf,
            open: Some((spa, file)),
            now: vec![0; BLOCKS],
            maybe: Vec::new(),
        };
        for block in 0..BLOCKS {
            life.write(block);
        }
        life.sync();
        life
    }

    fn spa(&self) -> &Arc<Spa> {
        &self.open.as_ref().unwrap().0
    }

    fn file(&self) -> &Object {
        &self.open.as_ref().unwrap().1
    }

    fn below(&self, n: usize) -> usize {
        (self.chance.random_u64() % n as u64) as usize
    }

    /// Writes a block; where the pool cannot be written, it is repaired first.
    fn write(&mut self, block: usize) {
        let seed = self.chance.random_u64();
        for _ in 0..5 {
            let tx = match self.spa().tx(BLOCK as u64) {
                Ok(tx) => tx,
                Err(Error::Suspended(_)) => {
                    self.repair();
                    continue;
                }
                Err(e) => panic!("{}: {e}", self.what),
            };
            let written = self.file().write(&tx, (block * BLOCK) as u64, &noise(1, seed));
            drop(tx);
            if written.is_ok() {
                self.now[block] = seed;
                return;
            }
            self.repair();
        }
        panic!("{}: the pool cannot be written", self.what);
    }

    fn sync(&mut self) {
        self.maybe.push(self.now.clone());
        match self.spa().sync() {
            Ok(()) => self.maybe = vec![self.now.clone()],
            Err(Error::Suspended(_)) => self.repair(),
            Err(e) => panic!("{}: {e}", self.what),
        }
    }

    /// The blocks, from the disks, if all can be read.
    fn read(&self) -> Result<Vec<u8>, dmu::Error> {
        self.spa().zio().arc().clear();
        self.file().read_vec(0, BLOCKS * BLOCK)
    }

    /// Whatever can be read is right.
    fn check(&self) {
        if let Ok(found) = self.read() {
            assert!(is(&found, &self.now), "{}", self.what);
        }
    }

    /// All disks are back and well: the pool must go on, with the txg that waited or with the one before.
    fn repair(&mut self) {
        self.shelf.disks.iter().for_each(|disk| disk.mend());
        for _ in 0..5 {
            let offline: Vec<_> = self.spa().tree().leaves().iter().map(|leaf| (leaf.guid(), leaf.health())).collect();
            for (leaf, _) in offline.iter().filter(|(_, health)| health.state == VdevState::Offline) {
                let _state = self.spa().online_vdev(*leaf);
            }
            if self.spa().txgs().failed().is_some() {
                return self.reopen();
            }
            self.maybe.push(self.now.clone());
            if self.spa().clear(None).is_ok() && self.spa().sync().is_ok() {
                self.maybe = vec![self.now.clone()];
                assert!(is(&self.read().unwrap(), &self.now), "{}", self.what);
                return;
            }
        }
        panic!("{}: it does not go on: {:?}", self.what, self.spa().suspended());
    }

    /// Opens the pool anew after it lost what no disk had brought to stable storage.
    fn reopen(&mut self) {
        let id = self.file().id();
        let _failed = self.spa().close();
        self.open = None;
        let spa = self.shelf.import().unwrap_or_else(|e| panic!("{}: {e}", self.what));
        let file = spa.objset(&spa.view().unwrap().dataset("t").unwrap()).unwrap().object(id).unwrap();
        self.open = Some((spa, file));
        let found = self.read().unwrap_or_else(|e| panic!("{}: {e}", self.what));
        let state = self.maybe.iter().rev().find(|state| is(&found, state));
        self.now = state.unwrap_or_else(|| panic!("{}: it is in no state that it had", self.what)).clone();
        self.maybe = vec![self.now.clone()];
    }

    fn step(&mut self) {
        self.maybe.push(self.now.clone());
        let disk = self.shelf.disks[self.below(self.shelf.disks.len())].clone();
        let leaf = self.spa().tree().leaves()[self.below(self.shelf.disks.len())].guid();
        match self.below(16) {
            0..=3 => (0..1 + self.below(6)).for_each(|_| self.write(self.below(BLOCKS))),
            4..=6 => self.sync(),
            7 => disk.pull(self.below(2) == 0),
            8 => disk.pull_after(self.below(12) as u64),
            9 => disk.mend(),
            10 => disk.fail_writes(1 + self.below(20) as u64),
            11 => disk.fail_reads(1 + self.below(5) as u64),
            12 => disk.fail_flushes(1),
            13 => match self.below(3) {
                0 => drop(self.spa().offline_vdev(leaf, self.below(2) == 0)),
                1 => drop(self.spa().online_vdev(leaf)),
                _ => disk.set_read_only(true),
            },
            14 => drop(self.spa().clear(None)),
            _ => drop(zuse::catch_up(self.spa())),
        }
        self.check();
    }

    /// With all disks back for good, nothing is missing anywhere.
    fn end(mut self) {
        self.repair();
        for _ in 0..5 {
            if self.spa().tree().stale_leaves().next().is_none() {
                break;
            }
            self.spa().resilver(true).unwrap();
            self.spa().scan_wait(&mut |_| {}).unwrap();
        }
        let status = self.spa().tree().status();
        assert_eq!(status.state, VdevState::Healthy, "{}: {status:#?}", self.what);
        let Life { open, shelf, .. } = self;
        let (spa, file) = open.unwrap();
        drop(file);
        spa.export().unwrap();
        drop(spa);
        let dir = tempfile::tempdir().unwrap();
        shelf.dump(dir.path());
        judge::no_leaks(dir.path(), "t");
    }
}

fn is(found: &[u8], seeds: &[u64]) -> bool {
    found.chunks(BLOCK).zip(seeds).all(|(found, seed)| found == noise(1, *seed))
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn whatever_fails_what_was_acknowledged_is_there() {
    // txgs are synced when the schedule says so
    ZFS_TXG_TIMEOUT.set(3600);
    ZUSE_CATCH_UP_MS.set(600_000);
    let first = number("ZUSE_SEED", 0);
    for seed in first..first + number("ZUSE_LIVES", 6) {
        let mut life = Life::new(seed);
        (0..STEPS).for_each(|_| life.step());
        life.end();
    }
}
