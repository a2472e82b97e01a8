#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use base::Endian;
use ondisk::spacemap::SpaceMapHeader;
use parking_lot::Mutex;

use super::*;
use crate::log::{MetaslabChanges, Unflushed, UnflushedMetaslab, VdevChanges, decode_log};
use crate::{Class, Layout, SpaceRequest, TopSpace};
use crate::{Held, MetaslabLoader, RangeTree, Recent, SpaceMapReader, load_metaslab, load_recent};

const MS_SHIFT: u32 = 20;
const BLOCK: u64 = 512;

/// The state on disk.
#[derive(Clone, Default)]
struct Disk {
    objects: HashMap<ObjectId, (SpaceMapHeader, Vec<u8>)>,
    next: ObjectId,
    arrays: BTreeMap<MetaslabId, ObjectId>,
    unflushed: BTreeMap<MetaslabId, Txg>,
    logs: BTreeMap<Txg, ObjectId>,
    checkpoints: BTreeMap<u32, ObjectId>,
    /// Number of metaslab maps written since it was last reset.
    touched: u64,
}

impl Disk {
    fn make(&mut self) -> MapInfo {
        self.next = self.next.saturating_add(1);
        let header = SpaceMapHeader { object: self.next, histogram: Some([0; 32]), ..SpaceMapHeader::default() };
        self.objects.insert(self.next, (header.clone(), Vec::new()));
        MapInfo { object: self.next, header, block: BLOCK }
    }

    fn blocks(&self, object: ObjectId) -> Vec<(Vec<u8>, Endian)> {
        let bytes = &self.objects[&object].1;
        let pad = |b: &[u8]| [b, &vec![0xff; BLOCK as usize - b.len()][..]].concat();
        bytes.chunks(BLOCK as usize).map(|b| (pad(b), Endian::Little)).collect()
    }

    /// Returns the allocated space of a vdev as an import finds it.
    fn allocated(&self, vdev: u32, metaslabs: u32) -> RangeTree {
        let txgs = (0..metaslabs).map(|m| self.unflushed.get(&(vdev, m)).copied().unwrap_or(Txg(0))).collect();
        let mut logs = Unflushed::new([(vdev, VdevChanges::new(MS_SHIFT, 9, txgs))]);
        for (txg, object) in &self.logs {
            let (header, _) = &self.objects[object];
            logs.apply(vec![(*txg, decode_log(*txg, header, self.blocks(*object)).unwrap())]).unwrap();
        }
        let mut all = RangeTree::new();
        for m in 0..metaslabs {
            let geometry = MapGeometry::metaslab(u64::from(m), MS_SHIFT, 9).unwrap();
            let mut part = match self.arrays.get(&(vdev, m)) {
                Some(id) => load_metaslab(&self.objects[id].0, geometry, self.blocks(*id)).unwrap(),
                None => RangeTree::new(),
            };
            if let Some(changes) = logs.vdev(vdev).unwrap().metaslab(u64::from(m)) {
                changes.update(&mut part).unwrap();
            }
            part.iter().for_each(|r| all.add(r).unwrap());
        }
        all
    }

    /// Checks that no header promises more, or larger, free segments than exist: OpenZFS asserts it when it reads the map.
    fn check_headers(&self, allocated: &RangeTree, metaslabs: u32) {
        let largest = |h: &[u64; 32]| h.iter().copied().enumerate().rev().find(|(_, n)| *n > 0).unwrap_or_default();
        let free = allocated.complement(0..u64::from(metaslabs) << MS_SHIFT);
        for ((_, m), object) in &self.arrays {
            let range = MapGeometry::metaslab(u64::from(*m), MS_SHIFT, 9).unwrap().range();
            let here = free.iter().map(|r| r.start.max(range.start)..r.end.min(range.end)).filter(|r| !r.is_empty());
            let here: RangeTree = here.collect();
            if here.total() == 1 << MS_SHIFT {
                continue;
            }
            let mut there = [0; 32];
            crate::add_to_histogram(&mut there, here.histogram().into_iter(), 9);
            let promised = self.objects[object].0.histogram.unwrap();
            assert!(largest(&promised) <= largest(&there), "metaslab {m}: {promised:?} {there:?}");
        }
    }

    fn metaslab(&self, vdev: u32, id: u32, changes: MetaslabChanges) -> Metaslab {
        let geometry = MapGeometry::metaslab(u64::from(id), MS_SHIFT, 9).unwrap();
        let map = self.arrays.get(&(vdev, id)).map(|o| MapInfo {
            object: *o,
            header: self.objects[o].0.clone(),
            block: BLOCK,
        });
        Metaslab::new(id, geometry, map, changes, true)
    }
}

#[derive(Clone, Default)]
struct Store(Arc<Mutex<Disk>>);

impl MapStore for Store {
    type Error = AllocError;

    fn create(&mut self, id: MetaslabId) -> Result<MapInfo, AllocError> {
        let mut disk = self.0.lock();
        let map = disk.make();
        disk.arrays.insert(id, map.object);
        Ok(map)
    }

    fn truncate(&mut self, id: MetaslabId, map: &MapInfo) -> Result<MapInfo, AllocError> {
        self.0.lock().objects.remove(&map.object).unwrap();
        self.create(id)
    }

    fn append(&mut self, map: &MapInfo, at: u64, bytes: Vec<u8>) -> Result<(), AllocError> {
        let mut disk = self.0.lock();
        disk.touched += u64::from(disk.arrays.values().any(|o| *o == map.object));
        let object = disk.objects.get_mut(&map.object).unwrap();
        assert_eq!(object.1.len() as u64, at);
        object.1.extend(bytes);
        Ok(())
    }

    fn write_header(&mut self, map: &MapInfo) -> Result<(), AllocError> {
        self.0.lock().objects.get_mut(&map.object).unwrap().0 = map.header.clone();
        Ok(())
    }

    fn create_log(&mut self, txg: Txg) -> Result<MapInfo, AllocError> {
        let mut disk = self.0.lock();
        let map = disk.make();
        assert!(disk.logs.insert(txg, map.object).is_none());
        Ok(map)
    }

    fn destroy_log(&mut self, txg: Txg, object: ObjectId) -> Result<(), AllocError> {
        let mut disk = self.0.lock();
        assert_eq!(disk.logs.remove(&txg), Some(object));
        disk.objects.remove(&object).unwrap();
        Ok(())
    }

    fn set_unflushed(&mut self, id: MetaslabId, txg: Txg) -> Result<(), AllocError> {
        self.0.lock().unflushed.insert(id, txg);
        Ok(())
    }

    fn checkpoint(&mut self, vdev: u32) -> Result<(MapInfo, MapGeometry), AllocError> {
        let mut disk = self.0.lock();
        let map = match disk.checkpoints.get(&vdev).copied() {
            Some(o) => MapInfo { object: o, header: disk.objects[&o].0.clone(), block: BLOCK },
            None => {
                let map = disk.make();
                disk.checkpoints.insert(vdev, map.object);
                map
            }
        };
        Ok((map, MapGeometry { start: 0, size: 1 << 40, shift: 9 }))
    }
}

impl MetaslabLoader for Store {
    fn load(
        &self,
        _: u32,
        _: u32,
        map: &MapInfo,
        geometry: &MapGeometry,
        recent: Recent,
    ) -> Result<(RangeTree, Held), String> {
        let disk = self.0.lock();
        load_recent(&map.header, *geometry, disk.blocks(map.object), recent).map_err(|e| e.to_string())
    }
}

struct Plain;

impl Layout for Plain {
    fn asize(&self, psize: u64, _: Txg) -> u64 {
        psize.next_multiple_of(512)
    }

    fn deflated(&self, asize: u64) -> u64 {
        asize
    }
}

/// A pool's space over a store, with a reference model.
struct Sim {
    store: Store,
    mgr: SpaceManager,
    sync: SpaceSync,
    metaslabs: u32,
    txg: u64,
    model: RangeTree,
    used: Vec<Range<u64>>,
    /// Freed ranges, by txg.
    freed: Vec<(u64, Range<u64>)>,
    /// The txg that a reader uses.
    reader: Option<u64>,
    /// Up to this txg less space is known to be held than is held, because maps were not read since the import.
    vague: u64,
    seed: u64,
}

/// Returns the space as an import finds it after txg `last`.
fn space_of(
    store: &Store,
    metaslabs: u32,
    features: SyncFeatures,
    (last, released): (Txg, Txg),
) -> (SpaceManager, SpaceSync) {
    let disk = store.0.lock().clone();
    let txgs: Vec<Txg> = (0..metaslabs).map(|m| disk.unflushed.get(&(0, m)).copied().unwrap_or(Txg(0))).collect();
    let mut unflushed = Unflushed::new([(0, VdevChanges::new(MS_SHIFT, 9, txgs))]).holding(released);
    let mut logs = Vec::new();
    for (txg, object) in &disk.logs {
        let (header, _) = &disk.objects[object];
        unflushed.apply(vec![(*txg, decode_log(*txg, header, disk.blocks(*object)).unwrap())]).unwrap();
        logs.push((*txg, *object, header.length.div_ceil(BLOCK)));
    }
    let found = unflushed.into_vdevs().remove(&0).unwrap().into_metaslabs();
    let users = (0..).zip(&found).filter(|(_, ms)| ms.txg.0 != 0).map(|(m, ms)| ((0, m), ms.txg, ms.is_dirty()));
    let mut log_space = LogSpace::load(1 << 40, logs, users);
    log_space.memory_changed(found.iter().map(|ms| ms.changes.memory() as i64).sum());
    let mgr = SpaceManager::new(Arc::new(store.clone()));
    mgr.opened(last, released);
    let metaslab = |(m, ms): (u32, UnflushedMetaslab)| disk.metaslab(0, m, ms.changes).opened(last, ms.held);
    let metaslabs = (0..metaslabs).zip(found).map(metaslab).collect();
    mgr.add_top(
        TopSpace {
            id: 0,
            class: Class::Normal,
            ms_shift: MS_SHIFT,
            metaslabs,
            data_children: 1,
            allocatable: true,
            layout: Arc::new(Plain),
        },
        Txg(0),
    );
    (mgr, SpaceSync::new(log_space, features))
}

impl Sim {
    fn new(metaslabs: u32, logs: bool, seed: u64) -> Sim {
        let store = Store::default();
        let (mgr, sync) = space_of(&store, metaslabs, SyncFeatures { logs, two_words: true }, (Txg(9), Txg(7)));
        let (model, used, freed) = (RangeTree::new(), Vec::new(), Vec::new());
        Sim { store, mgr, sync, metaslabs, txg: 10, model, used, freed, reader: None, vague: 0, seed }
    }

    /// True if space freed in `txg` must not be reused yet.
    fn is_held(&self, txg: u64) -> bool {
        txg + 2 >= self.txg || self.reader.is_some_and(|reader| txg > reader)
    }

    /// Starts or stops a reader of the state after the last txg.
    fn read(&mut self, begin: bool) {
        if self.reader.is_some() && self.vague > self.txg {
            self.vague = self.txg + 3;
        }
        self.reader = begin.then_some(self.txg - 1);
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below.max(1)
    }

    fn reload(&mut self, features: SyncFeatures) {
        let last = self.txg - 1;
        let released = self.reader.unwrap_or(u64::MAX).min(last - 2);
        let (mgr, sync) = space_of(&self.store, self.metaslabs, features, (Txg(last), Txg(released)));
        (self.mgr, self.sync) = (mgr, sync);
        self.vague = if self.reader.is_some() { u64::MAX } else { self.txg + 3 };
    }

    fn allocate(&mut self, count: usize, psize: u64) -> usize {
        let hint = self.random(4);
        let req = SpaceRequest { class: Class::Normal, txg: Txg(self.txg), hint, avoid: &[], gang: false };
        let mut got = Vec::new();
        let _ = self.mgr.allocate_many(&req, &vec![psize; count], &mut got);
        for dva in &got {
            let range = dva.offset()..dva.offset() + dva.asize();
            self.model.add(range.clone()).expect("is free");
            let early = self.freed.iter().find(|(t, r)| self.is_held(*t) && r.start < range.end && range.start < r.end);
            assert_eq!(early, None, "used again in txg {} beside {:?}", self.txg, self.reader);
            self.used.push(range);
        }
        got.len()
    }

    fn free(&mut self, count: usize) {
        for _ in 0..count.min(self.used.len()) {
            let n = self.random(self.used.len() as u64) as usize;
            let range = self.used.swap_remove(n);
            self.model.remove(range.clone()).unwrap();
            self.mgr.free(0, range.start, range.end - range.start, false).unwrap();
            self.freed.push((self.txg, range));
        }
    }

    /// Syncs a txg of several passes, and checks that an import would find the state of the model.
    fn sync(&mut self) {
        let txg = Txg(self.txg);
        for pass in 1..=3 {
            self.sync.pass(&self.mgr, &mut self.store, txg, pass, false).unwrap();
            if pass < 3 {
                self.allocate(2, 4096);
                self.free(1);
            }
        }
        assert!(!self.mgr.has_work(txg));
        self.sync.sync_done(txg);
        self.mgr.sync_done(txg, Txg(self.reader.unwrap_or(u64::MAX))).unwrap();
        assert_eq!(self.store.0.lock().allocated(0, self.metaslabs), self.model, "txg {}", self.txg);
        self.store.0.lock().check_headers(&self.model, self.metaslabs);
        let held = |t: u64| t + 2 > self.txg || self.reader.is_some_and(|reader| t > reader);
        let deferred: u64 = self.freed.iter().filter(|(t, _)| held(*t)).map(|(_, r)| r.end - r.start).sum();
        let figures = [Class::Normal, Class::EmbeddedLog].map(|c| self.mgr.figures(c));
        let alloc: u64 = figures.iter().map(|f| f.alloc).sum();
        assert_eq!(figures.iter().map(|f| f.space).sum::<u64>(), u64::from(self.metaslabs) << MS_SHIFT);
        // with little space left nothing is deferred
        let held: u64 = figures.iter().map(|f| f.deferred).sum();
        let vague = self.metaslabs < 64 || (self.txg < self.vague && held < deferred);
        assert!(held == deferred || vague, "{held} {deferred}");
        assert_eq!(alloc - held, self.model.total());
        self.txg += 1;
    }

    fn sync_quietly(&mut self) {
        self.sync.pass(&self.mgr, &mut self.store, Txg(self.txg), 1, false).unwrap();
        self.sync.sync_done(Txg(self.txg));
        self.mgr.sync_done(Txg(self.txg), Txg(u64::MAX)).unwrap();
        self.txg += 1;
    }

    fn check_stats(&self) {
        let stats = self.sync.logs.stats();
        let disk = self.store.0.lock();
        assert_eq!(stats.logs, disk.logs.len() as u64);
        let blocks: u64 = disk.logs.values().map(|o| disk.objects[o].0.length.div_ceil(BLOCK)).sum();
        assert_eq!(stats.log_blocks, blocks);
        let memory: u64 = (0..self.metaslabs).map(|m| self.mgr.with((0, m), |ms| ms.unflushed.memory()).unwrap()).sum();
        assert_eq!(stats.unflushed_memory, memory);
        if let Some(oldest) = disk.unflushed.values().min() {
            assert!(disk.logs.contains_key(oldest), "the log of the oldest metaslab is there");
            assert_eq!(stats.oldest_txg, *oldest);
        }
    }
}

/// Random allocations and frees, with and without logs, with imports and readers in between: the state on disk always equals that
/// in memory, and freed space is not reused too early.
#[test]
fn what_is_on_disk_is_what_was_done() {
    for logs in [true, false] {
        for seed in 1..9u64 {
            let mut sim = Sim::new(70, logs, seed * 0x9e37_79b9);
            for _ in 0..120 {
                let (count, psize) = (sim.random(40) as usize, 512 << sim.random(8));
                sim.allocate(count, psize);
                let count = sim.random(50) as usize;
                sim.free(count);
                if sim.random(20) == 0 {
                    sim.sync.logs.flush_all(FlushAll::Request { upto: Txg(sim.txg - 1) });
                }
                sim.sync();
                if logs {
                    sim.check_stats();
                }
                match sim.random(12) {
                    0 => sim.read(true),
                    1 => sim.read(false),
                    2..4 => sim.reload(SyncFeatures { logs, two_words: true }),
                    _ => {}
                }
            }
            if logs {
                sim.sync.logs.flush_all(FlushAll::Export);
                sim.sync();
                sim.check_stats();
                assert_eq!(sim.store.0.lock().logs.len(), 1);
            }
        }
    }
}

/// Headers that promise more than exists, as older versions left them, are corrected when the pool is exported.
#[test]
fn headers_that_promise_too_much_are_mended_at_export() {
    let mut sim = Sim::new(20, true, 23);
    for _ in 0..40 {
        sim.allocate(40, 8192);
        sim.free(10);
        sim.sync();
    }
    let maps: Vec<ObjectId> = sim.store.0.lock().arrays.values().copied().collect();
    for id in maps {
        let mut disk = sim.store.0.lock();
        disk.objects.get_mut(&id).unwrap().0.histogram = Some(std::array::from_fn(|n| u64::from(n <= 11) * 9));
    }
    sim.reload(SyncFeatures { logs: true, two_words: true });
    sim.sync.logs.flush_all(FlushAll::Export);
    sim.sync();
}

/// A pool on which logs are enabled later.
#[test]
fn logs_can_be_switched_on() {
    let mut sim = Sim::new(20, false, 7);
    for round in 0..40 {
        sim.allocate(20, 8192);
        sim.free(15);
        if round == 20 {
            sim.sync.set_features(SyncFeatures { logs: true, two_words: true });
        }
        sim.sync();
    }
    sim.check_stats();
    assert!(!sim.store.0.lock().logs.is_empty());
}

/// With logs the number of maps written in a txg does not grow with the metaslabs that it changes.
#[test]
fn with_logs_few_maps_are_written() {
    let touched = |logs| {
        let mut sim = Sim::new(200, logs, 3);
        (0..30).for_each(|_| {
            sim.allocate(400, 8192);
            sim.sync();
        });
        sim.store.0.lock().touched = 0;
        (0..10).for_each(|_| {
            sim.free(300);
            sim.allocate(300, 8192);
            sim.sync();
        });
        sim.store.0.lock().touched
    };
    let (with, without) = (touched(true), touched(false));
    assert!(with <= 40 && without > 200, "{with} {without}");
}

/// Flushes write maps whose headers share blocks, although the oldest metaslabs are anywhere.
#[test]
fn neighbours_are_flushed_together() {
    let mut sim = Sim::new(256, true, 3);
    (0..60).for_each(|_| {
        sim.allocate(200, 8192);
        sim.sync();
    });
    // random frees dirty the metaslabs in a random order
    (0..40).for_each(|_| {
        sim.free(60);
        sim.sync();
    });
    let last = Txg(sim.txg - 1);
    sim.sync.logs.flush_all(FlushAll::Request { upto: last });
    let before = sim.sync.logs.stats();
    sim.sync();
    let (after, disk) = (sim.sync.logs.stats(), sim.store.0.lock());
    assert!(before.unflushed_metaslabs > 50 && after.flushes >= 5, "{before:?} {after:?}");
    let now = disk.unflushed.iter().filter(|(id, txg)| txg.0 > last.0 && disk.arrays.contains_key(id));
    // metaslabs that became dirty in this txg have its number as well, but their maps were not written
    let blocks: BTreeMap<u64, usize> = now.fold(BTreeMap::new(), |mut blocks, (id, _)| {
        *blocks.entry(disk.arrays[id].0 / OBJECTS_PER_BLOCK).or_default() += 1;
        blocks
    });
    let most = blocks.values().max().copied().unwrap_or(0);
    assert!(most as u64 * 2 >= after.flushes, "{} flushes, at most {most} in a block", after.flushes);
}

/// A full pool refuses allocations, and freed space can be reused: at once when space is so low.
#[test]
fn a_full_pool_says_so_and_recovers() {
    let mut sim = Sim::new(4, true, 5);
    let got = sim.allocate(10_000, 8192);
    assert_eq!(got, 4 << (MS_SHIFT - 13));
    sim.txg += 1;
    assert_eq!(sim.allocate(1, 512), 0);
    sim.txg -= 1;
    sim.sync_quietly();
    sim.free(100);
    sim.sync_quietly();
    sim.freed.clear();
    assert_eq!(sim.allocate(200, 8192), 100);
}

/// A map that has become too long is rewritten.
#[test]
fn long_maps_are_condensed() {
    for logs in [false, true] {
        let mut sim = Sim::new(16, logs, 11);
        let mut condenses = 0;
        sim.allocate(60, 8192);
        for _ in 0..300 {
            sim.free(20);
            sim.allocate(20, 8192);
            if logs {
                // flush in every txg
                sim.sync.logs.flush_all(FlushAll::Export);
            }
            sim.sync();
            // held space is in the rewritten map
            let rewritten = sim.sync.logs.stats().condenses_total;
            condenses += rewritten;
            if rewritten > 0 {
                sim.reload(SyncFeatures { logs, two_words: true });
            }
        }
        assert!(condenses > 0, "{logs}");
        let disk = sim.store.0.lock();
        let longest = disk.arrays.values().map(|o| disk.objects[o].0.length).max().unwrap();
        assert!(longest < 16 * BLOCK, "{longest}");
    }
}

/// A double free, or a free of unallocated space, is reported by the next pass.
#[test]
fn contradictions_stop_the_sync() {
    let mut sim = Sim::new(2, true, 13);
    sim.allocate(4, 4096);
    sim.sync();
    let range = sim.used[0].clone();
    sim.mgr.free(0, range.start, 4096, false).unwrap();
    sim.mgr.free(0, range.start, 4096, false).unwrap();
    assert!(sim.sync.pass(&sim.mgr, &mut sim.store, Txg(sim.txg), 1, false).is_err());

    let mut sim = Sim::new(2, true, 13);
    sim.mgr.free(0, 4096, 4096, false).unwrap();
    assert!(sim.sync.pass(&sim.mgr, &mut sim.store, Txg(sim.txg), 1, false).is_err());
    assert!(sim.mgr.free(5, 0, 512, false).is_err());
    assert!(sim.mgr.free(0, 1 << 40, 512, false).is_err());
}

/// Space that the checkpoint needs is recorded in a map of its own and stays allocated.
#[test]
fn the_checkpoint_keeps_what_is_freed() {
    let mut sim = Sim::new(2, true, 17);
    sim.allocate(10, 4096);
    sim.sync();
    let before = sim.model.clone();
    for n in 0..3 {
        let range = sim.used[n].clone();
        sim.mgr.free(0, range.start, 4096, true).unwrap();
        sim.sync_quietly();
    }
    let disk = sim.store.0.lock();
    assert_eq!(disk.allocated(0, 2), before);
    let map = disk.checkpoints[&0];
    let geometry = MapGeometry { start: 0, size: 1 << 40, shift: 9 };
    let held: RangeTree =
        SpaceMapReader::new(&disk.objects[&map].0, geometry, disk.blocks(map)).map(|c| c.unwrap().range).collect();
    assert_eq!(held, sim.used[..3].iter().cloned().collect());
    assert_eq!(disk.objects[&map].0.alloc, -3 * 4096);
}

/// The logs stay within the limit of blocks under a steady load, and flushes are evenly spread.
#[test]
fn the_log_stays_within_its_limit() {
    let mut sim = Sim::new(300, true, 19);
    (0..100).for_each(|_| {
        sim.allocate(200, 8192);
        sim.sync();
    });
    let mut most = 0;
    for _ in 0..150 {
        sim.free(200);
        sim.allocate(200, 8192);
        sim.sync();
        let stats = sim.sync.logs.stats();
        most = most.max(stats.flushes);
        // the next log's blocks are estimated to within a few
        assert!(stats.log_blocks <= stats.block_limit + 10, "{stats:?}");
    }
    assert!(most <= 60, "{most}");
}

#[test]
fn a_header_that_does_not_add_up_is_not_written_and_one_that_cannot_be_is_not_used() {
    let with = |alloc| {
        let header = SpaceMapHeader { alloc, ..SpaceMapHeader::default() };
        let geometry = MapGeometry::metaslab(0, 24, 9).unwrap();
        Metaslab::new(
            0,
            geometry,
            Some(MapInfo { object: ObjectId(7), header, block: BLOCK }),
            Default::default(),
            true,
        )
    };
    let below = with(-4096);
    assert_eq!((below.room(), below.limit(), below.adds_up()), (0, 0, Ok(())));
    let mut ms = with(4096);
    assert!(ms.room() > 0 && ms.adds_up().is_ok());
    ms.map.as_mut().unwrap().header.alloc = 0;
    let wrong = crate::Error::Miscount { object: ObjectId(7), header: 0, changes: 0, allocated: 4096 };
    assert_eq!(ms.adds_up(), Err(wrong));
}
