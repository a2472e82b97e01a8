//! A device that differs from an image in some pages.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use base::counter::Counter;
use parking_lot::RwLock;
use vdev::Device;

/// The unit of copying when a part of it is written.
const PAGE: usize = 4096;
/// The unit of writing out a device.
const CHUNK: usize = 1 << 20;

type Page = Box<[u8; PAGE]>;

/// A shared image and the pages of it that were changed here. The overlay is writable; the image never changes.
pub struct Overlay {
    name: String,
    base: Arc<Vec<u8>>,
    /// The changed pages by number.
    changed: RwLock<BTreeMap<usize, Page>>,
    writes: Counter,
}

impl Overlay {
    /// An overlay without changes.
    #[must_use]
    pub fn new(name: impl Into<String>, base: Arc<Vec<u8>>) -> Overlay {
        Overlay { name: name.into(), base, changed: RwLock::default(), writes: Counter::new() }
    }

    /// The number of pages that were written, whether they differ or not.
    #[must_use]
    pub fn changed_pages(&self) -> usize {
        self.changed.read().len()
    }

    /// The number of writes.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes.get()
    }

    /// The whole device.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = self.base.to_vec();
        for (page, bytes) in &*self.changed.read() {
            let at = page * PAGE;
            let len = PAGE.min(all.len().saturating_sub(at));
            all[at..at + len].copy_from_slice(&bytes[..len]);
        }
        all
    }

    /// Writes the whole device into a new file, zeros as holes.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        let file = File::create_new(path)?;
        file.set_len(self.size())?;
        let mut buf = vec![0; CHUNK];
        for at in (0..self.base.len()).step_by(CHUNK) {
            let len = CHUNK.min(self.base.len() - at);
            self.read_at(at as u64, &mut buf[..len])?;
            if buf[..len].iter().any(|byte| *byte != 0) {
                file.write_all_at(&buf[..len], at as u64)?;
            }
        }
        Ok(())
    }

    fn within(&self, offset: u64, len: usize) -> io::Result<usize> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.base.len() as u64 => Ok(offset as usize),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the device")),
        }
    }

    fn original(&self, page: usize) -> Page {
        let mut copy = Box::new([0; PAGE]);
        let at = page * PAGE;
        let end = self.base.len().min(at + PAGE);
        copy[..end - at].copy_from_slice(&self.base[at..end]);
        copy
    }
}

impl Device for Overlay {
    fn size(&self) -> u64 {
        self.base.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = self.within(offset, buf.len())?;
        let end = from + buf.len();
        buf.copy_from_slice(&self.base[from..end]);
        for (page, bytes) in self.changed.read().range(from / PAGE..end.div_ceil(PAGE)) {
            let at = page * PAGE;
            let (first, last) = (at.max(from), (at + PAGE).min(end));
            buf[first - from..last - from].copy_from_slice(&bytes[first - at..last - at]);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let from = self.within(offset, data.len())?;
        let end = from + data.len();
        self.writes.add(1);
        let mut changed = self.changed.write();
        for page in from / PAGE..end.div_ceil(PAGE) {
            let at = page * PAGE;
            let (first, last) = (at.max(from), (at + PAGE).min(end));
            let bytes = changed.entry(page).or_insert_with(|| self.original(page));
            bytes[first - at..last - at].copy_from_slice(&data[first - from..last - from]);
        }
        Ok(())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl std::fmt::Debug for Overlay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} bytes, {} pages changed", self.name, self.base.len(), self.changed_pages())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn an_overlay_is_the_image_with_what_was_written() {
        let rng = Rng::new(1);
        // an odd size: the last page is short
        let mut plain = vec![0u8; 10 * PAGE + 512];
        rng.fill(&mut plain);
        let overlay = Overlay::new("d", Arc::new(plain.clone()));
        for _ in 0..200 {
            let from = rng.index(plain.len());
            let len = rng.index((plain.len() - from).min(3 * PAGE)) + 1;
            let mut bytes = vec![0; len];
            if rng.percent(50) {
                rng.fill(&mut bytes);
                plain[from..from + len].copy_from_slice(&bytes);
                overlay.write_at(from as u64, &bytes).unwrap();
            } else {
                overlay.read_at(from as u64, &mut bytes).unwrap();
                assert_eq!(bytes, plain[from..from + len]);
            }
        }
        assert_eq!(overlay.to_vec(), plain);
        assert!(overlay.write_at(plain.len() as u64 - 1, b"xy").is_err());
        assert!(overlay.read_at(u64::MAX, &mut [0]).is_err());
        let dir = tempfile::tempdir().unwrap();
        overlay.write_to(&dir.path().join("d")).unwrap();
        assert_eq!(std::fs::read(dir.path().join("d")).unwrap(), plain);
    }
}
