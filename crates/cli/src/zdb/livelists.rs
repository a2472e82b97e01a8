//! `-y`: livelists of destroyed clones, and space maps with their logs, checked against each other.
//!
//! Three checks. In a livelist each FREE has its ALLOC. In a metaslab nothing is allocated twice, nor freed while it
//! is not allocated, as its map and then the logs record it. A block that is allocated in a livelist has not been
//! freed since.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use base::Txg;
use ondisk::BlkPtr;
use ondisk::bpobj::livelist_entry_is_free;
use ondisk::spacemap::{Action, Entry};
use pool::{MetaslabInfo, Pool};
use vdev::TopVdev;
use zuse::space::RangeTree;

use crate::error::Failure;

use super::objects::compact;
use super::options::Options;
use super::spacemaps::{Geometry, Map};
use super::text::trouble;

/// Units of the logs of space changes.
const LOG_SHIFT: u32 = 9;

/// Copies of blocks that livelists have as allocated: vdev, offset and size, with the txg of their birth.
type Allocs = BTreeMap<(u64, u64, u64), Txg>;

/// A run of blocks in a map or log.
#[derive(Clone, Copy)]
struct Run {
    action: Action,
    start: u64,
    size: u64,
    txg: Txg,
}

/// Checks, and reports what is wrong; returns whether everything is right.
pub(super) fn verify(out: &mut dyn Write, options: &Options, pool: &Arc<Pool>) -> Result<bool, Failure> {
    writeln!(out, "Verifying deleted livelist entries")?;
    let mut allocs = Allocs::new();
    let mut sound = true;
    for list in pool.deleted_livelists().map_err(trouble)? {
        for (_, id) in list.lists() {
            let mut blocks = Vec::new();
            let list = list.list(id).map_err(trouble)?;
            list.for_each(&mut |bp| {
                blocks.push(*bp);
                Ok(())
            })
            .map_err(trouble)?;
            sound &= sublist(out, options, pool, &blocks, &mut allocs)?;
        }
    }
    writeln!(out, "Verifying metaslab entries")?;
    let mut logged = logs(pool)?;
    for top in pool.tree().tops().iter().filter(|top| top.is_concrete()) {
        let metaslabs = pool.metaslabs(top.id()).map_err(trouble)?;
        for metaslab in metaslabs {
            progress!("\rverifying concrete vdev {}, metaslab {} of {} ...", top.id(), metaslab.id, metaslabs.len());
            let mut check = Check::new(out, top.id(), metaslab);
            check.take(&mut allocs)?;
            check.map(pool, top, metaslab)?;
            let runs = logged.remove(&(top.id(), metaslab.id)).unwrap_or_default();
            runs.into_iter().filter(|run| run.txg >= metaslab.unflushed_txg).try_for_each(|run| check.run(run))?;
            sound &= check.sound;
        }
    }
    eprintln!();
    if allocs.is_empty() {
        return Ok(sound);
    }
    writeln!(out, "ERROR: Found livelist blocks marked as allocated for indirect vdevs:")?;
    for ((vdev, offset, size), birth) in &allocs {
        writeln!(out, "<{vdev}:{offset:x}:{size:x}> TXG {:x}", birth.0)?;
    }
    writeln!(out)?;
    Ok(false)
}

/// Pairs the entries of a list for each block, the last first, since a block is freed after it was allocated. The
/// remaining entries are allocated.
fn sublist(
    out: &mut dyn Write,
    options: &Options,
    pool: &Arc<Pool>,
    blocks: &[BlkPtr],
    allocs: &mut Allocs,
) -> io::Result<bool> {
    let mut frees: BTreeMap<(u64, u64), (BlkPtr, u32)> = BTreeMap::new();
    for bp in blocks.iter().rev() {
        let place = (bp.dva(0).vdev(), bp.dva(0).offset());
        if livelist_entry_is_free(bp) {
            frees.entry(place).or_insert((*bp, 0)).1 += 1;
            continue;
        }
        match frees.get_mut(&place) {
            Some((_, 1)) => drop(frees.remove(&place)),
            Some((_, count)) => *count -= 1,
            None => {
                for dva in bp.dvas() {
                    allocs.entry((dva.vdev(), dva.offset(), dva.asize())).or_insert(bp.birth());
                }
            }
        }
    }
    for (bp, count) in frees.values() {
        writeln!(out, "\tERROR: {count} unmatched FREE(s): {}", compact(options, pool, bp))?;
    }
    Ok(frees.is_empty())
}

/// The runs that the logs record for each metaslab, in order.
fn logs(pool: &Arc<Pool>) -> Result<BTreeMap<(u64, u64), Vec<Run>>, Failure> {
    let mut all: BTreeMap<(u64, u64), Vec<Run>> = BTreeMap::new();
    for (txg, object) in pool.log_space_maps().map_err(trouble)? {
        let geometry = Geometry { start: 0, shift: LOG_SHIFT };
        Map::open(pool, object)?.for_each(&mut |entry| {
            let vdev = if let Entry::Run { vdev, .. } = entry { vdev } else { None };
            let top = vdev.and_then(|id| pool.tree().top(id.into())).filter(|top| top.is_concrete());
            if let Some((top, run)) = top.zip(run(entry, geometry, txg)) {
                let metaslab = run.start.checked_shr(top.config().ms_shift as u32).unwrap_or(0);
                all.entry((top.id(), metaslab)).or_default().push(run);
            }
            Ok(())
        })?;
    }
    Ok(all)
}

/// A space map entry in bytes, if it is a run.
fn run(entry: Entry, geometry: Geometry, txg: Txg) -> Option<Run> {
    let Entry::Run { action, offset, run, .. } = entry else { return None };
    let start = offset.wrapping_shl(geometry.shift).wrapping_add(geometry.start);
    Some(Run { action, start, size: run.wrapping_shl(geometry.shift), txg })
}

/// The check of a metaslab against its records.
struct Check<'a> {
    out: &'a mut dyn Write,
    vdev: u64,
    id: u64,
    start: u64,
    end: u64,
    allocated: RangeTree,
    /// The blocks in it that livelists have as allocated.
    alive: Allocs,
    sound: bool,
}

impl<'a> Check<'a> {
    fn new(out: &'a mut dyn Write, vdev: u64, metaslab: &MetaslabInfo) -> Check<'a> {
        let (start, end) = (metaslab.range().start, metaslab.range().end);
        let (allocated, alive) = (RangeTree::default(), Allocs::new());
        Check { out, vdev, id: metaslab.id, start, end, allocated, alive, sound: true }
    }

    /// Takes the blocks of livelists that are in this metaslab.
    fn take(&mut self, allocs: &mut Allocs) -> io::Result<()> {
        let of_vdev = (self.vdev, 0, 0)..(self.vdev, self.end, 0);
        let near: Vec<_> = allocs.range(of_vdev).map(|(place, birth)| (*place, *birth)).collect();
        for ((vdev, offset, size), birth) in near {
            let end = offset.saturating_add(size);
            let crosses = (offset < self.start && end > self.start) || (offset >= self.start && end > self.end);
            if crosses {
                writeln!(self.out, "ERROR: Found block that crosses metaslab boundary: <{vdev}:{offset:x}:{size:x}>")?;
                self.sound = false;
            } else if offset >= self.start {
                allocs.remove(&(vdev, offset, size));
                self.alive.insert((vdev, offset, size), birth);
            }
        }
        Ok(())
    }

    /// Applies its space map.
    fn map(&mut self, pool: &Arc<Pool>, top: &TopVdev, metaslab: &MetaslabInfo) -> Result<(), Failure> {
        if metaslab.sm_object.is_none() {
            return Ok(());
        }
        let geometry = Geometry { start: metaslab.start, shift: top.ashift() };
        let mut at = Txg(0);
        Map::open(pool, metaslab.sm_object)?.for_each(&mut |entry| {
            if let Entry::Debug { txg, .. } = entry
                && txg.0 != 0
            {
                at = txg;
            }
            run(entry, geometry, at).map_or(Ok(()), |run| self.run(run))
        })
    }

    fn run(&mut self, run: Run) -> io::Result<()> {
        let range = run.start..run.start.saturating_add(run.size);
        let (done, what) = match run.action {
            // neither is allowed for a part of the range only
            Action::Alloc => (self.allocated.add(range.clone()).is_ok(), "ALLOC"),
            Action::Free => (self.allocated.remove(range.clone()).is_ok(), "FREE"),
        };
        if !done {
            writeln!(
                self.out,
                "ERROR: DOUBLE {what}: {} [{:x}:{:x}] {}:{} LOG_SM",
                run.txg.0, run.start, run.size, self.vdev, self.id
            )?;
            self.sound = false;
        }
        if run.action == Action::Alloc {
            return Ok(());
        }
        for ((_, offset, size), birth) in self.alive.range((self.vdev, range.start, 0)..(self.vdev, range.end, 0)) {
            if *birth <= run.txg {
                writeln!(
                    self.out,
                    "ERROR: Livelist ALLOC [{offset:x}:{size:x}] from TXG {:x} FREED at TXG {:x}",
                    birth.0, run.txg.0
                )?;
                self.sound = false;
            }
        }
        Ok(())
    }
}
