//! Traversal of the blocks of a dataset that are newer than a txg, in stream order (OpenZFS: `traverse_dataset_resume`,
//! `send_cb`).
//!
//! Indirect blocks and dnode blocks bypass the cache; those below one parent are read several at a time. A hole of any level is
//! one range. Holes without a birth txg are visited too: the object number may have been reused, and then it is unknown since
//! when they are holes (OpenZFS: `send_holes_without_birth_time`). After a redacted send the blocks that it omitted are sent,
//! however old they are (OpenZFS: `PREVIOUSLY_REDACTED`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ObjectId, Txg, pump};
use dmu::Objset;
use ondisk::dsl::RedactEntry;
use ondisk::{BLKPTR_SIZE, BlkPtr, DNODE_SIZE, DnodePhys, ObjectType};
use zio::{Bookmark, Buf, Zio};

use super::Error;

/// Dnodes per block in the units of streams (OpenZFS: `DNODES_PER_BLOCK`).
pub(super) const DNODES_PER_BLOCK: u64 = 32;
/// The `length` of a hole that reaches to the end of its object (OpenZFS: `DMU_OBJECT_END`).
pub(super) const OBJECT_END: u64 = u64::MAX;

/// A piece of a dataset.
#[derive(Debug)]
pub(super) enum Range {
    /// A dnode block, whose objects follow.
    Dnodes { bp: BlkPtr, first: ObjectId, slots: u64 },
    /// An object; `bonus` is the part of its bonus buffer that the stream carries.
    Object { object: ObjectId, dnode: Box<DnodePhys>, bonus: Vec<u8>, swapped: bool },
    /// A range of free object numbers.
    NoObjects { first: ObjectId, count: u64 },
    /// A block of data.
    Data { object: ObjectId, offset: u64, block_size: u64, object_type: ObjectType, bp: BlkPtr },
    /// The spill block of an object.
    Spill { object: ObjectId, bp: BlkPtr },
    /// A hole; `length` may be [`OBJECT_END`].
    Hole { object: ObjectId, offset: u64, length: u64 },
    /// A range that a redacted dataset does not hold.
    Redacted { object: ObjectId, offset: u64, length: u64 },
}

/// The position at which an interrupted stream is resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResumeAt {
    /// The object.
    pub object: ObjectId,
    /// The byte in it.
    pub offset: u64,
}

/// A function that accepts the ranges; an error from it ends the traversal.
pub(super) type Sink<'a> = &'a mut dyn FnMut(Range) -> Result<(), Error>;

/// A traversal of one dataset.
pub(super) struct Traversal<'a> {
    pub(super) objset: &'a Arc<Objset>,
    /// Blocks born after this txg are visited.
    pub(super) from: Txg,
    /// Older blocks that are also visited, ascending.
    pub(super) redacted: &'a [RedactEntry],
    pub(super) resume: ResumeAt,
    /// True if the stream carries encrypted blocks as they are.
    pub(super) raw: bool,
    /// True if the dataset is encrypted: an unencrypted block in it is forged.
    pub(super) encrypted: bool,
    /// The number of further indirect or dnode blocks that may exist.
    pub(super) left: AtomicU64,
}

/// Returns the number of blocks that the devices have space for: a tree with more must contain a cycle.
pub(super) fn most_blocks(zio: &Zio) -> u64 {
    let tree = zio.tree();
    let room = tree.tops().iter().map(|top| top.config().asize);
    (room.fold(0, u64::saturating_add) >> ondisk::DNODE_SHIFT).max(1 << 20)
}

/// The object whose tree is visited.
struct Of<'a> {
    object: ObjectId,
    dnode: &'a DnodePhys,
}

impl Traversal<'_> {
    pub(super) fn run(&self, sink: Sink<'_>) -> Result<(), Error> {
        let phys = self.objset.phys();
        self.tree(&Of { object: ObjectId::META_DNODE, dnode: &phys.meta_dnode }, sink)
    }

    fn zio(&self) -> &Zio {
        self.objset.zio()
    }

    fn tree(&self, of: &Of<'_>, sink: Sink<'_>) -> Result<(), Error> {
        let top = of.dnode.nlevels.saturating_sub(1);
        self.siblings(of, &of.dnode.blkptr, top, 0, sink)?;
        match of.dnode.spill {
            Some(bp) if bp.birth_logical() > self.from && !bp.is_hole() => {
                self.check(of, &bp)?;
                check_spill(of.object, &bp)?;
                sink(Range::Spill { object: of.object, bp })
            }
            _ => Ok(()),
        }
    }

    /// Visits adjacent pointers of one level; `first` is the block number of the first one.
    fn siblings(&self, of: &Of<'_>, pointers: &[BlkPtr], level: u8, first: u64, sink: Sink<'_>) -> Result<(), Error> {
        let is_parent = level > 0 || of.object == ObjectId::META_DNODE;
        let at_once = self.read_ahead(pointers);
        for (n, some) in pointers.chunks(at_once).enumerate() {
            let first = first.saturating_add((n * at_once) as u64);
            let mut below: Vec<Option<Result<Buf, zio::Error>>> = Vec::new();
            if is_parent {
                let wanted = some.iter().enumerate().map(|(n, bp)| (first.saturating_add(n as u64), bp)).collect();
                below = pump::all(wanted, |(blkid, bp)| self.read_parent(of, bp, level, *blkid));
            }
            let mut below = below.into_iter();
            for (n, bp) in some.iter().enumerate() {
                let blkid = first.saturating_add(n as u64);
                let block = below.next().flatten();
                self.block(of, bp, level, blkid, block, sink)?;
            }
        }
        Ok(())
    }

    /// Returns how many of these indirect or dnode blocks are read at once.
    fn read_ahead(&self, pointers: &[BlkPtr]) -> usize {
        let largest = pointers.iter().map(BlkPtr::lsize).max().unwrap_or(0).max(1);
        usize::try_from(base::tunable::ZFS_SEND_NO_PREFETCH_QUEUE_LENGTH.get() / largest).unwrap_or(usize::MAX).max(1)
    }

    /// Reads an indirect or dnode block, if it has to be visited.
    fn read_parent(&self, of: &Of<'_>, bp: &BlkPtr, level: u8, blkid: u64) -> Option<Result<Buf, zio::Error>> {
        let old = bp.birth_logical() <= self.from && !self.was_redacted(of, level, blkid);
        if bp.is_hole() || bp.is_redacted() || old || self.is_done(of, level, blkid) {
            return None;
        }
        let bm = self.bookmark(of, level, blkid);
        // without a key only the bonus buffers are unreadable
        Some(if self.raw { self.zio().read_noauth_uncached(bp, &bm) } else { self.zio().read_uncached(bp, &bm) })
    }

    fn bookmark(&self, of: &Of<'_>, level: u8, blkid: u64) -> Bookmark {
        Bookmark { objset: self.objset.id(), object: of.object, level, blkid }
    }

    /// Returns the number of data blocks below a pointer of this level.
    fn span(of: &Of<'_>, level: u8) -> u64 {
        1u64.checked_shl(u32::from(level) * of.dnode.fanout_shift()).unwrap_or(u64::MAX)
    }

    /// True if the receiver lacks some of the blocks below a pointer because they were redacted.
    fn was_redacted(&self, of: &Of<'_>, level: u8, blkid: u64) -> bool {
        if self.redacted.is_empty() {
            return false;
        }
        let span = Self::span(of, level);
        let first = span.saturating_mul(blkid);
        if of.object != ObjectId::META_DNODE {
            return self.lacks(of.object, first, first.saturating_add(span));
        }
        let per_block = of.dnode.datablksz() >> ondisk::DNODE_SHIFT;
        let (first, end) = (first.saturating_mul(per_block), first.saturating_add(span).saturating_mul(per_block));
        let (first, end) = (ObjectId(first), ObjectId(end));
        let at = self.redacted.partition_point(|entry| entry.object < first);
        self.redacted.get(at).is_some_and(|entry| entry.object < end)
    }

    /// True if the receiver lacks some block of an object between `first` and `end`.
    fn lacks(&self, object: ObjectId, first: u64, end: u64) -> bool {
        let before = |entry: &RedactEntry| (entry.object, entry.blkid.saturating_add(entry.count)) <= (object, first);
        let at = self.redacted.partition_point(before);
        self.redacted.get(at).is_some_and(|entry| entry.object == object && entry.blkid < end)
    }

    /// True if everything below this block was sent before the interruption (OpenZFS: `resume_skip_check`).
    fn is_done(&self, of: &Of<'_>, level: u8, blkid: u64) -> bool {
        let span = Self::span(of, level);
        let end = blkid.saturating_add(1).saturating_mul(span);
        if of.object == ObjectId::META_DNODE {
            let per_block = of.dnode.datablksz() >> ondisk::DNODE_SHIFT;
            return ObjectId(end.saturating_mul(per_block)) <= self.resume.object;
        }
        let size = of.dnode.datablksz().max(1);
        of.object == self.resume.object && end <= self.resume.offset / size
    }

    fn check(&self, of: &Of<'_>, bp: &BlkPtr) -> Result<(), Error> {
        let data = bp.is_embedded() && !bp.is_redacted();
        if self.encrypted && !bp.is_hole() && (!bp.uses_crypt() || data) {
            return Err(Error::Forged { object: of.object });
        }
        Ok(())
    }

    /// Checks that a pointer leads to a block of the level and size that its object has there: the position of everything below
    /// it is computed from them.
    fn check_shape(of: &Of<'_>, bp: &BlkPtr, level: u8) -> Result<(), Error> {
        let size = match level {
            0 => of.dnode.datablksz(),
            _ => 1u64.checked_shl(of.dnode.indblkshift.into()).unwrap_or(0),
        };
        let wrong = |field, value| Err(Error::invalid(of.object, "block", field, value));
        if bp.level() != level {
            return wrong("level", bp.level().into());
        }
        if bp.lsize() != size {
            return wrong("logical size", bp.lsize());
        }
        bp.validate().map_err(|source| Error::Format { object: of.object, source })
    }

    fn block(
        &self,
        of: &Of<'_>,
        bp: &BlkPtr,
        level: u8,
        blkid: u64,
        block: Option<Result<Buf, zio::Error>>,
        sink: Sink<'_>,
    ) -> Result<(), Error> {
        let birth = bp.birth_logical();
        let old = birth.0 != 0 && birth <= self.from;
        // a block that was redacted and is a hole here is a hole at the receiver too
        let unwanted = old && (bp.is_hole() || bp.is_redacted() || !self.was_redacted(of, level, blkid));
        if unwanted || self.is_done(of, level, blkid) {
            return Ok(());
        }
        self.check(of, bp)?;
        if bp.is_hole() || bp.is_redacted() {
            return self.gap(of, bp, level, blkid, sink);
        }
        Self::check_shape(of, bp, level)?;
        let read = |block: Option<Result<Buf, zio::Error>>| match block {
            Some(block) => {
                if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
                    return Err(Error::Circle { object: of.object });
                }
                block.map_err(Error::Zio)
            }
            None => Err(Error::Forged { object: of.object }),
        };
        match (level, of.object) {
            (0, ObjectId::META_DNODE) => self.dnodes(bp, blkid, old, &read(block)?, sink),
            (0, object) => {
                let block_size = of.dnode.datablksz();
                let offset = blkid.checked_mul(block_size);
                let offset = offset.ok_or_else(|| Error::invalid(object, "block", "number", blkid))?;
                sink(Range::Data { object, offset, block_size, object_type: of.dnode.object_type, bp: *bp })
            }
            _ => {
                let block = read(block)?;
                let endian = bp.endian();
                let all = block.as_chunks::<BLKPTR_SIZE>().0;
                let pointers: Vec<BlkPtr> = all.iter().map(|raw| BlkPtr::from_bytes(raw, endian)).collect();
                let first = blkid.saturating_mul(pointers.len() as u64);
                self.siblings(of, &pointers, level - 1, first, sink)
            }
        }
    }

    /// Emits a hole of any level, or a redacted range.
    fn gap(&self, of: &Of<'_>, bp: &BlkPtr, level: u8, blkid: u64, sink: Sink<'_>) -> Result<(), Error> {
        let span = Self::span(of, level);
        let Some(start) = span.checked_mul(blkid) else { return Ok(()) };
        if !of.dnode.object_type.is_metadata() && start > of.dnode.maxblkid {
            return Ok(());
        }
        let end = start.saturating_add(span);
        let size = of.dnode.datablksz();
        if of.object == ObjectId::META_DNODE {
            let per_block = size >> ondisk::DNODE_SHIFT;
            let first = start.saturating_mul(per_block);
            let count = end.saturating_mul(per_block).saturating_sub(first);
            return sink(Range::NoObjects { first: ObjectId(first), count });
        }
        let Some(offset) = start.checked_mul(size) else { return Ok(()) };
        let length = end.saturating_mul(size).saturating_sub(offset);
        let object = of.object;
        sink(if bp.is_redacted() {
            Range::Redacted { object, offset, length }
        } else {
            Range::Hole { object, offset, length }
        })
    }

    /// Visits a dnode block. If it is `old`, the receiver has its objects, and only their previously redacted blocks are sent.
    fn dnodes(&self, bp: &BlkPtr, blkid: u64, old: bool, block: &[u8], sink: Sink<'_>) -> Result<(), Error> {
        let slots = (block.len() / DNODE_SIZE) as u64;
        let first = ObjectId(blkid.saturating_mul(slots));
        if !old {
            sink(Range::Dnodes { bp: *bp, first, slots })?;
        }
        let mut slot = 0;
        while slot < slots {
            let object = first.saturating_add(slot);
            let rest = block.get(slot as usize * DNODE_SIZE..).unwrap_or_default();
            let format = |source| Error::Format { object, source };
            let dnode = DnodePhys::decode(rest, bp.endian()).map_err(format)?;
            slot += dnode.slots() as u64;
            if object < self.resume.object || object == ObjectId::META_DNODE {
                continue;
            }
            if old {
                if dnode.object_type != ObjectType::NONE && self.lacks(object, 0, u64::MAX) {
                    self.tree(&Of { object, dnode: &dnode }, sink)?;
                }
                continue;
            }
            if dnode.object_type == ObjectType::NONE {
                sink(Range::NoObjects { first: object, count: 1 })?;
                continue;
            }
            let mut bonus = self.bonus(&dnode, rest);
            if !self.raw {
                ondisk::byteswap::to_little(dnode.bonus_type, bp.endian(), &mut bonus).map_err(format)?;
            }
            let dnode = Box::new(dnode);
            sink(Range::Object { object, dnode: dnode.clone(), bonus, swapped: bp.endian() != super::OURS })?;
            self.tree(&Of { object, dnode: &dnode }, sink)?;
        }
        Ok(())
    }

    /// Returns the bonus buffer as the stream carries it, padded to 8 bytes; in a raw stream the whole buffer, since all of it is
    /// ciphertext.
    fn bonus(&self, dnode: &DnodePhys, raw: &[u8]) -> Vec<u8> {
        let start = CORE + dnode.blkptr.len() * BLKPTR_SIZE;
        let len = match (self.raw, dnode.bonus.len()) {
            (_, 0) => 0,
            (true, _) => dnode.max_bonus(dnode.spill.is_some()),
            (false, len) => len.next_multiple_of(8),
        };
        let mut bonus = raw.get(start..start + len).map_or_else(|| dnode.bonus.clone(), <[u8]>::to_vec);
        bonus.resize(len, 0);
        bonus
    }
}

/// Checks that the spill block of an object has a size that a record can state.
pub(super) fn check_spill(object: ObjectId, bp: &BlkPtr) -> Result<(), Error> {
    if bp.lsize() == 0 || !bp.lsize().is_multiple_of(SECTOR) {
        return Err(Error::invalid(object, "spill block", "logical size", bp.lsize()));
    }
    bp.validate().map_err(|source| Error::Format { object, source })
}

/// The unit of block sizes (OpenZFS: `SPA_MINBLOCKSIZE`).
const SECTOR: u64 = 512;
/// Bytes of a dnode before its pointers.
const CORE: usize = 64;
