//! Tables that count references to blocks: dedup and clones.

use base::Txg;
use ondisk::BlkPtr;

/// The error of a table, in the pool's words.
pub type TableError = Box<dyn std::error::Error + Send + Sync>;

/// The result of looking up a block's content in a dedup table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupLookup {
    /// Stored in as many copies as wanted: the pointer looked up, with the addresses and physical birth of the existing
    /// block.
    Hit(BlkPtr),
    /// Not stored; the writer writes it and then [inserts](DedupTable::insert) it.
    Missing,
    /// Stored in fewer copies, or the table takes no new entry (quota): the block is written as an ordinary one.
    Ordinary,
}

/// The dedup tables of a pool, by checksum. Thread safe. OpenZFS: `ddt.c`.
///
/// A pointer identifies content by checksum, sizes, compression and whether it is encrypted
/// ([`DdtKey`](ondisk::ddt::DdtKey)).
pub trait DedupTable: Send + Sync {
    /// Loads the table's entry for this content into memory. Called from many threads, before [`DedupTable::find`].
    ///
    /// # Errors
    /// If the table cannot be read.
    fn load(&self, bp: &BlkPtr) -> Result<(), TableError>;

    /// Looks up content; changes nothing.
    ///
    /// # Errors
    /// If the table cannot be read.
    fn find(&self, txg: Txg, bp: &BlkPtr, copies: u8) -> Result<DedupLookup, TableError>;

    /// Adds a reference to the block that [`DedupTable::find`] found (the pointer is the one of [`DedupLookup::Hit`]).
    fn add_ref(&self, txg: Txg, bp: &BlkPtr);

    /// Adds new content, whose pointer now has its addresses, with one reference.
    fn insert(&self, txg: Txg, bp: &BlkPtr);

    /// Undoes one [`DedupTable::insert`] of this txg: nothing points there, and the caller frees its space.
    fn forget(&self, txg: Txg, bp: &BlkPtr);

    /// Drops a reference. With the last one, the table frees the space itself, in its sync. `false`: the table has no
    /// entry for this block (it was pruned), which is then an ordinary one.
    ///
    /// # Errors
    /// If the table cannot be read.
    fn release(&self, txg: Txg, bp: &BlkPtr) -> Result<bool, TableError>;
}

/// The table of cloned blocks. Thread safe. OpenZFS: `brt.c`.
pub trait CloneTable: Send + Sync {
    /// Adds a reference, once the txg's references are applied: a pointer to an existing block has been written in the
    /// sync of `txg`.
    fn add(&self, txg: Txg, bp: &BlkPtr);

    /// Drops a reference: `true` if there was one beyond the first, so that the block stays.
    ///
    /// # Errors
    /// If the table cannot be read.
    fn release(&self, txg: Txg, bp: &BlkPtr) -> Result<bool, TableError>;
}
