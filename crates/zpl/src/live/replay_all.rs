//! Replay of all logs of a pool in parallel, for an import (OpenZFS: file systems are replayed when they are mounted, volumes
//! when their devices are created), and freeing of files without a name (OpenZFS: `zfs_unlinked_drain`, at the mount).
//!
//! Each dataset is opened as a user would open it, which does the replay. The datasets are independent of each other; their
//! changes share the txgs of the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base::tunable;
use parking_lot::{Condvar, Mutex, MutexGuard};
use pool::{Dataset, KeyStatus, Kind, ListOptions, Spa};

use super::{Settings, Volume, Zfs};
use crate::{Error, FileSystem};

/// Datasets that are replayed at a time.
const DATASETS: usize = 8;
/// The interval of progress reports.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// The progress of the replay of a pool's logs. It does not include logs that are not started yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Number of logs.
    pub logs: u64,
    /// Logs that are replayed.
    pub logs_done: u64,
    /// Records of the logs that were started.
    pub records: u64,
    /// Records that are applied.
    pub records_done: u64,
    /// Bytes of all these records, and of the blocks that they point at.
    pub bytes: u64,
    /// Bytes of the records that are applied.
    pub bytes_done: u64,
    /// The estimated remaining time, by bytes; `None` if it is not known yet.
    pub left: Option<Duration>,
}

impl ReplayProgress {
    fn of(spa: &Spa, logs: u64, logs_done: u64, took: Duration) -> ReplayProgress {
        let meter = spa.replay_meter();
        let (bytes, bytes_done) = (meter.bytes.get(), meter.bytes_done.get());
        let known = meter.logs.get() >= logs && bytes_done > 0;
        let left = known.then(|| took.mul_f64(bytes.saturating_sub(bytes_done) as f64 / bytes_done as f64));
        let (records, records_done) = (meter.records.get(), meter.records_done.get());
        ReplayProgress { logs, logs_done, records, records_done, bytes, bytes_done, left }
    }
}

/// A dataset, and the result of opening it.
pub type ReplayedDataset = (String, Result<(), Error>);

/// A dataset that an import opens.
struct Due {
    name: String,
    kind: Kind,
    /// True if it has a log to replay, not only files to free.
    log: bool,
}

/// Replays the logs of all datasets of a pool that have records to replay and whose keys are loaded, reports progress to `watch`,
/// and frees the files that have lost their last name. Returns the datasets that were opened for it, each with the result of
/// opening it. The cause of a replay that ended early is recorded in the pool's history.
///
/// # Errors
/// When the datasets cannot be listed.
pub fn replay_all(spa: &Arc<Spa>, watch: &mut dyn FnMut(&ReplayProgress)) -> Result<Vec<ReplayedDataset>, Error> {
    let due = due(spa)?;
    if due.is_empty() {
        return Ok(Vec::new());
    }
    let begun = Instant::now();
    let (next, done, changed) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Condvar::new());
    let work = || {
        while let (n, Some(Due { name, kind, .. })) = {
            let n = next.fetch_add(1, Ordering::Relaxed);
            (n, due.get(n))
        } {
            let opened = match kind {
                Kind::Volume => Volume::open(spa, name).map(drop),
                _ => Zfs::open(spa, name).map(drop),
            };
            tracing::info!(target: "zuse::zil", dataset = name, opened = opened.is_ok(), "replayed");
            done.lock().push((n, opened));
            changed.notify_all();
        }
    };
    std::thread::scope(|scope| {
        let threads = DATASETS.min(due.len());
        let spawn = || std::thread::Builder::new().name("zil-replay-all".to_owned()).spawn_scoped(scope, work);
        // this thread only reports progress, unless it is the only one
        if (0..threads).filter_map(|_| spawn().ok()).count() == 0 {
            work();
        }
        let logs = due.iter().filter(|due| due.log).count() as u64;
        let mut finished = done.lock();
        loop {
            let seen = finished.len();
            let logs_done = finished.iter().filter(|(n, _)| due.get(*n).is_some_and(|due| due.log)).count() as u64;
            let progress = ReplayProgress::of(spa, logs, logs_done, begun.elapsed());
            MutexGuard::unlocked(&mut finished, || watch(&progress));
            // the last report says that everything is done
            if seen == due.len() {
                break;
            }
            if finished.len() == seen {
                changed.wait_for(&mut finished, TELL_EVERY);
            }
        }
    });
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|(n, _)| *n);
    Ok(due.into_iter().map(|due| due.name).zip(done.into_iter().map(|(_, opened)| opened)).collect())
}

/// Returns the datasets with records to replay or files to free.
fn due(spa: &Spa) -> Result<Vec<Due>, Error> {
    let view = spa.view()?;
    let all = view.list(view.name(), &ListOptions::DATASETS)?;
    let heads: Vec<&Dataset> = all.iter().filter_map(|entry| entry.dataset()).collect();
    // a dataset that cannot be read cannot be replayed either; opening it returns the error
    let look = |dataset: &&Dataset| {
        let header = dataset.objset().ok()?.phys().zil_header.clone();
        let here = dataset.key_status().ok()? != KeyStatus::Unavailable;
        let log = zil::claim::needs_replay(&header);
        let due = here && (log || has_unlinked(dataset).unwrap_or(false));
        due.then(|| Some(Due { name: dataset.name().to_owned(), kind: dataset.kind().ok()?, log })).flatten()
    };
    Ok(base::pump::all(heads, look).into_iter().flatten().collect())
}

/// True if a file system has files without a name that opening it frees.
fn has_unlinked(dataset: &Dataset) -> Result<bool, Error> {
    if tunable::ZFS_UNLINK_SUSPEND_PROGRESS.get() != 0
        || dataset.kind()? != Kind::Filesystem
        || Settings::of(dataset)?.readonly
    {
        return Ok(false);
    }
    let fs = FileSystem::open(dataset)?;
    Ok(fs.version() >= super::WRITTEN_VERSION && !fs.delete_queue()?.is_empty())
}
