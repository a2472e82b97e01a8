//! Devices for tests: another device, with something in front of it that counts, delays or fails its operations.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::device::{Device, DeviceKind, Discards, Way};

/// An operation of a device, with the bytes that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// A read.
    Read(Range<u64>),
    /// A write.
    Write(Range<u64>),
    /// A discard.
    Discard(Range<u64>),
    /// A flush.
    Flush,
}

impl Call {
    /// Returns whether it reads, writes or discards one of these bytes.
    #[must_use]
    pub fn meets(&self, range: &Range<u64>) -> bool {
        match self {
            Call::Read(own) | Call::Write(own) | Call::Discard(own) => own.start < range.end && range.start < own.end,
            Call::Flush => false,
        }
    }
}

type Pass = dyn Fn(&Call) -> io::Result<()> + Send + Sync;

/// A device with a function in front of it that each operation passes.
pub struct Tapped {
    device: Arc<dyn Device>,
    pass: Box<Pass>,
    in_threads: bool,
}

impl Tapped {
    /// Puts `pass` in front of `device`: it may take its time, and where it fails, so does the operation, which the device does not do then.
    pub fn new(device: Arc<dyn Device>, pass: impl Fn(&Call) -> io::Result<()> + Send + Sync + 'static) -> Tapped {
        Tapped { device, pass: Box::new(pass), in_threads: false }
    }

    /// The same, whose operations wait in threads where there are many, as those of a disk do.
    #[must_use]
    pub fn in_threads(self) -> Tapped {
        Tapped { in_threads: true, ..self }
    }
}

impl fmt::Debug for Tapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tapped").field(&self.device).finish()
    }
}

impl Device for Tapped {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (self.pass)(&Call::Read(bytes(offset, buf.len())))?;
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        (self.pass)(&Call::Write(bytes(offset, data.len())))?;
        self.device.write_at(offset, data)
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        let len: usize = data.iter().map(|piece| piece.len()).sum();
        (self.pass)(&Call::Write(bytes(offset, len)))?;
        self.device.write_vectored_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        (self.pass)(&Call::Flush)?;
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        (self.pass)(&Call::Discard(offset..offset.saturating_add(len)))?;
        self.device.discard(offset, len)
    }

    fn discards(&self) -> Discards {
        self.device.discards()
    }

    fn is_writable(&self) -> bool {
        self.device.is_writable()
    }

    fn way(&self, _: u64, _: usize) -> Way<'_> {
        if self.in_threads { Way::Threads } else { Way::Here }
    }

    fn kind(&self) -> DeviceKind {
        self.device.kind()
    }

    fn name(&self) -> String {
        self.device.name()
    }
}

fn bytes(offset: u64, len: usize) -> Range<u64> {
    offset..offset.saturating_add(len as u64)
}

/// A device in memory that can grow. As with a file, its size is the one before until somebody looks.
pub struct Growing {
    name: String,
    bytes: RwLock<Vec<u8>>,
    known: AtomicU64,
}

impl Growing {
    /// A device of `size` zeros.
    #[must_use]
    pub fn new(name: &str, size: u64) -> Growing {
        let bytes = RwLock::new(vec![0; usize::try_from(size).unwrap_or(0)]);
        Growing { name: name.to_owned(), bytes, known: AtomicU64::new(size) }
    }

    /// Gives it `size` bytes.
    pub fn grow(&self, size: u64) {
        self.bytes.write().unwrap_or_else(PoisonError::into_inner).resize(usize::try_from(size).unwrap_or(0), 0);
    }
}

impl fmt::Debug for Growing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.name, self.size())
    }
}

impl Device for Growing {
    fn size(&self) -> u64 {
        self.known.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let from = bytes.get(at..at.saturating_add(buf.len())).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(from);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let to = bytes.get_mut(at..at.saturating_add(data.len())).ok_or(io::ErrorKind::WriteZero)?;
        to.copy_from_slice(data);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn refresh_size(&self) -> io::Result<u64> {
        let size = self.bytes.read().unwrap_or_else(PoisonError::into_inner).len() as u64;
        self.known.store(size, Ordering::Release);
        Ok(size)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
