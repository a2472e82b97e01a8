//! Frees destroyed datasets in the background (OpenZFS: `dsl_process_async_destroys`, `bptree.c`).
//!
//! # On disk
//! * `free_bpobj`: a list of blocks, those of destroyed snapshots.
//! * `bptree_obj`: an array of trees, each with a root block, the txg after which the blocks to free were born, and a bookmark of how far it was
//!   freed.
//! * `com.delphix:deleted_clones`: livelists of destroyed clones (`livelist`).
//!
//! The space of all three is accounted to the directory `$FREE`.
//!
//! # The algorithm
//! A background task ([`Zthr`](crate::spa::zthr::Zthr)) frees, in the first pass of each txg, up to [`tunable::ZFS_ASYNC_BLOCK_MAX_BLOCKS`] blocks
//! from these three in this order, or as many as [`tunable::ZFS_FREE_MIN_TIME_MS`] allows; while blocks remain, txgs follow one another.
//! A tree is freed from its leaves to its root, so that the remaining blocks stay reachable. A tree with an unreadable block is left as it is while
//! the others proceed; it is tried again at the next import.
//!
//! # A crash
//! The blocks that a txg frees and its progress are recorded in the same txg.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{ObjectId, Txg, tunable};
use dmu::{Ended, NewObject, Object, Tx};
use ondisk::bpobj::{BptreeEntry, BptreePhys};
use ondisk::{BlkPtr, ObjectType, Position};
use zio::Bookmark;

use crate::Error;
use crate::dsl::deadlist::livelist::DELETED_CLONES;
use crate::dsl::space::{Delta, Used};
use crate::spa::Spa;
use crate::spa::bpobj::{Bpobj, bptree_entries};
use crate::spa::mos::Mos;
use crate::spa::mos::edit::OURS;
use crate::spa::zthr::Next;

/// Key of the list of blocks to free, in the MOS directory.
pub(in crate::dsl) const FREE_BPOBJ: &str = "free_bpobj";
/// Key of the array of trees, in the MOS directory.
const BPTREE: &str = "bptree_obj";
/// The directory that has the space of what is being freed.
const FREE_DIR: &str = "$FREE";
/// The clock is looked at after this many blocks.
const BLOCKS_PER_LOOK: u64 = 64;
/// Blocks of the array (OpenZFS: `SPA_OLD_MAXBLOCKSIZE`).
const BPTREE_BLOCK: u64 = 128 << 10;

/// The bytes that the txg may still free.
struct Budget {
    /// Number of blocks.
    left: u64,
    /// The time at which it has spent its time; `None` in a seeded environment, where the clock must not matter.
    until: Option<Instant>,
}

impl Budget {
    fn new(spa: &Spa) -> Budget {
        let time = Duration::from_millis(tunable::ZFS_FREE_MIN_TIME_MS.get());
        let until = (!spa.env().is_seeded()).then(|| Instant::now() + time);
        Budget { left: tunable::ZFS_ASYNC_BLOCK_MAX_BLOCKS.get().max(1), until }
    }

    /// Takes the room of `blocks` blocks.
    fn spend(&mut self, blocks: u64) {
        self.left = self.left.saturating_sub(blocks);
    }

    fn is_spent(&mut self) -> bool {
        if self.left.is_multiple_of(BLOCKS_PER_LOOK) && self.until.is_some_and(|until| Instant::now() >= until) {
            self.left = 0;
        }
        self.left == 0
    }
}

impl Spa {
    /// Frees some of the destroyed blocks.
    pub(in crate::dsl) fn sync_destroyed(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        if self.has_freeing(mos)? {
            self.background.free.wake_in_sync();
        }
        self.background.free.sync(self, mos, tx)
    }

    /// A slice of the background task.
    pub(in crate::dsl) fn free_destroyed(&self, mos: &Mos, tx: &Tx) -> Result<Next, Error> {
        let mut budget = Budget::new(self);
        self.free_listed(mos, tx, &mut budget)?;
        self.free_trees(mos, tx, &mut budget)?;
        while !budget.is_spent() {
            let Some(freed) = self.free_deleted_clone(mos, tx)? else { break };
            // a part of a livelist counts as at least one block: there may be many empty ones
            budget.spend(freed.max(1));
        }
        Ok(if self.has_freeing(mos)? { Next::More } else { Next::Done })
    }

    /// Returns whether there are blocks left that can be freed.
    fn has_freeing(&self, mos: &Mos) -> Result<bool, Error> {
        if mos.id_of(DELETED_CLONES)?.is_some() {
            return Ok(true);
        }
        if let Some(id) = mos.id_of(FREE_BPOBJ)?
            && !Bpobj::open(mos, id)?.is_empty()
        {
            return Ok(true);
        }
        Ok(mos.id_of(BPTREE)?.is_some() && !self.frees.is_stalled())
    }

    /// Resumes the freeing that an earlier import, by any implementation, left unfinished.
    pub(in crate::dsl) fn resume_freeing(&self) -> Result<(), Error> {
        if self.has_freeing(&self.live_mos()?)? {
            self.background.free.wake(self);
        }
        Ok(())
    }

    /// Returns whether destroyed blocks are being freed in the background (`zpool wait -t free`). A damaged tree, which cannot be freed now, does
    /// not count.
    #[must_use]
    pub fn is_freeing(&self) -> bool {
        self.background.free.is_awake()
    }

    /// Waits until all destroyed blocks are freed, except those of trees that cannot be read.
    ///
    /// # Errors
    /// [`Error::Suspended`].
    pub fn wait_freed(self: &Arc<Self>) -> Result<(), Error> {
        self.background.free.wait(self, None, &mut || {}).map(drop)
    }

    /// Accounts the space that is being freed (in directory `$FREE`).
    pub(in crate::dsl) fn did_use_free(&self, mos: &Mos, tx: &Tx, delta: Delta) -> Result<(), Error> {
        let root =
            mos.id_of("root_dataset")?.ok_or_else(|| Error::corrupt(ObjectId::POOL_DIRECTORY, "no root directory"))?;
        let children = mos.zap_if(mos.dir_phys(root)?.child_dir_zapobj)?;
        let free = children.map(|zap| zap.lookup_id(FREE_DIR)).transpose()?.flatten();
        let free = free.ok_or_else(|| Error::corrupt(root, "no directory for what is being freed"))?;
        mos.did_use(tx, free, Used::Head, delta)
    }

    fn free_listed(&self, mos: &Mos, tx: &Tx, budget: &mut Budget) -> Result<(), Error> {
        let Some(id) = mos.id_of(FREE_BPOBJ)? else { return Ok(()) };
        let list = Bpobj::open(mos, id)?;
        if list.is_empty() || budget.is_spent() {
            return Ok(());
        }
        let (mut blocks, mut sum) = (Vec::new(), Delta::default());
        let taken = list.take(tx, budget.left, &mut |bp, _| {
            sum.add(Delta::of(mos, bp));
            if !bp.is_embedded() {
                blocks.push(*bp);
            }
            Ok(())
        })?;
        budget.spend(taken);
        self.frees.add(blocks);
        self.did_use_free(mos, tx, Delta::default().minus(sum))
    }

    fn free_trees(&self, mos: &Mos, tx: &Tx, budget: &mut Budget) -> Result<(), Error> {
        let Some(id) = mos.id_of(BPTREE)? else { return Ok(()) };
        let object = mos.object(id)?;
        let mut phys = Mos::bonus(&object, BptreePhys::decode)?;
        let mut damaged = false;
        for (n, mut entry) in (phys.begin..phys.end).zip(bptree_entries(mos, id)?) {
            if budget.is_spent() {
                break;
            }
            let (ended, sum) = self.free_tree(mos, &entry, budget);
            self.did_use_free(mos, tx, Delta::default().minus(sum))?;
            phys.bytes = phys.bytes.wrapping_sub(sum.used as u64);
            phys.comp = phys.comp.wrapping_sub(sum.comp as u64);
            phys.uncomp = phys.uncomp.wrapping_sub(sum.uncomp as u64);
            match ended {
                Ended::Done if damaged => {
                    // what stands before it stays, so it stays too, as one of which nothing is left
                    entry.birth_txg = Txg(u64::MAX);
                    put_entry(&object, tx, n, &entry)?;
                }
                Ended::Done => {
                    phys.begin = n + 1;
                    let size = BptreeEntry::SIZE as u64;
                    object.free_range(tx, n * size, size)?;
                }
                Ended::Paused(at) | Ended::Damaged(at, _) => {
                    damaged |= matches!(ended, Ended::Damaged(..));
                    entry.bookmark = Position { objset: at.objset, object: at.object, level: 0, blkid: at.blkid };
                    put_entry(&object, tx, n, &entry)?;
                }
            }
        }
        if phys.begin == phys.end {
            mos.root_zap()?.remove(tx, BPTREE)?;
            mos.objset.free_object(tx, id)?;
            return self.feature_decrement(mos, tx, "async_destroy");
        }
        self.frees.set_stalled(damaged && budget.left > 0);
        Ok(object.set_bonus(tx, &phys.encode(OURS))?)
    }

    fn free_tree(&self, mos: &Mos, entry: &BptreeEntry, budget: &mut Budget) -> (Ended, Delta) {
        let Position { objset, object, blkid, .. } = entry.bookmark;
        let resume = (entry.bookmark != Position::default()).then(|| Bookmark::new(objset, object, 0, blkid));
        let (mut blocks, mut sum): (Vec<BlkPtr>, _) = (Vec::new(), Delta::default());
        let mut room = || {
            let some = !budget.is_spent();
            budget.spend(1);
            some
        };
        let ended = dmu::walk_destroyed(self.zio(), &entry.bp, entry.birth_txg, resume, &mut room, &mut |bp| {
            sum.add(Delta::of(mos, bp));
            if !bp.is_embedded() {
                blocks.push(*bp);
            }
        });
        self.frees.add(blocks);
        (ended, sum)
    }

    /// Queues a tree of blocks to be freed: those below `bp` born after `since`, whose space is `space` (OpenZFS: `bptree_add`).
    pub(in crate::dsl) fn add_destroyed_tree(
        &self,
        mos: &Mos,
        tx: &Tx,
        bp: &BlkPtr,
        since: Txg,
        space: Delta,
    ) -> Result<(), Error> {
        let object = match mos.id_of(BPTREE)? {
            Some(id) => mos.object(id)?,
            None => self.new_bptree(mos, tx)?,
        };
        let mut phys = Mos::bonus(&object, BptreePhys::decode)?;
        put_entry(&object, tx, phys.end, &BptreeEntry { bp: *bp, birth_txg: since, bookmark: Position::default() })?;
        phys.end += 1;
        phys.bytes = phys.bytes.wrapping_add(space.used as u64);
        phys.comp = phys.comp.wrapping_add(space.comp as u64);
        phys.uncomp = phys.uncomp.wrapping_add(space.uncomp as u64);
        object.set_bonus(tx, &phys.encode(OURS))?;
        self.frees.set_stalled(false);
        self.did_use_free(mos, tx, space)
    }

    fn new_bptree(&self, mos: &Mos, tx: &Tx) -> Result<Object, Error> {
        let new = NewObject {
            object_type: ObjectType::OTN_UINT64_METADATA,
            block_size: BPTREE_BLOCK,
            bonus_type: ObjectType::OTN_UINT64_METADATA,
            bonus_len: BptreePhys::SIZE,
            ..NewObject::default()
        };
        let object = mos.objset.alloc_object(tx, &new)?;
        object.set_bonus(tx, &BptreePhys::default().encode(OURS))?;
        mos.root_zap()?.add_id(tx, BPTREE, object.id())?;
        self.feature_increment(mos, tx, "async_destroy")?;
        Ok(object.reload()?)
    }
}

/// Writes entry `n`.
fn put_entry(object: &Object, tx: &Tx, n: u64, entry: &BptreeEntry) -> Result<(), Error> {
    let at = n.checked_mul(BptreeEntry::SIZE as u64);
    let at = at.ok_or_else(|| Error::corrupt(object.id(), format!("entry {n} of the trees to be freed")))?;
    Ok(object.write(tx, at, &entry.encode(OURS))?)
}
