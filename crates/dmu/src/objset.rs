//! Object sets: from an object's number to its dnode.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use base::{Endian, ObjectId, bytes};
use ondisk::{BlkPtr, DNODE_SIZE, DnodePhys, ObjectType, ObjsetPhys};
use zio::{Bookmark, Buf, IoClass, Zio};

use crate::live::Live;
use crate::tree::{Child, Interest, MAX_EMPTY_BLOCKS, SharedCache, Tree};

use crate::{Below, BlockCursor, Error, Object, PrimaryCache};

/// The objects whose dnodes are in the object set block itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// Object 0: the array of all dnodes.
    MetaDnode,
    /// Object −1: space by user.
    UserUsed,
    /// Object −2: space by group.
    GroupUsed,
    /// Object −3: space by project.
    ProjectUsed,
}

impl Special {
    /// The object's number.
    #[must_use]
    pub const fn id(self) -> ObjectId {
        match self {
            Special::MetaDnode => ObjectId::META_DNODE,
            Special::UserUsed => ObjectId(u64::MAX),
            Special::GroupUsed => ObjectId(u64::MAX - 1),
            Special::ProjectUsed => ObjectId(u64::MAX - 2),
        }
    }

    /// All special objects, in the order in which OpenZFS traverses them.
    pub const ALL: [Special; 4] = [Special::MetaDnode, Special::ProjectUsed, Special::GroupUsed, Special::UserUsed];
}

/// An object set: the objects of a dataset, or of the pool itself (OpenZFS: `objset_t`).
pub struct Objset {
    zio: Arc<Zio>,
    id: ObjectId,
    /// The root block as opened; in a writable set `live` is authoritative.
    root: Root,
    live: Option<Box<Live>>,
    /// [`PrimaryCache`], as a number.
    caches: AtomicU8,
}

/// The root block that is on disk.
pub(crate) struct Root {
    pub(crate) bp: BlkPtr,
    pub(crate) phys: Arc<ObjsetPhys>,
    /// The path to the dnode found last.
    pub(crate) meta: SharedCache,
}

impl Root {
    pub(crate) fn new(bp: BlkPtr, phys: ObjsetPhys) -> Root {
        Root { bp, phys: Arc::new(phys), meta: SharedCache::default() }
    }

    pub(crate) fn dnodes_per_block(&self) -> u64 {
        self.phys.meta_dnode.datablksz() / DNODE_SIZE as u64
    }
}

/// The root block of an [`Objset`], which a sync may replace meanwhile.
enum RootRef<'a> {
    Fixed(&'a Root),
    Live(Arc<Root>),
}

impl Deref for RootRef<'_> {
    type Target = Root;

    fn deref(&self) -> &Root {
        match self {
            RootRef::Fixed(root) => root,
            RootRef::Live(root) => root,
        }
    }
}

impl Objset {
    /// Opens the object set under `rootbp`. `dataset_id` is its DSL dataset's object number, 0 for the MOS: it selects
    /// the key and identifies the dataset in errors. A hole (a dataset never written) opens as an empty set.
    ///
    /// # Errors
    /// When the root block cannot be read or is no object set.
    pub fn open(zio: Arc<Zio>, dataset_id: ObjectId, rootbp: &BlkPtr) -> Result<Arc<Objset>, Error> {
        let root = Objset::read_root(&zio, dataset_id, rootbp)?;
        Ok(Arc::new(Objset::assemble(zio, dataset_id, root, None)))
    }

    pub(crate) fn read_root(zio: &Zio, dataset_id: ObjectId, rootbp: &BlkPtr) -> Result<Root, Error> {
        let buf = if rootbp.is_hole() { Buf::zeros(1024) } else { zio.read(rootbp, &Bookmark::root(dataset_id))? };
        let phys = ObjsetPhys::decode(&buf, rootbp.endian()).map_err(|source| Error::Format {
            objset: dataset_id,
            object: ObjectId::META_DNODE,
            source,
        })?;
        Ok(Root::new(*rootbp, phys))
    }

    pub(crate) fn assemble(zio: Arc<Zio>, id: ObjectId, root: Root, live: Option<Box<Live>>) -> Objset {
        Objset { zio, id, root, live, caches: AtomicU8::new(PrimaryCache::All as u8) }
    }

    /// Returns the limit, in bytes, of what may be read ahead of a reader: data that is not cached waits for it in a part of the cache that must not
    /// overflow before it is read. `None` where the ARC keeps data.
    #[must_use]
    pub fn ahead_limit(&self) -> Option<u64> {
        (self.primary_cache() != PrimaryCache::All).then(|| self.zio().arc().stage_room() / 2)
    }

    /// The kinds of blocks that the ARC keeps of what is read from this set: all, unless set otherwise.
    #[must_use]
    pub fn primary_cache(&self) -> PrimaryCache {
        match self.caches.load(Ordering::Relaxed) {
            n if n == PrimaryCache::None as u8 => PrimaryCache::None,
            n if n == PrimaryCache::Metadata as u8 => PrimaryCache::Metadata,
            _ => PrimaryCache::All,
        }
    }

    /// Sets the kinds of blocks that the ARC keeps of what is read from now on.
    pub fn set_primary_cache(&self, caches: PrimaryCache) {
        self.caches.store(caches as u8, Ordering::Relaxed);
    }

    /// The tree under `dn`, the dnode of `object`.
    pub(crate) fn tree<'a>(&'a self, object: ObjectId, dn: &'a DnodePhys) -> Tree<'a> {
        Tree { zio: &self.zio, caches: self.primary_cache(), objset: self.id, object, dn, class: IoClass::SyncRead }
    }

    pub(crate) fn live(&self) -> Option<&Live> {
        self.live.as_deref()
    }

    fn root(&self) -> RootRef<'_> {
        match &self.live {
            Some(live) => RootRef::Live(live.root()),
            None => RootRef::Fixed(&self.root),
        }
    }

    /// The DSL dataset's object number; 0 for the MOS.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// The root block; in a writable set its current state, but its dnodes as of the last sync.
    #[must_use]
    pub fn phys(&self) -> Arc<ObjsetPhys> {
        match &self.live {
            Some(live) => live.newest.read().clone(),
            None => self.root.phys.clone(),
        }
    }

    /// The root block that is on disk, and the pointer to it.
    pub(crate) fn on_disk(&self) -> (Arc<ObjsetPhys>, BlkPtr) {
        let root = self.root();
        (root.phys.clone(), root.bp)
    }

    /// The I/O pipeline that reads its blocks.
    #[must_use]
    pub fn zio(&self) -> &Arc<Zio> {
        &self.zio
    }

    /// The pointer to the root block: as of the last sync.
    #[must_use]
    pub fn rootbp(&self) -> BlkPtr {
        self.live.as_ref().map_or(self.root.bp, |live| live.rootbp())
    }

    /// Object `id`. The numbers of [`Special`] objects give the special objects.
    ///
    /// Without the key of an encrypted dataset the dnode is there all the same; its bonus buffer is ciphertext if its type is an
    /// encrypted one.
    ///
    /// # Errors
    /// [`Error::NoObject`] if the slot is free, inside a larger dnode or beyond the end; else when the dnode cannot be read.
    pub fn object(self: &Arc<Self>, id: ObjectId) -> Result<Object, Error> {
        if let Some(which) = Special::ALL.into_iter().find(|s| s.id() == id) {
            return self.special(which).ok_or(Error::NoObject { objset: self.id, object: id });
        }
        if self.live.is_some() {
            return self.live_object(id);
        }
        let phys = self.dnode(&self.root, id)?.ok_or(Error::NoObject { objset: self.id, object: id })?;
        Ok(Object::new(self.clone(), id, phys))
    }

    /// One of the objects whose dnodes are in the root block; `None` if this set does not have it.
    #[must_use]
    pub fn special(self: &Arc<Self>, which: Special) -> Option<Object> {
        if self.live.is_some() && which != Special::MetaDnode {
            return self.live_object(which.id()).ok();
        }
        let phys = special_dnode(&self.root().phys, which)?.clone();
        Some(Object::new(self.clone(), which.id(), phys))
    }

    /// The number of the first object behind `after` (0 begins); `None` when there is none.
    ///
    /// # Errors
    /// When a block of dnodes, or an indirect block above it, cannot be read.
    pub fn next_object(&self, after: ObjectId) -> Result<Option<ObjectId>, Error> {
        match &self.live {
            Some(live) => self.next_live_object(live, after),
            None => self.next_object_in(&self.root, after),
        }
    }

    pub(crate) fn next_object_in(&self, root: &Root, after: ObjectId) -> Result<Option<ObjectId>, Error> {
        let (tree, per_block) = (self.meta_tree(root), root.dnodes_per_block());
        let Some(mut number) = after.0.checked_add(1) else { return Ok(None) };
        for _ in 0..MAX_EMPTY_BLOCKS {
            let Some(start) = number.checked_div(per_block) else { return Ok(None) };
            let Some(blkid) = root.meta.next_data(&tree, start)? else { return Ok(None) };
            if blkid != start {
                number = blkid.saturating_mul(per_block);
            }
            let Child::Block(bp) = root.meta.pointer(&tree, 0, blkid)? else { return Ok(None) };
            let buf = tree.read_data(&bp, blkid, Interest::Whole)?;
            let wanted = usize::try_from(number % per_block).unwrap_or(usize::MAX);
            if let Some(slot) = slots(&buf).find(|slot| *slot >= wanted) {
                return Ok(blkid.saturating_mul(per_block).checked_add(slot as u64).map(ObjectId));
            }
            match blkid.checked_add(1).and_then(|next| next.checked_mul(per_block)) {
                Some(next) => number = next,
                None => return Ok(None),
            }
        }
        Err(tree.corrupt("number of blocks of free dnodes", MAX_EMPTY_BLOCKS.into()))
    }

    /// All objects in order, without the special ones. Each block of dnodes is read once. An unreadable block or dnode is
    /// an `Err`, and the iteration continues after it.
    pub fn objects(self: &Arc<Self>) -> Objects {
        self.objects_from(ObjectId(1))
    }

    /// All objects from number `first` on.
    pub fn objects_from(self: &Arc<Self>, first: ObjectId) -> Objects {
        let phys = self.root().phys.clone();
        let meta = Object::new(self.clone(), Special::MetaDnode.id(), phys.meta_dnode.clone());
        Objects {
            cursor: BlockCursor::new(meta),
            next: Some(first.0.max(1)),
            block: None,
            left: self.zio.most_blocks(),
            lost: 0..0,
        }
    }

    /// Objects that a block of dnodes has room for; 0 in a set without a meta-dnode.
    #[must_use]
    pub fn dnodes_per_block(&self) -> u64 {
        self.root().dnodes_per_block()
    }

    pub(crate) fn meta_tree<'a>(&'a self, root: &'a Root) -> Tree<'a> {
        self.tree(Special::MetaDnode.id(), &root.phys.meta_dnode)
    }

    pub(crate) fn dnode(&self, root: &Root, id: ObjectId) -> Result<Option<DnodePhys>, Error> {
        let tree = self.meta_tree(root);
        let Some(blkid) = id.0.checked_div(root.dnodes_per_block()) else { return Ok(None) };
        let Child::Block(bp) = root.meta.pointer(&tree, 0, blkid)? else { return Ok(None) };
        let buf = tree.read_data(&bp, blkid, Interest::Whole)?;
        let wanted = usize::try_from(id.0 % root.dnodes_per_block()).unwrap_or(usize::MAX);
        if slots(&buf).take_while(|slot| *slot <= wanted).last() != Some(wanted) {
            return Ok(None);
        }
        decode_slot(&buf, wanted, bp.endian()).map(Some).map_err(|source| Error::Format {
            objset: self.id,
            object: id,
            source,
        })
    }
}

impl std::fmt::Debug for Objset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "objset {} {:?}", self.id, self.phys().os_type)
    }
}

pub(crate) fn special_dnode(phys: &ObjsetPhys, which: Special) -> Option<&DnodePhys> {
    match which {
        Special::MetaDnode => Some(&phys.meta_dnode).filter(|dn| dn.object_type != ObjectType::NONE),
        Special::UserUsed => phys.userused.as_ref(),
        Special::GroupUsed => phys.groupused.as_ref(),
        Special::ProjectUsed => phys.projectused.as_ref(),
    }
}

/// The slots of a block of dnodes at which an allocated dnode begins.
pub(crate) fn slots(block: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut slot = 0;
    std::iter::from_fn(move || {
        loop {
            let at = slot;
            let head = block.get(at * DNODE_SIZE..)?;
            let object_type = bytes::u8(head, 0)?;
            if object_type == ObjectType::NONE.0 {
                slot += 1;
                continue;
            }
            slot += 1 + usize::from(bytes::u8(head, 12)?);
            return Some(at);
        }
    })
}

/// The dnode that begins at a slot of a block.
pub(crate) fn decode_slot(block: &[u8], slot: usize, endian: Endian) -> Result<DnodePhys, ondisk::Error> {
    DnodePhys::decode(block.get(slot * DNODE_SIZE..).unwrap_or(&[]), endian)
}

/// All objects of a set, in order. See [`Objset::objects`].
pub struct Objects {
    cursor: BlockCursor,
    /// The slot of the meta-dnode to look at next; `None` at the end.
    next: Option<u64>,
    block: Option<(u64, Buf, Endian)>,
    /// How many more blocks of dnodes there can be.
    left: u64,
    /// Blocks of dnodes that the last error is about.
    lost: Range<u64>,
}

impl Objects {
    /// The block of dnodes that holds the next object, read if it is not loaded.
    fn load(&mut self, per_block: u64) -> Result<Option<u64>, Error> {
        let (Some(next), true) = (self.next, per_block > 0) else { return Ok(None) };
        let start = next / per_block;
        if self.block.as_ref().is_some_and(|(blkid, ..)| *blkid == start) {
            return Ok(Some(start));
        }
        let Some(blkid) = self.cursor.next_block(start)? else { return Ok(None) };
        if blkid != start {
            self.next = blkid.checked_mul(per_block);
        }
        if let Some((buf, endian)) = self.cursor.block(blkid)? {
            self.block = Some((blkid, buf, endian));
            self.left = self.left.saturating_sub(1);
        }
        Ok(Some(blkid))
    }

    /// Continues at the first object of the block after `blkid`.
    fn leave(&mut self, blkid: u64, per_block: u64) {
        self.next = blkid.checked_add(1).and_then(|next| next.checked_mul(per_block));
    }
}

impl Objects {
    /// After an error that covers more than one dnode: the object numbers that the iteration skips.
    #[must_use]
    pub fn lost(&self) -> Option<Below> {
        let per_block = self.cursor.object().objset().dnodes_per_block();
        let end = self.lost.end.min(self.cursor.object().nblocks()).saturating_mul(per_block);
        let first = self.lost.start.saturating_mul(per_block);
        (first < end).then(|| Below::Objects { first: ObjectId(first), last: ObjectId(end - 1) })
    }

    /// The next object of a writable set, by its current state.
    fn next_live(&mut self, objset: &Arc<Objset>) -> Option<Result<Object, Error>> {
        loop {
            let found = objset.next_object(ObjectId(self.next?.saturating_sub(1)));
            self.next = found.as_ref().ok().copied().flatten().and_then(|id| id.0.checked_add(1));
            match found.map(|id| id.map(|id| objset.object(id))) {
                Ok(Some(Err(err))) if err.is_not_found() => {}
                Ok(object) => return object,
                Err(err) => return Some(Err(err)),
            }
        }
    }
}

impl Iterator for Objects {
    type Item = Result<Object, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let objset = self.cursor.object().objset().clone();
        if objset.live.is_some() {
            return self.next_live(&objset);
        }
        let per_block = objset.dnodes_per_block();
        for _ in 0..self.left.min(MAX_EMPTY_BLOCKS.into()) {
            let blkid = match self.load(per_block) {
                Ok(found) => found?,
                Err(err) => {
                    // a block of dnodes or an indirect block is lost: the number of its objects is unknown
                    self.left = self.left.saturating_sub(1);
                    self.lost = self.cursor.damaged();
                    self.next = self.cursor.behind_damage().and_then(|blkid| blkid.checked_mul(per_block));
                    return Some(Err(err));
                }
            };
            let first = blkid.saturating_mul(per_block);
            let wanted = usize::try_from(self.next?.saturating_sub(first)).unwrap_or(usize::MAX);
            let Some((_, buf, endian)) = &self.block else { return None };
            let Some(slot) = slots(buf).find(|slot| *slot >= wanted) else {
                self.leave(blkid, per_block);
                continue;
            };
            let id = ObjectId(first.saturating_add(slot as u64));
            self.next = id.0.checked_add(1);
            let dnode = decode_slot(buf, slot, *endian);
            self.lost = 0..0;
            return Some(match dnode {
                Ok(phys) => Ok(Object::new(objset, id, phys)),
                Err(source) => Err(Error::Format { objset: objset.id(), object: id, source }),
            });
        }
        let at = self.next.take()?;
        Some(Err(Error::Corrupt {
            objset: objset.id(),
            object: ObjectId::META_DNODE,
            what: "number of blocks of dnodes before object",
            value: at,
        }))
    }
}
