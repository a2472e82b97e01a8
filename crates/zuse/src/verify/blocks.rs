//! All blocks of a pool, each once: the block trees of the MOS and of every dataset and snapshot, and what is allocated though no
//! tree holds it (frees that are put off, trees and clones under destruction, intent logs).

use std::ops::ControlFlow;
use std::sync::Arc;

use base::{ObjectId, Txg};
use dmu::{Objset, Visit, Walk};
use ondisk::{BlkPtr, DnodePhys, ObjectType, Position};
use pool::{Dataset, ListOptions, Pool};
use zio::{Bookmark, IoClass};

use crate::verify::Error;

/// Why a block is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It stands in the block tree of the MOS, a dataset or a snapshot.
    Tree,
    /// An intent-log block, or data that a log record points at.
    Log,
    /// Its free is put off (OpenZFS: the deferred and asynchronous free lists).
    DeferredFree,
    /// It belongs to a dataset or clone that is being destroyed.
    Destroying,
}

/// A block, or the report that those below one cannot be reached or are counted wrong.
#[derive(Debug)]
pub struct Block<'a> {
    /// Its bookmark.
    pub bm: &'a Bookmark,
    /// Its pointer. Holes are not reported, embedded blocks are.
    pub bp: &'a BlkPtr,
    /// Why it is allocated.
    pub role: Role,
    /// Type of its object (not of the pointer, which in an intent log is the log's own).
    pub object_type: ObjectType,
    /// Set when the blocks below this one cannot be reached, and why; or when their number is not what the pointer says ([`dmu::Error::Fill`]).
    pub damage: Option<&'a dmu::Error>,
    /// Its object, where the tree of one was followed.
    pub dnode: Option<&'a DnodePhys>,
}

/// Receives every block.
pub type Visitor<'v> = &'v mut dyn FnMut(&Block<'_>);

/// Visits every allocated block of `pool`. With `only`, those of that dataset alone, including what it shares with snapshots.
///
/// # Errors
/// When the lists of datasets cannot be read. Damage in a tree is reported to `visit`.
pub fn visit_blocks(pool: &Arc<Pool>, only: Option<&Dataset>, visit: Visitor<'_>) -> Result<(), Error> {
    if let Some(dataset) = only {
        return visit_dataset(dataset, Txg(0), visit);
    }
    visit_objset(pool.mos(), Txg(0), Role::Tree, visit);
    let everything = ListOptions { bookmarks: false, special: true, ..ListOptions::ALL };
    for entry in pool.list(pool.name(), &everything)? {
        if let Some(dataset) = entry.dataset() {
            // what was born before the previous snapshot and is still there, that snapshot has as well
            visit_dataset(dataset, dataset.phys().prev_snap_txg, visit)?;
        }
    }
    visit_freed(pool, visit)
}

fn visit_dataset(dataset: &Dataset, after: Txg, visit: Visitor<'_>) -> Result<(), Error> {
    let root = &dataset.phys().bp;
    let unchanged = root.is_hole() || root.birth() <= after;
    if unchanged && dataset.is_snapshot() {
        return Ok(());
    }
    match dataset.objset() {
        Ok(objset) => {
            if !unchanged {
                visit_objset(&objset, after, Role::Tree, visit);
            }
            if !dataset.is_snapshot() {
                visit_log(&objset, dataset.pool().uberblock().txg, visit);
            }
            Ok(())
        }
        Err(pool::Error::Dmu(why)) => {
            let bm = Bookmark::root(dataset.id());
            let mut block = Block {
                bm: &bm,
                bp: root,
                role: Role::Tree,
                object_type: ObjectType::OBJSET,
                damage: None,
                dnode: None,
            };
            visit(&block);
            block.damage = Some(&why);
            visit(&block);
            Ok(())
        }
        Err(other) => Err(other.into()),
    }
}

fn visit_objset(objset: &Arc<Objset>, after: Txg, role: Role, visit: Visitor<'_>) {
    let mut visit = |at: &Visit<'_>| {
        if at.bp.is_hole() || at.bp.birth() <= after {
            return Walk::Skip;
        }
        let object_type =
            if at.level == Bookmark::ROOT_LEVEL { ObjectType::OBJSET } else { type_of(at.dnode, at.bookmark) };
        visit(&Block { bm: at.bookmark, bp: at.bp, role, object_type, damage: at.damage, dnode: Some(at.dnode) });
        Walk::Into
    };
    // what is being destroyed may be free in part, and be something else by now
    let whole = role == Role::Tree;
    if whole {
        objset.walk_counting(&mut visit)
    } else {
        objset.walk_as(IoClass::AsyncRead, &mut visit)
    };
}

/// The type under which a block is counted: that of its object, and SA for a spill block.
fn type_of(dnode: &DnodePhys, bm: &Bookmark) -> ObjectType {
    if bm.blkid == Bookmark::SPILL_BLKID { dnode.bonus_type } else { dnode.object_type }
}

/// The blocks of an intent log that are allocated as of `synced`: what was written later is not yet in any space map.
fn visit_log(objset: &Arc<Objset>, synced: Txg, visit: Visitor<'_>) {
    let mut log = |bp: &BlkPtr, seq: u64, object_type| {
        if !bp.is_hole() && bp.birth() <= synced {
            let bm = Bookmark::new(objset.id(), ObjectId::NONE, Bookmark::ZIL_LEVEL, seq);
            visit(&Block { bm: &bm, bp, role: Role::Log, object_type, damage: None, dnode: None });
        }
    };
    zil::walk(objset, &mut |step| {
        match step {
            zil::Step::Block(bp) => log(bp, bp.words[15], ObjectType::INTENT_LOG),
            zil::Step::Record { record, .. } => {
                for bp in record.clear_blkptrs().unwrap_or_default() {
                    log(&bp, record.header.seq, bp.object_type());
                }
            }
        }
        ControlFlow::Continue(())
    });
}

/// Visits blocks that their owners have freed and that are still allocated.
fn visit_freed(pool: &Arc<Pool>, visit: Visitor<'_>) -> Result<(), Error> {
    let bm = Bookmark::new(ObjectId::MOS, ObjectId::META_DNODE, 0, 0);
    for list in pool.deferred_frees()? {
        let bm = Bookmark { object: list.id(), ..bm };
        list.for_each(&mut |bp| {
            visit(&Block {
                bm: &bm,
                bp,
                role: Role::DeferredFree,
                object_type: bp.object_type(),
                damage: None,
                dnode: None,
            });
            Ok(())
        })?;
    }
    for tree in pool.destroyed_trees()? {
        let Position { objset, object, .. } = tree.bookmark;
        let Ok(objset) = Objset::open(Arc::clone(pool.zio()), objset, &tree.bp) else { continue };
        // what the destroy has passed is free already
        visit_objset(&objset, tree.birth_txg, Role::Destroying, &mut |block| {
            if block.bm.object >= object {
                visit(block);
            }
        });
    }
    for bp in &pool.destroyed_clone_blocks()? {
        visit(&Block { bm: &bm, bp, role: Role::Destroying, object_type: bp.object_type(), damage: None, dnode: None });
    }
    Ok(())
}
