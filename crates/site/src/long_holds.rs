//! The datasets that a command reads for a long time, announced to commands that write: a send takes minutes or days,
//! and reads the pool from its devices while other commands change it. In OpenZFS the kernel knows
//! (`dsl_dataset_long_hold`; for packages libzfs puts tags on the snapshots, `.send-PID-N`).
//!
//! Beside the records of imported pools, the folder `holds` has a file for each such command: the object numbers of
//! the datasets that it reads, one per line. The file is locked as long as the command lives; a file that nobody has
//! locked is stale, and is removed. A second file, one per pool, is locked by a command that is about to hold
//! something, from before it looks the datasets up until its file exists; and by a command that destroys, from before
//! it looks at the holds until the change is on disk. So nothing is destroyed that a reader has found, and no reader
//! finds what is being destroyed.
//!
//! A head can be changed without that lock. A command that writes a pool has a file like that of a reader: the heads
//! that it has opened since it opened the pool. Both sides announce first and check then: a command that opens a head
//! records it and then checks who reads it; a command that sends a head records it, then checks who has it open, and
//! looks it up again, for it may have changed since it was found. So at least one of two that meet finds the other,
//! and gives way.
//!
//! A command that cannot use the folder, or that waited for the lock as long as the tunable `busy_wait` says, sends all the same: a snapshot that is destroyed meanwhile ends the stream
//! with an error.

use std::any::Any;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::{Guid, ObjectId};
use pool::HeldElsewhere;

use crate::state::{self, Folder, Lock, Patience, is_locked};
use crate::{Front, records};

/// Files that this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// The folder of these files.
const HOLDS: &str = "holds";
/// Suffix of files that list the datasets that are being read.
const HELD: &str = ".held";
/// Suffix of files that list the heads that are open for changes.
const OPEN: &str = ".open";

/// A command that is about to hold datasets of a pool: nothing of the pool is destroyed until [`Looking::hold`].
#[derive(Debug)]
pub struct Looking {
    pool: Guid,
    _lock: File,
}

/// Datasets that are held; until dropped.
#[derive(Debug)]
pub struct Held {
    ids: BTreeSet<ObjectId>,
    _told: Told,
}

impl Looking {
    /// Takes the lock of the pool that `dataset` is in. `None` if the pool is not writable, or holds cannot be
    /// recorded. The front is told of a command that is waited for.
    #[must_use]
    pub fn at(dataset: &str, front: &dyn Front) -> Option<Looking> {
        let name = dataset.split(['/', '@', '#']).next().unwrap_or("");
        let record = records::find(name).ok()??;
        if record.readonly {
            return None;
        }
        let pool = record.guid;
        Some(Looking { pool, _lock: lock(pool, front).ok()? })
    }

    /// Holds the datasets with these object numbers.
    #[must_use]
    pub fn hold(self, datasets: impl IntoIterator<Item = ObjectId>) -> Option<Held> {
        let mut told = Told::new(self.pool, HELD).ok()?;
        let ids: BTreeSet<ObjectId> = datasets.into_iter().collect();
        ids.iter().try_for_each(|dataset| told.add(*dataset)).ok()?;
        Some(Held { ids, _told: told })
    }
}

impl Held {
    /// Returns whether this is one of them.
    #[must_use]
    pub fn contains(&self, dataset: ObjectId) -> bool {
        self.ids.contains(&dataset)
    }
}

/// Returns whether another command has opened a head for changes. If none has, none will while it is held; but the head may have changed since it was
/// looked up.
#[must_use]
pub(crate) fn is_open_elsewhere(pool: Guid, head: ObjectId) -> bool {
    is_told(pool, OPEN, head)
}

/// The holds of other commands, and the file that announces to them the heads that this command has open in a pool
/// that it writes.
pub struct OtherCommands {
    front: Arc<dyn Front>,
    opened: Mutex<Option<Opened>>,
}

impl OtherCommands {
    /// The holds of other commands in the pool that this one writes; the front is told of a command that is waited for.
    #[must_use]
    pub fn new(front: Arc<dyn Front>) -> OtherCommands {
        OtherCommands { front, opened: Mutex::default() }
    }
}

impl std::fmt::Debug for OtherCommands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtherCommands").field("opened", &self.opened).finish_non_exhaustive()
    }
}

/// The heads that were announced.
#[derive(Debug)]
struct Opened {
    told: Told,
    ids: BTreeSet<ObjectId>,
}

impl HeldElsewhere for OtherCommands {
    fn is_held(&self, pool: Guid, id: ObjectId) -> bool {
        is_told(pool, HELD, id)
    }

    fn freeze(&self, pool: Guid) -> Box<dyn Any> {
        let Ok(lock) = lock(pool, &*self.front) else { return Box::new(()) };
        sweep(pool, HELD);
        Box::new(lock)
    }

    fn opened(&self, pool: Guid, id: ObjectId) {
        let mut this = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if this.is_none() {
            // one process writes a pool at a time: files that others left are stale
            sweep(pool, OPEN);
            *this = Told::new(pool, OPEN).ok().map(|told| Opened { told, ids: BTreeSet::new() });
        }
        if let Some(opened) = this.as_mut().filter(|opened| !opened.ids.contains(&id))
            && opened.told.add(id).is_ok()
        {
            opened.ids.insert(id);
        }
    }
}

/// A file that lists datasets, until it is dropped.
#[derive(Debug)]
struct Told {
    folder: Folder,
    name: String,
    file: File,
}

impl Told {
    fn new(pool: Guid, kind: &str) -> io::Result<Told> {
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let (folder, name) = (folder()?, format!("{}.{}.{nth}{kind}", pool.0, std::process::id()));
        let file = folder.locked_file(&name, |_| Ok(()))?;
        Ok(Told { folder, name, file })
    }

    fn add(&mut self, id: ObjectId) -> io::Result<()> {
        self.file.write_all(format!("{id}\n").as_bytes())
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // a command that still finds the file sees that nobody has it locked
        drop(self.folder.remove(&self.name));
    }
}

/// Returns whether a live command has listed the dataset.
fn is_told(pool: Guid, kind: &str, id: ObjectId) -> bool {
    let line = id.to_string();
    let Some((folder, names)) = files(pool, kind) else { return false };
    names.iter().any(|name| {
        let live = folder.file(name).ok().filter(is_locked);
        let text = live.and_then(|file| String::from_utf8(state::read_all(&file).ok()?).ok());
        text.is_some_and(|text| text.lines().any(|one| one == line))
    })
}

/// Removes the files of commands that have ended.
fn sweep(pool: Guid, kind: &str) {
    let Some((folder, names)) = files(pool, kind) else { return };
    for name in names {
        if folder.file(&name).is_ok_and(|file| !is_locked(&file)) {
            drop(folder.remove(&name));
        }
    }
}

fn folder() -> io::Result<Folder> {
    Folder::make()?.make_sub(HOLDS)
}

/// Takes the lock shared by commands that are about to hold something in a pool, and those that destroy.
fn lock(pool: Guid, front: &dyn Front) -> io::Result<File> {
    let (folder, name) = (folder()?, format!("{}.lock", pool.0));
    let file = folder.shared_file(&name)?;
    state::lock(&file, Lock::Exclusive, Patience::Work { path: &folder.path().join(name), front })?;
    Ok(file)
}

/// The files in which commands list datasets of a pool.
fn files(pool: Guid, kind: &str) -> Option<(Folder, Vec<String>)> {
    let folder = Folder::open().and_then(|state| state.sub(HOLDS)).ok()?;
    let of_pool = format!("{}.", pool.0);
    let mut names = folder.names().ok()?;
    names.retain(|name| name.starts_with(&of_pool) && name.ends_with(kind));
    Some((folder, names))
}
