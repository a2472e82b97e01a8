//! Sizes and holes of files: truncation, growth, punching, seeking (OpenZFS: `zfs_freesp`, `zfs_trunc`, `zfs_extend`, `zfs_free_range`,
//! `zfs_holey`).
//!
//! A long range is freed in pieces, each in a transaction of its own, from the end: a crash in between leaves a file of the old
//! size with a hole at its end, as with OpenZFS. The rest of the block after the new end is zeroed, so that no old data shows
//! when the file grows.

use std::ops::Range;
use std::sync::Arc;

use base::{ObjectId, tunable};
use dmu::Tx;

use super::io::{MAX_SIZE, clear_setid, expect_file, lost_setid};
use super::znode::{content_modified, state_changed};
use super::{Cred, Refusal, SMALL_CHANGE, SetAttr, Zfs, Znode};
use crate::{Error, FileFlags};

impl Zfs {
    /// Truncates or extends a file; an extension is a hole. Permissions were already checked.
    ///
    /// # Errors
    /// EISDIR, EINVAL if it is not a file; EPERM for an immutable or append-only file; EFBIG.
    pub(crate) fn set_length(&self, cred: &Cred, node: &Arc<Znode>, size: u64) -> Result<(), Error> {
        expect_file(node)?;
        self.may_cut(node)?;
        if size > MAX_SIZE {
            return Err(Refusal::FileTooLarge.of(node.id()));
        }
        self.end_capability(node)?;
        let old = node.with_attrs(|attrs| attrs.size);
        if size < old {
            self.warm_edge(node, size)?;
            self.free_pieces(node, size..old)?;
        }
        let change = |tx: &Tx| {
            let _content = node.content.write();
            let old = node.with_attrs(|attrs| attrs.size);
            if size < old {
                node.object().free_range(tx, size, u64::MAX)?;
            }
            self.set_size(tx, cred, node, size)
        };
        let bytes = SMALL_CHANGE.max(2 * node.object().block_size());
        if size < old {
            self.change_freeing(bytes, &[node.id()], change)
        } else {
            self.change_some(bytes, &[node.id()], change)
        }
    }

    /// Makes a hole in a file; its size is unchanged.
    ///
    /// # Errors
    /// As [`Zfs::truncate`].
    pub fn punch(&self, cred: &Cred, id: ObjectId, range: Range<u64>) -> Result<(), Error> {
        let node = self.znode(id)?;
        expect_file(&node)?;
        self.may_cut(&node)?;
        let size = node.with_attrs(|attrs| attrs.size);
        let end = range.end.min(size);
        if range.start >= end {
            return Ok(());
        }
        self.end_capability(&node)?;
        self.warm_edge(&node, range.start)?;
        self.warm_edge(&node, end)?;
        self.free_pieces(&node, range.start..end)?;
        self.change_freeing(SMALL_CHANGE.max(3 * node.object().block_size()), &[id], |tx| {
            let _content = node.content.write_range(|| {
                let object = node.object();
                // what reaches the last block is freed up to the end, whatever is behind it
                let blocks = object.block_size().saturating_mul(object.nblocks());
                let last = end >= blocks.min(node.with_attrs(|attrs| attrs.size));
                range.start..if last { u64::MAX } else { end }
            });
            // up to the end of the last block, if the range reaches the end of the file
            let size = node.with_attrs(|attrs| attrs.size);
            let len = if end == size { u64::MAX } else { end - range.start };
            node.object().free_range(tx, range.start, len)?;
            let (now, before) = (self.now(), node.attrs());
            node.edit(self, tx, |attrs| {
                content_modified(attrs, now);
                clear_setid(attrs, cred);
                Ok(())
            })?;
            self.log_mode(tx, &node, &before);
            self.log_truncate(tx, &node, range.start, end - range.start);
            Ok(())
        })
    }

    /// As [`Zfs::punch`], and extends the file to the end of the range.
    ///
    /// # Errors
    /// As [`Zfs::truncate`].
    pub fn zero(&self, cred: &Cred, id: ObjectId, range: Range<u64>) -> Result<(), Error> {
        self.check_end(id, range.end)?;
        self.punch(cred, id, range.clone())?;
        self.lengthen(cred, &self.znode(id)?, range.end)
    }

    /// Makes sure that there is space for a range of a file, of which none is reserved; unless the size is to be kept, extends the file to its
    /// end (OpenZFS: `zpl_fallocate_common`).
    ///
    /// # Errors
    /// As [`Zfs::truncate`]; ENOTSUP if the tunable `zfs_fallocate_reserve_percent` is 0.
    pub fn allocate(&self, cred: &Cred, id: ObjectId, range: Range<u64>, keep_size: bool) -> Result<(), Error> {
        let node = self.znode(id)?;
        expect_file(&node)?;
        self.may_write(&node, range.start, false)?;
        self.check_end(id, range.end)?;
        let percent = tunable::ZFS_FALLOCATE_RESERVE_PERCENT.get();
        if percent == 0 {
            return Err(Refusal::Unsupported("preallocation is off").of(id));
        }
        let (free, len) = (self.statfs()?, range.end.saturating_sub(range.start));
        let most = free.bavail.saturating_mul(free.bsize.saturating_mul(100) / percent);
        if len > most {
            return Err(Refusal::NoSpace.of(id));
        }
        if keep_size || range.end <= node.with_attrs(|attrs| attrs.size) {
            return self.end_privileges(cred, &node);
        }
        self.lengthen(cred, &node, range.end)
    }

    /// Removes what a program must lose before its contents change, where nothing else is changed (Linux: `file_modified` in `fallocate`).
    fn end_privileges(&self, cred: &Cred, node: &Arc<Znode>) -> Result<(), Error> {
        self.end_capability(node)?;
        if node.with_attrs(|attrs| lost_setid(attrs, cred)) == 0 {
            return Ok(());
        }
        self.change_some(SMALL_CHANGE, &[node.id()], |tx| {
            let _content = node.content.write();
            let (now, before) = (self.now(), node.attrs());
            node.edit(self, tx, |attrs| {
                state_changed(attrs, now);
                clear_setid(attrs, cred);
                Ok(())
            })?;
            self.log_mode(tx, node, &before);
            Ok(())
        })
    }

    fn check_end(&self, id: ObjectId, end: u64) -> Result<(), Error> {
        if end > MAX_SIZE { Err(Refusal::FileTooLarge.of(id)) } else { Ok(()) }
    }

    /// Extends a file to at least `size` bytes; the extension is a hole. Write permission was already checked.
    pub(super) fn lengthen(&self, cred: &Cred, node: &Arc<Znode>, size: u64) -> Result<(), Error> {
        if node.with_attrs(|attrs| attrs.size) < size {
            self.end_capability(node)?;
        }
        self.change_some(SMALL_CHANGE.max(2 * node.object().block_size()), &[node.id()], |tx| {
            let _content = node.content.write();
            if node.with_attrs(|attrs| attrs.size) < size { self.set_size(tx, cred, node, size) } else { Ok(()) }
        })
    }

    /// Sets the size of a file. Data beyond it was already freed; `content` is held.
    fn set_size(&self, tx: &Tx, cred: &Cred, node: &Arc<Znode>, size: u64) -> Result<(), Error> {
        self.grow_first_block(tx, node, size)?;
        let (now, before) = (self.now(), node.attrs());
        node.edit(self, tx, |attrs| {
            attrs.size = size;
            content_modified(attrs, now);
            if size == 0 {
                attrs.flags.0 &= !FileFlags::SPARSE.0;
            }
            clear_setid(attrs, cred);
            Ok(())
        })?;
        self.log_setattr(tx, node, &SetAttr { size: Some(size), ..SetAttr::default() }, &before);
        Ok(())
    }

    fn may_cut(&self, node: &Znode) -> Result<(), Error> {
        let flags = node.with_attrs(|attrs| attrs.flags);
        let fixed = flags.has(FileFlags::IMMUTABLE) || flags.has(FileFlags::APPENDONLY);
        if fixed { Err(Refusal::NotPermitted.of(node.id())) } else { Ok(()) }
    }

    /// Reads the block at an offset into the cache, unless the offset is at its start.
    fn warm_edge(&self, node: &Znode, at: u64) -> Result<(), Error> {
        let size = node.object().block_size();
        if at.checked_rem(size).unwrap_or(0) != 0 {
            node.object().fetch(at / size)?;
        }
        Ok(())
    }

    /// Frees all but the first piece of a long range.
    fn free_pieces(&self, node: &Znode, range: Range<u64>) -> Result<(), Error> {
        let (object, mut end) = (node.object(), range.end);
        while let Some(piece) = object.last_piece(range.start..end)?.filter(|piece| piece.start > range.start) {
            self.change_freeing(SMALL_CHANGE, &[node.id()], |tx| {
                let _content = node.content.write();
                Ok(object.free_piece(tx, &piece, end)?)
            })?;
            end = piece.start;
        }
        Ok(())
    }

    /// Returns the next byte of data at or after `offset`, including data that is not on disk yet.
    ///
    /// # Errors
    /// ENXIO if there is none.
    pub fn seek_data(&self, id: ObjectId, offset: u64) -> Result<u64, Error> {
        let node = self.znode(id)?;
        expect_file(&node)?;
        let _content = node.content.read();
        let size = node.with_attrs(|attrs| attrs.size);
        let found = if offset < size { node.object().next_data(offset)? } else { None };
        found.filter(|at| *at < size).ok_or_else(|| Refusal::NoData.of(id))
    }

    /// Returns the next byte of a hole at or after `offset`; the end counts as a hole.
    ///
    /// # Errors
    /// ENXIO at the end and beyond it.
    pub fn seek_hole(&self, id: ObjectId, offset: u64) -> Result<u64, Error> {
        let node = self.znode(id)?;
        expect_file(&node)?;
        let _content = node.content.read();
        let size = node.with_attrs(|attrs| attrs.size);
        if offset >= size {
            return Err(Refusal::NoData.of(id));
        }
        Ok(node.object().next_hole(offset)?.min(size))
    }
}
