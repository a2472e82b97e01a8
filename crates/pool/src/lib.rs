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
//! A concept has one file or folder, with its reading half first (`mod`) and its writing half beside it (`write`).
//! * `spa`: the pool. `open` leads from the labels to a [`Pool`]; a [`Spa`] has its txgs, sync passes, sync tasks, configuration, vdevs and
//!   scans. `mos`: access to the meta object set, `bpobj`: lists of block pointers in it, `feature`, `history`, `errlog`, `props` (of the pool).
//!   `metaslab`: space maps, their logs and the allocation of space. [`ddt`] and [`brt`]: the dedup table and the block reference table.
//!   [`prop`]: the tables of all native properties.
//! * `dsl`: the datasets. `dir`, `dataset`, `bookmark`, `deadlist`, `crypt`, `props`, `space`, `userspace`: what they are and how they change.
//!   `create`, `snapshot`, `clone`, `promote`, `rename`, `rollback`, `swap`, `destroy`, `recv`, `hold`: the operations. `open_datasets`: the live
//!   object sets and their part of a sync; `intent_log`: their logs.
//!
//! `dsl` stands above `spa`. The engine calls up through one trait (`spa::datasets::Datasets`), and holds two values of the layer above without
//! looking into them: the state of a pool's datasets in a [`Spa`], the cache of names in a [`Pool`]. The compiler checks it: what is not public
//! in `dsl` is visible in `dsl` alone. `Error` and [`Refusal`] belong to both.
//!
//! # The few ideas
//! * **A pool is opened twice**: through the configuration in the labels, then through the one in the MOS (`spa::open`).
//! * **Changes of the MOS are sync tasks.** Each `dsl` operation is one [sync task](Spa::sync_task): it checks everything first, and all of
//!   it is in its txg or none of it. Data is dirtied by transactions ([`Spa::tx`]) and written by the sync of their txg.
//! * **Names are looked up, never searched for.** For the way from an object number back to its name, the list of children or snapshots is
//!   inverted once and cached (`dsl::names`). What views decode of the MOS outlives them until its object changes (`spa::mos::known`).
//! * **Properties are tables** ([`prop`]); stored and inherited values (`dsl::props::stored`) and computed ones (`dsl::props`) are separate steps.
//! * **Space is counted as OpenZFS counts it**, byte for byte, because users compare the figures (`dsl::space`, `spa::metaslab`).
//! * **Space between snapshots comes from deadlists**, whole lists at a time ([`Deadlist`]).
//!
//! # Invariants
//! * A [`Pool`] writes nothing. Only a [`Spa`] does: metadata and data go out with the sync thread's txgs, intent log blocks at commit.
//! * The MOS is not trusted: parents, chains and lists are checked to lead where they claim to lead, and to end.
//! * The locks of a [`Pool`]'s caches are held for a map lookup, never over I/O and never two at once. The lock order of a [`Spa`] is
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

mod dsl;
mod error;
mod refusal;
mod spa;
pub mod testing;

pub use dsl::{
    Bookmark, ChangeKey, Dataset, DatasetStats, Deadlist, Dir, Entry, Erratum, Hold, Init, KeyFormat, KeyInfo,
    KeyStatus, Kind, ListOptions, LongHold, MaybeBookmark, NewDataset, NewKey, OpenTurn, PropSource, Receiving,
    RecvBegin, RedactionList, ResumePoint, SnapshotId, SpaceKind, StoredProp, UserId, WithoutKey, ZplProps,
    check_entity_name,
};
pub use error::Error;
pub use refusal::Refusal;
pub use spa::{
    Activity, AllocBias, AllocClass, BadPoolName, Bpobj, ClassSpace, CreateOptions, DmuTxStats, ErrorEntry, FailMode,
    FeatureState, HeldElsewhere, HistoryRecord, Hooks, ImportOptions, KeptObject, Kstat, KstatData, LeafCommand,
    LeafOptions, LeafProgress, LeafWork, LeafWorkState, LoadErrors, LoadInfo, LoadPolicy, MetaslabInfo, Nearest,
    OpenDevice, OpenOptions, Pool, PoolSpace, Populate, PropValue, PropsWatch, Readers, ScanEnd, ScanFigures,
    ScrubCursor, ScrubRange, ScrubRefusal, ScrubResult, Source, Spa, Space, SpaceStats, Starts, StoredWork, Suspend,
    SuspendWatch, SuspendedPool, SuspendedVdev, Target, TaskCx, TxgRecord, TxgState, Txgs, Value, VdevProps,
    VdevRefusal, VdevSpace, check_new_pool_name, check_pool_name,
};
pub use spa::{brt, check, dbgmsg, ddt, events, feature, prop};
