//! The way down: from logical blocks to stored ones with pointers (OpenZFS: the write pipeline of `zio.c`).
//!
//! The unit is a *batch*: all dirty blocks of one level. It is cut into *chunks* of some megabytes, and a chunk goes through three
//! stages, which work on different chunks at the same time:
//!
//! 1. [`prepare`]: what needs no order, on all cores. A block becomes a hole, or is embedded in its pointer; else it is compressed,
//!    encrypted and summed. Then its pointer is complete but for the addresses.
//! 2. [`place`]: what needs order, on one core. Each block gets its addresses, in order, so that it lies beside its neighbours; or none: it is the same as
//!    before, is in the dedup table, or is overwritten in place. Where no range is large enough, [`gang`].
//! 3. [`pump`]: all writes of the chunk go to the devices in one call, which sorts and merges them.
//!
//! Uncompressed data is written from the caller's buffer, which then stays in the cache: it is not copied.
//!
//! Small batches can be [held](HeldWrites): the levels of a tree then go to the devices together, neighbours as one write.
//!
//! If anything fails, the whole batch fails, and everything that was allocated for it is given back. Blocks that were overwritten in place stay
//! overwritten: nobody reads them before the txg is committed.
mod free;
mod gang;
mod log;
mod place;
mod pointer;
mod prepare;
mod pump;
mod side;
mod space;
mod tables;

use base::{Endian, Txg};
use codec::{ChecksumKind, Compress};
use ondisk::{BlkPtr, EmbeddedType, ObjectType};

use crate::{Bookmark, Buf};

pub use pump::HeldWrites;
pub(crate) use side::WriteSide;
pub use space::{AllocError, AllocRequest, SpaceSource};
pub use tables::{CloneTable, DedupTable, Found, TableError};

/// How a block is to be written (OpenZFS: `zio_prop_t`). What object sets and properties mean by it is the caller's (`dmu_write_policy`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteProps {
    /// Type of the object.
    pub object_type: ObjectType,
    /// The type by which the allocation class is chosen, if another (OpenZFS: `zp_storage_type`); else [`ObjectType::NONE`].
    pub storage_type: ObjectType,
    /// 0 for data, n for blocks of pointers.
    pub level: u8,
    /// Checksum; one with a trailer of its own is none.
    pub checksum: ChecksumKind,
    /// Compression. With [`Compress::Off`] zeros are stored; with [`Compress::Empty`] they become a hole and all else is stored as
    /// it is.
    pub compress: Compress,
    /// Level of zstd, in OpenZFS's numbers; `None` is the default.
    pub complevel: Option<i16>,
    /// Copies: 1 to 3, 2 at most for encrypted blocks.
    pub copies: u8,
    /// Copies of gang headers, should the block become a gang block; at least `copies`.
    pub gang_copies: u8,
    /// Whether equal blocks are to be stored once; with `true` they are compared as well.
    pub dedup: Option<bool>,
    /// Whether a block equal to the one that it replaces is not written at all.
    pub nopwrite: bool,
    /// Whether the object set is encrypted: encrypts, authenticates, or makes an indirect MAC, as type and level want it.
    pub encrypt: bool,
    /// Whether small blocks may stand in their pointer (feature `embedded_data`).
    pub embed: bool,
    /// Data blocks up to this many bytes may go to the special class.
    pub special_small: u64,
    /// Whether the data stays in the cache.
    pub cache: bool,
    /// Whether the block only moves: it keeps the logical birth of the one that it replaces (`zfs rewrite -P`).
    pub rewrite: bool,
}

impl Default for WriteProps {
    /// Plain file data: fletcher4, not compressed, one copy, cached.
    fn default() -> Self {
        WriteProps {
            object_type: ObjectType::PLAIN_FILE_CONTENTS,
            storage_type: ObjectType::NONE,
            level: 0,
            checksum: ChecksumKind::Fletcher4,
            compress: Compress::Off,
            complevel: None,
            copies: 1,
            gang_copies: 1,
            dedup: None,
            nopwrite: false,
            encrypt: false,
            embed: false,
            special_small: 0,
            cache: true,
            rewrite: false,
        }
    }
}

/// Salt, initialisation vector and MAC of a block that was encrypted elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CryptParams {
    /// Eight bytes, low byte first.
    pub salt: u64,
    /// Twelve bytes.
    pub iv: [u8; 12],
    /// Sixteen bytes.
    pub mac: [u8; 16],
}

/// What is to be written.
#[derive(Clone, Debug)]
pub enum Payload {
    /// The logical block; its length is the logical size.
    Logical(Buf),
    /// The block as it shall be stored: compressed, encrypted (raw receive). Its length is a multiple of 512 if encrypted.
    Stored {
        /// What is stored.
        bytes: Buf,
        /// Bytes of the logical block.
        lsize: u64,
        /// How it is compressed.
        compress: Compress,
        /// If encrypted, or only authenticated.
        crypt: Option<CryptParams>,
        /// Order of the content.
        byteorder: Endian,
    },
    /// To stand in the pointer: at most 112 bytes.
    Embedded {
        /// As stored.
        bytes: Buf,
        /// Bytes of the logical block.
        lsize: u64,
        /// How it is compressed.
        compress: Compress,
        /// Data, or a block that a redacted send left out.
        kind: EmbeddedType,
        /// Order of the content.
        byteorder: Endian,
    },
    /// A clone of this block: nothing is written, the pointer is born again.
    Clone(BlkPtr),
}

impl Payload {
    /// Bytes of the logical block.
    #[must_use]
    pub fn lsize(&self) -> u64 {
        match self {
            Payload::Logical(data) => data.len() as u64,
            Payload::Stored { lsize, .. } | Payload::Embedded { lsize, .. } => *lsize,
            Payload::Clone(bp) => bp.lsize(),
        }
    }
}

/// One block to be written.
#[derive(Clone, Debug)]
pub struct WriteReq {
    /// Which block.
    pub bm: Bookmark,
    /// How.
    pub props: WriteProps,
    /// What.
    pub payload: Payload,
    /// What it replaces; [`BlkPtr::HOLE`] if nothing.
    pub orig: BlkPtr,
    /// Blocks of data below, for the pointer; dnodes, for the meta-dnode's tree.
    pub fill: u64,
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteCx {
    /// The txg that is written.
    pub txg: Txg,
    /// The pass of its sync, from 1; 0 outside of a sync.
    pub pass: u32,
}
