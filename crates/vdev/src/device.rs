//! Where a leaf's bytes are kept.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Error;

/// A leaf's store: a file, a block device, memory.
///
/// Reading needs no exclusive access: one device serves any number of threads.
pub trait Device: Send + Sync + Debug {
    /// Bytes of the device.
    fn size(&self) -> u64;

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// # Errors
    /// If not every byte could be read; `buf` then holds nothing of use. A range that ends beyond [`Device::size`] is
    /// [`io::ErrorKind::UnexpectedEof`].
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

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

/// A regular file or a block device, open for reading.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    size: u64,
    path: PathBuf,
}

/// Linux's `O_NONBLOCK`: opening something that turns out to be a FIFO must not wait for its writer.
const O_NONBLOCK: i32 = 0o4000;

impl FileDevice {
    /// Opens a regular file or a block device; anything else (folder, FIFO, socket, character device) is refused unopened.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open_read_only(path: &Path) -> Result<FileDevice, Error> {
        Self::open(path).map_err(|source| Error::Open { path: path.display().to_string(), source })
    }

    fn open(path: &Path) -> io::Result<FileDevice> {
        let usable = |kind: std::fs::FileType| kind.is_file() || kind.is_block_device();
        let refuse = || io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device");
        if !usable(std::fs::metadata(path)?.file_type()) {
            return Err(refuse());
        }
        let mut options = OpenOptions::new();
        if cfg!(target_os = "linux") {
            options.custom_flags(O_NONBLOCK);
        }
        let mut file = options.read(true).open(path)?;
        let meta = file.metadata()?;
        if !usable(meta.file_type()) {
            return Err(refuse());
        }
        // a block device has no length of its own in its metadata
        let size = if meta.is_file() { meta.len() } else { file.seek(SeekFrom::End(0))? };
        Ok(FileDevice { file, size, path: path.to_owned() })
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        within(self.size, offset, buf.len())?;
        self.file.read_exact_at(buf, offset)
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// Bytes in memory.
#[derive(Debug, Clone)]
pub struct MemoryDevice {
    bytes: Arc<Vec<u8>>,
    name: String,
}

impl MemoryDevice {
    /// A device that holds `bytes`; an `Arc` is shared, not copied.
    #[must_use]
    pub fn new(bytes: impl Into<Arc<Vec<u8>>>) -> MemoryDevice {
        MemoryDevice { bytes: bytes.into(), name: "memory".to_owned() }
    }

    /// The same under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> MemoryDevice {
        self.name = name.into();
        self
    }
}

impl Device for MemoryDevice {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        within(self.size(), offset, buf.len())?;
        let from = offset as usize;
        if let Some(bytes) = self.bytes.get(from..from + buf.len()) {
            buf.copy_from_slice(bytes);
        }
        Ok(())
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
    }
}
