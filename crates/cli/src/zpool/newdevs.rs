//! The devices of new vdevs: found, checked, opened (OpenZFS: `make_root_vdev`).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Guid;
use nvlist::NvList;
use ondisk::label::key;
use site::Query;
use vdev::create::{Bias, DraidSpec, Group, InUse, TopSpec, VdevSpec, complaint, in_use_path, replication};
use vdev::{Access, Device, DeviceKind, device};

use super::vdevs::{Class, brief_stats};
use crate::console::{self, here};
use crate::error::{Failure, cause, failed};
use crate::pools;

/// The folder of short disk names.
const DISK_ROOT: &str = "/dev";

/// Vdevs of a command line, with absolute paths.
pub(super) struct NewVdevs {
    pub(super) spec: VdevSpec,
    /// Files to be created, with their size.
    missing: HashMap<String, u64>,
}

/// A spare on the command line that imported pools already have.
pub(super) struct SharedSpare {
    pub(super) path: String,
    pub(super) guid: Guid,
    pub(super) pools: Vec<String>,
}

/// Files that were created for new vdevs, and that are removed again unless they are kept.
pub(super) struct Made(Vec<PathBuf>);

/// A file that is yet to be created.
#[derive(Debug)]
struct Planned {
    path: String,
    size: u64,
}

impl Device for Planned {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, _: u64, buf: &mut [u8]) -> std::io::Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::FILE
    }

    fn name(&self) -> String {
        self.path.clone()
    }
}

impl NewVdevs {
    /// Finds the devices that the words of a command line name. With `size`, missing files are to be created.
    pub(super) fn find(words: &[String], size: Option<u64>) -> Result<NewVdevs, Failure> {
        let mut spec = VdevSpec::parse(words).map_err(|e| failed(e.to_string()))?;
        let mut missing = HashMap::new();
        let tops = spec.tops.iter_mut().flat_map(|top| &mut top.paths);
        for path in tops.chain(&mut spec.spares).chain(&mut spec.l2cache) {
            *path = locate(path, size, &mut missing)?;
        }
        Ok(NewVdevs { spec, missing })
    }

    /// Refuses devices that are in use, and vdevs that do not match each other or those of `pool` (its `vdev_tree`);
    /// `force` overrides what can be overridden.
    pub(super) fn check(&self, pool: Option<&NvList>, force: bool) -> Result<(), Failure> {
        let mut lines = self.uses(force)?;
        if lines.is_empty() && !force {
            lines = replication(pool, &self.spec, &|path| self.look(path));
        }
        if lines.is_empty() && pool.is_none() {
            lines.extend(self.spec.require_normal().err().map(|e| e.to_string()));
        }
        if lines.is_empty() { Ok(()) } else { Err(failed(complaint(&lines, force))) }
    }

    /// Returns whether the first device is a spare of this pool.
    pub(super) fn is_spare_of(&self, pool: &str) -> Result<bool, Failure> {
        let Some((path, _)) = self.spec.paths().next() else { return Ok(false) };
        match in_use_path(Path::new(path)).map_err(|e| cannot_open(path, &e))? {
            Some(InUse::Spare { leaf }) => Ok(owners(leaf, key::SPARES).iter().any(|owner| owner == pool)),
            _ => Ok(false),
        }
    }

    /// Refuses devices that are in use.
    pub(super) fn check_in_use(&self, force: bool) -> Result<(), Failure> {
        let lines = self.uses(force)?;
        if lines.is_empty() { Ok(()) } else { Err(failed(complaint(&lines, force))) }
    }

    /// Why the devices must not be used.
    fn uses(&self, force: bool) -> Result<Vec<String>, Failure> {
        let imported: HashSet<Guid> = here().all()?.into_iter().map(|pool| pool.guid).collect();
        let mut lines = Vec::new();
        for (path, as_spare) in self.spec.paths().filter(|(path, _)| !self.missing.contains_key(*path)) {
            let found = in_use_path(Path::new(path)).map_err(|e| cannot_open(path, &e))?;
            lines.extend(found.and_then(|found| refusal(path, found, &imported, as_spare, force)));
        }
        Ok(lines)
    }

    /// A device opened for reading.
    fn look(&self, path: &str) -> Option<Arc<dyn Device>> {
        if let Some(size) = self.missing.get(path) {
            return Some(Arc::new(Planned { path: path.to_owned(), size: *size }));
        }
        device::open(Path::new(path), Access::Read).ok()
    }

    /// Returns whether two words mean the same device.
    pub(super) fn has_duplicates(&self) -> bool {
        let identity = |path: &str| match fs::metadata(path) {
            Ok(meta) if meta.file_type().is_block_device() => (u64::MAX, meta.rdev(), String::new()),
            Ok(meta) => (meta.dev(), meta.ino(), String::new()),
            Err(_) => (0, 0, path.to_owned()),
        };
        let mut seen = HashSet::new();
        self.spec.paths().any(|(path, _)| !seen.insert(identity(path)))
    }

    /// The spares that imported pools already have, with the guid under which these pools know them, and the pools.
    pub(super) fn shared_spares(&self) -> Vec<SharedSpare> {
        let there = self.spec.spares.iter().filter(|path| !self.missing.contains_key(*path));
        let shared = there.filter_map(|path| match in_use_path(Path::new(path)) {
            Ok(Some(InUse::Spare { leaf })) => {
                Some(SharedSpare { path: path.clone(), guid: leaf, pools: owners(leaf, key::SPARES) })
            }
            _ => None,
        });
        shared.filter(|spare| !spare.pools.is_empty()).collect()
    }

    /// Creates the missing files.
    pub(super) fn create_files(&self) -> Result<Made, vdev::Error> {
        let mut made = Made(Vec::new());
        for (path, size) in &self.missing {
            drop(device::open(Path::new(path), Access::Create(*size))?);
            made.0.push(PathBuf::from(path));
        }
        Ok(made)
    }

    /// The request for these vdevs.
    pub(super) fn request(&self, ashift: Option<u64>, shared: &[SharedSpare]) -> NvList {
        let shared = shared.iter().map(|spare| (spare.path.clone(), spare.guid)).collect();
        let mut input = NvList::new();
        input.insert("config", control::NewVdevs { spec: self.spec.clone(), ashift, shared }.to_list());
        input
    }

    /// The layout as `-n` shows it (OpenZFS: `print_vdev_tree` and its like).
    pub(super) fn show(&self, pool: &str) -> String {
        self.show_beside(pool, &|_| String::new())
    }

    /// The same, with the lines that each section already has.
    pub(super) fn show_beside(&self, pool: &str, there: &dyn Fn(Section) -> String) -> String {
        let mut text = String::new();
        for section in Section::ALL {
            let lines = there(section) + &self.lines_of(section);
            if !lines.is_empty() {
                text += &format!("\t{}\n{lines}", section.title(pool));
            }
        }
        text
    }

    fn lines_of(&self, section: Section) -> String {
        let aside = |paths: &[String]| paths.iter().map(|path| format!("\t  {}\n", shown(path))).collect();
        let bias = match section {
            Section::Cache => return aside(&self.spec.l2cache),
            Section::Spares => return aside(&self.spec.spares),
            Section::Tops(Class::Normal) => None,
            Section::Tops(Class::Dedup) => Some(Bias::Dedup),
            Section::Tops(Class::Special) => Some(Bias::Special),
            Section::Tops(Class::Logs) => Some(Bias::Log),
        };
        self.spec.tops.iter().filter(|top| top.bias == bias).map(show_top).collect()
    }
}

/// A part of a layout as it is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Tops(Class),
    Cache,
    Spares,
}

impl Section {
    const ALL: [Section; 6] = [
        Section::Tops(Class::Normal),
        Section::Tops(Class::Dedup),
        Section::Tops(Class::Special),
        Section::Tops(Class::Logs),
        Section::Cache,
        Section::Spares,
    ];

    fn title(self, pool: &str) -> &str {
        match self {
            Section::Tops(Class::Normal) => pool,
            Section::Tops(class) => class.title(),
            Section::Cache => "cache",
            Section::Spares => "spares",
        }
    }
}

fn show_top(top: &TopSpec) -> String {
    let name = match top.group {
        Group::Single => return top.paths.iter().map(|path| format!("\t  {}\n", shown(path))).collect(),
        Group::Mirror => "mirror".to_owned(),
        Group::Raidz(parity) => format!("raidz{parity}"),
        Group::Draid(draid) => draid_name(draid, top.paths.len() as u64),
    };
    let children = top.paths.iter().map(|path| format!("\t    {}\n", shown(path)));
    format!("\t  {name}\n") + &children.collect::<String>()
}

fn draid_name(draid: DraidSpec, width: u64) -> String {
    let DraidSpec { nparity, ndata, nspares, nchildren, .. } = draid;
    match nchildren < width {
        true => format!("draid{nparity}:{ndata}d:{nchildren}c:{width}w:{nspares}s"),
        false => format!("draid{nparity}:{ndata}d:{nchildren}c:{nspares}s"),
    }
}

/// A device by the name that commands show.
fn shown(path: &str) -> &str {
    let is_block = fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device());
    if is_block { super::vdevs::strip_dev(path) } else { path }
}

impl Made {
    /// Keeps the files.
    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            // the pool was not created, so nobody needs the file; if it cannot be removed, it stays
            let _gone = fs::remove_file(path);
        }
    }
}

/// The absolute path of a device (OpenZFS: `make_leaf_vdev`). A relative word is a disk's short name, else a file.
fn locate(word: &str, size: Option<u64>, missing: &mut HashMap<String, u64>) -> Result<String, Failure> {
    let in_dev = Path::new(DISK_ROOT).join(word);
    let path = if word.starts_with('/') {
        PathBuf::from(word)
    } else if in_dev.exists() {
        in_dev
    } else {
        console::absolute(word).map_err(|e| failed(format!("cannot open '{word}': {}", cause(&e))))?
    };
    let text = path.to_str().ok_or_else(|| failed(format!("cannot use '{word}': its path is not UTF-8")))?.to_owned();
    match fs::metadata(&path) {
        Ok(meta) if meta.file_type().is_file() || meta.file_type().is_block_device() => {}
        Ok(_) => return Err(failed(format!("cannot use '{text}': must be a block device or regular file"))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => match size {
            Some(size) => {
                missing.insert(text.clone(), size);
            }
            None if word.starts_with('/') => return Err(failed(format!("cannot resolve path '{word}'"))),
            None => {
                return Err(failed(format!(
                    "cannot open '{word}': no such device in {DISK_ROOT}\n\
                     must be a full path or shorthand device name"
                )));
            }
        },
        Err(e) => return Err(failed(format!("cannot open '{text}': {}", cause(&e)))),
    }
    Ok(text)
}

fn cannot_open(path: &str, e: &vdev::Error) -> Failure {
    match e {
        vdev::Error::Open { source, .. } => failed(format!("cannot open '{path}': {}", cause(source))),
        other => failed(other.to_string()),
    }
}

/// Why a device must not be used; `None` if it may be. OpenZFS checks files for pools only; here the other contents of
/// an image are protected too.
fn refusal(path: &str, found: InUse, imported: &HashSet<Guid>, as_spare: bool, force: bool) -> Option<String> {
    let found = match found {
        InUse::Pool { name, guid, leaf, state } => {
            let state = if imported.contains(&guid) { "active" } else { state };
            InUse::Pool { name, guid, leaf, state }
        }
        InUse::Spare { .. } if as_spare => return None,
        InUse::Spare { leaf } => {
            let pools = owners(leaf, key::SPARES);
            return pools.first().map(|pool| format!("{path} is reserved as a hot spare for pool {pool}"));
        }
        InUse::L2cache { leaf } => {
            return owners(leaf, key::L2CACHE).first().map(|pool| format!("{path} is part of active pool '{pool}'"));
        }
        other => other,
    };
    found.refusal(path, true, as_spare, force)
}

/// The imported pools that have this spare or cache device.
pub(super) fn owners(leaf: Guid, list: &str) -> Vec<String> {
    let Ok((all, _)) = pools::open_all() else { return Vec::new() };
    let has = |query: &&Query| {
        let tree = brief_stats(query).ok().and_then(|config| config.get_nvlist(key::VDEV_TREE).cloned());
        let devices = tree.as_ref().and_then(|tree| tree.get_nvlist_array(list)).unwrap_or_default();
        devices.iter().any(|device| device.get_u64(key::GUID) == Some(leaf.0))
    };
    all.iter().filter(has).map(|query| query.name().to_owned()).collect()
}
