//! Mutated dnodes, indirect blocks, ZAPs and attributes give errors, never a panic or a hang.

use base::{Endian, ObjectId};
use ondisk::{BLKPTR_SIZE, BlkPtr, ObjectType};

use super::zaps::{fat, micro};
use crate::testing::{Disk, Rng, dnode};
use crate::{Below, MatchMode, Object, Walk, Zap};

/// Everything that a caller may ask of an object.
fn use_object(object: &Object) {
    let mut buf = vec![0; 4000];
    let _ = object.read(100, &mut buf);
    let _ = object.read_u64s(1 << 60, 9);
    for at in [0, 1, 5, 1 << 20, 1 << 50, u64::MAX] {
        let _ =
            (object.block(at), object.blkptr(1, at), object.blkptr(17, at), object.next_data(at), object.next_hole(at));
    }
    let mut budget = 3000;
    object.walk(&mut |_| {
        budget -= 1;
        if budget == 0 { Walk::Stop } else { Walk::Into }
    });
    let _ = object.spill();
    if let Ok(zap) = Zap::open_any(object.clone()) {
        use_zap(&zap);
    }
}

fn use_zap(zap: &Zap) {
    let entries: Vec<_> = zap.entries().unwrap().take(5000).collect();
    for entry in entries.iter().flatten().take(50) {
        let _ = (zap.lookup(&entry.name), zap.lookup_norm(&entry.name, MatchMode::Exact), zap.lookup_key(&entry.key()));
        let _ = zap.entries_from(entry.next_cookie).unwrap().take(3).count();
    }
    let _ = zap.stats();
}

#[test]
fn mutated_object_sets_do_no_harm() {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    for round in 0..600 {
        let endian = if round % 2 == 0 { Endian::Little } else { Endian::Big };
        let mut disk = Disk::new(endian);
        let mut zap = micro(endian, round % 3 * 0x12, &[("a", 1, 0), ("b", 2, 0), ("A", 3, 1)]);
        if round % 4 == 0 {
            rng.mutate(&mut zap);
        }
        let mut blocks = vec![Some(zap); 20];
        blocks[3] = None;
        let mut dn = disk.object(ObjectType::DIRECTORY_CONTENTS, &blocks, 10, 2);
        if round % 3 == 0 {
            // a mutated indirect block in place of the good one
            let mut block: Vec<u8> = (0..8).flat_map(|_| dn.blkptr[0].encode(endian)).collect();
            let from = rng.below(7) * BLKPTR_SIZE;
            rng.mutate(&mut block[from..]);
            dn.blkptr[0] = disk.write(&block, ObjectType::DIRECTORY_CONTENTS, 1, 9);
        }
        let mut raw = dn.encode();
        rng.mutate(&mut raw);
        let Ok(dn) = ondisk::DnodePhys::decode(&raw, endian) else { continue };
        if dn.object_type == ObjectType::NONE || dn.slots() > 8 {
            continue;
        }
        let root = disk.objset(&[(ObjectId(1), dn.clone()), (ObjectId(2 + dn.extra_slots as u64), dn)]);
        let os = disk.open(&root);
        for object in os.objects().take(100).flatten() {
            use_object(&object);
        }
        for id in 0..10 {
            let _ = (os.object(ObjectId(id)), os.next_object(ObjectId(id)));
        }
    }
}

#[test]
fn mutated_fat_zaps_do_no_harm() {
    let mut rng = Rng(0x1234_5678_9abc_def1);
    for round in 0..3000 {
        let endian = if round % 2 == 0 { Endian::Little } else { Endian::Big };
        let mut blocks = fat(endian, round % 3, &[(b"one\0", &[1]), (b"two\0", &[2; 40]), (b"12345678", &[3])]);
        let hit = rng.below(2);
        // the first part of a block matters most
        let len = if rng.below(2) == 0 { 104 } else { blocks[hit].len() };
        rng.mutate(&mut blocks[hit][..len]);
        let blocks: Vec<_> = blocks.into_iter().map(Some).collect();
        let mut disk = Disk::new(endian);
        let dn = disk.object(ObjectType::ZAP_OTHER, &blocks, 17, 1);
        let root = disk.objset(&[(ObjectId(1), dn)]);
        if let Ok(zap) = Zap::open(disk.open(&root).object(ObjectId(1)).unwrap()) {
            use_zap(&zap);
        }
    }
}

/// Object 1 of a set: a level-1 block without data, shared by every pointer above it, 8 to the 6th of them.
fn one_block_again_and_again(disk: &mut Disk) -> BlkPtr {
    let mut bp = disk.write(&[0; 1024], ObjectType::PLAIN_FILE_CONTENTS, 1, 1);
    for level in 2..=8 {
        let block: Vec<u8> = (0..8).flat_map(|_| bp.encode(Endian::Little)).collect();
        bp = disk.write(&block, ObjectType::PLAIN_FILE_CONTENTS, level, 1);
    }
    let mut dn = crate::testing::dnode(ObjectType::PLAIN_FILE_CONTENTS, Endian::Little);
    (dn.indblkshift, dn.nlevels, dn.maxblkid, dn.blkptr) = (10, 9, u64::MAX, vec![bp]);
    disk.objset(&[(ObjectId(1), dn)])
}

#[test]
fn a_tree_of_one_block_again_and_again_ends() {
    let mut disk = Disk::new(Endian::Little);
    let root = one_block_again_and_again(&mut disk);
    let object = disk.open(&root).object(ObjectId(1)).unwrap();
    assert!(object.next_data(0).is_err());
    assert_eq!(object.next_hole(0).unwrap(), 0);
    let mut told = 0;
    object.walk(&mut |visit| {
        told += u64::from(visit.damage.is_some());
        Walk::Into
    });
    assert!(told > 0, "more blocks than the pool has room for");
}

#[test]
fn a_pool_that_claims_more_than_its_devices_have_hides_no_circle() {
    let mut disk = Disk::new(Endian::Little);
    let root = one_block_again_and_again(&mut disk);
    let object = crate::Objset::open(disk.zio_of(1 << 60), ObjectId(5), &root).unwrap().object(ObjectId(1)).unwrap();
    assert!(object.most_blocks() < 1 << 20);
    let mut told = 0;
    object.walk(&mut |visit| {
        told += u64::from(visit.damage.is_some());
        Walk::Into
    });
    assert!(told > 0, "more blocks than the device has room for");
}

/// A block of level 2: holes, a pointer that lies about its level, `good` ones.
fn with_one_bad_pointer(disk: &mut Disk, t: ObjectType, good: BlkPtr, fill: u64) -> BlkPtr {
    let bad = disk.write(&[0; 1024], t, 3, fill);
    let pointers = [BlkPtr::HOLE, BlkPtr::HOLE, bad, good, BlkPtr::HOLE, good, BlkPtr::HOLE, BlkPtr::HOLE];
    let block: Vec<u8> = pointers.iter().flat_map(|bp| bp.encode(Endian::Little)).collect();
    disk.write(&block, t, 2, 3 * fill)
}

#[test]
fn what_lies_below_a_bad_pointer_is_told_of_once() {
    let mut disk = Disk::new(Endian::Little);
    let t = ObjectType::PLAIN_FILE_CONTENTS;
    let leaf = disk.write(&[1; 512], t, 0, 1).encode(Endian::Little);
    let good = disk.write(&leaf.repeat(8), t, 1, 8);
    let mut dn = dnode(t, Endian::Little);
    (dn.indblkshift, dn.nlevels, dn.maxblkid) = (10, 3, 63);
    dn.blkptr = vec![with_one_bad_pointer(&mut disk, t, good, 8)];

    // the same of a meta-dnode, whose blocks have 32 dnodes
    let mut block = vec![0; 32 * 512];
    block[5 * 512..6 * 512].copy_from_slice(&dn.encode());
    let leaf = disk.write(&block, ObjectType::DNODE, 0, 1).encode(Endian::Little);
    let good = disk.write(&leaf.repeat(8), ObjectType::DNODE, 1, 8);
    let mut meta = dnode(ObjectType::DNODE, Endian::Little);
    (meta.indblkshift, meta.nlevels, meta.maxblkid, meta.datablkszsec) = (10, 3, 47, 32);
    meta.blkptr = vec![with_one_bad_pointer(&mut disk, ObjectType::DNODE, good, 8)];
    let mut root = vec![0; 4096];
    root[..512].copy_from_slice(&meta.encode());
    root[704] = 2;
    let root = disk.write(&root, ObjectType::OBJSET, 0, 24);
    let os = disk.open(&root);

    let mut objects = os.objects();
    let (mut seen, mut lost) = (Vec::new(), Vec::new());
    while let Some(found) = objects.next() {
        match found {
            Ok(object) => seen.push(object.id()),
            Err(_) => lost.push(objects.lost()),
        }
    }
    assert_eq!(lost, [Some(Below::Objects { first: ObjectId(512), last: ObjectId(767) })]);
    let blocks = (24..32).chain(40..48);
    assert_eq!(seen, blocks.map(|blkid| ObjectId(blkid * 32 + 5)).collect::<Vec<_>>());

    let object = os.object(seen[0]).unwrap();
    let mut cursor = object.cursor();
    assert!(cursor.next_block(0).is_err());
    assert_eq!((cursor.damaged(), cursor.behind_damage()), (16..24, Some(24)));
    assert_eq!((cursor.next_block(24).unwrap(), cursor.next_block(32).unwrap()), (Some(24), Some(40)));
    assert_eq!((cursor.unreachable(20), cursor.unreachable(25)), (16..24, 25..26));
    let mut told = Vec::new();
    object.walk(&mut |visit| {
        told.extend(visit.damage.map(|_| visit.below()));
        Walk::Into
    });
    let below = Below::Data { first: 16, last: 23, block_size: 512 };
    assert_eq!((told, below.to_string()), (vec![Some(below)], "blocks 16-23 (bytes 8192-12287)".to_owned()));
}
