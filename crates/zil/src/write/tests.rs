//! The log over a pool in memory: committed records can be walked, whatever fails.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Env, Txg};
use dmu::{Objset, Tx};
use ondisk::zil::{Record, TxType, Write};
use ondisk::{BlkPtr, Dva, ZilHeader};
use parking_lot::{Condvar, Mutex};
use vdev::{Flushes, MemoryDevice, VdevTree, Written};
use zio::{AllocError, AllocRequest, Bookmark, SpaceSource, Zio};

use super::*;
use crate::{ChainEnd, Error, read_log};

const ID: u64 = 77;
const SIZE: u64 = 64 << 20;

/// An allocator that hands out consecutive offsets.
#[derive(Default)]
struct Bump {
    at: AtomicU64,
    full: AtomicBool,
}

impl SpaceSource for Bump {
    fn allocate(&self, req: &AllocRequest<'_>) -> Result<Dva, AllocError> {
        if self.full.load(Ordering::Relaxed) {
            return Err(AllocError::NoSpace);
        }
        Ok(Dva::new(0, self.at.fetch_add(req.psize, Ordering::Relaxed), req.psize, false))
    }

    fn release(&self, _: &Dva, _: Txg) {}

    fn free(&self, _: Txg, _: &Dva, _: Txg) {}

    fn asize(&self, _: u64, psize: u64) -> u64 {
        psize
    }
}

/// A pool with one dataset, whose txgs are synced by the thread that waits for them.
struct Memory {
    zio: Arc<Zio>,
    space: Arc<Bump>,
    objset: Arc<Objset>,
    synced: AtomicU64,
    zil: Mutex<Weak<Zil>>,
    freed: Mutex<Vec<BlkPtr>>,
    written: AtomicU64,
    flushed: Mutex<Vec<BTreeSet<u64>>>,
    broken: AtomicBool,
    panicking: AtomicBool,
    dirty: AtomicU64,
    /// Flushes, by number, that block until they are removed; and those that fail then.
    held: Mutex<BTreeSet<usize>>,
    released: Condvar,
    failing: Mutex<BTreeSet<usize>>,
}

impl Memory {
    fn sync(&self) {
        let zil = self.zil.lock();
        let txg = Txg(self.synced.load(Ordering::Relaxed) + 1);
        if let Some(zil) = zil.upgrade() {
            let done = zil.sync(txg).unwrap_or_default();
            if let Some(header) = done.header {
                self.objset.set_zil_header(&Tx::syncing(txg), header).unwrap();
            }
            self.freed.lock().extend(done.free);
            self.synced.store(txg.0, Ordering::Relaxed);
            zil.clean(txg);
        }
    }

    /// Unblocks a flush.
    fn release(&self, flush: usize) {
        self.held.lock().remove(&flush);
        self.released.notify_all();
    }

    /// Waits until `count` flushes have started.
    fn await_flushes(&self, count: usize) {
        while self.flushed.lock().len() < count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn tx(&self) -> Tx {
        Tx::syncing(Txg(self.synced.load(Ordering::Relaxed) + 1))
    }
}

impl LogDevice for Memory {
    fn objset(&self) -> ObjectId {
        ObjectId(ID)
    }

    fn env(&self) -> Env {
        Env::system()
    }

    fn is_suspended(&self) -> bool {
        false
    }

    fn header(&self) -> Result<ZilHeader, Error> {
        Ok(self.objset.phys().zil_header.clone())
    }

    fn left_behind(&self) -> Result<Vec<BlkPtr>, Error> {
        Ok(crate::claim::blocks_of(&self.objset))
    }

    fn open(&self) -> Result<Tx, Error> {
        Ok(self.tx())
    }

    fn newest(&self) -> Txg {
        self.tx().txg()
    }

    fn synced(&self) -> Txg {
        Txg(self.synced.load(Ordering::Relaxed))
    }

    fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    fn wait_synced(&self, txg: Txg) -> Result<(), Error> {
        while self.synced() < txg {
            self.sync();
        }
        Ok(())
    }

    fn allocate(&self, tx: &Tx, size: u64, identity: [u64; 4]) -> Result<Placed, Error> {
        let bm = Bookmark { objset: ObjectId(ID), object: ObjectId::NONE, level: Bookmark::ZIL_LEVEL, blkid: 0 };
        Ok(Placed { bp: self.zio.allocate_log(tx.txg(), &bm, size, identity, false)?, slog: false })
    }

    fn created(&self, _: &Tx) {}

    fn write(&self, blocks: Vec<(BlkPtr, Vec<u8>)>) -> Result<(), Error> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(Error::Unusable { objset: ObjectId(ID), what: "broken" });
        }
        assert!(!self.panicking.load(Ordering::Relaxed), "a device panics");
        self.written.fetch_add(blocks.len() as u64, Ordering::Relaxed);
        Ok(self.zio.write_log(&Bookmark::default(), blocks)?)
    }

    fn flushes(&self) -> Flushes {
        Flushes::default()
    }

    fn flush(&self, written: &Written, _: &Flushes) -> Result<(), Error> {
        let number = {
            let mut flushed = self.flushed.lock();
            flushed.push(written.tops.clone());
            flushed.len() - 1
        };
        let mut held = self.held.lock();
        while held.contains(&number) {
            self.released.wait(&mut held);
        }
        if self.failing.lock().contains(&number) {
            return Err(Error::Unusable { objset: ObjectId(ID), what: "not flushed" });
        }
        Ok(())
    }

    fn places(&self) -> LogPlaces {
        LogPlaces::default()
    }
}

fn tree() -> VdevTree {
    VdevTree::of_one(Arc::new(MemoryDevice::writable(SIZE)), SIZE - (5 << 20)).unwrap()
}

fn log() -> (Arc<Memory>, Arc<Zil>) {
    let zio = Arc::new(Zio::new(Arc::new(tree()), 1 << 20));
    let space = Arc::new(Bump::default());
    zio.set_space(space.clone());
    let memory = Arc::new(Memory {
        objset: Objset::open_writable(zio.clone(), ObjectId(ID), &BlkPtr::HOLE).unwrap(),
        zio,
        space,
        synced: AtomicU64::new(10),
        zil: Mutex::default(),
        freed: Mutex::default(),
        written: AtomicU64::new(0),
        flushed: Mutex::default(),
        broken: AtomicBool::new(false),
        panicking: AtomicBool::new(false),
        dirty: AtomicU64::new(0),
        held: Mutex::default(),
        released: Condvar::new(),
        failing: Mutex::default(),
    });
    let zil = Zil::new(memory.clone(), Arc::default());
    *memory.zil.lock() = Arc::downgrade(&zil);
    (memory, zil)
}

/// As [`log`], with a chain that has begun.
fn begun() -> (Arc<Memory>, Arc<Zil>) {
    let (memory, zil) = log();
    truncate(&memory, &zil, ObjectId(1), true);
    zil.commit(None).unwrap();
    assert_eq!(memory.written.load(Ordering::Relaxed), 0, "the txg that began the chain had all");
    (memory, zil)
}

fn truncate(memory: &Memory, zil: &Zil, foid: ObjectId, sync: bool) {
    let record = Record::Truncate { foid, offset: foid.0 * 10, length: 1 }.encode(TxType::Truncate);
    zil.assign(&memory.tx(), Itx { record, object: Some(foid), sync, data: ItxData::InRecord });
}

fn write(memory: &Memory, zil: &Zil, foid: ObjectId, offset: u64, len: u64, data: ItxData) {
    let write = Write { foid, offset, length: len, blkptr: BlkPtr::HOLE, data: None };
    let record = Record::Write(write).encode(TxType::Write);
    zil.assign(&memory.tx(), Itx { record, object: Some(foid), sync: false, data });
}

/// Closes the log, and checks that each block was freed exactly once.
fn all_is_freed_once(memory: &Memory, zil: &Zil) {
    zil.close();
    memory.sync();
    let freed = memory.freed.lock();
    let places: BTreeSet<u64> = freed.iter().map(|bp| bp.dva(0).offset()).collect();
    assert_eq!(places.len(), freed.len(), "no block twice");
    let bytes: u64 = freed.iter().map(|bp| bp.dva(0).asize()).sum();
    assert_eq!(bytes, memory.space.at.load(Ordering::Relaxed), "all that was allocated");
}

/// Returns the objects that the records of the log name, in order.
fn logged(memory: &Memory) -> Vec<ObjectId> {
    let log = read_log(&memory.objset);
    assert!(matches!(log.summary.end, ChainEnd::NotWritten(_) | ChainEnd::Hole), "{:?}", log.summary.end);
    let seqs: Vec<u64> = log.records().map(|record| record.header.seq).collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
    let of = |record: Record<'_>| match record {
        Record::Truncate { foid, .. } => foid,
        Record::Write(write) => write.foid,
        other => panic!("{other:?}"),
    };
    log.records().map(|record| of(record.decode().unwrap())).collect()
}

/// A file whose byte at `n` is the low byte of `n` / 7; object 9 does not exist.
struct File;

fn content(offset: u64, buf: &mut [u8]) {
    buf.iter_mut().zip(offset..).for_each(|(byte, n)| *byte = (n / 7) as u8);
}

impl WriteSource for File {
    fn copy(&self, object: ObjectId, _: u64, offset: u64, buf: &mut [u8]) -> Result<Got, dmu::Error> {
        match object {
            ObjectId(8) => return Err(dmu::Error::NoObject { objset: ObjectId(ID), object }),
            ObjectId(9) => return Ok(Got::Gone),
            _ => content(offset, buf),
        }
        Ok(Got::Data)
    }

    fn write_block(&self, object: ObjectId, _: u64, _: u64, _: u64, txg: Txg) -> Result<BlockGot, dmu::Error> {
        let mut bp = BlkPtr::HOLE;
        let dva = Dva::new(object.0, 0, 512, false);
        (bp.words[0], bp.words[1], bp.words[10]) = (dva.word0, dva.word1, txg.0);
        Ok(match object {
            ObjectId(20) => BlockGot::Block(bp),
            ObjectId(21) => BlockGot::Already,
            ObjectId(22) => BlockGot::Copy,
            _ => BlockGot::Gone,
        })
    }
}

#[test]
fn what_is_committed_is_in_the_chain_in_order_and_goes_with_its_txg() {
    let (memory, zil) = begun();
    assert_eq!(logged(&memory), []);
    truncate(&memory, &zil, ObjectId(5), true);
    truncate(&memory, &zil, ObjectId(3), false);
    truncate(&memory, &zil, ObjectId(4), false);
    truncate(&memory, &zil, ObjectId(5), true);
    zil.commit(Some(ObjectId(4))).unwrap();
    assert_eq!(
        logged(&memory),
        [5, 5, 4].map(ObjectId),
        "what waits for its object comes last, that of others not at all"
    );
    zil.commit(Some(ObjectId(4))).unwrap();
    assert_eq!(memory.flushed.lock().len(), 1, "there is nothing new");
    truncate(&memory, &zil, ObjectId(3), true);
    zil.commit(None).unwrap();
    assert_eq!(logged(&memory), [5, 5, 4, 3, 3].map(ObjectId));
    assert!(memory.flushed.lock().iter().all(|vdevs| vdevs.iter().eq([&0])));
    memory.sync();
    assert_eq!(logged(&memory), []);
    assert_eq!(memory.freed.lock().len(), 2);
    assert!(!zil.is_busy());
    truncate(&memory, &zil, ObjectId(6), true);
    zil.commit(None).unwrap();
    assert_eq!(logged(&memory), [6].map(ObjectId), "the chain goes on");
    zil.close();
    memory.sync();
    assert_eq!(memory.objset.phys().zil_header, ZilHeader::empty());
    assert_eq!(memory.freed.lock().len(), 4, "that without content, too");
}

#[test]
fn a_long_write_is_cut_over_blocks_and_can_be_put_together() {
    let (memory, zil) = begun();
    let source: Arc<dyn WriteSource> = Arc::new(File);
    zil.set_source(Arc::downgrade(&source));
    let data = |offset, len| ItxData::NeedCopy { offset, len, generation: 1 };
    truncate(&memory, &zil, ObjectId(2), false);
    write(&memory, &zil, ObjectId(2), 1001, 300_003, data(1001, 300_003));
    write(&memory, &zil, ObjectId(9), 0, 5000, data(0, 5000));
    zil.commit(None).unwrap();
    let log = read_log(&memory.objset);
    let mut at = 1001;
    for record in log.records().skip(1) {
        let Record::Write(write) = record.decode().unwrap() else { panic!("{record:?}") };
        let mut expected = vec![0; write.length as usize];
        content(at, &mut expected);
        assert_eq!((write.foid, write.offset), (ObjectId(2), at));
        assert!(write.data.unwrap() == expected);
        at += write.length;
    }
    assert_eq!(at, 301_004);
    assert!(log.summary.blocks >= 4, "a small block, and three of at most 128 KiB: {}", log.summary.blocks);
    assert_eq!(memory.flushed.lock().len(), 1, "all blocks share one flush");
    assert_eq!(zil.stats.itx_needcopy_bytes.get(), 305_008, "whole words, and what then is gone, as OpenZFS has it");
    // the next burst is expected to be like it
    zil.commit(None).unwrap();
    memory.sync();
    (0..8).for_each(|_| {
        write(&memory, &zil, ObjectId(2), 0, 6000, data(0, 6000));
        zil.commit(None).unwrap();
    });
    let blocks = memory.written.load(Ordering::Relaxed);
    write(&memory, &zil, ObjectId(2), 0, 6000, data(0, 6000));
    zil.commit(None).unwrap();
    assert_eq!(memory.written.load(Ordering::Relaxed), blocks + 1);
}

/// Holds a commit in its flush until `work` returns; `work` starts commits meanwhile: those of objects 0 to 15, and one without
/// changes.
fn during_a_flush(work: impl FnOnce(&Memory, &dyn Fn() -> usize)) -> (Arc<Memory>, Arc<Zil>) {
    let (memory, zil) = begun();
    memory.held.lock().insert(0);
    std::thread::scope(|scope| {
        let (memory, zil) = (&memory, &zil);
        truncate(memory, zil, ObjectId(100), true);
        let mut commits = vec![scope.spawn(|| zil.commit(Some(ObjectId(100))).unwrap())];
        memory.await_flushes(1);
        commits.push(scope.spawn(|| zil.commit(None).unwrap()));
        while zil.stats.commit_count.get() < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        for n in 0..16 {
            truncate(memory, zil, ObjectId(n), false);
            commits.push(scope.spawn(move || zil.commit(Some(ObjectId(n))).unwrap()));
        }
        while !zil.pending.lock().has_waiting(16) {
            std::thread::sleep(Duration::from_millis(1));
        }
        work(memory, &|| commits.iter().filter(|commit| commit.is_finished()).count());
    });
    (memory, zil)
}

#[test]
fn who_comes_while_a_batch_is_on_its_way_shares_the_next_flush() {
    let (memory, zil) = during_a_flush(|memory, finished| {
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!((memory.written.load(Ordering::Relaxed), finished()), (1, 0), "one batch at a time");
        memory.release(0);
    });
    assert_eq!(memory.flushed.lock().len(), 2);
    let all = logged(&memory);
    assert_eq!(all.first(), Some(&ObjectId(100)));
    assert!(all.iter().copied().collect::<BTreeSet<_>>().into_iter().eq((0..16).chain([100]).map(ObjectId)), "{all:?}");
    assert_eq!((memory.synced(), zil.stats.commit_error_count.get()), (Txg(11), 0));
    assert_eq!(zil.stats.commit_writer_count.get(), 3, "with the one that began the chain");
    assert_eq!(zil.stats.commit_count.get(), 19);
    memory.sync();
    assert!(!zil.is_busy());
}

#[test]
fn much_that_is_most_of_what_is_dirty_is_not_logged_but_its_txg_waited_for() {
    let (memory, zil) = begun();
    let source: Arc<dyn WriteSource> = Arc::new(File);
    zil.set_source(Arc::downgrade(&source));
    let len = 1 << 20;
    let bring = |count: u64, dirty: u64, foid: u64| {
        for n in 0..count {
            let data = match n % 2 {
                0 => ItxData::NeedCopy { offset: n * len, len, generation: 1 },
                _ => ItxData::Indirect { offset: n * len, len, generation: 1 },
            };
            write(&memory, &zil, ObjectId(foid), n * len, len, data);
        }
        memory.dirty.store(dirty, Ordering::Relaxed);
        let (txg, blocks) = (memory.tx().txg(), memory.written.load(Ordering::Relaxed));
        zil.commit(Some(ObjectId(foid))).unwrap();
        (memory.synced() >= txg, memory.written.load(Ordering::Relaxed) > blocks)
    };
    assert_eq!(bring(15, 15 << 20, 20), (false, true), "it is not that much");
    assert_eq!(bring(16, 64 << 20, 20), (false, true), "others have more");
    assert_eq!(bring(16, 32 << 20, 20), (true, false));
    assert_eq!(bring(2, 2 << 20, 20), (false, true), "the chain goes on");
    memory.sync();
    all_is_freed_once(&memory, &zil);
}

#[test]
fn who_does_not_wait_is_told_by_the_one_who_writes() {
    let (memory, zil) = begun();
    let told = Arc::new(Mutex::new(Vec::new()));
    let then = |n: u64| -> Then {
        let told = told.clone();
        Box::new(move |safe| told.lock().push((n, safe)))
    };
    assert!(zil.commit_then(None, then(0)).is_none(), "there is nothing");
    assert_eq!(told.lock().pop(), Some((0, true)));
    truncate(&memory, &zil, ObjectId(1), false);
    truncate(&memory, &zil, ObjectId(2), false);
    let lead = zil.commit_then(Some(ObjectId(1)), then(1)).unwrap();
    assert!(zil.commit_then(Some(ObjectId(2)), then(2)).is_none());
    assert!(told.lock().is_empty() && logged(&memory).is_empty());
    lead.write();
    assert_eq!(*told.lock(), [(2, true), (1, true)]);
    assert_eq!((logged(&memory), memory.flushed.lock().len()), ([1, 2].map(ObjectId).to_vec(), 1));
    // a batch that fails is for nobody to rely on, and is written by whoever drops it
    memory.failing.lock().insert(1);
    truncate(&memory, &zil, ObjectId(3), false);
    let lead = zil.commit_then(Some(ObjectId(3)), then(3)).unwrap();
    assert!(zil.commit_then(None, then(4)).is_none());
    drop(lead);
    assert_eq!(told.lock().split_off(2), [(4, false), (3, false)]);
    zil.commit(Some(ObjectId(3))).unwrap();
    assert!(memory.synced() >= Txg(12), "by the txg");
    // a change that is not in the log
    zil.miss(&memory.tx(), ObjectId(5));
    assert!(zil.commit_then(Some(ObjectId(5)), then(5)).is_none());
    assert_eq!(told.lock().pop(), Some((5, false)));
}

#[test]
fn data_that_nobody_can_give_any_more_is_waited_for() {
    for data in [
        ItxData::NeedCopy { offset: 0, len: 512, generation: 1 },
        ItxData::Indirect { offset: 0, len: 512, generation: 1 },
    ] {
        let (memory, zil) = begun();
        zil.set_source(Weak::<File>::new());
        write(&memory, &zil, ObjectId(7), 0, 512, data);
        let txg = memory.tx().txg();
        zil.commit(Some(ObjectId(7))).unwrap();
        assert_eq!(memory.synced(), txg);
    }
}

#[test]
fn what_is_behind_a_flush_that_failed_is_waited_for_with_its_txg() {
    let (memory, zil) = during_a_flush(|memory, _| {
        memory.failing.lock().insert(0);
        memory.release(0);
    });
    assert!(memory.synced() > Txg(11));
    assert_eq!(zil.stats.commit_error_count.get(), 2, "its own, and that of the one who waited for it");
    memory.sync();
    assert_eq!((logged(&memory), memory.flushed.lock().len()), (vec![], 1));
    truncate(&memory, &zil, ObjectId(7), true);
    zil.commit(None).unwrap();
    truncate(&memory, &zil, ObjectId(8), true);
    zil.commit(None).unwrap();
    assert_eq!(logged(&memory).last(), Some(&ObjectId(8)), "another chain");
    all_is_freed_once(&memory, &zil);
}

#[test]
fn a_chain_that_begins_before_the_header_tells_of_the_end_of_the_last_frees_nothing_of_that() {
    let (memory, zil) = begun();
    zil.end(&mut zil.chain.lock());
    let ended = zil.sync(memory.tx().txg()).unwrap();
    memory.freed.lock().extend(ended.free);
    truncate(&memory, &zil, ObjectId(7), true);
    zil.commit(None).unwrap();
    all_is_freed_once(&memory, &zil);
}

#[test]
fn nothing_is_put_behind_what_a_leader_who_panicked_did_not_write() {
    let (memory, zil) = begun();
    memory.panicking.store(true, Ordering::Relaxed);
    truncate(&memory, &zil, ObjectId(6), true);
    std::thread::scope(|scope| scope.spawn(|| zil.commit(None)).join().unwrap_err());
    memory.panicking.store(false, Ordering::Relaxed);
    memory.sync();
    let txg = memory.tx().txg();
    truncate(&memory, &zil, ObjectId(7), true);
    zil.commit(None).unwrap();
    assert!(memory.synced() >= txg || logged(&memory) == [ObjectId(7)], "it is safe in one way or the other");
    truncate(&memory, &zil, ObjectId(8), true);
    zil.commit(None).unwrap();
    assert_eq!(logged(&memory), [8].map(ObjectId), "another chain");
}

#[test]
fn what_cannot_be_logged_is_waited_for() {
    let (memory, zil) = begun();
    let source: Arc<dyn WriteSource> = Arc::new(File);
    zil.set_source(Arc::downgrade(&source));
    let txg = memory.tx().txg();
    // the file cannot be read: the other records are logged
    write(&memory, &zil, ObjectId(8), 0, 100, ItxData::NeedCopy { offset: 0, len: 100, generation: 1 });
    truncate(&memory, &zil, ObjectId(3), true);
    zil.commit(None).unwrap();
    assert_eq!(memory.synced(), txg);
    assert_eq!(memory.written.load(Ordering::Relaxed), 1);
    // no space: the chain is unchanged
    memory.space.full.store(true, Ordering::Relaxed);
    truncate(&memory, &zil, ObjectId(4), true);
    zil.commit(None).unwrap();
    assert_eq!((memory.synced().0, logged(&memory)), (txg.0 + 1, vec![]));
    memory.space.full.store(false, Ordering::Relaxed);
    truncate(&memory, &zil, ObjectId(5), true);
    zil.commit(None).unwrap();
    assert_eq!((memory.synced().0, logged(&memory)), (txg.0 + 1, vec![ObjectId(5)]));
    // a device fails: the chain ends, and another begins
    memory.broken.store(true, Ordering::Relaxed);
    truncate(&memory, &zil, ObjectId(6), true);
    zil.commit(None).unwrap();
    assert_eq!(memory.objset.phys().zil_header, ZilHeader::empty());
    memory.broken.store(false, Ordering::Relaxed);
    truncate(&memory, &zil, ObjectId(7), true);
    zil.commit(None).unwrap();
    truncate(&memory, &zil, ObjectId(8), true);
    zil.commit(None).unwrap();
    assert_eq!(logged(&memory), [8].map(ObjectId));
    // a record longer than any block
    let now = memory.synced();
    let record = Record::AclV0 { foid: ObjectId(1), count: 0, aces: &vec![0; 200 << 10] }.encode(TxType::AclV0);
    zil.assign(&memory.tx(), Itx { record, object: None, sync: true, data: ItxData::InRecord });
    zil.commit(None).unwrap();
    assert_eq!(memory.synced().0, now.0 + 1);
    assert_eq!((zil.stats.commit_stall_count.get(), zil.stats.commit_error_count.get()), (1, 1));
}

#[test]
fn nothing_is_logged_of_what_is_gone_or_not_to_be_logged() {
    let (memory, zil) = begun();
    truncate(&memory, &zil, ObjectId(3), false);
    truncate(&memory, &zil, ObjectId(4), false);
    zil.forget(ObjectId(3));
    zil.commit(None).unwrap();
    assert_eq!(logged(&memory), [4].map(ObjectId));
    zil.set_policy(ZilPolicy { sync: SyncMode::Disabled, ..ZilPolicy::default() });
    truncate(&memory, &zil, ObjectId(5), true);
    zil.commit(None).unwrap();
    assert_eq!(logged(&memory), [4].map(ObjectId));
    let before = memory.synced();
    zil.set_policy(ZilPolicy::default());
    zil.set_replaying(true);
    truncate(&memory, &zil, ObjectId(6), true);
    zil.set_replaying(false);
    zil.commit(None).unwrap();
    // what was not logged is waited for with its txg
    assert!(memory.synced() > before && logged(&memory).is_empty());
}

#[test]
fn blocks_in_their_place_are_pointed_at_and_flushed() {
    let (memory, zil) = begun();
    let source: Arc<dyn WriteSource> = Arc::new(File);
    zil.set_source(Arc::downgrade(&source));
    for object in 20..24 {
        write(&memory, &zil, ObjectId(object), 0, 512, ItxData::Indirect { offset: 0, len: 512, generation: 1 });
    }
    let txg = memory.tx().txg();
    zil.commit(Some(ObjectId(20))).unwrap();
    assert_eq!(memory.flushed.lock().last().cloned().unwrap(), BTreeSet::from([0, 20]));
    let log = read_log(&memory.objset);
    let Record::Write(first) = log.records().next().unwrap().decode().unwrap() else { panic!() };
    assert_eq!((first.data, first.blkptr.dva(0).vdev(), first.blkptr.birth()), (None, 20, txg));
    zil.commit(None).unwrap();
    let log = read_log(&memory.objset);
    let kinds: Vec<TxType> = log.records().filter_map(|record| record.header.kind()).collect();
    assert_eq!(kinds, [TxType::Write, TxType::Write2, TxType::Write], "one that an older record has, and a copy");
    assert!(memory.synced() < txg);
    let (memory, zil) = begun();
    zil.set_source(Arc::downgrade(&source));
    for object in [22, 23] {
        write(&memory, &zil, ObjectId(object), 0, 512, ItxData::Indirect { offset: 0, len: 512, generation: 1 });
    }
    zil.commit(None).unwrap();
    let log = read_log(&memory.objset);
    let Record::Write(only) = log.records().next().unwrap().decode().unwrap() else { panic!() };
    assert_eq!((only.foid, only.data.map(<[u8]>::len), log.summary.records), (ObjectId(22), Some(512), 1));
}

#[test]
fn how_a_write_is_logged() {
    use WriteState::{Copied, Indirect, NeedCopy};
    let (latency, max) = (LogBias::Latency, 128 << 10);
    let none = LogPlaces::default();
    let of = |places, len, block, commit| policy::write_state(latency, places, max, len, block, commit);
    assert_eq!(of(none, 4096, 131_072, true), Copied);
    assert_eq!(of(none, 8192, 131_072, true), NeedCopy, "beyond zil_maxcopied");
    assert_eq!(of(none, 4096, 131_072, false), NeedCopy);
    assert_eq!(of(none, 131_072, 131_072, true), Indirect);
    assert_eq!(of(none, 32_768, 131_072, true), NeedCopy, "less than half of the block");
    assert_eq!(of(none, 32_768, 131_072, false), Indirect);
    let slog = LogPlaces { slog: true, ..none };
    assert_eq!(of(slog, 131_072, 131_072, true), NeedCopy);
    let special = LogPlaces { special_small: Some(32_768), ..none };
    assert_eq!(of(special, 131_072, 131_072, true), NeedCopy);
    assert_eq!(of(special, 32_768, 32_768, true), Indirect);
    assert_eq!(policy::write_state(LogBias::Throughput, slog, max, 1, 512, true), Indirect);
}
