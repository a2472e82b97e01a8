//! Blocks that are on disk as they are, for who wants to share them (OpenZFS: `dmu_read_l0_bps`).

use ondisk::BlkPtr;

use super::dnode::Found;
use crate::tree::Child;
use crate::{Error, Object};

/// Where the newest content of a block stands.
#[derive(Clone, Copy, Debug)]
pub enum Settled {
    /// On disk, under this pointer.
    Block(BlkPtr),
    /// Nowhere: it reads as zeros.
    Hole,
    /// In memory: a txg that is not on disk yet has written it.
    Pending,
}

impl Object {
    /// Where the newest content of block `blkid` stands.
    ///
    /// # Errors
    /// When an indirect block above it cannot be read.
    pub fn settled(&self, blkid: u64) -> Result<Settled, Error> {
        let child = match self.live() {
            None => self.tree().pointer(0, blkid)?,
            Some(live) => {
                let found = live.state.read().find(blkid);
                match found {
                    Found::Dirty(_) => return Ok(Settled::Pending),
                    Found::Hole { .. } | Found::End => return Ok(Settled::Hole),
                    // a sync may take this tree's place meanwhile: its blocks stay where they are
                    Found::Below(_) => self.on_synced(live, |dn| self.tree_of(dn).pointer(0, blkid))?,
                }
            }
        };
        Ok(match child {
            Child::Block(bp) => Settled::Block(bp),
            Child::Hole { .. } | Child::End => Settled::Hole,
        })
    }
}
