//! Objects of a file system by their numbers: what they are, the paths that lead to them, and which there are (OpenZFS: `zfs_ioc_obj_to_stats`,
//! `zfs_obj_to_path`, `zfs_ioc_next_obj`).
//!
//! Two snapshots are compared by asking for every object that may differ on both sides. So a [`ReadOnlyControl`] keeps the file systems that it was asked about
//! last, each with its queue of deleted files and the names in directories that paths went through.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use base::{Errno, ObjectId};
use nvlist::{NvList, Value as Nv};
use pool::{Dataset, Kind};
use zpl::{FileFlags, FileSystem};

use crate::decode::require_u64;
use crate::{Error, Failed, ReadOnlyControl};

/// Objects that one request names, and that one answer lists.
const OBJECTS_MAX: usize = 1 << 12;
/// Bytes of paths from which on an answer names no further objects; the caller asks for the rest again.
const PATHS_BYTES: usize = 4 << 20;
/// File systems that are kept: the two that are compared.
const KEPT_MAX: usize = 2;
/// Names of directories that are kept of each, but those of one directory in any case.
const NAMES_MAX: usize = 1 << 20;
/// Directories above a file that a path is made of.
const DEPTH_MAX: usize = 1 << 12;

/// A file system that was asked about. Requests about it take turns.
type Shared = Arc<Mutex<Paths>>;

/// The file systems that were asked about last, by the object numbers of their datasets.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Vec<(ObjectId, Shared)>>>);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}

impl Kept {
    fn of(&self, dataset: &Dataset) -> Result<Shared, Failed> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, paths)) = kept.iter().find(|(id, _)| *id == dataset.id()) {
            return Ok(paths.clone());
        }
        let paths = Arc::new(Mutex::new(Paths::open(dataset)?));
        if kept.len() == KEPT_MAX {
            kept.remove(0);
        }
        kept.push((dataset.id(), paths.clone()));
        Ok(paths)
    }
}

impl ReadOnlyControl {
    pub(crate) fn next_obj(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let mut at = ObjectId(require_u64(input, "obj")?);
        let objset = self.view.dataset(name)?.objset()?;
        let next = |at: &mut ObjectId| -> Result<Option<ObjectId>, Failed> {
            let found = objset.next_object(*at).map_err(pool::Error::from)?;
            *at = found.unwrap_or(*at);
            Ok(found)
        };
        let mut out = NvList::new();
        let Some(last) = input.get_u64("last") else {
            let found = next(&mut at)?.ok_or_else(|| Failed { errno: Errno::ESRCH, ..Error::NoObject.into() })?;
            out.insert("obj", found.0);
            return Ok(out);
        };
        let mut found = Vec::new();
        while found.len() < OBJECTS_MAX
            && let Some(object) = next(&mut at)?.filter(|object| object.0 <= last)
        {
            found.push(object.0);
        }
        out.insert("objs", Nv::Uint64Array(found));
        Ok(out)
    }

    pub(crate) fn obj_to_stats(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let several = match input.get("objs") {
            Some(Nv::Uint64Array(several)) => Some(several),
            _ => None,
        };
        if several.is_some_and(|several| several.len() > OBJECTS_MAX) {
            return Err(Error::Invalid(format!("more than {OBJECTS_MAX} objects are asked for")).into());
        }
        let dataset = self.view.dataset(name)?;
        if dataset.head_kind()? != Kind::Filesystem {
            return Err(Error::Invalid(format!("'{name}' is not a file system")).into());
        }
        let paths = self.kept.of(&dataset)?;
        let mut paths = paths.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(several) = several else {
            let (stats, errno) = paths.stats(ObjectId(require_u64(input, "obj")?))?;
            return match errno {
                None => Ok(stats),
                Some(errno) => Err(Failed { errno, out: Box::new(stats), ..Error::NoObject.into() }),
            };
        };
        let one = |object: &u64| match paths.stats(ObjectId(*object)) {
            Ok((mut stats, errno)) => {
                if let Some(errno) = errno {
                    stats.insert("errno", errno);
                }
                stats
            }
            Err(e) => {
                let failed = Failed::from(e);
                let mut stats = NvList::new();
                stats.insert("errno", failed.errno);
                stats.insert("error", failed.error.to_string());
                stats
            }
        };
        let (mut objects, mut bytes) = (Vec::new(), 0);
        for stats in several.iter().map(one) {
            bytes += stats.get("path").map_or(0, |path| if let Nv::String(path) = path { path.len() } else { 0 });
            objects.push(stats);
            if bytes >= PATHS_BYTES {
                break;
            }
        }
        let mut out = NvList::new();
        out.insert("objects", objects);
        if let Some(shares) = paths.fs.shares() {
            out.insert("shares", shares.0);
        }
        Ok(out)
    }
}

/// A file system in which objects are looked up by their numbers.
struct Paths {
    fs: FileSystem,
    deleted: HashSet<ObjectId>,
    /// The names of the objects in each directory.
    names: HashMap<ObjectId, HashMap<ObjectId, Vec<u8>>>,
    /// The number of these names.
    count: usize,
}

impl Paths {
    fn open(dataset: &Dataset) -> Result<Paths, zpl::Error> {
        let fs = FileSystem::open(dataset)?;
        let deleted = fs.delete_queue()?.into_iter().collect();
        Ok(Paths { fs, deleted, names: HashMap::new(), count: 0 })
    }

    /// What is known of an object. Without a path it has an errno: ENOENT if it is no file, or no name leads to it, ESTALE if it waits to be
    /// deleted.
    fn stats(&mut self, object: ObjectId) -> Result<(NvList, Option<Errno>), zpl::Error> {
        let mut out = NvList::new();
        let node = match self.fs.node(object) {
            Ok(node) => node,
            Err(zpl::Error::NotA { .. }) => return Ok((out, Some(Errno::ENOENT))),
            Err(e) if is_missing(&e) => return Ok((out, Some(Errno::ENOENT))),
            Err(e) => return Err(e),
        };
        let attrs = node.attrs();
        out.insert("zs_gen", attrs.generation);
        out.insert("zs_mode", u64::from(attrs.mode));
        out.insert("zs_links", attrs.links);
        out.insert("zs_ctime", Nv::Uint64Array(vec![attrs.ctime.sec.cast_unsigned(), attrs.ctime.nsec.into()]));
        if self.deleted.contains(&object) {
            return Ok((out, Some(Errno::ESTALE)));
        }
        match self.path(object)? {
            Some(path) => out.insert("path", Nv::String(path.into())),
            None => return Ok((out, Some(Errno::ENOENT))),
        }
        Ok((out, None))
    }

    /// The path of an object: the names of all directories above it.
    fn path(&mut self, object: ObjectId) -> Result<Option<Vec<u8>>, zpl::Error> {
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        let mut at = object;
        while at != self.fs.root() && pieces.len() < DEPTH_MAX {
            let node = match self.fs.node(at) {
                Ok(node) => node,
                Err(e) if is_missing(&e) => return Ok(None),
                Err(e) => return Err(e),
            };
            let attrs = node.attrs();
            if attrs.parent == at {
                break;
            }
            if attrs.flags.has(FileFlags::XATTR) && attrs.kind() == zpl::Kind::Directory {
                pieces.push(b"<xattrdir>".to_vec());
            } else {
                match self.names_in(attrs.parent)?.get(&at) {
                    Some(name) => pieces.push(name.clone()),
                    None => return Ok(None),
                }
            }
            at = attrs.parent;
        }
        let mut path = Vec::new();
        for piece in pieces.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(piece);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(Some(path))
    }

    fn names_in(&mut self, dir: ObjectId) -> Result<&HashMap<ObjectId, Vec<u8>>, zpl::Error> {
        if !self.names.contains_key(&dir) {
            let names = self.read_names(dir)?;
            if self.count.saturating_add(names.len()) > NAMES_MAX {
                self.names.clear();
                self.count = 0;
            }
            self.count += names.len();
            self.names.insert(dir, names);
        }
        Ok(self.names.entry(dir).or_default())
    }

    fn read_names(&self, dir: ObjectId) -> Result<HashMap<ObjectId, Vec<u8>>, zpl::Error> {
        let mut names: HashMap<ObjectId, Vec<u8>> = HashMap::new();
        match self.fs.read_dir(dir) {
            Ok(entries) => {
                for entry in entries {
                    let entry = entry?;
                    names.entry(entry.object).or_insert(entry.name);
                }
            }
            Err(zpl::Error::NotDirectory { .. }) => {}
            Err(e) if is_missing(&e) => {}
            Err(e) => return Err(e),
        }
        Ok(names)
    }
}

fn is_missing(e: &zpl::Error) -> bool {
    match e {
        zpl::Error::Dmu(e) => e.is_not_found(),
        zpl::Error::NotFound { .. } | zpl::Error::NoPath { .. } => true,
        _ => false,
    }
}
