//! Snapshots, holds, bookmarks and what is destroyed, held against OpenZFS's own zdb and against a count of all blocks.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use base::{Env, Errno, ObjectId, tunable};
use dmu::{NewObject, Object};
use ondisk::{ObjectType, ObjsetType};
use oracle::judge;
use pool::{CreateOptions, Dataset, Error, Hooks, ImportOptions, NewDataset, Refusal, Spa, Space, Value};
use vdev::create::{LayoutOptions, VdevSpec, layout};
use vdev::{Device, FileDevice};

const SIZE: u64 = 128 << 20;

fn hooks() -> Hooks {
    Hooks { env: Env::seeded(1), used_by: None, ..Hooks::default() }
}

fn make_with(dir: &Path, tune: impl FnOnce(&mut CreateOptions)) -> Arc<Spa> {
    let spec = VdevSpec::parse(&[dir.join("a").display().to_string()]).unwrap();
    let open =
        |path: &str| -> Option<Arc<dyn Device>> { Some(Arc::new(FileDevice::create(Path::new(path), SIZE).unwrap())) };
    let options = LayoutOptions { ashift: Some(9), ..LayoutOptions::default() };
    let mut create = CreateOptions::new("t");
    create.fs_props.push(("compression".to_string(), Value::Number(15)));
    tune(&mut create);
    Spa::create(layout(&spec, &open, options, &hooks().env).unwrap(), create, hooks()).unwrap()
}

fn make(dir: &Path) -> Arc<Spa> {
    make_with(dir, |_| {})
}

fn import(dir: &Path) -> Arc<Spa> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_write(&dir.join("a")).unwrap());
    let found = vdev::import::scan_devices(vec![(dir.join("a"), device)]);
    let again = ImportOptions { again: true, ..ImportOptions::default() };
    Spa::import(found.first().unwrap(), &again, hooks()).unwrap()
}

/// zdb finds every block once, no space without one, livelists that fit, and can read all of the MOS.
fn judged(dir: &Path) {
    judge::no_leaks(dir, "t");
    for how in ["-y", "-dddd"] {
        let Some(out) = judge::run("zdb", &["-e", "-p", &dir.display().to_string(), how, "t"]) else { return };
        let (text, trouble) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success() && !trouble.contains("error"), "{how}: {text}\n{trouble}");
    }
}

/// Judges the pool as it is in the middle of its life, and goes on with it.
fn check(dir: &Path, spa: Arc<Spa>) -> Arc<Spa> {
    spa.close().unwrap();
    drop(spa);
    judged(dir);
    import(dir)
}

fn child(spa: &Arc<Spa>, name: &str) {
    let new = NewDataset::inheriting(name, ObjsetType::Zfs);
    spa.create_dataset(new, Box::new(|_, _| Ok(()))).unwrap();
}

fn file(spa: &Arc<Spa>, fs: &str) -> Object {
    let objset = spa.objset(&spa.view().unwrap().dataset(fs).unwrap()).unwrap();
    let new = NewObject { object_type: ObjectType::UINT64_OTHER, block_size: 4096, ..NewObject::default() };
    objset.alloc_object(&spa.tx(1 << 20).unwrap(), &new).unwrap()
}

fn again(spa: &Arc<Spa>, fs: &str, id: ObjectId) -> Object {
    spa.objset(&spa.view().unwrap().dataset(fs).unwrap()).unwrap().object(id).unwrap()
}

/// Fills `blocks` of the file with noise; small enough that each takes few sectors.
fn write(spa: &Arc<Spa>, file: &Object, blocks: std::ops::Range<u64>, seed: u64) {
    let env = Env::seeded(seed);
    for blkid in blocks {
        let mut block = vec![0; 4096];
        env.fill_random(&mut block[..(700 + 300 * (blkid % 5)) as usize]);
        file.write_block(&spa.tx(8192).unwrap(), blkid, block).unwrap();
    }
}

fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(|name| (*name).to_string()).collect()
}

fn snapshot(spa: &Arc<Spa>, name: &str) {
    spa.snapshot(&names(&[name]), &[]).unwrap();
}

/// All blocks of a dataset: where each is, and its bytes.
fn blocks(dataset: &Dataset) -> HashMap<(u64, u64), u64> {
    let mut all = HashMap::new();
    dataset.objset().unwrap().walk(&mut |visit| {
        if !visit.bp.is_hole() && !visit.bp.is_embedded() {
            all.insert((visit.bp.dva(0).word0, visit.bp.dva(0).word1), visit.bp.dvas().map(|d| d.asize()).sum());
        }
        dmu::Walk::Into
    });
    all
}

/// The figures of `fs` and its snapshots against a count of all blocks of all datasets.
fn counted(spa: &Arc<Spa>, fs: &str, others: &[&str]) {
    let view = spa.view().unwrap();
    let head = view.dataset(fs).unwrap();
    let mut line = head.snapshots().unwrap();
    line.push(head.clone());
    let own: Vec<_> = line.iter().map(blocks).collect();
    let foreign: Vec<_> = others.iter().map(|name| blocks(&view.dataset(name).unwrap())).collect();
    let elsewhere = |n: usize, place: &(u64, u64)| {
        own.iter().enumerate().any(|(m, set)| m != n && set.contains_key(place))
            || foreign.iter().any(|set| set.contains_key(place))
    };
    for (n, dataset) in line.iter().enumerate() {
        assert_eq!(dataset.referenced(), own[n].values().sum::<u64>(), "referenced by {}", dataset.name());
        let unique: u64 = own[n].iter().filter(|(place, _)| !elsewhere(n, place)).map(|(_, size)| size).sum();
        assert_eq!(dataset.phys().unique_bytes, unique, "unique to {}", dataset.name());
        for (m, from) in line.iter().enumerate().take(n) {
            let since = dataset.written_since(from).unwrap().used;
            let expected: u64 = own[n].iter().filter(|(p, _)| !own[m].contains_key(p)).map(|(_, size)| size).sum();
            assert_eq!(since, expected, "written@{} of {}", from.short_name(), dataset.name());
        }
    }
    if others.is_empty() {
        let mut all: HashMap<_, _> = HashMap::new();
        own.iter().for_each(|set| all.extend(set.iter().map(|(place, size)| (*place, *size))));
        let own_children = head.used_by_children().unwrap();
        assert_eq!(head.used() - own_children, all.values().sum::<u64>(), "used by {fs}");
    }
}

#[test]
fn snapshots_hold_what_was_written_before_them() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    let data = file(&spa, "t");
    for n in 0..5u64 {
        write(&spa, &data, n * 7..n * 7 + 20, n);
        // not yet on disk: it is in the snapshot all the same
        snapshot(&spa, &format!("t@s{n}"));
    }
    counted(&spa, "t", &[]);
    let view = spa.view().unwrap();
    assert_eq!(view.dataset("t@s1").unwrap().objset().unwrap().object(data.id()).unwrap().nblocks(), 27);
    drop(view);
    let why = spa.snapshot(&names(&["t@new", "t@s1"]), &[]).unwrap_err();
    assert_eq!(why.errno(), Errno::EEXIST);
    assert!(spa.view().unwrap().dataset("t@new").is_err());
    let Error::Many(all) = spa.snapshot(&names(&["t@a", "t@b", "t/no@c", "t@"]), &[]).unwrap_err() else { panic!() };
    assert_eq!(
        all.iter().map(|(_, error)| error.errno()).collect::<Vec<_>>(),
        [Errno::EXDEV, Errno::ENOENT, Errno::EINVAL]
    );
    drop(data);
    let spa = check(dir.path(), spa);
    counted(&spa, "t", &[]);
    spa.export().unwrap();
}

#[test]
fn many_file_systems_in_one_txg_with_properties() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    let all: Vec<String> = (0..40).map(|n| format!("t/f{n}")).collect();
    all.iter().for_each(|name| child(&spa, name));
    let snaps: Vec<String> = all.iter().map(|name| format!("{name}@all")).collect();
    spa.snapshot(&snaps, &[("org.example:why".to_string(), Value::String("backup".to_string()))]).unwrap();
    let view = spa.view().unwrap();
    let txgs: Vec<u64> = snaps.iter().map(|name| view.dataset(name).unwrap().phys().creation_txg.0).collect();
    assert!(txgs.iter().all(|txg| *txg == txgs[0]));
    let props = view.dataset("t/f7@all").unwrap().user_props().unwrap();
    assert!(props.iter().any(|(name, p)| name == "org.example:why" && p.value == Value::String("backup".to_string())));
    drop(view);
    let spa = check(dir.path(), spa);
    spa.destroy_snapshots(&snaps, false).unwrap();
    assert!(spa.view().unwrap().dataset("t/f7@all").is_err());
    drop(check(dir.path(), spa));
}

/// Every way of taking some of six snapshots away, at once or one by one, leaves figures that are right.
#[test]
fn snapshots_go_in_any_order() {
    for which in [0b11_1111u32, 0b01_0110, 0b10_1001] {
        for at_once in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let spa = make(dir.path());
            let data = file(&spa, "t");
            for n in 0..6u64 {
                write(&spa, &data, n * 3..n * 3 + 8, n);
                write(&spa, &data, 40..42, 77 + n);
                snapshot(&spa, &format!("t@s{n}"));
            }
            write(&spa, &data, 0..12, 99);
            spa.sync().unwrap();
            drop(data);
            let gone: Vec<String> = (0..6).filter(|n| which & (1 << n) != 0).map(|n| format!("t@s{n}")).collect();
            if at_once {
                spa.destroy_snapshots(&gone, false).unwrap();
            } else {
                for name in gone.iter().rev() {
                    spa.destroy_snapshots(std::slice::from_ref(name), false).unwrap();
                }
            }
            spa.wait_freed().unwrap();
            counted(&spa, "t", &[]);
            assert_eq!(special(&spa, "$FREE"), Space::default());
            drop(check(dir.path(), spa));
        }
    }
}

/// The space booked to one of the pool's own directories.
fn special(spa: &Arc<Spa>, name: &str) -> Space {
    let dir = spa.view().unwrap().dir(&format!("t/{name}")).unwrap();
    let p = dir.phys();
    Space { used: p.used_bytes, comp: p.compressed_bytes, uncomp: p.uncompressed_bytes }
}

#[test]
fn what_is_gone_already_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    snapshot(&spa, "t@a");
    spa.destroy_snapshots(&names(&["t@a", "t@b", "t/c@d", "t@a"]), false).unwrap();
    assert!(spa.view().unwrap().dataset("t").unwrap().snapshots().unwrap().is_empty());
    assert_eq!(spa.destroy_snapshots(&names(&["t"]), false).unwrap_err().errno(), Errno::EINVAL);
    drop(check(dir.path(), spa));
}

/// A call for some hundred, of which one cannot be, makes or destroys none.
#[test]
fn one_bad_name_among_many_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    let all: Vec<String> = (0..300).map(|n| format!("t/f{n:03}@s")).collect();
    std::thread::scope(|scope| {
        for some in all.chunks(38) {
            scope.spawn(|| some.iter().for_each(|name| child(&spa, name.split('@').next().unwrap())));
        }
    });
    let count = || {
        let view = spa.view().unwrap();
        all.iter().filter(|name| view.dataset(name).is_ok()).count()
    };
    for bad in ["t/gone@s", "t/f007@t", "t/f007@s/t"] {
        let mut names = all.clone();
        names.insert(200, bad.to_owned());
        let Error::Many(why) = spa.snapshot(&names, &[]).unwrap_err() else { panic!("{bad}") };
        assert!(why.len() == 1 && count() == 0, "{bad}");
    }
    spa.snapshot(&all, &[]).unwrap();
    assert_eq!(count(), 300);
    spa.hold(&[("t/f123@s".to_owned(), "x".to_owned())]).unwrap();
    let Error::Many(why) = spa.destroy_snapshots(&all, false).unwrap_err() else { panic!() };
    assert!(why.len() == 1 && why[0].0 == "t/f123@s" && count() == 300);
    spa.release(&[("t/f123@s".to_owned(), "x".to_owned())]).unwrap();
    spa.destroy_snapshots(&all, false).unwrap();
    assert_eq!(count(), 0);
    drop(check(dir.path(), spa));
}

#[test]
fn holds_keep_snapshots_and_the_last_one_lets_go() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    let pair = |snap: &str, tag: &str| (snap.to_string(), tag.to_string());
    snapshot(&spa, "t@a");
    snapshot(&spa, "t@b");
    spa.hold(&[pair("t@a", "one"), pair("t@a", "two")]).unwrap();
    assert_eq!(spa.hold(&[pair("t@b", "x"), pair("t@a", "one")]).unwrap_err().errno(), Errno::EEXIST);
    assert_eq!(spa.hold(&[pair("t@b", &"x".repeat(256))]).unwrap_err().errno(), Errno::E2BIG);
    // what is not there keeps nothing else from being held, and is told; not so what cannot be held
    assert_eq!(spa.hold(&[pair("t@gone", "x"), pair("t@b", "y"), pair("t/no@b", "x")]).unwrap(), ["t@gone", "t/no@b"]);
    assert_eq!(spa.hold(&[pair("t@gone", "x")]).unwrap(), ["t@gone"]);
    let Error::Many(why) = spa.hold(&[pair("t@gone", "x"), pair("t@b", "x"), pair("t@a", "one")]).unwrap_err() else {
        panic!()
    };
    let why: Vec<_> = why.iter().map(|(name, e)| (name.as_str(), e.errno())).collect();
    assert_eq!(why, [("t@a", Errno::EEXIST), ("t@gone", Errno::ENOENT)]);
    assert_eq!(spa.release(&[pair("t@b", "y")]).unwrap(), [""; 0]);
    let view = spa.view().unwrap();
    assert_eq!(view.dataset("t@b").unwrap().userrefs().unwrap(), 0);
    assert_eq!(view.dataset("t@a").unwrap().holds().unwrap().len(), 2);
    drop(view);
    let Error::Many(why) = spa.destroy_snapshots(&names(&["t@a", "t@b"]), false).unwrap_err() else { panic!() };
    assert!(matches!(&why[..], [(name, Error::Refused { why: Refusal::Held, .. })] if name == "t@a"));
    assert!(spa.view().unwrap().dataset("t@b").is_ok());
    spa.destroy_snapshots(&names(&["t@a", "t@b"]), true).unwrap();
    let view = spa.view().unwrap();
    assert!(view.dataset("t@b").is_err() && view.dataset("t@a").unwrap().is_defer_destroyed());
    drop(view);
    // what is not held keeps nothing else from being released, and is told
    let all = [pair("t@a", "three"), pair("t@a", "one"), pair("t@gone", "one"), pair("t@gone", "two")];
    assert_eq!(spa.release(&all).unwrap(), ["t@a#three", "t@gone"]);
    assert_eq!(spa.release(&[pair("t", "one"), pair("t@a", "two")]).unwrap_err().errno(), Errno::EINVAL);
    let spa = check(dir.path(), spa);
    spa.release(&[pair("t@a", "two")]).unwrap();
    assert!(spa.view().unwrap().dataset("t@a").is_err());
    drop(check(dir.path(), spa));
}

#[test]
fn a_clone_keeps_its_origin_and_takes_it_along() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    child(&spa, "t/f");
    let data = file(&spa, "t/f");
    let id = data.id();
    write(&spa, &data, 0..30, 1);
    snapshot(&spa, "t/f@a");
    write(&spa, &data, 10..20, 2);
    snapshot(&spa, "t/f@b");
    drop(data);
    spa.clone_dataset("t/f@a", "t/c", Vec::new()).unwrap();
    write(&spa, &again(&spa, "t/c", id), 0..3, 3);
    snapshot(&spa, "t/c@one");
    write(&spa, &again(&spa, "t/c", id), 2..5, 4);
    snapshot(&spa, "t/c@two");
    write(&spa, &again(&spa, "t/c", id), 4..7, 5);
    spa.sync().unwrap();
    let Error::Many(why) = spa.destroy_snapshots(&names(&["t/f@a"]), false).unwrap_err() else { panic!() };
    assert!(matches!(why[0].1, Error::Refused { why: Refusal::HasClones, .. }));
    spa.destroy_snapshots(&names(&["t/f@a", "t/c@one"]), true).unwrap();
    spa.wait_freed().unwrap();
    counted(&spa, "t/c", &["t/f", "t/f@a", "t/f@b"]);
    assert!(matches!(spa.destroy_head("t/c"), Err(Error::Refused { why: Refusal::HasSnapshots, .. })));
    let spa = check(dir.path(), spa);
    spa.destroy_snapshots(&names(&["t/c@two"]), false).unwrap();
    spa.destroy_head("t/c").unwrap();
    let view = spa.view().unwrap();
    assert!(view.dataset("t/c").is_err() && view.dataset("t/f@a").is_err());
    drop(view);
    spa.wait_freed().unwrap();
    counted(&spa, "t/f", &[]);
    assert_eq!(special(&spa, "$FREE"), Space::default());
    drop(check(dir.path(), spa));
}

#[test]
fn a_clone_is_destroyed_by_its_livelist() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    child(&spa, "t/f");
    let data = file(&spa, "t/f");
    let id = data.id();
    write(&spa, &data, 0..400, 1);
    snapshot(&spa, "t/f@a");
    drop(data);
    spa.clone_dataset("t/f@a", "t/c", Vec::new()).unwrap();
    spa.clone_dataset("t/f@a", "t/d", Vec::new()).unwrap();
    for round in 0..4 {
        write(&spa, &again(&spa, "t/c", id), 3..8, round);
        spa.sync().unwrap();
    }
    // much of this one is its own: it keeps no list
    write(&spa, &again(&spa, "t/d", id), 0..350, 9);
    spa.sync().unwrap();
    let lists = |spa: &Arc<Spa>, name: &str| {
        spa.view().unwrap().dataset(name).unwrap().dir().livelist().unwrap().map(|list| list.lists().len())
    };
    assert!(lists(&spa, "t/c").is_some() && lists(&spa, "t/d").is_none());
    let spa = check(dir.path(), spa);
    spa.destroy_head("t/c").unwrap();
    let spa = check(dir.path(), spa);
    spa.destroy_head("t/d").unwrap();
    spa.wait_freed().unwrap();
    counted(&spa, "t/f", &[]);
    assert_eq!(special(&spa, "$FREE"), Space::default());
    drop(check(dir.path(), spa));
}

/// A destroy that takes many txgs, closed and opened again in between, and looked at by zdb half-way.
#[test]
fn a_destroy_goes_on_after_an_import() {
    tunable::ZFS_ASYNC_BLOCK_MAX_BLOCKS.set(150);
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    child(&spa, "t/f");
    for n in 0..6 {
        write(&spa, &file(&spa, "t/f"), 0..400, n);
    }
    spa.sync().unwrap();
    let before = spa.view().unwrap().space().unwrap().allocated;
    spa.destroy_head("t/f").unwrap();
    let mut half_way = 0;
    let mut spa = spa;
    while spa.is_freeing() {
        half_way += 1;
        assert!(special(&spa, "$FREE").used > 0);
        spa = check(dir.path(), spa);
    }
    assert!(half_way > 2, "{half_way}");
    tunable::ZFS_ASYNC_BLOCK_MAX_BLOCKS.set(100_000);
    assert_eq!(special(&spa, "$FREE"), Space::default());
    (0..3).for_each(|_| spa.log_history(0, "some txgs").unwrap());
    assert!(spa.view().unwrap().space().unwrap().allocated < before / 2);
    drop(check(dir.path(), spa));
}

#[test]
fn heads_that_cannot_go() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    child(&spa, "t/f");
    child(&spa, "t/f/g");
    let data = file(&spa, "t/f/g");
    write(&spa, &data, 0..9, 1);
    let refused = |name: &str| match spa.destroy_head(name) {
        Err(Error::Refused { why, .. }) => why.errno(),
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!((refused("t/f"), refused("t"), refused("t/f/g")), (Errno::EEXIST, Errno::EINVAL, Errno::EBUSY));
    assert_eq!(spa.destroy_head("t/x").unwrap_err().errno(), Errno::ENOENT);
    drop(data);
    spa.destroy_head("t/f/g").unwrap();
    spa.destroy_head("t/f").unwrap();
    drop(check(dir.path(), spa));
}

#[test]
fn bookmarks_tell_what_was_written_since() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    let data = file(&spa, "t");
    let id = data.id();
    let pair = |new: &str, of: &str| (new.to_string(), of.to_string());
    let mut then = Vec::new();
    for n in 0..5u64 {
        write(&spa, &data, n * 4..n * 4 + 10, n);
        snapshot(&spa, &format!("t@s{n}"));
        spa.bookmark(&[pair(&format!("t#b{n}"), &format!("t@s{n}"))]).unwrap();
        then.push(blocks(&spa.view().unwrap().dataset(&format!("t@s{n}")).unwrap()));
    }
    spa.bookmark(&[pair("t#copy", "t#b2")]).unwrap();
    assert_eq!(spa.bookmark(&[pair("t#copy", "t#b1")]).unwrap_err().errno(), Errno::EEXIST);
    assert_eq!(spa.bookmark(&[pair("t#new", "t@none")]).unwrap_err().errno(), Errno::ENOENT);
    let written = |spa: &Arc<Spa>| {
        let view = spa.view().unwrap();
        let head = view.dataset("t").unwrap();
        let mut line = head.snapshots().unwrap();
        line.push(head.clone());
        for dataset in &line {
            let now = blocks(dataset);
            for (n, then) in then.iter().enumerate() {
                let Ok(mark) = view.bookmark(&format!("t#b{n}")) else { continue };
                let Ok(since) = dataset.written_since_bookmark(&mark) else { continue };
                let expected: u64 = now.iter().filter(|(place, _)| !then.contains_key(place)).map(|(_, s)| s).sum();
                assert_eq!(since.used, expected, "written#b{n} of {}", dataset.name());
            }
        }
    };
    written(&spa);
    write(&spa, &data, 0..30, 50);
    spa.sync().unwrap();
    written(&spa);
    // snapshots go and bookmarks stay: in one call, and one by one
    spa.destroy_snapshots(&names(&["t@s1", "t@s2"]), false).unwrap();
    written(&spa);
    write(&spa, &data, 5..25, 51);
    snapshot(&spa, "t@s5");
    written(&spa);
    drop(data);
    let spa = check(dir.path(), spa);
    spa.destroy_snapshots(&names(&["t@s4"]), false).unwrap();
    spa.destroy_snapshots(&names(&["t@s5"]), false).unwrap();
    write(&spa, &again(&spa, "t", id), 0..40, 52);
    snapshot(&spa, "t@s6");
    written(&spa);
    let spa = check(dir.path(), spa);
    spa.destroy_bookmarks(&names(&["t#b1", "t#b4", "t#nothing"])).unwrap();
    written(&spa);
    counted(&spa, "t", &[]);
    let spa = check(dir.path(), spa);
    spa.destroy_bookmarks(&names(&["t#b0", "t#b2", "t#b3", "t#copy"])).unwrap();
    assert!(spa.view().unwrap().dataset("t").unwrap().bookmarks().unwrap().is_empty());
    counted(&spa, "t", &[]);
    drop(check(dir.path(), spa));
}

#[test]
fn what_a_destroy_would_free_is_what_it_frees() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make(dir.path());
    let data = file(&spa, "t");
    for n in 0..6u64 {
        write(&spa, &data, n * 3..n * 3 + 9, n);
        snapshot(&spa, &format!("t@s{n}"));
    }
    drop(data);
    let view = spa.view().unwrap();
    let before = view.dataset("t").unwrap().used_by_snapshots().unwrap();
    let space = view.reclaimed_by("t@s1", "t@s4").unwrap();
    assert!(view.reclaimed_by("t@s4", "t@s1").is_err());
    drop(view);
    spa.destroy_snapshots(&(1..5).map(|n| format!("t@s{n}")).collect::<Vec<_>>(), false).unwrap();
    let after = spa.view().unwrap().dataset("t").unwrap().used_by_snapshots().unwrap();
    assert_eq!(before - after, space.used);
    assert!(space.used > 0);
    drop(check(dir.path(), spa));
}

#[test]
fn without_features() {
    let dir = tempfile::tempdir().unwrap();
    let spa = make_with(dir.path(), |create| create.features.clear());
    child(&spa, "t/f");
    let data = file(&spa, "t/f");
    let id = data.id();
    for n in 0..4u64 {
        write(&spa, &data, n * 3..n * 3 + 9, n);
        snapshot(&spa, &format!("t/f@s{n}"));
    }
    drop(data);
    assert_eq!(spa.bookmark(&[("t/f#b".to_string(), "t/f@s1".to_string())]).unwrap_err().errno(), Errno::ENOTSUP);
    spa.destroy_snapshots(&names(&["t/f@s0", "t/f@s2"]), false).unwrap();
    spa.wait_freed().unwrap();
    counted(&spa, "t/f", &[]);
    spa.clone_dataset("t/f@s1", "t/c", Vec::new()).unwrap();
    write(&spa, &again(&spa, "t/c", id), 0..5, 9);
    let spa = check(dir.path(), spa);
    spa.destroy_head("t/c").unwrap();
    spa.destroy_snapshots(&names(&["t/f@s1", "t/f@s3"]), false).unwrap();
    let spa = check(dir.path(), spa);
    spa.destroy_head("t/f").unwrap();
    drop(check(dir.path(), spa));
}
