//! Leaves that missed writes, and leaves that fail.
//!
//! A leaf that was away, or failed to write, has the txgs of it in its DTL. As long as that is not empty, what the leaf holds of these txgs may be
//! old, and the pool has less redundancy than it should have. A resilver reads what was born in them and rewrites it; then the txgs go
//! from the DTL ([`VdevTree::caught_up`]), if the leaf was there all the while.
//!
//! A leaf whose device fails is judged at the end of the batch that met it, and once a txg ([`VdevTree::judge`]). If it failed ten times within ten
//! minutes, or cannot even rewrite a pad of its labels, it is given up; unless it alone has something, for then it goes on being used. A leaf that gives
//! wrong bytes as often is degraded, and used on. See `diagnosis`.
//!
//! OpenZFS: `vdev_dtl_reassess`, `vdev_dtl_should_excise`, `vdev_resilver_needed`, `vdev_probe`, `vdev_fault`, `vdev_dtl_required`, and of its event daemon
//! the engine `zfs-diagnosis`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use base::{Guid, Txg};
use ondisk::Dva;

use crate::config::{VdevConfig, VdevType};
use crate::diagnosis::Verdict;
use crate::label;
use crate::status::{VdevAux, VdevState};
use crate::tree::{TopVdev, VdevTree, leaf_shares, metaslab_bytes};
use crate::{Error, Leaf};

/// A txg that no leaf has missed.
const NEVER: Txg = Txg(u64::MAX);

impl VdevTree {
    /// The leaves that missed something and can be brought up to date.
    pub fn stale_leaves(&self) -> impl Iterator<Item = &Arc<Leaf>> {
        self.leaves().iter().filter(|leaf| leaf.is_stale() && leaf.is_writable())
    }

    /// The txgs within which they missed something (OpenZFS: `vdev_resilver_needed`).
    #[must_use]
    pub fn missed(&self) -> Option<Range<u64>> {
        let of_leaf = |leaf: &Arc<Leaf>| {
            let dtl = leaf.dtl();
            Some(dtl.first()?.start..dtl.last()?.end)
        };
        self.stale_leaves().filter_map(of_leaf).reduce(|all, one| all.start.min(one.start)..all.end.max(one.end))
    }

    /// Whether one of them missed what was born in `birth`.
    #[must_use]
    pub fn is_missed(&self, birth: Txg) -> bool {
        self.stale_leaves().any(|leaf| leaf.misses(birth))
    }

    /// Whether a leaf that is absent or out of use did not miss what was born in `birth`, and so may have a part of what lies at `dva`. Where the parts of a
    /// gang block are, or of what was on a removed vdev, is not looked up: then each leaf of the pool may.
    #[must_use]
    pub fn may_be_elsewhere(&self, dva: Dva, birth: Txg) -> bool {
        let top = self.top(dva.vdev()).filter(|top| top.is_concrete() && !dva.is_gang());
        let vdevs = top.map_or(self.config(), TopVdev::config);
        vdevs.leaves().filter_map(|leaf| self.leaf(leaf.guid)).any(|leaf| !leaf.is_usable() && !leaf.misses(birth))
    }

    /// Notes, of the devices that are not up to date, those that are away in `txg`, while others like them are brought up to date.
    pub fn note_absent(&self, txg: Txg) {
        let absent = |leaf: &&Arc<Leaf>| leaf.is_stale() && !leaf.is_writable();
        self.leaves().iter().filter(absent).for_each(|leaf| leaf.miss(txg));
    }

    /// All that was born within `txgs` was read and rewritten where it was missing, and nothing was lost. Who missed something later was not
    /// there all the while, and keeps its DTL; so do those that were `passed` over. Gives the leaves that have missed nothing any more.
    pub fn caught_up(&self, txgs: &Range<u64>, passed: &[Guid]) -> Vec<Guid> {
        let was_there = |leaf: &&Arc<Leaf>| leaf.dtl().last().is_some_and(|last| last.end <= txgs.end);
        let was_read = |leaf: &&Arc<Leaf>| !passed.contains(&leaf.guid());
        let caught_up: Vec<&Arc<Leaf>> = self.stale_leaves().filter(was_there).filter(was_read).collect();
        caught_up.iter().for_each(|leaf| leaf.caught_up(txgs));
        caught_up.iter().filter(|leaf| !leaf.is_stale()).map(|leaf| leaf.guid()).collect()
    }

    /// Whether a DTL changed since [`VdevTree::dirty_dtls`] was last asked.
    #[must_use]
    pub fn has_dirty_dtls(&self) -> bool {
        self.leaves().iter().any(|leaf| leaf.is_dtl_dirty())
    }

    /// How many repairs could not be written so far, or may have got lost.
    #[must_use]
    pub fn unhealed(&self) -> u64 {
        self.leaves().iter().fold(0, |sum, leaf| sum.saturating_add(leaf.unhealed()))
    }

    /// Whether what is written to a top-level vdev can be read again: enough of its leaves can be written.
    #[must_use]
    pub fn can_be_written(&self, top: &TopVdev) -> bool {
        self.has_all(top, &std::collections::BTreeSet::from([NEVER]))
    }

    /// Returns whether the devices of a top-level vdev that are not in use are all offline: somebody took them out of use.
    #[must_use]
    pub fn is_put_aside(&self, top: &TopVdev) -> bool {
        let leaves = top.config().leaves().filter_map(|leaf| self.leaf(leaf.guid));
        leaves.filter(|leaf| !leaf.is_usable()).all(|leaf| leaf.health().state == VdevState::Offline)
    }

    /// Judges the leaves whose devices have failed, or given wrong bytes, since this was last asked.
    pub fn judge(&self) {
        self.leaves().iter().for_each(|leaf| self.judge_leaf(leaf));
        let wrong: Vec<&Arc<Leaf>> = self.leaves().iter().filter(|l| l.is_writable() && l.judge_wrong()).collect();
        let is_alone = |leaf: &Arc<Leaf>| !self.siblings(leaf.guid()).any(|other| other.was_wrong_lately());
        // all are looked at before one is settled
        let alone: Vec<bool> = wrong.iter().map(|leaf| is_alone(leaf)).collect();
        wrong.iter().zip(alone).for_each(|(leaf, alone)| leaf.settle_wrong(alone));
    }

    /// The other leaves that have the same parent.
    fn siblings(&self, leaf: Guid) -> impl Iterator<Item = &Arc<Leaf>> {
        let has_it = |vdev: &&VdevConfig| vdev.children.iter().any(|child| child.guid == leaf);
        let children = self.config().walk().find(has_it).map_or(&[][..], |parent| &parent.children);
        children.iter().filter(move |child| child.guid != leaf).filter_map(|child| self.leaf(child.guid))
    }

    /// The same for one leaf. It is probed; a device that is gone shows then.
    pub(crate) fn judge_leaf(&self, leaf: &Leaf) {
        if !leaf.is_writable() {
            return;
        }
        let is_well = match leaf.judge_io() {
            Verdict::Nothing => true,
            Verdict::Some => label::probe(leaf),
            Verdict::TooMany => false,
        };
        if !is_well && leaf.is_writable() {
            self.condemn(leaf);
        }
    }

    /// Gives up a leaf that fails, unless it alone has something.
    pub(crate) fn condemn(&self, leaf: &Leaf) {
        if self.is_required(leaf.guid()) {
            leaf.degrade(VdevAux::ErrExceeded);
        } else {
            leaf.give_up();
        }
    }

    /// Whether there is a leaf to be judged.
    #[must_use]
    pub fn has_new_errors(&self) -> bool {
        self.leaves().iter().any(|leaf| leaf.is_writable() && leaf.has_new_errors())
    }

    /// Whether something would be lost without a leaf (OpenZFS: `vdev_dtl_required`). OpenZFS lets a log lose its last leaf; here the next import
    /// would then ask for `-m`.
    #[must_use]
    pub fn is_required(&self, leaf: Guid) -> bool {
        let of_top = |top: &&VdevConfig| top.walk().any(|one| one.guid == leaf);
        let Some(top) = self.config().children.iter().find(of_top) else { return false };
        !self.outage(top, leaf).is_empty()
    }

    /// Whether all leaves of a vdev are there and have missed nothing.
    #[must_use]
    pub fn is_whole(&self, vdev: &VdevConfig) -> bool {
        let has_all = |leaf: &Arc<Leaf>| leaf.is_writable() && !leaf.is_leaving() && !leaf.is_stale();
        let mut leaves = vdev.walk().filter(|vdev| vdev.children.is_empty());
        leaves.all(|leaf| self.leaf(leaf.guid).is_some_and(has_all))
    }

    /// The bytes that a device in the place of leaf `guid` must have between its labels (OpenZFS: `vdev_get_min_asize`).
    #[must_use]
    pub fn least_room(&self, guid: Guid) -> Option<u64> {
        let mut shares = HashMap::new();
        self.config().children.iter().for_each(|top| leaf_shares(top, metaslab_bytes(top), &mut shares));
        shares.get(&guid).copied()
    }

    /// The txgs of which a vdev has not everything, were it not for leaf `without` (OpenZFS: `DTL_OUTAGE`).
    fn outage(&self, vdev: &VdevConfig, without: Guid) -> Vec<Range<u64>> {
        if vdev.children.is_empty() {
            let counts = |leaf: &&Arc<Leaf>| leaf.is_writable() && !leaf.is_leaving() && leaf.guid() != without;
            let there = self.leaf(vdev.guid).filter(counts);
            return there.map_or_else(|| std::iter::once(0..u64::MAX).collect(), |leaf| leaf.dtl());
        }
        let needed = match vdev.kind {
            VdevType::Raidz | VdevType::Draid => vdev.nparity.saturating_add(1),
            _ => vdev.children.len() as u64,
        };
        let children: Vec<Vec<Range<u64>>> = vdev.children.iter().map(|child| self.outage(child, without)).collect();
        covered(&children, needed)
    }
}

/// The ranges that lie in at least `needed` of the sets.
fn covered(sets: &[Vec<Range<u64>>], needed: u64) -> Vec<Range<u64>> {
    let mut edges: Vec<(u64, i64)> = Vec::new();
    for range in sets.iter().flatten() {
        edges.extend([(range.start, 1), (range.end, -1)]);
    }
    edges.sort_unstable();
    let (mut depth, mut since, mut out) = (0i64, None, Vec::new());
    let needed = i64::try_from(needed).unwrap_or(i64::MAX);
    for (at, step) in edges {
        depth += step;
        match since {
            None if depth >= needed => since = Some(at),
            Some(start) if depth < needed => {
                out.push(start..at);
                since = None;
            }
            _ => {}
        }
    }
    out.retain(|range| range.start < range.end);
    out
}

/// Checks that a pool can be written on the devices that are there.
///
/// # Errors
/// [`Error::Unwritable`] for the first top-level vdev that cannot; of logs, nobody minds.
pub fn check_writable(tree: &VdevTree) -> Result<(), Error> {
    let needed = |top: &&TopVdev| top.is_concrete() && !top.config().is_log;
    match tree.tops().iter().filter(needed).find(|top| !tree.can_be_written(top)) {
        Some(top) => Err(Error::Unwritable { vdev: top.config().name() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::covered;

    #[test]
    fn what_enough_children_miss_is_out() {
        let sets = vec![vec![0..10, 20..30], vec![5..25], vec![8..9, 22..40]];
        assert_eq!(covered(&sets, 1).as_slice(), std::slice::from_ref(&(0..40)));
        assert_eq!(covered(&sets, 2), [5..10, 20..30]);
        assert_eq!(covered(&sets, 3), [8..9, 22..25]);
        assert!(covered(&sets, 4).is_empty() && covered(&[], 1).is_empty());
    }
}
