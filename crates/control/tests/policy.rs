//! Who may make each request, and to which pools, against OpenZFS's table (`zfs_ioctl.c`: `zfs_ioctl_init`, `zfs_secpolicy_*`).

use base::Errno;
use control::{Caller, Ioc, On, Permission, PoolCheck, Who};

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
    (Ioc::PoolCondense, "none", "SR"),
    (Ioc::VdevSetProps, "config", "SR"),
    (Ioc::PoolCreate, "config", ""),
    (Ioc::VdevAdd, "config", "SR"),
    (Ioc::VdevRemove, "config", "SR"),
    (Ioc::VdevAttach, "config", "SR"),
    (Ioc::VdevDetach, "config", "SR"),
    (Ioc::PoolGetHistory, "config", "S"),
    (Ioc::SendNew, "name:send|send:raw|send:encrypted if rawok", "S"),
    (Ioc::RecvNew, "name:receive|receive:append unless force name:mount name:create", "SR"),
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
    (Ioc::Create, "parent:create parent:mount", "SR"),
    (Ioc::Clone, "origin:clone parent:create parent:mount", "SR"),
    (Ioc::Destroy, "name:mount name:destroy", "SR"),
    (Ioc::Snapshot, "each:snapshot", "SR"),
    (Ioc::DestroySnaps, "each:mount each:destroy", "SR"),
    (Ioc::SpaceSnaps, "none", "S"),
    (Ioc::Bookmark, "each:bookmark", "SR"),
    (Ioc::DestroyBookmarks, "each:destroy", "SR"),
    (Ioc::Hold, "each:hold", "SR"),
    (Ioc::Release, "each:release", "SR"),
    (Ioc::Promote, "name:promote name:mount origin:promote", "SR"),
    (Ioc::Rename, "name:rename name:mount target:create target:mount", "SR"),
    (Ioc::Rollback, "name:rollback", "SR"),
    (Ioc::SetProp, "properties", "SR"),
    (Ioc::InheritProp, "properties", "SR"),
    (Ioc::LoadKey, "name:load-key", "S"),
    (Ioc::UnloadKey, "name:load-key", "S"),
    (Ioc::ChangeKey, "name:change-key", "SR"),
    (Ioc::WaitFs, "none", "SR"),
    (Ioc::PoolScrub, "config", "SR"),
    (Ioc::Wait, "none", "SR"),
    (Ioc::DdtPrune, "config", "SR"),
];

fn words(who: Who) -> String {
    let permission = |permission: &Permission| match permission {
        Permission::Named(name, on) => {
            let on = match on {
                On::Name => "name",
                On::Parent => "parent",
                On::TargetParent => "target",
                On::Origin => "origin",
                On::Each => "each",
            };
            format!("{on}:{name}")
        }
        Permission::OneOf { full, lesser, key, has } => {
            format!("name:{full}|{} {} {key}", lesser.join("|"), if *has { "if" } else { "unless" })
        }
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
