//! How often vdevs failed, as `zpool status` shows it.
//!
//! A leaf counts what its device failed to read or write, and wrong bytes. A vdev of several devices, top-level or below (a spare or replacing, a
//! distributed spare), counts what it could not read or write because devices failed. Wrong bytes are counted where checksums tell: on leaves,
//! and within a raidz or dRAID on its children, whatever they are. The root counts nothing; cache devices and idle spares are neither read nor
//! written but for their labels, which are no blocks.
//!
//! OpenZFS: `vs_read_errors`, `vs_write_errors` and `vs_checksum_errors` of `vdev_stat_t`, as `zio_done` and `zio_checksum_verify` count them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::Guid;
use base::counter::Counter;

use crate::lost::Lost;
use crate::queue::Queue;
use crate::report::FaultKind;
use crate::tree::{Shape, TopVdev, VdevTree};
use crate::{Error, LeafFault};

/// The counters of one vdev.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters {
    pub(crate) read: Counter,
    pub(crate) write: Counter,
    pub(crate) checksum: Counter,
    /// The first failures that were not reported yet.
    untold: Mutex<Vec<LeafFault>>,
}

/// Failures of a leaf that are reported at a time (OpenZFS: `zfs_checksum_events_per_second`).
const UNTOLD_MAX: usize = 20;

/// A failure of a leaf, and what failed there until now (OpenZFS: an `ereport`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ereport {
    /// The failure.
    pub fault: LeafFault,
    /// The leaf's name.
    pub name: String,
    /// The leaf's failures.
    pub errors: VdevErrors,
}

impl ErrorCounters {
    /// Keeps a failure for whoever reports it: the first ones since the last question.
    pub(crate) fn note(&self, fault: LeafFault) {
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        if untold.len() < UNTOLD_MAX {
            untold.push(fault);
        }
    }

    pub(crate) fn figures(&self) -> VdevErrors {
        VdevErrors { read: self.read.get(), write: self.write.get(), checksum: self.checksum.get() }
    }
}

/// How often a vdev failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VdevErrors {
    /// Reads that failed.
    pub read: u64,
    /// Writes that failed.
    pub write: u64,
    /// Reads that gave wrong bytes.
    pub checksum: u64,
}

impl VdevErrors {
    /// Whether there were none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == VdevErrors::default()
    }

    /// These and `other` together.
    pub fn add(&mut self, other: &VdevErrors) {
        self.read = self.read.saturating_add(other.read);
        self.write = self.write.saturating_add(other.write);
        self.checksum = self.checksum.saturating_add(other.checksum);
    }

    /// Returns the figures since `before`.
    #[must_use]
    pub fn since(&self, before: &VdevErrors) -> VdevErrors {
        VdevErrors {
            read: self.read.saturating_sub(before.read),
            write: self.write.saturating_sub(before.write),
            checksum: self.checksum.saturating_sub(before.checksum),
        }
    }
}

/// The errors of the vdevs of a pool, whoever opened it, and the queues of its leaves; they outlive its trees.
#[derive(Debug, Default)]
pub struct PoolErrors(Mutex<Followed>);

#[derive(Debug, Default)]
pub(crate) struct Followed {
    errors: Vec<(Guid, Arc<ErrorCounters>)>,
    leaves: Vec<FollowedLeaf>,
    pub(crate) lost: Lost,
}

/// A leaf of some tree of a pool.
#[derive(Debug, Clone)]
pub struct FollowedLeaf {
    /// Its identity.
    pub guid: Guid,
    /// Its name in messages.
    pub name: String,
    /// Its queue.
    pub queue: Arc<Queue>,
}

impl PoolErrors {
    /// Takes notice of the vdevs of one more tree. Those that it shares with trees that were followed before count once.
    pub fn follow(&self, tree: &VdevTree) {
        let leaves = tree.leaves().iter().map(|leaf| (leaf.guid(), leaf.errors.clone()));
        let tops = tree.tops().iter().map(|top| (top.guid(), top.errors.clone()));
        let groups = tree.tops().iter().flat_map(TopVdev::groups);
        let mut followed = self.followed();
        for (guid, errors) in leaves.chain(tops).chain(groups) {
            match followed.errors.iter_mut().find(|(_, known)| Arc::ptr_eq(known, &errors)) {
                // a leaf may have got another guid
                Some((known, _)) => *known = guid,
                None => followed.errors.push((guid, errors)),
            }
        }
        for leaf in tree.leaves().iter().filter(|leaf| leaf.device().is_some()) {
            let (guid, name, queue) = (leaf.guid(), leaf.name(), leaf.queue().clone());
            match followed.leaves.iter_mut().find(|known| Arc::ptr_eq(&known.queue, &queue)) {
                Some(known) => known.guid = guid,
                None => followed.leaves.push(FollowedLeaf { guid, name, queue }),
            }
        }
    }

    /// The leaves whose devices were found, of one tree after the other.
    #[must_use]
    pub fn leaves(&self) -> Vec<FollowedLeaf> {
        self.followed().leaves.clone()
    }

    pub(crate) fn followed(&self) -> MutexGuard<'_, Followed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The vdevs that have failed until now.
    #[must_use]
    pub fn figures(&self) -> BTreeMap<Guid, VdevErrors> {
        let mut sums: BTreeMap<Guid, VdevErrors> = BTreeMap::new();
        for (guid, counters) in &self.followed().errors {
            let figures = counters.figures();
            if !figures.is_none() {
                sums.entry(*guid).or_default().add(&figures);
            }
        }
        sums
    }

    /// Returns the failures of leaves since the last question, a few of each.
    #[must_use]
    pub fn take_ereports(&self) -> Vec<Ereport> {
        let followed = self.followed();
        let mut reports = Vec::new();
        for (guid, counters) in &followed.errors {
            let faults = std::mem::take(&mut *counters.untold.lock().unwrap_or_else(PoisonError::into_inner));
            let name = followed.leaves.iter().find(|leaf| leaf.guid == *guid).map_or("", |leaf| leaf.name.as_str());
            let errors = counters.figures();
            reports.extend(faults.into_iter().map(|fault| Ereport { fault, name: name.to_owned(), errors }));
        }
        reports
    }

    /// Whether a tree can still add to them.
    #[must_use]
    pub fn may_grow(&self) -> bool {
        self.followed().errors.iter().any(|(_, one)| Arc::strong_count(one) > 1)
    }
}

impl VdevTree {
    /// Returns the errors of a vdev.
    pub(crate) fn errors_of(&self, guid: Guid) -> VdevErrors {
        let top = || self.tops().iter().find(|top| top.guid() == guid).map(|top| top.errors.clone());
        let group =
            || self.tops().iter().flat_map(TopVdev::groups).find(|(own, _)| *own == guid).map(|(_, errors)| errors);
        let found = self.leaf(guid).map(|leaf| leaf.errors.clone()).or_else(top).or_else(group);
        found.map(|errors| errors.figures()).unwrap_or_default()
    }
}

impl TopVdev {
    /// The groups below it, with their counters.
    fn groups(&self) -> Vec<(Guid, Arc<ErrorCounters>)> {
        fn below(shape: &Shape, out: &mut Vec<(Guid, Arc<ErrorCounters>)>) {
            match shape {
                Shape::Copies(node) => node.groups(out),
                Shape::Striped(striped) => striped.children.iter().for_each(|child| child.groups(out)),
                Shape::Sides(sides) => sides.iter().for_each(|side| below(side, out)),
                Shape::Indirect(_) | Shape::Gone => {}
            }
        }
        let mut groups = Vec::new();
        below(&self.shape, &mut groups);
        // a top-level vdev counts for itself
        groups.retain(|(guid, _)| *guid != self.guid());
        groups
    }

    /// Counts a block that could not be read, if it was devices that failed (OpenZFS: `vdev_mirror_worst_error`, `vdev_raidz_worst_error`).
    pub(crate) fn count_unreadable(&self, error: &Error) {
        let any_failed = error.faults().iter().any(|fault: &LeafFault| fault.kind == FaultKind::Io);
        let all_failed = matches!(error, Error::TooFewDevices { .. });
        if any_failed && (all_failed || !matches!(*self.shape, Shape::Striped(_))) && self.has_children() {
            self.errors.read.add(1);
        }
    }

    /// Counts blocks that could not be written because devices failed.
    pub(crate) fn count_unwritable(&self, blocks: u64) {
        if self.has_children() {
            self.errors.write.add(blocks);
        }
    }

    /// A leaf counts for itself.
    fn has_children(&self) -> bool {
        !self.config().children.is_empty()
    }
}
