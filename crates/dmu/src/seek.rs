//! Positions of data and holes in an object (SEEK_DATA, SEEK_HOLE).

use crate::{Error, Object};

impl Object {
    /// The first byte from `offset` on that is in a block; `None` when only holes follow.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        let Some(blkid) = offset.checked_div(self.block_size()) else { return Ok(None) };
        let found = self.cursor().next_block(blkid)?;
        Ok(found.and_then(|found| found.checked_mul(self.block_size())).map(|start| start.max(offset)))
    }

    /// The first byte from `offset` on that is in a hole; the end of the last block counts as one.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    pub fn next_hole(&self, offset: u64) -> Result<u64, Error> {
        let Some(blkid) = offset.checked_div(self.block_size()) else { return Ok(offset) };
        let found = self.cursor().next_hole_block(blkid)?.unwrap_or(self.nblocks());
        Ok(found.saturating_mul(self.block_size()).max(offset))
    }
}
