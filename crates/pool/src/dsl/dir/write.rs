//! New directories and datasets (OpenZFS: `dsl_dir_create_sync`, `dsl_dataset_create_sync_dd`, `dsl_dataset_snapshot_sync_impl`).

use base::{Guid, ObjectId};
use dmu::{NewObject, NewZap, Tx, Zap};
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use ondisk::{BlkPtr, ObjectType};

use crate::Error;
use crate::dsl::deadlist::Deadlist;
use crate::spa::Spa;
use crate::spa::create::TXG_INITIAL;
use crate::spa::mos::Mos;
use crate::spa::mos::edit::{OURS, SMALL_INDIRECT_SHIFT};

/// Names of snapshots are compared case-insensitively if the dataset asks for it (OpenZFS: `U8_TEXTPREP_TOUPPER`).
const TOUPPER: u64 = 2;
/// A file system's fsid has 56 bits (OpenZFS: `unique_create`).
const FSID_BITS: u32 = 56;

impl Spa {
    /// Makes a directory under `parent`, or the root.
    pub(in crate::dsl) fn create_dir(
        &self,
        mos: &Mos,
        tx: &Tx,
        parent: Option<(ObjectId, &str)>,
    ) -> Result<ObjectId, Error> {
        let blank = DslDirPhys {
            creation_time: self.env().now_s(),
            parent_obj: parent.map_or(ObjectId::NONE, |(id, _)| id),
            flags: DslDirPhys::FLAG_USED_BREAKDOWN,
            ..DslDirPhys::default()
        };
        let bonus = blank.encode(OURS);
        let what = NewObject {
            object_type: ObjectType::DSL_DIR,
            indirect_shift: SMALL_INDIRECT_SHIFT,
            bonus_type: ObjectType::DSL_DIR,
            ..NewObject::default()
        };
        let id = mos.new_object_as(tx, what, &bonus)?.id();
        match parent {
            Some((parent, name)) => {
                let children = mos.dir_phys(parent)?.child_dir_zapobj;
                mos.zap(children)?.add_id(tx, name, id)?;
            }
            None => mos.root_zap()?.add_id(tx, "root_dataset", id)?,
        }
        let props = mos.new_zap(tx, ObjectType::DSL_PROPS)?;
        let children = mos.new_zap(tx, ObjectType::DSL_DIR_CHILD_MAP)?;
        mos.edit_dir(tx, id, |dir| (dir.props_zapobj, dir.child_dir_zapobj) = (props, children))?;
        Ok(id)
    }

    /// Makes an empty head dataset in directory `dir`; a clone of the snapshot `origin` if one is given.
    pub(in crate::dsl) fn create_head(
        &self,
        mos: &Mos,
        tx: &Tx,
        dir: ObjectId,
        origin: Option<ObjectId>,
    ) -> Result<ObjectId, Error> {
        let txg = if tx.txg() == TXG_INITIAL { base::Txg(1) } else { tx.txg() };
        let mut phys = DslDatasetPhys {
            dir_obj: dir,
            fsid_guid: self.env().random_u64() >> (u64::BITS - FSID_BITS),
            guid: Guid(self.env().random_u64()),
            creation_time: self.env().now_s(),
            creation_txg: txg,
            flags: DslDatasetPhys::FLAG_UNIQUE_ACCURATE,
            ..DslDatasetPhys::default()
        };
        let bonus = phys.encode(OURS);
        let id = mos.new_object(tx, ObjectType::DSL_DATASET, 0, Some((ObjectType::DSL_DATASET, &bonus)))?.id();
        phys.snapnames_zapobj = {
            let names = NewZap { object_type: ObjectType::DSL_DS_SNAP_MAP, normflags: TOUPPER, ..NewZap::default() };
            Zap::create_with(tx, &mos.objset, &names)?.object().id()
        };
        match origin {
            None => phys.deadlist_obj = Deadlist::create(mos, tx)?,
            Some(origin) => self.clone_from(mos, tx, (dir, id), origin, &mut phys)?,
        }
        mos.object(id)?.set_bonus(tx, &phys.encode(OURS))?;
        mos.edit_dir(tx, dir, |dir| dir.head_dataset_obj = id)?;
        Ok(id)
    }

    fn clone_from(
        &self,
        mos: &Mos,
        tx: &Tx,
        (dir, id): (ObjectId, ObjectId),
        origin: ObjectId,
        phys: &mut DslDatasetPhys,
    ) -> Result<(), Error> {
        let from = mos.dataset_phys(origin)?;
        phys.prev_snap_obj = origin;
        phys.prev_snap_txg = from.creation_txg;
        phys.referenced_bytes = from.referenced_bytes;
        phys.compressed_bytes = from.compressed_bytes;
        phys.uncompressed_bytes = from.uncompressed_bytes;
        phys.bp = from.bp;
        phys.flags |= from.flags & (DslDatasetPhys::FLAG_INCONSISTENT | DslDatasetPhys::FLAG_CI_DATASET);
        let origin_head = mos.dataset_phys(mos.dir_phys(from.dir_obj)?.head_dataset_obj)?;
        let deadlist = Deadlist::open(mos, origin_head.deadlist_obj)?;
        phys.deadlist_obj = self
            .with_empty_bpobj(mos, tx, |feature| deadlist.clone_with(tx, phys.prev_snap_txg, origin, &[], feature))?;
        self.copy_features(mos, tx, origin, id)?;
        let next_clones = match from.next_clones_obj {
            ObjectId::NONE => mos.new_zap(tx, ObjectType::NEXT_CLONES)?,
            id => id,
        };
        mos.zap(next_clones)?.add_int(tx, id.0, id.0)?;
        mos.edit_dataset(tx, origin, |from| {
            from.num_children += 1;
            from.next_clones_obj = next_clones;
        })?;
        mos.edit_dir(tx, dir, |dir| dir.origin_obj = origin)?;
        let clones = match mos.dir_phys(from.dir_obj)?.clones {
            ObjectId::NONE => mos.new_zap(tx, ObjectType::DSL_CLONES)?,
            id => id,
        };
        mos.edit_dir(tx, from.dir_obj, |dir| dir.clones = clones)?;
        Ok(mos.zap(clones)?.add_int(tx, id.0, id.0)?)
    }

    /// Makes the directory, dataset and snapshot that all top datasets descend from: `$ORIGIN` (OpenZFS: `dsl_pool_create_origin`).
    pub(in crate::dsl) fn create_origin(&self, mos: &Mos, tx: &Tx, root: ObjectId) -> Result<ObjectId, Error> {
        let dir = self.create_dir(mos, tx, Some((root, "$ORIGIN")))?;
        let head = self.create_head(mos, tx, dir, None)?;
        let head_phys = mos.dataset_phys(head)?;
        let snap = DslDatasetPhys {
            dir_obj: dir,
            next_snap_obj: head,
            num_children: 1,
            creation_time: self.env().now_s(),
            creation_txg: base::Txg(1),
            deadlist_obj: head_phys.deadlist_obj,
            fsid_guid: self.env().random_u64() >> (u64::BITS - FSID_BITS),
            guid: Guid(self.env().random_u64()),
            flags: head_phys.flags,
            bp: BlkPtr::HOLE,
            ..DslDatasetPhys::default()
        };
        let bonus = snap.encode(OURS);
        let id = mos.new_object(tx, ObjectType::DSL_DATASET, 0, Some((ObjectType::DSL_DATASET, &bonus)))?.id();
        let next = self.with_empty_bpobj(mos, tx, |count| {
            Deadlist::succeed((mos, tx), head_phys.deadlist_obj, ObjectId::NONE, &[snap.creation_txg], count)
        })?;
        mos.edit_dataset(tx, head, |head| {
            (head.prev_snap_obj, head.prev_snap_txg, head.deadlist_obj) = (id, snap.creation_txg, next);
        })?;
        mos.zap(head_phys.snapnames_zapobj)?.add_id(tx, "$ORIGIN", id)?;
        Ok(id)
    }
}
