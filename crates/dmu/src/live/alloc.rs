//! Numbers for new objects (OpenZFS: `dmu_object.c`).
//!
//! A cursor moves up through the blocks of dnodes and takes free slots. At each boundary between indirect blocks of the
//! meta-dnode it moves on to one that is at most a quarter full; it restarts at the bottom when many objects have been
//! freed. Unreadable blocks are skipped. `pending` holds the numbers allocated or freed by txgs that are not on disk yet:
//! none of them is free.

use std::collections::BTreeMap;

use base::{ObjectId, Txg};

use crate::Error;
use crate::objset::{Root, slots};
use crate::tree::{Child, Interest, Tree};

/// Objects freed since the last scan from the bottom that make another one worthwhile (OpenZFS:
/// `dmu_rescan_dnode_threshold`).
const RESCAN_FREED: u64 = 512;

/// The state of the object number allocator.
pub(crate) struct Alloc {
    /// The slot of the meta-dnode at which the next search begins.
    next: u64,
    /// True if the search restarts from the bottom at the next boundary.
    rescan: bool,
    freed: u64,
    /// Differences from the meta-dnode on disk.
    pub(crate) pending: BTreeMap<ObjectId, Pending>,
    /// The block of dnodes under the cursor: its block id and the slots taken.
    block: Option<(u64, Vec<bool>)>,
}

/// An object allocated or freed in memory only.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) txg: Txg,
    pub(crate) slots: usize,
    pub(crate) allocated: bool,
}

impl Alloc {
    /// The allocator of an object set that has no objects yet: the first block of dnodes is left to objects with fixed
    /// numbers, as OpenZFS does.
    pub(crate) fn fresh(per_block: u64) -> Alloc {
        Alloc { next: per_block, rescan: false, freed: 0, pending: BTreeMap::new(), block: None }
    }

    /// The allocator of an object set that has objects.
    pub(crate) fn opened() -> Alloc {
        Alloc { next: 0, rescan: true, ..Alloc::fresh(0) }
    }

    /// Allocates a number for a dnode of `slots` slots.
    pub(crate) fn take(&mut self, tree: &Tree<'_>, root: &Root, slots: usize, txg: Txg) -> Result<ObjectId, Error> {
        let per_block = root.dnodes_per_block();
        if per_block == 0 || slots as u64 > per_block {
            return Err(tree.corrupt("size of blocks of dnodes", tree.dn.datablksz()));
        }
        loop {
            self.leave_full_region(tree, root, per_block);
            let blkid = self.next / per_block;
            let from = (self.next % per_block) as usize;
            let taken = match self.taken(tree, root, blkid) {
                Ok(taken) => taken,
                Err(error) => {
                    // the block is unreadable: its free slots are unknown
                    self.next = behind_damage(tree, root, blkid).ok_or(error)?.saturating_mul(per_block);
                    continue;
                }
            };
            let free = taken.windows(slots).skip(from).position(|run| !run.contains(&true));
            if let Some(place) = free {
                let place = place + from;
                taken.iter_mut().skip(place).take(slots).for_each(|slot| *slot = true);
                let id = ObjectId(blkid * per_block + place as u64);
                self.next = id.0 + slots as u64;
                self.pending.insert(id, Pending { txg, slots, allocated: true });
                return Ok(id);
            }
            self.next = (blkid + 1) * per_block;
        }
    }

    /// At the boundary of an indirect block: moves on to one that is at most a quarter full.
    fn leave_full_region(&mut self, tree: &Tree<'_>, root: &Root, per_block: u64) {
        let region = per_block << tree.dn.fanout_shift().min(16);
        if !self.next.is_multiple_of(region) {
            return;
        }
        if std::mem::take(&mut self.rescan) {
            (self.next, self.freed) = (0, 0);
        }
        while tree.top() > 0 {
            match root.meta.pointer(tree, 1, self.next / region) {
                Ok(Child::Block(bp)) if bp.fill() > region / 4 => self.next += region,
                _ => break,
            }
        }
    }

    /// Allocates a given number.
    pub(crate) fn claim(
        &mut self,
        tree: &Tree<'_>,
        root: &Root,
        (id, slots): (ObjectId, usize),
        txg: Txg,
    ) -> Result<(), Error> {
        let per_block = root.dnodes_per_block();
        let place = id.0.checked_rem(per_block).unwrap_or(0) as usize;
        let taken = self.taken(tree, root, id.0.checked_div(per_block).unwrap_or(0))?;
        let run = taken.get(place..place + slots);
        if run.is_none_or(|run| run.contains(&true)) {
            return Err(Error::Exists { objset: tree.objset, object: id });
        }
        taken.iter_mut().skip(place).take(slots).for_each(|slot| *slot = true);
        self.pending.insert(id, Pending { txg, slots, allocated: true });
        Ok(())
    }

    /// Takes back a number whose object was not made.
    pub(crate) fn give_back(&mut self, id: ObjectId) {
        self.pending.remove(&id);
        self.block = None;
    }

    /// Records that an object is freed.
    pub(crate) fn free(&mut self, id: ObjectId, slots: usize, txg: Txg) {
        self.pending.insert(id, Pending { txg, slots, allocated: false });
    }

    /// Forgets the numbers that a sync of `txg` has brought to disk. Called after the new root is in place.
    pub(crate) fn synced(&mut self, ids: impl Iterator<Item = ObjectId>, txg: Txg) {
        for id in ids {
            if let Some(pending) = self.pending.get(&id).copied().filter(|pending| pending.txg <= txg) {
                self.pending.remove(&id);
                self.freed += u64::from(!pending.allocated);
            }
        }
        if self.freed >= RESCAN_FREED {
            self.rescan = true;
        }
        self.block = None;
    }

    /// The slots of a block of dnodes that are taken.
    fn taken(&mut self, tree: &Tree<'_>, root: &Root, blkid: u64) -> Result<&mut Vec<bool>, Error> {
        let current = self.block.take().filter(|(at, _)| *at == blkid);
        let block = match current {
            Some(block) => block,
            None => (blkid, self.read_taken(tree, root, blkid)?),
        };
        Ok(&mut self.block.insert(block).1)
    }

    fn read_taken(&self, tree: &Tree<'_>, root: &Root, blkid: u64) -> Result<Vec<bool>, Error> {
        let per_block = root.dnodes_per_block();
        let mut taken = vec![false; per_block as usize];
        let mut take = |from: usize, n: usize| taken.iter_mut().skip(from).take(n).for_each(|slot| *slot = true);
        if blkid == 0 {
            take(0, 1);
        }
        if let Child::Block(bp) = root.meta.pointer(tree, 0, blkid)? {
            let buf = tree.read_data(&bp, blkid, Interest::Whole)?;
            for slot in slots(&buf) {
                take(slot, 1 + usize::from(base::bytes::u8(&buf, slot * ondisk::DNODE_SIZE + 12).unwrap_or(0)));
            }
        }
        let first = ObjectId(blkid.saturating_mul(per_block));
        for (id, pending) in self.pending.range(first..first.saturating_add(per_block)) {
            take((id.0 - first.0) as usize, pending.slots);
        }
        Ok(taken)
    }
}

/// The first block of dnodes after the unreadable ones at `blkid`: after the block itself, or after all blocks below an
/// unreadable block of pointers.
fn behind_damage(tree: &Tree<'_>, root: &Root, blkid: u64) -> Option<u64> {
    let is_known = |level: &u8| root.meta.pointer(tree, *level, blkid >> tree.span_shift(*level).min(63)).is_ok();
    tree.after((0..=tree.top()).find(is_known)?, blkid)
}
