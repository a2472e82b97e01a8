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
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base::{Env, Guid, Txg};
use pool::{Pool, Readers};
use zio::{ReadGuard, Zio};

use crate::state::{Folder, is_locked};

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
    folder: Folder,
    name: String,
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
        let (folder, file) = make(READERS, &name, |file| {
            file.set_len(SIZE)?;
            tell(file, ANY, Txg(0))
        })?;
        Ok(Reading { folder, name, file, pool: ANY })
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
fn make(folder: &str, name: &str, fill: impl FnOnce(&File) -> io::Result<()>) -> io::Result<(Folder, File)> {
    let folder = Folder::make()?.make_sub(folder)?;
    let file = folder.locked_file(name, fill)?;
    Ok((folder, file))
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
        drop(self.folder.remove(&self.name));
    }
}

/// The readers of other commands, as seen by one that writes.
#[derive(Debug)]
pub struct OtherReaders;

impl Readers for OtherReaders {
    fn oldest(&self, pool: Guid) -> Option<Txg> {
        let (folder, names) = files(READERS)?;
        names.iter().filter_map(|name| told(&folder, name, pool)).map(|(_, txg)| txg).min()
    }

    fn overtake(&self, pool: Guid, txg: Txg) {
        let Some((folder, names)) = files(READERS) else { return };
        for name in names {
            if let Some((file, _)) = told(&folder, &name, pool).filter(|(_, read)| *read < txg) {
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
    told: Option<(Folder, String, File)>,
}

impl GivingUp {
    fn begin(pool: Guid) -> GivingUp {
        let name = format!("{}.{:016x}", pool.0, Env::system().random_u64());
        let made = make(GIVEN_UP, &name, |_| Ok(()));
        let giving_up = GivingUp { pool, told: made.ok().map(|(folder, file)| (folder, name, file)) };
        OtherReaders.overtake(pool, Txg(u64::MAX));
        giving_up
    }
}

impl Drop for GivingUp {
    fn drop(&mut self) {
        OtherReaders.overtake(self.pool, Txg(u64::MAX));
        if let Some((folder, name, _file)) = &self.told {
            drop(folder.remove(name));
        }
    }
}

/// Returns whether a command is giving up this pool, or any pool for [`ANY`].
fn is_given_up(pool: Guid) -> bool {
    let prefix = format!("{}.", pool.0);
    let Some((folder, names)) = files(GIVEN_UP) else { return false };
    names.iter().filter(|name| pool == ANY || name.starts_with(&prefix)).any(|name| {
        let locked = folder.file(name).is_ok_and(|file| is_locked(&file));
        if !locked {
            drop(folder.remove(name));
        }
        locked
    })
}

/// The file of a live command that reads `pool`, or may read it, and is not marked; and the txg that it reads.
fn told(folder: &Folder, name: &str, pool: Guid) -> Option<(File, Txg)> {
    let file = folder.file_to_write(name).ok()?;
    if !is_locked(&file) {
        drop(folder.remove(name));
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

/// The files that are told of in a folder.
fn files(of: &str) -> Option<(Folder, Vec<String>)> {
    let folder = Folder::open().and_then(|state| state.sub(of)).ok()?;
    let mut names = folder.names().ok()?;
    names.retain(|name| !name.starts_with('.'));
    Some((folder, names))
}
