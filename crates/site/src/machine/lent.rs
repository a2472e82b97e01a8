//! Pools that a program uses for longer than a request: a command line that is carried out where the pools are open.

use std::sync::Arc;
use std::time::Instant;

use control::Failed;
use parking_lot::{Condvar, Mutex, MutexGuard};
use pool::{Pool, Spa};

use super::pools::{Held, Open, Pools};
use crate::Imported;

/// The loans of one open pool.
#[derive(Default)]
pub(super) struct Loans {
    count: Mutex<usize>,
    none: Condvar,
}

impl Loans {
    pub(super) fn take(loans: &Arc<Loans>) -> Loan {
        *loans.count.lock() += 1;
        Loan(loans.clone())
    }

    pub(super) fn are_any(&self) -> bool {
        *self.count.lock() > 0
    }

    /// Waits until there is none. Returns whether that came before `end`.
    pub(super) fn wait_until(&self, end: Instant) -> bool {
        let mut count = self.count.lock();
        while *count > 0 {
            if self.none.wait_until(&mut count, end).timed_out() {
                return *count == 0;
            }
        }
        true
    }
}

/// Keeps a pool open; until dropped.
pub(super) struct Loan(Arc<Loans>);

impl Drop for Loan {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

/// A pool of a machine on loan: the machine does not close it until this is dropped.
pub(crate) struct Lent {
    pub(super) open: Open,
    pub(super) _loan: Loan,
}

impl Lent {
    /// The record of its import, from when it was opened.
    pub(crate) fn record(&self) -> &Imported {
        &self.open.record
    }

    /// The pool, if it is open for a change.
    pub(crate) fn spa(&self) -> Option<&Arc<Spa>> {
        match &self.open.held {
            Held::Writing(spa) => Some(spa),
            Held::Reading(..) => None,
        }
    }

    /// The pool, if it is open for reading.
    pub(crate) fn read_only(&self) -> Option<&Arc<Pool>> {
        match &self.open.held {
            Held::Writing(_) => None,
            Held::Reading(pool, _) => Some(pool),
        }
    }

    /// Makes it ready for a change, once for all who use it ([`Open::make_ready`]).
    ///
    /// # Errors
    /// When it is suspended, or its logs cannot be listed.
    pub(crate) fn make_ready(&self, pools: &Pools) -> Result<(), Failed> {
        self.open.make_ready(&pools.site)
    }

    /// A key was loaded: logs of its datasets may be replayed.
    pub(crate) fn has_new_key(&self) {
        self.open.has_new_key();
    }

    /// Locks its vdevs against other threads that add or remove some.
    pub(crate) fn lock_vdevs(&self) -> MutexGuard<'_, ()> {
        self.open.lock_vdevs()
    }
}
