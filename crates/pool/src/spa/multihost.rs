//! Multihost protection: no two machines import a pool at the same time (OpenZFS: `mmp.c`).
//!
//! # What it is
//! While property `multihost` is on, a thread rewrites the uberblock of the last sync repeatedly, with the time and a sequence number, to
//! one device after another. It has a slot of the labels' rings to itself, so no state of the pool is ever overwritten. An importer
//! recognises this from the uberblock and watches for longer than the owner may be silent. An owner that cannot write for
//! `zfs_multihost_fail_intervals` intervals suspends the pool: other machines no longer see it, so it must not write either.
//!
//! # An import
//! 1. [`watch`]: if an uberblock better than the first one turns up, the pool is in use. Up to 25 % random jitter is added to the time, for
//!    two machines that start at once.
//! 2. [`claim`]: ten times a random sequence number is written to all devices; it must still be the best uberblock after an interval. Two
//!    machines that watched at the same time see each other here.
//!
//! A read-only import watches the pool as well, and claims nothing: it would read inconsistent data while another machine writes.
//!
//! Machines that share devices do not share memory: heartbeats are written through to the device, and read from it, never from a cache.
//!
//! The time to watch comes from the disk; an absurd value is refused.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Env, Guid, tunable};
use ondisk::{MmpConfig, Uberblock};
use parking_lot::{Condvar, Mutex};
use vdev::label::{read_uberblocks_anew, write_heartbeat};
use vdev::{Leaf, LiveTree, TopVdev, VdevConfig, VdevTree, VdevType};

use crate::Error;
use crate::spa::Txgs;

/// The shortest interval (OpenZFS: `MMP_MIN_INTERVAL`).
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The fewest intervals of silence that suspend a pool (OpenZFS: `MMP_MIN_FAIL_INTERVALS`).
const FAIL_INTERVALS_MIN: u64 = 2;
/// Factor between the silence that an owner may keep and the time that an import watches (OpenZFS: `MMP_IMPORT_SAFETY_FACTOR`).
const SAFETY_FACTOR: u32 = 2;
/// Number of times that a claim is written and read back (OpenZFS: `MMP_IMPORT_VERIFY_ITERS`).
const CLAIMS: u32 = 10;
/// The longest time that an import watches; OpenZFS's largest settings that make sense come to a few minutes.
const WATCH_MAX: Duration = Duration::from_secs(30 * 60);
/// The interval at which the devices are read meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The weight of the past in the average time between two writes.
const AVERAGED: u32 = 128;
/// Number of labels of a device.
const LABELS: u64 = 4;

fn interval() -> Duration {
    Duration::from_millis(tunable::ZFS_MULTIHOST_INTERVAL.get()).max(INTERVAL_MIN)
}

fn fail_intervals() -> u64 {
    match tunable::ZFS_MULTIHOST_FAIL_INTERVALS.get() {
        0 => 0,
        n => n.max(FAIL_INTERVALS_MIN),
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

struct State {
    on: bool,
    stop: bool,
    /// The uberblock that the last sync wrote.
    synced: Option<Uberblock>,
    seq: u16,
    /// The average time between two writes.
    delay: Duration,
    last: Instant,
    /// Counter that selects the leaf of the next write.
    turn: usize,
}

/// The heartbeat of a pool that is open.
pub(crate) struct Multihost {
    tree: Arc<LiveTree>,
    env: Env,
    state: Mutex<State>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Multihost {
    pub(crate) fn new(tree: Arc<LiveTree>, env: Env) -> Arc<Multihost> {
        let state =
            State { on: false, stop: false, synced: None, seq: 1, delay: interval(), last: Instant::now(), turn: 0 };
        Arc::new(Multihost { tree, env, state: Mutex::new(state), changed: Condvar::new(), thread: Mutex::default() })
    }

    /// Turns the heartbeat on or off; if it fails for too long, it suspends `txgs`.
    pub(crate) fn set(self: &Arc<Self>, on: bool, txgs: &Arc<Txgs>) -> Result<(), Error> {
        let mut thread = self.thread.lock();
        let mut state = self.state.lock();
        if on && !state.on {
            (state.last, state.delay) = (Instant::now(), interval());
        }
        state.on = on;
        drop(state);
        self.changed.notify_all();
        if on && thread.is_none() {
            let (this, txgs) = (self.clone(), txgs.clone());
            let beat = std::thread::Builder::new().name("mmp".to_owned()).spawn(move || this.run(&txgs));
            *thread = Some(beat.map_err(|source| Error::Thread { source })?);
        }
        Ok(())
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // the thread has already passed any error to the txgs
            let _ended = thread.join();
        }
    }

    /// Returns the multihost fields for the uberblock of a sync.
    pub(crate) fn stamp(&self) -> MmpConfig {
        let state = self.state.lock();
        if state.on { config(state.delay, 0) } else { MmpConfig::OFF }
    }

    /// Notes that a sync has written `uberblock`, which counts as a heartbeat as well.
    pub(crate) fn synced(&self, uberblock: &Uberblock) {
        let mut state = self.state.lock();
        state.synced = Some(uberblock.clone());
        state.seq = 1;
        self.written(&mut state, true);
    }

    /// Updates the average time between writes. Never hides a delay, nor promises more than this thread alone can keep.
    fn written(&self, state: &mut State, good: bool) {
        let since = state.last.elapsed();
        if since > state.delay {
            state.delay = since;
        }
        if good {
            state.last = Instant::now();
            if since < state.delay {
                let least = interval() / self.leaves().max(1) as u32;
                state.delay = ((since + state.delay * (AVERAGED - 1)) / AVERAGED).max(least);
            }
        }
    }

    fn leaves(&self) -> usize {
        labelled(&self.tree.load()).count()
    }

    fn run(&self, txgs: &Txgs) {
        let mut state = self.state.lock();
        while !state.stop {
            let wait = if state.on { interval() / self.leaves().max(1) as u32 } else { LOOK_EVERY };
            self.changed.wait_for(&mut state, wait);
            if !state.on || state.stop {
                continue;
            }
            // another machine may take a suspended pool
            if txgs.failed().is_some() {
                return;
            }
            let silence = interval().saturating_mul(u32::try_from(fail_intervals()).unwrap_or(u32::MAX));
            if !silence.is_zero() && state.last.elapsed() > silence {
                let ms = state.last.elapsed().as_millis() as u64;
                txgs.fail(Arc::new(Error::NoHeartbeat { ms }));
                return;
            }
            let Some((uberblock, turn)) = self.next(&mut state) else { continue };
            // a hanging device must not delay the end of a sync
            parking_lot::MutexGuard::unlocked(&mut state, || {
                let good = self.beat(&uberblock, turn);
                self.written(&mut self.state.lock(), good);
            });
        }
    }

    /// Returns the next uberblock to write, and the counter that selects its leaf.
    fn next(&self, state: &mut State) -> Option<(Uberblock, usize)> {
        let now = self.env.now_s();
        let last = state.synced.as_mut()?;
        if last.timestamp != now {
            (last.timestamp, state.seq) = (now, 1);
        }
        last.mmp = Some(config(state.delay, state.seq));
        state.seq = state.seq.saturating_add(1);
        state.turn = state.turn.wrapping_add(1);
        Some((last.clone(), state.turn))
    }

    fn beat(&self, uberblock: &Uberblock, turn: usize) -> bool {
        let label = (self.env.random_u64() % LABELS) as usize;
        // one tree for both: another may have fewer leaves
        let tree = self.tree.load();
        let count = labelled(&tree).count().max(1);
        let chosen = labelled(&tree).nth(turn % count);
        chosen.is_some_and(|(top, leaf)| write(top, leaf, uberblock, label))
    }
}

fn config(delay: Duration, seq: u16) -> MmpConfig {
    MmpConfig::on(nanos(delay).max(1), interval().as_millis() as u64, fail_intervals(), seq)
}

/// Returns the leaves that have labels of their own, with their top-level vdevs.
fn with_labels(tree: &VdevTree) -> impl Iterator<Item = (&TopVdev, &Leaf)> {
    tree.tops().iter().filter(|top| top.is_concrete()).flat_map(move |top| {
        let leaves = top.config().leaves().filter(|leaf| leaf.kind != VdevType::DraidSpare);
        leaves.filter_map(move |leaf| Some((top, &**tree.leaf(leaf.guid)?)))
    })
}

/// Returns the writable leaves among [`with_labels`].
fn labelled(tree: &VdevTree) -> impl Iterator<Item = (&TopVdev, &Leaf)> {
    with_labels(tree).filter(|(_, leaf)| leaf.is_writable())
}

fn write(top: &TopVdev, leaf: &Leaf, uberblock: &Uberblock, label: usize) -> bool {
    write_heartbeat(leaf, top.ashift().into(), uberblock, label).is_ok()
}

/// Returns the best uberblock on any device now.
fn best(tree: &VdevTree) -> Option<Uberblock> {
    let of =
        |(top, leaf): (&TopVdev, &Leaf)| read_uberblocks_anew(&leaf.queued()?, top.ashift().into()).into_iter().next();
    with_labels(tree).filter_map(of).max_by_key(Uberblock::rank)
}

/// Returns how long to watch a pool whose best uberblock has `mmp`.
///
/// # Errors
/// [`Error::NotWritable`] where that is too long.
fn watch_time(mmp: &MmpConfig) -> Result<Duration, Error> {
    let intervals = u32::try_from(tunable::ZFS_MULTIHOST_IMPORT_INTERVALS.get().max(1)).unwrap_or(u32::MAX);
    let own = interval().saturating_mul(intervals).max(Duration::from_secs(1));
    let delay = Duration::from_nanos(mmp.delay_ns);
    let (time, counts_own) = match (mmp.interval_ms().map(Duration::from_millis), mmp.fail_intervals()) {
        (Some(theirs), Some(fails @ 1..)) => (theirs.saturating_mul(fails as u32).saturating_mul(SAFETY_FACTOR), false),
        (Some(theirs), Some(_)) => (own.max((theirs + delay).saturating_mul(intervals)), true),
        _ => (own.max((interval() + delay).saturating_mul(intervals)), true),
    };
    if time <= WATCH_MAX {
        return Ok(time);
    }
    let why = if counts_own && own > WATCH_MAX {
        "zfs_multihost_interval and zfs_multihost_import_intervals are so large"
    } else {
        "its owner may be silent for so long"
    };
    Err(Error::NotWritable(format!("{why} that it would have to be watched for {} s", time.as_secs())))
}

/// Makes sure that no other machine writes the pool; see the head of this file. `opened` is the uberblock that was opened, if it must be
/// the best. `to_write`: the pool is claimed as well; a read-only import only needs to know that nobody writes.
///
/// # Errors
/// [`Error::ActiveElsewhere`]; [`Error::NoHostid`] if this machine has no hostid by which others could recognise it; when the claim cannot
/// be written.
pub(crate) fn take(
    tree: &VdevTree,
    opened: Option<&Uberblock>,
    owner: (Option<u64>, Option<&str>),
    to_write: bool,
    env: &Env,
) -> Result<(), Error> {
    let Some(seen) = best(tree) else { return Ok(()) };
    let Some(mmp) = seen.mmp.filter(|mmp| mmp.delay_ns != 0) else { return Ok(()) };
    if super::config::host().0 == 0 {
        return Err(Error::NoHostid);
    }
    let active =
        || Error::ActiveElsewhere { host: owner.1.unwrap_or("<unknown>").to_string(), id: owner.0.unwrap_or(0) };
    let moved = opened.is_some_and(|opened| seen.rank() > opened.rank());
    if moved || !watch(tree, &seen, &mmp, env)? || (to_write && !claim(tree, &seen, &mmp, env)?) {
        return Err(active());
    }
    Ok(())
}

/// Returns whether `seen` stays the best uberblock for long enough.
fn watch(tree: &VdevTree, seen: &Uberblock, mmp: &MmpConfig, env: &Env) -> Result<bool, Error> {
    let time = watch_time(mmp)?;
    let end = Instant::now() + time + time.mul_f64((env.random_u64() % 250) as f64 / 1000.0);
    loop {
        if best(tree).is_none_or(|now| now.rank() > seen.rank()) {
            return Ok(false);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(true);
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}

/// Returns whether this machine's claims stay the best uberblocks.
fn claim(tree: &VdevTree, seen: &Uberblock, mmp: &MmpConfig, env: &Env) -> Result<bool, Error> {
    let (Some(interval), Some(seq)) = (mmp.interval_ms(), mmp.seq()) else { return Ok(true) };
    let wait = Duration::from_millis(interval).max(INTERVAL_MIN);
    let from = if seq >= u64::from(u16::MAX) { 0 } else { seq };
    let mut alone = true;
    for _ in 0..CLAIMS {
        let number = from + 1 + env.random_u64() % (u64::from(u16::MAX) - from);
        let mine = Uberblock { mmp: Some(mmp.with_seq(number as u16)), ..seen.clone() };
        write_claim(tree, &mine)?;
        std::thread::sleep(wait);
        alone = best(tree).is_some_and(|now| now.rank() == mine.rank());
        if !alone {
            break;
        }
    }
    // so that the next attempt has all sequence numbers again; if this fails it has fewer
    let _fewer = write_claim(tree, seen);
    Ok(alone)
}

/// Writes to all devices; enough of them must succeed that no other machine can miss the claim.
fn write_claim(tree: &VdevTree, uberblock: &Uberblock) -> Result<(), Error> {
    for top in tree.tops().iter().filter(|top| top.is_concrete()) {
        let own = labelled(tree).filter(|(of, _)| of.id() == top.id());
        let took = own.filter(|(_, leaf)| write(top, leaf, uberblock, 0));
        let took: BTreeSet<Guid> = took.map(|(_, leaf)| leaf.guid()).collect();
        if !is_seen_by_all(top.config(), &took) && !top.config().is_log {
            return Err(Error::ClaimNotWritten { vdev: top.guid() });
        }
    }
    Ok(())
}

/// Returns whether every machine that can use top-level vdev `top` sees at least one of the leaves that `took` a claim.
///
/// Any parity + 1 columns of a raidz suffice. Of a mirror each leg alone is enough to use it, so all must have taken the claim except those
/// that the configuration, which all machines read, says are out of use. A machine that cannot reach a leg that others may reach cannot
/// import the pool.
fn is_seen_by_all(top: &VdevConfig, took: &BTreeSet<Guid>) -> bool {
    let tells = |vdev: &VdevConfig| vdev.leaves().any(|leaf| took.contains(&leaf.guid));
    match top.nparity {
        0 => tells(top) && top.children.iter().all(|leg| leg.is_out_of_use() || tells(leg)),
        parity => took.len() as u64 > parity,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_would_be_watched_for_hours_is_refused_with_what_makes_it_so() {
        let refused = |mmp| match watch_time(&mmp) {
            Err(Error::NotWritable(why)) => why,
            other => panic!("{other:?}"),
        };
        let (never_fails, fails) = (MmpConfig::on(1, 1000, 0, 0), MmpConfig::on(1, 1000, 10, 0));
        assert_eq!(watch_time(&never_fails).unwrap().as_secs(), 20);
        assert_eq!(
            refused(MmpConfig::on(1, 100_000, 0, 0)),
            "its owner may be silent for so long that it would have to be watched for 2000 s"
        );
        let usual = tunable::ZFS_MULTIHOST_IMPORT_INTERVALS.get();
        tunable::ZFS_MULTIHOST_IMPORT_INTERVALS.set(0x7fff_ffff);
        let (by_own, by_owner) = (refused(never_fails), watch_time(&fails));
        tunable::ZFS_MULTIHOST_IMPORT_INTERVALS.set(usual);
        assert!(
            by_own.starts_with("zfs_multihost_interval and zfs_multihost_import_intervals are so large that"),
            "{by_own}"
        );
        // the owner is silent no longer than it says
        assert_eq!(by_owner.unwrap().as_secs(), 20);
    }
}
