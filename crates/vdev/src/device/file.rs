//! Files and block devices.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::direct::{Direct, write_through};
use super::{Access, Device, DeviceKind, Discards, Mode, Way, raw, read_only, within};
use crate::{Error, sync_names};

/// A regular file or a block device.
#[derive(Debug)]
pub struct FileDevice {
    /// Through the page cache. It has the lock of a writer if there is no other descriptor.
    file: Arc<File>,
    size: AtomicU64,
    path: PathBuf,
    writable: bool,
    kind: DeviceKind,
    identity: Identity,
    /// Past the page cache, where the system lets it be read and written so.
    direct: Option<Arc<Direct>>,
    /// Whether a read that somebody waits for goes through the cache all the same: who only reads a pool, and is soon gone, profits from what others
    /// have read, and leaves it to them.
    reads_cached: bool,
    /// Whose turn it is to write a regular file: file systems let one in at a time, and those who wait there use the processor.
    turn: Mutex<()>,
}

/// Linux's `O_NONBLOCK`: opening something that turns out to be a FIFO must not wait for its writer.
const O_NONBLOCK: i32 = 0o4000;
/// Linux's `O_EXCL`: a block device that is mounted, or part of something else, is refused.
const O_EXCL: i32 = 0o200;
/// Pieces of one vectored write that every system takes.
const PIECES_MAX: usize = 1024;
/// Permissions of a new image.
const OWNERS: u32 = 0o600;

/// A file or block device, whatever name leads to it: the device that it is (on), and the number of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity(u64, u64);

impl Identity {
    fn of(meta: &std::fs::Metadata) -> Identity {
        if meta.file_type().is_block_device() { Identity(meta.rdev(), 0) } else { Identity(meta.dev(), meta.ino()) }
    }
}

impl FileDevice {
    /// Opens a regular file or a block device for reading; anything else (folder, FIFO, socket, character device) is refused unopened.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open_read_only(path: &Path) -> Result<FileDevice, Error> {
        Self::open(path, Access::Read)
    }

    /// Opens it for reading and writing, and locks it against every other writer for as long as the device lives.
    ///
    /// # Errors
    /// [`Error::Busy`] if another has it open for writing (or the system uses the block device), [`Error::Open`].
    pub fn open_read_write(path: &Path) -> Result<FileDevice, Error> {
        Self::open(path, Access::Write)
    }

    /// Makes a new, empty file of `size` bytes, which takes no room yet, and opens it as [`FileDevice::open_read_write`] does. Who may read an
    /// image reads all files in it: none but its owner. Its name is on stable storage then; a file that cannot be used is gone again.
    ///
    /// # Errors
    /// [`Error::Open`], also if there is something of that name.
    pub fn create(path: &Path, size: u64) -> Result<FileDevice, Error> {
        Self::open(path, Access::Create(size))
    }

    /// Opens a device as [`super::open`] does.
    pub(super) fn open(path: &Path, access: Access) -> Result<FileDevice, Error> {
        let file = match access {
            Access::Create(size) => create_file(path, size)?,
            _ => open_file(path, access != Access::Read, false).map_err(|source| refusal(path, source))?,
        };
        let made = Self::of_file(path, file, access != Access::Read);
        if made.is_err() && matches!(access, Access::Create(_)) {
            // the error that is told is the one that led here
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn of_file(path: &Path, mut file: File, writable: bool) -> Result<FileDevice, Error> {
        let failed = |source| refusal(path, source);
        let meta = file.metadata().map_err(failed)?;
        let is_block = !meta.is_file();
        let mode = Mode::tuned();
        let wanted = mode != Mode::Buffered;
        let direct = wanted.then(|| Direct::open(&file, path, writable, is_block)).flatten();
        if direct.is_none() && is_block && writable {
            file = open_file(path, true, true).map_err(failed)?;
        }
        if writable {
            // what the kernel still writes for a process that was killed keeps its descriptor, and so the lock
            lock(direct.as_ref().map_or(&file, Direct::file), path)?;
        }
        let size = size_of(&file).map_err(failed)?;
        let device = FileDevice {
            direct: direct.map(Arc::new),
            reads_cached: mode == Mode::Auto && !writable,
            size: AtomicU64::new(size),
            path: path.to_owned(),
            writable,
            kind: if is_block { block_kind(&file) } else { DeviceKind::FILE },
            identity: Identity::of(&meta),
            turn: Mutex::new(()),
            file: Arc::new(file),
        };
        if is_block {
            // another machine may have had the device since it was last looked at here
            let _kept = device.forget(0, size);
        }
        Ok(device)
    }

    /// The same device once more. Its lock is held until both are gone.
    fn again(&self) -> io::Result<FileDevice> {
        Ok(FileDevice {
            file: self.file.clone(),
            direct: self.direct.clone(),
            size: AtomicU64::new(size_of(&self.file)?),
            path: self.path.clone(),
            turn: Mutex::new(()),
            ..*self
        })
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes through the page cache.
    fn write_cached(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        let _turn = (!self.kind.is_block).then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        let mut at = offset;
        for pieces in data.chunks(PIECES_MAX) {
            let len: usize = pieces.iter().map(|piece| piece.len()).sum();
            let mut done = loop {
                match rustix::io::pwritev(&self.file, pieces, at) {
                    Err(rustix::io::Errno::INTR) => {}
                    other => break other?,
                }
            };
            // rare: the system took a part
            if done < len {
                let mut from = 0;
                for piece in pieces {
                    let skip = done.min(piece.len());
                    done -= skip;
                    self.file.write_all_at(piece.get(skip..).unwrap_or(&[]), at + (from + skip) as u64)?;
                    from += piece.len();
                }
            }
            at += len as u64;
        }
        Ok(())
    }
}

/// The error of a device that the system does not open.
fn refusal(path: &Path, source: io::Error) -> Error {
    let path = path.display().to_string();
    match source.kind() {
        io::ErrorKind::ResourceBusy => Error::Busy { path, holder: String::new() },
        _ => Error::Open { path, source },
    }
}

fn create_file(path: &Path, size: u64) -> Result<File, Error> {
    let open = |source| Error::Open { path: path.display().to_string(), source };
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(OWNERS).open(path).map_err(open)?;
    if let Err(e) = file.set_len(size).and_then(|()| sync_names(path)) {
        // the error that is told is the one that led here
        let _ = std::fs::remove_file(path);
        return Err(open(e));
    }
    Ok(file)
}

/// Opens a file; with `alone`, nobody else may have the block device, nor the system.
fn open_file(path: &Path, writable: bool, alone: bool) -> io::Result<File> {
    let usable = |kind: std::fs::FileType| kind.is_file() || kind.is_block_device();
    let refuse = || io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device");
    let kind = std::fs::metadata(path)?.file_type();
    if !usable(kind) {
        return Err(refuse());
    }
    let mut options = OpenOptions::new();
    if cfg!(target_os = "linux") {
        // for a file without O_CREAT, O_EXCL means nothing
        options.custom_flags(if alone && kind.is_block_device() { O_NONBLOCK | O_EXCL } else { O_NONBLOCK });
    }
    let file = options.read(true).write(writable).open(path)?;
    if usable(file.metadata()?.file_type()) { Ok(file) } else { Err(refuse()) }
}

/// The size of a file now. A block device has no length of its own in its metadata.
fn size_of(mut file: &File) -> io::Result<u64> {
    let meta = file.metadata()?;
    if meta.is_file() { Ok(meta.len()) } else { file.seek(SeekFrom::End(0)) }
}

/// Whether an error says that there is no such file or device. Others tell nothing of it: the system is short of memory, or may not look.
fn tells_gone(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::NODEV, Errno::NXIO];
    error.raw_os_error().is_some_and(|code| gone.contains(&Errno::from_raw_os_error(code)))
}

/// Takes the lock that every writer holds.
fn lock(file: &File, path: &Path) -> Result<(), Error> {
    let path_text = || path.display().to_string();
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(Error::Busy { path: path_text(), holder: lock_holder(file) }),
        // file systems without locks: there is nobody to ask
        Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
        Err(TryLockError::Error(source)) => Err(Error::Open { path: path_text(), source }),
    }
}

/// The holder of the lock of a file, in words for a message (` by process 7 (zpool)`); empty if the system does not tell.
#[must_use]
pub fn lock_holder(file: &File) -> String {
    let (Ok(meta), Ok(locks)) = (file.metadata(), std::fs::read_to_string("/proc/locks")) else { return String::new() };
    // "1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF"
    let of_inode = |line: &&str| {
        let inode = line.split_whitespace().nth(5).and_then(|id| id.rsplit(':').next());
        line.contains(" FLOCK ") && inode.is_some_and(|n| n.parse() == Ok(meta.ino()))
    };
    let process = locks.lines().find(of_inode).and_then(|line| line.split_whitespace().nth(4)?.parse::<u32>().ok());
    let Some(process) = process else { return String::new() };
    match std::fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(name) => format!(" by process {process} ({})", name.trim()),
        Err(_) => format!(" by process {process}"),
    }
}

/// A number that the system tells of the queue of a block device.
fn queue_number(file: &File, name: &str) -> Option<u64> {
    let device = file.metadata().ok()?.rdev();
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00);
    // the queue is the disk's; a partition's folder lies in that of its disk
    let place = format!("/sys/dev/block/{major}:{minor}");
    let paths = [format!("{place}/queue/{name}"), format!("{place}/../queue/{name}")];
    let text = paths.iter().find_map(|path| std::fs::read_to_string(path).ok())?;
    text.trim().parse().ok()
}

/// The sectors of a block device, as the system tells them.
fn block_kind(file: &File) -> DeviceKind {
    let shift = |name: &str| {
        let bytes = queue_number(file, name)?;
        (bytes.is_power_of_two() && bytes >= 512).then(|| u64::from(bytes.trailing_zeros()))
    };
    let logical_ashift = shift("logical_block_size").unwrap_or(9);
    let physical_ashift = shift("physical_block_size").unwrap_or(logical_ashift).max(logical_ashift);
    DeviceKind { is_block: true, logical_ashift, physical_ashift }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        within(self.size(), offset, buf.len())?;
        match &self.direct {
            Some(direct) if !self.reads_cached => direct.read(offset, buf),
            _ => self.file.read_exact_at(buf, offset),
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_vectored_at(offset, &[IoSlice::new(data)])
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        if !self.writable {
            return Err(read_only());
        }
        within(self.size(), offset, data.iter().map(|piece| piece.len()).sum())?;
        match &self.direct {
            Some(direct) => direct.write(&self.file, self.size(), offset, data, false),
            None => self.write_cached(offset, data),
        }
    }

    fn flush(&self) -> io::Result<()> {
        if self.writable { self.file.sync_data() } else { Ok(()) }
    }

    fn write_through_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if !self.writable {
            return Err(read_only());
        }
        within(self.size(), offset, data.len())?;
        match &self.direct {
            Some(direct) => direct.write(&self.file, self.size(), offset, &[IoSlice::new(data)], true),
            None => write_through(&self.file, offset, data),
        }
    }

    fn way(&self, offset: u64, len: usize) -> Way<'_> {
        match &self.direct {
            Some(direct) if direct.is_whole(self.size(), offset, len) => match Mode::tuned() {
                Mode::Threads => Way::Threads,
                _ if raw::has_rings() => Way::Ring(direct),
                _ => Way::Threads,
            },
            Some(_) => Way::Threads,
            None => Way::Here,
        }
    }

    #[cfg(target_os = "linux")]
    fn forget(&self, offset: u64, len: u64) -> io::Result<()> {
        let Some(len) = std::num::NonZeroU64::new(len) else { return Ok(()) };
        Ok(rustix::fs::fadvise(&self.file, offset, Some(len), rustix::fs::Advice::DontNeed)?)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.writable {
            return Err(read_only());
        }
        within(self.size(), offset, usize::try_from(len).unwrap_or(usize::MAX))?;
        if len == 0 { Ok(()) } else { raw::discard(&self.file, self.kind.is_block, offset, len) }
    }

    fn discard_securely(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.writable {
            return Err(read_only());
        }
        if !self.kind.is_block {
            return Err(io::ErrorKind::Unsupported.into());
        }
        within(self.size(), offset, usize::try_from(len).unwrap_or(usize::MAX))?;
        if len == 0 { Ok(()) } else { raw::discard_securely(&self.file, [offset, len]) }
    }

    fn discards(&self) -> Discards {
        if !self.kind.is_block {
            // as OpenZFS takes it for granted; whether the file system can, the first one tells
            return Discards { plainly: true, securely: false };
        }
        let bytes = queue_number(&self.file, "discard_max_bytes").unwrap_or(0);
        Discards { plainly: bytes > 0, securely: self.writable && raw::has_secure_discard(&self.file) }
    }

    fn refresh_size(&self) -> io::Result<u64> {
        let size = size_of(&self.file)?;
        self.size.store(size, Ordering::Release);
        Ok(size)
    }

    fn is_gone(&self) -> bool {
        let another = |meta: std::fs::Metadata| Identity::of(&meta) != self.identity;
        // of a disk that was pulled the system has nothing left
        let pulled = || size_of(&self.file).map_or_else(|error| tells_gone(&error), |size| size == 0);
        std::fs::metadata(&self.path).map_or_else(|error| tells_gone(&error), another)
            || (self.kind.is_block && pulled())
    }

    fn reopen(&self) -> Result<Arc<dyn Device>, Error> {
        let again = || self.again().map_err(|source| refusal(&self.path, source));
        let access = if self.writable { Access::Write } else { Access::Read };
        let opened = match Self::open(&self.path, access) {
            // it is this one that has it
            Err(Error::Busy { .. }) if !self.is_gone() => again()?,
            opened => opened?,
        };
        Ok(Arc::new(opened))
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn kind(&self) -> DeviceKind {
        self.kind
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_files_and_block_devices_are_opened() {
        assert!(FileDevice::open_read_only(Path::new("/dev/null")).is_err());
        assert!(FileDevice::open_read_only(Path::new("/")).is_err());
        assert!(FileDevice::open_read_only(Path::new("/no/such")).is_err());
        let own = FileDevice::open_read_only(Path::new("/proc/self/exe")).unwrap();
        let mut magic = [0; 4];
        own.read_at(0, &mut magic).unwrap();
        assert_eq!(&magic, b"\x7fELF");
        assert!(own.read_at(own.size() - 3, &mut magic).is_err());
        assert!(own.write_at(0, b"x").is_err() && own.write_through_at(0, b"x").is_err());
    }

    #[test]
    fn a_second_writer_is_refused_and_told_who_is_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let first = FileDevice::create(&path, 1 << 20).unwrap();
        assert!(FileDevice::create(&path, 1 << 20).is_err());
        let error = FileDevice::open_read_write(&path).unwrap_err();
        assert!(matches!(error, Error::Busy { .. }));
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        FileDevice::open_read_only(&path).unwrap();
        let pieces = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"defg")];
        first.write_vectored_at(100, &pieces).unwrap();
        first.flush().unwrap();
        first.write_through_at(103, b"defg").unwrap();
        first.forget(0, 4096).unwrap();
        assert!(first.write_through_at((1 << 20) - 3, b"defg").is_err());
        assert!(first.write_vectored_at((1 << 20) - 6, &pieces).is_err());
        let mut buf = [0; 7];
        first.read_at(100, &mut buf).unwrap();
        assert_eq!(&buf, b"abcdefg");
        drop(first);
        FileDevice::open_read_write(&path).unwrap();
        assert!(super::super::open(&path, Access::Create(4096)).is_err() && path.exists());
        // no file can be that long
        let long = dir.path().join("long");
        assert!(FileDevice::create(&long, u64::MAX >> 1).is_err() && !long.exists());
    }

    #[test]
    fn a_file_tells_that_it_is_gone_or_has_another_size_and_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, aside) = (dir.path().join("disk"), dir.path().join("aside"));
        let first = FileDevice::create(&path, 1 << 20).unwrap();
        first.write_at(4096, b"abc").unwrap();
        assert!(!first.is_gone());
        let again = first.reopen().unwrap();
        assert!(again.is_writable() && again.size() == 1 << 20);
        assert!(FileDevice::open_read_write(&path).is_err(), "the lock is still held");
        drop(first);
        assert!(FileDevice::open_read_write(&path).is_err(), "by the other one");

        OpenOptions::new().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
        assert_eq!((again.size(), again.refresh_size().unwrap(), again.size()), (1 << 20, 2 << 20, 2 << 20));
        again.write_at((2 << 20) - 3, b"xyz").unwrap();

        std::fs::rename(&path, &aside).unwrap();
        assert!(again.is_gone());
        assert!(matches!(again.reopen(), Err(Error::Open { .. })));
        // another one under its name
        drop(FileDevice::create(&path, 1 << 20).unwrap());
        assert!(again.is_gone());
        let other = again.reopen().unwrap();
        let mut buf = [1; 3];
        other.read_at(4096, &mut buf).unwrap();
        assert_eq!((buf, other.is_gone()), ([0; 3], false));
    }

    #[test]
    fn a_file_whose_name_cannot_be_looked_up_is_not_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, aside) = (dir.path().join("folder"), dir.path().join("aside"));
        std::fs::create_dir(&folder).unwrap();
        let device = FileDevice::create(&folder.join("disk"), 1 << 20).unwrap();
        std::fs::rename(&folder, &aside).unwrap();
        assert!(device.is_gone());
        // a name that leads round in a circle tells nothing
        std::os::unix::fs::symlink("folder", &folder).unwrap();
        assert!(!device.is_gone());
        std::fs::remove_file(&folder).unwrap();
        std::fs::write(&folder, "no folder").unwrap();
        assert!(device.is_gone());
    }

    #[test]
    fn what_is_discarded_takes_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let device = FileDevice::create(&path, 1 << 20).unwrap();
        device.write_at(0, &[7; 1 << 20]).unwrap();
        device.flush().unwrap();
        let blocks = || std::fs::metadata(&path).unwrap().blocks();
        let before = blocks();
        device.discard(64 << 10, 512 << 10).unwrap();
        device.discard(0, 0).unwrap();
        device.flush().unwrap();
        assert!(blocks() <= before - 1000, "{before} {}", blocks());
        let mut buf = [1; 2];
        device.read_at((64 << 10) - 1, &mut buf).unwrap();
        assert_eq!((buf, device.size()), ([7, 0], 1 << 20));
        assert!(device.discard(1 << 20, 1).is_err());
        assert!(FileDevice::open_read_only(&path).unwrap().discard(0, 512).is_err());
    }
}
