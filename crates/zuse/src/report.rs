//! Progress and losses of long operations, reported to the caller.

/// Receives progress and losses. All methods do nothing unless overridden.
pub trait Report {
    /// Work on a file begins.
    fn file(&mut self, _path: &[u8]) {}
    /// `n` more bytes are done.
    fn bytes(&mut self, _n: u64) {}
    /// Something of `path` is lost for good: data, attributes, or the file itself.
    fn lost(&mut self, _path: &[u8], _what: &str) {}
    /// `path` could not be copied, though nothing need be wrong with it.
    fn failed(&mut self, path: &[u8], what: &str) {
        self.lost(path, what);
    }
    /// Something of `path` could not be kept where it goes to, though the pool has it.
    fn not_kept(&mut self, _path: &[u8], _what: &str) {}
}

/// A [`Report`] that says nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Report for Silent {}
