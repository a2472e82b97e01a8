//! The way of a read: from a top-level vdev to the copies, columns or segments of a block.

use std::io::IoSlice;

use base::Txg;
use smallvec::SmallVec;

use crate::config::VdevType;
use crate::errors::ErrorCounters;
use crate::node::{Copies, Node, Outcome, Rank};
use crate::report::{FaultKind, LeafFault, ReadReport};
use crate::source::{ReadCx, ReadMode};
use crate::stripe::physical;
use crate::tree::{Shape, TopVdev, VdevTree};
use crate::{Error, IoClass, Leaf, scratch};

/// The judge of a block's bytes.
pub(crate) type Check<'c> = dyn FnMut(&[u8]) -> bool + 'c;

/// Faults found before it is known whether the block can be read.
pub(crate) type Faults = SmallVec<[LeafFault; 2]>;

/// One block that is being read.
pub(crate) struct Request<'a> {
    pub(crate) tree: &'a VdevTree,
    pub(crate) cx: &'a ReadCx<'a>,
    pub(crate) birth: Txg,
    pub(crate) report: ReadReport,
    /// Whether what is wrong is overwritten: only while a checksum decides what is right.
    pub(crate) heals: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn is_scrub(&self) -> bool {
        self.cx.mode == ReadMode::Scrub
    }

    /// Whether a copy of this rank may be read at all.
    pub(crate) fn may_read(&self, rank: Rank) -> bool {
        rank <= self.worst()
    }

    /// The worst rank that may be read.
    pub(crate) fn worst(&self) -> Rank {
        if self.cx.stale { Rank::OutOfUse } else { Rank::Fresh }
    }

    /// Reads `buf` from byte `offset` of `top`.
    pub(crate) fn read(
        &mut self,
        top: &'a TopVdev,
        offset: u64,
        buf: &mut [u8],
        check: &mut Check<'_>,
    ) -> Result<(), Error> {
        let read = self.read_shape(top, &top.shape, offset, buf, check);
        read.inspect_err(|e| {
            if self.cx.counts {
                top.count_unreadable(e)
            }
        })
    }

    fn read_shape(
        &mut self,
        top: &'a TopVdev,
        shape: &'a Shape,
        offset: u64,
        buf: &mut [u8],
        check: &mut Check<'_>,
    ) -> Result<(), Error> {
        match shape {
            Shape::Copies(node) => self.read_copies(top, node, offset, buf, check),
            Shape::Striped(striped) => self.read_striped(top, striped, offset, buf, check),
            Shape::Sides(sides) => self.read_sides(top, sides, offset, buf, check),
            Shape::Indirect(_) => self.read_indirect(top, offset, buf, check),
            Shape::Gone if top.config().kind == VdevType::Missing => Err(failed(top, offset, buf.len(), Faults::new())),
            Shape::Gone => Err(Error::NoVdev { id: top.id() }),
        }
    }

    /// Reads from the first side that is right, in scrub mode from all.
    fn read_sides(
        &mut self,
        top: &'a TopVdev,
        sides: &'a [Shape],
        offset: u64,
        buf: &mut [u8],
        check: &mut Check<'_>,
    ) -> Result<(), Error> {
        let mut faults = Faults::new();
        let mut found = false;
        let mut bad: SmallVec<[(&'a Shape, Error); 2]> = SmallVec::new();
        for side in sides {
            let read = if found {
                let len = buf.len();
                scratch::with(len, |other| self.read_shape(top, side, offset, other, check))
            } else {
                self.read_shape(top, side, offset, buf, check)
            };
            match read {
                Ok(()) => found = true,
                Err(e) => {
                    faults.extend_from_slice(e.faults());
                    bad.push((side, e));
                }
            }
            if found && !self.is_scrub() {
                break;
            }
        }
        if !found {
            return Err(failed(top, offset, buf.len(), faults));
        }
        self.report.repaired.extend(faults.iter().copied());
        if self.heals {
            // a side that could not repair itself is written anew
            for (side, e) in bad {
                if self.tree.rewrite_side(top, side, offset, self.birth, buf) {
                    self.report.healed.extend_from_slice(e.faults());
                }
            }
        }
        Ok(())
    }

    fn read_copies(
        &mut self,
        top: &'a TopVdev,
        node: &'a Node,
        offset: u64,
        buf: &mut [u8],
        check: &mut Check<'_>,
    ) -> Result<(), Error> {
        // the common case first: one device, nothing to choose from
        if let Node::Leaf(leaf) = node
            && leaf.is_usable()
            && !leaf.misses(self.birth)
        {
            let place = physical(offset);
            let kind = match self.cx.read(leaf, place, buf) {
                Ok(()) if check(buf) => {
                    self.report.copies_checked += 1;
                    return Ok(());
                }
                Ok(()) => FaultKind::Checksum,
                Err(_) => FaultKind::Io,
            };
            let mut faults = Faults::new();
            self.blame(&mut faults, leaf, kind, place, buf.len());
            return Err(failed(top, offset, buf.len(), faults));
        }
        let mut copies = node.copies(None, physical(offset), self.birth);
        spread(&mut copies, offset);
        self.read_best(top, &copies, offset, buf, check)
    }

    /// Reads from the first copy that is right; the others are read only if it is wrong, or all in scrub mode.
    fn read_best(
        &mut self,
        top: &TopVdev,
        copies: &Copies<'a>,
        offset: u64,
        buf: &mut [u8],
        check: &mut Check<'_>,
    ) -> Result<(), Error> {
        let place = physical(offset);
        let mut faults = Faults::new();
        let mut good = None;
        let worst = self.worst();
        for (n, copy) in copies.iter().enumerate().filter(|(_, c)| c.rank <= worst) {
            let kind = match self.cx.read(copy.leaf, place, buf) {
                Ok(()) if check(buf) => {
                    good = Some(n);
                    self.report.copies_checked += 1;
                    break;
                }
                Ok(()) => FaultKind::Checksum,
                Err(_) => FaultKind::Io,
            };
            // an old copy is not expected to be right
            if copy.rank == Rank::Fresh {
                self.blame(&mut faults, copy.leaf, kind, place, buf.len());
            }
        }
        let Some(good) = good else {
            self.count_groups(top, copies, None, place, &faults);
            return Err(failed(top, offset, buf.len(), faults));
        };
        for fault in &faults {
            self.heal_fault(*fault, buf);
        }
        self.report.repaired.extend(faults);
        if self.is_scrub() {
            // those before the good one that were old, and known to be
            for copy in copies.iter().take(good).filter(|c| c.rank == Rank::Stale) {
                self.heal(copy.leaf, FaultKind::Missing, place, buf);
            }
            self.compare_copies(copies, good + 1, place, None, buf, check);
        }
        self.count_groups(top, copies, Some(good), place, &[]);
        Ok(())
    }

    /// Lets the groups below a mirror count what none of their leaves could give. Faults that were made good are in the report already.
    fn count_groups(&self, top: &TopVdev, copies: &Copies<'a>, good: Option<usize>, place: u64, faults: &[LeafFault]) {
        let Shape::Copies(node) = &*top.shape else { return };
        let of_leaf = |leaf: &Leaf| self.outcome(leaf, copies, good, place, faults);
        if self.cx.counts && !(faults.is_empty() && self.report.repaired.is_empty()) {
            node.count_failed_below(place, &of_leaf, &|errors| errors.read.add(1));
        }
    }

    /// The outcome of reading a leaf at `place`, one of `copies` of which number `good` is right.
    pub(crate) fn outcome(
        &self,
        leaf: &Leaf,
        copies: &Copies<'_>,
        good: Option<usize>,
        place: u64,
        faults: &[LeafFault],
    ) -> Outcome {
        let is_here = |fault: &&LeafFault| fault.leaf == leaf.guid() && fault.offset == place;
        if let Some(fault) = faults.iter().chain(&self.report.repaired).find(is_here) {
            return if fault.kind == FaultKind::Io { Outcome::Failed } else { Outcome::Useless };
        }
        let number = copies.iter().position(|copy| copy.leaf.guid() == leaf.guid());
        let fresh = number.and_then(|n| copies.get(n)).is_some_and(|copy| copy.rank == Rank::Fresh);
        // without a fault it was right, or nobody asked
        if fresh || (good.is_some() && number == good) { Outcome::Done } else { Outcome::Useless }
    }

    /// Compares the copies from number `from` on with the right bytes, and reports what is wrong or not there. Wrong bytes count for `column`, if there
    /// is one, else for their leaf.
    pub(crate) fn compare_copies(
        &mut self,
        copies: &Copies<'a>,
        from: usize,
        place: u64,
        column: Option<&ErrorCounters>,
        right: &[u8],
        check: &mut Check<'_>,
    ) {
        for copy in copies.iter().skip(from) {
            let len = right.len();
            let kind = match copy.rank {
                Rank::Fresh => scratch::with(len, |other| match self.cx.read(copy.leaf, place, other) {
                    // bytes that differ may still satisfy a block without a checksum
                    Ok(()) if other == right || check(other) => None,
                    Ok(()) => Some(FaultKind::Checksum),
                    Err(_) => Some(FaultKind::Io),
                }),
                _ => Some(FaultKind::Missing),
            };
            match kind {
                None => self.report.copies_checked += 1,
                Some(kind) => {
                    let mut faults = Faults::new();
                    self.blame_within(&mut faults, column.unwrap_or(&copy.leaf.errors), copy.leaf, kind, place, len);
                    self.report.repaired.extend(faults);
                    self.heal(copy.leaf, kind, place, right);
                }
            }
        }
    }

    /// Reads what cannot be checked: a part of a block. Nothing is overwritten on the strength of that.
    pub(crate) fn read_unchecked(&mut self, top: &'a TopVdev, offset: u64, buf: &mut [u8]) -> bool {
        let heals = std::mem::replace(&mut self.heals, false);
        let read = self.read(top, offset, buf, &mut |_| true);
        self.heals = heals;
        read.is_ok()
    }

    /// Overwrites what a leaf holds at `place` with the right bytes, if that is wanted and the leaf can be written. A leaf that missed
    /// the block is rewritten in scrub mode: that is a resilver.
    pub(crate) fn heal(&mut self, leaf: &Leaf, kind: FaultKind, place: u64, right: &[u8]) {
        if !self.heals || right.is_empty() || !leaf.is_writable() {
            return;
        }
        if leaf.write(IoClass::AsyncWrite, place, &[IoSlice::new(right)]).is_ok() {
            let healed = LeafFault { leaf: leaf.guid(), kind, offset: place, len: right.len() as u64 };
            self.report.healed.push(healed);
        } else {
            leaf.errors.write.add(1);
            leaf.note_unhealed();
            if self.cx.mode == ReadMode::Scrub {
                // so that nobody takes the leaf for complete (OpenZFS: `vdev_stat_update` of a scan's repair)
                leaf.miss(self.birth);
            }
        }
    }

    /// The same for a fault that was noted.
    pub(crate) fn heal_fault(&mut self, fault: LeafFault, right: &[u8]) {
        if let Some(leaf) = self.tree.leaf(fault.leaf) {
            self.heal(leaf, fault.kind, fault.offset, right);
        }
    }

    /// Notes a fault and counts it for its leaf.
    pub(crate) fn blame(&self, faults: &mut Faults, leaf: &Leaf, kind: FaultKind, offset: u64, len: usize) {
        self.blame_within(faults, &leaf.errors, leaf, kind, offset, len);
    }

    /// The same where wrong bytes are counted by the vdev of which the checksum tells.
    pub(crate) fn blame_within(
        &self,
        faults: &mut Faults,
        judged: &ErrorCounters,
        leaf: &Leaf,
        kind: FaultKind,
        offset: u64,
        len: usize,
    ) {
        match kind {
            FaultKind::Io if self.cx.counts => leaf.errors.read.add(1),
            FaultKind::Checksum if self.cx.counts => judged.checksum.add(1),
            _ => {}
        }
        let fault = LeafFault { leaf: leaf.guid(), kind, offset, len: len as u64 };
        if self.cx.counts && kind != FaultKind::Missing {
            leaf.errors.note(fault);
        }
        if self.cx.counts && kind == FaultKind::Checksum && !self.is_scrub() && std::ptr::eq(judged, &*leaf.errors) {
            leaf.note_wrong(offset);
        }
        faults.push(fault);
    }
}

/// Lets neighbouring megabytes begin with different sides of a mirror, so that all of them work.
pub(crate) fn spread(copies: &mut Copies<'_>, offset: u64) {
    let fresh = copies.iter().take_while(|c| c.rank == Rank::Fresh).count();
    if fresh > 1
        && let Some(sides) = copies.get_mut(..fresh)
    {
        sides.rotate_left(((offset >> 20) % fresh as u64) as usize);
    }
}

/// The error of a block of which no copy is right.
pub(crate) fn failed(top: &TopVdev, offset: u64, size: usize, faults: Faults) -> Error {
    let (vdev, size, faults) = (top.id(), size as u64, faults.into_vec());
    if faults.iter().any(|f| f.kind == FaultKind::Checksum) {
        Error::Checksum { vdev, offset, size, faults }
    } else {
        Error::TooFewDevices { vdev, offset, size, faults }
    }
}
