//! Devices that count what they are asked for.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::{Device, DeviceKind};

/// Another device, and how many reads and writes it had.
#[derive(Debug)]
pub struct Counted {
    device: Arc<dyn Device>,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Counted {
    /// `device`, which has not been asked for anything yet.
    #[must_use]
    pub fn new(device: Arc<dyn Device>) -> Counted {
        Counted { device, reads: AtomicU64::new(0), writes: AtomicU64::new(0) }
    }

    /// Reads until now.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Writes until now; one of several pieces is one.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }
}

impl Device for Counted {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.device.write_at(offset, data)
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.device.write_vectored_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
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
