//! Swaps two heads: the contents that a receive wrote become visible (OpenZFS: `dsl_dataset_clone_swap_check_impl`,
//! `dsl_dataset_clone_swap_sync_impl`).
//!
//! Blocks, deadlists and sums are exchanged; names, properties and snapshots stay. So does the refreservation of a head, but its unused part may
//! change.

use std::sync::Arc;

use base::{ObjectId, Txg};
use dmu::Objset;
use ondisk::dsl::dataset_keys::REMAP_DEADLIST;

use crate::Error;
use crate::dsl::Refusal;
use crate::dsl::deadlist::Deadlist;
use crate::dsl::lookup::Live;
use crate::dsl::refused;
use crate::dsl::space::{Delta, Used};
use crate::spa::bpobj::Space;
use crate::spa::feature;
use crate::spa::mos::Mos;
use crate::spa::{Spa, TaskCx};

/// A dataset with a `refquota` may get so much more than that by a receive: one transaction of the largest size (OpenZFS:
/// `DMU_MAX_ACCESS`, times `spa_asize_inflation`).
const REFQUOTA_SLACK: u64 = (64 << 20) * 24;

impl Spa {
    /// Head `clone`, which was made of the last snapshot of head `head` and stands below it, gets what `head` has, and the reverse. With
    /// `force` what `head` has may have changed since that snapshot.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`]; [`Error::Refused`]: [`Refusal::Busy`] while one is in use, [`Refusal::Modified`], [`Refusal::NoSpace`],
    /// [`Refusal::Quota`], [`Refusal::Invalid`] for two that do not belong together.
    pub fn swap_heads(self: &Arc<Self>, clone: &str, head: &str, force: bool) -> Result<(), Error> {
        let (clone, head) = (clone.to_string(), head.to_string());
        self.sync_task(move |cx| {
            let from = cx.spa.find_head(cx.mos, &clone)?;
            let to = cx.spa.find_head(cx.mos, &head)?;
            cx.spa
                .check_swap(cx.mos, &from, &to, force)
                .map_err(|why| why.unwrap_or_else(|why| refused(&head, why)))?;
            // even by force: deadlists are reckoned from the last snapshot
            if from.phys.prev_snap_obj != to.phys.prev_snap_obj {
                return Err(refused(&head, Refusal::Invalid("the two heads do not have the same last snapshot")));
            }
            cx.spa.dsl.open_datasets.evict(&[from.id, to.id], cx.tx.txg()).map_err(|why| refused(&head, why))?;
            cx.swap(&from, &to)
        })
    }

    /// `Err(Ok(error))` for what cannot be read, `Err(Err(refusal))` for what is refused.
    pub(in crate::dsl) fn check_swap(
        &self,
        mos: &Mos,
        clone: &Live,
        head: &Live,
        force: bool,
    ) -> Result<(), Result<Error, Refusal>> {
        let refuse = |why| Err(Err(Refusal::Invalid(why)));
        let io = |error: Error| Ok::<Error, Refusal>(error);
        let prev = clone.phys.prev_snap_obj;
        if prev != head.phys.prev_snap_obj && !force {
            return refuse("the two heads do not have the same last snapshot");
        }
        let origin = self.origin_snapshot(mos).map_err(io)?;
        if prev.is_some() && Some(prev) != origin && mos.dataset_phys(prev).map_err(io)?.dir_obj != head.phys.dir_obj {
            return refuse("the one is no clone of the other");
        }
        if mos.dir_phys(clone.phys.dir_obj).map_err(io)?.parent_obj != head.phys.dir_obj {
            return refuse("the clone is not below the other");
        }
        if !force && self.modified_since_snapshot(mos, head).map_err(io)? {
            return Err(Err(Refusal::Modified));
        }
        let number = |name: &str| mos.prop_number(head.phys.dir_obj, name).map_err(io);
        let (reserved, refquota) = (number("refreservation")?, number("refquota")?);
        let delta = unused_delta(reserved, clone, head);
        if delta > 0 && delta as u64 > self.space_available(mos, head.phys.dir_obj, None).map_err(io)? {
            return Err(Err(Refusal::NoSpace));
        }
        if refquota != 0 && clone.phys.referenced_bytes > refquota.saturating_add(REFQUOTA_SLACK) {
            return Err(Err(Refusal::Quota));
        }
        Ok(())
    }

    /// Returns whether a head has other contents than its last snapshot; a new intent log does not count (OpenZFS:
    /// `dsl_dataset_modified_since_snap`).
    pub(in crate::dsl) fn modified_since_snapshot(&self, mos: &Mos, head: &Live) -> Result<bool, Error> {
        if head.phys.prev_snap_obj.is_none() {
            return Ok(false);
        }
        self.modified_since(head, &mos.live(head.phys.prev_snap_obj)?)
    }

    /// The same of any of its snapshots.
    pub(in crate::dsl) fn modified_since(&self, head: &Live, snap: &Live) -> Result<bool, Error> {
        if head.phys.bp.birth() <= snap.phys.creation_txg {
            return Ok(false);
        }
        let open = |ds: &Live| Objset::open(self.zio().clone(), ds.id, &ds.phys.bp);
        let (Ok(now), Ok(then)) = (open(head), open(snap)) else { return Ok(true) };
        Ok(now.phys().meta_dnode != then.phys().meta_dnode)
    }
}

/// By how much what is reserved and not used grows.
fn unused_delta(reserved: u64, clone: &Live, head: &Live) -> i64 {
    reserved.min(head.phys.unique_bytes) as i64 - reserved.min(clone.phys.unique_bytes) as i64
}

impl TaskCx<'_> {
    /// The two are checked, and nobody uses them.
    pub(in crate::dsl) fn swap(&self, clone: &Live, head: &Live) -> Result<(), Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        self.swap_features(clone.id, head.id)?;
        let (clone, head) = (mos.live(clone.id)?, mos.live(head.id)?);
        let reserved = mos.prop_number(head.phys.dir_obj, "refreservation")?;
        let of_clone = Deadlist::open(mos, clone.phys.deadlist_obj)?;
        let of_head = Deadlist::open(mos, head.phys.deadlist_obj)?;
        let everything = Txg(u64::MAX);
        let origin = clone.phys.prev_snap_obj;
        // a clone that is rolled back does not follow the snapshot that it was made of: what that has alone stays the same
        if let Some(snap) = mos.before(&head)?.filter(|snap| snap.phys.next_snap_obj == head.id) {
            let unique = of_clone.space_range(snap.phys.prev_snap_txg, everything)?.used;
            mos.edit_dataset(tx, origin, |phys| phys.unique_bytes = unique)?;
        }
        let grown = total(&clone, of_clone.space()).minus(total(&head, of_head.space()));
        mos.did_use(tx, head.phys.dir_obj, Used::Head, grown)?;
        mos.did_use(tx, clone.phys.dir_obj, Used::Head, Delta::default().minus(grown))?;
        // what the deadlists hold counts with the snapshots of the head
        let since = match mos.dir_phys(head.phys.dir_obj)?.origin_obj {
            ObjectId::NONE => Txg(0),
            id => mos.dataset_phys(id)?.creation_txg,
        };
        let of_snaps = |list: &Deadlist| list.space_range(since, everything).map(|space| space.used);
        let (new, old) = (of_snaps(&of_clone)?, of_snaps(&of_head)?);
        if new >= old {
            mos.transfer(tx, head.phys.dir_obj, new - old, Used::Head, Used::Snap)?;
        } else {
            mos.transfer(tx, head.phys.dir_obj, old - new, Used::Snap, Used::Head)?;
        }
        let unused = Delta { used: unused_delta(reserved, &clone, &head), ..Delta::default() };
        self.exchange(&clone, &head)?;
        mos.did_use(tx, head.phys.dir_obj, Used::Refrsrv, unused)?;
        self.swap_remap_lists(clone.id, head.id)?;
        spa.scan_swapped(mos, tx, clone.id, head.id)?;
        if origin.is_some() {
            spa.recount_marks(mos, tx, head.id, &mos.live(origin)?)?;
        }
        spa.remove_livelist(mos, tx, clone.phys.dir_obj)?;
        spa.remove_livelist(mos, tx, head.phys.dir_obj)?;
        let parent = mos.full_name(spa.name(), &head)?;
        spa.log_live(mos, tx, &clone, "clone swap", &format!("parent={}", parent.rsplit('/').next().unwrap_or("")))
    }

    fn exchange(&self, clone: &Live, head: &Live) -> Result<(), Error> {
        for (to, from) in [(clone, head), (head, clone)] {
            self.mos.edit_dataset(self.tx, to.id, |phys| {
                let other = &from.phys;
                phys.bp = other.bp;
                phys.deadlist_obj = other.deadlist_obj;
                phys.referenced_bytes = other.referenced_bytes;
                phys.compressed_bytes = other.compressed_bytes;
                phys.uncompressed_bytes = other.uncompressed_bytes;
                phys.unique_bytes = other.unique_bytes;
            })?;
        }
        Ok(())
    }

    /// Moves the features that the blocks need along with the blocks; how many datasets use a feature stays the same.
    fn swap_features(&self, clone: ObjectId, head: ObjectId) -> Result<(), Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        let held = |id: ObjectId, guid: &str| match mos.object(id)?.phys().object_type.is_zap() {
            true => Ok::<_, Error>(mos.zap(id)?.lookup(guid)?),
            false => Ok(None),
        };
        for def in feature::FEATURES.iter().filter(|def| def.is_per_dataset()) {
            let (one, other) = (held(clone, def.guid)?, held(head, def.guid)?);
            for (id, old, new) in [(clone, &one, &other), (head, &other, &one)] {
                match new {
                    _ if old == new => {}
                    Some(value) => spa.zapify(mos, tx, id)?.update_value(tx, def.guid, value)?,
                    None => {
                        mos.zap(id)?.remove(tx, def.guid)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn swap_remap_lists(&self, clone: ObjectId, head: ObjectId) -> Result<(), Error> {
        let (spa, mos, tx) = (self.spa, self.mos, self.tx);
        let lists = (mos.extra_id(clone, REMAP_DEADLIST)?, mos.extra_id(head, REMAP_DEADLIST)?);
        for (id, old, new) in [(clone, lists.0, lists.1), (head, lists.1, lists.0)] {
            match new {
                _ if old == new => {}
                Some(list) => spa.zapify(mos, tx, id)?.update_id(tx, REMAP_DEADLIST, list)?,
                None => {
                    mos.zap(id)?.remove(tx, REMAP_DEADLIST)?;
                }
            }
        }
        Ok(())
    }
}

/// The space that a head refers to, plus that of its deadlist.
fn total(ds: &Live, dead: Space) -> Delta {
    Delta {
        used: ds.phys.referenced_bytes.wrapping_add(dead.used) as i64,
        comp: ds.phys.compressed_bytes.wrapping_add(dead.comp) as i64,
        uncomp: ds.phys.uncompressed_bytes.wrapping_add(dead.uncomp) as i64,
    }
}
