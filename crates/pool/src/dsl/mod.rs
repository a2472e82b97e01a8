//! Datasets that change: made, cloned, promoted, renamed, rolled back; their properties and keys.
//!
//! # What it is
//! Each operation is a method of [`Spa`](crate::Spa) and one [sync task](crate::Spa::sync_task): it looks names up in the MOS as it is in the txg
//! that is being synced, checks everything, and only then changes anything. An error means that nothing changed. When a call returns,
//! the change is on disk, and [`Spa::view`](crate::Spa::view) shows it.
//!
//! # On disk
//! * A *directory* (`DslDirPhys`) is a name with its space: what is used by its head, its snapshots, its children and its reservations,
//!   its quota, and ZAPs of its children, its properties, and the heads that were cloned from its snapshots.
//! * A *dataset* (`DslDatasetPhys`) is a head or a snapshot. Snapshots are a chain from the head back, which goes on, for a clone, in the
//!   chain of its origin. Each has a *deadlist*: what the one before has and it has no more.
//! * Space of a directory: `used = head + snap + child + child_rsrv + refrsrv`; what a child uses counts in the parent with `child`, what it has
//!   reserved beyond that with `child_rsrv`. Whatever changes one of them changes all directories above.
//!
//! # In memory
//! Heads that are open for writing stand in [`Heads`](crate::spa); what somebody reads for long has [`LongHold`]s, and is not destroyed meanwhile.
//! What changes a head's blocks behind its back (rollback, swap, destroy) evicts it
//! first; whoever still has its object set finds it stale. What changes its properties gives it a new [`WritePolicy`](dmu::WritePolicy).
//!
//! # A crash
//! A task is in its txg as a whole, or not at all.
//!
//! OpenZFS: `dsl_dataset.c`, `dsl_dir.c`, `dsl_prop.c`, `dsl_crypt.c`.

mod async_destroy;
mod bookmark;
mod clone;
mod counts;
mod create;
mod crypt;
mod destroy;
mod destroy_old;
mod destroy_snapshot;
mod estimate;
mod hold;
mod livelist;
mod long_hold;
mod lookup;
mod promote;
mod props;
mod quota;
mod reaccount;
mod recv;
mod recv_end;
mod recv_raw;
mod refusal;
mod remap;
mod rename;
mod rollback;
mod snapshot;
mod swap;
#[cfg(test)]
mod tests;
mod volume;

pub use create::{Init, NewDataset};
pub use crypt::{ChangeKey, NewKey, WithoutKey};
pub(crate) use long_hold::LongHolds;
pub use long_hold::{HeldElsewhere, LongHold};
pub(crate) use lookup::refused;
pub use props::PropSource;
pub(crate) use props::check_root_props;
pub(crate) use quota::{DEPTH_MAX, Pending, Room};
pub(crate) use recv::ResumeSlots;
pub use recv::{RecvBegin, ResumePoint};
pub use recv_end::Receiving;
pub use refusal::Refusal;
