//! How long a command waits for another one that has what it wants to lock.

use std::time::{Duration, Instant};

use base::tunable::BUSY_WAIT;

use crate::Front;

/// Interval at which a waiting command checks whether the other one is done.
const LOOK: Duration = Duration::from_millis(20);
/// Delay after which the front is told what is waited for.
const SILENT: Duration = Duration::from_secs(1);
/// How long a device is waited for that this process has open itself: for a pool that is being closed, but not for one that stays open.
const OWN: Duration = Duration::from_secs(1);

/// Returns how long another writer is waited for (the tunable `busy_wait`).
pub(crate) fn busy_wait() -> Duration {
    Duration::from_secs(BUSY_WAIT.get())
}

/// Retries while somebody else has what is to be locked, another thread of this process as well, for the time `patience`; the front is told who is waited for.
pub(crate) fn patiently<R>(
    front: &dyn Front,
    patience: Duration,
    lock: impl Fn() -> Result<R, vdev::Error>,
) -> Result<R, vdev::Error> {
    retry(front, &|_| patience, lock)
}

/// As [`patiently`], for devices, which other writers have for as long as `busy_wait` says.
pub(crate) fn patiently_for_devices<R>(
    front: &dyn Front,
    lock: impl Fn() -> Result<R, vdev::Error>,
) -> Result<R, vdev::Error> {
    let patience = busy_wait();
    retry(front, &|holder| if is_own(holder) { patience.min(OWN) } else { patience }, lock)
}

/// Retries for the time that `patience` has with who has the lock.
fn retry<R>(
    front: &dyn Front,
    patience: &dyn Fn(&str) -> Duration,
    lock: impl Fn() -> Result<R, vdev::Error>,
) -> Result<R, vdev::Error> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        match lock() {
            Err(vdev::Error::Busy { path, holder }) if begun.elapsed() < patience(&holder) => {
                if !told && begun.elapsed() >= SILENT {
                    tracing::info!(target: "zuse::site", device = path, %holder, "waiting for another writer");
                    front.waiting(&path, &holder.to_string());
                    told = true;
                }
                std::thread::sleep(LOOK);
            }
            done => return done,
        }
    }
}

/// Whether the holder of a lock, as [`vdev::device::lock_holder`] tells of it, is this process.
fn is_own(holder: &str) -> bool {
    let own = format!(" by process {}", std::process::id());
    holder.strip_prefix(&own).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_this_process_is_not_waited_for_as_long_as_that_of_another() {
        let id = std::process::id();
        assert!(is_own(&format!(" by process {id}")) && is_own(&format!(" by process {id} (zfs)")));
        assert!(!is_own("") && !is_own(&format!(" by process {id}0")) && !is_own(" by process 1 (init)"));
    }
}
