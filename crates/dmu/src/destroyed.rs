//! Walks the blocks of an object set that is being destroyed, so that they can be freed one by one (OpenZFS:
//! `traverse_dataset_destroyed`).
//!
//! Blocks come in post-order: a block after everything below it, so that the blocks left are still reachable from the
//! root. The walk can pause before any block of level 0 and be resumed later; the position is a [`Bookmark`] of level 0,
//! which is stored on disk with the tree (`bptree_entry_phys_t`). Blocks not born after a given txg are not visited: they
//! have another owner.

use base::{ObjectId, Txg, tasks};
use ondisk::{BlkPtr, DNODE_SIZE, DnodePhys, ObjsetPhys};
use zio::{Bookmark, IoClass, Zio};

use crate::objset::{Special, decode_slot, slots, special_dnode};
use crate::tree::{Interest, Tree};
use crate::{Error, PrimaryCache};

/// The object set of bookmarks in trees that are destroyed (OpenZFS: `ZB_DESTROYED_OBJSET`).
pub const DESTROYED_OBJSET: ObjectId = ObjectId(u64::MAX);

/// How a walk ended.
#[derive(Debug)]
pub enum Ended {
    /// All blocks were visited.
    Done,
    /// The visitor stopped the walk: the position to resume from.
    Paused(Bookmark),
    /// The block above this position could not be read; nothing below it was visited.
    Damaged(Bookmark, Error),
}

/// The reason why a walk stops.
enum Stop {
    Paused(Bookmark),
    Damaged(Bookmark, Error),
}

type Walked = Result<(), Stop>;

/// Walks the tree below `root` from `resume` on, or from its beginning if `resume` is all zeros. `room` says whether one
/// more block may be visited; it is asked before each block of level 0. `visit` gets each block that was born after
/// `since` and is not a hole.
pub fn walk_destroyed(
    zio: &Zio,
    root: &BlkPtr,
    since: Txg,
    resume: Option<Bookmark>,
    room: &mut dyn FnMut() -> bool,
    visit: &mut dyn FnMut(&BlkPtr),
) -> Ended {
    let mut walk = Destroyed { zio, since, resume, room, visit, dnodes_per_block: 1 };
    // what cannot be read is left for later
    match tasks::can_fail(|| walk.root(root)) {
        Ok(()) => Ended::Done,
        Err(Stop::Paused(at)) => Ended::Paused(at),
        Err(Stop::Damaged(at, error)) => Ended::Damaged(at, error),
    }
}

struct Destroyed<'a> {
    zio: &'a Zio,
    since: Txg,
    /// The position at which the last walk ended; `None` once it is reached.
    resume: Option<Bookmark>,
    room: &'a mut dyn FnMut() -> bool,
    visit: &'a mut dyn FnMut(&BlkPtr),
    dnodes_per_block: u64,
}

/// The part of a subtree that is still to be visited.
enum Left {
    Nothing,
    /// The block itself: the last walk visited everything below it and ended before it.
    Itself,
    All,
}

impl Destroyed<'_> {
    fn is_due(&self, bp: &BlkPtr) -> bool {
        !bp.is_hole() && !bp.is_redacted() && bp.birth() > self.since
    }

    /// Objects come in the order of their blocks of dnodes, the accounting objects last. (OpenZFS: `zbookmark_subtree_completed`,
    /// `resume_skip_check`.)
    fn left_of(&mut self, tree: &Tree<'_>, level: u8, blkid: u64) -> Left {
        let Some(resume) = self.resume else { return Left::All };
        if level == 0 && (resume.object, resume.blkid) == (tree.object, blkid) {
            self.resume = None;
            return Left::Itself;
        }
        let end = u128::from(blkid) + 1;
        let end = u64::try_from(end << tree.span_shift(level).min(63)).unwrap_or(u64::MAX);
        let done = match (tree.object, resume.object) {
            (ObjectId::META_DNODE, ObjectId::META_DNODE) => end <= resume.blkid,
            // all dnodes below come before the one that the walk had reached
            (ObjectId::META_DNODE, object) => end.saturating_mul(self.dnodes_per_block) <= object.0,
            // the walk had reached a block of dnodes, after all the objects in it
            (object, ObjectId::META_DNODE) => object.0 / self.dnodes_per_block < resume.blkid,
            (object, reached) => object < reached || (object == reached && end <= resume.blkid),
        };
        if done { Left::Nothing } else { Left::All }
    }

    fn damaged(tree: &Tree<'_>, level: u8, blkid: u64, error: Error) -> Stop {
        let first = blkid.checked_shl(tree.span_shift(level)).unwrap_or(blkid);
        Stop::Damaged(Bookmark::new(DESTROYED_OBJSET, tree.object, 0, first), error)
    }

    fn root(&mut self, bp: &BlkPtr) -> Walked {
        if !self.is_due(bp) {
            return Ok(());
        }
        let at = Bookmark::new(DESTROYED_OBJSET, ObjectId::META_DNODE, 0, 0);
        let phys = match self.read_root(bp) {
            Ok(phys) => phys,
            Err(error) => return Err(Stop::Damaged(self.resume.unwrap_or(at), error)),
        };
        self.dnodes_per_block = (phys.meta_dnode.datablksz() / DNODE_SIZE as u64).max(1);
        for which in Special::ALL {
            let Some(dn) = special_dnode(&phys, which) else { continue };
            self.dnode(which.id(), dn)?;
        }
        (self.visit)(bp);
        Ok(())
    }

    fn read_root(&self, bp: &BlkPtr) -> Result<ObjsetPhys, Error> {
        let buf = self.zio.read_uncached(bp, &Bookmark::root(DESTROYED_OBJSET));
        let buf = match buf {
            Err(zio::Error::KeyNotLoaded { .. }) => self.zio.read_noauth(bp, &Bookmark::root(DESTROYED_OBJSET))?,
            other => other?,
        };
        ObjsetPhys::decode(&buf, bp.endian()).map_err(|source| Error::Format {
            objset: DESTROYED_OBJSET,
            object: ObjectId::META_DNODE,
            source,
        })
    }

    /// Visits the spill block first: OpenZFS takes it for visited when it resumes within an object.
    fn dnode(&mut self, object: ObjectId, dn: &DnodePhys) -> Walked {
        let (objset, class) = (DESTROYED_OBJSET, IoClass::SyncRead);
        let tree = Tree { zio: self.zio, caches: PrimaryCache::All, objset, object, dn, class };
        let before = match self.resume {
            Some(resume) if resume.object == ObjectId::META_DNODE => object.0 / self.dnodes_per_block < resume.blkid,
            Some(resume) => object <= resume.object,
            None => false,
        };
        if let Some(bp) = dn.spill.as_ref().filter(|bp| !before && self.is_due(bp)) {
            (self.visit)(bp);
        }
        for (n, bp) in dn.blkptr.iter().enumerate() {
            self.block(&tree, bp, tree.top(), n as u64)?;
        }
        Ok(())
    }

    /// The depth is bounded by the levels of a dnode, twice with dnodes below.
    fn block(&mut self, tree: &Tree<'_>, bp: &BlkPtr, level: u8, blkid: u64) -> Walked {
        if !self.is_due(bp) {
            return Ok(());
        }
        match level {
            0 => return self.leaf(tree, bp, blkid),
            _ if matches!(self.left_of(tree, level, blkid), Left::Nothing) => return Ok(()),
            _ => {}
        }
        let block = tree.read_indirect(bp, level, blkid).map_err(|e| Self::damaged(tree, level, blkid, e))?;
        for n in 0..block.len() {
            let child = blkid.saturating_mul(block.len()).saturating_add(n);
            self.block(tree, &block.pointer(n), level - 1, child)?;
        }
        (self.visit)(bp);
        Ok(())
    }

    fn leaf(&mut self, tree: &Tree<'_>, bp: &BlkPtr, blkid: u64) -> Walked {
        if !self.is_due(bp) {
            return Ok(());
        }
        match self.left_of(tree, 0, blkid) {
            Left::Nothing => return Ok(()),
            Left::All if tree.object == ObjectId::META_DNODE => self.objects(tree, bp, blkid)?,
            Left::All | Left::Itself => {}
        }
        if !(self.room)() {
            return Err(Stop::Paused(Bookmark::new(DESTROYED_OBJSET, tree.object, 0, blkid)));
        }
        (self.visit)(bp);
        Ok(())
    }

    /// The objects in a block of dnodes.
    fn objects(&mut self, tree: &Tree<'_>, bp: &BlkPtr, blkid: u64) -> Walked {
        let block = tree.read_data(bp, blkid, Interest::Whole).map_err(|e| Self::damaged(tree, 0, blkid, e))?;
        let first = blkid.saturating_mul((block.len() / DNODE_SIZE) as u64);
        for slot in slots(&block) {
            let object = ObjectId(first.saturating_add(slot as u64));
            let dn = decode_slot(&block, slot, bp.endian())
                .map_err(|source| Error::Format { objset: DESTROYED_OBJSET, object, source })
                .map_err(|e| Self::damaged(tree, 0, blkid, e))?;
            self.dnode(object, &dn)?;
        }
        Ok(())
    }
}
