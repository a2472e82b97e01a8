//! Logging of changes in the intent log, and waiting for them (OpenZFS: `zfs_log.c`, `zfs_get_data`, `zfs_fsync`).
//!
//! Each operation logs its record after its last change, while the locks that order the changes are still held
//! ([`log_names`](super::log_names), [`log_files`](super::log_files)): so the order of records is that of changes. Records of
//! names are part of every commit; records of a single file wait for a commit of that file, or of all.
//!
//! A change that cannot be logged is *missed*: an extended attribute without the feature `zilsaxattr`, or with an empty value. A
//! wait for that file, or for all files, then waits for the txg; the log of the dataset notes it, which outlives the files in memory and
//! the handles of the file system. So does every wait after `sync=disabled` has ended, for the changes made under it.
//!
//! A commit may wait for a txg. So the caller must not hold a transaction meanwhile: that of a batch is released first, and
//! `sync=always` takes effect at the end of an operation or of the batch.

use std::sync::{Arc, OnceLock, Weak};

use base::{ObjectId, Txg};
use dmu::{Object, SyncedBlock, Tx};
use ondisk::zil::{Record, TxType};
use pool::Spa;
use zil::write::{BlockGot, Got, Itx, ItxData, Lead, LogBias, SyncMode, Then, WriteSource, WriteState, Zil, ZilPolicy};

use super::{Inner, Refusal, Settings, Zfs, Znode};
use crate::{Error, FileFlags};

/// Maximum number of files above a hidden one: its directory, and the owner of that.
const OWNERS_MAX: usize = 3;

/// The log of a dataset, as the operations use it.
pub(crate) struct Log {
    spa: Arc<Spa>,
    /// `None` until the existing log is replayed: a replay is not logged.
    zil: OnceLock<Arc<Zil>>,
}

/// A piece of a write that is to be logged.
pub(crate) struct Piece<'a> {
    pub(crate) object: ObjectId,
    pub(crate) generation: u64,
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    pub(crate) block_size: u64,
    /// The previous end of the file; `None` for a volume, which has no end.
    pub(crate) end: Option<u64>,
    /// True if a caller is about to wait for it.
    pub(crate) awaited: bool,
    /// True if every commit includes it.
    pub(crate) sync: bool,
}

impl Piece<'_> {
    /// True if the `len` bytes from `offset` on may be logged by a pointer to their block. OpenZFS replays the block as a whole:
    /// if the write has not moved the end of the file, and the end lies in the block (or may come to, as the one block of a file
    /// grows), it would move to the block's end.
    fn may_point(&self, offset: u64, len: u64) -> bool {
        let Some(end) = self.end else { return true };
        let into = offset.checked_rem(self.block_size).unwrap_or(0);
        let block_end = (offset - into).saturating_add(self.block_size);
        offset.saturating_add(len) > end || (block_end <= end && end > self.block_size)
    }
}

impl Log {
    pub(crate) fn new(spa: &Arc<Spa>) -> Arc<Log> {
        Arc::new(Log { spa: spa.clone(), zil: OnceLock::new() })
    }

    /// Starts logging, after the existing log is replayed.
    pub(crate) fn begin(&self, zil: Arc<Zil>, source: Weak<dyn WriteSource>, policy: ZilPolicy) {
        zil.set_source(source);
        zil.set_policy(policy);
        let _ = self.zil.set(zil);
    }

    pub(crate) fn set_policy(&self, policy: ZilPolicy) {
        if let Some(zil) = self.zil.get() {
            zil.set_policy(policy);
        }
    }

    /// Returns the log, if changes are logged.
    fn zil(&self) -> Option<&Arc<Zil>> {
        self.zil.get().filter(|zil| zil.logs())
    }

    /// True if the existing log is replayed.
    pub(crate) fn has_begun(&self) -> bool {
        self.zil.get().is_some()
    }

    pub(crate) fn logs(&self) -> bool {
        self.zil().is_some()
    }

    /// Returns the bytes of block pointers that a record can hold after `head` bytes.
    pub(crate) fn room_behind(&self, head: u64) -> u64 {
        self.zil().map_or(0, |zil| zil.max_record().saturating_sub(head))
    }

    /// Logs a record. With `sync` every commit includes it, otherwise only one of its object.
    pub(crate) fn put(
        self: &Arc<Self>,
        tx: &Tx,
        kind: TxType,
        record: &Record<'_>,
        object: Option<ObjectId>,
        sync: bool,
    ) {
        let Some(zil) = self.zil() else { return };
        zil.assign(tx, Itx { record: record.encode(kind), object, sync, data: ItxData::InRecord });
    }

    /// Logs a write: in one record, or in one per block if blocks are pointed at.
    pub(crate) fn put_write(self: &Arc<Self>, tx: &Tx, piece: &Piece<'_>) {
        let Some(zil) = self.zil() else { return };
        let Piece { object, generation, block_size, sync, .. } = *piece;
        let state = zil.write_state(piece.data.len() as u64, block_size, piece.awaited);
        let (mut offset, mut rest) = (piece.offset, piece.data);
        while !rest.is_empty() {
            let in_block = block_size.saturating_sub(offset.checked_rem(block_size).unwrap_or(0));
            let take = match state {
                WriteState::Indirect => usize::try_from(in_block).unwrap_or(usize::MAX).clamp(1, rest.len()),
                WriteState::Copied | WriteState::NeedCopy => rest.len(),
            };
            let (now, later) = rest.split_at_checked(take).unwrap_or((rest, &[]));
            let len = now.len() as u64;
            let data = match state {
                WriteState::Copied => ItxData::InRecord,
                WriteState::NeedCopy => ItxData::NeedCopy { offset, len, generation },
                WriteState::Indirect if piece.may_point(offset, len) => ItxData::Indirect { offset, len, generation },
                WriteState::Indirect => ItxData::NeedCopy { offset, len, generation },
            };
            let copied = (state == WriteState::Copied).then_some(now);
            let record =
                ondisk::zil::Write { foid: object, offset, length: len, blkptr: ondisk::BlkPtr::HOLE, data: copied };
            let record = Record::Write(record).encode(TxType::Write);
            zil.assign(tx, Itx { record, object: Some(object), sync, data });
            (offset, rest) = (offset.saturating_add(len), later);
        }
    }

    /// Notes that a change of a file is not in the log.
    pub(crate) fn miss(&self, tx: &Tx, object: ObjectId) {
        if let Some(zil) = self.zil.get() {
            zil.miss(tx, object);
        }
    }

    /// Drops the records that wait for a commit of a file that has no name any more.
    pub(crate) fn forget(&self, object: ObjectId) {
        if let Some(zil) = self.zil() {
            zil.forget(object);
        }
    }

    /// Returns whether every operation waits for the log at its end (`sync=always`).
    pub(crate) fn waits_always(&self) -> bool {
        self.zil().is_some_and(|zil| zil.policy().sync == SyncMode::Always)
    }

    /// Waits for the changes of one file and all names, or for all changes. No transaction is held.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    pub(crate) fn commit(&self, object: Option<ObjectId>) -> Result<(), Error> {
        match self.zil.get() {
            Some(zil) => Ok(zil.commit(object)?),
            None => Ok(self.spa.sync()?),
        }
    }

    /// As [`Zil::commit_then`].
    fn commit_then(&self, object: Option<ObjectId>, then: Then) -> Option<Lead> {
        match self.zil.get() {
            Some(zil) => zil.commit_then(object, then),
            None => {
                then(false);
                None
            }
        }
    }
}

/// Returns the log policy of the properties.
pub(crate) fn policy_of(sync: u64, logbias: u64) -> ZilPolicy {
    let sync = match sync {
        1 => SyncMode::Always,
        super::SYNC_DISABLED => SyncMode::Disabled,
        _ => SyncMode::Standard,
    };
    ZilPolicy { sync, logbias: if logbias == 1 { LogBias::Throughput } else { LogBias::Latency } }
}

impl Settings {
    pub(crate) fn log_policy(&self) -> ZilPolicy {
        policy_of(self.sync, self.logbias)
    }
}

/// Writes the block at `offset` to its final location.
pub(crate) fn write_block(spa: &Spa, object: &Object, offset: u64, txg: Txg) -> Result<BlockGot, dmu::Error> {
    let Some(policy) = spa.write_policy(object.objset()) else { return Ok(BlockGot::Copy) };
    let blkid = offset.checked_div(object.block_size()).unwrap_or(0);
    Ok(match object.sync_block(blkid, txg, &policy)? {
        SyncedBlock::Written(bp) => BlockGot::Block(bp),
        SyncedBlock::Already => BlockGot::Already,
        SyncedBlock::Gone => BlockGot::Gone,
        SyncedBlock::Copy => BlockGot::Copy,
    })
}

impl Inner {
    /// Returns the file that a record refers to, if it still is the same and has a name.
    fn logged(&self, id: ObjectId, generation: u64) -> Result<Option<Arc<Znode>>, dmu::Error> {
        let node = match self.nodes.get(id) {
            Some(node) => node,
            // it is not added to the cache: it may be about to be freed
            None => match self.fs.node(id) {
                Ok(node) => Arc::new(Znode::new(node.object().clone(), node.attrs().clone())),
                Err(Error::Dmu(error)) if error.is_not_found() => return Ok(None),
                // the number is that of another object by now
                Err(Error::NotA { .. }) => return Ok(None),
                Err(Error::Dmu(error)) => return Err(error),
                // the txg is waited for, as when they cannot be read
                Err(_) => {
                    let (objset, what) = (self.fs.objset().id(), "attributes, of a file in the log,");
                    return Err(dmu::Error::Corrupt { objset, object: id, what, value: generation });
                }
            },
        };
        let same = node.with_attrs(|attrs| attrs.generation == generation);
        Ok(Some(node).filter(|node| same && !node.is_unlinked()))
    }
}

impl WriteSource for Inner {
    fn copy(&self, object: ObjectId, generation: u64, offset: u64, buf: &mut [u8]) -> Result<Got, dmu::Error> {
        let Some(node) = self.logged(object, generation)? else { return Ok(Got::Gone) };
        let _content = node.content.read_range(offset..offset.saturating_add(buf.len() as u64));
        // data beyond the end after a truncation need not be logged
        if offset >= node.with_attrs(|attrs| attrs.size) {
            return Ok(Got::Gone);
        }
        node.object().read(offset, buf)?;
        Ok(Got::Data)
    }

    fn write_block(
        &self,
        object: ObjectId,
        generation: u64,
        offset: u64,
        len: u64,
        txg: Txg,
    ) -> Result<BlockGot, dmu::Error> {
        let Some(node) = self.logged(object, generation)? else { return Ok(BlockGot::Gone) };
        // while any of it is held the block does not grow
        let size = node.object().block_size();
        let start = offset - offset.checked_rem(size).unwrap_or(0);
        let _content = node.content.read_range(start..start.saturating_add(size));
        if offset >= node.with_attrs(|attrs| attrs.size) {
            return Ok(BlockGot::Gone);
        }
        // the block may have grown since; then the record is still within one block
        let size = node.object().block_size();
        if offset.checked_rem(size).is_none_or(|skip| skip.saturating_add(len) > size) {
            return Ok(BlockGot::Copy);
        }
        write_block(&self.spa, node.object(), offset, txg)
    }
}

impl Zfs {
    pub(crate) fn log(&self) -> &Arc<Log> {
        &self.0.log
    }

    /// True if no changes of a file are logged: it has no name, or belongs to a file that has none.
    pub(crate) fn is_unlogged(&self, node: &Znode) -> bool {
        if !self.log().logs() || node.is_nameless() {
            return true;
        }
        let owner_of = |attrs: &crate::Attrs| attrs.flags.has(FileFlags::XATTR).then_some(attrs.parent);
        let mut owner = node.with_attrs(owner_of);
        for _ in 0..OWNERS_MAX {
            let Some(id) = owner else { return false };
            match self.znode(id) {
                Ok(above) if !above.is_nameless() => owner = above.with_attrs(owner_of),
                _ => return true,
            }
        }
        true
    }

    /// Waits until the changes of a file, and all changes of names, are on stable storage; with `sync=disabled` it does not wait.
    /// All waits of callers for their data use this function or [`Zfs::sync`]. Through the handle of a [`Zfs::batch`]
    /// the shared transaction is released first.
    ///
    /// # Errors
    /// ENOENT if the file does not exist; EIO if the pool is suspended; EBUSY within [`Zfs::together`].
    pub fn fsync(&self, id: ObjectId) -> Result<(), Error> {
        let node = self.znode(id)?;
        if !self.give_back() {
            return Err(Refusal::Busy.of(id));
        }
        match self.settings().sync {
            super::SYNC_DISABLED => Ok(()),
            _ => self.log().commit(Some(node.id())),
        }
    }

    /// As [`Zfs::fsync`], for a caller that does not wait: see [`Vfs::fsync_then`](super::Vfs::fsync_then).
    pub(super) fn begin_fsync(&self, id: ObjectId, then: Then) -> Option<Lead> {
        match self.znode(id) {
            // the error is for the caller who waits
            Ok(node) if self.1.is_none() => match self.settings().sync {
                super::SYNC_DISABLED => then(true),
                _ => return self.log().commit_then(Some(node.id()), then),
            },
            _ => then(false),
        }
        None
    }

    /// As [`Zfs::fsync`], for all files.
    ///
    /// # Errors
    /// EIO if the pool is suspended; EBUSY within [`Zfs::together`].
    pub fn sync(&self) -> Result<(), Error> {
        if !self.give_back() {
            return Err(Refusal::Busy.of(self.fs().root()));
        }
        match self.settings().sync {
            super::SYNC_DISABLED => Ok(()),
            _ => self.log().commit(None),
        }
    }
}
