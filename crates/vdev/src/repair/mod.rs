//! Reading a raidz or dRAID when something is wrong, or when all is to be checked.
//!
//! The block is a set of rows. In each, parity columns P, Q, R are polynomials in the data columns ([`crate::gf`]), so every set of columns
//! as large as the parity can be computed from the others: a maximum-distance code. Work goes in stages, each
//! ending with the block's checksum:
//!
//! 1. Read the data that should be right, and parity where something is missing; compute the missing.
//! 2. Read all that can be read, also from leaves that missed the block's txg or are out of use, and *search* for the columns that
//!    silently hold wrong bytes ([`search`]).
//! 3. Where a column is kept by a group (replacing, spare) whose sides differ, try the other sides.
//!
//! The search works on *syndromes*: what each parity differs by from what it should be. A set of columns can only be the bad ones if some error in them
//! explains the syndromes ([`row`]); where fewer columns are suspected than there is parity, the parity that is left over refutes almost every
//! wrong guess without a checksum. When the block is found, syndromes of the right data tell which parity was wrong.
//!
//! OpenZFS: `vdev_raidz_io_done`, `vdev_raidz_combrec`. It tries sets of disks; here rows are also solved each on its own.

mod patch;
mod row;
mod search;
mod settle;

use crate::node::Rank;
use crate::read::{Check, Faults, Request};
use crate::report::FaultKind;
use crate::stripe::{Column, StripeMap};
use crate::tree::{Striped, TopVdev};
use crate::{Error, read};
use patch::Patch;
use row::{Cell, RowState};
use search::Budget;

/// Combinations of differing sides that are tried.
const VARIANTS_MAX: usize = 256;

/// A block that is being read with care.
pub(crate) struct Repair<'r, 'a> {
    request: &'r mut Request<'a>,
    top: &'a TopVdev,
    striped: &'a Striped,
    map: &'r StripeMap,
    offset: u64,
    /// The block: the data columns are parts of it.
    block: &'r mut [u8],
    /// The parity columns of all rows.
    parity: Vec<u8>,
    rows: Vec<RowState<'a>>,
    faults: Faults,
}

/// Bytes of another side of a group that differ from those in place.
struct Variant {
    row: usize,
    cell: usize,
    copy: usize,
    bytes: Vec<u8>,
}

impl<'r, 'a> Repair<'r, 'a> {
    pub(crate) fn new(
        request: &'r mut Request<'a>,
        top: &'a TopVdev,
        striped: &'a Striped,
        map: &'r StripeMap,
        offset: u64,
        block: &'r mut [u8],
    ) -> Repair<'r, 'a> {
        let mut parity_bytes = 0;
        let mut rows = Vec::with_capacity(map.rows.len());
        for row in &map.rows {
            let stride = row.stride();
            let cells = row.columns.iter().map(|c| Cell::new(striped.copies(c, request.birth))).collect();
            rows.push(RowState::new(cells, stride, parity_bytes));
            parity_bytes += stride * row.parity;
        }
        block.fill(0);
        Repair { request, top, striped, map, offset, block, parity: vec![0; parity_bytes], rows, faults: Faults::new() }
    }

    /// Reads the block.
    pub(crate) fn run(mut self, check: &mut Check<'_>) -> Result<(), Error> {
        let scrub = self.request.is_scrub();
        for r in 0..self.rows.len() {
            self.load(r, Which::Data, Rank::Fresh);
            if scrub || !self.unknown(r).is_empty() {
                self.load(r, Which::Parity, Rank::Fresh);
            }
        }
        if let Some(patch) = self.fill_in(check) {
            return self.settle(patch);
        }
        for r in 0..self.rows.len() {
            self.load(r, Which::Data, self.request.worst());
            self.load(r, Which::Parity, self.request.worst());
        }
        let mut budget = Budget::new(self.block.len(), self.rows.iter().map(|row| row.stride).sum());
        if let Some(patch) = self.search(check, &mut budget) {
            return self.settle(patch);
        }
        if let Some(patch) = self.search_variants(check, &mut budget) {
            return self.settle(patch);
        }
        Err(self.give_up())
    }

    /// The column that a cell stands for.
    fn column(&self, r: usize, c: usize) -> Option<Column> {
        self.map.rows.get(r)?.columns.get(c).copied()
    }

    fn parity_count(&self, r: usize) -> usize {
        self.map.rows.get(r).map_or(0, |row| row.parity)
    }

    /// The bytes in place for a cell.
    fn place(&mut self, r: usize, c: usize) -> &mut [u8] {
        let parity = self.parity_count(r);
        let (Some(column), Some(row)) = (self.column(r, c), self.rows.get(r)) else { return &mut [] };
        let bytes = if c < parity {
            let at = row.parity_at + c * row.stride;
            self.parity.get_mut(at..at + column.size)
        } else {
            self.block.get_mut(column.at..column.at + column.size)
        };
        bytes.unwrap_or(&mut [])
    }

    /// Reads columns of a row that are not known yet, from the first copy of at most rank `worst` that can be read.
    fn load(&mut self, r: usize, which: Which, worst: Rank) {
        let (parity, count) = (self.parity_count(r), self.rows.get(r).map_or(0, |row| row.cells.len()));
        let range = if which == Which::Parity { 0..parity } else { parity..count };
        for c in range {
            self.load_cell(r, c, worst);
        }
    }

    fn load_cell(&mut self, r: usize, c: usize, worst: Rank) {
        let Some(column) = self.column(r, c).filter(|column| column.size != 0) else { return };
        loop {
            let Some(cell) = self.rows.get_mut(r).and_then(|row| row.cells.get_mut(c)) else { return };
            let next = cell.tried;
            let Some(copy) = cell.copies.get(next).copied().filter(|copy| copy.rank <= worst) else { return };
            if cell.used.is_some() {
                return;
            }
            cell.tried += 1;
            let cx = self.request.cx;
            let read = cx.read(copy.leaf, column.offset, self.place(r, c)).is_ok();
            if read {
                if let Some(cell) = self.rows.get_mut(r).and_then(|row| row.cells.get_mut(c)) {
                    cell.used = Some(next);
                }
                return;
            }
            self.place(r, c).fill(0);
            if copy.rank == Rank::Fresh {
                self.request.blame(&mut self.faults, copy.leaf, FaultKind::Io, column.offset, column.size);
            }
        }
    }

    /// The columns of a row that could not be read (or were not asked for).
    fn unknown(&self, r: usize) -> row::Set {
        let (Some(row), Some(map)) = (self.rows.get(r), self.map.rows.get(r)) else { return row::Set::new() };
        let cells = row.cells.iter().zip(&map.columns).enumerate();
        cells.filter(|(_, (cell, column))| cell.used.is_none() && column.size != 0).map(|(c, _)| c).collect()
    }

    /// Computes what is missing, if it can be computed, and asks for the checksum.
    fn fill_in(&mut self, check: &mut Check<'_>) -> Option<Patch> {
        let mut patch = Patch::new();
        for r in 0..self.rows.len() {
            let unknown = self.unknown(r);
            let parity = self.parity_count(r);
            // parity that nobody asked for is not needed
            if unknown.iter().all(|c| *c < parity) {
                continue;
            }
            self.update_syndromes(r);
            if !self.apply(r, &unknown, &mut patch) {
                self.undo(&patch);
                return None;
            }
        }
        if check(self.block) {
            return Some(patch);
        }
        self.undo(&patch);
        None
    }

    /// Searches with other sides of groups in place of those that were read first.
    fn search_variants(&mut self, check: &mut Check<'_>, budget: &mut Budget) -> Option<Patch> {
        let mut variants = self.other_sides();
        let choices = 1usize.checked_shl(variants.len() as u32).unwrap_or(usize::MAX).min(VARIANTS_MAX);
        for choice in 1..choices {
            let chosen = |n: usize| n < usize::BITS as usize && choice >> n & 1 != 0;
            for (_, v) in variants.iter_mut().enumerate().filter(|(n, _)| chosen(*n)) {
                self.swap(v);
            }
            let found = self.search(check, budget);
            if found.is_some() {
                return found;
            }
            for (_, v) in variants.iter_mut().enumerate().filter(|(n, _)| chosen(*n)).rev() {
                self.swap(v);
            }
        }
        None
    }

    /// Reads the sides that were not read, and keeps those that differ.
    fn other_sides(&mut self) -> Vec<Variant> {
        let mut found = Vec::new();
        for r in 0..self.rows.len() {
            let cells = self.rows.get(r).map_or(0, |row| row.cells.len());
            for c in 0..cells {
                let Some(column) = self.column(r, c).filter(|column| column.size != 0) else { continue };
                let Some(cell) = self.rows.get(r).and_then(|row| row.cells.get(c)) else { continue };
                let copies = cell.copies.clone();
                for (n, copy) in copies.iter().enumerate().skip(cell.tried) {
                    let mut bytes = vec![0; column.size];
                    let readable = self.request.may_read(copy.rank)
                        && self.request.cx.read(copy.leaf, column.offset, &mut bytes).is_ok();
                    if readable && bytes != self.place(r, c) {
                        found.push(Variant { row: r, cell: c, copy: n, bytes });
                    }
                }
            }
        }
        found
    }

    /// Exchanges the bytes in place with another side's.
    fn swap(&mut self, v: &mut Variant) {
        self.place(v.row, v.cell).swap_with_slice(&mut v.bytes);
        if let Some(cell) = self.rows.get_mut(v.row).and_then(|row| row.cells.get_mut(v.cell))
            && let Some(used) = &mut cell.used
        {
            std::mem::swap(used, &mut v.copy);
        }
    }

    /// The error of a block that nothing gives; as in OpenZFS, every leaf that took part is suspected.
    fn give_up(mut self) -> Error {
        let solvable = (0..self.rows.len()).all(|r| self.unknown(r).len() <= self.parity_count(r));
        if solvable {
            let mut seen = std::collections::HashSet::new();
            for r in 0..self.rows.len() {
                let Some(row) = self.rows.get(r) else { continue };
                let cells: Vec<_> = row.cells.iter().enumerate().map(|(c, cell)| (c, cell.fresh_leaf())).collect();
                for (c, leaf) in cells {
                    let (Some(leaf), Some(column)) = (leaf, self.column(r, c)) else { continue };
                    if seen.insert(leaf.guid()) {
                        self.wrong(leaf, &column);
                    }
                }
            }
        }
        self.count_groups();
        read::failed(self.top, self.offset, self.block.len(), self.faults)
    }
}

/// Which columns of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Data,
    Parity,
}

#[cfg(test)]
mod tests;
