//! `-K`: the key of an encrypted dataset, for as long as it is shown.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use codec::crypt::WrappingKey;
use pool::{Dataset, KeyFormat, Pool};

use crate::console;

/// A dataset whose key is loaded; dropping this unloads it.
pub(super) struct Unlocked {
    pool: Arc<Pool>,
    /// The encryption root.
    pub(super) root: String,
}

impl Drop for Unlocked {
    fn drop(&mut self) {
        // it was loaded, so only the pool itself could fail
        let _ = self.pool.unload_key(&self.root);
    }
}

/// Loads the key of `dataset`; `material` is the passphrase, the hex digits, or the name of the key file. `None` if it
/// is not encrypted.
pub(super) fn unlock(pool: &Arc<Pool>, dataset: &Dataset, material: &str) -> Result<Option<Unlocked>, String> {
    let text = |e: pool::Error| e.to_string();
    let Some(root) = dataset.encryption_root().map_err(text)? else { return Ok(None) };
    let info = pool.dataset(&root).and_then(|ds| ds.crypto()).map_err(text)?;
    let info = info.ok_or_else(|| format!("{root} has no key"))?;
    let key = match info.keyformat {
        Some(KeyFormat::Hex) => WrappingKey::from_hex(material).ok(),
        Some(KeyFormat::Passphrase) => {
            WrappingKey::from_passphrase(material.as_bytes(), info.pbkdf2_salt, info.pbkdf2_iters).ok()
        }
        Some(KeyFormat::Raw) => raw(material),
        None => None,
    };
    let key = key.ok_or("couldn't derive encryption key")?;
    pool.load_key(&root, &key).map_err(|e| format!("couldn't load encryption key for {root}: {e}"))?;
    Ok(Some(Unlocked { pool: pool.clone(), root }))
}

/// A key of exactly 32 bytes from a file.
fn raw(path: &str) -> Option<WrappingKey> {
    let mut bytes = Vec::new();
    File::open(console::path(path)).ok()?.take(33).read_to_end(&mut bytes).ok()?;
    WrappingKey::from_raw(&bytes).ok()
}
