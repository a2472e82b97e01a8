//! The volumes of a machine as files of a directory: pools and file systems are directories, volumes and snapshots files in them.

use std::sync::Arc;

use base::Errno;
use control::Failed;
use fuse::{Device, Devices, Entry, Found, Identity, Kind};
use pool::{Dataset, Dir};

use crate::Volumes;
use crate::catalogue::{devices_of, is_there, seen};

/// The directory of all pools.
const ROOT: Found = Found { identity: Identity([0; 3]), kind: Kind::Directory };

/// Which dataset it is, whatever its name is by now.
pub(crate) fn identity(dataset: &Dataset) -> Identity {
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

/// What a directory has of one below it: a directory for a file system; a volume and its snapshots.
fn entries_of(child: &Dir) -> Result<Vec<(String, Entry)>, pool::Error> {
    let Some(head) = child.head()? else { return Ok(Vec::new()) };
    if head.head_kind()? == pool::Kind::Filesystem {
        return Ok(vec![(head.short_name().to_owned(), Entry::Directory)]);
    }
    let name = |volume: &Dataset| volume.name().rsplit('/').next().unwrap_or_default().to_owned();
    Ok(devices_of(&head)?.iter().map(|volume| (name(volume), Entry::Device)).collect())
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
        if is_there(&dataset)? { Ok(device(&dataset)?) } else { Ok(None) }
    }

    fn in_directory(&self, path: &str) -> Result<Vec<(String, Entry)>, Failed> {
        if path.is_empty() {
            // nothing is asked of them, which may wait
            return Ok(self.pools().into_iter().map(|pool| (pool, Entry::Directory)).collect());
        }
        let mut found = Vec::new();
        let dir = self.view(path.split('/').next().unwrap_or_default())?.dir(path)?;
        for child in dir.children()?.iter().filter(|child| !child.is_special()) {
            // one that cannot be read hides no other
            found.extend(seen(child.name(), entries_of(child)).into_iter().flatten());
        }
        Ok(found)
    }
}

impl Devices for Volumes {
    fn find(&self, path: &str) -> Result<Found, Errno> {
        self.found(path).map_err(|failed| failed.errno)?.ok_or(Errno::ENOENT)
    }

    fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno> {
        self.in_directory(path).map_err(|failed| failed.errno)
    }

    fn open(&self, path: &str, expected: Identity) -> Result<Arc<dyn Device>, Errno> {
        match Volumes::open(self, path) {
            Ok(Some((opened, device))) if opened == expected => Ok(Arc::new(device)),
            // it has another name by now, and what was opened is left again
            Ok(Some(_)) => Err(Errno::ESTALE),
            Ok(None) => Err(Errno::ENOENT),
            Err(failed) => Err(failed.errno),
        }
    }
}
