//! gzip-1 … gzip-9: one zlib stream a block.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

thread_local! {
    /// Its window and tables are kept for the thread's next block.
    static INFLATE: RefCell<Decompress> = RefCell::new(Decompress::new(true));
}

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
    INFLATE.with_borrow_mut(|z| {
        z.reset(true);
        match z.decompress(src, dst, FlushDecompress::Finish) {
            Ok(Status::StreamEnd) if z.total_out() == dst.len() as u64 => Ok(()),
            Ok(Status::StreamEnd) => Err("zlib stream of another size"),
            Ok(_) => Err("zlib stream does not end"),
            Err(_) => Err("not a valid zlib stream"),
        }
    })
}

/// Compresses with a compressor of its own for each block. One that is reset is not as good as new: in zlib-rs 0.6.8 `reset_keep`
/// (`zlib-rs/src/deflate.rs`) leaves `block_open`, of which `deflate_quick` (level 1) makes its block headers. After a stream that found no room, the
/// next one would begin without one, and nobody could read it.
pub(super) fn compress(src: &[u8], level: u32, limit: usize) -> Option<Vec<u8>> {
    let mut z = Compress::new(Compression::new(level), true);
    super::in_scratch(limit, |out| match z.compress(src, out, FlushCompress::Finish) {
        Ok(Status::StreamEnd) => usize::try_from(z.total_out()).ok(),
        _ => None,
    })
}
