//! Tables that change, txg by txg, against a model: blocks are written and freed through the pipeline.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base::{Env, Guid, ObjectId, Txg};
use codec::ChecksumKind;
use dmu::{BlockOwner, NewZap, Objset, SyncCx, Tx, WritePolicy, Zap};
use nvlist::NvList;
use ondisk::ddt::DdtKey;
use ondisk::{BlkPtr, Dva, ObjectType, ObjsetType};
use vdev::{Device, MemoryDevice, VdevConfig, VdevTree};
use zio::{
    AllocError, AllocRequest, Bookmark, Buf, CloneTable as _, DedupTable as _, Payload, SpaceSource, WriteCx,
    WriteProps, WriteReq, Zio,
};

use super::table::STATS;
use super::{FeatureUse, LiveTables, Table, TableSync};
use crate::Error;
use crate::spa::brt::LiveClones;
use crate::spa::mos::Mos;

const DISK: u64 = 96 << 20;

/// Hands out one place behind the other, and knows which are in use.
#[derive(Default)]
struct Bump {
    next: Mutex<u64>,
    live: Mutex<BTreeMap<u64, u64>>,
}

impl SpaceSource for Bump {
    fn allocate(&self, req: &AllocRequest<'_>) -> Result<Dva, AllocError> {
        let (mut next, asize) = (self.next.lock().unwrap(), self.asize(0, req.psize));
        let at = *next;
        *next += asize;
        if *next > DISK - (5 << 20) {
            return Err(AllocError::NoSpace);
        }
        self.live.lock().unwrap().insert(at, asize);
        Ok(Dva::new(0, at, asize, false))
    }

    fn release(&self, dva: &Dva, txg: Txg) {
        self.free(txg, dva, txg);
    }

    fn free(&self, _txg: Txg, dva: &Dva, _birth: Txg) {
        assert_eq!(self.live.lock().unwrap().remove(&dva.offset()), Some(dva.asize()), "freed twice: {dva}");
    }

    fn asize(&self, _vdev: u64, psize: u64) -> u64 {
        psize.next_multiple_of(512)
    }
}

#[derive(Default)]
struct Features {
    enabled: bool,
    counts: Mutex<BTreeMap<String, i64>>,
}

impl Features {
    fn count(&self, name: &str) -> i64 {
        self.counts.lock().unwrap().get(name).copied().unwrap_or(0)
    }

    fn add(&self, name: &str, by: i64) {
        *self.counts.lock().unwrap().entry(name.to_owned()).or_default() += by;
    }
}

impl FeatureUse for Features {
    fn enabled(&self, _name: &str) -> Result<bool, Error> {
        Ok(self.enabled)
    }

    fn active(&self, name: &str) -> Result<bool, Error> {
        Ok(self.count(name) > 0)
    }

    fn increment(&self, name: &str) -> Result<(), Error> {
        self.add(name, 1);
        Ok(())
    }

    fn decrement(&self, name: &str) -> Result<(), Error> {
        self.add(name, -1);
        Ok(())
    }
}

#[derive(Default)]
struct Owner(Mutex<Vec<BlkPtr>>);

impl BlockOwner for Owner {
    fn born(&self, _bp: &BlkPtr) {}

    fn killed(&self, bp: &BlkPtr) {
        self.0.lock().unwrap().push(*bp);
    }
}

/// A pool that has nothing but a MOS and its tables.
struct Small {
    zio: Arc<Zio>,
    space: Arc<Bump>,
    mos: Arc<Objset>,
    tables: Arc<LiveTables>,
    clones: Arc<LiveClones>,
    features: Features,
    txg: Txg,
}

fn node(kind: &str, id: u64, guid: u64) -> NvList {
    let mut list = NvList::new();
    list.insert("type", kind);
    list.insert("id", id);
    list.insert("guid", guid);
    list
}

impl Small {
    fn new(fast: bool) -> Small {
        let mut disk = node("disk", 0, 10);
        disk.insert("path", "/dev/a");
        disk.insert("ashift", 9u64);
        disk.insert("asize", DISK - (5 << 20));
        disk.insert("metaslab_shift", 24u64);
        let mut root = node("root", 0, 1);
        root.insert("children", vec![disk]);
        let device = MemoryDevice::writable(DISK);
        let found = |_: Guid| Some(Arc::new(device.clone()) as Arc<dyn Device>);
        let tree = VdevTree::open(&VdevConfig::parse(&root).unwrap(), &found).unwrap();
        let zio = Arc::new(Zio::new(Arc::new(tree), 16 << 20));
        let space = Arc::new(Bump::default());
        zio.set_space(space.clone());
        zio.set_env(Env::seeded(1));
        let txg = Txg(4);
        let tx = Tx::syncing(txg);
        let mos = Objset::create(zio.clone(), ObjectId::MOS, ObjsetType::Meta, 0, &tx).unwrap();
        let directory = NewZap {
            object_type: ObjectType::OBJECT_DIRECTORY,
            id: Some(ObjectId::POOL_DIRECTORY),
            ..NewZap::default()
        };
        Zap::create_with(&tx, &mos, &directory).unwrap();
        let features = Features { enabled: true, ..Features::default() };
        let tables = Arc::new(LiveTables::open(mos.clone()).unwrap());
        tables.set_fast(fast);
        let clones = Arc::new(LiveClones::open(mos.clone()).unwrap());
        let mut small = Small { zio, space, mos, tables, clones, features, txg };
        small.attach(fast);
        small
    }

    fn attach(&mut self, fast: bool) {
        self.tables.set_fast(fast);
        self.zio.set_dedup(self.tables.clone());
        self.zio.set_clones(self.clones.clone());
    }

    /// Opens the tables anew, from the MOS.
    fn reopen(&mut self, fast: bool) {
        self.tables = Arc::new(LiveTables::open(self.mos.clone()).unwrap());
        self.clones = Arc::new(LiveClones::open(self.mos.clone()).unwrap());
        self.attach(fast);
    }

    fn view(&self) -> Mos {
        Mos::open(self.mos.clone()).unwrap()
    }

    /// Syncs the txg and goes on to the next.
    fn sync(&mut self) {
        let tx = Tx::syncing(self.txg);
        for pass in 1..30 {
            let mos = self.view();
            let cx = TableSync {
                mos: &mos,
                tx: &tx,
                zio: &self.zio,
                features: &self.features,
                pass,
                now_s: 1_700_000_000,
                last: false,
            };
            self.tables.sync(&cx).unwrap();
            self.clones.sync(&cx).unwrap();
            if !self.mos.is_dirty(self.txg) {
                assert!(!self.tables.is_dirty() && !self.clones.is_dirty());
                self.txg = Txg(self.txg.0 + 1);
                return;
            }
            let owner = Owner::default();
            let policy = WritePolicy::mos();
            let cx = SyncCx { txg: self.txg, pass, owner: &owner, policy: &policy, used: None, late: false };
            self.mos.sync(&cx).unwrap();
            for bp in owner.0.into_inner().unwrap() {
                self.zio.free(self.txg, &bp).unwrap();
            }
        }
        panic!("txg {} does not converge", self.txg);
    }

    fn write(&self, data: Vec<u8>, copies: u8) -> BlkPtr {
        let props = WriteProps {
            checksum: ChecksumKind::Sha256,
            dedup: Some(false),
            copies,
            gang_copies: copies,
            ..WriteProps::default()
        };
        let payload = Payload::Logical(Buf::from(data));
        let req =
            WriteReq { bm: Bookmark::new(ObjectId(7), ObjectId(1), 0, 0), props, payload, orig: BlkPtr::HOLE, fill: 1 };
        self.zio.write(&WriteCx { txg: self.txg, pass: 1 }, vec![req]).unwrap()[0]
    }

    fn is_allocated(&self, bp: &BlkPtr) -> bool {
        self.space.live.lock().unwrap().contains_key(&bp.dva(0).offset())
    }

    /// The view of readers: references by content. The statistics must agree.
    fn stored(&self) -> BTreeMap<DdtKey, u64> {
        let mos = self.view();
        let stats = mos.named_zap(STATS).unwrap();
        let Some(table) = Table::open(&mos, ChecksumKind::Sha256, stats.as_ref()).unwrap() else {
            return BTreeMap::new();
        };
        let mut all = BTreeMap::new();
        let logged = table.log_entries().unwrap();
        table
            .for_each(&mut |entry| {
                assert!(all.insert(entry.key, entry.value.total_refcnt()).is_none(), "twice: {entry:?}");
                Ok(())
            })
            .unwrap();
        for store in &table.stores {
            let (mut blocks, mut refs) = (0, 0);
            for entry in table.stored_entries(store).unwrap().map(Result::unwrap) {
                if !logged.contains_key(&entry.key) {
                    blocks += entry.value.slots.iter().filter(|s| s.phys_birth != Txg(0)).count() as u64;
                    refs += entry.value.total_refcnt();
                }
            }
            let total = store.histogram.total();
            assert_eq!((total.blocks, total.ref_blocks), (blocks, refs), "{}", store.name);
        }
        all
    }
}

fn content(n: u64) -> Vec<u8> {
    let mut data = vec![0; 1024];
    Env::seeded(n).fill_random(&mut data);
    data
}

#[test]
fn tables_hold_what_was_written_and_not_yet_freed() {
    for fast in [false, true] {
        let mut pool = Small::new(fast);
        let env = Env::seeded(5);
        let mut alive: Vec<BlkPtr> = Vec::new();
        for round in 0..40 {
            for _ in 0..env.random_u64() % 60 {
                if env.random_u64() % 100 < 55 {
                    let copies = if env.random_u64().is_multiple_of(10) { 2 } else { 1 };
                    alive.push(pool.write(content(env.random_u64() % 200), copies));
                } else if !alive.is_empty() {
                    let at = env.random_u64() as usize % alive.len();
                    pool.zio.free(pool.txg, &alive.swap_remove(at)).unwrap();
                }
            }
            pool.sync();
            let mut model: BTreeMap<DdtKey, u64> = BTreeMap::new();
            alive.iter().filter(|bp| bp.is_dedup()).for_each(|bp| *model.entry(DdtKey::of(bp)).or_default() += 1);
            assert_eq!(pool.stored(), model, "fast {fast}, round {round}");
            if round % 7 == 0 {
                pool.reopen(fast);
                assert_eq!(pool.stored(), model);
            }
            for bp in &alive {
                assert!(pool.is_allocated(bp));
            }
        }
        assert_eq!(pool.features.count("fast_dedup"), i64::from(fast));
        let ever = alive.clone();
        alive.drain(..).for_each(|bp| pool.zio.free(pool.txg, &bp).unwrap());
        // a log is flushed some txgs later
        (0..30).for_each(|_| pool.sync());
        assert!(pool.stored().is_empty() && pool.tables.logged() == 0);
        assert!(ever.iter().all(|bp| !pool.is_allocated(bp)));
        assert_eq!(pool.features.count("fast_dedup"), 0);
        let left: Vec<String> =
            crate::spa::mos::named_entries(&pool.view().directory).unwrap().into_iter().map(|e| e.0).collect();
        assert_eq!(left, [STATS]);
    }
}

#[test]
fn what_is_undone_leaves_no_entry() {
    let pool = Small::new(true);
    let bp = pool.write(content(1), 1);
    pool.tables.forget(pool.txg, &bp);
    assert!(!pool.tables.is_dirty());
    assert!(!pool.tables.release(pool.txg, &bp).unwrap());
    let other = pool.write(content(1), 1);
    assert_ne!(other.dva(0), bp.dva(0));
    assert!(!pool.tables.clone_ref(&bp).unwrap());
    assert!(pool.tables.clone_ref(&other).unwrap());
}

#[test]
fn clones_keep_their_block_until_the_last_is_freed() {
    for endian in [false, true] {
        let mut pool = Small::new(false);
        pool.features.enabled = endian;
        let plain = |pool: &Small, n| {
            let req = WriteReq {
                bm: Bookmark::new(ObjectId(7), ObjectId(1), 0, n),
                props: WriteProps::default(),
                payload: Payload::Logical(Buf::from(content(n))),
                orig: BlkPtr::HOLE,
                fill: 1,
            };
            pool.zio.write(&WriteCx { txg: pool.txg, pass: 1 }, vec![req]).unwrap()[0]
        };
        let blocks: Vec<BlkPtr> = (0..50).map(|n| plain(&pool, n)).collect();
        let shared = pool.write(content(9), 1);
        pool.sync();
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for (n, bp) in blocks.iter().enumerate() {
            for _ in 0..n % 4 {
                pool.clones.add(pool.txg, bp);
                *model.entry(bp.dva(0).offset()).or_default() += 1;
            }
        }
        pool.clones.add(pool.txg, &shared);
        pool.clones.apply(pool.txg, Some(&pool.tables)).unwrap();
        pool.sync();
        assert_eq!(pool.stored()[&DdtKey::of(&shared)], 2);
        assert_eq!(pool.features.count("block_cloning"), 1);
        assert_eq!(pool.features.count("block_cloning_endian"), i64::from(endian));
        pool.reopen(false);
        for round in 0..5 {
            for bp in &blocks {
                let at = bp.dva(0).offset();
                assert_eq!(pool.clones.references(bp).unwrap(), model.get(&at).copied().unwrap_or(0));
                if !pool.is_allocated(bp) {
                    continue;
                }
                let kept = model.get(&at).is_some_and(|n| *n > 0);
                pool.zio.free(pool.txg, bp).unwrap();
                assert_eq!(pool.is_allocated(bp), kept, "round {round}");
                model.entry(at).and_modify(|n| *n = n.saturating_sub(1));
            }
            pool.sync();
            if round % 2 == 1 {
                pool.reopen(false);
            }
        }
        assert!(blocks.iter().all(|bp| !pool.is_allocated(bp)));
        assert_eq!((pool.features.count("block_cloning"), pool.features.count("block_cloning_endian")), (0, 0));
        assert!(!pool.clones.release(pool.txg, &shared).unwrap());
    }
}

#[test]
fn a_table_over_its_quota_takes_no_new_content() {
    for fast in [false, true] {
        let mut pool = Small::new(fast);
        let known: Vec<BlkPtr> = (0..50).map(|n| pool.write(content(n), 1)).collect();
        pool.sync();
        pool.sync();
        let fits = |pool: &Small, n| {
            let bp = pool.write(content(n), 1);
            assert!(pool.is_allocated(&bp));
            bp.is_dedup()
        };
        pool.tables.set_quota(1);
        assert!(!fits(&pool, 1000) && !fits(&pool, 1000), "fast {fast}: new content");
        let again = pool.write(content(7), 1);
        assert!(again.is_dedup() && again.dva(0) == known[7].dva(0), "fast {fast}: content that is known");
        // the size is known after the pool was opened again, too
        pool.sync();
        pool.reopen(fast);
        pool.tables.set_quota(1);
        assert!(!fits(&pool, 1001));
        for quota in [0, 1 << 30, u64::MAX] {
            pool.tables.set_quota(quota);
            assert!(fits(&pool, quota.wrapping_add(2000)), "quota {quota}");
        }
        // automatic: as much as the devices of the tables hold
        pool.tables.note_class(Some((849, 1000)));
        assert!(fits(&pool, 3000));
        pool.tables.note_class(Some((850, 1000)));
        assert!(!fits(&pool, 3001));
        pool.tables.note_class(Some((90 << 30, 100 << 30)));
        assert!(fits(&pool, 3002));
        pool.tables.note_class(None);
        assert!(fits(&pool, 3003));
    }
}

#[test]
fn pruned_entries_leave_ordinary_blocks() {
    let mut pool = Small::new(true);
    let one: Vec<BlkPtr> = (0..20).map(|n| pool.write(content(n), 1)).collect();
    let two: Vec<BlkPtr> = (0..10).map(|n| pool.write(content(n), 1)).collect();
    let keys: Vec<DdtKey> = one.iter().map(DdtKey::of).collect();
    let prune = |pool: &Small| pool.tables.forget_stored(ChecksumKind::Sha256, &keys).unwrap();
    pool.sync();
    assert_eq!(prune(&pool), 0, "what the log has is new");
    (0..12).for_each(|_| pool.sync());
    assert_eq!(pool.tables.logged(), 0);
    // one of them is wanted in this very txg
    let wanted = pool.write(content(10), 1);
    assert_eq!(prune(&pool), 9);
    pool.sync();
    (0..12).for_each(|_| pool.sync());
    let left = pool.stored();
    assert_eq!((left.len(), left[&DdtKey::of(&wanted)]), (11, 2));
    assert!(one.iter().all(|bp| pool.is_allocated(bp)), "a block went with its entry");
    // the same content is new content now; freeing the older block does not touch it
    let new = pool.write(content(15), 1);
    assert!(new.is_dedup() && new.dva(0) != one[15].dva(0));
    pool.sync();
    for bp in one.iter().chain(&two).chain([&wanted]) {
        pool.zio.free(pool.txg, bp).unwrap();
    }
    (0..30).for_each(|_| pool.sync());
    assert!(one.iter().all(|bp| !pool.is_allocated(bp)) && pool.is_allocated(&new));
    assert_eq!(pool.stored().into_values().collect::<Vec<_>>(), [1]);
}
