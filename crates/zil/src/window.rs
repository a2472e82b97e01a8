//! One window of a replay: its records on many threads, in an order that the [plan](crate::plan) allows.
//!
//! The calling thread goes through the records in order: a record of an object goes into its lane, a fence waits for the lanes that it joins and
//! is done by the caller itself, who works in the lanes while it waits. Other threads work in the lanes. A lane is worked in by one
//! thread at a time. With one thread all is done in order.

use std::collections::HashSet;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::plan::{Joins, Lanes};
use crate::replay::{Due, Replay, Replayer};

/// How a window went.
#[derive(Debug)]
pub(crate) enum Ran<E> {
    /// All is done.
    All,
    /// This record of names failed; all before it is done, and nothing behind.
    Fence(usize),
    /// This record failed twice; all before it is done, and something behind it perhaps.
    Lost(usize, E),
}

/// Does the records `now`. Those `superseded` are done in part.
pub(crate) fn run<R: Replayer>(
    replay: &Replay<'_, R>,
    place: &R::Window,
    now: &[Due<'_>],
    superseded: &HashSet<usize>,
) -> Ran<R::Error> {
    let lanes: HashSet<u64> = now.iter().filter_map(|due| due.step().lane()).collect();
    let threads = replay.width.min(lanes.len());
    let crew = Crew { replay, place, now, superseded, state: Mutex::default(), changed: Condvar::new() };
    if threads < 2 {
        return crew.in_order();
    }
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // with fewer threads it only takes longer
            if std::thread::Builder::new().name("zil-replay".to_owned()).spawn_scoped(scope, || crew.work()).is_err() {
                break;
            }
        }
        // also if this thread panics, the others must end
        let _closing = Closing(&crew);
        crew.lead()
    })
}

struct Crew<'a, 'd, R: Replayer> {
    replay: &'a Replay<'a, R>,
    place: &'a R::Window,
    now: &'a [Due<'d>],
    superseded: &'a HashSet<usize>,
    state: Mutex<State<R::Error>>,
    /// The state changed.
    changed: Condvar,
}

struct State<E> {
    lanes: Lanes,
    /// The first record that failed twice.
    lost: Option<(usize, E)>,
    /// Nothing comes any more.
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

/// A record of a lane that is under way. Given up, what waits behind it is not done.
struct UnderWay<'a, 'c, 'd, R: Replayer> {
    crew: &'a Crew<'c, 'd, R>,
    object: u64,
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
                return Ran::Lost(n, error);
            }
        }
        Ran::All
    }

    /// Goes through the records, and comes back when all that was begun is done.
    fn lead(&self) -> Ran<R::Error> {
        let mut fence = None;
        for (n, due) in self.now.iter().enumerate() {
            if let Some(object) = due.step().lane() {
                self.state.lock().lanes.push(object, n);
                self.changed.notify_one();
                continue;
            }
            let joins = match &due.record {
                Some(record) => Joins::of(record, |dir, name| self.replay.replayer.file_of(dir, name)),
                None => Joins::All,
            };
            self.help_until(&joins);
            if self.state.lock().lost.is_some() {
                break;
            }
            if self.one(n, due).is_err() {
                fence = Some(n);
                break;
            }
        }
        self.help_until(&Joins::All);
        match (self.state.lock().lost.take(), fence) {
            (Some((n, error)), _) => Ran::Lost(n, error),
            (None, Some(n)) => Ran::Fence(n),
            (None, None) => Ran::All,
        }
    }

    /// Works in the lanes until those that are joined are empty.
    fn help_until(&self, joins: &Joins) {
        let mut state = self.state.lock();
        while !state.lanes.is_clear(joins) {
            state = self.next(state);
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            state = self.next(state);
        }
    }

    /// Does a record of a lane if one can begin; else waits until something changes.
    fn next<'s>(&'s self, mut state: MutexGuard<'s, State<R::Error>>) -> MutexGuard<'s, State<R::Error>> {
        let Some((object, n)) = state.lanes.take() else {
            self.changed.wait(&mut state);
            return state;
        };
        drop(state);
        let mut under_way = UnderWay { crew: self, object, good: false };
        if let Some(due) = self.now.get(n) {
            match self.one(n, due).or_else(|_| self.one(n, due)) {
                Ok(()) => under_way.good = true,
                Err(error) => self.lose(n, error),
            }
        }
        drop(under_way);
        self.state.lock()
    }

    fn lose(&self, n: usize, error: R::Error) {
        let mut state = self.state.lock();
        if state.lost.as_ref().is_none_or(|(first, _)| n < *first) {
            state.lost = Some((n, error));
        }
    }

    fn one(&self, n: usize, due: &Due<'d>) -> Result<(), R::Error> {
        self.replay.one(self.place, due, self.superseded.contains(&n))
    }
}
