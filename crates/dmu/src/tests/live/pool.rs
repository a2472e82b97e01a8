//! A pool in memory that can be written: space is handed out one block behind the other and never again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use base::{Endian, ObjectId, Txg};
use ondisk::{BlkPtr, Dva, ObjectType, ObjsetType};
use parking_lot::Mutex;
use vdev::{Device, MemoryDevice, VdevTree};
use zio::{AllocError, AllocRequest, SpaceSource, Zio};

use crate::sa::SaTable;
use crate::{BlockOwner, NewObject, Object, Objset, SyncCx, Tx, TxHold, UsedBy, Visit, Walk, WritePolicy, Zap};

/// Bytes of the device.
pub(crate) const SIZE: u64 = 512 << 20;

/// Space without end.
struct Bump {
    next: AtomicU64,
    size: u64,
    /// Allocations left until an error; negative for none.
    left: Arc<AtomicI64>,
}

/// Space behind the first `next` bytes of a device of `size`.
pub(crate) fn space(next: u64, size: u64) -> Arc<dyn SpaceSource> {
    Arc::new(Bump { next: AtomicU64::new(next), size, left: Arc::new(AtomicI64::new(-1)) })
}

impl SpaceSource for Bump {
    fn allocate(&self, req: &AllocRequest<'_>) -> Result<Dva, AllocError> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Err(AllocError::Failed("the test wants it".to_owned()));
        }
        let asize = self.asize(0, req.psize);
        let at = self.next.fetch_add(asize, Ordering::Relaxed);
        if at + asize > self.size { Err(AllocError::NoSpace) } else { Ok(Dva::new(0, at, asize, false)) }
    }

    fn release(&self, _: &Dva, _: Txg) {}

    fn free(&self, _: Txg, _: &Dva, _: Txg) {}

    fn asize(&self, _: u64, psize: u64) -> u64 {
        psize.next_multiple_of(512)
    }
}

/// A dataset owner's record: every block of the dataset, once.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<HashMap<BlkPtr, i64>>);

/// The identity of a block: a block may be overwritten in place.
fn identity(bp: &BlkPtr) -> BlkPtr {
    let mut id = *bp;
    if !bp.is_embedded() {
        (id.words[6], id.words[11]) = (0, 0);
        id.words[12..].fill(0);
    }
    id
}

impl BlockOwner for Ledger {
    fn born(&self, bp: &BlkPtr) {
        assert!(!bp.is_hole());
        *self.0.lock().entry(identity(bp)).or_default() += 1;
    }

    fn killed(&self, bp: &BlkPtr) {
        assert!(!bp.is_hole());
        let mut blocks = self.0.lock();
        let count = blocks.entry(identity(bp)).or_default();
        *count -= 1;
        if *count == 0 {
            blocks.remove(&identity(bp));
        }
    }
}

impl Ledger {
    /// The blocks of the set are those that were born and not killed.
    pub(crate) fn check(&self, os: &Arc<Objset>) {
        let mut seen: HashMap<BlkPtr, i64> = HashMap::new();
        os.walk(&mut |visit: &Visit<'_>| {
            assert!(visit.damage.is_none(), "{:?}", visit.damage);
            if !visit.bp.is_hole() {
                *seen.entry(identity(visit.bp)).or_default() += 1;
            }
            Walk::Into
        });
        let blocks = self.0.lock();
        for (bp, count) in &seen {
            assert_eq!(blocks.get(bp), Some(count), "in the set, not in the books: {bp:?}");
        }
        for (bp, count) in blocks.iter() {
            assert_eq!(seen.get(bp), Some(count), "in the books, not in the set: {bp:?}");
        }
    }
}

/// Counts dirty bytes and places.
#[derive(Default)]
pub(crate) struct Holds {
    pub(crate) dirty: AtomicI64,
    pub(crate) places: AtomicI64,
}

impl TxHold for Holds {
    fn release(&self, _: Txg) {
        self.places.fetch_sub(1, Ordering::SeqCst);
    }

    fn broken(&self, _: Txg, why: String) {
        assert!(std::thread::panicking(), "{why}");
    }

    fn dirtied(&self, _: Txg, bytes: u64) {
        self.dirty.fetch_add(bytes as i64, Ordering::SeqCst);
    }

    fn undirtied(&self, _: Txg, bytes: u64) {
        self.dirty.fetch_sub(bytes as i64, Ordering::SeqCst);
    }

    fn burdened(&self, _: Txg, _: u64) {
        // ends with the txg: nothing that could be left
    }
}

/// The pool and what is kept about one object set of it.
pub(crate) struct TestPool {
    pub(crate) zio: Arc<Zio>,
    pub(crate) ledger: Ledger,
    pub(crate) holds: Arc<Holds>,
    pub(crate) policy: WritePolicy,
    pub(crate) fail_after: Arc<AtomicI64>,
}

impl TestPool {
    /// An object set with a table of system attributes, in the object that is named second.
    pub(crate) fn with_attributes(&self, tx: &Tx) -> (Arc<Objset>, ObjectId, SaTable) {
        let os = Objset::create(self.zio.clone(), ObjectId(5), ObjsetType::Zfs, 0, tx).unwrap();
        let master = Zap::create(tx, &os, ObjectType::SA_MASTER_NODE).unwrap().object().id();
        let table = SaTable::setup(tx, &os, master).unwrap();
        (os, master, table)
    }

    pub(crate) fn new() -> TestPool {
        TestPool::on(Arc::new(MemoryDevice::writable(SIZE)))
    }

    /// A pool on a device of [`SIZE`].
    pub(crate) fn on(device: Arc<dyn Device>) -> TestPool {
        let tree = VdevTree::of_one(device, SIZE - (5 << 20)).unwrap();
        let zio = Arc::new(Zio::new(Arc::new(tree), 8 << 20));
        let fail_after = Arc::new(AtomicI64::new(-1));
        let next = AtomicU64::new(0);
        zio.set_space(Arc::new(Bump { next, size: SIZE - (5 << 20), left: fail_after.clone() }));
        let policy = WritePolicy::default();
        TestPool { zio, ledger: Ledger::default(), holds: Arc::default(), policy, fail_after }
    }

    pub(crate) fn tx(&self, txg: u64) -> Tx {
        self.holds.places.fetch_add(1, Ordering::SeqCst);
        Tx::held(Txg(txg), self.holds.clone())
    }

    pub(crate) fn cx(&self, txg: u64) -> SyncCx<'_> {
        SyncCx { txg: Txg(txg), pass: 1, owner: &self.ledger, policy: &self.policy, used: None, late: false }
    }

    pub(crate) fn sync(&self, os: &Arc<Objset>, txg: u64) -> BlkPtr {
        os.sync(&self.cx(txg)).unwrap()
    }

    pub(crate) fn sync_used(&self, os: &Arc<Objset>, txg: u64, used: &dyn UsedBy) -> BlkPtr {
        os.sync(&SyncCx { used: Some(used), ..self.cx(txg) }).unwrap()
    }

    /// The set as a reader finds it on disk, with nothing cached; its trees are checked.
    pub(crate) fn reopen(&self, bp: &BlkPtr) -> Arc<Objset> {
        self.zio.arc().clear();
        let os = Objset::open(self.zio.clone(), ObjectId(5), bp).unwrap();
        let mut objects = 0;
        for object in os.objects().map(Result::unwrap) {
            check_tree(&object);
            objects += 1;
        }
        assert_eq!(bp.fill(), objects, "fill count of the root block");
        os
    }
}

/// Fill counts, levels, types and the space used of an object are what its blocks say.
pub(crate) fn check_tree(object: &Object) {
    let dn = object.phys();
    let mut used = 0;
    let mut blocks: HashMap<(u8, u64), u64> = HashMap::new();
    let shift = dn.fanout_shift();
    object.walk(&mut |visit: &Visit<'_>| {
        assert!(visit.damage.is_none(), "{object:?}: {:?}", visit.damage);
        used += visit.bp.asize();
        if visit.bookmark.blkid == zio::Bookmark::SPILL_BLKID {
            return Walk::Into;
        }
        if visit.bp.is_hole() && visit.bp.birth_logical().0 != 0 {
            assert_eq!((visit.bp.level(), visit.bp.object_type()), (visit.level, dn.object_type));
        }
        if !visit.bp.is_hole() {
            assert_eq!((visit.bp.level(), visit.bp.object_type()), (visit.level, dn.object_type), "{object:?}");
            assert_eq!(visit.bp.endian(), Endian::Little);
            blocks.insert((visit.level, visit.bookmark.blkid), visit.bp.fill());
        }
        Walk::Into
    });
    assert_eq!(dn.used_bytes(), used, "space of {object:?}");
    let mut wanted: HashMap<(u8, u64), u64> = HashMap::new();
    for (_, blkid) in blocks.keys().filter(|(level, _)| *level == 0) {
        assert!(*blkid <= dn.maxblkid);
        for level in 0..dn.nlevels {
            *wanted.entry((level, blkid >> (u32::from(level) * shift))).or_default() += 1;
        }
    }
    assert_eq!(blocks, wanted, "fill counts of {object:?}");
    assert_ne!(dn.object_type, ObjectType::NONE);
}

/// A file with room for system attributes.
pub(crate) fn file(os: &Arc<Objset>, tx: &Tx, slots: usize) -> Object {
    let new = NewObject {
        object_type: ObjectType::PLAIN_FILE_CONTENTS,
        bonus_type: ObjectType::SA,
        bonus_len: slots * 512 - 192,
        slots,
        ..NewObject::default()
    };
    os.alloc_object(tx, &new).unwrap()
}
