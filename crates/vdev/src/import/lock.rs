//! Taking the devices of a pool for writing.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Candidate, scan_devices};
use crate::Error;
use crate::config::VdevConfig;
use crate::device::{self, Access, Device};
use crate::stale::check_writable;
use crate::tree::VdevTree;

/// A device with the path that it was opened by.
type Opened = (PathBuf, Arc<dyn Device>);

impl Candidate {
    /// The pool again with the devices of its vdevs open for writing, and locked: all of them or none. A device that can only be read is opened for
    /// that, as long as the pool can go on without writing it: it misses what is written. Spares and caches, which several pools may share, stay as they are.
    ///
    /// # Errors
    /// [`Error::Busy`] if another has one open for writing; [`Error::Open`] of a device that can only be read, if it is needed; or if the pool is not
    /// there any more: whoever held the lock before may have destroyed it.
    pub fn lock(&self) -> Result<Candidate, Error> {
        let mut paths: Vec<&Path> = self.devices.iter().map(|found| found.path.as_path()).collect();
        paths.sort();
        let mut seen = HashSet::new();
        paths.retain(|path| seen.insert(*path));
        let (mut devices, mut refused) = (Vec::with_capacity(paths.len()), None);
        for path in &paths {
            match open(path) {
                Ok(device) => devices.push(device),
                Err(busy @ Error::Busy { .. }) => return Err(busy),
                Err(why) => {
                    refused.get_or_insert(why);
                    devices.extend(read_only(path));
                }
            }
        }
        // what the newest labels do not know any more the pool itself may, if they were not followed by its uberblock
        devices.extend(
            self.stale
                .iter()
                .filter(|found| !seen.contains(found.path.as_path()))
                .filter_map(|found| open(&found.path).ok()),
        );
        let aside = self.spares.iter().chain(&self.l2cache);
        devices.extend(aside.map(|device| (device.path.clone(), device.device.clone())));
        let again = scan_devices(devices).into_iter().find(|candidate| candidate.guid == self.guid);
        match (again, refused) {
            (Some(again), None) => Ok(again),
            (Some(again), Some(_)) if again.is_writable() => Ok(again),
            (_, Some(why)) => Err(why),
            (None, None) => Err(Error::Open {
                path: paths.first().map(|path| path.display().to_string()).unwrap_or_default(),
                source: std::io::ErrorKind::NotFound.into(),
            }),
        }
    }

    /// Whether enough of its devices are open for writing, as far as labels know them.
    fn is_writable(&self) -> bool {
        let find = |guid| self.devices.iter().find(|found| found.guid == guid).map(|found| found.device.clone());
        let tree = self.vdev_config().and_then(|config: VdevConfig| VdevTree::open(&config, &find));
        tree.is_ok_and(|tree| check_writable(&tree).is_ok())
    }
}

fn open(path: &Path) -> Result<Opened, Error> {
    Ok((path.to_owned(), device::open(path, Access::Write)?))
}

fn read_only(path: &Path) -> Option<Opened> {
    Some((path.to_owned(), device::open(path, Access::Read).ok()?))
}
