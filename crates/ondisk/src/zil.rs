//! The intent log: chain blocks and the records in them (OpenZFS: `zil_chain_t`, `lr_t` and its family; docs/format.md §14).
//!
//! A log is a chain of blocks. Each holds, besides its records, the pointer to the next one, which was allocated before anything was
//! written to it: a chain therefore always ends at a block that is not (yet) valid. Two layouts exist: `zilog2` has the chain structure at
//! the front, `zilog` (old pools) at the end.
//!
//! The pointer's checksum words are not a checksum but an identity, `{guid, guid, object set, sequence}`: the next block's must be the same
//! with the sequence plus one ([`is_successor`]). The real checksum is in the block's trailer and is handled by `codec::embedded`.
//!
//! Records are decoded in two steps: [`Records`] splits a block into [`RawRecord`]s by their common headers, which are clear even in
//! encrypted logs; [`RawRecord::decode`] interprets one. A log that was read without its key gives only [`RawRecord::clear_blkptrs`].
//! [`Record::encode`] makes a record.

use base::{Endian, Txg, bytes};

use crate::{BlkPtr, Error};

mod encode;
mod record;

pub use record::{AclPart, AttrPart, Create, Record, Rename, SetAttr, Whiteout, Write};

/// Size of the chain structure, including the trailer (OpenZFS: `zil_chain_t`).
pub const ZIL_CHAIN_SIZE: usize = 184;
/// Size of a record's common header (OpenZFS: `lr_t`).
pub const RECORD_HEADER_SIZE: usize = 32;
/// The smallest log block (OpenZFS: `ZIL_MIN_BLKSZ`).
pub const ZIL_MIN_BLKSZ: u64 = 4096;
/// Size of a WRITE record without data; one of exactly this length has its data in its block pointer.
pub const WRITE_RECORD_SIZE: usize = 192;

/// Checksum number of the old layout, chain structure last.
const ZILOG: u8 = 5;
/// Checksum number of the new layout, chain structure first.
const ZILOG2: u8 = 9;
/// The bit of a record's type that requests case-insensitive matching of names.
const TX_CI: u64 = 1 << 63;

/// A decoded log block: the pointer to the next block, and the bytes that hold records.
#[derive(Clone, Copy, Debug)]
pub struct ChainBlock<'a> {
    /// The next block of the chain.
    pub next: BlkPtr,
    /// `zc_nused` as stored; in the new layout it includes the chain structure.
    pub nused: u64,
    /// The bytes in use by records.
    pub records: &'a [u8],
}

impl<'a> ChainBlock<'a> {
    /// Decodes the log block `buf` that was read through a pointer with checksum number `checksum` (5 zilog, 9 zilog2), in byte order `e`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the checksum is not one of a log, or `nused` is beyond the block; [`Error::Truncated`].
    pub fn decode(buf: &'a [u8], checksum: u8, e: Endian) -> Result<Self, Error> {
        let short = Error::short("log block", ZIL_CHAIN_SIZE, buf.len());
        let room = buf.len().checked_sub(ZIL_CHAIN_SIZE).ok_or(short.clone())?;
        let chain_at = match checksum {
            ZILOG2 => 0,
            ZILOG => room,
            n => return Err(Error::Invalid { what: "log block pointer", field: "checksum", value: n.into() }),
        };
        let chain = buf.get(chain_at..).unwrap_or(&[]);
        let next = BlkPtr::decode(chain.get(8..).unwrap_or(&[]), e)?;
        let nused = bytes::u64(chain, 136, e).ok_or(short)?;
        let bad = Error::Invalid { what: "log block", field: "bytes used", value: nused };
        let used = usize::try_from(nused).map_err(|_| bad.clone())?;
        let records = match checksum {
            ZILOG2 => buf.get(ZIL_CHAIN_SIZE..used),
            _ if used <= room => buf.get(..used),
            _ => None,
        };
        Ok(ChainBlock { next, nused, records: records.ok_or(bad)? })
    }
}

/// The sequence number of a log block, from its pointer.
#[must_use]
pub const fn block_seq(bp: &BlkPtr) -> u64 {
    bp.cksum()[3]
}

/// True if `next` has the identity that the block after `bp` must have.
#[must_use]
pub fn is_successor(bp: &BlkPtr, next: &BlkPtr) -> bool {
    let mut want = bp.cksum();
    want[3] = want[3].wrapping_add(1);
    next.cksum() == want
}

/// The type of a record (OpenZFS: `TX_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // the names suffice
pub enum TxType {
    Commit = 0,
    Create = 1,
    Mkdir = 2,
    Mkxattr = 3,
    Symlink = 4,
    Remove = 5,
    Rmdir = 6,
    Link = 7,
    Rename = 8,
    Write = 9,
    Truncate = 10,
    Setattr = 11,
    AclV0 = 12,
    Acl = 13,
    CreateAcl = 14,
    CreateAttr = 15,
    CreateAclAttr = 16,
    MkdirAcl = 17,
    MkdirAttr = 18,
    MkdirAclAttr = 19,
    Write2 = 20,
    Setsaxattr = 21,
    RenameExchange = 22,
    RenameWhiteout = 23,
    CloneRange = 24,
}

impl TxType {
    /// All types, in order of their numbers.
    pub const ALL: [TxType; 25] = {
        use TxType::*;
        [
            Commit,
            Create,
            Mkdir,
            Mkxattr,
            Symlink,
            Remove,
            Rmdir,
            Link,
            Rename,
            Write,
            Truncate,
            Setattr,
            AclV0,
            Acl,
            CreateAcl,
            CreateAttr,
            CreateAclAttr,
            MkdirAcl,
            MkdirAttr,
            MkdirAclAttr,
            Write2,
            Setsaxattr,
            RenameExchange,
            RenameWhiteout,
            CloneRange,
        ]
    };

    /// The type with number `n`, ignoring its [case-insensitive bit](RecordHeader::ignores_case).
    #[must_use]
    pub fn from_number(n: u64) -> Option<TxType> {
        TxType::ALL.get(usize::try_from(n).ok()?).copied()
    }

    /// The name that `zdb -i` prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        use TxType::*;
        match self {
            Commit => "TX_COMMIT",
            Create => "TX_CREATE",
            Mkdir => "TX_MKDIR",
            Mkxattr => "TX_MKXATTR",
            Symlink => "TX_SYMLINK",
            Remove => "TX_REMOVE",
            Rmdir => "TX_RMDIR",
            Link => "TX_LINK",
            Rename => "TX_RENAME",
            Write => "TX_WRITE",
            Truncate => "TX_TRUNCATE",
            Setattr => "TX_SETATTR",
            AclV0 => "TX_ACL_V0",
            Acl => "TX_ACL_ACL",
            CreateAcl => "TX_CREATE_ACL",
            CreateAttr => "TX_CREATE_ATTR",
            CreateAclAttr => "TX_CREATE_ACL_ATTR",
            MkdirAcl => "TX_MKDIR_ACL",
            MkdirAttr => "TX_MKDIR_ATTR",
            MkdirAclAttr => "TX_MKDIR_ACL_ATTR",
            Write2 => "TX_WRITE2",
            Setsaxattr => "TX_SETSAXATTR",
            RenameExchange => "TX_RENAME_EXCHANGE",
            RenameWhiteout => "TX_RENAME_WHITEOUT",
            CloneRange => "TX_CLONE_RANGE",
        }
    }

    /// True if records of this type may be logged out of order, and so may name an object that is already gone (OpenZFS: `TX_OOO`).
    #[must_use]
    pub const fn is_out_of_order(self) -> bool {
        use TxType::*;
        matches!(self, Write | Truncate | Setattr | AclV0 | Acl | Write2 | Setsaxattr | CloneRange)
    }
}

/// The common header of all records (OpenZFS: `lr_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// The number of the type, with the case-insensitive bit.
    pub txtype: u64,
    /// Bytes of the whole record, including the header.
    pub reclen: u64,
    /// The txg that the change belonged to.
    pub txg: Txg,
    /// The sequence number of the record, unique in its log.
    pub seq: u64,
}

impl RecordHeader {
    /// Decodes the header at the front of `buf`.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let word = |off| bytes::u64(buf, off, e).ok_or(Error::short("log record", RECORD_HEADER_SIZE, buf.len()));
        Ok(RecordHeader { txtype: word(0)?, reclen: word(8)?, txg: Txg(word(16)?), seq: word(24)? })
    }

    /// The record's type; `None` for a number that OpenZFS 2.4 does not know.
    #[must_use]
    pub fn kind(&self) -> Option<TxType> {
        TxType::from_number(self.txtype & !TX_CI)
    }

    /// True if names must be matched case-insensitively (OpenZFS: `TX_CI`).
    #[must_use]
    pub const fn ignores_case(&self) -> bool {
        self.txtype & TX_CI != 0
    }
}

/// A record as stored in its block.
#[derive(Clone, Copy, Debug)]
pub struct RawRecord<'a> {
    /// The common header.
    pub header: RecordHeader,
    /// The whole record, `header.reclen` bytes.
    pub bytes: &'a [u8],
    /// The writer's byte order.
    pub endian: Endian,
}

impl<'a> RawRecord<'a> {
    /// Interprets the record.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown type or impossible counts, [`Error::Truncated`] if the record is shorter than its type requires.
    pub fn decode(&self) -> Result<Record<'a>, Error> {
        record::decode(self)
    }

    /// The block pointers of the record that are clear in an encrypted log: an indirect WRITE's and those of CLONE_RANGE. All other bytes
    /// after the header may be ciphertext.
    ///
    /// # Errors
    /// As [`RawRecord::decode`].
    pub fn clear_blkptrs(&self) -> Result<Vec<BlkPtr>, Error> {
        record::clear_blkptrs(self)
    }
}

/// The records of one block, in order. The iterator ends after an error, because the next record cannot be found.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    endian: Endian,
}

impl<'a> Records<'a> {
    /// Iterates over the records in `buf`, which is [`ChainBlock::records`].
    #[must_use]
    pub fn new(buf: &'a [u8], endian: Endian) -> Self {
        Records { rest: buf, endian }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<RawRecord<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            return None;
        }
        let header = match RecordHeader::decode(rest, self.endian) {
            Ok(header) => header,
            Err(e) => return Some(Err(e)),
        };
        let cut = usize::try_from(header.reclen)
            .ok()
            .filter(|n| *n >= RECORD_HEADER_SIZE)
            .and_then(|n| rest.split_at_checked(n));
        Some(match cut {
            None => Err(Error::Invalid { what: "log record", field: "length", value: header.reclen }),
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(RawRecord { header, bytes, endian: self.endian })
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
