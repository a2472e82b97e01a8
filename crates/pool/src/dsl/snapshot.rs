//! Creates snapshots (OpenZFS: `dsl_dataset_snapshot`).
//!
//! A snapshot takes over the state of its head: the root block as the txg's sync of datasets left it, the sums, the deadlist. The head continues
//! with no unique space and a new deadlist: the keys of the old one and one more for the snapshot before, all with empty lists.
//!
//! The header of an intent log that is in use, or waits for its replay, goes into the snapshot with the root block, and means nothing there. Pools
//! before version 27 have no such snapshots: their logs are ended first, and one that nobody has replayed makes its dataset busy.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Guid, ObjectId};
use dmu::{Objset, Tx};
use ondisk::dsl::{DslDatasetPhys, dataset_keys, dir_keys};
use ondisk::{ObjectType, ZilHeader};

use crate::Error;
use crate::dsl::Refusal;
use crate::dsl::deadlist::Deadlist;
use crate::dsl::lookup::{Live, NAME_MAX, check_component, split_snapshot};
use crate::dsl::props::write::check_user_prop;
use crate::dsl::refused;
use crate::dsl::space::{Delta, Used};
use crate::spa::feature::FEATURES;
use crate::spa::mos::Mos;
use crate::spa::mos::edit::OURS;
use crate::spa::prop::Value;
use crate::spa::{Spa, TaskCx};

/// A file system's fsid and the guid of a set of IVs have 56 bits (OpenZFS: `unique_create`).
const UNIQUE_BITS: u32 = 56;
/// From this version on heads keep account of what is unique to them (OpenZFS: `SPA_VERSION_UNIQUE_ACCURATE`).
pub(super) const VERSION_UNIQUE_ACCURATE: u64 = 9;
/// From this version on a snapshot is taken whatever the intent log does (OpenZFS: `SPA_VERSION_FAST_SNAP`).
const VERSION_FAST_SNAP: u64 = 27;
/// From this version on snapshots have properties (OpenZFS: `SPA_VERSION_SNAP_PROPS`).
const VERSION_SNAP_PROPS: u64 = 12;

/// The number of times that the logs of an old pool are ended for a snapshot; a file system with endless commits is then busy.
const RESTS_MAX: u32 = 20;
/// Blocks of metadata that a snapshot takes, about (OpenZFS: `dsl_dataset_snapshot`).
const SNAPSHOT_BLOCKS: usize = 3;

/// One snapshot of a call, all checks passed.
struct Wanted {
    name: String,
    head: Live,
}

impl Spa {
    /// Makes snapshots, all in one txg or none: each name is `fs@snap`, no file system comes twice. What was written before the call is
    /// in them. `props` are user properties that each of them gets.
    ///
    /// # Errors
    /// [`Error::Many`], with an error for each name that cannot be: [`Refusal::Exists`], [`Refusal::NameTooLong`],
    /// [`Refusal::Inconsistent`], [`Refusal::NoSpace`], [`Refusal::Busy`] before version 27 while the intent log is not replayed, [`Refusal::CrossPool`] for a second snapshot of the same file system,
    /// [`Error::NoSuchDataset`], [`Error::InvalidName`].
    pub fn snapshot(self: &Arc<Self>, names: &[String], props: &[(String, Value)]) -> Result<(), Error> {
        check_props(props)?;
        let mut rests = 0;
        loop {
            let mut suspended = None;
            if self.uberblock().version < VERSION_FAST_SNAP {
                if rests == RESTS_MAX {
                    return Err(refused(names.first().map_or("", String::as_str), Refusal::Busy));
                }
                suspended = Some(self.suspend_logs()?);
                rests += 1;
            }
            let (names, props) = (names.to_vec(), props.to_vec());
            let done =
                self.growing_task(names.len() * SNAPSHOT_BLOCKS, move |cx| cx.spa.snapshot_all(cx, &names, &props))?;
            drop(suspended);
            if done {
                return Ok(());
            }
        }
    }

    /// `false`: one of the heads has a snapshot of this very txg, which allows no second one, or another task of the txg has changed what
    /// it holds, and that is not written yet: it must not go into a snapshot with the root block of before; or, in an old pool, one has begun
    /// a log again.
    fn snapshot_all(&self, cx: &TaskCx<'_>, names: &[String], props: &[(String, Value)]) -> Result<bool, Error> {
        let version = self.uberblock().version;
        if !props.is_empty() && version < VERSION_SNAP_PROPS {
            return Err(refused(names.first().map_or("", String::as_str), Refusal::Unsupported));
        }
        let (mut wanted, mut failed, mut heads) = (Vec::new(), Vec::new(), BTreeSet::new());
        for name in names {
            match self.check_snapshot(cx.mos, name) {
                Ok(head) if !heads.insert(head.id) => failed.push((name.clone(), refused(name, Refusal::CrossPool))),
                Ok(head) => wanted.push(Wanted { name: name.clone(), head }),
                Err(error) => failed.push((name.clone(), error)),
            }
        }
        if !failed.is_empty() {
            return Err(Error::Many(failed));
        }
        let is_unwritten =
            |id: ObjectId| self.dsl.open_datasets.get(id).is_some_and(|head| head.objset.is_dirty(cx.tx.txg()));
        if wanted.iter().any(|one| one.head.phys.prev_snap_txg >= cx.tx.txg() || is_unwritten(one.head.id)) {
            return Ok(false);
        }
        if version < VERSION_FAST_SNAP {
            for one in &wanted {
                let header = self.log_header(&one.head)?;
                if zil::claim::needs_replay(&header) {
                    return Err(refused(&one.name, Refusal::Busy));
                }
                if !header.log.is_hole() {
                    return Ok(false);
                }
            }
        }
        let now = self.env().now_s();
        for one in &wanted {
            let (_, short) = split_snapshot(&one.name)?;
            let id = self.snapshot_head(cx.mos, cx.tx, &one.head, short, now)?;
            if !props.is_empty() {
                set_snapshot_props(cx.mos, cx.tx, id, props)?;
            }
            self.log_named(cx.mos, cx.tx, "snapshot", (&one.name, id), " ")?;
        }
        Ok(true)
    }

    /// The header of the intent log of a head as it will be on disk with this txg.
    fn log_header(&self, head: &Live) -> Result<ZilHeader, Error> {
        if let Some(open) = self.dsl.open_datasets.get(head.id) {
            return Ok(open.objset.phys().zil_header.clone());
        }
        if head.phys.bp.is_hole() {
            return Ok(ZilHeader::empty());
        }
        Ok(Objset::open(self.zio().clone(), head.id, &head.phys.bp)?.phys().zil_header.clone())
    }

    fn check_snapshot(&self, mos: &Mos, name: &str) -> Result<Live, Error> {
        let (fs, short) = split_snapshot(name)?;
        if name.len() > NAME_MAX {
            return Err(refused(name, Refusal::NameTooLong));
        }
        check_component(name, short)?;
        let head = self.find_head(mos, fs)?;
        if mos.snapshot_id(&head.phys, short)?.is_some() {
            return Err(refused(name, Refusal::Exists));
        }
        if head.phys.flags & DslDatasetPhys::FLAG_INCONSISTENT != 0 {
            return Err(refused(name, Refusal::Inconsistent));
        }
        self.check_room_of_snapshot(mos, name, &head)?;
        Ok(head)
    }

    /// Checks that the head's refreservation still fits once its unique space moves to the new snapshot `name` (OpenZFS:
    /// `dsl_dataset_snapshot_reserve_space`).
    pub(super) fn check_room_of_snapshot(&self, mos: &Mos, name: &str, head: &Live) -> Result<(), Error> {
        let reserved = mos.prop_number(head.phys.dir_obj, "refreservation")?;
        let more = head.phys.unique_bytes.min(reserved);
        if more > 0 && more > self.space_available(mos, head.phys.dir_obj, None)? {
            return Err(refused(name, Refusal::NoSpace));
        }
        Ok(())
    }

    /// Makes the snapshot `short` of `head`, and gives its object (OpenZFS: `dsl_dataset_snapshot_sync_impl`). All is checked; the
    /// head has no snapshot of this txg.
    pub(in crate::dsl) fn snapshot_head(
        &self,
        mos: &Mos,
        tx: &Tx,
        head: &Live,
        short: &str,
        now: u64,
    ) -> Result<ObjectId, Error> {
        let (old, dir) = (&head.phys, head.phys.dir_obj);
        mos.adjust_count(tx, dir, dir_keys::SNAPSHOT_COUNT, 1)?;
        let id = self.new_snapshot(mos, tx, head, now)?;
        self.copy_features(mos, tx, head.id, id)?;
        follow_prev(mos, tx, old.prev_snap_obj, head.id, id)?;
        let reserved = mos.prop_number(dir, "refreservation")?.min(old.unique_bytes);
        if reserved > 0 {
            let delta = Delta { used: reserved as i64, ..Delta::default() };
            mos.did_use(tx, dir, Used::Refrsrv, delta)?;
        }
        let mut keys = vec![old.prev_snap_txg];
        keys.extend(mos.bookmark_keys(head.id, old.prev_snap_txg)?);
        let next = self.with_empty_bpobj(mos, tx, |count| {
            Deadlist::succeed((mos, tx), old.deadlist_obj, old.prev_snap_obj, &keys, count)
        })?;
        self.hand_over_extras(mos, tx, head, id)?;
        let accurate = self.uberblock().version >= VERSION_UNIQUE_ACCURATE;
        mos.edit_dataset(tx, head.id, |phys| {
            (phys.prev_snap_obj, phys.prev_snap_txg, phys.deadlist_obj) = (id, tx.txg(), next);
            phys.unique_bytes = 0;
            if accurate {
                phys.flags |= DslDatasetPhys::FLAG_UNIQUE_ACCURATE;
            }
        })?;
        mos.zap(old.snapnames_zapobj)?.add_id(tx, short, id)?;
        self.snapshots_changed(mos, tx, dir)?;
        Ok(id)
    }

    fn new_snapshot(&self, mos: &Mos, tx: &Tx, head: &Live, now: u64) -> Result<ObjectId, Error> {
        let old = &head.phys;
        let phys = DslDatasetPhys {
            dir_obj: old.dir_obj,
            prev_snap_obj: old.prev_snap_obj,
            prev_snap_txg: old.prev_snap_txg,
            next_snap_obj: head.id,
            num_children: 1,
            creation_time: now,
            creation_txg: tx.txg(),
            deadlist_obj: old.deadlist_obj,
            referenced_bytes: old.referenced_bytes,
            compressed_bytes: old.compressed_bytes,
            uncompressed_bytes: old.uncompressed_bytes,
            fsid_guid: self.env().random_u64() >> (u64::BITS - UNIQUE_BITS),
            guid: Guid(self.env().random_u64()),
            flags: old.flags,
            bp: old.bp,
            ..DslDatasetPhys::default()
        };
        let bonus = phys.encode(OURS);
        Ok(mos.new_object(tx, ObjectType::DSL_DATASET, 0, Some((ObjectType::DSL_DATASET, &bonus)))?.id())
    }

    /// Copies the features that a dataset uses to its snapshot.
    pub(in crate::dsl) fn copy_features(&self, mos: &Mos, tx: &Tx, from: ObjectId, to: ObjectId) -> Result<(), Error> {
        if !mos.object(from)?.phys().object_type.is_zap() {
            return Ok(());
        }
        let old = mos.zap(from)?;
        for def in FEATURES.iter().filter(|def| def.is_per_dataset()) {
            if let Some(value) = old.lookup(def.guid)? {
                self.zapify(mos, tx, to)?.add_value(tx, def.guid, &value)?;
                self.feature_increment(mos, tx, def.name)?;
            }
        }
        Ok(())
    }

    /// Moves further entries of the head's ZAP to the snapshot: the list of blocks that device removal moved, which the head begins anew; for an
    /// encrypted dataset the number of its set of IVs.
    fn hand_over_extras(&self, mos: &Mos, tx: &Tx, head: &Live, id: ObjectId) -> Result<(), Error> {
        if let Some(list) = mos.extra_id(head.id, dataset_keys::REMAP_DEADLIST)? {
            mos.zap(head.id)?.remove(tx, dataset_keys::REMAP_DEADLIST)?;
            self.zapify(mos, tx, id)?.add_id(tx, dataset_keys::REMAP_DEADLIST, list)?;
        }
        self.share_loaded_key(head.id, id);
        let encrypted = mos.extra_id(head.phys.dir_obj, dir_keys::CRYPTO_KEY_OBJ)?.is_some();
        if encrypted && self.feature_enabled(mos, "bookmark_v2")? {
            let guid = self.env().random_u64() >> (u64::BITS - UNIQUE_BITS);
            self.zapify(mos, tx, id)?.add_u64(tx, dataset_keys::IVSET_GUID, guid)?;
        }
        Ok(())
    }
}

/// The snapshot before is now followed by `new` where `head` followed.
fn follow_prev(mos: &Mos, tx: &Tx, prev: ObjectId, head: ObjectId, new: ObjectId) -> Result<(), Error> {
    if prev.is_none() {
        return Ok(());
    }
    let phys = mos.dataset_phys(prev)?;
    if phys.next_snap_obj == head {
        return mos.edit_dataset(tx, prev, |phys| phys.next_snap_obj = new);
    }
    // the first snapshot of a clone
    if phys.next_clones_obj.is_some() {
        let clones = mos.zap(phys.next_clones_obj)?;
        clones.remove_int(tx, head.0)?;
        clones.add_int(tx, new.0, new.0)?;
    }
    Ok(())
}

/// Snapshots have user properties only.
fn check_props(props: &[(String, Value)]) -> Result<(), Error> {
    props.iter().try_for_each(|(prop, value)| check_user_prop(prop, value).map_err(|why| refused(prop, why)))
}

fn set_snapshot_props(mos: &Mos, tx: &Tx, id: ObjectId, props: &[(String, Value)]) -> Result<(), Error> {
    let zap = mos.new_zap(tx, ObjectType::DSL_PROPS)?;
    mos.edit_dataset(tx, id, |phys| phys.props_obj = zap)?;
    for (name, value) in props {
        let value = match value {
            Value::Number(n) => dmu::ZapValue::from_u64(*n),
            Value::String(text) => dmu::ZapValue::from_text(text),
        };
        mos.zap(zap)?.update_value(tx, name, &value)?;
    }
    Ok(())
}
