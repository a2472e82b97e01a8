//! Resilver: reads the blocks that devices missed while they were away, or failed to write, and writes them there (OpenZFS: `dsl_scan.c`).
//!
//! It is a [scrub](crate::scrub()) of the blocks born in the txgs that some device missed; like a scrub it runs in slices, and resumes where it
//! stopped, in any process. When all blocks were read and none is lost, the devices are up to date, and the pool is whole again. Blocks that only
//! the checkpoint refers to are read last, and from their beginning if that is interrupted.
//!
//! No daemon starts it: a program that opens a pool for writing calls [`catch_up`], which resilvers if that does not take long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use base::tunable::ZUSE_CATCH_UP_MS;
use ondisk::scan::ScanFunc;
use pool::{ScrubResult, Spa};

use crate::scrub::{Scrubbed, checkpoint, go_on};
use crate::slices::Slices;
use crate::verify::Error;

/// Resilvers a pool; a resilver that was not finished goes on. `None`: no device that can be written has missed anything. `progress` is told, from any
/// thread, of bytes that were read and blocks that are lost. When `stop` becomes true it stops, and can be gone on with.
///
/// # Errors
/// While an error scrub is not finished; when the lists of datasets cannot be read, or the pool is suspended.
pub fn resilver(
    spa: &Arc<Spa>,
    threads: usize,
    stop: &AtomicBool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Option<Scrubbed>, Error> {
    begun(spa, threads, true, stop, progress)
}

fn begun(
    spa: &Arc<Spa>,
    threads: usize,
    again: bool,
    stop: &AtomicBool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Option<Scrubbed>, Error> {
    if !spa.is_resilver_due(again)? {
        return Ok(None);
    }
    let to_examine = spa.view()?.space()?.allocated;
    if !spa.resilver_begin(to_examine, again)? {
        return Ok(None);
    }
    let mut slices = Slices::resilver(spa, threads, stop, progress);
    if !go_on(&mut slices, ScanFunc::Resilver)? || !checkpoint(&mut slices, ScanFunc::Resilver)? {
        return Ok(Some(Scrubbed::Stopped));
    }
    // what was repaired last is on disk by now, or is not
    let errors = slices.take_unhealed();
    if errors > 0
        && let Some(place) = spa.view()?.scrub_cursor(ScanFunc::Resilver)?
    {
        spa.scrub_progress(place, ScrubResult { errors, ..ScrubResult::default() }, Vec::new())?;
    }
    spa.scrub_finish(ScanFunc::Resilver, true)?;
    Ok(Some(slices.whole()))
}

/// Whether the writable devices of a pool are up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaughtUp {
    /// All that can be written have.
    Yes,
    /// Some have missed writes: a [`resilver`] or a scrub must bring them up to date.
    No,
}

impl CaughtUp {
    /// As the pool is now.
    pub(crate) fn of(spa: &Spa) -> CaughtUp {
        if spa.tree().stale_leaves().next().is_none() { CaughtUp::Yes } else { CaughtUp::No }
    }
}

/// Brings devices that missed writes up to date, if that does not take long ([`ZUSE_CATCH_UP_MS`]); what is left then, [`resilver`] or the next call
/// goes on with. Where a resilver could not read everything it is not tried again.
///
/// # Errors
/// As [`resilver`].
pub fn catch_up(spa: &Arc<Spa>) -> Result<CaughtUp, Error> {
    let limit = Duration::from_millis(ZUSE_CATCH_UP_MS.get());
    if !limit.is_zero() && spa.is_resilver_due(false)? {
        let (stop, threads) = (AtomicBool::new(false), thread::available_parallelism().map_or(2, usize::from));
        let (over, wait) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let stop = &stop;
            let alarm = move || {
                if wait.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                    stop.store(true, Ordering::Relaxed);
                }
            };
            // without it, it takes as long as it takes
            let _alarm = thread::Builder::new().name("resilver-limit".to_owned()).spawn_scoped(scope, alarm);
            let result = begun(spa, threads, false, stop, &|_, _| {});
            drop(over);
            result
        })?;
    }
    Ok(CaughtUp::of(spa))
}
