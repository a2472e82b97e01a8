//! Writing the space changes of a pool in each txg.
//!
//! With logs (feature `log_spacemap`), a pass appends all allocations and frees to the log of the txg, and the first pass flushes
//! some metaslabs; nothing else is touched. Without logs, each changed metaslab's own map is appended to. A [`MapStore`] decides
//! where the bytes are stored.
//!
//! A pass logs all allocations first, then all frees: space freed in a txg is not allocated again in it, so no other order is
//! ever needed.
//!
//! A space map's header is written to disk together with its entries. With logs its histogram may therefore be as old as its last
//! flush, while OpenZFS writes all dirty headers in each txg. The histogram determines which metaslabs are tried first, and
//! OpenZFS relies on it never to promise more than exists: so a header whose largest segments were used up is written in the same
//! txg. A header that misses recent frees does no harm.
//!
//! OpenZFS: `metaslab_sync`, `metaslab_flush`, `metaslab_condense`, `spa_flush_metaslabs`, `spa_generate_syncing_log_sm`.

use std::collections::BTreeMap;

use base::{ObjectId, Txg, pump};
use ondisk::spacemap::Action;

use crate::flush::{FlushAll, LogSpace, MetaslabId};
use crate::manager::SpaceManager;
use crate::metaslab::{MapInfo, Metaslab};
use crate::{AllocError, Encoder, MapGeometry, RangeTree};

/// The store of space map objects.
pub trait MapStore {
    /// The errors of the store, which include those of the space accounting.
    type Error: From<AllocError>;

    /// Creates an empty map for a metaslab, and records it in the metaslab array.
    ///
    /// # Errors
    /// If it cannot be made.
    fn create(&mut self, id: MetaslabId) -> Result<MapInfo, Self::Error>;

    /// Empties a metaslab's map, possibly by replacing its object.
    ///
    /// # Errors
    /// If it cannot be changed.
    fn truncate(&mut self, id: MetaslabId, map: &MapInfo) -> Result<MapInfo, Self::Error>;

    /// Writes `bytes` at `at` into the map's object.
    ///
    /// # Errors
    /// If they cannot be written.
    fn append(&mut self, map: &MapInfo, at: u64, bytes: Vec<u8>) -> Result<(), Self::Error>;

    /// Writes the map's header.
    ///
    /// # Errors
    /// If it cannot be written.
    fn write_header(&mut self, map: &MapInfo) -> Result<(), Self::Error>;

    /// Creates the log of `txg`, and records it in the list of logs.
    ///
    /// # Errors
    /// If it cannot be made.
    fn create_log(&mut self, txg: Txg) -> Result<MapInfo, Self::Error>;

    /// Destroys a log that is no longer needed.
    ///
    /// # Errors
    /// If it cannot be.
    fn destroy_log(&mut self, txg: Txg, object: ObjectId) -> Result<(), Self::Error>;

    /// Records the unflushed txg of a metaslab.
    ///
    /// # Errors
    /// If it cannot be.
    fn set_unflushed(&mut self, id: MetaslabId, txg: Txg) -> Result<(), Self::Error>;

    /// Returns the map of the space that only the checkpoint holds on a vdev, created if missing; and its geometry.
    ///
    /// # Errors
    /// If it cannot be made.
    fn checkpoint(&mut self, vdev: u32) -> Result<(MapInfo, MapGeometry), Self::Error>;
}

/// The pool features that matter here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncFeatures {
    /// True if `log_spacemap` is enabled: there are logs.
    pub logs: bool,
    /// True if `spacemap_v2` is active: entries may have two words.
    pub two_words: bool,
}

/// Writes the space changes of a pool, txg by txg.
pub struct SpaceSync {
    /// The logs, and the unflushed txg of each metaslab.
    pub logs: LogSpace,
    features: SyncFeatures,
    /// The log of the syncing txg.
    current: Option<(Txg, MapInfo)>,
    flushes: u64,
    condenses: u64,
    /// The metaslab of each space map object, once looked up.
    maps: BTreeMap<ObjectId, MetaslabId>,
}

/// Number of objects whose headers share a block of the MOS, if none of them is large.
const OBJECTS_PER_BLOCK: u64 = 32;

/// The state of one pass.
struct Pass<'a, S> {
    mgr: &'a SpaceManager,
    store: &'a mut S,
    txg: Txg,
    pass: u32,
}

impl SpaceSync {
    /// Creates it with the logs that an import found.
    #[must_use]
    pub const fn new(logs: LogSpace, features: SyncFeatures) -> Self {
        SpaceSync { logs, features, current: None, flushes: 0, condenses: 0, maps: BTreeMap::new() }
    }

    /// Forgets a removed vdev; its unflushed changes took `memory` bytes.
    pub fn forget(&mut self, vdev: u32, memory: u64) {
        self.logs.forget_vdev(vdev, memory);
        self.maps.retain(|_, (of, _)| *of != vdev);
    }

    /// Updates the features after some were enabled.
    pub const fn set_features(&mut self, features: SyncFeatures) {
        self.features = features;
    }

    /// Writes the allocations and frees made so far in `txg`. `idle` says that nothing else changes in this txg, so that flushing
    /// can wait.
    ///
    /// # Errors
    /// Errors of the store; [`AllocError`] if something was freed twice, or freed without being allocated.
    pub fn pass<S: MapStore>(
        &mut self,
        mgr: &SpaceManager,
        store: &mut S,
        txg: Txg,
        pass: u32,
        idle: bool,
    ) -> Result<(), S::Error> {
        let mut p = Pass { mgr, store, txg, pass };
        let wanted = self.logs.mode() != FlushAll::No;
        if pass == 1 {
            (self.flushes, self.condenses) = (0, 0);
            if self.features.logs && (wanted || !idle || mgr.has_work(txg)) {
                self.flush(&mut p)?;
            }
        }
        let work = mgr.start_pass(txg)?;
        if work.is_empty() {
            return Ok(());
        }
        let log = if self.features.logs { Some(self.open_log(&mut p)?) } else { None };
        let mut entries = log.map(|map| LogEntries {
            encoder: Encoder::new(MapGeometry::LOG, map.header.length, map.block, true),
            frees: Vec::new(),
            allocs: false,
            map,
        });
        for id in work {
            let done = mgr.with(id, |ms| self.metaslab(&mut p, id, ms, entries.as_mut()));
            done.ok_or_else(|| gone(id))??;
        }
        match entries {
            Some(entries) => self.write_log(&mut p, entries),
            None => Ok(()),
        }
    }

    fn metaslab<S: MapStore>(
        &mut self,
        p: &mut Pass<'_, S>,
        id: MetaslabId,
        ms: &mut Metaslab,
        log: Option<&mut LogEntries>,
    ) -> Result<(), S::Error> {
        let state = |source| AllocError::State { vdev: id.0, source };
        let mut header = log.is_none();
        if ms.map.is_none() {
            ms.map = Some(p.store.create(id)?);
            header = true;
        }
        if p.pass == 1 && ms.should_condense(self.features.two_words) {
            self.condense(p, id, ms)?;
        }
        let work = ms.take_work(p.txg);
        if work.is_empty() {
            return Ok(());
        }
        if let Some(log) = log {
            if self.logs.dirtied(id, p.txg) {
                p.store.set_unflushed(id, p.txg)?;
            }
            log.add(p.txg, p.pass, id.0, &work.allocs, work.frees.iter());
            let grown = ms.logged(&work).map_err(state)?;
            self.logs.memory_changed(grown);
        } else {
            self.append(p, ms, [(Action::Alloc, p.txg, &work.allocs), (Action::Free, p.txg, &work.frees)])?;
        }
        if !work.checkpointing.is_empty() {
            let (mut map, geometry) = p.store.checkpoint(id.0)?;
            let mut encoder = Encoder::new(geometry, map.header.length, map.block, self.features.two_words);
            encoder.batch(Action::Free, p.pass, p.txg, &work.checkpointing, None);
            extend(p.store, &mut map, encoder)?;
            p.store.write_header(&map)?;
        }
        ms.pass_done(work).map_err(state)?;
        if header || ms.promises_too_much() { write_header(p.store, id, ms) } else { Ok(()) }
    }

    /// Appends to a metaslab's own map; its header is written by the caller.
    fn append<'t, S: MapStore>(
        &self,
        p: &mut Pass<'_, S>,
        ms: &mut Metaslab,
        batches: impl IntoIterator<Item = (Action, Txg, &'t RangeTree)>,
    ) -> Result<(), S::Error> {
        let geometry = *ms.geometry();
        let Some(map) = ms.map.as_mut() else { panic!("metaslab {} has no map for its changes", ms.id()) };
        let mut encoder = Encoder::new(geometry, map.header.length, map.block, self.features.two_words);
        for (action, txg, tree) in batches {
            encoder.batch(action, p.pass, txg, tree, None);
        }
        extend(p.store, map, encoder)
    }

    /// Rewrites a metaslab's map with only the allocated space, and with the held space as allocated and freed; that flushes it,
    /// too.
    fn condense<S: MapStore>(
        &mut self,
        p: &mut Pass<'_, S>,
        id: MetaslabId,
        ms: &mut Metaslab,
    ) -> Result<(), S::Error> {
        let (Some(map), Some((allocated, held))) = (ms.map.as_ref(), ms.condensed()) else {
            panic!("metaslab {} is rewritten and not loaded", ms.id());
        };
        ms.map = Some(p.store.truncate(id, map)?);
        let all: RangeTree = allocated.iter().chain(held.ranges()).collect();
        let frees = held.by_txg().map(|(txg, tree)| (Action::Free, txg, tree));
        self.append(p, ms, [(Action::Alloc, p.txg, &all)].into_iter().chain(frees))?;
        let freed = ms.flushed();
        ms.adopt_histogram();
        self.logs.memory_changed(-freed);
        self.condenses += 1;
        if self.logs.unflushed_txg(id).is_some() && self.logs.has_log(p.txg) {
            self.logs.flushed(id, p.txg);
            p.store.set_unflushed(id, p.txg)?;
        }
        write_header(p.store, id, ms)
    }

    /// Flushes as many metaslabs as the limits require, and destroys the logs that become obsolete.
    ///
    /// A flush writes a little to the map and its header. So together with the oldest metaslabs, younger ones whose headers share
    /// a block with theirs are flushed, at most as many again: from then on these have the same age, and a txg writes few such
    /// blocks, however many metaslabs there are. A metaslab that is flushed early need not be flushed later, which lowers the
    /// next targets.
    fn flush<S: MapStore>(&mut self, p: &mut Pass<'_, S>) -> Result<(), S::Error> {
        if self.logs.mode() == FlushAll::Export {
            mend_headers(p)?;
        }
        let mut wanted = self.logs.target(p.txg);
        let mut early = wanted.saturating_sub(1);
        while let Some((id, _)) = self.logs.next_to_flush(p.txg, wanted) {
            self.open_log(p)?;
            wanted -= self.flush_turn(p, id)?.min(wanted);
            if early == 0 {
                continue;
            }
            for other in self.neighbours(p.mgr, id) {
                let due = self.logs.is_dirty(other) && self.logs.unflushed_txg(other) < Some(p.txg);
                if early > 0 && due {
                    early -= self.flush_turn(p, other)?.min(early);
                }
            }
        }
        self.drop_obsolete(p)
    }

    /// Flushes one metaslab. Returns 1 if it had something to flush.
    fn flush_turn<S: MapStore>(&mut self, p: &mut Pass<'_, S>, id: MetaslabId) -> Result<u64, S::Error> {
        let dirty = self.logs.is_dirty(id);
        if dirty {
            let mgr = p.mgr;
            mgr.with(id, |ms| self.flush_one(p, id, ms)).ok_or_else(|| gone(id))??;
            self.flushes += 1;
        }
        if self.logs.unflushed_txg(id) != Some(p.txg) {
            self.logs.flushed(id, p.txg);
            p.store.set_unflushed(id, p.txg)?;
        }
        Ok(u64::from(dirty))
    }

    /// Returns the metaslabs whose map headers are in the same block as that of `id`.
    fn neighbours(&mut self, mgr: &SpaceManager, id: MetaslabId) -> Vec<MetaslabId> {
        let map = |id| mgr.with(id, |ms| ms.map.as_ref().map(|map| map.object)).flatten();
        if self.maps.is_empty() {
            self.maps = mgr.metaslabs().into_iter().filter_map(|id| Some((map(id)?, id))).collect();
        }
        let Some(object) = map(id) else { return Vec::new() };
        self.maps.insert(object, id);
        let first = ObjectId(object.0 - object.0 % OBJECTS_PER_BLOCK);
        let block = self.maps.range(first..first.saturating_add(OBJECTS_PER_BLOCK));
        // a rewrite may have given a metaslab another object
        block.filter(|(object, other)| **other != id && map(**other) == Some(**object)).map(|(_, id)| *id).collect()
    }

    fn drop_obsolete<S: MapStore>(&mut self, p: &mut Pass<'_, S>) -> Result<(), S::Error> {
        // if this txg has no log, nothing was flushed in it
        if self.logs.has_log(p.txg) {
            for (txg, object) in self.logs.take_obsolete() {
                p.store.destroy_log(txg, object)?;
            }
            self.logs.set_block_limit();
        }
        Ok(())
    }

    fn flush_one<S: MapStore>(
        &mut self,
        p: &mut Pass<'_, S>,
        id: MetaslabId,
        ms: &mut Metaslab,
    ) -> Result<(), S::Error> {
        if ms.map.is_none() {
            ms.map = Some(p.store.create(id)?);
        }
        if ms.should_condense(self.features.two_words) {
            return self.condense(p, id, ms);
        }
        self.logs.memory_changed(-(ms.unflushed.memory() as i64));
        let since = self.logs.unflushed_txg(id).unwrap_or_default();
        let flushed = ms.flush(since, p.mgr.released());
        let (allocs, frees) = flushed.map_err(|source| AllocError::State { vdev: id.0, source })?;
        let frees = frees.by_txg().map(|(txg, tree)| (Action::Free, txg, tree));
        self.append(p, ms, [(Action::Alloc, p.txg, &allocs)].into_iter().chain(frees))?;
        write_header(p.store, id, ms)
    }

    /// Returns the log of this txg, creating it if necessary.
    fn open_log<S: MapStore>(&mut self, p: &mut Pass<'_, S>) -> Result<MapInfo, S::Error> {
        if let Some((_, map)) = self.current.as_ref().filter(|(txg, _)| *txg == p.txg) {
            return Ok(map.clone());
        }
        let map = p.store.create_log(p.txg)?;
        self.logs.start(p.txg, map.object);
        self.current = Some((p.txg, map.clone()));
        Ok(map)
    }

    fn write_log<S: MapStore>(&mut self, p: &mut Pass<'_, S>, entries: LogEntries) -> Result<(), S::Error> {
        let LogEntries { mut encoder, frees, mut map, .. } = entries;
        if !frees.is_empty() {
            encoder.intro(Action::Free, p.pass, p.txg);
            frees.iter().for_each(|(vdev, range)| encoder.run(Action::Free, range, Some(*vdev)));
        }
        extend(p.store, &mut map, encoder)?;
        p.store.write_header(&map)?;
        self.current = Some((p.txg, map));
        // a rewrite may have flushed the oldest metaslab
        self.drop_obsolete(p)
    }

    /// Completes `txg`. Must be called before [`SpaceManager::sync_done`].
    pub fn sync_done(&mut self, txg: Txg) {
        if let Some((_, map)) = self.current.take_if(|(t, _)| *t == txg) {
            self.logs.close(txg, map.header.length.div_ceil(map.block.max(1)));
        }
        self.logs.count(self.flushes, self.condenses);
        (self.flushes, self.condenses) = (0, 0);
        if self.logs.mode() == FlushAll::Export || !self.features.logs {
            self.logs.flush_all_done();
        }
    }
}

/// The entries that a pass appends to the log.
struct LogEntries {
    map: MapInfo,
    encoder: Encoder,
    allocs: bool,
    frees: Vec<(u32, std::ops::Range<u64>)>,
}

impl LogEntries {
    fn add(
        &mut self,
        txg: Txg,
        pass: u32,
        vdev: u32,
        allocs: &crate::RangeTree,
        frees: impl Iterator<Item = std::ops::Range<u64>>,
    ) {
        if !allocs.is_empty() && !std::mem::replace(&mut self.allocs, true) {
            self.encoder.intro(Action::Alloc, pass, txg);
        }
        allocs.iter().for_each(|range| self.encoder.run(Action::Alloc, &range, Some(vdev)));
        self.frees.extend(frees.map(|range| (vdev, range)));
    }
}

fn extend<S: MapStore>(store: &mut S, map: &mut MapInfo, encoder: Encoder) -> Result<(), S::Error> {
    let (bytes, delta) = encoder.finish();
    if bytes.is_empty() {
        return Ok(());
    }
    let (at, len) = (map.header.length, bytes.len() as u64);
    store.append(map, at, bytes)?;
    map.header.length += len;
    map.header.alloc += delta;
    Ok(())
}

/// Writes the headers that promise more than exists: older versions left such headers with log space maps. Reads all maps to find
/// them.
fn mend_headers<S: MapStore>(p: &mut Pass<'_, S>) -> Result<(), S::Error> {
    let found = pump::all(p.mgr.metaslabs(), |id| p.mgr.promises_too_much(*id).then_some(*id));
    for id in found.into_iter().flatten() {
        p.mgr.with(id, |ms| write_header(p.store, id, ms)).ok_or_else(|| gone(id))??;
    }
    Ok(())
}

/// The error of a metaslab with changes that its vdev does not have.
fn gone((vdev, id): MetaslabId) -> AllocError {
    AllocError::Load { vdev, metaslab: id, cause: "it has changes, and is not there".to_owned() }
}

fn write_header<S: MapStore>(store: &mut S, id: MetaslabId, ms: &mut Metaslab) -> Result<(), S::Error> {
    ms.adds_up().map_err(|source| AllocError::State { vdev: id.0, source })?;
    let histogram = ms.header_histogram();
    let Some(map) = ms.map.as_mut() else { return Ok(()) };
    // an old header has no room for a histogram
    if map.header.histogram.is_some() {
        map.header.histogram = histogram.or(map.header.histogram);
    }
    store.write_header(map)
}

#[cfg(test)]
#[path = "sync_tests.rs"]
mod tests;
