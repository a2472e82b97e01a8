//! gzip-1 … gzip-9: one zlib stream a block.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

thread_local! {
    /// Its window and tables are kept for the thread's next block.
    static INFLATE: RefCell<Decompress> = RefCell::new(Decompress::new(true));
    /// The compressor of the level used last.
    static DEFLATE: RefCell<Option<(u32, Compress)>> = const { RefCell::new(None) };
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

pub(super) fn compress(src: &[u8], level: u32, limit: usize) -> Option<Vec<u8>> {
    DEFLATE.with_borrow_mut(|kept| {
        let z = match kept {
            Some((of, z)) if *of == level => {
                z.reset();
                z
            }
            _ => &mut kept.insert((level, Compress::new(Compression::new(level), true))).1,
        };
        super::in_scratch(limit, |out| match z.compress(src, out, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => usize::try_from(z.total_out()).ok(),
            _ => None,
        })
    })
}
