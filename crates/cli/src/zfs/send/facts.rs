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
        self.listed(head).map_err(cannot)
    }

    fn snapshot(&self, head: &str, name: &str) -> Result<Option<Snap>, Error> {
        if_any(one(self.source, &format!("{head}@{name}"))).map_err(cannot)
    }

    fn children(&self, head: &str) -> Result<Vec<Head>, Error> {
        let mut all = Vec::new();
        let below = list(self.source, Ioc::DatasetListNext, head, false).map_err(cannot)?;
        for (name, list) in below.iter().filter_map(|(name, list)| Some((name, list.as_nvlist()?))) {
            let Snap { name, guid, txg, .. } = fact(name, list).map_err(cannot)?;
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
    fn listed(&self, head: &str) -> Result<Vec<Snap>, Failed> {
        let props = |list: &NvList| list.get_nvlist("stored").map(|stored| self.props(stored)).unwrap_or_default();
        by_age(&list(self.source, Ioc::SnapshotListNext, head, true)?, props)
    }

    fn asked(&self, head: &str) -> Result<Details, Failed> {
        let mut input = NvList::new();
        input.insert("props", answers::names(["origin", "encryptionroot"]));
        let answer = self.source.call(Ioc::ObjsetStats, head, &input)?;
        let text = |name: &str| answer.get_nvlist(name).and_then(|prop| prop.get_str("value"));
        let origin = text("origin").map(|name| one(self.source, name)).transpose()?;
        let encryption_root = text("encryptionroot").map(str::to_owned);
        let mut input = NvList::new();
        input.insert("stored", ());
        let props = self.props(&self.source.call(Ioc::ObjsetStats, head, &input)?);
        Ok(Details { origin, encryption_root, props })
    }

    /// The properties that are sent, of those that a dataset has of its own.
    fn props(&self, stored: &NvList) -> NvList {
        let key = if self.received { "received" } else { "value" };
        let mut props = NvList::new();
        for (name, prop) in stored {
            if let Some(value) = prop.as_nvlist().and_then(|prop| prop.get(key)) {
                props.insert(name, value.clone());
            }
        }
        props
    }
}

/// The snapshots of a dataset, oldest first.
pub(super) fn snapshots(source: &Query, head: &str) -> Result<Vec<Snap>, Failed> {
    by_age(&list(source, Ioc::SnapshotListNext, head, false)?, |_| NvList::new())
}

/// A dataset or snapshot, by the name that it has on disk: a snapshot of a file system that ignores case is found by others too.
pub(super) fn one(source: &Query, name: &str) -> Result<Snap, Failed> {
    let mut input = NvList::new();
    input.insert("props", answers::names(["name", "createtxg", "guid"]));
    let answer = source.call(Ioc::ObjsetStats, name, &input)?;
    let prop = |key: &str| answer.get_nvlist(key);
    let number = |key: &'static str| told(name, key, prop(key).and_then(|prop| prop.get_u64("value")));
    let own = prop("name").and_then(|prop| prop.get_str("value")).unwrap_or(name);
    Ok(Snap { name: own.to_owned(), guid: Guid(number("guid")?), txg: Txg(number("createtxg")?), props: NvList::new() })
}

/// The snapshot that a file system or volume was cloned from.
pub(super) fn origin(source: &Query, head: &str) -> Result<Option<Snap>, Failed> {
    let name = answers::prop(source, head, "origin")?;
    name.map(|name| one(source, &name.to_string())).transpose()
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

/// What is found, if it exists.
pub(super) fn if_any<T>(found: Result<T, Failed>) -> Result<Option<T>, Failed> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(failed) if is_missing(&failed) => Ok(None),
        Err(failed) => Err(failed),
    }
}

/// What `ioc` lists directly below a dataset, perhaps with the properties of its own that each has.
fn list(source: &Query, ioc: Ioc, head: &str, stored: bool) -> Result<NvList, Failed> {
    let mut input = NvList::new();
    input.insert("simple", ());
    if stored {
        input.insert("stored", ());
    }
    source.call(ioc, head, &input)
}

fn by_age(answer: &NvList, props: impl Fn(&NvList) -> NvList) -> Result<Vec<Snap>, Failed> {
    let mut all = Vec::with_capacity(answer.len());
    for (name, list) in answer.iter().filter_map(|(name, list)| Some((name, list.as_nvlist()?))) {
        all.push(Snap { props: props(list), ..fact(name, list)? });
    }
    all.sort_by(|a, b| (a.txg, &a.name).cmp(&(b.txg, &b.name)));
    Ok(all)
}

/// One of an answer that lists them.
fn fact(name: &str, list: &NvList) -> Result<Snap, Failed> {
    let number = |key: &'static str| told(name, key, list.get_u64(key));
    let (guid, txg) = (Guid(number("dds_guid")?), Txg(number("dds_creation_txg")?));
    Ok(Snap { name: name.to_owned(), guid, txg, props: NvList::new() })
}

/// A number that an answer must have: it decides what is sent.
fn told(name: &str, key: &'static str, number: Option<u64>) -> Result<u64, Failed> {
    number.ok_or_else(|| control::Error::Damaged(format!("the answer about '{name}' has no {key}")).into())
}

fn cannot(failed: Failed) -> Error {
    Error::Facts(Box::new(failed))
}
