//! The dataset and snapshot layer: creating, cloning, promoting, renaming and rolling back datasets; their properties and keys.
//!
//! # What it is
//! Each operation is a method of [`Spa`](crate::Spa) and one [sync task](crate::Spa::sync_task): it looks names up in the MOS as it is in the txg
//! that is being synced, checks everything, and only then changes anything. An error means that nothing changed. When a call returns,
//! the change is on disk, and [`Spa::view`](crate::Spa::view) shows it.
//!
//! # On disk
//! * A *directory* (`DslDirPhys`) is a name with its space: what is used by its head, its snapshots, its children and its reservations,
//!   its quota, and ZAPs of its children, its properties, and the heads that were cloned from its snapshots.
//! * A *dataset* (`DslDatasetPhys`) is a head or a snapshot. Snapshots form a chain from the head back in time; the chain of a clone continues in
//!   that of its origin. Each dataset has a *deadlist*: the blocks that its predecessor refers to and it no longer does.
//! * Space of a directory: `used = head + snap + child + child_rsrv + refrsrv`. The `used` of a child counts in the parent's `child`, the part of
//!   its reservation beyond that in `child_rsrv`. A change of one of these figures is propagated to all directories above.
//!
//! # In memory
//! A `DslPool` hangs on each [`Spa`](crate::Spa). It lists the heads that are open for writing, with their intent logs. A long-running reader takes a [`LongHold`], which keeps its dataset from
//! being destroyed. An operation that replaces the blocks of a head (rollback, swap, destroy) evicts the head first; a caller that still has its
//! object set finds it stale. A change of its properties gives the head a new [`WritePolicy`](dmu::WritePolicy).
//!
//! # A crash
//! All changes of a task are in its txg, or none is.
//!
//! OpenZFS: `dsl_dataset.c`, `dsl_dir.c`, `dsl_prop.c`, `dsl_crypt.c`.

mod bookmark;
mod clone;
mod create;
mod crypt;
mod dataset;
mod dataset_stats;
mod deadlist;
mod destroy;
mod dir;
mod hold;
mod intent_log;
mod list;
mod long_hold;
mod lookup;
mod names;
mod open_datasets;
mod policy;
mod pool;
mod promote;
mod props;
mod recv;
mod rename;
mod rollback;
mod snapshot;
mod space;
mod swap;
#[cfg(test)]
mod tests;
mod turns;
mod userspace;
mod volume;

use crate::refusal::{Refusal, refused};
pub use bookmark::{Bookmark, MaybeBookmark, RedactionList};
pub use create::{Init, NewDataset};
pub use crypt::errata::Erratum;
pub use crypt::write::{ChangeKey, NewKey, WithoutKey};
pub use crypt::{KeyFormat, KeyInfo, KeyStatus};
pub use dataset::{Dataset, Hold, Kind};
pub use dataset_stats::DatasetStats;
pub use deadlist::Deadlist;
pub use dir::Dir;
pub use list::{Entry, ListOptions};
use long_hold::LongHolds;
pub use long_hold::{LongHold, SnapshotId};
pub use lookup::check_entity_name;
pub(crate) use names::Names;
pub(crate) use pool::DslPool;
pub use props::StoredProp;
pub use props::write::PropSource;
use recv::ResumeSlots;
pub use recv::end::Receiving;
pub use recv::{RecvBegin, ResumePoint};
use space::quota::{DEPTH_MAX, Pending, Quota};
pub use turns::OpenTurn;
pub use userspace::{SpaceKind, UserId, ZplProps};
