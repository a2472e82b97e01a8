//! Syncs: several in a txg, under way while others write, failed and repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Endian, ObjectId, Txg};
use ondisk::{DnodePhys, ObjectType, ObjsetPhys, ObjsetType, ZilHeader};

use parking_lot::Mutex;
use vdev::MemoryDevice;
use vdev::testing::{Call, Tapped};

use super::pool::{SIZE, TestPool};
use crate::testing::Rng;
use crate::{NewObject, Objset, Owner, Special, SyncCx, Tx, UsedBy, Zap};

fn new_object(bonus_len: usize) -> NewObject {
    NewObject {
        object_type: ObjectType::PLAIN_FILE_CONTENTS,
        block_size: 4096,
        indirect_shift: 12,
        bonus_type: ObjectType::PLAIN_OTHER,
        bonus_len,
        ..NewObject::default()
    }
}

#[test]
fn passes_write_what_became_dirty_since() {
    let pool = TestPool::new();
    let tx = Tx::syncing(Txg(4));
    let os = Objset::create(pool.zio.clone(), ObjectId::MOS, ObjsetType::Meta, 0, &tx).unwrap();
    let object = os.claim_object(&tx, ObjectId(1), &new_object(8)).unwrap();
    let mut rng = Rng(5);
    let mut bp = ondisk::BlkPtr::HOLE;
    for pass in 1..10u32 {
        let data: Vec<u8> = (0..4096).map(|_| rng.next() as u8).collect();
        object.write(&tx, 0, &data).unwrap();
        object.write(&tx, u64::from(pass) * 4096, &[pass as u8; 4096]).unwrap();
        assert!(os.is_dirty(Txg(4)));
        bp = os.sync(&SyncCx { pass, ..pool.cx(4) }).unwrap();
        assert!(!os.is_dirty(Txg(4)));
        assert_eq!(os.sync(&SyncCx { pass, ..pool.cx(4) }).unwrap(), bp, "nothing to do");
        assert_eq!(object.read_vec(0, 4096).unwrap(), data, "from the cache");
        let there = pool.reopen(&bp);
        assert_eq!(there.object(ObjectId(1)).unwrap().read_vec(0, 4096).unwrap(), data);
        assert_eq!(object.read_vec(0, 4096).unwrap(), data);
        pool.ledger.check(&there);
    }
    assert_eq!(bp.fill(), 1);
}

/// What the next read of a device waits for.
type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A pool whose device runs a hook at its next read.
fn hooked() -> (Arc<TestPool>, Hook) {
    let hook = Hook::default();
    let device = MemoryDevice::writable(SIZE);
    let tapped = {
        let hook = hook.clone();
        let pass = move |call: &Call| {
            let due = if let Call::Read(_) = call { hook.lock().take() } else { None };
            due.into_iter().for_each(|hook| hook());
            Ok(())
        };
        Tapped::new(Arc::new(device), pass)
    };
    (Arc::new(TestPool::on(Arc::new(tapped))), hook)
}

#[test]
fn what_is_written_behind_a_range_that_is_being_freed_stays() {
    let (pool, hook) = hooked();
    let tx = Tx::syncing(Txg(4));
    let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Other, 0, &tx).unwrap();
    let object = os.claim_object(&tx, ObjectId(1), &new_object(0)).unwrap();
    object.write(&tx, 0, &[1; 4096 * 8]).unwrap();
    pool.sync(&os, 4);
    pool.zio.arc().clear();
    let of = os.clone();
    *hook.lock() = Some(Box::new(move || {
        let object = of.object(ObjectId(1)).unwrap();
        object.write(&Tx::syncing(Txg(5)), 4096 * 8, &[2; 4096 * 2]).unwrap();
    }));
    // up to the end that the object has when the edge is read
    object.free_range(&Tx::syncing(Txg(5)), 4096 * 5 + 512, 4096 * 3 - 512).unwrap();
    assert!(hook.lock().is_none(), "it has read the device");
    let mut want = vec![1; 4096 * 5 + 512];
    want.resize(4096 * 8, 0);
    want.resize(4096 * 10, 2);
    assert_eq!(object.read_vec(0, 4096 * 10).unwrap(), want);
    let bp = pool.sync(&os, 5);
    let there = pool.reopen(&bp);
    assert_eq!(there.object(ObjectId(1)).unwrap().read_vec(0, 4096 * 10).unwrap(), want);
    pool.ledger.check(&there);
}

#[test]
fn what_a_sync_writes_while_a_search_reads_is_found() {
    let (pool, hook) = hooked();
    let tx = Tx::syncing(Txg(4));
    let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Other, 0, &tx).unwrap();
    let object = os.claim_object(&tx, ObjectId(1), &new_object(0)).unwrap();
    object.write(&tx, 4096 * 5000, &[1; 4096]).unwrap();
    pool.sync(&os, 4);
    for (txg, at, data) in [(5, 1500, true), (6, 5001, false)] {
        object.write(&Tx::syncing(Txg(txg)), 4096 * at, &[2; 4096]).unwrap();
        pool.zio.arc().clear();
        let (own, of) = (pool.clone(), os.clone());
        *hook.lock() = Some(Box::new(move || {
            own.sync(&of, txg);
        }));
        let found = if data { object.next_data(0).unwrap() } else { Some(object.next_hole(4096 * 5000).unwrap()) };
        assert!(hook.lock().is_none(), "it has read the device");
        assert_eq!(found, Some(4096 * if data { at } else { at + 1 }));
    }
}

#[test]
fn holes_tell_since_when() {
    let pool = TestPool::new();
    let tx = Tx::syncing(Txg(4));
    let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Other, 0, &tx).unwrap();
    let object = os.claim_object(&tx, ObjectId(1), &new_object(0)).unwrap();
    object.write(&tx, 0, &[3; 4096 * 200]).unwrap();
    pool.sync(&os, 4);
    let tx = Tx::syncing(Txg(5));
    object.free_range(&tx, 4096 * 2, 4096).unwrap();
    object.free_range(&tx, 4096 * 32, 4096 * 64).unwrap();
    object.write(&tx, 4096 * 150, &[0; 4096]).unwrap();
    let bp = pool.sync(&os, 5);
    let there = pool.reopen(&bp).object(ObjectId(1)).unwrap();
    for (level, blkid, lsize) in [(0, 2, 4096), (1, 1, 4096), (1, 2, 4096), (0, 150, 4096)] {
        let hole = there.blkptr(level, blkid).unwrap().unwrap();
        assert!(hole.is_hole() && hole.birth_logical() == Txg(5), "{level} {blkid}: {hole:?}");
        assert_eq!((hole.lsize(), hole.level()), (lsize, level));
    }
    assert_eq!(there.phys().maxblkid, 199);
    let tx = Tx::syncing(Txg(6));
    object.free_range(&tx, 4096 * 10, u64::MAX).unwrap();
    let bp = pool.sync(&os, 6);
    let there = pool.reopen(&bp);
    assert_eq!(there.object(ObjectId(1)).unwrap().phys().maxblkid, 9);
    pool.ledger.check(&there);
}

#[test]
fn a_failed_sync_can_be_repeated() {
    let pool = TestPool::new();
    let tx = pool.tx(4);
    let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Other, 0, &tx).unwrap();
    let object = os.claim_object(&tx, ObjectId(1), &new_object(16)).unwrap();
    object.write(&tx, 0, &[3; 4096 * 100]).unwrap();
    let gone = os.claim_object(&tx, ObjectId(2), &new_object(0)).unwrap();
    gone.write(&tx, 0, &[3; 4096 * 100]).unwrap();
    drop(tx);
    pool.sync(&os, 4);
    let tx = pool.tx(5);
    object.write(&tx, 4096 * 50, &[9; 4096 * 100]).unwrap();
    object.free_range(&tx, 0, 4096 * 40).unwrap();
    object.set_bonus(&tx, &[5; 20]).unwrap();
    os.free_object(&tx, ObjectId(2)).unwrap();
    drop(tx);
    let want = object.read_vec(0, 4096 * 200).unwrap();
    let mut fails = 0;
    let bp = loop {
        pool.fail_after.store(fails, Ordering::SeqCst);
        match os.sync(&pool.cx(5)) {
            Ok(bp) => break bp,
            Err(_) => assert!(os.is_dirty(Txg(5))),
        }
        assert_eq!(object.read_vec(0, 4096 * 200).unwrap(), want);
        fails += 7;
    };
    pool.fail_after.store(-1, Ordering::SeqCst);
    assert!(fails > 14);
    let there = pool.reopen(&bp);
    pool.ledger.check(&there);
    assert_eq!(there.object(ObjectId(1)).unwrap().read_vec(0, 4096 * 200).unwrap(), want);
    assert_eq!(there.object(ObjectId(1)).unwrap().bonus(), [5; 20]);
    assert!(there.object(ObjectId(2)).is_err());
    assert_eq!(pool.holds.dirty.load(Ordering::SeqCst), 0);
}

#[test]
fn threads_write_while_txgs_are_synced() {
    const BLOCKS: u64 = 300;
    let pool = TestPool::new();
    let tx = pool.tx(4);
    let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Other, 0, &tx).unwrap();
    let ids: Vec<ObjectId> = (0..3).map(|_| os.alloc_object(&tx, &new_object(8)).unwrap().id()).collect();
    drop(tx);
    // the txg that writers may enter; a write lock waits for those that are in
    let open = parking_lot::RwLock::new(4u64);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for id in &ids {
            let (pool, os, open, done) = (&pool, &os, &open, &done);
            scope.spawn(move || {
                let object = os.object(*id).unwrap();
                let mut rng = Rng(id.0);
                let mut now = vec![0u64; BLOCKS as usize];
                for round in 1u64.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    while pool.holds.dirty.load(Ordering::Relaxed) > 4 << 20 && !done.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                    let txg = open.read();
                    let tx = pool.tx(*txg);
                    for _ in 0..20 {
                        let blkid = rng.below(BLOCKS as usize) as u64;
                        object.write(&tx, blkid * 4096 + 8, &round.to_le_bytes()).unwrap();
                        now[blkid as usize] = round;
                    }
                    object.set_bonus(&tx, &round.to_le_bytes()).unwrap();
                    if round % 16 == 0 {
                        let more = os.alloc_object(&tx, &new_object(0)).unwrap();
                        os.free_object(&tx, more.id()).unwrap();
                    }
                    drop(tx);
                    drop(txg);
                    let blkid = rng.below(BLOCKS as usize);
                    let got = object.read_u64s(blkid as u64 * 512 + 1, 1).unwrap();
                    assert_eq!(got, [now[blkid]], "object {id} block {blkid} round {round}");
                    assert_eq!(object.reload().unwrap().bonus(), round.to_le_bytes());
                }
            });
        }
        for _ in 0..12 {
            let txg = {
                let mut open = open.write();
                *open += 1;
                *open - 1
            };
            let bp = pool.sync(&os, txg);
            let there = pool.reopen(&bp);
            pool.ledger.check(&there);
            for id in &ids {
                // every block says a round up to the one in the bonus buffer, at least one says that
                let object = there.object(*id).unwrap();
                let round = u64::from_le_bytes(object.bonus().try_into().unwrap());
                let words = object.read_u64s(0, 512 * BLOCKS as usize).unwrap();
                let rounds: Vec<u64> = words.iter().skip(1).step_by(512).copied().collect();
                assert_eq!(rounds.iter().max().copied(), Some(round));
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let last = *open.read();
    let bp = pool.sync(&os, last);
    pool.ledger.check(&pool.reopen(&bp));
    assert_eq!(pool.holds.dirty.load(Ordering::SeqCst), 0);
}

/// The owner stands in the first bytes of the bonus buffer.
struct ByFirstBytes;

impl UsedBy for ByFirstBytes {
    fn owner(&self, _: ObjectType, bonus: &[u8], _: Endian) -> Option<Owner> {
        let byte = |n: usize| bonus.get(n).map(|byte| u64::from(*byte));
        Some(Owner { uid: byte(0)?, gid: byte(1)?, projid: byte(2)? })
    }
}

#[test]
fn space_is_accounted_to_owners() {
    let pool = TestPool::new();
    let tx = Tx::syncing(Txg(4));
    let flags = ObjsetPhys::FLAG_USERACCOUNTING | ObjsetPhys::FLAG_USEROBJACCOUNTING;
    let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Zfs, flags, &tx).unwrap();
    let mut rng = Rng(9);
    for n in 0..6u8 {
        let object = os.alloc_object(&tx, &new_object(3)).unwrap();
        object.set_bonus(&tx, &[n % 3 + 10, 100, 0]).unwrap();
        let data: Vec<u8> = (0..20_000 * usize::from(n + 1)).map(|_| rng.next() as u8).collect();
        object.write(&tx, 0, &data).unwrap();
    }
    let check = |bp: &ondisk::BlkPtr| {
        let there = pool.reopen(bp);
        pool.ledger.check(&there);
        let mut want = std::collections::BTreeMap::<String, u64>::new();
        for object in there.objects().map(Result::unwrap) {
            let uid = object.bonus()[0];
            assert_ne!(object.phys().flags & DnodePhys::FLAG_USERUSED_ACCOUNTED, 0);
            *want.entry(format!("{uid:x}")).or_default() += object.phys().used_bytes() + 512;
            *want.entry(format!("obj-{uid:x}")).or_default() += 1;
        }
        let zap = Zap::open(there.special(Special::UserUsed).unwrap()).unwrap();
        let got: std::collections::BTreeMap<String, u64> = zap
            .entries()
            .unwrap()
            .map(Result::unwrap)
            .map(|entry| (String::from_utf8_lossy(&entry.name).into_owned(), entry.value.first()))
            .collect();
        assert_eq!(got, want);
        assert!(there.special(Special::GroupUsed).is_some() && there.special(Special::ProjectUsed).is_some());
        assert_eq!(there.phys().flags, flags);
    };
    check(&pool.sync_used(&os, 4, &ByFirstBytes));
    let tx = Tx::syncing(Txg(5));
    let ids: Vec<ObjectId> = os.objects().map(|object| object.unwrap().id()).collect();
    os.free_object(&tx, ids[0]).unwrap();
    os.object(ids[1]).unwrap().set_bonus(&tx, &[12, 1, 1]).unwrap();
    os.object(ids[2]).unwrap().free_range(&tx, 0, u64::MAX).unwrap();
    check(&pool.sync_used(&os, 5, &ByFirstBytes));
}

#[test]
fn the_root_block_keeps_the_log_and_the_flags() {
    let pool = TestPool::new();
    let tx = Tx::syncing(Txg(4));
    let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Zfs, 0, &tx).unwrap();
    let bp = pool.sync(&os, 4);
    assert_eq!((bp.lsize(), bp.fill()), (4096, 0));
    let tx = Tx::syncing(Txg(5));
    let header = ZilHeader { replay_seq: 17, claim_txg: Txg(3), ..ZilHeader::empty() };
    os.set_zil_header(&tx, header.clone()).unwrap();
    os.set_flags(&tx, 3).unwrap();
    assert_eq!(os.phys().zil_header, header);
    let there = pool.reopen(&pool.sync(&os, 5));
    assert_eq!((there.phys().zil_header.clone(), there.phys().flags), (header, 3));
    assert_eq!(there.phys().os_type, ObjsetType::Zfs);
    let _: Arc<ObjsetPhys> = there.phys();
}
