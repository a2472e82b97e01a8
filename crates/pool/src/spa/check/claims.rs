//! The space that blocks claim, against the space that the maps say is allocated.

use std::ops::Range;
use std::sync::Arc;

use base::{Guid, Txg};
use ondisk::BlkPtr;
use ondisk::gang::GANG_HEADER_SIZE;
use ondisk::indirect::IndirectMapping;
use zio::Bookmark;

use super::bitmap::Bitmap;
use crate::{Error, Pool};

/// Stretches of each kind that are listed for a vdev; the sums are always whole.
const LISTED: usize = 64;

/// How many removals in a row an address is followed through.
const REMOVALS: usize = 64;

/// The space of one vdev, claimed and allocated, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceDifference {
    /// The top-level vdev.
    pub vdev: u64,
    /// Its guid.
    pub guid: Guid,
    /// Allocated by the space maps.
    pub allocated: u64,
    /// Claimed by blocks.
    pub claimed: u64,
    /// Allocated and claimed by nothing.
    pub leaked: u64,
    /// The first stretches of these.
    pub leaks: Vec<Range<u64>>,
    /// Claimed and not allocated.
    pub unallocated: u64,
    /// The first stretches of these.
    pub claims_of_free_space: Vec<Range<u64>>,
}

struct Claimed {
    vdev: u64,
    guid: Guid,
    ashift: u32,
    size: u64,
    bits: Bitmap,
}

/// The space that the blocks of a pool claim, a bitmap for each top-level vdev that holds data.
pub struct Claims {
    vdevs: Vec<Option<Claimed>>,
    /// claims of what is no place of any vdev
    pub outside: u64,
    /// bytes that were claimed before by another pointer: dedup and clones
    pub shared: u64,
}

/// The state of a block's space before it was claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// No block had claimed it.
    New,
    /// All of it was claimed: the same block, met once more.
    Again,
    /// A part of it was.
    Overlaps,
    /// It lies on no vdev, or beyond its end.
    Outside,
}

impl Claims {
    /// Claims of nothing yet, for the vdevs of `pool`.
    pub fn new(pool: &Pool) -> Claims {
        let mut vdevs = Vec::new();
        for top in pool.tree().tops() {
            let size = top.config().asize.min(pool.zio().room());
            vdevs.push(top.is_concrete().then(|| Claimed {
                vdev: top.id(),
                guid: top.guid(),
                ashift: top.ashift(),
                size,
                bits: Bitmap::new(size >> top.ashift()),
            }));
        }
        Claims { vdevs, outside: 0, shared: 0 }
    }

    /// Claims all copies of a block, and the pieces of a gang block. The verdict is that of the first copy.
    pub fn block(&mut self, pool: &Pool, bp: &BlkPtr, bm: &Bookmark) -> Claim {
        let verdict = self.copies(pool, bp);
        if bp.is_gang() && verdict == Claim::New {
            // a header that cannot be read is found by the check, and what it leads to shows as leaked
            for piece in pool.zio().gang_members(bp, bm).unwrap_or_default() {
                self.copies(pool, &piece);
            }
        }
        verdict
    }

    fn copies(&mut self, pool: &Pool, bp: &BlkPtr) -> Claim {
        let mut verdict = None;
        for dva in bp.dvas() {
            let size = match pool.tree().top(dva.vdev()) {
                // at a gang address lies a header, whatever size the address tells
                Some(top) if dva.is_gang() => top.psize_to_asize_at(GANG_HEADER_SIZE as u64, Txg(0)),
                _ => dva.asize(),
            };
            let claim = self.place(pool, dva.vdev(), dva.offset(), size, 0);
            verdict.get_or_insert(claim);
        }
        verdict.unwrap_or(Claim::New)
    }

    /// Claims a place; on a removed vdev, the places where it went.
    fn place(&mut self, pool: &Pool, vdev: u64, offset: u64, size: u64, depth: usize) -> Claim {
        if let Some(mapping) = pool.tree().top(vdev).filter(|top| top.is_indirect()).and_then(|top| top.mapping()) {
            return self.mapped(pool, &mapping, offset, size, depth);
        }
        let claimed = usize::try_from(vdev).ok().and_then(|n| self.vdevs.get_mut(n)).and_then(Option::as_mut);
        let Some(claimed) = claimed else {
            self.outside += 1;
            return Claim::Outside;
        };
        let (first, count) = (offset >> claimed.ashift, size >> claimed.ashift);
        match claimed.bits.add(first, count) {
            None => {
                self.outside += 1;
                Claim::Outside
            }
            Some(0) => Claim::New,
            Some(n) => {
                self.shared += n << claimed.ashift;
                if n == count { Claim::Again } else { Claim::Overlaps }
            }
        }
    }

    /// Follows `size` bytes at `offset` of a removed vdev. The verdict is the worst of its segments.
    fn mapped(&mut self, pool: &Pool, mapping: &IndirectMapping, offset: u64, size: u64, depth: usize) -> Claim {
        let Some(first) = mapping.find(offset).filter(|_| depth < REMOVALS) else {
            self.outside += 1;
            return Claim::Outside;
        };
        let end = offset.saturating_add(size);
        let mut verdicts = Vec::new();
        let mut at = offset;
        for entry in mapping.entries().iter().skip(first) {
            if at >= end || entry.src() > at {
                break;
            }
            let until = entry.end().min(end);
            let to = entry.dst.offset().saturating_add(at - entry.src());
            verdicts.push(self.place(pool, entry.dst.vdev(), to, until - at, depth + 1));
            at = until;
        }
        let has = |claim| verdicts.contains(&claim);
        match () {
            () if at < end || has(Claim::Outside) => Claim::Outside,
            () if has(Claim::Overlaps) || (has(Claim::New) && has(Claim::Again)) => Claim::Overlaps,
            () if has(Claim::Again) => Claim::Again,
            () => Claim::New,
        }
    }

    /// Claims what only the checkpoint still needs.
    pub fn checkpoint(&mut self, pool: &Pool) -> Result<(), Error> {
        for vdev in self.vdevs.iter_mut().flatten() {
            for range in pool.checkpoint_space(vdev.vdev)?.iter() {
                vdev.bits.add(range.start >> vdev.ashift, (range.end - range.start) >> vdev.ashift);
            }
        }
        Ok(())
    }

    /// Compares with the space maps, vdev by vdev.
    pub fn compare(&self, pool: &Arc<Pool>) -> Result<Vec<SpaceDifference>, Error> {
        let mut out = Vec::new();
        for vdev in self.vdevs.iter().flatten() {
            let mut allocated = Bitmap::new(vdev.size >> vdev.ashift);
            let mut beyond = 0;
            for range in pool.load_space(vdev.vdev)?.iter() {
                let (first, count) = (range.start >> vdev.ashift, (range.end - range.start) >> vdev.ashift);
                if allocated.add(first, count).is_none() {
                    beyond += count;
                }
            }
            let bytes = |runs: Vec<(u64, u64)>| {
                runs.iter().map(|(s, n)| (s << vdev.ashift)..((s + n) << vdev.ashift)).collect()
            };
            let (leaked, leaks) = allocated.minus(&vdev.bits, LISTED);
            let (unallocated, holes) = vdev.bits.minus(&allocated, LISTED);
            out.push(SpaceDifference {
                vdev: vdev.vdev,
                guid: vdev.guid,
                allocated: (allocated.count() + beyond) << vdev.ashift,
                claimed: vdev.bits.count() << vdev.ashift,
                leaked: (leaked + beyond) << vdev.ashift,
                leaks: bytes(leaks),
                unallocated: unallocated << vdev.ashift,
                claims_of_free_space: bytes(holes),
            });
        }
        Ok(out)
    }
}
