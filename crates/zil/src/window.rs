//! One window of a replay: its records are applied by many threads, in an order that the [plan](crate::plan) allows.
//!
//! The calling thread walks the records in order. It puts a record of an object into that object's lane. For a fence it waits
//! until the lanes that the fence joins are empty, working in the lanes meanwhile, and then applies the fence itself. Other
//! threads work in the lanes. Each lane is worked by one thread at a time, which takes all records that wait in it. With a single
//! thread all records are applied in order.
//!
//! There are as many threads as there are cores, and more where records wait for devices ([`Pace`](base::pump::Pace)).

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::Instant;

use base::ObjectId;
use base::pump::{self, Tally};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::ahead::Ahead;
use crate::plan::{Joins, Lanes};
use crate::replay::{Due, Replay, Replayer};

/// The number of ready lanes from which it is worth waking another thread when records are quick.
const LANES_WORTH: usize = 8;

/// The outcome of a window.
#[derive(Debug)]
pub(crate) enum Ran<E> {
    /// All records are applied.
    All,
    /// This record of names failed; all records before it are applied, and none after it.
    Fence(usize),
    /// Record `n` failed twice; all records before it are applied, and perhaps some after it.
    Lost {
        /// Its index.
        n: usize,
        /// The error.
        error: E,
        /// True if a record of names after it is applied.
        fenced: bool,
    },
}

/// Applies the records `now`, for which `ahead` was read.
pub(crate) fn run<R: Replayer>(
    replay: &Replay<'_, R>,
    place: &R::Window,
    now: &[Due<'_>],
    ahead: &Ahead,
) -> Ran<R::Error> {
    let lanes: HashSet<ObjectId> = now.iter().filter_map(|due| due.step().lane()).collect();
    let most = replay.width.min(lanes.len());
    let (threads, did) = (AtomicUsize::new(1), AtomicUsize::new(0));
    let (state, changed) = (Mutex::default(), Condvar::new());
    let crew = Crew { replay, place, now, ahead, most, threads, did, state, changed };
    if most < 2 {
        return crew.in_order();
    }
    std::thread::scope(|scope| {
        // the other threads must end even if this one panics
        let _closing = Closing(&crew);
        crew.lead(scope)
    })
}

struct Crew<'a, 'd, R: Replayer> {
    replay: &'a Replay<'a, R>,
    place: &'a R::Window,
    now: &'a [Due<'d>],
    ahead: &'a Ahead,
    /// The maximum number of threads, and the current number.
    most: usize,
    threads: AtomicUsize,
    /// Records that are applied, or failed.
    did: AtomicUsize,
    state: Mutex<State<R::Error>>,
    /// Notified when the state changes.
    changed: Condvar,
}

struct State<E> {
    lanes: Lanes,
    /// The first record that failed twice.
    lost: Option<(usize, E)>,
    /// No more records are coming.
    closed: bool,
}

impl<E> Default for State<E> {
    fn default() -> Self {
        State { lanes: Lanes::default(), lost: None, closed: false }
    }
}

struct Closing<'a, 'c, 'd, R: Replayer>(&'a Crew<'c, 'd, R>);

impl<R: Replayer> Drop for Closing<'_, '_, '_, R> {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.changed.notify_all();
    }
}

/// The records of a lane that are being applied. If it is dropped before `good` is set, the records that wait in the lane are not
/// applied.
struct UnderWay<'a, 'c, 'd, R: Replayer> {
    crew: &'a Crew<'c, 'd, R>,
    object: ObjectId,
    good: bool,
}

impl<R: Replayer> Drop for UnderWay<'_, '_, '_, R> {
    fn drop(&mut self) {
        let lanes = &mut self.crew.state.lock().lanes;
        if self.good {
            lanes.done(self.object)
        } else {
            lanes.failed(self.object)
        }
        self.crew.changed.notify_all();
    }
}

impl<'d, R: Replayer> Crew<'_, 'd, R> {
    fn in_order(&self) -> Ran<R::Error> {
        for (n, due) in self.now.iter().enumerate() {
            if due.step().lane().is_none() {
                if self.one(n, due).is_err() {
                    return Ran::Fence(n);
                }
            } else if let Err(error) = self.one(n, due).or_else(|_| self.one(n, due)) {
                return Ran::Lost { n, error, fenced: false };
            }
        }
        Ran::All
    }

    /// Walks the records, and returns when all that were started are finished.
    fn lead<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Ran<R::Error> {
        let (mut fence, mut passed, mut n) = (None, None, 0);
        while let Some(due) = self.now.get(n) {
            let behind = n + self.push_from(n);
            if behind > n {
                n = behind;
                self.grow(scope);
                continue;
            }
            let joins = match &due.record {
                Some(record) => Joins::of(record, |dir, name| self.replay.replayer.file_of(dir, name)),
                None => Joins::All,
            };
            self.help_until(scope, &joins);
            if self.state.lock().lost.is_some() {
                break;
            }
            let begun = Instant::now();
            if self.one(n, due).is_err() {
                fence = Some(n);
                break;
            }
            self.replay.pace.saw(begun);
            self.did.fetch_add(1, Ordering::Relaxed);
            passed = Some(n);
            n += 1;
        }
        self.changed.notify_all();
        self.help_until(scope, &Joins::All);
        match (self.state.lock().lost.take(), fence) {
            (Some((n, error)), _) => Ran::Lost { n, error, fenced: passed > Some(n) },
            (None, Some(n)) => Ran::Fence(n),
            (None, None) => Ran::All,
        }
    }

    /// Puts the records from `n` to the next fence into their lanes. Returns their number.
    fn push_from(&self, n: usize) -> usize {
        let (mut state, mut count) = (self.state.lock(), 0);
        while let Some(object) = self.now.get(n + count).and_then(|due| due.step().lane()) {
            state.lanes.push(object, n + count);
            count += 1;
        }
        // a few quick records are not worth waking a thread
        if state.lanes.ready() >= LANES_WORTH || !self.replay.pace.is_quick() {
            self.changed.notify_all();
        }
        count
    }

    /// Works in the lanes until those that `joins` names are empty.
    fn help_until<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, joins: &Joins) {
        let mut state = self.state.lock();
        while !state.lanes.is_clear(joins) {
            state = self.next(scope, state);
        }
    }

    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let mut state = self.state.lock();
        while !state.closed {
            state = self.next(scope, state);
        }
    }

    /// Applies the records of a ready lane if there is one; otherwise waits for a change of state.
    fn next<'s, 'scope: 's>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        mut state: MutexGuard<'s, State<R::Error>>,
    ) -> MutexGuard<'s, State<R::Error>> {
        let Some((object, lane)) = state.lanes.take() else {
            self.changed.wait(&mut state);
            return state;
        };
        drop(state);
        let mut under_way = UnderWay { crew: self, object, good: false };
        let mut tally = Tally::begin();
        under_way.good = lane.into_iter().all(|n| {
            let Some(due) = self.now.get(n) else { return false };
            let done = self.one(n, due).or_else(|_| self.one(n, due)).map_err(|error| self.lose(n, error));
            if let Some(count) = tally.did(&self.replay.pace) {
                self.did.fetch_add(count, Ordering::Relaxed);
                self.grow(scope);
            }
            done.is_ok()
        });
        self.did.fetch_add(tally.tell(&self.replay.pace), Ordering::Relaxed);
        drop(under_way);
        self.state.lock()
    }

    /// Starts as many threads as are worthwhile for the remaining records.
    fn grow<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let left = self.now.len().saturating_sub(self.did.load(Ordering::Relaxed));
        pump::grow(&self.threads, self.replay.pace.threads(left, self.most), || {
            std::thread::Builder::new().name("zil-replay".to_owned()).spawn_scoped(scope, || self.work(scope)).is_ok()
        });
    }

    fn lose(&self, n: usize, error: R::Error) {
        let mut state = self.state.lock();
        if state.lost.as_ref().is_none_or(|(first, _)| n < *first) {
            state.lost = Some((n, error));
        }
    }

    fn one(&self, n: usize, due: &Due<'d>) -> Result<(), R::Error> {
        self.replay.one(self.place, due, self.ahead.data(n), self.ahead.is_superseded(n))
    }
}
