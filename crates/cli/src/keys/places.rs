//! Where keys are that can be read again: remembered by encryption root, and followed as datasets get other names and roots.

use std::sync::Arc;

use nvlist::NvList;
use pool::Pool;

use super::{Material, keep};
use crate::error::Failure;
use crate::{agent, pools, state};

/// An encryption root whose key is remembered, before a command changes something.
#[derive(Clone, Debug)]
pub(crate) struct RootKey {
    /// Its name.
    pub(crate) name: String,
    /// Its directory, which keeps its number whatever its name.
    pub(crate) dir: u64,
}

/// Remembers keys by what their encryption roots are called now; those of roots that are gone are forgotten. The keys of a root that was
/// promoted away are those of the new one.
pub(crate) fn follow(pool: &Arc<Pool>, before: Vec<RootKey>) -> Result<(), Failure> {
    let Some(mut record) = pools::record(pool).filter(|_| !before.is_empty()) else { return Ok(()) };
    let now = |old: &str| -> Option<String> {
        let Some(key) = before.iter().find(|key| key.name == old) else { return Some(old.to_owned()) };
        let root = pool.dir_by_id(key.dir).ok()?.crypto().ok()??.root_dir;
        Some(pool.dir_by_id(root).ok()?.name().to_owned())
    };
    let mut keys: Vec<(String, String)> = Vec::new();
    for (root, location) in &record.keys {
        if let Some(root) = now(root).filter(|root| keys.iter().all(|(other, _)| other != root)) {
            keys.push((root, location.clone()));
        }
    }
    if keys == record.keys {
        return Ok(());
    }
    record.keys = keys;
    state::remember(&record)
}

/// Keeps the key of a new encryption root.
pub(crate) fn remember_new(name: &str, key: Option<&Material>, input: &NvList) -> Result<(), Failure> {
    let location = input.get_nvlist("props").and_then(|props| props.get_str("keylocation"));
    match (key, pools::of_dataset(name)?) {
        (Some(key), Some(pool)) => keep(&pool, name, location.unwrap_or("prompt"), key.wrapping_key()),
        _ => Ok(()),
    }
}

/// Keeps the new key of `name`, and where it came from; `None`: it has no key of its own any more.
pub(crate) fn remember_change(name: &str, pool: &Arc<Pool>, new: Option<(&str, &Material)>) -> Result<(), Failure> {
    if let Some((location, key)) = new {
        return keep(pool, name, location, key.wrapping_key());
    }
    let Some(mut record) = pools::record(pool) else { return Ok(()) };
    if let Ok(dir) = pool.dir(name) {
        // its own, if there was one: by now it is under its parent's
        agent::drop_key(record.guid, dir.id());
    }
    let count = record.keys.len();
    record.keys.retain(|(root, _)| root != name);
    if record.keys.len() == count { Ok(()) } else { state::remember(&record) }
}
