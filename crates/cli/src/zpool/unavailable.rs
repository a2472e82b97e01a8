//! An imported pool that no longer opens: its devices are gone, or their contents are damaged. It is shown as OpenZFS
//! shows an UNAVAIL pool: with its devices, as far as they are known, and no figures.

use base::Guid;
use nvlist::NvList;
use site::tryimport::{ERRNO, LOAD_INFO, try_import};
use site::{Imported, Query, devices};
use vdev::VdevState;

use super::reason::Reason;
use super::show::View;
use super::vdev_json::{self, Numbers};
use super::vdevs::{NameFlags, Vdev, Vdevs};
use crate::columns::{Cell, Column, number_or_text};
use crate::error::{Failure, Outcome};
use crate::pools;

/// An imported pool, as commands that show pools see it.
pub(super) enum Seen {
    /// It opens.
    Open(Box<Query>),
    /// It does not.
    Unavailable(Box<Unavailable>),
}

/// Runs `work` on the pools of these names, on all if there are none, whether they open or not. Returns the exit
/// status: 1 if there is no pool of some name, or something failed, which is reported.
pub(super) fn each(names: &[String], mut work: impl FnMut(Seen) -> Result<(), Failure>) -> Outcome {
    let done = pools::for_each_record(names, |record| match pools::query(record) {
        Ok(query) => work(Seen::Open(Box::new(query))),
        Err(Failure::Failed(why)) => work(Seen::Unavailable(Box::new(Unavailable::of(record, &why)))),
        Err(other) => Err(other),
    })?;
    Ok(done.0)
}

/// The known facts about a pool that does not open.
pub(super) struct Unavailable {
    pub(super) name: String,
    guid: Guid,
    pub(super) vdevs: Vdevs,
    pub(super) reason: Reason,
    /// Why it does not open.
    pub(super) why: String,
}

impl Unavailable {
    /// Inspects a pool that did not open for this reason.
    pub(super) fn of(record: &Imported, why: &str) -> Unavailable {
        let (mut vdevs, mut reason) = (Vdevs::of_paths(&record.devices), Reason::MissingDev);
        if let Ok(candidate) = devices::candidate(record) {
            let config = try_import(&candidate, &devices::options(record));
            // it may open now
            if config.get_nvlist(LOAD_INFO).is_some_and(|info| info.contains(ERRNO)) {
                let seen = View::of(&config, false);
                reason = seen.reason;
                vdevs = seen.vdevs.unwrap_or(vdevs);
            }
        }
        vdevs.root.state = VdevState::CantOpen;
        if let Some(suspended) = site::suspended::of(record.guid) {
            vdevs.set_states(&suspended);
            reason = Reason::of_suspended(suspended.failmode());
        }
        let prefix = format!("cannot open '{}': ", record.name);
        let why = why.strip_prefix(&prefix).unwrap_or(why).to_owned();
        Unavailable { name: record.name.clone(), guid: record.guid, vdevs, reason, why }
    }

    /// The value in a column of `zpool list` and `get` (OpenZFS: `zpool_get_prop` of a pool that is UNAVAIL).
    pub(super) fn cell(&self, column: &Column) -> Cell {
        let text = match &*column.name {
            "name" => self.name.clone(),
            "health" => self.reason.state_name(VdevState::CantOpen).to_owned(),
            "guid" => self.guid.to_string(),
            _ => return Cell::none(),
        };
        Cell { text, ..Cell::none() }
    }

    /// The key of its entry in JSON.
    pub(super) fn key(&self, by_guid: bool) -> String {
        if by_guid { self.guid.to_string() } else { self.name.clone() }
    }

    /// The JSON fields of each pool.
    pub(super) fn describe(&self, as_int: bool) -> NvList {
        let mut item = NvList::new();
        item.insert("name", self.name.as_str());
        item.insert("state", self.reason.state_name(VdevState::CantOpen));
        item.insert("pool_guid", number_or_text(&self.guid.to_string(), as_int));
        item
    }

    /// The entry of `zpool status -j`.
    pub(super) fn json(&self, names: NameFlags, numbers: Numbers) -> NvList {
        let mut item = self.describe(numbers.as_int);
        let (status, action) = self.reason.status();
        for (key, text) in [("status", status), ("action", action)].iter().filter(|(_, text)| !text.is_empty()) {
            item.insert(*key, *text);
        }
        if let Some(id) = self.reason.message_id() {
            item.insert("msgid", id);
            item.insert("moreinfo", format!("https://openzfs.github.io/openzfs-docs/msg/{id}"));
        }
        let mut vdevs = NvList::new();
        self.vdev_json(&mut vdevs, &self.vdevs.root, names, numbers);
        item.insert("vdevs", vdevs);
        item
    }

    fn vdev_json(&self, into: &mut NvList, vdev: &Vdev, names: NameFlags, numbers: Numbers) {
        let mut list = vdev_json::describe_vdev(&self.name, vdev, names, numbers.as_int, None);
        let mut children = NvList::new();
        for child in vdev.children.iter().filter(|child| !child.is_hidden()) {
            self.vdev_json(&mut children, child, names, numbers);
        }
        if !children.is_empty() {
            list.insert("vdevs", children);
        }
        into.insert(vdev.name(&self.name, names), list);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn devices_that_are_gone_are_told_by_where_they_were() {
        let record = Imported {
            name: "gone".into(),
            guid: Guid(7),
            devices: vec![PathBuf::from("/no/such")],
            ..Imported::default()
        };
        let pool = Unavailable::of(&record, "cannot open 'gone': its devices are not there any more");
        assert_eq!((pool.why.as_str(), pool.reason), ("its devices are not there any more", Reason::MissingDev));
        let leaves: Vec<_> =
            pool.vdevs.root.leaves().iter().map(|leaf| leaf.name("gone", NameFlags::default())).collect();
        assert_eq!(leaves, ["/no/such"]);
    }
}
