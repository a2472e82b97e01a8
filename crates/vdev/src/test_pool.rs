//! A pool in memory for tests: any tree of vdevs over disks of noise, and the writing that the crate itself does not do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::sync::Arc;

use base::Txg;
use nvlist::NvList;
use ondisk::Dva;
use ondisk::label::key;

use crate::stripe::{Extent, StripeMap};
use crate::tree::{Shape, Striped};
use crate::{Device, Error, ReadCx, VdevConfig, VdevTree, gf};

/// A disk of noise with some pages written: what nobody wrote shows when it is read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk {
    seed: u64,
    pages: HashMap<u64, Box<[u8; PAGE]>>,
}

const PAGE: usize = 512;

impl Disk {
    fn page(&self, n: u64) -> [u8; PAGE] {
        let noise = |i: usize| (n.wrapping_mul(131).wrapping_add(i as u64) ^ self.seed.wrapping_mul(77)) as u8;
        self.pages.get(&n).map_or_else(|| std::array::from_fn(noise), |p| **p)
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        for (n, b) in (at..).zip(bytes) {
            let page = n / PAGE as u64;
            if !self.pages.contains_key(&page) {
                let noise = self.page(page);
                self.pages.insert(page, Box::new(noise));
            }
            self.pages.get_mut(&page).unwrap()[n as usize % PAGE] = *b;
        }
    }

    /// Changes the byte at `at`.
    pub(crate) fn flip(&mut self, at: u64, bits: u8) {
        let old = self.page(at / PAGE as u64)[at as usize % PAGE];
        self.write(at, &[old ^ bits]);
    }
}

impl Device for Disk {
    fn size(&self) -> u64 {
        1 << 30
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        if offset.saturating_add(buf.len() as u64) > self.size() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (mut at, mut left) = (offset, buf);
        while !left.is_empty() {
            let from = at as usize % PAGE;
            let (piece, rest) = left.split_at_mut(left.len().min(PAGE - from));
            piece.copy_from_slice(&self.page(at / PAGE as u64)[from..from + piece.len()]);
            at += piece.len() as u64;
            left = rest;
        }
        Ok(())
    }

    fn name(&self) -> String {
        format!("disk{}", self.seed)
    }
}

/// A pool in memory with one top-level vdev, and its disks.
pub(crate) struct TestPool {
    pub(crate) config: NvList,
    pub(crate) disks: Vec<Disk>,
    /// Disks that are not found.
    pub(crate) gone: Vec<usize>,
}

pub(crate) const LEAF_GUID: u64 = 100;

pub(crate) fn leaf(n: usize) -> NvList {
    let mut list = NvList::new();
    list.insert(key::TYPE, "file");
    list.insert(key::ID, n as u64);
    list.insert(key::GUID, LEAF_GUID + n as u64);
    list
}

pub(crate) fn group(kind: &str, id: usize, children: Vec<NvList>) -> NvList {
    let mut list = NvList::new();
    list.insert(key::TYPE, kind);
    list.insert(key::ID, id as u64);
    list.insert(key::GUID, 5000 + id as u64);
    list.insert(key::CHILDREN, children);
    list
}

pub(crate) fn raidz(parity: u64, ashift: u64, children: Vec<NvList>) -> NvList {
    let mut list = group("raidz", 0, children);
    list.insert(key::NPARITY, parity);
    list.insert(key::ASHIFT, ashift);
    list
}

pub(crate) fn draid(parity: u64, data: u64, spares: u64, groups: u64, children: Vec<NvList>) -> NvList {
    let mut list = group("draid", 0, children);
    list.insert(key::NPARITY, parity);
    list.insert(key::ASHIFT, 12u64);
    list.insert(key::DRAID_NDATA, data);
    list.insert(key::DRAID_NSPARES, spares);
    list.insert(key::DRAID_NGROUPS, groups);
    list
}

impl TestPool {
    pub(crate) fn new(top: NvList, disks: usize) -> TestPool {
        TestPool::with_tops(vec![top], disks)
    }

    pub(crate) fn with_tops(tops: Vec<NvList>, disks: usize) -> TestPool {
        let mut root = NvList::new();
        root.insert(key::TYPE, "root");
        root.insert(key::ID, 0u64);
        root.insert(key::GUID, 1u64);
        root.insert(key::CHILDREN, tops);
        let disk = |n| Disk { seed: n as u64, pages: HashMap::new() };
        TestPool { config: root, disks: (0..disks).map(disk).collect(), gone: Vec::new() }
    }

    pub(crate) fn plain_raidz(parity: u64, width: usize, ashift: u64) -> TestPool {
        let top = raidz(parity, ashift, (0..width).map(leaf).collect());
        TestPool::new(top, width)
    }

    pub(crate) fn open(&self) -> VdevTree {
        let devices: HashMap<u64, Arc<dyn Device>> = self
            .disks
            .iter()
            .enumerate()
            .filter(|(n, _)| !self.gone.contains(n))
            .map(|(n, bytes)| (LEAF_GUID + n as u64, Arc::new(bytes.clone()) as Arc<dyn Device>))
            .collect();
        let config = VdevConfig::parse(&self.config).unwrap();
        VdevTree::open(&config, &|guid| devices.get(&guid.0).cloned()).unwrap()
    }

    /// Lays a block out, with parity computed byte by byte; `disk` says which disk is which child at an offset.
    pub(crate) fn write_with(&mut self, map: &StripeMap, block: &[u8], disks: &dyn Fn(usize, u64) -> Vec<usize>) {
        for row in &map.rows {
            let data = row.data();
            for (c, column) in row.columns.iter().enumerate() {
                let bytes: Vec<u8> =
                    (0..column.size)
                        .map(|n| match c.checked_sub(row.parity) {
                            Some(_) => block[column.at + n],
                            None => data.iter().enumerate().filter(|(_, d)| n < d.size).fold(0, |sum, (i, d)| {
                                sum ^ gf::mul(gf::coefficient(c, i, data.len()), block[d.at + n])
                            }),
                        })
                        .collect();
                for disk in disks(column.child, column.offset) {
                    self.disks[disk].write(column.offset, &bytes);
                    self.disks[disk].write(column.offset + bytes.len() as u64, &vec![0; column.pad]);
                }
            }
        }
    }

    pub(crate) fn write(&mut self, offset: u64, birth: Txg, block: &[u8]) -> StripeMap {
        let tree = self.open();
        let map = map(&tree, offset, birth, block.len());
        self.write_with(&map, block, &|child, _| vec![child]);
        map
    }
}

pub(crate) fn striped(tree: &VdevTree) -> &Striped {
    match &*tree.top(0).unwrap().shape {
        Shape::Striped(striped) => striped,
        _ => panic!("not striped"),
    }
}

pub(crate) fn map(tree: &VdevTree, offset: u64, birth: Txg, len: usize) -> StripeMap {
    let ashift = tree.top(0).unwrap().ashift();
    striped(tree).map(Extent { offset, size: len as u64, ashift }, birth)
}

/// A top-level vdev of this number: a mirror of leaves.
pub(crate) fn mirror(id: usize, leaves: impl Iterator<Item = usize>) -> NvList {
    let mut list = group("mirror", id, leaves.map(leaf).collect());
    list.insert(key::ASHIFT, 9u64);
    list
}

/// A removed top-level vdev of this number.
pub(crate) fn indirect(id: usize) -> NvList {
    let mut list = group("indirect", id, Vec::new());
    list.insert(key::ASHIFT, 9u64);
    list
}

pub(crate) fn block(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 24) as u8
        })
        .collect()
}

pub(crate) fn read(
    tree: &VdevTree,
    cx: &ReadCx<'_>,
    offset: u64,
    birth: Txg,
    right: &[u8],
) -> Result<crate::ReadReport, Error> {
    let mut buf = vec![0; right.len()];
    let dva = Dva::new(0, offset, 512, false);
    let report = tree.read(dva, right.len() as u64, birth, cx, &mut buf, &mut |b| b == right)?;
    assert_eq!(buf, right);
    Ok(report)
}

/// The txgs from `first` to before `end`, as a DTL.
pub(crate) fn missed(first: u64, end: u64) -> Vec<std::ops::Range<u64>> {
    std::iter::once(first..end).collect()
}
