//! The imported pools, as commands find and open them: failures are in the words of OpenZFS's tools.

use std::io;
use std::sync::Arc;

use control::stats::{FEATURE_STATS, SUSPENDED};
use control::{Failed, Ioc};
use nvlist::NvList;
use pool::{Pool, feature};
use site::{Imported, Query};

use crate::console::Out;
use crate::console::here;
use crate::error::{Failure, failed};

/// Opens a remembered pool, and loads the keys that are kept.
pub(crate) fn open(record: &Imported) -> Result<Arc<Pool>, Failure> {
    Ok(here().open(record)?)
}

/// The same for questions.
pub(crate) fn query(record: &Imported) -> Result<Query, Failure> {
    Ok(here().query(&open(record)?))
}

/// The pool that a dataset is in, if it is imported, for questions.
pub(crate) fn of_dataset(dataset: &str) -> Result<Option<Arc<Query>>, Failure> {
    Ok(here().of_dataset(dataset)?.map(|pool| Arc::new(here().query(&pool))))
}

/// What asks for the configuration of a pool with its figures, without what takes a walk through the pool.
pub(crate) fn brief() -> NvList {
    let mut input = NvList::new();
    input.insert("brief", ());
    input
}

/// The configuration of a pool that [`brief`] asks for.
pub(crate) fn brief_stats(query: &Query) -> Result<NvList, Failed> {
    query.call(Ioc::PoolStats, query.name(), &brief())
}

/// As [`brief_stats`], with what is stored in the pool.
///
/// # Errors
/// Also where the pool is suspended and shows itself without.
pub(crate) fn whole_stats(query: &Query) -> Result<NvList, Failed> {
    let config = brief_stats(query)?;
    if config.contains(SUSPENDED) && !config.contains(FEATURE_STATS) {
        let why = pool::Error::IoFailure("its configuration cannot be read".to_owned());
        return Err(control::Error::Suspended(Arc::new(why)).into());
    }
    Ok(config)
}

/// Whether a feature of a pool is enabled.
pub(crate) fn has_feature(query: &Query, name: &str) -> Result<bool, Failed> {
    let config = whole_stats(query)?;
    let enabled = config.get_nvlist(FEATURE_STATS);
    Ok(feature::by_name(name).is_some_and(|def| enabled.is_some_and(|enabled| enabled.contains(def.guid))))
}

/// Opens all imported pools for questions. One that does not open is reported, and the others are returned.
pub(crate) fn open_all() -> Result<(Vec<Query>, bool), Failure> {
    let mut whole = true;
    let mut pools = Vec::new();
    for imported in here().all()? {
        match query(&imported) {
            Ok(pool) => pools.push(pool),
            Err(Failure::Failed(why)) => {
                eprintln!("{why}");
                whole = false;
            }
            Err(other) => return Err(other),
        }
    }
    Ok((pools, whole))
}

/// The imported pools of these names, all if there are none, sorted. A name without a pool is reported, and makes the
/// status 1.
pub(crate) fn records(names: &[String]) -> Result<(Vec<Imported>, u8), Failure> {
    if names.is_empty() {
        return Ok((here().all()?, 0));
    }
    let mut status = 0;
    let mut records: Vec<Imported> = Vec::new();
    for name in names {
        match here().find(name)? {
            Some(record) if records.iter().any(|r| r.guid == record.guid) => {}
            Some(record) => records.push(record),
            None => {
                eprintln!("cannot open '{name}': {}", missing(name));
                status = 1;
            }
        }
    }
    records.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((records, status))
}

/// The imported pool of this name.
pub(crate) fn find(name: &str) -> Result<Imported, Failure> {
    here().find(name)?.ok_or_else(|| failed(format!("cannot open '{name}': {}", missing(name))))
}

/// Runs `work` on the pools of these names, on all if there are none, and reports each failure. Returns the exit
/// status.
pub(crate) fn for_each_record(
    names: &[String],
    mut work: impl FnMut(&Imported) -> Result<(), Failure>,
) -> Result<(u8, bool), Failure> {
    let (records, mut status) = records(names)?;
    let mut any = false;
    for record in records {
        match work(&record) {
            Ok(()) => any = true,
            Err(Failure::Failed(why)) => {
                if !why.is_empty() {
                    eprintln!("{why}");
                }
                status = 1;
            }
            Err(other) => return Err(other),
        }
    }
    Ok((status, any))
}

/// The same with each pool opened, for questions. Returns the exit status, and whether there was any pool.
pub(crate) fn for_each(
    names: &[String],
    mut work: impl FnMut(Query) -> Result<(), Failure>,
) -> Result<(u8, bool), Failure> {
    for_each_record(names, |record| query(record).and_then(&mut work))
}

/// Why there is no pool of this name.
fn missing(name: &str) -> String {
    crate::names::check_pool(name).err().unwrap_or_else(|| "no such pool".to_owned())
}

/// Buffered standard output, for text.
pub(crate) fn stdout() -> io::BufWriter<Out> {
    io::BufWriter::with_capacity(64 << 10, Out::new())
}
