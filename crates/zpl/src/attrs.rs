//! The attributes of a file, as shown by `stat`, `statx` and `FS_IOC_GETFLAGS`.

use base::ObjectId;
use dmu::Object;
use dmu::sa::{Attr, SaAttrs};

use crate::{Error, Fuid};

/// A point in time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time {
    /// Seconds since 1970.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A number that Linux never writes.
    Other(u8),
}

impl Kind {
    /// Returns the kind of a type number: bits 12–15 of a mode, or the `d_type` of a directory entry.
    #[must_use]
    pub const fn from_number(n: u8) -> Kind {
        match n {
            1 => Kind::Fifo,
            2 => Kind::CharDevice,
            4 => Kind::Directory,
            6 => Kind::BlockDevice,
            8 => Kind::File,
            10 => Kind::Symlink,
            12 => Kind::Socket,
            n => Kind::Other(n),
        }
    }

    /// Returns the type number, the `d_type` of `readdir`.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Kind::Fifo => 1,
            Kind::CharDevice => 2,
            Kind::Directory => 4,
            Kind::BlockDevice => 6,
            Kind::File => 8,
            Kind::Symlink => 10,
            Kind::Socket => 12,
            Kind::Other(n) => n,
        }
    }

    /// Returns the letter that `ls -l` and `find -type` use (`-` and `f` for a regular file: here `f`).
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Kind::Fifo => 'p',
            Kind::CharDevice => 'c',
            Kind::Directory => 'd',
            Kind::BlockDevice => 'b',
            Kind::File => 'f',
            Kind::Symlink => 'l',
            Kind::Socket => 's',
            Kind::Other(_) => '?',
        }
    }
}

/// The flags of a file (OpenZFS: `z_pflags`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FileFlags(pub u64);

#[allow(missing_docs)] // OpenZFS's names less the prefix
impl FileFlags {
    pub const XATTR: FileFlags = FileFlags(0x1);
    pub const INHERIT_ACE: FileFlags = FileFlags(0x2);
    pub const ACL_TRIVIAL: FileFlags = FileFlags(0x4);
    pub const ACL_OBJ_ACE: FileFlags = FileFlags(0x8);
    pub const ACL_PROTECTED: FileFlags = FileFlags(0x10);
    pub const ACL_DEFAULTED: FileFlags = FileFlags(0x20);
    pub const ACL_AUTO_INHERIT: FileFlags = FileFlags(0x40);
    pub const BONUS_SCANSTAMP: FileFlags = FileFlags(0x80);
    pub const NO_EXECS_DENIED: FileFlags = FileFlags(0x100);
    pub const READONLY: FileFlags = FileFlags(1 << 32);
    pub const HIDDEN: FileFlags = FileFlags(1 << 33);
    pub const SYSTEM: FileFlags = FileFlags(1 << 34);
    pub const ARCHIVE: FileFlags = FileFlags(1 << 35);
    pub const IMMUTABLE: FileFlags = FileFlags(1 << 36);
    pub const NOUNLINK: FileFlags = FileFlags(1 << 37);
    pub const APPENDONLY: FileFlags = FileFlags(1 << 38);
    pub const NODUMP: FileFlags = FileFlags(1 << 39);
    pub const OPAQUE: FileFlags = FileFlags(1 << 40);
    pub const AV_QUARANTINED: FileFlags = FileFlags(1 << 41);
    pub const AV_MODIFIED: FileFlags = FileFlags(1 << 42);
    pub const REPARSE: FileFlags = FileFlags(1 << 43);
    pub const OFFLINE: FileFlags = FileFlags(1 << 44);
    pub const SPARSE: FileFlags = FileFlags(1 << 45);
    pub const PROJINHERIT: FileFlags = FileFlags(1 << 46);
    pub const PROJID: FileFlags = FileFlags(1 << 47);

    /// True if all flags of `which` are set.
    #[must_use]
    pub const fn has(self, which: FileFlags) -> bool {
        self.0 & which.0 == which.0
    }

    /// Returns the bits of `FS_IOC_GETFLAGS` (lsattr): immutable 0x10, append 0x20, no dump 0x40, project 0x20000000.
    #[must_use]
    pub fn linux(self) -> u32 {
        let bit = |which, bit| if self.has(which) { bit } else { 0 };
        bit(FileFlags::IMMUTABLE, 0x10)
            | bit(FileFlags::APPENDONLY, 0x20)
            | bit(FileFlags::NODUMP, 0x40)
            | bit(FileFlags::PROJINHERIT, 0x2000_0000)
    }

    /// Returns the bits of `fsx_xflags` in `FS_IOC_FSGETXATTR`: immutable 8, append 0x10, no dump 0x80, project 0x200.
    #[must_use]
    pub fn linux_xflags(self) -> u32 {
        let bit = |which, bit| if self.has(which) { bit } else { 0 };
        bit(FileFlags::IMMUTABLE, 0x8)
            | bit(FileFlags::APPENDONLY, 0x10)
            | bit(FileFlags::NODUMP, 0x80)
            | bit(FileFlags::PROJINHERIT, 0x200)
    }
}

/// The attributes that every file has, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attrs {
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Owner as stored.
    pub owner: Fuid,
    /// Group as stored.
    pub group: Fuid,
    /// Size in bytes; for a directory the number of its entries, including `.` and `..`.
    pub size: u64,
    /// Number of links; for a directory its subdirectories plus 2.
    pub links: u64,
    /// The txg in which the object number was last allocated.
    pub generation: u64,
    /// The parent directory, or one of several; for the root the root itself; for a hidden attribute directory its file.
    pub parent: ObjectId,
    /// Last access.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Creation (`btime` of `statx`).
    pub crtime: Time,
    /// Flags.
    pub flags: FileFlags,
    /// The project id, if the file has one; without one it counts as 0.
    pub projid: Option<u64>,
    /// The device number as stored.
    pub rdev: Option<u64>,
    /// The hidden directory of extended attributes, 0 for none.
    pub xattr_dir: ObjectId,
    /// The change counter, in file systems that persist it.
    pub seq: Option<u64>,
}

impl Attrs {
    pub(crate) fn decode(object: &Object, sa: &SaAttrs) -> Result<Attrs, Error> {
        let id = object.id();
        let must = |attr, what| sa.u64(attr).ok_or(Error::Missing { object: id, what });
        let time = |attr| {
            let words = sa.u64s(attr);
            Time { sec: words.first().copied().unwrap_or(0) as i64, nsec: words.get(1).copied().unwrap_or(0) as u32 }
        };
        let mode = must(Attr::Mode, "mode")?;
        Ok(Attrs {
            mode: u32::try_from(mode).map_err(|_| Error::corrupt(id, "mode", mode))?,
            owner: Fuid(must(Attr::Uid, "owner")?),
            group: Fuid(must(Attr::Gid, "group")?),
            size: must(Attr::Size, "size")?,
            links: must(Attr::Links, "links")?,
            generation: must(Attr::Gen, "generation")?,
            parent: ObjectId(must(Attr::Parent, "parent")?),
            atime: time(Attr::Atime),
            mtime: time(Attr::Mtime),
            ctime: time(Attr::Ctime),
            crtime: time(Attr::Crtime),
            flags: FileFlags(sa.u64(Attr::Flags).unwrap_or(0)),
            projid: sa.u64(Attr::Projid),
            rdev: sa.u64(Attr::Rdev),
            xattr_dir: ObjectId(sa.u64(Attr::Xattr).unwrap_or(0)),
            seq: sa.u64(Attr::Seq),
        })
    }

    /// Returns the kind of the file.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        Kind::from_number((self.mode >> 12) as u8 & 0xf)
    }

    /// Returns the owner that `stat` shows.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.owner.posix_id()
    }

    /// Returns the group that `stat` shows.
    #[must_use]
    pub const fn gid(&self) -> u32 {
        self.group.posix_id()
    }

    /// Returns the major and minor number of a device file. Linux stores its own `dev_t` (minor 20@0, major above); other systems
    /// store major 32@32, minor 32@0, recognizable by the upper half.
    #[must_use]
    pub const fn device(&self) -> Option<(u32, u32)> {
        match (self.kind(), self.rdev) {
            (Kind::CharDevice | Kind::BlockDevice, Some(dev)) if dev >> 32 != 0 => {
                Some(((dev >> 32) as u32, dev as u32))
            }
            (Kind::CharDevice | Kind::BlockDevice, Some(dev)) => Some(((dev >> 20) as u32, dev as u32 & 0xf_ffff)),
            (Kind::CharDevice | Kind::BlockDevice, None) => Some((0, 0)),
            _ => None,
        }
    }

    /// Returns the bits of `FS_IOC_GETFLAGS`. See [`FileFlags::linux`].
    #[must_use]
    pub fn linux_flags(&self) -> u32 {
        self.flags.linux()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_numbers_agree() {
        for n in 0..16 {
            assert_eq!(Kind::from_number(n).number(), n);
        }
    }

    #[test]
    fn flags_as_linux_shows_them() {
        let all = FileFlags(u64::MAX);
        assert_eq!((all.linux(), all.linux_xflags()), (0x2000_0070, 0x298));
        assert_eq!(FileFlags(0xffff).linux(), 0);
    }
}
