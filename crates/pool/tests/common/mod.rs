//! What the tests share.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::path::Path;
use std::sync::Arc;

use base::Env;
use codec::crypt::WrappingKey;
use dmu::{NewObject, Object};
use ondisk::ObjectType;
use oracle::fixtures;
use pool::{CreateOptions, Hooks, KeyFormat, OpenOptions, Pool, Spa};
use serde_json::Value;
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, MemoryDevice};

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

/// The hooks of pools that live in memory.
pub fn hooks_in_memory() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
}

/// The pool `t` of these words, and its disks `d0` to `d{count - 1}`.
pub fn in_memory(words: &str, count: usize) -> (Arc<Spa>, Vec<Arc<MemoryDevice>>) {
    let devices: Vec<_> =
        (0..count).map(|n| Arc::new(MemoryDevice::writable(64 << 20).named(format!("d{n}")))).collect();
    let words: Vec<String> = words.split(' ').map(str::to_string).collect();
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        devices.iter().find(|d| d.name() == path).map(|d| d.clone() as Arc<dyn Device>)
    };
    let (hooks, options) = (hooks_in_memory(), LayoutOptions { ashift: Some(12), ..LayoutOptions::default() });
    let new = layout(&VdevSpec::parse(&words).unwrap(), &open, options, &hooks.env).unwrap();
    (Spa::create(new, CreateOptions::new("t"), hooks).unwrap(), devices)
}

/// Bytes of the blocks that [`object`] has.
pub const BLOCK: usize = 128 << 10;

/// A new object in the root dataset of pool `t`.
pub fn object(spa: &Arc<Spa>) -> Object {
    let dataset = spa.view().unwrap().dataset("t").unwrap();
    let tx = spa.tx(1 << 20).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: BLOCK as u64, ..NewObject::default() };
    spa.objset(&dataset).unwrap().alloc_object(&tx, &new).unwrap()
}

/// Random bytes that fill so many blocks.
pub fn noise(blocks: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; blocks * BLOCK];
    Env::seeded(seed).fill_random(&mut out);
    out
}
