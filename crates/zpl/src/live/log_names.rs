//! Log records of names that are created, changed and removed (OpenZFS: `zfs_log_create`, `zfs_log_symlink`, `zfs_log_link`,
//! `zfs_log_remove`, `zfs_log_rename`). Every commit includes them.

use std::sync::Arc;

use dmu::Tx;
use ondisk::zil::{AclPart, Create, Record, Rename, TxType, Whiteout};

use super::{RenameMode, Zfs, Znode};
use crate::acl::modes::{self as acl, NewAcl};
use crate::{Attrs, Error, Kind, Xattr};

/// Returns seconds and nanoseconds, as records store times.
pub(super) fn pair(time: crate::Time) -> [u64; 2] {
    [time.sec.cast_unsigned(), time.nsec.into()]
}

/// Returns the number of slots of a file's dnode.
fn slots(node: &Znode) -> u64 {
    node.object().phys().slots() as u64
}

/// Returns an ACL as stored in a record.
pub(super) fn acl_part<'a>(new: &NewAcl, aces: &'a [u8]) -> AclPart<'a> {
    let flags = new.flags & acl::V4_WIDE;
    AclPart { count: new.aces.len() as u64, flags, aces, fuids: Vec::new(), domains: Vec::new() }
}

/// The extended attributes of a new file.
#[derive(Default)]
pub(super) struct FirstXattrs {
    /// Those in the packed list.
    packed: Vec<Xattr>,
    /// The hidden directory.
    dir: Option<Arc<Znode>>,
    /// The values in it: stored names, files and contents.
    values: Vec<(Vec<u8>, Arc<Znode>, Vec<u8>)>,
}

fn create<'a>(dir: &Znode, node: &Znode, attrs: &Attrs, name: &'a [u8]) -> Create<'a> {
    Create {
        doid: dir.id(),
        foid: node.id(),
        slots: slots(node),
        mode: attrs.mode.into(),
        uid: attrs.uid().into(),
        gid: attrs.gid().into(),
        generation: attrs.generation,
        crtime: pair(attrs.crtime),
        rdev: attrs.rdev.unwrap_or(0),
        attrs: None,
        acl: None,
        domains: Vec::new(),
        name,
        link: None,
    }
}

impl Zfs {
    /// Logs CREATE, MKDIR, SYMLINK, with the ACL if it is not equivalent to the mode.
    pub(crate) fn log_create(
        &self,
        tx: &Tx,
        dir: &Znode,
        node: &Znode,
        name: &[u8],
        link: &[u8],
        list: Option<&NewAcl>,
    ) {
        if self.is_unlogged(dir) {
            return;
        }
        let attrs = node.attrs();
        let (is_dir, is_link) = (attrs.kind() == Kind::Directory, attrs.kind() == Kind::Symlink);
        let aces = list.map(|list| acl::encode_given(&list.aces));
        let acl = list.zip(aces.as_deref()).map(|(list, aces)| acl_part(list, aces)).filter(|_| !is_link);
        let kind = match (is_dir, acl.is_some()) {
            _ if is_link => TxType::Symlink,
            (false, false) => TxType::Create,
            (false, true) => TxType::CreateAcl,
            (true, false) => TxType::Mkdir,
            (true, true) => TxType::MkdirAcl,
        };
        let record = Create { acl, link: is_link.then_some(link), ..create(dir, node, &attrs, name) };
        self.log().put(tx, kind, &Record::Create(record), None, true);
    }

    /// Logs MKXATTR: the hidden directory of a file.
    pub(crate) fn log_mkxattr(&self, tx: &Tx, node: &Znode, dir: &Znode) {
        if !self.is_unlogged(node) {
            let record = create(node, dir, &dir.attrs(), b"");
            self.log().put(tx, TxType::Mkxattr, &Record::Create(record), None, true);
        }
    }

    /// Returns the extended attributes that a new file has got before its name, to be logged.
    pub(super) fn first_xattrs(&self, node: &Znode) -> Result<FirstXattrs, Error> {
        let mut first = FirstXattrs { packed: self.packed_xattrs(node)?, ..FirstXattrs::default() };
        let hidden = node.with_attrs(|attrs| attrs.xattr_dir);
        if hidden.is_none() {
            return Ok(first);
        }
        first.dir = Some(self.znode(hidden)?);
        for entry in self.fs().read_dir(hidden)? {
            let entry = entry?;
            let value = self.znode(entry.object)?;
            let contents = self.value_of(&value)?;
            first.values.push((entry.name, value, contents));
        }
        Ok(first)
    }

    /// Logs the extended attributes that a new file got before its name.
    pub(super) fn log_first_xattrs(&self, tx: &Tx, node: &Znode, first: &FirstXattrs) {
        if self.is_unlogged(node) {
            return;
        }
        for (name, value) in &first.packed {
            self.log_sa_xattr(tx, node, name, Some(value), false);
        }
        let Some(dir) = &first.dir else { return };
        self.log_mkxattr(tx, node, dir);
        for (name, value, contents) in &first.values {
            self.log_create(tx, dir, value, name, &[], None);
            self.log_write(tx, value, 0, contents, 0, false);
        }
    }

    /// Logs LINK.
    pub(super) fn log_link(&self, tx: &Tx, dir: &Znode, node: &Znode, name: &[u8]) {
        if !self.is_unlogged(dir) {
            let record = Record::Link { doid: dir.id(), link_obj: node.id(), name };
            self.log().put(tx, TxType::Link, &record, None, true);
        }
    }

    /// Logs REMOVE, RMDIR. Records that wait for a commit of the file are dropped with its last name: its number may soon be
    /// reused.
    pub(crate) fn log_remove(&self, tx: &Tx, dir: &Znode, node: &Znode, name: &[u8]) {
        if self.is_unlogged(dir) {
            return;
        }
        if node.is_unlinked() {
            self.log().forget(node.id());
        }
        let kind = if node.kind() == Kind::Directory { TxType::Rmdir } else { TxType::Remove };
        self.log().put(tx, kind, &Record::Remove { doid: dir.id(), name }, None, true);
    }

    /// Logs RENAME and its variants, after the data of the file that moves.
    pub(super) fn log_rename(
        &self,
        tx: &Tx,
        (from, name): (&Znode, &[u8]),
        (to, to_name): (&Znode, &[u8]),
        node: &Znode,
        (mode, whiteout): (RenameMode, Option<&Znode>),
    ) {
        if self.is_unlogged(from) {
            return;
        }
        let whiteout = whiteout.map(|new| {
            let attrs = new.attrs();
            Whiteout {
                foid: new.id(),
                slots: slots(new),
                mode: attrs.mode.into(),
                uid: attrs.uid().into(),
                gid: attrs.gid().into(),
                generation: attrs.generation,
                crtime: pair(attrs.crtime),
                rdev: attrs.rdev.unwrap_or(0),
            }
        });
        let kind = match mode {
            RenameMode::Exchange => TxType::RenameExchange,
            RenameMode::Whiteout | RenameMode::NoReplaceWhiteout => TxType::RenameWhiteout,
            RenameMode::Replace | RenameMode::NoReplace => TxType::Rename,
        };
        let record = Rename { sdoid: from.id(), tdoid: to.id(), src: name, dst: to_name, whiteout };
        self.log().put(tx, kind, &Record::Rename(record), Some(node.id()), true);
    }
}
