//! Keys that are given to one command alone (`zuse -L`).

use std::sync::{Arc, Mutex, PoisonError};

use pool::{KeyStatus, ListOptions, Pool};

use super::typed::load;

/// Locations of the keys that were given to this command.
static GIVEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Gives this command a key: each encryption root without a key takes the one that fits.
pub(crate) fn give(location: String) {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner).push(location);
}

/// The keys that this command was given.
pub(crate) fn given() -> Vec<String> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Loads a key that was given with `-L`: the value `keylocation` is the location that the encryption root itself names.
pub(crate) fn load_from(pool: &Arc<Pool>, root: &str, given: &str) -> bool {
    let location = Some(given).filter(|location| *location != "keylocation");
    load(pool, root, location).is_ok()
}

/// Loads the keys that this command was given into a pool.
pub(crate) fn load_given(pool: &Arc<Pool>) {
    let given = given();
    if given.is_empty() {
        return;
    }
    let Ok(all) = pool.list(pool.name(), &ListOptions::DATASETS) else { return };
    for dataset in all.iter().filter_map(pool::Entry::dataset) {
        let root = dataset.encryption_root().ok().flatten();
        if root.as_deref() == Some(dataset.name()) && dataset.key_status().is_ok_and(|s| s == KeyStatus::Unavailable) {
            // possibly none fits
            let _ = given.iter().any(|given| load_from(pool, dataset.name(), given));
        }
    }
}
