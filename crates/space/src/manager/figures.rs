//! The figures of the space of a pool: of classes, vdevs, and the whole.
//!
//! OpenZFS: `metaslab_class_get_*`, `spa_get_slop_space`, `spa_update_dspace`, `metaslab_class_fragmentation`.

use std::sync::Arc;

use base::{Txg, tunable};

use super::SpaceManager;
use super::tops::Top;
use crate::Class;
use crate::group::Group;

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

impl SpaceManager {
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
