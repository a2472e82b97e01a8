//! The operations of a mount: each goes to the file system, to a snapshot, or to a control directory.

use std::ops::Range;

use base::ObjectId;
use zil::write::{Lead, Then};

use super::{At, ControlDir, Ctldir, Target, ids, shown, shown_attrs};
use crate::live::{
    AclKind, Cred, Handle, Mounted, NewFile, Pin, Refusal, RenameMode, SetAttr, Stat, StatFs, Temporary, Vfs, Wrote,
    XattrMode,
};
use crate::{Attrs, Buf, Error, PosixAcl, ReadDir};

/// Permissions of a mask.
const MAY_WRITE: u8 = 2;

/// The refusal of what a directory has no contents for.
fn no_contents<T>(dir: ControlDir) -> Result<T, Error> {
    Err(Error::IsDirectory { object: dir.id() })
}

fn not_permitted<T>(dir: ControlDir) -> Result<T, Error> {
    Err(Refusal::NotPermitted.of(dir.id()))
}

impl Ctldir {
    /// True if a name in a directory of the file system is `.zfs` in its root.
    fn is_root_name(&self, dir: ObjectId, name: &[u8]) -> bool {
        name == ControlDir::Root.name() && dir == self.live.root()
    }

    /// Carries out an operation on the contents or attributes of a file, with the number that it has in its file system.
    fn on_file<R>(
        &self,
        id: ObjectId,
        work: impl FnOnce(&dyn Vfs, ObjectId) -> Result<R, Error>,
        of_control: impl FnOnce(ControlDir) -> Result<R, Error>,
    ) -> Result<R, Error> {
        match self.at(id)? {
            At::Live(id) => work(&*self.live, id),
            At::Control(dir) => of_control(dir),
            At::Snapshot(snapshot, object) => work(&snapshot.still, object),
        }
    }
}

impl Vfs for Ctldir {
    fn root(&self) -> ObjectId {
        self.live.root()
    }

    fn pin(&self) -> Result<Option<Pin>, Error> {
        let (snapshots, admin, env) = (self.snapshots.clone(), self.admin.clone(), self.env.clone());
        let show = |live| Ctldir { live, snapshots, admin, env, born: self.born };
        Ok(self.live.pin()?.map(|pin| pin.shown_by(show)))
    }

    fn lookup(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(ObjectId, Attrs), Error> {
        match self.at(dir)? {
            At::Live(dir) if self.is_root_name(dir, name) => self.find_root(cred),
            At::Live(dir) => {
                let (id, attrs) = self.live.lookup(cred, dir, name)?;
                Ok((ids::live(id)?, self.attrs_of_live(attrs)))
            }
            At::Control(dir) => self.find_in(cred, dir, name),
            At::Snapshot(snapshot, object) if name == b".." && object == snapshot.still.root() => {
                self.control(ControlDir::Snapshots)
            }
            At::Snapshot(snapshot, object) => {
                let (id, attrs) = snapshot.still.lookup(cred, object, name)?;
                Ok((shown(&snapshot, id)?, shown_attrs(&snapshot, id, attrs)?))
            }
        }
    }

    fn attrs(&self, id: ObjectId) -> Result<Attrs, Error> {
        match self.at(id)? {
            At::Live(id) => Ok(self.attrs_of_live(self.live.attrs(id)?)),
            At::Control(dir) => self.control_attrs(dir),
            At::Snapshot(snapshot, object) => shown_attrs(&snapshot, object, snapshot.still.attrs(object)?),
        }
    }

    fn getattr(&self, id: ObjectId) -> Result<Stat, Error> {
        match self.at(id)? {
            At::Live(id) => {
                let mut stat = self.live.getattr(id)?;
                stat.attrs = self.attrs_of_live(stat.attrs);
                if id == self.live.root() && self.is_visible() {
                    stat.attrs.links = stat.attrs.links.saturating_add(1);
                }
                Ok(stat)
            }
            At::Control(dir) => self.control_stat(dir),
            At::Snapshot(snapshot, object) => {
                let stat = snapshot.still.getattr(object)?;
                let attrs = shown_attrs(&snapshot, object, stat.attrs)?;
                Ok(Stat { attrs, inode: shown(&snapshot, object)?.0, ..stat })
            }
        }
    }

    fn getattr_listed(&self, id: ObjectId) -> Result<Stat, Error> {
        match Target::of(id) {
            Target::SnapshotRoot(dataset) if !self.snapshots.is_open(dataset) => self.listed_snapshot(id, dataset),
            Target::Live(id) if id != self.live.root() => self.live.getattr_listed(id),
            _ => self.getattr(id),
        }
    }

    fn is_told(&self, id: ObjectId) -> bool {
        match Target::of(id) {
            Target::Live(id) => self.live.is_told(id),
            Target::Control(_) | Target::SnapshotRoot(_) => false,
            Target::InSnapshot { .. } => true,
        }
    }

    fn setattr(&self, cred: &Cred, id: ObjectId, set: &SetAttr) -> Result<Attrs, Error> {
        self.on_file(id, |vfs, id| vfs.setattr(cred, id, set), not_permitted)
    }

    fn access(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<(), Error> {
        self.on_file(id, |vfs, id| vfs.access(cred, id, mask), |_| Ok(()))
    }

    fn create(&self, cred: &Cred, dir: ObjectId, name: &[u8], new: &NewFile<'_>) -> Result<(ObjectId, Attrs), Error> {
        match self.at(dir)? {
            At::Live(dir) => {
                let (id, attrs) = self.live.create(cred, dir, name, new)?;
                Ok((ids::live(id)?, attrs))
            }
            At::Control(dir) => self.create_in(cred, dir, name, new.kind),
            At::Snapshot(snapshot, object) => snapshot.still.create(cred, object, name, new),
        }
    }

    fn link(&self, cred: &Cred, id: ObjectId, dir: ObjectId, name: &[u8]) -> Result<Attrs, Error> {
        match (self.at(id)?, self.at(dir)?) {
            (At::Live(id), At::Live(dir)) => self.live.link(cred, id, dir, name),
            (_, At::Snapshot(snapshot, object)) => snapshot.still.link(cred, object, object, name),
            (At::Snapshot(..), At::Live(dir)) => Err(Refusal::CrossDevice.of(dir)),
            (At::Control(dir), _) | (_, At::Control(dir)) => not_permitted(dir),
        }
    }

    fn unlink(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), Error> {
        self.on_file(dir, |vfs, dir| vfs.unlink(cred, dir, name), not_permitted)
    }

    fn rmdir(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), Error> {
        if self.is_root_name(dir, name) {
            return Err(Refusal::Exists.of(dir));
        }
        self.on_file(dir, |vfs, dir| vfs.rmdir(cred, dir, name), |dir| self.remove_in(cred, dir, name))
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
        if self.is_root_name(dir, name) {
            return Err(Refusal::Exists.of(dir));
        }
        match (self.at(dir)?, self.at(to_dir)?) {
            (At::Live(dir), At::Live(to_dir)) => self.live.rename(cred, dir, name, to_dir, to_name, mode),
            (At::Control(dir), _) => self.rename_in(cred, (dir, name), (to_dir, to_name), mode),
            (At::Snapshot(from, object), At::Snapshot(to, _)) if from.id == to.id => {
                from.still.rename(cred, object, name, object, to_name, mode)
            }
            _ => Err(Refusal::CrossDevice.of(dir)),
        }
    }

    fn readlink(&self, id: ObjectId) -> Result<Vec<u8>, Error> {
        let of_control = |dir: ControlDir| Err(Error::NotA { object: dir.id(), wanted: "symbolic link" });
        self.on_file(id, |vfs, id| vfs.readlink(id), of_control)
    }

    fn read_dir(&self, cred: &Cred, dir: ObjectId, cookie: u64) -> Result<ReadDir, Error> {
        match self.at(dir)? {
            At::Live(dir) => self.list_live(cred, dir, cookie),
            At::Control(dir) => self.list(cred, dir, cookie),
            At::Snapshot(snapshot, object) => self.list_snapshot(cred, snapshot, object, cookie),
        }
    }

    /// A handle of a file of a snapshot keeps the snapshot; but one that is opened for nothing does not, as no file of it is removed before the
    /// snapshot itself is.
    fn open(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<Handle, Error> {
        match self.at(id)? {
            At::Live(id) => self.live.open(cred, id, mask),
            At::Control(dir) if mask & MAY_WRITE != 0 => Err(Refusal::Denied.of(dir.id())),
            At::Control(dir) => Ok(Handle::of_still(dir.id())),
            At::Snapshot(..) if mask == 0 => Ok(Handle::of_still(id)),
            At::Snapshot(snapshot, object) => {
                snapshot.still.open(cred, object, mask)?;
                Ok(Handle::of_snapshot(id, snapshot))
            }
        }
    }

    fn read(&self, id: ObjectId, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.on_file(id, |vfs, id| vfs.read(id, offset, buf), no_contents)
    }

    fn lend(&self, id: ObjectId, offset: u64, len: usize) -> Result<Option<Buf>, Error> {
        self.on_file(id, |vfs, id| vfs.lend(id, offset, len), no_contents)
    }

    fn write(&self, cred: &Cred, id: ObjectId, offset: Option<u64>, data: &[u8]) -> Result<Wrote, Error> {
        self.on_file(id, |vfs, id| vfs.write(cred, id, offset, data), no_contents)
    }

    fn write_back(&self, cred: &Cred, id: ObjectId, offset: u64, data: &[u8]) -> Result<Wrote, Error> {
        self.on_file(id, |vfs, id| vfs.write_back(cred, id, offset, data), no_contents)
    }

    fn truncate(&self, cred: &Cred, id: ObjectId, size: u64) -> Result<Attrs, Error> {
        self.on_file(id, |vfs, id| vfs.truncate(cred, id, size), no_contents)
    }

    fn punch(&self, cred: &Cred, id: ObjectId, range: Range<u64>, keep_size: bool) -> Result<(), Error> {
        self.on_file(id, |vfs, id| vfs.punch(cred, id, range, keep_size), no_contents)
    }

    fn allocate(&self, cred: &Cred, id: ObjectId, range: Range<u64>, keep_size: bool) -> Result<(), Error> {
        self.on_file(id, |vfs, id| vfs.allocate(cred, id, range, keep_size), no_contents)
    }

    fn seek_data(&self, id: ObjectId, offset: u64) -> Result<u64, Error> {
        self.on_file(id, |vfs, id| vfs.seek_data(id, offset), no_contents)
    }

    fn seek_hole(&self, id: ObjectId, offset: u64) -> Result<u64, Error> {
        self.on_file(id, |vfs, id| vfs.seek_hole(id, offset), no_contents)
    }

    fn copy_range(&self, cred: &Cred, from: (ObjectId, u64), to: (ObjectId, u64), len: u64) -> Result<u64, Error> {
        match (self.at(from.0)?, self.at(to.0)?) {
            (At::Live(from_id), At::Live(to_id)) => self.live.copy_range(cred, (from_id, from.1), (to_id, to.1), len),
            (_, At::Snapshot(..)) => Err(Refusal::ReadOnly.of(to.0)),
            (At::Control(dir), _) | (_, At::Control(dir)) => no_contents(dir),
            // the kernel copies by reading and writing then
            _ => Err(Refusal::CrossDevice.of(to.0)),
        }
    }

    fn get_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8]) -> Result<Vec<u8>, Error> {
        // the kernel looks for the ACL of each directory on a path, and takes any other error for a failure
        let is_list = [PosixAcl::ACCESS, PosixAcl::DEFAULT].iter().any(|list| name == list.as_bytes());
        let of_control = |dir: ControlDir| match is_list {
            true => Err(Refusal::NoAttribute.of(dir.id())),
            false => has_no_xattrs(dir),
        };
        self.on_file(id, |vfs, id| vfs.get_xattr(cred, id, name), of_control)
    }

    fn set_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), Error> {
        self.on_file(id, |vfs, id| vfs.set_xattr(cred, id, name, value, mode), has_no_xattrs)
    }

    fn remove_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8]) -> Result<(), Error> {
        self.on_file(id, |vfs, id| vfs.remove_xattr(cred, id, name), has_no_xattrs)
    }

    fn list_xattrs(&self, cred: &Cred, id: ObjectId) -> Result<Vec<Vec<u8>>, Error> {
        self.on_file(id, |vfs, id| vfs.list_xattrs(cred, id), |_| Ok(Vec::new()))
    }

    fn write_sync(&self, cred: &Cred, id: ObjectId, offset: Option<u64>, data: &[u8]) -> Result<Wrote, Error> {
        self.on_file(id, |vfs, id| vfs.write_sync(cred, id, offset, data), no_contents)
    }

    fn fsync(&self, id: ObjectId) -> Result<(), Error> {
        let of_control = |dir: ControlDir| Err(Refusal::Invalid("a control directory is not synced").of(dir.id()));
        self.on_file(id, |vfs, id| vfs.fsync(id), of_control)
    }

    fn fsync_then(&self, id: ObjectId, then: Then) -> Option<Lead> {
        match self.at(id) {
            Ok(At::Live(id)) => self.live.fsync_then(id, then),
            _ => {
                then(false);
                None
            }
        }
    }

    fn sync(&self) -> Result<(), Error> {
        self.live.sync()
    }

    fn statfs(&self) -> Result<StatFs, Error> {
        self.live.statfs()
    }

    fn statfs_at(&self, id: ObjectId) -> Result<StatFs, Error> {
        self.on_file(id, |vfs, id| vfs.statfs_at(id), |_| self.live.statfs())
    }

    fn shares(&self) -> Option<ObjectId> {
        self.live.shares()
    }

    fn acl_kind(&self) -> AclKind {
        self.live.acl_kind()
    }

    fn names_are_exact(&self) -> bool {
        self.live.names_are_exact()
    }

    fn mounted(&self, temporary: Temporary) -> Result<Mounted, Error> {
        let mounted = self.live.mounted(temporary)?;
        self.snapshots.set_acls(temporary.acltype.unwrap_or_else(|| self.live.acl_kind()));
        Ok(mounted)
    }
}

fn has_no_xattrs<T>(dir: ControlDir) -> Result<T, Error> {
    Err(Refusal::Unsupported("a control directory has no extended attributes").of(dir.id()))
}
