//! The walk of a scrub or resilver: all blocks of the pool, or those that devices missed, in the order of OpenZFS (`dsl_scan_visitbp`), from the
//! position in the pool's [record](ScrubCursor) on.
//!
//! A deduplicated or cloned block is read once. Intent logs that were claimed and wait for replay are read; others live shorter than a scan.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::{ObjectId, Txg};
use dmu::{Objset, Visit, Walk};
use ondisk::scan::ScanFunc;
use zio::{Bookmark, IoClass};

use super::slice::Slice;
use super::{ScrubCursor, Target};
use crate::spa::check::{Claim, Claims};
use crate::{Error, Pool};

/// The walk of a slice.
pub(super) struct Walked<'s, 'a, 'l> {
    pub(super) slice: &'s mut Slice<'a, 'l>,
    /// Blocks that others may share, as far as they were read.
    pub(super) shared: &'s mut Claims,
    /// The state of the pool that is walked: as it is, or as its checkpoint keeps it.
    pub(super) view: &'s Arc<Pool>,
    pub(super) func: ScanFunc,
    /// Blocks of data may have several pointers.
    pub(super) cloning: bool,
}

impl Walked<'_, '_, '_> {
    /// Goes on from `cursor`, until the limit is reached or everything was met. Returns whether everything was.
    pub(super) fn go(&mut self, cursor: &mut ScrubCursor) -> Result<bool, Error> {
        while let Some(target) = cursor.target(self.view)? {
            if let Some(next) = self.tree(&target)? {
                cursor.reached(&next);
                return Ok(false);
            }
            cursor.done(self.view)?;
        }
        Ok(true)
    }

    /// Walks the tree of a dataset. Gives the block to go on with if the limit was reached.
    fn tree(&mut self, target: &Target) -> Result<Option<Bookmark>, Error> {
        if target.root.is_hole() || target.root.birth() <= target.after {
            return Ok(None);
        }
        let objset = match target.dataset {
            ObjectId::MOS => Ok(self.view.mos().clone()),
            id => Objset::open(self.view.zio().clone(), id, &target.root),
        };
        let objset = match objset {
            Ok(objset) => objset,
            Err(why) => {
                let bm = Bookmark::root(target.dataset);
                self.feed(&target.root, &bm);
                self.slice.damaged(&bm, target.root.birth_physical(), &why);
                return Ok(None);
            }
        };
        let mut next = None;
        let mut behind = Behind::new(target.from);
        objset.walk_as(IoClass::Scrub, &mut |at| {
            if at.bp.is_hole() || at.bp.birth() <= target.after || behind.is(at) {
                return Walk::Skip;
            }
            if let Some(why) = at.damage {
                self.slice.damaged(at.bookmark, at.bp.birth_physical(), why);
                return Walk::Skip;
            }
            if may_end_at(at) && self.slice.limit.reached() {
                next = Some(*at.bookmark);
                return Walk::Stop;
            }
            if at.bp.birth_physical() <= target.upto {
                self.feed(at.bp, at.bookmark);
            }
            Walk::Into
        });
        if next.is_none() && target.dataset != ObjectId::MOS {
            self.log(&objset, target);
        }
        Ok(next)
    }

    /// Reads an intent log that waits to be replayed, and the blocks that its records lead to (OpenZFS: `dsl_scan_zil`). The last block of a chain
    /// was perhaps never written: it is read if it has records.
    fn log(&mut self, objset: &Arc<Objset>, target: &Target) {
        let (claim, last) = {
            let header = &objset.phys().zil_header;
            (header.claim_txg, header.claim_blk_seq)
        };
        if claim == Txg(0) {
            return;
        }
        let mut perhaps = None;
        zil::walk(objset, &mut |step| {
            match step {
                zil::Step::Block(bp) => {
                    let seq = bp.words[15];
                    perhaps = (bp.birth() > target.after)
                        .then_some((*bp, Bookmark::new(objset.id(), ObjectId::NONE, Bookmark::ZIL_LEVEL, seq)));
                    if seq < last
                        && let Some((bp, bm)) = perhaps.take()
                    {
                        self.feed(&bp, &bm);
                    }
                }
                zil::Step::Record { record, .. } => {
                    if let Some((bp, bm)) = perhaps.take() {
                        self.feed(&bp, &bm);
                    }
                    let pointers = record.clear_blkptrs().unwrap_or_default();
                    // what was born before the claim is in the file as well
                    for bp in
                        pointers.iter().filter(|bp| !bp.is_hole() && bp.birth() >= claim && bp.birth() > target.after)
                    {
                        self.feed(
                            bp,
                            &Bookmark::new(objset.id(), ObjectId::NONE, Bookmark::ZIL_LEVEL, record.header.seq),
                        );
                    }
                }
            }
            ControlFlow::Continue(())
        });
    }

    fn feed(&mut self, bp: &ondisk::BlkPtr, bm: &Bookmark) {
        if bp.is_embedded() {
            return;
        }
        // a resilver is about what some device has missed
        if self.func == ScanFunc::Resilver && !self.view.tree().is_missed(bp.birth_physical()) {
            return;
        }
        if (bp.is_dedup() || (self.cloning && bm.level == 0)) && self.shared.block(self.view, bp, bm) == Claim::Again {
            return;
        }
        self.slice.feeder.add_in_step(bp, bm);
    }
}

/// Objects of accounting have such numbers. A scrub neither ends in them nor leaves them out (OpenZFS: `dsl_scan_check_suspend`).
fn is_accounting(bm: &Bookmark) -> bool {
    bm.object.0.cast_signed() < 0
}

/// Returns whether a scrub can resume from this block: one of data or of dnodes.
pub(super) fn may_end_at(at: &Visit<'_>) -> bool {
    at.level == 0 && !is_accounting(at.bookmark) && at.bookmark.blkid != Bookmark::SPILL_BLKID
}

/// Returns the block of data behind those below a block of an object whose indirect blocks have `2^indblkshift` bytes. One with more below it than
/// there are numbers, of a dnode with too many levels, has the last one below it.
fn end_of(blkid: u64, level: u8, indblkshift: u8) -> u64 {
    // a pointer has 128 bytes
    let shift = u32::from(level) * u32::from(indblkshift).saturating_sub(7);
    blkid.saturating_add(1).saturating_mul(1u64.checked_shl(shift).unwrap_or(u64::MAX))
}

/// The blocks before the one that a slice begins with (OpenZFS: `zbookmark_subtree_completed`).
pub(super) struct Behind {
    from: Bookmark,
    /// The first object that the slice is about, once the blocks of dnodes tell how many are in each.
    first_object: Option<ObjectId>,
}

impl Behind {
    pub(super) fn new(from: Bookmark) -> Behind {
        Behind { from, first_object: None }
    }

    /// Returns whether this block and all below it come before. Blocks above the first one do not.
    pub(super) fn is(&mut self, at: &Visit<'_>) -> bool {
        let bm = at.bookmark;
        let beginning = self.from.object == ObjectId::META_DNODE && self.from.blkid == 0;
        if beginning || at.level == Bookmark::ROOT_LEVEL || is_accounting(bm) {
            return false;
        }
        let end = end_of(bm.blkid, at.level, at.dnode.indblkshift);
        if bm.object == ObjectId::META_DNODE {
            let per_block = ((u64::from(at.dnode.datablkszsec) << 9) / ondisk::DNODE_SIZE as u64).max(1);
            let from = self.from;
            let first = *self.first_object.get_or_insert_with(|| match from.object {
                ObjectId::META_DNODE => ObjectId(from.blkid.saturating_mul(per_block)),
                object => object,
            });
            return ObjectId(end.saturating_mul(per_block)) <= first;
        }
        let first = self.first_object.unwrap_or(self.from.object);
        bm.object < first
            || (bm.object == self.from.object && bm.blkid != Bookmark::SPILL_BLKID && end <= self.from.blkid)
    }
}

#[cfg(test)]
mod tests {
    use super::end_of;

    #[test]
    fn a_block_with_too_many_levels_below_it_is_not_behind_any() {
        assert_eq!(end_of(3, 0, 17), 4);
        assert_eq!(end_of(3, 2, 17), 4 << 20);
        assert_eq!(end_of(0, 6, 17), 1 << 60);
        assert_eq!(end_of(0, 7, 17), u64::MAX);
    }
}
