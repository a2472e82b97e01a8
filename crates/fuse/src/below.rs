//! Mounts inside of a mount. With a directory of which the kernel believes that it is gone, it takes away what is mounted there or below: so it
//! must not be led to believe that by mistake.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use base::ObjectId;

use crate::kernel;
use crate::known::Known;

/// Where the mounts inside of this one are found.
pub(crate) struct Below {
    known: Arc<Known>,
    root: ObjectId,
    /// The device of this mount in the mount table.
    device: OnceLock<String>,
}

/// The mounts inside, by their paths in this file system.
pub(crate) struct Inner<'a> {
    below: &'a Below,
    paths: Vec<PathBuf>,
}

impl Below {
    pub(crate) fn new(known: Arc<Known>, root: ObjectId) -> Below {
        Below { known, root, device: OnceLock::new() }
    }

    /// Notes the device, once this is mounted.
    pub(crate) fn is_mounted(&self, device: &str) {
        let _ = self.device.set(device.to_owned());
    }

    /// Returns the mounts inside that this process sees.
    pub(crate) fn inner(&self) -> Inner<'_> {
        let device = self.device.get();
        Inner { below: self, paths: device.map(|device| kernel::mounts_in(device)).unwrap_or_default() }
    }
}

impl Inner<'_> {
    /// True if a name is that of a directory in which something is mounted, at any depth, or may be.
    pub(crate) fn are_behind(&self, dir: ObjectId, name: &[u8]) -> bool {
        self.paths.iter().any(|path| self.is_on_the_way(path, dir, name))
    }

    fn is_on_the_way(&self, path: &Path, dir: ObjectId, name: &[u8]) -> bool {
        let names: Vec<&[u8]> = path.components().filter_map(part).collect();
        (1..=names.len()).filter_map(|len| names.get(..len)?.split_last()).any(|(last, above)| {
            // a directory whose name is not known may be that one
            *last == name && self.is_at(dir, above).unwrap_or(true)
        })
    }

    /// Returns whether a directory has a path; `None` if its name is not known.
    fn is_at(&self, dir: ObjectId, path: &[&[u8]]) -> Option<bool> {
        let mut at = dir;
        for part in path.iter().rev() {
            if at == self.below.root {
                return Some(false);
            }
            let (above, name) = self.below.known.name(at)?;
            if *name != **part {
                return Some(false);
            }
            at = above;
        }
        Some(at == self.below.root)
    }
}

fn part(component: Component<'_>) -> Option<&[u8]> {
    match component {
        Component::Normal(name) => Some(name.as_bytes()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_way_to_a_mount() {
        let [root, d, e, f, unknown] = [34, 7, 8, 9, 10].map(ObjectId);
        let known: Arc<Known> = Arc::default();
        known.looked_up(d, 1, Some((root, b"d")), false);
        known.looked_up(e, 1, Some((d, b"e")), false);
        known.looked_up(f, 1, Some((root, b"f")), false);
        let below = Below::new(known, root);
        let inner = Inner { below: &below, paths: vec![PathBuf::from("/d/e/d")] };
        for (dir, name) in [(root, &b"d"[..]), (d, b"e"), (e, b"d"), (unknown, b"e")] {
            assert!(inner.are_behind(dir, name), "{dir:?} {name:?}");
        }
        for (dir, name) in [(root, &b"e"[..]), (d, b"d"), (e, b"e"), (f, b"d"), (e, b"x"), (unknown, b"x")] {
            assert!(!inner.are_behind(dir, name), "{dir:?} {name:?}");
        }
        assert!(!Inner { below: &below, paths: Vec::new() }.are_behind(root, b"d"));
    }
}
