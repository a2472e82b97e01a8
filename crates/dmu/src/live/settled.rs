//! Pointers to the blocks that are on disk in their newest version, for cloning (OpenZFS: `dmu_read_l0_bps`).

use ondisk::BlkPtr;

use super::dnode::BlockState;
use crate::tree::Child;
use crate::{Error, Object};

/// The location of the newest content of a block.
#[derive(Clone, Copy, Debug)]
pub enum Settled {
    /// On disk, under this pointer.
    Block(BlkPtr),
    /// Nowhere: the block is a hole.
    Hole,
    /// In memory: written by a txg that is not on disk yet.
    Pending,
}

impl Object {
    /// The location of the newest content of block `blkid`.
    ///
    /// # Errors
    /// When an indirect block above it cannot be read.
    pub fn settled(&self, blkid: u64) -> Result<Settled, Error> {
        let child = match self.live() {
            None => self.tree().pointer(0, blkid)?,
            Some(live) => {
                let found = live.state.read().find(blkid);
                match found {
                    BlockState::Dirty(_) => return Ok(Settled::Pending),
                    BlockState::Hole { .. } | BlockState::End => return Ok(Settled::Hole),
                    // a sync may replace this tree meanwhile: its blocks keep their contents
                    BlockState::Below(_) => self.on_synced(live, |dn| self.tree_of(dn).pointer(0, blkid))?,
                }
            }
        };
        Ok(match child {
            Child::Block(bp) => Settled::Block(bp),
            Child::Hole { .. } | Child::End => Settled::Hole,
        })
    }
}
