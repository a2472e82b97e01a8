//! The files that the kernel knows: those that it looked up and has not forgotten.
//!
//! A file that has lost its last name while the kernel knows it is held here until it is forgotten, so that its number is not used again, and
//! requests for it are answered as for any other file.

use std::collections::HashMap;

use parking_lot::Mutex;
use zpl::live::Handle;

const SHARDS: u64 = 32;

/// A file that the kernel knows.
struct File {
    /// Number of lookups that it has not forgotten.
    lookups: u64,
    /// The generation that it was told.
    generation: u64,
    /// Directory and name by which it was last looked up; `None` if only by its number.
    name: Option<(u64, Box<[u8]>)>,
    /// Set once it has no name any more.
    held: Option<Handle>,
}

/// A file, and the name of it that the kernel may have cached.
pub(crate) struct Name {
    /// The file.
    pub(crate) id: u64,
    /// The directory, and the name there.
    pub(crate) name: Option<(u64, Box<[u8]>)>,
}

/// The table of known files, by object number.
#[derive(Default)]
pub(crate) struct Known([Mutex<HashMap<u64, File>>; SHARDS as usize]);

impl Known {
    fn shard(&self, id: u64) -> &Mutex<HashMap<u64, File>> {
        // in range: a remainder
        #[allow(clippy::indexing_slicing)]
        &self.0[(id % SHARDS) as usize]
    }

    /// Notes that the kernel is told of a file, by a name or by its number.
    pub(crate) fn looked_up(&self, id: u64, generation: u64, name: Option<(u64, &[u8])>) {
        let mut files = self.shard(id).lock();
        let file = files.entry(id).or_insert_with(|| File { lookups: 0, generation, name: None, held: None });
        file.lookups += 1;
        // another file has the number of one that was removed behind the mount
        let other = file.generation != generation;
        let gone = if other { file.held.take() } else { None };
        file.generation = generation;
        if other || name.is_some_and(|new| file.name.as_ref().is_none_or(|(dir, name)| (*dir, &**name) != new)) {
            file.name = name.map(|(dir, name)| (dir, name.into()));
        }
        drop(files);
        drop(gone);
    }

    /// Notes that the kernel forgets so many lookups of a file.
    pub(crate) fn forgotten(&self, id: u64, lookups: u64) {
        let mut files = self.shard(id).lock();
        let Some(file) = files.get_mut(&id) else { return };
        file.lookups = file.lookups.saturating_sub(lookups);
        let gone = if file.lookups == 0 { files.remove(&id) } else { None };
        // the release of a held file frees it, which takes time
        drop(files);
        drop(gone);
    }

    /// Returns the generation that the kernel was told, if it knows the file.
    pub(crate) fn generation(&self, id: u64) -> Option<u64> {
        self.shard(id).lock().get(&id).map(|file| file.generation)
    }

    /// Holds a file that has no name any more, if the kernel knows it.
    pub(crate) fn hold(&self, id: u64, handle: Handle) {
        let mut files = self.shard(id).lock();
        // one handle is enough; an unused one is dropped without the lock
        let unused = match files.get_mut(&id) {
            Some(file) => file.held.replace(handle),
            None => Some(handle),
        };
        drop(files);
        drop(unused);
    }

    /// Notes that a file has another name.
    pub(crate) fn renamed(&self, id: u64, dir: u64, name: &[u8]) {
        if let Some(file) = self.shard(id).lock().get_mut(&id) {
            file.name = Some((dir, name.into()));
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
        known.looked_up(7, 1, Some((34, b"a")));
        known.looked_up(7, 1, Some((34, b"b")));
        known.looked_up(7, 1, None);
        assert_eq!(known.generation(7), Some(1));
        known.forgotten(7, 1);
        let name = || known.names().pop().unwrap().name.map(|(dir, name)| (dir, name.to_vec()));
        assert_eq!(name(), Some((34, b"b".to_vec())));
        known.renamed(7, 8, b"c");
        assert_eq!(name(), Some((8, b"c".to_vec())));
        // the number is used again: lookups of both count
        known.looked_up(7, 2, Some((34, b"a")));
        assert_eq!((known.generation(7), name()), (Some(2), Some((34, b"a".to_vec()))));
        known.forgotten(7, 3);
        assert_eq!(known.generation(7), None);
        known.forgotten(7, 5);
    }
}
