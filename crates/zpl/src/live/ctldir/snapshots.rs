//! The snapshots below `.zfs/snapshot` that are open.
//!
//! A snapshot is opened when somebody looks into it, and closed when nobody has for a while ([`tunable::ZFS_EXPIRE_SNAPSHOT`]), or when many others
//! are open. It is held, so that it is not destroyed, only as long as a file of it is open or an operation is under way; between operations it can be
//! destroyed, and the next one finds it gone. No view of the pool is kept.
//!
//! The files of a snapshot are known by the number of its slot. It keeps that when it is closed. Slots are used again when all are taken, the one
//! that was unused for longest first, but none of a snapshot that somebody has open: a file that the kernel still knows by the number has the generation of the former snapshot.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::{Env, ObjectId, tunable};
use parking_lot::{Condvar, Mutex, MutexGuard};
use pool::{Dataset, LongHold, Pool, SnapshotId};

use super::PoolSource;
use crate::Error;
use crate::live::{AclKind, Refusal, Still};

/// The number of snapshots that stay open while nobody uses them.
pub(super) const OPEN_MAX: usize = 64;
/// The number of decoded files that each of them keeps.
const NODES_MAX: usize = 1 << 10;
/// The number of slots, which begin with 1.
const SLOTS_MAX: usize = u16::MAX as usize;
/// The shortest and the longest time between two looks for idle ones.
const LOOK_MIN: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(60);

/// A snapshot that is open.
pub(in crate::live) struct OpenSnapshot {
    pub(super) id: SnapshotId,
    pub(super) lease: Arc<Lease>,
    pub(super) still: Still,
    uses: Mutex<Uses>,
    env: Env,
    shared: Weak<Shared>,
}

/// The operations and open files that use a snapshot.
struct Uses {
    count: usize,
    /// There while it is used.
    hold: Option<LongHold>,
    last: Instant,
}

impl Uses {
    /// Counts one more use, if it is used.
    fn enter_held(&mut self) -> bool {
        let is_used = self.count > 0;
        self.count += usize::from(is_used);
        is_used
    }

    /// Counts the first use. Returns the hold of the former, which there is none of.
    fn enter_with(&mut self, hold: Option<LongHold>) -> Option<LongHold> {
        self.count = 1;
        std::mem::replace(&mut self.hold, hold)
    }
}

/// A snapshot in use, which is not destroyed until this is dropped.
pub(in crate::live) struct SnapshotInUse(Arc<OpenSnapshot>);

impl Deref for SnapshotInUse {
    type Target = OpenSnapshot;

    fn deref(&self) -> &OpenSnapshot {
        &self.0
    }
}

impl Drop for SnapshotInUse {
    fn drop(&mut self) {
        let mut uses = self.0.uses.lock();
        uses.count -= 1;
        uses.last = self.0.env.instant();
        if uses.count > 0 {
            return;
        }
        let hold = uses.hold.take();
        drop(uses);
        drop(hold);
        if let Some(shared) = self.0.shared.upgrade() {
            let closed = make_room(&mut shared.state.lock().open);
            drop(closed);
        }
    }
}

impl OpenSnapshot {
    /// Uses the snapshot, which is held if it was not used; an error if it is gone.
    fn enter(self: &Arc<Self>, source: &PoolSource) -> Result<SnapshotInUse, Error> {
        let is_held = self.uses.lock().enter_held();
        if !is_held {
            // may read from devices, so that nobody waits for it
            let hold = source.hold(&self.id)?;
            let mut uses = self.uses.lock();
            // who entered meanwhile holds it as well
            let surplus = if uses.enter_held() { hold } else { uses.enter_with(hold) };
            drop(uses);
            drop(surplus);
        }
        Ok(SnapshotInUse(self.clone()))
    }

    /// Returns since when it is not used; `None` if it is, or somebody is about to use it.
    fn idle_since(&self) -> Option<Instant> {
        let uses = self.uses.try_lock()?;
        (uses.count == 0).then_some(uses.last)
    }
}

impl PoolSource {
    pub(super) fn view(&self) -> Result<Arc<Pool>, Error> {
        match self {
            PoolSource::Live(spa) => Ok(spa.view()?),
            PoolSource::Still(pool) => Ok(pool.clone()),
        }
    }

    pub(super) fn env(&self) -> Env {
        match self {
            PoolSource::Live(spa) => spa.env().clone(),
            PoolSource::Still(_) => Env::system(),
        }
    }

    /// Holds a snapshot; nobody destroys one of a pool that is open for reading.
    pub(super) fn hold(&self, id: &SnapshotId) -> Result<Option<LongHold>, Error> {
        match self {
            PoolSource::Live(spa) => Ok(Some(spa.long_hold_snapshot(id)?)),
            PoolSource::Still(_) => Ok(None),
        }
    }

    fn open(&self, snapshot: &Dataset, acls: AclKind) -> Result<Still, Error> {
        let still = match self {
            PoolSource::Live(spa) => Still::of_spa(spa, snapshot)?,
            PoolSource::Still(_) => Still::open(snapshot)?,
        };
        still.shown_as(acls, NODES_MAX)
    }
}

/// The use of a slot by a snapshot that is open, also by more than one at a time: one that was closed while a file of it was open, and one that was
/// opened after it. No other snapshot gets the slot until this is dropped.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Lease {
    /// The number of the slot.
    pub(super) slot: u16,
}

/// The snapshots that have had slots, by slot number less 1.
#[derive(Default)]
struct Slots {
    all: Vec<Slot>,
    by_snapshot: HashMap<SnapshotId, u16>,
}

#[derive(Clone)]
struct Slot {
    id: SnapshotId,
    last: Instant,
    lease: Weak<Lease>,
}

impl Slots {
    /// Returns the slot of a snapshot: the one that it had, an unused one, or that of another which nobody has open. `None` if there is none.
    fn take(&mut self, id: SnapshotId, now: Instant, max: usize) -> Option<Arc<Lease>> {
        if let Some(slot) = self.by_snapshot.get(&id) {
            let known = self.all.get_mut(usize::from(*slot) - 1)?;
            let lease = known.lease.upgrade().unwrap_or_else(|| Arc::new(Lease { slot: *slot }));
            (known.last, known.lease) = (now, Arc::downgrade(&lease));
            return Some(lease);
        }
        let new = |at: usize| {
            let lease = Arc::new(Lease { slot: u16::try_from(at + 1).ok()? });
            Some((Slot { id, last: now, lease: Arc::downgrade(&lease) }, lease))
        };
        let lease = if self.all.len() < max {
            let (slot, lease) = new(self.all.len())?;
            self.all.push(slot);
            lease
        } else {
            let unused = self.all.iter().enumerate().filter(|(_, slot)| slot.lease.strong_count() == 0);
            let at = unused.min_by_key(|(_, slot)| slot.last)?.0;
            let (slot, lease) = new(at)?;
            let former = std::mem::replace(self.all.get_mut(at)?, slot);
            self.by_snapshot.remove(&former.id);
            lease
        };
        self.by_snapshot.insert(id, lease.slot);
        Some(lease)
    }

    fn get(&self, slot: u16) -> Option<SnapshotId> {
        Some(self.all.get(usize::from(slot).checked_sub(1)?)?.id)
    }
}

pub(super) struct State {
    pub(super) open: HashMap<ObjectId, Arc<OpenSnapshot>>,
    slots: Slots,
    acls: AclKind,
    /// A thread closes idle ones.
    is_watched: bool,
}

struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

/// The snapshots of a head.
pub(super) struct Snapshots {
    pub(super) source: PoolSource,
    head: ObjectId,
    env: Env,
    shared: Arc<Shared>,
}

impl Snapshots {
    pub(super) fn new(source: PoolSource, head: ObjectId, acls: AclKind) -> Snapshots {
        let state = State { open: HashMap::new(), slots: Slots::default(), acls, is_watched: false };
        let (env, shared) = (source.env(), Arc::new(Shared { state: Mutex::new(state), ended: Condvar::new() }));
        Snapshots { source, head, env, shared }
    }

    /// Returns the head as it is now, whatever its name.
    pub(super) fn head(&self) -> Result<Dataset, Error> {
        Ok(self.source.view()?.dataset_by_id(self.head)?)
    }

    /// Sets the lists that determine access, which are those of the mount.
    pub(super) fn set_acls(&self, acls: AclKind) {
        let mut state = self.shared.state.lock();
        let old = if state.acls == acls { HashMap::new() } else { std::mem::take(&mut state.open) };
        state.acls = acls;
        drop(state);
        drop(old);
    }

    /// Returns a snapshot of the head, by its dataset object.
    ///
    /// # Errors
    /// ESTALE if that is none, or none any more.
    pub(super) fn snapshot(&self, dataset: ObjectId) -> Result<Dataset, Error> {
        let stale = || Refusal::Stale.of(dataset);
        let found = self.source.view()?.dataset_by_id(dataset);
        let found = found.map_err(|error| if error.is_not_found() { stale() } else { error.into() })?;
        let is_ours = found.is_snapshot() && found.dir().id() == self.head()?.dir().id();
        if is_ours { Ok(found) } else { Err(stale()) }
    }

    /// Uses the snapshot in a dataset object.
    ///
    /// # Errors
    /// As [`Snapshots::snapshot`], and [`Still::open`].
    pub(super) fn by_dataset(&self, dataset: ObjectId) -> Result<SnapshotInUse, Error> {
        self.enter(dataset, None)
    }

    /// Uses the snapshot in a slot.
    ///
    /// # Errors
    /// As [`Snapshots::by_dataset`].
    pub(super) fn by_slot(&self, slot: u16) -> Result<SnapshotInUse, Error> {
        let found = self.shared.state.lock().slots.get(slot);
        let id = found.ok_or_else(|| Refusal::Stale.of(ObjectId(slot.into())))?;
        let entered = self.enter(id.object, Some(id))?;
        // another snapshot may have got the slot meanwhile
        if entered.lease.slot == slot { Ok(entered) } else { Err(Refusal::Stale.of(id.object)) }
    }

    fn enter(&self, dataset: ObjectId, wanted: Option<SnapshotId>) -> Result<SnapshotInUse, Error> {
        let is_wanted = |id: &SnapshotId| wanted.as_ref().is_none_or(|wanted| wanted == id);
        let known = self.shared.state.lock().open.get(&dataset).cloned();
        if let Some(known) = known.filter(|known| is_wanted(&known.id)) {
            match known.enter(&self.source) {
                Err(Error::Pool(error)) if error.is_not_found() => self.close(&known.id),
                entered => return entered,
            }
        }
        let found = self.snapshot(dataset)?;
        match found.snapshot_id().filter(is_wanted) {
            Some(id) => self.open(&found, id),
            None => Err(Refusal::Stale.of(dataset)),
        }
    }

    /// Opens a snapshot that is not open, unless somebody else does so meanwhile.
    fn open(&self, snapshot: &Dataset, id: SnapshotId) -> Result<SnapshotInUse, Error> {
        let dataset = id.object;
        let stale = |error: Error| match error {
            Error::Pool(error) if error.is_not_found() => Refusal::Stale.of(dataset),
            error => error,
        };
        let hold = self.source.hold(&id).map_err(stale)?;
        let acls = self.shared.state.lock().acls;
        let still = self.source.open(snapshot, acls)?;
        let now = self.env.instant();
        let mut state = self.shared.state.lock();
        if let Some(other) = state.open.get(&dataset).filter(|other| other.id == id).cloned() {
            drop(state);
            return other.enter(&self.source).map_err(stale);
        }
        let State { open, slots, .. } = &mut *state;
        let lease = slots.take(id, now, SLOTS_MAX).ok_or_else(|| Refusal::Busy.of(dataset))?;
        let uses = Mutex::new(Uses { count: 1, hold, last: now });
        let shared = Arc::downgrade(&self.shared);
        let opened = Arc::new(OpenSnapshot { id, lease, still, uses, env: self.env.clone(), shared });
        let former = open.insert(dataset, opened.clone());
        self.watch(&mut state);
        drop(state);
        drop(former);
        Ok(SnapshotInUse(opened))
    }

    #[cfg(test)]
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    /// Returns whether a snapshot is open.
    pub(super) fn is_open(&self, dataset: ObjectId) -> bool {
        self.shared.state.lock().open.contains_key(&dataset)
    }

    /// Forgets a snapshot that is open, though not another one in the same object; who uses it has it until then.
    pub(super) fn close(&self, id: &SnapshotId) {
        let mut state = self.shared.state.lock();
        let is_it = state.open.get(&id.object).is_some_and(|one| one.id == *id);
        let closed = if is_it { state.open.remove(&id.object) } else { None };
        drop(state);
        drop(closed);
    }

    /// Has a thread close snapshots that are idle, if there is none.
    fn watch(&self, state: &mut MutexGuard<'_, State>) {
        if state.is_watched || tunable::ZFS_EXPIRE_SNAPSHOT.get() == 0 {
            return;
        }
        let (shared, env) = (Arc::downgrade(&self.shared), self.env.clone());
        let begun = std::thread::Builder::new().name("zpl-expire".to_owned()).spawn(move || expire(&shared, &env));
        // without one they are closed when others are opened
        state.is_watched = begun.is_ok();
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        let open = std::mem::take(&mut self.shared.state.lock().open);
        self.shared.ended.notify_all();
        drop(open);
    }
}

/// Takes out those that are idle for longest, if there are many.
fn make_room(open: &mut HashMap<ObjectId, Arc<OpenSnapshot>>) -> Vec<Arc<OpenSnapshot>> {
    if open.len() <= OPEN_MAX {
        return Vec::new();
    }
    let mut idle: Vec<_> = open.iter().filter_map(|(dataset, one)| Some((one.idle_since()?, *dataset))).collect();
    idle.sort_unstable();
    let surplus = idle.len().saturating_sub(OPEN_MAX);
    idle.iter().take(surplus).filter_map(|(_, dataset)| open.remove(dataset)).collect()
}

/// Closes snapshots that were idle for long, until none is open.
fn expire(shared: &Weak<Shared>, env: &Env) {
    while let Some(shared) = shared.upgrade() {
        let idle_max = Duration::from_secs(tunable::ZFS_EXPIRE_SNAPSHOT.get());
        let mut state = shared.state.lock();
        let closed = take_idle(&mut state.open, env.instant(), idle_max);
        if state.open.is_empty() || idle_max.is_zero() {
            state.is_watched = false;
            drop(state);
            drop(closed);
            return;
        }
        MutexGuard::unlocked(&mut state, || drop(closed));
        // the end of the mount empties the table, also before this waits
        if !state.open.is_empty() {
            let _ = shared.ended.wait_for(&mut state, (idle_max / 4).clamp(LOOK_MIN, LOOK_MAX));
        }
    }
}

/// Takes out those that were idle for `idle_max` at least.
pub(super) fn take_idle(
    open: &mut HashMap<ObjectId, Arc<OpenSnapshot>>,
    now: Instant,
    idle_max: Duration,
) -> Vec<Arc<OpenSnapshot>> {
    if idle_max.is_zero() {
        return Vec::new();
    }
    let is_idle = |one: &Arc<OpenSnapshot>| {
        one.idle_since().is_some_and(|since| now.saturating_duration_since(since) >= idle_max)
    };
    let idle: Vec<ObjectId> = open.iter().filter(|(_, one)| is_idle(one)).map(|(dataset, _)| *dataset).collect();
    idle.iter().filter_map(|dataset| open.remove(dataset)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use base::{Guid, Txg};

    use super::*;

    fn snapshot(object: u64, guid: u64, txg: u64) -> SnapshotId {
        SnapshotId { object: ObjectId(object), guid: Guid(guid), creation_txg: Txg(txg), dir: ObjectId(2) }
    }

    #[test]
    fn a_slot_stays_with_its_snapshot_until_all_are_taken() {
        let (mut slots, begun) = (Slots::default(), Env::system().instant());
        let mut take = |id, n| slots.take(id, begun + Duration::from_secs(n), 3);
        let slot = |lease: &Option<Arc<Lease>>| lease.as_ref().map(|lease| lease.slot);
        let one = |n| snapshot(n, n, 1);
        assert_eq!([1, 2, 3].map(|n| slot(&take(one(n), n))), [Some(1), Some(2), Some(3)]);
        assert_eq!(slot(&take(one(1), 4)), Some(1));
        let second = take(one(2), 5);
        take(one(1), 6);
        take(one(3), 7);
        // received again into the same object; the slot that was unused for longest is somebody's
        let other = snapshot(1, 1, 2);
        assert_eq!((slot(&second), slot(&take(other, 8))), (Some(2), Some(1)));
        // opened again while a file of it is open, and closed before that
        drop(take(one(2), 1));
        let (third, fourth) = (take(one(4), 9), take(other, 10));
        assert_eq!((slot(&third), slot(&fourth), take(one(5), 11)), (Some(3), Some(1), None));
        drop(second);
        assert_eq!(slot(&take(one(5), 12)), Some(2));
        assert_eq!((slots.get(1), slots.get(2), slots.get(3)), (Some(other), Some(one(5)), Some(one(4))));
        assert_eq!((slots.get(0), slots.get(4), slots.by_snapshot.len()), (None, None, 3));
    }
}
