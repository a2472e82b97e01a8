//! From an object's number back to its name, without looking through the same list twice.
//!
//! A directory knows its parent's object, not its own name; a snapshot knows the one before and after, not its name. Names
//! stand in the ZAPs of parents and heads. Going from number to name means looking through such a ZAP, so the first who does
//! turns it around for all who come after: naming N clones costs one look through, not N.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::Error;
use crate::dsl::dir::DirInner;
use crate::spa::mos::{self, Mos};

/// Names remembered in each of the maps; beyond, it starts anew.
const LIMIT: usize = 1 << 20;

/// A ZAP of names, turned around.
type Inverse = Arc<HashMap<u64, String>>;

struct Bounded<T> {
    map: HashMap<u64, T>,
    weight: usize,
}

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Bounded { map: HashMap::new(), weight: 0 }
    }
}

impl<T: Clone> Bounded<T> {
    fn insert(&mut self, id: u64, value: T, weight: usize) {
        if self.weight + weight > LIMIT {
            self.map.clear();
            self.weight = 0;
        }
        if self.map.insert(id, value).is_none() {
            self.weight += weight;
        }
    }
}

/// A cache of names. Locks are held for a look into a map, never over I/O.
#[derive(Default)]
pub(crate) struct Names {
    dirs: RwLock<Bounded<Arc<DirInner>>>,
    children: RwLock<Bounded<Inverse>>,
    snapshots: RwLock<Bounded<Inverse>>,
}

impl Names {
    pub(in crate::dsl) fn dir(&self, id: u64) -> Option<Arc<DirInner>> {
        self.dirs.read().map.get(&id).cloned()
    }

    pub(in crate::dsl) fn keep_dir(&self, dir: &Arc<DirInner>) {
        self.dirs.write().insert(dir.id, dir.clone(), 1);
    }

    /// The name of directory `id` in its parent.
    pub(in crate::dsl) fn child_name(&self, mos: &Mos, parent: &DirInner, id: u64) -> Result<String, Error> {
        let names = lookup(&self.children, mos, parent.phys.child_dir_zapobj)?;
        names
            .get(&id)
            .cloned()
            .ok_or_else(|| Error::corrupt(id, format!("directory is not among the children of '{}'", parent.name)))
    }

    /// The name of snapshot `id` among those that `snapnames` lists.
    pub(in crate::dsl) fn snapshot_name(&self, mos: &Mos, snapnames: u64, id: u64) -> Result<String, Error> {
        let names = lookup(&self.snapshots, mos, snapnames)?;
        names.get(&id).cloned().ok_or_else(|| Error::corrupt(id, "snapshot is not in the list of its dataset"))
    }
}

fn lookup(cache: &RwLock<Bounded<Inverse>>, mos: &Mos, zap: u64) -> Result<Inverse, Error> {
    if let Some(found) = cache.read().map.get(&zap) {
        return Ok(found.clone());
    }
    let entries = match mos.zap_if(zap)? {
        Some(zap) => mos::named_entries(&zap)?,
        None => Vec::new(),
    };
    let inverse: Inverse = Arc::new(entries.into_iter().map(|(name, value)| (value.first(), name)).collect());
    cache.write().insert(zap, inverse.clone(), inverse.len() + 1);
    Ok(inverse)
}
