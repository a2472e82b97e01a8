//! ZAPs made by hand.

use base::Endian;
use ondisk::ObjectType;
use ondisk::zap::{MZAP_ENT_LEN, ZBT_MICRO};

use crate::testing::{Disk, dnode};
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

pub(super) fn open(block: Vec<u8>, endian: Endian) -> Result<Zap, Error> {
    let mut disk = Disk::new(endian);
    let dn = disk.object(ObjectType::DIRECTORY_CONTENTS, &[Some(block)], 17, 1);
    let root = disk.objset(&[(1, dn)]);
    Zap::open(disk.open(&root).object(1)?)
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
        (1, dnode(ObjectType::PLAIN_FILE_CONTENTS, Endian::Little)),
        (2, dnode(ObjectType::ZAP_OTHER, Endian::Little)),
    ]);
    let os = disk.open(&root);
    assert!(matches!(Zap::open(os.object(1).unwrap()), Err(Error::WrongType { .. })));
    assert!(matches!(Zap::open(os.object(2).unwrap()), Err(Error::Corrupt { .. })));
}
