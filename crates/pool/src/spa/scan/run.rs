//! The background task that reads the blocks of a scrub, a resilver or an error scrub (OpenZFS: `dsl_scan_sync`, `dsl_errorscrub_sync`).
//!
//! # The algorithm
//! The pool's record says what is to be read, and from where. Each slice walks on from there, and waits until all blocks that it met were read
//! and repaired; then a sync task records the new position and the losses. When nothing is left, another one records the end. So a scan that
//! was paused, or interrupted at any point, is resumed where it was last recorded, by this pool, after its next import, or by OpenZFS.
//!
//! A resilver also reads what only the checkpoint refers to; it does so last, and from the beginning if that is interrupted. An error scrub
//! that was interrupted begins anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::tunable;
use ondisk::scan::{ErrorScrubPhys, ScanFunc, ScanPhys};
use parking_lot::Mutex;

use super::search::{Search, go_on, searches};
use super::slice::{Slicer, entry};
use super::swaps::Swaps;
use super::walk::Walked;
use super::{ScrubCursor, ScrubRange, ScrubResult, errors, running};
use crate::spa::Spa;
use crate::spa::check::{Claims, Damage, Tally};
use crate::spa::zthr::Next;
use crate::{Error, ErrorEntry, Pool};

/// The interval at which a scan that is suspended by its tunable looks at it.
const SUSPENDED_LOOK: Duration = Duration::from_millis(200);

/// The interval at which it is looked whether destroyed datasets are freed.
const FREEING_LOOK: Duration = Duration::from_millis(20);

/// The end of a scan, for a caller that waited for it.
#[derive(Clone, Debug)]
pub enum ScanEnd {
    /// Everything was read: the results since the scan was begun or last resumed here.
    Finished(Arc<Tally>),
    /// It was paused, cancelled or replaced by another scan, or none was running.
    Stopped,
}

/// The progress of the scan since it was begun or last resumed here (OpenZFS: `pss_pass_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanFigures {
    /// Time of its begin or resumption, in seconds since 1970.
    pub start_time: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Blocks that are lost.
    pub lost: u64,
}

/// The scan of a pool, between two slices.
#[derive(Default)]
pub(crate) struct Scanner {
    run: Mutex<Option<Run>>,
    /// Heads that were swapped lately.
    pub(super) swaps: Mutex<Swaps>,
    /// The results of the last scan that finished.
    ended: Mutex<Option<Arc<Tally>>>,
    start_time: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
    /// Whether a resilver is to begin by itself, and whether one is to when the scan that runs has ended.
    pub(super) resilver_wanted: AtomicBool,
    /// Whether spares are to take the places of devices.
    pub(in crate::spa) spares_wanted: AtomicBool,
    pub(super) resilver_deferred: AtomicBool,
}

impl Scanner {
    /// Counts what was read.
    pub(super) fn seen(&self, bytes: u64, lost: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.lost.fetch_add(lost, Ordering::Relaxed);
    }

    fn figures(&self) -> ScanFigures {
        ScanFigures {
            start_time: self.start_time.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    /// Forgets the scan before, because another one is recorded.
    fn begin(&self, run: Option<Run>, now_s: u64) {
        *self.run.lock() = run;
        *self.ended.lock() = None;
        self.start_time.store(now_s, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.lost.store(0, Ordering::Relaxed);
    }

    /// As [`Scanner::begin`], for the scan that the record has now.
    pub(super) fn begin_recorded(&self, now_s: u64) {
        self.begin(None, now_s);
    }

    /// Forgets the scan because the pool is closing.
    pub(crate) fn close(&self) {
        *self.run.lock() = None;
    }
}

/// A scan that is being read.
struct Run {
    slicer: Slicer,
    stage: Stage,
}

enum Stage {
    /// The pool as it is.
    Pool { scan: Identity, shared: Claims },
    /// The blocks that only the checkpoint of the pool refers to, as it is at that checkpoint.
    Checkpoint { view: Arc<Pool>, place: Box<ScrubCursor>, shared: Claims },
    /// The list of errors.
    Errors(Vec<Search>),
}

/// Tells a scan from one that was begun later.
#[derive(Clone, PartialEq, Eq)]
struct Identity(ScanFunc, [u64; 3]);

impl Identity {
    fn of(phys: &ScanPhys) -> Identity {
        Identity(phys.func, [phys.start_time, phys.min_txg.0, phys.max_txg.0])
    }
}

/// The end of a slice.
enum End {
    /// More blocks are left to read.
    More,
    /// Everything was read.
    Whole,
    /// The record has no such scan that runs.
    Gone,
}

impl Run {
    /// The scan that the record says is to run, if there is one.
    fn of_record(spa: &Arc<Spa>) -> Result<Option<Run>, Error> {
        let view = spa.view()?;
        if let Some(phys) = running(&view.mos)? {
            let going = phys.flags & ScanPhys::FLAG_SCRUB_PAUSED == 0;
            let shared = || Claims::new(&view);
            return Ok(going.then(|| Run {
                slicer: Slicer::new(spa, least(phys.func)),
                stage: Stage::Pool { scan: Identity::of(&phys), shared: shared() },
            }));
        }
        if errors::under_way(&view.mos)?.is_some_and(|phys| !phys.paused) {
            let entries = spa.error_scrub_begin()?;
            return Ok(entries.map(|entries| Run::of_errors(spa, entries)));
        }
        Ok(None)
    }

    fn of_errors(spa: &Spa, entries: Vec<ErrorEntry>) -> Run {
        let slicer = Slicer::new(spa, least(ScanFunc::ErrorScrub));
        Run { slicer, stage: Stage::Errors(searches(entries)) }
    }

    /// Runs one slice, and records its results.
    fn slice(&mut self, spa: &Arc<Spa>) -> Result<End, Error> {
        match &mut self.stage {
            Stage::Pool { scan, shared } => {
                let sliced = self.slicer.slice(spa, |slice| {
                    let (view, func) = (slice.view, scan.0);
                    let Some(mut place) = view.scrub_cursor(func)?.filter(|place| Identity::of(&place.phys) == *scan)
                    else {
                        return Ok(None);
                    };
                    let cloning = view.feature_active("block_cloning");
                    let whole = Walked { slice, shared, cloning, view, func }.go(&mut place)?;
                    Ok::<_, Error>(Some((place, whole)))
                })?;
                let Some((place, whole)) = sliced.walked? else { return Ok(End::Gone) };
                self.record(spa, place, (sliced.tally, sliced.unreachable, sliced.unhealed))?;
                if whole { self.next_stage(spa) } else { Ok(End::More) }
            }
            Stage::Checkpoint { view, place, shared } => {
                let func = ScanFunc::Resilver;
                let Some(under_way) = spa.view()?.scrub_cursor(func)? else { return Ok(End::Gone) };
                let sliced = self.slicer.slice(spa, |slice| {
                    let now = slice.view.at_checkpoint()?;
                    // blocks of a checkpoint that was given up are others' by now
                    if now.is_none_or(|now| now.uberblock().txg != view.uberblock().txg) {
                        return Ok(true);
                    }
                    Walked { cloning: true, slice, shared, view, func }.go(place)
                })?;
                let whole = sliced.walked?;
                self.record(spa, under_way, (sliced.tally, sliced.unreachable, sliced.unhealed))?;
                Ok(if whole { End::Whole } else { End::More })
            }
            Stage::Errors(searches) => {
                if errors::under_way(&spa.view()?.mos)?.is_none_or(|phys| phys.paused) {
                    return Ok(End::Gone);
                }
                let sliced = self.slicer.slice(spa, |slice| go_on(searches, slice))?;
                let whole = searches.is_empty();
                let (examined, mut lost) = sliced.walked;
                // an indirect block that cannot be read is both unreachable for the walk and wrong for the check
                lost.extend(sliced.tally.damage.iter().chain(&sliced.unreachable).map(entry));
                self.slicer.sum.add(sliced.tally);
                spa.error_scrub_progress(examined, lost)?;
                Ok(if whole { End::Whole } else { End::More })
            }
        }
    }

    fn record(
        &mut self,
        spa: &Arc<Spa>,
        place: ScrubCursor,
        (mut tally, unreachable, unhealed): (Tally, Vec<Damage>, u64),
    ) -> Result<(), Error> {
        // an indirect block that cannot be read is both unreachable for the walk and wrong for the check
        unreachable.into_iter().for_each(|damage| tally.lost(damage));
        let result = ScrubResult {
            examined: tally.bytes,
            repaired: tally.leaves.values().map(|leaf| leaf.bytes).sum(),
            errors: tally.lost_blocks.saturating_add(unhealed),
        };
        let lost = tally.damage.iter().map(entry).collect();
        self.slicer.sum.add(tally);
        spa.scrub_progress(place, result, lost)
    }

    /// The pool as it is was read: a resilver goes on with its checkpoint.
    fn next_stage(&mut self, spa: &Arc<Spa>) -> Result<End, Error> {
        let Stage::Pool { scan: Identity(ScanFunc::Resilver, _), .. } = &self.stage else { return Ok(End::Whole) };
        let view = spa.view()?;
        let Some(checkpoint) = view.at_checkpoint()? else { return Ok(End::Whole) };
        let Some(under_way) = view.scrub_cursor(ScanFunc::Resilver)? else { return Ok(End::Gone) };
        let shared = Claims::new(&checkpoint);
        let place = Box::new(ScrubCursor::again(&under_way));
        self.stage = Stage::Checkpoint { view: checkpoint, place, shared };
        Ok(End::More)
    }

    /// Records the end.
    fn finish(&mut self, spa: &Arc<Spa>) -> Result<(), Error> {
        let func = match &self.stage {
            Stage::Errors(_) => return spa.error_scrub_finish(),
            Stage::Pool { scan, .. } => scan.0,
            Stage::Checkpoint { .. } => ScanFunc::Resilver,
        };
        if func == ScanFunc::Scrub {
            // blocks that only the checkpoint has are left out, as OpenZFS leaves them out
            let all = !spa.view()?.feature_active("zpool_checkpoint");
            return spa.scrub_finish(func, all);
        }
        // the writes of the last slice are on disk by now, or are not
        let errors = self.slicer.take_unhealed(spa);
        if errors > 0
            && let Some(place) = spa.view()?.scrub_cursor(func)?
        {
            spa.scrub_progress(place, ScrubResult { errors, ..ScrubResult::default() }, Vec::new())?;
        }
        spa.scrub_finish(func, true)
    }
}

/// The least time that a slice lasts.
fn least(func: ScanFunc) -> Duration {
    Duration::from_millis(match func {
        ScanFunc::Resilver => tunable::ZFS_RESILVER_MIN_TIME_MS.get(),
        _ => tunable::ZFS_SCRUB_MIN_TIME_MS.get(),
    })
}

/// A slice of the background task.
pub(crate) fn slice(spa: &Arc<Spa>) -> Result<Next, Error> {
    spa.call_in_spares();
    spa.begin_wanted()?;
    if tunable::ZFS_SCAN_SUSPEND_PROGRESS.get() != 0 {
        return Ok(Next::Rest(SUSPENDED_LOOK));
    }
    // what was destroyed is not read, and would be lost with the devices that leave: it is freed first, as in OpenZFS (`dsl_scan_sync`)
    if spa.background.free.is_awake() {
        spa.txgs().note_work();
        return Ok(Next::Rest(FREEING_LOOK));
    }
    let mut slot = spa.scanner.run.lock();
    let mut run = match slot.take() {
        Some(run) => run,
        None => match Run::of_record(spa)? {
            Some(run) => run,
            None => {
                spa.detach_replaced();
                return Ok(Next::Done);
            }
        },
    };
    match run.slice(spa)? {
        End::More => *slot = Some(run),
        // the record may have another one
        End::Gone => spa.want_deferred(),
        End::Whole => {
            run.finish(spa)?;
            *spa.scanner.ended.lock() = Some(Arc::new(run.slicer.sum));
            spa.want_deferred();
        }
    }
    Ok(Next::More)
}

impl Spa {
    /// Begins a scrub, which runs in the background; an unfinished one resumes where it was, over the range that it had.
    ///
    /// # Errors
    /// As [`Spa::scrub_begin`].
    pub fn scrub(self: &Arc<Self>, range: ScrubRange) -> Result<(), Error> {
        let to_examine = self.view()?.space()?.allocated;
        let held = self.background.scan.hold();
        self.scrub_begin(to_examine, range)?;
        self.scanner.begin_recorded(self.env().now_s());
        self.background.scan.wake(self);
        drop(held);
        Ok(())
    }

    /// Begins a resilver, which runs in the background; an unfinished one resumes. Returns whether there is anything to do, as
    /// [`Spa::resilver_begin`] does.
    ///
    /// # Errors
    /// As [`Spa::resilver_begin`].
    pub fn resilver(self: &Arc<Self>, again: bool) -> Result<bool, Error> {
        if !self.is_resilver_due(again)? {
            return Ok(false);
        }
        let to_examine = self.view()?.space()?.allocated;
        let held = self.background.scan.hold();
        if !self.resilver_begin(to_examine, again)? {
            return Ok(false);
        }
        self.scanner.begin_recorded(self.env().now_s());
        self.background.scan.wake(self);
        drop(held);
        Ok(true)
    }

    /// Begins an error scrub, which reads the blocks in the pool's list of errors in the background; an unfinished one begins anew. Returns
    /// false if the list is empty.
    ///
    /// # Errors
    /// As [`Spa::error_scrub_begin`].
    pub fn error_scrub(self: &Arc<Self>) -> Result<bool, Error> {
        let held = self.background.scan.hold();
        let Some(entries) = self.error_scrub_begin()? else { return Ok(false) };
        self.scanner.begin(Some(Run::of_errors(self, entries)), self.env().now_s());
        self.background.scan.wake(self);
        drop(held);
        Ok(true)
    }

    /// Resumes the scan that an earlier import, by any implementation, left unfinished. An [import](Spa::import) does so by itself, unless it is
    /// that of the [next command](crate::ImportOptions::again).
    ///
    /// # Errors
    /// When the pool's record of scans cannot be read.
    pub fn resume_scan(self: &Arc<Self>) -> Result<(), Error> {
        let view = self.view()?;
        let scan = running(&view.mos)?.is_some_and(|phys| phys.flags & ScanPhys::FLAG_SCRUB_PAUSED == 0);
        let going = |phys: ErrorScrubPhys| !phys.paused;
        self.unspare_returned();
        self.want_spares();
        if scan || self.has_replaced() || errors::under_way(&view.mos)?.is_some_and(going) {
            self.scanner.begin_recorded(self.env().now_s());
            self.background.scan.wake(self);
        }
        Ok(())
    }

    /// Returns whether the record has a scrub that has not ended; it may be paused.
    ///
    /// # Errors
    /// When the pool's record of scans cannot be read.
    pub fn is_scrubbing(&self) -> Result<bool, Error> {
        Ok(running(&self.view()?.mos)?.is_some_and(|phys| phys.func == ScanFunc::Scrub))
    }

    /// Returns whether the scan that the record has is a resilver.
    pub(crate) fn is_resilvering(&self) -> Result<bool, Error> {
        Ok(running(&self.view()?.mos)?.is_some_and(|phys| phys.func == ScanFunc::Resilver))
    }

    /// Waits until no scan runs, and returns the end of the last one. `progress` is called every now and then.
    ///
    /// # Errors
    /// The error that ended the scan: its lists cannot be read, or the pool is suspended.
    pub fn scan_wait(self: &Arc<Self>, progress: &mut dyn FnMut(ScanFigures)) -> Result<ScanEnd, Error> {
        self.background.scan.wait(self, None, &mut || progress(self.scanner.figures()))?;
        Ok(self.scanner.ended.lock().clone().map_or(ScanEnd::Stopped, ScanEnd::Finished))
    }

    /// Waits until no scan runs, but no longer than `limit`. Returns whether none runs.
    ///
    /// # Errors
    /// As [`Spa::scan_wait`].
    pub fn scan_wait_for(self: &Arc<Self>, limit: Duration) -> Result<bool, Error> {
        self.background.scan.wait(self, Some(Instant::now() + limit), &mut || {})
    }

    /// Returns the progress of the scan that runs; `None` if none does.
    #[must_use]
    pub fn scan_figures(&self) -> Option<ScanFigures> {
        self.background.scan.is_awake().then(|| self.scanner.figures())
    }
}
