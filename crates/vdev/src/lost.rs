//! Blocks that a read could not get from any device, in one opened pool (OpenZFS: `spa_log_error`, `spa_errlist_last`).

use std::collections::BTreeSet;

use base::{ObjectId, Txg};

use crate::PoolErrors;

/// The number of blocks remembered; a block found lost beyond it is found again when the pool is opened anew.
const LOST_MAX: usize = 4096;

/// A block that no device had, by its place in the tree of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostBlock {
    /// The dataset's object, 0 for the MOS.
    pub objset: ObjectId,
    /// The object in it.
    pub object: ObjectId,
    /// The level of the block.
    pub level: i64,
    /// Its number.
    pub blkid: u64,
    /// The txg in which it was written.
    pub birth: Txg,
}

/// Lost blocks in the order in which they were met.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    blocks: Vec<LostBlock>,
    known: BTreeSet<LostBlock>,
    /// The number of them that are in the pool's error log, or shall not be.
    recorded: usize,
}

impl PoolErrors {
    /// Remembers a lost block. Returns whether it is new.
    pub fn note_lost(&self, block: LostBlock) -> bool {
        let lost = &mut self.followed().lost;
        let new = lost.known.len() < LOST_MAX && lost.known.insert(block);
        if new {
            lost.blocks.push(block);
        }
        new
    }

    /// Returns the lost blocks that are not recorded yet.
    #[must_use]
    pub fn lost(&self) -> Vec<LostBlock> {
        let lost = &self.followed().lost;
        lost.blocks.get(lost.recorded..).unwrap_or_default().to_vec()
    }

    /// Takes the lost blocks that are not recorded yet, which the caller records.
    #[must_use]
    pub fn take_lost(&self) -> Vec<LostBlock> {
        let lost = &mut self.followed().lost;
        let from = std::mem::replace(&mut lost.recorded, lost.blocks.len());
        lost.blocks.get(from..).unwrap_or_default().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_block_is_recorded_once() {
        let block =
            |object| LostBlock { objset: ObjectId(1), object: ObjectId(object), level: 0, blkid: 0, birth: Txg(4) };
        let errors = PoolErrors::default();
        assert!(errors.note_lost(block(1)) && errors.note_lost(block(2)) && !errors.note_lost(block(1)));
        assert_eq!(errors.take_lost(), [block(1), block(2)]);
        assert!(!errors.note_lost(block(2)) && errors.note_lost(block(3)));
        assert_eq!((errors.lost(), errors.take_lost(), errors.lost()), (vec![block(3)], vec![block(3)], vec![]));
        let new = (10..).map(block).take_while(|block| errors.note_lost(*block)).count();
        assert_eq!(new, LOST_MAX - 3);
    }
}
