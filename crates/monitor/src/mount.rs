//! The tree at a mount point, by FUSE.
//!
//! The kernel keeps nothing: names and attributes hold for no time, and reads pass by its cache, as the length of a file is not known before it is made (as in `/proc`, it is shown as 0). The text of a file is
//! made when it is opened, and again when it is read from its beginning, so that a program that keeps a file open sees new figures. A path is known by a number as long as the kernel knows it.
//! Modes are checked by the kernel. Root lets all users read; the mount of another user is its own.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::Errno;
use fuser::{
    BackgroundSession, BsdFileFlags, Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::mount::UnmountFlags;

use crate::tree::{Item, PARAMETER_MAX, Tree};

/// The name in the mount table.
const SOURCE: &str = "zuse-kstat";
/// Threads that answer requests.
const THREADS: usize = 2;
/// Files and directories that are open at once.
const OPEN_MAX: usize = 4096;
/// Modes of directories.
const DIRECTORY: u16 = 0o555;
/// Names and attributes are asked for each time.
const TTL: Duration = Duration::ZERO;

/// The tree at a mount point. It is unmounted when this is dropped.
pub struct KstatMount {
    point: PathBuf,
    session: Option<BackgroundSession>,
}

impl std::fmt::Debug for KstatMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kstats at {}", self.point.display())
    }
}

impl KstatMount {
    /// Mounts a tree on a directory. What a process that was killed has left there is unmounted before.
    ///
    /// # Errors
    /// What the system says: the directory is missing, or this user may not mount there.
    pub fn new(tree: Tree, point: &Path) -> io::Result<KstatMount> {
        detach_dead(point);
        let point = point.canonicalize()?;
        let is_root = rustix::process::geteuid().is_root();
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(SOURCE.to_owned()),
            MountOption::DefaultPermissions,
            MountOption::NoDev,
            MountOption::NoSuid,
            MountOption::NoExec,
            MountOption::NoAtime,
        ];
        config.acl = if is_root { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(THREADS);
        let session = Session::new(Served::new(tree), &point, &config)?.spawn()?;
        tracing::info!(target: "zuse::monitor", at = %point.display(), "kstats are mounted");
        Ok(KstatMount { point, session: Some(session) })
    }
}

impl Drop for KstatMount {
    fn drop(&mut self) {
        // whoever has a file open keeps it until he closes it; for users other than root the session asks the helper
        if is_ours(&self.point) {
            let _detached = rustix::mount::unmount(&self.point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        drop(self.session.take());
    }
}

/// Takes away a mount of a tree that nobody answers any more.
fn detach_dead(point: &Path) {
    let how = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC;
    let asked = rustix::fs::statx(rustix::fs::CWD, point, how, StatxFlags::BASIC_STATS);
    if asked.is_err_and(|errno| errno == rustix::io::Errno::NOTCONN) && is_ours(point) {
        let _detached = rustix::mount::unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
}

/// Whether what is on top at a mount point is a tree.
fn is_ours(point: &Path) -> bool {
    let Ok(absolute) = std::path::absolute(point) else { return false };
    // blanks and the like are escaped there
    let escaped: String = absolute.to_string_lossy().chars().flat_map(escape).collect();
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut at_point = mounts.filter(|words| words.get(1) == Some(&escaped.as_str()));
    let top = at_point.next_back();
    top.is_some_and(|words| words.first() == Some(&SOURCE))
}

/// A character as the mount table has it.
fn escape(c: char) -> Vec<char> {
    match c {
        ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", c as u32).chars().collect(),
        c => vec![c],
    }
}

/// The paths that the kernel knows, by number; that of the root is always known.
#[derive(Default)]
struct Known {
    paths: HashMap<u64, (Arc<str>, u64)>,
    numbers: HashMap<Arc<str>, u64>,
    last: u64,
}

impl Known {
    fn path(&self, node: INodeNo) -> Option<Arc<str>> {
        if node == INodeNo::ROOT { Some("".into()) } else { Some(self.paths.get(&node.0)?.0.clone()) }
    }

    /// The number of a path that is looked up once more.
    fn look_up(&mut self, path: &str) -> u64 {
        if let Some(number) = self.numbers.get(path) {
            if let Some((_, count)) = self.paths.get_mut(number) {
                *count += 1;
            }
            return *number;
        }
        // 1 is the root's
        self.last = self.last.max(INodeNo::ROOT.0) + 1;
        let path: Arc<str> = path.into();
        self.paths.insert(self.last, (path.clone(), 1));
        self.numbers.insert(path, self.last);
        self.last
    }

    fn forget(&mut self, node: INodeNo, times: u64) {
        let Some((path, count)) = self.paths.get_mut(&node.0) else { return };
        *count = count.saturating_sub(times);
        if *count == 0 {
            let path = path.clone();
            self.numbers.remove(&path);
            self.paths.remove(&node.0);
        }
    }
}

/// What is open.
enum Handle {
    /// A directory as it was when it was opened.
    Directory(Arc<[(String, Item)]>),
    /// A file as it was when it was read from its beginning.
    File(Arc<str>),
}

/// The tree, as the kernel asks for it.
struct Served {
    tree: Tree,
    known: Mutex<Known>,
    open: Mutex<(u64, HashMap<u64, Handle>)>,
    owner: (u32, u32),
    mounted: SystemTime,
}

impl Served {
    fn new(tree: Tree) -> Served {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        // whole seconds, as nobody needs more
        let now = base::Env::system().now().as_secs();
        let mounted = UNIX_EPOCH + Duration::from_secs(now);
        Served { tree, known: Mutex::default(), open: Mutex::default(), owner, mounted }
    }

    fn path(&self, node: INodeNo) -> Result<Arc<str>, fuser::Errno> {
        self.known.lock().path(node).ok_or(fuser::Errno::ESTALE)
    }

    fn attr(&self, node: INodeNo, item: Item) -> FileAttr {
        let (kind, perm, nlink) = match item {
            Item::Directory => (FileType::Directory, DIRECTORY, 2),
            Item::File { mode } => (FileType::RegularFile, mode, 1),
        };
        FileAttr {
            ino: node,
            size: 0,
            blocks: 0,
            atime: self.mounted,
            mtime: self.mounted,
            ctime: self.mounted,
            crtime: self.mounted,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn getattr(&self, node: INodeNo) -> Result<FileAttr, fuser::Errno> {
        let path = self.path(node)?;
        let item = self.tree.item(&path).ok_or(fuser::Errno::ENOENT)?;
        Ok(self.attr(node, item))
    }

    fn look_up(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, fuser::Errno> {
        let parent = self.path(parent)?;
        let name = name.to_str().ok_or(fuser::Errno::ENOENT)?;
        let path = if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") };
        let item = self.tree.item(&path).ok_or(fuser::Errno::ENOENT)?;
        Ok(self.attr(INodeNo(self.known.lock().look_up(&path)), item))
    }

    fn keep(&self, handle: Handle) -> Result<FileHandle, fuser::Errno> {
        let mut open = self.open.lock();
        if open.1.len() >= OPEN_MAX {
            return Err(fuser::Errno::ENFILE);
        }
        open.0 += 1;
        let number = open.0;
        open.1.insert(number, handle);
        Ok(FileHandle(number))
    }

    fn open_file(&self, node: INodeNo) -> Result<FileHandle, fuser::Errno> {
        let path = self.path(node)?;
        // it is made when it is read
        match self.tree.item(&path) {
            Some(Item::File { .. }) => self.keep(Handle::File("".into())),
            Some(Item::Directory) => Err(fuser::Errno::EISDIR),
            None => Err(fuser::Errno::ENOENT),
        }
    }

    fn open_directory(&self, node: INodeNo) -> Result<FileHandle, fuser::Errno> {
        let all = self.tree.list(&self.path(node)?).ok_or(fuser::Errno::ENOENT)?;
        self.keep(Handle::Directory(all.into()))
    }

    /// The text of an open file from an offset on.
    fn text(&self, node: INodeNo, handle: FileHandle, offset: u64) -> Result<Arc<str>, fuser::Errno> {
        if offset == 0 {
            // it is made without a lock
            let text: Arc<str> = self.tree.read(&self.path(node)?).ok_or(fuser::Errno::ENOENT)?.into();
            if let Some(kept) = self.open.lock().1.get_mut(&handle.0) {
                *kept = Handle::File(text.clone());
            }
            return Ok(text);
        }
        match self.open.lock().1.get(&handle.0) {
            Some(Handle::File(text)) => Ok(text.clone()),
            _ => Err(fuser::Errno::EBADF),
        }
    }

    fn write_file(&self, node: INodeNo, offset: u64, data: &[u8]) -> Result<u32, fuser::Errno> {
        let path = self.path(node)?;
        // a value comes as a whole
        if offset != 0 || data.len() > PARAMETER_MAX {
            return Err(fuser::Errno::EINVAL);
        }
        self.tree.write(&path, data).map_err(errno)?;
        Ok(data.len() as u32)
    }
}

/// An error number as the kernel takes it.
fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw())
}

impl Filesystem for Served {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(parent, name) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.known.lock().forget(ino, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.getattr(ino) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(error),
        }
    }

    /// A parameter is truncated before it is written; nothing else can be changed.
    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() || size.is_some_and(|size| size != 0) {
            return reply.error(fuser::Errno::EPERM);
        }
        match self.getattr(ino) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(ino) {
            Ok(handle) => reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.text(ino, fh, offset) {
            Ok(text) => {
                let bytes = text.as_bytes();
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let to = from.saturating_add(size as usize).min(bytes.len());
                reply.data(bytes.get(from..to).unwrap_or_default());
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_file(ino, offset, data) {
            Ok(written) => reply.written(written),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.open.lock().1.remove(&fh.0);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.open_directory(ino) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let all = match self.open.lock().1.get(&fh.0) {
            Some(Handle::Directory(all)) => all.clone(),
            _ => return reply.error(fuser::Errno::EBADF),
        };
        let dots = [(".", Item::Directory), ("..", Item::Directory)];
        let named = all.iter().map(|(name, item)| (name.as_str(), *item));
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (name, item)) in (1u64..).zip(dots.into_iter().chain(named)).skip(skip) {
            let kind = if item == Item::Directory { FileType::Directory } else { FileType::RegularFile };
            // the number of an entry is known when it is looked up
            let node = if place <= 2 { ino } else { INodeNo(u64::from(u32::MAX)) };
            if reply.add(node, place, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.open.lock().1.remove(&fh.0);
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_known_until_it_is_forgotten_as_often_as_it_was_looked_up() {
        let mut known = Known::default();
        let first = known.look_up("kstat");
        assert!(first > INodeNo::ROOT.0);
        assert_eq!(known.look_up("kstat"), first);
        let other = known.look_up("parameters");
        assert_ne!(other, first);
        known.forget(INodeNo(first), 1);
        assert_eq!(known.path(INodeNo(first)).as_deref(), Some("kstat"));
        known.forget(INodeNo(first), 1);
        assert_eq!(known.path(INodeNo(first)), None);
        // a number is never used again
        assert_ne!(known.look_up("kstat"), first);
        known.forget(INodeNo::ROOT, 9);
        assert_eq!(known.path(INodeNo::ROOT).as_deref(), Some(""));
        assert_eq!((known.paths.len(), known.numbers.len()), (2, 2));
    }

    #[test]
    fn mount_points_are_found_as_the_table_escapes_them() {
        assert_eq!("a b\\c".chars().flat_map(escape).collect::<String>(), "a\\040b\\134c");
        assert!(!is_ours(Path::new("/proc")) && !is_ours(Path::new("/no/such")));
    }
}
