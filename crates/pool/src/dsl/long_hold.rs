//! Long holds, which keep a dataset from being destroyed during a long read (OpenZFS: `dsl_dataset_long_hold`).
//!
//! A hold is in memory and ends with its holder; it is not one of the tags that users give ([`Spa::hold`]). A held head is owned: it cannot be opened
//! for writing, and must have no changes that are not on disk (OpenZFS: `dsl_dataset_own`). Processes that read the pool from its devices publish
//! their holds, and learn which heads are open here, through the hook [`HeldElsewhere`](crate::HeldElsewhere).
//!
//! A sync task that destroys a snapshot *dooms* it first: later attempts to hold it fail as if it were gone, which by the end of the task it is. A head
//! that a task is about to change or destroy is doomed in the same way, and is busy for as long as the task lasts.
//!
//! A head whose contents are replaced while a file system is mounted is owned by that also while the mount has let go of it (OpenZFS: `zfs_suspend_fs`
//! keeps its hold): it is *suspended* from before the mount lets go until it has it again, and busy for all but the one who replaces it and the mount.
//!
//! Taken by send and diff. Destroy, promote, rollback, release of the last tag and the end of a receive fail with EBUSY while one exists; a rename or a new
//! property does not disturb a reader.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{Guid, ObjectId};
use parking_lot::Mutex;

use crate::dsl::Refusal;
use crate::dsl::lookup::Live;
use crate::dsl::refused;
use crate::spa::{Spa, Suspended};
use crate::{Dataset, Error};

/// The long holds on datasets of a pool, by their objects.
#[derive(Default)]
pub(in crate::dsl) struct LongHolds(Mutex<State>);

#[derive(Default)]
struct State {
    held: BTreeMap<ObjectId, usize>,
    doomed: BTreeSet<ObjectId>,
    /// Heads that are suspended, and how often.
    suspended: BTreeMap<ObjectId, usize>,
}

impl State {
    /// Ends one of those that are counted.
    fn end(counts: &mut BTreeMap<ObjectId, usize>, id: ObjectId) {
        if let Some(count) = counts.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&id);
            }
        }
    }
}

impl LongHolds {
    pub(in crate::dsl) fn is_held(&self, id: ObjectId) -> bool {
        self.0.lock().held.contains_key(&id)
    }

    pub(in crate::dsl) fn is_doomed(&self, id: ObjectId) -> bool {
        self.0.lock().doomed.contains(&id)
    }

    /// Returns whether the mount of a head has let go of it, or is about to. Whoever asks looks first whether it is in use: it is, until it is suspended.
    pub(in crate::dsl) fn is_suspended(&self, id: ObjectId) -> bool {
        self.0.lock().suspended.contains_key(&id)
    }

    /// Takes a hold; `None` if the dataset is about to be destroyed or changed.
    fn hold(self: &Arc<Self>, id: ObjectId) -> Option<LongHold> {
        let mut state = self.0.lock();
        if state.doomed.contains(&id) || state.suspended.contains_key(&id) {
            return None;
        }
        *state.held.entry(id).or_default() += 1;
        Some(LongHold(Some((self.clone(), id))))
    }

    /// Refuses new holds on the dataset from now on. `false` if it is held.
    pub(in crate::dsl) fn doom(&self, id: ObjectId) -> bool {
        let mut state = self.0.lock();
        let free = !state.held.contains_key(&id);
        if free {
            state.doomed.insert(id);
        }
        free
    }

    /// Ends all dooms. Returns whether there were any.
    pub(in crate::dsl) fn settle(&self) -> bool {
        !std::mem::take(&mut self.0.lock().doomed).is_empty()
    }
}

/// A hold on a dataset for a long read; released when dropped.
#[must_use]
pub struct LongHold(Option<(Arc<LongHolds>, ObjectId)>);

impl Drop for LongHold {
    fn drop(&mut self) {
        let Some((holds, id)) = &self.0 else { return };
        State::end(&mut holds.0.lock().held, *id);
    }
}

/// A head whose contents are replaced: its users have let go of it, and have it again when this is dropped.
pub(in crate::dsl) struct Replaced {
    // before the mark
    users: Suspended,
    _mark: Mark,
}

impl Replaced {
    /// Notes how the task that replaces them has ended.
    pub(in crate::dsl) fn ended<T>(&mut self, done: &Result<T, Error>) {
        self.users.ended(done);
    }
}

/// Marks a head as suspended.
struct Mark(Arc<LongHolds>, ObjectId);

impl Mark {
    fn new(holds: &Arc<LongHolds>, id: ObjectId) -> Mark {
        *holds.0.lock().suspended.entry(id).or_default() += 1;
        Mark(holds.clone(), id)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        State::end(&mut self.0.0.lock().suspended, self.1);
    }
}

impl std::fmt::Debug for LongHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "long hold on {:?}", self.0.as_ref().map(|(_, id)| *id))
    }
}

impl Dataset {
    /// Holds the dataset for the length of a read: see [`LongHold`]. This process destroys nothing in a pool that is open for reading only, and the
    /// hold is then empty.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`] if it was destroyed since it was looked up; [`Refusal::Busy`] for a head that is open, or has changed since.
    pub fn long_hold(&self) -> Result<LongHold, Error> {
        self.pool().spa.upgrade().map_or(Ok(LongHold(None)), |spa| spa.long_hold(self))
    }
}

impl Spa {
    /// Holds the snapshot in object `id`, as [`Dataset::long_hold`], for those that keep no view of the pool.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`] if that is not the snapshot with this guid any more.
    pub fn long_hold_snapshot(&self, id: ObjectId, guid: Guid) -> Result<LongHold, Error> {
        let gone = || Error::no_dataset(&format!("snapshot {id}"));
        let hold = self.dsl.open_datasets.long_holds().hold(id).ok_or_else(gone)?;
        let now = self.live_mos()?.dataset_phys(id).map_err(|_| gone())?;
        if now.guid == guid && now.is_snapshot() { Ok(hold) } else { Err(gone()) }
    }

    fn long_hold(&self, dataset: &Dataset) -> Result<LongHold, Error> {
        let (id, name) = (dataset.id(), dataset.name());
        let hold = self.dsl.open_datasets.long_holds().hold(id).ok_or_else(|| match dataset.is_snapshot() {
            true => Error::no_dataset(name),
            false => refused(name, Refusal::Busy),
        })?;
        let now = self.live_mos()?.dataset_phys(id).map_err(|_| Error::no_dataset(name))?;
        if now.guid != dataset.guid() || now.is_snapshot() != dataset.is_snapshot() {
            return Err(Error::no_dataset(name));
        }
        let changed = || self.dsl.open_datasets.is_open_or_dirty(id) || now.bp != dataset.phys().bp;
        if !dataset.is_snapshot() && (changed() || self.dsl.open_datasets.long_holds().is_suspended(id)) {
            return Err(refused(name, Refusal::Busy));
        }
        Ok(hold)
    }

    /// Has the users of a head let go of it, for a task that replaces its contents, until the result is dropped.
    pub(in crate::dsl) fn suspend_head(&self, id: ObjectId) -> Replaced {
        let mark = Mark::new(self.dsl.open_datasets.long_holds(), id);
        Replaced { users: self.suspend_users(id), _mark: mark }
    }

    /// Returns whether this process or another holds the dataset.
    pub(in crate::dsl) fn is_long_held(&self, dataset: &Live) -> bool {
        self.dsl.open_datasets.long_holds().is_held(dataset.id) || self.is_held_elsewhere(dataset.id)
    }

    pub(in crate::dsl) fn is_held_elsewhere(&self, id: ObjectId) -> bool {
        self.held_elsewhere().is_some_and(|others| others.is_held(self.guid(), id))
    }

    /// Dooms a snapshot, in a sync task; `false` if it is held.
    pub(in crate::dsl) fn doom(&self, snap: &Live) -> bool {
        !self.is_held_elsewhere(snap.id) && self.dsl.open_datasets.long_holds().doom(snap.id)
    }

    /// Keeps other processes from taking holds until the guard is dropped.
    pub(in crate::dsl) fn freeze_holds(&self) -> Option<Box<dyn Any>> {
        self.held_elsewhere().map(|others| others.freeze(self.guid()))
    }
}
