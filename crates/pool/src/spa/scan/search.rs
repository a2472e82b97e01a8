//! Error scrub: rereads only the blocks in the pool's error list, and repairs them where a copy or parity is good (OpenZFS: `dsl_errorscrub_sync`).
//!
//! An entry names a block of a file system and the txg of its birth. The block is searched in the file system, then in its snapshots, from the
//! newest to the oldest that can contain it; where it is found, it and all blocks below it are read. A block that is found nowhere was freed or
//! overwritten, and its entry is dropped. An entry is kept if its block cannot be searched because the path to it is damaged; so is that of an
//! intent-log block, since no entry records its location.
//!
//! It runs in [slices](super::slice), as a scrub does: there may be many blocks below an entry. A search that a slice did not finish continues in
//! the next one.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Guid, ObjectId, Txg};
use dmu::{Objset, Visit, Walk};
use ondisk::BlkPtr;
use zio::Bookmark;

use super::slice::Slice;
use super::walk::{Behind, may_end_at};
use crate::{Error, ErrorEntry};

/// Entries that are looked for together, at most.
const AT_ONCE: usize = 1 << 12;

/// The level of a block of an intent log, as the list has it.
const LOG_LEVEL: i64 = Bookmark::ZIL_LEVEL.cast_signed() as i64;

/// The searches for all entries of the list of errors, the next one last.
pub(super) fn searches(mut entries: Vec<ErrorEntry>) -> Vec<Search> {
    entries.sort();
    let groups = entries.chunks(AT_ONCE).flat_map(|some| some.chunk_by(|a, b| a.objset == b.objset));
    let mut searches: Vec<_> = groups.map(Search::new).collect();
    searches.reverse();
    searches
}

/// Goes on with the searches until the limit is reached or none is left. Returns the number of entries that were found or dropped, and those
/// that stay errors without having been read.
pub(super) fn go_on(searches: &mut Vec<Search>, slice: &mut Slice<'_, '_>) -> (u64, Vec<ErrorEntry>) {
    let (mut lost, mut examined) = (Vec::new(), 0);
    let mut cx = Cx { slice, lost: &mut lost };
    while let Some(search) = searches.last_mut() {
        if !search.go(&mut cx) {
            break;
        }
        examined += search.entries;
        searches.pop();
        if cx.slice.limit.reached() {
            break;
        }
    }
    (examined, lost)
}

/// The context of a slice.
struct Cx<'s, 'a, 'l> {
    slice: &'s mut Slice<'a, 'l>,
    /// Entries that stay errors without having been read.
    lost: &'s mut Vec<ErrorEntry>,
}

/// The search for entries of one file system, and how far it is.
pub(super) struct Search {
    /// The file system; 0 is the MOS.
    head: ObjectId,
    entries: u64,
    wanted: Wanted,
    /// Its entries in the log.
    logs: Vec<ErrorEntry>,
    /// The dataset being searched: the file system or one of its snapshots, by object and guid.
    at: (ObjectId, Guid),
    /// The block there to go on with.
    from: Option<Bookmark>,
}

impl Search {
    fn new(entries: &[ErrorEntry]) -> Search {
        let head = entries.first().map_or(ObjectId::MOS, |entry| entry.objset);
        let (logs, trees): (Vec<_>, Vec<_>) = entries.iter().cloned().partition(|entry| entry.level == LOG_LEVEL);
        Search {
            head,
            entries: entries.len() as u64,
            wanted: Wanted::of(&trees),
            logs,
            at: (ObjectId::NONE, Guid(0)),
            from: None,
        }
    }

    /// Goes on until the limit is reached or the search is over. Whether it is.
    fn go(&mut self, cx: &mut Cx<'_, '_, '_>) -> bool {
        if self.head == ObjectId::MOS {
            let mos = cx.slice.view.mos();
            return self.tree(mos, &mos.rootbp(), cx);
        }
        // one that is gone took its errors with it
        let Ok(head) = cx.slice.view.dataset_phys(self.head) else { return true };
        cx.lost.append(&mut self.logs);
        // what a snapshot shared that was destroyed since is in others
        if !cx.slice.view.dataset_phys(self.at.0).is_ok_and(|phys| phys.guid == self.at.1) {
            self.wanted.find_again();
            (self.at, self.from) = ((self.head, head.guid), None);
        }
        self.datasets(cx).unwrap_or_else(|_| {
            // nobody can tell whether these are still wrong
            cx.lost.extend(self.wanted.take_all());
            true
        })
    }

    /// Looks in a dataset, and in the snapshots behind it for what it does not have.
    fn datasets(&mut self, cx: &mut Cx<'_, '_, '_>) -> Result<bool, Error> {
        loop {
            let id = self.at.0;
            let phys = cx.slice.view.dataset_phys(id)?;
            if !phys.bp.is_hole() {
                match Objset::open(cx.slice.view.zio().clone(), id, &phys.bp) {
                    Ok(objset) if !self.tree(&objset, &phys.bp, cx) => return Ok(false),
                    Ok(_) => {}
                    Err(error) => {
                        cx.slice.feeder.add_in_step(&phys.bp, &Bookmark::root(id));
                        return Err(error.into());
                    }
                }
            }
            self.wanted.forget_found();
            // what has no birth is of this very dataset
            self.wanted.keep(|entry| entry.birth.is_some_and(|birth| birth <= phys.prev_snap_txg));
            if self.wanted.is_empty() {
                return Ok(true);
            }
            let Some((before, phys)) = cx.slice.view.snapshot_before(id)? else { return Ok(true) };
            self.at = (before, phys.guid);
            if cx.slice.limit.reached() {
                return Ok(false);
            }
        }
    }

    /// Looks in one tree. Whether it came to its end.
    fn tree(&mut self, objset: &Arc<Objset>, root: &BlkPtr, cx: &mut Cx<'_, '_, '_>) -> bool {
        let mut behind = self.from.take().map(Behind::new);
        let (wanted, from) = (&mut self.wanted, &mut self.from);
        if behind.is_none() && wanted.takes_root(root) {
            cx.slice.feeder.add_in_step(root, &Bookmark::root(objset.id()));
        }
        objset.walk(&mut |at| {
            if at.level == Bookmark::ROOT_LEVEL {
                return Walk::Into;
            }
            if behind.as_mut().is_some_and(|behind| behind.is(at)) {
                return Walk::Skip;
            }
            if may_end_at(at) && cx.slice.limit.reached() {
                *from = Some(*at.bookmark);
                return Walk::Stop;
            }
            let step = wanted.step(at);
            if let Some(why) = at.damage {
                if step.read {
                    cx.slice.damaged(at.bookmark, at.bp.birth_physical(), why);
                }
                cx.lost.extend(wanted.behind(at));
                return Walk::Skip;
            }
            if step.read && !at.bp.is_hole() && !at.bp.is_embedded() {
                cx.slice.feeder.add_in_step(at.bp, at.bookmark);
            }
            if step.into { Walk::Into } else { Walk::Skip }
        });
        self.from.is_none()
    }
}

/// The action for a block met by the search.
struct Step {
    /// It is looked for, or lies below one that is.
    read: bool,
    /// So may be something below it.
    into: bool,
}

/// The blocks that are looked for in one file system, by object.
struct Wanted(BTreeMap<ObjectId, Vec<Want>>);

struct Want {
    entry: ErrorEntry,
    found: bool,
}

impl Want {
    fn is_root(&self) -> bool {
        self.entry.level < 0
    }

    /// Returns whether it lies at or below, or above the block at `at`.
    fn is_related(&self, at: &Visit<'_>) -> bool {
        let spill = Bookmark::SPILL_BLKID;
        if self.is_root() || self.entry.blkid == spill || at.bookmark.blkid == spill {
            return !self.is_root() && self.entry.blkid == at.bookmark.blkid;
        }
        let shift = u32::from(at.dnode.indblkshift).saturating_sub(7);
        let (a, b) = (span(at.bookmark.blkid, at.level.into(), shift), span(self.entry.blkid, self.level(), shift));
        a.0 <= b.1 && b.0 <= a.1
    }

    fn level(&self) -> u32 {
        u32::try_from(self.entry.level).unwrap_or(0)
    }
}

/// The first and the last block of data below a block, where `shift` is log2 of the pointers in a block.
fn span(blkid: u64, level: u32, shift: u32) -> (u64, u64) {
    let each = 1u64.checked_shl(level.saturating_mul(shift)).unwrap_or(u64::MAX);
    let first = blkid.saturating_mul(each);
    (first, first.saturating_add(each - 1))
}

impl Wanted {
    fn of(entries: &[ErrorEntry]) -> Wanted {
        let mut all: BTreeMap<ObjectId, Vec<Want>> = BTreeMap::new();
        for entry in entries {
            all.entry(entry.object).or_default().push(Want { entry: entry.clone(), found: false });
        }
        Wanted(all)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn keep(&mut self, keep: impl Fn(&ErrorEntry) -> bool) {
        self.0.values_mut().for_each(|all| all.retain(|want| keep(&want.entry)));
        self.0.retain(|_, all| !all.is_empty());
    }

    /// The search begins anew.
    fn find_again(&mut self) {
        self.0.values_mut().flatten().for_each(|want| want.found = false);
    }

    fn forget_found(&mut self) {
        self.0.values_mut().for_each(|all| all.retain(|want| !want.found));
        self.0.retain(|_, all| !all.is_empty());
    }

    fn take_all(&mut self) -> Vec<ErrorEntry> {
        std::mem::take(&mut self.0).into_values().flatten().map(|want| want.entry).collect()
    }

    /// Returns whether the root block is searched for.
    fn takes_root(&mut self, root: &BlkPtr) -> bool {
        let roots = self.0.get_mut(&ObjectId::META_DNODE).into_iter().flatten().filter(|want| want.is_root());
        let mut any = false;
        for want in roots.filter(|want| is_born(&want.entry, root.birth_physical())) {
            (want.found, any) = (true, true);
        }
        any
    }

    /// The objects whose dnodes lie below a block of dnodes.
    fn objects_below(&self, at: &Visit<'_>) -> std::ops::RangeInclusive<ObjectId> {
        let per_block = ((u64::from(at.dnode.datablkszsec) << 9) / ondisk::DNODE_SIZE as u64).max(1);
        let shift = u32::from(at.dnode.indblkshift).saturating_sub(7);
        let (first, last) = span(at.bookmark.blkid, at.level.into(), shift);
        let last = last.saturating_add(1).saturating_mul(per_block).saturating_sub(1);
        ObjectId(first.saturating_mul(per_block))..=ObjectId(last)
    }

    fn step(&mut self, at: &Visit<'_>) -> Step {
        let mut step = Step { read: false, into: false };
        let object = at.bookmark.object;
        if object == ObjectId::META_DNODE {
            step.into = self.0.range(self.objects_below(at)).any(|(id, _)| *id != ObjectId::META_DNODE);
        }
        for want in self.0.get_mut(&object).into_iter().flatten().filter(|want| want.is_related(at)) {
            let (level, birth) = (u32::from(at.level), at.bp.birth_physical());
            let this = level == want.level() && at.bookmark.blkid == want.entry.blkid;
            want.found |= this && !at.bp.is_hole() && is_born(&want.entry, birth);
            step.read |= want.found && level <= want.level();
            step.into |= want.found || level > want.level();
        }
        step
    }

    /// The entries below a block whose pointers cannot be read: it is unknown whether they are still wrong.
    fn behind(&mut self, at: &Visit<'_>) -> Vec<ErrorEntry> {
        let mut behind = Vec::new();
        if at.bookmark.object == ObjectId::META_DNODE {
            let objects: Vec<ObjectId> = self
                .0
                .range(self.objects_below(at))
                .map(|(id, _)| *id)
                .filter(|id| *id != ObjectId::META_DNODE)
                .collect();
            behind.extend(objects.iter().filter_map(|id| self.0.remove(id)).flatten().map(|want| want.entry));
        }
        for want in self.0.get_mut(&at.bookmark.object).into_iter().flatten() {
            if !want.found && want.is_related(at) {
                want.found = true;
                behind.push(want.entry.clone());
            }
        }
        behind
    }
}

/// Returns whether a block that was born in `birth` can be the one of the entry.
fn is_born(entry: &ErrorEntry, birth: Txg) -> bool {
    entry.birth.is_none_or(|wanted| wanted == birth)
}
