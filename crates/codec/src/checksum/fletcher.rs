//! The fletcher sums: running sums of words, sums of the sums, modulo 2^64.
//!
//! fletcher4 over words w₀…w₍ₙ₋₁₎ is a = Σw, b = Σa, c = Σb, d = Σc, each updated after every word. Computed as written, each word waits
//! for the one before it. Instead, each of eight lanes sums every eighth word independently, which is one vector operation per step; at the
//! end the lanes are combined. Lane j's k-th word of m is word 8k + j of n = 8m, so its weight in b is n − 8k − j = 8(m − k) − j where the
//! lane itself gave it m − k; in c the weight is the triangular number of that, in d the tetrahedral. Writing T(8y − j) and Tet(8y − j) in
//! terms of y, T(y) and Tet(y) gives the coefficients of `join4`. Two spans are combined in the same way ([`Fletcher4::append`]), which
//! makes the sum incremental and allows spans of one stream to be summed separately.
//!
//! The words are loaded in the byte order of the machine that wrote them; OpenZFS calls the foreign case `byteswap`. OpenZFS:
//! `zfs_fletcher.c`.

use base::Endian;

use super::Cksum;

mod kernel;
#[cfg(test)]
mod tests;

/// Bytes that the eight lanes of fletcher4 process per step.
const STEP4: usize = 32;
/// Bytes that the four lanes of fletcher2 process per step; a lane takes a pair of words.
const STEP2: usize = 64;
/// The inverse of three modulo 2^64.
const THIRD: u64 = 0xaaaa_aaaa_aaaa_aaab;

/// fletcher4 of `data`, whose 32-bit words are of order `endian`; a tail of less than four bytes is ignored.
#[must_use]
pub fn fletcher4(data: &[u8], endian: Endian) -> Cksum {
    let mut f = Fletcher4::new();
    f.update(data, endian);
    f.value()
}

/// fletcher2 of `data`, whose 64-bit words are of order `endian`; a tail of less than sixteen bytes is ignored.
#[must_use]
pub fn fletcher2(data: &[u8], endian: Endian) -> Cksum {
    let mut f = Fletcher2::default();
    f.update(data, endian);
    f.value()
}

/// A running fletcher4: streams are summed record by record. OpenZFS: `fletcher_4_incremental_native`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fletcher4 {
    sums: Cksum,
}

impl Fletcher4 {
    /// The sum of no words: zeros.
    #[must_use]
    pub fn new() -> Fletcher4 {
        Fletcher4::default()
    }

    /// Continues from an earlier value.
    #[must_use]
    pub fn resume(value: Cksum) -> Fletcher4 {
        Fletcher4 { sums: value }
    }

    /// Adds `data`, any number of 32-bit words of order `endian`; a tail of less than four bytes is ignored.
    pub fn update(&mut self, data: &[u8], endian: Endian) {
        let (steps, tail) = data.as_chunks::<STEP4>();
        // Combining the lanes costs about as much as a hundred words one by one.
        let tail = if steps.len() < 16 {
            data
        } else {
            let lanes = kernel::lanes4(steps, endian);
            self.append(join4(&lanes), 8 * steps.len() as u64);
            tail
        };
        let [mut a, mut b, mut c, mut d] = self.sums;
        for word in tail.as_chunks::<4>().0 {
            a = a.wrapping_add(u64::from(endian.u32(*word)));
            b = b.wrapping_add(a);
            c = c.wrapping_add(b);
            d = d.wrapping_add(c);
        }
        self.sums = [a, b, c, d];
    }

    /// Appends a span of `words` 32-bit words whose own fletcher4 is `span`.
    pub fn append(&mut self, span: Cksum, words: u64) {
        let mul = u64::wrapping_mul;
        let next = words.wrapping_add(1);
        // words and the next number, the even one halved; a third of their product with the one after is exact modulo 2^64, too
        let tri = if words.is_multiple_of(2) { mul(words / 2, next) } else { mul(words, words / 2 + 1) };
        let tet = mul(mul(tri, words.wrapping_add(2)), THIRD);
        let [a, b, c, d] = self.sums;
        let [a2, b2, c2, d2] = span;
        self.sums = [
            a.wrapping_add(a2),
            b.wrapping_add(mul(words, a)).wrapping_add(b2),
            c.wrapping_add(mul(words, b)).wrapping_add(mul(tri, a)).wrapping_add(c2),
            d.wrapping_add(mul(words, c)).wrapping_add(mul(tri, b)).wrapping_add(mul(tet, a)).wrapping_add(d2),
        ];
    }

    /// The sum so far.
    #[must_use]
    pub fn value(&self) -> Cksum {
        self.sums
    }
}

/// A running fletcher2.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fletcher2 {
    sums: Cksum,
}

impl Fletcher2 {
    /// Adds pairs of 64-bit words; a tail of less than sixteen bytes is ignored.
    pub(super) fn update(&mut self, data: &[u8], endian: Endian) {
        let (steps, mut tail) = data.as_chunks::<STEP2>();
        if steps.len() < 8 {
            tail = data;
        } else {
            let n = 4 * steps.len() as u64;
            let [a0, a1, b0, b1] = self.sums;
            let [c0, c1, d0, d1] = join2(&kernel::lanes2(steps, endian));
            self.sums = [
                a0.wrapping_add(c0),
                a1.wrapping_add(c1),
                b0.wrapping_add(n.wrapping_mul(a0)).wrapping_add(d0),
                b1.wrapping_add(n.wrapping_mul(a1)).wrapping_add(d1),
            ];
        }
        for pair in tail.as_chunks::<16>().0 {
            let [w0, w1] = words_of(pair, endian);
            let [a0, a1, b0, b1] = &mut self.sums;
            *a0 = a0.wrapping_add(w0);
            *a1 = a1.wrapping_add(w1);
            *b0 = b0.wrapping_add(*a0);
            *b1 = b1.wrapping_add(*a1);
        }
    }

    pub(super) fn value(&self) -> Cksum {
        self.sums
    }
}

fn words_of(pair: &[u8; 16], endian: Endian) -> [u64; 2] {
    let (w, _) = pair.as_chunks::<8>();
    std::array::from_fn(|i| w.get(i).map_or(0, |b| endian.u64(*b)))
}

/// Combines eight lanes of a, b, c, d.
fn join4(lanes: &[[u64; 8]; 4]) -> Cksum {
    let [la, lb, lc, ld] = lanes;
    let mul = u64::wrapping_mul;
    let mut sums = [0u64; 4];
    for ((((j, a), b), c), d) in (0u64..).zip(la).zip(lb).zip(lc).zip(ld) {
        let jj = j.wrapping_mul(j.wrapping_sub(1));
        let jjj = jj.wrapping_mul(j.wrapping_sub(2)) / 6;
        let terms = [
            *a,
            mul(8, *b).wrapping_sub(mul(j, *a)),
            mul(64, *c).wrapping_sub(mul(28 + 8 * j, *b)).wrapping_add(mul(jj / 2, *a)),
            mul(512, *d)
                .wrapping_sub(mul(448 + 64 * j, *c))
                .wrapping_add(mul(56 + 24 * j + 4 * j * j, *b))
                .wrapping_sub(mul(jjj, *a)),
        ];
        for (s, t) in sums.iter_mut().zip(terms) {
            *s = s.wrapping_add(t);
        }
    }
    sums
}

/// Combines four lanes (of two columns each) of the two sums of fletcher2.
fn join2(lanes: &[[u64; 8]; 2]) -> Cksum {
    let [la, lb] = lanes;
    let mut sums = [0u64; 4];
    let [a0, a1, b0, b1] = &mut sums;
    for (i, (la, lb)) in la.iter().zip(lb).enumerate() {
        let j = (i / 2) as u64;
        let (a, b) = if i % 2 == 0 { (&mut *a0, &mut *b0) } else { (&mut *a1, &mut *b1) };
        *a = a.wrapping_add(*la);
        *b = b.wrapping_add(lb.wrapping_mul(4)).wrapping_sub(j.wrapping_mul(*la));
    }
    sums
}
