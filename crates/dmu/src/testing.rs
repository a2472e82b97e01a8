//! A pool in memory for tests: blocks are written by hand, uncompressed and without checksums, and read through `zio`.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use base::bytes::with_bits;
use base::{Endian, ObjectId, Txg};
use ondisk::{BLKPTR_SIZE, BlkPtr, DNODE_SIZE, DnodePhys, Dva, ObjectType, VDEV_LABEL_START_SIZE};
use vdev::{MemoryDevice, VdevTree};
use zio::Zio;

use crate::Objset;

/// Bytes that become a device.
pub(crate) struct Disk {
    data: Vec<u8>,
    /// The order in which the next blocks are written.
    pub(crate) endian: Endian,
}

impl Disk {
    pub(crate) fn new(endian: Endian) -> Disk {
        Disk { data: Vec::new(), endian }
    }

    /// Writes a block.
    pub(crate) fn write(&mut self, block: &[u8], object_type: ObjectType, level: u8, fill: u64) -> BlkPtr {
        assert_eq!(block.len() % 512, 0);
        let at = self.data.len() as u64;
        self.data.extend_from_slice(block);
        let sectors = (block.len() / 512 - 1) as u64;
        let mut bp = BlkPtr::HOLE;
        let dva = Dva::new(0, at, block.len() as u64, false);
        (bp.words[0], bp.words[1]) = (dva.word0, dva.word1);
        let fields = [
            (0, 16, sectors),
            (16, 16, sectors),
            (32, 7, 2),
            (40, 8, 2),
            (48, 8, object_type.0.into()),
            (56, 5, level.into()),
        ];
        for (low, width, value) in fields {
            bp.words[6] = with_bits(bp.words[6], low, width, value);
        }
        bp.words[6] = with_bits(bp.words[6], 63, 1, u64::from(self.endian == Endian::Little));
        (bp.words[10], bp.words[11]) = (7, fill);
        bp
    }

    /// Writes an object: its blocks (`None` is a hole), indirect blocks of `1 << indblkshift` bytes, at least `nlevels`
    /// levels.
    pub(crate) fn object(
        &mut self,
        t: ObjectType,
        blocks: &[Option<Vec<u8>>],
        indblkshift: u8,
        nlevels: u8,
    ) -> DnodePhys {
        let block_size = blocks.iter().flatten().map(Vec::len).max().unwrap_or(512);
        let mut level: Vec<BlkPtr> =
            blocks.iter().map(|b| b.as_ref().map_or(BlkPtr::HOLE, |b| self.write(b, t, 0, fill(t, b)))).collect();
        let (mut levels, fanout) = (1, 1 << (indblkshift - 7));
        while level.len() > 1 || levels < nlevels {
            let indirect = |pointers: &[BlkPtr]| {
                if pointers.iter().all(BlkPtr::is_hole) {
                    return BlkPtr::HOLE;
                }
                let mut block = vec![0; fanout * BLKPTR_SIZE];
                for (place, bp) in block.chunks_mut(BLKPTR_SIZE).zip(pointers) {
                    place.copy_from_slice(&bp.encode(self.endian));
                }
                self.write(&block, t, levels, pointers.iter().map(BlkPtr::fill).sum())
            };
            level = level.chunks(fanout).map(indirect).collect();
            levels += 1;
        }
        let mut dn = dnode(t, self.endian);
        (dn.indblkshift, dn.nlevels, dn.datablkszsec) = (indblkshift, levels, (block_size / 512) as u16);
        dn.maxblkid = (blocks.len() as u64).saturating_sub(1);
        dn.blkptr = vec![level.first().copied().unwrap_or(BlkPtr::HOLE)];
        dn
    }

    /// Writes an object set of these dnodes and returns its root pointer.
    pub(crate) fn objset(&mut self, dnodes: &[(ObjectId, DnodePhys)]) -> BlkPtr {
        const PER_BLOCK: usize = 32;
        let last = dnodes.iter().map(|(id, dn)| id.0 as usize + dn.slots()).max().unwrap_or(0);
        let mut blocks = vec![None; last.div_ceil(PER_BLOCK)];
        for (id, dn) in dnodes {
            let (blkid, slot) = (id.0 as usize / PER_BLOCK, id.0 as usize % PER_BLOCK);
            let block = blocks[blkid].get_or_insert_with(|| vec![0; PER_BLOCK * DNODE_SIZE]);
            let mut dn = dn.clone();
            dn.endian = self.endian;
            block[slot * DNODE_SIZE..][..dn.size()].copy_from_slice(&dn.encode());
        }
        let meta = self.object(ObjectType::DNODE, &blocks, 12, 3);
        let mut root = vec![0; 4096];
        root[..DNODE_SIZE].copy_from_slice(&meta.encode());
        root[704..712].copy_from_slice(&self.endian.put_u64(2));
        self.write(&root, ObjectType::OBJSET, 0, dnodes.len() as u64)
    }

    /// The device, ready to be read.
    pub(crate) fn zio(self) -> Arc<Zio> {
        let size = image_size(self.data.len());
        self.zio_of((size - (4 << 20)) as u64)
    }

    /// The same device in a pool with `more` additional bytes, which can be written. Also returns the offset at which
    /// they begin.
    pub(crate) fn zio_to_write(self, more: usize) -> (Arc<Zio>, u64) {
        let used = self.data.len().next_multiple_of(512);
        let mut image = vec![0; VDEV_LABEL_START_SIZE as usize];
        image.extend(self.data);
        image.resize(image_size(used + more), 0);
        let asize = (image.len() - (5 << 20)) as u64;
        let tree = VdevTree::of_one(Arc::new(MemoryDevice::writable_from(image)), asize).unwrap();
        (Arc::new(Zio::new(Arc::new(tree), 1 << 20)), used as u64)
    }

    /// The same device in a pool that claims to have `asize` bytes.
    pub(crate) fn zio_of(self, asize: u64) -> Arc<Zio> {
        let mut image = vec![0; VDEV_LABEL_START_SIZE as usize];
        image.extend(self.data);
        image.resize(image_size(image.len() - VDEV_LABEL_START_SIZE as usize), 0);
        let tree = VdevTree::of_one(Arc::new(MemoryDevice::new(image)), asize).unwrap();
        Arc::new(Zio::new(Arc::new(tree), 1 << 20))
    }

    /// The object set under `root`, ready to be read.
    pub(crate) fn open(self, root: &BlkPtr) -> Arc<Objset> {
        Objset::open(self.zio(), ObjectId(5), root).unwrap()
    }
}

/// Bytes of a device with room for `data` bytes of blocks.
fn image_size(data: usize) -> usize {
    (VDEV_LABEL_START_SIZE as usize + data).next_multiple_of(256 << 10) + (1 << 20)
}

fn fill(t: ObjectType, block: &[u8]) -> u64 {
    if t == ObjectType::DNODE { crate::objset::slots(block).count() as u64 } else { 1 }
}

/// A dnode without blocks.
pub(crate) fn dnode(object_type: ObjectType, endian: Endian) -> DnodePhys {
    DnodePhys {
        object_type,
        indblkshift: 17,
        nlevels: 1,
        bonus_type: ObjectType::NONE,
        checksum: 0,
        compress: 0,
        flags: 1,
        datablkszsec: 1,
        extra_slots: 0,
        maxblkid: 0,
        used: 0,
        blkptr: vec![BlkPtr::HOLE],
        bonus: Vec::new(),
        spill: None,
        pad: [0; 35],
        endian,
    }
}

/// A dnode with a bonus buffer.
pub(crate) fn dnode_with_bonus(object_type: ObjectType, bonus_type: ObjectType, bonus: Vec<u8>) -> DnodePhys {
    let mut dn = dnode(object_type, Endian::NATIVE);
    (dn.bonus_type, dn.bonus) = (bonus_type, bonus);
    dn
}

/// A small random number generator, the same in each run.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Changes a few bytes, sometimes to boundary values.
    pub(crate) fn mutate(&mut self, block: &mut [u8]) {
        for _ in 0..=self.below(6) {
            let at = self.below(block.len());
            let value = match self.below(4) {
                0 => 0xff,
                1 => 0,
                _ => self.next() as u8,
            };
            let len = if self.below(3) == 0 { 8 } else { 1 };
            block.iter_mut().skip(at).take(len).for_each(|b| *b = value);
        }
    }
}

#[test]
fn a_block_comes_back() {
    let mut disk = Disk::new(Endian::NATIVE);
    let bp = disk.write(&[7; 1024], ObjectType::PLAIN_FILE_CONTENTS, 0, 1);
    assert_eq!(bp.birth_logical(), Txg(7));
    let bm = zio::Bookmark::new(ObjectId(1), ObjectId(2), 0, 0);
    assert_eq!(*disk.zio().read(&bp, &bm).unwrap(), [7; 1024]);
}
