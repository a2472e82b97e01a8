//! Pending state of a log: records by txg, and the batches that committers wait for.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use base::{ObjectId, Txg};
use parking_lot::{Condvar, Mutex};

use super::Itx;

/// Called with the end of a batch or of a commit, in the thread of a leader: it must not wait.
pub type Then = Box<dyn FnOnce(bool) + Send>;

/// The committers that share one flush.
#[derive(Default)]
pub(crate) struct Batch {
    end: Mutex<BatchEnd>,
    ended: Condvar,
}

#[derive(Default)]
struct BatchEnd {
    /// The result: whether its blocks (if it has any) are on stable storage.
    safe: Option<bool>,
    /// What committers that do not wait have left to be called.
    then: Vec<Then>,
}

impl Batch {
    /// Finishes the batch, wakes all that wait for it, and calls what was left by those that do not.
    pub(crate) fn end(&self, safe: bool) {
        let then = {
            let mut end = self.end.lock();
            end.safe = Some(safe);
            std::mem::take(&mut end.then)
        };
        self.ended.notify_all();
        then.into_iter().for_each(|then| then(safe));
    }

    /// Waits until it is finished, and returns its result.
    pub(crate) fn wait(&self) -> bool {
        let mut end = self.end.lock();
        loop {
            match end.safe {
                Some(safe) => return safe,
                None => self.ended.wait(&mut end),
            }
        }
    }

    /// Has `then` called once it is finished; at once, if it is.
    pub(crate) fn then(&self, then: Then) {
        let mut end = self.end.lock();
        match end.safe {
            Some(safe) => {
                drop(end);
                then(safe);
            }
            None => end.then.push(then),
        }
    }
}

/// The changes of one txg (OpenZFS: `itxs_t`).
#[derive(Default)]
struct Itxs {
    /// Records that every commit writes, in order.
    sync: Vec<Itx>,
    /// Records that wait for a commit of their object.
    by_object: BTreeMap<ObjectId, Vec<Itx>>,
}

impl Itxs {
    fn bring(&mut self, object: ObjectId) {
        if let Some(itxs) = self.by_object.remove(&object) {
            self.sync.extend(itxs);
        }
    }

    fn bring_all(&mut self) {
        for itxs in std::mem::take(&mut self.by_object).into_values() {
            self.sync.extend(itxs);
        }
    }
}

/// The most objects whose missed changes are noted each by itself.
const MISSED_MAX: usize = 4096;

/// Changes that the log cannot have.
#[derive(Default)]
struct Missed {
    /// The last txg with one, by object.
    by_object: BTreeMap<ObjectId, Txg>,
    /// The last txg with one that is not noted by its object.
    others: Option<Txg>,
}

impl Missed {
    fn add(&mut self, txg: Txg, object: ObjectId) {
        let full = self.by_object.len() >= MISSED_MAX;
        match self.by_object.entry(object) {
            Entry::Occupied(mut last) => *last.get_mut() = txg.max(*last.get()),
            Entry::Vacant(_) if full => self.others = self.others.max(Some(txg)),
            Entry::Vacant(free) => drop(free.insert(txg)),
        }
    }

    fn clean(&mut self, synced: Txg) {
        self.by_object.retain(|_, txg| *txg > synced);
        self.others = self.others.filter(|txg| *txg > synced);
    }

    fn last(&self, object: Option<ObjectId>) -> Option<Txg> {
        let noted = match object {
            Some(object) => self.by_object.get(&object).copied(),
            None => self.by_object.values().max().copied(),
        };
        noted.max(self.others)
    }
}

/// All changes that are neither on disk nor in the log yet.
#[derive(Default)]
pub(crate) struct Pending {
    txgs: BTreeMap<Txg, Itxs>,
    missed: Missed,
    /// The next batch; `None` as long as no caller waits.
    next: Option<Arc<Batch>>,
    waiting: usize,
    /// The number of callers in the next batch for which its leader waits, if it does.
    expected: Option<usize>,
    /// The batch that is closed but not finished.
    closed: Option<Arc<Batch>>,
}

/// The role of a caller in a commit.
pub(crate) enum Part {
    /// There is nothing to wait for.
    Nothing,
    /// Another caller writes it.
    Follow(Arc<Batch>),
    /// The caller writes it.
    Lead,
}

/// The records and the batch that a leader takes.
pub(crate) struct Taken {
    pub(crate) itxs: Vec<(Txg, Itx)>,
    pub(crate) batch: Arc<Batch>,
    pub(crate) waiters: usize,
}

impl Pending {
    /// Adds a record. One that every commit writes is put after those that wait for its object: a file's data is in the log
    /// before its new name is.
    pub(crate) fn push(&mut self, txg: Txg, itx: Itx) {
        match itx.object {
            Some(object) if !itx.sync => {
                self.txgs.entry(txg).or_default().by_object.entry(object).or_default().push(itx);
            }
            object => {
                if let Some(object) = object {
                    self.txgs.values_mut().for_each(|itxs| itxs.bring(object));
                }
                self.txgs.entry(txg).or_default().sync.push(itx);
            }
        }
    }

    /// Drops the records that wait for a commit of `object` (OpenZFS: `zil_remove_async`).
    pub(crate) fn forget(&mut self, object: ObjectId) {
        for itxs in self.txgs.values_mut() {
            itxs.by_object.remove(&object);
        }
        self.missed.by_object.remove(&object);
    }

    /// Notes that a change of `object` cannot be logged.
    pub(crate) fn miss(&mut self, txg: Txg, object: ObjectId) {
        self.missed.add(txg, object);
    }

    /// Returns the last txg with a change of `object`, or of any object if `None`, that the log does not have; `None` if all are on disk or
    /// logged.
    pub(crate) fn missed(&self, object: Option<ObjectId>) -> Option<Txg> {
        self.missed.last(object)
    }

    /// Drops the records of all txgs up to `synced`, which are on disk (OpenZFS: `zil_clean`).
    pub(crate) fn clean(&mut self, synced: Txg) {
        self.txgs = self.txgs.split_off(&Txg(synced.0.saturating_add(1)));
        self.missed.clean(synced);
    }

    /// True if there are records of a txg after `txg`.
    pub(crate) fn is_beyond(&self, txg: Txg) -> bool {
        self.txgs.last_key_value().is_some_and(|(last, _)| *last > txg) || self.missed(None) > Some(txg)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.txgs.is_empty() && self.missed(None).is_none()
    }

    /// Joins the next batch, together with the records that wait for `object`, or for all objects if `None` (OpenZFS:
    /// `zil_async_to_sync`, `zil_commit_itx_assign`, `zil_prune_commit_list`).
    pub(crate) fn join(&mut self, object: Option<ObjectId>) -> Part {
        for itxs in self.txgs.values_mut() {
            match object {
                Some(object) => itxs.bring(object),
                None => itxs.bring_all(),
            }
        }
        if let Some(batch) = &self.next {
            self.waiting += 1;
            return Part::Follow(batch.clone());
        }
        if self.txgs.values().all(|itxs| itxs.sync.is_empty()) {
            return self.closed.as_ref().map_or(Part::Nothing, |batch| Part::Follow(batch.clone()));
        }
        self.next = Some(Arc::default());
        self.waiting = 1;
        Part::Lead
    }

    /// Returns whether so many callers are in the next batch.
    pub(crate) fn has_waiting(&self, callers: usize) -> bool {
        self.waiting >= callers
    }

    /// Notes for how many callers in the next batch its leader waits, if it does.
    pub(crate) fn expect(&mut self, callers: Option<usize>) {
        self.expected = callers;
    }

    /// Returns whether the leader waits for callers that are all there by now.
    pub(crate) fn are_all_there(&self) -> bool {
        self.expected.is_some_and(|callers| self.has_waiting(callers))
    }

    /// Closes the batch and takes its records: txg by txg, in order (OpenZFS: `zil_get_commit_list`).
    pub(crate) fn take(&mut self) -> Taken {
        let of = |(txg, itxs): (&Txg, &mut Itxs)| {
            let txg = *txg;
            std::mem::take(&mut itxs.sync).into_iter().map(move |itx| (txg, itx)).collect::<Vec<_>>()
        };
        let itxs = self.txgs.iter_mut().flat_map(of).collect();
        let batch = self.next.take().unwrap_or_default();
        self.closed = Some(batch.clone());
        Taken { itxs, batch, waiters: std::mem::take(&mut self.waiting) }
    }

    /// Notes that the closed batch is finished.
    pub(crate) fn over(&mut self) {
        self.closed = None;
    }
}
