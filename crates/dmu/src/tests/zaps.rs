//! ZAPs made by hand.

use base::{Endian, ObjectId};
use ondisk::ObjectType;
use ondisk::zap::{
    CHAIN_END, FatHeader, LEAF_ARRAY_BYTES, LEAF_CHUNK_SIZE, Leaf, MZAP_ENT_LEN, ZAP_LEAF_MAGIC, ZAP_MAGIC,
};
use ondisk::zap::{ZBT_HEADER, ZBT_LEAF, ZBT_MICRO};

use crate::testing::{Disk, dnode};
use crate::zap::hash;
use crate::{Error, MatchMode, Zap, ZapKind};

const SALT: u64 = 0x1234_5679;

/// A micro ZAP's block: names and values.
pub(super) fn micro(e: Endian, normflags: u64, entries: &[(&str, u64, u32)]) -> Vec<u8> {
    let mut block = Vec::new();
    for word in [ZBT_MICRO, SALT, normflags, 0, 0, 0, 0, 0] {
        block.extend(e.put_u64(word));
    }
    for (name, value, cd) in entries {
        let mut entry = [0; MZAP_ENT_LEN];
        entry[..8].copy_from_slice(&e.put_u64(*value));
        entry[8..12].copy_from_slice(&e.put_u32(*cd));
        entry[14..14 + name.len()].copy_from_slice(name.as_bytes());
        block.extend(entry);
    }
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

/// A fat ZAP of one leaf: its two blocks. Keys are names with their NUL, or big-endian words; values are of 16-bit integers.
pub(super) fn fat(e: Endian, flags: u64, entries: &[(&[u8], &[u16])]) -> Vec<Vec<u8>> {
    const SIZE: usize = 4096;
    let mut header = vec![0; SIZE];
    let mut word = |n: usize, v: u64| header[n * 8..][..8].copy_from_slice(&e.put_u64(v));
    for (n, v) in
        [(0, ZBT_HEADER), (1, ZAP_MAGIC), (4, 8), (7, 2), (8, 1), (9, entries.len() as u64), (10, SALT), (12, flags)]
    {
        word(n, v);
    }
    (256..512).for_each(|n| word(n, 1));
    let mut leaf = LeafBuilder { e, block: vec![0; SIZE], next: 0 };
    leaf.block[..8].copy_from_slice(&e.put_u64(ZBT_LEAF));
    leaf.block[24..28].copy_from_slice(&e.put_u32(ZAP_LEAF_MAGIC));
    leaf.block[30..32].copy_from_slice(&e.put_u16(entries.len() as u16));
    leaf.block[48..48 + SIZE / 16].fill(0xff);
    let word_keys = flags & FatHeader::FLAG_UINT64_KEY != 0;
    for (key, value) in entries {
        let hash = if word_keys {
            hash::of_key(SALT, &base::bytes::u64s(key, Endian::Big).collect::<Vec<_>>(), 28)
        } else {
            hash::of_name(SALT, base::bytes::until_nul(key), 28)
        };
        let ints = if word_keys { key.len() / 8 } else { key.len() };
        leaf.add(hash, key, ints as u16, &value.iter().flat_map(|v| v.to_be_bytes()).collect::<Vec<_>>());
    }
    vec![header, leaf.block]
}

struct LeafBuilder {
    e: Endian,
    block: Vec<u8>,
    next: u16,
}

impl LeafBuilder {
    fn chunk(&mut self, fields: &[&[u8]]) -> u16 {
        let at = 48 + self.block.len() / 16 + usize::from(self.next) * LEAF_CHUNK_SIZE;
        let raw = fields.concat();
        self.block[at..at + raw.len()].copy_from_slice(&raw);
        self.next += 1;
        self.next - 1
    }

    fn array(&mut self, bytes: &[u8]) -> u16 {
        let first = self.next;
        let mut pieces = bytes.chunks(LEAF_ARRAY_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            let mut data = [0; LEAF_ARRAY_BYTES];
            data[..piece.len()].copy_from_slice(piece);
            let link = if pieces.peek().is_some() { self.next + 1 } else { CHAIN_END };
            self.chunk(&[&[251], &data, &self.e.put_u16(link)]);
        }
        first
    }

    fn add(&mut self, hash: u64, key: &[u8], key_ints: u16, value: &[u8]) {
        let (e, name, data) = (self.e, self.array(key), self.array(value));
        let chain = 48 + 2 * Leaf::parse(&self.block, e).unwrap().chain_of(hash);
        let head = e.u16(self.block[chain..chain + 2].try_into().unwrap());
        let shorts = [head, name, key_ints, data, (value.len() / 2) as u16].map(|v| e.put_u16(v)).concat();
        let entry = self.chunk(&[&[252, 2], &shorts, &e.put_u32(0), &e.put_u64(hash)]);
        self.block[chain..chain + 2].copy_from_slice(&e.put_u16(entry));
    }
}

pub(super) fn open(block: Vec<u8>, endian: Endian) -> Result<Zap, Error> {
    open_blocks(&[block], endian)
}

fn open_blocks(blocks: &[Vec<u8>], endian: Endian) -> Result<Zap, Error> {
    let blocks: Vec<_> = blocks.iter().cloned().map(Some).collect();
    let mut disk = Disk::new(endian);
    let dn = disk.object(ObjectType::DIRECTORY_CONTENTS, &blocks, 17, 1);
    let root = disk.objset(&[(ObjectId(1), dn)]);
    Zap::open(disk.open(&root).object(ObjectId(1))?)
}

#[test]
fn a_micro_zap_is_looked_up_and_listed_in_order() {
    let names: Vec<String> = (0..100).map(|n| format!("name-{n}")).collect();
    let entries: Vec<_> = names.iter().enumerate().map(|(n, name)| (name.as_str(), n as u64, 0)).collect();
    for e in [Endian::Little, Endian::Big] {
        let zap = open(micro(e, 0, &entries), e).unwrap();
        assert_eq!((zap.kind(), zap.count(), zap.salt()), (ZapKind::Micro, 100, SALT));
        for (name, value, _) in &entries {
            assert_eq!(zap.lookup_u64(name).unwrap(), Some(*value));
        }
        assert_eq!(zap.lookup("name-100").unwrap(), None);
        assert_eq!(zap.lookup("").unwrap(), None);
        let all: Vec<_> = zap.entries().unwrap().map(Result::unwrap).collect();
        assert_eq!(all.len(), 100);
        assert!(all.is_sorted_by_key(|entry| (entry.hash, entry.cd)));
        for (n, entry) in all.iter().enumerate() {
            let rest: Vec<_> = zap.entries_from(entry.cookie).unwrap().map(Result::unwrap).collect();
            assert_eq!(rest, all[n..]);
            let next = zap.entries_from(entry.next_cookie).unwrap().next().map(Result::unwrap);
            assert_eq!(next.as_ref(), all.get(n + 1));
            assert!(entry.cookie < 1 << 28, "no collisions: the cookie is the hash");
        }
        assert_eq!(zap.entries_from(u64::MAX).unwrap().count(), 0);
        assert!(matches!(zap.lookup_norm("x", MatchMode::Normalize), Err(Error::KeyKind { .. })));
        assert!(matches!(zap.lookup_key(&[1]), Err(Error::KeyKind { .. })));
    }
}

#[test]
fn names_match_without_case_and_form() {
    let e = Endian::Little;
    let zap = open(micro(e, 0x52, &[("Straße", 1, 0), ("É", 2, 0), ("e\u{301}", 3, 1)]), e).unwrap();
    let find = |name: &str, mode| zap.lookup_norm(name, mode).unwrap().map(|m| (m.value.first(), m.conflict));
    assert_eq!(find("STRAßE", MatchMode::Normalize), Some((1, false)));
    assert_eq!(find("STRAßE", MatchMode::Exact), None);
    assert_eq!(find("STRAßE", MatchMode::NormalizeMatchCase), None);
    assert_eq!(find("é", MatchMode::Normalize), Some((2, true)));
    assert_eq!(find("é", MatchMode::NormalizeMatchCase), Some((3, false)));
    for _ in 0..6 {
        assert_eq!(zap.lookup_u64("e\u{301}").unwrap(), Some(3));
        assert_eq!(zap.lookup_u64("é").unwrap(), None);
    }
    let cookies: Vec<_> = zap.entries().unwrap().map(|entry| entry.unwrap().cookie >> 28).collect();
    assert_eq!(cookies.iter().sum::<u64>(), 1, "the second of two equal hashes has its differentiator in the cookie");
}

#[test]
fn what_is_no_zap_is_refused() {
    assert!(open(vec![0; 512], Endian::Little).is_err());
    let mut disk = Disk::new(Endian::Little);
    let root = disk.objset(&[
        (ObjectId(1), dnode(ObjectType::PLAIN_FILE_CONTENTS, Endian::Little)),
        (ObjectId(2), dnode(ObjectType::ZAP_OTHER, Endian::Little)),
    ]);
    let os = disk.open(&root);
    assert!(matches!(Zap::open(os.object(ObjectId(1)).unwrap()), Err(Error::WrongType { .. })));
    assert!(matches!(Zap::open(os.object(ObjectId(2)).unwrap()), Err(Error::Corrupt { .. })));
}

#[test]
fn a_fat_zap_is_looked_up_and_listed_in_both_orders() {
    let long = [b'x'; 100];
    for e in [Endian::Little, Endian::Big] {
        let zap = open_blocks(
            &fat(e, 0, &[(b"one\0", &[1]), (b"two\0", &[2, 3]), (&[&long[..], b"\0"].concat(), &[9; 30])]),
            e,
        )
        .unwrap();
        assert_eq!((zap.kind(), zap.count()), (ZapKind::Fat, 3));
        assert_eq!(zap.lookup("two").unwrap().unwrap().u16s(), Some(vec![2, 3]));
        assert_eq!(zap.lookup_u64("one").unwrap(), Some(1));
        assert_eq!(zap.lookup(long).unwrap().unwrap().u64s(), [9; 30]);
        assert_eq!(zap.lookup("three").unwrap(), None);
        let all: Vec<_> = zap.entries().unwrap().map(Result::unwrap).collect();
        assert!(all.len() == 3 && all.is_sorted_by_key(|entry| entry.hash));
        assert_eq!(zap.entries_from(all[1].next_cookie).unwrap().map(Result::unwrap).collect::<Vec<_>>(), all[2..]);
        assert_eq!(zap.stats().fat.unwrap().leafs_with_2n_pointers[8], 1);
    }
}

#[test]
fn keys_of_words_are_looked_up() {
    let key = [5u64, 1 << 40];
    let raw: Vec<u8> = key.iter().flat_map(|word| word.to_be_bytes()).collect();
    for e in [Endian::Little, Endian::Big] {
        let zap = open_blocks(&fat(e, FatHeader::FLAG_UINT64_KEY, &[(&raw, &[7])]), e).unwrap();
        assert_eq!(zap.lookup_key(&key).unwrap().unwrap().u64(), Some(7));
        assert_eq!(zap.lookup_key(&key[..1]).unwrap(), None);
        assert_eq!(zap.entries().unwrap().next().unwrap().unwrap().key(), key);
        assert!(matches!(zap.lookup("a"), Err(Error::KeyKind { .. })));
    }
}

#[test]
fn a_pointer_table_of_its_own_blocks_is_followed() {
    for e in [Endian::Little, Endian::Big] {
        let mut blocks = fat(e, 0, &[(b"one\0", &[1]), (b"two\0", &[2])]);
        // two blocks of 512 pointers from block 2 on; nothing in the header's own table
        for (word, value) in [(2, 2u64), (3, 2), (4, 10)] {
            blocks[0][word * 8..][..8].copy_from_slice(&e.put_u64(value));
        }
        blocks[0][2048..].fill(0);
        let table: Vec<u8> = (0..512).flat_map(|_| e.put_u64(1)).collect();
        blocks.extend([table.clone(), table]);
        let zap = open_blocks(&blocks, e).unwrap();
        assert_eq!((zap.lookup_u64("one").unwrap(), zap.lookup_u64("two").unwrap()), (Some(1), Some(2)));
        assert_eq!(zap.entries().unwrap().count(), 2);
        assert_eq!(zap.stats().fat.unwrap().leafs_with_2n_pointers[9], 1);
    }
}
