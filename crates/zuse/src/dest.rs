//! The host's file system as the destination of copies.
//!
//! Every operation is relative to the descriptor of a directory that this module created or checked, and follows no symbolic link: a pool with
//! forged directories (a link and a directory under one name) cannot make a copy leave its destination.
//!
//! Whoever owns the destination may replace what was made there at any moment, while root copies. So a name is used once, to make the file; its
//! owner, mode, times, attributes and further names are given through the descriptor that it was made with.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};

use crate::descent::DIRECTORY;

/// Bytes of a path, its end included, above which the host takes none.
const PATH_MAX: usize = 4096;

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

/// Makes a symbolic link; its descriptor can only be used to name it ([`OFlags::PATH`]).
///
/// # Errors
/// What the host says; if something else took its place at once.
pub fn make_symlink(parent: BorrowedFd<'_>, name: &[u8], target: &[u8]) -> io::Result<OwnedFd> {
    check_name(name)?;
    remove(parent, name)?;
    fs::symlinkat(OsStr::from_bytes(target), parent, OsStr::from_bytes(name))?;
    just_made(parent, name, FileType::Symlink)
}

/// Makes a device, pipe or socket; its descriptor can only be used to name it ([`OFlags::PATH`]).
///
/// # Errors
/// What the host says (devices want root); if something else took its place at once.
pub fn make_special(parent: BorrowedFd<'_>, name: &[u8], kind: FileType, device: (u32, u32)) -> io::Result<OwnedFd> {
    check_name(name)?;
    remove(parent, name)?;
    let device = fs::makedev(device.0, device.1);
    fs::mknodat(parent, OsStr::from_bytes(name), kind, Mode::from_raw_mode(0o600), device)?;
    just_made(parent, name, kind)
}

/// Descriptor of a file that was made a moment ago. One with other names as well was put in its place since.
fn just_made(parent: BorrowedFd<'_>, name: &[u8], kind: FileType) -> io::Result<OwnedFd> {
    let fd = fs::openat(parent, OsStr::from_bytes(name), NAMED, Mode::empty())?;
    let stat = fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != kind || stat.st_nlink > 1 {
        return Err(io::Error::other("another program replaced it"));
    }
    Ok(fd)
}

const NAMED: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A file of the host: device and inode.
pub type HostId = (u64, u64);

/// Gives a file that was already copied another name. Returns whether it is still where it was: `first`, relative to `root`.
///
/// # Errors
/// What the host says.
pub fn make_link(
    (root, first, id): (BorrowedFd<'_>, &[u8], HostId),
    parent: BorrowedFd<'_>,
    name: &[u8],
) -> io::Result<bool> {
    check_name(name)?;
    // a directory on the way may be a link by now: the file is known by its identity
    let Ok(file) = open_below(root, first) else { return Ok(false) };
    if identity(file.as_fd())? != id {
        return Ok(false);
    }
    remove(parent, name)?;
    let name = OsStr::from_bytes(name);
    match fs::linkat(&file, "", parent, name, AtFlags::EMPTY_PATH) {
        // ordinary users may not; for them it has a name in /proc
        Err(rustix::io::Errno::NOENT) => {
            fs::linkat(fs::CWD, in_proc(file.as_fd()), parent, name, AtFlags::SYMLINK_FOLLOW)?;
        }
        done => done?,
    }
    Ok(true)
}

/// Opens a file by its path below a directory, however long that is.
fn open_below(root: BorrowedFd<'_>, mut path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let mut above: Option<OwnedFd> = None;
    loop {
        let end = match path.get(..PATH_MAX) {
            Some(part) => part.iter().rposition(|b| *b == b'/').ok_or(rustix::io::Errno::NAMETOOLONG)?,
            None => path.len(),
        };
        let (part, rest) = path.split_at(end);
        let dir = above.as_ref().map_or(root, AsFd::as_fd);
        let file = fs::openat(dir, OsStr::from_bytes(part), NAMED, Mode::empty())?;
        let Some((_slash, rest)) = rest.split_first() else { return Ok(file) };
        (path, above) = (rest, Some(file));
    }
}

/// The path of an open file, also of one that cannot be read: it leads to this very file, and not further if that is a link.
fn in_proc(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The identity of an open file.
///
/// # Errors
/// What the host says.
pub fn identity(file: BorrowedFd<'_>) -> io::Result<HostId> {
    let stat = fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The identity of the file that has a name.
///
/// # Errors
/// What the host says.
pub fn identity_at(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<HostId> {
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

/// Gives a file its owner, attributes, mode and times, in this order: each may undo what an earlier one set. `file` is the descriptor that a
/// function of this module gave for it.
///
/// # Errors
/// What the host says of mode and times. What it refuses otherwise comes back as [`NotKept`].
pub fn apply(file: BorrowedFd<'_>, kind: FileType, meta: &Meta) -> io::Result<HashSet<NotKept>> {
    let mut not_kept = HashSet::new();
    // others cannot be opened, only named
    let open = matches!(kind, FileType::RegularFile | FileType::Directory);
    let named = in_proc(file);
    let (uid, gid) = (fs::Uid::from_raw(meta.uid), fs::Gid::from_raw(meta.gid));
    let owned = fs::chownat(file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
    match owned {
        Ok(()) => {}
        // an ordinary user copies as an ordinary user
        Err(rustix::io::Errno::PERM) if !rustix::process::geteuid().is_root() => {}
        Err(e) => drop(not_kept.insert(NotKept::Owner(e.to_string()))),
    }
    for (attr, value) in &meta.xattrs {
        let (name, flags) = (OsStr::from_bytes(attr), fs::XattrFlags::empty());
        let given = match open {
            true => fs::fsetxattr(file, name, value, flags),
            false => fs::setxattr(&named, name, value, flags),
        };
        if let Err(e) = given {
            not_kept.insert(NotKept::Xattr(attr.clone(), e.to_string()));
        }
    }
    if kind != FileType::Symlink {
        // whoever runs a file with a set-id bit gets the rights of its owner: no other one than in the pool may lend them
        let kept = if owned.is_ok() { 0o7777 } else { 0o1777 };
        let mode = Mode::from_raw_mode(meta.mode & kept);
        match open {
            true => fs::fchmod(file, mode)?,
            false => fs::chmod(&named, mode)?,
        }
    }
    let spec = |(sec, nsec): (i64, u32)| Timespec { tv_sec: sec, tv_nsec: nsec.min(999_999_999).into() };
    let times = Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) };
    match open {
        true => fs::futimens(file, &times)?,
        false => fs::utimensat(fs::CWD, &named, &times, AtFlags::empty())?,
    }
    Ok(not_kept)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    /// Everything that can be made, replaced by a link to another file before it gets its attributes.
    #[test]
    fn attributes_are_given_to_what_was_made_not_to_what_has_its_name() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        let dir = open_root(temp.path()).unwrap();
        let dir = dir.as_fd();
        std::fs::write(at("victim"), "").unwrap();
        std::fs::set_permissions(at("victim"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let meta = Meta {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o4755,
            mtime: (7, 0),
            xattrs: vec![(b"trusted.a".to_vec(), b"a".to_vec())],
            ..Meta::default()
        };
        let made: [(&str, FileType, OwnedFd); 4] = [
            ("file", FileType::RegularFile, make_file(dir, b"file").unwrap().into()),
            ("dir", FileType::Directory, make_dir(dir, b"dir").unwrap()),
            ("pipe", FileType::Fifo, make_special(dir, b"pipe", FileType::Fifo, (0, 0)).unwrap()),
            ("link", FileType::Symlink, make_symlink(dir, b"link", b"victim").unwrap()),
        ];
        for (name, kind, fd) in made {
            let moved = at(&format!("{name}.moved"));
            std::fs::rename(at(name), &moved).unwrap();
            symlink("victim", at(name)).unwrap();
            apply(fd.as_fd(), kind, &meta).unwrap();
            let moved = std::fs::symlink_metadata(moved).unwrap();
            assert_eq!(moved.mtime(), 7, "{name}");
            assert!(kind == FileType::Symlink || moved.mode() & 0o7777 == 0o4755, "{name}: {:o}", moved.mode());
            // another file under its name is not linked to
            let id = identity(fd.as_fd()).unwrap();
            assert!(!make_link((dir, name.as_bytes(), id), dir, b"again").unwrap(), "{name}");
        }
        let victim = std::fs::metadata(at("victim")).unwrap();
        assert!(victim.mode() & 0o7777 == 0o600 && victim.mtime() != 7 && victim.nlink() == 1, "{victim:?}");
        assert_eq!(fs::listxattr(at("victim"), &mut [0; 64]).unwrap(), 0);
    }

    /// Other names of links and pipes, as of files: each is one file with two names.
    #[test]
    fn whatever_is_no_directory_can_have_several_names() {
        let temp = tempfile::tempdir().unwrap();
        let dir = open_root(temp.path()).unwrap();
        let dir = dir.as_fd();
        make_file(dir, b"file").unwrap();
        make_special(dir, b"pipe", FileType::Fifo, (0, 0)).unwrap();
        make_symlink(dir, b"link", b"nowhere").unwrap();
        for name in [&b"file"[..], b"pipe", b"link"] {
            let id = identity_at(dir, name).unwrap();
            assert!(make_link((dir, name, id), dir, b"again").unwrap());
            assert_eq!(identity_at(dir, b"again").unwrap(), id);
        }
    }
}
