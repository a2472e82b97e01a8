//! Devices that count what they are asked for, as `zpool iostat` shows it (OpenZFS: `vdev_stat_t`, `vdev_stat_ex_t`).
//!
//! An I/O of a device is counted when it is done: blocks are merged before they get here, so that a few relaxed additions for each cost nothing.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::counter::Counter;

use crate::device::{Device, DeviceKind};

/// Powers of two of nanoseconds that are told apart (OpenZFS: `VDEV_L_HISTO_BUCKETS`).
pub const LATENCY_BUCKETS: usize = 37;
/// What takes longer is slow (OpenZFS: `zio_slow_io_ms`).
const SLOW: Duration = Duration::from_secs(30);

/// Another device, and what it was asked for.
#[derive(Debug)]
pub struct Counted {
    device: Arc<dyn Device>,
    counters: Arc<IoCounters>,
}

/// What a device was asked for; it may outlive the device.
#[derive(Debug, Default)]
pub struct IoCounters {
    read: Direction,
    write: Direction,
}

impl IoCounters {
    /// The reads and the writes until now.
    #[must_use]
    pub fn figures(&self) -> (IoFigures, IoFigures) {
        (self.read.figures(), self.write.figures())
    }
}

#[derive(Debug, Default)]
struct Direction {
    operations: Counter,
    bytes: Counter,
    slow: Counter,
    latency: Latencies,
}

#[derive(Debug)]
struct Latencies([Counter; LATENCY_BUCKETS]);

impl Default for Latencies {
    fn default() -> Self {
        Latencies(std::array::from_fn(|_| Counter::new()))
    }
}

/// What a device was asked for in one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IoFigures {
    /// Reads or writes.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that took more than half a minute.
    pub slow: u64,
    /// How many took from 2^n nanoseconds to twice that, for each n below [`LATENCY_BUCKETS`]; the last has all that took longer.
    pub latency: Vec<u64>,
}

impl IoFigures {
    /// These and `other` together.
    pub fn add(&mut self, other: &IoFigures) {
        self.operations = self.operations.saturating_add(other.operations);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.slow = self.slow.saturating_add(other.slow);
        self.latency.resize(self.latency.len().max(other.latency.len()), 0);
        self.latency.iter_mut().zip(&other.latency).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
    }

    /// What came since `before`.
    #[must_use]
    pub fn since(&self, before: &IoFigures) -> IoFigures {
        let earlier = before.latency.iter().copied().chain(std::iter::repeat(0));
        IoFigures {
            operations: self.operations.saturating_sub(before.operations),
            bytes: self.bytes.saturating_sub(before.bytes),
            slow: self.slow.saturating_sub(before.slow),
            latency: self.latency.iter().zip(earlier).map(|(n, before)| n.saturating_sub(before)).collect(),
        }
    }
}

impl Direction {
    fn count<R>(&self, bytes: usize, work: impl FnOnce() -> R) -> R {
        let begun = Instant::now();
        let done = work();
        let took = begun.elapsed();
        self.operations.add(1);
        self.bytes.add(bytes as u64);
        self.slow.add(u64::from(took > SLOW));
        let bucket = (took.as_nanos().max(1).ilog2() as usize).min(LATENCY_BUCKETS - 1);
        if let Some(counter) = self.latency.0.get(bucket) {
            counter.add(1);
        }
        done
    }

    fn figures(&self) -> IoFigures {
        IoFigures {
            operations: self.operations.get(),
            bytes: self.bytes.get(),
            slow: self.slow.get(),
            latency: self.latency.0.iter().map(Counter::get).collect(),
        }
    }
}

impl Counted {
    /// `device`, which has not been asked for anything yet.
    #[must_use]
    pub fn new(device: Arc<dyn Device>) -> Counted {
        Counted { device, counters: Arc::default() }
    }

    /// Reads until now.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.counters.read.operations.get()
    }

    /// Writes until now; one of several pieces is one.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.counters.write.operations.get()
    }

    /// All that it counts.
    #[must_use]
    pub fn counters(&self) -> &Arc<IoCounters> {
        &self.counters
    }
}

impl Device for Counted {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.counters.read.count(buf.len(), || self.device.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.counters.write.count(data.len(), || self.device.write_at(offset, data))
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes = data.iter().map(|piece| piece.len()).sum();
        self.counters.write.count(bytes, || self.device.write_vectored_at(offset, data))
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn write_through_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.counters.write.count(data.len(), || self.device.write_through_at(offset, data))
    }

    fn forget(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.forget(offset, len)
    }

    fn is_writable(&self) -> bool {
        self.device.is_writable()
    }

    fn kind(&self) -> DeviceKind {
        self.device.kind()
    }

    fn name(&self) -> String {
        self.device.name()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Latency;
    use crate::device::MemoryDevice;

    #[test]
    fn each_operation_counts_once_with_its_bytes_and_its_time() {
        let slow = Latency::new(Arc::new(MemoryDevice::writable(1 << 20)), 2, 1);
        let device = Counted::new(Arc::new(slow));
        device.read_at(0, &mut [0; 4096]).unwrap();
        let before = device.counters().figures().1;
        device.write_vectored_at(0, &[IoSlice::new(&[1; 512]), IoSlice::new(&[2; 1024])]).unwrap();
        device.write_at(0, &[3; 512]).unwrap();
        device.write_through_at(512, &[4; 512]).unwrap();
        let (read, write) = device.counters().figures();
        assert_eq!((read.operations, read.bytes, read.slow), (1, 4096, 0));
        assert_eq!((write.operations, write.bytes), (3, 2560));
        assert_eq!(write.since(&before), write);
        // 2 ms are more than 2^20 ns
        assert_eq!(read.latency.iter().skip(20).sum::<u64>(), 1);
        assert_eq!(read.latency.len(), LATENCY_BUCKETS);
        let mut sum = IoFigures::default();
        sum.add(&write);
        sum.add(&read);
        assert_eq!((sum.operations, sum.bytes, sum.latency.iter().sum::<u64>()), (4, 6656, 4));
    }
}
