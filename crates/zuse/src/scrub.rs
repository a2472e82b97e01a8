//! Scrub: every block of a pool is read, all copies and all parity, and what is wrong is made right (OpenZFS: `dsl_scan.c`).
//!
//! It is a [verification](crate::verify) that heals. The pool records that it runs, how far it is, and what it found: what is lost goes to
//! the pool's list of damaged blocks, by which `zpool status -v` names files. It can be paused, by whoever sets the flag that stops it; what
//! was healed until then stays healed, and the next scrub begins anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pool::{ErrorEntry, ScrubResult, Spa};

use crate::verify::{Error, Options, Summary, inspect};

/// How a scrub ended.
#[derive(Debug)]
pub enum Scrubbed {
    /// It saw everything.
    Whole(Box<Summary>),
    /// It was stopped.
    Stopped,
}

/// Scrubs a pool. `progress` is told, from any thread, of bytes that were read and blocks that are lost. When `stop` becomes true the
/// scrub pauses.
///
/// # Errors
/// As [`inspect`]; when the pool is suspended.
pub fn scrub(
    spa: &Arc<Spa>,
    threads: usize,
    stop: &AtomicBool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Scrubbed, Error> {
    let view = spa.view()?;
    let to_examine = view.space()?.allocated;
    spa.scrub_begin(to_examine)?;
    // No txg is closed while the blocks are read: what is repaired must be what the pool still has there. What is written from here on
    // waits for the end.
    let still = spa.tx_netfree(0)?;
    let view = spa.view()?;
    let examined = AtomicU64::new(0);
    let options = Options { dataset: None, threads, heal: true };
    let told = |bytes, lost| {
        examined.fetch_add(bytes, Ordering::Relaxed);
        progress(bytes, lost);
    };
    let summary = inspect(&view, &options, &told, &mut |_| !stop.load(Ordering::Relaxed));
    drop(still);
    let summary = summary?;
    let result = ScrubResult {
        to_examine,
        examined: examined.into_inner(),
        repaired: summary.tally.leaves.values().map(|leaf| leaf.bytes).sum(),
        errors: summary.tally.lost_blocks,
    };
    if stop.load(Ordering::Relaxed) {
        spa.scrub_progress(result, true)?;
        return Ok(Scrubbed::Stopped);
    }
    let lost = summary.tally.damage.iter().map(|damage| ErrorEntry {
        objset: damage.bm.objset,
        object: damage.bm.object,
        level: damage.bm.level.into(),
        blkid: damage.bm.blkid,
        birth: Some(damage.birth),
        last: true,
    });
    spa.scrub_finish(result, lost.collect())?;
    Ok(Scrubbed::Whole(Box::new(summary)))
}
