//! The top-level vdevs whose space is managed: their groups of metaslabs, and the classes that these are in.
//!
//! The metaslabs of a vdev form a *group*, and groups form *classes*. A vdev with many metaslabs reserves one for the intent log, in a class of
//! its own.
//!
//! A vdev that grows gets more metaslabs: another [`Top`] takes its place, which shares the metaslabs and groups of the one before. Who has that one in hand goes
//! on with it, and knows no metaslab but the old ones.
//!
//! OpenZFS: `metaslab_class_t`, `metaslab_group_t`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use base::Txg;
use parking_lot::Mutex;

use super::SpaceManager;
use crate::Class;
use crate::group::Group;
use crate::metaslab::{Metaslab, SpaceDelta};

/// The number of metaslabs from which a vdev reserves one for the intent log (OpenZFS: `zfs_embedded_slog_min_ms`).
const EMBEDDED_SLOG_MIN_MS: usize = 64;
/// Bytes that are allocated per child of a vdev before the next vdev's turn (`metaslab_aliquot`).
const ALIQUOT: u64 = 2 << 20;

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
    pub layout: Arc<dyn Layout>,
}

/// The class of the metaslab that a vdev with many reserves for the intent log.
const fn log_class(class: Class) -> Option<Class> {
    match class {
        Class::Normal => Some(Class::EmbeddedLog),
        Class::Special => Some(Class::SpecialEmbeddedLog),
        _ => None,
    }
}

/// A vdev whose space is managed.
pub(super) struct Top {
    pub(super) id: u32,
    pub(super) ms_shift: u32,
    pub(super) metaslabs: Vec<Arc<Mutex<Metaslab>>>,
    pub(super) main: Arc<Group>,
    /// The metaslab that is reserved for the intent log.
    pub(super) log: Option<(u32, Arc<Group>)>,
    pub(super) data_children: u64,
    pub(super) allocatable: bool,
    pub(super) layout: Arc<dyn Layout>,
    /// Ranges freed since the last pass: start, length, whether they are kept for the checkpoint.
    pub(super) freed: Arc<Mutex<Vec<(u64, u64, bool)>>>,
}

impl Top {
    pub(super) fn group(&self, ms: u32) -> &Arc<Group> {
        match &self.log {
            Some((id, group)) if *id == ms => group,
            _ => &self.main,
        }
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = &Arc<Group>> {
        [&self.main].into_iter().chain(self.log.as_ref().map(|l| &l.1))
    }

    pub(super) fn metaslab_at(&self, offset: u64) -> Option<u32> {
        let id = u32::try_from(offset.checked_shr(self.ms_shift)?).ok()?;
        self.metaslabs.get(id as usize).map(|_| id)
    }
}

/// The groups of a class, and the current position of each allocator.
#[derive(Default)]
pub(super) struct ClassState {
    pub(super) groups: Vec<(Arc<Top>, Arc<Group>)>,
    pub(super) rotors: Vec<Rotor>,
}

/// The position of an allocator within a class: the group whose turn it is, and the bytes allocated in it.
#[derive(Default)]
pub(super) struct Rotor {
    pub(super) at: AtomicUsize,
    pub(super) used: AtomicU64,
}

/// The vdevs, by id and by class.
#[derive(Default)]
pub(super) struct Tops {
    pub(super) by_id: BTreeMap<u32, Arc<Top>>,
    pub(super) classes: [ClassState; Class::ALL.len()],
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

impl SpaceManager {
    /// Adds a vdev. Its space counts at once, except metaslabs that are [`added`](Metaslab::added): these count when `txg` is
    /// synced.
    pub fn add_top(&self, top: TopSpace, txg: Txg) {
        let count = top.metaslabs.len();
        let main = Arc::new(Group::new(top.class, count, self.allocators));
        let stored = |m: &Metaslab| m.map.as_ref().map_or(0, |m| m.header.alloc);
        let emptiest =
            top.metaslabs.iter().min_by_key(|m| (stored(m), m.id())).filter(|_| count > EMBEDDED_SLOG_MIN_MS);
        let log = log_class(top.class)
            .and_then(|class| Some((emptiest?.id(), Arc::new(Group::new(class, count, self.allocators)))));
        let metaslabs = top.metaslabs.into_iter().map(|ms| Arc::new(Mutex::new(ms))).collect();
        let top = Arc::new(Top {
            id: top.id,
            ms_shift: top.ms_shift,
            metaslabs,
            main,
            log,
            data_children: top.data_children.max(1),
            allocatable: top.allocatable,
            layout: top.layout,
            freed: Arc::default(),
        });
        for ms in &top.metaslabs {
            let mut ms = ms.lock();
            ms.keep_freed(self.keeps_freed.load(Relaxed));
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

    /// Gives a vdev more metaslabs, numbered on from those that it has. They are allocated from at once. If the vdev is one with many now, the first
    /// of them is reserved for the intent log (OpenZFS: `vdev_metaslab_init` of a vdev that grows).
    pub fn grow_top(&self, vdev: u32, more: Vec<Metaslab>) {
        let mut tops = self.tops.write();
        let Some(before) = tops.by_id.get(&vdev).cloned() else { return };
        let old = before.metaslabs.len();
        let count = old + more.len();
        let metaslabs = before.metaslabs.iter().cloned().chain(more.into_iter().map(|ms| Arc::new(Mutex::new(ms))));
        let first_new = u32::try_from(old).ok().filter(|_| count > EMBEDDED_SLOG_MIN_MS && old < count);
        let new_log = || {
            let class = log_class(before.main.class)?;
            Some((first_new?, Arc::new(Group::new(class, count, self.allocators))))
        };
        before.groups().for_each(|group| group.grow(count));
        let top = Arc::new(Top {
            id: vdev,
            ms_shift: before.ms_shift,
            metaslabs: metaslabs.collect(),
            main: Arc::clone(&before.main),
            log: before.log.clone().or_else(new_log),
            data_children: before.data_children,
            allocatable: before.allocatable,
            layout: Arc::clone(&before.layout),
            freed: Arc::clone(&before.freed),
        });
        for ms in top.metaslabs.iter().skip(old) {
            let mut ms = ms.lock();
            ms.keep_freed(self.keeps_freed.load(Relaxed));
            let (group, space) = (top.group(ms.id()), i64::try_from(ms.geometry().size).unwrap_or(i64::MAX));
            group.update(&ms);
            group.account.apply(SpaceDelta { space, ..SpaceDelta::default() });
        }
        if tops.leave_classes(vdev) {
            tops.join_classes(&top, self.allocators);
        }
        tops.by_id.insert(vdev, top);
        tops.by_id.values().flat_map(|top| top.groups()).for_each(|group| group.full.store(false, Relaxed));
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

    /// True if a class has any vdev.
    #[must_use]
    pub fn has_class(&self, class: Class) -> bool {
        !self.tops.read().classes[class as usize].groups.is_empty()
    }
}

/// Sets how much is allocated in each group per turn: by its width, its size, and its share of free space (OpenZFS:
/// `metaslab_class_balance`).
pub(super) fn balance(tops: &Tops) {
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
