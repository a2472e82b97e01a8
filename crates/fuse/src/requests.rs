//! The requests of the kernel, one method each: what is done is in the other files, here are the answers.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use zpl::Kind;
use zpl::live::{AclKind, NewFile};

use crate::attributes::Change;
use crate::convert::{errno, file_attr};
use crate::served::{Answer, Entry, Opened, Served};
use crate::xattrs::Value;

/// The largest write of one request.
const MAX_WRITE: u32 = 1 << 20;

/// Requests that nobody waits for, as of read-ahead, that the kernel sends at a time.
const MAX_BACKGROUND: u16 = 64;

/// What the kernel may do on its own, and what it leaves to us; of each what it knows. See [the crate](crate) for the reasons.
const WANTED: InitFlags = InitFlags::FUSE_PARALLEL_DIROPS
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_EXPORT_SUPPORT)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA)
    .union(InitFlags::FUSE_HAS_IOCTL_DIR);

impl Served {
    fn answer_entry(done: Answer<Entry>, reply: ReplyEntry) {
        match done {
            Ok(Entry { attr, generation, attr_ttl, name_ttl }) => {
                reply.entry_with_ttls(&attr_ttl, &name_ttl, &attr, generation);
            }
            Err(error) => reply.error(errno(error)),
        }
    }
}

fn answer_empty(done: Answer<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_open(done: Answer<Opened>, reply: ReplyOpen) {
    match done {
        Ok(Opened { handle, flags }) => reply.opened(handle, flags),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_value(done: Answer<Value>, reply: ReplyXattr) {
    match done {
        Ok(Value::Length(len)) => reply.size(len),
        Ok(Value::Bytes(bytes)) => reply.data(&bytes),
        Err(error) => reply.error(errno(error)),
    }
}

impl Filesystem for Served {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let acls = if self.acls == AclKind::Posix { InitFlags::FUSE_POSIX_ACL } else { InitFlags::empty() };
        if !config.capabilities().contains(acls) {
            // it would take the mode for all there is
            return Err(std::io::ErrorKind::Unsupported.into());
        }
        let wanted = (WANTED | acls) & config.capabilities();
        self.line.kernel_expires(config.capabilities().contains(InitFlags::FUSE_HAS_EXPIRE_ONLY));
        // all of these are possible
        let _ = config.add_capabilities(wanted);
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn destroy(&mut self) {
        self.release_all();
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _answering = self.under_way.begin();
        Self::answer_entry(self.lookup(req, parent, name), reply);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        if let Some(held) = self.known.forgotten(base::ObjectId(ino.0), nlookup) {
            self.leaving.add(held, &self.waiters);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let _answering = self.under_way.begin();
        match self.getattr(ino) {
            Ok(stat) => reply.attr(&self.attr_ttl_of(self.open_file(ino), &stat), &file_attr(&stat, stat.inode)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let answering = self.under_way.begin();
        let change = Change { mode, uid, gid, size, atime, mtime, is_open: fh.is_some() };
        let subject = fh.map_or_else(|| self.known_file(ino), |fh| self.opened_file(ino, fh));
        self.setattr(req, subject, change, answering, reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.readlink(ino) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let _answering = self.under_way.begin();
        Self::answer_entry(self.mknod(req, parent, name, (mode, umask), rdev), reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let _answering = self.under_way.begin();
        let new = NewFile { umask, ..NewFile::new(Kind::Directory, mode) };
        Self::answer_entry(self.make(req, parent, name, &new), reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer_empty(self.unlink(req, parent, name), reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer_empty(self.rmdir(req, parent, name), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _answering = self.under_way.begin();
        let new = NewFile::symlink(target.as_os_str().as_bytes());
        Self::answer_entry(self.make(req, parent, link_name, &new), reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        answer_empty(self.rename(req, (parent, name), (newparent, newname), flags), reply);
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let _answering = self.under_way.begin();
        Self::answer_entry(self.link(req, ino, newparent, newname), reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        answer_open(self.open(req, ino, flags.0), reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _answering = self.under_way.begin();
        match self.create(req, parent, name, (mode, umask), flags) {
            Ok((Entry { attr, generation, name_ttl, .. }, Opened { handle, flags })) => {
                // it is empty, and its space is asked for again when it is written
                let ttl = self.attr_ttl.min(name_ttl);
                reply.created(&ttl, &attr, generation, handle, flags);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.read((ino, fh), offset, size, reply);
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.write(req, (ino, fh), offset, data, (write_flags, flags), reply);
    }

    /// Has nothing to do, as nothing is cached here; the kernel is told not to ask.
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

    fn fsync(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.fsync(ino, fh, reply);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        answer_open(self.opendir(req, ino), reply);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.readdir(&self.opened_file(ino, fh), offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let _answering = self.under_way.begin();
        match self.readdirplus(&self.opened_file(ino, fh), offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.release(fh);
        reply.ok();
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.fsync(ino, fh, reply);
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.statfs(ino) {
            Ok(fs) => {
                let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
                let (bsize, frsize) = (short(fs.bsize), short(fs.frsize));
                reply.statfs(fs.blocks, fs.bfree, fs.bavail, fs.files, fs.ffree, bsize, short(fs.namelen), frsize);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        answer_empty(self.setxattr(req, ino, name, value, flags), reply);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        answer_value(self.getxattr(req, ino, name, size), reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        answer_value(self.listxattr(req, ino, size), reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer_empty(self.removexattr(req, ino, name), reply);
    }

    fn access(&self, req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        answer_empty(self.access(req, ino, mask.bits()), reply);
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        match self.ioctl(req, ino, cmd, in_data, out_size) {
            Ok(data) => reply.ioctl(0, &data),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.fallocate(req, self.opened_file(ino, fh), (offset, length), mode, reply);
    }

    fn lseek(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        match self.seek(&self.opened_file(ino, fh), offset, whence) {
            Ok(at) => reply.offset(at),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = (self.opened_file(ino_in, fh_in), self.opened_file(ino_out, fh_out));
        self.copy_range(req, (from, offset_in), (to, offset_out), len, reply);
    }
}
