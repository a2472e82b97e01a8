//! Devices that were away are brought up to date when their pool is opened.

use std::sync::Arc;
use std::time::Duration;

use base::tunable::ZUSE_CATCH_UP_MS;
use pool::{Error, Spa};

/// Whether the writable devices of a pool are up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaughtUp {
    /// All that can be written have all blocks.
    Yes,
    /// Some have missed writes: a resilver or a scrub must bring them up to date.
    No,
}

impl CaughtUp {
    /// The state of the pool now.
    #[must_use]
    pub fn of(spa: &Spa) -> CaughtUp {
        if spa.tree().stale_leaves().next().is_none() { CaughtUp::Yes } else { CaughtUp::No }
    }
}

/// Has spares take the places of devices that are gone, begins a resilver if devices have missed writes, and waits for it, but no longer than [`ZUSE_CATCH_UP_MS`]; then it goes on in the background.
/// With a limit of 0 none is begun. Nor is one where the last resilver of the same blocks could not read everything.
///
/// # Errors
/// When the lists of datasets cannot be read, or the pool is suspended.
pub fn catch_up(spa: &Arc<Spa>) -> Result<CaughtUp, Error> {
    let limit = Duration::from_millis(ZUSE_CATCH_UP_MS.get());
    if !limit.is_zero() && spa.mend()? {
        spa.scan_wait_for(limit)?;
    }
    Ok(CaughtUp::of(spa))
}
