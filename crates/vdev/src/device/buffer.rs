//! Buffers for direct I/O: aligned to pages, and kept for the next one.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// The alignment of all buffers, and their smallest size. No device asks for more.
pub(crate) const ALIGN: usize = 4096;
/// Classes of size: 4 KiB, 8 KiB, … 16 MiB.
const CLASSES: usize = 13;
/// Bytes of buffers that nobody uses and that are kept all the same.
const KEEP_BYTES: usize = 24 << 20;

/// Buffers that nobody uses, by class.
struct Kept {
    classes: [Vec<Vec<u8>>; CLASSES],
    bytes: usize,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept { classes: [const { Vec::new() }; CLASSES], bytes: 0 });

/// Aligned bytes.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Buffer {
    /// A buffer of `len` bytes of no particular content.
    #[must_use]
    pub fn take(len: usize) -> Buffer {
        let class = class_of(len);
        let kept = class.and_then(|class| {
            let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
            let bytes = kept.classes.get_mut(class)?.pop()?;
            kept.bytes -= bytes.len();
            Some(bytes)
        });
        let capacity = class.map_or(len, |class| ALIGN << class);
        let bytes = kept.unwrap_or_else(|| vec![0; capacity + ALIGN]);
        let from = bytes.as_ptr().align_offset(ALIGN);
        Buffer { bytes, from, len }
    }
}

/// The class that has room for `len` bytes; none for what is not kept.
fn class_of(len: usize) -> Option<usize> {
    let class = len.div_ceil(ALIGN).max(1).next_power_of_two().trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(self.from..self.from + self.len).unwrap_or(&[])
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.from..self.from + self.len).unwrap_or(&mut [])
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let Some(class) = class_of(self.len) else { return };
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.bytes + bytes.len() <= KEEP_BYTES
            && let Some(list) = kept.classes.get_mut(class)
        {
            let len = bytes.len();
            list.push(bytes);
            kept.bytes += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_of_the_length_asked_for() {
        for len in [1, 512, 4096, 4097, 1 << 20, (16 << 20) + 1] {
            let mut buffer = Buffer::take(len);
            assert_eq!((buffer.len(), buffer.as_ptr().align_offset(ALIGN)), (len, 0));
            buffer.fill(7);
            drop(buffer);
            assert_eq!(Buffer::take(len).len(), len);
        }
        assert!(KEPT.lock().unwrap().bytes <= KEEP_BYTES);
    }
}
