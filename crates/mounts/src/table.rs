//! The table of mounts.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Guid, ObjectId};
use fuse::{Mount, Notifier, Unmount};
use parking_lot::Mutex;
use pool::{LongHold, Pool, Spa};
use zpl::live::{Contents, Ctldir, PoolSource, SnapshotAdmin, Still, Suspendable, Vfs};

use crate::{Error, Flag, How};

/// Up to so many mounts have as many threads as [`fuse::Options`] says; each of the others has [`FEW_THREADS`].
const MANY: usize = 32;
const FEW_THREADS: usize = 2;
/// How long a mount that somebody has unmounted may take to end before its file system is mounted again.
const END: Duration = Duration::from_secs(5);

/// An open pool.
#[derive(Clone)]
pub enum Source {
    /// Open for changes.
    Live(Arc<Spa>),
    /// Open for reading, with what a mount of it keeps until its end.
    Still(Arc<Pool>, Keep),
}

/// Returns what is kept as long as a file system of a pool that is open for reading is mounted: it says that the pool is in use.
pub type Keep = Arc<dyn Fn() -> Box<dyn Any + Send + Sync> + Send + Sync>;

impl Source {
    fn view(&self) -> Result<Arc<Pool>, Error> {
        match self {
            Source::Live(spa) => Ok(spa.view()?),
            Source::Still(pool, _) => Ok(pool.clone()),
        }
    }

    /// Returns the object of a dataset that is in this pool.
    fn id_of(&self, dataset: &str) -> Option<ObjectId> {
        Some(self.view().ok()?.dataset(dataset).ok()?.id())
    }

    fn guid(&self) -> Guid {
        match self {
            Source::Live(spa) => spa.guid(),
            Source::Still(pool, _) => pool.guid(),
        }
    }

    fn for_snapshots(&self) -> PoolSource {
        match self {
            Source::Live(spa) => PoolSource::Live(spa.clone()),
            Source::Still(pool, _) => PoolSource::Still(pool.clone()),
        }
    }
}

/// A mount.
pub struct Entry {
    source: Source,
    dataset: ObjectId,
    /// The name that it had last.
    name: Mutex<String>,
    how: Mutex<How>,
    mount: Mount,
    /// The file system, if it changes; the mount has it.
    live: Weak<Suspendable>,
    /// Keeps a snapshot from being destroyed.
    _held: Option<LongHold>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.name.lock(), self.path().display())
    }
}

impl Entry {
    /// Returns the full name of the dataset, as it is by now.
    #[must_use]
    pub fn name(&self) -> String {
        let now =
            self.source.view().ok().and_then(|view| Some(view.dataset_by_id(self.dataset).ok()?.name().to_owned()));
        let mut name = self.name.lock();
        if let Some(now) = now {
            *name = now;
        }
        name.clone()
    }

    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Returns the pool.
    #[must_use]
    pub fn pool(&self) -> Guid {
        self.source.guid()
    }

    /// Returns how it is mounted.
    #[must_use]
    pub fn how(&self) -> How {
        *self.how.lock()
    }

    fn is_there(&self) -> bool {
        !self.mount.has_ended()
    }
}

/// Returns who makes, destroys and renames snapshots of a pool for callers that do so below `.zfs`.
pub type Admins = Box<dyn Fn(&Arc<Spa>) -> Arc<dyn SnapshotAdmin> + Send + Sync>;

/// The table of mounts.
#[derive(Default)]
pub struct Mounts {
    entries: Mutex<Vec<Arc<Entry>>>,
    admins: Option<Admins>,
}

impl std::fmt::Debug for Mounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.entries.lock().iter()).finish()
    }
}

impl Mounts {
    /// Makes a table of mounts in which snapshots can be changed below `.zfs`.
    #[must_use]
    pub fn with_admins(admins: Admins) -> Mounts {
        Mounts { admins: Some(admins), ..Mounts::default() }
    }

    /// Returns all mounts, in the order in which they were made.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Entry>> {
        let mut entries = self.entries.lock();
        let (there, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut *entries).into_iter().partition(|one| one.is_there());
        *entries = there.clone();
        drop(entries);
        drop(gone);
        there
    }

    /// Returns whether nothing is mounted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list().is_empty()
    }

    /// Returns the mount of a dataset; of several the last one.
    #[must_use]
    pub fn of(&self, dataset: &str) -> Option<Arc<Entry>> {
        self.all_of(dataset).pop()
    }

    /// Returns the mounts of a dataset, which is looked up once in each pool: the names of all that is mounted would take as many lookups.
    fn all_of(&self, dataset: &str) -> Vec<Arc<Entry>> {
        let mut ids: Vec<(Guid, Option<ObjectId>)> = Vec::new();
        let mut is_it = |one: &Arc<Entry>| {
            let pool = one.pool();
            let found = ids.iter().find(|(other, _)| *other == pool).map(|(_, id)| *id);
            let id = found.unwrap_or_else(|| {
                let id = one.source.id_of(dataset);
                ids.push((pool, id));
                id
            });
            match id {
                Some(id) => id == one.dataset,
                // that was its name when it was last there
                None => {
                    let last = one.name.lock().clone();
                    last == dataset && one.name() == dataset
                }
            }
        };
        self.list().into_iter().filter(|one| is_it(one)).collect()
    }

    /// Returns the mounts of a dataset, of those below it and of their snapshots, in the order in which they can be unmounted: what is mounted inside of
    /// another before that.
    #[must_use]
    pub fn below(&self, dataset: &str) -> Vec<Arc<Entry>> {
        let is_below = |one: &Arc<Entry>| {
            one.name().strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        };
        inner_first(self.list().into_iter().filter(is_below).collect())
    }

    /// Returns the mounts of a pool, in the order of [`Mounts::below`].
    #[must_use]
    pub fn of_pool(&self, pool: Guid) -> Vec<Arc<Entry>> {
        inner_first(self.list().into_iter().filter(|one| one.pool() == pool).collect())
    }

    /// Returns the mount with this mount point; of several the last one.
    #[must_use]
    pub fn at(&self, path: &Path) -> Option<Arc<Entry>> {
        self.list().into_iter().rev().find(|one| one.path() == path)
    }

    /// Returns the mount that a path of the host is in.
    #[must_use]
    pub fn containing(&self, path: &Path) -> Option<Arc<Entry>> {
        let around = self.list().into_iter().filter(|one| path.starts_with(one.path()));
        around.max_by_key(|one| one.path().as_os_str().len())
    }

    /// Mounts a file system or snapshot.
    ///
    /// # Errors
    /// EBUSY if it is mounted already; as [`Mount::new`] and [`Suspendable::open`].
    pub fn mount(&self, source: &Source, name: &str, point: &Path, how: How) -> Result<(), Error> {
        let dataset = source.view()?.dataset(name)?;
        for former in self.list().iter().filter(|one| one.pool() == source.guid() && one.dataset == dataset.id()) {
            // one that is still used after all makes the file system busy
            let _ended = former.mount.wait_if_gone(END);
        }
        let mut options = how.fuse_options(name);
        if self.list().len() >= MANY {
            options.threads = FEW_THREADS;
        }
        let with_snapshots = |vfs: Arc<dyn Vfs>, admin| -> Arc<dyn Vfs> {
            Arc::new(Ctldir::new(vfs, source.for_snapshots(), dataset.id(), admin))
        };
        let follow = Arc::<Follow>::default();
        let entry = match source {
            Source::Live(spa) if !dataset.is_snapshot() => {
                let live = Arc::new(Suspendable::open(spa, name)?);
                // before the kernel can cache any of it
                follow.contents_of(&live);
                let admin = self.admins.as_ref().map(|admins| admins(spa));
                let mount = Mount::new(with_snapshots(live.clone(), admin), point, &options)?;
                live.set_temporary(how.engine_values());
                (mount, Arc::downgrade(&live), None)
            }
            _ => {
                let held = dataset.long_hold()?;
                options.read_only = true;
                let still: Arc<dyn Vfs> = match source {
                    Source::Live(spa) => Arc::new(Still::of_spa(spa, &dataset)?),
                    Source::Still(_, keep) => Arc::new(Still::open(&dataset)?.keeping(keep())),
                };
                let vfs = if dataset.is_snapshot() { still } else { with_snapshots(still, None) };
                (Mount::new(vfs, point, &options)?, Weak::new(), Some(held))
            }
        };
        let (mount, live, held) = entry;
        let mut how = how;
        if mount.is_by_helper() {
            how.bind_to_user();
        }
        let entry = Arc::new(Entry {
            source: source.clone(),
            dataset: dataset.id(),
            name: Mutex::new(name.to_owned()),
            how: Mutex::new(how),
            mount,
            live,
            _held: held,
        });
        follow.begin(&entry);
        self.entries.lock().push(entry);
        Ok(())
    }

    /// Unmounts.
    ///
    /// # Errors
    /// As [`Mount::unmount`].
    pub fn unmount(&self, entry: &Arc<Entry>, how: Unmount) -> Result<(), Error> {
        entry.mount.unmount(how)?;
        if !entry.is_there() {
            self.entries.lock().retain(|one| !Arc::ptr_eq(one, entry));
        }
        Ok(())
    }

    /// Unmounts everything, by force what is in use. Returns the first failure; the others are unmounted nevertheless.
    ///
    /// # Errors
    /// As [`Mount::unmount`].
    pub fn unmount_all(&self) -> Result<(), Error> {
        let mut done = Ok(());
        for entry in inner_first(self.list()) {
            let gone = self.unmount(&entry, Unmount::Idle).or_else(|_| self.unmount(&entry, Unmount::Forced));
            done = done.and(gone);
        }
        done
    }

    /// Gives a mount a new value of a property: it has effect at once, also over an option.
    ///
    /// # Errors
    /// As [`Mount::remount`].
    pub fn set(&self, entry: &Entry, flag: Flag, value: bool) -> Result<(), Error> {
        let mut how = entry.how();
        how.set_prop(flag, value);
        self.remount(entry, how)
    }

    /// Changes how a file system is mounted.
    ///
    /// # Errors
    /// As [`Mount::remount`].
    pub fn remount(&self, entry: &Entry, how: How) -> Result<(), Error> {
        let mut how = how;
        if entry.mount.is_by_helper() {
            how.bind_to_user();
        }
        let mut options = how.fuse_options(&entry.name());
        let live = entry.live.upgrade();
        // what does not change cannot be mounted otherwise
        options.read_only |= live.is_none();
        entry.mount.remount(&options)?;
        if let Some(live) = live {
            live.set_temporary(how.engine_values());
        }
        *entry.how.lock() = how;
        Ok(())
    }

    /// Tells the kernel that any file of a dataset may have changed behind its mounts.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn changed(&self, dataset: &str) -> Result<(), Error> {
        let mut done = Ok(());
        for entry in self.all_of(dataset) {
            done = done.and(entry.mount.notifier().all_changed().map_err(Error::from));
        }
        done
    }
}

/// Has the kernel told each time that the contents of a mount were replaced; a file system that is not there any more is unmounted. What happens before
/// the mount is there is told then.
#[derive(Default)]
struct Follow(Mutex<Stage>);

enum Stage {
    /// The mount is not there yet; what was to be told last.
    Before(Option<Contents>),
    Mounted(Notifier, Weak<Entry>),
}

impl Default for Stage {
    fn default() -> Stage {
        Stage::Before(None)
    }
}

impl Follow {
    fn contents_of(self: &Arc<Self>, live: &Suspendable) {
        let follow = self.clone();
        live.tell_contents(Some(Box::new(move |contents| follow.told(contents))));
    }

    /// The mount is there.
    fn begin(&self, entry: &Arc<Entry>) {
        let mounted = Stage::Mounted(entry.mount.notifier().clone(), Arc::downgrade(entry));
        let before = std::mem::replace(&mut *self.0.lock(), mounted);
        if let Stage::Before(Some(missed)) = before {
            self.told(missed);
        }
    }

    fn told(&self, contents: Contents) {
        let (notifier, entry) = match &mut *self.0.lock() {
            Stage::Before(missed) => {
                *missed = Some(contents);
                return;
            }
            Stage::Mounted(notifier, entry) => (notifier.clone(), entry.clone()),
        };
        // without the lock, as the kernel may wait for requests
        let told = match (contents, entry.upgrade()) {
            (Contents::Replaced, _) => {
                notifier.replaced();
                Ok(())
            }
            (Contents::Resumed, _) => notifier.all_changed(),
            (Contents::Lost, Some(entry)) => entry.mount.unmount(Unmount::Forced),
            (Contents::Lost, None) => Ok(()),
        };
        if let Err(error) = told {
            tracing::warn!(target: "zuse::fuse", %error, "a mount does not know of its new contents");
        }
    }
}

/// Orders mounts: what is inside of another first, of those at one mount point the last one.
fn inner_first(mut entries: Vec<Arc<Entry>>) -> Vec<Arc<Entry>> {
    // those made last, which can be on top of others, come first where the mount points are the same
    entries.reverse();
    entries.sort_by_cached_key(|one| std::cmp::Reverse(PathBuf::from(one.path())));
    entries
}
