//! The metaslabs of one vdev and class, ordered by preference, and their assignment to allocators.
//!
//! An allocator keeps its metaslab until it has no room for a block, or has become fragmented. The second copies of blocks use
//! separate metaslabs, so that the copies are far apart. OpenZFS: `metaslab_group_t`, `find_valid_metaslab`.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::class::Class;
use crate::metaslab::{Metaslab, SpaceDelta};

/// Number of metaslabs that are examined before another vdev is tried (OpenZFS: `zfs_metaslab_find_max_tries`).
const MAX_TRIES: usize = 100;
/// Number of powers of two by which the largest segments must have shrunk before another metaslab is chosen
/// (`zfs_metaslab_switch_threshold`).
const SWITCH_THRESHOLD: u32 = 2;

/// The copy of a block that is allocated: the first, the second on this vdev, a further one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    First,
    Second,
    Further,
}

/// The effort of a search.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Effort {
    /// Good metaslabs, away from the other copies.
    Usual,
    /// Good metaslabs.
    Near,
    /// Any metaslab that may have space.
    Hard,
}

#[derive(Clone, Copy, Default)]
struct Info {
    member: bool,
    weight: u64,
    limit: u64,
    room: u64,
    /// Allocator and turn that use it, and the bucket of its largest segments when they started.
    owner: Option<(u8, u8, u32)>,
}

#[derive(Default)]
struct Selector {
    order: BTreeSet<(Reverse<u64>, u32)>,
    infos: Vec<Info>,
    /// The metaslab in use, by allocator and turn.
    active: Vec<[Option<u32>; 2]>,
    ready: usize,
}

/// Space figures of a group of metaslabs, in bytes.
#[derive(Default, Debug)]
pub(crate) struct Account {
    alloc: AtomicI64,
    deferred: AtomicI64,
    space: AtomicI64,
}

impl Account {
    pub(crate) fn apply(&self, d: SpaceDelta) {
        self.alloc.fetch_add(d.alloc, Relaxed);
        self.deferred.fetch_add(d.deferred, Relaxed);
        self.space.fetch_add(d.space, Relaxed);
    }

    pub(crate) fn alloc(&self) -> u64 {
        self.alloc.load(Relaxed).max(0).unsigned_abs()
    }

    pub(crate) fn deferred(&self) -> u64 {
        self.deferred.load(Relaxed).max(0).unsigned_abs()
    }

    pub(crate) fn space(&self) -> u64 {
        self.space.load(Relaxed).max(0).unsigned_abs()
    }
}

/// One group.
pub(crate) struct Group {
    pub(crate) class: Class,
    pub(crate) account: Account,
    /// Bytes that are allocated here before the next group's turn.
    pub(crate) aliquot: AtomicU64,
    /// True if not even the smallest block fitted since the last txg.
    pub(crate) full: AtomicBool,
    selector: Mutex<Selector>,
}

impl Group {
    pub(crate) fn new(class: Class, metaslabs: usize, allocators: usize) -> Self {
        let infos = vec![Info::default(); metaslabs];
        let selector = Selector { infos, active: vec![[None; 2]; allocators], ..Selector::default() };
        Group {
            class,
            account: Account::default(),
            aliquot: AtomicU64::new(0),
            full: AtomicBool::new(false),
            selector: Mutex::new(selector),
        }
    }

    /// The vdev has so many metaslabs from now on.
    pub(crate) fn grow(&self, metaslabs: usize) {
        let mut s = self.selector.lock();
        let count = s.infos.len().max(metaslabs);
        s.infos.resize_with(count, Info::default);
    }

    /// Adds a metaslab to this group, or updates a changed one.
    pub(crate) fn update(&self, ms: &Metaslab) {
        let (weight, limit, room, ready) = (ms.weight(), ms.limit(), ms.room(), !ms.is_new());
        let mut s = self.selector.lock();
        let Some(info) = s.infos.get_mut(ms.id() as usize) else { return };
        let was = std::mem::replace(info, Info { member: true, weight, limit, room, owner: info.owner });
        if !was.member {
            s.ready += usize::from(ready);
            s.order.insert((Reverse(weight), ms.id()));
        } else if was.weight != weight {
            s.order.remove(&(Reverse(was.weight), ms.id()));
            s.order.insert((Reverse(weight), ms.id()));
        }
    }

    /// Notes that a new metaslab may be used from now on.
    pub(crate) fn became_ready(&self) {
        self.selector.lock().ready += 1;
    }

    /// Returns the allocator for `hint`. If there are few metaslabs, all use the first.
    pub(crate) fn allocator(&self, hint: u64) -> usize {
        let s = self.selector.lock();
        let n = (hint % s.active.len().max(1) as u64) as usize;
        if n >= s.ready / 3 { 0 } else { n }
    }

    /// Returns the metaslab to try next for `size` bytes. `used` are the metaslabs of the other copies; `tried` those that had no
    /// room.
    pub(crate) fn pick(
        &self,
        allocator: usize,
        turn: Turn,
        size: u64,
        effort: Effort,
        used: &[u32],
        tried: &[u32],
    ) -> Option<u32> {
        let s = self.selector.lock();
        let apart = |id: u32| effort > Effort::Usual || !used.contains(&id);
        let active = if turn == Turn::Further {
            None
        } else {
            s.active.get(allocator).and_then(|a| a.get(turn as usize).copied()?)
        };
        if let Some(id) = active.filter(|id| !tried.contains(id) && apart(*id)) {
            return Some(id);
        }
        let fits = |id: u32| {
            s.infos
                .get(id as usize)
                .is_some_and(|i| i.limit >= size || (effort == Effort::Hard && i.room >= size && i.limit > 0))
        };
        let tries = if effort == Effort::Hard { usize::MAX } else { MAX_TRIES };
        let mut second = None;
        for id in s.order.iter().map(|(_, id)| *id).take(tries) {
            if !fits(id) || tried.contains(&id) || !apart(id) {
                continue;
            }
            if s.infos.get(id as usize).is_some_and(|i| i.owner.is_none()) {
                return Some(id);
            }
            second = second.or(Some(id));
        }
        second
    }

    /// Assigns `ms` to this allocator, if no other allocator uses it and this one has none.
    pub(crate) fn activate(&self, ms: &Metaslab, allocator: usize, turn: Turn) {
        if turn == Turn::Further {
            return;
        }
        let mut s = self.selector.lock();
        let s = &mut *s;
        let (Some(info), Some(place)) =
            (s.infos.get_mut(ms.id() as usize), s.active.get_mut(allocator).and_then(|a| a.get_mut(turn as usize)))
        else {
            return;
        };
        if place.is_none() && info.owner.is_none() {
            *place = Some(ms.id());
            info.owner = Some((allocator as u8, turn as u8, ms.largest_index().unwrap_or(0)));
        }
    }

    /// Takes `ms` from its allocator because it had no room.
    pub(crate) fn passivate(&self, ms: &Metaslab) {
        let mut s = self.selector.lock();
        if let Some((a, t, _)) = s.infos.get_mut(ms.id() as usize).and_then(|i| i.owner.take())
            && let Some(place) = s.active.get_mut(usize::from(a)).and_then(|a| a.get_mut(usize::from(t)))
        {
            *place = None;
        }
        drop(s);
        self.update(ms);
    }

    /// Called after an allocation: takes the metaslab from its allocator if it has become too fragmented (OpenZFS:
    /// `metaslab_segment_may_passivate`).
    pub(crate) fn settle(&self, ms: &Metaslab) {
        let Some(now) = ms.largest_index() else { return };
        let owner = self.selector.lock().infos.get(ms.id() as usize).and_then(|i| i.owner);
        if let Some((_, _, began)) = owner
            && now + SWITCH_THRESHOLD <= began
            && !ms.is_one_segment()
        {
            self.passivate(ms);
        }
    }

    /// True if an allocator uses this metaslab.
    pub(crate) fn is_active(&self, id: u32) -> bool {
        self.selector.lock().infos.get(id as usize).is_some_and(|i| i.owner.is_some())
    }
}
