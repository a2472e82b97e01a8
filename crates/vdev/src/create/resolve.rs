//! From a word of a command line to a device.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::SpecError;

/// The directories in which short names are looked for, the best first (OpenZFS: `zpool_default_search_paths`).
const SEARCH: [&str; 9] = [
    "/dev/disk/by-vdev",
    "/dev/mapper",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-partuuid",
    "/dev/disk/by-label",
    "/dev/disk/by-uuid",
    "/dev/disk/by-id",
    "/dev/disk/by-path",
    "/dev",
];

/// The path of a file or block device that a word names: a full path stays as it is (links are kept: they are the lasting names), another
/// word is a device's short name.
///
/// # Errors
/// What `zpool` says of a word that names none.
pub fn resolve(word: &str) -> Result<PathBuf, SpecError> {
    let path = if word.starts_with('/') {
        if std::fs::canonicalize(word).is_err() {
            return Err(SpecError(format!("cannot resolve path '{word}'")));
        }
        PathBuf::from(word)
    } else {
        let found = SEARCH.iter().map(|folder| Path::new(folder).join(word)).find(|path| path.exists());
        let none = || {
            SpecError(format!(
                "cannot open '{word}': no such device in /dev\nmust be a full path or shorthand device name"
            ))
        };
        found.filter(|_| !word.is_empty()).ok_or_else(none)?
    };
    match std::fs::metadata(&path) {
        Ok(meta) if meta.is_file() || meta.file_type().is_block_device() => Ok(path),
        Ok(_) => Err(SpecError(format!("cannot use '{}': must be a block device or regular file", path.display()))),
        Err(e) => Err(SpecError(format!("cannot open '{}': {}", path.display(), base_text(&e)))),
    }
}

/// The words of the C library for an error, without Rust's addition.
fn base_text(e: &std::io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
