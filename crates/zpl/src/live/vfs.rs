//! What a mount needs of a file system: operations on object numbers, each with who asks.

use std::ops::Range;

use super::Open;
use crate::{Attrs, Error, FileFlags, Kind, ReadDir, Time};

/// Who asks (OpenZFS: `cred_t`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cred {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Other groups.
    pub groups: Vec<u32>,
}

impl Cred {
    /// Root: may do all.
    pub const ROOT: Cred = Cred { uid: 0, gid: 0, groups: Vec::new() };

    /// Whether this is root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is in a group.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// A file to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewFile<'a> {
    /// What it is to be.
    pub kind: Kind,
    /// Permission bits, the umask taken off.
    pub mode: u32,
    /// The device number as Linux has it (minor 20@0, major above), of a device file.
    pub rdev: u64,
    /// What a symbolic link points to.
    pub target: &'a [u8],
    /// Times to begin with: of access, of the last change of the contents; now if not told.
    pub times: Option<(Time, Time)>,
    /// The user and group that it belongs to, if not to who makes it. A directory with the set-group-id bit gives its own group all the same.
    pub owner: Option<(u32, u32)>,
}

impl NewFile<'_> {
    /// A file without more: `target` and `rdev` are for the kinds that have them.
    #[must_use]
    pub const fn new(kind: Kind, mode: u32) -> NewFile<'static> {
        NewFile { kind, mode, rdev: 0, target: &[], times: None, owner: None }
    }

    /// A symbolic link.
    #[must_use]
    pub const fn symlink(target: &[u8]) -> NewFile<'_> {
        NewFile { kind: Kind::Symlink, mode: 0o777, rdev: 0, target, times: None, owner: None }
    }

    /// A device file.
    #[must_use]
    pub const fn device(kind: Kind, mode: u32, major: u32, minor: u32) -> NewFile<'static> {
        NewFile { rdev: (major as u64) << 20 | minor as u64, ..NewFile::new(kind, mode) }
    }
}

/// What becomes of a file that has the new name already (Linux: `renameat2`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenameMode {
    /// It goes.
    #[default]
    Replace,
    /// Nothing is done.
    NoReplace,
    /// It gets the old name.
    Exchange,
    /// It goes, and a whiteout (character device 0:0) takes the old name.
    Whiteout,
}

/// What to change of a file's attributes; `None` leaves one as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: the file is cut, or gets a hole at its end.
    pub size: Option<u64>,
    /// Time of the last access.
    pub atime: Option<Time>,
    /// Time of the last change of the contents.
    pub mtime: Option<Time>,
    /// The times of access and change become now (`utimes` without times): whoever may write the file may do that.
    pub touch: bool,
    /// Time of creation.
    pub crtime: Option<Time>,
    /// Flags, those that users can set.
    pub flags: Option<FileFlags>,
    /// Project.
    pub projid: Option<u64>,
}

/// Whether an extended attribute may, must or must not be there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrMode {
    /// It may.
    #[default]
    Set,
    /// It must not (`XATTR_CREATE`).
    Create,
    /// It must (`XATTR_REPLACE`).
    Replace,
}

/// Space and objects of a file system (OpenZFS: `zfs_statvfs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// The best size to read and write with: the record size.
    pub bsize: u64,
    /// Bytes of a block in the figures below.
    pub frsize: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for all but root.
    pub bavail: u64,
    /// Objects in all.
    pub files: u64,
    /// Free objects.
    pub ffree: u64,
    /// Longest name.
    pub namelen: u64,
}

/// A file system that can be changed, as a mount sees it. Files are their object numbers. Errors carry the error number of Linux
/// ([`Error::errno`]).
pub trait Vfs: Send + Sync {
    /// The root directory.
    fn root(&self) -> u64;

    /// The file of a name.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EACCES, ENAMETOOLONG.
    fn lookup(&self, cred: &Cred, dir: u64, name: &[u8]) -> Result<(u64, Attrs), Error>;

    /// The attributes of a file.
    ///
    /// # Errors
    /// ENOENT if there is none such.
    fn getattr(&self, id: u64) -> Result<Attrs, Error>;

    /// Changes attributes; gives the new ones.
    ///
    /// # Errors
    /// EPERM, EACCES, EINVAL, EFBIG, EDQUOT, ENOSPC.
    fn setattr(&self, cred: &Cred, id: u64, set: &SetAttr) -> Result<Attrs, Error>;

    /// Whether the caller may read (4), write (2), execute (1).
    ///
    /// # Errors
    /// EACCES, EROFS.
    fn access(&self, cred: &Cred, id: u64, mask: u8) -> Result<(), Error>;

    /// Makes a file of any kind.
    ///
    /// # Errors
    /// EEXIST, ENOENT, ENOTDIR, EACCES, EINVAL, EILSEQ, ENAMETOOLONG, EMLINK, EDQUOT, ENOSPC.
    fn create(&self, cred: &Cred, dir: u64, name: &[u8], new: &NewFile<'_>) -> Result<(u64, Attrs), Error>;

    /// Gives a file one more name.
    ///
    /// # Errors
    /// As [`Vfs::create`]; EPERM for a directory, EXDEV into another project.
    fn link(&self, cred: &Cred, id: u64, dir: u64, name: &[u8]) -> Result<Attrs, Error>;

    /// Takes a name from a file that is no directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR, EACCES, EPERM.
    fn unlink(&self, cred: &Cred, dir: u64, name: &[u8]) -> Result<(), Error>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, EACCES, EPERM, EINVAL.
    fn rmdir(&self, cred: &Cred, dir: u64, name: &[u8]) -> Result<(), Error>;

    /// Gives a file another name, in another directory perhaps.
    ///
    /// # Errors
    /// As [`Vfs::create`] and [`Vfs::unlink`]; EINVAL for a directory into itself.
    fn rename(
        &self,
        cred: &Cred,
        dir: u64,
        name: &[u8],
        to_dir: u64,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), Error>;

    /// What a symbolic link points to.
    ///
    /// # Errors
    /// EINVAL if it is none.
    fn readlink(&self, id: u64) -> Result<Vec<u8>, Error>;

    /// The entries of a directory, without `.` and `..`, from a cookie on (0: all).
    ///
    /// # Errors
    /// ENOTDIR, EACCES.
    fn read_dir(&self, cred: &Cred, dir: u64, cookie: u64) -> Result<ReadDir, Error>;

    /// Holds a file: it lives until this is dropped, even without a name. `mask` as in [`Vfs::access`].
    ///
    /// # Errors
    /// ENOENT, EACCES, EPERM.
    fn open(&self, cred: &Cred, id: u64, mask: u8) -> Result<Open, Error>;

    /// Reads; gives the number of bytes, less than asked for only at the end.
    ///
    /// # Errors
    /// EISDIR, EIO.
    fn read(&self, id: u64, offset: u64, buf: &mut [u8]) -> Result<usize, Error>;

    /// Writes. The caller's permission was asked for at opening.
    ///
    /// # Errors
    /// EISDIR, EFBIG, EDQUOT, ENOSPC, EPERM for an append-only file.
    fn write(&self, cred: &Cred, id: u64, offset: u64, data: &[u8]) -> Result<(), Error>;

    /// Writes at the end; gives where that was.
    ///
    /// # Errors
    /// As [`Vfs::write`].
    fn append(&self, cred: &Cred, id: u64, data: &[u8]) -> Result<u64, Error>;

    /// Makes a hole; the size stays.
    ///
    /// # Errors
    /// As [`Vfs::write`].
    fn punch(&self, cred: &Cred, id: u64, range: Range<u64>) -> Result<(), Error>;

    /// The next byte of data at or behind `offset`.
    ///
    /// # Errors
    /// ENXIO if there is none.
    fn seek_data(&self, id: u64, offset: u64) -> Result<u64, Error>;

    /// The next byte of a hole at or behind `offset`; the end counts as one.
    ///
    /// # Errors
    /// ENXIO behind the end.
    fn seek_hole(&self, id: u64, offset: u64) -> Result<u64, Error>;

    /// Copies a range from file to file, by cloning blocks where that can be; gives how many bytes.
    ///
    /// # Errors
    /// EINVAL for ranges that overlap in one file; as [`Vfs::write`].
    fn copy_range(&self, cred: &Cred, from: (u64, u64), to: (u64, u64), len: u64) -> Result<u64, Error>;

    /// An extended attribute, by the name that Linux shows.
    ///
    /// # Errors
    /// ENODATA, EACCES.
    fn get_xattr(&self, cred: &Cred, id: u64, name: &[u8]) -> Result<Vec<u8>, Error>;

    /// Sets an extended attribute. POSIX lists are `system.posix_acl_access` and `system.posix_acl_default`.
    ///
    /// # Errors
    /// EEXIST, ENODATA by `mode`; EACCES, EPERM, ENOTSUP, ENOSPC.
    fn set_xattr(&self, cred: &Cred, id: u64, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), Error>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA, EACCES, EPERM.
    fn remove_xattr(&self, cred: &Cred, id: u64, name: &[u8]) -> Result<(), Error>;

    /// The names of the extended attributes.
    ///
    /// # Errors
    /// When they cannot be read.
    fn list_xattrs(&self, cred: &Cred, id: u64) -> Result<Vec<Vec<u8>>, Error>;

    /// Writes at an offset, or at the end, and waits until it is on stable storage, as a file that is open with `O_SYNC` is written; gives where that
    /// was.
    ///
    /// # Errors
    /// As [`Vfs::write`] and [`Vfs::fsync`].
    fn write_sync(&self, cred: &Cred, id: u64, offset: Option<u64>, data: &[u8]) -> Result<u64, Error>;

    /// Waits until what was changed in a file, and all names, are on stable storage.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    fn fsync(&self, id: u64) -> Result<(), Error>;

    /// As [`Vfs::fsync`], for all files.
    ///
    /// # Errors
    /// As [`Vfs::fsync`].
    fn sync(&self) -> Result<(), Error>;

    /// Space and objects.
    ///
    /// # Errors
    /// When the dataset cannot be read.
    fn statfs(&self) -> Result<StatFs, Error>;
}
