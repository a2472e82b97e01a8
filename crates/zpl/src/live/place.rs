//! Transactions that the operations of one thread share.
//!
//! A thread must not wait for a second transaction while it holds one: the txg of the first may be closing, and wait for it. So
//! the transactions of a thread are recorded here, one per pool, and an operation within another, or within a batch, gets the one
//! that is held.
//!
//! A transaction is assigned within the quotas and reservations of one dataset. So operations of a batch on another dataset get
//! another transaction, and operations that allocate do not share one that was assigned for freeing.
//!
//! An operation that must wait for a log (`sync=always`) does so when the transaction is released, because the log may wait for
//! its txg. An operation of several transactions waits once, at its end ([`Owed`]).

use std::borrow::Borrow;
use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

use dmu::{Objset, Tx};
use pool::Spa;

use super::log::Log;
use crate::Error;

/// Bytes for which a transaction is assigned in a batch.
const BATCH_BYTES: u64 = 4 << 20;

struct Place {
    /// The address of the pool, which outlives the transaction.
    spa: usize,
    /// The object set within whose limits it was assigned, and whether for freeing.
    objset: u64,
    netfree: bool,
    /// `None` in a batch between two transactions.
    tx: Option<Arc<Tx>>,
    /// Bytes for which it was assigned and that are not used yet.
    left: u64,
    /// Number of operations that are running in it.
    depth: u32,
    batch: bool,
    /// Logs to wait for when the transaction is released.
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

/// The transaction of one operation.
pub(crate) struct Held {
    spa: usize,
    tx: Arc<Tx>,
}

impl Held {
    /// Returns the thread's transaction, or assigns a new one for about `bytes` bytes of `objset`.
    pub(crate) fn begin(spa: &Arc<Spa>, objset: &Arc<Objset>, bytes: u64, netfree: bool) -> Result<Held, Error> {
        let at = key(spa);
        let open = spa.txgs().open();
        let found = with(at, |place| {
            let fits = place.objset == objset.id() && (netfree || !place.netfree) && place.left >= bytes;
            let good = |tx: &Arc<Tx>| place.depth > 0 || (tx.txg() == open && fits);
            // an old transaction is released before a new one is assigned
            place.tx = place.tx.take().filter(good);
            place.left = place.left.saturating_sub(bytes);
            place.tx.clone()
        });
        let tx = match found {
            Some(Some(tx)) => tx,
            Some(None) => {
                let want = bytes.max(BATCH_BYTES);
                // with little space left a single operation may still fit
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

    /// True if the thread is within an operation on the pool.
    pub(crate) fn any(spa: &Arc<Spa>) -> bool {
        with(key(spa), |place| place.depth > 0).unwrap_or(false)
    }

    /// Releases the transaction, and waits for the logs that it owes.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let mut owed = Owed::default();
        self.finish_owing(&mut owed);
        owed.settle()
    }

    /// Releases the transaction; the logs to wait for later are added to `owed`.
    pub(crate) fn finish_owing(self, owed: &mut Owed) {
        let last = |place: &mut Place| place.depth <= 1 && !place.batch;
        let logs = with(self.spa, |place| if last(place) { std::mem::take(&mut place.owed) } else { Vec::new() });
        for log in logs.unwrap_or_default() {
            if !owed.0.iter().any(|known| Arc::ptr_eq(known, &log)) {
                owed.0.push(log);
            }
        }
    }
}

/// The logs that an operation waits for at its end.
#[derive(Default)]
pub(crate) struct Owed(Vec<Arc<Log>>);

impl Owed {
    /// Waits for the logs.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    pub(crate) fn settle(self) -> Result<(), Error> {
        self.0.iter().try_for_each(|log| log.commit_all())
    }
}

/// A transaction that several threads share: everything that a thread does while it [joins](Shared::join) belongs to it.
pub(crate) struct Shared {
    spa: usize,
    objset: u64,
    tx: Arc<Tx>,
}

impl Shared {
    /// Assigns a transaction for about `bytes` bytes of `objset`, for operations that free more than they allocate.
    pub(crate) fn begin(spa: &Arc<Spa>, objset: &Arc<Objset>, bytes: u64) -> Result<Shared, Error> {
        Ok(Shared { spa: key(spa), objset: objset.id(), tx: take(spa, objset, bytes, true)? })
    }

    /// Returns the transaction.
    pub(crate) fn tx(&self) -> &Tx {
        &self.tx
    }

    /// Makes it the transaction of this thread, which has none of the pool, for the lifetime of the returned value.
    pub(crate) fn join(&self) -> Held {
        let (spa, tx) = (self.spa, self.tx.clone());
        let shared = Some(tx.clone());
        let place = Place { objset: self.objset, netfree: true, tx: shared, depth: 1, ..Place::new(spa) };
        PLACES.with_borrow_mut(|places| places.insert(0, place));
        Held { spa, tx }
    }
}

/// Makes the thread wait for a log when it releases its transaction.
pub(crate) fn owe(spa: &Arc<Spa>, log: &Arc<Log>) {
    with(key(spa), |place| {
        if !place.owed.iter().any(|owed| Arc::ptr_eq(owed, log)) {
            place.owed.push(log.clone());
        }
    });
}

/// Releases the transaction of a batch, so that the next operation assigns another. Returns `false` within an operation, which
/// needs its transaction.
pub(crate) fn give_back(spa: &Arc<Spa>) -> bool {
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

/// A sequence of operations that share transactions.
pub(crate) struct Batch(Option<usize>);

impl Batch {
    /// Begins a batch. Within another batch, or within an operation, it is a part of that.
    pub(crate) fn begin(spa: &Arc<Spa>) -> Batch {
        let at = key(spa);
        if with(at, |_| ()).is_some() {
            return Batch(None);
        }
        let place = Place { batch: true, ..Place::new(at) };
        PLACES.with_borrow_mut(|places| places.push(place));
        Batch(Some(at))
    }

    /// Ends it, and waits for the logs that it owes.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    pub(crate) fn finish(self) -> Result<(), Error> {
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
