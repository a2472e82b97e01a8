//! The configuration with figures that a pool answers with, against the layout of OpenZFS's structures; and datasets listed with their properties.
#![allow(clippy::unwrap_used)]

mod support;

use base::{Errno, ObjectId};
use control::stats::{Activity, Dedup, VdevStat, VdevStats};
use control::{Control, Ioc, ReadOnlyControl};
use nvlist::{NvList, Value};
use ondisk::scan::{ScanFunc, ScanState};
use support::pool;

fn list(pairs: &[(&str, Value)]) -> NvList {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    list
}

fn names(names: &[&str]) -> Value {
    Value::StringArray(names.iter().map(|name| (*name).into()).collect())
}

fn stats(control: &Control, input: &NvList) -> NvList {
    control.call(Ioc::PoolStats, "t", input).unwrap()
}

fn tree(config: &NvList) -> &NvList {
    config.get_nvlist("vdev_tree").unwrap()
}

#[test]
fn every_vdev_has_the_words_of_openzfs() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let config = stats(&control, &list(&[("dedup", ().into())]));
    let txg = control.spa().view().unwrap().uberblock().txg.0;
    assert_eq!((config.get_str("name"), config.get_u64("txg")), (Some("t"), Some(txg)));
    assert!(config.get_nvlist("feature_stats").unwrap().contains("com.delphix:async_destroy"));
    assert_eq!((config.get_u64("errata"), config.get_u64("error_count")), (Some(0), Some(0)));
    let words = |key: &str| config.get_u64_array(key).map(<[u64]>::len);
    assert_eq!([words("ddt_object_stats"), words("ddt_histogram"), words("ddt_stats")], [Some(3), Some(512), Some(8)]);
    assert_eq!(Dedup::of(&config).map(|dedup| dedup.count), Some(0));

    let root = tree(&config);
    let leaf = &root.get_nvlist_array("children").unwrap()[0];
    for vdev in [root, leaf] {
        let words = vdev.get_u64_array("vdev_stats").unwrap();
        assert_eq!((words.len(), words[1], words[2]), (48, 7, 0), "healthy, with no reason");
        let extended = vdev.get_nvlist("vdev_stats_ex").unwrap();
        assert_eq!(extended.get_u64_array("vdev_tot_w_lat_histo").map(<[u64]>::len), Some(37));
        assert_eq!(extended.get_u64_array("vdev_agg_rebuild_histo").map(<[u64]>::len), Some(25));
        assert_eq!(extended.get_u64("vdev_async_scrub_active_queue"), Some(0));
        assert_eq!((words[9] > 0, words[10] > 0, words[16] > words[10]), (words[9] > 0, true, true), "it was written");
    }
    let figures = VdevStats::of(leaf);
    let view = control.spa().view().unwrap();
    let space = view.vdev_space(0).unwrap().unwrap();
    assert_eq!((figures.get(VdevStat::Space), figures.get(VdevStat::Alloc)), (space.size, space.allocated));
    assert_eq!(figures.get(VdevStat::Pspace), 96 << 20);

    let brief = stats(&control, &list(&[("brief", ().into())]));
    let walks = ["errata", "error_count", "ddt_stats"]
        .map(|key| brief.get_u64_array(key).is_some() || key != "errata" && brief.contains(key));
    assert_eq!(walks, [false; 3]);
    let with = stats(&control, &list(&[("brief", ().into()), ("errata", ().into())]));
    assert_eq!(
        (with.get_u64("errata"), with.contains("error_count"), with.contains("ddt_stats")),
        (Some(0), false, false)
    );
    assert!(!stats(&control, &NvList::new()).contains("ddt_stats"), "they are read for those who ask for them");
}

#[test]
fn a_pool_with_spares_beyond_number_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let with = |spares: usize| {
        let control = support::pool_with(&dir.path().join(spares.to_string()), |new| {
            new.spares = (1..=spares as u64)
                .map(|guid| list(&[("guid", guid.into()), ("children", vec![NvList::new()].into())]))
                .collect();
        });
        control.call(Ioc::PoolStats, "t", &NvList::new())
    };
    let config = with(4096).unwrap();
    let spares = tree(&config).get_nvlist_array("spares").unwrap();
    assert_eq!(spares.len(), 4096);
    let extended = spares[0].get_nvlist("vdev_stats_ex").unwrap();
    assert_eq!((extended.len(), spares[0].contains("children")), (15, false), "nothing was counted");
    let failed = with(4097).unwrap_err();
    assert!(failed.errno == Errno::EIO && failed.to_string().contains("'t' has 4097 spares"), "{failed}");
}

#[test]
fn figures_that_the_maker_of_a_pool_stored_are_not_told() {
    let dir = tempfile::tempdir().unwrap();
    let control = support::pool_with(dir.path(), |new| {
        let words = || Value::Uint64Array(vec![1; 23]);
        let top = &mut new.vdev_tree.get_nvlist_array_mut("children").unwrap()[0];
        top.insert("org.openzfs:rebuild_stats", words());
        ["scan_stats", "checkpoint_stats"].into_iter().for_each(|key| new.vdev_tree.insert(key, words()));
    });
    let activity = Activity::of(&stats(&control, &NvList::new()));
    assert!(activity.scan.is_none() && activity.checkpoint.is_none() && activity.rebuilds.is_empty(), "{activity:?}");
}

#[test]
fn what_is_asked_for_twice_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let ask = |wanted: &[&str]| control.call(Ioc::ObjsetStats, "t", &list(&[("props", names(wanted))]));
    assert_eq!(ask(&["used"; 5000]).unwrap().len(), 1);
    let many: Vec<String> = (0..1025).map(|n| format!("a:{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(ask(&many).unwrap_err().errno, Errno::EINVAL);
    assert!(ask(&many[1..]).unwrap().is_empty());
}

#[test]
fn activities_are_told_at_the_root() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let none = stats(&control, &NvList::new());
    assert!(!tree(&none).contains("scan_stats") && !tree(&none).contains("checkpoint_stats"));
    control.call(Ioc::PoolScrub, "t", &list(&[("scan_type", 1u64.into()), ("scan_command", 0u64.into())])).unwrap();
    control.call(Ioc::Wait, "t", &list(&[("wait_activity", 6i32.into())])).unwrap();
    control.call(Ioc::PoolCheckpoint, "t", &NvList::new()).unwrap();
    let config = stats(&control, &NvList::new());
    let scan = tree(&config).get_u64_array("scan_stats").unwrap();
    assert_eq!((scan.len(), scan[0], scan[1]), (23, 1, 2), "a scrub that is finished");
    let checkpoint = tree(&config).get_u64_array("checkpoint_stats").unwrap();
    assert_eq!((checkpoint.len(), checkpoint[0]), (3, 1), "there is one");
    let activity = Activity::of(&config);
    let scan = activity.scan.unwrap();
    assert_eq!((scan.func, scan.state), (ScanFunc::Scrub, ScanState::Finished));
    assert!(activity.checkpoint.is_some_and(|checkpoint| !checkpoint.discarding && checkpoint.time > 0));
}

#[test]
fn the_error_log_is_told_and_objects_have_names() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let ask = |ioc, name: &str, obj: ObjectId| control.call(ioc, name, &list(&[("obj", obj.0.into())]));
    let errors = control.call(Ioc::ErrorLog, "t", &NvList::new()).unwrap();
    assert_eq!(errors.get_u64_array("errors"), Some(&[][..]));
    let head = control.spa().view().unwrap().dataset("t").unwrap().id();
    assert_eq!(ask(Ioc::DsobjToDsname, "t", head).unwrap().get_str("name"), Some("t"));
    assert!(ask(Ioc::DsobjToDsname, "t", ObjectId(1 << 40)).is_err());
    // the root directory
    let root = ask(Ioc::ObjToPath, "t", ObjectId(3)).or_else(|_| ask(Ioc::ObjToPath, "t", ObjectId(34))).unwrap();
    assert_eq!(root.get_str("path"), Some("/"));
}

#[test]
fn all_below_a_dataset_are_listed_with_their_properties_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    for name in ["t/a", "t/a/b", "t/a/b/c"] {
        control.call(Ioc::Create, name, &list(&[("type", 2i32.into())])).unwrap();
        let snap = list(&[(&*format!("{name}@s"), ().into())]);
        control.call(Ioc::Snapshot, "t", &list(&[("snaps", snap.into())])).unwrap();
    }
    let look = ReadOnlyControl::new(control.spa().view().unwrap());
    let keys = |answer: &NvList| answer.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    let ask = |ioc, pairs: &[(&str, Value)]| look.call(ioc, "t", &list(pairs)).unwrap();
    assert_eq!(keys(&ask(Ioc::DatasetListNext, &[])), ["t/a"]);
    let all = ask(Ioc::DatasetListNext, &[("depth", u64::MAX.into()), ("simple", ().into())]);
    assert_eq!(keys(&all), ["t/a", "t/a/b", "t/a/b/c"]);
    assert!(!all.get_nvlist("t/a").unwrap().contains("dds_type") && !all.get_nvlist("t/a").unwrap().contains("props"));
    let two = ask(Ioc::SnapshotListNext, &[("depth", 3u64.into())]);
    assert_eq!(keys(&two), ["t/a@s", "t/a/b@s"]);
    let both = ask(Ioc::DatasetListNext, &[("snapshots", ().into())]);
    assert_eq!(keys(&both), ["t/a"], "snapshots of what is one level below are two levels below");
    let both = ask(Ioc::DatasetListNext, &[("snapshots", ().into()), ("depth", 2u64.into())]);
    assert_eq!(keys(&both), ["t/a", "t/a@s", "t/a/b"]);
    let some = names(&["used", "userused@0", "written@none", "no:such"]);
    let with = ask(Ioc::DatasetListNext, &[("depth", 2u64.into()), ("props", some)]);
    let props = with.get_nvlist("t/a/b").unwrap().get_nvlist("props").unwrap();
    let own = look.call(Ioc::ObjsetStats, "t/a/b", &list(&[("props", names(&["used"]))])).unwrap();
    assert_eq!((props.get_nvlist("used"), own.len()), (own.get_nvlist("used"), 1));
    assert!(!props.contains("written@none") && !props.contains("no:such"));
    let every = ask(Ioc::DatasetListNext, &[("props", names(&[]))]);
    let whole = look.call(Ioc::ObjsetStats, "t/a", &NvList::new()).unwrap();
    assert_eq!(every.get_nvlist("t/a").unwrap().get_nvlist("props"), Some(&whole));
    for ioc in [Ioc::PoolConfigs, Ioc::PoolTryImport] {
        let input = if ioc == Ioc::PoolConfigs { NvList::new() } else { list(&[("config", NvList::new().into())]) };
        assert_eq!(look.call(ioc, "t", &input).unwrap_err().errno, Errno::EINVAL, "a request to the machine");
    }
}
