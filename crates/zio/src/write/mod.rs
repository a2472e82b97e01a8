//! The write path: from logical blocks to stored ones with pointers (OpenZFS: the write pipeline of `zio.c`).
//!
//! The unit is a *batch*: all dirty blocks of one level. It is cut into *chunks* of some megabytes, and a chunk passes
//! through three stages, which work on different chunks at the same time:
//!
//! 1. [`prepare`]: the work that needs no order, on all cores. A block becomes a hole, or is embedded in its pointer;
//!    else it is compressed, encrypted and checksummed. Then its pointer is complete but for the addresses.
//! 2. [`place`]: the work that needs order, on one core. Each block gets its addresses, in order, so that it is next to
//!    its neighbours; or none: it is unchanged, is in the dedup table, or is overwritten in place. Where no range is
//!    large enough, [`gang`].
//! 3. [`pump`]: all writes of the chunk go to the devices in one call, which sorts and merges them.
//!
//! Uncompressed data is written from the caller's buffer, which then stays in the cache: it is not copied.
//!
//! Small batches can be [held](HeldWrites): the levels of a tree then go to the devices together, neighbours as one write. Those of the MOS wait
//! for the end of the sync ([`late`]).
//!
//! If anything fails, the whole batch fails, and everything that was allocated for it is freed. Blocks that were
//! overwritten in place stay overwritten: they are not read before the txg is committed.
mod free;
mod gang;
mod late;
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
pub use tables::{CloneTable, DedupLookup, DedupTable, TableError};

/// The properties with which a block is written (OpenZFS: `zio_prop_t`). The caller derives them from object set and
/// properties (`dmu_write_policy`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteProps {
    /// Type of the object.
    pub object_type: ObjectType,
    /// The type by which the allocation class is chosen, if different (OpenZFS: `zp_storage_type`); else
    /// [`ObjectType::NONE`].
    pub storage_type: ObjectType,
    /// 0 for data, n for blocks of pointers.
    pub level: u8,
    /// Checksum; kinds with a trailer in the block are not allowed.
    pub checksum: ChecksumKind,
    /// Compression. With [`Compress::Off`] zeros are stored; with [`Compress::Empty`] they become a hole and all other
    /// blocks are stored uncompressed.
    pub compress: Compress,
    /// Level of zstd, in OpenZFS's numbers; `None` is the default.
    pub complevel: Option<i16>,
    /// Copies: 1 to 3, 2 at most for encrypted blocks.
    pub copies: u8,
    /// Copies of gang headers, should the block become a gang block; at least `copies`.
    pub gang_copies: u8,
    /// Deduplicates equal blocks; with `true` their contents are compared as well.
    pub dedup: Option<bool>,
    /// True if a block equal to the one that it replaces is not written at all.
    pub nopwrite: bool,
    /// True if the object set is encrypted: the block is encrypted, authenticated or gets an indirect MAC, by type and
    /// level.
    pub encrypt: bool,
    /// True if small blocks may be embedded in their pointer (feature `embedded_data`).
    pub embed: bool,
    /// Data blocks up to this many bytes may go to the special class.
    pub special_small: u64,
    /// True if the data stays in the cache.
    pub cache: bool,
    /// True if the block only moves: it keeps the logical birth of the one that it replaces (`zfs rewrite -P`).
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

/// The contents to be written.
#[derive(Clone, Debug)]
pub enum Payload {
    /// The logical block; its length is the logical size.
    Logical(Buf),
    /// The block in its stored form: compressed, encrypted (raw receive). Its length is a multiple of 512 if encrypted.
    Stored {
        /// The stored bytes.
        bytes: Buf,
        /// Bytes of the logical block.
        lsize: u64,
        /// How it is compressed.
        compress: Compress,
        /// Its parameters if it is encrypted, or only authenticated.
        crypt: Option<CryptParams>,
        /// The byte order of the content.
        byteorder: Endian,
    },
    /// A payload to embed in the pointer: at most 112 bytes.
    Embedded {
        /// As stored.
        bytes: Buf,
        /// Bytes of the logical block.
        lsize: u64,
        /// How it is compressed.
        compress: Compress,
        /// Data, or a block that a redacted send left out.
        kind: EmbeddedType,
        /// The byte order of the content.
        byteorder: Endian,
    },
    /// A clone of this block: nothing is written, the pointer gets a new birth.
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
    /// The logical address of the block.
    pub bm: Bookmark,
    /// The properties with which it is written.
    pub props: WriteProps,
    /// The contents.
    pub payload: Payload,
    /// The pointer that it replaces; [`BlkPtr::HOLE`] if there is none.
    pub orig: BlkPtr,
    /// Blocks of data below, for the pointer; dnodes, for the meta-dnode's tree.
    pub fill: u64,
}

/// The txg and sync pass of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteCx {
    /// The txg that is written.
    pub txg: Txg,
    /// The pass of its sync, from 1; 0 outside of a sync.
    pub pass: u32,
}
