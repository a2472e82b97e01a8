//! AES with authentication: GCM and CCM, with our own kernels where the processor has AES instructions, else with the
//! RustCrypto crates.

#[cfg(target_arch = "x86_64")]
mod x86;

use aes::cipher::KeyInit;
use aes::cipher::consts::{U12, U16};
use aes::{Aes128Enc, Aes192Enc, Aes256Enc};
use aes_gcm::AesGcm;
use aes_gcm::aead::AeadInOut;
use ccm::Ccm;

use super::{Suite, same_mac};
use crate::Error;

const WHAT: &str = "block";

/// The most that CCM takes, as its nonce of 12 bytes leaves three for the length: a block of 16 MiB is too long.
const CCM_MAX: usize = (1 << 24) - 1;

/// One AES key, expanded, in its mode.
pub(super) enum Aead {
    #[cfg(target_arch = "x86_64")]
    X86(x86::Cipher),
    Ccm128(Ccm<Aes128Enc, U16, U12>),
    Ccm192(Ccm<Aes192Enc, U16, U12>),
    Ccm256(Ccm<Aes256Enc, U16, U12>),
    Gcm128(AesGcm<Aes128Enc, U12>),
    Gcm192(AesGcm<Aes192Enc, U12>),
    Gcm256(AesGcm<Aes256Enc, U12>),
}

impl Aead {
    /// Expands the first bytes of `key`, as many as the suite takes.
    pub(super) fn new(suite: Suite, key: &[u8; 32]) -> Result<Aead, Error> {
        Aead::with_mode(suite.is_gcm(), key.get(..suite.key_len()).unwrap_or(key))
    }

    /// Expands `key` for wrapping, which is always AES-256, in the suite's mode.
    pub(super) fn wrapping(suite: Suite, key: &[u8; 32]) -> Result<Aead, Error> {
        Aead::with_mode(suite.is_gcm(), key)
    }

    fn with_mode(gcm: bool, key: &[u8]) -> Result<Aead, Error> {
        #[cfg(target_arch = "x86_64")]
        if let Some(cipher) = x86::Cipher::new(gcm, key) {
            return Ok(Aead::X86(cipher));
        }
        Aead::portable(gcm, key)
    }

    /// The same without our own kernels.
    pub(super) fn portable(gcm: bool, key: &[u8]) -> Result<Aead, Error> {
        fn make<T: KeyInit>(key: &[u8]) -> Result<T, Error> {
            T::new_from_slice(key).map_err(|_| Error::BadKey("wrong length"))
        }
        match (gcm, key.len()) {
            (false, 16) => make(key).map(Aead::Ccm128),
            (false, 24) => make(key).map(Aead::Ccm192),
            (false, _) => make(key).map(Aead::Ccm256),
            (true, 16) => make(key).map(Aead::Gcm128),
            (true, 24) => make(key).map(Aead::Gcm192),
            (true, _) => make(key).map(Aead::Gcm256),
        }
    }

    /// Decrypts `data` in place. After an error `data` is undefined, but never unauthenticated plaintext.
    pub(super) fn decrypt(&self, iv: &[u8; 12], aad: &[u8], data: &mut [u8], mac: &[u8; 16]) -> Result<(), Error> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Aead::X86(c) => {
                let found = c.run(iv, aad, data, false)?;
                same_mac(&found, mac, WHAT).inspect_err(|_| data.fill(0))
            }
            Aead::Ccm128(c) => decrypt(c, iv, aad, data, mac),
            Aead::Ccm192(c) => decrypt(c, iv, aad, data, mac),
            Aead::Ccm256(c) => decrypt(c, iv, aad, data, mac),
            Aead::Gcm128(c) => decrypt(c, iv, aad, data, mac),
            Aead::Gcm192(c) => decrypt(c, iv, aad, data, mac),
            Aead::Gcm256(c) => decrypt(c, iv, aad, data, mac),
        }
    }

    /// Encrypts `data` in place and gives the MAC.
    pub(super) fn encrypt(&self, iv: &[u8; 12], aad: &[u8], data: &mut [u8]) -> Result<[u8; 16], Error> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Aead::X86(c) => c.run(iv, aad, data, true),
            Aead::Ccm128(c) => encrypt(c, iv, aad, data),
            Aead::Ccm192(c) => encrypt(c, iv, aad, data),
            Aead::Ccm256(c) => encrypt(c, iv, aad, data),
            Aead::Gcm128(c) => encrypt(c, iv, aad, data),
            Aead::Gcm192(c) => encrypt(c, iv, aad, data),
            Aead::Gcm256(c) => encrypt(c, iv, aad, data),
        }
    }
}

fn too_long(len: usize) -> Error {
    Error::Length { what: "block for this cipher", len }
}

fn decrypt<C: AeadInOut<NonceSize = U12, TagSize = U16>>(
    cipher: &C,
    iv: &[u8; 12],
    aad: &[u8],
    data: &mut [u8],
    mac: &[u8; 16],
) -> Result<(), Error> {
    cipher
        .decrypt_inout_detached(iv.into(), aad, data.into(), mac.into())
        .map_err(|_| Error::Authentication(WHAT))
        .inspect_err(|_| data.fill(0))
}

fn encrypt<C: AeadInOut<NonceSize = U12, TagSize = U16>>(
    cipher: &C,
    iv: &[u8; 12],
    aad: &[u8],
    data: &mut [u8],
) -> Result<[u8; 16], Error> {
    let len = data.len();
    let tag = cipher.encrypt_inout_detached(iv.into(), aad, data.into()).map_err(|_| too_long(len))?;
    Ok(tag.into())
}
