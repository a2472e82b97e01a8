//! The space that blocks claim, against the space that the maps say is allocated.

use std::sync::Arc;

use base::Guid;
use ondisk::{BlkPtr, Dva};
use pool::Pool;

use super::bitmap::Bitmap;
use super::{Error, SpaceDifference};

/// Stretches of each kind that are listed for a vdev; the sums are always whole.
const LISTED: usize = 64;

struct Claimed {
    vdev: u64,
    guid: Guid,
    ashift: u32,
    size: u64,
    bits: Bitmap,
}

/// What the blocks of a pool claim, a bitmap for each top-level vdev that holds data.
pub(crate) struct Claims {
    vdevs: Vec<Option<Claimed>>,
    /// claims of what is no place of any vdev
    pub(crate) outside: u64,
    /// bytes that were claimed before by another pointer: dedup and clones
    pub(crate) shared: u64,
}

/// Whether a block was claimed before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// Nobody had it.
    New,
    /// All of it was claimed: the same block, met once more.
    Again,
    /// A part of it was.
    Overlaps,
    /// It lies on no vdev, or beyond its end.
    Outside,
}

impl Claims {
    pub(crate) fn new(pool: &Pool) -> Claims {
        let mut vdevs = Vec::new();
        for top in pool.tree().tops() {
            let concrete = top.is_concrete();
            vdevs.push(concrete.then(|| Claimed {
                vdev: top.id(),
                guid: top.guid(),
                ashift: top.ashift(),
                size: top.config().asize,
                bits: Bitmap::new(top.config().asize >> top.ashift()),
            }));
        }
        Claims { vdevs, outside: 0, shared: 0 }
    }

    /// Claims all copies of a block. The verdict is that of the first copy.
    pub(crate) fn block(&mut self, pool: &Pool, bp: &BlkPtr) -> Claim {
        let mut verdict = None;
        for dva in bp.dvas() {
            let claim = self.dva(pool, dva);
            verdict.get_or_insert(claim);
        }
        verdict.unwrap_or(Claim::New)
    }

    /// Claims one place.
    pub(crate) fn dva(&mut self, pool: &Pool, dva: Dva) -> Claim {
        // on a removed vdev nothing is allocated: its mapping claims the places where the data went
        if pool.tree().top(dva.vdev()).is_some_and(|top| top.is_indirect()) {
            return Claim::New;
        }
        let vdev = usize::try_from(dva.vdev()).ok().and_then(|n| self.vdevs.get_mut(n)).and_then(Option::as_mut);
        let Some(vdev) = vdev else {
            self.outside += 1;
            return Claim::Outside;
        };
        let (first, count) = (dva.offset() >> vdev.ashift, dva.asize() >> vdev.ashift);
        match vdev.bits.add(first, count) {
            None => {
                self.outside += 1;
                Claim::Outside
            }
            Some(0) => Claim::New,
            Some(n) => {
                self.shared += n << vdev.ashift;
                if n == count { Claim::Again } else { Claim::Overlaps }
            }
        }
    }

    /// Claims the places where the data of removed vdevs went.
    pub(crate) fn removed_vdevs(&mut self, pool: &Pool) {
        let mut places = Vec::new();
        for top in pool.tree().tops() {
            if let Some(mapping) = top.mapping() {
                places.extend(mapping.entries().iter().map(|e| e.dst));
            }
        }
        for dva in places {
            self.dva(pool, dva);
        }
    }

    /// Claims what only the checkpoint still needs.
    pub(crate) fn checkpoint(&mut self, pool: &Pool) -> Result<(), Error> {
        for vdev in self.vdevs.iter_mut().flatten() {
            for range in pool.checkpoint_space(vdev.vdev)?.iter() {
                vdev.bits.add(range.start >> vdev.ashift, (range.end - range.start) >> vdev.ashift);
            }
        }
        Ok(())
    }

    /// Compares with the space maps, vdev by vdev.
    pub(crate) fn compare(&self, pool: &Arc<Pool>) -> Result<Vec<SpaceDifference>, Error> {
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
