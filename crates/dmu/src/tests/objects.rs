//! Objects: found, read, searched, walked, in both byte orders.

use base::{Endian, ObjectId};
use ondisk::{BlkPtr, DnodePhys, ObjectType};

use crate::testing::{Disk, dnode, dnode_with_bonus};
use crate::{Error, Object, Walk};

const ORDERS: [Endian; 2] = [Endian::Little, Endian::Big];

/// Blocks 0, 1, 40 and 77 of 512 bytes have data, the rest are holes; three levels of indirect blocks of 8 pointers.
fn sparse(disk: &mut Disk) -> DnodePhys {
    let mut blocks = vec![None; 78];
    for n in [0usize, 1, 40, 77] {
        blocks[n] = Some(vec![n as u8 + 1; 512]);
    }
    disk.object(ObjectType::PLAIN_FILE_CONTENTS, &blocks, 10, 4)
}

fn open_sparse(endian: Endian) -> Object {
    let mut disk = Disk::new(endian);
    let dn = sparse(&mut disk);
    let root = disk.objset(&[(ObjectId(1), dn)]);
    disk.open(&root).object(ObjectId(1)).unwrap()
}

#[test]
fn objects_are_found_between_free_slots_and_large_dnodes() {
    for endian in ORDERS {
        let mut disk = Disk::new(endian);
        let mut large = dnode_with_bonus(ObjectType::PLAIN_FILE_CONTENTS, ObjectType::SA, vec![0xaa; 900]);
        large.extra_slots = 3;
        let small = dnode(ObjectType::PLAIN_FILE_CONTENTS, endian);
        // object 33 begins the second block; block 2 to 7 are holes; the meta-dnode has three levels
        let root = disk.objset(&[
            (ObjectId(1), small.clone()),
            (ObjectId(4), large.clone()),
            (ObjectId(8), small.clone()),
            (ObjectId(33), large.clone()),
            (ObjectId(300), small.clone()),
        ]);
        let os = disk.open(&root);
        let ids: Vec<ObjectId> = os.objects().map(|o| o.unwrap().id()).collect();
        assert_eq!(ids, [1, 4, 8, 33, 300].map(ObjectId));
        let mut by_next = Vec::new();
        let mut at = ObjectId::NONE;
        while let Some(next) = os.next_object(at).unwrap() {
            by_next.push(next);
            at = next;
        }
        assert_eq!(by_next, ids);
        assert_eq!(os.next_object(ObjectId(4)).unwrap(), Some(ObjectId(8)), "slots inside a large dnode are none");
        assert_eq!(os.objects_from(ObjectId(5)).next().unwrap().unwrap().id(), ObjectId(8));
        assert_eq!(os.object(ObjectId(33)).unwrap().bonus(), [0xaa; 900]);
        for absent in [2, 5, 6, 7, 31, 32, 34, 64, 299, 301, 1 << 47, u64::MAX - 7] {
            assert!(matches!(os.object(ObjectId(absent)), Err(Error::NoObject { .. })), "{absent}");
        }
        assert_eq!(os.next_object(ObjectId(300)).unwrap(), None);
        assert_eq!(os.next_object(ObjectId(u64::MAX)).unwrap(), None);
    }
}

#[test]
fn a_range_reads_over_data_holes_and_the_end() {
    for endian in ORDERS {
        let object = open_sparse(endian);
        assert_eq!(object.phys().nlevels, 4);
        let mut expected = vec![0u8; 100 * 512];
        for n in [0usize, 1, 40, 77] {
            expected[n * 512..][..512].fill(n as u8 + 1);
        }
        for (offset, len) in [
            (0, 100 * 512),
            (500, 600),
            (511, 2),
            (1000, 20_000),
            (40 * 512 + 1, 511),
            (77 * 512 - 3, 3000),
            (90_000, 5),
        ] {
            let want: Vec<u8> = (offset..offset + len).map(|at| expected.get(at).copied().unwrap_or(0)).collect();
            assert_eq!(object.read_vec(offset as u64, len).unwrap(), want, "{offset} {len}");
        }
        let mut buf = [9; 16];
        object.read(u64::MAX - 4, &mut buf).unwrap();
        assert_eq!(buf, [0; 16]);
        assert_eq!(object.block(2).unwrap(), None);
        assert_eq!(object.block(78).unwrap(), None);
        assert_eq!(object.block(u64::MAX).unwrap(), None);
        assert_eq!(object.block_with_endian(40).unwrap().unwrap().1, endian);
        assert_eq!(object.endian_of(2).unwrap(), None);
    }
}

#[test]
fn data_and_holes_are_searched() {
    let object = open_sparse(Endian::Little);
    let data = |from| object.next_data(from).unwrap();
    let hole = |from| object.next_hole(from).unwrap();
    assert_eq!(
        [0, 5, 1023, 1024, 40 * 512 + 9, 41 * 512].map(data),
        [0, 5, 1023, 40 * 512, 40 * 512 + 9, 77 * 512].map(Some)
    );
    assert_eq!(data(78 * 512), None);
    assert_eq!([0, 1024, 1030, 40 * 512, 77 * 512].map(hole), [1024, 1024, 1030, 41 * 512, 78 * 512]);
    assert_eq!(hole(1 << 40), 1 << 40);
}

#[test]
fn a_full_subtree_is_passed_by_its_fill_count() {
    let mut disk = Disk::new(Endian::Little);
    let mut blocks = vec![Some(vec![1; 512]); 100];
    blocks[90] = None;
    let dn = disk.object(ObjectType::PLAIN_FILE_CONTENTS, &blocks, 10, 1);
    let root = disk.objset(&[(ObjectId(1), dn)]);
    let object = disk.open(&root).object(ObjectId(1)).unwrap();
    assert_eq!(object.next_hole(0).unwrap(), 90 * 512);
    assert_eq!(object.next_hole(91 * 512).unwrap(), 100 * 512);
}

#[test]
fn pointers_of_each_level_are_given() {
    let object = open_sparse(Endian::Big);
    assert_eq!(object.blkptr(3, 0).unwrap().unwrap().level(), 3);
    assert_eq!(object.blkptr(1, 5).unwrap().unwrap().level(), 1);
    assert!(object.blkptr(1, 6).unwrap().unwrap().is_hole());
    assert!(object.blkptr(0, 2).unwrap().unwrap().is_hole());
    assert_eq!(object.blkptr(0, 20).unwrap(), None, "below a hole");
    assert_eq!(object.blkptr(4, 0).unwrap(), None);
    assert_eq!(object.blkptr(200, 0).unwrap(), None);
}

#[test]
fn a_walk_is_in_order_and_can_skip_and_stop() {
    let mut disk = Disk::new(Endian::Little);
    let dn = sparse(&mut disk);
    let root = disk.objset(&[(ObjectId(1), dn.clone()), (ObjectId(40), dn)]);
    let os = disk.open(&root);
    let mut seen = Vec::new();
    assert!(os.object(ObjectId(1)).unwrap().walk(&mut |v| {
        if !v.bp.is_hole() {
            seen.push((v.level, v.bookmark.blkid));
        }
        assert!(v.damage.is_none());
        Walk::Into
    }));
    assert_eq!(seen, [(3, 0), (2, 0), (1, 0), (0, 0), (0, 1), (1, 5), (0, 40), (2, 1), (1, 9), (0, 77)]);

    let mut objects = Vec::new();
    assert!(os.walk(&mut |v| {
        if v.level == 0 && !v.bp.is_hole() {
            objects.push((v.bookmark.object.0, v.bookmark.blkid));
        }
        if v.bookmark.object == ObjectId(1) && v.level == 1 { Walk::Skip } else { Walk::Into }
    }));
    assert_eq!(objects, [(0, 0), (0, 1), (40, 0), (40, 1), (40, 40), (40, 77)]);

    let mut count = 0;
    assert!(!os.walk(&mut |_| {
        count += 1;
        if count == 5 { Walk::Stop } else { Walk::Into }
    }));
    assert_eq!(count, 5);
}

#[test]
fn a_lost_indirect_block_is_told_and_passed() {
    let mut disk = Disk::new(Endian::Little);
    let blocks = vec![Some(vec![1; 512]); 8];
    let mut dn = disk.object(ObjectType::PLAIN_FILE_CONTENTS, &blocks, 10, 2);
    let good = dn.blkptr[0];
    let mut lost = good;
    lost.words[6] = base::bytes::with_bits(lost.words[6], 56, 5, 2);
    dn.blkptr = vec![lost, good];
    dn.maxblkid = 15;
    let root = disk.objset(&[(ObjectId(1), dn)]);
    let object = disk.open(&root).object(ObjectId(1)).unwrap();
    let (mut told, mut data) = (0, 0);
    object.walk(&mut |v| {
        told += usize::from(v.damage.is_some());
        data += usize::from(v.level == 0);
        Walk::Into
    });
    assert_eq!((told, data), (1, 8));
    assert!(object.block(0).is_err());
    assert!(object.block(8).unwrap().is_some());
    let mut objects = object.objset().objects();
    assert!(objects.next().unwrap().is_ok() && objects.next().is_none());
}

#[test]
fn words_are_read_in_the_order_of_each_block() {
    let mut disk = Disk::new(Endian::Little);
    let words = |e: Endian, from: u64| Some((from..from + 64).flat_map(|n| e.put_u64(n)).collect::<Vec<u8>>());
    let little = disk.object(ObjectType::OBJECT_ARRAY, &[words(Endian::Little, 0)], 17, 1);
    disk.endian = Endian::Big;
    let big = disk.object(ObjectType::OBJECT_ARRAY, &[words(Endian::Big, 64)], 17, 1);
    let mut dn = dnode(ObjectType::OBJECT_ARRAY, Endian::Little);
    (dn.blkptr, dn.maxblkid) = (vec![little.blkptr[0], big.blkptr[0]], 1);
    let root = disk.objset(&[(ObjectId(1), dn)]);
    let object = disk.open(&root).object(ObjectId(1)).unwrap();
    let mut expected: Vec<u64> = (3..128).collect();
    expected.resize(200, 0);
    assert_eq!(object.read_u64s(3, 200).unwrap(), expected);
}

#[test]
fn objects_behind_lost_blocks_of_dnodes_are_found() {
    let mut disk = Disk::new(Endian::Little);
    let mut block = vec![0; 32 * 512];
    block[512 * 3..][..512].copy_from_slice(&dnode(ObjectType::PLAIN_FILE_CONTENTS, Endian::Little).encode());
    // 24 blocks of dnodes under three indirect blocks of eight pointers
    let mut meta = disk.object(ObjectType::DNODE, &vec![Some(block.clone()); 24], 10, 2);
    let spoil = |bp: &mut BlkPtr| bp.words[6] = base::bytes::with_bits(bp.words[6], 56, 5, 9);
    let top = meta.blkptr[0];
    let mut pointers: Vec<BlkPtr> = (0..3).map(|_| disk_pointer(&mut disk, &block)).collect();
    spoil(&mut pointers[1]);
    let upper: Vec<u8> = pointers.iter().flat_map(|bp| bp.encode(Endian::Little)).collect();
    let mut upper_block = vec![0; 1024];
    upper_block[..upper.len()].copy_from_slice(&upper);
    let bp = disk.write(&upper_block, ObjectType::DNODE, 2, 24);
    assert_eq!((top.level(), meta.nlevels), (2, 3));
    meta.blkptr = vec![bp];
    let mut root = vec![0; 4096];
    root[..512].copy_from_slice(&meta.encode());
    let root = disk.write(&root, ObjectType::OBJSET, 0, 1);
    let os = disk.open(&root);
    let found: Vec<_> = os.objects().map(|o| o.map(|o| o.id()).ok()).collect();
    // the second block under the first and the third indirect block is lost; the second indirect block as a whole
    let group = |first: u64| [Some(ObjectId(first * 32 + 3)), None, Some(ObjectId((first + 2) * 32 + 3))];
    assert_eq!(found, [&group(0)[..], &[None], &group(16)].concat());
}

/// An indirect block: a block of dnodes, one that cannot be read, the first again, holes.
fn disk_pointer(disk: &mut Disk, block: &[u8]) -> BlkPtr {
    let good = disk.write(block, ObjectType::DNODE, 0, 1);
    let mut lost = good;
    lost.words[6] = base::bytes::with_bits(lost.words[6], 56, 5, 9);
    let mut indirect = vec![0; 1024];
    for (n, bp) in [good, lost, good].iter().enumerate() {
        indirect[n * 128..][..128].copy_from_slice(&bp.encode(Endian::Little));
    }
    disk.write(&indirect, ObjectType::DNODE, 1, 3)
}

/// The errors that a counting walk reports of object 1, or of the set.
fn counted(change: impl Fn(&mut Disk, &mut DnodePhys, &mut BlkPtr), endian: Endian) -> Vec<String> {
    let mut disk = Disk::new(endian);
    let mut dn = sparse(&mut disk);
    let mut none = BlkPtr::HOLE;
    change(&mut disk, &mut dn, &mut none);
    let mut root = disk.objset(&[(ObjectId(1), dn.clone()), (ObjectId(2), dn)]);
    change(&mut disk, &mut dnode(ObjectType::NONE, endian), &mut root);
    let mut told = Vec::new();
    disk.open(&root).walk_counting(&mut |visit| {
        told.extend(visit.damage.map(ToString::to_string).filter(|_| visit.bookmark.object < ObjectId(2)));
        Walk::Into
    });
    told
}

#[test]
fn a_wrong_fill_count_is_told_of_and_what_counts_one_too_many_of_old_is_not() {
    for endian in ORDERS {
        assert!(counted(|_, _, _| {}, endian).is_empty());
        let one_more = |_: &mut Disk, dn: &mut DnodePhys, _: &mut BlkPtr| dn.blkptr[0].words[11] += 1;
        let says = |block: &str, counted: u64, found: u64| {
            format!("object {block}: the fill count of its pointer is {counted}, which should be {found}")
        };
        assert_eq!(counted(one_more, endian), [says("1 of dataset 5, level 3, block 0", 5, 4)]);
        // a hole counts nothing whatever it says, embedded and redacted blocks one each, data one
        let mixed = |disk: &mut Disk, dn: &mut DnodePhys, root: &mut BlkPtr| {
            if root.words[6] != 0 {
                return;
            }
            let t = ObjectType::PLAIN_FILE_CONTENTS;
            let (mut hole, mut embedded, mut redacted) = (BlkPtr::HOLE, BlkPtr::HOLE, BlkPtr::HOLE);
            (hole.words[10], hole.words[11]) = (9, 9);
            embedded.words[6] = 1 << 39 | u64::from(endian == Endian::Little) << 63;
            redacted.words[6] = embedded.words[6] | 2 << 40;
            let data = disk.write(&[1; 512], t, 0, 3);
            let pointers = [hole, embedded, redacted, data, hole, hole, hole, hole];
            let block: Vec<u8> = pointers.iter().flat_map(|bp| bp.encode(endian)).collect();
            dn.blkptr[0] = disk.write(&block, t, 1, 5);
            (dn.nlevels, dn.maxblkid) = (2, 7);
        };
        assert_eq!(counted(mixed, endian), [says("1 of dataset 5, level 0, block 3", 3, 1)]);
        // the set: two objects, which once were three with the meta-dnode
        let root = |fill: u64| move |_: &mut Disk, _: &mut DnodePhys, root: &mut BlkPtr| root.words[11] = fill;
        assert!(counted(root(3), endian).is_empty());
        assert_eq!(counted(root(4), endian), [says("0 of dataset 5, level -1, block 0", 4, 2)]);
    }
}
