//! Bytes of the model, which are counted, so that what the engine takes can be told from what the test takes.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that all contents take together.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Bytes that all contents of this process take together.
pub fn taken() -> u64 {
    TAKEN.load(Ordering::Relaxed)
}

/// The expected contents of a file, or of a range of a volume.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Content(Vec<u8>);

impl Content {
    pub fn new(bytes: Vec<u8>) -> Content {
        TAKEN.fetch_add(bytes.capacity() as u64, Ordering::Relaxed);
        Content(bytes)
    }

    /// Changes the bytes.
    pub fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let before = self.0.capacity() as u64;
        change(&mut self.0);
        TAKEN.fetch_add(self.0.capacity() as u64, Ordering::Relaxed);
        TAKEN.fetch_sub(before, Ordering::Relaxed);
    }
}

impl Clone for Content {
    fn clone(&self) -> Content {
        Content::new(self.0.clone())
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0.capacity() as u64, Ordering::Relaxed);
    }
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
