//! Streams of a pool that other processes may change meanwhile.
//!
//! A stream is made of a state of the pool that was opened, perhaps long ago: while other streams of a package were sent before it. Until the dataset is
//! [held](crate::long_holds) others may have changed it, or have destroyed it, and as long as a state is read it may be overwritten. So a request to send
//!
//! 1. holds the dataset, by its number in the state in which it was asked for;
//! 2. refuses a head that another process has open, for what that writes is not on disk yet;
//! 3. looks whether the pool was written since: what is gone is not sent, and a head is sent as it is now;
//! 4. is tried a second time, in the current state, if it failed before anything was written.
//!
//! Datasets are found again by their numbers: while they are held they may be renamed.

use control::{Failed, Ioc};
use nvlist::NvList;
use pool::{Dataset, Error as PoolError, Refusal};

use crate::error::opening;
use crate::long_holds::{Held, Looking};
use crate::{Query, Site, left};

/// A request in a later state of the pool.
struct Anew {
    query: Query,
    name: String,
    input: NvList,
}

impl Anew {
    fn call(&self) -> Result<NvList, Failed> {
        self.query.control.call(Ioc::SendNew, &self.name, &self.input)
    }
}

impl Query {
    /// Holds datasets for the time between requests, as those of a package until their streams are sent; nobody has destroyed any since `looking` began. `None`
    /// if one is not there, or holds cannot be recorded.
    #[must_use]
    pub fn hold<'a>(&self, looking: Looking, names: impl IntoIterator<Item = &'a str>) -> Option<Held> {
        let ids = names.into_iter().map(|name| self.pool().dataset(name).map(|dataset| dataset.id()));
        looking.hold(ids.collect::<Result<Vec<_>, _>>().ok()?)
    }

    /// Sends a stream.
    pub(crate) fn send(&self, name: &str, input: &NvList) -> Result<NvList, Failed> {
        let as_opened = || self.control.call(Ioc::SendNew, name, input);
        let (Some(site), Ok(to)) = (&self.site, self.pool().dataset(name)) else { return as_opened() };
        let held = Looking::at(name, &**site.front()).and_then(|looking| looking.hold([to.id()]));
        let mut now = None;
        if let Some(held) = &held {
            if !to.is_snapshot() && held.is_open_elsewhere(to.id()) {
                return Err(PoolError::Refused { name: name.to_owned(), why: Refusal::Busy }.into());
            }
            now = self.anew(site, &to, input)?.filter(|_| !to.is_snapshot());
        }
        let number = input.get_i32("fd").unwrap_or(-1);
        let before = self.caller.files.sent(number);
        let sent = now.as_ref().map_or_else(as_opened, Anew::call);
        match sent {
            Err(failed) if self.caller.files.sent(number) == before => match self.anew(site, &to, input) {
                Ok(Some(anew)) => anew.call(),
                _ => Err(failed),
            },
            done => done,
        }
    }

    /// The request in the state that the pool has now; `None` if it was not written since it was opened.
    fn anew(&self, site: &Site, to: &Dataset, input: &NvList) -> Result<Option<Anew>, Failed> {
        let txg = |pool: &pool::Pool| pool.uberblock().txg;
        if left::of(self.guid()).is_none_or(|left| left <= txg(self.pool())) {
            return Ok(None);
        }
        let gone = |name: &str| PoolError::NoSuchDataset { name: name.to_owned() };
        let mut pool = site.of_dataset(self.name()).map_err(opening)?;
        if pool.as_ref().is_some_and(|pool| left::of(self.guid()).is_some_and(|left| left > txg(pool))) {
            site.look_again();
            pool = site.of_dataset(self.name()).map_err(opening)?;
        }
        let pool = pool.ok_or_else(|| gone(self.name()))?;
        let find = |seen: &Dataset| pool.dataset_by_id(seen.id()).ok().filter(|found| found.guid() == seen.guid());
        let name = find(to).ok_or_else(|| gone(to.name()))?.name().to_owned();
        let mut input = input.clone();
        if let Some(from) = input.get_str("fromsnap").filter(|from| !from.contains('#'))
            && let Ok(from) = self.pool().dataset(from)
            && let Some(found) = find(&from)
        {
            input.insert("fromsnap", found.name());
        }
        let query = site.query(&pool).of(&self.caller);
        Ok(Some(Anew { query, name, input }))
    }
}
