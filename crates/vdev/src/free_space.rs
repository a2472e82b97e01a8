//! The free space of leaves: which of it a range of a top-level vdev covers, and what is done with it by `zpool initialize` and `zpool trim`.
//!
//! A leaf of a mirror has what the mirror has. The sectors of a raidz are dealt out to its children one by one, so that a range of it is one range on each
//! child; those of a dRAID in rows of a group, so that it may be several. While a raidz is expanded its sectors are in flux: then a range covers nothing.
//!
//! OpenZFS: `vdev_xlate`, `vdev_xlate_walk`, `zio_trim`, `zio_write_phys`.

use std::io::IoSlice;
use std::ops::Range;

use base::Guid;

use crate::device::Discards;
use crate::draid::Draid;
use crate::queue::{Direction, IoClass, Request};
use crate::stripe::physical;
use crate::tree::{Geometry, Shape, Striped, TopVdev};
use crate::{Error, Leaf, VdevConfig};

/// The way from a top-level vdev to one of its leaves. Offsets on the leaf are behind its labels.
#[derive(Debug)]
pub struct LeafMap<'a> {
    way: Way<'a>,
    ashift: u32,
    /// The number of leaves that share what is allocated on the vdev (OpenZFS: `vdev_get_ndisks`).
    pub disks: u64,
}

#[derive(Debug)]
enum Way<'a> {
    /// The leaf has everything.
    Whole,
    /// It has sector `child` of each `width`.
    Raidz { child: u64, width: u64 },
    /// It is below this child.
    Draid { child: usize, draid: &'a Draid },
    /// Nobody can say.
    InFlux,
}

impl TopVdev {
    /// Returns the way to a leaf; `None` if it is not below this vdev.
    #[must_use]
    pub fn leaf_map(&self, leaf: Guid) -> Option<LeafMap<'_>> {
        let (way, disks) = way(&self.shape, self.config(), leaf)?;
        Some(LeafMap { way, ashift: self.ashift(), disks })
    }
}

/// The number of the child that is, or has, the leaf.
fn child_of(config: &VdevConfig, leaf: Guid) -> Option<usize> {
    config.children.iter().position(|child| child.walk().any(|vdev| vdev.guid == leaf))
}

fn way<'a>(shape: &'a Shape, config: &VdevConfig, leaf: Guid) -> Option<(Way<'a>, u64)> {
    match shape {
        Shape::Copies(_) => config.walk().any(|vdev| vdev.guid == leaf).then_some((Way::Whole, 1)),
        Shape::Striped(Striped { geometry: Geometry::Raidz(raidz), .. }) => {
            let child = child_of(config, leaf)? as u64;
            let way = if raidz.is_expanding() { Way::InFlux } else { Way::Raidz { child, width: raidz.width } };
            Some((way, raidz.width))
        }
        Shape::Striped(Striped { geometry: Geometry::Draid(draid), .. }) => {
            Some((Way::Draid { child: child_of(config, leaf)?, draid }, draid.disks()))
        }
        Shape::Sides(sides) => {
            let side = child_of(config, leaf)?;
            way(sides.get(side)?, config.children.get(side)?, leaf)
        }
        Shape::Indirect(_) | Shape::Gone => None,
    }
}

impl LeafMap<'_> {
    /// Calls `each` with the ranges of the leaf that a range of the vdev covers, in order.
    pub fn ranges(&self, range: Range<u64>, each: &mut dyn FnMut(Range<u64>)) {
        let mut some = |range: Range<u64>| {
            if !range.is_empty() {
                each(range);
            }
        };
        match self.way {
            Way::Whole => some(range),
            Way::Raidz { child, width } => {
                // the first row whose sector on this child is not before that of the range
                let row = |at: u64| (at >> self.ashift).saturating_sub(child).div_ceil(width) << self.ashift;
                some(row(range.start)..row(range.end));
            }
            Way::Draid { child, draid } => draid.child_ranges(child, range, self.ashift, &mut some),
            Way::InFlux => {}
        }
    }

    /// Returns the end of the last range of the leaf that a range of the vdev covers.
    #[must_use]
    pub fn end(&self, range: Range<u64>) -> Option<u64> {
        let mut end = None;
        self.ranges(range, &mut |part| end = end.max(Some(part.end)));
        end
    }
}

impl Leaf {
    /// The ways in which its device discards; none if there is no device.
    #[must_use]
    pub fn discards(&self) -> Discards {
        self.device().map(|device| device.discards()).unwrap_or_default()
    }

    /// Writes `data` over free space from `offset` behind the labels on.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Write`].
    pub fn overwrite_free(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.write(IoClass::Initializing, physical(offset), &[IoSlice::new(data)])
    }

    /// Discards free space from `offset` behind the labels on.
    ///
    /// # Errors
    /// [`Error::NoDevice`]; [`Error::Write`], also if the device does not discard.
    pub fn trim(&self, offset: u64, len: u64, securely: bool) -> Result<(), Error> {
        let device = self.device().ok_or(Error::NoDevice { leaf: self.guid() })?;
        let offset = physical(offset);
        let request = Request { class: IoClass::Trim, direction: Direction::Write, offset, len, aggregated: false };
        let done = self.run(&device, request, |device| match securely {
            true => device.discard_securely(offset, len),
            false => device.discard(offset, len),
        });
        done.map_err(|source| Error::Write { device: device.name(), offset, len, source })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use base::Txg;

    use super::*;
    use crate::stripe::Extent;
    use crate::{VdevTree, VdevType};

    /// A tree of one vdev of `width` files.
    fn tree(kind: &str, width: usize, more: &[(&str, u64)], ashift: u64) -> VdevTree {
        use nvlist::NvList;
        let file = |n: usize| {
            let mut list = NvList::new();
            list.insert("type", "file");
            list.insert("id", n as u64);
            list.insert("guid", 100 + n as u64);
            list.insert("path", format!("d{n}"));
            list
        };
        let mut top = NvList::new();
        top.insert("type", kind);
        top.insert("id", 0u64);
        top.insert("guid", 10u64);
        top.insert("ashift", ashift);
        top.insert("asize", 1u64 << 34);
        top.insert("metaslab_shift", 29u64);
        more.iter().for_each(|(name, value)| top.insert(*name, *value));
        top.insert("children", (0..width).map(file).collect::<Vec<_>>());
        let mut root = NvList::new();
        root.insert("type", "root");
        root.insert("id", 0u64);
        root.insert("guid", 1u64);
        root.insert("children", vec![top]);
        VdevTree::open(&VdevConfig::parse(&root).unwrap(), &|_| None).unwrap()
    }

    /// Checks that the ranges of each leaf are exactly the sectors that blocks of the range have there.
    fn check(tree: &VdevTree, range: &Range<u64>, unit: u64) {
        let top = tree.top(0).unwrap();
        let sector = 1u64 << top.ashift();
        let Shape::Striped(striped) = &*top.shape else { unreachable!("a striped vdev") };
        let mut expected: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        let mut at = range.start;
        while at < range.end {
            // the smallest block: its columns and their padding are all that is allocated
            let map = striped.map(Extent { offset: at, size: sector, ashift: top.ashift() }, Txg(u64::MAX));
            for column in map.rows.iter().flat_map(|row| &row.columns) {
                let end = column.offset + (column.size + column.pad) as u64;
                let sectors = (column.offset..end).step_by(sector as usize);
                expected.entry(column.child).or_default().extend(sectors);
            }
            at += unit;
        }
        assert!(expected.len() > 1);
        for child in 0..top.config().children.len() {
            let map = top.leaf_map(Guid(100 + child as u64)).unwrap();
            let mut found = Vec::new();
            map.ranges(range.clone(), &mut |part| {
                found.extend((physical(part.start)..physical(part.end)).step_by(sector as usize));
            });
            assert!(found.is_sorted(), "child {child}: in order");
            let mut expected = expected.remove(&child).unwrap_or_default();
            expected.sort_unstable();
            assert_eq!(found, expected, "child {child} of {range:x?}");
        }
    }

    #[test]
    fn a_range_of_a_raidz_is_the_sectors_of_its_blocks() {
        for (width, parity, ashift) in [(3, 1, 9), (5, 2, 12), (4, 3, 12)] {
            let tree = tree("raidz", width, &[("nparity", parity)], ashift);
            assert_eq!(tree.top(0).unwrap().leaf_map(Guid(101)).unwrap().disks, width as u64);
            // a block of one sector takes that and its parity
            let unit = (parity + 1) << ashift;
            for first in [0, 1, 2, 3, 7, 100] {
                check(&tree, &(first * unit..(first + 40) * unit), unit);
            }
        }
    }

    #[test]
    fn a_range_of_a_draid_is_the_rows_of_its_blocks() {
        let shape =
            [("nparity", 1), ("draid_ndata", 3), ("draid_nspares", 1), ("draid_ngroups", 6), ("draid_nchildren", 7)];
        let tree = tree("draid", 7, &shape, 12);
        assert_eq!(tree.top(0).unwrap().leaf_map(Guid(101)).unwrap().disks, 6);
        let row = 4u64 << 12;
        let group = 4 * (16u64 << 20);
        for start in [0, row, group - 20 * row, 5 * group - 3 * row, 6 * group - row, 11 * group + 7 * row] {
            check(&tree, &(start..start + 40 * row), row);
        }
        // what is no whole row of a group is left alone
        let map = tree.top(0).unwrap().leaf_map(Guid(103)).unwrap();
        let mut whole = Vec::new();
        map.ranges(4096..2 * row + 4096, &mut |part| whole.push(part.end - part.start));
        assert_eq!(whole.iter().sum::<u64>() % 4096, 0);
        assert!(whole.iter().sum::<u64>() <= 4096);
    }

    #[test]
    fn a_leaf_of_a_mirror_has_everything() {
        let tree = tree(VdevType::Mirror.name(), 2, &[], 12);
        let top = tree.top(0).unwrap();
        let mut parts = Vec::new();
        top.leaf_map(Guid(101)).unwrap().ranges(4096..8192, &mut |part| parts.push(part));
        assert_eq!(parts, vec![4096_u64..8192_u64; 1]);
        assert_eq!(top.leaf_map(Guid(101)).unwrap().end(0..8192), Some(8192));
        assert!(top.leaf_map(Guid(9)).is_none());
    }
}
