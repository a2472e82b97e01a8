//! Checks of single records, independent of the records before them (OpenZFS: `recv_check_drr_*`).
//!
//! Sizes beyond the pool's limits (errno ERANGE) are distinguished from invalid values (EINVAL).

use base::ObjectId;
use codec::Compress;
use ondisk::ObjectType;
use ondisk::send::{
    DRR_OBJECT_SPILL, DRR_RAW_BYTESWAP, Free, FreeObjects, Object, ObjectRange, Record, Spill, Write, WriteEmbedded,
    feature,
};

use super::Error;

const MINBLOCKSIZE: u64 = 512;
/// Blocks up to this size need no feature.
const OLD_MAXBLOCKSIZE: u64 = 128 << 10;
const DNODES_PER_BLOCK: u64 = 32;
const DNODE_SIZE: u64 = 512;
/// The bytes of a dnode that are neither bonus buffer nor further pointers: its fields and one pointer.
const DNODE_FIXED: u64 = 64 + 128;
const BLKPTR: u64 = 128;
const EMBEDDED_MAX: u64 = 112;
/// The upper bounds (exclusive) of compression and checksum numbers (OpenZFS: `ZIO_COMPRESS_FUNCTIONS`,
/// `ZIO_CHECKSUM_FUNCTIONS`).
const COMPRESS_FUNCTIONS: u8 = 17;
const CHECKSUM_FUNCTIONS: u8 = 15;
const LZ4: u8 = 15;
const ZSTD: u8 = 16;

/// The properties of the stream, and the limits of the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    pub(super) features: u64,
    /// True if OBJECT records state whether there is a spill block.
    pub(super) spill: bool,
    pub(super) max_block: u64,
    pub(super) max_dnode: u64,
}

/// The reason why a record is refused.
enum Fault {
    Invalid(String),
    Range(String),
}

type Checked = Result<(), Fault>;

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Fault::Invalid(why())) }
}

fn at_most(what: &str, n: u64, most: u64) -> Checked {
    if n <= most { Ok(()) } else { Err(Fault::Range(format!("{what} {n} exceeds maximum {most}"))) }
}

fn at_least(what: &str, n: u64, least: u64) -> Checked {
    ensure(n >= least, || format!("{what} {n} below minimum {least}"))
}

fn object_id(id: ObjectId) -> Checked {
    ensure(id.is_some() && id < ObjectId::END, || {
        format!("object number {id} outside valid range 1-{}", ObjectId::END.0 - 1)
    })
}

fn no_overflow(what: &str, a: u64, b: u64) -> Checked {
    ensure(a.checked_add(b).is_some(), || format!("{what} {a} + {b} overflows"))
}

fn valid_type(what: &str, n: u32) -> Checked {
    let known = u8::try_from(n).is_ok_and(|n| ObjectType(n).is_valid());
    ensure(known, || format!("invalid {what} {n}"))
}

/// Returns the number of block pointers in a dnode with such a bonus buffer (OpenZFS: `deduce_nblkptr`).
pub(super) fn nblkptr(bonus_type: u32, bonus_len: u32, slots: u8) -> u8 {
    if bonus_type == u32::from(ObjectType::SA.0) {
        return 1;
    }
    let room = u64::from(slots) * DNODE_SIZE - DNODE_FIXED;
    (1 + (room.saturating_sub(bonus_len.into()) / BLKPTR)).min(3) as u8
}

impl Check {
    pub(super) fn has(&self, flag: u64) -> bool {
        self.features & flag != 0
    }

    fn raw(&self) -> bool {
        self.has(feature::RAW)
    }

    /// # Errors
    /// [`Error::Record`], with the reason.
    pub(super) fn record(&self, record: &Record, offset: u64) -> Result<(), Error> {
        let checked = match record {
            Record::Object(r) => self.object(r),
            Record::FreeObjects(FreeObjects { firstobj, numobjs, .. }) => {
                no_overflow("first object and count", firstobj.0, *numobjs)
            }
            Record::Write(r) => self.write(r),
            Record::Free(Free { object, offset, length, .. }) => free(*object, *offset, *length),
            Record::Redact(r) => free(r.object, r.offset, r.length),
            Record::Spill(r) => self.spill(r),
            Record::WriteEmbedded(r) => self.embedded(r),
            Record::ObjectRange(r) => self.object_range(r),
            Record::WriteByref(_) => Err(Fault::Invalid("deduplicated streams are no longer supported".into())),
            Record::Begin(_) => Err(Fault::Invalid("a stream within the stream".into())),
            Record::End(_) => Ok(()),
        };
        let kind = record.kind();
        checked.map_err(|fault| match fault {
            Fault::Invalid(why) => Error::Record { offset, kind, why, range: false },
            Fault::Range(why) => Error::Record { offset, kind, why, range: true },
        })
    }

    fn block_size(&self, what: &str, size: u64) -> Checked {
        ensure(size <= OLD_MAXBLOCKSIZE || self.has(feature::LARGE_BLOCKS), || {
            format!("{what} {size} requires DMU_BACKUP_FEATURE_LARGE_BLOCKS")
        })?;
        at_most(what, size, self.max_block)
    }

    fn compression(&self, n: u8) -> Checked {
        ensure(n < COMPRESS_FUNCTIONS, || format!("invalid compression type {n}"))?;
        ensure(n != ZSTD || self.has(feature::ZSTD), || {
            "compression type ZSTD requires DMU_BACKUP_FEATURE_ZSTD".into()
        })?;
        ensure(n != LZ4 || self.has(feature::LZ4), || format!("compression type {n} requires DMU_BACKUP_FEATURE_LZ4"))
    }

    fn object(&self, r: &Object) -> Checked {
        object_id(r.object)?;
        ensure(r.object_type != 0, || "type is DMU_OT_NONE".into())?;
        valid_type("type", r.object_type)?;
        valid_type("bonus type", r.bonus_type)?;
        let bare =
            [ObjectType::SA, ObjectType::OTN_UINT64_METADATA].map(|kind| u32::from(kind.0)).contains(&r.bonus_type);
        let agree = (r.bonus_type == 0) == (r.bonuslen == 0) || bare;
        ensure(agree, || format!("bonus type {} incompatible with bonus length {}", r.bonus_type, r.bonuslen))?;
        let slots = r.dn_slots.max(1);
        ensure(slots == 1 || self.has(feature::LARGE_DNODE), || {
            format!("dnode slots {slots} require DMU_BACKUP_FEATURE_LARGE_DNODE")
        })?;
        ensure(r.checksumtype < CHECKSUM_FUNCTIONS, || format!("invalid checksum type {}", r.checksumtype))?;
        ensure(r.compress < COMPRESS_FUNCTIONS, || format!("invalid compression type {}", r.compress))?;
        let blksz = u64::from(r.blksz);
        ensure(blksz.is_multiple_of(MINBLOCKSIZE), || format!("block size {blksz} is not a multiple of 512"))?;
        at_least("block size", blksz, MINBLOCKSIZE)?;
        self.block_size("block size", blksz)?;
        at_most("dnode slot count", slots.into(), self.max_dnode / DNODE_SIZE)?;
        let last = r.object.saturating_add(slots.into());
        ensure(last <= ObjectId::END, || format!("object range {}-{} exceeds DN_MAX_OBJECT", r.object, last.0 - 1))?;
        let has_spill = r.flags & DRR_OBJECT_SPILL != 0;
        ensure(self.spill || !has_spill, || "spill flag set but BEGIN missing DRR_FLAG_SPILL_BLOCK".into())?;
        let capacity = u64::from(slots) * DNODE_SIZE - DNODE_FIXED;
        if self.raw() {
            return raw_object(r, slots, capacity);
        }
        ensure(r.flags & !DRR_OBJECT_SPILL == 0, || format!("invalid flags {:#x}", r.flags))?;
        at_most("bonus length", r.bonuslen.into(), capacity)?;
        let structure = (r.raw_bonuslen, r.nblkptr, r.indblkshift, r.nlevels);
        ensure(structure == (0, 0, 0, 0), || "the structure of the dnode must be zero in non-raw streams".into())
    }

    fn write(&self, r: &Write) -> Checked {
        object_id(r.object)?;
        at_least("logical size", r.logical_size, MINBLOCKSIZE)?;
        self.block_size("logical size", r.logical_size)?;
        if self.raw() || r.compressiontype != 0 {
            ensure(self.raw() || self.has(feature::COMPRESSED), || {
                "compressed payload requires DMU_BACKUP_FEATURE_COMPRESSED".into()
            })?;
            self.compression(r.compressiontype)?;
            ensure(Compress::from_u8(r.compressiontype).is_some(), || {
                format!("invalid compression type {}", r.compressiontype)
            })?;
            ensure(r.compressed_size != 0, || "compressed size must be non-zero".into())?;
            ensure(r.logical_size >= r.compressed_size, || {
                format!("logical size {} < compressed size {}", r.logical_size, r.compressed_size)
            })?;
            let plain = Compress::from_u8(r.compressiontype) == Some(Compress::Off);
            ensure(!plain || r.logical_size == r.compressed_size, || {
                format!("compressed size {} of an uncompressed block of {}", r.compressed_size, r.logical_size)
            })?;
        } else {
            ensure(r.compressed_size == 0, || "compressed size must be zero when uncompressed".into())?;
        }
        if self.raw() {
            stored(r.compressed_size, r.logical_size, r.compressiontype)?;
        }
        no_overflow("offset and logical size", r.offset, r.logical_size)?;
        valid_type("type", r.object_type)?;
        ensure(r.checksumtype < CHECKSUM_FUNCTIONS, || format!("invalid checksum type {}", r.checksumtype))
    }

    fn spill(&self, r: &Spill) -> Checked {
        object_id(r.object)?;
        valid_type("type", r.object_type)?;
        at_least("logical size", r.length, MINBLOCKSIZE)?;
        at_most("logical size", r.length, self.max_block)?;
        ensure(r.length.is_multiple_of(MINBLOCKSIZE), || {
            format!("logical size {} is not a multiple of 512", r.length)
        })?;
        if self.raw() {
            ensure(r.compressed_size != 0, || "payload size must be non-zero on raw streams".into())?;
            self.compression(r.compressiontype)?;
            ensure(r.length >= r.compressed_size, || {
                format!("logical size {} < compressed size {}", r.length, r.compressed_size)
            })?;
            return stored(r.compressed_size, r.length, r.compressiontype);
        }
        ensure(r.compressed_size == 0, || "compressed size must be zero on non-raw streams".into())?;
        ensure(r.compressiontype == 0, || "compression type must be zero when uncompressed".into())
    }

    fn embedded(&self, r: &WriteEmbedded) -> Checked {
        ensure(!self.raw(), || "invalid on raw streams".into())?;
        ensure(self.has(feature::EMBED_DATA), || "requires DMU_BACKUP_FEATURE_EMBED_DATA".into())?;
        object_id(r.object)?;
        at_least("length", r.length, MINBLOCKSIZE)?;
        self.block_size("length", r.length)?;
        let (lsize, psize) = (u64::from(r.lsize), u64::from(r.psize));
        at_most("payload size", psize, EMBEDDED_MAX)?;
        self.compression(r.compression)?;
        ensure(Compress::from_u8(r.compression).is_some(), || format!("invalid compression type {}", r.compression))?;
        let off = Compress::from_u8(r.compression) == Some(Compress::Off);
        ensure(if off { lsize == psize } else { lsize >= psize }, || {
            format!("logical size {lsize} does not fit payload size {psize}")
        })?;
        ensure(lsize <= r.length, || format!("logical size {lsize} exceeds length {}", r.length))?;
        no_overflow("offset and length", r.offset, r.length)?;
        // only one kind of embedded data represents a block
        ensure(r.etype == 0, || format!("invalid embedded type {}", r.etype))
    }

    fn object_range(&self, r: &ObjectRange) -> Checked {
        ensure(self.raw(), || "only valid on raw streams".into())?;
        ensure(r.numslots == DNODES_PER_BLOCK, || format!("numslots {} != {DNODES_PER_BLOCK}", r.numslots))?;
        ensure(r.firstobj.0.is_multiple_of(DNODES_PER_BLOCK), || {
            format!("first object {} is not dnode-block aligned", r.firstobj)
        })?;
        ensure(r.firstobj.0 <= ObjectId::END.0 - DNODES_PER_BLOCK, || "extends past DN_MAX_OBJECT".into())
    }
}

/// Checks a block that is written as stored: its sizes are whole sectors, and equal if it is not compressed.
fn stored(psize: u64, lsize: u64, compress: u8) -> Checked {
    let compress = Compress::from_u8(compress).filter(|_| compress != 0);
    let compress = compress.ok_or_else(|| Fault::Invalid("invalid compression of a raw block".into()))?;
    ensure(psize.is_multiple_of(MINBLOCKSIZE) && lsize.is_multiple_of(MINBLOCKSIZE), || {
        format!("sizes {psize} and {lsize} of a raw block are not multiples of 512")
    })?;
    ensure(compress != Compress::Off || psize == lsize, || {
        format!("physical size {psize} of an uncompressed raw block of {lsize} bytes")
    })
}

fn raw_object(r: &Object, slots: u8, capacity: u64) -> Checked {
    ensure(r.flags & !(DRR_OBJECT_SPILL | DRR_RAW_BYTESWAP) == 0, || format!("invalid flags {:#x}", r.flags))?;
    ensure(r.raw_bonuslen >= r.bonuslen, || {
        format!("raw bonus length {} < bonus length {}", r.raw_bonuslen, r.bonuslen)
    })?;
    ensure(r.indblkshift == 0 || (12..=17).contains(&r.indblkshift), || {
        format!("indirect block shift {} outside valid range 12-17", r.indblkshift)
    })?;
    ensure((1..=16).contains(&r.nlevels), || format!("tree depth {} outside valid range 1-16", r.nlevels))?;
    let expected = nblkptr(r.bonus_type, r.bonuslen, slots);
    ensure(r.nblkptr == expected, || {
        format!("blkptr count {} incompatible with bonus type {} length {}", r.nblkptr, r.bonus_type, r.bonuslen)
    })?;
    let spill = u64::from(r.flags & DRR_OBJECT_SPILL != 0);
    let room = capacity.checked_sub((u64::from(expected) - 1 + spill) * BLKPTR);
    let room = room.ok_or_else(|| Fault::Invalid(format!("spill flag incompatible with blkptr count {expected}")))?;
    at_most("raw bonus length", r.raw_bonuslen.into(), room)
}

fn free(object: ObjectId, offset: u64, length: u64) -> Checked {
    object_id(object)?;
    if length == u64::MAX { Ok(()) } else { no_overflow("offset and length", offset, length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OpenZFS 18773: the pointers of a multi-slot dnode beside an old znode; with too few the object was mistaken for another
    /// one.
    #[test]
    fn issue_18773_block_pointers_of_large_dnodes() {
        let znode = u32::from(ObjectType::ZNODE.0);
        for (len, slots, pointers) in
            [(0, 1, 3), (64, 1, 3), (192, 1, 2), (264, 1, 1), (320, 1, 1), (264, 2, 3), (832, 2, 1), (264, 32, 3)]
        {
            assert_eq!(nblkptr(znode, len, slots), pointers, "{len} bytes in {slots} slots");
        }
        assert_eq!(nblkptr(u32::from(ObjectType::SA.0), 168, 4), 1);
    }
}
