//! I/O that cannot be done because too few devices are there: it waits until they are back, where the pool wants that (OpenZFS: `zio_suspend`).
//!
//! The pool decides. A block that is being written stays as it is, with its addresses and its bytes, in the thread that writes it, and goes to the
//! devices again. So the sync of a txg needs no second run.

use std::sync::Arc;

use base::tasks;
use vdev::{IoClass, ReadCx};

use crate::error::{CopyFailures, Fault};
use crate::{Error, Zio};

/// The fate of I/O that failed because devices are gone.
pub trait Suspend: Send + Sync {
    /// Called with the failure. Returns `true`, perhaps much later, if the I/O is to be tried again, and `false` if the caller gets the error.
    /// `syncing`: it belongs to the sync of a txg, which cannot go on without it. `seen` is the same for all attempts of one I/O, and `None` at first.
    fn suspend(&self, error: &Error, syncing: bool, seen: &mut Option<u64>) -> bool;
}

impl Zio {
    /// Sets what becomes of I/O that cannot be done. Only the first call counts.
    pub fn set_suspend(&self, suspend: Arc<dyn Suspend>) {
        self.suspend.get_or_init(|| suspend);
    }

    /// Returns whether a write that failed is to be tried again.
    pub(crate) fn writes_again(&self, error: &Error, syncing: bool, seen: &mut Option<u64>) -> bool {
        let beyond = |source: &vdev::Error| matches!(source, vdev::Error::WriteFailed { .. });
        let waits = matches!(error, Error::Write { source, .. } if beyond(source));
        waits && self.suspend.get().is_some_and(|suspend| suspend.suspend(error, syncing, seen))
    }

    /// Returns whether a read that failed is to be tried again. One that the sync of a txg cannot do without waits whatever the devices have; others wait
    /// as long as devices are not there, but for those that [never wait](tasks::never_waiting).
    pub(crate) fn reads_again(&self, error: &Error, cx: &ReadCx<'_>, seen: &mut Option<u64>) -> bool {
        let (Error::Io { copies, .. }, IoClass::SyncRead) = (error, cx.class) else { return false };
        if tasks::never_waits() {
            return false;
        }
        let syncing = tasks::is_syncing();
        let waits = tasks::must_succeed() || self.is_unavailable(copies);
        waits && self.suspend.get().is_some_and(|suspend| suspend.suspend(error, syncing, seen))
    }

    /// Returns whether one of the copies lies where too few devices are there to read it.
    fn is_unavailable(&self, copies: &CopyFailures) -> bool {
        let tree = self.tree();
        copies.0.iter().any(|copy| match &copy.fault {
            Fault::GangMember { cause, .. } => self.is_unavailable(cause),
            Fault::Device(_) => tree.top(copy.dva.vdev()).is_some_and(|top| !tree.reaches(top)),
            _ => false,
        })
    }
}
