//! The source of written data at the time when it is logged.

use base::{ObjectId, Txg};
use ondisk::BlkPtr;

/// Reads back the data that is to be logged (OpenZFS: `zil_get_data_t`). Called by a committing thread, which holds no
/// transaction.
pub trait WriteSource: Send + Sync {
    /// Fills `buf` from byte `offset` of `object`.
    ///
    /// # Errors
    /// If it cannot be read; the commit then waits for the txg of the write.
    fn copy(&self, object: ObjectId, generation: u64, offset: u64, buf: &mut [u8]) -> Result<Got, dmu::Error>;

    /// Writes the block at byte `offset` of `object`, as it is in `txg`, to its final location now, and returns its pointer.
    ///
    /// # Errors
    /// If it cannot be written; the commit then waits for `txg`.
    fn write_block(
        &self,
        object: ObjectId,
        generation: u64,
        offset: u64,
        len: u64,
        txg: Txg,
    ) -> Result<BlockGot, dmu::Error>;
}

/// The result of [`WriteSource::copy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// The buffer is filled.
    Data,
    /// The object is freed, or its number belongs to another object now: the record is skipped.
    Gone,
}

/// The result of [`WriteSource::write_block`].
#[derive(Clone, Debug)]
pub enum BlockGot {
    /// It is written but not flushed; may be a hole.
    Block(BlkPtr),
    /// An older record already points at it, and it has not changed since: only a larger size is logged (as WRITE2).
    Already,
    /// The block cannot be written indirectly: its data must be copied into the record.
    Copy,
    /// The object is freed, or its number belongs to another object now: the record is skipped.
    Gone,
}
