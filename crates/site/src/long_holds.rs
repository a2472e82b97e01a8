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
//! A command that cannot use the folder sends all the same: a snapshot that is destroyed meanwhile ends the stream
//! with an error.

use std::any::Any;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use base::Guid;
use pool::{Dataset, HeldElsewhere};

use crate::records;

/// Files that this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

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
    pool: Guid,
    _told: Told,
}

impl Looking {
    /// Takes the lock of the pool that `dataset` is in. `None` if the pool is not writable, or holds cannot be
    /// recorded.
    #[must_use]
    pub fn at(dataset: &str) -> Option<Looking> {
        let name = dataset.split(['/', '@', '#']).next().unwrap_or("");
        let record = records::find(name).ok()??;
        if record.readonly {
            return None;
        }
        let pool = Guid(record.guid);
        Some(Looking { pool, _lock: lock(pool).ok()? })
    }

    /// Holds these datasets.
    #[must_use]
    pub fn hold<'a>(self, datasets: impl IntoIterator<Item = &'a Dataset>) -> Option<Held> {
        let mut told = Told::new(self.pool, HELD).ok()?;
        datasets.into_iter().try_for_each(|dataset| told.add(dataset.id())).ok()?;
        Some(Held { pool: self.pool, _told: told })
    }
}

impl Held {
    /// Returns whether another command has opened the head for changes. If none has, none will; but the head may have
    /// changed since it was looked up.
    #[must_use]
    pub fn is_open_elsewhere(&self, head: &Dataset) -> bool {
        is_told(self.pool, OPEN, head.id())
    }
}

/// The holds of other commands, and the file that announces to them the heads that this command has open in a pool
/// that it writes.
#[derive(Debug, Default)]
pub struct OtherCommands(Mutex<Option<Opened>>);

/// The heads that were announced.
#[derive(Debug)]
struct Opened {
    told: Told,
    ids: BTreeSet<u64>,
}

impl HeldElsewhere for OtherCommands {
    fn is_held(&self, pool: Guid, id: u64) -> bool {
        is_told(pool, HELD, id)
    }

    fn freeze(&self, pool: Guid) -> Box<dyn Any> {
        let Ok(lock) = lock(pool) else { return Box::new(()) };
        sweep(pool, HELD);
        Box::new(lock)
    }

    fn opened(&self, pool: Guid, id: u64) {
        let mut this = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    path: PathBuf,
    file: File,
}

impl Told {
    fn new(pool: Guid, kind: &str) -> io::Result<Told> {
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let path = folder()?.join(format!("{}.{}.{nth}{kind}", pool.0, std::process::id()));
        let file = File::create(&path)?;
        file.lock()?;
        Ok(Told { path, file })
    }

    fn add(&mut self, id: u64) -> io::Result<()> {
        self.file.write_all(format!("{id}\n").as_bytes())
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // a command that still finds the file sees that nobody has it locked
        drop(fs::remove_file(&self.path));
    }
}

/// Returns whether a live command has listed the dataset.
fn is_told(pool: Guid, kind: &str, id: u64) -> bool {
    let line = id.to_string();
    files(pool, kind).any(|path| {
        let lives = File::open(&path).is_ok_and(|file| is_locked(&file));
        lives && fs::read_to_string(&path).is_ok_and(|text| text.lines().any(|one| one == line))
    })
}

/// Removes the files of commands that have ended.
fn sweep(pool: Guid, kind: &str) {
    for path in files(pool, kind) {
        if File::open(&path).is_ok_and(|file| !is_locked(&file)) {
            drop(fs::remove_file(&path));
        }
    }
}

fn folder() -> io::Result<PathBuf> {
    let folder = records::folder().map_err(|_| io::ErrorKind::NotFound)?.join("holds");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Takes the lock shared by commands that are about to hold something in a pool, and those that destroy.
fn lock(pool: Guid) -> io::Result<File> {
    let file = File::create(folder()?.join(format!("{}.lock", pool.0)))?;
    file.lock()?;
    Ok(file)
}

/// The files in which commands list datasets of a pool.
fn files(pool: Guid, kind: &str) -> impl Iterator<Item = PathBuf> {
    let of_pool = format!("{}.", pool.0);
    let entries = records::folder().ok().and_then(|folder| fs::read_dir(folder.join("holds")).ok());
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).filter(move |path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(&of_pool) && name.ends_with(kind)
    })
}

/// Returns whether another process has the file locked; if the lock cannot be queried it counts as locked.
pub(crate) fn is_locked(file: &File) -> bool {
    match file.try_lock_shared() {
        Ok(()) => {
            drop(file.unlock());
            false
        }
        Err(_) => true,
    }
}
