//! Changes of ZAPs and attributes, of which one step fails: the ZAP has the entries that it had, and so it has on disk.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base::ObjectId;
use ondisk::zap::FatHeader;
use ondisk::{ObjectType, ObjsetType};

use super::pool::{TestPool, file};
use crate::sa::{Attr, SaValue, words};
use crate::{Error, NewZap, Objset, Zap, ZapValue};

type Model = BTreeMap<String, ZapValue>;

fn entries(zap: &Zap) -> Model {
    let entries = zap.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        (String::from_utf8(entry.name).unwrap(), entry.value)
    });
    entries.collect()
}

/// Adds and removes entries while the `n`th change fails. Returns whether one did.
fn run(new: &NewZap, names: &[String], value: &ZapValue, n: u64) -> bool {
    let pool = TestPool::new();
    let tx = pool.tx(10);
    let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Zfs, 0, &tx).unwrap();
    let zap = Zap::create_with(&tx, &os, new).unwrap();
    let mut model = Model::new();
    for name in names.iter().step_by(2) {
        zap.add_value(&tx, name, value).unwrap();
        model.insert(name.clone(), value.clone());
    }
    drop(tx);
    pool.sync(&os, 10);
    let tx = pool.tx(11);
    tx.fail_once(n);
    let was_to_fail = || tx.is_to_fail();
    let check = |failed: Result<(), Error>, model: &Model, what: &str| match failed {
        Ok(()) => {}
        Err(Error::Refused { what: "change that was to fail, in txg", .. }) => {
            assert!(entries(&zap) == *model, "{what}, change {n}");
            assert_eq!(zap.count(), model.len() as u64, "{what}, change {n}");
        }
        Err(error) => panic!("{what}, change {n}: {error}"),
    };
    for name in names.iter().skip(1).step_by(2) {
        let done = zap.add_value(&tx, name, value);
        if done.is_ok() {
            model.insert(name.clone(), value.clone());
        }
        check(done, &model, "add");
    }
    let other = ZapValue::from_u64(7);
    for name in names.iter().step_by(3).filter(|name| model.contains_key(*name)).cloned().collect::<Vec<_>>() {
        let done = zap.update_value(&tx, &name, &other);
        if done.is_ok() {
            model.insert(name, other.clone());
        }
        check(done, &model, "update");
    }
    for name in names.iter().skip(2) {
        let there = model.contains_key(name);
        let done = zap.remove(&tx, name).map(|gone| assert_eq!(gone, there));
        if done.is_ok() {
            model.remove(name);
        }
        check(done, &model, "remove");
    }
    let failed = !was_to_fail();
    drop(tx);
    let bp = pool.sync(&os, 11);
    let on_disk = Zap::open(pool.reopen(&bp).object(zap.object().id()).unwrap()).unwrap();
    assert!(entries(&on_disk) == model && on_disk.count() == model.len() as u64, "change {n}");
    pool.ledger.check(&os);
    failed
}

fn sweep(new: &NewZap, names: &[String], value: &ZapValue) -> u64 {
    (0..).find(|n| !run(new, names, value, *n)).unwrap()
}

#[test]
fn a_micro_zap_keeps_its_entries() {
    let new = NewZap { object_type: ObjectType::ZAP_OTHER, ..NewZap::default() };
    let names: Vec<String> = (0..40).map(|n| format!("name {n}")).collect();
    assert!(sweep(&new, &names, &ZapValue::from_u64(3)) > 70);
}

#[test]
fn a_micro_zap_that_becomes_fat_keeps_its_entries() {
    let new = NewZap { object_type: ObjectType::ZAP_OTHER, ..NewZap::default() };
    let mut names: Vec<String> = (0..20).map(|n| format!("name {n}")).collect();
    names[5] = format!("{:060}", 5);
    assert!(sweep(&new, &names, &ZapValue::from_u64(3)) > 40);
}

/// Leaves are split, the table of pointers grows, and leaves are joined again.
#[test]
fn a_fat_zap_keeps_its_entries() {
    let (object_type, flags) = (ObjectType::ZAP_OTHER, FatHeader::FLAG_HASH64);
    let new = NewZap { object_type, flags, block_shift: 10, ..NewZap::default() };
    let names: Vec<String> = (0..220).map(|n| format!("name {n}")).collect();
    assert!(sweep(&new, &names, &ZapValue::from_bytes(&[9; 300])) > 400);
}

#[test]
fn a_zap_that_is_not_made_leaves_no_object() {
    for flags in [0, FatHeader::FLAG_HASH64] {
        for n in 0.. {
            let pool = TestPool::new();
            let tx = pool.tx(10);
            let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Zfs, 0, &tx).unwrap();
            let parent = Zap::create(&tx, &os, ObjectType::ZAP_OTHER).unwrap();
            tx.fail_once(n);
            let new = NewZap { object_type: ObjectType::ZAP_OTHER, flags, ..NewZap::default() };
            let made = match flags {
                0 => Zap::create_link(&tx, &parent, "child", ObjectType::ZAP_OTHER),
                _ => Zap::create_with(&tx, &os, &new),
            };
            if tx.is_to_fail() {
                made.unwrap();
                break;
            }
            made.err().unwrap();
            drop(tx);
            let found = pool.reopen(&pool.sync(&os, 10));
            let all: Vec<ObjectId> = found.objects().map(|object| object.unwrap().id()).collect();
            assert_eq!(all, [parent.object().id()], "change {n}");
            assert_eq!(parent.count(), 0);
        }
    }
}

/// Attributes in the bonus buffer and in the spill block change together or not at all.
#[test]
fn attributes_change_together() {
    let value = |attr, word: u64| -> SaValue<'static> { (attr, Cow::Owned(words(&[word]))) };
    let packed = |len, byte| -> SaValue<'static> { (Attr::Dxattr, Cow::Owned(vec![byte; len])) };
    let states = [vec![packed(40, 1)], vec![packed(3000, 2)], vec![packed(3000, 3)], vec![packed(8, 4)]];
    for n in 0.. {
        let pool = TestPool::new();
        let tx = pool.tx(10);
        let (os, _, table) = pool.with_attributes(&tx);
        let file = file(&os, &tx, 1);
        table.replace_all(&tx, &file, &[value(Attr::Mode, 0), value(Attr::Size, 0)]).unwrap();
        tx.fail_once(n);
        let (mut mode, mut xattrs) = (0, None);
        for (at, state) in (1..).zip(&states) {
            let mut values = state.clone();
            values.push(value(Attr::Mode, at));
            match table.update(&tx, &file, &values) {
                Ok(()) => (mode, xattrs) = (at, Some(state[0].1.clone())),
                Err(error) => assert!(!tx.is_to_fail(), "{error}"),
            }
            let now = table.attrs(&file.reload().unwrap()).unwrap();
            assert_eq!(now.get(Attr::Mode).unwrap(), words(&[mode]), "change {n}");
            assert_eq!(now.get(Attr::Dxattr), xattrs.as_deref(), "change {n}");
        }
        let done = tx.is_to_fail();
        drop(tx);
        pool.reopen(&pool.sync(&os, 10));
        pool.ledger.check(&os);
        if done {
            break;
        }
    }
}
