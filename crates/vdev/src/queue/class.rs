//! The classes of I/O, and the rule that chooses between them.
//!
//! OpenZFS: `vdev_queue_class_to_issue`, `vdev_queue_class_min_active`, `vdev_queue_class_max_active`, `vdev_queue_pending_add` and
//! `vdev_queue_pending_remove`.

use std::time::Instant;

use base::tunable::{self, Tunable};

/// The purpose of an I/O, which decides when a busy device gets it (OpenZFS: `zio_priority_t`). In order of priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoClass {
    /// A reader waits for it.
    SyncRead,
    /// A writer waits for it: the intent log, labels, multihost writes.
    SyncWrite,
    /// Read ahead.
    AsyncRead,
    /// A block of a txg, or a repair.
    AsyncWrite,
    /// Scrub and resilver.
    Scrub,
    /// The copying of a vdev that is being removed.
    Removal,
    /// Free space that is being written for the first time.
    Initializing,
    /// Free space that the device is told of.
    Trim,
    /// Sequential reconstruction of a device.
    Rebuild,
}

/// Foreground requests that end between two of a background class, while there are such. A device that does one at a time would else do one of a scrub for each
/// of a single reader.
const UNDISTURBED: u64 = 4;

/// The number of classes.
pub(crate) const CLASSES: usize = IoClass::ALL.len();

impl IoClass {
    /// All classes, in order of priority.
    pub const ALL: [IoClass; 9] = [
        IoClass::SyncRead,
        IoClass::SyncWrite,
        IoClass::AsyncRead,
        IoClass::AsyncWrite,
        IoClass::Scrub,
        IoClass::Removal,
        IoClass::Initializing,
        IoClass::Trim,
        IoClass::Rebuild,
    ];

    /// The name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            IoClass::SyncRead => "sync read",
            IoClass::SyncWrite => "sync write",
            IoClass::AsyncRead => "async read",
            IoClass::AsyncWrite => "async write",
            IoClass::Scrub => "scrub",
            IoClass::Removal => "removal",
            IoClass::Initializing => "initialize",
            IoClass::Trim => "trim",
            IoClass::Rebuild => "rebuild",
        }
    }

    /// Whether somebody may be waiting for it. The others are bounded to their minimum while such I/O is active.
    pub(crate) const fn is_interactive(self) -> bool {
        !matches!(self, IoClass::Scrub | IoClass::Removal | IoClass::Initializing | IoClass::Rebuild)
    }

    /// Whether requests of the class are served in order of arrival, not of offset.
    pub(crate) const fn is_fifo(self) -> bool {
        matches!(self, IoClass::SyncRead | IoClass::SyncWrite | IoClass::Trim)
    }

    /// The index in tables by class.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// How many requests of a class may be active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

/// Returns the bounds that the tunables give.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) classes: [Bounds; CLASSES],
    pub(crate) max_active: u64,
    pub(crate) nia_delay: u64,
    pub(crate) nia_credit: u64,
    /// Dirty bytes up to which async writes keep to their minimum beside other interactive I/O, and from which they may have their maximum.
    pub(crate) dirty: (u64, u64),
}

static BOUNDS: [(&Tunable, &Tunable); CLASSES] = [
    (&tunable::ZFS_VDEV_SYNC_READ_MIN_ACTIVE, &tunable::ZFS_VDEV_SYNC_READ_MAX_ACTIVE),
    (&tunable::ZFS_VDEV_SYNC_WRITE_MIN_ACTIVE, &tunable::ZFS_VDEV_SYNC_WRITE_MAX_ACTIVE),
    (&tunable::ZFS_VDEV_ASYNC_READ_MIN_ACTIVE, &tunable::ZFS_VDEV_ASYNC_READ_MAX_ACTIVE),
    (&tunable::ZFS_VDEV_ASYNC_WRITE_MIN_ACTIVE, &tunable::ZFS_VDEV_ASYNC_WRITE_MAX_ACTIVE),
    (&tunable::ZFS_VDEV_SCRUB_MIN_ACTIVE, &tunable::ZFS_VDEV_SCRUB_MAX_ACTIVE),
    (&tunable::ZFS_VDEV_REMOVAL_MIN_ACTIVE, &tunable::ZFS_VDEV_REMOVAL_MAX_ACTIVE),
    (&tunable::ZFS_VDEV_INITIALIZING_MIN_ACTIVE, &tunable::ZFS_VDEV_INITIALIZING_MAX_ACTIVE),
    (&tunable::ZFS_VDEV_TRIM_MIN_ACTIVE, &tunable::ZFS_VDEV_TRIM_MAX_ACTIVE),
    (&tunable::ZFS_VDEV_REBUILD_MIN_ACTIVE, &tunable::ZFS_VDEV_REBUILD_MAX_ACTIVE),
];

impl Limits {
    /// As the tunables are now. Nothing is bounded to less than one, so that whatever waits has its turn.
    pub(crate) fn tuned() -> Limits {
        let percent = |of: &Tunable| tunable::ZFS_DIRTY_DATA_MAX.get() / 100 * of.get().min(100);
        Limits {
            classes: BOUNDS.map(|(min, max)| Bounds { min: min.get(), max: max.get().max(1) }),
            max_active: tunable::ZFS_VDEV_MAX_ACTIVE.get().max(1),
            nia_delay: tunable::ZFS_VDEV_NIA_DELAY.get(),
            nia_credit: tunable::ZFS_VDEV_NIA_CREDIT.get().max(1),
            dirty: (
                percent(&tunable::ZFS_VDEV_ASYNC_WRITE_ACTIVE_MIN_DIRTY_PERCENT),
                percent(&tunable::ZFS_VDEV_ASYNC_WRITE_ACTIVE_MAX_DIRTY_PERCENT),
            ),
        }
    }
}

/// How many requests of each class wait and are active, and what follows for the next.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    pub(crate) active: [u64; CLASSES],
    pub(crate) queued: [u64; CLASSES],
    total: u64,
    /// Active requests of interactive classes.
    interactive: u64,
    /// While interactive requests are active: how many others may begin until one of these ends. Else: how many others have ended since the
    /// last of these did.
    credit: u64,
    /// Requests that ended since the last one that was interactive and no async write.
    quiet: u64,
    /// The class at which the round of minimums resumes.
    next: usize,
    /// Active requests of foreground classes.
    foreground: u64,
    /// Requests of foreground classes that ended since the last one that is not interactive began.
    undisturbed: u64,
    /// Until when a foreground request is expected, though none is active.
    pub(crate) expected_until: Option<Instant>,
    /// Bytes that the pool has dirty.
    pub(crate) dirty: u64,
}

impl Admission {
    /// The class that the next request is taken from; none if nothing waits that may begin.
    ///
    /// First, in turns, the classes with less active than their minimum; then, in order of priority, those with less than their maximum.
    pub(crate) fn choose(&mut self, limits: &Limits) -> Option<IoClass> {
        if self.total >= limits.max_active {
            return None;
        }
        let (before, from) = IoClass::ALL.split_at(self.next % CLASSES);
        let waits = |class: &&IoClass| self.get(&self.queued, **class) > 0;
        let mut round = from.iter().chain(before).filter(waits);
        let below_min = round.find(|class| self.get(&self.active, **class) < self.min(**class, limits));
        let below_max = || IoClass::ALL.iter().filter(waits).find(|class| self.is_below_max(**class, limits));
        let chosen = *below_min.or_else(below_max)?;
        self.next = chosen.index() + 1;
        Some(chosen)
    }

    /// Whether a request may begin that nothing of its class waits before.
    pub(crate) fn admits(&self, class: IoClass, limits: &Limits) -> bool {
        let below_min = || self.get(&self.active, class) < self.min(class, limits);
        self.get(&self.queued, class) == 0
            && self.total < limits.max_active
            && (below_min() || self.is_below_max(class, limits))
    }

    /// Notes that a request of the class begins.
    pub(crate) fn begin(&mut self, class: IoClass) {
        bump(&mut self.active, class, 1);
        self.total += 1;
        if class.is_interactive() {
            self.interactive += 1;
            if self.interactive == 1 {
                self.credit = 1;
            }
        } else {
            self.undisturbed = 0;
            if self.interactive > 0 {
                self.credit = self.credit.saturating_sub(1);
            }
        }
        if is_foreground(class) {
            self.quiet = 0;
            self.foreground += 1;
            self.expected_until = None;
        }
    }

    /// Notes that a request of the class has ended.
    pub(crate) fn end(&mut self, class: IoClass, limits: &Limits) {
        bump(&mut self.active, class, -1);
        self.total -= 1;
        if class.is_interactive() {
            self.interactive -= 1;
            self.credit = if self.interactive == 0 { 0 } else { limits.nia_credit };
        } else if self.interactive == 0 {
            self.credit += 1;
        }
        if is_foreground(class) {
            self.quiet = 0;
            self.foreground -= 1;
            self.undisturbed += 1;
        } else {
            self.quiet += 1;
        }
    }

    /// Whether those who are not interactive would let another foreground request go first, if one came now.
    pub(crate) fn would_yield(&self) -> bool {
        self.foreground == 0 && self.undisturbed < UNDISTURBED
    }

    /// Whether those who are not interactive let foreground requests go first.
    fn yields(&self) -> bool {
        (self.foreground > 0 || self.expected_until.is_some()) && self.undisturbed < UNDISTURBED
    }

    /// Expects no foreground request any more, if that time is over.
    pub(crate) fn expect_no_longer(&mut self, now: Instant) {
        self.expected_until.take_if(|until| now >= *until);
    }

    /// Notes that a request of the class waits.
    pub(crate) fn wait(&mut self, class: IoClass) {
        bump(&mut self.queued, class, 1);
    }

    /// Notes that a request of the class waits no more.
    pub(crate) fn leave_line(&mut self, class: IoClass) {
        bump(&mut self.queued, class, -1);
    }

    fn get(&self, table: &[u64; CLASSES], class: IoClass) -> u64 {
        table.get(class.index()).copied().unwrap_or(0)
    }

    fn is_below_max(&self, class: IoClass, limits: &Limits) -> bool {
        self.get(&self.active, class) < self.max(class, limits)
    }

    fn min(&self, class: IoClass, limits: &Limits) -> u64 {
        let min = limits.classes.get(class.index()).map_or(1, |bounds| bounds.min);
        match class.is_interactive() {
            true => min,
            false if self.yields() => 0,
            false if self.interactive == 0 => min,
            false => min.min(self.credit),
        }
    }

    fn max(&self, class: IoClass, limits: &Limits) -> u64 {
        let Some(Bounds { min, max }) = limits.classes.get(class.index()).copied() else { return 1 };
        match class {
            IoClass::AsyncWrite => self.max_async_writes(min, max, limits),
            _ if class.is_interactive() => max,
            _ if self.yields() => 0,
            _ if self.interactive > 0 => self.credit.min(min),
            _ if self.credit < limits.nia_delay => min.max(1),
            _ => max,
        }
    }

    /// More async writes the more is dirty, so that a txg does not fill the queue of a device that others wait for. Unlike in OpenZFS a device that
    /// nobody else uses gets all that is allowed.
    fn max_async_writes(&self, min: u64, max: u64, limits: &Limits) -> u64 {
        let foreground = IoClass::ALL.iter().any(|class| is_foreground(*class) && self.get(&self.active, *class) > 0);
        let (low, high) = limits.dirty;
        if (!foreground && self.quiet >= limits.nia_delay) || self.dirty >= high || max <= min {
            return max;
        }
        let above = self.dirty.saturating_sub(low);
        let more = u128::from(above) * u128::from(max - min) / u128::from((high - low.min(high)).max(1));
        (min + u64::try_from(more).unwrap_or(u64::MAX)).clamp(1, max)
    }
}

/// Whether async writes, and what is not interactive, make room for the class.
pub(crate) const fn is_foreground(class: IoClass) -> bool {
    matches!(class, IoClass::SyncRead | IoClass::SyncWrite | IoClass::AsyncRead)
}

fn bump(table: &mut [u64; CLASSES], class: IoClass, by: i64) {
    if let Some(count) = table.get_mut(class.index()) {
        assert!(by > 0 || *count > 0, "{} ended that did not begin", class.name());
        *count = count.wrapping_add_signed(by);
    }
}

#[cfg(test)]
#[path = "class_tests.rs"]
pub(crate) mod tests;
