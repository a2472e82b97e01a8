//! Entries, log records and log headers as bytes, little-endian.

use base::bytes::with_bits;
use codec::Compress;
use ondisk::ddt::{DdtKey, DdtLogHeader, DdtValue};

use super::Class;

/// Size of a log header.
pub(super) const LOG_HEADER_SIZE: usize = 64;
/// The class of an entry that no ZAP has (OpenZFS: `DDT_CLASSES`).
const NO_CLASS: u64 = 3;
/// The storage type of an entry that no ZAP has (OpenZFS: `DDT_TYPES`).
const NO_TYPE: u64 = 1;

/// Returns the number of a class.
pub(super) const fn class_number(class: Class) -> usize {
    match class {
        Class::Ditto => 0,
        Class::Duplicate => 1,
        Class::Unique => 2,
    }
}

/// Encodes a key as the words of a ZAP key.
pub(super) const fn key_words(key: &DdtKey) -> [u64; 5] {
    let [a, b, c, d] = key.cksum;
    [a, b, c, d, key.prop]
}

fn put(words: impl IntoIterator<Item = u64>, into: &mut Vec<u8>) {
    into.extend(words.into_iter().flat_map(u64::to_le_bytes));
}

fn put_value(value: &DdtValue, into: &mut Vec<u8>) {
    for slot in &value.slots {
        put(slot.dva.iter().flat_map(|dva| [dva.word0, dva.word1]), into);
        put([slot.refcnt, slot.phys_birth.0], into);
        if value.flat {
            put([slot.class_start], into);
        }
    }
}

/// Encodes a value for a ZAP: a byte for compression and byte order, then the value, its zeros compressed.
pub(super) fn packed(value: &DdtValue) -> Vec<u8> {
    const LITTLE: u8 = 0x80;
    let mut plain = Vec::with_capacity(DdtValue::TRADITIONAL_SIZE);
    put_value(value, &mut plain);
    let squeezed = codec::compress(Compress::Zle, None, &plain, plain.len().saturating_sub(1));
    let (kind, bytes) = match squeezed {
        Some(bytes) => (Compress::Zle, bytes),
        None => (Compress::Off, plain),
    };
    let mut out = Vec::with_capacity(bytes.len() + 1);
    out.push(kind as u8 | LITTLE);
    out.extend(bytes);
    out
}

/// Returns the size of a log record.
pub(super) const fn record_len(flat: bool) -> usize {
    8 + DdtKey::SIZE + DdtValue::size(flat)
}

/// Appends a record to a log block.
pub(super) fn put_record(key: &DdtKey, value: &DdtValue, stored: Option<Class>, into: &mut Vec<u8>) {
    let (kind, class) = stored.map_or((NO_TYPE, NO_CLASS), |class| (0, class_number(class) as u64));
    let info = with_bits(with_bits(1, 8, 16, record_len(value.flat) as u64), 48, 8, kind);
    put([with_bits(info, 56, 8, class)], into);
    put(key_words(key), into);
    put_value(value, into);
}

/// Encodes the header of a log.
pub(super) fn log_header(header: &DdtLogHeader) -> Vec<u8> {
    let mut out = Vec::with_capacity(LOG_HEADER_SIZE);
    put([u64::from(header.version) | u64::from(header.flags) << 8, header.length, header.first_txg.0], &mut out);
    put(key_words(&header.checkpoint.unwrap_or_default()), &mut out);
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use base::ObjectId;
    use base::{Endian, Txg};
    use dmu::ZapValue;
    use ondisk::Dva;
    use ondisk::ddt::{DdtLogRecord, DdtPhys};

    use super::*;

    fn value(flat: bool) -> DdtValue {
        let slot = DdtPhys {
            dva: [Dva::new(1, 0x4000, 0x2000, false), Dva::default(), Dva::default()],
            refcnt: 3,
            phys_birth: Txg(77),
            class_start: if flat { 1_700_000_000 } else { 0 },
        };
        let mut slots = vec![DdtPhys::default(); if flat { 1 } else { 4 }];
        slots[if flat { 0 } else { 1 }] = slot;
        DdtValue { slots, flat }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let key = DdtKey { cksum: [1, 2, 3, u64::MAX], prop: 0x0f_00ff_00ff };
        for flat in [false, true] {
            let zap = ZapValue { int_size: 1, bytes: packed(&value(flat)) };
            assert!(zap.bytes.len() < DdtValue::size(flat));
            assert_eq!(super::super::decode(ObjectId(1), &zap, flat).unwrap(), value(flat));
            for stored in [None, Some(Class::Unique), Some(Class::Duplicate)] {
                let mut block = Vec::new();
                put_record(&key, &value(flat), stored, &mut block);
                assert_eq!(block.len(), record_len(flat));
                let (record, len) = DdtLogRecord::decode(&block, flat, Endian::Little).unwrap().unwrap();
                assert_eq!((len, record.key, record.value), (block.len(), key, value(flat)));
                assert_eq!(Class::from_number(record.class), stored);
            }
        }
        // random bytes do not compress
        let mut noisy = value(true);
        noisy.slots[0].dva = [Dva { word0: u64::MAX, word1: u64::MAX }; 3];
        noisy.slots[0].refcnt = u64::MAX;
        noisy.slots[0].phys_birth = Txg(u64::MAX);
        noisy.slots[0].class_start = u64::MAX;
        let zap = ZapValue { int_size: 1, bytes: packed(&noisy) };
        assert_eq!(super::super::decode(ObjectId(1), &zap, true).unwrap(), noisy);
        let header = DdtLogHeader { version: 1, flags: 3, length: 1 << 20, first_txg: Txg(9), checkpoint: Some(key) };
        assert_eq!(DdtLogHeader::decode(&log_header(&header), Endian::Little).unwrap(), header);
    }
}
