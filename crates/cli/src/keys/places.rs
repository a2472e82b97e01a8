//! Where keys are that can be read again: remembered by encryption root, and followed as datasets get other names and roots.

use std::sync::Arc;

use nvlist::NvList;
use pool::Pool;

use super::Material;
use crate::error::Failure;
use crate::{pools, state};

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

/// Remembers where the key of a new encryption root is, if that is a file: the next command reads it again.
pub(crate) fn remember_new(name: &str, key: Option<&Material>, input: &NvList) -> Result<(), Failure> {
    let location = input.get_nvlist("props").and_then(|props| props.get_str("keylocation"));
    match (key, pools::of_dataset(name)?) {
        (Some(_), Some(pool)) => remember_change(name, &pool, Some(location)),
        _ => Ok(()),
    }
}

/// Remembers where the key of `name` is now; `None`: it has no key of its own any more.
pub(crate) fn remember_change(name: &str, pool: &Arc<Pool>, location: Option<Option<&str>>) -> Result<(), Failure> {
    let Some(mut record) = pools::record(pool) else { return Ok(()) };
    let before = record.keys.clone();
    record.keys.retain(|(root, _)| root != name);
    match location.flatten() {
        Some(location) if location.starts_with("file://") => {
            record.keys.push((name.to_owned(), location.to_owned()));
        }
        Some(_) => {
            eprintln!("The key of '{name}' was not read from a file, so no later command can use it.");
        }
        None => {}
    }
    if record.keys == before { Ok(()) } else { state::remember(&record) }
}
