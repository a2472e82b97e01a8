//! Error scrub: only the blocks in the pool's list of errors are read again, and made right where a copy or parity is good (OpenZFS:
//! `dsl_errorscrub_sync`).
//!
//! An entry names a block of a file system and the txg that it was born in. It is looked for in the file system, then in its snapshots, from the
//! newest to those that are older than the block; where it is found, it and all below it are read. One that is found nowhere was freed or
//! overwritten, and is no error any more. One that cannot be looked for, since the way to it is damaged, stays one; so does a block of an intent
//! log, which no entry tells the place of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::Txg;
use dmu::{Objset, Visit, Walk};
use ondisk::BlkPtr;
use pool::{ErrorEntry, Pool, Spa};
use zio::Bookmark;

use crate::scrub::Scrubbed;
use crate::verify::check::{Feeder, check};
use crate::verify::{Damage, Error, Options, Tally};

/// Entries that are looked for while one txg is open (OpenZFS: `zfs_scrub_error_blocks_per_txg`).
const PER_TXG: usize = 1 << 12;

/// The level of a block of an intent log, as the list has it.
const LOG_LEVEL: i64 = Bookmark::ZIL_LEVEL.cast_signed() as i64;

/// Reads the blocks in the pool's list of errors. `progress` as in [`crate::scrub()`]; when `stop` becomes true the error scrub pauses. `None`:
/// the list is empty.
///
/// # Errors
/// While a scrub is not finished; when lists cannot be read, or the pool is suspended.
pub fn error_scrub(
    spa: &Arc<Spa>,
    threads: usize,
    stop: &AtomicBool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Option<Scrubbed>, Error> {
    let Some(mut entries) = spa.error_scrub_begin()? else { return Ok(None) };
    entries.sort();
    let reading = Options { dataset: None, threads, heal: true };
    let mut sum = Tally::default();
    for entries in entries.chunks(PER_TXG) {
        if stop.load(Ordering::Relaxed) {
            spa.scrub_pause()?;
            return Ok(Some(Scrubbed::Stopped));
        }
        let still = spa.tx_netfree(0)?;
        let view = spa.view()?;
        let mut seen = Seen::default();
        let (searched, tally) = check(view.zio(), &reading, progress, |feeder| {
            let mut search = Search { view: &view, feeder, seen: &mut seen };
            search.all(entries)
        });
        drop(still);
        searched?;
        let Seen { mut lost, unreachable } = seen;
        // an indirect block that cannot be read is both unreachable for the walk and wrong for the check
        let known: BTreeSet<Bookmark> = tally.damage.iter().map(|damage| damage.bm).collect();
        let unreachable = unreachable.iter().filter(|damage| !known.contains(&damage.bm));
        lost.extend(tally.damage.iter().chain(unreachable).map(crate::scrub::entry));
        sum.add(tally);
        spa.error_scrub_progress(entries.len() as u64, lost)?;
    }
    spa.error_scrub_finish()?;
    Ok(Some(Scrubbed::Whole(Box::new(sum))))
}

/// What a search came to, besides the blocks that are read.
#[derive(Default)]
struct Seen {
    /// Entries that stay errors without having been read.
    lost: Vec<ErrorEntry>,
    /// Blocks of pointers among those that were read, and cannot be followed.
    unreachable: Vec<Damage>,
}

struct Search<'a> {
    view: &'a Arc<Pool>,
    feeder: &'a mut Feeder,
    seen: &'a mut Seen,
}

impl Search<'_> {
    fn all(&mut self, entries: &[ErrorEntry]) -> Result<(), Error> {
        for group in entries.chunk_by(|a, b| a.objset == b.objset) {
            let id = group.first().map_or(0, |entry| entry.objset);
            let (trees, logs): (Vec<_>, Vec<_>) = group.iter().cloned().partition(|entry| entry.level != LOG_LEVEL);
            let mut wanted = Wanted::of(&trees);
            if id != 0 && self.view.dataset_phys(id).is_ok() {
                self.seen.lost.extend(logs);
            }
            if id == 0 {
                self.objset(self.view.mos(), &self.view.mos().rootbp(), &mut wanted);
            } else if self.view.dataset_phys(id).is_ok() {
                // one that is gone took its errors with it
                self.dataset(id, &mut wanted)?;
            }
        }
        Ok(())
    }

    /// Looks in a dataset, and in the snapshots behind it for what it does not have.
    fn dataset(&mut self, mut id: u64, wanted: &mut Wanted) -> Result<(), Error> {
        loop {
            let phys = self.view.dataset_phys(id)?;
            if !phys.bp.is_hole() {
                match Objset::open(self.view.zio().clone(), id, &phys.bp) {
                    Ok(objset) => self.objset(&objset, &phys.bp, wanted),
                    Err(_) => {
                        let root = Bookmark::root(id);
                        self.feeder.add(&phys.bp, &root);
                        self.seen.lost.extend(wanted.take_all());
                    }
                }
            }
            wanted.forget_found();
            // what has no birth is of this very dataset
            wanted.keep(|entry| entry.birth.is_some_and(|birth| birth <= phys.prev_snap_txg));
            if wanted.is_empty() || phys.prev_snap_obj == 0 {
                return Ok(());
            }
            id = phys.prev_snap_obj;
        }
    }

    fn objset(&mut self, objset: &Arc<Objset>, root: &BlkPtr, wanted: &mut Wanted) {
        if wanted.takes_root(root) {
            self.feeder.add(root, &Bookmark::root(objset.id()));
        }
        objset.walk(&mut |at| {
            if at.level == Bookmark::ROOT_LEVEL {
                return Walk::Into;
            }
            let step = wanted.step(at);
            if let Some(why) = at.damage {
                if step.read {
                    let errno = if let dmu::Error::Zio(e) = why { e.errno() } else { crate::verify::EIO };
                    let (bm, birth) = (*at.bookmark, at.bp.birth_physical());
                    self.seen.unreachable.push(Damage { bm, birth, why: why.to_string(), errno });
                }
                self.seen.lost.extend(wanted.behind(at));
                return Walk::Skip;
            }
            if step.read && !at.bp.is_hole() && !at.bp.is_embedded() {
                self.feeder.add(at.bp, at.bookmark);
            }
            if step.into { Walk::Into } else { Walk::Skip }
        });
    }
}

/// What is to be done with a block on the way.
struct Step {
    /// It is looked for, or lies below one that is.
    read: bool,
    /// So may be something below it.
    into: bool,
}

/// The blocks that are looked for in one file system, by object.
struct Wanted(BTreeMap<u64, Vec<Want>>);

struct Want {
    entry: ErrorEntry,
    found: bool,
}

impl Want {
    fn is_root(&self) -> bool {
        self.entry.level < 0
    }

    /// Whether it lies at or below, or above the block at `at`.
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
        let mut all: BTreeMap<u64, Vec<Want>> = BTreeMap::new();
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

    fn forget_found(&mut self) {
        self.0.values_mut().for_each(|all| all.retain(|want| !want.found));
        self.0.retain(|_, all| !all.is_empty());
    }

    fn take_all(&mut self) -> Vec<ErrorEntry> {
        std::mem::take(&mut self.0).into_values().flatten().map(|want| want.entry).collect()
    }

    /// Whether the root block is looked for.
    fn takes_root(&mut self, root: &BlkPtr) -> bool {
        let roots = self.0.get_mut(&0).into_iter().flatten().filter(|want| want.is_root());
        let mut any = false;
        for want in roots.filter(|want| is_born(&want.entry, root.birth_physical())) {
            (want.found, any) = (true, true);
        }
        any
    }

    /// The objects whose dnodes lie below a block of dnodes.
    fn objects_below(&self, at: &Visit<'_>) -> std::ops::RangeInclusive<u64> {
        let per_block = ((u64::from(at.dnode.datablkszsec) << 9) / ondisk::DNODE_SIZE as u64).max(1);
        let shift = u32::from(at.dnode.indblkshift).saturating_sub(7);
        let (first, last) = span(at.bookmark.blkid, at.level.into(), shift);
        first.saturating_mul(per_block)..=last.saturating_add(1).saturating_mul(per_block).saturating_sub(1)
    }

    fn step(&mut self, at: &Visit<'_>) -> Step {
        let mut step = Step { read: false, into: false };
        let object = at.bookmark.object;
        if object == 0 {
            step.into = self.0.range(self.objects_below(at)).any(|(id, _)| *id != 0);
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

    /// What is looked for below a block whose pointers cannot be read: nobody can tell whether it is still wrong.
    fn behind(&mut self, at: &Visit<'_>) -> Vec<ErrorEntry> {
        let mut behind = Vec::new();
        if at.bookmark.object == 0 {
            let objects: Vec<u64> =
                self.0.range(self.objects_below(at)).map(|(id, _)| *id).filter(|id| *id != 0).collect();
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

/// Whether a block that was born in `birth` can be the one of the entry.
fn is_born(entry: &ErrorEntry, birth: Txg) -> bool {
    entry.birth.is_none_or(|wanted| wanted == birth)
}
