//! The records of imported pools, kept from one process to the next.
//!
//! A folder, `$ZUSE_STATE` (else `$XDG_STATE_HOME/zuse`, else `~/.local/state/zuse`), holds a file `GUID.json` for
//! each imported pool: the name it was imported under, its devices, the options of the import, and the locations of
//! keys that can be read again without asking (`file://`). Keys themselves are never stored. A file is replaced as a
//! whole, so that a reader sees the old one or the new one; who changes one holds the lock of the file `.changes`. Who
//! gives a pool a name holds the lock of a file that has the name, `.name.NAME`. OpenZFS: `/etc/zfs/zpool.cache`.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use base::{Guid, ObjectId};
use serde_json::{Map, Value, json};

use crate::state::{self, Folder, Lock, Patience};
use crate::{Error, Front, Silent};

/// The user that administers every machine.
pub(crate) const ROOT: u32 = 0;

/// Limit on locking a file that others lock and remove.
const RESERVE_TRIES: u32 = 1000;

/// An imported pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The pool's identity.
    pub guid: Guid,
    /// The identity that a command is giving it, or was when it was killed.
    pub next_guid: Option<Guid>,
    /// The name that it was imported under.
    pub name: String,
    /// Its name on disk.
    pub name_on_disk: String,
    /// Its devices.
    pub devices: Vec<PathBuf>,
    /// Set if the pool is read-only.
    pub readonly: bool,
    /// The txg to go back to (`-T`).
    pub txg: Option<u64>,
    /// Set to go back to the checkpoint.
    pub checkpoint: bool,
    /// Set if log devices may be missing (`-m`).
    pub missing_log: bool,
    /// The folder that mount points are below (`-R`).
    pub altroot: Option<String>,
    /// An identity of this import (OpenZFS: the property `load_guid`).
    pub load_guid: u64,
    /// The directories of encryption roots, and the `file://` location of their key. Names may change, and a root may give way to its clone.
    pub keys: Vec<(ObjectId, String)>,
    /// The directories of encryption roots whose key was unloaded: no command reads it from its location without being
    /// asked to.
    pub unloaded: Vec<ObjectId>,
}

impl Imported {
    /// Adds the paths of devices that it does not have.
    pub(crate) fn add_devices(&mut self, paths: &[PathBuf]) {
        for path in paths {
            if !self.devices.contains(path) {
                self.devices.push(path.clone());
            }
        }
    }
}

/// The folder that this process was told to use.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Makes a folder that of the site, before anything asks for it.
pub fn use_folder(path: PathBuf) {
    // the first one counts
    let _set = FOLDER.set(path);
}

/// The folder of the site: the one that the process was told to use, else `$ZUSE_STATE`, else the user's.
///
/// # Errors
/// [`Error::NoFolder`] if the environment names none.
pub fn folder() -> Result<PathBuf, Error> {
    let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = FOLDER.get() {
        return Ok(dir.clone());
    }
    if let Some(dir) = from("ZUSE_STATE") {
        return Ok(dir);
    }
    let base = from("XDG_STATE_HOME").or_else(|| from("HOME").map(|home| home.join(".local/state")));
    base.map(|base| base.join("zuse")).ok_or(Error::NoFolder)
}

/// The user that the pools belong to, besides root: the owner of the folder of the site, if it is the user of this process. Where root serves the folder of another user, that
/// user may not have root open devices for him: there it is root alone.
#[must_use]
pub fn owner() -> u32 {
    let me = rustix::process::geteuid().as_raw();
    Folder::open().map_or(me, |folder| trusted(folder.owner(), me))
}

fn trusted(owner: u32, me: u32) -> u32 {
    if owner == me { owner } else { ROOT }
}

fn trouble(path: &Path, source: io::Error) -> Error {
    Error::Folder { path: path.to_owned(), source }
}

/// All imported pools, sorted by name. Records that cannot be read are left out, and told to `warn`.
///
/// # Errors
/// When the folder cannot be read.
pub fn all(warn: &dyn Fn(&str)) -> Result<Vec<Imported>, Error> {
    let dir = folder()?;
    let folder = match Folder::open() {
        Ok(folder) => folder,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(trouble(&dir, e)),
    };
    let mut names = folder.names().map_err(|e| trouble(&dir, e))?;
    names.retain(|name| !name.starts_with('.') && name.ends_with(".json"));
    let mut pools = Vec::new();
    for name in names {
        let path = dir.join(&name);
        match folder.read(&name) {
            Ok(bytes) => match decode(&bytes) {
                Some(pool) => pools.push(settled(pool)),
                None => warn(&format!("'{}' is not the record of an imported pool", path.display())),
            },
            // exported meanwhile
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            // for example root's, after `sudo`
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                warn(&format!("'{}' is the record of another user's pool", path.display()));
            }
            Err(e) => return Err(trouble(&path, e)),
        }
    }
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(pools)
}

/// The record of a pool that was getting another identity when the command was killed: with the one that its devices have.
fn settled(pool: Imported) -> Imported {
    let Some(next) = pool.next_guid else { return pool };
    let paths: Vec<PathBuf> = pool.devices.iter().filter(|path| path.exists()).cloned().collect();
    let found = vdev::import::scan(&paths).unwrap_or_default();
    let is_there = |guid| found.iter().any(|candidate| candidate.guid == guid);
    match is_there(next) && !is_there(pool.guid) {
        true if change_guid(pool.guid, next).is_ok() => Imported { guid: next, next_guid: None, ..pool },
        _ => pool,
    }
}

/// Renames what is known of a pool, which nobody has open, after it got another identity: its record, its keys and its figures. Another command may have done it.
///
/// # Errors
/// When the record cannot be written; it is as it was then.
pub(crate) fn change_guid(from: Guid, to: Guid) -> Result<(), Error> {
    let alone = Changing::begin()?;
    let Some(record) = of(from)? else { return Ok(()) };
    for (root, key) in crate::agent::get(from) {
        // without it, it is asked for again
        let _kept = crate::agent::put(to, root, &key);
    }
    crate::left::rename(from, to);
    crate::iostats::rename(from, to);
    remember(&Imported { guid: to, next_guid: None, ..record })?;
    drop(alone);
    forget(from)
}

/// The pool that was imported under this name.
pub(crate) fn find(name: &str) -> Result<Option<Imported>, Error> {
    Ok(all(&|_| {})?.into_iter().find(|p| p.name == name))
}

/// Remembers a pool that becomes one of this machine.
///
/// # Errors
/// [`Error::NameTaken`] if it is remembered already, as another command was quicker; when the record cannot be written.
pub fn remember_new(pool: &Imported) -> Result<(), Error> {
    make()?;
    let _alone = Changing::begin()?;
    if of(pool.guid)?.is_some() {
        return Err(Error::NameTaken { name: pool.name.clone() });
    }
    remember(pool)
}

/// Writes the record of a pool. One that is new is remembered with [`remember_new`]; what is known of one already is changed with [`update`].
///
/// # Errors
/// When the record cannot be written.
pub fn remember(pool: &Imported) -> Result<(), Error> {
    let name = format!("{}.json", pool.guid);
    let text = format!("{:#}\n", encode(pool));
    let written = make()?.replace_own(&name, text.as_bytes());
    written.map_err(|e| trouble(&folder().unwrap_or_default().join(name), e))
}

/// The file that is locked by who changes a record.
const CHANGES: &str = ".changes";

/// Locks it among the threads of this process, which take turns.
static CHANGING: Mutex<()> = Mutex::new(());

/// The lock on records that are changed.
struct Changing {
    _of_all: File,
    _of_process: MutexGuard<'static, ()>,
}

impl Changing {
    fn begin() -> Result<Changing, Error> {
        let of_process = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = folder()?;
        let folder = Folder::open().map_err(|e| trouble(&dir, e))?;
        let path = dir.join(CHANGES);
        // many commands may change records at the same time, on a slow disk
        let patience = Patience::Work { path: &path, front: &Silent };
        let locked =
            folder.shared_file(CHANGES).and_then(|file| state::lock(&file, Lock::Exclusive, patience).map(|()| file));
        let of_all = locked.map_err(|e| trouble(&path, e))?;
        Ok(Changing { _of_all: of_all, _of_process: of_process })
    }
}

/// The record of a pool, if it is imported.
fn of(guid: Guid) -> Result<Option<Imported>, Error> {
    let name = format!("{guid}.json");
    match Folder::open().and_then(|folder| folder.read(&name)) {
        Ok(bytes) => Ok(decode(&bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(trouble(&folder()?.join(name), e)),
    }
}

/// Changes the record of a pool, if it is imported: what other threads and processes change in it at the same time stays. `change` may be called twice, and is quick.
///
/// # Errors
/// When the record cannot be read or written.
pub fn update(guid: Guid, change: impl Fn(&mut Imported)) -> Result<(), Error> {
    let changed = || {
        let Some(before) = of(guid)? else { return Ok(None) };
        let mut record = before.clone();
        change(&mut record);
        Ok::<_, Error>((record != before).then_some(record))
    };
    if changed()?.is_none() {
        return Ok(());
    }
    let _alone = Changing::begin()?;
    changed()?.map_or(Ok(()), |record| remember(&record))
}

/// A name, and the guid of the pool that gets it, which no other command gives to a pool until this is dropped: an import or a create may wait for its devices for long, and only those
/// wait for it that want the same.
#[derive(Debug)]
pub struct Names {
    folder: Folder,
    /// Files that are there as long as somebody has or wants their lock.
    locked: Vec<(String, File)>,
}

/// Waits until no other command gives a pool this name, or imports the pool with this guid, for as long as the tunable `busy_wait` says.
///
/// # Errors
/// When a lock cannot be taken.
pub fn reserve(front: &dyn Front, name: &str, guid: Option<Guid>) -> Result<Names, Error> {
    let mut names = Names { folder: make()?, locked: Vec::new() };
    // the pool first: so no two commands wait for each other
    for file in guid.map(|guid| format!(".guid.{guid}")).into_iter().chain([format!(".name.{name}")]) {
        let lock = names.lock(front, &file).map_err(|e| trouble(&names.folder.path().join(&file), e))?;
        names.locked.push((file, lock));
    }
    Ok(names)
}

impl Names {
    fn lock(&self, front: &dyn Front, name: &str) -> io::Result<File> {
        let path = self.folder.path().join(name);
        for _ in 0..RESERVE_TRIES {
            let file = self.folder.shared_file(name)?;
            state::lock(&file, Lock::Exclusive, Patience::Work { path: &path, front })?;
            let meta = file.metadata()?;
            // who had it before has removed the file
            if self.folder.identity(name).is_ok_and(|found| found == (meta.dev(), meta.ino())) {
                return Ok(file);
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        // while they are locked: whoever has opened one sees that it is not there any more
        self.locked.iter().for_each(|(name, _)| drop(self.folder.remove(name)));
    }
}

/// Returns whether a pool is imported.
#[must_use]
pub fn is_remembered(guid: Guid) -> bool {
    folder().is_ok_and(|dir| dir.join(format!("{guid}.json")).exists())
}

/// Forgets a pool, and its keys.
///
/// # Errors
/// When the record cannot be removed.
pub fn forget(guid: Guid) -> Result<(), Error> {
    crate::iostats::forget(guid);
    crate::left::forget(guid);
    crate::agent::drop_pool(guid);
    // nobody who has read it writes it again; it is removed whoever has the lock
    let _alone = Changing::begin();
    let name = format!("{guid}.json");
    match Folder::open().and_then(|folder| folder.remove(&name).and_then(|()| folder.sync())) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(trouble(&folder()?.join(name), e)),
        _ => Ok(()),
    }
}

/// Opens the folder of the state; it is made if it is not there.
fn make() -> Result<Folder, Error> {
    let dir = folder()?;
    Folder::make().map_err(|e| trouble(&dir, e))
}

fn encode(pool: &Imported) -> Value {
    let keys: Map<String, Value> = pool.keys.iter().map(|(root, at)| (root.to_string(), json!(at))).collect();
    json!({
        "guid": pool.guid.to_string(),
        "next_guid": pool.next_guid.map(|guid| guid.to_string()),
        "name": pool.name,
        "name_on_disk": pool.name_on_disk,
        "devices": pool.devices.iter().map(|d| path_to_json(d)).collect::<Vec<_>>(),
        "readonly": pool.readonly,
        "txg": pool.txg,
        "rewind_to_checkpoint": pool.checkpoint,
        "missing_log": pool.missing_log,
        "altroot": pool.altroot,
        "load_guid": pool.load_guid.to_string(),
        "keylocations": keys,
        "unloaded": pool.unloaded.iter().map(|root| root.0).collect::<Vec<_>>(),
    })
}

fn decode(bytes: &[u8]) -> Option<Imported> {
    let v: Value = serde_json::from_slice(bytes).ok()?;
    let text = |key: &str| v.get(key).and_then(Value::as_str).map(str::to_owned);
    let flag = |key: &str| v.get(key).and_then(Value::as_bool).unwrap_or(false);
    let keys = v.get("keylocations").and_then(Value::as_object);
    let keys = keys
        .map(|keys| keys.iter().filter_map(|(root, at)| Some((ObjectId(root.parse().ok()?), at.as_str()?.to_owned()))));
    Some(Imported {
        guid: Guid(text("guid")?.parse().ok()?),
        next_guid: text("next_guid").and_then(|guid| guid.parse().ok()).map(Guid),
        name: text("name")?,
        name_on_disk: text("name_on_disk")?,
        devices: v.get("devices")?.as_array()?.iter().filter_map(path_of_json).collect(),
        readonly: v.get("readonly").and_then(Value::as_bool).unwrap_or(true),
        txg: v.get("txg").and_then(Value::as_u64),
        checkpoint: flag("rewind_to_checkpoint"),
        missing_log: flag("missing_log"),
        altroot: text("altroot"),
        load_guid: text("load_guid").and_then(|g| g.parse().ok()).unwrap_or(0),
        keys: keys.map(Iterator::collect).unwrap_or_default(),
        unloaded: v
            .get("unloaded")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .map(ObjectId)
            .collect(),
    })
}

/// A path as JSON: text if it is UTF-8, else its bytes.
fn path_to_json(path: &Path) -> Value {
    use std::os::unix::ffi::OsStrExt;
    match path.to_str() {
        Some(text) => json!(text),
        None => json!(path.as_os_str().as_bytes()),
    }
}

fn path_of_json(v: &Value) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    if let Some(text) = v.as_str() {
        return Some(PathBuf::from(text));
    }
    let bytes = v.as_array()?.iter().map(|b| b.as_u64().and_then(|b| u8::try_from(b).ok()));
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes.collect::<Option<Vec<u8>>>()?)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn the_owner_of_a_folder_counts_only_for_his_own_process() {
        assert_eq!([trusted(7, 7), trusted(7, 0), trusted(0, 7), trusted(7, 8)], [7, ROOT, ROOT, ROOT]);
    }

    #[test]
    fn what_is_remembered_is_what_was_said() {
        let odd = PathBuf::from(std::ffi::OsString::from_vec(vec![b'/', 0xff]));
        let pool = Imported {
            guid: Guid(u64::MAX),
            next_guid: Some(Guid(1)),
            name: "new".into(),
            name_on_disk: "old".into(),
            devices: vec!["/dev/a".into(), odd],
            readonly: false,
            txg: Some(7),
            checkpoint: true,
            missing_log: true,
            altroot: Some("/mnt".into()),
            load_guid: 1 << 63,
            keys: vec![(ObjectId(54), "file:///k".into())],
            unloaded: vec![ObjectId(u64::MAX), ObjectId(54)],
        };
        assert_eq!(decode(encode(&pool).to_string().as_bytes()), Some(pool));
        assert_eq!(decode(b"{}"), None);
    }
}
