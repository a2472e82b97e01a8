//! Snapshots that are made, destroyed and renamed by `mkdir`, `rmdir` and `mv`.

use base::{Errno, ObjectId, tunable};

use super::{ControlDir, Ctldir, NAME_MAX, SnapshotAdmin};
use crate::live::{Cred, Refusal, RenameMode};
use crate::{Attrs, Error, Kind};

impl Ctldir {
    /// Creates a file in a control directory: a directory in `.zfs/snapshot` is a snapshot, and there are no others.
    pub(super) fn create_in(
        &self,
        cred: &Cred,
        dir: ControlDir,
        name: &[u8],
        kind: Kind,
    ) -> Result<(ObjectId, Attrs), Error> {
        match (dir, kind) {
            (ControlDir::Snapshots, Kind::Directory) => {
                let admin = self.admin()?;
                let full = self.new_name(name)?;
                admin.create(cred, &full).map_err(failed(&full))?;
                self.find_in(cred, dir, name)
            }
            // as where a directory has no such operation
            (_, Kind::File) => Err(Refusal::Denied.of(dir.id())),
            _ => Err(Refusal::NotPermitted.of(dir.id())),
        }
    }

    /// Removes a directory in a control directory.
    pub(super) fn remove_in(&self, cred: &Cred, dir: ControlDir, name: &[u8]) -> Result<(), Error> {
        if dir != ControlDir::Snapshots {
            return Err(Refusal::NotPermitted.of(dir.id()));
        }
        let admin = self.admin()?;
        let snapshot = self.find_snapshot(name)?;
        admin.destroy(cred, snapshot.name()).map_err(failed(snapshot.name()))?;
        if let Some(id) = snapshot.snapshot_id() {
            self.snapshots.close(&id);
        }
        Ok(())
    }

    /// Renames an entry of a control directory: a snapshot, which stays in `.zfs/snapshot`.
    pub(super) fn rename_in(
        &self,
        cred: &Cred,
        (dir, name): (ControlDir, &[u8]),
        (to_dir, to_name): (ObjectId, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Error> {
        let refused = |why: Refusal| Err(why.of(dir.id()));
        if dir != ControlDir::Snapshots {
            return refused(Refusal::NotPermitted);
        }
        if mode != RenameMode::Replace {
            return refused(Refusal::Invalid("snapshots are renamed without flags"));
        }
        let admin = self.admin()?;
        if to_dir != dir.id() {
            return refused(Refusal::Invalid("a snapshot is not moved elsewhere"));
        }
        let (from, to) = (self.find_snapshot(name)?, self.new_name(to_name)?);
        if from.name() == to {
            return Ok(());
        }
        admin.rename(cred, from.name(), &to).map_err(failed(&to))
    }

    /// Returns who changes snapshots.
    ///
    /// # Errors
    /// EACCES unless the tunable allows it; EROFS for a pool that is open for reading.
    fn admin(&self) -> Result<&dyn SnapshotAdmin, Error> {
        if tunable::ZFS_ADMIN_SNAPSHOT.get() == 0 {
            return Err(Refusal::Denied.of(ControlDir::Snapshots.id()));
        }
        self.admin.as_deref().ok_or_else(|| Refusal::ReadOnly.of(ControlDir::Snapshots.id()))
    }

    /// Returns the full name of a new snapshot.
    ///
    /// # Errors
    /// EILSEQ for a name that no snapshot can have; ENAMETOOLONG.
    fn new_name(&self, name: &[u8]) -> Result<String, Error> {
        let name = std::str::from_utf8(name).ok().filter(|name| is_component(name));
        let name = name.ok_or_else(|| Refusal::NotUtf8.of(ControlDir::Snapshots.id()))?;
        let full = format!("{}@{name}", self.snapshots.head()?.name());
        if full.len() > NAME_MAX {
            return Err(Error::NameTooLong { len: full.len() });
        }
        Ok(full)
    }
}

fn failed(name: &str) -> impl Fn(Errno) -> Error + '_ {
    move |errno| Error::Snapshot { name: name.to_owned(), errno }
}

/// True if a new snapshot can have this name (OpenZFS: `zfs_component_namecheck`).
fn is_component(name: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.: ".contains(&byte);
    let is_dots = matches!(name, "." | "..");
    !name.is_empty() && name.len() <= NAME_MAX && !is_dots && name.bytes().all(is_valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_new_snapshots() {
        for name in ["s", "2026-11-28_10:00", "a b", "...", &"x".repeat(255)] {
            assert!(is_component(name), "{name}");
        }
        for name in ["", ".", "..", "a@b", "a%b", "a/b", "ä", "a\n", &"x".repeat(256)] {
            assert!(!is_component(name), "{name}");
        }
    }
}
