//! The calls of the system that the compiler cannot check: all the `unsafe` of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

/// Tells the system that the bytes of a range are of no use any more.
pub(super) fn discard(file: &File, is_block: bool, offset: u64, len: u64) -> io::Result<()> {
    if is_block {
        return discard_block(file, [offset, len]);
    }
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, offset, len)?)
}

#[cfg(target_os = "linux")]
fn discard_block(file: &File, range: [u64; 2]) -> io::Result<()> {
    use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
    /// Linux's `BLKDISCARD`.
    const BLKDISCARD: Opcode = opcode::none(0x12, 119);
    // SAFETY: BLKDISCARD reads two 64-bit numbers, offset and length, from where its argument points, and keeps nothing; other descriptors than
    // those of block devices refuse it.
    unsafe { Ok(ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new(range))?) }
}

#[cfg(not(target_os = "linux"))]
fn discard_block(_: &File, _: [u64; 2]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
