#![allow(clippy::unwrap_used)]
//! Every combination of damage that the parity covers, on every layout.

use base::{Guid, Txg};
use nvlist::NvList;
use ondisk::label::key;
use proptest::prelude::*;

use crate::stripe::StripeMap;
use crate::test_pool::{LEAF_GUID, TestPool, block, draid, group, leaf, map, missed, raidz, read};
use crate::tree::Shape;
use crate::{Error, FaultKind, ReadCx};

/// All sets of up to `most` numbers below `bound`.
fn sets(bound: usize, most: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    let mut from = 0;
    for _ in 0..most {
        let to = all.len();
        for n in from..to {
            let next = all[n].last().map_or(0, |l| l + 1);
            for more in next..bound {
                let mut set = all[n].clone();
                set.push(more);
                all.push(set);
            }
        }
        from = to;
    }
    all
}

/// Damages `corrupt` and takes `gone` away; reads normally and with all checks; looks at who is blamed.
fn survive(
    bench: &TestPool,
    map: &StripeMap,
    offset: u64,
    birth: Txg,
    right: &[u8],
    corrupt: &[usize],
    gone: &[usize],
) {
    let mut hurt = TestPool { config: bench.config.clone(), disks: bench.disks.clone(), gone: gone.to_vec() };
    let mut touched = Vec::new();
    for disk in corrupt {
        for column in map.rows.iter().flat_map(|r| &r.columns).filter(|c| c.child == *disk && c.size != 0) {
            hurt.disks[*disk].flip(column.offset + column.size as u64 / 2, 0x5a);
            hurt.disks[*disk].flip(column.offset, 1);
            touched.push(LEAF_GUID + *disk as u64);
        }
    }
    touched.sort_unstable();
    touched.dedup();
    let case = format!("corrupt {corrupt:?} gone {gone:?} at {offset:#x} len {}", right.len());
    let tree = hurt.open();
    read(&tree, &ReadCx::NORMAL, offset, birth, right).unwrap_or_else(|e| panic!("{case}: {e}"));
    let tree = hurt.open();
    let report = read(&tree, &ReadCx::SCRUB, offset, birth, right).unwrap_or_else(|e| panic!("{case}: {e}"));
    let blamed = |kind| {
        let mut leaves: Vec<u64> = report.repaired.iter().filter(|f| f.kind == kind).map(|f| f.leaf.0).collect();
        leaves.sort_unstable();
        leaves.dedup();
        leaves
    };
    assert_eq!(blamed(FaultKind::Checksum), touched, "{case}");
    let mut absent: Vec<u64> = map
        .rows
        .iter()
        .flat_map(|r| &r.columns)
        .filter(|c| c.size != 0 && gone.contains(&c.child))
        .map(|c| LEAF_GUID + c.child as u64)
        .collect();
    absent.sort_unstable();
    absent.dedup();
    assert_eq!(blamed(FaultKind::Missing), absent, "{case}");
    for leaf in &touched {
        assert!(tree.leaf(Guid(*leaf)).unwrap().errors.checksum.get() > 0);
    }
}

#[test]
fn raidz_reads_through_every_combination_of_damage() {
    for (parity, width) in [(1, 2), (1, 3), (1, 5), (2, 3), (2, 4), (2, 6), (3, 4), (3, 5), (3, 7)] {
        for ashift in [9, 12] {
            let sector = 1usize << ashift;
            let sizes = [1, 2, width - 1, 2 * width + 1, 3 * (width - parity)];
            // large sectors differ in nothing but their size
            for sectors in sizes.into_iter().take(if ashift == 9 { 5 } else { 2 }) {
                let mut bench = TestPool::plain_raidz(parity as u64, width, ashift);
                let offset = (3 * width as u64 + 1) << ashift;
                let right = block(sectors * sector, (parity * 1000 + width * 10 + sectors) as u64);
                let map = bench.write(offset, Txg(5), &right);
                for bad in sets(width, parity) {
                    // each of the bad columns silently corrupt or gone
                    for gone in sets(bad.len(), bad.len()) {
                        let lost: Vec<usize> = gone.iter().map(|n| bad[*n]).collect();
                        let corrupt: Vec<usize> = bad.iter().copied().filter(|d| !lost.contains(d)).collect();
                        survive(&bench, &map, offset, Txg(5), &right, &corrupt, &lost);
                    }
                }
            }
        }
    }
}

#[test]
fn too_much_damage_is_an_error_and_says_which() {
    let mut bench = TestPool::plain_raidz(1, 4, 12);
    let right = block(6 << 12, 3);
    let map = bench.write(0, Txg(5), &right);
    let mut hurt = TestPool { config: bench.config.clone(), disks: bench.disks.clone(), gone: Vec::new() };
    for disk in [0, 1] {
        hurt.disks[disk].flip(map.rows[0].columns.iter().find(|c| c.child == disk).unwrap().offset, 1);
    }
    let error = read(&hurt.open(), &ReadCx::NORMAL, 0, Txg(5), &right).unwrap_err();
    assert!(matches!(&error, Error::Checksum { faults, .. } if faults.len() == 4), "{error:?}");
    bench.gone = vec![1, 2];
    let error = read(&bench.open(), &ReadCx::NORMAL, 0, Txg(5), &right).unwrap_err();
    assert!(matches!(error, Error::TooFewDevices { .. }), "{error:?}");
}

#[test]
fn a_block_of_smaller_sectors_than_the_vdev_is_read() {
    let mut bench = TestPool::plain_raidz(1, 3, 12);
    let mut padded = block(3 << 12, 9);
    padded[(2 << 12) + 512..].fill(0);
    bench.write(0, Txg(1), &padded);
    bench.gone = vec![1];
    let right = &padded[..(2 << 12) + 512];
    read(&bench.open(), &ReadCx::NORMAL, 0, Txg(1), right).unwrap();
}

#[test]
fn expanded_raidz_reads_through_every_bad_disk() {
    for (parity, width, txgs, births) in
        [(1u64, 4usize, vec![10u64], vec![3u64, 12]), (2, 6, vec![10, 20], vec![3, 15, 25]), (3, 6, vec![10], vec![3])]
    {
        let mut top = raidz(parity, 9, (0..width).map(leaf).collect());
        top.insert(key::RAIDZ_EXPAND_TXGS, txgs);
        let bench = TestPool::new(top, width);
        for birth in births {
            for (offset, sectors) in [(7u64 << 9, 1usize), (7 << 9, 5), (11 << 9, 40), ((1 << 20) + 512, 17)] {
                let mut bench = TestPool { config: bench.config.clone(), disks: bench.disks.clone(), gone: Vec::new() };
                let right = block(sectors << 9, birth + sectors as u64);
                let map = bench.write(offset, Txg(birth), &right);
                for bad in sets(width, parity as usize) {
                    survive(&bench, &map, offset, Txg(birth), &right, &bad, &[]);
                    survive(&bench, &map, offset, Txg(birth), &right, &[], &bad);
                }
            }
        }
    }
}

#[test]
fn each_row_of_an_expanded_block_may_have_its_own_bad_column() {
    for (parity, width) in [(2u64, 6usize), (3, 7)] {
        let mut top = raidz(parity, 9, (0..width).map(leaf).collect());
        top.insert(key::RAIDZ_EXPAND_TXGS, vec![10u64]);
        let mut bench = TestPool::new(top, width);
        let right = block(40 << 9, 3);
        let map = bench.write(0, Txg(3), &right);
        assert!(map.rows.len() > 10);
        for (n, row) in map.rows.iter().enumerate() {
            let column = row.columns.iter().filter(|c| c.size != 0).nth(n % 3).unwrap();
            bench.disks[column.child].flip(column.offset + 3, 1);
        }
        read(&bench.open(), &ReadCx::NORMAL, 0, Txg(3), &right).unwrap();
    }
}

#[test]
fn a_disk_that_was_bad_before_the_expansion_is_found() {
    let mut top = raidz(1, 9, (0..5).map(leaf).collect());
    top.insert(key::RAIDZ_EXPAND_TXGS, vec![10u64]);
    let mut bench = TestPool::new(top, 5);
    let right = block(24 << 9, 77);
    let offset = 4 << 9;
    let map = bench.write(offset, Txg(3), &right);
    // wrong in each sector that was on disk 2 of four
    for column in map.rows.iter().flat_map(|r| &r.columns).filter(|c| c.size != 0) {
        let sector = (column.offset - (4 << 20)) / 512 * 5 + column.child as u64;
        if sector % 4 == 2 {
            bench.disks[column.child].flip(column.offset + 9, 0x80);
        }
    }
    let report = read(&bench.open(), &ReadCx::NORMAL, offset, Txg(3), &right).unwrap();
    assert!(report.repaired.iter().any(|f| f.kind == FaultKind::Checksum));
}

#[test]
fn an_expansion_under_way_is_read_from_both_places() {
    let mut top = raidz(1, 9, (0..4).map(leaf).collect());
    top.insert(key::RAIDZ_EXPANDING, nvlist::Value::Boolean);
    let mut bench = TestPool::new(top, 4);
    let right = block(12 << 9, 5);
    let offset = 6 << 9;
    for (reflow, scratch) in [(0u64, 0u64), (12 << 9, 0), (12 << 9, 1), (64 << 9, 0)] {
        let tree = bench.open();
        tree.set_reflow_offset(0, reflow, scratch);
        let layout = map(&tree, offset, Txg(3), right.len());
        bench.write_with(&layout, &right, &|child, _| vec![child]);
        for gone in [vec![], vec![0], vec![3]] {
            bench.gone = gone;
            let tree = bench.open();
            tree.set_reflow_offset(0, reflow, scratch);
            read(&tree, &ReadCx::NORMAL, offset, Txg(3), &right).unwrap();
            read(&tree, &ReadCx::SCRUB, offset, Txg(3), &right).unwrap();
        }
        bench.gone = Vec::new();
    }
}

#[test]
fn draid_reads_through_every_combination_of_damage() {
    // groups of 4, 5 children of which one is spare room: rows wrap
    for (parity, data, children, spares, groups) in
        [(1u64, 2u64, 4usize, 0u64, 4u64), (1, 3, 5, 1, 1), (2, 2, 6, 1, 5), (3, 1, 6, 1, 5)]
    {
        let top = draid(parity, data, spares, groups, (0..children).map(leaf).collect());
        let mut bench = TestPool::new(top, children);
        let width = parity + data;
        let group_end = width * (16 << 20);
        for (offset, sectors) in [(0u64, 1usize), (width << 12, 7), (group_end - (width << 12), 5 * data as usize)] {
            let right = block(sectors << 12, sectors as u64);
            let map = bench.write(offset, Txg(4), &right);
            let rows = (sectors as u64).div_ceil(data);
            assert_eq!(map.rows.len() > 1, offset + ((rows * width) << 12) > group_end);
            for bad in sets(children, parity as usize) {
                survive(&bench, &map, offset, Txg(4), &right, &bad, &[]);
                survive(&bench, &map, offset, Txg(4), &right, &[], &bad);
            }
        }
    }
}

#[test]
fn two_rows_with_different_bad_disks_are_both_mended() {
    let top = draid(1, 3, 0, 1, (0..4).map(leaf).collect());
    let mut bench = TestPool::new(top, 4);
    let right = block(12 << 12, 8);
    let offset = 4 * (16 << 20) - (8 << 12);
    let map = bench.write(offset, Txg(4), &right);
    assert_eq!(map.rows.len(), 2);
    for a in &map.rows[0].columns {
        for b in &map.rows[1].columns {
            let mut hurt = TestPool { config: bench.config.clone(), disks: bench.disks.clone(), gone: Vec::new() };
            hurt.disks[a.child].flip(a.offset, 1);
            hurt.disks[b.child].flip(b.offset, 1);
            read(&hurt.open(), &ReadCx::NORMAL, offset, Txg(4), &right).unwrap();
        }
    }
}

#[test]
fn zeros_behind_a_draid_row_are_checked() {
    let top = draid(1, 3, 0, 1, (0..4).map(leaf).collect());
    let mut bench = TestPool::new(top, 4);
    let right = block(4 << 12, 8);
    let map = bench.write(0, Txg(4), &right);
    let padded = map.rows[0].columns.iter().find(|c| c.pad != 0).unwrap();
    bench.disks[padded.child].flip(padded.offset + padded.size as u64 + 7, 1);
    let tree = bench.open();
    assert!(read(&tree, &ReadCx::NORMAL, 0, Txg(4), &right).unwrap().is_clean());
    let report = read(&tree, &ReadCx::SCRUB, 0, Txg(4), &right).unwrap();
    assert_eq!(report.repaired.len(), 1);
    assert_eq!(report.repaired[0].leaf.0, LEAF_GUID + padded.child as u64);
}

#[test]
fn a_distributed_spare_stands_in() {
    // child 1 is a spare vdev of disk 1 and distributed spare 0
    let mut spare = NvList::new();
    spare.insert(key::TYPE, "dspare");
    spare.insert(key::ID, 1u64);
    spare.insert(key::GUID, 900u64);
    spare.insert(key::SPARE_ID, 0u64);
    spare.insert(key::TOP_GUID, 5000u64);
    let mut children: Vec<NvList> = (0..5).map(leaf).collect();
    children[1] = group("spare", 1, vec![leaf(1), spare]);
    let top = draid(1, 3, 1, 1, children);
    let mut bench = TestPool::new(top, 5);
    let tree = bench.open();
    let Shape::Striped(s) = &*tree.top(0).unwrap().shape else { panic!() };
    let crate::tree::Geometry::Draid(d) = &s.geometry else { panic!() };
    for row in 0..3u64 {
        let offset = row * 4 * (16 << 20);
        let right = block(9 << 12, row + 1);
        let layout = map(&tree, offset, Txg(4), right.len());
        let home = |child: usize, at: u64| match child {
            // also where the spare room itself is on the failed disk
            1 => vec![1, d.spare_child(0, at).unwrap()],
            other => vec![other],
        };
        bench.write_with(&layout, &right, &home);
        // disk 1 fails, and any other disk as well, unless the spare room is there and in use
        for other in [None, Some(0), Some(2), Some(3), Some(4)] {
            bench.gone = vec![1];
            bench.gone.extend(other);
            let column = layout.rows[0].columns.iter().find(|c| c.child == 1);
            let room = column.map(|c| d.spare_child(0, c.offset).unwrap());
            let both_lost = room == Some(1) || (room.is_some() && room == other);
            let is_column = |disk| layout.rows[0].columns.iter().any(|c| Some(c.child) == disk && c.size != 0);
            if both_lost && (other != room && is_column(other)) {
                continue;
            }
            read(&bench.open(), &ReadCx::NORMAL, offset, Txg(4), &right)
                .unwrap_or_else(|e| panic!("{row} {other:?}: {e}"));
        }
    }
}

#[test]
fn a_leaf_that_missed_the_txg_is_the_last_resort() {
    let mut bench = TestPool::plain_raidz(1, 3, 12);
    let right = block(4 << 12, 21);
    let map = bench.write(0, Txg(50), &right);
    // disk 1 missed txg 50 and holds noise: no error is counted
    let column = map.rows[0].columns.iter().find(|c| c.child == 1).unwrap();
    bench.disks[1].flip(column.offset, 1);
    let tree = bench.open();
    tree.set_dtl(Guid(LEAF_GUID + 1), missed(40, 60));
    assert!(read(&tree, &ReadCx::NORMAL, 0, Txg(50), &right).unwrap().is_clean());
    assert_eq!(tree.leaf(Guid(LEAF_GUID + 1)).unwrap().errors.checksum.get(), 0);
    // it did not really miss it, and another disk is gone
    bench.disks[1].flip(column.offset, 1);
    bench.gone = vec![2];
    let tree = bench.open();
    tree.set_dtl(Guid(LEAF_GUID + 1), missed(40, 60));
    read(&tree, &ReadCx::NORMAL, 0, Txg(50), &right).unwrap();
}

#[test]
fn the_sides_of_a_replacing_column_are_all_tried() {
    let mut children: Vec<NvList> = (0..3).map(leaf).collect();
    children[1] = group("replacing", 1, vec![leaf(1), leaf(3)]);
    let mut bench = TestPool::new(raidz(1, 12, children), 4);
    let right = block(4 << 12, 4);
    let tree = bench.open();
    let layout = map(&tree, 0, Txg(1), right.len());
    bench.write_with(&layout, &right, &|child, _| if child == 1 { vec![1, 3] } else { vec![child] });
    let at = |disk: usize, bench: &mut TestPool| {
        let child = if disk == 3 { 1 } else { disk };
        let offset = layout.rows[0].columns.iter().find(|c| c.child == child).unwrap().offset;
        bench.disks[disk].flip(offset, 4);
    };
    // the first side of the pair and another column are wrong: only the second side helps
    for other in [0, 2] {
        at(1, &mut bench);
        at(other, &mut bench);
        let report = read(&bench.open(), &ReadCx::SCRUB, 0, Txg(1), &right).unwrap();
        assert!(report.repaired.iter().any(|f| f.leaf.0 == LEAF_GUID + other as u64));
        at(1, &mut bench);
        at(other, &mut bench);
    }
    at(3, &mut bench);
    let report = read(&bench.open(), &ReadCx::SCRUB, 0, Txg(1), &right).unwrap();
    assert_eq!(report.repaired.iter().map(|f| f.leaf.0).collect::<Vec<_>>(), [LEAF_GUID + 3]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_raidz_with_any_covered_damage_is_read(
        parity in 1u64..=3, extra in 1usize..=12, sectors in 1usize..=70, ashift in 9u64..=13, place in 0u64..40, seed: u64,
        damage in proptest::collection::vec((0usize..255, any::<bool>()), 3),
    ) {
        let width = parity as usize + extra;
        let mut bench = TestPool::new(raidz(parity, ashift, (0..width).map(leaf).collect()), width);
        let right = block(sectors << ashift, seed);
        let offset = place << ashift;
        let map = bench.write(offset, Txg(1), &right);
        let mut bad: Vec<(usize, bool)> = damage.iter().take(parity as usize).map(|(d, gone)| (d % width, *gone)).collect();
        bad.sort_unstable();
        bad.dedup_by_key(|(d, _)| *d);
        let pick = |wanted: bool| bad.iter().filter(|(_, gone)| *gone == wanted).map(|(d, _)| *d).collect::<Vec<_>>();
        survive(&bench, &map, offset, Txg(1), &right, &pick(false), &pick(true));
    }
}
