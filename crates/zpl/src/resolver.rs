//! `.zfs`: snapshots and shares as directories below the root of a file system.

use std::sync::Arc;

use base::ObjectId;
use parking_lot::Mutex;
use pool::{Dataset, Pool};

use crate::{Error, FileSystem, Follow, Node};

/// Maximum number of file systems that a resolver keeps open.
const MAX_OPEN: usize = 64;

/// The target of a path.
#[derive(Debug)]
pub enum Resolved {
    /// A file of the file system, or of a snapshot of it.
    Node(Box<Node>),
    /// A control directory, for which no object exists.
    Control(Control),
}

/// A directory under `.zfs` (OpenZFS: `zfs_ctldir.c`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// `.zfs` itself.
    Root,
    /// `.zfs/snapshot`, with the names of the snapshots.
    Snapshots(Vec<String>),
    /// `.zfs/shares` of a file system that has none.
    Shares,
}

impl Control {
    /// Returns the names in the directory.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match self {
            Control::Root => vec!["snapshot".to_owned(), "shares".to_owned()],
            Control::Snapshots(names) => names.clone(),
            Control::Shares => Vec::new(),
        }
    }
}

/// Finds files by dataset and path, `.zfs` included, and keeps file systems open between calls.
pub struct Resolver {
    pool: Arc<Pool>,
    /// By dataset object, the most recently used one last.
    open: Mutex<Vec<(ObjectId, FileSystem)>>,
}

impl Resolver {
    /// Creates a resolver of paths in `pool`.
    #[must_use]
    pub fn new(pool: Arc<Pool>) -> Resolver {
        Resolver { pool, open: Mutex::default() }
    }

    /// Returns the file system of `dataset`, opened at the first call.
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    pub fn file_system(&self, dataset: &Dataset) -> Result<FileSystem, Error> {
        let id = dataset.id();
        {
            let mut open = self.open.lock();
            if let Some(at) = open.iter().position(|(known, _)| *known == id) {
                let entry = open.remove(at);
                let fs = entry.1.clone();
                open.push(entry);
                return Ok(fs);
            }
        }
        let fs = FileSystem::open(dataset)?;
        let mut open = self.open.lock();
        if open.len() >= MAX_OPEN {
            open.remove(0);
        }
        open.push((id, fs.clone()));
        Ok(fs)
    }

    /// Returns the file at `path` below the root of the dataset `name` (`pool/fs`, `pool/fs@snapshot`). A path that begins with
    /// `.zfs` (ignoring `.` and `..` before it) leads to control directories or into snapshots.
    ///
    /// # Errors
    /// If the dataset or a component is missing, not a directory, or unreadable.
    pub fn resolve(&self, name: &str, path: &[u8], follow: Follow) -> Result<Resolved, Error> {
        let fs = self.file_system(&self.pool.dataset(name)?)?;
        let rest = if fs.is_snapshot() { None } else { strip(strip_dots(path), b".zfs") };
        let Some(rest) = rest else { return fs.resolve_from(fs.root(), path, follow).map(found) };
        if rest.is_empty() {
            return Ok(Resolved::Control(Control::Root));
        }
        if let Some(rest) = strip(rest, b"snapshot") {
            return self.in_snapshots(name, rest, path, follow);
        }
        let Some(rest) = strip(rest, b"shares") else { return Err(Error::not_found(path)) };
        match fs.shares() {
            Some(dir) => fs.resolve_from(dir, rest, follow).map(found),
            None if rest.is_empty() => Ok(Resolved::Control(Control::Shares)),
            None => Err(Error::not_found(path)),
        }
    }

    fn in_snapshots(&self, name: &str, rest: &[u8], path: &[u8], follow: Follow) -> Result<Resolved, Error> {
        let dataset = self.pool.dataset(name)?;
        if rest.is_empty() {
            let names = dataset.snapshot_names()?.into_iter().map(|(name, _)| name).collect();
            return Ok(Resolved::Control(Control::Snapshots(names)));
        }
        let (wanted, rest) = match rest.iter().position(|b| *b == b'/') {
            Some(at) => (rest.get(..at).unwrap_or(rest), rest.get(at..).unwrap_or(&[])),
            None => (rest, &[][..]),
        };
        // no snapshot has a name that is not UTF-8
        let wanted = std::str::from_utf8(wanted).map_err(|_| Error::not_found(path))?;
        let snapshot =
            dataset.snapshot(wanted).map_err(|e| if e.is_not_found() { Error::not_found(path) } else { e.into() })?;
        let fs = self.file_system(&snapshot)?;
        fs.resolve_from(fs.root(), trim(rest), follow).map(found)
    }
}

fn found(node: Node) -> Resolved {
    Resolved::Node(Box::new(node))
}

/// Strips leading slashes, `.` and `..` from `path`; none of them leads out of the root.
fn strip_dots(mut path: &[u8]) -> &[u8] {
    loop {
        path = trim(path);
        match strip(path, b".").or_else(|| strip(path, b"..")) {
            Some(rest) if !path.is_empty() => path = rest,
            _ => return path,
        }
    }
}

/// Returns the rest of `path` after its first component, if that is `name`.
fn strip<'a>(path: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(name)?;
    if rest.is_empty() || rest.starts_with(b"/") { Some(trim(rest)) } else { None }
}

fn trim(path: &[u8]) -> &[u8] {
    path.iter().position(|b| *b != b'/').and_then(|at| path.get(at..)).unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::{strip, strip_dots};

    #[test]
    fn leading_components() {
        assert_eq!(strip_dots(b"/./..//.zfs/x"), b".zfs/x");
        assert_eq!(strip_dots(b"..."), b"...");
        assert_eq!(strip_dots(b"/.."), b"");
        assert_eq!(strip(b".zfs//snapshot/a", b".zfs"), Some(&b"snapshot/a"[..]));
        assert_eq!(strip(b".zfsx", b".zfs"), None);
        assert_eq!(strip(b".zfs", b".zfs"), Some(&b""[..]));
    }
}
