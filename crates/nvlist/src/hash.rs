//! The keyed hash of names.
//!
//! An attacker can choose names (in a stream, in a foreign pool) but must not be able to choose collisions. So the hash is *strongly
//! universal* under a secret random key: MULTILINEAR-HM (Lemire and Kaser, "Strongly universal string hashing is fast", 2014), the sum of
//! `(k₁ + s₁)(k₂ + s₂)` over the pairs of 32-bit words of the name. For any two different names, the probability that their sums agree is
//! 2⁻³³; this is proven. No hash guarantees more against an adversary who does not see the key.
//!
//! It is also cheap: one multiplication per eight bytes, and the multiplications are independent. SipHash-1-3 takes three times as long for
//! names of 16 to 50 bytes, more than all the rest of a miss. Names that are longer than the key use the SipHash-1-3 of `std`.
//!
//! The keys are drawn once per process from the operating system (through `std`'s `RandomState`). They are never visible from outside:
//! lists are in insertion order.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

/// Number of 64-bit words (pairs of 32-bit words) that the key covers.
const WORDS: usize = 32;

/// Secret random numbers.
pub(crate) struct Key {
    words: [[u64; 2]; WORDS],
    length: u64,
    start: u64,
    long: RandomState,
}

static KEY: LazyLock<Key> = LazyLock::new(Key::random);

impl Key {
    /// The key of this process.
    pub(crate) fn get() -> &'static Key {
        &KEY
    }

    fn random() -> Key {
        // SipHash of a counter under a random key yields random numbers
        let source = RandomState::new();
        let number = |which: usize| source.hash_one(which);
        Key {
            words: std::array::from_fn(|at| [number(2 * at), number(2 * at + 1)]),
            length: number(2 * WORDS),
            start: number(2 * WORDS + 1),
            long: RandomState::new(),
        }
    }

    /// The 32-bit hash of a name.
    #[inline(always)]
    pub(crate) fn hash(&self, name: &[u8]) -> u32 {
        if name.len() > 8 * WORDS {
            return self.hash_long(name);
        }
        // The last word is the last eight bytes, even if they overlap the word before: together with the length, the words still determine
        // the name.
        let (words, last) = match name.last_chunk::<8>() {
            Some(last) => {
                (name.get(..name.len() - 1).unwrap_or_default().as_chunks::<8>().0, u64::from_le_bytes(*last))
            }
            None => (&[][..], short(name)),
        };
        let mut sum = self.length.wrapping_mul(name.len() as u64).wrapping_add(self.start);
        let mut keys = self.words.iter();
        for (word, key) in words.iter().zip(&mut keys) {
            sum = sum.wrapping_add(product(u64::from_le_bytes(*word), key));
        }
        mix(sum.wrapping_add(product(last, keys.next().unwrap_or(&[0; 2]))))
    }

    #[cold]
    fn hash_long(&self, name: &[u8]) -> u32 {
        let mut hasher = self.long.build_hasher();
        hasher.write(name);
        hasher.finish() as u32
    }
}

/// A word made of fewer than eight bytes; together with their number it determines them all.
#[inline(always)]
fn short(name: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) {
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32;
    }
    match name {
        [a, .., c] => u64::from(*a) | u64::from(name[name.len() / 2]) << 8 | u64::from(*c) << 16,
        [a] => (*a).into(),
        [] => 0,
    }
}

#[inline(always)]
fn product(word: u64, key: &[u64; 2]) -> u64 {
    (word & 0xffff_ffff).wrapping_add(key[0]).wrapping_mul((word >> 32).wrapping_add(key[1]))
}

/// Only the upper 33 bits of the sum are strongly universal. They are mixed because linear probing needs more than pairwise independence.
#[inline(always)]
fn mix(sum: u64) -> u32 {
    let bits = sum >> 31;
    ((bits ^ bits >> 15).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn lengths_and_tails_count() {
        let key = Key::random();
        let bytes = vec![0u8; 600];
        let mut seen = HashSet::new();
        for len in 0..bytes.len() {
            // a name of zeros, then the same with its last byte changed
            assert!(seen.insert(key.hash(&bytes[..len])) || len > 300, "length {len}");
            let mut name = bytes[..len].to_vec();
            if let Some(last) = name.last_mut() {
                *last = 1;
                assert_ne!(key.hash(&name), key.hash(&bytes[..len]));
            }
        }
    }

    #[test]
    fn homes_spread_for_names_that_count_up() {
        // for any key, the fullest of 2^12 homes for 2^12 names stays small
        for _ in 0..50 {
            let key = Key::random();
            for style in 0..3 {
                let mut homes = vec![0u32; 1 << 12];
                for i in 0..1u64 << 12 {
                    let name = match style {
                        0 => i.to_le_bytes().to_vec(),
                        1 => (i << 32).to_le_bytes().to_vec(),
                        _ => format!("tank/home@{i:08}").into_bytes(),
                    };
                    homes[(key.hash(&name) >> 20) as usize] += 1;
                }
                assert!(homes.iter().max() < Some(&24), "{:?} in style {style}", homes.iter().max());
            }
        }
    }

    #[test]
    fn keys_differ() {
        assert_ne!(Key::random().hash(b"tank"), Key::random().hash(b"tank"));
    }
}
