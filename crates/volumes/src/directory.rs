//! The volumes of a machine as files of a directory: pools and file systems are directories, volumes and snapshots files in them.

use std::sync::Arc;

use base::Errno;
use control::Failed;
use fuse::{Device, Devices, Found, Identity, Kind};
use pool::Dataset;

use crate::Volumes;
use crate::catalogue::devices_of;

/// The directory of all pools.
const ROOT: Found = Found { identity: Identity([0; 3]), kind: Kind::Directory };

fn identity(dataset: &Dataset) -> Identity {
    Identity([dataset.pool().guid().0, dataset.id().0, dataset.guid().0])
}

fn device(dataset: &Dataset) -> Result<Option<Found>, pool::Error> {
    let Some((size, block_size)) = dataset.volume_size()? else { return Ok(None) };
    let read_only = dataset.is_snapshot()
        || !dataset.pool().is_written()
        || dataset.prop("readonly")?.is_some_and(|prop| prop.value.number() == Some(1));
    Ok(Some(Found { identity: identity(dataset), kind: Kind::Device { size, block_size, read_only } }))
}

fn directory(dataset: &Dataset) -> Found {
    Found { identity: identity(dataset), kind: Kind::Directory }
}

impl Volumes {
    fn found(&self, path: &str) -> Result<Option<Found>, Failed> {
        if path.is_empty() {
            return Ok(Some(ROOT));
        }
        let Some(dataset) = self.dataset(path)? else { return Ok(None) };
        if dataset.head_kind()? == pool::Kind::Filesystem {
            return Ok((!dataset.is_snapshot()).then(|| directory(&dataset)));
        }
        match self.look_up(path)? {
            Some(volume) => Ok(device(&volume)?),
            None => Ok(None),
        }
    }

    fn in_directory(&self, path: &str) -> Result<Vec<(String, Found)>, Failed> {
        let mut found = Vec::new();
        if path.is_empty() {
            for pool in self.pools() {
                // one that cannot be read is left out
                if let Ok(Some(directory)) = self.found(&pool) {
                    found.push((pool, directory));
                }
            }
            return Ok(found);
        }
        let dir = self.view(path.split('/').next().unwrap_or_default())?.dir(path)?;
        for child in dir.children()?.iter().filter(|child| !child.is_special()) {
            let Some(head) = child.head()? else { continue };
            if head.head_kind()? == pool::Kind::Filesystem {
                found.push((head.short_name().to_owned(), directory(&head)));
            }
            for volume in devices_of(&head)? {
                let name = volume.name().rsplit('/').next().unwrap_or_default().to_owned();
                found.extend(device(&volume)?.map(|device| (name, device)));
            }
        }
        Ok(found)
    }
}

impl Devices for Volumes {
    fn find(&self, path: &str) -> Result<Found, Errno> {
        self.found(path).map_err(|failed| failed.errno)?.ok_or(Errno::ENOENT)
    }

    fn list(&self, path: &str) -> Result<Vec<(String, Found)>, Errno> {
        self.in_directory(path).map_err(|failed| failed.errno)
    }

    fn open(&self, path: &str) -> Result<Arc<dyn Device>, Errno> {
        match Volumes::open(self, path) {
            Ok(Some(device)) => Ok(Arc::new(device)),
            Ok(None) => Err(Errno::ENOENT),
            Err(failed) => Err(failed.errno),
        }
    }
}
