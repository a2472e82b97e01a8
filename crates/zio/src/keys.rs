use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base::ObjectId;
use codec::crypt::{DatasetKey, WrappingKey};
use parking_lot::RwLock;

/// The source of the keys of encrypted datasets.
pub trait KeySource: Send + Sync {
    /// The key of the dataset with this object number, if it is loaded.
    fn key(&self, objset: ObjectId) -> Option<Arc<DatasetKey>>;
}

/// The loaded keys by dataset object number (OpenZFS: `spa_keystore_t`, its tree of key mappings).
#[derive(Default)]
pub struct KeyRing {
    keys: RwLock<HashMap<ObjectId, Arc<DatasetKey>>>,
    /// By encryption root: the user-supplied keys, with which the keys of new datasets are wrapped.
    wrapping: RwLock<HashMap<ObjectId, WrappingKey>>,
}

impl KeyRing {
    /// Adds the key of dataset `objset`.
    pub fn insert(&self, objset: ObjectId, key: Arc<DatasetKey>) {
        self.keys.write().insert(objset, key);
    }

    /// Forgets the key of dataset `objset`; returns whether it was loaded. Decrypted blocks stay in the cache: see
    /// [`Zio::forget_key`](crate::Zio::forget_key).
    pub fn remove(&self, objset: ObjectId) -> bool {
        self.keys.write().remove(&objset).is_some()
    }

    /// Adds all keys of another ring: that of the same pool, opened before.
    pub fn extend(&self, other: &KeyRing) {
        self.keys.write().extend(other.keys.read().iter().map(|(id, key)| (*id, key.clone())));
        self.wrapping.write().extend(other.wrapping.read().iter().map(|(id, key)| (*id, key.clone())));
    }

    /// Keeps the key that wraps those of the datasets under the encryption root in directory `root`.
    pub fn insert_wrapping(&self, root: ObjectId, key: WrappingKey) {
        self.wrapping.write().insert(root, key);
    }

    /// The key that wraps those under the encryption root in directory `root`, if it is loaded.
    #[must_use]
    pub fn wrapping(&self, root: ObjectId) -> Option<WrappingKey> {
        self.wrapping.read().get(&root).cloned()
    }

    /// Forgets the key of an encryption root; returns whether it was loaded.
    pub fn remove_wrapping(&self, root: ObjectId) -> bool {
        self.wrapping.write().remove(&root).is_some()
    }

    /// Returns whether the key of dataset `objset` is loaded.
    #[must_use]
    pub fn contains(&self, objset: ObjectId) -> bool {
        self.keys.read().contains_key(&objset)
    }
}

impl KeySource for KeyRing {
    fn key(&self, objset: ObjectId) -> Option<Arc<DatasetKey>> {
        self.keys.read().get(&objset).cloned()
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.keys.read().keys()).finish()
    }
}
