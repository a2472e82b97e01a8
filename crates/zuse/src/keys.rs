//! Keys of encrypted datasets, as users have them.
//!
//! An *encryption root* is a dataset with a key of its own; datasets below it are encrypted with its key unless they have their own. A pool forgets
//! keys when it is closed: they must be loaded again when it is opened.

use std::fmt;

use base::Env;
use codec::crypt::{Suite, WrappingKey, Zeroizing};
use pool::{ChangeKey, KeyFormat, KeyStatus, NewKey, Value};

use crate::Error;
use crate::store::{Pool, Said};

/// Bytes of a key.
const KEY_LEN: usize = 32;
/// Lengths of a passphrase (OpenZFS: `MIN_PASSPHRASE_LEN`, `MAX_PASSPHRASE_LEN`).
const PASSPHRASE: std::ops::RangeInclusive<usize> = 8..=512;
/// Rounds of PBKDF2, unless told otherwise (OpenZFS: `DEFAULT_PBKDF2_ITERATIONS`).
const PBKDF2_ITERS: u64 = 350_000;
/// A key: 32 bytes, or words that make them. It is wiped from memory when it is dropped.
#[derive(Clone)]
pub struct Key {
    format: KeyFormat,
    bytes: Zeroizing<Vec<u8>>,
}

impl Key {
    /// A key of 32 bytes (`keyformat=raw`).
    #[must_use]
    pub fn raw(bytes: &[u8; KEY_LEN]) -> Key {
        Key { format: KeyFormat::Raw, bytes: Zeroizing::new(bytes.to_vec()) }
    }

    /// A key of 64 hexadecimal digits (`keyformat=hex`).
    ///
    /// # Errors
    /// [`Error::Key`] for anything else.
    pub fn hex(digits: &str) -> Result<Key, Error> {
        WrappingKey::from_hex(digits).map_err(|e| Error::Key { why: e.to_string() })?;
        Ok(Key { format: KeyFormat::Hex, bytes: Zeroizing::new(digits.as_bytes().to_vec()) })
    }

    /// A key that is made of words (`keyformat=passphrase`): 8 to 512 bytes.
    ///
    /// # Errors
    /// [`Error::Key`] if they are too short or too long.
    pub fn passphrase(words: &str) -> Result<Key, Error> {
        let why = match words.len() {
            n if n < *PASSPHRASE.start() => format!("passphrase too short (min {})", PASSPHRASE.start()),
            n if n > *PASSPHRASE.end() => format!("passphrase too long (max {})", PASSPHRASE.end()),
            _ => return Ok(Key { format: KeyFormat::Passphrase, bytes: Zeroizing::new(words.as_bytes().to_vec()) }),
        };
        Err(Error::Key { why })
    }

    fn wrapping(&self, salt: u64, iters: u64) -> Result<WrappingKey, Error> {
        let made = match self.format {
            KeyFormat::Raw => WrappingKey::from_raw(&self.bytes),
            KeyFormat::Hex => WrappingKey::from_hex(std::str::from_utf8(&self.bytes).unwrap_or_default()),
            KeyFormat::Passphrase => WrappingKey::from_passphrase(&self.bytes, salt, iters),
        };
        made.map_err(|e| Error::Key { why: e.to_string() })
    }

    /// A new key for a dataset of this cipher. What properties say of it is taken out of them.
    pub(crate) fn for_new(&self, cipher: Suite, said: &mut Said) -> Result<NewKey, Error> {
        let passphrase = self.format == KeyFormat::Passphrase;
        let salt = if passphrase { Env::system().random_u64().max(1) } else { 0 };
        let iters = said.take_number("pbkdf2iters").unwrap_or(if passphrase { PBKDF2_ITERS } else { 0 });
        let place = said.take("keylocation").and_then(|place| place.text().map(str::to_owned));
        Ok(NewKey {
            cipher,
            keyformat: self.format,
            keylocation: place.unwrap_or_else(|| "prompt".to_owned()),
            wrapping: self.wrapping(salt, iters)?,
            pbkdf2_iters: iters,
            salt,
        })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("format", &self.format).finish_non_exhaustive()
    }
}

/// Encryption.
impl Pool {
    /// Makes an encrypted file system with a key of its own. Its properties may name the cipher (`encryption`, aes-256-gcm else), the place
    /// where commands find the key (`keylocation`, `prompt` else), and the rounds of a passphrase (`pbkdf2iters`).
    ///
    /// ```
    /// # fn main() -> Result<(), zuse::Error> {
    /// # let pool = zuse::Pool::in_memory("tank", 128 << 20)?;
    /// let key = zuse::Key::raw(&[7; 32]);
    /// pool.create_encrypted("tank/secret", &[], &key)?;
    /// pool.files("tank/secret")?.write(b"file", b"data")?;
    /// pool.unload_key("tank/secret")?;
    /// assert!(pool.files("tank/secret").is_err());
    /// pool.load_key("tank/secret", &key)?;
    /// assert_eq!(pool.files("tank/secret")?.read(b"file")?, b"data");
    /// # pool.export()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Pool::create`]; if the cipher is `off`.
    pub fn create_encrypted(&self, name: &str, props: &[(&str, Value)], key: &Key) -> Result<(), Error> {
        self.make_fs(name, Said::new(props)?, Some(key))
    }

    /// Makes an encrypted volume of `size` bytes with a key of its own.
    ///
    /// # Errors
    /// As [`Pool::create_encrypted`].
    pub fn create_encrypted_volume(
        &self,
        name: &str,
        size: u64,
        props: &[(&str, Value)],
        key: &Key,
    ) -> Result<(), Error> {
        self.make_volume(name, size, Said::new(props)?, Some(key))
    }

    /// Loads the key of an encryption root: what is under it can be opened until the pool is closed, or the key unloaded.
    ///
    /// # Errors
    /// If it is no encryption root, the key is another, or one is loaded already.
    pub fn load_key(&self, dataset: &str, key: &Key) -> Result<(), Error> {
        let info = self.dataset(dataset)?.crypto()?;
        let info = info.ok_or_else(|| pool::Error::NotEncrypted { name: dataset.to_owned() })?;
        if info.keyformat != Some(key.format) {
            return Err(Error::Key { why: format!("'{dataset}' has a key of another format") });
        }
        let wrapping = key.wrapping(info.pbkdf2_salt, info.pbkdf2_iters)?;
        match self.spa() {
            Ok(spa) => spa.load_key(dataset, &wrapping)?,
            Err(_) => self.view()?.load_key(dataset, &wrapping)?,
        };
        Ok(())
    }

    /// Forgets the key of an encryption root, after all that was changed with it is on disk.
    ///
    /// # Errors
    /// While something under it is open; if it is not loaded.
    pub fn unload_key(&self, dataset: &str) -> Result<(), Error> {
        Ok(self.spa()?.unload_key(dataset)?)
    }

    /// Gives an encrypted dataset another key, which makes it an encryption root if it is none. Its data stays as it is.
    ///
    /// # Errors
    /// If it is not encrypted, a clone, or its key is not loaded.
    pub fn change_key(&self, dataset: &str, key: &Key) -> Result<(), Error> {
        // the cipher stays what it is
        let new = key.for_new(Suite::Aes256Gcm, &mut Said::default())?;
        Ok(self.spa()?.change_key(dataset, ChangeKey::NewRoot(new))?)
    }

    /// Makes an encryption root one with the encryption root above it: its parent's key opens it from now on.
    ///
    /// # Errors
    /// If its parent is not encrypted, or a key is not loaded.
    pub fn inherit_key(&self, dataset: &str) -> Result<(), Error> {
        Ok(self.spa()?.change_key(dataset, ChangeKey::Inherit)?)
    }

    /// Returns whether a dataset can be opened: it is not encrypted, or its key is loaded.
    ///
    /// # Errors
    /// If there is none such.
    pub fn key_status(&self, dataset: &str) -> Result<KeyStatus, Error> {
        Ok(self.dataset(dataset)?.key_status()?)
    }
}
