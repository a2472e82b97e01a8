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
//! keeps its hold): it is *suspended* from before the mount lets go until it has it again, and busy for all but the one who replaces it and the mount. One that
//! nobody has mounted is in nobody's way: whoever destroys or sends it takes his turn after the task, or before it.
//!
//! Taken by send and diff. Destroy, promote, rollback, release of the last tag and the end of a receive fail with EBUSY while one exists; a rename or a new
//! property does not disturb a reader. Mounts take holds as well, on snapshots that are looked into: these are short where no file is open, and may end a moment
//! after the file was closed, as the kernel tells of that later. So a destroy waits a little for those ([`Spa::await_mounts`]).

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::{Env, Guid, ObjectId, Txg};
use ondisk::ObjectType;
use ondisk::dsl::DslDatasetPhys;
use parking_lot::{Condvar, Mutex};

use crate::dsl::Refusal;
use crate::dsl::lookup::Live;
use crate::dsl::refused;
use crate::dsl::turns::ReplaceTurn;
use crate::spa::mos::Mos;
use crate::spa::{Spa, Suspended};
use crate::{Dataset, Error};

/// How long a destroy waits for mounts.
const MOUNTS_WAIT: Duration = Duration::from_secs(1);

/// The long holds on datasets of a pool, by their objects.
#[derive(Default)]
pub(in crate::dsl) struct LongHolds {
    state: Mutex<State>,
    /// A dataset is not held any more.
    released: Condvar,
}

#[derive(Default)]
struct State {
    held: BTreeMap<ObjectId, Held>,
    doomed: BTreeSet<ObjectId>,
    /// Heads that are suspended, and how often.
    suspended: BTreeMap<ObjectId, usize>,
}

/// The holds on a dataset.
#[derive(Clone, Copy, Default)]
struct Held {
    all: usize,
    /// Those of mounts among them.
    mounts: usize,
}

impl State {
    /// Returns whether any of these is held, and all those are by mounts alone.
    fn only_mounts_hold(&self, ids: &[ObjectId]) -> bool {
        let mut held = ids.iter().filter_map(|id| self.held.get(id)).peekable();
        held.peek().is_some() && held.all(|held| held.all == held.mounts)
    }
}

impl LongHolds {
    pub(in crate::dsl) fn is_held(&self, id: ObjectId) -> bool {
        self.state.lock().held.contains_key(&id)
    }

    pub(in crate::dsl) fn is_doomed(&self, id: ObjectId) -> bool {
        self.state.lock().doomed.contains(&id)
    }

    /// Returns whether the mount of a head has let go of it, or is about to. Whoever asks looks first whether it is in use: it is, until it is suspended.
    pub(in crate::dsl) fn is_suspended(&self, id: ObjectId) -> bool {
        self.state.lock().suspended.contains_key(&id)
    }

    /// Takes a hold; `None` if the dataset is about to be destroyed or changed.
    fn hold(self: &Arc<Self>, id: ObjectId, by_mount: bool) -> Option<LongHold> {
        let mut state = self.state.lock();
        if state.doomed.contains(&id) || state.suspended.contains_key(&id) {
            return None;
        }
        let held = state.held.entry(id).or_default();
        held.all += 1;
        held.mounts += usize::from(by_mount);
        Some(LongHold(Some(Holding { holds: self.clone(), id, by_mount })))
    }

    /// Waits while mounts alone hold any of these, for `longest` at most.
    fn await_mounts(&self, ids: &[ObjectId], longest: Duration, env: &Env) {
        let begun = env.instant();
        let mut state = self.state.lock();
        while state.only_mounts_hold(ids) {
            let left = longest.saturating_sub(env.instant().saturating_duration_since(begun));
            if self.released.wait_for(&mut state, left).timed_out() {
                return;
            }
        }
    }

    /// Refuses new holds on the dataset from now on. `false` if it is held.
    pub(in crate::dsl) fn doom(&self, id: ObjectId) -> bool {
        let mut state = self.state.lock();
        let free = !state.held.contains_key(&id);
        if free {
            state.doomed.insert(id);
        }
        free
    }

    /// Ends all dooms. Returns whether there were any.
    pub(in crate::dsl) fn settle(&self) -> bool {
        !std::mem::take(&mut self.state.lock().doomed).is_empty()
    }
}

/// A hold on a dataset for a long read; released when dropped.
#[must_use]
pub struct LongHold(Option<Holding>);

struct Holding {
    holds: Arc<LongHolds>,
    id: ObjectId,
    by_mount: bool,
}

impl Drop for LongHold {
    fn drop(&mut self) {
        let Some(Holding { holds, id, by_mount }) = &self.0 else { return };
        let mut state = holds.state.lock();
        if let Some(held) = state.held.get_mut(id) {
            held.all -= 1;
            held.mounts -= usize::from(*by_mount);
            if held.all == 0 {
                state.held.remove(id);
                holds.released.notify_all();
            }
        }
    }
}

/// A head whose contents are replaced: its users have let go of it, and have it again when this is dropped.
pub(in crate::dsl) struct Replaced {
    // before the users come back, who may be many: others can open it beside them
    _turn: ReplaceTurn,
    // before the mark
    users: Suspended,
    /// `None` if it has no users.
    _mark: Option<Mark>,
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
        *holds.state.lock().suspended.entry(id).or_default() += 1;
        Mark(holds.clone(), id)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if let Some(count) = state.suspended.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                state.suspended.remove(&self.1);
            }
        }
    }
}

impl std::fmt::Debug for LongHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "long hold on {:?}", self.0.as_ref().map(|holding| holding.id))
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
    /// Holds a snapshot for a mount, which keeps no view of the pool; as [`Dataset::long_hold`].
    ///
    /// # Errors
    /// [`Error::NoSuchDataset`] if it was destroyed, or is in another file system by now; an error if that cannot be read.
    pub fn long_hold_snapshot(&self, snapshot: &SnapshotId) -> Result<LongHold, Error> {
        let id = snapshot.object;
        let gone = || Error::no_dataset(&format!("snapshot {id}"));
        let hold = self.dsl.open_datasets.long_holds().hold(id, true).ok_or_else(gone)?;
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
        let hold = self.dsl.open_datasets.long_holds().hold(id, false).ok_or_else(|| match dataset.is_snapshot() {
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

    /// Waits for mounts of this process that alone hold any of these snapshots, for about a second. Whoever destroys them finds out the rest.
    pub(in crate::dsl) fn await_mounts(&self, names: &[String]) {
        let holds = self.dsl.open_datasets.long_holds();
        if holds.state.lock().held.values().all(|held| held.mounts == 0) {
            return;
        }
        let Ok(mos) = self.live_mos() else { return };
        let found = names.iter().filter(|name| name.contains('@')).filter_map(|name| self.find(&mos, name).ok());
        let ids: Vec<ObjectId> = found.map(|found| found.id).collect();
        holds.await_mounts(&ids, MOUNTS_WAIT, self.env());
    }

    /// Has the users of a head let go of it, for a task that replaces its contents, until the result is dropped; until then nobody else mounts it.
    pub(in crate::dsl) fn suspend_head(&self, id: ObjectId) -> Replaced {
        let turn = self.dsl.open_datasets.turns().replace(id);
        let mark = Mark::new(self.dsl.open_datasets.long_holds(), id);
        let users = self.suspend_users(id);
        // what nobody comes back to is free for who waits for the task
        let mark = (!users.is_empty()).then_some(mark);
        Replaced { _turn: turn, users, _mark: mark }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn who_destroys_waits_for_mounts_alone() {
        let (holds, env, ids) = (Arc::<LongHolds>::default(), Env::system(), [ObjectId(1), ObjectId(2)]);
        let wait = |longest| holds.await_mounts(&ids, longest, &env);
        let long = Duration::from_secs(1 << 20);
        // nothing is held, or something by others as well: it is known how that ends
        wait(long);
        let (mount, send) = (holds.hold(ids[0], true).unwrap(), holds.hold(ids[0], false).unwrap());
        wait(long);
        drop(send);
        let (other, send) = (holds.hold(ids[1], false), holds.hold(ObjectId(3), false));
        wait(long);
        drop(other);
        assert!(holds.state.lock().only_mounts_hold(&ids) && !holds.doom(ids[0]));
        wait(Duration::from_millis(1));
        // one more, which ends first
        let second = holds.hold(ids[0], true);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait(long));
            drop(second);
            drop(mount);
            waiter.join().unwrap();
        });
        assert!(holds.doom(ids[0]) && holds.is_held(ObjectId(3)));
        drop(send);
        assert!(holds.state.lock().held.is_empty());
    }
}
