use ::base::Endian;
use ondisk::zap::{Leaf, MicroZap, ZAP_LEAF_MAGIC, ZBT_LEAF, ZBT_MICRO};
use ondisk::{ObjectType, zap};

use super::to_ours;

const ZAP: u32 = 21;

fn swapped(object_type: ObjectType, data: &[u8]) -> Vec<u8> {
    let mut ours = data.to_vec();
    to_ours(object_type.0.into(), Endian::Big, &mut ours).unwrap_or_else(|e| panic!("{e}"));
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
    let ours = swapped(ObjectType(ZAP as u8), &theirs);
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
    let ours = swapped(ObjectType(ZAP as u8), &theirs);
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
    // system attributes tell their order themselves
    assert_eq!(swapped(ObjectType::SA, &data), data);
    assert_eq!(swapped(ObjectType(0x83), &data)[..8], [7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(swapped(ObjectType(0x82), &data)[..4], [3, 2, 1, 0]);
    let mut same = data.clone();
    assert!(to_ours(u32::from(ObjectType::DNODE.0), Endian::Big, &mut same).is_err());
    assert!(to_ours(u32::from(ObjectType::DNODE.0), Endian::Little, &mut same).is_ok());
}
