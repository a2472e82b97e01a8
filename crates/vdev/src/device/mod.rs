//! The store of a leaf's bytes: a file, a block device, memory.
//!
//! [`open`] is the one way to a device by name. A name is a path, or `memory:` and a word for a device that lives in this process.
//!
//! # How the system is asked
//! The tunable `vdev_io` says how files and block devices are read and written. Past the page cache (`O_DIRECT`, [`Direct`]) the system copies nothing and
//! keeps nothing: what is worth keeping is in the ARC. A caller with one read or write makes it and waits. One with many hands them to a [`Flight`], which has
//! many of them under way: in a ring (`io_uring`), or where that is forbidden in threads. Through the cache, each is made at once: the
//! system reads ahead and writes later by itself.
//!
//! `auto` goes past the cache wherever the file system has a disk below, through a ring if there is one. Only what is read one by one from a
//! device that was opened for reading goes through the cache: a command that reads a pool's metadata starts with an ARC that is empty.

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use base::tunable::VDEV_IO;

use crate::{Error, Latency};

mod buffer;
mod direct;
mod file;
mod flight;
mod memory;
mod raw;
mod threads;

pub use buffer::Buffer;
pub use direct::Direct;
pub use file::{FileDevice, lock_holder};
pub(crate) use flight::{Flight, Landed, Op};
pub use memory::MemoryDevice;

/// The purpose for which a device is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Read,
    /// Reading and writing; no other writer has it meanwhile.
    Write,
    /// The same, of a new device of so many bytes that is made under a name that must be free.
    Create(u64),
}

/// The values of `vdev_io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Auto,
    Uring,
    Threads,
    Buffered,
}

impl Mode {
    fn tuned() -> Mode {
        match VDEV_IO.get() {
            1 => Mode::Uring,
            2 => Mode::Threads,
            3 => Mode::Buffered,
            _ => Mode::Auto,
        }
    }
}

/// How a device makes one of many operations, so that others are made meanwhile.
#[derive(Debug)]
pub enum Way<'a> {
    /// At once, in the thread that asks: it takes no time to speak of.
    Here,
    /// In another thread, which waits for it.
    Threads,
    /// The kernel makes it, past the page cache.
    Ring(&'a Arc<Direct>),
}

/// Opens the device of that name, which is as slow as the tunables want it.
///
/// # Errors
/// [`Error::Open`]; [`Error::Busy`] if another writer has it.
pub fn open(name: &Path, access: Access) -> Result<Arc<dyn Device>, Error> {
    let device: Arc<dyn Device> = match memory::word(name) {
        Some(word) => Arc::new(MemoryDevice::open(word, access)?),
        None => Arc::new(FileDevice::open(name, access)?),
    };
    Ok(Latency::as_tuned(device))
}

/// Whether there is a device of that name, of any sort.
#[must_use]
pub fn exists(name: &Path) -> bool {
    memory::word(name).map_or_else(|| name.exists(), memory::exists)
}

/// Whether another writer has the device.
#[must_use]
pub fn is_busy(name: &Path) -> bool {
    matches!(open(name, Access::Write), Err(Error::Busy { .. }))
}

/// Removes a device that [`open`] made.
///
/// # Errors
/// The system's error.
pub fn remove(name: &Path) -> io::Result<()> {
    memory::word(name).map_or_else(|| std::fs::remove_file(name), memory::remove)
}

/// The facts about a device that a new vdev has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceKind {
    /// A block device (OpenZFS: vdev type `disk`), else a file.
    pub is_block: bool,
    /// Base-2 logarithm of the smallest I/O it does.
    pub logical_ashift: u64,
    /// Base-2 logarithm of the smallest I/O it does well.
    pub physical_ashift: u64,
}

impl DeviceKind {
    /// A file: OpenZFS asks no file for its sectors (`vdev_file_logical_ashift`, `vdev_file_physical_ashift`).
    pub const FILE: DeviceKind = DeviceKind { is_block: false, logical_ashift: 9, physical_ashift: 9 };
}

/// The ways in which a device discards (OpenZFS: `vdev_has_trim`, `vdev_has_securetrim`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Discards {
    /// As [`Device::discard`] does.
    pub plainly: bool,
    /// As [`Device::discard_securely`] does.
    pub securely: bool,
}

/// A leaf's store: a file, a block device, memory.
///
/// Neither reading nor writing needs exclusive access: one device serves any number of threads.
pub trait Device: Send + Sync + Debug {
    /// Bytes of the device.
    fn size(&self) -> u64;

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// # Errors
    /// If not every byte could be read; `buf` then holds nothing of use. A range that ends beyond [`Device::size`] is
    /// [`io::ErrorKind::UnexpectedEof`].
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` from `offset` on. It is on stable storage only after [`Device::flush`].
    ///
    /// # Errors
    /// If not every byte could be written; some may have been. A device that is not open for writing refuses.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let _ = (offset, data);
        Err(read_only())
    }

    /// Writes the pieces of `data`, one behind the other, from `offset` on: the same as writing each, in as few calls of the system as
    /// can be.
    ///
    /// # Errors
    /// As [`Device::write_at`].
    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        let mut at = offset;
        for piece in data {
            self.write_at(at, piece)?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    /// Returns when all that was written is on stable storage.
    ///
    /// # Errors
    /// The system's error.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Writes as [`Device::write_at`] does, and returns when that is on stable storage, where another machine sees it; of what else was
    /// written nothing is known.
    ///
    /// # Errors
    /// As [`Device::write_at`] and [`Device::flush`].
    fn write_through_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_at(offset, data)?;
        self.flush()
    }

    /// Forgets what this machine keeps of a range in memory, so that the next read tells what another one has written there.
    ///
    /// # Errors
    /// The system's error.
    fn forget(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// Tells the device that the bytes of a range are of no use any more. They are read as anything until they are written again.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if the device has no use for that; what the system says.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// As [`Device::discard`], and nobody can get at the bytes any more (OpenZFS: `ZIO_TRIM_SECURE`).
    ///
    /// # Errors
    /// As [`Device::discard`].
    fn discard_securely(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The ways in which it discards, if it is open for writing.
    fn discards(&self) -> Discards {
        Discards::default()
    }

    /// Asks the system for the size of the device, which may have changed. From now on [`Device::size`] is that.
    ///
    /// # Errors
    /// The system's error.
    fn refresh_size(&self) -> io::Result<u64> {
        Ok(self.size())
    }

    /// Whether the device is not there any more: its name leads to nothing, or to another one, or the system has lost the disk. Reads and writes
    /// may still work: of a file that lost its name.
    fn is_gone(&self) -> bool {
        false
    }

    /// Opens what is under the device's name now, for the same purpose: the device itself, if it is still there, else its successor. Either
    /// may be dropped before the other.
    ///
    /// # Errors
    /// As [`open`]; [`Error::Open`] with [`io::ErrorKind::Unsupported`] where a device cannot be found by its name.
    fn reopen(&self) -> Result<Arc<dyn Device>, Error> {
        Err(Error::Open { path: self.name(), source: io::ErrorKind::Unsupported.into() })
    }

    /// Whether [`Device::write_at`] can work at all.
    fn is_writable(&self) -> bool {
        false
    }

    /// How it makes an operation of these bytes that is one of many.
    fn way(&self, offset: u64, len: usize) -> Way<'_> {
        let _ = (offset, len);
        Way::Here
    }

    /// The sort of device.
    fn kind(&self) -> DeviceKind {
        DeviceKind::FILE
    }

    /// The device's name in messages: its path.
    fn name(&self) -> String;
}

/// Refuses a range that does not lie within `size` bytes.
fn within(size: u64, offset: u64, len: usize) -> io::Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= size => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the device")),
    }
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "not open for writing")
}
