//! Edon-R-512, the tweaked form of the SHA-3 submission that OpenZFS uses, salted with an initial block.
//!
//! The state is a double pipe of sixteen words. Each 128-byte block goes through four rows of quasigroup operations;
//! one operation is two rounds of sums and rotations (orthogonal Latin squares) and a mix of their results. The digest
//! is the upper half of the pipe; a pool stores its first 32 bytes.

/// Length of a block in bytes.
const BLOCK: usize = 128;

/// Edon-R after a whole number of blocks.
#[derive(Clone)]
pub(super) struct EdonR512 {
    pipe: [u64; 16],
    /// Bits hashed so far.
    bits: u64,
}

impl EdonR512 {
    pub(super) fn new() -> EdonR512 {
        // The initial pipe is the bytes 0x80..=0xff, read as big-endian words.
        let word = |i: u64| (0..8).fold(0u64, |w, b| w << 8 | (0x80 + 8 * i + b));
        let mut pipe = [0; 16];
        for (i, p) in (0u64..).zip(&mut pipe) {
            *p = word(i);
        }
        EdonR512 { pipe, bits: 0 }
    }

    /// The state after the salt block, which is the digest of the salt followed by the digest of that digest.
    pub(super) fn salted(salt: &[u8; 32]) -> EdonR512 {
        let first = EdonR512::new().finish(salt);
        let second = EdonR512::new().finish(&first);
        let mut e = EdonR512::new();
        let (a, _) = first.as_chunks::<8>();
        let (b, _) = second.as_chunks::<8>();
        let mut block = [0; 16];
        for (w, bytes) in block.iter_mut().zip(a.iter().chain(b)) {
            *w = u64::from_le_bytes(*bytes);
        }
        e.block(&block);
        e
    }

    /// The first half of the digest of everything hashed so far followed by `data`.
    pub(super) fn finish_256(self, data: &[u8]) -> [u8; 32] {
        let d = self.finish(data);
        let mut half = [0; 32];
        for (h, b) in half.iter_mut().zip(d) {
            *h = b;
        }
        half
    }

    /// The whole digest of everything hashed so far followed by `data`.
    pub(super) fn finish(mut self, data: &[u8]) -> [u8; 64] {
        let (blocks, tail) = data.as_chunks::<BLOCK>();
        for b in blocks {
            self.block(&load(b));
        }
        let bits = self.bits + 8 * tail.len() as u64;
        // Padding: a one bit, zeros, the length in bits in the last eight bytes; one block or two.
        let mut last = [0u8; 2 * BLOCK];
        for (l, b) in last.iter_mut().zip(tail.iter().chain(&[0x80])) {
            *l = *b;
        }
        let padded = if tail.len() + 1 + 8 <= BLOCK { BLOCK } else { 2 * BLOCK };
        for (l, b) in last.iter_mut().skip(padded - 8).zip(bits.to_le_bytes()) {
            *l = b;
        }
        for b in last.as_chunks::<BLOCK>().0.iter().take(padded / BLOCK) {
            self.block(&load(b));
        }
        let mut digest = [0; 64];
        for (d, w) in digest.as_chunks_mut::<8>().0.iter_mut().zip(self.pipe.iter().skip(8)) {
            *d = w.to_le_bytes();
        }
        digest
    }

    /// The compression function.
    #[inline(always)]
    fn block(&mut self, m: &[u64; 16]) {
        let [m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15] = *m;
        let [c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15] = self.pipe;
        let low = [m0, m1, m2, m3, m4, m5, m6, m7];
        let high = [m8, m9, m10, m11, m12, m13, m14, m15];

        let p = quasigroup([m15, m14, m13, m12, m11, m10, m9, m8], low);
        let q = quasigroup(p, high);

        let p = quasigroup([c8, c9, c10, c11, c12, c13, c14, c15], p);
        let q = quasigroup(p, q);

        let p = quasigroup(p, [c0, c1, c2, c3, c4, c5, c6, c7]);
        let q = quasigroup(q, p);

        let p = quasigroup([m7, m6, m5, m4, m3, m2, m1, m0], p);
        let q = quasigroup(p, q);

        // The tweak of the second-round submission: feed back pipe and message.
        let (front, back) = self.pipe.split_at_mut(8);
        for (((c, m), x), _) in front.iter_mut().zip(high).zip(p).zip(0..8) {
            *c ^= m ^ x;
        }
        for (((c, m), x), _) in back.iter_mut().zip(low).zip(q).zip(0..8) {
            *c ^= m ^ x;
        }
        self.bits += 8 * BLOCK as u64;
    }
}

fn load(block: &[u8; BLOCK]) -> [u64; 16] {
    let (w, _) = block.as_chunks::<8>();
    std::array::from_fn(|i| w.get(i).map_or(0, |b| u64::from_le_bytes(*b)))
}

/// One quasigroup operation of order 2^512: `x * y`.
#[inline(always)]
fn quasigroup(x: [u64; 8], y: [u64; 8]) -> [u64; 8] {
    const K: u64 = 0xaaaa_aaaa_aaaa_aaaa;
    let add = u64::wrapping_add;
    let [x0, x1, x2, x3, x4, x5, x6, x7] = x;
    let x04 = add(x0, x4);
    let x17 = add(x1, x7);
    let x23 = add(x2, x3);
    let x56 = add(x5, x6);
    let x0147 = add(x04, x17);
    let x2356 = add(x23, x56);
    let s0 = add(add(K, x0147), x2);
    let s1 = add(x0147, x3).rotate_left(5);
    let s2 = add(x0147, x6).rotate_left(15);
    let s3 = add(x2356, x7).rotate_left(22);
    let s4 = add(x2356, x1).rotate_left(31);
    let s5 = add(add(x04, x23), x5).rotate_left(40);
    let s6 = add(add(x17, x56), x0).rotate_left(50);
    let s7 = add(x2356, x4).rotate_left(59);

    let [y0, y1, y2, y3, y4, y5, y6, y7] = y;
    let y01 = add(y0, y1);
    let y25 = add(y2, y5);
    let y34 = add(y3, y4);
    let y67 = add(y6, y7);
    let y0125 = add(y01, y25);
    let y0134 = add(y01, y34);
    let y3467 = add(y34, y67);
    let y2567 = add(y25, y67);
    let t0 = add(add(!K, y0125), y7);
    let t1 = add(y0134, y6).rotate_left(10);
    let t2 = add(y0125, y3).rotate_left(19);
    let t3 = add(y3467, y2).rotate_left(29);
    let t4 = add(y0134, y5).rotate_left(36);
    let t5 = add(y2567, y4).rotate_left(44);
    let t6 = add(y2567, y1).rotate_left(48);
    let t7 = add(y3467, y0).rotate_left(55);

    [
        add(s0 ^ s1 ^ s4, t0 ^ t1 ^ t5),
        add(s0 ^ s4 ^ s7, t2 ^ t6 ^ t7),
        add(s1 ^ s6 ^ s7, t0 ^ t1 ^ t3),
        add(s2 ^ s3 ^ s4, t0 ^ t3 ^ t4),
        add(s0 ^ s1 ^ s7, t1 ^ t2 ^ t5),
        add(s3 ^ s5 ^ s6, t3 ^ t4 ^ t6),
        add(s2 ^ s5 ^ s6, t2 ^ t5 ^ t7),
        add(s2 ^ s3 ^ s5, t4 ^ t6 ^ t7),
    ]
}
