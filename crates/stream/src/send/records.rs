//! Converts ranges to records: lays them out in a chunk of the stream, and notes the payloads that are still to be read (OpenZFS:
//! `do_dump`).
//!
//! Neighbouring holes, and neighbouring free object numbers, become one record; that record is held back until a different one
//! follows.

use base::{Guid, ObjectId};
use codec::ChecksumKind;
use ondisk::send::{
    CryptParams, DRR_CHECKSUM_DEDUP, DRR_OBJECT_SPILL, DRR_RAW_BYTESWAP, DRR_SPILL_UNMODIFIED, DdtKey, Free,
    FreeObjects, Header, Object, ObjectRange, RECORD_SIZE, Record, Redact, Spill, Write, WriteEmbedded, feature,
};
use ondisk::{BlkPtr, DnodePhys, EmbeddedType, ObjectType, byteswap};
use zio::{Bookmark, Stage};

use super::chunk::{Chunk, Fill};
use super::traverse::{DNODES_PER_BLOCK, OBJECT_END, Range, ResumeAt, check_spill};
use super::{Emit, Error, OURS};

/// The largest block that every receiver accepts (OpenZFS: `SPA_OLD_MAXBLOCKSIZE`).
const OLD_MAXBLOCKSIZE: u64 = 128 << 10;
/// The compressions below this one (lz4) were sent before streams declared their compression (OpenZFS:
/// `ZIO_COMPRESS_LEGACY_FUNCTIONS`).
const COMPRESS_LEGACY: u8 = 15;
const COMPRESS_ZSTD: u8 = 16;
const COMPRESS_OFF: u8 = 2;

/// The state that turns ranges into records.
pub(super) struct Scribe<'a> {
    pub(super) objset: ObjectId,
    pub(super) toguid: Guid,
    /// Feature flags of the stream.
    pub(super) features: u64,
    /// The txg of the base that the receiver has.
    pub(super) from: base::Txg,
    /// The limit of the receiver's object numbers: higher ones are free in any case.
    pub(super) max_object: ObjectId,
    pub(super) resume: ResumeAt,
    pub(super) unmodified_spills: bool,
    /// The record that is held back because it may still grow.
    pub(super) pending: Option<Record>,
    pub(super) chunk: Chunk,
    /// The function that accepts full chunks.
    pub(super) emit: Emit<'a>,
}

impl Scribe<'_> {
    fn has(&self, flag: u64) -> bool {
        self.features & flag != 0
    }

    /// Adds a record with its payload.
    pub(super) fn put(&mut self, record: Record, payload: &[u8], fill: Option<Fill>, len: u64) -> Result<(), Error> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if !self.chunk.has_room(RECORD_SIZE + len) {
            let full = std::mem::take(&mut self.chunk);
            self.chunk = (self.emit)(full)?;
        }
        let payloadlen = if matches!(record, Record::Begin(_)) { len as u32 } else { 0 };
        let header = Header { payloadlen, checksum: [0; 4], record };
        self.chunk.put(&header.encode(OURS), payload, fill, len);
        Ok(())
    }

    fn plain(&mut self, record: Record) -> Result<(), Error> {
        self.put(record, &[], None, 0)
    }

    /// Writes the record that is held back.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.pending.take().map_or(Ok(()), |record| self.plain(record))
    }

    /// Emits the last chunk.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        let last = std::mem::take(&mut self.chunk);
        (self.emit)(last).map(drop)
    }

    /// Converts one range.
    pub(super) fn take(&mut self, range: Range) -> Result<(), Error> {
        match range {
            Range::Dnodes { bp, first, slots } if self.has(feature::RAW) => self.dnodes(&bp, first, slots),
            Range::Dnodes { .. } => Ok(()),
            Range::Object { object, dnode, bonus, swapped } => self.object(object, &dnode, &bonus, swapped),
            Range::NoObjects { first, count } => self.free_objects(first, count),
            Range::Data { object, offset, block_size, object_type, bp } => {
                self.data(object, offset, block_size, object_type, &bp)
            }
            Range::Spill { object, bp } => self.spill(object, &bp),
            Range::Hole { object, offset, length } => self.free(object, offset, length),
            Range::Redacted { object, offset, length } => self.redact(object, offset, length),
        }
    }

    fn dnodes(&mut self, bp: &BlkPtr, firstobj: ObjectId, numslots: u64) -> Result<(), Error> {
        self.flush()?;
        let flags = if bp.endian() == OURS { 0 } else { DRR_RAW_BYTESWAP };
        let range = ObjectRange { firstobj, numslots, toguid: self.toguid, crypt: crypt_params(bp), flags };
        self.plain(Record::ObjectRange(range))
    }

    fn free_objects(&mut self, first: ObjectId, count: u64) -> Result<(), Error> {
        let count = count.min(self.max_object.0.saturating_sub(first.0));
        if count == 0 {
            return Ok(());
        }
        if let Some(Record::FreeObjects(before)) = &mut self.pending
            && before.firstobj.checked_add(before.numobjs) == Some(first)
        {
            before.numobjs += count;
            return Ok(());
        }
        self.flush()?;
        self.pending = Some(Record::FreeObjects(FreeObjects { firstobj: first, numobjs: count, toguid: self.toguid }));
        Ok(())
    }

    fn free(&mut self, object: ObjectId, offset: u64, length: u64) -> Result<(), Error> {
        let past_all = offset.checked_add(length).is_none();
        if let Some(Record::Free(before)) = &mut self.pending
            && before.object == object
            && before.offset.checked_add(before.length) == Some(offset)
        {
            before.length = if past_all { OBJECT_END } else { before.length + length };
            return Ok(());
        }
        self.flush()?;
        let kept = if past_all { OBJECT_END } else { length };
        let record = Record::Free(Free { object, offset, length: kept, toguid: self.toguid });
        if length == OBJECT_END {
            return self.plain(record);
        }
        self.pending = Some(record);
        Ok(())
    }

    fn redact(&mut self, object: ObjectId, offset: u64, length: u64) -> Result<(), Error> {
        if let Some(Record::Redact(before)) = &mut self.pending
            && before.object == object
            && before.offset.checked_add(before.length) == Some(offset)
        {
            before.length = before.length.saturating_add(length);
            return Ok(());
        }
        self.flush()?;
        self.pending = Some(Record::Redact(Redact { object, offset, length, toguid: self.toguid }));
        Ok(())
    }

    fn object(&mut self, object: ObjectId, dnode: &DnodePhys, bonus: &[u8], swapped: bool) -> Result<(), Error> {
        self.flush()?;
        let raw = self.has(feature::RAW);
        let mut record = Object {
            object,
            object_type: dnode.object_type.0.into(),
            bonus_type: dnode.bonus_type.0.into(),
            blksz: dnode.datablksz() as u32,
            bonuslen: dnode.bonus.len() as u32,
            checksumtype: dnode.checksum,
            compress: dnode.compress,
            dn_slots: dnode.extra_slots.saturating_add(1),
            flags: if dnode.spill.is_some() { DRR_OBJECT_SPILL } else { 0 },
            raw_bonuslen: 0,
            toguid: self.toguid,
            indblkshift: 0,
            nlevels: 0,
            nblkptr: 0,
            maxblkid: 0,
        };
        if !self.has(feature::LARGE_BLOCKS) {
            record.blksz = record.blksz.min(OLD_MAXBLOCKSIZE as u32);
        }
        if raw {
            record.flags |= if swapped { DRR_RAW_BYTESWAP } else { 0 };
            (record.indblkshift, record.nlevels) = (dnode.indblkshift, dnode.nlevels);
            (record.nblkptr, record.maxblkid) = (dnode.blkptr.len() as u8, dnode.maxblkid);
            record.raw_bonuslen = bonus.len() as u32;
        }
        self.put(Record::Object(record), bonus, None, bonus.len() as u64)?;
        // frees whatever the receiver has beyond the end
        let end = dnode.maxblkid.saturating_add(1).saturating_mul(dnode.datablksz());
        self.free(object, end, OBJECT_END)?;
        match &dnode.spill {
            Some(bp) if self.unmodified_spills && bp.birth_logical() <= self.from => {
                check_spill(object, bp)?;
                self.spill(object, bp)
            }
            _ => Ok(()),
        }
    }

    fn spill(&mut self, object: ObjectId, bp: &BlkPtr) -> Result<(), Error> {
        self.flush()?;
        let raw = self.has(feature::RAW);
        let mut record = Spill {
            object,
            length: bp.lsize(),
            toguid: self.toguid,
            flags: 0,
            compressiontype: 0,
            compressed_size: 0,
            crypt: CryptParams::default(),
            object_type: 0,
        };
        if self.unmodified_spills && bp.birth_logical() <= self.from {
            record.flags |= DRR_SPILL_UNMODIFIED;
        }
        let stage = if raw { Stage::Stored } else { Stage::Logical };
        if raw && bp.is_embedded() {
            return Err(Error::Forged { object });
        }
        if raw {
            record.flags |= if bp.endian() == OURS { 0 } else { DRR_RAW_BYTESWAP };
            (record.compressiontype, record.compressed_size) = (bp.compression(), bp.psize());
            record.crypt = crypt_params(bp);
        }
        let bm = Bookmark::new(self.objset, object, 0, Bookmark::SPILL_BLKID);
        self.put(Record::Spill(record), &[], Some(Fill::whole(bp, bm, stage)), stage.size(bp))
    }

    fn data(&mut self, object: ObjectId, offset: u64, size: u64, kind: ObjectType, bp: &BlkPtr) -> Result<(), Error> {
        if (object, offset) < (self.resume.object, self.resume.offset) {
            return Ok(());
        }
        self.flush()?;
        if self.may_embed(bp) {
            return self.embedded(object, offset, size, bp);
        }
        let bm = Bookmark::new(self.objset, object, 0, offset / size.max(1));
        let split = size > OLD_MAXBLOCKSIZE && !self.has(feature::LARGE_BLOCKS);
        let raw = self.has(feature::RAW);
        if split {
            for part in (0..size).step_by(OLD_MAXBLOCKSIZE as usize) {
                let len = OLD_MAXBLOCKSIZE.min(size - part);
                let record = Record::Write(self.write(object, offset + part, len, kind));
                self.put(record, &[], Some(Fill::part(bp, bm, part)), len)?;
            }
            return Ok(());
        }
        let compressed = self.has(feature::COMPRESSED)
            && bp.endian() == OURS
            && !bp.is_embedded()
            && !bp.object_type().is_metadata();
        let stage = if raw {
            Stage::Stored
        } else if compressed {
            Stage::Opened
        } else {
            Stage::Logical
        };
        let mut record = self.write(object, offset, size, kind);
        if raw || (compressed && bp.compression() != COMPRESS_OFF) {
            (record.compressiontype, record.compressed_size) = (bp.compression(), bp.psize());
        }
        if raw {
            record.flags |= if bp.endian() == OURS { 0 } else { DRR_RAW_BYTESWAP };
            record.crypt = crypt_params(bp);
        }
        if !bp.is_embedded() && (raw || !bp.uses_crypt()) {
            record.checksumtype = bp.checksum();
            let dedup = ChecksumKind::from_u8(bp.checksum()).is_some_and(ChecksumKind::is_dedup);
            record.flags |= if dedup { DRR_CHECKSUM_DEDUP } else { 0 };
            let key = ondisk::ddt::DdtKey::of(bp);
            record.key = DdtKey { cksum: key.cksum, prop: key.prop };
        }
        self.put(Record::Write(record), &[], Some(Fill::whole(bp, bm, stage)), stage.size(bp))
    }

    fn write(&self, object: ObjectId, offset: u64, logical_size: u64, kind: ObjectType) -> Write {
        Write {
            object,
            object_type: kind.0.into(),
            offset,
            logical_size,
            toguid: self.toguid,
            checksumtype: COMPRESS_OFF,
            flags: 0,
            compressiontype: 0,
            key: DdtKey::default(),
            compressed_size: 0,
            crypt: CryptParams::default(),
        }
    }

    fn may_embed(&self, bp: &BlkPtr) -> bool {
        bp.embedded_type() == Some(EmbeddedType::Data)
            && self.has(feature::EMBED_DATA)
            // the stream does not state the byte order of embedded data
            && (bp.endian() == OURS || byteswap::is_orderless(bp.object_type()))
            && (bp.compression() < COMPRESS_LEGACY || self.has(feature::LZ4))
            && (bp.compression() != COMPRESS_ZSTD || self.has(feature::ZSTD))
    }

    fn embedded(&mut self, object: ObjectId, offset: u64, length: u64, bp: &BlkPtr) -> Result<(), Error> {
        let psize = bp.psize();
        let mut payload = bp.embedded_payload();
        let rounded = psize.next_multiple_of(8) as usize;
        assert!(rounded <= payload.len(), "a pointer with {psize} bytes of data was not checked");
        payload.iter_mut().skip(psize as usize).for_each(|byte| *byte = 0);
        let record = WriteEmbedded {
            object,
            offset,
            length,
            toguid: self.toguid,
            compression: bp.compression(),
            etype: 0,
            lsize: bp.lsize() as u32,
            psize: psize as u32,
        };
        let payload = payload.get(..rounded).unwrap_or_default();
        self.put(Record::WriteEmbedded(record), payload, None, rounded as u64)
    }
}

/// Returns the limit of object numbers in an object set with this meta-dnode (OpenZFS: `dump_freeobjects`).
pub(super) fn max_object(meta: &DnodePhys) -> ObjectId {
    ObjectId(DNODES_PER_BLOCK.saturating_mul(meta.maxblkid.saturating_add(1)))
}

/// Returns the encryption parameters of a block, for a raw stream.
fn crypt_params(bp: &BlkPtr) -> CryptParams {
    CryptParams { salt: bp.salt().to_le_bytes(), iv: bp.iv(), mac: bp.mac() }
}
