//! The host's file system as the destination of copies.
//!
//! Every operation is relative to the descriptor of a directory that this module created or checked, and follows no symbolic link: a pool with
//! forged directories (a link and a directory under one name) cannot make a copy leave its destination.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};

/// The attributes of a file that a copy keeps.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits, set-id and sticky included.
    pub mode: u32,
    /// Access time: seconds, nanoseconds.
    pub atime: (i64, u32),
    /// Modification time.
    pub mtime: (i64, u32),
    /// Extended attributes, POSIX ACLs among them, under the names that Linux shows.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Something that the host refused to keep, and that the copy can go on without.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum NotKept {
    /// An extended attribute, by name.
    Xattr(Vec<u8>, String),
    /// Owner and group.
    Owner(String),
}

/// Checks that a name from a directory of the pool can be a name on the host.
///
/// # Errors
/// The reason, if it may not: empty, `.`, `..`, a slash, a NUL.
pub fn check_name(name: &[u8]) -> io::Result<()> {
    let bad = name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0);
    if bad {
        let shown = String::from_utf8_lossy(name).into_owned();
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the pool holds an impossible file name {shown:?}"),
        ));
    }
    Ok(())
}

/// Opens the directory `path` of the host, making it if its parent is there.
///
/// # Errors
/// What the host says.
pub fn open_root(path: &Path) -> io::Result<OwnedFd> {
    match fs::mkdir(path, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(fs::open(path, DIRECTORY, Mode::empty())?)
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Makes and opens a directory below `parent`; one that is already there is used.
///
/// # Errors
/// What the host says; `ENOTDIR` or `ELOOP` if something else has the name.
pub fn make_dir(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    check_name(name)?;
    let name = OsStr::from_bytes(name);
    match fs::mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(fs::openat(parent, name, DIRECTORY, Mode::empty())?)
}

/// Makes a new, empty file below `parent` for writing. What had the name, unless it is a directory, is replaced.
///
/// # Errors
/// What the host says.
pub fn make_file(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<std::fs::File> {
    check_name(name)?;
    remove(parent, name)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(fs::openat(parent, OsStr::from_bytes(name), flags, Mode::from_raw_mode(0o600))?.into())
}

/// Makes a symbolic link.
///
/// # Errors
/// What the host says.
pub fn make_symlink(parent: BorrowedFd<'_>, name: &[u8], target: &[u8]) -> io::Result<()> {
    check_name(name)?;
    remove(parent, name)?;
    Ok(fs::symlinkat(OsStr::from_bytes(target), parent, OsStr::from_bytes(name))?)
}

/// Makes a device, pipe or socket.
///
/// # Errors
/// What the host says (devices want root).
pub fn make_special(parent: BorrowedFd<'_>, name: &[u8], kind: FileType, device: (u32, u32)) -> io::Result<()> {
    check_name(name)?;
    remove(parent, name)?;
    let device = fs::makedev(device.0, device.1);
    Ok(fs::mknodat(parent, OsStr::from_bytes(name), kind, Mode::from_raw_mode(0o600), device)?)
}

/// Gives a file that was already copied (`first`, relative to `root`) another name.
///
/// # Errors
/// What the host says.
pub fn make_link(root: BorrowedFd<'_>, first: &[u8], parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    check_name(name)?;
    remove(parent, name)?;
    Ok(fs::linkat(root, OsStr::from_bytes(first), parent, OsStr::from_bytes(name), AtFlags::empty())?)
}

/// The identity of a directory entry: device and inode.
///
/// # Errors
/// What the host says.
pub fn identity(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<(u64, u64)> {
    check_name(name)?;
    let stat = fs::statat(parent, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match fs::unlinkat(parent, OsStr::from_bytes(name), AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Writes `data` at `offset`.
///
/// # Errors
/// What the host says.
pub fn write_at(file: &std::fs::File, data: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(data, offset)
}

/// Gives the entry `name` of `parent` (or `parent` itself, with `None`) its owner, attributes, mode and times, in this
/// order: each may undo what an earlier one set, and an attribute needs the file readable.
///
/// # Errors
/// What the host says of mode and times. What it refuses otherwise comes back as [`NotKept`].
pub fn apply(parent: BorrowedFd<'_>, name: Option<&[u8]>, kind: FileType, meta: &Meta) -> io::Result<HashSet<NotKept>> {
    let mut not_kept = HashSet::new();
    let path = OsStr::from_bytes(name.unwrap_or(b"."));
    let owner = (rustix::fs::Uid::from_raw(meta.uid), rustix::fs::Gid::from_raw(meta.gid));
    let owned = fs::chownat(parent, path, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW);
    match owned {
        Ok(()) => {}
        // an ordinary user copies as an ordinary user
        Err(rustix::io::Errno::PERM) if !rustix::process::geteuid().is_root() => {}
        Err(e) => drop(not_kept.insert(NotKept::Owner(e.to_string()))),
    }
    set_xattrs(parent, name, kind, meta, &mut not_kept)?;
    if kind != FileType::Symlink {
        // whoever runs a file with a set-id bit gets the rights of its owner: no other one than in the pool may lend them
        let kept = if owned.is_ok() { 0o7777 } else { 0o1777 };
        fs::chmodat(parent, path, Mode::from_raw_mode(meta.mode & kept), AtFlags::empty())?;
    }
    let spec = |(sec, nsec): (i64, u32)| Timespec { tv_sec: sec, tv_nsec: nsec.min(999_999_999).into() };
    let times = Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) };
    fs::utimensat(parent, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(not_kept)
}

fn set_xattrs(
    parent: BorrowedFd<'_>,
    name: Option<&[u8]>,
    kind: FileType,
    meta: &Meta,
    not_kept: &mut HashSet<NotKept>,
) -> io::Result<()> {
    if meta.xattrs.is_empty() {
        return Ok(());
    }
    let opened;
    let target = match (name, kind) {
        (None, _) => Some(parent),
        (Some(name), FileType::RegularFile | FileType::Directory) => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            opened = fs::openat(parent, OsStr::from_bytes(name), flags, Mode::empty())?;
            Some(opened.as_fd())
        }
        _ => None,
    };
    for (attr, value) in &meta.xattrs {
        let result = match (target, name) {
            (Some(fd), _) => fs::fsetxattr(fd, OsStr::from_bytes(attr), value, fs::XattrFlags::empty()),
            // links and devices cannot be opened for this; their own path through /proc can be named
            (None, Some(name)) => {
                let fd = rustix::fd::AsRawFd::as_raw_fd(&parent);
                let path = [format!("/proc/self/fd/{fd}/").as_bytes(), name].concat();
                fs::lsetxattr(OsStr::from_bytes(&path), OsStr::from_bytes(attr), value, fs::XattrFlags::empty())
            }
            (None, None) => Ok(()),
        };
        if let Err(e) = result {
            not_kept.insert(NotKept::Xattr(attr.clone(), e.to_string()));
        }
    }
    Ok(())
}
