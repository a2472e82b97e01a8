//! Compressors of blocks: the table of kinds, and the two directions.

mod gzip;
mod lz4;
mod lzjb;
mod zle;
mod zstd;
pub mod zstd_header;

use std::cell::RefCell;

use crate::Error;

/// A compressor, with its number in a block pointer. OpenZFS: `enum zio_compress`.
///
/// `inherit` (0) and `on` (1) are property values and never occur in a block pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compress {
    /// No compression.
    Off = 2,
    /// LZJB, the old default.
    Lzjb = 3,
    /// A block of zeros, for which nothing is stored.
    Empty = 4,
    /// zlib, level 1.
    Gzip1 = 5,
    /// zlib, level 2.
    Gzip2 = 6,
    /// zlib, level 3.
    Gzip3 = 7,
    /// zlib, level 4.
    Gzip4 = 8,
    /// zlib, level 5.
    Gzip5 = 9,
    /// zlib, level 6.
    Gzip6 = 10,
    /// zlib, level 7.
    Gzip7 = 11,
    /// zlib, level 8.
    Gzip8 = 12,
    /// zlib, level 9.
    Gzip9 = 13,
    /// Runs of zeros only.
    Zle = 14,
    /// LZ4: the default.
    Lz4 = 15,
    /// Zstandard, at a level recorded in the block's header.
    Zstd = 16,
}

impl Compress {
    /// Every kind, in the order of its number.
    pub const ALL: [Compress; 15] = [
        Compress::Off,
        Compress::Lzjb,
        Compress::Empty,
        Compress::Gzip1,
        Compress::Gzip2,
        Compress::Gzip3,
        Compress::Gzip4,
        Compress::Gzip5,
        Compress::Gzip6,
        Compress::Gzip7,
        Compress::Gzip8,
        Compress::Gzip9,
        Compress::Zle,
        Compress::Lz4,
        Compress::Zstd,
    ];

    /// The kind with this number in a block pointer, or `None` if no block can have it.
    #[must_use]
    pub fn from_u8(n: u8) -> Option<Compress> {
        Self::ALL.get(usize::from(n).checked_sub(2)?).copied()
    }

    /// Its name as a property value and in `zdb`. OpenZFS: `ci_name`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Compress::Off => "uncompressed",
            Compress::Lzjb => "lzjb",
            Compress::Empty => "empty",
            Compress::Gzip1 => "gzip-1",
            Compress::Gzip2 => "gzip-2",
            Compress::Gzip3 => "gzip-3",
            Compress::Gzip4 => "gzip-4",
            Compress::Gzip5 => "gzip-5",
            Compress::Gzip6 => "gzip-6",
            Compress::Gzip7 => "gzip-7",
            Compress::Gzip8 => "gzip-8",
            Compress::Gzip9 => "gzip-9",
            Compress::Zle => "zle",
            Compress::Lz4 => "lz4",
            Compress::Zstd => "zstd",
        }
    }

    /// The zlib level of a gzip kind.
    fn gzip_level(self) -> Option<u32> {
        let n = self as u8;
        (Compress::Gzip1 as u8..=Compress::Gzip9 as u8).contains(&n).then(|| u32::from(n - Compress::Gzip1 as u8 + 1))
    }
}

/// Decompresses the block `src`, as stored on disk (including the zero padding at its end), into `dst`, whose length is the block's logical
/// size. OpenZFS: `zio_decompress_data`.
///
/// # Errors
/// [`Error::Decompress`] if `src` is damaged or does not expand to exactly `dst.len()` bytes; the contents of `dst` are then undefined.
pub fn decompress(kind: Compress, src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
    let done = match kind {
        Compress::Off => match src.get(..dst.len()) {
            Some(src) => {
                dst.copy_from_slice(src);
                Ok(())
            }
            None => Err("too short"),
        },
        Compress::Lzjb => lzjb::decompress(src, dst),
        Compress::Empty => {
            dst.fill(0);
            Ok(())
        }
        Compress::Zle => zle::decompress(src, dst),
        Compress::Lz4 => lz4::decompress(src, dst),
        Compress::Zstd => zstd::decompress(src, dst),
        _ => gzip::decompress(src, dst),
    };
    done.map_err(|why| Error::Decompress { kind, src: src.len(), dst: dst.len(), why })
}

/// Compresses the block `src` into at most `limit` bytes; `None` if it does not fit, or if this compressor has no level `level`. The caller
/// pads to a sector. OpenZFS: `zio_compress_data`.
///
/// `level` is for zstd only, in OpenZFS's numbers (1–19, 103… for the fast ones, see [`zstd_header`]); `None` is its default.
/// [`Compress::Off`] gives `None`; [`Compress::Empty`] gives no bytes if the block is all zeros.
#[must_use]
pub fn compress(kind: Compress, level: Option<i16>, src: &[u8], limit: usize) -> Option<Vec<u8>> {
    match kind {
        Compress::Off => None,
        Compress::Empty => is_zero(src).then(Vec::new),
        Compress::Lzjb => lzjb::compress(src, limit),
        Compress::Zle => zle::compress(src, limit),
        Compress::Lz4 => lz4::compress(src, limit),
        Compress::Zstd => zstd::compress(src, level, limit),
        _ => gzip::compress(src, kind.gzip_level()?, limit),
    }
}

/// Runs `pack` on a buffer of `limit` bytes that the thread keeps, and returns the bytes that it wrote (`pack` returns their number) in a
/// vector of exactly that size: the compressed block is kept for a while and should not hold the memory of the worst case.
fn in_scratch(limit: usize, pack: impl FnOnce(&mut [u8]) -> Option<usize>) -> Option<Vec<u8>> {
    /// A buffer larger than this is not kept.
    const KEEP: usize = 2 << 20;
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < limit {
            scratch.resize(limit, 0);
        }
        let packed = scratch.get_mut(..limit).and_then(pack).and_then(|n| scratch.get(..n).map(<[u8]>::to_vec));
        if scratch.len() > KEEP {
            *scratch = Vec::new();
        }
        packed
    })
}

fn is_zero(src: &[u8]) -> bool {
    src.chunks(64).all(|c| c.iter().fold(0, |a, b| a | b) == 0)
}

#[cfg(test)]
mod tests;
