//! The keys of each request against OpenZFS's tables (`zfs_ioctl.c`: `zfs_keys_*` and `zfs_ioctl_register`): what is not there, missing or of
//! another type is refused with the numbers that `zfs_check_input_nvpairs` has for it, before anything else is looked at.
#![allow(clippy::unwrap_used)]

mod support;

use base::Errno;
use control::{Control, Ioc, NameKind, ReadOnlyControl};
use nvlist::{DataType, NvList, Value};
use support::pool;

const UNAVAIL: Errno = Errno::ZFS_ERR_IOC_ARG_UNAVAIL;
const REQUIRED: Errno = Errno::ZFS_ERR_IOC_ARG_REQUIRED;
const BADTYPE: Errno = Errno::ZFS_ERR_IOC_ARG_BADTYPE;

/// A key: its name, its type, whether it may be missing.
type Key = (&'static str, DataType, bool);

/// The requests that OpenZFS registers with a list of keys: its name in the history, what the call is about, and the keys.
const LISTS: &[(Ioc, &str, &str, &[Key])] = {
    use DataType::{Boolean, BooleanValue, ByteArray, Int32, NvList, String, StringArray, Uint64};
    &[
        (Ioc::Snapshot, "snapshot", "t", &[("snaps", NvList, false), ("props", NvList, true)]),
        (Ioc::LogHistory, "log_history", "t", &[("message", String, false)]),
        (Ioc::SpaceSnaps, "space_snaps", "t@none", &[("firstsnap", String, false)]),
        (
            Ioc::Create,
            "create",
            "t/none",
            &[("type", Int32, false), ("props", NvList, true), ("hidden_args", NvList, true)],
        ),
        (
            Ioc::Clone,
            "clone",
            "t/none",
            &[("origin", String, false), ("props", NvList, true), ("hidden_args", NvList, true)],
        ),
        (Ioc::DestroySnaps, "destroy_snaps", "t", &[("snaps", NvList, false), ("defer", Boolean, true)]),
        (Ioc::Hold, "hold", "t", &[("holds", NvList, false), ("cleanup_fd", Int32, true)]),
        (Ioc::Rollback, "rollback", "t/none", &[("target", String, true)]),
        (Ioc::LoadKey, "load-key", "t", &[("hidden_args", NvList, false), ("noop", Boolean, true)]),
        (Ioc::UnloadKey, "unload-key", "t", &[]),
        (
            Ioc::ChangeKey,
            "change-key",
            "t",
            &[("crypt_cmd", Uint64, true), ("hidden_args", NvList, true), ("props", NvList, true)],
        ),
        (Ioc::PoolSync, "sync", "t", &[("force", BooleanValue, false)]),
        (Ioc::PoolCondense, "condense", "t", &[("condense_command", String, false), ("condense_type", String, false)]),
        (
            Ioc::VdevSetProps,
            "zpool_vdev_set_props",
            "t",
            &[("vdevprops_set_vdev", Uint64, false), ("vdevprops_set_props", NvList, false)],
        ),
        (Ioc::PoolPrefetch, "zpool_prefetch", "t", &[("prefetch_type", Int32, false)]),
        (Ioc::GetHolds, "get_holds", "t@none", &[]),
        (Ioc::GetBookmarkProps, "get_bookmark_props", "t#none", &[]),
        (Ioc::PoolGetProps, "get_props", "t", &[("get_props_names", StringArray, true)]),
        (
            Ioc::VdevGetProps,
            "zpool_vdev_get_props",
            "t",
            &[("vdevprops_get_vdev", Uint64, false), ("vdevprops_get_props", NvList, true)],
        ),
        (
            Ioc::SendSpace,
            "send_space",
            "t@none",
            &[
                ("from", String, true),
                ("fromsnap", String, true),
                ("largeblockok", Boolean, true),
                ("embedok", Boolean, true),
                ("compressok", Boolean, true),
                ("rawok", Boolean, true),
                ("fd", Int32, true),
                ("redactbook", String, true),
                ("resume_object", Uint64, true),
                ("resume_offset", Uint64, true),
                ("bytes", Uint64, true),
                // OpenZFS looks at it, and refuses it as unknown
                ("savedok", Boolean, true),
            ],
        ),
        (Ioc::PoolCheckpoint, "zpool_checkpoint", "t", &[]),
        (Ioc::PoolDiscardCheckpoint, "zpool_discard_checkpoint", "t", &[]),
        (Ioc::WaitFs, "wait_fs", "t", &[("wait_activity", Int32, false)]),
        (Ioc::Wait, "wait", "t", &[("wait_activity", Int32, false), ("wait_tag", Uint64, true)]),
        (
            Ioc::PoolScrub,
            "scrub",
            "t",
            &[
                ("scan_type", Uint64, false),
                ("scan_command", Uint64, false),
                ("scan_flags", Uint64, true),
                ("scan_date_start", Uint64, true),
                ("scan_date_end", Uint64, true),
            ],
        ),
        (
            Ioc::SendNew,
            "send",
            "t@none",
            &[
                ("fd", Int32, false),
                ("fromsnap", String, true),
                ("largeblockok", Boolean, true),
                ("embedok", Boolean, true),
                ("compressok", Boolean, true),
                ("rawok", Boolean, true),
                ("savedok", Boolean, true),
                ("resume_object", Uint64, true),
                ("resume_offset", Uint64, true),
                ("redactbook", String, true),
            ],
        ),
        (
            Ioc::RecvNew,
            "receive",
            "t/none",
            &[
                ("snapname", String, false),
                ("props", NvList, true),
                ("localprops", NvList, true),
                ("origin", String, true),
                ("begin_record", ByteArray, false),
                ("input_fd", Int32, false),
                ("force", Boolean, true),
                ("heal", Boolean, true),
                ("resumable", Boolean, true),
                ("cleanup_fd", Int32, true),
                ("action_handle", Uint64, true),
                ("hidden_args", NvList, true),
            ],
        ),
        (
            Ioc::DdtPrune,
            "zpool_ddt_prune",
            "t",
            &[("ddt_prune_unit", Int32, false), ("ddt_prune_amount", Uint64, false)],
        ),
        (
            Ioc::PoolInitialize,
            "initialize",
            "t",
            &[
                ("initialize_command", Uint64, false),
                ("initialize_vdevs", NvList, false),
                ("initialize_value", Uint64, true),
            ],
        ),
        (
            Ioc::PoolTrim,
            "trim",
            "t",
            &[
                ("trim_command", Uint64, false),
                ("trim_vdevs", NvList, false),
                ("trim_rate", Uint64, true),
                ("trim_secure", BooleanValue, true),
            ],
        ),
    ]
};

/// The requests that OpenZFS takes as a structure (`zfs_cmd_t`), with the names that `libzfs` and this crate have for its fields.
const OLDER: &[(Ioc, &str, &str, &[Key])] = {
    use DataType::{Boolean, BooleanValue, Int32, NvList, String, StringArray, Uint64, Uint64Array};
    &[
        (Ioc::PoolCreate, "pool_create", "t", &[("config", NvList, false), ("props", NvList, true)]),
        (Ioc::VdevAdd, "vdev_add", "t", &[("config", NvList, false), ("check_ashift", BooleanValue, true)]),
        (Ioc::VdevRemove, "vdev_remove", "t", &[("guid", Uint64, false)]),
        (
            Ioc::VdevAttach,
            "vdev_attach",
            "t",
            &[
                ("guid", Uint64, false),
                ("config", NvList, false),
                ("replacing", Boolean, true),
                ("rebuild", Boolean, true),
            ],
        ),
        (Ioc::VdevDetach, "vdev_detach", "t", &[("guid", Uint64, false)]),
        (Ioc::PoolGetHistory, "pool_get_history", "t", &[]),
        (Ioc::PoolConfigs, "pool_configs", "t", &[]),
        // `devices` is ours: libzfs puts the paths at which it found them into the tree; and so are `flags`, as absent logs are an error only to some
        (
            Ioc::PoolTryImport,
            "pool_tryimport",
            "t",
            &[("config", NvList, false), ("flags", Uint64, true), ("devices", StringArray, true)],
        ),
        (
            Ioc::PoolImport,
            "pool_import",
            "t",
            &[
                ("guid", Uint64, false),
                ("config", NvList, false),
                ("props", NvList, true),
                ("flags", Uint64, true),
                ("devices", StringArray, true),
            ],
        ),
        (
            Ioc::PoolStats,
            "pool_stats",
            "t",
            &[("brief", Boolean, true), ("errata", Boolean, true), ("dedup", Boolean, true)],
        ),
        (Ioc::ErrorLog, "error_log", "t", &[]),
        (Ioc::DsobjToDsname, "dsobj_to_dsname", "t", &[("obj", Uint64, false)]),
        (Ioc::ObjToPath, "obj_to_path", "t", &[("obj", Uint64, false)]),
        (
            Ioc::ObjsetStats,
            "objset_stats",
            "t",
            &[
                ("props", StringArray, true),
                ("simple", Boolean, true),
                ("origin", Boolean, true),
                ("stored", Boolean, true),
            ],
        ),
        // `objs` and `last` are ours: many objects in one request
        (Ioc::NextObj, "next_obj", "t", &[("obj", Uint64, false), ("last", Uint64, true)]),
        (Ioc::ObjToStats, "obj_to_stats", "t", &[("obj", Uint64, true), ("objs", Uint64Array, true)]),
        (Ioc::Diff, "diff", "t", &[("fromsnap", String, false), ("fd", Int32, false)]),
        (
            Ioc::DatasetListNext,
            "dataset_list_next",
            "t",
            &[
                ("depth", Uint64, true),
                ("simple", Boolean, true),
                ("snapshots", Boolean, true),
                ("special", Boolean, true),
                ("props", StringArray, true),
            ],
        ),
        (
            Ioc::SnapshotListNext,
            "snapshot_list_next",
            "t",
            &[
                ("snap_iter_min_txg", Uint64, true),
                ("snap_iter_max_txg", Uint64, true),
                ("depth", Uint64, true),
                ("simple", Boolean, true),
                ("props", StringArray, true),
                ("stored", Boolean, true),
                ("special", Boolean, true),
            ],
        ),
        (Ioc::UserspaceMany, "userspace_many", "t", &[("type", Uint64, false)]),
        (Ioc::EventsNext, "events_next", "t", &[("wait_ms", Uint64, true)]),
        (Ioc::EventsClear, "events_clear", "t", &[]),
        (Ioc::EventsSeek, "events_seek", "t", &[("eid", Uint64, false)]),
    ]
};

/// The requests whose keys are names of things, of which there must be one.
const THINGS: &[(Ioc, &str, &str, DataType)] = &[
    (Ioc::Bookmark, "bookmark", "t#none", DataType::String),
    (Ioc::DestroyBookmarks, "destroy_bookmarks", "t#none", DataType::Boolean),
    (Ioc::Release, "release", "t@none", DataType::NvList),
];

/// Something of a type that no request of this test can do much with.
fn value(kind: DataType) -> Value {
    match kind {
        DataType::Boolean => ().into(),
        DataType::BooleanValue => false.into(),
        DataType::Int32 => 77i32.into(),
        DataType::Uint64 => 77u64.into(),
        DataType::String => "t@none".into(),
        DataType::ByteArray => Value::ByteArray(vec![7]),
        DataType::Uint64Array => Value::Uint64Array(vec![77]),
        DataType::StringArray => Value::StringArray(vec!["t@none".into()]),
        _ => NvList::new().into(),
    }
}

/// A value of another type.
fn other(kind: DataType) -> Value {
    if kind == DataType::Uint64 { 77i32.into() } else { 77u64.into() }
}

fn list(keys: &[Key]) -> NvList {
    let mut list = NvList::new();
    keys.iter().for_each(|(name, kind, _)| list.insert(*name, value(*kind)));
    list
}

/// No error.
const DONE: Errno = Errno::from_raw(0);

fn errno(control: &Control, ioc: Ioc, name: &str, input: &NvList) -> Errno {
    control.call(ioc, name, input).map_or_else(|failed| failed.errno, |_| DONE)
}

fn with(list: &NvList, name: &str, value: Value) -> NvList {
    let mut list = list.clone();
    list.insert(name, value);
    list
}

fn without(list: &NvList, name: &str) -> NvList {
    let mut list = list.clone();
    list.remove(name);
    list
}

#[test]
fn each_request_takes_the_keys_that_openzfs_has_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    for (ioc, known_as, name, keys) in LISTS {
        let ask = |input: &NvList| errno(&control, *ioc, name, input);
        assert_eq!(ioc.name(), *known_as);
        let all = list(keys);
        assert!(!(UNAVAIL..=BADTYPE).contains(&ask(&all)), "{ioc:?} with all: {}", ask(&all));
        assert_eq!(ask(&with(&all, "unheard-of", value(DataType::String))), UNAVAIL, "{ioc:?}");
        for (key, kind, optional) in *keys {
            assert_eq!(ask(&with(&all, key, other(*kind))), BADTYPE, "{ioc:?} {key}");
            let errno = ask(&without(&all, key));
            assert!(if *optional { errno != REQUIRED } else { errno == REQUIRED }, "{ioc:?} {key}: {errno}");
        }
        // what a newer program could do without
        let errno = ask(&with(&all, "optional", value(DataType::NvList)));
        assert!(!(UNAVAIL..=BADTYPE).contains(&errno), "{ioc:?}: {errno}");
        assert_eq!(ask(&with(&all, "optional", value(DataType::String))), UNAVAIL, "{ioc:?}");
    }
    for (ioc, known_as, name, keys) in OLDER {
        let ask = |input: &NvList| errno(&control, *ioc, name, input);
        assert_eq!(ioc.name(), *known_as);
        let all = list(keys);
        assert!(!(UNAVAIL..=BADTYPE).contains(&ask(&all)), "{ioc:?} with all: {}", ask(&all));
        assert_eq!(ask(&with(&all, "unheard-of", value(DataType::String))), UNAVAIL, "{ioc:?}");
        for (key, kind, optional) in *keys {
            assert_eq!(ask(&with(&all, key, other(*kind))), BADTYPE, "{ioc:?} {key}");
            let errno = ask(&without(&all, key));
            assert!(if *optional { errno != REQUIRED } else { errno == REQUIRED }, "{ioc:?} {key}: {errno}");
        }
    }
    for (ioc, known_as, thing, kind) in THINGS {
        let ask = |input: &NvList| errno(&control, *ioc, "t", input);
        assert_eq!(ioc.name(), *known_as);
        assert_eq!(ask(&NvList::new()), REQUIRED, "{ioc:?}");
        assert_eq!(ask(&with(&NvList::new(), thing, other(*kind))), BADTYPE, "{ioc:?}");
        let errno = ask(&with(&NvList::new(), thing, value(*kind)));
        assert!(!(UNAVAIL..=BADTYPE).contains(&errno), "{ioc:?}: {errno}");
    }
}

#[test]
fn each_request_takes_the_kind_of_name_that_openzfs_has_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let things = THINGS.iter().map(|(ioc, _, thing, kind)| (*ioc, "t", with(&NvList::new(), thing, value(*kind))));
    let keyed = LISTS.iter().chain(OLDER).map(|(ioc, _, name, keys)| (*ioc, *name, list(keys)));
    for (ioc, name, input) in keyed.chain(things) {
        // requests that have the name of a pool here have that of a pool there, but for these
        let below_pool = [
            Ioc::ObjToPath,
            Ioc::NextObj,
            Ioc::ObjToStats,
            Ioc::Diff,
            Ioc::ObjsetStats,
            Ioc::DatasetListNext,
            Ioc::SnapshotListNext,
            Ioc::UserspaceMany,
            Ioc::LoadKey,
            Ioc::UnloadKey,
            Ioc::ChangeKey,
            Ioc::WaitFs,
        ];
        let kind = match ioc {
            Ioc::PoolConfigs | Ioc::PoolTryImport | Ioc::EventsNext | Ioc::EventsClear | Ioc::EventsSeek => {
                NameKind::None
            }
            Ioc::GetBookmarkProps => NameKind::Entity,
            _ if name != "t" || below_pool.contains(&ioc) => NameKind::Dataset,
            _ => NameKind::Pool,
        };
        assert_eq!(ioc.name_kind(), kind, "{ioc:?}");
        let takes = |name: &str| {
            let asked = errno(&control, ioc, name, &input);
            let known = ioc.pool_of(name).map(str::to_owned);
            if known.is_err() {
                assert_eq!(asked, Errno::EINVAL, "{ioc:?} {name}");
            }
            known.ok()
        };
        let is = |pool: &str| Some(pool.to_owned());
        let seen = ["t", "t/fs", "t/fs@s", "t#b", "", "t/", "t//fs", "t@a@b", "t/a!"].map(takes);
        let expected = match kind {
            NameKind::None => [(); 9].map(|()| is("")),
            NameKind::Pool => [is("t"), None, None, None, None, None, None, None, None],
            NameKind::Dataset => [is("t"), is("t"), is("t"), None, None, None, None, None, None],
            NameKind::Entity => [is("t"), is("t"), is("t"), is("t"), None, None, None, None, None],
        };
        assert_eq!(seen, expected, "{ioc:?}");
    }
}

#[test]
fn nothing_is_done_to_the_pool_of_a_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let look = ReadOnlyControl::new(control.spa().view().unwrap());
    let of_pools = [
        Ioc::PoolSetProps,
        Ioc::PoolUpgrade,
        Ioc::Clear,
        Ioc::PoolReopen,
        Ioc::VdevSetState,
        Ioc::PoolExport,
        Ioc::PoolDestroy,
    ];
    let of_datasets = [Ioc::GetBookmarks, Ioc::Destroy, Ioc::Promote, Ioc::Rename, Ioc::SetProp, Ioc::InheritProp];
    let kinds = [(&of_pools[..], NameKind::Pool, "t/fs@s"), (&of_datasets[..], NameKind::Dataset, "t#b")];
    for (iocs, kind, wrong) in kinds {
        for ioc in iocs {
            assert_eq!(ioc.name_kind(), kind, "{ioc:?}");
            // the name comes first, and so nothing else needs to be right
            assert_eq!(errno(&control, *ioc, wrong, &NvList::new()), Errno::EINVAL, "{ioc:?}");
            assert_eq!(look.call(*ioc, wrong, &NvList::new()).unwrap_err().errno, Errno::EINVAL, "{ioc:?}");
        }
    }
    assert_eq!(errno(&control, Ioc::PoolDestroy, "other", &NvList::new()), Errno::EXDEV);
    assert_eq!(errno(&control, Ioc::PoolSync, "t", &with(&NvList::new(), "force", false.into())), DONE);
}

#[test]
fn names_of_other_pools_and_of_no_kind_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let names = |names: &[&str], kind| {
        let mut list = NvList::new();
        names.iter().for_each(|name| list.insert(*name, value(kind)));
        list
    };
    let snaps = |all: &[&str]| with(&NvList::new(), "snaps", names(all, DataType::Boolean).into());
    let ask = |ioc, input: &NvList| errno(&control, ioc, "t", input);
    assert_eq!(ask(Ioc::Snapshot, &snaps(&["t"])), Errno::EINVAL);
    assert_eq!(ask(Ioc::Snapshot, &snaps(&["t@"])), Errno::EINVAL);
    assert_eq!(ask(Ioc::Snapshot, &snaps(&["t@a/b"])), Errno::EINVAL);
    assert_eq!(ask(Ioc::Snapshot, &snaps(&["other@a"])), Errno::EXDEV);
    assert_eq!(ask(Ioc::Snapshot, &snaps(&["tt@a"])), Errno::EXDEV);
    assert_eq!(ask(Ioc::Snapshot, &snaps(&["t@a", "t@b"])), Errno::EXDEV);
    assert_eq!(ask(Ioc::DestroySnaps, &snaps(&["other@a"])), Errno::EXDEV);
    assert_eq!(ask(Ioc::DestroySnaps, &snaps(&["t@none"])), DONE, "what is not there is passed over");
    assert_eq!(ask(Ioc::DestroyBookmarks, &names(&["t"], DataType::Boolean)), Errno::EINVAL);
    assert_eq!(ask(Ioc::DestroyBookmarks, &names(&["t#"], DataType::Boolean)), Errno::EINVAL);
    assert_eq!(ask(Ioc::DestroyBookmarks, &names(&["other#a"], DataType::Boolean)), Errno::EXDEV);
    assert_eq!(ask(Ioc::DestroyBookmarks, &names(&["t#none"], DataType::Boolean)), DONE);
}

#[test]
fn properties_of_users_have_lengths() {
    let dir = tempfile::tempdir().unwrap();
    let control = pool(dir.path());
    let snaps = with(&NvList::new(), "snaps", with(&NvList::new(), "t@a", ().into()).into());
    let errno = |name: &str, value: &str| {
        let props = with(&NvList::new(), name, value.into());
        errno(&control, Ioc::Snapshot, "t", &with(&snaps, "props", props.into()))
    };
    assert_eq!(errno("compression", "on"), Errno::EINVAL);
    assert_eq!(errno(&format!("a:{}", "b".repeat(254)), "c"), Errno::ENAMETOOLONG);
    assert_eq!(errno("a:b", &"c".repeat(8192)), Errno::E2BIG);
    assert_eq!(errno(&format!("a:{}", "b".repeat(253)), &"c".repeat(8191)), DONE);
}
