//! Checking of many blocks: all copies and all parity are read in the order of the devices, and what is wrong is repaired if asked for.
//!
//! A walk hands the pointers on in batches ([`Feeder`]). The checkers sort each batch by place on the device and read it through large windows,
//! so that the disk sees few large reads in order, and a block costs no allocation, lock or system call. Whatever is not right on this fast path
//! is read once more as a whole, straight from the devices, to tell what redundancy still gives from what is lost.
//!
//! [`Claims`] tell blocks that were met before, and compare the blocks that were met with the space maps.
//!
//! Memory: two batches and one more per thread (22 MB each), a bit per allocation unit of used space, and what is found wrong, of which
//! [`MAX_DAMAGE`] are kept and all are counted.

mod batch;
mod bitmap;
mod claims;

use std::collections::BTreeMap;

use base::{Errno, Guid, Txg};
use dmu::Below;
use vdev::{FaultKind, IoClass, LeafFault};
use zio::{Bookmark, CopyFailure, VerifyReport};

pub use batch::{Feeder, check};
pub use claims::{Claim, Claims, SpaceDifference};

/// Damaged blocks of which the details are kept.
pub const MAX_DAMAGE: usize = 100_000;

/// How blocks are checked.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Threads that check, besides the one that walks.
    pub threads: usize,
    /// Whether what is wrong and can be told right is overwritten: a scrub. The pool must be open for writing.
    pub heal: bool,
    /// Whether blocks are expanded, which tells that they can be read; else only their checksums are compared.
    pub expand: bool,
    /// The class of the reads.
    pub class: IoClass,
}

/// A block of which no copy is good, or below which nothing can be reached.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Damage {
    /// Its bookmark.
    pub bm: Bookmark,
    /// The txg in which it was written.
    pub birth: Txg,
    /// The reason.
    pub why: String,
    /// The blocks that cannot be reached because of it, if it holds pointers or dnodes.
    pub below: Option<Below>,
    /// The error number that OpenZFS gives for it: 52 for a wrong checksum, 5 for what cannot be read.
    pub errno: Errno,
}

/// Faults of a leaf device that redundancy made good.
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

/// The results of checking, on one thread or on all.
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

    /// Adds a lost block.
    pub fn lost(&mut self, damage: Damage) {
        self.lost_blocks += 1;
        if self.damage.len() < MAX_DAMAGE {
            self.damage.push(damage);
        }
    }

    /// Adds the results of another thread, or of another part.
    pub fn add(&mut self, other: Tally) {
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
