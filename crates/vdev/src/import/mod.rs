//! Finding pools among devices: pure reading.
//!
//! Every device is asked for its labels. A label knows its leaf, the leaf's top-level vdev with all below, and how many top-level vdevs the
//! pool has; so the devices of one pool, taken together, give the whole tree. Devices are known by the guid in their label;
//! the paths in labels are only where they once were. Two pools of one name are kept apart by guid.
//!
//! Nothing fails as a whole because one device is garbage. OpenZFS: `zpool_find_import_impl`, `get_configs`.

mod assemble;
mod lock;
pub(crate) mod probe;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Guid, Txg};
use nvlist::NvList;
use ondisk::label::key;

use crate::Error;
use crate::config::VdevConfig;
use crate::device::Device;
use crate::errors::PoolErrors;
use crate::label::Label;

/// The state of a pool, as its newest label tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolState {
    /// In use by somebody, or not closed properly.
    Active,
    /// Closed.
    Exported,
    /// Destroyed; its data is still there.
    Destroyed,
}

impl PoolState {
    /// The state with this number in a label; `None` for spares (3), caches (4) and what is unknown.
    #[must_use]
    pub const fn from_number(n: u64) -> Option<PoolState> {
        match n {
            0 => Some(PoolState::Active),
            1 => Some(PoolState::Exported),
            2 => Some(PoolState::Destroyed),
            _ => None,
        }
    }

    /// The number in a label.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            PoolState::Active => 0,
            PoolState::Exported => 1,
            PoolState::Destroyed => 2,
        }
    }
}

/// A device with a label.
#[derive(Debug, Clone)]
pub struct FoundDevice {
    /// The leaf that it is.
    pub guid: Guid,
    /// The device, open for reading.
    pub device: Arc<dyn Device>,
    /// The place where it was found.
    pub path: PathBuf,
    /// The best of its labels.
    pub label: Label,
    /// How many of its four labels say the same leaf.
    pub labels: usize,
    /// The leaves of the same pool that its other labels name: a crash between them may have left labels of two states, in which the leaf has different guids.
    pub other_guids: Vec<Guid>,
    /// The best of those labels of the same leaf that say another pool: the writing of its labels was cut short when the pool got another identity.
    pub(crate) other: Option<Box<Label>>,
    /// Whether its labels are of two identities, of the leaf or of its pool: who opens the pool for writing is to write them anew.
    pub is_torn: bool,
}

impl FoundDevice {
    /// Whether one of its labels says that it is the leaf `guid` of its pool.
    #[must_use]
    pub fn may_be(&self, guid: Guid) -> bool {
        self.guid == guid || self.other_guids.contains(&guid)
    }
}

/// A pool, as far as its devices were found.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Its identity.
    pub guid: Guid,
    /// Its name; not unique.
    pub name: String,
    /// Its state.
    pub state: PoolState,
    /// The host that used it last.
    pub hostid: Option<u64>,
    /// The name of that host.
    pub hostname: Option<String>,
    /// Version of the format: 1 to 28, or 5000.
    pub version: u64,
    /// The txg of its newest label.
    pub txg: Txg,
    /// Its configuration, with the `vdev_tree` put together from all labels.
    pub config: NvList,
    /// The devices of the leaves in that tree.
    pub devices: Vec<FoundDevice>,
    /// Devices that say they belong to the pool, but whose leaves are not in the tree: detached or replaced, or unknown to the newest labels.
    pub stale: Vec<FoundDevice>,
    /// Leaves in the tree without a device.
    pub missing: Vec<Guid>,
    /// Top-level vdevs of which nothing was found. Removed (indirect) vdevs are among them: labels do not tell.
    pub missing_tops: Vec<u64>,
    /// Spare devices that the scan met. Their labels name no pool: the MOS of each pool lists its own by guid.
    pub spares: Vec<FoundDevice>,
    /// Cache devices that the scan met, as for spares.
    pub l2cache: Vec<FoundDevice>,
    /// The errors of its vdevs once it is opened.
    pub errors: Arc<PoolErrors>,
}

impl Candidate {
    /// The device of leaf `guid`: of the tree, stale, spare or cache; else one of which only some labels name this leaf.
    #[must_use]
    pub fn device(&self, guid: Guid) -> Option<&FoundDevice> {
        let all = || [&self.devices, &self.stale, &self.spares, &self.l2cache].into_iter().flatten();
        all().find(|found| found.guid == guid).or_else(|| all().find(|found| found.may_be(guid)))
    }

    /// The pool with those of these devices that are its own as well. Those that cannot be read are passed over.
    #[must_use]
    pub fn and(self, devices: &[PathBuf]) -> Candidate {
        let mut found = probe::all(devices);
        found.extend([&self.devices, &self.stale, &self.spares, &self.l2cache].into_iter().flatten().cloned());
        found.sort_by(|a, b| a.path.cmp(&b.path));
        assemble::pools(found).into_iter().find(|pool| pool.guid == self.guid).unwrap_or(self)
    }

    /// The vdev tree of [`Candidate::config`].
    ///
    /// # Errors
    /// As [`VdevConfig::parse`].
    pub fn vdev_config(&self) -> Result<VdevConfig, Error> {
        VdevConfig::parse(self.config.require_nvlist(key::VDEV_TREE)?)
    }
}

/// Looks for pools. Each path is a folder, whose files and block devices are taken (not those of folders in it), or one file or block
/// device. Pools come sorted by name and guid.
///
/// # Errors
/// [`Error::Open`] if a path cannot be looked at. What lies in a folder and cannot be read, or holds no pool, is passed over.
pub fn scan(paths: &[PathBuf]) -> Result<Vec<Candidate>, Error> {
    let mut files = Vec::new();
    for path in paths {
        files.extend(devices_of(path).map_err(|source| Error::Open { path: path.display().to_string(), source })?);
    }
    files.sort();
    files.dedup();
    Ok(assemble::pools(probe::all(&files)))
}

/// The devices among those that [`scan`] looks at which this process may not read: where nothing is found, why.
#[must_use]
pub fn denied(paths: &[PathBuf]) -> Vec<PathBuf> {
    let is_denied = |e: &std::io::Error| e.kind() == std::io::ErrorKind::PermissionDenied;
    let mut found = Vec::new();
    for path in paths {
        match devices_of(path) {
            Ok(devices) => {
                let refused = |path: &PathBuf| std::fs::File::open(path).is_err_and(|e| is_denied(&e));
                found.extend(devices.into_iter().filter(is_device).filter(refused));
            }
            Err(e) if is_denied(&e) => found.push(path.clone()),
            Err(_) => {}
        }
    }
    found.sort();
    found
}

/// Whether it is what a pool can be on: to open a pipe would wait for who writes it.
fn is_device(path: &PathBuf) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).map_or_else(
        |e| e.kind() == std::io::ErrorKind::PermissionDenied,
        |meta| meta.is_file() || meta.file_type().is_block_device(),
    )
}

/// Looks for pools among devices that are open already.
#[must_use]
pub fn scan_devices(devices: Vec<(PathBuf, Arc<dyn Device>)>) -> Vec<Candidate> {
    let found = devices.into_iter().filter_map(|(path, device)| probe::device(path, device));
    assemble::pools(found.collect())
}

/// A folder's files and block devices, or `path` itself.
fn devices_of(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    Ok(std::fs::read_dir(path)?.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

#[cfg(test)]
mod tests;
