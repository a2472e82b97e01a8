//! The geometry of dRAID.
//!
//! The children are cut into slices of rows, 16 MiB high. In each slice the children are put into another order, taken from a
//! fixed table of *permutations*, and groups (data and parity columns) are dealt out over the row in that order, going on in the
//! next row where one ends; the last places of the order are left free, spread over all children: the distributed spares.
//! A block always takes whole rows of its group, filled up with zeros, so a group's parity can be rebuilt without
//! knowing its blocks. A block that does not end with its group goes on in the next one, as a second row.
//!
//! With failure domains, several slices lie side by side (`width` is a multiple of `children`), and the table is shuffled once
//! more, so that no slice holds two disks of one domain.
//!
//! OpenZFS: `vdev_draid.c`.

mod maps;
mod permutations;
mod sizes;

use std::ops::Range;

use smallvec::SmallVec;

use crate::Error;
use crate::config::VdevConfig;
use crate::raidz::{CHILDREN_MAX, PARITY_MAX};
use crate::stripe::{Column, Extent, Row, StripeMap, physical};
use permutations::Permutations;
pub(crate) use sizes::Sizes;

/// Height of a row in bytes: the largest block.
const ROW_HEIGHT: u64 = 16 << 20;
/// The most distributed spares.
const SPARES_MAX: u64 = 100;

/// The shape of a dRAID.
#[derive(Debug)]
pub(crate) struct Draid {
    /// Parity columns of a group.
    pub(crate) parity: u64,
    data: u64,
    /// Children in all.
    pub(crate) width: u64,
    spares: u64,
    /// Groups of a slice (over all failure groups).
    groups: u64,
    /// Failure groups: slices that lie side by side.
    failure_groups: u64,
    permutations: Permutations,
}

/// The beginning of a group: the order of the children, the place in it, the offset on the child.
struct GroupStart {
    permutation: u64,
    place: u64,
    /// Children of this slice that are no spares.
    disks: u64,
    offset: u64,
}

impl Draid {
    pub(crate) fn new(config: &VdevConfig) -> Result<Draid, Error> {
        let bad = |what: &str| Error::config(config.guid, what);
        let width = config.children.len() as u64;
        let children = config.draid_nchildren.unwrap_or(width);
        let (parity, data, spares, groups) =
            (config.nparity, config.draid_ndata, config.draid_nspares, config.draid_ngroups);
        if !(1..=PARITY_MAX).contains(&parity) {
            return Err(bad("parity is not 1, 2 or 3"));
        }
        if width == 0 || width > CHILDREN_MAX as u64 || children == 0 || !width.is_multiple_of(children) {
            return Err(bad("the number of children does not fit"));
        }
        if data == 0 || data > width || spares > SPARES_MAX || groups == 0 || groups > CHILDREN_MAX as u64 {
            return Err(bad("a dRAID of this shape cannot be"));
        }
        let failure_groups = width / children;
        if children < data + parity + spares.div_ceil(failure_groups) || groups < failure_groups {
            return Err(bad("a group of the dRAID does not fit its children"));
        }
        let group_width = data + parity;
        if !(group_width * groups).is_multiple_of(width - spares) {
            return Err(bad("the groups of the dRAID do not fill its rows"));
        }
        let permutations = Permutations::new(children as usize, width as usize)
            .ok_or_else(|| bad("no permutations for this number of children"))?;
        Ok(Draid { parity, data, width, spares, groups, failure_groups, permutations })
    }

    const fn group_width(&self) -> u64 {
        self.data + self.parity
    }

    const fn group_size(&self) -> u64 {
        self.group_width() * ROW_HEIGHT
    }

    /// Rows of a slice.
    const fn slice_rows(&self) -> u64 {
        self.group_width() * self.groups / (self.width - self.spares)
    }

    /// Bytes allocated for `psize` bytes: whole rows.
    pub(crate) fn psize_to_asize(&self, psize: u64, ashift: u32) -> u64 {
        let rows = psize.max(1).div_ceil(self.data << ashift);
        rows.saturating_mul(self.group_width()) << ashift
    }

    /// Returns the places of the parts of a block: in one group, or in two.
    pub(crate) fn map(&self, extent: Extent) -> StripeMap {
        let mut rows = SmallVec::new();
        let (mut offset, mut left, mut at) = (extent.offset, extent.size, 0);
        // a block that is larger than a group cannot be; two rounds are what the format has
        while left > 0 && rows.len() < 2 {
            let group_end = (offset / self.group_size() + 1).saturating_mul(self.group_size());
            let room = (group_end - offset) / self.group_width() * self.data;
            let size = if rows.is_empty() { left.min(room) } else { left };
            rows.push(self.row(Extent { offset, size, ..extent }, at));
            offset = offset.saturating_add(self.psize_to_asize(size, extent.ashift));
            left -= size;
            at += size as usize;
        }
        StripeMap { rows }
    }

    fn row(&self, extent: Extent, at: usize) -> Row {
        let start = self.group_start(extent);
        let sectors = extent.sectors();
        let (full, rest) = (sectors / self.data, sectors % self.data);
        let big = if rest == 0 { 0 } else { rest + self.parity };
        let mut at = at;
        let columns = (0..self.group_width()).map(|c| {
            let size = ((full + u64::from(c < big)) << extent.ashift) as usize;
            let pad = if big != 0 && c >= big { 1 << extent.ashift } else { 0 };
            // the group goes on at the front of the next row
            let wraps = start.place + c >= start.disks;
            let place = (start.place + c) % start.disks;
            let offset = start.offset + if wraps { ROW_HEIGHT } else { 0 };
            let child = self.permutations.child(start.permutation, place);
            let column = Column { child, offset: physical(offset), size, at, pad };
            if c >= self.parity {
                at += size;
            }
            column
        });
        Row { columns: columns.collect(), parity: self.parity as usize }
    }

    /// OpenZFS: `vdev_draid_logical_to_physical`.
    fn group_start(&self, extent: Extent) -> GroupStart {
        let group = extent.offset / self.group_size();
        let (slice, group) = (group / self.groups, group % self.groups);
        // where the spares do not divide evenly, the first failure groups have one disk less and one group less
        let smaller = self.spares % self.failure_groups;
        let groups_each = self.groups / self.failure_groups;
        let (failure_group, group) = if smaller == 0 || group < smaller * groups_each {
            (group / groups_each, group % groups_each)
        } else {
            let beyond = group - smaller * groups_each;
            (smaller + beyond / (groups_each + 1), beyond % (groups_each + 1))
        };
        let is_larger = smaller != 0 && failure_group >= smaller;
        let disks = (self.width - self.spares) / self.failure_groups + u64::from(is_larger);
        let row = slice * self.slice_rows() + group * self.group_width() / disks;
        let row_sectors = ROW_HEIGHT >> extent.ashift;
        let within = extent.sector() % (row_sectors * self.group_width());
        let sector = row_sectors * row + within / self.group_width();
        GroupStart {
            permutation: slice * self.failure_groups + failure_group,
            place: (group * self.group_width()) % disks,
            disks,
            offset: sector << extent.ashift,
        }
    }

    /// The children that hold data, on the whole: those that no distributed spare takes.
    pub(crate) const fn disks(&self) -> u64 {
        self.width - self.spares
    }

    /// Calls `each` with the ranges of child `child`, behind its labels, that the whole rows in a range of the vdev cover, in order (OpenZFS:
    /// `vdev_draid_xlate`).
    pub(crate) fn child_ranges(&self, child: usize, range: Range<u64>, ashift: u32, each: &mut dyn FnMut(Range<u64>)) {
        let row = self.group_width() << ashift;
        let (mut at, end) = (range.start.div_ceil(row) * row, range.end / row * row);
        while at < end {
            let group_end = (at / self.group_size() + 1).saturating_mul(self.group_size()).min(end);
            let start = self.group_start(Extent { offset: at, size: 0, ashift });
            let len = (group_end - at) / self.group_width();
            let place = (0..self.group_width())
                .find(|c| self.permutations.child(start.permutation, (start.place + c) % start.disks) == child);
            if let Some(c) = place {
                // the group goes on at the front of the next row
                let from = start.offset + if start.place + c >= start.disks { ROW_HEIGHT } else { 0 };
                each(from..from + len);
            }
            at = group_end;
        }
    }

    /// The child on which distributed spare `spare` keeps the bytes of device offset `offset` (labels included), if there is such a
    /// spare (OpenZFS: `vdev_draid_spare_get_child`).
    pub(crate) fn spare_child(&self, spare: u64, offset: u64) -> Option<usize> {
        let within = offset.checked_sub(physical(0))?;
        if spare >= self.spares {
            return None;
        }
        let slice = within / (self.slice_rows() * ROW_HEIGHT);
        let permutation = slice * self.failure_groups + spare % self.failure_groups;
        let children = self.width / self.failure_groups;
        let place = (children - 1).checked_sub(spare / self.failure_groups)?;
        Some(self.permutations.child(permutation, place))
    }
}

#[cfg(test)]
mod tests;
