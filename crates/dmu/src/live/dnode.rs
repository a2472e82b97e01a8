//! One dnode in memory: its state on disk, and the changes of the txgs that are not on disk yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::{ObjectId, Txg, Versioned};
use ondisk::{BlkPtr, DnodePhys, ObjectType};
use parking_lot::Mutex;
use zio::{Buf, Payload};

use super::ranges::RangeSet;
use super::stored::Packed;

/// The number of txgs that can be live at the same time.
pub(crate) const TXG_SLOTS: usize = 4;

/// The slot of a txg.
pub(crate) fn slot_of(txg: Txg) -> usize {
    (txg.0 % TXG_SLOTS as u64) as usize
}

/// An object of a writable set that is in use or has changes. All handles of the object share it.
pub(crate) struct LiveDnode {
    pub(crate) id: ObjectId,
    pub(crate) state: Versioned<State>,
    /// Indirect blocks of level 1 that were read for a writer, one bit each, by number / 64. A block that was readable
    /// once is not checked again.
    pub(crate) readable: Mutex<BTreeMap<u64, u64>>,
    /// True if every transaction may change it: see [`Object::share`](crate::Object::share).
    pub(crate) shared: AtomicBool,
}

/// The layers of a dnode, old to new: `synced`, `syncing`, `slots` by txg.
pub(crate) struct State {
    /// The dnode on disk; of type NONE if it is not on disk. Reads fall through to its tree.
    pub(crate) synced: Arc<DnodePhys>,
    /// Its current shape and bonus, with the pointers of `synced`; of type NONE once it has been freed.
    pub(crate) newest: Arc<DnodePhys>,
    /// The changes that a running sync is writing.
    pub(crate) syncing: Option<Arc<Dirty>>,
    /// The changes made by txgs since.
    pub(crate) slots: [Option<Box<Dirty>>; TXG_SLOTS],
    /// Least levels of the tree.
    pub(crate) min_levels: u8,
}

/// The changes that one txg makes to a dnode.
#[derive(Clone)]
pub(crate) struct Dirty {
    pub(crate) txg: Txg,
    /// Shape and bonus at the end of the txg.
    pub(crate) head: Arc<DnodePhys>,
    /// Blocks written. They take precedence over `freed`.
    pub(crate) blocks: BTreeMap<u64, Block>,
    /// The blocks among them that are written to their final location already.
    pub(crate) placed: BTreeMap<u64, Placed>,
    /// Blocks written before the sync that are no longer wanted: the sync frees them.
    pub(crate) dropped: Vec<BlkPtr>,
    /// Blocks freed.
    pub(crate) freed: RangeSet,
    /// The spill block, if it was written (`Some`) or removed.
    pub(crate) spill: Option<Option<Block>>,
    /// The stored form of the bonus buffer and of all that follows it, in an object that is received raw.
    pub(crate) raw_bonus: Option<Arc<[u8]>>,
    /// True if the object is freed.
    pub(crate) gone: bool,
    /// The bytes reported to the pool as dirty.
    pub(crate) bytes: u64,
}

/// A block that is not on disk yet.
#[derive(Clone)]
pub(crate) enum Block {
    /// The contents as readers see them, in little-endian order.
    Data(Buf),
    /// Compressed.
    Packed(Packed),
    /// In another stored form.
    Stored(Box<Payload>),
}

/// The location of a block that was written before the sync of its txg
/// ([`Object::sync_block`](crate::Object::sync_block)).
#[derive(Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) bp: BlkPtr,
    /// True if it is the block that was there before, with the same content: nothing was written.
    pub(crate) same: bool,
}

/// The location of the newest content of a block.
pub(crate) enum BlockState {
    /// In memory.
    Dirty(Block),
    /// Nowhere: blocks up to `end` (exclusive) are holes and read as zeros.
    Hole { end: u64 },
    /// In the tree of this dnode.
    Below(Arc<DnodePhys>),
    /// Beyond the end.
    End,
}

impl LiveDnode {
    pub(crate) fn new(id: ObjectId, phys: Arc<DnodePhys>) -> LiveDnode {
        let state =
            State { synced: phys.clone(), newest: phys, syncing: None, slots: Default::default(), min_levels: 1 };
        LiveDnode { id, state: Versioned::new(state), readable: Mutex::default(), shared: AtomicBool::new(false) }
    }

    /// The dnode as of the last sync.
    pub(crate) fn synced(&self) -> Arc<DnodePhys> {
        self.state.read().synced.clone()
    }

    /// The current dnode.
    pub(crate) fn newest(&self) -> Arc<DnodePhys> {
        self.state.read().newest.clone()
    }
}

impl State {
    /// The layers above `synced`, new to old.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Dirty> {
        let top = self.slots.iter().flatten().map(|dirty| dirty.txg.0).max().unwrap_or(0);
        let slots = (0..TXG_SLOTS as u64).filter_map(move |back| {
            let txg = Txg(top.checked_sub(back)?);
            self.slots.get(slot_of(txg))?.as_deref().filter(|dirty| dirty.txg == txg)
        });
        slots.chain(self.syncing.as_deref())
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.newest.object_type == ObjectType::NONE
    }

    /// True if it is completely on disk.
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_freed() && self.layers().next().is_none() && self.synced.object_type != ObjectType::NONE
    }

    /// The location of the newest content of block `blkid`.
    pub(crate) fn find(&self, blkid: u64) -> BlockState {
        if self.is_freed() || blkid > self.newest.maxblkid {
            return BlockState::End;
        }
        let mut end = u64::MAX;
        let behind = blkid.saturating_add(1);
        for layer in self.layers() {
            if let Some(block) = layer.blocks.get(&blkid) {
                return BlockState::Dirty(block.clone());
            }
            end = layer.blocks.range(behind..).next().map_or(end, |(next, _)| end.min(*next));
            if let Some(freed) = layer.freed.end_of(blkid) {
                return BlockState::Hole { end: end.min(freed) };
            }
        }
        if self.synced.object_type == ObjectType::NONE {
            return BlockState::Hole { end };
        }
        BlockState::Below(self.synced.clone())
    }

    /// The first block from `from` on that some layer has in memory. A newer layer may have freed it.
    pub(crate) fn next_dirty(&self, from: u64) -> Option<u64> {
        self.layers().filter_map(|layer| layer.blocks.range(from..).next().map(|(blkid, _)| *blkid)).min()
    }

    /// The first block from `from` on that some layer has freed. It may have been written since.
    pub(crate) fn next_freed(&self, from: u64) -> Option<u64> {
        self.layers().filter_map(|layer| layer.freed.next(from)).min()
    }

    /// The newest spill block: in memory (or removed), else the pointer on disk.
    pub(crate) fn find_spill(&self) -> Result<Option<Block>, Arc<DnodePhys>> {
        match self.layers().find_map(|layer| layer.spill.as_ref()) {
            Some(spill) => Ok(spill.clone()),
            None => Err(self.synced.clone()),
        }
    }

    /// The changes of `txg`, with whether this call began them.
    pub(crate) fn dirty(&mut self, txg: Txg) -> Option<(&mut Dirty, bool)> {
        let head = if self.is_dirty_after(txg) {
            let older = self.layers().find(|layer| layer.txg < txg).map(|layer| layer.head.clone());
            older.unwrap_or_else(|| self.synced.clone())
        } else {
            self.newest.clone()
        };
        let slot = self.slots.get_mut(slot_of(txg))?;
        let fresh = slot.is_none();
        let dirty = slot.get_or_insert_with(|| Box::new(Dirty::new(txg, head)));
        (dirty.txg == txg).then_some((&mut **dirty, fresh))
    }

    /// Returns whether a txg after `txg` has changed it.
    pub(crate) fn is_dirty_after(&self, txg: Txg) -> bool {
        self.slots.iter().flatten().any(|dirty| dirty.txg > txg)
    }

    /// Changes the shape from `txg` on.
    pub(crate) fn reshape(&mut self, txg: Txg, change: impl Fn(&mut DnodePhys)) {
        self.each_shape(txg, |shape| change(Arc::make_mut(shape)));
    }

    /// Changes the shapes of the txgs from `txg` on, and the newest one. Those that are one and the same stay so, and are changed once: as long as nobody
    /// else has it, without a copy.
    fn each_shape(&mut self, txg: Txg, change: impl Fn(&mut Arc<DnodePhys>)) {
        let mut newest = std::mem::replace(&mut self.newest, self.synced.clone());
        let mut same = [false; TXG_SLOTS];
        for (dirty, same) in self.slots.iter_mut().zip(&mut same) {
            let Some(dirty) = dirty.as_mut().filter(|dirty| dirty.txg >= txg) else { continue };
            *same = Arc::ptr_eq(&dirty.head, &newest);
            if *same {
                dirty.head = self.synced.clone();
            } else {
                change(&mut dirty.head);
            }
        }
        change(&mut newest);
        for (dirty, _) in self.slots.iter_mut().zip(same).filter(|(_, same)| *same) {
            dirty.iter_mut().for_each(|dirty| dirty.head = newest.clone());
        }
        self.newest = newest;
    }

    /// Replaces the versions that newer txgs hold of a block that `txg` has just changed: the last change counts.
    pub(crate) fn supersede(&mut self, txg: Txg, blkid: u64, block: &Block) {
        for dirty in self.slots.iter_mut().flatten().filter(|dirty| dirty.txg > txg) {
            if dirty.blocks.contains_key(&blkid) || dirty.freed.end_of(blkid).is_some() {
                dirty.put(blkid, block.clone());
            }
        }
    }

    /// Makes the new dnode on disk `synced`, and copies its pointers into the shapes above.
    pub(crate) fn rebase(&mut self, synced: Arc<DnodePhys>) {
        if self.slots.iter().all(Option::is_none) {
            self.newest = synced.clone();
        } else {
            self.each_shape(Txg(0), |shape| adopt(shape, &synced));
        }
        self.synced = synced;
    }
}

impl Dirty {
    pub(crate) fn new(txg: Txg, head: Arc<DnodePhys>) -> Dirty {
        let (blocks, placed, dropped) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let freed = RangeSet::default();
        Dirty { txg, head, blocks, placed, dropped, freed, spill: None, raw_bonus: None, gone: false, bytes: 0 }
    }

    /// Merges these changes, which a sync failed to write, under the later changes of the same txg.
    pub(crate) fn under(mut self, newer: Option<Box<Dirty>>) -> Box<Dirty> {
        let Some(newer) = newer else { return Box::new(self) };
        for range in newer.freed.iter() {
            self.free(range);
        }
        for (blkid, block) in newer.blocks {
            self.put(blkid, block);
        }
        self.placed.extend(newer.placed);
        self.dropped.extend(newer.dropped);
        (self.head, self.gone, self.bytes) = (newer.head, self.gone || newer.gone, self.bytes + newer.bytes);
        self.spill = newer.spill.or(self.spill);
        self.raw_bonus = newer.raw_bonus.or(self.raw_bonus);
        Box::new(self)
    }

    /// Adds a block. Returns whether there was none.
    pub(crate) fn put(&mut self, blkid: u64, block: Block) -> bool {
        self.unplace(blkid);
        self.blocks.insert(blkid, block).is_none()
    }

    /// Drops the early-written copy of a block that changes or is freed: it is out of date.
    pub(crate) fn unplace(&mut self, blkid: u64) {
        let placed = self.placed.remove(&blkid);
        self.dropped.extend(placed.filter(|placed| !placed.same).map(|placed| placed.bp));
    }

    /// Drops all blocks.
    pub(crate) fn clear(&mut self) {
        let placed = std::mem::take(&mut self.placed).into_values();
        self.dropped.extend(placed.filter(|placed| !placed.same).map(|placed| placed.bp));
        self.blocks.clear();
    }

    /// Frees blocks: those written in this txg are forgotten. Returns the number of these.
    pub(crate) fn free(&mut self, range: std::ops::Range<u64>) -> u64 {
        let forgotten: Vec<u64> = self.blocks.range(range.clone()).map(|(blkid, _)| *blkid).collect();
        for blkid in &forgotten {
            self.unplace(*blkid);
            self.blocks.remove(blkid);
        }
        self.freed.insert(range);
        forgotten.len() as u64
    }
}

/// Copies the fields that only a sync changes: pointers, levels, space used.
fn adopt(head: &mut Arc<DnodePhys>, synced: &DnodePhys) {
    if head.object_type == ObjectType::NONE || synced.object_type == ObjectType::NONE {
        return;
    }
    let head = Arc::make_mut(head);
    head.blkptr.clone_from(&synced.blkptr);
    (head.nlevels, head.used) = (synced.nlevels, synced.used);
    let spill = head.flags & DnodePhys::FLAG_SPILL_BLKPTR;
    head.flags = synced.flags & !DnodePhys::FLAG_SPILL_BLKPTR | spill;
    head.spill = (spill != 0).then(|| synced.spill.unwrap_or(BlkPtr::HOLE));
}
