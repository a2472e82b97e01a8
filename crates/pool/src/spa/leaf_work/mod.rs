//! Work on the free space of leaves: `zpool initialize` overwrites it, `zpool trim` discards it.
//!
//! # What it is
//! Each leaf goes through the metaslabs of its top-level vdev in order. A metaslab is [disabled](space::SpaceManager::disable): nothing is allocated from it;
//! what is free there, and neither held for readers nor freed in the last txgs, is translated to the leaf ([`vdev::LeafMap`]), and what of it lies behind
//! the leaf's offset is overwritten or discarded piece by piece. Then the metaslab is enabled again. So nothing that is allocated, or was allocated in a txg
//! that can still be opened, is ever touched.
//!
//! # On disk
//! The ZAP of the leaf has its state, the time of that, the options, and the offset up to which all is done ([`StoredWork`]), as OpenZFS has them: what one
//! began the other goes on with.
//!
//! # In memory
//! A background task for each kind of work ([`run`]) works in slices on all leaves at once whose state is *active* and whose devices are there. No txg is held
//! meanwhile; at the end of a slice a sync task records how far the leaves are. A command changes states between slices.
//!
//! # A crash
//! Whatever was written or discarded was free. What was done since the last slice is done once more.
//!
//! # Limits
//! An allocation that finds no space waits for the metaslabs that are disabled; then the slice ends early. After an error of a device the work
//! goes on behind it; a device that goes is left alone until it is back, one that is faulted ends its work.
//!
//! OpenZFS: `vdev_initialize.c`, `vdev_trim.c`.

mod autotrim;
mod figures;
mod run;
mod stored;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Errno, Guid, ObjectId, tunable};
use parking_lot::Mutex;
use vdev::{VdevConfig, VdevTree};

use crate::Error;
use crate::spa::zthr::Zthr;
use crate::spa::{Spa, TaskCx};

pub(crate) use autotrim::{Autotrim, autotrim_slice};
pub use figures::LeafProgress;
pub(crate) use run::{initialize_slice, trim_slice};
pub use stored::{LeafWork, LeafWorkState, StoredWork};

/// The time after which work goes on when the next command opens a pool: one that is soon done does without.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A request about the work on leaves (OpenZFS: `pool_initialize_func_t`, `pool_trim_func_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafCommand {
    /// It begins, or goes on where it was suspended.
    Start(LeafOptions),
    /// It ends.
    Cancel,
    /// It rests until it is started again.
    Suspend,
    /// It is forgotten that it was ever done.
    Uninit,
}

/// The options with which work begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafOptions {
    /// The pattern that free space is overwritten with; else `zfs_initialize_value`.
    pub value: Option<u64>,
    /// As [`StoredWork::rate`]; 0 leaves what was asked for before.
    pub rate: u64,
    /// As [`StoredWork::secure`].
    pub secure: bool,
}

/// The leaves that are worked on, by their ZAPs: a leaf may get another guid, but not another ZAP.
#[derive(Default)]
pub(crate) struct LeafWorks([Mutex<BTreeMap<ObjectId, Job>>; 2]);

/// Work on a leaf that is active.
#[derive(Clone, Copy, Debug)]
struct Job {
    stored: StoredWork,
    /// The metaslab at which it is.
    metaslab: u32,
    /// It rests until then.
    not_before: Option<Instant>,
}

impl Job {
    fn new(stored: StoredWork) -> Job {
        Job { stored, metaslab: 0, not_before: None }
    }
}

impl LeafWorks {
    fn of(&self, work: LeafWork) -> &Mutex<BTreeMap<ObjectId, Job>> {
        let [initialize, trim] = &self.0;
        if work == LeafWork::Trim { trim } else { initialize }
    }

    /// Returns whether a leaf with this ZAP is active.
    fn has(&self, work: LeafWork, zap: ObjectId) -> bool {
        self.of(work).lock().contains_key(&zap)
    }
}

/// The top-level vdev and the configuration of the leaf that has this ZAP.
fn leaf_of(tree: &VdevTree, zap: ObjectId) -> Option<(&VdevConfig, &VdevConfig)> {
    let mut tops = tree.config().children.iter();
    tops.find_map(|top| Some((top, top.leaves().find(|leaf| leaf.leaf_zap == zap)?)))
}

/// A leaf whose work changes.
struct Target {
    guid: Guid,
    path: String,
    zap: dmu::Zap,
    id: ObjectId,
    old: StoredWork,
}

impl Spa {
    /// Starts, cancels, suspends or forgets the overwriting of the free space of leaves. Returns those that are refused, and why; the others have changed
    /// (OpenZFS: `spa_vdev_initialize`).
    ///
    /// # Errors
    /// When the MOS cannot be read; when the pool is suspended.
    pub fn initialize(self: &Arc<Self>, leaves: &[Guid], command: LeafCommand) -> Result<Vec<(Guid, Errno)>, Error> {
        self.command_leaves(LeafWork::Initialize, leaves, command)
    }

    /// Starts, cancels or suspends the discarding of the free space of leaves. Returns those that are refused, and why; the others have changed
    /// (OpenZFS: `spa_vdev_trim`).
    ///
    /// # Errors
    /// As [`Spa::initialize`].
    pub fn trim(self: &Arc<Self>, leaves: &[Guid], command: LeafCommand) -> Result<Vec<(Guid, Errno)>, Error> {
        self.command_leaves(LeafWork::Trim, leaves, command)
    }

    fn command_leaves(
        self: &Arc<Self>,
        work: LeafWork,
        leaves: &[Guid],
        command: LeafCommand,
    ) -> Result<Vec<(Guid, Errno)>, Error> {
        let held = self.background.of_leaves(work).hold();
        let leaves = leaves.to_vec();
        let (refused, changed) = self.sync_task(move |cx| {
            let (mut refused, mut targets) = (Vec::new(), Vec::<Target>::new());
            for guid in leaves {
                match check(cx, work, guid, &command)? {
                    Ok(target) if targets.iter().all(|other| other.id != target.id) => targets.push(target),
                    Ok(_) => refused.push((guid, Errno::EBUSY)),
                    Err(errno) => refused.push((guid, errno)),
                }
            }
            let mut changed = Vec::new();
            for target in targets {
                changed.push((target.id, apply(cx, work, &target, &command)?));
            }
            Ok((refused, changed))
        })?;
        let mut jobs = self.leaf_works.of(work).lock();
        for (zap, stored) in changed {
            let _replaced = match stored.state {
                LeafWorkState::Active => jobs.insert(zap, Job::new(stored)),
                _ => jobs.remove(&zap),
            };
        }
        drop(jobs);
        drop(held);
        self.wake_leaf_work();
        Ok(refused)
    }

    /// Wakes the work on leaves, if there is any: a device may be back.
    pub(crate) fn wake_leaf_work(&self) {
        for work in [LeafWork::Initialize, LeafWork::Trim] {
            if !self.leaf_works.of(work).lock().is_empty() {
                self.background.of_leaves(work).wake(self);
            }
        }
    }

    /// Goes on with the work on leaves that an earlier import, by any implementation, left active; if the pool is opened `again`, a moment later
    /// (OpenZFS: `vdev_initialize_restart`, `vdev_trim_restart`).
    ///
    /// # Errors
    /// When the MOS cannot be read.
    pub(crate) fn resume_leaf_work(self: &Arc<Self>, again: bool) -> Result<(), Error> {
        let mos = self.live_mos()?;
        let not_before = again.then(|| Instant::now() + AGAIN_AFTER);
        for leaf in self.tree().config().leaves() {
            let Some(zap) = mos.zap_if(leaf.leaf_zap)? else { continue };
            for work in [LeafWork::Initialize, LeafWork::Trim] {
                let stored = StoredWork::read(&zap, work)?;
                if stored.state == LeafWorkState::Active {
                    let job = Job { not_before, ..Job::new(stored) };
                    self.leaf_works.of(work).lock().insert(leaf.leaf_zap, job);
                }
            }
        }
        self.wake_leaf_work();
        Ok(())
    }

    /// Returns the task of an activity, as long as it works on any leaf, or on `leaf`.
    pub(crate) fn leaf_activity(&self, work: LeafWork, leaf: Option<Guid>) -> Option<&Arc<Zthr>> {
        let task = self.background.of_leaves(work);
        let is_it = match leaf {
            None => !self.leaf_works.of(work).lock().is_empty(),
            Some(guid) => {
                let tree = self.tree();
                let leaf = tree.config().leaves().find(|leaf| leaf.guid == guid);
                leaf.is_some_and(|leaf| self.leaf_works.has(work, leaf.leaf_zap))
            }
        };
        (is_it && task.is_awake()).then_some(task)
    }
}

/// Checks whether a leaf takes a command: nothing is changed yet.
fn check(cx: &TaskCx<'_>, work: LeafWork, guid: Guid, command: &LeafCommand) -> Result<Result<Target, Errno>, Error> {
    let tree = cx.spa.tree();
    let Some(config) = tree.config().walk().find(|vdev| vdev.guid == guid) else { return Ok(Err(Errno::ENODEV)) };
    let top = tree.tops().iter().find(|top| top.config().walk().any(|vdev| vdev.guid == guid));
    let (Some(leaf), Some(top)) = (tree.leaf(guid).filter(|_| config.kind.is_leaf()), top) else {
        return Ok(Err(Errno::EINVAL));
    };
    if !leaf.is_writable() {
        return Ok(Err(Errno::EROFS));
    }
    let discards = leaf.discards();
    let secure = matches!(command, LeafCommand::Start(LeafOptions { secure: true, .. }));
    if work == LeafWork::Trim && !(discards.plainly && (discards.securely || !secure)) {
        return Ok(Err(Errno::ENOTSUP));
    }
    // a pool of an old version, which OpenZFS has not written since
    let Some(zap) = cx.mos.zap_if(config.leaf_zap)? else { return Ok(Err(Errno::EINVAL)) };
    let old = StoredWork::read(&zap, work)?;
    let is_begun = matches!(old.state, LeafWorkState::Active | LeafWorkState::Suspended);
    let is_active = old.state == LeafWorkState::Active && cx.spa.leaf_works.has(work, config.leaf_zap);
    let refusal = match command {
        LeafCommand::Start(_) if is_active || top.config().removing => Some(Errno::EBUSY),
        LeafCommand::Cancel if !is_begun => Some(Errno::ESRCH),
        LeafCommand::Suspend if old.state != LeafWorkState::Active => Some(Errno::ESRCH),
        LeafCommand::Uninit if is_active => Some(Errno::EBUSY),
        _ => None,
    };
    let path = config.path.clone().unwrap_or_default();
    Ok(refusal.map_or_else(|| Ok(Target { guid, path, zap, id: config.leaf_zap, old }), Err))
}

/// Carries out a command that a leaf takes. Returns what is stored then.
fn apply(cx: &TaskCx<'_>, work: LeafWork, target: &Target, command: &LeafCommand) -> Result<StoredWork, Error> {
    let old = target.old;
    let mut new = old;
    new.state = match command {
        LeafCommand::Start(_) => LeafWorkState::Active,
        LeafCommand::Cancel => LeafWorkState::Canceled,
        LeafCommand::Suspend => LeafWorkState::Suspended,
        LeafCommand::Uninit => LeafWorkState::None,
    };
    if let LeafCommand::Start(options) = command {
        let goes_on = matches!(old.state, LeafWorkState::Active | LeafWorkState::Suspended);
        match (work, options.value) {
            (LeafWork::Initialize, Some(value)) => new.value = value,
            (LeafWork::Initialize, None) if !goes_on => new.value = tunable::ZFS_INITIALIZE_VALUE.get(),
            (LeafWork::Initialize, None) => {}
            (LeafWork::Trim, _) => {
                if !goes_on {
                    // what was freed since the last time is to be trimmed as well
                    (new.offset, new.rate, new.partial, new.secure) = (0, 0, false, false);
                }
                new.rate = if options.rate == 0 { new.rate } else { options.rate };
                new.partial |= tunable::ZFS_TRIM_METASLAB_SKIP.get() != 0;
                new.secure |= options.secure;
            }
        }
    }
    settle(cx, work, target, new)
}

/// Stores what has become of the work on a leaf; a change of state goes into the history, that of a trim is an event as well.
fn settle(cx: &TaskCx<'_>, work: LeafWork, target: &Target, mut new: StoredWork) -> Result<StoredWork, Error> {
    use LeafWorkState::{Active, Canceled, Complete, None, Suspended};
    let old = target.old.state;
    if new.state != old && old != Suspended {
        new.time = cx.spa.env().now_s();
    }
    new.put(&target.zap, cx.tx, work)?;
    if new.state == old {
        return Ok(new);
    }
    let (word, event) = match new.state {
        Active if old == Suspended => (" activated", "trim_resume"),
        Active => (" activated", "trim_start"),
        Suspended => (" suspended", "trim_suspend"),
        Canceled => (" canceled", "trim_cancel"),
        Complete => (" complete", "trim_finish"),
        None => ("", ""),
    };
    if work == LeafWork::Trim {
        cx.spa.notify_vdev(event, target.guid, Some(&target.path));
    }
    let name = match (work, new.state) {
        (LeafWork::Trim, _) => "trim",
        (LeafWork::Initialize, None) => "uninitialize",
        (LeafWork::Initialize, _) => "initialize",
    };
    cx.spa.log_internal(cx.mos, cx.tx, name, &format!("vdev={}{word}", target.path))?;
    Ok(new)
}
