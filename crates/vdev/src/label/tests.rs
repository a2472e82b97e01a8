#![allow(clippy::unwrap_used)]

use std::io;
use std::sync::{Arc, Mutex};

use base::{Endian, Guid, Txg};
use nvlist::NvList;
use ondisk::label::{self as layout, key};
use ondisk::{BlkPtr, Dva, MmpConfig, Uberblock};

use super::*;
use crate::stripe::physical;
use crate::test_pool::{LEAF_GUID, TestPool, leaf, mirror, missed, raidz};
use crate::{BlockWrite, MemoryDevice, VdevConfig, VdevTree, Written};

/// An event of a disk, with the number of the label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Label(usize),
    Uberblock(usize),
    Other,
    Flush,
}

#[derive(Debug)]
struct Recorded {
    memory: MemoryDevice,
    disk: usize,
    log: Arc<Mutex<Vec<(usize, Event)>>>,
    /// Writes that are still taken, and flushes that are yet to fail.
    left: Mutex<usize>,
    bad_flushes: Mutex<usize>,
    /// The range in which nothing can be written.
    bad: std::ops::Range<u64>,
}

impl Device for Recorded {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut left = self.left.lock().unwrap();
        *left = left.checked_sub(1).ok_or_else(|| io::Error::other("cut off"))?;
        if self.bad.contains(&offset) {
            return Err(io::Error::other("a bad sector"));
        }
        let label = (0..4).find(|n| {
            let at = layout::offset(self.size(), *n).unwrap();
            (at..at + layout::LABEL_SIZE).contains(&offset)
        });
        let event = match label {
            Some(n) if data.len() == layout::CONFIG_SIZE => Event::Label(n),
            Some(n) => Event::Uberblock(n),
            None => Event::Other,
        };
        self.log.lock().unwrap().push((self.disk, event));
        self.memory.write_at(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.log.lock().unwrap().push((self.disk, Event::Flush));
        let mut bad = self.bad_flushes.lock().unwrap();
        match bad.checked_sub(1) {
            Some(left) => {
                *bad = left;
                Err(io::Error::other("no flush"))
            }
            None => Ok(()),
        }
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn name(&self) -> String {
        format!("disk{}", self.disk)
    }
}

/// The faults of a disk.
#[derive(Clone)]
struct Wrong {
    writes: usize,
    bad_flushes: usize,
    bad: std::ops::Range<u64>,
}

impl Default for Wrong {
    fn default() -> Self {
        Wrong { writes: usize::MAX, bad_flushes: 0, bad: 0..0 }
    }
}

struct Bench {
    config: VdevConfig,
    root: NvList,
    memories: Vec<MemoryDevice>,
    log: Arc<Mutex<Vec<(usize, Event)>>>,
}

impl Bench {
    fn new(tops: Vec<NvList>, disks: usize) -> Bench {
        let root = TestPool::with_tops(tops, 0).config;
        Bench {
            config: VdevConfig::parse(&root).unwrap(),
            root,
            memories: (0..disks).map(|_| MemoryDevice::writable(64 << 20)).collect(),
            log: Arc::default(),
        }
    }

    /// With disks that take this many writes each, of which some do not flush.
    fn open(&self, writes: &[usize], unflushed: &[usize]) -> VdevTree {
        let wrong = |disk| Wrong {
            writes: writes.get(disk).copied().unwrap_or(usize::MAX),
            bad_flushes: if unflushed.contains(&disk) { usize::MAX } else { 0 },
            ..Wrong::default()
        };
        self.open_with(&(0..self.memories.len()).map(wrong).collect::<Vec<_>>())
    }

    fn open_with(&self, wrong: &[Wrong]) -> VdevTree {
        let find = |guid: Guid| {
            let disk = (guid.0 - LEAF_GUID) as usize;
            let Wrong { writes, bad_flushes, bad } = wrong.get(disk).cloned().unwrap_or_default();
            let device = Recorded {
                memory: self.memories[disk].clone(),
                disk,
                log: Arc::clone(&self.log),
                left: Mutex::new(writes),
                bad_flushes: Mutex::new(bad_flushes),
                bad,
            };
            Some(Arc::new(device) as Arc<dyn Device>)
        };
        VdevTree::open(&self.config, &find).unwrap()
    }

    fn commit(&self, tree: &VdevTree, txg: u64, with_labels: bool) -> Result<(), Error> {
        let pool = pool(txg);
        let label = PoolLabel { pool: &pool, vdev_tree: &self.root, tops: &[] };
        base::tasks::inline(|| commit(tree, with_labels.then_some(&label), &uberblock(txg)))
    }

    fn take_log(&self) -> Vec<(usize, Event)> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

/// Data on every disk.
fn write_block(tree: &VdevTree, txg: u64) {
    let block = BlockWrite { dva: Dva::new(0, 0, 1024, false), data: &[9; 1024] };
    tree.write(Txg(txg), &[block]).unwrap();
}

fn pool(txg: u64) -> NvList {
    let mut pool = NvList::new();
    pool.insert(key::VERSION, 5000u64);
    pool.insert(key::POOL_NAME, "tank");
    pool.insert(key::POOL_STATE, 0u64);
    pool.insert(key::POOL_TXG, txg);
    pool.insert(key::POOL_GUID, 1u64);
    pool
}

fn uberblock(txg: u64) -> Uberblock {
    Uberblock {
        version: 5000,
        txg: Txg(txg),
        guid_sum: Guid(5),
        timestamp: 6,
        rootbp: BlkPtr::decode(&[7; 128], Endian::Little).unwrap(),
        software_version: 5000,
        mmp: Some(MmpConfig { delay_ns: 0, config: 0 }),
        checkpoint_txg: Txg(0),
        raidz_reflow_info: 0,
        endian: Endian::Little,
    }
}

#[test]
fn a_commit_writes_one_pair_then_the_uberblock_then_the_other_pair() {
    let bench = Bench::new(vec![mirror(0, 0..2)], 2);
    let tree = bench.open(&[], &[]);
    write_block(&tree, 77);
    bench.commit(&tree, 77, true).unwrap();
    let rounds: Vec<Vec<Event>> = {
        let of_disk: Vec<Event> = bench.take_log().into_iter().filter(|(disk, _)| *disk == 1).map(|(_, e)| e).collect();
        of_disk.split(|e| *e == Event::Flush).map(<[Event]>::to_vec).collect()
    };
    let uberblocks: Vec<Event> = (0..4).map(Event::Uberblock).collect();
    let labels = |which: [usize; 2]| which.map(Event::Label).to_vec();
    assert_eq!(rounds, [vec![Event::Other], labels([0, 2]), uberblocks.clone(), labels([1, 3]), vec![]]);
    for memory in &bench.memories {
        assert!(read_labels(memory).iter().all(|l| l.as_ref().unwrap().txg() == Txg(77)));
        let slots = read_uberblock_slots(memory, 9);
        assert!(slots.len() == 4 && slots.iter().all(|s| s.slot == 77 && s.ub == uberblock(77)));
    }
    // nothing changed but the uberblock
    bench.commit(&tree, 78, false).unwrap();
    let events = bench.take_log();
    assert!(events.iter().all(|(_, e)| !matches!(e, Event::Label(_))));
    assert_eq!(events.iter().filter(|(_, e)| *e == Event::Uberblock(0)).count(), 2);
    assert_eq!(read_uberblocks(&bench.memories[0], 9), [uberblock(78), uberblock(77)]);
}

#[test]
fn a_commit_that_is_cut_off_leaves_one_whole_state() {
    let bench = Bench::new(vec![mirror(0, 0..2)], 2);
    bench.commit(&bench.open(&[], &[]), 10, true).unwrap();
    for cut in 0..=8usize {
        let txg = 11 + cut as u64;
        let before = read_uberblocks(&bench.memories[0], 9)[0].txg;
        let done = bench.commit(&bench.open(&[cut, cut], &[]), txg, true);
        // of the last pair, too, one will do
        assert_eq!(done.is_ok(), cut >= 7, "{cut}");
        // an import takes the newest uberblock, and a label that is not newer
        let best = read_uberblocks(&bench.memories[0], 9)[0].txg;
        let labels = read_labels(&bench.memories[0]);
        assert!(labels.iter().flatten().any(|l| l.txg() <= best), "{cut}");
        assert_eq!(best, if cut > 2 { Txg(txg) } else { before }, "{cut}");
        // and it can be done again
        bench.commit(&bench.open(&[], &[]), txg, true).unwrap();
    }
}

#[test]
fn what_does_not_reach_the_disks_is_an_error_only_where_it_is_lost() {
    let three = |leaves: std::ops::Range<usize>| raidz(1, 9, leaves.map(leaf).collect());
    let bench = Bench::new(vec![three(0..3)], 3);
    let tree = bench.open(&[], &[1]);
    write_block(&tree, 5);
    bench.commit(&tree, 5, true).unwrap();
    assert_eq!(tree.dirty_dtls(), [(Guid(LEAF_GUID + 1), missed(5, 6))]);
    let unflushed = bench.open(&[], &[0, 1]);
    write_block(&unflushed, 6);
    assert!(matches!(bench.commit(&unflushed, 6, true), Err(Error::Flush { .. })));
    // it is not forgotten
    assert!(matches!(bench.commit(&unflushed, 6, true), Err(Error::Flush { .. })));
    assert!(matches!(
        bench.commit(&bench.open(&[0, 0, 0], &[]), 6, true),
        Err(Error::LabelNotWritten { what: "label", .. })
    ));
    assert!(matches!(
        bench.commit(&bench.open(&[0, 0, 0], &[]), 6, false),
        Err(Error::LabelNotWritten { what: "uberblock", .. })
    ));
    bench.commit(&bench.open(&[0, 9, 0], &[]), 6, true).unwrap();
    // of many vdevs, three get an uberblock, and logs none
    let log = {
        let mut log = mirror(5, 5..6);
        log.insert(key::IS_LOG, 1u64);
        log
    };
    let bench = Bench::new((0..5).map(|n| mirror(n, n..n + 1)).chain([log]).collect(), 6);
    let tree = bench.open(&[], &[]);
    let mut seen = [0; 6];
    for txg in 20..30 {
        bench.commit(&tree, txg, false).unwrap();
        let written: Vec<usize> =
            bench.take_log().iter().filter(|(_, e)| *e == Event::Uberblock(3)).map(|(disk, _)| *disk).collect();
        assert_eq!(written.len(), 3);
        for disk in written {
            seen[disk] += 1;
        }
    }
    assert_eq!(seen, [6, 6, 6, 6, 6, 0]);
}

#[test]
fn a_flush_that_failed_for_somebody_else_is_not_forgotten() {
    let bench = Bench::new(vec![mirror(0, 0..1)], 1);
    let once = [Wrong { bad_flushes: 1, ..Wrong::default() }];
    let tree = bench.open_with(&once);
    write_block(&tree, 5);
    // as the intent log does it: the system has told of what it lost, and does not do so again
    assert!(tree.flush().is_err());
    assert!(matches!(bench.commit(&tree, 5, true), Err(Error::Flush { .. })));
    assert!(matches!(bench.commit(&tree, 5, true), Err(Error::Flush { .. })));
    // where it is elsewhere as well the txg is good; the next one may have written blocks by then, the one after it cannot
    let bench = Bench::new(vec![mirror(0, 0..2)], 2);
    let tree = bench.open_with(&once);
    write_block(&tree, 5);
    assert!(tree.flush().is_err());
    bench.commit(&tree, 5, true).unwrap();
    for txg in [6, 7] {
        write_block(&tree, txg);
        bench.commit(&tree, txg, true).unwrap();
    }
    assert_eq!(tree.dirty_dtls(), [(Guid(LEAF_GUID), missed(5, 7))]);
}

/// Blocks of files that were fsynced are written while the txg before theirs is still ending.
#[test]
fn a_txg_does_not_settle_what_its_successor_may_have_lost() {
    let bench = Bench::new(vec![mirror(0, 0..1)], 1);
    let tree = bench.open_with(&[Wrong { bad_flushes: 1, ..Wrong::default() }]);
    write_block(&tree, 5);
    write_block(&tree, 6);
    assert!(tree.flush().is_err() && tree.has_failed_flushes());
    for txg in [5, 6] {
        assert!(matches!(bench.commit(&tree, txg, true), Err(Error::Flush { .. })), "{txg}");
        // its blocks were read back
        tree.accept_flushes(&tree.flushes());
        bench.commit(&tree, txg, true).unwrap();
        assert!(!tree.has_failed_flushes());
    }
    bench.commit(&tree, 7, true).unwrap();
    assert_eq!(tree.leaves()[0].errors.write.get(), 1, "told once");
}

#[test]
fn a_flush_that_failed_for_somebody_else_lost_what_was_written_before() {
    let written = |txg| Written { tops: [0].into(), births: [Txg(txg)].into(), all: false };
    for (disks, safe) in [(1, false), (2, true)] {
        let bench = Bench::new(vec![mirror(0, 0..disks)], disks);
        let tree = bench.open_with(&[Wrong { bad_flushes: 1, ..Wrong::default() }]);
        let before = tree.flushes();
        write_block(&tree, 5);
        assert!(tree.flush().is_err());
        assert_eq!(tree.flush_written(&written(5), &before).is_ok(), safe);
        assert_eq!(tree.dirty_dtls(), [(Guid(LEAF_GUID), missed(5, 6))]);
        // not what is written later
        let before = tree.flushes();
        write_block(&tree, 6);
        tree.flush_written(&written(6), &before).unwrap();
        assert!(tree.dirty_dtls().is_empty());
    }
}

#[test]
fn a_block_that_missed_one_disk_and_may_be_lost_on_the_other_is_lost() {
    let bench = Bench::new(vec![mirror(0, 0..2)], 2);
    let data = physical(0)..physical(1024);
    let tree = bench.open_with(&[
        Wrong { bad: data.clone(), ..Wrong::default() },
        Wrong { bad_flushes: usize::MAX, ..Wrong::default() },
    ]);
    write_block(&tree, 5);
    assert!(matches!(bench.commit(&tree, 5, true), Err(Error::Flush { .. })));
    // what missed a txg before has this one
    let tree = bench.open_with(&[Wrong { bad: data, ..Wrong::default() }]);
    write_block(&tree, 5);
    bench.commit(&tree, 5, true).unwrap();
}

#[test]
fn a_disk_does_with_less_than_four_labels() {
    let bench = Bench::new(vec![mirror(0, 0..1)], 1);
    let size = bench.memories[0].size();
    for (txg, labels) in [(5, 0..2), (6, 2..4), (7, 0..1), (8, 3..4)] {
        let bad = layout::offset(size, labels.start).unwrap()
            ..layout::offset(size, labels.end - 1).unwrap() + layout::LABEL_SIZE;
        let tree = bench.open_with(&[Wrong { bad, ..Wrong::default() }]);
        bench.commit(&tree, txg, true).unwrap();
        assert!(tree.leaves()[0].errors.write.get() > 0);
        let found = read_labels(&bench.memories[0]);
        let new: Vec<usize> = found.iter().flatten().filter(|l| l.txg() == Txg(txg)).map(|l| l.index).collect();
        assert_eq!(new, (0..4).filter(|n| !labels.contains(n)).collect::<Vec<_>>());
        assert_eq!(read_uberblocks(&bench.memories[0], 9)[0].txg, Txg(txg));
    }
}

#[test]
fn the_slot_is_that_of_the_txg_but_for_multihost_and_expansion() {
    let mut ub = uberblock(1000);
    assert_eq!((uberblock_slot(&ub, 9), uberblock_slot(&ub, 12), uberblock_slot(&ub, 16)), (1000 % 128, 1000 % 32, 8));
    ub.mmp = Some(MmpConfig { delay_ns: 1, config: 1 });
    assert_eq!(uberblock_slot(&ub, 12), 1000 % 31);
    ub.raidz_reflow_info = 1 << 55;
    assert_eq!(uberblock_slot(&ub, 12), 999 % 31);
}

#[test]
fn a_new_device_has_four_labels_and_a_cleared_one_none() {
    // its end is not one of a label
    let device = MemoryDevice::writable_from(vec![0xa5; (64 << 20) + 8192]);
    let bench = Bench::new(vec![mirror(0, 0..2)], 2);
    let top = &bench.root.get_nvlist_array(key::CHILDREN).unwrap()[0];
    assert!(matches!(clear(&device), Err(Error::NoLabel { .. })));
    init(&device, &initial_config(&pool(99), top, Guid(LEAF_GUID), Txg(100))).unwrap();
    for label in read_labels(&device) {
        let label = label.unwrap();
        assert_eq!((label.txg(), label.guid()), (Txg(0), Some(Guid(LEAF_GUID))));
        assert_eq!(label.config.get_u64(key::CREATE_TXG), Some(100));
    }
    assert!(read_uberblock_slots(&device, 9).is_empty());
    assert_eq!(read_bootenv(&device).unwrap(), BootEnv::Raw(Vec::new()));
    let snapshot = device.snapshot();
    let foreign = |range: std::ops::Range<usize>| device.snapshot()[range].iter().all(|b| *b == 0xa5);
    assert!(foreign(4096..8192) && foreign(512 << 10..8 << 20) && foreign(64 << 20..(64 << 20) + 4096));
    // where other systems have their marks
    assert!(snapshot[..4096].iter().chain(&snapshot[(64 << 20) + 4096..]).all(|b| *b == 0));
    assert_eq!(clear(&device).unwrap(), 4);
    assert!(read_labels(&device).iter().all(Result::is_err));
    assert!(foreign(4096..8192));
    assert!(matches!(clear(&device), Err(Error::NoLabel { .. })));
    let mut huge = pool(1);
    huge.insert(key::COMMENT, "x".repeat(120 << 10).as_str());
    assert!(matches!(init(&device, &huge), Err(Error::LabelTooLarge { .. })));
    assert!(init(&MemoryDevice::writable(1 << 19), &pool(1)).is_err());
}
