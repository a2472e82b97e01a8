//! Counting blocks by type, level and size: the sums behind the tables of `-b`.

use ondisk::BlkPtr;

/// The number of object types; after them come deferred frees, dedup dittos, self-describing types, and all types
/// together.
pub(super) const TYPES: usize = 54;
/// Index of deferred frees.
pub(super) const DEFERRED: usize = TYPES;
/// Index of self-describing types.
pub(super) const OTHER: usize = TYPES + 2;
/// Index of all types together.
pub(super) const ALL_TYPES: usize = TYPES + 3;
/// Levels of a block tree.
pub(super) const LEVELS: usize = 6;
/// Index of all levels together.
pub(super) const ALL_LEVELS: usize = LEVELS;
/// Sectors of the largest block that has its own bucket; larger ones share the last.
const SECTORS_MAX: u64 = 256;
/// Powers of two up to 16 MiB.
pub(super) const BINS: usize = 25;
/// Bytes that a pointer can embed.
const EMBEDDED_MAX: usize = 112;

/// Blocks of one type and level.
#[derive(Clone, Default)]
pub(super) struct Sum {
    pub(super) count: u64,
    pub(super) lsize: u64,
    pub(super) psize: u64,
    pub(super) asize: u64,
    pub(super) gangs: u64,
    pub(super) ditto_same_vdev: u64,
    pub(super) ditto_same_metaslab: u64,
    /// Blocks by physical size in sectors; empty unless asked for.
    pub(super) by_sectors: Vec<u64>,
}

impl Sum {
    pub(super) fn add(&mut self, other: &Sum) {
        self.count += other.count;
        self.lsize += other.lsize;
        self.psize += other.psize;
        self.asize += other.asize;
        self.gangs += other.gangs;
    }
}

/// Blocks by size: their number, and their bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Bins {
    pub(super) count: [u64; BINS],
    pub(super) bytes: [u64; BINS],
}

impl Bins {
    pub(super) fn add(&mut self, bin: usize, size: u64) {
        if let (Some(count), Some(bytes)) = (self.count.get_mut(bin), self.bytes.get_mut(bin)) {
            *count += 1;
            *bytes += size;
        }
    }

    /// The bin of blocks up to and including a power of two.
    pub(super) fn of(size: u64) -> usize {
        let bits = u64::BITS - size.saturating_sub(1).leading_zeros();
        (bits as usize).min(BINS - 1)
    }
}

/// All sums.
pub(super) struct Counts {
    sums: Vec<Sum>,
    sectors: bool,
    pub(super) psize: Bins,
    pub(super) lsize: Bins,
    pub(super) asize: Bins,
    /// Embedded blocks by kind and length.
    pub(super) embedded: Vec<Vec<u64>>,
}

/// The locations that two copies of a block share.
#[derive(Clone, Copy, Default)]
pub(super) struct Dittos {
    vdev: bool,
    metaslab: bool,
}

impl Dittos {
    /// Compares the copies of a block; `metaslab` gives the number of the metaslab that an offset of a vdev is in.
    pub(super) fn of(bp: &BlkPtr, metaslab: impl Fn(u64, u64) -> u64) -> Dittos {
        let places: Vec<(u64, u64)> = bp.dvas().map(|dva| (dva.vdev(), dva.offset())).collect();
        let mut found = Dittos::default();
        for (n, (vdev, offset)) in places.iter().enumerate() {
            for (other, place) in places.iter().skip(n + 1) {
                if vdev == other {
                    found.vdev = true;
                    found.metaslab |= metaslab(*vdev, *offset) == metaslab(*vdev, *place);
                }
            }
        }
        found
    }
}

impl Counts {
    /// Nothing counted; `sectors` asks for histograms by sectors.
    pub(super) fn new(sectors: bool) -> Counts {
        Counts {
            sums: vec![Sum::default(); (LEVELS + 1) * (ALL_TYPES + 1)],
            sectors,
            psize: Bins::default(),
            lsize: Bins::default(),
            asize: Bins::default(),
            embedded: vec![Vec::new(); 256],
        }
    }

    /// The blocks of a level and type.
    pub(super) fn sum(&self, level: usize, kind: usize) -> &Sum {
        const NONE: &Sum = &Sum {
            count: 0,
            lsize: 0,
            psize: 0,
            asize: 0,
            gangs: 0,
            ditto_same_vdev: 0,
            ditto_same_metaslab: 0,
            by_sectors: Vec::new(),
        };
        self.sums.get(level * (ALL_TYPES + 1) + kind).unwrap_or(NONE)
    }

    /// All blocks.
    pub(super) fn total(&self) -> &Sum {
        self.sum(ALL_LEVELS, ALL_TYPES)
    }

    /// Counts a block under a type.
    pub(super) fn block(&mut self, bp: &BlkPtr, kind: usize, dittos: Dittos) {
        let level = usize::from(bp.level()).min(LEVELS - 1);
        // an embedded block takes no space on disk
        let psize = if bp.is_embedded() { 0 } else { bp.psize() };
        let gangs = bp.dvas().filter(|dva| dva.is_gang()).count() as u64;
        for (level, kind) in [(level, ALL_TYPES), (level, kind), (ALL_LEVELS, ALL_TYPES), (ALL_LEVELS, kind)] {
            let Some(sum) = self.sums.get_mut(level * (ALL_TYPES + 1) + kind) else { continue };
            sum.count += 1;
            sum.lsize += bp.lsize();
            sum.psize += psize;
            sum.asize += bp.asize();
            sum.gangs += gangs;
            sum.ditto_same_vdev += u64::from(dittos.vdev);
            sum.ditto_same_metaslab += u64::from(dittos.metaslab);
            if self.sectors {
                sum.by_sectors.resize(SECTORS_MAX as usize + 2, 0);
                let sectors = (psize >> 9).min(SECTORS_MAX + 1) as usize;
                if let Some(n) = sum.by_sectors.get_mut(sectors) {
                    *n += 1;
                }
            }
        }
        if bp.is_embedded() {
            let kind = base::bytes::bits(bp.words[6], 40, 8) as usize;
            if let Some(lengths) = self.embedded.get_mut(kind) {
                lengths.resize(EMBEDDED_MAX + 1, 0);
                if let Some(n) = lengths.get_mut(bp.psize() as usize) {
                    *n += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bin_takes_in_its_own_size() {
        assert_eq!([512, 513, 1024, 4096, 4097].map(Bins::of), [9, 10, 10, 12, 13]);
        assert_eq!(Bins::of(1 << 40), BINS - 1);
    }
}
