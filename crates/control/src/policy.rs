//! Who may ask for what, and in which state the pool must be for it: the columns of OpenZFS's table of ioctls (`zfs_ioctl_init`: `zfs_secpolicy_*`,
//! `POOL_CHECK_*`).
//!
//! The caller is checked by the door that takes requests of other processes, before anything is looked up: who may not ask is told nothing. A [`Control`](crate::Control)
//! that a program makes for itself does what it is asked; there the system decides, which lets it open the devices or not. The state of the pool is checked by
//! every door, before the request looks at the pool.
//!
//! [`Who::Allowed`] has the permissions that a user must have been given with `zfs allow`, and [`Ioc::needs`] those of one request. Nothing can be given yet, so nobody has them.

use std::sync::Arc;

use base::tasks;
use nvlist::NvList;
use pool::{Pool, Spa};

use crate::read_only::unreadable_props;
use crate::{Caller, Error, Failed, Ioc, stats};

/// The user that administers every machine.
const ROOT: u32 = 0;

/// The users that may make a request. The owner of the pools and root may make all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// Everybody (OpenZFS: `zfs_secpolicy_none`, `zfs_secpolicy_read`).
    Everybody,
    /// The owner and root alone (OpenZFS: `zfs_secpolicy_config`, `zfs_secpolicy_inject`).
    Owner,
    /// Users that have all of these permissions.
    Allowed(&'static [Permission]),
}

/// A permission of `zfs allow` that a kind of request needs (OpenZFS: `zfs_deleg_perm_tab_t`); [`Ioc::needs`] has those of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permission {
    /// The one of this name, on these datasets.
    Named(&'static str, On),
    /// The one of this name, if the list has the key, and there is something in it.
    If(&'static str, &'static str, On),
    /// `send`; for a stream as it is on disk also `send:raw`, and of an encrypted dataset `send:encrypted`.
    Send,
    /// `receive`, for which `receive:append` is enough if nothing is rolled back; `mount` and `create`. All of them if the list has the key, and always if there is none.
    Receive(Option<&'static str>),
    /// For each property that is set or inherited the one of its name: `userprop` for a property of users, and for a quota of a user what is before its `@`.
    OfProperties,
    /// The one that has the name of what is counted, as `userused`.
    OfAccounting,
}

/// The datasets on which a permission is needed; for snapshots and bookmarks those that they are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum On {
    /// The one that the call is about.
    Name,
    /// The one above it.
    Parent,
    /// The one above its new name.
    TargetParent,
    /// Its origin, which is in the list for a new clone.
    Origin,
    /// Each that the list names.
    Each,
}

use On::{Each, Name, Origin, Parent, TargetParent};
use Permission::{If, Named, OfAccounting, OfProperties, Receive, Send};
use Who::{Allowed, Everybody, Owner};

/// The state of a pool in which a request is refused (OpenZFS: `zfs_ioc_poolcheck_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolCheck {
    /// It is not made to a pool that waits for its devices (EAGAIN).
    pub suspended: bool,
    /// It is not made to a pool that was imported to be read (EROFS).
    pub readonly: bool,
}

impl PoolCheck {
    const NONE: PoolCheck = PoolCheck { suspended: false, readonly: false };
    const SUSPENDED: PoolCheck = PoolCheck { suspended: true, readonly: false };
    const READONLY: PoolCheck = PoolCheck { suspended: false, readonly: true };
    const BOTH: PoolCheck = PoolCheck { suspended: true, readonly: true };
}

/// Returns the view of an open pool that is shown. Where too few devices are there to read the pool this does not wait for them, as [`Ioc::looking`].
///
/// # Errors
/// When it cannot be read.
pub fn view(spa: &Spa) -> Result<Arc<Pool>, pool::Error> {
    if spa.is_readable() { spa.view() } else { tasks::never_waiting(|| spa.view()) }
}

impl Ioc {
    /// The users that may make it.
    #[must_use]
    pub const fn who(self) -> Who {
        match self {
            Ioc::PoolConfigs
            | Ioc::PoolStats
            | Ioc::PoolGetProps
            | Ioc::VdevGetProps
            | Ioc::ObjsetStats
            | Ioc::DatasetListNext
            | Ioc::SnapshotListNext
            | Ioc::NextObj
            | Ioc::GetHolds
            | Ioc::GetBookmarks
            | Ioc::GetBookmarkProps
            | Ioc::SendSpace
            | Ioc::SpaceSnaps
            | Ioc::PoolSync
            | Ioc::PoolCondense
            | Ioc::Wait
            | Ioc::WaitFs => Everybody,
            // OpenZFS lets those write into the history who have changed something just before, whoever they are
            Ioc::LogHistory
            | Ioc::PoolCheckpoint
            | Ioc::PoolDiscardCheckpoint
            | Ioc::PoolSetProps
            | Ioc::PoolUpgrade
            | Ioc::Clear
            | Ioc::PoolReopen
            | Ioc::VdevSetState
            | Ioc::PoolExport
            | Ioc::PoolDestroy
            | Ioc::PoolReguid
            | Ioc::VdevSetProps
            | Ioc::PoolCreate
            | Ioc::VdevAdd
            | Ioc::VdevRemove
            | Ioc::VdevAttach
            | Ioc::VdevDetach
            | Ioc::PoolGetHistory
            | Ioc::EventsNext
            | Ioc::EventsClear
            | Ioc::EventsSeek
            | Ioc::PoolTryImport
            | Ioc::PoolImport
            | Ioc::ErrorLog
            | Ioc::PoolPrefetch
            | Ioc::PoolScrub
            | Ioc::DdtPrune
            | Ioc::PoolInitialize
            | Ioc::PoolTrim => Owner,
            Ioc::DsobjToDsname | Ioc::ObjToPath | Ioc::ObjToStats | Ioc::Diff => Allowed(&[Named("diff", Name)]),
            Ioc::Create => Allowed(&[Named("create", Parent), Named("mount", Parent), OfProperties]),
            Ioc::Clone => {
                Allowed(&[Named("clone", Origin), Named("create", Parent), Named("mount", Parent), OfProperties])
            }
            Ioc::Destroy => Allowed(&[Named("mount", Name), Named("destroy", Name)]),
            Ioc::DestroySnaps => Allowed(&[Named("mount", Each), Named("destroy", Each)]),
            Ioc::Snapshot => Allowed(&[Named("snapshot", Each), If("props", "userprop", Each)]),
            Ioc::Bookmark => Allowed(&[Named("bookmark", Each)]),
            Ioc::DestroyBookmarks => Allowed(&[Named("destroy", Each)]),
            Ioc::Hold => Allowed(&[Named("hold", Each)]),
            Ioc::Release => Allowed(&[Named("release", Each)]),
            Ioc::Promote => Allowed(&[Named("promote", Name), Named("mount", Name), Named("promote", Origin)]),
            Ioc::Rename => Allowed(&[
                Named("rename", Name),
                Named("mount", Name),
                Named("create", TargetParent),
                Named("mount", TargetParent),
            ]),
            Ioc::Rollback => Allowed(&[Named("rollback", Name)]),
            Ioc::SendNew => Allowed(&[Send]),
            Ioc::RecvNew => Allowed(&[Receive(None)]),
            Ioc::SetProp => Allowed(&[Receive(Some("received")), OfProperties]),
            Ioc::InheritProp => Allowed(&[OfProperties]),
            Ioc::UserspaceMany => Allowed(&[OfAccounting]),
            Ioc::LoadKey | Ioc::UnloadKey => Allowed(&[Named("load-key", Name)]),
            Ioc::ChangeKey => Allowed(&[Named("change-key", Name)]),
        }
    }

    /// Checks that a caller may make it, before anything else is looked at; `owner` is the user that the pools belong to.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] (EPERM).
    pub fn check_caller(self, caller: &Caller, owner: u32) -> Result<(), Error> {
        match self.who() {
            Everybody => Ok(()),
            _ if [ROOT, owner].contains(&caller.uid) => Ok(()),
            Owner | Allowed(_) => Err(Error::NotPermitted(self.name())),
        }
    }

    /// Carries out the work of a request that changes nothing. Where it is made to suspended pools as well it does not wait for devices, and gets an error for what it cannot read.
    pub fn looking<R>(self, work: impl FnOnce() -> R) -> R {
        if self.pool_check().suspended { work() } else { tasks::never_waiting(work) }
    }

    /// Makes a request to an open pool that changes nothing ([`Ioc::looking`]). Where too few devices are there to read the pool, its configuration and properties are what is known
    /// without them.
    ///
    /// # Errors
    /// [`Error::Suspended`]; as `work`.
    pub fn look_at(self, spa: &Spa, work: impl FnOnce() -> Result<NvList, Failed>) -> Result<NvList, Failed> {
        self.check_state(spa)?;
        match self.looking(work) {
            Err(failed) if !spa.is_readable() => match self {
                Ioc::PoolGetProps => Ok(unreadable_props(spa)),
                Ioc::PoolStats => Ok(stats::unreadable(spa)),
                _ => Err(failed),
            },
            done => done,
        }
    }

    /// Checks that a pool that is open for a change is in a state in which it takes the request.
    pub(crate) fn check_state(self, spa: &Spa) -> Result<(), Error> {
        match spa.suspended() {
            Some(cause) if self.pool_check().suspended => Err(Error::Suspended(cause)),
            _ => Ok(()),
        }
    }

    /// The states of a pool in which it is refused.
    #[must_use]
    pub const fn pool_check(self) -> PoolCheck {
        match self {
            // these have no pool, or not yet
            Ioc::PoolConfigs
            | Ioc::PoolTryImport
            | Ioc::PoolImport
            | Ioc::PoolCreate
            | Ioc::EventsNext
            | Ioc::EventsClear
            | Ioc::EventsSeek => PoolCheck::NONE,
            // what is shown of a pool tells why it is suspended
            Ioc::PoolStats | Ioc::PoolGetProps | Ioc::VdevGetProps => PoolCheck::NONE,
            // this lets it go on
            Ioc::Clear => PoolCheck::READONLY,
            Ioc::SpaceSnaps
            | Ioc::SendNew
            | Ioc::SendSpace
            | Ioc::GetHolds
            | Ioc::GetBookmarks
            | Ioc::GetBookmarkProps
            | Ioc::LoadKey
            | Ioc::UnloadKey
            | Ioc::PoolReopen
            | Ioc::PoolPrefetch
            | Ioc::PoolExport
            | Ioc::PoolDestroy
            | Ioc::ErrorLog
            | Ioc::DsobjToDsname
            | Ioc::PoolGetHistory
            | Ioc::NextObj
            | Ioc::ObjsetStats
            | Ioc::DatasetListNext
            | Ioc::SnapshotListNext
            | Ioc::Diff
            | Ioc::ObjToStats
            | Ioc::ObjToPath
            | Ioc::UserspaceMany => PoolCheck::SUSPENDED,
            Ioc::LogHistory
            | Ioc::PoolSync
            | Ioc::PoolCheckpoint
            | Ioc::PoolDiscardCheckpoint
            | Ioc::PoolSetProps
            | Ioc::PoolUpgrade
            | Ioc::PoolReguid
            | Ioc::VdevSetState
            | Ioc::PoolCondense
            | Ioc::VdevSetProps
            | Ioc::VdevAdd
            | Ioc::VdevRemove
            | Ioc::VdevAttach
            | Ioc::VdevDetach
            | Ioc::RecvNew
            | Ioc::Create
            | Ioc::Clone
            | Ioc::Destroy
            | Ioc::Snapshot
            | Ioc::DestroySnaps
            | Ioc::Bookmark
            | Ioc::DestroyBookmarks
            | Ioc::Hold
            | Ioc::Release
            | Ioc::Promote
            | Ioc::Rename
            | Ioc::Rollback
            | Ioc::SetProp
            | Ioc::InheritProp
            | Ioc::ChangeKey
            | Ioc::WaitFs
            | Ioc::PoolScrub
            | Ioc::Wait
            | Ioc::DdtPrune
            | Ioc::PoolInitialize
            | Ioc::PoolTrim => PoolCheck::BOTH,
        }
    }
}
