//! Arithmetic of parity: the field of 256 elements with reduction polynomial 0x11d, over runs of bytes.
//!
//! P is the sum (XOR) of the data columns, Q and R are polynomials in 2 and in 4 with the columns as coefficients, the first data
//! column having the highest power. No tables: each loop is shifts, masks and XOR on bytes, which compilers turn into vector
//! code on every machine.

/// Twice `x`.
#[inline(always)]
const fn double(x: u8) -> u8 {
    (x << 1) ^ (((x as i8) >> 7) as u8 & 0x1d)
}

/// The product of two elements.
pub(crate) const fn mul(a: u8, b: u8) -> u8 {
    let (mut product, mut a, mut b) = (0, a, b);
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = double(a);
        b >>= 1;
    }
    product
}

/// `base` to the power `exponent`.
pub(crate) const fn pow(base: u8, exponent: usize) -> u8 {
    // the multiplicative group has 255 elements
    let mut left = exponent % 255;
    let (mut result, mut square) = (1, base);
    while left != 0 {
        if left & 1 != 0 {
            result = mul(result, square);
        }
        square = mul(square, square);
        left >>= 1;
    }
    result
}

/// The element whose product with `a` is 1; 0 for 0.
pub(crate) const fn invert(a: u8) -> u8 {
    if a == 0 { 0 } else { pow(a, 254) }
}

/// The factor of data column `column` (of `columns`) in parity `parity` (0, 1, 2 for P, Q, R).
pub(crate) const fn coefficient(parity: usize, column: usize, columns: usize) -> u8 {
    pow(1 << parity, columns.saturating_sub(1 + column))
}

/// `to += from`, over the shorter of the two.
pub(crate) fn add(to: &mut [u8], from: &[u8]) {
    for (t, f) in to.iter_mut().zip(from) {
        *t ^= *f;
    }
}

/// `to *= 2`.
pub(crate) fn double_all(to: &mut [u8]) {
    for t in to {
        *t = double(*t);
    }
}

/// `to *= 4`.
pub(crate) fn quadruple_all(to: &mut [u8]) {
    for t in to {
        *t = double(double(*t));
    }
}

/// One step of a parity's polynomial: `to = to * 2^parity + column`, where a short column counts as filled up with zeros.
pub(crate) fn horner(parity: usize, to: &mut [u8], column: &[u8]) {
    let len = column.len().min(to.len());
    let (head, tail) = to.split_at_mut(len);
    match parity {
        0 => add(head, column),
        1 => {
            for (t, c) in head.iter_mut().zip(column) {
                *t = double(*t) ^ *c;
            }
            double_all(tail);
        }
        _ => {
            for (t, c) in head.iter_mut().zip(column) {
                *t = double(double(*t)) ^ *c;
            }
            quadruple_all(tail);
        }
    }
}

/// `to += factor * from`, over the shorter of the two.
pub(crate) fn add_scaled(to: &mut [u8], from: &[u8], factor: u8) {
    match factor {
        0 => {}
        1 => add(to, from),
        _ => {
            // blocks small enough to stay in registers; each doubles its way through the bits of the factor
            const BLOCK: usize = 64;
            let (to_blocks, to_tail) = to.as_chunks_mut::<BLOCK>();
            let (from_blocks, from_tail) = from.as_chunks::<BLOCK>();
            let whole = to_blocks.len().min(from_blocks.len());
            for (t, f) in to_blocks.iter_mut().zip(from_blocks) {
                let mut power = *f;
                let mut bits = factor;
                loop {
                    if bits & 1 != 0 {
                        for (t, p) in t.iter_mut().zip(&power) {
                            *t ^= *p;
                        }
                    }
                    bits >>= 1;
                    if bits == 0 {
                        break;
                    }
                    for p in &mut power {
                        *p = double(*p);
                    }
                }
            }
            if to_blocks.len() == from_blocks.len() {
                for (t, f) in to_tail.iter_mut().zip(from_tail) {
                    *t ^= mul(*f, factor);
                }
            } else {
                let skip = whole * BLOCK;
                for (t, f) in to.iter_mut().zip(from).skip(skip) {
                    *t ^= mul(*f, factor);
                }
            }
        }
    }
}

/// Inverts the `n` by `n` matrix in the corner of `m` (`n` ≤ 3), or gives `None` if it has no inverse.
pub(crate) fn invert_matrix(mut m: [[u8; 3]; 3], n: usize) -> Option<[[u8; 3]; 3]> {
    let mut inverse = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
    for pivot in 0..n.min(3) {
        let row = (pivot..n).find(|r| m[*r][pivot] != 0)?;
        m.swap(row, pivot);
        inverse.swap(row, pivot);
        let scale = invert(m[pivot][pivot]);
        for c in 0..3 {
            m[pivot][c] = mul(m[pivot][c], scale);
            inverse[pivot][c] = mul(inverse[pivot][c], scale);
        }
        for r in (0..n).filter(|r| *r != pivot) {
            let factor = m[r][pivot];
            for c in 0..3 {
                m[r][c] ^= mul(factor, m[pivot][c]);
                inverse[r][c] ^= mul(factor, inverse[pivot][c]);
            }
        }
    }
    Some(inverse)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_an_inverse() {
        for a in 1..=255u8 {
            assert_eq!(mul(a, invert(a)), 1);
            assert_eq!(pow(a, 255), 1);
        }
        assert_eq!(mul(0x80, 2), 0x1d);
        assert_eq!(mul(2, 0x8e), 1);
    }

    #[test]
    fn runs_agree_with_single_elements() {
        let from: Vec<u8> = (0..200u32).map(|n| (n * 37 + 11) as u8).collect();
        for factor in [0, 1, 2, 3, 0x1d, 0x80, 0xff] {
            for (to_len, from_len) in [(200, 200), (130, 200), (200, 130), (63, 63), (64, 65), (0, 5)] {
                let mut to: Vec<u8> = (0..to_len as u32).map(|n| (n * 91 + 3) as u8).collect();
                let expected: Vec<u8> = to
                    .iter()
                    .enumerate()
                    .map(|(n, t)| if n < from_len { t ^ mul(from[n], factor) } else { *t })
                    .collect();
                add_scaled(&mut to, &from[..from_len], factor);
                assert_eq!(to, expected, "{factor} {to_len} {from_len}");
            }
        }
    }

    #[test]
    fn horner_gives_the_coefficients() {
        for columns in [1, 2, 5, 252] {
            for parity in 0..3 {
                let data: Vec<u8> = (0..columns).map(|c| (c * 7 + 1) as u8).collect();
                let mut run = [0u8; 1];
                for d in &data {
                    horner(parity, &mut run, &[*d]);
                }
                let sum = data.iter().enumerate().fold(0, |s, (c, d)| s ^ mul(coefficient(parity, c, columns), *d));
                assert_eq!(run[0], sum);
            }
        }
    }

    #[test]
    fn any_choice_of_parities_solves_as_many_columns() {
        let columns = 252;
        for (parities, missing) in [(vec![0, 1, 2], vec![0, 100, 251]), (vec![1, 2], vec![3, 200]), (vec![2], vec![7])]
        {
            let n = parities.len();
            let mut m = [[0; 3]; 3];
            for (r, p) in parities.iter().enumerate() {
                for (c, column) in missing.iter().enumerate() {
                    m[r][c] = coefficient(*p, *column, columns);
                }
            }
            let inverse = invert_matrix(m, n).unwrap();
            let product = |r: usize, c: usize| (0..n).fold(0, |s, k| s ^ mul(m[r][k], inverse[k][c]));
            assert!((0..n * n).all(|cell| product(cell / n, cell % n) == u8::from(cell / n == cell % n)));
        }
        assert!(invert_matrix([[1, 1, 0], [1, 1, 0], [0; 3]], 2).is_none());
    }
}
