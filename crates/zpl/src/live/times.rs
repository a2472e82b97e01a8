//! Updates of the access time (OpenZFS: `zfs_relatime_need_update`).

use std::sync::atomic::{AtomicU8, Ordering};

use super::Settings;
use crate::{Attrs, Time};

/// The maximum age of the access time under `relatime`, in seconds: a day.
const RELATIME_MAX_AGE: i64 = 24 * 60 * 60;

const NEVER: u8 = 0;
const RELATIVE: u8 = 1;
const ALWAYS: u8 = 2;

/// The access time policy of the properties, which readers check without a lock.
pub(super) struct AtimePolicy(AtomicU8);

impl AtimePolicy {
    pub(super) fn new(settings: &Settings) -> AtimePolicy {
        let policy = AtimePolicy(AtomicU8::new(NEVER));
        policy.set(settings);
        policy
    }

    pub(super) fn set(&self, settings: &Settings) {
        let policy = match (settings.atime && !settings.readonly, settings.relatime) {
            (false, _) => NEVER,
            (true, true) => RELATIVE,
            (true, false) => ALWAYS,
        };
        self.0.store(policy, Ordering::Relaxed);
    }

    /// Returns the new access time if a read at `now` updates it: always under `atime=on`; under `relatime=on` if the file has
    /// changed since the last access, or after a day.
    pub(super) fn due(&self, times: &Times, now: impl FnOnce() -> Time) -> Option<Time> {
        let policy = self.0.load(Ordering::Relaxed);
        if policy == NEVER {
            return None;
        }
        let now = now();
        let due = policy == ALWAYS
            || times.mtime >= times.atime
            || times.ctime >= times.atime
            || now.sec.saturating_sub(times.atime.sec) >= RELATIME_MAX_AGE;
        due.then_some(now)
    }
}

/// The times that determine it.
#[derive(Clone, Copy)]
pub(super) struct Times {
    atime: Time,
    mtime: Time,
    ctime: Time,
}

impl Times {
    pub(super) fn of(attrs: &Attrs) -> Times {
        Times { atime: attrs.atime, mtime: attrs.mtime, ctime: attrs.ctime }
    }
}
