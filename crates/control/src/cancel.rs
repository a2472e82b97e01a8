//! Waits that are ended by whoever let them begin.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Error;

/// The means to end the waits of a request: they end when it is told to, or is dropped.
#[derive(Debug, Default)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Ends the waits of requests that have its token.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The token for a request.
    #[must_use]
    pub fn token(&self) -> CancelToken {
        CancelToken(Some(self.0.clone()))
    }
}

impl Drop for Canceller {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Whether the waits of a request are to end. The default never says so.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Option<Arc<AtomicBool>>);

impl CancelToken {
    /// Whether they are to end now.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|cancelled| cancelled.load(Ordering::Relaxed))
    }

    /// Whether somebody could end them.
    pub(crate) fn can_be_cancelled(&self) -> bool {
        self.0.is_some()
    }

    /// Lets a transfer of the request go on.
    ///
    /// # Errors
    /// [`Error::Cancelled`] as the cause, if the request is to end.
    pub fn go_on(&self) -> io::Result<()> {
        if self.is_cancelled() { Err(io::Error::other(Error::Cancelled)) } else { Ok(()) }
    }
}

/// The token of the request that reads from a file of its caller, while one does.
pub(crate) type Slot = Arc<Mutex<CancelToken>>;

/// A file of a caller that streams are received from: between two reads the request can be ended.
pub(crate) struct Source {
    input: Box<dyn Read + Send>,
    slot: Slot,
}

impl Source {
    pub(crate) fn new(input: Box<dyn Read + Send>, slot: Slot) -> Source {
        Source { input, slot }
    }
}

impl Read for Source {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).go_on()?;
        self.input.read(buf)
    }
}

/// A file of a caller that a stream is sent to, likewise between two writes.
pub(crate) struct Sink<'a> {
    pub(crate) output: &'a mut (dyn Write + Send),
    pub(crate) cancel: &'a CancelToken,
}

impl Write for Sink<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.cancel.go_on()?;
        self.output.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
