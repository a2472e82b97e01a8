//! The blocks or objects below a block of pointers, which are lost with it.

use std::fmt;

use base::ObjectId;
use ondisk::{DNODE_SHIFT, DnodePhys, ObjectType};
use zio::Bookmark;

/// All that one block of pointers or dnodes leads to, in numbers that a user can look up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Below {
    /// Blocks of data, which may include holes.
    Data {
        /// The first one.
        first: u64,
        /// The last one.
        last: u64,
        /// Bytes of each.
        block_size: u64,
    },
    /// Object numbers, not all of which need exist.
    Objects {
        /// The first number.
        first: ObjectId,
        /// The last number.
        last: ObjectId,
    },
}

impl Below {
    /// The blocks or objects below the block `bm` of an object; `None` for a block of data, and for the root block of an
    /// object set.
    #[must_use]
    pub fn of(dn: &DnodePhys, bm: &Bookmark) -> Option<Below> {
        let is_dnodes = dn.object_type == ObjectType::DNODE;
        let is_data = bm.level == 0 && (!is_dnodes || bm.blkid == Bookmark::SPILL_BLKID);
        if is_data || bm.level >= Bookmark::ZIL_LEVEL {
            return None;
        }
        let shift = u32::from(bm.level).saturating_mul(dn.fanout_shift());
        let span = 1u64.checked_shl(shift).unwrap_or(u64::MAX);
        let first = bm.blkid.saturating_mul(span);
        let last = first.saturating_add(span - 1).min(dn.maxblkid).max(first);
        let block_size = dn.datablksz();
        if !is_dnodes {
            return Some(Below::Data { first, last, block_size });
        }
        let per_block = (block_size >> DNODE_SHIFT).max(1);
        let end = last.saturating_add(1).saturating_mul(per_block);
        Some(Below::Objects { first: ObjectId(first.saturating_mul(per_block)), last: ObjectId(end - 1) })
    }
}

impl fmt::Display for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Below::Data { first, last, block_size } => {
                let (start, end) =
                    (first.saturating_mul(block_size), last.saturating_add(1).saturating_mul(block_size));
                write!(f, "blocks {first}-{last} (bytes {start}-{})", end.saturating_sub(1))
            }
            Below::Objects { first, last } => write!(f, "objects {first}-{last}"),
        }
    }
}
