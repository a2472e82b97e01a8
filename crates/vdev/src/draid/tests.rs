#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use super::*;

fn shape(parity: u64, data: u64, children: u64, failure_groups: u64, spares: u64, groups: u64) -> Draid {
    let width = children * failure_groups;
    let permutations = Permutations::new(children as usize, width as usize).unwrap();
    Draid { parity, data, width, spares, groups, failure_groups, permutations }
}

/// The shapes are ones that `zpool create` makes, the last two with failure domains.
fn shapes() -> Vec<Draid> {
    vec![
        shape(1, 2, 4, 1, 0, 4),
        shape(2, 4, 14, 1, 2, 2),
        shape(1, 8, 14, 1, 2, 4),
        shape(3, 5, 11, 1, 1, 5),
        shape(1, 3, 7, 2, 2, 6),
        shape(2, 3, 8, 3, 3, 21),
    ]
}

#[test]
fn no_two_sectors_share_a_place_and_none_is_spare_room() {
    for draid in shapes() {
        let sector = 1u64 << 16;
        let rows_of_slice = draid.slice_rows() * ROW_HEIGHT;
        let mut seen = HashSet::new();
        // two slices and a bit, one sector of each child in each row of a group
        let end = 2 * draid.groups * draid.group_size() + draid.group_size();
        let step = draid.group_width() * sector * 64;
        for offset in (0..end).step_by(step as usize) {
            let map = draid.map(Extent { offset, size: draid.data * sector, ashift: 16 });
            assert_eq!(map.rows.len(), 1);
            let row = &map.rows[0];
            let children: HashSet<usize> = row.columns.iter().map(|c| c.child).collect();
            assert_eq!(children.len() as u64, draid.group_width());
            for column in &row.columns {
                assert!((column.child as u64) < draid.width);
                assert!(seen.insert((column.child, column.offset)), "{offset:#x} {column:?}");
                let spares = (0..draid.spares).filter_map(|s| draid.spare_child(s, column.offset));
                assert!(spares.into_iter().all(|spare| spare != column.child), "{offset:#x} {column:?}");
            }
        }
        // a slice is filled without gaps: every child that is no spare is used in every row
        let in_first = seen.iter().filter(|(_, o)| *o < physical(rows_of_slice)).count() as u64;
        assert_eq!(in_first, draid.groups * draid.group_size() / step * draid.group_width());
    }
}

#[test]
fn domains_do_not_meet_in_a_group() {
    let draid = shape(1, 3, 7, 2, 2, 6);
    for group in 0..200u64 {
        let extent = Extent { offset: group * draid.group_size(), size: 3 << 12, ashift: 12 };
        let domains: HashSet<usize> = draid.map(extent).rows[0].columns.iter().map(|c| c.child % 7).collect();
        assert_eq!(domains.len(), 4);
    }
}

#[test]
fn a_block_goes_on_in_the_next_group() {
    let draid = shape(2, 4, 14, 1, 2, 2);
    let stripe = draid.group_width() << 12;
    let extent = Extent { offset: draid.group_size() - 2 * stripe, size: 11 << 12, ashift: 12 };
    let map = draid.map(extent);
    let sizes: Vec<usize> = map.rows.iter().map(|r| r.data().iter().map(|c| c.size).sum()).collect();
    assert_eq!(sizes, [8 << 12, 3 << 12]);
    let mut at: Vec<(usize, usize)> =
        map.rows.iter().flat_map(|r| r.data()).filter(|c| c.size != 0).map(|c| (c.at, c.size)).collect();
    at.sort_unstable();
    assert_eq!(at.iter().fold(0, |end, (at, size)| if *at == end { end + size } else { usize::MAX / 2 }), 11 << 12);
    assert_eq!(draid.psize_to_asize(11 << 12, 12), 3 * stripe);
}
