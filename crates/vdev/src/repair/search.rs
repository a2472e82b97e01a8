//! The search for the columns that silently hold wrong bytes.

use super::Repair;
use super::patch::Patch;
use super::row::Set;
use crate::read::Check;
use crate::stripe::physical;
use crate::tree::Geometry;

/// Bytes that may go through checksums for one block. It bounds what a hostile image can cost, at some ten seconds; every set of three
/// columns of a 140 wide vdev is within it for blocks of 128 KiB, of a 28 wide one for blocks of 16 MiB.
const BUDGET_BYTES: u64 = 64 << 30;
/// Bytes of columns that may be solved for one block, guess by guess.
const BUDGET_GUESS_BYTES: u64 = 16 << 30;
/// Rows that are solved each on its own, at most: the guesses multiply.
const ROWS_MAX: usize = 6;

/// The rest of the effort for one block.
pub(super) struct Budget {
    checks: u64,
    guesses: u64,
}

impl Budget {
    /// For a block of `block` bytes whose columns have `columns` bytes in all rows together.
    pub(super) fn new(block: usize, columns: usize) -> Budget {
        let of = |bytes: u64, each: usize| bytes / each.max(4096) as u64;
        Budget { checks: of(BUDGET_BYTES, block), guesses: of(BUDGET_GUESS_BYTES, columns) }
    }

    fn guess(&mut self) -> bool {
        spend(&mut self.guesses)
    }

    fn check(&mut self) -> bool {
        spend(&mut self.checks)
    }
}

fn spend(left: &mut u64) -> bool {
    match left.checked_sub(1) {
        Some(rest) => {
            *left = rest;
            true
        }
        None => false,
    }
}

/// Columns that are suspected together: those on one disk.
type Unit = Vec<(usize, usize)>;

impl Repair<'_, '_> {
    /// Searches; on success the corrections are applied.
    pub(super) fn search(&mut self, check: &mut Check<'_>, budget: &mut Budget) -> Option<Patch> {
        for r in 0..self.rows.len() {
            if self.unknown(r).len() > self.parity_count(r) {
                return None;
            }
            self.update_syndromes(r);
        }
        if self.rows.len() > 1 {
            let found = self.search_by_disk(check, budget);
            if found.is_some() {
                return found;
            }
        }
        let open: Vec<usize> = (0..self.rows.len()).filter(|r| !self.is_consistent(*r)).collect();
        let mut patch = Patch::new();
        if self.rows.len() > 1 {
            let rest: Vec<usize> = open.iter().copied().filter(|r| !self.solve_alone(*r, &mut patch, budget)).collect();
            if rest.len() <= ROWS_MAX && self.search_rows(&rest, &mut patch, check, budget) {
                return Some(patch);
            }
            self.undo(&patch);
            patch = Patch::new();
        }
        (open.len() <= ROWS_MAX && self.search_rows(&open, &mut patch, check, budget)).then_some(patch)
    }

    /// Corrects a row if few enough of its columns are wrong that the parity left over proves it.
    fn solve_alone(&mut self, r: usize, patch: &mut Patch, budget: &mut Budget) -> bool {
        let unknown = self.unknown(r);
        let suspects = self.suspects(r);
        for extra in 0..self.parity_count(r).saturating_sub(unknown.len()) {
            let mut picks: Set = (0..extra).collect();
            while picks.last().is_none_or(|last| *last < suspects.len()) && budget.guess() {
                let mut set = unknown.clone();
                set.extend(picks.iter().filter_map(|n| suspects.get(*n).copied()));
                if self.apply(r, &set, patch) {
                    return true;
                }
                if !next_combination(&mut picks, suspects.len()) {
                    break;
                }
            }
        }
        false
    }

    /// Solves the rows in `open` one after the other, all sets of columns of each; true when the block is right.
    fn search_rows(&mut self, open: &[usize], patch: &mut Patch, check: &mut Check<'_>, budget: &mut Budget) -> bool {
        let Some((r, rest)) = open.split_first() else { return budget.check() && check(self.block) };
        let unknown = self.unknown(*r);
        let suspects = self.suspects(*r);
        let parity = self.parity_count(*r);
        for extra in 0..=parity - unknown.len().min(parity) {
            let mut picks: Set = (0..extra).collect();
            while picks.last().is_none_or(|last| *last < suspects.len()) {
                if !budget.guess() {
                    return false;
                }
                let mut set = unknown.clone();
                set.extend(picks.iter().filter_map(|n| suspects.get(*n).copied()));
                let len = patch.corrections().len();
                if self.apply(*r, &set, patch) {
                    if self.search_rows(rest, patch, check, budget) {
                        return true;
                    }
                    let tail = patch.split(len);
                    self.undo(&tail);
                }
                if !next_combination(&mut picks, suspects.len()) {
                    break;
                }
            }
        }
        false
    }

    /// The columns of a row that were read, the most suspect first.
    fn suspects(&self, r: usize) -> Vec<usize> {
        let Some(row) = self.rows.get(r) else { return Vec::new() };
        let mut known: Vec<usize> =
            row.cells.iter().enumerate().filter(|(_, cell)| cell.used.is_some()).map(|(c, _)| c).collect();
        known.sort_by_key(|c| std::cmp::Reverse(row.cells.get(*c).map(|cell| cell.suspicion())));
        known
    }

    /// Suspects whole disks, over all rows.
    fn search_by_disk(&mut self, check: &mut Check<'_>, budget: &mut Budget) -> Option<Patch> {
        let units = self.units();
        let parity = self.striped.geometry.parity();
        let open: Vec<usize> = (0..self.rows.len()).filter(|r| !self.is_consistent(*r)).collect();
        for size in 0..=parity {
            let mut picks: Set = (0..size).collect();
            while picks.last().is_none_or(|last| *last < units.len()) {
                if !budget.guess() {
                    return None;
                }
                let chosen: Vec<&Unit> = picks.iter().filter_map(|n| units.get(*n)).collect();
                if let Some(patch) = self.suspect(&chosen, &open) {
                    if budget.check() && check(self.block) {
                        return Some(patch);
                    }
                    self.undo(&patch);
                }
                if !next_combination(&mut picks, units.len()) {
                    break;
                }
            }
        }
        None
    }

    /// Corrects the rows in `open` as if the columns in `units` were wrong, if that explains every one.
    fn suspect(&mut self, units: &[&Unit], open: &[usize]) -> Option<Patch> {
        let mut patch = Patch::new();
        for r in open.iter().copied() {
            let mut set = self.unknown(r);
            for (_, c) in units.iter().flat_map(|unit| unit.iter()).filter(|(row, _)| *row == r) {
                if !set.contains(c) {
                    set.push(*c);
                }
            }
            if set.len() > self.parity_count(r) || !self.apply(r, &set, &mut patch) {
                self.undo(&patch);
                return None;
            }
        }
        Some(patch)
    }

    /// The disks that may hold wrong bytes: the children, and for an expanded raidz also the children of before each expansion, whose
    /// sectors now lie over all of them (a disk may have been bad before its sectors were moved).
    fn units(&self) -> Vec<Unit> {
        let (width, oldest) = match &self.striped.geometry {
            Geometry::Raidz(raidz) => (raidz.width, raidz.original_width),
            Geometry::Draid(draid) => (draid.width, draid.width),
        };
        let ashift = self.top.ashift();
        let mut units = Vec::new();
        for w in (oldest..=width).rev() {
            let mut of_width: Vec<Unit> = vec![Unit::new(); w as usize];
            for (r, row) in self.map.rows.iter().enumerate() {
                for (c, column) in row.columns.iter().enumerate().filter(|(_, column)| column.size != 0) {
                    let sector = (column.offset.saturating_sub(physical(0)) >> ashift).wrapping_mul(width);
                    let disk = if w == width { column.child as u64 } else { (sector + column.child as u64) % w };
                    if let Some(unit) = of_width.get_mut(disk as usize) {
                        unit.push((r, c));
                    }
                }
            }
            units.extend(of_width.into_iter().filter(|unit| !unit.is_empty()));
        }
        units
    }
}

/// The next set of as many numbers below `bound`, in lexical order; false after the last.
fn next_combination(picks: &mut Set, bound: usize) -> bool {
    let count = picks.len();
    for n in (0..count).rev() {
        let Some(pick) = picks.get(n).copied() else { return false };
        if pick + 1 + (count - n - 1) < bound {
            for (step, slot) in picks.iter_mut().skip(n).enumerate() {
                *slot = pick + 1 + step;
            }
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_combinations_come_once() {
        let mut picks: Set = (0..3).collect();
        let mut seen = vec![picks.clone()];
        while next_combination(&mut picks, 6) {
            seen.push(picks.clone());
        }
        assert_eq!(seen.len(), 20);
        let mut unique = seen.clone();
        unique.dedup();
        assert_eq!(unique.len(), 20);
        assert!(!next_combination(&mut Set::new(), 6));
    }
}
