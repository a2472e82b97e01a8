//! Promotes a clone: it takes over the snapshots that it shares with its origin (OpenZFS: `dsl_dataset_promote_check`, `dsl_dataset_promote_sync`).
//!
//! ```text
//! before:  origin   a ─ b ─ c ─ d ─ head          after:  origin             ┌─ d ─ head
//!          clone            └─ e ─ head                   clone    a ─ b ─ c ┴─ e ─ head
//! ```
//! The snapshots up to the clone's origin (`c`) move with their names, their bookmarks, and the clones made of them; deadlists stay as they are,
//! since the order of snapshots is the same. Only the accounting of space changes:
//!
//! * the space that was born with the moved snapshots or died with them moves from the origin's directory to the clone's;
//! * the part of it that no head refers to any more counts as `snap`, recalculated in both directories from the deadlists;
//! * the blocks that the clone's line dropped first are now unique to `c`.

use std::sync::Arc;

use base::{ObjectId, Txg};
use dmu::Tx;
use ondisk::dsl::{DslDatasetPhys, dir_keys};

use crate::dsl::Refusal;
use crate::dsl::deadlist::Deadlist;
use crate::dsl::lookup::{Live, NAME_MAX};
use crate::dsl::props::write::Put;
use crate::dsl::refused;
use crate::dsl::space::{Delta, Used};
use crate::spa::bpobj::Space;
use crate::spa::errlog;
use crate::spa::mos::Mos;
use crate::spa::mos::edit::remove_present;
use crate::spa::{Spa, TaskCx};
use crate::{Error, Value};

/// The datasets that take part in a promotion, and the changes to be made.
struct Promotion {
    clone: Live,
    origin: Live,
    origin_head: Live,
    /// The directories of the clone and of its origin.
    dir: ObjectId,
    origin_dir: ObjectId,
    /// The snapshot that the origin's head is a clone of, if only of `$ORIGIN`.
    origin_origin: Option<Live>,
    /// The snapshots that move, the newest first, with their names.
    moved: Vec<(Live, String)>,
    /// The oldest dataset of the clone's own line.
    first_own: Live,
    /// The space that moves.
    space: Space,
    /// The unique space of the origin snapshot afterwards.
    unique: u64,
    /// The space held by snapshots of the clone, and of the origin, afterwards.
    in_snaps: (u64, u64),
}

impl Spa {
    /// Makes the origin of clone `name` a clone of it.
    ///
    /// # Errors
    /// [`Error::Many`] with each snapshot or bookmark whose name is taken ([`Refusal::Exists`]); [`Error::Refused`]:
    /// [`Refusal::NotClone`], [`Refusal::CrossPool`] for one that cannot be promoted, [`Refusal::EncryptionRoot`], [`Refusal::NoSpace`],
    /// [`Refusal::NameTooLong`], [`Refusal::Busy`] while one of the snapshots that move is read.
    pub fn promote(self: &Arc<Self>, name: &str) -> Result<(), Error> {
        let (name, _frozen) = (name.to_string(), self.freeze_holds());
        self.sync_task(move |cx| {
            let step = cx.spa.plan_promotion(cx.mos, &name)?;
            cx.spa.check_names(cx.mos, &name, &step)?;
            if !cx.spa.room_for_transfer(cx.mos, step.origin_dir, step.dir, step.space.used)? {
                return Err(refused(&name, Refusal::NoSpace));
            }
            cx.promote(&name, &step)
        })
    }

    /// Returns whether directory `dir` is that of a clone.
    pub(in crate::dsl) fn is_clone(&self, mos: &Mos, dir: ObjectId) -> Result<bool, Error> {
        let origin = mos.dir_phys(dir)?.origin_obj;
        Ok(origin.is_some() && Some(origin) != self.origin_snapshot(mos)?)
    }

    fn plan_promotion(&self, mos: &Mos, name: &str) -> Result<Promotion, Error> {
        let clone = self.find_head(mos, name)?;
        let dir = clone.phys.dir_obj;
        if !self.is_clone(mos, dir)? {
            return Err(refused(name, Refusal::NotClone));
        }
        if clone.phys.flags & DslDatasetPhys::FLAG_NOPROMOTE != 0 {
            return Err(refused(name, Refusal::CrossPool));
        }
        let origin = mos.live(mos.dir_phys(dir)?.origin_obj)?;
        let origin_dir = origin.phys.dir_obj;
        let above = mos.dir_phys(origin_dir)?;
        let origin_head = mos.live(above.head_dataset_obj)?;
        self.check_promote_keys(mos, name, dir, origin_dir)?;
        let moved = mos.chain(origin.id, above.origin_obj)?;
        if moved.iter().any(|snap| self.is_long_held(snap)) {
            return Err(refused(name, Refusal::Busy));
        }
        let own = mos.chain(clone.id, origin.id)?;
        let left = mos.chain(origin_head.id, origin.id)?;
        let first_own = own.last().cloned().ok_or_else(|| refused(name, Refusal::NotClone))?;
        let origin_origin = if above.origin_obj.is_none() { None } else { Some(mos.live(above.origin_obj)?) };
        let dead = |ds: &Live, since: Txg| Deadlist::open(mos, ds.phys.deadlist_obj)?.space_range(since, Txg(u64::MAX));
        // (what is there) = (what was there) + (born) - (died), summed over the snapshots that move
        let mut space = referred(&origin);
        for ds in moved.iter().filter(|ds| ds.phys.prev_snap_obj.is_some()) {
            space.add(Deadlist::open(mos, ds.phys.deadlist_obj)?.space());
        }
        let mut since = Txg(0);
        if let Some(origin_origin) = &origin_origin {
            space.sub(referred(origin_origin));
            since = origin_origin.phys.creation_txg;
        }
        let sum = |line: &[Live], since: Txg| {
            line.iter().try_fold(0u64, |sum, ds| Ok::<_, Error>(sum.wrapping_add(dead(ds, since)?.used)))
        };
        let in_snaps = (sum(&moved, since)?.wrapping_add(sum(&own, since)?), sum(&left, origin.phys.creation_txg)?);
        let unique = dead(&first_own, origin.phys.prev_snap_txg)?.used;
        let mut names = mos.snapshot_names(&origin_head.phys)?;
        let named = |ds: Live| {
            let name = names.remove(&ds.id).ok_or_else(|| Error::corrupt(ds.id, "a snapshot without a name"))?;
            Ok::<_, Error>((ds, name))
        };
        let moved = moved.into_iter().map(named).collect::<Result<Vec<_>, _>>()?;
        Ok(Promotion {
            clone,
            origin,
            origin_head,
            dir,
            origin_dir,
            origin_origin,
            moved,
            first_own,
            space,
            unique,
            in_snaps,
        })
    }

    /// Encryption roots must not change, but for the origin's own, which becomes the clone (OpenZFS:
    /// `dsl_dataset_promote_crypt_check`). Nor may the clone's parent have its key by way of the origin, which becomes a clone of what is below that
    /// parent: OpenZFS does not check this, and loses such keys with the next change of the root's key or the root.
    fn check_promote_keys(&self, mos: &Mos, name: &str, dir: ObjectId, origin: ObjectId) -> Result<(), Error> {
        let Some(root) = mos.key_root(origin)? else { return Ok(()) };
        if root == origin || self.is_clone(mos, origin)? {
            return Ok(());
        }
        let above = |dir: ObjectId| match mos.dir_phys(dir)?.parent_obj {
            ObjectId::NONE => Ok(None),
            parent => mos.key_root(parent),
        };
        match (above(origin)?, above(dir)?) {
            (Some(one), Some(other)) if one == other => {}
            _ => return Err(refused(name, Refusal::EncryptionRoot)),
        }
        if self.key_hangs_on(mos, mos.dir_phys(dir)?.parent_obj, origin)? {
            return Err(refused(name, Refusal::EncryptionRoot));
        }
        Ok(())
    }

    /// All names that are taken at the new place, of snapshots and of bookmarks.
    fn check_names(&self, mos: &Mos, name: &str, step: &Promotion) -> Result<(), Error> {
        let mut taken = Vec::new();
        let too_long = |part: &str| {
            let full = format!("{name}@{part}");
            if full.len() > NAME_MAX { Err(refused(&full, Refusal::NameTooLong)) } else { Ok(full) }
        };
        for (_, snap) in &step.moved {
            let full = too_long(snap)?;
            if mos.snapshot_id(&step.clone.phys, snap)?.is_some() {
                taken.push((full.clone(), refused(&full, Refusal::Exists)));
            }
        }
        let own = mos.marks(step.clone.id)?;
        for mark in mos.marks(step.origin_head.id)?.iter().filter(|mark| step.moves(mark.phys.creation_txg)) {
            too_long(&mark.name)?;
            if own.iter().any(|other| other.name == mark.name) {
                let full = format!("{name}#{}", mark.name);
                taken.push((full.clone(), refused(&full, Refusal::Exists)));
            }
        }
        if taken.is_empty() { Ok(()) } else { Err(Error::Many(taken)) }
    }
}

impl Promotion {
    fn moves(&self, txg: Txg) -> bool {
        txg <= self.origin.phys.creation_txg
    }
}

fn referred(ds: &Live) -> Space {
    Space { used: ds.phys.referenced_bytes, comp: ds.phys.compressed_bytes, uncomp: ds.phys.uncompressed_bytes }
}

impl Mos {
    /// Datasets from `last` back to, but without, `until`.
    fn chain(&self, last: ObjectId, until: ObjectId) -> Result<Vec<Live>, Error> {
        let mut all = Vec::new();
        let mut at = Some(self.live(last)?);
        while let Some(ds) = at.filter(|ds| ds.id != until) {
            at = self.before(&ds)?;
            all.push(ds);
        }
        Ok(all)
    }
}

impl TaskCx<'_> {
    fn promote(&self, name: &str, step: &Promotion) -> Result<(), Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        self.promote_keys(step)?;
        let replaced = self.relink(step)?;
        self.relink_clones(step)?;
        spa.move_marks(mos, tx, step.origin_head.id, &step.clone, step.origin.phys.creation_txg)?;
        self.move_snapshots(step, replaced)?;
        spa.recount_marks(mos, tx, step.clone.id, &mos.live(step.origin.id)?)?;
        self.move_promoted_space(step)?;
        mos.edit_dataset(tx, step.origin.id, |phys| phys.unique_bytes = step.unique)?;
        // a livelist records blocks since the origin, which is another one now
        spa.remove_livelist(mos, tx, step.dir)?;
        spa.remove_livelist(mos, tx, step.origin_dir)?;
        if spa.feature_enabled(mos, "head_errlog")? {
            errlog::hand_over(mos, tx, step.origin_head.id, step.clone.id, step.origin.phys.creation_txg)?;
        }
        spa.log_named(mos, tx, "promote", (name, step.clone.id), " ")
    }

    /// The chain goes on from the origin into the clone; what came next until now is a clone of it. Gives that.
    fn relink(&self, step: &Promotion) -> Result<ObjectId, Error> {
        let (mos, tx) = (self.mos, self.tx);
        let replaced = step.origin.phys.next_snap_obj;
        mos.edit_dataset(tx, step.origin.id, |phys| phys.next_snap_obj = step.first_own.id)?;
        if let Some(clones) = mos.zap_if(step.origin.phys.next_clones_obj)? {
            clones.remove_int(tx, step.first_own.id.0)?;
            clones.add_int(tx, replaced.0, replaced.0)?;
        }
        let above = step.origin_origin.as_ref().map_or(ObjectId::NONE, |ds| ds.id);
        mos.edit_dir(tx, step.dir, |dir| dir.origin_obj = above)?;
        mos.edit_dir(tx, step.origin_dir, |dir| dir.origin_obj = step.origin.id)?;
        Ok(replaced)
    }

    /// The lists of who was cloned of what.
    fn relink_clones(&self, step: &Promotion) -> Result<(), Error> {
        let (mos, tx) = (self.mos, self.tx);
        let (clone, head) = (step.clone.id, step.origin_head.id);
        self.clones_zap(step.origin_dir)?.remove_int(tx, clone.0)?;
        if let Some(above) = &step.origin_origin
            && let Some(zap) = mos.zap_if(mos.dir_phys(above.phys.dir_obj)?.clones)?
        {
            zap.add_int(tx, clone.0, clone.0)?;
            zap.remove_int(tx, head.0)?;
        }
        self.clones_zap(step.dir)?.add_int(tx, head.0, head.0).map_err(Error::from)
    }

    fn move_snapshots(&self, step: &Promotion, replaced: ObjectId) -> Result<(), Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        let from = mos.zap(step.origin_head.phys.snapnames_zapobj)?;
        let to = mos.zap(step.clone.phys.snapnames_zapobj)?;
        let (old_clones, new_clones) = (self.clones_zap(step.origin_dir)?, self.clones_zap(step.dir)?);
        for (ds, name) in &step.moved {
            remove_present(tx, &from, name)?;
            to.add_id(tx, name, ds.id)?;
            mos.edit_dataset(tx, ds.id, |phys| phys.dir_obj = step.dir)?;
            let Some(clones) = mos.zap_if(ds.phys.next_clones_obj)? else { continue };
            let next = clones.entries()?.map(|entry| Ok(entry?.value.id())).collect::<Result<Vec<_>, Error>>()?;
            // the one that was just put in is done already
            for other in next.into_iter().filter(|id| *id != replaced) {
                let head = mos.dir_phys(mos.dataset_phys(other)?.dir_obj)?.head_dataset_obj;
                old_clones.remove_int(tx, head.0)?;
                new_clones.add_int(tx, head.0, head.0)?;
            }
        }
        let counted = step.moved.iter().filter(|(_, name)| !name.starts_with('%')).count() as i64;
        mos.adjust_count(tx, step.origin_dir, dir_keys::SNAPSHOT_COUNT, -counted)?;
        mos.adjust_count(tx, step.dir, dir_keys::SNAPSHOT_COUNT, counted)?;
        spa.snapshots_changed(mos, tx, step.origin_dir)?;
        spa.snapshots_changed(mos, tx, step.dir)
    }

    fn move_promoted_space(&self, step: &Promotion) -> Result<(), Error> {
        let (mos, tx, space) = (self.mos, self.tx, step.space);
        let snap = |dir: ObjectId| mos.dir_phys(dir).map(|phys| phys.used_breakdown.snap as i64);
        let sides = [(step.dir, step.in_snaps.0, 1i64), (step.origin_dir, step.in_snaps.1, -1)];
        for (dir, in_snaps, sign) in sides {
            let with_snaps = (in_snaps as i64).wrapping_sub(snap(dir)?);
            mos.did_use(tx, dir, Used::Snap, Delta { used: with_snaps, ..Delta::default() })?;
            let rest = Delta {
                used: sign.wrapping_mul(space.used as i64).wrapping_sub(with_snaps),
                comp: sign.wrapping_mul(space.comp as i64),
                uncomp: sign.wrapping_mul(space.uncomp as i64),
            };
            mos.did_use(tx, dir, Used::Head, rest)?;
        }
        Ok(())
    }

    /// Makes the clone the encryption root where the origin was it (OpenZFS: `dsl_dataset_promote_crypt_sync`).
    fn promote_keys(&self, step: &Promotion) -> Result<(), Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        if mos.key_root(step.origin_dir)? != Some(step.origin_dir) || spa.is_clone(mos, step.origin_dir)? {
            return Ok(());
        }
        let location = spa.prop_text(mos, step.origin_dir, "keylocation")?.unwrap_or_else(|| "prompt".to_string());
        spa.store_prop(mos, tx, &step.clone, "keylocation", Put::Local(&Value::String(location)))?;
        spa.store_prop(mos, tx, &step.origin_head, "keylocation", Put::Revert)?;
        self.move_root(step.origin_dir, step.dir)
    }
}

impl Spa {
    /// Moves bookmarks of points up to `until` from one head to another.
    fn move_marks(&self, mos: &Mos, tx: &Tx, from: ObjectId, to: &Live, until: Txg) -> Result<(), Error> {
        let Some(old) = mos.bookmark_zap(from)? else { return Ok(()) };
        for mark in mos.marks(from)?.iter().filter(|mark| mark.phys.creation_txg <= until) {
            remove_present(tx, &old, &mark.name)?;
            mark.store(tx, &self.own_bookmark_zap(mos, tx, to.id)?)?;
        }
        Ok(())
    }
}
