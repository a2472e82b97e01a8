//! The hidden directory of extended attributes: a directory without a name, whose files are the values (OpenZFS: `zfs_make_xattrdir`,
//! `zpl_xattr_set_dir`). The file's `content` is held throughout, so that nobody else changes the directory.

use std::borrow::Cow;
use std::sync::Arc;

use dmu::sa::{Attr, SaValue, words};
use dmu::{NewObject, NewZap, Tx, Zap};
use ondisk::{DNODE_SIZE, ObjectType};

use super::acl::{self, Owners};
use super::setattr::acl_values;
use super::znode::{content_modified, time_value};
use super::{Cred, Zfs, Znode};
use crate::{Attrs, Error, FileFlags, Fuid, Kind, linux_name};

/// Type and permissions of the directory, and of a value.
const DIR_MODE: u32 = 0o041_777;
const VALUE_MODE: u32 = 0o100_644;
/// What a dnode of one slot has beside its bonus buffer.
const DNODE_FIXED: usize = 64 + 128;
/// Where the kind of file stands in the entry of a directory.
const KIND_SHIFT: u32 = 60;

impl Zfs {
    /// The stored names in the hidden directory that Linux shows as `name`.
    pub(super) fn hidden_names(&self, node: &Znode, name: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let dir = node.with_attrs(|attrs| attrs.xattr_dir);
        if dir == 0 {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        let bare = name.strip_prefix(b"user.").filter(|bare| linux_name(bare).is_some_and(|shown| shown == name));
        for stored in [Some(name), bare].into_iter().flatten() {
            if self.fs().lookup(dir, stored)?.is_some() {
                found.push(stored.to_vec());
            }
        }
        Ok(found)
    }

    /// Takes a value out of the hidden directory.
    pub(super) fn remove_hidden(&self, tx: &Tx, node: &Znode, stored: &[u8]) -> Result<(), Error> {
        let dir = self.znode(node.with_attrs(|attrs| attrs.xattr_dir))?;
        let Some(entry) = self.fs().lookup(dir.id(), stored)? else { return Ok(()) };
        let value = self.znode(entry.object)?;
        dir.dir()?.remove(tx, stored)?;
        self.count_entry(tx, &dir, -1)?;
        self.drop_link(tx, &value)
    }

    /// Writes a value into the hidden directory, which is made if it is not there.
    pub(super) fn write_hidden(
        &self,
        tx: &Tx,
        cred: &Cred,
        node: &Arc<Znode>,
        stored: &[u8],
        value: &[u8],
    ) -> Result<(), Error> {
        let dir = match node.with_attrs(|attrs| attrs.xattr_dir) {
            0 => self.make_hidden_dir(tx, node)?,
            id => self.znode(id)?,
        };
        let file = match self.fs().lookup(dir.id(), stored)? {
            Some(entry) => self.znode(entry.object)?,
            None => {
                let owners = Owners { uid: Fuid(cred.uid.into()), gid: Fuid(cred.gid.into()) };
                let file = self.make_hidden(tx, &dir.attrs(), dir.id(), VALUE_MODE, owners)?;
                let word = file.id() | u64::from(Kind::File.number()) << KIND_SHIFT;
                dir.dir()?.add_u64(tx, stored, word)?;
                self.count_entry(tx, &dir, 1)?;
                file
            }
        };
        let _content = file.content.write();
        file.object().free_range(tx, 0, u64::MAX)?;
        file.edit(self, tx, |attrs| {
            attrs.size = 0;
            Ok(())
        })?;
        self.write_chunk(tx, &file, &Cred::ROOT, 0, value, value.len() as u64)
    }

    fn count_entry(&self, tx: &Tx, dir: &Znode, change: i64) -> Result<(), Error> {
        let now = self.now();
        dir.edit(self, tx, |attrs| {
            attrs.size = attrs.size.saturating_add_signed(change);
            content_modified(attrs, now);
            Ok(())
        })
    }

    fn make_hidden_dir(&self, tx: &Tx, node: &Arc<Znode>) -> Result<Arc<Znode>, Error> {
        let attrs = node.attrs();
        let owners = Owners { uid: attrs.owner, gid: attrs.group };
        let dir = self.make_hidden(tx, &attrs, node.id(), DIR_MODE, owners)?;
        node.edit(self, tx, |attrs| {
            attrs.xattr_dir = dir.id();
            Ok(())
        })?;
        Ok(dir)
    }

    /// Makes the directory, or a value in it (OpenZFS: `zfs_mknode` with `IS_XATTR`). `above` are the attributes of what it belongs to.
    fn make_hidden(&self, tx: &Tx, above: &Attrs, parent: u64, mode: u32, owners: Owners) -> Result<Arc<Znode>, Error> {
        let (objset, slots) = (self.fs().objset(), self.settings().dnode_slots);
        let (bonus_type, bonus_len) = (ObjectType::SA, slots.max(1) * DNODE_SIZE - DNODE_FIXED);
        let is_dir = mode & 0o170_000 == DIR_MODE & 0o170_000;
        let kind = if is_dir { Kind::Directory } else { Kind::File };
        let object = if is_dir {
            let object_type = ObjectType::DIRECTORY_CONTENTS;
            let new = NewZap {
                object_type,
                bonus_type,
                bonus_len,
                slots,
                normflags: self.fs().normalization(),
                ..NewZap::default()
            };
            Zap::create_with(tx, objset, &new)?.object().clone()
        } else {
            let object_type = ObjectType::PLAIN_FILE_CONTENTS;
            objset.alloc_object(tx, &NewObject { object_type, bonus_type, bonus_len, slots, ..NewObject::default() })?
        };
        let acl = acl::of_new_file(&self.settings(), None, kind, mode, owners);
        let base = FileFlags::ARCHIVE.0 | FileFlags::AV_MODIFIED.0 | FileFlags::XATTR.0;
        let project = if self.has_projects() { FileFlags::PROJID.0 } else { 0 };
        let inherit = above.flags.0 & FileFlags::PROJINHERIT.0;
        let now = self.now();
        let one = |attr, word: u64| (attr, Cow::Owned(words(&[word])));
        let mut all: Vec<SaValue<'_>> = vec![
            one(Attr::Mode, acl.mode.into()),
            one(Attr::Size, if is_dir { 2 } else { 0 }),
            one(Attr::Gen, tx.txg().0),
            one(Attr::Uid, owners.uid.0),
            one(Attr::Gid, owners.gid.0),
            one(Attr::Parent, parent),
            one(Attr::Flags, base | acl.flags | project | inherit),
            time_value(Attr::Atime, now),
            time_value(Attr::Mtime, now),
            time_value(Attr::Ctime, now),
            time_value(Attr::Crtime, now),
            one(Attr::Links, if is_dir { 2 } else { 1 }),
        ];
        if self.has_projects() {
            all.push(one(Attr::Projid, above.projid.unwrap_or(0)));
        }
        all.extend(acl_values(&acl));
        self.fs().sa().replace_all(tx, &object, &all)?;
        self.znode(object.id())
    }
}
