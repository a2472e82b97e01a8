//! Space accounting: blocks are charged to datasets, directories and the MOS (OpenZFS: `dsl_dataset_block_born`, `dsl_dataset_block_kill`,
//! `dsl_dir_diduse_space`).
//!
//! While an object set is synced its new and its replaced blocks are collected here; afterwards the sums are booked once per dataset and
//! txg, up the tree of directories. A replaced block that no snapshot has is freed; one that the last snapshot has goes to the deadlist.

mod account;
mod estimate;
pub(in crate::dsl) mod quota;

use std::cell::RefCell;

use base::{ObjectId, Txg};
use dmu::{BlockOwner, Tx};
use ondisk::BlkPtr;
use ondisk::dsl::{DslDirPhys, UsedBreakdown};

use crate::Error;
use crate::dsl::DEPTH_MAX;
pub(in crate::dsl) use crate::spa::bpobj::Delta;
use crate::spa::mos::Mos;

/// The blocks that the sync of one object set wrote and replaced.
#[derive(Debug, Default)]
pub(in crate::dsl) struct Tally {
    /// New blocks.
    pub(in crate::dsl) born: Delta,
    /// Replaced blocks, all of them.
    pub(in crate::dsl) killed: Delta,
    /// The replaced blocks that can be freed.
    pub(in crate::dsl) freed: Delta,
    /// The replaced bytes that the last snapshot still has and that were born after the one before it.
    pub(in crate::dsl) only_last: u64,
    /// The replaced bytes that snapshots of this dataset (not only its origin) have.
    pub(in crate::dsl) to_snap: u64,
    /// Blocks to free.
    pub(in crate::dsl) free: Vec<BlkPtr>,
    /// Blocks for the deadlist.
    pub(in crate::dsl) dead: Vec<BlkPtr>,
    /// Entries for the clone's livelist, if it keeps one: blocks that it wrote and, with true, blocks of its own that it freed.
    pub(in crate::dsl) live: Vec<(BlkPtr, bool)>,
    /// The replaced bytes that existed at each bookmark that keeps account, by the txg of the bookmark.
    pub(in crate::dsl) killed_of_marks: Vec<(Txg, Delta)>,
    /// Features that the new blocks need, by block size and by checksum and compression number.
    pub(in crate::dsl) large: bool,
    /// Indirect blocks that were dropped although the blocks below them cannot be determined.
    pub(in crate::dsl) stranded: u64,
    /// True if a dnode has more than one slot.
    pub(in crate::dsl) large_dnode: bool,
    pub(in crate::dsl) checksums: u32,
    pub(in crate::dsl) compressions: u32,
}

/// Collects the block changes of one object set's sync.
pub(in crate::dsl) struct Gather<'a> {
    mos: &'a Mos,
    /// The txg of the last snapshot: blocks born later belong to the head alone.
    prev_snap: Txg,
    /// The txg of the snapshot before the last.
    prev_prev_snap: Txg,
    /// The txg of the origin: blocks born later are not in it.
    origin: Txg,
    /// True if the dataset is a clone with a livelist.
    livelist: bool,
    tally: RefCell<Tally>,
}

impl<'a> Gather<'a> {
    pub(in crate::dsl) fn new(mos: &'a Mos, prev_snap: Txg, prev_prev_snap: Txg, origin: Txg) -> Gather<'a> {
        Gather { mos, prev_snap, prev_prev_snap, origin, livelist: false, tally: RefCell::default() }
    }

    /// Collects livelist entries if `livelist` is set.
    pub(in crate::dsl) fn with_livelist(self, livelist: bool) -> Self {
        Gather { livelist, ..self }
    }

    /// Keeps account for bookmarks of these txgs.
    pub(in crate::dsl) fn with_marks(self, txgs: Vec<Txg>) -> Self {
        self.tally.borrow_mut().killed_of_marks = txgs.into_iter().map(|txg| (txg, Delta::default())).collect();
        self
    }

    fn note_live(&self, tally: &mut Tally, bp: &BlkPtr, freed: bool) {
        if self.livelist && bp.birth() > self.origin && !bp.is_embedded() {
            tally.live.push((*bp, freed));
        }
    }

    pub(in crate::dsl) fn into_tally(self) -> Tally {
        self.tally.into_inner()
    }
}

impl BlockOwner for Gather<'_> {
    fn born(&self, bp: &BlkPtr) {
        let delta = Delta::of(self.mos, bp);
        let mut tally = self.tally.borrow_mut();
        tally.born.add(delta);
        self.note_live(&mut tally, bp, false);
        tally.large |= bp.lsize() > 128 << 10;
        if !bp.is_embedded() {
            tally.checksums |= 1u32.checked_shl(bp.checksum().into()).unwrap_or(0);
        }
        tally.compressions |= 1u32.checked_shl(bp.compression().into()).unwrap_or(0);
    }

    fn stranded(&self, _: &BlkPtr) {
        self.tally.borrow_mut().stranded += 1;
    }

    fn large_dnode(&self) {
        self.tally.borrow_mut().large_dnode = true;
    }

    fn dsize(&self, bp: &BlkPtr) -> u64 {
        self.mos.dsize(bp, true)
    }

    fn killed(&self, bp: &BlkPtr) {
        let delta = Delta::of(self.mos, bp);
        let mut tally = self.tally.borrow_mut();
        tally.killed.add(delta);
        self.note_live(&mut tally, bp, true);
        tally.killed_of_marks.iter_mut().filter(|(txg, _)| bp.birth() <= *txg).for_each(|(_, sum)| sum.add(delta));
        if bp.birth() > self.prev_snap {
            tally.freed.add(delta);
            if !bp.is_embedded() {
                tally.free.push(*bp);
            }
            return;
        }
        tally.dead.push(*bp);
        if bp.birth() > self.prev_prev_snap {
            tally.only_last += delta.used as u64;
        }
        if bp.birth() > self.origin {
            tally.to_snap += delta.used as u64;
        }
    }
}

/// The name of the count of bytes that only one dataset has.
pub(in crate::dsl) const UNIQUE: &str = "unique";

/// The kinds of use within a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::dsl) enum Used {
    Head,
    Snap,
    Child,
    ChildRsrv,
    Refrsrv,
}

/// The figure of a kind of use, and its name.
fn field(breakdown: &mut UsedBreakdown, which: Used) -> (&'static str, &mut u64) {
    match which {
        Used::Head => ("used by the dataset", &mut breakdown.head),
        Used::Snap => ("used by snapshots", &mut breakdown.snap),
        Used::Child => ("used by children", &mut breakdown.child),
        Used::ChildRsrv => ("used by reservations of children", &mut breakdown.child_rsrv),
        Used::Refrsrv => ("used by the refreservation", &mut breakdown.refrsrv),
    }
}

/// Returns the change that the parent sees when something that keeps `reserved` bytes and had `before` changes by `delta`. Sums below zero, which
/// are near 2^64 on disk, are smaller than any reservation.
pub(in crate::dsl) fn parent_delta(reserved: u64, before: u64, delta: i64) -> i64 {
    if reserved == 0 {
        return delta;
    }
    let (reserved, before) = (reserved.min(i64::MAX as u64).cast_signed(), before.cast_signed());
    // both are at least `reserved`, which is not negative
    before.saturating_add(delta).max(reserved) - before.max(reserved)
}

impl Mos {
    /// Books `delta` of use `kind` to directory `id` and to all above it.
    pub(in crate::dsl) fn did_use(&self, tx: &Tx, id: ObjectId, kind: Used, delta: Delta) -> Result<(), Error> {
        self.did_use_as(tx, id, delta, delta.used, kind, kind)
    }

    /// Books a change in the use of directory `id` (OpenZFS: `dsl_dir_diduse_transfer_space`): its use changes by `delta`, that of
    /// kind `to` by `to_new`, and what is missing between the two comes from kind `from`.
    pub(in crate::dsl) fn did_use_as(
        &self,
        tx: &Tx,
        id: ObjectId,
        delta: Delta,
        to_new: i64,
        from: Used,
        to: Used,
    ) -> Result<(), Error> {
        let (mut id, mut delta, mut to_new, mut from, mut to) = (id, delta, to_new, from, to);
        for _ in 0..=DEPTH_MAX {
            if id.is_none() || (delta.is_zero() && to_new == 0) {
                return Ok(());
            }
            let (parent, noticed) = self.edit_dir(tx, id, |dir| {
                let noticed = parent_delta(dir.reserved, dir.used_bytes, delta.used);
                self.count(id, "used", &mut dir.used_bytes, delta.used);
                self.count(id, "compressed", &mut dir.compressed_bytes, delta.comp);
                self.count(id, "uncompressed", &mut dir.uncompressed_bytes, delta.uncomp);
                if from != to {
                    self.count_use(id, dir, from, delta.used.wrapping_sub(to_new));
                }
                self.count_use(id, dir, to, to_new);
                (dir.parent_obj, noticed)
            })?;
            to_new = delta.used;
            delta.used = noticed;
            (id, from, to) = (parent, Used::ChildRsrv, Used::Child);
        }
        Err(Error::corrupt(id, "directories are nested too deeply"))
    }

    /// Moves use within directory `id` from one kind to another.
    pub(in crate::dsl) fn transfer(
        &self,
        tx: &Tx,
        id: ObjectId,
        bytes: u64,
        from: Used,
        to: Used,
    ) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        self.edit_dir(tx, id, |dir| {
            self.count_use(id, dir, from, (bytes as i64).wrapping_neg());
            self.count_use(id, dir, to, bytes as i64);
        })
    }

    /// Books `bytes` that only dataset `id` has from now on.
    pub(in crate::dsl) fn grow_unique(&self, tx: &Tx, id: ObjectId, bytes: u64) -> Result<(), Error> {
        self.edit_dataset(tx, id, |phys| self.count(id, UNIQUE, &mut phys.unique_bytes, bytes.cast_signed()))
    }

    /// Changes one kind of use of directory `id`, if it keeps them apart.
    fn count_use(&self, id: ObjectId, dir: &mut DslDirPhys, kind: Used, by: i64) {
        if dir.flags & DslDirPhys::FLAG_USED_BREAKDOWN != 0 {
            let (what, value) = field(&mut dir.used_breakdown, kind);
            self.count(id, what, value, by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parent_delta;

    #[test]
    fn a_reservation_hides_what_is_below_it() {
        assert_eq!(parent_delta(0, 10, 5), 5);
        assert_eq!(parent_delta(100, 10, 5), 0);
        assert_eq!(parent_delta(100, 90, 20), 10);
        assert_eq!(parent_delta(100, 110, -20), -10);
        assert_eq!(parent_delta(100, (-4096i64).cast_unsigned(), 4196), 0);
        assert_eq!(parent_delta(100, (-4096i64).cast_unsigned(), 8192), 3996);
        assert_eq!(parent_delta(u64::MAX, 4096, i64::MIN), 0);
    }
}
