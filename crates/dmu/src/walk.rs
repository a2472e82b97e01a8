//! The block tree of an object, or of a whole object set, in pre-order (OpenZFS: `traverse_dataset`).

use std::ops::ControlFlow;
use std::sync::Arc;

use ondisk::{BlkPtr, DnodePhys};
use zio::{Bookmark, Zio};

use crate::objset::{decode_slot, slots, special_dnode};
use crate::tree::{Interest, Tree};
use crate::{Below, Error, Object, Objset, PrimaryCache, Special};

/// One block pointer on a walk.
pub struct Visit<'a> {
    /// Where the block belongs.
    pub bookmark: &'a Bookmark,
    /// The pointer; holes are visited too.
    pub bp: &'a BlkPtr,
    /// 0 for data, n for an indirect block; [`Bookmark::ROOT_LEVEL`] for the root block of an object set.
    pub level: u8,
    /// The dnode of the object that the block belongs to (of the meta-dnode, for the root block).
    pub dnode: &'a DnodePhys,
    /// `None` on the way down. After [`Walk::Into`], a block whose children cannot be reached is visited once more, with the reason.
    pub damage: Option<&'a Error>,
}

impl Visit<'_> {
    /// What is below the block, and lost with it if it is damaged.
    #[must_use]
    pub fn below(&self) -> Option<Below> {
        Below::of(self.dnode, self.bookmark)
    }
}

/// What a visitor wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// Go on, into the blocks below this one.
    Into,
    /// Go on, but leave out what is below this block.
    Skip,
    /// End the walk.
    Stop,
}

type Visitor<'v> = &'v mut dyn FnMut(&Visit<'_>) -> Walk;

impl Object {
    /// Visits every pointer of the object in pre-order, holes included, the spill block last. Indirect blocks are read, data is
    /// not. An unreadable indirect block is reported to the visitor ([`Visit::damage`]) and the walk goes on beside it.
    /// Gives whether the walk came to its end ([`Walk::Stop`] was not asked for).
    pub fn walk(&self, visit: Visitor<'_>) -> bool {
        let mut walker = Walker::new(self.objset(), visit);
        walker.dnode(self.id(), &self.on_disk()).is_continue()
    }
}

impl Objset {
    /// Visits every pointer of the object set in pre-order: its root block, the blocks of dnodes, below each of them the trees
    /// of its objects, then the accounting objects. Blocks of dnodes are read and decoded once. `Skip` on a block of dnodes
    /// leaves out its objects. Gives whether the walk came to its end.
    pub fn walk(self: &Arc<Self>, visit: Visitor<'_>) -> bool {
        let bookmark = Bookmark::root(self.id());
        let (phys, root) = self.on_disk();
        let meta = &phys.meta_dnode;
        match visit(&Visit { bookmark: &bookmark, bp: &root, level: Bookmark::ROOT_LEVEL, dnode: meta, damage: None }) {
            Walk::Into => {}
            Walk::Skip => return true,
            Walk::Stop => return false,
        }
        let mut walker = Walker::new(self, visit);
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

struct Walker<'a, 'v> {
    zio: &'a Zio,
    caches: PrimaryCache,
    objset: u64,
    visit: Visitor<'v>,
    /// Whether data blocks of the object under way are dnodes whose trees are to be walked as well.
    into_dnodes: bool,
    /// How many more blocks of pointers or dnodes there can be.
    left: u64,
}

impl<'a, 'v> Walker<'a, 'v> {
    fn new(objset: &'a Objset, visit: Visitor<'v>) -> Self {
        let zio = objset.zio();
        let caches = objset.primary_cache();
        Walker { zio, caches, objset: objset.id(), visit, into_dnodes: false, left: zio.most_blocks() }
    }

    fn spend(&mut self, tree: &Tree<'_>) -> Result<(), Error> {
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| tree.corrupt("number of indirect blocks", self.zio.most_blocks()))?;
        Ok(())
    }

    fn dnode(&mut self, object: u64, dn: &DnodePhys) -> ControlFlow<()> {
        let tree = Tree { zio: self.zio, caches: self.caches, objset: self.objset, object, dn };
        for (n, bp) in dn.blkptr.iter().enumerate() {
            self.block(&tree, bp, tree.top(), n as u64)?;
        }
        if let Some(bp) = &dn.spill {
            let bookmark = tree.bookmark(0, Bookmark::SPILL_BLKID);
            if (self.visit)(&Visit { bookmark: &bookmark, bp, level: 0, dnode: dn, damage: None }) == Walk::Stop {
                return ControlFlow::Break(());
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
            0 => return ControlFlow::Continue(()),
            _ => self.indirect(tree, bp, level, blkid),
        };
        match below {
            Ok(flow) => flow,
            Err(err) => self.damaged(&Visit { bookmark: &bookmark, bp, level, dnode: tree.dn, damage: Some(&err) }),
        }
    }

    fn damaged(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        if (self.visit)(visit) == Walk::Stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn indirect(&mut self, tree: &Tree<'_>, bp: &BlkPtr, level: u8, blkid: u64) -> Result<ControlFlow<()>, Error> {
        self.spend(tree)?;
        let block = tree.read_indirect(bp, level, blkid)?;
        let first =
            blkid.checked_mul(block.len()).ok_or_else(|| tree.corrupt("block id of an indirect block", blkid))?;
        for n in 0..block.len() {
            let child = first.saturating_add(n);
            if self.block(tree, &block.pointer(n), level - 1, child).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn dnode_block(&mut self, tree: &Tree<'_>, bp: &BlkPtr, blkid: u64) -> Result<ControlFlow<()>, Error> {
        self.spend(tree)?;
        let block = tree.read_data(bp, blkid, Interest::Whole)?;
        let first = blkid.saturating_mul((block.len() / ondisk::DNODE_SIZE) as u64);
        self.into_dnodes = false;
        let mut flow = ControlFlow::Continue(());
        for slot in slots(&block) {
            let object = first.saturating_add(slot as u64);
            flow = match decode_slot(&block, slot, bp.endian()) {
                Ok(dn) => self.dnode(object, &dn),
                Err(source) => {
                    let err = Error::Format { objset: self.objset, object, source };
                    let bookmark = tree.bookmark(0, blkid);
                    self.damaged(&Visit { bookmark: &bookmark, bp, level: 0, dnode: tree.dn, damage: Some(&err) })
                }
            };
            if flow.is_break() {
                break;
            }
        }
        self.into_dnodes = true;
        Ok(flow)
    }
}
