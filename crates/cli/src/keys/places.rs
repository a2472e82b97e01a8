//! Locations of keys that can be read again, updated when datasets get keys of their own or lose them.

use std::sync::Arc;

use nvlist::NvList;
use pool::Pool;

use codec::crypt::WrappingKey;
use site::{agent, records};

use super::new::Material;
use crate::error::Failure;
use crate::here::here;
use crate::pools;

/// Keeps a key that was loaded from `location` for later commands.
pub(crate) fn keep(pool: &Arc<Pool>, root: &str, location: &str, key: &WrappingKey) -> Result<(), Failure> {
    Ok(site::keys::keep(pool, root, location, key, &**here().front())?)
}

/// Keeps the key of a new encryption root.
pub(crate) fn remember_new(name: &str, key: Option<&Material>, input: &NvList) -> Result<(), Failure> {
    let location = input.get_nvlist("props").and_then(|props| props.get_str("keylocation"));
    match (key, pools::of_dataset(name)?) {
        (Some(key), Some(pool)) => keep(&pool, name, location.unwrap_or("prompt"), key.wrapping_key()),
        _ => Ok(()),
    }
}

/// Keeps the new key of `name`, and its location; `None`: it no longer has a key of its own.
pub(crate) fn remember_change(name: &str, pool: &Arc<Pool>, new: Option<(&str, &Material)>) -> Result<(), Failure> {
    if let Some((location, key)) = new {
        return keep(pool, name, location, key.wrapping_key());
    }
    let Some(mut record) = here().record(pool) else { return Ok(()) };
    let Ok(dir) = pool.dir(name) else { return Ok(()) };
    // its own key, if there was one: now it is under its parent's
    agent::drop_key(record.guid, dir.id());
    let count = record.keys.len();
    record.keys.retain(|(root, _)| *root != dir.id());
    if record.keys.len() == count { Ok(()) } else { Ok(records::remember(&record)?) }
}
