//! A pool that cannot be read or written because too few of its devices are there (OpenZFS: `zio_suspend`, `zio_resume`, the property `failmode`).
//!
//! I/O that the sync of a txg needs waits where it failed, with its bytes and addresses, and goes to the devices again when the pool is
//! [cleared](Spa::clear): the same txg goes on and is committed. The property says what becomes of everybody else:
//!
//! * `wait`: readers, writers and those who wait for a txg or an fsync wait as well;
//! * `continue`: they get an error; what can be read is read;
//! * `panic`: the process ends before anything more is written.
//!
//! I/O that fails is tried once more before the pool is suspended: devices may have come back since it began.
//!
//! # Blocks that were written before
//! Devices that go may lose what they had not flushed yet. If that is more than redundancy covers, the blocks of the txg are read back and checked before
//! it is committed. If some are lost, the txg is given up: nothing of it was acknowledged, and the pool opens with the one before.
//!
//! # Other processes
//! A pool that is suspended tells a [`SuspendWatch`], and asks it whether somebody wants the pool to be cleared.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Guid, ObjectId};
use dmu::Objset;
use ondisk::Uberblock;
use parking_lot::{Condvar, Mutex, MutexGuard};
use vdev::{Health, VdevState};

use crate::spa::mos::Mos;
use crate::spa::open::{self, LoadPolicy};
use crate::spa::{Spa, Txgs};
use crate::{Error, OpenOptions};

/// How often a suspended pool asks whether it shall be cleared.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// The property `failmode`: what becomes of a pool that cannot be written. Its value is the number that is stored (OpenZFS: `ZIO_FAILURE_MODE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailMode {
    /// Everything waits.
    Wait = 0,
    /// Everything but the txg that is being synced gets an error.
    Continue = 1,
    /// The process ends.
    Panic = 2,
}

impl FailMode {
    fn of(value: u64) -> FailMode {
        match value {
            1 => FailMode::Continue,
            2 => FailMode::Panic,
            _ => FailMode::Wait,
        }
    }
}

/// A pool that is suspended.
#[derive(Clone, Debug)]
pub struct SuspendedPool {
    /// Its identity.
    pub guid: Guid,
    /// Its name.
    pub name: String,
    /// The fate of its users until then.
    pub failmode: FailMode,
    /// The failure that suspended it, in words.
    pub cause: String,
    /// How often it was suspended since it was opened.
    pub count: u64,
    /// Its vdevs.
    pub vdevs: Vec<SuspendedVdev>,
}

/// A vdev of a pool that is suspended.
#[derive(Clone, Debug)]
pub struct SuspendedVdev {
    /// Its identity.
    pub guid: Guid,
    /// Its name, for a leaf its path; it cannot be read from the devices just now.
    pub name: String,
    /// Its state.
    pub health: Health,
}

/// The world outside of the process, as a suspended pool sees it.
pub trait SuspendWatch: Send + Sync {
    /// Called when a pool is suspended, or is again after it was cleared in vain.
    fn suspended(&self, pool: &SuspendedPool);

    /// Returns whether somebody has asked, since this was called last, for a suspended pool to be cleared: one device, or all.
    fn clear_wanted(&self, pool: Guid) -> Option<Option<Guid>>;

    /// Called when the errors of these vdevs of a pool, or of all, are cleared: before their devices are tried again.
    fn cleared(&self, pool: Guid, vdevs: Option<&[Guid]>);

    /// Called when a pool goes on.
    fn resumed(&self, pool: Guid);
}

#[derive(Default)]
struct State {
    /// The failure that suspended the pool.
    cause: Option<Arc<Error>>,
    /// How often it was suspended, and how often it went on.
    count: u64,
    resumes: u64,
    /// Nothing waits any more: the pool is being closed.
    given_up: bool,
    /// A thread is asking the watch.
    asking: bool,
}

/// Whether a pool is suspended, and the threads that wait for it to go on.
#[derive(Default)]
pub(crate) struct Suspension {
    state: Mutex<State>,
    changed: Condvar,
    failmode: AtomicU64,
}

impl Suspension {
    /// Sets the property `failmode`.
    pub(crate) fn set_failmode(&self, value: u64) {
        self.failmode.store(value, Ordering::Relaxed);
    }

    pub(crate) fn failmode(&self) -> FailMode {
        FailMode::of(self.failmode.load(Ordering::Relaxed))
    }

    /// Lets everything that waits fail, and nothing wait from now on.
    pub(crate) fn give_up(&self) {
        self.state.lock().given_up = true;
        self.changed.notify_all();
    }

    /// Lets everything go on that waits, for I/O or for a txg. Returns whether the pool was suspended.
    fn resume(&self, txgs: &Txgs) -> bool {
        let mut state = self.state.lock();
        state.resumes += 1;
        txgs.resume();
        self.changed.notify_all();
        state.cause.take().is_some()
    }
}

/// The pool, for its I/O. (The pool leads to that: so the reference is weak.)
pub(crate) struct OfPool(pub(crate) Weak<Spa>);

impl zio::Suspend for OfPool {
    fn suspend(&self, error: &zio::Error, syncing: bool, seen: &mut Option<u64>) -> bool {
        self.0.upgrade().is_some_and(|spa| spa.suspend(error.to_string(), syncing, seen))
    }
}

impl Spa {
    /// The failure that suspended the pool, if it is suspended.
    #[must_use]
    pub fn suspended(&self) -> Option<Arc<Error>> {
        self.suspension.state.lock().cause.clone()
    }

    /// Its property `failmode`.
    #[must_use]
    pub fn failmode(&self) -> FailMode {
        self.suspension.failmode()
    }

    /// Gives a suspended pool up: everything that waits gets an error, and nothing more is committed. What was acknowledged is there when the pool is
    /// opened again.
    pub fn abandon(&self) {
        self.suspension.give_up();
        let cause = self.suspended().unwrap_or_else(|| Arc::new(Error::IoFailure("the pool was given up".to_owned())));
        self.txgs.fail(cause);
    }

    /// Deals with I/O that failed because devices are gone. Returns `true` if it is to be tried again, `false` if it has failed for good. `seen`
    /// is the caller's note of when it tried.
    pub(crate) fn suspend(&self, what: String, syncing: bool, seen: &mut Option<u64>) -> bool {
        let failmode = self.suspension.failmode();
        if self.hooks.never_suspends || (failmode == FailMode::Continue && !syncing) {
            return false;
        }
        let mut state = self.suspension.state.lock();
        if state.given_up {
            return false;
        }
        if state.cause.is_none() {
            if seen.replace(state.resumes) != Some(state.resumes) {
                return true;
            }
            if failmode == FailMode::Panic {
                drop(state);
                self.panic(&what);
                return false;
            }
            tracing::warn!(target: "zuse::suspend", pool = %self.name, cause = what, "suspended");
            let cause = Arc::new(Error::IoFailure(what));
            state.cause = Some(cause.clone());
            state.count += 1;
            let count = state.count;
            self.txgs.suspend(&cause, failmode == FailMode::Wait);
            MutexGuard::unlocked(&mut state, || {
                self.tell_states();
                self.tell_suspended(&cause, count);
            });
        }
        self.wait_resumed(state, seen)
    }

    fn panic(&self, what: &str) {
        let name = &self.name;
        (self.hooks.panic)(&format!(
            "Pool '{name}' has encountered an uncorrectable I/O failure and the failure mode property for this pool is set to panic: {what}"
        ));
        // nothing is committed where the process does not end
        self.abandon();
    }

    fn tell_suspended(&self, cause: &Error, count: u64) {
        let Some(watch) = &self.hooks.suspend_watch else { return };
        let status = self.tree().status();
        let vdevs = status.walk().map(|vdev| SuspendedVdev {
            guid: vdev.guid,
            name: vdev.name.clone(),
            health: Health { state: vdev.state, aux: vdev.aux },
        });
        let vdevs = vdevs.collect();
        let (name, failmode) = (self.name.clone(), self.suspension.failmode());
        watch.suspended(&SuspendedPool { guid: self.guid, name, failmode, cause: cause.to_string(), count, vdevs });
    }

    /// Waits until the pool goes on, or is given up. One of those who wait asks whether somebody wants it cleared.
    fn wait_resumed(&self, mut state: MutexGuard<'_, State>, seen: &mut Option<u64>) -> bool {
        let before = state.resumes;
        while state.cause.is_some() && state.resumes == before && !state.given_up {
            let watch = self.hooks.suspend_watch.as_ref().filter(|_| !state.asking);
            if let Some(watch) = watch {
                state.asking = true;
                MutexGuard::unlocked(&mut state, || {
                    if let Some(device) = watch.clear_wanted(self.guid) {
                        self.recover(device);
                    }
                });
                state.asking = false;
                if state.resumes != before {
                    break;
                }
            }
            // a pool that another machine has taken never goes on
            if self.txgs.failed().is_some() {
                return false;
            }
            self.suspension.changed.wait_for(&mut state, ASK_EVERY);
        }
        *seen = Some(state.resumes);
        !state.given_up && self.txgs.failed().is_none()
    }

    /// Clears the errors of a device, or of all: puts to use what was given up or is back. A suspended pool goes on.
    ///
    /// # Errors
    /// [`Error::Suspended`] if it is suspended again.
    pub fn clear(self: &Arc<Self>, device: Option<Guid>) -> Result<(), Error> {
        if !self.recover(device) {
            return self.record_cleared(device);
        }
        // what waited is under way again: with its txg, or not at all
        let waited = self.txgs.wait_synced_or_suspended(self.txgs.open());
        match waited.and_then(|()| self.record_cleared(device)) {
            // what waited was the end of the pool, which is closed now
            Err(Error::Suspended(cause)) if matches!(*cause, Error::Closed) => Ok(()),
            Err(Error::Closed) => Ok(()),
            cleared => cleared,
        }
    }

    /// Puts devices to use again. Returns whether the pool was suspended, and goes on.
    fn recover(&self, device: Option<Guid>) -> bool {
        let tree = self.tree();
        let below: Option<Vec<Guid>> = device.map(|device| {
            let vdev = tree.config().walk().find(|vdev| vdev.guid == device);
            vdev.into_iter().flat_map(|vdev| vdev.walk()).map(|vdev| vdev.guid).collect()
        });
        if let Some(watch) = &self.hooks.suspend_watch {
            watch.cleared(self.guid, below.as_deref());
        }
        let wanted = |leaf: &vdev::Leaf| below.as_ref().is_none_or(|below| below.contains(&leaf.guid()));
        let (mut any, mut cleared) = (false, Vec::new());
        for leaf in tree.leaves().iter().filter(|leaf| wanted(leaf)) {
            let (was_used, before) = (leaf.is_usable(), leaf.health().state);
            any |= tree.recover(leaf) && !was_used;
            // OpenZFS leaves it at that where a device was pulled out
            if !matches!(before, VdevState::Healthy | VdevState::Removed) {
                cleared.push(leaf);
            }
        }
        any |= self.reopen_devices(&wanted);
        self.tell_states();
        cleared.iter().for_each(|leaf| self.notify_leaf("sysevent", "vdev_clear", leaf, &[]));
        self.unspare(&cleared.iter().map(|leaf| leaf.guid()).collect::<Vec<_>>());
        if any {
            self.want_resilver();
        }
        let was_suspended = self.suspension.resume(&self.txgs);
        self.wake_leaf_work();
        if was_suspended {
            tracing::warn!(target: "zuse::suspend", pool = %self.name, "resumed");
        }
        if was_suspended && let Some(watch) = &self.hooks.suspend_watch {
            watch.resumed(self.guid);
        }
        was_suspended
    }

    /// Makes `uberblock` the state of the pool on its devices; waits for them where too few are there.
    pub(crate) fn commit_patiently(&self, uberblock: &Uberblock) -> Result<(), Error> {
        // each of the two ways to fail is tried once again before the pool is suspended
        let (mut seen, mut seen_flush) = (None, None);
        loop {
            let error = match self.commit_uberblock(uberblock) {
                Ok(()) => return Ok(()),
                Err(error @ Error::Vdev(vdev::Error::LabelNotWritten { .. } | vdev::Error::Flush { .. })) => error,
                Err(error) => return Err(error),
            };
            let is_flush = matches!(error, Error::Vdev(vdev::Error::Flush { .. }));
            // the txg before has told of it already
            let is_known = is_flush && !self.tree().has_failed_flushes() && self.reaches_all();
            let seen = if is_flush { &mut seen_flush } else { &mut seen };
            if !is_known && !self.suspend(error.to_string(), true, seen) {
                return Err(error);
            }
            if is_flush {
                self.check_written(uberblock)?;
            }
        }
    }

    /// Reads the blocks of a txg back whose flush failed. If all are there, nothing was lost by it.
    fn check_written(&self, uberblock: &Uberblock) -> Result<(), Error> {
        let tree = self.tree();
        if tree.flush().is_err() || !self.reaches_all() {
            // the next attempt to commit tells of it
            return Ok(());
        }
        let known = tree.flushes();
        // what the system keeps in memory may not be on the devices
        tree.forget();
        let policy = LoadPolicy { max_data_errors: 0, ..LoadPolicy::default() };
        let options = OpenOptions { verify: Some(policy), ..OpenOptions::default() };
        // whatever the tunables of imports say: this decides whether data was lost
        self.zio.arc().clear();
        let mos = Mos::open(Objset::open(self.zio.clone(), ObjectId::MOS, &uberblock.rootbp)?)?;
        open::read_back((&mos, &self.zio), uberblock, uberblock.txg, &options, (policy, true))?;
        tree.accept_flushes(&known);
        Ok(())
    }

    /// Whether what the pool has can be read without waiting for devices: it is not suspended, and none would be missed.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.suspended().is_none() && self.reaches_all()
    }

    /// Whether enough devices are there to read all that the pool has.
    fn reaches_all(&self) -> bool {
        let tree = self.tree();
        tree.tops().iter().all(|top| tree.reaches(top))
    }
}
