//! Skein-512 with a 256-bit digest and a key (version 1.3 of the submission).
//!
//! Skein hashes by chaining UBI: the state is the key of Threefish-512, a block is its plaintext, the tweak says which
//! stage this is and how many bytes went in, and the ciphertext XOR the plaintext is the next state. Stages here: key
//! (absent when unkeyed), configuration, message, output.

/// Length of a block in bytes.
const BLOCK: usize = 64;

/// Stages, as the tweak's type field.
const KEY: u64 = 0;
const CONFIG: u64 = 4;
const MESSAGE: u64 = 48;
const OUTPUT: u64 = 63;

const FIRST: u64 = 1 << 62;
const FINAL: u64 = 1 << 63;

/// Skein-512-256 before its message.
#[derive(Clone)]
pub(super) struct Skein512 {
    state: [u64; 8],
}

impl Skein512 {
    /// With a key; the pool's salt is one.
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
        // The last block is special, so it is kept back, even if it is whole.
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
#[inline(always)]
fn threefish(key: &[u64; 8], tweak: [u64; 2], m: &[u64; 8]) -> [u64; 8] {
    /// The ninth key word is the parity of the others with this constant.
    const PARITY: u64 = 0x1bd1_1bda_a9fc_1a22;
    let [k0, k1, k2, k3, k4, k5, k6, k7] = *key;
    let k8 = k0 ^ k1 ^ k2 ^ k3 ^ k4 ^ k5 ^ k6 ^ k7 ^ PARITY;
    let [t0, t1] = tweak;
    let t2 = t0 ^ t1;
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *m;

    macro_rules! mix {
        ($x:ident, $y:ident, $r:literal) => {
            $x = $x.wrapping_add($y);
            $y = $y.rotate_left($r) ^ $x;
        };
    }
    macro_rules! subkey {
        ($s:expr; $k0:ident $k1:ident $k2:ident $k3:ident $k4:ident $k5:ident $k6:ident $k7:ident; $t0:ident $t1:ident) => {
            a = a.wrapping_add($k0);
            b = b.wrapping_add($k1);
            c = c.wrapping_add($k2);
            d = d.wrapping_add($k3);
            e = e.wrapping_add($k4);
            f = f.wrapping_add($k5.wrapping_add($t0));
            g = g.wrapping_add($k6.wrapping_add($t1));
            h = h.wrapping_add($k7.wrapping_add($s));
        };
    }
    // Eight rounds with their two subkeys; the word permutation is in the choice of the words that are mixed.
    macro_rules! eight {
        ($s:expr; $k0:ident $k1:ident $k2:ident $k3:ident $k4:ident $k5:ident $k6:ident $k7:ident $k8:ident; $t0:ident $t1:ident $t2:ident) => {
            subkey!($s; $k0 $k1 $k2 $k3 $k4 $k5 $k6 $k7; $t0 $t1);
            mix!(a, b, 46);
            mix!(c, d, 36);
            mix!(e, f, 19);
            mix!(g, h, 37);
            mix!(c, b, 33);
            mix!(e, h, 27);
            mix!(g, f, 14);
            mix!(a, d, 42);
            mix!(e, b, 17);
            mix!(g, d, 49);
            mix!(a, f, 36);
            mix!(c, h, 39);
            mix!(g, b, 44);
            mix!(a, h, 9);
            mix!(c, f, 54);
            mix!(e, d, 56);
            subkey!($s + 1; $k1 $k2 $k3 $k4 $k5 $k6 $k7 $k8; $t1 $t2);
            mix!(a, b, 39);
            mix!(c, d, 30);
            mix!(e, f, 34);
            mix!(g, h, 24);
            mix!(c, b, 13);
            mix!(e, h, 50);
            mix!(g, f, 10);
            mix!(a, d, 17);
            mix!(e, b, 25);
            mix!(g, d, 29);
            mix!(a, f, 39);
            mix!(c, h, 43);
            mix!(g, b, 8);
            mix!(a, h, 35);
            mix!(c, f, 56);
            mix!(e, d, 22);
        };
    }
    eight!(0; k0 k1 k2 k3 k4 k5 k6 k7 k8; t0 t1 t2);
    eight!(2; k2 k3 k4 k5 k6 k7 k8 k0 k1; t2 t0 t1);
    eight!(4; k4 k5 k6 k7 k8 k0 k1 k2 k3; t1 t2 t0);
    eight!(6; k6 k7 k8 k0 k1 k2 k3 k4 k5; t0 t1 t2);
    eight!(8; k8 k0 k1 k2 k3 k4 k5 k6 k7; t2 t0 t1);
    eight!(10; k1 k2 k3 k4 k5 k6 k7 k8 k0; t1 t2 t0);
    eight!(12; k3 k4 k5 k6 k7 k8 k0 k1 k2; t0 t1 t2);
    eight!(14; k5 k6 k7 k8 k0 k1 k2 k3 k4; t2 t0 t1);
    eight!(16; k7 k8 k0 k1 k2 k3 k4 k5 k6; t1 t2 t0);
    subkey!(18; k0 k1 k2 k3 k4 k5 k6 k7; t0 t1);
    [a, b, c, d, e, f, g, h]
}
