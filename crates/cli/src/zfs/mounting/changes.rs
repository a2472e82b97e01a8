//! The file systems whose mounts a change of a name or of a mount point is about: unmounted before it, mounted after it (OpenZFS:
//! `libzfs_changelist.c`).
//!
//! What is gathered is the file system that changes, and those below it that take their mount points from it; for a rename, all that are mounted below.
//! They are unmounted in the order of their mount points, the inner ones first. If one is busy the others are mounted again, and nothing changes.

use std::sync::Arc;

use mounts::{Mounts, Source};

use super::options::Options;
use super::{Ask, CANMOUNT_NOAUTO, CANMOUNT_ON, Facts, mount, source, unmount, wanted};
use crate::console;
use crate::error::Failure;
use crate::error::failed;
use crate::zfs::listed::{self, Listed};
use crate::zfs::select::told;
use crate::zfs::session::Session;

/// What changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::zfs) enum Change {
    /// The property `mountpoint`.
    Mountpoint,
    /// The property `canmount`, to `off`.
    Canmount,
    /// The property `zoned`.
    Zoned,
    /// The name.
    Name,
    /// The contents are new: all are mounted after it.
    Received,
}

impl Change {
    /// The change that setting a property is.
    pub(in crate::zfs) fn of_property(name: &str) -> Option<Change> {
        match name {
            "mountpoint" => Some(Change::Mountpoint),
            "canmount" => Some(Change::Canmount),
            "zoned" => Some(Change::Zoned),
            _ => None,
        }
    }

    /// The message where not all could be mounted after it. OpenZFS prints it for properties, and its exit status is 0.
    const fn not_mounted(self) -> &'static str {
        match self {
            Change::Mountpoint | Change::Canmount | Change::Zoned => {
                "property may be set but unable to remount filesystem"
            }
            Change::Name => "renamed, but not all file systems could be mounted",
            Change::Received => "received, but not all file systems could be mounted",
        }
    }
}

/// A file system.
struct Node {
    facts: Facts,
    was_mounted: bool,
    /// It is to be mounted after the change, if it was before.
    needs_post: bool,
}

/// The file systems, the inner ones first.
pub(in crate::zfs) struct Changes<'a> {
    session: &'a Session,
    table: Option<Arc<Mounts>>,
    change: Change,
    force: bool,
    nodes: Vec<Node>,
    /// The mount point is `legacy` or `none`.
    by_name: bool,
    /// It was, and the file system is to be mounted if it has one.
    was_legacy: bool,
}

impl<'a> Changes<'a> {
    /// Gathers them; there are none without a table of mounts.
    pub(in crate::zfs) fn gather(
        session: &'a Session,
        dataset: &Listed,
        change: Change,
        force: bool,
    ) -> Result<Changes<'a>, Failure> {
        let name = dataset.name();
        let is_head = !name.contains(['@', '#']);
        let table = console::mounts().filter(|_| is_head);
        let mut changes =
            Changes { session, table, change, force, nodes: Vec::new(), by_name: false, was_legacy: false };
        let Some(table) = changes.table.clone() else { return Ok(changes) };
        if dataset.kind().map_err(|e| failed(told(&e, name)))? != pool::Kind::Filesystem {
            return Ok(changes);
        }
        let mut names = vec![name.to_owned()];
        match change {
            Change::Name => names.extend(table.below(name).iter().map(|entry| entry.name())),
            _ => changes.inheriting(dataset, &mut names)?,
        }
        names.retain(|name| !name.contains('@'));
        names.sort();
        names.dedup();
        for name in names {
            let facts = Facts::now(&name)?;
            // what was mounted by other means stays where it is, whatever its name
            if change == Change::Name && facts.point().is_none() && facts.name != dataset.name() {
                continue;
            }
            let was_mounted = change == Change::Received || table.of(&name).is_some();
            changes.nodes.push(Node { facts, was_mounted, needs_post: true });
        }
        let own = changes.nodes.iter().find(|node| node.facts.name == name);
        let by_name = own.is_some_and(|own| own.facts.point().is_none());
        changes.by_name = by_name;
        changes.was_legacy = by_name && own.is_some_and(|own| own.facts.canmount != CANMOUNT_NOAUTO);
        let key = |node: &Node| if by_name { node.facts.name.clone() } else { node.facts.mountpoint.clone() };
        changes.nodes.sort_by_cached_key(|node| std::cmp::Reverse((key(node), node.facts.name.clone())));
        Ok(changes)
    }

    /// Adds those below that take their mount points from `dataset` (OpenZFS: `change_one`).
    fn inheriting(&self, dataset: &Listed, names: &mut Vec<String>) -> Result<(), Failure> {
        let (source, top) = (dataset.source(), dataset.name());
        let below = listed::below(source, (top, u64::from(u32::MAX)), false, &wanted().typed(true));
        let mut below = below.map_err(|e| failed(told(&e, top)))?;
        below.sort_by(Listed::list_order);
        // parents come before their children: one that is not taken takes all below with it
        for one in below {
            let parent = one.name().rsplit_once('/').map_or("", |(parent, _)| parent);
            let is_file_system = one.kind().is_ok_and(|kind| kind == pool::Kind::Filesystem);
            if is_file_system && names.iter().any(|name| name == parent) {
                let all = self.change == Change::Zoned;
                if all || Facts::of(&one)?.is_inherited {
                    names.push(one.name().to_owned());
                }
            }
        }
        Ok(())
    }

    /// Whether the file system has no mount point but `legacy` or `none`.
    pub(in crate::zfs) fn is_without_path(&self) -> bool {
        self.by_name
    }

    /// Does `work` while what changes with it is unmounted; all of it is mounted again then, also where something failed.
    pub(in crate::zfs) fn around(
        all: &mut [Changes<'_>],
        work: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let done = all.iter_mut().try_for_each(Changes::prefix).and_then(|()| work());
        let mounted = all.iter_mut().map(Changes::postfix).fold(Ok(()), Result::and);
        done.and(mounted)
    }

    /// Unmounts all that are mounted. If one is busy those that were are mounted again.
    pub(in crate::zfs) fn prefix(&mut self) -> Result<(), Failure> {
        let Some(table) = self.table.clone() else { return Ok(()) };
        let mut done = Ok(());
        for node in &mut self.nodes {
            if done.is_err() {
                node.needs_post = false;
            } else if !node.facts.zoned
                && let Some(entry) = table.of(&node.facts.name)
            {
                done = unmount(&table, &entry, self.force);
                node.needs_post = done.is_ok();
            }
        }
        if done.is_err() {
            // why it cannot be unmounted is what counts
            let _ = self.postfix();
        }
        done
    }

    /// The change is a new name for all of them; mount points that came from above are removed (OpenZFS: `changelist_rename`).
    pub(in crate::zfs) fn renamed(&mut self, from: &str, to: &str) {
        for node in &mut self.nodes {
            let rest = node.facts.name.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with('/'));
            if let Some(name) = rest.map(|rest| format!("{to}{rest}")) {
                node.facts.remove_point();
                node.facts.name = name;
            }
        }
    }

    /// Mounts them again where they belong now. Failures are printed, and the rest is mounted nevertheless; then it fails.
    pub(in crate::zfs) fn postfix(&mut self) -> Result<(), Failure> {
        let (Some(table), Some(last)) = (self.table.clone(), self.nodes.last()) else { return Ok(()) };
        if self.change != Change::Received {
            last.facts.remove_point();
        }
        let (session, set) = (self.session, self.change == Change::Mountpoint || self.was_legacy);
        let mut whole = true;
        for node in self.nodes.iter_mut().rev().filter(|node| node.needs_post && !node.facts.zoned) {
            node.needs_post = false;
            match node.mount(session, &table, set) {
                Err(Failure::Failed(why)) => {
                    eprintln!("{why}");
                    whole = false;
                }
                other => other?,
            }
        }
        if whole { Ok(()) } else { Err(failed(self.change.not_mounted())) }
    }
}

impl Node {
    /// Mounts it where it belongs now, if it was mounted, or could not be before and is `set` to be.
    fn mount(&self, session: &Session, table: &Mounts, set: bool) -> Result<(), Failure> {
        let facts = Facts::now(&self.facts.name)?;
        let is_wanted = self.was_mounted || (set && facts.canmount == CANMOUNT_ON);
        if !is_wanted || facts.lacks_key || table.of(&facts.name).is_some() {
            return Ok(());
        }
        let source: Source = source(session, &facts.name)?;
        mount(table, &source, &facts, &Options::default(), Ask::FOLLOWS)
    }
}
