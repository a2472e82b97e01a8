//! The hidden directory of extended attributes: a directory without a name, whose files are the values (OpenZFS:
//! `zfs_make_xattrdir`, `zpl_xattr_set_dir`). The file's `content` is held throughout, so that no other thread changes the
//! directory.

use std::sync::Arc;

use base::ObjectId;

use crate::acl::modes::Owners;
use crate::live::names::entry_word;
use crate::live::new::Recorded;
use crate::live::steps::Steps;
use crate::live::znode::content_modified;
use crate::live::{Cred, NewFile, Zfs, Znode};
use crate::{Error, Fuid, Kind, MAX_XATTR_SIZE, linux_name};

/// Permissions of the directory, and of a value.
const DIR_MODE: u32 = 0o1777;
const VALUE_MODE: u32 = 0o644;

impl Zfs {
    /// Returns the stored names in the hidden directory that Linux shows as `name`.
    pub(crate) fn hidden_names(&self, node: &Znode, name: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let dir = node.with_attrs(|attrs| attrs.xattr_dir);
        if dir.is_none() {
            node.check_complete(self)?;
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

    /// Removes a value from the hidden directory.
    pub(crate) fn remove_hidden(&self, steps: &Steps<'_>, node: &Znode, stored: &[u8]) -> Result<(), Error> {
        let dir = self.znode(node.with_attrs(|attrs| attrs.xattr_dir))?;
        let Some(entry) = self.fs().lookup(dir.id(), stored)? else { return Ok(()) };
        let value = self.znode(entry.object)?;
        self.count_entry(steps, &dir, -1)?;
        steps.remove(&dir, stored, entry_word(entry.object, entry.kind))?;
        self.drop_link(steps, &value)?;
        let stored = stored.to_vec();
        steps.at_end(move |zfs, tx| zfs.log_remove(tx, &dir, &value, &stored));
        Ok(())
    }

    /// Returns the contents of a value: at most [`MAX_XATTR_SIZE`] bytes.
    pub(crate) fn value_of(&self, value: &Znode) -> Result<Vec<u8>, Error> {
        let (object, size) = (value.id(), value.with_attrs(|attrs| attrs.size));
        if value.kind() != Kind::File {
            return Err(Error::NotA { object, wanted: "regular file" });
        }
        if size > MAX_XATTR_SIZE {
            return Err(Error::TooLarge { object, size });
        }
        Ok(value.object().read_vec(0, size as usize)?)
    }

    /// Writes a value into the hidden directory, which is created if necessary.
    pub(crate) fn write_hidden(
        &self,
        steps: &Steps<'_>,
        cred: &Cred,
        node: &Arc<Znode>,
        stored: &[u8],
        value: &[u8],
    ) -> Result<(), Error> {
        node.set_plain(false);
        let dir = match node.with_attrs(|attrs| attrs.xattr_dir) {
            ObjectId::NONE => self.make_hidden_dir(steps, node, None)?,
            id => self.znode(id)?,
        };
        let file = match self.fs().lookup(dir.id(), stored)? {
            Some(entry) => {
                let file = self.znode(entry.object)?;
                match self.value_of(&file) {
                    Ok(old) => {
                        steps.keep(&file, old);
                        file
                    }
                    // contents that cannot be read, or that are too long for a value, could not be put back
                    Err(_) => {
                        self.remove_hidden(steps, node, stored)?;
                        self.make_hidden_value(steps, cred, &dir, stored)?
                    }
                }
            }
            None => self.make_hidden_value(steps, cred, &dir, stored)?,
        };
        {
            let (_content, tx) = (file.content.write(), steps.tx());
            file.object().free_range(tx, 0, u64::MAX)?;
            file.edit(self, tx, |attrs| {
                attrs.size = 0;
                Ok(())
            })?;
            self.write_chunk(tx, &file, &Cred::ROOT, 0, value, value.len() as u64)?;
        }
        let (written, value) = (file.clone(), value.to_vec());
        steps.log(&file, move |zfs, tx| {
            zfs.log_truncate(tx, &written, 0, 0);
            zfs.log_write(tx, &written, 0, &value, 0, false);
        });
        Ok(())
    }

    fn count_entry(&self, steps: &Steps<'_>, dir: &Arc<Znode>, change: i64) -> Result<(), Error> {
        let now = self.now();
        steps.edit(dir, |attrs| {
            attrs.size = attrs.size.saturating_add_signed(change);
            content_modified(attrs, now);
            Ok(())
        })
    }

    fn make_hidden_value(
        &self,
        steps: &Steps<'_>,
        cred: &Cred,
        dir: &Arc<Znode>,
        stored: &[u8],
    ) -> Result<Arc<Znode>, Error> {
        let owners = Owners { uid: Fuid(cred.uid.into()), gid: Fuid(cred.gid.into()) };
        let new = NewFile::new(Kind::File, VALUE_MODE);
        let file = steps.make(&self.plan_hidden(dir, &new, owners))?;
        steps.add(dir, stored, entry_word(file.id(), Kind::File))?;
        self.count_entry(steps, dir, 1)?;
        let (dir, made, stored) = (dir.clone(), file.clone(), stored.to_vec());
        steps.log(&dir.clone(), move |zfs, tx| zfs.log_create(tx, &dir, &made, &stored, &[], None));
        Ok(file)
    }

    /// Creates the directory, as recorded in a log if `recorded` is given. The file's `content` is held.
    pub(crate) fn make_hidden_dir(
        &self,
        steps: &Steps<'_>,
        node: &Arc<Znode>,
        recorded: Option<Recorded>,
    ) -> Result<Arc<Znode>, Error> {
        let owners = node.with_attrs(|attrs| Owners { uid: attrs.owner, gid: attrs.group });
        let new = NewFile::new(Kind::Directory, DIR_MODE);
        let mut birth = self.plan_hidden(node, &new, owners);
        if let Some(recorded) = recorded {
            birth = birth.recorded_as(recorded);
        }
        let dir = steps.make(&birth)?;
        steps.edit(node, |attrs| {
            attrs.xattr_dir = dir.id();
            Ok(())
        })?;
        let (owner, made) = (node.clone(), dir.clone());
        steps.log(node, move |zfs, tx| zfs.log_mkxattr(tx, &owner, &made));
        Ok(dir)
    }
}
