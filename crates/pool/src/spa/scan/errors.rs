//! The record of an error scrub: only the blocks in the list of errors are read (OpenZFS: `dsl_errorscrub_phys_t`, `dsl_errorscrub_sync`).
//!
//! Blocks that are still damaged go into the error log of the scrub, which replaces the list when the last block was read: so blocks that
//! were repaired, or no longer exist, drop out. An unfinished error scrub begins anew; until then the list stays as it was.

use std::sync::Arc;

use base::ObjectId;
use nvlist::NvList;
use ondisk::scan::{ErrorScrubPhys, ScanFunc, ScanPhys, ScanState};

use super::{note_lost, running};
use crate::spa::errlog;
use crate::spa::mos::Mos;
use crate::spa::{Spa, TaskCx};
use crate::{Error, ErrorEntry, Pool};

/// The record of the MOS directory.
const ERROR_SCRUB: &str = "error_scrub";

/// The reason why blocks are not read now, in the words of `zpool scrub`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScrubRefusal {
    /// A scrub was begun and not finished.
    #[error("currently scrubbing; use 'zpool scrub -s' to cancel scrub")]
    Scrub,
    /// A scrub is paused.
    #[error("scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to cancel scrub")]
    Paused,
    /// A scrub is paused, and was to be paused.
    #[error("scrub is paused; use 'zpool scrub' to resume scrub")]
    PausedBefore,
    /// An error scrub is paused, and was to be paused.
    #[error("error scrub is paused; use 'zpool scrub -e' to resume error scrub")]
    ErrorsPausedBefore,
    /// An error scrub was begun and not finished.
    #[error("currently error scrubbing; use 'zpool scrub -s' to cancel error scrub")]
    ErrorScrub,
}

impl Spa {
    /// Records that an error scrub begins, or that an unfinished one begins anew. Returns the blocks to read; `None` if no block is known
    /// to be damaged.
    ///
    /// # Errors
    /// [`Error::Scrubbing`] while a paused scrub exists; [`Error::Resilvering`]; when the pool is suspended.
    pub fn error_scrub_begin(self: &Arc<Self>) -> Result<Option<Vec<ErrorEntry>>, Error> {
        self.sync_task(|cx| {
            if let Some(scan) = running(cx.mos)? {
                let paused = scan.flags & ScanPhys::FLAG_SCRUB_PAUSED != 0;
                return Err(match scan.func {
                    ScanFunc::Scrub if paused => Error::Scrubbing(ScrubRefusal::Paused),
                    ScanFunc::Scrub => Error::Scrubbing(ScrubRefusal::Scrub),
                    _ => Error::Resilvering,
                });
            }
            let by_head = cx.spa.feature_enabled(cx.mos, "head_errlog")?;
            let entries = errlog::read(cx.mos, errlog::LAST, by_head)?;
            if entries.is_empty() {
                return Ok(None);
            }
            errlog::clear(cx.mos, cx.tx, errlog::SCRUB, by_head)?;
            let phys = ErrorScrubPhys {
                func: ScanFunc::ErrorScrub,
                state: ScanState::ErrorScrubbing,
                start_time: cx.spa.env().now_s(),
                to_examine: entries.len() as u64,
                ..ErrorScrubPhys::default()
            };
            put(cx, &phys)?;
            cx.spa.notify("errorscrub_start", &NvList::new());
            Ok(Some(entries))
        })
    }

    /// Records that `examined` more blocks were read, and which of them are lost.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn error_scrub_progress(self: &Arc<Self>, examined: u64, lost: Vec<ErrorEntry>) -> Result<(), Error> {
        self.sync_task(move |cx| {
            // it may have been stopped
            let Some(mut phys) = under_way(cx.mos)? else { return Ok(()) };
            phys.examined += examined;
            phys.to_examine = phys.to_examine.saturating_sub(examined);
            phys.errors += lost.len() as u64;
            put(cx, &phys)?;
            note_lost(cx, lost)
        })
    }

    /// Records the end of the error scrub: its losses replace the pool's list of errors.
    ///
    /// # Errors
    /// When the pool is suspended.
    pub fn error_scrub_finish(self: &Arc<Self>) -> Result<(), Error> {
        self.sync_task(|cx| {
            let Some(phys) = under_way(cx.mos)? else { return Ok(()) };
            errlog::rotate(cx.mos, cx.tx, cx.spa.feature_enabled(cx.mos, "head_errlog")?)?;
            ended(cx, phys, ScanState::Finished)?;
            cx.spa.notify("errorscrub_finish", &NvList::new());
            Ok(())
        })
    }
}

impl Pool {
    /// Returns the last or running error scrub; `None` if there was none since the last scrub began.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn error_scrub(&self) -> Result<Option<ErrorScrubPhys>, Error> {
        Ok(record(&self.mos)?.filter(|phys| phys.func == ScanFunc::ErrorScrub))
    }
}

/// Pauses a running error scrub; returns whether one was running.
///
/// # Errors
/// [`Error::Scrubbing`] if it is paused.
pub(super) fn pause(cx: &TaskCx<'_>) -> Result<bool, Error> {
    let Some(mut phys) = under_way(cx.mos)? else { return Ok(false) };
    if phys.paused {
        return Err(Error::Scrubbing(ScrubRefusal::ErrorsPausedBefore));
    }
    phys.paused = true;
    put(cx, &phys)?;
    cx.spa.notify("errorscrub_paused", &NvList::new());
    Ok(true)
}

/// Cancels an error scrub; the list of errors stays as it was. Returns whether one was running.
pub(super) fn cancel(cx: &TaskCx<'_>) -> Result<bool, Error> {
    let Some(phys) = under_way(cx.mos)? else { return Ok(false) };
    errlog::clear(cx.mos, cx.tx, errlog::SCRUB, cx.spa.feature_enabled(cx.mos, "head_errlog")?)?;
    ended(cx, phys, ScanState::Canceled)?;
    cx.spa.notify("errorscrub_abort", &NvList::new());
    Ok(true)
}

/// Forgets earlier error scrubs, because a scrub begins.
///
/// # Errors
/// [`Error::Scrubbing`] if an error scrub is running.
pub(super) fn forget(cx: &TaskCx<'_>) -> Result<(), Error> {
    if under_way(cx.mos)?.is_some() {
        return Err(Error::Scrubbing(ScrubRefusal::ErrorScrub));
    }
    match record(cx.mos)? {
        Some(_) => put(cx, &ErrorScrubPhys::default()),
        None => Ok(()),
    }
}

fn record(mos: &Mos) -> Result<Option<ErrorScrubPhys>, Error> {
    let Some(value) = mos.root_zap()?.lookup(ERROR_SCRUB)? else { return Ok(None) };
    ErrorScrubPhys::from_words(&value.u64s())
        .map(Some)
        .map_err(|source| Error::Format { object: ObjectId::POOL_DIRECTORY, source })
}

/// Returns the error scrub that was begun and not finished.
pub(super) fn under_way(mos: &Mos) -> Result<Option<ErrorScrubPhys>, Error> {
    Ok(record(mos)?.filter(|phys| phys.func == ScanFunc::ErrorScrub && phys.state == ScanState::ErrorScrubbing))
}

fn ended(cx: &TaskCx<'_>, mut phys: ErrorScrubPhys, state: ScanState) -> Result<(), Error> {
    (phys.state, phys.paused, phys.end_time) = (state, false, cx.spa.env().now_s());
    put(cx, &phys)
}

fn put(cx: &TaskCx<'_>, phys: &ErrorScrubPhys) -> Result<(), Error> {
    Ok(cx.mos.root_zap()?.update(cx.tx, ERROR_SCRUB, 8, &phys.to_words())?)
}
