//! The header of a gang block: pointers to the pieces, and a trailer (docs/format.md §2.3; OpenZFS: `zio_gbh_phys_t`).

use base::Endian;

use crate::{BLKPTR_SIZE, BlkPtr, Error};

/// Size of a classic header, and the minimum of a dynamic one (OpenZFS: `SPA_OLD_GANGBLOCKSIZE`).
pub const GANG_HEADER_SIZE: usize = 512;
/// Size of the trailer that holds the header's own checksum: a magic number and four words (OpenZFS: `zio_eck_t`).
pub const TRAILER_SIZE: usize = 40;

/// The pointers of a gang header. Unused ones are holes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GangHeader {
    /// Three in a classic header; in a dynamic one as many as fit before the trailer.
    pub blkptrs: Vec<BlkPtr>,
}

impl GangHeader {
    /// The number of pointers in a header of `size` bytes (OpenZFS: `gbh_nblkptrs`).
    #[must_use]
    pub const fn capacity(size: usize) -> usize {
        size.saturating_sub(TRAILER_SIZE) / BLKPTR_SIZE
    }

    /// Decodes a whole header; its trailer is not checked.
    ///
    /// # Errors
    /// [`Error::Truncated`] below 512 bytes.
    pub fn decode(raw: &[u8], e: Endian) -> Result<Self, Error> {
        if raw.len() < GANG_HEADER_SIZE {
            return Err(Error::short("gang header", GANG_HEADER_SIZE, raw.len()));
        }
        let chunks = raw.as_chunks::<BLKPTR_SIZE>().0.iter();
        Ok(GangHeader { blkptrs: chunks.take(Self::capacity(raw.len())).map(|b| BlkPtr::from_bytes(b, e)).collect() })
    }

    /// Encodes a header of `size` bytes whose trailer is still zero.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are more pointers than fit.
    pub fn encode(&self, size: usize, e: Endian) -> Result<Vec<u8>, Error> {
        if self.blkptrs.len() > Self::capacity(size) {
            return Err(Error::Invalid { what: "gang header", field: "pointers", value: self.blkptrs.len() as u64 });
        }
        let mut raw = vec![0; size];
        for (chunk, bp) in raw.as_chunks_mut::<BLKPTR_SIZE>().0.iter_mut().zip(&self.blkptrs) {
            *chunk = bp.encode(e);
        }
        Ok(raw)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_in_both_orders_and_sizes() {
        assert_eq!((GangHeader::capacity(512), GangHeader::capacity(4096), GangHeader::capacity(10)), (3, 31, 0));
        for (e, size, n) in [(Endian::Little, 512, 3), (Endian::Big, 4096, 31)] {
            let blkptrs: Vec<_> = (0..n).map(|i| BlkPtr { words: [i + 1; 16] }).collect();
            let header = GangHeader { blkptrs };
            let raw = header.encode(size, e).unwrap();
            assert_eq!(raw.len(), size);
            assert_eq!(GangHeader::decode(&raw, e).unwrap(), header);
        }
        assert!(GangHeader { blkptrs: vec![BlkPtr::HOLE; 4] }.encode(512, Endian::Little).is_err());
        assert!(GangHeader::decode(&[0; 511], Endian::Little).is_err());
    }
}
