//! The requests of the kernel about a directory of devices.
//!
//! What touches a pool is carried out in a lane of that ([`Lanes`]); the threads that read requests never wait for one, unless more waits in its lane than there is room for.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::Errno;
use fuser::{
    BsdFileFlags, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::Devices;
use super::lanes::Lanes;
use super::tree::{Answer, Open, OpenDevice, Tree, free, lane_of, seek, write};
use crate::convert::errno;

/// Nothing is cached.
const TTL: Duration = Duration::ZERO;
/// The largest write of one request.
const MAX_WRITE: u32 = 1 << 20;
/// Requests that nobody waits for that the kernel sends at a time: those of asynchronous reads and writes. It counts them for the whole directory, so that there are more than one loop device has under way.
const MAX_BACKGROUND: u16 = 256;
/// What the kernel may do on its own, of what it knows: look up names and read directories at once, and have several requests of one read or write under way.
const WANTED: InitFlags = InitFlags::FUSE_PARALLEL_DIROPS.union(InitFlags::FUSE_ASYNC_DIO);
const O_DSYNC: i32 = 0o1_0000;
/// The block size of the file system as a whole: a loop device discards in such units.
const GRANULE: u32 = 4096;
/// The longest name.
const NAME_MAX: u32 = 255;

thread_local! {
    /// The buffer of the reads of a thread.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A directory of devices, as the requests find it.
pub(super) struct Requests {
    tree: Arc<Tree>,
    lanes: Lanes,
}

fn answer(done: Answer<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_attr(done: Answer<FileAttr>, reply: ReplyAttr) {
    match done {
        Ok(attr) => reply.attr(&TTL, &attr),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_open(done: Answer<FileHandle>, how: FopenFlags, reply: ReplyOpen) {
    match done {
        Ok(handle) => reply.opened(handle, how),
        Err(error) => reply.error(errno(error)),
    }
}

/// Reads into the buffer of the thread, and answers.
fn read(open: &OpenDevice, offset: u64, size: usize, reply: ReplyData) {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        let part = buffer.get_mut(..size).unwrap_or_default();
        match open.device.read(offset, part) {
            Ok(len) => reply.data(part.get(..len).unwrap_or_default()),
            Err(error) => reply.error(errno(error)),
        }
    });
}

impl Requests {
    pub(super) fn new(devices: Arc<dyn Devices>) -> Requests {
        Requests { tree: Arc::new(Tree::new(devices)), lanes: Lanes::default() }
    }

    /// Has a question about a path answered, with a reply that says why there is no answer. It is refused if so many wait for its pool that others would have to.
    fn ask<R: Send + 'static>(
        &self,
        path: Answer<String>,
        reply: R,
        refuse: impl FnOnce(R, fuser::Errno),
        question: impl FnOnce(&Tree, String, R) + Send + 'static,
    ) {
        let path = match path {
            Ok(path) if self.lanes.is_crowded(lane_of(&path)) => return refuse(reply, errno(Errno::EAGAIN)),
            Ok(path) => path,
            Err(error) => return refuse(reply, errno(error)),
        };
        let (tree, lane) = (self.tree.clone(), lane_of(&path).to_owned());
        self.lanes.run(&lane, 0, move || question(&tree, path, reply));
    }

    /// Has a request to a device answered that somebody has open.
    fn use_device<R: Send + 'static>(
        &self,
        (handle, bytes): (FileHandle, usize),
        reply: R,
        refuse: impl FnOnce(R, fuser::Errno),
        request: impl FnOnce(&OpenDevice, R) + Send + 'static,
    ) {
        match self.tree.device(handle) {
            Ok(open) => {
                let lane = open.lane.clone();
                self.lanes.run(&lane, bytes, move || request(&open, reply));
            }
            Err(error) => refuse(reply, errno(error)),
        }
    }

    /// Closes what is open no longer. The last user of a device closes it, which may wait for its pool.
    fn close(&self, handle: FileHandle) {
        if let Some(Open::Device(open)) = self.tree.release(handle) {
            let lane = open.lane.clone();
            self.lanes.run_always(&lane, move || drop(open));
        }
    }
}

impl Filesystem for Requests {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = WANTED & config.capabilities();
        // all of these are possible
        let _ = config.add_capabilities(wanted);
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn destroy(&mut self) {
        self.lanes.wait_idle();
        drop(self.tree.release_all());
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let path = self.tree.path_below(parent, name);
        self.ask(path, reply, ReplyEntry::error, |tree, path, reply| match tree.look_up(path) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.tree.forget(ino, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let path = self.tree.path(ino);
        self.ask(path, reply, ReplyAttr::error, move |tree, _, reply| answer_attr(tree.attributes(ino), reply));
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
        let path = self.tree.path(ino);
        self.ask(path, reply, ReplyAttr::error, move |tree, _, reply| {
            let done = tree.attributes(ino).and_then(|attr| match size {
                Some(size) if size != attr.size => Err(Errno::EINVAL),
                None if sets_others => Err(Errno::EPERM),
                _ => Ok(attr),
            });
            answer_attr(done, reply);
        });
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let how = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH;
        let path = self.tree.path(ino);
        self.ask(path, reply, ReplyOpen::error, move |tree, _, reply| {
            answer_open(tree.open_device(ino, flags), how, reply);
        });
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
        self.use_device((fh, 0), reply, ReplyData::error, move |open, reply| read(open, offset, size as usize, reply));
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
        let (data, durable) = (data.to_vec(), flags.0 & O_DSYNC != 0);
        self.use_device((fh, data.len()), reply, ReplyWrite::error, move |open, reply| {
            match write(&*open.device, offset, &data, durable) {
                Ok(len) => reply.written(len),
                Err(error) => reply.error(errno(error)),
            }
        });
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
        self.close(fh);
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.use_device((fh, 0), reply, ReplyEmpty::error, |open, reply| answer(open.device.flush(), reply));
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let path = self.tree.path(ino);
        self.ask(path, reply, ReplyOpen::error, move |tree, _, reply| {
            answer_open(tree.open_directory(ino), FopenFlags::empty(), reply);
        });
    }

    fn readdir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.tree.read_directory(fh, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.close(fh);
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
        self.use_device((fh, 0), reply, ReplyEmpty::error, move |open, reply| {
            answer(free(&*open.device, offset, length, mode), reply);
        });
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.use_device((fh, 0), reply, ReplyLseek::error, move |open, reply| {
            match seek(&*open.device, offset, whence) {
                Ok(found) => reply.offset(found),
                Err(error) => reply.error(errno(error)),
            }
        });
    }
}
