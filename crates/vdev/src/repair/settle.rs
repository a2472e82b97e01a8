//! When the block is right: who was wrong.

use super::Repair;
use super::row::Cell;
use super::search::Patch;
use crate::report::FaultKind;
use crate::stripe::Column;
use crate::{Error, Leaf, gf, scratch};

impl Repair<'_, '_> {
    /// Reports what was found: the corrections in `patch` are applied, so the block is right.
    pub(super) fn settle(mut self, patch: Patch) -> Result<(), Error> {
        for (r, c, error) in patch.corrections() {
            let leaf = self.fresh_leaf(*r, *c);
            if let (Some(leaf), Some(column)) = (leaf, self.column(*r, *c))
                && error.iter().any(|b| *b != 0)
            {
                let fault = self.wrong(leaf, &column);
                self.faults.push(fault);
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
        self.request.report.repaired.extend(self.faults);
        Ok(())
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

    fn fresh_leaf(&self, r: usize, c: usize) -> Option<&Leaf> {
        self.rows.get(r)?.cells.get(c)?.fresh_leaf()
    }

    fn wrong(&self, leaf: &Leaf, column: &Column) -> crate::LeafFault {
        if self.request.cx.counts {
            leaf.errors.checksum.add(1);
        }
        crate::LeafFault {
            leaf: leaf.guid(),
            kind: FaultKind::Checksum,
            offset: column.offset,
            len: column.size as u64,
        }
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
                let fault = self.wrong(leaf, &column);
                self.faults.push(fault);
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
                self.request.compare_copies(&copies, tried, column.offset, &right, &mut |_| false);
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
                self.request.cx.source.read(copy.leaf, offset, bytes).is_err() || bytes.iter().all(|b| *b == 0)
            });
            if !zero {
                let fault = self.wrong(copy.leaf, &Column { offset, size: column.pad, ..column });
                self.faults.push(fault);
            }
        }
    }
}
