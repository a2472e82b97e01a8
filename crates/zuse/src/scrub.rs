//! Scrub: reads every block of a pool, all copies and all parity, and repairs what is wrong (OpenZFS: `dsl_scan.c`). A
//! [resilver](crate::resilver()) does the same with the blocks that devices missed.
//!
//! It runs in [slices](crate::slices). A slice begins at the position in the pool's [record](pool::ScrubCursor), walks on from there, and waits until all
//! blocks that it met were read; then the pool records the new position and the losses. So a scrub that was paused or interrupted is resumed where
//! it stopped, by Zuse or by OpenZFS.
//!
//! A deduplicated or cloned block is read once. Intent logs that were claimed and wait for replay are read; others live shorter than a scrub.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::Txg;
use dmu::{Objset, Visit, Walk};
use ondisk::scan::ScanFunc;
use pool::{ErrorEntry, Pool, ScrubCursor, ScrubRange, ScrubResult, Spa, Target};
use zio::{Bookmark, IoClass};

use crate::slices::{Slice, Slices, entry};
use crate::verify::claims::{Claim, Claims};
use crate::verify::{Damage, Error, Tally};

/// How a scrub ended.
#[derive(Debug)]
pub enum Scrubbed {
    /// It saw everything; this is what it saw since it was begun or gone on with.
    Whole(Box<Tally>),
    /// It was stopped.
    Stopped,
}

/// How to scrub.
#[derive(Clone, Copy, Debug)]
pub struct ScrubOptions {
    /// Threads that read, besides the one that walks.
    pub threads: usize,
    /// Which blocks; a scrub that goes on keeps those that it was begun with.
    pub range: ScrubRange,
}

/// Scrubs a pool; a scrub that was not finished goes on. `progress` is told, from any thread, of bytes that were read and blocks that
/// are lost. When `stop` becomes true the scrub pauses.
///
/// # Errors
/// When the lists of datasets cannot be read, or the pool is suspended.
pub fn scrub(
    spa: &Arc<Spa>,
    options: &ScrubOptions,
    stop: &AtomicBool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Scrubbed, Error> {
    let view = spa.view()?;
    spa.scrub_begin(view.space()?.allocated, options.range)?;
    drop(view);
    // blocks that only the checkpoint has are left out, as OpenZFS leaves them out
    let all = !spa.view()?.feature_active("zpool_checkpoint");
    let mut slices = Slices::new(spa, options.threads, stop, progress);
    match go_on(&mut slices, ScanFunc::Scrub)? {
        false => Ok(Scrubbed::Stopped),
        true => {
            spa.scrub_finish(ScanFunc::Scrub, all)?;
            Ok(slices.whole())
        }
    }
}

/// Makes slices of the scan under way until everything was read. Whether it was: not if it was stopped, or is gone.
pub(crate) fn go_on(slices: &mut Slices<'_>, func: ScanFunc) -> Result<bool, Error> {
    let mut shared = Claims::new(&*slices.spa.view()?);
    loop {
        if slices.is_stopped()? {
            return Ok(false);
        }
        match slice(slices, &mut shared, func)? {
            End::More => {}
            End::Whole => return Ok(true),
            End::Gone => return Ok(false),
        }
    }
}

/// Reads what only the checkpoint has of the blocks born after `range.after`, up to `range.upto`: it does not change. Whether all of it was read: not
/// if it was stopped.
pub(crate) fn checkpoint(slices: &mut Slices<'_>, func: ScanFunc) -> Result<bool, Error> {
    let Some(view) = slices.spa.view()?.at_checkpoint()? else { return Ok(true) };
    let Some(under_way) = slices.spa.view()?.scrub_cursor(func)? else { return Ok(false) };
    let mut place = ScrubCursor::again(&under_way);
    let mut shared = Claims::new(&view);
    loop {
        if slices.is_stopped()? {
            return Ok(false);
        }
        let sliced = slices
            .slice(|slice| Walked { cloning: true, slice, shared: &mut shared, view: &view, func }.go(&mut place))?;
        let whole = sliced.walked?;
        let (tally, result, lost) = told(sliced.tally, sliced.unreachable, sliced.unhealed);
        slices.add(tally);
        slices.spa.scrub_progress(under_way.clone(), result, lost)?;
        if whole {
            return Ok(true);
        }
    }
}

/// How a slice ended.
enum End {
    /// More blocks are left to read.
    More,
    /// Everything was read.
    Whole,
    /// The pool has no scrub that runs.
    Gone,
}

/// Makes the next slice. `shared`: blocks that others may share, as far as they were read.
fn slice(slices: &mut Slices<'_>, shared: &mut Claims, func: ScanFunc) -> Result<End, Error> {
    let sliced = slices.slice(|slice| {
        let view = slice.view;
        let Some(mut place) = view.scrub_cursor(func)? else { return Ok(None) };
        let cloning = view.feature_active("block_cloning");
        let whole = Walked { slice, shared, cloning, view, func }.go(&mut place)?;
        Ok::<_, Error>(Some((place, whole)))
    })?;
    let Some((place, whole)) = sliced.walked? else { return Ok(End::Gone) };
    let (tally, result, lost) = told(sliced.tally, sliced.unreachable, sliced.unhealed);
    slices.add(tally);
    slices.spa.scrub_progress(place, result, lost)?;
    Ok(if whole { End::Whole } else { End::More })
}

/// The results of a slice for the record of the scan.
fn told(mut tally: Tally, unreachable: Vec<Damage>, unhealed: u64) -> (Tally, ScrubResult, Vec<ErrorEntry>) {
    // an indirect block that cannot be read is both unreachable for the walk and wrong for the check
    unreachable.into_iter().for_each(|d| tally.lost(d));
    let result = ScrubResult {
        examined: tally.bytes,
        repaired: tally.leaves.values().map(|leaf| leaf.bytes).sum(),
        errors: tally.lost_blocks.saturating_add(unhealed),
    };
    let lost = tally.damage.iter().map(entry).collect();
    (tally, result, lost)
}

/// The walk of a slice.
struct Walked<'s, 'a, 'l> {
    slice: &'s mut Slice<'a, 'l>,
    shared: &'s mut Claims,
    /// The state of the pool that is walked: as it is, or as its checkpoint keeps it.
    view: &'s Arc<Pool>,
    func: ScanFunc,
    /// Blocks of data may have several pointers.
    cloning: bool,
}

impl Walked<'_, '_, '_> {
    /// Goes on from `place`, until the limit is reached or everything was met. Whether it was.
    fn go(&mut self, place: &mut ScrubCursor) -> Result<bool, Error> {
        while let Some(target) = place.target(self.view)? {
            if let Some(next) = self.tree(&target)? {
                place.reached(&next);
                return Ok(false);
            }
            place.done(self.view)?;
        }
        Ok(true)
    }

    /// Walks the tree of a dataset. Gives the block to go on with if the limit was reached.
    fn tree(&mut self, target: &Target) -> Result<Option<Bookmark>, Error> {
        if target.root.is_hole() || target.root.birth() <= target.after {
            return Ok(None);
        }
        let objset = match target.dataset {
            0 => Ok(self.view.mos().clone()),
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
        if next.is_none() && target.dataset != 0 {
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
                        .then_some((*bp, Bookmark::new(objset.id(), 0, Bookmark::ZIL_LEVEL, seq)));
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
                        self.feed(bp, &Bookmark::new(objset.id(), 0, Bookmark::ZIL_LEVEL, record.header.seq));
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
    bm.object.cast_signed() < 0
}

/// Returns whether a scrub can resume from this block: one of data or of dnodes.
pub(crate) fn may_end_at(at: &Visit<'_>) -> bool {
    at.level == 0 && !is_accounting(at.bookmark) && at.bookmark.blkid != Bookmark::SPILL_BLKID
}

/// The blocks before the one that a slice begins with (OpenZFS: `zbookmark_subtree_completed`).
pub(crate) struct Behind {
    from: Bookmark,
    /// The first object that the slice is about, once the blocks of dnodes tell how many are in each.
    first_object: Option<u64>,
}

impl Behind {
    pub(crate) fn new(from: Bookmark) -> Behind {
        Behind { from, first_object: None }
    }

    /// Returns whether this block and all below it come before. Blocks above the first one do not.
    pub(crate) fn is(&mut self, at: &Visit<'_>) -> bool {
        let bm = at.bookmark;
        let beginning = self.from.object == 0 && self.from.blkid == 0;
        if beginning || at.level == Bookmark::ROOT_LEVEL || is_accounting(bm) {
            return false;
        }
        // a pointer has 128 bytes
        let shift = u32::from(at.level) * u32::from(at.dnode.indblkshift).saturating_sub(7);
        let end = bm.blkid.saturating_add(1).saturating_mul(1u64.checked_shl(shift).unwrap_or(0));
        if bm.object == 0 {
            let per_block = ((u64::from(at.dnode.datablkszsec) << 9) / ondisk::DNODE_SIZE as u64).max(1);
            let from = self.from;
            let first = *self.first_object.get_or_insert_with(|| match from.object {
                0 => from.blkid.saturating_mul(per_block),
                object => object,
            });
            return end.saturating_mul(per_block) <= first;
        }
        let first = self.first_object.unwrap_or(self.from.object);
        bm.object < first
            || (bm.object == self.from.object && bm.blkid != Bookmark::SPILL_BLKID && end <= self.from.blkid)
    }
}
