//! ZAPs that change, held against maps in memory.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Endian, ObjectId, Txg};
use ondisk::zap::FatHeader;
use ondisk::{ObjectType, ObjsetType};

use super::{NewZap, Zap, ZapKind, ZapValue};
use crate::testing::{Disk, Rng};
use crate::{Error, Objset, Tx};

fn objset() -> (Arc<Objset>, Tx) {
    let tx = Tx::syncing(Txg(10));
    let zio = Disk::new(Endian::Little).zio();
    (Objset::create(zio, ObjectId(5), ObjsetType::Zfs, 0, &tx).unwrap(), tx)
}

type Model = BTreeMap<Vec<u8>, ZapValue>;

/// Checks that the ZAP holds what the model holds, by its cursor, also after all handles are gone. Returns a new handle.
fn check(zap: Zap, model: &Model) -> Zap {
    let object = zap.object().clone();
    drop(zap);
    let zap = Zap::open(object.reload().unwrap()).unwrap();
    let mut cookie = None;
    let entries: Model = zap
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let here = (entry.hash, entry.cd);
            assert!(cookie.is_none_or(|before| before < here), "the cursor goes forward");
            cookie = Some(here);
            (entry.name, entry.value)
        })
        .collect();
    assert_eq!(entries.len(), model.len());
    assert!(entries == *model);
    assert_eq!(zap.count(), model.len() as u64);
    for (name, value) in model {
        if !zap.has_word_keys() {
            assert_eq!(zap.lookup(name).unwrap().as_ref(), Some(value));
        }
    }
    if let Some(fat) = zap.stats().fat {
        assert_eq!(fat.leafs_with_2n_pointers.iter().sum::<u64>(), fat.header.num_leafs);
    }
    zap
}

#[test]
fn a_micro_zap_grows_and_becomes_fat() {
    let (os, tx) = objset();
    let zap = Zap::create(&tx, &os, ObjectType::ZAP_OTHER).unwrap();
    let mut model = Model::new();
    for n in 0..2047u64 {
        zap.add_u64(&tx, format!("entry {n}"), n * n).unwrap();
        model.insert(format!("entry {n}").into_bytes(), ZapValue::from_u64(n * n));
        if n == 6 {
            assert_eq!(zap.stats().blocksize, 512);
        }
    }
    assert_eq!((zap.kind(), zap.stats().blocksize), (ZapKind::Micro, 128 << 10));
    let zap = check(zap, &model);
    assert!(matches!(zap.add_u64(&tx, "entry 5", 0), Err(Error::KeyExists { .. })));
    // a freed place is taken before it grows
    assert!(zap.remove(&tx, "entry 77").unwrap() && !zap.remove(&tx, "entry 77").unwrap());
    zap.add_u64(&tx, "other", 1).unwrap();
    assert_eq!(zap.kind(), ZapKind::Micro);
    zap.add_u64(&tx, "one too many", 2).unwrap();
    assert_eq!((zap.kind(), zap.stats().blocksize), (ZapKind::Fat, 16 << 10));
    model.remove(&b"entry 77"[..]);
    model.insert(b"other".to_vec(), ZapValue::from_u64(1));
    model.insert(b"one too many".to_vec(), ZapValue::from_u64(2));
    check(zap, &model);
}

#[test]
fn what_a_micro_zap_cannot_hold_makes_it_fat() {
    let (os, tx) = objset();
    let long = vec![b'x'; 50];
    let values =
        [ZapValue::from_text("text"), ZapValue::from_ints(2, &[1, 2, 0xffff]), ZapValue::from_ints(8, &[1, 2])];
    for (name, value) in values.iter().map(|v| (b"a".to_vec(), v.clone())).chain([(long, ZapValue::from_u64(1))]) {
        let zap = Zap::create(&tx, &os, ObjectType::ZAP_OTHER).unwrap();
        zap.add_u64(&tx, "first", 7).unwrap();
        zap.update_value(&tx, &name, &value).unwrap();
        assert_eq!(zap.kind(), ZapKind::Fat);
        let model = Model::from([(b"first".to_vec(), ZapValue::from_u64(7)), (name, value)]);
        check(zap, &model);
    }
}

#[test]
fn names_and_values_have_limits() {
    let (os, tx) = objset();
    let zap = Zap::create(&tx, &os, ObjectType::ZAP_OTHER).unwrap();
    for name in [&b""[..], b"a\0b", &[b'x'; 256]] {
        assert!(matches!(zap.add_u64(&tx, name, 1), Err(Error::Refused { .. })));
    }
    assert!(zap.add_value(&tx, "a", &ZapValue::from_bytes(&[0; 8193])).is_err());
    assert!(zap.add(&tx, "a", 3, &[1]).is_err());
    assert!(zap.add_key(&tx, &[1], &ZapValue::from_u64(1)).is_err());
    zap.add_value(&tx, "a", &ZapValue::from_bytes(&[9; 8192])).unwrap();
    zap.add_value(&tx, [b'y'; 255], &ZapValue::from_bytes(&[9; 8192])).unwrap();
    assert_eq!(zap.lookup([b'y'; 255]).unwrap().unwrap().bytes.len(), 8192);
    let dir = Zap::create(&tx, &os, ObjectType::DIRECTORY_CONTENTS).unwrap();
    dir.add_u64(&tx, [b'z'; 1023], 5).unwrap();
    assert_eq!(dir.lookup_u64([b'z'; 1023]).unwrap(), Some(5));
}

#[test]
fn increments_come_and_go() {
    let (os, tx) = objset();
    let zap = Zap::create(&tx, &os, ObjectType::ZAP_OTHER).unwrap();
    for _ in 0..2 {
        assert_eq!(zap.increment(&tx, "n", 5).unwrap(), 5);
        assert_eq!(zap.increment(&tx, "n", -2).unwrap(), 3);
        assert_eq!(zap.increment(&tx, "n", -3).unwrap(), 0);
        assert_eq!(zap.lookup("n").unwrap(), None);
        assert_eq!(zap.increment_int(&tx, 0x1f, -1).unwrap(), u64::MAX);
        assert_eq!(zap.lookup_u64("1f").unwrap(), Some(u64::MAX));
        assert!(zap.remove_int(&tx, 0x1f).unwrap());
        zap.update(&tx, "makes it fat", 1, &[1]).unwrap();
    }
}

/// Random changes; names and values of all lengths.
fn random(seed: u64, steps: usize, names: usize, new: &NewZap) -> Zap {
    let (os, tx) = objset();
    let mut rng = Rng(seed);
    let mut zap = Zap::create_with(&tx, &os, new).unwrap();
    let mut model = Model::new();
    for step in 0..steps {
        let n = rng.below(names);
        let name = match n % 7 {
            0 => format!("{n:0>200}"),
            1 => format!("{n:0>70}"),
            _ => format!("name {n}"),
        }
        .into_bytes();
        let value = match rng.below(20) {
            0 => ZapValue::from_bytes(&vec![n as u8; rng.below(300)]),
            1 => ZapValue::from_ints(2, &vec![n as u64 & 0xffff; rng.below(100)]),
            2 => ZapValue::from_ints(4, &[n as u64, 2, 3]),
            _ => ZapValue::from_u64(rng.next()),
        };
        match rng.below(10) {
            0..4 => match zap.add_value(&tx, &name, &value) {
                Ok(()) => assert_eq!(model.insert(name, value), None),
                Err(Error::KeyExists { .. }) => assert!(model.contains_key(&name)),
                Err(error) => panic!("{error}"),
            },
            4..7 => {
                zap.update_value(&tx, &name, &value).unwrap();
                model.insert(name, value);
            }
            _ => assert_eq!(zap.remove(&tx, &name).unwrap(), model.remove(&name).is_some()),
        }
        if step % (steps / 4) == 0 {
            zap = check(zap, &model);
        }
    }
    let mut zap = check(zap, &model);
    // and back to nothing: leaves are joined again
    for name in std::mem::take(&mut model).into_keys() {
        assert!(zap.remove(&tx, name).unwrap());
    }
    zap = check(zap, &model);
    if let Some(fat) = zap.stats().fat {
        assert_eq!(fat.header.num_leafs, 1);
    }
    zap
}

#[test]
fn random_changes_of_few_names() {
    let new = NewZap { object_type: ObjectType::ZAP_OTHER, ..NewZap::default() };
    (1..6).for_each(|seed| drop(random(seed * 77, 600, 60, &new)));
}

#[test]
fn random_changes_of_many_names() {
    let new = NewZap { object_type: ObjectType::ZAP_OTHER, salt: 99, ..NewZap::default() };
    random(3, 12_000, 6000, &new);
    let hashed = NewZap { flags: FatHeader::FLAG_HASH64, block_shift: 12, normflags: 0x12, ..new };
    random(4, 12_000, 6000, &hashed);
}

#[test]
fn a_small_block_grows_its_table_out_of_the_header() {
    let (os, tx) = objset();
    let new = NewZap {
        object_type: ObjectType::ZAP_OTHER,
        flags: FatHeader::FLAG_HASH64,
        block_shift: 10,
        ..NewZap::default()
    };
    let zap = Zap::create_with(&tx, &os, &new).unwrap();
    let mut model = Model::new();
    let entries: Vec<(Vec<u8>, ZapValue)> =
        (0..6000u64).map(|n| (format!("{n}").into_bytes(), ZapValue::from_u64(n))).collect();
    zap.add_many(&tx, &entries).unwrap();
    model.extend(entries);
    let table = zap.stats().fat.unwrap().header.ptrtbl;
    assert!(table.numblks > 2 && 1 << table.shift == table.numblks * 128);
    check(zap, &model);
}

#[test]
fn keys_of_words() {
    for flags in [FatHeader::FLAG_UINT64_KEY, FatHeader::FLAG_UINT64_KEY | FatHeader::FLAG_PRE_HASHED_KEY] {
        let (os, tx) = objset();
        let new = NewZap {
            object_type: ObjectType::DDT_ZAP,
            flags: FatHeader::FLAG_HASH64 | flags,
            block_shift: 12,
            ..NewZap::default()
        };
        let zap = Zap::create_with(&tx, &os, &new).unwrap();
        assert!(zap.has_word_keys() && zap.add_u64(&tx, "name", 1).is_err());
        let mut rng = Rng(5);
        let mut model: BTreeMap<Vec<u64>, ZapValue> = BTreeMap::new();
        let keys: Vec<Vec<u64>> = (0..1500).map(|_| (0..5).map(|_| rng.next()).collect()).collect();
        for _ in 0..5000 {
            let key = keys[rng.below(keys.len())].clone();
            let value = ZapValue::from_bytes(&vec![7; 1 + rng.below(90)]);
            match rng.below(3) {
                0 => assert_eq!(zap.remove_key(&tx, &key).unwrap(), model.remove(&key).is_some()),
                _ => {
                    zap.update_key(&tx, &key, &value).unwrap();
                    model.insert(key, value);
                }
            }
        }
        for (key, value) in &model {
            assert_eq!(zap.lookup_key(key).unwrap().as_ref(), Some(value));
        }
        let encode = |key: &Vec<u64>| key.iter().flat_map(|word| word.to_be_bytes()).collect();
        check(zap, &model.iter().map(|(key, value)| (encode(key), value.clone())).collect());
    }
}

#[test]
fn names_that_normalise_alike_collide_and_are_told_apart() {
    let (os, tx) = objset();
    let new = NewZap { object_type: ObjectType::DIRECTORY_CONTENTS, normflags: 0x2, ..NewZap::default() };
    let zap = Zap::create_with(&tx, &os, &new).unwrap();
    let spell =
        |n: u32| -> Vec<u8> { (0..7).map(|bit| if n >> bit & 1 == 1 { b'A' + bit } else { b'a' + bit }).collect() };
    let mut model = Model::new();
    for n in 0..100 {
        zap.add_u64(&tx, spell(n), n.into()).unwrap();
        model.insert(spell(n), ZapValue::from_u64(n.into()));
    }
    assert_eq!(zap.kind(), ZapKind::Micro);
    let zap = check(zap, &model);
    for n in 100..128 {
        zap.add_u64(&tx, spell(n), n.into()).unwrap();
        model.insert(spell(n), ZapValue::from_u64(n.into()));
    }
    // so many of one hash must fit in one leaf
    assert_eq!(zap.kind(), ZapKind::Fat);
    let zap = check(zap, &model);
    let found = zap.lookup_norm(b"ABCDEFG", super::MatchMode::Normalize).unwrap().unwrap();
    assert!(found.conflict);
    for n in 0..128 {
        assert!(zap.remove(&tx, spell(n)).unwrap());
    }
    check(zap, &Model::new());
}

#[test]
fn too_many_of_one_hash_are_refused() {
    let (os, tx) = objset();
    let new = NewZap {
        object_type: ObjectType::DDT_ZAP,
        flags: FatHeader::FLAG_HASH64 | FatHeader::FLAG_UINT64_KEY | FatHeader::FLAG_PRE_HASHED_KEY,
        block_shift: 10,
        ..NewZap::default()
    };
    let zap = Zap::create_with(&tx, &os, &new).unwrap();
    let full = (0..100u64).find_map(|n| zap.add_key(&tx, &[5 << 60, n], &ZapValue::from_u64(n)).err());
    assert!(matches!(full, Some(Error::TooManyCollisions { .. })), "{full:?}");
}

#[test]
fn a_cursor_keeps_its_place_while_entries_come_and_go() {
    let (os, tx) = objset();
    let zap = Zap::create(&tx, &os, ObjectType::DIRECTORY_CONTENTS).unwrap();
    for n in 0..3000u64 {
        zap.add_u64(&tx, format!("stays {n}"), n).unwrap();
        zap.add_u64(&tx, format!("goes {n}"), n).unwrap();
    }
    let (mut seen, mut cookie, mut extra) = (Vec::new(), 0, 0);
    // page by page, as readdir does it, with changes in between
    loop {
        let page: Vec<_> = zap.entries_from(cookie).unwrap().take(50).map(Result::unwrap).collect();
        let Some(last) = page.last() else { break };
        cookie = last.next_cookie;
        seen.extend(page.iter().filter(|e| e.name.starts_with(b"stays")).map(|e| e.value.first()));
        for entry in page.iter().filter(|e| e.name.starts_with(b"goes")) {
            assert!(zap.remove(&tx, &entry.name).unwrap());
        }
        for _ in 0..20 {
            extra += 1;
            zap.add_u64(&tx, format!("extra {extra}"), 0).unwrap();
        }
        if extra > 20_000 {
            break;
        }
    }
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..3000));
}

#[test]
fn handles_share_what_changes_and_a_reused_number_starts_anew() {
    let (os, tx) = objset();
    let one = Zap::create(&tx, &os, ObjectType::ZAP_OTHER).unwrap();
    let two = Zap::open(os.object(one.object().id()).unwrap()).unwrap();
    one.add_value(&tx, "a", &ZapValue::from_text("x")).unwrap();
    assert_eq!(two.lookup("a").unwrap().unwrap().str(), Some("x"));
    two.add_u64(&tx, "b", 1).unwrap();
    assert_eq!((one.count(), one.kind()), (2, ZapKind::Fat));
    let id = one.object().id();
    let three = Zap::create_with(&tx, &os, &NewZap { id: Some(id.saturating_add(9)), ..new_zap() }).unwrap();
    three.add_u64(&tx, "c", 1).unwrap();
    os.free_object(&tx, id.saturating_add(9)).unwrap();
    let four = Zap::create(&tx, &os, ObjectType::ZAP_OTHER).unwrap();
    assert_eq!(four.count(), 0);
    drop(three);
    assert_eq!(Zap::open(four.object().clone()).unwrap().count(), 0);
}

fn new_zap() -> NewZap {
    NewZap { object_type: ObjectType::ZAP_OTHER, ..NewZap::default() }
}

#[test]
fn a_hundred_thousand_entries_take_little_time() {
    let (os, tx) = objset();
    let zap = Zap::create(&tx, &os, ObjectType::DIRECTORY_CONTENTS).unwrap();
    let start = std::time::Instant::now();
    for n in 0..100_000u64 {
        zap.add_u64(&tx, format!("file-{n:08}.dat"), n).unwrap();
    }
    eprintln!("100 000 adds: {:?}", start.elapsed());
    assert_eq!(zap.count(), 100_000);
    assert!(start.elapsed().as_secs() < 20);
}

/// A ZAP made of another one has its names with the one value, goes on from there, and nothing is shared.
#[test]
fn a_zap_made_like_another_has_its_names_and_one_value() {
    let deep = NewZap {
        object_type: ObjectType::ZAP_OTHER,
        flags: FatHeader::FLAG_HASH64,
        block_shift: 10,
        ..NewZap::default()
    };
    let plain = NewZap { object_type: ObjectType::ZAP_OTHER, ..NewZap::default() };
    for (new, count) in [(plain, 0), (plain, 5), (plain, 2047), (plain, 2048), (plain, 9000), (deep, 0), (deep, 6000)] {
        let (os, tx) = objset();
        let zap = Zap::create_with(&tx, &os, &new).unwrap();
        let mut model = Model::new();
        let gone = |n: &u64| n % 7 == 3;
        for n in 0..count + 40 {
            zap.add_u64(&tx, format!("{n:x}"), n).unwrap();
        }
        // leaves that were joined again, and places that are free
        for n in (0..count + 40).filter(|n| gone(n) || *n >= count) {
            assert!(zap.remove(&tx, format!("{n:x}")).unwrap());
        }
        model.extend((0..count).filter(|n| !gone(n)).map(|n| (format!("{n:x}").into_bytes(), ZapValue::from_u64(n))));
        let mut numbers = Model::new();
        zap.for_each_number(|name, n| {
            assert!(numbers.insert(name.to_vec(), ZapValue::from_u64(n)).is_none());
            Ok::<(), Error>(())
        })
        .unwrap();
        assert!(numbers == model);
        let bonus =
            NewZap { object_type: ObjectType::DEADLIST, bonus_type: ObjectType::DEADLIST_HDR, bonus_len: 320, ..plain };
        let like = zap.create_like(&tx, &bonus, 77).unwrap();
        assert_eq!((like.kind(), like.object().phys().object_type), (zap.kind(), ObjectType::DEADLIST));
        assert_eq!(like.object().bonus().len(), 320);
        let mut same: Model = model.keys().map(|name| (name.clone(), ZapValue::from_u64(77))).collect();
        let like = check(like, &same);
        for n in 0..3000u64 {
            like.update_u64(&tx, format!("more {n}"), n).unwrap();
            same.insert(format!("more {n}").into_bytes(), ZapValue::from_u64(n));
        }
        check(like, &same);
        check(zap, &model);
    }
}

#[test]
fn values_that_are_no_numbers_are_no_model() {
    let (os, tx) = objset();
    let zap = Zap::create(&tx, &os, ObjectType::ZAP_OTHER).unwrap();
    zap.add_u64(&tx, "number", 1).unwrap();
    zap.add_value(&tx, "text", &ZapValue::from_text("text")).unwrap();
    let objects = || (1..64).filter(|id| os.object(ObjectId(*id)).is_ok()).count();
    let before = objects();
    assert!(zap.create_like(&tx, &NewZap { object_type: ObjectType::ZAP_OTHER, ..NewZap::default() }, 7).is_err());
    assert_eq!(objects(), before);
}
