//! The inner loops of the fletchers, compiled once for each instruction set that the machine may have.
//!
//! Each loop is written once over arrays of eight 64-bit lanes, which the compiler turns into vectors: one of 512 bits, two of 256 or four
//! of 128. The variant is chosen at run time.
#![allow(unsafe_code)]

use base::Endian;

use super::{STEP2, STEP4};

/// a, b, c, d of the eight lanes of fletcher4.
pub(super) fn lanes4(steps: &[[u8; STEP4]], endian: Endian) -> [[u64; 8]; 4] {
    match endian {
        Endian::Little => dispatch4::<false>(steps),
        Endian::Big => dispatch4::<true>(steps),
    }
}

/// The two sums of the eight columns (four lanes of a pair) of fletcher2.
pub(super) fn lanes2(steps: &[[u8; STEP2]], endian: Endian) -> [[u64; 8]; 2] {
    match endian {
        Endian::Little => dispatch2::<false>(steps),
        Endian::Big => dispatch2::<true>(steps),
    }
}

#[inline(always)]
fn sum4<const BIG: bool>(steps: &[[u8; STEP4]]) -> [[u64; 8]; 4] {
    let (mut a, mut b, mut c, mut d) = ([0u64; 8], [0u64; 8], [0u64; 8], [0u64; 8]);
    for step in steps {
        let (words, _) = step.as_chunks::<4>();
        for ((((w, a), b), c), d) in words.iter().zip(&mut a).zip(&mut b).zip(&mut c).zip(&mut d) {
            let w = if BIG { u32::from_be_bytes(*w) } else { u32::from_le_bytes(*w) };
            *a = a.wrapping_add(u64::from(w));
            *b = b.wrapping_add(*a);
            *c = c.wrapping_add(*b);
            *d = d.wrapping_add(*c);
        }
    }
    [a, b, c, d]
}

#[inline(always)]
fn sum2<const BIG: bool>(steps: &[[u8; STEP2]]) -> [[u64; 8]; 2] {
    let (mut a, mut b) = ([0u64; 8], [0u64; 8]);
    for step in steps {
        let (words, _) = step.as_chunks::<8>();
        for ((w, a), b) in words.iter().zip(&mut a).zip(&mut b) {
            let w = if BIG { u64::from_be_bytes(*w) } else { u64::from_le_bytes(*w) };
            *a = a.wrapping_add(w);
            *b = b.wrapping_add(*a);
        }
    }
    [a, b]
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum4_avx2<const BIG: bool>(steps: &[[u8; STEP4]]) -> [[u64; 8]; 4] {
    sum4::<BIG>(steps)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn sum4_avx512<const BIG: bool>(steps: &[[u8; STEP4]]) -> [[u64; 8]; 4] {
    sum4::<BIG>(steps)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum2_avx2<const BIG: bool>(steps: &[[u8; STEP2]]) -> [[u64; 8]; 2] {
    sum2::<BIG>(steps)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn sum2_avx512<const BIG: bool>(steps: &[[u8; STEP2]]) -> [[u64; 8]; 2] {
    sum2::<BIG>(steps)
}

#[cfg(target_arch = "x86_64")]
fn dispatch4<const BIG: bool>(steps: &[[u8; STEP4]]) -> [[u64; 8]; 4] {
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
        // SAFETY: the function is unsafe to call only where AVX-512F/BW may be missing; they were just found.
        unsafe { sum4_avx512::<BIG>(steps) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: the function is unsafe to call only where AVX2 may be missing; it was just found.
        unsafe { sum4_avx2::<BIG>(steps) }
    } else {
        sum4::<BIG>(steps)
    }
}

#[cfg(target_arch = "x86_64")]
fn dispatch2<const BIG: bool>(steps: &[[u8; STEP2]]) -> [[u64; 8]; 2] {
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
        // SAFETY: the function is unsafe to call only where AVX-512F/BW may be missing; they were just found.
        unsafe { sum2_avx512::<BIG>(steps) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: the function is unsafe to call only where AVX2 may be missing; it was just found.
        unsafe { sum2_avx2::<BIG>(steps) }
    } else {
        sum2::<BIG>(steps)
    }
}

/// On other machines, the base instruction set's vectors (NEON on arm64) are used.
#[cfg(not(target_arch = "x86_64"))]
fn dispatch4<const BIG: bool>(steps: &[[u8; STEP4]]) -> [[u64; 8]; 4] {
    sum4::<BIG>(steps)
}

#[cfg(not(target_arch = "x86_64"))]
fn dispatch2<const BIG: bool>(steps: &[[u8; STEP2]]) -> [[u64; 8]; 2] {
    sum2::<BIG>(steps)
}
