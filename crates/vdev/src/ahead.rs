//! Blocks that are read before they are asked for, as it is known which will be: many reads under way while the last are checked.
//!
//! [`AheadSource::plan`] is told of blocks in the order in which they will be read. Where they lie on the leaves is put together to *ranges* across gaps
//! of up to `zfs_vdev_read_gap_limit` bytes. [`LeafSource::read`] copies from the range, waits for it if it is under way, and begins
//! the next ones that there is room for. What no range covers, and what failed, is read as if there were none: an error is found and counted there.
//!
//! A device that is read through the page cache is not read ahead of: the system does that.

use std::cell::RefCell;
use std::sync::Arc;

use base::Txg;
use base::tunable::{ZFS_VDEV_AGGREGATION_LIMIT, ZFS_VDEV_READ_GAP_LIMIT};
use ondisk::Dva;
use smallvec::SmallVec;

use crate::device::{Buffer, Way};
use crate::node::Rank;
use crate::queue::LeafFlight;
use crate::read::spread;
use crate::source::{LeafSource, ReadMode};
use crate::stripe::{Extent, physical};
use crate::tree::{Shape, Striped, TopVdev, VdevTree};
use crate::{Direction, Error, IoClass, Leaf};

/// Bytes that are under way or kept, but for what is asked for at the moment.
const LIMIT: usize = 8 << 20;

/// A block that will be read: its place, its size there, and the txg in which it was born.
pub type Planned = (Dva, u64, Txg);

/// A source for a worker that knows what it is going to read.
#[derive(Default)]
pub struct AheadSource(RefCell<State>);

#[derive(Default)]
struct State {
    flight: LeafFlight,
    lanes: Vec<Lane>,
    /// Ranges in the order in which they will be asked for: lane, and number there.
    order: Vec<(u32, u32)>,
    /// How many of them were begun, or passed over.
    begun: usize,
    /// Bytes of ranges that are under way or kept.
    bytes: usize,
    class: Option<IoClass>,
}

/// The ranges of one leaf, ascending.
struct Lane {
    leaf: Arc<Leaf>,
    ranges: Vec<Range>,
    /// The first range that is not done with.
    passed: usize,
}

struct Range {
    offset: u64,
    len: usize,
    /// Reads that are put together in it.
    count: u32,
    state: Progress,
}

enum Progress {
    Planned,
    UnderWay,
    Here(Buffer),
    /// It failed, is done with, or was never begun.
    Gone,
}

impl AheadSource {
    /// Plans to read `blocks`, in their order; what is left of an earlier plan is dropped.
    pub fn plan(&self, tree: &VdevTree, mode: ReadMode, class: IoClass, blocks: impl IntoIterator<Item = Planned>) {
        let mut state = self.0.borrow_mut();
        state.clear();
        state.class = Some(class);
        let limits = (ZFS_VDEV_READ_GAP_LIMIT.get(), ZFS_VDEV_AGGREGATION_LIMIT.get());
        for (dva, size, birth) in blocks {
            if let Some(top) = tree.top(dva.vdev()) {
                let block = Block { tree, top, offset: dva.offset(), size, birth, mode };
                block.extents(&top.shape, &mut |leaf, offset, len| state.add(tree, leaf, offset, len, limits));
            }
        }
        state.advance(None);
    }

    /// Waits for what is under way, and forgets the plan.
    pub fn finish(&self) {
        self.0.borrow_mut().clear();
    }
}

impl std::fmt::Debug for AheadSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AheadSource").finish_non_exhaustive()
    }
}

impl LeafSource for AheadSource {
    fn read(&self, leaf: &Leaf, class: IoClass, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        if self.0.borrow_mut().read(leaf, offset, buf) { Ok(()) } else { leaf.read(class, offset, buf, false) }
    }
}

impl State {
    fn clear(&mut self) {
        while self.flight.next().is_some() {}
        // its ring goes back to where others find it
        self.flight = LeafFlight::default();
        self.lanes.clear();
        self.order.clear();
        (self.begun, self.bytes) = (0, 0);
    }

    /// Adds an extent to the last range of its leaf, or begins another one.
    fn add(&mut self, tree: &VdevTree, leaf: &Leaf, offset: u64, len: usize, (gap, limit): (u64, u64)) {
        let at = match self.lanes.iter().position(|lane| lane.leaf.index() == leaf.index()) {
            Some(at) => at,
            None => {
                let Some(leaf) = tree.leaf_at(leaf.index()) else { return };
                self.lanes.push(Lane { leaf: leaf.clone(), ranges: Vec::new(), passed: 0 });
                self.lanes.len() - 1
            }
        };
        let Some(lane) = self.lanes.get_mut(at) else { return };
        if let Some(last) = lane.ranges.last_mut() {
            let end = last.offset + last.len as u64;
            let joined = offset.saturating_add(len as u64).max(end).saturating_sub(last.offset);
            if offset < last.offset {
                // out of order: it is read when it is asked for
                return;
            }
            if offset <= end.saturating_add(gap) && joined <= limit {
                last.len = joined as usize;
                last.count += 1;
                return;
            }
        }
        self.order.push((at as u32, lane.ranges.len() as u32));
        lane.ranges.push(Range { offset, len, count: 1, state: Progress::Planned });
    }

    /// Fills `buf` from the range that covers it, if there is one.
    fn read(&mut self, leaf: &Leaf, offset: u64, buf: &mut [u8]) -> bool {
        while let Some(landed) = self.flight.ended() {
            self.landed(landed.tag, landed.buffer, landed.result.is_ok());
        }
        let Some(at) = self.lanes.iter().position(|lane| lane.leaf.index() == leaf.index()) else { return false };
        let Some(lane) = self.lanes.get(at) else { return false };
        let number = lane.ranges.partition_point(|range| range.offset <= offset).wrapping_sub(1);
        let covers = |range: &&Range| offset + buf.len() as u64 <= range.offset + range.len as u64;
        if lane.ranges.get(number).filter(covers).is_none() {
            return false;
        }
        self.pass(at, number);
        self.advance(Some((at, number)));
        loop {
            let Some(range) = self.lanes.get(at).and_then(|lane| lane.ranges.get(number)) else { return false };
            match &range.state {
                Progress::Here(bytes) => {
                    let from = (offset - range.offset) as usize;
                    let Some(bytes) = bytes.get(from..from + buf.len()) else { return false };
                    buf.copy_from_slice(bytes);
                    return true;
                }
                Progress::UnderWay => match self.flight.next() {
                    Some(landed) => self.landed(landed.tag, landed.buffer, landed.result.is_ok()),
                    None => return false,
                },
                Progress::Planned | Progress::Gone => return false,
            }
        }
    }

    /// Lets go of the ranges of a lane before `number`.
    fn pass(&mut self, at: usize, number: usize) {
        let Some(lane) = self.lanes.get_mut(at) else { return };
        for range in lane.ranges.get_mut(lane.passed..number).unwrap_or(&mut []) {
            match range.state {
                // its end is waited for as that of any other
                Progress::UnderWay | Progress::Gone => {}
                Progress::Here(_) => {
                    self.bytes -= range.len;
                    range.state = Progress::Gone;
                }
                Progress::Planned => range.state = Progress::Gone,
            }
        }
        lane.passed = lane.passed.max(number);
    }

    /// Begins ranges while there is room for them; `wanted`, and those before it, in any case.
    fn advance(&mut self, wanted: Option<(usize, usize)>) {
        while let Some((at, number)) = self.order.get(self.begun).map(|(at, n)| (*at as usize, *n as usize)) {
            let Some(range) = self.lanes.get(at).and_then(|lane| lane.ranges.get(number)) else { return };
            if matches!(range.state, Progress::Planned) {
                if !self.may_begin(at, range) && wanted.is_none_or(|wanted| !self.is_planned(wanted)) {
                    return;
                }
                self.begin(at, number);
            }
            self.begun += 1;
        }
        self.flight.go();
    }

    /// Whether a range is begun before it is asked for.
    fn may_begin(&self, at: usize, range: &Range) -> bool {
        let Some(lane) = self.lanes.get(at) else { return false };
        let waits = lane.leaf.device().is_some_and(|device| !matches!(device.way(range.offset, range.len), Way::Here));
        (waits || self.flight.is_slow())
            && (self.bytes == 0 || self.bytes + range.len <= LIMIT)
            && self.flight.has_room(&lane.leaf, self.class(), range.len)
    }

    fn class(&self) -> IoClass {
        self.class.unwrap_or(IoClass::AsyncRead)
    }

    fn is_planned(&self, (at, number): (usize, usize)) -> bool {
        let range = self.lanes.get(at).and_then(|lane| lane.ranges.get(number));
        range.is_some_and(|range| matches!(range.state, Progress::Planned))
    }

    fn begin(&mut self, at: usize, number: usize) {
        let class = (self.class(), Direction::Read);
        let Some(lane) = self.lanes.get_mut(at) else { return };
        let Some(range) = lane.ranges.get_mut(number) else { return };
        let (offset, len, count) = (range.offset, aligned(&lane.leaf, range.offset, range.len), range.count);
        let tag = (at as u64) << 32 | number as u64;
        let begun = self.flight.begin(&lane.leaf, class, offset, Buffer::take(len), (tag, count > 1));
        range.state = if begun { Progress::UnderWay } else { Progress::Gone };
        if begun {
            range.len = len;
            self.bytes += len;
        }
    }

    fn landed(&mut self, tag: u64, buffer: Buffer, good: bool) {
        let (at, number) = ((tag >> 32) as usize, (tag & 0xffff_ffff) as usize);
        let Some(lane) = self.lanes.get_mut(at) else { return };
        let Some(range) = lane.ranges.get_mut(number) else { return };
        if good && number >= lane.passed {
            range.state = Progress::Here(buffer);
        } else {
            range.state = Progress::Gone;
            self.bytes -= range.len;
        }
    }
}

/// A length that a device can read past the page cache without a copy: whole pages, if it does not end before.
fn aligned(leaf: &Leaf, offset: u64, len: usize) -> usize {
    const PAGE: usize = 4096;
    let whole = len.next_multiple_of(PAGE);
    let size = leaf.device().map_or(0, |device| device.size());
    if offset.is_multiple_of(512) && offset + whole as u64 <= size { whole } else { len }
}

/// A block that is to be read.
struct Block<'a> {
    tree: &'a VdevTree,
    top: &'a TopVdev,
    offset: u64,
    size: u64,
    birth: Txg,
    mode: ReadMode,
}

impl Block<'_> {
    /// Tells of each run of bytes on a leaf that a read will ask for, if nothing is wrong.
    fn extents(&self, shape: &Shape, add: &mut dyn FnMut(&Leaf, u64, usize)) {
        match shape {
            Shape::Copies(node) => {
                let place = physical(self.offset);
                let mut copies = node.copies(None, place, self.birth);
                spread(&mut copies, self.offset);
                let fresh = copies.iter().filter(|copy| copy.rank == Rank::Fresh);
                let wanted = if self.mode == ReadMode::Scrub { usize::MAX } else { 1 };
                fresh.take(wanted).for_each(|copy| add(copy.leaf, place, self.size as usize));
            }
            Shape::Striped(striped) => self.columns(striped, add),
            Shape::Sides(sides) => match self.mode {
                ReadMode::Scrub => sides.iter().for_each(|side| self.extents(side, add)),
                ReadMode::Normal => sides.iter().take(1).for_each(|side| self.extents(side, add)),
            },
            // where it is now, only its mapping knows
            Shape::Indirect(_) | Shape::Gone => {}
        }
    }

    fn columns(&self, striped: &Striped, add: &mut dyn FnMut(&Leaf, u64, usize)) {
        let sector = 1u64 << self.top.ashift();
        let size = self.size.next_multiple_of(sector);
        let inside = self.offset.checked_add(size).is_some_and(|end| end <= i64::MAX as u64);
        if !self.offset.is_multiple_of(sector) || size == 0 || !inside {
            return;
        }
        let map = striped.map(Extent { offset: self.offset, size, ashift: self.top.ashift() }, self.birth);
        let scrub = self.mode == ReadMode::Scrub;
        let mut runs: SmallVec<[(u64, usize, &Leaf); 24]> = SmallVec::new();
        for row in &map.rows {
            for column in if scrub { &row.columns } else { row.data() } {
                let len = column.size + if scrub { column.pad } else { 0 };
                let copies = striped.copies(column, self.birth);
                let fresh = copies.iter().filter(|copy| copy.rank == Rank::Fresh && len != 0);
                let leaf = fresh.take(1).map(|copy| copy.leaf.index()).next();
                let leaf = leaf.and_then(|index| self.tree.leaf_at(index));
                runs.extend(leaf.map(|leaf| (column.offset, len, &**leaf)));
            }
        }
        // in a block of many rows the columns of a leaf are not in its order
        runs.sort_by_key(|(offset, ..)| *offset);
        runs.into_iter().for_each(|(offset, len, leaf)| add(leaf, offset, len));
    }
}

#[cfg(test)]
#[path = "ahead_tests.rs"]
mod tests;
