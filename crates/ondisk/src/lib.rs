//! Every structure of the format as plain data: decoded once, in either byte order, into native integers, and encoded back.
//!
//! The facts are those of docs/format.md (checked against OpenZFS 2.4). A decoder takes bytes and the [`base::Endian`] of the writer, checks
//! every length, and returns an [`Error`] that says which structure is wrong and how. Structures keep the field names of OpenZFS without
//! the prefix. Fields whose numbers may come from a newer OpenZFS (object type, checksum, compression) are kept as raw numbers with
//! accessors that interpret them, so that an unknown value can be shown.
//!
//! Invariants: decoding then encoding gives the same bytes; no I/O, no state, no panic on any input.
//! Callers: every crate above; `codec` stays independent and works on the raw bytes.
#![forbid(unsafe_code)]

mod blkptr;
mod dnode;
mod error;
mod objset;
mod objtype;
mod position;
mod uberblock;

pub mod bpobj;
pub mod brt;
pub mod byteswap;
pub mod ddt;
pub mod dsl;
pub mod gang;
pub mod history;
pub mod indirect;
pub mod l2arc;
pub mod label;
pub mod sa;
pub mod scan;
pub mod send;
pub mod spacemap;
pub mod zap;
pub mod zap_edit;
pub mod zil;
pub mod znode;

pub use blkptr::{BLKPTR_SIZE, BlkPtr, Dva, EmbeddedType};
pub use dnode::{DNODE_SHIFT, DNODE_SIZE, DnodePhys};
pub use error::Error;
pub use objset::{ObjsetPhys, ObjsetType, ZIL_HEADER_SIZE, ZilHeader};
pub use objtype::{ByteswapClass, ObjectType};
pub use position::Position;
pub use uberblock::{MmpConfig, UBERBLOCK_MAGIC, Uberblock};

/// The unit of sizes and offsets in block pointers: 512 bytes.
pub const SECTOR_SHIFT: u32 = 9;
/// The smallest block, 512 bytes (OpenZFS: `SPA_MINBLOCKSIZE`).
pub const SPA_MINBLOCKSIZE: u64 = 512;
/// The largest block, 16 MiB (OpenZFS: `SPA_MAXBLOCKSIZE`).
pub const SPA_MAXBLOCKSIZE: u64 = 16 << 20;
/// The start of allocatable space on a leaf device: after two labels and the boot region (4 MiB).
pub const VDEV_LABEL_START_SIZE: u64 = 4 << 20;
/// The size of the two labels at the end of a leaf device (512 KiB).
pub const VDEV_LABEL_END_SIZE: u64 = 512 << 10;
