//! Requests about the pool as a whole.
#![allow(clippy::unwrap_used)]

mod support;

use base::Errno;
use control::{Control, Ioc};
use nvlist::{NvList, Value};
use support::pool;

fn list(pairs: &[(&str, Value)]) -> NvList {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    list
}

/// No error.
const DONE: Errno = Errno::from_raw(0);

fn errno(control: &Control, ioc: Ioc, input: &NvList) -> Errno {
    control.call(ioc, "t", input).map_or_else(|failed| failed.errno, |_| DONE)
}

fn set(control: &Control, props: &[(&str, Value)]) -> Errno {
    errno(control, Ioc::PoolSetProps, &list(&[("props", list(props).into())]))
}

fn prop(control: &Control, name: &str) -> String {
    control.spa().view().unwrap().prop(name).unwrap().unwrap().value.to_string()
}

#[test]
fn properties_of_a_pool_are_set_all_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let refused: [(&str, Value, Errno); 11] = [
        ("no-such", 1u64.into(), Errno::EINVAL),
        ("feature@no_such", 0u64.into(), Errno::EINVAL),
        ("size", 1u64.into(), Errno::EINVAL),
        ("failmode", 3u64.into(), Errno::EINVAL),
        ("failmode", "wait".into(), Errno::EINVAL),
        ("comment", 1u64.into(), Errno::EINVAL),
        ("a:b", 1u64.into(), Errno::EINVAL),
        ("version", 28u64.into(), Errno::EINVAL),
        ("version", 5000u64.into(), Errno::EINVAL),
        ("bootfs", "t/none".into(), Errno::ENOENT),
        ("bootfs", "other".into(), Errno::EXDEV),
    ];
    for (name, value, expected) in refused {
        let failed = control.call(
            Ioc::PoolSetProps,
            "t",
            &list(&[("props", list(&[("autotrim", 1u64.into()), (name, value)]).into())]),
        );
        let failed = failed.unwrap_err();
        assert_eq!(failed.errno, expected, "{name}");
        assert_eq!(failed.out.get_i32(name), Some(expected.raw()), "{name}");
        assert_eq!(prop(&control, "autotrim"), "0", "{name}");
    }
    let good = [
        ("autotrim", 1u64.into()),
        ("failmode", 1u64.into()),
        ("comment", "of ours".into()),
        ("a:b", "c".into()),
        ("bootfs", "t".into()),
        ("cachefile", "none".into()),
    ];
    assert_eq!(set(&control, &good), DONE);
    assert_eq!(["autotrim", "failmode", "comment"].map(|name| prop(&control, name)), ["1", "1", "of ours"]);
    assert_eq!(set(&control, &[("bootfs", "".into())]), DONE);
    assert_eq!(set(&control, &[("cachefile", "none".into())]), DONE, "nothing is kept of it");
}

#[test]
fn upgrades_go_forward_to_versions_that_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let upgrade = |version: u64, features: &[&str]| {
        let features: Vec<(&str, Value)> = features.iter().map(|name| (*name, 0u64.into())).collect();
        let input = list(&[("version", version.into()), ("props", list(&features).into())]);
        errno(&control, Ioc::PoolUpgrade, &input)
    };
    assert_eq!([28, 4999, 5001].map(|version| upgrade(version, &[])), [Errno::EINVAL; 3]);
    assert_eq!(upgrade(5000, &["feature@no_such"]), Errno::EINVAL);
    assert_eq!(upgrade(5000, &["comment"]), Errno::EINVAL);
    assert_eq!(upgrade(5000, &["feature@redaction_bookmarks"]), DONE);
    assert!(control.spa().view().unwrap().feature_enabled("redaction_bookmarks"));
    assert_eq!(upgrade(5000, &[]), DONE, "nothing is to be done");
}

#[test]
fn errors_of_devices_that_are_not_there_are_not_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let leaf = control.spa().tree().config().children[0].guid.0;
    let clear = |guid: u64| errno(&control, Ioc::Clear, &list(&[("guid", guid.into())]));
    assert_eq!(
        [clear(leaf), clear(leaf ^ 1), errno(&control, Ioc::Clear, &NvList::new())],
        [DONE, Errno::ENODEV, DONE]
    );
}

#[test]
fn logs_of_space_changes_are_condensed_before_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let condense = |command: &str, kind: &str| {
        let input = list(&[("condense_command", command.into()), ("condense_type", kind.into())]);
        errno(&control, Ioc::PoolCondense, &input)
    };
    assert_eq!([condense("begin", "log_spacemap"), condense("start", "debug")], [Errno::EINVAL; 2]);
    assert_eq!([condense("start", "log_spacemap"), condense("cancel", "log_spacemap")], [DONE; 2]);
    assert!(!control.spa().space().condense_progress().active);
}

#[test]
fn properties_of_vdevs_are_set_all_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let leaf = control.spa().tree().config().children[0].guid;
    let set = |guid: u64, props: &[(&str, Value)]| {
        let input = [("vdevprops_set_vdev", guid.into()), ("vdevprops_set_props", list(props).into())];
        errno(&control, Ioc::VdevSetProps, &list(&input))
    };
    let comment = || {
        let view = control.spa().view().unwrap();
        let props = view.vdev_props(leaf).unwrap();
        props.get("comment").unwrap().unwrap().value.to_string()
    };
    let before = comment();
    assert_eq!(set(leaf.0 ^ 1, &[("comment", "x".into())]), Errno::ENOENT);
    for (name, value) in [("size", 1u64.into()), ("no-such", "x".into()), ("checksum_n", "x".into())] {
        let value: Value = value;
        assert_eq!(set(leaf.0, &[("comment", "x".into()), (name, value)]), Errno::EINVAL, "{name}");
    }
    assert_eq!(comment(), before);
    assert_eq!(set(leaf.0, &[("comment", "left".into()), ("a:b", "c".into())]), DONE);
    assert_eq!(comment(), "left");
}

#[test]
fn a_pool_that_is_left_has_the_command_in_its_history_and_takes_no_more_requests() {
    for (ioc, state) in [(Ioc::PoolExport, 1), (Ioc::PoolDestroy, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let control = pool(dir.path());
        assert_eq!(errno(&control, ioc, &list(&[("message", "zpool leave t".into())])), DONE);
        assert_eq!(errno(&control, Ioc::Destroy, &NvList::new()), Errno::EIO);
        drop(control);
        let found = vdev::import::scan(&[dir.path().to_path_buf()]).unwrap();
        assert_eq!(found.iter().map(|pool| pool.state as u64).collect::<Vec<_>>(), [state]);
        let view = pool::Pool::open(&found[0], &pool::OpenOptions::default()).unwrap();
        assert!(view.history().unwrap().iter().any(|record| record.command() == Some("zpool leave t")), "{ioc:?}");
    }
}
