//! Reading a raidz or dRAID when all is well.

use smallvec::SmallVec;

use crate::node::{Copies, Node, Rank, SpareRoom};
use crate::read::{Check, Request};
use crate::repair::Repair;
use crate::scratch;
use crate::stripe::{Column, Extent, StripeMap};
use crate::tree::{Geometry, Striped, TopVdev};
use crate::{Error, Leaf, gf};

/// Sectors that are wanted on one child are read together across gaps up to this.
const GAP_BYTES: u64 = 32 << 10;

impl Striped {
    /// Returns the places of the parts of a block.
    pub(crate) fn map(&self, extent: Extent, birth: base::Txg) -> StripeMap {
        match &self.geometry {
            Geometry::Raidz(raidz) => raidz.map(extent, birth),
            Geometry::Draid(draid) => draid.map(extent),
        }
    }

    /// The leaves that hold a column, the best first.
    pub(crate) fn copies(&self, column: &Column, birth: base::Txg) -> Copies<'_> {
        match self.children.get(column.child) {
            Some(node) => node.copies(self.spare_room(), column.offset, birth),
            None => Copies::new(),
        }
    }

    pub(crate) fn spare_room(&self) -> Option<SpareRoom<'_>> {
        match &self.geometry {
            Geometry::Draid(draid) => Some(SpareRoom { draid, children: &self.children }),
            Geometry::Raidz(_) => None,
        }
    }

    /// The one leaf that holds a column, if it should be right.
    fn sound_leaf(&self, column: &Column, birth: base::Txg) -> Option<&Leaf> {
        if let Node::Leaf(leaf) = self.children.get(column.child)? {
            return (leaf.is_usable() && !leaf.misses(birth)).then_some(&**leaf);
        }
        let best = self.copies(column, birth).first().copied()?;
        (best.rank == Rank::Fresh).then_some(best.leaf)
    }
}

impl<'a> Request<'a> {
    pub(crate) fn read_striped(
        &mut self,
        top: &'a TopVdev,
        striped: &'a Striped,
        offset: u64,
        buf: &mut [u8],
        check: &mut Check<'_>,
    ) -> Result<(), Error> {
        let sector = 1usize << top.ashift();
        if !offset.is_multiple_of(sector as u64) {
            return Err(Error::BadAddress { vdev: top.id(), offset, size: buf.len() as u64 });
        }
        if buf.len().is_multiple_of(sector) {
            return self.read_sectors(top, striped, offset, buf, check);
        }
        // the block was written for a vdev of smaller sectors and filled up with zeros
        let len = buf.len();
        scratch::with(len.next_multiple_of(sector), |block| {
            self.read_sectors(top, striped, offset, block, &mut |b| check(b.get(..len).unwrap_or(&[])))?;
            buf.copy_from_slice(block.get(..len).unwrap_or(&[]));
            Ok(())
        })
    }

    fn read_sectors(
        &mut self,
        top: &'a TopVdev,
        striped: &'a Striped,
        offset: u64,
        block: &mut [u8],
        check: &mut Check<'_>,
    ) -> Result<(), Error> {
        let extent = Extent { offset, size: block.len() as u64, ashift: top.ashift() };
        let map = striped.map(extent, self.birth);
        if self.read_data(striped, &map, block) && check(block) {
            if !self.is_scrub() {
                self.report.copies_checked += 1;
                return Ok(());
            }
            if let Some(columns) = self.agrees(striped, &map, block) {
                self.report.copies_checked += columns;
                return Ok(());
            }
        }
        Repair::new(self, top, striped, &map, offset, block).run(check)
    }

    /// Reads the data columns and nothing else, if each has a leaf that should be right; `false` at the first trouble.
    fn read_data(&self, striped: &Striped, map: &StripeMap, block: &mut [u8]) -> bool {
        let columns = map.rows.iter().flat_map(|row| row.data()).filter(|c| c.size != 0);
        // nothing is read in vain where a device is known to be missing
        if !columns.clone().all(|column| striped.sound_leaf(column, self.birth).is_some()) {
            return false;
        }
        if map.rows.len() > 2 {
            return self.read_data_in_runs(striped, map, block);
        }
        columns.clone().all(|column| {
            let Some(leaf) = striped.sound_leaf(column, self.birth) else { return false };
            let Some(bytes) = block.get_mut(column.at..column.at + column.size) else { return false };
            self.cx.read(leaf, column.offset, bytes).is_ok()
        })
    }

    /// Whether the parity and the padding on disk are those of `block`, where each column has exactly one leaf and that should be right: the
    /// number of columns, else `None`, and it is for [`Repair`] to find out why.
    fn agrees(&self, striped: &Striped, map: &StripeMap, block: &[u8]) -> Option<u32> {
        let only_leaf = |column: &Column| match striped.children.get(column.child)? {
            Node::Leaf(_) => striped.sound_leaf(column, self.birth),
            _ => None,
        };
        let mut columns = 0;
        for row in &map.rows {
            for (j, column) in row.columns.iter().enumerate().filter(|(_, c)| c.size != 0 || c.pad != 0) {
                let leaf = only_leaf(column)?;
                columns += u32::from(column.size != 0);
                let right = j >= row.parity || column.size == 0 || {
                    scratch::with(2 * column.size, |bytes| {
                        let (stored, computed) = bytes.split_at_mut(column.size);
                        computed.fill(0);
                        for data in row.data() {
                            gf::horner(j, computed, block.get(data.at..data.at + data.size).unwrap_or(&[]));
                        }
                        self.cx.read(leaf, column.offset, stored).is_ok() && stored == computed
                    })
                };
                let padded = column.pad == 0 || {
                    let behind = column.offset + column.size as u64;
                    scratch::with(column.pad, |zeros| {
                        self.cx.read(leaf, behind, zeros).is_ok() && zeros.iter().all(|b| *b == 0)
                    })
                };
                if !(right && padded) {
                    return None;
                }
            }
        }
        Some(columns)
    }

    /// The same for a block of many one-sector columns: what lies together on a child is read together.
    fn read_data_in_runs(&self, striped: &Striped, map: &StripeMap, block: &mut [u8]) -> bool {
        let mut columns: SmallVec<[Column; 64]> =
            map.rows.iter().flat_map(|row| row.data()).filter(|c| c.size != 0).copied().collect();
        columns.sort_unstable_by_key(|c| (c.child, c.offset));
        let joins = |a: &Column, b: &Column| a.child == b.child && b.offset - a.offset <= a.size as u64 + GAP_BYTES;
        columns.chunk_by(joins).all(|run| {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { return true };
            let Some(leaf) = striped.sound_leaf(first, self.birth) else { return false };
            let len = (last.offset - first.offset) as usize + last.size;
            scratch::with(len, |bytes| {
                self.cx.read(leaf, first.offset, bytes).is_ok()
                    && run.iter().all(|column| {
                        let from = (column.offset - first.offset) as usize;
                        let source = bytes.get(from..from + column.size);
                        let target = block.get_mut(column.at..column.at + column.size);
                        match (source, target) {
                            (Some(source), Some(target)) => {
                                target.copy_from_slice(source);
                                true
                            }
                            _ => false,
                        }
                    })
            })
        })
    }
}
