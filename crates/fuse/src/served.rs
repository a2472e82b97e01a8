//! The file system as the requests find it: files by the kernel's numbers, callers, open files.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Errno, ObjectId};
use fuser::{FileAttr, FileHandle, FopenFlags, Generation, INodeNo, Request};
use parking_lot::Mutex;
use zpl::live::{AclKind, Cred, Handle, Stat, Vfs};
use zpl::{Attrs, Kind};

use crate::Options;
use crate::below::Below;
use crate::caller::Callers;
use crate::convert::file_attr;
use crate::known::Known;
use crate::leaving::Leaving;
use crate::mapped::Mapped;
use crate::notify::Line;
use crate::pinned::{self, Pinned, Subject};
use crate::under_way::UnderWay;
use crate::waiters::Waiters;

/// How long the attributes of a file are cached at most while it is not on disk.
const UNSETTLED: Duration = Duration::from_secs(1);

/// The result of a request.
pub(crate) type Answer<T> = Result<T, Errno>;

/// What the kernel is told of a file that it looks up.
pub(crate) struct Entry {
    pub(crate) attr: FileAttr,
    pub(crate) generation: Generation,
    /// How long its attributes are cached.
    pub(crate) attr_ttl: Duration,
    /// How long its name is.
    pub(crate) name_ttl: Duration,
}

/// A file that was opened, or created.
pub(crate) struct Opened {
    pub(crate) handle: FileHandle,
    pub(crate) flags: FopenFlags,
}

/// A handle, and what can be done by it.
struct Kept {
    handle: Arc<Handle>,
    /// The file may be changed through a mapping.
    writable: bool,
    /// Reads and writes pass by the cache of the kernel, which may have pages of the file from others.
    direct: bool,
}

/// A file system that is mounted.
pub(crate) struct Served {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) root: ObjectId,
    pub(crate) known: Arc<Known>,
    pub(crate) waiters: Waiters,
    pub(crate) leaving: Arc<Leaving>,
    pub(crate) under_way: Arc<UnderWay>,
    pub(crate) below: Arc<Below>,
    pub(crate) acls: AclKind,
    callers: Callers,
    /// The files that somebody has open.
    open: Mutex<HashMap<u64, Kept>>,
    pub(crate) mapped: Arc<Mapped>,
    next: AtomicU64,
    /// How long attributes are cached.
    pub(crate) attr_ttl: Duration,
    /// How long names are.
    pub(crate) name_ttl: Duration,
    /// Held while flags are read and set.
    pub(crate) flags: Mutex<()>,
    pub(crate) line: Arc<Line>,
}

impl Served {
    pub(crate) fn new(vfs: Arc<dyn Vfs>, acls: AclKind, options: &Options) -> Served {
        let (root, known) = (vfs.root(), Arc::<Known>::default());
        // a cached name is passed by whoever may search its directory, which the kernel does not know of NFSv4 ACLs; and it stays when the
        // entry is removed by another spelling
        let cached = acls != AclKind::Nfs4 && vfs.names_are_exact();
        let name_ttl = if cached { options.cache } else { Duration::ZERO };
        Served {
            vfs,
            root,
            known: known.clone(),
            waiters: Waiters::new(options.threads),
            leaving: Arc::default(),
            under_way: Arc::default(),
            below: Arc::new(Below::new(known, root)),
            acls,
            callers: Callers::new(),
            open: Mutex::default(),
            mapped: Arc::default(),
            next: AtomicU64::new(1),
            attr_ttl: options.cache,
            name_ttl,
            flags: Mutex::default(),
            line: Arc::default(),
        }
    }

    /// True if the kernel checks modes, POSIX ACLs and owners.
    pub(crate) fn kernel_decides(&self) -> bool {
        self.acls != AclKind::Nfs4
    }

    /// Returns the caller, for a decision that is the kernel's if it makes any.
    pub(crate) fn caller(&self, req: &Request) -> Cred {
        if self.kernel_decides() { Callers::decided(req) } else { self.callers.real(req) }
    }

    /// Returns the caller, for a decision that is the engine's.
    pub(crate) fn real_caller(&self, req: &Request) -> Cred {
        self.callers.real(req)
    }

    /// Returns the caller of `access`.
    pub(crate) fn accessing_caller(&self, req: &Request) -> Cred {
        self.callers.accessing(req)
    }

    /// Returns the number by which the kernel knows a file.
    pub(crate) fn node(&self, id: ObjectId) -> u64 {
        if id == self.root { INodeNo::ROOT.0 } else { id.0 }
    }

    /// Returns the object number of a file that the caller has open.
    pub(crate) fn open_file(&self, node: INodeNo) -> ObjectId {
        if node == INodeNo::ROOT { self.root } else { ObjectId(node.0) }
    }

    /// Pins the file system for a step of a request.
    ///
    /// # Errors
    /// EIO if it is not there any more.
    pub(crate) fn pin(&self) -> Answer<Pinned> {
        Pinned::new(&self.vfs)
    }

    /// Pins the file system for a request about a file that the kernel knows, and returns its object number. Which file the kernel means is read before
    /// that: while the pin is waited for, the number may become that of another file, of which the kernel learns.
    ///
    /// # Errors
    /// ESTALE if it is another file by now; as [`Served::pin`].
    pub(crate) fn pin_file(&self, node: INodeNo) -> Answer<(Pinned, ObjectId)> {
        let file = self.known_file(node);
        Ok((file.pin()?, file.id))
    }

    /// As [`Served::pin_file`], for a change in a directory. In one of whose changes nobody tells it is a command (`.zfs/snapshot`), which may wait for
    /// others: the file system is not pinned for it.
    ///
    /// # Errors
    /// As [`Served::pin_file`].
    pub(crate) fn pin_dir(&self, node: INodeNo) -> Answer<(Pinned, ObjectId)> {
        let dir = self.known_file(node);
        let pinned = if self.vfs.is_told(dir.id) { self.pin()? } else { Pinned::unpinned(&self.vfs) };
        dir.check(&pinned)?;
        Ok((pinned, dir.id))
    }

    /// Returns a file that the kernel knows by now, for the steps of a request: before the first of them.
    pub(crate) fn known_file(&self, node: INodeNo) -> Subject {
        let id = self.open_file(node);
        Subject { vfs: self.vfs.clone(), id, known: pinned::Known::By(self.known.generation(id)) }
    }

    /// Returns a file that the caller has open by a handle, likewise.
    pub(crate) fn opened_file(&self, node: INodeNo, handle: FileHandle) -> Subject {
        let open = self.open.lock().get(&handle.0).map(|kept| kept.handle.clone());
        Subject { vfs: self.vfs.clone(), id: self.open_file(node), known: pinned::Known::Open(open) }
    }

    /// Tells the kernel of a file, by a name in a directory or by its number.
    ///
    /// # Errors
    /// ESTALE if it has lost its last name, after which the kernel looks again: it is being freed, and its number may be another file's soon. Where somebody has it open, the kernel does not
    /// ask for it.
    pub(crate) fn entry(&self, pinned: &Pinned, id: ObjectId, name: Option<(ObjectId, &[u8])>) -> Answer<Entry> {
        let stat = stat(&**pinned, id)?;
        if stat.attrs.links == 0 {
            return Err(Errno::ESTALE);
        }
        let generation = Generation(stat.attrs.generation);
        let cached = self.looked_up(id, &stat.attrs, name) && pinned.is_told(id);
        let name_ttl = if cached { self.name_ttl } else { Duration::ZERO };
        let attr_ttl = self.attr_ttl_of(id, &stat);
        Ok(Entry { attr: file_attr(&stat, self.node(id)), generation, attr_ttl, name_ttl })
    }

    /// Returns how long the attributes of a file are cached: not at all, if nobody tells of their changes.
    pub(crate) fn attr_ttl_of(&self, id: ObjectId, stat: &Stat) -> Duration {
        if self.vfs.is_told(id) { ttl(self.attr_ttl, stat) } else { Duration::ZERO }
    }

    /// Notes that the kernel is told of a file. Returns whether it may cache the name.
    pub(crate) fn looked_up(&self, id: ObjectId, attrs: &Attrs, name: Option<(ObjectId, &[u8])>) -> bool {
        let has_others = attrs.kind() != Kind::Directory && attrs.links > 1;
        self.known.looked_up(id, attrs.generation, name, has_others)
    }

    /// Keeps a handle until it is released.
    pub(crate) fn keep(&self, handle: Handle, flags: FopenFlags, writable: bool) -> Opened {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if writable {
            self.mapped.opened(handle.id());
        }
        let direct = flags.contains(FopenFlags::FOPEN_DIRECT_IO);
        self.open.lock().insert(number, Kept { handle: Arc::new(handle), writable, direct });
        Opened { handle: FileHandle(number), flags }
    }

    /// Releases a handle.
    pub(crate) fn release(&self, handle: FileHandle) {
        let gone = self.open.lock().remove(&handle.0);
        if let Some(Kept { handle, writable: true, .. }) = &gone {
            self.mapped.closed(handle.id());
        }
        // without the lock: the last one of a removed file frees it, which takes time
        drop(gone);
    }

    /// True if what is written by a handle passes by the cache of the kernel.
    pub(crate) fn is_direct(&self, handle: FileHandle) -> bool {
        self.open.lock().get(&handle.0).is_some_and(|kept| kept.direct)
    }

    /// Releases all that the kernel has not, when the mount has ended.
    pub(crate) fn release_all(&self) {
        self.leaving.end();
        self.waiters.wait_idle();
        let open = std::mem::take(&mut *self.open.lock());
        drop(open);
        self.known.clear();
    }

    /// Returns a file whose attributes the kernel is going to be told to drop.
    pub(crate) fn stale(&self, id: ObjectId) -> Stale {
        Stale { line: self.line.clone(), node: self.node(id) }
    }
}

/// Returns how long attributes are cached, at most so long: the space that a file uses changes once more when it comes to the disk, of which nobody tells.
pub(crate) fn ttl(longest: Duration, stat: &Stat) -> Duration {
    if stat.is_settled { longest } else { longest.min(UNSETTLED) }
}

pub(crate) fn stat(vfs: &dyn Vfs, id: ObjectId) -> Answer<Stat> {
    vfs.getattr(id).map_err(|error| error.errno())
}

/// A file whose cached attributes are not right any more, and perhaps its pages.
pub(crate) struct Stale {
    line: Arc<Line>,
    node: u64,
}

impl Stale {
    /// Tells the kernel to drop the attributes.
    pub(crate) fn tell(&self) {
        // nothing is to be done if the mount has gone, or the kernel does not know the file
        let _ = self.line.attributes_changed(self.node);
    }

    /// Tells it that the end of the file is not where it appended: in a thread of its own also to drop the pages that it has put there.
    pub(crate) fn tell_moved(&self, apart: bool) {
        if apart { self.tell_contents() } else { self.tell() }
    }

    /// Tells it to drop the pages as well, of which it first writes the changed ones. This waits for other requests about the file, so that no
    /// thread that answers requests may call it.
    pub(crate) fn tell_contents(&self) {
        let _ = self.line.contents_changed(self.node);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ondisk::ObjsetType;
    use pool::NewDataset;
    use zpl::create::{FsProps, create_fs};
    use zpl::live::{NewFile, Zfs};

    use super::*;

    #[test]
    fn the_kernel_is_not_told_of_a_file_that_is_being_freed() {
        let (spa, _devices) = pool::testing::in_memory("d0", 1);
        let new = NewDataset::inheriting("t/a", ObjsetType::Zfs);
        spa.create_dataset(new, Box::new(|objset, tx| create_fs(objset, tx, &FsProps::default()))).unwrap();
        let zfs = Arc::new(Zfs::open(&spa, "t/a").unwrap());
        let root = zfs.fs().root();
        let (id, _) = Vfs::create(&*zfs, &Cred::ROOT, root, b"f", &NewFile::new(Kind::File, 0o644)).unwrap();
        let served = Served::new(zfs.clone(), AclKind::Off, &Options::new("t/a"));
        let told = |name| served.entry(&served.pin().unwrap(), id, name).map(|entry| entry.attr.nlink);
        assert_eq!((told(None), told(Some((root, b"f")))), (Ok(1), Ok(1)));
        served.known.clear();
        // a program that uses the engine has it open, and not the kernel
        let open = Vfs::open(&*zfs, &Cred::ROOT, id, 4).unwrap();
        Vfs::unlink(&*zfs, &Cred::ROOT, root, b"f").unwrap();
        assert_eq!((told(None), told(Some((root, b"f")))), (Err(Errno::ESTALE), Err(Errno::ESTALE)));
        assert_eq!(served.known.generation(id), None);
        drop(open);
    }
}
