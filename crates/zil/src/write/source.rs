//! Where the log gets what was written, when it is time to log it.

use base::Txg;
use ondisk::BlkPtr;

/// Reads back what is to be logged (OpenZFS: `zil_get_data_t`). Called by who commits, without a place in a txg.
pub trait WriteSource: Send + Sync {
    /// Fills `buf` from byte `offset` of `object`.
    ///
    /// # Errors
    /// When it cannot be read; then who commits waits for the txg of the write.
    fn copy(&self, object: u64, generation: u64, offset: u64, buf: &mut [u8]) -> Result<Got, dmu::Error>;

    /// Writes the one block at byte `offset` of `object`, as it is in `txg`, to its place now, and gives its pointer.
    ///
    /// # Errors
    /// When it cannot be written; then who commits waits for `txg`.
    fn write_block(
        &self,
        object: u64,
        generation: u64,
        offset: u64,
        len: u64,
        txg: Txg,
    ) -> Result<BlockGot, dmu::Error>;
}

/// What became of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// The bytes are there.
    Data,
    /// The object is freed, or the number is another's now: the record is left out.
    Gone,
}

/// What became of a block.
#[derive(Clone, Debug)]
pub enum BlockGot {
    /// It is with the devices, not flushed; may be a hole.
    Block(BlkPtr),
    /// An older record points at it, and it has not changed since: only a larger size is logged (as WRITE2).
    Already,
    /// It cannot be done for this block: its data is to be copied.
    Copy,
    /// The object is freed, or the number is another's now: the record is left out.
    Gone,
}
