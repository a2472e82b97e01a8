//! Copies from file to file that share blocks (OpenZFS: `zfs_clone_range`; Linux: `copy_file_range`).
//!
//! A block that is on disk is cloned: the target gets a pointer to it, and the block reference table one more reference, when the
//! txg is synced. Data that cannot be shared is copied: parts of blocks, blocks of another size, files of another pool or under
//! another key. Blocks that are not on disk yet are waited for. Holes are neither read nor written: a long one takes as much time
//! as a short one, and becomes a hole.

use std::sync::Arc;

use base::{ObjectId, tunable};
use dmu::{Settled, Tx, TxObjects};
use ondisk::BlkPtr;
use zio::Payload;

use super::hold::{Ask, Owed};
use super::io::{MAX_SIZE, clear_setid, expect_file};
use super::znode::content_modified;
use super::{Cred, Refusal, SMALL_CHANGE, Zfs, Znode};
use crate::{Error, FileFlags};

/// Maximum number of blocks that one transaction clones (OpenZFS: the number that one record of the intent log holds).
const BLOCKS: u64 = 1022;
/// Bytes that are copied at a time.
const COPY: u64 = 1 << 20;
/// Properties that determine how data is stored: a copy across file systems follows those of the target, a clone would not
/// (OpenZFS: `zfs_bclone_strict_properties`).
const STORED_BY: [&str; 5] = ["checksum", "compression", "copies", "dedup", "special_small_blocks"];

/// A range of one file that is copied to another.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: u64,
    to: u64,
    len: u64,
}

impl Stretch {
    /// Returns the rest after its first `done` bytes.
    fn behind(self, done: u64) -> Stretch {
        Stretch { from: self.from + done, to: self.to + done, len: self.len - done }
    }
}

/// The result of an attempt to clone.
enum Cloned {
    Done,
    /// Some block is not on disk yet.
    Pending,
    /// The target's blocks cannot have the right size.
    Misfit,
}

impl Zfs {
    /// Copies a range from file to file, sharing blocks where possible; returns the number of bytes, less than requested only at
    /// the end of the source. Holes of the source become holes.
    ///
    /// # Errors
    /// EINVAL for ranges that overlap in one file; as [`Zfs::write`].
    pub fn copy_range(&self, cred: &Cred, from: (ObjectId, u64), to: (ObjectId, u64), len: u64) -> Result<u64, Error> {
        self.copy_range_from(cred, self, from, to, len)
    }

    /// As [`Zfs::copy_range`], with a source that may be in another file system.
    ///
    /// # Errors
    /// As [`Zfs::copy_range`].
    pub fn copy_range_from(
        &self,
        cred: &Cred,
        source: &Zfs,
        from: (ObjectId, u64),
        to: (ObjectId, u64),
        len: u64,
    ) -> Result<u64, Error> {
        let (input, output) = (source.znode(from.0)?, self.znode(to.0)?);
        expect_file(&input)?;
        expect_file(&output)?;
        let (size, flags) = input.with_attrs(|attrs| (attrs.size, attrs.flags));
        let len = len.min(size.saturating_sub(from.1));
        if len == 0 {
            return Ok(0);
        }
        if flags.has(FileFlags::AV_QUARANTINED) {
            return Err(Refusal::Denied.of(from.0));
        }
        if to.1.checked_add(len).is_none_or(|end| end > MAX_SIZE) {
            return Err(Refusal::FileTooLarge.of(to.0));
        }
        let same = from.0 == to.0 && source.fs().objset().id() == self.fs().objset().id();
        self.may_write(&output, to.1, false)?;
        if same && from.1 < to.1.saturating_add(len) && to.1 < from.1.saturating_add(len) {
            return Err(Refusal::Invalid("the ranges overlap").of(to.0));
        }
        self.end_capability(&output)?;
        let all = Stretch { from: from.1, to: to.1, len };
        let mut cloned = 0;
        if self.may_clone(source)? {
            let mut owed = Owed::default();
            let done = self.clone_blocks(cred, &input, &output, all, &mut owed);
            let logged = owed.settle(self.log());
            cloned = done.and_then(|done| logged.map(|()| done))?;
        }
        Ok(cloned + self.copy_bytes(cred, source, &input, &output, all.behind(cloned))?)
    }

    /// True if blocks of `source` may be shared with files here (OpenZFS: `zfs_clone_range_precheck`).
    fn may_clone(&self, source: &Zfs) -> Result<bool, Error> {
        let one_pool = Arc::ptr_eq(self.spa(), source.spa());
        if !one_pool || tunable::ZFS_BCLONE_ENABLED.get() == 0 {
            return Ok(false);
        }
        let view = self.spa().view()?;
        if !view.feature_enabled("block_cloning") {
            return Ok(false);
        }
        let (ours, theirs) = (self.fs().objset().id(), source.fs().objset().id());
        if ours == theirs {
            return Ok(true);
        }
        // the keys of two encrypted file systems are not compared: their data is copied
        let (ours, theirs) = (view.dataset_by_id(ours)?, view.dataset_by_id(theirs)?);
        if ours.is_encrypted()? || theirs.is_encrypted()? {
            return Ok(false);
        }
        for name in STORED_BY {
            let value = |dataset: &pool::Dataset| dataset.prop(name).map(|prop| prop.and_then(|p| p.value.number()));
            if value(&ours)? != value(&theirs)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Clones whole blocks from the start of a range; returns the number of bytes.
    fn clone_blocks(
        &self,
        cred: &Cred,
        input: &Arc<Znode>,
        output: &Arc<Znode>,
        all: Stretch,
        owed: &mut Owed,
    ) -> Result<u64, Error> {
        let block = input.object().block_size();
        let sizes = || (input.with_attrs(|attrs| attrs.size), output.with_attrs(|attrs| attrs.size));
        let mut done = 0;
        while done < all.len {
            let rest = all.behind(done);
            let part = Stretch { len: rest.len.min(BLOCKS.saturating_mul(block)), ..rest };
            // a shorter hole gets no transaction of its own
            let hole = hole_ahead(input, rest)?;
            if hole >= part.len && hole > 0 {
                self.copy_hole(cred, output, Stretch { len: hole, ..rest }, hole == rest.len)?;
                done += hole;
                continue;
            }
            let (in_size, out_size) = sizes();
            let at_end = part.from + part.len >= in_size && part.to + part.len >= out_size;
            // the last block may be partial if both files end there
            let part = if at_end { part } else { Stretch { len: part.len - part.len % block.max(1), ..part } };
            let aligned = part.from % block.max(1) == 0 && part.to % block.max(1) == 0;
            if part.len == 0 || !aligned || self.would_stick(output, part, block) {
                break;
            }
            self.check_block_quota(output)?;
            let bytes = SMALL_CHANGE + part.len.div_ceil(block.max(1)) * 256 + 2 * output.object().block_size();
            // the source as well: its blocks must not be freed in the txg before
            let source = TxObjects::of(input.object().objset().id(), &[input.id()]);
            let ask = self.ask(bytes, &[output.id()]);
            let ask = Ask { objects: ask.objects.clone().and(source), ..ask };
            match self.change_owing(ask, owed, |tx| self.clone_now(tx, cred, input, output, part, block))? {
                Cloned::Done => done += part.len,
                Cloned::Pending if tunable::ZFS_BCLONE_WAIT_DIRTY.get() != 0 && self.give_back() => {
                    self.spa().sync()?;
                }
                Cloned::Pending | Cloned::Misfit => break,
            }
        }
        Ok(done)
    }

    /// True if a clone would leave a growing file permanently with blocks smaller than its record size.
    fn would_stick(&self, output: &Znode, part: Stretch, block: u64) -> bool {
        let size = output.with_attrs(|attrs| attrs.size);
        let one = part.len <= block && size <= block;
        one && block < self.settings().recordsize && part.to.saturating_add(part.len) > block
    }

    fn clone_now(
        &self,
        tx: &Tx,
        cred: &Cred,
        input: &Arc<Znode>,
        output: &Arc<Znode>,
        part: Stretch,
        block: u64,
    ) -> Result<Cloned, Error> {
        let same = Arc::ptr_eq(input, output);
        // in order of object number, so that two crosswise copies do not deadlock; two file systems have files with the same
        // number
        let place = |node: &Znode| (node.object().objset().id(), node.id());
        let first = (!same && place(input) < place(output)).then(|| input.content.read());
        let _output = output.content.write();
        let _input = (!same && first.is_none()).then(|| input.content.read());
        if input.object().block_size() != block || !self.fit_block_size(tx, output, block, part.to)? {
            return Ok(Cloned::Misfit);
        }
        let count = part.len.div_ceil(block);
        let synced = self.spa().txgs().synced();
        let mut pointers = Vec::new();
        for n in 0..count {
            match input.object().settled(part.from / block + n)? {
                Settled::Pending => return Ok(Cloned::Pending),
                // claimed after a crash, a reference to a block that no uberblock knows would end the log
                Settled::Block(bp) if !bp.is_embedded() && bp.birth_physical() > synced => return Ok(Cloned::Pending),
                Settled::Block(bp) => pointers.push(Some(bp)),
                Settled::Hole => pointers.push(None),
            }
        }
        let object = output.object();
        if input.object().objset().id() != object.objset().id() {
            self.spa().keep_source(tx, input.object().objset());
        }
        for (n, bp) in pointers.iter().enumerate() {
            let blkid = part.to / block + n as u64;
            match *bp {
                Some(bp) => object.write_stored(tx, blkid, Payload::Clone(bp))?,
                None if blkid < object.nblocks() => object.free_range(tx, blkid * block, block)?,
                None => {}
            }
        }
        let (now, before) = (self.now(), output.attrs());
        output.edit(self, tx, |attrs| {
            attrs.size = attrs.size.max(part.to.saturating_add(part.len));
            content_modified(attrs, now);
            clear_setid(attrs, cred);
            Ok(())
        })?;
        self.log_mode(tx, output, &before);
        let pointers: Vec<BlkPtr> = pointers.into_iter().map(|bp| bp.unwrap_or(BlkPtr::HOLE)).collect();
        self.log_clone(tx, output, part.to, part.len, block, &pointers);
        Ok(Cloned::Done)
    }

    /// Sets the target's block size to that of the source, if it has at most one block. Returns true if it has that size now.
    pub(super) fn fit_block_size(&self, tx: &Tx, output: &Znode, block: u64, to: u64) -> Result<bool, Error> {
        let (object, now) = (output.object(), output.object().block_size());
        if to != 0 && !block.is_power_of_two() {
            return Ok(false);
        }
        if now == block {
            return Ok(true);
        }
        let size = output.with_attrs(|attrs| attrs.size);
        if block < now || size > now || object.nblocks() > 1 {
            return Ok(false);
        }
        object.set_block_size(tx, block, 0)?;
        Ok(object.block_size() == block)
    }

    /// Copies data that could not be cloned; returns the number of bytes: less than requested if the source has become shorter.
    fn copy_bytes(
        &self,
        cred: &Cred,
        source: &Zfs,
        input: &Arc<Znode>,
        output: &Arc<Znode>,
        all: Stretch,
    ) -> Result<u64, Error> {
        let most = COPY.max(input.object().block_size());
        let mut buf = vec![0; usize::try_from(most.min(all.len)).unwrap_or(0)];
        // the end of the data that is being copied
        let (mut done, mut until) = (0, 0);
        while done < all.len {
            let rest = all.behind(done);
            if done >= until {
                let hole = hole_ahead(input, rest)?;
                if hole > 0 {
                    self.copy_hole(cred, output, Stretch { len: hole, ..rest }, hole == rest.len)?;
                    done += hole;
                    continue;
                }
                until = done + data_ahead(input, rest)?;
            }
            let take = usize::try_from(until - done).unwrap_or(usize::MAX).min(buf.len());
            let Some(part) = buf.get_mut(..take) else { break };
            let got = source.read_node(input, rest.from, part)?;
            if got == 0 {
                break;
            }
            self.write_node(cred, output, Some(rest.to), part.get(..got).unwrap_or(&[]))?;
            done += got as u64;
        }
        Ok(done)
    }

    /// Makes a hole in the target where the source has one. The space beyond the target's end is a hole already; at the `end` of
    /// a copy the target's size is set.
    fn copy_hole(&self, cred: &Cred, output: &Arc<Znode>, hole: Stretch, end: bool) -> Result<(), Error> {
        let until = hole.to.saturating_add(hole.len);
        if output.with_attrs(|attrs| attrs.size) > hole.to {
            self.punch(cred, output.id(), hole.to..until)?;
        }
        if end { self.lengthen(cred, output, until) } else { Ok(()) }
    }
}

/// Returns the length of the hole at the start of a range of the source, before the first byte of data; 0 beyond its end.
fn hole_ahead(input: &Znode, rest: Stretch) -> Result<u64, Error> {
    let _content = input.content.read();
    let left = input.with_attrs(|attrs| attrs.size).saturating_sub(rest.from).min(rest.len);
    if left == 0 {
        return Ok(0);
    }
    let data = input.object().next_data(rest.from)?;
    Ok(data.map_or(left, |data| data.saturating_sub(rest.from).min(left)))
}

/// Returns the length of the data at the start of a range, before its first hole.
fn data_ahead(input: &Znode, rest: Stretch) -> Result<u64, Error> {
    let _content = input.content.read();
    let hole = input.object().next_hole(rest.from)?;
    // data that has become a hole since reads as zeros
    Ok(if hole > rest.from { rest.len.min(hole - rest.from) } else { rest.len })
}
