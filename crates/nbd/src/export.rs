//! What is served: block devices, by their names.

use std::sync::Arc;

use base::Errno;

use crate::proto::error;

/// Says that a request is of no use any more: nobody can be told, or its time is over. What takes long asks between its pieces, and fails then.
pub type Stopped<'a> = &'a (dyn Fn() -> bool + 'a);

/// A block device. Its methods are called by many threads at once; ranges are within its size, unless that has changed.
pub trait Export: Send + Sync {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Returns the size of the blocks that are read and written as a whole: a power of two.
    fn block_size(&self) -> u64;

    /// Returns whether nothing can be written.
    fn is_read_only(&self) -> bool;

    /// Fills `buf` from byte `offset`.
    ///
    /// # Errors
    /// When a part of it cannot be read.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Failed>;

    /// Writes at byte `offset`; with `durable` it returns once the data is on stable storage.
    ///
    /// # Errors
    /// When it cannot be written; a part of it may have been.
    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), Failed>;

    /// Makes a range read as zeros; `durable` as in [`Export::write`].
    ///
    /// # Errors
    /// ENOTSUP for [`Zero::fast`] that would take as long as a write; when it was `stopped`; as [`Export::write`].
    fn zero(&self, offset: u64, len: u64, how: Zero, durable: bool, stopped: Stopped<'_>) -> Result<(), Failed>;

    /// Frees a range, whose contents are not needed any more; `durable` as in [`Export::write`].
    ///
    /// # Errors
    /// When it was `stopped`; as [`Export::write`].
    fn trim(&self, offset: u64, len: u64, durable: bool, stopped: Stopped<'_>) -> Result<(), Failed>;

    /// Returns once everything that was written before, by any thread, is on stable storage.
    ///
    /// # Errors
    /// When that is not so.
    fn flush(&self) -> Result<(), Failed>;

    /// Returns the data and holes of a range of at least one byte, at most `max` from its beginning on: at least one, without gaps, none of them empty. They may end before the range does,
    /// if all of it would take long.
    ///
    /// # Errors
    /// When that cannot be read, or it was `stopped`.
    fn extents(&self, offset: u64, len: u64, max: usize, stopped: Stopped<'_>) -> Result<Vec<Extent>, Failed>;

    /// Reads a range ahead, as far as that is of use.
    ///
    /// # Errors
    /// When a part of it cannot be read, or it was `stopped`.
    fn cache(&self, offset: u64, len: u64, stopped: Stopped<'_>) -> Result<(), Failed>;
}

/// How a range is to become zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Zero {
    /// It may become a hole.
    pub hole: bool,
    /// It is refused if it would take as long as a write.
    pub fast: bool,
}

/// A part of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Nothing is stored, and it reads as zeros.
    pub is_hole: bool,
}

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why}")]
pub struct Failed {
    /// The error number.
    pub errno: Errno,
    /// The message for a person.
    pub why: String,
}

impl Failed {
    /// The failure of a request that was stopped.
    #[must_use]
    pub fn stopped() -> Failed {
        Failed { errno: Errno::EINTR, why: "the request was stopped".to_owned() }
    }

    /// Returns the number that the protocol has for it.
    pub(crate) fn number(&self) -> u32 {
        match self.errno {
            Errno::EPERM | Errno::EACCES | Errno::EROFS => error::EPERM,
            Errno::ENOMEM => error::ENOMEM,
            Errno::EINVAL | Errno::ENXIO => error::EINVAL,
            Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => error::ENOSPC,
            Errno::ENOTSUP => error::ENOTSUP,
            _ => error::EIO,
        }
    }
}

/// An export with its name.
#[derive(Clone)]
pub struct Named {
    /// The name that clients ask for.
    pub name: String,
    /// A line about it for a person.
    pub description: String,
    /// The export.
    pub export: Arc<dyn Export>,
}

/// What a client is told of an export that it has not chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The name that clients ask for.
    pub name: String,
    /// A line about it for a person.
    pub description: String,
}

/// The exports that a server has. They may come and go.
pub trait Exports: Send + Sync {
    /// Returns what there is now.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn list(&self) -> Result<Vec<Listed>, Failed>;

    /// Returns the export of this name, which is in use until that is dropped; no name stands for the default one. `None` if there is none. It is called for each connection; what it returns for one name may be several, if they are of one device: a flush
    /// of one covers what the others have taken.
    ///
    /// # Errors
    /// When it cannot be used.
    fn find(&self, name: &str) -> Result<Option<Named>, Failed>;
}

/// Exports that stay. The first is the default one.
impl Exports for Vec<Named> {
    fn list(&self) -> Result<Vec<Listed>, Failed> {
        let listed = |named: &Named| Listed { name: named.name.clone(), description: named.description.clone() };
        Ok(self.iter().map(listed).collect())
    }

    fn find(&self, name: &str) -> Result<Option<Named>, Failed> {
        let found = if name.is_empty() { self.first() } else { self.iter().find(|named| named.name == name) };
        Ok(found.cloned())
    }
}
