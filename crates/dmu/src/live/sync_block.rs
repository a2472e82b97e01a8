//! Writes one dirty block to its final location before the sync of its txg, so that the intent log can point at it
//! (OpenZFS: `dmu_sync`).
//!
//! The block takes the same write path as in a sync. Its pointer is kept beside its content in the layer of the txg: the
//! sync uses it instead of writing the block. If the block is changed, freed or truncated before that, or its object is
//! freed, the pointer becomes *dropped*: the block is born and freed in that sync. So the space of a txg is accounted by
//! its sync alone, and the log can follow the pointer as long as it may need to, which is until the txg is on disk.
//!
//! Holes and embedded blocks take no space: the sync writes them once more, knowing what they replace. A block that
//! equals the one on disk is left there (nopwrite) only if no layer older than its txg changes it; the sync checks again.
//! Deduplicated blocks are not written here, as only the sync counts references.
//!
//! A sync waits for the running early writes before it freezes the layer; after that the block is not found here.

use base::Txg;
use ondisk::{BlkPtr, SECTOR_SHIFT};
use zio::{Bookmark, Buf, Payload, WriteCx, WriteReq};

use super::WritePolicy;
use super::dnode::{Block, Dirty, LiveDnode, Placed, State, slot_of};
use crate::tree::Child;
use crate::{Error, Object};

/// The result of writing a block before its sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncedBlock {
    /// The block was sent to the devices (not flushed) under this pointer, good until the txg is on disk. The pointer may
    /// be a hole, which records its size, or embed the block.
    Written(BlkPtr),
    /// It was written before and has not changed since: an older record of the log points at it.
    Already,
    /// The txg has freed it or its object: there is nothing to log.
    Gone,
    /// It cannot be written early: the sync of the txg has it (or had it), it is in stored form, or deduplicated. It can
    /// be read and copied.
    Copy,
}

/// A block to be written.
struct Pick {
    data: Buf,
    req: WriteReq,
}

impl Object {
    /// Writes the version of block `blkid` in the open or quiescing `txg` to its final location now; `policy` is that of
    /// the dataset. The caller makes sure that the block does not change meanwhile (else the version at the start is
    /// written).
    ///
    /// # Errors
    /// When the block cannot be written or encrypted, or a pointer cannot be read. Nothing has changed then.
    pub fn sync_block(&self, blkid: u64, txg: Txg, policy: &WritePolicy) -> Result<SyncedBlock, Error> {
        let objset = self.objset();
        let live = objset.writable(self.id())?;
        let Some(dnode) = self.live() else { return Ok(SyncedBlock::Copy) };
        let _placing = live.placing(txg).read();
        let pick = match self.pick(&dnode.state.read(), blkid, txg, policy) {
            Ok(pick) => pick,
            Err(no) => return Ok(no),
        };
        let Pick { data, mut req } = pick;
        if req.props.nopwrite {
            req.orig = self.pointer_on_disk(dnode, blkid)?;
        }
        let orig = req.orig;
        let bps = self.zio().write(&WriteCx { txg, pass: 0 }, vec![req])?;
        let bp = bps.first().copied().ok_or_else(|| self.refused("number of blocks written", 0))?;
        if bp.is_hole() {
            return Ok(SyncedBlock::Written(sized_hole(data.len())));
        }
        if !bp.is_embedded() {
            let placed = Placed { bp, same: bp == orig };
            note(&mut dnode.state.write(), blkid, txg, &data, placed);
        }
        Ok(SyncedBlock::Written(bp))
    }

    /// The block, if it can be written early.
    #[allow(clippy::result_large_err)]
    fn pick(&self, state: &State, blkid: u64, txg: Txg, policy: &WritePolicy) -> Result<Pick, SyncedBlock> {
        let Some(dirty) = layer(state, txg) else { return Err(SyncedBlock::Copy) };
        if dirty.gone {
            return Err(SyncedBlock::Gone);
        }
        if dirty.placed.contains_key(&blkid) {
            return Err(SyncedBlock::Already);
        }
        let data = match dirty.blocks.get(&blkid) {
            Some(Block::Data(data)) => data.clone(),
            None if dirty.freed.end_of(blkid).is_some() => return Err(SyncedBlock::Gone),
            Some(_) | None => return Err(SyncedBlock::Copy),
        };
        let mut props = policy.props(Some(&dirty.head), 0, false);
        if props.dedup.is_some() {
            return Err(SyncedBlock::Copy);
        }
        props.nopwrite &= !changes_before(state, blkid, txg);
        let bm = Bookmark { objset: self.objset().id(), object: self.id(), level: 0, blkid };
        let payload = Payload::Logical(data.clone());
        Ok(Pick { data, req: WriteReq { bm, props, payload, orig: BlkPtr::HOLE, fill: 1 } })
    }

    /// The pointer to a block on disk.
    fn pointer_on_disk(&self, dnode: &LiveDnode, blkid: u64) -> Result<BlkPtr, Error> {
        self.on_synced(dnode, |dn| {
            Ok(match self.tree_of(dn).pointer(0, blkid)? {
                Child::Block(bp) => bp,
                Child::Hole { .. } | Child::End => BlkPtr::HOLE,
            })
        })
    }
}

/// The changes of the txg, unless its sync has taken them.
fn layer(state: &State, txg: Txg) -> Option<&Dirty> {
    state.slots.get(slot_of(txg))?.as_deref().filter(|dirty| dirty.txg == txg)
}

/// Returns whether the pointer on disk may change before the sync of `txg` writes the block.
fn changes_before(state: &State, blkid: u64, txg: Txg) -> bool {
    let changes = |layer: &Dirty| {
        layer.gone || layer.freed.end_of(blkid).is_some() || (layer.txg < txg && layer.blocks.contains_key(&blkid))
    };
    state.layers().filter(|layer| layer.txg <= txg).any(changes)
}

/// Keeps the pointer for the sync, if the block is still the version that was written.
fn note(state: &mut State, blkid: u64, txg: Txg, data: &Buf, placed: Placed) {
    // the layer exists: its sync waits until this is done
    let Some(dirty) = state.slots.get_mut(slot_of(txg)).and_then(Option::as_mut).filter(|dirty| dirty.txg == txg)
    else {
        return;
    };
    let same = matches!(dirty.blocks.get(&blkid), Some(Block::Data(now)) if now.is(data));
    if same && !dirty.placed.contains_key(&blkid) {
        dirty.placed.insert(blkid, placed);
    } else if !placed.same {
        dirty.dropped.push(placed.bp);
    }
}

/// A hole that records its size, which log replay needs.
fn sized_hole(size: usize) -> BlkPtr {
    let sectors = (size as u64 >> SECTOR_SHIFT).saturating_sub(1);
    let mut hole = BlkPtr::HOLE;
    hole.words[6] = base::bytes::with_bits(hole.words[6], 0, 16, sectors);
    hole
}
