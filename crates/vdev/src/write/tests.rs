#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base::{Guid, Txg};
use nvlist::NvList;
use ondisk::Dva;
use ondisk::indirect::{IndirectMapping, MappingEntry};
use ondisk::label::key;
use proptest::prelude::*;

use crate::test_pool::{Disk, LEAF_GUID, TestPool, block, draid, group, indirect, leaf, mirror, missed, raidz};
use crate::*;

mod count;

/// A disk that can be written, counts how often, and can be told to fail.
#[derive(Debug, Default)]
struct Watched {
    disk: Mutex<Disk>,
    writes: AtomicUsize,
    broken: AtomicBool,
    unreadable: AtomicBool,
    bad: Mutex<Vec<Range<u64>>>,
    /// Flushes that began; they end when this is false.
    flushes: AtomicUsize,
    slow: AtomicBool,
    /// Each write takes so long.
    write_ms: AtomicUsize,
    /// Writes that are under way, and the most that were at a time.
    under_way: AtomicUsize,
    most: AtomicUsize,
}

impl Device for Watched {
    fn size(&self) -> u64 {
        1 << 30
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match self.unreadable.load(Ordering::Relaxed) {
            true => Err(io::Error::other("unreadable")),
            false => self.disk.lock().unwrap().read_at(offset, buf),
        }
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_vectored_at(offset, &[io::IoSlice::new(data)])
    }
    fn write_vectored_at(&self, offset: u64, data: &[io::IoSlice<'_>]) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.most.fetch_max(self.under_way.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(self.write_ms.load(Ordering::Relaxed) as u64));
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        let end = offset + data.iter().map(|d| d.len() as u64).sum::<u64>();
        let hit = self.bad.lock().unwrap().iter().any(|r| r.start < end && offset < r.end);
        if hit || self.broken.load(Ordering::Relaxed) {
            return Err(io::Error::other("broken"));
        }
        let mut at = offset;
        for piece in data {
            self.disk.lock().unwrap().write(at, piece);
            at += piece.len() as u64;
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        while self.slow.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn name(&self) -> String {
        "watched".to_owned()
    }
}

struct Bench {
    config: VdevConfig,
    disks: Vec<Arc<Watched>>,
}

impl Bench {
    fn new(tops: Vec<NvList>, disks: usize) -> Bench {
        let pool = TestPool::with_tops(tops, disks);
        let watch = |disk: Disk| Arc::new(Watched { disk: Mutex::new(disk), ..Watched::default() });
        Bench { config: VdevConfig::parse(&pool.config).unwrap(), disks: pool.disks.into_iter().map(watch).collect() }
    }

    fn without(&self, gone: &[usize]) -> VdevTree {
        let find = |guid: Guid| {
            let n = (guid.0 - LEAF_GUID) as usize;
            (!gone.contains(&n)).then(|| Arc::clone(&self.disks[n]) as Arc<dyn Device>)
        };
        VdevTree::open(&self.config, &find).unwrap()
    }

    fn writes(&self) -> Vec<usize> {
        self.disks.iter().map(|d| d.writes.swap(0, Ordering::Relaxed)).collect()
    }

    fn flip(&self, disk: usize, at: u64) {
        self.disks[disk].disk.lock().unwrap().flip(at, 0x55);
    }
}

fn dva(offset: u64) -> Dva {
    Dva::new(0, offset, 512, false)
}

/// Blocks of these sizes, one behind the other as they would be allocated from `start` on.
fn lay(tree: &VdevTree, start: u64, sizes: &[usize], txg: Txg) -> Vec<(u64, Vec<u8>)> {
    let top = tree.top(0).unwrap();
    let mut at = start;
    (1..)
        .zip(sizes)
        .map(|(seed, size)| {
            let here = at;
            at += top.psize_to_asize_at(*size as u64, txg);
            (here, block(*size, seed * 7919))
        })
        .collect()
}

fn write(tree: &VdevTree, txg: Txg, blocks: &[(u64, Vec<u8>)]) -> Result<WriteReport, Error> {
    let blocks: Vec<BlockWrite<'_>> = blocks.iter().map(|(at, data)| BlockWrite { dva: dva(*at), data }).collect();
    tree.write(txg, &blocks)
}

fn read(tree: &VdevTree, cx: ReadCx<'_>, txg: Txg, blocks: &[(u64, Vec<u8>)]) -> Result<Vec<ReadReport>, Error> {
    let one = |(at, right): &(u64, Vec<u8>)| {
        let mut buf = vec![0; right.len()];
        let report = tree.read(dva(*at), right.len() as u64, txg, &cx, &mut buf, &mut |b| b == &right[..])?;
        assert!(&buf == right);
        Ok(report)
    };
    blocks.iter().map(one).collect()
}

const HEAL_SCRUB: ReadCx<'static> = ReadCx { heal: true, ..ReadCx::SCRUB };

/// A shape over disks: the top-level vdev, its disks, how many may be gone.
fn shape(which: usize, parity: u64, extra: usize, ashift: u64) -> (NvList, usize, usize) {
    let with_ashift = |mut top: NvList| {
        top.insert(key::ASHIFT, ashift);
        top
    };
    let p = parity as usize;
    match which {
        0 => (with_ashift(leaf(0)), 1, 0),
        1 => (with_ashift(mirror(0, 0..2 + extra)), 2 + extra, 1 + extra),
        2 => (raidz(parity, ashift, (0..p + 1 + extra).map(leaf).collect()), p + 1 + extra, p),
        3 => {
            // expanded twice, the second time after what is written
            let width = p + 3 + extra;
            let mut top = raidz(parity, ashift, (0..width).map(leaf).collect());
            top.insert(key::RAIDZ_EXPAND_TXGS, vec![5u64, 90]);
            (top, width, p)
        }
        4 => {
            // one disk of a raidz is being replaced
            let width = p + 2 + extra;
            let mut children: Vec<NvList> = (0..width).map(leaf).collect();
            children[1] = group("replacing", 1, vec![leaf(1), leaf(width)]);
            (raidz(parity, ashift, children), width + 1, p)
        }
        _ => {
            let (data, spares) = (1 + extra as u64, 1);
            let width = data + parity + spares + 1;
            let disks = width - spares;
            let groups = (1..).find(|g| (g * (data + parity)).is_multiple_of(disks)).unwrap();
            let top = draid(parity, data, spares, groups, (0..width as usize).map(leaf).collect());
            (with_ashift(top), width as usize, p)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_with_any_covered_set_of_leaves_gone(
        which in 0usize..6,
        parity in 1u64..4,
        extra in 0usize..4,
        ashift in prop::sample::select(vec![9u64, 12, 13]),
        sizes in prop::collection::vec(1usize..40, 1..7),
        start in 0u64..600,
        pick in any::<u64>(),
    ) {
        let (top, disks, may_go) = shape(which, parity, extra, ashift);
        let bench = Bench::new(vec![top], disks);
        let tree = bench.without(&[]);
        let txg = Txg(50);
        let sizes: Vec<usize> = sizes.into_iter().map(|s| s * 512).collect();
        // a dRAID allocates whole rows
        let unit = tree.top(0).unwrap().psize_to_asize(512);
        let blocks = lay(&tree, start * unit, &sizes, txg);
        // any order
        let mut shuffled = blocks.clone();
        let turn = pick as usize % blocks.len();
        shuffled.rotate_left(turn);
        let report = write(&tree, txg, &shuffled).unwrap();
        prop_assert!(report.faults.is_empty());
        prop_assert!(report.bytes >= sizes.iter().sum::<usize>() as u64);
        // all parity, all copies, all padding
        for report in read(&tree, ReadCx::SCRUB, txg, &blocks).unwrap() {
            prop_assert!(report.is_clean());
        }
        let mut gone = BTreeSet::new();
        let mut n = pick;
        while gone.len() < may_go {
            gone.insert((n % disks as u64) as usize);
            n = n / 7 + 1;
            if gone.contains(&((n % disks as u64) as usize)) {
                n = n.wrapping_add(pick % 3 + 1);
            }
        }
        let gone: Vec<usize> = gone.into_iter().collect();
        read(&bench.without(&gone), ReadCx::NORMAL, txg, &blocks).unwrap();
        // written with them gone, read with them back: what they hold is old, and known to be
        let degraded = bench.without(&gone);
        let newer: Vec<(u64, Vec<u8>)> = blocks.iter().map(|(at, b)| (*at, block(b.len(), pick | 1))).collect();
        let report = write(&degraded, txg, &newer).unwrap();
        // a short block does not touch all
        prop_assert!(report.faults.len() <= gone.len());
        let dtls = degraded.dirty_dtls();
        prop_assert_eq!(dtls.len(), report.faults.len());
        prop_assert!(degraded.dirty_dtls().is_empty());
        let tree = bench.without(&[]);
        for (leaf, ranges) in dtls {
            tree.set_dtl(leaf, ranges);
        }
        read(&tree, ReadCx::NORMAL, txg, &newer).unwrap();
        // a scrub that repairs is a resilver
        read(&tree, HEAL_SCRUB, txg, &newer).unwrap();
        for report in read(&bench.without(&[]), ReadCx::SCRUB, txg, &newer).unwrap() {
            prop_assert!(report.is_clean(), "{:?}", report);
        }
    }
}

#[test]
fn neighbours_go_out_in_one_write() {
    let plain = {
        let mut top = leaf(0);
        top.insert(key::ASHIFT, 12u64);
        Bench::new(vec![top], 1)
    };
    let tree = plain.without(&[]);
    let blocks = lay(&tree, 0, &[4096; 256], Txg(1));
    let report = write(&tree, Txg(1), &blocks).unwrap();
    assert_eq!((report.writes, report.bytes), (1, 1 << 20));
    assert_eq!(plain.writes(), [1]);
    // blocks that end within a sector are joined too, and what is larger than the limit is cut
    let blocks = lay(&tree, 0, &[1536; 300], Txg(1));
    assert_eq!(write(&tree, Txg(1), &blocks).unwrap().writes, 2);
    let blocks = lay(&tree, 0, &[3 << 20, 128 << 10], Txg(1));
    assert_eq!(write(&tree, Txg(1), &blocks).unwrap().writes, 2);

    let both = Bench::new(vec![mirror(0, 0..2)], 2);
    let blocks = lay(&both.without(&[]), 0, &[128 << 10; 32], Txg(1));
    write(&both.without(&[]), Txg(1), &blocks).unwrap();
    assert_eq!(both.writes(), [4, 4]);

    // three data sectors and two of parity, and one that is skipped: zeros join what is on both sides of it
    let z1 = Bench::new(vec![raidz(1, 12, (0..3).map(leaf).collect())], 3);
    let blocks = lay(&z1.without(&[]), 0, &[12 << 10; 60], Txg(1));
    write(&z1.without(&[]), Txg(1), &blocks).unwrap();
    assert_eq!(z1.writes(), [1, 1, 1]);
    // one alone skips it
    let before = z1.disks[2].disk.lock().unwrap().clone();
    let alone = lay(&z1.without(&[]), 1 << 24, &[12 << 10], Txg(1));
    let report = write(&z1.without(&[]), Txg(1), &alone).unwrap();
    assert_eq!(report.bytes, 5 << 12);
    assert!(before.size() == 1 << 30);

    // as many as there are threads for
    let blocks = lay(&both.without(&[]), 0, &[16 << 10; 512], Txg(1));
    let report = write(&both.without(&[]), Txg(1), &blocks).unwrap();
    assert_eq!((report.writes, report.bytes), (16, 16 << 20));
    read(&both.without(&[]), ReadCx::SCRUB, Txg(1), &blocks).unwrap();
}

#[test]
fn a_leaf_whose_writes_take_long_has_several_at_a_time() {
    let bench = Bench::new(vec![mirror(0, 0..2)], 2);
    let [slow, _] = &bench.disks[..] else { panic!("two") };
    slow.write_ms.store(10, Ordering::Relaxed);
    let tree = bench.without(&[]);
    let blocks = lay(&tree, 0, &[128 << 10; 96], Txg(1));
    assert_eq!(write(&tree, Txg(1), &blocks).unwrap().writes, 24);
    assert_eq!(bench.writes(), [12, 12]);
    let most = slow.most.load(Ordering::Relaxed);
    assert!((2..=8).contains(&most) || base::tasks::width() == 1, "{most}");
    read(&tree, ReadCx::SCRUB, Txg(1), &blocks).unwrap();
    // what fails of them is told in order
    let labels = 4 << 20;
    for at in [9u64 << 20, 3 << 20] {
        slow.bad.lock().unwrap().push(labels + at..labels + at + 512);
    }
    let report = write(&tree, Txg(1), &blocks).unwrap();
    let [fault] = &report.faults[..] else { panic!("{report:?}") };
    assert_eq!((fault.offset, fault.len), (labels + (3 << 20), 256 << 10));
}

#[test]
fn a_leaf_that_fails_is_noted_and_too_many_are_an_error() {
    let bench = Bench::new(vec![raidz(2, 9, (0..6).map(leaf).collect())], 6);
    let tree = bench.without(&[4]);
    bench.disks[1].broken.store(true, Ordering::Relaxed);
    let blocks = lay(&tree, 0, &[8192, 512, 20480], Txg(7));
    let report = write(&tree, Txg(7), &blocks).unwrap();
    let kinds: Vec<_> = report.faults.iter().map(|f| (f.leaf.0 - LEAF_GUID, f.kind)).collect();
    assert_eq!(kinds, [(1, FaultKind::Io), (4, FaultKind::Missing)]);
    assert!(tree.leaves()[1].errors.write.get() >= 1);
    assert_eq!(tree.leaves()[4].errors.write.get(), 0);
    assert_eq!(tree.dirty_dtls(), [(Guid(101), missed(7, 8)), (Guid(104), missed(7, 8))]);
    read(&tree, ReadCx::NORMAL, Txg(7), &blocks).unwrap();
    // a third one, for one block only
    bench.disks[0].bad.lock().unwrap().push((4 << 20)..(4 << 20) + 512);
    let error = write(&tree, Txg(8), &blocks).unwrap_err();
    assert!(matches!(&error, Error::WriteFailed { vdev: 0, offset: 0, faults, .. } if faults.len() == 3), "{error:?}");
    read(&tree, ReadCx::NORMAL, Txg(8), &blocks[1..]).unwrap();
    assert_eq!(tree.leaves()[0].dtl(), missed(8, 9));
    // nothing left at all
    let plain = Bench::new(vec![mirror(0, 0..2)], 2);
    assert!(matches!(write(&plain.without(&[0, 1]), Txg(1), &blocks), Err(Error::WriteFailed { .. })));
    assert!(write(&plain.without(&[0]), Txg(1), &blocks).is_ok());
    let nowhere = [(0, vec![0; 100])];
    assert!(matches!(write(&plain.without(&[]), Txg(1), &nowhere), Err(Error::BadAddress { .. })));
    let gone = BlockWrite { dva: Dva::new(3, 0, 512, false), data: &[0; 512] };
    assert!(matches!(plain.without(&[]).write(Txg(1), &[gone]), Err(Error::NoVdev { id: 3 })));
    assert!(
        TestPool::new(mirror(0, 0..2), 2).open().write(Txg(1), &[BlockWrite { dva: dva(0), data: &[0; 512] }]).is_err()
    );
}

#[test]
fn what_all_devices_together_fail_at_counts_for_their_vdev() {
    let bench = Bench::new(vec![mirror(0, 0..2)], 2);
    let tree = bench.without(&[]);
    let log = PoolErrors::default();
    log.follow(&tree);
    // the mirror, its sides
    let errors = || {
        let status = tree.status();
        assert!(status.errors.is_none());
        let told = status.walk().skip(1).map(|vdev| (vdev.errors.read, vdev.errors.write, vdev.errors.checksum));
        told.collect::<Vec<_>>()
    };
    let blocks = lay(&tree, 0, &[4096], Txg(7));
    // one bad sector: a disk that takes nothing at all is given up
    bench.disks[0].bad.lock().unwrap().push((4 << 20)..(4 << 20) + 512);
    write(&tree, Txg(7), &blocks).unwrap();
    assert_eq!(errors(), [(0, 0, 0), (0, 1, 0), (0, 0, 0)]);
    bench.disks[0].bad.lock().unwrap().clear();
    write(&tree, Txg(8), &blocks).unwrap();
    bench.flip(0, (4 << 20) + 7);
    bench.disks[1].unreadable.store(true, Ordering::Relaxed);
    read(&tree, ReadCx::NORMAL, Txg(8), &blocks).unwrap_err();
    assert_eq!(errors(), [(1, 0, 0), (0, 1, 1), (1, 0, 0)]);
    // wrong bytes are the fault of who holds them, and what was counted does not count again
    bench.disks[1].unreadable.store(false, Ordering::Relaxed);
    bench.flip(1, (4 << 20) + 7);
    read(&tree, ReadCx { counts: false, ..ReadCx::SCRUB }, Txg(8), &blocks).unwrap_err();
    assert_eq!(errors(), [(1, 0, 0), (0, 1, 1), (1, 0, 0)]);
    read(&tree, ReadCx::NORMAL, Txg(8), &blocks).unwrap_err();
    assert_eq!(errors(), [(1, 0, 0), (0, 1, 2), (1, 0, 1)]);
    bench.disks.iter().for_each(|disk| disk.broken.store(true, Ordering::Relaxed));
    write(&tree, Txg(9), &blocks).unwrap_err();
    assert_eq!(errors(), [(1, 1, 0), (0, 2, 2), (1, 1, 1)]);
    assert_eq!(log.figures().get(&Guid(LEAF_GUID)), Some(&VdevErrors { read: 0, write: 2, checksum: 2 }));
    assert!(log.may_grow());
    drop(tree);
    assert!(!log.may_grow());
}

#[test]
fn what_is_found_wrong_is_repaired() {
    let txg = Txg(50);
    for (which, parity, extra) in [(1, 1, 1), (2, 1, 2), (2, 3, 2), (3, 2, 1), (4, 1, 1), (5, 2, 2)] {
        let (top, disks, may_go) = shape(which, parity, extra, 12);
        let bench = Bench::new(vec![top], disks);
        let tree = bench.without(&[]);
        let blocks = lay(&tree, 0, &[24 << 10, 4096, 8192], txg);
        write(&tree, txg, &blocks).unwrap();
        for heal in [ReadCx::HEALING, HEAL_SCRUB] {
            for first in 0..disks {
                let bad: BTreeSet<usize> = (first..first + may_go.min(2)).map(|d| d % disks).collect();
                for disk in &bad {
                    for at in ((4 << 20)..(4 << 20) + (64 << 10)).step_by(2048) {
                        bench.flip(*disk, at);
                    }
                }
                let reports = read(&tree, heal, txg, &blocks).unwrap();
                for report in &reports {
                    assert_eq!(report.healed.len(), report.repaired.len(), "{which} {parity} {report:?}");
                }
                let healed = read(&tree, HEAL_SCRUB, txg, &blocks).unwrap();
                assert!(
                    heal == ReadCx::HEALING || healed.iter().all(ReadReport::is_clean),
                    "{which} {parity} {healed:?}"
                );
                for report in read(&bench.without(&[]), ReadCx::SCRUB, txg, &blocks).unwrap() {
                    assert!(report.is_clean(), "{which} {parity} {first} {report:?}");
                }
            }
        }
    }
}

impl PartialEq for ReadCx<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.mode == other.mode && self.heal == other.heal
    }
}

#[test]
fn a_block_in_pieces_is_repaired_piece_by_piece() {
    let bench = Bench::new(vec![indirect(0), mirror(1, 0..2)], 2);
    let tree = bench.without(&[]);
    let entry = |src: u64, dst: u64, len: u64| MappingEntry { src_word: src >> 9, dst: Dva::new(1, dst, len, false) };
    tree.set_indirect(0, IndirectMapping::new(vec![entry(0, 0x8000, 0x400), entry(0x400, 0x2000, 0x400)]).unwrap());
    let right = block(0x800, 3);
    let at = |offset: u64, data| BlockWrite { dva: Dva::new(1, offset, 512, false), data };
    tree.write(Txg(1), &[at(0x8000, &right[..0x400]), at(0x2000, &right[0x400..])]).unwrap();
    bench.flip(0, (4 << 20) + 0x8000);
    bench.flip(1, (4 << 20) + 0x2000);
    let blocks = [(0, right)];
    let reports = read(&tree, HEAL_SCRUB, Txg(1), &blocks).unwrap();
    assert_eq!(reports[0].healed.len(), 2);
    assert!(read(&tree, ReadCx::SCRUB, Txg(1), &blocks).unwrap()[0].is_clean());
    assert!(matches!(write(&tree, Txg(1), &blocks), Err(Error::NoVdev { id: 0 })));
    tree.repair(Guid(LEAF_GUID), 100, b"xyz").unwrap();
    assert!(tree.repair(Guid(1), 100, b"xyz").is_err());
}

#[test]
fn a_side_that_is_striped_is_written_anew() {
    let side = |n: usize| {
        let mut side = raidz(1, 9, (n * 3..n * 3 + 3).map(leaf).collect());
        side.insert(key::ID, n as u64);
        side
    };
    let mut top = group("mirror", 0, vec![side(0), side(1)]);
    top.insert(key::ASHIFT, 9u64);
    let bench = Bench::new(vec![top], 6);
    let tree = bench.without(&[]);
    let blocks = lay(&tree, 0, &[4096, 1536], Txg(1));
    write(&tree, Txg(1), &blocks).unwrap();
    for disk in [0, 1, 5] {
        for at in ((4 << 20)..(4 << 20) + 4096).step_by(256) {
            bench.flip(disk, at);
        }
    }
    let reports = read(&tree, HEAL_SCRUB, Txg(1), &blocks).unwrap();
    assert!(reports.iter().all(|r| !r.healed.is_empty()));
    for report in read(&bench.without(&[]), ReadCx::SCRUB, Txg(1), &blocks).unwrap() {
        assert!(report.is_clean(), "{report:?}");
    }
    // both sides take a block, and one is enough
    write(&bench.without(&[0, 1]), Txg(2), &blocks).unwrap();
    assert!(write(&bench.without(&[0, 1, 3, 4]), Txg(2), &blocks).is_err());
}

#[test]
fn only_the_sides_that_were_written_count_as_healed() {
    let side = |n: usize| {
        let mut side = raidz(1, 9, (n * 3..n * 3 + 3).map(leaf).collect());
        side.insert(key::ID, n as u64);
        side
    };
    let mut top = group("mirror", 0, (0..3).map(side).collect());
    top.insert(key::ASHIFT, 9u64);
    let bench = Bench::new(vec![top], 9);
    let tree = bench.without(&[]);
    let blocks = lay(&tree, 0, &[4096], Txg(1));
    write(&tree, Txg(1), &blocks).unwrap();
    for disk in [0, 1, 3, 4] {
        for at in ((4 << 20)..(4 << 20) + 4096).step_by(256) {
            bench.flip(disk, at);
        }
    }
    bench.disks[0].broken.store(true, Ordering::Relaxed);
    let reports = read(&tree, HEAL_SCRUB, Txg(1), &blocks).unwrap();
    let healed: BTreeSet<u64> = reports[0].healed.iter().map(|fault| fault.leaf.0 - LEAF_GUID).collect();
    assert_eq!(healed, BTreeSet::from([3, 4, 5]));
    assert!(tree.unhealed() > 0 && tree.dirty_dtls().is_empty());
    assert!(read(&bench.without(&[0, 1, 2, 6, 7, 8]), ReadCx::SCRUB, Txg(1), &blocks).unwrap()[0].is_clean());
}

#[test]
fn a_repair_that_fails_counts_for_its_leaf_when_others_have_gone() {
    let tops = |first| vec![first, mirror(1, 2..4)];
    let bench = Bench::new(tops(mirror(0, 0..2)), 4);
    let after = VdevConfig::parse(&TestPool::with_tops(tops(indirect(0)), 4).config).unwrap();
    let tree = bench.without(&[]).changed(&after, &Newcomers::default()).unwrap();
    bench.disks[3].broken.store(true, Ordering::Relaxed);
    let (dva, data) = (Dva::new(1, 0, 512, false), block(512, 1));
    assert!(!tree.rewrite(Txg(1), &BlockWrite { dva, data: &data }));
    assert_eq!(tree.leaves().iter().map(|leaf| leaf.unhealed()).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn only_the_devices_that_were_named_are_flushed_and_a_flush_waits_for_the_one_under_way() {
    let top = |n| {
        let mut top = leaf(n);
        top.insert(key::ASHIFT, 9u64);
        top
    };
    let bench = Bench::new(vec![top(0), top(1)], 2);
    let tree = bench.without(&[]);
    let on = |vdev| Dva::new(vdev, 0, 512, false);
    let write = |vdev| tree.write(Txg(5), &[BlockWrite { dva: on(vdev), data: &[1; 512] }]).unwrap();
    let flushes = || bench.disks.iter().map(|disk| disk.flushes.load(Ordering::Relaxed)).collect::<Vec<_>>();
    (0..2).for_each(|vdev| drop(write(vdev)));
    let flush = |vdev| {
        let written = Written { tops: BTreeSet::from([vdev]), births: BTreeSet::from([Txg(5)]), all: false };
        tree.flush_written(&written, &tree.flushes()).unwrap();
    };
    flush(1);
    assert_eq!(flushes(), [0, 1]);
    bench.disks[0].slow.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| flush(0));
        while flushes() != [1, 1] {
            std::thread::yield_now();
        }
        // what was written is not on stable storage yet, though somebody else sees to it
        let second = scope.spawn(|| tree.flush().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!first.is_finished() && !second.is_finished());
        bench.disks[0].slow.store(false, Ordering::Relaxed);
    });
    assert_eq!(flushes(), [1, 1], "one flush was enough for both");
}
