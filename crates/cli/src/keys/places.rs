//! Locations of keys that can be read again, updated when datasets get keys of their own or lose them.

use codec::crypt::WrappingKey;
use nvlist::NvList;
use site::Query;

use super::new::Material;
use crate::console::here;
use crate::error::Failure;
use crate::pools;

/// Keeps a key that was loaded from `location` for later commands.
pub(crate) fn keep(query: &Query, root: &str, location: &str, key: &WrappingKey) -> Result<(), Failure> {
    Ok(site::keys::keep(query, root, location, key, &**here().front())?)
}

/// Keeps the key of a new encryption root.
pub(crate) fn remember_new(name: &str, key: Option<&Material>, input: &NvList) -> Result<(), Failure> {
    let location = input.get_nvlist("props").and_then(|props| props.get_str("keylocation"));
    match (key, pools::of_dataset(name)?) {
        (Some(key), Some(query)) => keep(&query, name, location.unwrap_or("prompt"), key.wrapping_key()),
        _ => Ok(()),
    }
}

/// Keeps the new key of `name`, and its location; `None`: it no longer has a key of its own.
pub(crate) fn remember_change(name: &str, query: &Query, new: Option<(&str, &Material)>) -> Result<(), Failure> {
    match new {
        Some((location, key)) => keep(query, name, location, key.wrapping_key()),
        None => Ok(site::keys::forget(query, name)?),
    }
}
