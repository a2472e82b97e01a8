//! An export in memory: the simplest one, for tests of the protocol and of its clients.

use std::sync::atomic::{AtomicU64, Ordering};

use base::Errno;
use parking_lot::RwLock;

use crate::{Export, Extent, Failed, Stopped, Zero};

/// The size of a block, which is a hole or data as a whole.
const BLOCK: usize = 4 << 10;

/// An export in memory.
#[derive(Debug)]
pub struct Memory {
    /// Blocks; `None` is a hole.
    blocks: RwLock<Vec<Option<Box<[u8; BLOCK]>>>>,
    size: u64,
    read_only: bool,
    flushes: AtomicU64,
}

impl Memory {
    /// An export of that many bytes, which are a hole.
    #[must_use]
    pub fn new(size: u64) -> Memory {
        let blocks = usize::try_from(size).unwrap_or(usize::MAX).div_ceil(BLOCK);
        let blocks = RwLock::new((0..blocks).map(|_| None).collect());
        Memory { blocks, size, read_only: false, flushes: AtomicU64::new(0) }
    }

    /// The same for reading only.
    #[must_use]
    pub fn read_only(self) -> Memory {
        Memory { read_only: true, ..self }
    }

    /// Returns how often it was flushed, by itself or with a durable write.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Calls `with` for the part of each block in a range: its number, and the bytes within the range and the block.
    fn each(offset: u64, len: usize, mut with: impl FnMut(usize, std::ops::Range<usize>, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let at = usize::try_from(offset).unwrap_or(usize::MAX).saturating_add(done);
            let within = at % BLOCK;
            let now = (BLOCK - within).min(len - done);
            with(at / BLOCK, done..done + now, within..within + now);
            done += now;
        }
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), Failed> {
        match offset.checked_add(len).is_some_and(|end| end <= self.size) {
            true => Ok(()),
            false => Err(Failed { errno: Errno::ENXIO, why: "beyond the end".to_owned() }),
        }
    }

    fn settle(&self, durable: bool) {
        self.flushes.fetch_add(durable.into(), Ordering::Relaxed);
    }
}

impl Export for Memory {
    fn size(&self) -> u64 {
        self.size
    }

    fn block_size(&self) -> u64 {
        BLOCK as u64
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Failed> {
        self.check(offset, buf.len() as u64)?;
        let blocks = self.blocks.read();
        Memory::each(offset, buf.len(), |block, of_range, of_block| {
            let into = buf.get_mut(of_range).unwrap_or_default();
            match blocks.get(block).and_then(Option::as_ref).and_then(|block| block.get(of_block)) {
                Some(data) => into.copy_from_slice(data),
                None => into.fill(0),
            }
        });
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), Failed> {
        self.check(offset, data.len() as u64)?;
        let mut blocks = self.blocks.write();
        Memory::each(offset, data.len(), |block, of_range, of_block| {
            let Some(block) = blocks.get_mut(block) else { return };
            let block = block.get_or_insert_with(|| Box::new([0; BLOCK]));
            if let (Some(into), Some(from)) = (block.get_mut(of_block), data.get(of_range)) {
                into.copy_from_slice(from);
            }
        });
        self.settle(durable);
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64, how: Zero, durable: bool, _stopped: Stopped<'_>) -> Result<(), Failed> {
        self.check(offset, len)?;
        if how.fast && !how.hole {
            return Err(Failed { errno: Errno::ENOTSUP, why: "zeros are written as data".to_owned() });
        }
        let mut blocks = self.blocks.write();
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Memory::each(offset, len, |block, _, of_block| {
            let Some(block) = blocks.get_mut(block) else { return };
            if how.hole && of_block.len() == BLOCK {
                *block = None;
            } else if !how.hole || block.is_some() {
                let block = block.get_or_insert_with(|| Box::new([0; BLOCK]));
                block.get_mut(of_block).unwrap_or_default().fill(0);
            }
        });
        self.settle(durable);
        Ok(())
    }

    fn trim(&self, offset: u64, len: u64, durable: bool, stopped: Stopped<'_>) -> Result<(), Failed> {
        self.zero(offset, len, Zero { hole: true, fast: false }, durable, stopped)
    }

    fn flush(&self) -> Result<(), Failed> {
        self.settle(true);
        Ok(())
    }

    fn extents(&self, offset: u64, len: u64, max: usize, _stopped: Stopped<'_>) -> Result<Vec<Extent>, Failed> {
        self.check(offset, len)?;
        let blocks = self.blocks.read();
        let mut extents: Vec<Extent> = Vec::new();
        let mut is_full = false;
        Memory::each(offset, usize::try_from(len).unwrap_or(usize::MAX), |block, of_range, _| {
            let is_hole = blocks.get(block).is_none_or(Option::is_none);
            let count = extents.len();
            match extents.last_mut() {
                _ if is_full => {}
                Some(last) if last.is_hole == is_hole => last.len += of_range.len() as u64,
                _ if count == max => is_full = true,
                _ => extents.push(Extent { len: of_range.len() as u64, is_hole }),
            }
        });
        Ok(extents)
    }

    fn cache(&self, offset: u64, len: u64, _stopped: Stopped<'_>) -> Result<(), Failed> {
        self.check(offset, len)
    }
}
