//! A leaf: one device of a pool, as far as it is there.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use base::{Guid, Txg};

use crate::Error;
use crate::config::VdevConfig;
use crate::device::Device;
use crate::errors::ErrorCounters;
use crate::queue::{Direction, IoClass, Queue, Queued, Request};

/// A leaf vdev (OpenZFS: a `vdev_t` of type disk or file).
#[derive(Debug)]
pub struct Leaf {
    pub(crate) guid: Guid,
    pub(crate) index: usize,
    pub(crate) config: VdevConfig,
    pub(crate) device: Option<Arc<dyn Device>>,
    pub(crate) errors: Arc<ErrorCounters>,
    pub(crate) queue: Arc<Queue>,
    /// It was given up since the pool was opened.
    faulted: AtomicBool,
    /// Errors of writing that were judged, and repairs that could not be written.
    judged: AtomicU64,
    unhealed: AtomicU64,
    /// Whether something was written that may not be on stable storage.
    unflushed: AtomicBool,
    /// Flushes that failed, of any reason, and those of them that a txg is known to have survived. The system tells only once of what it could not
    /// bring to stable storage: whoever is told, what others have written may be lost.
    failed_flushes: AtomicU64,
    settled_flushes: AtomicU64,
    /// Held over a flush: who comes meanwhile has perhaps written what it brings to stable storage, and waits.
    flushing: Mutex<()>,
    dtl: Dtl,
}

impl Leaf {
    pub(crate) fn new(index: usize, config: &VdevConfig, device: Option<Arc<dyn Device>>) -> Leaf {
        let mut own = config.clone();
        own.raw = nvlist::NvList::new();
        Leaf {
            guid: config.guid,
            index,
            config: own,
            device,
            errors: Arc::default(),
            queue: Arc::default(),
            faulted: AtomicBool::new(false),
            judged: AtomicU64::new(0),
            unhealed: AtomicU64::new(0),
            unflushed: AtomicBool::new(false),
            failed_flushes: AtomicU64::new(0),
            settled_flushes: AtomicU64::new(0),
            flushing: Mutex::new(()),
            dtl: Dtl::default(),
        }
    }

    /// Its identity.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.guid
    }

    /// Its place among all leaves of the pool: a small number, for tables per leaf.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its device, if it was found.
    #[must_use]
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        self.device.as_ref()
    }

    /// The path in its configuration: a hint of where the device was last seen.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.config.path.as_deref()
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> String {
        match (&self.device, &self.config.path) {
            (Some(device), _) => device.name(),
            (None, Some(path)) => path.clone(),
            (None, None) => self.guid.to_string(),
        }
    }

    /// Whether its device is there and may be used.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.device.is_some() && !self.is_out_of_use()
    }

    /// Whether it was taken out of use, by the configuration or since the pool was opened: its bytes may be old or wrong.
    pub(crate) fn is_out_of_use(&self) -> bool {
        self.config.is_out_of_use() || self.is_given_up()
    }

    /// Whether it was given up since the pool was opened.
    pub(crate) fn is_given_up(&self) -> bool {
        self.faulted.load(Ordering::Acquire)
    }

    /// From now on it is neither written nor trusted.
    pub(crate) fn give_up(&self) {
        self.faulted.store(true, Ordering::Release);
    }

    /// Whether writes have failed since this was last asked, and how many in all.
    pub(crate) fn new_write_errors(&self) -> Option<u64> {
        let now = self.errors.write.get();
        (self.judged.swap(now, Ordering::AcqRel) != now).then_some(now)
    }

    /// Whether writes have failed that nobody has judged.
    pub(crate) fn has_new_write_errors(&self) -> bool {
        self.judged.load(Ordering::Acquire) != self.errors.write.get()
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
        self.is_usable() && self.device.as_ref().is_some_and(|device| device.is_writable())
    }

    /// Its device, if it was found, as those see it who read and write past blocks (labels): each call is a sync read or write of the queue.
    #[must_use]
    pub fn queued(&self) -> Option<Queued<'_>> {
        Some(Queued::new(self.device.as_deref()?, &self.queue))
    }

    /// Its queue.
    #[must_use]
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Makes a read or write of its device when the queue says so. All but flushes pass here.
    fn io<T>(
        &self,
        request: Request,
        failed: impl FnOnce(String, std::io::Error) -> Error,
        call: impl FnOnce(&dyn Device) -> std::io::Result<T>,
    ) -> Result<T, Error> {
        let device = self.device.as_deref().ok_or(Error::NoDevice { leaf: self.guid })?;
        self.queue.run(request, || call(device)).map_err(|source| failed(device.name(), source))
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
        let written = self.io(request, failed, |device| device.write_vectored_at(offset, data));
        // also when it failed: a part of it may be there
        self.wrote();
        written
    }

    /// Notes that something was written past [`Leaf::write`].
    pub(crate) fn wrote(&self) {
        self.unflushed.store(true, Ordering::Release);
    }

    /// Writes to its device, to where other machines see it at once.
    pub(crate) fn write_through(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let (class, len) = (IoClass::SyncWrite, data.len() as u64);
        let request = Request { class, direction: Direction::Write, offset, len, aggregated: false };
        let failed = |device, source| {
            self.wrote();
            // the system may tell so of what others wrote
            self.failed_flushes.fetch_add(1, Ordering::AcqRel);
            Error::Write { device, offset, len, source }
        };
        self.io(request, failed, |device| device.write_through_at(offset, data))
    }

    /// Brings to stable storage what was written. Any number of threads may write and flush.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let Some(device) = &self.device else { return Ok(()) };
        let _alone = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.unflushed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        device.flush().map_err(|source| {
            self.wrote();
            self.failed_flushes.fetch_add(1, Ordering::AcqRel);
            Error::Flush { device: device.name(), source }
        })
    }

    /// What to say where a flush failed for somebody else.
    pub(crate) fn failed_before(&self) -> Error {
        Error::Flush { device: self.name(), source: std::io::Error::other("an earlier flush failed") }
    }

    /// How many flushes have failed so far.
    pub(crate) fn failed_flushes(&self) -> u64 {
        self.failed_flushes.load(Ordering::Acquire)
    }

    /// Whether of so many flushes that failed some came after the last txg that was brought to its end.
    pub(crate) fn is_unsettled(&self, failed: u64) -> bool {
        failed != self.settled_flushes.load(Ordering::Acquire)
    }

    /// A txg has ended in spite of so many flushes that failed.
    pub(crate) fn settle_flushes(&self, failed: u64) {
        self.settled_flushes.store(failed, Ordering::Release);
    }

    /// Whether the leaf missed the txg `birth` (OpenZFS: `vdev_dtl_contains(DTL_MISSING)`).
    #[must_use]
    pub fn misses(&self, birth: Txg) -> bool {
        self.dtl.contains(birth)
    }

    /// The txgs that it missed, ascending.
    #[must_use]
    pub fn dtl(&self) -> Vec<Range<u64>> {
        self.dtl.ranges.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the DTL with what the pool has written of it, or, if that is not `known`, with what must be taken for it.
    pub(crate) fn set_dtl(&self, ranges: Vec<Range<u64>>, known: bool) {
        self.dtl.set(ranges);
        self.dtl.dirty.store(!known, Ordering::Release);
    }

    /// Notes that it missed `txg`.
    pub(crate) fn miss(&self, txg: Txg) {
        self.dtl.add(txg);
    }

    /// The DTL, if it changed since this was last asked.
    pub(crate) fn take_dirty_dtl(&self) -> Option<Vec<Range<u64>>> {
        self.dtl.dirty.swap(false, Ordering::AcqRel).then(|| self.dtl())
    }

    /// Whether the DTL changed since it was last taken.
    pub(crate) fn is_dtl_dirty(&self) -> bool {
        self.dtl.dirty.load(Ordering::Acquire)
    }

    /// Whether it missed anything.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.dtl.any.load(Ordering::Acquire)
    }

    /// It has what it missed of these txgs.
    pub(crate) fn caught_up(&self, txgs: &Range<u64>) {
        self.dtl.remove(txgs);
    }
}

/// The txgs that a leaf missed (its dirty time log). Most leaves have none, and asking costs them one load.
#[derive(Debug, Default)]
struct Dtl {
    any: AtomicBool,
    /// Whether it grew by itself, and nobody has taken notice.
    dirty: AtomicBool,
    ranges: RwLock<Vec<Range<u64>>>,
}

impl Dtl {
    fn set(&self, mut ranges: Vec<Range<u64>>) {
        ranges.retain(|r| r.start < r.end);
        ranges.sort_by_key(|r| r.start);
        ranges.dedup_by(|next, kept| {
            let joins = next.start <= kept.end;
            if joins {
                kept.end = kept.end.max(next.end);
            }
            joins
        });
        let any = !ranges.is_empty();
        *self.ranges.write().unwrap_or_else(PoisonError::into_inner) = ranges;
        self.any.store(any, Ordering::Release);
    }

    fn add(&self, txg: Txg) {
        if self.contains(txg) || txg.0 == u64::MAX {
            return;
        }
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        match ranges.last_mut() {
            Some(last) if last.end == txg.0 => last.end = txg.0 + 1,
            Some(last) if last.end > txg.0 => {
                let mut all = std::mem::take(&mut *ranges);
                drop(ranges);
                all.push(txg.0..txg.0 + 1);
                self.set(all);
                self.dirty.store(true, Ordering::Release);
                return;
            }
            _ => ranges.push(txg.0..txg.0 + 1),
        }
        drop(ranges);
        self.any.store(true, Ordering::Release);
        self.dirty.store(true, Ordering::Release);
    }

    fn remove(&self, gone: &Range<u64>) {
        let mut left = Vec::new();
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        for range in ranges.iter() {
            left.push(range.start..range.end.min(gone.start));
            left.push(range.start.max(gone.end)..range.end);
        }
        left.retain(|range| range.start < range.end);
        self.any.store(!left.is_empty(), Ordering::Release);
        *ranges = left;
        drop(ranges);
        self.dirty.store(true, Ordering::Release);
    }

    fn contains(&self, txg: Txg) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let after = ranges.partition_point(|r| r.start <= txg.0);
        after.checked_sub(1).and_then(|n| ranges.get(n)).is_some_and(|r| txg.0 < r.end)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_dtl_is_sorted_and_merged() {
        let dtl = Dtl::default();
        assert!(!dtl.contains(Txg(5)));
        dtl.set(vec![20..30, 5..8, 7..12, 12..13, 40..40]);
        let missed: Vec<u64> = (0..50).filter(|t| dtl.contains(Txg(*t))).collect();
        assert_eq!(missed, (5..13).chain(20..30).collect::<Vec<_>>());
        dtl.set(Vec::new());
        assert!(!dtl.contains(Txg(25)));
        assert!(!dtl.dirty.load(Ordering::Relaxed));
        for txg in [7, 8, 9, 8, 20, 3] {
            dtl.add(Txg(txg));
        }
        assert_eq!(*dtl.ranges.read().unwrap(), [3..4, 7..10, 20..21]);
        assert!(dtl.dirty.load(Ordering::Relaxed) && dtl.contains(Txg(20)));
        dtl.remove(&(8..9));
        assert_eq!(*dtl.ranges.read().unwrap(), [3..4, 7..8, 9..10, 20..21]);
        dtl.remove(&(0..20));
        assert!(
            dtl.ranges.read().unwrap().as_slice() == std::slice::from_ref(&(20..21))
                && dtl.contains(Txg(20))
                && !dtl.contains(Txg(9))
        );
        dtl.remove(&(20..30));
        assert!(!dtl.contains(Txg(20)) && !dtl.any.load(Ordering::Relaxed));
    }
}
