//! LZ4: the length of the compressed bytes as a big-endian u32, then one LZ4 block.

use std::cell::RefCell;

use lz4_flex::block::{self, CompressTable};

/// The largest common sector size.
const SECTOR: usize = 4096;
/// Blocks up to this length use hashes of half the size.
const SMALL_MAX: usize = u16::MAX as usize - 1;

/// A thread's compression state, allocated once and not per block.
struct Scratch {
    /// The buffer that a block is compressed into before it is known to fit.
    out: Vec<u8>,
    small: Option<CompressTable>,
    large: Option<CompressTable>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { out: Vec::new(), small: None, large: None }) };
}

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
    let (head, body) = src.split_first_chunk::<4>().ok_or("no length")?;
    let length = usize::try_from(u32::from_be_bytes(*head)).map_err(|_| "impossible length")?;
    let body = body.get(..length).ok_or("length beyond the block")?;
    match block::decompress_into(body, dst) {
        Ok(n) if n == dst.len() => Ok(()),
        Ok(_) => Err("LZ4 block has the wrong size"),
        Err(_) => Err("not a valid LZ4 block"),
    }
}

pub(super) fn compress(src: &[u8], limit: usize) -> Option<Vec<u8>> {
    with_compressed(src, limit, |body| {
        // the caller pads it to whole sectors: that must not reallocate it
        let mut out = Vec::with_capacity((body.len() + 4).next_multiple_of(SECTOR));
        out.extend(u32::try_from(body.len()).ok()?.to_be_bytes());
        out.extend(body);
        Some(out)
    })
}

/// True if `src` compresses to at most `limit` bytes, including the length word.
pub(super) fn fits(src: &[u8], limit: usize) -> bool {
    with_compressed(src, limit, |_| Some(())).is_some()
}

/// Passes the compressed block to `then` if it fits.
fn with_compressed<T>(src: &[u8], limit: usize, then: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    SCRATCH.with_borrow_mut(|scratch| {
        let most = block::get_maximum_output_size(src.len());
        let Scratch { out, small, large } = scratch;
        if out.len() < most {
            out.resize(most, 0);
        }
        let table = if src.len() <= SMALL_MAX {
            small.get_or_insert_with(CompressTable::small)
        } else {
            large.get_or_insert_with(CompressTable::large)
        };
        let n = block::compress_into_with_table(src, out, table).ok()?;
        if n + 4 > limit {
            return None;
        }
        then(out.get(..n)?)
    })
}
