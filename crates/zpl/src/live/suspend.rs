//! A file system that stays mounted while its contents are replaced (OpenZFS: `zfs_suspend_fs`, `zfs_resume_fs`).
//!
//! A rollback and the end of a receive put another object set in the place of a head, which nobody may have open meanwhile. A [`Suspendable`] is what a
//! mount has instead of the [`Zfs`] itself. Told to, it lets operations end, lets new ones wait, and lets go of the files that are held open and of the
//! file system; a file that is closed meanwhile is closed when it goes on. Afterwards it opens the file system again, and takes back each file whose number and generation are still those of before; also those
//! without a name, which whoever opens the file system does not free for that reason ([`Spa::kept_objects`]). So a replacement that was refused has
//! no effect on files that are open.
//!
//! Operations that belong together are done on one [`Pin`], which keeps the contents from being replaced. The handle of a file that is not there any more is
//! [stale](Handle::is_stale), even if its number is another file's by then: whoever has a handle asks it before an operation, within the same pin.
//!
//! The one who has mounted it is told of new contents ([`Contents`]): before operations go on, as what the kernel has not written yet was meant for the
//! former ones, and after it, as what the kernel has cached is old. If the file system does not open again, all operations fail with EIO.

use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::{Errno, ObjectId};
use parking_lot::{Condvar, Mutex};
use pool::{KeptObject, Spa, Suspend};

use super::ctldir::ShownIn;
use super::{
    AclKind, Cred, Ctldir, Handle, Mounted, NewFile, Refusal, RenameMode, SetAttr, Stat, StatFs, Temporary, Vfs, Wrote,
    XattrMode, Zfs,
};
use crate::{Attrs, Buf, Error, ReadDir};

/// How often, and in what intervals, a file system that is in use is tried to be opened again.
const TRIES: usize = 500;
const INTERVAL: Duration = Duration::from_millis(10);

/// What has become of the contents of a file system that was suspended. Where they are what they were, nothing is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// They are others. Operations wait until this was told.
    Replaced,
    /// They are others, and operations go on.
    Resumed,
    /// The file system did not open again.
    Lost,
}

/// Called by the thread that has replaced the contents.
pub type Told = Box<dyn Fn(Contents) + Send + Sync>;

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
    told: Mutex<Option<Arc<Told>>>,
    /// The directory of shares, 0 if there is none: the same until the contents are replaced.
    shares: AtomicU64,
}

/// Returns the number of the directory of shares, 0 if there is none.
fn shares_of(zfs: &Zfs) -> u64 {
    zfs.fs().shares().map_or(0, |id| id.0)
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
}

struct File {
    id: ObjectId,
    generation: u64,
    /// Writes to it are synchronous.
    sync: bool,
    /// `None` while it is let go of, and if it is stale.
    handle: Option<Handle>,
    stale: Arc<AtomicBool>,
    /// It was closed while the file system is suspended: it is closed once that goes on.
    closed: bool,
}

impl File {
    fn is_let_go(&self) -> bool {
        self.handle.is_none() && !self.stale.load(Ordering::Relaxed)
    }

    /// Takes it back in the file system that was opened again.
    fn take_back(&mut self, zfs: &Zfs) {
        match zfs.take_back(self.id).map(Handle::from) {
            Some(handle) if self.sync => self.handle = Some(handle.synchronous()),
            Some(handle) => self.handle = Some(handle),
            None => self.stale.store(true, Ordering::Relaxed),
        }
    }
}

/// A file that is held open, until this is dropped.
pub(super) struct Slot {
    owner: Arc<Inner>,
    number: u64,
    stale: Arc<AtomicBool>,
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

    /// Returns the file system, which is not suspended until this is dropped; `None` if it is, or is not there.
    pub(super) fn enter(&self) -> Option<LivePin> {
        let entered = self.owner.enter()?;
        let zfs = self.owner.state.lock().zfs.clone()?;
        Some(LivePin { zfs, entered })
    }

    pub(super) fn is_stale(&self) -> bool {
        // it changes while nothing is pinned
        self.stale.load(Ordering::Relaxed)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // the last one of a removed file frees it, which takes time: an operation as any other, which cannot wait here
        let entered = self.owner.enter();
        let mut files = self.owner.files.lock();
        let gone = match files.slots.get_mut(&self.number) {
            Some(file) if entered.is_none() => {
                file.closed = true;
                None
            }
            _ => files.slots.remove(&self.number),
        };
        drop(files);
        drop(gone);
        drop(entered);
    }
}

/// A live file system whose contents are not replaced until this is dropped: who wants to waits. See [`Vfs::pin`].
pub struct Pin {
    /// It is shown with more in it.
    shown: Option<Ctldir>,
    live: LivePin,
}

impl Deref for Pin {
    type Target = dyn Vfs;

    fn deref(&self) -> &(dyn Vfs + 'static) {
        match &self.shown {
            Some(shown) => shown,
            None => &self.live.zfs,
        }
    }
}

impl Pin {
    /// Shows a control directory in the file system.
    pub(super) fn shown_by(self, show: impl FnOnce(ShownIn) -> Ctldir) -> Pin {
        Pin { shown: Some(show(ShownIn::Pinned(self.live.zfs.clone()))), ..self }
    }

    /// As [`Vfs::open`]; the handle holds the file also across replacements of the contents that leave it there.
    ///
    /// # Errors
    /// As [`Vfs::open`].
    pub fn open(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<Handle, Error> {
        match &self.shown {
            Some(shown) if !Ctldir::is_live(id) => shown.open(cred, id, mask),
            _ => self.live.open(cred, id, mask),
        }
    }
}

/// As [`Pin`], of the file system itself.
pub(super) struct LivePin {
    // dropped before the operation is counted as ended
    zfs: Zfs,
    entered: Entered,
}

impl Deref for LivePin {
    type Target = Zfs;

    fn deref(&self) -> &Zfs {
        &self.zfs
    }
}

impl LivePin {
    pub(super) fn zfs(&self) -> &Zfs {
        &self.zfs
    }

    fn open(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<Handle, Error> {
        let handle = Vfs::open(&self.zfs, cred, id, mask)?;
        let generation = self.zfs.getattr(id)?.generation;
        let (owner, stale) = (&self.entered.0, Arc::<AtomicBool>::default());
        let mut files = owner.files.lock();
        let number = files.next;
        files.next += 1;
        let file = File { id, generation, sync: false, handle: Some(handle), stale: stale.clone(), closed: false };
        files.slots.insert(number, file);
        Ok(Handle::of_slot(id, Slot { owner: owner.clone(), number, stale }))
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a pinned file system")
    }
}

/// An operation that is under way.
struct Entered(Arc<Inner>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Inner {
    /// An operation has ended.
    fn leave(&self) {
        let mut state = self.state.lock();
        state.users -= 1;
        if state.suspended && state.users == 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until it is not suspended, and keeps it from being so.
    fn pin(self: &Arc<Self>) -> Result<LivePin, Error> {
        let mut state = self.state.lock();
        while state.suspended {
            self.changed.wait(&mut state);
        }
        let Some(zfs) = state.zfs.clone() else { return Err(Error::Pool(Box::new(pool::Error::Closed))) };
        state.users += 1;
        Ok(LivePin { zfs, entered: Entered(self.clone()) })
    }

    /// Keeps it from being suspended, unless it is.
    fn enter(self: &Arc<Self>) -> Option<Entered> {
        let mut state = self.state.lock();
        if state.suspended {
            return None;
        }
        state.users += 1;
        drop(state);
        Some(Entered(self.clone()))
    }

    /// Carries out an operation.
    fn with<R>(self: &Arc<Self>, work: impl FnOnce(&Zfs) -> Result<R, Error>) -> Result<R, Error> {
        let pin = self.pin()?;
        work(&pin)
    }

    /// Opens the file system as it is now, and takes back the files in it that are still there.
    fn open_again(&self, temporary: Option<Temporary>) -> Result<(Zfs, Option<Mounted>), Error> {
        let name = self.spa.view()?.dataset_by_id(self.dataset)?.name().to_owned();
        let mut tries = 1;
        let zfs = loop {
            match Zfs::open(&self.spa, &name) {
                // by a reader that is about to be refused
                Err(error) if error.errno() == Errno::EBUSY && tries < TRIES => tries += 1,
                opened => break opened?,
            }
            std::thread::sleep(INTERVAL);
        };
        if zfs.fs().root() != self.root {
            return Err(Refusal::Stale.of(self.root));
        }
        let mounted = temporary.map(|temporary| zfs.mounted(temporary)).transpose()?;
        let mut files = self.files.lock();
        files.slots.values_mut().filter(|file| file.is_let_go()).for_each(|file| file.take_back(&zfs));
        drop(files);
        Ok((zfs, mounted))
    }

    /// Closes the files that were closed while it was suspended.
    fn close_files(&self) {
        let mut files = self.files.lock();
        let closed: Vec<u64> = files.slots.iter().filter(|(_, file)| file.closed).map(|(number, _)| *number).collect();
        let closed: Vec<File> = closed.iter().filter_map(|number| files.slots.remove(number)).collect();
        drop(files);
        // the last one of a removed file frees it
        drop(closed);
    }

    fn tell(&self, contents: Contents) {
        let told = self.told.lock().clone();
        if let Some(told) = told {
            told(contents);
        }
    }
}

impl Suspend for Inner {
    fn dataset(&self) -> ObjectId {
        self.dataset
    }

    fn kept(&self) -> Vec<KeptObject> {
        let files = self.files.lock();
        let kept = files.slots.values().filter(|file| file.is_let_go());
        kept.map(|file| KeptObject { id: file.id, generation: file.generation }).collect()
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
        handles.into_iter().for_each(Handle::let_go);
        drop(let_go);
    }

    fn resume(&self, replaced: bool) {
        let temporary = self.state.lock().temporary;
        let opened = self.open_again(temporary);
        if let Err(error) = &opened {
            tracing::warn!(target: "zuse::zpl", dataset = self.dataset.0, %error, "a mounted file system does not open again");
        }
        let is_there = opened.is_ok();
        if is_there && replaced {
            self.tell(Contents::Replaced);
        }
        let mut state = self.state.lock();
        if let Ok((zfs, mounted)) = opened {
            self.shares.store(shares_of(&zfs), Ordering::Relaxed);
            (state.zfs, state.mounted) = (Some(zfs), mounted);
        }
        state.suspended = false;
        // it is not suspended again before they are closed
        state.users += 1;
        drop(state);
        self.changed.notify_all();
        self.close_files();
        self.leave();
        match (is_there, replaced) {
            (false, _) => self.tell(Contents::Lost),
            (true, true) => self.tell(Contents::Resumed),
            (true, false) => {}
        }
    }
}

impl Suspendable {
    /// Opens file system `name` to be mounted. While its contents are replaced this waits; a replacement that is asked for meanwhile waits for it.
    ///
    /// # Errors
    /// As [`Zfs::open`].
    pub fn open(spa: &Arc<Spa>, name: &str) -> Result<Suspendable, Error> {
        let _turn = spa.turn_to_open(&spa.view()?.dataset(name)?);
        Ok(Suspendable::new(Zfs::open(spa, name)?))
    }

    /// Makes an open file system one that can be suspended: this is the only one who has it open, and whatever opens it besides must be closed before its
    /// contents can be replaced.
    #[must_use]
    pub fn new(zfs: Zfs) -> Suspendable {
        let (spa, dataset, root) = (zfs.spa().clone(), zfs.fs().objset().id(), zfs.fs().root());
        let shares = shares_of(&zfs);
        let state = State { suspended: false, users: 0, zfs: Some(zfs), temporary: None, mounted: None };
        let inner = Arc::new(Inner {
            spa: spa.clone(),
            dataset,
            root,
            state: Mutex::new(state),
            changed: Condvar::new(),
            files: Mutex::default(),
            told: Mutex::default(),
            shares: AtomicU64::new(shares),
        });
        let user: std::sync::Weak<Inner> = Arc::downgrade(&inner);
        spa.suspend_with(user);
        Suspendable(inner)
    }

    /// Has it told each time that the contents were replaced; at the end of the mount it has to be given up.
    pub fn tell_contents(&self, told: Option<Told>) {
        *self.0.told.lock() = told.map(Arc::new);
    }

    /// Changes the values that are in the place of properties while it is mounted.
    pub fn set_temporary(&self, temporary: Temporary) {
        // without a file system they hold from when it is there again
        let pin = self.0.pin().ok();
        let mut state = self.0.state.lock();
        let Some(former) = state.temporary else { return };
        // who decides what users may do is the same until the end of the mount
        let temporary = Temporary { acltype: former.acltype, ..temporary };
        state.temporary = Some(temporary);
        // the former gives way first
        state.mounted = None;
        state.mounted = pin.as_ref().and_then(|pin| pin.mounted(temporary).ok());
    }
}

impl Vfs for Suspendable {
    fn root(&self) -> ObjectId {
        self.0.root
    }

    fn pin(&self) -> Result<Option<Pin>, Error> {
        Ok(Some(Pin { shown: None, live: self.0.pin()? }))
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
        let pin = self.0.pin()?;
        Ok(pin.read_dir(cred, dir, cookie)?.pinned(Pin { shown: None, live: pin }))
    }

    fn open(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<Handle, Error> {
        self.0.pin()?.open(cred, id, mask)
    }

    fn read(&self, id: ObjectId, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.0.with(|zfs| zfs.read(id, offset, buf))
    }

    fn lend(&self, id: ObjectId, offset: u64, len: usize) -> Result<Option<Buf>, Error> {
        self.0.with(|zfs| zfs.lend(id, offset, len))
    }

    fn write(&self, cred: &Cred, id: ObjectId, offset: Option<u64>, data: &[u8]) -> Result<Wrote, Error> {
        self.0.with(|zfs| Vfs::write(zfs, cred, id, offset, data))
    }

    fn write_back(&self, cred: &Cred, id: ObjectId, offset: u64, data: &[u8]) -> Result<Wrote, Error> {
        self.0.with(|zfs| zfs.write_back(cred, id, offset, data))
    }

    fn truncate(&self, cred: &Cred, id: ObjectId, size: u64) -> Result<Attrs, Error> {
        self.0.with(|zfs| zfs.truncate(cred, id, size))
    }

    fn punch(&self, cred: &Cred, id: ObjectId, range: Range<u64>, keep_size: bool) -> Result<(), Error> {
        self.0.with(|zfs| Vfs::punch(zfs, cred, id, range, keep_size))
    }

    fn allocate(&self, cred: &Cred, id: ObjectId, range: Range<u64>, keep_size: bool) -> Result<(), Error> {
        self.0.with(|zfs| zfs.allocate(cred, id, range, keep_size))
    }

    fn seek_data(&self, id: ObjectId, offset: u64) -> Result<u64, Error> {
        self.0.with(|zfs| zfs.seek_data(id, offset))
    }

    fn seek_hole(&self, id: ObjectId, offset: u64) -> Result<u64, Error> {
        self.0.with(|zfs| zfs.seek_hole(id, offset))
    }

    fn copy_range(&self, cred: &Cred, from: (ObjectId, u64), to: (ObjectId, u64), len: u64) -> Result<u64, Error> {
        self.0.with(|zfs| zfs.copy_range(cred, from, to, len))
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
        self.0.with(|zfs| Vfs::write_sync(zfs, cred, id, offset, data))
    }

    fn fsync(&self, id: ObjectId) -> Result<(), Error> {
        self.0.with(|zfs| zfs.fsync(id))
    }

    fn sync(&self) -> Result<(), Error> {
        self.0.with(|zfs| zfs.sync())
    }

    fn statfs(&self) -> Result<StatFs, Error> {
        self.0.with(|zfs| zfs.statfs())
    }

    fn shares(&self) -> Option<ObjectId> {
        let shares = self.0.shares.load(Ordering::Relaxed);
        (shares != 0).then_some(ObjectId(shares))
    }

    fn acl_kind(&self) -> AclKind {
        self.0.pin().map_or(AclKind::Off, |pin| Vfs::acl_kind(&*pin))
    }

    fn names_are_exact(&self) -> bool {
        self.0.pin().is_ok_and(|pin| Vfs::names_are_exact(&*pin))
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

#[cfg(test)]
mod tests;
