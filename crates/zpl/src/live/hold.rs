//! The transaction of an operation, and transactions that several operations share.
//!
//! A transaction is handed down as a value: an operation that is a part of another gets its [`Tx`]. A thread must not wait for a second
//! transaction while it has one, for the txg of the first may be closing, and wait for it.
//!
//! A transaction is assigned for the objects that it is going to change, and waits for those of the txg before that change one of them (see
//! [`dmu::TxObjects`]). An operation that learns only later, once it has its locks, which objects it changes [claims](Objset::claim) them before
//! its first change. If one is in use in another txg it begins again, with a transaction that is assigned for it.
//!
//! A transaction is assigned within the quotas and reservations of one dataset. Operations of a batch that allocate do not share one that was
//! assigned for freeing.
//!
//! An operation that must wait for a log (`sync=always`) does so when its transaction is released, because the log may wait for its txg. An
//! operation of several transactions waits once, at its end ([`Owed`]), and so does a batch.

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;

use dmu::{Objset, Tx, TxObjects};
use parking_lot::Mutex;
use pool::Spa;

use super::log::Log;
use crate::Error;

/// Bytes for which a transaction is assigned in a batch.
const BATCH_BYTES: u64 = 4 << 20;

/// The transaction that an operation asks for.
#[derive(Clone)]
pub(crate) struct Ask<'a> {
    pub(crate) spa: &'a Arc<Spa>,
    pub(crate) objset: &'a Arc<Objset>,
    /// About how many bytes it dirties.
    pub(crate) bytes: u64,
    /// True if it frees more than it allocates.
    pub(crate) netfree: bool,
    /// The objects that it changes, as far as they are known.
    pub(crate) objects: TxObjects,
}

impl<'a> Ask<'a> {
    /// Asks for a transaction that may change all objects of `objset`.
    pub(crate) fn of_set(spa: &'a Arc<Spa>, objset: &'a Arc<Objset>, bytes: u64, netfree: bool) -> Ask<'a> {
        Ask { spa, objset, bytes, netfree, objects: TxObjects::of_set(objset.id()) }
    }

    fn assign(&self, bytes: u64) -> Result<Arc<Tx>, Error> {
        Ok(Arc::new(self.spa.dataset_tx_for(self.objset, bytes, self.netfree, self.objects.clone())?))
    }
}

/// The transaction of one operation.
pub(crate) struct Held {
    tx: Arc<Tx>,
    batch: Option<Arc<Batch>>,
}

impl Held {
    /// Assigns a transaction, or takes that of the batch.
    pub(crate) fn begin(ask: &Ask<'_>, batch: Option<&Arc<Batch>>) -> Result<Held, Error> {
        match batch.filter(|batch| !batch.is_over()) {
            Some(batch) => Ok(Held { tx: batch.tx(ask)?, batch: Some(batch.clone()) }),
            None => Ok(Held { tx: ask.assign(ask.bytes)?, batch: None }),
        }
    }

    /// Returns the transaction.
    pub(crate) fn tx(&self) -> &Arc<Tx> {
        &self.tx
    }

    /// Releases the transaction, and waits for the log if it must.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    pub(crate) fn finish(self, log: &Log) -> Result<(), Error> {
        let mut owed = Owed::default();
        self.finish_owing(log, &mut owed);
        owed.settle(log)
    }

    /// Releases the transaction; a wait for the log is added to `owed`.
    pub(crate) fn finish_owing(self, log: &Log, owed: &mut Owed) {
        let owes = self.tx.is_used() && log.waits_always();
        match &self.batch {
            Some(batch) => batch.0.lock().owed |= owes,
            None => owed.0 |= owes,
        }
    }
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

/// Whether an operation waits for the log at its end.
#[derive(Default)]
pub(crate) struct Owed(bool);

impl Owed {
    /// Has it wait if it `owes` that.
    pub(crate) fn add(&mut self, owes: bool) {
        self.0 |= owes;
    }

    /// Waits for the log.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    pub(crate) fn settle(self, log: &Log) -> Result<(), Error> {
        if self.0 { log.commit(None) } else { Ok(()) }
    }
}

/// Operations that share transactions: those through one handle of a file system (see [`Zfs::batch`](super::Zfs::batch)).
#[derive(Default)]
pub(crate) struct Batch(Mutex<State>);

#[derive(Default)]
struct State {
    /// `None` between two transactions.
    tx: Option<Arc<Tx>>,
    netfree: bool,
    /// Bytes for which it was assigned and that are not used yet.
    left: u64,
    /// True if there is only this one transaction.
    fixed: bool,
    /// True if its end waits for the log.
    owed: bool,
    /// True once it has ended: its handle is one like any other.
    over: bool,
}

impl Batch {
    /// Operations that all are in one transaction.
    pub(crate) fn within(tx: &Arc<Tx>) -> Arc<Batch> {
        Arc::new(Batch(Mutex::new(State { tx: Some(tx.clone()), fixed: true, ..State::default() })))
    }

    /// Returns whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.0.lock().over
    }

    /// Returns whether its operations are within one transaction.
    pub(crate) fn is_fixed(&self) -> bool {
        self.0.lock().fixed
    }

    fn tx(&self, ask: &Ask<'_>) -> Result<Arc<Tx>, Error> {
        {
            let mut state = self.0.lock();
            let (fixed, open) = (state.fixed, ask.spa.txgs().open());
            let fits = (ask.netfree || !state.netfree) && state.left >= ask.bytes;
            // the txg may have been closed before the claim, and the next one have changed the objects
            let is_open = || ask.spa.txgs().open() == open;
            let good = |tx: &Arc<Tx>| fixed || (fits && tx.txg() == open && tx.claim(&ask.objects) && is_open());
            // an old transaction is released before a new one is assigned
            state.tx = state.tx.take().filter(good);
            state.left = state.left.saturating_sub(ask.bytes);
            if let Some(tx) = &state.tx {
                return Ok(tx.clone());
            }
        }
        let want = ask.bytes.max(BATCH_BYTES);
        // with little space left a single operation may still fit
        let (tx, taken) = match ask.assign(want) {
            Ok(tx) => (tx, want),
            Err(_) => (ask.assign(ask.bytes)?, ask.bytes),
        };
        let mut state = self.0.lock();
        (state.tx, state.netfree, state.left) = (Some(tx.clone()), ask.netfree, taken - ask.bytes);
        Ok(tx)
    }

    /// Releases its transaction, so that the next operation assigns another. Returns `false` if there is only this one.
    pub(crate) fn give_back(&self) -> bool {
        let mut state = self.0.lock();
        if !state.fixed {
            (state.tx, state.left) = (None, 0);
        }
        !state.fixed
    }

    /// Ends it. Returns whether it has to wait for the log.
    pub(crate) fn end(&self) -> bool {
        let mut state = self.0.lock();
        (state.tx, state.fixed, state.over) = (None, false, true);
        std::mem::take(&mut state.owed)
    }

    /// Ends it, and waits for the log if it must.
    ///
    /// # Errors
    /// EIO if the pool is suspended.
    pub(crate) fn finish(&self, log: &Log) -> Result<(), Error> {
        Owed(self.end()).settle(log)
    }
}

/// A transaction that several threads share, for all objects of a dataset and for operations that free more than they allocate.
pub(crate) struct Shared(Arc<Tx>);

impl Shared {
    /// Assigns a transaction for about `bytes` bytes of `objset`.
    pub(crate) fn begin(spa: &Arc<Spa>, objset: &Arc<Objset>, bytes: u64) -> Result<Shared, Error> {
        Ok(Shared(Ask::of_set(spa, objset, bytes, true).assign(bytes)?))
    }

    /// Returns the transaction.
    pub(crate) fn tx(&self) -> &Arc<Tx> {
        &self.0
    }
}
