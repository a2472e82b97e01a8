//! The data of a file or volume in order, past damage.

use std::io;
use std::ops::Range;

use dmu::Object;
use zpl::{Error, Node, Zvol};

/// Bytes with holes: a file or a volume.
pub trait Contents {
    /// How many bytes, holes included.
    fn size(&self) -> u64;
    /// The object that holds them.
    fn object(&self) -> &Object;
    /// Reads from `offset`; gives the number of bytes, less than asked for only at the end.
    ///
    /// # Errors
    /// When a block cannot be read.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error>;
    /// The next byte of a hole at or behind `offset`: the end at last.
    ///
    /// # Errors
    /// When an indirect block cannot be read.
    fn next_hole(&self, offset: u64) -> Result<u64, Error>;
}

macro_rules! contents {
    ($($of:ty),*) => { $(
        impl Contents for $of {
            fn size(&self) -> u64 {
                self.size()
            }
            fn object(&self) -> &Object {
                self.object()
            }
            fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
                self.read(offset, buf)
            }
            fn next_hole(&self, offset: u64) -> Result<u64, Error> {
                self.next_hole(offset)
            }
        }
    )* };
}
contents!(Node, Zvol);

/// A piece of a file or volume. What lies between pieces is a hole.
#[derive(Debug)]
pub enum Chunk<'a> {
    /// Data.
    Data {
        /// The offset of its first byte.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Data that is lost.
    Lost {
        /// Which bytes.
        range: Range<u64>,
        /// Why.
        why: Error,
    },
}

/// Bytes that are read at a time: many blocks, so that the blocks are read and checked together.
const READ_SIZE: u64 = 4 << 20;

/// Gives all data of a regular file or volume to `sink`, in order. What cannot be read is passed over in the unit that is lost: a block,
/// or all that an unreadable indirect block leads to.
///
/// # Errors
/// What `sink` gives; damage is no error here.
pub fn read_past_damage(from: &dyn Contents, sink: &mut dyn FnMut(Chunk<'_>) -> io::Result<()>) -> io::Result<()> {
    read_past_damage_from(from, 0, sink)
}

/// As [`read_past_damage`], from byte `start` on.
pub(crate) fn read_past_damage_from(
    from: &dyn Contents,
    start: u64,
    sink: &mut dyn FnMut(Chunk<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let (size, block) = (from.size(), from.object().block_size().max(1));
    let mut cursor = from.object().cursor();
    let mut buf = Vec::new();
    let mut at = start;
    while at < size {
        let start = match cursor.next_block(at / block) {
            Ok(Some(found)) => found.saturating_mul(block).max(at),
            Ok(None) => break,
            Err(why) => {
                at = lose(from, at, cursor.damaged(), why.into(), sink)?;
                continue;
            }
        };
        if start >= size {
            break;
        }
        // if the end of the stretch cannot be told, the next piece is one, with its holes
        let piece = || start.saturating_add(READ_SIZE.max(block));
        let end = from.next_hole(start).unwrap_or_else(|_| piece()).clamp(start.saturating_add(1), size);
        at = read_stretch(from, start..end, &mut buf, sink)?;
    }
    Ok(())
}

/// Reads a stretch of data; gives where the next one may begin.
fn read_stretch(
    from: &dyn Contents,
    stretch: Range<u64>,
    buf: &mut Vec<u8>,
    sink: &mut dyn FnMut(Chunk<'_>) -> io::Result<()>,
) -> io::Result<u64> {
    let block = from.object().block_size().max(1);
    let mut at = stretch.start;
    // where a large read failed, its blocks are read one by one
    let mut careful_until = 0;
    while at < stretch.end {
        let step = if at < careful_until { block } else { READ_SIZE.max(block) };
        // chunks end at the boundaries of blocks
        let end = ((at / block + step.div_ceil(block)) * block).min(stretch.end);
        buf.resize((end - at) as usize, 0);
        match from.read(at, buf) {
            Ok(n) => {
                sink(Chunk::Data { offset: at, bytes: buf.get(..n).unwrap_or(&[]) })?;
                at = end;
            }
            Err(_) if end - at > block => careful_until = end,
            Err(why) => at = lose(from, at, from.object().cursor().unreachable(at / block), why, sink)?,
        }
    }
    Ok(at)
}

/// Reports the loss of `blocks` from byte `at` on; gives where reading goes on.
fn lose(
    from: &dyn Contents,
    at: u64,
    blocks: Range<u64>,
    why: Error,
    sink: &mut dyn FnMut(Chunk<'_>) -> io::Result<()>,
) -> io::Result<u64> {
    let (block, size) = (from.object().block_size().max(1), from.size());
    let start = blocks.start.saturating_mul(block).max(at);
    let end = blocks.end.saturating_mul(block).min(size).max(at.saturating_add(1));
    if start < end {
        sink(Chunk::Lost { range: start..end, why })?;
    }
    Ok(end)
}
