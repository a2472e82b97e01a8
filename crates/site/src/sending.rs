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
//! In a later state datasets are found by their numbers and guids, which are looked up when they are held, or before the stream is tried: while they are held they may be renamed, a start
//! that is not held may have been destroyed, and another have its name; and the names of an earlier state may not be readable any more.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Guid, ObjectId, Txg};
use control::{Failed, Ioc};
use nvlist::NvList;
use pool::{Dataset, Error as PoolError, Pool, Refusal};

use crate::error::opening;
use crate::long_holds::{Looking, is_open_elsewhere};
use crate::{Query, Site, left};

/// Limit on the states of a pool in which a stream is tried.
const TRIES: usize = 3;

/// A dataset, as it was seen in one state of its pool.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    name: String,
    id: ObjectId,
    guid: Guid,
    is_snapshot: bool,
}

impl Seen {
    fn of(dataset: &Dataset) -> Seen {
        let (name, is_snapshot) = (dataset.name().to_owned(), dataset.is_snapshot());
        Seen { name, id: dataset.id(), guid: dataset.guid(), is_snapshot }
    }

    /// The dataset as another state of its pool has it.
    fn find(&self, pool: &Arc<Pool>) -> Result<Dataset, PoolError> {
        let found = pool.dataset_by_id(self.id).ok().filter(|found| found.guid() == self.guid);
        found.ok_or_else(|| gone(&self.name))
    }
}

/// The start of a stream.
enum Start {
    /// A snapshot.
    Snapshot(Seen),
    /// A bookmark of a dataset, which has no number of its own.
    Bookmark {
        of: Seen,
        short_name: String,
        /// The guid of its snapshot, and the txg of that.
        origin: (Guid, Txg),
    },
}

impl Start {
    /// The name that it has in a state of its pool.
    fn name_in(&self, pool: &Arc<Pool>) -> Result<String, PoolError> {
        match self {
            Start::Snapshot(seen) => Ok(seen.find(pool)?.name().to_owned()),
            Start::Bookmark { of, short_name, origin } => {
                let name = format!("{}#{short_name}", of.find(pool)?.name());
                let mark = pool.bookmark(&name)?;
                if (mark.phys().guid, mark.phys().creation_txg) == *origin { Ok(name) } else { Err(gone(&name)) }
            }
        }
    }
}

/// What is sent, as it was seen before it was tried.
struct Wanted {
    to: Seen,
    /// `None` if there is no start, or not in that state; its error if it could not be looked up.
    start: Result<Option<Start>, PoolError>,
}

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
        let look_up = |name: &'a str| Some((name.to_owned(), Seen::of(&self.pool().dataset(name).ok()?)));
        let all: HashMap<String, Seen> = names.into_iter().filter_map(look_up).collect();
        let held = looking.hold(all.values().map(|seen| seen.id));
        let heads: Vec<&Seen> = all.values().filter(|seen| !seen.is_snapshot).collect();
        let now = match &self.site {
            Some(site) if !heads.is_empty() => self.now(site, &heads)?,
            _ => None,
        };
        let query = now.map_or_else(|| self.clone(), |pool| self.seen_in(&pool));
        Ok(match held {
            Some(held) => query.holding(held, all),
            None => query.without_holds(),
        })
    }

    /// Sends a stream.
    pub(crate) fn send(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let Some((site, wanted)) = self.site.as_ref().zip(self.wanted(name, input)) else {
            return self.control.call(Ioc::SendNew, name, input);
        };
        let to = &wanted.to;
        let mut attempt = Attempt { query: self.clone(), name: name.to_owned(), input: input.clone() };
        let mut _held = None;
        if !self.held.as_ref().is_some_and(|held| held.contains(to.id)) {
            let looking = if self.holds { Looking::at(name, &**site.front()) } else { None };
            _held = looking.and_then(|looking| looking.hold([to.id]));
            // a head may have changed since it was looked up, held or not
            let now = if to.is_snapshot && _held.is_none() { None } else { self.now(site, &[to])? };
            if let Some(pool) = now.filter(|_| !to.is_snapshot) {
                attempt = self.later(&pool, &wanted, input)?;
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
            let Ok(later) = self.later(&pool, &wanted, input) else { break };
            attempt = later;
            sent = attempt.call();
        }
        sent
    }

    fn txg(&self) -> Txg {
        self.pool().uberblock().txg
    }

    /// What is to be sent, if it is there: as it was seen when it was held, or is seen now.
    fn wanted(&self, name: &str, input: &NvList) -> Option<Wanted> {
        let to = self.seen.get(name).cloned().or_else(|| Some(Seen::of(&self.pool().dataset(name).ok()?)))?;
        let start = input.get_str("fromsnap").map_or(Ok(None), |from| self.start(from));
        Some(Wanted { to, start })
    }

    /// The start of a stream; `None` if it is not there.
    fn start(&self, from: &str) -> Result<Option<Start>, PoolError> {
        if let Some(seen) = self.seen.get(from) {
            return Ok(Some(Start::Snapshot(seen.clone())));
        }
        if !from.contains('#') {
            return Ok(if_there(self.pool().dataset(from))?.map(|dataset| Start::Snapshot(Seen::of(&dataset))));
        }
        Ok(if_there(self.pool().bookmark(from))?.map(|mark| Start::Bookmark {
            of: Seen::of(mark.dataset()),
            short_name: mark.short_name().to_owned(),
            origin: (mark.phys().guid, mark.phys().creation_txg),
        }))
    }

    /// The pool as it is once these datasets are held, or could not be; `None` if it was not written since it was opened.
    fn now(&self, site: &Site, datasets: &[&Seen]) -> Result<Option<Arc<Pool>>, Failed> {
        let mut heads = datasets.iter().filter(|dataset| !dataset.is_snapshot);
        if let Some(busy) = heads.find(|head| is_open_elsewhere(self.guid(), head.id)) {
            return Err(PoolError::Refused { name: busy.name.clone(), why: Refusal::Busy }.into());
        }
        let Some(written) = left::of(self.guid()).filter(|left| *left > self.txg()) else { return Ok(None) };
        let pool = self.not_before(site, written)?.ok_or_else(|| gone(self.name()))?;
        datasets.iter().try_for_each(|dataset| dataset.find(&pool).map(drop))?;
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
    fn later(&self, pool: &Arc<Pool>, wanted: &Wanted, input: &NvList) -> Result<Attempt, Failed> {
        let mut input = input.clone();
        match &wanted.start {
            Ok(Some(start)) => input.insert("fromsnap", start.name_in(pool)?),
            Ok(None) => {}
            // another may have its name there
            Err(_) => return Err(gone(input.get_str("fromsnap").unwrap_or_default()).into()),
        }
        Ok(Attempt { query: self.seen_in(pool), name: wanted.to.find(pool)?.name().to_owned(), input })
    }
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
