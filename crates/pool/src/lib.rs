//! Pools and datasets: the SPA and the DSL.
//!
//! # What it is
//! A pool is opened in one of two ways. [`Pool::open`] opens it read-only, from the devices that `vdev::import` found. [`Spa::import`] and
//! [`Spa::create`] open it for writing: a [`Spa`] syncs its txgs, allocates and frees its blocks, and changes its datasets, properties and
//! devices. Every query is answered by a [`Pool`]; a [`Spa`] hands out one as its [view](Spa::view), the state of the last synced txg.
//!
//! The pool's own objects (the MOS) describe a tree of *directories*, each with a head *dataset* whose *snapshots* form a chain behind it.
//! A dataset leads to the object set of a file system or volume.
//!
//! # Layout
//! * `open`: from the labels to a [`Pool`]. `spa`: the pool open for writing, its txgs, sync passes, sync tasks, configuration and scans.
//! * `dsl`: datasets created, snapshotted, cloned, promoted, renamed, rolled back, destroyed and received into; their keys and quotas.
//! * `alloc`: space maps, their logs and metaslabs, on disk. [`ddt`] and [`brt`]: the dedup table and the block reference table.
//! * The files at the root: queries of a [`Pool`], and the MOS structures that both sides share (bpobjs, deadlists, the error log,
//!   history).
//!
//! # The few ideas
//! * **A pool is opened twice**: through the configuration in the labels, then through the one in the MOS (`open`).
//! * **Changes of the MOS are sync tasks.** Each `dsl` operation is one [sync task](Spa::sync_task): it checks everything first, and all of
//!   it is in its txg or none of it. Data is dirtied by transactions ([`Spa::tx`]) and written by the sync of their txg.
//! * **Names are looked up, never searched for.** For the way from an object number back to its name, the list of children or snapshots is
//!   inverted once and cached (`names`).
//! * **Properties are tables** ([`prop`]); stored and inherited values (`stored`) and computed ones (`native`) are separate steps.
//! * **Space is counted as OpenZFS counts it**, byte for byte, because users compare the figures (`account`, `space_stats`).
//! * **Space between snapshots comes from deadlists**, whole lists at a time ([`Deadlist`]).
//!
//! # Invariants
//! * A [`Pool`] writes nothing. Only a [`Spa`] does: metadata and data go out with the sync thread's txgs, intent log blocks at commit.
//! * The MOS is not trusted: parents, chains and lists are checked to lead where they claim to lead, and to end.
//! * The locks of a [`Pool`]'s name caches are held for a map lookup, never over I/O and never two at once. The lock order of a [`Spa`] is
//!   in `spa`.
//!
//! # A crash
//! The uberblock of a txg is written last, behind a flush of everything that it leads to. Until it is on disk the pool is that of the txg
//! before; a synced txg is there as a whole.
//!
//! Verification of a whole pool is in `zuse::verify`: it needs the intent log and the names of files.
//!
//! # Callers
//! `zpl`, `stream`, `control`, `zuse`, the command line. OpenZFS: `spa.c`, `txg.c`, `dsl_*.c`, `ddt*.c`, `brt.c`, `zfs_prop.c`,
//! `zpool_prop.c`, `zfeature.c`.
#![forbid(unsafe_code)]

mod account;
mod alloc;
mod bookmark;
mod bpobj;
mod bpobj_write;
pub mod brt;
mod crypt;
mod dataset;
pub mod ddt;
mod deadlist;
mod deadlist_write;
mod dir;
mod dsl;
mod errata;
mod errlog;
mod error;
pub mod feature;
mod freed;
mod history;
mod kstat;
mod list;
mod logs;
mod metaslab;
mod mos;
mod names;
mod native;
mod open;
mod pool;
mod pool_name;
mod pool_prop;
pub mod prop;
mod resume;
mod scan;
mod spa;
mod space_stats;
mod spacemap;
mod stored;
mod userspace;
mod vdev_prop;
mod vdev_stats;

pub use alloc::PoolSpace;
pub use bookmark::{Bookmark, RedactionList};
pub use bpobj::{Bpobj, Space};
pub use crypt::{KeyFormat, KeyInfo, KeyStatus};
pub use dataset::{Dataset, Hold, Kind};
pub use deadlist::Deadlist;
pub use dir::Dir;
pub use dsl::{
    ChangeKey, HeldElsewhere, Init, LongHold, NewDataset, NewKey, PropSource, Receiving, RecvBegin, Refusal,
    ResumePoint, WithoutKey,
};
pub use errata::Erratum;
pub use errlog::ErrorEntry;
pub use error::Error;
pub use feature::FeatureState;
pub use history::HistoryRecord;
pub use kstat::{Kstat, KstatData};
pub use list::{Entry, ListOptions};
pub use metaslab::{AllocClass, MetaslabInfo};
pub use open::{AllocBias, LoadErrors, LoadPolicy, OpenOptions};
pub use pool::{LoadInfo, Pool};
pub use pool_name::{BadPoolName, check_new_pool_name, check_pool_name};
pub use prop::{PropValue, Source, Value};
pub use spa::{
    CreateOptions, DmuTxStats, Hooks, ImportOptions, Nearest, Place, Populate, PropsWatch, Readers, ScrubRange,
    ScrubRefusal, ScrubResult, Spa, Target, TaskCx, TxgRecord, Txgs, VdevRefusal,
};
pub use space_stats::{ClassSpace, SpaceStats};
pub use userspace::{SpaceKind, UserId, ZplProps};
pub use vdev_prop::VdevProps;
pub use vdev_stats::VdevSpace;
