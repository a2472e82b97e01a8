//! ZAPs and attributes that were changed, read back from disk by an object set that is only read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use base::ObjectId;
use ondisk::{ObjectType, ObjsetType};

use super::pool::{TestPool, file};
use crate::sa::{Attr, SaTable, SaValue, words};
use crate::testing::Rng;
use crate::{Error, Object, Objset, Tx, Zap, ZapValue};

/// A new object set, and a ZAP in it.
fn new_zap(pool: &TestPool, tx: &Tx) -> (Arc<Objset>, Zap) {
    let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Zfs, 0, tx).unwrap();
    let zap = Zap::create(tx, &os, ObjectType::ZAP_OTHER).unwrap();
    (os, zap)
}

fn compare(zap: &Zap, model: &BTreeMap<String, ZapValue>) {
    let entries = zap.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        (String::from_utf8(entry.name).unwrap(), entry.value)
    });
    assert!(entries.collect::<BTreeMap<_, _>>() == *model);
    assert_eq!(zap.count(), model.len() as u64);
    for (name, value) in model.iter().step_by(7) {
        assert_eq!(zap.lookup(name).unwrap().as_ref(), Some(value));
    }
}

#[test]
fn zaps_change_txg_by_txg() {
    let pool = TestPool::new();
    let tx = pool.tx(10);
    let (os, zap) = new_zap(&pool, &tx);
    drop(tx);
    let id = zap.object().id();
    let mut rng = Rng(11);
    let mut model = BTreeMap::new();
    for txg in 10..22 {
        let tx = pool.tx(txg);
        for _ in 0..700 {
            let name = format!("name {}", rng.below(4000));
            match rng.below(4) {
                0 => assert_eq!(zap.remove(&tx, &name).unwrap(), model.remove(&name).is_some()),
                1 => {
                    let value = ZapValue::from_bytes(&vec![3; rng.below(200)]);
                    zap.update_value(&tx, &name, &value).unwrap();
                    model.insert(name, value);
                }
                _ => {
                    zap.update_u64(&tx, &name, txg).unwrap();
                    model.insert(name, ZapValue::from_u64(txg));
                }
            }
        }
        drop(tx);
        let bp = pool.sync(&os, txg);
        let on_disk = pool.reopen(&bp);
        compare(&Zap::open(on_disk.object(id).unwrap()).unwrap(), &model);
        compare(&zap, &model);
    }
}

type Values = BTreeMap<Attr, Vec<u8>>;

#[test]
fn a_value_that_is_no_number_is_not_added_to() {
    let pool = TestPool::new();
    let tx = pool.tx(10);
    let (_os, zap) = new_zap(&pool, &tx);
    let value = ZapValue::from_ints(8, &[7, 8]);
    zap.add_value(&tx, "two", &value).unwrap();
    zap.add_u64(&tx, "one", 7).unwrap();
    assert_eq!(zap.increment(&tx, "one", -2).unwrap(), 5);
    assert!(matches!(zap.increment(&tx, "two", -2), Err(Error::Corrupt { .. })));
    assert_eq!(zap.lookup("two").unwrap(), Some(value));
}

#[test]
fn leaves_that_count_too_few_entries_keep_them() {
    let pool = TestPool::new();
    let tx = pool.tx(10);
    let (_os, zap) = new_zap(&pool, &tx);
    let names: Vec<String> = (0..1000).map(|n| format!("name {n}")).collect();
    names.iter().for_each(|name| zap.update(&tx, name, 8, &[1, 2, 3]).unwrap());
    assert!(zap.object().nblocks() > 3);
    for blkid in 1..zap.object().nblocks() {
        let change = |block: &mut [u8]| block[30..32].copy_from_slice(&1u16.to_le_bytes());
        zap.object().modify_block(&tx, blkid, change).unwrap();
    }
    // after the first one each leaf believes that it is empty
    let left: Vec<&String> = names.iter().filter(|name| zap.remove(&tx, name).is_err()).collect();
    assert!(left.len() > 900 && left.iter().all(|name| zap.lookup(name).unwrap().is_some()));
}

fn compare_attrs(table: &SaTable, object: &Object, model: &Values) {
    let attrs = table.attrs(object).unwrap();
    assert!(attrs.spill_error().is_none());
    let found: Values = attrs.present().map(|attr| (attr, attrs.get(attr).unwrap().to_vec())).collect();
    assert_eq!(found, *model);
}

fn value(rng: &mut Rng, attr: Attr) -> Vec<u8> {
    match attr {
        Attr::Atime | Attr::Mtime | Attr::Ctime | Attr::Crtime => words(&[rng.next(), 5]),
        Attr::Symlink | Attr::Dxattr => vec![rng.below(256) as u8; rng.below(9) * 20],
        Attr::DaclAces => vec![0; 8 * rng.below(5)],
        Attr::Scanstamp => vec![4; 32],
        _ => words(&[rng.next()]),
    }
}

#[test]
fn attributes_change_txg_by_txg() {
    let pool = TestPool::new();
    let tx = pool.tx(10);
    let (os, master, table) = pool.with_attributes(&tx);
    let first = [Attr::Mode, Attr::Size, Attr::Gen, Attr::Uid, Attr::Gid, Attr::Parent, Attr::Flags, Attr::Atime];
    let others = [
        Attr::Mtime,
        Attr::Links,
        Attr::Symlink,
        Attr::Dxattr,
        Attr::DaclAces,
        Attr::Scanstamp,
        Attr::Projid,
        Attr::Rdev,
    ];
    let mut rng = Rng(7);
    let mut files: Vec<(Object, Values)> = (0..20).map(|n| (file(&os, &tx, 1 + n % 2), Values::new())).collect();
    for (object, model) in &mut files {
        model.extend(first.map(|attr| (attr, value(&mut rng, attr))));
        let all: Vec<SaValue<'_>> = first.iter().map(|attr| (*attr, Cow::Borrowed(&model[attr][..]))).collect();
        table.replace_all(&tx, object, &all).unwrap();
    }
    drop(tx);
    for txg in 10..25 {
        let tx = pool.tx(txg);
        for (object, model) in &mut files {
            let some: Vec<Attr> = (0..1 + rng.below(3)).map(|_| others[rng.below(others.len())]).collect();
            if rng.below(4) == 0 {
                table.remove(&tx, object, &some).unwrap();
                model.retain(|attr, _| !some.contains(attr));
                continue;
            }
            let some: Vec<Attr> = some.into_iter().chain([first[rng.below(8)]]).collect();
            let new: Values = some.into_iter().map(|attr| (attr, value(&mut rng, attr))).collect();
            let all: Vec<SaValue<'_>> = new.iter().map(|(attr, value)| (*attr, Cow::Borrowed(&value[..]))).collect();
            table.update(&tx, object, &all).unwrap();
            model.extend(new);
        }
        drop(tx);
        let bp = pool.sync(&os, txg);
        let on_disk = pool.reopen(&bp);
        let read = SaTable::load(&on_disk, master).unwrap();
        for (object, model) in &files {
            compare_attrs(&read, &on_disk.object(object.id()).unwrap(), model);
            compare_attrs(&table, &object.reload().unwrap(), model);
        }
    }
    let registry = Zap::open(os.object(master).unwrap()).unwrap().lookup_u64("REGISTRY").unwrap().unwrap();
    assert_eq!(Zap::open(os.object(ObjectId(registry)).unwrap()).unwrap().count(), Attr::ALL.len() as u64);
    let long = (Attr::Dxattr, Cow::Owned(vec![0; 65_000]));
    let tx = pool.tx(25);
    table.update(&tx, &files[0].0, std::slice::from_ref(&long)).unwrap();
    assert_eq!(table.attrs(&files[0].0.reload().unwrap()).unwrap().get(Attr::Dxattr).unwrap().len(), 65_000);
    assert!(table.update(&tx, &files[0].0, &[(Attr::Mode, Cow::Owned(vec![1]))]).is_err());
    let more = [(Attr::Symlink, Cow::Owned(vec![0; 65_535])), (Attr::DaclAces, Cow::Owned(vec![0; 65_528])), long];
    assert!(table.update(&tx, &files[0].0, &more).is_err());
}

/// The header of a fat ZAP is believed about its blocks only as far as that can be true.
#[test]
fn a_header_that_cannot_be_is_an_error_when_the_zap_grows() {
    // first free block, leaves, entries; start of the table that is being made
    for words in [&[7, 8, 9][..], &[8], &[9], &[5]] {
        let pool = TestPool::new();
        let tx = pool.tx(10);
        let os = Objset::create(pool.zio.clone(), ObjectId(5), ObjsetType::Zfs, 0, &tx).unwrap();
        let object = {
            let zap = Zap::create(&tx, &os, ObjectType::ZAP_OTHER).unwrap();
            zap.add_value(&tx, "fat", &ZapValue::from_bytes(b"it is")).unwrap();
            zap.object().clone()
        };
        let edit = |block: &mut [u8]| words.iter().for_each(|n| block[n * 8..n * 8 + 8].fill(0xff));
        object.modify_block(&tx, 0, edit).unwrap();
        let zap = Zap::open(object).unwrap();
        let added = (0..40_000).find_map(|n| zap.add_u64(&tx, format!("name {n}"), n).err());
        assert_eq!(added.is_some(), words.contains(&7) || words.contains(&5), "{words:?}");
    }
}

/// Layouts belong to no file: a txg that uses one has it on disk, whichever txg entered it first.
#[test]
fn a_layout_that_a_newer_txg_has_entered_is_there_for_an_older_one() {
    let pool = TestPool::new();
    let tx = pool.tx(10);
    let (os, master, table) = pool.with_attributes(&tx);
    let files = [file(&os, &tx, 1), file(&os, &tx, 1)];
    let mut models = [Values::new(), Values::new()];
    let set = |tx: &Tx, n: usize, attr: Attr, model: &mut Values| {
        let value = words(&[attr as u64 + n as u64]);
        table.update(tx, &files[n], &[(attr, Cow::Borrowed(&value[..]))]).unwrap();
        model.insert(attr, value);
    };
    for (n, model) in models.iter_mut().enumerate() {
        set(&tx, n, Attr::Mode, model);
    }
    drop(tx);
    pool.sync(&os, 10);
    let (older, newer) = (pool.tx(11), pool.tx(12));
    let mut later = models[0].clone();
    for attr in [Attr::Links, Attr::Projid] {
        set(&newer, 0, attr, &mut later);
    }
    // one that the newer txg has entered, and one that comes after both of its own
    for attr in [Attr::Links, Attr::Rdev] {
        set(&older, 1, attr, &mut models[1]);
    }
    drop(older);
    set(&newer, 0, Attr::Gen, &mut later);
    drop(newer);
    let check = |txg: u64, models: [&Values; 2]| {
        let on_disk = pool.reopen(&pool.sync(&os, txg));
        let read = SaTable::load(&on_disk, master).unwrap();
        for (file, model) in files.iter().zip(models) {
            compare_attrs(&read, &on_disk.object(file.id()).unwrap(), model);
        }
    };
    check(11, [&models[0], &models[1]]);
    check(12, [&later, &models[1]]);
    assert_eq!(pool.holds.dirty.load(std::sync::atomic::Ordering::SeqCst), 0);
}
