//! The calls of the system that the compiler cannot check: all the `unsafe` of this crate.
//!
//! # A ring
//! A [`Ring`] is a queue of reads and writes that the kernel makes while the caller goes on (Linux: `io_uring`). The kernel has the address of a
//! buffer from [`Ring::push`] until it says that the operation is done. So the ring owns buffer and descriptor for that time, whatever
//! becomes of its caller: it gives the buffer back with the outcome, and waits for all that is under way before it goes. If even that
//! fails, memory that the kernel may still write is never freed.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

pub(super) use ring::{Ended, Ring};

/// Whether this process may have rings.
pub(super) fn has_rings() -> bool {
    Ring::is_allowed()
}

/// Tells the system that the bytes of a range are of no use any more.
pub(super) fn discard(file: &File, is_block: bool, offset: u64, len: u64) -> io::Result<()> {
    if is_block {
        return discard_block(file, [offset, len]);
    }
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, offset, len)?)
}

fn discard_block(file: &File, range: [u64; 2]) -> io::Result<()> {
    use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
    /// Linux's `BLKDISCARD`.
    const BLKDISCARD: Opcode = opcode::none(0x12, 119);
    // SAFETY: BLKDISCARD reads two 64-bit numbers, offset and length, from where its argument points, and keeps nothing; other descriptors than
    // those of block devices refuse it.
    unsafe { Ok(ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new(range))?) }
}

/// Linux's `BLKSECDISCARD`.
const BLKSECDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 125);

/// As [`discard`] of a block device, so that nobody can get at the bytes any more.
pub(super) fn discard_securely(file: &File, range: [u64; 2]) -> io::Result<()> {
    use rustix::ioctl::{Setter, ioctl};
    // SAFETY: BLKSECDISCARD reads two 64-bit numbers, offset and length, from where its argument points, and keeps nothing; other descriptors than
    // those of block devices refuse it.
    unsafe { Ok(ioctl(file, Setter::<BLKSECDISCARD, [u64; 2]>::new(range))?) }
}

/// Whether a block device that is open for writing has secure discards.
pub(super) fn has_secure_discard(file: &File) -> bool {
    // a range that is no whole sectors is refused by those that have them, for this reason; by the others before it is looked at
    discard_securely(file, [1, 1])
        .is_err_and(|error| error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()))
}

mod ring {
    use std::io;
    use std::os::fd::AsRawFd;
    use std::sync::{Arc, Mutex, OnceLock, PoisonError};

    use io_uring::{IoUring, opcode, types};

    use super::super::buffer::Buffer;
    use super::super::direct::Direct;

    /// Operations that a ring has at a time.
    const DEPTH: u32 = 64;
    /// Rings that nobody uses and that are kept all the same.
    const KEPT_MAX: usize = 16;

    static KEPT: Mutex<Vec<Ring>> = Mutex::new(Vec::new());
    static ALLOWED: OnceLock<bool> = OnceLock::new();

    /// Reads and writes that the kernel makes at a time.
    pub(crate) struct Ring {
        io: IoUring,
        /// By the number that the kernel knows them by.
        under_way: Vec<Option<UnderWay>>,
        count: usize,
        /// The number of those that the kernel has not been told of.
        fresh: usize,
    }

    struct UnderWay {
        tag: u64,
        buffer: Buffer,
        /// Open until the end.
        _file: Arc<Direct>,
    }

    /// An operation that has ended.
    pub(crate) struct Ended {
        pub(crate) tag: u64,
        pub(crate) buffer: Buffer,
        /// Bytes that were read or written.
        pub(crate) result: io::Result<usize>,
    }

    impl Ring {
        /// A ring of which nothing is under way; none where the system has no rings, or does not let this process have one.
        pub(crate) fn take() -> Option<Ring> {
            let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).pop();
            kept.or_else(|| Ring::new().ok())
        }

        /// Whether this process may have rings.
        pub(crate) fn is_allowed() -> bool {
            *ALLOWED.get_or_init(|| Ring::new().map(Ring::keep).is_ok())
        }

        fn new() -> io::Result<Ring> {
            let io = IoUring::builder().setup_clamp().build(DEPTH)?;
            let under_way = (0..DEPTH).map(|_| None).collect();
            Ok(Ring { io, under_way, count: 0, fresh: 0 })
        }

        /// Keeps it for the next caller.
        pub(crate) fn keep(self) {
            let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
            if self.count == 0 && kept.len() < KEPT_MAX {
                kept.push(self);
            }
        }

        pub(crate) fn is_full(&self) -> bool {
            self.count == self.under_way.len()
        }

        /// Adds a read into `buffer`, or a write of it. The kernel is told of it by [`Ring::submit`] or [`Ring::wait`]. Gives the buffer back if the
        /// ring is full.
        pub(crate) fn push(
            &mut self,
            writes: bool,
            file: &Arc<Direct>,
            offset: u64,
            mut buffer: Buffer,
            tag: u64,
        ) -> Result<(), Buffer> {
            let free = self.under_way.iter().position(Option::is_none);
            let (Some(number), Ok(len)) = (free, u32::try_from(buffer.len())) else { return Err(buffer) };
            let fd = types::Fd(file.file().as_raw_fd());
            let entry = match writes {
                true => opcode::Write::new(fd, buffer.as_ptr(), len).offset(offset).build(),
                false => opcode::Read::new(fd, buffer.as_mut_ptr(), len).offset(offset).build(),
            };
            let entry = entry.user_data(number as u64);
            // SAFETY: `entry` points to `len` bytes on the heap that `buffer` owns, and names a descriptor that `file` owns. Both move into
            // `under_way` below, which does not move the bytes and is only emptied in `reap`, when the kernel has said that the operation is done; a
            // ring is dropped only after that (`Drop`).
            if unsafe { self.io.submission().push(&entry) }.is_err() {
                return Err(buffer);
            }
            if let Some(slot) = self.under_way.get_mut(number) {
                *slot = Some(UnderWay { tag, buffer, _file: file.clone() });
            }
            self.count += 1;
            self.fresh += 1;
            Ok(())
        }

        /// Tells the kernel of what was added. What it does not take now it is told again by [`Ring::wait`].
        pub(crate) fn submit(&mut self) {
            if self.fresh > 0 {
                let told = self.io.submit().unwrap_or(0);
                self.fresh = self.fresh.saturating_sub(told);
            }
        }

        /// Waits for one of those under way; none if there is none.
        ///
        /// # Errors
        /// When the kernel does not answer any more: of what is under way nothing is known.
        pub(crate) fn wait(&mut self) -> io::Result<Option<Ended>> {
            loop {
                if let Some(ended) = self.reap() {
                    return Ok(Some(ended));
                }
                if self.count == 0 {
                    return Ok(None);
                }
                match self.io.submit_and_wait(1) {
                    Ok(told) => self.fresh = self.fresh.saturating_sub(told),
                    // a signal, or the kernel is short of memory for a moment
                    Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ResourceBusy) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                    Err(e) => return Err(e),
                }
            }
        }

        /// One that has ended already.
        pub(crate) fn reap(&mut self) -> Option<Ended> {
            let done = self.io.completion().next()?;
            let number = usize::try_from(done.user_data()).ok()?;
            let UnderWay { tag, buffer, .. } = self.under_way.get_mut(number)?.take()?;
            self.count -= 1;
            let result = usize::try_from(done.result()).map_err(|_| io::Error::from_raw_os_error(-done.result()));
            Some(Ended { tag, buffer, result })
        }
    }

    impl Drop for Ring {
        fn drop(&mut self) {
            while self.count > 0 {
                if !matches!(self.wait(), Ok(Some(_))) {
                    // the kernel may still write them
                    std::mem::forget(std::mem::take(&mut self.under_way));
                    return;
                }
            }
        }
    }
}
