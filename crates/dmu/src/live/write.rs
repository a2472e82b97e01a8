//! Changes to one object, in memory.

use std::ops::Range;
use std::sync::Arc;

use base::Endian;
use ondisk::{BlkPtr, DnodePhys, ObjectType};
use zio::{Buf, Payload};

use super::Tx;
use super::dnode::{Block, BlockState, LiveDnode, State, slot_of};
use crate::{Error, Object};

impl Object {
    /// A handle with the current state of the object: [`Object::phys`] and [`Object::bonus`] of a handle are as of its
    /// creation.
    ///
    /// # Errors
    /// [`Error::NoObject`] if it has been freed.
    pub fn reload(&self) -> Result<Object, Error> {
        self.objset().object(self.id())
    }

    /// Writes bytes at `offset`.
    ///
    /// # Errors
    /// When a block that is changed in part cannot be read; [`Error::Refused`] for a second block when the block size is
    /// not a power of two.
    pub fn write(&self, tx: &Tx, mut offset: u64, mut data: &[u8]) -> Result<(), Error> {
        let size = self.block_size();
        let Some(end) = offset.checked_add(data.len() as u64) else {
            return Err(self.refused("offset of a write", offset));
        };
        self.check_above(offset.checked_div(size).unwrap_or(0)..end.div_ceil(size.max(1)))?;
        while !data.is_empty() {
            let Some(blkid) = offset.checked_div(size) else { return Err(self.refused("block size", size)) };
            let skip = (offset % size) as usize;
            let take = usize::try_from(size).unwrap_or(usize::MAX).saturating_sub(skip).min(data.len());
            let (now, rest) = data.split_at(take);
            if now.len() as u64 == size {
                self.put(tx, blkid, Block::Data(Buf::from(now.to_vec())), size)?;
            } else {
                self.modify_part(tx, blkid, size, skip..skip + take, |place| place.copy_from_slice(now))?;
            }
            data = rest;
            offset = offset.saturating_add(take as u64);
        }
        Ok(())
    }

    /// Writes a whole block, without a copy.
    ///
    /// # Errors
    /// [`Error::Refused`] if its length is not the block size.
    pub fn write_block(&self, tx: &Tx, blkid: u64, data: impl Into<Buf>) -> Result<(), Error> {
        let data = data.into();
        let size = data.len() as u64;
        self.check_above(blkid..blkid.saturating_add(1))?;
        self.put(tx, blkid, Block::Data(data), size)
    }

    /// Writes a block that is already in stored form: compressed, encrypted, embedded, or a clone.
    ///
    /// # Errors
    /// [`Error::Refused`] if its logical size is not the block size.
    pub fn write_stored(&self, tx: &Tx, blkid: u64, payload: Payload) -> Result<(), Error> {
        let size = payload.lsize();
        self.check_above(blkid..blkid.saturating_add(1))?;
        self.put(tx, blkid, Block::from(payload), size)
    }

    fn put(&self, tx: &Tx, blkid: u64, block: Block, size: u64) -> Result<(), Error> {
        let dnode = self.dnode()?;
        let fresh = self.objset().change(tx, dnode, |state| {
            if size != state.newest.datablksz() {
                return Err(self.refused("length of a block", size));
            }
            self.put_block(state, tx, blkid, block)
        })?;
        if fresh {
            tx.dirtied(size);
        }
        Ok(())
    }

    /// Adds a block, extending the object if necessary. Returns whether it is the first in its position.
    pub(super) fn put_block(&self, state: &mut State, tx: &Tx, blkid: u64, block: Block) -> Result<bool, Error> {
        self.extend(state, tx, blkid)?;
        self.insert(state, tx, blkid, block)
    }

    /// Adds a block to the layer of the txg. Returns whether it is the first in its position.
    fn insert(&self, state: &mut State, tx: &Tx, blkid: u64, block: Block) -> Result<bool, Error> {
        state.supersede(tx.txg(), blkid, &block);
        let size = if tx.hold().is_some() { state.newest.datablksz() } else { 0 };
        let (dirty, _) = state.dirty(tx.txg()).ok_or_else(|| self.out_of_turn(tx))?;
        let fresh = dirty.put(blkid, block);
        if fresh {
            dirty.bytes += size;
        }
        Ok(fresh)
    }

    /// Makes the object long enough to hold a block.
    fn extend(&self, state: &mut State, tx: &Tx, blkid: u64) -> Result<(), Error> {
        let newest = &state.newest;
        if blkid > 0 && !newest.datablksz().is_power_of_two() {
            return Err(self.refused("block behind a first one whose size is no power of two", blkid));
        }
        if blkid.checked_add(1).and_then(|n| n.checked_mul(newest.datablksz())).is_none() {
            return Err(self.refused("block number", blkid));
        }
        // the layers of older txgs must be long enough for their blocks, too
        let short = state.slots.iter().flatten().any(|d| d.txg >= tx.txg() && d.head.maxblkid < blkid);
        if short || newest.maxblkid < blkid {
            state.reshape(tx.txg(), |dn| dn.maxblkid = dn.maxblkid.max(blkid));
        }
        Ok(())
    }

    /// Changes a block in place, reading it first if necessary. `change` must not use this object.
    ///
    /// # Errors
    /// When the block cannot be read, or is in the other byte order and of an unknown type.
    pub fn modify_block<R>(&self, tx: &Tx, blkid: u64, change: impl FnOnce(&mut [u8]) -> R) -> Result<R, Error> {
        let dnode = self.dnode()?;
        let (mut change, mut base) = (Some(change), None);
        loop {
            let done =
                self.objset().change(tx, dnode, |state| self.modify_now(state, tx, blkid, &mut change, base.take()))?;
            match done {
                Step::Done(result, dirtied) => {
                    tx.dirtied(dirtied);
                    return Ok(result);
                }
                Step::Read(BlockState::Below(dn)) => {
                    let tree = self.tree_of(&dn);
                    let read = match tree.pointer(0, blkid)? {
                        crate::tree::Child::Block(bp) => {
                            let block = tree.read_data_to_change(&bp, blkid)?;
                            Some(self.turned(dn.object_type, bp.endian(), block)?)
                        }
                        _ => None,
                    };
                    base = Some((Some(dn), read));
                }
                Step::Read(BlockState::Dirty(block)) => base = Some((None, Some(self.decoded(block, blkid)?))),
                Step::Read(_) => base = Some((None, None)),
            }
        }
    }

    /// As [`Object::modify_block`], for a block that the txg has changed already: it is in memory, so nothing can fail.
    ///
    /// # Errors
    /// [`Error::Bug`] if the txg has not changed it.
    pub(crate) fn modify_dirty<R>(&self, tx: &Tx, blkid: u64, change: impl FnOnce(&mut [u8]) -> R) -> Result<R, Error> {
        let mut state = self.dnode()?.state.write();
        if is_dirty(&state, tx, blkid)
            && let Step::Done(result, _) = self.modify_now(&mut state, tx, blkid, &mut Some(change), None)?
        {
            return Ok(result);
        }
        Err(self.bug("a block that was to be in memory is not"))
    }

    /// True if the txg has changed a block since it was last written: a txg is written in several passes.
    pub(crate) fn is_dirty(&self, tx: &Tx, blkid: u64) -> Result<bool, Error> {
        Ok(is_dirty(&self.dnode()?.state.read(), tx, blkid))
    }

    /// One attempt of [`Object::modify_block`]: `base` is the block as read from the tree of a dnode.
    fn modify_now<R>(
        &self,
        state: &mut State,
        tx: &Tx,
        blkid: u64,
        change: &mut Option<impl FnOnce(&mut [u8]) -> R>,
        base: Option<(Option<Arc<DnodePhys>>, Option<Buf>)>,
    ) -> Result<Step<R>, Error> {
        self.extend(state, tx, blkid)?;
        let newer = state.slots.iter().flatten().any(|dirty| dirty.txg > tx.txg());
        if !newer {
            let (dirty, _) = state.dirty(tx.txg()).ok_or_else(|| self.out_of_turn(tx))?;
            dirty.unplace(blkid);
            if let Some(Block::Data(buf)) = dirty.blocks.get_mut(&blkid)
                && let Some(change) = change.take()
            {
                return Ok(Step::Done(change(buf.make_mut()), 0));
            }
        }
        let size = usize::try_from(state.newest.datablksz()).unwrap_or(0);
        let mut data = match (state.find(blkid), base) {
            (BlockState::Dirty(Block::Data(buf)), _) => buf.to_vec(),
            (BlockState::Dirty(_), Some((None, Some(buf)))) => buf.into_vec(),
            (BlockState::Hole { .. } | BlockState::End, _) => Vec::new(),
            (BlockState::Below(now), Some((Some(then), buf))) if Arc::ptr_eq(&now, &then) => {
                buf.map(Buf::into_vec).unwrap_or_default()
            }
            (found, _) => return Ok(Step::Read(found)),
        };
        data.resize(size, 0);
        let Some(change) = change.take() else { return Err(self.refused("change", blkid)) };
        let result = change(&mut data);
        let fresh = self.insert(state, tx, blkid, Block::Data(Buf::from(data)))?;
        Ok(Step::Done(result, if fresh { size as u64 } else { 0 }))
    }

    /// Frees `len` bytes from `offset`, to the end with `u64::MAX`. Partially covered blocks are zeroed there (OpenZFS:
    /// `dnode_free_range`).
    ///
    /// # Errors
    /// When a block at the edge cannot be read.
    pub fn free_range(&self, tx: &Tx, offset: u64, len: u64) -> Result<(), Error> {
        self.free_counted(tx, offset, len, u64::MAX)
    }

    /// As [`Object::free_range`], when at most `most` blocks of the range are not holes.
    pub(crate) fn free_counted(&self, tx: &Tx, offset: u64, len: u64, most: u64) -> Result<(), Error> {
        let (size, nblocks) = (self.block_size(), self.nblocks());
        let end = offset.saturating_add(len);
        let past = size.saturating_mul(nblocks);
        if size == 0 || end <= offset || offset >= past {
            return Ok(());
        }
        let to_end = end >= past;
        let (first, last) = (offset.div_ceil(size), end.min(past) / size);
        if first > last {
            return self.zero_part(tx, last, size, (offset % size) as usize..(end.min(past) % size) as usize);
        }
        // Another change may make the object longer or shorter meanwhile: what is behind `end` stays as it is.
        let range = first..if end == u64::MAX { end } else { end / size };
        self.check_edge(range.start)?;
        self.check_edge(range.end)?;
        if !offset.is_multiple_of(size) {
            self.zero_part(tx, first - 1, size, (offset % size) as usize..size as usize)?;
        }
        if !to_end && !end.is_multiple_of(size) {
            self.zero_part(tx, last, size, 0..(end % size) as usize)?;
        }
        if range.is_empty() || (to_end && first >= nblocks) {
            return Ok(());
        }
        let freed = range.end.min(nblocks).saturating_sub(range.start).min(most);
        let forgotten = self.objset().change(tx, self.dnode()?, |state| {
            let counted = tx.hold().is_some();
            let mut forgotten = 0;
            Object::charge_freed(tx, &state.synced, freed);
            for dirty in state.slots.iter_mut().flatten().filter(|dirty| dirty.txg >= tx.txg()) {
                let size = dirty.head.datablksz();
                let bytes = (dirty.free(range.clone()) * size).min(dirty.bytes);
                if dirty.txg == tx.txg() && counted {
                    dirty.bytes -= bytes;
                    forgotten = bytes;
                }
            }
            // the length of a file that is received raw comes from the stream
            if !self.objset().is_raw() {
                state.reshape(tx.txg(), |dn| {
                    if range.contains(&dn.maxblkid) {
                        dn.maxblkid = range.start.saturating_sub(1);
                    }
                });
            }
            Ok(forgotten)
        })?;
        if let Some(hold) = tx.hold() {
            hold.undirtied(tx.txg(), forgotten);
        }
        Ok(())
    }

    /// Checks that the blocks of pointers above these blocks can be read, as their sync must: the error goes to the
    /// writer, not to the pool (OpenZFS: `dmu_tx_check_ioerr`).
    pub(super) fn check_above(&self, blocks: Range<u64>) -> Result<(), Error> {
        let Some(dnode) = self.live() else { return Ok(()) };
        self.on_synced(dnode, |dn| {
            let (tree, mut at) = (self.tree_of(dn), blocks.start);
            while dn.nlevels > 1 && at < blocks.end && at <= dn.maxblkid {
                let above = at >> tree.span_shift(1).min(63);
                let (row, bit) = (above / 64, 1 << (above % 64));
                if dnode.readable.lock().get(&row).is_none_or(|bits| bits & bit == 0) {
                    tree.pointer(0, at)?;
                    *dnode.readable.lock().entry(row).or_default() |= bit;
                }
                let Some(next) = tree.after(1, at) else { break };
                at = next;
            }
            Ok(())
        })
    }

    /// As `check_above`, for a range that is freed from block `edge` on, or up to it: blocks of pointers that the edge
    /// cuts are changed.
    fn check_edge(&self, edge: u64) -> Result<(), Error> {
        let Some(dnode) = self.live() else { return Ok(()) };
        self.on_synced(dnode, |dn| {
            let tree = self.tree_of(dn);
            let goes_through =
                |level: &u8| edge & (1u64.checked_shl(tree.span_shift(*level)).unwrap_or(0).wrapping_sub(1)) != 0;
            let Some(level) = (1..=tree.top()).find(goes_through).filter(|_| edge <= dn.maxblkid) else {
                return Ok(());
            };
            tree.pointer(level - 1, edge >> tree.span_shift(level - 1).min(63))?;
            Ok(())
        })
    }

    /// Zeros a part of a block, unless it is a hole.
    fn zero_part(&self, tx: &Tx, blkid: u64, size: u64, part: Range<usize>) -> Result<(), Error> {
        if !part.is_empty() && self.block(blkid)?.is_some() {
            self.modify_part(tx, blkid, size, part, |place| place.fill(0))?;
        }
        Ok(())
    }

    /// Changes a part of a block of `size` bytes.
    ///
    /// # Errors
    /// As [`Object::modify_block`]; [`Error::Refused`] if the size of blocks has been changed meanwhile.
    fn modify_part(
        &self,
        tx: &Tx,
        blkid: u64,
        size: u64,
        part: Range<usize>,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        let changed = self.modify_block(tx, blkid, |block| {
            let place = if block.len() as u64 == size { block.get_mut(part) } else { None };
            place.map(change).ok_or(block.len() as u64)
        })?;
        changed.map_err(|size| self.refused("size of a block, changed while it was written,", size))
    }

    /// Changes the sizes of data blocks and of indirect blocks (log2; 0 keeps them), while there is one block at most
    /// (OpenZFS: `dnode_set_blksz`).
    ///
    /// # Errors
    /// [`Error::Refused`] if there is more than one block, or for an invalid size.
    pub fn set_block_size(&self, tx: &Tx, size: u64, indirect_shift: u8) -> Result<(), Error> {
        let size = size.max(512).next_multiple_of(512);
        if size > ondisk::SPA_MAXBLOCKSIZE || (indirect_shift != 0 && !(12..=17).contains(&indirect_shift)) {
            return Err(self.refused("block size", size));
        }
        let dnode = self.dnode()?;
        if self.block_size() != size && self.nblocks() == 1 && self.block(0)?.is_some() {
            self.modify_block(tx, 0, |_| ())?;
        }
        let grown = self.objset().change(tx, dnode, |state| {
            let levels = state.newest.nlevels.max(state.min_levels);
            let shift_changes = indirect_shift != 0 && indirect_shift != state.newest.indblkshift;
            if state.newest.datablksz() == size && !shift_changes {
                return Ok(0);
            }
            if state.newest.maxblkid != 0 || (shift_changes && levels > 1) {
                return Err(self.refused("block size of an object of several blocks", size));
            }
            let more = if tx.hold().is_some() { size.saturating_sub(state.newest.datablksz()) } else { 0 };
            let mut grown = 0;
            for dirty in state.slots.iter_mut().flatten().filter(|dirty| dirty.txg >= tx.txg()) {
                dirty.unplace(0);
                if let Some(Block::Data(buf)) = dirty.blocks.get_mut(&0) {
                    buf.make_mut().resize(usize::try_from(size).unwrap_or(0), 0);
                    if dirty.txg == tx.txg() {
                        dirty.bytes += more;
                        grown = more;
                    }
                }
            }
            state.reshape(tx.txg(), |dn| {
                dn.datablkszsec = (size >> 9) as u16;
                if indirect_shift != 0 {
                    dn.indblkshift = indirect_shift;
                }
            });
            Ok(grown)
        })?;
        tx.dirtied(grown);
        Ok(())
    }

    /// Replaces the bonus buffer, its type, and the spill block (`None`: there is none), in one step: all of it or nothing.
    ///
    /// # Errors
    /// [`Error::Refused`] if it does not fit.
    pub fn set_bonus_and_spill(
        &self,
        tx: &Tx,
        bonus_type: ObjectType,
        bonus: &[u8],
        spill: Option<Vec<u8>>,
    ) -> Result<(), Error> {
        let size = spill.as_ref().map_or(0, |spill| spill.len() as u64);
        if spill.is_some() {
            self.check_spill_len(size)?;
        }
        self.objset().change(tx, self.dnode()?, |state| {
            if bonus.len() > state.newest.max_bonus(spill.is_some()) {
                return Err(self.refused("length of the bonus buffer", bonus.len() as u64));
            }
            let had = state.newest.flags & DnodePhys::FLAG_SPILL_BLKPTR != 0;
            let counted = if tx.hold().is_some() { size } else { 0 };
            let (dirty, _) = state.dirty(tx.txg()).ok_or_else(|| self.out_of_turn(tx))?;
            let spills = spill.is_some();
            if spills || had {
                dirty.spill = Some(spill.map(|spill| Block::Data(Buf::from(spill))));
                dirty.bytes += counted;
            }
            state.reshape(tx.txg(), |dn| {
                dn.bonus_type = bonus_type;
                put_bonus(dn, bonus);
                point_to_spill(dn, spills);
            });
            Ok(())
        })?;
        tx.dirtied(size);
        Ok(())
    }

    /// Replaces the bonus buffer; its length may change.
    ///
    /// # Errors
    /// [`Error::Refused`] if it does not fit.
    pub fn set_bonus(&self, tx: &Tx, bonus: &[u8]) -> Result<(), Error> {
        self.objset().change(tx, self.dnode()?, |state| {
            let spill = state.newest.flags & DnodePhys::FLAG_SPILL_BLKPTR != 0;
            if bonus.len() > state.newest.max_bonus(spill) {
                return Err(self.refused("length of the bonus buffer", bonus.len() as u64));
            }
            state.reshape(tx.txg(), |dn| put_bonus(dn, bonus));
            Ok(())
        })
    }

    /// Changes bytes of the bonus buffer, each run at its offset, which `runs` finds in the dnode as it is. Returns `false` if it finds none; nothing is
    /// changed then.
    ///
    /// # Errors
    /// [`Error::Refused`] if one is not in it.
    pub(crate) fn patch_bonus<'a>(
        &self,
        tx: &Tx,
        runs: impl FnOnce(&DnodePhys) -> Option<Vec<(usize, &'a [u8])>>,
    ) -> Result<bool, Error> {
        self.objset().change(tx, self.dnode()?, |state| {
            // the bonus buffers of later txgs may have other places
            if state.is_dirty_after(tx.txg()) {
                return Ok(false);
            }
            let Some(runs) = runs(&state.newest) else { return Ok(false) };
            let len = state.newest.bonus.len();
            let outside = |(at, bytes): &&(usize, &[u8])| at.checked_add(bytes.len()).is_none_or(|end| end > len);
            if let Some((at, _)) = runs.iter().find(outside) {
                return Err(self.refused("place in the bonus buffer", *at as u64));
            }
            state.reshape(tx.txg(), |dn| {
                for (at, bytes) in &runs {
                    dn.bonus.iter_mut().skip(*at).zip(*bytes).for_each(|(place, byte)| *place = *byte);
                }
                dn.endian = Endian::Little;
            });
            Ok(true)
        })
    }

    /// Changes the type of the bonus buffer.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn set_bonus_type(&self, tx: &Tx, bonus_type: ObjectType) -> Result<(), Error> {
        self.reshape(tx, |dn| dn.bonus_type = bonus_type)
    }

    /// Changes the type of the object: a DSL directory or dataset becomes a ZAP when it is extended (OpenZFS: `dmu_object_zapify`).
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn set_type(&self, tx: &Tx, object_type: ObjectType) -> Result<(), Error> {
        self.reshape(tx, |dn| dn.object_type = object_type)
    }

    /// Replaces the spill block; its length is a multiple of 512.
    ///
    /// # Errors
    /// [`Error::Refused`] if the bonus buffer leaves no room for its pointer.
    pub fn set_spill(&self, tx: &Tx, data: Vec<u8>) -> Result<(), Error> {
        let size = data.len() as u64;
        self.spill_block(tx, Block::Data(Buf::from(data)), size)
    }

    /// Replaces the spill block by one in stored form.
    ///
    /// # Errors
    /// As [`Object::set_spill`].
    pub fn set_spill_stored(&self, tx: &Tx, payload: Payload) -> Result<(), Error> {
        let size = payload.lsize();
        self.spill_block(tx, Block::from(payload), size)
    }

    fn spill_block(&self, tx: &Tx, block: Block, size: u64) -> Result<(), Error> {
        self.check_spill_len(size)?;
        self.objset().change(tx, self.dnode()?, |state| {
            if !state.newest.fits_spill() {
                return Err(self.refused("spill block beside a bonus buffer", state.newest.bonus.len() as u64));
            }
            let counted = if tx.hold().is_some() { size } else { 0 };
            let (dirty, _) = state.dirty(tx.txg()).ok_or_else(|| self.out_of_turn(tx))?;
            dirty.spill = Some(Some(block));
            dirty.bytes += counted;
            state.reshape(tx.txg(), |dn| point_to_spill(dn, true));
            Ok(())
        })?;
        tx.dirtied(size);
        Ok(())
    }

    fn check_spill_len(&self, size: u64) -> Result<(), Error> {
        match size != 0 && size.is_multiple_of(512) && size <= ondisk::SPA_MAXBLOCKSIZE {
            true => Ok(()),
            false => Err(self.refused("length of a spill block", size)),
        }
    }

    /// Removes the spill block.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn remove_spill(&self, tx: &Tx) -> Result<(), Error> {
        self.objset().change(tx, self.dnode()?, |state| {
            let (dirty, _) = state.dirty(tx.txg()).ok_or_else(|| self.out_of_turn(tx))?;
            dirty.spill = Some(None);
            state.reshape(tx.txg(), |dn| point_to_spill(dn, false));
            Ok(())
        })
    }

    /// Sets the compression of future blocks: a number of a block pointer, 0 inherits.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn set_compress(&self, tx: &Tx, compress: u8) -> Result<(), Error> {
        self.reshape(tx, |dn| dn.compress = compress)
    }

    /// Sets the checksum of future blocks: a number of a block pointer, 0 inherits.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn set_checksum(&self, tx: &Tx, checksum: u8) -> Result<(), Error> {
        self.reshape(tx, |dn| dn.checksum = checksum)
    }

    /// Sets the number of the highest block (a raw receive keeps that of its source).
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn set_maxblkid(&self, tx: &Tx, maxblkid: u64) -> Result<(), Error> {
        self.reshape(tx, |dn| dn.maxblkid = maxblkid)
    }

    /// Sets the least number of levels of the tree.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn set_levels(&self, tx: &Tx, nlevels: u8) -> Result<(), Error> {
        self.objset().change(tx, self.dnode()?, |state| {
            state.min_levels = nlevels.clamp(1, 16);
            Ok(())
        })
    }

    fn reshape(&self, tx: &Tx, change: impl Fn(&mut DnodePhys)) -> Result<(), Error> {
        self.objset().change(tx, self.dnode()?, |state| {
            state.reshape(tx.txg(), &change);
            Ok(())
        })
    }

    fn dnode(&self) -> Result<&Arc<LiveDnode>, Error> {
        self.live().ok_or(Error::ReadOnly { objset: self.objset().id(), object: self.id() })
    }

    pub(crate) fn refused(&self, what: &'static str, value: u64) -> Error {
        self.objset().refused(self.id(), what, value)
    }

    fn bug(&self, what: &'static str) -> Error {
        Error::Bug { objset: self.objset().id(), object: self.id(), what }
    }

    pub(crate) fn out_of_turn(&self, tx: &Tx) -> Error {
        self.refused("txg of a change", tx.txg().0)
    }
}

/// The result of one attempt to change a block.
enum Step<R> {
    /// Done; the number of bytes that became dirty.
    Done(R, u64),
    /// The block's content must be read first.
    Read(BlockState),
}

/// Replaces the bonus buffer.
fn put_bonus(dn: &mut DnodePhys, bonus: &[u8]) {
    dn.bonus.clear();
    dn.bonus.extend_from_slice(bonus);
    dn.endian = Endian::Little;
}

/// Makes room for the pointer to a spill block, or takes it away.
fn point_to_spill(dn: &mut DnodePhys, has_one: bool) {
    if has_one {
        dn.flags |= DnodePhys::FLAG_SPILL_BLKPTR;
        dn.spill = dn.spill.or(Some(BlkPtr::HOLE));
    } else {
        dn.flags &= !DnodePhys::FLAG_SPILL_BLKPTR;
        dn.spill = None;
    }
}

/// As [`Object::is_dirty`].
fn is_dirty(state: &State, tx: &Tx, blkid: u64) -> bool {
    let slot = state.slots.get(slot_of(tx.txg())).and_then(Option::as_ref);
    slot.is_some_and(|dirty| dirty.txg == tx.txg() && dirty.blocks.contains_key(&blkid))
}
