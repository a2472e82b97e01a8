//! Commands that read a pool from its devices while others write it: the blocks they read are not reused before they
//! end.
//!
//! A command that only reads takes no lock on devices, and sees the pool as the newest uberblock leaves it. From
//! before it looks for the pool until it has closed it, a file of its own in the folder `readers`, beside the records
//! of imported pools, names the pool that it reads and the txg; until these are known, the file says all pools and txg
//! 0. The file is locked as long as the command lives: a file that nobody has locked is stale, and is removed. The
//! writer reads these files at the end of each txg, and when it opens the pool, and keeps blocks that were freed after
//! a reader's txg from being reused ([`pool::Readers`]).
//!
//! A sleeping reader must not fill the pool. When space is needed, the writer first marks the files of the readers
//! that it will not wait for, and only then lets their blocks be reused. A reader checks for the mark after each read
//! that it cannot trust: one whose checksum is wrong, or that has no checksum. So it gets the bytes of its own txg, or
//! an error that says why, and no device is blamed.
//!
//! A command that goes back to an older state, or makes another pool of the devices, overwrites blocks that nobody has
//! freed, before a new state can be found. Until then there is a file in the folder `given-up`, locked by that
//! command: readers that begin meanwhile treat it as the mark, and their own files are marked before it is removed.
//!
//! A command that cannot use the folder reads all the same, and learns from checksums alone that the pool has changed.

use std::any::Any;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Env, Guid, Txg};
use pool::{Pool, Readers};
use zio::{ReadGuard, Zio};

use crate::long_holds::is_locked;
use crate::records;

/// Bytes of a file: the pool and txg that are read, as text, and the mark in the last byte.
const SIZE: u64 = 64;
/// The offset of the mark, which is 0 as long as the reader is not marked.
const MARK: u64 = SIZE - 1;
/// The folder of the files of readers.
const READERS: &str = "readers";
/// The folder of the files which say that a pool is being given up.
const GIVEN_UP: &str = "given-up";
/// Stands for all pools, while a reader does not know yet which one it will read.
const ANY: Guid = Guid(0);

/// A pool that this command reads, or is about to; until dropped.
#[derive(Debug)]
pub struct Reading {
    path: PathBuf,
    file: File,
    /// The pool that is read; [`ANY`] until that is known.
    pool: Guid,
}

impl Reading {
    /// Announces a reader, before it looks for its pool. `None` if the file cannot be made.
    #[must_use]
    pub fn begin() -> Option<Reading> {
        Reading::new().ok()
    }

    fn new() -> io::Result<Reading> {
        let name = format!("{:016x}", Env::system().random_u64());
        let (path, file) = make(READERS, &name, |file| {
            file.set_len(SIZE)?;
            tell(file, ANY, Txg(0))
        })?;
        Ok(Reading { path, file, pool: ANY })
    }

    /// Records that the reader reads this open pool; the announcement lasts as long as the pool is in use.
    pub fn of(self, pool: &Pool) {
        self.settle(pool.guid(), pool.uberblock().txg, pool.zio());
    }

    /// Records that the reader reads this pool as `txg` left it, through `zio`.
    pub fn settle(mut self, pool: Guid, txg: Txg, zio: &Zio) {
        // if this cannot be written the file stays as it is: all pools
        let _told = tell(&self.file, pool, txg);
        self.pool = pool;
        zio.set_guard(Arc::new(self));
    }
}

fn tell(file: &File, pool: Guid, txg: Txg) -> io::Result<()> {
    // the third number lets a writer detect a half-written file
    let text = format!("{:016x} {:016x} {:016x}\n", pool.0, txg.0, pool.0 ^ !txg.0);
    file.write_all_at(text.as_bytes(), 0)
}

/// Makes a new file, which is filled and locked before another command can find it.
fn make(folder: &str, name: &str, fill: impl FnOnce(&File) -> io::Result<()>) -> io::Result<(PathBuf, File)> {
    let folder = self::folder(folder)?;
    fs::create_dir_all(&folder)?;
    let (path, made) = (folder.join(name), folder.join(format!(".{name}")));
    let file = records::private().read(true).truncate(true).open(&made)?;
    let done = file.lock().and_then(|()| fill(&file)).and_then(|()| give_to_owner(&folder, &file));
    let done = done.and_then(|()| fs::rename(&made, &path));
    done.inspect_err(|_| drop(fs::remove_file(&made)))?;
    Ok((path, file))
}

/// Gives files to the owner of the state folder, so that a superuser who reads with another user's state leaves
/// nothing that this user cannot use.
fn give_to_owner(folder: &Path, file: &File) -> io::Result<()> {
    let owner = fs::metadata(folder.parent().unwrap_or(folder))?;
    if owner.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    std::os::unix::fs::chown(folder, Some(owner.uid()), Some(owner.gid()))?;
    std::os::unix::fs::fchown(file, Some(owner.uid()), Some(owner.gid()))
}

impl ReadGuard for Reading {
    fn is_overtaken(&self) -> bool {
        // in this order: the reader's file is marked before the other file is removed
        is_given_up(self.pool) || is_marked(&self.file)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // a command that still finds the file sees that nobody has it locked
        drop(fs::remove_file(&self.path));
    }
}

/// The readers of other commands, as seen by one that writes.
#[derive(Debug)]
pub struct OtherReaders;

impl Readers for OtherReaders {
    fn oldest(&self, pool: Guid) -> Option<Txg> {
        files(READERS).filter_map(|path| told(&path, pool)).map(|(_, txg)| txg).min()
    }

    fn overtake(&self, pool: Guid, txg: Txg) {
        for path in files(READERS) {
            if let Some((file, _)) = told(&path, pool).filter(|(_, read)| *read < txg) {
                // the file belongs to the same owner: writing it is not expected to fail
                let _marked = file.write_all_at(&[1], MARK);
            }
        }
    }

    fn overtake_all(&self, pool: Guid) -> Box<dyn Any + Send> {
        Box::new(GivingUp::begin(pool))
    }
}

/// Gives up all existing states of a pool, until dropped.
struct GivingUp {
    pool: Guid,
    /// Its file, if it could be made.
    told: Option<(PathBuf, File)>,
}

impl GivingUp {
    fn begin(pool: Guid) -> GivingUp {
        let name = format!("{}.{:016x}", pool.0, Env::system().random_u64());
        let giving_up = GivingUp { pool, told: make(GIVEN_UP, &name, |_| Ok(())).ok() };
        OtherReaders.overtake(pool, Txg(u64::MAX));
        giving_up
    }
}

impl Drop for GivingUp {
    fn drop(&mut self) {
        OtherReaders.overtake(self.pool, Txg(u64::MAX));
        if let Some((path, _file)) = &self.told {
            drop(fs::remove_file(path));
        }
    }
}

/// Returns whether a command is giving up this pool, or any pool for [`ANY`].
fn is_given_up(pool: Guid) -> bool {
    let prefix = format!("{}.", pool.0);
    let mut told = files(GIVEN_UP)
        .filter(|path| pool == ANY || path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)));
    told.any(|path| {
        let locked = File::open(&path).is_ok_and(|file| is_locked(&file));
        if !locked {
            drop(fs::remove_file(&path));
        }
        locked
    })
}

/// The file of a live command that reads `pool`, or may read it, and is not marked; and the txg that it reads.
fn told(path: &Path, pool: Guid) -> Option<(File, Txg)> {
    let file = File::options().read(true).write(true).open(path).ok()?;
    if !is_locked(&file) {
        drop(fs::remove_file(path));
        return None;
    }
    let (read, txg) = decode(&file).unwrap_or((ANY, Txg(0)));
    ((read == pool || read == ANY) && !is_marked(&file)).then_some((file, txg))
}

fn decode(file: &File) -> Option<(Guid, Txg)> {
    let mut bytes = [0; MARK as usize];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes).ok()?;
    let mut numbers = text.split([' ', '\n']).map_while(|word| u64::from_str_radix(word, 16).ok());
    let (pool, txg, both) = (numbers.next()?, numbers.next()?, numbers.next()?);
    (both == pool ^ !txg).then_some((Guid(pool), Txg(txg)))
}

fn is_marked(file: &File) -> bool {
    let mut mark = [0];
    file.read_exact_at(&mut mark, MARK).is_err() || mark != [0]
}

fn folder(name: &str) -> io::Result<PathBuf> {
    Ok(records::folder().map_err(|_| io::ErrorKind::NotFound)?.join(name))
}

fn files(of: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = folder(of).and_then(fs::read_dir).into_iter().flatten().flatten();
    let is_told = |entry: &fs::DirEntry| !entry.file_name().to_string_lossy().starts_with('.');
    entries.filter(is_told).map(|entry| entry.path())
}
