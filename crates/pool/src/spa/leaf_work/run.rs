//! Slices of the work on the free space of leaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Guid, ObjectId, tunable};
use space::{DisabledMetaslab, RangeTree};
use vdev::{Leaf, LeafMap, TopVdev, VdevState};

use super::{Job, LeafWork, LeafWorkState, StoredWork, Target, leaf_of, settle};
use crate::Error;
use crate::spa::Spa;
use crate::spa::zthr::{Next, Zthr};

/// A slice lasts at most this long, and a piece, so that the progress is recorded.
const SLICE_MAX: Duration = Duration::from_secs(2);
/// The time after which a leaf tries again to disable a metaslab.
const RETRY: Duration = Duration::from_millis(20);
/// The smallest extent of a secure trim, which leaves none out.
const SECTOR: u64 = 512;
/// The largest sectors that a device has: pieces are whole ones.
const SECTOR_MAX: u64 = 1 << vdev::ASHIFT_MAX;
/// The least bytes of a piece of a trim whose rate is limited.
const RATE_PIECE_MIN: u64 = 1 << 20;

/// A slice of overwriting.
pub(crate) fn initialize_slice(spa: &Arc<Spa>) -> Result<Next, Error> {
    slice(spa, LeafWork::Initialize)
}

/// A slice of trimming.
pub(crate) fn trim_slice(spa: &Arc<Spa>) -> Result<Next, Error> {
    slice(spa, LeafWork::Trim)
}

/// The result of a leaf's part of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// All of its free space is done.
    Done,
    /// The slice is over, or its device is gone.
    Early,
    /// It goes on after this time at the earliest.
    Rests(Duration),
    /// Its device is faulted: the work is over.
    Faulted,
}

/// A leaf in a slice.
struct Run {
    zap: ObjectId,
    guid: Guid,
    top: TopVdev,
    leaf: Arc<Leaf>,
    job: Job,
    ended: Ended,
}

fn slice(spa: &Arc<Spa>, work: LeafWork) -> Result<Next, Error> {
    let (mut runs, rest) = gather(spa, work);
    let pattern = runs.first().filter(|_| work == LeafWork::Initialize).map(|_| chunk_bytes());
    let slice =
        Slice { spa, work, task: spa.background.of_leaves(work), until: Instant::now() + SLICE_MAX, chunk: pattern };
    slice.run_all(&mut runs);
    record(spa, work, &runs)?;
    let rests = runs.iter().filter_map(|run| match run.ended {
        Ended::Rests(time) => Some(time),
        _ => None,
    });
    let rest = rests.chain(rest).min();
    let goes_on = runs.iter().any(|run| run.ended == Ended::Early && run.leaf.is_writable());
    Ok(match rest {
        _ if goes_on => Next::More,
        Some(time) => Next::Rest(time),
        // those that are left have no device
        None => Next::Done,
    })
}

/// Returns the leaves that can be worked on, and how long those rest that will be next.
fn gather(spa: &Spa, work: LeafWork) -> (Vec<Run>, Option<Duration>) {
    let (tree, now) = (spa.tree(), Instant::now());
    let (mut runs, mut rest) = (Vec::new(), None::<Duration>);
    // a leaf that left the pool took its ZAP along
    spa.leaf_works.of(work).lock().retain(|zap, job| {
        let Some((top, config)) = leaf_of(&tree, *zap) else { return false };
        let (Some(leaf), Some(top)) = (tree.leaf(config.guid), tree.top(top.id)) else { return false };
        let wait = job.not_before.map(|at| at.saturating_duration_since(now)).filter(|wait| !wait.is_zero());
        if let Some(wait) = wait {
            rest = Some(rest.map_or(wait, |rest| rest.min(wait)));
            return true;
        }
        let ended = if leaf.health().state == VdevState::Faulted { Ended::Faulted } else { Ended::Early };
        if leaf.is_writable() && !top.config().removing || ended == Ended::Faulted {
            let (top, leaf) = (top.clone(), Arc::clone(leaf));
            runs.push(Run { zap: *zap, guid: config.guid, top, leaf, job: *job, ended });
        }
        true
    });
    (runs, rest)
}

/// Bytes that are written at a time.
fn chunk_bytes() -> u64 {
    (tunable::ZFS_INITIALIZE_CHUNK_SIZE.get() / 8 * 8).max(8)
}

/// What the leaves of a slice share.
struct Slice<'a> {
    spa: &'a Spa,
    work: LeafWork,
    task: &'a Zthr,
    until: Instant,
    /// Bytes of a piece that is overwritten.
    chunk: Option<u64>,
}

impl Slice<'_> {
    /// Works on all leaves at once, if there are threads to be had.
    fn run_all(&self, runs: &mut [Run]) {
        let mut runs: Vec<&mut Run> = runs.iter_mut().filter(|run| run.ended == Ended::Early).collect();
        let Some(last) = runs.pop() else { return };
        if self.spa.env().is_seeded() {
            runs.into_iter().for_each(|run| self.run(run));
            return self.run(last);
        }
        std::thread::scope(|scope| {
            for run in runs {
                let thread = std::thread::Builder::new().name(self.task.name().to_owned());
                // one for which there is no thread waits for the next slice
                let _started = thread.spawn_scoped(scope, || self.run(run));
            }
            self.run(last);
        });
    }

    fn run(&self, run: &mut Run) {
        let top = run.top.clone();
        let (Some(map), Ok(vdev)) = (top.leaf_map(run.guid), u32::try_from(top.id())) else {
            run.ended = Ended::Rests(RETRY);
            return;
        };
        let pattern = self.chunk.map(|bytes| pattern(run.job.stored.value, bytes, top.ashift()));
        let manager = self.spa.space().manager();
        let mut leaf = OneLeaf { slice: self, map: &map, leaf: &run.leaf, job: &mut run.job, pattern, passed: false };
        run.ended = loop {
            let id = (vdev, leaf.job.metaslab);
            if leaf.job.metaslab as usize >= manager.metaslab_count(vdev) {
                // a vdev that is about to come or go has none
                break if manager.metaslab_count(vdev) == 0 { Ended::Rests(RETRY) } else { Ended::Done };
            }
            let Some(whole) = manager.with(id, |metaslab| metaslab.geometry().range()) else { break Ended::Early };
            let end = map.end(whole).filter(|end| *end > leaf.job.stored.offset);
            if let Some(end) = end {
                if leaf.is_over(None) {
                    break Ended::Early;
                }
                match manager.disable(id) {
                    Ok(Some(disabled)) => {
                        if let Some(ended) = leaf.metaslab(&disabled) {
                            break ended;
                        }
                        leaf.job.stored.offset = end;
                    }
                    Ok(None) => break Ended::Rests(RETRY),
                    // nothing is allocated there either
                    Err(error) => tracing::warn!(target: "zuse::space", %error, "its free space is left as it is"),
                }
            }
            leaf.job.metaslab += 1;
        };
    }
}

/// A piece of what is written over free space.
fn pattern(value: u64, bytes: u64, ashift: u32) -> Vec<u8> {
    let bytes = (bytes >> ashift << ashift).max(1 << ashift);
    value.to_ne_bytes().into_iter().cycle().take(usize::try_from(bytes).unwrap_or(1 << 20)).collect()
}

/// The work on one leaf.
struct OneLeaf<'a> {
    slice: &'a Slice<'a>,
    map: &'a LeafMap<'a>,
    leaf: &'a Leaf,
    job: &'a mut Job,
    /// What is written; nothing is for a trim.
    pattern: Option<Vec<u8>>,
    /// Whether a piece was done: each slice gets on.
    passed: bool,
}

impl OneLeaf<'_> {
    /// Returns whether the slice ends here.
    fn is_over(&self, disabled: Option<&DisabledMetaslab<'_>>) -> bool {
        let late = self.passed && Instant::now() >= self.slice.until;
        // what another machine may have by now is left alone
        let spa = self.slice.spa;
        let is_over = spa.txgs().failed().is_some() || spa.suspended().is_some();
        late || is_over
            || self.slice.task.is_interrupted()
            || disabled.is_some_and(DisabledMetaslab::is_wanted)
            || !self.leaf.is_writable()
    }

    /// Works on a metaslab. Returns why not all of it is done.
    fn metaslab(&mut self, disabled: &DisabledMetaslab<'_>) -> Option<Ended> {
        let stored = self.job.stored;
        if stored.partial && !disabled.was_used {
            return None;
        }
        let mut parts = RangeTree::new();
        for free in disabled.free.iter() {
            self.map.ranges(free, &mut |part| {
                let left = part.start.max(stored.offset)..part.end;
                if !left.is_empty() {
                    let added = parts.add(left);
                    assert!(added.is_ok(), "two places of a vdev are one on a leaf: {added:?}");
                }
            });
        }
        let least = match self.slice.work {
            LeafWork::Trim if !stored.secure => tunable::ZFS_TRIM_EXTENT_BYTES_MIN.get(),
            LeafWork::Trim => SECTOR,
            LeafWork::Initialize => 0,
        };
        for part in parts.iter().filter(|part| part.end - part.start >= least) {
            self.job.stored.offset = part.start.max(self.job.stored.offset);
            while self.job.stored.offset < part.end {
                if self.is_over(Some(disabled)) {
                    return Some(Ended::Early);
                }
                if let Some(ended) = self.piece(part.end) {
                    return Some(ended);
                }
            }
        }
        None
    }

    /// Works on the next piece, which ends at `end` at the latest. Returns why the slice ends then.
    fn piece(&mut self, end: u64) -> Option<Ended> {
        let StoredWork { offset, rate, secure, .. } = self.job.stored;
        let left = end - offset;
        let (len, done) = match &self.pattern {
            Some(pattern) => {
                let len = left.min(pattern.len() as u64);
                let piece = pattern.get(..usize::try_from(len).unwrap_or(usize::MAX)).unwrap_or(pattern);
                (len, self.leaf.overwrite_free(offset, piece))
            }
            None => {
                let most = if rate == 0 { u64::MAX } else { rate.max(RATE_PIECE_MIN) / SECTOR_MAX * SECTOR_MAX };
                let len = left.min(tunable::ZFS_TRIM_EXTENT_BYTES_MAX.get()).min(most);
                (len, self.leaf.trim(offset, len, secure))
            }
        };
        if let Err(error) = done {
            if !self.leaf.is_writable() {
                return Some(Ended::Early);
            }
            // nothing depends on it: an error is no reason to stop
            tracing::debug!(target: "zuse::vdev", %error, "free space is left as it is");
        }
        self.job.stored.offset += len;
        self.passed = true;
        let rest = (rate > 0).then(|| Duration::from_secs_f64(len as f64 / rate as f64))?;
        self.job.not_before = Some(Instant::now() + rest);
        Some(Ended::Rests(rest))
    }
}

/// Records how far the leaves of a slice are.
fn record(spa: &Arc<Spa>, work: LeafWork, runs: &[Run]) -> Result<(), Error> {
    let mut news: Vec<(ObjectId, u64, LeafWorkState)> = Vec::new();
    {
        let mut jobs = spa.leaf_works.of(work).lock();
        for run in runs {
            let Some(job) = jobs.get_mut(&run.zap) else { continue };
            let state = match run.ended {
                Ended::Done => LeafWorkState::Complete,
                Ended::Faulted => LeafWorkState::Canceled,
                Ended::Early | Ended::Rests(_) => LeafWorkState::Active,
            };
            if state != LeafWorkState::Active || job.stored.offset != run.job.stored.offset {
                news.push((run.zap, run.job.stored.offset, state));
            }
            *job = run.job;
        }
    }
    if news.is_empty() {
        return Ok(());
    }
    let ended: Vec<ObjectId> = news.iter().filter(|news| news.2 != LeafWorkState::Active).map(|news| news.0).collect();
    spa.sync_task(move |cx| {
        let tree = cx.spa.tree();
        let mut targets = Vec::new();
        for (id, offset, state) in news {
            // one that left the pool meanwhile took its ZAP along
            let Some((_, config)) = leaf_of(&tree, id) else { continue };
            let zap = cx.mos.zap(id)?;
            let old = StoredWork::read(&zap, work)?;
            let path = config.path.clone().unwrap_or_default();
            targets.push((Target { guid: config.guid, path, zap, id, old }, StoredWork { offset, state, ..old }));
        }
        targets.into_iter().try_for_each(|(target, new)| settle(cx, work, &target, new).map(drop))
    })?;
    let mut jobs = spa.leaf_works.of(work).lock();
    jobs.retain(|zap, _| !ended.contains(zap));
    Ok(())
}
