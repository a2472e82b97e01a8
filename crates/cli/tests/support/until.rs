//! Waiting in tests.
#![allow(dead_code, unreachable_pub, clippy::disallowed_methods)]

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
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

/// Waits until a server greets whoever connects to this socket: all that it serves has begun by then. A connection is taken before.
pub fn until_served(socket: &Path) {
    until("it serves", || UnixStream::connect(socket).and_then(|mut stream| stream.read_exact(&mut [0])).is_ok());
}
