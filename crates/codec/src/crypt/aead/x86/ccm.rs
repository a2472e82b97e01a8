//! CCM (RFC 3610) with AES-NI.
//!
//! It is bound by its CBC-MAC, a chain of encryptions of which none can start before the one before has ended. The
//! counters' encryptions find room in the shadow of that chain.

use std::arch::x86_64::*;

use super::{Keys, cipher, load, schedule, store};

/// A block: flags, nonce, a 24-bit number. The number is kept in native order; the nonce's last byte is
/// on top of it.
#[derive(Clone, Copy)]
struct CcmBlock(__m128i);

impl CcmBlock {
    #[inline(always)]
    fn new(flags: u8, iv: &[u8; 12], number: usize) -> CcmBlock {
        let mut b = [flags; 16];
        b[1..13].copy_from_slice(iv);
        b[12..].copy_from_slice(&((u32::from(iv[11]) << 24) | number as u32).to_le_bytes());
        CcmBlock(load(&b))
    }

    /// Counts on by one. (A block that is put together in memory is slow to load: its stores must have ended first, and
    /// these wait for the chain.)
    #[inline]
    #[target_feature(enable = "ssse3")]
    fn next(self) -> CcmBlock {
        CcmBlock(_mm_add_epi32(self.0, _mm_set_epi32(1, 0, 0, 0)))
    }

    #[inline]
    #[target_feature(enable = "ssse3")]
    fn block(self) -> __m128i {
        _mm_shuffle_epi8(self.0, _mm_set_epi8(12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0))
    }
}

/// Encrypts or decrypts `data` in place, and gives the MAC of the plaintext.
#[target_feature(enable = "aes,ssse3")]
pub(super) fn run(rounds: usize, keys: &Keys, iv: &[u8; 12], aad: &[u8], data: &mut [u8], encrypt: bool) -> [u8; 16] {
    match rounds {
        10 => ccm::<10>(keys, iv, aad, data, encrypt),
        12 => ccm::<12>(keys, iv, aad, data, encrypt),
        _ => ccm::<14>(keys, iv, aad, data, encrypt),
    }
}

#[target_feature(enable = "aes,ssse3")]
fn ccm<const R: usize>(keys: &Keys, iv: &[u8; 12], aad: &[u8], data: &mut [u8], encrypt: bool) -> [u8; 16] {
    let keys = schedule(keys);
    // The first block: is there AAD, MAC of 16 bytes, length of 3.
    let flags = (u8::from(!aad.is_empty()) << 6) | (((16 - 2) / 2) << 3) | (3 - 1);
    let mut chain = cipher::<R>(&keys, CcmBlock::new(flags, iv, data.len()).block());
    chain = ccm_aad::<R>(&keys, chain, aad);

    // Counter 0 is for the MAC, 1… for the data.
    let mut counter = CcmBlock::new(3 - 1, iv, 0);
    let mask = cipher::<R>(&keys, counter.block());
    let (blocks, rest) = data.as_chunks_mut::<16>();
    for block in blocks {
        counter = counter.next();
        let before = load(block);
        let after = _mm_xor_si128(before, cipher::<R>(&keys, counter.block()));
        store(block, after);
        chain = cipher::<R>(&keys, _mm_xor_si128(chain, if encrypt { before } else { after }));
    }
    if !rest.is_empty() {
        let (mut key, mut text) = ([0; 16], [0; 16]);
        store(&mut key, cipher::<R>(&keys, counter.next().block()));
        if encrypt {
            text[..rest.len()].copy_from_slice(rest);
        }
        for (d, k) in rest.iter_mut().zip(key) {
            *d ^= k;
        }
        if !encrypt {
            text[..rest.len()].copy_from_slice(rest);
        }
        chain = cipher::<R>(&keys, _mm_xor_si128(chain, load(&text)));
    }
    let mut mac = [0; 16];
    store(&mut mac, _mm_xor_si128(chain, mask));
    mac
}

/// The chain after the additional data: its length in two bytes or six, then itself, padded as one.
#[inline]
#[target_feature(enable = "aes")]
fn ccm_aad<const R: usize>(keys: &[__m128i; 15], mut chain: __m128i, aad: &[u8]) -> __m128i {
    if aad.is_empty() {
        return chain;
    }
    let [a, b, c, d] = (aad.len() as u32).to_be_bytes();
    let short = [c, d];
    let long = [0xff, 0xfe, a, b, c, d];
    let head: &[u8] = if aad.len() < 0xff00 { &short } else { &long };
    let (front, back) = aad.split_at(aad.len().min(16 - head.len()));
    let mut block = [0; 16];
    for (b, v) in block.iter_mut().zip(head.iter().chain(front)) {
        *b = *v;
    }
    chain = cipher::<R>(keys, _mm_xor_si128(chain, load(&block)));
    for piece in back.chunks(16) {
        let mut block = [0; 16];
        block[..piece.len()].copy_from_slice(piece);
        chain = cipher::<R>(keys, _mm_xor_si128(chain, load(&block)));
    }
    chain
}
