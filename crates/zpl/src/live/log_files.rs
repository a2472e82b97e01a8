//! Log records of the contents and attributes of a file (OpenZFS: `zfs_log_write`, `zfs_log_truncate`, `zfs_log_setattr`,
//! `zfs_log_setsaxattr`, `zfs_log_acl`, `zfs_log_clone_range`). They wait for a commit of the file, unless it is open for
//! synchronous writes.

use dmu::Tx;
use ondisk::BlkPtr;
use ondisk::zil::{AttrPart, Record, SetAttr as Logged, TxType};

use super::log::Piece;
use super::log_names::{acl_part, pair};
use super::replay::{
    ATTR_ATIME, ATTR_GID, ATTR_MODE, ATTR_MTIME, ATTR_SIZE, ATTR_UID, XAT_CREATETIME, XAT_FLAGS, XAT_PROJID,
};
use super::{SetAttr, Zfs, Znode};
use crate::acl::modes::{self as acl, NewAcl};
use crate::{Attrs, FileFlags};

/// The mask bit which says that further attributes follow (OpenZFS on Linux: `ATTR_XVATTR`).
const ATTR_XVATTR: u64 = 1 << 31;
/// Bytes of a SETSAXATTR beside its name and value, at most (OpenZFS: `lr_setsaxattr_t`, a NUL, and padding).
const SETSAXATTR_HEAD: u64 = 64;
/// Bytes of a CLONE_RANGE before its pointers (OpenZFS: `lr_clone_range_t`), and of a pointer.
const CLONE_HEAD: u64 = 72;
const BLKPTR: u64 = 128;

impl Zfs {
    /// Logs a record of one file.
    fn log_file(&self, tx: &Tx, node: &Znode, kind: TxType, record: &Record<'_>) {
        self.log().put(tx, kind, record, Some(node.id()), node.writes_sync());
    }

    /// Logs a WRITE to a file that ended at `end` before; `awaited` says that the caller will wait for it. A value of an extended
    /// attribute is part of every commit, as its name is.
    pub(crate) fn log_write(&self, tx: &Tx, node: &Znode, offset: u64, data: &[u8], end: u64, awaited: bool) {
        if self.is_unlogged(node) {
            return;
        }
        let (generation, hidden) = node.with_attrs(|attrs| (attrs.generation, attrs.flags.has(FileFlags::XATTR)));
        let always = self.settings().sync == super::SYNC_ALWAYS;
        let piece = Piece {
            object: node.id(),
            generation,
            offset,
            data,
            block_size: node.object().block_size(),
            end: Some(end),
            awaited: awaited || always,
            sync: hidden || node.writes_sync(),
        };
        self.log().put_write(tx, &piece);
    }

    /// Logs a TRUNCATE, which makes a hole.
    pub(crate) fn log_truncate(&self, tx: &Tx, node: &Znode, offset: u64, length: u64) {
        if !self.is_unlogged(node) {
            let sync = node.writes_sync() || node.with_attrs(|attrs| attrs.flags.has(FileFlags::XATTR));
            let record = Record::Truncate { foid: node.id(), offset, length };
            self.log().put(tx, TxType::Truncate, &record, Some(node.id()), sync);
        }
    }

    /// Logs a SETATTR of the attributes in `set`, with the values that the file has now; `before` are the previous attributes. A
    /// mode that changed as a consequence is logged too.
    pub(super) fn log_setattr(&self, tx: &Tx, node: &Znode, set: &SetAttr, before: &Attrs) {
        if self.is_unlogged(node) {
            return;
        }
        let now = node.attrs();
        let given = |given: bool, bit: u64| if given { bit } else { 0 };
        let attrs = further(set, before, &now);
        let mask = given(set.mode.is_some() || now.mode != before.mode, ATTR_MODE)
            | given(set.uid.is_some(), ATTR_UID)
            | given(set.gid.is_some(), ATTR_GID)
            | given(set.size.is_some(), ATTR_SIZE)
            | given(set.atime.is_some() || set.atime_now || set.touch, ATTR_ATIME)
            | given(set.mtime.is_some() || set.mtime_now || set.touch, ATTR_MTIME)
            | given(attrs.is_some(), ATTR_XVATTR);
        if mask == 0 {
            return;
        }
        let record = Logged {
            foid: node.id(),
            mask,
            mode: now.mode.into(),
            uid: now.uid().into(),
            gid: now.gid().into(),
            size: now.size,
            atime: pair(now.atime),
            mtime: pair(now.mtime),
            attrs: attrs.as_ref().map(Further::part),
            domains: Vec::new(),
        };
        self.log_file(tx, node, TxType::Setattr, &Record::SetAttr(record));
    }

    /// Logs a SETATTR of a mode that changed as a consequence.
    pub(crate) fn log_mode(&self, tx: &Tx, node: &Znode, before: &Attrs) {
        if node.with_attrs(|attrs| attrs.mode) != before.mode {
            self.log_setattr(tx, node, &SetAttr::default(), before);
        }
    }

    /// Logs a SETSAXATTR, by the stored name. One that `moves` from or to the hidden directory is part of every commit, as the records of
    /// that directory are.
    pub(crate) fn log_sa_xattr(&self, tx: &Tx, node: &Znode, name: &[u8], value: Option<&[u8]>, moves: bool) {
        if self.is_unlogged(node) {
            return;
        }
        if !self.can_log_sa_xattr(name, value) {
            self.log().miss(tx, node.id());
            return;
        }
        let record = Record::SetSaXattr { foid: node.id(), name, value };
        self.log().put(tx, TxType::Setsaxattr, &record, Some(node.id()), moves || node.writes_sync());
    }

    /// True if a SETSAXATTR can have this value. An empty one means removal in a record, so it cannot be logged.
    pub(crate) fn can_log_sa_xattr(&self, name: &[u8], value: Option<&[u8]>) -> bool {
        let len = name.len() + value.map_or(0, <[u8]>::len);
        let fits = self.log().room_behind(SETSAXATTR_HEAD) >= len as u64;
        self.settings().logs_sa_xattrs && fits && value.is_none_or(|value| !value.is_empty())
    }

    /// Logs an ACL record.
    pub(super) fn log_acl(&self, tx: &Tx, node: &Znode, new: &NewAcl) {
        if !self.is_unlogged(node) {
            let aces = acl::encode_given(&new.aces);
            let record = Record::Acl { foid: node.id(), acl: acl_part(new, &aces) };
            self.log_file(tx, node, TxType::Acl, &record);
        }
    }

    /// Logs CLONE_RANGE records: `len` bytes from `offset` on are now these blocks.
    pub(super) fn log_clone(&self, tx: &Tx, node: &Znode, offset: u64, len: u64, blksz: u64, bps: &[BlkPtr]) {
        if self.is_unlogged(node) {
            return;
        }
        let most = usize::try_from(self.log().room_behind(CLONE_HEAD) / BLKPTR).unwrap_or(usize::MAX).max(1);
        let (mut at, mut left) = (offset, len);
        for bps in bps.chunks(most) {
            let length = left.min((bps.len() as u64).saturating_mul(blksz));
            let record = Record::CloneRange { foid: node.id(), offset: at, length, blksz, bps: bps.to_vec() };
            self.log_file(tx, node, TxType::CloneRange, &record);
            (at, left) = (at.saturating_add(length), left.saturating_sub(length));
        }
    }
}

/// Attributes beyond POSIX, as stored in a record.
struct Further {
    asked: u32,
    flags: u64,
    crtime: [u64; 2],
    stamp: [u8; 32],
}

/// Returns the changed ones, if any.
fn further(set: &SetAttr, before: &Attrs, now: &Attrs) -> Option<Further> {
    let mut out = Further { asked: 0, flags: 0, crtime: [0; 2], stamp: [0; 32] };
    let differs = |flag: FileFlags| (before.flags.0 ^ now.flags.0) & flag.0 != 0;
    for (bit, flag) in XAT_FLAGS.into_iter().filter(|(_, flag)| set.flags.is_some() && differs(*flag)) {
        out.asked |= bit;
        out.flags |= if now.flags.has(flag) { u64::from(bit) } else { 0 };
    }
    if set.crtime.is_some() {
        out.asked |= XAT_CREATETIME;
        out.crtime = pair(now.crtime);
    }
    if let Some(projid) = set.projid {
        out.asked |= XAT_PROJID;
        out.stamp.iter_mut().zip(projid.to_le_bytes()).for_each(|(to, from)| *to = from);
    }
    (out.asked != 0).then_some(out)
}

impl Further {
    fn part(&self) -> AttrPart<'_> {
        AttrPart { bitmap: vec![self.asked, 0, 0], attrs: self.flags, crtime: self.crtime, scanstamp: &self.stamp }
    }
}
