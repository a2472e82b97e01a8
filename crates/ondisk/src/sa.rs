//! System attribute headers and registrations (docs/format.md §8.1; OpenZFS: `sa_hdr_phys_t`).
//!
//! A bonus buffer of type SA, and a spill block, begin with a header: magic, layout number and header size, then the lengths of the
//! attributes of variable size. The header's own magic identifies the byte order: a dnode may have been rewritten on a machine of the other
//! byte order without a change to its attributes.

use base::{Endian, bytes};

use crate::{Error, znode};

/// Magic number of a header.
pub const SA_MAGIC: u32 = 0x2F_505A;
/// Offset of the lengths of variable attributes; the size of the header's fixed part.
pub const SA_LENGTHS_OFFSET: usize = 6;
/// The number of the layout without attributes.
pub const SA_LAYOUT_EMPTY: u16 = 1;

/// The fixed part of an attribute header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SaHeader {
    /// The byte order of the header and everything after it.
    pub endian: Endian,
    /// The layout (which attributes follow, in which order): a number in the registry of the file system.
    pub layout: u16,
    /// The header's size as it claims: the offset of the first attribute.
    pub size: usize,
}

impl SaHeader {
    /// Decodes a header; `None` if the magic is zero, which is a buffer without attributes yet.
    ///
    /// # Errors
    /// [`Error::Truncated`]; [`Error::BadMagic`].
    pub fn decode(buf: &[u8]) -> Result<Option<Self>, Error> {
        let what = "system attribute header";
        let magic = bytes::u32(buf, 0, Endian::Little).ok_or(Error::short(what, 8, buf.len()))?;
        let endian = match magic {
            0 => return Ok(None),
            SA_MAGIC => Endian::Little,
            n if n.swap_bytes() == SA_MAGIC => Endian::Big,
            found => return Err(Error::BadMagic { what, found: found.into() }),
        };
        let info = bytes::u16(buf, 4, endian).ok_or(Error::short(what, 8, buf.len()))?;
        let layout = match info & 0x3ff {
            0 => SA_LAYOUT_EMPTY,
            n => n,
        };
        Ok(Some(SaHeader { endian, layout, size: usize::from(info >> 10) * 8 }))
    }

    /// Length of variable attribute `n` of the layout.
    #[must_use]
    pub fn length(&self, buf: &[u8], n: usize) -> Option<usize> {
        bytes::u16(buf, n.checked_mul(2)?.checked_add(SA_LENGTHS_OFFSET)?, self.endian).map(usize::from)
    }

    /// The offset of the first attribute in a layout with `variable` attributes of variable size.
    #[must_use]
    pub fn data_offset(variable: usize) -> usize {
        variable.saturating_mul(2).saturating_add(SA_LENGTHS_OFFSET).next_multiple_of(8)
    }
}

/// The way in which an attribute is byteswapped (OpenZFS: `sa_bswap_type_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaSwap {
    /// 64-bit words.
    Words,
    /// 32-bit words.
    Halves,
    /// 16-bit words.
    Quarters,
    /// Bytes.
    Bytes,
    /// Access control entries.
    Acl,
}

impl SaSwap {
    /// The kind with this number.
    #[must_use]
    pub const fn from_u8(n: u8) -> Option<Self> {
        Some(match n {
            0 => SaSwap::Words,
            1 => SaSwap::Halves,
            2 => SaSwap::Quarters,
            3 => SaSwap::Bytes,
            4 => SaSwap::Acl,
            _ => return None,
        })
    }

    /// Converts a value from byte order `from` to the order of this machine, in place.
    pub fn to_native(self, value: &mut [u8], from: Endian) {
        if from.is_native() {
            return;
        }
        match self {
            SaSwap::Words => value.as_chunks_mut::<8>().0.iter_mut().for_each(|word| word.reverse()),
            SaSwap::Halves => value.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse()),
            SaSwap::Quarters => value.as_chunks_mut::<2>().0.iter_mut().for_each(|word| word.reverse()),
            SaSwap::Bytes => {}
            SaSwap::Acl => znode::acl_to_native(value, from),
        }
    }
}

/// An attribute's registration: the value under its name in the registry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SaRegistration {
    /// The number that layouts refer to.
    pub number: u16,
    /// Its length in bytes; 0 if it varies.
    pub length: u16,
    /// The way it is byteswapped: the raw number of a [`SaSwap`].
    pub swap: u8,
}

impl SaRegistration {
    /// The value in the registry.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        (self.length as u64) << 24 | (self.swap as u64) << 16 | self.number as u64
    }
}

impl From<u64> for SaRegistration {
    fn from(word: u64) -> Self {
        let field = |low, width| bytes::bits(word, low, width);
        SaRegistration { number: field(0, 16) as u16, swap: field(16, 8) as u8, length: field(24, 16) as u16 }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_header_tells_its_own_order() {
        for e in [Endian::Little, Endian::Big] {
            let mut buf = e.put_u32(SA_MAGIC).to_vec();
            buf.extend(e.put_u16(2 << 10 | 5));
            buf.extend(e.put_u16(33));
            buf.extend(e.put_u16(44));
            let header = SaHeader::decode(&buf).unwrap().unwrap();
            assert_eq!((header.endian, header.layout, header.size), (e, 5, 16));
            assert_eq!([0, 1, 2].map(|n| header.length(&buf, n)), [Some(33), Some(44), None]);
        }
        assert_eq!(SaHeader::decode(&[0; 8]).unwrap(), None);
        assert!(SaHeader::decode(&[1; 8]).is_err() && SaHeader::decode(&[0; 3]).is_err());
        assert_eq!([0, 1, 2, 5, 6].map(SaHeader::data_offset), [8, 8, 16, 16, 24]);
    }

    #[test]
    fn a_registration_is_three_fields() {
        let reg = SaRegistration::from(16 << 24 | 3 << 16 | 7);
        assert_eq!(reg, SaRegistration { number: 7, length: 16, swap: 3 });
        assert_eq!(reg.to_word(), 16 << 24 | 3 << 16 | 7);
    }
}
