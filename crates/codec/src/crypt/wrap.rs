//! Wrapping keys, and the wrapped keys of a key object.

use base::Guid;
use hmac::Hmac;
use sha1::Sha1;
use zeroize::Zeroizing;

use super::aead::Aead;
use super::key::DatasetKey;
use super::{KEY_VERSION, Suite};
use crate::Error;

/// The user's key: 32 bytes, wiped when dropped. OpenZFS: `dsl_wrapping_key_t`.
#[derive(Clone)]
pub struct WrappingKey(Zeroizing<[u8; 32]>);

impl std::fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WrappingKey(..)")
    }
}

impl WrappingKey {
    /// `keyformat=raw`.
    ///
    /// # Errors
    /// [`Error::BadKey`] unless there are exactly 32 bytes.
    pub fn from_raw(key: &[u8]) -> Result<WrappingKey, Error> {
        key.try_into().map(|k| WrappingKey(Zeroizing::new(k))).map_err(|_| Error::BadKey("a raw key has 32 bytes"))
    }

    /// `keyformat=hex`: 64 hexadecimal digits of either case. The caller strips a line end.
    ///
    /// # Errors
    /// [`Error::BadKey`].
    pub fn from_hex(key: &str) -> Result<WrappingKey, Error> {
        let (pairs, rest) = key.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return Err(Error::BadKey("a hex key has 64 digits"));
        }
        let mut out = WrappingKey(Zeroizing::new([0; 32]));
        let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
        for (o, [high, low]) in out.0.iter_mut().zip(pairs) {
            let (Some(h), Some(l)) = (digit(*high), digit(*low)) else {
                return Err(Error::BadKey("a hex key has hexadecimal digits only"));
            };
            *o = h << 4 | l;
        }
        Ok(out)
    }

    /// `keyformat=passphrase`: PBKDF2-HMAC-SHA1 with the key object's `pbkdf2salt` and `pbkdf2iters`. A new passphrase must have 8 to 512
    /// bytes; the caller that sets one checks that, since a passphrase that unwraps an existing key may have any length.
    ///
    /// # Errors
    /// [`Error::BadKey`] for an impossible number of iterations.
    pub fn from_passphrase(passphrase: &[u8], salt: u64, iters: u64) -> Result<WrappingKey, Error> {
        let rounds = u32::try_from(iters).ok().filter(|n| *n > 0).ok_or(Error::BadKey("impossible pbkdf2iters"))?;
        let mut out = WrappingKey(Zeroizing::new([0; 32]));
        pbkdf2::pbkdf2::<Hmac<Sha1>>(passphrase, &salt.to_le_bytes(), rounds, out.0.as_mut_slice())
            .map_err(|_| Error::BadKey("wrong length"))?;
        Ok(out)
    }

    /// Its 32 bytes, to be passed on; the caller must not keep them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The fields of a key object that hold a dataset's wrapped keys. OpenZFS: `dsl_crypto_key_open`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// `DSL_CRYPTO_SUITE`.
    pub suite: Suite,
    /// `DSL_CRYPTO_GUID`.
    pub guid: Guid,
    /// `DSL_CRYPTO_VERSION`; 0 if the entry is absent.
    pub version: u64,
    /// `DSL_CRYPTO_IV`.
    pub iv: [u8; 12],
    /// `DSL_CRYPTO_MAC`.
    pub mac: [u8; 16],
    /// `DSL_CRYPTO_MASTER_KEY_1`; only the suite's key length counts.
    pub master: [u8; 32],
    /// `DSL_CRYPTO_HMAC_KEY_1`.
    pub hmac: [u8; 64],
}

impl WrappedKey {
    /// Unwraps the keys.
    ///
    /// # Errors
    /// [`Error::WrongKey`] if `key` is not the one they were wrapped with, or they are damaged;
    /// [`Error::Unsupported`] for an unknown version.
    pub fn unwrap(&self, key: &WrappingKey) -> Result<DatasetKey, Error> {
        if self.version > KEY_VERSION {
            return Err(Error::Unsupported { what: "key version", value: self.version });
        }
        let len = self.suite.key_len();
        let mut text = Zeroizing::new(join(len, &self.master, &self.hmac));
        let aad = aad(self.suite, self.guid, self.version);
        Aead::wrapping(self.suite, &key.0)?
            .decrypt(&self.iv, &aad, &mut text, &self.mac)
            .map_err(|_| Error::WrongKey)?;
        let (mut master, mut hmac) = (Zeroizing::new([0; 32]), Zeroizing::new([0; 64]));
        split(&text, len, &mut master, &mut hmac);
        DatasetKey::new(self.suite, self.guid, self.version, &master, &hmac)
    }
}

impl DatasetKey {
    /// Wraps the keys; `iv` must be random, and never used before with `key`. OpenZFS: `zio_crypt_key_wrap`.
    ///
    /// # Errors
    /// None that can occur.
    pub fn wrap(&self, key: &WrappingKey, iv: [u8; 12]) -> Result<WrappedKey, Error> {
        let (suite, guid, version) = (self.suite(), self.guid(), self.version());
        let len = suite.key_len();
        let mut text = Zeroizing::new(join(len, self.master(), self.hmac_key()));
        let mac = Aead::wrapping(suite, &key.0)?.encrypt(&iv, &aad(suite, guid, version), &mut text)?;
        let (mut master, mut hmac) = ([0; 32], [0; 64]);
        split(&text, len, &mut master, &mut hmac);
        Ok(WrappedKey { suite, guid, version, iv, mac, master, hmac })
    }
}

/// Guid, suite and version as little-endian words; the oldest format has only the guid.
fn aad(suite: Suite, guid: Guid, version: u64) -> Vec<u8> {
    let all = [guid.0, suite as u64, version];
    let n = if version == 0 { 1 } else { all.len() };
    all.iter().take(n).flat_map(|w| w.to_le_bytes()).collect()
}

/// The master key's `len` bytes, then the HMAC key.
fn join(len: usize, master: &[u8; 32], hmac: &[u8; 64]) -> Vec<u8> {
    master.iter().take(len).chain(hmac).copied().collect()
}

fn split(text: &[u8], len: usize, master: &mut [u8; 32], hmac: &mut [u8; 64]) {
    let (m, h) = text.split_at(len.min(text.len()));
    for (to, from) in master.iter_mut().zip(m) {
        *to = *from;
    }
    for (to, from) in hmac.iter_mut().zip(h) {
        *to = *from;
    }
}
