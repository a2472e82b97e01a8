//! The counts of vdevs that stand between leaves and a top-level vdev.

use super::*;

/// The errors of vdevs, by guid.
fn errors<const N: usize>(tree: &VdevTree, guids: [u64; N]) -> [(u64, u64, u64); N] {
    guids.map(|guid| {
        let errors = tree.errors_of(Guid(guid));
        (errors.read, errors.write, errors.checksum)
    })
}

/// The offset of the first block of a top-level vdev on its leaves.
const FRONT: u64 = 4 << 20;

#[test]
fn a_spare_below_a_mirror_counts_what_neither_side_could_do() {
    let spare = group("spare", 7, vec![leaf(0), leaf(1)]);
    let mut top = group("mirror", 0, vec![spare, leaf(2)]);
    top.insert(key::ASHIFT, 9u64);
    let bench = Bench::new(vec![top], 3);
    let tree = bench.without(&[]);
    let log = PoolErrors::default();
    log.follow(&tree);
    let blocks = lay(&tree, 0, &[4096], Txg(7));
    write(&tree, Txg(7), &blocks).unwrap();
    // the top-level vdev, the spare, leaves
    let all = || errors(&tree, [5000, 5007, 100, 101, 102]);
    let unreadable = |n: usize, is: bool| bench.disks[n].unreadable.store(is, Ordering::Relaxed);
    unreadable(0, true);
    read(&tree, ReadCx::SCRUB, Txg(7), &blocks).unwrap();
    assert_eq!(all(), [(0, 0, 0), (0, 0, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0)]);
    unreadable(1, true);
    read(&tree, ReadCx::SCRUB, Txg(7), &blocks).unwrap();
    assert_eq!(all(), [(0, 0, 0), (1, 0, 0), (2, 0, 0), (1, 0, 0), (0, 0, 0)]);
    unreadable(2, true);
    read(&tree, ReadCx::NORMAL, Txg(7), &blocks).unwrap_err();
    assert_eq!(all(), [(1, 0, 0), (2, 0, 0), (3, 0, 0), (2, 0, 0), (1, 0, 0)]);
    [0, 1, 2].iter().for_each(|n| unreadable(*n, false));
    // wrong bytes are those of leaves: their copies have a checksum
    bench.flip(0, FRONT + 7);
    bench.flip(1, FRONT + 7);
    read(&tree, ReadCx::SCRUB, Txg(7), &blocks).unwrap();
    assert_eq!(all(), [(1, 0, 0), (2, 0, 0), (3, 0, 1), (2, 0, 1), (1, 0, 0)]);
    // nor is a leaf that is not there one that failed
    bench.disks[1].broken.store(true, Ordering::Relaxed);
    write(&tree, Txg(8), &blocks).unwrap();
    assert_eq!(all()[1], (2, 0, 0));
    bench.disks[0].broken.store(true, Ordering::Relaxed);
    write(&tree, Txg(9), &blocks).unwrap();
    // the first one was given up at once, and is not written any more
    assert_eq!(all(), [(1, 0, 0), (2, 1, 0), (3, 1, 1), (2, 1, 1), (1, 0, 0)]);
    assert_eq!(log.figures()[&Guid(5007)], VdevErrors { read: 2, write: 1, checksum: 0 });
    let status = tree.status();
    assert!(status.walk().any(|vdev| vdev.guid == Guid(5007) && vdev.errors.read == 2));
}

#[test]
fn a_replacing_below_a_raidz_counts_wrong_bytes_too() {
    let replacing = group("replacing", 7, vec![leaf(0), leaf(1)]);
    let bench = Bench::new(vec![raidz(1, 9, vec![replacing, leaf(2), leaf(3)])], 4);
    let tree = bench.without(&[]);
    let blocks = lay(&tree, 0, &[4096], Txg(7));
    write(&tree, Txg(7), &blocks).unwrap();
    let all = || errors(&tree, [5000, 5007, 100, 101, 102]);
    // column 0 is parity: a scrub reads it
    bench.flip(0, FRONT + 7);
    bench.flip(1, FRONT + 7);
    read(&tree, ReadCx::SCRUB, Txg(7), &blocks).unwrap();
    let [top, child, one, other, third] = all();
    assert_eq!([top, one, other, third], [(0, 0, 0); 4]);
    assert!(child.2 > 0, "{child:?}");
    [0, 1].iter().for_each(|n| bench.disks[*n].unreadable.store(true, Ordering::Relaxed));
    read(&tree, ReadCx::SCRUB, Txg(7), &blocks).unwrap();
    assert_eq!(all(), [(0, 0, 0), (1, 0, child.2), (1, 0, 0), (1, 0, 0), (0, 0, 0)]);
    [0, 1].iter().for_each(|n| bench.disks[*n].broken.store(true, Ordering::Relaxed));
    write(&tree, Txg(8), &blocks).unwrap();
    assert_eq!(all(), [(0, 0, 0), (1, 1, child.2), (1, 1, 0), (1, 1, 0), (0, 0, 0)]);
}

#[test]
fn a_distributed_spare_counts_what_its_room_could_not_give() {
    let mut dspare = leaf(30);
    dspare.insert(key::TYPE, "dspare");
    dspare.insert(key::SPARE_ID, 0u64);
    dspare.insert(key::TOP_GUID, 5000u64);
    let mut children: Vec<NvList> = (0..5).map(leaf).collect();
    children[0] = group("spare", 7, vec![leaf(0), dspare]);
    let bench = Bench::new(vec![draid(1, 3, 1, 1, children)], 5);
    let tree = bench.without(&[0]);
    // over several rows of the permutation
    let blocks: Vec<(u64, Vec<u8>)> = (0..16).map(|row| (row * 4 * (16 << 20), block(9 << 12, row + 1))).collect();
    write(&tree, Txg(7), &blocks).unwrap();
    bench.disks[3].unreadable.store(true, Ordering::Relaxed);
    for block in &blocks {
        // the disk has columns of its own and some that the spare took over: a row may have lost two
        let _read = read(&tree, ReadCx::SCRUB, Txg(7), std::slice::from_ref(block));
    }
    let [spare, distributed, gone, disk] = errors(&tree, [5007, 130, 100, 103]);
    assert_eq!(gone, (0, 0, 0));
    assert!(distributed.0 > 0 && distributed.0 < disk.0, "{distributed:?} {disk:?}");
    assert_eq!(spare.0, distributed.0);
}
