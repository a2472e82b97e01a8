//! Those who have a dataset open, and are told of what happens to it: its properties change (OpenZFS: `dsl_prop_register`), or its contents are
//! replaced (OpenZFS: `zfs_suspend_fs`, `zfs_resume_fs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use base::ObjectId;
use parking_lot::Mutex;

use crate::Error;
use crate::spa::Spa;

/// A user of an open dataset that follows its properties.
pub trait PropsWatch: Send + Sync {
    /// Called when properties of some dataset have changed and the change is on disk, by the thread that made it, before its call returns.
    fn props_changed(&self);
}

/// An object of a head that its user keeps while he has let go of the head: it is not to be freed, even if nothing in the dataset names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptObject {
    /// The object number.
    pub id: ObjectId,
    /// What tells it from an earlier object with the same number.
    pub generation: u64,
}

/// Somebody who has a head open, and lets go of it while its contents are replaced: by a rollback, or at the end of a receive.
pub trait Suspend: Send + Sync {
    /// The dataset that is open.
    fn dataset(&self) -> ObjectId;

    /// The objects that are kept while the head is let go of, each as often as it is. Called by whoever opens the head meanwhile.
    fn kept(&self) -> Vec<KeptObject>;

    /// Called before the contents are replaced, by the thread that does it, with no lock and no transaction held: nothing of the dataset is in use on
    /// return, until [`Suspend::resume`], which follows in any case.
    fn suspend(&self);

    /// Called after the contents were replaced, or could not be: then they are what they were, and not `replaced`.
    fn resume(&self, replaced: bool);
}

/// The users of a head who have let go of it, until this is dropped.
pub(crate) struct Suspended {
    users: Vec<Arc<dyn Suspend>>,
    replaced: bool,
}

impl Suspended {
    /// Returns whether nobody had to let go.
    pub(crate) fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Notes how the task that replaces them has ended. One that fails has changed nothing, but in a pool that is suspended or closed it is not known whether
    /// it took place.
    pub(crate) fn ended<T>(&mut self, done: &Result<T, Error>) {
        self.replaced = matches!(done, Ok(_) | Err(Error::Suspended(_) | Error::Closed));
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        self.users.iter().for_each(|user| user.resume(self.replaced));
    }
}

/// The registered watchers.
#[derive(Default)]
pub(crate) struct Watches {
    all: Mutex<Vec<Weak<dyn PropsWatch>>>,
    /// Those who can let go of what they have open.
    suspend: Mutex<Vec<Weak<dyn Suspend>>>,
    /// Properties change in the txg that is synced.
    changing: AtomicBool,
    /// Properties have changed on disk, and the watchers are not told.
    changed: AtomicBool,
    /// Held while watchers are called, so that no change returns before all of them know of it, and none reads a value of before it after that.
    telling: Mutex<()>,
}

impl Spa {
    /// Registers `watch` for changes, as long as it lives.
    pub fn watch_props(&self, watch: Weak<dyn PropsWatch>) {
        let mut all = self.watches.all.lock();
        all.retain(|watch| watch.strong_count() > 0);
        all.push(watch);
    }

    /// Notes, while a txg is synced, that properties change in it.
    pub(crate) fn note_props_changed(&self) {
        self.watches.changing.store(true, Ordering::Release);
    }

    /// Notes that the txg is on disk, and that views are of it: not before, or whoever waits for an earlier one would tell the watchers, who would find
    /// what was there before.
    pub(crate) fn props_on_disk(&self) {
        if self.watches.changing.swap(false, Ordering::Acquire) {
            self.watches.changed.store(true, Ordering::Release);
        }
    }

    /// Notifies the watchers of changes that are on disk.
    pub(crate) fn tell_props_changed(&self) {
        // these may be the last references: they end without the lock
        let mut all: Vec<Arc<dyn PropsWatch>> = Vec::new();
        let _telling = self.watches.telling.lock();
        if self.watches.changed.swap(false, Ordering::Acquire) {
            all.extend(self.watches.all.lock().iter().filter_map(Weak::upgrade));
            all.iter().for_each(|watch| watch.props_changed());
        }
    }

    /// Calls `watch` once it is registered: properties may have changed since they were read for it.
    pub fn tell_props(&self, watch: &dyn PropsWatch) {
        let _telling = self.watches.telling.lock();
        watch.props_changed();
    }

    /// Registers `user` of a head, as long as it lives.
    pub fn suspend_with(&self, user: Weak<dyn Suspend>) {
        let mut all = self.watches.suspend.lock();
        all.retain(|user| user.strong_count() > 0);
        all.push(user);
    }

    /// Returns whether somebody is registered by [`Spa::suspend_with`]: a file system is mounted.
    #[must_use]
    pub fn has_users(&self) -> bool {
        self.watches.suspend.lock().iter().any(|user| user.strong_count() > 0)
    }

    /// Has the registered users of a head let go of it, until the guard is dropped.
    pub(crate) fn suspend_users(&self, dataset: ObjectId) -> Suspended {
        let all: Vec<Arc<dyn Suspend>> = self.watches.suspend.lock().iter().filter_map(Weak::upgrade).collect();
        // those that are let go of here may be the last references: the list is not locked
        let users: Vec<_> = all.into_iter().filter(|user| user.dataset() == dataset).collect();
        users.iter().for_each(|user| user.suspend());
        Suspended { users, replaced: true }
    }

    /// Returns the objects of a head that registered users keep while they have let go of it. No lock that these need may be held.
    #[must_use]
    pub fn kept_objects(&self, dataset: ObjectId) -> Vec<KeptObject> {
        let all: Vec<Arc<dyn Suspend>> = self.watches.suspend.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().filter(|user| user.dataset() == dataset).flat_map(|user| user.kept()).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::Refusal;
    use crate::testing::in_memory;

    /// Notes the txg of the last view that it was told to look at.
    struct Looks {
        spa: Arc<Spa>,
        seen: AtomicU64,
    }

    impl PropsWatch for Looks {
        fn props_changed(&self) {
            self.seen.store(self.spa.view().unwrap().uberblock().txg.0, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_waiter_of_an_earlier_txg_does_not_tell_of_a_change_that_is_not_on_disk() {
        let (spa, _disks) = in_memory("d0", 1);
        let looks = Arc::new(Looks { spa: spa.clone(), seen: AtomicU64::new(0) });
        let watch: Weak<Looks> = Arc::downgrade(&looks);
        spa.watch_props(watch);
        let changed = spa.sync_task(|cx| {
            cx.spa.note_props_changed();
            cx.mos.zap(ObjectId::POOL_DIRECTORY)?.add_u64(cx.tx, "changed", 1)?;
            // as somebody does whose txg is the one before
            cx.spa.tell_props_changed();
            Ok(cx.tx.txg())
        });
        assert!(looks.seen.load(Ordering::SeqCst) >= changed.unwrap().0);
        looks.seen.store(0, Ordering::SeqCst);
        spa.tell_props_changed();
        assert_eq!(looks.seen.load(Ordering::SeqCst), 0);
        spa.close().unwrap();
    }

    /// Notes whether the contents were replaced.
    #[derive(Default)]
    struct User(Mutex<Vec<bool>>);

    impl Suspend for User {
        fn dataset(&self) -> ObjectId {
            ObjectId(1)
        }

        fn kept(&self) -> Vec<KeptObject> {
            Vec::new()
        }

        fn suspend(&self) {}

        fn resume(&self, replaced: bool) {
            self.0.lock().push(replaced);
        }
    }

    #[test]
    fn a_task_that_failed_has_replaced_nothing() {
        let user = Arc::<User>::default();
        let refused = || Error::Refused { name: "t".to_owned(), why: Refusal::Busy };
        let ends = [
            Ok(()),
            Err(refused()),
            Err(Error::Features(Vec::new())),
            Err(Error::Bug("unknown".to_owned())),
            Err(Error::Suspended(Arc::new(refused()))),
            Err(Error::Closed),
        ];
        for end in ends {
            Suspended { users: vec![user.clone()], replaced: true }.ended(&end);
        }
        assert_eq!(*user.0.lock(), [true, false, false, false, true, true]);
    }
}
