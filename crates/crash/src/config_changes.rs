//! Power cuts while the configuration of a pool changes: its devices grow, and the pool with them; or it gets another identity.
//!
//! A run works on files as in [`fsynced`](crate::fsynced), with a change from time to time. After a cut the devices are those of one pool, which is imported; the
//! change was made, or it can still be made, and nothing is lost. Devices are as large as they ever were.

use std::path::PathBuf;
use std::sync::Arc;

use base::Guid;
use pool::Spa;
use vdev::Device;

use crate::compare::{Context, Result};
use crate::fsynced::{Journal, Promised, Work, check_files, import};
use crate::pools::{Shape, open, verify_all};
use crate::storage::Storage;
use crate::{Recording, Rng, State, Tape};

/// Number of operations between two changes.
const STEPS: u64 = 14;
/// Number of changes.
const CHANGES: u64 = 2;

/// What changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The devices become larger by their first size, and are used to their ends.
    Growth,
    /// The pool gets another identity.
    Identity,
}

impl Change {
    /// Makes the change, the `round`th of them.
    fn make(self, spa: &Arc<Spa>, round: u64) -> Result<()> {
        match self {
            Change::Growth => expand(spa),
            Change::Identity => {
                spa.change_guid(Some(Guid(4711 + round))).map(drop).context(|| "another identity".to_string())
            }
        }
    }
}

fn expand(spa: &Arc<Spa>) -> Result<()> {
    let tops: Vec<_> = spa.tree().tops().iter().map(|top| top.guid()).collect();
    tops.into_iter().try_for_each(|top| spa.expand_vdev(top).map(drop).context(|| "expand".to_string()))
}

/// Runs on a pool that changes, recording a tape. The tape ends while the pool is open.
///
/// # Errors
/// The first failure.
pub fn record(shape: &Shape, change: Change, seed: u64) -> Result<(Tape<Promised>, Journal)> {
    let rounds = if change == Change::Growth { CHANGES } else { 0 };
    let most = shape.size * (rounds + 1);
    let disks: Vec<(String, u64)> = shape.disks()?.into_iter().map(|(name, _)| (name, most)).collect();
    let recording = Recording::new(&disks, 512 << 20);
    recording.resize(shape.size, true);
    let mut work = Work::begin(shape, Storage::default(), &recording, seed)?;
    for round in 0..=CHANGES {
        if round > 0 {
            let begin = recording.events();
            recording.resize(shape.size * (round + 1), false);
            change.make(work.zfs.spa(), round)?;
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
pub fn check(state: &State<'_, Promised>, change: Change, journal: &Journal) -> Result<()> {
    let Some(promised) = state.promised.map(|promise| &promise.payload) else {
        // the pool was still being created
        return Ok(());
    };
    let devices: Vec<Arc<dyn Device>> = state.devices();
    let named = devices.iter().map(|device| (PathBuf::from(device.name()), device.clone())).collect();
    let found = vdev::import::scan_devices(named);
    if found.len() != 1 || found.iter().any(|pool| !pool.missing.is_empty()) {
        let pools: Vec<_> = found.iter().map(|pool| (pool.guid, pool.txg, pool.missing.len())).collect();
        return Err(format!("the devices are not those of one pool: {pools:?}"));
    }
    let spa = import(&devices, state.cut.seed, false)?;
    check_files(&spa, journal, &promised.kept, state.cut.at)?;
    if Rng::new(state.cut.seed).percent(50) {
        change.make(&spa, CHANGES + 1)?;
        check_files(&spa, journal, &promised.kept, state.cut.at)?;
        let tree = spa.tree();
        if tree.tops().iter().any(|top| tree.growth(top, top.config()) > 0) {
            return Err("the pool does not use its devices".to_string());
        }
    }
    spa.export().context(|| "export".to_string())?;
    verify_all(&open(&devices)?).map(drop)
}
