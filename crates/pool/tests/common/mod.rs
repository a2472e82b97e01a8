//! Helpers that the tests share.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::path::Path;
use std::sync::Arc;

use codec::crypt::WrappingKey;
use oracle::fixtures;
use pool::{KeyFormat, OpenOptions, Pool};
use serde_json::Value;

/// Opens the one pool in a folder.
pub fn open(dir: &Path, options: &OpenOptions) -> Arc<Pool> {
    let found = vdev::import::scan(&[dir.to_owned()]).unwrap();
    assert_eq!(found.len(), 1, "{}", dir.display());
    Pool::open(&found[0], options).unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
}

/// As the manifests' pools were imported: read-only, with an altroot.
pub fn truth_options() -> OpenOptions {
    OpenOptions {
        altroot: Some("/m/truth".to_string()),
        space_maps: false,
        arc_bytes: 64 << 20,
        ..OpenOptions::default()
    }
}

/// The text of a JSON value.
pub fn text(v: &Value) -> &str {
    v.as_str().unwrap_or_else(|| panic!("{v} is no text"))
}

/// Loads the keys that were loaded when the manifest was made.
pub fn load_keys(pool: &Arc<Pool>, fixture: &str, manifest: &Value) {
    for (name, props) in manifest["properties"].as_object().unwrap() {
        let Some(location) = props.get("keylocation").filter(|l| text(&l[0]).starts_with("file:")) else { continue };
        let file = text(&location[0]).rsplit('/').next().unwrap();
        let bytes = std::fs::read(fixtures::dir(fixture).join("keys").join(file)).unwrap();
        let line = || std::str::from_utf8(&bytes).unwrap().trim_end_matches('\n');
        let (_, info) = pool.encryption_root(name).unwrap();
        let key = match info.keyformat.unwrap() {
            KeyFormat::Raw => WrappingKey::from_raw(&bytes),
            KeyFormat::Hex => WrappingKey::from_hex(line()),
            KeyFormat::Passphrase => {
                WrappingKey::from_passphrase(line().as_bytes(), info.pbkdf2_salt, info.pbkdf2_iters)
            }
        };
        assert!(pool.load_key(name, &key.unwrap()).unwrap() > 0);
    }
}
