//! gzip-1 … gzip-9: one zlib stream per block.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

thread_local! {
    /// The decompressor, whose window and tables are reused for the thread's next block.
    static INFLATE: RefCell<Decompress> = RefCell::new(Decompress::new(true));
}

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
    INFLATE.with_borrow_mut(|z| {
        z.reset(true);
        match z.decompress(src, dst, FlushDecompress::Finish) {
            Ok(Status::StreamEnd) if z.total_out() == dst.len() as u64 => Ok(()),
            Ok(Status::StreamEnd) => Err("zlib stream has the wrong size"),
            Ok(_) => Err("zlib stream does not end"),
            Err(_) => Err("not a valid zlib stream"),
        }
    })
}

/// Compresses with a new compressor for each block, because a reset one is not equivalent to a new one: in zlib-rs 0.6.8 `reset_keep`
/// (`zlib-rs/src/deflate.rs`) does not clear `block_open`, from which `deflate_quick` (level 1) derives its block headers. After a stream
/// that ran out of space, the next one would lack its first header and be unreadable.
pub(super) fn compress(src: &[u8], level: u32, limit: usize) -> Option<Vec<u8>> {
    let mut z = Compress::new(Compression::new(level), true);
    super::in_scratch(limit, |out| match z.compress(src, out, FlushCompress::Finish) {
        Ok(Status::StreamEnd) => usize::try_from(z.total_out()).ok(),
        _ => None,
    })
}
