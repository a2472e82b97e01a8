//! The vdevs below a top-level vdev: leaves, and groups of leaves of which each holds the same.

use std::sync::Arc;

use base::{Guid, Txg};
use smallvec::SmallVec;

use crate::config::{VdevConfig, VdevType};
use crate::draid::Draid;
use crate::errors::ErrorCounters;
use crate::tree::Leaves;
use crate::{Error, Leaf};

/// Distributed spares standing in for children that are distributed spares themselves, and so on, at most.
const SPARE_CHAIN_MAX: usize = 16;

/// A vdev that holds full copies.
#[derive(Debug)]
pub(crate) enum Node {
    /// A device.
    Leaf(Arc<Leaf>),
    /// Mirror, replacing or spare: each child holds everything.
    Group(Group),
    /// A distributed spare: at each offset some other child of the dRAID. The leaf is only its name and its missed txgs.
    DraidSpare {
        /// Its number.
        id: u64,
        /// Its identity.
        leaf: Arc<Leaf>,
    },
    /// Nothing.
    Missing,
}

/// A mirror, replacing or spare.
#[derive(Debug)]
pub(crate) struct Group {
    guid: Guid,
    /// Its errors; those of a top-level vdev are counted there, and these stay empty.
    errors: Arc<ErrorCounters>,
    children: Vec<Node>,
}

/// The outcome of an operation of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was done, or need not be.
    Done,
    /// The device failed.
    Failed,
    /// The bytes were wrong or old, or there is no device.
    Useless,
}

/// How far a copy is to be trusted before its checksum is known. Less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// It should be right.
    Fresh,
    /// The leaf missed the txg of the block.
    Stale,
    /// The leaf is offline, faulted or removed.
    OutOfUse,
    /// There is no device.
    Absent,
}

/// A leaf that holds a copy of some bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy<'a> {
    pub(crate) leaf: &'a Leaf,
    pub(crate) rank: Rank,
}

/// The copies of some bytes, the best first.
pub(crate) type Copies<'a> = SmallVec<[Copy<'a>; 3]>;

/// The children that a distributed spare refers to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpareRoom<'a> {
    pub(crate) draid: &'a Draid,
    pub(crate) children: &'a [Node],
}

impl Node {
    pub(crate) fn open(config: &VdevConfig, leaves: &mut Leaves<'_>) -> Result<Node, Error> {
        Ok(match config.kind {
            VdevType::Disk | VdevType::File => Node::Leaf(leaves.open(config)),
            VdevType::DraidSpare => Node::DraidSpare { id: config.spare_id, leaf: leaves.open_without_device(config) },
            kind if kind.is_mirror_like() => {
                let children = config.children.iter().map(|c| Node::open(c, leaves));
                let children = children.collect::<Result<_, _>>()?;
                Node::Group(Group { guid: config.guid, errors: Arc::default(), children })
            }
            VdevType::Missing | VdevType::Hole => Node::Missing,
            kind => return Err(Error::config(config.guid, format!("a {} below a top-level vdev", kind.name()))),
        })
    }

    /// The leaves that hold what was born in `birth` at device offset `offset`, the best first.
    pub(crate) fn copies<'a>(&'a self, spares: Option<SpareRoom<'a>>, offset: u64, birth: Txg) -> Copies<'a> {
        let mut copies = Copies::new();
        self.collect(spares, offset, birth, Rank::Fresh, SPARE_CHAIN_MAX, &mut copies);
        if copies.len() > 1 {
            copies.sort_by_key(|c| c.rank);
        }
        copies
    }

    /// Its own counters: those of a leaf, also of a distributed spare, or of a group.
    pub(crate) fn errors(&self) -> Option<&Arc<ErrorCounters>> {
        match self {
            Node::Leaf(leaf) | Node::DraidSpare { leaf, .. } => Some(&leaf.errors),
            Node::Group(group) => Some(&group.errors),
            Node::Missing => None,
        }
    }

    /// The groups of this and below, with their counters.
    pub(crate) fn groups(&self, out: &mut Vec<(Guid, Arc<ErrorCounters>)>) {
        if let Node::Group(group) = self {
            out.push((group.guid, group.errors.clone()));
            group.children.iter().for_each(|child| child.groups(out));
        }
    }

    /// Lets groups and distributed spares `count` what failed on all that is below them, if devices are to blame; `outcome` tells what became of it on each
    /// leaf at device offset `offset` (OpenZFS: `vdev_mirror_worst_error`, and what `zio_done` counts).
    pub(crate) fn count_failed(
        &self,
        spares: Option<SpareRoom<'_>>,
        offset: u64,
        outcome: &dyn Fn(&Leaf) -> Outcome,
        count: &dyn Fn(&ErrorCounters),
    ) -> Outcome {
        self.outcome(spares, offset, SPARE_CHAIN_MAX, outcome, count)
    }

    /// The same for the children of a top-level vdev, which counts for itself.
    pub(crate) fn count_failed_below(
        &self,
        offset: u64,
        outcome: &dyn Fn(&Leaf) -> Outcome,
        count: &dyn Fn(&ErrorCounters),
    ) {
        if let Node::Group(group) = self {
            for child in &group.children {
                child.count_failed(None, offset, outcome, count);
            }
        }
    }

    fn outcome(
        &self,
        spares: Option<SpareRoom<'_>>,
        offset: u64,
        chain: usize,
        of_leaf: &dyn Fn(&Leaf) -> Outcome,
        count: &dyn Fn(&ErrorCounters),
    ) -> Outcome {
        let (errors, outcome) = match self {
            Node::Leaf(leaf) => return of_leaf(leaf),
            Node::Missing => return Outcome::Useless,
            Node::Group(group) => {
                let children = group.children.iter().map(|child| child.outcome(spares, offset, chain, of_leaf, count));
                let best = children.fold(Outcome::Useless, |all, one| match (all, one) {
                    (Outcome::Done, _) | (_, Outcome::Done) => Outcome::Done,
                    (Outcome::Failed, _) | (_, Outcome::Failed) => Outcome::Failed,
                    _ => Outcome::Useless,
                });
                (&group.errors, best)
            }
            Node::DraidSpare { id, leaf } => {
                let child = spares.and_then(|room| room.children.get(room.draid.spare_child(*id, offset)?));
                let (Some(child), Some(chain)) = (child, chain.checked_sub(1)) else { return Outcome::Useless };
                (&leaf.errors, child.outcome(spares, offset, chain, of_leaf, count))
            }
        };
        if outcome == Outcome::Failed {
            count(errors);
        }
        outcome
    }

    fn collect<'a>(
        &'a self,
        spares: Option<SpareRoom<'a>>,
        offset: u64,
        birth: Txg,
        at_least: Rank,
        chain: usize,
        out: &mut Copies<'a>,
    ) {
        match self {
            Node::Leaf(leaf) => {
                let own = if !leaf.has_device() {
                    Rank::Absent
                } else if leaf.is_out_of_use() {
                    Rank::OutOfUse
                } else if leaf.misses(birth) {
                    Rank::Stale
                } else {
                    Rank::Fresh
                };
                out.push(Copy { leaf, rank: own.max(at_least) });
            }
            Node::Group(group) => {
                for child in &group.children {
                    child.collect(spares, offset, birth, at_least, chain, out);
                }
            }
            Node::DraidSpare { id, leaf } => {
                // while a sequential rebuild runs, nothing is known of what has been rebuilt
                let rebuilding = leaf.config().rebuild_txg.0 != 0;
                let own = if rebuilding || leaf.misses(birth) { Rank::Stale } else { Rank::Fresh };
                let at_least = if leaf.is_out_of_use() { Rank::OutOfUse } else { own.max(at_least) };
                let child = spares.and_then(|room| room.children.get(room.draid.spare_child(*id, offset)?));
                if let (Some(child), Some(chain)) = (child, chain.checked_sub(1)) {
                    child.collect(spares, offset, birth, at_least, chain, out);
                }
            }
            Node::Missing => {}
        }
    }
}
