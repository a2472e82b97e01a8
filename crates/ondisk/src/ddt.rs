//! The dedup table's keys, values, statistics and log (docs/format.md §13.1).

use base::{Endian, Txg, bytes};

use crate::{BlkPtr, Dva, Error, SECTOR_SHIFT};

/// The identity of a block in the dedup table (OpenZFS: `ddt_key_t`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct DdtKey {
    /// The checksum.
    pub cksum: [u64; 4],
    /// lsize 16@0, psize 16@16 (512 B units, bias 1), compression 7@32, crypt 1@39.
    pub prop: u64,
}

impl DdtKey {
    /// Bytes on disk.
    pub const SIZE: usize = 40;

    /// Builds it from five words, as in a ZAP key or a log record.
    #[must_use]
    pub const fn from_words(w: [u64; 5]) -> Self {
        DdtKey { cksum: [w[0], w[1], w[2], w[3]], prop: w[4] }
    }

    /// Decodes 40 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let w = |n: usize| bytes::u64(buf, n * 8, e).ok_or(Error::short("dedup key", Self::SIZE, buf.len()));
        Ok(DdtKey { cksum: [w(0)?, w(1)?, w(2)?, w(3)?], prop: w(4)? })
    }

    /// The key of the block that `bp` points to or will point to: addresses do not count.
    #[must_use]
    pub fn of(bp: &BlkPtr) -> Self {
        // sizes as in the pointer: without addresses it looks like a hole, which has no size
        let sizes = bytes::bits(bp.words[6], 0, 32);
        let prop = bytes::with_bits(0, 0, 32, sizes);
        let prop = bytes::with_bits(prop, 32, 7, bp.compression().into());
        DdtKey { cksum: bp.cksum(), prop: bytes::with_bits(prop, 39, 1, bp.uses_crypt().into()) }
    }

    /// Bytes of the block.
    #[must_use]
    pub const fn lsize(&self) -> u64 {
        (bytes::bits(self.prop, 0, 16) + 1) << SECTOR_SHIFT
    }

    /// Bytes as stored.
    #[must_use]
    pub const fn psize(&self) -> u64 {
        (bytes::bits(self.prop, 16, 16) + 1) << SECTOR_SHIFT
    }

    /// Compression number.
    #[must_use]
    pub const fn compression(&self) -> u8 {
        bytes::bits(self.prop, 32, 7) as u8
    }

    /// True if the block is encrypted.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        bytes::bits(self.prop, 39, 1) != 0
    }
}

/// The addresses of a block's copies and its reference count: one slot of a traditional value, or a flat value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DdtPhys {
    /// Up to three copies. For an encrypted block the third holds salt and IV.
    pub dva: [Dva; 3],
    /// References.
    pub refcnt: u64,
    /// Txg of the write, 0 for an unused slot.
    pub phys_birth: Txg,
    /// Flat values: the time at which the entry entered its class, in seconds since 1970.
    pub class_start: u64,
}

/// The value of an entry: one flat slot, or four traditional ones (0 ditto, 1 to 3 by number of copies).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DdtValue {
    /// The slots, including unused ones.
    pub slots: Vec<DdtPhys>,
    /// True if this is the flat form of fast dedup.
    pub flat: bool,
}

impl DdtValue {
    /// Bytes of a flat value.
    pub const FLAT_SIZE: usize = 72;
    /// Bytes of a traditional value.
    pub const TRADITIONAL_SIZE: usize = 256;

    /// Bytes of a value.
    #[must_use]
    pub const fn size(flat: bool) -> usize {
        if flat { Self::FLAT_SIZE } else { Self::TRADITIONAL_SIZE }
    }

    /// Decodes an uncompressed value.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], flat: bool, e: Endian) -> Result<Self, Error> {
        let w = |n: usize| bytes::u64(buf, n * 8, e).ok_or(Error::short("dedup value", Self::size(flat), buf.len()));
        let slot = |at: usize| -> Result<DdtPhys, Error> {
            let dva = |n: usize| -> Result<Dva, Error> { Ok(Dva { word0: w(at + n * 2)?, word1: w(at + n * 2 + 1)? }) };
            Ok(DdtPhys {
                dva: [dva(0)?, dva(1)?, dva(2)?],
                refcnt: w(at + 6)?,
                phys_birth: Txg(w(at + 7)?),
                class_start: if flat { w(at + 8)? } else { 0 },
            })
        };
        let slots = if flat { vec![slot(0)?] } else { (0..4).map(|n| slot(n * 8)).collect::<Result<_, _>>()? };
        Ok(DdtValue { slots, flat })
    }

    /// References in all slots.
    #[must_use]
    pub fn total_refcnt(&self) -> u64 {
        self.slots.iter().fold(0, |sum, s| sum.saturating_add(s.refcnt))
    }
}

/// Entries of one table, or of one power-of-two of reference counts (OpenZFS: `ddt_stat_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DdtStat {
    /// Entries.
    pub blocks: u64,
    /// Logical bytes of them.
    pub lsize: u64,
    /// Stored bytes of them.
    pub psize: u64,
    /// Allocated bytes of them.
    pub dsize: u64,
    /// References.
    pub ref_blocks: u64,
    /// Logical bytes times references.
    pub ref_lsize: u64,
    /// Stored bytes times references.
    pub ref_psize: u64,
    /// Allocated bytes times references.
    pub ref_dsize: u64,
}

impl DdtStat {
    /// Words of it.
    pub const WORDS: usize = 8;

    /// Builds it from its words.
    #[must_use]
    pub const fn from_words(w: [u64; Self::WORDS]) -> Self {
        let [blocks, lsize, psize, dsize, ref_blocks, ref_lsize, ref_psize, ref_dsize] = w;
        DdtStat { blocks, lsize, psize, dsize, ref_blocks, ref_lsize, ref_psize, ref_dsize }
    }

    /// Its words.
    #[must_use]
    pub const fn to_words(&self) -> [u64; Self::WORDS] {
        let DdtStat { blocks, lsize, psize, dsize, ref_blocks, ref_lsize, ref_psize, ref_dsize } = *self;
        [blocks, lsize, psize, dsize, ref_blocks, ref_lsize, ref_psize, ref_dsize]
    }

    /// Adds `other`, without overflow.
    pub fn add(&mut self, other: &DdtStat) {
        let pairs = [
            (&mut self.blocks, other.blocks),
            (&mut self.lsize, other.lsize),
            (&mut self.psize, other.psize),
            (&mut self.dsize, other.dsize),
            (&mut self.ref_blocks, other.ref_blocks),
            (&mut self.ref_lsize, other.ref_lsize),
            (&mut self.ref_psize, other.ref_psize),
            (&mut self.ref_dsize, other.ref_dsize),
        ];
        for (sum, n) in pairs {
            *sum = sum.wrapping_add(n);
        }
    }
}

/// Statistics by power of two of the reference count (OpenZFS: `ddt_histogram_t`): 64 buckets of eight words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DdtHistogram {
    /// Bucket n: entries with 2^n up to 2^(n+1) − 1 references.
    pub buckets: Vec<DdtStat>,
}

impl DdtHistogram {
    /// Words on disk.
    pub const WORDS: usize = 512;

    /// An empty histogram.
    #[must_use]
    pub fn empty() -> Self {
        DdtHistogram { buckets: vec![DdtStat::default(); 64] }
    }

    /// Builds it from the words of the statistics ZAP.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn from_words(words: &[u64]) -> Result<Self, Error> {
        if words.len() < Self::WORDS {
            return Err(Error::short("dedup histogram", Self::WORDS * 8, words.len() * 8));
        }
        let buckets = words.as_chunks::<{ DdtStat::WORDS }>().0.iter().take(64);
        Ok(DdtHistogram { buckets: buckets.map(|words| DdtStat::from_words(*words)).collect() })
    }

    /// Its words.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        self.buckets.iter().flat_map(DdtStat::to_words).collect()
    }

    /// The sum of all buckets.
    #[must_use]
    pub fn total(&self) -> DdtStat {
        let mut sum = DdtStat::default();
        self.buckets.iter().for_each(|b| sum.add(b));
        sum
    }
}

/// The bonus of a dedup log (OpenZFS: `ddt_log_header_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DdtLogHeader {
    /// Always 1.
    pub version: u8,
    /// 1: being flushed; 2: the checkpoint is valid.
    pub flags: u8,
    /// Bytes in the log.
    pub length: u64,
    /// The txg in which it became the active log.
    pub first_txg: Txg,
    /// Entries up to this key are flushed.
    pub checkpoint: Option<DdtKey>,
}

impl DdtLogHeader {
    /// Decodes 64 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let w = |n: usize| bytes::u64(buf, n * 8, e).ok_or(Error::short("dedup log header", 64, buf.len()));
        let info = w(0)?;
        let flags = bytes::bits(info, 8, 8) as u8;
        let checkpoint = if flags & 2 != 0 { Some(DdtKey::decode(buf.get(24..).unwrap_or(&[]), e)?) } else { None };
        Ok(DdtLogHeader { version: info as u8, flags, length: w(1)?, first_txg: Txg(w(2)?), checkpoint })
    }
}

/// One record of a dedup log: an entry after its last change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DdtLogRecord {
    /// Storage type of the entry, 0 ZAP.
    pub entry_type: u8,
    /// Class: 0 ditto, 1 duplicate, 2 unique.
    pub class: u8,
    /// The block.
    pub key: DdtKey,
    /// Its new value.
    pub value: DdtValue,
}

impl DdtLogRecord {
    /// Decodes the record at the front of `buf`; returns it with its length, or `None` at the end of the block's records.
    ///
    /// # Errors
    /// [`Error::Truncated`], or [`Error::Invalid`] for an unknown type or an impossible length.
    pub fn decode(buf: &[u8], flat: bool, e: Endian) -> Result<Option<(Self, usize)>, Error> {
        let what = "dedup log record";
        let Some(info) = bytes::u64(buf, 0, e) else { return Ok(None) };
        let len = bytes::bits(info, 8, 16) as usize;
        match bytes::bits(info, 0, 8) {
            0 => return Ok(None),
            1 => {}
            value => return Err(Error::Invalid { what, field: "type", value }),
        }
        let record = buf.get(8..len).ok_or(Error::Invalid { what, field: "length", value: len as u64 })?;
        let record = DdtLogRecord {
            entry_type: bytes::bits(info, 48, 8) as u8,
            class: bytes::bits(info, 56, 8) as u8,
            key: DdtKey::decode(record, e)?,
            value: DdtValue::decode(record.get(DdtKey::SIZE..).unwrap_or(&[]), flat, e)?,
        };
        Ok(Some((record, len)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn log_records_end_at_a_zero_and_never_run_over() {
        let len = 8 + DdtKey::SIZE + DdtValue::FLAT_SIZE;
        let info = 1u64 | (len as u64) << 8 | 2 << 56;
        let mut buf = vec![0u8; 256];
        buf[..8].copy_from_slice(&info.to_le_bytes());
        buf[8 + 40 + 48..8 + 40 + 56].copy_from_slice(&9u64.to_le_bytes());
        let (rec, used) = DdtLogRecord::decode(&buf, true, Endian::Little).unwrap().unwrap();
        assert_eq!((rec.class, rec.value.total_refcnt(), used), (2, 9, len));
        assert!(DdtLogRecord::decode(&buf[used..], true, Endian::Little).unwrap().is_none());
        buf[1..3].copy_from_slice(&[4, 0]);
        assert!(DdtLogRecord::decode(&buf, true, Endian::Little).is_err());
    }

    #[test]
    fn a_traditional_value_has_four_slots() {
        let buf: Vec<u8> = (0..32u64).flat_map(u64::to_be_bytes).collect();
        let v = DdtValue::decode(&buf, false, Endian::Big).unwrap();
        assert_eq!((v.slots.len(), v.slots[3].refcnt, v.slots[3].phys_birth), (4, 30, Txg(31)));
        assert!(DdtValue::decode(&buf[..200], false, Endian::Big).is_err());
    }
}
