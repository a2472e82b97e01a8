//! A leaf: one device of a pool, as far as it is there.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use base::{Errno, Guid, Txg};

use crate::Error;
use crate::config::VdevConfig;
use crate::device::Device;
use crate::diagnosis::{Diagnosis, Thresholds, Verdict};
use crate::dtl::Dtl;
use crate::errors::ErrorCounters;
use crate::growth::Size;
use crate::queue::{Direction, IoClass, Queue, Queued, Request};
use crate::slot::{Health, Slot};
use crate::status::{VdevAux, VdevState};

/// The system's errors of a device that is gone: ENXIO, ENODEV, ENOMEDIUM.
const GONE: [i32; 3] = [Errno::ENXIO.raw(), Errno::ENODEV.raw(), ENOMEDIUM];
const ENOMEDIUM: i32 = 123;

/// The configuration of a leaf without the list that it was read from.
fn own_part(config: &VdevConfig) -> VdevConfig {
    VdevConfig { raw: nvlist::NvList::new(), ..config.clone() }
}

/// A leaf vdev (OpenZFS: a `vdev_t` of type disk or file).
#[derive(Debug)]
pub struct Leaf {
    /// Its own part of the pool's configuration. Where the last sibling of a leaf goes, the leaf takes the place and the guid of its parent.
    identity: ArcSwap<VdevConfig>,
    pub(crate) index: usize,
    slot: Slot,
    pub(crate) errors: Arc<ErrorCounters>,
    pub(crate) queue: Arc<Queue>,
    /// The errors that count.
    diagnosis: Mutex<Diagnosis>,
    /// The reason why it is degraded, or was before its device went, as a number; that of [`VdevAux::None`] if it is not (OpenZFS:
    /// `vdev_degraded`, `vdev_label_aux`).
    degraded: AtomicU16,
    /// Repairs that could not be written.
    unhealed: AtomicU64,
    /// Whether it is offline or faulted only until the pool is opened anew.
    temporary: AtomicBool,
    /// Whether something was written that may not be on stable storage.
    unflushed: AtomicBool,
    /// Flushes that failed, for any reason. The system tells only once of what it could not bring to stable storage: whoever is told, what
    /// others have written may be lost.
    failed_flushes: AtomicU64,
    /// How many of them the last txg that ended has answered for, and how many its successor need not answer for. Blocks of a txg are written
    /// while the one before it is still ending, so that each failure counts for two.
    settled_flushes: AtomicU64,
    carried_flushes: AtomicU64,
    /// Held over a flush: who comes meanwhile has perhaps written what it brings to stable storage, and waits.
    flushing: Mutex<()>,
    dtl: Dtl,
    /// The first txg whose blocks it keeps for good: what is written of earlier ones it may lose, as the pool does not know it after a crash.
    counts_from: AtomicU64,
    /// Whether it is about to leave the pool: what it has will be lost.
    leaving: AtomicBool,
    pub(crate) size: Size,
}

impl Leaf {
    /// `present`: it counts as there though it has no device of its own.
    pub(crate) fn new(index: usize, config: &VdevConfig, device: Option<Arc<dyn Device>>, present: bool) -> Leaf {
        let health = Health::at_open(config, present || device.is_some());
        let size = Size::of(device.as_deref());
        Leaf {
            identity: ArcSwap::from_pointee(own_part(config)),
            index,
            slot: Slot::new(health, device),
            errors: Arc::default(),
            queue: Arc::default(),
            diagnosis: Mutex::default(),
            degraded: AtomicU16::new(if config.degraded { Health::reason(config) as u16 } else { 0 }),
            unhealed: AtomicU64::new(0),
            temporary: AtomicBool::new(false),
            unflushed: AtomicBool::new(false),
            failed_flushes: AtomicU64::new(0),
            settled_flushes: AtomicU64::new(0),
            carried_flushes: AtomicU64::new(0),
            flushing: Mutex::new(()),
            dtl: Dtl::default(),
            counts_from: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            size,
        }
    }

    /// Its identity.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.identity.load().guid
    }

    /// What its configuration says of it.
    pub(crate) fn config(&self) -> arc_swap::Guard<Arc<VdevConfig>> {
        self.identity.load()
    }

    /// It is the leaf of this configuration from now on, with the device, the errors and the missed txgs that it has.
    pub(crate) fn identify(&self, config: &VdevConfig) {
        self.identity.store(Arc::new(own_part(config)));
    }

    /// Its place among all leaves of the pool: a small number, for tables per leaf.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its device, if it has one now.
    #[must_use]
    pub fn device(&self) -> Option<Arc<dyn Device>> {
        self.slot.device()
    }

    pub(crate) fn has_device(&self) -> bool {
        self.slot.has_device()
    }

    /// The path in its configuration: a hint of where the device was last seen.
    #[must_use]
    pub fn path(&self) -> Option<String> {
        self.config().path.clone()
    }

    /// Its name in messages: that of its device, or of the last one that it had.
    #[must_use]
    pub fn name(&self) -> String {
        self.slot.name().or_else(|| self.path()).unwrap_or_else(|| self.guid().to_string())
    }

    /// Its state, and the reason for it.
    #[must_use]
    pub fn health(&self) -> Health {
        self.slot.health()
    }

    /// The last error of its device, in words.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.slot.error()
    }

    /// Whether its device is there and may be used.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.slot.is_usable()
    }

    /// Whether it is out of use (offline, faulted, removed): its bytes may be old or wrong.
    pub(crate) fn is_out_of_use(&self) -> bool {
        !self.slot.health().state.is_readable()
    }

    /// Whether it is offline or faulted only until the pool is opened anew.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        self.temporary.load(Ordering::Acquire)
    }

    /// The administrator says that it is faulted, `temporarily` until the pool is opened anew.
    pub(crate) fn fault(&self, temporarily: bool) {
        self.temporary.store(temporarily, Ordering::Release);
        self.slot.judge(Health::new(VdevState::Faulted, VdevAux::External));
        self.note_left_out();
    }

    /// From now on it is neither written nor trusted; unless its device has gone meanwhile, which then is the reason of its errors.
    pub(crate) fn give_up(&self) {
        if self.slot.judge_if(Slot::is_usable, Health::new(VdevState::Faulted, VdevAux::ErrExceeded)) {
            self.temporary.store(false, Ordering::Release);
            self.note_left_out();
        }
    }

    /// Notes that a resilver may pass over blocks which the leaf has missed: it is out of use, though perhaps not for long.
    fn note_left_out(&self) {
        if self.is_stale() {
            self.note_unhealed();
        }
    }

    /// It failed too often, and is used on.
    pub(crate) fn degrade(&self, why: VdevAux) {
        if self.slot.judge_if(Slot::is_usable, Health::new(VdevState::Degraded, why)) {
            self.degraded.store(why as u16, Ordering::Release);
        }
    }

    /// The reason why it is degraded, or will be when its device is back.
    #[must_use]
    pub fn degraded(&self) -> Option<VdevAux> {
        Some(VdevAux::from_bits(self.degraded.load(Ordering::Acquire))).filter(|why| *why != VdevAux::None)
    }

    /// Nothing that went wrong counts any more.
    pub(crate) fn forgive(&self) {
        self.diagnosis().forgive(self.device_errors());
    }

    /// Forgets the verdicts on it; its state stays, unless it is faulted and has no device: then that is gone.
    pub(crate) fn pardon(&self) {
        self.degraded.store(VdevAux::None as u16, Ordering::Release);
        let is_lost = |slot: &Slot| !slot.has_device() && slot.health().state == VdevState::Faulted;
        self.slot.judge_if(is_lost, Health::new(VdevState::CantOpen, VdevAux::OpenFailed));
    }

    /// It is used from now on, with the device that it has. Returns whether it has one.
    pub(crate) fn recover(&self) -> bool {
        self.forgive();
        self.slot.judge_if(Slot::has_device, self.health_in_use())
    }

    fn health_in_use(&self) -> Health {
        match self.degraded() {
            Some(why) => Health::new(VdevState::Degraded, why),
            None => Health::new(VdevState::Healthy, VdevAux::None),
        }
    }

    /// Closes its device: the administrator takes it offline, `temporary` until the pool is opened anew.
    pub(crate) fn take_offline(&self, temporary: bool) {
        self.temporary.store(temporary, Ordering::Release);
        self.empty(None, Health::new(VdevState::Offline, VdevAux::None));
    }

    /// Whether a block of `txg` that is on it is safe.
    pub(crate) fn keeps(&self, txg: Txg) -> bool {
        txg.0 >= self.counts_from.load(Ordering::Acquire) && !self.is_leaving()
    }

    /// Blocks of txgs before `txg` are not safe on it.
    pub(crate) fn counts_from(&self, txg: Txg) {
        self.counts_from.store(txg.0, Ordering::Release);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Says whether it is about to leave the pool. It is written on, but nothing counts that only it has.
    pub fn set_leaving(&self, leaving: bool) {
        self.leaving.store(leaving, Ordering::Release);
    }

    /// It is no longer in the pool: its device, which is returned, is neither read nor written any more, but for what is under way.
    #[must_use]
    pub fn retire(&self) -> Option<Arc<dyn Device>> {
        let device = self.device()?;
        self.slot.take(Some(&device), Health::new(VdevState::Removed, VdevAux::None)).then_some(device)
    }

    /// Gives up `device`, if it still has that: it is gone, or is not what it was any more. What was not flushed may be lost.
    pub(crate) fn lose(&self, device: &Arc<dyn Device>, health: Health) {
        self.empty(Some(device), health);
    }

    fn empty(&self, device: Option<&Arc<dyn Device>>, health: Health) {
        // whoever writes notes that first, and then looks whether the device is still there
        if !self.slot.take(device, health) {
            return;
        }
        self.note_left_out();
        if self.unflushed.swap(false, Ordering::SeqCst) {
            self.failed_flushes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Changes the reason why it has no device.
    pub(crate) fn cannot_open(&self, aux: VdevAux) {
        self.slot.judge_if(|slot| !slot.has_device(), Health::new(VdevState::CantOpen, aux));
    }

    /// Uses `device` from now on, if it has none. Returns whether it had none.
    pub(crate) fn fill(&self, device: Arc<dyn Device>) -> bool {
        self.forgive();
        self.size.reopened(device.size());
        self.slot.fill(self.health_in_use(), device)
    }

    fn diagnosis(&self) -> std::sync::MutexGuard<'_, Diagnosis> {
        self.diagnosis.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of reads and writes that its device failed.
    fn device_errors(&self) -> u64 {
        self.errors.write.get().saturating_add(self.errors.read.get())
    }

    /// Sets how many errors are too many; `None` if somebody has yet to find out.
    pub fn set_thresholds(&self, thresholds: Option<Thresholds>) {
        self.diagnosis().set_thresholds(thresholds);
    }

    /// Whether it is known how many errors are too many.
    #[must_use]
    pub fn has_thresholds(&self) -> bool {
        self.diagnosis().has_thresholds()
    }

    /// Judges what its device has failed to read and write since this was last asked.
    pub(crate) fn judge_io(&self) -> Verdict {
        self.diagnosis().judge_io(self.device_errors(), Instant::now())
    }

    /// Notes that a checksum told of wrong bytes at `place`, when that was not being looked for.
    pub(crate) fn note_wrong(&self, place: u64) {
        self.diagnosis().note_wrong(place, Instant::now());
    }

    /// Whether it has given wrong bytes too often, as far as that was not said before.
    pub(crate) fn judge_wrong(&self) -> bool {
        self.diagnosis().judge_wrong(Instant::now())
    }

    /// Whether it has lately given wrong bytes.
    pub(crate) fn was_wrong_lately(&self) -> bool {
        self.diagnosis().was_wrong_lately(Instant::now())
    }

    /// It has given wrong bytes too often: it is `convicted`, or something else is the reason.
    pub(crate) fn settle_wrong(&self, convicted: bool) {
        if convicted {
            self.degrade(VdevAux::ErrExceeded);
        }
        self.diagnosis().settle_wrong(convicted);
    }

    /// Whether it has erred and nobody has judged it.
    pub(crate) fn has_new_errors(&self) -> bool {
        self.diagnosis().has_news(self.device_errors())
    }

    /// A repair could not be written.
    pub(crate) fn note_unhealed(&self) {
        self.unhealed.fetch_add(1, Ordering::AcqRel);
    }

    /// Repairs that could not be written, or may have got lost: of these a resilver knows that it is not whole.
    pub(crate) fn unhealed(&self) -> u64 {
        self.unhealed.load(Ordering::Acquire).saturating_add(self.failed_flushes())
    }

    /// Whether its device is there, may be used, and is open for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.slot.is_writable()
    }

    /// Its device, if it has one, for reads and writes past blocks (labels): each call is a sync read or write of the queue.
    #[must_use]
    pub fn queued(&self) -> Option<Queued<'_>> {
        Some(Queued::new(self.device()?, self))
    }

    /// Its queue.
    #[must_use]
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Makes a read or write of `device`, which is its own, when the queue says so. All but flushes and what [`LeafFlight`](crate::queue::LeafFlight)
    /// begins pass here.
    pub(crate) fn run<T>(
        &self,
        device: &Arc<dyn Device>,
        request: Request,
        call: impl FnOnce(&dyn Device) -> io::Result<T>,
    ) -> io::Result<T> {
        self.ended(device, request, self.queue.run(request, || call(&**device)))
    }

    /// Judges a read or write of `device` that has ended. A write that was taken by a device which has been lost meanwhile has failed.
    pub(crate) fn ended<T>(&self, device: &Arc<dyn Device>, request: Request, done: io::Result<T>) -> io::Result<T> {
        let Request { direction, offset, len, .. } = request;
        if direction == Direction::Write {
            // also when it failed: a part of it may be there
            self.unflushed.store(true, Ordering::SeqCst);
        }
        match done {
            Ok(_) if direction == Direction::Write && !self.slot.holds(device) => {
                Err(io::Error::from_raw_os_error(Errno::ENXIO.raw()))
            }
            Err(error) => {
                let verb = if direction == Direction::Write { "write" } else { "read" };
                self.failed(device, &error, format!("cannot {verb} {len} bytes at {offset:#x}: {error}"));
                Err(error)
            }
            done => done,
        }
    }

    /// Looks whether a device that failed is there at all.
    fn failed(&self, device: &Arc<dyn Device>, error: &io::Error, what: String) {
        if self.slot.holds(device) {
            self.slot.note_error(what);
        }
        if error.raw_os_error().is_some_and(|code| GONE.contains(&code)) {
            self.lose(device, Health::new(VdevState::Removed, VdevAux::None));
        } else {
            self.look(device);
        }
    }

    /// Looks whether its device is still there, as large as it was.
    pub(crate) fn look_at_device(&self) {
        if let Some(device) = self.device() {
            self.look(&device);
        }
    }

    fn look(&self, device: &Arc<dyn Device>) {
        if device.is_gone() {
            return self.lose(device, Health::new(VdevState::Removed, VdevAux::None));
        }
        let before = device.size();
        let Ok(size) = device.refresh_size() else { return };
        self.size.grew(before, size);
        if size < before {
            if self.slot.holds(device) {
                self.slot.note_error(format!("has shrunk from {before} to {size} bytes"));
            }
            self.lose(device, Health::new(VdevState::CantOpen, VdevAux::BadLabel));
        }
    }

    fn io<T>(
        &self,
        request: Request,
        failed: impl FnOnce(String, io::Error) -> Error,
        call: impl FnOnce(&dyn Device) -> io::Result<T>,
    ) -> Result<T, Error> {
        let device = self.device().ok_or(Error::NoDevice { leaf: self.guid() })?;
        self.run(&device, request, call).map_err(|source| failed(device.name(), source))
    }

    /// Reads from its device; `aggregated`, if that is for more than one who asked.
    pub(crate) fn read(&self, class: IoClass, offset: u64, buf: &mut [u8], aggregated: bool) -> Result<(), Error> {
        let len = buf.len() as u64;
        let request = Request { class, direction: Direction::Read, offset, len, aggregated };
        let failed = |device, source| Error::Io { device, offset, len, source };
        self.io(request, failed, |device| device.read_at(offset, buf))
    }

    /// Writes to its device.
    pub(crate) fn write(&self, class: IoClass, offset: u64, data: &[IoSlice<'_>]) -> Result<(), Error> {
        let len = data.iter().map(|piece| piece.len() as u64).sum();
        let request = Request { class, direction: Direction::Write, offset, len, aggregated: data.len() > 1 };
        let failed = |device, source| Error::Write { device, offset, len, source };
        self.io(request, failed, |device| device.write_vectored_at(offset, data))
    }

    /// Writes to its device, to where other machines see it at once.
    pub(crate) fn write_through(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let (class, len) = (IoClass::SyncWrite, data.len() as u64);
        let request = Request { class, direction: Direction::Write, offset, len, aggregated: false };
        let failed = |device, source| {
            // the system may tell so of what others wrote
            self.failed_flushes.fetch_add(1, Ordering::AcqRel);
            Error::Write { device, offset, len, source }
        };
        self.io(request, failed, |device| device.write_through_at(offset, data))
    }

    /// Brings to stable storage what was written. Any number of threads may write and flush.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let _alone = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(device) = self.device() else { return Ok(()) };
        if !self.unflushed.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let flushed = device.flush().inspect_err(|error| {
            self.unflushed.store(true, Ordering::SeqCst);
            self.failed(&device, error, format!("cannot flush: {error}"));
        });
        // a file that was unlinked is flushed as any other
        self.look(&device);
        let flushed = flushed.and_then(|()| {
            if self.slot.holds(&device) {
                return Ok(());
            }
            // what its successor has been given since is not flushed
            self.unflushed.store(true, Ordering::SeqCst);
            Err(io::Error::from_raw_os_error(Errno::ENXIO.raw()))
        });
        flushed.map_err(|source| {
            self.failed_flushes.fetch_add(1, Ordering::AcqRel);
            Error::Flush { device: device.name(), source }
        })
    }

    /// The error of a caller whose writes a failed flush of another one may have lost.
    pub(crate) fn failed_before(&self) -> Error {
        Error::Flush { device: self.name(), source: std::io::Error::other("an earlier flush failed") }
    }

    /// How many flushes have failed so far.
    pub(crate) fn failed_flushes(&self) -> u64 {
        self.failed_flushes.load(Ordering::Acquire)
    }

    /// Whether of so many flushes that failed some came after the last txg that ended.
    pub(crate) fn is_unsettled(&self, failed: u64) -> bool {
        failed != self.settled_flushes.load(Ordering::Acquire)
    }

    /// Whether one of so many flushes that failed may have lost what the txg wrote that ends now.
    pub(crate) fn is_suspect(&self, failed: u64) -> bool {
        failed != self.carried_flushes.load(Ordering::Acquire)
    }

    /// The txg that ends now has lost nothing by so many flushes that failed.
    pub(crate) fn accept_flushes(&self, failed: u64) {
        self.carried_flushes.store(failed, Ordering::Release);
    }

    /// A txg has ended in spite of so many flushes that failed. What its successor had written by then may be lost by those since the
    /// txg before.
    pub(crate) fn settle_flushes(&self, failed: u64) {
        let before = self.settled_flushes.swap(failed, Ordering::AcqRel);
        self.carried_flushes.store(before, Ordering::Release);
    }

    /// Whether the leaf missed the txg `birth` (OpenZFS: `vdev_dtl_contains(DTL_MISSING)`).
    #[must_use]
    pub fn misses(&self, birth: Txg) -> bool {
        self.dtl.contains(birth)
    }

    /// The txgs that it missed, ascending.
    #[must_use]
    pub fn dtl(&self) -> Vec<Range<u64>> {
        self.dtl.ranges()
    }

    /// Replaces the DTL with what the pool has written of it, or, if that is not `known`, with what must be taken for it.
    pub(crate) fn set_dtl(&self, ranges: Vec<Range<u64>>, known: bool) {
        self.dtl.set(ranges);
        self.dtl.set_dirty(!known);
    }

    /// Notes that it missed `txg`.
    pub(crate) fn miss(&self, txg: Txg) {
        self.dtl.add(txg);
    }

    /// The DTL, if it changed since this was last asked.
    pub(crate) fn take_dirty_dtl(&self) -> Option<Vec<Range<u64>>> {
        self.dtl.take_dirty().then(|| self.dtl())
    }

    /// Whether the DTL changed since it was last taken.
    pub(crate) fn is_dtl_dirty(&self) -> bool {
        self.dtl.is_dirty()
    }

    /// Whether it missed anything.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.dtl.is_any()
    }

    /// It has what it missed of these txgs.
    pub(crate) fn caught_up(&self, txgs: &Range<u64>) {
        self.dtl.remove(txgs);
    }
}
