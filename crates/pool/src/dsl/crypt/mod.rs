//! Keys of encrypted datasets (OpenZFS: `dsl_crypt.c`).
//!
//! The *key object* of a dataset holds its two keys, wrapped with the key of its *encryption root*: itself, an ancestor, or what its
//! origin's was. Loading the root's key opens all datasets under that root, wherever they are, with their snapshots.

pub(in crate::dsl) mod errata;
pub(in crate::dsl) mod write;

use std::sync::Arc;

use base::{Guid, ObjectId};
use codec::crypt::{DatasetKey, Suite, WrappedKey, WrappingKey};
use dmu::Zap;

use crate::spa::mos::Mos;
use crate::spa::mos::known::OfObject;
use crate::{Dataset, Dir, Error, Pool};

/// How users give a key (property `keyformat`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyFormat {
    /// 32 bytes.
    Raw,
    /// 64 hexadecimal digits.
    Hex,
    /// Words, from which PBKDF2 makes the key.
    Passphrase,
}

/// Whether a dataset can be decrypted (property `keystatus`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyStatus {
    /// It is not encrypted.
    None,
    /// Its key is not loaded.
    Unavailable,
    /// Its key is loaded.
    Available,
}

impl KeyStatus {
    /// Its number, as a value of the property `keystatus` (OpenZFS: `zfs_keystatus_t`).
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            KeyStatus::None => 0,
            KeyStatus::Unavailable => 1,
            KeyStatus::Available => 2,
        }
    }
}

/// The facts about an encrypted dataset's key that are known without the key.
#[derive(Clone, Debug)]
pub struct KeyInfo {
    /// The key object in the MOS.
    pub object: ObjectId,
    /// The directory of the encryption root.
    pub root_dir: ObjectId,
    /// The keys, wrapped.
    pub wrapped: WrappedKey,
    /// How users give the root's key.
    pub keyformat: Option<KeyFormat>,
    /// Rounds of PBKDF2, 0 if it is not used.
    pub pbkdf2_iters: u64,
    /// Salt of PBKDF2, 0 if it is not used.
    pub pbkdf2_salt: u64,
    /// How many datasets share the object.
    pub refcount: u64,
}

impl KeyFormat {
    /// Its number, in the key object and as a value of the property.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            KeyFormat::Raw => 1,
            KeyFormat::Hex => 2,
            KeyFormat::Passphrase => 3,
        }
    }

    /// The format with this number.
    #[must_use]
    pub const fn of_number(number: u64) -> Option<KeyFormat> {
        match number {
            1 => Some(KeyFormat::Raw),
            2 => Some(KeyFormat::Hex),
            3 => Some(KeyFormat::Passphrase),
            _ => None,
        }
    }
}

impl OfObject for KeyInfo {}

impl KeyInfo {
    pub(in crate::dsl) fn load(mos: &Mos, object: ObjectId) -> Result<KeyInfo, Error> {
        let zap = mos.zap(object)?;
        let number = |key: &str| -> Result<Option<u64>, Error> { Ok(zap.lookup_u64(key)?) };
        let required =
            |key: &str| number(key)?.ok_or_else(|| Error::corrupt(object, format!("key object without '{key}'")));
        let suite = required("DSL_CRYPTO_SUITE")?;
        let suite =
            Suite::from_u64(suite).ok_or_else(|| Error::corrupt(object, format!("unknown cipher suite {suite}")))?;
        let wrapped = WrappedKey {
            suite,
            guid: Guid(required("DSL_CRYPTO_GUID")?),
            version: number("DSL_CRYPTO_VERSION")?.unwrap_or(0),
            iv: field(&zap, "DSL_CRYPTO_IV")?,
            mac: field(&zap, "DSL_CRYPTO_MAC")?,
            master: field(&zap, "DSL_CRYPTO_MASTER_KEY_1")?,
            hmac: field(&zap, "DSL_CRYPTO_HMAC_KEY_1")?,
        };
        Ok(KeyInfo {
            object,
            root_dir: ObjectId(required("DSL_CRYPTO_ROOT_DDOBJ")?),
            wrapped,
            keyformat: number("keyformat")?.and_then(KeyFormat::of_number),
            pbkdf2_iters: number("pbkdf2iters")?.unwrap_or(0),
            pbkdf2_salt: number("pbkdf2salt")?.unwrap_or(0),
            refcount: number("DSL_CRYPTO_REFCOUNT")?.unwrap_or(0),
        })
    }
}

/// A field of `N` bytes. Shorter ones are filled with zeros: a master key takes as many as its suite needs.
fn field<const N: usize>(zap: &Zap, key: &str) -> Result<[u8; N], Error> {
    let broken = |what| Error::corrupt(zap.object().id(), format!("key object {what} '{key}'"));
    let value = zap.lookup(key)?.ok_or_else(|| broken("without"))?;
    let bytes = value.as_bytes().filter(|b| b.len() <= N).ok_or_else(|| broken("with a broken"))?;
    let mut out = [0; N];
    out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    Ok(out)
}

impl Dir {
    /// The facts about the key; `None` if datasets here are not encrypted.
    ///
    /// OpenZFS destroys encryption roots that others still have their keys from. Each of those counts as its own root: the key object has all that is
    /// needed besides the user's key.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn crypto(&self) -> Result<Option<KeyInfo>, Error> {
        let Some(object) = self.crypto_key_obj()? else { return Ok(None) };
        let mut info = (*self.pool.known.of(object, || KeyInfo::load(&self.pool.mos, object))?).clone();
        if info.root_dir != self.id() && self.pool.dir_by_id(info.root_dir).is_err_and(|e| !e.is_unanswered()) {
            info.root_dir = self.id();
        }
        Ok(Some(info))
    }

    fn unwrap_and_register(&self, info: &KeyInfo, key: &WrappingKey) -> Result<usize, Error> {
        let wrong = |source| Error::Key { name: self.name().to_string(), source };
        let unwrapped: Arc<DatasetKey> = Arc::new(info.wrapped.unwrap(key).map_err(wrong)?);
        let Some(head) = self.head()? else { return Ok(0) };
        let ids = std::iter::once(head.id()).chain(head.snapshot_names()?.into_iter().map(|(_, id)| id));
        Ok(ids.map(|id| self.pool.zio.keys().insert(id, unwrapped.clone())).count())
    }
}

impl Dataset {
    /// Whether it is encrypted.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn is_encrypted(&self) -> Result<bool, Error> {
        Ok(self.dir().crypto_key_obj()?.is_some())
    }

    /// The facts about its key; `None` if it is not encrypted.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn crypto(&self) -> Result<Option<KeyInfo>, Error> {
        self.dir().crypto()
    }

    /// The name of the dataset whose key opens this one; `None` if it is not encrypted.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn encryption_root(&self) -> Result<Option<String>, Error> {
        let Some(info) = self.crypto()? else { return Ok(None) };
        Ok(Some(self.pool().dir_by_id(info.root_dir)?.name().to_string()))
    }

    /// Whether it can be decrypted now.
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub fn key_status(&self) -> Result<KeyStatus, Error> {
        Ok(match self.is_encrypted()? {
            false => KeyStatus::None,
            true if self.pool().zio.keys().contains(self.id()) => KeyStatus::Available,
            true => KeyStatus::Unavailable,
        })
    }
}

impl Pool {
    /// The encryption root `name` with what is known of its key.
    ///
    /// # Errors
    /// [`Error::NotEncrypted`], [`Error::NotEncryptionRoot`], [`Error::NoSuchDataset`], or when the MOS cannot be read.
    pub fn encryption_root(self: &Arc<Self>, name: &str) -> Result<(Dir, KeyInfo), Error> {
        let dir = self.dir(name)?;
        let info = dir.crypto()?.ok_or_else(|| Error::NotEncrypted { name: name.to_string() })?;
        if info.root_dir != dir.id() {
            let root = self.dir_by_id(info.root_dir)?.name().to_string();
            return Err(Error::NotEncryptionRoot { name: name.to_string(), root });
        }
        Ok((dir, info))
    }

    /// Loads the key of the encryption root `name`: the datasets under it that it opens can be read from now on. Gives their number,
    /// snapshots included.
    ///
    /// # Errors
    /// [`Error::Key`] if it is not the right key; else as [`Pool::encryption_root`].
    pub fn load_key(self: &Arc<Self>, name: &str, key: &WrappingKey) -> Result<usize, Error> {
        let (root, info) = self.encryption_root(name)?;
        let mut opened = root.unwrap_and_register(&info, key)?;
        self.under_root(root.id(), &mut |dir, info| {
            if dir.id() != root.id() {
                // one that it does not open keeps no other from being opened
                opened += dir.unwrap_and_register(info, key).unwrap_or(0);
            }
            Ok(())
        })?;
        self.zio.keys().insert_wrapping(root.id(), key.clone());
        Ok(opened)
    }

    /// Checks `key` against the encryption root `name` without loading it.
    ///
    /// # Errors
    /// As [`Pool::load_key`].
    pub fn check_key(self: &Arc<Self>, name: &str, key: &WrappingKey) -> Result<(), Error> {
        let (_, info) = self.encryption_root(name)?;
        info.wrapped.unwrap(key).map(drop).map_err(|source| Error::Key { name: name.to_string(), source })
    }

    /// Forgets the key of the encryption root `name`, and decrypted data with it.
    ///
    /// # Errors
    /// As [`Pool::encryption_root`].
    pub fn unload_key(self: &Arc<Self>, name: &str) -> Result<(), Error> {
        let (root, _) = self.encryption_root(name)?;
        self.zio.keys().remove_wrapping(root.id());
        self.datasets_under(&root)?.into_iter().for_each(|id| self.zio.forget_key(id));
        Ok(())
    }

    /// All datasets, snapshots too, that the key of an encryption root opens.
    pub(in crate::dsl) fn datasets_under(self: &Arc<Self>, root: &Dir) -> Result<Vec<ObjectId>, Error> {
        let mut all = Vec::new();
        self.under_root(root.id(), &mut |dir, _| {
            let Some(head) = dir.head()? else { return Ok(()) };
            all.push(head.id());
            all.extend(head.snapshot_names()?.into_iter().map(|(_, id)| id));
            Ok(())
        })?;
        Ok(all)
    }

    /// Visits every directory whose encryption root is `root`. They need not be below it: clones stay with their origin's.
    fn under_root(
        self: &Arc<Self>,
        root: ObjectId,
        visit: &mut dyn FnMut(&Dir, &KeyInfo) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut stack = vec![self.root_dir()?];
        while let Some(dir) = stack.pop() {
            if let Some(info) = dir.crypto()?.filter(|info| info.root_dir == root) {
                visit(&dir, &info)?;
            }
            stack.extend(dir.children()?);
        }
        Ok(())
    }
}
