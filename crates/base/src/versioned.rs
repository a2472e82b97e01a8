//! A lock whose version shows, without taking the lock, whether the data it guards has changed.
//!
//! A reader-writer lock costs each reader two writes to one cache line, for which all readers contend. A reader that keeps a copy of the
//! data that it found under the lock, together with the version, need not take the lock again while the version is the same: checking it
//! only reads the line. The version is odd while a writer holds the lock.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A reader-writer lock with a version. See the [module](self).
#[derive(Default)]
pub struct Versioned<T> {
    version: AtomicU64,
    lock: RwLock<T>,
}

impl<T> Versioned<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Versioned<T> {
        Versioned { version: AtomicU64::new(0), lock: RwLock::new(value) }
    }

    /// Takes the lock for reading; the version does not change meanwhile.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.lock.read()
    }

    /// Takes the lock for writing.
    pub fn write(&self) -> VersionedWriteGuard<'_, T> {
        let guard = self.lock.write();
        self.version.fetch_add(1, Ordering::Relaxed);
        // a reader that sees a change also sees the odd version
        fence(Ordering::Release);
        VersionedWriteGuard { version: &self.version, guard }
    }

    /// The current version; `None` while a writer holds the lock.
    pub fn version(&self) -> Option<u64> {
        Some(self.version.load(Ordering::Acquire)).filter(|version| version % 2 == 0)
    }

    /// True if no writer has started since the version was `version`: all data read in between belongs to that version.
    pub fn is(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version
    }
}

/// The lock, held for writing.
pub struct VersionedWriteGuard<'a, T> {
    version: &'a AtomicU64,
    guard: RwLockWriteGuard<'a, T>,
}

impl<T> Deref for VersionedWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for VersionedWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Drop for VersionedWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.version.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_version_ends_when_somebody_begins_to_write() {
        let lock = Versioned::new(1);
        let Some(version) = lock.version() else { panic!("nobody writes") };
        drop(lock.read());
        assert!(lock.is(version));
        let mut guard = lock.write();
        assert_eq!(lock.version(), None);
        assert!(!lock.is(version));
        *guard = 2;
        drop(guard);
        assert!(!lock.is(version));
        assert_eq!(*lock.read(), 2);
    }

    /// Two words that are changed together are never read half changed.
    #[test]
    fn who_reads_without_the_lock_notices_a_change_in_between() {
        let (lock, done) = (Versioned::new(()), AtomicBool::new(false));
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..20_000 {
                    let _guard = lock.write();
                    words.iter().for_each(|word| word.store(n, Ordering::Relaxed));
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                let Some(version) = lock.version() else { continue };
                let [a, b] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
                assert!(a == b || !lock.is(version));
            }
        });
    }
}
