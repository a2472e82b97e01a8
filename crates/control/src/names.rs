//! The names that requests are about, by their kind (OpenZFS: `zfs_ioc_namecheck_t`).
//!
//! Every door checks the name first, and in this one place: a request about a pool that is given the name of a dataset in it, as of a snapshot that somebody
//! meant to destroy, is refused, and not done to the pool.

use pool::{check_entity_name, check_pool_name};

use crate::{Error, Ioc};

/// The kind of name that a request has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameKind {
    /// None: it is about all pools, or about one that another argument tells. Whatever is given is passed over.
    None,
    /// A pool.
    Pool,
    /// A file system, volume or snapshot.
    Dataset,
    /// Any of these, or a bookmark.
    Entity,
}

impl Ioc {
    /// The kind of name that it takes.
    #[must_use]
    pub const fn name_kind(self) -> NameKind {
        match self {
            Ioc::PoolConfigs | Ioc::PoolTryImport | Ioc::EventsNext | Ioc::EventsClear | Ioc::EventsSeek => {
                NameKind::None
            }
            // OpenZFS takes the pool of the caller's last request for `LogHistory`
            Ioc::LogHistory
            | Ioc::PoolSync
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
            | Ioc::PoolCondense
            | Ioc::VdevSetProps
            | Ioc::PoolCreate
            | Ioc::VdevAdd
            | Ioc::VdevRemove
            | Ioc::VdevAttach
            | Ioc::VdevDetach
            | Ioc::PoolGetHistory
            | Ioc::PoolImport
            | Ioc::PoolStats
            | Ioc::ErrorLog
            | Ioc::DsobjToDsname
            | Ioc::PoolGetProps
            | Ioc::VdevGetProps
            | Ioc::PoolPrefetch
            | Ioc::Snapshot
            | Ioc::DestroySnaps
            | Ioc::Bookmark
            | Ioc::DestroyBookmarks
            | Ioc::Hold
            | Ioc::Release
            | Ioc::PoolScrub
            | Ioc::Wait
            | Ioc::DdtPrune
            | Ioc::PoolInitialize
            | Ioc::PoolTrim => NameKind::Pool,
            Ioc::SendNew
            | Ioc::RecvNew
            | Ioc::ObjToPath
            | Ioc::NextObj
            | Ioc::ObjToStats
            | Ioc::Diff
            | Ioc::ObjsetStats
            | Ioc::DatasetListNext
            | Ioc::SnapshotListNext
            | Ioc::GetHolds
            | Ioc::GetBookmarks
            | Ioc::SendSpace
            | Ioc::UserspaceMany
            | Ioc::Create
            | Ioc::Clone
            | Ioc::Destroy
            | Ioc::SpaceSnaps
            | Ioc::Promote
            | Ioc::Rename
            | Ioc::Rollback
            | Ioc::SetProp
            | Ioc::InheritProp
            | Ioc::LoadKey
            | Ioc::UnloadKey
            | Ioc::ChangeKey
            | Ioc::WaitFs => NameKind::Dataset,
            Ioc::GetBookmarkProps => NameKind::Entity,
        }
    }

    /// Returns the pool that a request with this name is about; empty if it is about none.
    ///
    /// # Errors
    /// When the name is not of the kind that the request takes (EINVAL).
    pub fn pool_of(self, name: &str) -> Result<&str, Error> {
        let invalid = |why| Err(pool::Error::InvalidName { name: name.to_owned(), why });
        match self.name_kind() {
            NameKind::None => return Ok(""),
            NameKind::Pool => check_pool_name(name).or_else(|bad| invalid(bad.why()))?,
            NameKind::Dataset if name.contains('#') => invalid("it is the name of a bookmark")?,
            NameKind::Dataset | NameKind::Entity => check_entity_name(name)?,
        }
        Ok(pool_part(name))
    }

    /// Checks the name of a request that was made to `pool`. What that pool is called itself is right, whatever other pools can be called.
    ///
    /// # Errors
    /// As [`Ioc::pool_of`]; when the name is of another pool (EXDEV).
    pub fn check_name(self, name: &str, pool: &str) -> Result<(), Error> {
        let is_none = self.name_kind() == NameKind::None;
        if is_none || name == pool || self.pool_of(name)? == pool {
            return Ok(());
        }
        Err(Error::OtherPool(name.to_owned()))
    }
}

/// Checks that a name within a request is in `pool`.
pub(crate) fn check_inside(name: &str, pool: &str) -> Result<(), Error> {
    if pool_part(name) == pool { Ok(()) } else { Err(Error::OtherPool(name.to_owned())) }
}

/// The pool in the name of a dataset, snapshot or bookmark.
pub(crate) fn pool_part(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or("")
}
