//! Renames, destroys and promotions at the sender since the last package (OpenZFS: `recv_incremental_replication`).
//!
//! Datasets and snapshots are identified by guid, not by name. Each pass compares everything here with the package's
//! list; one change may block another (two datasets that swap names, a parent that is destroyed before its children),
//! so passes are repeated until one changes nothing.

use control::{Failed, Ioc};
use nvlist::NvList;

use super::{Receive, find_by_guid};
use crate::error::{Failure, failed};
use crate::names::{Types, pool_of};
use crate::zfs::ancestors;
use crate::zfs::listed::{Listed, Wanted};
use crate::zfs::mounting;
use crate::zfs::mounting::changes::{Change, Changes};
use crate::zfs::select::{self, told};

/// Limit on passes per dataset and snapshot: it is moved to a temporary name, to its final name, and promoted. More
/// would be a circle.
const PASSES_EACH: usize = 4;

/// The outcome of a pass.
#[derive(Default)]
struct Pass {
    /// Something was changed.
    progress: bool,
    /// Something is still to be changed.
    again: bool,
}

impl Pass {
    fn did(&mut self, worked: bool) {
        self.progress |= worked;
        self.again |= !worked;
    }
}

/// A snapshot as it is here.
struct Snap {
    name: String,
    guid: u64,
    txg: u64,
}

impl Snap {
    fn of(snap: &Listed) -> Result<Snap, Failed> {
        Ok(Snap { name: snap.name().to_owned(), guid: snap.guid()?, txg: snap.txg()? })
    }

    fn short_name(&self) -> &str {
        self.name.split_once('@').map_or("", |(_, short)| short)
    }
}

/// A dataset as it is here.
struct Local {
    head: Listed,
    snaps: Vec<Snap>,
    /// The guid of the parent dataset's snapshot from which the package starts.
    parent_from: u64,
}

impl Receive<'_> {
    /// Brings `top` and everything below it into the sender's shape; returns whether all of it could be done.
    pub(super) fn renames(&self, top: &str, list: &NvList) -> Result<bool, Failure> {
        let (Some(fss), Some(from)) = (list.get_nvlist("fss"), list.get_str("fromsnap")) else { return Ok(true) };
        // each pass makes progress
        for passes in 1.. {
            if !ancestors::exists(top)? {
                return Ok(true);
            }
            let mut all = Vec::new();
            gather(select::find(top, Types::HEADS)?, from, 0, &mut all).map_err(|e| failed(told(&e, top)))?;
            let mut pass = Pass::default();
            for local in &all {
                self.dataset(local, &all, top, fss, from, &mut pass)?;
                if pass.again && pass.progress {
                    break;
                }
            }
            let things: usize = all.iter().map(|local| 1 + local.snaps.len()).sum();
            if !(pass.again && pass.progress) || passes > PASSES_EACH * things {
                return Ok(!pass.again);
            }
            if self.options.verbose {
                println!("another pass:");
            }
        }
        Ok(false)
    }

    fn dataset(
        &self,
        local: &Local,
        all: &[Local],
        top: &str,
        fss: &NvList,
        from: &str,
        pass: &mut Pass,
    ) -> Result<(), Failure> {
        let name = local.head.name();
        let there = local.snaps.iter().find_map(|snap| find_by_guid(fss, snap.guid)).map(|(fs, _)| fs);
        if let Some(fs) = there
            && self.promote(local, all, fs, pass)?
        {
            return Ok(());
        }
        let mut has_from = false;
        for snap in &local.snaps {
            match find_by_guid(fss, snap.guid) {
                None if self.options.force => pass.did(self.destroy_snapshot(&snap.name)?),
                None => {}
                Some((_, short)) => {
                    has_from |= short == from;
                    if short != snap.short_name() {
                        self.rename(&snap.name, &format!("{name}@{short}"), pass)?;
                    }
                }
            }
        }
        let Some(fs) = there else {
            if self.options.force && name != top {
                pass.did(self.destroy(name)?);
            }
            return Ok(());
        };
        if !has_from {
            if self.options.verbose {
                println!(
                    "local fs {name} does not have fromsnap ({from} in stream); must have been deleted locally; ignoring"
                );
            }
            return Ok(());
        }
        let (parent, sent) = (fs.get_u64("parentfromsnap").unwrap_or(0), fs.get_str("name").unwrap_or(""));
        let moved = parent != 0 && local.parent_from != 0 && parent != local.parent_from;
        let last = |name: &str| name.rsplit_once('/').map(|(_, last)| last.to_owned());
        let renamed = (self.options.prefix || name != top)
            && last(name).zip(last(sent)).is_some_and(|(here, there)| here != there);
        if !moved && !renamed {
            return Ok(());
        }
        let above = all.iter().find(|one| one.snaps.iter().any(|snap| snap.guid == parent));
        match above.zip(last(sent)).map(|(above, last)| format!("{}/{last}", above.head.name())) {
            // the parent dataset has the snapshot under another name
            Some(to) if to == name => {}
            Some(to) => self.rename(name, &to, pass)?,
            None => {
                pass.again = true;
                if self.options.verbose {
                    println!("local fs {name} new parent not found");
                }
            }
        }
        Ok(())
    }

    /// Promotes a clone whose origin differs at the sender: it, or the dataset it was cloned from, was promoted there.
    /// Returns whether there is something to do.
    fn promote(&self, local: &Local, all: &[Local], fs: &NvList, pass: &mut Pass) -> Result<bool, Failure> {
        let name = local.head.name();
        let read = |e: Failed| failed(told(&e, name));
        let origin = local.head.text("origin").map_err(read)?;
        let origin = origin.map(|origin| Listed::named(local.head.source(), origin));
        let theirs = fs.get_u64("origin").unwrap_or(0);
        let ours = origin.map(|origin| origin.guid()).transpose().map_err(read)?.unwrap_or(0);
        if ours == theirs {
            return Ok(false);
        }
        let created = |guid: u64| {
            let snap = all.iter().flat_map(|one| &one.snaps).find(|snap| snap.guid == guid);
            snap.map(|snap| snap.txg)
        };
        // no origin counts as the earliest
        let earlier = ours != 0 && (theirs == 0 || created(theirs).zip(created(ours)).is_some_and(|(a, b)| a < b));
        if earlier {
            self.told("promoting", name, "");
            pass.progress |= self.session.control(name)?.call(Ioc::Promote, name, &NvList::new()).is_ok();
        }
        pass.again = true;
        Ok(true)
    }

    fn told(&self, doing: &str, name: &str, to: &str) {
        if self.options.verbose {
            println!("{doing} {name}{to}");
        }
    }

    fn destroy_snapshot(&self, name: &str) -> Result<bool, Failure> {
        self.told("attempting destroy", name, "");
        let (mut input, mut snaps) = (NvList::new(), NvList::new());
        snaps.insert(name, ());
        input.insert("snaps", snaps);
        Ok(self.session.control(name)?.call(Ioc::DestroySnaps, pool_of(name), &input).is_ok())
    }

    fn destroy(&self, name: &str) -> Result<bool, Failure> {
        self.told("attempting destroy", name, "");
        mounting::unmount_doomed(name, self.options.force_unmount)?;
        Ok(self.session.control(name)?.call(Ioc::Destroy, name, &NvList::new()).is_ok())
    }

    /// Renames; if the name is taken, to a free temporary one, so that the dataset with the name can be renamed in the
    /// next pass. Names below change too, so there is a next pass in any case. What cannot be mounted again keeps nothing from going on.
    fn rename(&self, from: &str, to: &str, pass: &mut Pass) -> Result<(), Failure> {
        let control = self.session.control(from)?;
        let rename = |to: &str| {
            let mut input = NvList::new();
            input.insert("target", to);
            control.call(Ioc::Rename, from, &input).is_ok()
        };
        self.told("attempting rename", from, &format!(" to {to}"));
        pass.again = true;
        let mut mounts = match from.contains('@') {
            true => None,
            false => {
                let head = select::find(from, Types::HEADS)?;
                Some(Changes::gather(self.session, &head, Change::Name, self.options.force_unmount)?)
            }
        };
        mounts.iter_mut().try_for_each(Changes::prefix)?;
        if rename(to) {
            pass.progress = true;
            mounts.iter_mut().for_each(|mounts| mounts.renamed(from, to));
            self.remounted(mounts.iter_mut().try_for_each(Changes::postfix));
            return Ok(());
        }
        let at = from.rfind(['/', '@']).map_or(0, |at| at + 1);
        let (before, last) = from.split_at(at);
        if last.starts_with("recv-") {
            self.remounted(mounts.iter_mut().try_for_each(Changes::postfix));
            return Ok(());
        }
        let other = format!("{before}recv-{}-{:x}", std::process::id(), base::Env::system().random_u64() & 0xffff);
        self.told("failed - trying rename", from, &format!(" to {other}"));
        if rename(&other) {
            pass.progress = true;
            mounts.iter_mut().for_each(|mounts| mounts.renamed(from, &other));
        }
        self.remounted(mounts.iter_mut().try_for_each(Changes::postfix));
        Ok(())
    }
}

/// All datasets from `head` down, parents first.
fn gather(head: Listed, from: &str, parent_from: u64, all: &mut Vec<Local>) -> Result<(), Failed> {
    let snaps = head.snapshots(&Wanted::default())?.iter().map(Snap::of).collect::<Result<Vec<_>, _>>()?;
    let own = snaps.iter().find(|snap| snap.short_name() == from).map_or(0, |snap| snap.guid);
    let children = head.children()?;
    all.push(Local { head, snaps, parent_from });
    children.into_iter().try_for_each(|child| gather(child, from, own, all))
}
