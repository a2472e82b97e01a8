//! Writable object sets (OpenZFS: `dnode.c`, `dnode_sync.c`, `dbuf.c`, `dmu_tx.c`, the write half of `dmu_objset.c`).
//!
//! # In memory
//! An [`Objset`](crate::Objset) that is open for writing has a map of live dnodes. A live dnode has layers: the dnode that is on disk, with its
//! tree; what a sync under way is writing; and for each of up to four txgs (slot txg & 3) the blocks written and freed, the spill block, and
//! the shape and bonus as the txg leaves them. A reader looks through the layers from new to old and falls through to the tree; all
//! read functions of the crate do so by themselves. A block is changed in place while one txg holds it alone, else copied.
//!
//! # To disk
//! A sync freezes the layer of its txg, builds *new* dnodes and trees beside the old ones, leaves of all objects in one batch, then
//! level by level, then the dnodes' own tree, accounting, root block; and only then changes over. See `sync`, `tree_write`.
//!
//! # Invariants
//! A dnode's lock is never held over I/O. Changes of one object come in the order of their txgs ([`Tx`]); one that comes late is put under, and
//! into, what newer txgs hold. A number freed is not given again before that is on disk. What is written is little-endian; what is
//! in the other order is turned over when it is taken in hand to be changed: root blocks and dnodes when they are opened, blocks when they are read.
//!
//! # After a crash
//! Nothing of the old trees is touched, so the last root block finds all as it was.
mod accounting;
mod alloc;
mod cx;
mod dnode;
mod free_long;
mod objset;
mod policy;
mod ranges;
mod raw;
mod read;
mod settled;
mod state;
mod stored;
mod sync;
mod sync_block;
mod tree_write;
mod tx;
mod write;

pub(crate) use dnode::{Found, LiveDnode};
pub(crate) use read::{LiveCache, Seen};
pub(crate) use state::Live;

pub use cx::{BlockOwner, NewObject, NoOwner, Owner, SyncCx, UsedBy};
pub use policy::{PrimaryCache, RedundantMetadata, WritePolicy};
pub use raw::RawObjset;
pub use settled::Settled;
pub use sync_block::SyncedBlock;
pub use tx::{Tx, TxHold};
