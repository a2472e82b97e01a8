//! AES with authentication: GCM from the `aes-gcm` crate, CCM here.

use aes::cipher::consts::{U12, U16};
use aes::cipher::{
    Block, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, BlockSizeUser, KeyInit, ParBlocks,
};
use aes::{Aes128Enc, Aes192Enc, Aes256Enc};
use aes_gcm::AesGcm;
use aes_gcm::aead::AeadInOut;

use super::Suite;
use crate::Error;

const WHAT: &str = "block";

/// One AES key, expanded, with its mode.
pub(super) enum Aead {
    Ccm128(Ccm<Aes128Enc>),
    Ccm192(Ccm<Aes192Enc>),
    Ccm256(Ccm<Aes256Enc>),
    Gcm128(AesGcm<Aes128Enc, U12>),
    Gcm192(AesGcm<Aes192Enc, U12>),
    Gcm256(AesGcm<Aes256Enc, U12>),
}

impl Aead {
    /// Expands the first bytes of `key`, as many as the suite uses.
    pub(super) fn new(suite: Suite, key: &[u8; 32]) -> Result<Aead, Error> {
        Aead::with_mode(suite.is_gcm(), key.get(..suite.key_len()).unwrap_or(key))
    }

    /// Expands `key` for wrapping, which is always AES-256, in the suite's mode.
    pub(super) fn wrapping(suite: Suite, key: &[u8; 32]) -> Result<Aead, Error> {
        Aead::with_mode(suite.is_gcm(), key)
    }

    fn with_mode(gcm: bool, key: &[u8]) -> Result<Aead, Error> {
        fn make<T: KeyInit>(key: &[u8]) -> Result<T, Error> {
            T::new_from_slice(key).map_err(|_| Error::BadKey("wrong length"))
        }
        match (gcm, key.len()) {
            (false, 16) => make(key).map(|c| Aead::Ccm128(Ccm(c))),
            (false, 24) => make(key).map(|c| Aead::Ccm192(Ccm(c))),
            (false, _) => make(key).map(|c| Aead::Ccm256(Ccm(c))),
            (true, 16) => make(key).map(Aead::Gcm128),
            (true, 24) => make(key).map(Aead::Gcm192),
            (true, _) => make(key).map(Aead::Gcm256),
        }
    }

    /// Decrypts `data` in place. After an error the contents of `data` are undefined, but never unauthenticated plaintext.
    pub(super) fn decrypt(&self, iv: &[u8; 12], aad: &[u8], data: &mut [u8], mac: &[u8; 16]) -> Result<(), Error> {
        match self {
            Aead::Ccm128(c) => c.decrypt(iv, aad, data, mac),
            Aead::Ccm192(c) => c.decrypt(iv, aad, data, mac),
            Aead::Ccm256(c) => c.decrypt(iv, aad, data, mac),
            Aead::Gcm128(c) => gcm_decrypt(c, iv, aad, data, mac),
            Aead::Gcm192(c) => gcm_decrypt(c, iv, aad, data, mac),
            Aead::Gcm256(c) => gcm_decrypt(c, iv, aad, data, mac),
        }
    }

    /// Encrypts `data` in place and returns the MAC.
    pub(super) fn encrypt(&self, iv: &[u8; 12], aad: &[u8], data: &mut [u8]) -> Result<[u8; 16], Error> {
        match self {
            Aead::Ccm128(c) => c.encrypt(iv, aad, data),
            Aead::Ccm192(c) => c.encrypt(iv, aad, data),
            Aead::Ccm256(c) => c.encrypt(iv, aad, data),
            Aead::Gcm128(c) => gcm_encrypt(c, iv, aad, data),
            Aead::Gcm192(c) => gcm_encrypt(c, iv, aad, data),
            Aead::Gcm256(c) => gcm_encrypt(c, iv, aad, data),
        }
    }
}

fn gcm_decrypt<C: AeadInOut<NonceSize = U12, TagSize = U16>>(
    cipher: &C,
    iv: &[u8; 12],
    aad: &[u8],
    data: &mut [u8],
    mac: &[u8; 16],
) -> Result<(), Error> {
    cipher.decrypt_inout_detached(iv.into(), aad, data.into(), mac.into()).map_err(|_| Error::Authentication(WHAT))
}

fn gcm_encrypt<C: AeadInOut<NonceSize = U12, TagSize = U16>>(
    cipher: &C,
    iv: &[u8; 12],
    aad: &[u8],
    data: &mut [u8],
) -> Result<[u8; 16], Error> {
    let len = data.len();
    let tag = cipher
        .encrypt_inout_detached(iv.into(), aad, data.into())
        .map_err(|_| Error::Length { what: "block to be encrypted", len })?;
    Ok(tag.into())
}

/// CCM (RFC 3610) with a 12-byte nonce and a 16-byte MAC, so the length field has three bytes.
///
/// CBC-MAC is a chain: each of its blocks waits for the one before. The generic crate pays a call and a reload of the key schedule for
/// each; here one call into the cipher's backend processes the whole message, and the counter blocks are computed many at a time,
/// interleaved with the chain.
pub(super) struct Ccm<C>(C);

impl<C: BlockCipherEncrypt + BlockSizeUser<BlockSize = U16>> Ccm<C> {
    /// The longest message that three bytes of length can express.
    const MAX: usize = (1 << 24) - 1;

    fn decrypt(&self, iv: &[u8; 12], aad: &[u8], data: &mut [u8], mac: &[u8; 16]) -> Result<(), Error> {
        let found = self.run(iv, aad, data, false)?;
        super::same_mac(&found, mac, WHAT).inspect_err(|_| data.fill(0))
    }

    fn encrypt(&self, iv: &[u8; 12], aad: &[u8], data: &mut [u8]) -> Result<[u8; 16], Error> {
        self.run(iv, aad, data, true)
    }

    fn run(&self, iv: &[u8; 12], aad: &[u8], data: &mut [u8], encrypt: bool) -> Result<[u8; 16], Error> {
        if data.len() > Self::MAX {
            return Err(Error::Length { what: "block in CCM mode", len: data.len() });
        }
        let mut mac = [0; 16];
        self.0.encrypt_with_backend(CcmPass { iv, aad, data, encrypt, mac: &mut mac });
        Ok(mac)
    }
}

struct CcmPass<'a> {
    iv: &'a [u8; 12],
    aad: &'a [u8],
    data: &'a mut [u8],
    encrypt: bool,
    mac: &'a mut [u8; 16],
}

impl BlockSizeUser for CcmPass<'_> {
    type BlockSize = U16;
}

impl BlockCipherEncClosure for CcmPass<'_> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let CcmPass { iv, aad, data, encrypt, mac } = self;
        // B0: flags (AAD present, MAC length 16, length field of 3), nonce, length.
        let has_aad = u8::from(!aad.is_empty());
        let mut chain =
            Chain { backend, state: block::<B>((has_aad << 6) | (((16 - 2) / 2) << 3) | (3 - 1), iv, data.len()) };
        backend.encrypt_block_inplace(&mut chain.state);
        chain.aad(aad);

        // Counter 0 is for the MAC, 1… for the data.
        let mut tag_key = block::<B>(3 - 1, iv, 0);
        backend.encrypt_block_inplace(&mut tag_key);
        let mut counter = 1;
        let mut stream = ParBlocks::<B>::default();
        let step = 16 * stream.len();
        for piece in data.chunks_mut(step) {
            for (n, s) in stream.iter_mut().enumerate() {
                *s = block::<B>(3 - 1, iv, counter + n);
            }
            counter += stream.len();
            backend.encrypt_par_blocks_inplace(&mut stream);
            if encrypt {
                chain.update(piece);
            }
            for (p, s) in piece.chunks_mut(16).zip(&stream) {
                for (p, s) in p.iter_mut().zip(s) {
                    *p ^= s;
                }
            }
            if !encrypt {
                chain.update(piece);
            }
        }
        for ((m, s), k) in mac.iter_mut().zip(chain.state).zip(tag_key) {
            *m = s ^ k;
        }
    }
}

/// A block of CCM: flags, nonce, a 24-bit number.
#[inline(always)]
fn block<B: BlockSizeUser<BlockSize = U16>>(flags: u8, iv: &[u8; 12], number: usize) -> Block<B> {
    let mut b = [flags; 16];
    let [_, low @ ..] = (number as u32).to_be_bytes();
    for (b, v) in b.iter_mut().skip(1).zip(iv.iter().chain(&low)) {
        *b = *v;
    }
    b.into()
}

/// The CBC-MAC.
struct Chain<'a, B: BlockCipherEncBackend<BlockSize = U16>> {
    backend: &'a B,
    state: Block<B>,
}

impl<B: BlockCipherEncBackend<BlockSize = U16>> Chain<'_, B> {
    /// Adds `data`, zero-padded to whole blocks.
    #[inline(always)]
    fn update(&mut self, data: &[u8]) {
        let (blocks, tail) = data.as_chunks::<16>();
        for b in blocks {
            for (s, b) in self.state.iter_mut().zip(b) {
                *s ^= b;
            }
            self.backend.encrypt_block_inplace(&mut self.state);
        }
        if !tail.is_empty() {
            for (s, b) in self.state.iter_mut().zip(tail) {
                *s ^= b;
            }
            self.backend.encrypt_block_inplace(&mut self.state);
        }
    }

    /// Adds the additional data: its length in two bytes or six, then itself, padded together.
    #[inline(always)]
    fn aad(&mut self, aad: &[u8]) {
        if aad.is_empty() {
            return;
        }
        let mut first = [0u8; 16];
        let [a, b, c, d] = (aad.len() as u32).to_be_bytes();
        let short = [c, d];
        let long = [0xff, 0xfe, a, b, c, d];
        let head: &[u8] = if aad.len() < 0xff00 { &short } else { &long };
        let taken = (16 - head.len()).min(aad.len());
        let (front, back) = aad.split_at(taken);
        for (f, v) in first.iter_mut().zip(head.iter().chain(front)) {
            *f = *v;
        }
        self.update(&first);
        self.update(back);
    }
}
