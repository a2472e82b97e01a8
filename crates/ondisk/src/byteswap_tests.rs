use base::{Endian, Txg};

use super::to_little;
use crate::zap::{self, Leaf, MicroZap, ZAP_LEAF_MAGIC, ZBT_LEAF, ZBT_MICRO};
use crate::{BlkPtr, DNODE_SIZE, DnodePhys, Dva, ObjectType};

const ZAP: ObjectType = ObjectType::MASTER_NODE;

fn swapped(object_type: ObjectType, data: &[u8]) -> Vec<u8> {
    let mut ours = data.to_vec();
    to_little(object_type, Endian::Big, &mut ours).unwrap_or_else(|e| panic!("{e}"));
    ours
}

/// A micro ZAP as a big-endian machine writes it.
fn micro() -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..8].copy_from_slice(&ZBT_MICRO.to_be_bytes());
    block[8..16].copy_from_slice(&0x1122_3344u64.to_be_bytes());
    for (n, name) in [(1, &b"first"[..]), (3, b"another")] {
        let entry = &mut block[n * 64..(n + 1) * 64];
        entry[..8].copy_from_slice(&(n as u64 * 1000).to_be_bytes());
        entry[8..12].copy_from_slice(&(n as u32).to_be_bytes());
        entry[14..14 + name.len()].copy_from_slice(name);
    }
    block
}

#[test]
fn a_micro_zap_says_the_same_in_both_orders() {
    let theirs = micro();
    let ours = swapped(ZAP, &theirs);
    let of = |block: &[u8], order| -> Vec<(u64, u32, Vec<u8>)> {
        let zap = MicroZap::parse(block, order).unwrap_or_else(|e| panic!("{e}"));
        (0..zap.capacity()).filter_map(|n| zap.entry(n)).map(|e| (e.value, e.cd, e.name.to_vec())).collect()
    };
    assert_eq!(of(&ours, Endian::Little), of(&theirs, Endian::Big));
    assert_eq!(of(&ours, Endian::Little)[2], (3000, 3, b"another".to_vec()));
}

/// A leaf with one entry, its name and its value, as a big-endian machine writes it.
fn leaf() -> Vec<u8> {
    let mut block = vec![0; 1024];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &ZBT_LEAF.to_be_bytes());
    put(16, &5u64.to_be_bytes());
    put(24, &ZAP_LEAF_MAGIC.to_be_bytes());
    for (at, value) in [(28, 30u16), (30, 1), (32, 3), (34, 4)] {
        put(at, &value.to_be_bytes());
    }
    for bucket in 0..32 {
        let first = if bucket == 7 { 0u16 } else { zap::CHAIN_END };
        put(48 + bucket * 2, &first.to_be_bytes());
    }
    let chunk = |n: usize| 48 + 64 + n * 24;
    put(chunk(0), &[252, 8]);
    for (n, value) in [zap::CHAIN_END, 1, 5, 2, 1].into_iter().enumerate() {
        put(chunk(0) + 2 + n * 2, &value.to_be_bytes());
    }
    put(chunk(0) + 12, &9u32.to_be_bytes());
    put(chunk(0) + 16, &0x1234_5678_9abc_def0u64.to_be_bytes());
    put(chunk(1), b"\xfbname\0");
    put(chunk(1) + 22, &zap::CHAIN_END.to_be_bytes());
    put(chunk(2), &[251]);
    put(chunk(2) + 1, &77u64.to_be_bytes());
    put(chunk(2) + 22, &zap::CHAIN_END.to_be_bytes());
    put(chunk(3), &[253]);
    put(chunk(3) + 22, &4u16.to_be_bytes());
    block
}

#[test]
fn a_leaf_says_the_same_in_both_orders() {
    let theirs = leaf();
    let ours = swapped(ZAP, &theirs);
    let of = |block: &[u8], order| {
        let leaf = Leaf::parse(block, order).unwrap_or_else(|e| panic!("{e}"));
        let entry = leaf.entry(0).unwrap_or_else(|e| panic!("{e}"));
        let chains: Vec<usize> = (0..leaf.hash_entries()).map(|n| leaf.chain(n).count()).collect();
        (entry.hash, entry.cd, chains, leaf.name(&entry, false).ok(), leaf.value(&entry).ok())
    };
    let found = of(&ours, Endian::Little);
    assert_eq!(found, of(&theirs, Endian::Big));
    assert_eq!((found.0, found.1, found.2[7]), (0x1234_5678_9abc_def0, 9, 1));
}

#[test]
fn words_are_turned_and_bytes_are_not() {
    let data: Vec<u8> = (0..16).collect();
    assert_eq!(swapped(ObjectType::PLAIN_FILE_CONTENTS, &data), data);
    // system attributes record their own byte order
    assert_eq!(swapped(ObjectType::SA, &data), data);
    assert_eq!(swapped(ObjectType(0x83), &data)[..8], [7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(swapped(ObjectType(0x82), &data)[..4], [3, 2, 1, 0]);
    let mut same = data.clone();
    for unknown in [ObjectType::OBJSET, ObjectType(100), ObjectType(0x9f)] {
        assert!(to_little(unknown, Endian::Big, &mut same).is_err());
        assert!(to_little(unknown, Endian::Little, &mut same).is_ok());
    }
    assert_eq!(same, data);
}

/// A dnode with pointers, a bonus buffer of words and perhaps a spill block.
fn a_dnode(endian: Endian, extra_slots: u8, spill: bool) -> DnodePhys {
    let mut bp = BlkPtr::HOLE;
    let dva = Dva::new(3, 0x1000, 0x2000, false);
    (bp.words[0], bp.words[1], bp.words[10]) = (dva.word0, dva.word1, Txg(77).0);
    DnodePhys {
        object_type: ObjectType::DSL_DIR,
        indblkshift: 17,
        nlevels: 1,
        bonus_type: ObjectType::DSL_DIR,
        checksum: 0,
        compress: 3,
        flags: DnodePhys::FLAG_USED_BYTES | if spill { DnodePhys::FLAG_SPILL_BLKPTR } else { 0 },
        datablkszsec: 0x0102,
        extra_slots,
        maxblkid: 0x0102_0304,
        used: 0x0506,
        blkptr: vec![bp],
        bonus: (1u64..9).flat_map(|n| endian.put_u64(n)).collect(),
        spill: spill.then_some(bp),
        pad: [7; 35],
        endian,
    }
}

#[test]
fn a_block_of_dnodes_says_the_same_in_both_orders() {
    let of = |order| {
        let mut block = a_dnode(order, 0, false).encode();
        block.extend([0; DNODE_SIZE]);
        block.extend(a_dnode(order, 2, true).encode());
        block.extend(a_dnode(order, 0, true).encode());
        block
    };
    assert_eq!(swapped(ObjectType::DNODE, &of(Endian::Big)), of(Endian::Little));
    // one that claims to be longer than the block, and a malformed one
    let mut cut = of(Endian::Big);
    cut[12] = 200;
    let _ = swapped(ObjectType::DNODE, &cut);
    for len in 0..40 {
        let _ = swapped(ObjectType::DNODE, &vec![0xff; len * 64]);
    }
}

#[test]
fn a_dnode_that_is_turned_is_as_its_writer_meant_it() {
    let turned = a_dnode(Endian::Big, 1, true).into_little().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(turned, a_dnode(Endian::Little, 1, true));
    let unknown = DnodePhys { bonus_type: ObjectType(100), ..a_dnode(Endian::Big, 0, false) };
    assert!(unknown.into_little().is_err());
}
