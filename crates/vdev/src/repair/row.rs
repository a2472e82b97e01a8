//! One row: its cells, its syndromes, and what an error in some of its columns must be to explain them.

use smallvec::SmallVec;

use super::Repair;
use super::patch::Patch;
use crate::node::{Copies, Rank};
use crate::{Leaf, gf};

/// Columns of a row, by number.
pub(super) type Set = SmallVec<[usize; 4]>;

/// A column with the leaves that hold it.
pub(super) struct Cell<'a> {
    pub(super) copies: Copies<'a>,
    /// Copies that were tried.
    pub(super) tried: usize,
    /// The copy whose bytes are in place.
    pub(super) used: Option<usize>,
}

impl<'a> Cell<'a> {
    pub(super) fn new(copies: Copies<'a>) -> Cell<'a> {
        Cell { copies, tried: 0, used: None }
    }

    /// The leaf whose bytes are in place, if they should be right.
    pub(super) fn fresh_leaf(&self) -> Option<&'a Leaf> {
        let copy = self.copies.get(self.used?)?;
        (copy.rank == Rank::Fresh).then_some(copy.leaf)
    }

    /// How suspect the bytes in place are: old ones first, then those of leaves that were wrong before.
    pub(super) fn suspicion(&self) -> (Rank, u64) {
        let copy = self.used.and_then(|n| self.copies.get(n));
        copy.map_or((Rank::Fresh, 0), |c| (c.rank, c.leaf.errors.checksum.get()))
    }
}

/// A row.
pub(super) struct RowState<'a> {
    pub(super) cells: SmallVec<[Cell<'a>; 12]>,
    /// Bytes of the longest column.
    pub(super) stride: usize,
    /// The beginning of the row's parity among all parity.
    pub(super) parity_at: usize,
    /// For each parity column what it differs by from the parity of the data in place; `stride` bytes each.
    syndromes: Vec<u8>,
}

impl<'a> RowState<'a> {
    pub(super) fn new(cells: SmallVec<[Cell<'a>; 12]>, stride: usize, parity_at: usize) -> RowState<'a> {
        RowState { cells, stride, parity_at, syndromes: Vec::new() }
    }

    pub(super) fn syndrome(&self, parity: usize) -> &[u8] {
        let at = parity * self.stride;
        self.syndromes.get(at..at + self.stride).unwrap_or(&[])
    }
}

impl Repair<'_, '_> {
    /// Computes the syndromes of a row from the bytes in place.
    pub(super) fn update_syndromes(&mut self, r: usize) {
        let (Some(map), Some(row)) = (self.map.rows.get(r), self.rows.get_mut(r)) else { return };
        row.syndromes.clear();
        row.syndromes.resize(map.parity * row.stride, 0);
        for (j, syndrome) in row.syndromes.chunks_exact_mut(row.stride.max(1)).enumerate() {
            for column in map.data() {
                let data = self.block.get(column.at..column.at + column.size).unwrap_or(&[]);
                gf::horner(j, syndrome, data);
            }
            let at = row.parity_at + j * row.stride;
            gf::add(syndrome, self.parity.get(at..at + row.stride).unwrap_or(&[]));
        }
    }

    /// Whether a row agrees with all its parity, and everything was read.
    pub(super) fn is_consistent(&self, r: usize) -> bool {
        let zero = |row: &RowState<'_>| row.syndromes.iter().all(|b| *b == 0);
        self.unknown(r).is_empty() && self.rows.get(r).is_some_and(zero)
    }

    /// If wrong bytes in the columns of `set`, and nowhere else, explain the syndromes of row `r`: corrects the data columns among them, adds the
    /// corrections to `patch`, and is true. Else changes nothing. Columns that are not known must be in the set.
    pub(super) fn apply(&mut self, r: usize, set: &[usize], patch: &mut Patch) -> bool {
        let (Some(map), Some(row)) = (self.map.rows.get(r), self.rows.get(r)) else { return false };
        let (parity, columns) = (map.parity, map.data().len());
        let wrong: SmallVec<[usize; 3]> = set.iter().filter_map(|c| c.checked_sub(parity)).collect();
        let usable: SmallVec<[usize; 3]> = (0..parity).filter(|j| !set.contains(j)).collect();
        let n = wrong.len();
        if usable.len() < n || n > 3 {
            return false;
        }
        let factor = |j: usize, d: usize| gf::coefficient(j, d, columns);
        let mut matrix = [[0; 3]; 3];
        for (line, j) in matrix.iter_mut().zip(&usable).take(n) {
            for (cell, d) in line.iter_mut().zip(&wrong) {
                *cell = factor(*j, *d);
            }
        }
        let Some(inverse) = gf::invert_matrix(matrix, n) else { return false };
        let mut errors: SmallVec<[Vec<u8>; 3]> = SmallVec::new();
        for line in inverse.iter().take(n) {
            let mut error = vec![0; row.stride];
            for (scale, j) in line.iter().zip(&usable).take(n) {
                gf::add_scaled(&mut error, row.syndrome(*j), *scale);
            }
            errors.push(error);
        }
        // parity that was not needed to find the errors must agree with them
        let mut rest = Vec::new();
        for j in usable.iter().skip(n) {
            rest.clear();
            rest.extend_from_slice(row.syndrome(*j));
            for (error, d) in errors.iter().zip(&wrong) {
                gf::add_scaled(&mut rest, error, factor(*j, *d));
            }
            if rest.iter().any(|b| *b != 0) {
                return false;
            }
        }
        // and there is nothing to be wrong behind the end of a short column
        let sizes = wrong.iter().map(|d| map.data().get(*d).map_or(0, |c| c.size));
        if errors.iter().zip(sizes).any(|(e, size)| e.iter().skip(size).any(|b| *b != 0)) {
            return false;
        }
        for (error, d) in errors.into_iter().zip(wrong) {
            gf::add(self.place(r, parity + d), &error);
            patch.push(r, parity + d, error);
        }
        true
    }

    /// Takes corrections back.
    pub(super) fn undo(&mut self, patch: &Patch) {
        for (r, c, error) in patch.corrections() {
            gf::add(self.place(*r, *c), error);
        }
    }
}
