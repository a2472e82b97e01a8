//! Who may make each request, and to which pools, against OpenZFS's table (`zfs_ioctl.c`: `zfs_ioctl_init`, `zfs_secpolicy_*`).

use base::Errno;
use control::{Caller, Facts, Failed, Ioc, Need, Needs, On, Permission, PoolCheck, Who};
use nvlist::{NvList, Value};

/// A request, the policy that OpenZFS registers it with, and the states in which it is refused: `S` suspended, `R` read-only. Permissions have the dataset in front of which they are
/// needed on.
const TABLE: &[(Ioc, &str, &str)] = &[
    (Ioc::LogHistory, "config", "SR"),
    (Ioc::PoolSync, "none", "SR"),
    (Ioc::PoolCheckpoint, "config", "SR"),
    (Ioc::PoolDiscardCheckpoint, "config", "SR"),
    (Ioc::PoolSetProps, "config", "SR"),
    (Ioc::PoolUpgrade, "config", "SR"),
    (Ioc::Clear, "config", "R"),
    (Ioc::PoolReopen, "config", "S"),
    (Ioc::VdevSetState, "config", "SR"),
    (Ioc::PoolExport, "config", "S"),
    (Ioc::PoolDestroy, "config", "S"),
    (Ioc::PoolReguid, "config", "SR"),
    (Ioc::PoolCondense, "none", "SR"),
    (Ioc::VdevSetProps, "config", "SR"),
    (Ioc::PoolCreate, "config", ""),
    (Ioc::VdevAdd, "config", "SR"),
    (Ioc::VdevRemove, "config", "SR"),
    (Ioc::VdevAttach, "config", "SR"),
    (Ioc::VdevDetach, "config", "SR"),
    (Ioc::PoolGetHistory, "config", "S"),
    (Ioc::SendNew, "send", "S"),
    (Ioc::RecvNew, "receive", "SR"),
    (Ioc::EventsNext, "config", ""),
    (Ioc::EventsClear, "config", ""),
    (Ioc::EventsSeek, "config", ""),
    (Ioc::PoolConfigs, "none", ""),
    (Ioc::PoolTryImport, "config", ""),
    (Ioc::PoolImport, "config", ""),
    (Ioc::PoolStats, "none", ""),
    (Ioc::ErrorLog, "config", "S"),
    (Ioc::DsobjToDsname, "name:diff", "S"),
    (Ioc::ObjToPath, "name:diff", "S"),
    (Ioc::NextObj, "none", "S"),
    (Ioc::ObjToStats, "name:diff", "S"),
    (Ioc::Diff, "name:diff", "S"),
    (Ioc::PoolGetProps, "none", ""),
    (Ioc::VdevGetProps, "none", ""),
    (Ioc::ObjsetStats, "none", "S"),
    (Ioc::DatasetListNext, "none", "S"),
    (Ioc::SnapshotListNext, "none", "S"),
    (Ioc::PoolPrefetch, "config", "S"),
    (Ioc::GetHolds, "none", "S"),
    (Ioc::GetBookmarks, "none", "S"),
    (Ioc::GetBookmarkProps, "none", "S"),
    (Ioc::SendSpace, "none", "S"),
    (Ioc::UserspaceMany, "accounting", "S"),
    (Ioc::Create, "parent:create parent:mount properties", "SR"),
    (Ioc::Clone, "origin:clone parent:create parent:mount properties", "SR"),
    (Ioc::Destroy, "name:mount name:destroy", "SR"),
    (Ioc::Snapshot, "each:snapshot each:userprop if props", "SR"),
    (Ioc::DestroySnaps, "each:mount each:destroy", "SR"),
    (Ioc::SpaceSnaps, "none", "S"),
    (Ioc::Bookmark, "each:bookmark", "SR"),
    (Ioc::DestroyBookmarks, "each:destroy", "SR"),
    (Ioc::Hold, "each:hold", "SR"),
    (Ioc::Release, "each:release", "SR"),
    (Ioc::Promote, "name:promote name:mount origin:promote", "SR"),
    (Ioc::Rename, "name:rename name:mount target:create target:mount", "SR"),
    (Ioc::Rollback, "name:rollback", "SR"),
    (Ioc::SetProp, "receive if received properties", "SR"),
    (Ioc::InheritProp, "properties", "SR"),
    (Ioc::LoadKey, "name:load-key", "S"),
    (Ioc::UnloadKey, "name:load-key", "S"),
    (Ioc::ChangeKey, "name:change-key", "SR"),
    (Ioc::WaitFs, "none", "SR"),
    (Ioc::PoolScrub, "config", "SR"),
    (Ioc::Wait, "none", "SR"),
    (Ioc::DdtPrune, "config", "SR"),
    (Ioc::PoolInitialize, "config", "SR"),
    (Ioc::PoolTrim, "config", "SR"),
];

fn words(who: Who) -> String {
    let named = |name: &str, on: &On| {
        let on = match on {
            On::Name => "name",
            On::Parent => "parent",
            On::TargetParent => "target",
            On::Origin => "origin",
            On::Each => "each",
        };
        format!("{on}:{name}")
    };
    let permission = |permission: &Permission| match permission {
        Permission::Named(name, on) => named(name, on),
        Permission::If(key, name, on) => format!("{} if {key}", named(name, on)),
        Permission::Send => "send".to_owned(),
        Permission::Receive(None) => "receive".to_owned(),
        Permission::Receive(Some(key)) => format!("receive if {key}"),
        Permission::OfProperties => "properties".to_owned(),
        Permission::OfAccounting => "accounting".to_owned(),
    };
    match who {
        Who::Everybody => "none".to_owned(),
        Who::Owner => "config".to_owned(),
        Who::Allowed(permissions) => permissions.iter().map(permission).collect::<Vec<_>>().join(" "),
    }
}

#[test]
fn each_request_has_the_policy_that_openzfs_has_for_it() {
    let with_a_row: Vec<Ioc> = TABLE.iter().map(|(ioc, ..)| *ioc).collect();
    assert_eq!(with_a_row, Ioc::ALL);
    for (ioc, who, states) in TABLE {
        assert_eq!(words(ioc.who()), *who, "{ioc:?}");
        let check = PoolCheck { suspended: states.contains('S'), readonly: states.contains('R') };
        assert_eq!(ioc.pool_check(), check, "{ioc:?}");
    }
}

#[test]
fn the_owner_and_root_may_do_all_and_others_what_is_open_to_everybody() {
    for (ioc, who, _) in TABLE {
        let errno = |uid: u32| {
            let caller = Caller { uid, real_uid: 7, ..Caller::default() };
            ioc.check_caller(&caller, 7).err().map(|e| e.errno())
        };
        let other = if *who == "none" { None } else { Some(Errno::EPERM) };
        // who asks is the user that acts, and not the one that the process was started by
        assert_eq!([errno(0), errno(7), errno(8)], [None, None, other], "{ioc:?}");
    }
}

/// A request, its name and list, and its needs.
type Row<'a> = (Ioc, &'a str, Vec<(&'a str, Value)>, &'a str);

/// A pool with an encrypted dataset `t/e`, and a clone `t/c` of `t/a/o@s`.
struct Known;

impl Facts for Known {
    fn exists(&self, dataset: &str) -> Result<bool, Failed> {
        Ok(["t", "t/a", "t/a@s", "t/a/o", "t/e", "t/c"].contains(&dataset))
    }

    fn origin(&self, dataset: &str) -> Result<Option<String>, Failed> {
        Ok((dataset == "t/c").then(|| "t/a/o@s".to_owned()))
    }

    fn is_encrypted(&self, dataset: &str) -> Result<bool, Failed> {
        Ok(dataset == "t/e")
    }
}

/// The needs of a request, sorted: a dataset and its permissions, or the errno.
fn needs(ioc: Ioc, name: &str, pairs: &[(&str, Value)]) -> String {
    let mut input = NvList::new();
    pairs.iter().for_each(|(key, value)| input.insert(*key, value.clone()));
    match ioc.needs(name, &input, &Known) {
        Ok(Needs::Nothing) => "nothing".to_owned(),
        Ok(Needs::Owner) => "owner".to_owned(),
        Ok(Needs::Permissions(all)) => {
            let one = |need: &Need| format!("{}:{}", need.dataset, need.any_of.join("|"));
            let needed = all.needed.iter().map(one);
            let of_properties = all.of_properties.iter().map(|(name, need)| format!("{name}?{}", one(need)));
            let gone = all.gone.iter().map(|name| format!("-{name}"));
            needed.chain(of_properties).chain(gone).collect::<Vec<_>>().join(" ")
        }
        Err(failed) => failed.errno.to_string(),
    }
}

fn list(names: &[&str]) -> Value {
    let mut list = NvList::new();
    names.iter().for_each(|name| list.insert(*name, ()));
    list.into()
}

fn props(pairs: &[(&str, Value)]) -> (&'static str, Value) {
    let mut list = NvList::new();
    pairs.iter().for_each(|(name, value)| list.insert(*name, value.clone()));
    ("props", list.into())
}

#[test]
fn a_request_needs_the_permissions_that_openzfs_asks_for() {
    let text = |text: &str| Value::from(text);
    let set = || Value::from(());
    let [einval, enoent, exdev] = [Errno::EINVAL, Errno::ENOENT, Errno::EXDEV].map(|errno| errno.to_string());
    let quota = || Value::from(vec![1u64, 0x1a, 5]);
    let table: Vec<Row<'_>> = vec![
        (Ioc::PoolStats, "t", vec![], "nothing"),
        (Ioc::PoolScrub, "t", vec![], "owner"),
        // send: what is on disk, of an encrypted dataset, has a permission of its own
        (Ioc::SendNew, "t/a@s", vec![("fd", 1i32.into())], "t/a:send"),
        (Ioc::SendNew, "t/a@s", vec![("fd", 1i32.into()), ("rawok", set())], "t/a:send|send:raw"),
        (Ioc::SendNew, "t/e@s", vec![("fd", 1i32.into())], "t/e:send"),
        (Ioc::SendNew, "t/e@s", vec![("fd", 1i32.into()), ("rawok", set())], "t/e:send|send:raw|send:encrypted"),
        // properties
        (
            Ioc::SetProp,
            "t/a",
            vec![props(&[("compression", 2u64.into()), ("a:b", text("c"))])],
            "t/a:compression t/a:userprop",
        ),
        (Ioc::SetProp, "t/a@s", vec![props(&[("a:b", text("c"))])], "t/a:userprop"),
        (Ioc::SetProp, "t/a", vec![props(&[("userquota@1a-", quota())])], "t/a:userquota"),
        (Ioc::SetProp, "t/a@s", vec![props(&[("userquota@1a-", quota())])], &einval),
        (Ioc::SetProp, "t/a", vec![props(&[("userused@1a-", quota())])], &einval),
        (
            Ioc::SetProp,
            "t/a",
            vec![props(&[("quota", 5u64.into())]), ("received", set())],
            "t/a:create t/a:mount t/a:quota t/a:receive|receive:append",
        ),
        (Ioc::InheritProp, "t/a", vec![("prop", text("compression"))], "t/a:compression"),
        (Ioc::InheritProp, "t/a@s", vec![("prop", text("a:b"))], "t/a:userprop"),
        (Ioc::InheritProp, "t/a", vec![("prop", text("a:b")), ("received", set())], "t/a:userprop"),
        (Ioc::UserspaceMany, "t/a", vec![("type", 0u64.into())], "t/a:userused"),
        (Ioc::UserspaceMany, "t/a", vec![("type", 99u64.into())], &einval),
        // snapshots and bookmarks
        (Ioc::Snapshot, "t", vec![("snaps", list(&["t/a@n", "t@n"]))], "t:snapshot t/a:snapshot"),
        (Ioc::Snapshot, "t", vec![("snaps", list(&["t@n"])), props(&[])], "t:snapshot"),
        (Ioc::Snapshot, "t", vec![("snaps", list(&["t@n"])), props(&[("a:b", text("c"))])], "t:snapshot t:userprop"),
        (Ioc::Snapshot, "t", vec![("snaps", list(&["t"]))], &einval),
        (Ioc::DestroySnaps, "t", vec![("snaps", list(&["t/a@s"]))], "t/a:destroy t/a:mount"),
        // what is gone is left out
        (
            Ioc::DestroySnaps,
            "t",
            vec![("snaps", list(&["t/a@none", "t/a@s", "t/none@s", "t/c@none"]))],
            "t/a:destroy t/a:mount -t/a@none -t/c@none -t/none@s",
        ),
        (Ioc::DestroyBookmarks, "t", vec![("t/a#m", set()), ("t/none#m", set())], "t/a:destroy -t/none#m"),
        // what is another pool's is not gone
        (Ioc::DestroySnaps, "t", vec![("snaps", list(&["other/x@s", "t/a@s"]))], &exdev),
        (Ioc::DestroyBookmarks, "t", vec![("other/x#m", set())], &exdev),
        (Ioc::Bookmark, "t", vec![("t/a#m", text("t/a@s"))], "t/a:bookmark"),
        (Ioc::DestroyBookmarks, "t", vec![("t/a#m", set())], "t/a:destroy"),
        (Ioc::Release, "t", vec![("t/a@s", list(&["tag"]))], "t/a:release"),
        // what is made
        (Ioc::Create, "t/a/n", vec![("type", 2i32.into())], "t/a:create t/a:mount"),
        (Ioc::Create, "t", vec![("type", 2i32.into())], &enoent),
        (
            Ioc::Create,
            "t/n",
            vec![
                ("type", 2i32.into()),
                props(&[("atime", 0u64.into()), ("encryption", 8u64.into()), ("keyformat", 3u64.into())]),
            ],
            "t:create t:mount t/n:atime",
        ),
        // what a file system is made with is not set in it
        (
            Ioc::Create,
            "t/n",
            vec![
                ("type", 2i32.into()),
                props(&[("utf8only", 1u64.into()), ("defaultuserquota", 5u64.into()), ("version", 5u64.into())]),
            ],
            "t:create t:mount t/n:version",
        ),
        (
            Ioc::Create,
            "t/n",
            vec![("type", 3i32.into()), props(&[("volsize", 8192u64.into()), ("utf8only", 1u64.into())])],
            "t:create t:mount t/n:utf8only t/n:volsize",
        ),
        (
            Ioc::Clone,
            "t/n",
            vec![("origin", text("t/a@s")), props(&[("a:b", text("c"))])],
            "t:create t:mount t/a:clone t/n:userprop",
        ),
        (Ioc::Destroy, "t/a", vec![], "t/a:destroy t/a:mount"),
        (Ioc::Promote, "t/c", vec![], "t/a/o:promote t/c:mount t/c:promote"),
        (Ioc::Rename, "t/a", vec![("target", text("t/e/b"))], "t/a:mount t/a:rename t/e:create t/e:mount"),
        (Ioc::Rename, "t/a@s", vec![("target", text("t/a@n"))], "t/a:create t/a:mount t/a:rename"),
        (Ioc::Rollback, "t/a", vec![], "t/a:rollback"),
        (Ioc::LoadKey, "t/e", vec![("hidden_args", list(&[]))], "t/e:load-key"),
        (Ioc::UnloadKey, "t/e", vec![], "t/e:load-key"),
        (Ioc::ChangeKey, "t/e", vec![("crypt_cmd", 4u64.into())], "t/e:change-key"),
        (Ioc::DsobjToDsname, "t", vec![("obj", 5u64.into())], "t:diff"),
    ];
    for (ioc, name, input, wanted) in table {
        assert_eq!(needs(ioc, name, &input), wanted, "{ioc:?} {name} {input:?}");
    }
}

#[test]
fn a_receive_needs_its_permissions_where_its_stream_goes() {
    let stream = |snapshot: &str, force: bool| {
        let begin = Value::ByteArray(vec![0; 312]);
        let mut pairs = vec![("snapname", snapshot.into()), ("begin_record", begin), ("input_fd", 0i32.into())];
        pairs.extend(force.then(|| ("force", ().into())));
        // the name of the call alone would be another's
        needs(Ioc::RecvNew, "t/a", &pairs)
    };
    assert_eq!(stream("t/e@s", false), "t/e:create t/e:mount t/e:receive|receive:append");
    assert_eq!(stream("t/e@s", true), "t/e:create t/e:mount t/e:receive");
    assert_eq!(stream("t/c/n@s", false), "t/c:create t/c:mount t/c:receive|receive:append");
}

#[test]
fn properties_of_a_receive_are_left_out_without_their_permissions() {
    let named = |name, all: &[(&str, Value)]| (name, props(all).1);
    let begin = Value::ByteArray(vec![0; 312]);
    let pairs = [
        ("snapname", "t/c/n@s".into()),
        ("begin_record", begin),
        ("input_fd", 0i32.into()),
        named("props", &[("compression", 2u64.into()), ("a:b", "c".into()), ("userused@1a-", 5u64.into())]),
        named("localprops", &[("atime", ().into()), ("userquota@1a-", Value::from(vec![1u64, 0x1a, 5]))]),
    ];
    assert_eq!(
        needs(Ioc::RecvNew, "t/a", &pairs),
        "t/c:create t/c:mount t/c:receive|receive:append a:b?t/c/n:userprop atime?t/c/n:atime \
         compression?t/c/n:compression userquota@1a-?t/c/n:userquota"
    );
}

/// The first record of a stream.
fn begin(features: u64, fromguid: u64) -> Value {
    const MAGIC: u64 = 0x2_f5ba_cbac;
    let mut record = vec![0; 312];
    for (at, word) in [(8, MAGIC), (16, features << 2 | 1), (40, 7), (48, fromguid)] {
        record[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    Value::ByteArray(record)
}

#[test]
fn what_a_whole_stream_is_encrypted_with_is_no_property_that_is_set() {
    const RAW: u64 = 1 << 24;
    let new = props(&[
        ("encryption", 8u64.into()),
        ("keyformat", 3u64.into()),
        ("keylocation", "prompt".into()),
        ("pbkdf2iters", 350_000u64.into()),
        ("pbkdf2salt", 1u64.into()),
    ]);
    let asked = |list: &'static str, begin: Value, origin: bool| {
        let mut pairs = vec![("snapname", "t/c/n@s".into()), ("begin_record", begin), ("input_fd", 0i32.into())];
        pairs.push((list, new.1.clone()));
        pairs.extend(origin.then(|| ("origin", "t/a@s".into())));
        let needs = needs(Ioc::RecvNew, "t/a", &pairs);
        let of_properties = needs.split(' ').filter_map(|one| Some(one.split_once('?')?.0.to_owned()));
        of_properties.collect::<Vec<_>>().join(" ")
    };
    let all = "encryption keyformat keylocation pbkdf2iters pbkdf2salt";
    assert_eq!(asked("localprops", begin(0, 0), false), "keylocation");
    assert_eq!(asked("localprops", begin(RAW, 0), false), all);
    assert_eq!(asked("localprops", begin(0, 5), false), all);
    assert_eq!(asked("localprops", begin(0, 0), true), all);
    assert_eq!(asked("localprops", Value::ByteArray(vec![0; 312]), false), all);
    assert_eq!(asked("props", begin(0, 0), false), all);
}
