//! Places in txgs that operations of one thread share.
//!
//! A thread must not wait for a second place while it holds a first one: the txg of the first may be closing, and waits for it. So the
//! places of a thread are known here, one a pool, and an operation within another, or within a batch, gets the one that is held.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use dmu::Tx;
use pool::Spa;

use crate::Error;

/// Bytes that a place is taken for in a batch.
const BATCH_BYTES: u64 = 4 << 20;

struct Place {
    /// The address of the pool, which lives as long as who holds the place.
    spa: usize,
    /// `None` in a batch between two places.
    tx: Option<Rc<Tx>>,
    /// Bytes that it was taken for and nobody has claimed yet.
    left: u64,
    /// Operations that are under way with it.
    depth: u32,
    batch: bool,
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
    tx: Rc<Tx>,
}

impl Held {
    /// The thread's place, or a new one for about `bytes` bytes.
    pub(super) fn begin(spa: &Arc<Spa>, bytes: u64, netfree: bool) -> Result<Held, Error> {
        let at = key(spa);
        let open = spa.txgs().open();
        let found = with(at, |place| {
            let good = |tx: &Rc<Tx>| place.depth > 0 || (tx.txg() == open && place.left >= bytes);
            // an old place is given back before a new one is taken
            place.tx = place.tx.take().filter(good);
            place.left = place.left.saturating_sub(bytes);
            place.tx.clone()
        });
        let tx = match found {
            Some(Some(tx)) => tx,
            Some(None) => {
                let want = bytes.max(BATCH_BYTES);
                let tx = take(spa, want, netfree).or_else(|_| take(spa, bytes, netfree))?;
                with(at, |place| (place.tx, place.left) = (Some(tx.clone()), want - bytes));
                tx
            }
            None => {
                let tx = take(spa, bytes, netfree)?;
                let place = Place { spa: at, tx: Some(tx.clone()), left: 0, depth: 0, batch: false };
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
}

fn take(spa: &Arc<Spa>, bytes: u64, netfree: bool) -> Result<Rc<Tx>, Error> {
    Ok(Rc::new(if netfree { spa.tx_netfree(bytes)? } else { spa.tx(bytes)? }))
}

impl Deref for Held {
    type Target = Tx;

    fn deref(&self) -> &Tx {
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
        let place = Place { spa: at, tx: None, left: 0, depth: 0, batch: true };
        PLACES.with_borrow_mut(|places| places.push(place));
        Batch(Some(at))
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(spa) = self.0 {
            PLACES.with_borrow_mut(|places| places.retain(|place| place.spa != spa));
        }
    }
}
