//! Long holds, which keep a dataset from being destroyed during a long read (OpenZFS: `dsl_dataset_long_hold`).
//!
//! A hold is in memory and ends with its holder; it is not one of the tags that users give ([`Spa::hold`]). A held head is owned: it cannot be opened
//! for writing, and must have no changes that are not on disk (OpenZFS: `dsl_dataset_own`). Processes that read the pool from its devices publish
//! their holds, and learn which heads are open here, through the hook [`HeldElsewhere`](crate::HeldElsewhere).
//!
//! A sync task that destroys a snapshot *dooms* it first: later attempts to hold it fail as if it were gone, which by the end of the task it is. A head
//! that a task is about to change or destroy is doomed in the same way, and is busy for as long as the task lasts.
//!
//! Taken by send and diff. Destroy, promote, rollback, release of the last tag and the end of a receive fail with EBUSY while one exists; a rename or a new
//! property does not disturb a reader.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{Guid, ObjectId, Txg};
use ondisk::ObjectType;
use ondisk::dsl::DslDatasetPhys;
use parking_lot::Mutex;

use crate::dsl::Refusal;
use crate::dsl::lookup::Live;
use crate::dsl::refused;
use crate::spa::Spa;
use crate::spa::mos::Mos;
use crate::{Dataset, Error};

/// The long holds on datasets of a pool, by their objects.
#[derive(Default)]
pub(in crate::dsl) struct LongHolds(Mutex<State>);

#[derive(Default)]
struct State {
    held: BTreeMap<ObjectId, usize>,
    doomed: BTreeSet<ObjectId>,
}

impl LongHolds {
    pub(in crate::dsl) fn is_held(&self, id: ObjectId) -> bool {
        self.0.lock().held.contains_key(&id)
    }

    pub(in crate::dsl) fn is_doomed(&self, id: ObjectId) -> bool {
        self.0.lock().doomed.contains(&id)
    }

    /// Takes a hold; `None` if the dataset is about to be destroyed or changed.
    fn hold(self: &Arc<Self>, id: ObjectId) -> Option<LongHold> {
        let mut state = self.0.lock();
        if state.doomed.contains(&id) {
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
        let mut state = holds.0.lock();
        if let Some(count) = state.held.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                state.held.remove(id);
            }
        }
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

/// What tells a snapshot from all others that the pool has had: objects are used again, one that is received again has the guid of the former, and a
/// promote gives it to another file system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SnapshotId {
    /// Its dataset object.
    pub object: ObjectId,
    /// Its guid, which a received one has from the one that was sent.
    pub guid: Guid,
    /// The txg of this pool in which it was created, or received.
    pub creation_txg: Txg,
    /// The directory that it is in.
    pub dir: ObjectId,
}

impl SnapshotId {
    fn of(object: ObjectId, phys: &DslDatasetPhys) -> SnapshotId {
        SnapshotId { object, guid: phys.guid, creation_txg: phys.creation_txg, dir: phys.dir_obj }
    }
}

impl Dataset {
    /// What tells the snapshot from all others; `None` for a head.
    #[must_use]
    pub fn snapshot_id(&self) -> Option<SnapshotId> {
        self.is_snapshot().then(|| SnapshotId::of(self.id(), self.phys()))
    }
}

impl Spa {
    /// Holds a snapshot, as [`Dataset::long_hold`], for those that keep no view of the pool.
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`] if it was destroyed, or is in another file system by now; an error if that cannot be read.
    pub fn long_hold_snapshot(&self, snapshot: &SnapshotId) -> Result<LongHold, Error> {
        let id = snapshot.object;
        let gone = || Error::no_dataset(&format!("snapshot {id}"));
        let hold = self.dsl.open_datasets.long_holds().hold(id).ok_or_else(gone)?;
        let object = match self.live_mos()?.object(id) {
            Err(error) if error.is_not_found() => return Err(gone()),
            object => object?,
        };
        // the object may be used for something else by now
        if object.phys().bonus_type != ObjectType::DSL_DATASET {
            return Err(gone());
        }
        let now = Mos::bonus(&object, DslDatasetPhys::decode)?;
        let is_it = now.is_snapshot() && SnapshotId::of(id, &now) == *snapshot;
        if is_it { Ok(hold) } else { Err(gone()) }
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
        if !dataset.is_snapshot() && changed() {
            return Err(refused(name, Refusal::Busy));
        }
        Ok(hold)
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
