//! How leaves are read: straight, or through a window that turns many small reads in order into few large ones.

use std::cell::RefCell;

use crate::{Error, IoClass, Leaf};

/// Whether a read stops at the first good copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// The first good copy is enough; others are read only when one is bad.
    Normal,
    /// Every copy and all parity is read and checked.
    Scrub,
}

/// How a block is to be read.
#[derive(Clone, Copy)]
pub struct ReadCx<'a> {
    /// Whether to stop at the first good copy.
    pub mode: ReadMode,
    /// The reader of the leaves.
    pub source: &'a dyn LeafSource,
    /// Whether bytes that were found wrong are overwritten with the right ones, where the leaf can be written.
    pub heal: bool,
    /// Whether faults count as errors of their vdevs: not where they were counted before, nor where nobody knows whether there is a block.
    pub counts: bool,
    /// Whether leaves that missed the block, or are out of use, are asked where no other gives it: only where the check tells.
    pub stale: bool,
    /// How urgent it is.
    pub class: IoClass,
}

impl ReadCx<'_> {
    /// Fills `buf` from byte `offset` of the leaf's device.
    pub(crate) fn read(&self, leaf: &Leaf, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.source.read(leaf, self.class, offset, buf)
    }
}

impl std::fmt::Debug for ReadCx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadCx").field("mode", &self.mode).field("heal", &self.heal).finish_non_exhaustive()
    }
}

impl ReadCx<'static> {
    /// Reads straight from the devices, up to the first good copy.
    pub const NORMAL: ReadCx<'static> = ReadCx {
        mode: ReadMode::Normal,
        source: &DirectSource,
        heal: false,
        counts: true,
        stale: true,
        class: IoClass::SyncRead,
    };
    /// As [`ReadCx::NORMAL`], and repairs what is wrong.
    pub const HEALING: ReadCx<'static> = ReadCx { heal: true, ..ReadCx::NORMAL };
    /// Reads straight from the devices, every copy.
    pub const SCRUB: ReadCx<'static> = ReadCx { mode: ReadMode::Scrub, class: IoClass::Scrub, ..ReadCx::NORMAL };
}

/// The reader of the leaves. Not `Sync`: a source may belong to one worker and keep a window of its own.
pub trait LeafSource {
    /// Fills `buf` from byte `offset` of the leaf's device (counted from its front, labels included).
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Io`].
    fn read(&self, leaf: &Leaf, class: IoClass, offset: u64, buf: &mut [u8]) -> Result<(), Error>;
}

/// Each read is one read of the device.
#[derive(Debug, Clone, Copy, Default)]
pub struct DirectSource;

impl LeafSource for DirectSource {
    fn read(&self, leaf: &Leaf, class: IoClass, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        leaf.read(class, offset, buf, false)
    }
}

/// A window per leaf, for a worker that reads blocks roughly in the order of their offsets.
///
/// A read that falls into the window is a copy. One just behind it moves the window; the more of the last window was asked for, the
/// larger the next one, so that scattered reads do not drag in what nobody wants. A failed large read falls back to
/// the exact range, so that one bad sector spoils one block only.
#[derive(Debug)]
pub struct WindowSource {
    max: usize,
    windows: RefCell<Vec<Window>>,
}

#[derive(Debug, Default)]
struct Window {
    start: u64,
    /// Bytes of `bytes` that are filled.
    len: usize,
    bytes: Vec<u8>,
    /// How much to read the next time.
    next: usize,
    /// Bytes of this window that were asked for.
    used: usize,
}

/// The first window of a leaf, and the smallest.
const WINDOW_MIN: usize = 64 << 10;
/// The default largest window.
const WINDOW_MAX: usize = 1 << 20;

impl Default for WindowSource {
    fn default() -> Self {
        WindowSource::new(WINDOW_MAX)
    }
}

impl WindowSource {
    /// Windows of at most `max` bytes (at least 64 KiB), one a leaf that is read.
    #[must_use]
    pub fn new(max: usize) -> WindowSource {
        WindowSource { max: max.max(WINDOW_MIN), windows: RefCell::default() }
    }
}

impl Window {
    fn get(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(..self.len)?.get(from..from.checked_add(len)?)
    }

    /// Moves the window to `offset`; on failure it is empty.
    fn fill(&mut self, leaf: &Leaf, class: IoClass, offset: u64, len: usize, max: usize) -> Result<(), Error> {
        let size = leaf.device().map_or(0, |device| device.size());
        let near = offset >= self.start && offset - self.start <= 4 * self.next as u64;
        let well_used = near && self.used >= self.len / 4;
        let grown = if well_used { self.next * 2 } else { self.next / 2 };
        self.next = grown.clamp(WINDOW_MIN, max);
        let want = self.next.max(len) as u64;
        let len = usize::try_from(want.min(size.saturating_sub(offset))).unwrap_or(len);
        if self.bytes.len() < len {
            self.bytes.resize(len.next_power_of_two(), 0);
        }
        (self.start, self.len, self.used) = (offset, 0, 0);
        leaf.read(class, offset, self.bytes.get_mut(..len).unwrap_or(&mut []), true)?;
        self.len = len;
        Ok(())
    }
}

impl LeafSource for WindowSource {
    fn read(&self, leaf: &Leaf, class: IoClass, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let mut windows = self.windows.borrow_mut();
        if windows.len() <= leaf.index() {
            windows.resize_with(leaf.index() + 1, Window::default);
        }
        let Some(window) = windows.get_mut(leaf.index()) else { return leaf.read(class, offset, buf, false) };
        if window.get(offset, buf.len()).is_none() {
            let large = buf.len() >= self.max / 2;
            if large || window.fill(leaf, class, offset, buf.len(), self.max).is_err() {
                return leaf.read(class, offset, buf, false);
            }
        }
        let Some(bytes) = window.get(offset, buf.len()) else { return leaf.read(class, offset, buf, false) };
        buf.copy_from_slice(bytes);
        window.used += buf.len();
        Ok(())
    }
}
