//! A view that carries over what earlier ones read shows what a pool shows that is opened from its devices at that moment.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use dmu::{NewObject, Object};
use ondisk::{ObjectType, ObjsetType};
use pool::testing::{Dice, key};
use pool::{
    ChangeKey, Dataset, Error, ListOptions, NewDataset, NewKey, OpenOptions, Pool, PropSource, Source, Spa, Value,
};
use vdev::{Device, MemoryDevice};

/// Steps of a run.
const STEPS: usize = 150;
/// Steps for which a view is kept before it is looked at.
const KEPT: usize = 3;

/// Properties that are stored, inherited and computed.
const PROPS: [&str; 12] = [
    "compression",
    "readonly",
    "quota",
    "used",
    "usedbychildren",
    "referenced",
    "written",
    "createtxg",
    "origin",
    "encryption",
    "keyformat",
    "mountpoint",
];

/// What a pool shows of its datasets and of itself.
type Portrait = BTreeMap<String, String>;

fn dataset_portrait(ds: &Dataset, out: &mut Portrait) -> Result<(), Error> {
    let (name, dir) = (ds.name(), ds.dir());
    let mut put = |what: &str, shown: String| out.insert(format!("{name} {what}"), shown);
    put("itself", format!("{} {:?} {:?} {:?}", ds.id(), ds.kind()?, ds.head_kind()?, ds.phys()));
    put("directory", format!("{} {:?} {:?}", dir.id(), dir.phys(), dir.snapshots_changed()?));
    let props = PROPS.iter().map(|name| ds.prop(name)).collect::<Result<Vec<_>, _>>()?;
    put("properties", format!("{props:?} {:?}", ds.user_props()?));
    put("snapshots", format!("{:?}", ds.snapshots()?));
    put("children", format!("{:?}", ds.children()?));
    put("origin", format!("{:?} {:?}", ds.origin()?, ds.clones()?));
    put("neighbours", format!("{:?} {:?}", ds.prev_snap()?, ds.next_snap()?));
    put("holds", format!("{:?} {:?}", ds.holds()?, ds.userrefs()?));
    put("bookmarks", format!("{:?}", ds.bookmarks()?));
    put("features", format!("{:?}", ds.features()?));
    let key = ds.crypto()?.map(|key| (key.object, key.root_dir, key.wrapped.master, key.keyformat, key.refcount));
    put("key", format!("{key:?} {:?}", ds.encryption_root()?));
    Ok(())
}

fn portrait(pool: &Arc<Pool>) -> Portrait {
    let mut out = Portrait::new();
    out.insert("features".to_string(), format!("{:?}", pool.features()));
    out.insert("config".to_string(), format!("{:?}", pool.config()));
    let own =
        pool.props().unwrap().into_iter().filter(|(name, value)| value.source == Source::Local && name != "cachefile");
    out.insert("properties".to_string(), format!("{:?}", own.collect::<Vec<_>>()));
    let all = pool.list("t", &ListOptions { special: true, ..ListOptions::ALL }).unwrap();
    for entry in &all {
        out.insert(format!("{} is listed", entry.name()), String::new());
        let Some(listed) = entry.dataset() else { continue };
        // by the list, by its name and by its number it is the same
        let named = pool.dataset(entry.name()).unwrap();
        let numbered = pool.dataset_by_id(listed.id()).unwrap();
        assert_eq!((listed.id(), named.name()), (named.id(), numbered.name()));
        dataset_portrait(&numbered, &mut out).unwrap();
    }
    out
}

/// The pool as its devices have it, read by another program.
fn cold(devices: &[Arc<MemoryDevice>]) -> Arc<Pool> {
    let named = |d: &Arc<MemoryDevice>| (PathBuf::from(d.name()), d.clone() as Arc<dyn Device>);
    let found = vdev::import::scan_devices(devices.iter().map(named).collect());
    Pool::open(found.first().unwrap(), &OpenOptions::default()).unwrap()
}

fn create(spa: &Arc<Spa>, name: &str, key: Option<NewKey>) -> Result<(), Error> {
    let new = NewDataset {
        key,
        ..NewDataset::inheriting(name, if name.contains('v') { ObjsetType::Zvol } else { ObjsetType::Zfs })
    };
    spa.create_dataset(new, Box::new(|_, _| Ok(())))
}

fn write(spa: &Arc<Spa>, name: &str, seed: u64) -> Result<(), Error> {
    let objset = spa.objset(&spa.view()?.dataset(name)?)?;
    let tx = spa.tx(1 << 20)?;
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 4096, ..NewObject::default() };
    let object: Object = objset.alloc_object(&tx, &new)?;
    Ok(object.write(&tx, 0, &pool::testing::noise(1, seed)[..8192])?)
}

/// Whether it was done. What was refused changes nothing.
fn done(result: Result<(), Error>) -> bool {
    match result {
        Ok(()) => true,
        Err(Error::Refused { .. } | Error::Many(_) | Error::InvalidName { .. }) => false,
        Err(Error::NotEncrypted { .. } | Error::NotEncryptionRoot { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

fn step(spa: &Arc<Spa>, dice: &Dice, n: usize) -> Option<&'static str> {
    let view = spa.view().unwrap();
    let all = view.list("t", &ListOptions::ALL).unwrap();
    let (snaps, heads): (Vec<_>, Vec<_>) =
        all.iter().filter_map(|entry| entry.dataset()).partition(|ds| ds.is_snapshot());
    let heads: Vec<String> = heads.iter().map(|ds| ds.name().to_string()).collect();
    let snaps: Vec<String> = snaps.iter().map(|ds| ds.name().to_string()).collect();
    drop((all, view));
    let (head, snap) = (dice.one(&heads)?, dice.one(&snaps));
    let number = |name: &str, n: u64| [(name.to_string(), Value::Number(n))];
    let (what, result) = match dice.below(18) {
        0..=1 if heads.len() < 20 => ("create", create(spa, &format!("{head}/f{n}"), None)),
        0..=1 => ("destroy", spa.destroy_head(head)),
        2 => ("create a volume", create(spa, &format!("{head}/v{n}"), None)),
        3 => ("create an encryption root", create(spa, &format!("{head}/e{n}"), Some(key(n as u8)))),
        4..=5 => {
            ("snapshot", spa.snapshot(&[format!("{head}@s{n}")], &[("u:n".to_string(), Value::String(n.to_string()))]))
        }
        6 => ("clone", spa.clone_dataset(snap?, &format!("{head}/c{n}"), Vec::new())),
        7 => ("promote", spa.promote(head)),
        8 => ("rename", spa.rename(dice.one(&heads)?, &format!("{head}/r{n}"))),
        9 => {
            let (fs, short) = snap?.split_once('@')?;
            ("rename a snapshot", spa.rename_snapshot(fs, short, &format!("x{n}"), dice.below(2) == 0))
        }
        10 => ("destroy", spa.destroy_head(dice.one(&heads)?)),
        11 => ("destroy a snapshot", spa.destroy_snapshots(&[snap?.clone()], dice.below(2) == 0).map(drop)),
        12 => ("roll back", spa.rollback(head, None).map(drop)),
        13 => ("set", spa.set_props(head, &number(dice.one(&["compression", "readonly"])?, 1), PropSource::Local)),
        14 => ("inherit", spa.inherit_prop(head, dice.one(&["compression", "readonly"])?, false)),
        15 => match dice.below(3) {
            0 => ("hold", spa.hold(&[(snap?.clone(), format!("tag{n}"))]).map(drop)),
            1 => ("bookmark", spa.bookmark(&[(format!("{}#m{n}", snap?.split_once('@')?.0), snap?.clone())])),
            _ => ("limit", spa.set_props(head, &number("quota", 40 << 20), PropSource::Local)),
        },
        16 => match dice.below(3) {
            0 => ("change a key", spa.change_key(head, ChangeKey::NewRoot(key(n as u8)))),
            1 => ("inherit a key", spa.change_key(head, ChangeKey::Inherit)),
            _ => ("comment", spa.set_prop("comment", Value::String(format!("comment {n}")))),
        },
        _ => ("write", write(spa, head, n as u64)),
    };
    done(result).then_some(what)
}

fn run(seed: u64) -> BTreeSet<&'static str> {
    let (spa, devices) = pool::testing::in_memory("mirror d0 d1", 2);
    let dice = Dice::seeded(seed);
    let (mut kinds, mut kept) = (BTreeSet::new(), VecDeque::new());
    for n in 0..STEPS {
        let what = step(&spa, &dice, n);
        kinds.extend(what);
        spa.sync().unwrap();
        let (now, truth) = (spa.view().unwrap(), cold(&devices));
        assert_eq!(now.uberblock().txg, truth.uberblock().txg);
        let truth = portrait(&truth);
        if dice.below(3) == 0 {
            // it is looked at when others have read what came after it
            kept.push_back((n, now, truth));
        } else {
            assert_eq!(portrait(&now), truth, "seed {seed}, step {n}: {what:?}");
        }
        if kept.front().is_some_and(|(since, ..)| *since + KEPT <= n) {
            let (_, then, truth) = kept.pop_front().unwrap();
            assert_eq!(portrait(&then), truth, "seed {seed}, step {n}, of an old view");
        }
    }
    kinds
}

#[test]
fn a_view_shows_what_is_on_the_devices() {
    let kinds: BTreeSet<_> = (1..4).flat_map(run).collect();
    assert!(kinds.len() >= 19, "{kinds:?}");
}
