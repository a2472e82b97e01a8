//! A pool that consists of given blocks only, for targets that read through the DMU.

use std::io;
use std::sync::Arc;

use base::bytes::with_bits;
use base::{Endian, ObjectId};
use dmu::{Object, Objset};
use ondisk::{BlkPtr, DnodePhys, Dva, ObjectType, VDEV_LABEL_START_SIZE};
use vdev::{Device, VdevTree};
use zio::Zio;

const DEVICE_BYTES: u64 = 64 << 20;

/// The contents after the labels; zeros elsewhere.
#[derive(Debug)]
struct Bytes(Vec<u8>);

impl Device for Bytes {
    fn size(&self) -> u64 {
        DEVICE_BYTES
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.fill(0);
        let start = usize::try_from(offset.saturating_sub(VDEV_LABEL_START_SIZE)).unwrap_or(usize::MAX);
        let there = self.0.get(start..).unwrap_or(&[]);
        let len = there.len().min(buf.len());
        buf[..len].copy_from_slice(&there[..len]);
        Ok(())
    }

    fn name(&self) -> String {
        "bytes".to_string()
    }
}

/// An empty object set on a pool whose data is `bytes`.
///
/// # Panics
/// On a bug in the library.
#[must_use]
pub(crate) fn objset(bytes: Vec<u8>) -> Arc<Objset> {
    let device: Arc<dyn Device> = Arc::new(Bytes(bytes));
    let tree = VdevTree::of_one(device, DEVICE_BYTES - (5 << 20)).expect("a good tree");
    Objset::open(Arc::new(Zio::new(Arc::new(tree), 1 << 20)), ObjectId(1), &BlkPtr::HOLE).expect("an empty object set")
}

/// The pointer to `len` (a multiple of 512) of the pool's bytes from `at`, stored uncompressed and without a checksum.
#[must_use]
pub(crate) fn pointer(at: u64, len: usize, object_type: ObjectType, endian: Endian) -> BlkPtr {
    let mut bp = BlkPtr::HOLE;
    let dva = Dva::new(0, at, len as u64, false);
    (bp.words[0], bp.words[1], bp.words[10], bp.words[11]) = (dva.word0, dva.word1, 1, 1);
    let sectors = (len as u64 / 512).saturating_sub(1);
    let little = u64::from(endian == Endian::Little);
    for (low, width, value) in
        [(0, 16, sectors), (16, 16, sectors), (32, 7, 2), (40, 8, 2), (48, 8, object_type.0.into()), (63, 1, little)]
    {
        bp.words[6] = with_bits(bp.words[6], low, width, value);
    }
    bp
}

/// An object of up to three blocks of `block_size` (a multiple of 512), cut from `bytes`; the last is padded with zeros.
#[must_use]
pub(crate) fn object(bytes: &[u8], block_size: usize, object_type: ObjectType, endian: Endian) -> Object {
    let count = bytes.len().div_ceil(block_size).clamp(1, 3);
    let mut padded = bytes.to_vec();
    padded.resize(count * block_size, 0);
    let pointers = (0..count).map(|n| pointer((n * block_size) as u64, block_size, object_type, endian)).collect();
    Object::new(objset(padded), ObjectId(1), dnode(object_type, pointers, block_size, endian))
}

/// A dnode that points to these blocks.
#[must_use]
pub(crate) fn dnode(object_type: ObjectType, blkptr: Vec<BlkPtr>, block_size: usize, endian: Endian) -> DnodePhys {
    DnodePhys {
        object_type,
        indblkshift: 17,
        nlevels: 1,
        bonus_type: ObjectType::NONE,
        checksum: 0,
        compress: 0,
        flags: DnodePhys::FLAG_USED_BYTES,
        datablkszsec: (block_size / 512) as u16,
        extra_slots: 0,
        maxblkid: (blkptr.len() as u64).saturating_sub(1),
        used: 0,
        blkptr,
        bonus: Vec::new(),
        spill: None,
        pad: [0; 35],
        endian,
    }
}
