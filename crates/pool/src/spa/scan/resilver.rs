//! Resilvers: writes that devices missed while they were absent (OpenZFS: `vdev_resilver_needed`, `dsl_scan_restart_resilver`,
//! `vdev_dtl_reassess`).
//!
//! A resilver is a scan of blocks born in the txgs that devices missed. It replaces an unfinished scrub. If another device misses something
//! after it was begun, it begins anew, because that device lacks blocks that it has already passed.
//!
//! # By itself
//! A device that is put to use while the pool is open, and has missed something, is resilvered without being asked for ([`Spa::want_resilver`]): the
//! background task of scans begins with that. Under a resilver that is under way and does not cover what the device has missed, the device
//! waits for its end if the pool has the feature `resilver_defer`; otherwise the resilver begins anew. Nothing on disk says that a device waits: after
//! a crash it is one that has missed something, as before.
//!
//! # Blocks shared meanwhile
//! A block that the resilver has not reached may get another pointer in a part that it has passed, by a clone or through the dedup table;
//! then the old pointer is dropped, and the resilver would never meet the block. Hence a block that gets another pointer while a scan runs
//! is healed in the same txg (OpenZFS: `dsl_scan_ddt_entry`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Guid, Txg};
use dmu::Tx;
use ondisk::BlkPtr;
use ondisk::label::key;
use ondisk::scan::{ScanFunc, ScanPhys, ScanState};
use zio::{Bookmark, Scratch, Suspect};

use super::{ScrubRange, begin, end, errors, put, running};
use crate::spa::attach::CONCURRENT_TXGS;
use crate::spa::mos::Mos;
use crate::spa::{Spa, TaskCx};
use crate::{Error, Pool};

/// In the configuration of a leaf: the resilver that runs passes over it (OpenZFS: `ZPOOL_CONFIG_RESILVER_DEFER`).
const RESILVER_DEFER: &str = "com.datto:resilver_defer";

impl Spa {
    /// Records that a resilver begins, or that an unfinished one resumes; it will read about `to_examine` bytes. Returns whether there is
    /// anything to do. There is not if no writable device has missed anything; nor, unless `again`, if a resilver of the same txgs ended
    /// and could not read everything.
    ///
    /// # Errors
    /// [`Error::Scrubbing`] while an error scrub is not finished; when the pool is suspended.
    pub fn resilver_begin(self: &Arc<Self>, to_examine: u64, again: bool) -> Result<bool, Error> {
        // nothing is written if there is nothing to do
        if !self.is_resilver_due(again)? {
            return Ok(false);
        }
        loop {
            self.wait_for_missed()?;
            // another device may have joined meanwhile
            if let Some(begun) = self.sync_task(move |cx| start(cx, to_examine))? {
                return Ok(begun);
            }
        }
    }

    /// A device was put to use: if it, or another, has missed something, a resilver begins soon (OpenZFS: `dsl_scan_assess_vdev`, `SPA_ASYNC_RESILVER`).
    pub(crate) fn want_resilver(&self) {
        if self.tree().stale_leaves().next().is_some() {
            self.scanner.resilver_wanted.store(true, Ordering::Release);
            self.background.scan.wake(self);
        }
    }

    /// Returns whether a resilver is about to begin by itself.
    pub(crate) fn is_resilver_wanted(&self) -> bool {
        self.scanner.resilver_wanted.load(Ordering::Acquire)
    }

    /// Begins a resilver that is wanted, unless it has to wait. To be called by the task of scans between two slices.
    ///
    /// # Errors
    /// As [`Spa::resilver_begin`]; then it is still wanted.
    pub(super) fn begin_wanted(self: &Arc<Self>) -> Result<(), Error> {
        let wanted = &self.scanner.resilver_wanted;
        // a device that comes back from now on asks anew
        if !wanted.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.begin_by_itself().inspect_err(|_| wanted.store(true, Ordering::Release))
    }

    /// Waits until all that devices have missed is on disk: a device that has just joined misses blocks of txgs that are not synced yet
    /// (OpenZFS: `dsl_scan_restart_resilver` of a later txg).
    fn wait_for_missed(self: &Arc<Self>) -> Result<(), Error> {
        while self.tree().missed().is_some_and(|missed| is_ahead(&missed, Txg(self.txgs.synced().0 + 1))) {
            self.txgs.note_work();
            self.sync()?;
        }
        Ok(())
    }

    fn begin_by_itself(self: &Arc<Self>) -> Result<(), Error> {
        self.wait_for_missed()?;
        let (view, missed) = (self.view()?, self.tree().missed());
        let Some(missed) = missed else { return Ok(()) };
        if let Some(scan) = running(&view.mos)?.filter(|scan| scan.func == ScanFunc::Resilver) {
            if covers(&scan, &missed) {
                return Ok(());
            }
            if view.feature_enabled("resilver_defer") {
                self.scanner.resilver_deferred.store(true, Ordering::Release);
                return Ok(());
            }
        }
        let to_examine = view.space()?.allocated;
        let begun = self.sync_task(move |cx| {
            match cx.spa.tree().missed() {
                None => return Ok(Some(false)),
                Some(missed) if is_ahead(&missed, cx.tx.txg()) => return Ok(None),
                Some(_) => {}
            }
            // an error scrub makes room as well
            errors::cancel(cx)?;
            start(cx, to_examine)
        })?;
        let Some(begun) = begun else {
            self.want_resilver();
            return Ok(());
        };
        if begun {
            self.scanner.begin_recorded(self.env().now_s());
        }
        Ok(())
    }

    /// A scan has ended: what has waited for that is wanted now.
    pub(super) fn want_deferred(&self) {
        if self.scanner.resilver_deferred.swap(false, Ordering::AcqRel) {
            self.want_resilver();
        }
    }

    /// Returns whether [`Spa::resilver_begin`] would find something to do.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn is_resilver_due(&self, again: bool) -> Result<bool, Error> {
        let Some(missed) = self.tree().missed() else { return Ok(false) };
        let last = self.view()?.scan()?;
        let in_vain = |scan: &ScanPhys| {
            let over = scan.func == ScanFunc::Resilver && scan.state == ScanState::Finished;
            over && covers(scan, &missed)
        };
        Ok(again || !last.is_some_and(|scan| in_vain(&scan)))
    }

    /// Heals `shared` blocks that a device has missed, if a scan runs: they have another pointer now.
    pub(crate) fn heal_shared(&self, mos: &Mos, tx: &Tx, mut shared: Vec<BlkPtr>) -> Result<(), Error> {
        shared.extend(self.zio().take_shared());
        shared.retain(|bp| bp.birth_physical() < tx.txg() && self.tree().is_missed(bp.birth_physical()));
        if shared.is_empty() {
            return Ok(());
        }
        let Some(mut scan) = running(mos)? else { return Ok(()) };
        let (mut scratch, unhealed) = (Scratch::default(), self.tree().unhealed());
        let heal = |bp: BlkPtr| self.zio().heal(&Suspect { bp, bm: Bookmark::default() }, &mut scratch);
        let lost = shared.into_iter().map(heal).filter(Result::is_err).count() as u64;
        let lost = lost.saturating_add(self.tree().unhealed() - unhealed);
        if lost > 0 {
            // so that the devices are not considered complete at its end
            scan.errors = scan.errors.saturating_add(lost);
            put(mos, tx, &scan)?;
        }
        Ok(())
    }
}

impl Pool {
    /// Returns the pool as its checkpoint keeps it; `None` if it has none.
    ///
    /// # Errors
    /// When the MOS cannot be read, or that of the checkpoint.
    pub fn at_checkpoint(&self) -> Result<Option<Arc<Pool>>, Error> {
        crate::spa::open::at_checkpoint(self)
    }
}

/// Whether something was missed in txgs that may be written after `txg`, by a device that has joined. What lies further ahead no pool can have missed.
fn is_ahead(missed: &Range<u64>, txg: Txg) -> bool {
    (txg.0 + 2..=txg.0 + CONCURRENT_TXGS + 1).contains(&missed.end)
}

/// Begins a resilver of what was missed, or goes on with one that covers it. Returns whether there is anything to do; `None` if it is too early to begin.
fn start(cx: &TaskCx<'_>, to_examine: u64) -> Result<Option<bool>, Error> {
    let Some(missed) = cx.spa.tree().missed() else { return Ok(Some(false)) };
    if is_ahead(&missed, cx.tx.txg()) {
        return Ok(None);
    }
    match running(cx.mos)? {
        Some(scan) if scan.func == ScanFunc::Resilver && covers(&scan, &missed) => return Ok(Some(true)),
        Some(scan) => end(cx, scan, ScanState::Canceled)?,
        None => {}
    }
    // everything that exists now is read, however young: a clone's pointer is younger than its block
    let upto = Txg(missed.end).max(cx.tx.txg());
    begin(cx, ScanFunc::Resilver, to_examine, ScrubRange { upto: Some(upto), ..range(&missed) })?;
    for leaf in deferred(cx.spa) {
        cx.spa.edit_vdev(leaf.0, &mut |vdev| drop(vdev.remove(RESILVER_DEFER)));
    }
    Ok(Some(true))
}

/// The devices that OpenZFS keeps for the next resilver.
fn deferred(spa: &Spa) -> Vec<Guid> {
    let vdevs = spa.vdevs_now(&spa.tree());
    vdevs.walk().filter(|vdev| vdev.raw.contains(RESILVER_DEFER)).map(|vdev| vdev.guid).collect()
}

/// Returns the blocks that were missed.
fn range(missed: &Range<u64>) -> ScrubRange {
    ScrubRange { after: Txg(missed.start.saturating_sub(1)), upto: Some(Txg(missed.end)) }
}

/// Returns the first txg whose blocks a scan reads. Nothing is born in txg 0.
pub(super) fn first(scan: &ScanPhys) -> u64 {
    if scan.min_txg == Txg(0) { 0 } else { scan.min_txg.0.saturating_add(1) }
}

/// Returns whether a scan covers all of these txgs.
fn covers(scan: &ScanPhys, missed: &Range<u64>) -> bool {
    let range = range(missed);
    scan.min_txg <= range.after && range.upto.is_some_and(|upto| upto <= scan.max_txg)
}

/// Removes txgs from the DTLs of the devices that were present throughout, in the txg in which a scan of them ends.
pub(super) fn caught_up(cx: &TaskCx<'_>, txgs: &Range<u64>) -> Result<(), Error> {
    // OpenZFS began the resilver, and did not write to them
    let passed = deferred(cx.spa);
    if !passed.is_empty() {
        cx.spa.scanner.resilver_deferred.store(true, Ordering::Release);
    }
    for leaf in cx.spa.tree().caught_up(txgs, &passed) {
        cx.spa.edit_vdev(leaf.0, &mut |vdev| {
            vdev.remove_all(key::RESILVER_TXG);
        });
    }
    cx.spa.sync_dtls(cx.mos, cx.tx)
}
