//! From an object's number back to its name, without looking through the same list twice.
//!
//! A directory knows its parent's object, not its own name; a snapshot knows the one before and after, not its name. Names
//! are in the ZAPs of parents and heads. Finding the name of a number means looking through such a ZAP, so the first lookup inverts
//! the list for all that follow: naming N clones costs one look through, not N. Lists are carried over from one view of a pool to the next
//! ([`Known`](crate::spa::mos::known::Known)); directories under their names are of one view.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use base::ObjectId;
use parking_lot::RwLock;

use crate::dsl::dir::DirInner;
use crate::spa::mos;
use crate::spa::mos::known::{NAME_BYTES, OfObject};
use crate::{Error, Pool};

/// Directories that a view keeps; beyond, it starts anew.
const LIMIT: usize = 1 << 20;

/// A ZAP of names.
pub(in crate::dsl) struct NameList {
    /// In the order of the ZAP.
    entries: Vec<(String, ObjectId)>,
    /// The places of objects in `entries`, once a name was asked for.
    places: OnceLock<HashMap<ObjectId, usize>>,
}

impl OfObject for NameList {
    fn weight(&self) -> usize {
        self.entries.iter().map(|(name, _)| 2 * NAME_BYTES + name.len()).sum::<usize>() + NAME_BYTES
    }
}

/// A ZAP of directories, sorted by name. (A type of its own: no list of snapshots is taken for one, which may name an object twice.)
pub(in crate::dsl) struct ChildList {
    list: NameList,
    /// A directory that the list names twice: damage.
    twice: Option<ObjectId>,
}

impl OfObject for ChildList {
    fn weight(&self) -> usize {
        self.list.weight()
    }
}

impl ChildList {
    /// The directories that ZAP `list` names.
    pub(in crate::dsl) fn load(pool: &Pool, list: ObjectId) -> Result<Arc<ChildList>, Error> {
        pool.known.of(list, || {
            let mut list = NameList::load(pool, list)?;
            list.entries.sort_unstable();
            let twice = mos::named_twice(&list.entries);
            Ok(ChildList { list, twice })
        })
    }

    /// All names with their objects.
    ///
    /// # Errors
    /// When a directory has two names: it would be gone through twice, one below it four times, and so on.
    pub(in crate::dsl) fn entries(&self) -> Result<&[(String, ObjectId)], Error> {
        self.twice.map_or(Ok(&self.list.entries), |id| Err(mos::two_names(id)))
    }
}

impl NameList {
    /// The snapshots that ZAP `list` names, in its order.
    pub(in crate::dsl) fn snapshots(pool: &Pool, list: ObjectId) -> Result<Arc<NameList>, Error> {
        pool.known.of(list, || NameList::load(pool, list))
    }

    fn load(pool: &Pool, list: ObjectId) -> Result<NameList, Error> {
        let entries = pool.mos.zap_if(list)?.map_or_else(|| Ok(Vec::new()), |zap| mos::named_entries(&zap))?;
        let entries = entries.into_iter().map(|(name, value)| (name, value.id())).collect();
        Ok(NameList { entries, places: OnceLock::new() })
    }

    /// All names with their objects.
    pub(in crate::dsl) fn entries(&self) -> &[(String, ObjectId)] {
        &self.entries
    }

    fn name_of(&self, id: ObjectId) -> Option<&str> {
        let index = || self.entries.iter().enumerate().map(|(n, (_, id))| (*id, n)).collect();
        let place = self.places.get_or_init(index).get(&id)?;
        self.entries.get(*place).map(|(name, _)| name.as_str())
    }
}

/// The directories of a view, by object. The lock is held for a look into the map, never over I/O.
#[derive(Default)]
pub(crate) struct Names {
    dirs: RwLock<HashMap<ObjectId, Arc<DirInner>>>,
}

impl Names {
    pub(in crate::dsl) fn dir(&self, id: ObjectId) -> Option<Arc<DirInner>> {
        self.dirs.read().get(&id).cloned()
    }

    pub(in crate::dsl) fn keep_dir(&self, dir: &Arc<DirInner>) {
        let mut dirs = self.dirs.write();
        if dirs.len() >= LIMIT {
            dirs.clear();
        }
        dirs.insert(dir.id, dir.clone());
    }
}

impl Pool {
    /// The name of directory `id` in its parent.
    pub(in crate::dsl) fn child_name(&self, parent: &DirInner, id: ObjectId) -> Result<String, Error> {
        let names = ChildList::load(self, parent.phys().child_dir_zapobj)?;
        let missing = || Error::corrupt(id, format!("directory is not among the children of '{}'", parent.name));
        names.list.name_of(id).map(str::to_owned).ok_or_else(missing)
    }

    /// The name of snapshot `id` among those that `list` names.
    pub(in crate::dsl) fn snapshot_name(&self, list: ObjectId, id: ObjectId) -> Result<String, Error> {
        let names = NameList::snapshots(self, list)?;
        let missing = || Error::corrupt(id, "snapshot is not in the list of its dataset");
        names.name_of(id).map(str::to_owned).ok_or_else(missing)
    }
}
