//! Numbers of objects, and shapes of dnodes.

use std::sync::Arc;

use base::{ObjectId, Txg};
use ondisk::{BlkPtr, ObjectType, ObjsetType};

use super::pool::TestPool;
use crate::{Error, NewObject, Objset, Tx};

fn plain() -> NewObject {
    NewObject { object_type: ObjectType::PLAIN_FILE_CONTENTS, ..NewObject::default() }
}

fn create(pool: &TestPool, id: ObjectId) -> (Arc<Objset>, Tx) {
    let tx = Tx::syncing(Txg(4));
    (Objset::create(pool.zio.clone(), id, ObjsetType::Other, 0, &tx).unwrap(), tx)
}

#[test]
fn first_numbers_are_those_of_openzfs() {
    let pool = TestPool::new();
    let (os, tx) = create(&pool, ObjectId(5));
    assert_eq!(os.claim_object(&tx, ObjectId(1), &plain()).unwrap().id(), ObjectId(1));
    assert!(matches!(os.claim_object(&tx, ObjectId(1), &plain()), Err(Error::Exists { object: ObjectId(1), .. })));
    let ids: Vec<ObjectId> = (0..3).map(|_| os.alloc_object(&tx, &plain()).unwrap().id()).collect();
    assert_eq!(ids, [32, 33, 34].map(ObjectId));
    let large = NewObject { slots: 5, ..plain() };
    assert_eq!(os.alloc_object(&tx, &large).unwrap().id(), ObjectId(35));
    assert_eq!(os.alloc_object(&tx, &plain()).unwrap().id(), ObjectId(40));
    for taken in [0, 36, 39] {
        assert!(os.claim_object(&tx, ObjectId(taken), &plain()).is_err(), "{taken}");
        assert!(os.object(ObjectId(taken)).is_err() || taken == 0);
    }
    // a dnode does not cross the end of its block
    let huge = NewObject { slots: 32, ..plain() };
    assert_eq!(os.alloc_object(&tx, &huge).unwrap().id(), ObjectId(64));
    assert_eq!(os.alloc_object(&tx, &plain()).unwrap().id(), ObjectId(96));
    let bp = pool.sync(&os, 4);
    assert_eq!(bp.fill(), 8);
    assert_eq!(os.phys().meta_dnode.nlevels, 6, "of a dataset");
    assert_eq!(os.phys().meta_dnode.blkptr.len(), 3);
    assert!(os.next_object(ObjectId(40)).unwrap() == Some(ObjectId(64)));

    // a set that is opened again is filled from the bottom
    let os = Objset::open_writable(pool.zio.clone(), ObjectId(5), &bp).unwrap();
    let tx = Tx::syncing(Txg(5));
    let ids: Vec<ObjectId> = (0..31).map(|_| os.alloc_object(&tx, &plain()).unwrap().id()).collect();
    assert!(ids[..30].iter().copied().eq((2..32).map(ObjectId)) && ids[30] == ObjectId(41), "{ids:?}");
}

#[test]
fn a_number_is_free_when_its_object_is_gone_from_disk() {
    let pool = TestPool::new();
    let (os, tx) = create(&pool, ObjectId(5));
    let id = os.claim_object(&tx, ObjectId(7), &plain()).unwrap().id();
    let handle = os.object(id).unwrap();
    handle.write(&tx, 0, &[1; 5000]).unwrap();
    pool.sync(&os, 4);
    let tx = Tx::syncing(Txg(5));
    os.free_object(&tx, id).unwrap();
    assert!(matches!(os.claim_object(&tx, id, &plain()), Err(Error::Exists { .. })));
    assert!(matches!(handle.write(&tx, 0, &[1]), Err(Error::NoObject { .. })));
    assert!(handle.reload().unwrap_err().is_not_found());
    assert_eq!(handle.read_vec(0, 10).unwrap(), [0; 10]);
    let bp = pool.sync(&os, 5);
    assert_eq!((bp.fill(), os.next_object(ObjectId(0)).unwrap()), (0, None));
    pool.ledger.check(&pool.reopen(&bp));
    let tx = Tx::syncing(Txg(6));
    let again = os.claim_object(&tx, id, &plain()).unwrap();
    assert_eq!(again.read_vec(0, 10).unwrap(), [0; 10]);
    // made and freed within one txg: never on disk
    let short = os.alloc_object(&tx, &plain()).unwrap();
    short.write(&tx, 0, &[1; 5000]).unwrap();
    os.free_object(&tx, short.id()).unwrap();
    let bp = pool.sync(&os, 6);
    assert_eq!(bp.fill(), 1);
    pool.ledger.check(&pool.reopen(&bp));
}

#[test]
fn dnodes_are_shaped_as_openzfs_shapes_them() {
    let pool = TestPool::new();
    let (os, tx) = create(&pool, ObjectId(0));
    let shape = |bonus_type, bonus_len, slots| {
        let object = os.alloc_object(&tx, &NewObject { bonus_type, bonus_len, slots, ..plain() }).unwrap();
        object.phys().blkptr.len()
    };
    assert_eq!(shape(ObjectType::NONE, 0, 1), 3);
    assert_eq!(shape(ObjectType::DSL_DIR, 256, 1), 1);
    assert_eq!(shape(ObjectType::PLAIN_OTHER, 64, 1), 3);
    assert_eq!(shape(ObjectType::PLAIN_OTHER, 65, 1), 2);
    assert_eq!(shape(ObjectType::SA, 0, 1), 1);
    assert_eq!(shape(ObjectType::DSL_DATASET, 320, 2), 3);
    for (bonus_len, slots) in [(321, 1), (0, 33), (833, 2)] {
        let new = NewObject { bonus_type: ObjectType::PLAIN_OTHER, bonus_len, slots, ..plain() };
        assert!(matches!(os.alloc_object(&tx, &new), Err(Error::Refused { .. })));
    }
    pool.sync(&os, 4);
    assert_eq!(os.phys().meta_dnode.nlevels, 1, "of the MOS");
}

#[test]
fn a_set_open_for_reading_refuses_changes() {
    let pool = TestPool::new();
    let (os, tx) = create(&pool, ObjectId(5));
    os.claim_object(&tx, ObjectId(1), &plain()).unwrap();
    let bp = pool.sync(&os, 4);
    let os = pool.reopen(&bp);
    assert!(matches!(os.alloc_object(&tx, &plain()), Err(Error::ReadOnly { .. })));
    assert!(matches!(os.object(ObjectId(1)).unwrap().write(&tx, 0, &[1]), Err(Error::ReadOnly { .. })));
    assert!(os.sync(&pool.cx(4)).is_err() && !os.is_writable());
    let empty = Objset::open_writable(pool.zio.clone(), ObjectId(9), &BlkPtr::HOLE).unwrap();
    assert_eq!(empty.alloc_object(&tx, &plain()).unwrap().id(), ObjectId(32));
}

#[test]
fn a_spill_block_needs_room_for_its_pointer() {
    let pool = TestPool::new();
    let (os, tx) = create(&pool, ObjectId(5));
    // three pointers fill a dnode of one slot, even without a bonus buffer
    let full = os.alloc_object(&tx, &NewObject { block_size: 512, indirect_shift: 12, ..plain() }).unwrap();
    assert_eq!((full.phys().blkptr.len(), full.phys().bonus.len()), (3, 0));
    assert!(matches!(full.set_spill(&tx, vec![1; 512]), Err(Error::Refused { .. })));
    let large = os.alloc_object(&tx, &NewObject { slots: 2, ..plain() }).unwrap();
    large.set_spill(&tx, vec![1; 512]).unwrap();
}
