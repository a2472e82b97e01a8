//! Intent logs: claimed at import, given up when they are replayed (OpenZFS: `spa_ld_verify_logs`, `spa_ld_claim_log_blocks`, `zil_claim`,
//! `zil_destroy`).
//!
//! All logs are walked, datasets side by side, before anything of the pool is changed. What of them lies in space that the maps call free
//! is taken before the thread that syncs runs, and the first txg writes that down, with the headers that say how far each log was taken. A
//! dataset whose log holds records is then opened for changes only by who replays it ([`Spa::objset_to_replay`]).

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Txg, tunable};
use dmu::{Objset, Tx};
use ondisk::{BlkPtr, ZilHeader};
use vdev::TopVdev;
use zil::Log;
use zil::claim::{Survey, needs_replay, survey};
use zil::replay::Meter;

use crate::mos::Mos;
use crate::spa::Spa;
use crate::{Dataset, Error, ListOptions, Pool};

/// A dataset with a log.
struct Logged {
    id: u64,
    name: String,
    dir: u64,
    objset: Arc<Objset>,
}

impl Logged {
    fn is_unclaimed(&self) -> bool {
        self.objset.phys().zil_header.claim_txg == Txg(0)
    }

    fn begins_on(&self, vdevs: &BTreeSet<u64>) -> bool {
        vdevs.contains(&self.objset.phys().zil_header.log.dva(0).vdev())
    }
}

impl Spa {
    /// Whether any dataset had a log when the pool was opened: it was not closed. They are replayed when their datasets are opened.
    pub fn had_logs(&self) -> bool {
        self.had_logs.load(Ordering::Relaxed)
    }

    /// Claims all logs of the pool that `pool` shows, in the first txg; nobody may sync yet. Gives the datasets whose headers change.
    /// `missing_ok`: what a device that is gone may have held is given up.
    ///
    /// # Errors
    /// When a part of a log cannot be read for want of a device; then nothing was done.
    pub(crate) fn claim_logs(&self, pool: &Arc<Pool>, missing_ok: bool) -> Result<Vec<u64>, Error> {
        let (logs, claimed): (Vec<Logged>, Vec<Logged>) = with_logs(pool)?.into_iter().partition(Logged::is_unclaimed);
        self.had_logs.store(!(logs.is_empty() && claimed.is_empty()), Ordering::Relaxed);
        let gone = if missing_ok { gone_logs(pool) } else { BTreeSet::new() };
        if logs.is_empty() && gone.is_empty() {
            return Ok(Vec::new());
        }
        let (mos, synced) = (self.live_mos()?, pool.uberblock().txg);
        let tx = self.txgs.assign()?;
        if pool.uberblock().checkpoint_txg.0 != 0 {
            // what they lead to may have been overwritten since the checkpoint
            for log in &logs {
                self.give_up(&mos, &tx, log, old_blocks(&log.objset, synced))?;
            }
            return Ok(logs.iter().map(|log| log.id).collect());
        }
        let objsets: Vec<_> = logs.iter().map(|log| log.objset.clone()).collect();
        let found = logs.into_iter().zip(survey(&objsets, synced, tunable::ZFS_ARC_MAX.get() / 4));
        let found: Vec<(Logged, Survey)> = found.filter_map(|(log, found)| Some((log, found?))).collect();
        if let Some((log, lost)) =
            found.iter().find_map(|(log, found)| Some((log, found.lost()?))).filter(|_| !missing_ok)
        {
            let why = format!(
                "a device with the intent log of '{}' is missing, and what it holds would be lost: {lost}",
                log.name
            );
            return Err(Error::NotWritable(why));
        }
        let (lost, claimed): (Vec<Logged>, Vec<Logged>) = claimed.into_iter().partition(|log| log.begins_on(&gone));
        let free = unused(gone, &found, &claimed);
        free.iter().try_for_each(|vdev| self.space.free_vdev(*vdev))?;
        let head = |bp: &BlkPtr| if free.contains(&bp.dva(0).vdev()) { Vec::new() } else { vec![*bp] };
        let mut changed = Vec::new();
        for log in lost {
            self.give_up(&mos, &tx, &log, head(&log.objset.phys().zil_header.log))?;
            changed.push(log.id);
        }
        for (log, found) in found {
            if found.is_lost_whole() {
                self.give_up(&mos, &tx, &log, head(found.head()))?;
            } else {
                let mut take = |bp: &BlkPtr| self.zio.claim(tx.txg(), bp).is_ok();
                let (header, kept) = found.claim(&mut take, &mut |bp| self.clones.add(tx.txg(), bp));
                self.set_log(&mos, &tx, &log, header)?;
                self.logs.lock().extend(kept.map(|kept| (log.id, kept)));
            }
            changed.push(log.id);
        }
        Ok(changed)
    }

    /// Heads that were opened without their key, for their headers alone, are closed.
    pub(crate) fn close_claimed(&self, ids: &[u64]) {
        let ids: Vec<u64> = ids.iter().copied().filter(|id| !self.zio.keys().contains(*id)).collect();
        // who has one open already has its key
        let _busy = self.heads.close(&ids, || ());
    }

    /// Gives up all logs that have nothing to replay: each is a block that waits for content, left behind by a crash (OpenZFS: `zil_reset`).
    pub(crate) fn end_empty_logs(&self) -> Result<(), Error> {
        let (pool, mos) = (self.view()?, self.live_mos()?);
        let logs = unclaimed(&pool)?;
        let objsets: Vec<_> = logs.iter().map(|log| log.objset.clone()).collect();
        let tx = self.txgs.assign()?;
        let mut ended = Vec::new();
        for (log, found) in logs.iter().zip(survey(&objsets, pool.uberblock().txg, 0)) {
            if found.is_some() {
                continue;
            }
            self.give_up(&mos, &tx, log, own_blocks(&mos, &log.objset)?)?;
            ended.push(log.id);
        }
        drop(tx);
        self.sync()?;
        self.close_claimed(&ended);
        Ok(())
    }

    fn give_up(&self, mos: &Mos, tx: &Tx, log: &Logged, blocks: Vec<BlkPtr>) -> Result<(), Error> {
        self.frees.add(blocks);
        self.set_log(mos, tx, log, ZilHeader::empty())
    }

    fn set_log(&self, mos: &Mos, tx: &Tx, log: &Logged, header: ZilHeader) -> Result<(), Error> {
        let objset = Objset::open_writable(self.zio.clone(), log.id, &mos.dataset_phys(log.id)?.bp)?;
        self.add_head(mos, objset, log.dir)?.objset.set_zil_header(tx, header)?;
        self.txgs.note_work();
        Ok(())
    }

    /// As [`Spa::objset`], of a dataset whose log is not replayed yet: for who replays it before anything else.
    ///
    /// # Errors
    /// As [`Spa::objset`].
    pub fn objset_to_replay(&self, dataset: &Dataset) -> Result<Arc<Objset>, Error> {
        if dataset.is_snapshot() {
            return Err(Error::ReadOnlyDataset { name: dataset.name().to_string() });
        }
        match self.heads.get(dataset.id()) {
            Some(head) => Ok(head.objset.clone()),
            None => self.open_head_as(&self.live_mos()?, dataset.id(), dataset.name(), true),
        }
    }

    /// Runs `work`, which replays the log of an open dataset, while nobody else does the same.
    pub fn replaying<R>(self: &Arc<Self>, objset: &Arc<Objset>, work: impl FnOnce() -> R) -> R {
        let head = self.heads.get(objset.id());
        let _alone = head.as_ref().map(|head| head.replay.lock());
        // what is replayed is not logged again
        let log = self.zil(objset);
        log.set_replaying(true);
        let result = work();
        log.set_replaying(false);
        result
    }

    /// How far the replays of this pool's logs are.
    #[must_use]
    pub fn replay_meter(&self) -> &Meter {
        &self.replay_meter
    }

    /// The log of a dataset as it was read when it was claimed, if there was room to keep it.
    pub fn take_log(&self, objset: &Objset) -> Option<Log> {
        self.logs.lock().remove(&objset.id())
    }

    /// Writes into the pool's history that a replay ended before its time.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn log_replay_failure(self: &Arc<Self>, what: String) -> Result<(), Error> {
        self.sync_task(move |cx| cx.spa.log_internal(cx.mos, cx.tx, "replay failed", &what))
    }

    /// Gives up the log of an open dataset, all of which is replayed: its header is empty and `blocks` are free in one txg, behind all that
    /// was changed before. Waits for it.
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

/// The blocks of a log that are its dataset's own: who came from a snapshot may have the header that it was taken with.
pub(crate) fn own_blocks(mos: &Mos, objset: &Arc<Objset>) -> Result<Vec<BlkPtr>, Error> {
    let own = objset.phys().zil_header.log.birth() > mos.dataset_phys(objset.id())?.creation_txg;
    Ok(if own { zil::claim::blocks_of(objset) } else { Vec::new() })
}

/// Refuses what is not replayed.
pub(crate) fn check_replayed(objset: &Objset, name: &str) -> Result<(), Error> {
    if needs_replay(&objset.phys().zil_header) {
        return Err(Error::NotWritable(format!("the intent log of '{name}' is not replayed")));
    }
    Ok(())
}

/// Log devices that are not there.
fn gone_logs(pool: &Pool) -> BTreeSet<u64> {
    let tree = pool.zio().tree();
    let tops = tree.tops().iter().filter(|top| top.config().is_log).map(TopVdev::id);
    tops.filter(|id| pool.load_info().missing_tops.contains(id)).collect()
}

/// Those of `gone` on which no log has a block but those that are lost whole. What lies there besides the first blocks of these is known to
/// nobody: it is freed with them, else it would never be, and such a device could not be removed.
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

/// The datasets whose logs are not claimed.
fn unclaimed(pool: &Arc<Pool>) -> Result<Vec<Logged>, Error> {
    let mut logs = with_logs(pool)?;
    logs.retain(Logged::is_unclaimed);
    Ok(logs)
}

/// The datasets that have logs. One that cannot be read has no log that can be, nor one that a receive has left incomplete.
fn with_logs(pool: &Arc<Pool>) -> Result<Vec<Logged>, Error> {
    let entries = pool.list(pool.name(), &ListOptions::DATASETS)?;
    let heads: Vec<&Dataset> = entries.iter().filter_map(|entry| entry.dataset()).collect();
    let open = |dataset: &Dataset| {
        let phys = dataset.phys();
        if dataset.is_inconsistent() || phys.bp.is_hole() {
            return None;
        }
        let objset = Objset::open(pool.zio().clone(), dataset.id(), &phys.bp).ok()?;
        let has_log = !objset.phys().zil_header.log.is_hole();
        let (id, name, dir) = (dataset.id(), dataset.name().to_string(), phys.dir_obj);
        has_log.then_some(Logged { id, name, dir, objset })
    };
    Ok(base::tasks::map(heads, open).into_iter().flatten().collect())
}

/// The blocks of a chain, up to the first one that is younger than the last synced txg.
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
