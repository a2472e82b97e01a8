//! Places in txgs that operations of one thread share.
//!
//! A thread must not wait for a second place while it holds a first one: the txg of the first may be closing, and waits for it. So the
//! places of a thread are known here, one a pool, and an operation within another, or within a batch, gets the one that is held.
//!
//! A place is taken within the quotas and reservations of one dataset. So operations of a batch on another dataset take another place, and
//! those that take room do not share one that was taken for freeing.
//!
//! Who must wait for a log (`sync=always`) does so when the place is given back: the log may wait for its txg. An operation of several places
//! waits once, at its end ([`Owed`]).

use std::borrow::Borrow;
use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

use dmu::{Objset, Tx};
use pool::Spa;

use super::log::Log;
use crate::Error;

/// Bytes that a place is taken for in a batch.
const BATCH_BYTES: u64 = 4 << 20;

struct Place {
    /// The address of the pool, which lives as long as who holds the place.
    spa: usize,
    /// The object set whose limits it was taken within, and whether for freeing.
    objset: u64,
    netfree: bool,
    /// `None` in a batch between two places.
    tx: Option<Arc<Tx>>,
    /// Bytes that it was taken for and nobody has claimed yet.
    left: u64,
    /// Operations that are under way with it.
    depth: u32,
    batch: bool,
    /// Logs to be waited for when the place is given back.
    owed: Vec<Arc<Log>>,
}

impl Place {
    fn new(spa: usize) -> Place {
        Place { spa, objset: 0, netfree: false, tx: None, left: 0, depth: 0, batch: false, owed: Vec::new() }
    }
}

thread_local! {
    static PLACES: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
}

fn with<R>(spa: usize, work: impl FnOnce(&mut Place) -> R) -> Option<R> {
    PLACES.with_borrow_mut(|places| places.iter_mut().find(|place| place.spa == spa).map(work))
}

fn key(spa: &Arc<Spa>) -> usize {
    Arc::as_ptr(spa).addr()
}

/// The place of one operation.
pub(super) struct Held {
    spa: usize,
    tx: Arc<Tx>,
}

impl Held {
    /// The thread's place, or a new one for about `bytes` bytes of `objset`.
    pub(super) fn begin(spa: &Arc<Spa>, objset: &Arc<Objset>, bytes: u64, netfree: bool) -> Result<Held, Error> {
        let at = key(spa);
        let open = spa.txgs().open();
        let found = with(at, |place| {
            let fits = place.objset == objset.id() && (netfree || !place.netfree) && place.left >= bytes;
            let good = |tx: &Arc<Tx>| place.depth > 0 || (tx.txg() == open && fits);
            // an old place is given back before a new one is taken
            place.tx = place.tx.take().filter(good);
            place.left = place.left.saturating_sub(bytes);
            place.tx.clone()
        });
        let tx = match found {
            Some(Some(tx)) => tx,
            Some(None) => {
                let want = bytes.max(BATCH_BYTES);
                // where little room is left an operation may fit all the same
                let (tx, taken) = match take(spa, objset, want, netfree) {
                    Ok(tx) => (tx, want),
                    Err(_) => (take(spa, objset, bytes, netfree)?, bytes),
                };
                with(at, |place| {
                    (place.objset, place.netfree) = (objset.id(), netfree);
                    (place.tx, place.left) = (Some(tx.clone()), taken - bytes);
                });
                tx
            }
            None => {
                let tx = take(spa, objset, bytes, netfree)?;
                let of = objset.id();
                let place = Place { objset: of, netfree, tx: Some(tx.clone()), ..Place::new(at) };
                PLACES.with_borrow_mut(|places| places.push(place));
                tx
            }
        };
        with(at, |place| place.depth += 1);
        Ok(Held { spa: at, tx })
    }

    /// Whether the thread is within an operation on the pool.
    pub(super) fn any(spa: &Arc<Spa>) -> bool {
        with(key(spa), |place| place.depth > 0).unwrap_or(false)
    }

    /// Gives the place back, and waits for the logs that are owed it.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    pub(super) fn finish(self) -> Result<(), Error> {
        let mut owed = Owed::default();
        self.finish_owing(&mut owed);
        owed.settle()
    }

    /// Gives the place back; `owed` has the logs that are to be waited for later.
    pub(super) fn finish_owing(self, owed: &mut Owed) {
        let last = |place: &mut Place| place.depth <= 1 && !place.batch;
        let logs = with(self.spa, |place| if last(place) { std::mem::take(&mut place.owed) } else { Vec::new() });
        for log in logs.unwrap_or_default() {
            if !owed.0.iter().any(|known| Arc::ptr_eq(known, &log)) {
                owed.0.push(log);
            }
        }
    }
}

/// The logs that an operation waits for when it is over.
#[derive(Default)]
pub(super) struct Owed(Vec<Arc<Log>>);

impl Owed {
    /// Waits for them.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    pub(super) fn settle(self) -> Result<(), Error> {
        self.0.iter().try_for_each(|log| log.commit_all())
    }
}

/// A place that several threads share: what each does while it [joins](Shared::join) is in the txg of the place.
pub(super) struct Shared {
    spa: usize,
    objset: u64,
    tx: Arc<Tx>,
}

impl Shared {
    /// A new place for about `bytes` bytes of `objset`, which free more than they take.
    pub(super) fn begin(spa: &Arc<Spa>, objset: &Arc<Objset>, bytes: u64) -> Result<Shared, Error> {
        Ok(Shared { spa: key(spa), objset: objset.id(), tx: take(spa, objset, bytes, true)? })
    }

    /// The txg.
    pub(super) fn tx(&self) -> &Tx {
        &self.tx
    }

    /// Makes it the place of this thread, which has none of the pool, for as long as what is given lives.
    pub(super) fn join(&self) -> Held {
        let (spa, tx) = (self.spa, self.tx.clone());
        let shared = Some(tx.clone());
        let place = Place { objset: self.objset, netfree: true, tx: shared, depth: 1, ..Place::new(spa) };
        PLACES.with_borrow_mut(|places| places.insert(0, place));
        Held { spa, tx }
    }
}

/// Has whoever holds the thread's place wait for a log when he gives it back.
pub(super) fn owe(spa: &Arc<Spa>, log: &Arc<Log>) {
    with(key(spa), |place| {
        if !place.owed.iter().any(|owed| Arc::ptr_eq(owed, log)) {
            place.owed.push(log.clone());
        }
    });
}

/// Gives the place of a batch back, for the next operation to take another. `false` within an operation, which needs its place.
pub(super) fn give_back(spa: &Arc<Spa>) -> bool {
    let given = with(key(spa), |place| {
        if place.depth == 0 {
            (place.tx, place.left) = (None, 0);
        }
        place.depth == 0
    });
    given.unwrap_or(true)
}

fn take(spa: &Arc<Spa>, objset: &Arc<Objset>, bytes: u64, netfree: bool) -> Result<Arc<Tx>, Error> {
    Ok(Arc::new(spa.dataset_tx(objset, bytes, netfree)?))
}

impl Deref for Held {
    type Target = Tx;

    fn deref(&self) -> &Tx {
        &self.tx
    }
}

impl Borrow<Tx> for Held {
    fn borrow(&self) -> &Tx {
        &self.tx
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let spa = self.spa;
        with(spa, |place| place.depth = place.depth.saturating_sub(1));
        PLACES.with_borrow_mut(|places| places.retain(|place| place.spa != spa || place.depth > 0 || place.batch));
    }
}

/// A stretch of operations that share places.
pub(super) struct Batch(Option<usize>);

impl Batch {
    /// Begins one. Within another, or within an operation, it is a part of that.
    pub(super) fn begin(spa: &Arc<Spa>) -> Batch {
        let at = key(spa);
        if with(at, |_| ()).is_some() {
            return Batch(None);
        }
        let place = Place { batch: true, ..Place::new(at) };
        PLACES.with_borrow_mut(|places| places.push(place));
        Batch(Some(at))
    }

    /// Ends it, and waits for the logs that are owed it.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    pub(super) fn finish(self) -> Result<(), Error> {
        let owed = self.0.and_then(|spa| with(spa, |place| std::mem::take(&mut place.owed)));
        drop(self);
        owed.unwrap_or_default().iter().try_for_each(|log| log.commit_all())
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(spa) = self.0 {
            PLACES.with_borrow_mut(|places| places.retain(|place| place.spa != spa));
        }
    }
}
