//! The tree of blocks under a dnode: from a block id to its pointer.
//!
//! A dnode of `nlevels` n has 1 to 3 pointers of level n−1. An indirect block of level L holds `1 << (indblkshift − 7)` pointers
//! of level L−1. Block ids are counted per level: the parent of block b is block `b >> (indblkshift − 7)` one level up.
//! Every pointer below the top records its own level; one with a wrong level is refused, so that a hostile tree has no
//! cycles.

use std::ops::Range;

use base::{Endian, ObjectId};
use ondisk::{BLKPTR_SIZE, BlkPtr, DnodePhys, ObjectType};
use parking_lot::Mutex;
use zio::{Bookmark, Buf, Caching, IoClass, Zio};

use crate::{Error, PrimaryCache};

/// The number of indirect blocks without any data that a search skips before it calls the tree corrupt: OpenZFS writes
/// none.
pub(crate) const MAX_EMPTY_BLOCKS: u32 = 1 << 16;

/// The result of looking up a block id in the tree.
#[derive(Clone, Copy)]
pub(crate) enum Child {
    /// A block.
    Block(BlkPtr),
    /// A hole: the pointer of `level` at or above the block is a hole; `bp` is the block's own pointer, if there is one.
    Hole { level: u8, bp: Option<BlkPtr> },
    /// The block id is beyond the last block, or not in the tree at all.
    End,
}

/// An indirect block: pointers, in the byte order of its writer.
#[derive(Clone)]
pub(crate) struct Indirect {
    buf: Buf,
    endian: Endian,
}

impl Indirect {
    /// Pointer `n`; an empty one beyond the end (cannot happen: sizes are checked when the block is read).
    pub(crate) fn pointer(&self, n: u64) -> BlkPtr {
        let raw = usize::try_from(n).ok().and_then(|n| self.buf.as_chunks::<BLKPTR_SIZE>().0.get(n));
        raw.map_or(BlkPtr::HOLE, |raw| BlkPtr::from_bytes(raw, self.endian))
    }

    /// Its pointers up to the last that is not empty.
    pub(crate) fn pointers(&self) -> Vec<BlkPtr> {
        let used = self.buf.as_chunks().0.iter().rposition(|raw| *raw != [0; BLKPTR_SIZE]);
        let end = used.map_or(0, |last| (last + 1) * BLKPTR_SIZE);
        BlkPtr::decode_all(self.buf.get(..end).unwrap_or(&self.buf), self.endian)
    }

    /// Number of pointers.
    pub(crate) fn len(&self) -> u64 {
        (self.buf.len() / BLKPTR_SIZE) as u64
    }
}

/// A reader's intention with a data block, as far as the cache has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    /// Read it up to its end: the reader is then done with it.
    Whole,
    /// Read its front now and the rest soon, or all of it soon. The block stays in the cache meanwhile, even if
    /// `primarycache` excludes it.
    Ahead,
    /// As [`Interest::Ahead`], but no reader waits for it yet.
    Prefetch,
    /// Read a part that is not its front: a cached block stays cached.
    Part,
    /// Bypass the cache, whatever the property says.
    Past,
}

/// A dnode's tree and what is needed to read it.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'a> {
    pub(crate) zio: &'a Zio,
    pub(crate) caches: PrimaryCache,
    pub(crate) objset: ObjectId,
    pub(crate) object: ObjectId,
    pub(crate) dn: &'a DnodePhys,
    /// How urgent what is read is.
    pub(crate) class: IoClass,
}

impl Tree<'_> {
    pub(crate) fn bookmark(&self, level: u8, blkid: u64) -> Bookmark {
        Bookmark { objset: self.objset, object: self.object, level, blkid }
    }

    pub(crate) fn corrupt(&self, what: &'static str, value: u64) -> Error {
        Error::Corrupt { objset: self.objset, object: self.object, what, value }
    }

    /// The level of the dnode's own pointers.
    pub(crate) fn top(&self) -> u8 {
        self.dn.nlevels.saturating_sub(1)
    }

    /// log2 of the number of level-0 blocks under one pointer of `level`; 64 when all block ids are.
    pub(crate) fn span_shift(&self, level: u8) -> u32 {
        (u32::from(level) * self.dn.fanout_shift()).min(64)
    }

    /// The first level-0 block after the subtree of `level` that holds `blkid`; `None` if there is none.
    pub(crate) fn after(&self, level: u8, blkid: u64) -> Option<u64> {
        let shift = self.span_shift(level);
        let next = blkid.checked_shr(shift)?.checked_add(1)?;
        let start = next.checked_shl(shift)?;
        (start >> shift == next).then_some(start)
    }

    /// The dnode's pointer above the block `blkid` of `level`, or `None` when the block is beyond the end.
    fn root(&self, level: u8, blkid: u64) -> Option<BlkPtr> {
        let last = self.dn.maxblkid.checked_shr(self.span_shift(level)).unwrap_or(0);
        let up = self.top().checked_sub(level)?;
        let index = blkid.checked_shr(self.span_shift(up)).unwrap_or(0);
        let root = self.dn.blkptr.get(usize::try_from(index).ok()?)?;
        (blkid <= last).then_some(*root)
    }

    /// The pointer to block `blkid` of `level`, looked up without a cache.
    pub(crate) fn pointer(&self, level: u8, blkid: u64) -> Result<Child, Error> {
        LevelCache::default().pointer(self, level, blkid)
    }

    /// Reads an indirect block of `level` (1 or more).
    pub(crate) fn read_indirect(&self, bp: &BlkPtr, level: u8, blkid: u64) -> Result<Indirect, Error> {
        if bp.level() != level {
            return Err(self.corrupt("level in a block pointer", bp.level().into()));
        }
        let bm = self.bookmark(level, blkid);
        let cached = self.caches.keeps(self.dn.object_type, level);
        let caching = if cached { Caching::Use } else { Caching::Once { last: true } };
        let buf = self.zio.read_as(bp, &bm, caching, self.class)?;
        if buf.len() as u64 != 1u64.checked_shl(self.dn.indblkshift.into()).unwrap_or(0) {
            return Err(self.corrupt("size of an indirect block", buf.len() as u64));
        }
        Ok(Indirect { buf, endian: bp.endian() })
    }

    /// Reads a data block.
    pub(crate) fn read_data(&self, bp: &BlkPtr, blkid: u64, interest: Interest) -> Result<Buf, Error> {
        self.check_data(bp)?;
        let bm = self.bookmark(0, blkid);
        let cached = self.caches.keeps(self.dn.object_type, 0);
        let (caching, class) = self.use_for(interest);
        match self.zio.read_as(bp, &bm, caching, class) {
            // the shape of dnodes can be read without a key; their bonus buffers are ciphertext
            Err(zio::Error::KeyNotLoaded { .. })
                if bp.object_type() == ObjectType::DNODE && interest != Interest::Past =>
            {
                Ok(if cached { self.zio.read_noauth(bp, &bm)? } else { self.zio.read_noauth_uncached(bp, &bm)? })
            }
            other => Ok(other?),
        }
    }

    /// The use of the cache, and the class, of a read of a data block.
    fn use_for(&self, interest: Interest) -> (Caching, IoClass) {
        let caching = match interest {
            Interest::Past => Caching::Bypass,
            _ if self.caches.keeps(self.dn.object_type, 0) => Caching::Use,
            Interest::Ahead | Interest::Prefetch => Caching::Stage,
            Interest::Whole | Interest::Part => Caching::Once { last: interest == Interest::Whole },
        };
        (caching, if interest == Interest::Prefetch { IoClass::AsyncRead } else { self.class })
    }

    /// Reads many data blocks together; `each` gets one after the other.
    pub(crate) fn read_many(
        &self,
        blocks: &[(u64, BlkPtr)],
        interest: Interest,
        each: &mut dyn FnMut(u64, Result<Buf, Error>),
    ) {
        let mut good = Vec::with_capacity(blocks.len());
        for (blkid, bp) in blocks {
            match self.check_data(bp) {
                Ok(()) => good.push((*bp, self.bookmark(0, *blkid))),
                Err(e) => each(*blkid, Err(e)),
            }
        }
        let mut told = |n: usize, data: Result<Buf, zio::Error>| {
            good.get(n).into_iter().zip([data]).for_each(|((_, bm), data)| each(bm.blkid, data.map_err(Error::from)));
        };
        self.zio.read_many(&good, self.use_for(interest), &mut told);
    }

    /// Reads a data block that will be changed.
    pub(crate) fn read_data_to_change(&self, bp: &BlkPtr, blkid: u64) -> Result<Buf, Error> {
        self.check_data(bp)?;
        Ok(self.zio.read_to_change(bp, &self.bookmark(0, blkid))?)
    }

    fn check_data(&self, bp: &BlkPtr) -> Result<(), Error> {
        if bp.level() != 0 {
            return Err(self.corrupt("level in a block pointer", bp.level().into()));
        }
        if bp.lsize() != self.dn.datablksz() {
            return Err(self.corrupt("logical size of a data block", bp.lsize()));
        }
        Ok(())
    }
}

/// A [`LevelCache`] shared by threads. A thread that does not get the lock at once reads without the cache.
#[derive(Default)]
pub(crate) struct SharedCache(Mutex<LevelCache>);

impl SharedCache {
    /// As [`LevelCache::pointer`].
    pub(crate) fn pointer(&self, tree: &Tree<'_>, level: u8, blkid: u64) -> Result<Child, Error> {
        match self.0.try_lock() {
            Some(mut cache) => cache.pointer(tree, level, blkid),
            None => tree.pointer(level, blkid),
        }
    }

    /// As [`LevelCache::search`], for data.
    pub(crate) fn next_data(&self, tree: &Tree<'_>, blkid: u64) -> Result<Option<u64>, Error> {
        match self.0.try_lock() {
            Some(mut cache) => cache.search(tree, blkid, true),
            None => LevelCache::default().search(tree, blkid, true),
        }
    }
}

/// The last indirect block of each level that a reader passed through.
#[derive(Default)]
pub(crate) struct LevelCache {
    /// By level less one: the block's id and contents.
    levels: Vec<Option<(u64, Indirect)>>,
    /// The position that the last search reached, for a search that continues after an error.
    searched: u64,
}

impl LevelCache {
    /// The pointer to block `blkid` of `level`; reads only indirect blocks that the last call did not pass through.
    pub(crate) fn pointer(&mut self, tree: &Tree<'_>, level: u8, blkid: u64) -> Result<Child, Error> {
        let Some(mut bp) = tree.root(level, blkid) else { return Ok(Child::End) };
        let (top, fanout) = (tree.top(), tree.dn.fanout_shift());
        let mut at = top;
        if let Some((parent, found)) = self.nearest(tree, level, blkid) {
            (at, bp) = (parent, found);
        }
        while at > level {
            if bp.is_hole() {
                return Ok(Child::Hole { level: at, bp: None });
            }
            let id = blkid >> tree.span_shift(at - level).min(63);
            let block = tree.read_indirect(&bp, at, id)?;
            let index = (blkid >> tree.span_shift(at - level - 1).min(63)) & ((1 << fanout) - 1);
            bp = block.pointer(index);
            self.remember(at, id, block);
            at -= 1;
        }
        Ok(if bp.is_hole() { Child::Hole { level, bp: Some(bp) } } else { Child::Block(bp) })
    }

    /// The pointer to a level-0 block, if that can be told without a read: it may be a hole.
    pub(crate) fn known(&self, tree: &Tree<'_>, blkid: u64) -> Option<BlkPtr> {
        let bp = tree.root(0, blkid)?;
        if tree.top() == 0 {
            return Some(bp);
        }
        self.nearest(tree, 0, blkid).filter(|(level, _)| *level == 0).map(|(_, bp)| bp)
    }

    /// The lowest cached indirect block above the block, followed one step down: the level reached and the pointer there.
    fn nearest(&self, tree: &Tree<'_>, level: u8, blkid: u64) -> Option<(u8, BlkPtr)> {
        let fanout = tree.dn.fanout_shift();
        for at in level.checked_add(1)?..=tree.top() {
            let up = tree.span_shift(at - level);
            let Some(Some((id, block))) = self.levels.get(usize::from(at) - 1) else { continue };
            if up < 64 && blkid >> up == *id {
                let index = (blkid >> (up - fanout)) & ((1 << fanout) - 1);
                return Some((at - 1, block.pointer(index)));
            }
        }
        None
    }

    fn remember(&mut self, level: u8, id: u64, block: Indirect) {
        let slot = usize::from(level).saturating_sub(1);
        if self.levels.len() <= slot {
            self.levels.resize(slot + 1, None);
        }
        if let Some(place) = self.levels.get_mut(slot) {
            *place = Some((id, block));
        }
    }

    /// The first level-0 block from `blkid` on that is a block (`data`) or a hole (not `data`); `None` if there is none
    /// up to the last block.
    pub(crate) fn search(&mut self, tree: &Tree<'_>, mut blkid: u64, data: bool) -> Result<Option<u64>, Error> {
        let mut barren = 0;
        let mut parent = None;
        loop {
            self.searched = blkid;
            let now = Some(blkid >> tree.span_shift(1).min(63));
            if now != parent {
                parent = now;
                barren += 1;
                if barren > MAX_EMPTY_BLOCKS {
                    return Err(tree.corrupt("number of indirect blocks that belie their fill count", barren.into()));
                }
            }
            let full = if data { None } else { self.full(tree, blkid)? };
            let next = match (full, self.pointer(tree, 0, blkid)?) {
                (_, Child::End) => return Ok(None),
                (Some(level), _) => tree.after(level, blkid),
                (_, Child::Block(_)) if data => return Ok(Some(blkid)),
                (_, Child::Hole { .. }) if !data => return Ok(Some(blkid)),
                (_, Child::Block(_)) => blkid.checked_add(1),
                (_, Child::Hole { level, .. }) => tree.after(level, blkid),
            };
            match next {
                Some(next) => blkid = next,
                None => return Ok(None),
            }
        }
    }

    /// After an error of a search: the blocks below the one that cannot be read, or the one block.
    pub(crate) fn damaged(&mut self, tree: &Tree<'_>) -> Range<u64> {
        let at = self.searched;
        self.unreachable(tree, at)
    }

    /// The blocks that are unreachable together with `blkid`: those below the lowest readable pointer above it.
    pub(crate) fn unreachable(&mut self, tree: &Tree<'_>, blkid: u64) -> Range<u64> {
        let span = |level| tree.span_shift(level).min(63);
        let has = |level: &u8| self.pointer(tree, *level, blkid >> span(*level)).is_ok();
        let level = (0..=tree.top()).find(has).unwrap_or(tree.top());
        let first = blkid >> span(level) << span(level);
        first..tree.after(level, blkid).unwrap_or(u64::MAX)
    }

    /// The highest level whose subtree begins at `blkid` and, by its fill count, has no hole.
    fn full(&mut self, tree: &Tree<'_>, blkid: u64) -> Result<Option<u8>, Error> {
        for level in (1..=tree.top()).rev() {
            let span = tree.span_shift(level);
            if span < 63
                && blkid & ((1 << span) - 1) == 0
                && let Child::Block(bp) = self.pointer(tree, level, blkid >> span)?
                && bp.fill() >= 1 << span
            {
                return Ok(Some(level));
            }
        }
        Ok(None)
    }
}
