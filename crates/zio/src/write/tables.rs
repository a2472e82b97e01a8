//! Tables that count the references of blocks: dedup, clones.

use base::Txg;
use ondisk::BlkPtr;

/// What went wrong in a table: the pool's own words.
pub type TableError = Box<dyn std::error::Error + Send + Sync>;

/// What a dedup table knows of a block's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It is stored as often as wanted: the pointer that was asked for, with the addresses and physical birth of what is there.
    Hit(BlkPtr),
    /// It is not there; the writer shall write it and then [insert](DedupTable::insert) it.
    Missing,
    /// It is there in fewer copies, or the table takes no new entry (quota): an ordinary block is to be written.
    Ordinary,
}

/// The dedup tables of a pool, by checksum. Thread safe. OpenZFS: `ddt.c`.
///
/// A pointer identifies content by checksum, sizes, compression and whether it is encrypted
/// ([`DdtKey`](ondisk::ddt::DdtKey)).
pub trait DedupTable: Send + Sync {
    /// Brings what the table says of this content into memory. Called from many threads, before [`DedupTable::find`].
    ///
    /// # Errors
    /// If the table cannot be read.
    fn load(&self, bp: &BlkPtr) -> Result<(), TableError>;

    /// Looks for content; changes nothing.
    ///
    /// # Errors
    /// If the table cannot be read.
    fn find(&self, txg: Txg, bp: &BlkPtr, copies: u8) -> Result<Found, TableError>;

    /// One reference more to what [`DedupTable::find`] found (the pointer is the one of [`Found::Hit`]).
    fn add_ref(&self, txg: Txg, bp: &BlkPtr);

    /// Takes in new content, whose pointer now has its addresses, with one reference.
    fn insert(&self, txg: Txg, bp: &BlkPtr);

    /// Undoes one [`DedupTable::insert`] of this txg: nothing points there, and its space is given back by the caller.
    fn forget(&self, txg: Txg, bp: &BlkPtr);

    /// One reference less. When the last one goes, the table frees the space itself, in its sync. `false`: it knows nothing of this block
    /// (its entry was pruned), which is then an ordinary one.
    ///
    /// # Errors
    /// If the table cannot be read.
    fn release(&self, txg: Txg, bp: &BlkPtr) -> Result<bool, TableError>;
}

/// The table of cloned blocks. Thread safe. OpenZFS: `brt.c`.
pub trait CloneTable: Send + Sync {
    /// A pointer to a block that is there already has been written in the sync of `txg`: one reference more, once the txg's are applied.
    fn add(&self, txg: Txg, bp: &BlkPtr);

    /// One reference less: `true` if there was one beyond the first, so that the block stays.
    ///
    /// # Errors
    /// If the table cannot be read.
    fn release(&self, txg: Txg, bp: &BlkPtr) -> Result<bool, TableError>;
}
