//! GCM with VAES and VPCLMULQDQ (Zen 3, Ice Lake and later).
//!
//! Eight blocks a turn: four vectors of two blocks each are encrypted counters, and eight blocks of ciphertext enter the
//! hash together, times H⁸ … H¹, with one reduction. What is hashed is the text that is being decrypted, or that the turn
//! before has encrypted, so that the two halves of a turn do not wait for each other, and the processor overlaps them.
//!
//! The hash is computed in its byte-reversed form, POLYVAL (RFC 8452, appendix A), where a product needs no bit shifts: H
//! is multiplied by x once, blocks are reversed as they are loaded, and the Montgomery reduction is two multiplications
//! with the upper half of the polynomial.

use std::arch::x86_64::*;

use zeroize::Zeroizing;

use super::{Keys, cipher, load, schedule, store};

/// The longest message: the counter has 32 bits.
pub(super) const MAX: u64 = (1 << 36) - 32;

/// Bytes of one turn.
const TURN: usize = 8 * 16;

/// The powers of H for eight blocks, as pairs ready for multiplication: H⁸ H⁷, H⁶ H⁵, H⁴ H³, H² H¹; then for each pair the
/// sum of each power's halves, twice.
pub(super) type Powers = [[[u8; 32]; 4]; 2];

#[inline]
#[target_feature(enable = "avx2")]
fn load2(b: &[u8; 32]) -> __m256i {
    // SAFETY: an unaligned load of the array's 32 bytes.
    unsafe { _mm256_loadu_si256(b.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store2(b: &mut [u8; 32], v: __m256i) {
    // SAFETY: an unaligned store to the array's 32 bytes.
    unsafe { _mm256_storeu_si256(b.as_mut_ptr().cast(), v) }
}

/// Reverses the bytes of a block: from the order of GHASH to that of POLYVAL.
#[inline]
#[target_feature(enable = "ssse3")]
fn reverse(v: __m128i) -> __m128i {
    _mm_shuffle_epi8(v, _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
}

#[inline]
#[target_feature(enable = "avx2")]
fn reverse2(v: __m256i) -> __m256i {
    let order = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order))
}

/// The product's three parts to an element of the field: low, middle (to be added at 64 bits), high.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn reduce(low: __m128i, middle: __m128i, high: __m128i) -> __m128i {
    // x^127 + x^126 + x^121, as the upper half of the polynomial
    let poly = _mm_set1_epi64x(0xc200_0000_0000_0000_u64 as i64);
    let low = _mm_xor_si128(low, _mm_slli_si128::<8>(middle));
    let high = _mm_xor_si128(high, _mm_srli_si128::<8>(middle));
    let low = _mm_xor_si128(_mm_shuffle_epi32::<0x4e>(low), _mm_clmulepi64_si128::<0x00>(low, poly));
    let low = _mm_xor_si128(_mm_shuffle_epi32::<0x4e>(low), _mm_clmulepi64_si128::<0x00>(low, poly));
    _mm_xor_si128(high, low)
}

#[inline]
#[target_feature(enable = "pclmulqdq")]
fn multiply(a: __m128i, b: __m128i) -> __m128i {
    let middle = _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(a, b), _mm_clmulepi64_si128::<0x10>(a, b));
    reduce(_mm_clmulepi64_si128::<0x00>(a, b), middle, _mm_clmulepi64_si128::<0x11>(a, b))
}

/// H⁸ … H¹ in pairs, from the round keys: H is the encryption of zero.
#[target_feature(enable = "aes,pclmulqdq,ssse3")]
pub(super) fn powers(keys: &Keys, rounds: usize) -> Zeroizing<Powers> {
    let keys = schedule(keys);
    let zero = _mm_setzero_si128();
    let h = match rounds {
        10 => cipher::<10>(&keys, zero),
        12 => cipher::<12>(&keys, zero),
        _ => cipher::<14>(&keys, zero),
    };
    let mut raw = [0; 16];
    store(&mut raw, reverse(h));
    // times x
    let h = u128::from_le_bytes(raw);
    let carry = if h >> 127 == 1 { 0xc200_0000_0000_0000_0000_0000_0000_0001 } else { 0 };
    let h = load(&((h << 1) ^ carry).to_le_bytes());

    let mut out = Zeroizing::new(Powers::default());
    let [pairs, sums] = &mut *out;
    let mut power = h;
    for (pair, sum) in pairs.iter_mut().zip(sums).rev() {
        // The later block of a pair, in the upper half, takes the smaller power.
        let (pair, _) = pair.as_chunks_mut::<16>();
        let (sum, _) = sum.as_chunks_mut::<16>();
        for half in [1, 0] {
            store(&mut pair[half], power);
            store(&mut sum[half], _mm_xor_si128(power, _mm_shuffle_epi32::<0x4e>(power)));
            power = multiply(power, h);
        }
    }
    out
}

/// The hash after eight more blocks, given reversed and in pairs.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq")]
fn absorb(hash: __m128i, blocks: [__m256i; 4], powers: &Powers) -> __m128i {
    let mut blocks = blocks;
    blocks[0] = _mm256_xor_si256(blocks[0], _mm256_zextsi128_si256(hash));
    let zero = _mm256_setzero_si256();
    let (mut low, mut middle, mut high) = (zero, zero, zero);
    let [pairs, sums] = powers;
    // Karatsuba: three multiplications a block, and their middle put right once for all.
    for ((x, h), sum) in blocks.iter().zip(pairs).zip(sums) {
        let h = load2(h);
        low = _mm256_xor_si256(low, _mm256_clmulepi64_epi128::<0x00>(*x, h));
        high = _mm256_xor_si256(high, _mm256_clmulepi64_epi128::<0x11>(*x, h));
        let x = _mm256_xor_si256(*x, _mm256_shuffle_epi32::<0x4e>(*x));
        middle = _mm256_xor_si256(middle, _mm256_clmulepi64_epi128::<0x00>(x, load2(sum)));
    }
    middle = _mm256_xor_si256(middle, _mm256_xor_si256(low, high));
    reduce(fold(low), fold(middle), fold(high))
}

#[inline]
#[target_feature(enable = "avx2")]
fn fold(v: __m256i) -> __m128i {
    _mm_xor_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v))
}

/// The hash after `data`, zero-padded to whole blocks.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,ssse3")]
fn absorb_all(mut hash: __m128i, data: &[u8], powers: &Powers) -> __m128i {
    let (turns, rest) = data.as_chunks::<TURN>();
    for turn in turns {
        let (pairs, _) = turn.as_chunks::<32>();
        hash = absorb(hash, std::array::from_fn(|i| reverse2(load2(&pairs[i]))), powers);
    }
    let h = load(&first(powers));
    for piece in rest.chunks(16) {
        let mut block = [0; 16];
        block[..piece.len()].copy_from_slice(piece);
        hash = multiply(_mm_xor_si128(hash, reverse(load(&block))), h);
    }
    hash
}

/// H itself, the last of the powers.
#[inline(always)]
fn first(powers: &Powers) -> [u8; 16] {
    let [[_, _, _, pair], _] = powers;
    let (halves, _) = pair.as_chunks::<16>();
    halves[1]
}

/// Encrypts or decrypts `data` in place, and gives the MAC of the ciphertext.
#[target_feature(enable = "avx2,aes,vaes,pclmulqdq,vpclmulqdq,ssse3")]
pub(super) fn run(
    rounds: usize,
    keys: &Keys,
    powers: &Powers,
    iv: &[u8; 12],
    aad: &[u8],
    data: &mut [u8],
    encrypt: bool,
) -> [u8; 16] {
    match rounds {
        10 => gcm::<10>(keys, powers, iv, aad, data, encrypt),
        12 => gcm::<12>(keys, powers, iv, aad, data, encrypt),
        _ => gcm::<14>(keys, powers, iv, aad, data, encrypt),
    }
}

#[target_feature(enable = "avx2,aes,vaes,pclmulqdq,vpclmulqdq,ssse3")]
fn gcm<const R: usize>(
    keys: &Keys,
    powers: &Powers,
    iv: &[u8; 12],
    aad: &[u8],
    data: &mut [u8],
    encrypt: bool,
) -> [u8; 16] {
    // In bits; as a number, for the block is reversed when it is hashed.
    let lengths = ((8 * aad.len() as u128) << 64) | (8 * data.len() as u128);
    let round_keys = schedule(keys);
    let mut counter = Counter::new(iv);
    let mask = cipher::<R>(&round_keys, counter.next());

    let mut hash = absorb_all(_mm_setzero_si128(), aad, powers);
    let (turns, rest) = data.as_chunks_mut::<TURN>();
    let mut made: Option<[__m256i; 4]> = None;
    for turn in turns {
        let (pairs, _) = turn.as_chunks_mut::<32>();
        let stream = counter.next8::<R>(&round_keys);
        let before: [__m256i; 4] = std::array::from_fn(|i| load2(&pairs[i]));
        let text = if encrypt { made } else { Some(before) };
        if let Some(text) = text {
            hash = absorb(hash, std::array::from_fn(|i| reverse2(text[i])), powers);
        }
        let after: [__m256i; 4] = std::array::from_fn(|i| _mm256_xor_si256(before[i], stream[i]));
        for (to, v) in pairs.iter_mut().zip(after) {
            store2(to, v);
        }
        made = Some(after);
    }
    if let (true, Some(text)) = (encrypt, made) {
        hash = absorb(hash, std::array::from_fn(|i| reverse2(text[i])), powers);
    }
    if !encrypt {
        hash = absorb_all(hash, rest, powers);
    }
    for piece in rest.chunks_mut(16) {
        let mut stream = [0; 16];
        store(&mut stream, cipher::<R>(&round_keys, counter.next()));
        for (d, s) in piece.iter_mut().zip(stream) {
            *d ^= s;
        }
    }
    if encrypt {
        hash = absorb_all(hash, rest, powers);
    }
    hash = multiply(_mm_xor_si128(hash, load(&lengths.to_le_bytes())), load(&first(powers)));
    let mut mac = [0; 16];
    store(&mut mac, _mm_xor_si128(reverse(hash), mask));
    mac
}

/// The counter blocks of GCM: nonce and a big-endian number, from 1. The number is kept in native order.
struct Counter {
    pair: __m256i,
}

impl Counter {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(iv: &[u8; 12]) -> Counter {
        let mut block = [0; 16];
        block[..12].copy_from_slice(iv);
        block[12] = 1;
        let pair = _mm256_broadcastsi128_si256(load(&block));
        Counter { pair: _mm256_add_epi32(pair, _mm256_set_epi32(1, 0, 0, 0, 0, 0, 0, 0)) }
    }

    /// Brings the numbers of a pair into big-endian order.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn blocks(pair: __m256i) -> __m256i {
        let order = _mm_set_epi8(12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        _mm256_shuffle_epi8(pair, _mm256_broadcastsi128_si256(order))
    }

    /// The next block.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn next(&mut self) -> __m128i {
        let block = Counter::blocks(self.pair);
        self.pair = _mm256_add_epi32(self.pair, _mm256_set_epi32(1, 0, 0, 0, 1, 0, 0, 0));
        _mm256_castsi256_si128(block)
    }

    /// The next eight blocks, encrypted.
    #[inline]
    #[target_feature(enable = "avx2,aes,vaes")]
    fn next8<const R: usize>(&mut self, keys: &[__m128i; 15]) -> [__m256i; 4] {
        let two = _mm256_set_epi32(2, 0, 0, 0, 2, 0, 0, 0);
        let key = _mm256_broadcastsi128_si256(keys[0]);
        let mut s = [key; 4];
        for s in &mut s {
            *s = _mm256_xor_si256(Counter::blocks(self.pair), key);
            self.pair = _mm256_add_epi32(self.pair, two);
        }
        for k in &keys[1..R] {
            let key = _mm256_broadcastsi128_si256(*k);
            for s in &mut s {
                *s = _mm256_aesenc_epi128(*s, key);
            }
        }
        let key = _mm256_broadcastsi128_si256(keys[R]);
        for s in &mut s {
            *s = _mm256_aesenclast_epi128(*s, key);
        }
        s
    }
}
