//! The space of a pool open for writing: the allocation of its blocks, and the MOS objects that record it.
//!
//! The decisions are made by crate `space`; this module ties them to a pool: metaslab arrays, space maps and logs are read from and written
//! to the MOS, block requests get a class of metaslabs, addresses on removed vdevs are followed through their mappings.
//!
//! Allocations and frees stay in memory until the next sync pass writes them to MOS objects; that in turn allocates and frees blocks for
//! the pass after it. With log space maps only the last block of the log and its path change from pass to pass, in place.
//!
//! Locks: the sync thread holds that of the sync state over a pass; allocations and frees never take it. OpenZFS: `metaslab.c`,
//! `spa_log_spacemap.c`, `spa_preferred_class`.

mod come_and_go;
mod open;
mod store;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use base::{ObjectId, Txg, tunable};
use dmu::{Objset, Tx};
use ondisk::label::key;
use ondisk::{Dva, ObjectType};
use parking_lot::{Mutex, RwLock};
use space::flush::{FlushAll, LogSpace, LogSpacemapStats, Progress};
use space::{
    Class, Held, MapGeometry, MapInfo, MetaslabLoader, RangeTree, Recent, SpaceFigures, SpaceManager, SpaceRequest,
    SpaceSync, SyncFeatures, TopSpace,
};
use vdev::LiveTree;
use zio::{AllocError, AllocRequest, SpaceSource, Zio};

use crate::spa::Spa;
use crate::spa::mos::Mos;
use crate::spa::open::TXG_DEFER_SIZE;
use crate::{Error, Pool};
use store::{Features, Store, TopObjects};

pub(crate) use come_and_go::{ALL_VDEV_ZAPS, forget_leaf, forget_vdev};

/// Share of the special class, in percent, that small blocks of data leave to metadata (OpenZFS:
/// `zfs_special_class_metadata_reserve_pct`).
const SPECIAL_RESERVE_PCT: u64 = 25;

/// The state that only the sync thread uses.
struct State {
    sync: SpaceSync,
    tops: BTreeMap<u32, TopObjects>,
    features: Features,
}

/// The space of a pool open for writing: metaslabs in memory, their maps and the logs in the MOS.
pub struct PoolSpace {
    tree: Arc<LiveTree>,
    manager: SpaceManager,
    maps: Arc<Maps>,
    state: Mutex<State>,
    /// The statistics of logs when they were asked for last.
    last_log_stats: Mutex<LogSpacemapStats>,
    /// The txg being synced, 0 between txgs.
    syncing: AtomicU64,
    /// Blocks born up to this txg belong to the checkpoint, and stay allocated; 0 if there is none.
    checkpoint: AtomicU64,
    /// Ranges of removed vdevs that are no longer referenced, if the pool keeps count of them (feature `obsolete_counts`).
    obsolete: Mutex<BTreeMap<u32, RangeTree>>,
    counts_obsolete: AtomicBool,
    /// A failure where no error could be returned; the next pass fails with it.
    failed: Mutex<Option<String>>,
    /// Counter for tests that force gang blocks.
    ganged: AtomicU64,
    /// Space available to ordinary transactions, and to those that free: read by every transaction, changed only at the end of a sync.
    room: [AtomicU64; 2],
    /// Set when a transaction would have to wait for space that is held.
    pressed: AtomicBool,
    /// The vdevs that join in the txg that is being synced: they are allocated from once it is on disk.
    joining: Mutex<Vec<TopSpace>>,
    /// The metaslabs that vdevs gain in that txg: the same holds for them.
    growing: Mutex<Vec<TopSpace>>,
}

impl std::fmt::Debug for PoolSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolSpace").field("normal", &self.figures(Class::Normal)).finish_non_exhaustive()
    }
}

/// Reads space maps from the current MOS. (The MOS leads to its I/O, which leads here: so the reference is weak.)
#[derive(Default)]
struct Maps {
    mos: RwLock<Weak<Objset>>,
}

impl MetaslabLoader for Maps {
    fn load(
        &self,
        _vdev: u32,
        _ms: u32,
        map: &MapInfo,
        geometry: &MapGeometry,
        recent: Recent,
    ) -> Result<(RangeTree, Held), String> {
        let mos = self.mos.read().upgrade().ok_or("the pool is closed")?;
        open::load_map(&mos, map, *geometry, recent).map_err(|e| e.to_string())
    }
}

impl From<space::AllocError> for Error {
    fn from(error: space::AllocError) -> Error {
        match error {
            space::AllocError::NoSpace => Error::NoSpace,
            space::AllocError::State { source, .. } => Error::Space { object: ObjectId::NONE, source },
            other => Error::corrupt(ObjectId::NONE, other.to_string()),
        }
    }
}

impl PoolSpace {
    fn with(tree: Arc<LiveTree>, logs: LogSpace) -> PoolSpace {
        let maps = Arc::new(Maps::default());
        let sync = SpaceSync::new(logs, SyncFeatures { logs: false, two_words: false });
        PoolSpace {
            tree,
            manager: SpaceManager::new(maps.clone()),
            maps,
            state: Mutex::new(State { sync, tops: BTreeMap::new(), features: Features::default() }),
            last_log_stats: Mutex::default(),
            syncing: AtomicU64::new(0),
            checkpoint: AtomicU64::new(0),
            obsolete: Mutex::default(),
            counts_obsolete: AtomicBool::new(false),
            failed: Mutex::new(None),
            ganged: AtomicU64::new(0),
            room: Default::default(),
            pressed: AtomicBool::new(false),
            joining: Mutex::default(),
            growing: Mutex::default(),
        }
    }

    /// Returns the space of a pool that is being made: all metaslabs of `zio.tree()` are empty, no objects exist yet.
    pub(crate) fn create(zio: &Arc<Zio>) -> Result<Arc<PoolSpace>, Error> {
        let tree = zio.tree();
        let this = PoolSpace::with(zio.live_tree().clone(), LogSpace::new(open::physical_memory()));
        for top in tree.tops().iter().filter(|top| top.is_concrete()) {
            // features are not known yet; a metaslab without a map is entirely free, and histograms do no harm
            let spec = open::top_space(top, open::class_of(top), Default::default(), true)?;
            this.state.lock().tops.insert(spec.id, open::objects(top));
            this.manager.add_top(spec, Txg(0));
        }
        this.note_room();
        Ok(Arc::new(this))
    }

    /// Returns the space of an existing pool. `pool` is a read-only view of it; `mos` is the writable MOS; `readers` the oldest txg that is
    /// being read. Blocks that the last txgs freed are held as if the pool had been open all the time.
    pub(crate) fn open(pool: &Pool, mos: &Mos, readers: Option<Txg>) -> Result<Arc<PoolSpace>, Error> {
        let tree = pool.zio().tree();
        let last = pool.uberblock().txg;
        let deferred = Txg(last.0.saturating_sub(TXG_DEFER_SIZE));
        let released = readers.map_or(deferred, |readers| readers.min(deferred));
        let (mut stored, logs) = open::read(pool, mos, released)?;
        let this = PoolSpace::with(pool.zio().live_tree().clone(), logs);
        this.manager.opened(last, released);
        *this.maps.mos.write() = Arc::downgrade(&mos.objset);
        let histograms = pool.feature_enabled("spacemap_histogram");
        for top in tree.tops().iter().filter(|top| top.is_indirect()) {
            this.state.lock().tops.insert(open::number(top)?, open::objects(top));
        }
        this.counts_obsolete.store(pool.feature_enabled("obsolete_counts"), Relaxed);
        for top in tree.tops().iter().filter(|top| top.is_concrete()) {
            let stored = stored.remove(&open::number(top)?).unwrap_or_default();
            let mut spec = open::top_space(top, pool.vdev_class(top), (stored, last), histograms)?;
            let (id, is_log) = (spec.id, top.config().is_log);
            spec.allocatable &= is_log || !pool.load_info().missing_tops.contains(&top.id());
            this.state.lock().tops.insert(id, open::objects(top));
            this.manager.add_top(spec, Txg(0));
            if is_log && !tree.can_be_written(top) {
                // it is missing, or offline: logs are placed elsewhere until it is back
                this.manager.retire(id);
            }
        }
        if let Some(uberblock) = mos.directory.lookup("com.delphix:zpool_checkpoint")? {
            // the third word of an uberblock is its txg; without it the checkpoint's blocks would be given away
            let txg = uberblock.u64s().get(2).copied().filter(|txg| *txg != 0);
            let txg = txg.ok_or_else(|| {
                Error::corrupt(ObjectId::POOL_DIRECTORY, "the uberblock of the checkpoint has no txg")
            })?;
            this.checkpoint.store(txg, Relaxed);
        }
        this.note_room();
        Ok(Arc::new(this))
    }

    /// Makes the metaslab arrays of the vdevs of a new pool.
    pub(crate) fn init_vdevs(&self, mos: &Mos, tx: &Tx, spa: &Spa) -> Result<(), Error> {
        *self.maps.mos.write() = Arc::downgrade(&mos.objset);
        self.make_arrays(mos, tx, spa)?;
        let config = spa.config.lock();
        let tree = config.nv.get_nvlist(key::VDEV_TREE).and_then(|tree| tree.get_nvlist_array(key::CHILDREN));
        for (top, id) in tree.unwrap_or(&[]).iter().zip(0..) {
            if let Some(objects) = self.state.lock().tops.get_mut(&id) {
                objects.ms_array = ObjectId(top.get_u64(key::METASLAB_ARRAY).unwrap_or(0));
                objects.top_zap = ObjectId(top.get_u64(key::VDEV_TOP_ZAP).unwrap_or(0));
            }
        }
        Ok(())
    }

    /// Returns whether there is something to write. Between the passes of a txg: allocations and frees since the last one. Before the
    /// first: those of any txg, and metaslabs to flush.
    pub(crate) fn is_dirty(&self) -> bool {
        match self.syncing.load(Relaxed) {
            0 => self.manager.has_any_work() || self.state.lock().sync.logs.mode() != FlushAll::No,
            txg => self.manager.has_work(Txg(txg)),
        }
    }

    /// Writes the changes since the last pass to the log of the txg, or to the maps; in pass 1 chooses metaslabs to flush and flushes them.
    pub(crate) fn sync(&self, mos: &Mos, tx: &Tx, pass: u32, spa: &Spa) -> Result<(), Error> {
        if let Some(failed) = self.failed.lock().clone() {
            return Err(Error::corrupt(ObjectId::NONE, failed));
        }
        let mut state = self.state.lock();
        self.syncing.store(tx.txg().0, Relaxed);
        let State { sync, tops, features } = &mut *state;
        if pass == 1 {
            *features = Features {
                logs: spa.feature_enabled(mos, "log_spacemap")?,
                histograms: spa.feature_enabled(mos, "spacemap_histogram")?,
                two_words: spa.feature_active(mos, "spacemap_v2")?,
            };
            sync.set_features(SyncFeatures {
                logs: features.logs && features.two_words,
                two_words: features.two_words,
            });
        }
        let mut store = Store::new(mos, tx, spa, *features, tops);
        let idle = !mos.objset.is_dirty(tx.txg());
        sync.pass(&self.manager, &mut store, tx.txg(), pass, idle)?;
        for (vdev, ranges) in std::mem::take(&mut *self.obsolete.lock()) {
            store.obsolete(vdev, &ranges, pass)?;
        }
        store.finish()
    }

    /// Records that the txg is on disk: its frees move on towards being allocatable, except frees later than `kept`; figures of space
    /// become those of the txg. To be called for every txg, even one that changed nothing.
    pub(crate) fn sync_done(&self, txg: Txg, kept: Txg) {
        self.state.lock().sync.sync_done(txg);
        self.syncing.store(0, Relaxed);
        if let Err(e) = self.manager.sync_done(txg, kept) {
            self.fail(e.to_string());
        }
        self.join(txg);
        self.note_room();
    }

    /// Requests space: the end of the next txg releases what is held for readers.
    pub(crate) fn press(&self) {
        self.pressed.store(true, Relaxed);
    }

    /// Returns whether space was requested since the last call.
    pub(crate) fn take_pressed(&self) -> bool {
        self.pressed.swap(false, Relaxed)
    }

    fn fail(&self, what: String) {
        self.failed.lock().get_or_insert(what);
    }

    /// Has the next sync flush all metaslabs.
    pub(crate) fn flush_all(&self) {
        self.state.lock().sync.logs.flush_all(FlushAll::Export);
    }

    /// Flushes, over the next txgs, all metaslabs that are unflushed now; `last` is the last synced txg (`zpool condense -t log_spacemap`).
    pub fn condense_logs(&self, last: Txg) {
        self.state.lock().sync.logs.flush_all(FlushAll::Request { upto: last });
    }

    /// Cancels [`PoolSpace::condense_logs`] (`zpool condense -c`).
    pub fn cancel_condense(&self) {
        self.state.lock().sync.logs.cancel();
    }

    /// Returns its progress.
    pub fn condense_progress(&self) -> Progress {
        self.state.lock().sync.logs.progress()
    }

    /// Returns the statistics of the log space maps.
    pub fn log_stats(&self) -> LogSpacemapStats {
        self.state.lock().sync.logs.stats()
    }

    /// As [`PoolSpace::log_stats`], without waiting for a txg that is being synced: then they are what they were when they were asked for last.
    #[must_use]
    pub fn last_log_stats(&self) -> LogSpacemapStats {
        let mut last = self.last_log_stats.lock();
        if let Some(state) = self.state.try_lock() {
            *last = state.sync.logs.stats();
        }
        *last
    }

    /// Sets the checkpoint: blocks born up to `txg` stay allocated when they are freed; `None` if there is no checkpoint any more.
    pub fn set_checkpoint(&self, txg: Option<Txg>) {
        self.checkpoint.store(txg.map_or(0, |t| t.0), Relaxed);
    }

    /// Returns the bytes that datasets may still take, deflated, without slop space (half of it for `netfree`).
    pub fn available(&self, netfree: bool) -> u64 {
        let [room, for_frees] = &self.room;
        if netfree { for_frees } else { room }.load(Relaxed)
    }

    fn note_room(&self) {
        let slop = self.manager.slop();
        let left = self.manager.rdspace().saturating_sub(self.manager.figures(Class::Normal).dalloc);
        let [room, for_frees] = &self.room;
        room.store(left.saturating_sub(slop), Relaxed);
        for_frees.store(left.saturating_sub(slop / 2), Relaxed);
    }

    /// Returns the figures of a class.
    pub fn figures(&self, class: Class) -> SpaceFigures {
        self.manager.figures(class)
    }

    /// Returns the metaslabs in memory.
    pub fn manager(&self) -> &SpaceManager {
        &self.manager
    }

    /// Returns the figures of a top-level vdev.
    pub fn vdev_figures(&self, top: u64) -> SpaceFigures {
        u32::try_from(top).map(|id| self.manager.vdev_figures(id)).unwrap_or_default()
    }

    /// Frees everything on a top-level log vdev, once no log has a block on it. Before the first pass of a txg.
    pub(crate) fn free_vdev(&self, top: u64) -> Result<(), Error> {
        let id = u32::try_from(top).map_err(|_| space::AllocError::Nowhere { vdev: top, offset: 0 })?;
        for ms in (0..).take(self.manager.metaslab_count(id)) {
            if self.manager.with((id, ms), |ms| ms.allocated()) == Some(0) {
                continue;
            }
            self.manager.load((id, ms))?;
            let loaded = self.manager.with((id, ms), |ms| ms.condensed()).flatten();
            let lost = || Error::Bug(format!("metaslab {ms} of vdev {id} is not in memory, though it was just loaded"));
            let (allocated, _) = loaded.ok_or_else(lost)?;
            for range in allocated.iter() {
                self.manager.free(top, range.start, range.end - range.start, false)?;
            }
        }
        Ok(())
    }

    /// Returns the preferred class of a block (OpenZFS: `spa_preferred_class`).
    fn preferred_class(&self, req: &AllocRequest<'_>) -> Class {
        let has = |class| self.manager.has_class(class);
        if req.slog {
            return Class::Log;
        }
        if req.object_type == ObjectType::DDT_ZAP && has(Class::Dedup) {
            return Class::Dedup;
        }
        if !has(Class::Special) {
            return Class::Normal;
        }
        if req.object_type.is_metadata() || req.level > 0 {
            return Class::Special;
        }
        if req.psize <= req.special_small {
            let special = self.manager.figures(Class::Special);
            if special.alloc < special.space / 100 * (100 - SPECIAL_RESERVE_PCT) {
                return Class::Special;
            }
        }
        Class::Normal
    }

    fn request<'a>(&self, req: &AllocRequest<'a>) -> SpaceRequest<'a> {
        let bm = &req.bm;
        let place = match bm.objset {
            // one thread writes all of it
            ObjectId::MOS => 0,
            objset => objset.0 ^ bm.object.0.rotate_left(20) ^ (bm.blkid >> 20).rotate_left(40),
        };
        // Fibonacci hashing: the upper bits are well mixed
        let hint = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        SpaceRequest {
            class: self.preferred_class(req),
            txg: req.txg,
            hint,
            avoid: req.avoid,
            gang: req.gang_child || req.gang_header,
        }
    }

    /// Returns whether a block shall become a gang block, for tests (OpenZFS: `metaslab_force_ganging`).
    fn force_gang(&self, psize: u64) -> bool {
        let pct = tunable::METASLAB_FORCE_GANGING_PCT.get().min(100);
        psize >= tunable::METASLAB_FORCE_GANGING.get()
            && (self.ganged.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 100 < pct
    }

    fn free_range(&self, vdev: u64, offset: u64, asize: u64, checkpoint: bool, depth: usize) -> Result<(), String> {
        let tree = self.tree.load();
        let top = tree.top(vdev).ok_or_else(|| format!("a block on vdev {vdev}, which there is not, is freed"))?;
        if !top.is_indirect() {
            return self.manager.free(vdev, offset, asize, checkpoint).map_err(|e| e.to_string());
        }
        if self.counts_obsolete.load(Relaxed)
            && let Ok(id) = u32::try_from(vdev)
        {
            let mut obsolete = self.obsolete.lock();
            let added = obsolete.entry(id).or_default().add(offset..offset.saturating_add(asize));
            added.map_err(|e| format!("removed vdev {vdev}: {e}"))?;
        }
        let mapping = top.mapping().ok_or_else(|| format!("the mapping of removed vdev {vdev} is not known"))?;
        if depth > tree.tops().len() {
            return Err(format!("the mappings of removed vdev {vdev} lead in a circle"));
        }
        let (mut at, end) = (offset, offset.saturating_add(asize));
        while at < end {
            let entry = mapping.find(at).and_then(|n| mapping.entries().get(n));
            let entry = entry.ok_or_else(|| format!("removed vdev {vdev} has no mapping for offset {at:#x}"))?;
            let into = at - entry.src();
            let len = (entry.dst.asize().saturating_sub(into)).min(end - at);
            if len == 0 {
                return Err(format!("removed vdev {vdev} has no mapping for offset {at:#x}"));
            }
            self.free_range(entry.dst.vdev(), entry.dst.offset() + into, len, checkpoint, depth + 1)?;
            at += len;
        }
        Ok(())
    }
}

fn refused(error: space::AllocError) -> AllocError {
    match error {
        space::AllocError::NoSpace => AllocError::NoSpace,
        other => AllocError::Failed(other.to_string()),
    }
}

impl SpaceSource for PoolSpace {
    fn allocate(&self, req: &AllocRequest<'_>) -> Result<Dva, AllocError> {
        if self.force_gang(req.psize) {
            return Err(AllocError::NoSpace);
        }
        self.manager.allocate(&self.request(req), req.psize).map_err(refused)
    }

    fn allocate_many(&self, reqs: &[AllocRequest<'_>]) -> Vec<Result<Dva, AllocError>> {
        let mut got = Vec::with_capacity(reqs.len());
        let mut places = Vec::new();
        let mut left = reqs;
        while let Some(first) = left.first() {
            let like = self.request(first);
            let same = |r: &&AllocRequest<'_>| {
                let other = self.request(r);
                (other.class, other.txg, other.hint, other.gang) == (like.class, like.txg, like.hint, like.gang)
                    && r.avoid.is_empty()
                    && r.psize < tunable::METASLAB_FORCE_GANGING.get()
            };
            let run = if first.avoid.is_empty() { left.iter().take_while(same).count() } else { 0 };
            if run == 0 {
                let one = self.allocate(first);
                let failed = one.is_err();
                got.push(one);
                if failed {
                    return got;
                }
                left = left.get(1..).unwrap_or_default();
                continue;
            }
            let sizes: Vec<u64> = left.iter().take(run).map(|r| r.psize).collect();
            let all = self.manager.allocate_many(&like, &sizes, &mut places);
            got.extend(places.drain(..).map(Ok));
            if let Err(e) = all {
                got.push(Err(refused(e)));
                return got;
            }
            left = left.get(run..).unwrap_or_default();
        }
        got
    }

    fn release(&self, dva: &Dva, txg: Txg) {
        if let Err(e) = self.manager.release(dva.vdev(), dva.offset(), dva.asize(), txg) {
            self.fail(e.to_string());
        }
    }

    fn free(&self, txg: Txg, dva: &Dva, birth: Txg) {
        let kept = self.checkpoint.load(Relaxed);
        let checkpoint = birth.0 <= kept && txg.0 > kept;
        if let Err(e) = self.free_range(dva.vdev(), dva.offset(), dva.asize(), checkpoint, 0) {
            self.fail(e);
        }
    }

    fn claim(&self, txg: Txg, dva: &Dva) -> Result<(), AllocError> {
        self.manager.claim(dva.vdev(), dva.offset(), dva.asize(), txg).map_err(refused)
    }

    fn asize(&self, vdev: u64, psize: u64) -> u64 {
        self.tree.load().top(vdev).map_or(psize, |top| top.psize_to_asize(psize))
    }
}
