//! Blocks allocated, freed and claimed.
//!
//! A run of blocks is allocated under one lock. Within a class allocation rotates over the groups; the bytes allocated per turn depend on the
//! group's free space. A full class falls back to the next one ([`Class::fallbacks`]).
//!
//! OpenZFS: `metaslab_alloc_dva`, `metaslab_free_dva`, `metaslab_claim_dva`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::Txg;
use ondisk::Dva;

use super::SpaceManager;
use super::tops::{ClassState, Top};
use crate::group::{Effort, Group, Turn};
use crate::{AllocError, Class};

/// A request for an allocation (OpenZFS: the arguments of `metaslab_alloc_dva`).
#[derive(Clone, Copy, Debug)]
pub struct SpaceRequest<'a> {
    /// The preferred class of the block.
    pub class: Class,
    /// The txg.
    pub txg: Txg,
    /// Blocks with the same hint are allocated near each other.
    pub hint: u64,
    /// The addresses of the other copies.
    pub avoid: &'a [Dva],
    /// True for a piece of a gang block, for which any free space is good enough.
    pub gang: bool,
}

impl SpaceManager {
    /// Allocates one copy of a block of `psize` bytes. The returned DVA has the allocated size.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`].
    pub fn allocate(&self, req: &SpaceRequest<'_>, psize: u64) -> Result<Dva, AllocError> {
        let mut got = Vec::with_capacity(1);
        self.allocate_many(req, &[psize], &mut got)?;
        got.pop().ok_or(AllocError::NoSpace)
    }

    /// Allocates a run of blocks, in order and as contiguously as possible. On an error the blocks before the failing one are
    /// allocated.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`] if one of the blocks got no space.
    pub fn allocate_many(&self, req: &SpaceRequest<'_>, psizes: &[u64], out: &mut Vec<Dva>) -> Result<(), AllocError> {
        let (before, enabled) = (out.len(), self.disabled.enabled());
        match self.allocate_all(req, psizes, out) {
            Err(AllocError::NoSpace) => {}
            done => return done,
        }
        // there may be space in metaslabs that are disabled for a moment
        let Some(_all_enabled) = self.disabled.wait(enabled) else { return Err(AllocError::NoSpace) };
        let done = out.len() - before;
        self.allocate_all(req, psizes.get(done..).unwrap_or_default(), out)
    }

    fn allocate_all(&self, req: &SpaceRequest<'_>, psizes: &[u64], out: &mut Vec<Dva>) -> Result<(), AllocError> {
        let tops = self.tops.read();
        let mut run = Run { asizes: Vec::new(), offsets: Vec::new() };
        let done = out.len();
        while let Some(left) = psizes.get(out.len() - done..).filter(|l| !l.is_empty()) {
            let classes = [req.class].into_iter().chain(req.class.fallbacks().iter().copied());
            let mut found = false;
            for class in classes {
                found = self.allocate_in(&tops.classes[class as usize], class, req, left, &mut run, out);
                if found {
                    break;
                }
            }
            if !found {
                return Err(AllocError::NoSpace);
            }
        }
        Ok(())
    }

    /// Allocates as many of `psizes` as one group has room for, up to the end of its turn. Returns false if no group has room for
    /// the first.
    fn allocate_in(
        &self,
        class: &ClassState,
        kind: Class,
        req: &SpaceRequest<'_>,
        psizes: &[u64],
        run: &mut Run,
        out: &mut Vec<Dva>,
    ) -> bool {
        let count = class.groups.len();
        let (Some(first), true) = (psizes.first(), count > 0) else { return false };
        let allocator = (req.hint % self.allocators as u64) as usize;
        let Some(rotor) = class.rotors.get(allocator) else { return false };
        // further copies are placed on the next vdev
        let last = req.avoid.last().and_then(|d| class.groups.iter().position(|(t, _)| u64::from(t.id) == d.vdev()));
        let start = last.map_or_else(|| rotor.at.load(Relaxed), |n| n + 1);
        let smallest = |top: &Top| *first <= top.layout.asize(512, req.txg);
        for effort in [Effort::Usual, Effort::Near, Effort::Hard] {
            if effort == Effort::Near && req.avoid.is_empty() {
                continue;
            }
            for n in 0..count {
                let at = (start + n) % count;
                let Some((top, group)) = class.groups.get(at) else { continue };
                let hard = req.gang || kind.is_log() || smallest(top);
                if (effort == Effort::Hard && !hard) || (effort < Effort::Hard && !req.gang && group.full.load(Relaxed))
                {
                    continue;
                }
                let follows = last.is_none() && rotor.at.load(Relaxed) % count == at;
                let quota = group.aliquot.load(Relaxed).saturating_sub(rotor.used.load(Relaxed));
                run.fill(top, psizes, req.txg, if count > 1 && follows { quota } else { u64::MAX });
                let got = self.allocate_from(top, group, req, effort, run);
                if got == 0 && smallest(top) && effort == Effort::Hard {
                    group.full.store(true, Relaxed);
                }
                if follows && count > 1 {
                    let bytes: u64 = psizes.iter().take(got).sum();
                    let used = rotor.used.fetch_add(bytes, Relaxed) + bytes;
                    // the turn passes to the next group when the next block of this size would exceed the quota by half
                    if got == 0 || kind.is_log() || used + first / 2 >= group.aliquot.load(Relaxed) {
                        rotor.at.store((at + 1) % count, Relaxed);
                        rotor.used.store(0, Relaxed);
                    }
                }
                if got > 0 {
                    let places = run.offsets.iter().zip(&run.asizes).take(got);
                    out.extend(places.map(|(offset, asize)| Dva::new(u64::from(top.id), *offset, *asize, false)));
                    return true;
                }
            }
        }
        false
    }

    /// Allocates a run in one group. Returns the number of blocks allocated.
    fn allocate_from(&self, top: &Top, group: &Group, req: &SpaceRequest<'_>, effort: Effort, run: &mut Run) -> usize {
        run.offsets.clear();
        let Some(size) = run.asizes.first().copied() else { return 0 };
        let here = req.avoid.iter().filter(|d| d.vdev() == u64::from(top.id));
        let used: Vec<u32> = here.filter_map(|d| top.metaslab_at(d.offset())).collect();
        let turn = match used.len() {
            0 => Turn::First,
            1 => Turn::Second,
            _ => Turn::Further,
        };
        let allocator = group.allocator(req.hint);
        let mut tried = Vec::new();
        while let Some(id) = group.pick(allocator, turn, size, effort, &used, &tried) {
            let Some(cell) = top.metaslabs.get(id as usize) else { return 0 };
            let mut ms = cell.lock();
            if !ms.is_loaded() {
                if self.load_one(top, &mut ms).is_err() {
                    group.passivate(&ms);
                    tried.push(id);
                    continue;
                }
                group.update(&ms);
            }
            let got = ms.allocate(req.txg, &run.asizes, &mut run.offsets);
            if got > 0 {
                group.activate(&ms, allocator, turn);
                self.mark(top, &mut ms, req.txg, true);
                group.settle(&ms);
                return got;
            }
            group.passivate(&ms);
            tried.push(id);
        }
        0
    }

    fn at(&self, vdev: u64, offset: u64) -> Result<(Arc<Top>, u32), AllocError> {
        let nowhere = AllocError::Nowhere { vdev, offset };
        let top =
            u32::try_from(vdev).ok().and_then(|id| self.tops.read().by_id.get(&id).cloned()).ok_or(nowhere.clone())?;
        let ms = top.metaslab_at(offset).ok_or(nowhere)?;
        Ok((top, ms))
    }

    /// Frees a range in the syncing txg; with `checkpoint` it stays allocated for the checkpoint. The free takes effect when the
    /// next pass begins, and errors are detected then.
    ///
    /// # Errors
    /// [`AllocError::Nowhere`].
    pub fn free(&self, vdev: u64, offset: u64, asize: u64, checkpoint: bool) -> Result<(), AllocError> {
        let (top, _) = self.at(vdev, offset)?;
        top.freed.lock().push((offset, asize, checkpoint));
        Ok(())
    }

    /// Undoes an allocation of `txg`, the current one, that nothing points to.
    ///
    /// # Errors
    /// [`AllocError::Nowhere`]; [`AllocError::State`] if it was not allocated in `txg`.
    pub fn release(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<(), AllocError> {
        let (top, id) = self.at(vdev, offset)?;
        let Some(cell) = top.metaslabs.get(id as usize) else { return Err(AllocError::Nowhere { vdev, offset }) };
        let mut ms = cell.lock();
        let back = ms.unallocate(txg, offset..offset.saturating_add(asize));
        back.map_err(|source| AllocError::State { vdev: top.id, source })
    }

    /// Allocates exactly this range (OpenZFS: `metaslab_claim`).
    ///
    /// # Errors
    /// [`AllocError::Nowhere`]; [`AllocError::Load`]; [`AllocError::State`] if it is not free.
    pub fn claim(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<(), AllocError> {
        let (top, id) = self.at(vdev, offset)?;
        let Some(cell) = top.metaslabs.get(id as usize) else { return Err(AllocError::Nowhere { vdev, offset }) };
        let mut ms = cell.lock();
        self.load_one(&top, &mut ms)?;
        let claimed = ms.claim(txg, offset..offset.saturating_add(asize));
        let delta = claimed.map_err(|source| AllocError::State { vdev: top.id, source })?;
        top.group(id).account.apply(delta);
        self.mark(&top, &mut ms, txg, true);
        top.group(id).update(&ms);
        Ok(())
    }
}

/// The allocated sizes of a run, and the offsets that were found.
struct Run {
    asizes: Vec<u64>,
    offsets: Vec<u64>,
}

impl Run {
    /// Computes the allocated sizes on `top` of at least one block and of at most `quota` bytes.
    fn fill(&mut self, top: &Top, psizes: &[u64], txg: Txg, quota: u64) {
        self.asizes.clear();
        let mut bytes = 0u64;
        for psize in psizes {
            if bytes != 0 && bytes + psize > quota {
                break;
            }
            bytes += psize;
            self.asizes.push(top.layout.asize(*psize, txg));
        }
    }
}
