//! What a command reads for long, told to those that write: a send takes minutes or days, and reads the pool from its devices, while other commands
//! change it. In OpenZFS the kernel knows (`dsl_dataset_long_hold`; for packages libzfs puts tags on the snapshots, `.send-PID-N`).
//!
//! Beside the records of imported pools the folder `holds` has a file for each such command: the objects of the datasets that it reads, one a line. The file
//! is locked as long as the command lives, so that one which nobody has locked tells nothing, and is removed. A second file, one a pool, is locked by who
//! comes to hold something, from before it looks the datasets up until its file is there; and by who destroys, from before it looks at the holds until
//! what it did is on disk. So nothing is destroyed that was found, and nothing found that is being destroyed.
//!
//! Who cannot use the folder sends all the same: a snapshot that is destroyed meanwhile ends the stream with an error.

use std::any::Any;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Guid;
use pool::{Dataset, HeldElsewhere};

use crate::state;

/// Files that this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Somebody who is about to hold datasets of a pool: nothing of it is destroyed until [`Looking::hold`].
pub(crate) struct Looking {
    pool: Guid,
    _lock: File,
}

/// Datasets that are held; until dropped.
pub(crate) struct Held {
    path: PathBuf,
    _lock: File,
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
        let lines: String = datasets.into_iter().map(|dataset| format!("{}\n", dataset.id())).collect();
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let path = folder().ok()?.join(format!("{}.{}.{nth}", self.pool.0, std::process::id()));
        let put = || -> io::Result<File> {
            let mut file = File::create(&path)?;
            file.lock()?;
            file.write_all(lines.as_bytes())?;
            Ok(file)
        };
        put().ok().map(|_lock| Held { path: path.clone(), _lock })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // who comes upon it finds that nobody has it locked
        drop(fs::remove_file(&self.path));
    }
}

/// What other commands hold.
pub(crate) struct OtherCommands;

impl HeldElsewhere for OtherCommands {
    fn is_held(&self, pool: Guid, id: u64) -> bool {
        let line = id.to_string();
        files(pool).any(|path| {
            let held = File::open(&path).is_ok_and(|file| is_locked(&file));
            held && fs::read_to_string(&path).is_ok_and(|text| text.lines().any(|one| one == line))
        })
    }

    fn freeze(&self, pool: Guid) -> Box<dyn Any> {
        let Ok(lock) = lock(pool) else { return Box::new(()) };
        for path in files(pool) {
            if File::open(&path).is_ok_and(|file| !is_locked(&file)) {
                drop(fs::remove_file(&path));
            }
        }
        Box::new(lock)
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

/// The files of those who hold something in a pool.
fn files(pool: Guid) -> impl Iterator<Item = PathBuf> {
    let of_pool = format!("{}.", pool.0);
    let entries = state::folder().ok().and_then(|folder| fs::read_dir(folder.join("holds")).ok());
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).filter(move |path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(&of_pool) && !name.ends_with(".lock")
    })
}

/// Whether somebody has it locked; a lock that cannot be asked for counts as one.
fn is_locked(file: &File) -> bool {
    match file.try_lock_shared() {
        Ok(()) => {
            drop(file.unlock());
            false
        }
        Err(_) => true,
    }
}
