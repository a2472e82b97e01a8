//! Destroys file systems and volumes (OpenZFS: `dsl_destroy_head`).
//!
//! The name is removed at once, with its properties, bookmarks, permissions and key. The blocks are freed in one of three ways:
//!
//! * a clone with a livelist: through the livelist, in the background (`livelist`);
//! * with feature `async_destroy`: through the block tree, in the background (`async_destroy`);
//! * in older pools: in the same txg. To bound that txg, the dataset is first marked as inconsistent, and its objects are freed in txgs of bounded
//!   size.
//!
//! An origin whose destruction was deferred is destroyed with its last clone.

pub(in crate::dsl) mod background;
mod freed;
mod old;
mod remap;
pub(in crate::dsl) mod snapshot;

use std::sync::Arc;

use base::{ObjectId, Txg};
use dmu::{Objset, Tx};
use ondisk::BlkPtr;
use ondisk::dsl::{DslDatasetPhys, DslDirPhys, dataset_keys, dir_keys};

use crate::Error;
use crate::dsl::Refusal;
use crate::dsl::crypt::write::KEY_REFCOUNT;
use crate::dsl::deadlist::Deadlist;
use crate::dsl::destroy::snapshot::Doomed;
use crate::dsl::hold::is_due;
use crate::dsl::lookup::Live;
use crate::dsl::refused;
use crate::dsl::space::quota::used_of;
use crate::dsl::space::{Delta, Used};
use crate::spa::errlog;
use crate::spa::mos::Mos;
use crate::spa::mos::edit::remove_present;
use crate::spa::{Spa, TaskCx};

/// The last name of the hidden dataset of an interrupted receive, below the file system that it was for.
const RECEIVE: &str = "%recv";
/// Objects freed per txg in pools without freeing in the background.
const OBJECTS_AT_ONCE: usize = 4096;

impl Spa {
    /// Destroys the file system or volume `name`, which must not be in use and must have neither snapshots nor children. (The remains of an
    /// interrupted receive below it are destroyed with it.) Its space is freed in the background, see [`Spa::wait_freed`].
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`]; [`Error::Refused`]: [`Refusal::Busy`], [`Refusal::HasSnapshots`], [`Refusal::HasChildren`],
    /// [`Refusal::Invalid`] for the pool's own dataset.
    pub fn destroy_head(self: &Arc<Self>, name: &str) -> Result<(), Error> {
        let (name, _frozen) = (name.to_string(), self.freeze_holds());
        if !self.feature_enabled(&self.live_mos()?, "async_destroy")? {
            self.sync_task({
                let name = name.clone();
                move |cx| cx.spa.begin_destroy(cx, &name)
            })?;
            self.free_objects(&name)?;
        }
        self.sync_task(move |cx| cx.spa.destroy_named(cx, &name))
    }

    /// Destroys datasets marked as inconsistent: those that a crash left half destroyed, or half received and not resumable (OpenZFS:
    /// `dsl_destroy_inconsistent`). One that cannot be destroyed now stays for the next import.
    pub(in crate::dsl) fn destroy_inconsistent(self: &Arc<Self>) -> Result<(), Error> {
        let mos = self.live_mos()?;
        let Some(root) = mos.id_of("root_dataset")? else { return Ok(()) };
        let mut heads = Vec::new();
        // a directory that cannot be read must not prevent the import
        let _damage = mos.heads_below(root, self.name(), &mut heads, 0);
        let is_left_over = |id: ObjectId| {
            let inconsistent = mos.dataset_phys(id)?.flags & DslDatasetPhys::FLAG_INCONSISTENT != 0;
            Ok::<_, Error>(inconsistent && mos.extra(id, dataset_keys::RESUME_TOGUID)?.is_none())
        };
        // children are destroyed before their parents
        for (name, id) in heads.into_iter().rev() {
            if !is_left_over(id).unwrap_or(false) {
                continue;
            }
            if let Err(error @ (Error::Suspended(_) | Error::Closed)) = self.destroy_head(&name) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn check_destroy(&self, mos: &Mos, name: &str) -> Result<Live, Error> {
        let head = self.find_head(mos, name)?;
        let dir = mos.dir_phys(head.phys.dir_obj)?;
        if dir.parent_obj.is_none() {
            return Err(refused(name, Refusal::Invalid("the pool's own dataset goes with the pool only")));
        }
        if head.phys.prev_snap_obj.is_some() && mos.dataset_phys(head.phys.prev_snap_obj)?.next_snap_obj == head.id {
            return Err(refused(name, Refusal::HasSnapshots));
        }
        let children = mos.zap(dir.child_dir_zapobj)?;
        let received = u64::from(children.lookup_u64(RECEIVE)?.is_some());
        if children.count() > received {
            return Err(refused(name, Refusal::HasChildren));
        }
        if self.dsl.open_datasets.in_use(&[head.id]) || self.is_held_elsewhere(head.id) {
            return Err(refused(name, Refusal::Busy));
        }
        mos.key_uses(head.phys.dir_obj)?;
        if let Some(origin) = self.origin_due_without(mos, &head)?.filter(|origin| !self.doom(origin)) {
            return Err(refused(&mos.full_name(self.name(), &origin)?, Refusal::Busy));
        }
        Ok(head)
    }

    /// The origin of a clone, if its destruction was deferred and only this clone keeps it.
    fn origin_due_without(&self, mos: &Mos, clone: &Live) -> Result<Option<Live>, Error> {
        let id = clone.phys.prev_snap_obj;
        if id.is_none() || Some(id) == self.origin_snapshot(mos)? {
            return Ok(None);
        }
        let origin = mos.live(id)?;
        let num_children = origin.phys.num_children.saturating_sub(1);
        let due = is_due(mos, &DslDatasetPhys { num_children, ..origin.phys.clone() })?;
        Ok(due.then_some(origin))
    }

    fn begin_destroy(&self, cx: &TaskCx<'_>, name: &str) -> Result<(), Error> {
        let head = self.check_destroy(cx.mos, name)?;
        cx.mos.edit_dataset(cx.tx, head.id, |phys| phys.flags |= DslDatasetPhys::FLAG_INCONSISTENT)?;
        self.log_named(cx.mos, cx.tx, "destroy begin", (name, head.id), " ")
    }

    /// Frees the objects of a dataset that is destroyed, a bounded number per txg. The objects of a clone, which shares most of its blocks, and of
    /// a dataset without its key, which cannot be changed, are left to the last txg.
    fn free_objects(&self, name: &str) -> Result<(), Error> {
        let dataset = self.view()?.dataset(name)?;
        let Ok(objset) = self.objset(&dataset) else { return Ok(()) };
        if dataset.phys().prev_snap_txg > Txg(1) {
            return Ok(());
        }
        let mut freed = 0;
        for object in objset.objects() {
            let object = object?;
            object.free_long(0..u64::MAX, || self.tx_netfree(1))?;
            objset.free_object(&self.tx_netfree(1)?, object.id())?;
            freed += 1;
            if freed % OBJECTS_AT_ONCE == 0 {
                self.sync()?;
            }
        }
        self.sync()
    }

    fn destroy_named(&self, cx: &TaskCx<'_>, name: &str) -> Result<(), Error> {
        let head = self.check_destroy(cx.mos, name)?;
        let left_over = format!("{name}/{RECEIVE}");
        let children = cx.mos.zap(cx.mos.dir_phys(head.phys.dir_obj)?.child_dir_zapobj)?;
        let received = match children.lookup_id(RECEIVE)? {
            Some(_) => Some(self.check_destroy(cx.mos, &left_over)?),
            None => None,
        };
        let ids: Vec<ObjectId> = received.iter().map(|live| live.id).chain([head.id]).collect();
        self.dsl.open_datasets.evict(&ids, cx.tx.txg()).map_err(|why| refused(name, why))?;
        if let Some(received) = received {
            self.destroy_checked(cx, &left_over, &received)?;
        }
        self.destroy_checked(cx, name, &cx.mos.live(head.id)?)
    }

    /// OpenZFS: `dsl_destroy_head_sync_impl`.
    pub(in crate::dsl) fn destroy_checked(&self, cx: &TaskCx<'_>, name: &str, head: &Live) -> Result<(), Error> {
        let (mos, tx, dir) = (cx.mos, cx.tx, head.phys.dir_obj);
        let at_once = self.blocks_at_once(mos, head)?;
        self.drop_refreservation(mos, tx, head)?;
        let origin = self.leave_origin(mos, tx, head)?;
        let deadlist = Deadlist::open(mos, head.phys.deadlist_obj)?;
        self.with_empty_bpobj(mos, tx, |count| deadlist.free(tx, count))?;
        self.drop_remap_list(mos, tx, head.id)?;
        self.free_log(head)?;
        let how = self.hand_over(mos, tx, head, at_once)?;
        let what = format!("({how}, mintxg={})", head.phys.prev_snap_txg);
        self.log_named(mos, tx, "destroy", (name, head.id), &what)?;
        mos.edit_dir(tx, dir, |dir| dir.head_dataset_obj = ObjectId::NONE)?;
        mos.objset.free_object(tx, head.phys.snapnames_zapobj)?;
        self.drop_marks(mos, tx, head.id)?;
        self.free_dataset_object(mos, tx, head.id)?;
        self.destroy_dir(mos, tx, dir, name.rsplit('/').next().unwrap_or(name))?;
        if let Some(origin) = origin {
            let name = mos.full_name(self.name(), &origin)?;
            self.destroy_of_dir(mos, tx, vec![Doomed { name, snap: origin }])?;
        }
        errlog::forget(mos, tx, head.id)
    }

    /// Gives back the unused part of the head's refreservation.
    fn drop_refreservation(&self, mos: &Mos, tx: &Tx, head: &Live) -> Result<(), Error> {
        let reserved = mos.prop_number(head.phys.dir_obj, "refreservation")?;
        let unused = reserved.saturating_sub(head.phys.unique_bytes);
        let delta = Delta { used: (unused as i64).wrapping_neg(), ..Delta::default() };
        mos.did_use(tx, head.phys.dir_obj, Used::Refrsrv, delta)
    }

    /// Detaches a clone from its origin. Returns the origin if it is destroyed too.
    fn leave_origin(&self, mos: &Mos, tx: &Tx, head: &Live) -> Result<Option<Live>, Error> {
        let id = head.phys.prev_snap_obj;
        if id.is_none() {
            return Ok(None);
        }
        let origin = mos.live(id)?;
        if let Some(clones) = mos.zap_if(origin.phys.next_clones_obj)? {
            clones.remove_int(tx, head.id.0)?;
        }
        mos.edit_dataset(tx, id, |phys| mos.count(id, "children", &mut phys.num_children, -1))?;
        if let Some(clones) = mos.zap_if(mos.dir_phys(origin.phys.dir_obj)?.clones)? {
            clones.remove_int(tx, head.id.0)?;
        }
        let origin = mos.live(id)?;
        let is_clone = Some(id) != self.origin_snapshot(mos)?;
        Ok(if is_clone && is_due(mos, &origin.phys)? { Some(origin) } else { None })
    }

    /// Frees the blocks of the intent log, and those that its records point at if it was claimed (OpenZFS: `zil_destroy_sync`).
    fn free_log(&self, head: &Live) -> Result<(), Error> {
        // without a readable root block there is no log either; the tree is kept until it can be read
        let Ok(objset) = Objset::open(self.zio().clone(), head.id, &head.phys.bp) else { return Ok(()) };
        self.frees.add(self.log_blocks(&objset));
        Ok(())
    }

    /// The blocks of a head are handed over to who frees them, with their space. Gives how.
    fn hand_over(
        &self,
        mos: &Mos,
        tx: &Tx,
        head: &Live,
        at_once: Option<(Vec<BlkPtr>, Delta)>,
    ) -> Result<&'static str, Error> {
        let (id, since) = (head.phys.dir_obj, head.phys.prev_snap_txg);
        let dir = mos.dir_phys(id)?;
        let (used, comp, uncomp) = (dir.used_bytes as i64, dir.compressed_bytes as i64, dir.uncompressed_bytes as i64);
        let mut space = Delta { used, comp, uncomp };
        let livelist = mos.extra_id(id, dir_keys::LIVELIST)?;
        let how = if let Some(livelist) = livelist {
            let own = Deadlist::open(mos, livelist)?.space();
            self.delete_by_livelist(mos, tx, id, livelist)?;
            // embedded blocks are in no livelist, and stay accounted where they were
            let freed = Delta { used: own.used as i64, comp: own.comp as i64, uncomp: own.uncomp as i64 };
            self.did_use_free(mos, tx, freed)?;
            "livelist"
        } else if let Some((blocks, sum)) = at_once {
            self.frees.add(blocks);
            space = sum;
            "synchronous"
        } else {
            self.add_destroyed_tree(mos, tx, &head.phys.bp, since, space)?;
            "bptree"
        };
        mos.did_use(tx, id, Used::Head, Delta::default().minus(space))?;
        Ok(how)
    }

    /// Finds all blocks of a head that are freed in the same txg, in pools without background freeing, before anything changes. A damaged tree is
    /// not freed.
    fn blocks_at_once(&self, mos: &Mos, head: &Live) -> Result<Option<(Vec<BlkPtr>, Delta)>, Error> {
        let by_livelist = mos.extra_id(head.phys.dir_obj, dir_keys::LIVELIST)?.is_some();
        if by_livelist || self.feature_enabled(mos, "async_destroy")? {
            return Ok(None);
        }
        let (mut blocks, mut sum): (Vec<BlkPtr>, _) = (Vec::new(), Delta::default());
        let (bp, since) = (&head.phys.bp, head.phys.prev_snap_txg);
        let ended = dmu::walk_destroyed(self.zio(), bp, since, None, &mut || true, &mut |bp| {
            sum.add(Delta::of(mos, bp));
            if !bp.is_embedded() {
                blocks.push(*bp);
            }
        });
        match ended {
            dmu::Ended::Damaged(_, error) => Err(error.into()),
            dmu::Ended::Done | dmu::Ended::Paused(_) => Ok(Some((blocks, sum))),
        }
    }

    /// Frees a directory without a dataset, `name` in its parent (OpenZFS: `dsl_dir_destroy_sync`).
    fn destroy_dir(&self, mos: &Mos, tx: &Tx, id: ObjectId, name: &str) -> Result<(), Error> {
        let dir: DslDirPhys = mos.dir_phys(id)?;
        mos.adjust_count(tx, dir.parent_obj, dir_keys::FILESYSTEM_COUNT, -1)?;
        let unused = dir.reserved.saturating_sub(used_of(&dir));
        let delta = Delta { used: (unused as i64).wrapping_neg(), ..Delta::default() };
        mos.did_use(tx, dir.parent_obj, Used::ChildRsrv, delta)?;
        if let Some((key, uses)) = mos.key_uses(id)? {
            // a clone shares the key of its origin
            if uses > 1 {
                mos.zap(key)?.increment(tx, KEY_REFCOUNT, -1)?;
            } else {
                mos.objset.free_object(tx, key)?;
            }
            self.zio().keys().remove_wrapping(id);
        }
        if let Some(permissions) = mos.zap_if(dir.deleg_zapobj)? {
            for entry in permissions.entries()? {
                mos.objset.free_object(tx, ObjectId(entry?.value.first()))?;
            }
        }
        let zaps = [dir.child_dir_zapobj, dir.props_zapobj, dir.clones, dir.deleg_zapobj];
        zaps.into_iter().filter(|zap| zap.is_some()).try_for_each(|zap| mos.objset.free_object(tx, zap))?;
        remove_present(tx, &mos.zap(mos.dir_phys(dir.parent_obj)?.child_dir_zapobj)?, name)?;
        self.free_extended(mos, tx, id)
    }
}
