//! Requests that compare snapshots, and those about objects by their numbers (OpenZFS: `libzfs_diff.c`).
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::{Errno, ObjectId};
use control::{AllKept, Control, DiffRecord, Ioc, Kept, ReadOnlyControl};
use nvlist::{NvList, Value};
use support::pool;
use zpl::live::{Cred, NewFile, Zfs};

/// A file whose contents the test sees.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn list(pairs: &[(&str, Value)]) -> NvList {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    list
}

fn snapshot(control: &Control, name: &str) {
    let input = list(&[("snaps", list(&[(name, ().into())]).into())]);
    control.call(Ioc::Snapshot, "t", &input).unwrap();
}

fn records(control: &Control, from: &str, to: &str) -> Result<Vec<DiffRecord>, Errno> {
    let output = Shared::default();
    control.caller().files.output(4, Box::new(output.clone()), Arc::default());
    control.call(Ioc::Diff, to, &list(&[("fromsnap", from.into()), ("fd", 4i32.into())])).map_err(|e| e.errno)?;
    let bytes = output.0.lock().unwrap();
    let (all, rest) = bytes.as_chunks::<{ DiffRecord::SIZE }>();
    assert!(rest.is_empty());
    Ok(all.iter().map(|bytes| DiffRecord::decode(bytes).unwrap()).collect())
}

/// Takes snapshots around the removal of a file and the making of another. Returns the objects of one that stays, of the removed one, and of the new one.
fn changed(control: &Control) -> [u64; 3] {
    let fs = Zfs::open(control.spa(), "t").unwrap();
    let root = fs.fs().root();
    let file = |name: &[u8]| fs.create(&Cred::ROOT, root, name, &NewFile::new(zpl::Kind::File, 0o644)).unwrap().0;
    let [kept, gone] = [file(b"kept"), file(b"gone")];
    snapshot(control, "t@one");
    let new = file(b"new");
    fs.unlink(&Cred::ROOT, root, b"gone").unwrap();
    snapshot(control, "t@two");
    [kept.0, gone.0, new.0]
}

#[test]
fn objects_that_may_differ_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let [_, gone, new] = changed(&control);
    let all = records(&control, "t@one", "t@two").unwrap();
    let is_in =
        |object: ObjectId, in_use| all.iter().any(|r| r.in_use == in_use && (r.first..=r.last).contains(&object));
    assert!(
        is_in(ObjectId(new), true)
            && is_in(ObjectId(gone), false)
            && !is_in(ObjectId(new), false)
            && !is_in(ObjectId(gone), true),
        "{all:?}"
    );
    assert!(all.is_sorted_by(|a, b| a.last < b.first), "{all:?}");
    assert_eq!(records(&control, "t@one", "t").unwrap(), all);
    // again, and the file is at its end only
    assert_eq!(records(&control, "t@one", "t@two").unwrap(), all);
    // only numbers that no object has had
    assert!(records(&control, "t@two", "t").unwrap().iter().all(|r| !r.in_use && r.first > ObjectId(new)));
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    changed(&control);
    let errno = |from: &str, to: &str| records(&control, from, to).unwrap_err();
    assert_eq!(errno("t@two", "t@one"), Errno::EXDEV);
    assert_eq!(errno("t", "t@two"), Errno::EINVAL);
    assert_eq!(errno("other@one", "t@two"), Errno::EXDEV);
    assert_eq!(errno("t@none", "t@two"), Errno::ENOENT);
    assert_eq!(errno("t@one", "t@none"), Errno::ENOENT);
    assert_eq!(errno("t@one@x", "t@two"), Errno::EINVAL);
    let ask = |fd: i32| control.call(Ioc::Diff, "t@two", &list(&[("fromsnap", "t@one".into()), ("fd", fd.into())]));
    assert_eq!(ask(9).unwrap_err().errno, Errno::EBADF);
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    control.caller().files.output(9, Box::new(Broken), Arc::default());
    assert_ne!(ask(9).unwrap_err().errno, Errno::EBADF);
}

#[test]
fn objects_are_known_by_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let [kept, gone, new] = changed(&control);
    let look = ReadOnlyControl::new(control.spa().view().unwrap());
    let one = |name: &str, object: ObjectId| look.call(Ioc::ObjToStats, name, &list(&[("obj", object.0.into())]));
    let path = |name: &str, object: ObjectId| match one(name, object).map_err(|e| e.errno)?.get("path") {
        Some(Value::String(path)) => Ok(path.to_string_lossy().into_owned()),
        other => panic!("{other:?}"),
    };
    assert_eq!(path("t@one", ObjectId(gone)), Ok("/gone".to_owned()));
    assert_eq!((path("t", ObjectId(gone)), path("t@one", ObjectId(new))), (Err(Errno::ENOENT), Err(Errno::ENOENT)));
    // the master node is no file, and neither are the objects that count what users have; others have no number
    assert_eq!([1, u64::MAX].map(|object| path("t", ObjectId(object))), [const { Err(Errno::ENOTSUP) }; 2]);
    assert_eq!([0, 1 << 48].map(|object| path("t", ObjectId(object))), [const { Err(Errno::EINVAL) }; 2]);
    let whole_path = |object: u64| {
        let input = list(&[("obj", object.into())]);
        look.call(Ioc::ObjToPath, "t", &input).map(drop).map_err(|e| e.errno)
    };
    assert_eq!(
        [kept, gone, 1, 0].map(whole_path),
        [Ok(()), Err(Errno::ENOENT), Err(Errno::ENOTSUP), Err(Errno::EINVAL)]
    );
    assert_eq!(
        (path("t@two", ObjectId(kept)), path("t@two", ObjectId(new))),
        (Ok("/kept".to_owned()), Ok("/new".to_owned()))
    );
    let stats = one("t", ObjectId(kept)).unwrap();
    let number = |key: &str| stats.get_u64(key).unwrap();
    assert_eq!((number("zs_mode") & 0o170_777, number("zs_links")), (0o100_644, 1));
    assert!(number("zs_gen") > 0 && stats.get_u64_array("zs_ctime").unwrap().len() == 2);
    // many at once: one that is not there keeps no other from being answered
    let many = |objects: Vec<u64>| look.call(Ioc::ObjToStats, "t", &list(&[("objs", Value::Uint64Array(objects))]));
    let answer = many(vec![new, gone, 0, kept]).unwrap();
    let errno = |one: &NvList| one.get_i32("errno").map(Errno::from_raw);
    let errnos: Vec<_> = answer.get_nvlist_array("objects").unwrap().iter().map(errno).collect();
    assert_eq!(errnos, [None, Some(Errno::ENOENT), Some(Errno::EINVAL), None]);
    assert!(many(Vec::new()).unwrap().get_nvlist_array("objects").is_none_or(<[NvList]>::is_empty));
    assert_eq!(many(vec![kept; 4097]).unwrap_err().errno, Errno::EINVAL);
    assert_eq!(look.call(Ioc::ObjToStats, "t", &NvList::new()).unwrap_err().errno, Errno::EINVAL);
    assert_eq!(one("t@none", ObjectId(kept)).unwrap_err().errno, Errno::ENOENT);
}

#[test]
fn objects_follow_on_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let [kept, gone, _] = changed(&control);
    let next = |name: &str, object: ObjectId| {
        let answer = control.call(Ioc::NextObj, name, &list(&[("obj", object.0.into())])).map_err(|e| e.errno)?;
        Ok(answer.get_u64("obj").unwrap())
    };
    let mut all = Vec::new();
    let mut at = 0;
    while let Ok(object) = next("t@one", ObjectId(at)) {
        all.push(object);
        at = object;
    }
    assert!(all.contains(&kept) && all.contains(&gone) && all.is_sorted());
    assert_eq!(next("t@one", ObjectId(at)), Err(Errno::ESRCH));
    assert_eq!(next("t@one", ObjectId(u64::MAX)), Err(Errno::ESRCH));
    let up_to = |first: u64, last: u64| {
        let input = list(&[("obj", first.into()), ("last", last.into())]);
        control.call(Ioc::NextObj, "t@one", &input).unwrap().get_u64_array("objs").unwrap_or_default().to_vec()
    };
    assert_eq!(up_to(0, u64::MAX), all);
    assert_eq!(up_to(0, kept), all.iter().copied().filter(|object| *object <= kept).collect::<Vec<_>>());
    assert_eq!((up_to(kept, kept), up_to(u64::MAX, 0)), (Vec::new(), Vec::new()));
}

#[test]
fn a_state_that_nobody_asks_for_any_more_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let (all, kept, other) = (AllKept::new(Duration::from_millis(200)), Kept::default(), Kept::default());
    [&kept, &other].into_iter().for_each(|kept| all.add(kept));
    changed(&control);
    let seen = Arc::downgrade(&control.spa().view().unwrap());
    records(&control.clone().keeping(&kept), "t@one", "t").unwrap();
    // a later state is the current one
    control.clone().keeping(&other).call(Ioc::PoolSync, "t", &list(&[("force", true.into())])).unwrap();
    snapshot(&control.clone().keeping(&other), "t@three");
    control.spa().view().unwrap();
    assert!(seen.upgrade().is_some());
    all.watch();
    let begun = Instant::now();
    while seen.upgrade().is_some() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_diff_whose_state_is_overtaken_fails_until_it_begins_again() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let [kept, ..] = changed(&control);
    let stats = || control.call(Ioc::ObjToStats, "t", &list(&[("obj", kept.into())])).map(drop).map_err(|e| e.errno);
    records(&control, "t@one", "t").unwrap();
    assert_eq!(stats(), Ok(()));
    let fs = Zfs::open(control.spa(), "t").unwrap();
    let (root, new) = (fs.fs().root(), NewFile::new(zpl::Kind::File, 0o644));
    let full = fs.create(&Cred::ROOT, root, b"full", &new).unwrap().0;
    let mut at = 0;
    while fs.write(&Cred::ROOT, full, at, &base::Env::noise(at, 1 << 20)).is_ok() {
        at += 1 << 20;
    }
    assert_eq!(stats(), Err(Errno::EIO));
    assert_eq!(stats(), Err(Errno::EIO));
    records(&control, "t@one", "t").unwrap();
    assert_eq!(stats(), Ok(()));
}

#[test]
fn what_was_opened_before_a_change_is_not_kept_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let (kept, view) = (Kept::default(), control.spa().view().unwrap());
    let changed_meanwhile = || {
        kept.forget();
        Ok(view.clone())
    };
    kept.view(Ioc::Diff, "t", changed_meanwhile).unwrap();
    let asked_again = std::cell::Cell::new(false);
    let now = || {
        asked_again.set(true);
        Ok(view.clone())
    };
    kept.view(Ioc::ObjToStats, "t", now).unwrap();
    assert!(asked_again.get());
}
