//! How long a command waits for another one that has what it wants to lock.

use std::time::{Duration, Instant};

use base::tunable::BUSY_WAIT;

use crate::Front;

/// Interval at which a waiting command checks whether the other one is done.
const LOOK: Duration = Duration::from_millis(20);
/// Delay after which the front is told what is waited for.
const SILENT: Duration = Duration::from_secs(1);

/// Returns how long another writer is waited for (the tunable `busy_wait`).
pub(crate) fn busy_wait() -> Duration {
    Duration::from_secs(BUSY_WAIT.get())
}

/// Retries while another writer has what is to be locked, for the time `patience`; the front is told which writer is waited for.
pub(crate) fn patiently<R>(
    front: &dyn Front,
    patience: Duration,
    lock: impl Fn() -> Result<R, vdev::Error>,
) -> Result<R, vdev::Error> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        match lock() {
            Err(vdev::Error::Busy { path, holder }) if begun.elapsed() < patience => {
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
