//! Readers of older states of the pool: blocks freed since are kept for them.
//!
//! There are two kinds. A [view](Spa::view) of this program is known here: it counts from before its uberblock is taken until it is
//! dropped. Other processes open the pool from its devices; the layers above know how they announce themselves, and pass it on through a
//! hook: [`Readers`].
//!
//! The protection ends where a writer would get ENOSPC: outside readers are then told to stop, before any of their blocks can be reused,
//! and a view of this program may meet checksum errors; whoever keeps one asks it from time to time ([`Pool::is_overtaken`](crate::Pool::is_overtaken)).

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use base::{Guid, ObjectId, Txg};
use parking_lot::Mutex;

use crate::spa::Spa;

/// The readers in other processes, which read a pool from its devices while this program writes it.
pub trait Readers: Send + Sync {
    /// Returns the txg of the oldest state of `pool` that is being read; `None` without readers.
    fn oldest(&self, pool: Guid) -> Option<Txg>;

    /// Notifies all readers of states of `pool` older than `txg` that their blocks may be overwritten when this returns. They no longer
    /// count.
    fn overtake(&self, pool: Guid, txg: Txg);

    /// Notifies all readers of `pool`, and all that begin before the returned guard is dropped: the states that they find are given up.
    fn overtake_all(&self, pool: Guid) -> Box<dyn Any + Send>;
}

/// The hook through which the writer of a pool learns of readers in other processes, and tells them which heads are open.
pub trait HeldElsewhere: Send + Sync {
    /// Returns whether another process holds the dataset in object `id` of the pool. (A guid would not identify it: a received snapshot has the
    /// guid of the one that was sent.)
    fn is_held(&self, pool: Guid, id: ObjectId) -> bool;
    /// Keeps other processes from taking holds in the pool until the returned guard is dropped, so that a dataset that is checked and then
    /// destroyed is destroyed on disk before it could be held.
    fn freeze(&self, pool: Guid) -> Box<dyn Any>;
    /// The head in object `id` is open for changes from now on, until this is dropped, which it is when the pool is closed: no other process is to read
    /// it as it is. Told before it is asked whether one does.
    fn opened(&self, pool: Guid, id: ObjectId);
}

/// The views of this program that are in use.
#[derive(Default)]
pub(crate) struct Views {
    entered: Mutex<Vec<Weak<Txg>>>,
    /// Blocks of states before this txg may have been reused.
    overtaken: AtomicU64,
}

impl Views {
    /// Registers a view of the txg that `now` returns.
    pub(crate) fn enter(&self, now: impl FnOnce() -> Txg) -> Arc<Txg> {
        let mut views = self.entered.lock();
        let entered = Arc::new(now());
        views.push(Arc::downgrade(&entered));
        entered
    }

    fn oldest(&self) -> Option<Txg> {
        let mut views = self.entered.lock();
        views.retain(|view| view.strong_count() > 0);
        views.iter().filter_map(Weak::upgrade).map(|txg| *txg).min()
    }

    /// Whether the protection of views of `txg` has ended.
    pub(crate) fn is_overtaken(&self, txg: Txg) -> bool {
        txg.0 < self.overtaken.load(Ordering::Acquire)
    }
}

impl Spa {
    /// Returns the txg after which freed blocks are kept for readers. `last` is the txg whose uberblock was just written.
    pub(crate) fn kept_for_readers(&self, last: Txg) -> Txg {
        let others = self.hooks.readers.as_deref();
        if self.space.take_pressed() {
            self.views.overtaken.store(last.0, Ordering::Release);
            if let Some(others) = others {
                others.overtake(self.guid, last);
            }
            return last;
        }
        let outside = others.and_then(|others| others.oldest(self.guid));
        [outside, self.views.oldest()].into_iter().flatten().min().unwrap_or(last)
    }
}
