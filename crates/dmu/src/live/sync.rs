//! Syncs: writing the changes of a txg to disk.
//!
//! The changes of the txg are frozen first ([`State::syncing`](super::dnode::State)): a writer that changes the set
//! meanwhile, even in the same txg, adds a layer above. Then the trees of all objects are written
//! ([`tree_write`](super::tree_write)), the blocks of dnodes, the tree over these, the accounting objects, the root
//! block. Only when all of it is written do the dnodes in memory switch to their new trees and is the owner notified of
//! blocks born and killed. After an error nothing has changed but the free space of the pool: the frozen layers are put
//! back.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Endian, ObjectId};
use codec::Compress;
use ondisk::{BlkPtr, DNODE_SIZE, DnodePhys, ObjectType, ObjsetPhys, byteswap};
use zio::{Bookmark, Buf, CryptParams, HeldWrites, Payload, WriteCx, WriteReq};

use super::dnode::{Block, Dirty, LiveDnode, slot_of};
use super::objset::{is_special, meta_levels};
use super::state::{Live, TxgState};
use super::tree_write::{BlockEvent, BlockLog, Job, Writer};
use super::{SyncCx, TxHold, accounting, raw};
use crate::objset::{Root, slots};
use crate::tree::{Child, Interest, LevelCache, Tree};
use crate::{Error, Objset, Special};

/// A dnode whose changes are being written.
pub(crate) struct Frozen {
    dnode: Arc<LiveDnode>,
    pub(crate) dirty: Arc<Dirty>,
    pub(crate) old: Arc<DnodePhys>,
    min_levels: u8,
    /// The new dnode.
    pub(crate) new: Arc<DnodePhys>,
}

/// Returns dirty bytes to the pool as they are written, and the rest at the end.
struct DirtyCredit<'a> {
    cx: &'a SyncCx<'a>,
    hold: Option<Arc<dyn TxHold>>,
    left: u64,
}

impl DirtyCredit<'_> {
    fn give(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left);
        self.left -= bytes;
        if let Some(hold) = self.hold.as_ref().filter(|_| bytes > 0) {
            hold.undirtied(self.cx.txg, bytes);
        }
    }

    /// After an error: marks all `bytes` dirty again.
    fn take_back(&mut self, bytes: u64) {
        if let Some(hold) = self.hold.as_ref().filter(|_| bytes > self.left) {
            hold.dirtied(self.cx.txg, bytes - self.left);
        }
    }
}

impl Objset {
    /// Writes the changes of `cx.txg` and returns the new root pointer, or the old one if nothing is dirty. May be called
    /// again in a txg: it then writes the changes made since.
    ///
    /// # Errors
    /// When blocks cannot be read or written. The changes then stay dirty, and the call can be repeated.
    pub fn sync(self: &Arc<Self>, cx: &SyncCx<'_>) -> Result<BlkPtr, Error> {
        let live = self.writable(ObjectId::META_DNODE)?;
        let _only = live.syncing.lock();
        let raw = raw::unaccounted(cx);
        let cx = if live.is_raw() { &raw } else { cx };
        let mut txg = std::mem::take(&mut *live.txg(cx.txg).lock());
        if txg.is_clean() {
            return Ok(live.rootbp());
        }
        let mut frozen = {
            let _placed = live.placing(cx.txg).write();
            freeze(cx, &mut txg)
        };
        let mut log = BlockLog::default();
        match self.sync_frozen(live, cx, &mut txg, &mut frozen, &mut log) {
            Ok(root) => {
                let bp = root.bp;
                if frozen.iter().any(|one| one.new.object_type != ObjectType::NONE && one.new.slots() > 1) {
                    cx.owner.large_dnode();
                }
                commit(live, cx, root, &frozen);
                frozen.iter().for_each(|one| cx.owner.changed(one.dnode.id));
                for (event, bp) in log.0 {
                    match event {
                        BlockEvent::Born => cx.owner.born(&bp),
                        BlockEvent::Killed => cx.owner.killed(&bp),
                    }
                }
                Ok(bp)
            }
            Err(err) => {
                unfreeze(live, cx, txg, frozen);
                Err(err)
            }
        }
    }

    fn sync_frozen(
        self: &Arc<Self>,
        live: &Live,
        cx: &SyncCx<'_>,
        txg: &mut TxgState,
        frozen: &mut Vec<Frozen>,
        log: &mut BlockLog,
    ) -> Result<Root, Error> {
        let root = live.root();
        let mut phys = (*root.phys).clone();
        let left = frozen.iter().map(|frozen| frozen.dirty.bytes).sum();
        let mut credit = DirtyCredit { cx, hold: txg.hold.clone(), left };
        let mut writer =
            Writer { zio: self.zio(), objset: self.id(), cx, log: std::mem::take(log), held: HeldWrites::default() };
        let only_log = frozen.is_empty() && txg.flags.is_none() && !root.bp.is_hole();
        let result = (|| {
            if only_log {
                return self.write_root(live, &mut writer, txg, &root, phys, true);
            }
            write_objects(&mut writer, frozen, &mut |bytes| credit.give(bytes))?;
            phys.meta_dnode = self.write_dnodes(live, &mut writer, &root, frozen, txg)?;
            self.account(live, cx, txg, frozen)?;
            self.write_special(&mut writer, frozen, &mut phys)?;
            self.write_root(live, &mut writer, txg, &root, phys, false)
        })();
        *log = writer.log;
        // none is left, unless the sync failed
        self.zio().drop_held(&WriteCx { txg: cx.txg, pass: cx.pass }, writer.held);
        match result {
            Ok(root) => {
                credit.give(u64::MAX);
                Ok(root)
            }
            Err(err) => {
                credit.take_back(left);
                Err(err)
            }
        }
    }

    /// Stores the new dnodes in their blocks and writes the meta-dnode's tree.
    fn write_dnodes(
        &self,
        live: &Live,
        writer: &mut Writer<'_>,
        root: &Root,
        frozen: &[Frozen],
        txg: &TxgState,
    ) -> Result<DnodePhys, Error> {
        let (tree, per_block) = (self.meta_tree(root), root.dnodes_per_block());
        if per_block == 0 {
            return Err(tree.corrupt("size of blocks of dnodes", tree.dn.datablksz()));
        }
        let old = Arc::new(root.phys.meta_dnode.clone());
        let mut job = Job::new(ObjectId::META_DNODE, old.clone(), (*old).clone());
        (job.dn.used, job.dn.flags) = (old.used_bytes(), old.flags | DnodePhys::FLAG_USED_BYTES);
        job.min_levels = if root.bp.is_hole() { meta_levels(self.id(), &old) } else { 1 };
        let raw = *live.raw.read();
        if let Some(raw) = &raw {
            raw.shape(&mut job.dn);
            job.min_levels = raw.nlevels;
        }
        let mut blocks: BTreeMap<u64, Vec<&Frozen>> = BTreeMap::new();
        for one in frozen.iter().filter(|one| !is_special(one.dnode.id)) {
            blocks.entry(one.dnode.id.0 / per_block).or_default().push(one);
        }
        let mut cache = LevelCache::default();
        for (blkid, members) in blocks {
            let there = cache.pointer(&tree, 0, blkid)?;
            if raw.is_some() {
                let (block, fill) = self.raw_dnodes(&tree, blkid, &there, &members, txg)?;
                job.dn.maxblkid = job.dn.maxblkid.max(blkid);
                job.leaves.push((blkid, block, fill));
                continue;
            }
            let mut block = match there {
                Child::Block(bp) => {
                    let mut block = tree.read_data(&bp, blkid, Interest::Whole)?.into_vec();
                    byteswap::to_little(ObjectType::DNODE, bp.endian(), &mut block).map_err(|source| {
                        Error::Format { objset: self.id(), object: Special::MetaDnode.id(), source }
                    })?;
                    block
                }
                Child::Hole { .. } | Child::End => vec![0; usize::try_from(old.datablksz()).unwrap_or(0)],
            };
            for one in members {
                put_dnode(&mut block, one.dnode.id.0 % per_block, &one.old, &one.new);
            }
            let fill = slots(&block).count() as u64;
            job.dn.maxblkid = job.dn.maxblkid.max(blkid);
            job.leaves.push((blkid, Block::Data(Buf::from(block)), fill));
        }
        let mut jobs = [job];
        writer.run(&mut jobs, &mut |_| ())?;
        let [job] = jobs;
        Ok(job.dn)
    }

    /// A block of dnodes of a set that is received raw, and the number of dnodes in it.
    fn raw_dnodes(
        &self,
        tree: &Tree<'_>,
        blkid: u64,
        there: &Child,
        members: &[&Frozen],
        txg: &TxgState,
    ) -> Result<(Block, u64), Error> {
        let bp = if let Child::Block(bp) = there { Some(bp) } else { None };
        let mut block = match bp {
            Some(bp) => self.read_raw_dnodes(tree, bp, blkid)?,
            None => vec![0; usize::try_from(tree.dn.datablksz()).unwrap_or(0)],
        };
        let (crypt, order) = self.raw_block(txg.dnode_crypt.get(&blkid), bp);
        if bp.is_some_and(|bp| bp.endian() != order) {
            // the stream brings all of it anew
            block.fill(0);
        }
        for one in members {
            let place = slot_in(&mut block, one.dnode.id.0 % (tree.dn.datablksz() / DNODE_SIZE as u64));
            let gone = one.new.object_type == ObjectType::NONE;
            let raw = if gone { Vec::new() } else { raw::encode_raw(one, place, order) };
            put_slots(place, &one.old, &raw);
        }
        let fill = slots(&block).count() as u64;
        Ok((raw::stored(block, (crypt, order)), fill))
    }

    /// Sums the space that the objects of each user, group and project use, before and after.
    fn account(
        self: &Arc<Self>,
        live: &Live,
        cx: &SyncCx<'_>,
        txg: &mut TxgState,
        frozen: &mut Vec<Frozen>,
    ) -> Result<(), Error> {
        let Some(used) = cx.used else { return Ok(()) };
        let mut deltas = accounting::Deltas::new(used);
        for one in frozen.iter().filter(|one| !is_special(one.dnode.id)) {
            deltas.count(&one.old, &one.new);
        }
        deltas.apply(self, cx.txg)?;
        let mut more = std::mem::take(&mut *live.txg(cx.txg).lock());
        more.dnodes.retain(|id, dnode| {
            // other objects that changed meanwhile are left to the next call
            let special = is_special(*id);
            if !special {
                live.txg(cx.txg).lock().dnodes.insert(*id, dnode.clone());
            }
            special
        });
        frozen.retain(|one| !more.dnodes.contains_key(&one.dnode.id));
        frozen.extend(freeze(cx, &mut more));
        let mut again = live.txg(cx.txg).lock();
        again.zil = again.zil.take().or(more.zil);
        again.flags = again.flags.or(more.flags);
        again.root |= more.root;
        txg.hold = txg.hold.take().or(more.hold);
        Ok(())
    }

    /// Writes the objects whose dnodes are in the root block.
    fn write_special(
        &self,
        writer: &mut Writer<'_>,
        frozen: &mut [Frozen],
        phys: &mut ObjsetPhys,
    ) -> Result<(), Error> {
        let special = frozen.iter_mut().filter(|one| is_special(one.dnode.id));
        let mut special: Vec<&mut Frozen> = special.collect();
        write_trees(writer, &mut special, &mut |_| ())?;
        for one in special {
            let dn = (one.new.object_type != ObjectType::NONE).then(|| (*one.new).clone());
            match one.dnode.id {
                id if id == Special::UserUsed.id() => phys.userused = dn,
                id if id == Special::GroupUsed.id() => phys.groupused = dn,
                _ => phys.projectused = dn,
            }
        }
        Ok(())
    }

    /// Writes the root block. Its MACs do not cover the header of the intent log: if only that changes (`same_macs`),
    /// they are kept, and no key is needed.
    fn write_root(
        &self,
        live: &Live,
        writer: &mut Writer<'_>,
        txg: &TxgState,
        root: &Root,
        mut phys: ObjsetPhys,
        same_macs: bool,
    ) -> Result<Root, Error> {
        {
            let newest = live.newest.read();
            phys.zil_header = txg.zil.clone().unwrap_or(phys.zil_header);
            phys.flags = txg.flags.unwrap_or(phys.flags);
            phys.os_type = newest.os_type;
        }
        let raw = *live.raw.read();
        if let Some(raw) = &raw {
            raw.finish(&mut phys);
        }
        phys.endian = Endian::Little;
        let needed = match (&phys.userused, &phys.groupused, &phys.projectused) {
            (_, _, Some(_)) => 4096,
            (None, None, None) => 1024,
            _ => 2048,
        };
        let size = if root.bp.is_hole() { 4096 } else { root.bp.lsize().max(needed) };
        let data = phys.encode(usize::try_from(size).unwrap_or(4096));
        let fill = phys.meta_dnode.blkptr.iter().filter(|bp| !bp.is_hole()).map(BlkPtr::fill).sum();
        let props = writer.cx.policy.props(None, 0, false);
        let bm = Bookmark::root(self.id());
        let payload = if (same_macs || raw.is_some()) && writer.cx.policy.encrypt {
            let (lsize, compress, byteorder) = (data.len() as u64, Compress::Off, Endian::Little);
            let crypt = Some(CryptParams { salt: 0, iv: [0; 12], mac: [0; 16] });
            Payload::Stored { bytes: Buf::from(data), lsize, compress, crypt, byteorder }
        } else {
            Payload::Logical(Buf::from(data))
        };
        let req = WriteReq { bm, props, payload, orig: root.bp, fill };
        let write_cx = writer.write_cx();
        let bps = self.zio().write_or_hold(&write_cx, vec![req], &mut writer.held)?;
        let bp = bps.first().copied().ok_or_else(|| self.refused(ObjectId::META_DNODE, "number of root blocks", 0))?;
        let held = std::mem::take(&mut writer.held);
        if writer.cx.late {
            self.zio().write_late(&write_cx, held)?
        } else {
            self.zio().write_held(&write_cx, held)?
        }
        writer.log.replace(&root.bp, &bp);
        // MACs are computed by the write pipeline
        if writer.cx.policy.encrypt && raw.is_none() {
            return Objset::read_root(self.zio(), self.id(), &bp);
        }
        Ok(Root::new(bp, phys))
    }
}

/// Writes the trees of all objects that are not special.
fn write_objects(writer: &mut Writer<'_>, frozen: &mut [Frozen], written: &mut dyn FnMut(u64)) -> Result<(), Error> {
    let mut objects: Vec<&mut Frozen> = frozen.iter_mut().filter(|one| !is_special(one.dnode.id)).collect();
    write_trees(writer, &mut objects, written)
}

fn write_trees(writer: &mut Writer<'_>, frozen: &mut [&mut Frozen], written: &mut dyn FnMut(u64)) -> Result<(), Error> {
    let mut jobs = Vec::with_capacity(frozen.len());
    for one in frozen.iter() {
        let mut job = one.job(writer.cx);
        writer.drop_placed(one.unwanted());
        if one.goes() {
            writer.free(&mut job)?;
        }
        jobs.push(job);
    }
    writer.run(&mut jobs, written)?;
    for (one, job) in frozen.iter_mut().zip(jobs) {
        one.new = Arc::new(job.dn);
    }
    Ok(())
}

impl Frozen {
    /// True if the object no longer exists after this txg.
    fn goes(&self) -> bool {
        self.dirty.gone || self.dirty.head.object_type == ObjectType::NONE
    }

    /// Blocks written before the sync that are no longer wanted.
    fn unwanted(&self) -> impl Iterator<Item = BlkPtr> {
        let placed = self.dirty.placed.values().filter(|placed| self.goes() && !placed.same).map(|placed| placed.bp);
        self.dirty.dropped.iter().copied().chain(placed)
    }

    fn job(&self, cx: &SyncCx<'_>) -> Job {
        let on_disk = self.old.object_type != ObjectType::NONE;
        if self.goes() {
            let mut dn = (*self.old).clone();
            if !on_disk {
                dn.blkptr.clear();
                dn.spill = None;
            }
            return Job::new(self.dnode.id, self.old.clone(), dn);
        }
        let mut dn = (*self.dirty.head).clone();
        if on_disk {
            dn.blkptr.clone_from(&self.old.blkptr);
            (dn.nlevels, dn.used) = (self.old.nlevels, self.old.used_bytes());
            dn.pad = self.old.pad;
        } else {
            dn.blkptr.fill(BlkPtr::HOLE);
            (dn.nlevels, dn.used) = (1, 0);
        }
        let kept = self.old.flags & !DnodePhys::FLAG_SPILL_BLKPTR;
        let spill = if on_disk { self.old.flags & DnodePhys::FLAG_SPILL_BLKPTR } else { 0 };
        dn.flags = kept | spill | DnodePhys::FLAG_USED_BYTES;
        if let Some(used) = cx.used.filter(|_| !is_special(self.dnode.id)) {
            dn.flags |= DnodePhys::FLAG_USERUSED_ACCOUNTED;
            if used.counts_objects() {
                dn.flags |= DnodePhys::FLAG_USEROBJUSED_ACCOUNTED;
            }
        }
        let mut old = self.old.clone();
        if !on_disk && old.spill.is_some() {
            Arc::make_mut(&mut old).spill = None;
        }
        let mut job = Job::new(self.dnode.id, old, dn);
        job.min_levels = self.min_levels;
        if on_disk {
            job.freed = self.dirty.freed.iter().collect();
        }
        let fill = |(blkid, block): (&u64, &Block)| (*blkid, block.clone(), 1);
        job.leaves = self.dirty.blocks.iter().map(fill).collect();
        job.placed.clone_from(&self.dirty.placed);
        job.spill.clone_from(&self.dirty.spill);
        job
    }
}

/// Freezes the changes of the txg: later changes go to a new layer.
fn freeze(cx: &SyncCx<'_>, txg: &mut TxgState) -> Vec<Frozen> {
    let mut frozen = Vec::with_capacity(txg.dnodes.len());
    for dnode in std::mem::take(&mut txg.dnodes).into_values() {
        let one = {
            let mut state = dnode.state.write();
            let Some(dirty) = state.slots.get_mut(slot_of(cx.txg)).and_then(Option::take) else { continue };
            if dirty.txg != cx.txg {
                // nothing is lost by it, but nobody may have counted on that
                let (object, changed, txg) = (dnode.id.0, dirty.txg.0, cx.txg.0);
                tracing::error!(target: "zuse::txg", object, changed, txg, "changes were not written in their txg");
            }
            let dirty = Arc::new(match state.syncing.take() {
                Some(before) => *Arc::unwrap_or_clone(before).under(Some(dirty)),
                None => *dirty,
            });
            state.syncing = Some(dirty.clone());
            (dirty, state.synced.clone(), state.min_levels)
        };
        let (dirty, old, min_levels) = one;
        frozen.push(Frozen { dnode, dirty, new: old.clone(), old, min_levels });
    }
    frozen
}

/// After an error: puts the changes back.
fn unfreeze(live: &Live, cx: &SyncCx<'_>, before: TxgState, frozen: Vec<Frozen>) {
    let mut txg = live.txg(cx.txg).lock();
    txg.zil = txg.zil.take().or(before.zil);
    for (blkid, crypt) in before.dnode_crypt {
        txg.dnode_crypt.entry(blkid).or_insert(crypt);
    }
    txg.flags = txg.flags.or(before.flags);
    txg.root |= before.root;
    txg.hold = txg.hold.take().or(before.hold);
    for one in frozen {
        drop(one.dirty);
        {
            let mut state = one.dnode.state.write();
            let Some(dirty) = state.syncing.take().map(Arc::unwrap_or_clone) else { continue };
            if let Some(slot) = state.slots.get_mut(slot_of(cx.txg)) {
                *slot = Some(dirty.under(slot.take()));
            }
        }
        txg.dnodes.insert(one.dnode.id, one.dnode);
    }
}

/// After the root block is written: marks the frozen changes as on disk.
fn commit(live: &Live, cx: &SyncCx<'_>, root: Root, frozen: &[Frozen]) {
    for one in frozen {
        let mut state = one.dnode.state.write();
        state.syncing = None;
        state.rebase(one.new.clone());
    }
    let phys = root.phys.clone();
    {
        let mut newest = live.newest.write();
        let newest = Arc::make_mut(&mut *newest);
        newest.meta_dnode = phys.meta_dnode.clone();
        newest.userused.clone_from(&phys.userused);
        newest.groupused.clone_from(&phys.groupused);
        newest.projectused.clone_from(&phys.projectused);
        (newest.portable_mac, newest.local_mac) = (phys.portable_mac, phys.local_mac);
    }
    *live.root.write() = Arc::new(root);
    live.alloc.lock().synced(frozen.iter().map(|one| one.dnode.id), cx.txg);
    for one in frozen.iter().filter(|one| one.new.object_type == ObjectType::NONE) {
        live.remove(&one.dnode);
    }
}

/// Stores a dnode in its slots of a block; zeros if it is freed.
fn put_dnode(block: &mut [u8], slot: u64, old: &DnodePhys, new: &DnodePhys) {
    let place = slot_in(block, slot);
    let (bonus, room) = (new.bonus.len(), new.max_bonus(new.spill.is_some()));
    assert!(
        new.object_type == ObjectType::NONE || bonus <= room,
        "a bonus buffer of {bonus} bytes has room for {room}"
    );
    let raw = if new.object_type == ObjectType::NONE { Vec::new() } else { new.encode() };
    put_slots(place, old, &raw);
}

/// The slot of a dnode, and what follows it in its block.
fn slot_in(block: &mut [u8], slot: u64) -> &mut [u8] {
    let (at, len) = (usize::try_from(slot).unwrap_or(usize::MAX).saturating_mul(DNODE_SIZE), block.len());
    assert!(at < len, "slot {slot} is not in a block of dnodes of {len} bytes");
    block.get_mut(at..).unwrap_or_default()
}

/// Stores an encoded dnode where its first slot begins; zeros if it is freed.
fn put_slots(place: &mut [u8], old: &DnodePhys, raw: &[u8]) {
    if raw.is_empty() {
        let on_disk = old.object_type != ObjectType::NONE;
        place.iter_mut().take(if on_disk { old.size() } else { 0 }).for_each(|byte| *byte = 0);
        return;
    }
    assert!(raw.len() <= place.len(), "a dnode of {} bytes has {} in its block", raw.len(), place.len());
    place.iter_mut().zip(raw).for_each(|(to, from)| *to = *from);
}
