//! Block pointers as they are authenticated.

use base::{Endian, bytes};

/// Length of a block pointer.
pub(super) const BLKPTR: usize = 128;

/// The part of a block pointer that is included in a MAC: its portable properties as a little-endian word, its MAC, a pad word. OpenZFS:
/// `blkptr_auth_buf_t`.
pub(super) struct BpAuth {
    bytes: [u8; 32],
    len: usize,
}

impl BpAuth {
    /// Builds it for the pointer `bp` in a block of order `endian`.
    pub(super) fn new(bp: &[u8; BLKPTR], version: u64, endian: Endian) -> BpAuth {
        let word = |at: usize| bytes::u64(bp, at, endian).unwrap_or(0);
        let mut prop = word(48);
        // The MAC's bytes are in the order of the pointer's own writer, which may differ from the block's.
        let writer = if bytes::bits(prop, 63, 1) == 1 { Endian::Little } else { Endian::Big };
        let [low, high] = if bytes::bits(prop, 48, 8) == OBJSET { [0, 0] } else { [word(112), word(120)] };

        let mut b = [0; 32];
        if version > 0 {
            prop = portable(prop, word(0) == 0 && word(8) == 0);
        } else {
            prop = bytes::with_bits(prop, 62, 1, 0);
            prop = bytes::with_bits(prop, 40, 8, 0);
            prop = bytes::with_bits(prop, 16, 16, 0);
        }
        let parts = [prop.to_le_bytes(), writer.put_u64(low), writer.put_u64(high)];
        for (b, p) in b.as_chunks_mut::<8>().0.iter_mut().zip(parts) {
            *b = p;
        }
        BpAuth { bytes: b, len: if version > 0 { 32 } else { 24 } }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

/// The object type of an object set's block, whose pointer holds no MAC.
const OBJSET: u64 = 11;

/// The properties word without the bits that a raw send does not preserve.
fn portable(prop: u64, no_dva: bool) -> u64 {
    let embedded = bytes::bits(prop, 39, 1) == 1;
    if no_dva && !embedded {
        return 0;
    }
    let mut prop = prop;
    if bytes::bits(prop, 56, 5) != 0 {
        // The receiver writes indirect blocks anew: their byte order, compression and size are its own.
        prop = bytes::with_bits(prop, 63, 1, 0);
        prop = bytes::with_bits(prop, 32, 7, 0);
        prop = bytes::with_bits(prop, 16, 16, 0);
    }
    prop = bytes::with_bits(prop, 62, 1, 0);
    bytes::with_bits(prop, 40, 8, 0)
}
