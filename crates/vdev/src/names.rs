//! Names of the host that outlive a crash.

use std::fs::File;
use std::io;
use std::path::Path;

/// Waits until the names in the directory of `path` are on stable storage. A file that was made, renamed or removed may still have its former name
/// after a crash, or none, whatever of its contents was synced. A directory that may not be read, or a file system that cannot do this, is no error.
///
/// # Errors
/// What the host says.
pub fn sync_names(path: &Path) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(dir).and_then(|dir| dir.sync_all()) {
        Err(e) if matches!(e.kind(), InvalidInput | PermissionDenied | Unsupported) => Ok(()),
        done => done,
    }
}
