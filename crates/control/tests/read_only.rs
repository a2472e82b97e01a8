//! Requests that change nothing, of a pool that is open for a change and of a state that was opened for reading.
#![allow(clippy::unwrap_used)]

mod support;

use base::Errno;
use control::{Control, Ioc, ReadOnlyControl};
use nvlist::{NvList, Value};
use support::pool;

fn list(pairs: &[(&str, Value)]) -> NvList {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    list
}

/// The pool with `t/b`, `t/a`, and of that snapshots `one` and `two`, and the bookmark `mark` of `one`.
fn filled(dir: &std::path::Path) -> Control {
    let control = pool(dir);
    for name in ["t/b", "t/a"] {
        control.call(Ioc::Create, name, &list(&[("type", 2i32.into())])).unwrap();
    }
    for name in ["t/a@one", "t/a@two", "t/b@one"] {
        control.call(Ioc::Snapshot, "t", &list(&[("snaps", list(&[(name, ().into())]).into())])).unwrap();
    }
    control.call(Ioc::Bookmark, "t", &list(&[("t/a#mark", "t/a@one".into())])).unwrap();
    control
}

/// The answer of both, which is the same: the errno, or the list.
fn ask(control: &Control, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Errno> {
    let look = ReadOnlyControl::new(control.spa().view().unwrap());
    let answers = [control.call(ioc, name, input), look.call(ioc, name, input)];
    let [one, two] = answers.map(|answer| answer.map_err(|failed| failed.errno));
    assert_eq!(one, two, "{ioc:?} {name}");
    one
}

fn keys(list: &NvList) -> Vec<&str> {
    list.iter().map(|(name, _)| name).collect()
}

/// The value of a property in an answer.
fn value<'a>(out: &'a NvList, name: &str) -> &'a Value {
    out.get_nvlist(name).unwrap().get("value").unwrap()
}

#[test]
fn what_looks_changes_nothing_and_what_changes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let records = || control.spa().view().unwrap().history().unwrap().len();
    let before = records();
    for ioc in [Ioc::PoolStats, Ioc::PoolGetProps, Ioc::ObjsetStats, Ioc::GetHolds, Ioc::GetBookmarks] {
        ask(&control, ioc, "t", &NvList::new()).unwrap();
        assert_eq!(ask(&control, ioc, "other", &NvList::new()), Err(Errno::EXDEV));
    }
    assert_eq!((records(), control.has_changed()), (before, false));
    let look = ReadOnlyControl::new(control.spa().view().unwrap());
    assert_eq!(look.call(Ioc::Destroy, "t", &NvList::new()).unwrap_err().errno, Errno::EROFS);
}

#[test]
fn holds_are_told_with_their_times() {
    let dir = tempfile::tempdir().unwrap();
    let control = filled(dir.path());
    let get = |name: &str| ask(&control, Ioc::GetHolds, name, &NvList::new());
    assert_eq!(get("t/a@one"), Ok(NvList::new()));
    let holds = list(&[("t/a@one", "kept".into())]);
    control.call(Ioc::Hold, "t", &list(&[("holds", holds.into())])).unwrap();
    assert!(get("t/a@one").unwrap().get_u64("kept").is_some());
    assert_eq!([get("t/a@none"), get("t/none@one")], [Err(Errno::ENOENT), Err(Errno::ENOENT)]);
}

#[test]
fn bookmarks_are_told_with_what_is_wanted_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let control = filled(dir.path());
    let guid = control.spa().view().unwrap().dataset("t/a@one").unwrap().guid().0;
    let wanted = list(&[("guid", ().into()), ("redact_snaps", ().into())]);
    let out = ask(&control, Ioc::GetBookmarks, "t/a", &wanted).unwrap();
    assert_eq!(keys(&out), ["mark"]);
    let mark = out.get_nvlist("mark").unwrap();
    assert_eq!((keys(mark), value(mark, "guid")), (vec!["guid"], &guid.into()));
    let all = ask(&control, Ioc::GetBookmarks, "t/a", &NvList::new()).unwrap();
    let own = ask(&control, Ioc::GetBookmarkProps, "t/a#mark", &NvList::new()).unwrap();
    assert_eq!(all.get_nvlist("mark"), Some(&own));
    assert!(["createtxg", "creation", "ivsetguid"].iter().all(|name| own.contains(name)));
    assert_eq!(ask(&control, Ioc::GetBookmarks, "t/a@one", &NvList::new()), Err(Errno::EINVAL));
    assert_eq!(ask(&control, Ioc::GetBookmarkProps, "t/a", &NvList::new()), Err(Errno::EINVAL));
    assert_eq!(ask(&control, Ioc::GetBookmarkProps, "t/a#none", &NvList::new()), Err(Errno::ENOENT));
}

#[test]
fn properties_are_told_with_where_they_are_set() {
    let dir = tempfile::tempdir().unwrap();
    let control = filled(dir.path());
    let props = list(&[("atime", 0u64.into())]);
    control.call(Ioc::SetProp, "t", &list(&[("props", props.into())])).unwrap();
    let source = |name: &str| {
        let out = ask(&control, Ioc::ObjsetStats, name, &NvList::new()).unwrap();
        assert_eq!(value(&out, "atime"), &0u64.into());
        let of = |prop: &str| out.get_nvlist(prop).unwrap().get_str("source").map(str::to_owned);
        (of("atime"), of("recordsize"), of("guid"))
    };
    let expected = (Some("t".to_owned()), Some(String::new()), None);
    assert_eq!([source("t"), source("t/a")], [expected.clone(), expected]);
    assert_eq!(ask(&control, Ioc::ObjsetStats, "t/none", &NvList::new()), Err(Errno::ENOENT));

    let pool_prop = |input: &NvList, name: &str| {
        let out = ask(&control, Ioc::PoolGetProps, "t", input).unwrap();
        out.get_nvlist(name).and_then(|prop| prop.get_u64("source"))
    };
    assert_eq!(pool_prop(&NvList::new(), "failmode"), Some(2));
    assert_eq!(pool_prop(&NvList::new(), "dedupcached"), None);
    let more = list(&[("get_props_names", Value::StringArray(vec!["dedupcached".into(), "no-such".into()]))]);
    assert!(pool_prop(&more, "dedupcached").is_some());

    let leaf = control.spa().tree().config().children[0].guid.0;
    let vdev = |guid: u64, more: &[(&str, Value)]| {
        let input = [&[("vdevprops_get_vdev", guid.into())], more].concat();
        ask(&control, Ioc::VdevGetProps, "t", &list(&input))
    };
    assert_eq!(value(&vdev(leaf, &[]).unwrap(), "guid"), &leaf.into());
    let wanted = list(&[("guid", ().into())]);
    assert_eq!(keys(&vdev(leaf, &[("vdevprops_get_props", wanted.into())]).unwrap()), ["guid"]);
    assert_eq!(vdev(leaf ^ 1, &[]), Err(Errno::ENOENT));
    let config = ask(&control, Ioc::PoolStats, "t", &NvList::new()).unwrap();
    assert_eq!(config.get_u64("pool_guid"), Some(control.spa().guid().0));
}

#[test]
fn datasets_and_snapshots_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let control = filled(dir.path());
    let below = ask(&control, Ioc::DatasetListNext, "t", &NvList::new()).unwrap();
    assert_eq!(keys(&below), ["t/a", "t/b"]);
    assert_eq!(below.get_nvlist("t/a").unwrap().get_i32("dds_type"), Some(2));
    let snaps = |input: &NvList| ask(&control, Ioc::SnapshotListNext, "t/a", input).unwrap();
    let all = snaps(&NvList::new());
    assert_eq!(keys(&all), ["t/a@one", "t/a@two"]);
    let txg = |name: &str| all.get_nvlist(name).unwrap().get_u64("dds_creation_txg").unwrap();
    let from = snaps(&list(&[("snap_iter_min_txg", txg("t/a@two").into())]));
    let upto = snaps(&list(&[("snap_iter_max_txg", txg("t/a@one").into())]));
    assert_eq!((keys(&from), keys(&upto)), (vec!["t/a@two"], vec!["t/a@one"]));
    for (ioc, input) in [
        (Ioc::DatasetListNext, NvList::new()),
        (Ioc::SnapshotListNext, NvList::new()),
        (Ioc::SnapshotListNext, list(&[("special", ().into())])),
    ] {
        assert_eq!(ask(&control, ioc, "t/none", &input), Err(Errno::ESRCH));
    }
    // all of one dataset, whatever their names
    let special = [("special", ().into()), ("snap_iter_min_txg", txg("t/a@two").into())];
    assert_eq!(keys(&snaps(&list(&special[..1]))), keys(&all));
    assert_eq!(keys(&snaps(&list(&special))), ["t/a@two"]);
    assert!(ask(&control, Ioc::SnapshotListNext, "t", &list(&special[..1])).unwrap().is_empty());
    // those of all below as well
    let everything = [("depth", 9u64.into()), ("simple", ().into()), ("snapshots", ().into()), ("special", ().into())];
    let below = |keys: &[(&str, Value)]| ask(&control, Ioc::DatasetListNext, "t", &list(keys)).unwrap();
    let own = ["t/$ORIGIN@$ORIGIN", "t/a@one"].map(|name| below(&everything).contains(name));
    assert_eq!((own, below(&everything[..3]).contains("t/$ORIGIN@$ORIGIN")), ([true; 2], false));
}

#[test]
fn what_is_known_without_an_object_set_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let control = filled(dir.path());
    control.call(Ioc::Clone, "t/c", &list(&[("origin", "t/a@one".into())])).unwrap();
    let told = |name: &str, key: &str| ask(&control, Ioc::ObjsetStats, name, &list(&[(key, ().into())])).unwrap();
    let one = told("t/a@one", "simple");
    let view = control.spa().view().unwrap();
    let snap = view.dataset("t/a@one").unwrap();
    assert_eq!((one.get_str("name"), one.get_u64("dds_guid")), (Some("t/a@one"), Some(snap.guid().0)));
    assert_eq!(one.get_u64("dds_creation_txg"), Some(snap.phys().creation_txg.0));
    assert_eq!(told("t/c", "origin").get_nvlist("origin"), Some(&one));
    assert!(["t/a", "t/a@one"].iter().all(|name| !told(name, "origin").contains("origin")));
    assert!(!told("t/c", "simple").contains("origin") && !told("t/c", "stored").contains("encryption_root"));
}

#[test]
fn properties_that_a_dataset_has_of_its_own_are_told_as_they_are_stored() {
    let dir = tempfile::tempdir().unwrap();
    let control = filled(dir.path());
    let set = |name: &str, key: &str, value: Value| {
        control.call(Ioc::SetProp, name, &list(&[("props", list(&[(key, value)]).into())])).unwrap();
    };
    set("t", "a:b", "above".into());
    set("t/a", "quota", (1u64 << 30).into());
    set("t/a", "mountpoint", "/m".into());
    set("t/a@two", "a:c", "own".into());
    let stored = list(&[("stored", ().into())]);
    let answer = ask(&control, Ioc::ObjsetStats, "t/a", &stored).unwrap();
    assert_eq!(keys(&answer), ["dds_creation_txg", "dds_guid", "dds_is_snapshot", "name", "stored"]);
    let own = answer.get_nvlist("stored").unwrap();
    assert_eq!(keys(own), ["quota", "mountpoint"]);
    assert_eq!((value(own, "quota"), value(own, "mountpoint")), (&(1u64 << 30).into(), &"/m".into()));
    assert!(!own.get_nvlist("quota").unwrap().contains("received"));
    let snaps = ask(&control, Ioc::SnapshotListNext, "t/a", &stored).unwrap();
    let of = |name: &str| snaps.get_nvlist(name).unwrap().get_nvlist("stored").unwrap();
    assert!(of("t/a@one").is_empty());
    assert_eq!((keys(of("t/a@two")), value(of("t/a@two"), "a:c")), (vec!["a:c"], &"own".into()));
}

#[test]
fn sizes_of_streams_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let control = filled(dir.path());
    let space = |input: &[(&str, Value)]| {
        let out = ask(&control, Ioc::SendSpace, "t/a@two", &list(input));
        out.map(|out| out.get_u64("space").unwrap())
    };
    let whole = space(&[]).unwrap();
    assert_eq!(space(&[("fromsnap", "t/a@one".into())]), Ok(whole), "as in OpenZFS it is not looked at");
    assert_eq!(space(&[("bytes", 100u64.into())]), Ok(whole - 100));
    let since = space(&[("from", "t/a@one".into())]).unwrap();
    assert!(since < whole, "{since} {whole}");
    assert!(space(&[("from", "t/a#mark".into())]).unwrap() < whole);
    let refused = ["t/a", "t/b@one", "t/a@none", "t/a#none", "other@one"];
    let errnos = refused.map(|from| space(&[("from", from.into())]).unwrap_err());
    assert_eq!(errnos, [Errno::EINVAL, Errno::EXDEV, Errno::ENOENT, Errno::ENOENT, Errno::EXDEV]);
}

#[test]
fn tables_are_read_ahead_by_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let prefetch = |kind: i32| ask(&control, Ioc::PoolPrefetch, "t", &list(&[("prefetch_type", kind.into())]));
    let none = NvList::new;
    assert_eq!([0, 1, 2, 3].map(prefetch), [Err(Errno::EINVAL), Ok(none()), Ok(none()), Err(Errno::EINVAL)]);
}
