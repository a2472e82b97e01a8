//! Buffers that are kept from one read to the next, a few for each thread.

use std::cell::RefCell;

/// Larger buffers are not kept.
const KEEP_BYTES: usize = 4 << 20;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with a buffer of `len` bytes of no particular content.
pub(crate) fn with<R>(len: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = KEPT.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    let result = work(buffer.get_mut(..len).unwrap_or(&mut []));
    if buffer.len() <= KEEP_BYTES {
        KEPT.with_borrow_mut(|kept| {
            if kept.len() < 4 {
                kept.push(buffer);
            }
        });
    }
    result
}
