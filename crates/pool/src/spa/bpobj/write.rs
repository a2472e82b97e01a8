//! Lists of block pointers that change (OpenZFS: `bpobj.c`, the writing half). Only the thread that syncs does so.
//!
//! Pointers go at the end, in whole runs: a run costs a change of each block that it touches and one of the header. A list that
//! is joined to another is copied into it if it is short, else it stays and hangs below.
//!
//! With feature `empty_bpobj` all empty lists are one object, which the feature counts: [`EmptyCount`].

use base::{Endian, ObjectId};
use dmu::{NewObject, Tx};
use ondisk::bpobj::{BpobjPhys, list_entry, livelist_entry_is_free};
use ondisk::{BLKPTR_SIZE, BlkPtr, ObjectType};

use crate::Error;
use crate::spa::bpobj::{Bpobj, DEPTH_MAX, SUBOBJS_MAX, Space};
use crate::spa::mos::Mos;
use crate::spa::mos::edit::remove_present;

/// Blocks of lists (OpenZFS: `SPA_OLD_MAXBLOCKSIZE`).
pub(crate) const LIST_BLOCK: u64 = 128 << 10;
/// Bytes of pointers that are gathered before they are added to a list.
const RUN_MAX: usize = 16 << 20;
/// The name of the one empty list in the MOS directory.
const EMPTY: &str = "empty_bpobj";
/// The guid of the feature that widens headers.
const LIVELIST: &str = "com.delphix:livelist";
const OURS: Endian = Endian::Little;

/// Counts the uses of feature `empty_bpobj`: adds to its count and gives what it is then; `None` if the feature is disabled. With 0 it
/// only tells.
pub(crate) type EmptyCount<'a> = dyn FnMut(i64) -> Result<Option<u64>, Error> + 'a;

fn livelist_active(mos: &Mos) -> Result<bool, Error> {
    let list = mos.named_zap("features_for_write")?;
    Ok(list.map(|zap| zap.lookup_u64(LIVELIST)).transpose()?.flatten().is_some_and(|count| count > 0))
}

/// The object that stands for every empty list, if there is one.
pub(crate) fn empty_list(mos: &Mos) -> Result<Option<ObjectId>, Error> {
    Ok(mos.zap(ObjectId::POOL_DIRECTORY)?.lookup_id(EMPTY)?)
}

/// An empty list: the shared one if the feature is enabled (OpenZFS: `bpobj_alloc_empty`).
pub(crate) fn create_empty(mos: &Mos, tx: &Tx, count: &mut EmptyCount<'_>) -> Result<ObjectId, Error> {
    if count(0)?.is_none() {
        return Bpobj::create(mos, tx, LIST_BLOCK);
    }
    let id = match empty_list(mos)? {
        Some(id) => id,
        None => {
            let id = Bpobj::create(mos, tx, LIST_BLOCK)?;
            mos.zap(ObjectId::POOL_DIRECTORY)?.add_id(tx, EMPTY, id)?;
            id
        }
    };
    count(1)?;
    Ok(id)
}

/// `many` empty lists at once: the shared one as often, or so many objects.
pub(crate) fn create_empties(
    mos: &Mos,
    tx: &Tx,
    many: usize,
    count: &mut EmptyCount<'_>,
) -> Result<Vec<ObjectId>, Error> {
    if many == 0 {
        return Ok(Vec::new());
    }
    if count(0)?.is_none() {
        return (0..many).map(|_| Bpobj::create(mos, tx, LIST_BLOCK)).collect();
    }
    let id = create_empty(mos, tx, count)?;
    if many > 1 {
        count(many as i64 - 1)?;
    }
    Ok(vec![id; many])
}

/// One use less of the shared empty list; the last one takes it along (OpenZFS: `bpobj_decr_empty`).
pub(crate) fn drop_empty(mos: &Mos, tx: &Tx, count: &mut EmptyCount<'_>) -> Result<(), Error> {
    drop_empties(mos, tx, 1, count)
}

/// `many` uses less of the shared empty list.
pub(crate) fn drop_empties(mos: &Mos, tx: &Tx, many: u64, count: &mut EmptyCount<'_>) -> Result<(), Error> {
    if many == 0 {
        return Ok(());
    }
    if count(-(many as i64))? == Some(0) {
        let id = empty_list(mos)?
            .ok_or_else(|| Error::corrupt(ObjectId::POOL_DIRECTORY, "no empty list of block pointers"))?;
        remove_present(tx, &mos.zap(ObjectId::POOL_DIRECTORY)?, EMPTY)?;
        mos.objset.free_object(tx, id)?;
    }
    Ok(())
}

impl Bpobj {
    /// Makes an empty list with blocks of `block_size` bytes.
    pub(crate) fn create(mos: &Mos, tx: &Tx, block_size: u64) -> Result<ObjectId, Error> {
        let size = if livelist_active(mos)? { BpobjPhys::SIZE } else { BpobjPhys::SIZE_V2 };
        Bpobj::create_sized(mos, tx, block_size, size)
    }

    /// Makes an empty list with a header of `size` bytes, one of the `SIZE` constants of [`BpobjPhys`].
    pub(crate) fn create_sized(mos: &Mos, tx: &Tx, block_size: u64, size: usize) -> Result<ObjectId, Error> {
        let new = NewObject {
            object_type: ObjectType::BPOBJ,
            block_size,
            bonus_type: ObjectType::BPOBJ_HDR,
            bonus_len: size,
            ..NewObject::default()
        };
        let object = mos.objset.alloc_object(tx, &new)?;
        object.set_bonus(tx, &vec![0; size])?;
        Ok(object.id())
    }

    /// Frees a list and those below it. The blocks that they point to are not touched.
    pub(crate) fn free(mos: &Mos, tx: &Tx, id: ObjectId) -> Result<(), Error> {
        Bpobj::free_below(mos, tx, id, 0)
    }

    fn free_below(mos: &Mos, tx: &Tx, id: ObjectId, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::corrupt(id, "lists of block pointers are nested too deeply"));
        }
        let list = Bpobj::open(mos, id)?;
        for below in list.subobjs()? {
            Bpobj::free_below(mos, tx, below, depth + 1)?;
        }
        if list.phys.subobjs.is_some() {
            mos.objset.free_object(tx, list.phys.subobjs)?;
        }
        Ok(mos.objset.free_object(tx, id)?)
    }

    /// The list as it is now.
    fn now(&self) -> Result<Bpobj, Error> {
        Bpobj::open(&self.mos, self.id())
    }

    fn store(&self, tx: &Tx) -> Result<(), Error> {
        Ok(self.object.set_bonus(tx, &self.phys.encode(OURS, self.object.bonus().len()))?)
    }

    fn deflate(&self) -> Result<bool, Error> {
        Ok(self.mos.number("deflate")?.unwrap_or(0) != 0)
    }

    /// Whether nothing is in it, nor below it.
    pub(crate) fn is_empty(&self) -> bool {
        self.phys.num_blkptrs == 0 && self.phys.num_subobjs == 0
    }

    fn add_space(&mut self, space: Space) {
        self.phys.bytes = self.phys.bytes.wrapping_add(space.used);
        if self.phys.have_comp {
            self.phys.comp = self.phys.comp.wrapping_add(space.comp);
            self.phys.uncomp = self.phys.uncomp.wrapping_add(space.uncomp);
        }
    }

    /// Adds pointers.
    pub(crate) fn append_many(&self, tx: &Tx, blocks: &[BlkPtr]) -> Result<(), Error> {
        let marked: Vec<(BlkPtr, bool)> = blocks.iter().map(|bp| (*bp, false)).collect();
        self.append_marked(tx, &marked)
    }

    /// Adds pointers, each with whether it says FREE, as livelists have them: such a one takes its space away.
    pub(crate) fn append_marked(&self, tx: &Tx, blocks: &[(BlkPtr, bool)]) -> Result<(), Error> {
        let mut list = self.now()?;
        let deflate = list.deflate()?;
        let mut stored = Vec::with_capacity(blocks.len() * BLKPTR_SIZE);
        for (bp, free) in blocks.iter().filter(|(bp, _)| !bp.is_hole()) {
            stored.extend_from_slice(&list_entry(bp, *free).encode(OURS));
            let mut space = Space::default();
            let of = Space::of(&list.mos, bp, deflate);
            if *free {
                space.sub(of);
                list.phys.num_freed += 1;
            } else {
                space.add(of);
            }
            list.add_space(space);
        }
        list.append_stored(tx, &stored)?;
        list.store(tx)
    }

    /// Puts pointers, encoded, behind the last one, and counts them. The header is for the caller to store.
    fn append_stored(&mut self, tx: &Tx, stored: &[u8]) -> Result<(), Error> {
        let end = self.phys.num_blkptrs.checked_mul(BLKPTR_SIZE as u64);
        let end = end.ok_or_else(|| {
            Error::corrupt(self.id(), format!("list claims {} block pointers", self.phys.num_blkptrs))
        })?;
        self.object.write(tx, end, stored)?;
        self.phys.num_blkptrs += (stored.len() / BLKPTR_SIZE) as u64;
        Ok(())
    }

    /// Empties the list; lists below it are freed. The blocks that were pointed to are not touched.
    pub(crate) fn clear(&self, tx: &Tx) -> Result<(), Error> {
        let mut list = self.now()?;
        for below in list.subobjs()? {
            Bpobj::free(&list.mos, tx, below)?;
        }
        if list.phys.subobjs.is_some() {
            list.mos.objset.free_object(tx, list.phys.subobjs)?;
        }
        list.object.free_range(tx, 0, u64::MAX)?;
        list.phys = BpobjPhys { have_comp: list.phys.have_comp, ..BpobjPhys::default() };
        list.store(tx)
    }

    /// Takes up to `most` pointers off the end, this list's own before those of lists below, and calls `visit` with each and whether
    /// it says FREE (OpenZFS: `bpobj_iterate`, which frees as it goes). Gives how many there were.
    pub(crate) fn take(
        &self,
        tx: &Tx,
        most: u64,
        visit: &mut dyn FnMut(&BlkPtr, bool) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        Ok(self.take_below(tx, most, visit, 0)?.0)
    }

    fn take_below(
        &self,
        tx: &Tx,
        most: u64,
        visit: &mut dyn FnMut(&BlkPtr, bool) -> Result<(), Error>,
        depth: usize,
    ) -> Result<(u64, Space), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::corrupt(self.id(), "lists of block pointers are nested too deeply"));
        }
        let mut list = self.now()?;
        let (mut taken, mut gone) = list.take_own(tx, most, visit)?;
        let mut below = if taken < most { list.subobjs()? } else { Vec::new() };
        while let Some(id) = below.last().copied().filter(|_| taken < most) {
            let sub = Bpobj::open(&list.mos, id)?;
            let (n, space) = sub.take_below(tx, most - taken, visit, depth + 1)?;
            taken += n;
            gone.add(space);
            if !sub.now()?.is_empty() {
                break;
            }
            below.pop();
            Bpobj::free(&list.mos, tx, id)?;
            list.phys.num_subobjs -= 1;
        }
        if list.phys.num_subobjs == 0 && list.phys.subobjs.is_some() {
            list.mos.objset.free_object(tx, list.phys.subobjs)?;
            list.phys.subobjs = ObjectId::NONE;
        }
        let mut left = Space { used: list.phys.bytes, comp: list.phys.comp, uncomp: list.phys.uncomp };
        left.sub(gone);
        (list.phys.bytes, list.phys.comp, list.phys.uncomp) = (left.used, left.comp, left.uncomp);
        list.store(tx)?;
        Ok((taken, gone))
    }

    /// Takes pointers of the list itself. The header is for the caller to store.
    fn take_own(
        &mut self,
        tx: &Tx,
        most: u64,
        visit: &mut dyn FnMut(&BlkPtr, bool) -> Result<(), Error>,
    ) -> Result<(u64, Space), Error> {
        let (deflate, per_block) = (self.deflate()?, self.object.block_size() / BLKPTR_SIZE as u64);
        let (mut taken, mut gone) = (0, Space::default());
        while taken < most && self.phys.num_blkptrs > 0 && per_block > 0 {
            let blkid = (self.phys.num_blkptrs - 1) / per_block;
            let here = (self.phys.num_blkptrs - blkid * per_block).min(most - taken);
            let first = (self.phys.num_blkptrs - here - blkid * per_block) as usize;
            if let Some((block, endian)) = self.object.block_with_endian(blkid)? {
                let stored = block.as_chunks::<BLKPTR_SIZE>().0.iter().skip(first).take(here as usize);
                for raw in stored.rev() {
                    let bp = BlkPtr::from_bytes(raw, endian);
                    let free = livelist_entry_is_free(&bp);
                    visit(&bp, free)?;
                    let of = Space::of(&self.mos, &bp, deflate);
                    if free {
                        gone.sub(of);
                        // headers before livelists have no such count
                        if self.object.bonus().len() >= BpobjPhys::SIZE {
                            let id = self.object.id();
                            self.mos.count(id, "pointers that say FREE", &mut self.phys.num_freed, -1);
                        }
                    } else {
                        gone.add(of);
                    }
                }
            }
            self.phys.num_blkptrs -= here;
            taken += here;
        }
        // the block that still holds some stays
        let keep = self.phys.num_blkptrs.div_ceil(per_block.max(1)).saturating_mul(self.object.block_size());
        if taken > 0 {
            self.object.free_range(tx, keep, u64::MAX)?;
        }
        Ok((taken, gone))
    }

    /// Joins lists to this one, none of them the shared empty one: what is in them counts here from now on, and their objects are no
    /// longer the caller's (OpenZFS: `bpobj_enqueue_subobj`). One run of pointers and one of lists are added, whatever their number.
    pub(crate) fn append_lists(&self, tx: &Tx, ids: &[ObjectId]) -> Result<(), Error> {
        let mut list = self.now()?;
        if list.object.bonus().len() < BpobjPhys::SIZE_V2 {
            return Err(Error::corrupt(self.id(), "a list of an old pool cannot have lists below it"));
        }
        let (mut stored, mut below) = (Vec::new(), Vec::new());
        for id in ids {
            let other = Bpobj::open(&list.mos, *id)?;
            list.add_space(other.space());
            if other.is_empty() {
                Bpobj::free(&list.mos, tx, *id)?;
            } else {
                list.phys.num_freed += other.dissolve(tx, &mut stored, &mut below)?;
            }
            if stored.len() >= RUN_MAX {
                list.append_stored(tx, &stored)?;
                stored.clear();
            }
        }
        list.append_stored(tx, &stored)?;
        if !below.is_empty() {
            list.add_lists(tx, &below)?;
        }
        list.store(tx)
    }

    /// Joins the list to another: the lists below it move up, and its pointers too, if they are few; else it
    /// stays and is a list below. Gives how many of the pointers that moved say FREE.
    fn dissolve(self, tx: &Tx, stored: &mut Vec<u8>, below: &mut Vec<ObjectId>) -> Result<u64, Error> {
        let (mos, id) = (&self.mos, self.id());
        let few_lists = match self.phys.subobjs {
            ObjectId::NONE => true,
            lists => mos.object(lists)?.nblocks() <= 1,
        };
        if few_lists && self.phys.subobjs.is_some() {
            below.extend(self.subobjs()?);
            mos.objset.free_object(tx, self.phys.subobjs)?;
        }
        if few_lists && self.object.nblocks() <= 1 {
            self.visit_own(&mut |bp| {
                stored.extend_from_slice(&bp.encode(OURS));
                Ok(())
            })?;
            mos.objset.free_object(tx, id)?;
            return Ok(self.phys.num_freed);
        }
        if few_lists && self.phys.subobjs.is_some() {
            let mut emptied = self.clone();
            (emptied.phys.subobjs, emptied.phys.num_subobjs) = (ObjectId::NONE, 0);
            emptied.store(tx)?;
        }
        below.push(id);
        Ok(0)
    }

    /// Adds lists to those below. The header is for the caller to store.
    fn add_lists(&mut self, tx: &Tx, ids: &[ObjectId]) -> Result<(), Error> {
        let object = match self.phys.subobjs {
            ObjectId::NONE => {
                let new =
                    NewObject { object_type: ObjectType::BPOBJ_SUBOBJ, block_size: LIST_BLOCK, ..NewObject::default() };
                self.mos.objset.alloc_object(tx, &new)?
            }
            id => self.mos.object(id)?,
        };
        self.phys.subobjs = object.id();
        let stored: Vec<u8> = ids.iter().flat_map(|id| OURS.put_u64(id.0)).collect();
        if self.phys.num_subobjs > SUBOBJS_MAX {
            return Err(Error::corrupt(self.id(), format!("list claims {} lists below it", self.phys.num_subobjs)));
        }
        object.write(tx, self.phys.num_subobjs * 8, &stored)?;
        self.phys.num_subobjs += ids.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
