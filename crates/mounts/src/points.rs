//! Mount points.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crate::Error;

/// The mode of a new mount point.
const MODE: u32 = 0o755;

/// Makes a mount point, with the directories above it, unless something is there.
///
/// # Errors
/// What the system says.
pub fn make_point(path: &Path) -> Result<(), Error> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(MODE).create(path);
    made.map_err(|source| Error::Point { path: path.to_owned(), source })
}

/// Returns whether a mount would cover something: whether it is a directory that is not empty (OpenZFS: `dir_is_empty`).
#[must_use]
pub fn has_entries(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_made_and_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let point = dir.path().join("a/b");
        make_point(&point).unwrap();
        assert!(!has_entries(&point) && has_entries(dir.path()));
        make_point(&point).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(!has_entries(&file) && make_point(&file).is_ok() && make_point(&file.join("x")).is_err());
    }
}
