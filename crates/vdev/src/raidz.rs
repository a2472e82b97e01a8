//! The geometry of RAID-Z, also while and after it is expanded.
//!
//! # Not expanded
//! A block begins at any sector of the vdev, whose sectors are numbered across the children. It takes one row of columns:
//! parity first, then data, each column a contiguous run on its child, so that reading a block is one read for each child
//! and no bytes are moved afterwards. Data is cut column by column, not sector by sector.
//!
//! # Expanded
//! An expansion moves every sector to where it would be if the sectors were numbered across one more child; it does not
//! change how many data sectors share a parity. So a block keeps the *logical width* of its birth, which the list of
//! txgs tells in which expansions ended, and its sectors lie over the *physical width*. Each logical row then is a row of its own,
//! of one sector a column. While the move runs, rows beyond the reflow offset are still laid out over the old
//! width, and while its first part sits in the scratch area (the boot region of each child), rows before the offset are there.
//!
//! # A quirk that is format
//! With single parity, blocks whose offset has bit 20 set have their first two columns swapped.
//!
//! OpenZFS: `vdev_raidz_map_alloc`, `vdev_raidz_map_alloc_expanded`, `vdev_raidz_psize_to_asize`.

use std::sync::atomic::{AtomicU64, Ordering};

use base::Txg;
use ondisk::label::BOOT_REGION_SIZE;
use smallvec::SmallVec;

use crate::Error;
use crate::config::VdevConfig;
use crate::stripe::{Column, Extent, Row, StripeMap, physical};

/// The most children that OpenZFS gives a raidz or dRAID.
pub(crate) const CHILDREN_MAX: usize = 255;
/// The most parity columns.
pub(crate) const PARITY_MAX: u64 = 3;
/// The offset bit that swaps the first two columns under single parity.
const SWAP_BIT: u64 = 1 << 20;
/// The scratch state in which rows before the reflow offset are in the scratch area (OpenZFS: `RRSS_SCRATCH_VALID`).
const SCRATCH_VALID: u64 = 1;

/// The shape of a raidz.
#[derive(Debug)]
pub(crate) struct Raidz {
    /// Parity columns.
    pub(crate) parity: u64,
    /// Children now.
    pub(crate) width: u64,
    /// The txgs in which expansions ended, with the width for blocks born from then on; ascending.
    widths: Vec<(Txg, u64)>,
    /// Children when it was made.
    pub(crate) original_width: u64,
    /// Whether an expansion is under way.
    expanding: bool,
    reflow_offset: AtomicU64,
    scratch_state: AtomicU64,
}

impl Raidz {
    pub(crate) fn new(config: &VdevConfig) -> Result<Raidz, Error> {
        let bad = |what: &str| Error::config(config.guid, what);
        let (parity, width) = (config.nparity, config.children.len() as u64);
        if !(1..=PARITY_MAX).contains(&parity) {
            return Err(bad("parity is not 1, 2 or 3"));
        }
        if config.children.len() > CHILDREN_MAX || width < parity + 1 {
            return Err(bad("the number of children does not fit"));
        }
        let pending = u64::from(config.raidz_expanding);
        let expansions = config.raidz_expand_txgs.len() as u64 + pending;
        let original_width = width.checked_sub(expansions).filter(|w| *w > parity);
        let original_width = original_width.ok_or_else(|| bad("expanded more often than it has children"))?;
        let widths = config.raidz_expand_txgs.iter().zip(original_width + 1..).map(|(t, w)| (*t, w)).collect();
        Ok(Raidz {
            parity,
            width,
            widths,
            original_width,
            expanding: config.raidz_expanding,
            reflow_offset: AtomicU64::new(0),
            scratch_state: AtomicU64::new(0),
        })
    }

    pub(crate) fn set_reflow(&self, offset: u64, scratch_state: u64) {
        self.reflow_offset.store(offset, Ordering::Release);
        self.scratch_state.store(scratch_state, Ordering::Release);
    }

    /// It is the same vdev as `before`: its expansion has come as far.
    pub(crate) fn go_on_from(&self, before: &Raidz) {
        let offset = before.reflow_offset.load(Ordering::Acquire);
        self.set_reflow(offset, before.scratch_state.load(Ordering::Acquire));
    }

    /// Whether an expansion moves its sectors about.
    pub(crate) const fn is_expanding(&self) -> bool {
        self.expanding
    }

    /// The width over which a block born in `birth` counts its rows (OpenZFS: `vdev_raidz_get_logical_width`).
    pub(crate) fn logical_width(&self, birth: Txg) -> u64 {
        let after = self.widths.partition_point(|(txg, _)| *txg <= birth);
        after.checked_sub(1).and_then(|n| self.widths.get(n)).map_or(self.original_width, |(_, w)| *w)
    }

    /// Bytes allocated for `psize` bytes born in `birth`.
    pub(crate) fn psize_to_asize(&self, psize: u64, birth: Txg, ashift: u32) -> u64 {
        let data = self.logical_width(birth) - self.parity;
        let sectors = psize.max(1).div_ceil(1 << ashift);
        let with_parity = sectors + self.parity * sectors.div_ceil(data);
        with_parity.next_multiple_of(self.parity + 1) << ashift
    }

    /// The places of the parts of a block born in `birth`.
    pub(crate) fn map(&self, extent: Extent, birth: Txg) -> StripeMap {
        let logical = self.logical_width(birth);
        if logical == self.width { self.map_plain(extent) } else { self.map_expanded(extent, logical) }
    }

    fn map_plain(&self, extent: Extent) -> StripeMap {
        let (width, parity) = (self.width, self.parity);
        let first = extent.sector() % width;
        let base = (extent.sector() / width) << extent.ashift;
        let (full, big) = split(extent.sectors(), width, parity);
        let reached = if full == 0 { big } else { width };
        let mut at = 0;
        let columns = (0..reached).map(|c| {
            let sectors = full + u64::from(c < big);
            let size = (sectors << extent.ashift) as usize;
            // a column that wraps around lies one sector further on
            let wraps = first + c >= width;
            let offset = base + (u64::from(wraps) << extent.ashift);
            let column = Column { child: ((first + c) % width) as usize, offset: physical(offset), size, at, pad: 0 };
            if c >= parity {
                at += size;
            }
            column
        });
        let mut row = Row { columns: columns.collect(), parity: parity as usize };
        self.swap(&mut row, extent);
        StripeMap { rows: SmallVec::from_buf([row]) }
    }

    fn map_expanded(&self, extent: Extent, logical: u64) -> StripeMap {
        let parity = self.parity;
        let data_width = logical - parity;
        let sectors = extent.sectors();
        let (full, big) = split(sectors, logical, parity);
        let rest = sectors - full * data_width;
        let rows = full + u64::from(rest != 0);
        let columns = if full == 0 { big } else { logical };
        let layout = ReflowState::of(self);
        let map = (0..rows).map(|row| {
            // the first sector of the row, counted across the vdev
            let b = extent.sector() + row * logical;
            let (width, back) = layout.place(self.width, b + columns, extent.ashift);
            let column = |c: u64| {
                let offset = ((b + c) / width) << extent.ashift;
                let reached = row + 1 < rows || big == 0 || c < big;
                // data is cut column by column: the columns that reach the last row come first and are one sector longer
                let at = match c.checked_sub(parity) {
                    Some(d) if rest == 0 || d < rest => d * rows + row,
                    Some(d) => rest * rows + (d - rest) * (rows - 1) + row,
                    None => 0,
                };
                Column {
                    child: ((b + c) % width) as usize,
                    offset: physical(offset).saturating_sub(back),
                    size: if reached { 1 << extent.ashift } else { 0 },
                    at: if reached { (at << extent.ashift) as usize } else { 0 },
                    pad: 0,
                }
            };
            let mut row = Row { columns: (0..columns).map(column).collect(), parity: parity as usize };
            self.swap(&mut row, extent);
            row
        });
        StripeMap { rows: map.collect() }
    }

    /// The place of sector number `sector` of the vdev, as child and device offset; `None` while an expansion moves sectors about.
    pub(crate) fn sector_place(&self, sector: u64, ashift: u32) -> Option<(usize, u64)> {
        let place = || ((sector % self.width) as usize, physical((sector / self.width) << ashift));
        (!self.expanding).then(place)
    }

    /// Swaps the places (not the meaning) of the first two columns where the format wants it.
    fn swap(&self, row: &mut Row, extent: Extent) {
        if self.parity != 1 || extent.offset & SWAP_BIT == 0 {
            return;
        }
        if let [p, d, ..] = row.columns.as_mut_slice() {
            std::mem::swap(&mut p.child, &mut d.child);
            std::mem::swap(&mut p.offset, &mut d.offset);
        }
    }
}

/// Full rows of data, and the columns (parity included) that are one sector longer than that.
const fn split(sectors: u64, width: u64, parity: u64) -> (u64, u64) {
    let data = width - parity;
    let (full, rest) = (sectors / data, sectors % data);
    (full, if rest == 0 { 0 } else { rest + parity })
}

/// How far an expansion has come, at the moment of a read.
struct ReflowState {
    offset: u64,
    scratch: bool,
}

impl ReflowState {
    fn of(raidz: &Raidz) -> ReflowState {
        if !raidz.expanding {
            return ReflowState { offset: u64::MAX, scratch: false };
        }
        ReflowState {
            offset: raidz.reflow_offset.load(Ordering::Acquire),
            scratch: raidz.scratch_state.load(Ordering::Acquire) == SCRATCH_VALID,
        }
    }

    /// For a row that ends before sector `end`: the width it lies over, and how far before its place it is.
    fn place(&self, width: u64, end: u64, ashift: u32) -> (u64, u64) {
        if end > self.offset >> ashift {
            (width - 1, 0)
        } else if self.scratch {
            (width, BOOT_REGION_SIZE)
        } else {
            (width, 0)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn shape(parity: u64, width: u64, txgs: &[u64], expanding: bool) -> Raidz {
        let original_width = width - txgs.len() as u64 - u64::from(expanding);
        Raidz {
            parity,
            width,
            widths: txgs.iter().zip(original_width + 1..).map(|(t, w)| (Txg(*t), w)).collect(),
            original_width,
            expanding,
            reflow_offset: AtomicU64::new(0),
            scratch_state: AtomicU64::new(0),
        }
    }

    #[test]
    fn every_sector_of_a_block_has_a_place_of_its_own_within_the_allocation() {
        for (parity, width) in [(1, 2), (1, 3), (1, 5), (2, 3), (2, 6), (3, 4), (3, 11)] {
            let raidz = shape(parity, width, &[], false);
            for offset in [0u64, 4096, 7 * 4096, SWAP_BIT, SWAP_BIT + 5 * 4096] {
                for sectors in [1u64, 2, 3, 7, 31, 32] {
                    let extent = Extent { offset, size: sectors << 12, ashift: 12 };
                    let map = raidz.map(extent, Txg(1));
                    let mut places = Vec::new();
                    let mut data = 0;
                    for row in &map.rows {
                        data += row.data().iter().map(|c| c.size).sum::<usize>();
                        for c in &row.columns {
                            for s in 0..(c.size >> 12) as u64 {
                                let sector = (c.offset - physical(0)) / 4096 + s;
                                places.push(sector * width + c.child as u64);
                            }
                        }
                    }
                    assert_eq!(data as u64, sectors << 12);
                    places.sort_unstable();
                    places.dedup();
                    let asize = raidz.psize_to_asize(sectors << 12, Txg(1), 12) >> 12;
                    let first = offset >> 12;
                    assert!(places.iter().all(|p| (first..first + asize).contains(p)), "{parity} {width} {sectors}");
                    let with_parity = sectors + parity * sectors.div_ceil(width - parity);
                    assert_eq!(places.len() as u64, with_parity);
                }
            }
        }
    }

    #[test]
    fn an_expanded_block_covers_the_same_sectors_of_the_vdev() {
        let raidz = shape(2, 7, &[10, 20], false);
        assert_eq!(
            (raidz.logical_width(Txg(9)), raidz.logical_width(Txg(10)), raidz.logical_width(Txg(25))),
            (5, 6, 7)
        );
        for (birth, sectors) in [(1, 1u64), (1, 3), (1, 10), (12, 9), (12, 40)] {
            let extent = Extent { offset: 33 << 9, size: sectors << 9, ashift: 9 };
            let map = raidz.map(extent, Txg(birth));
            let mut places = Vec::new();
            let mut ats = Vec::new();
            for row in &map.rows {
                for c in row.columns.iter().filter(|c| c.size != 0) {
                    places.push((c.offset - physical(0)) / 512 * 7 + c.child as u64);
                }
                ats.extend(row.data().iter().filter(|c| c.size != 0).map(|c| c.at));
            }
            places.sort_unstable();
            ats.sort_unstable();
            assert_eq!(places, (33..33 + places.len() as u64).collect::<Vec<_>>());
            assert_eq!(ats, (0..sectors as usize).map(|n| n * 512).collect::<Vec<_>>());
        }
    }

    #[test]
    fn rows_beyond_the_reflow_offset_are_where_they_were() {
        let raidz = shape(1, 4, &[], true);
        let extent = Extent { offset: 0, size: 8 << 9, ashift: 9 };
        let width_of = |map: &StripeMap, row: usize| map.rows[row].columns.iter().map(|c| c.child).max().unwrap() + 1;
        assert_eq!(width_of(&raidz.map(extent, Txg(1)), 0), 3);
        raidz.set_reflow(6 << 9, 0);
        let map = raidz.map(extent, Txg(1));
        let (b0, b2) = (&map.rows[1].columns[0], &map.rows[2].columns[0]);
        assert_eq!((b0.child, b0.offset), (3, physical(0)));
        assert_eq!((b2.child, b2.offset), (0, physical(2 << 9)));
        raidz.set_reflow(6 << 9, SCRATCH_VALID);
        assert_eq!(raidz.map(extent, Txg(1)).rows[0].columns[0].offset, physical(0) - BOOT_REGION_SIZE);
    }

    #[test]
    fn allocated_sizes_are_those_of_openzfs() {
        let raidz = shape(1, 3, &[], false);
        // 128 KiB over 2 data columns: 32 + 16 sectors; a single sector takes two
        assert_eq!(raidz.psize_to_asize(128 << 10, Txg(0), 12), 48 << 12);
        assert_eq!(raidz.psize_to_asize(512, Txg(0), 12), 2 << 12);
        assert_eq!(shape(3, 6, &[], false).psize_to_asize(4096, Txg(0), 12), 4 << 12);
        assert_eq!(shape(2, 5, &[], false).psize_to_asize(16 << 10, Txg(0), 12), 9 << 12);
    }
}
