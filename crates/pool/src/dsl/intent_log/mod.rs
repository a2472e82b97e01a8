//! Intent logs: claimed at import, destroyed after replay (OpenZFS: `spa_ld_verify_logs`, `spa_ld_claim_log_blocks`, `zil_claim`,
//! `zil_destroy`).
//!
//! All logs are walked, datasets in parallel, before anything of the pool is changed. Log blocks in space that the maps call free are
//! claimed before the sync thread runs, and the first txg writes that down, with the headers that record how far each log was claimed. A
//! dataset whose log holds records can then be opened for changes only for replay ([`Spa::objset_to_replay`]).

mod device;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use base::{ObjectId, Txg, tunable};
use dmu::{Objset, Tx, TxObjects};
use ondisk::{BlkPtr, ZilHeader};
use parking_lot::Mutex;
use vdev::TopVdev;
use zil::Log;
use zil::claim::{Survey, needs_replay, survey};
use zil::replay::Meter;
use zil::write::ZilStats;

use crate::spa::datasets::LostLogs;
use crate::spa::mos::Mos;
use crate::spa::{Spa, TaskCx};
use crate::{Dataset, Error, ListOptions, Pool};

/// The intent logs of a pool's datasets.
#[derive(Default)]
pub(in crate::dsl) struct Logs {
    /// Reasons for which no log may begin.
    suspensions: AtomicUsize,
    /// Logs that were claimed and are not replayed yet, as far as they are kept in memory.
    claimed: Mutex<BTreeMap<ObjectId, Log>>,
    /// True if any dataset had a log when the pool was opened.
    found: AtomicBool,
    /// True if a log device is gone, and the import was told to do without what is on it.
    given_up: AtomicBool,
    /// Datasets that could not be read when the logs were claimed, and the last txg before that: of the chains that they may have only blocks up to it are allocated.
    unread: Mutex<BTreeMap<ObjectId, Txg>>,
    /// Statistics of all logs.
    pub(in crate::dsl) stats: Arc<ZilStats>,
    replay_meter: Meter,
}

/// A dataset with a log.
struct Logged {
    id: ObjectId,
    name: String,
    dir: ObjectId,
    objset: Arc<Objset>,
}

/// A dataset that may be readable when devices answer that do not now, its name, and the error.
type Unanswered = (ObjectId, String, dmu::Error);

impl Logged {
    fn is_unclaimed(&self) -> bool {
        self.objset.phys().zil_header.claim_txg == Txg(0)
    }

    fn begins_on(&self, vdevs: &BTreeSet<u64>) -> bool {
        vdevs.contains(&self.objset.phys().zil_header.log.dva(0).vdev())
    }
}

impl Spa {
    /// Returns whether any dataset had a log when the pool was opened: it was not closed. Logs are replayed when their datasets are opened.
    pub fn had_logs(&self) -> bool {
        self.dsl.logs.found.load(Ordering::Relaxed)
    }

    /// Returns whether records of logs that cannot be read are given up: a log device is gone, and the pool was imported without it
    /// (`zpool import -m`).
    #[must_use]
    pub fn gives_up_logs(&self) -> bool {
        self.dsl.logs.given_up.load(Ordering::Relaxed)
    }

    /// Claims all logs of the pool of `pool`, in the first txg; the sync thread must not run yet. Returns the datasets whose headers
    /// change.
    ///
    /// # Errors
    /// When a part of a log cannot be read, because its device is missing or does not answer, and `lost_ok` does not allow that; nothing was done
    /// then.
    pub(in crate::dsl) fn claim_logs(&self, pool: &Arc<Pool>, lost_ok: LostLogs) -> Result<Vec<ObjectId>, Error> {
        let (logs, unknown) = with_logs(pool)?;
        if let Some((_, name, why)) = unknown.first().filter(|_| !lost_ok.unknown) {
            let why = format!(
                "whether '{name}' has an intent log cannot be read, and its log would be lost ('zpool import -m' gives it up; a pool that is imported \
                 already needs 'zpool export -F' first): {why}"
            );
            return Err(Error::NotWritable(why));
        }
        let synced = pool.uberblock().txg;
        self.dsl.logs.unread.lock().extend(unknown.iter().map(|(id, ..)| (*id, synced)));
        let (logs, claimed): (Vec<Logged>, Vec<Logged>) = logs.into_iter().partition(Logged::is_unclaimed);
        self.dsl.logs.found.store(!(logs.is_empty() && claimed.is_empty()), Ordering::Relaxed);
        let gone = if lost_ok.gone { gone_logs(pool) } else { BTreeSet::new() };
        self.dsl.logs.given_up.store(!gone.is_empty(), Ordering::Relaxed);
        if logs.is_empty() && gone.is_empty() {
            return Ok(Vec::new());
        }
        let mos = self.live_mos()?;
        let tx = self.txgs().assign(TxObjects::all())?;
        if pool.uberblock().checkpoint_txg.0 != 0 {
            // blocks that they lead to may have been overwritten since the checkpoint
            for log in &logs {
                self.give_up(&mos, &tx, log, old_blocks(&log.objset, synced))?;
            }
            return Ok(logs.iter().map(|log| log.id).collect());
        }
        let objsets: Vec<_> = logs.iter().map(|log| log.objset.clone()).collect();
        let found = logs.into_iter().zip(survey(&objsets, synced, tunable::ZFS_ARC_MAX.get() / 4));
        let found: Vec<(Logged, Survey)> = found.filter_map(|(log, found)| Some((log, found?))).collect();
        if let Some((log, lost)) =
            found.iter().find_map(|(log, found)| Some((log, found.lost()?))).filter(|_| !lost_ok.unread)
        {
            let why = format!(
                "a device with the intent log of '{}' is missing, and what it holds would be lost: {lost}",
                log.name
            );
            return Err(Error::NotWritable(why));
        }
        let (lost, claimed): (Vec<Logged>, Vec<Logged>) = claimed.into_iter().partition(|log| log.begins_on(&gone));
        let free = unused(gone, &found, &claimed);
        free.iter().try_for_each(|vdev| self.space().free_vdev(*vdev))?;
        let head = |bp: &BlkPtr| if free.contains(&bp.dva(0).vdev()) { Vec::new() } else { vec![*bp] };
        let mut changed = Vec::new();
        for log in lost {
            self.give_up(&mos, &tx, &log, head(&log.objset.phys().zil_header.log))?;
            changed.push(log.id);
        }
        for (log, found) in found {
            if found.is_lost_whole() {
                tracing::warn!(target: "zuse::zil", pool = self.name(), dataset = log.name, "the intent log is lost");
                // a first block that is younger than the last txg was never allocated
                let blocks = if found.head().birth() > synced { Vec::new() } else { head(found.head()) };
                self.give_up(&mos, &tx, &log, blocks)?;
            } else {
                let mut take = |bp: &BlkPtr| self.zio().claim(tx.txg(), bp).is_ok();
                tracing::debug!(target: "zuse::zil", pool = self.name(), dataset = log.name, records = found.records(), "claimed");
                let (header, kept) = found.claim(&mut take, &mut |bp| self.clones.add(tx.txg(), bp));
                self.set_log(&mos, &tx, &log, header)?;
                self.dsl.logs.claimed.lock().extend(kept.map(|kept| (log.id, kept)));
            }
            changed.push(log.id);
        }
        Ok(changed)
    }

    /// Closes heads that were opened without their key, only for their headers.
    pub(in crate::dsl) fn close_claimed(&self, ids: &[ObjectId]) {
        let ids: Vec<ObjectId> = ids.iter().copied().filter(|id| !self.zio().keys().contains(*id)).collect();
        // a dataset that is in use has its key
        let _busy = self.dsl.open_datasets.close_unused(&ids);
    }

    /// Destroys all logs that have nothing to replay: each is a block that waits for content, left behind by a crash (OpenZFS:
    /// `zil_reset`).
    pub(in crate::dsl) fn end_empty_logs(self: &Arc<Self>) -> Result<(), Error> {
        let (pool, mos) = (self.view()?, self.live_mos()?);
        let logs = unclaimed(&pool)?;
        let objsets: Vec<_> = logs.iter().map(|log| log.objset.clone()).collect();
        let found = survey(&objsets, pool.uberblock().txg, 0);
        let mut empty = Vec::new();
        for (log, _) in logs.into_iter().zip(found).filter(|(_, found)| found.is_none()) {
            let blocks = self.own_log_blocks(&mos, &log.objset)?;
            empty.push((log, blocks));
        }
        if empty.is_empty() {
            return Ok(());
        }
        let ids: Vec<ObjectId> = empty.iter().map(|(log, _)| log.id).collect();
        self.sync_task(move |cx| cx.end_logs(empty))?;
        self.close_claimed(&ids);
        Ok(())
    }

    /// Returns the blocks of a log that belong to its dataset: a clone may have inherited the header that its origin was taken with.
    fn own_log_blocks(&self, mos: &Mos, objset: &Arc<Objset>) -> Result<Vec<BlkPtr>, Error> {
        let own = objset.phys().zil_header.log.birth() > mos.dataset_phys(objset.id())?.creation_txg;
        Ok(if own { self.log_blocks(objset) } else { Vec::new() })
    }

    /// Returns the allocated blocks of a log. Those of one that was given up unread end with what was on disk when the pool was opened: what comes behind was never claimed.
    pub(in crate::dsl) fn log_blocks(&self, objset: &Arc<Objset>) -> Vec<BlkPtr> {
        let unread = self.dsl.logs.unread.lock().get(&objset.id()).copied();
        match unread.filter(|_| objset.phys().zil_header.claim_txg == Txg(0)) {
            Some(synced) => old_blocks(objset, synced),
            None => zil::claim::blocks_of(objset),
        }
    }

    fn give_up(&self, mos: &Mos, tx: &Tx, log: &Logged, blocks: Vec<BlkPtr>) -> Result<(), Error> {
        self.frees.add(blocks);
        self.set_log(mos, tx, log, ZilHeader::empty())
    }

    fn set_log(&self, mos: &Mos, tx: &Tx, log: &Logged, header: ZilHeader) -> Result<(), Error> {
        let objset = Objset::open_writable(self.zio().clone(), log.id, &mos.dataset_phys(log.id)?.bp)?;
        self.add_open_dataset(mos, objset, log.dir)?.set_zil_header(tx, header)?;
        self.txgs().note_work();
        Ok(())
    }

    /// As [`Spa::objset`], of a dataset whose log is not replayed yet, for the caller that replays it before any other change.
    ///
    /// # Errors
    /// As [`Spa::objset`].
    pub fn objset_to_replay(&self, dataset: &Dataset) -> Result<Arc<Objset>, Error> {
        if dataset.is_snapshot() {
            return Err(Error::ReadOnlyDataset { name: dataset.name().to_string() });
        }
        match self.dsl.open_datasets.objset(dataset.id()) {
            Some(objset) => Ok(objset),
            None => self.open_head_as(&self.live_mos()?, dataset.id(), dataset.name(), true),
        }
    }

    /// Runs `work`, which replays the log of an open dataset; one replay of a dataset runs at a time.
    pub fn replaying<R>(self: &Arc<Self>, objset: &Arc<Objset>, work: impl FnOnce() -> R) -> R {
        let head = self.dsl.open_datasets.get(objset.id());
        let _alone = head.as_ref().map(|head| head.replay.lock());
        // replayed changes are not logged again
        let log = self.zil(objset);
        log.set_replaying(needs_replay(&objset.phys().zil_header));
        let result = work();
        log.set_replaying(false);
        result
    }

    /// The progress of the replays of this pool's logs.
    #[must_use]
    pub fn replay_meter(&self) -> &Meter {
        &self.dsl.logs.replay_meter
    }

    /// Returns the log of a dataset as it was read when it was claimed, if there was memory to keep it.
    pub fn take_log(&self, objset: &Objset) -> Option<Log> {
        self.dsl.logs.claimed.lock().remove(&objset.id())
    }

    /// Records in the pool's history that a replay stopped early.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn log_replay_failure(self: &Arc<Self>, what: String) -> Result<(), Error> {
        self.sync_task(move |cx| cx.spa.log_internal(cx.mos, cx.tx, "replay failed", &what))
    }

    /// Destroys the log of an open dataset, all of which is replayed: its header is emptied and `blocks` are freed in one txg, with or
    /// after all earlier changes. Waits for it.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn destroy_log(self: &Arc<Self>, objset: &Arc<Objset>, blocks: Vec<BlkPtr>) -> Result<(), Error> {
        let objset = objset.clone();
        self.sync_task(move |cx| {
            objset.set_zil_header(cx.tx, ZilHeader::empty())?;
            cx.spa.frees.add(blocks);
            Ok(())
        })
    }
}

impl TaskCx<'_> {
    /// Frees logs with their blocks, unless they have changed since they were looked at.
    fn end_logs(&self, logs: Vec<(Logged, Vec<BlkPtr>)>) -> Result<(), Error> {
        let spa = self.spa;
        let mut ends = Vec::new();
        for (log, blocks) in logs {
            let phys = match self.mos.dataset_phys(log.id) {
                Err(gone) if gone.is_not_found() => continue,
                phys => phys?,
            };
            let objset = Objset::open_writable(spa.zio().clone(), log.id, &phys.bp)?;
            let objset = spa.add_open_dataset(self.mos, objset, log.dir)?;
            let has_chain =
                spa.dsl.open_datasets.get(log.id).is_some_and(|head| head.zil.get().is_some_and(|zil| zil.has_chain()));
            if !has_chain && objset.phys().zil_header.log == log.objset.phys().zil_header.log {
                ends.push((objset, blocks));
            }
        }
        for (objset, blocks) in ends {
            objset.set_zil_header(self.tx, ZilHeader::empty())?;
            spa.frees.add(blocks);
        }
        Ok(())
    }
}

/// Fails if the log is not replayed.
pub(in crate::dsl) fn check_replayed(objset: &Objset, name: &str) -> Result<(), Error> {
    if needs_replay(&objset.phys().zil_header) {
        return Err(Error::NotWritable(format!("the intent log of '{name}' is not replayed")));
    }
    Ok(())
}

/// Returns the log devices that are missing.
fn gone_logs(pool: &Pool) -> BTreeSet<u64> {
    let tree = pool.zio().tree();
    let tops = tree.tops().iter().filter(|top| top.config().is_log).map(TopVdev::id);
    tops.filter(|id| pool.load_info().missing_tops.contains(id)).collect()
}

/// Returns those of `gone` on which no log has a block, apart from logs that are lost as a whole. Besides the first blocks of the latter
/// their blocks on such a device cannot be found; they are freed with them, because otherwise they never would be, and the device could not
/// be removed.
fn unused(mut gone: BTreeSet<u64>, found: &[(Logged, Survey)], claimed: &[Logged]) -> BTreeSet<u64> {
    if gone.is_empty() {
        return gone;
    }
    for (_, found) in found.iter().filter(|(_, found)| !found.is_lost_whole()) {
        gone.retain(|vdev| !found.vdevs().contains(vdev));
    }
    for bp in claimed.iter().flat_map(|log| zil::claim::blocks_of(&log.objset)) {
        gone.remove(&bp.dva(0).vdev());
    }
    gone
}

/// Returns the datasets whose logs are not claimed.
fn unclaimed(pool: &Arc<Pool>) -> Result<Vec<Logged>, Error> {
    let (mut logs, _unknown) = with_logs(pool)?;
    logs.retain(Logged::is_unclaimed);
    Ok(logs)
}

/// Returns the datasets that have logs, and those that may be readable when devices answer that do not now. Datasets that no device can make readable
/// are left out with their logs, as in OpenZFS, and so are incomplete receives, which have none.
fn with_logs(pool: &Arc<Pool>) -> Result<(Vec<Logged>, Vec<Unanswered>), Error> {
    let entries = pool.list(pool.name(), &ListOptions::DATASETS)?;
    let heads: Vec<&Dataset> = entries.iter().filter_map(|entry| entry.dataset()).collect();
    let open = |dataset: &&Dataset| {
        let phys = dataset.phys();
        if dataset.is_inconsistent() || phys.bp.is_hole() {
            return None;
        }
        let name = dataset.name().to_string();
        match Objset::open(pool.zio().clone(), dataset.id(), &phys.bp) {
            Ok(objset) if objset.phys().zil_header.log.is_hole() => None,
            Ok(objset) => Some(Ok(Logged { id: dataset.id(), name, dir: phys.dir_obj, objset })),
            Err(error) if error.lacks_answers() || may_be_elsewhere(pool, &phys.bp, &error) => {
                Some(Err((dataset.id(), name, error)))
            }
            Err(error) => {
                tracing::warn!(target: "zuse::zil", pool = pool.name(), dataset = name, %error, "cannot be read, and counts as without an intent log");
                None
            }
        }
    };
    let (mut logs, mut unknown) = (Vec::new(), Vec::new());
    for found in base::pump::all(heads, open).into_iter().flatten() {
        match found {
            Ok(log) => logs.push(log),
            Err(dataset) => unknown.push(dataset),
        }
    }
    Ok((logs, unknown))
}

/// Returns whether a device that was not asked, as it is absent or out of use, may have a block of which no copy that was read is right.
fn may_be_elsewhere(pool: &Pool, bp: &BlkPtr, error: &dmu::Error) -> bool {
    let tree = pool.zio().tree();
    matches!(error, dmu::Error::Zio(zio::Error::Checksum { .. }))
        && bp.dvas().any(|dva| tree.may_be_elsewhere(dva, bp.birth_physical()))
}

/// Returns the blocks of a chain, up to the first one that is younger than the last synced txg.
fn old_blocks(objset: &Arc<Objset>, synced: Txg) -> Vec<BlkPtr> {
    let mut blocks = Vec::new();
    let _summary = zil::walk(objset, &mut |step| match step {
        zil::Step::Block(bp) if bp.birth() > synced => ControlFlow::Break(()),
        zil::Step::Block(bp) => {
            blocks.push(*bp);
            ControlFlow::Continue(())
        }
        zil::Step::Record { .. } => ControlFlow::Continue(()),
    });
    blocks
}
