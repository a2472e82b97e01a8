//! Pools and datasets: the SPA and the DSL, read side.
//!
//! # What it is
//! [`Pool::open`] makes an open pool of the devices that `vdev::import` found. The pool's own objects (the MOS) describe a tree of
//! *directories*, each with a head *dataset*, whose *snapshots* are a chain behind it; a dataset leads to the object set of a file
//! system or volume. This crate finds datasets by name, number and kind, knows their properties and who uses how much
//! space, and verifies a whole pool.
//!
//! # The few ideas
//! * **A pool is opened twice**: through what labels say, then through what the MOS says (`open`).
//! * **A name is looked up, never searched.** From number back to name, a list is turned around once and remembered (`names`).
//! * **Properties are tables** ([`prop`]); what is stored, inherited (`stored`) and computed (`native`) are three separate steps.
//! * **Space is counted as OpenZFS counts it**, byte for byte, for users compare (`account`, `space_stats`).
//! * **Space between snapshots comes from deadlists**, whole lists at a time ([`Deadlist`]).
//!
//! # Invariants
//! Nothing is written. What the MOS says is not believed beyond what it can prove: parents, chains and lists are checked to lead
//! where they say, and to end. Locks (caches of names) are held for a look into a map, never over I/O, never two at once.
//!
//! Whole-pool verification stands above, in `zuse::verify`: it needs the intent log and the names of files.
//!
//! # Callers
//! `zpl`, `zil`, `stream`, the command line. OpenZFS: `spa.c`, `dsl_*.c`, `zfs_prop.c`, `zpool_prop.c`, `zfeature.c`.
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
