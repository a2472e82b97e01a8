//! The block tree of an object, or of a whole object set, in pre-order (OpenZFS: `traverse_dataset`).
//!
//! A walk that counts compares each pointer's fill count with what is below it (OpenZFS: `dbuf_write_ready`; zdb:
//! `visit_indirect`): a data block counts 1 (embedded and redacted ones too), a block of dnodes the number of dnodes that
//! begin in it, a block of pointers the sum of its pointers' counts, a hole 0.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::ObjectId;
use ondisk::{BlkPtr, DnodePhys, ObjectType};
use zio::{Bookmark, IoClass, Zio};

use crate::objset::{decode_slot, slots, special_dnode};
use crate::tree::{Interest, Tree};
use crate::{Below, Error, Object, Objset, PrimaryCache, Special};

/// One block pointer on a walk.
#[derive(Clone, Copy)]
pub struct Visit<'a> {
    /// The position of the block: dataset, object, level, block id.
    pub bookmark: &'a Bookmark,
    /// The pointer; holes are visited too.
    pub bp: &'a BlkPtr,
    /// 0 for data, n for an indirect block; [`Bookmark::ROOT_LEVEL`] for the root block of an object set.
    pub level: u8,
    /// The dnode of the object that the block belongs to (of the meta-dnode, for the root block).
    pub dnode: &'a DnodePhys,
    /// `None` on the way down. After [`Walk::Into`], a block whose children cannot be reached is visited once more, with
    /// the reason; on a walk that counts, a block with a wrong fill count is also visited again, with [`Error::Fill`].
    pub damage: Option<&'a Error>,
}

impl Visit<'_> {
    /// The blocks or objects below the block, which are lost if it is damaged.
    #[must_use]
    pub fn below(&self) -> Option<Below> {
        Below::of(self.dnode, self.bookmark)
    }
}

/// The visitor's answer: how the walk continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// Continue, into the blocks below this one.
    Into,
    /// Continue, but skip the blocks below this one.
    Skip,
    /// End the walk.
    Stop,
}

type Visitor<'v> = &'v mut dyn FnMut(&Visit<'_>) -> Walk;

impl Object {
    /// Visits every pointer of the object in pre-order, holes included, the spill block last. Indirect blocks are read,
    /// data is not. An unreadable indirect block is reported to the visitor ([`Visit::damage`]) and the walk continues
    /// after it. Returns whether the walk ran to its end ([`Walk::Stop`] was not returned).
    pub fn walk(&self, visit: Visitor<'_>) -> bool {
        let mut walker = Walker::new(self.objset(), visit);
        walker.dnode(self.id(), &self.on_disk()).is_continue()
    }
}

impl Objset {
    /// Visits every pointer of the object set in pre-order: its root block, the blocks of dnodes, below each of them the
    /// trees of its objects, then the accounting objects. Blocks of dnodes are read and decoded once. `Skip` on a block
    /// of dnodes skips its objects. Returns whether the walk ran to its end.
    pub fn walk(self: &Arc<Self>, visit: Visitor<'_>) -> bool {
        self.walk_all(visit, false, IoClass::SyncRead)
    }

    /// As [`Objset::walk`], with reads of I/O class `class`.
    pub fn walk_as(self: &Arc<Self>, class: IoClass, visit: Visitor<'_>) -> bool {
        self.walk_all(visit, false, class)
    }

    /// As [`Objset::walk`]; blocks with a wrong fill count are reported as damage, with [`Error::Fill`], after the blocks
    /// below them were visited.
    pub fn walk_counting(self: &Arc<Self>, visit: Visitor<'_>) -> bool {
        self.walk_all(visit, true, IoClass::AsyncRead)
    }

    fn walk_all(self: &Arc<Self>, visit: Visitor<'_>, counts: bool, class: IoClass) -> bool {
        let bookmark = Bookmark::root(self.id());
        let (phys, root) = self.on_disk();
        let meta = &phys.meta_dnode;
        match visit(&Visit { bookmark: &bookmark, bp: &root, level: Bookmark::ROOT_LEVEL, dnode: meta, damage: None }) {
            Walk::Into => {}
            Walk::Skip => return true,
            Walk::Stop => return false,
        }
        if let Some(err) = wrong_root(&bookmark, &root, meta).filter(|_| counts) {
            let damage = Some(&err);
            if visit(&Visit { bookmark: &bookmark, bp: &root, level: Bookmark::ROOT_LEVEL, dnode: meta, damage })
                == Walk::Stop
            {
                return false;
            }
        }
        let mut walker = Walker { counts, class, ..Walker::new(self, visit) };
        for which in Special::ALL {
            let Some(dn) = special_dnode(&phys, which) else { continue };
            walker.into_dnodes = which == Special::MetaDnode;
            if walker.dnode(which.id(), dn).is_break() {
                return false;
            }
        }
        true
    }
}

/// The error of a root block with a wrong count of objects. Older software counted the meta-dnode as well.
fn wrong_root(bm: &Bookmark, root: &BlkPtr, meta: &DnodePhys) -> Option<Error> {
    let (counted, found) = (root.fill(), meta.blkptr.iter().map(count_of).fold(0, u64::wrapping_add));
    let right = counted == found || counted.checked_sub(1) == Some(found);
    (!right).then_some(Error::Fill { bm: *bm, counted, found })
}

/// The amount that a pointer adds to the fill count of the block that contains it.
fn count_of(bp: &BlkPtr) -> u64 {
    if bp.is_hole() { 0 } else { bp.fill() }
}

struct Walker<'a, 'v> {
    zio: &'a Zio,
    caches: PrimaryCache,
    objset: ObjectId,
    visit: Visitor<'v>,
    /// True if data blocks of the current object are dnodes whose trees are to be walked as well.
    into_dnodes: bool,
    /// True if fill counts are checked.
    counts: bool,
    class: IoClass,
    /// An upper bound of the blocks of pointers or dnodes still to be visited.
    left: u64,
}

impl<'a, 'v> Walker<'a, 'v> {
    fn new(objset: &'a Objset, visit: Visitor<'v>) -> Self {
        let zio = objset.zio();
        let caches = objset.primary_cache();
        Walker {
            zio,
            caches,
            objset: objset.id(),
            visit,
            into_dnodes: false,
            counts: false,
            class: IoClass::SyncRead,
            left: zio.most_blocks(),
        }
    }

    fn spend(&mut self, tree: &Tree<'_>) -> Result<(), Error> {
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| tree.corrupt("number of indirect blocks", self.zio.most_blocks()))?;
        Ok(())
    }

    fn dnode(&mut self, object: ObjectId, dn: &DnodePhys) -> ControlFlow<()> {
        let Walker { zio, caches, objset, class, .. } = *self;
        let tree = Tree { zio, caches, objset, object, dn, class };
        for (n, bp) in dn.blkptr.iter().enumerate() {
            self.block(&tree, bp, tree.top(), n as u64)?;
        }
        if let Some(bp) = &dn.spill {
            let bookmark = tree.bookmark(0, Bookmark::SPILL_BLKID);
            let visit = Visit { bookmark: &bookmark, bp, level: 0, dnode: dn, damage: None };
            match (self.visit)(&visit) {
                Walk::Stop => return ControlFlow::Break(()),
                Walk::Into if !bp.is_hole() => return self.count(&visit, 1),
                Walk::Into | Walk::Skip => {}
            }
        }
        ControlFlow::Continue(())
    }

    /// Visits one block and what is below it. The depth is bounded by the levels of a dnode (16), twice with dnodes below.
    fn block(&mut self, tree: &Tree<'_>, bp: &BlkPtr, level: u8, blkid: u64) -> ControlFlow<()> {
        let bookmark = tree.bookmark(level, blkid);
        match (self.visit)(&Visit { bookmark: &bookmark, bp, level, dnode: tree.dn, damage: None }) {
            Walk::Stop => return ControlFlow::Break(()),
            Walk::Skip => return ControlFlow::Continue(()),
            Walk::Into if bp.is_hole() => return ControlFlow::Continue(()),
            Walk::Into => {}
        }
        let below = match level {
            0 if self.into_dnodes => self.dnode_block(tree, bp, blkid),
            // blocks of dnodes whose objects are not wanted are not read
            0 if tree.dn.object_type == ObjectType::DNODE => return ControlFlow::Continue(()),
            0 => Ok(ControlFlow::Continue(1)),
            _ => self.indirect(tree, bp, level, blkid),
        };
        let visit = Visit { bookmark: &bookmark, bp, level, dnode: tree.dn, damage: None };
        match below {
            Ok(ControlFlow::Break(())) => ControlFlow::Break(()),
            Ok(ControlFlow::Continue(found)) => self.count(&visit, found),
            Err(err) => self.damaged(&Visit { damage: Some(&err), ..visit }),
        }
    }

    /// Reports a pointer whose fill count is not `found`, on a walk that counts.
    fn count(&mut self, visit: &Visit<'_>, found: u64) -> ControlFlow<()> {
        let counted = visit.bp.fill();
        if !self.counts || counted == found {
            return ControlFlow::Continue(());
        }
        let err = Error::Fill { bm: *visit.bookmark, counted, found };
        self.damaged(&Visit { damage: Some(&err), ..*visit })
    }

    fn damaged(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        if (self.visit)(visit) == Walk::Stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Visits the blocks below a block of pointers; returns the sum of their fill counts.
    fn indirect(&mut self, tree: &Tree<'_>, bp: &BlkPtr, level: u8, blkid: u64) -> Result<ControlFlow<(), u64>, Error> {
        self.spend(tree)?;
        let block = tree.read_indirect(bp, level, blkid)?;
        let first =
            blkid.checked_mul(block.len()).ok_or_else(|| tree.corrupt("block id of an indirect block", blkid))?;
        let mut found = 0;
        for n in 0..block.len() {
            let (child, pointer) = (first.saturating_add(n), block.pointer(n));
            found = count_of(&pointer).wrapping_add(found);
            if self.block(tree, &pointer, level - 1, child).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(found))
    }

    /// Visits the trees of the objects in a block of dnodes; returns the number of objects.
    fn dnode_block(&mut self, tree: &Tree<'_>, bp: &BlkPtr, blkid: u64) -> Result<ControlFlow<(), u64>, Error> {
        self.spend(tree)?;
        let block = tree.read_data(bp, blkid, Interest::Whole)?;
        let first = blkid.saturating_mul((block.len() / ondisk::DNODE_SIZE) as u64);
        self.into_dnodes = false;
        let mut found = 0;
        for slot in slots(&block) {
            let object = ObjectId(first.saturating_add(slot as u64));
            let flow = match decode_slot(&block, slot, bp.endian()) {
                Ok(dn) => self.dnode(object, &dn),
                Err(source) => {
                    let err = Error::Format { objset: self.objset, object, source };
                    let bookmark = tree.bookmark(0, blkid);
                    self.damaged(&Visit { bookmark: &bookmark, bp, level: 0, dnode: tree.dn, damage: Some(&err) })
                }
            };
            if flow.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            found += 1;
        }
        self.into_dnodes = true;
        Ok(ControlFlow::Continue(found))
    }
}
