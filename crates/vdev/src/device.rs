//! Where a leaf's bytes are kept.

use std::fmt::Debug;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::{Error, sync_names};

/// What a device is, as far as a new vdev has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceKind {
    /// A block device (OpenZFS: vdev type `disk`), else a file.
    pub is_block: bool,
    /// Base-2 logarithm of the smallest I/O it does.
    pub logical_ashift: u64,
    /// Base-2 logarithm of the smallest I/O it does well.
    pub physical_ashift: u64,
}

impl DeviceKind {
    /// A file: OpenZFS asks no file for its sectors (`vdev_file_logical_ashift`, `vdev_file_physical_ashift`).
    pub const FILE: DeviceKind = DeviceKind { is_block: false, logical_ashift: 9, physical_ashift: 9 };
}

/// A leaf's store: a file, a block device, memory.
///
/// Neither reading nor writing needs exclusive access: one device serves any number of threads.
pub trait Device: Send + Sync + Debug {
    /// Bytes of the device.
    fn size(&self) -> u64;

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// # Errors
    /// If not every byte could be read; `buf` then holds nothing of use. A range that ends beyond [`Device::size`] is
    /// [`io::ErrorKind::UnexpectedEof`].
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` from `offset` on. It is on stable storage only after [`Device::flush`].
    ///
    /// # Errors
    /// If not every byte could be written; some may have been. A device that is not open for writing refuses.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let _ = (offset, data);
        Err(read_only())
    }

    /// Writes the pieces of `data`, one behind the other, from `offset` on: the same as writing each, in as few calls of the system as
    /// can be.
    ///
    /// # Errors
    /// As [`Device::write_at`].
    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        let mut at = offset;
        for piece in data {
            self.write_at(at, piece)?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    /// Returns when all that was written is on stable storage.
    ///
    /// # Errors
    /// What the system says.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Writes as [`Device::write_at`] does, and returns when that is on stable storage, where another machine sees it; of what else was
    /// written nothing is known.
    ///
    /// # Errors
    /// As [`Device::write_at`] and [`Device::flush`].
    fn write_through_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_at(offset, data)?;
        self.flush()
    }

    /// Forgets what this machine keeps of a range in memory, so that the next read tells what another one has written there.
    ///
    /// # Errors
    /// What the system says.
    fn forget(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// Whether [`Device::write_at`] can work at all.
    fn is_writable(&self) -> bool {
        false
    }

    /// What sort of device it is.
    fn kind(&self) -> DeviceKind {
        DeviceKind::FILE
    }

    /// What to call the device in messages: its path.
    fn name(&self) -> String;
}

/// Refuses a range that does not lie within `size` bytes.
fn within(size: u64, offset: u64, len: usize) -> io::Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= size => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the device")),
    }
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "not open for writing")
}

/// A regular file or a block device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    size: u64,
    path: PathBuf,
    writable: bool,
    kind: DeviceKind,
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

impl FileDevice {
    /// Opens a regular file or a block device; anything else (folder, FIFO, socket, character device) is refused unopened.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open_read_only(path: &Path) -> Result<FileDevice, Error> {
        Self::open(path, false)
    }

    /// Opens it for reading and writing, and locks it against every other writer for as long as the device lives.
    ///
    /// # Errors
    /// [`Error::Busy`] if another has it open for writing (or the system uses the block device), [`Error::Open`].
    pub fn open_read_write(path: &Path) -> Result<FileDevice, Error> {
        Self::open(path, true)
    }

    /// Makes a new, empty file of `size` bytes, which takes no room yet, and opens it as [`FileDevice::open_read_write`] does. Who may read an
    /// image reads all files in it: none but its owner. Its name is on stable storage then; a file that cannot be used is gone again.
    ///
    /// # Errors
    /// [`Error::Open`], also if there is something of that name.
    pub fn create(path: &Path, size: u64) -> Result<FileDevice, Error> {
        let open = |source| Error::Open { path: path.display().to_string(), source };
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(OWNERS).open(path).map_err(open)?;
        let ready = file.set_len(size).and_then(|()| sync_names(path)).map_err(open);
        if let Err(e) = ready.and_then(|()| lock(&file, path)) {
            // the error that is told is the one that led here
            let _ = std::fs::remove_file(path);
            return Err(e);
        }
        Ok(FileDevice {
            file,
            size,
            path: path.to_owned(),
            writable: true,
            kind: DeviceKind::FILE,
            turn: Mutex::new(()),
        })
    }

    fn open(path: &Path, writable: bool) -> Result<FileDevice, Error> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::ResourceBusy => Error::Busy { path: path.display().to_string(), holder: String::new() },
            _ => Error::Open { path: path.display().to_string(), source },
        };
        let (file, size, is_block) = Self::open_file(path, writable).map_err(failed)?;
        if writable {
            lock(&file, path)?;
        }
        let kind = if is_block { block_kind(&file) } else { DeviceKind::FILE };
        let device = FileDevice { file, size, path: path.to_owned(), writable, kind, turn: Mutex::new(()) };
        if is_block {
            // another machine may have had the device since it was last looked at here
            let _kept = device.forget(0, size);
        }
        Ok(device)
    }

    fn open_file(path: &Path, writable: bool) -> io::Result<(File, u64, bool)> {
        let usable = |kind: std::fs::FileType| kind.is_file() || kind.is_block_device();
        let refuse = || io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device");
        let kind = std::fs::metadata(path)?.file_type();
        if !usable(kind) {
            return Err(refuse());
        }
        let mut options = OpenOptions::new();
        if cfg!(target_os = "linux") {
            // for a file without O_CREAT, O_EXCL means nothing
            options.custom_flags(if writable && kind.is_block_device() { O_NONBLOCK | O_EXCL } else { O_NONBLOCK });
        }
        let mut file = options.read(true).write(writable).open(path)?;
        let meta = file.metadata()?;
        if !usable(meta.file_type()) {
            return Err(refuse());
        }
        // a block device has no length of its own in its metadata
        let size = if meta.is_file() { meta.len() } else { file.seek(SeekFrom::End(0))? };
        Ok((file, size, !meta.is_file()))
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        (!self.kind.is_block).then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Takes the lock that every writer holds.
fn lock(file: &File, path: &Path) -> Result<(), Error> {
    let path_text = || path.display().to_string();
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(Error::Busy { path: path_text(), holder: holder(file) }),
        // file systems without locks: there is nobody to ask
        Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
        Err(TryLockError::Error(source)) => Err(Error::Open { path: path_text(), source }),
    }
}

/// Who holds the lock of a file, in words for a message; empty if the system does not tell.
fn holder(file: &File) -> String {
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

/// The sectors of a block device, as the system tells them.
fn block_kind(file: &File) -> DeviceKind {
    let shift = |name: &str| {
        let device = file.metadata().ok()?.rdev();
        let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00);
        // the queue is the disk's; a partition's folder lies in that of its disk
        let place = format!("/sys/dev/block/{major}:{minor}");
        let text = [format!("{place}/queue/{name}"), format!("{place}/../queue/{name}")]
            .iter()
            .find_map(|path| std::fs::read_to_string(path).ok())?;
        let bytes: u64 = text.trim().parse().ok()?;
        (bytes.is_power_of_two() && bytes >= 512).then(|| u64::from(bytes.trailing_zeros()))
    };
    let logical_ashift = shift("logical_block_size").unwrap_or(9);
    let physical_ashift = shift("physical_block_size").unwrap_or(logical_ashift).max(logical_ashift);
    DeviceKind { is_block: true, logical_ashift, physical_ashift }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        within(self.size, offset, buf.len())?;
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if !self.writable {
            return Err(read_only());
        }
        within(self.size, offset, data.len())?;
        let _turn = self.turn();
        self.file.write_all_at(data, offset)
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        if let [only] = data {
            return self.write_at(offset, only);
        }
        if !self.writable {
            return Err(read_only());
        }
        within(self.size, offset, data.iter().map(|piece| piece.len()).sum())?;
        let _turn = self.turn();
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

    fn flush(&self) -> io::Result<()> {
        if self.writable { self.file.sync_data() } else { Ok(()) }
    }

    #[cfg(target_os = "linux")]
    fn write_through_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        use rustix::io::{Errno, ReadWriteFlags, pwritev2};
        if !self.writable {
            return Err(read_only());
        }
        within(self.size, offset, data.len())?;
        // with all that others have written on its way, a flush could take long
        match pwritev2(&self.file, &[IoSlice::new(data)], offset, ReadWriteFlags::DSYNC) {
            Ok(done) if done == data.len() => Ok(()),
            Ok(_) | Err(Errno::INTR | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.write_at(offset, data)?;
                self.flush()
            }
            Err(error) => Err(error.into()),
        }
    }

    #[cfg(target_os = "linux")]
    fn forget(&self, offset: u64, len: u64) -> io::Result<()> {
        let Some(len) = std::num::NonZeroU64::new(len) else { return Ok(()) };
        Ok(rustix::fs::fadvise(&self.file, offset, Some(len), rustix::fs::Advice::DontNeed)?)
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

/// Bytes in memory. Clones are the same device.
#[derive(Debug, Clone)]
pub struct MemoryDevice {
    bytes: Bytes,
    name: String,
}

#[derive(Debug, Clone)]
enum Bytes {
    Fixed(Arc<Vec<u8>>),
    Writable(Arc<RwLock<Vec<u8>>>),
}

impl MemoryDevice {
    /// A device that holds `bytes` and cannot be written; an `Arc` is shared, not copied.
    #[must_use]
    pub fn new(bytes: impl Into<Arc<Vec<u8>>>) -> MemoryDevice {
        MemoryDevice { bytes: Bytes::Fixed(bytes.into()), name: "memory".to_owned() }
    }

    /// A device of `size` zeros that can be written. Pages that nobody writes take no memory.
    #[must_use]
    pub fn writable(size: u64) -> MemoryDevice {
        MemoryDevice::writable_from(vec![0; usize::try_from(size).unwrap_or(0)])
    }

    /// A device that holds `bytes` and can be written.
    #[must_use]
    pub fn writable_from(bytes: Vec<u8>) -> MemoryDevice {
        MemoryDevice { bytes: Bytes::Writable(Arc::new(RwLock::new(bytes))), name: "memory".to_owned() }
    }

    /// The same under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> MemoryDevice {
        self.name = name.into();
        self
    }

    /// A copy of its bytes as they are now.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        self.with(<[u8]>::to_vec)
    }

    fn with<R>(&self, work: impl FnOnce(&[u8]) -> R) -> R {
        match &self.bytes {
            Bytes::Fixed(bytes) => work(bytes),
            Bytes::Writable(bytes) => work(&bytes.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

impl Device for MemoryDevice {
    fn size(&self) -> u64 {
        self.with(|bytes| bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.with(|bytes| {
            within(bytes.len() as u64, offset, buf.len())?;
            let from = offset as usize;
            if let Some(bytes) = bytes.get(from..from + buf.len()) {
                buf.copy_from_slice(bytes);
            }
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_vectored_at(offset, &[IoSlice::new(data)])
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        let Bytes::Writable(bytes) = &self.bytes else { return Err(read_only()) };
        let mut bytes = bytes.write().unwrap_or_else(PoisonError::into_inner);
        within(bytes.len() as u64, offset, data.iter().map(|piece| piece.len()).sum())?;
        let mut at = offset as usize;
        for piece in data {
            if let Some(to) = bytes.get_mut(at..at + piece.len()) {
                to.copy_from_slice(piece);
            }
            at += piece.len();
        }
        Ok(())
    }

    fn is_writable(&self) -> bool {
        matches!(self.bytes, Bytes::Writable(_))
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reading_past_the_end_is_an_error() {
        let memory = MemoryDevice::new(vec![7u8; 100]);
        let mut buf = [0; 10];
        memory.read_at(90, &mut buf).unwrap();
        assert_eq!(buf, [7; 10]);
        assert_eq!(memory.read_at(91, &mut buf).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(memory.read_at(u64::MAX, &mut buf).is_err());
    }

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
        // no file can be that long
        let long = dir.path().join("long");
        assert!(FileDevice::create(&long, u64::MAX >> 1).is_err() && !long.exists());
    }

    #[test]
    fn clones_of_a_writable_memory_are_one_device() {
        let memory = MemoryDevice::writable(100);
        memory.clone().write_at(98, b"xy").unwrap();
        assert!(memory.write_at(99, b"xy").is_err());
        assert_eq!(&memory.snapshot()[97..], b"\0xy");
        assert!(!MemoryDevice::new(vec![0; 4]).is_writable());
    }
}
