//! Reading through the mapping of a removed device.
//!
//! Where a device was removed, each of its ranges was copied to some other device, in pieces of what was allocated, not of blocks. So a block may
//! now lie in several pieces (*split*), and only the whole has a checksum. If a split block is wrong, all copies of all pieces are read and
//! the distinct ones combined until the checksum is right. A target may have been removed as well: mappings chain.
//!
//! OpenZFS: `vdev_indirect.c`.

use base::tunable::ZFS_RECONSTRUCT_INDIRECT_COMBINATIONS_MAX;
use smallvec::SmallVec;

use crate::Error;
use crate::node::{Copies, Rank};
use crate::read::{Check, Faults, Request, failed};
use crate::report::FaultKind;
use crate::stripe::physical;
use crate::tree::{Shape, TopVdev};

/// Pieces of one block that are followed.
const SEGMENTS_MAX: usize = 1 << 16;

/// A piece of a block, on a vdev that is there.
#[derive(Clone, Copy)]
struct Segment<'a> {
    top: &'a TopVdev,
    offset: u64,
    /// The offset in the block.
    at: usize,
    len: usize,
}

type Segments<'a> = SmallVec<[Segment<'a>; 4]>;

/// One piece with all that its copies hold.
struct Piece<'a> {
    segment: Segment<'a>,
    /// Distinct contents.
    versions: Vec<Vec<u8>>,
    /// Which version each leaf has (a leaf's own place among the versions), with where it lies.
    holders: Vec<(&'a crate::Leaf, Rank, usize)>,
}

impl<'a> Request<'a> {
    pub(crate) fn read_indirect(
        &mut self,
        top: &'a TopVdev,
        offset: u64,
        buf: &mut [u8],
        check: &mut Check<'_>,
    ) -> Result<(), Error> {
        let segments = self.segments(top, offset, buf.len())?;
        if let [only] = segments.as_slice() {
            return self.read(only.top, only.offset, buf, check);
        }
        if !self.is_scrub() && self.read_once(&segments, buf) && check(buf) {
            self.report.copies_checked += 1;
            return Ok(());
        }
        self.combine(top, offset, &segments, buf, check)
    }

    /// Follows the mappings to devices that are there.
    fn segments(&self, first: &'a TopVdev, offset: u64, len: usize) -> Result<Segments<'a>, Error> {
        let mut found = Segments::new();
        // what is still to be followed, the last piece first, with the mappings that led there
        let mut open: SmallVec<[(Segment<'a>, usize); 4]> = SmallVec::new();
        open.push((Segment { top: first, offset, at: 0, len }, 0));
        while let Some((piece, depth)) = open.pop() {
            let vdev = piece.top.id();
            if !matches!(*piece.top.shape, Shape::Indirect(_)) {
                found.push(piece);
                continue;
            }
            // a chain cannot visit a vdev twice
            if depth > self.tree.tops().len() || found.len() + open.len() > SEGMENTS_MAX {
                return Err(Error::MappingTooDeep { vdev: first.id() });
            }
            let mapping = piece.top.mapping().ok_or(Error::NoMapping { vdev })?;
            let from = open.len();
            let (mut at, mut left) = (piece.offset, piece.len as u64);
            while left > 0 {
                let entry = mapping.find(at).and_then(|n| mapping.entries().get(n));
                let entry = entry.ok_or(Error::Unmapped { vdev, offset: at })?;
                let within = at - entry.src();
                let len = left.min(entry.size() - within);
                let id = entry.dst.vdev();
                let target = self.tree.top(id).ok_or(Error::NoVdev { id })?;
                let place = piece.at + (at - piece.offset) as usize;
                let offset = entry.dst.offset().checked_add(within).ok_or(Error::Unmapped { vdev, offset: at })?;
                open.push((Segment { top: target, offset, at: place, len: len as usize }, depth + 1));
                at += len;
                left -= len;
            }
            if let Some(new) = open.get_mut(from..) {
                new.reverse();
            }
        }
        Ok(found)
    }

    /// Reads each piece from wherever it is best.
    fn read_once(&mut self, segments: &Segments<'a>, buf: &mut [u8]) -> bool {
        segments.iter().all(|s| {
            let Some(bytes) = buf.get_mut(s.at..s.at + s.len) else { return false };
            match &*s.top.shape {
                Shape::Copies(node) => {
                    let copies = node.copies(None, physical(s.offset), self.birth);
                    let mut fresh = copies.iter().filter(|c| c.rank == Rank::Fresh);
                    fresh.any(|c| self.cx.read(c.leaf, physical(s.offset), bytes).is_ok())
                }
                _ => self.read_unchecked(s.top, s.offset, bytes),
            }
        })
    }

    /// Reads every copy of every piece, and tries their combinations.
    fn combine(
        &mut self,
        top: &TopVdev,
        offset: u64,
        segments: &Segments<'a>,
        buf: &mut [u8],
        check: &mut Check<'_>,
    ) -> Result<(), Error> {
        let mut faults = Faults::new();
        let pieces: Vec<Piece<'a>> = segments.iter().map(|s| self.read_piece(*s, &mut faults)).collect();
        if pieces.iter().any(|p| p.versions.is_empty()) {
            return Err(failed(top, offset, buf.len(), faults));
        }
        let limit = ZFS_RECONSTRUCT_INDIRECT_COMBINATIONS_MAX.get().max(1);
        let total = pieces.iter().fold(1u64, |n, p| n.saturating_mul(p.versions.len() as u64));
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for attempt in 0..total.min(limit) {
            // count through all combinations, or where there are too many, through some of them by chance
            let mut number = attempt;
            if total > limit && attempt > 0 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                number = random;
            }
            let mut choice: SmallVec<[usize; 8]> = SmallVec::new();
            for piece in &pieces {
                let base = piece.versions.len() as u64;
                let n = (number % base) as usize;
                number = if total > limit { number.rotate_right(11).wrapping_mul(random | 1) } else { number / base };
                choice.push(n);
                let (Some(version), s) = (piece.versions.get(n), piece.segment) else { continue };
                if let Some(bytes) = buf.get_mut(s.at..s.at + s.len) {
                    bytes.copy_from_slice(version);
                }
            }
            if check(buf) {
                self.settle_pieces(&pieces, &choice, &mut faults);
                self.report.repaired.extend(faults);
                return Ok(());
            }
        }
        for piece in &pieces {
            for (leaf, _, _) in piece.holders.iter().filter(|(_, rank, _)| *rank == Rank::Fresh) {
                let (place, len) = (physical(piece.segment.offset), piece.segment.len);
                self.blame(&mut faults, leaf, FaultKind::Checksum, place, len);
            }
        }
        Err(failed(top, offset, buf.len(), faults))
    }

    fn read_piece(&mut self, segment: Segment<'a>, faults: &mut Faults) -> Piece<'a> {
        let mut piece = Piece { segment, versions: Vec::new(), holders: Vec::new() };
        let Shape::Copies(node) = &*segment.top.shape else {
            // OpenZFS removes no device from a pool with raidz; if one is met, take what its parity gives
            let mut bytes = vec![0; segment.len];
            if self.read_unchecked(segment.top, segment.offset, &mut bytes) {
                piece.versions.push(bytes);
            }
            return piece;
        };
        let place = physical(segment.offset);
        let copies: Copies<'a> = node.copies(None, place, self.birth);
        for copy in &copies {
            if copy.rank == Rank::Absent {
                if self.is_scrub() {
                    self.blame(faults, copy.leaf, FaultKind::Missing, place, segment.len);
                }
                continue;
            }
            if !self.may_read(copy.rank) {
                continue;
            }
            let mut bytes = vec![0; segment.len];
            if self.cx.read(copy.leaf, place, &mut bytes).is_err() {
                if copy.rank == Rank::Fresh {
                    self.blame(faults, copy.leaf, FaultKind::Io, place, segment.len);
                }
                continue;
            }
            let version = piece.versions.iter().position(|v| *v == bytes).unwrap_or_else(|| {
                piece.versions.push(bytes);
                piece.versions.len() - 1
            });
            piece.holders.push((copy.leaf, copy.rank, version));
        }
        piece
    }

    /// Reports the leaves that hold another version than the right one.
    fn settle_pieces(&mut self, pieces: &[Piece<'a>], choice: &[usize], faults: &mut Faults) {
        for (piece, right) in pieces.iter().zip(choice) {
            let (place, len) = (physical(piece.segment.offset), piece.segment.len);
            for (leaf, rank, version) in &piece.holders {
                if version == right {
                    self.report.copies_checked += 1;
                    continue;
                }
                if *rank == Rank::Fresh {
                    self.blame(faults, leaf, FaultKind::Checksum, place, len);
                }
                if *rank == Rank::Fresh || self.is_scrub() {
                    self.heal(leaf, FaultKind::Checksum, place, piece.versions.get(*right).map_or(&[], Vec::as_slice));
                }
            }
        }
    }
}
