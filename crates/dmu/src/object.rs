//! One object: its dnode and its blocks.

use std::ops::Deref;
use std::sync::Arc;

use base::{Endian, ObjectId};
use ondisk::{BlkPtr, DnodePhys};
use zio::{Bookmark, Buf, Zio};

use crate::live::{BlockState, LiveCache, LiveDnode};
use crate::tree::{Child, Interest, Tree};
use crate::{BlockCursor, Error, Objset, PrimaryCache};

/// An object of an object set (OpenZFS: `dnode_t`): a sparse array of equal blocks under a dnode. Cheap to clone.
#[derive(Clone)]
pub struct Object {
    objset: Arc<Objset>,
    id: ObjectId,
    phys: Arc<DnodePhys>,
    live: Option<Arc<LiveDnode>>,
}

/// The dnode whose tree is on disk.
pub(crate) enum OnDisk<'a> {
    Fixed(&'a DnodePhys),
    Synced(Arc<DnodePhys>),
}

impl Deref for OnDisk<'_> {
    type Target = DnodePhys;

    fn deref(&self) -> &DnodePhys {
        match self {
            OnDisk::Fixed(dn) => dn,
            OnDisk::Synced(dn) => dn,
        }
    }
}

impl Object {
    /// Makes an object from a dnode that the caller has; `id` only serves messages and bookmarks.
    #[must_use]
    pub fn new(objset: Arc<Objset>, id: ObjectId, phys: DnodePhys) -> Object {
        Object { objset, id, phys: Arc::new(phys), live: None }
    }

    /// An object of a writable set.
    pub(crate) fn with_live(objset: Arc<Objset>, live: Arc<LiveDnode>) -> Object {
        Object { objset, id: live.id, phys: live.newest(), live: Some(live) }
    }

    pub(crate) fn live(&self) -> Option<&Arc<LiveDnode>> {
        self.live.as_ref()
    }

    /// The dnode whose tree is on disk.
    pub(crate) fn on_disk(&self) -> OnDisk<'_> {
        match &self.live {
            Some(live) => OnDisk::Synced(live.synced()),
            None => OnDisk::Fixed(&self.phys),
        }
    }

    /// Its number in the object set.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Its dnode when this handle was made; its pointers and the space used are as of the last sync before that.
    #[must_use]
    pub fn phys(&self) -> &DnodePhys {
        &self.phys
    }

    /// True if it is completely on disk: what its dnode says of the space used is right until it changes.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.live.as_ref().is_none_or(|live| live.state.read().is_settled())
    }

    /// The object set it is in.
    #[must_use]
    pub fn objset(&self) -> &Arc<Objset> {
        &self.objset
    }

    /// The byte order of its dnode, and so of the bonus buffer. Blocks have their own: [`Object::endian_of`].
    #[must_use]
    pub fn endian(&self) -> Endian {
        self.phys.endian
    }

    /// The bonus buffer, in the order [`Object::endian`].
    #[must_use]
    pub fn bonus(&self) -> &[u8] {
        &self.phys.bonus
    }

    /// The spill block, if the dnode has one that is not a hole.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn spill(&self) -> Result<Option<Buf>, Error> {
        Ok(self.spill_with_endian()?.map(|(buf, _)| buf))
    }

    /// The spill block and the byte order of its writer.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn spill_with_endian(&self) -> Result<Option<(Buf, Endian)>, Error> {
        match &self.live {
            Some(live) => self.live_spill(live),
            None => self.spill_of(&self.phys),
        }
    }

    pub(crate) fn spill_of(&self, dn: &DnodePhys) -> Result<Option<(Buf, Endian)>, Error> {
        match &dn.spill {
            Some(bp) if !bp.is_hole() => {
                let bm = Bookmark { objset: self.objset.id(), object: self.id, level: 0, blkid: Bookmark::SPILL_BLKID };
                let cached = self.objset.primary_cache() != PrimaryCache::None;
                let buf = if cached { self.zio().read(bp, &bm)? } else { self.zio().read_once(bp, &bm, true)? };
                Ok(Some((buf, bp.endian())))
            }
            _ => Ok(None),
        }
    }

    /// Size of a data block in bytes.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        match &self.live {
            Some(live) => live.state.read().newest.datablksz(),
            None => self.phys.datablksz(),
        }
    }

    /// Number of data blocks, holes included: the highest block id plus one.
    #[must_use]
    pub fn nblocks(&self) -> u64 {
        let maxblkid = match &self.live {
            Some(live) => live.state.read().newest.maxblkid,
            None => self.phys.maxblkid,
        };
        maxblkid.saturating_add(1)
    }

    /// The largest possible number of data blocks: one for each id, but no more than the pool has room for. Callers that
    /// loop over a length read from disk bound it by this.
    #[must_use]
    pub fn most_blocks(&self) -> u64 {
        self.nblocks().min(self.zio().most_blocks())
    }

    /// Bytes of [`Object::most_blocks`].
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        self.most_blocks().saturating_mul(self.block_size())
    }

    /// Block `blkid`; `None` for a hole or beyond the end.
    ///
    /// # Errors
    /// When it, or an indirect block above it, cannot be read.
    pub fn block(&self, blkid: u64) -> Result<Option<Buf>, Error> {
        Ok(self.block_with_endian(blkid)?.map(|(buf, _)| buf))
    }

    /// Block `blkid` and the byte order of its writer; `None` for a hole or beyond the end.
    ///
    /// # Errors
    /// When it, or an indirect block above it, cannot be read.
    pub fn block_with_endian(&self, blkid: u64) -> Result<Option<(Buf, Endian)>, Error> {
        self.block_for(blkid, Interest::Whole)
    }

    fn block_for(&self, blkid: u64, interest: Interest) -> Result<Option<(Buf, Endian)>, Error> {
        if let Some(live) = &self.live {
            return self.live_block(live, blkid, &mut LiveCache::default(), interest);
        }
        match self.tree().pointer(0, blkid)? {
            Child::Block(bp) => Ok(Some((self.tree().read_data(&bp, blkid, interest)?, bp.endian()))),
            Child::Hole { .. } | Child::End => Ok(None),
        }
    }

    /// Reads block `blkid` ahead for a reader that will soon ask for it: it stays in the cache until then, even if
    /// `primarycache` excludes it.
    ///
    /// # Errors
    /// When it, or an indirect block above it, cannot be read.
    pub fn fetch(&self, blkid: u64) -> Result<(), Error> {
        self.block_for(blkid, Interest::Ahead).map(|_| ())
    }

    /// Block `blkid`, read without being cached; indirect blocks are cached.
    ///
    /// # Errors
    /// When it, or an indirect block above it, cannot be read.
    pub fn block_uncached(&self, blkid: u64) -> Result<Option<Buf>, Error> {
        Ok(self.block_for(blkid, Interest::Past)?.map(|(buf, _)| buf))
    }

    /// The byte order in which block `blkid` was written; `None` for a hole.
    ///
    /// # Errors
    /// When an indirect block above it cannot be read.
    pub fn endian_of(&self, blkid: u64) -> Result<Option<Endian>, Error> {
        if let Some(live) = &self.live
            && matches!(live.state.read().find(blkid), BlockState::Dirty(_))
        {
            return Ok(Some(Endian::Little));
        }
        Ok(self.blkptr(0, blkid)?.filter(|bp| !bp.is_hole()).map(|bp| bp.endian()))
    }

    /// The pointer to the block `blkid` of `level` (counted in blocks of that level); holes have pointers too. `None`
    /// beyond the end, above the top, or below a hole. In a writable set: the pointer on disk.
    ///
    /// # Errors
    /// When an indirect block above it cannot be read.
    pub fn blkptr(&self, level: u8, blkid: u64) -> Result<Option<BlkPtr>, Error> {
        let child = match &self.live {
            Some(live) => self.on_synced(live, |dn| self.tree_of(dn).pointer(level, blkid))?,
            None => self.tree().pointer(level, blkid)?,
        };
        match child {
            Child::Block(bp) => Ok(Some(bp)),
            Child::Hole { bp, .. } => Ok(bp),
            Child::End => Ok(None),
        }
    }

    /// Fills `buf` from `offset`. Holes and bytes past the last block read as zeros.
    ///
    /// # Errors
    /// When a block in the range cannot be read; `buf` then holds what came before it.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.cursor().read(offset, buf)
    }

    /// `len` bytes from `offset`. The caller bounds `len`.
    ///
    /// # Errors
    /// As [`Object::read`].
    pub fn read_vec(&self, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        let mut buf = vec![0; len];
        self.read(offset, &mut buf)?;
        Ok(buf)
    }

    /// The 64-bit words of an array object from word `first`, up to `count` of them, each in the order of its block's writer.
    /// Holes are zero words. The caller bounds `count`.
    ///
    /// # Errors
    /// As [`Object::read`].
    pub fn read_u64s(&self, first: u64, count: usize) -> Result<Vec<u64>, Error> {
        self.cursor().read_u64s(first, count)
    }

    /// A reader of this object that remembers indirect blocks: for more than one block.
    #[must_use]
    pub fn cursor(&self) -> BlockCursor {
        BlockCursor::new(self.clone())
    }

    pub(crate) fn zio(&self) -> &Zio {
        self.objset.zio()
    }

    pub(crate) fn tree(&self) -> Tree<'_> {
        self.objset.tree(self.id, &self.phys)
    }

    pub(crate) fn corrupt(&self, what: &'static str, value: u64) -> Error {
        Error::Corrupt { objset: self.objset.id(), object: self.id, what, value }
    }

    pub(crate) fn format(&self, source: ondisk::Error) -> Error {
        Error::Format { objset: self.objset.id(), object: self.id, source }
    }
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "object {}/{} {:?}", self.objset.id(), self.id, self.phys.object_type)
    }
}
