//! The files that the kernel knows: those that it looked up and has not forgotten.
//!
//! A file that has lost its last name while the kernel knows it is held here until it is forgotten, so that its number is not used again, and
//! requests for it are answered as for any other file.
//!
//! Of a file with several names the kernel caches one, which is here: the others it looks up each time. So whoever tells it that all may have
//! changed can name all that it has cached.

use std::collections::HashMap;

use base::ObjectId;
use parking_lot::Mutex;
use zpl::live::Handle;

const SHARDS: u64 = 32;

/// What holds a file that has no name.
pub(crate) struct Nameless {
    pub(crate) handle: Handle,
    /// Its length when it lost its name.
    pub(crate) len: u64,
}

/// A file that the kernel knows.
struct File {
    /// Number of lookups that it has not forgotten.
    lookups: u64,
    /// The generation that it was told.
    generation: u64,
    /// Directory and name that are cached; `None` if it was only looked up by its number.
    name: Option<(ObjectId, Box<[u8]>)>,
    /// Set once it has no name any more.
    held: Option<Nameless>,
}

impl File {
    fn is_cached_as(&self, (dir, name): (ObjectId, &[u8])) -> bool {
        self.name.as_ref().is_some_and(|cached| cached.0 == dir && *cached.1 == *name)
    }
}

/// A file, and the name of it that the kernel may have cached.
pub(crate) struct Name {
    /// The file.
    pub(crate) id: ObjectId,
    /// The directory, and the name there.
    pub(crate) name: Option<(ObjectId, Box<[u8]>)>,
}

/// The table of known files, by object number.
#[derive(Default)]
pub(crate) struct Known([Mutex<HashMap<ObjectId, File>>; SHARDS as usize]);

impl Known {
    fn shard(&self, id: ObjectId) -> &Mutex<HashMap<ObjectId, File>> {
        // in range: a remainder
        #[allow(clippy::indexing_slicing)]
        &self.0[(id.0 % SHARDS) as usize]
    }

    /// Notes that the kernel is told of a file, by a name or by its number. Returns whether it may cache the name, of which there is one at a time
    /// if the file `has_others`.
    pub(crate) fn looked_up(
        &self,
        id: ObjectId,
        generation: u64,
        name: Option<(ObjectId, &[u8])>,
        has_others: bool,
    ) -> bool {
        let mut files = self.shard(id).lock();
        let file = files.entry(id).or_insert_with(|| File { lookups: 0, generation, name: None, held: None });
        file.lookups += 1;
        // another file has the number of one that was removed behind the mount
        let other = file.generation != generation;
        let gone = if other { file.held.take() } else { None };
        file.generation = generation;
        let is_cached = name.is_some_and(|name| file.is_cached_as(name));
        let may_cache = is_cached || other || !has_others || file.name.is_none();
        if !is_cached && may_cache && (other || name.is_some()) {
            file.name = name.map(|(dir, name)| (dir, name.into()));
        }
        drop(files);
        drop(gone);
        may_cache
    }

    /// Notes that the kernel forgets so many lookups of a file. Returns what held the file, if it has no name and nobody knows it any more: when that is
    /// dropped it is freed, which takes time.
    pub(crate) fn forgotten(&self, id: ObjectId, lookups: u64) -> Option<Nameless> {
        let mut files = self.shard(id).lock();
        let file = files.get_mut(&id)?;
        file.lookups = file.lookups.saturating_sub(lookups);
        let gone = if file.lookups == 0 { files.remove(&id) } else { None };
        gone?.held
    }

    /// Returns the generation that the kernel was told, if it knows the file.
    pub(crate) fn generation(&self, id: ObjectId) -> Option<u64> {
        self.shard(id).lock().get(&id).map(|file| file.generation)
    }

    /// Returns the directory and the name by which the kernel knows a file.
    pub(crate) fn name(&self, id: ObjectId) -> Option<(ObjectId, Box<[u8]>)> {
        self.shard(id).lock().get(&id)?.name.clone()
    }

    /// Holds a file that has no name any more, if the kernel knows it.
    pub(crate) fn hold(&self, id: ObjectId, held: Nameless) {
        let mut files = self.shard(id).lock();
        // one handle is enough; an unused one is dropped without the lock
        let unused = match files.get_mut(&id) {
            Some(file) => file.held.replace(held),
            None => Some(held),
        };
        drop(files);
        drop(unused);
    }

    /// Notes that a name of a file is another by now, or is gone.
    pub(crate) fn renamed(&self, id: ObjectId, old: (ObjectId, &[u8]), new: Option<(ObjectId, &[u8])>) {
        if let Some(file) = self.shard(id).lock().get_mut(&id)
            && file.is_cached_as(old)
        {
            file.name = new.map(|(dir, name)| (dir, name.into()));
        }
    }

    /// Forgets all, as the kernel does at the end of a mount without saying so.
    pub(crate) fn clear(&self) {
        for shard in &self.0 {
            let files = std::mem::take(&mut *shard.lock());
            drop(files);
        }
    }

    /// Returns all known files and their names.
    pub(crate) fn names(&self) -> Vec<Name> {
        let mut all = Vec::new();
        for shard in &self.0 {
            let files = shard.lock();
            all.extend(files.iter().map(|(id, file)| Name { id: *id, name: file.name.clone() }));
        }
        all
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_until_all_its_lookups_are_forgotten() {
        let known = Known::default();
        let [file, dir, other] = [7, 34, 8].map(ObjectId);
        assert!(known.looked_up(file, 1, Some((dir, b"a")), false));
        assert!(known.looked_up(file, 1, Some((dir, b"b")), false));
        known.looked_up(file, 1, None, false);
        assert_eq!(known.generation(file), Some(1));
        assert!(known.forgotten(file, 1).is_none());
        let name = || known.names().pop().unwrap().name.map(|(dir, name)| (dir, name.to_vec()));
        assert_eq!(name(), Some((dir, b"b".to_vec())));
        known.renamed(file, (dir, b"b"), Some((other, b"c")));
        assert_eq!(name(), Some((other, b"c".to_vec())));
        // the number is used again: lookups of both count
        known.looked_up(file, 2, Some((dir, b"a")), true);
        assert_eq!((known.generation(file), name()), (Some(2), Some((dir, b"a".to_vec()))));
        assert!(known.forgotten(file, 3).is_none());
        assert_eq!(known.generation(file), None);
        assert!(known.forgotten(file, 5).is_none());
        known.looked_up(file, 2, Some((dir, b"a")), false);
        known.clear();
        assert_eq!((known.generation(file), known.names().len()), (None, 0));
    }

    #[test]
    fn one_name_of_a_file_is_cached() {
        let known = Known::default();
        let (file, dir) = (ObjectId(7), ObjectId(34));
        assert!(known.looked_up(file, 1, Some((dir, b"a")), true));
        assert!(!known.looked_up(file, 1, Some((dir, b"b")), true));
        assert!(known.looked_up(file, 1, Some((dir, b"a")), true));
        // another name moves
        known.renamed(file, (dir, b"b"), Some((dir, b"c")));
        assert!(!known.looked_up(file, 1, Some((dir, b"c")), true));
        known.renamed(file, (dir, b"a"), None);
        assert!(known.looked_up(file, 1, Some((dir, b"c")), true));
    }
}
