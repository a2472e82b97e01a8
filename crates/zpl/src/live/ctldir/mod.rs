//! The control directory `.zfs` of a mounted file system (OpenZFS: `zfs_ctldir.c`, `zpl_ctldir.c`).
//!
//! # What it is
//! A [`Ctldir`] is a file system with its control directory: what a mount has instead of the file system itself. The root directory has one more
//! entry, `.zfs`, which listings show with `snapdir=visible`, which is found nevertheless with `hidden`, and is not there with `disabled`; the property
//! is read each time. In it are `snapshot`, with a directory for each snapshot, and `shares`, the directory of shares, which is empty if there is none.
//!
//! # Snapshots inline
//! OpenZFS mounts a snapshot when a path leads into it. Here the files of a snapshot belong to the same mount: its directory is the root of the
//! snapshot, and a number says which snapshot a file is of ([`ids`]). With FUSE a mount on demand would have to be made while the request that leads to it
//! waits, by a process that the kernel may let wait for the very directory in which it is to mount, with rights that the user of the mount does not have, and it
//! would take a connection, threads and buffers for each snapshot. FUSE can make another device of a part of a mount (`FUSE_SUBMOUNTS`), but
//! the kernel offers that to virtiofs alone. The price is that the files of snapshots have the device number of the file system, and inode numbers that
//! are not their object numbers.
//!
//! # What changes
//! A snapshot's files never change; snapshots come and go, by whatever command. So names in `.zfs` and in `.zfs/snapshot`, and attributes
//! of these directories, are asked for each time ([`Vfs::is_told`]), whereas everything inside of a snapshot is cached. Those files have a generation
//! that is the snapshot's, since objects and slots are used again. One that the kernel knows of a snapshot that was destroyed fails with ESTALE.
//!
//! # Use
//! A snapshot is held while one of its files is open, or an operation is under way: then it is not destroyed (EBUSY). A working directory in
//! it does not hold it. [`snapshots`] has what is open.
//!
//! # Changes
//! With the tunable `zfs_admin_snapshot`, `mkdir`, `rmdir` and `mv` in `.zfs/snapshot` make, destroy and rename snapshots. Whether the caller may, and how it is
//! done, is for a [`SnapshotAdmin`].
//!
//! # Limits
//! * The number of links of the root, which counts `.zfs` if it is visible, is cached: after a change of `snapdir` it is right within
//!   a minute.
//! * `chmod` and the like of control directories, which OpenZFS carries out until the end of the mount, fail with EPERM.
//! * `access` says that files of snapshots may be written whose mode allows it, as the mount is not read-only; writing fails with EROFS.

mod change;
mod ids;
mod snapshots;
#[cfg(test)]
mod tests;
mod vfs;

use std::ops::Deref;
use std::sync::Arc;

use base::{Env, Errno, ObjectId};
use pool::{Pool, SnapshotId, Spa};

use super::{Cred, Refusal, Stat, Vfs, Zfs};
use crate::{Attrs, DirEntry, Error, FileFlags, Fuid, Kind, ReadDir, Time};
use ids::{ControlDir, Target};
pub(super) use snapshots::SnapshotInUse;
use snapshots::Snapshots;

/// The mode of the control directories, as OpenZFS shows it on Linux: what may be done in them does not depend on it.
const MODE: u32 = 0o40777;
/// What `stat` shows as their block size.
const BLOCK_SIZE: u64 = 512;
/// The cookie behind `.zfs` in the root: those of other entries are larger.
const BEHIND_ROOT: u64 = 3;
/// Is added to the dataset object for the cookie behind a snapshot.
const COOKIE: u64 = 4;
/// The longest name that can be looked up in `.zfs/snapshot`.
const NAME_MAX: usize = 255;
/// May the caller search a directory?
const MAY_EXEC: u8 = 1;

/// Values of the property `snapdir`.
const SNAPDIR_HIDDEN: u64 = 0;
const SNAPDIR_VISIBLE: u64 = 1;
const SNAPDIR_DISABLED: u64 = 2;

/// An open pool.
#[derive(Clone)]
pub enum PoolSource {
    /// Open for changes.
    Live(Arc<Spa>),
    /// Open for reading.
    Still(Arc<Pool>),
}

/// Makes, destroys and renames snapshots for callers who do so in `.zfs/snapshot`. Names are full: `pool/fs@snapshot`.
pub trait SnapshotAdmin: Send + Sync {
    /// Makes a snapshot.
    ///
    /// # Errors
    /// EPERM for a caller who may not; EEXIST, ENAMETOOLONG and what else the pool says.
    fn create(&self, cred: &Cred, name: &str) -> Result<(), Errno>;

    /// Destroys a snapshot.
    ///
    /// # Errors
    /// EPERM for a caller who may not; EBUSY if it is in use, held, or has clones; and what else the pool says.
    fn destroy(&self, cred: &Cred, name: &str) -> Result<(), Errno>;

    /// Renames a snapshot.
    ///
    /// # Errors
    /// EPERM for a caller who may not; EEXIST and what else the pool says.
    fn rename(&self, cred: &Cred, from: &str, to: &str) -> Result<(), Errno>;
}

/// A file system with its control directory. See the [module](self).
pub struct Ctldir {
    live: ShownIn,
    snapshots: Arc<Snapshots>,
    admin: Option<Arc<dyn SnapshotAdmin>>,
    env: Env,
    born: Time,
}

/// The file system that has the control directory.
pub(super) enum ShownIn {
    /// The one of a mount.
    Mounted(Arc<dyn Vfs>),
    /// The contents that it has during a request: one for each, without memory of its own.
    Pinned(Zfs),
}

impl Deref for ShownIn {
    type Target = dyn Vfs;

    fn deref(&self) -> &(dyn Vfs + 'static) {
        match self {
            ShownIn::Mounted(vfs) => &**vfs,
            ShownIn::Pinned(zfs) => zfs,
        }
    }
}

/// A file, and where it is.
enum At {
    Live(ObjectId),
    Control(ControlDir),
    /// The object of a snapshot.
    Snapshot(SnapshotInUse, ObjectId),
}

impl Ctldir {
    /// True for the number of a file of the file system itself.
    pub(super) fn is_live(id: ObjectId) -> bool {
        matches!(Target::of(id), Target::Live(_))
    }

    /// Shows the control directory in `file_system`, which is the head in object `head` of a pool. Without an `admin` no snapshots are changed by it.
    #[must_use]
    pub fn new(
        file_system: Arc<dyn Vfs>,
        pool: PoolSource,
        head: ObjectId,
        admin: Option<Arc<dyn SnapshotAdmin>>,
    ) -> Ctldir {
        let (env, acls) = (pool.env(), file_system.acl_kind());
        let born = now(&env);
        Ctldir {
            live: ShownIn::Mounted(file_system),
            snapshots: Arc::new(Snapshots::new(pool, head, acls)),
            admin,
            env,
            born,
        }
    }

    fn at(&self, id: ObjectId) -> Result<At, Error> {
        Ok(match Target::of(id) {
            Target::Live(id) => At::Live(id),
            Target::Control(dir) => At::Control(dir),
            Target::SnapshotRoot(dataset) => {
                let snapshot = self.snapshots.by_dataset(dataset)?;
                let root = snapshot.still.root();
                At::Snapshot(snapshot, root)
            }
            Target::InSnapshot { slot, object } => At::Snapshot(self.snapshots.by_slot(slot)?, object),
        })
    }

    /// Returns the property `snapdir`.
    fn snapdir(&self) -> Result<u64, Error> {
        let prop = self.snapshots.head()?.prop("snapdir")?;
        Ok(prop.and_then(|prop| prop.value.number()).unwrap_or(SNAPDIR_HIDDEN))
    }

    /// True if a listing of the root shows `.zfs`. Where the property cannot be read the rest is shown.
    fn is_visible(&self) -> bool {
        self.snapdir().is_ok_and(|value| value == SNAPDIR_VISIBLE)
    }

    /// Looks up `.zfs` in the root.
    fn find_root(&self, cred: &Cred) -> Result<(ObjectId, Attrs), Error> {
        self.live.access(cred, self.live.root(), MAY_EXEC)?;
        if self.snapdir()? == SNAPDIR_DISABLED {
            return Err(Error::not_found(ControlDir::Root.name()));
        }
        self.control(ControlDir::Root)
    }

    /// Looks up a name in a control directory.
    fn find_in(&self, cred: &Cred, dir: ControlDir, name: &[u8]) -> Result<(ObjectId, Attrs), Error> {
        match (dir, name) {
            (_, b"") => Err(Error::not_found(name)),
            (_, b".") => self.control(dir),
            (ControlDir::Root, b"..") => Ok((self.live.root(), self.live.attrs(self.live.root())?)),
            (_, b"..") => self.control(ControlDir::Root),
            (ControlDir::Root, _) if self.snapdir()? == SNAPDIR_DISABLED => Err(Error::not_found(name)),
            (ControlDir::Root, b"snapshot") => self.control(ControlDir::Snapshots),
            (ControlDir::Root, b"shares") => self.control(ControlDir::Shares),
            (ControlDir::Root, _) => Err(Error::not_found(name)),
            (ControlDir::Snapshots, _) => {
                let root = ids::snapshot_root(self.find_snapshot(name)?.id())?;
                Ok((root, self.attrs(root)?))
            }
            (ControlDir::Shares, _) => {
                let shares = self.live.shares();
                let none = || Refusal::Unsupported("there is no directory of shares").of(dir.id());
                let shares = shares.ok_or_else(none)?;
                let (id, attrs) = self.live.lookup(cred, shares, name)?;
                Ok((ids::live(id)?, self.attrs_of_live(attrs)))
            }
        }
    }

    /// Returns the snapshot with a name.
    fn find_snapshot(&self, name: &[u8]) -> Result<pool::Dataset, Error> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong { len: name.len() });
        }
        // no snapshot has a name that is not UTF-8
        let text = std::str::from_utf8(name).map_err(|_| Error::not_found(name))?;
        let found = self.snapshots.head()?.snapshot(text);
        found.map_err(|error| if error.is_not_found() { Error::not_found(name) } else { error.into() })
    }

    fn control(&self, dir: ControlDir) -> Result<(ObjectId, Attrs), Error> {
        Ok((dir.id(), self.control_attrs(dir)?))
    }

    fn control_attrs(&self, dir: ControlDir) -> Result<Attrs, Error> {
        let own = |size, links, changed| Attrs {
            size,
            links,
            atime: now(&self.env),
            mtime: changed,
            ctime: changed,
            parent: ControlDir::Root.id(),
            ..made_up(self.born)
        };
        match dir {
            ControlDir::Root => Ok(Attrs { parent: self.live.root(), ..own(0, 1, self.born) }),
            ControlDir::Snapshots => {
                let head = self.snapshots.head()?;
                let changed = head.dir().snapshots_changed()?.map_or(self.born, |(sec, nsec)| Time {
                    sec: sec.cast_signed(),
                    nsec: u32::try_from(nsec).unwrap_or(0),
                });
                Ok(own(2, 2 + head.snapshot_count()? as u64, changed))
            }
            ControlDir::Shares => match self.live.shares() {
                Some(shares) => Ok(Attrs { parent: ControlDir::Root.id(), ..self.live.attrs(shares)? }),
                None => Ok(own(2, 2, self.born)),
            },
        }
    }

    fn control_stat(&self, dir: ControlDir) -> Result<Stat, Error> {
        if dir == ControlDir::Shares
            && let Some(shares) = self.live.shares()
        {
            let attrs = self.control_attrs(dir)?;
            return Ok(Stat { attrs, inode: dir.id().0, ..self.live.getattr(shares)? });
        }
        Ok(Stat {
            attrs: self.control_attrs(dir)?,
            inode: dir.id().0,
            blocks: 0,
            is_settled: true,
            block_size: BLOCK_SIZE,
        })
    }

    /// Returns what a listing shows of the root of a snapshot, which need not be open for that.
    fn listed_snapshot(&self, id: ObjectId, dataset: ObjectId) -> Result<Stat, Error> {
        let snapshot = self.snapshots.snapshot(dataset)?;
        let created = Time { sec: snapshot.phys().creation_time.cast_signed(), nsec: 0 };
        let attrs = Attrs {
            generation: snapshot.snapshot_id().as_ref().map_or(0, generation),
            parent: ControlDir::Snapshots.id(),
            // nobody is let in by what is not the mode of the root
            mode: MODE & !0o777,
            ..made_up(created)
        };
        Ok(Stat { attrs, inode: id.0, blocks: 0, is_settled: true, block_size: BLOCK_SIZE })
    }

    /// Returns the entries of a control directory.
    fn list(&self, cred: &Cred, dir: ControlDir, cookie: u64) -> Result<ReadDir, Error> {
        let entry = |of: ControlDir, next_cookie| DirEntry {
            name: of.name().to_vec(),
            object: of.id(),
            kind: Kind::Directory,
            next_cookie,
        };
        match dir {
            ControlDir::Root if self.snapdir()? == SNAPDIR_DISABLED => Err(Error::not_found(dir.name())),
            ControlDir::Root => {
                let all = [entry(ControlDir::Snapshots, 3), entry(ControlDir::Shares, 4)];
                Ok(ReadDir::made(all.into_iter().filter(move |entry| entry.next_cookie > cookie).map(Ok)))
            }
            ControlDir::Snapshots => self.list_snapshots(cookie),
            ControlDir::Shares => match self.live.shares() {
                Some(shares) => self.list_live(cred, shares, cookie),
                None => Ok(ReadDir::made(std::iter::empty())),
            },
        }
    }

    /// Returns the snapshots in the order of their objects, which stays when others come and go.
    fn list_snapshots(&self, cookie: u64) -> Result<ReadDir, Error> {
        let mut names = self.snapshots.head()?.snapshot_names()?;
        names.retain(|(_, dataset)| dataset.0.saturating_add(COOKIE) > cookie);
        names.sort_unstable_by_key(|(_, dataset)| *dataset);
        Ok(ReadDir::made(names.into_iter().map(|(name, dataset)| -> Result<DirEntry, Error> {
            Ok(DirEntry {
                name: name.into_bytes(),
                object: ids::snapshot_root(dataset)?,
                kind: Kind::Directory,
                next_cookie: dataset.0 + COOKIE,
            })
        })))
    }

    /// Returns the entries of a directory of the file system.
    fn list_live(&self, cred: &Cred, dir: ObjectId, cookie: u64) -> Result<ReadDir, Error> {
        let is_root = dir == self.live.root();
        let from = if is_root && cookie <= BEHIND_ROOT { 0 } else { cookie };
        let entries = self.live.read_dir(cred, dir, from)?;
        let is_shown = is_root && cookie < BEHIND_ROOT && self.is_visible();
        let root = is_shown.then(|| DirEntry {
            name: ControlDir::Root.name().to_vec(),
            object: ControlDir::Root.id(),
            kind: Kind::Directory,
            next_cookie: BEHIND_ROOT,
        });
        let checked = |entry: Result<DirEntry, Error>| -> Result<DirEntry, Error> {
            let entry = entry?;
            ids::live(entry.object)?;
            Ok(entry)
        };
        Ok(ReadDir::made(root.map(Ok).into_iter().chain(entries.map(checked))))
    }

    /// Returns the entries of a directory of a snapshot, which is in use until all are read.
    fn list_snapshot(
        &self,
        cred: &Cred,
        snapshot: SnapshotInUse,
        dir: ObjectId,
        cookie: u64,
    ) -> Result<ReadDir, Error> {
        let entries = snapshot.still.read_dir(cred, dir, cookie)?;
        Ok(ReadDir::made(entries.map(move |entry| -> Result<DirEntry, Error> {
            let entry = entry?;
            Ok(DirEntry { object: shown(&snapshot, entry.object)?, ..entry })
        })))
    }

    fn attrs_of_live(&self, attrs: Attrs) -> Attrs {
        match self.live.shares() {
            Some(shares) if attrs.parent == shares => Attrs { parent: ControlDir::Shares.id(), ..attrs },
            _ => attrs,
        }
    }
}

/// Returns the number of a file of a snapshot.
fn shown(snapshot: &SnapshotInUse, object: ObjectId) -> Result<ObjectId, Error> {
    match object == snapshot.still.root() {
        true => ids::snapshot_root(snapshot.id.object),
        false => ids::in_snapshot(snapshot.lease.slot, object),
    }
}

/// Returns the attributes of a file of a snapshot as they are shown.
fn shown_attrs(snapshot: &SnapshotInUse, object: ObjectId, attrs: Attrs) -> Result<Attrs, Error> {
    let parent = match object == snapshot.still.root() {
        true => ControlDir::Snapshots.id(),
        false => shown(snapshot, attrs.parent)?,
    };
    Ok(Attrs { generation: generation(&snapshot.id), parent, ..attrs })
}

/// Returns the generation of all files of a snapshot. It differs for one that is received again, also in the lower half, which is what the kernel keeps.
fn generation(id: &SnapshotId) -> u64 {
    id.guid.0 ^ id.creation_txg.0
}

fn now(env: &Env) -> Time {
    let now = env.now();
    Time { sec: now.as_secs().cast_signed(), nsec: now.subsec_nanos() }
}

/// Returns the attributes of a directory for which no object exists.
fn made_up(born: Time) -> Attrs {
    Attrs {
        mode: MODE,
        owner: Fuid::default(),
        group: Fuid::default(),
        size: 0,
        links: 1,
        generation: 0,
        parent: ObjectId::NONE,
        atime: born,
        mtime: born,
        ctime: born,
        crtime: born,
        flags: FileFlags::default(),
        projid: None,
        rdev: None,
        xattr_dir: ObjectId::NONE,
        seq: None,
    }
}
