//! The allocator of the program: mimalloc, and the system for the largest blocks.
//!
//! Each thread of a mount has a buffer of 16 MiB and a page (`fuser`), which is filled with zeros when it is made. Of memory that is new that takes nothing; of
//! memory that another mount had, each page would be in use from then on. So such a block is a mapping of its own, which is new memory, and goes when it is freed.
//! mimalloc can do that as well (`MIMALLOC_ARENA_MAX_OBJECT_SIZE`), but gives each such block an address that none had before, and keeps for each half GiB of addresses
//! a table of 64 KiB: 18 KB for each mount, for good. The system uses addresses again.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;

use mimalloc::MiMalloc;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Blocks with more bytes are mappings of their own: those of the largest records are not.
const SHARED_MAX: usize = 16 << 20;
/// The alignment that each mapping has.
const MAPPED_ALIGN: usize = 4096;

/// mimalloc, and the system for what is larger than the largest record.
pub(crate) struct Allocator;

fn is_mapped(layout: Layout) -> bool {
    layout.size() > SHARED_MAX && layout.align() <= MAPPED_ALIGN
}

/// Maps new memory, which is zeros; null if there is none.
fn map(layout: Layout) -> *mut u8 {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: without `FIXED`, and at no address, it is where nothing else is.
    unsafe { mmap_anonymous(null_mut(), layout.size(), prot, flags) }.map_or(null_mut(), |memory| memory.cast())
}

// SAFETY: A layout alone decides whose a block is, and a block is freed with the layout that it was allocated with: so each goes back to where it came from. Both keep
// the contract of `GlobalAlloc`: a mapping has at least the bytes of its layout, is aligned to a page, and nobody else's until it is unmapped; neither unwinds.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            return map(layout);
        }
        // SAFETY: the caller keeps the contract
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            return map(layout);
        }
        // SAFETY: the caller keeps the contract
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_mapped(layout) {
            // SAFETY: it was mapped with this length, and the caller gives it up. One that the system does not take back stays, unused.
            let _kept = unsafe { munmap(block.cast(), layout.size()) };
        } else {
            // SAFETY: the caller keeps the contract, and it is mimalloc's
            unsafe { MiMalloc.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller says that it does not overflow when it is rounded up to the alignment
        let other = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if !is_mapped(layout) && !is_mapped(other) {
            // SAFETY: the caller keeps the contract, and both are mimalloc's
            return unsafe { MiMalloc.realloc(block, layout, size) };
        }
        // SAFETY: the size is not 0, as the caller says
        let moved = unsafe { self.alloc(other) };
        if !moved.is_null() {
            // SAFETY: both have at least so many bytes, and are different blocks; the caller gives up the old one
            unsafe {
                std::ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::thread;

    use super::SHARED_MAX;

    /// The buffer of a mount's thread.
    const BUFFER: usize = SHARED_MAX + 4096;

    /// Bytes of addresses for which mimalloc has a table.
    const TABLE: usize = 512 << 20;

    #[test]
    fn buffers_of_mounts_that_have_ended_leave_nothing() {
        let address = || {
            let thread = thread::Builder::new().spawn(|| {
                let buffer = vec![0u8; BUFFER];
                buffer.as_ptr() as usize
            });
            thread.unwrap().join().unwrap()
        };
        let tables: BTreeSet<usize> = (0..1600).map(|_| address() / TABLE).collect();
        // 80 of them if each buffer has addresses that none had before; other threads of this process have memory as well
        assert!(tables.len() <= 8, "{tables:?}");
        let mapped = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = mapped.split(' ').next().unwrap().parse().unwrap();
        assert!(pages * 4096 < 800 * BUFFER, "the buffers are still mapped");
    }

    #[test]
    fn buffers_are_new_memory() {
        let resident = || {
            let status = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
            let line = status.lines().find(|line| line.starts_with("Rss:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
        };
        let before = resident();
        let buffers = |byte| (0..32).map(|_| vec![byte; BUFFER]).collect::<Vec<_>>();
        drop(buffers(1u8));
        let again = buffers(0);
        // other tests have some memory, and each may have a huge page
        assert!(resident() < before + again.len() * BUFFER / 4, "what was made of zeros is in memory");
    }

    #[test]
    fn blocks_that_grow_and_shrink_keep_their_bytes() {
        let mut block: Vec<u8> = (0..=255).collect();
        for size in [SHARED_MAX, SHARED_MAX + 1, 3 * SHARED_MAX, SHARED_MAX + 5000, 4096] {
            block.resize(size, 7);
            block.shrink_to_fit();
            assert!(block.iter().take(256).copied().eq(0..=255) && block.last() == Some(&7), "{size}");
        }
    }
}
