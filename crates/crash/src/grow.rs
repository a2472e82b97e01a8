//! Power cuts while the devices of a pool grow, and the pool with them.
//!
//! A run works on files as in [`fsynced`](crate::fsynced). From time to time all devices become larger, and the pool uses them to their end. After a cut the
//! devices are as large as they ever were: the pool has grown, or it can still grow, and nothing is lost.

use std::sync::Arc;

use pool::Spa;
use vdev::Device;

use crate::compare::{Context, Result};
use crate::fsynced::{Journal, Promised, Work, check_files, import};
use crate::pools::{Shape, open, verify_all};
use crate::storage::Storage;
use crate::{Recording, Rng, State, Tape};

/// Number of operations between two growths.
const STEPS: u64 = 14;
/// The sizes of the devices, as multiples of the first.
const SIZES: [u64; 3] = [1, 2, 3];

/// Uses all devices to their ends.
///
/// # Errors
/// Those of the pool.
pub fn expand(spa: &Arc<Spa>) -> Result<()> {
    let tops: Vec<_> = spa.tree().tops().iter().map(|top| top.guid()).collect();
    tops.into_iter().try_for_each(|top| spa.expand_vdev(top).map(drop).context(|| "expand".to_string()))
}

/// Runs on a pool while it grows, recording a tape. The tape ends while the pool is open.
///
/// # Errors
/// The first failure.
pub fn record(shape: &Shape, seed: u64) -> Result<(Tape<Promised>, Journal)> {
    let most = SIZES.into_iter().max().unwrap_or(1) * shape.size;
    let disks: Vec<(String, u64)> = shape.disks()?.into_iter().map(|(name, _)| (name, most)).collect();
    let recording = Recording::new(&disks, 512 << 20);
    recording.resize(shape.size, true);
    let mut work = Work::begin(shape, Storage::default(), &recording, seed)?;
    for (round, size) in (0u64..).zip(SIZES) {
        if round > 0 {
            let begin = recording.events();
            recording.resize(size * shape.size, false);
            expand(work.zfs.spa())?;
            // the txg is on disk
            work.book.synced();
            recording.promise(0, work.book.promised.clone());
            work.book.journal.changes.push(begin..recording.events());
        }
        for step in 0..STEPS {
            work.step(&recording).context(|| format!("{}, seed {seed}, {round}, step {step}", shape.name))?;
        }
    }
    Ok((recording.finish(), work.into_journal()))
}

/// Checks the state after a cut.
///
/// # Errors
/// The loss or damage found.
pub fn check(state: &State<'_, Promised>, journal: &Journal) -> Result<()> {
    let Some(promised) = state.promised.map(|promise| &promise.payload) else {
        // the pool was still being created
        return Ok(());
    };
    let devices: Vec<Arc<dyn Device>> = state.devices();
    let spa = import(&devices, state.cut.seed, false)?;
    check_files(&spa, journal, &promised.kept, state.cut.at)?;
    if Rng::new(state.cut.seed).percent(50) {
        expand(&spa)?;
        check_files(&spa, journal, &promised.kept, state.cut.at)?;
        let grown = spa.tree().tops().iter().all(|top| spa.tree().growth(top, top.config()) == 0);
        if !grown {
            return Err("the pool does not use its devices".to_string());
        }
    }
    spa.export().context(|| "export".to_string())?;
    verify_all(&open(&devices)?).map(drop)
}
