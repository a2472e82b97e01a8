//! The remains of a removed device: the mapping of its offsets to other devices, and the txgs in which data was moved (OpenZFS:
//! `vdev_indirect_mapping_t`, `vdev_indirect_births_t`).

use base::bytes::{self, bits};
use base::{Endian, ObjectId, Txg};

use crate::{Dva, Error, SECTOR_SHIFT};

/// Bytes of an entry of a mapping object.
pub const MAPPING_ENTRY_SIZE: usize = 24;
/// Bytes of an entry of a births object.
pub const BIRTH_ENTRY_SIZE: usize = 16;

/// The bonus of a mapping object (OpenZFS: `vdev_indirect_mapping_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MappingPhys {
    /// End of the last mapped range of the removed device, in bytes.
    pub max_offset: u64,
    /// Bytes that were mapped when the device was removed or the mapping condensed.
    pub bytes_mapped: u64,
    /// Entries of the object.
    pub num_entries: u64,
    /// Object with a `u32` per entry: the number of its bytes that are no longer used. 0 if there is none (feature `obsolete_counts`).
    pub counts_object: ObjectId,
}

impl MappingPhys {
    /// Decodes the bonus: 24 bytes, or 32 with counts.
    ///
    /// # Errors
    /// [`Error::Truncated`] below 24 bytes.
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let word = |n: usize| bytes::u64(buf, n * 8, e).ok_or(Error::short("indirect mapping", 24, buf.len()));
        Ok(MappingPhys {
            max_offset: word(0)?,
            bytes_mapped: word(1)?,
            num_entries: word(2)?,
            counts_object: ObjectId(bytes::u64(buf, 24, e).unwrap_or(0)),
        })
    }

    /// Encodes the bonus in its long form.
    #[must_use]
    pub fn encode(&self, e: Endian) -> [u8; 32] {
        let mut out = [0; 32];
        let words = [self.max_offset, self.bytes_mapped, self.num_entries, self.counts_object.0];
        for (chunk, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = e.put_u64(word);
        }
        out
    }
}

/// One moved range (OpenZFS: `vdev_indirect_mapping_entry_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingEntry {
    /// mark 1@63, source offset 63@0 in sectors.
    pub src_word: u64,
    /// The new address of the range; its asize is the length of the range.
    pub dst: Dva,
}

impl MappingEntry {
    /// Decodes the entry at the front of `buf`.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let word = |off| bytes::u64(buf, off, e).ok_or(Error::short("indirect mapping entry", 24, buf.len()));
        Ok(MappingEntry { src_word: word(0)?, dst: Dva { word0: word(8)?, word1: word(16)? } })
    }

    /// Encodes the entry.
    #[must_use]
    pub fn encode(&self, e: Endian) -> [u8; MAPPING_ENTRY_SIZE] {
        let mut out = [0; MAPPING_ENTRY_SIZE];
        let words = [self.src_word, self.dst.word0, self.dst.word1];
        for (chunk, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = e.put_u64(word);
        }
        out
    }

    /// Offset of the range on the removed device, in bytes.
    #[must_use]
    pub const fn src(&self) -> u64 {
        bits(self.src_word, 0, 63).wrapping_shl(SECTOR_SHIFT)
    }

    /// Bytes of the range.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.dst.asize()
    }

    /// First byte after the range on the removed device.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.src().saturating_add(self.size())
    }
}

/// A whole mapping: entries in the order of the removed device, without overlap.
#[derive(Debug, Clone, Default)]
pub struct IndirectMapping {
    entries: Vec<MappingEntry>,
}

impl IndirectMapping {
    /// Builds a mapping from entries after checking them.
    ///
    /// # Errors
    /// [`Error::Invalid`] if an entry is empty, extends past the end of the address space, or begins before the end of the previous one.
    pub fn new(entries: Vec<MappingEntry>) -> Result<Self, Error> {
        let what = "indirect mapping";
        let mut end = 0;
        for entry in &entries {
            if entry.size() == 0 {
                return Err(Error::Invalid { what, field: "size", value: 0 });
            }
            if entry.src() < end || entry.src().checked_add(entry.size()).is_none() {
                return Err(Error::Invalid { what, field: "source offset", value: entry.src() });
            }
            end = entry.end();
        }
        Ok(IndirectMapping { entries })
    }

    /// Decodes the first `count` entries of a mapping object's contents.
    ///
    /// # Errors
    /// [`Error::Truncated`] if there are fewer; else as [`IndirectMapping::new`].
    pub fn decode(buf: &[u8], count: u64, e: Endian) -> Result<Self, Error> {
        let have = (buf.len() / MAPPING_ENTRY_SIZE) as u64;
        if have < count {
            return Err(Error::Truncated { what: "indirect mapping", need: count, have });
        }
        let raw = buf.as_chunks::<MAPPING_ENTRY_SIZE>().0.iter().take(count as usize);
        Self::new(raw.map(|chunk| MappingEntry::decode(chunk, e)).collect::<Result<_, _>>()?)
    }

    /// The entries, in order.
    #[must_use]
    pub fn entries(&self) -> &[MappingEntry] {
        &self.entries
    }

    /// The index of the entry that holds `offset`, by binary search.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<usize> {
        let after = self.entries.partition_point(|e| e.src() <= offset);
        let index = after.checked_sub(1)?;
        (offset < self.entries.get(index)?.end()).then_some(index)
    }
}

/// The offset (exclusive) up to which data had been moved by a txg (OpenZFS: `vdev_indirect_birth_entry_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BirthEntry {
    /// Exclusive end, in bytes on the removed device.
    pub offset: u64,
    /// The txg of the copy.
    pub phys_birth: Txg,
}

impl BirthEntry {
    /// Decodes the first `count` entries of a births object's contents.
    ///
    /// # Errors
    /// [`Error::Truncated`] if there are fewer.
    pub fn decode_all(buf: &[u8], count: u64, e: Endian) -> Result<Vec<BirthEntry>, Error> {
        let have = (buf.len() / BIRTH_ENTRY_SIZE) as u64;
        if have < count {
            return Err(Error::Truncated { what: "indirect births", need: count, have });
        }
        let raw = buf.as_chunks::<BIRTH_ENTRY_SIZE>().0.iter().take(count as usize);
        let word = |chunk: &[u8; BIRTH_ENTRY_SIZE], off| bytes::u64(chunk, off, e).unwrap_or(0);
        Ok(raw.map(|c| BirthEntry { offset: word(c, 0), phys_birth: Txg(word(c, 8)) }).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(src: u64, dst: u64, size: u64) -> MappingEntry {
        MappingEntry { src_word: src >> SECTOR_SHIFT, dst: Dva::new(3, dst, size, false) }
    }

    #[test]
    fn entries_are_found_by_any_offset_within() {
        let map = IndirectMapping::new(vec![entry(0x1000, 0x9000, 0x400), entry(0x2000, 0x4000, 0x2000)]).unwrap();
        assert_eq!(map.find(0xfff), None);
        assert_eq!(map.find(0x1000), Some(0));
        assert_eq!(map.find(0x13ff), Some(0));
        assert_eq!(map.find(0x1400), None);
        assert_eq!(map.find(0x3fff), Some(1));
        assert_eq!(map.find(0x4000), None);
    }

    #[test]
    fn both_byte_orders_round_trip_and_the_mark_is_no_part_of_the_offset() {
        for e in [Endian::Little, Endian::Big] {
            let mut one = entry(0x1200, 0x9000, 0x400);
            one.src_word |= 1 << 63;
            let mut raw = one.encode(e).to_vec();
            raw.extend(entry(0x2000, 0, 0x200).encode(e));
            let map = IndirectMapping::decode(&raw, 2, e).unwrap();
            assert_eq!(map.entries()[0], one);
            assert_eq!(map.entries()[0].src(), 0x1200);
            assert!(IndirectMapping::decode(&raw, 3, e).is_err());
            let phys = MappingPhys { max_offset: 9, bytes_mapped: 8, num_entries: 2, counts_object: ObjectId(5) };
            assert_eq!(MappingPhys::decode(&phys.encode(e), e).unwrap(), phys);
            assert_eq!(MappingPhys::decode(&phys.encode(e)[..24], e).unwrap().counts_object, ObjectId(0));
        }
    }

    #[test]
    fn overlap_and_empty_ranges_are_refused() {
        assert!(IndirectMapping::new(vec![entry(0x1000, 0, 0x400), entry(0x1200, 0, 0x400)]).is_err());
        assert!(IndirectMapping::new(vec![entry(0x1000, 0, 0)]).is_err());
        assert!(IndirectMapping::new(vec![entry((1 << 63) - 512, 0, 0x200), entry(0, 0, 0x200)]).is_err());
    }
}
