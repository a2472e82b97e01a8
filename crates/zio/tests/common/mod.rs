//! A pool made by hand: memory devices, blocks put where the test wants them, pointers to match.
#![allow(dead_code, clippy::unwrap_used, missing_docs, unreachable_pub)]

pub mod writable;

use std::sync::Arc;

use base::bytes::with_bits;
use base::{Endian, Guid, ObjectId};
use codec::crypt::{DatasetKey, Suite};
use codec::{ChecksumKind, Checksummer, Compress};
use nvlist::NvList;
use ondisk::{BlkPtr, Dva, ObjectType};
use vdev::{Device, MemoryDevice, VdevConfig, VdevTree};
use zio::{Bookmark, Zio};

pub const BM: Bookmark = Bookmark::new(ObjectId(21), ObjectId(4), 0, 7);
pub const BIRTH: u64 = 100;
const LABELS: usize = 4 << 20;
pub const DISK: usize = 8 << 20;

/// Top-level vdevs, each a mirror of one or two memory devices.
pub struct Pool {
    /// Devices by top-level vdev and side.
    pub sides: Vec<Vec<Vec<u8>>>,
    next: Vec<u64>,
    pub ashift: u64,
    pub sums: Checksummer,
}

/// The properties of a block to be written.
#[derive(Clone, Copy)]
pub struct Kind {
    pub compress: Compress,
    pub checksum: ChecksumKind,
    pub object_type: ObjectType,
    pub level: u8,
    pub endian: Endian,
    pub crypt: bool,
}

pub const PLAIN: Kind = Kind {
    compress: Compress::Off,
    checksum: ChecksumKind::Fletcher4,
    object_type: ObjectType::PLAIN_FILE_CONTENTS,
    level: 0,
    endian: Endian::Little,
    crypt: false,
};

pub const SALT: [u8; 32] = [7; 32];

/// Bytes that compress a little.
pub fn text(n: usize) -> Vec<u8> {
    (0..n).map(|i| if i % 64 < 40 { 0 } else { (i / 7 * i) as u8 | 1 }).collect()
}

pub fn key() -> DatasetKey {
    DatasetKey::new(Suite::Aes256Gcm, base::Guid(1), 1, &[3; 32], &[9; 64]).unwrap()
}

impl Pool {
    pub fn new(tops: usize, sides: usize, ashift: u64) -> Self {
        Pool {
            sides: vec![vec![vec![0; DISK]; sides]; tops],
            next: vec![0; tops],
            ashift,
            sums: Checksummer::new(Some(SALT)),
        }
    }

    /// Reserves room for `len` bytes on `vdev`.
    pub fn alloc(&mut self, vdev: usize, len: usize, gang: bool) -> Dva {
        let at = self.next[vdev];
        let asize = (len as u64).next_multiple_of(1 << self.ashift);
        self.next[vdev] += asize;
        Dva::new(vdev as u64, at, asize, gang)
    }

    /// Writes `bytes` to all sides of the place `dva`.
    pub fn put(&mut self, dva: Dva, bytes: &[u8]) {
        let at = LABELS + dva.offset() as usize;
        for side in &mut self.sides[dva.vdev() as usize] {
            side[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Damages one byte of the place `dva` on one side.
    pub fn damage(&mut self, dva: Dva, side: usize, byte: usize) {
        self.sides[dva.vdev() as usize][side][LABELS + dva.offset() as usize + byte] ^= 0x55;
    }

    /// The pointer to `stored`, which lies at `dvas`.
    pub fn pointer(&self, stored: &[u8], lsize: usize, kind: Kind, dvas: &[Dva]) -> BlkPtr {
        let mut words = [0; 16];
        for (n, dva) in dvas.iter().enumerate() {
            (words[2 * n], words[2 * n + 1]) = (dva.word0, dva.word1);
        }
        let fields = [
            (0, 16, lsize as u64 / 512 - 1),
            (16, 16, stored.len() as u64 / 512 - 1),
            (32, 7, kind.compress as u64),
            (40, 8, kind.checksum as u64),
            (48, 8, u64::from(kind.object_type.0)),
            (56, 5, u64::from(kind.level)),
            (61, 1, u64::from(kind.crypt)),
            (63, 1, u64::from(kind.endian == Endian::Little)),
        ];
        words[6] = fields.into_iter().fold(0, |word, (low, width, value)| with_bits(word, low, width, value));
        (words[10], words[11]) = (BIRTH, 1);
        let sum = self.sums.compute(kind.checksum, stored, kind.endian).unwrap();
        let sum = if kind.crypt && kind.object_type != ObjectType::OBJSET { kind.checksum.truncate(sum) } else { sum };
        words[12..].copy_from_slice(&sum);
        BlkPtr { words }
    }

    /// Compresses `data` and writes it in one place on each of `vdevs`.
    pub fn write(&mut self, data: &[u8], kind: Kind, vdevs: &[usize]) -> BlkPtr {
        let stored = squeeze(data, kind.compress);
        let dvas: Vec<Dva> = vdevs.iter().map(|v| self.alloc(*v, stored.len(), false)).collect();
        dvas.iter().for_each(|dva| self.put(*dva, &stored));
        self.pointer(&stored, data.len(), kind, &dvas)
    }

    /// As [`Pool::write`], of an encrypted block.
    pub fn write_encrypted(&mut self, data: &[u8], kind: Kind, vdevs: &[usize], key: &DatasetKey) -> BlkPtr {
        let (salt, iv) = (0x1122_3344_5566_7788, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let mut stored = squeeze(data, kind.compress);
        let mac = key.encrypt_data(salt, iv, &mut stored).unwrap();
        let dvas: Vec<Dva> = vdevs.iter().map(|v| self.alloc(*v, stored.len(), false)).collect();
        dvas.iter().for_each(|dva| self.put(*dva, &stored));
        let mut bp = self.pointer(&stored, data.len(), Kind { crypt: true, ..kind }, &dvas);
        let e = kind.endian;
        let word = |b: &[u8]| e.u64(b.try_into().unwrap());
        bp.words[4] = word(&u64::to_le_bytes(salt));
        bp.words[5] = word(&iv[..8]);
        bp.words[11] |= u64::from(e.u32(iv[8..].try_into().unwrap())) << 32;
        set_mac(&mut bp, mac);
        bp
    }

    /// Opens the pool; devices named in `missing` (vdev, side) are not there.
    pub fn open(&self, missing: &[(usize, usize)]) -> Zio {
        self.open_with(missing, 64 << 20)
    }

    pub fn open_with(&self, missing: &[(usize, usize)], arc: u64) -> Zio {
        let guid = |v: usize, s: usize| 1000 + 10 * v as u64 + s as u64;
        let leaf = |v: usize, s: usize| {
            let mut list = node("disk", s as u64, guid(v, s));
            list.insert("path", format!("/dev/v{v}s{s}").as_str());
            list
        };
        let tops: Vec<NvList> = self
            .sides
            .iter()
            .enumerate()
            .map(|(v, sides)| {
                let mut top = node("mirror", v as u64, 100 + v as u64);
                top.insert("ashift", self.ashift);
                top.insert("asize", (DISK - LABELS - (512 << 10)) as u64);
                top.insert("children", (0..sides.len()).map(|s| leaf(v, s)).collect::<Vec<_>>());
                top
            })
            .collect();
        let mut root = node("root", 0, 1);
        root.insert("children", tops);
        let config = VdevConfig::parse(&root).unwrap();
        let tree = VdevTree::open(&config, &|leaf: Guid| {
            let (v, s) = ((leaf.0 as usize - 1000) / 10, (leaf.0 as usize - 1000) % 10);
            let device = MemoryDevice::new(self.sides[v][s].clone()).named(format!("/dev/v{v}s{s}"));
            (!missing.contains(&(v, s))).then(|| Arc::new(device) as Arc<dyn Device>)
        });
        let zio = Zio::new(Arc::new(tree.unwrap()), arc);
        zio.set_salt(SALT);
        zio
    }
}

pub fn node(kind: &str, id: u64, guid: u64) -> NvList {
    let mut list = NvList::new();
    list.insert("type", kind);
    list.insert("id", id);
    list.insert("guid", guid);
    list
}

/// The block as it is stored, padded to sectors.
pub fn squeeze(data: &[u8], compress: Compress) -> Vec<u8> {
    if compress == Compress::Off {
        return data.to_vec();
    }
    let mut stored = codec::compress(compress, None, data, data.len() - 512).unwrap();
    stored.resize(stored.len().next_multiple_of(512), 0);
    stored
}

pub fn set_mac(bp: &mut BlkPtr, mac: [u8; 16]) {
    bp.words[14] = bp.endian().u64(mac[..8].try_into().unwrap());
    bp.words[15] = bp.endian().u64(mac[8..].try_into().unwrap());
}
