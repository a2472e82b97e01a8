//! LZ4: the length of the compressed bytes as a big-endian u32, then one LZ4 block.

use std::cell::RefCell;

use lz4_flex::block;

thread_local! {
    /// Where a block is compressed before it is known to fit.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
    let (head, body) = src.split_first_chunk::<4>().ok_or("no length")?;
    let length = usize::try_from(u32::from_be_bytes(*head)).map_err(|_| "impossible length")?;
    let body = body.get(..length).ok_or("length beyond the block")?;
    match block::decompress_into(body, dst) {
        Ok(n) if n == dst.len() => Ok(()),
        Ok(_) => Err("LZ4 block of another size"),
        Err(_) => Err("not a valid LZ4 block"),
    }
}

pub(super) fn compress(src: &[u8], limit: usize) -> Option<Vec<u8>> {
    with_compressed(src, limit, |body| {
        let mut out = Vec::with_capacity(body.len() + 4);
        out.extend(u32::try_from(body.len()).ok()?.to_be_bytes());
        out.extend(body);
        Some(out)
    })
}

/// Whether `src` compresses to at most `limit` bytes, the length word counted.
pub(super) fn fits(src: &[u8], limit: usize) -> bool {
    with_compressed(src, limit, |_| Some(())).is_some()
}

/// Hands the compressed block to `then` if it fits.
fn with_compressed<T>(src: &[u8], limit: usize, then: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    SCRATCH.with_borrow_mut(|scratch| {
        let most = block::get_maximum_output_size(src.len());
        if scratch.len() < most {
            scratch.resize(most, 0);
        }
        let n = block::compress_into(src, scratch).ok()?;
        if n + 4 > limit {
            return None;
        }
        then(scratch.get(..n)?)
    })
}
