//! A metaslab: the states of its space between free and allocated.
//!
//! ```text
//!             allocate                sync of txg                     (log) flush
//!   free ──────────────► allocating[txg] ──► allocated, in log or map ───────────► in its own map
//!     ▲                                                      │ free
//!     └───── held ◄───────── freed ◄──────── freeing ◄───────┘
//!          two txgs later     sync_done        sync
//! ```
//!
//! Space freed in a txg may be reused two txgs later, or when no reader uses the pool as it was before ([`Held`]). The free tree
//! is in memory only while the metaslab is *loaded*; everything else always is, except the last frees in the map of a pool that
//! was just opened: they are found when the map is first read, and nothing can be allocated before that.
//!
//! Invariants: all sets are disjoint. `freed` and `held` already count as free in the map and the unflushed changes, while
//! `allocating` does not count as allocated there yet. A metaslab that is not loaded has nothing in `allocating`.
//!
//! OpenZFS: `metaslab_t`, `metaslab_sync`, `metaslab_sync_done`, `metaslab_load`, `metaslab_condense`, `metaslab_weight`.

use std::ops::Range;

use base::{ObjectId, Txg, tunable};
use ondisk::spacemap::{Action, HISTOGRAM_BUCKETS, SpaceMapHeader};

use crate::log::MetaslabChanges;
use crate::{AllocError, Error, FreeSpace, Held, MapGeometry, RangeTree, Recent, add_to_histogram, optimal_length};

/// The minimum time for which freed space is deferred, in txgs (OpenZFS: `TXG_DEFER_SIZE`).
pub const DEFER_TXGS: usize = 2;
/// Bytes of the longest entry of a map.
const LONG_ENTRY: u64 = 16;
/// Number of slots for concurrent txgs (OpenZFS: `TXG_SIZE`).
pub(crate) const TXG_SLOTS: usize = 4;
/// A map with at most this many blocks is not worth a rewrite (OpenZFS: `zfs_metaslab_condense_block_threshold`).
const CONDENSE_BLOCKS: u64 = 4;
/// The fragmentation of free segments by size: 512 bytes, 1 KiB, … 512 MiB (OpenZFS: `zfs_frag_table`).
const FRAGMENTATION: [u64; 21] = [100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1, 0];
/// The bit position, in a weight, of the bucket of the largest segments.
const WEIGHT_INDEX_SHIFT: u32 = 54;

/// Reads the space maps when metaslabs are loaded.
pub trait MetaslabLoader: Send + Sync {
    /// Returns the allocated bytes of a metaslab according to its own current map, including what was appended in the syncing
    /// txg; and the ranges that the map says were freed in `recent` txgs.
    ///
    /// # Errors
    /// A description of the error.
    fn load(
        &self,
        vdev: u32,
        metaslab: u32,
        map: &MapInfo,
        geometry: &MapGeometry,
        recent: Recent,
    ) -> Result<(RangeTree, Held), String>;
}

/// The space map object of a metaslab.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MapInfo {
    /// The object.
    pub object: ObjectId,
    /// Its header. In memory it is always current; on disk it may be older, see the caller.
    pub header: SpaceMapHeader,
    /// The size of its blocks in bytes.
    pub block: u64,
}

/// The changes of a metaslab that a sync pass writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PassWork {
    /// Allocated in this txg.
    pub allocs: RangeTree,
    /// Freed in this pass.
    pub frees: RangeTree,
    /// Freed in this pass, but kept for the checkpoint.
    pub checkpointing: RangeTree,
}

impl PassWork {
    /// True if there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allocs.is_empty() && self.frees.is_empty() && self.checkpointing.is_empty()
    }
}

/// The change of the space figures when a txg is synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceDelta {
    /// Allocated bytes, including deferred ones.
    pub alloc: i64,
    /// Deferred bytes.
    pub deferred: i64,
    /// Total bytes.
    pub space: i64,
}

/// One metaslab (OpenZFS: `metaslab_t`).
#[derive(Clone, Debug)]
pub struct Metaslab {
    id: u32,
    geometry: MapGeometry,
    /// Its own map; `None` before anything was allocated.
    pub map: Option<MapInfo>,
    /// Changes that are in logs but not in its own map.
    pub unflushed: MetaslabChanges,
    free: Option<Box<FreeSpace>>,
    allocating: [RangeTree; TXG_SLOTS],
    freeing: RangeTree,
    freed: RangeTree,
    held: Held,
    /// The txg in which the pool was opened, until its map is read: the map may list the last frees before it.
    opened: Txg,
    checkpointing: RangeTree,
    /// Allocated, as of the last pass.
    allocated: u64,
    allocated_this_txg: u64,
    /// Approximate free segments by size, while it is not loaded.
    histogram: Option<Box<[u64; HISTOGRAM_BUCKETS]>>,
    /// True if everything that the histogram counts is known to be free: a guess is never written to disk.
    certain: bool,
    /// The smallest size for which allocation failed since space was last released.
    failed: u64,
    selected: Txg,
    /// Bit masks of the txgs in whose dirty list and work list it is.
    pub(crate) dirty: u8,
    pub(crate) work: u8,
    new: bool,
    broken: bool,
    condense_wanted: bool,
    /// How often it is disabled: nothing is allocated until it is enabled as often.
    disabled: u32,
    /// What was freed since it was last trimmed, and may be allocated again; it may have been since. `None` if that is of no interest.
    to_trim: Option<RangeTree>,
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

const fn slot(txg: Txg) -> usize {
    (txg.0 % TXG_SLOTS as u64) as usize
}

/// Returns the bucket of the largest segments and their number, which determine the weight.
fn largest_of(histogram: &[u64; HISTOGRAM_BUCKETS]) -> (usize, u64) {
    histogram.iter().copied().enumerate().rev().find(|(_, count)| *count > 0).unwrap_or_default()
}

impl Metaslab {
    /// Creates a metaslab with its own map (if it has one) and the changes that logs hold. `histograms`: feature
    /// `spacemap_histogram`.
    #[must_use]
    pub fn new(
        id: u32,
        geometry: MapGeometry,
        map: Option<MapInfo>,
        unflushed: MetaslabChanges,
        histograms: bool,
    ) -> Self {
        let stored = map.as_ref().map_or(0, |m| m.header.alloc);
        let changes = signed(unflushed.allocs.total()) - signed(unflushed.frees.total());
        let allocated = stored.checked_add(changes).and_then(|n| u64::try_from(n).ok());
        if allocated.is_none() {
            let object = map.as_ref().map_or(0, |m| m.object.0);
            tracing::error!(target: "zuse::space", metaslab = id, object, stored, changes, "allocated space cannot be; the metaslab is not used");
        }
        let empty = || Box::new([0; HISTOGRAM_BUCKETS]);
        let (histogram, condense_wanted) = match &map {
            Some(m) => (m.header.histogram.map(Box::new), histograms && m.header.histogram.is_none()),
            None => (Some(empty()), false),
        };
        let mut this = Metaslab {
            id,
            geometry,
            map,
            unflushed,
            free: None,
            allocating: Default::default(),
            freeing: RangeTree::new(),
            freed: RangeTree::new(),
            held: Held::default(),
            opened: Txg(0),
            checkpointing: RangeTree::new(),
            allocated: allocated.unwrap_or(0),
            allocated_this_txg: 0,
            histogram: histogram.filter(|_| histograms),
            certain: true,
            failed: u64::MAX,
            selected: Txg(0),
            dirty: 0,
            work: 0,
            new: false,
            broken: allocated.is_none(),
            condense_wanted,
            disabled: 0,
            to_trim: None,
        };
        this.guess_histogram();
        this
    }

    /// Sets the state after the pool was opened in txg `opened`: the recent frees found in logs; its map may hold more.
    #[must_use]
    pub fn opened(mut self, opened: Txg, held: Held) -> Self {
        (self.opened, self.held) = (opened, held);
        self.guess_histogram();
        self
    }

    /// Estimates the usable segments by size, without reading its map.
    fn guess_histogram(&mut self) {
        let Some(h) = self.histogram.as_mut() else { return };
        let header = self.map.as_ref().and_then(|map| map.header.histogram);
        **h = header.unwrap_or([0; HISTOGRAM_BUCKETS]);
        // the header may already count these, and held space
        self.certain = self.unflushed.frees.is_empty() && self.held.is_empty();
        let mut usable = self.unflushed.frees.clone();
        if self.allocated == 0 {
            **h = [0; HISTOGRAM_BUCKETS];
            usable = [self.geometry.range()].into_iter().collect();
        }
        for range in self.held.ranges() {
            usable.clear(range);
        }
        add_to_histogram(h, usable.histogram().into_iter(), self.geometry.shift);
    }

    /// Marks it as part of a vdev that is being added: nothing may be allocated before this txg is synced.
    #[must_use]
    pub fn added(mut self) -> Self {
        self.new = true;
        self
    }

    /// Returns its number on the vdev.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Returns its range, and the unit of its map.
    #[must_use]
    pub const fn geometry(&self) -> &MapGeometry {
        &self.geometry
    }

    /// Returns the allocated bytes as of the last sync pass (OpenZFS: `ms_allocated_space`).
    #[must_use]
    pub const fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Returns the bytes that were freed and may not be reused yet.
    #[must_use]
    pub const fn deferred(&self) -> u64 {
        self.held.total()
    }

    /// True if the free tree is in memory.
    #[must_use]
    pub const fn is_loaded(&self) -> bool {
        self.free.is_some()
    }

    /// True if it belongs to a vdev that is being added.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.new
    }

    /// Disables it: nothing is allocated there until it is enabled again (OpenZFS: `metaslab_disable`).
    pub const fn disable(&mut self) {
        self.disabled += 1;
    }

    /// Undoes [`Metaslab::disable`].
    pub const fn enable(&mut self) {
        self.disabled -= 1;
    }

    /// Keeps what is freed from now on, for a trim, or forgets it (OpenZFS: `ms_trim`).
    pub fn keep_freed(&mut self, keeps: bool) {
        self.to_trim = keeps.then(|| self.to_trim.take().unwrap_or_default());
    }

    /// Returns whether it has kept anything that was freed.
    #[must_use]
    pub fn has_freed(&self) -> bool {
        self.to_trim.as_ref().is_some_and(|freed| !freed.is_empty())
    }

    /// Takes what it has kept, as far as that is free now; nothing if it is not loaded.
    pub fn take_freed(&mut self) -> RangeTree {
        let kept = self.to_trim.as_mut().map(std::mem::take).unwrap_or_default();
        let Some(free) = &self.free else { return RangeTree::new() };
        kept.iter().flat_map(|range| free.overlaps(&range).collect::<Vec<_>>()).collect()
    }

    /// Returns whether nothing may be allocated there now.
    const fn is_closed(&self) -> bool {
        self.new || self.broken || self.disabled > 0
    }

    /// Returns the free space, if it is loaded.
    #[must_use]
    pub fn free_space(&self) -> Option<&FreeSpace> {
        self.free.as_deref()
    }

    /// Builds the free tree, if it is not loaded. Space freed up to `released` is not held. Returns the change of the figures
    /// caused by newly held space.
    ///
    /// # Errors
    /// [`AllocError::Load`]; the metaslab is not used from then on.
    pub fn load(&mut self, vdev: u32, loader: &dyn MetaslabLoader, released: Txg) -> Result<SpaceDelta, AllocError> {
        if self.free.is_some() {
            return Ok(SpaceDelta::default());
        }
        let recent = Recent { after: released, upto: self.opened };
        let made = self.make_free(vdev, loader, recent).and_then(|(mut free, found)| {
            let newly = self.hold(&mut free, &found).map_err(|e| e.to_string())?;
            Ok((free, newly))
        });
        match made {
            Ok((free, newly)) => {
                self.free = Some(Box::new(FreeSpace::new(&free, self.geometry.size, self.geometry.shift)));
                self.failed = u64::MAX;
                self.opened = Txg(0);
                Ok(SpaceDelta { alloc: newly, deferred: newly, space: 0 })
            }
            Err(cause) => {
                self.broken = true;
                Err(AllocError::Load { vdev, metaslab: self.id, cause })
            }
        }
    }

    /// Holds those parts of `found` that are still free. Returns their size.
    fn hold(&mut self, free: &mut RangeTree, found: &Held) -> Result<i64, Error> {
        let before = self.held.total();
        for (txg, tree) in found.by_txg() {
            for range in tree.iter() {
                let parts: Vec<Range<u64>> = free.overlaps(range).collect();
                for part in parts {
                    free.remove(part.clone())?;
                    self.held.add(txg, part)?;
                }
            }
        }
        Ok(signed(self.held.total() - before))
    }

    /// Returns all usable space, and the parts of it that were freed in `recent` txgs.
    fn make_free(&self, vdev: u32, loader: &dyn MetaslabLoader, recent: Recent) -> Result<(RangeTree, Held), String> {
        let (mut allocated, found) = match &self.map {
            Some(map) if map.header.length > 0 => loader.load(vdev, self.id, map, &self.geometry, recent)?,
            _ => Default::default(),
        };
        self.unflushed.update(&mut allocated).map_err(|e| e.to_string())?;
        if allocated.total() != self.allocated {
            return Err(format!("the map has {} allocated bytes, expected {}", allocated.total(), self.allocated));
        }
        let mut free = allocated.complement(self.geometry.range());
        let held = [&self.freed].into_iter().chain(&self.allocating).flat_map(RangeTree::iter);
        held.chain(self.held.ranges()).try_for_each(|r| free.remove(r)).map_err(|e| e.to_string())?;
        Ok((free, found))
    }

    /// Drops the free tree, if nothing is being allocated and it was last used more than `delay` txgs before `txg`. Returns true
    /// if it did.
    pub fn unload(&mut self, txg: Txg, delay: u64) -> bool {
        let idle = self.disabled == 0
            && self.selected.0.saturating_add(delay) < txg.0
            && self.allocating.iter().all(RangeTree::is_empty);
        let Some(free) = self.free.take_if(|_| idle) else { return false };
        if let Some(h) = self.histogram.as_mut() {
            **h = [0; HISTOGRAM_BUCKETS];
            add_to_histogram(h, free.counts().iter().map(|n| u64::from(*n)), self.geometry.shift);
            self.certain = true;
        }
        true
    }

    /// Allocates a run of blocks. Appends the offsets of those that fit, and returns their number: 0 if it is not loaded, or is disabled.
    pub fn allocate(&mut self, txg: Txg, sizes: &[u64], offsets: &mut Vec<u64>) -> usize {
        if self.disabled > 0 {
            return 0;
        }
        let Some(free) = self.free.as_mut() else { return 0 };
        let Some(allocating) = self.allocating.get_mut(slot(txg)) else { return 0 };
        let mut run = 0..0;
        let mut count = 0;
        for size in sizes {
            let Some(at) = free.allocate(*size) else {
                self.failed = self.failed.min(*size);
                break;
            };
            offsets.push(at);
            count += 1;
            if run.end == at {
                run.end += size;
            } else {
                // free space cannot be in `allocating`; what is not noted there would be allocated once more
                let added = allocating.add(std::mem::replace(&mut run, at..at + size));
                assert!(added.is_ok(), "metaslab {}: {added:?}", self.id);
            }
        }
        let added = allocating.add(run);
        assert!(added.is_ok(), "metaslab {}: {added:?}", self.id);
        self.selected = txg;
        count
    }

    /// Allocates exactly this range, which the intent log uses (OpenZFS: `metaslab_claim_concrete`); it may be held. Returns the
    /// change of the figures caused by space that is no longer held.
    ///
    /// # Errors
    /// [`Error::Absent`] if it is not free; [`Error::OutOfMap`] if it is not in whole units within the metaslab.
    pub fn claim(&mut self, txg: Txg, range: Range<u64>) -> Result<SpaceDelta, Error> {
        self.check_in_units(&range)?;
        let absent = Error::Absent { start: range.start, end: range.end };
        let free = self.free.as_mut().ok_or(absent.clone())?;
        let before = self.held.total();
        let parts = self.held.take(&range);
        parts.iter().try_for_each(|(_, part)| free.add(part.clone()))?;
        if let Err(e) = free.remove(range.clone()) {
            for (freed, part) in parts {
                free.remove(part.clone())?;
                self.held.add(freed, part)?;
            }
            return Err(e);
        }
        self.allocating.get_mut(slot(txg)).ok_or(absent)?.add(range)?;
        let taken = signed(before - self.held.total());
        Ok(SpaceDelta { alloc: -taken, deferred: -taken, space: 0 })
    }

    /// Undoes an allocation of `txg` that is not yet written to a map or log.
    ///
    /// # Errors
    /// [`Error::Absent`] if it was not allocated in `txg`, or is already written.
    pub fn unallocate(&mut self, txg: Txg, range: Range<u64>) -> Result<(), Error> {
        let absent = Error::Absent { start: range.start, end: range.end };
        self.allocating.get_mut(slot(txg)).ok_or(absent)?.remove(range.clone())?;
        self.free.as_mut().map_or(Ok(()), |free| free.add(range))
    }

    /// Frees a range in the syncing txg; with `checkpoint` it stays allocated for the checkpoint.
    ///
    /// # Errors
    /// [`Error::Overlap`] if it is free already, [`Error::OutOfMap`] if it is not of this metaslab.
    pub fn free(&mut self, range: Range<u64>, checkpoint: bool) -> Result<(), Error> {
        self.check_in_units(&range)?;
        let taken = Error::Overlap { start: range.start, end: range.end };
        let free = self.free.as_ref().is_some_and(|f| f.intersects(&range));
        let freed = [&self.freed, &self.freeing, &self.checkpointing];
        if free || freed.into_iter().any(|tree| tree.intersects(range.clone())) || self.held.intersects(&range) {
            return Err(taken);
        }
        if checkpoint { self.checkpointing.add(range) } else { self.freeing.add(range) }
    }

    /// Checks that a range, which may come from a block pointer, is within the metaslab and in whole units of its map.
    fn check_in_units(&self, range: &Range<u64>) -> Result<(), Error> {
        let whole = self.geometry.range();
        let unit = 1u64 << self.geometry.shift;
        let fits = range.start >= whole.start
            && range.end <= whole.end
            && range.start.is_multiple_of(unit)
            && range.end.is_multiple_of(unit);
        let misfit = Error::OutOfMap { offset: range.start, run: range.end.saturating_sub(range.start) };
        if fits { Ok(()) } else { Err(misfit) }
    }

    /// Takes the changes that a sync pass of `txg` has to write.
    pub fn take_work(&mut self, txg: Txg) -> PassWork {
        let allocs = self.allocating.get_mut(slot(txg)).map(std::mem::take).unwrap_or_default();
        let (frees, checkpointing) = (std::mem::take(&mut self.freeing), std::mem::take(&mut self.checkpointing));
        PassWork { allocs, frees, checkpointing }
    }

    /// Notes that the work is in the log of the txg. Returns the growth of the memory of unflushed changes.
    ///
    /// # Errors
    /// [`Error::Overlap`]: allocated or freed twice.
    pub fn logged(&mut self, work: &PassWork) -> Result<i64, Error> {
        let before = self.unflushed.memory() as i64;
        work.allocs.iter().try_for_each(|r| self.unflushed.apply(Action::Alloc, r))?;
        work.frees.iter().try_for_each(|r| self.unflushed.apply(Action::Free, r))?;
        Ok(self.unflushed.memory() as i64 - before)
    }

    /// Notes that the work is written.
    ///
    /// # Errors
    /// [`Error::Absent`] if more was freed than allocated, [`Error::Overlap`] if something was freed twice.
    pub fn pass_done(&mut self, work: PassWork) -> Result<(), Error> {
        let over = Error::Absent { start: self.geometry.start, end: self.geometry.range().end };
        self.allocated = (self.allocated + work.allocs.total()).checked_sub(work.frees.total()).ok_or(over)?;
        self.allocated_this_txg += work.allocs.total();
        if self.freed.is_empty() {
            self.freed = work.frees;
            return Ok(());
        }
        work.frees.iter().try_for_each(|r| self.freed.add(r))
    }

    /// Completes a txg: space freed up to `released` may be reused.
    ///
    /// # Errors
    /// [`Error::Overlap`] if it is free already.
    pub fn sync_done(&mut self, txg: Txg, released: Txg) -> Result<SpaceDelta, Error> {
        let freed = std::mem::take(&mut self.freed);
        let before = signed(self.held.total());
        let mut delta =
            SpaceDelta { alloc: signed(self.allocated_this_txg) - signed(freed.total()), ..Default::default() };
        self.held.add_all(txg, freed)?;
        let back = self.held.release(released);
        delta.deferred = signed(self.held.total()) - before;
        delta.alloc += delta.deferred;
        for tree in back {
            self.failed = u64::MAX;
            if let Some(kept) = &mut self.to_trim {
                for range in tree.iter() {
                    let new: Vec<Range<u64>> = kept.gaps(range).collect();
                    new.into_iter().try_for_each(|gap| kept.add(gap))?;
                }
            }
            if let Some(free) = self.free.as_mut() {
                tree.iter().try_for_each(|r| free.add(r))?;
            } else if let Some(h) = self.histogram.as_mut() {
                add_to_histogram(h, tree.histogram().into_iter(), self.geometry.shift);
            }
        }
        self.allocated_this_txg = 0;
        if std::mem::take(&mut self.new) {
            delta.space = signed(self.geometry.size);
        }
        Ok(delta)
    }

    /// Checks that its map, with the changes in logs, accounts for the allocated space: the header is about to be written.
    ///
    /// # Errors
    /// [`Error::Miscount`], unless it was found broken when it was read.
    pub fn adds_up(&self) -> Result<(), Error> {
        let Some(map) = self.map.as_ref().filter(|_| !self.broken) else { return Ok(()) };
        let (header, allocated) = (map.header.alloc, self.allocated);
        let changes = signed(self.unflushed.allocs.total()) - signed(self.unflushed.frees.total());
        let right = header.checked_add(changes) == Some(signed(allocated));
        if right { Ok(()) } else { Err(Error::Miscount { object: map.object, header, changes, allocated }) }
    }

    /// True if its map should be rewritten: it is much longer than necessary, or has no histogram. Only a loaded metaslab's map
    /// can be rewritten.
    #[must_use]
    pub fn should_condense(&self, two_words: bool) -> bool {
        let (Some(map), Some(free)) = (&self.map, &self.free) else { return false };
        let block = map.block.max(1 << self.geometry.shift);
        let length = map.header.length;
        // a full metaslab needs only one word (OpenZFS rewrites its map whenever it changes)
        if self.condense_wanted || (free.is_empty() && self.held.is_empty() && length > block) {
            return true;
        }
        let (segments, txgs) = self.held.segments();
        let held = segments as u64 * 2 * LONG_ENTRY + txgs as u64 * LONG_ENTRY;
        let shortest = optimal_length(free, &self.geometry, map.block, two_words) + held;
        length > CONDENSE_BLOCKS * block && length >= shortest * tunable::ZFS_METASLAB_CONDENSE_PCT.get() / 100
    }

    /// Returns the content of a rewritten map: the allocated space, and the held frees, as of before this txg. May be called only
    /// before the first pass of a txg.
    #[must_use]
    pub fn condensed(&self) -> Option<(RangeTree, Held)> {
        let free = self.free.as_ref()?;
        let rest = self.allocating.iter().flat_map(RangeTree::iter).chain(self.held.ranges());
        let free: RangeTree = free.iter().chain(rest).collect();
        Some((free.complement(self.geometry.range()), self.held.clone()))
    }

    /// Returns what a flush appends to its own map: allocations, and frees by txg. Held space freed from txg `since` on, the txg
    /// of the previous flush, is written as allocated before and as freed in the txg that freed it; all other frees get the txg
    /// `released`. Afterwards nothing is unflushed.
    ///
    /// # Errors
    /// [`Error::Overlap`] if memory contradicts itself.
    pub fn flush(&mut self, since: Txg, released: Txg) -> Result<(RangeTree, Held), Error> {
        let MetaslabChanges { mut allocs, frees: mut others } = std::mem::take(&mut self.unflushed);
        let mut frees = Held::default();
        for (txg, tree) in self.held.by_txg().filter(|(txg, _)| *txg >= since) {
            for range in tree.iter() {
                others.gaps(range.clone()).try_for_each(|gap| allocs.add(gap))?;
                others.clear(range.clone());
                frees.add(txg, range)?;
            }
        }
        frees.add_all(released, others)?;
        Ok((allocs, frees))
    }

    /// Notes that its map has all of its changes, after a rewrite. Returns the decrease of the memory of unflushed changes.
    pub fn flushed(&mut self) -> i64 {
        self.condense_wanted = false;
        let memory = self.unflushed.memory() as i64;
        self.unflushed = MetaslabChanges::default();
        memory
    }

    /// Starts a histogram if a rewritten map has room for one and the previous map had not.
    pub fn adopt_histogram(&mut self) {
        if self.histogram.is_none() && self.map.as_ref().is_some_and(|m| m.header.histogram.is_some()) {
            self.histogram = Some(Box::new([0; HISTOGRAM_BUCKETS]));
        }
    }

    /// Requests a rewrite of the map (OpenZFS: `ms_condense_wanted`).
    pub const fn want_condense(&mut self) {
        self.condense_wanted = true;
    }

    /// Returns the histogram for the header of its map: all free space, whether it may be reused yet or not. `None` if that is
    /// not known for certain: then the existing one is kept.
    #[must_use]
    pub fn header_histogram(&self) -> Option<[u64; HISTOGRAM_BUCKETS]> {
        self.free_histogram().filter(|_| self.certain || self.free.is_some())
    }

    /// True if the header on disk promises larger free segments, or more of the largest ones, than exist. OpenZFS asserts that it
    /// never does: the weight found when it reads the map must be at least the one promised by the header (`metaslab_load_impl`).
    /// Frees alone cannot cause this, and allocation requires a loaded metaslab.
    #[must_use]
    pub fn promises_too_much(&self) -> bool {
        let promised = self.map.as_ref().and_then(|map| map.header.histogram.as_ref());
        let there = self.free.as_ref().and_then(|_| self.free_histogram());
        promised.zip(there).is_some_and(|(promised, there)| largest_of(promised) > largest_of(&there))
    }

    /// As [`Metaslab::promises_too_much`], for a metaslab that need not be loaded: reads its map. Afterwards its histogram is
    /// certain. A map that cannot be read is left as it is.
    pub fn is_found_to_promise_too_much(&mut self, vdev: u32, loader: &dyn MetaslabLoader) -> bool {
        let promised = self.map.as_ref().and_then(|map| map.header.histogram.as_ref()).map(largest_of);
        if self.free.is_some() || self.broken || promised.is_none_or(|(_, count)| count == 0) {
            return self.promises_too_much();
        }
        let made = self.make_free(vdev, loader, Recent::NONE);
        let (Ok((free, _)), Some(h)) = (made, self.histogram.as_mut()) else { return false };
        **h = [0; HISTOGRAM_BUCKETS];
        add_to_histogram(h, free.histogram().into_iter(), self.geometry.shift);
        self.certain = true;
        promised > self.free_histogram().as_ref().map(largest_of)
    }

    /// Returns the approximate free segments by size, whether they may be reused yet or not.
    fn free_histogram(&self) -> Option<[u64; HISTOGRAM_BUCKETS]> {
        let mut h = self.usable_histogram()?;
        let held = [&self.freed].into_iter().chain(self.held.by_txg().map(|(_, tree)| tree)).filter(|t| !t.is_empty());
        held.for_each(|tree| add_to_histogram(&mut h, tree.histogram().into_iter(), self.geometry.shift));
        Some(h)
    }

    fn usable_histogram(&self) -> Option<[u64; HISTOGRAM_BUCKETS]> {
        let known = self.histogram.as_ref()?;
        Some(match &self.free {
            None => **known,
            Some(free) => {
                let mut h = [0; HISTOGRAM_BUCKETS];
                add_to_histogram(&mut h, free.counts().iter().map(|n| u64::from(*n)), self.geometry.shift);
                h
            }
        })
    }

    /// Returns the fragmentation of its free space in percent; `None` if there are no histograms (OpenZFS:
    /// `metaslab_set_fragmentation`).
    #[must_use]
    pub fn fragmentation(&self) -> Option<u64> {
        if self.map.is_none() && self.histogram.is_some() {
            return Some(0);
        }
        let (mut total, mut weighted) = (0u128, 0u128);
        for (n, count) in self.free_histogram()?.into_iter().enumerate() {
            let index = ((self.geometry.shift as usize).saturating_sub(9) + n).min(FRAGMENTATION.len() - 1);
            let space = u128::from(count) << (n as u32 + self.geometry.shift);
            total += space;
            weighted += space * u128::from(FRAGMENTATION.get(index).copied().unwrap_or(0));
        }
        Some(weighted.checked_div(total).unwrap_or(0) as u64)
    }

    /// Returns its preference for allocations: by the size of its largest free segments, and their number; without histograms by
    /// its free space (OpenZFS: `metaslab_weight`).
    #[must_use]
    pub fn weight(&self) -> u64 {
        if self.is_closed() {
            return 0;
        }
        let Some(h) = self.usable_histogram() else { return self.space_weight() };
        // larger segments count in the last bucket of the map's histogram
        match largest_of(&h) {
            (_, 0) => 0,
            (n, count) => {
                let index = n as u64 + u64::from(self.geometry.shift);
                index << WEIGHT_INDEX_SHIFT | count.min((1 << WEIGHT_INDEX_SHIFT) - 1)
            }
        }
    }

    fn space_weight(&self) -> u64 {
        let space = self.free.as_ref().map_or_else(|| self.geometry.size.saturating_sub(self.allocated), |f| f.total());
        space.min((1 << WEIGHT_INDEX_SHIFT) - 1)
    }

    /// Returns the bucket of its largest free segments, if it is loaded.
    pub(crate) fn largest_index(&self) -> Option<u32> {
        self.free.as_ref()?.largest_bound().checked_ilog2()
    }

    /// True if nearly all of its free space is one segment, so that it is not fragmented.
    pub(crate) fn is_one_segment(&self) -> bool {
        // the bound is less than twice the segment
        self.free.as_ref().is_some_and(|f| f.len() == 1 || f.largest_bound() / 2 > f.total() / 16 * 15)
    }

    /// Returns an upper bound of the size of an allocation, as far as known.
    #[must_use]
    pub fn limit(&self) -> u64 {
        if self.is_closed() {
            return 0;
        }
        if let Some(free) = &self.free {
            return free.largest_bound().min(self.failed.saturating_sub(1));
        }
        let room = self.geometry.size.saturating_sub(self.allocated);
        match self.usable_histogram() {
            Some(h) => {
                let top = h.iter().rposition(|n| *n > 0).map_or(0, |n| n as u32 + self.geometry.shift);
                // the last bucket also counts all larger segments
                let bound = if top == HISTOGRAM_BUCKETS as u32 - 1 + self.geometry.shift {
                    u64::MAX
                } else {
                    (2u64 << top) - 1
                };
                bound.min(room)
            }
            None => room,
        }
    }

    /// Returns the free bytes by the total, independent of the histogram.
    #[must_use]
    pub fn room(&self) -> u64 {
        if self.is_closed() { 0 } else { self.geometry.size.saturating_sub(self.allocated) }
    }
}
