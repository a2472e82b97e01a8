//! Waits that are ended by whoever let them begin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
}
