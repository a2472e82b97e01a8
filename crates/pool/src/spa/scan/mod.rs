//! Scrubs and resilvers: every block of a pool, or each that devices missed, is read with all copies and parity, and repaired (OpenZFS:
//! `dsl_scan.c`). This module keeps the record of a scan; a background task ([`run`]) reads the blocks.
//!
//! # Progress
//! The record `scan` of the MOS directory has a bookmark: the next block to read, of the dataset in progress. Another object has the
//! datasets that come after it, each with the txg up to which its blocks were read as others'. A scrub reads the MOS, then
//! `$ORIGIN@$ORIGIN`, from which everything else descends; a finished dataset queues its next snapshot and its clones. This is what OpenZFS
//! stores: a scrub that Zuse began is finished by OpenZFS, and the other way round.
//!
//! # Datasets that change meanwhile
//! Each txg that changed anything [settles](ScrubCursor::settle) the record: a destroyed dataset is replaced by its successor, and a new snapshot
//! is read before its head, because its blocks may be freed from the head. So the record never names a missing dataset. Where heads are
//! swapped, as at the end of a receive, they are swapped in the record too, and in the cursor of a slice that runs ([`Swaps`](swaps::Swaps)).

mod cursor;
mod errors;
mod resilver;
mod run;
mod search;
mod slice;
mod stored;
mod swaps;
mod times;
mod walk;

use std::sync::Arc;

use base::{ObjectId, Txg};
use dmu::Tx;
use nvlist::NvList;
use ondisk::scan::{ScanFunc, ScanPhys, ScanState};

use crate::spa::errlog;
use crate::spa::mos::Mos;
use crate::spa::{Spa, TaskCx};
use crate::{Error, ErrorEntry, Pool};

pub use cursor::{ScrubCursor, Target};
pub use errors::ScrubRefusal;
pub use run::{ScanEnd, ScanFigures};
pub(crate) use run::{Scanner, slice};
pub(crate) use times::LastNoted;
pub use times::Nearest;

/// The record of the MOS directory.
const SCAN: &str = "scan";
/// The last class of dedup tables that is scrubbed by table: the first, which no entry has any more (OpenZFS: `DDT_CLASS_DITTO`).
/// Deduplicated blocks are read in the datasets.
const DDT_CLASS_MAX: u64 = 0;

/// The results of a scrub since its last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubResult {
    /// Bytes read.
    pub examined: u64,
    /// Bytes repaired.
    pub repaired: u64,
    /// Number of lost blocks.
    pub errors: u64,
}

/// The blocks that a scrub covers: those born after `after`, up to `upto`; without the latter up to its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubRange {
    /// Blocks born in this txg or before are left out.
    pub after: Txg,
    /// Blocks born later are left out.
    pub upto: Option<Txg>,
}

impl Spa {
    /// Records that a scrub begins, which will read about `to_examine` bytes; an unfinished one resumes where it was, over the range that
    /// it had.
    ///
    /// # Errors
    /// [`Error::Resilvering`]; [`Error::Scrubbing`] while an error scrub is not finished; when the pool is suspended.
    pub fn scrub_begin(self: &Arc<Self>, to_examine: u64, range: ScrubRange) -> Result<(), Error> {
        self.sync_task(move |cx| {
            if let Some(mut phys) = running(cx.mos)? {
                if phys.func != ScanFunc::Scrub {
                    return Err(Error::Resilvering);
                }
                if phys.flags & ScanPhys::FLAG_SCRUB_PAUSED != 0 {
                    phys.flags &= !ScanPhys::FLAG_SCRUB_PAUSED;
                    cx.spa.notify("scrub_resume", &NvList::new());
                }
                return put(cx.mos, cx.tx, &phys);
            }
            begin(cx, ScanFunc::Scrub, to_examine, range)
        })
    }

    /// Records the progress of the scrub or resilver and the losses since its last report. If datasets changed meanwhile, the recorded
    /// cursor differs from the given one: to resume, begin with [`Pool::scrub_cursor`].
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn scrub_progress(
        self: &Arc<Self>,
        cursor: ScrubCursor,
        since: ScrubResult,
        lost: Vec<ErrorEntry>,
    ) -> Result<(), Error> {
        self.sync_task(move |cx| {
            // it may have been stopped
            let Some(now) = running(cx.mos)?.filter(|now| now.func == cursor.phys.func) else { return Ok(()) };
            let cursor = cx.spa.scanner.swaps.lock().follow(cursor);
            // the record already accounts for datasets that were swapped or destroyed meanwhile
            let mut cursor = match cursor.filter(|cursor| cursor.is_whole(cx.mos)) {
                Some(cursor) => cursor,
                None => ScrubCursor::load(cx.mos, now.clone())?,
            };
            cursor.phys = ScanPhys {
                queue_obj: now.queue_obj,
                flags: now.flags,
                examined: now.examined + since.examined,
                processed: now.processed + since.repaired,
                errors: now.errors + since.errors,
                ..cursor.phys
            };
            cursor.settle(cx.mos, None)?;
            cursor.put(cx.mos, cx.tx)?;
            note_lost(cx, lost)
        })
    }

    /// Pauses the scrub. Returns whether one was running.
    ///
    /// # Errors
    /// [`Error::Scrubbing`] if it is paused; when the pool is suspended.
    pub fn scrub_pause(self: &Arc<Self>) -> Result<bool, Error> {
        let _held = self.background.scan.hold();
        let paused = self.sync_task(move |cx| {
            let Some(mut phys) = running(cx.mos)?.filter(|s| s.func == ScanFunc::Scrub) else {
                return errors::pause(cx);
            };
            if phys.flags & ScanPhys::FLAG_SCRUB_PAUSED != 0 {
                return Err(Error::Scrubbing(ScrubRefusal::PausedBefore));
            }
            phys.flags |= ScanPhys::FLAG_SCRUB_PAUSED;
            put(cx.mos, cx.tx, &phys)?;
            cx.spa.notify("scrub_paused", &NvList::new());
            Ok(true)
        })?;
        if paused {
            self.background.scan.cancel();
        }
        Ok(paused)
    }

    /// Records the end of the scrub or resilver `func`: the losses that a scrub found replace the pool's list of errors. Devices that
    /// missed writes have them now, if nothing was lost and `all` was read, including what only the checkpoint has.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn scrub_finish(self: &Arc<Self>, func: ScanFunc, all: bool) -> Result<(), Error> {
        self.sync_task(move |cx| {
            let Some(phys) = running(cx.mos)?.filter(|s| s.func == func) else { return Ok(()) };
            if func == ScanFunc::Scrub {
                cx.mos.root_zap()?.update_u64(cx.tx, "last_scrubbed_txg", phys.max_txg.0)?;
            }
            let caught_up = (all && phys.errors == 0).then_some(resilver::first(&phys)..phys.max_txg.0);
            end(cx, phys, ScanState::Finished)?;
            // nothing but the devices can fail any more
            caught_up.map_or(Ok(()), |txgs| resilver::caught_up(cx, &txgs))
        })
    }

    /// Cancels a scrub. Returns whether one was running.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn scrub_cancel(self: &Arc<Self>) -> Result<bool, Error> {
        let _held = self.background.scan.hold();
        let canceled = self.sync_task(|cx| {
            let Some(phys) = running(cx.mos)?.filter(|s| s.func == ScanFunc::Scrub) else { return errors::cancel(cx) };
            end(cx, phys, ScanState::Canceled)?;
            cx.spa.notify("scrub_abort", &NvList::new());
            Ok(true)
        })?;
        if canceled {
            self.background.scan.cancel();
        }
        Ok(canceled)
    }

    /// Records that two heads were swapped (OpenZFS: `dsl_scan_ds_clone_swapped`).
    pub(crate) fn scan_swapped(&self, mos: &Mos, tx: &Tx, one: ObjectId, other: ObjectId) -> Result<(), Error> {
        let Some(phys) = running(mos)?.filter(follows_datasets) else { return Ok(()) };
        let mut cursor = ScrubCursor::load(mos, phys)?;
        cursor.swap(one, other);
        self.scanner.swaps.lock().add(tx.txg(), one, other);
        cursor.put(mos, tx)
    }

    /// Updates the record of a running scrub for datasets that changed in this txg.
    pub(crate) fn sync_scan(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        let Some(phys) = running(mos)?.filter(follows_datasets) else { return Ok(()) };
        // an absent device misses this txg, and something younger than what the scan repairs: its DTL shows in the end that it was absent
        if mos.objset.is_dirty(tx.txg()) {
            self.tree().note_absent(tx.txg().max(phys.max_txg));
        }
        let mut cursor = ScrubCursor::load(mos, phys)?;
        if cursor.settle(mos, self.view().ok().as_deref())? {
            cursor.put(mos, tx)?;
        }
        Ok(())
    }
}

impl Pool {
    /// Returns the progress of the running scrub or resilver `func`; `None` if there is none, or if it is paused.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn scrub_cursor(&self, func: ScanFunc) -> Result<Option<ScrubCursor>, Error> {
        let scrub = running(&self.mos)?.filter(|s| s.func == func);
        let going = scrub.filter(|s| s.flags & ScanPhys::FLAG_SCRUB_PAUSED == 0);
        let Some(phys) = going else { return Ok(None) };
        let mut cursor = ScrubCursor::load(&self.mos, phys)?;
        cursor.of = Some(self.uberblock.txg);
        Ok(Some(cursor))
    }
}

/// Returns the running scan.
fn running(mos: &Mos) -> Result<Option<ScanPhys>, Error> {
    let Some(value) = mos.root_zap()?.lookup(SCAN)? else { return Ok(None) };
    let phys = ScanPhys::from_words(&value.u64s())
        .map_err(|source| Error::Format { object: ObjectId::POOL_DIRECTORY, source })?;
    Ok(Some(phys).filter(|phys| phys.state == ScanState::Scanning))
}

/// Returns whether a scan goes through the datasets.
fn follows_datasets(scan: &ScanPhys) -> bool {
    matches!(scan.func, ScanFunc::Scrub | ScanFunc::Resilver)
}

/// Begins a scan. Labels of all devices are written, because absent devices have old ones (OpenZFS: `dsl_scan_setup_sync`).
fn begin(cx: &TaskCx<'_>, func: ScanFunc, to_examine: u64, range: ScrubRange) -> Result<(), Error> {
    errors::forget(cx)?;
    let phys = ScanPhys {
        func,
        state: ScanState::Scanning,
        min_txg: range.after,
        cur_min_txg: range.after,
        max_txg: range.upto.unwrap_or(cx.tx.txg()),
        cur_max_txg: range.upto.unwrap_or(cx.tx.txg()),
        start_time: cx.spa.env().now_s(),
        to_examine,
        ddt_class_max: DDT_CLASS_MAX,
        // OpenZFS asserts that the tables are finished before a dataset is in progress
        ddt_bookmark: [DDT_CLASS_MAX + 1, 0, 0, 0],
        ..ScanPhys::default()
    };
    cx.spa.edit_config(|_| ());
    ScrubCursor::new(phys).put(cx.mos, cx.tx)?;
    notify(cx, func, ["resilver_start", "scrub_start"]);
    Ok(())
}

fn put(mos: &Mos, tx: &Tx, phys: &ScanPhys) -> Result<(), Error> {
    Ok(mos.root_zap()?.update(tx, SCAN, 8, &phys.to_words())?)
}

fn end(cx: &TaskCx<'_>, mut phys: ScanPhys, state: ScanState) -> Result<(), Error> {
    if phys.queue_obj.is_some() {
        cx.mos.objset.free_object(cx.tx, std::mem::take(&mut phys.queue_obj))?;
    }
    phys.state = state;
    phys.end_time = cx.spa.env().now_s();
    phys.flags = 0;
    put(cx.mos, cx.tx, &phys)?;
    let by_head = cx.spa.feature_enabled(cx.mos, "head_errlog")?;
    // known losses remain unless they were read: a resilver reads only what was missed
    let mut kept = errlog::read(cx.mos, errlog::LAST, by_head)?;
    let seen = |birth: Option<Txg>| match (phys.func, birth) {
        _ if state != ScanState::Finished => false,
        (ScanFunc::Resilver, Some(birth)) => {
            phys.min_txg < birth && birth <= phys.max_txg && cx.spa.tree().is_missed(birth)
        }
        (ScanFunc::Resilver, None) => false,
        (_, Some(birth)) => phys.min_txg < birth && birth <= phys.max_txg,
        (_, None) => phys.min_txg == Txg(0),
    };
    kept.retain(|entry| !seen(entry.birth));
    errlog::rotate(cx.mos, cx.tx, by_head)?;
    if !kept.is_empty() {
        errlog::write(cx.mos, cx.tx, errlog::LAST, &kept, by_head)?;
    }
    if state == ScanState::Finished {
        notify(cx, phys.func, ["resilver_finish", "scrub_finish"]);
    }
    Ok(())
}

/// Posts an event of a resilver, or of a scrub.
fn notify(cx: &TaskCx<'_>, func: ScanFunc, [resilver, scrub]: [&str; 2]) {
    let mut more = NvList::new();
    if func == ScanFunc::Resilver {
        more.insert("resilver_type", "healing");
    }
    cx.spa.notify(if func == ScanFunc::Resilver { resilver } else { scrub }, &more);
}

/// Returns whether a scan or an error scrub was begun and has not ended.
pub(crate) fn is_under_way(mos: &Mos) -> Result<bool, Error> {
    Ok(running(mos)?.is_some() || errors::under_way(mos)?.is_some())
}

/// Enters lost blocks in the error log of the scrub.
fn note_lost(cx: &TaskCx<'_>, mut lost: Vec<ErrorEntry>) -> Result<(), Error> {
    let by_head = cx.spa.feature_enabled(cx.mos, "head_errlog")?;
    for entry in lost.iter_mut().filter(|_| by_head) {
        entry.objset = errlog::head_of(cx.mos, entry.objset);
    }
    errlog::write(cx.mos, cx.tx, errlog::SCRUB, &lost, by_head)
}
