//! A directory of block devices, as regular files.
//!
//! # What it is
//! A [`DeviceDirectory`] shows what a [`Devices`] has as a tree: directories, and a regular file for each device, of its size. `losetup` makes a block device of such a file; what opens block devices by name mostly takes the file itself.
//! What is written goes to the device at once, and is on stable storage after `fsync`, or with `O_SYNC` and `O_DSYNC` when the write returns. `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_ZERO_RANGE` free a range, `SEEK_HOLE` and `SEEK_DATA` say what is stored.
//!
//! # Nothing is cached
//! Names and attributes are asked for each time, so that devices may come, go, change their names and sizes at any time. Reads and writes pass by the cache of the kernel (`FOPEN_DIRECT_IO`): a loop device has one of its own, and what others write to the
//! device is seen. Writes to a file run at once; it is for the device to lock ranges.
//!
//! # Numbers of files
//! A file is known by its [`Identity`]: under a new name it is the same, and what has taken its name is another. The kernel gets numbers for them, which count up and are forgotten with the file ([`Nodes`]).
//!
//! # What waits
//! What is below one name of the root is a pool, whose requests may wait long, and together: they are carried out by threads of their own, up to a bound, so that other pools are served meanwhile (`lanes`).
//!
//! # What a device file is not
//! A size is not changed by writing or truncating; a write beyond the end fails with ENOSPC, `ftruncate` to another size with EINVAL (so `dd` wants `conv=notrunc`). Owner and mode are those of the process, for it alone (0600; 0400 for what is only read).
//! They cannot be mapped as shared memory.
//!
//! # Use
//! A device is opened with the first `open` and closed with the last `close`, each file descriptor by itself. A loop device has its file open.

mod lanes;
mod mount;
mod nodes;
mod requests;
mod tree;

use std::sync::Arc;

use base::Errno;

pub use mount::DeviceDirectory;

/// A tree of block devices. Its methods are called by many threads at once. Paths have no slash in front, and none at the end; the empty one is the root.
pub trait Devices: Send + Sync {
    /// Returns what is at a path.
    ///
    /// # Errors
    /// ENOENT if there is nothing.
    fn find(&self, path: &str) -> Result<Found, Errno>;

    /// Returns what is in a directory, by name. For the root it waits for nothing.
    ///
    /// # Errors
    /// ENOENT if it is gone.
    fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno>;

    /// Opens the device at a path, which is in use until it is dropped.
    ///
    /// # Errors
    /// ENOENT if there is none; ESTALE if it is another one than `identity` says; EBUSY if others use it in a way that does not allow it.
    fn open(&self, path: &str, identity: Identity) -> Result<Arc<dyn Device>, Errno>;
}

/// What tells a device or directory from all others, whatever its name is by now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identity(pub [u64; 3]);

/// What is at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Which it is.
    pub identity: Identity,
    /// What it is.
    pub kind: Kind,
}

/// What a directory has by a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A directory.
    Directory,
    /// A device.
    Device,
}

/// What there can be at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A device.
    Device {
        /// Its size in bytes.
        size: u64,
        /// The size of its blocks in bytes.
        block_size: u64,
        /// It cannot be written.
        read_only: bool,
    },
}

/// A block device that is open. Its methods are called by many threads at once.
pub trait Device: Send + Sync {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Returns the size in bytes of the blocks that are read and written as a whole.
    fn block_size(&self) -> u64;

    /// Returns whether nothing can be written.
    fn is_read_only(&self) -> bool;

    /// Reads from byte `offset`; returns the number of bytes, less than `buf` has only at the end.
    ///
    /// # Errors
    /// When a part of it cannot be read.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Errno>;

    /// Writes at byte `offset`; with `durable` it returns once the data is on stable storage.
    ///
    /// # Errors
    /// When it cannot be written; a part of it may have been.
    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), Errno>;

    /// Makes a range read as zeros, and frees what is stored for it.
    ///
    /// # Errors
    /// When it cannot be written.
    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno>;

    /// Returns once everything that was written before, by any thread, is on stable storage.
    ///
    /// # Errors
    /// When that is not so.
    fn flush(&self) -> Result<(), Errno>;

    /// Returns the next byte at or after `from` that is stored, if it `is_data` that is looked for, or the next that is not; `None` if there is none before the end.
    ///
    /// # Errors
    /// When that cannot be read.
    fn seek(&self, from: u64, is_data: bool) -> Result<Option<u64>, Errno>;
}
