//! Waiting in tests.
#![allow(unreachable_pub, clippy::disallowed_methods)]

use std::time::{Duration, Instant};

/// Waits until something is so.
///
/// # Panics
/// If it is not after a minute.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: not in a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}
