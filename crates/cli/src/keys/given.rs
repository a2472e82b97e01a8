//! Keys that are given to one command alone (`zuse -L`).

use std::collections::HashMap;
use std::sync::Arc;

use control::Failed;
use pool::Pool;
use site::Query;
use site::keys::{Root, waits};

use super::roots::without_key;
use super::typed::load;
use crate::console;

/// The value of `-L` that stands for the location that an encryption root itself names.
const KEYLOCATION: &str = "keylocation";

/// Loads a key that was given with `-L` into an encryption root, if it fits. Where the location is the one that the root names, it is the pool that
/// says what is opened: a prompt is asked on a terminal alone, as any other standard input may be what the command is about, and a location that a
/// read may wait for is left alone.
pub(crate) fn load_from(query: &Query, root: &str, given: &str) -> bool {
    let fits = try_from(query, root, given);
    if fits {
        console::has_key(query.guid(), root);
    }
    fits
}

fn try_from(query: &Query, root: &str, given: &str) -> bool {
    if given != KEYLOCATION {
        return load(query, root, Some(given)).is_ok();
    }
    let Ok(Root { location, .. }) = Root::find(query, root) else { return false };
    let can_be_asked = location != "prompt" || console::stdin_is_terminal();
    can_be_asked && !waits(console::location(&location)) && load(query, root, None).is_ok()
}

/// Loads the keys that this command was given into a pool.
pub(crate) fn load_given(pool: &Arc<Pool>) {
    let given = console::given_keys();
    if !given.is_empty() {
        // roots that cannot be read have none
        let _ = load_all(&Query::of_found(pool.clone(), HashMap::new()), &given);
    }
}

/// Loads these keys into all encryption roots of a pool that they fit.
pub(crate) fn load_all(query: &Query, given: &[String]) -> Result<(), Failed> {
    for root in without_key(query)?.into_iter().flatten() {
        // possibly none fits
        let _ = given.iter().any(|location| load_from(query, &root.name, location));
    }
    Ok(())
}
