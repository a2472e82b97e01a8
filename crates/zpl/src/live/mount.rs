//! The implementation of [`Vfs`] for a mount.

use std::ops::Range;

use base::ObjectId;
use zil::write::{Lead, Then};

use super::io::WriteBy;
use super::{
    AclKind, Cred, Handle, Mounted, NewFile, RenameMode, SetAttr, Stat, StatFs, Temporary, Vfs, Wrote, XattrMode, Zfs,
};
use crate::{Attrs, Buf, Error, ReadDir};

impl Vfs for Zfs {
    fn root(&self) -> ObjectId {
        self.fs().root()
    }

    fn lookup(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(ObjectId, Attrs), Error> {
        Zfs::lookup(self, cred, dir, name)
    }

    fn attrs(&self, id: ObjectId) -> Result<Attrs, Error> {
        Zfs::getattr(self, id)
    }

    fn getattr(&self, id: ObjectId) -> Result<Stat, Error> {
        self.stat(id)
    }

    fn setattr(&self, cred: &Cred, id: ObjectId, set: &SetAttr) -> Result<Attrs, Error> {
        Zfs::setattr(self, cred, id, set)
    }

    fn access(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<(), Error> {
        Zfs::access(self, cred, id, mask)
    }

    fn create(&self, cred: &Cred, dir: ObjectId, name: &[u8], new: &NewFile<'_>) -> Result<(ObjectId, Attrs), Error> {
        Zfs::create(self, cred, dir, name, new)
    }

    fn link(&self, cred: &Cred, id: ObjectId, dir: ObjectId, name: &[u8]) -> Result<Attrs, Error> {
        Zfs::link(self, cred, id, dir, name)
    }

    fn unlink(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), Error> {
        Zfs::unlink(self, cred, dir, name)
    }

    fn rmdir(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), Error> {
        Zfs::rmdir(self, cred, dir, name)
    }

    fn rename(
        &self,
        cred: &Cred,
        dir: ObjectId,
        name: &[u8],
        to_dir: ObjectId,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), Error> {
        Zfs::rename(self, cred, dir, name, to_dir, to_name, mode)
    }

    fn readlink(&self, id: ObjectId) -> Result<Vec<u8>, Error> {
        Zfs::readlink(self, id)
    }

    fn read_dir(&self, cred: &Cred, dir: ObjectId, cookie: u64) -> Result<ReadDir, Error> {
        Zfs::read_dir(self, cred, dir, cookie)
    }

    fn open(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<Handle, Error> {
        self.open_file(cred, id, mask).map(Handle::from)
    }

    fn read(&self, id: ObjectId, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        Zfs::read(self, id, offset, buf)
    }

    fn lend(&self, id: ObjectId, offset: u64, len: usize) -> Result<Option<Buf>, Error> {
        self.lend_node(&*self.znode(id)?, offset, len)
    }

    fn write(&self, cred: &Cred, id: ObjectId, offset: Option<u64>, data: &[u8]) -> Result<Wrote, Error> {
        let node = self.znode(id)?;
        self.write_part(cred, &node, offset, data, WriteBy::Caller).map(|(wrote, _)| wrote)
    }

    fn write_back(&self, cred: &Cred, id: ObjectId, offset: u64, data: &[u8]) -> Result<Wrote, Error> {
        let node = self.znode(id)?;
        let (wrote, failed) = self.write_part(cred, &node, Some(offset), data, WriteBy::Kernel)?;
        failed.map_or(Ok(wrote), Err)
    }

    fn truncate(&self, cred: &Cred, id: ObjectId, size: u64) -> Result<Attrs, Error> {
        Zfs::truncate(self, cred, id, size)
    }

    fn punch(&self, cred: &Cred, id: ObjectId, range: Range<u64>, keep_size: bool) -> Result<(), Error> {
        if keep_size { Zfs::punch(self, cred, id, range) } else { self.zero(cred, id, range) }
    }

    fn allocate(&self, cred: &Cred, id: ObjectId, range: Range<u64>, keep_size: bool) -> Result<(), Error> {
        Zfs::allocate(self, cred, id, range, keep_size)
    }

    fn seek_data(&self, id: ObjectId, offset: u64) -> Result<u64, Error> {
        Zfs::seek_data(self, id, offset)
    }

    fn seek_hole(&self, id: ObjectId, offset: u64) -> Result<u64, Error> {
        Zfs::seek_hole(self, id, offset)
    }

    fn copy_range(&self, cred: &Cred, from: (ObjectId, u64), to: (ObjectId, u64), len: u64) -> Result<u64, Error> {
        Zfs::copy_range(self, cred, from, to, len)
    }

    fn get_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8]) -> Result<Vec<u8>, Error> {
        Zfs::get_xattr(self, cred, id, name)
    }

    fn set_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), Error> {
        Zfs::set_xattr(self, cred, id, name, value, mode)
    }

    fn remove_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8]) -> Result<(), Error> {
        Zfs::remove_xattr(self, cred, id, name)
    }

    fn list_xattrs(&self, cred: &Cred, id: ObjectId) -> Result<Vec<Vec<u8>>, Error> {
        Zfs::list_xattrs(self, cred, id)
    }

    fn write_sync(&self, cred: &Cred, id: ObjectId, offset: Option<u64>, data: &[u8]) -> Result<Wrote, Error> {
        self.write_part_sync(cred, id, offset, data).map(|(wrote, _)| wrote)
    }

    fn fsync(&self, id: ObjectId) -> Result<(), Error> {
        Zfs::fsync(self, id)
    }

    fn fsync_then(&self, id: ObjectId, then: Then) -> Option<Lead> {
        self.begin_fsync(id, then)
    }

    fn sync(&self) -> Result<(), Error> {
        Zfs::sync(self)
    }

    fn statfs(&self) -> Result<StatFs, Error> {
        Zfs::statfs(self)
    }

    fn shares(&self) -> Option<ObjectId> {
        self.fs().shares()
    }

    fn acl_kind(&self) -> AclKind {
        AclKind::of(self.settings().acltype)
    }

    fn names_are_exact(&self) -> bool {
        self.fs().names_are_exact()
    }

    fn mounted(&self, temporary: Temporary) -> Result<Mounted, Error> {
        Zfs::mounted(self, temporary)
    }
}
