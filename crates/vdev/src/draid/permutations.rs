//! The orders of the children of a dRAID.

use super::maps::{CHILDREN_MIN, MAPS, MapSeed};

/// First half of the seed of every table.
const SEED: u64 = 0x000d_7a1d_5eed;

/// The random sequence from which the tables are made: xoroshiro128++. OpenZFS: `vdev_draid_rand`.
struct Sequence([u64; 2]);

impl Sequence {
    fn new(map: &MapSeed) -> Sequence {
        Sequence([SEED, map.seed])
    }

    fn next(&mut self) -> u64 {
        let [a, b] = self.0;
        let result = a.wrapping_add(b).rotate_left(17).wrapping_add(a);
        let mixed = a ^ b;
        self.0 = [a.rotate_left(49) ^ mixed ^ (mixed << 21), mixed.rotate_left(28)];
        result
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// The table of orders for one shape.
#[derive(Debug)]
pub(super) struct Permutations {
    children: usize,
    failure_groups: usize,
    /// Rows of `children` numbers.
    table: Vec<u8>,
}

impl Permutations {
    /// The table for slices of `children`, `width / children` of them side by side. `None` if there is none, or if what was generated
    /// does not have the checksum that the format states.
    pub(super) fn new(children: usize, width: usize) -> Option<Permutations> {
        let map = MAPS.get(children.checked_sub(CHILDREN_MIN)?)?;
        let failure_groups = width / children;
        if failure_groups == 0 || usize::from(map.permutations) < failure_groups {
            return None;
        }
        let mut table = generate(map, children);
        if checksum(&table) != map.checksum {
            return None;
        }
        if failure_groups > 1 {
            shuffle(map, &mut table, children, failure_groups);
        }
        Some(Permutations { children, failure_groups, table })
    }

    /// The child at `place` of the order number `permutation`. OpenZFS: `vdev_draid_get_perm`, `vdev_draid_permute_id`.
    pub(super) fn child(&self, permutation: u64, place: u64) -> usize {
        let (children, groups) = (self.children, self.failure_groups);
        let orders = self.table.len() / children / groups * groups;
        // each stored order serves as many slices as there are children, turned by one each time
        let turned = (permutation % (orders * children) as u64) as usize;
        let base = turned / (children * groups) * (children * groups);
        let turn = turned % children;
        let place = place as usize % children;
        if groups == 1 {
            return (usize::from(self.at(base + place)) + turn) % children;
        }
        let slice = (permutation % groups as u64) as usize;
        usize::from(self.at(base + slice * children + (place + turn) % children))
    }

    fn at(&self, index: usize) -> u8 {
        let Some(child) = self.table.get(index) else {
            panic!("place {index} of an order of {} children", self.children);
        };
        *child
    }
}

/// Shuffles each order out of the one before it (Fisher and Yates).
fn generate(map: &MapSeed, children: usize) -> Vec<u8> {
    let mut random = Sequence::new(map);
    let mut order: Vec<u8> = (0..children).map(|n| n as u8).collect();
    let mut table = Vec::with_capacity(children * usize::from(map.permutations));
    for _ in 0..map.permutations {
        for j in (1..children).rev() {
            let k = random.below(j + 1);
            order.swap(j, k);
        }
        table.extend_from_slice(&order);
    }
    table
}

/// The first word of the fletcher4 of the table: the sum of its 32-bit little-endian words.
fn checksum(table: &[u8]) -> u64 {
    table.as_chunks::<4>().0.iter().map(|w| u64::from(u32::from_le_bytes(*w))).sum()
}

/// Mixes the same disk of slices that lie side by side, so that the groups share all disks and none holds two of one domain.
fn shuffle(map: &MapSeed, table: &mut [u8], children: usize, groups: usize) {
    let mut random = Sequence::new(map);
    for slices in table.chunks_exact_mut(children * groups) {
        for j in 0..children {
            let Some(wanted) = slices.get(j).copied() else { return };
            // where the same disk stands in each slice
            let mut places = vec![j; groups];
            for (k, place) in places.iter_mut().enumerate().skip(1) {
                let slice = slices.get(k * children..(k + 1) * children).unwrap_or(&[]);
                *place = k * children + slice.iter().rposition(|d| *d == wanted).unwrap_or(0);
            }
            for (k, place) in places.iter().enumerate().skip(1) {
                if let Some(disk) = slices.get_mut(*place) {
                    *disk = disk.wrapping_add((k * children) as u8);
                }
            }
            for k in (1..groups).rev() {
                let l = random.below(k + 1);
                if let (Some(a), Some(b)) = (places.get(k), places.get(l))
                    && *a.max(b) < slices.len()
                {
                    slices.swap(*a, *b);
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_the_checksum_of_the_format() {
        for children in 2..=255usize {
            let map = &MAPS[children - 2];
            let table = generate(map, children);
            assert_eq!(checksum(&table), map.checksum, "{children} children");
            for order in table.chunks(children) {
                let mut seen = order.to_vec();
                seen.sort_unstable();
                assert!(seen.iter().enumerate().all(|(n, d)| usize::from(*d) == n));
            }
        }
        assert!(Permutations::new(1, 1).is_none());
        assert!(Permutations::new(256, 256).is_none());
    }

    #[test]
    fn failure_groups_share_all_disks_and_keep_domains_apart() {
        for (children, groups) in [(7, 2), (5, 3), (10, 25), (85, 3)] {
            let width = children * groups;
            let all = Permutations::new(children, width).unwrap();
            for slice_row in 0..40u64 {
                let mut row = Vec::new();
                for group in 0..groups as u64 {
                    let slice: Vec<usize> =
                        (0..children as u64).map(|p| all.child(slice_row * groups as u64 + group, p)).collect();
                    let mut domains: Vec<usize> = slice.iter().map(|d| d % children).collect();
                    domains.sort_unstable();
                    domains.dedup();
                    assert_eq!(domains.len(), children, "{children} x {groups}");
                    row.extend(slice);
                }
                row.sort_unstable();
                assert!(row.iter().enumerate().all(|(n, d)| *d == n), "{children} x {groups}, row {slice_row}");
            }
        }
    }
}
