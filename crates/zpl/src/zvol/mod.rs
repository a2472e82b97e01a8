//! A volume: object 1 holds the data, object 2 the size.

pub(crate) mod extents;
pub(crate) mod replay;
pub(crate) mod volume;

use std::ops::Range;
use std::sync::Arc;

use base::ObjectId;
use dmu::{Object, Objset, Zap};
use ondisk::ObjsetType;

use crate::{Error, Extent, Reader};

/// A volume or a snapshot of one, for reading (OpenZFS: `zvol_state_t`).
pub struct Zvol {
    data: Object,
    size: u64,
}

impl Zvol {
    /// Opens a volume or a snapshot of one. An encrypted one needs its key loaded.
    ///
    /// # Errors
    /// If the dataset is not a volume, or its objects are unreadable.
    pub fn open(dataset: &pool::Dataset) -> Result<Zvol, Error> {
        Zvol::from_objset(&dataset.objset()?)
    }

    /// Opens the volume in `objset`.
    ///
    /// # Errors
    /// As [`Zvol::open`].
    pub fn from_objset(objset: &Arc<Objset>) -> Result<Zvol, Error> {
        if objset.phys().os_type != ObjsetType::Zvol {
            return Err(Error::WrongType { objset: objset.id(), wanted: "volume" });
        }
        let properties = Zap::open(objset.object(ObjectId::ZVOL_PROPERTIES)?)?;
        let size =
            properties.lookup_u64("size")?.ok_or(Error::Missing { object: ObjectId::ZVOL_PROPERTIES, what: "size" })?;
        Ok(Zvol { data: objset.object(ObjectId::ZVOL_DATA)?, size })
    }

    /// Returns the size in bytes (property `volsize`).
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the block size in bytes (property `volblocksize`).
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.data.block_size()
    }

    /// Returns the object that holds the data.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.data
    }

    /// Reads from `offset`; returns the number of bytes, less than requested only at the end of the volume.
    ///
    /// # Errors
    /// When a block cannot be read.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let left = self.size.saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        self.data.read(offset, buf.get_mut(..len).unwrap_or_default())?;
        Ok(len)
    }

    /// Returns a sequential reader of the whole volume, with read-ahead.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(self.data.clone(), 0..self.size)
    }

    /// Returns the next byte at or after `offset` that was ever written; `None` if only holes follow.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        Ok(self.data.next_data(offset)?.filter(|at| *at < self.size))
    }

    /// Returns the data and holes of a range that is within the volume, at most `max` from its beginning on.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    pub fn extents(&self, range: Range<u64>, max: usize) -> Result<Vec<Extent>, Error> {
        extents::extents(&self.data, range, max)
    }

    /// Returns the next byte of a hole at or after `offset`; the end of the volume counts as a hole.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    pub fn next_hole(&self, offset: u64) -> Result<u64, Error> {
        Ok(self.data.next_hole(offset)?.min(self.size))
    }
}
