//! Writable object sets: opening them, finding, creating and freeing objects.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Endian, ObjectId, Txg};
use ondisk::{BlkPtr, DNODE_SIZE, DnodePhys, ObjectType, ObjsetPhys, ObjsetType, ZilHeader};
use zio::Zio;

use super::alloc::Alloc;
use super::dnode::LiveDnode;
use super::state::Live;
use super::{NewObject, Tx};
use crate::objset::{Root, special_dnode};
use crate::{Error, Object, Objset, Special};

/// Bytes of a block of dnodes (OpenZFS: `DNODE_BLOCK_SIZE`).
const DNODE_BLOCK_SIZE: u64 = 16 << 10;
/// log2 of the default size of an indirect block.
const INDIRECT_SHIFT: u8 = 17;
/// The most slots that a dnode can have.
const MAX_SLOTS: usize = 32;

impl Objset {
    /// Opens the object set under `rootbp` for changes; a hole is an empty set. Big-endian parts are byteswapped as they
    /// are changed.
    ///
    /// # Errors
    /// As [`Objset::open`].
    pub fn open_writable(zio: Arc<Zio>, dataset_id: ObjectId, rootbp: &BlkPtr) -> Result<Arc<Objset>, Error> {
        let mut root = Objset::read_root(&zio, dataset_id, rootbp)?;
        if root.phys.endian != Endian::Little {
            let format = |source| Error::Format { objset: dataset_id, object: ObjectId::META_DNODE, source };
            root = Root::new(*rootbp, (*root.phys).clone().into_little().map_err(format)?);
        }
        let fresh = root.phys.meta_dnode.object_type == ObjectType::NONE;
        if fresh {
            let phys = ObjsetPhys { meta_dnode: meta_dnode(), ..(*root.phys).clone() };
            root = Root::new(*rootbp, phys);
        }
        let alloc = if fresh { Alloc::fresh(root.dnodes_per_block()) } else { Alloc::opened() };
        let phys = root.phys.clone();
        let live = Live::new(root, alloc);
        Ok(Arc::new(Objset::assemble(
            zio,
            dataset_id,
            Root { bp: *rootbp, phys, meta: Default::default() },
            Some(Box::new(live)),
        )))
    }

    /// A new object set of a type, with the flags of [`ObjsetPhys`]. The sync of the txg of `tx` writes it, even if it
    /// stays empty (OpenZFS: `dmu_objset_create_impl`).
    ///
    /// # Errors
    /// None now.
    pub fn create(
        zio: Arc<Zio>,
        dataset_id: ObjectId,
        os_type: ObjsetType,
        flags: u64,
        tx: &Tx,
    ) -> Result<Arc<Objset>, Error> {
        Ok(Objset::create_with(zio, dataset_id, os_type, meta_dnode(), flags, tx))
    }

    pub(crate) fn create_with(
        zio: Arc<Zio>,
        dataset_id: ObjectId,
        os_type: ObjsetType,
        meta_dnode: DnodePhys,
        flags: u64,
        tx: &Tx,
    ) -> Arc<Objset> {
        let phys = ObjsetPhys {
            meta_dnode,
            zil_header: ZilHeader::empty(),
            os_type,
            flags,
            portable_mac: [0; 32],
            local_mac: [0; 32],
            userused: None,
            groupused: None,
            projectused: None,
            endian: Endian::Little,
        };
        let _ = tx.begin_change();
        let root = Root::new(BlkPtr::HOLE, phys);
        let fixed = Root { bp: BlkPtr::HOLE, phys: root.phys.clone(), meta: Default::default() };
        let alloc = Alloc::fresh(root.dnodes_per_block());
        let live = Live::new(root, alloc);
        {
            let mut txg = live.txg(tx.txg()).lock();
            txg.root = true;
            txg.hold = tx.hold().cloned();
        }
        Arc::new(Objset::assemble(zio, dataset_id, fixed, Some(Box::new(live))))
    }

    /// Returns whether the set can be changed.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.live().is_some()
    }

    /// Returns whether a sync of `txg` has anything to write.
    #[must_use]
    pub fn is_dirty(&self, txg: Txg) -> bool {
        self.live().is_some_and(|live| !live.txg(txg).lock().is_clean())
    }

    pub(crate) fn writable(&self, object: ObjectId) -> Result<&Live, Error> {
        self.live().ok_or(Error::ReadOnly { objset: self.id(), object })
    }

    /// Creates an object, with a number of the set's choice (OpenZFS: `dmu_object_alloc_dnsize`).
    ///
    /// # Errors
    /// [`Error::Refused`] for an impossible shape; when a block of dnodes cannot be read.
    pub fn alloc_object(self: &Arc<Self>, tx: &Tx, new: &NewObject) -> Result<Object, Error> {
        let live = self.writable(ObjectId::META_DNODE)?;
        let dn = self.shape(ObjectId::NONE, new)?;
        let id = {
            let mut alloc = live.alloc.lock();
            let root = live.root();
            alloc.take(&self.meta_tree(&root), &root, dn.slots(), tx.txg())?
        };
        self.install(live, tx, id, dn, new.nlevels)
    }

    /// Creates object `id` (OpenZFS: `dmu_object_claim_dnsize`). A special object may be claimed as well.
    ///
    /// # Errors
    /// [`Error::Exists`] if the number is taken, or was freed in a txg that is not on disk yet; [`Error::Refused`] for an
    /// impossible shape.
    pub fn claim_object(self: &Arc<Self>, tx: &Tx, id: ObjectId, new: &NewObject) -> Result<Object, Error> {
        let live = self.writable(id)?;
        let dn = self.shape(id, new)?;
        if id == Special::MetaDnode.id() || (id >= ObjectId::END && !is_special(id)) {
            return Err(self.refused(id, "number of a new object", id.0));
        }
        if is_special(id) {
            if self.live_object(id).is_ok() {
                return Err(Error::Exists { objset: self.id(), object: id });
            }
        } else {
            let mut alloc = live.alloc.lock();
            let root = live.root();
            alloc.claim(&self.meta_tree(&root), &root, (id, dn.slots()), tx.txg())?;
        }
        self.install(live, tx, id, dn, new.nlevels)
    }

    fn install(
        self: &Arc<Self>,
        live: &Live,
        tx: &Tx,
        id: ObjectId,
        dn: DnodePhys,
        nlevels: u8,
    ) -> Result<Object, Error> {
        // nobody reads the bonus buffer of what is not on disk
        let (blkptr, bonus) = (dn.blkptr.clone(), Vec::new());
        let free = DnodePhys { object_type: ObjectType::NONE, blkptr, bonus, ..dn };
        let dnode = Arc::new(LiveDnode::new(id, Arc::new(free)));
        {
            let mut state = dnode.state.write();
            state.newest = Arc::new(dn);
            state.min_levels = nlevels.max(1);
        }
        tx.made(self.id(), id);
        live.insert(dnode.clone());
        if let Err(error) = self.change(tx, &dnode, |_| Ok(())) {
            // nothing of it will be written: its number is as free as it was
            live.remove(&dnode);
            live.alloc.lock().give_back(id);
            return Err(error);
        }
        Ok(Object::with_live(self.clone(), dnode))
    }

    /// The dnode of a new object (OpenZFS: `dnode_allocate`).
    fn shape(&self, id: ObjectId, new: &NewObject) -> Result<DnodePhys, Error> {
        let refused = |what, value| Err(self.refused(id, what, value));
        let slots = new.slots.max(1);
        if slots > MAX_SLOTS {
            return refused("slots of a dnode", slots as u64);
        }
        if new.object_type == ObjectType::NONE || !new.object_type.is_valid() {
            return refused("type of an object", new.object_type.0.into());
        }
        let block_size = new.block_size.max(512).next_multiple_of(512);
        if block_size > ondisk::SPA_MAXBLOCKSIZE {
            return refused("block size", new.block_size);
        }
        let room = slots * DNODE_SIZE - 64 - 128;
        if new.bonus_len > room || new.nblkptr > 3 {
            return refused("length of the bonus buffer", new.bonus_len as u64);
        }
        let nblkptr = match new.nblkptr {
            0 if new.bonus_type == ObjectType::SA => 1,
            0 => (1 + ((room - new.bonus_len) >> 7)).min(3),
            n => usize::from(n),
        };
        if new.bonus_len + (nblkptr - 1) * 128 > room {
            return refused("number of block pointers", nblkptr as u64);
        }
        let shift = if new.indirect_shift == 0 { INDIRECT_SHIFT } else { new.indirect_shift };
        Ok(DnodePhys {
            object_type: new.object_type,
            indblkshift: shift.clamp(12, INDIRECT_SHIFT),
            nlevels: 1,
            bonus_type: new.bonus_type,
            checksum: new.checksum,
            compress: new.compress,
            flags: DnodePhys::FLAG_USED_BYTES,
            datablkszsec: (block_size >> 9) as u16,
            extra_slots: (slots - 1) as u8,
            maxblkid: 0,
            used: 0,
            blkptr: vec![BlkPtr::HOLE; nblkptr],
            bonus: vec![0; new.bonus_len],
            spill: None,
            pad: [0; 35],
            endian: Endian::Little,
        })
    }

    /// Frees object `id` and all its blocks (OpenZFS: `dmu_object_free`). Its number can be reused once the free is on
    /// disk.
    ///
    /// # Errors
    /// [`Error::NoObject`].
    pub fn free_object(self: &Arc<Self>, tx: &Tx, id: ObjectId) -> Result<(), Error> {
        let live = self.writable(id)?;
        let object = self.live_object(id)?;
        let Some(dnode) = object.live() else { return Ok(()) };
        let (slots, forgotten) = self.change(tx, dnode, |state| {
            let slots = state.newest.slots();
            Object::charge_freed(tx, &state.synced, state.newest.maxblkid.saturating_add(1));
            let Some((dirty, _)) = state.dirty(tx.txg()) else { return Err(object.out_of_turn(tx)) };
            dirty.clear();
            dirty.spill = None;
            dirty.gone = true;
            let forgotten = std::mem::take(&mut dirty.bytes);
            state.reshape(tx.txg(), |dn| dn.object_type = ObjectType::NONE);
            Ok((slots, forgotten))
        })?;
        if let Some(hold) = tx.hold() {
            hold.undirtied(tx.txg(), forgotten);
        }
        if !is_special(id) {
            live.alloc.lock().free(id, slots, tx.txg());
        }
        Ok(())
    }

    /// Replaces the header of the intent log.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn set_zil_header(&self, tx: &Tx, header: ZilHeader) -> Result<(), Error> {
        let live = self.writable(ObjectId::META_DNODE)?;
        let _ = tx.begin_change();
        live.txg(tx.txg()).lock().zil = Some(header.clone());
        Arc::make_mut(&mut *live.newest.write()).zil_header = header;
        Ok(())
    }

    /// Sets the flags of the root block.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn set_flags(&self, tx: &Tx, flags: u64) -> Result<(), Error> {
        let live = self.writable(ObjectId::META_DNODE)?;
        let _ = tx.begin_change();
        live.txg(tx.txg()).lock().flags = Some(flags);
        Arc::make_mut(&mut *live.newest.write()).flags = flags;
        Ok(())
    }

    /// Drops objects from memory that are neither dirty nor in use.
    pub fn evict_clean(&self) {
        if let Some(live) = self.live() {
            live.evict();
        }
    }

    /// Notes that a caller who had an object in use has it no more: what is kept of objects that are not in use stays in proportion.
    pub fn release(&self, id: ObjectId) {
        if let Some(live) = self.live() {
            live.release(id);
        }
    }

    /// Object `id` of a writable set.
    pub(crate) fn live_object(self: &Arc<Self>, id: ObjectId) -> Result<Object, Error> {
        let live = self.writable(id)?;
        let missing = Error::NoObject { objset: self.id(), object: id };
        let dnode = loop {
            if let Some(dnode) = live.get(id) {
                break dnode;
            }
            let root = live.root();
            let phys = match Special::ALL.into_iter().find(|special| special.id() == id) {
                Some(which) => special_dnode(&root.phys, which).cloned(),
                None => self.dnode(&root, id)?,
            };
            let Some(phys) = phys else { return Err(missing) };
            let phys = phys.into_little().map_err(|source| Error::Format { objset: self.id(), object: id, source })?;
            if let Some(dnode) = live.admit(&root, LiveDnode::new(id, Arc::new(phys))) {
                break dnode;
            }
        };
        if dnode.state.read().is_freed() {
            return Err(missing);
        }
        Ok(Object::with_live(self.clone(), dnode))
    }

    /// As [`Objset::next_object`], over the objects on disk and those in memory only.
    pub(crate) fn next_live_object(&self, live: &Live, after: ObjectId) -> Result<Option<ObjectId>, Error> {
        let mut at = after;
        loop {
            let root = live.root();
            // pending first: an entry that a sync removes meanwhile is on disk by then
            let allocated = {
                let alloc = live.alloc.lock();
                let from = at.saturating_add(1);
                alloc.pending.range(from..).find(|(_, pending)| pending.allocated).map(|(id, _)| *id)
            };
            let on_disk = self.next_object_in(&root, at)?;
            let Some(next) = allocated.into_iter().chain(on_disk).min() else {
                return Ok(None);
            };
            let freed = live.alloc.lock().pending.get(&next).is_some_and(|pending| !pending.allocated);
            if !freed {
                return Ok(Some(next));
            }
            at = next;
        }
    }

    /// Changes a dnode in a txg, under its lock; adds it to the txg's list if this is its first change in the txg.
    pub(crate) fn change<R>(
        &self,
        tx: &Tx,
        dnode: &Arc<LiveDnode>,
        work: impl FnOnce(&mut super::dnode::State) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let live = self.writable(dnode.id)?;
        let open = dnode.shared.load(Ordering::Relaxed) || self.claim(tx, dnode.id).is_ok();
        if !open {
            // it was to be claimed before the first change
            return Err(self.refused(dnode.id, "txg of an object that another txg has", tx.txg().0));
        }
        let (result, fresh, bytes) = {
            let mut state = dnode.state.write();
            if state.is_freed() {
                return Err(Error::NoObject { objset: self.id(), object: dnode.id });
            }
            if !tx.begin_change() {
                return Err(self.refused(dnode.id, "change that was to fail, in txg", tx.txg().0));
            }
            let size = if tx.hold().is_some() { state.newest.size() as u64 } else { 0 };
            let Some((dirty, fresh)) = state.dirty(tx.txg()) else {
                return Err(self.refused(dnode.id, "txg of a change", tx.txg().0));
            };
            if fresh {
                dirty.bytes = size;
            }
            (work(&mut state), fresh, size)
        };
        if fresh {
            let mut txg = live.txg(tx.txg()).lock();
            txg.dnodes.insert(dnode.id, dnode.clone());
            if txg.hold.is_none() {
                txg.hold = tx.hold().cloned();
            }
            drop(txg);
            tx.dirtied(bytes);
        }
        result
    }

    pub(crate) fn refused(&self, object: ObjectId, what: &'static str, value: u64) -> Error {
        Error::Refused { objset: self.id(), object, what, value }
    }
}

/// True if the number is that of an object in the root block, other than the meta-dnode.
pub(crate) fn is_special(id: ObjectId) -> bool {
    id >= Special::ProjectUsed.id()
}

/// The meta-dnode of a new object set.
pub(crate) fn meta_dnode() -> DnodePhys {
    DnodePhys {
        object_type: ObjectType::DNODE,
        indblkshift: INDIRECT_SHIFT,
        nlevels: 1,
        bonus_type: ObjectType::NONE,
        checksum: 0,
        compress: 0,
        flags: DnodePhys::FLAG_USED_BYTES,
        datablkszsec: (DNODE_BLOCK_SIZE >> 9) as u16,
        extra_slots: 0,
        maxblkid: 0,
        used: 0,
        blkptr: vec![BlkPtr::HOLE; 3],
        bonus: Vec::new(),
        spill: None,
        pad: [0; 35],
        endian: Endian::Little,
    }
}

/// The initial number of levels of a meta-dnode, enough for all objects there can be; the MOS begins with one, since
/// every block it writes per txg counts (OpenZFS: `dmu_objset_create_impl_dnstats`).
pub(crate) fn meta_levels(objset: ObjectId, dn: &DnodePhys) -> u8 {
    if objset == ObjectId::MOS {
        return 1;
    }
    let per_block = u128::from(dn.datablksz() / DNODE_SIZE as u64);
    let mut objects = dn.blkptr.len() as u128 * per_block;
    let mut levels = 1;
    while objects < u128::from(ObjectId::END.0) && levels < 16 {
        objects <<= dn.fanout_shift().max(1);
        levels += 1;
    }
    levels
}
