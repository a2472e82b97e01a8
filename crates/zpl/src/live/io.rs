//! Contents of files: reading, writing (OpenZFS: `zfs_read`, `zfs_write`, `zfs_grow_blocksize`, `zfs_statvfs`).
//!
//! A read takes no lock and allocates no memory: it borrows a [reader](super::readers), and reads again with the lock held if the
//! contents have changed meanwhile. A write is split into chunks of whole blocks, each in a transaction of its own, so that one
//! large write does not hold up a txg; partially changed blocks at the edges of a chunk are read before its transaction is
//! assigned. Other readers see each chunk atomically.
//!
//! Writers of different ranges proceed in parallel. A write beyond the end holds everything from its start on, so that the end of the file moves
//! in the order of the log's records; one that grows the first block holds the whole file.
//!
//! The first block of a file grows with the file, up to the record size: in steps of 512 bytes while it is the only one. From the
//! second block on, blocks have the record size, a power of two.

use std::sync::Arc;

use base::{Errno, ObjectId};
use dmu::{BlockCursor, Tx};
use zio::Buf;

use super::hold::Owed;
use super::rangelock::RangeGuard;
use super::readers::{Look, Reader};
use super::times::Times;
use super::znode::content_modified;
use super::{Caps, Cred, Refusal, SMALL_CHANGE, Stat, StatFs, Wrote, Zfs, Znode};
use crate::node::blocks_of;
use crate::{Attrs, Error, FileFlags, Kind};

/// The largest size of a file (Linux: `MAX_LFS_FILESIZE`).
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64;
/// Bytes of one chunk of a write, if blocks are not larger.
const CHUNK: u64 = 4 << 20;
/// An append of up to this size is one chunk, so that nothing can come in between.
const APPEND: u64 = 64 << 20;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
/// log2 of the bytes of a dnode (OpenZFS: `DNODE_SHIFT`).
const DNODE_SHIFT: u32 = 9;
/// Maximum number of objects of a file system (OpenZFS: `DN_MAX_OBJECT`).
const MAX_OBJECTS: u64 = 1 << 48;

/// Checks that a file has contents.
pub(crate) fn expect_file(node: &Znode) -> Result<(), Error> {
    match node.kind() {
        Kind::File => Ok(()),
        Kind::Directory => Err(Error::IsDirectory { object: node.id() }),
        _ => Err(Error::NotA { object: node.id(), wanted: "regular file" }),
    }
}

/// Clears the set-id bits when a caller changes the contents who may not keep them (OpenZFS: `zfs_clear_setid_bits_if_necessary`; Linux:
/// `file_remove_privs`, which also takes the set-group-id bit of a file that is no program from callers outside the group).
pub(crate) fn clear_setid(attrs: &mut Attrs, cred: &Cred) {
    attrs.mode &= !lost_setid(attrs, cred);
}

/// Returns the set-id bits that are lost when this caller changes the contents.
pub(crate) fn lost_setid(attrs: &Attrs, cred: &Cred) -> u32 {
    if cred.has(Caps::FSETID) {
        return 0;
    }
    let loses_gid = attrs.mode & 0o111 != 0 || !cred.in_group(attrs.gid());
    attrs.mode & (S_ISUID | if loses_gid { S_ISGID } else { 0 })
}

/// A read of a file that is to be carried out.
#[derive(Clone, Copy)]
struct Wanted {
    offset: u64,
    len: usize,
}

/// Has `read` read the current contents: it gets the number of bytes that there are, and the end of the file. Returns both and what it returned.
fn read_now<R>(
    reader: &mut Reader,
    node: &Znode,
    wanted: Wanted,
    read: &mut impl FnMut(&mut BlockCursor, usize, u64) -> Result<R, Error>,
) -> Result<(usize, Times, R), Error> {
    let Look { kind, size, flags, times } = reader.look(node);
    if kind != Kind::File {
        expect_file(node)?;
    }
    if flags.has(FileFlags::AV_QUARANTINED) {
        return Err(Refusal::Denied.of(node.id()));
    }
    let left = usize::try_from(size.saturating_sub(wanted.offset)).unwrap_or(usize::MAX);
    let len = left.min(wanted.len);
    Ok((len, times, read(&mut reader.cursor, len, size)?))
}

/// Who writes to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteBy {
    /// A caller, who may write as far as the flags of the file allow it.
    Caller,
    /// A caller who is going to wait until it is on stable storage.
    WaitingCaller,
    /// The kernel, with what it has kept of a caller's write that was allowed then.
    Kernel,
}

impl Zfs {
    /// Reads from a file; returns the number of bytes, less than requested only at the end.
    ///
    /// # Errors
    /// EISDIR, EINVAL if it is not a file; EACCES in quarantine; an error if a block cannot be read.
    pub fn read(&self, id: ObjectId, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.read_node(&*self.znode(id)?, offset, buf)
    }

    /// As [`Zfs::read`], for a znode.
    ///
    /// # Errors
    /// As [`Zfs::read`].
    pub fn read_node(&self, node: &Znode, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let wanted = Wanted { offset, len: buf.len() };
        self.read_by(node, wanted, |cursor, len, size| match buf.get_mut(..len) {
            Some(part) if !part.is_empty() => Ok(Some(cursor.read_before(offset, part, size).map(|()| len)?)),
            _ => Ok(Some(len)),
        })
        .map(|read| read.unwrap_or(0))
    }

    /// As [`Zfs::read_node`], without a copy: the bytes in the memory that the cache or the change of a txg has them in. `None` if they are not in one
    /// block, or in none.
    ///
    /// # Errors
    /// As [`Zfs::read_node`].
    pub(crate) fn lend_node(&self, node: &Znode, offset: u64, len: usize) -> Result<Option<Buf>, Error> {
        let size = node.object().block_size();
        let last = offset.saturating_add(len as u64).saturating_sub(1);
        if len == 0 || offset.checked_div(size) != last.checked_div(size) {
            return Ok(None);
        }
        self.read_by(node, Wanted { offset, len }, |cursor, len, size| Ok(cursor.lend_before(offset, len, size)?))
    }

    /// Has `read` read, and counts it if it did.
    fn read_by<R>(
        &self,
        node: &Znode,
        wanted: Wanted,
        mut read: impl FnMut(&mut BlockCursor, usize, u64) -> Result<Option<R>, Error>,
    ) -> Result<Option<R>, Error> {
        self.0.readers.with(node, |reader| {
            let (len, times, done) = self.read_as(reader, node, wanted, &mut read)?;
            if done.is_some() {
                if len > 0 {
                    self.accessed(node, &times);
                }
                self.0.stats.read(len as u64);
            }
            Ok(done)
        })
    }

    /// Reads without the lock, and again with it if the contents have changed meanwhile.
    fn read_as<R>(
        &self,
        reader: &mut Reader,
        node: &Znode,
        wanted: Wanted,
        read: &mut impl FnMut(&mut BlockCursor, usize, u64) -> Result<R, Error>,
    ) -> Result<(usize, Times, R), Error> {
        let Look { kind, size, .. } = reader.look(node);
        let len = size.saturating_sub(wanted.offset).min(wanted.len as u64);
        if kind == Kind::File && len > 0 {
            self.read_ahead(reader, node, wanted.offset, len, size);
        }
        if let Some(version) = node.content.version() {
            let done = read_now(reader, node, wanted, read);
            if node.content.is(version) {
                return done;
            }
        }
        let _content = node.content.read_range(wanted.offset..wanted.offset.saturating_add(wanted.len as u64));
        read_now(reader, node, wanted, read)
    }

    /// Updates the access time, if it is due. Errors are ignored: they must not fail the read.
    fn accessed(&self, node: &Znode, times: &Times) {
        let Some(now) = self.0.atime.due(times, || self.now()) else { return };
        let stamp = |tx: &Tx| {
            node.edit(self, tx, |attrs| {
                attrs.atime = now;
                Ok(())
            })
        };
        let _ = self.change_some(SMALL_CHANGE, &[node.id()], stamp);
    }

    /// Writes to a file.
    ///
    /// # Errors
    /// EISDIR, EINVAL if it is not a file; EPERM for an immutable file, or within an append-only one; EFBIG, EDQUOT, ENOSPC.
    pub fn write(&self, cred: &Cred, id: ObjectId, offset: u64, data: &[u8]) -> Result<(), Error> {
        let node = self.znode(id)?;
        self.write_node(cred, &node, Some(offset), data).map(|_| ())
    }

    /// Writes at an offset, or at the end, and waits until the data is on stable storage (`O_DSYNC`); returns the offset. With
    /// `sync=disabled` it does not wait.
    ///
    /// # Errors
    /// As [`Zfs::write`] and [`Zfs::fsync`].
    pub fn write_sync(&self, cred: &Cred, id: ObjectId, offset: Option<u64>, data: &[u8]) -> Result<u64, Error> {
        let (wrote, failed) = self.write_part_sync(cred, id, offset, data)?;
        failed.map_or(Ok(wrote.at), Err)
    }

    /// As [`Zfs::write_sync`]. If the write fails after its beginning was written, that is waited for, and returned with the error.
    ///
    /// # Errors
    /// As [`Zfs::write_sync`], if nothing was written.
    pub(super) fn write_part_sync(
        &self,
        cred: &Cred,
        id: ObjectId,
        offset: Option<u64>,
        data: &[u8],
    ) -> Result<(Wrote, Option<Error>), Error> {
        let node = self.znode(id)?;
        let done = self.write_part(cred, &node, offset, data, WriteBy::WaitingCaller)?;
        self.fsync(id)?;
        Ok(done)
    }

    /// Appends to a file; returns the offset.
    ///
    /// # Errors
    /// As [`Zfs::write`].
    pub fn append(&self, cred: &Cred, id: ObjectId, data: &[u8]) -> Result<u64, Error> {
        let node = self.znode(id)?;
        self.write_node(cred, &node, None, data)
    }

    /// Writes at an offset, or at the end; returns the offset.
    ///
    /// # Errors
    /// As [`Zfs::write`].
    pub fn write_node(&self, cred: &Cred, node: &Arc<Znode>, offset: Option<u64>, data: &[u8]) -> Result<u64, Error> {
        let (wrote, failed) = self.write_part(cred, node, offset, data, WriteBy::Caller)?;
        failed.map_or(Ok(wrote.at), Err)
    }

    /// As [`Zfs::write_node`]. If the write fails after its beginning was written, returns that and the error.
    pub(super) fn write_part(
        &self,
        cred: &Cred,
        node: &Arc<Znode>,
        offset: Option<u64>,
        data: &[u8],
        by: WriteBy,
    ) -> Result<(Wrote, Option<Error>), Error> {
        expect_file(node)?;
        let start = offset.unwrap_or_else(|| node.with_attrs(|attrs| attrs.size));
        if data.is_empty() {
            return Ok((Wrote { at: start, len: 0 }, None));
        }
        if by != WriteBy::Kernel {
            self.may_write(node, start, offset.is_none())?;
        }
        let awaited = by == WriteBy::WaitingCaller;
        let end = start.checked_add(data.len() as u64).filter(|end| *end <= MAX_SIZE);
        let end = end.ok_or_else(|| Refusal::FileTooLarge.of(node.id()))?;
        self.end_capability(node)?;
        let mut owed = Owed::default();
        let mut wrote = Wrote { at: start, len: 0 };
        let written =
            self.write_chunks(cred, node, &Write { offset, start, end, data, awaited }, &mut owed, &mut wrote);
        if wrote.len > 0 {
            self.0.stats.wrote(wrote.len as u64);
        }
        // also waits for the written part of a failed write
        owed.settle(self.log())?;
        match written {
            Err(failed) if wrote.len > 0 => Ok((wrote, Some(failed))),
            written => written.map(|()| (wrote, None)),
        }
    }

    /// Writes chunk by chunk, with smaller chunks when little space is left, and counts in `wrote` what is written. The chunk of an
    /// append is never reduced, since another append could come in between.
    fn write_chunks(
        &self,
        cred: &Cred,
        node: &Arc<Znode>,
        write: &Write<'_>,
        owed: &mut Owed,
        wrote: &mut Wrote,
    ) -> Result<(), Error> {
        let Write { offset, start, end, data, awaited } = *write;
        let mut rest = data;
        let mut at = start;
        let mut most = if offset.is_none() { APPEND } else { CHUNK };
        while !rest.is_empty() {
            let block = node.object().block_size().max(self.settings().recordsize);
            let len = chunk(at, rest.len(), block, most);
            let (now, later) = rest.split_at_checked(len).unwrap_or((rest, &[]));
            self.check_block_quota(node)?;
            self.warm(node, at, now.len() as u64)?;
            let bytes = (now.len() as u64).saturating_add(2 * node.object().block_size()).max(SMALL_CHANGE);
            let appends = offset.is_none() && wrote.len == 0;
            let done = self.change_owing(self.ask(bytes, &[node.id()]), owed, |tx| {
                let content = self.lock_to_write(node, if appends { None } else { Some(at) }, now.len() as u64, end);
                // the end may have moved since it was read
                let before = node.with_attrs(|attrs| attrs.size);
                let at = if appends { before } else { at };
                debug_assert!(content.range().contains(&at));
                let end = end.max(at.saturating_add(rest.len() as u64));
                self.write_chunk(tx, node, cred, at, now, end)?;
                self.log_write(tx, node, at, now, before, awaited);
                Ok(at)
            });
            at = match done {
                // the remaining space may suffice for a smaller chunk
                Err(error) if offset.is_some() && len as u64 > block && error.errno() == Errno::ENOSPC => {
                    most = (len as u64 / 2).max(block);
                    continue;
                }
                done => done?,
            };
            if wrote.len == 0 {
                wrote.at = at;
            }
            wrote.len += now.len();
            at = at.saturating_add(now.len() as u64);
            rest = later;
        }
        Ok(())
    }

    /// Takes the range of a file for a chunk of `len` bytes at an offset, or at the end of the file; `end` is the end of the whole write (OpenZFS:
    /// `zfs_rangelock_cb`).
    fn lock_to_write<'a>(&self, node: &'a Znode, at: Option<u64>, len: u64, end: u64) -> RangeGuard<'a> {
        node.content.write_range(|| {
            let size = node.with_attrs(|attrs| attrs.size);
            let at = at.unwrap_or(size);
            let chunk_end = at.saturating_add(len);
            if self.grown_first_block(node, size.max(end).max(chunk_end)).is_some() {
                0..u64::MAX
            } else if chunk_end > size {
                at..u64::MAX
            } else {
                at..chunk_end
            }
        })
    }

    /// Checks the flags of a file that is open for writing.
    pub(super) fn may_write(&self, node: &Znode, start: u64, appends: bool) -> Result<(), Error> {
        let (flags, size) = node.with_attrs(|attrs| (attrs.flags, attrs.size));
        let within = flags.has(FileFlags::APPENDONLY) && !appends && start < size;
        if flags.has(FileFlags::IMMUTABLE) || within { Err(Refusal::NotPermitted.of(node.id())) } else { Ok(()) }
    }

    /// Reads the blocks at the edges of a range into the cache, if they are changed in part.
    fn warm(&self, node: &Znode, at: u64, len: u64) -> Result<(), Error> {
        let (object, size) = (node.object(), node.object().block_size());
        let end = at.saturating_add(len);
        let edges = [
            at.checked_rem(size).filter(|skip| *skip != 0).map(|_| at),
            end.checked_rem(size).filter(|skip| *skip != 0).map(|_| end),
        ];
        for edge in edges.into_iter().flatten() {
            object.fetch(edge.checked_div(size).unwrap_or(0))?;
        }
        Ok(())
    }

    /// Writes a chunk; `end` is the end of the whole write. `content` is held as [`Zfs::lock_to_write`] takes it.
    pub(crate) fn write_chunk(
        &self,
        tx: &Tx,
        node: &Znode,
        cred: &Cred,
        at: u64,
        data: &[u8],
        end: u64,
    ) -> Result<(), Error> {
        let size = node.with_attrs(|attrs| attrs.size);
        self.grow_first_block(tx, node, size.max(end))?;
        let chunk_end = at.saturating_add(data.len() as u64);
        if let Err(failed) = node.object().write(tx, at, data) {
            // no data may be left beyond the end of the file: it would show when the file grows
            if chunk_end > size {
                node.object().free_range(tx, size, u64::MAX)?;
            }
            return Err(failed.into());
        }
        let (now, before) = (self.now(), node.attrs());
        node.edit(self, tx, |attrs| {
            attrs.size = attrs.size.max(chunk_end);
            content_modified(attrs, now);
            clear_setid(attrs, cred);
            Ok(())
        })?;
        self.log_mode(tx, node, &before);
        Ok(())
    }

    /// Grows the block of a one-block file as a file of `end` bytes requires (OpenZFS: `zfs_write`, `zfs_grow_blocksize`). All of `content` is
    /// held, if it grows.
    pub(crate) fn grow_first_block(&self, tx: &Tx, node: &Znode, end: u64) -> Result<(), Error> {
        match self.grown_first_block(node, end) {
            Some(wanted) => Ok(node.object().set_block_size(tx, wanted, 0)?),
            None => Ok(()),
        }
    }

    /// Returns the block size that a one-block file has to grow to before it can have `end` bytes; `None` if it does not grow.
    fn grown_first_block(&self, node: &Znode, end: u64) -> Option<u64> {
        let (object, record) = (node.object(), self.settings().recordsize);
        let (now, size) = (object.block_size(), node.with_attrs(|attrs| attrs.size));
        let grows = end > now && (!now.is_power_of_two() || now < record);
        if !grows || size > now || object.nblocks() > 1 {
            return None;
        }
        // a block that already exceeds the record size only grows to the next power of two
        let most = if now > record { now.next_power_of_two() } else { record };
        let wanted = most.min(end.next_multiple_of(512)).max(now);
        (wanted > now).then_some(wanted)
    }

    /// Returns the attributes of a file and the space that it uses.
    ///
    /// # Errors
    /// As [`Zfs::getattr`].
    pub fn stat(&self, id: ObjectId) -> Result<Stat, Error> {
        let node = self.znode(id)?;
        // before the space is looked at: it may be settled meanwhile
        let is_settled = node.object().is_settled();
        let object = node.object().reload()?;
        let (attrs, blocks) = (node.attrs(), blocks_of(&object));
        // the block of an empty file says nothing about those that it is going to have
        let empty = attrs.kind() == Kind::File && attrs.size == 0;
        let block_size = if empty { self.settings().recordsize } else { node.object().block_size() };
        Ok(Stat { attrs, inode: id.0, blocks, is_settled, block_size })
    }

    /// Returns space and object counts of the file system.
    ///
    /// # Errors
    /// When the dataset cannot be read.
    pub fn statfs(&self) -> Result<StatFs, Error> {
        let dataset = self.spa().view()?.dataset_by_id(self.fs().objset().id())?;
        let settings = self.settings();
        statfs_of(&dataset, settings.recordsize, settings.longname)
    }
}

/// Returns space and object counts of a dataset (OpenZFS: `zfs_statvfs`).
pub(super) fn statfs_of(dataset: &pool::Dataset, recordsize: u64, longname: bool) -> Result<StatFs, Error> {
    let (used, free) = (dataset.referenced(), dataset.available()?);
    let block = recordsize.max(512);
    let objects = dataset.phys().bp.fill();
    let ffree = MAX_OBJECTS.saturating_sub(objects).min(free >> DNODE_SHIFT);
    Ok(StatFs {
        bsize: block,
        frsize: block,
        blocks: used.saturating_add(free) / block,
        bfree: free / block,
        bavail: free / block,
        files: ffree.saturating_add(objects),
        ffree,
        namelen: if longname { 1023 } else { 255 },
    })
}

/// A write that is to be split into chunks.
struct Write<'a> {
    /// Its offset; `None` for the end of the file.
    offset: Option<u64>,
    /// Its start and end, if the end of the file does not move.
    start: u64,
    end: u64,
    data: &'a [u8],
    /// True if its caller is going to wait for it.
    awaited: bool,
}

/// Returns the length of the next chunk of a write: up to the end of a block.
pub(crate) fn chunk(at: u64, left: usize, block: u64, most: u64) -> usize {
    let end = at.saturating_add(most.max(block));
    let end = if block.is_power_of_two() { end - end % block } else { end };
    usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX).clamp(1, left)
}

#[cfg(test)]
mod tests {
    use super::chunk;

    #[test]
    fn chunks_end_where_blocks_do() {
        let (block, most) = (128 << 10, 4 << 20);
        assert_eq!(chunk(0, 100, block, most), 100);
        assert_eq!(chunk(0, 10 << 20, block, most), 4 << 20);
        assert_eq!(chunk(1000, 10 << 20, block, most), (4 << 20) - 1000);
        assert_eq!(chunk(1000, 99 << 20, 16 << 20, most), (16 << 20) - 1000);
        assert_eq!(chunk(u64::MAX - 5, 100, block, most), 1);
    }
}
