//! Path resolution: from a path to an object and back.

use std::collections::HashSet;

use base::ObjectId;

use crate::{Attrs, DirEntry, Error, FileFlags, FileSystem, Kind, Node};

/// Maximum number of symbolic links in one resolution (Linux: `MAXSYMLINKS`).
const MAX_LINKS: u32 = 40;
/// Maximum number of parent directories that [`FileSystem::path_of`] climbs.
const MAX_DEPTH: usize = 1 << 16;

/// The treatment of symbolic links. Absolute targets start at the root of the file system; no link leaves it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Follow {
    /// It is treated as a file: as the last component it is the result, before that an error.
    #[default]
    Never,
    /// Follow it unless it is the last component (`lstat`).
    Parents,
    /// Follow it (`stat`).
    Always,
}

/// A check whether the caller may look up a name in the directory with this object number.
pub(crate) type Search<'a> = dyn Fn(ObjectId) -> Result<(), Error> + 'a;

/// The state of a path resolution.
struct Walk<'a> {
    fs: &'a FileSystem,
    /// Called for each directory before a name is looked up in it.
    may_search: &'a Search<'a>,
    /// The directories entered, the current one last; never empty.
    dirs: Vec<ObjectId>,
    /// Remaining components, the next one last.
    ahead: Vec<Vec<u8>>,
    follow: Follow,
    links: u32,
}

impl Walk<'_> {
    fn push_path(&mut self, path: &[u8]) {
        // "a/" requires a to be a directory, as "a/." does
        if path.ends_with(b"/") {
            self.ahead.push(b".".to_vec());
        }
        self.ahead.extend(path.split(|b| *b == b'/').filter(|c| !c.is_empty()).rev().map(<[u8]>::to_vec));
    }

    fn here(&self) -> ObjectId {
        self.dirs.last().copied().unwrap_or(self.fs.root())
    }

    fn up(&mut self) -> Result<(), Error> {
        let here = self.here();
        if self.dirs.len() > 1 {
            self.dirs.pop();
        } else if here != self.fs.root() {
            self.dirs = vec![self.fs.node(here)?.attrs().parent];
        }
        Ok(())
    }

    fn run(mut self, path: &[u8]) -> Result<Node, Error> {
        self.push_path(path);
        while let Some(name) = self.ahead.pop() {
            (self.may_search)(self.here())?;
            match name.as_slice() {
                b"." => continue,
                b".." => {
                    self.up()?;
                    continue;
                }
                _ => {}
            }
            let entry = self.fs.lookup(self.here(), &name)?.ok_or_else(|| Error::not_found(path))?;
            let node = match self.enter(&entry, path)? {
                Some(node) => node,
                None => continue,
            };
            if self.ahead.is_empty() {
                return Ok(node);
            }
            return Err(Error::NotDirectory { name: path.to_vec() });
        }
        self.fs.node(self.here())
    }

    /// Enters a directory or follows a link; returns the node of anything else.
    fn enter(&mut self, entry: &DirEntry, path: &[u8]) -> Result<Option<Node>, Error> {
        let kind = match entry.kind {
            Kind::Directory | Kind::Symlink => entry.kind,
            _ => self.fs.node(entry.object)?.kind(),
        };
        if kind == Kind::Directory {
            self.dirs.push(entry.object);
            return Ok(None);
        }
        let node = self.fs.node(entry.object)?;
        let follow = match self.follow {
            Follow::Never => false,
            Follow::Parents => !self.ahead.is_empty(),
            Follow::Always => true,
        };
        if kind != Kind::Symlink || !follow {
            return Ok(Some(node));
        }
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Error::Loop { name: path.to_vec() });
        }
        let target = node.target()?;
        if target.is_empty() {
            return Err(Error::not_found(path));
        }
        if target.starts_with(b"/") {
            self.dirs = vec![self.fs.root()];
        }
        self.push_path(&target);
        Ok(None)
    }
}

impl FileSystem {
    /// Returns the file at `path` below the root, with or without a leading `/`; symbolic links are not followed. `..` of the
    /// root is the root.
    ///
    /// # Errors
    /// If a component is missing, not a directory, or unreadable.
    pub fn resolve(&self, path: &[u8]) -> Result<Node, Error> {
        self.resolve_from(self.root(), path, Follow::Never)
    }

    /// Returns the file at `path` below the directory `dir` (below the root, if it begins with `/`).
    ///
    /// # Errors
    /// As [`FileSystem::resolve`]; [`Error::Loop`] after 40 links.
    pub fn resolve_from(&self, dir: ObjectId, path: &[u8], follow: Follow) -> Result<Node, Error> {
        self.resolve_if(dir, path, follow, &|_| Ok(()))
    }

    /// As [`FileSystem::resolve_from`], for a caller who must be allowed to search each directory on the path, including that of
    /// the last name.
    pub(crate) fn resolve_if(
        &self,
        dir: ObjectId,
        path: &[u8],
        follow: Follow,
        may_search: &Search<'_>,
    ) -> Result<Node, Error> {
        let start = if path.starts_with(b"/") { self.root() } else { dir };
        Walk { fs: self, may_search, dirs: vec![start], ahead: Vec::new(), follow, links: 0 }.run(path)
    }

    /// Returns a path of object `object`, from `/`; `<xattrdir>` denotes a hidden directory. For a file with several names it is
    /// the one that its parent attribute leads to. OpenZFS: `zfs_obj_to_path`.
    ///
    /// # Errors
    /// [`Error::NoPath`] if it has no name (deleted but open, or a parent is gone); or when a directory is unreadable.
    pub fn path_of(&self, object: ObjectId) -> Result<Vec<u8>, Error> {
        if self.is_unlinked(object)? {
            return Err(Error::NoPath { object });
        }
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        let mut seen = HashSet::new();
        let mut at = object;
        while at != self.root() {
            let node = self.node(at)?;
            let parent = node.attrs().parent;
            if parent == at {
                break;
            }
            if !seen.insert(at) || seen.len() > MAX_DEPTH {
                return Err(Error::NoPath { object });
            }
            pieces.push(if is_xattr_dir(node.attrs()) {
                b"<xattrdir>".to_vec()
            } else {
                self.name_in(parent, at, object)?
            });
            at = parent;
        }
        let mut path = Vec::new();
        for piece in pieces.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(piece);
        }
        Ok(if path.is_empty() { b"/".to_vec() } else { path })
    }

    /// Returns the first name of `child` in the directory `parent`.
    fn name_in(&self, parent: ObjectId, child: ObjectId, object: ObjectId) -> Result<Vec<u8>, Error> {
        for entry in self.read_dir(parent)? {
            let entry = entry?;
            if entry.object == child {
                return Ok(entry.name);
            }
        }
        Err(Error::NoPath { object })
    }
}

fn is_xattr_dir(attrs: &Attrs) -> bool {
    attrs.flags.has(FileFlags::XATTR) && attrs.kind() == Kind::Directory
}
