//! A txg is on disk as a whole or not at all: tasks that fail after they have changed something.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use base::{Env, Guid, ObjectId};
use dmu::{NewObject, NewZap, Zap};
use ondisk::send::Begin;
use ondisk::{ObjectType, ObjsetType, Uberblock};
use oracle::judge;
use pool::{
    CreateOptions, Error, Hooks, ImportOptions, NewDataset, PropSource, RecvBegin, Refusal, Spa, Value, WithoutKey,
};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
}

fn make(dir: &Path) -> Arc<Spa> {
    let spec = VdevSpec::parse(&[dir.join("a").display().to_string()]).unwrap();
    let open = |path: &str| -> Option<Arc<dyn Device>> {
        Some(Arc::new(FileDevice::create(Path::new(path), 64 << 20).unwrap()))
    };
    let options = LayoutOptions { ashift: Some(9), ..LayoutOptions::default() };
    let new = layout(&spec, &open, options, &hooks().env).unwrap();
    Spa::create(new, CreateOptions::new("t"), hooks()).unwrap()
}

fn import(dir: &Path) -> Arc<Spa> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&dir.join("a")).unwrap());
    let found = vdev::import::scan_devices(vec![(dir.join("a"), device)]);
    let again = ImportOptions { again: true, ..ImportOptions::default() };
    Spa::import(found.first().unwrap(), &again, hooks()).unwrap()
}

/// The state that the device says it has.
fn newest(dir: &Path) -> Uberblock {
    let device = FileDevice::open_read_only(&dir.join("a")).unwrap();
    vdev::label::read_uberblocks(&device, 9).swap_remove(0)
}

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(|name| (*name).to_string()).collect()
}

/// A few blocks that were not there before.
fn write(spa: &Arc<Spa>, fs: &str) {
    let objset = spa.objset(&spa.view().unwrap().dataset(fs).unwrap()).unwrap();
    let tx = spa.tx(1 << 20).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 4096, ..NewObject::default() };
    let object = objset.alloc_object(&tx, &new).unwrap();
    let mut data = vec![0; 100_000];
    spa.env().fill_random(&mut data);
    object.write(&tx, 0, &data).unwrap();
    drop(tx);
    spa.sync().unwrap();
}

fn volume(spa: &Arc<Spa>, name: &str) {
    let init = |objset: &Arc<dmu::Objset>, tx: &dmu::Tx| {
        let data = NewObject { object_type: ObjectType::ZVOL, block_size: 8192, ..NewObject::default() };
        objset.claim_object(tx, ObjectId(1), &data)?;
        let new = NewZap { object_type: ObjectType::ZVOL_PROP, id: Some(ObjectId(2)), ..NewZap::default() };
        Zap::create_with(tx, objset, &new)?.add_u64(tx, "size", 1 << 20)
    };
    spa.create_dataset(NewDataset::inheriting(name, ObjsetType::Zvol), Box::new(init)).unwrap();
}

/// A full stream for `fs`, without records.
fn receive(spa: &Arc<Spa>, fs: &str) -> pool::Receiving {
    spa.receive_begin(stream(fs, nvlist::NvList::new())).unwrap()
}

fn stream(fs: &str, list: nvlist::NvList) -> RecvBegin {
    let (toguid, fromguid) = (Guid(0x1234), Guid(0));
    let toname = Box::new([0; 256]);
    let begin =
        Begin { magic: 0, versioninfo: 1, creation_time: 7, objset_type: 2, flags: 0, toguid, fromguid, toname };
    RecvBegin {
        fs: fs.to_string(),
        snap: "received".to_string(),
        origin: None,
        force: true,
        resumable: false,
        begin,
        list,
        key: None,
        without_key: WithoutKey::Inherit,
    }
}

/// The operation that is done, once it is `armed`.
type Deed = fn(&Arc<Spa>, armed: &dyn Fn()) -> Result<(), Error>;

const DEEDS: [(&str, Deed); 12] = [
    ("set", |spa, armed| {
        let props =
            [("compression", Value::Number(15)), ("a:b", Value::String("c".into())), ("quota", Value::Number(0))];
        armed();
        spa.set_props("t/a", &props.map(|(name, value)| (name.to_string(), value)), PropSource::Local)
    }),
    ("set with volsize", |spa, armed| {
        let props = [("volsize", Value::Number(64 << 10)), ("copies", Value::Number(2))];
        armed();
        spa.set_props("t/v", &props.map(|(name, value)| (name.to_string(), value)), PropSource::Local)
    }),
    ("snapshot", |spa, armed| {
        armed();
        spa.snapshot(&names(&["t@s", "t/a@s", "t/c@s"]), &[("a:b".to_string(), Value::String("c".into()))])
    }),
    ("create", |spa, armed| {
        armed();
        spa.create_dataset(NewDataset::inheriting("t/new", ObjsetType::Zfs), Box::new(|_, _| Ok(())))
    }),
    ("bookmark", |spa, armed| {
        armed();
        spa.bookmark(&[("t/a#mark".to_string(), "t/a@2".to_string())])
    }),
    ("promote", |spa, armed| {
        armed();
        spa.promote("t/c")
    }),
    ("rollback", |spa, armed| {
        write(spa, "t/a");
        armed();
        spa.rollback("t/a", None).map(drop)
    }),
    ("receive", |spa, armed| {
        let receiving = receive(spa, "t/r");
        armed();
        receiving.finish()
    }),
    ("receive over", |spa, armed| {
        let receiving = receive(spa, "t/new");
        armed();
        receiving.finish()
    }),
    ("rename", |spa, armed| {
        armed();
        spa.rename("t/c", "t/new/c")
    }),
    ("destroy snapshots", |spa, armed| {
        armed();
        spa.destroy_snapshots(&names(&["t/a@2", "t/a@s", "t@s"]), false)
    }),
    ("destroy", |spa, armed| {
        armed();
        spa.destroy_head("t/a")
    }),
];

#[test]
fn a_task_that_fails_half_way_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    spa.create_dataset(NewDataset::inheriting("t/a", ObjsetType::Zfs), Box::new(|_, _| Ok(()))).unwrap();
    volume(&spa, "t/v");
    write(&spa, "t/a");
    spa.snapshot(&names(&["t/a@1"]), &[]).unwrap();
    write(&spa, "t/a");
    spa.clone_dataset("t/a@1", "t/c", Vec::new()).unwrap();
    spa.snapshot(&names(&["t/a@2"]), &[]).unwrap();
    write(&spa, "t/c");
    spa.close().unwrap();
    drop(spa);
    for (what, deed) in DEEDS {
        let mut failures = 0;
        for changes in [0u64, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, u64::MAX] {
            let spa = import(dir.path());
            let before = std::cell::RefCell::new(None);
            let armed = || {
                *before.borrow_mut() = Some(newest(dir.path()));
                spa.fail_next_task(changes);
            };
            let done = deed(&spa, &armed);
            let Err(error) = done else {
                spa.close().unwrap();
                break;
            };
            assert!(changes < u64::MAX, "{what}: {error}");
            let suspended = matches!(error, Error::Suspended(_));
            assert_eq!(suspended, changes > 0, "{what} after {changes} changes: {error}");
            if !suspended {
                // nothing was changed: the pool goes on
                spa.close().unwrap();
                continue;
            }
            failures += 1;
            assert!(spa.sync().is_err() && spa.close().is_err(), "{what} after {changes} changes");
            drop(spa);
            assert_eq!(Some(newest(dir.path())), before.into_inner(), "{what} after {changes} changes");
            if failures == 3 {
                println!("after {what}:");
                judge::no_leaks(dir.path(), "t");
            }
        }
        assert!(failures >= 3, "{what}: {failures}");
    }
    let spa = import(dir.path());
    let view = spa.view().unwrap();
    assert_eq!(view.dataset("t/v").unwrap().volume_size().unwrap(), Some((64 << 10, 8192)));
    assert!(view.dataset("t/new/c@1").is_ok() && view.dataset("t/r@received").is_ok() && view.dataset("t/a").is_err());
    spa.export().unwrap();
    judge::no_leaks(dir.path(), "t");
}

fn refusal<R>(result: Result<R, Error>) -> Refusal {
    match result {
        Err(Error::Refused { why, .. }) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was done"),
    }
}

/// An entry that a ZAP has no room for is refused before anything is changed: that was found in the middle of a change.
#[test]
fn what_has_no_room_is_refused_before_the_change() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    let long = |n: usize| format!("a:{}", "x".repeat(n - 2));
    let text = |n: usize| Value::String("v".repeat(n));
    let good = ("a:good".to_string(), text(1));
    for (name, value, why) in
        [(long(256), text(1), Refusal::NameTooLong), (long(30), text(8192), Refusal::ValueTooLong)]
    {
        let props = [good.clone(), (name, value)];
        assert_eq!(refusal(spa.snapshot(&names(&["t@s"]), &props)), why);
        assert_eq!(refusal(spa.set_props("t", &props, PropSource::Local)), why);
        assert_eq!(refusal(spa.set_pool_props(props.to_vec())), why);
    }
    // behind the name of a value that came with a stream stands "$recvd"
    let props = [good.clone(), (long(252), text(1))];
    assert_eq!(refusal(spa.set_props("t", &props, PropSource::Received)), Refusal::NameTooLong);
    spa.set_props("t", &props, PropSource::Local).unwrap();
    spa.set_props("t", &props[..1], PropSource::Received).unwrap();
    spa.inherit_prop("t", &long(252), false).unwrap();
    spa.snapshot(&names(&["t@s"]), &[(long(255), text(8191))]).unwrap();
    assert!(matches!(spa.upgrade(5000, &["no_such"]), Err(Error::Features(_))));
    let mut list = nvlist::NvList::new();
    list.insert("redact_snaps", vec![7u64; 1025]);
    assert!(matches!(refusal(spa.receive_begin(stream("t/r", list))), Refusal::Invalid(_)));
    spa.export().unwrap();
    judge::no_leaks(dir.path(), "t");
}
