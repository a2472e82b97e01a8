//! Names that are stored and that no lookup leads to, since the file system compares names otherwise than whoever stored them: those whose normal
//! form has no room, and those that are the same as another name of their directory. A received stream brings names as they were.

use base::Txg;
use dmu::{Visit, Walk};
use ondisk::ObjectType;

use crate::{Error, FileSystem};

/// What [`FileSystem::names_out_of_reach`] found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OutOfReach {
    /// The first name, and the object of its directory.
    pub first: Option<(u64, Vec<u8>)>,
    /// How many names.
    pub count: u64,
}

impl FileSystem {
    /// The names that cannot be reached in directories which changed after txg `since`. Only dnodes that were written since are read; where names
    /// are compared byte for byte, none. Directories that cannot be read are passed over.
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
                    // what comes before damage counts
                    let _ = self.look_for_unreachable(object, &mut found);
                }
                _ => {}
            }
            Walk::Skip
        });
        found
    }

    fn look_for_unreachable(&self, dir: u64, found: &mut OutOfReach) -> Result<(), Error> {
        let zap = self.dir_zap(dir)?;
        for entry in self.read_dir(dir)? {
            let entry = entry?;
            let there = self.lookup_in(&zap, dir, &entry.name);
            let leads = there.is_ok_and(|there| there.is_some_and(|there| there.name == entry.name));
            if !leads || !self.is_in_reach(&entry.name) {
                found.count += 1;
                found.first.get_or_insert((dir, entry.name));
            }
        }
        Ok(())
    }
}
