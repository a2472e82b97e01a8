//! Commands that read a pool from its devices while others write it: what they read is not used again before they end.
//!
//! A command that only reads takes no lock on devices, and sees the pool as the newest uberblock leaves it. From before it looks for the pool until it
//! has closed it, there is a file of its own in the folder `readers`, beside the records of imported pools, which says what pool it reads and as of
//! which txg; until it knows, it says all pools and txg 0. The file is locked as long as the command lives: one that nobody has locked tells nothing,
//! and is removed. Who writes looks there at the end of each txg, and when it opens the pool, and holds what was freed later ([`pool::Readers`]).
//!
//! A reader that sleeps must not fill the pool. When space is needed, the writer first marks the files of the readers that it will not wait for, and only
//! then lets their blocks be used again. A reader looks for the mark behind each read that it cannot trust: one whose checksum is wrong, or that
//! has none. So it gets the bytes of its own txg, or an error that says why, and no device is blamed.
//!
//! Who goes back to an older state, or makes another pool of the devices, overwrites what nobody has freed, before there is a new state to be found.
//! Until then there is a file in the folder `given-up`, locked by who does it: to readers that begin meanwhile it is the mark, and they are marked
//! themselves before it goes.
//!
//! Who cannot use the folder reads all the same, and learns from checksums alone that the pool has changed.

use std::any::Any;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Env, Guid, Txg};
use pool::{Pool, Readers};
use zuse::zio::{ReadGuard, Zio};

use crate::long_holds::is_locked;
use crate::state;

/// Bytes of a file: what is read, as text, and in the last byte the mark.
const SIZE: u64 = 64;
/// Where the mark is; 0 if there is none.
const MARK: u64 = SIZE - 1;
/// The folder of the files of readers.
const READERS: &str = "readers";
/// The folder of those that tell that a pool is given up.
const GIVEN_UP: &str = "given-up";
/// Who does not know yet what pool it will read.
const ANY: Guid = Guid(0);

/// A pool that this command reads, or is about to; until dropped.
pub(crate) struct Reading {
    path: PathBuf,
    file: File,
    /// What it reads; [`ANY`] as long as that is not known.
    pool: Guid,
}

impl Reading {
    /// Before a pool is looked for. `None` if nothing can be told.
    pub(crate) fn begin() -> Option<Reading> {
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

    /// It is this pool, opened for reading: as long as that is in use.
    pub(crate) fn of(self, pool: &Pool) {
        self.settle(pool.guid(), pool.uberblock().txg, pool.zio());
    }

    /// It is this pool as `txg` left it, read through `zio`.
    pub(crate) fn settle(mut self, pool: Guid, txg: Txg, zio: &Zio) {
        // what cannot be told stays as it is: all pools
        let _told = tell(&self.file, pool, txg);
        self.pool = pool;
        zio.set_guard(Arc::new(self));
    }
}

fn tell(file: &File, pool: Guid, txg: Txg) -> io::Result<()> {
    // the third number tells who reads it half written
    let text = format!("{:016x} {:016x} {:016x}\n", pool.0, txg.0, pool.0 ^ !txg.0);
    file.write_all_at(text.as_bytes(), 0)
}

/// A new file, which nobody comes upon before it is filled and locked.
fn make(folder: &str, name: &str, fill: impl FnOnce(&File) -> io::Result<()>) -> io::Result<(PathBuf, File)> {
    let folder = self::folder(folder)?;
    fs::create_dir_all(&folder)?;
    let (path, made) = (folder.join(name), folder.join(format!(".{name}")));
    let file = state::private().read(true).truncate(true).open(&made)?;
    let done = file.lock().and_then(|()| fill(&file)).and_then(|()| give_to_owner(&folder, &file));
    let done = done.and_then(|()| fs::rename(&made, &path));
    done.inspect_err(|_| drop(fs::remove_file(&made)))?;
    Ok((path, file))
}

/// The superuser who reads with the state of another user leaves nothing that this one cannot use.
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
        // in this order: the mark is there before the other file goes
        is_given_up(self.pool) || is_marked(&self.file)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // who comes upon it finds that nobody has it locked
        drop(fs::remove_file(&self.path));
    }
}

/// What other commands read, for one that writes.
pub(crate) struct OtherReaders;

impl Readers for OtherReaders {
    fn oldest(&self, pool: Guid) -> Option<Txg> {
        files(READERS).filter_map(|path| told(&path, pool)).map(|(_, txg)| txg).min()
    }

    fn overtake(&self, pool: Guid, txg: Txg) {
        for path in files(READERS) {
            if let Some((file, _)) = told(&path, pool).filter(|(_, read)| *read < txg) {
                // it is the owner's own file: that it cannot be written is not to be expected
                let _marked = file.write_all_at(&[1], MARK);
            }
        }
    }

    fn overtake_all(&self, pool: Guid) -> Box<dyn Any + Send> {
        Box::new(GivingUp::begin(pool))
    }
}

/// All states of a pool that there are so far are being given up; until dropped.
struct GivingUp {
    pool: Guid,
    /// Its file, if there can be one.
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

/// Whether somebody gives up a pool, or any.
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

/// The file of a living command that reads `pool`, or may, and is not marked; and the txg that it reads.
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
    Ok(state::folder().map_err(|_| io::ErrorKind::NotFound)?.join(name))
}

fn files(of: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = folder(of).and_then(fs::read_dir).into_iter().flatten().flatten();
    let is_told = |entry: &fs::DirEntry| !entry.file_name().to_string_lossy().starts_with('.');
    entries.filter(is_told).map(|entry| entry.path())
}
