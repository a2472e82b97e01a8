//! The requests that there are, and which keys each takes (OpenZFS: `zfs_ioc_t`, `zfs_ioc_key_t`, `zfs_check_input_nvpairs`).

use nvlist::{DataType, NvList};

use crate::Error;

/// A request (OpenZFS: `ZFS_IOC_*`). `name` is what the call is about: a dataset, or a pool where the list names datasets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Ioc {
    /// Writes `message` into its history.
    LogHistory,
    /// Waits until all that was changed is on disk; `force` changes nothing, as all that waits goes to disk at once.
    PoolSync,
    /// Takes a checkpoint of the pool.
    PoolCheckpoint,
    /// Gives up the pool's checkpoint.
    PoolDiscardCheckpoint,
    /// Sets `props` of the pool, all of them or none. Features are `feature@NAME`, whatever the value; `bootfs` is the name of a file system.
    PoolSetProps,
    /// Brings the pool to `version`, and enables what `props` names: features, in the same txg.
    PoolUpgrade,
    /// Forgets that the device `guid`, or any, was given up.
    Clear,
    /// Looks for devices of the pool that have gone, and for those that are back, which are then resilvered; unless `scrub_restart` is false and a scrub is
    /// under way, whose place that would take.
    PoolReopen,
    /// Of a pool: brings the device `guid` into `state`: 2 is offline (until the pool is opened anew, with 1 in `flags`), 5 faulted (for good, with 17
    /// in `flags`), 7 online. Answers with the `state` that it is in then.
    VdevSetState,
    /// Of a pool: after `message` is in its history, marks it as one that any machine may import, and closes it.
    PoolExport,
    /// Marks the pool, after `message` is in its history, as destroyed, and closes it.
    PoolDestroy,
    /// Gives the pool the identity `guid`, or a new one, with `message` in its history; answers with the `guid` that it has then. It has to be closed after that. OpenZFS's
    /// request names it `zc_guid`.
    PoolReguid,
    /// Of a pool: `condense_command` `start` begins to flush all that is in the `condense_type` `log_spacemap`, in the background; `cancel`
    /// ends that.
    PoolCondense,
    /// Sets `vdevprops_set_props` of the vdev whose guid is `vdevprops_set_vdev`, all or none.
    VdevSetProps,
    /// Makes a pool of the vdevs in the tree `config` ([`NewVdevs`](crate::NewVdevs)), with `props`, among them `feature@NAME`, those of its root file
    /// system in `root-props-nvl`, and `hidden_args` with its key. [`Control::create_pool`](crate::Control::create_pool) answers it.
    PoolCreate,
    /// Adds the vdevs in the tree `config`; `check_ashift` false takes sectors of another size than the pool's.
    VdevAdd,
    /// Removes the log, spare or cache `guid`.
    VdevRemove,
    /// Adds the device in `config` to the mirror or device `guid`, or replaces that. Not supported yet (ENOTSUP).
    VdevAttach,
    /// Takes the device `guid` out of its mirror. Not supported yet (ENOTSUP).
    VdevDetach,
    /// Returns the pool's history, `history record` oldest first.
    PoolGetHistory,
    /// Sends a snapshot or head to the file `fd` of the caller: all of it, or what is newer than `fromsnap`, a snapshot or bookmark; as
    /// `largeblockok`, `embedok`, `compressok` and `rawok` allow, from `resume_object` and `resume_offset` on.
    SendNew,
    /// Receives a stream into the snapshot `snapname`: `begin_record` is its first record, and the rest is read from the file `input_fd` of the
    /// caller. `props` came with it, `localprops` are said by the user; one without a value is inherited.
    RecvNew,
    /// Returns the next event of this process's pools: `event`, and in `dropped` how many were lost before it. Waits `wait_ms` for one, and at most a minute.
    EventsNext,
    /// Forgets all events, and answers how many were `cleared`.
    EventsClear,
    /// Goes to the event `eid`; 0 is the oldest, and the largest number the end.
    EventsSeek,
    /// Returns the configuration of each imported pool, by its name, as it was when it was last written. The room `site` answers it, which knows them.
    PoolConfigs,
    /// Returns the configuration, with the figures of [`Ioc::PoolStats`], that the pool with the labels' configuration `config` would have if it was imported; what
    /// keeps it from that is in `load_info`. It is looked for as by [`Ioc::PoolImport`], whose `flags` say how it would be imported. As [`Ioc::PoolConfigs`].
    PoolTryImport,
    /// Imports the pool whose `guid` and labels' configuration `config` are given, under the name of the call, and sets `props`; if one cannot be set, it is not imported. It is looked
    /// for on `devices`, if they are named, else where the configuration says. The answer, and that of a failure, is the configuration with `load_info`. As
    /// [`Ioc::PoolConfigs`].
    PoolImport,
    /// Returns the pool's configuration with the figures of all vdevs ([`stats`](crate::stats)), with `errata` and the number of known errors; `brief`
    /// without these, for which the pool is looked through, and with `errata` nevertheless if that key is there. With `dedup` it has the figures of the dedup tables,
    /// whose logs are read for that.
    PoolStats,
    /// Returns the blocks that are known to be damaged: in `errors` four words of each, object set, object, level and block.
    ErrorLog,
    /// Returns the `name` of the dataset of a pool with object `obj`.
    DsobjToDsname,
    /// Returns the `path` of object `obj` of a file system.
    ObjToPath,
    /// Returns the number `obj` of the object that comes next after `obj` in a file system or volume (ESRCH if there is none); with `last` in `objs` those up
    /// to it, of many the first, none if there are none.
    NextObj,
    /// Returns what object `obj` of a file system is: `zs_gen`, `zs_mode`, `zs_links`, `zs_ctime`, and the `path` that leads to it. Fails with ENOTSUP if it is no
    /// file, with ENOENT if there is none or it has no name, with EINVAL if there can be none, and with ESTALE if it waits to be deleted. With `objs` the answer has such a list for each of them in `objects`, those that
    /// failed with `errno`, and in `shares` the folder of shares, if there is one, which is no file.
    ObjToStats,
    /// Writes the objects of a file system or snapshot that may differ from those of its snapshot `fromsnap` to the file `fd` of the caller
    /// ([`DiffRecord`](crate::DiffRecord)). OpenZFS takes a snapshot of a file system for that; here the requests about its objects that follow see the same state of the
    /// pool ([`Kept`](crate::Kept)).
    Diff,
    /// Returns all properties of the pool, and those of `get_props_names` that are not among all, each with `value` and `source`.
    PoolGetProps,
    /// Returns the properties, all or `vdevprops_get_props`, of the vdev whose guid is `vdevprops_get_vdev`, each with `value` and `source`.
    VdevGetProps,
    /// The properties of a dataset, all or those of `props`, each with `value`, in `source` where it is set, empty if nowhere, and in `received` what came with
    /// a stream. With `simple`, `origin` or `stored` its object set is not looked at, which may be lost: the answer is its own `name` and what a simple list tells
    /// of it; with `origin` the same of the snapshot that it was cloned from; with `stored` its `encryption_root`, and in `stored` the properties that it has of its own.
    ObjsetStats,
    /// The datasets `depth` levels below one (1 unless told otherwise), each with what it tells quickly (`dds_*`), and in `props` those properties that `props`
    /// names, all if that is empty; `simple` only with what its own object tells. With `snapshots` these are among them, with `special`
    /// also those with names that only OpenZFS itself gives. OpenZFS's request gives one dataset after the other.
    DatasetListNext,
    /// Lists likewise the snapshots of a dataset and of those up to `depth` - 1 levels below it, of each the oldest first, that were taken from
    /// `snap_iter_min_txg` to `snap_iter_max_txg`. With `special` these are all of the dataset alone, also those with names that only OpenZFS itself gives. With
    /// `stored` each tells the properties that it has of its own.
    SnapshotListNext,
    /// Reads the pool's dedup tables (`prefetch_type` 1) or those of clones (2), so that what cannot be read is told.
    PoolPrefetch,
    /// The holds of a snapshot: when each was made.
    GetHolds,
    /// The bookmarks of a dataset, each with the properties that are asked for, or all: lists with `value`. Of one that cannot be read the `errno`.
    GetBookmarks,
    /// All properties of a bookmark.
    GetBookmarkProps,
    /// How many bytes a stream would have, as `space`: of all, or since `from`, with what `largeblockok`, `embedok`, `compressok` and `rawok`
    /// allow, less `bytes`.
    SendSpace,
    /// What users, groups or projects have of a file system or snapshot, by `type`: the place of a kind in [`pool::SpaceKind::ALL`]. Answers with `domains`, `rids` and
    /// `space` of each, and `default_quota` for those that have no limit of their own.
    UserspaceMany,
    /// A new dataset: `type` (2 a file system, 3 a volume), `props`, `hidden_args` with `wkeydata`.
    Create,
    /// A new dataset from snapshot `origin`, with `props`.
    Clone,
    /// Destroys a file system or volume that has neither snapshots nor children.
    Destroy,
    /// Takes all `snaps` of the pool in one txg, with `props`. A refusal tells the errno of each.
    Snapshot,
    /// Destroys all `snaps` of the pool, or none; those in use later, with `defer`.
    DestroySnaps,
    /// Returns the space that destroying the snapshots from `firstsnap` to the one named would free: `used`, `compressed`, `uncompressed`.
    SpaceSnaps,
    /// Makes bookmarks, each of its source.
    Bookmark,
    /// Destroys bookmarks. Those that are not there are passed over.
    DestroyBookmarks,
    /// Takes `holds`, a list from snapshot to tag. Snapshots that are not there are passed over, and told.
    Hold,
    /// Releases holds: lists of tags, by snapshot.
    Release,
    /// Makes a clone what its origin's file system was. A refusal names the snapshot in the way, `conflsnap`.
    Promote,
    /// A new name, `target`; with `recursive` for the snapshots of all below.
    Rename,
    /// Back to the latest snapshot, which must be `target` if there is one. Answers with `target`.
    Rollback,
    /// Sets `props`; with `received` as a stream does. A refusal tells the errno of each.
    SetProp,
    /// Unsets `prop`; with `received` what came with a stream is in force again.
    InheritProp,
    /// Loads the key in `hidden_args`; with `noop` it is only checked. A state that is open for reading takes one as well, as it changes nothing on disk.
    LoadKey,
    /// Forgets the key. As with [`Ioc::LoadKey`], that can be one of a state that is open for reading.
    UnloadKey,
    /// Another key (`crypt_cmd` 2 or none: with `hidden_args` and `props`), the parent's (3), or the same without rewrapping (4, 5).
    ChangeKey,
    /// Waits for an activity to end: `wait_activity` 0 is the queue of deleted files. Answers with `wait_waited`.
    WaitFs,
    /// Of a pool: begins a scrub or goes on with one, `scan_type` 1 of all, 3 of the list of errors, stops it (0), or pauses it (`scan_command` 1);
    /// with `scan_command` 2 of what is newer than the last, or between `scan_date_start` and `scan_date_end`. It runs in the background.
    PoolScrub,
    /// Of a pool: waits for an activity in its background to end, `wait_activity` by its number ([`pool::Activity`]). Answers with `wait_waited`.
    Wait,
    /// Of a pool: forgets entries of dedup tables, `ddt_prune_unit` 1 those of an age in seconds, 2 so many in a hundred: `ddt_prune_amount`.
    DdtPrune,
    /// Of a pool: overwrites the free space of the devices in `initialize_vdevs`, in the background: `initialize_command` 0 begins or goes on, 1 cancels, 2
    /// suspends, 3 forgets that it was done. `initialize_value` is the pattern. A refusal tells the errno of each device, by its guid.
    PoolInitialize,
    /// Of a pool: trims the free space of the devices in `trim_vdevs`, in the background: `trim_command` 0 begins or goes on, 1 cancels, 2 suspends; at most
    /// `trim_rate` bytes in a second, and with `trim_secure` so that nobody can get at them. A refusal tells the errno of each device, by its guid.
    PoolTrim,
}

/// The key that every request may have.
const OPTIONAL: &str = "optional";

/// A key of a request.
struct Key {
    name: &'static str,
    kind: DataType,
    optional: bool,
}

/// A key that a request may hold.
enum Keys {
    /// These keys.
    Named(&'static [Key]),
    /// Names of things, one at least, each with a value of this type.
    Things(DataType),
    /// As that, or nothing.
    Perhaps(DataType),
}

const fn must(name: &'static str, kind: DataType) -> Key {
    Key { name, kind, optional: false }
}

const fn may(name: &'static str, kind: DataType) -> Key {
    Key { name, kind, optional: true }
}

/// Those of [`Ioc::SendSpace`].
const SEND_SPACE: &[Key] = &[
    may("from", DataType::String),
    may("fromsnap", DataType::String),
    may("largeblockok", DataType::Boolean),
    may("embedok", DataType::Boolean),
    may("compressok", DataType::Boolean),
    may("rawok", DataType::Boolean),
    may("fd", DataType::Int32),
    may("redactbook", DataType::String),
    may("resume_object", DataType::Uint64),
    may("resume_offset", DataType::Uint64),
    may("bytes", DataType::Uint64),
    may("savedok", DataType::Boolean),
];

/// Those of [`Ioc::PoolImport`].
const POOL_IMPORT: &[Key] = &[
    must("guid", DataType::Uint64),
    must("config", DataType::NvList),
    may("props", DataType::NvList),
    may("flags", DataType::Uint64),
    may("devices", DataType::StringArray),
];

/// The keys of [`Ioc::SnapshotListNext`].
const SNAPSHOT_LIST: &[Key] = &[
    may("snap_iter_min_txg", DataType::Uint64),
    may("snap_iter_max_txg", DataType::Uint64),
    may("depth", DataType::Uint64),
    may("simple", DataType::Boolean),
    may("props", DataType::StringArray),
    may("stored", DataType::Boolean),
    may("special", DataType::Boolean),
];

/// Those of [`Ioc::SendNew`].
const SEND_NEW: &[Key] = &[
    must("fd", DataType::Int32),
    may("fromsnap", DataType::String),
    may("largeblockok", DataType::Boolean),
    may("embedok", DataType::Boolean),
    may("compressok", DataType::Boolean),
    may("rawok", DataType::Boolean),
    may("savedok", DataType::Boolean),
    may("resume_object", DataType::Uint64),
    may("resume_offset", DataType::Uint64),
    may("redactbook", DataType::String),
];

/// Those of [`Ioc::RecvNew`].
const RECV_NEW: &[Key] = &[
    must("snapname", DataType::String),
    may("props", DataType::NvList),
    may("localprops", DataType::NvList),
    may("origin", DataType::String),
    must("begin_record", DataType::ByteArray),
    must("input_fd", DataType::Int32),
    may("force", DataType::Boolean),
    may("heal", DataType::Boolean),
    may("resumable", DataType::Boolean),
    may("cleanup_fd", DataType::Int32),
    may("action_handle", DataType::Uint64),
    may("hidden_args", DataType::NvList),
];

impl Ioc {
    /// All requests there are.
    pub const ALL: [Ioc; 70] = [
        Ioc::LogHistory,
        Ioc::PoolSync,
        Ioc::PoolCheckpoint,
        Ioc::PoolDiscardCheckpoint,
        Ioc::PoolSetProps,
        Ioc::PoolUpgrade,
        Ioc::Clear,
        Ioc::PoolReopen,
        Ioc::VdevSetState,
        Ioc::PoolExport,
        Ioc::PoolDestroy,
        Ioc::PoolReguid,
        Ioc::PoolCondense,
        Ioc::VdevSetProps,
        Ioc::PoolCreate,
        Ioc::VdevAdd,
        Ioc::VdevRemove,
        Ioc::VdevAttach,
        Ioc::VdevDetach,
        Ioc::PoolGetHistory,
        Ioc::SendNew,
        Ioc::RecvNew,
        Ioc::EventsNext,
        Ioc::EventsClear,
        Ioc::EventsSeek,
        Ioc::PoolConfigs,
        Ioc::PoolTryImport,
        Ioc::PoolImport,
        Ioc::PoolStats,
        Ioc::ErrorLog,
        Ioc::DsobjToDsname,
        Ioc::ObjToPath,
        Ioc::NextObj,
        Ioc::ObjToStats,
        Ioc::Diff,
        Ioc::PoolGetProps,
        Ioc::VdevGetProps,
        Ioc::ObjsetStats,
        Ioc::DatasetListNext,
        Ioc::SnapshotListNext,
        Ioc::PoolPrefetch,
        Ioc::GetHolds,
        Ioc::GetBookmarks,
        Ioc::GetBookmarkProps,
        Ioc::SendSpace,
        Ioc::UserspaceMany,
        Ioc::Create,
        Ioc::Clone,
        Ioc::Destroy,
        Ioc::Snapshot,
        Ioc::DestroySnaps,
        Ioc::SpaceSnaps,
        Ioc::Bookmark,
        Ioc::DestroyBookmarks,
        Ioc::Hold,
        Ioc::Release,
        Ioc::Promote,
        Ioc::Rename,
        Ioc::Rollback,
        Ioc::SetProp,
        Ioc::InheritProp,
        Ioc::LoadKey,
        Ioc::UnloadKey,
        Ioc::ChangeKey,
        Ioc::WaitFs,
        Ioc::PoolScrub,
        Ioc::Wait,
        Ioc::DdtPrune,
        Ioc::PoolInitialize,
        Ioc::PoolTrim,
    ];

    /// The name by which it is known in a pool's history.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Ioc::LogHistory => "log_history",
            Ioc::PoolSync => "sync",
            Ioc::PoolCheckpoint => "zpool_checkpoint",
            Ioc::PoolDiscardCheckpoint => "zpool_discard_checkpoint",
            Ioc::PoolSetProps => "pool_set_props",
            Ioc::PoolUpgrade => "pool_upgrade",
            Ioc::Clear => "clear",
            Ioc::PoolReopen => "reopen",
            Ioc::VdevSetState => "vdev_set_state",
            Ioc::PoolExport => "pool_export",
            Ioc::PoolDestroy => "pool_destroy",
            Ioc::PoolReguid => "pool_reguid",
            Ioc::PoolCondense => "condense",
            Ioc::VdevSetProps => "zpool_vdev_set_props",
            Ioc::PoolCreate => "pool_create",
            Ioc::VdevAdd => "vdev_add",
            Ioc::VdevRemove => "vdev_remove",
            Ioc::VdevAttach => "vdev_attach",
            Ioc::VdevDetach => "vdev_detach",
            Ioc::PoolGetHistory => "pool_get_history",
            Ioc::SendNew => "send",
            Ioc::RecvNew => "receive",
            Ioc::EventsNext => "events_next",
            Ioc::EventsClear => "events_clear",
            Ioc::EventsSeek => "events_seek",
            Ioc::PoolConfigs => "pool_configs",
            Ioc::PoolTryImport => "pool_tryimport",
            Ioc::PoolImport => "pool_import",
            Ioc::PoolStats => "pool_stats",
            Ioc::ErrorLog => "error_log",
            Ioc::DsobjToDsname => "dsobj_to_dsname",
            Ioc::ObjToPath => "obj_to_path",
            Ioc::NextObj => "next_obj",
            Ioc::ObjToStats => "obj_to_stats",
            Ioc::Diff => "diff",
            Ioc::PoolGetProps => "get_props",
            Ioc::VdevGetProps => "zpool_vdev_get_props",
            Ioc::ObjsetStats => "objset_stats",
            Ioc::DatasetListNext => "dataset_list_next",
            Ioc::SnapshotListNext => "snapshot_list_next",
            Ioc::PoolPrefetch => "zpool_prefetch",
            Ioc::GetHolds => "get_holds",
            Ioc::GetBookmarks => "get_bookmarks",
            Ioc::GetBookmarkProps => "get_bookmark_props",
            Ioc::SendSpace => "send_space",
            Ioc::UserspaceMany => "userspace_many",
            Ioc::Create => "create",
            Ioc::Clone => "clone",
            Ioc::Destroy => "destroy",
            Ioc::Snapshot => "snapshot",
            Ioc::DestroySnaps => "destroy_snaps",
            Ioc::SpaceSnaps => "space_snaps",
            Ioc::Bookmark => "bookmark",
            Ioc::DestroyBookmarks => "destroy_bookmarks",
            Ioc::Hold => "hold",
            Ioc::Release => "release",
            Ioc::Promote => "promote",
            Ioc::Rename => "rename",
            Ioc::Rollback => "rollback",
            Ioc::SetProp => "set",
            Ioc::InheritProp => "inherit",
            Ioc::LoadKey => "load-key",
            Ioc::UnloadKey => "unload-key",
            Ioc::ChangeKey => "change-key",
            Ioc::WaitFs => "wait_fs",
            Ioc::PoolScrub => "scrub",
            Ioc::Wait => "wait",
            Ioc::DdtPrune => "zpool_ddt_prune",
            Ioc::PoolInitialize => "initialize",
            Ioc::PoolTrim => "trim",
        }
    }

    /// Whether it only looks ([`ReadOnlyControl`](crate::ReadOnlyControl) answers it).
    #[must_use]
    pub const fn looks(self) -> bool {
        matches!(
            self,
            Ioc::SpaceSnaps
                | Ioc::PoolGetHistory
                | Ioc::SendNew
                | Ioc::PoolStats
                | Ioc::ErrorLog
                | Ioc::DsobjToDsname
                | Ioc::ObjToPath
                | Ioc::NextObj
                | Ioc::ObjToStats
                | Ioc::Diff
                | Ioc::PoolGetProps
                | Ioc::VdevGetProps
                | Ioc::ObjsetStats
                | Ioc::DatasetListNext
                | Ioc::SnapshotListNext
                | Ioc::PoolPrefetch
                | Ioc::GetHolds
                | Ioc::GetBookmarks
                | Ioc::GetBookmarkProps
                | Ioc::SendSpace
                | Ioc::UserspaceMany
        )
    }

    /// Whether it changes something that belongs into the pool's history.
    pub(crate) const fn changes(self) -> bool {
        !self.looks()
            && !matches!(
                self,
                Ioc::LogHistory
                    | Ioc::PoolConfigs
                    | Ioc::PoolTryImport
                    | Ioc::PoolSync
                    | Ioc::PoolCondense
                    | Ioc::VdevSetProps
                    | Ioc::Wait
                    | Ioc::WaitFs
                    | Ioc::EventsNext
                    | Ioc::EventsClear
                    | Ioc::EventsSeek
            )
    }

    /// Whether the history tells what was asked and answered: OpenZFS's older requests are no lists, and leave no such record.
    pub(crate) const fn is_recorded(self) -> bool {
        let older = matches!(
            self,
            Ioc::PoolSetProps
                | Ioc::PoolUpgrade
                | Ioc::Clear
                | Ioc::VdevSetState
                | Ioc::PoolExport
                | Ioc::PoolDestroy
                | Ioc::PoolReguid
                | Ioc::PoolCreate
                | Ioc::PoolImport
                | Ioc::VdevAdd
                | Ioc::VdevRemove
                | Ioc::VdevAttach
                | Ioc::VdevDetach
                | Ioc::Destroy
                | Ioc::Promote
                | Ioc::Rename
                | Ioc::SetProp
                | Ioc::InheritProp
        );
        self.changes() && !older
    }

    /// Returns whether devices come into the pool with it, or leave it.
    #[must_use]
    pub fn changes_devices(self) -> bool {
        matches!(self, Ioc::VdevAdd | Ioc::VdevAttach | Ioc::VdevDetach | Ioc::VdevRemove)
    }

    fn keys(self) -> Keys {
        use DataType::{Boolean, BooleanValue, Int32, NvList, String, StringArray, Uint64, Uint64Array};
        Keys::Named(match self {
            Ioc::PoolCreate => const { &[must("config", NvList), may("props", NvList)] },
            Ioc::VdevAdd => const { &[must("config", NvList), may("check_ashift", BooleanValue)] },
            Ioc::VdevRemove | Ioc::VdevDetach => const { &[must("guid", Uint64)] },
            Ioc::VdevAttach => {
                const { &[must("guid", Uint64), must("config", NvList), may("replacing", Boolean), may("rebuild", Boolean)] }
            }
            Ioc::SendNew => SEND_NEW,
            Ioc::RecvNew => RECV_NEW,
            Ioc::PoolGetHistory | Ioc::EventsClear => &[],
            Ioc::EventsNext => const { &[may("wait_ms", Uint64)] },
            Ioc::EventsSeek => const { &[must("eid", Uint64)] },
            Ioc::LogHistory => const { &[must("message", String)] },
            Ioc::PoolSync => const { &[must("force", BooleanValue)] },
            Ioc::PoolCheckpoint | Ioc::PoolDiscardCheckpoint | Ioc::Destroy | Ioc::Promote | Ioc::UnloadKey => &[],
            Ioc::PoolConfigs | Ioc::ErrorLog | Ioc::GetHolds | Ioc::GetBookmarkProps => &[],
            Ioc::PoolTryImport => {
                const { &[must("config", NvList), may("flags", Uint64), may("devices", StringArray)] }
            }
            Ioc::PoolImport => POOL_IMPORT,
            Ioc::PoolStats => const { &[may("brief", Boolean), may("errata", Boolean), may("dedup", Boolean)] },
            Ioc::DsobjToDsname | Ioc::ObjToPath => const { &[must("obj", Uint64)] },
            Ioc::NextObj => const { &[must("obj", Uint64), may("last", Uint64)] },
            Ioc::ObjToStats => const { &[may("obj", Uint64), may("objs", Uint64Array)] },
            Ioc::Diff => const { &[must("fromsnap", String), must("fd", Int32)] },
            Ioc::ObjsetStats => {
                const { &[may("props", StringArray), may("simple", Boolean), may("origin", Boolean), may("stored", Boolean)] }
            }
            Ioc::DatasetListNext => {
                const {
                    &[
                        may("depth", Uint64),
                        may("simple", Boolean),
                        may("snapshots", Boolean),
                        may("special", Boolean),
                        may("props", StringArray),
                    ]
                }
            }
            Ioc::PoolGetProps => const { &[may("get_props_names", StringArray)] },
            Ioc::VdevGetProps => const { &[must("vdevprops_get_vdev", Uint64), may("vdevprops_get_props", NvList)] },
            Ioc::SnapshotListNext => SNAPSHOT_LIST,
            Ioc::PoolPrefetch => const { &[must("prefetch_type", Int32)] },
            Ioc::GetBookmarks => return Keys::Perhaps(Boolean),
            Ioc::SendSpace => SEND_SPACE,
            Ioc::UserspaceMany => const { &[must("type", Uint64)] },
            Ioc::PoolSetProps => const { &[must("props", NvList)] },
            Ioc::PoolUpgrade => const { &[must("version", Uint64), may("props", NvList)] },
            Ioc::Clear => const { &[may("guid", Uint64)] },
            Ioc::PoolReopen => const { &[may("scrub_restart", BooleanValue)] },
            Ioc::VdevSetState => const { &[must("guid", Uint64), must("state", Uint64), may("flags", Uint64)] },
            Ioc::PoolExport | Ioc::PoolDestroy => const { &[may("message", String)] },
            Ioc::PoolReguid => const { &[may("guid", Uint64), may("message", String)] },
            Ioc::PoolCondense => const { &[must("condense_command", String), must("condense_type", String)] },
            Ioc::VdevSetProps => const { &[must("vdevprops_set_vdev", Uint64), must("vdevprops_set_props", NvList)] },
            Ioc::Create => const { &[must("type", Int32), may("props", NvList), may("hidden_args", NvList)] },
            Ioc::Clone => const { &[must("origin", String), may("props", NvList), may("hidden_args", NvList)] },
            Ioc::Snapshot => const { &[must("snaps", NvList), may("props", NvList)] },
            Ioc::DestroySnaps => const { &[must("snaps", NvList), may("defer", Boolean)] },
            Ioc::SpaceSnaps => const { &[must("firstsnap", String)] },
            Ioc::Bookmark => return Keys::Things(String),
            Ioc::DestroyBookmarks => return Keys::Things(Boolean),
            Ioc::Hold => const { &[must("holds", NvList), may("cleanup_fd", Int32)] },
            Ioc::Release => return Keys::Things(NvList),
            Ioc::Rename => const { &[must("target", String), may("recursive", Boolean)] },
            Ioc::Rollback => const { &[may("target", String)] },
            Ioc::SetProp => const { &[must("props", NvList), may("received", Boolean)] },
            Ioc::InheritProp => const { &[must("prop", String), may("received", Boolean)] },
            Ioc::LoadKey => const { &[must("hidden_args", NvList), may("noop", Boolean)] },
            Ioc::ChangeKey => const { &[may("crypt_cmd", Uint64), may("hidden_args", NvList), may("props", NvList)] },
            Ioc::WaitFs => const { &[must("wait_activity", Int32)] },
            Ioc::Wait => const { &[must("wait_activity", Int32), may("wait_tag", Uint64)] },
            Ioc::PoolScrub => {
                const {
                    &[
                        must("scan_type", Uint64),
                        must("scan_command", Uint64),
                        may("scan_flags", Uint64),
                        may("scan_date_start", Uint64),
                        may("scan_date_end", Uint64),
                    ]
                }
            }
            Ioc::DdtPrune => const { &[must("ddt_prune_unit", Int32), must("ddt_prune_amount", Uint64)] },
            Ioc::PoolInitialize => {
                const {
                    &[
                        must("initialize_command", Uint64),
                        must("initialize_vdevs", NvList),
                        may("initialize_value", Uint64),
                    ]
                }
            }
            Ioc::PoolTrim => {
                const {
                    &[
                        must("trim_command", Uint64),
                        must("trim_vdevs", NvList),
                        may("trim_rate", Uint64),
                        may("trim_secure", BooleanValue),
                    ]
                }
            }
        })
    }

    /// Whether `input` holds what this request takes, and nothing else but a list `optional`: what it holds may be passed over.
    ///
    /// # Errors
    /// The key that is unknown, missing or of another type.
    pub fn check(self, input: &NvList) -> Result<(), Error> {
        let named = match self.keys() {
            Keys::Named(named) => named,
            keys @ (Keys::Things(kind) | Keys::Perhaps(kind)) => {
                return match input.iter().find(|(_, value)| value.data_type() != kind) {
                    Some((name, _)) => Err(Error::KeyType { ioc: self.name(), key: name.to_owned() }),
                    None if input.is_empty() && matches!(keys, Keys::Things(_)) => {
                        Err(Error::MissingKey { ioc: self.name(), key: "<name>" })
                    }
                    None => Ok(()),
                };
            }
        };
        for (name, value) in input {
            match named.iter().find(|key| key.name == name) {
                None if name == OPTIONAL && value.data_type() == DataType::NvList => {}
                None => return Err(Error::UnknownKey { ioc: self.name(), key: name.to_owned() }),
                Some(key) if key.kind != value.data_type() => {
                    return Err(Error::KeyType { ioc: self.name(), key: name.to_owned() });
                }
                Some(_) => {}
            }
        }
        match named.iter().find(|key| !key.optional && !input.contains(key.name)) {
            Some(key) => Err(Error::MissingKey { ioc: self.name(), key: key.name }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Errno;

    use super::*;

    fn list(pairs: Vec<(&str, nvlist::Value)>) -> NvList {
        let mut list = NvList::new();
        pairs.into_iter().for_each(|(name, value)| list.insert(name, value));
        list
    }

    /// No error.
    const DONE: Errno = Errno::from_raw(0);

    fn errno(ioc: Ioc, pairs: Vec<(&str, nvlist::Value)>) -> Errno {
        ioc.check(&list(pairs)).map_or_else(|e| e.errno(), |()| DONE)
    }

    #[test]
    fn all_requests_are_listed() {
        assert!(Ioc::ALL.iter().enumerate().all(|(n, ioc)| *ioc as usize == n));
        assert_eq!(Ioc::ALL.len(), Ioc::PoolTrim as usize + 1, "that is the last one");
    }

    #[test]
    fn keys_are_checked_by_name_and_type() {
        assert_eq!(errno(Ioc::Snapshot, vec![("snaps", NvList::new().into())]), DONE);
        assert_eq!(errno(Ioc::Snapshot, vec![]), Errno::ZFS_ERR_IOC_ARG_REQUIRED);
        assert_eq!(errno(Ioc::Snapshot, vec![("snaps", 1u64.into())]), Errno::ZFS_ERR_IOC_ARG_BADTYPE);
        assert_eq!(
            errno(Ioc::Snapshot, vec![("snaps", NvList::new().into()), ("x", 1u64.into())]),
            Errno::ZFS_ERR_IOC_ARG_UNAVAIL
        );
        assert_eq!(errno(Ioc::Create, vec![("type", 2u64.into())]), Errno::ZFS_ERR_IOC_ARG_BADTYPE);
        assert_eq!(errno(Ioc::Create, vec![("type", 2i32.into())]), DONE);
    }

    #[test]
    fn lists_of_things_have_one_type() {
        assert_eq!(errno(Ioc::Bookmark, vec![("a#b", "a@s".into())]), DONE);
        assert_eq!(
            errno(Ioc::Bookmark, vec![("a#b", "a@s".into()), ("a#c", ().into())]),
            Errno::ZFS_ERR_IOC_ARG_BADTYPE
        );
        assert_eq!(errno(Ioc::DestroyBookmarks, vec![("a#b", ().into())]), DONE);
        assert_eq!(errno(Ioc::Destroy, vec![("a", ().into())]), Errno::ZFS_ERR_IOC_ARG_UNAVAIL);
    }
}
