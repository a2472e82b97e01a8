//! The requests of the kernel about a directory of devices.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::Errno;
use fuser::{
    BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;

use super::nodes::{Nodes, ROOT};
use super::{Device, Devices, Found, Kind};
use crate::convert::errno;
use crate::waiters::Waiters;

/// Nothing is cached.
const TTL: Duration = Duration::ZERO;
/// The largest write of one request.
const MAX_WRITE: u32 = 1 << 20;
/// Requests that nobody waits for that the kernel sends at a time.
const MAX_BACKGROUND: u16 = 64;
/// What the kernel may do on its own, of what it knows: look up names and read directories at once, and have several requests of one read or write under way.
const WANTED: InitFlags = InitFlags::FUSE_PARALLEL_DIROPS.union(InitFlags::FUSE_ASYNC_DIO);
/// The number of an entry of a directory that the kernel has not looked up (as libfuse has it).
const UNKNOWN: u64 = 0xffff_ffff;
/// Bytes of the unit of `blocks` in attributes.
const SECTOR: u64 = 512;
const O_DSYNC: i32 = 0o1_0000;
/// The block size of the file system as a whole: a loop device discards in such units.
const GRANULE: u32 = 4096;
/// Modes of `fallocate`.
const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;
/// Kinds of `lseek` that the kernel leaves to us.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// The longest name.
const NAME_MAX: u32 = 255;

thread_local! {
    /// The buffer of the reads of a thread.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A directory of devices, as the requests find it.
pub(super) struct Tree {
    devices: Arc<dyn Devices>,
    nodes: Mutex<Nodes>,
    open: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
    waiters: Waiters,
    owner: (u32, u32),
}

/// What somebody has open.
enum Open {
    Directory(Arc<Vec<(String, FileType)>>),
    /// A device, with the number of its file.
    Device(u64, Arc<dyn Device>),
}

type Answer<T> = Result<T, Errno>;

fn answer(done: Answer<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_write(done: Answer<u32>, reply: ReplyWrite) {
    match done {
        Ok(len) => reply.written(len),
        Err(error) => reply.error(errno(error)),
    }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::Device { .. } => FileType::RegularFile,
    }
}

impl Tree {
    pub(super) fn new(devices: Arc<dyn Devices>) -> Tree {
        Tree {
            devices,
            nodes: Mutex::default(),
            open: Mutex::default(),
            next: AtomicU64::new(1),
            waiters: Waiters::default(),
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        }
    }

    /// The path of a node.
    fn path(&self, node: INodeNo) -> Answer<String> {
        match node.0 {
            ROOT => Ok(String::new()),
            number => self.nodes.lock().path(number).map(|(path, _)| path).ok_or(Errno::ESTALE),
        }
    }

    /// What a node is by now.
    ///
    /// # Errors
    /// ESTALE if it is not where it was.
    fn now(&self, node: INodeNo) -> Answer<(String, Found)> {
        if node.0 == ROOT {
            return Ok((String::new(), self.devices.find("")?));
        }
        let (path, identity) = self.nodes.lock().path(node.0).ok_or(Errno::ESTALE)?;
        match self.devices.find(&path) {
            Ok(found) if found.identity == identity => Ok((path, found)),
            Ok(_) | Err(Errno::ENOENT) => Err(Errno::ESTALE),
            Err(error) => Err(error),
        }
    }

    fn attr(&self, node: u64, kind: Kind) -> FileAttr {
        let (perm, size, block_size, nlink) = match kind {
            Kind::Directory => (0o755, 0, SECTOR, 2),
            Kind::Device { size, block_size, read_only } => {
                (if read_only { 0o400 } else { 0o600 }, size, block_size, 1)
            }
        };
        FileAttr {
            ino: INodeNo(node),
            size,
            blocks: size.div_ceil(SECTOR),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: file_type(kind),
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: u32::try_from(block_size).unwrap_or(u32::MAX),
            flags: 0,
        }
    }

    /// The attributes of a node. Of a device that somebody has open they are known whatever its name is by now.
    fn attributes(&self, node: INodeNo) -> Answer<FileAttr> {
        let is_it = |open: &Open| match open {
            Open::Device(of, device) if *of == node.0 => Some(device.clone()),
            _ => None,
        };
        let device = self.open.lock().values().find_map(is_it);
        let kind = match device {
            Some(device) => {
                Kind::Device { size: device.size(), block_size: device.block_size(), read_only: device.is_read_only() }
            }
            None => self.now(node)?.1.kind,
        };
        Ok(self.attr(node.0, kind))
    }

    fn look_up(&self, parent: INodeNo, name: &OsStr) -> Answer<FileAttr> {
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        let mut path = self.path(parent)?;
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(name);
        let found = self.devices.find(&path)?;
        let node = self.nodes.lock().looked_up(path, found.identity);
        Ok(self.attr(node, found.kind))
    }

    fn keep(&self, open: Open) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(number, open);
        FileHandle(number)
    }

    fn release(&self, handle: FileHandle) {
        let gone = self.open.lock().remove(&handle.0);
        // the last user of a volume closes it, which takes time
        drop(gone);
    }

    fn device(&self, handle: FileHandle) -> Answer<Arc<dyn Device>> {
        match self.open.lock().get(&handle.0) {
            Some(Open::Device(_, device)) => Ok(device.clone()),
            _ => Err(Errno::EBADF),
        }
    }

    fn open_device(&self, node: INodeNo, flags: OpenFlags) -> Answer<FileHandle> {
        let (path, _) = self.now(node)?;
        let device = self.devices.open(&path)?;
        if flags.acc_mode() != OpenAccMode::O_RDONLY && device.is_read_only() {
            return Err(Errno::EROFS);
        }
        Ok(self.keep(Open::Device(node.0, device)))
    }

    fn open_directory(&self, node: INodeNo) -> Answer<FileHandle> {
        let path = self.path(node)?;
        let dots = [".", ".."].map(|name| (name.to_owned(), FileType::Directory));
        let found = self.devices.list(&path)?.into_iter().map(|(name, found)| (name, file_type(found.kind)));
        Ok(self.keep(Open::Directory(Arc::new(dots.into_iter().chain(found).collect()))))
    }

    fn read_directory(&self, handle: FileHandle, offset: u64, reply: &mut ReplyDirectory) -> Answer<()> {
        let entries = match self.open.lock().get(&handle.0) {
            Some(Open::Directory(entries)) => entries.clone(),
            _ => return Err(Errno::EBADF),
        };
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (name, kind)) in entries.iter().enumerate().skip(begin) {
            if reply.add(INodeNo(UNKNOWN), place as u64 + 1, *kind, name) {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the part of a request's range that is within a device; `None` if there is none.
fn within(device: &dyn Device, offset: u64, len: u64) -> Option<u64> {
    device.size().checked_sub(offset).map(|left| left.min(len)).filter(|len| *len > 0)
}

/// Writes what fits, and returns how much that is.
fn write(device: &dyn Device, offset: u64, data: &[u8], durable: bool) -> Answer<u32> {
    if data.is_empty() {
        return Ok(0);
    }
    // as Linux has it for block devices
    let len = within(device, offset, data.len() as u64).ok_or(Errno::ENOSPC)?;
    device.write(offset, data.get(..len as usize).unwrap_or_default(), durable)?;
    // a request is never that long
    Ok(len as u32)
}

/// Frees a range.
fn free(device: &dyn Device, offset: u64, len: u64, mode: i32) -> Answer<()> {
    if mode & !(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE) != 0 || mode & (PUNCH_HOLE | ZERO_RANGE) == 0 {
        return Err(Errno::ENOTSUP);
    }
    let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
    if mode & KEEP_SIZE == 0 && end > device.size() {
        return Err(Errno::ENOSPC);
    }
    match within(device, offset, len) {
        Some(len) => device.discard(offset, len),
        None => Ok(()),
    }
}

/// Looks for data or a hole.
fn seek(device: &dyn Device, offset: i64, whence: i32) -> Answer<i64> {
    let at = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
    let end = device.size();
    if at >= end {
        return Err(Errno::ENXIO);
    }
    let found = match whence {
        SEEK_DATA => device.seek(at, true)?.ok_or(Errno::ENXIO)?,
        // there is one behind the end
        SEEK_HOLE => device.seek(at, false)?.unwrap_or(end),
        _ => return Err(Errno::EINVAL),
    };
    Ok(found.cast_signed())
}

impl Filesystem for Tree {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = WANTED & config.capabilities();
        // all of these are possible
        let _ = config.add_capabilities(wanted);
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn destroy(&mut self) {
        self.waiters.wait_idle();
        let open = std::mem::take(&mut *self.open.lock());
        drop(open);
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(parent, name) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.nodes.lock().forgotten(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Nothing can be changed; a size may be set to what it is.
    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // with a new size come times
        let sets_others = mode.is_some() || uid.is_some() || gid.is_some() || atime.is_some() || mtime.is_some();
        let done = self.attributes(ino).and_then(|attr| match size {
            Some(size) if size != attr.size => Err(Errno::EINVAL),
            None if sets_others => Err(Errno::EPERM),
            _ => Ok(attr),
        });
        match done {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let how = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH;
        match self.open_device(ino, flags) {
            Ok(handle) => reply.opened(handle, how),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let part = buffer.get_mut(..size).unwrap_or_default();
            match self.device(fh).and_then(|device| device.read(offset, part)) {
                Ok(len) => reply.data(part.get(..len).unwrap_or_default()),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let device = match self.device(fh) {
            Ok(device) => device,
            Err(error) => return reply.error(errno(error)),
        };
        if flags.0 & O_DSYNC != 0 {
            let data = data.to_vec();
            self.waiters.run(move || answer_write(write(&*device, offset, &data, true), reply));
        } else {
            answer_write(write(&*device, offset, data, false), reply);
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.release(fh);
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        match self.device(fh) {
            Ok(device) => self.waiters.run(move || answer(device.flush(), reply)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.open_directory(ino) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.read_directory(fh, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.release(fh);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, GRANULE, NAME_MAX, GRANULE);
    }

    fn getxattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(fuser::Errno::EOPNOTSUPP);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        match self.device(fh) {
            Ok(device) => self.waiters.run(move || answer(free(&*device, offset, length, mode), reply)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        match self.device(fh) {
            Ok(device) => self.waiters.run(move || match seek(&*device, offset, whence) {
                Ok(found) => reply.offset(found),
                Err(error) => reply.error(errno(error)),
            }),
            Err(error) => reply.error(errno(error)),
        }
    }
}
