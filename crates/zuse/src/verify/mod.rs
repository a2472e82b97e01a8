//! Verification: every block of a pool or dataset is read, all its copies and parity, and the space maps are held against the
//! block tree.
//!
//! One thread walks the block trees (it reads indirect blocks and dnodes, through the cache) and hands the pointers on in
//! batches; the checkers sort each batch by place on the device and read it through large windows, so that the disk sees few
//! large reads in order, and a block costs no allocation, lock or system call. Whatever is not right on this fast path is looked at
//! once more as a whole, straight from the devices, to tell what redundancy still gives from what is lost.
//!
//! The walk holds each pointer's count of the blocks below it against what is there.
//!
//! Meanwhile each block claims its space in a bitmap. A block met twice under the same address is a dedup'd or cloned one and is
//! read once. At the end the claims are compared with the space maps: allocated space that nobody claims is leaked; claimed space
//! that is not allocated is worse, for it may be overwritten.
//!
//! Memory: two batches and one more per thread (22 MB each), a bit per allocation unit of used space, and what is found wrong, of
//! which [`MAX_DAMAGE`] are kept and all are counted.

mod bitmap;
pub mod blocks;
pub(crate) mod check;
pub(crate) mod claims;
mod names;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use base::{Errno, Guid, Txg};
use dmu::Below;
use ondisk::ObjectType;
use pool::{Dataset, Pool};
use vdev::{FaultKind, IoClass, LeafFault};
use zio::{Bookmark, CopyFailure, VerifyReport};

use blocks::{Block, Role, visit_blocks};
use claims::{Claim, Claims};
pub use names::{DamagedItem, Names};

/// Damaged blocks of which the details are kept.
pub const MAX_DAMAGE: usize = 100_000;

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
    /// Whether what is wrong and can be told right is overwritten: a scrub. The pool must be open for writing.
    pub heal: bool,
    /// Whether blocks are expanded, which tells that they can be read; else only their checksums are looked at.
    pub expand: bool,
}

impl Options {
    /// The class of what is read. A verification is waited for; a scrub gives way to who works with the pool.
    fn class(&self) -> IoClass {
        if self.heal { IoClass::Scrub } else { IoClass::AsyncRead }
    }
}

/// A block of which no copy is good, or below which nothing can be reached.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Damage {
    /// The place where it belongs.
    pub bm: Bookmark,
    /// When it was written.
    pub birth: Txg,
    /// The problem.
    pub why: String,
    /// What cannot be reached for it: of a block of pointers or dnodes that cannot be read.
    pub below: Option<Below>,
    /// The error number that OpenZFS gives for it: 52 for a wrong checksum, 5 for what cannot be read.
    pub errno: Errno,
}

/// What was wrong with a leaf device and made good by redundancy.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LeafFaults {
    /// Ranges that could not be read.
    pub io: u64,
    /// Ranges with wrong bytes.
    pub checksum: u64,
    /// Ranges that are missing, with the device or since it was away.
    pub missing: u64,
    /// Bytes of all these.
    pub bytes: u64,
}

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
    /// The first stretches.
    pub leaks: Vec<Range<u64>>,
    /// Claimed and not allocated.
    pub unallocated: u64,
    /// The first stretches.
    pub claims_of_free_space: Vec<Range<u64>>,
}

/// The findings of a check, on one thread or on all.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    /// Copies that are right.
    pub copies: u64,
    /// Bytes of them as stored.
    pub bytes: u64,
    /// Blocks whose MAC was checked.
    pub authenticated: u64,
    /// Blocks that are wrong in part, and whole thanks to redundancy.
    pub repairable: u64,
    /// Places that were overwritten with what they should hold.
    pub healed: u64,
    /// Blocks without a good copy.
    pub lost_blocks: u64,
    /// The first [`MAX_DAMAGE`] of these.
    pub damage: Vec<Damage>,
    /// Faults by leaf device.
    pub leaves: BTreeMap<Guid, LeafFaults>,
}

impl Tally {
    fn good(&mut self, report: &VerifyReport) {
        self.copies += u64::from(report.copies);
        self.bytes += report.bytes;
        self.authenticated += u64::from(report.authenticated);
    }

    fn repairable(&mut self, report: &VerifyReport) {
        self.good(report);
        if !report.is_clean() {
            self.repairable += 1;
        }
        self.healed += u64::from(report.healed);
        report.faults.iter().for_each(|fault| self.fault(fault));
        report.bad_copies.iter().flat_map(|copy: &CopyFailure| copy.fault.leaves()).for_each(|fault| self.fault(fault));
    }

    fn fault(&mut self, fault: &LeafFault) {
        let leaf = self.leaves.entry(fault.leaf).or_default();
        leaf.bytes += fault.len;
        match fault.kind {
            FaultKind::Io => leaf.io += 1,
            FaultKind::Checksum => leaf.checksum += 1,
            FaultKind::Missing => leaf.missing += 1,
        }
    }

    pub(crate) fn lost(&mut self, damage: Damage) {
        self.lost_blocks += 1;
        if self.damage.len() < MAX_DAMAGE {
            self.damage.push(damage);
        }
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.copies += other.copies;
        self.bytes += other.bytes;
        self.authenticated += other.authenticated;
        self.repairable += other.repairable;
        self.healed += other.healed;
        self.lost_blocks += other.lost_blocks;
        let room = MAX_DAMAGE.saturating_sub(self.damage.len());
        self.damage.extend(other.damage.into_iter().take(room));
        for (guid, faults) in other.leaves {
            let leaf = self.leaves.entry(guid).or_default();
            leaf.io += faults.io;
            leaf.checksum += faults.checksum;
            leaf.missing += faults.missing;
            leaf.bytes += faults.bytes;
        }
    }
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
    let checked = check::check(pool.zio(), options, progress, |feeder| {
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
