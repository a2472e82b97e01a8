#![allow(clippy::unwrap_used)]
//! Mirrors, removed devices, health, windows, configurations that cannot be.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Guid, Txg};
use nvlist::NvList;
use ondisk::Dva;
use ondisk::indirect::{IndirectMapping, MappingEntry};
use ondisk::label::key;

use crate::test_pool::{LEAF_GUID, TestPool, block, draid, group, indirect, leaf, mirror, missed, raidz, read};
use crate::testing::{Call, Tapped};
use crate::*;

const START: u64 = 4 << 20;

fn wrong(report: &ReadReport) -> Vec<u64> {
    report.repaired.iter().map(|f| f.leaf.0 - LEAF_GUID).collect()
}

#[test]
fn a_mirror_reads_from_any_good_side_and_blames_the_bad() {
    let mut pool = TestPool::new(mirror(0, 0..3), 3);
    let right = block(4096, 7);
    for disk in &mut pool.disks {
        disk.write(START + 512, &right);
    }
    pool.disks[0].flip(START + 600, 1);
    pool.disks[1].flip(START + 512, 1);
    let tree = pool.open();
    assert_eq!(wrong(&read(&tree, &ReadCx::NORMAL, 512, Txg(1), &right).unwrap()), [0, 1]);
    assert_eq!(tree.leaf(Guid(LEAF_GUID)).unwrap().errors.checksum.get(), 1);
    let report = read(&tree, &ReadCx::SCRUB, 512, Txg(1), &right).unwrap();
    assert_eq!((wrong(&report), report.copies_checked), (vec![0, 1], 1));
    // the bad ones missed the txg: they are not asked, and not blamed
    tree.set_dtl(Guid(LEAF_GUID), missed(1, 2));
    tree.set_dtl(Guid(LEAF_GUID + 1), missed(0, 9));
    assert!(read(&tree, &ReadCx::NORMAL, 512, Txg(1), &right).unwrap().is_clean());
    let report = read(&tree, &ReadCx::SCRUB, 512, Txg(1), &right).unwrap();
    assert!(report.repaired.iter().all(|f| f.kind == FaultKind::Missing));
    pool.disks[2].flip(START + 512, 1);
    let error = read(&pool.open(), &ReadCx::NORMAL, 512, Txg(1), &right).unwrap_err();
    assert!(matches!(&error, Error::Checksum { faults, .. } if faults.len() == 3));
    pool.gone = vec![0, 1, 2];
    let error = read(&pool.open(), &ReadCx::NORMAL, 512, Txg(1), &right).unwrap_err();
    assert!(matches!(error, Error::TooFewDevices { .. }));
}

#[test]
fn a_side_that_is_offline_is_used_when_nothing_else_is_left() {
    let mut offline = leaf(1);
    offline.insert(key::OFFLINE, 1u64);
    let mut top = group("mirror", 0, vec![leaf(0), offline]);
    top.insert(key::ASHIFT, 9u64);
    let mut pool = TestPool::new(top, 2);
    let right = block(1024, 7);
    for disk in &mut pool.disks {
        disk.write(START, &right);
    }
    let tree = pool.open();
    assert_eq!(tree.status().state, VdevState::Degraded);
    assert_eq!(tree.status().children[0].children[1].state, VdevState::Offline);
    assert!(read(&tree, &ReadCx::NORMAL, 0, Txg(1), &right).unwrap().is_clean());
    pool.gone = vec![0];
    read(&pool.open(), &ReadCx::NORMAL, 0, Txg(1), &right).unwrap();
    assert_eq!(pool.open().status().state, VdevState::CantOpen);
}

#[test]
fn a_mirror_of_raidz_is_read() {
    let side = |n: usize| {
        let mut side = raidz(1, 9, (n * 3..n * 3 + 3).map(leaf).collect());
        side.insert(key::ID, n as u64);
        side
    };
    let mut top = group("mirror", 0, vec![side(0), side(1)]);
    top.insert(key::ASHIFT, 9u64);
    let mut pool = TestPool::new(top, 6);
    // the layout of a raidz of its own
    let right = block(4 << 9, 5);
    let plain = TestPool::plain_raidz(1, 3, 9);
    let layout = crate::test_pool::map(&plain.open(), 0, Txg(1), right.len());
    pool.write_with(&layout, &right, &|child, _| vec![child, child + 3]);
    assert_eq!(pool.open().top(0).unwrap().psize_to_asize(4 << 9), 6 << 9);
    for gone in [vec![], vec![0, 1], vec![3, 4, 5], vec![0, 4], vec![0, 1, 5]] {
        pool.gone = gone;
        read(&pool.open(), &ReadCx::NORMAL, 0, Txg(1), &right).unwrap();
        read(&pool.open(), &ReadCx::SCRUB, 0, Txg(1), &right).unwrap();
    }
    pool.gone = vec![0, 1, 4, 5];
    assert!(read(&pool.open(), &ReadCx::NORMAL, 0, Txg(1), &right).is_err());
}

fn entry(src: u64, vdev: u64, dst: u64, len: u64) -> MappingEntry {
    MappingEntry { src_word: src >> 9, dst: Dva::new(vdev, dst, len, false) }
}

fn mapping(entries: &[MappingEntry]) -> IndirectMapping {
    IndirectMapping::new(entries.to_vec()).unwrap()
}

#[test]
fn a_block_of_a_removed_device_is_read_where_it_went() {
    let mut pool = TestPool::with_tops(vec![indirect(0), mirror(1, 0..2), indirect(2), mirror(3, 2..4)], 4);
    let right = block(6 << 9, 9);
    for disk in 0..2 {
        pool.disks[disk].write(START + 0x4000, &right[..2 << 9]);
        pool.disks[disk].write(START + 0x8000, &right[5 << 9..]);
    }
    for disk in 2..4 {
        pool.disks[disk].write(START + 0x6000, &right[2 << 9..5 << 9]);
    }
    let open = |pool: &TestPool| {
        let tree = pool.open();
        // 0 was removed first, then 2: a part of 0 went to 2 and from there on
        let first = [entry(0x1000, 1, 0x3e00, 0x600), entry(0x1600, 2, 0x200, 0x600), entry(0x1c00, 1, 0x8000, 0x400)];
        tree.set_indirect(0, mapping(&first));
        tree.set_indirect(2, mapping(&[entry(0, 3, 0x5e00, 0x1000)]));
        tree
    };
    let tree = open(&pool);
    for cx in [ReadCx::NORMAL, ReadCx::SCRUB] {
        assert!(read(&tree, &cx, 0x1200, Txg(1), &right).unwrap().is_clean());
        // a part that was moved as a whole
        assert!(read(&tree, &cx, 0x1200, Txg(1), &right[..2 << 9]).unwrap().is_clean());
    }
    assert!(matches!(read(&tree, &ReadCx::NORMAL, 0x3000, Txg(1), &right), Err(Error::Unmapped { vdev: 0, .. })));
    assert!(matches!(read(&pool.open(), &ReadCx::NORMAL, 0x1200, Txg(1), &right), Err(Error::NoMapping { vdev: 0 })));
    // each piece wrong on another side: only the right combination gives the block
    pool.disks[0].flip(START + 0x4000, 1);
    pool.disks[3].flip(START + 0x6100, 1);
    pool.disks[1].flip(START + 0x8000, 1);
    let report = read(&open(&pool), &ReadCx::NORMAL, 0x1200, Txg(1), &right).unwrap();
    let mut bad = wrong(&report);
    bad.sort_unstable();
    assert_eq!(bad, [0, 1, 3]);
    pool.disks[2].flip(START + 0x6000, 1);
    assert!(matches!(read(&open(&pool), &ReadCx::NORMAL, 0x1200, Txg(1), &right), Err(Error::Checksum { .. })));
}

#[test]
fn mappings_in_a_circle_end() {
    let pool = TestPool::with_tops(vec![indirect(0), indirect(1)], 0);
    let tree = pool.open();
    tree.set_indirect(0, mapping(&[entry(0, 1, 0, 0x10000)]));
    tree.set_indirect(1, mapping(&[entry(0, 0, 0, 0x200), entry(0x200, 0, 0x200, 0x10000)]));
    let error = read(&tree, &ReadCx::NORMAL, 0, Txg(1), &block(0x2000, 1)).unwrap_err();
    assert!(matches!(error, Error::MappingTooDeep { vdev: 0 }));
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    let tree = TestPool::plain_raidz(1, 3, 12).open();
    let mut buf = vec![0; 4096];
    let mut any = |_: &[u8]| true;
    let mut ask =
        |dva: Dva, psize: u64| tree.read(dva, psize, Txg(1), &ReadCx::NORMAL, &mut buf, &mut any).unwrap_err();
    assert!(matches!(ask(Dva::new(1, 0, 512, false), 4096), Error::NoVdev { id: 1 }));
    assert!(matches!(ask(Dva::new(0, 512, 512, false), 4096), Error::BadAddress { .. }));
    assert!(matches!(ask(Dva::new(0, 0, 512, false), 512), Error::BadAddress { .. }));
    assert!(matches!(ask(Dva { word0: 0, word1: u64::MAX >> 2 }, 4096), Error::BadAddress { .. }));
    // far beyond the devices
    let far = tree.read(Dva::new(0, 1 << 50, 512, false), 4096, Txg(1), &ReadCx::NORMAL, &mut buf, &mut any);
    assert!(matches!(far, Err(Error::TooFewDevices { .. })));
}

#[test]
fn health_is_that_of_openzfs() {
    let mut pool = TestPool::with_tops(vec![raidz(2, 12, (0..5).map(leaf).collect()), mirror(1, 5..7)], 7);
    let states = |pool: &TestPool| {
        let status = pool.open().status();
        (status.state, status.children[0].state, status.children[1].state)
    };
    use VdevState::{CantOpen, Degraded, Healthy};
    assert_eq!(states(&pool), (Healthy, Healthy, Healthy));
    pool.gone = vec![1, 4, 5];
    assert_eq!(states(&pool), (Degraded, Degraded, Degraded));
    pool.gone = vec![1, 2, 3];
    assert_eq!(states(&pool), (CantOpen, CantOpen, Healthy));
    let status = pool.open().status();
    assert_eq!(status.children[0].aux, VdevAux::NoReplicas);
    assert_eq!(status.children[0].children[1].aux, VdevAux::OpenFailed);
    assert_eq!(status.children[0].name, "raidz2-0");
    assert_eq!(status.walk().count(), 10);
}

#[test]
fn space_is_deflated_as_openzfs_does() {
    let deflated = |top: NvList, disks| TestPool::new(top, disks).open().top(0).unwrap().deflated(1 << 20);
    assert_eq!(deflated(mirror(0, 0..2), 2), 1 << 20);
    // 128 KiB take 48 sectors of 4 KiB on raidz1 of three: 131072 / 384 = 341 for each 512 bytes
    assert_eq!(deflated(raidz(1, 12, (0..3).map(leaf).collect()), 3), 2048 * 341);
    assert_eq!(deflated(draid(1, 2, 0, 4, (0..4).map(leaf).collect()), 4), 2048 * 341);
}

#[test]
fn a_device_is_one_leaf_and_is_written_only_if_it_is_large_enough() {
    let with_metaslabs = |mut top: NvList, asize: u64| {
        top.insert(key::ASIZE, asize);
        top.insert(key::METASLAB_SHIFT, 24u64);
        VdevConfig::parse(&TestPool::new(top, 0).config).unwrap()
    };
    let labels = (4 << 20) + (512 << 10);
    let present = |config: &VdevConfig, device: MemoryDevice| {
        let device: Arc<dyn Device> = Arc::new(device);
        let tree = VdevTree::open(config, &|_| Some(device.clone())).unwrap();
        tree.leaves().iter().filter(|leaf| leaf.device().is_some()).count()
    };
    // of 65 MiB of a mirror four metaslabs are used, of a raidz a third each
    let pair = with_metaslabs(mirror(0, 0..2), 65 << 20);
    let three = with_metaslabs(raidz(1, 12, (0..3).map(leaf).collect()), 97 << 20);
    for (config, leaves, share) in [(pair, 2, 64 << 20), (three, 3, 32 << 20)] {
        assert_eq!(present(&config, MemoryDevice::writable(share + labels)), leaves);
        assert_eq!(present(&config, MemoryDevice::writable(share + labels - 1)), 0);
        assert_eq!(present(&config, MemoryDevice::new(vec![0; 1 << 20])), leaves);
    }
    // two vdevs of the same leaf
    let twice = TestPool::with_tops(vec![mirror(0, 0..1), mirror(1, 0..2)], 0).config;
    assert_eq!(present(&VdevConfig::parse(&twice).unwrap(), MemoryDevice::writable(64 << 20)), 2);
}

#[test]
fn trees_that_cannot_be_are_refused() {
    let parse = |top: NvList| {
        let config = VdevConfig::parse(&TestPool::new(top, 0).config)?;
        VdevTree::open(&config, &|_| None)
    };
    assert!(parse(raidz(1, 12, (0..3).map(leaf).collect())).is_ok());
    let with = |name: &str, value: u64, mut list: NvList| {
        list.insert(name, value);
        list
    };
    let three = || raidz(1, 12, (0..3).map(leaf).collect());
    for bad in [
        with(key::NPARITY, 0, three()),
        with(key::NPARITY, 4, three()),
        with(key::NPARITY, 3, three()),
        with(key::ASHIFT, 64, three()),
        with(key::ASHIFT, 8, three()),
        with(key::ID, 1, three()),
        raidz(1, 12, Vec::new()),
        raidz(1, 12, (0..256).map(leaf).collect()),
        draid(1, 0, 0, 4, (0..4).map(leaf).collect()),
        draid(1, 2, 3, 4, (0..4).map(leaf).collect()),
        draid(1, 2, 0, 3, (0..4).map(leaf).collect()),
        draid(1, 2, 0, u64::MAX, (0..4).map(leaf).collect()),
        with(key::DRAID_NCHILDREN, 3, draid(1, 2, 0, 4, (0..4).map(leaf).collect())),
        with(key::DRAID_NCHILDREN, 0, draid(1, 2, 0, 4, (0..4).map(leaf).collect())),
    ] {
        assert!(parse(bad).is_err());
    }
    let mut expanded = three();
    expanded.insert(key::RAIDZ_EXPAND_TXGS, vec![1u64, 2, 3]);
    assert!(parse(expanded).is_err());
    let mut deep = leaf(0);
    for _ in 0..20 {
        deep = group("mirror", 0, vec![deep]);
    }
    assert!(parse(deep).is_err());
    let mut unknown = leaf(0);
    unknown.insert(key::TYPE, "floppy");
    assert!(parse(unknown).is_err());
}

#[test]
fn windows_give_the_same_bytes_with_fewer_reads() {
    let bytes = block(16 << 20, 1);
    let bad = (9 << 20)..(9 << 20) + 512;
    let asked = Arc::new(AtomicUsize::new(0));
    let (counted, spot) = (asked.clone(), bad.clone());
    let pass = move |call: &Call| {
        counted.fetch_add(1, Ordering::Relaxed);
        if call.meets(&spot) { Err(std::io::Error::other("bad sector")) } else { Ok(()) }
    };
    let device = Arc::new(Tapped::new(Arc::new(MemoryDevice::new(bytes.clone())), pass));
    let pool = TestPool::new(mirror(0, 0..1), 1);
    let config = VdevConfig::parse(&pool.config).unwrap();
    let tree = VdevTree::open(&config, &|_| Some(device.clone())).unwrap();
    let leaf = &tree.leaves()[0];
    let source = WindowSource::new(1 << 20);
    let check = |offset: usize, len: usize| {
        let mut buf = vec![0; len];
        let read = source.read(leaf, crate::IoClass::SyncRead, offset as u64, &mut buf);
        let touches = (offset as u64) < bad.end && bad.start < (offset + len) as u64;
        assert_eq!(read.is_err(), touches, "{offset:#x} {len}");
        assert!(touches || buf == bytes[offset..offset + len]);
    };
    let reads = Cell::new(0);
    let mut at = 0;
    while at + 9000 < bytes.len() {
        check(at, 512 + at % 8192);
        reads.set(reads.get() + 1);
        at += 4096;
    }
    let made = asked.load(Ordering::Relaxed);
    // around the bad sector each read goes alone
    assert!(made < reads.get() / 8, "{made} of {}", reads.get());
    // scattered, backwards, too large, to the very end, beyond it
    for n in (0..200usize).rev() {
        check(n.wrapping_mul(7_919_113) % (15 << 20), 1 + n * 37);
    }
    check(0, 3 << 20);
    check((16 << 20) - 100, 100);
    assert!(source.read(leaf, crate::IoClass::SyncRead, (16 << 20) - 99, &mut [0; 100]).is_err());
    assert!(source.read(leaf, crate::IoClass::SyncRead, u64::MAX, &mut [0; 100]).is_err());
}
