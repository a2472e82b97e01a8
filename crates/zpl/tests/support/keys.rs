//! Loading the keys of a fixture.

use std::collections::BTreeMap;
use std::sync::Arc;

use codec::crypt::WrappingKey;
use pool::{KeyFormat, Pool};
use serde_json::Value;

/// Loads the keys of all encryption roots; their files have the names at the end of `keylocation`.
pub(crate) fn load_all(fixture: &str, pool: &Arc<Pool>, manifest: &Value) {
    let mut locations = BTreeMap::new();
    for (dataset, properties) in manifest["properties"].as_object().unwrap() {
        let text = |key: &str| properties[key][0].as_str();
        if let (Some(root), Some(location)) = (text("encryptionroot"), text("keylocation"))
            && root == dataset
            && location != "none"
        {
            locations.insert(dataset.clone(), location.rsplit('/').next().unwrap().to_owned());
        }
    }
    for (dataset, file) in locations {
        let secret = std::fs::read(oracle::fixtures::dir(fixture).join("keys").join(&file)).unwrap();
        let (_, info) = pool.encryption_root(&dataset).unwrap();
        let key = match info.keyformat.unwrap() {
            KeyFormat::Raw => WrappingKey::from_raw(&secret),
            KeyFormat::Hex => WrappingKey::from_hex(std::str::from_utf8(&secret).unwrap().trim_end()),
            KeyFormat::Passphrase => {
                WrappingKey::from_passphrase(secret.trim_ascii_end(), info.pbkdf2_salt, info.pbkdf2_iters)
            }
        };
        pool.load_key(&dataset, &key.unwrap()).unwrap_or_else(|e| panic!("{dataset}: {e}"));
    }
}
