//! File systems that do not change, as a mount sees them: snapshots, and the file systems of pools that are open for reading.
//!
//! Whoever may read what is decided as in [`Zfs`](super::Zfs), by the properties of the dataset. Whatever changes anything fails with EROFS.
//! Decoded files are kept: they stay as they are.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use base::ObjectId;
use parking_lot::Mutex;
use pool::Spa;

use super::io::statfs_of;
use super::{
    AclKind, Cred, Handle, Mounted, NewFile, Refusal, RenameMode, SetAttr, Settings, Stat, StatFs, Temporary, Vfs,
    Wrote, XattrMode,
};
use crate::acl::access::{self, Perms};
use crate::acl::permit::{Rights, changes_file};
use crate::acl::xdr;
use crate::xattr::write::{Space, is_listed, nfs4_name, space_of};
use crate::{Attrs, Error, FileFlags, FileSystem, Kind, Node, ReadDir};

/// Number of decoded files that are kept.
const KEEP: usize = 16 << 10;

/// A file system that does not change. See the [module](self).
pub struct Still {
    dataset: Of,
    fs: FileSystem,
    settings: Settings,
    nodes: Mutex<HashMap<ObjectId, Arc<Node>>>,
    /// What is to be kept as long as this is.
    _kept: Option<Box<dyn Any + Send + Sync>>,
    /// The number of decoded files that are kept.
    keep: usize,
}

/// The dataset, for what the pool says of its space.
enum Of {
    /// As it is in a pool that is open for reading.
    View(pool::Dataset),
    /// The one in this object of a pool that changes: it is looked up each time, as blocks that are freed are not used again while a view is kept.
    Live(Weak<Spa>, ObjectId),
}

impl Still {
    /// Opens a snapshot, or a file system of a pool that is open for reading. An encrypted one needs its key loaded.
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    pub fn open(dataset: &pool::Dataset) -> Result<Still, Error> {
        let (fs, settings) = (FileSystem::open(dataset)?, Settings::of(dataset)?);
        Ok(Still { dataset: Of::View(dataset.clone()), fs, settings, nodes: Mutex::default(), keep: KEEP, _kept: None })
    }

    /// Has something kept until this is dropped, such as what keeps the pool from being exported.
    #[must_use]
    pub fn keeping(self, kept: Box<dyn Any + Send + Sync>) -> Still {
        Still { _kept: Some(kept), ..self }
    }

    /// As [`Still::open`], for a snapshot of a pool that changes: no view of the pool is kept. The caller holds the snapshot ([`pool::LongHold`])
    /// while it is read.
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    pub fn of_spa(spa: &Arc<Spa>, snapshot: &pool::Dataset) -> Result<Still, Error> {
        Ok(Still { dataset: Of::Live(Arc::downgrade(spa), snapshot.id()), ..Still::open(snapshot)? })
    }

    /// Returns the same with these lists, whatever the properties of the snapshot say, and with so many decoded files that are kept.
    pub(super) fn shown_as(self, acls: AclKind, keep: usize) -> Result<Still, Error> {
        let is_posix = acls == AclKind::Posix;
        let fs = match self.fs.shows_posix_acls() == is_posix {
            true => self.fs,
            false => FileSystem::open_with(self.fs.objset().clone(), self.fs.is_snapshot(), is_posix)?,
        };
        Ok(Still { fs, settings: Settings { acltype: acls.number(), ..self.settings }, keep, ..self })
    }

    fn node(&self, id: ObjectId) -> Result<Arc<Node>, Error> {
        if let Some(node) = self.nodes.lock().get(&id) {
            return Ok(node.clone());
        }
        let node = Arc::new(self.fs.node(id)?);
        let mut nodes = self.nodes.lock();
        if nodes.len() >= self.keep {
            nodes.clear();
        }
        nodes.insert(id, node.clone());
        Ok(node)
    }

    fn check(&self, cred: &Cred, node: &Arc<Node>, wanted: Perms) -> Result<(), Error> {
        if changes_file(node.kind(), wanted) {
            return self.refuse();
        }
        let rights = Rights::of(self.settings.acltype, cred, node.attrs().clone(), || Ok(node.clone()))?;
        let access::Guarded { attrs, list } = rights.guarded();
        access::check(cred, attrs, list, wanted).map_err(|why| why.of(node.id()))
    }

    fn refuse<T>(&self) -> Result<T, Error> {
        Err(Refusal::ReadOnly.of(self.fs.root()))
    }

    /// Returns the directory, its ZAP readable.
    fn directory(&self, cred: &Cred, dir: ObjectId, wanted: Perms, name: &[u8]) -> Result<Arc<Node>, Error> {
        let node = self.node(dir)?;
        if node.kind() != Kind::Directory {
            return Err(Error::NotDirectory { name: name.to_vec() });
        }
        self.check(cred, &node, wanted)?;
        Ok(node)
    }
}

impl Vfs for Still {
    fn root(&self) -> ObjectId {
        self.fs.root()
    }

    fn lookup(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(ObjectId, Attrs), Error> {
        let parent = self.directory(cred, dir, Perms::EXECUTE, name)?;
        let longest = if self.settings.longname { 1023 } else { 255 };
        let id = match name {
            b"" => return Err(Error::not_found(name)),
            b"." => dir,
            b".." => parent.attrs().parent,
            name => match self.fs.lookup(dir, name)? {
                Some(entry) => entry.object,
                None if name.len() > longest => return Err(Error::NameTooLong { len: name.len() }),
                None => return Err(Error::not_found(name)),
            },
        };
        Ok((id, self.node(id)?.attrs().clone()))
    }

    fn attrs(&self, id: ObjectId) -> Result<Attrs, Error> {
        Ok(self.node(id)?.attrs().clone())
    }

    fn getattr(&self, id: ObjectId) -> Result<Stat, Error> {
        let node = self.node(id)?;
        let (inode, blocks, block_size) = (node.inode(), node.blocks(), node.block_size());
        Ok(Stat { attrs: node.attrs().clone(), inode, blocks, is_settled: true, block_size })
    }

    fn setattr(&self, _cred: &Cred, _id: ObjectId, _set: &SetAttr) -> Result<Attrs, Error> {
        self.refuse()
    }

    fn access(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<(), Error> {
        self.check(cred, &self.node(id)?, Perms::from_rwx(mask))
    }

    fn create(
        &self,
        _cred: &Cred,
        _dir: ObjectId,
        _name: &[u8],
        _new: &NewFile<'_>,
    ) -> Result<(ObjectId, Attrs), Error> {
        self.refuse()
    }

    fn link(&self, _cred: &Cred, _id: ObjectId, _dir: ObjectId, _name: &[u8]) -> Result<Attrs, Error> {
        self.refuse()
    }

    fn unlink(&self, _cred: &Cred, _dir: ObjectId, _name: &[u8]) -> Result<(), Error> {
        self.refuse()
    }

    fn rmdir(&self, _cred: &Cred, _dir: ObjectId, _name: &[u8]) -> Result<(), Error> {
        self.refuse()
    }

    fn rename(
        &self,
        _cred: &Cred,
        _dir: ObjectId,
        _name: &[u8],
        _to_dir: ObjectId,
        _to_name: &[u8],
        _mode: RenameMode,
    ) -> Result<(), Error> {
        self.refuse()
    }

    fn readlink(&self, id: ObjectId) -> Result<Vec<u8>, Error> {
        self.node(id)?.target()
    }

    fn read_dir(&self, cred: &Cred, dir: ObjectId, cookie: u64) -> Result<ReadDir, Error> {
        self.directory(cred, dir, Perms::READ_DATA, b"")?;
        self.fs.read_dir_from(dir, cookie)
    }

    fn open(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<Handle, Error> {
        self.check(cred, &self.node(id)?, Perms::from_rwx(mask))?;
        Ok(Handle::of_still(id))
    }

    fn read(&self, id: ObjectId, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let node = self.node(id)?;
        if node.attrs().flags.has(FileFlags::AV_QUARANTINED) {
            return Err(Refusal::Denied.of(id));
        }
        node.read(offset, buf)
    }

    fn write(&self, _cred: &Cred, _id: ObjectId, _offset: Option<u64>, _data: &[u8]) -> Result<Wrote, Error> {
        self.refuse()
    }

    fn write_back(&self, _cred: &Cred, _id: ObjectId, _offset: u64, _data: &[u8]) -> Result<Wrote, Error> {
        self.refuse()
    }

    fn truncate(&self, _cred: &Cred, _id: ObjectId, _size: u64) -> Result<Attrs, Error> {
        self.refuse()
    }

    fn punch(&self, _cred: &Cred, _id: ObjectId, _range: Range<u64>, _keep_size: bool) -> Result<(), Error> {
        self.refuse()
    }

    fn allocate(&self, _cred: &Cred, _id: ObjectId, _range: Range<u64>, _keep_size: bool) -> Result<(), Error> {
        self.refuse()
    }

    fn seek_data(&self, id: ObjectId, offset: u64) -> Result<u64, Error> {
        let found = self.node(id)?.next_data(offset)?;
        found.ok_or_else(|| Refusal::NoData.of(id))
    }

    fn seek_hole(&self, id: ObjectId, offset: u64) -> Result<u64, Error> {
        let node = self.node(id)?;
        if offset >= node.size() {
            return Err(Refusal::NoData.of(id));
        }
        node.next_hole(offset)
    }

    fn copy_range(&self, _cred: &Cred, _from: (ObjectId, u64), _to: (ObjectId, u64), _len: u64) -> Result<u64, Error> {
        self.refuse()
    }

    fn get_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8]) -> Result<Vec<u8>, Error> {
        let (node, missing) = (self.node(id)?, || Refusal::NoAttribute.of(id));
        let space = space_of(self.settings.acltype, self.settings.xattr, name).map_err(|why| why.of(id))?;
        match space {
            Space::Nfs4Acl => {
                self.check(cred, &node, Perms::READ_ACL)?;
                return Ok(xdr::encode(&node.acl()?, node.attrs()));
            }
            space if !space.is_shown(cred, node.kind()) => return Err(missing()),
            Space::User => self.check(cred, &node, Perms::READ_DATA)?,
            _ => {}
        }
        node.xattr(name)?.ok_or_else(missing)
    }

    fn set_xattr(&self, _: &Cred, _id: ObjectId, _name: &[u8], _value: &[u8], _mode: XattrMode) -> Result<(), Error> {
        self.refuse()
    }

    fn remove_xattr(&self, _cred: &Cred, _id: ObjectId, _name: &[u8]) -> Result<(), Error> {
        self.refuse()
    }

    fn list_xattrs(&self, cred: &Cred, id: ObjectId) -> Result<Vec<Vec<u8>>, Error> {
        let (node, settings) = (self.node(id)?, &self.settings);
        let mut names = node.xattr_names()?;
        names.retain(|name| is_listed(cred, settings.acltype, settings.xattr, name));
        names.extend(nfs4_name(settings.acltype, node.attrs()));
        Ok(names)
    }

    fn write_sync(&self, _cred: &Cred, _id: ObjectId, _offset: Option<u64>, _data: &[u8]) -> Result<Wrote, Error> {
        self.refuse()
    }

    fn fsync(&self, _id: ObjectId) -> Result<(), Error> {
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs, Error> {
        let stat = |dataset: &_| statfs_of(dataset, self.settings.recordsize, self.settings.longname);
        match &self.dataset {
            Of::View(dataset) => stat(dataset),
            Of::Live(spa, id) => {
                let spa = spa.upgrade().ok_or(pool::Error::Closed)?;
                stat(&spa.view()?.dataset_by_id(*id)?)
            }
        }
    }

    fn shares(&self) -> Option<ObjectId> {
        self.fs.shares()
    }

    fn acl_kind(&self) -> AclKind {
        AclKind::of(self.settings.acltype)
    }

    fn names_are_exact(&self) -> bool {
        self.fs.names_are_exact()
    }

    /// Changes nothing: it is read-only, and access times and the kind of its lists stay as they are.
    fn mounted(&self, _temporary: Temporary) -> Result<Mounted, Error> {
        Ok(Mounted::default())
    }
}
