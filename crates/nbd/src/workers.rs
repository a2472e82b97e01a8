//! The threads of a connection, and how much of it may be in flight.
//!
//! A request is reserved before its payload is read, so that a client that sends more than may be in flight waits in its socket. Threads begin as they are needed, up to their bound; where none can be had,
//! requests are carried out by the thread that reads them.

use std::collections::VecDeque;
use std::thread::{Builder, Scope};

use parking_lot::{Condvar, Mutex};

use crate::transmit::Bounds;

/// Jobs of type `J`, which wait or are carried out.
pub(crate) struct Workers<J> {
    bounds: Bounds,
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

impl<J: Send> Workers<J> {
    pub(crate) fn new(bounds: Bounds) -> Workers<J> {
        let state = State { queue: VecDeque::new(), requests: 0, bytes: 0, threads: 0, idle: 0, closed: false };
        Workers { bounds, state: Mutex::new(state), work: Condvar::new(), room: Condvar::new() }
    }

    /// Ends the threads when the result is dropped.
    pub(crate) fn closing(&self) -> Closing<'_, J> {
        Closing(self)
    }

    /// Waits until one more request of `cost` bytes may be in flight.
    pub(crate) fn reserve(&self, cost: usize) {
        let mut state = self.state.lock();
        // one that is larger than the bound is in flight alone
        while state.requests >= self.bounds.requests
            || (state.bytes > 0 && state.bytes.saturating_add(cost) > self.bounds.bytes)
        {
            self.room.wait(&mut state);
        }
        state.requests += 1;
        state.bytes += cost;
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
        self.room.notify_one();
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
            let workers = Workers::new(bounds);
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
        }
    }

    #[test]
    fn jobs_run_beside_each_other() {
        let workers = Workers::new(Bounds { threads: 2, requests: 2, bytes: 1 });
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
