//! Blocks that are written before the sync of their txg.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{ObjectId, Txg};
use codec::ChecksumKind;
use ondisk::{BlkPtr, ObjectType, ObjsetType};
use parking_lot::Mutex;
use zio::Bookmark;

use super::pool::TestPool;
use crate::testing::Rng;
use crate::{BlockOwner, NewObject, Object, Objset, SyncCx, SyncedBlock, WritePolicy};

const SIZE: u64 = 4096;
const BLOCK: usize = SIZE as usize;

fn plain() -> NewObject {
    NewObject {
        object_type: ObjectType::PLAIN_FILE_CONTENTS,
        block_size: SIZE,
        indirect_shift: 12,
        ..NewObject::default()
    }
}

fn noise(seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed);
    (0..SIZE).map(|_| rng.next() as u8).collect()
}

/// A set with objects 1 to 3, of ten blocks each, on disk since txg 4.
fn set(pool: &TestPool) -> Arc<Objset> {
    let tx = pool.tx(4);
    let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Other, 0, &tx).unwrap();
    for id in 1..4 {
        let object = os.claim_object(&tx, ObjectId(id), &plain()).unwrap();
        (0..10).for_each(|blkid| object.write(&tx, blkid * SIZE, &noise(id * 100 + blkid)).unwrap());
    }
    drop(tx);
    pool.sync(&os, 4);
    os
}

fn place(pool: &TestPool, object: &Object, blkid: u64, txg: u64) -> BlkPtr {
    match object.sync_block(blkid, Txg(txg), &pool.policy).unwrap() {
        SyncedBlock::Written(bp) => bp,
        other => panic!("block {blkid} of {object:?}: {other:?}"),
    }
}

/// Records the births and deaths that a sync reports, and passes them on.
struct Told<'a>(&'a TestPool, Mutex<Vec<(bool, BlkPtr)>>);

impl BlockOwner for Told<'_> {
    fn born(&self, bp: &BlkPtr) {
        self.1.lock().push((true, *bp));
        self.0.ledger.born(bp);
    }

    fn killed(&self, bp: &BlkPtr) {
        self.1.lock().push((false, *bp));
        self.0.ledger.killed(bp);
    }
}

impl Told<'_> {
    fn count(&self, born: bool, bp: &BlkPtr) -> usize {
        self.1.lock().iter().filter(|told| **told == (born, *bp)).count()
    }
}

#[test]
fn a_sync_takes_what_is_in_its_place_and_frees_what_is_not_wanted() {
    let pool = TestPool::new();
    let os = set(&pool);
    let objects: Vec<Object> = (1..4).map(|id| os.object(ObjectId(id)).unwrap()).collect();
    let [one, two, three] = &objects[..] else { unreachable!() };
    let tx = pool.tx(5);
    for object in &objects {
        (0..12).for_each(|blkid| object.write(&tx, blkid * SIZE, &noise(object.id().0 * 1000 + blkid)).unwrap());
    }
    let kept: BTreeMap<u64, BlkPtr> = (0..4).map(|blkid| (blkid, place(&pool, one, blkid, 5))).collect();
    for (blkid, bp) in &kept {
        assert_eq!((bp.birth(), bp.fill(), bp.lsize()), (Txg(5), 1, SIZE));
        let bm = Bookmark { objset: ObjectId(5), object: ObjectId(1), level: 0, blkid: *blkid };
        assert_eq!(pool.zio.read(bp, &bm).unwrap().to_vec(), noise(1000 + blkid));
        assert_eq!(one.sync_block(*blkid, Txg(5), &pool.policy).unwrap(), SyncedBlock::Already);
    }
    let mut lost = Vec::new();
    let mut lose = |object: &Object, blkid| lost.push(place(&pool, object, blkid, 5));
    // written over as a whole, in part, in a hole that is punched, behind a new end, by an older txg that comes late
    (4..9).chain(10..12).for_each(|blkid| lose(one, blkid));
    one.write(&tx, 4 * SIZE, &noise(1)).unwrap();
    one.write(&tx, 5 * SIZE + 17, &[1, 2, 3]).unwrap();
    one.free_range(&tx, 6 * SIZE, SIZE).unwrap();
    assert_eq!(one.sync_block(6, Txg(5), &pool.policy).unwrap(), SyncedBlock::Gone);
    lose(one, 4);
    one.write(&tx, 4 * SIZE, &noise(2)).unwrap();
    one.write(&tx, 7 * SIZE, &noise(3)).unwrap();
    one.modify_block(&tx, 8, |block| block[0] ^= 1).unwrap();
    one.free_range(&tx, 10 * SIZE, u64::MAX).unwrap();
    (0..3).for_each(|blkid| lose(two, blkid));
    os.free_object(&tx, ObjectId(2)).unwrap();
    drop(tx);
    // what a newer txg does leaves the older one's alone
    let seen = place(&pool, three, 0, 5);
    let tx = pool.tx(6);
    three.write(&tx, 0, &noise(7)).unwrap();
    three.free_range(&tx, 2 * SIZE, u64::MAX).unwrap();
    let newer = place(&pool, three, 0, 6);
    drop(tx);
    let want: Vec<Vec<u8>> = [one, three].map(|object| object.read_vec(0, BLOCK * 12).unwrap()).to_vec();

    // a sync that fails leaves all as it is
    let told = Told(&pool, Mutex::default());
    for fails in [0, 6] {
        pool.fail_after.store(fails, Ordering::SeqCst);
        os.sync(&SyncCx { owner: &told, ..pool.cx(5) }).unwrap_err();
    }
    pool.fail_after.store(-1, Ordering::SeqCst);
    assert!(told.1.lock().is_empty());
    let bp = os.sync(&SyncCx { owner: &told, ..pool.cx(5) }).unwrap();
    let there = pool.reopen(&bp);
    pool.ledger.check(&there);
    let on_disk = there.object(ObjectId(1)).unwrap();
    for (blkid, bp) in &kept {
        assert_eq!(on_disk.blkptr(0, *blkid).unwrap(), Some(*bp));
        assert_eq!((told.count(true, bp), told.count(false, bp)), (1, 0));
    }
    for bp in &lost {
        assert_eq!((told.count(true, bp), told.count(false, bp)), (1, 1), "{bp:?}");
    }
    assert_eq!(lost.len(), 11);
    assert_eq!(there.object(ObjectId(3)).unwrap().blkptr(0, 0).unwrap(), Some(seen));
    assert_eq!(one.read_vec(0, BLOCK * 12).unwrap(), want[0]);
    assert_eq!(three.read_vec(0, BLOCK * 12).unwrap(), want[1]);
    assert_eq!(three.sync_block(5, Txg(5), &pool.policy).unwrap(), SyncedBlock::Copy, "the sync has it");
    let there = pool.reopen(&pool.sync(&os, 6));
    assert_eq!(there.object(ObjectId(3)).unwrap().blkptr(0, 0).unwrap(), Some(newer));
    pool.ledger.check(&there);
    assert_eq!(there.object(ObjectId(1)).unwrap().read_vec(0, BLOCK * 12).unwrap(), want[0]);
    assert_eq!(pool.holds.dirty.load(Ordering::SeqCst), 0);
}

#[test]
fn a_change_that_comes_late_takes_the_place_of_a_newer_txgs() {
    let pool = TestPool::new();
    let os = set(&pool);
    let object = os.object(ObjectId(1)).unwrap();
    let (older, newer) = (pool.tx(5), pool.tx(6));
    object.write(&newer, 0, &noise(1)).unwrap();
    let lost = place(&pool, &object, 0, 6);
    object.write(&older, 0, &noise(2)).unwrap();
    drop((older, newer));
    pool.sync(&os, 5);
    let told = Told(&pool, Mutex::default());
    let bp = os.sync(&SyncCx { owner: &told, ..pool.cx(6) }).unwrap();
    assert_eq!((told.count(true, &lost), told.count(false, &lost)), (1, 1));
    let there = pool.reopen(&bp);
    pool.ledger.check(&there);
    assert_eq!(there.object(ObjectId(1)).unwrap().read_vec(0, BLOCK).unwrap(), noise(2));
}

#[test]
fn what_needs_no_place_or_must_not_have_one_yet() {
    let mut pool = TestPool::new();
    let os = set(&pool);
    let object = os.object(ObjectId(1)).unwrap();
    let tx = pool.tx(5);
    let mut small = vec![0; BLOCK];
    small[9] = 9;
    object.write(&tx, 0, &[0; BLOCK]).unwrap();
    object.write(&tx, SIZE, &small).unwrap();
    object.write(&tx, 2 * SIZE, &noise(1)).unwrap();
    drop(tx);
    let hole = place(&pool, &object, 0, 5);
    assert!(hole.is_hole());
    assert_eq!(hole.lsize(), SIZE);
    assert!(place(&pool, &object, 1, 5).is_embedded());
    let dedup = WritePolicy { dedup: Some((ChecksumKind::Sha256, false)), ..WritePolicy::default() };
    assert_eq!(object.sync_block(2, Txg(5), &dedup).unwrap(), SyncedBlock::Copy);
    assert_eq!(object.sync_block(3, Txg(5), &pool.policy).unwrap(), SyncedBlock::Copy, "not of this txg");
    let there = pool.reopen(&pool.sync(&os, 5));
    pool.ledger.check(&there);
    assert_eq!(object.read_vec(0, BLOCK * 2).unwrap(), [vec![0; BLOCK], small].concat());

    // strong checksums: what equals the block on disk stays where it is, if nothing comes between
    pool.policy.checksum = ChecksumKind::Sha256;
    let write = |txg: u64, blkid: u64, seed: u64| object.write(&pool.tx(txg), blkid * SIZE, &noise(seed)).unwrap();
    (0..4).for_each(|blkid| write(6, blkid, 50 + blkid));
    let bp = pool.sync(&os, 6);
    let before: Vec<BlkPtr> =
        (0..4).map(|n| pool.reopen(&bp).object(ObjectId(1)).unwrap().blkptr(0, n).unwrap().unwrap()).collect();
    // 0: the same again; 1: other content between; 2: a hole between; 3: the same, then another
    write(7, 1, 77);
    object.free_range(&pool.tx(7), 2 * SIZE, SIZE).unwrap();
    (0..4).for_each(|blkid| write(8, blkid, 50 + blkid));
    let now: Vec<BlkPtr> = (0..4).map(|blkid| place(&pool, &object, blkid, 8)).collect();
    assert_eq!((now[0], now[3]), (before[0], before[3]));
    assert!(now[1].birth() == Txg(8) && now[2].birth() == Txg(8));
    write(8, 3, 78);
    pool.sync(&os, 7);
    let there = pool.reopen(&pool.sync(&os, 8));
    pool.ledger.check(&there);
    let after = there.object(ObjectId(1)).unwrap();
    (0..3).for_each(|n| assert_eq!(after.blkptr(0, n).unwrap(), Some(now[n as usize])));
    assert_eq!(after.read_vec(3 * SIZE, BLOCK).unwrap(), noise(78));
    assert_eq!(pool.holds.dirty.load(Ordering::SeqCst), 0);
}

#[test]
fn threads_place_blocks_while_txgs_are_synced() {
    let pool = TestPool::new();
    let os = set(&pool);
    let open = parking_lot::RwLock::new(5u64);
    let done = AtomicBool::new(false);
    let placed = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for id in 1..4u64 {
            let (pool, os, open, done, placed) = (&pool, &os, &open, &done, &placed);
            scope.spawn(move || {
                let object = os.object(ObjectId(id)).unwrap();
                let mut rng = Rng(id);
                let mut now = vec![None; 10];
                while !done.load(Ordering::Relaxed) {
                    let txg = open.read();
                    let (tx, blkid, seed) = (pool.tx(*txg), rng.below(10), rng.next());
                    if rng.below(8) == 0 {
                        object.free_range(&tx, blkid as u64 * SIZE, SIZE).unwrap();
                        now[blkid] = Some(vec![0; BLOCK]);
                    } else {
                        object.write(&tx, blkid as u64 * SIZE, &noise(seed)).unwrap();
                        now[blkid] = Some(noise(seed));
                    }
                    let of = tx.txg();
                    drop((tx, txg));
                    // the txg may be quiescing or syncing by now
                    let got = object.sync_block(blkid as u64, of, &pool.policy).unwrap();
                    if let SyncedBlock::Written(bp) = got {
                        placed.fetch_add(1, Ordering::Relaxed);
                        let bm = Bookmark { objset: ObjectId(5), object: ObjectId(id), level: 0, blkid: blkid as u64 };
                        assert_eq!(Some(pool.zio.read(&bp, &bm).unwrap().to_vec()), now[blkid]);
                    }
                    let blkid = rng.below(10);
                    let got = object.read_vec(blkid as u64 * SIZE, BLOCK).unwrap();
                    assert!(now[blkid].as_ref().is_none_or(|want| *want == got));
                }
            });
        }
        for _ in 0..25 {
            std::thread::sleep(std::time::Duration::from_millis(4));
            let txg = {
                let mut open = open.write();
                *open += 1;
                *open - 1
            };
            let bp = pool.sync(&os, txg);
            pool.ledger.check(&pool.reopen(&bp));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(placed.load(Ordering::Relaxed) > 25);
    let last = *open.read();
    pool.ledger.check(&pool.reopen(&pool.sync(&os, last)));
    assert_eq!(pool.holds.dirty.load(Ordering::SeqCst), 0);
}
