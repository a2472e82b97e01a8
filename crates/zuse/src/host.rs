//! Trees of the host, read ahead.
//!
//! One thread walks the directories, in the order of names; several open the files, read their attributes, and the contents of small ones.
//! What comes out of [`HostTree`] is in the walker's order, a directory before its entries, and again after them. At most [`AHEAD`] files
//! are read ahead, of [`WHOLE_MAX`] bytes at most, so memory is bounded. Of their paths only what differs from the path before is kept, as the paths of
//! a deep tree are long.
//!
//! No symbolic link is followed. Every file is opened relative to the directory that was opened for it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use zpl::Kind;

use crate::descent::{DIRECTORY, Descent};
use crate::dest::Meta;
use crate::item::Item;

/// Files up to this size are read by whoever opens them; larger ones are left to the consumer.
const WHOLE_MAX: u64 = 128 << 10;
/// How many files are read ahead.
const AHEAD: usize = 256;
/// No more threads help: they wait for the disk, not for the processor.
const READERS_MAX: usize = 8;
/// Most bytes that Linux lets a list of attribute names, or a value, have.
const XATTR_MAX: usize = 64 << 10;
/// Bytes that `st_blocks` counts in.
const SECTOR: u64 = 512;

/// The contents of a file of the host.
#[derive(Debug)]
pub enum Contents {
    /// It has none.
    None,
    /// All of a small file.
    Whole(Vec<u8>),
    /// A large or sparse file, open at its beginning; of size 0, one that says so and has more (as in `/proc`).
    Open(File),
}

/// A step of a walk of the host. The path is relative to its start, which itself has the empty path.
#[derive(Debug)]
pub enum HostStep {
    /// A file of any kind; a directory before its entries.
    Enter(Box<Item>, Contents),
    /// A directory after its entries.
    Leave,
    /// A file or directory that cannot be read, and the reason.
    Lost(io::Error),
}

/// A step, as soon as somebody has made it.
enum Slot {
    Done(HostStep),
    Coming(Receiver<HostStep>),
}

/// A file for a reader: its directory and name, and where the result goes.
struct Job {
    dir: Arc<OwnedFd>,
    name: Vec<u8>,
    done: Sender<HostStep>,
}

/// The files at and below a path of the host, in order. Dropped early, the threads end.
pub struct HostTree {
    steps: Receiver<Told>,
    /// The path of the last step.
    path: Vec<u8>,
}

/// A step on its way to the consumer: the bytes that its path shares with that of the step before, and the others.
type Told = (usize, Vec<u8>, Slot);

impl HostTree {
    /// Begins to read `root`: a directory and all below it, or a single file.
    ///
    /// # Errors
    /// If `root` is not there or cannot be opened.
    pub fn open(root: &Path) -> io::Result<HostTree> {
        // a link given as the start is taken for where it leads only with a slash behind it, as with `cp -a`
        let follow = root.as_os_str().as_bytes().ends_with(b"/");
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let stat = fs::statat(fs::CWD, root, flags)?;
        let (steps_in, steps) = bounded(AHEAD);
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let no_follow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | no_follow;
            let fd = Arc::new(fs::open(root, flags, Mode::empty())?);
            let jobs = readers()?;
            spawn("host-walk", move || {
                // whoever reads has gone if the channel is closed
                let _closed = Walker { steps: steps_in, jobs, path: Vec::new() }.directory(&fd);
            })?;
        } else {
            let parent = root.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let dir = fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            let name = root.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
            let step = (0, Vec::new(), Slot::Done(enter(dir.as_fd(), name)));
            // the channel has room for it
            let _sent = steps_in.send(step);
        }
        Ok(HostTree { steps, path: Vec::new() })
    }
}

impl Iterator for HostTree {
    type Item = (Vec<u8>, HostStep);

    fn next(&mut self) -> Option<Self::Item> {
        let (shared, rest, slot) = self.steps.recv().ok()?;
        self.path.truncate(shared);
        self.path.extend_from_slice(&rest);
        let step = match slot {
            Slot::Done(step) => step,
            Slot::Coming(result) => {
                result.recv().unwrap_or_else(|_| HostStep::Lost(io::Error::other("a reader ended before its time")))
            }
        };
        Some((self.path.clone(), step))
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// Starts the readers; they end when the sender is dropped.
fn readers() -> io::Result<Sender<Job>> {
    let (sender, jobs) = bounded::<Job>(AHEAD);
    for _ in 0..thread::available_parallelism().map_or(2, usize::from).min(READERS_MAX) {
        let jobs = jobs.clone();
        spawn("host-read", move || {
            for job in jobs {
                // nobody waits any more if this fails
                let _sent = job.done.send(enter(job.dir.as_fd(), &job.name));
            }
        })?;
    }
    Ok(sender)
}

struct Walker {
    steps: Sender<Told>,
    jobs: Sender<Job>,
    /// The path of the last step.
    path: Vec<u8>,
}

/// The consumer has gone.
struct Closed;

/// A directory that is being walked: the length of its path, and the names that are left.
struct Level {
    path_len: usize,
    names: std::vec::IntoIter<(Vec<u8>, FileType)>,
}

impl Walker {
    fn tell(&mut self, path: &[u8], slot: Slot) -> Result<(), Closed> {
        let shared = self.path.iter().zip(path).take_while(|(before, now)| before == now).count();
        let rest = path.get(shared..).unwrap_or_default().to_vec();
        self.path.truncate(shared);
        self.path.extend_from_slice(&rest);
        self.steps.send((shared, rest, slot)).map_err(|_| Closed)
    }

    fn directory(&mut self, root: &Arc<OwnedFd>) -> Result<(), Closed> {
        let (mut path, mut stack, mut dirs) = (Vec::new(), Vec::new(), Descent::new(root.clone()));
        self.open(root, &path, &mut stack)?;
        while let Some(level) = stack.last_mut() {
            path.truncate(level.path_len);
            let Some((name, kind)) = level.names.next() else {
                stack.pop();
                self.tell(&path, Slot::Done(HostStep::Leave))?;
                if let Err(e) = dirs.leave() {
                    return self.end(path, &stack, &e);
                }
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            let dir = dirs.lowest();
            let is_dir = kind == FileType::Directory
                || (kind == FileType::Unknown && stat_of(dir.as_fd(), &name).is_ok_and(|s| is_directory(&s)));
            if !is_dir {
                let (done, result) = bounded(1);
                self.tell(&path, Slot::Coming(result))?;
                self.jobs.send(Job { dir: dir.clone(), name, done }).map_err(|_| Closed)?;
                continue;
            }
            match fs::openat(dir.as_fd(), OsStr::from_bytes(&name), DIRECTORY, Mode::empty()) {
                Ok(fd) => {
                    let fd = Arc::new(fd);
                    if self.open(&fd, &path, &mut stack)?
                        && let Err(e) = dirs.enter(fd)
                    {
                        stack.pop();
                        self.tell(&path, Slot::Done(HostStep::Lost(e)))?;
                        self.tell(&path, Slot::Done(HostStep::Leave))?;
                    }
                }
                Err(e) => self.tell(&path, Slot::Done(HostStep::Lost(e.into())))?,
            }
        }
        Ok(())
    }

    /// Ends a walk that cannot go up: what is left of each directory is lost.
    fn end(&mut self, mut path: Vec<u8>, stack: &[Level], why: &io::Error) -> Result<(), Closed> {
        for level in stack.iter().rev() {
            path.truncate(level.path_len);
            self.tell(&path, Slot::Done(HostStep::Lost(io::Error::new(why.kind(), why.to_string()))))?;
            self.tell(&path, Slot::Done(HostStep::Leave))?;
        }
        Ok(())
    }

    /// Lists a directory. Returns whether it is one of the stack now.
    fn open(&mut self, fd: &OwnedFd, path: &[u8], stack: &mut Vec<Level>) -> Result<bool, Closed> {
        match describe_directory(fd.as_fd()) {
            Ok(item) => self.tell(path, Slot::Done(HostStep::Enter(Box::new(item), Contents::None)))?,
            Err(e) => return self.tell(path, Slot::Done(HostStep::Lost(e))).map(|()| false),
        }
        let (names, trouble) = list(fd.as_fd());
        if let Some(e) = trouble {
            self.tell(path, Slot::Done(HostStep::Lost(e)))?;
        }
        stack.push(Level { path_len: path.len(), names: names.into_iter() });
        Ok(true)
    }
}

/// The names of a directory, sorted, and what ended the list too early.
fn list(fd: BorrowedFd<'_>) -> (Vec<(Vec<u8>, FileType)>, Option<io::Error>) {
    let mut names = Vec::new();
    let mut trouble = None;
    match Dir::read_from(fd) {
        Err(e) => trouble = Some(e.into()),
        Ok(entries) => {
            for entry in entries {
                match entry {
                    Ok(entry) => names.push((entry.file_name().to_bytes().to_vec(), entry.file_type())),
                    Err(e) => {
                        trouble = Some(e.into());
                        break;
                    }
                }
            }
        }
    }
    names.retain(|(name, _)| name != b"." && name != b"..");
    names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    (names, trouble)
}

fn stat_of(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Stat> {
    Ok(fs::statat(dir, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn enter(dir: BorrowedFd<'_>, name: &[u8]) -> HostStep {
    match describe(dir, name) {
        Ok((item, contents)) => HostStep::Enter(Box::new(item), contents),
        Err(e) => HostStep::Lost(e),
    }
}

fn describe_directory(fd: BorrowedFd<'_>) -> io::Result<Item> {
    let mut item = of_stat(&fs::fstat(fd)?);
    item.meta.xattrs = xattrs(&Attributes::Open(fd))?;
    Ok(item)
}

/// A file that is no directory, with its contents if they are few.
fn describe(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<(Item, Contents)> {
    let stat = stat_of(dir, name)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let mut item = of_stat(&stat);
        if item.kind == Kind::Symlink {
            item.target = fs::readlinkat(dir, OsStr::from_bytes(name), Vec::new())?.into_bytes();
        }
        // it cannot be opened for this; its path through /proc can be named
        let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat();
        item.meta.xattrs = xattrs(&Attributes::Named(&path))?;
        return Ok((item, Contents::None));
    }
    // without O_NONBLOCK a pipe that took the name meanwhile would keep us
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = fs::openat(dir, OsStr::from_bytes(name), flags, Mode::empty())?;
    let stat = fs::fstat(&fd)?;
    let mut item = of_stat(&stat);
    item.meta.xattrs = xattrs(&Attributes::Open(fd.as_fd()))?;
    let mut file = File::from(fd);
    let sparse = stat.st_blocks.unsigned_abs().saturating_mul(SECTOR) < item.size;
    if item.size > WHOLE_MAX || sparse {
        return Ok((item, Contents::Open(file)));
    }
    // one that grows meanwhile is read as long as it was; one that says it is empty, as those of /proc do, may not be
    let most = if item.size == 0 { WHOLE_MAX + 1 } else { item.size };
    let mut data = Vec::with_capacity(item.size as usize);
    file.by_ref().take(most).read_to_end(&mut data)?;
    if data.len() as u64 > WHOLE_MAX {
        file.rewind()?;
        return Ok((item, Contents::Open(file)));
    }
    item.size = data.len() as u64;
    Ok((item, Contents::Whole(data)))
}

fn of_stat(stat: &Stat) -> Item {
    let kind = Kind::from_number((stat.st_mode >> 12) as u8 & 0xf);
    let meta = Meta {
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: stat.st_mode & 0o7777,
        atime: (stat.st_atime, stat.st_atime_nsec as u32),
        mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
        xattrs: Vec::new(),
    };
    let size = if kind == Kind::File { stat.st_size.unsigned_abs() } else { 0 };
    let link = (kind != Kind::Directory && stat.st_nlink > 1).then_some((stat.st_dev, stat.st_ino));
    let device = (fs::major(stat.st_rdev), fs::minor(stat.st_rdev));
    Item { size, link, device, ..Item::new(kind, meta) }
}

/// A file whose extended attributes are read.
enum Attributes<'a> {
    Open(BorrowedFd<'a>),
    Named(&'a [u8]),
}

impl Attributes<'_> {
    fn list(&self, buf: &mut [u8]) -> rustix::io::Result<usize> {
        match self {
            Attributes::Open(fd) => fs::flistxattr(fd, buf),
            Attributes::Named(path) => fs::llistxattr(OsStr::from_bytes(path), buf),
        }
    }

    fn get(&self, name: &[u8], buf: &mut [u8]) -> rustix::io::Result<usize> {
        let name = OsStr::from_bytes(name);
        match self {
            Attributes::Open(fd) => fs::fgetxattr(fd, name, buf),
            Attributes::Named(path) => fs::lgetxattr(OsStr::from_bytes(path), name, buf),
        }
    }
}

fn xattrs(of: &Attributes<'_>) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut few = [0; 256];
    let mut many = Vec::new();
    let names: &[u8] = match of.list(&mut few) {
        Ok(0) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
        Ok(len) => few.get(..len).unwrap_or_default(),
        Err(Errno::RANGE) => {
            many.resize(XATTR_MAX, 0);
            let len = of.list(&mut many)?;
            many.get(..len).unwrap_or_default()
        }
        Err(e) => return Err(e.into()),
    };
    let mut all = Vec::new();
    let mut value = vec![0; XATTR_MAX];
    for name in names.split(|b| *b == 0).filter(|name| !name.is_empty()) {
        match of.get(name, &mut value) {
            Ok(len) => all.push((name.to_vec(), value.get(..len).unwrap_or_default().to_vec())),
            // it went away meanwhile, or is not for us
            Err(Errno::NODATA | Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(all)
}

/// The rest of a regular file, from its position on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rest {
    /// The position.
    pub start: u64,
    /// Bytes behind it, holes included.
    pub len: u64,
    /// The stretches of data, start and end, counted from the position.
    pub data: Vec<(u64, u64)>,
}

impl Rest {
    /// The rest of an open file, whose position goes to its end; `None` if it is no regular file, for those have no holes.
    #[must_use]
    pub fn of(mut file: &File) -> Option<Rest> {
        let size = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
        let start = file.stream_position().ok()?;
        let len = size.checked_sub(start).filter(|len| *len > 0)?;
        let data = data_segments(file, size).unwrap_or_else(|_| vec![(0, size)]);
        file.seek(SeekFrom::End(0)).ok()?;
        let behind = |at: u64| at.saturating_sub(start);
        let data = data.into_iter().map(|(from, to)| (behind(from), behind(to))).filter(|(from, to)| from < to);
        Some(Rest { start, len, data: data.collect() })
    }
}

/// The stretches of data of an open file: start and end. A file system that knows no holes has one.
///
/// # Errors
/// What the host says.
pub fn data_segments(file: &File, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut segments = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match fs::seek(file, fs::SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => return Ok(vec![(0, size)]),
            Err(e) => return Err(e.into()),
        };
        let end = fs::seek(file, fs::SeekFrom::Hole(start))?.min(size);
        if start >= end {
            break;
        }
        segments.push((start, end));
        at = end;
    }
    Ok(segments)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_tree_comes_in_order_with_all_that_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("b")).unwrap();
        for n in 0..600 {
            std::fs::write(at(&format!("b/{n:03}")), format!("{n}")).unwrap();
        }
        std::fs::hard_link(at("b/000"), at("a")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("c")).unwrap();
        let mut sparse = File::create(at("d")).unwrap();
        sparse.seek(SeekFrom::Start(1 << 20)).unwrap();
        sparse.write_all(b"end").unwrap();
        let mut seen = Vec::new();
        let mut left = Vec::new();
        for (path, step) in HostTree::open(dir.path()).unwrap() {
            let path = String::from_utf8(path).unwrap();
            match step {
                HostStep::Leave => left.push(path),
                HostStep::Lost(e) => panic!("{path}: {e}"),
                HostStep::Enter(item, contents) => {
                    match (path.as_str(), contents) {
                        ("c", Contents::None) => assert_eq!(item.target, b"nowhere"),
                        ("d", Contents::Open(file)) => {
                            let segments = data_segments(&file, item.size).unwrap();
                            assert_eq!((item.size, segments.last().unwrap().1), ((1 << 20) + 3, (1 << 20) + 3));
                        }
                        ("a", Contents::Whole(data)) => assert!(data == b"0" && item.link.is_some()),
                        (name, Contents::Whole(data)) if name.starts_with("b/") => {
                            let n: u32 = name[2..].parse().unwrap();
                            assert_eq!(data, n.to_string().as_bytes());
                        }
                        ("" | "b", Contents::None) => assert_eq!(item.kind, Kind::Directory),
                        (name, contents) => panic!("{name}: {contents:?}"),
                    }
                    seen.push(path);
                }
            }
        }
        let mut sorted = seen.clone();
        sorted.sort();
        assert_eq!((seen.len(), &seen), (605, &sorted));
        assert_eq!(left, ["b", ""]);
    }

    #[test]
    fn steps_of_a_deep_tree_hold_a_name_each() {
        const DEPTH: usize = 100;
        let temp = tempfile::tempdir().unwrap();
        let mut dir = crate::dest::open_root(temp.path()).unwrap();
        for _ in 0..DEPTH {
            dir = crate::dest::make_dir(dir.as_fd(), &[b'd'; 200]).unwrap();
        }
        let tree = HostTree::open(temp.path()).unwrap();
        let told: Vec<Told> = tree.steps.iter().collect();
        assert_eq!(told.len(), 2 * (DEPTH + 1));
        assert!(told.iter().all(|(_, rest, _)| rest.len() <= 201));
        let longest = HostTree::open(temp.path()).unwrap().map(|(path, _)| path.len()).max();
        assert_eq!(longest, Some(201 * DEPTH - 1));
    }

    #[test]
    fn a_file_alone_and_what_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "x").unwrap();
        let steps: Vec<_> = HostTree::open(&dir.path().join("f")).unwrap().collect();
        assert!(
            matches!(steps.as_slice(), [(path, HostStep::Enter(_, Contents::Whole(data)))] if path.is_empty() && data == b"x")
        );
        assert!(HostTree::open(&dir.path().join("g")).is_err());
    }

    #[test]
    fn a_tree_that_nobody_reads_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..2000 {
            std::fs::write(dir.path().join(n.to_string()), "x").unwrap();
        }
        assert_eq!(HostTree::open(dir.path()).unwrap().take(3).count(), 3);
    }
}
