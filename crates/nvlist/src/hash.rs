//! The keyed hash of names.
//!
//! Whoever chooses names (a stream, a foreign pool) must not be able to choose collisions. So the hash is *universal*, under a secret random
//! key: for two different names, whatever they are, the chance that they collide is at most 2⁻⁶⁴ + 2⁻³³, which is proven, not
//! believed. No hash promises more against an adversary that does not see the key. In two steps:
//!
//! * NH (Black and others, "UMAC", 1999): the sum of `(k₁ + s₁)(k₂ + s₂)`, 128 bits wide, over the pairs of 64-bit words of the name;
//! * MULTILINEAR-HM (Lemire and Kaser, "Strongly universal string hashing is fast", 2014) of that sum and the name's length.
//!
//! It is also cheap, one multiplication for 16 bytes and three at the end, which hardly wait for each other. SipHash-1-3 takes three times as long for
//! names of 16 to 50 bytes, more than the whole rest of a miss. Longer names than there are keys for take SipHash-1-3 as `std` has it.
//!
//! The keys are drawn once a process from the operating system (by way of `std`'s `RandomState`). They never show: lists are in
//! the order of insertion.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

/// Pairs of 64-bit words that have keys.
const PAIRS: usize = 16;

/// Secret random numbers.
pub(crate) struct Key {
    pairs: [[u64; 2]; PAIRS],
    sum: [u64; 4],
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
        // SipHash of a counter under a random key: random numbers
        let source = RandomState::new();
        let number = |which: usize| source.hash_one(which);
        Key {
            pairs: std::array::from_fn(|at| [number(2 * at), number(2 * at + 1)]),
            sum: std::array::from_fn(|at| number(1000 + at)),
            length: number(2000),
            start: number(2001),
            long: RandomState::new(),
        }
    }

    /// 32 bits that tell names apart.
    #[inline]
    pub(crate) fn hash(&self, name: &[u8]) -> u32 {
        if name.len() > 16 * PAIRS {
            return self.hash_long(name);
        }
        // The last pair is the last 16 bytes, whatever they share with the pair before: with the length, the pairs still tell all.
        let (pairs, last) = match name.last_chunk::<16>() {
            Some(last) => (&name.as_chunks::<16>().0[..(name.len() - 1) / 16], words(last)),
            None => (&[][..], short(name)),
        };
        let mut keys = self.pairs.iter();
        let mut sum = 0u128;
        for (pair, key) in pairs.iter().zip(&mut keys) {
            sum = sum.wrapping_add(product(words(pair), key));
        }
        sum = sum.wrapping_add(product(last, keys.next().unwrap_or(&[0; 2])));
        self.reduce(sum, name.len())
    }

    /// The second step, and a mixer: linear probing wants more than pairs to be independent.
    #[inline(always)]
    fn reduce(&self, sum: u128, len: usize) -> u32 {
        let half = |bits: u64, k1: u64, k2: u64| {
            (bits & 0xffff_ffff).wrapping_add(k1).wrapping_mul((bits >> 32).wrapping_add(k2))
        };
        let [k1, k2, k3, k4] = self.sum;
        let low = half(sum as u64, k1, k2);
        let high = half((sum >> 64) as u64, k3, k4);
        let sum = self.length.wrapping_mul(len as u64).wrapping_add(self.start).wrapping_add(low).wrapping_add(high);
        // only the upper 33 bits are strongly universal
        let bits = sum >> 31;
        ((bits ^ bits >> 15).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
    }

    #[cold]
    fn hash_long(&self, name: &[u8]) -> u32 {
        let mut hasher = self.long.build_hasher();
        hasher.write(name);
        hasher.finish() as u32
    }
}

/// Fewer than 16 bytes as two words that, with their number, tell them all.
#[inline(always)]
fn short(name: &[u8]) -> [u64; 2] {
    if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) {
        return [u64::from_le_bytes(*first), u64::from_le_bytes(*last)];
    }
    if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) {
        return [u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into()];
    }
    match name {
        [a, .., c] => [u64::from(*a) | u64::from(name[name.len() / 2]) << 8, (*c).into()],
        [a] => [(*a).into(), 0],
        [] => [0; 2],
    }
}

#[inline(always)]
fn words(pair: &[u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(*pair);
    [both as u64, (both >> 64) as u64]
}

#[inline(always)]
fn product(words: [u64; 2], key: &[u64; 2]) -> u128 {
    u128::from(words[0].wrapping_add(key[0])) * u128::from(words[1].wrapping_add(key[1]))
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
        // whatever the key, the fullest of 2^12 homes for 2^12 names stays small
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
