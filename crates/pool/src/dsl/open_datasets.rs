//! The live object sets of datasets, and their part of a sync (OpenZFS: `dsl_dataset_sync`, `dmu_objset_sync`).

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use base::{ObjectId, Txg, tunable};
use dmu::{Objset, SyncCx, Tx, UsedBy, WritePolicy, Zap};
use ondisk::dsl::{DslDatasetPhys, dir_keys};
use ondisk::{BlkPtr, ObjectType};
use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard, RwLock};
use zil::write::Zil;

use crate::dsl::crypt::KeyInfo;
use crate::dsl::crypt::errata;
use crate::dsl::deadlist::Deadlist;
use crate::dsl::intent_log::check_replayed;
use crate::dsl::space::{Delta, Gather, Tally, UNIQUE, Used, parent_delta};
use crate::dsl::turns::Turns;
use crate::dsl::{LongHolds, Pending, Quota, Refusal, ResumeSlots};
use crate::spa::Spa;
use crate::spa::feature;
use crate::spa::mos::Mos;
use crate::{Dataset, Error};

/// Unused heads that stay open, so that reopening them is cheap.
const IDLE_MAX: usize = 64;
/// Counters of pending changes that are kept before unused ones are dropped.
const PENDING_MAX: usize = 1024;
/// The most txgs that an object set can be dirty in at a time.
const TXGS: u64 = 4;
/// Attempts to open a head while tasks change what is below it, before it is busy.
const OPEN_TRIES: usize = 16;

/// A dataset whose object set is open for writing.
pub(in crate::dsl) struct OpenDataset {
    pub(in crate::dsl) id: ObjectId,
    pub(in crate::dsl) objset: Arc<Objset>,
    /// The rules by which its blocks are written; changes with properties.
    pub(in crate::dsl) policy: RwLock<WritePolicy>,
    /// Bytes that the dataset keeps for itself (`refreservation`).
    pub(in crate::dsl) reserved: AtomicU64,
    /// The space that it may still take, as the last synced txg left it.
    pub(in crate::dsl) quota: Mutex<Option<Arc<Quota>>>,
    /// Resume points of a receive into it.
    pub(in crate::dsl) resume: ResumeSlots,
    /// Held while its log is replayed.
    pub(in crate::dsl) replay: Mutex<()>,
    /// Its log, once it was asked for.
    pub(in crate::dsl) zil: OnceLock<Arc<Zil>>,
    /// The live file system or volume that is open on it, for as long as somebody has it.
    shared: Mutex<Option<Weak<dyn Any + Send + Sync>>>,
}

impl OpenDataset {
    pub(in crate::dsl) fn new(objset: Arc<Objset>, policy: WritePolicy, reserved: u64) -> Arc<OpenDataset> {
        objset.set_primary_cache(policy.primary_cache);
        Arc::new(OpenDataset {
            id: objset.id(),
            objset,
            policy: RwLock::new(policy),
            reserved: AtomicU64::new(reserved),
            quota: Mutex::default(),
            resume: ResumeSlots::default(),
            replay: Mutex::default(),
            zil: OnceLock::new(),
            shared: Mutex::default(),
        })
    }

    fn is_dirty(&self) -> bool {
        (0..TXGS).any(|txg| self.objset.is_dirty(Txg(txg))) || self.zil.get().is_some_and(|zil| zil.is_busy())
    }

    /// Returns whether a txg after `txg` has changes of it.
    fn is_beyond(&self, txg: Txg) -> bool {
        let zil = self.zil.get();
        self.objset.is_dirty(Txg(txg.0 + 1)) || zil.is_some_and(|zil| zil.is_beyond(txg))
    }

    /// Returns whether anyone but the engine has its object set or its log: a file system, a volume, a receive. (The engine looks at heads through
    /// references to `OpenDataset`, which do not count.)
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.objset) > 1 || self.zil.get().is_some_and(|zil| Arc::strong_count(zil) > 1)
    }

    /// Returns whether nothing would be lost or disturbed if it were opened anew; the list of heads is locked.
    fn is_idle(self: &Arc<Self>) -> bool {
        // the engine may be about to write down where a synced head is
        Arc::strong_count(self) == 1 && !self.is_used() && !self.is_dirty()
    }
}

/// The heads that are open, by dataset.
#[derive(Default)]
struct Open {
    heads: BTreeMap<ObjectId, Arc<OpenDataset>>,
    /// A count of occasions on which the root block of a dataset that is not open may have changed: a head was forgotten, a task with dooms ended.
    era: u64,
}

/// All heads that are open, by dataset.
#[derive(Default)]
pub(in crate::dsl) struct OpenDatasets {
    open: Mutex<Open>,
    /// Held by the sync thread for each pass. A check of use from elsewhere waits for it, since references of the sync thread's own are no use.
    working: ReentrantMutex<()>,
    /// Pending changes to datasets and directories.
    pending: Mutex<BTreeMap<ObjectId, Arc<Pending>>>,
    /// Long holds of readers.
    long_holds: Arc<LongHolds>,
    /// Turns of mounts that begin, and of tasks that replace contents.
    turns: Arc<Turns>,
    /// Object sets whose blocks a txg takes for files of others, and which do not go before that txg has its references to them.
    cloned_from: Mutex<Vec<(Txg, Arc<Objset>)>>,
    /// The size of the pool as its root directory has it, and the txg of that size.
    pub(in crate::dsl) size: Mutex<Option<(Txg, u64)>>,
}

impl OpenDatasets {
    /// Returns an open head, to look at. Who changes its contents takes the object set itself: [`OpenDatasets::objset`].
    pub(in crate::dsl) fn get(&self, id: ObjectId) -> Option<Arc<OpenDataset>> {
        self.open.lock().heads.get(&id).cloned()
    }

    /// Returns the object set of an open head, which is in use from now on.
    pub(in crate::dsl) fn objset(&self, id: ObjectId) -> Option<Arc<Objset>> {
        self.open.lock().heads.get(&id).map(|head| head.objset.clone())
    }

    /// Adds a head, unless the dataset is open already. Returns its object set.
    pub(in crate::dsl) fn insert(&self, head: Arc<OpenDataset>) -> Arc<Objset> {
        self.open.lock().insert(head)
    }

    /// As [`OpenDatasets::insert`], for a head that was opened from its root block as it was in `era`; `None` if that may have changed since.
    fn insert_of(&self, era: u64, head: Arc<OpenDataset>) -> Option<Arc<Objset>> {
        let mut open = self.open.lock();
        let current = open.era == era && !self.long_holds.is_doomed(head.id);
        current.then(|| open.insert(head))
    }

    fn era(&self) -> u64 {
        self.open.lock().era
    }

    /// Waits for a pass of the sync thread to end, and keeps the next from beginning until the guard is dropped.
    pub(in crate::dsl) fn working(&self) -> ReentrantMutexGuard<'_, ()> {
        self.working.lock()
    }

    /// Returns the pending changes to the dataset or directory in object `id`.
    pub(in crate::dsl) fn pending(&self, id: ObjectId) -> Arc<Pending> {
        let mut all = self.pending.lock();
        if all.len() >= PENDING_MAX {
            all.retain(|_, pending| Arc::strong_count(pending) > 1);
        }
        all.entry(id).or_default().clone()
    }

    pub(in crate::dsl) fn long_holds(&self) -> &Arc<LongHolds> {
        &self.long_holds
    }

    pub(in crate::dsl) fn turns(&self) -> &Arc<Turns> {
        &self.turns
    }

    fn dirty(&self, txg: Txg) -> Vec<Arc<OpenDataset>> {
        self.open.lock().heads.values().filter(|head| head.objset.is_dirty(txg)).cloned().collect()
    }

    pub(in crate::dsl) fn all(&self) -> Vec<Arc<OpenDataset>> {
        self.open.lock().heads.values().cloned().collect()
    }

    /// Forgets heads whose blocks a sync task of `txg` is about to change underneath. No new hold is taken on them, and none of them is opened, before
    /// the task is over ([`OpenDatasets::settle`]).
    ///
    /// # Errors
    /// [`Refusal::Busy`] if one of them is in use, or if the next txg, which is open already, has changes of it.
    pub(in crate::dsl) fn evict(&self, ids: &[ObjectId], txg: Txg) -> Result<(), Refusal> {
        self.evict_if(ids, |open| self.any_is_owned(open, ids, |head| head.is_beyond(txg)))
    }

    /// As [`OpenDatasets::evict`], for the one who has had their users let go of them ([`Spa::suspend_head`]).
    ///
    /// # Errors
    /// As [`OpenDatasets::evict`].
    pub(in crate::dsl) fn evict_suspended(&self, ids: &[ObjectId], txg: Txg) -> Result<(), Refusal> {
        self.evict_if(ids, |open| self.any_is(open, ids, |head| head.is_beyond(txg)))
    }

    fn evict_if(&self, ids: &[ObjectId], busy: impl Fn(&Open) -> bool) -> Result<(), Refusal> {
        if !ids.iter().all(|id| self.long_holds.doom(*id)) {
            return Err(Refusal::Busy);
        }
        self.close(ids, busy, || ())
    }

    /// Keeps an object set in use until `txg` has the references to blocks that it takes from it.
    pub(in crate::dsl) fn keep_source(&self, txg: Txg, objset: &Arc<Objset>) {
        let mut kept = self.cloned_from.lock();
        if !kept.iter().any(|(of, one)| *of == txg && Arc::ptr_eq(one, objset)) {
            kept.push((txg, objset.clone()));
        }
    }

    /// Lets go what [`OpenDatasets::keep_source`] kept for `txg`.
    pub(in crate::dsl) fn release_sources(&self, txg: Txg) {
        self.cloned_from.lock().retain(|(of, _)| *of > txg);
    }

    /// Ends what [`OpenDatasets::evict`] began: the datasets are destroyed or changed by now, or stay after all.
    pub(in crate::dsl) fn settle(&self) {
        let mut open = self.open.lock();
        open.era += u64::from(self.long_holds.settle());
    }

    /// Forgets heads that are not in use, with their dirty data. Runs `then` before any of them can be opened again.
    ///
    /// # Errors
    /// [`Refusal::Busy`] if one of them is in use; nothing was done then.
    pub(in crate::dsl) fn close_unused(&self, ids: &[ObjectId]) -> Result<(), Refusal> {
        self.close(ids, |open| self.any_is_owned(open, ids, |_| false), || ())
    }

    /// As [`OpenDatasets::close_unused`], but a head with changes that are not on disk yet is busy too. Runs `then` before any of them can be opened again.
    ///
    /// # Errors
    /// As [`OpenDatasets::close_unused`].
    pub(in crate::dsl) fn close_clean(&self, ids: &[ObjectId], then: impl FnOnce()) -> Result<(), Refusal> {
        self.close(ids, |open| self.any_is_owned(open, ids, OpenDataset::is_dirty), then)
    }

    fn close(&self, ids: &[ObjectId], busy: impl Fn(&Open) -> bool, then: impl FnOnce()) -> Result<(), Refusal> {
        let _working = self.working();
        let mut open = self.open.lock();
        if busy(&open) {
            return Err(Refusal::Busy);
        }
        for id in ids {
            open.heads.remove(id);
        }
        open.era += 1;
        then();
        Ok(())
    }

    /// Returns whether any of these is in use, or its user has let go of it while its contents are replaced.
    pub(in crate::dsl) fn in_use(&self, ids: &[ObjectId]) -> bool {
        let _working = self.working();
        self.any_is_owned(&self.open.lock(), ids, |_| false)
    }

    /// As [`OpenDatasets::any_is`]; one that is suspended is in use as well.
    fn any_is_owned(&self, open: &Open, ids: &[ObjectId], busy: impl Fn(&OpenDataset) -> bool) -> bool {
        // in this order: until it is suspended it is in use
        self.any_is(open, ids, busy) || ids.iter().any(|id| self.long_holds.is_suspended(*id))
    }

    /// Returns whether any of these is in use, held, or else `busy`.
    fn any_is(&self, open: &Open, ids: &[ObjectId], busy: impl Fn(&OpenDataset) -> bool) -> bool {
        let held = ids.iter().any(|id| self.long_holds.is_held(*id));
        held || ids.iter().filter_map(|id| open.heads.get(id)).any(|head| head.is_used() || busy(head))
    }

    /// Returns whether it is open for a change, or has a change that is not on disk yet.
    pub(in crate::dsl) fn is_open_or_dirty(&self, id: ObjectId) -> bool {
        let _working = self.working();
        self.open.lock().heads.get(&id).is_some_and(|head| head.is_used() || head.is_dirty())
    }
}

impl Open {
    fn insert(&mut self, head: Arc<OpenDataset>) -> Arc<Objset> {
        if self.heads.len() >= IDLE_MAX {
            let before = self.heads.len();
            self.heads.retain(|_, head| !head.is_idle());
            self.era += u64::from(self.heads.len() < before);
        }
        self.heads.entry(head.id).or_insert(head).objset.clone()
    }
}

impl Spa {
    /// Returns how blocks of an open object set are written now; `None` if it is not open.
    #[must_use]
    pub fn write_policy(&self, objset: &Objset) -> Option<WritePolicy> {
        self.dsl.open_datasets.get(objset.id()).map(|head| head.policy.read().clone())
    }

    /// Returns the live object set of a file system or volume: it includes dirty data, and is changed with a [`Tx`] of [`Spa::tx`].
    ///
    /// # Errors
    /// If it is a snapshot, or cannot be opened.
    pub fn objset(&self, dataset: &Dataset) -> Result<Arc<Objset>, Error> {
        if dataset.is_snapshot() {
            return Err(Error::ReadOnlyDataset { name: dataset.name().to_string() });
        }
        if let Some(objset) = self.dsl.open_datasets.objset(dataset.id()) {
            self.check_not_owned(dataset.id(), dataset.name())?;
            check_replayed(&objset, dataset.name())?;
            return Ok(objset);
        }
        self.open_head(&self.live_mos()?, dataset.id(), dataset.name())
    }

    /// As [`Spa::objset`], for the head in object `id`, as the MOS has it now.
    pub(in crate::dsl) fn open_head(&self, mos: &Mos, id: ObjectId, name: &str) -> Result<Arc<Objset>, Error> {
        self.open_head_as(mos, id, name, false)
    }

    /// As [`Spa::open_head`]; opened `to_replay` its intent log, it may have an unreplayed one.
    pub(in crate::dsl) fn open_head_as(
        &self,
        mos: &Mos,
        id: ObjectId,
        name: &str,
        to_replay: bool,
    ) -> Result<Arc<Objset>, Error> {
        for _ in 0..OPEN_TRIES {
            let era = self.dsl.open_datasets.era();
            let phys = mos.dataset_phys(id)?;
            let key = mos.extra_id(phys.dir_obj, dir_keys::CRYPTO_KEY_OBJ)?;
            if let Some(key) = key
                && errata::is_old(&KeyInfo::load(mos, key)?)
            {
                return Err(Error::ReadOnlyDataset { name: name.to_string() });
            }
            if key.is_some() && !self.zio().keys().contains(id) {
                return Err(Error::Refused { name: name.to_string(), why: Refusal::KeyUnavailable });
            }
            let objset = Objset::open_writable(self.zio().clone(), id, &phys.bp)?;
            if !to_replay {
                check_replayed(&objset, name)?;
            }
            let head = self.new_head(mos, objset, phys.dir_obj)?;
            if let Some(objset) = self.dsl.open_datasets.insert_of(era, head) {
                // a reader that takes a hold from here on finds it open
                self.check_not_owned(id, name)?;
                return Ok(objset);
            }
            // a task may be changing the root block
            drop(self.dsl.open_datasets.working());
        }
        Err(Error::Refused { name: name.to_string(), why: Refusal::Busy })
    }

    /// Returns what is open on a head, which everybody shares who opens it: the one log of a head has one source of data, and what is cached of a file must
    /// be cached once. `make` opens it if nobody has it (any more).
    ///
    /// # Errors
    /// Those of `make`.
    pub fn open_shared<T: Any + Send + Sync, E>(
        &self,
        objset: &Arc<Objset>,
        make: impl FnOnce() -> Result<Arc<T>, E>,
    ) -> Result<Arc<T>, E> {
        let Some(head) = self.dsl.open_datasets.get(objset.id()) else { return make() };
        let mut shared = head.shared.lock();
        if let Some(open) = shared.as_ref().and_then(Weak::upgrade).and_then(|open| open.downcast().ok()) {
            return Ok(open);
        }
        let made = make()?;
        let weak: Weak<T> = Arc::downgrade(&made);
        *shared = Some(weak);
        Ok(made)
    }

    /// Keeps a dataset in use, whose blocks a file of another one takes in the txg of `tx`: it is not destroyed or rolled back before that txg's sync has
    /// the references to them.
    pub fn keep_source(&self, tx: &Tx, objset: &Arc<Objset>) {
        self.dsl.open_datasets.keep_source(tx.txg(), objset);
    }

    /// Checks that a head can be opened for a change: no long hold keeps it as it is.
    fn check_not_owned(&self, id: ObjectId, name: &str) -> Result<(), Error> {
        let held = self.dsl.open_datasets.long_holds().is_held(id) || self.is_held_elsewhere(id);
        if held { Err(Error::Refused { name: name.to_string(), why: Refusal::Busy }) } else { Ok(()) }
    }

    /// Registers an object set as open for writing, under the properties of its directory `dir`.
    pub(in crate::dsl) fn add_open_dataset(
        &self,
        mos: &Mos,
        objset: Arc<Objset>,
        dir: ObjectId,
    ) -> Result<Arc<Objset>, Error> {
        Ok(self.dsl.open_datasets.insert(self.new_head(mos, objset, dir)?))
    }

    fn new_head(&self, mos: &Mos, objset: Arc<Objset>, dir: ObjectId) -> Result<Arc<OpenDataset>, Error> {
        let policy = self.policy_of(mos, dir)?;
        if let Some(others) = self.held_elsewhere() {
            others.opened(self.guid(), objset.id());
        }
        Ok(OpenDataset::new(objset, policy, mos.prop_number(dir, "refreservation")?))
    }

    /// Applies changed properties of directory `dir` to open heads in it, and below it.
    pub(in crate::dsl) fn refresh_open_datasets(&self, mos: &Mos, dir: ObjectId) -> Result<(), Error> {
        self.note_props_changed();
        for head in self.dsl.open_datasets.all() {
            let own = mos.dataset_phys(head.id)?.dir_obj;
            if own != dir && !mos.is_below(own, dir)? {
                continue;
            }
            let policy = self.policy_of(mos, own)?;
            let mut now = head.policy.write();
            head.objset.set_primary_cache(policy.primary_cache);
            *now = WritePolicy { uncached: now.uncached, ..policy };
            drop(now);
            head.reserved.store(mos.prop_number(own, "refreservation")?, Ordering::Relaxed);
            *head.quota.lock() = None;
        }
        Ok(())
    }

    /// Sets whether blocks written to an open head stay out of the cache from now on.
    pub(in crate::dsl) fn set_uncached(&self, id: ObjectId, uncached: bool) {
        if let Some(head) = self.dsl.open_datasets.get(id) {
            head.policy.write().uncached = uncached;
        }
    }

    /// Writes all datasets that are dirty in this txg, and books their growth.
    pub(in crate::dsl) fn sync_datasets(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        for head in self.dsl.open_datasets.dirty(tx.txg()) {
            self.sync_dataset(mos, tx, &head)?;
            if let Some(at) = head.resume.get(tx.txg()) {
                self.save_resume_point(mos, tx, head.id, at)?;
            }
            // data without a holder can be read again
            head.objset.evict_clean();
        }
        Ok(())
    }

    fn sync_dataset(&self, mos: &Mos, tx: &Tx, head: &OpenDataset) -> Result<(), Error> {
        let phys = mos.dataset_phys(head.id)?;
        let dir = mos.dir_phys(phys.dir_obj)?;
        let creation =
            |id: ObjectId| if id.is_none() { Ok(Txg(0)) } else { mos.dataset_phys(id).map(|p| p.creation_txg) };
        let before_last = match phys.prev_snap_obj {
            ObjectId::NONE => Txg(0),
            id => mos.dataset_phys(id)?.prev_snap_txg,
        };
        let livelist = mos.extra_id(phys.dir_obj, dir_keys::LIVELIST)?;
        let gather = Gather::new(mos, phys.prev_snap_txg, before_last, creation(dir.origin_obj)?)
            .with_livelist(livelist.is_some())
            .with_marks(mos.counting_marks(head.id, phys.prev_snap_txg)?);
        let policy = head.policy.read().clone();
        let accounts = self.accounts(mos)?;
        let bp = head.objset.sync(&SyncCx {
            txg: tx.txg(),
            pass: self.pass.load(Ordering::Relaxed) as u32,
            owner: &gather,
            policy: &policy,
            used: accounts.as_ref().map(|used| used as &dyn UsedBy),
            late: false,
        })?;
        let tally = gather.into_tally();
        mos.edit_dataset(tx, head.id, |phys| phys.bp = bp)?;
        self.book(mos, tx, head, &phys, tally)
    }

    fn book(&self, mos: &Mos, tx: &Tx, head: &OpenDataset, before: &DslDatasetPhys, tally: Tally) -> Result<(), Error> {
        let net = tally.born.minus(tally.killed);
        let unique = tally.born.used - tally.freed.used;
        let noticed = parent_delta(head.reserved.load(Ordering::Relaxed), before.unique_bytes, unique);
        mos.edit_dataset(tx, head.id, |phys| {
            mos.count(head.id, "referenced", &mut phys.referenced_bytes, net.used);
            mos.count(head.id, "compressed", &mut phys.compressed_bytes, net.comp);
            mos.count(head.id, "uncompressed", &mut phys.uncompressed_bytes, net.uncomp);
            mos.count(head.id, UNIQUE, &mut phys.unique_bytes, unique);
        })?;
        let grown = tally.born.minus(tally.freed);
        let delta = Delta { used: noticed, ..grown };
        mos.did_use_as(tx, before.dir_obj, delta, grown.used, Used::Refrsrv, Used::Head)?;
        if !tally.dead.is_empty() {
            let mut deadlist = Deadlist::open(mos, before.deadlist_obj)?;
            self.with_empty_bpobj(mos, tx, |feature| deadlist.insert_many(tx, &tally.dead, feature))?;
            mos.transfer(tx, before.dir_obj, tally.to_snap, Used::Head, Used::Snap)?;
            self.last_snapshot_alone(mos, tx, head.id, before.prev_snap_obj, tally.only_last)?;
        }
        if let Some(id) = mos.extra_id(before.dir_obj, dir_keys::LIVELIST)?.filter(|_| !tally.live.is_empty()) {
            self.append_livelist(mos, tx, id, tally.live.clone())?;
            self.tend_livelist(mos, tx, head.id)?;
        }
        if tally.stranded > 0 {
            let what = format!(
                "dataset {}: what is below {} blocks of pointers stays allocated: they cannot be read",
                head.id, tally.stranded
            );
            self.log_internal(mos, tx, "free", &what)?;
        }
        mos.count_killed(tx, head.id, &tally.killed_of_marks)?;
        self.frees.add(tally.free.iter().copied());
        self.activate_dataset_features(mos, tx, head, &tally)
    }

    /// Appends to the livelist of a clone (OpenZFS: `dsl_flush_pending_livelist`).
    fn append_livelist(&self, mos: &Mos, tx: &Tx, id: ObjectId, mut live: Vec<(BlkPtr, bool)>) -> Result<(), Error> {
        // allocations of this txg precede its frees
        live.sort_by_key(|(_, freed)| *freed);
        let mut livelist = Deadlist::open(mos, id)?;
        let full = match livelist.lists().last() {
            Some((_, last)) => livelist.list(*last)?.phys().num_blkptrs > tunable::ZFS_LIVELIST_MAX_ENTRIES.get(),
            None => true,
        };
        self.with_empty_bpobj(mos, tx, |count| {
            if full {
                livelist.add_key(tx, Txg(tx.txg().0 - 1), count)?;
            }
            livelist.insert_marked(tx, &live, count)
        })
    }

    /// Books blocks that the head dropped and only its last snapshot has: they are unique to the snapshot now.
    fn last_snapshot_alone(&self, mos: &Mos, tx: &Tx, head: ObjectId, snap: ObjectId, bytes: u64) -> Result<(), Error> {
        if snap.is_none() || bytes == 0 || mos.dataset_phys(snap)?.next_snap_obj != head {
            return Ok(());
        }
        mos.grow_unique(tx, snap, bytes)
    }

    /// Records what features the dataset's new blocks need (OpenZFS: `dsl_dataset_block_born`).
    fn activate_dataset_features(&self, mos: &Mos, tx: &Tx, head: &OpenDataset, tally: &Tally) -> Result<(), Error> {
        let sums = [(11u32, "sha512"), (12, "skein"), (13, "edonr"), (14, "blake3")];
        let sums = sums.into_iter().filter(|(n, _)| tally.checksums & (1 << n) != 0).map(|(_, name)| name);
        let zstd = (tally.compressions & (1 << 16) != 0).then_some("zstd_compress");
        let large = tally.large.then_some("large_blocks");
        let dnodes = tally.large_dnode.then_some("large_dnode");
        for name in sums.chain(zstd).chain(large).chain(dnodes) {
            self.activate_dataset_feature(mos, tx, head.id, name)?;
        }
        Ok(())
    }

    /// Marks, in the txg of `tx`, that dataset `id` uses feature `name` (OpenZFS: `ds_feature_activation`). Does not wait.
    pub fn use_dataset_feature(self: &Arc<Self>, tx: &Tx, id: ObjectId, name: &'static str) {
        self.task_of(tx, move |cx| match cx.mos.dataset_phys(id) {
            // it was destroyed in the same txg
            Err(error) if error.is_not_found() => Ok(()),
            _ => cx.spa.activate_dataset_feature(cx.mos, cx.tx, id, name),
        });
    }

    /// Marks that dataset `id` uses feature `name`, unless it is marked already (OpenZFS: `dsl_dataset_activate_feature`).
    pub(in crate::dsl) fn activate_dataset_feature(
        &self,
        mos: &Mos,
        tx: &Tx,
        id: ObjectId,
        name: &str,
    ) -> Result<(), Error> {
        let def = feature::by_name(name).ok_or_else(|| Error::Features(vec![name.to_string()]))?;
        let zap = self.zapify(mos, tx, id)?;
        if zap.lookup(def.guid)?.is_some() {
            return Ok(());
        }
        zap.add_u64(tx, def.guid, 0)?;
        self.feature_increment(mos, tx, name)
    }

    /// Returns the ZAP that extends a directory or dataset; makes it if there is none (OpenZFS: `dmu_object_zapify`).
    pub(in crate::dsl) fn zapify(&self, mos: &Mos, tx: &Tx, id: ObjectId) -> Result<Zap, Error> {
        let object = mos.object(id)?;
        if !object.phys().object_type.is_zap() {
            object.set_type(tx, ObjectType::OTN_ZAP_METADATA)?;
            Zap::create_in(tx, &object.reload()?, 0)?;
            self.feature_increment(mos, tx, "extensible_dataset")?;
        }
        mos.zap(id)
    }
}
