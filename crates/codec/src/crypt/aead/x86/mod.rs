//! AES-GCM and AES-CCM with the instructions of x86-64.
//!
//! The kernels are written in intrinsics, in functions that name the features they need; what is `unsafe` is to call them
//! without, and the loads and stores.
#![allow(unsafe_code)]

mod ccm;
mod gcm;

use std::arch::x86_64::*;

use zeroize::Zeroizing;

use super::{CCM_MAX, too_long};
use crate::Error;

/// Round keys, as many as AES-256 has; what rounds use is at the front.
type Keys = [[u8; 16]; 15];

/// An expanded key for one mode. Made only where the processor has what its mode needs, which is what makes the calls in
/// [`Cipher::run`] sound.
pub(in crate::crypt) struct Cipher {
    keys: Zeroizing<Keys>,
    rounds: usize,
    /// For GCM.
    powers: Option<Zeroizing<gcm::Powers>>,
}

impl Cipher {
    /// Expands `key`; `None` if this processor cannot do it.
    pub(super) fn new(gcm: bool, key: &[u8]) -> Option<Cipher> {
        if !(is_x86_feature_detected!("aes") && is_x86_feature_detected!("ssse3")) {
            return None;
        }
        let wide = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("pclmulqdq");
        if gcm && !wide {
            return None;
        }
        // SAFETY: AES-NI was just found.
        let (keys, rounds) = unsafe { expand(key)? };
        // SAFETY: with `gcm`, all that the function needs was just found.
        let powers = gcm.then(|| unsafe { gcm::powers(&keys, rounds) });
        Some(Cipher { keys, rounds, powers })
    }

    /// Encrypts or decrypts `data` in place, and gives its MAC: when decrypting, the one that it ought to have.
    pub(super) fn run(&self, iv: &[u8; 12], aad: &[u8], data: &mut [u8], encrypt: bool) -> Result<[u8; 16], Error> {
        match &self.powers {
            Some(_) if data.len() as u64 > gcm::MAX => Err(too_long(data.len())),
            // SAFETY: powers are made only where the processor has what the function needs.
            Some(h) => Ok(unsafe { gcm::run(self.rounds, &self.keys, h, iv, aad, data, encrypt) }),
            None if data.len() > CCM_MAX => Err(too_long(data.len())),
            // SAFETY: a `Cipher` is made only where there are AES-NI and SSSE3.
            None => Ok(unsafe { ccm::run(self.rounds, &self.keys, iv, aad, data, encrypt) }),
        }
    }
}

#[inline(always)]
fn load(b: &[u8; 16]) -> __m128i {
    // SAFETY: an unaligned load of the array's 16 bytes; SSE2 is part of x86-64.
    unsafe { _mm_loadu_si128(b.as_ptr().cast()) }
}

#[inline(always)]
fn store(b: &mut [u8; 16], v: __m128i) {
    // SAFETY: an unaligned store to the array's 16 bytes; SSE2 is part of x86-64.
    unsafe { _mm_storeu_si128(b.as_mut_ptr().cast(), v) }
}

/// The key schedule of FIPS 197, and the number of rounds; `None` for a length that AES does not have.
#[target_feature(enable = "aes")]
fn expand(key: &[u8]) -> Option<(Zeroizing<Keys>, usize)> {
    let nk = key.len() / 4;
    if !matches!(key.len(), 16 | 24 | 32) {
        return None;
    }
    let rounds = nk + 6;
    let mut words = Zeroizing::new([0u32; 60]);
    for (w, k) in words.iter_mut().zip(key.as_chunks::<4>().0) {
        *w = u32::from_le_bytes(*k);
    }
    let mut rcon = 1u32;
    for i in nk..4 * (rounds + 1) {
        let mut t = words[i - 1];
        if i % nk == 0 {
            t = substitute(t.rotate_right(8)) ^ rcon;
            rcon = (rcon << 1) ^ (if rcon & 0x80 != 0 { 0x11b } else { 0 });
        } else if nk > 6 && i % nk == 4 {
            t = substitute(t);
        }
        words[i] = words[i - nk] ^ t;
    }
    let mut keys = Zeroizing::new([[0; 16]; 15]);
    for (k, w) in keys.iter_mut().flat_map(|k| k.as_chunks_mut::<4>().0).zip(words.iter()) {
        *k = w.to_le_bytes();
    }
    Some((keys, rounds))
}

/// The S-box on each byte. The last round of AES shifts rows too, which does nothing to four equal columns.
#[target_feature(enable = "aes")]
fn substitute(word: u32) -> u32 {
    let v = _mm_aesenclast_si128(_mm_set1_epi32(word as i32), _mm_setzero_si128());
    _mm_cvtsi128_si32(v) as u32
}

/// The round keys as vectors.
#[inline]
#[target_feature(enable = "aes")]
fn schedule(keys: &Keys) -> [__m128i; 15] {
    std::array::from_fn(|i| load(&keys[i]))
}

/// One block through `R` rounds.
#[inline]
#[target_feature(enable = "aes")]
fn cipher<const R: usize>(keys: &[__m128i; 15], block: __m128i) -> __m128i {
    let mut b = _mm_xor_si128(block, keys[0]);
    for k in &keys[1..R] {
        b = _mm_aesenc_si128(b, *k);
    }
    _mm_aesenclast_si128(b, keys[R])
}
