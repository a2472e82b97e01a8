//! The background tasks of an open pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Guid, tunable};
use dmu::Tx;

use super::datasets::Datasets;
use super::leaf_work::{self, LeafWork};
use super::mos::Mos;
use super::zthr::{Next, Work, Zthr};
use super::{Spa, scan};
use crate::Error;

/// The interval at which it is asked whether a wait goes on.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// The background tasks of a pool, one of each kind.
pub(crate) struct Background {
    /// Reads the blocks of scrubs, resilvers and error scrubs.
    pub(crate) scan: Arc<Zthr>,
    /// Frees the blocks of destroyed datasets.
    pub(crate) free: Arc<Zthr>,
    /// Frees what only a discarded checkpoint held.
    pub(crate) discard: Arc<Zthr>,
    /// Flushes the log of space changes.
    pub(crate) condense: Arc<Zthr>,
    /// Overwrites the free space of leaves.
    initialize: Arc<Zthr>,
    /// Trims the free space of leaves.
    trim: Arc<Zthr>,
    /// Trims what was freed.
    pub(crate) autotrim: Arc<Zthr>,
}

impl Default for Background {
    fn default() -> Self {
        Background {
            scan: Zthr::new("scan", Work::Beside(scan::slice)),
            free: Zthr::new("freeing of destroyed datasets", Work::Sync(<Spa as Datasets>::free_slice)),
            discard: Zthr::new("discarding of a checkpoint", Work::Sync(Spa::discard_slice)),
            condense: Zthr::new("condensing of the log space map", Work::Sync(Spa::condense_slice)),
            initialize: Zthr::new("initialize", Work::Beside(leaf_work::initialize_slice)),
            trim: Zthr::new("trim", Work::Beside(leaf_work::trim_slice)),
            autotrim: Zthr::new("autotrim", Work::Beside(leaf_work::autotrim_slice)),
        }
    }
}

impl Background {
    fn all(&self) -> [&Arc<Zthr>; 7] {
        [&self.scan, &self.free, &self.discard, &self.condense, &self.initialize, &self.trim, &self.autotrim]
    }

    /// Returns the task for work on leaves.
    pub(crate) const fn of_leaves(&self, work: LeafWork) -> &Arc<Zthr> {
        match work {
            LeafWork::Initialize => &self.initialize,
            LeafWork::Trim => &self.trim,
        }
    }

    /// Ends all tasks, because the pool is closing: each at the end of its slice.
    pub(crate) fn stop(&self) {
        // all are told before one is waited for
        self.stop_soon();
        self.all().into_iter().for_each(|task| task.stop());
    }

    /// As [`Background::stop`], without waiting.
    pub(crate) fn stop_soon(&self) {
        self.all().into_iter().for_each(|task| task.stop_soon());
    }
}

/// Work of a pool that can be waited for, in the order of its numbers (OpenZFS: `zpool_wait_activity_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The blocks that only a discarded checkpoint held are freed.
    Discard,
    /// Blocks of destroyed datasets are freed.
    Free,
    /// Free space of devices is overwritten.
    Initialize,
    /// A device is replaced: it is resilvered.
    Replace,
    /// A device is removed: its data is copied away.
    Remove,
    /// A resilver.
    Resilver,
    /// A scrub or error scrub.
    Scrub,
    /// Free space of devices is trimmed.
    Trim,
    /// A device is added to a raidz.
    RaidzExpand,
    /// The log of space changes is flushed.
    Condense,
}

impl Activity {
    /// All of them, in the order of their numbers.
    pub const ALL: [Activity; 10] = [
        Activity::Discard,
        Activity::Free,
        Activity::Initialize,
        Activity::Replace,
        Activity::Remove,
        Activity::Resilver,
        Activity::Scrub,
        Activity::Trim,
        Activity::RaidzExpand,
        Activity::Condense,
    ];
}

impl Spa {
    /// Returns whether work goes on in the background: a scan, the freeing of what was destroyed or of a discarded checkpoint, a condense, work on the free
    /// space of leaves. None does in a pool that is suspended, and no scan while scans are told to stand still.
    #[must_use]
    pub fn is_working(&self) -> bool {
        let scan_stands = tunable::ZFS_SCAN_SUSPEND_PROGRESS.get() != 0;
        let goes_on = |task: &Arc<Zthr>| task.is_awake() && !(scan_stands && Arc::ptr_eq(task, &self.background.scan));
        self.suspended().is_none() && self.background.all().into_iter().any(goes_on)
    }

    /// Returns the task of an activity, if there is work of that kind, on `leaf` if the activity is one of leaves; none of the activities that are not done here.
    fn active(&self, activity: Activity, leaf: Option<Guid>) -> Result<Option<&Arc<Zthr>>, Error> {
        let tasks = &self.background;
        let (task, is_it) = match activity {
            Activity::Discard => (&tasks.discard, true),
            Activity::Free => (&tasks.free, true),
            Activity::Condense => (&tasks.condense, true),
            Activity::Scrub => (&tasks.scan, !self.is_resilvering()?),
            Activity::Resilver => (&tasks.scan, self.is_resilvering()? || self.is_resilver_wanted()),
            Activity::Replace => (&tasks.scan, self.is_replacing()),
            Activity::Initialize => return Ok(self.leaf_activity(LeafWork::Initialize, leaf)),
            Activity::Trim => return Ok(self.leaf_activity(LeafWork::Trim, leaf)),
            Activity::Remove | Activity::RaidzExpand => return Ok(None),
        };
        Ok((is_it && task.is_awake()).then_some(task))
    }

    /// Waits until an activity has ended. Returns whether there was anything to wait for (OpenZFS: `spa_wait`).
    ///
    /// # Errors
    /// The error that ended it; when the pool is suspended. It is none if the pool is closed meanwhile.
    pub fn wait_activity(self: &Arc<Self>, activity: Activity) -> Result<bool, Error> {
        self.wait_while(activity, None, None)
    }

    /// As [`Spa::wait_activity`], as long as `goes_on` says so, which is asked every now and then.
    ///
    /// # Errors
    /// As [`Spa::wait_activity`].
    pub fn wait_activity_while(
        self: &Arc<Self>,
        activity: Activity,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool, Error> {
        self.wait_while(activity, None, Some(goes_on))
    }

    /// As [`Spa::wait_activity_while`], for the part of [`Activity::Initialize`] or [`Activity::Trim`] that one leaf has (OpenZFS: `spa_wait_tag`).
    ///
    /// # Errors
    /// As [`Spa::wait_activity`].
    pub fn wait_leaf_while(
        self: &Arc<Self>,
        activity: Activity,
        leaf: Guid,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool, Error> {
        self.wait_while(activity, Some(leaf), Some(goes_on))
    }

    fn wait_while(
        self: &Arc<Self>,
        activity: Activity,
        leaf: Option<Guid>,
        goes_on: Option<&dyn Fn() -> bool>,
    ) -> Result<bool, Error> {
        let mut waited = false;
        while let Some(task) = self.active(activity, leaf)? {
            if goes_on.is_some_and(|goes_on| !goes_on()) {
                break;
            }
            waited = true;
            // without a limit where nobody ends the wait: a seed repeats a run
            let until = goes_on.map(|_| Instant::now() + ASK_EVERY);
            // a scan may be followed by one of another kind
            match task.wait(self, until, &mut || {}) {
                Err(Error::Closed) => break,
                ended => ended?,
            };
        }
        Ok(waited)
    }

    /// Begins to flush all metaslabs that are unflushed now, in the background (`zpool condense -t log_spacemap`).
    pub fn condense_logs(&self) {
        self.space().condense_logs(self.txgs().synced());
        self.background.condense.wake(self);
    }

    /// Cancels [`Spa::condense_logs`] (`zpool condense -c`).
    pub fn cancel_condense(&self) {
        self.space().cancel_condense();
        self.background.condense.cancel();
    }

    /// A slice of the background task: each txg flushes some metaslabs by itself while the request lasts.
    fn condense_slice(&self, _: &Mos, _: &Tx) -> Result<Next, Error> {
        Ok(if self.space().condense_progress().active { Next::More } else { Next::Done })
    }

    /// Ends all background tasks at the end of their slices, because the pool is about to be closed or dropped. What they have not done is
    /// resumed when the pool is next opened.
    pub fn stop_background(&self) {
        self.background.stop();
        self.scanner.close();
    }
}
