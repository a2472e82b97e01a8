//! A device that keeps in memory what is written to it.
//!
//! Whoever wants to see what a pool would be after a change, the replay of its logs say, makes the change on overlays: what is written is read
//! back, the device beneath is only read. What an overlay may hold is bounded; beyond it writes fail.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::device::{Device, DeviceKind};

/// Bytes that are copied when a part of them is written.
const PAGE: u64 = 4096;

/// Memory that some overlays may take together, in bytes.
#[derive(Clone, Debug)]
pub struct Room(Arc<AtomicU64>);

impl Room {
    /// The number of bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Room {
        Room(Arc::new(AtomicU64::new(bytes)))
    }

    fn take(&self, bytes: u64) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }
}

/// A device, and the pages of it that were written here.
pub struct Overlay {
    device: Arc<dyn Device>,
    room: Room,
    /// By number of the page.
    pages: RwLock<BTreeMap<u64, Box<[u8; PAGE as usize]>>>,
}

impl Overlay {
    /// An overlay of `device`, which is never written.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, room: Room) -> Overlay {
        Overlay { device, room, pages: RwLock::default() }
    }

    fn end(&self, offset: u64, len: usize) -> io::Result<u64> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.size());
        end.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the device"))
    }

    /// A page as the device has it; behind the device's end zeros.
    fn original(&self, page: u64) -> io::Result<Box<[u8; PAGE as usize]>> {
        let mut bytes = Box::new([0; PAGE as usize]);
        let at = page.saturating_mul(PAGE);
        let len = usize::try_from(self.size().saturating_sub(at).min(PAGE)).unwrap_or(0);
        self.device.read_at(at, bytes.get_mut(..len).unwrap_or_default())?;
        Ok(bytes)
    }
}

/// The bytes in which `page` and the range from `offset` to `end` meet: their place in the page, and in the range.
fn meet(page: u64, offset: u64, end: u64) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let at = page.saturating_mul(PAGE);
    let (first, last) = (at.max(offset), at.saturating_add(PAGE).min(end));
    let from = |start: u64| (first.saturating_sub(start)) as usize..(last.saturating_sub(start)) as usize;
    (from(at), from(offset))
}

impl Device for Overlay {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = self.end(offset, buf.len())?;
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let all = offset / PAGE..end.div_ceil(PAGE);
        // what is all here needs no read of the device
        if pages.range(all.clone()).count() as u64 != all.end.saturating_sub(all.start) {
            self.device.read_at(offset, buf)?;
        }
        for (page, bytes) in pages.range(all) {
            let (within, part) = meet(*page, offset, end);
            if let (Some(from), Some(to)) = (bytes.get(within), buf.get_mut(part)) {
                to.copy_from_slice(from);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = self.end(offset, data.len())?;
        let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
        for page in offset / PAGE..end.div_ceil(PAGE) {
            let (within, part) = meet(page, offset, end);
            let bytes = match pages.entry(page) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(_) if !self.room.take(PAGE) => {
                    return Err(io::Error::new(io::ErrorKind::OutOfMemory, "more changes than may be kept in memory"));
                }
                // of a page that is all written nothing stays
                Entry::Vacant(new) if within.len() == PAGE as usize => new.insert(Box::new([0; PAGE as usize])),
                Entry::Vacant(new) => new.insert(self.original(page)?),
            };
            let to = bytes.get_mut(within);
            if let (Some(to), Some(from)) = (to, data.get(part)) {
                to.copy_from_slice(from);
            }
        }
        Ok(())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn kind(&self) -> DeviceKind {
        self.device.kind()
    }

    fn name(&self) -> String {
        self.device.name()
    }
}

impl std::fmt::Debug for Overlay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner).len();
        write!(f, "{} with {pages} pages changed", self.name())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::device::MemoryDevice;

    #[test]
    fn what_is_written_is_read_back_and_the_device_stays() {
        let size = 10 * PAGE as usize + 512;
        let mut plain: Vec<u8> = (0..size).map(|n| (n / 7) as u8).collect();
        let device = Arc::new(MemoryDevice::new(plain.clone()));
        let overlay = Overlay::new(device.clone(), Room::new(9 * PAGE));
        for n in 0..300usize {
            let (from, len) = (n * 7919 % (8 * PAGE as usize), n * 31 % 5000);
            let bytes: Vec<u8> = (0..len).map(|at| (n + at) as u8).collect();
            if n % 3 == 0 {
                overlay.write_at(from as u64, &bytes[..len / 2]).unwrap();
                plain[from..from + len / 2].copy_from_slice(&bytes[..len / 2]);
            }
            let mut read = vec![0; len];
            overlay.read_at(from as u64, &mut read).unwrap();
            assert_eq!(read, plain[from..from + len]);
        }
        let mut last = [0; 512];
        overlay.read_at(10 * PAGE, &mut last).unwrap();
        assert!(overlay.write_at(size as u64 - 1, b"xy").is_err(), "beyond the end");
        let all = vec![0; size];
        assert_eq!(overlay.write_at(0, &all).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        let mut beneath = vec![0; size];
        device.read_at(0, &mut beneath).unwrap();
        assert!(beneath.iter().enumerate().all(|(n, byte)| *byte == (n / 7) as u8));
    }
}
