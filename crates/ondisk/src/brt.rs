//! The block reference table: reference counts of cloned blocks (docs/format.md §13).

use base::{Endian, ObjectId, bytes};

use crate::Error;

/// The bonus of a vdev's BRT object (OpenZFS: `brt_vdev_phys_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BrtVdevPhys {
    /// ZAP: DVA offset to number of references beyond the first.
    pub mos_entries: ObjectId,
    /// Number of ranges; each has a 16-bit count of entries in the object's data.
    pub size: u64,
    /// Byte order of those counts: 0 little, 1 big.
    pub byteorder: u64,
    /// Total number of entries.
    pub totalcount: u64,
    /// Bytes of a range, 16 MiB.
    pub rangesize: u64,
    /// Space of the cloned blocks, each counted once.
    pub usedspace: u64,
    /// Space saved by cloning.
    pub savedspace: u64,
}

impl BrtVdevPhys {
    /// Decodes 56 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let w = |n: usize| bytes::u64(buf, n * 8, e).ok_or(Error::short("block reference table", 56, buf.len()));
        Ok(BrtVdevPhys {
            mos_entries: ObjectId(w(0)?),
            size: w(1)?,
            byteorder: w(2)?,
            totalcount: w(3)?,
            rangesize: w(4)?,
            usedspace: w(5)?,
            savedspace: w(6)?,
        })
    }
}

/// The count of references beyond the first from an entry's value: one integer of 8 bytes, or, without feature
/// `block_cloning_endian`, eight of one byte in the writer's order.
#[must_use]
pub fn entry_count(int_size: u8, value: &[u8], writer: Endian) -> Option<u64> {
    match int_size {
        8 => bytes::u64(value, 0, Endian::Big),
        1 => bytes::u64(value, 0, writer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_count_are_read() {
        assert_eq!(entry_count(8, &3u64.to_be_bytes(), Endian::Little), Some(3));
        assert_eq!(entry_count(1, &3u64.to_le_bytes(), Endian::Little), Some(3));
        assert_eq!(entry_count(1, &[3], Endian::Little), None);
        assert!(BrtVdevPhys::decode(&[0; 55], Endian::Little).is_err());
    }
}
