//! File systems and volumes are made, and their properties set.
#![allow(clippy::unwrap_used)]

mod live;

use base::{Errno, ObjectId};
use live::{Live, why};
use ondisk::ObjsetType;
use pool::{Error, NewDataset, PropSource, Refusal, Value};

#[test]
fn file_systems_stand_where_they_were_made() {
    let live = Live::new();
    live.fs("t/a");
    live.fs("t/a/b");
    live.create("t/a/c", &[("compression", 2), ("quota", 50 << 20), ("reservation", 1 << 20)]).unwrap();
    let id = live.file("t/a/b", 1 << 20, 3);
    let view = live.view();
    assert_eq!(view.dataset("t/a").unwrap().children().unwrap().len(), 2);
    assert_eq!(live.get("t/a/c", "compression"), (2, "local".to_string()));
    assert_eq!(live.get("t/a/c", "quota").0, 50 << 20);
    assert_eq!(live.get("t/a/c", "usedbychildren").0, 0);
    assert!(view.dataset("t/a/c").unwrap().available().unwrap() < 50 << 20);
    let used = |name: &str| view.dataset(name).unwrap().used();
    assert_eq!(
        used("t/a"),
        view.dataset("t/a").unwrap().referenced() + used("t/a/b") + (1 << 20),
        "what is reserved, too"
    );
    // who holds a view holds the devices
    drop(view);
    let live = live.judged_and_back();
    assert_eq!(live.read("t/a/b", ObjectId(id), 1 << 20), live::bytes(1 << 20, 3));
}

#[test]
fn what_cannot_be_made_is_refused_and_changes_nothing() {
    let live = Live::new();
    live.fs("t/a");
    volume(&live, "t/v", 8 << 20);
    assert_eq!(why(live.create("t/a", &[])), Refusal::Exists);
    assert_eq!(why(live.create("t/no/a", &[])), Refusal::NoParent);
    assert_eq!(why(live.create("t/v/a", &[])), Refusal::NotAFilesystem);
    assert_eq!(why(live.create("t/a/b", &[("reservation", 1 << 40)])), Refusal::NoSpace);
    assert_eq!(why(live.create("t/a/b", &[("volsize2", 1)])), Refusal::Invalid("invalid property"));
    assert_eq!(why(live.create(&format!("t/{}", "x".repeat(254)), &[])), Refusal::NameTooLong);
    assert_eq!(why(live.create(&format!("t{}", "/a".repeat(50)), &[])), Refusal::TooDeep);
    assert!(matches!(live.create("t/a b!", &[]), Err(Error::InvalidName { .. })));
    assert_eq!(live.view().dataset("t").unwrap().children().unwrap().len(), 2);
    assert!(live.view().dataset("t/a").unwrap().children().unwrap().is_empty());
    live.judged();
}

fn volume(live: &Live, name: &str, size: u64) {
    let new = NewDataset {
        props: vec![("refreservation".to_string(), Value::Number(size))],
        ..NewDataset::inheriting(name, ObjsetType::Zvol)
    };
    live.spa
        .create_dataset(
            new,
            Box::new(move |objset, tx| {
                let data = dmu::NewObject {
                    object_type: ondisk::ObjectType::ZVOL,
                    block_size: 16 << 10,
                    ..dmu::NewObject::default()
                };
                objset.claim_object(tx, ObjectId(1), &data)?;
                let new = dmu::NewZap {
                    object_type: ondisk::ObjectType::ZVOL_PROP,
                    id: Some(ObjectId(2)),
                    ..Default::default()
                };
                dmu::Zap::create_with(tx, objset, &new)?.update_u64(tx, "size", size)
            }),
        )
        .unwrap();
}

#[test]
fn a_volume_keeps_its_space_and_changes_its_size() {
    let live = Live::new();
    volume(&live, "t/v", 8 << 20);
    assert_eq!(
        live.get("t/v", "usedbyrefreservation").0 + live.view().dataset("t/v").unwrap().phys().unique_bytes,
        8 << 20
    );
    live.write("t/v", ObjectId(1), 0, 4 << 20, 5);
    let view = live.view();
    let v = view.dataset("t/v").unwrap();
    assert_eq!(v.used(), 8 << 20, "what is written comes from what is kept");
    assert!(v.used_by_refreservation().unwrap() < 4 << 20);
    live.set("t/v", "volsize", 1 << 20).unwrap();
    assert_eq!(live.get("t/v", "volsize").0, 1 << 20);
    assert!(live.view().dataset("t/v").unwrap().referenced() < 2 << 20);
    assert!(matches!(why(live.set("t/v", "volsize", 1000)), Refusal::Invalid(_)));
    live.set("t/v", "readonly", 1).unwrap();
    assert_eq!(live.set("t/v", "volsize", 2 << 20).unwrap_err().errno(), Errno::EROFS);
    live.set("t/v", "refreservation", 0).unwrap();
    let v = live.view().dataset("t/v").unwrap();
    assert_eq!((v.used_by_refreservation(), v.used()), (Some(0), v.referenced()));
    live.judged();
}

#[test]
fn properties_are_set_inherited_and_received() {
    let live = Live::new();
    live.fs("t/a");
    live.fs("t/a/b");
    let text = |s: &str| Value::String(s.to_string());
    let user = ("org.x:y".to_string(), text("hello"));
    live.spa.set_props("t/a", &[user.clone(), ("checksum".to_string(), Value::Number(8))], PropSource::Local).unwrap();
    assert_eq!(live.get("t/a/b", "checksum"), (8, "inherited from t/a".to_string()));
    let got = live.view().dataset("t/a/b").unwrap().prop("org.x:y").unwrap().unwrap();
    assert_eq!(got.value, text("hello"));
    // received counts where nothing is set
    let received = [("compression".to_string(), Value::Number(2)), ("checksum".to_string(), Value::Number(2))];
    live.spa.set_props("t/a", &received, PropSource::Received).unwrap();
    assert_eq!(live.get("t/a", "compression"), (2, "received".to_string()));
    assert_eq!(live.get("t/a", "checksum"), (8, "local".to_string()));
    live.spa.inherit_prop("t/a", "checksum", true).unwrap();
    assert_eq!(live.get("t/a", "checksum"), (2, "received".to_string()));
    live.spa.inherit_prop("t/a", "checksum", false).unwrap();
    assert_eq!(live.get("t/a", "checksum"), (1, "default".to_string()));
    live.set("t/a", "redundant_metadata", 3).unwrap();
    assert_eq!(live.get("t/a", "redundant_metadata"), (3, "local".to_string()));
    // all or none
    let bad = [("compression".to_string(), Value::Number(3)), ("quota".to_string(), Value::Number(1))];
    assert_eq!(why(live.spa.set_props("t/a", &bad, PropSource::Local)), Refusal::NoSpace);
    assert_eq!(live.get("t/a", "compression"), (2, "received".to_string()));
    assert!(matches!(why(live.spa.inherit_prop("t/a", "quota", false)), Refusal::Invalid(_)));
    live.judged();
}

/// An open head writes by the new properties at once, also by those of its parents.
#[test]
fn open_heads_follow_their_properties() {
    let live = Live::new();
    live.fs("t/a");
    live.fs("t/a/b");
    let zeros = |live: &Live| {
        let object = live.object("t/a/b");
        object.write(&live.spa.tx(1 << 20).unwrap(), 0, &[7; 1 << 20]).unwrap();
        live.spa.sync().unwrap();
        live.view().dataset("t/a/b").unwrap().objset().unwrap().object(object.id()).unwrap().phys().used
    };
    assert!(zeros(&live) < 256 << 10, "lz4 is the default");
    live.set("t/a", "compression", 2).unwrap();
    assert!(zeros(&live) >= 1 << 20);
    live.set("t/a/b", "compression", 15).unwrap();
    assert!(zeros(&live) < 256 << 10);
    live.judged();
}

#[test]
fn reservations_count_all_the_way_up() {
    let live = Live::new();
    live.fs("t/a");
    live.fs("t/a/b");
    let before = live.view().dataset("t").unwrap().available().unwrap();
    live.set("t/a/b", "reservation", 10 << 20).unwrap();
    live.adds_up();
    let (b, root) = (live.view().dataset("t/a/b").unwrap(), live.view().dataset("t").unwrap());
    let held = (10 << 20) - b.used();
    assert!(before - root.available().unwrap() >= held, "others have less");
    assert!(before - root.available().unwrap() < held + (1 << 20));
    assert!(b.available().unwrap() > root.available().unwrap());
    live.set("t/a", "reservation", 30 << 20).unwrap();
    live.adds_up();
    live.set("t/a", "quota", 40 << 20).unwrap();
    assert_eq!(why(live.set("t/a/b", "reservation", 41 << 20)), Refusal::NoSpace);
    assert_eq!(why(live.set("t/a", "quota", 20 << 20)), Refusal::NoSpace);
    live.set("t/a", "reservation", 0).unwrap();
    live.set("t/a/b", "reservation", 0).unwrap();
    live.set("t/a/b", "refreservation", 5 << 20).unwrap();
    live.adds_up();
    live.file("t/a/b", 1 << 20, 1);
    live.judged();
}

#[test]
fn values_that_need_nothing_of_the_pool_are_taken_by_one_without_features() {
    let live = Live::with(|create| create.features.clear());
    live.fs("t/a");
    // OpenZFS takes it for a pool without special vdevs, too
    live.set("t/a", "special_small_blocks", 4096).unwrap();
    live.set("t/a", "snapshot_limit", u64::MAX).unwrap();
    assert_eq!(why(live.set("t/a", "snapshot_limit", 5)), Refusal::Unsupported);
    assert_eq!(why(live.set("t/a", "compression", 15)), Refusal::Unsupported);
    let counts =
        |live: &Live| live.view().features().iter().filter(|f| f.state == pool::feature::State::Active).count();
    assert_eq!(counts(&live), 0);
    live.judged();
}
