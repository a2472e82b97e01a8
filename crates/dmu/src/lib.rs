//! Object sets, their objects, ZAPs and system attributes: the DMU.
//!
//! # What it is
//! A dataset (and the MOS) is an [`Objset`]: a root block that holds dnodes. One of them, the meta-dnode, is a file whose blocks
//! are the dnodes of all other objects. An [`Object`] is a sparse array of blocks under a dnode; its type says what the
//! blocks hold: bytes of a file, a [`Zap`] (a hash table on disk), an array of words. The attributes of a file are in the
//! dnode's bonus buffer (and its spill block), in the layout that [`sa`] decodes.
//!
//! # The few ideas
//! * **A tree of blocks is read in one way only** ([`object`](Object) and meta-dnode alike): [`BlockCursor`] keeps the
//!   last indirect block of each level, so that a sequential reader asks the ARC once per indirect block, not once per
//!   data block.
//! * **Byte order belongs to the block.** Every block is in the byte order of the machine that wrote *it*; a pool that
//!   moved between machines mixes both. A block is therefore passed around with its [`Endian`](base::Endian), taken from
//!   the pointer to it, and is decoded once.
//! * **Holes are not read.** [`Objset::next_object`], [`Object::next_data`] and [`Object::walk`] skip a hole at the level
//!   at which it occurs.
//! * **The hash of a ZAP entry is its position.** Entries are ordered by (hash, collision differentiator), in micro and
//!   fat ZAPs alike, so a cookie stays valid whatever is added or removed meanwhile.
//!
//! # Invariants
//! Nothing read from disk is trusted: levels, shifts, chunk chains, pointer tables and attribute lengths are checked
//! where they are used, and wrong ones are an [`Error`] that names object and block. Every loop is bounded by a size that
//! was checked. A set opened for reading is never changed; a read past the end returns zeros, as in OpenZFS. Writable
//! sets are described in `live`.
//!
//! # Callers
//! `pool` (MOS, datasets, verification), `zpl`, `zil`, `stream`, and `zdb` through them.
#![forbid(unsafe_code)]

mod ahead;
mod below;
mod cursor;
mod destroyed;
mod error;
mod live;
mod object;
mod objset;
pub mod sa;
mod seek;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tree;
mod walk;
mod zap;

pub use below::Below;
pub use cursor::BlockCursor;
pub use destroyed::{DESTROYED_OBJSET, Ended, walk_destroyed};
pub use error::Error;
pub use live::{
    BlockOwner, NewObject, NoOwner, Owner, PrimaryCache, RawObjset, RedundantMetadata, Settled, SyncCx, SyncedBlock,
    Tx, TxHold, TxObjects, UsedBy, WritePolicy,
};
pub use object::Object;
pub use objset::{Objects, Objset, Special};
pub use walk::{Visit, Walk};
pub use zap::{
    Entries, FatStats, MatchMode, NewZap, Zap, ZapEntry, ZapKind, ZapMatch, ZapStats, ZapValue, normal_form_fits,
    normalise,
};
