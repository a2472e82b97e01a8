//! A reader of one object that remembers its position.

use std::ops::Range;

use base::{Endian, bytes, tunable};
use ondisk::BlkPtr;
use zio::{ArcKey, Buf};

use crate::ahead::ReadAhead;
use crate::live::{LiveCache, Seen};
use crate::tree::{Child, Interest, LevelCache};
use crate::{Error, Object};

/// Reads blocks of one object. It keeps the last indirect block of each level, so a sequential reader pays one cache
/// lookup per indirect block and takes no lock per data block. Blocks that are asked for in order are read ahead
/// ([`BlockCursor::block`]).
pub struct BlockCursor {
    object: Object,
    cache: LevelCache,
    /// The cached path for an object of a writable set.
    live: LiveCache,
    ahead: ReadAhead,
}

impl BlockCursor {
    /// A cursor over `object`.
    #[must_use]
    pub fn new(object: Object) -> Self {
        BlockCursor { object, cache: LevelCache::default(), live: LiveCache::default(), ahead: ReadAhead::default() }
    }

    /// The object being read.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// The pointer to data block `blkid`; `None` for a hole or beyond the end. In a writable set: the pointer on disk.
    ///
    /// # Errors
    /// When an indirect block above it cannot be read.
    pub fn blkptr(&mut self, blkid: u64) -> Result<Option<BlkPtr>, Error> {
        if self.object.live().is_some() {
            return Ok(self.object.blkptr(0, blkid)?.filter(|bp| !bp.is_hole()));
        }
        match self.cache.pointer(&self.object.tree(), 0, blkid)? {
            Child::Block(bp) => Ok(Some(bp)),
            Child::Hole { .. } | Child::End => Ok(None),
        }
    }

    /// Data block `blkid` and the byte order of its writer; `None` for a hole or beyond the end.
    ///
    /// # Errors
    /// When it, or an indirect block above it, cannot be read.
    pub fn block(&mut self, blkid: u64) -> Result<Option<(Buf, Endian)>, Error> {
        self.read_ahead(blkid);
        self.block_for(blkid, Interest::Whole)
    }

    /// Reads the next blocks together, if `blkid` continues a run of blocks and is not in the cache.
    fn read_ahead(&mut self, blkid: u64) {
        if !self.ahead.note(blkid) || tunable::ZFS_PREFETCH_DISABLE.get() != 0 {
            return;
        }
        let most = self.object.objset().ahead_limit().unwrap_or(u64::MAX);
        let Some(blocks) = self.ahead.window(self.object.block_size(), self.object.nblocks(), most) else { return };
        let first = self.blkptr(blkid).ok().flatten().and_then(|bp| ArcKey::of(&bp));
        if first.is_some_and(|key| self.object.zio().arc().peek(&key).is_none()) {
            self.prefetch(blocks, &mut |_| {});
        }
    }

    fn block_for(&mut self, blkid: u64, interest: Interest) -> Result<Option<(Buf, Endian)>, Error> {
        if let Some(live) = self.object.live() {
            return self.object.live_block(live, blkid, &mut self.live, interest);
        }
        match self.blkptr(blkid)? {
            Some(bp) => Ok(Some((self.object.tree().read_data(&bp, blkid, interest)?, bp.endian()))),
            None => Ok(None),
        }
    }

    /// As [`Object::fetch`].
    ///
    /// # Errors
    /// When the block, or an indirect block above it, cannot be read.
    pub fn fetch(&mut self, blkid: u64) -> Result<(), Error> {
        self.block_for(blkid, Interest::Ahead).map(|_| ())
    }

    /// As [`BlockCursor::fetch`] for many blocks, at low priority: a reader is expected but does not wait yet. Their reads are under way together.
    /// `done` is told each block when it is there, or cannot be read; of holes it is not told.
    pub fn prefetch(&mut self, blocks: impl IntoIterator<Item = u64>, done: &mut dyn FnMut(u64)) {
        let mut there = Vec::new();
        for blkid in blocks {
            // a reader will meet the error
            there.extend(self.blkptr(blkid).ok().flatten().map(|bp| (blkid, bp)));
        }
        let dn = self.object.on_disk();
        self.object.tree_of(&dn).read_many(&there, Interest::Prefetch, &mut |blkid, _| done(blkid));
    }

    /// Returns whether these blocks are in the cache, as far as that can be told without reading anything.
    pub fn are_cached(&mut self, mut blocks: Range<u64>) -> bool {
        let BlockCursor { object, cache, live, .. } = self;
        let Some(dnode) = object.live() else {
            let tree = object.tree();
            return blocks.all(|blkid| is_cached(object, cache.known(&tree, blkid)));
        };
        let Some((dn, cache)) = live.settled(dnode) else { return false };
        let tree = object.tree_of(dn);
        blocks.all(|blkid| is_cached(object, cache.known(&tree, blkid)))
    }

    /// As [`BlockCursor::block_uncached`] for many blocks, whose reads are under way together; holes are left out. `each` gets the blocks, ascending but
    /// for those that cannot be read.
    pub fn blocks_uncached(&mut self, blocks: Range<u64>, each: &mut dyn FnMut(u64, Result<Buf, Error>)) {
        if self.object.live().is_some() {
            // what is not on disk yet is in no pointer
            for blkid in blocks {
                let block = self.block_uncached(blkid).map(|block| block.map(|(buf, _)| buf)).transpose();
                block.into_iter().for_each(|block| each(blkid, block));
            }
            return;
        }
        let mut there = Vec::new();
        for blkid in blocks {
            match self.blkptr(blkid) {
                Ok(Some(bp)) => there.push((blkid, bp)),
                Ok(None) => {}
                Err(e) => each(blkid, Err(e)),
            }
        }
        self.object.tree().read_many(&there, Interest::Past, each);
    }

    /// Like [`BlockCursor::block`], without caching the block.
    ///
    /// # Errors
    /// When it, or an indirect block above it, cannot be read.
    pub fn block_uncached(&mut self, blkid: u64) -> Result<Option<(Buf, Endian)>, Error> {
        self.block_for(blkid, Interest::Past)
    }

    /// The first data block from `blkid` on that is not a hole.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    pub fn next_block(&mut self, blkid: u64) -> Result<Option<u64>, Error> {
        if let Some(live) = self.object.live() {
            return self.object.live_search(live, blkid, &mut self.live, true);
        }
        self.cache.search(&self.object.tree(), blkid, true)
    }

    /// After an error of [`BlockCursor::next_block`], or of reading the block that it returned: the first block after the
    /// unreadable ones, where a search can continue. `None` if nothing follows.
    pub fn behind_damage(&mut self) -> Option<u64> {
        let end = self.damaged().end;
        (end < self.object.nblocks()).then_some(end)
    }

    /// After an error of [`BlockCursor::next_block`]: the blocks below the one that cannot be read. A search continues
    /// after them.
    pub fn damaged(&mut self) -> Range<u64> {
        let BlockCursor { object, cache, live, .. } = self;
        match object.live() {
            Some(_) => live.damaged(object),
            None => cache.damaged(&object.tree()),
        }
    }

    /// The blocks that cannot be read for the same reason as block `blkid`: those below an unreadable block of pointers,
    /// or this one alone.
    pub fn unreachable(&mut self, blkid: u64) -> Range<u64> {
        let BlockCursor { object, cache, .. } = self;
        match object.live() {
            Some(_) => LevelCache::default().unreachable(&object.tree_of(&object.on_disk()), blkid),
            None => cache.unreachable(&object.tree(), blkid),
        }
    }

    /// The first data block from `blkid` on that is a hole; `None` when all blocks up to the last are data.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    pub fn next_hole_block(&mut self, blkid: u64) -> Result<Option<u64>, Error> {
        if let Some(live) = self.object.live() {
            return self.object.live_search(live, blkid, &mut self.live, false);
        }
        self.cache.search(&self.object.tree(), blkid, false)
    }

    /// Fills `buf` from byte `offset`. Holes and bytes past the last block read as zeros.
    ///
    /// # Errors
    /// When a block in the range cannot be read; `buf` then holds what came before it.
    pub fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.read_before(offset, buf, u64::MAX)
    }

    /// As [`BlockCursor::read`], for contents that end at byte `end`: no reader will ask for the bytes after it.
    ///
    /// # Errors
    /// As [`BlockCursor::read`].
    pub fn read_before(&mut self, offset: u64, buf: &mut [u8], end: u64) -> Result<(), Error> {
        self.read_blocks(offset, buf, Some(end))
    }

    /// Returns the `len` bytes from `offset` on without copying them, if they are in one block that has contents; `None` if they are not, and have to be
    /// [read](BlockCursor::read_before). `end` is as there.
    ///
    /// # Errors
    /// When the block cannot be read.
    pub fn lend_before(&mut self, offset: u64, len: usize, end: u64) -> Result<Option<Buf>, Error> {
        let (size, nblocks) = match self.object.live() {
            Some(live) => {
                let Seen { block_size, nblocks, .. } = self.live.see(live);
                (block_size, nblocks)
            }
            None => (self.object.block_size(), self.object.nblocks()),
        };
        let Some(blkid) = offset.checked_div(size).filter(|blkid| *blkid < nblocks) else { return Ok(None) };
        let skip = offset % size;
        if len == 0 || skip.saturating_add(len as u64) > size {
            return Ok(None);
        }
        let found = self.block_for(blkid, interest(offset, len, size, Some(end)))?;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        // the block size may have grown since it was looked at: the block is then longer
        Ok(found.and_then(|(block, _)| block.part(skip..skip.checked_add(len)?)))
    }

    /// Like [`BlockCursor::read`], without caching the data.
    ///
    /// # Errors
    /// As [`BlockCursor::read`].
    pub fn read_uncached(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.read_blocks(offset, buf, None)
    }

    /// Reads on behalf of a reader that will read up to `end`; with `None`, without caching.
    fn read_blocks(&mut self, mut offset: u64, mut buf: &mut [u8], end: Option<u64>) -> Result<(), Error> {
        if self.object.live().is_some() {
            return self.read_live_blocks(offset, buf, end);
        }
        let size = self.object.block_size();
        while !buf.is_empty() {
            let Some(blkid) = offset.checked_div(size) else { break };
            let skip = offset % size;
            let (child, take) = {
                let tree = self.object.tree();
                let child = self.cache.pointer(&tree, 0, blkid)?;
                let behind = match child {
                    Child::Block(_) => blkid.checked_add(1),
                    Child::Hole { level, .. } => tree.after(level, blkid),
                    Child::End => None,
                };
                // a hole ends with the subtree that it stands for; the last one has no end
                let behind = behind.and_then(|behind| behind.checked_mul(size)).unwrap_or(u64::MAX);
                (child, usize::try_from(behind.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len()))
            };
            if take == 0 {
                break;
            }
            let (now, rest) = buf.split_at_mut(take);
            match child {
                Child::Block(bp) => {
                    let tree = self.object.tree();
                    let data = tree.read_data(&bp, blkid, interest(offset, take, size, end))?;
                    let part = usize::try_from(skip).ok().and_then(|skip| data.get(skip..)?.get(..take));
                    now.copy_from_slice(
                        part.ok_or_else(|| self.object.corrupt("length of a data block", data.len() as u64))?,
                    );
                }
                Child::Hole { .. } | Child::End => now.fill(0),
            }
            buf = rest;
            offset = offset.saturating_add(take as u64);
        }
        buf.fill(0);
        Ok(())
    }

    /// As [`BlockCursor::read`], of an object of a writable set.
    fn read_live_blocks(&mut self, mut offset: u64, mut buf: &mut [u8], end: Option<u64>) -> Result<(), Error> {
        let BlockCursor { object, live: cache, .. } = self;
        let Some(live) = object.live() else { return Ok(()) };
        while !buf.is_empty() {
            let Seen { block_size: size, nblocks, .. } = cache.see(live);
            let Some(blkid) = offset.checked_div(size) else { break };
            if blkid >= nblocks {
                break;
            }
            let skip = usize::try_from(offset % size).unwrap_or(usize::MAX);
            let take = usize::try_from(size).unwrap_or(usize::MAX).saturating_sub(skip).min(buf.len());
            let (now, rest) = buf.split_at_mut(take);
            match object.live_block(live, blkid, cache, interest(offset, take, size, end))? {
                Some((data, _)) => {
                    // the block size may have grown since it was read: the block is then longer
                    let part = data.get(skip..).and_then(|data| data.get(..take));
                    now.copy_from_slice(
                        part.ok_or_else(|| object.corrupt("length of a data block", data.len() as u64))?,
                    );
                }
                None => now.fill(0),
            }
            buf = rest;
            offset = offset.saturating_add(take as u64);
        }
        buf.fill(0);
        Ok(())
    }

    /// The 64-bit words of an array object from word `first`, up to `count` of them, each in the order of its block's writer.
    /// Holes are zero words. The caller bounds `count`.
    ///
    /// # Errors
    /// When a block in the range cannot be read, or the block size is no multiple of a word.
    pub fn read_u64s(&mut self, first: u64, count: usize) -> Result<Vec<u64>, Error> {
        let per_block = self.object.block_size() / 8;
        let mut out = Vec::new();
        while out.len() < count {
            let at = first.saturating_add(out.len() as u64);
            let Some(blkid) = at.checked_div(per_block) else { break };
            if blkid >= self.object.nblocks() {
                break;
            }
            let skip = usize::try_from(at % per_block).unwrap_or(usize::MAX);
            let take = usize::try_from(per_block).unwrap_or(0).saturating_sub(skip).min(count - out.len());
            match self.block(blkid)? {
                Some((buf, endian)) => out.extend(bytes::u64s(&buf, endian).skip(skip).take(take)),
                None => out.resize(out.len() + take, 0),
            }
        }
        out.resize(count, 0);
        Ok(out)
    }
}

/// Returns whether the block of a pointer that is known is in the cache, or takes no read.
fn is_cached(object: &Object, pointer: Option<BlkPtr>) -> bool {
    pointer.is_some_and(|bp| ArcKey::of(&bp).is_none_or(|key| object.zio().arc().holds(&key)))
}

/// The [`Interest`] in a block of `size` bytes of a reader that takes `take` bytes from `offset` on and will read up to
/// `end` (OpenZFS: `DMU_PARTIAL_FIRST`, `DMU_PARTIAL_MORE`).
fn interest(offset: u64, take: usize, size: u64, end: Option<u64>) -> Interest {
    let Some(end) = end else { return Interest::Past };
    let skip = offset.checked_rem(size).unwrap_or(0);
    let size = size.min(end.saturating_sub(offset - skip));
    match skip {
        _ if skip.saturating_add(take as u64) >= size => Interest::Whole,
        0 => Interest::Ahead,
        _ => Interest::Part,
    }
}
