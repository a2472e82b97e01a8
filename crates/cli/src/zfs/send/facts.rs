//! The datasets of a pool, as requests tell what a stream or package needs to know of them.

use std::sync::Arc;

use base::{Guid, Txg};
use control::{Failed, Ioc};
use nvlist::NvList;
use site::Query;
use stream::package::{Details, Error, Facts, Head, Snap};

use crate::answers;
use crate::zfs::listed::is_missing;

/// Tells of the datasets of one pool.
pub(super) struct Asked<'a> {
    pub(super) source: &'a Arc<Query>,
    /// Tells the values of properties that came with a stream, instead of those that are set.
    pub(super) received: bool,
}

impl Facts for Asked<'_> {
    fn snapshots(&self, head: &str) -> Result<Vec<Snap>, Error> {
        snapshots(self.source, head).map_err(cannot)
    }

    fn snapshot(&self, head: &str, name: &str) -> Result<Option<Snap>, Error> {
        if_any(self.source, &format!("{head}@{name}")).map_err(cannot)
    }

    fn props(&self, head: &str, snaps: &[Snap]) -> Result<Vec<NvList>, Error> {
        self.stored(head, snaps).map_err(cannot)
    }

    fn children(&self, head: &str) -> Result<Vec<Head>, Error> {
        let mut all = Vec::new();
        let below = self.source.call(Ioc::DatasetListNext, head, &asking(["simple"])).map_err(cannot)?;
        for (name, list) in below.iter().filter_map(|(name, list)| Some((name, list.as_nvlist()?))) {
            let Snap { name, guid, txg } = fact(name, list).map_err(cannot)?;
            all.push(Head { name, guid, txg });
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn details(&self, head: &str) -> Result<Details, Error> {
        self.asked(head).map_err(cannot)
    }

    fn holds(&self, snapshot: &str) -> Result<NvList, Error> {
        self.source.call(Ioc::GetHolds, snapshot, &NvList::new()).map_err(cannot)
    }
}

impl Asked<'_> {
    fn asked(&self, head: &str) -> Result<Details, Failed> {
        let answer = self.source.call(Ioc::ObjsetStats, head, &asking(["origin", "stored"]))?;
        let encryption_root = answer.get_str("encryption_root").map(str::to_owned);
        Ok(Details { origin: origin_of(head, &answer)?, encryption_root, props: self.own(head, &answer)? })
    }

    fn stored(&self, head: &str, snaps: &[Snap]) -> Result<Vec<NvList>, Failed> {
        let mut input = asking(["simple", "special", "stored"]);
        for (key, snap) in [("snap_iter_min_txg", snaps.first()), ("snap_iter_max_txg", snaps.last())] {
            input.insert(key, snap.map_or(0, |snap| snap.txg.0));
        }
        let answer = self.source.call(Ioc::SnapshotListNext, head, &input)?;
        snaps
            .iter()
            .map(|snap| self.own(&snap.name, told(&snap.name, "list", answer.get_nvlist(&snap.name))?))
            .collect()
    }

    /// The properties that are sent, of those that a dataset has of its own.
    fn own(&self, name: &str, answer: &NvList) -> Result<NvList, Failed> {
        let stored = told(name, "stored", answer.get_nvlist("stored"))?;
        let key = if self.received { "received" } else { "value" };
        let mut props = NvList::new();
        for (name, prop) in stored {
            if let Some(value) = prop.as_nvlist().and_then(|prop| prop.get(key)) {
                props.insert(name, value.clone());
            }
        }
        Ok(props)
    }
}

/// The snapshots of a dataset, oldest first, whatever their names.
pub(super) fn snapshots(source: &Query, head: &str) -> Result<Vec<Snap>, Failed> {
    let answer = source.call(Ioc::SnapshotListNext, head, &asking(["simple", "special"]))?;
    let mut all = Vec::with_capacity(answer.len());
    for (name, list) in answer.iter().filter_map(|(name, list)| Some((name, list.as_nvlist()?))) {
        all.push(fact(name, list)?);
    }
    all.sort_by(|a, b| (a.txg, &a.name).cmp(&(b.txg, &b.name)));
    Ok(all)
}

/// A dataset or snapshot, by the name that it has on disk: a snapshot of a file system that ignores case is found by others too.
pub(super) fn one(source: &Query, name: &str) -> Result<Snap, Failed> {
    named(name, &source.call(Ioc::ObjsetStats, name, &asking(["simple"]))?)
}

/// The same, if it exists. What would have too long a name does not.
pub(super) fn if_any(source: &Query, name: &str) -> Result<Option<Snap>, Failed> {
    let is_none = |failed: &Failed| {
        is_missing(failed) || matches!(&*failed.error, control::Error::Pool(pool::Error::InvalidName { .. }))
    };
    match one(source, name) {
        Ok(found) => Ok(Some(found)),
        Err(failed) if is_none(&failed) => Ok(None),
        Err(failed) => Err(failed),
    }
}

/// The snapshot that a file system or volume was cloned from.
pub(super) fn origin(source: &Query, head: &str) -> Result<Option<Snap>, Failed> {
    origin_of(head, &source.call(Ioc::ObjsetStats, head, &asking(["origin"]))?)
}

/// The guids of the snapshots with respect to which a dataset was redacted; `None` if it is whole.
pub(super) fn redact_snaps(source: &Query, name: &str) -> Result<Option<Vec<Guid>>, Failed> {
    let text = answers::prop(source, name, "redact_snaps")?.map(|value| value.to_string());
    Ok(text.map(|text| text.split(',').filter_map(|guid| guid.parse().ok().map(Guid)).collect()))
}

/// Whether a bookmark was made by a redacted send; so it is if its redaction list is there, but cannot be read.
pub(super) fn is_redaction(source: &Query, mark: &str) -> bool {
    source.call(Ioc::GetBookmarkProps, mark, &NvList::new()).map_or(true, |props| props.contains("redact_snaps"))
}

/// Whether a snapshot that `head` had in `txg` is in the past of `to` (OpenZFS: `snapshot_is_before`).
pub(super) fn is_before(source: &Query, (head, txg): (&str, Txg), to: &Snap) -> Result<bool, Failed> {
    let (mut dir, mut limit) = match to.name.split_once('@') {
        Some((dir, _)) => (dir.to_owned(), to.txg),
        None => (to.name.clone(), Txg(u64::MAX)),
    };
    while txg < limit {
        if dir == head {
            return Ok(true);
        }
        let Some(origin) = origin(source, &dir)? else { return Ok(false) };
        let above = origin.name.split('@').next().unwrap_or_default();
        if (above, origin.txg) == (head, txg) {
            return Ok(true);
        }
        if origin.txg >= limit {
            return Err(control::Error::Damaged(format!("'{dir}': its origins do not grow older")).into());
        }
        (dir, limit) = (above.to_owned(), origin.txg);
    }
    Ok(false)
}

/// A request with these keys.
fn asking<const N: usize>(keys: [&str; N]) -> NvList {
    let mut input = NvList::new();
    keys.into_iter().for_each(|key| input.insert(key, ()));
    input
}

/// The origin of `head`, in the answer about it.
fn origin_of(head: &str, answer: &NvList) -> Result<Option<Snap>, Failed> {
    answer.get_nvlist("origin").map(|origin| named(head, origin)).transpose()
}

/// What an answer about `name` tells, with its name on disk.
fn named(name: &str, answer: &NvList) -> Result<Snap, Failed> {
    fact(told(name, "name", answer.get_str("name"))?, answer)
}

/// One of an answer that lists them.
fn fact(name: &str, list: &NvList) -> Result<Snap, Failed> {
    let number = |key: &'static str| told(name, key, list.get_u64(key));
    let (guid, txg) = (Guid(number("dds_guid")?), Txg(number("dds_creation_txg")?));
    Ok(Snap { name: name.to_owned(), guid, txg })
}

/// What an answer must have: it decides what is sent.
fn told<T>(name: &str, key: &'static str, found: Option<T>) -> Result<T, Failed> {
    found.ok_or_else(|| control::Error::Damaged(format!("the answer about '{name}' has no {key}")).into())
}

fn cannot(failed: Failed) -> Error {
    Error::Facts(Box::new(failed))
}

#[cfg(test)]
mod tests;
