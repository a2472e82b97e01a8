//! Writable object sets (OpenZFS: `dnode.c`, `dnode_sync.c`, `dbuf.c`, `dmu_tx.c`, the write half of `dmu_objset.c`).
//!
//! # In memory
//! An [`Objset`](crate::Objset) that is open for writing has a map of live dnodes. A live dnode has layers: the dnode
//! that is on disk, with its tree; the changes that a running sync is writing; and for each of up to four txgs (slot txg
//! & 3) the blocks written and freed, the spill block, and the shape and bonus at the end of the txg. A reader searches
//! the layers from new to old and falls through to the tree; all read functions of the crate do this themselves. A block
//! is changed in place while only one txg holds it, else copied.
//!
//! # To disk
//! A sync freezes the layer of its txg and builds *new* dnodes and trees beside the old ones: leaves of all objects in
//! one batch, then level by level, then the dnodes' own tree, accounting, root block; only then does it switch over. See
//! `sync`, `tree_write`.
//!
//! # Invariants
//! A dnode's lock is never held over I/O. Changes of one object come in the order of their txgs (`claims`); one that comes
//! late is put under, and into, the layers of newer txgs. A freed object number is not reused before the free is on disk.
//! All blocks are written little-endian; big-endian ones are byteswapped when they are taken up for a change: root blocks
//! and dnodes when they are opened, blocks when they are read.
//!
//! # After a crash
//! No block of the old trees is overwritten, so the last root block still finds everything as it was.
mod accounting;
mod alloc;
mod claims;
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

pub(crate) use dnode::{BlockState, LiveDnode};
pub(crate) use read::{LiveCache, Seen};
pub(crate) use state::Live;

pub use claims::TxObjects;
pub use cx::{BlockOwner, NewObject, NoOwner, Owner, SyncCx, UsedBy};
pub use policy::{PrimaryCache, RedundantMetadata, WritePolicy};
pub use raw::RawObjset;
pub use settled::Settled;
pub use sync_block::SyncedBlock;
pub use tx::{Tx, TxHold};
