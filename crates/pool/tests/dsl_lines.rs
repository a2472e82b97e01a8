//! Clones, promotions, names, and the way back.
#![allow(clippy::unwrap_used)]

mod live;

use base::{Errno, ObjectId};
use live::{Live, bytes, why};
use ondisk::ObjsetType;
use ondisk::scan::ScanFunc;
use pool::testing::key;
use pool::{ChangeKey, Error, KeyStatus, NewDataset, NewKey, Refusal};

const MIB: usize = 1 << 20;

fn snap(live: &Live, name: &str) {
    live.spa.snapshot(&[name.to_string()], &[]).unwrap();
}

fn clone(live: &Live, origin: &str, name: &str) -> Result<(), Error> {
    live.spa.clone_dataset(origin, name, Vec::new())
}

/// Three snapshots of `t/a`, a clone of the second, both changed since; gives the object that they share.
fn branches(live: &Live) -> u64 {
    live.fs("t/a");
    let id = live.file("t/a", 2 * MIB, 1);
    snap(live, "t/a@1");
    live.write("t/a", ObjectId(id), 0, MIB / 2, 2);
    snap(live, "t/a@2");
    live.write("t/a", ObjectId(id), 0, MIB, 3);
    snap(live, "t/a@3");
    live.write("t/a", ObjectId(id), 0, MIB / 4, 4);
    clone(live, "t/a@2", "t/c").unwrap();
    live.write("t/c", ObjectId(id), MIB as u64, MIB / 2, 5);
    snap(live, "t/c@4");
    live.write("t/c", ObjectId(id), 0, MIB / 8, 6);
    id
}

#[test]
fn a_clone_has_what_its_origin_had() {
    let live = Live::new();
    let id = branches(&live);
    let view = live.view();
    let c = view.dataset("t/c").unwrap();
    assert_eq!(c.origin().unwrap().unwrap().name(), "t/a@2");
    assert_eq!(view.dataset("t/a@2").unwrap().clones().unwrap().len(), 1);
    assert!(c.used() < MIB as u64, "it pays for its own only");
    assert_eq!(&live.read("t/c", ObjectId(id), MIB)[MIB / 8..MIB / 2], &bytes(MIB / 2, 2)[MIB / 8..]);
    assert_eq!(why(clone(&live, "t/a", "t/d")), Refusal::NotSnapshot);
    assert_eq!(why(clone(&live, "t/a@1", "t/c")), Refusal::Exists);
    assert!(matches!(clone(&live, "t/a@9", "t/d"), Err(Error::NoSuchDataset { .. })));
    live.judged();
}

#[test]
fn a_promoted_clone_takes_the_snapshots_along() {
    let live = Live::new();
    let id = branches(&live);
    clone(&live, "t/a@1", "t/d").unwrap();
    live.spa.bookmark(&[("t/a#m".to_string(), "t/a@1".to_string())]).unwrap();
    let all = |live: &Live| ["t/a", "t/c", "t/d"].map(|n| live.view().dataset(n).unwrap().used()).iter().sum::<u64>();
    let figures = |live: &Live| {
        let view = live.view();
        let of = |name: &str| {
            let ds = view.dataset(name).unwrap();
            (ds.used(), ds.used_by_snapshots(), ds.used_by_dataset(), ds.logical_used(), ds.phys().unique_bytes)
        };
        ["t/a", "t/c", "t/d", "t/a@1", "t/a@2", "t/a@3", "t/c@4"].map(of)
    };
    let (before, at_first) = (all(&live), figures(&live));
    assert_eq!(why(live.spa.promote("t/a")), Refusal::NotClone);
    live.spa.promote("t/c").unwrap();
    live.adds_up();
    let names = |name: &str| {
        let head = live.view().dataset(name).unwrap();
        head.snapshots().unwrap().iter().map(|s| s.short_name().to_string()).collect::<Vec<_>>()
    };
    assert_eq!((names("t/a"), names("t/c")), (vec!["3".to_string()], ["1", "2", "4"].map(str::to_string).to_vec()));
    let origin = |name: &str| live.view().dataset(name).unwrap().origin().unwrap().map(|o| o.name().to_string());
    assert_eq!(["t/a", "t/d", "t/c"].map(origin), [Some("t/c@2".to_string()), Some("t/c@1".to_string()), None]);
    assert!(live.view().bookmark("t/c#m").is_ok() && live.view().bookmark("t/a#m").is_err());
    assert_eq!(all(&live), before, "somebody else pays, not more");
    assert_eq!(&live.read("t/a", ObjectId(id), MIB)[MIB / 4..], &bytes(MIB, 3)[MIB / 4..]);
    // there and back is nowhere
    live.spa.promote("t/a").unwrap();
    assert_eq!(figures(&live), at_first);
    live.spa.promote("t/c").unwrap();
    // and back, after more was written
    live.write("t/a", ObjectId(id), 0, MIB, 8);
    let live = live.judged_and_back();
    live.write("t/c", ObjectId(id), 0, MIB, 9);
    live.spa.promote("t/a").unwrap();
    live.judged();
}

#[test]
fn a_promotion_names_all_conflicts() {
    let live = Live::new();
    branches(&live);
    snap(&live, "t/c@1");
    snap(&live, "t/c@2");
    let Err(Error::Many(all)) = live.spa.promote("t/c") else { panic!("promoted") };
    let mut names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["t/c@1", "t/c@2"]);
    assert_eq!(Error::Many(all).errno(), Errno::EEXIST);
    live.judged();
}

#[test]
fn names_change_with_all_below() {
    let live = Live::new();
    live.fs("t/a");
    live.fs("t/a/b");
    live.fs("t/x");
    live.set("t/x", "compression", 2).unwrap();
    let id = live.file("t/a/b", MIB, 1);
    snap(&live, "t/a/b@s");
    live.set("t/a/b", "reservation", 8 << 20).unwrap();
    live.spa.rename("t/a", "t/x/y").unwrap();
    live.adds_up();
    assert_eq!(live.read("t/x/y/b@s", ObjectId(id), MIB), bytes(MIB, 1));
    assert_eq!(live.get("t/x/y/b", "compression").0, 2);
    assert!(live.view().dataset("t/a").is_err());
    assert!(matches!(why(live.spa.rename("t/x", "t/x/y/z")), Refusal::Invalid(_)));
    assert_eq!(why(live.spa.rename("t/x/y", "t/x/y/b")), Refusal::Exists);
    assert_eq!(why(live.spa.rename("t/x/y", "u/y")), Refusal::CrossPool);
    let long = "x".repeat(250);
    assert_eq!(why(live.spa.rename("t/x", &format!("t/{long}"))), Refusal::NameTooLong, "what is below counts");
    live.spa.rename_snapshot("t", "s", "z", true).unwrap();
    assert!(live.view().dataset("t/x/y/b@z").is_ok() && live.view().dataset("t/x/y/b@s").is_err());
    let live = live.judged_and_back();
    assert_eq!(live.read("t/x/y/b", ObjectId(id), MIB), bytes(MIB, 1));
}

#[test]
fn back_to_the_last_snapshot() {
    let live = Live::new();
    live.fs("t/a");
    assert_eq!(why(live.spa.rollback("t/a", None)), Refusal::NoSnapshot);
    let id = live.file("t/a", 2 * MIB, 1);
    snap(&live, "t/a@1");
    live.write("t/a", ObjectId(id), 0, MIB, 2);
    snap(&live, "t/a@2");
    let at_2 = live.view().dataset("t/a").unwrap().referenced();
    live.write("t/a", ObjectId(id), MIB as u64 / 2, MIB, 3);
    let other = live.file("t/a", MIB, 4);
    assert_eq!(why(live.spa.rollback("t/a", Some("t/a@1"))), Refusal::NotLatest);
    {
        let _held = live.spa.objset(&live.view().dataset("t/a").unwrap()).unwrap();
        assert_eq!(why(live.spa.rollback("t/a", None)), Refusal::Busy);
    }
    assert_eq!(live.spa.rollback("t/a", Some("t/a@2")).unwrap(), "t/a@2");
    live.spa.wait_freed().unwrap();
    live.adds_up();
    let a = live.view().dataset("t/a").unwrap();
    assert_eq!((a.referenced(), a.written().unwrap()), (at_2, Some(0)));
    assert_eq!(&live.read("t/a", ObjectId(id), MIB), &bytes(MIB, 2));
    assert!(a.objset().unwrap().object(ObjectId(other)).is_err());
    assert_eq!(a.children().unwrap().len(), 0);
    // it goes on from there
    live.write("t/a", ObjectId(id), 0, MIB, 7);
    assert_eq!(&live.read("t/a", ObjectId(id), MIB), &bytes(MIB, 7));
    live.judged();
}

#[test]
fn two_heads_change_places() {
    let live = Live::new();
    live.fs("t/a");
    let id = live.file("t/a", 2 * MIB, 1);
    snap(&live, "t/a@1");
    clone(&live, "t/a@1", "t/a/new").unwrap();
    live.write("t/a/new", ObjectId(id), 0, MIB, 2);
    live.write("t/a", ObjectId(id), MIB as u64, MIB, 3);
    assert_eq!(why(live.spa.swap_heads("t/a/new", "t/a", false)), Refusal::Modified);
    live.spa.swap_heads("t/a/new", "t/a", true).unwrap();
    live.adds_up();
    assert_eq!(live.read("t/a", ObjectId(id), MIB), bytes(MIB, 2));
    assert_eq!(live.read("t/a/new", ObjectId(id), 2 * MIB)[MIB..], bytes(MIB, 3));
    live.judged();
}

#[test]
fn quotas_hold() {
    let live = Live::new();
    live.fs("t/a");
    live.fs("t/a/b");
    live.set("t/a", "quota", 8 << 20).unwrap();
    let object = live.object("t/a/b");
    let fill = |from: u64| -> (u64, Error) {
        for n in from..200 {
            match live.spa.dataset_tx(object.objset(), MIB as u64, false) {
                Ok(tx) => object.write(&tx, n << 20, &bytes(MIB, n)).unwrap(),
                Err(error) => return (n, error),
            }
        }
        panic!("no limit");
    };
    let (n, error) = fill(0);
    assert!((7..=10).contains(&n), "{n}");
    assert_eq!((error.errno(), error.to_string().contains("t/a/b")), (Errno::EDQUOT, true));
    // who frees is let through
    let tx = live.spa.dataset_tx(object.objset(), MIB as u64, true).unwrap();
    object.free_range(&tx, 0, 4 << 20).unwrap();
    drop(tx);
    live.spa.sync().unwrap();
    live.set("t/a", "quota", 0).unwrap();
    live.set("t/a/b", "refquota", 9 << 20).unwrap();
    let (n, error) = fill(n);
    assert_eq!(error.errno(), Errno::EDQUOT);
    assert!(n < 20, "{n}");
    // what others have reserved is not there
    live.set("t/a/b", "refquota", 0).unwrap();
    let room = live.view().dataset("t").unwrap().available().unwrap();
    live.fs("t/r");
    live.set("t/r", "reservation", room - (12 << 20)).unwrap();
    let (_, error) = fill(n);
    assert_eq!(error.errno(), Errno::ENOSPC);
    let reserved = live.object("t/r");
    let tx = live.spa.dataset_tx(reserved.objset(), MIB as u64, false).unwrap();
    reserved.write(&tx, 0, &bytes(MIB, 1)).unwrap();
    drop((tx, object, reserved));
    live.judged();
}

fn encrypted(live: &Live, name: &str, key: Option<NewKey>) -> Result<(), Error> {
    let new = NewDataset { key, ..NewDataset::inheriting(name, ObjsetType::Zfs) };
    live.spa.create_dataset(new, Box::new(|_, _| Ok(())))
}

#[test]
fn keys_are_made_inherited_and_changed() {
    let live = Live::new();
    encrypted(&live, "t/e", Some(key(1))).unwrap();
    encrypted(&live, "t/e/f", None).unwrap();
    let id = live.file("t/e/f", MIB, 1);
    snap(&live, "t/e/f@s");
    clone(&live, "t/e/f@s", "t/c").unwrap();
    live.write("t/c", ObjectId(id), 0, MIB / 2, 2);
    let root = |name: &str| live.view().dataset(name).unwrap().encryption_root().unwrap().unwrap();
    assert_eq!((root("t/e/f"), root("t/c")), ("t/e".to_string(), "t/e".to_string()));
    {
        let _held = live.spa.objset(&live.view().dataset("t/e/f").unwrap()).unwrap();
        assert_eq!(why(live.spa.unload_key("t/e")), Refusal::Busy);
    }
    live.spa.unload_key("t/e").unwrap();
    assert_eq!(live.view().dataset("t/c").unwrap().key_status().unwrap(), KeyStatus::Unavailable);
    assert_eq!(why(encrypted(&live, "t/e/g", None)), Refusal::KeyUnavailable);
    assert_eq!(why(live.spa.objset(&live.view().dataset("t/e/f").unwrap()).map(drop)), Refusal::KeyUnavailable);
    assert!(live.spa.load_key("t/e", &key(9).wrapping).is_err());
    live.spa.load_key("t/e", &key(1).wrapping).unwrap();
    assert_eq!(why(live.spa.load_key("t/e", &key(1).wrapping)), Refusal::KeyLoaded);
    // a root of its own, and back
    live.spa.change_key("t/e/f", ChangeKey::NewRoot(key(2))).unwrap();
    let root = |name: &str| live.view().dataset(name).unwrap().encryption_root().unwrap().unwrap();
    assert_eq!((root("t/e/f"), root("t/c")), ("t/e/f".to_string(), "t/e/f".to_string()));
    assert_eq!(
        why(live.spa.change_key("t/c", ChangeKey::Inherit)),
        Refusal::Invalid("a clone always has its origin's key")
    );
    let live = live.judged_and_back();
    live.spa.load_key("t/e", &key(1).wrapping).unwrap();
    live.spa.load_key("t/e/f", &key(2).wrapping).unwrap();
    assert_eq!(live.read("t/c", ObjectId(id), MIB)[MIB / 2..], bytes(MIB, 1)[MIB / 2..]);
    live.spa.change_key("t/e/f", ChangeKey::Inherit).unwrap();
    live.spa.change_key("t/e", ChangeKey::NewRoot(key(3))).unwrap();
    assert_eq!(why(live.spa.rename("t/e/f", "t/f")), Refusal::EncryptionRoot);
    live.spa.unload_key("t/e").unwrap();
    assert!(live.spa.load_key("t/e", &key(1).wrapping).is_err());
    live.spa.load_key("t/e", &key(3).wrapping).unwrap();
    assert_eq!(live.read("t/e/f", ObjectId(id), MIB), bytes(MIB, 1));
    live.spa.rollback("t/e/f", None).unwrap();
    live.judged();
}

#[test]
fn the_key_of_a_destroyed_snapshot_is_forgotten() {
    let live = Live::new();
    encrypted(&live, "t/e", Some(key(1))).unwrap();
    live.file("t/e", MIB, 1);
    snap(&live, "t/e@s");
    let id = live.view().dataset("t/e@s").unwrap().id();
    assert!(live.spa.zio().keys().contains(id));
    live.spa.destroy_snapshots(&["t/e@s".to_owned()], false).unwrap();
    // the number is another's when it is given out again, perhaps of a dataset whose key is not loaded
    assert!(!live.spa.zio().keys().contains(id));
    live.judged();
}

#[test]
fn a_promoted_clone_of_an_encryption_root_becomes_the_root() {
    let live = Live::new();
    encrypted(&live, "t/e", Some(key(1))).unwrap();
    encrypted(&live, "t/e/f", None).unwrap();
    let id = live.file("t/e", MIB, 1);
    snap(&live, "t/e@s");
    clone(&live, "t/e@s", "t/c").unwrap();
    live.spa.promote("t/c").unwrap();
    let root = |live: &Live, name: &str| live.view().dataset(name).unwrap().encryption_root().unwrap().unwrap();
    assert_eq!(["t/e", "t/c", "t/e/f"].map(|name| root(&live, name)), ["t/c", "t/c", "t/c"]);
    let live = live.judged_and_back();
    live.spa.load_key("t/c", &key(1).wrapping).unwrap();
    assert_eq!(live.read("t/e", ObjectId(id), MIB), bytes(MIB, 1));
    encrypted(&live, "t/c/g", None).unwrap();
    live.judged();
}

/// A clone has its key by way of its origin, any other dataset by way of its parent. If such a way became a circle, nothing on it would keep the
/// encryption root, and no change of the root's key would reach it.
#[test]
fn every_key_hangs_on_its_root() {
    let live = Live::new();
    encrypted(&live, "t/e", Some(key(1))).unwrap();
    encrypted(&live, "t/e/m", None).unwrap();
    encrypted(&live, "t/e/m/f", None).unwrap();
    let id = live.file("t/e/m/f", MIB, 1);
    snap(&live, "t/e/m/f@s");
    clone(&live, "t/e/m/f@s", "t/c").unwrap();
    // neither the origin of a clone below it, nor what the origin is in
    assert_eq!(why(live.spa.rename("t/e/m/f", "t/c/f")), Refusal::EncryptionRoot);
    assert_eq!(why(live.spa.rename("t/e/m", "t/c/m")), Refusal::EncryptionRoot);
    // nor may a clone become the origin of what it is below
    for name in ["t/c/g", "t/e/m/f/g"] {
        clone(&live, "t/e/m/f@s", name).unwrap();
        assert_eq!(why(live.spa.promote(name)), Refusal::EncryptionRoot, "{name}");
        live.spa.destroy_head(name).unwrap();
    }
    // others may come and go
    encrypted(&live, "t/e/h", None).unwrap();
    live.spa.rename("t/e/h", "t/c/h").unwrap();
    live.spa.rename("t/c/h", "t/e/m/h").unwrap();
    clone(&live, "t/e/m/f@s", "t/e/k").unwrap();
    live.spa.promote("t/e/k").unwrap();
    // what was the origin is now a clone of it
    live.spa.rename("t/e/m/f", "t/c/f").unwrap();
    live.spa.change_key("t/e", ChangeKey::NewRoot(key(2))).unwrap();
    let live = live.judged_and_back();
    live.spa.load_key("t/e", &key(2).wrapping).unwrap();
    for name in ["t/c", "t/c/f", "t/e/k"] {
        assert_eq!(live.read(name, ObjectId(id), MIB), bytes(MIB, 1), "{name}");
    }
    // a root that moves below a clone of it has nothing to inherit there
    live.spa.change_key("t/e/k", ChangeKey::NewRoot(key(3))).unwrap();
    live.spa.rename("t/e/k", "t/c/k").unwrap();
    let none = Refusal::Invalid("the parent has its key from this dataset");
    assert_eq!(why(live.spa.change_key("t/c/k", ChangeKey::Inherit)), none);
    assert_eq!(why(live.spa.change_key("t/c/k", ChangeKey::ForceInherit)), none);
    live.judged();
}

#[test]
fn a_key_is_changed_of_all_that_inherit_it_or_of_none() {
    let live = Live::new();
    encrypted(&live, "t/e", Some(key(1))).unwrap();
    encrypted(&live, "t/e/a", None).unwrap();
    encrypted(&live, "t/e/b", Some(key(2))).unwrap();
    let id = live.file("t/e/a", MIB, 1);
    // said to be under a root whose key it is not wrapped with: so does a receive of raw streams
    live.spa.change_key("t/e/b", ChangeKey::ForceInherit).unwrap();
    for change in [ChangeKey::NewRoot(key(3)), ChangeKey::NewRoot(key(4))] {
        assert!(matches!(live.spa.change_key("t/e", change), Err(Error::Key { .. })));
    }
    let live = live.judged_and_back();
    assert!(live.spa.load_key("t/e", &key(3).wrapping).is_err());
    live.spa.load_key("t/e", &key(1).wrapping).unwrap();
    assert_eq!(live.read("t/e/a", ObjectId(id), MIB), bytes(MIB, 1));
    live.judged();
}

/// `$MOS`, `$FREE` and `$ORIGIN` are directories of the pool's own.
#[test]
fn special_directories_cannot_be_named() {
    let live = Live::new();
    live.fs("t/a");
    let special = ["t/$FREE", "t/$MOS", "t/$ORIGIN"];
    let invalid = |result: Result<(), Error>| matches!(result, Err(Error::InvalidName { .. }));
    for name in special {
        assert!(invalid(live.spa.rename(name, "t/b")), "{name}");
        assert!(invalid(live.spa.rename("t/a", &format!("{name}/a"))), "{name}");
        assert!(invalid(live.spa.promote(name)), "{name}");
        assert!(invalid(live.spa.destroy_head(name)), "{name}");
        assert!(invalid(live.set(name, "quota", 1 << 20)), "{name}");
        assert!(invalid(live.spa.rollback(name, None).map(drop)), "{name}");
        assert!(invalid(live.spa.rename_snapshot(name, "$ORIGIN", "x", false)), "{name}");
    }
    let snapshot = "t/$ORIGIN@s".to_string();
    assert!(live.spa.snapshot(&[snapshot], &[]).is_err());
    let origin = "t/$ORIGIN@$ORIGIN".to_string();
    assert!(invalid(live.spa.clone_dataset(&origin, "t/b", Vec::new())));
    assert!(live.spa.destroy_snapshots(std::slice::from_ref(&origin), false).is_err());
    assert!(live.spa.hold(&[(origin, "tag".to_string())]).is_err());
    live.judged();
}

/// A dataset received while a scrub is under way takes its target's place: it is read as the target, or what was read of it counts there.
#[test]
fn a_scrub_follows_heads_that_change_places() {
    for (in_mind, goes) in [(false, true), (true, true), (true, false)] {
        let live = Live::new();
        live.fs("t/a");
        let id = live.file("t/a", 2 * MIB, 1);
        snap(&live, "t/a@1");
        clone(&live, "t/a@1", "t/a/new").unwrap();
        live.write("t/a/new", ObjectId(id), 0, MIB, 2);
        live.spa.scrub_begin(0, pool::ScrubRange::default()).unwrap();
        let head = |name: &str| live.view().dataset(name).unwrap();
        let mut place = live.view().scrub_cursor(ScanFunc::Scrub).unwrap().unwrap();
        while let Some(target) = place.target(&live.view()).unwrap() {
            let last = target.dataset == head("t/a").id();
            place.done(&live.view()).unwrap();
            if last {
                break;
            }
        }
        let tell = |place| live.spa.scrub_progress(place, pool::ScrubResult::default(), Vec::new()).unwrap();
        tell(place.clone());
        live.spa.swap_heads("t/a/new", "t/a", false).unwrap();
        if goes {
            live.spa.destroy_head("t/a/new").unwrap();
        }
        if in_mind {
            // who reads had not looked again
            tell(place);
        }
        let mut place = live.view().scrub_cursor(ScanFunc::Scrub).unwrap().unwrap();
        let mut rest = Vec::new();
        while let Some(target) = place.target(&live.view()).unwrap() {
            rest.push(target.root);
            place.done(&live.view()).unwrap();
        }
        assert!(rest.contains(&head("t/a").phys().bp), "{in_mind} {goes}");
        live.spa.scrub_cancel().unwrap();
        live.judged();
    }
}
