//! Stored names that no lookup leads to, since the file system compares names otherwise than the system that stored them. A received stream brings
//! names as they were.

use base::{ObjectId, Txg};
use dmu::{Visit, Walk, Zap};
use ondisk::ObjectType;

use crate::{Error, FileSystem};

/// The result of [`FileSystem::names_out_of_reach`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OutOfReach {
    /// Names whose normal form is too long for OpenZFS: it can neither look them up nor remove them. [`crate::live`] can rename and remove them,
    /// but creates none.
    pub too_long: UnreachableNames,
    /// Names that are compared as another name of their directory: a lookup leads to only one of them.
    pub same: UnreachableNames,
}

/// Names, of which the first is known.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct UnreachableNames {
    /// How many.
    pub count: u64,
    /// The first.
    pub first: Option<NameInDir>,
}

/// A name, with its directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameInDir {
    /// The name.
    pub name: Vec<u8>,
    /// The object of the directory.
    pub dir: ObjectId,
    /// A path of the directory, unless none leads there.
    pub dir_path: Option<Vec<u8>>,
}

impl UnreachableNames {
    fn add(&mut self, fs: &FileSystem, dir: ObjectId, name: Vec<u8>) {
        self.count += 1;
        self.first.get_or_insert_with(|| NameInDir { name, dir, dir_path: fs.path_of(dir).ok() });
    }
}

impl OutOfReach {
    /// True if all names are found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.too_long.count == 0 && self.same.count == 0
    }
}

impl FileSystem {
    /// Returns the names that cannot be reached in directories which changed after txg `since`. Only dnodes that were written since are read; where
    /// names are compared byte for byte, none. Unreadable directories are passed over.
    #[must_use]
    pub fn names_out_of_reach(&self, since: Txg) -> OutOfReach {
        let mut found = OutOfReach::default();
        if self.normflags() == 0 {
            return found;
        }
        let mut last = None;
        self.objset().walk(&mut |visit: &Visit<'_>| {
            let (kind, object) = (visit.dnode.object_type, visit.bookmark.object);
            let is_old = visit.bp.is_hole() || visit.bp.birth_logical() <= since;
            if visit.damage.is_some() || is_old {
                return Walk::Skip;
            }
            match kind {
                ObjectType::DNODE => return Walk::Into,
                ObjectType::DIRECTORY_CONTENTS if last.replace(object) != Some(object) => {
                    // names before the damage count
                    let _ = self.look_for_unreachable(object, &mut found);
                }
                _ => {}
            }
            Walk::Skip
        });
        found
    }

    fn look_for_unreachable(&self, dir: ObjectId, found: &mut OutOfReach) -> Result<(), Error> {
        let zap = self.dir_zap(dir)?;
        for entry in self.read_dir(dir)? {
            let name = entry?.name;
            if !self.is_in_reach(&name) {
                found.too_long.add(self, dir, name);
            } else if !self.leads_to(&zap, dir, &name) {
                found.same.add(self, dir, name);
            }
        }
        Ok(())
    }

    /// Returns whether a lookup of a stored name finds this very name.
    fn leads_to(&self, zap: &Zap, dir: ObjectId, name: &[u8]) -> bool {
        self.lookup_in(zap, dir, name).is_ok_and(|there| there.is_some_and(|there| there.name == name))
    }
}
