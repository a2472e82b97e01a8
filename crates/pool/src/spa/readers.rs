//! Who reads the pool as an older txg left it: what was freed since stays as it is for them.
//!
//! There are two kinds. A [view](Spa::view) of this program is known here: it counts from before its uberblock is taken until it is dropped. Other
//! processes open the pool from its devices; how they tell is known to the rooms above, and comes by a hook: [`Readers`].
//!
//! That ends where a writer would be told that there is no space: then who reads from outside is told to stop, before any of its blocks can be used
//! again, and a view of this program may meet checksum errors.

use std::any::Any;
use std::sync::{Arc, Weak};

use base::{Guid, Txg};
use parking_lot::Mutex;

use crate::spa::Spa;

/// Who reads a pool from its devices while this program writes it.
pub trait Readers: Send + Sync {
    /// The txg of the oldest state of `pool` that somebody reads; `None` if nobody does.
    fn oldest(&self, pool: Guid) -> Option<Txg>;

    /// Tells all who read a state of `pool` older than `txg` that their blocks may be overwritten when this returns. They count no more.
    fn overtake(&self, pool: Guid, txg: Txg);

    /// The same for all who read `pool`, and for all who begin before what is returned is dropped: the states that they find are given up.
    fn overtake_all(&self, pool: Guid) -> Box<dyn Any + Send>;
}

/// The views of this program that are in use.
#[derive(Default)]
pub(crate) struct Views(Mutex<Vec<Weak<Txg>>>);

impl Views {
    /// One more, of the txg that `now` tells.
    pub(crate) fn enter(&self, now: impl FnOnce() -> Txg) -> Arc<Txg> {
        let mut views = self.0.lock();
        let entered = Arc::new(now());
        views.push(Arc::downgrade(&entered));
        entered
    }

    fn oldest(&self) -> Option<Txg> {
        let mut views = self.0.lock();
        views.retain(|view| view.strong_count() > 0);
        views.iter().filter_map(Weak::upgrade).map(|txg| *txg).min()
    }
}

impl Spa {
    /// What was freed later than this is to stay as it is. `last` is the txg whose uberblock was just written.
    pub(crate) fn kept_for_readers(&self, last: Txg) -> Txg {
        let others = self.hooks.readers.as_deref();
        if self.space.take_pressed() {
            if let Some(others) = others {
                others.overtake(self.guid, last);
            }
            return last;
        }
        let outside = others.and_then(|others| others.oldest(self.guid));
        [outside, self.views.oldest()].into_iter().flatten().min().unwrap_or(last)
    }
}
