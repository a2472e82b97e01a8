//! Streams of a pool that other processes may change meanwhile.
//!
//! A stream is made of a state of the pool that was opened, perhaps long ago: while other streams of a package were sent before it. Until a dataset is
//! [held](crate::long_holds) others may have changed or destroyed it, and as long as a state is read it may be overwritten. So
//!
//! 1. what is sent is held, by its number in the state in which it was looked up: from before that, where [`Query::hold`] is asked; else when its stream begins,
//!    and then it is looked for in the current state, as it may have been destroyed since;
//! 2. a head that another process has open is refused, for what that writes is not on disk yet; any other is sent as it is once it is held;
//! 3. everything is read in the state that was opened, which is one for all streams; a stream that cannot be read there, before anything of it was written, is tried again
//!    in a later state, if there is one.
//!
//! In a later state datasets are found by their numbers and guids: while they are held they may be renamed, and a start that is not held may have been destroyed, and
//! another have its name.

use std::sync::Arc;

use base::Txg;
use control::{Failed, Ioc};
use nvlist::NvList;
use pool::{Dataset, Error as PoolError, Pool, Refusal};

use crate::error::opening;
use crate::long_holds::{Held, Looking};
use crate::{Query, Site, left};

/// Limit on the states of a pool in which a stream is tried.
const TRIES: usize = 3;

/// A request to send in one state of the pool.
struct Attempt {
    query: Query,
    name: String,
    input: NvList,
}

impl Attempt {
    fn call(&self) -> Result<NvList, Failed> {
        self.query.control.call(Ioc::SendNew, &self.name, &self.input)
    }
}

impl Query {
    /// The same with these datasets held as long as it is asked: what a command sends. `looking` began before the pool was opened, so that nobody has destroyed any of
    /// them since. Heads are seen as they are now. Nothing is held where holds cannot be recorded.
    ///
    /// # Errors
    /// EBUSY for a head that another process has open; when a head is not there any more; as [`Site::open`].
    pub fn hold<'a>(&self, looking: Looking, names: impl IntoIterator<Item = &'a str>) -> Result<Query, Failed> {
        let mut all: Vec<Dataset> = names.into_iter().filter_map(|name| self.pool().dataset(name).ok()).collect();
        let Some(held) = looking.hold(all.iter().map(Dataset::id)) else { return Ok(self.clone()) };
        all.retain(|dataset| !dataset.is_snapshot());
        let now = match &self.site {
            Some(site) if !all.is_empty() => self.now(site, &held, &all)?,
            _ => None,
        };
        let query = now.map_or_else(|| self.clone(), |pool| self.seen_in(&pool));
        Ok(query.holding(held))
    }

    /// Sends a stream.
    pub(crate) fn send(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let (Some(site), Ok(to)) = (&self.site, self.pool().dataset(name)) else {
            return self.control.call(Ioc::SendNew, name, input);
        };
        let mut attempt = Attempt { query: self.clone(), name: name.to_owned(), input: input.clone() };
        let mut _held = None;
        if !self.held.as_ref().is_some_and(|held| held.contains(to.id())) {
            _held = Looking::at(name, &**site.front()).and_then(|looking| looking.hold([to.id()]));
            let now = _held.as_ref().map(|held| self.now(site, held, std::slice::from_ref(&to))).transpose()?.flatten();
            if let Some(pool) = now.filter(|_| !to.is_snapshot()) {
                attempt = self.later(&pool, &to, input)?;
            }
        }
        let number = input.get_i32("fd").unwrap_or(-1);
        let before = self.caller.files.sent(number);
        let mut sent = attempt.call();
        for _ in 1..TRIES {
            // what could not be written may have been written in part
            let is_over = sent.as_ref().map_or_else(|failed| failed.error.is_of_output(), |_| true);
            if is_over || self.caller.files.sent(number) != before {
                break;
            }
            let later = Txg(attempt.query.txg().0.saturating_add(1));
            let Ok(Some(pool)) = self.not_before(site, later) else { break };
            let Ok(later) = self.later(&pool, &to, input) else { break };
            attempt = later;
            sent = attempt.call();
        }
        sent
    }

    fn txg(&self) -> Txg {
        self.pool().uberblock().txg
    }

    /// The pool as it is once these datasets are held; `None` if it was not written since it was opened.
    fn now(&self, site: &Site, held: &Held, datasets: &[Dataset]) -> Result<Option<Arc<Pool>>, Failed> {
        let mut heads = datasets.iter().filter(|dataset| !dataset.is_snapshot());
        if let Some(busy) = heads.find(|head| held.is_open_elsewhere(head.id())) {
            return Err(PoolError::Refused { name: busy.name().to_owned(), why: Refusal::Busy }.into());
        }
        let Some(written) = left::of(self.guid()).filter(|left| *left > self.txg()) else { return Ok(None) };
        let pool = self.not_before(site, written)?.ok_or_else(|| gone(self.name()))?;
        datasets.iter().try_for_each(|dataset| find(dataset, &pool).map(drop))?;
        Ok(Some(pool))
    }

    /// The pool in a state of this txg or a later one; `None` if there is none.
    fn not_before(&self, site: &Site, txg: Txg) -> Result<Option<Arc<Pool>>, Failed> {
        let open = || site.of_dataset(self.name()).map_err(opening);
        let is_good = |pool: &Arc<Pool>| pool.guid() == self.guid() && pool.uberblock().txg >= txg;
        if let Some(pool) = open()?.filter(is_good) {
            return Ok(Some(pool));
        }
        if left::of(self.guid()).is_none_or(|left| left < txg) {
            return Ok(None);
        }
        site.look_again();
        Ok(open()?.filter(is_good))
    }

    /// The request in a later state of the pool.
    fn later(&self, pool: &Arc<Pool>, to: &Dataset, input: &NvList) -> Result<Attempt, Failed> {
        let mut input = input.clone();
        if let Some(from) = input.get_str("fromsnap")
            && let Some(from) = self.start_in(pool, from)?
        {
            input.insert("fromsnap", from);
        }
        Ok(Attempt { query: self.seen_in(pool), name: find(to, pool)?.name().to_owned(), input })
    }

    /// The name that the start of a stream has in another state; `None` if it is not in this one.
    fn start_in(&self, pool: &Arc<Pool>, from: &str) -> Result<Option<String>, PoolError> {
        if !from.contains('#') {
            let Some(seen) = if_there(self.pool().dataset(from))? else { return Ok(None) };
            return Ok(Some(find(&seen, pool)?.name().to_owned()));
        }
        // it has no number of its own
        let Some(seen) = if_there(self.pool().bookmark(from))? else { return Ok(None) };
        let mark = pool.bookmark(&format!("{}#{}", find(seen.dataset(), pool)?.name(), seen.short_name()))?;
        let of = |mark: &pool::Bookmark| (mark.phys().guid, mark.phys().creation_txg);
        if of(&mark) == of(&seen) { Ok(Some(mark.name().to_owned())) } else { Err(gone(from)) }
    }
}

/// A dataset as another state of its pool has it.
fn find(seen: &Dataset, pool: &Arc<Pool>) -> Result<Dataset, PoolError> {
    let found = pool.dataset_by_id(seen.id()).ok().filter(|found| found.guid() == seen.guid());
    found.ok_or_else(|| gone(seen.name()))
}

/// What was found; `None` if it does not exist.
fn if_there<T>(found: Result<T, PoolError>) -> Result<Option<T>, PoolError> {
    match found {
        Err(e) if e.is_not_found() => Ok(None),
        found => found.map(Some),
    }
}

fn gone(name: &str) -> PoolError {
    PoolError::NoSuchDataset { name: name.to_owned() }
}
