//! `-b` and `-c`: all blocks are visited, counted, claimed against the space maps and, with `-c`, read and checked.
//!
//! The walk, the claims and the checks are those of [`zuse::verify`]; this module counts on the way, and prints the
//! results as zdb does.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;

use base::{Errno, ObjectId, Txg};
use dmu::Objset;
use ondisk::{BlkPtr, DnodePhys, ObjectType};
use pool::{AllocClass, MetaslabInfo, Pool};
use vdev::TopVdev;
use zuse::verify::blocks::{Block, Role};
use zuse::verify::{Options as VerifyOptions, Summary, inspect};
use zuse::zil::ShowBlkPtr;
use zuse::zio::Bookmark;

use crate::error::{Failure, failed};

use super::counting::{Bins, Counts, DEFERRED, Dittos, OTHER};
use super::options::{Bin, Options};
use super::progress::Progress;
use super::shared::Shared;
use super::text::trouble;

/// The results of a survey.
pub(super) struct Survey {
    pub(super) counts: Counts,
    pub(super) shared: Shared,
    /// Reads that failed, by error number.
    pub(super) errors: BTreeMap<Errno, u64>,
    /// Set if something is allocated that nothing uses.
    pub(super) leaked: bool,
    /// Bytes allocated by the space maps and their logs.
    pub(super) allocated: u64,
    /// Bytes claimed by blocks, or held by the checkpoint.
    pub(super) found: u64,
}

impl Survey {
    /// The exit status: 2 for leaks, 3 for blocks that are lost.
    pub(super) fn status(&self) -> u8 {
        match () {
            () if self.counts.total().count == 0 || self.leaked => 2,
            () if !self.errors.is_empty() => 3,
            () => 0,
        }
    }
}

/// Counts while blocks are visited.
struct Counter<'a> {
    options: &'a Options,
    pool: &'a Arc<Pool>,
    counts: Counts,
    shared: Shared,
    /// Blocks of intent logs that were counted: object set, first address.
    logs: HashSet<(ObjectId, u64, u64)>,
    /// The txg in which the intent log of an object set was claimed.
    claims: HashMap<ObjectId, Txg>,
    out: &'a mut dyn Write,
    failed: Option<std::io::Error>,
}

/// Visits all blocks; reports errors in them as it finds them.
pub(super) fn survey(options: &Options, pool: &Arc<Pool>, out: &mut dyn Write) -> Result<Survey, Failure> {
    let leaks = !options.has('L');
    let progress = Progress::new(pool, options)?;
    if leaks && !options.json {
        progress.loading(pool)?;
    }
    let mut counter = Counter {
        options,
        pool,
        counts: Counts::new(options.level('b') >= 4),
        shared: Shared::load(pool)?,
        logs: HashSet::new(),
        claims: HashMap::new(),
        out,
        failed: None,
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let how = VerifyOptions { dataset: None, threads, expand: false };
    let seen = RefCell::new(progress);
    let summary = inspect(pool, &how, &|_, _| {}, &mut |block| {
        let wanted = counter.visit(block);
        seen.borrow_mut().tick(counter.counts.total().asize);
        wanted
    })
    .map_err(|e| failed(format!("zdb: {e}")))?;
    let Counter { counts, shared, failed, .. } = counter;
    if let Some(e) = failed {
        return Err(e.into());
    }
    let mut survey = Survey { counts, shared, errors: BTreeMap::new(), leaked: false, allocated: 0, found: 0 };
    survey.tell(options, pool, &summary, out)?;
    Ok(survey)
}

impl Counter<'_> {
    /// Counts a block; returns whether it is to be read.
    fn visit(&mut self, block: &Block<'_>) -> bool {
        let bp = block.bp;
        if block.damage.is_some() || !self.counts_as_a_block(block) {
            return false;
        }
        if self.options.level('b') >= 5
            && let Err(e) = self.list(block)
        {
            self.failed.get_or_insert(e);
        }
        if bp.is_redacted() {
            return false;
        }
        let kind = match block.role {
            Role::DeferredFree | Role::Destroying => DEFERRED,
            _ if bp.object_type().is_self_describing() => OTHER,
            _ => usize::from(bp.object_type().0),
        };
        let whole = self.shared.visit(bp);
        let dittos = Dittos::of(&whole, |vdev, offset| metaslab_number(self.pool, vdev, offset));
        self.counts.block(&whole, kind, dittos);
        if !bp.is_embedded() && in_classes(self.options, self.pool, bp) {
            self.add_to_bins(&whole);
        }
        let metadata = bp.level() != 0 || bp.object_type().is_metadata();
        let level = self.options.level('c');
        level > 1 || (level == 1 && metadata)
    }

    fn add_to_bins(&mut self, bp: &BlkPtr) {
        let sizes = [bp.psize(), bp.lsize(), bp.asize()];
        let fixed = self.options.bin.map(|by| {
            let [psize, lsize, asize] = sizes;
            Bins::of(match by {
                Bin::Psize => psize,
                Bin::Lsize => lsize,
                Bin::Asize => asize,
            })
        });
        let bins = [&mut self.counts.psize, &mut self.counts.lsize, &mut self.counts.asize];
        for (bins, size) in bins.into_iter().zip(sizes) {
            bins.add(fixed.unwrap_or(Bins::of(size)), size);
        }
    }

    /// Returns whether a block is counted: blocks of an intent log count once, and the data that its records point at
    /// only if the log was claimed and the data was born since: other data is counted in the tree.
    fn counts_as_a_block(&mut self, block: &Block<'_>) -> bool {
        if block.role != Role::Log {
            return true;
        }
        let id = block.bm.objset;
        if block.object_type != ObjectType::INTENT_LOG {
            let pool = self.pool;
            let claimed = *self.claims.entry(id).or_insert_with(|| claim_txg(pool, id));
            if claimed.0 == 0 || block.bp.birth() < claimed {
                return false;
            }
        }
        let dva = block.bp.dva(0);
        self.logs.insert((id, dva.word0, dva.word1))
    }

    /// `-bbbbb`: a line for each block.
    fn list(&mut self, block: &Block<'_>) -> std::io::Result<()> {
        let show = ShowBlkPtr(block.bp);
        if matches!(block.role, Role::DeferredFree | Role::Destroying) {
            return writeln!(self.out, "[deferred free] {show}");
        }
        let bm = block.bm;
        let level = match bm.level {
            Bookmark::ROOT_LEVEL => -1,
            Bookmark::ZIL_LEVEL => -2,
            level => i64::from(level),
        };
        let offset = offset_of(block.dnode, level, bm.blkid);
        writeln!(self.out, "objset {} object {} level {level} offset {offset:#x} {show}", bm.objset, bm.object)
    }
}

/// The offset in its object at which a block begins (OpenZFS: `blkid2offset`).
fn offset_of(dnode: Option<&DnodePhys>, level: i64, blkid: u64) -> u64 {
    let (Some(dnode), Ok(level)) = (dnode, u32::try_from(level)) else { return blkid };
    let shift = dnode.fanout_shift().saturating_mul(level);
    blkid.wrapping_shl(shift).wrapping_mul(dnode.datablksz())
}

/// The txg in which the intent log of an object set was claimed; 0 if it was not.
fn claim_txg(pool: &Arc<Pool>, objset: ObjectId) -> Txg {
    let objset = pool.dataset_by_id(objset).and_then(|ds| ds.objset());
    objset.map_or(Txg(0), |objset: Arc<Objset>| objset.phys().zil_header.claim_txg)
}

fn metaslab_number(pool: &Pool, vdev: u64, offset: u64) -> u64 {
    let shift = pool.tree().top(vdev).map_or(0, |top: &TopVdev| top.config().ms_shift);
    offset.checked_shr(u32::try_from(shift).unwrap_or(u32::MAX)).unwrap_or(0)
}

/// Returns whether a block is of an allocation class that was asked for.
fn in_classes(options: &Options, pool: &Arc<Pool>, bp: &BlkPtr) -> bool {
    let classes = options.classes;
    if classes.is_all() {
        return true;
    }
    let dva = bp.dva(0);
    let metaslabs = pool.metaslabs(dva.vdev()).unwrap_or(&[]);
    let number = usize::try_from(metaslab_number(pool, dva.vdev(), dva.offset())).unwrap_or(usize::MAX);
    match metaslabs.get(number).map(|m: &MetaslabInfo| m.class) {
        Some(AllocClass::Normal) => classes.normal,
        Some(AllocClass::Special) => classes.special,
        Some(AllocClass::Dedup) => classes.dedup,
        _ => classes.other,
    }
}

impl Survey {
    /// Reports lost and misplaced blocks and leaks, and sums up space.
    fn tell(
        &mut self,
        options: &Options,
        pool: &Arc<Pool>,
        summary: &Summary,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        if options.has('c') {
            for damage in &summary.tally.damage {
                let bm = &damage.bm;
                let pointer = if options.level('b') >= 2 { show_pointer(pool, bm) } else { String::new() };
                let level = if bm.level == Bookmark::ROOT_LEVEL { -1 } else { i64::from(bm.level) };
                writeln!(
                    out,
                    "zdb_blkptr_cb: Got error {} reading <{}, {}, {level}, {:x}> {pointer} -- skipping",
                    damage.errno, bm.objset, bm.object, bm.blkid
                )?;
                *self.errors.entry(damage.errno).or_default() += 1;
            }
        }
        if !options.has('L') {
            for damage in &summary.misplaced {
                writeln!(out, "block claim error {}: {}", damage.errno, damage.why)?;
                *self.errors.entry(damage.errno).or_default() += 1;
            }
        }
        if !self.errors.is_empty() {
            writeln!(out, "\nError counts:\n\n\t{:>5}  count", "errno")?;
            for (errno, count) in &self.errors {
                writeln!(out, "\t{errno:5}  {count}")?;
            }
        }
        self.tell_leaks(options, pool, summary, out)
    }

    fn tell_leaks(
        &mut self,
        options: &Options,
        pool: &Arc<Pool>,
        summary: &Summary,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        for top in pool.tree().tops() {
            for metaslab in pool.metaslabs(top.id()).map_err(trouble)? {
                let stored = metaslab.header.as_ref().map_or(0, |h| h.alloc as u64);
                let change = metaslab.unflushed_allocs.wrapping_sub(metaslab.unflushed_frees);
                self.allocated = self.allocated.wrapping_add(stored).wrapping_add(change);
            }
            self.found = self.found.wrapping_add(pool.checkpoint_space(top.id()).map_err(trouble)?.total());
        }
        let saved = self.shared.dedup_asize.wrapping_add(self.shared.clone_asize);
        self.found = self.found.wrapping_add(self.counts.total().asize).wrapping_sub(saved);
        if options.has('L') {
            return Ok(());
        }
        self.leaked = self.shared.leaks(out)?;
        for vdev in &summary.space {
            for range in &vdev.leaks {
                let size = range.end - range.start;
                writeln!(out, "leaked space: vdev {}, offset {:#x}, size {size}", vdev.vdev, range.start)?;
            }
            for range in &vdev.claims_of_free_space {
                let size = range.end - range.start;
                writeln!(
                    out,
                    "claimed space that is free: vdev {}, offset {:#x}, size {size}",
                    vdev.vdev, range.start
                )?;
            }
            self.leaked |= vdev.leaked != 0 || vdev.unallocated != 0;
        }
        Ok(())
    }
}

/// The pointer to a block that could not be read.
fn show_pointer(pool: &Arc<Pool>, bm: &Bookmark) -> String {
    let objset = match bm.objset {
        ObjectId(0) => Ok(pool.mos().clone()),
        id => pool.dataset_by_id(id).and_then(|ds| ds.objset()),
    };
    let find = |objset: Arc<Objset>| match bm.level {
        Bookmark::ROOT_LEVEL => Some(objset.rootbp()),
        level => objset.object(bm.object).ok()?.blkptr(level, bm.blkid).ok()?,
    };
    objset.ok().and_then(find).map_or_else(String::new, |bp| ShowBlkPtr(&bp).to_string())
}
