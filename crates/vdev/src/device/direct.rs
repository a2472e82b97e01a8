//! A descriptor past the system's page cache (`O_DIRECT`).
//!
//! The system asks for offsets, lengths and addresses that are multiples of what the device has for a block, here the *unit*. What a caller has is
//! rarely so: it goes through a [`Buffer`], which costs a copy, a small part of what the page cache costs.
//!
//! # A write that does not fill its units
//! The units at its ends are read, changed and written again, under a lock: two writes that share a unit come one after the other. Who writes a
//! whole unit shares it with nobody but who writes the same bytes.
//!
//! # The end of a file
//! A file may end within a page. That page is written through the cache alone, and brought to the file at once, so that the cache never holds a dirty
//! page beside which something is written past it. Pools do not use the end of such a file.
//!
//! # Others
//! A read past the cache gives what was written through it, by any process, as the system writes its pages back first; a write past it drops
//! what the cache has of the range. So processes with and without this see the same bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;

use super::buffer::{ALIGN, Buffer};

/// Bytes that are read or written at a time where they have to be copied: they fit the cache of a core.
const CHUNK: usize = 1 << 20;

/// A file or block device, open past the page cache.
#[derive(Debug)]
pub struct Direct {
    file: File,
    /// The unit of offsets and lengths.
    unit: u64,
    /// The unit of addresses of memory.
    memory: usize,
    /// Held by those who write a part of a unit.
    edge: Mutex<()>,
}

impl Direct {
    /// Opens past the cache what `plain` is; none where the system refuses. A block device that is written is had alone.
    pub(super) fn open(plain: &File, path: &Path, writable: bool, is_block: bool) -> Option<Direct> {
        let alone = if is_block && writable { OFlags::EXCL } else { OFlags::empty() };
        let flags = OFlags::DIRECT | OFlags::NONBLOCK | alone;
        let flags = i32::try_from(flags.bits()).ok()?;
        let file = OpenOptions::new().read(true).write(writable).custom_flags(flags).open(path).ok()?;
        // the name may lead elsewhere by now
        let (ours, this) = (plain.metadata().ok()?, file.metadata().ok()?);
        if (ours.dev(), ours.ino(), ours.rdev()) != (this.dev(), this.ino(), this.rdev()) || is_in_memory(&file) {
            return None;
        }
        let (unit, memory) = units(&file)?;
        Some(Direct { file, unit, memory, edge: Mutex::new(()) })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Whether a range of a device of `size` bytes can be read and written as it is, given memory that is aligned.
    pub(super) fn is_whole(&self, size: u64, offset: u64, len: usize) -> bool {
        offset.is_multiple_of(self.unit)
            && (len as u64).is_multiple_of(self.unit)
            && offset + len as u64 <= self.cut(size)
    }

    /// The start of the page that the end of the file is in; what is behind goes through the cache.
    fn cut(&self, size: u64) -> u64 {
        let page = self.unit.max(ALIGN as u64);
        size - size % page
    }

    /// Fills `buf`, within the file.
    pub(super) fn read(&self, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        let is_aligned = buf.as_ptr().align_offset(self.memory) == 0;
        if is_aligned && offset.is_multiple_of(self.unit) && (buf.len() as u64).is_multiple_of(self.unit) {
            return self.file.read_exact_at(buf, offset);
        }
        while !buf.is_empty() {
            let (part, rest) = buf.split_at_mut(buf.len().min(CHUNK));
            let start = offset - offset % self.unit;
            let skip = (offset - start) as usize;
            let mut whole = Buffer::take((skip + part.len()).next_multiple_of(self.unit as usize));
            self.fill(start, &mut whole, skip + part.len())?;
            part.copy_from_slice(whole.get(skip..skip + part.len()).unwrap_or(&[]));
            offset += part.len() as u64;
            buf = rest;
        }
        Ok(())
    }

    /// Reads whole units from `start` on: at least `least` bytes, as the file may end.
    fn fill(&self, start: u64, whole: &mut [u8], least: usize) -> io::Result<()> {
        let mut done = 0;
        loop {
            let rest = whole.get_mut(done..).unwrap_or(&mut []);
            match self.file.read_at(rest, start + done as u64) {
                Ok(got) if done + got >= least => return Ok(()),
                // the file ends here; the rest of a unit cannot be asked for
                Ok(got) if got < self.unit as usize => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => done += got - got % self.unit as usize,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes the pieces of `data`, one behind the other, to a device of `size` bytes; `through`: to stable storage.
    pub(super) fn write(
        &self,
        plain: &File,
        size: u64,
        mut offset: u64,
        data: &[IoSlice<'_>],
        through: bool,
    ) -> io::Result<()> {
        let mut pieces = Pieces { data, at: 0 };
        let cut = self.cut(size);
        loop {
            let left = pieces.left();
            if left == 0 {
                return Ok(());
            }
            let to_cut = usize::try_from(cut.saturating_sub(offset)).unwrap_or(usize::MAX);
            if to_cut == 0 {
                return self.write_end(plain, offset, &mut pieces, left);
            }
            // the last chunk is as short as it is, the others end with a unit
            let misfit = (offset % self.unit) as usize;
            let len = left.min(to_cut).min(CHUNK - misfit);
            self.write_chunk(offset, len, &mut pieces, through)?;
            offset += len as u64;
        }
    }

    fn write_chunk(&self, offset: u64, len: usize, pieces: &mut Pieces<'_>, through: bool) -> io::Result<()> {
        let unit = self.unit as usize;
        let start = offset - offset % self.unit;
        let skip = (offset - start) as usize;
        let mut whole = Buffer::take((skip + len).next_multiple_of(unit));
        let partial = skip != 0 || whole.len() != len;
        let _alone = partial.then(|| self.edge.lock().unwrap_or_else(PoisonError::into_inner));
        if partial {
            let last = whole.len() - unit;
            let ends: &[usize] = if last == 0 { &[0] } else { &[0, last] };
            for at in ends {
                let edge = whole.get_mut(*at..*at + unit).unwrap_or(&mut []);
                self.fill(start + *at as u64, edge, unit)?;
            }
        }
        pieces.copy(whole.get_mut(skip..skip + len).unwrap_or(&mut []));
        if through { write_through(&self.file, start, &whole) } else { self.file.write_all_at(&whole, start) }
    }

    /// Writes what is behind the last whole page.
    fn write_end(&self, plain: &File, offset: u64, pieces: &mut Pieces<'_>, len: usize) -> io::Result<()> {
        let _alone = self.edge.lock().unwrap_or_else(PoisonError::into_inner);
        let mut end = vec![0; len];
        pieces.copy(&mut end);
        plain.write_all_at(&end, offset)?;
        plain.sync_data()
    }
}

/// Writes to stable storage, without a flush of all that others have written.
pub(super) fn write_through(file: &File, offset: u64, data: &[u8]) -> io::Result<()> {
    use rustix::io::{Errno, ReadWriteFlags, pwritev2};
    match pwritev2(file, &[IoSlice::new(data)], offset, ReadWriteFlags::DSYNC) {
        Ok(done) if done == data.len() => Ok(()),
        Ok(_) | Err(Errno::INTR | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            file.write_all_at(data, offset)?;
            file.sync_data()
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a file system has its files in memory anyway, so that only the cache is there to be read and written.
fn is_in_memory(file: &File) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|fs| [TMPFS, RAMFS].contains(&fs.f_type))
}

/// The units of offsets and addresses: those that the system names, or else those that it takes.
fn units(file: &File) -> Option<(u64, usize)> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let is_usable = |unit: u64| unit.is_power_of_two() && unit <= ALIGN as u64;
    let known = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    if let Some(known) = known.filter(|known| known.stx_mask & StatxFlags::DIOALIGN.bits() != 0) {
        let (unit, memory) = (u64::from(known.stx_dio_offset_align), known.stx_dio_mem_align);
        return (is_usable(unit) && is_usable(u64::from(memory))).then_some((unit.max(512), memory as usize));
    }
    let mut buffer = Buffer::take(ALIGN);
    let takes = |unit: &u64| {
        let piece = buffer.get_mut(..*unit as usize).unwrap_or(&mut []);
        file.read_at(piece, *unit).is_ok()
    };
    [512, ALIGN as u64].into_iter().find(takes).map(|unit| (unit, ALIGN))
}

/// Pieces that are copied one behind the other.
struct Pieces<'a> {
    data: &'a [IoSlice<'a>],
    /// Bytes of the first one that are done.
    at: usize,
}

impl Pieces<'_> {
    fn left(&self) -> usize {
        self.data.iter().map(|piece| piece.len()).sum::<usize>() - self.at
    }

    /// Fills `to`.
    fn copy(&mut self, mut to: &mut [u8]) {
        while let Some((piece, rest)) = self.data.split_first()
            && !to.is_empty()
        {
            let from = piece.get(self.at..).unwrap_or(&[]);
            let len = from.len().min(to.len());
            let (now, later) = to.split_at_mut(len);
            now.copy_from_slice(from.get(..len).unwrap_or(&[]));
            to = later;
            self.at += len;
            if self.at == piece.len() {
                (self.data, self.at) = (rest, 0);
            }
        }
    }
}
