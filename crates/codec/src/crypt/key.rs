//! The keys of a dataset, and the encryption and authentication of blocks with them.

use std::collections::VecDeque;
use std::sync::Arc;

use base::{Endian, Guid, bytes};
use hkdf::Hkdf;
use hmac::{KeyInit, Mac};
use parking_lot::RwLock;
use sha2::Sha512;
use zeroize::Zeroizing;

use super::aead::Aead;
use super::auth::HmacSha512;
use super::parts::Parts;
use super::{Suite, auth, dnode, same_mac, zil};
use crate::Error;

/// Number of block keys cached. Each import of a pool starts a new salt, so an old dataset has many, but a reader needs few at a time.
const SALTS: usize = 64;

/// The unwrapped keys of a dataset and its clones. OpenZFS: `zio_crypt_key_t`.
///
/// Shared between threads; the internal lock is held to look up a key, not while a block is processed.
pub struct DatasetKey {
    suite: Suite,
    guid: Guid,
    version: u64,
    master: Zeroizing<[u8; 32]>,
    hmac_key: Zeroizing<[u8; 64]>,
    /// The state keyed with `hmac_key`, before any data.
    hmac: HmacSha512,
    /// Block keys by salt, oldest first.
    blocks: RwLock<VecDeque<(u64, Arc<Aead>)>>,
}

impl std::fmt::Debug for DatasetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatasetKey").field("suite", &self.suite).field("guid", &self.guid).finish_non_exhaustive()
    }
}

impl DatasetKey {
    /// Builds it from the unwrapped keys; only the first [`Suite::key_len`] bytes of `master` count.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an unknown version of the key format.
    pub fn new(
        suite: Suite,
        guid: Guid,
        version: u64,
        master: &[u8; 32],
        hmac: &[u8; 64],
    ) -> Result<DatasetKey, Error> {
        if version > super::KEY_VERSION {
            return Err(Error::Unsupported { what: "key version", value: version });
        }
        Ok(DatasetKey {
            suite,
            guid,
            version,
            master: Zeroizing::new(*master),
            hmac_key: Zeroizing::new(*hmac),
            hmac: HmacSha512::new_from_slice(hmac).map_err(|_| Error::BadKey("wrong length"))?,
            blocks: RwLock::default(),
        })
    }

    /// Its cipher suite.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The guid of the key object, which clones share.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.guid
    }

    /// Version of the key format; the MACs depend on it.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn master(&self) -> &[u8; 32] {
        &self.master
    }

    pub(super) fn hmac_key(&self) -> &[u8; 64] {
        &self.hmac_key
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.blocks.read().len()
    }

    /// The cipher of blocks with this salt.
    fn block_key(&self, salt: u64) -> Result<Arc<Aead>, Error> {
        let find = |keys: &VecDeque<(u64, Arc<Aead>)>| keys.iter().find(|k| k.0 == salt).map(|k| k.1.clone());
        if let Some(k) = find(&self.blocks.read()) {
            return Ok(k);
        }
        let mut raw = Zeroizing::new([0u8; 32]);
        let len = self.suite.key_len();
        let master = self.master.get(..len).unwrap_or_default();
        let out = raw.get_mut(..len).unwrap_or_default();
        Hkdf::<Sha512>::new(None, master)
            .expand(&salt.to_le_bytes(), out)
            .map_err(|_| Error::BadKey("wrong length"))?;
        let key = Arc::new(Aead::new(self.suite, &raw)?);
        let mut keys = self.blocks.write();
        if find(&keys).is_none() {
            keys.truncate(SALTS - 1);
            keys.push_front((salt, key.clone()));
        }
        Ok(key)
    }

    /// Decrypts a data block in place, as stored on disk (compressed), all `psize` bytes of it.
    ///
    /// # Errors
    /// [`Error::Authentication`] if block, MAC, IV or salt are not those that were written; the contents of `data` are then undefined.
    pub fn decrypt_data(&self, salt: u64, iv: [u8; 12], mac: [u8; 16], data: &mut [u8]) -> Result<(), Error> {
        self.block_key(salt)?.decrypt(&iv, &[], data, &mac)
    }

    /// Encrypts a data block in place and returns its MAC. An IV must never be reused with the same salt.
    ///
    /// # Errors
    /// [`Error::Length`] if the block is too long for CCM (16 MiB).
    pub fn encrypt_data(&self, salt: u64, iv: [u8; 12], data: &mut [u8]) -> Result<[u8; 16], Error> {
        self.block_key(salt)?.encrypt(&iv, &[], data)
    }

    /// Decrypts the bonus buffers of a dnode block (decompressed; they are never compressed when encrypted) in place, after authenticating
    /// them and the clear parts of the block.
    ///
    /// # Errors
    /// [`Error::Authentication`], [`Error::Malformed`]; the block is then as it was.
    pub fn decrypt_dnode_block(
        &self,
        salt: u64,
        iv: [u8; 12],
        mac: [u8; 16],
        block: &mut [u8],
        endian: Endian,
    ) -> Result<(), Error> {
        let parse = |b: &[u8], p: &mut Parts| dnode::parse(b, self.version, endian, p);
        let key = self.block_key(salt)?;
        Parts::crypt(block, parse, &key, &iv, Some(&mac)).map(drop).map_err(|e| at(e, "dnode block"))
    }

    /// Encrypts the bonus buffers of a dnode block in place and returns the block's MAC.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn encrypt_dnode_block(
        &self,
        salt: u64,
        iv: [u8; 12],
        block: &mut [u8],
        endian: Endian,
    ) -> Result<[u8; 16], Error> {
        let parse = |b: &[u8], p: &mut Parts| dnode::parse(b, self.version, endian, p);
        Parts::crypt(block, parse, &*self.block_key(salt)?, &iv, None)
    }

    /// Decrypts an intent-log block in place; bytes beyond those in use become zero. Salt and IV are those of the pointer to it, the MAC is
    /// in the block ([`DatasetKey::zil_mac`]).
    ///
    /// # Errors
    /// [`Error::Authentication`], [`Error::Malformed`]; the block is then as it was.
    pub fn decrypt_zil_block(
        &self,
        salt: u64,
        iv: [u8; 12],
        mac: [u8; 16],
        block: &mut [u8],
        endian: Endian,
    ) -> Result<(), Error> {
        let parse = |b: &[u8], p: &mut Parts| zil::parse(b, endian, p);
        let key = self.block_key(salt)?;
        Parts::crypt(block, parse, &key, &iv, Some(&mac)).map_err(|e| at(e, "intent log block"))?;
        let used = zil::used(block, endian)?;
        block.get_mut(used..).unwrap_or_default().fill(0);
        Ok(())
    }

    /// Encrypts an intent-log block in place and returns its MAC, which [`crate::embedded::seal_zil`] stores in it.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn encrypt_zil_block(
        &self,
        salt: u64,
        iv: [u8; 12],
        block: &mut [u8],
        endian: Endian,
    ) -> Result<[u8; 16], Error> {
        let parse = |b: &[u8], p: &mut Parts| zil::parse(b, endian, p);
        Parts::crypt(block, parse, &*self.block_key(salt)?, &iv, None)
    }

    /// The MAC in the trailer of an intent-log block; `None` if the block is too short.
    #[must_use]
    pub fn zil_mac(block: &[u8]) -> Option<[u8; 16]> {
        zil::mac(block)
    }

    /// The MAC of a block of an authenticated-only type, over its bytes as on disk (compressed).
    #[must_use]
    pub fn authenticate(&self, data: &[u8]) -> [u8; 16] {
        bytes::array(&self.digest(data), 0).unwrap_or([0; 16])
    }

    /// Checks a block of an authenticated-only type, over its bytes as on disk (compressed).
    ///
    /// # Errors
    /// [`Error::Authentication`].
    pub fn verify_authenticated(&self, mac: [u8; 16], data: &[u8]) -> Result<(), Error> {
        same_mac(&self.authenticate(data), &mac, "authenticated block")
    }

    /// The MACs of an object set's block: (portable, local).
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Malformed`].
    pub fn objset_macs(&self, objset: &[u8], endian: Endian) -> Result<([u8; 32], [u8; 32]), Error> {
        auth::objset_macs(&self.hmac, self.version, objset, endian)
    }

    /// Checks the MACs stored in an object set's block.
    ///
    /// # Errors
    /// [`Error::Authentication`], [`Error::Length`], [`Error::Malformed`].
    pub fn verify_objset(&self, objset: &[u8], endian: Endian) -> Result<(), Error> {
        auth::verify_objset(&self.hmac, self.version, objset, endian)
    }

    /// Salt and IV of a block that is to be deduplicated: they are derived from its plaintext, so that equal blocks have equal ciphertexts.
    /// OpenZFS: `zio_crypt_generate_iv_salt_dedup`.
    #[must_use]
    pub fn dedup_salt_iv(&self, plaintext: &[u8]) -> (u64, [u8; 12]) {
        let d = self.digest(plaintext);
        (bytes::u64(&d, 0, Endian::Little).unwrap_or(0), bytes::array(&d, 8).unwrap_or([0; 12]))
    }

    fn digest(&self, data: &[u8]) -> [u8; 64] {
        let mut h = self.hmac.clone();
        h.update(data);
        h.finalize().into_bytes().into()
    }
}

/// Adds the kind of block to an authentication error.
fn at(e: Error, what: &'static str) -> Error {
    match e {
        Error::Authentication(_) => Error::Authentication(what),
        other => other,
    }
}
