//! Finds a path to each file of a file system, one file after the other.

use std::collections::{HashMap, HashSet};

use base::ObjectId;
use zpl::{FileFlags, FileSystem, Kind};

/// Limit on the names that are kept.
const NAMES_MAX: usize = 1 << 20;
/// Limit on the directories above a file.
const DEPTH_MAX: usize = 1 << 16;

/// The names of files in directories that were looked at: a directory is read once, not once for each of its files.
#[derive(Default)]
pub(super) struct Paths {
    dirs: HashMap<ObjectId, HashMap<ObjectId, Vec<u8>>>,
    names: usize,
}

impl Paths {
    /// A path of `object` from the root. `None` if there is none (OpenZFS: `zfs_obj_to_path`).
    pub(super) fn of(&mut self, fs: &FileSystem, object: ObjectId) -> Option<Vec<u8>> {
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        let mut seen = HashSet::new();
        let mut at = object;
        loop {
            let node = fs.node(at).ok()?;
            let attrs = node.attrs();
            if attrs.parent == at {
                break;
            }
            if !seen.insert(at) || seen.len() > DEPTH_MAX {
                return None;
            }
            let is_xattr_dir = attrs.flags.has(FileFlags::XATTR) && attrs.kind() == Kind::Directory;
            pieces.push(if is_xattr_dir { b"<xattrdir>".to_vec() } else { self.name_in(fs, attrs.parent, at)? });
            at = attrs.parent;
        }
        let mut path = Vec::new();
        for piece in pieces.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(piece);
        }
        Some(if path.is_empty() { b"/".to_vec() } else { path })
    }

    /// The first name of `child` in directory `dir`.
    fn name_in(&mut self, fs: &FileSystem, dir: ObjectId, child: ObjectId) -> Option<Vec<u8>> {
        if !self.dirs.contains_key(&dir) {
            if self.names > NAMES_MAX {
                *self = Paths::default();
            }
            let mut names = HashMap::new();
            for entry in fs.read_dir(dir).ok()?.map_while(Result::ok) {
                names.entry(entry.object).or_insert(entry.name);
            }
            self.names += names.len();
            self.dirs.insert(dir, names);
        }
        self.dirs.get(&dir)?.get(&child).cloned()
    }
}
