//! What a command reads for long, told to those that write: a send takes minutes or days, and reads the pool from its devices, while other commands
//! change it. In OpenZFS the kernel knows (`dsl_dataset_long_hold`; for packages libzfs puts tags on the snapshots, `.send-PID-N`).
//!
//! Beside the records of imported pools the folder `holds` has a file for each such command: the objects of the datasets that it reads, one a line. The file
//! is locked as long as the command lives, so that one which nobody has locked tells nothing, and is removed. A second file, one a pool, is locked by who
//! comes to hold something, from before it looks the datasets up until its file is there; and by who destroys, from before it looks at the holds until
//! what it did is on disk. So nothing is destroyed that was found, and nothing found that is being destroyed.
//!
//! A head can be changed without that lock. Who writes a pool has a file like that of a reader: the heads that it has opened since it has the pool. Each
//! tells first and asks then: who opens a head writes it down and asks who reads it, who sends a head writes it down and asks who has it open, and looks
//! it up again, for it may have been changed since it was found. So at least one of two that meet finds the other, and gives way.
//!
//! Who cannot use the folder sends all the same: a snapshot that is destroyed meanwhile ends the stream with an error.

use std::any::Any;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use base::Guid;
use pool::{Dataset, HeldElsewhere};

use crate::state;

/// Files that this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// How the name of a file ends, by what it tells: datasets that are read.
const HELD: &str = ".held";
/// Heads that are open for changes.
const OPEN: &str = ".open";

/// Somebody who is about to hold datasets of a pool: nothing of it is destroyed until [`Looking::hold`].
pub(crate) struct Looking {
    pool: Guid,
    _lock: File,
}

/// Datasets that are held; until dropped.
pub(crate) struct Held {
    pool: Guid,
    _told: Told,
}

impl Looking {
    /// Begins, with the pool that `dataset` is in. `None` if nobody writes it, or nothing can be told.
    pub(crate) fn at(dataset: &str) -> Option<Looking> {
        let name = dataset.split(['/', '@', '#']).next().unwrap_or("");
        let record = state::find(name).ok()??;
        if record.readonly {
            return None;
        }
        let pool = Guid(record.guid);
        Some(Looking { pool, _lock: lock(pool).ok()? })
    }

    /// Holds these datasets.
    pub(crate) fn hold<'a>(self, datasets: impl IntoIterator<Item = &'a Dataset>) -> Option<Held> {
        let mut told = Told::new(self.pool, HELD).ok()?;
        datasets.into_iter().try_for_each(|dataset| told.add(dataset.id())).ok()?;
        Some(Held { pool: self.pool, _told: told })
    }
}

impl Held {
    /// Whether another command has opened the head for changes. Where it has not, none will; but the head may have changed since it was looked up.
    pub(crate) fn is_open_elsewhere(&self, head: &Dataset) -> bool {
        is_told(self.pool, OPEN, head.id())
    }
}

/// What other commands hold, and what they are told of a pool that this one writes.
#[derive(Default)]
pub(crate) struct OtherCommands(Mutex<Option<Opened>>);

/// The heads that were told.
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
            // one process writes a pool at a time: what others left tells nothing
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

/// A file that tells of datasets, until it is dropped.
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
        // who comes upon it finds that nobody has it locked
        drop(fs::remove_file(&self.path));
    }
}

/// Whether a command that lives tells of the dataset.
fn is_told(pool: Guid, kind: &str, id: u64) -> bool {
    let line = id.to_string();
    files(pool, kind).any(|path| {
        let lives = File::open(&path).is_ok_and(|file| is_locked(&file));
        lives && fs::read_to_string(&path).is_ok_and(|text| text.lines().any(|one| one == line))
    })
}

/// Removes what commands left that are no more.
fn sweep(pool: Guid, kind: &str) {
    for path in files(pool, kind) {
        if File::open(&path).is_ok_and(|file| !is_locked(&file)) {
            drop(fs::remove_file(&path));
        }
    }
}

fn folder() -> io::Result<PathBuf> {
    let folder = state::folder().map_err(|_| io::ErrorKind::NotFound)?.join("holds");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The lock of who comes to hold something in a pool, and of who destroys.
fn lock(pool: Guid) -> io::Result<File> {
    let file = File::create(folder()?.join(format!("{}.lock", pool.0)))?;
    file.lock()?;
    Ok(file)
}

/// The files of those who tell something of a pool.
fn files(pool: Guid, kind: &str) -> impl Iterator<Item = PathBuf> {
    let of_pool = format!("{}.", pool.0);
    let entries = state::folder().ok().and_then(|folder| fs::read_dir(folder.join("holds")).ok());
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).filter(move |path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(&of_pool) && name.ends_with(kind)
    })
}

/// Whether somebody has it locked; a lock that cannot be asked for counts as one.
pub(crate) fn is_locked(file: &File) -> bool {
    match file.try_lock_shared() {
        Ok(()) => {
            drop(file.unlock());
            false
        }
        Err(_) => true,
    }
}
