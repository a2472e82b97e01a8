//! The space of a pool: allocation and freeing of blocks.
//!
//! The metaslabs of a top-level vdev form a *group*, and groups form *classes*: normal, special, dedup, log. A vdev with many
//! metaslabs reserves one for the intent log, in a class of its own. Within a class allocation rotates over the groups; the bytes
//! allocated per turn depend on the group's free space. A full class falls back to the next one ([`Class::fallbacks`]).
//!
//! A run of blocks is allocated under one lock. Freed ranges are put on a list of their vdev, and applied to the metaslabs in
//! offset order when the next sync pass begins: so a caller that frees holds no lock for long, and may hold others.
//!
//! Locks, in this order: vdevs (read), metaslab, selector of a group / lists. A metaslab's lock is held while it is loaded, that
//! is, across reads of its map.
//!
//! OpenZFS: `metaslab_class_t`, `metaslab_alloc_dva`, `metaslab_free_dva`, `spa_get_slop_space`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use base::{Txg, tunable};
use ondisk::Dva;
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::flush::MetaslabId;
use crate::group::{Effort, Group, Turn};
use crate::metaslab::{DEFER_TXGS, Metaslab, MetaslabLoader, SpaceDelta, TXG_SLOTS};
use crate::{AllocError, Error};

/// The number of metaslabs from which a vdev reserves one for the intent log (OpenZFS: `zfs_embedded_slog_min_ms`).
const EMBEDDED_SLOG_MIN_MS: usize = 64;
/// Bytes that are allocated per child of a vdev before the next vdev's turn (`metaslab_aliquot`).
const ALIQUOT: u64 = 2 << 20;
/// Txgs after which an unused metaslab is unloaded (`metaslab_unload_delay`).
const UNLOAD_DELAY: u64 = 32;
/// Interval, in txgs, of the search for unused metaslabs.
const UNLOAD_EVERY: u64 = 8;

/// The kind of blocks that a metaslab holds (OpenZFS: `metaslab_class_t`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Everything else.
    Normal,
    /// Intent logs, on a device of their own.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
    /// Intent logs, in a metaslab of a normal vdev.
    EmbeddedLog,
    /// Intent logs, in a metaslab of a special vdev.
    SpecialEmbeddedLog,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 6] =
        [Class::Normal, Class::Log, Class::Special, Class::Dedup, Class::EmbeddedLog, Class::SpecialEmbeddedLog];

    /// Returns the classes that are tried when this one has no space.
    #[must_use]
    pub const fn fallbacks(self) -> &'static [Class] {
        match self {
            Class::Normal => &[],
            Class::Special => &[Class::Normal],
            Class::Dedup => &[Class::Special, Class::Normal],
            Class::Log => &[Class::SpecialEmbeddedLog, Class::Special, Class::EmbeddedLog, Class::Normal],
            Class::SpecialEmbeddedLog => &[Class::Special, Class::EmbeddedLog, Class::Normal],
            Class::EmbeddedLog => &[Class::Normal],
        }
    }

    const fn is_log(self) -> bool {
        matches!(self, Class::Log | Class::EmbeddedLog | Class::SpecialEmbeddedLog)
    }
}

/// The allocated sizes of blocks on a vdev.
pub trait Layout: Send + Sync {
    /// Returns the bytes allocated for `psize` stored bytes born in `txg`: with parity and rounding (OpenZFS:
    /// `vdev_psize_to_asize_txg`).
    fn asize(&self, psize: u64, txg: Txg) -> u64;
    /// Returns the bytes that datasets are charged for allocated bytes (`vdev_deflated_space`).
    fn deflated(&self, asize: u64) -> u64;
}

/// A top-level vdev with its metaslabs.
pub struct TopSpace {
    /// Its id.
    pub id: u32,
    /// Normal, log, special or dedup.
    pub class: Class,
    /// log2 of the size of its metaslabs.
    pub ms_shift: u32,
    /// Its metaslabs by number.
    pub metaslabs: Vec<Metaslab>,
    /// Number of children that hold data (without parity).
    pub data_children: u64,
    /// True if new blocks may be allocated there.
    pub allocatable: bool,
    /// The allocated sizes of blocks on it.
    pub layout: Box<dyn Layout>,
}

/// A request for an allocation (OpenZFS: the arguments of `metaslab_alloc_dva`).
#[derive(Clone, Copy, Debug)]
pub struct SpaceRequest<'a> {
    /// The preferred class of the block.
    pub class: Class,
    /// The txg.
    pub txg: Txg,
    /// Blocks with the same hint are allocated near each other.
    pub hint: u64,
    /// The addresses of the other copies.
    pub avoid: &'a [Dva],
    /// True for a piece of a gang block, for which any free space is good enough.
    pub gang: bool,
}

/// Space figures, in bytes (OpenZFS: `metaslab_class_get_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceFigures {
    /// Allocated, including deferred space.
    pub alloc: u64,
    /// Freed, but deferred for a txg or two.
    pub deferred: u64,
    /// Total space.
    pub space: u64,
    /// Allocated, without parity.
    pub dalloc: u64,
    /// Deferred, without parity.
    pub ddeferred: u64,
    /// Total space, without parity.
    pub dspace: u64,
}

struct Top {
    id: u32,
    ms_shift: u32,
    metaslabs: Vec<Mutex<Metaslab>>,
    main: Arc<Group>,
    /// The metaslab that is reserved for the intent log.
    log: Option<(u32, Arc<Group>)>,
    data_children: u64,
    allocatable: bool,
    layout: Box<dyn Layout>,
    /// Ranges freed since the last pass: start, length, whether they are kept for the checkpoint.
    freed: Mutex<Vec<(u64, u64, bool)>>,
}

impl Top {
    fn group(&self, ms: u32) -> &Arc<Group> {
        match &self.log {
            Some((id, group)) if *id == ms => group,
            _ => &self.main,
        }
    }

    fn groups(&self) -> impl Iterator<Item = &Arc<Group>> {
        [&self.main].into_iter().chain(self.log.as_ref().map(|l| &l.1))
    }

    fn metaslab_at(&self, offset: u64) -> Option<u32> {
        let id = u32::try_from(offset.checked_shr(self.ms_shift)?).ok()?;
        self.metaslabs.get(id as usize).map(|_| id)
    }
}

/// The groups of a class, and the current position of each allocator.
#[derive(Default)]
struct ClassState {
    groups: Vec<(Arc<Top>, Arc<Group>)>,
    rotors: Vec<Rotor>,
}

#[derive(Default)]
struct Rotor {
    at: AtomicUsize,
    used: AtomicU64,
}

#[derive(Default)]
struct Tops {
    by_id: BTreeMap<u32, Arc<Top>>,
    classes: [ClassState; Class::ALL.len()],
}

impl Tops {
    /// Adds a vdev to the classes that its metaslabs are of: it is allocated from.
    fn join_classes(&mut self, top: &Arc<Top>, allocators: usize) {
        for group in top.groups() {
            let class = &mut self.classes[group.class as usize];
            class.groups.push((Arc::clone(top), Arc::clone(group)));
            class.rotors.resize_with(allocators, Rotor::default);
        }
    }

    /// Takes a vdev out of all classes; true if it was in any.
    fn leave_classes(&mut self, vdev: u32) -> bool {
        let mut left = false;
        for class in &mut self.classes {
            let before = class.groups.len();
            class.groups.retain(|(top, _)| top.id != vdev);
            left |= class.groups.len() < before;
        }
        left
    }
}

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
}

const fn slot(txg: Txg) -> usize {
    (txg.0 % TXG_SLOTS as u64) as usize
}

impl SpaceManager {
    /// Creates a manager without vdevs; `loader` reads space maps.
    #[must_use]
    pub fn new(loader: Arc<dyn MetaslabLoader>) -> Self {
        let allocators = usize::try_from(tunable::SPA_NUM_ALLOCATORS.get()).unwrap_or(1).clamp(1, 64);
        SpaceManager {
            tops: RwLock::default(),
            loader,
            dirty: Default::default(),
            work: Default::default(),
            loaded: Mutex::default(),
            allocators,
            synced: AtomicU64::new(0),
            released: AtomicU64::new(0),
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

    /// Adds a vdev. Its space counts at once, except metaslabs that are [`added`](Metaslab::added): these count when `txg` is
    /// synced.
    pub fn add_top(&self, top: TopSpace, txg: Txg) {
        let log_class = match top.class {
            Class::Normal => Some(Class::EmbeddedLog),
            Class::Special => Some(Class::SpecialEmbeddedLog),
            _ => None,
        };
        let count = top.metaslabs.len();
        let main = Arc::new(Group::new(top.class, count, self.allocators));
        let stored = |m: &Metaslab| m.map.as_ref().map_or(0, |m| m.header.alloc);
        let emptiest =
            top.metaslabs.iter().min_by_key(|m| (stored(m), m.id())).filter(|_| count > EMBEDDED_SLOG_MIN_MS);
        let log =
            log_class.and_then(|class| Some((emptiest?.id(), Arc::new(Group::new(class, count, self.allocators)))));
        let metaslabs = top.metaslabs.into_iter().map(Mutex::new).collect();
        let top = Arc::new(Top {
            id: top.id,
            ms_shift: top.ms_shift,
            metaslabs,
            main,
            log,
            data_children: top.data_children.max(1),
            allocatable: top.allocatable,
            layout: top.layout,
            freed: Mutex::default(),
        });
        for ms in &top.metaslabs {
            let mut ms = ms.lock();
            let group = top.group(ms.id());
            group.update(&ms);
            if ms.is_new() {
                self.mark(&top, &mut ms, txg, false);
                continue;
            }
            let deferred = i64::try_from(ms.deferred()).unwrap_or(i64::MAX);
            let alloc = i64::try_from(ms.allocated()).unwrap_or(i64::MAX).saturating_add(deferred);
            let space = i64::try_from(ms.geometry().size).unwrap_or(i64::MAX);
            group.account.apply(SpaceDelta { alloc, deferred, space });
            if deferred > 0 {
                self.mark(&top, &mut ms, self.next(), false);
            }
        }
        let mut tops = self.tops.write();
        if top.allocatable {
            tops.join_classes(&top, self.allocators);
        }
        tops.by_id.insert(top.id, top);
        balance(&tops);
    }

    /// Stops the allocation of new blocks on a vdev (OpenZFS: `metaslab_group_passivate`); true if blocks could have been put there until now.
    pub fn retire(&self, vdev: u32) -> bool {
        let mut tops = self.tops.write();
        let retired = tops.leave_classes(vdev);
        balance(&tops);
        retired
    }

    /// Undoes [`SpaceManager::retire`].
    pub fn reinstate(&self, vdev: u32) {
        let mut tops = self.tops.write();
        tops.leave_classes(vdev);
        if let Some(top) = tops.by_id.get(&vdev).filter(|top| top.allocatable).cloned() {
            tops.join_classes(&top, self.allocators);
        }
        balance(&tops);
    }

    /// Forgets a vdev on which nothing is allocated, with what is held of it. Returns the memory that its unflushed changes took, in bytes.
    pub fn remove_top(&self, vdev: u32) -> u64 {
        let mut tops = self.tops.write();
        tops.leave_classes(vdev);
        let gone = tops.by_id.remove(&vdev);
        balance(&tops);
        drop(tops);
        for list in self.dirty.iter().chain(&self.work).chain([&self.loaded]) {
            list.lock().retain(|(of, _)| *of != vdev);
        }
        gone.map_or(0, |top| top.metaslabs.iter().map(|ms| ms.lock().unflushed.memory()).sum())
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
        let delta = ms.load(top.id, &*self.loader, self.released())?;
        self.loaded.lock().push((top.id, ms.id()));
        top.group(ms.id()).account.apply(delta);
        if ms.deferred() > 0 {
            self.mark(top, ms, self.next(), false);
        }
        Ok(())
    }

    /// True if a class has any vdev.
    #[must_use]
    pub fn has_class(&self, class: Class) -> bool {
        !self.tops.read().classes[class as usize].groups.is_empty()
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

    /// Allocates one copy of a block of `psize` bytes. The returned DVA has the allocated size.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`].
    pub fn allocate(&self, req: &SpaceRequest<'_>, psize: u64) -> Result<Dva, AllocError> {
        let mut got = Vec::with_capacity(1);
        self.allocate_many(req, &[psize], &mut got)?;
        got.pop().ok_or(AllocError::NoSpace)
    }

    /// Allocates a run of blocks, in order and as contiguously as possible. On an error the blocks before the failing one are
    /// allocated.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`] if one of the blocks got no space.
    pub fn allocate_many(&self, req: &SpaceRequest<'_>, psizes: &[u64], out: &mut Vec<Dva>) -> Result<(), AllocError> {
        let tops = self.tops.read();
        let mut run = Run { asizes: Vec::new(), offsets: Vec::new() };
        let done = out.len();
        while let Some(left) = psizes.get(out.len() - done..).filter(|l| !l.is_empty()) {
            let classes = [req.class].into_iter().chain(req.class.fallbacks().iter().copied());
            let mut found = false;
            for class in classes {
                found = self.allocate_in(&tops.classes[class as usize], class, req, left, &mut run, out);
                if found {
                    break;
                }
            }
            if !found {
                return Err(AllocError::NoSpace);
            }
        }
        Ok(())
    }

    /// Allocates as many of `psizes` as one group has room for, up to the end of its turn. Returns false if no group has room for
    /// the first.
    fn allocate_in(
        &self,
        class: &ClassState,
        kind: Class,
        req: &SpaceRequest<'_>,
        psizes: &[u64],
        run: &mut Run,
        out: &mut Vec<Dva>,
    ) -> bool {
        let count = class.groups.len();
        let (Some(first), true) = (psizes.first(), count > 0) else { return false };
        let allocator = (req.hint % self.allocators as u64) as usize;
        let Some(rotor) = class.rotors.get(allocator) else { return false };
        // further copies are placed on the next vdev
        let last = req.avoid.last().and_then(|d| class.groups.iter().position(|(t, _)| u64::from(t.id) == d.vdev()));
        let start = last.map_or_else(|| rotor.at.load(Relaxed), |n| n + 1);
        let smallest = |top: &Top| *first <= top.layout.asize(512, req.txg);
        for effort in [Effort::Usual, Effort::Near, Effort::Hard] {
            if effort == Effort::Near && req.avoid.is_empty() {
                continue;
            }
            for n in 0..count {
                let at = (start + n) % count;
                let Some((top, group)) = class.groups.get(at) else { continue };
                let hard = req.gang || kind.is_log() || smallest(top);
                if (effort == Effort::Hard && !hard) || (effort < Effort::Hard && !req.gang && group.full.load(Relaxed))
                {
                    continue;
                }
                let follows = last.is_none() && rotor.at.load(Relaxed) % count == at;
                let quota = group.aliquot.load(Relaxed).saturating_sub(rotor.used.load(Relaxed));
                run.fill(top, psizes, req.txg, if count > 1 && follows { quota } else { u64::MAX });
                let got = self.allocate_from(top, group, req, effort, run);
                if got == 0 && smallest(top) && effort == Effort::Hard {
                    group.full.store(true, Relaxed);
                }
                if follows && count > 1 {
                    let bytes: u64 = psizes.iter().take(got).sum();
                    let used = rotor.used.fetch_add(bytes, Relaxed) + bytes;
                    // the turn passes to the next group when the next block of this size would exceed the quota by half
                    if got == 0 || kind.is_log() || used + first / 2 >= group.aliquot.load(Relaxed) {
                        rotor.at.store((at + 1) % count, Relaxed);
                        rotor.used.store(0, Relaxed);
                    }
                }
                if got > 0 {
                    let places = run.offsets.iter().zip(&run.asizes).take(got);
                    out.extend(places.map(|(offset, asize)| Dva::new(u64::from(top.id), *offset, *asize, false)));
                    return true;
                }
            }
        }
        false
    }

    /// Allocates a run in one group. Returns the number of blocks allocated.
    fn allocate_from(&self, top: &Top, group: &Group, req: &SpaceRequest<'_>, effort: Effort, run: &mut Run) -> usize {
        run.offsets.clear();
        let Some(size) = run.asizes.first().copied() else { return 0 };
        let here = req.avoid.iter().filter(|d| d.vdev() == u64::from(top.id));
        let used: Vec<u32> = here.filter_map(|d| top.metaslab_at(d.offset())).collect();
        let turn = match used.len() {
            0 => Turn::First,
            1 => Turn::Second,
            _ => Turn::Further,
        };
        let allocator = group.allocator(req.hint);
        let mut tried = Vec::new();
        while let Some(id) = group.pick(allocator, turn, size, effort, &used, &tried) {
            let Some(cell) = top.metaslabs.get(id as usize) else { return 0 };
            let mut ms = cell.lock();
            if !ms.is_loaded() {
                if self.load_one(top, &mut ms).is_err() {
                    group.passivate(&ms);
                    tried.push(id);
                    continue;
                }
                group.update(&ms);
            }
            let got = ms.allocate(req.txg, &run.asizes, &mut run.offsets);
            if got > 0 {
                group.activate(&ms, allocator, turn);
                self.mark(top, &mut ms, req.txg, true);
                group.settle(&ms);
                return got;
            }
            group.passivate(&ms);
            tried.push(id);
        }
        0
    }

    fn at(&self, vdev: u64, offset: u64) -> Result<(Arc<Top>, u32), AllocError> {
        let nowhere = AllocError::Nowhere { vdev, offset };
        let top =
            u32::try_from(vdev).ok().and_then(|id| self.tops.read().by_id.get(&id).cloned()).ok_or(nowhere.clone())?;
        let ms = top.metaslab_at(offset).ok_or(nowhere)?;
        Ok((top, ms))
    }

    /// Frees a range in the syncing txg; with `checkpoint` it stays allocated for the checkpoint. The free takes effect when the
    /// next pass begins, and errors are detected then.
    ///
    /// # Errors
    /// [`AllocError::Nowhere`].
    pub fn free(&self, vdev: u64, offset: u64, asize: u64, checkpoint: bool) -> Result<(), AllocError> {
        let (top, _) = self.at(vdev, offset)?;
        top.freed.lock().push((offset, asize, checkpoint));
        Ok(())
    }

    /// Undoes an allocation of `txg`, the current one, that nothing points to.
    ///
    /// # Errors
    /// [`AllocError::Nowhere`]; [`AllocError::State`] if it was not allocated in `txg`.
    pub fn release(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<(), AllocError> {
        let (top, id) = self.at(vdev, offset)?;
        let Some(cell) = top.metaslabs.get(id as usize) else { return Err(AllocError::Nowhere { vdev, offset }) };
        let mut ms = cell.lock();
        let back = ms.unallocate(txg, offset..offset.saturating_add(asize));
        back.map_err(|source| AllocError::State { vdev: top.id, source })
    }

    /// Allocates exactly this range (OpenZFS: `metaslab_claim`).
    ///
    /// # Errors
    /// [`AllocError::Nowhere`]; [`AllocError::Load`]; [`AllocError::State`] if it is not free.
    pub fn claim(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<(), AllocError> {
        let (top, id) = self.at(vdev, offset)?;
        let Some(cell) = top.metaslabs.get(id as usize) else { return Err(AllocError::Nowhere { vdev, offset }) };
        let mut ms = cell.lock();
        self.load_one(&top, &mut ms)?;
        let claimed = ms.claim(txg, offset..offset.saturating_add(asize));
        let delta = claimed.map_err(|source| AllocError::State { vdev: top.id, source })?;
        top.group(id).account.apply(delta);
        self.mark(&top, &mut ms, txg, true);
        top.group(id).update(&ms);
        Ok(())
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
                    held = top.metaslabs.get(id as usize).map(Mutex::lock);
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

    /// Returns the figures of a class.
    #[must_use]
    pub fn figures(&self, class: Class) -> SpaceFigures {
        let tops = self.tops.read();
        let groups = tops.by_id.values().flat_map(|t| t.groups().map(move |g| (t, g)));
        sum(groups.filter(|(_, g)| g.class == class))
    }

    /// Returns the figures of a vdev over all its classes.
    #[must_use]
    pub fn vdev_figures(&self, vdev: u32) -> SpaceFigures {
        let tops = self.tops.read();
        tops.by_id.get(&vdev).map(|t| sum(t.groups().map(|g| (t, g)))).unwrap_or_default()
    }

    /// Returns the space of the normal class without parity, excluding vdevs that accept no new blocks (OpenZFS: `spa_rdspace`).
    #[must_use]
    pub fn rdspace(&self) -> u64 {
        let tops = self.tops.read();
        let groups = tops.by_id.values().filter(|t| t.allocatable).map(|t| (t, &t.main));
        sum(groups.filter(|(_, g)| g.class == Class::Normal)).dspace
    }

    /// Returns the total that datasets may use, before dedup and clones add to it (OpenZFS: `spa_update_dspace`).
    #[must_use]
    pub fn dspace(&self) -> u64 {
        self.rdspace() + self.figures(Class::Special).dalloc + self.figures(Class::Dedup).dalloc
    }

    /// Returns the slop space: reserved so that a full pool can still be administered (OpenZFS: `spa_get_slop_space`).
    #[must_use]
    pub fn slop(&self) -> u64 {
        const LEAST: u64 = 128 << 20;
        const MOST: u64 = 128 << 30;
        let space = self.rdspace();
        let embedded = self.figures(Class::EmbeddedLog).dspace + self.figures(Class::SpecialEmbeddedLog).dspace;
        let slop = (space >> tunable::SPA_SLOP_SHIFT.get().clamp(1, 31)).min(MOST);
        (slop - embedded.min(slop / 2)).max((space / 2).min(LEAST))
    }

    /// Returns the fragmentation of a class in percent; `None` if too little is known (OpenZFS: `metaslab_class_fragmentation`).
    #[must_use]
    pub fn fragmentation(&self, class: Class) -> Option<u64> {
        let tops = self.tops.read();
        let (mut sum, mut space) = (0u128, 0u128);
        for top in tops.by_id.values() {
            for group in top.groups().filter(|g| g.class == class) {
                let size = u128::from(group.account.space());
                space += size;
                sum += u128::from(fragmentation(top, group)?) * size;
            }
        }
        u64::try_from(sum.checked_div(space)?).ok()
    }

    /// Returns the bytes allocated for `psize` bytes on a vdev in `txg`; `psize` if the vdev does not exist.
    #[must_use]
    pub fn asize(&self, vdev: u64, psize: u64, txg: Txg) -> u64 {
        let tops = self.tops.read();
        let top = u32::try_from(vdev).ok().and_then(|id| tops.by_id.get(&id));
        top.map_or(psize, |t| t.layout.asize(psize, txg))
    }
}

/// The allocated sizes of a run, and the offsets that were found.
struct Run {
    asizes: Vec<u64>,
    offsets: Vec<u64>,
}

impl Run {
    /// Computes the allocated sizes on `top` of at least one block and of at most `quota` bytes.
    fn fill(&mut self, top: &Top, psizes: &[u64], txg: Txg, quota: u64) {
        self.asizes.clear();
        let mut bytes = 0u64;
        for psize in psizes {
            if bytes != 0 && bytes + psize > quota {
                break;
            }
            bytes += psize;
            self.asizes.push(top.layout.asize(*psize, txg));
        }
    }
}

fn sum<'a>(groups: impl Iterator<Item = (&'a Arc<Top>, &'a Arc<Group>)>) -> SpaceFigures {
    groups.fold(SpaceFigures::default(), |f, (top, group)| {
        let a = &group.account;
        let (alloc, deferred, space) = (a.alloc(), a.deferred(), a.space());
        SpaceFigures {
            alloc: f.alloc + alloc,
            deferred: f.deferred + deferred,
            space: f.space + space,
            dalloc: f.dalloc + top.layout.deflated(alloc),
            ddeferred: f.ddeferred + top.layout.deflated(deferred),
            dspace: f.dspace + top.layout.deflated(space),
        }
    })
}

/// Returns the fragmentation of a group, by its metaslabs' free space (OpenZFS: `metaslab_group_fragmentation`).
fn fragmentation(top: &Top, group: &Arc<Group>) -> Option<u64> {
    let (mut valid, mut all, mut free, mut sum) = (0usize, 0usize, 0u128, 0u128);
    for cell in &top.metaslabs {
        let ms = cell.lock();
        if !Arc::ptr_eq(top.group(ms.id()), group) {
            continue;
        }
        all += 1;
        if let Some(f) = ms.fragmentation() {
            valid += 1;
            let room = u128::from(ms.geometry().size.saturating_sub(ms.allocated()));
            free += room;
            sum += u128::from(f) * room;
        }
    }
    if valid < all.div_ceil(2) { None } else { u64::try_from(sum.checked_div(free)?).ok() }
}

/// Sets how much is allocated in each group per turn: by its width, its size, and its share of free space (OpenZFS:
/// `metaslab_class_balance`).
fn balance(tops: &Tops) {
    for class in &tops.classes {
        let groups = class.groups.len() as u64;
        let children: u64 = class.groups.iter().map(|(t, _)| t.data_children).sum();
        let (mut space, mut alloc) = (0u64, 0u64);
        for (_, group) in &class.groups {
            space += group.account.space();
            alloc += group.account.alloc();
        }
        for (_, group) in &class.groups {
            let mut aliquot = ALIQUOT * children / groups;
            let size = group.account.space();
            if space > 0 && size > 0 {
                aliquot = aliquot * (size / (space / (groups * 256) + 1)) / 256;
                let free = size.saturating_sub(group.account.alloc()) / (size / 65536 + 1);
                let class_free = space.saturating_sub(alloc) / (space / 256 + 1);
                aliquot = aliquot * (free / (class_free + 1)) / 256;
            }
            group.aliquot.store(aliquot, Relaxed);
        }
    }
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
