//! What stands below a top-level vdev: leaves, and groups of leaves of which each holds the same.

use std::sync::Arc;

use base::{Guid, Txg};
use smallvec::SmallVec;

use crate::config::{VdevConfig, VdevType};
use crate::device::Device;
use crate::draid::Draid;
use crate::{Error, Leaf};

/// Distributed spares standing in for children that are distributed spares themselves, and so on, at most.
const SPARE_CHAIN_MAX: usize = 16;

/// A vdev that holds full copies.
#[derive(Debug)]
pub(crate) enum Node {
    /// A device.
    Leaf(Arc<Leaf>),
    /// Mirror, replacing or spare: each child holds everything.
    Group(Vec<Node>),
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

/// What a distributed spare refers to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpareRoom<'a> {
    pub(crate) draid: &'a Draid,
    pub(crate) children: &'a [Node],
}

impl Node {
    pub(crate) fn open(
        config: &VdevConfig,
        found: &dyn Fn(Guid) -> Option<Arc<dyn Device>>,
        leaves: &mut Vec<Arc<Leaf>>,
    ) -> Result<Node, Error> {
        let mut leaf = |device| {
            let leaf = Arc::new(Leaf::new(leaves.len(), config, device));
            leaves.push(Arc::clone(&leaf));
            leaf
        };
        Ok(match config.kind {
            VdevType::Disk | VdevType::File => Node::Leaf(leaf(found(config.guid))),
            VdevType::DraidSpare => Node::DraidSpare { id: config.spare_id, leaf: leaf(None) },
            kind if kind.is_mirror_like() => {
                let children = config.children.iter().map(|c| Node::open(c, found, leaves));
                Node::Group(children.collect::<Result<_, _>>()?)
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
                let own = if leaf.device.is_none() {
                    Rank::Absent
                } else if leaf.config.is_out_of_use() {
                    Rank::OutOfUse
                } else if leaf.misses(birth) {
                    Rank::Stale
                } else {
                    Rank::Fresh
                };
                out.push(Copy { leaf, rank: own.max(at_least) });
            }
            Node::Group(children) => {
                for child in children {
                    child.collect(spares, offset, birth, at_least, chain, out);
                }
            }
            Node::DraidSpare { id, leaf } => {
                // while a sequential rebuild runs, nothing is known of what has been rebuilt
                let rebuilding = leaf.config.rebuild_txg.0 != 0;
                let own = if rebuilding || leaf.misses(birth) { Rank::Stale } else { Rank::Fresh };
                let at_least = if leaf.config.is_out_of_use() { Rank::OutOfUse } else { own.max(at_least) };
                let child = spares.and_then(|room| room.children.get(room.draid.spare_child(*id, offset)?));
                if let (Some(child), Some(chain)) = (child, chain.checked_sub(1)) {
                    child.collect(spares, offset, birth, at_least, chain, out);
                }
            }
            Node::Missing => {}
        }
    }
}
