//! Limits on writes: quotas and reservations, of directories and of datasets (OpenZFS: `dsl_dir_tempreserve_space`, `dsl_dataset_check_quota`,
//! `dsl_dir_space_available`, `dsl_dir_set_reservation`).
//!
//! The usage as of the last synced txg is known exactly; that of the unsynced txgs is estimated by the bytes that each transaction reserved, and
//! finally dirtied. A transaction is refused when the exact figure has reached the quota: so one may exceed it, and a transaction that would exceed
//! it only together with unsynced bytes waits until these are on disk, and is then decided by the exact figure.
//!
//! The figures are gathered once per txg and head ([`Quota`]): directories with a quota or a reservation take part, and the pool's root, where
//! what others have reserved counts as used. A transaction compares a few numbers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{ObjectId, Txg};
use dmu::{Objset, Tx, TxObjects};
use ondisk::dsl::{DslDirPhys, dir_keys};
use parking_lot::Mutex;

use crate::dsl::Refusal;
use crate::dsl::lookup::Live;
use crate::dsl::open_datasets::OpenDataset;
use crate::dsl::refused;
use crate::dsl::space::{Delta, Used, parent_delta};
use crate::spa::mos::{self, Mos};
use crate::spa::{Limits, Reservation, Spa};
use crate::{Bpobj, Error};

/// Deeper nesting than OpenZFS allows is followed no further.
pub(in crate::dsl) const DEPTH_MAX: usize = 64;
/// The share of a quota (a 32nd) by which unsynced bytes may exceed it.
const OVERCOMMIT_SHIFT: u32 = 5;
/// The number of txgs in flight.
const TXGS: usize = 4;

/// The space that may still be written to a head, as of txg `synced`.
#[derive(Debug)]
pub(in crate::dsl) struct Quota {
    synced: Txg,
    referenced: u64,
    refquota: u64,
    unique: u64,
    reserved: u64,
    /// The unsynced bytes of this head.
    pending: Arc<Pending>,
    /// From the head's own directory up.
    levels: Vec<Level>,
}

/// A directory that limits what is below it, or has space reserved.
#[derive(Debug)]
struct Level {
    own: bool,
    root: bool,
    /// The limit is the size of the pool, not a quota.
    by_size: bool,
    used: u64,
    /// 0 for none.
    quota: u64,
    /// Space of the root that only transactions which free more than they write may use.
    for_frees: u64,
    reserved: u64,
    pending: Arc<Pending>,
}

/// Unsynced bytes, by txg.
#[derive(Debug, Default)]
pub(in crate::dsl) struct Pending(Mutex<[(Txg, u64); TXGS]>);

impl Pending {
    fn after(&self, synced: Txg) -> u64 {
        self.0.lock().iter().filter(|(txg, _)| *txg > synced).map(|(_, bytes)| bytes).sum()
    }

    fn unbook(&self, txg: Txg, bytes: u64) {
        if let Some(slot) = self.0.lock().iter_mut().find(|slot| slot.0 == txg) {
            assert!(slot.1 >= bytes, "{bytes} bytes of txg {txg} were not booked: {} were", slot.1);
            slot.1 -= bytes;
        }
    }

    fn book(&self, txg: Txg, bytes: u64) {
        let mut slots = self.0.lock();
        if let Some(slot) = slots.get_mut((txg.0 % TXGS as u64) as usize) {
            *slot = if slot.0 == txg { (txg, slot.1 + bytes) } else { (txg, bytes) };
        }
    }
}

/// The decision on a transaction.
enum Verdict {
    Go,
    /// Wait: the exact figure is known once the unsynced bytes are on disk.
    Wait,
    Refuse(Refusal),
}

impl Quota {
    fn verdict(&self, bytes: u64, netfree: bool) -> Verdict {
        let own = self.pending.after(self.synced);
        if self.refquota != 0 && !netfree && self.referenced.saturating_add(own) >= self.refquota {
            return if own > 0 { Verdict::Wait } else { Verdict::Refuse(Refusal::Quota) };
        }
        let mut bytes = bytes;
        for level in &self.levels {
            let pending = level.pending.after(self.synced);
            let (mut used, mut from_reserve) = (level.used, 0);
            if level.own && self.reserved > self.unique {
                used = used.saturating_sub(self.reserved - self.unique);
                let noticed = parent_delta(self.reserved, self.unique, bytes.saturating_add(own) as i64);
                from_reserve = bytes - bytes.min(noticed.max(0) as u64);
            }
            let quota = match (netfree, level.root) {
                (true, true) => level.for_frees,
                (true, false) => u64::MAX,
                (false, _) if level.quota == 0 => u64::MAX,
                (false, _) => level.quota,
            };
            if used >= quota {
                return match level.by_size || netfree {
                    // something may be freed by what is on its way
                    true if pending > 0 => Verdict::Wait,
                    true => Verdict::Refuse(Refusal::NoSpace),
                    false => Verdict::Refuse(Refusal::Quota),
                };
            }
            if quota != u64::MAX && used.saturating_add(pending) >= quota.saturating_add(quota >> OVERCOMMIT_SHIFT) {
                return Verdict::Wait;
            }
            let more = bytes.saturating_sub(from_reserve);
            bytes = parent_delta(level.reserved, used.saturating_add(pending), more as i64).max(0) as u64;
            if bytes == 0 {
                break;
            }
        }
        Verdict::Go
    }

    fn each(&self, work: impl Fn(&Pending)) {
        if self.refquota != 0 || self.reserved != 0 {
            work(&self.pending);
        }
        self.levels.iter().for_each(|level| work(&level.pending));
    }
}

impl Limits for Quota {
    fn book(&self, txg: Txg, bytes: u64) {
        self.each(|pending| pending.book(txg, bytes));
    }

    fn unbook(&self, txg: Txg, bytes: u64) {
        self.each(|pending| pending.unbook(txg, bytes));
    }
}

impl Spa {
    /// A place in the open txg for changes of `objset` that dirty about `bytes` bytes, within the quotas and reservations of its dataset and
    /// of all above. `netfree`: the changes free more than they take, and quotas do not hinder them.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Refusal::Quota`] (EDQUOT) or [`Refusal::NoSpace`]; else as [`Spa::tx`].
    pub fn dataset_tx(&self, objset: &Arc<Objset>, bytes: u64, netfree: bool) -> Result<Tx, Error> {
        self.dataset_tx_for(objset, bytes, netfree, TxObjects::of_set(objset.id()))
    }

    /// As [`Spa::dataset_tx`], for changes of some `objects` only.
    ///
    /// # Errors
    /// As [`Spa::dataset_tx`].
    pub fn dataset_tx_for(
        &self,
        objset: &Arc<Objset>,
        bytes: u64,
        netfree: bool,
        objects: TxObjects,
    ) -> Result<Tx, Error> {
        let reservation = |quota| Reservation { bytes, keeps: false, quota, objects };
        let Some(head) = self.dsl.open_datasets.get(objset.id()) else {
            return self.reserve(reservation(None), netfree);
        };
        loop {
            let quota = self.quota(&head)?;
            match quota.verdict(bytes, netfree) {
                Verdict::Go => return self.reserve(reservation(Some(quota)), netfree),
                Verdict::Wait => self.sync()?,
                Verdict::Refuse(why) => return Err(self.over_limit(&head, why)),
            }
        }
    }

    fn over_limit(&self, head: &OpenDataset, why: Refusal) -> Error {
        let name = self.live_mos().and_then(|mos| mos.full_name(self.name(), &mos.live(head.id)?));
        refused(&name.unwrap_or_else(|_| head.id.to_string()), why)
    }

    /// The space that may be written to a head, gathered once per txg.
    fn quota(&self, head: &OpenDataset) -> Result<Arc<Quota>, Error> {
        let synced = self.txgs().synced();
        if let Some(quota) = head.quota.lock().as_ref().filter(|quota| quota.synced >= synced) {
            return Ok(quota.clone());
        }
        let quota = Arc::new(self.gather_quota(head, synced)?);
        *head.quota.lock() = Some(quota.clone());
        Ok(quota)
    }

    fn gather_quota(&self, head: &OpenDataset, synced: Txg) -> Result<Quota, Error> {
        let mos = self.live_mos()?;
        let phys = mos.dataset_phys(head.id)?;
        let reserved = head.reserved.load(Ordering::Relaxed);
        let lineage = mos.lineage(phys.dir_obj)?;
        let mut levels = Vec::new();
        for (n, (id, dir)) in lineage.iter().enumerate() {
            let (own, root) = (n == 0, dir.parent_obj.is_none());
            if !(dir.quota != 0 || dir.reserved != 0 || (own && reserved != 0) || root) {
                continue;
            }
            let (mut quota, mut for_frees, mut by_size) = (dir.quota, 0, false);
            if root {
                let size = self.size_after(&mos, synced)?;
                by_size = quota == 0 || size < quota;
                quota = if by_size { size } else { quota };
                for_frees = size.saturating_add(self.space().manager().slop() / 2);
            }
            let (used, reserved) = (used_of(dir), dir.reserved);
            levels.push(Level {
                own,
                root,
                by_size,
                used,
                quota,
                for_frees,
                reserved,
                pending: self.dsl.open_datasets.pending(*id),
            });
        }
        Ok(Quota {
            synced,
            referenced: phys.referenced_bytes,
            refquota: mos.prop_number(phys.dir_obj, "refquota")?,
            unique: phys.unique_bytes,
            reserved,
            pending: self.dsl.open_datasets.pending(head.id),
            levels,
        })
    }

    fn size_after(&self, mos: &Mos, synced: Txg) -> Result<u64, Error> {
        let mut known = self.dsl.open_datasets.size.lock();
        match *known {
            Some((txg, size)) if txg >= synced => Ok(size),
            _ => Ok(known.insert((synced, self.adjusted_size(mos)?)).1),
        }
    }

    /// The size of the pool as its root directory sees it (OpenZFS: `dsl_pool_adjustedsize`).
    pub(in crate::dsl) fn adjusted_size(&self, mos: &Mos) -> Result<u64, Error> {
        let manager = self.space().manager();
        let view = self.view()?;
        let dedup = view.dedup_total()?;
        let saved = dedup.ref_dsize.saturating_sub(dedup.dsize).saturating_add(view.brt_stats()?.saved);
        let deferred = match mos.id_of(crate::spa::frees::SYNC_BPOBJ)? {
            Some(id) if id.is_some() => Bpobj::open(mos, id)?.space().used,
            _ => 0,
        };
        let space = manager.dspace().saturating_add(saved).saturating_sub(view.checkpoint_held()?);
        Ok(space.saturating_sub(deferred).saturating_sub(manager.slop()))
    }

    /// Bytes that may be written in directory `dir`, were directory `ancestor` changed by `delta` (OpenZFS:
    /// `dsl_dir_space_available`).
    pub(in crate::dsl) fn space_available(
        &self,
        mos: &Mos,
        dir: ObjectId,
        change: Option<(ObjectId, i64)>,
    ) -> Result<u64, Error> {
        let mut space = u64::MAX;
        for (id, dir) in mos.lineage(dir)?.into_iter().rev() {
            let mut quota = if dir.quota != 0 { dir.quota } else { u64::MAX };
            let mut used = used_of(&dir);
            if dir.parent_obj.is_none() {
                quota = quota.min(self.adjusted_size(mos)?);
            }
            if space != u64::MAX {
                space = space.saturating_add(dir.reserved.saturating_sub(used));
            }
            if let Some((_, delta)) = change.filter(|(ancestor, _)| *ancestor == id) {
                used = used.saturating_add_signed(delta);
                if space != u64::MAX {
                    space = space.saturating_add_signed(delta.saturating_neg());
                }
            }
            space = quota.checked_sub(used).map_or(0, |left| space.min(left));
        }
        Ok(space)
    }

    /// Checks that new quotas and reservations fit the space in use. `new` returns the future value of a limit that is to change.
    pub(in crate::dsl) fn check_limits(
        &self,
        mos: &Mos,
        ds: &Live,
        new: &mut dyn FnMut(&str) -> Result<Option<u64>, Error>,
    ) -> Result<(), Error> {
        let dir = mos.dir_phys(ds.phys.dir_obj)?;
        let full = |name: &str| Err(refused(name, Refusal::NoSpace));
        let (quota, reservation) = (new("quota")?, new("reservation")?);
        let (refquota, refreservation) = (new("refquota")?, new("refreservation")?);
        let reserved = reservation.unwrap_or(dir.reserved);
        if let Some(quota) = quota.filter(|quota| *quota != 0)
            && (quota < reserved || quota < dir.used_bytes)
        {
            return full("quota");
        }
        let quota = quota.unwrap_or(dir.quota);
        if reservation.is_some() && reserved.max(dir.used_bytes) > dir.reserved.max(dir.used_bytes) {
            let delta = reserved.max(dir.used_bytes) - dir.reserved.max(dir.used_bytes);
            let available = match dir.parent_obj {
                ObjectId::NONE => self.adjusted_size(mos)?.saturating_sub(dir.used_bytes),
                parent => self.space_available(mos, parent, None)?,
            };
            if delta > available || (quota > 0 && reserved > quota) {
                return full("reservation");
            }
        }
        let number = |name: &str| mos.prop_number(ds.phys.dir_obj, name);
        let held = number("refreservation")?;
        let limit = match refquota {
            Some(limit) => limit,
            None => number("refquota")?,
        };
        if refquota.is_some_and(|n| n != 0 && (n < ds.phys.referenced_bytes || n < refreservation.unwrap_or(held))) {
            return full("refquota");
        }
        let unique = ds.phys.unique_bytes;
        if let Some(want) = refreservation.filter(|want| unique.max(*want) > unique.max(held)) {
            let delta = unique.max(want) - unique.max(held);
            if delta > self.space_available(mos, ds.phys.dir_obj, None)? || (limit > 0 && want > limit) {
                return full("refreservation");
            }
        }
        Ok(())
    }

    /// As [`Spa::check_limits`], for what is yet to be made in directory `parent`.
    pub(in crate::dsl) fn check_new_limits(
        &self,
        mos: &Mos,
        parent: ObjectId,
        new: &dyn Fn(&str) -> u64,
    ) -> Result<(), Error> {
        let full = |name: &str| Err(refused(name, Refusal::NoSpace));
        let (quota, reservation) = (new("quota"), new("reservation"));
        let (refquota, refreservation) = (new("refquota"), new("refreservation"));
        if quota != 0 && quota < reservation {
            return full("quota");
        }
        if refquota != 0 && refquota < refreservation {
            return full("refquota");
        }
        if reservation == 0 && refreservation == 0 {
            return Ok(());
        }
        let available = self.space_available(mos, parent, None)?;
        if reservation > available {
            return full("reservation");
        }
        let own = available.max(reservation);
        if refreservation > if quota == 0 { own } else { own.min(quota) } {
            return full("refreservation");
        }
        Ok(())
    }

    /// Counts file systems and snapshots from directory `dir` down, as soon as there is a limit (OpenZFS: `dsl_dir_init_fs_ss_count`). The
    /// limits themselves bind only those who may not change them, which whoever opens a pool's devices may.
    pub(in crate::dsl) fn activate_limits(&self, mos: &Mos, tx: &Tx, dir: ObjectId) -> Result<(), Error> {
        if !self.feature_active(mos, "filesystem_limits")? {
            self.feature_increment(mos, tx, "filesystem_limits")?;
        }
        self.count_below(mos, tx, dir, 0).map(drop)
    }

    fn count_below(&self, mos: &Mos, tx: &Tx, dir: ObjectId, depth: usize) -> Result<(u64, u64), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::corrupt(dir, "directories are nested too deeply"));
        }
        let zap = self.zapify(mos, tx, dir)?;
        if let Some(datasets) = zap.lookup_u64(dir_keys::FILESYSTEM_COUNT)? {
            return Ok((datasets, zap.lookup_u64(dir_keys::SNAPSHOT_COUNT)?.unwrap_or(0)));
        }
        let phys = mos.dir_phys(dir)?;
        let (mut datasets, mut snapshots) = (0, 0);
        for (name, child) in mos::named_entries(&mos.zap(phys.child_dir_zapobj)?)? {
            if !name.starts_with('$') {
                let (below, taken) = self.count_below(mos, tx, ObjectId(child.first()), depth + 1)?;
                datasets += below + 1;
                snapshots += taken;
            }
        }
        if let Some(zap) = mos.zap_if(mos.dataset_phys(phys.head_dataset_obj)?.snapnames_zapobj)? {
            snapshots += mos::named_entries(&zap)?.iter().filter(|(name, _)| !name.starts_with('%')).count() as u64;
        }
        zap.add_u64(tx, dir_keys::FILESYSTEM_COUNT, datasets)?;
        zap.add_u64(tx, dir_keys::SNAPSHOT_COUNT, snapshots)?;
        Ok((datasets, snapshots))
    }

    /// A new directory counts what is below it if others do.
    pub(in crate::dsl) fn count_new(&self, mos: &Mos, tx: &Tx, dir: ObjectId) -> Result<(), Error> {
        if self.feature_active(mos, "filesystem_limits")? {
            let zap = self.zapify(mos, tx, dir)?;
            zap.add_u64(tx, dir_keys::FILESYSTEM_COUNT, 0)?;
            zap.add_u64(tx, dir_keys::SNAPSHOT_COUNT, 0)?;
        }
        Ok(())
    }
}

impl Mos {
    /// Directory `dir` and all above it, the root last.
    pub(in crate::dsl) fn lineage(&self, dir: ObjectId) -> Result<Vec<(ObjectId, DslDirPhys)>, Error> {
        let mut all = Vec::new();
        let mut at = dir;
        while at.is_some() {
            if all.len() > DEPTH_MAX {
                return Err(Error::corrupt(dir, "directories are nested too deeply"));
            }
            let phys = self.dir_phys(at)?;
            let parent = phys.parent_obj;
            all.push((at, phys));
            at = parent;
        }
        Ok(all)
    }

    /// Holds `reserved` bytes for directory `dir` (OpenZFS: `dsl_dir_set_reservation_sync_impl`).
    pub(in crate::dsl) fn set_reservation(&self, tx: &Tx, dir: ObjectId, reserved: u64) -> Result<(), Error> {
        let (parent, used) = self.edit_dir(tx, dir, |dir| {
            let used = used_of(dir);
            let delta = used.max(reserved) as i64 - used.max(dir.reserved) as i64;
            dir.reserved = reserved;
            (dir.parent_obj, delta)
        })?;
        self.did_use(tx, parent, Used::ChildRsrv, Delta { used, ..Delta::default() })
    }

    /// Holds `new` bytes for head `id`, instead of `before` (OpenZFS: `dsl_dataset_set_refreservation_sync_impl`).
    pub(in crate::dsl) fn set_refreservation(&self, tx: &Tx, id: ObjectId, before: u64, new: u64) -> Result<(), Error> {
        let phys = self.dataset_phys(id)?;
        let unused = |reserved: u64| reserved.saturating_sub(phys.unique_bytes) as i64;
        let delta = Delta { used: unused(new) - unused(before), ..Delta::default() };
        self.did_use(tx, phys.dir_obj, Used::Refrsrv, delta)
    }
}

/// The space that a directory uses. A sum that OpenZFS let fall below zero is near 2^64 on disk.
pub(in crate::dsl) fn used_of(dir: &DslDirPhys) -> u64 {
    dir.used_bytes.cast_signed().max(0).cast_unsigned()
}
