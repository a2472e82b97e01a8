//! Freeing long ranges in steps: an object may have more blocks than a txg can hold the pointers of (OpenZFS:
//! `dmu_free_long_range`, `get_next_chunk`, `zfs_per_txg_dirty_frees_percent`).
//!
//! The caller frees the [last piece](Object::last_piece) that has data, with a hold on a txg of its own, and so on. The
//! memory that a piece costs a sync counts as dirty data, so that the pool closes txgs and throttles the caller, as it
//! does writers.

use std::borrow::Borrow;
use std::ops::Range;

use ondisk::{BlkPtr, DnodePhys};

use super::Tx;
use crate::{Error, Object};

/// The most blocks of pointers whose subtrees one piece covers (OpenZFS: `DMU_MAX_ACCESS` bytes of them, half).
const PIECE_INDIRECT: u64 = 256;
/// Bytes of memory that a sync needs for each block that it frees: its pointer on three lists.
const BLOCK_COST: u64 = 3 * size_of::<BlkPtr>() as u64;

impl Object {
    /// The last piece of `range`, in bytes, that has any data; holes after it are left out. `None` if there is none.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    pub fn last_piece(&self, range: Range<u64>) -> Result<Option<Range<u64>>, Error> {
        let size = self.block_size();
        let piece = self.piece_len();
        let mut end = range.end.min(size.saturating_mul(self.nblocks()));
        // a hole may be as long as the largest offset: the step grows with the hole found so far
        let mut step = piece;
        while end > range.start {
            let start = (end.saturating_sub(step).div_ceil(piece) * piece).max(range.start);
            match self.next_data(start)?.filter(|data| *data < end) {
                Some(_) if step == piece => return Ok(Some(start..end)),
                Some(_) => step = (step / 2).max(piece),
                None => {
                    end = start;
                    step = step.saturating_mul(2);
                }
            }
        }
        Ok(None)
    }

    /// Frees the [last piece](Object::last_piece) and the hole behind it, up to byte `upto`.
    ///
    /// # Errors
    /// As [`Object::free_range`].
    pub fn free_piece(&self, tx: &Tx, piece: &Range<u64>, upto: u64) -> Result<(), Error> {
        let blocks = piece.end.saturating_sub(piece.start).div_ceil(self.block_size().max(1));
        self.free_counted(tx, piece.start, upto.saturating_sub(piece.start), blocks)
    }

    /// Returns whether `range`, in bytes, may have more than one piece: freeing it in one step may make a sync remember
    /// more than a txg has room for.
    #[must_use]
    pub fn is_long(&self, range: &Range<u64>) -> bool {
        let end = range.end.min(self.block_size().saturating_mul(self.nblocks()));
        let first = range.start.checked_div(self.piece_len()).unwrap_or(0);
        end > range.start && (end - 1).checked_div(self.piece_len()).unwrap_or(0) > first
    }

    /// Frees all of `range` but its first piece, the last piece first, each with a hold from `place`.
    ///
    /// # Errors
    /// As [`Object::last_piece`] and [`Object::free_range`]; any error of `place`.
    pub fn free_long<P: Borrow<Tx>, E: From<Error>>(
        &self,
        range: Range<u64>,
        mut place: impl FnMut() -> Result<P, E>,
    ) -> Result<(), E> {
        let mut end = range.end;
        while let Some(piece) = self.last_piece(range.start..end)?.filter(|piece| piece.start > range.start) {
            self.free_piece(place()?.borrow(), &piece, end)?;
            end = piece.start;
        }
        Ok(())
    }

    /// An upper bound of the number of blocks of `range`, in bytes, that are on disk.
    #[must_use]
    pub fn blocks_within(&self, range: &Range<u64>) -> u64 {
        let blocks = range.end.saturating_sub(range.start).div_ceil(self.block_size().max(1));
        blocks.min(filled(self.phys()))
    }

    /// Bytes of a piece.
    fn piece_len(&self) -> u64 {
        let per_indirect = 1u64 << self.phys().fanout_shift().min(20);
        self.block_size().saturating_mul(per_indirect).saturating_mul(PIECE_INDIRECT).max(1)
    }

    /// Charges the memory that a sync needs for up to `blocks` freed blocks.
    pub(crate) fn charge_freed(tx: &Tx, synced: &DnodePhys, blocks: u64) {
        tx.burdened(blocks.min(filled(synced)).saturating_mul(BLOCK_COST));
    }
}

/// Blocks of data below a dnode.
fn filled(dn: &DnodePhys) -> u64 {
    dn.blkptr.iter().filter(|bp| !bp.is_hole()).map(|bp| bp.fill().max(1)).fold(0, u64::saturating_add)
}
