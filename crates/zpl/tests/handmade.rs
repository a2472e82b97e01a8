//! File systems made by hand, in both byte orders, with what no fixture has: links that lead somewhere or form loops, directories
//! that contain each other, deleted files, ids of Windows domains, ACLs of the oldest form and in objects of their own.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;

use base::bytes::with_bits;
use base::{Endian, ObjectId, Txg};
use dmu::Objset;
use nvlist::{Encoding, NvList};
use ondisk::{BlkPtr, DNODE_SIZE, DnodePhys, Dva, ObjectType, VDEV_LABEL_START_SIZE};
use vdev::{MemoryDevice, VdevTree};
use zio::Zio;
use zpl::{AceType, Error, FileSystem, Follow, Fuid, Kind, Who};

const DIR: u64 = 0o040_755;
const FILE: u64 = 0o100_644;
const LINK: u64 = 0o120_777;

/// A file system of version 4 under construction: blocks without checksums, all dnodes in one block.
struct Maker {
    e: Endian,
    image: Vec<u8>,
    dnodes: Vec<u8>,
}

impl Maker {
    fn new(e: Endian) -> Maker {
        Maker { e, image: vec![0; VDEV_LABEL_START_SIZE as usize], dnodes: vec![0; 32 * DNODE_SIZE] }
    }

    fn block(&mut self, data: &[u8], object_type: ObjectType) -> BlkPtr {
        let mut block = data.to_vec();
        block.resize(data.len().next_multiple_of(512).max(512), 0);
        let at = self.image.len() as u64 - VDEV_LABEL_START_SIZE;
        let dva = Dva::new(0, at, block.len() as u64, false);
        let sectors = block.len() as u64 / 512 - 1;
        self.image.extend(block);
        let mut bp = BlkPtr::HOLE;
        (bp.words[0], bp.words[1], bp.words[10], bp.words[11]) = (dva.word0, dva.word1, 7, 1);
        let order = u64::from(self.e == Endian::Little);
        let fields = [
            (0, 16, sectors),
            (16, 16, sectors),
            (32, 7, 2),
            (40, 8, 2),
            (48, 8, object_type.0.into()),
            (63, 1, order),
        ];
        for (low, width, value) in fields {
            bp.words[6] = with_bits(bp.words[6], low, width, value);
        }
        assert_eq!(bp.birth_logical(), Txg(7));
        bp
    }

    fn object(&mut self, id: usize, object_type: ObjectType, bonus: (ObjectType, Vec<u8>), data: &[u8]) {
        let bp = if data.is_empty() { BlkPtr::HOLE } else { self.block(data, object_type) };
        let dn = dnode(self.e, object_type, bonus, bp, data.len());
        self.dnodes[id * DNODE_SIZE..][..DNODE_SIZE].copy_from_slice(&dn.encode());
    }

    /// Builds a small ZAP from names to words.
    fn zap(&mut self, id: usize, object_type: ObjectType, bonus: (ObjectType, Vec<u8>), entries: &[(&str, u64)]) {
        let e = self.e;
        let mut block = vec![0; 64 + entries.len() * 64];
        block[..8].copy_from_slice(&e.put_u64((1 << 63) + 3));
        block[8..16].copy_from_slice(&e.put_u64(0x5a17));
        for (at, (name, value)) in entries.iter().enumerate() {
            let entry = &mut block[64 + at * 64..][..64];
            entry[..8].copy_from_slice(&e.put_u64(*value));
            entry[14..14 + name.len()].copy_from_slice(name.as_bytes());
        }
        self.object(id, object_type, bonus, &block);
    }

    /// Builds the attributes of a file: `acl` are the 88 bytes of its ACL, `tail` the bytes after it.
    fn znode(
        &self,
        mode: u64,
        size: u64,
        parent: ObjectId,
        owner: u64,
        acl: &[u8],
        tail: &[u8],
    ) -> (ObjectType, Vec<u8>) {
        let mut raw = Vec::new();
        let words = [1, 2, 3, 4, 5, 6, 7, 8, 9, mode, size, parent.0, 1, 0, 0, 0, owner, 8, 0, 0, 0, 0];
        for word in words {
            raw.extend(self.e.put_u64(word));
        }
        raw.extend(acl);
        raw.resize(264, 0);
        raw.extend(tail);
        (ObjectType::ZNODE, raw)
    }

    fn dir(&mut self, id: usize, parent: ObjectId, entries: &[(&str, u64)]) {
        let znode = self.znode(DIR, entries.len() as u64 + 2, parent, 7, &[], &[]);
        self.zap(id, ObjectType::DIRECTORY_CONTENTS, znode, entries);
    }

    fn link(&mut self, id: usize, target: &str) {
        let znode = self.znode(LINK, target.len() as u64, ObjectId(2), 7, &[], target.as_bytes());
        self.object(id, ObjectType::PLAIN_FILE_CONTENTS, znode, &[]);
    }

    fn finish(mut self) -> FileSystem {
        let dnodes = std::mem::take(&mut self.dnodes);
        let bp = self.block(&dnodes, ObjectType::DNODE);
        let meta = dnode(self.e, ObjectType::DNODE, (ObjectType::NONE, Vec::new()), bp, dnodes.len());
        let mut root = vec![0; 1024];
        root[..DNODE_SIZE].copy_from_slice(&meta.encode());
        root[704..712].copy_from_slice(&self.e.put_u64(2));
        let root = self.block(&root, ObjectType::OBJSET);
        self.image.resize(self.image.len().next_multiple_of(256 << 10) + (1 << 20), 0);
        FileSystem::from_objset(Objset::open(zio_over(self.image), ObjectId(5), &root).unwrap(), false).unwrap()
    }
}

fn dnode(endian: Endian, object_type: ObjectType, bonus: (ObjectType, Vec<u8>), bp: BlkPtr, len: usize) -> DnodePhys {
    DnodePhys {
        object_type,
        indblkshift: 17,
        nlevels: 1,
        bonus_type: bonus.0,
        checksum: 0,
        compress: 0,
        flags: 1,
        datablkszsec: len.div_ceil(512).max(1) as u16,
        extra_slots: 0,
        maxblkid: 0,
        used: 0,
        blkptr: vec![bp],
        bonus: bonus.1,
        spill: None,
        pad: [0; 35],
        endian,
    }
}

fn zio_over(image: Vec<u8>) -> Arc<Zio> {
    let asize = image.len() as u64 - VDEV_LABEL_START_SIZE;
    let tree = VdevTree::of_one(Arc::new(MemoryDevice::new(image)), asize).unwrap();
    Arc::new(Zio::new(Arc::new(tree), 1 << 20))
}

/// Builds an entry of the old form, 12 bytes.
fn old_ace(e: Endian, who: u32, mask: u32, flags: u16, kind: u16) -> Vec<u8> {
    [&e.put_u32(who)[..], &e.put_u32(mask), &e.put_u16(flags), &e.put_u16(kind)].concat()
}

/// Builds an ACL's head: external object, count or size, version, count.
fn acl_head(e: Endian, external: u64, size: u32, version: u16, count: u16) -> Vec<u8> {
    [&e.put_u64(external)[..], &e.put_u32(size), &e.put_u16(version), &e.put_u16(count)].concat()
}

fn make(e: Endian) -> FileSystem {
    let none = || (ObjectType::NONE, Vec::new());
    let entry = |kind: u64, object: ObjectId| kind << 60 | object.0;
    let mut m = Maker::new(e);
    m.zap(1, ObjectType::MASTER_NODE, none(), &[("ROOT", 2), ("VERSION", 4), ("DELETE_QUEUE", 3), ("FUID", 20)]);
    m.dir(
        2,
        ObjectId(2),
        &[
            ("a", entry(4, ObjectId(4))),
            ("loop1", entry(10, ObjectId(5))),
            ("loop2", entry(10, ObjectId(6))),
            ("absolute", entry(10, ObjectId(7))),
            ("relative", entry(10, ObjectId(8))),
            ("up", entry(10, ObjectId(9))),
            ("domain", entry(8, ObjectId(14))),
            ("old", entry(8, ObjectId(15))),
            ("chain", entry(10, ObjectId(17))),
            ("liar", entry(4, ObjectId(10))),
            ("nowhere", entry(8, ObjectId(31))),
            ("huge", entry(10, ObjectId(18))),
        ],
    );
    m.zap(3, ObjectType::UNLINKED_SET, none(), &[("c", 12)]);
    m.dir(4, ObjectId(2), &[("f", entry(8, ObjectId(10))), ("parent", entry(10, ObjectId(19)))]);
    for (id, target) in
        [(5, "loop2"), (6, "/loop1"), (7, "/a/f"), (8, "./a/../a//f"), (9, "../../a/f/"), (17, "up"), (19, "..")]
    {
        m.link(id, target);
    }
    let file = m.znode(FILE, 5, ObjectId(4), 7, &[], &[]);
    m.object(10, ObjectType::PLAIN_FILE_CONTENTS, file, b"hello");
    m.dir(11, ObjectId(13), &[("c", entry(4, ObjectId(13)))]);
    m.dir(13, ObjectId(11), &[("b", entry(4, ObjectId(11)))]);
    let deleted = m.znode(FILE, 0, ObjectId(2), 7, &[], &[]);
    m.object(12, ObjectType::PLAIN_FILE_CONTENTS, deleted, &[]);
    let ace = [&e.put_u16(1)[..], &e.put_u16(0x40), &e.put_u32(2), &e.put_u64(1 << 32 | 512)].concat();
    let acl = [acl_head(e, 0, 16, 1, 1), ace].concat();
    let owned = m.znode(FILE, 0, ObjectId(2), 1 << 32 | 1001, &acl, &[]);
    m.object(14, ObjectType::PLAIN_FILE_CONTENTS, owned, &[]);
    let external = m.znode(FILE, 0, ObjectId(2), 7, &acl_head(e, 16, 7, 0, 0), &[]);
    m.object(15, ObjectType::PLAIN_FILE_CONTENTS, external, &[]);
    let old: Vec<u8> = (0..7).flat_map(|n| old_ace(e, 500 + n, 1, if n == 6 { 0x4000 } else { 0 }, 0)).collect();
    m.object(16, ObjectType::OLDACL, none(), &old);
    let huge = m.znode(LINK, u64::MAX, ObjectId(2), 7, &[], &[]);
    m.object(18, ObjectType::PLAIN_FILE_CONTENTS, huge, &[]);
    let mut domain = NvList::new();
    domain.insert("fuid_idx", 1u64);
    domain.insert("fuid_domain", "S-1-5-21-7");
    let mut table = NvList::new();
    table.insert("fuid_nvlist", vec![domain]);
    let packed = table.pack(Encoding::Xdr, Endian::Big).unwrap();
    m.object(20, ObjectType::FUID, (ObjectType::FUID_SIZE, e.put_u64(packed.len() as u64).to_vec()), &packed);
    m.finish()
}

fn both_orders(test: impl Fn(&FileSystem)) {
    for e in [Endian::Little, Endian::Big] {
        test(&make(e));
    }
}

#[test]
fn attributes_and_data() {
    both_orders(|fs| {
        let node = fs.resolve(b"a/f").unwrap();
        let a = node.attrs();
        assert_eq!((node.id(), a.size, a.uid(), a.gid(), a.kind()), (ObjectId(10), 5, 7, 8, Kind::File));
        assert_eq!((a.atime.sec, a.atime.nsec, a.crtime.sec, a.crtime.nsec, a.generation), (1, 2, 7, 8, 9));
        let mut buf = [0; 9];
        assert_eq!(node.read(0, &mut buf).unwrap(), 5);
        assert_eq!(&buf[..5], b"hello");
        assert_eq!(fs.version(), 4);
        assert!(matches!(fs.root_node().unwrap().read(0, &mut buf), Err(Error::IsDirectory { .. })));
    });
}

#[test]
fn links_lead_where_they_say() {
    both_orders(|fs| {
        let follow = |path: &str| fs.resolve_from(fs.root(), path.as_bytes(), Follow::Always).map(|n| n.id());
        for path in ["absolute", "relative", "a/../absolute", "a/parent/relative", "a/parent/a/parent/a/f"] {
            assert_eq!(follow(path).unwrap(), ObjectId(10), "{path}");
        }
        assert_eq!(follow("a/parent").unwrap(), ObjectId(2));
        assert_eq!(fs.resolve(b"a/parent").unwrap().id(), ObjectId(19));
        assert_eq!(fs.resolve_from(ObjectId(4), b"parent/a/f", Follow::Parents).unwrap().id(), ObjectId(10));
        assert!(matches!(fs.resolve(b"a/parent/a"), Err(Error::NotDirectory { .. })));
        // a trailing slash requires a directory, also after links
        assert!(matches!(follow("up"), Err(Error::NotDirectory { .. })));
        assert!(matches!(follow("chain"), Err(Error::NotDirectory { .. })));
        for path in ["loop1", "loop2", "loop1/x"] {
            assert!(matches!(follow(path), Err(Error::Loop { .. })), "{path}");
        }
    });
}

#[test]
fn lies_are_found_out() {
    both_orders(|fs| {
        assert!(matches!(fs.resolve(b"liar/x"), Err(Error::NotDirectory { .. })));
        assert!(fs.resolve(b"nowhere").is_err());
        assert!(fs.resolve(b"huge").is_err());
        for object in [11, 12, 13] {
            assert!(matches!(fs.path_of(ObjectId(object)), Err(Error::NoPath { .. })), "{object}");
        }
        assert_eq!(fs.path_of(ObjectId(10)).unwrap(), b"/a/f");
        assert_eq!(fs.delete_queue().unwrap(), [ObjectId(12)]);
        assert!(matches!(fs.node(ObjectId(16)), Err(Error::NotA { .. })));
    });
}

#[test]
fn domains_and_old_lists() {
    both_orders(|fs| {
        let owned = fs.resolve(b"domain").unwrap();
        assert_eq!(owned.attrs().uid(), 1001);
        assert_eq!(fs.fuids().unwrap().show(owned.attrs().owner), "S-1-5-21-7-1001");
        let acl = owned.acl().unwrap();
        assert_eq!((acl.aces[0].kind, acl.aces[0].who), (AceType::Deny, Who::NamedGroup(Fuid(1 << 32 | 512))));
        assert_eq!(acl.show(fs.fuids().unwrap()), "group:S-1-5-21-7-512:-w------------:-------:deny\n");
        let old = fs.resolve(b"old").unwrap().acl().unwrap();
        assert_eq!((old.aces.len(), old.aces[5].who, old.aces[6].who), (7, Who::User(Fuid(505)), Who::Everyone));
    });
}
