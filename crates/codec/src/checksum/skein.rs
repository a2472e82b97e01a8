//! Skein-512 with a 256-bit digest and a key (version 1.3 of the submission).
//!
//! Skein hashes by chaining UBI: the state is the key of Threefish-512, a block is its plaintext, the tweak encodes the stage and the
//! number of bytes processed, and the ciphertext XOR the plaintext is the next state. Stages here: key (absent when unkeyed),
//! configuration, message, output.

/// Length of a block in bytes.
const BLOCK: usize = 64;

/// The stages, as values of the tweak's type field.
const KEY: u64 = 0;
const CONFIG: u64 = 4;
const MESSAGE: u64 = 48;
const OUTPUT: u64 = 63;

const FIRST: u64 = 1 << 62;
const FINAL: u64 = 1 << 63;

/// Skein-512-256 in the state before its message.
#[derive(Clone)]
pub(super) struct Skein512 {
    state: [u64; 8],
}

impl Skein512 {
    /// Keyed; the pool's salt is such a key.
    pub(super) fn keyed_256(key: &[u8; 32]) -> Skein512 {
        let mut s = Skein512 { state: [0; 8] };
        s.stage(KEY, key);
        s.configure(256)
    }

    #[cfg(test)]
    pub(super) fn unkeyed(digest_bits: u64) -> Skein512 {
        Skein512 { state: [0; 8] }.configure(digest_bits)
    }

    fn configure(mut self, digest_bits: u64) -> Skein512 {
        // "SHA3", version 1; length of the digest; no tree.
        let mut config = [0u8; 32];
        let fields = [0x0000_0001_3341_4853u64, digest_bits];
        for (c, f) in config.as_chunks_mut::<8>().0.iter_mut().zip(fields) {
            *c = f.to_le_bytes();
        }
        self.stage(CONFIG, &config);
        self
    }

    /// The first 32 bytes of the digest of `data`.
    pub(super) fn finish(self, data: &[u8]) -> [u8; 32] {
        let d = self.finish_512(data);
        let mut half = [0; 32];
        for (h, b) in half.iter_mut().zip(d) {
            *h = b;
        }
        half
    }

    /// The first 64 bytes of the digest of `data`.
    pub(super) fn finish_512(mut self, data: &[u8]) -> [u8; 64] {
        self.stage(MESSAGE, data);
        self.stage(OUTPUT, &[0; 8]);
        let mut digest = [0; 64];
        for (d, w) in digest.as_chunks_mut::<8>().0.iter_mut().zip(self.state) {
            *d = w.to_le_bytes();
        }
        digest
    }

    /// One stage of UBI over `data`, zero-padded to whole blocks (at least one).
    fn stage(&mut self, kind: u64, data: &[u8]) {
        let kind = kind << 56;
        // The last block is special, so it is held back, even if it is whole.
        let whole = data.len().saturating_sub(1) / BLOCK;
        let (front, back) = data.split_at(whole * BLOCK);
        let (blocks, _) = front.as_chunks::<BLOCK>();
        let mut first = FIRST;
        let mut position = 0;
        for b in blocks {
            position += BLOCK as u64;
            self.block(&load(b), [position, kind | first]);
            first = 0;
        }
        let mut last = [0u8; BLOCK];
        for (l, b) in last.iter_mut().zip(back) {
            *l = *b;
        }
        self.block(&load(&last), [position + back.len() as u64, kind | first | FINAL]);
    }

    #[inline(always)]
    fn block(&mut self, m: &[u64; 8], tweak: [u64; 2]) {
        let c = threefish(&self.state, tweak, m);
        for ((s, c), m) in self.state.iter_mut().zip(c).zip(m) {
            *s = c ^ m;
        }
    }
}

fn load(block: &[u8; BLOCK]) -> [u64; 8] {
    let (w, _) = block.as_chunks::<8>();
    std::array::from_fn(|i| w.get(i).map_or(0, |b| u64::from_le_bytes(*b)))
}

/// Threefish-512: 72 rounds of four mixes, a subkey before every fourth and at the end.
///
/// Subkey s is words s, s + 1, … of the nine key words, cyclically, the last three with two tweak words and s added. They are computed
/// first and the rounds are a loop, on purpose: with unrolled rounds and visible sums, the compiler finds that all are additions, reorders
/// their terms across many rounds, and the code runs at less than half the speed.
#[inline(always)]
fn threefish(key: &[u64; 8], tweak: [u64; 2], m: &[u64; 8]) -> [u64; 8] {
    /// The ninth key word is the parity of the others and this constant.
    const PARITY: u64 = 0x1bd1_1bda_a9fc_1a22;
    let [k0, k1, k2, k3, k4, k5, k6, k7] = *key;
    let k8 = key.iter().fold(PARITY, |a, k| a ^ k);
    let [t0, t1] = tweak;
    let t2 = t0 ^ t1;
    let words =
        [k0, k1, k2, k3, k4, k5, k6, k7, k8, k0, k1, k2, k3, k4, k5, k6, k7, k8, k0, k1, k2, k3, k4, k5, k6, k7];
    let tweaks = [t0, t1, t2, t0, t1, t2, t0, t1, t2, t0, t1, t2, t0, t1, t2, t0, t1, t2, t0, t1];
    let mut tweaked = [[0u64; 3]; 19];
    for (s, t) in tweaked.iter_mut().enumerate() {
        *t = [
            words[s + 5].wrapping_add(tweaks[s]),
            words[s + 6].wrapping_add(tweaks[s + 1]),
            words[s + 7].wrapping_add(s as u64),
        ];
    }
    let subkey = |s: usize| {
        let [f, g, h] = tweaked[s];
        [words[s], words[s + 1], words[s + 2], words[s + 3], words[s + 4], f, g, h]
    };
    let mut x = *m;
    for s in 0..9 {
        x = eight_rounds(x, &subkey(2 * s), &subkey(2 * s + 1));
    }
    sum(x, &subkey(18))
}

#[inline(always)]
fn sum(x: [u64; 8], k: &[u64; 8]) -> [u64; 8] {
    let mut x = x;
    for (x, k) in x.iter_mut().zip(k) {
        *x = x.wrapping_add(*k);
    }
    x
}

/// Two subkeys, each with four rounds. A round mixes the words in pairs and permutes them; here the words stay, and the pairing changes.
#[inline(always)]
fn eight_rounds(x: [u64; 8], k: &[u64; 8], l: &[u64; 8]) -> [u64; 8] {
    macro_rules! mix {
        ($($x:ident, $y:ident, $r:literal);*) => {
            $(
                $x = $x.wrapping_add($y);
                $y = $y.rotate_left($r) ^ $x;
            )*
        };
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = sum(x, k);
    mix!(a, b, 46; c, d, 36; e, f, 19; g, h, 37);
    mix!(c, b, 33; e, h, 27; g, f, 14; a, d, 42);
    mix!(e, b, 17; g, d, 49; a, f, 36; c, h, 39);
    mix!(g, b, 44; a, h, 9; c, f, 54; e, d, 56);
    [a, b, c, d, e, f, g, h] = sum([a, b, c, d, e, f, g, h], l);
    mix!(a, b, 39; c, d, 30; e, f, 34; g, h, 24);
    mix!(c, b, 13; e, h, 50; g, f, 10; a, d, 17);
    mix!(e, b, 25; g, d, 29; a, f, 39; c, h, 43);
    mix!(g, b, 8; a, h, 35; c, f, 56; e, d, 22);
    [a, b, c, d, e, f, g, h]
}
