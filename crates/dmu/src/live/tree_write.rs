//! New trees from old ones: how a sync rewrites the blocks of many objects at once.
//!
//! A [`Job`] takes one dnode from its state on disk to its new state. The jobs of a batch proceed together: blocks are
//! freed, trees gain levels, all new leaves are written, then all changed indirect blocks of level 1, and so on up. No
//! block of the old tree is changed. Indirect blocks with a change below them are kept decoded in [`Job::edits`], without
//! their trailing holes: most objects have few blocks, and an indirect block has room for a thousand pointers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use base::bytes::with_bits;
use base::{Endian, ObjectId, Txg, tasks};
use ondisk::{BLKPTR_SIZE, BlkPtr, DnodePhys, ObjectType, SECTOR_SHIFT};
use zio::{Bookmark, Buf, HeldWrites, IoClass, Payload, WriteCx, WriteReq, Zio};

use super::dnode::{Block, Placed};
use super::{SyncCx, WritePolicy};
use crate::Error;
use crate::tree::Tree;

/// Blocks of a level are written in batches of about this many bytes; the pool is notified after each batch of leaves.
const BATCH_BYTES: u64 = 64 << 20;

/// One dnode on its way to disk.
pub(crate) struct Job {
    pub(crate) object: ObjectId,
    /// The dnode on disk; of type NONE if it is not on disk.
    pub(crate) old: Arc<DnodePhys>,
    /// The new dnode.
    pub(crate) dn: DnodePhys,
    /// The least number of levels.
    pub(crate) min_levels: u8,
    /// Blocks freed.
    pub(crate) freed: Vec<Range<u64>>,
    /// Blocks written, and their fill counts.
    pub(crate) leaves: Vec<(u64, Block, u64)>,
    /// The leaves that are written already.
    pub(crate) placed: BTreeMap<u64, Placed>,
    /// The spill block, if written or removed.
    pub(crate) spill: Option<Option<Block>>,
    /// Changed indirect blocks, by level less one and number.
    edits: Vec<BTreeMap<u64, Edit>>,
}

/// An indirect block that changes.
struct Edit {
    orig: BlkPtr,
    /// The pointers up to the last that is not empty.
    pointers: Vec<BlkPtr>,
}

impl Edit {
    /// Pointer `n`, to be changed.
    fn pointer(&mut self, n: usize) -> Option<&mut BlkPtr> {
        if self.pointers.len() <= n {
            self.pointers.resize(n + 1, BlkPtr::HOLE);
        }
        self.pointers.get_mut(n)
    }

    /// The block of `size` bytes.
    fn encode(&self, size: usize) -> Vec<u8> {
        let mut raw = BlkPtr::encode_all(&self.pointers, Endian::Little);
        raw.resize(size, 0);
        raw
    }
}

/// Blocks born and killed, in order.
#[derive(Default)]
pub(crate) struct BlockLog(pub(crate) Vec<(BlockEvent, BlkPtr)>);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockEvent {
    Born,
    Killed,
}

/// The state shared by a batch of jobs.
pub(crate) struct Writer<'a> {
    pub(crate) zio: &'a Zio,
    pub(crate) objset: ObjectId,
    pub(crate) cx: &'a SyncCx<'a>,
    pub(crate) log: BlockLog,
    /// Small batches, to be written together once the root block is ready.
    pub(crate) held: HeldWrites,
}

/// The pointer that a written block belongs to.
#[derive(Clone, Copy)]
struct WrittenBlock {
    job: usize,
    level: u8,
    blkid: u64,
}

impl Job {
    pub(crate) fn new(object: ObjectId, old: Arc<DnodePhys>, dn: DnodePhys) -> Job {
        let (freed, leaves, placed) = (Vec::new(), Vec::new(), BTreeMap::new());
        Job { object, old, dn, min_levels: 1, freed, leaves, placed, spill: None, edits: Vec::new() }
    }

    fn tree<'a>(&'a self, cx: &Writer<'a>) -> Tree<'a> {
        Tree {
            zio: cx.zio,
            caches: cx.cx.policy.primary_cache,
            objset: cx.objset,
            object: self.object,
            dn: &self.dn,
            class: IoClass::SyncRead,
        }
    }

    fn fanout_shift(&self) -> u32 {
        self.dn.fanout_shift()
    }

    fn top(&self) -> u8 {
        self.dn.nlevels.saturating_sub(1)
    }

    /// The changed indirect block `blkid` of `level`, read and decoded on its first change.
    fn edit(&mut self, cx: &Writer<'_>, level: u8, blkid: u64) -> Result<&mut Edit, Error> {
        let bug = Error::Bug { objset: cx.objset, object: self.object, what: "data was changed as an indirect block" };
        let Some(slot) = usize::from(level).checked_sub(1) else { return Err(bug) };
        if self.edits.len() <= slot {
            self.edits.resize_with(slot + 1, BTreeMap::new);
        }
        if !self.edits.get(slot).is_some_and(|edits| edits.contains_key(&blkid)) {
            let orig = *self.pointer(cx, level, blkid)?;
            let pointers = match orig.is_hole() {
                true => Vec::new(),
                false => self.tree(cx).read_indirect(&orig, level, blkid)?.pointers(),
            };
            if let Some(edits) = self.edits.get_mut(slot) {
                edits.insert(blkid, Edit { orig, pointers });
            }
        }
        let found = self.edits.get_mut(slot).and_then(|edits| edits.get_mut(&blkid));
        found.ok_or(bug)
    }

    /// The pointer to block `blkid` of `level`, to be changed. The depth is bounded by the levels of a dnode.
    fn pointer(&mut self, cx: &Writer<'_>, level: u8, blkid: u64) -> Result<&mut BlkPtr, Error> {
        let (objset, object) = (cx.objset, self.object);
        let corrupt = Error::Corrupt { objset, object, what: "number of a block to be written", value: blkid };
        let found = if level >= self.top() {
            self.dn.blkptr.get_mut(usize::try_from(blkid).unwrap_or(usize::MAX))
        } else {
            let shift = self.fanout_shift();
            let index = blkid & ((1 << shift) - 1);
            self.edit(cx, level + 1, blkid >> shift)?.pointer(index as usize)
        };
        found.ok_or(corrupt)
    }

    /// Adds levels until the tree is tall enough (OpenZFS: `dnode_increase_indirection`).
    fn grow(&mut self, cx: &Writer<'_>) -> Result<(), Error> {
        let from = self.dn.nlevels;
        let mut levels = 1;
        let mut reach = self.dn.blkptr.len() as u128;
        while reach <= u128::from(self.dn.maxblkid) {
            reach <<= self.fanout_shift().max(1);
            levels += 1;
        }
        let levels = levels.max(self.min_levels).max(from);
        if levels == from {
            return Ok(());
        }
        let pointers = self.dn.blkptr.clone();
        self.dn.blkptr.fill(BlkPtr::HOLE);
        self.dn.nlevels = levels;
        if pointers.iter().any(|bp| *bp != BlkPtr::HOLE) {
            let edit = self.edit(cx, from, 0)?;
            edit.pointers = pointers;
        }
        Ok(())
    }

    /// Frees the blocks in `range` below a pointer. The depth is bounded by the levels of a dnode.
    fn punch(&mut self, cx: &mut Writer<'_>, level: u8, blkid: u64, range: &Range<u64>) -> Result<(), Error> {
        let shift = (u32::from(level) * self.fanout_shift()).min(63);
        let first = blkid << shift;
        let end = first.saturating_add(1 << shift);
        if range.start >= end || range.end <= first {
            return Ok(());
        }
        let bp = *self.pointer(cx, level, blkid)?;
        if bp.is_hole() {
            return Ok(());
        }
        if range.start <= first && (range.end >= end || range.end > self.old.maxblkid) {
            self.kill(cx, &bp, level, blkid)?;
            *self.pointer(cx, level, blkid)? = hole(&bp, cx.cx.policy, cx.cx.txg);
            return Ok(());
        }
        let fanout = 1u64 << self.fanout_shift();
        let below = shift - self.fanout_shift();
        let from = (range.start.max(first) >> below).max(blkid * fanout);
        let to = (range.end.min(end) - 1) >> below;
        for child in from..=to {
            self.punch(cx, level - 1, child, range)?;
        }
        Ok(())
    }

    /// Kills a block and all blocks below it that can be read. The depth is bounded by the levels of a dnode, since every
    /// pointer records its level.
    fn kill(&mut self, cx: &mut Writer<'_>, bp: &BlkPtr, level: u8, blkid: u64) -> Result<(), Error> {
        if bp.is_hole() {
            return Ok(());
        }
        if level > 0 {
            // if this failed the sync, every repeated sync would fail too
            match tasks::can_fail(|| self.tree(cx).read_indirect(bp, level, blkid)) {
                Err(_) => cx.cx.owner.stranded(bp),
                Ok(block) => {
                    for n in 0..block.len() {
                        let child = blkid.saturating_mul(block.len()).saturating_add(n);
                        self.kill(cx, &block.pointer(n), level - 1, child)?;
                    }
                }
            }
        }
        self.settle(cx, bp, &BlkPtr::HOLE);
        Ok(())
    }

    /// Records the block that replaces another, and adjusts the dnode's space used.
    fn settle(&mut self, cx: &mut Writer<'_>, old: &BlkPtr, new: &BlkPtr) {
        cx.log.replace(old, new);
        let (less, more) = (cx.cx.owner.dsize(old), cx.cx.owner.dsize(new));
        // the space used comes from disk, and may be wrong there: that harms nothing but the figure
        let used = self.dn.used;
        if used < less && used > 0 {
            let (dataset, object) = (cx.objset.0, self.object.0);
            tracing::error!(target: "zuse::space", dataset, object, used, less, "wrong counter: space used of a dnode");
        }
        self.dn.used = used.saturating_sub(less).saturating_add(more);
    }
}

impl BlockLog {
    /// Records that `new` replaces `old`.
    pub(crate) fn replace(&mut self, old: &BlkPtr, new: &BlkPtr) {
        // a deduplicated block that replaces itself gains one reference and gives one back, and so does one that is cloned over its clone: the
        // later clone has a later birth
        if same_place(old, new) && old.birth_logical() == new.birth_logical() && !new.is_dedup() {
            return;
        }
        if !old.is_hole() {
            self.0.push((BlockEvent::Killed, *old));
        }
        if !new.is_hole() {
            self.0.push((BlockEvent::Born, *new));
        }
    }
}

impl<'a> Writer<'a> {
    /// Frees all blocks of an object that is being freed.
    pub(crate) fn free(&mut self, job: &mut Job) -> Result<(), Error> {
        for (n, bp) in job.dn.blkptr.clone().iter().enumerate() {
            job.kill(self, bp, job.top(), n as u64)?;
        }
        if let Some(bp) = job.dn.spill.take() {
            job.settle(self, &bp, &BlkPtr::HOLE);
        }
        job.dn.object_type = ObjectType::NONE;
        Ok(())
    }

    /// Frees blocks that were written before this sync and are no longer wanted: born and killed at once.
    pub(crate) fn drop_placed(&mut self, blocks: impl Iterator<Item = BlkPtr>) {
        for bp in blocks {
            self.log.replace(&BlkPtr::HOLE, &bp);
            self.log.replace(&bp, &BlkPtr::HOLE);
        }
    }

    /// Writes the trees of all jobs. `written` is called with the bytes of leaves as they are written.
    pub(crate) fn run(&mut self, jobs: &mut [Job], written: &mut dyn FnMut(u64)) -> Result<(), Error> {
        for job in jobs.iter_mut().filter(|job| job.dn.object_type != ObjectType::NONE) {
            for range in std::mem::take(&mut job.freed) {
                for n in 0..job.dn.blkptr.len() as u64 {
                    let top = job.top();
                    job.punch(self, top, n, &range)?;
                }
            }
            job.grow(self)?;
        }
        self.leaves(jobs, written)?;
        // a change implies changes at every level up to the top, so no level is missing
        let top = jobs.iter().map(|job| job.edits.len()).max().unwrap_or(0);
        (1..=top).try_for_each(|level| self.indirect(jobs, level as u8))?;
        for job in jobs.iter() {
            let written = job.leaves.is_empty() && job.edits.iter().all(BTreeMap::is_empty);
            assert!(written, "blocks of object {} of dataset {} were not written", job.object, self.objset);
        }
        Ok(())
    }

    fn leaves(&mut self, jobs: &mut [Job], written: &mut dyn FnMut(u64)) -> Result<(), Error> {
        let (mut reqs, mut places, mut bytes) = (Vec::new(), Vec::new(), 0);
        for n in 0..jobs.len() {
            let Some(job) = jobs.get_mut(n) else { break };
            let spill = self.spill(job);
            let props = self.cx.policy.props(Some(&job.dn), 0, false);
            let leaves = std::mem::take(&mut job.leaves);
            let most = BATCH_BYTES.checked_div(job.dn.datablksz()).unwrap_or(0);
            let more = leaves.len().min(usize::try_from(most).unwrap_or(usize::MAX));
            reqs.reserve(more);
            places.reserve(more);
            for (blkid, block, fill) in leaves {
                let Some(job) = jobs.get_mut(n) else { break };
                let orig = *job.pointer(self, 0, blkid)?;
                let bm = Bookmark { objset: self.objset, object: job.object, level: 0, blkid };
                bytes += job.dn.datablksz();
                // a block found unchanged before the sync must still be the one on disk
                if let Some(placed) = job.placed.get(&blkid).copied().filter(|p| !p.same || p.bp == orig) {
                    job.settle(self, &orig, &placed.bp);
                    *job.pointer(self, 0, blkid)? = placed.bp;
                    continue;
                }
                reqs.push(WriteReq { bm, props: props.clone(), payload: block.into(), orig, fill });
                places.push(WrittenBlock { job: n, level: 0, blkid });
                if bytes >= BATCH_BYTES {
                    self.write(jobs, std::mem::take(&mut reqs), std::mem::take(&mut places))?;
                    written(std::mem::take(&mut bytes));
                }
            }
            if let Some(req) = spill {
                reqs.push(req);
                places.push(WrittenBlock { job: n, level: 0, blkid: Bookmark::SPILL_BLKID });
            }
        }
        self.write(jobs, reqs, places)?;
        written(bytes);
        Ok(())
    }

    /// The write of the spill block; a removed spill block is freed at once.
    fn spill(&mut self, job: &mut Job) -> Option<WriteReq> {
        let orig = job.old.spill.unwrap_or(BlkPtr::HOLE);
        job.dn.spill = job.old.spill;
        match job.spill.take() {
            Some(Some(block)) => {
                let bm = Bookmark { objset: self.objset, object: job.object, level: 0, blkid: Bookmark::SPILL_BLKID };
                let props = self.cx.policy.props(Some(&job.dn), 0, true);
                job.dn.flags |= DnodePhys::FLAG_SPILL_BLKPTR;
                Some(WriteReq { bm, props, payload: block.into(), orig, fill: 1 })
            }
            Some(None) => {
                job.settle(self, &orig, &BlkPtr::HOLE);
                job.dn.spill = None;
                job.dn.flags &= !DnodePhys::FLAG_SPILL_BLKPTR;
                None
            }
            None => None,
        }
    }

    /// Writes all changed indirect blocks of a level. One whose pointers are all holes becomes a hole itself.
    fn indirect(&mut self, jobs: &mut [Job], level: u8) -> Result<(), Error> {
        let (mut reqs, mut places, mut bytes) = (Vec::new(), Vec::new(), 0);
        for n in 0..jobs.len() {
            let Some(job) = jobs.get_mut(n) else { break };
            let Some(edits) = job.edits.get_mut(usize::from(level) - 1).map(std::mem::take) else { continue };
            let props = self.cx.policy.props(Some(&job.dn), level, false);
            let size = BLKPTR_SIZE << job.fanout_shift();
            for (blkid, edit) in edits {
                let Some(job) = jobs.get_mut(n) else { break };
                if edit.pointers.iter().all(BlkPtr::is_hole) {
                    job.settle(self, &edit.orig, &BlkPtr::HOLE);
                    let new =
                        if edit.orig.is_hole() { edit.orig } else { hole(&edit.orig, self.cx.policy, self.cx.txg) };
                    *job.pointer(self, level, blkid)? = new;
                    continue;
                }
                let fill = edit.pointers.iter().filter(|bp| !bp.is_hole()).map(BlkPtr::fill).sum();
                let bm = Bookmark { objset: self.objset, object: job.object, level, blkid };
                let payload = Payload::Logical(Buf::from(edit.encode(size)));
                reqs.push(WriteReq { bm, props: props.clone(), payload, orig: edit.orig, fill });
                places.push(WrittenBlock { job: n, level, blkid });
                bytes += size as u64;
                if bytes >= BATCH_BYTES {
                    self.write(jobs, std::mem::take(&mut reqs), std::mem::take(&mut places))?;
                    bytes = 0;
                }
            }
        }
        self.write(jobs, reqs, places)
    }

    fn write(&mut self, jobs: &mut [Job], reqs: Vec<WriteReq>, places: Vec<WrittenBlock>) -> Result<(), Error> {
        if reqs.is_empty() {
            return Ok(());
        }
        let origs: Vec<BlkPtr> = reqs.iter().map(|req| req.orig).collect();
        let bps = self.zio.write_or_hold(&self.write_cx(), reqs, &mut self.held)?;
        // a block without a pointer to it would be lost
        assert!(bps.len() == origs.len(), "{} blocks were written for {}", bps.len(), origs.len());
        for ((place, orig), bp) in places.into_iter().zip(origs).zip(bps) {
            let Some(job) = jobs.get_mut(place.job) else { panic!("job {} has written a block", place.job) };
            job.settle(self, &orig, &bp);
            if place.blkid == Bookmark::SPILL_BLKID {
                job.dn.spill = Some(bp);
            } else {
                *job.pointer(self, place.level, place.blkid)? = bp;
            }
        }
        Ok(())
    }

    pub(crate) fn write_cx(&self) -> WriteCx {
        WriteCx { txg: self.cx.txg, pass: self.cx.pass }
    }
}

/// True if a block was not written at all, or was overwritten in place.
fn same_place(old: &BlkPtr, new: &BlkPtr) -> bool {
    if old == new {
        return true;
    }
    let blocks = !(old.is_hole() || new.is_hole() || old.is_embedded() || new.is_embedded());
    blocks && old.dvas().eq(new.dvas()) && old.birth_physical() == new.birth_physical()
}

/// The hole that replaces `bp` (OpenZFS: `free_blocks`): with feature `hole_birth` it records its birth txg.
fn hole(bp: &BlkPtr, policy: &WritePolicy, txg: Txg) -> BlkPtr {
    let mut hole = BlkPtr::HOLE;
    if policy.hole_birth {
        let sectors = (bp.lsize() >> SECTOR_SHIFT).saturating_sub(1);
        let fields = [(0, 16, sectors), (48, 8, bp.object_type().0.into()), (56, 5, bp.level().into())];
        for (low, width, value) in fields {
            hole.words[6] = with_bits(hole.words[6], low, width, value);
        }
        hole.words[10] = txg.0;
    }
    hole
}
