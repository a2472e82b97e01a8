//! The record of a scrub or resilver (OpenZFS: `dsl_scan.c`). Who reads the blocks is above (`zuse::scrub`); here the pool is told.
//!
//! # How far a scrub is
//! The record `scan` of the MOS directory has a bookmark: the next block to read, of the dataset under way. Another object has the datasets
//! that come after it, each with the txg up to which others had its blocks. A scrub reads the MOS, then `$ORIGIN@$ORIGIN`, from which
//! all else descends; a dataset that is done hands on to its next snapshot and to its clones. So it is what OpenZFS keeps: a
//! scrub that Zuse began is finished by OpenZFS, and the other way round.
//!
//! # Datasets that change meanwhile
//! Each txg that changed anything [settles](Place::settle) the record: what was destroyed hands on to what came after it, and where a
//! snapshot was taken, it comes first, for its blocks may be freed from the head. So no record leads to what is not there. Where heads change
//! places, as at the end of a receive, so do they in the record.

mod errors;
mod place;
mod resilver;
mod times;

use std::sync::Arc;

use base::Txg;
use dmu::Tx;
use ondisk::scan::{ScanFunc, ScanPhys, ScanState};

use crate::mos::Mos;
use crate::spa::{Spa, TaskCx};
use crate::{Error, ErrorEntry, Pool, errlog};

pub use errors::ScrubRefusal;
pub use place::{Place, Target};
pub(crate) use times::LastNoted;
pub use times::Nearest;

/// The record of the MOS directory.
const SCAN: &str = "scan";
/// The classes of dedup tables that are scrubbed by table end here: the first, which nothing has any more (OpenZFS: `DDT_CLASS_DITTO`). Deduplicated
/// blocks are met in the datasets.
const DDT_CLASS_MAX: u64 = 0;

/// What a scrub came to since it last told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubResult {
    /// Bytes read.
    pub examined: u64,
    /// Bytes repaired.
    pub repaired: u64,
    /// Blocks that are lost.
    pub errors: u64,
}

/// Which blocks a scrub is about: those born after `after`, up to `upto`; without the latter up to its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubRange {
    /// Blocks born in this txg or before are left out.
    pub after: Txg,
    /// Blocks born later are left out.
    pub upto: Option<Txg>,
}

impl Spa {
    /// Records that a scrub begins, which will see about `to_examine` bytes; an unfinished one goes on where it was, over the range that it had.
    ///
    /// # Errors
    /// [`Error::Resilvering`]; [`Error::Scrubbing`] while an error scrub is not finished; when the pool is suspended.
    pub fn scrub_begin(self: &Arc<Self>, to_examine: u64, range: ScrubRange) -> Result<(), Error> {
        self.sync_task(move |cx| {
            if let Some(mut phys) = running(cx.mos)? {
                if phys.func != ScanFunc::Scrub {
                    return Err(Error::Resilvering);
                }
                phys.flags &= !ScanPhys::FLAG_SCRUB_PAUSED;
                return put(cx.mos, cx.tx, &phys);
            }
            begin(cx, ScanFunc::Scrub, to_examine, range)
        })
    }

    /// Records how far the scrub or resilver is and what was lost since it last told. Where datasets changed meanwhile, the place is another than that
    /// which was given: who goes on begins with [`Pool::scrub_place`].
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn scrub_progress(
        self: &Arc<Self>,
        place: Place,
        since: ScrubResult,
        lost: Vec<ErrorEntry>,
    ) -> Result<(), Error> {
        self.sync_task(move |cx| {
            // it may have been stopped
            let Some(now) = running(cx.mos)?.filter(|now| now.func == place.phys.func) else { return Ok(()) };
            // of what went meanwhile the record knows what became of it
            let mut place = if place.is_whole(cx.mos) { place } else { Place::load(cx.mos, now.clone())? };
            place.phys = ScanPhys {
                queue_obj: now.queue_obj,
                flags: now.flags,
                examined: now.examined + since.examined,
                processed: now.processed + since.repaired,
                errors: now.errors + since.errors,
                ..place.phys
            };
            place.settle(cx.mos, None)?;
            place.put(cx.mos, cx.tx)?;
            note_lost(cx, lost)
        })
    }

    /// Records that the scrub waits to be gone on with. Whether one was under way.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn scrub_pause(self: &Arc<Self>) -> Result<bool, Error> {
        self.sync_task(move |cx| {
            let Some(mut phys) = running(cx.mos)?.filter(|s| s.func == ScanFunc::Scrub) else {
                return errors::pause(cx);
            };
            phys.flags |= ScanPhys::FLAG_SCRUB_PAUSED;
            put(cx.mos, cx.tx, &phys)?;
            Ok(true)
        })
    }

    /// Records the end of the scrub or resilver `func`: what a scrub found lost is what the pool has lost. Devices that missed writes have them now, if
    /// nothing was lost, and if `all` was read: what only the checkpoint has included.
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
            // nothing can fail any more but the devices
            caught_up.map_or(Ok(()), |txgs| resilver::caught_up(cx, &txgs))
        })
    }

    /// Stops a scrub for good. Whether one was under way.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn scrub_cancel(self: &Arc<Self>) -> Result<bool, Error> {
        self.sync_task(|cx| {
            let Some(phys) = running(cx.mos)?.filter(|s| s.func == ScanFunc::Scrub) else { return errors::cancel(cx) };
            end(cx, phys, ScanState::Canceled)?;
            Ok(true)
        })
    }

    /// Two heads have changed places (OpenZFS: `dsl_scan_ds_clone_swapped`).
    pub(crate) fn scan_swapped(&self, mos: &Mos, tx: &Tx, one: u64, other: u64) -> Result<(), Error> {
        let Some(phys) = running(mos)?.filter(follows_datasets) else { return Ok(()) };
        let mut place = Place::load(mos, phys)?;
        place.swap(one, other);
        place.put(mos, tx)
    }

    /// The record of a scrub under way follows what happened to datasets in this txg.
    pub(crate) fn sync_scan(&self, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        let Some(phys) = running(mos)?.filter(follows_datasets) else { return Ok(()) };
        // what a device does not get now because it is away, it does not get: that it was away must be seen in its DTL in the end
        if mos.objset.is_dirty(tx.txg()) {
            self.tree().note_absent(tx.txg());
        }
        let mut place = Place::load(mos, phys)?;
        if place.settle(mos, self.view().ok().as_deref())? {
            place.put(mos, tx)?;
        }
        Ok(())
    }
}

impl Pool {
    /// How far the scrub or resilver `func` under way is; `None` if there is none, or if it is paused.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn scrub_place(&self, func: ScanFunc) -> Result<Option<Place>, Error> {
        let scrub = running(&self.mos)?.filter(|s| s.func == func);
        let going = scrub.filter(|s| s.flags & ScanPhys::FLAG_SCRUB_PAUSED == 0);
        going.map(|phys| Place::load(&self.mos, phys)).transpose()
    }
}

/// The scan under way.
fn running(mos: &Mos) -> Result<Option<ScanPhys>, Error> {
    let Some(value) = mos.root_zap()?.lookup(SCAN)? else { return Ok(None) };
    let phys = ScanPhys::from_words(&value.u64s()).map_err(|source| Error::Format { object: 1, source })?;
    Ok(Some(phys).filter(|phys| phys.state == ScanState::Scanning))
}

/// Whether a scan goes through the datasets.
fn follows_datasets(scan: &ScanPhys) -> bool {
    matches!(scan.func, ScanFunc::Scrub | ScanFunc::Resilver)
}

/// A new scan begins. Labels of all devices are written: those that were away have old ones (OpenZFS: `dsl_scan_setup_sync`).
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
        // OpenZFS asserts that the tables are done before a dataset is under way
        ddt_bookmark: [DDT_CLASS_MAX + 1, 0, 0, 0],
        ..ScanPhys::default()
    };
    cx.spa.edit_config(|_| ());
    Place::new(phys).put(cx.mos, cx.tx)
}

fn put(mos: &Mos, tx: &Tx, phys: &ScanPhys) -> Result<(), Error> {
    Ok(mos.root_zap()?.update(tx, SCAN, 8, &phys.to_words())?)
}

fn end(cx: &TaskCx<'_>, mut phys: ScanPhys, state: ScanState) -> Result<(), Error> {
    if phys.queue_obj != 0 {
        cx.mos.objset.free_object(cx.tx, std::mem::take(&mut phys.queue_obj))?;
    }
    phys.state = state;
    phys.end_time = cx.spa.env().now_s();
    phys.flags = 0;
    put(cx.mos, cx.tx, &phys)?;
    let by_head = cx.spa.feature_enabled(cx.mos, "head_errlog")?;
    // what was known to be lost stays so unless it was read: a resilver reads what was missed
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
    if kept.is_empty() { Ok(()) } else { errlog::write(cx.mos, cx.tx, errlog::LAST, &kept, by_head) }
}

/// Enters lost blocks in the log of the scrub. What a snapshot lost is listed under its head (OpenZFS: `get_head_ds`).
fn note_lost(cx: &TaskCx<'_>, mut lost: Vec<ErrorEntry>) -> Result<(), Error> {
    let by_head = cx.spa.feature_enabled(cx.mos, "head_errlog")?;
    for entry in lost.iter_mut().filter(|entry| by_head && entry.objset != 0) {
        let dir = cx.mos.dataset_phys(entry.objset).and_then(|phys| cx.mos.dir_phys(phys.dir_obj));
        // who cannot tell the head names the dataset itself
        entry.objset = dir.map_or(entry.objset, |dir| dir.head_dataset_obj);
    }
    errlog::write(cx.mos, cx.tx, errlog::SCRUB, &lost, by_head)
}
