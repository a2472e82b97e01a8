//! SipHash-1-3 of a whole byte string at once.
//!
//! `std` has the same function, but only as a stream behind `Hasher`, where the buffering of parts costs as much as the hash of a short name.

use std::hash::{BuildHasher, RandomState};

/// A secret key.
#[derive(Clone, Copy)]
pub(crate) struct Key(u64, u64);

impl Key {
    /// A key nobody can guess: `std`'s `RandomState` is seeded by the operating system.
    pub(crate) fn random() -> Key {
        let state = RandomState::new();
        Key(state.hash_one(0u8), state.hash_one(1u8))
    }

    /// The hash of `bytes` under this key.
    #[inline]
    pub(crate) fn hash(self, bytes: &[u8]) -> u64 {
        let mut v = State {
            v0: self.0 ^ 0x736f_6d65_7073_6575,
            v1: self.1 ^ 0x646f_7261_6e64_6f6d,
            v2: self.0 ^ 0x6c79_6765_6e65_7261,
            v3: self.1 ^ 0x7465_6462_7974_6573,
        };
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            v.absorb(u64::from_le_bytes(*word));
        }
        // the last word: what is left over, and the length in the top byte
        let left = match (bytes.last_chunk::<8>(), rest.len()) {
            (_, 0) => 0,
            (Some(tail), n) => u64::from_le_bytes(*tail) >> (64 - 8 * n),
            (None, _) => rest.iter().rev().fold(0, |word, b| word << 8 | u64::from(*b)),
        };
        v.absorb(left | (bytes.len() as u64) << 56);
        v.v2 ^= 0xff;
        v.round();
        v.round();
        v.round();
        v.v0 ^ v.v1 ^ v.v2 ^ v.v3
    }
}

struct State {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl State {
    #[inline(always)]
    fn absorb(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.v0 ^= word;
    }

    #[inline(always)]
    fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use siphasher::sip::SipHasher13;
    use std::hash::Hasher;

    #[test]
    fn agrees_with_another_implementation() {
        let bytes: Vec<u8> = (0..=255).collect();
        for key in [Key(0, 0), Key(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908)] {
            for len in 0..=256 {
                let mut other = SipHasher13::new_with_keys(key.0, key.1);
                other.write(&bytes[..len]);
                assert_eq!(key.hash(&bytes[..len]), other.finish(), "length {len}");
            }
        }
    }

    #[test]
    fn keys_differ() {
        assert_ne!(Key::random().hash(b"tank"), Key::random().hash(b"tank"));
    }
}
