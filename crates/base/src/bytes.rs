//! Checked access to foreign bytes: a read beyond the end returns `None`.

use crate::Endian;

/// `N` bytes at `off`.
#[must_use]
pub fn array<const N: usize>(buf: &[u8], off: usize) -> Option<[u8; N]> {
    buf.get(off..off.checked_add(N)?)?.try_into().ok()
}

/// The byte at `off`.
#[must_use]
pub fn u8(buf: &[u8], off: usize) -> Option<u8> {
    buf.get(off).copied()
}

/// The `u16` of order `e` at `off`.
#[must_use]
pub fn u16(buf: &[u8], off: usize, e: Endian) -> Option<u16> {
    array(buf, off).map(|b| e.u16(b))
}

/// The `u32` of order `e` at `off`.
#[must_use]
pub fn u32(buf: &[u8], off: usize, e: Endian) -> Option<u32> {
    array(buf, off).map(|b| e.u32(b))
}

/// The `u64` of order `e` at `off`.
#[must_use]
pub fn u64(buf: &[u8], off: usize, e: Endian) -> Option<u64> {
    array(buf, off).map(|b| e.u64(b))
}

/// All whole `u64`s of `buf`, in order; a short tail is ignored.
pub fn u64s(buf: &[u8], e: Endian) -> impl ExactSizeIterator<Item = u64> + '_ {
    buf.as_chunks::<8>().0.iter().map(move |b| e.u64(*b))
}

/// The bytes before the first NUL of a fixed-size field, or all of them.
#[must_use]
pub fn until_nul(buf: &[u8]) -> &[u8] {
    buf.iter().position(|b| *b == 0).and_then(|n| buf.get(..n)).unwrap_or(buf)
}

/// `width` bits of `word` from bit `low`. docs/format.md writes this as `width@low`.
#[must_use]
pub const fn bits(word: u64, low: u32, width: u32) -> u64 {
    if width >= 64 { word >> low } else { (word >> low) & ((1 << width) - 1) }
}

/// `word` with `width` bits from bit `low` replaced by `value` (which is truncated to `width` bits).
#[must_use]
pub const fn with_bits(word: u64, low: u32, width: u32, value: u64) -> u64 {
    let mask = if width >= 64 { u64::MAX } else { (1 << width) - 1 };
    (word & !(mask << low)) | ((value & mask) << low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_beyond_the_end_are_none() {
        let b = [1u8, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(u64(&b, 0, Endian::Big), Some(0x0102_0304_0506_0708));
        assert_eq!(u64(&b, 1, Endian::Little), Some(0x0908_0706_0504_0302));
        assert_eq!(u64(&b, 2, Endian::Little), None);
        assert_eq!(u64(&b, usize::MAX, Endian::Little), None);
        assert_eq!(u64s(&b, Endian::Big).len(), 1);
    }

    #[test]
    fn bit_fields_round_trip() {
        let w = with_bits(0, 40, 8, 0x5a);
        assert_eq!(bits(w, 40, 8), 0x5a);
        assert_eq!(w, 0x5a << 40);
        assert_eq!(bits(with_bits(u64::MAX, 0, 64, 7), 0, 64), 7);
    }
}
