//! zstd: a header (see [`super::zstd_header`]), then a frame without magic number, checksum and content size.

use std::cell::RefCell;

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective};

use super::lz4;
use super::zstd_header::{self, ZstdHeader};

/// OpenZFS's default level.
const DEFAULT: u8 = 3;
/// Blocks of at least this size, at this level and above, are tried with faster compressors first, and are stored uncompressed if these do
/// not shrink them. OpenZFS: `zstd_abort_size`, `zstd_cutoff_level`.
const ABORT_SIZE: usize = 128 << 10;
const CUTOFF_LEVEL: i32 = 3;

thread_local! {
    /// The thread's decompression context: creating one takes 160 KiB.
    static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    /// The thread's compression context: its tables grow with the highest level used.
    static ENCODER: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
}

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
    let header = zstd_header::parse(src).ok_or("no header")?;
    // An undefined level is a sure sign of damage.
    zstd_header::zstd_level(header.level).ok_or("impossible level in the header")?;
    let length = usize::try_from(header.compressed_len).map_err(|_| "impossible length")?;
    let frame = src.get(zstd_header::LEN..).and_then(|s| s.get(..length)).ok_or("length beyond the block")?;
    DECODER.with_borrow_mut(|kept| {
        if kept.is_none() {
            let mut ctx = DCtx::try_create().ok_or("out of memory")?;
            ctx.set_parameter(DParameter::Format(FrameFormat::Magicless)).map_err(|_| "no magicless format")?;
            *kept = Some(ctx);
        }
        let ctx = kept.as_mut().ok_or("out of memory")?;
        match ctx.decompress(dst, frame) {
            Ok(n) if n == dst.len() => Ok(()),
            Ok(_) => Err("zstd frame has the wrong size"),
            Err(code) => Err(zstd_safe::get_error_name(code)),
        }
    })
}

pub(super) fn compress(src: &[u8], level: Option<i16>, limit: usize) -> Option<Vec<u8>> {
    let number = match level {
        None => DEFAULT,
        Some(255) => DEFAULT,
        Some(n) => u8::try_from(n).ok()?,
    };
    let zstd_level = zstd_header::zstd_level(number)?;
    if zstd_level >= CUTOFF_LEVEL && src.len() >= ABORT_SIZE && !looks_compressible(src) && !lz4::fits(src, limit) {
        encode(src, 1, 1, limit)?;
    }
    encode(src, number, zstd_level, limit)
}

/// True if LZ4 shrinks at least one of a few samples. OpenZFS compresses the whole block with LZ4 to learn this, which at level 3 costs a
/// third of the time; here that is done only if no sample shrinks.
fn looks_compressible(src: &[u8]) -> bool {
    const SAMPLE: usize = 2048;
    let step = (src.len() / 8).max(SAMPLE);
    src.chunks(step).any(|c| c.get(..SAMPLE).is_some_and(|c| lz4::fits(c, SAMPLE - SAMPLE / 8)))
}

fn encode(src: &[u8], number: u8, zstd_level: i32, limit: usize) -> Option<Vec<u8>> {
    ENCODER.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Some(CCtx::try_create()?);
        }
        let ctx = kept.as_mut()?;
        ctx.reset(ResetDirective::SessionAndParameters).ok()?;
        for p in [
            CParameter::CompressionLevel(zstd_level),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ChecksumFlag(false),
            CParameter::ContentSizeFlag(false),
        ] {
            ctx.set_parameter(p).ok()?;
        }
        super::in_scratch(limit, |out| {
            let (head, body) = out.split_at_mut_checked(zstd_header::LEN)?;
            let n = ctx.compress2(body, src).ok()?;
            head.copy_from_slice(&zstd_header::encode(ZstdHeader {
                compressed_len: u32::try_from(n).ok()?,
                version: zstd_safe::version_number(),
                level: number,
            }));
            Some(zstd_header::LEN + n)
        })
    })
}
