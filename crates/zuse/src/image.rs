//! Images that are written to a volume, from its first byte on. The volume behind the end of the image stays as it is, and holes become holes.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use zpl::live::Volume;

use crate::host::Rest;
use crate::salvage::{Chunk, Contents, read_past_damage};

/// Bytes that are moved at a time: whole blocks of any volume.
const PIECE: usize = 4 << 20;

/// The reason why an image is not written, or not all of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The volume is smaller than the image; of an image whose length is not known, the part that has room is written.
    #[error("the volume has {size} bytes, which is too few")]
    TooSmall {
        /// Its size.
        size: u64,
    },
    /// The volume cannot be written.
    #[error(transparent)]
    Volume(zpl::Error),
    /// The image cannot be read.
    #[error(transparent)]
    Source(io::Error),
    /// The image is shorter than it was at the beginning.
    #[error("it has become shorter while it was read: no data at byte {at}")]
    Shrunk {
        /// The first byte that is missing.
        at: u64,
    },
}

/// Writes images to a volume.
pub struct ImageIn<'a> {
    volume: &'a Volume,
    moved: &'a dyn Fn(u64),
}

impl<'a> ImageIn<'a> {
    /// Images for `volume`; `moved` is called with the number of bytes of each piece.
    pub fn new(volume: &'a Volume, moved: &'a dyn Fn(u64)) -> ImageIn<'a> {
        ImageIn { volume, moved }
    }

    /// Checks that the volume has room for an image of `len` bytes.
    ///
    /// # Errors
    /// [`ImageError::TooSmall`].
    pub fn check(&self, len: u64) -> Result<(), ImageError> {
        match self.volume.size() {
            size if len > size => Err(ImageError::TooSmall { size }),
            _ => Ok(()),
        }
    }

    /// Writes an open file of the host, from its position on; one that is no regular file is read to its end. Returns the number of bytes that are
    /// not in holes.
    ///
    /// # Errors
    /// [`ImageError`]; what was written before stays.
    pub fn file(&self, file: &File) -> Result<u64, ImageError> {
        let Some(rest) = Rest::of(file) else { return self.stream(file) };
        self.check(rest.len)?;
        let (mut at, mut bytes) = (0, 0);
        for &(start, end) in &rest.data {
            self.clear(at..start)?;
            at = self.fill(start..end, |at, buf| file.read_at(buf, rest.start + at))?;
            bytes += at - start;
            if at < end {
                return Err(ImageError::Shrunk { at: rest.start + at });
            }
        }
        self.clear(at..rest.len)?;
        Ok(bytes)
    }

    /// Writes what `input` gives, from the beginning on. Returns the number of bytes.
    ///
    /// # Errors
    /// [`ImageError`]; what was written before stays.
    pub fn stream(&self, mut input: impl Read) -> Result<u64, ImageError> {
        self.fill(0..u64::MAX, |_, buf| input.read(buf))
    }

    /// Writes a file or volume of a pool. Ranges that are lost become holes, and are passed to `lost` with the reason. Returns the number of bytes that
    /// are not in holes.
    ///
    /// # Errors
    /// [`ImageError`]; what was written before stays.
    pub fn contents(&self, from: &dyn Contents, mut lost: impl FnMut(&str)) -> Result<u64, ImageError> {
        let (mut at, mut bytes) = (0, 0);
        let mut failure = None;
        let copied = read_past_damage(from, &mut |chunk| {
            let (offset, data) = match chunk {
                Chunk::Data { offset, bytes } => (offset, bytes),
                Chunk::Lost { range, why } => {
                    lost(&format!("bytes {}-{}: {why}", range.start, range.end - 1));
                    return Ok(());
                }
            };
            let written = self.clear(at..offset).and_then(|()| self.write(offset, data));
            at = offset + data.len() as u64;
            bytes += data.len() as u64;
            written.map_err(|e| {
                failure = Some(e);
                io::Error::other("the copy ends")
            })
        });
        match failure {
            Some(failure) => return Err(failure),
            None => copied.map_err(ImageError::Source)?,
        }
        self.clear(at..from.size())?;
        Ok(bytes)
    }

    /// Writes what `read` returns for each offset of `range`, until it returns nothing. Returns the offset at which it ended.
    fn fill(
        &self,
        range: Range<u64>,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
    ) -> Result<u64, ImageError> {
        let (mut at, mut buf) = (range.start, vec![0; PIECE]);
        loop {
            let want = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(PIECE);
            let mut len = 0;
            while let Some(rest) = buf.get_mut(len..want).filter(|rest| !rest.is_empty()) {
                match read(at + len as u64, rest) {
                    Ok(0) => break,
                    Ok(n) => len += n.min(rest.len()),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(ImageError::Source(e)),
                }
            }
            let data = buf.get(..len).unwrap_or_default();
            if data.is_empty() {
                return Ok(at);
            }
            self.check(at + len as u64)?;
            self.write(at, data)?;
            at += len as u64;
        }
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), ImageError> {
        self.volume.write(at, data).map_err(ImageError::Volume)?;
        (self.moved)(data.len() as u64);
        Ok(())
    }

    /// Makes a hole where the image has one.
    fn clear(&self, hole: Range<u64>) -> Result<(), ImageError> {
        if hole.is_empty() {
            return Ok(());
        }
        self.volume.discard(hole.start, hole.end - hole.start).map_err(ImageError::Volume)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;
    use crate::Pool;

    #[test]
    fn an_image_is_written_with_its_holes_and_the_rest_of_the_volume_stays() {
        let pool = Pool::in_memory("tank", 128 << 20).unwrap();
        pool.create_volume("tank/v", 8 << 20, &[]).unwrap();
        let volume = Volume::open(pool.spa().unwrap(), "tank/v").unwrap();
        volume.write(0, &vec![1; 8 << 20]).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(6 << 20).unwrap();
        file.seek(SeekFrom::Start(4 << 20)).unwrap();
        file.write_all(&[2; 1 << 20]).unwrap();
        file.rewind().unwrap();
        let moved = std::cell::Cell::new(0);
        let count = |n| moved.set(moved.get() + n);
        let image = ImageIn::new(&volume, &count);
        assert_eq!((image.file(&file).unwrap(), moved.get()), (1 << 20, 1 << 20));
        let mut all = vec![0; 8 << 20];
        volume.read(0, &mut all).unwrap();
        let is = |mib: std::ops::Range<usize>, byte: u8| all[mib.start << 20..mib.end << 20].iter().all(|b| *b == byte);
        assert!(is(0..4, 0) && is(4..5, 2) && is(5..6, 0) && is(6..8, 1));
        assert!(matches!(image.check(9 << 20), Err(ImageError::TooSmall { size }) if size == 8 << 20));
    }
}
