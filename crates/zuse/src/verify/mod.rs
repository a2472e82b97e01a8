//! Verification: every block of a pool or dataset is read, all its copies and parity, and the space maps are held against the
//! block tree.
//!
//! One thread walks the block trees (it reads indirect blocks and dnodes, through the cache), and others check what it meets ([`pool::check`]).
//!
//! The walk holds each pointer's count of the blocks below it against what is there.
//!
//! Meanwhile each block claims its space in a bitmap. A block met twice under the same address is a dedup'd or cloned one and is
//! read once. At the end the claims are compared with the space maps: allocated space that nobody claims is leaked; claimed space
//! that is not allocated is worse, for it may be overwritten.

pub mod blocks;
mod names;

use std::sync::Arc;

use base::Errno;
use dmu::Below;
use ondisk::ObjectType;
use pool::check::{CheckOptions, Claim, Claims, check};
pub use pool::check::{Damage, LeafFaults, MAX_DAMAGE, SpaceDifference, Tally};
use pool::{Dataset, Pool};
use vdev::IoClass;

use blocks::{Block, Role, visit_blocks};
pub use names::{DamagedItem, Names};

/// Why a verification could not be done, or be finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool's own lists cannot be read.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// An object of the MOS cannot be read.
    #[error(transparent)]
    Dmu(#[from] dmu::Error),
}

/// The blocks to verify.
#[derive(Clone, Debug)]
pub struct Options {
    /// This dataset or snapshot alone; `None` for the whole pool with its space maps.
    pub dataset: Option<Dataset>,
    /// Threads that check, besides the one that walks.
    pub threads: usize,
    /// Whether blocks are expanded, which tells that they can be read; else only their checksums are looked at.
    pub expand: bool,
}

/// The result of a verification.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Blocks that were read and checked; each counts once, however many pointers and copies it has.
    pub blocks: u64,
    /// Blocks that stand in their pointers.
    pub embedded: u64,
    /// Bytes that other pointers to the same blocks would take: dedup and clones.
    pub shared_bytes: u64,
    /// Blocks that overlap others, or lie on no vdev.
    pub misplaced: Vec<Damage>,
    /// Pointers whose fill count is not the number of blocks, or dnodes, below them; the first [`MAX_DAMAGE`].
    pub miscounted: Vec<Damage>,
    /// The findings of reading.
    pub tally: Tally,
    /// The space of each vdev; empty if only a dataset was verified.
    pub space: Vec<SpaceDifference>,
}

impl Summary {
    /// All findings about single blocks.
    pub fn damage(&self) -> impl Iterator<Item = &Damage> {
        self.tally.damage.iter().chain(&self.misplaced).chain(&self.miscounted)
    }

    /// Whether nothing is lost and all counts and the space maps agree. (Redundancy may have been needed.)
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.tally.lost_blocks == 0
            && self.misplaced.is_empty()
            && self.miscounted.is_empty()
            && self.space.iter().all(|vdev| vdev.leaked == 0 && vdev.unallocated == 0)
    }

    /// Whether all is as it was written.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.is_sound() && self.tally.repairable == 0
    }
}

/// Verifies a pool, or one dataset of it. `progress` is told, from any thread, of bytes that were read and blocks that are lost.
///
/// # Errors
/// When what leads to the blocks (the lists of datasets) cannot be read. Damage of blocks is in the summary.
pub fn verify(pool: &Arc<Pool>, options: &Options, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Summary, Error> {
    inspect(pool, options, progress, &mut |_| true)
}

/// As [`verify`]; `each` is shown every block that the walk meets, as often as it meets it, and says whether to read it.
///
/// # Errors
/// As [`verify`].
pub fn inspect(
    pool: &Arc<Pool>,
    options: &Options,
    progress: &(dyn Fn(u64, u64) + Sync),
    each: &mut dyn FnMut(&Block<'_>) -> bool,
) -> Result<Summary, Error> {
    let mut claims = Claims::new(pool);
    let (mut blocks, mut embedded) = (0, 0);
    let (mut misplaced, mut miscounted, mut unreachable) = (Vec::new(), Vec::new(), Vec::new());
    let checking =
        CheckOptions { threads: options.threads, heal: false, expand: options.expand, class: IoClass::AsyncRead };
    let checked = check(pool.zio(), &checking, progress, |feeder| {
        visit_blocks(pool, options.dataset.as_ref(), &mut |block| {
            let wanted = each(block);
            if let Some(why @ dmu::Error::Fill { .. }) = block.damage {
                let (bm, birth) = (*block.bm, block.bp.birth_physical());
                let damage = Damage { bm, birth, why: why.to_string(), below: None, errno: Errno::EIO };
                return if miscounted.len() < MAX_DAMAGE {
                    miscounted.push(damage)
                };
            }
            if let Some(why) = block.damage {
                let errno = if let dmu::Error::Zio(e) = why { e.errno() } else { Errno::EIO };
                let below = block.dnode.and_then(|dn| Below::of(dn, block.bm));
                let (bm, birth) = (*block.bm, block.bp.birth_physical());
                return unreachable.push(Damage { bm, birth, why: why.to_string(), below, errno });
            }
            if block.bp.is_embedded() {
                embedded += 1;
                return;
            }
            match claims.block(pool, block.bp, block.bm) {
                Claim::New => {}
                Claim::Again if may_be_shared(pool, block) => return,
                Claim::Again => misplaced.push(misplacement(block, "is claimed by another block")),
                Claim::Overlaps => misplaced.push(misplacement(block, "overlaps another block")),
                Claim::Outside => misplaced.push(misplacement(block, "lies on no device of this pool")),
            }
            // log blocks were read by the walk (the last one of a chain is never written); what is freed may be overwritten
            let is_data = block.role == Role::Log && block.object_type != ObjectType::INTENT_LOG;
            if wanted && (block.role == Role::Tree || is_data) {
                blocks += 1;
                feeder.add(block.bp, block.bm);
            }
        })
    });
    let (walked, mut tally) = checked?;
    walked?;
    add_unreachable(&mut tally, unreachable);
    let mut space = Vec::new();
    if options.dataset.is_none() {
        claims.checkpoint(pool)?;
        space = claims.compare(pool)?;
    }
    Ok(Summary { blocks, embedded, shared_bytes: claims.shared, misplaced, miscounted, tally, space })
}

/// Adds blocks below which nothing can be reached. One that cannot be read is among what the check found as well: that says why, the walk says what
/// is below.
fn add_unreachable(tally: &mut Tally, unreachable: Vec<Damage>) {
    tally.damage.sort();
    tally.damage.dedup_by_key(|d| d.bm);
    let known = tally.damage.len();
    for damage in unreachable {
        let found = tally.damage.get(..known).unwrap_or_default().binary_search_by_key(&damage.bm, |d| d.bm);
        match found.ok().and_then(|n| tally.damage.get_mut(n)) {
            Some(same) => same.below = damage.below,
            None => tally.lost(damage),
        }
    }
    tally.damage.sort();
    tally.damage.dedup_by_key(|d| d.bm);
}

/// Whether a block may rightly be met more than once: dedup'd, cloned, or claimed by an intent log that was written out since.
fn may_be_shared(pool: &Pool, block: &Block<'_>) -> bool {
    block.bp.is_dedup() || block.role != Role::Tree || pool.feature_active("block_cloning")
}

fn misplacement(block: &Block<'_>, what: &str) -> Damage {
    let why = format!("{:?} {what}", block.bp.dva(0));
    Damage { bm: *block.bm, birth: block.bp.birth_physical(), why, below: None, errno: Errno::EIO }
}
