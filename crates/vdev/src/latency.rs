//! Slow devices, to try how work fares on disks, on networks, on object storage.
//!
//! A [`Latency`] is another device, each of whose reads, writes and flushes takes so many milliseconds more; it does so many of them at a time,
//! and the others wait for their turn. The tunables `vdev_latency_ms` and `vdev_latency_depth` make all devices that a scan opens such ones.

use std::io::{self, IoSlice};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use base::tunable;

use crate::Error;
use crate::device::{Device, DeviceKind, Discards, Way};

/// A device that takes its time.
#[derive(Debug)]
pub struct Latency {
    device: Arc<dyn Device>,
    each: Duration,
    /// How many more it can do now.
    free: Mutex<u64>,
    freed: Condvar,
}

impl Latency {
    /// `device`, with `ms` milliseconds more for each operation, of which it does `depth` at a time, at least one.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, ms: u64, depth: u64) -> Latency {
        Latency { device, each: Duration::from_millis(ms), free: Mutex::new(depth.max(1)), freed: Condvar::new() }
    }

    /// `device` as the tunables want it.
    #[must_use]
    pub fn as_tuned(device: Arc<dyn Device>) -> Arc<dyn Device> {
        match tunable::VDEV_LATENCY_MS.get() {
            0 => device,
            ms => Arc::new(Latency::new(device, ms, tunable::VDEV_LATENCY_DEPTH.get())),
        }
    }

    fn slowly<R>(&self, work: impl FnOnce(&dyn Device) -> R) -> R {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        drop(free);
        std::thread::sleep(self.each);
        let done = work(&*self.device);
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.freed.notify_one();
        done
    }
}

impl Device for Latency {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.slowly(|device| device.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.slowly(|device| device.write_at(offset, data))
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        self.slowly(|device| device.write_vectored_at(offset, data))
    }

    fn flush(&self) -> io::Result<()> {
        self.slowly(|device| device.flush())
    }

    fn write_through_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.slowly(|device| device.write_through_at(offset, data))
    }

    fn forget(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.forget(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.slowly(|device| device.discard(offset, len))
    }

    fn discard_securely(&self, offset: u64, len: u64) -> io::Result<()> {
        self.slowly(|device| device.discard_securely(offset, len))
    }

    fn discards(&self) -> Discards {
        self.device.discards()
    }

    fn refresh_size(&self) -> io::Result<u64> {
        self.device.refresh_size()
    }

    fn is_gone(&self) -> bool {
        self.device.is_gone()
    }

    fn reopen(&self) -> Result<Arc<dyn Device>, Error> {
        Ok(Latency::as_tuned(self.device.reopen()?))
    }

    fn way(&self, _: u64, _: usize) -> Way<'_> {
        Way::Threads
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
    use std::time::Instant;

    use super::*;
    use crate::device::MemoryDevice;

    #[test]
    fn each_takes_its_time_and_only_so_many_go_at_once() {
        let slow = Latency::new(Arc::new(MemoryDevice::new(vec![7; 4096])), 10, 2);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| slow.read_at(0, &mut [0; 512]).unwrap());
            }
        });
        // three rounds of two
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(30), "{took:?}");
        let mut byte = [0];
        slow.read_at(5, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        assert_eq!(slow.size(), 4096);
    }
}
