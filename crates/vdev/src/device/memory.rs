//! Memory as a device.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use super::{Access, Device, Discards, read_only, within};
use crate::Error;

/// The prefix of names of devices in memory.
const SCHEME: &str = "memory:";

/// A device in memory that is known by a word.
struct Known {
    bytes: Arc<RwLock<Vec<u8>>>,
    /// Held by its writer, if there is one.
    claim: Weak<()>,
}

/// The devices of this process, until they are removed.
static KNOWN: Mutex<BTreeMap<String, Known>> = Mutex::new(BTreeMap::new());

/// The word in the name of a device in memory.
pub(super) fn word(name: &Path) -> Option<&str> {
    name.to_str()?.strip_prefix(SCHEME)
}

pub(super) fn exists(word: &str) -> bool {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).contains_key(word)
}

pub(super) fn remove(word: &str) -> io::Result<()> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).remove(word);
    known.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Bytes in memory. Clones are the same device.
#[derive(Debug, Clone)]
pub struct MemoryDevice {
    bytes: Bytes,
    name: String,
    /// Keeps other writers out, where others can find it.
    claim: Option<Arc<()>>,
}

#[derive(Debug, Clone)]
enum Bytes {
    Fixed(Arc<Vec<u8>>),
    /// Others may write it.
    Shared(Arc<RwLock<Vec<u8>>>),
    Writable(Arc<RwLock<Vec<u8>>>),
}

impl MemoryDevice {
    /// A device that holds `bytes` and cannot be written; an `Arc` is shared, not copied.
    #[must_use]
    pub fn new(bytes: impl Into<Arc<Vec<u8>>>) -> MemoryDevice {
        Self::of(Bytes::Fixed(bytes.into()))
    }

    /// A device of `size` zeros that can be written. Pages that nobody writes take no memory.
    #[must_use]
    pub fn writable(size: u64) -> MemoryDevice {
        MemoryDevice::writable_from(vec![0; usize::try_from(size).unwrap_or(0)])
    }

    /// A device that holds `bytes` and can be written.
    #[must_use]
    pub fn writable_from(bytes: Vec<u8>) -> MemoryDevice {
        Self::of(Bytes::Writable(Arc::new(RwLock::new(bytes))))
    }

    fn of(bytes: Bytes) -> MemoryDevice {
        MemoryDevice { bytes, name: "memory".to_owned(), claim: None }
    }

    /// Opens the device of this process that is known by `word`.
    pub(super) fn open(word: &str, access: Access) -> Result<MemoryDevice, Error> {
        let name = format!("{SCHEME}{word}");
        let failed = |kind: io::ErrorKind| Error::Open { path: name.clone(), source: kind.into() };
        let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Access::Create(size) = access {
            let size = usize::try_from(size).map_err(|_| failed(io::ErrorKind::OutOfMemory))?;
            if all.contains_key(word) {
                return Err(failed(io::ErrorKind::AlreadyExists));
            }
            let bytes = Arc::new(RwLock::new(vec![0; size]));
            all.insert(word.to_owned(), Known { bytes, claim: Weak::new() });
        }
        let known = all.get_mut(word).ok_or_else(|| failed(io::ErrorKind::NotFound))?;
        if access == Access::Read {
            return Ok(Self::of(Bytes::Shared(known.bytes.clone())).named(name));
        }
        if known.claim.strong_count() > 0 {
            return Err(Error::Busy { path: name, holder: " by this process".to_owned() });
        }
        let claim = Arc::new(());
        known.claim = Arc::downgrade(&claim);
        let device = Self::of(Bytes::Writable(known.bytes.clone())).named(name);
        Ok(MemoryDevice { claim: Some(claim), ..device })
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
            Bytes::Shared(bytes) | Bytes::Writable(bytes) => {
                work(&bytes.read().unwrap_or_else(PoisonError::into_inner))
            }
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

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        // a range that is not there fails before this many zeros are made
        within(self.size(), offset, usize::try_from(len).unwrap_or(usize::MAX))?;
        self.write_at(offset, &vec![0; len as usize])
    }

    fn discards(&self) -> Discards {
        Discards { plainly: true, securely: false }
    }

    fn is_gone(&self) -> bool {
        word(Path::new(&self.name)).is_some_and(|word| !exists(word))
    }

    fn reopen(&self) -> Result<Arc<dyn Device>, Error> {
        match word(Path::new(&self.name)) {
            Some(word) if self.claim.is_some() && exists(word) => Ok(Arc::new(self.clone())),
            Some(word) => Ok(Arc::new(Self::open(word, Access::Read)?)),
            // nobody else knows it
            None => Ok(Arc::new(self.clone())),
        }
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
    fn clones_of_a_writable_memory_are_one_device() {
        let memory = MemoryDevice::writable(100);
        memory.clone().write_at(98, b"xy").unwrap();
        assert!(memory.write_at(99, b"xy").is_err());
        assert_eq!(&memory.snapshot()[97..], b"\0xy");
        assert!(!MemoryDevice::new(vec![0; 4]).is_writable());
    }

    #[test]
    fn a_word_leads_to_the_same_memory_and_one_writes_it() {
        use super::super::{exists, is_busy, open, remove};
        let name = Path::new("memory:of a test");
        assert!(open(name, Access::Read).is_err() && !exists(name));
        let first = open(name, Access::Create(4096)).unwrap();
        assert!(open(name, Access::Create(4096)).is_err() && is_busy(name));
        let reader = open(name, Access::Read).unwrap();
        first.write_at(10, b"ab").unwrap();
        let mut buf = [0; 2];
        reader.read_at(10, &mut buf).unwrap();
        assert_eq!((&buf, reader.write_at(0, b"x").is_err()), (b"ab", true));
        let again = first.reopen().unwrap();
        drop(first);
        assert!(is_busy(name) && again.is_writable());
        drop(again);
        open(name, Access::Write).unwrap().discard(11, 1).unwrap();
        reader.read_at(10, &mut buf).unwrap();
        assert_eq!(&buf, b"a\0");
        remove(name).unwrap();
        assert!(reader.is_gone() && reader.reopen().is_err() && remove(name).is_err());
    }
}
