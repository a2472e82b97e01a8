//! The interface that a mount needs: operations on object numbers, each with the caller's credentials.

use std::ops::Range;

use base::ObjectId;
use zil::write::{Lead, Then};

use super::ctldir::SnapshotInUse;
use super::suspend::Slot;
use super::{Open, Pin};
use crate::acl::permit::{ACLTYPE_NFSV4, ACLTYPE_POSIX};
use crate::{Attrs, Buf, Error, FileFlags, Kind, ReadDir, Time};

/// Rights of a caller beyond those that modes, ACLs and ownership give (Linux: `capabilities(7)`; the bits are those of `CapEff`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caps(pub u64);

impl Caps {
    /// None.
    pub const NONE: Caps = Caps(0);
    /// All, as root has them.
    pub const ALL: Caps = Caps(u64::MAX);
    /// Give files away.
    pub const CHOWN: Caps = Caps(1 << 0);
    /// Read, write and search regardless of modes and ACLs; execute what anybody may execute.
    pub const DAC_OVERRIDE: Caps = Caps(1 << 1);
    /// Read files, and read and search directories, regardless of modes and ACLs.
    pub const DAC_READ_SEARCH: Caps = Caps(1 << 2);
    /// Do what only the owner of a file may do.
    pub const FOWNER: Caps = Caps(1 << 3);
    /// Keep set-id bits when writing, and set the set-group-id bit for any group.
    pub const FSETID: Caps = Caps(1 << 4);
    /// Change the flags `immutable` and `append-only`.
    pub const LINUX_IMMUTABLE: Caps = Caps(1 << 9);
    /// Read and set trusted attributes.
    pub const SYS_ADMIN: Caps = Caps(1 << 21);

    /// Returns the union of both.
    #[must_use]
    pub const fn and(self, other: Caps) -> Caps {
        Caps(self.0 | other.0)
    }

    /// Returns these without the others.
    #[must_use]
    pub const fn without(self, others: Caps) -> Caps {
        Caps(self.0 & !others.0)
    }

    /// True if all of `which` are there.
    #[must_use]
    pub const fn has(self, which: Caps) -> bool {
        self.0 & which.0 == which.0
    }
}

/// The caller's credentials (OpenZFS: `cred_t`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cred {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Other groups.
    pub groups: Vec<u32>,
    /// Capabilities.
    pub caps: Caps,
}

impl Cred {
    /// Root, who may do everything.
    pub const ROOT: Cred = Cred { uid: 0, gid: 0, groups: Vec::new(), caps: Caps::ALL };

    /// Returns the credentials of a user, who has all capabilities if he is root, and otherwise none.
    #[must_use]
    pub fn user(uid: u32, gid: u32, groups: impl Into<Vec<u32>>) -> Cred {
        Cred { uid, gid, groups: groups.into(), caps: if uid == 0 { Caps::ALL } else { Caps::NONE } }
    }

    /// Returns these credentials with other capabilities.
    #[must_use]
    pub fn with_caps(self, caps: Caps) -> Cred {
        Cred { caps, ..self }
    }

    /// True if the caller has a capability.
    #[must_use]
    pub fn has(&self, which: Caps) -> bool {
        self.caps.has(which)
    }

    /// True if the caller is in a group.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// A file to be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewFile<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Permission bits that the file does not get, unless a default ACL of its directory decides.
    pub umask: u32,
    /// The device number of a device file as Linux stores it (minor 20@0, major above).
    pub rdev: u64,
    /// The target of a symbolic link.
    pub target: &'a [u8],
    /// Initial access and modification times; the current time if `None`.
    pub times: Option<(Time, Time)>,
    /// Owner and group, if not those of the caller. A directory with the set-group-id bit passes on its own group all the same.
    pub owner: Option<(u32, u32)>,
}

impl NewFile<'_> {
    /// Describes a file without `target` and `rdev`, which are for the kinds that have them.
    #[must_use]
    pub const fn new(kind: Kind, mode: u32) -> NewFile<'static> {
        NewFile { kind, mode, umask: 0, rdev: 0, target: &[], times: None, owner: None }
    }

    /// Describes a symbolic link.
    #[must_use]
    pub const fn symlink(target: &[u8]) -> NewFile<'_> {
        NewFile { target, ..NewFile::new(Kind::Symlink, 0o777) }
    }

    /// Describes a device file.
    #[must_use]
    pub const fn device(kind: Kind, mode: u32, major: u32, minor: u32) -> NewFile<'static> {
        NewFile { rdev: (major as u64) << 20 | minor as u64, ..NewFile::new(kind, mode) }
    }
}

/// The treatment of a file that already has the new name (Linux: `renameat2`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenameMode {
    /// It is replaced.
    #[default]
    Replace,
    /// The rename fails.
    NoReplace,
    /// It gets the old name.
    Exchange,
    /// It is replaced, and a whiteout (character device 0:0) takes the old name.
    Whiteout,
    /// The rename fails; if there is none, a whiteout takes the old name.
    NoReplaceWhiteout,
}

/// The attributes of a file to change; `None` leaves one unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: the file is truncated, or extended by a hole.
    pub size: Option<u64>,
    /// Time of the last access.
    pub atime: Option<Time>,
    /// Time of the last change of the contents.
    pub mtime: Option<Time>,
    /// Sets the access and modification times to now (`utimes` without times), which requires only write permission.
    pub touch: bool,
    /// Sets the time of the last access to now, which requires ownership, as a given time does.
    pub atime_now: bool,
    /// Sets the time of the last change of the contents to now, likewise.
    pub mtime_now: bool,
    /// Time of creation.
    pub crtime: Option<Time>,
    /// The flags that users can set.
    pub flags: Option<FileFlags>,
    /// Project.
    pub projid: Option<u64>,
}

/// Values that take the place of properties while a file system is mounted with options (OpenZFS: `zfs_get_temporary_prop`); `None` for those
/// that have no other value than the property.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Temporary {
    /// `readonly`.
    pub readonly: Option<bool>,
    /// `atime`.
    pub atime: Option<bool>,
    /// `relatime`.
    pub relatime: Option<bool>,
    /// `acltype`.
    pub acltype: Option<AclKind>,
}

/// A file system that is mounted, until this is dropped. Then its properties are those of the dataset again.
#[derive(Default)]
pub struct Mounted(pub(super) Option<super::Zfs>);

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a mounted file system")
    }
}

/// The lists that determine access to files beside their modes, by property `acltype`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AclKind {
    /// None.
    #[default]
    Off,
    /// POSIX ACLs.
    Posix,
    /// NFSv4 ACLs.
    Nfs4,
}

impl AclKind {
    /// Returns that of a value of the property.
    pub(super) const fn of(acltype: u64) -> AclKind {
        match acltype {
            ACLTYPE_POSIX => AclKind::Posix,
            ACLTYPE_NFSV4 => AclKind::Nfs4,
            _ => AclKind::Off,
        }
    }

    /// Returns the value of the property.
    pub(super) const fn number(self) -> u64 {
        match self {
            AclKind::Off => 0,
            AclKind::Posix => ACLTYPE_POSIX,
            AclKind::Nfs4 => ACLTYPE_NFSV4,
        }
    }
}

/// Whether an extended attribute may, must or must not already exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrMode {
    /// It may exist.
    #[default]
    Set,
    /// It must not exist (`XATTR_CREATE`).
    Create,
    /// It must exist (`XATTR_REPLACE`).
    Replace,
}

/// The attributes of a file and the space that it uses, as `stat` shows them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Its attributes.
    pub attrs: Attrs,
    /// The inode number: the object number, but for the root of a snapshot.
    pub inode: u64,
    /// Space used on disk, including the dnode, in units of 512 bytes (`st_blocks`). It is as of the last txg that was synced.
    pub blocks: u64,
    /// True if the space stays what it is until the file changes: all of the file is on disk.
    pub is_settled: bool,
    /// Size of the blocks of its data (`st_blksize`).
    pub block_size: u64,
}

/// A file that a mount holds open: it exists until the handle is dropped, even without a name.
pub struct Handle {
    id: ObjectId,
    held: Held,
}

/// What keeps a file.
enum Held {
    /// Nothing: it cannot be removed.
    Still,
    Open(Open),
    Slot(Slot),
    /// A file of a snapshot, which is not destroyed meanwhile.
    Snapshot(SnapshotInUse),
}

impl Handle {
    /// Returns a handle of a file that cannot be removed.
    pub(super) const fn of_still(id: ObjectId) -> Handle {
        Handle { id, held: Held::Still }
    }

    /// Returns a handle of a file that is held open elsewhere.
    pub(super) fn of_slot(id: ObjectId, slot: Slot) -> Handle {
        Handle { id, held: Held::Slot(slot) }
    }

    /// Returns a handle of a file of a snapshot.
    pub(super) const fn of_snapshot(id: ObjectId, snapshot: SnapshotInUse) -> Handle {
        Handle { id, held: Held::Snapshot(snapshot) }
    }

    /// Returns the object number.
    #[must_use]
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// True if the contents of the file system were replaced, and the file is not there any more: its number may be another's. Whoever asks has the file
    /// system pinned ([`Vfs::pin`]).
    #[must_use]
    pub fn is_stale(&self) -> bool {
        matches!(&self.held, Held::Slot(slot) if slot.is_stale())
    }

    /// Drops many handles of one mount. Files among them that have no name and are not held any more are freed together.
    pub fn release_all(handles: Vec<Handle>) {
        let entered = handles.iter().find_map(|handle| match &handle.held {
            Held::Slot(slot) => slot.enter(),
            _ => None,
        });
        match &entered {
            Some(entered) => entered.zfs().reap_together(|| drop(handles)),
            None => drop(handles),
        }
    }

    /// Lets go of the file system that it is of, and not of the file.
    pub(super) fn let_go(self) {
        if let Held::Open(open) = self.held {
            open.let_go();
        }
    }

    /// As [`Open::synchronous`].
    #[must_use]
    pub fn synchronous(self) -> Handle {
        let held = match self.held {
            Held::Still => Held::Still,
            Held::Open(open) => Held::Open(open.synchronous()),
            Held::Slot(slot) => Held::Slot(slot.synchronous()),
            Held::Snapshot(snapshot) => Held::Snapshot(snapshot),
        };
        Handle { held, ..self }
    }
}

impl From<Open> for Handle {
    fn from(open: Open) -> Handle {
        Handle { id: open.id(), held: Held::Open(open) }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "file {}", self.id)
    }
}

/// Bytes that an operation has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrote {
    /// Offset of the first one.
    pub at: u64,
    /// Number of bytes: fewer than given if the rest could not be written.
    pub len: usize,
}

/// Space and objects of a file system (OpenZFS: `zfs_statvfs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// The preferred I/O size: the record size.
    pub bsize: u64,
    /// Block size in bytes of the figures below.
    pub frsize: u64,
    /// Total blocks.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Blocks available to users other than root.
    pub bavail: u64,
    /// Total objects.
    pub files: u64,
    /// Free objects.
    pub ffree: u64,
    /// Longest name.
    pub namelen: u64,
}

/// A file system as a mount sees it: one that changes ([`Zfs`](super::Zfs)), or one that does not ([`Still`](super::Still): a snapshot, or a
/// file system of a pool that is open for reading), whose operations of change fail with EROFS. Files are identified by their object numbers;
/// the generation of a file ([`Attrs::generation`]) tells it from an earlier one with the same number. Errors carry Linux error numbers
/// ([`Error::errno`]). Operations that check permissions have the caller's credentials; those on a file that the caller has open were checked
/// at opening.
pub trait Vfs: Send + Sync {
    /// Returns the root directory.
    fn root(&self) -> ObjectId;

    /// Keeps the contents from being replaced while several operations belong together; they are carried out on what is returned. `None` if that
    /// never happens.
    ///
    /// # Errors
    /// EIO if the file system did not open again after its contents were replaced.
    fn pin(&self) -> Result<Option<Pin>, Error> {
        Ok(None)
    }

    /// Looks up a name.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EACCES, ENAMETOOLONG.
    fn lookup(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(ObjectId, Attrs), Error>;

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// ENOENT if it does not exist.
    fn attrs(&self, id: ObjectId) -> Result<Attrs, Error>;

    /// Returns the attributes of a file and the space that it uses.
    ///
    /// # Errors
    /// ENOENT if it does not exist.
    fn getattr(&self, id: ObjectId) -> Result<Stat, Error>;

    /// As [`Vfs::getattr`], for a listing. Of a file that a mount is not [told](Vfs::is_told) of only the type, the inode number and the generation
    /// are right: the rest may take long to find.
    ///
    /// # Errors
    /// As [`Vfs::getattr`].
    fn getattr_listed(&self, id: ObjectId) -> Result<Stat, Error> {
        self.getattr(id)
    }

    /// Returns whether a mount is told of changes of a file and of its name that are made behind it, so that it may keep what it knows. It must ask
    /// each time for others.
    fn is_told(&self, _id: ObjectId) -> bool {
        true
    }

    /// Changes attributes; returns the new ones.
    ///
    /// # Errors
    /// EPERM, EACCES, EINVAL, EFBIG, EDQUOT, ENOSPC.
    fn setattr(&self, cred: &Cred, id: ObjectId, set: &SetAttr) -> Result<Attrs, Error>;

    /// Checks whether the caller may read (4), write (2), execute (1).
    ///
    /// # Errors
    /// EACCES, EROFS.
    fn access(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<(), Error>;

    /// Creates a file of any kind.
    ///
    /// # Errors
    /// EEXIST, ENOENT, ENOTDIR, EACCES, EINVAL, EILSEQ, ENAMETOOLONG, EMLINK, EDQUOT, ENOSPC.
    fn create(&self, cred: &Cred, dir: ObjectId, name: &[u8], new: &NewFile<'_>) -> Result<(ObjectId, Attrs), Error>;

    /// Adds a name to a file.
    ///
    /// # Errors
    /// As [`Vfs::create`]; EPERM for a directory, EXDEV into another project.
    fn link(&self, cred: &Cred, id: ObjectId, dir: ObjectId, name: &[u8]) -> Result<Attrs, Error>;

    /// Removes a name of a file that is not a directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR, EACCES, EPERM.
    fn unlink(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), Error>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, EACCES, EPERM, EINVAL.
    fn rmdir(&self, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), Error>;

    /// Renames a file, possibly into another directory.
    ///
    /// # Errors
    /// As [`Vfs::create`] and [`Vfs::unlink`]; EINVAL for a directory into itself.
    fn rename(
        &self,
        cred: &Cred,
        dir: ObjectId,
        name: &[u8],
        to_dir: ObjectId,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), Error>;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// EINVAL if it is not a symbolic link.
    fn readlink(&self, id: ObjectId) -> Result<Vec<u8>, Error>;

    /// Returns the entries of a directory, without `.` and `..`, from a cookie on (0: all).
    ///
    /// # Errors
    /// ENOTDIR, EACCES.
    fn read_dir(&self, cred: &Cred, dir: ObjectId, cookie: u64) -> Result<ReadDir, Error>;

    /// Holds a file open: it exists until the handle is dropped, even without a name. `mask` as in [`Vfs::access`], and 8 if all writes will append
    /// (`O_APPEND`): an append-only file cannot be opened for other writes.
    ///
    /// # Errors
    /// ENOENT, EACCES, EPERM.
    fn open(&self, cred: &Cred, id: ObjectId, mask: u8) -> Result<Handle, Error>;

    /// Reads; returns the number of bytes, less than requested only at the end.
    ///
    /// # Errors
    /// EISDIR, EIO.
    fn read(&self, id: ObjectId, offset: u64, buf: &mut [u8]) -> Result<usize, Error>;

    /// As [`Vfs::read`] of `len` bytes, without a copy: returns the memory that the bytes are in. `None` if they are not all in one piece of memory, and
    /// have to be read.
    ///
    /// # Errors
    /// As [`Vfs::read`].
    fn lend(&self, _id: ObjectId, _offset: u64, _len: usize) -> Result<Option<Buf>, Error> {
        Ok(None)
    }

    /// Writes at an offset, or at the end. The caller's permission was checked at opening. A write that fails after its beginning was written
    /// returns how much was.
    ///
    /// # Errors
    /// EISDIR, EFBIG, EDQUOT, ENOSPC, EPERM for an append-only file.
    fn write(&self, cred: &Cred, id: ObjectId, offset: Option<u64>, data: &[u8]) -> Result<Wrote, Error>;

    /// Writes pages that were changed in a mapping of the file, whose flags were checked when it was opened: all of them, as nobody would
    /// write the rest again.
    ///
    /// # Errors
    /// As [`Vfs::write`], but for the flags; also if a part was written.
    fn write_back(&self, cred: &Cred, id: ObjectId, offset: u64, data: &[u8]) -> Result<Wrote, Error>;

    /// Truncates or extends a file (`ftruncate`; [`Vfs::setattr`] is `truncate`). The caller's permission was checked at opening. Returns the new
    /// attributes.
    ///
    /// # Errors
    /// As [`Vfs::write`]; EINVAL for what has no contents.
    fn truncate(&self, cred: &Cred, id: ObjectId, size: u64) -> Result<Attrs, Error>;

    /// Makes a hole. If the size is to be kept the part of the range beyond the end is ignored; otherwise the file is extended to its end.
    ///
    /// # Errors
    /// As [`Vfs::write`].
    fn punch(&self, cred: &Cred, id: ObjectId, range: Range<u64>, keep_size: bool) -> Result<(), Error>;

    /// Makes sure that there is space for a range, of which none is reserved (`fallocate`): as in OpenZFS the space that is available is compared
    /// with its length. Unless the size is to be kept, the file is extended to its end.
    ///
    /// # Errors
    /// As [`Vfs::write`]; ENOTSUP if the tunable `zfs_fallocate_reserve_percent` is 0.
    fn allocate(&self, cred: &Cred, id: ObjectId, range: Range<u64>, keep_size: bool) -> Result<(), Error>;

    /// Returns the next byte of data at or after `offset`.
    ///
    /// # Errors
    /// ENXIO if there is none.
    fn seek_data(&self, id: ObjectId, offset: u64) -> Result<u64, Error>;

    /// Returns the next byte of a hole at or after `offset`; the end counts as a hole.
    ///
    /// # Errors
    /// ENXIO beyond the end.
    fn seek_hole(&self, id: ObjectId, offset: u64) -> Result<u64, Error>;

    /// Copies a range from file to file, cloning blocks where possible; returns the number of bytes.
    ///
    /// # Errors
    /// EINVAL for ranges that overlap in one file; as [`Vfs::write`].
    fn copy_range(&self, cred: &Cred, from: (ObjectId, u64), to: (ObjectId, u64), len: u64) -> Result<u64, Error>;

    /// Returns an extended attribute, by the name that Linux shows.
    ///
    /// # Errors
    /// ENODATA, EACCES.
    fn get_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8]) -> Result<Vec<u8>, Error>;

    /// Sets an extended attribute. POSIX ACLs are `system.posix_acl_access` and `system.posix_acl_default`, an NFSv4 ACL is
    /// `system.nfs4_acl_xdr`.
    ///
    /// # Errors
    /// EEXIST, ENODATA by `mode`; EACCES, EPERM, ENOTSUP, ENOSPC.
    fn set_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), Error>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA, EACCES, EPERM.
    fn remove_xattr(&self, cred: &Cred, id: ObjectId, name: &[u8]) -> Result<(), Error>;

    /// Returns the names of the extended attributes.
    ///
    /// # Errors
    /// If they cannot be read.
    fn list_xattrs(&self, cred: &Cred, id: ObjectId) -> Result<Vec<Vec<u8>>, Error>;

    /// As [`Vfs::write`], and waits until the data is on stable storage, like a write to a file opened with `O_SYNC`.
    ///
    /// # Errors
    /// As [`Vfs::write`] and [`Vfs::fsync`].
    fn write_sync(&self, cred: &Cred, id: ObjectId, offset: Option<u64>, data: &[u8]) -> Result<Wrote, Error>;

    /// Waits until the changes of a file, and all changes of names, are on stable storage.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    fn fsync(&self, id: ObjectId) -> Result<(), Error>;

    /// As [`Vfs::fsync`], for a caller that does not wait. `then` is called once, by this thread or another, and must not wait: with `true` if all is on
    /// stable storage, with `false` if the caller has to wait, by [`Vfs::fsync`], which also tells of errors. If a batch is returned, it is for the caller to have
    /// it [written](Lead::write) by a thread that may wait.
    fn fsync_then(&self, _id: ObjectId, then: Then) -> Option<Lead> {
        then(false);
        None
    }

    /// As [`Vfs::fsync`], for all files.
    ///
    /// # Errors
    /// As [`Vfs::fsync`].
    fn sync(&self) -> Result<(), Error>;

    /// Returns space and object counts.
    ///
    /// # Errors
    /// When the dataset cannot be read.
    fn statfs(&self) -> Result<StatFs, Error>;

    /// Returns those of the file system that a file is in: a snapshot's are others.
    ///
    /// # Errors
    /// As [`Vfs::statfs`].
    fn statfs_at(&self, _id: ObjectId) -> Result<StatFs, Error> {
        self.statfs()
    }

    /// Returns the directory of shares, if there is one (OpenZFS: `z_shares_dir`).
    fn shares(&self) -> Option<ObjectId> {
        None
    }

    /// Returns the lists that determine access beside the mode.
    fn acl_kind(&self) -> AclKind;

    /// Returns whether each entry has one name, as neither case nor normalization is ignored.
    fn names_are_exact(&self) -> bool;

    /// Takes the file system for a mount: until the token is dropped these values take the place of properties, for all who have it open.
    ///
    /// # Errors
    /// EBUSY if it is mounted already. One that does not change can be mounted more than once.
    fn mounted(&self, temporary: Temporary) -> Result<Mounted, Error>;
}
