//! File systems that change (OpenZFS: `zfs_vnops.c`, `zfs_vnops_os.c`, `zfs_dir.c`, `zfs_znode_os.c`).
//!
//! # In memory
//! A [`Zfs`] is a file system that is open for writing, once per pool and dataset. It has the files in use as znodes: the object, its attributes
//! decoded, and, of a directory, the open ZAP of its names, so that a change of a directory neither looks the object up nor decodes a
//! table. [`Zfs::fs`] is the reading half, over the same live object set: it sees all changes at once.
//!
//! # A change
//! Every operation is one closure under [`Zfs::change`], which gives it a place in the open txg: what it changes reaches the disk
//! together or not at all. All is checked before anything is changed, since a transaction cannot be taken back; what can fail for want of
//! room in a ZAP comes first and is undone by hand. Changes within [`Zfs::batch`] share places: thousands of small files cost
//! as many places as they fill megabytes.
//!
//! # Lock order
//! place in the txg → `moving` (directories that change their parent) → `names` of directories, by object number → `rights` of a file →
//! `content` of a file → `attrs` of one znode. A place is taken first of all, as a txg that is being closed waits for its places, and nobody may wait for
//! a new one with a lock that the holder of an old one wants. Whoever must look a name up to know which directories to lock looks again
//! when it has them.
//!
//! # Files without a name
//! A file whose last name goes is entered in the *unlinked set* in the same txg, and freed when no [`Open`] holds it any more: its blocks
//! in bounded pieces, one txg place each, then its object together with its entry in the set. After a crash [`Zfs::open`] finds it in the
//! set, and an import opens each file system whose set is not empty ([`replay_all`]). Extended attributes in a hidden directory go the same way: the directory is put in the set when its file is freed.
//!
//! # Intent log
//! Each operation hands its record over behind its last change, while what orders the changes is still locked: see [`log`].

mod access;
mod acl;
mod clone_range;
mod io;
mod log;
mod log_files;
mod log_names;
mod mount;
mod names;
mod namespace;
mod new;
mod permit;
mod place;
mod posix;
mod prefetch;
mod quota;
mod readers;
mod refusal;
mod rename;
mod replay;
mod replay_all;
mod replay_volume;
mod setattr;
mod size;
mod times;
mod unlinked;
mod vfs;
mod xattr;
mod xattr_dir;
mod znode;
mod zvol;

use std::sync::Arc;

use base::tunable;
use dmu::{Objset, Tx, Zap};
use parking_lot::{Mutex, RwLock};
use pool::{PropsWatch, Spa};

use crate::{Error, FileSystem, MASTER_NODE_OBJ, Time};

pub use access::Perms;
pub use acl::list_of_mode;
use place::{Batch, Held, Owed};
pub use refusal::Refusal;
pub use replay_all::{ReplayProgress, ReplayedDataset, replay_all};
pub use vfs::{Cred, NewFile, RenameMode, SetAttr, StatFs, Vfs, XattrMode};
pub use znode::{Open, Znode};
pub use zvol::Volume;

/// What a change of names and attributes dirties at most, about: dnodes, leaves of ZAPs, and what is above them.
pub(crate) const SMALL_CHANGE: u64 = 16 << 10;

/// File systems of this version are written, not those of older ones.
const WRITTEN_VERSION: u64 = 5;

/// A file system that is open for writing (OpenZFS: `zfsvfs_t`). Cheap to clone.
#[derive(Clone)]
pub struct Zfs(Arc<Inner>);

struct Inner {
    spa: Arc<Spa>,
    name: String,
    fs: FileSystem,
    settings: RwLock<Arc<Settings>>,
    atime: times::AtimePolicy,
    nodes: znode::Nodes,
    /// The unlinked set.
    unlinked: Zap,
    /// Files that nobody holds any more and that are to be freed.
    reap: Mutex<Vec<u64>>,
    /// Held while a directory changes its parent.
    moving: Mutex<()>,
    /// Whether files have projects (feature `project_quota`).
    projects: bool,
    /// Readers of the files that were read last.
    readers: readers::Readers,
    /// Threads that read ahead.
    fetcher: prefetch::Fetcher,
    /// Limits of users, groups and projects.
    quotas: quota::Quotas,
    log: Arc<log::Log>,
}

/// Properties of the dataset that say how files are made and changed, as numbers of the property table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// `recordsize` in bytes.
    pub recordsize: u64,
    /// Slots of 512 bytes for the dnode of a new file (`dnodesize`).
    pub dnode_slots: usize,
    /// `longname`: names of up to 1023 bytes.
    pub longname: bool,
    /// `acltype`: 0 off, 1 posix, 2 nfsv4.
    pub acltype: u64,
    /// `aclmode`: 0 discard, 2 groupmask, 3 passthrough, 4 restricted.
    pub aclmode: u64,
    /// `aclinherit`: 0 discard, 1 noallow, 3 passthrough, 4 restricted, 5 passthrough-x.
    pub aclinherit: u64,
    /// `xattr`: 0 off, 1 dir, 2 sa.
    pub xattr: u64,
    /// `atime`.
    pub atime: bool,
    /// `relatime`.
    pub relatime: bool,
    /// `readonly`.
    pub readonly: bool,
    /// `sync`: 0 standard, 1 always, 2 disabled.
    pub sync: u64,
    /// `logbias`: 0 latency, 1 throughput.
    pub logbias: u64,
    /// Whether extended attributes that are system attributes are logged (feature `zilsaxattr`).
    pub logs_sa_xattrs: bool,
}

/// Value of the property `sync`: every operation waits for the disk.
pub(crate) const SYNC_ALWAYS: u64 = 1;
/// Value of the property `sync`: who waits for the disk does not.
pub(crate) const SYNC_DISABLED: u64 = 2;
/// Record sizes at most without and with feature `large_blocks` (OpenZFS: `SPA_OLD_MAXBLOCKSIZE`, `SPA_MAXBLOCKSIZE`).
const OLD_MAX_BLOCK: u64 = 128 << 10;
const MAX_BLOCK: u64 = 16 << 20;

impl Settings {
    /// Reads the properties of `dataset`.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn of(dataset: &pool::Dataset) -> Result<Settings, Error> {
        let number = |name: &str, default: u64| -> Result<u64, Error> {
            Ok(dataset.prop(name)?.and_then(|prop| prop.value.number()).unwrap_or(default))
        };
        Ok(Settings {
            recordsize: record_size(dataset, number("recordsize", OLD_MAX_BLOCK)?),
            dnode_slots: match number("dnodesize", 0)? {
                0 => 1,
                // OpenZFS takes 1 KiB for all (`dmu_objset_dnodesize`)
                1 => 2,
                bytes => usize::try_from(bytes / 512).unwrap_or(1).clamp(1, 32),
            },
            longname: number("longname", 0)? != 0,
            acltype: number("acltype", 0)?,
            aclmode: number("aclmode", 0)?,
            aclinherit: number("aclinherit", 4)?,
            xattr: number("xattr", 2)?,
            atime: number("atime", 1)? != 0,
            relatime: number("relatime", 1)? != 0,
            readonly: number("readonly", 0)? != 0,
            sync: number("sync", 0)?,
            logbias: number("logbias", 0)?,
            logs_sa_xattrs: tunable::ZFS_ZIL_SAXATTR.get() != 0 && dataset.pool().feature_enabled("zilsaxattr"),
        })
    }
}

/// The size of records that the pool can have, a power of two, whatever the property says.
fn record_size(dataset: &pool::Dataset, wanted: u64) -> u64 {
    let most = if dataset.pool().feature_enabled("large_blocks") { MAX_BLOCK } else { OLD_MAX_BLOCK };
    1 << wanted.clamp(512, most).ilog2()
}

/// Changes objects of `objset` that are no files, with a place in the open txg as [`Zfs::change`] takes one: within the quotas of the
/// dataset, and within an operation on files as a part of it. No lock may be held.
///
/// # Errors
/// Those of `work`; when there is no room, or the pool is suspended.
pub fn change_objects<R>(
    spa: &Arc<Spa>,
    objset: &Arc<Objset>,
    bytes: u64,
    work: impl FnOnce(&Tx) -> Result<R, dmu::Error>,
) -> Result<R, Error> {
    let place = Held::begin(spa, objset, bytes, false)?;
    Ok(work(&place)?)
}

impl PropsWatch for Inner {
    /// A dataset that cannot be read goes on by what it was told last.
    fn props_changed(&self) {
        let dataset = self.spa.view().and_then(|view| view.dataset_by_id(self.fs.objset().id()));
        let Some(settings) = dataset.ok().and_then(|dataset| Settings::of(&dataset).ok()) else { return };
        self.log.set_policy(settings.log_policy());
        self.atime.set(&settings);
        *self.settings.write() = Arc::new(settings);
    }
}

impl Zfs {
    /// The file system `name`, open for writing: its files of which only an open handle was left before a crash are freed.
    ///
    /// # Errors
    /// When the dataset is none or a snapshot, its key is not loaded, its version is below 5, or its master node is unreadable.
    pub fn open(spa: &Arc<Spa>, name: &str) -> Result<Zfs, Error> {
        let view = spa.view()?;
        let dataset = view.dataset(name)?;
        let objset = spa.objset_to_replay(&dataset)?;
        let fs = FileSystem::from_objset(objset.clone(), false)?;
        if fs.version() < WRITTEN_VERSION {
            return Err(Error::Version { objset: objset.id(), version: fs.version() });
        }
        let master = Zap::open(objset.object(MASTER_NODE_OBJ)?)?;
        let unlinked = master.lookup_u64("DELETE_QUEUE")?;
        let unlinked = unlinked.ok_or(Error::Missing { object: MASTER_NODE_OBJ, what: "DELETE_QUEUE" })?;
        let settings = Settings::of(&dataset)?;
        let zfs = Zfs(Arc::new(Inner {
            spa: spa.clone(),
            name: name.to_string(),
            atime: times::AtimePolicy::new(&settings),
            settings: RwLock::new(Arc::new(settings)),
            nodes: znode::Nodes::default(),
            unlinked: Zap::open(objset.object(unlinked)?)?,
            reap: Mutex::default(),
            moving: Mutex::default(),
            projects: view.feature_enabled("project_quota"),
            readers: readers::Readers::default(),
            fetcher: prefetch::Fetcher::default(),
            quotas: quota::Quotas::default(),
            log: log::Log::new(spa),
            fs,
        }));
        // no limit counts for what was promised
        let _replayed = zfs.replay()?;
        let source: std::sync::Weak<Inner> = Arc::downgrade(&zfs.0);
        spa.watch_props(source.clone());
        zfs.log().begin(spa.zil(zfs.fs().objset()), source, zfs.settings().log_policy());
        // what was set during the replay, which may have taken long
        zfs.0.props_changed();
        zfs.load_quotas()?;
        if !zfs.settings().readonly {
            spa.upgrade_accounting(&objset)?;
            zfs.drain();
        }
        Ok(zfs)
    }

    /// The reading half: what it reads is as the changes have left it.
    #[must_use]
    pub fn fs(&self) -> &FileSystem {
        &self.0.fs
    }

    /// The pool.
    #[must_use]
    pub fn spa(&self) -> &Arc<Spa> {
        &self.0.spa
    }

    /// The dataset's name, as of opening.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The properties that count here.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.0.settings.read().clone()
    }

    /// Whether files have projects.
    #[must_use]
    pub fn has_projects(&self) -> bool {
        self.0.projects
    }

    /// Now, as files' times are stamped.
    #[must_use]
    pub fn now(&self) -> Time {
        let now = self.0.spa.env().now();
        Time { sec: now.as_secs().cast_signed(), nsec: now.subsec_nanos() }
    }

    /// Runs one operation that dirties about `bytes` bytes, with a place in the open txg; within [`Zfs::batch`] with the shared one. No
    /// lock may be held. Files that nobody holds any more are freed afterwards; with `sync=always` it is in the log then.
    ///
    /// # Errors
    /// Those of the operation; when there is no room, or the pool is suspended.
    pub fn change<R>(&self, bytes: u64, work: impl FnOnce(&Tx) -> Result<R, Error>) -> Result<R, Error> {
        self.finish(self.place(bytes, false)?, work)
    }

    /// As [`Zfs::change`], for what frees more than it takes: some of the room that is kept back is for it.
    ///
    /// # Errors
    /// As [`Zfs::change`].
    pub fn change_freeing<R>(&self, bytes: u64, work: impl FnOnce(&Tx) -> Result<R, Error>) -> Result<R, Error> {
        self.finish(self.place(bytes, true)?, work)
    }

    /// As [`Zfs::change`], as a part of an operation that waits at its end for what it owes.
    fn change_owing<R>(
        &self,
        bytes: u64,
        owed: &mut Owed,
        work: impl FnOnce(&Tx) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let place = self.place(bytes, false)?;
        let done = work(&place);
        place.finish_owing(owed);
        self.reap();
        done
    }

    fn finish<R>(&self, place: Held, work: impl FnOnce(&Tx) -> Result<R, Error>) -> Result<R, Error> {
        let done = work(&place);
        let logged = place.finish();
        self.reap();
        done.and_then(|done| logged.map(|()| done))
    }

    /// Runs many operations that share places in txgs. A power cut may come between any two of them, as without a batch; `sync=always` counts
    /// for all of them together. Nothing in it may wait for a sync, but for what [`Zfs::fsync`] and [`Zfs::sync`] wait for.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn batch<R>(&self, work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        let batch = Batch::begin(&self.0.spa);
        let done = work();
        let logged = batch.finish();
        done.and_then(|done| logged.map(|()| done))
    }

    fn place(&self, bytes: u64, netfree: bool) -> Result<Held, Error> {
        if self.0.settings.read().readonly {
            return Err(Refusal::ReadOnly.of(self.0.fs.root()));
        }
        Held::begin(&self.0.spa, self.0.fs.objset(), bytes, netfree)
    }
}
