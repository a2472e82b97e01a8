//! The records of a send stream (OpenZFS: `dmu_replay_record_t`), in either byte order.
//!
//! A stream is a sequence of records of 312 bytes, each followed by its payload. The record holds a type, a payload length (set in BEGIN
//! only; elsewhere it follows from the fields: `Record::payload_size`), the fields of the type and, except in BEGIN, the running
//! fletcher4 of everything before its last 32 bytes. Layout: docs/format.md §15.
//!
//! A record with nonsensical numbers still decodes: the reader decides what to refuse, and a dump must show it.

use base::{Endian, Guid, ObjectId, bytes};

use crate::Error;

/// Bytes of a record.
pub const RECORD_SIZE: usize = 312;
/// Offset of the running checksum in every record but BEGIN.
pub const CHECKSUM_OFFSET: usize = RECORD_SIZE - 32;
/// Magic number of BEGIN, which identifies the byte order of the stream.
pub const DMU_BACKUP_MAGIC: u64 = 0x2_f5ba_cbac;
/// Number of types; this number and greater ones are invalid.
pub const DRR_NUMTYPES: u32 = 11;

/// Feature flags of a stream (OpenZFS: `DMU_BACKUP_FEATURE_*`), as in [`Begin::features`].
pub mod feature {
    /// Deduplicated stream: WRITE_BYREF records refer to earlier ones.
    pub const DEDUP: u64 = 1 << 0;
    /// Checksums of a deduplicated stream are those of blocks.
    pub const DEDUPPROPS: u64 = 1 << 1;
    /// Spill blocks of system attributes.
    pub const SA_SPILL: u64 = 1 << 2;
    /// WRITE_EMBEDDED records.
    pub const EMBED_DATA: u64 = 1 << 16;
    /// LZ4-compressed payloads.
    pub const LZ4: u64 = 1 << 17;
    /// Blocks above 128 KiB.
    pub const LARGE_BLOCKS: u64 = 1 << 19;
    /// The stream resumes an earlier one.
    pub const RESUMING: u64 = 1 << 20;
    /// The stream is redacted.
    pub const REDACTED: u64 = 1 << 21;
    /// WRITE payloads as compressed on disk.
    pub const COMPRESSED: u64 = 1 << 22;
    /// Dnodes above 512 bytes.
    pub const LARGE_DNODE: u64 = 1 << 23;
    /// Blocks as they are on disk, encrypted ones still encrypted.
    pub const RAW: u64 = 1 << 24;
    /// Zstandard-compressed payloads.
    pub const ZSTD: u64 = 1 << 25;
    /// The compound header contains holds.
    pub const HOLDS: u64 = 1 << 26;
    /// An incremental may switch to large blocks.
    pub const SWITCH_TO_LARGE_BLOCKS: u64 = 1 << 27;
    /// File names above 255 bytes.
    pub const LONGNAME: u64 = 1 << 28;
    /// Micro-ZAPs above 128 KiB.
    pub const LARGE_MICROZAP: u64 = 1 << 29;
    /// All features that OpenZFS 2.4 receives.
    pub const KNOWN: u64 = SA_SPILL
        | EMBED_DATA
        | LZ4
        | LARGE_BLOCKS
        | RESUMING
        | REDACTED
        | COMPRESSED
        | LARGE_DNODE
        | RAW
        | ZSTD
        | HOLDS
        | SWITCH_TO_LARGE_BLOCKS
        | LONGNAME
        | LARGE_MICROZAP;
}

/// [`Begin::flags`]: the stream is that of a clone.
pub const DRR_FLAG_CLONE: u32 = 1 << 0;
/// [`Begin::flags`]: names are case-insensitive.
pub const DRR_FLAG_CI_DATA: u32 = 1 << 1;
/// [`Begin::flags`]: a full stream has the FREE and FREEOBJECTS records that let it be received as a clone.
pub const DRR_FLAG_FREERECORDS: u32 = 1 << 2;
/// [`Begin::flags`]: [`DRR_OBJECT_SPILL`] and [`DRR_SPILL_UNMODIFIED`] are meaningful.
pub const DRR_FLAG_SPILL_BLOCK: u32 = 1 << 3;
/// Flag of a record: its checksum can be used for deduplication.
pub const DRR_CHECKSUM_DEDUP: u8 = 1 << 0;
/// Flag of a record: the raw block was written in the other byte order.
pub const DRR_RAW_BYTESWAP: u8 = 1 << 1;
/// Flag of OBJECT: the object has a spill block.
pub const DRR_OBJECT_SPILL: u8 = 1 << 2;
/// Flag of SPILL: sent for older receivers; the block is unchanged.
pub const DRR_SPILL_UNMODIFIED: u8 = 1 << 2;

/// A fixed-size field of a record.
trait Field: Sized {
    fn get(buf: &[u8], off: usize, e: Endian) -> Option<Self>;
    fn put(&self, buf: &mut [u8], off: usize, e: Endian);
}

fn store(buf: &mut [u8], off: usize, b: &[u8]) {
    if let Some(to) = buf.get_mut(off..off.saturating_add(b.len())) {
        to.copy_from_slice(b);
    }
}

impl Field for u8 {
    fn get(buf: &[u8], off: usize, _: Endian) -> Option<Self> {
        bytes::u8(buf, off)
    }
    fn put(&self, buf: &mut [u8], off: usize, _: Endian) {
        store(buf, off, &[*self]);
    }
}

impl Field for u32 {
    fn get(buf: &[u8], off: usize, e: Endian) -> Option<Self> {
        bytes::u32(buf, off, e)
    }
    fn put(&self, buf: &mut [u8], off: usize, e: Endian) {
        store(buf, off, &e.put_u32(*self));
    }
}

impl Field for u64 {
    fn get(buf: &[u8], off: usize, e: Endian) -> Option<Self> {
        bytes::u64(buf, off, e)
    }
    fn put(&self, buf: &mut [u8], off: usize, e: Endian) {
        store(buf, off, &e.put_u64(*self));
    }
}

impl Field for Guid {
    fn get(buf: &[u8], off: usize, e: Endian) -> Option<Self> {
        u64::get(buf, off, e).map(Guid)
    }
    fn put(&self, buf: &mut [u8], off: usize, e: Endian) {
        self.0.put(buf, off, e);
    }
}

impl Field for ObjectId {
    fn get(buf: &[u8], off: usize, e: Endian) -> Option<Self> {
        u64::get(buf, off, e).map(ObjectId)
    }
    fn put(&self, buf: &mut [u8], off: usize, e: Endian) {
        self.0.put(buf, off, e);
    }
}

impl Field for [u64; 4] {
    fn get(buf: &[u8], off: usize, e: Endian) -> Option<Self> {
        let word = |n: usize| bytes::u64(buf, off + n * 8, e);
        Some([word(0)?, word(1)?, word(2)?, word(3)?])
    }
    fn put(&self, buf: &mut [u8], off: usize, e: Endian) {
        for (n, w) in self.iter().enumerate() {
            store(buf, off + n * 8, &e.put_u64(*w));
        }
    }
}

/// A deduplication key (OpenZFS: `ddt_key_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DdtKey {
    /// Checksum of the block.
    pub cksum: [u64; 4],
    /// Its sizes and compression.
    pub prop: u64,
}

impl Field for DdtKey {
    fn get(buf: &[u8], off: usize, e: Endian) -> Option<Self> {
        Some(DdtKey { cksum: Field::get(buf, off, e)?, prop: Field::get(buf, off + 32, e)? })
    }
    fn put(&self, buf: &mut [u8], off: usize, e: Endian) {
        self.cksum.put(buf, off, e);
        self.prop.put(buf, off + 32, e);
    }
}

/// The encryption parameters of a raw block; all zero in other streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CryptParams {
    /// Salt of the block's key.
    pub salt: [u8; 8],
    /// Initialisation vector.
    pub iv: [u8; 12],
    /// Authentication code.
    pub mac: [u8; 16],
}

impl Field for CryptParams {
    fn get(buf: &[u8], off: usize, _: Endian) -> Option<Self> {
        Some(CryptParams {
            salt: bytes::array(buf, off)?,
            iv: bytes::array(buf, off + 8)?,
            mac: bytes::array(buf, off + 20)?,
        })
    }
    fn put(&self, buf: &mut [u8], off: usize, _: Endian) {
        store(buf, off, &self.salt);
        store(buf, off + 8, &self.iv);
        store(buf, off + 20, &self.mac);
    }
}

impl Field for Box<[u8; 256]> {
    fn get(buf: &[u8], off: usize, _: Endian) -> Option<Self> {
        bytes::array(buf, off).map(Box::new)
    }
    fn put(&self, buf: &mut [u8], off: usize, _: Endian) {
        store(buf, off, self.as_slice());
    }
}

macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty = $off:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

        impl $name {
            fn get(buf: &[u8], e: Endian) -> Option<Self> {
                Some($name { $($field: Field::get(buf, $off, e)?,)* })
            }
            fn put(&self, buf: &mut [u8], e: Endian) {
                $(self.$field.put(buf, $off, e);)*
            }
        }
    };
}

record! {
    /// Begins a stream or substream; its payload is an nvlist.
    Begin {
        /// [`DMU_BACKUP_MAGIC`].
        magic: u64 = 8,
        /// Header type 2@0 and feature flags 56@2.
        versioninfo: u64 = 16,
        /// Creation time of the snapshot, seconds since 1970.
        creation_time: u64 = 24,
        /// Type of the object set: 2 file system, 3 volume.
        objset_type: u32 = 32,
        /// `DRR_FLAG_*`.
        flags: u32 = 36,
        /// The snapshot.
        toguid: Guid = 40,
        /// The snapshot or bookmark that an incremental stream starts from, or 0.
        fromguid: Guid = 48,
        /// Name of the snapshot, NUL-terminated.
        toname: Box<[u8; 256]> = 56,
    }
}

impl Begin {
    /// 1: a substream; 2: the header of a compound stream.
    #[must_use]
    pub const fn hdrtype(&self) -> u8 {
        bytes::bits(self.versioninfo, 0, 2) as u8
    }

    /// Feature flags, see [`feature`].
    #[must_use]
    pub const fn features(&self) -> u64 {
        bytes::bits(self.versioninfo, 2, 56)
    }

    /// The name up to its NUL.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        bytes::until_nul(self.toname.as_slice())
    }
}

record! {
    /// An object exists, with this dnode.
    Object {
        /// Its number.
        object: ObjectId = 8,
        /// Its type.
        object_type: u32 = 16,
        /// Type of the bonus.
        bonus_type: u32 = 20,
        /// Block size in bytes.
        blksz: u32 = 24,
        /// Bytes of the bonus in use.
        bonuslen: u32 = 28,
        /// Checksum algorithm.
        checksumtype: u8 = 32,
        /// Compression algorithm.
        compress: u8 = 33,
        /// Slots of 512 bytes that the dnode takes (0 is 1).
        dn_slots: u8 = 34,
        /// `DRR_*`.
        flags: u8 = 35,
        /// Bytes of the bonus as stored (raw streams), else 0.
        raw_bonuslen: u32 = 36,
        /// The snapshot.
        toguid: Guid = 40,
        /// Indirect block shift (raw streams).
        indblkshift: u8 = 48,
        /// Levels (raw streams).
        nlevels: u8 = 49,
        /// Block pointers in the dnode (raw streams).
        nblkptr: u8 = 50,
        /// Last block (raw streams).
        maxblkid: u64 = 56,
    }
}

record! {
    /// The objects of a range do not exist.
    FreeObjects {
        /// The first.
        firstobj: ObjectId = 8,
        /// The number of objects.
        numobjs: u64 = 16,
        /// The snapshot.
        toguid: Guid = 24,
    }
}

record! {
    /// Data of an object; the payload is a block, possibly compressed.
    Write {
        /// The object.
        object: ObjectId = 8,
        /// Its type.
        object_type: u32 = 16,
        /// Byte offset.
        offset: u64 = 24,
        /// Bytes, uncompressed.
        logical_size: u64 = 32,
        /// The snapshot.
        toguid: Guid = 40,
        /// Checksum algorithm of the key.
        checksumtype: u8 = 48,
        /// `DRR_*`.
        flags: u8 = 49,
        /// Compression of the payload; 0 none.
        compressiontype: u8 = 50,
        /// Deduplication key.
        key: DdtKey = 56,
        /// Bytes of a compressed payload.
        compressed_size: u64 = 96,
        /// Encryption (raw streams).
        crypt: CryptParams = 104,
    }
}

record! {
    /// A hole.
    Free {
        /// The object.
        object: ObjectId = 8,
        /// Byte offset.
        offset: u64 = 16,
        /// Bytes; all ones: to the end.
        length: u64 = 24,
        /// The snapshot.
        toguid: Guid = 32,
    }
}

record! {
    /// Ends a substream.
    End {
        /// Running checksum before this record.
        checksum: [u64; 4] = 8,
        /// The snapshot.
        toguid: Guid = 40,
    }
}

record! {
    /// Data equal to an earlier WRITE (deduplicated streams, no longer produced).
    WriteByref {
        /// The object.
        object: ObjectId = 8,
        /// Byte offset.
        offset: u64 = 16,
        /// Bytes.
        length: u64 = 24,
        /// The snapshot.
        toguid: Guid = 32,
        /// The snapshot of the earlier record.
        refguid: Guid = 40,
        /// Its object.
        refobject: ObjectId = 48,
        /// Its offset.
        refoffset: u64 = 56,
        /// Checksum algorithm of the key.
        checksumtype: u8 = 64,
        /// `DRR_*`.
        flags: u8 = 65,
        /// Deduplication key.
        key: DdtKey = 72,
    }
}

record! {
    /// The spill block of an object.
    Spill {
        /// The object.
        object: ObjectId = 8,
        /// Bytes, uncompressed.
        length: u64 = 16,
        /// The snapshot.
        toguid: Guid = 24,
        /// `DRR_*`.
        flags: u8 = 32,
        /// Compression of the payload.
        compressiontype: u8 = 33,
        /// Bytes of the payload if not 0 (raw streams).
        compressed_size: u64 = 40,
        /// Encryption (raw streams).
        crypt: CryptParams = 48,
        /// Type of the block's object.
        object_type: u32 = 84,
    }
}

record! {
    /// A block that was embedded in its pointer; the payload is the pointer's contents, padded to 8 bytes.
    WriteEmbedded {
        /// The object.
        object: ObjectId = 8,
        /// Byte offset.
        offset: u64 = 16,
        /// Bytes, uncompressed: the block size.
        length: u64 = 24,
        /// The snapshot.
        toguid: Guid = 32,
        /// Compression of the payload.
        compression: u8 = 40,
        /// Type of embedded data.
        etype: u8 = 41,
        /// Bytes before compression.
        lsize: u32 = 48,
        /// Bytes of the payload without the padding.
        psize: u32 = 52,
    }
}

record! {
    /// The encryption parameters of a block of 32 dnodes (raw streams); precedes its OBJECT records.
    ObjectRange {
        /// First object.
        firstobj: ObjectId = 8,
        /// Dnode slots.
        numslots: u64 = 16,
        /// The snapshot.
        toguid: Guid = 24,
        /// Encryption.
        crypt: CryptParams = 32,
        /// `DRR_*`.
        flags: u8 = 68,
    }
}

record! {
    /// Data that a redacted stream omits.
    Redact {
        /// The object.
        object: ObjectId = 8,
        /// Byte offset.
        offset: u64 = 16,
        /// Bytes.
        length: u64 = 24,
        /// The snapshot.
        toguid: Guid = 32,
    }
}

/// The type of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum RecordType {
    /// [`Begin`].
    Begin = 0,
    /// [`Object`].
    Object = 1,
    /// [`FreeObjects`].
    FreeObjects = 2,
    /// [`Write`].
    Write = 3,
    /// [`Free`].
    Free = 4,
    /// [`End`].
    End = 5,
    /// [`WriteByref`].
    WriteByref = 6,
    /// [`Spill`].
    Spill = 7,
    /// [`WriteEmbedded`].
    WriteEmbedded = 8,
    /// [`ObjectRange`].
    ObjectRange = 9,
    /// [`Redact`].
    Redact = 10,
}

/// One record, without its payload length word and running checksum.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Record {
    Begin(Begin),
    Object(Object),
    FreeObjects(FreeObjects),
    Write(Write),
    Free(Free),
    End(End),
    WriteByref(WriteByref),
    Spill(Spill),
    WriteEmbedded(WriteEmbedded),
    ObjectRange(ObjectRange),
    Redact(Redact),
}

/// A record with the words common to all types.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The payload length word: the length in BEGIN, 0 elsewhere.
    pub payloadlen: u32,
    /// The running checksum as stored. In BEGIN these bytes belong to the name.
    pub checksum: [u64; 4],
    /// The fields of the type.
    pub record: Record,
}

impl Header {
    /// The type number of a record, which may be unknown.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn record_type(buf: &[u8], e: Endian) -> Result<u32, Error> {
        bytes::u32(buf, 0, e).ok_or_else(|| Error::short("send record", RECORD_SIZE, buf.len()))
    }

    /// Decodes a record of 312 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`]; [`Error::Invalid`] for an unknown type.
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let what = "send record";
        let short = || Error::short(what, RECORD_SIZE, buf.len());
        let fields = buf.get(..RECORD_SIZE).ok_or_else(short)?;
        let kind = Self::record_type(fields, e)?;
        let record = match kind {
            0 => Begin::get(fields, e).map(Record::Begin),
            1 => Object::get(fields, e).map(Record::Object),
            2 => FreeObjects::get(fields, e).map(Record::FreeObjects),
            3 => Write::get(fields, e).map(Record::Write),
            4 => Free::get(fields, e).map(Record::Free),
            5 => End::get(fields, e).map(Record::End),
            6 => WriteByref::get(fields, e).map(Record::WriteByref),
            7 => Spill::get(fields, e).map(Record::Spill),
            8 => WriteEmbedded::get(fields, e).map(Record::WriteEmbedded),
            9 => ObjectRange::get(fields, e).map(Record::ObjectRange),
            10 => Redact::get(fields, e).map(Record::Redact),
            value => return Err(Error::Invalid { what, field: "type", value: value.into() }),
        };
        Ok(Header {
            payloadlen: bytes::u32(fields, 4, e).ok_or_else(short)?,
            checksum: Field::get(fields, CHECKSUM_OFFSET, e).ok_or_else(short)?,
            record: record.ok_or_else(short)?,
        })
    }

    /// The 312 bytes of the record; padding is zero.
    #[must_use]
    pub fn encode(&self, e: Endian) -> [u8; RECORD_SIZE] {
        let mut buf = [0; RECORD_SIZE];
        (self.record.kind() as u32).put(&mut buf, 0, e);
        self.payloadlen.put(&mut buf, 4, e);
        match &self.record {
            Record::Begin(r) => r.put(&mut buf, e),
            Record::Object(r) => r.put(&mut buf, e),
            Record::FreeObjects(r) => r.put(&mut buf, e),
            Record::Write(r) => r.put(&mut buf, e),
            Record::Free(r) => r.put(&mut buf, e),
            Record::End(r) => r.put(&mut buf, e),
            Record::WriteByref(r) => r.put(&mut buf, e),
            Record::Spill(r) => r.put(&mut buf, e),
            Record::WriteEmbedded(r) => r.put(&mut buf, e),
            Record::ObjectRange(r) => r.put(&mut buf, e),
            Record::Redact(r) => r.put(&mut buf, e),
        }
        if !matches!(self.record, Record::Begin(_)) {
            self.checksum.put(&mut buf, CHECKSUM_OFFSET, e);
        }
        buf
    }

    /// Bytes that follow the record, as it claims. Not checked against any limit.
    #[must_use]
    pub fn payload_size(&self) -> u64 {
        match &self.record {
            Record::Begin(_) => self.payloadlen.into(),
            Record::Object(r) if r.raw_bonuslen != 0 => r.raw_bonuslen.into(),
            Record::Object(r) => u64::from(r.bonuslen).next_multiple_of(8),
            Record::Write(r) if r.compressiontype != 0 => r.compressed_size,
            Record::Write(r) => r.logical_size,
            Record::Spill(r) if r.compressed_size != 0 => r.compressed_size,
            Record::Spill(r) => r.length,
            Record::WriteEmbedded(r) => u64::from(r.psize).next_multiple_of(8),
            _ => 0,
        }
    }
}

impl Record {
    /// Its type.
    #[must_use]
    pub const fn kind(&self) -> RecordType {
        match self {
            Record::Begin(_) => RecordType::Begin,
            Record::Object(_) => RecordType::Object,
            Record::FreeObjects(_) => RecordType::FreeObjects,
            Record::Write(_) => RecordType::Write,
            Record::Free(_) => RecordType::Free,
            Record::End(_) => RecordType::End,
            Record::WriteByref(_) => RecordType::WriteByref,
            Record::Spill(_) => RecordType::Spill,
            Record::WriteEmbedded(_) => RecordType::WriteEmbedded,
            Record::ObjectRange(_) => RecordType::ObjectRange,
            Record::Redact(_) => RecordType::Redact,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A record in which every byte differs, so that a wrong offset is detected.
    fn pattern(kind: u32, e: Endian) -> Vec<u8> {
        let mut buf: Vec<u8> = (0..RECORD_SIZE).map(|n| (n * 7 + 3) as u8).collect();
        buf[..4].copy_from_slice(&e.put_u32(kind));
        buf
    }

    #[test]
    fn every_record_survives_a_round_trip_in_both_byte_orders() {
        for e in [Endian::Little, Endian::Big] {
            for kind in 0..DRR_NUMTYPES {
                let one = Header::decode(&pattern(kind, e), e).unwrap();
                assert_eq!(one.record.kind() as u32, kind);
                let bytes = one.encode(e);
                let two = Header::decode(&bytes, e).unwrap();
                assert_eq!(one, two, "type {kind}");
                assert_eq!(one.encode(e.swapped()).len(), RECORD_SIZE);
                let swapped = Header::decode(&one.encode(e.swapped()), e.swapped()).unwrap();
                assert_eq!(swapped.record, one.record, "type {kind} in the other order");
            }
        }
    }

    #[test]
    fn a_short_or_unknown_record_is_refused() {
        assert!(matches!(Header::decode(&[0; 311], Endian::Little), Err(Error::Truncated { .. })));
        assert!(matches!(Header::decode(&pattern(11, Endian::Little), Endian::Little), Err(Error::Invalid { .. })));
    }

    #[test]
    fn the_payload_size_follows_from_the_fields() {
        let mut buf = vec![0; RECORD_SIZE];
        buf[0] = 1;
        buf[28] = 44;
        assert_eq!(Header::decode(&buf, Endian::Little).unwrap().payload_size(), 48);
        buf[36] = 50;
        assert_eq!(Header::decode(&buf, Endian::Little).unwrap().payload_size(), 50);
        let mut embedded = vec![0; RECORD_SIZE];
        embedded[0] = 8;
        embedded[52..56].copy_from_slice(&[0xff; 4]);
        assert_eq!(Header::decode(&embedded, Endian::Little).unwrap().payload_size(), 1 << 32);
    }
}
