//! The space of a pool: allocation and freeing of blocks.
//!
//! The vdevs with their groups of metaslabs are in [`tops`], allocation in [`alloc`], the figures in [`figures`]; here is what happens to the
//! metaslabs txg by txg.
//!
//! Freed ranges are put on a list of their vdev, and applied to the metaslabs in offset order when the next sync pass begins: so a caller that
//! frees holds no lock for long, and may hold others.
//!
//! Locks, in this order: vdevs (read), metaslab, selector of a group / lists. A metaslab's lock is held while it is loaded, that
//! is, across reads of its map.

mod alloc;
mod disabled;
mod figures;
mod tops;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use base::{Txg, tunable};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::flush::MetaslabId;
use crate::metaslab::{DEFER_TXGS, Metaslab, MetaslabLoader, TXG_SLOTS};
use crate::{AllocError, Class, Error};
use tops::{Top, Tops, balance};

pub use alloc::SpaceRequest;
pub use disabled::DisabledMetaslab;
pub use figures::SpaceFigures;
pub use tops::{Layout, TopSpace};

/// Txgs after which an unused metaslab is unloaded (`metaslab_unload_delay`).
const UNLOAD_DELAY: u64 = 32;
/// Interval, in txgs, of the search for unused metaslabs.
const UNLOAD_EVERY: u64 = 8;

/// The space of a pool. Thread safe.
pub struct SpaceManager {
    tops: RwLock<Tops>,
    loader: Arc<dyn MetaslabLoader>,
    /// Metaslabs that a txg changes, and those with work for its next pass.
    dirty: [Mutex<Vec<MetaslabId>>; TXG_SLOTS],
    work: [Mutex<Vec<MetaslabId>>; TXG_SLOTS],
    loaded: Mutex<Vec<MetaslabId>>,
    allocators: usize,
    /// The last synced txg.
    synced: AtomicU64,
    /// Space freed up to this txg may be reused.
    released: AtomicU64,
    disabled: disabled::Disabled,
    /// Whether metaslabs keep what is freed, for a trim.
    keeps_freed: AtomicBool,
}

/// The number of allocators (OpenZFS: `spa_alloc_count`). More than work at a time do harm: each has metaslabs of its own, so that blocks written
/// together are not neighbours.
fn allocators() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let busy = processors / tunable::SPA_CPUS_PER_ALLOCATOR.get().max(1);
    usize::try_from(tunable::SPA_NUM_ALLOCATORS.get().min(busy)).unwrap_or(1).clamp(1, 64)
}

const fn slot(txg: Txg) -> usize {
    (txg.0 % TXG_SLOTS as u64) as usize
}

impl SpaceManager {
    /// Creates a manager without vdevs; `loader` reads space maps.
    #[must_use]
    pub fn new(loader: Arc<dyn MetaslabLoader>) -> Self {
        let allocators = allocators();
        SpaceManager {
            tops: RwLock::default(),
            loader,
            dirty: Default::default(),
            work: Default::default(),
            loaded: Mutex::default(),
            allocators,
            synced: AtomicU64::new(0),
            released: AtomicU64::new(0),
            disabled: disabled::Disabled::default(),
            keeps_freed: AtomicBool::new(false),
        }
    }

    /// Sets the state in which the pool was opened: `last` is its last synced txg, and space freed up to `released` may be
    /// reused. Must be called before any vdev is added.
    pub fn opened(&self, last: Txg, released: Txg) {
        self.synced.store(last.0, Relaxed);
        self.released.store(released.0, Relaxed);
    }

    /// Returns the txg up to which freed space may be reused.
    #[must_use]
    pub fn released(&self) -> Txg {
        Txg(self.released.load(Relaxed))
    }

    /// Returns the txg that will be synced next.
    fn next(&self) -> Txg {
        Txg(self.synced.load(Relaxed) + 1)
    }

    /// Loads a metaslab unless it is loaded; held space found in its map counts from now on.
    fn load_one(&self, top: &Top, ms: &mut Metaslab) -> Result<(), AllocError> {
        if ms.is_loaded() {
            return Ok(());
        }
        let loaded = ms.load(top.id, &*self.loader, self.released());
        let delta = loaded.inspect_err(|error| {
            tracing::error!(target: "zuse::space", %error, "the metaslab is not used");
        })?;
        self.loaded.lock().push((top.id, ms.id()));
        top.group(ms.id()).account.apply(delta);
        if ms.deferred() > 0 {
            self.mark(top, ms, self.next(), false);
        }
        Ok(())
    }

    /// Marks the metaslab as changed in `txg`: with `work` for its next pass, otherwise only for its end.
    fn mark(&self, top: &Top, ms: &mut Metaslab, txg: Txg, work: bool) {
        let bit = 1u8 << slot(txg);
        if ms.dirty & bit == 0 {
            ms.dirty |= bit;
            self.dirty[slot(txg)].lock().push((top.id, ms.id()));
        }
        if work && ms.work & bit == 0 {
            ms.work |= bit;
            self.work[slot(txg)].lock().push((top.id, ms.id()));
        }
    }

    /// Begins a pass: applies the frees to the metaslabs, and returns those with work, in order.
    ///
    /// # Errors
    /// [`AllocError::State`] if something was freed twice, or is not within a metaslab.
    pub fn start_pass(&self, txg: Txg) -> Result<Vec<MetaslabId>, AllocError> {
        let tops: Vec<Arc<Top>> = self.tops.read().by_id.values().cloned().collect();
        for top in tops {
            let mut freed = std::mem::take(&mut *top.freed.lock());
            freed.sort_unstable();
            let mut held: Option<MutexGuard<'_, Metaslab>> = None;
            for (offset, asize, checkpoint) in freed {
                let range: Range<u64> = offset..offset.saturating_add(asize);
                let stray = Error::OutOfMap { offset, run: asize };
                let state = |source| AllocError::State { vdev: top.id, source };
                let id = top.metaslab_at(offset).ok_or_else(|| state(stray.clone()))?;
                if held.as_ref().is_none_or(|ms| ms.id() != id) {
                    drop(held.take());
                    held = top.metaslabs.get(id as usize).map(|ms| ms.lock());
                }
                let ms = held.as_mut().ok_or_else(|| state(stray))?;
                ms.free(range, checkpoint).map_err(state)?;
                self.mark(&top, ms, txg, true);
            }
        }
        let mut work = std::mem::take(&mut *self.work[slot(txg)].lock());
        work.sort_unstable();
        let bit = 1u8 << slot(txg);
        for id in &work {
            self.with(*id, |ms| ms.work &= !bit);
        }
        Ok(work)
    }

    /// True if a pass of `txg` would have anything to do.
    #[must_use]
    pub fn has_work(&self, txg: Txg) -> bool {
        !self.work[slot(txg)].lock().is_empty() || self.tops.read().by_id.values().any(|t| !t.freed.lock().is_empty())
    }

    /// True if a pass of any txg would have anything to do.
    #[must_use]
    pub fn has_any_work(&self) -> bool {
        let freed = || self.tops.read().by_id.values().any(|t| !t.freed.lock().is_empty());
        self.work.iter().any(|w| !w.lock().is_empty()) || freed()
    }

    /// Calls `f` with a metaslab, under its lock.
    pub fn with<R>(&self, (vdev, id): MetaslabId, f: impl FnOnce(&mut Metaslab) -> R) -> Option<R> {
        let top = self.tops.read().by_id.get(&vdev).cloned()?;
        let cell = top.metaslabs.get(id as usize)?;
        Some(f(&mut cell.lock()))
    }

    /// Returns the number of metaslabs of a vdev.
    #[must_use]
    pub fn metaslab_count(&self, vdev: u32) -> usize {
        self.tops.read().by_id.get(&vdev).map_or(0, |t| t.metaslabs.len())
    }

    /// Returns the ids of the vdevs, in order.
    #[must_use]
    pub fn vdevs(&self) -> Vec<u32> {
        self.tops.read().by_id.keys().copied().collect()
    }

    /// Returns all metaslabs, ordered by vdev and number.
    #[must_use]
    pub fn metaslabs(&self) -> Vec<MetaslabId> {
        let tops = self.tops.read();
        tops.by_id.values().flat_map(|top| (0..top.metaslabs.len() as u32).map(|n| (top.id, n))).collect()
    }

    /// True if the header of a metaslab's map [promises too much](Metaslab::promises_too_much); reads the map to find out.
    #[must_use]
    pub fn promises_too_much(&self, (vdev, id): MetaslabId) -> bool {
        self.with((vdev, id), |ms| ms.is_found_to_promise_too_much(vdev, &*self.loader)).unwrap_or(false)
    }

    /// Returns the class of a metaslab.
    #[must_use]
    pub fn class_of(&self, (vdev, id): MetaslabId) -> Option<Class> {
        self.tops.read().by_id.get(&vdev).map(|t| t.group(id).class)
    }

    /// Loads a metaslab (for a rewrite of its map).
    ///
    /// # Errors
    /// [`AllocError::Load`], [`AllocError::Nowhere`].
    pub fn load(&self, (vdev, id): MetaslabId) -> Result<(), AllocError> {
        let nowhere = AllocError::Nowhere { vdev: u64::from(vdev), offset: 0 };
        let top = self.tops.read().by_id.get(&vdev).cloned().ok_or(nowhere.clone())?;
        let cell = top.metaslabs.get(id as usize).ok_or(nowhere)?;
        self.load_one(&top, &mut cell.lock())
    }

    /// Completes `txg`: releases freed space that was deferred for long enough, updates the figures, and unloads unused
    /// metaslabs. Space freed after txg `readers` stays held, because readers may still use the pool as of that txg or later.
    ///
    /// # Errors
    /// [`AllocError::State`] if memory and maps contradict each other.
    pub fn sync_done(&self, txg: Txg, readers: Txg) -> Result<(), AllocError> {
        let normal = self.figures(Class::Normal);
        // with little space left nothing is deferred except for readers
        let defer = normal.space.saturating_sub(normal.alloc) > self.slop();
        let held = if defer { DEFER_TXGS as u64 } else { 0 };
        let released = self.released().max(Txg(txg.0.saturating_sub(held)).min(readers));
        self.released.store(released.0, Relaxed);
        self.synced.store(txg.0, Relaxed);
        let mut dirty = std::mem::take(&mut *self.dirty[slot(txg)].lock());
        dirty.sort_unstable();
        let tops = self.tops.read();
        for (vdev, id) in dirty {
            let Some(top) = tops.by_id.get(&vdev) else { continue };
            let Some(cell) = top.metaslabs.get(id as usize) else { continue };
            let mut ms = cell.lock();
            ms.dirty &= !(1 << slot(txg));
            let was_new = ms.is_new();
            let delta = ms.sync_done(txg, released).map_err(|source| AllocError::State { vdev, source })?;
            let group = top.group(id);
            group.account.apply(delta);
            if ms.deferred() > 0 {
                self.mark(top, &mut ms, Txg(txg.0 + 1), false);
            }
            if was_new {
                group.became_ready();
            }
            group.update(&ms);
        }
        tops.by_id.values().flat_map(|t| t.groups()).for_each(|g| g.full.store(false, Relaxed));
        balance(&tops);
        if txg.0.is_multiple_of(UNLOAD_EVERY) {
            self.unload_unused(&tops, txg);
        }
        Ok(())
    }

    fn unload_unused(&self, tops: &Tops, txg: Txg) {
        let loaded = std::mem::take(&mut *self.loaded.lock());
        let stays = loaded.into_iter().filter(|(vdev, id)| {
            let Some(top) = tops.by_id.get(vdev) else { return false };
            let Some(cell) = top.metaslabs.get(*id as usize) else { return false };
            let group = top.group(*id);
            let mut ms = cell.lock();
            if group.is_active(*id) || !ms.unload(txg, UNLOAD_DELAY) {
                return true;
            }
            group.update(&ms);
            false
        });
        let stays: Vec<MetaslabId> = stays.collect();
        self.loaded.lock().extend(stays);
    }

    /// Returns the number of loaded metaslabs.
    #[must_use]
    pub fn loaded_count(&self) -> usize {
        self.loaded.lock().len()
    }
}

#[cfg(test)]
mod tests;
