//! The threads of a connection, and how much of it may be in flight.
//!
//! A request is reserved before its payload is read, so that a client that sends more than may be in flight waits in its socket; it counts among what all connections have in flight ([`Budget`]), too. Threads begin as they are needed, up to their bound; where none can be had,
//! requests are carried out by the thread that reads them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{Builder, Scope};

use parking_lot::{Condvar, Mutex};

use crate::budget::Budget;
use crate::transmit::Bounds;

/// Jobs of type `J`, which wait or are carried out.
pub(crate) struct Workers<J> {
    bounds: Bounds,
    budget: Arc<Budget>,
    state: Mutex<State<J>>,
    /// Wakes threads that wait for a job.
    work: Condvar,
    /// Wakes the reader that waits for room.
    room: Condvar,
}

struct State<J> {
    queue: VecDeque<(J, usize)>,
    /// Requests in flight, and their bytes.
    requests: usize,
    bytes: usize,
    /// Those of the bytes that are taken from what is common to all connections.
    taken: usize,
    threads: usize,
    /// Threads that wait.
    idle: usize,
    closed: bool,
}

/// Ends the threads when it is dropped, after they have done what waits.
pub(crate) struct Closing<'a, J>(&'a Workers<J>);

impl<J> Drop for Closing<'_, J> {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.work.notify_all();
    }
}

/// What was reserved for a request that has not come is given back.
impl<J> Drop for Workers<J> {
    fn drop(&mut self) {
        self.budget.give(self.state.get_mut().taken);
    }
}

impl<J: Send> Workers<J> {
    pub(crate) fn new(bounds: Bounds, budget: Arc<Budget>) -> Workers<J> {
        let state =
            State { queue: VecDeque::new(), requests: 0, bytes: 0, taken: 0, threads: 0, idle: 0, closed: false };
        Workers { bounds, budget, state: Mutex::new(state), work: Condvar::new(), room: Condvar::new() }
    }

    /// Ends the threads when the result is dropped.
    pub(crate) fn closing(&self) -> Closing<'_, J> {
        Closing(self)
    }

    /// Waits until one more request of `cost` bytes may be in flight.
    pub(crate) fn reserve(&self, cost: usize) {
        loop {
            let mut state = self.state.lock();
            // one that is larger than the bound is in flight alone
            while state.requests >= self.bounds.requests
                || (state.bytes > 0 && state.bytes.saturating_add(cost) > self.bounds.bytes)
            {
                self.room.wait(&mut state);
            }
            let needed = self.of_budget(state.bytes.saturating_add(cost)).saturating_sub(state.taken);
            let Err(since) = self.budget.take(needed) else {
                state.requests += 1;
                state.bytes += cost;
                state.taken += needed;
                return;
            };
            drop(state);
            // until another connection has given back something, or a request of this one is done
            self.budget.wait(since);
        }
    }

    /// Returns how many of the bytes in flight are not of the connection's own share.
    fn of_budget(&self, bytes: usize) -> usize {
        self.budget.beyond_share(bytes, self.bounds.bytes)
    }

    /// Has a job done that was reserved with this cost.
    pub(crate) fn submit<'scope, 'env, F: Fn(J) + Sync>(
        &'scope self,
        scope: &'scope Scope<'scope, 'env>,
        (job, cost): (J, usize),
        run: &'scope F,
    ) {
        let mut state = self.state.lock();
        state.queue.push_back((job, cost));
        if state.idle >= state.queue.len() {
            self.work.notify_one();
            return;
        }
        if state.threads < self.bounds.threads {
            state.threads += 1;
            drop(state);
            let thread = Builder::new().name("nbd-request".to_owned()).spawn_scoped(scope, || self.work(run));
            if thread.is_ok() {
                return;
            }
            state = self.state.lock();
            state.threads -= 1;
        }
        if state.threads > 0 {
            self.work.notify_one();
            return;
        }
        let next = state.queue.pop_front();
        drop(state);
        next.into_iter().for_each(|next| self.finish(next, run));
    }

    fn work(&self, run: &impl Fn(J)) {
        loop {
            let mut state = self.state.lock();
            let next = loop {
                match state.queue.pop_front() {
                    Some(next) => break next,
                    None if state.closed => return,
                    None => {}
                }
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
            };
            drop(state);
            self.finish(next, run);
        }
    }

    fn finish(&self, (job, cost): (J, usize), run: &impl Fn(J)) {
        run(job);
        let mut state = self.state.lock();
        state.requests -= 1;
        state.bytes -= cost;
        let surplus = state.taken - self.of_budget(state.bytes);
        state.taken -= surplus;
        self.room.notify_one();
        drop(state);
        self.budget.give(surplus);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_in_flight_is_bounded_and_all_is_done() {
        for threads in [0, 1, 3] {
            let bounds = Bounds { threads, requests: 5, bytes: 100 };
            // of which the connection may have a part, and more if it is free
            let budget = Arc::new(Budget::new(120, 3));
            let workers = Workers::new(bounds, budget.clone());
            let (done, bytes, most) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
            let run = |cost: usize| {
                most.fetch_max(bytes.load(Ordering::Relaxed), Ordering::Relaxed);
                bytes.fetch_sub(cost, Ordering::Relaxed);
                done.fetch_add(1, Ordering::Relaxed);
            };
            std::thread::scope(|scope| {
                let _closing = workers.closing();
                for n in 0..200 {
                    let cost = if n == 50 { 300 } else { 40 };
                    workers.reserve(cost);
                    bytes.fetch_add(cost, Ordering::Relaxed);
                    workers.submit(scope, (cost, cost), &run);
                }
            });
            let state = workers.state.lock();
            assert_eq!((done.load(Ordering::Relaxed), state.requests, state.bytes), (200, 0, 0));
            // 80, the one that is alone, and one that has just been reserved
            assert!(most.load(Ordering::Relaxed) <= 340);
            drop(state);
            assert_eq!(budget.taken(), 0);
        }
    }

    /// One that has all that is common keeps no other from its own share, and gives it back with its end.
    #[test]
    fn what_one_connection_holds_leaves_the_share_of_another() {
        let bounds = Bounds { threads: 1, requests: 9, bytes: 1000 };
        // 10 bytes each, and 30 for all
        let budget = Arc::new(Budget::new(60, 3));
        let holds = Workers::<()>::new(bounds, budget.clone());
        holds.reserve(40);
        assert_eq!(budget.taken(), 30);
        let other = Arc::new(Workers::<()>::new(bounds, budget.clone()));
        (0..5).for_each(|_| other.reserve(2));
        assert_eq!(budget.taken(), 30);
        let ((told, is_told), waits) = (channel(), other.clone());
        let thread = Builder::new().spawn(move || {
            waits.reserve(2);
            told.send(()).is_ok()
        });
        assert!(is_told.recv_timeout(Duration::from_millis(50)).is_err(), "more is in flight than there may be");
        // a request of its own that is done makes room
        other.finish(((), 2), &|()| ());
        assert!(is_told.recv_timeout(Duration::from_secs(30)).is_ok());
        assert!(thread.is_ok_and(|thread| thread.join().is_ok_and(|sent| sent)));
        drop(holds);
        assert_eq!(budget.taken(), 0);
        other.reserve(7);
        assert_eq!(budget.taken(), 7);
        // one that is larger than all is in flight with nobody else
        drop(other);
        let alone = Workers::<()>::new(bounds, budget.clone());
        alone.reserve(500);
        assert_eq!(budget.taken(), 30);
    }

    #[test]
    fn jobs_run_beside_each_other() {
        let workers = Workers::new(Bounds { threads: 2, requests: 2, bytes: 1 }, Arc::new(Budget::new(0, 1)));
        let (first, second) = (channel::<()>(), channel::<()>());
        let ends = Mutex::new((Some(first.0), Some(second.0), Some(first.1), Some(second.1)));
        // each waits for the other
        let run = |is_first: bool| {
            let (tell, hear) = {
                let mut ends = ends.lock();
                if is_first { (ends.0.take(), ends.3.take()) } else { (ends.1.take(), ends.2.take()) }
            };
            assert!(tell.is_some_and(|tell| tell.send(()).is_ok()));
            assert!(hear.is_some_and(|hear| hear.recv_timeout(Duration::from_secs(30)).is_ok()));
        };
        std::thread::scope(|scope| {
            let _closing = workers.closing();
            for is_first in [true, false] {
                workers.reserve(0);
                workers.submit(scope, (is_first, 0), &run);
            }
        });
    }
}
