//! Requests about the contents of files.

use std::cell::RefCell;
use std::sync::Arc;

use base::{Errno, ObjectId};
use fuser::{
    FileHandle, FopenFlags, INodeNo, OpenAccMode, OpenFlags, ReplyData, ReplyEmpty, ReplyWrite, Request, WriteFlags,
};
use zpl::FileFlags;
use zpl::live::{Caps, Cred, Handle, Vfs, Wrote};

use crate::convert::errno;
use crate::pinned::{Pinned, Subject};
use crate::served::{Answer, Opened, Served, Stale};

/// Flags of `open` (Linux: the generic numbers).
pub(crate) const O_EXCL: i32 = 0o200;
const O_APPEND: i32 = 0o2000;
const O_DSYNC: i32 = 0o1_0000;
/// The file is opened to be executed (Linux: `__FMODE_EXEC`, which the kernel passes on).
const FMODE_EXEC: i32 = 0x20;

const MAY_EXEC: u8 = 1;
const MAY_WRITE: u8 = 2;
const MAY_READ: u8 = 4;
const MAY_APPEND: u8 = 8;

/// Modes of `fallocate`.
const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;

/// The longest copy of one request: the caller makes another for the rest.
const COPY_MAX: u64 = 64 << 20;

/// Kinds of `lseek` that the kernel leaves to us.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Flags that forbid writes, or some of them.
const GUARDS: [FileFlags; 3] = [FileFlags::IMMUTABLE, FileFlags::APPENDONLY, FileFlags::READONLY];

/// Set-id bits.
const SET_ID: u32 = 0o6000;

thread_local! {
    /// The buffer of the reads of a thread.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Returns the permissions that an `open` requires.
fn mask_of(flags: i32) -> u8 {
    let read = if flags & FMODE_EXEC != 0 { MAY_EXEC } else { MAY_READ };
    let write = if flags & O_APPEND != 0 { MAY_WRITE | MAY_APPEND } else { MAY_WRITE };
    match OpenFlags(flags).acc_mode() {
        OpenAccMode::O_RDONLY => read,
        OpenAccMode::O_WRONLY => write,
        OpenAccMode::O_RDWR => read | write,
    }
}

impl Served {
    pub(crate) fn open(&self, req: &Request, file: INodeNo, flags: i32) -> Answer<Opened> {
        let (pinned, id) = self.pin_file(file)?;
        let handle = pinned.open(&self.caller(req), id, mask_of(flags)).map_err(|error| error.errno())?;
        Ok(self.keep_file(&pinned, handle, flags))
    }

    /// Keeps a handle of a file with contents: pages stay, as changes behind the mount are told; the kernel need not say when a descriptor is
    /// closed. A file whose flags bind those who write it has no writable mappings: what they change could not be refused.
    pub(crate) fn keep_file(&self, pinned: &Pinned, handle: Handle, flags: i32) -> Opened {
        let handle = if flags & O_DSYNC != 0 { handle.synchronous() } else { handle };
        let mode = OpenFlags(flags).acc_mode();
        let is_guarded = |id| pinned.attrs(id).is_ok_and(|attrs| GUARDS.iter().any(|flag| attrs.flags.has(*flag)));
        let mut how = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
        how |= FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        if mode != OpenAccMode::O_RDONLY && is_guarded(handle.id()) {
            how |= FopenFlags::FOPEN_DIRECT_IO;
        }
        // a mapping that is written is also read
        self.keep(handle, how, mode == OpenAccMode::O_RDWR)
    }

    /// Returns the caller who cuts a file: as he is, if he may lose set-id bits by it.
    pub(crate) fn cutter(&self, req: &Request, pinned: &Pinned, id: ObjectId, caller: Cred) -> Answer<Cred> {
        let mode = pinned.attrs(id).map_err(|error| error.errno())?.mode;
        if mode & SET_ID == 0 {
            return Ok(caller);
        }
        // with his groups
        let real = self.real_caller(req);
        Ok(if real.has(Caps::FSETID) { caller } else { real.with_caps(caller.caps.without(Caps::FSETID)) })
    }

    /// Returns the file if set-id bits may be gone after a change by this caller: the kernel does not look at the mode again.
    fn stale_after(&self, caller: &Cred, id: ObjectId) -> Option<Stale> {
        (!caller.has(Caps::FSETID)).then(|| self.stale(id))
    }

    pub(crate) fn read(&self, (file, handle): (INodeNo, FileHandle), offset: u64, size: u32, reply: ReplyData) {
        let (subject, size) = (self.opened_file(file, handle), size as usize);
        let pinned = match subject.pin() {
            Ok(pinned) => pinned,
            Err(error) => return reply.error(errno(error)),
        };
        match pinned.lend(subject.id, offset, size) {
            Ok(Some(lent)) => {
                drop(pinned);
                return reply.data(&lent);
            }
            Ok(None) => {}
            Err(error) => return reply.error(errno(error.errno())),
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let part = buffer.get_mut(..size).unwrap_or_default();
            let done = pinned.read(subject.id, offset, part);
            drop(pinned);
            match done {
                Ok(len) => reply.data(part.get(..len).unwrap_or_default()),
                Err(error) => reply.error(errno(error.errno())),
            }
        });
    }

    pub(crate) fn write(
        &self,
        req: &Request,
        (file, handle): (INodeNo, FileHandle),
        offset: u64,
        data: &[u8],
        (how, flags): (WriteFlags, OpenFlags),
        reply: ReplyWrite,
    ) {
        let subject = self.opened_file(file, handle);
        let id = subject.id;
        let decided = Cred::user(req.uid(), req.gid(), []);
        let loses = how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let mut caller = decided.with_caps(if loses { Caps::NONE } else { Caps::FSETID });
        let pinned = match Pinned::new(&subject.vfs) {
            Ok(pinned) => pinned,
            Err(error) => return reply.error(errno(error)),
        };
        let is_cached = how.contains(WriteFlags::FUSE_WRITE_CACHE);
        if is_cached && self.mapped.is_outdated(id) {
            // pages of contents that are there no more: whoever waits for them to be written is told
            return reply.error(errno(Errno::EIO));
        }
        if let Err(error) = subject.check(&pinned) {
            return reply.error(errno(error));
        }
        let set_id = loses && pinned.attrs(id).is_ok_and(|attrs| attrs.mode & SET_ID != 0);
        if set_id {
            caller = self.real_caller(req).with_caps(Caps::NONE);
        }
        // the kernel does not look at the mode after a write
        let stale = set_id.then(|| self.stale(id));
        if is_cached {
            let done = pinned.write_back(&caller, id, offset, data).map_err(|error| error.errno());
            drop(pinned);
            return answer_write(done, stale, reply);
        }
        // the kernel appends at the end that it knows, which may have moved behind the mount
        let at = if flags.0 & O_APPEND != 0 { None } else { Some(offset) };
        let has_moved = move |done: &Answer<Wrote>| done.as_ref().is_ok_and(|wrote| wrote.at != offset);
        let contents = self.stale(id);
        let (is_sync, is_direct) = (flags.0 & O_DSYNC != 0, self.is_direct(handle));
        if is_sync || is_direct {
            drop(pinned);
            let data = data.to_vec();
            self.waiters.run_apart(move |apart| {
                let write = if is_sync { Vfs::write_sync } else { Vfs::write };
                let done = subject
                    .pin()
                    .and_then(|pinned| write(&*pinned, &caller, id, at, &data).map_err(|error| error.errno()));
                let moved = has_moved(&done);
                if is_direct && apart {
                    // pages that others have read meanwhile end where the file ended; the new end is not known yet
                    contents.tell_contents();
                }
                answer_write(done, stale, reply);
                if moved {
                    contents.tell_moved(apart);
                }
            });
        } else {
            let done = pinned.write(&caller, id, at, data).map_err(|error| error.errno());
            drop(pinned);
            let moved = has_moved(&done);
            answer_write(done, stale, reply);
            if moved {
                self.waiters.run_apart(move |apart| contents.tell_moved(apart));
            }
        }
    }

    /// Answers once a file is on stable storage. One caller writes the log for all that wait at a time; the requests of the others are answered by its thread.
    pub(crate) fn fsync(&self, file: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
        let subject = self.opened_file(file, handle);
        let pinned = match subject.pin() {
            Ok(pinned) => Arc::new(pinned),
            Err(error) => return reply.error(errno(error)),
        };
        let (id, held, waiters, open) = (subject.id, pinned.clone(), self.waiters.clone(), self.waiters.open_job());
        let then = move |safe| {
            drop(held);
            if safe {
                drop(subject);
                reply.ok();
            } else {
                // not here: others are told by this thread, and have files pinned until then
                waiters.run_later(move || {
                    match subject.pin().and_then(|pinned| pinned.fsync(id).map_err(|error| error.errno())) {
                        Ok(()) => reply.ok(),
                        Err(error) => reply.error(errno(error)),
                    }
                });
            }
            drop(open);
        };
        let lead = pinned.fsync_then(id, Box::new(then));
        drop(pinned);
        if let Some(lead) = lead {
            self.waiters.run_near(move || lead.write());
        }
    }

    pub(crate) fn copy_range(
        &self,
        req: &Request,
        (from, from_at): (Subject, u64),
        (to, to_at): (Subject, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        let asked = to.pin().and_then(|pinned| self.cutter(req, &pinned, to.id, self.caller(req)));
        let caller = match asked {
            Ok(caller) => caller,
            Err(error) => return reply.error(errno(error)),
        };
        let stale = self.stale_after(&caller, to.id);
        self.waiters.run(move || {
            let done = from.pin().and_then(|pinned| {
                to.check(&pinned)?;
                let copied = pinned.copy_range(&caller, (from.id, from_at), (to.id, to_at), len.min(COPY_MAX));
                copied.map_err(|error| error.errno())
            });
            if let Some(stale) = stale {
                stale.tell();
            }
            match done {
                Ok(len) => reply.written(len as u32),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    /// Changes what is allocated of a range, in another thread, as that may be long.
    pub(crate) fn fallocate(
        &self,
        req: &Request,
        subject: Subject,
        (offset, len): (u64, u64),
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let id = subject.id;
        let asked = || {
            if mode & !(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE) != 0 {
                return Err(Errno::ENOTSUP);
            }
            let caller = self.cutter(req, &subject.pin()?, id, self.caller(req))?;
            Ok((caller, offset.checked_add(len).ok_or(Errno::EFBIG)?))
        };
        let (caller, end) = match asked() {
            Ok(asked) => asked,
            Err(error) => return reply.error(errno(error)),
        };
        let (stale, keep_size) = (self.stale_after(&caller, id), mode & KEEP_SIZE != 0);
        self.waiters.run(move || {
            let done = subject.pin().and_then(|pinned| {
                let done = if mode & (PUNCH_HOLE | ZERO_RANGE) == 0 {
                    pinned.allocate(&caller, id, offset..end, keep_size)
                } else {
                    pinned.punch(&caller, id, offset..end, keep_size)
                };
                done.map_err(|error| error.errno())
            });
            if let Some(stale) = stale {
                stale.tell();
            }
            match done {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    /// Looks for data or a hole. A file that may be mapped for writing is all data: its pages may have changed, and the engine does not have them
    /// yet.
    pub(crate) fn seek(&self, subject: &Subject, offset: i64, whence: i32) -> Answer<i64> {
        let (id, pinned) = (subject.id, subject.pin()?);
        let at = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let found = match whence {
            SEEK_DATA | SEEK_HOLE if self.mapped.may_be(id) => {
                let end = pinned.attrs(id).map_err(|error| error.errno())?.size;
                let found = if whence == SEEK_DATA { at } else { end };
                return if at < end { Ok(found.cast_signed()) } else { Err(Errno::ENXIO) };
            }
            SEEK_DATA => pinned.seek_data(id, at),
            SEEK_HOLE => pinned.seek_hole(id, at),
            _ => return Err(Errno::EINVAL),
        };
        found.map(u64::cast_signed).map_err(|error| error.errno())
    }
}

fn answer_write(done: Answer<Wrote>, stale: Option<Stale>, reply: ReplyWrite) {
    if let Some(stale) = stale {
        stale.tell();
    }
    match done {
        // a request is never that long
        Ok(wrote) => reply.written(wrote.len as u32),
        Err(error) => reply.error(errno(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_that_an_open_requires() {
        let (rdonly, wronly, rdwr) = (0, 1, 2);
        assert_eq!(mask_of(rdonly), MAY_READ);
        assert_eq!(mask_of(rdonly | FMODE_EXEC), MAY_EXEC);
        assert_eq!(mask_of(wronly | O_APPEND), MAY_WRITE | MAY_APPEND);
        assert_eq!(mask_of(rdwr), MAY_READ | MAY_WRITE);
    }
}
