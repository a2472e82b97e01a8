//! What waits for the log: changes by txg, and who waits for them to be in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::Txg;
use parking_lot::{Condvar, Mutex};

use super::Itx;

/// Those who share one flush.
#[derive(Default)]
pub(crate) struct Batch {
    /// How it ended: whether its blocks are on stable storage, as far as it has any.
    end: Mutex<Option<bool>>,
    ended: Condvar,
}

impl Batch {
    /// It is over.
    pub(crate) fn end(&self, safe: bool) {
        *self.end.lock() = Some(safe);
        self.ended.notify_all();
    }

    /// Waits for its end, and tells how it was.
    pub(crate) fn wait(&self) -> bool {
        let mut end = self.end.lock();
        loop {
            match *end {
                Some(safe) => return safe,
                None => self.ended.wait(&mut end),
            }
        }
    }
}

/// The changes of one txg (OpenZFS: `itxs_t`).
#[derive(Default)]
struct Itxs {
    /// What every commit takes, in order.
    sync: Vec<Itx>,
    /// What waits for a commit of its object.
    by_object: BTreeMap<u64, Vec<Itx>>,
}

impl Itxs {
    fn bring(&mut self, object: u64) {
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

/// All changes that are not on disk yet, and not in the log either.
#[derive(Default)]
pub(crate) struct Pending {
    txgs: BTreeMap<Txg, Itxs>,
    /// Who will be in the next batch; `None` as long as nobody waits.
    next: Option<Arc<Batch>>,
    waiting: usize,
    /// The batch that is closed and not over.
    closed: Option<Arc<Batch>>,
}

/// Somebody's part in a commit.
pub(crate) enum Part {
    /// There is nothing to wait for.
    Nothing,
    /// Others write it.
    Follow(Arc<Batch>),
    /// The caller writes it.
    Lead,
}

/// What a writer takes.
pub(crate) struct Taken {
    pub(crate) itxs: Vec<(Txg, Itx)>,
    pub(crate) batch: Arc<Batch>,
    pub(crate) waiters: usize,
}

impl Pending {
    /// Puts a change in its place. One that every commit takes comes behind what its object has waiting: a file's data is in the log
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

    /// Drops what waits for a commit of `object` (OpenZFS: `zil_remove_async`).
    pub(crate) fn forget(&mut self, object: u64) {
        for itxs in self.txgs.values_mut() {
            itxs.by_object.remove(&object);
        }
    }

    /// Drops what is on disk with `synced` (OpenZFS: `zil_clean`).
    pub(crate) fn clean(&mut self, synced: Txg) {
        self.txgs = self.txgs.split_off(&Txg(synced.0.saturating_add(1)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.txgs.is_empty()
    }

    /// Joins the next batch, with what `object` has waiting, or all objects have (OpenZFS: `zil_async_to_sync`, `zil_commit_itx_assign`,
    /// `zil_prune_commit_list`).
    pub(crate) fn join(&mut self, object: Option<u64>) -> Part {
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

    /// How many are in the next batch.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Closes the batch and takes what it waits for: txg by txg, in order (OpenZFS: `zil_get_commit_list`).
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

    /// The batch that was closed is over.
    pub(crate) fn over(&mut self) {
        self.closed = None;
    }
}
