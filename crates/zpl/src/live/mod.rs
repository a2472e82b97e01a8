//! File systems open for writing (OpenZFS: `zfs_vnops.c`, `zfs_vnops_os.c`, `zfs_dir.c`, `zfs_znode_os.c`).
//!
//! # In memory
//! A [`Zfs`] is a file system that is open for writing, once per pool and dataset. It holds the files in use as znodes: the
//! object, its decoded attributes and, for a directory, the open ZAP of its names, so that a change of a directory neither looks
//! the object up nor decodes a table. [`Zfs::fs`] is the reading half, over the same live object set: it sees all changes at
//! once.
//!
//! # A change
//! Every operation is one closure, which runs in a transaction of the open txg ([`Zfs::change`], `Zfs::change_some`): its changes reach the
//! disk together or not at all. It names the objects that it changes, so that other txgs leave them alone meanwhile ([`hold`]). Everything is checked before anything is changed, since a transaction cannot be rolled back;
//! what an operation of several steps has done is undone if a later step fails ([`steps`]). Changes through the handle of a [`Zfs::batch`] share
//! transactions: thousands of small files need only as many transactions as their megabytes require.
//!
//! # Lock order
//! transaction → `moving` (directories that change their parent) → `names` of directories, by object number → `rights` of a file
//! → a range of the `content` of a file → `attrs` of one znode. The transaction is assigned first, because a txg that is closing waits for its
//! transactions, and no thread may wait for a new transaction while it holds a lock that the holder of an old one needs. An
//! operation that must look up a name to know which directories to lock looks it up again once it holds the locks.
//!
//! # Files without a name
//! A file whose last name is removed is entered in the *unlinked set* in the same txg, and freed when no [`Open`] holds it any
//! more: its blocks in bounded pieces, one transaction each, then its object together with its entry in the set. After a crash
//! [`Zfs::open`] finds it in the set, and an import opens each file system whose set is not empty ([`replay_all()`]). Extended
//! attributes in a hidden directory are freed the same way: the directory is put in the set when its file is freed.
//!
//! # Intent log
//! Each operation logs its record after its last change, while the locks that order the changes are still held: see [`log`].

mod clone_range;
mod ctldir;
pub(crate) mod hold;
pub(crate) mod io;
pub(crate) mod log;
mod log_files;
mod log_names;
mod mount;
pub(crate) mod names;
mod namespace;
pub(crate) mod new;
mod prefetch;
mod quota;
pub(crate) mod rangelock;
mod readers;
mod refusal;
mod rename;
pub(crate) mod replay;
mod replay_all;
mod setattr;
mod size;
pub(crate) mod steps;
mod still;
mod suspend;
mod times;
mod unlinked;
mod vfs;
pub(crate) mod znode;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use base::{ObjectId, tunable};
use dmu::{Objset, Tx, TxObjects, Zap};
use parking_lot::{Mutex, RwLock};
use pool::{DatasetStats, PropsWatch, Spa};

use crate::{Error, FileSystem, Time};

pub use crate::acl::access::Perms;
pub use crate::acl::modes::list_of_mode;
pub use crate::zvol::volume::Volume;
pub use ctldir::{Ctldir, PoolSource, SnapshotAdmin};
use hold::{Ask, Batch, Held, Owed};
pub use refusal::Refusal;
pub use replay_all::{ReplayProgress, ReplayedDataset, replay_all};
pub use still::Still;
pub use suspend::{Contents, Pin, Suspendable, Told};
pub use vfs::{
    AclKind, Caps, Cred, Handle, Mounted, NewFile, RenameMode, SetAttr, Stat, StatFs, Temporary, Vfs, Wrote, XattrMode,
};
pub use zil::write::{Lead, Then};
pub use znode::{Open, Znode};

/// Approximate upper bound of the bytes that a change of names and attributes dirties: dnodes, leaves of ZAPs, and the blocks
/// above them.
pub(crate) const SMALL_CHANGE: u64 = 16 << 10;

/// How often an operation begins again for single objects, before it asks for all.
const ATTEMPTS: u32 = 8;

/// The version of the file systems that can be written; older ones are read-only.
const WRITTEN_VERSION: u64 = 5;

/// A file system that is open for writing (OpenZFS: `zfsvfs_t`). Cheap to clone. A handle may be that of a batch: then all that is done through it
/// shares transactions.
#[derive(Clone)]
pub struct Zfs(Arc<Inner>, Option<Arc<Batch>>);

struct Inner {
    spa: Arc<Spa>,
    fs: FileSystem,
    settings: RwLock<Arc<Settings>>,
    /// What the settings are made of.
    props: Mutex<Props>,
    atime: times::AtimePolicy,
    nodes: znode::Nodes,
    /// The unlinked set.
    unlinked: Zap,
    /// Files without a name that no handle holds any more, to be freed.
    reap: Mutex<Vec<ObjectId>>,
    /// Number of running batches.
    batches: AtomicUsize,
    /// Held while a directory changes its parent.
    moving: Mutex<()>,
    /// True if files have projects (feature `project_quota`).
    projects: bool,
    /// Readers of the most recently read files.
    readers: readers::Readers,
    /// Threads that read ahead.
    fetcher: prefetch::Fetcher,
    /// Limits of users, groups and projects.
    quotas: quota::Quotas,
    log: Arc<log::Log>,
    /// What its users do.
    stats: Arc<DatasetStats>,
}

/// The properties of a dataset, and the values that take their place while it is mounted.
struct Props {
    /// As they were read last.
    of_dataset: Settings,
    temporary: Option<Temporary>,
}

/// Properties of the dataset that determine how files are created and changed, as numbers of the property table.
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
    /// True if extended attributes stored in the system attributes are logged (feature `zilsaxattr`).
    pub logs_sa_xattrs: bool,
}

/// Value of the property `sync`: every operation waits for the disk.
pub(crate) const SYNC_ALWAYS: u64 = 1;
/// Value of the property `sync`: requests to wait for the disk return at once.
pub(crate) const SYNC_DISABLED: u64 = 2;
/// Maximum record size without and with feature `large_blocks` (OpenZFS: `SPA_OLD_MAXBLOCKSIZE`, `SPA_MAXBLOCKSIZE`).
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
                // OpenZFS uses 1 KiB for `auto` (`dmu_objset_dnodesize`)
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

impl Settings {
    /// Returns these with others in the place of some properties.
    fn with(self, temporary: Temporary) -> Settings {
        Settings {
            readonly: temporary.readonly.unwrap_or(self.readonly),
            atime: temporary.atime.unwrap_or(self.atime),
            relatime: temporary.relatime.unwrap_or(self.relatime),
            acltype: temporary.acltype.map_or(self.acltype, AclKind::number),
            ..self
        }
    }
}

/// Returns the record size, limited to what the pool supports, as a power of two.
fn record_size(dataset: &pool::Dataset, wanted: u64) -> u64 {
    let most = if dataset.pool().feature_enabled("large_blocks") { MAX_BLOCK } else { OLD_MAX_BLOCK };
    1 << wanted.clamp(512, most).ilog2()
}

/// Changes objects of `objset` that are not files, in a transaction of the open txg like [`Zfs::change`]: within the quotas of
/// the dataset. No lock and no other transaction of the pool may be held; within an operation on files, its own transaction serves.
///
/// # Errors
/// Those of `work`; if there is no space, or the pool is suspended.
pub fn change_objects<R>(
    spa: &Arc<Spa>,
    objset: &Arc<Objset>,
    bytes: u64,
    work: impl FnOnce(&Tx) -> Result<R, dmu::Error>,
) -> Result<R, Error> {
    let held = Held::begin(&Ask::of_set(spa, objset, bytes, false), None)?;
    Ok(work(&held)?)
}

impl Inner {
    /// Puts values in the place of properties. Returns `false` if there are some already.
    fn mounted(&self, temporary: Temporary) -> bool {
        let mut props = self.props.lock();
        if props.temporary.is_some() {
            return false;
        }
        props.temporary = Some(temporary);
        self.apply(&props);
        true
    }

    fn unmounted(&self) {
        let mut props = self.props.lock();
        props.temporary = None;
        self.apply(&props);
    }

    fn apply(&self, props: &Props) {
        let settings = props.of_dataset.with(props.temporary.unwrap_or_default());
        self.log.set_policy(settings.log_policy());
        self.atime.set(&settings);
        *self.settings.write() = Arc::new(settings);
    }
}

impl PropsWatch for Inner {
    /// Updates the settings. If the dataset cannot be read, the previous properties stay in effect.
    fn props_changed(&self) {
        let id = self.fs.objset().id();
        let read = || {
            let dataset = self.spa.view()?.dataset_by_id(id)?;
            self.stats.is_named(dataset.name());
            Settings::of(&dataset)
        };
        let mut props = self.props.lock();
        match read() {
            Ok(settings) => {
                props.of_dataset = settings;
                self.apply(&props);
            }
            Err(error) => tracing::warn!(target: "zuse::zpl", dataset = id.0, %error, "properties stay as they were"),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(zfs) = self.0.take() {
            zfs.0.unmounted();
        }
    }
}

impl Zfs {
    /// Opens the file system `name` for writing, and frees the files that had only open handles left before a crash. Where it is open already, this
    /// is another handle of the same: all that is written through one is seen through the other at once.
    ///
    /// # Errors
    /// If the dataset does not exist or is a snapshot, its key is not loaded, its version is below 5, or its master node is
    /// unreadable.
    pub fn open(spa: &Arc<Spa>, name: &str) -> Result<Zfs, Error> {
        let dataset = spa.view()?.dataset(name)?;
        let objset = spa.objset_to_replay(&dataset)?;
        Ok(Zfs(spa.open_shared(&objset, || Zfs::first(spa, &dataset, &objset))?, None))
    }

    /// Opens a file system that nobody has open.
    fn first(spa: &Arc<Spa>, dataset: &pool::Dataset, objset: &Arc<Objset>) -> Result<Arc<Inner>, Error> {
        let fs = FileSystem::from_objset(objset.clone(), false)?;
        if fs.version() < WRITTEN_VERSION {
            return Err(Error::Version { objset: objset.id(), version: fs.version() });
        }
        let master = Zap::open(objset.object(ObjectId::MASTER_NODE)?)?;
        let unlinked = master.lookup_id("DELETE_QUEUE")?;
        let unlinked = unlinked.ok_or(Error::Missing { object: ObjectId::MASTER_NODE, what: "DELETE_QUEUE" })?;
        let settings = Settings::of(dataset)?;
        let zfs = Zfs(
            Arc::new(Inner {
                spa: spa.clone(),
                atime: times::AtimePolicy::new(&settings),
                settings: RwLock::new(Arc::new(settings)),
                props: Mutex::new(Props { of_dataset: settings, temporary: None }),
                nodes: znode::Nodes::default(),
                unlinked: Zap::open(objset.object(unlinked)?)?,
                reap: Mutex::default(),
                batches: AtomicUsize::new(0),
                moving: Mutex::default(),
                projects: dataset.pool().feature_enabled("project_quota"),
                readers: readers::Readers::default(),
                fetcher: prefetch::Fetcher::default(),
                quotas: quota::Quotas::default(),
                log: log::Log::new(spa),
                stats: spa.count_dataset(objset.id(), dataset.name()),
                fs,
            }),
            None,
        );
        // no quota applies to operations that were already acknowledged
        let _replayed = zfs.replay(dataset.name())?;
        let source: std::sync::Weak<Inner> = Arc::downgrade(&zfs.0);
        spa.watch_props(source.clone());
        zfs.log().begin(spa.zil(objset), source, zfs.settings().log_policy());
        // properties may have been set during the replay, which may have taken long
        spa.tell_props(&*zfs.0);
        zfs.load_quotas()?;
        // files without a name that a mount has open are not freed
        spa.kept_objects(objset.id()).into_iter().for_each(|kept| zfs.expect_back(kept));
        if !zfs.settings().readonly {
            spa.upgrade_accounting(objset)?;
            zfs.drain();
        }
        Ok(zfs.0)
    }

    /// Returns the reading half, which sees all changes at once.
    #[must_use]
    pub fn fs(&self) -> &FileSystem {
        &self.0.fs
    }

    /// Takes the file system for a mount: until the token is dropped these values take the place of properties, for all handles.
    ///
    /// # Errors
    /// EBUSY if it is mounted already.
    pub fn mounted(&self, temporary: Temporary) -> Result<Mounted, Error> {
        if !self.0.mounted(temporary) {
            return Err(Refusal::Busy.of(self.fs().root()));
        }
        Ok(Mounted(Some(self.clone())))
    }

    /// Returns the pool.
    #[must_use]
    pub fn spa(&self) -> &Arc<Spa> {
        &self.0.spa
    }

    /// Returns the current properties.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.0.settings.read().clone()
    }

    /// True if files have projects.
    #[must_use]
    pub fn has_projects(&self) -> bool {
        self.0.projects
    }

    /// Returns the current time for stamping files.
    #[must_use]
    pub fn now(&self) -> Time {
        let now = self.0.spa.env().now();
        Time { sec: now.as_secs().cast_signed(), nsec: now.subsec_nanos() }
    }

    /// Runs one operation that dirties about `bytes` bytes, in a transaction of the open txg; through the handle of a [`Zfs::batch`] in the shared
    /// one. It may change all files. No lock and no other transaction of the pool may be held: operations within it are not possible. Unlinked
    /// files that are no longer held are freed afterwards; with `sync=always` the operation is in the log on return.
    ///
    /// # Errors
    /// Those of the operation; if there is no space, or the pool is suspended.
    pub fn change<R>(&self, bytes: u64, work: impl FnOnce(&Tx) -> Result<R, Error>) -> Result<R, Error> {
        let objset = self.fs().objset();
        let held = self.place(&Ask::of_set(self.spa(), objset, bytes, false))?;
        let done = work(&held);
        self.finish(held, done)
    }

    /// As [`Zfs::change`], for an operation that changes `objects`, those that it claims, and new ones. It begins again, before it has changed
    /// anything, if it cannot claim an object.
    pub(crate) fn change_some<R>(
        &self,
        bytes: u64,
        objects: &[ObjectId],
        work: impl FnMut(&Tx) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (held, done) = self.attempt(self.ask(bytes, objects), work)?;
        self.finish(held, done)
    }

    /// As [`Zfs::change_some`], for an operation that frees more than it allocates: it may use some of the reserved space.
    pub(crate) fn change_freeing<R>(
        &self,
        bytes: u64,
        objects: &[ObjectId],
        work: impl FnMut(&Tx) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (held, done) = self.attempt(Ask { netfree: true, ..self.ask(bytes, objects) }, work)?;
        self.finish(held, done)
    }

    /// As [`Zfs::change_some`], as part of an operation that waits for the log at its end.
    fn change_owing<R>(
        &self,
        ask: Ask<'_>,
        owed: &mut Owed,
        work: impl FnMut(&Tx) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (held, done) = self.attempt(ask, work)?;
        held.finish_owing(self.log(), owed);
        self.reap();
        done
    }

    fn ask(&self, bytes: u64, objects: &[ObjectId]) -> Ask<'_> {
        let objset = self.fs().objset();
        Ask { spa: self.spa(), objset, bytes, netfree: false, objects: TxObjects::of(objset.id(), objects) }
    }

    /// Runs an operation until it has claimed all objects that it needs.
    fn attempt<R>(
        &self,
        mut ask: Ask<'_>,
        mut work: impl FnMut(&Tx) -> Result<R, Error>,
    ) -> Result<(Held, Result<R, Error>), Error> {
        let mut attempts = 0;
        loop {
            let held = self.place(&ask)?;
            match work(&held) {
                Err(Error::Dmu(dmu::Error::InOtherTxg { objset, object, .. })) => {
                    // which objects it needs may change each time
                    let object = object.filter(|_| attempts < ATTEMPTS);
                    attempts += 1;
                    ask.objects.add(&object.map_or(TxObjects::of_set(objset), |id| TxObjects::of(objset, &[id])));
                }
                done => return Ok((held, done)),
            }
            drop(held);
            self.give_back();
        }
    }

    fn finish<R>(&self, held: Held, done: Result<R, Error>) -> Result<R, Error> {
        let logged = held.finish(self.log());
        self.reap();
        done.and_then(|done| logged.map(|()| done))
    }

    /// Runs many operations that share transactions: those through the handle that `work` is given. A power failure may separate any two of
    /// them, as without a batch; `sync=always` applies to all of them together. The thread must not change the file system through another
    /// handle, nor wait for a sync except through [`Zfs::fsync`] and [`Zfs::sync`]. A batch within another is a part of it.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn batch<R>(&self, work: impl FnOnce(&Zfs) -> Result<R, Error>) -> Result<R, Error> {
        if self.1.as_ref().is_some_and(|batch| !batch.is_over()) {
            return work(self);
        }
        let batch = Arc::new(Batch::default());
        let counted = self.count_batch();
        let done = work(&Zfs(self.0.clone(), Some(batch.clone())));
        let logged = batch.finish(self.log());
        drop(counted);
        self.reap();
        done.and_then(|done| logged.map(|()| done))
    }

    /// Runs several operations in one transaction: those through the handle that `work` is given, which dirty about `bytes` bytes. They reach the
    /// disk together or not at all. The thread must not change the pool in another way meanwhile.
    ///
    /// # Errors
    /// As [`Zfs::change`]. Within it, [`Zfs::fsync`] and [`Zfs::sync`] fail with EBUSY.
    pub fn together<R>(&self, bytes: u64, work: impl FnOnce(&Zfs, &Tx) -> Result<R, Error>) -> Result<R, Error> {
        let held = self.place(&Ask::of_set(self.spa(), self.fs().objset(), bytes, false))?;
        let zfs = self.within(held.tx());
        let done = work(&zfs, &held);
        if let Some(batch) = &zfs.1 {
            batch.end();
        }
        self.finish(held, done)
    }

    /// Returns a handle through which everything is a part of `tx`.
    fn within(&self, tx: &Arc<Tx>) -> Zfs {
        Zfs(self.0.clone(), Some(Batch::within(tx)))
    }

    /// Releases the transaction of a batch: the next operation assigns another. Returns `false` if all of it is one transaction.
    fn give_back(&self) -> bool {
        self.1.as_ref().is_none_or(|batch| batch.give_back())
    }

    fn place(&self, ask: &Ask<'_>) -> Result<Held, Error> {
        if self.0.settings.read().readonly {
            return Err(Refusal::ReadOnly.of(self.0.fs.root()));
        }
        Held::begin(ask, self.1.as_ref())
    }

    /// Assigns a transaction for freeing.
    fn place_to_free(&self, objects: &[ObjectId]) -> Result<Held, Error> {
        self.place(&Ask { netfree: true, ..self.ask(SMALL_CHANGE, objects) })
    }
}
