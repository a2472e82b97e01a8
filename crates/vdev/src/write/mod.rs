//! Writing blocks.
//!
//! A batch of blocks is *planned* first: each block becomes pieces on leaves (its data where a map says, parity that is computed into one arena for
//! many blocks, zeros behind what is short). The pieces are sorted by leaf and offset, and what is adjacent goes out in one vectored
//! write of up to `zfs_vdev_aggregation_limit` bytes; nothing is allocated per block. Large batches are planned in parts by several threads.
//! The writes of all leaves are under way together (`leaves`).
//!
//! # What fails
//! A leaf that is not there, or fails, missed the txg: that is noted in its DTL, and the block is as good as the rest of its
//! redundancy. Only a block that lost more than that is an error; the other blocks of the batch are written all the same.
//!
//! # Zeros that nobody asked for
//! A raidz allocates a multiple of `parity + 1` sectors and leaves the last ones unused. They are written as zeros where that joins two
//! pieces to one write, and else not at all (OpenZFS: optional I/Os). The padding of a dRAID row is always written: its rebuild computes
//! with it.
//!
//! OpenZFS: `zio_vdev_io_start`, `vdev_queue_aggregate`, `vdev_mirror_io_start`, `vdev_raidz_io_start_write`.

use std::collections::BTreeSet;
use std::io::IoSlice;

use base::{Guid, Txg, tasks};
use ondisk::Dva;

use crate::node::{Node, Outcome, Rank, SpareRoom};
use crate::report::{FaultKind, LeafFault};
use crate::stripe::{Column, Extent, StripeMap, physical};
use crate::tree::{Geometry, Shape, Striped, TopVdev, VdevTree};
use crate::{Error, IoClass, Leaf, gf};

mod flush;
mod leaves;

pub use flush::{Flushes, Written};
use leaves::{Batch, LeafDone};

/// The largest sector.
const SECTOR_MAX: usize = 1 << 16;
/// The bytes that fill the last sector of a block.
static ZEROS: [u8; SECTOR_MAX] = [0; SECTOR_MAX];
/// A batch of at least this many bytes is worth several threads.
const PARALLEL_BYTES: usize = 512 << 10;

/// A block that is to be written.
#[derive(Debug, Clone, Copy)]
pub struct BlockWrite<'a> {
    /// The space that was allocated for it.
    pub dva: Dva,
    /// Its bytes as stored, a multiple of 512 of them. Up to the end of the last sector, zeros are added.
    pub data: &'a [u8],
}

/// The account of a batch that was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteReport {
    /// Writes that were made.
    pub writes: u64,
    /// Bytes that went to leaves: data, parity, padding, every copy.
    pub bytes: u64,
    /// Leaves that failed, or were not there, in the order of leaves; each once, with the first range that it missed and the sum of lengths.
    pub faults: Vec<LeafFault>,
}

/// The place of the bytes of a piece.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// Part of the block.
    Block(usize),
    /// Part of the arena.
    Arena(usize),
    /// Zeros.
    Zero,
}

/// Bytes that go to one place of one leaf.
#[derive(Debug, Clone, Copy)]
struct Piece {
    offset: u64,
    leaf: u32,
    block: u32,
    len: u32,
    /// Which part of the plan, for its arena.
    part: u16,
    optional: bool,
    source: Source,
}

/// Pieces of some blocks.
#[derive(Default)]
struct Plan {
    pieces: Vec<Piece>,
    /// Parity, and blocks that had to be filled up.
    arena: Vec<u8>,
    /// Leaves that will miss a part of a block: (leaf, offset, length).
    missing: Vec<(u32, u64, u64)>,
    /// Blocks with too little left of them, and addresses that cannot be.
    errors: Vec<Error>,
}

impl VdevTree {
    /// Writes blocks that are born in `txg`, in any order. When it returns, they can be read; they are on stable storage after
    /// [`VdevTree::flush`].
    ///
    /// # Errors
    /// [`Error::WriteFailed`] for the first block that cannot be read again because too many leaves missed it; what makes an address
    /// unusable. All other blocks are written.
    pub fn write(&self, txg: Txg, blocks: &[BlockWrite<'_>]) -> Result<WriteReport, Error> {
        self.write_as(IoClass::AsyncWrite, txg, blocks)
    }

    /// As [`VdevTree::write`], in a class of the caller's choice.
    ///
    /// # Errors
    /// As [`VdevTree::write`].
    pub fn write_as(&self, class: IoClass, txg: Txg, blocks: &[BlockWrite<'_>]) -> Result<WriteReport, Error> {
        let total: usize = blocks.iter().map(|b| b.data.len()).sum();
        let threads = if total >= PARALLEL_BYTES { tasks::width() } else { 1 };
        let each = blocks.len().div_ceil(threads).max(1);
        let parts: Vec<(usize, &[BlockWrite<'_>])> = blocks.chunks(each).enumerate().collect();
        let mut plans = tasks::map(parts, |(part, chunk)| {
            let mut planner = Planner { tree: self, txg, part: part as u16, plan: Plan::default(), lost: &[] };
            for (n, block) in chunk.iter().enumerate() {
                planner.block((part * each + n) as u32, block);
            }
            planner.plan
        });
        let mut pieces = match plans.as_mut_slice() {
            [only] => std::mem::take(&mut only.pieces),
            many => many.iter().flat_map(|plan| plan.pieces.iter().copied()).collect(),
        };
        pieces.sort_unstable_by_key(|p| (p.leaf, p.offset));
        let leaves: Vec<&[Piece]> = pieces.chunk_by(|a, b| a.leaf == b.leaf).collect();
        let done = Batch { tree: self, class, blocks, plans: &plans }.write(&leaves, threads > 1);
        self.account(txg, blocks, plans, done)
    }

    /// Notes who missed what, and finds the blocks that are lost.
    fn account(
        &self,
        txg: Txg,
        blocks: &[BlockWrite<'_>],
        plans: Vec<Plan>,
        done: Vec<LeafDone>,
    ) -> Result<WriteReport, Error> {
        let mut report = WriteReport::default();
        let mut missed: Vec<(u32, FaultKind, u64, u64)> = Vec::new();
        let mut first_error = None;
        for plan in plans {
            missed.extend(plan.missing.iter().map(|(leaf, at, len)| (*leaf, FaultKind::Missing, *at, *len)));
            first_error = first_error.or(plan.errors.into_iter().next());
        }
        let mut failed: Vec<(u32, u32, u64)> = Vec::new();
        for leaf in &done {
            report.writes += leaf.writes;
            report.bytes += leaf.bytes;
            for piece in &leaf.failed {
                report.bytes -= u64::from(piece.len);
                missed.push((piece.leaf, FaultKind::Io, piece.offset, u64::from(piece.len)));
                failed.push((piece.block, piece.leaf, piece.offset));
            }
        }
        missed.sort_by_key(|m| m.0);
        for of_leaf in missed.chunk_by(|a, b| a.0 == b.0) {
            let (Some(first), Some(leaf)) = (of_leaf.first(), of_leaf.first().and_then(|m| self.leaf_at(m.0 as usize)))
            else {
                continue;
            };
            leaf.miss(txg);
            let errors = of_leaf.iter().filter(|m| m.1 == FaultKind::Io).count();
            leaf.errors.write.add(errors as u64);
            let kind = if errors > 0 { FaultKind::Io } else { FaultKind::Missing };
            let len = of_leaf.iter().map(|m| m.3).sum();
            let fault = LeafFault { leaf: leaf.guid(), kind, offset: first.2, len };
            if errors > 0 {
                leaf.errors.note(fault);
            }
            report.faults.push(fault);
        }
        // only where a leaf failed, its blocks are planned once more, without it
        failed.sort_unstable();
        let suspects: BTreeSet<u32> = failed.iter().map(|(_, leaf, _)| *leaf).collect();
        for of_block in failed.chunk_by(|a, b| a.0 == b.0) {
            let Some(number) = of_block.first().map(|f| f.0) else { continue };
            let Some(block) = blocks.get(number as usize) else {
                panic!("block {number} of {} has failed", blocks.len());
            };
            let lost: Vec<(u32, u64)> = of_block.iter().map(|f| (f.1, f.2)).collect();
            let mut planner = Planner { tree: self, txg, part: 0, plan: Plan::default(), lost: &lost };
            planner.block(number, block);
            if let Some(top) = self.top(block.dva.vdev()) {
                top.count_unwritable(planner.plan.errors.len() as u64);
            }
            first_error = first_error.or(planner.plan.errors.into_iter().next());
        }
        suspects.iter().filter_map(|leaf| self.leaf_at(*leaf as usize)).for_each(|leaf| self.judge_leaf(leaf));
        match first_error {
            Some(error) => Err(error),
            None => Ok(report),
        }
    }

    /// Overwrites a block that was found wrong, born in `birth`, with what it should be. Returns whether it can be read again and every leaf that is
    /// there has it. No DTL changes: a leaf that is away has missed nothing by this, and what else a leaf that fails has of that txg is good. One that
    /// fails counts in [`VdevTree::unhealed`].
    #[must_use]
    pub fn rewrite(&self, birth: Txg, block: &BlockWrite<'_>) -> bool {
        let mut planner = Planner { tree: self, txg: birth, part: 0, plan: Plan::default(), lost: &[] };
        planner.block(0, block);
        self.rewrite_planned(block, planner.plan)
    }

    /// The same for one side of a mirror of striped vdevs.
    pub(crate) fn rewrite_side<'a>(
        &'a self,
        top: &TopVdev,
        side: &'a Shape,
        offset: u64,
        birth: Txg,
        data: &[u8],
    ) -> bool {
        let dva = Dva::new(top.id(), offset, 0, false);
        let mut planner = Planner { tree: self, txg: birth, part: 0, plan: Plan::default(), lost: &[] };
        planner.shape(side, WriteAddress { vdev: top.id(), offset, number: 0, ashift: top.ashift() }, data);
        self.rewrite_planned(&BlockWrite { dva, data }, planner.plan)
    }

    fn rewrite_planned(&self, block: &BlockWrite<'_>, mut plan: Plan) -> bool {
        let whole = plan.errors.is_empty();
        let mut pieces = std::mem::take(&mut plan.pieces);
        pieces.sort_unstable_by_key(|p| (p.leaf, p.offset));
        let (blocks, plans) = ([*block], [plan]);
        let leaves: Vec<&[Piece]> = pieces.chunk_by(|a, b| a.leaf == b.leaf).collect();
        let batch = Batch { tree: self, class: IoClass::AsyncWrite, blocks: &blocks, plans: &plans };
        let failed: Vec<Piece> = batch.write(&leaves, false).into_iter().flat_map(|done| done.failed).collect();
        for leaf in failed.iter().filter_map(|piece| self.leaf_at(piece.leaf as usize)) {
            leaf.errors.write.add(1);
            leaf.note_unhealed();
        }
        whole && failed.is_empty()
    }

    /// Overwrites bytes of one leaf, at byte `offset` of its device, with what they should be (OpenZFS: `ZIO_FLAG_SELF_HEAL`).
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the leaf cannot be written at all, [`Error::Write`] if it fails now, which is counted.
    pub fn repair(&self, leaf: Guid, offset: u64, data: &[u8]) -> Result<(), Error> {
        let leaf = self.leaf(leaf).filter(|l| l.is_writable()).ok_or(Error::NoDevice { leaf })?;
        leaf.write(IoClass::AsyncWrite, offset, &[IoSlice::new(data)]).inspect_err(|_| leaf.errors.write.add(1))
    }

    /// The DTLs of the leaves that missed something since this was last asked: each is to be written to the pool, whole.
    #[must_use]
    pub fn dirty_dtls(&self) -> Vec<(Guid, Vec<std::ops::Range<u64>>)> {
        self.leaves().iter().filter_map(|leaf| Some((leaf.guid(), leaf.take_dirty_dtl()?))).collect()
    }
}

/// Turns blocks into pieces.
struct Planner<'a> {
    tree: &'a VdevTree,
    txg: Txg,
    part: u16,
    plan: Plan,
    /// Places where a write failed: they count as missing.
    lost: &'a [(u32, u64)],
}

impl<'a> Planner<'a> {
    fn block(&mut self, number: u32, block: &BlockWrite<'_>) {
        let (vdev, offset, size) = (block.dva.vdev(), block.dva.offset(), block.data.len() as u64);
        let fits = size != 0 && size.is_multiple_of(512) && size <= u64::from(u32::MAX);
        let Some(top) = self.tree.top(vdev).filter(|top| top.is_concrete()) else {
            return self.plan.errors.push(Error::NoVdev { id: vdev });
        };
        let padded = size.next_multiple_of(1 << top.ashift());
        let inside = offset.checked_add(padded).is_some_and(|end| end <= i64::MAX as u64);
        if !fits || !inside || !offset.is_multiple_of(512) {
            return self.plan.errors.push(Error::BadAddress { vdev, offset, size });
        }
        let place = WriteAddress { vdev, offset, number, ashift: top.ashift() };
        self.shape(&top.shape, place, block.data);
    }

    /// Plans a block on a shape; notes if too little of it will be there.
    fn shape(&mut self, shape: &'a Shape, place: WriteAddress, data: &[u8]) {
        let before = self.plan.missing.len();
        let good = self.shape_below(shape, place, data);
        if !good {
            let faults = self.plan.missing.get(before..).unwrap_or(&[]).iter().filter_map(|(leaf, offset, len)| {
                let leaf = self.tree.leaf_at(*leaf as usize)?.guid();
                let kind = if self.lost.is_empty() { FaultKind::Missing } else { FaultKind::Io };
                Some(LeafFault { leaf, kind, offset: *offset, len: *len })
            });
            let error = Error::WriteFailed {
                vdev: place.vdev,
                offset: place.offset,
                size: data.len() as u64,
                faults: faults.collect(),
            };
            self.plan.errors.push(error);
        }
    }

    fn shape_below(&mut self, shape: &'a Shape, place: WriteAddress, data: &[u8]) -> bool {
        match shape {
            Shape::Copies(node) => {
                let at = physical(place.offset);
                let filled = data.len().next_multiple_of(1 << place.ashift) - data.len();
                let sources = [(Source::Block(0), data.len()), (Source::Zero, filled)];
                let good = self.copies(node, None, place, at, &sources);
                if !self.lost.is_empty() {
                    node.count_failed_below(at, &|leaf| self.outcome(leaf, at), &|errors| errors.write.add(1));
                }
                good
            }
            Shape::Striped(striped) => self.striped(striped, place, data),
            // every side, and one is enough
            Shape::Sides(sides) => sides.iter().fold(false, |good, side| self.shape_below(side, place, data) | good),
            Shape::Indirect(_) | Shape::Gone => false,
        }
    }

    /// Plans the same bytes for every leaf of a node, from device offset `at` on; `false` if no leaf will have them.
    fn copies(
        &mut self,
        node: &'a Node,
        spares: Option<SpareRoom<'a>>,
        place: WriteAddress,
        at: u64,
        sources: &[(Source, usize)],
    ) -> bool {
        let mut good = false;
        for copy in &node.copies(spares, at, self.txg) {
            let index = copy.leaf.index() as u32;
            let can = copy.rank <= Rank::Stale && self.outcome(copy.leaf, at) == Outcome::Done;
            if !can {
                let len = sources.iter().map(|(_, len)| *len as u64).sum();
                self.plan.missing.push((index, at, len));
                continue;
            }
            good |= copy.leaf.keeps(self.txg);
            let mut offset = at;
            for (source, len) in sources.iter().filter(|(_, len)| *len != 0) {
                self.push(index, offset, place.number, *source, *len, false);
                offset = offset.saturating_add(*len as u64);
            }
        }
        good
    }

    /// The outcome of writing to a leaf at device offset `at`.
    fn outcome(&self, leaf: &Leaf, at: u64) -> Outcome {
        match leaf.is_writable() {
            true if self.lost.contains(&(leaf.index() as u32, at)) => Outcome::Failed,
            true => Outcome::Done,
            false => Outcome::Useless,
        }
    }

    fn push(&mut self, leaf: u32, offset: u64, block: u32, source: Source, len: usize, optional: bool) {
        let piece = Piece { offset, leaf, block, len: len as u32, part: self.part, optional, source };
        self.plan.pieces.push(piece);
    }

    fn striped(&mut self, striped: &'a Striped, place: WriteAddress, data: &[u8]) -> bool {
        let sector = 1usize << place.ashift;
        let size = data.len().next_multiple_of(sector) as u64;
        if !place.offset.is_multiple_of(sector as u64) {
            let error = Error::BadAddress { vdev: place.vdev, offset: place.offset, size: data.len() as u64 };
            self.plan.errors.push(error);
            return true;
        }
        let extent = Extent { offset: place.offset, size, ashift: place.ashift };
        let map = striped.map(extent, self.txg);
        // a block that ends within a sector is filled up in the arena, once
        let filled = (size != data.len() as u64).then(|| {
            let at = self.plan.arena.len();
            self.plan.arena.extend_from_slice(data);
            self.plan.arena.resize(at + size as usize, 0);
            at
        });
        let parity = striped.geometry.parity();
        let mut good = true;
        for row in &map.rows {
            let mut lost = 0;
            for (c, column) in row.columns.iter().enumerate().filter(|(_, c)| c.size != 0 || c.pad != 0) {
                let source = match (c.checked_sub(parity), filled) {
                    (Some(_), None) => Source::Block(column.at),
                    (Some(_), Some(at)) => Source::Arena(at + column.at),
                    (None, _) => self.parity(c, column, row.data(), data, filled),
                };
                let Some(node) = striped.children.get(column.child) else {
                    panic!("column {c} of a row is on child {}", column.child);
                };
                let sources = [(source, column.size), (Source::Zero, column.pad)];
                let (room, at) = (striped.spare_room(), column.offset);
                let there = self.copies(node, room, place, at, &sources);
                if !self.lost.is_empty() {
                    node.count_failed(room, at, &|leaf| self.outcome(leaf, at), &|errors| errors.write.add(1));
                }
                // padding alone carries nothing
                lost += usize::from(!there && column.size != 0);
            }
            good &= lost <= parity;
        }
        self.skipped(striped, place, extent, &map);
        good
    }

    /// Computes one parity column into the arena.
    fn parity(&mut self, j: usize, column: &Column, row: &[Column], data: &[u8], filled: Option<usize>) -> Source {
        let at = self.plan.arena.len();
        // a block of the arena is before the parity
        self.plan.arena.resize(at + column.size, 0);
        let (before, to) = self.plan.arena.split_at_mut(at);
        let block = match filled {
            Some(start) => before.get(start..).unwrap_or(&[]),
            None => data,
        };
        for column in row {
            let bytes = block.get(column.at..column.at + column.size);
            assert!(bytes.is_some(), "a column at {} of a block of {} bytes", column.at, block.len());
            assert!(column.size <= to.len(), "a column of {} bytes has {} of parity", column.size, to.len());
            gf::horner(j, to, bytes.unwrap_or(&[]));
        }
        Source::Arena(at)
    }

    /// The sectors of a raidz that are allocated and not used.
    fn skipped(&mut self, striped: &'a Striped, place: WriteAddress, extent: Extent, map: &StripeMap) {
        let Geometry::Raidz(raidz) = &striped.geometry else { return };
        let used: usize = map.rows.iter().flat_map(|row| &row.columns).map(|c| c.size >> extent.ashift).sum();
        let allocated = raidz.psize_to_asize(extent.size, self.txg, extent.ashift) >> extent.ashift;
        for n in used as u64..allocated {
            let Some((child, at)) = raidz.sector_place(extent.sector().saturating_add(n), extent.ashift) else {
                return;
            };
            // what is replaced or stands in for another is not worth the while
            let Some(Node::Leaf(leaf)) = striped.children.get(child) else { continue };
            if leaf.is_writable() {
                self.push(leaf.index() as u32, at, place.number, Source::Zero, 1 << extent.ashift, true);
            }
        }
    }
}

/// A block on its way down.
#[derive(Clone, Copy)]
struct WriteAddress {
    vdev: u64,
    offset: u64,
    number: u32,
    ashift: u32,
}

#[cfg(test)]
mod tests;
