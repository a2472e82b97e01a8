//! Objects of a file system by their numbers: what they are, the paths that lead to them, and which there are (OpenZFS: `zfs_ioc_obj_to_stats`,
//! `zfs_obj_to_path`, `zfs_ioc_next_obj`).
//!
//! Two snapshots are compared by asking for every object that may differ on both sides. So a caller's requests share the file systems that were asked about
//! last ([`Kept`]), each with its queue of deleted files and the names in directories that paths went through.

use std::collections::{HashMap, HashSet};
use std::sync::PoisonError;

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
/// Names of directories that are kept of each, but those of one directory in any case.
const NAMES_MAX: usize = 1 << 20;
/// Directories above a file that a path is made of.
const DEPTH_MAX: usize = 1 << 12;

/// Numbers of objects end here (OpenZFS: `DN_MAX_OBJECT`), but for those of the objects that count what users have.
const OBJECT_END: u64 = 1 << 48;

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
        let paths = self.kept.paths(&dataset)?;
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

/// The reason why an object is not looked up.
enum Unknown {
    /// It has no stats or no path, as OpenZFS's number says.
    Errno(Errno),
    /// The file system cannot be read.
    Failed(zpl::Error),
}

impl From<zpl::Error> for Unknown {
    fn from(e: zpl::Error) -> Unknown {
        match e {
            // an object that is no file, and a parent that is no directory
            zpl::Error::NotA { .. } => Unknown::Errno(Errno::ENOTSUP),
            zpl::Error::NotDirectory { .. } => Unknown::Errno(Errno::EINVAL),
            e if is_missing(&e) => Unknown::Errno(Errno::ENOENT),
            e => Unknown::Failed(e),
        }
    }
}

/// The path of an object.
///
/// # Errors
/// As OpenZFS's `zfs_obj_to_path` has them: ENOENT if there is none, ENOTSUP if it is no file, ESTALE if it waits to be deleted.
pub(crate) fn path_of(fs: &FileSystem, object: ObjectId) -> Result<Vec<u8>, Failed> {
    let known = |errno| Failed { errno, ..Error::NoObject.into() };
    if !is_number(object) {
        return Err(known(Errno::EINVAL));
    }
    fs.path_of(object).map_err(|e| match (Unknown::from(e), fs.delete_queue()) {
        (Unknown::Errno(Errno::ENOENT), Ok(deleted)) if deleted.contains(&object) => known(Errno::ESTALE),
        (Unknown::Errno(errno), _) => known(errno),
        (Unknown::Failed(e), _) => e.into(),
    })
}

/// Whether an object can have this number.
fn is_number(object: ObjectId) -> bool {
    let is_special = dmu::Special::ALL.into_iter().any(|special| special.id() == object);
    object != ObjectId(0) && (object.0 < OBJECT_END || is_special)
}

/// A file system in which objects are looked up by their numbers.
pub(crate) struct Paths {
    fs: FileSystem,
    deleted: HashSet<ObjectId>,
    /// The names of the objects in each directory.
    names: HashMap<ObjectId, HashMap<ObjectId, Vec<u8>>>,
    /// The number of these names.
    count: usize,
}

impl Paths {
    pub(crate) fn open(dataset: &Dataset) -> Result<Paths, zpl::Error> {
        let fs = FileSystem::open(dataset)?;
        let deleted = fs.delete_queue()?.into_iter().collect();
        Ok(Paths { fs, deleted, names: HashMap::new(), count: 0 })
    }

    /// What is known of an object. Without a path it has an errno, as OpenZFS's `zfs_obj_to_stats` has it: EINVAL if no object can have its number, ENOTSUP
    /// if it is no file, ENOENT if there is none or no name leads to it, ESTALE if it waits to be deleted.
    fn stats(&mut self, object: ObjectId) -> Result<(NvList, Option<Errno>), zpl::Error> {
        let mut out = NvList::new();
        if !is_number(object) {
            return Ok((out, Some(Errno::EINVAL)));
        }
        let node = match self.fs.node(object).map_err(Unknown::from) {
            Ok(node) => node,
            Err(Unknown::Errno(errno)) => return Ok((out, Some(errno))),
            Err(Unknown::Failed(e)) => return Err(e),
        };
        let attrs = node.attrs();
        out.insert("zs_gen", attrs.generation);
        out.insert("zs_mode", u64::from(attrs.mode));
        out.insert("zs_links", attrs.links);
        out.insert("zs_ctime", Nv::Uint64Array(vec![attrs.ctime.sec.cast_unsigned(), attrs.ctime.nsec.into()]));
        if self.deleted.contains(&object) {
            return Ok((out, Some(Errno::ESTALE)));
        }
        match self.path(object) {
            Ok(path) => out.insert("path", Nv::String(path.into())),
            Err(Unknown::Errno(errno)) => return Ok((out, Some(errno))),
            Err(Unknown::Failed(e)) => return Err(e),
        }
        Ok((out, None))
    }

    /// The path of an object: the names of all directories above it.
    fn path(&mut self, object: ObjectId) -> Result<Vec<u8>, Unknown> {
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        let mut at = object;
        while at != self.fs.root() && pieces.len() < DEPTH_MAX {
            let node = self.fs.node(at)?;
            let attrs = node.attrs();
            if attrs.parent == at {
                break;
            }
            if attrs.flags.has(FileFlags::XATTR) && attrs.kind() == zpl::Kind::Directory {
                pieces.push(b"<xattrdir>".to_vec());
            } else {
                let name = self.names_in(attrs.parent)?.get(&at).cloned();
                pieces.push(name.ok_or(Unknown::Errno(Errno::ENOENT))?);
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
        Ok(path)
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
        for entry in self.fs.read_dir(dir)? {
            let entry = entry?;
            names.entry(entry.object).or_insert(entry.name);
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
