//! From a block pointer to the data of its block and back, and the cache of that data (the ARC).
//!
//! **Reading.** [`Zio::read`] is the one way from a [`BlkPtr`](ondisk::BlkPtr) to bytes. A hole is zeros, an embedded
//! block is in its pointer. Otherwise each DVA is tried in turn (available devices first): the vdev tree is asked for
//! bytes that satisfy the pointer's checksum, and reconstructs them from mirrors and parity where it can. A gang DVA
//! leads to a header of further pointers, whose blocks are concatenated. The physical block is then decrypted (or its MAC
//! checked) and decompressed. The result is the logical block in the byte order of its *writer*: the caller that knows
//! the structure decodes it with [`BlkPtr::endian`](ondisk::BlkPtr::endian).
//!
//! **Three ways past or through the cache.** [`Zio::read`] uses and fills the [`ArcCache`]; [`Zio::read_uncached`] takes
//! a cached copy if there is one, without moving it in its list, and else leaves no trace (a send of terabytes must not
//! evict the cache), and [`Zio::read_once`] and [`Zio::read_staged`] serve blocks that a property excludes from the
//! cache; [`Zio::read_raw`] returns the stored bytes, still encrypted and compressed, with the checksum verified.
//!
//! **Scrubbing.** [`Zio::verify_block`] reads every copy, gang header and gang member of a block, never the cache, and
//! allocates nothing per block: it works in a [`Scratch`] that the calling thread keeps.
//!
//! **Writing.** [`Zio::write`] takes a batch of blocks and returns their pointers. Space comes from a [`SpaceSource`],
//! and knowledge of shared content from a [`DedupTable`] and a [`CloneTable`]; the pool supplies all three. [`Zio::free`]
//! returns blocks to them. The stages are described in `write`.
//!
//! **Healing.** A scrub whose [`ReadCx`](vdev::ReadCx) says `heal` overwrites bad data with good data: from the other
//! side of a mirror, from parity, or from another copy. An ordinary read finds the good data and repairs nothing, since
//! its pointer may be older than the block that is at that address now; it notes a [`Suspect`], and the pool calls
//! [`Zio::heal`] once it knows the pointer to be current.
//!
//! **Keys** come from above: the pool puts a dataset's key in the [`KeyRing`]. Without it, reading encrypted data returns
//! [`Error::KeyNotLoaded`], authenticated data is readable but not authenticated, and [`Zio::read_noauth`] returns dnode
//! blocks, whose cores are in clear.
//!
//! Invariants: bytes leave this crate only after their checksum was verified (unless the pointer says `checksum=off`);
//! cached data is logical data of a verified block; a pointer from disk is hostile: it can cost at most a few buffers of
//! 16 MiB and [`gang::MAX_DEPTH`] levels of recursion; a batch that fails leaves nothing allocated; no lock is held over I/O but that which keeps
//! the dedup table's order. Callers: `dmu`, `pool` (scrub), `zil`, `stream`.
//! OpenZFS: `zio.c`, `arc.c`.
#![forbid(unsafe_code)]

mod arc;
mod bookmark;
mod buf;
mod checksum;
mod error;
pub mod gang;
mod into;
mod keys;
mod physical;
mod read;
mod self_heal;
mod stats;
mod suspend;
#[cfg(debug_assertions)]
pub mod tamper;
mod transform;
mod verify;
mod write;

pub use arc::{ArcCache, ArcKey, ArcStats, LookUps};
pub use bookmark::Bookmark;
pub use buf::Buf;
pub use error::{CopyFailure, Error, Fault};
pub use into::Stage;
pub use keys::{KeyRing, KeySource};
pub use read::{Caching, ReadGuard, Zio};
pub use self_heal::Suspect;
pub use stats::{ReadStats, Stats};
pub use suspend::Suspend;
pub use vdev::IoClass;
pub use verify::{Scratch, VerifyReport};
pub use write::{
    AllocError, AllocRequest, CloneTable, CryptParams, DedupLookup, DedupTable, HeldWrites, Payload, SpaceSource,
    TableError, WriteCx, WriteProps, WriteReq,
};
