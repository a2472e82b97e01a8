//! The end of a mount, and those who wait for it.

use std::io;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How long an unmounted file system may take to end: requests that are under way come to their ends.
const END_MAX: Duration = Duration::from_secs(60);

/// Whether a mount has ended, and how.
#[derive(Default)]
pub(crate) struct End {
    done: Mutex<Option<Done>>,
    ended: Condvar,
}

/// How a mount has ended.
struct Done {
    /// The error that broke the connection.
    served: Result<(), io::Error>,
    /// True if it is in no tree any more, so that nothing is left to be unmounted: its number may be another's by now.
    is_gone: bool,
}

impl End {
    /// Notes the end.
    pub(crate) fn tell(&self, served: io::Result<()>, is_gone: bool) {
        *self.done.lock() = Some(Done { served, is_gone });
        self.ended.notify_all();
    }

    /// Returns whether it has come.
    pub(crate) fn has_come(&self) -> bool {
        self.done.lock().is_some()
    }

    /// Returns whether nothing is left of the mount in the tree either.
    pub(crate) fn is_gone(&self) -> bool {
        self.done.lock().as_ref().is_some_and(|done| done.is_gone)
    }

    /// Waits for the end. Returns whether it came in time.
    pub(crate) fn comes_within(&self, time: Duration) -> bool {
        let mut done = self.done.lock();
        // whether it has come is looked at
        let _ = self.ended.wait_while_for(&mut done, |done| done.is_none(), time);
        done.is_some()
    }

    /// Waits for the end, but not for ever; `None` if it has not come by then.
    pub(crate) fn wait_awhile(&self) -> Option<Result<(), io::Error>> {
        let mut done = self.done.lock();
        // whether it has come is looked at
        let _ = self.ended.wait_while_for(&mut done, |done| done.is_none(), END_MAX);
        done.as_ref().map(|done| match &done.served {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        })
    }
}
