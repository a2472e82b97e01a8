//! A file system that stays mounted while its contents are replaced (OpenZFS: `zfs_suspend_fs`, `zfs_resume_fs`).
//!
//! A rollback and the end of a receive put another object set in the place of a head, which nobody may have open meanwhile. A [`Suspendable`] is what a
//! mount has instead of the [`Zfs`] itself. Told to, it lets operations end, lets new ones wait, and closes the files that are held open and the file
//! system. Afterwards it opens the file system again, and in it each file whose number and generation are still those of before. Operations on the
//! contents of a file that is open and no longer there fail with ESTALE until it is closed, even if its number is another file's by then. If the file
//! system does not open again, all operations fail with EIO, and the one who has mounted it is told, as he is of each resumption: what the kernel has
//! cached is old.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use base::ObjectId;
use parking_lot::{Condvar, Mutex};
use pool::{Spa, Suspend};

use super::{
    AclKind, Cred, Handle, Mounted, NewFile, Refusal, RenameMode, SetAttr, Stat, StatFs, Temporary, Vfs, Wrote,
    XattrMode, Zfs,
};
use crate::{Attrs, Error, ReadDir};

/// What is told after the contents were replaced: whether the file system is there again.
pub type Resumed = Box<dyn Fn(bool) + Send + Sync>;

/// A live file system that can be suspended. Cheap to clone; see the [module](self).
#[derive(Clone)]
pub struct Suspendable(Arc<Inner>);

struct Inner {
    spa: Arc<Spa>,
    dataset: ObjectId,
    root: ObjectId,
    state: Mutex<State>,
    /// The state has changed.
    changed: Condvar,
    files: Mutex<Files>,
    resumed: Mutex<Option<Arc<Resumed>>>,
}

struct State {
    suspended: bool,
    /// Operations that are under way.
    users: usize,
    /// `None` while it is suspended, and if it did not open again.
    zfs: Option<Zfs>,
    /// Values in the place of properties, from when it is mounted; and what makes them so.
    temporary: Option<Temporary>,
    mounted: Option<Mounted>,
}

/// The files that are held open, by the numbers of their slots.
#[derive(Default)]
struct Files {
    next: u64,
    slots: HashMap<u64, File>,
    /// Files that are open and not there any more: how many slots each has.
    stale: HashMap<ObjectId, usize>,
}

struct File {
    id: ObjectId,
    generation: u64,
    /// Writes to it are synchronous.
    sync: bool,
    /// `None` while it is suspended, or if it is stale.
    handle: Option<Handle>,
    is_stale: bool,
}

/// A file that is held open, until this is dropped.
pub(super) struct Slot {
    owner: Arc<Inner>,
    number: u64,
}

impl Slot {
    /// Makes the writes to the file synchronous.
    pub(super) fn synchronous(self) -> Slot {
        if let Some(file) = self.owner.files.lock().slots.get_mut(&self.number) {
            file.sync = true;
            file.handle = file.handle.take().map(Handle::synchronous);
        }
        self
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut files = self.owner.files.lock();
        let gone = files.slots.remove(&self.number);
        if let Some(file) = gone.as_ref().filter(|file| file.is_stale) {
            let left = files.stale.get(&file.id).map_or(0, |count| count.saturating_sub(1));
            match left {
                0 => files.stale.remove(&file.id),
                left => files.stale.insert(file.id, left),
            };
        }
        // the last one of a removed file frees it, which takes time
        drop(files);
        drop(gone);
    }
}

/// The file system during an operation.
struct InUse<'a> {
    inner: &'a Inner,
    zfs: Option<Zfs>,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        // before it is counted as ended
        self.zfs = None;
        let mut state = self.inner.state.lock();
        state.users -= 1;
        if state.suspended && state.users == 0 {
            self.inner.changed.notify_all();
        }
    }
}

impl Inner {
    /// Waits until it is not suspended, and keeps it from being so.
    fn enter(&self) -> InUse<'_> {
        let mut state = self.state.lock();
        while state.suspended {
            self.changed.wait(&mut state);
        }
        state.users += 1;
        InUse { inner: self, zfs: state.zfs.clone() }
    }

    /// Carries out an operation.
    fn with<R>(&self, work: impl FnOnce(&Zfs) -> Result<R, Error>) -> Result<R, Error> {
        let used = self.enter();
        match &used.zfs {
            Some(zfs) => work(zfs),
            None => Err(Error::Pool(Box::new(pool::Error::Closed))),
        }
    }

    /// Carries out an operation on the contents of files that are open.
    fn with_open<R>(&self, ids: &[ObjectId], work: impl FnOnce(&Zfs) -> Result<R, Error>) -> Result<R, Error> {
        self.with(|zfs| {
            let files = self.files.lock();
            let stale = ids.iter().find(|id| files.stale.contains_key(id)).copied();
            drop(files);
            stale.map_or_else(|| work(zfs), |id| Err(Refusal::Stale.of(id)))
        })
    }

    /// Opens the file system as it is now, and the files in it that are still there.
    fn open_again(&self, temporary: Option<Temporary>) -> Result<(Zfs, Option<Mounted>), Error> {
        let name = self.spa.view()?.dataset_by_id(self.dataset)?.name().to_owned();
        let zfs = Zfs::open(&self.spa, &name)?;
        if zfs.fs().root() != self.root {
            return Err(Refusal::Stale.of(self.root));
        }
        let mounted = temporary.map(|temporary| zfs.mounted(temporary)).transpose()?;
        let mut files = self.files.lock();
        let Files { slots, stale, .. } = &mut *files;
        for file in slots.values_mut().filter(|file| !file.is_stale) {
            let is_same = zfs.getattr(file.id).is_ok_and(|attrs| attrs.generation == file.generation);
            let opened = if is_same { zfs.open_file(&Cred::ROOT, file.id, 0).ok() } else { None };
            match opened.map(Handle::from) {
                Some(handle) if file.sync => file.handle = Some(handle.synchronous()),
                Some(handle) => file.handle = Some(handle),
                None => {
                    file.is_stale = true;
                    *stale.entry(file.id).or_default() += 1;
                }
            }
        }
        drop(files);
        Ok((zfs, mounted))
    }
}

impl Suspend for Inner {
    fn dataset(&self) -> ObjectId {
        self.dataset
    }

    fn suspend(&self) {
        let mut state = self.state.lock();
        while state.suspended {
            self.changed.wait(&mut state);
        }
        state.suspended = true;
        while state.users > 0 {
            self.changed.wait(&mut state);
        }
        let let_go = (state.mounted.take(), state.zfs.take());
        drop(state);
        let handles: Vec<Handle> = self.files.lock().slots.values_mut().filter_map(|file| file.handle.take()).collect();
        drop(handles);
        drop(let_go);
    }

    fn resume(&self) {
        let temporary = self.state.lock().temporary;
        let opened = self.open_again(temporary);
        if let Err(error) = &opened {
            tracing::warn!(target: "zuse::zpl", dataset = self.dataset.0, %error, "a mounted file system does not open again");
        }
        let is_there = opened.is_ok();
        let mut state = self.state.lock();
        if let Ok((zfs, mounted)) = opened {
            (state.zfs, state.mounted) = (Some(zfs), mounted);
        }
        state.suspended = false;
        drop(state);
        self.changed.notify_all();
        let told = self.resumed.lock().clone();
        if let Some(told) = told {
            told(is_there);
        }
    }
}

impl Suspendable {
    /// Makes an open file system one that can be suspended: this is the only one who has it open, and whatever opens it besides must be closed before its
    /// contents can be replaced.
    #[must_use]
    pub fn new(zfs: Zfs) -> Suspendable {
        let (spa, dataset, root) = (zfs.spa().clone(), zfs.fs().objset().id(), zfs.fs().root());
        let state = State { suspended: false, users: 0, zfs: Some(zfs), temporary: None, mounted: None };
        let inner = Arc::new(Inner {
            spa: spa.clone(),
            dataset,
            root,
            state: Mutex::new(state),
            changed: Condvar::new(),
            files: Mutex::default(),
            resumed: Mutex::default(),
        });
        let user: std::sync::Weak<Inner> = Arc::downgrade(&inner);
        spa.suspend_with(user);
        Suspendable(inner)
    }

    /// Has it told each time that the contents were replaced, by the thread that has done it; at the end of the mount it has to be given up.
    pub fn tell_resumed(&self, told: Option<Resumed>) {
        *self.0.resumed.lock() = told.map(Arc::new);
    }

    /// Changes the values that are in the place of properties while it is mounted.
    pub fn set_temporary(&self, temporary: Temporary) {
        let used = self.0.enter();
        let mut state = self.0.state.lock();
        let Some(former) = state.temporary else { return };
        // who decides what users may do is the same until the end of the mount
        let temporary = Temporary { acltype: former.acltype, ..temporary };
        state.temporary = Some(temporary);
        // the former gives way first
        state.mounted = None;
        state.mounted = used.zfs.as_ref().and_then(|zfs| zfs.mounted(temporary).ok());
    }
}

impl Vfs for Suspendable {
    fn root(&self) -> ObjectId {
        self.0.root
    }

    fn lookup(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(ObjectId, Attrs), Error> {
        self.0.with(|zfs| zfs.lookup(cred, dir, name))
    }

    fn attrs(&self, id: ObjectId) -> Result<Attrs, Error> {
        self.0.with(|zfs| zfs.attrs(id))
    }

    fn getattr(&self, id: ObjectId) -> Result<Stat, Error> {
        self.0.with(|zfs| Vfs::getattr(zfs, id))
    }

    fn setattr(&self, cred: &Cred, id: ObjectId, set: &SetAttr) -> Result<Attrs, Error> {
        self.0.with(|zfs| zfs.setattr(cred, id, set))
    }

    fn access(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<(), Error> {
        self.0.with(|zfs| zfs.access(cred, id, mask))
    }

    fn create(&self, cred: &Cred, dir: ObjectId, name: &[u8], new: &NewFile<'_>) -> Result<(ObjectId, Attrs), Error> {
        self.0.with(|zfs| zfs.create(cred, dir, name, new))
    }

    fn link(&self, cred: &Cred, id: ObjectId, dir: ObjectId, name: &[u8]) -> Result<Attrs, Error> {
        self.0.with(|zfs| zfs.link(cred, id, dir, name))
    }

    fn unlink(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), Error> {
        self.0.with(|zfs| zfs.unlink(cred, dir, name))
    }

    fn rmdir(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), Error> {
        self.0.with(|zfs| zfs.rmdir(cred, dir, name))
    }

    fn rename(
        &self,
        cred: &Cred,
        dir: ObjectId,
        name: &[u8],
        to_dir: ObjectId,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), Error> {
        self.0.with(|zfs| zfs.rename(cred, dir, name, to_dir, to_name, mode))
    }

    fn readlink(&self, id: ObjectId) -> Result<Vec<u8>, Error> {
        self.0.with(|zfs| zfs.readlink(id))
    }

    fn read_dir(&self, cred: &Cred, dir: ObjectId, cookie: u64) -> Result<ReadDir, Error> {
        self.0.with_open(&[dir], |zfs| zfs.read_dir(cred, dir, cookie))
    }

    fn open(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<Handle, Error> {
        self.0.with(|zfs| {
            let handle = Vfs::open(zfs, cred, id, mask)?;
            let generation = zfs.getattr(id)?.generation;
            let mut files = self.0.files.lock();
            let number = files.next;
            files.next += 1;
            let file = File { id, generation, sync: false, handle: Some(handle), is_stale: false };
            files.slots.insert(number, file);
            Ok(Handle::of_slot(id, Slot { owner: self.0.clone(), number }))
        })
    }

    fn read(&self, id: ObjectId, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.0.with_open(&[id], |zfs| zfs.read(id, offset, buf))
    }

    fn write(&self, cred: &Cred, id: ObjectId, offset: Option<u64>, data: &[u8]) -> Result<Wrote, Error> {
        self.0.with_open(&[id], |zfs| Vfs::write(zfs, cred, id, offset, data))
    }

    fn write_back(&self, cred: &Cred, id: ObjectId, offset: u64, data: &[u8]) -> Result<Wrote, Error> {
        self.0.with_open(&[id], |zfs| zfs.write_back(cred, id, offset, data))
    }

    fn truncate(&self, cred: &Cred, id: ObjectId, size: u64) -> Result<Attrs, Error> {
        self.0.with_open(&[id], |zfs| zfs.truncate(cred, id, size))
    }

    fn punch(&self, cred: &Cred, id: ObjectId, range: Range<u64>, keep_size: bool) -> Result<(), Error> {
        self.0.with_open(&[id], |zfs| Vfs::punch(zfs, cred, id, range, keep_size))
    }

    fn allocate(&self, cred: &Cred, id: ObjectId, range: Range<u64>, keep_size: bool) -> Result<(), Error> {
        self.0.with_open(&[id], |zfs| zfs.allocate(cred, id, range, keep_size))
    }

    fn seek_data(&self, id: ObjectId, offset: u64) -> Result<u64, Error> {
        self.0.with_open(&[id], |zfs| zfs.seek_data(id, offset))
    }

    fn seek_hole(&self, id: ObjectId, offset: u64) -> Result<u64, Error> {
        self.0.with_open(&[id], |zfs| zfs.seek_hole(id, offset))
    }

    fn copy_range(&self, cred: &Cred, from: (ObjectId, u64), to: (ObjectId, u64), len: u64) -> Result<u64, Error> {
        self.0.with_open(&[from.0, to.0], |zfs| zfs.copy_range(cred, from, to, len))
    }

    fn get_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8]) -> Result<Vec<u8>, Error> {
        self.0.with(|zfs| zfs.get_xattr(cred, id, name))
    }

    fn set_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), Error> {
        self.0.with(|zfs| zfs.set_xattr(cred, id, name, value, mode))
    }

    fn remove_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8]) -> Result<(), Error> {
        self.0.with(|zfs| zfs.remove_xattr(cred, id, name))
    }

    fn list_xattrs(&self, cred: &Cred, id: ObjectId) -> Result<Vec<Vec<u8>>, Error> {
        self.0.with(|zfs| zfs.list_xattrs(cred, id))
    }

    fn write_sync(&self, cred: &Cred, id: ObjectId, offset: Option<u64>, data: &[u8]) -> Result<Wrote, Error> {
        self.0.with_open(&[id], |zfs| Vfs::write_sync(zfs, cred, id, offset, data))
    }

    fn fsync(&self, id: ObjectId) -> Result<(), Error> {
        self.0.with_open(&[id], |zfs| zfs.fsync(id))
    }

    fn sync(&self) -> Result<(), Error> {
        self.0.with(|zfs| zfs.sync())
    }

    fn statfs(&self) -> Result<StatFs, Error> {
        self.0.with(|zfs| zfs.statfs())
    }

    fn shares(&self) -> Option<ObjectId> {
        self.0.enter().zfs.as_ref().and_then(Vfs::shares)
    }

    fn acl_kind(&self) -> AclKind {
        self.0.enter().zfs.as_ref().map_or(AclKind::Off, Vfs::acl_kind)
    }

    fn names_are_exact(&self) -> bool {
        self.0.enter().zfs.as_ref().is_none_or(Vfs::names_are_exact)
    }

    /// Takes it for a mount, also across suspensions. Of the values those for access times and `readonly` can be changed until its end
    /// ([`Suspendable::set_temporary`]).
    fn mounted(&self, temporary: Temporary) -> Result<Mounted, Error> {
        self.0.with(|zfs| {
            let mounted = zfs.mounted(temporary)?;
            let mut state = self.0.state.lock();
            (state.temporary, state.mounted) = (Some(temporary), Some(mounted));
            // it ends with this file system, which the mount has
            Ok(Mounted::default())
        })
    }
}
