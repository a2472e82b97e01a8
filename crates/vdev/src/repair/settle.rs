//! When the block is right: who was wrong.

use super::Repair;
use super::patch::Patch;
use super::row::Cell;
use crate::node::Node;
use crate::report::FaultKind;
use crate::stripe::Column;
use crate::{Error, Leaf, gf, scratch};

impl<'a> Repair<'_, 'a> {
    /// Reports what was found: the corrections in `patch` are applied, so the block is right.
    pub(super) fn settle(mut self, patch: Patch) -> Result<(), Error> {
        for (r, c, error) in patch.corrections() {
            let leaf = self.fresh_leaf(*r, *c);
            if let (Some(leaf), Some(column)) = (leaf, self.column(*r, *c))
                && error.iter().any(|b| *b != 0)
            {
                self.wrong(leaf, &column);
            }
        }
        for r in 0..self.rows.len() {
            self.settle_parity(r);
        }
        let known = self.rows.iter().flat_map(|row| &row.cells).filter(|cell| cell.used.is_some()).count();
        let wrong = self.faults.iter().filter(|f| f.kind == FaultKind::Checksum).count();
        self.request.report.copies_checked += known.saturating_sub(wrong) as u32;
        if self.request.is_scrub() {
            for r in 0..self.rows.len() {
                self.check_other_sides(r);
                self.check_padding(r);
            }
        }
        if self.request.heals {
            self.heal();
        }
        self.count_groups();
        self.request.report.repaired.extend(self.faults);
        Ok(())
    }

    /// Lets children that are groups count the columns that none of their leaves could give.
    pub(super) fn count_groups(&self) {
        if !self.request.cx.counts {
            return;
        }
        for (row, cells) in self.map.rows.iter().zip(&self.rows) {
            for (column, cell) in row.columns.iter().zip(&cells.cells).filter(|(column, _)| column.size != 0) {
                let Some(node) = self.striped.children.get(column.child) else { continue };
                let of_leaf =
                    |leaf: &Leaf| self.request.outcome(leaf, &cell.copies, cell.used, column.offset, &self.faults);
                node.count_failed(self.striped.spare_room(), column.offset, &of_leaf, &|errors| errors.read.add(1));
            }
        }
    }

    /// Overwrites what was found wrong, or could not be read; in scrub mode also what is known to be old.
    fn heal(&mut self) {
        let scrub = self.request.is_scrub();
        for r in 0..self.rows.len() {
            let count = self.map.rows.get(r).map_or(0, |row| row.columns.len());
            for c in 0..count {
                let Some(column) = self.column(r, c) else { continue };
                let Some((copies, tried)) =
                    self.rows.get(r).and_then(|row| row.cells.get(c)).map(|cell| (cell.copies.clone(), cell.tried))
                else {
                    continue;
                };
                let behind = column.offset.saturating_add(column.size as u64);
                for (n, copy) in copies.iter().enumerate() {
                    let leaf = copy.leaf;
                    let fault_at = |offset: u64, faults: &[crate::LeafFault]| {
                        faults.iter().find(|f| f.leaf == leaf.guid() && f.offset == offset).map(|f| f.kind)
                    };
                    // those that were not tried were compared, and rewritten then
                    let stale = scrub && copy.rank == crate::node::Rank::Stale;
                    let stale_here = (stale && n < tried).then_some(FaultKind::Missing);
                    if column.size != 0
                        && let Some(kind) = fault_at(column.offset, &self.faults).or(stale_here)
                    {
                        let right = self.place(r, c).to_vec();
                        self.request.heal(leaf, kind, column.offset, &right);
                    }
                    if column.pad != 0
                        && let Some(kind) = fault_at(behind, &self.faults).or(stale.then_some(FaultKind::Missing))
                    {
                        self.request.heal(leaf, kind, behind, &vec![0; column.pad]);
                    }
                }
            }
        }
    }

    fn fresh_leaf(&self, r: usize, c: usize) -> Option<&'a Leaf> {
        self.rows.get(r)?.cells.get(c)?.fresh_leaf()
    }

    /// Notes wrong bytes of a leaf; the child that the column is on counts them.
    pub(super) fn wrong(&mut self, leaf: &Leaf, column: &Column) {
        let child = self.striped.children.get(column.child).and_then(Node::errors).unwrap_or(&leaf.errors);
        let (offset, size) = (column.offset, column.size);
        self.request.blame_within(&mut self.faults, child, leaf, FaultKind::Checksum, offset, size);
    }

    /// Compares the parity that was read with that of the right data, and puts the right one in place.
    fn settle_parity(&mut self, r: usize) {
        let parity = self.parity_count(r);
        let is_known = |c: usize| {
            self.rows.get(r).and_then(|row| row.cells.get(c)).is_some_and(|cell: &Cell<'_>| cell.used.is_some())
        };
        // parity that nobody read is computed only where it may have to be written
        if !(0..parity).any(is_known) && !self.request.heals {
            return;
        }
        self.update_syndromes(r);
        for c in 0..parity {
            let Some(column) = self.column(r, c) else { continue };
            let syndrome = self.rows.get(r).map(|row| row.syndrome(c).to_vec()).unwrap_or_default();
            if syndrome.iter().all(|b| *b == 0) {
                continue;
            }
            if let Some(leaf) = self.fresh_leaf(r, c) {
                self.wrong(leaf, &column);
            }
            gf::add(self.place(r, c), &syndrome);
        }
    }

    /// Compares the copies of each column that were not read, and reports the leaves that are not there.
    fn check_other_sides(&mut self, r: usize) {
        let count = self.rows.get(r).map_or(0, |row| row.cells.len());
        for c in 0..count {
            let Some(column) = self.column(r, c).filter(|column| column.size != 0) else { continue };
            let Some(cell) = self.rows.get(r).and_then(|row| row.cells.get(c)) else { continue };
            let (copies, tried) = (cell.copies.clone(), cell.tried);
            if tried < copies.len() {
                let right = self.place(r, c).to_vec();
                let child = self.striped.children.get(column.child).and_then(Node::errors).map(|errors| &**errors);
                self.request.compare_copies(&copies, tried, column.offset, child, &right, &mut |_| false);
            }
        }
    }

    /// A dRAID fills rows up with zeros, which its rebuild relies on.
    fn check_padding(&mut self, r: usize) {
        let count = self.map.rows.get(r).map_or(0, |row| row.columns.len());
        for c in 0..count {
            let Some(column) = self.column(r, c).filter(|column| column.pad != 0) else { continue };
            let copies = self.striped.copies(&column, self.request.birth);
            let Some(copy) = copies.first().filter(|copy| copy.rank == crate::node::Rank::Fresh) else { continue };
            let offset = column.offset + column.size as u64;
            let zero = scratch::with(column.pad, |bytes| {
                self.request.cx.read(copy.leaf, offset, bytes).is_err() || bytes.iter().all(|b| *b == 0)
            });
            if !zero {
                self.wrong(copy.leaf, &Column { offset, size: column.pad, ..column });
            }
        }
    }
}
