//! Destroys snapshots (OpenZFS: `dsl_destroy_snapshots_nvl`).
//!
//! # The algorithm
//! Snapshots destroyed in one call are grouped into *runs*: neighbours in the chain of one dataset. A run `first … last` lies between `prev` and
//! `next`, and is destroyed in one pass:
//!
//! * Blocks born after `prev` in the deadlists behind `first`, that of `next` included, are referred to by no dataset any more: whole lists are
//!   moved to the pool's list of blocks to free, which later txgs process. Their space moves from the directory to `$FREE`.
//! * All other blocks in the deadlists belong to `prev` or a snapshot before it: they are added to the deadlist of `next`.
//! * Blocks that died in the run and were born between the two snapshots up to `prev` now belong to `prev` alone; those born in the run and dead
//!   behind `next` to `next` alone: their *unique* space grows.
//! * Keys that represent no snapshot any more (nor a bookmark that accounts freed space) are removed from the deadlists of the head and of clones
//!   made later.
//!
//! The cost is one read of each deadlist; the keys of `next` and of heads are written once, whatever the number of snapshots.
//!
//! Pools before version 26 have deadlists without keys: their snapshots are destroyed one by one, and blocks are freed at once (`destroy_old`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{ObjectId, Txg};
use dmu::Tx;
use ondisk::dsl::{DslDatasetPhys, dataset_keys, dir_keys};

use crate::Error;
use crate::dsl::Refusal;
use crate::dsl::deadlist::write::Lists;
use crate::dsl::deadlist::{Body, Deadlist};
use crate::dsl::destroy::background::FREE_BPOBJ;
use crate::dsl::lookup::{Live, split_snapshot};
use crate::dsl::refused;
use crate::dsl::snapshot::VERSION_UNIQUE_ACCURATE;
use crate::dsl::space::{Delta, Used};
use crate::spa::bpobj::write::{drop_empties, empty_list};
use crate::spa::bpobj::{Bpobj, Space};
use crate::spa::feature::FEATURES;
use crate::spa::mos::Mos;
use crate::spa::mos::edit::remove_present;
use crate::spa::{Spa, TaskCx};

/// The first pool version in which snapshots can be held, and be destroyed when the last hold is released (OpenZFS: `SPA_VERSION_USERREFS`).
const VERSION_USERREFS: u64 = 18;

/// A snapshot that is to be destroyed.
#[derive(Clone, Debug)]
pub(in crate::dsl) struct Doomed {
    pub(in crate::dsl) name: String,
    pub(in crate::dsl) snap: Live,
}

/// Neighbouring snapshots to be destroyed, the oldest first, with the datasets before and behind them.
pub(in crate::dsl) struct Run<'a> {
    pub(in crate::dsl) first: &'a Doomed,
    pub(in crate::dsl) last: &'a Doomed,
    pub(in crate::dsl) all: &'a [Doomed],
    prev: Option<Live>,
    /// The run begins with the first snapshot of a clone, and `prev` is the clone's origin.
    after_branch: bool,
    pub(in crate::dsl) next: Live,
}

impl Run<'_> {
    /// The deadlist of the dataset behind the run.
    pub(in crate::dsl) fn next_deadlist(&self) -> ObjectId {
        self.next.phys.deadlist_obj
    }
}

/// The merged deadlists of a run.
#[derive(Default)]
struct Merged {
    /// Lists of blocks that no dataset refers to any more.
    free: Vec<ObjectId>,
    freed: Space,
    /// Lists to be added to the deadlist of the next dataset.
    keep: Lists,
    kept: Space,
    /// The number of bytes that become unique to the snapshot before the run.
    prev_alone: u64,
    /// How often the shared empty list was used.
    empties: u64,
}

fn delta(space: Space) -> Delta {
    Delta { used: space.used as i64, comp: space.comp as i64, uncomp: space.uncomp as i64 }
}

fn negative(space: Space) -> Delta {
    Delta::default().minus(delta(space))
}

impl Spa {
    /// Destroys snapshots, all of them or none; those that do not exist are skipped. With `defer`, those that are held or have clones are only
    /// marked, and are destroyed with their last hold and clone. Waits for about a second for mounts of this process that use one.
    ///
    /// # Errors
    /// [`Error::Many`], with an error for each name that cannot be: [`Refusal::Busy`] while it is read, [`Refusal::Held`],
    /// [`Refusal::HasClones`], [`Refusal::NotSnapshot`], [`Refusal::Unsupported`].
    pub fn destroy_snapshots(self: &Arc<Self>, names: &[String], defer: bool) -> Result<(), Error> {
        if names.is_empty() {
            return Ok(());
        }
        self.await_mounts(names);
        let (names, _frozen) = (names.to_vec(), self.freeze_holds());
        self.sync_task(move |cx| cx.spa.destroy_listed(cx, &names, defer))
    }

    fn destroy_listed(&self, cx: &TaskCx<'_>, names: &[String], defer: bool) -> Result<(), Error> {
        let (mut failed, mut now, mut later) = (Vec::new(), BTreeMap::<ObjectId, Vec<Doomed>>::new(), Vec::new());
        let (mut heads, mut seen) = (BTreeMap::new(), BTreeSet::new());
        for name in names {
            let found = self.find_doomed(cx.mos, name, &mut heads);
            let checked = found.and_then(|found| match found.filter(|one| seen.insert(one.snap.id)) {
                Some(one) => self.check_doomed(cx.mos, &one, defer).map(|now| Some((one, now))),
                None => Ok(None),
            });
            match checked {
                Ok(None) => {}
                Ok(Some((one, true))) => now.entry(one.snap.phys.dir_obj).or_default().push(one),
                Ok(Some((one, false))) => later.push(one),
                Err(error) => failed.push((name.clone(), error)),
            }
        }
        if !failed.is_empty() {
            return Err(Error::Many(failed));
        }
        for one in later {
            cx.mos.edit_dataset(cx.tx, one.snap.id, |phys| phys.flags |= DslDatasetPhys::FLAG_DEFER_DESTROY)?;
            self.log_named(cx.mos, cx.tx, "defer_destroy", (&one.name, one.snap.id), " ")?;
        }
        now.into_values().try_for_each(|doomed| self.destroy_of_dir(cx.mos, cx.tx, doomed))
    }

    fn find_doomed(
        &self,
        mos: &Mos,
        name: &str,
        heads: &mut BTreeMap<String, Option<Live>>,
    ) -> Result<Option<Doomed>, Error> {
        let (fs, short) = split_snapshot(name)?;
        if !heads.contains_key(fs) {
            let head = match self.find_head(mos, fs) {
                Ok(head) => Some(head),
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(error),
            };
            heads.insert(fs.to_string(), head);
        }
        let Some(Some(head)) = heads.get(fs) else { return Ok(None) };
        let Some(id) = mos.snapshot_id(&head.phys, short)? else { return Ok(None) };
        Ok(Some(Doomed { name: name.to_string(), snap: mos.live(id)? }))
    }

    /// Checks that a snapshot can be destroyed; `false` if it can only be marked for deferred destruction.
    pub(in crate::dsl) fn check_doomed(&self, mos: &Mos, one: &Doomed, defer: bool) -> Result<bool, Error> {
        let phys = &one.snap.phys;
        let held = mos.zap_if(phys.userrefs_obj)?.is_some_and(|holds| holds.count() > 0);
        if !self.doom(&one.snap) {
            return Err(refused(&one.name, Refusal::Busy));
        }
        let why = match (held, phys.num_children > 1) {
            _ if defer && self.uberblock().version < VERSION_USERREFS => Refusal::Unsupported,
            (false, false) => return Ok(true),
            _ if defer => return Ok(false),
            (true, _) => Refusal::Held,
            (false, true) => Refusal::HasClones,
        };
        Err(refused(&one.name, why))
    }

    /// Destroys snapshots of one directory, which have all been checked.
    pub(in crate::dsl) fn destroy_of_dir(&self, mos: &Mos, tx: &Tx, mut doomed: Vec<Doomed>) -> Result<(), Error> {
        let Some(dir) = doomed.first().map(|one| one.snap.phys.dir_obj) else { return Ok(()) };
        doomed.sort_by_key(|one| one.snap.phys.creation_txg);
        for one in &doomed {
            self.log_named(mos, tx, "destroy", (&one.name, one.snap.id), " ")?;
        }
        for run in doomed.chunk_by(|a, b| b.snap.phys.prev_snap_obj == a.snap.id) {
            self.destroy_run(mos, tx, run)?;
        }
        let head = mos.dataset_phys(mos.dir_phys(dir)?.head_dataset_obj)?;
        let names = mos.zap(head.snapnames_zapobj)?;
        for one in &doomed {
            self.remove_snapshot_name(tx, &names, &head, split_snapshot(&one.name)?.1)?;
            self.free_dataset_object(mos, tx, one.snap.id)?;
        }
        mos.adjust_count(tx, dir, dir_keys::SNAPSHOT_COUNT, -(doomed.len() as i64))?;
        self.snapshots_changed(mos, tx, dir)
    }

    fn remove_snapshot_name(&self, tx: &Tx, names: &dmu::Zap, head: &DslDatasetPhys, short: &str) -> Result<(), Error> {
        let stored = match head.flags & DslDatasetPhys::FLAG_CI_DATASET != 0 && names.normflags() != 0 {
            true => names.lookup_norm(short, dmu::MatchMode::Normalize)?.map(|found| found.name),
            false => None,
        };
        remove_present(tx, names, stored.as_deref().unwrap_or(short.as_bytes()))
    }

    fn destroy_run(&self, mos: &Mos, tx: &Tx, all: &[Doomed]) -> Result<(), Error> {
        let (Some(first), Some(last)) = (all.first(), all.last()) else { return Ok(()) };
        let next = mos.live(last.snap.phys.next_snap_obj)?;
        if next.phys.prev_snap_obj != last.snap.id {
            return Err(Error::corrupt(next.id, format!("dataset does not follow snapshot {}", last.snap.id)));
        }
        if matches!(Deadlist::open(mos, next.phys.deadlist_obj)?.body, Body::Old(_)) {
            return all.iter().try_for_each(|one| self.destroy_old(mos, tx, one));
        }
        let prev = match first.snap.phys.prev_snap_obj {
            ObjectId::NONE => None,
            id => Some(mos.live(id)?),
        };
        let after_branch = prev.as_ref().is_some_and(|prev| prev.phys.next_snap_obj != first.snap.id);
        let run = Run { first, last, all, prev, after_branch, next };
        let marked = self.bookmarks_without_snapshots(mos, tx, &run)?;
        let merged = self.merge_deadlists(mos, tx, &run)?;
        self.free_lists(mos, tx, &run, &merged)?;
        self.relink(mos, tx, &run)?;
        self.remap_lists_of_run(mos, tx, &run)?;
        let keys: Vec<Txg> =
            all.iter().map(|one| one.snap.phys.creation_txg).filter(|txg| !marked.contains(txg)).collect();
        self.remove_clones_keys(mos, tx, first.snap.phys.dir_obj, &keys)?;
        self.settle_unique(mos, tx, &run, merged.prev_alone, &keys)
    }

    /// Merges the deadlists of a run into that of the next dataset, in one pass.
    fn merge_deadlists(&self, mos: &Mos, tx: &Tx, run: &Run<'_>) -> Result<Merged, Error> {
        let since = run.first.snap.phys.prev_snap_txg;
        let before = run.prev.as_ref().map_or(Txg(0), |prev| prev.phys.prev_snap_txg);
        let empty = empty_list(mos)?;
        let mut merged = Merged::default();
        let next = Deadlist::open(mos, run.next.phys.deadlist_obj)?;
        merged.keep = next.lists().into_iter().filter(|(key, _)| *key < since).map(|(key, _)| (key, vec![])).collect();
        let mut take = |list: &Deadlist, oldest: bool| -> Result<(), Error> {
            for (key, id) in list.lists() {
                if Some(id) == empty {
                    continue;
                }
                let space = list.list(id)?.space();
                if key >= since && !oldest {
                    merged.freed.add(space);
                    merged.free.push(id);
                    continue;
                }
                if key >= before && key < since && !oldest {
                    merged.prev_alone = merged.prev_alone.wrapping_add(space.used);
                }
                merged.kept.add(space);
                // a key that is not there goes to the one before
                match merged.keep.range_mut(..=key).next_back() {
                    Some((_, lists)) => lists.push(id),
                    None => return Err(Error::corrupt(list.id(), format!("deadlist: no key up to {key} behind it"))),
                }
            }
            Ok(())
        };
        take(&next, false)?;
        let mut empties = 0;
        for (n, one) in run.all.iter().enumerate() {
            let list = Deadlist::open(mos, one.snap.phys.deadlist_obj)?;
            empties += list.empties(empty);
            take(&list, n == 0)?;
            mos.objset.free_object(tx, list.id())?;
        }
        merged.empties = empties;
        let id = self.with_empty_bpobj(mos, tx, |count| next.rebuild(tx, &merged.keep, merged.kept, count))?;
        if id != run.next.phys.deadlist_obj {
            mos.edit_dataset(tx, run.next.id, |phys| phys.deadlist_obj = id)?;
        }
        Ok(merged)
    }

    /// Moves whole lists to the list of blocks to free.
    fn free_lists(&self, mos: &Mos, tx: &Tx, run: &Run<'_>, merged: &Merged) -> Result<(), Error> {
        self.with_empty_bpobj(mos, tx, |count| drop_empties(mos, tx, merged.empties, count))?;
        if merged.free.is_empty() {
            return Ok(());
        }
        let list = mos
            .id_of(FREE_BPOBJ)?
            .ok_or_else(|| Error::corrupt(ObjectId::POOL_DIRECTORY, "no list of blocks to free"))?;
        Bpobj::open(mos, list)?.append_lists(tx, &merged.free)?;
        mos.did_use(tx, run.first.snap.phys.dir_obj, Used::Snap, negative(merged.freed))?;
        self.did_use_free(mos, tx, delta(merged.freed))
    }

    /// Links the neighbours of a run to each other.
    fn relink(&self, mos: &Mos, tx: &Tx, run: &Run<'_>) -> Result<(), Error> {
        let (first, next) = (&run.first.snap, run.next.id);
        mos.edit_dataset(tx, next, |phys| {
            (phys.prev_snap_obj, phys.prev_snap_txg) = (first.phys.prev_snap_obj, first.phys.prev_snap_txg);
        })?;
        let Some(prev) = &run.prev else { return Ok(()) };
        if !run.after_branch {
            return mos.edit_dataset(tx, prev.id, |phys| phys.next_snap_obj = next);
        }
        if let Some(clones) = mos.zap_if(prev.phys.next_clones_obj)? {
            clones.remove_int(tx, first.id.0)?;
            clones.add_int(tx, next.0, next.0)?;
        }
        Ok(())
    }

    /// Accounts space that is now unique to one dataset; removes the keys of destroyed snapshots from the head's deadlist.
    fn settle_unique(&self, mos: &Mos, tx: &Tx, run: &Run<'_>, prev_alone: u64, keys: &[Txg]) -> Result<(), Error> {
        if let Some(prev) = run.prev.as_ref().filter(|_| !run.after_branch && prev_alone > 0) {
            mos.grow_unique(tx, prev.id, prev_alone)?;
        }
        if !run.next.phys.is_snapshot() {
            return self.recount_head(mos, tx, run.next.id);
        }
        let after = mos.live(run.next.phys.next_snap_obj)?;
        let (from, until) = (run.first.snap.phys.prev_snap_txg, run.last.snap.phys.creation_txg);
        let more = Deadlist::open(mos, after.phys.deadlist_obj)?.space_range(from, until)?.used;
        mos.grow_unique(tx, run.next.id, more)?;
        let head = mos.live(mos.dir_phys(run.first.snap.phys.dir_obj)?.head_dataset_obj)?;
        self.remove_keys(mos, tx, &head, keys)
    }

    /// Recalculates the space unique to a head from its sums (OpenZFS: `dsl_dataset_recalc_head_uniq`); the unused part of its refreservation
    /// changes accordingly.
    pub(in crate::dsl) fn recount_head(&self, mos: &Mos, tx: &Tx, id: ObjectId) -> Result<(), Error> {
        let phys = mos.dataset_phys(id)?;
        let shared = match phys.prev_snap_obj {
            ObjectId::NONE => 0,
            prev => mos.dataset_phys(prev)?.referenced_bytes,
        };
        let dead = Deadlist::open(mos, phys.deadlist_obj)?.space().used;
        let mut unique = phys.referenced_bytes;
        mos.count(id, "unique, counted anew,", &mut unique, dead.wrapping_sub(shared).cast_signed());
        let accurate = self.uberblock().version >= VERSION_UNIQUE_ACCURATE;
        mos.edit_dataset(tx, id, |phys| {
            phys.unique_bytes = unique;
            if accurate {
                phys.flags |= DslDatasetPhys::FLAG_UNIQUE_ACCURATE;
            }
        })?;
        let reserved = mos.prop_number(phys.dir_obj, "refreservation")?;
        // it shrinks where what was recorded was too much, as in datasets of pools before version 9
        let less = unique.min(reserved) as i64 - phys.unique_bytes.min(reserved) as i64;
        let delta = Delta { used: less.wrapping_neg(), ..Delta::default() };
        mos.did_use(tx, phys.dir_obj, Used::Refrsrv, delta)
    }

    /// Removes keys from the deadlist of `head`.
    pub(in crate::dsl) fn remove_keys(&self, mos: &Mos, tx: &Tx, head: &Live, keys: &[Txg]) -> Result<(), Error> {
        let list = Deadlist::open(mos, head.phys.deadlist_obj)?;
        let id = self.with_empty_bpobj(mos, tx, |count| list.remove_keys(tx, keys, count))?;
        if id != head.phys.deadlist_obj {
            mos.edit_dataset(tx, head.id, |phys| phys.deadlist_obj = id)?;
        }
        match mos.extra_id(head.id, dataset_keys::REMAP_DEADLIST)? {
            Some(remaps) => self.remove_remap_keys(mos, tx, head.id, remaps, keys),
            None => Ok(()),
        }
    }

    /// Removes keys from the deadlists of all clones, and clones of clones, that were made after them (OpenZFS: `dsl_dir_remove_clones_key`).
    pub(in crate::dsl) fn remove_clones_keys(
        &self,
        mos: &Mos,
        tx: &Tx,
        dir: ObjectId,
        keys: &[Txg],
    ) -> Result<(), Error> {
        let (mut dirs, mut seen) = (vec![dir], BTreeSet::from([dir]));
        while let Some(dir) = dirs.pop().filter(|_| !keys.is_empty()) {
            let Some(clones) = mos.zap_if(mos.dir_phys(dir)?.clones)? else { continue };
            for entry in clones.entries()? {
                let clone = mos.live(ObjectId(entry?.value.first()))?;
                let origin = mos.dir_phys(clone.phys.dir_obj)?.origin_obj;
                let born = if origin.is_none() { Txg(0) } else { mos.dataset_phys(origin)?.creation_txg };
                let keys: Vec<Txg> = keys.iter().copied().filter(|key| born > *key).collect();
                if !keys.is_empty() && seen.insert(clone.phys.dir_obj) {
                    self.remove_keys(mos, tx, &clone, &keys)?;
                    dirs.push(clone.phys.dir_obj);
                }
            }
        }
        Ok(())
    }

    /// Frees the object of a dataset, with its own ZAPs, and drops its use of features. Its key is forgotten, as another dataset may get the number.
    pub(in crate::dsl) fn free_dataset_object(&self, mos: &Mos, tx: &Tx, id: ObjectId) -> Result<(), Error> {
        let phys = mos.dataset_phys(id)?;
        for zap in [phys.next_clones_obj, phys.props_obj, phys.userrefs_obj].into_iter().filter(|zap| zap.is_some()) {
            mos.objset.free_object(tx, zap)?;
        }
        if mos.object(id)?.phys().object_type.is_zap() {
            let extras = mos.zap(id)?;
            for def in FEATURES.iter().filter(|def| def.is_per_dataset()) {
                if extras.lookup(def.guid)?.is_some() {
                    self.feature_decrement(mos, tx, def.name)?;
                }
            }
        }
        self.clear_bootfs(mos, tx, id)?;
        self.zio().keys().remove(id);
        self.free_extended(mos, tx, id)
    }

    /// Frees a directory or dataset, which may have been extended (OpenZFS: `dmu_object_free_zapified`).
    pub(in crate::dsl) fn free_extended(&self, mos: &Mos, tx: &Tx, id: ObjectId) -> Result<(), Error> {
        if mos.object(id)?.phys().object_type.is_zap() {
            self.feature_decrement(mos, tx, "extensible_dataset")?;
        }
        Ok(mos.objset.free_object(tx, id)?)
    }

    /// Clears `bootfs` if it names a dataset that is destroyed.
    fn clear_bootfs(&self, mos: &Mos, tx: &Tx, id: ObjectId) -> Result<(), Error> {
        if let Some(props) = mos.named_zap("pool_props")?
            && props.lookup_id("bootfs")? == Some(id)
        {
            props.remove(tx, "bootfs")?;
        }
        Ok(())
    }
}
