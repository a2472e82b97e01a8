//! What the requests of one caller share while they compare a snapshot with a later one or the head.
//!
//! A diff is many requests: [`Ioc::Diff`] names the objects that may differ, and each is looked up on both sides, meanwhile and afterwards. All of them are to see one
//! state of the pool. OpenZFS takes a temporary snapshot of a head for that, which is destroyed when the caller closes its file. Here the state of the pool stays that
//! the diff of a head has seen: [`Ioc::ObjToStats`] and [`Ioc::NextObj`] look the objects of this head up in it, until the caller diffs the head again, changes
//! something, or has not asked for a minute; nothing is written, and no space is reused meanwhile, unless the pool would be full: then the diff fails. So a pool that was imported to
//! be read can be compared as well. Who has many callers sees to it that all let go in time ([`AllKept`](crate::AllKept)).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use base::{Guid, ObjectId, Txg};
use pool::{Dataset, Pool};

use crate::objects::Paths;
use crate::{Error, Failed, Ioc};

/// File systems that are kept: the two that are compared.
const OPEN_MAX: usize = 2;
/// States of heads that are kept: of diffs that one caller makes at once.
const STATES_MAX: usize = 8;
/// The time after which what nobody has asked for is let go.
pub(crate) const IDLE: Duration = Duration::from_secs(60);

/// A file system that was asked about. Requests about it take turns.
type Shared = Arc<Mutex<Paths>>;

/// What the requests of one caller share. A clone shares it as well.
#[derive(Clone, Default)]
pub struct Kept(Arc<Mutex<State>>);

/// The same for somebody who lets go what is not used, and does not keep it.
#[derive(Clone)]
pub(crate) struct WeakKept(Weak<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The file systems that were asked about last.
    open: Vec<Open>,
    /// The states in which heads were compared last.
    heads: Vec<Head>,
    /// Counts how often everything was let go: what a request has opened before that is not kept after it.
    epoch: u64,
}

struct Open {
    pool: Guid,
    dataset: ObjectId,
    /// The txg of its state; none of a snapshot, which has one state.
    txg: Option<Txg>,
    paths: Shared,
    used: Instant,
}

struct Head {
    name: String,
    /// None once it is overtaken: the diff must begin again.
    view: Option<Arc<Pool>>,
    used: Instant,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}

impl Kept {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of its pool that a request about `name` sees: the current one, which `now` gives, or that of the diff that it belongs to.
    ///
    /// # Errors
    /// [`Error::Overtaken`]; as `now`.
    pub fn view(
        &self,
        ioc: Ioc,
        name: &str,
        now: impl FnOnce() -> Result<Arc<Pool>, Failed>,
    ) -> Result<Arc<Pool>, Failed> {
        let epoch = self.state().epoch;
        if matches!(ioc, Ioc::ObjToStats | Ioc::NextObj) {
            let mut state = self.state();
            state.drop_idle(IDLE);
            if let Some(head) = state.heads.iter_mut().find(|head| head.name == name) {
                head.used = Instant::now();
                return head.view.clone().ok_or_else(|| Error::Overtaken.into());
            }
        }
        let view = now()?;
        if ioc == Ioc::Diff && !name.contains('@') {
            let mut state = self.state();
            if state.epoch == epoch {
                state.keep_head(name, &view);
            }
        }
        Ok(view)
    }

    /// Lets everything go, because its caller has changed something: he wants to see that.
    pub fn forget(&self) {
        self.state().forget();
    }

    /// For somebody who lets go what is not used.
    pub(crate) fn downgrade(&self) -> WeakKept {
        WeakKept(Arc::downgrade(&self.0))
    }

    /// The file system of a dataset, in the state in which that was opened.
    pub(crate) fn paths(&self, dataset: &Dataset) -> Result<Shared, Failed> {
        let pool = dataset.pool();
        let (guid, id) = (pool.guid(), dataset.id());
        let txg = (!dataset.is_snapshot()).then(|| pool.uberblock().txg);
        let epoch = {
            let mut state = self.state();
            if let Some(paths) = state.opened((guid, id, txg)) {
                return Ok(paths);
            }
            state.epoch
        };
        // others go on meanwhile
        let paths = Arc::new(Mutex::new(Paths::open(dataset)?));
        let mut state = self.state();
        if state.epoch != epoch {
            return Ok(paths);
        }
        if state.open.len() == OPEN_MAX {
            state.open.remove(0);
        }
        state.open.push(Open { pool: guid, dataset: id, txg, paths: paths.clone(), used: Instant::now() });
        Ok(paths)
    }
}

impl WeakKept {
    /// Lets everything go: a pool is closed. Returns whether there is anybody left who could use it.
    pub(crate) fn forget(&self) -> bool {
        let Some(state) = self.0.upgrade() else { return false };
        state.lock().unwrap_or_else(PoisonError::into_inner).forget();
        true
    }

    /// Lets go what has not been used for so long. Returns whether something stays; `None`: there is nobody left who could use it.
    pub(crate) fn drop_idle(&self, idle: Duration) -> Option<bool> {
        let state = self.0.upgrade()?;
        // one that is locked is in use
        let Ok(mut state) = state.try_lock() else { return Some(true) };
        state.drop_idle(idle);
        Some(!state.open.is_empty() || !state.heads.is_empty())
    }
}

impl State {
    fn forget(&mut self) {
        *self = State { epoch: self.epoch + 1, ..State::default() };
    }

    fn opened(&mut self, wanted: (Guid, ObjectId, Option<Txg>)) -> Option<Shared> {
        self.drop_idle(IDLE);
        let open = self.open.iter_mut().find(|open| (open.pool, open.dataset, open.txg) == wanted)?;
        open.used = Instant::now();
        Some(open.paths.clone())
    }

    fn drop_idle(&mut self, idle: Duration) {
        let is_overtaken = |head: &&mut Head| head.view.as_ref().is_some_and(|view| view.is_overtaken());
        for head in self.heads.iter_mut().filter(is_overtaken) {
            head.view = None;
            self.open.clear();
        }
        self.open.retain(|open| open.used.elapsed() < idle);
        self.heads.retain(|head| head.used.elapsed() < idle);
    }

    fn keep_head(&mut self, name: &str, view: &Arc<Pool>) {
        self.drop_idle(IDLE);
        self.heads.retain(|head| head.name != name);
        if self.heads.len() == STATES_MAX {
            self.heads.remove(0);
        }
        self.heads.push(Head { name: name.to_owned(), view: Some(view.clone()), used: Instant::now() });
    }
}
