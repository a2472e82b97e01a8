//! The record of a scrub (OpenZFS: `dsl_scan.c`). Who reads the blocks is above (`zuse::scrub`); here the pool is told.

use std::sync::Arc;

use ondisk::scan::{ScanFunc, ScanPhys, ScanState};

use crate::spa::{Spa, TaskCx};
use crate::{Error, ErrorEntry, errlog};

/// What a scrub came to so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubResult {
    /// Bytes of all blocks.
    pub to_examine: u64,
    /// Bytes read.
    pub examined: u64,
    /// Bytes repaired.
    pub repaired: u64,
    /// Blocks that are lost.
    pub errors: u64,
}

impl Spa {
    /// Records that a scrub of everything begins; an unfinished one goes on.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn scrub_begin(self: &Arc<Self>, to_examine: u64) -> Result<(), Error> {
        self.sync_task(move |cx| {
            let now = cx.spa.env().now_s();
            let under_way = scan(cx)?.filter(|s| s.state == ScanState::Scanning);
            if under_way.as_ref().is_some_and(|s| s.func != ScanFunc::Scrub) {
                return Err(Error::Resilvering);
            }
            // OpenZFS's list of datasets that its scrub had still to visit
            if let Some(queue) = under_way.as_ref().map(|s| s.queue_obj).filter(|id| *id != 0) {
                cx.mos.objset.free_object(cx.tx, queue)?;
            }
            let start_time = under_way.map_or(now, |s| s.start_time);
            put(
                cx,
                &ScanPhys {
                    func: ScanFunc::Scrub,
                    state: ScanState::Scanning,
                    max_txg: cx.tx.txg(),
                    cur_max_txg: cx.tx.txg(),
                    start_time,
                    to_examine,
                    ..ScanPhys::default()
                },
            )
        })
    }

    /// Records how far the scrub is; with `paused`, that it waits to be gone on with.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn scrub_progress(self: &Arc<Self>, so_far: ScrubResult, paused: bool) -> Result<(), Error> {
        self.sync_task(move |cx| {
            let Some(mut phys) = scan(cx)?.filter(|s| s.state == ScanState::Scanning) else { return Ok(()) };
            fill(&mut phys, &so_far);
            phys.flags = if paused { ScanPhys::FLAG_SCRUB_PAUSED } else { 0 };
            put(cx, &phys)
        })
    }

    /// Records the end of the scrub, with the blocks that are lost.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn scrub_finish(self: &Arc<Self>, result: ScrubResult, lost: Vec<ErrorEntry>) -> Result<(), Error> {
        self.sync_task(move |cx| {
            let Some(mut phys) = scan(cx)?.filter(|s| s.state == ScanState::Scanning) else { return Ok(()) };
            fill(&mut phys, &result);
            phys.state = ScanState::Finished;
            phys.end_time = cx.spa.env().now_s();
            phys.flags = 0;
            put(cx, &phys)?;
            cx.mos.root_zap()?.update_u64(cx.tx, "last_scrubbed_txg", phys.max_txg.0)?;
            let by_head = cx.spa.feature_enabled(cx.mos, "head_errlog")?;
            errlog::write(cx.mos, cx.tx, "errlog_scrub", &lost, by_head)?;
            errlog::rotate(cx.mos, cx.tx, by_head)
        })
    }

    /// Stops a scrub for good. Whether one was under way.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn scrub_cancel(self: &Arc<Self>) -> Result<bool, Error> {
        self.sync_task(|cx| {
            let Some(mut phys) = scan(cx)?.filter(|s| s.state == ScanState::Scanning) else { return Ok(false) };
            phys.state = ScanState::Canceled;
            phys.end_time = cx.spa.env().now_s();
            phys.flags = 0;
            put(cx, &phys)?;
            Ok(true)
        })
    }
}

fn fill(phys: &mut ScanPhys, result: &ScrubResult) {
    (phys.to_examine, phys.examined) = (result.to_examine, result.examined);
    (phys.processed, phys.errors) = (result.repaired, result.errors);
}

fn scan(cx: &TaskCx<'_>) -> Result<Option<ScanPhys>, Error> {
    let Some(value) = cx.mos.root_zap()?.lookup("scan")? else { return Ok(None) };
    ScanPhys::from_words(&value.u64s()).map(Some).map_err(|source| Error::Format { object: 1, source })
}

fn put(cx: &TaskCx<'_>, phys: &ScanPhys) -> Result<(), Error> {
    Ok(cx.mos.root_zap()?.update(cx.tx, "scan", 8, &phys.to_words())?)
}
