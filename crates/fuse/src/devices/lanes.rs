//! Threads that carry out requests, apart for each pool.
//!
//! A request may wait as long as its pool does: without an end if that is suspended, or for another request to this very directory, if a vdev of the pool is a loop device on one of its files. So the threads that read
//! requests from the kernel carry out none that touch a pool. They hand it to others, of which each *lane* (a pool) has a bounded number at a time: what waits in one lane takes nothing from the others.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Jobs of one lane that are carried out at a time.
const PARALLEL: usize = 32;
/// The maximum number of threads: enough for 64 lanes in which everything waits.
const THREADS_MAX: usize = 64 * PARALLEL;
/// Jobs of one lane that wait, beyond which who has another one waits.
const QUEUE_MAX: usize = 2048;
/// Jobs of one lane that wait, beyond which it takes no more questions, which may be refused.
const CROWD: usize = QUEUE_MAX / 2;
/// Bytes of the data of jobs of one lane, beyond which who has more waits.
const BYTES_MAX: usize = 512 << 20;
/// How long a thread waits for another job.
const IDLE: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce() + Send>;

/// The lanes, and their threads.
#[derive(Default)]
pub(super) struct Lanes(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// A job may begin, for a thread that waits for one.
    given: Condvar,
    /// A job is done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// Those that have jobs.
    lanes: HashMap<Arc<str>, Lane>,
    /// The lane of each job that may begin.
    ready: VecDeque<Arc<str>>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    /// Jobs that are not done.
    open: usize,
}

#[derive(Default)]
struct Lane {
    /// Jobs that have not begun, with their bytes.
    queue: VecDeque<(Job, usize)>,
    /// Jobs of the queue that may begin.
    ready: usize,
    /// Jobs that have begun, or may.
    begun: usize,
    /// Bytes of jobs that are not done.
    bytes: usize,
}

impl Lanes {
    /// Waits until all jobs are done.
    pub(super) fn wait_idle(&self) {
        let mut state = self.0.state.lock();
        while state.open > 0 {
            self.0.done.wait(&mut state);
        }
    }

    /// Returns whether so many jobs of a lane wait that one should be refused that may be.
    pub(super) fn is_crowded(&self, lane: &str) -> bool {
        self.0.state.lock().lanes.get(lane).is_some_and(|lane| lane.queue.len() >= CROWD)
    }

    /// Has a job done that has so many bytes of data. The caller waits while too many of the lane do.
    pub(super) fn run(&self, lane: &str, bytes: usize, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        let is_full = |lane: &Lane| {
            lane.queue.len() >= QUEUE_MAX || (lane.bytes > 0 && lane.bytes.saturating_add(bytes) > BYTES_MAX)
        };
        while state.lanes.get(lane).is_some_and(is_full) {
            self.0.done.wait(&mut state);
        }
        self.put(state, lane, (Box::new(job), bytes));
    }

    /// Has a job done, however many there are.
    pub(super) fn run_always(&self, lane: &str, job: impl FnOnce() + Send + 'static) {
        self.put(self.0.state.lock(), lane, (Box::new(job), 0));
    }

    fn put(&self, mut state: MutexGuard<'_, State>, lane: &str, job: (Job, usize)) {
        let all = &mut *state;
        let name: Arc<str> = all.lanes.get_key_value(lane).map_or_else(|| lane.into(), |(name, _)| name.clone());
        let lane = all.lanes.entry(name.clone()).or_default();
        lane.bytes += job.1;
        lane.queue.push_back(job);
        all.open += 1;
        if lane.begun >= PARALLEL {
            return;
        }
        lane.begun += 1;
        lane.ready += 1;
        all.ready.push_back(name);
        self.call(state);
    }

    /// Wakes a thread for a job that may begin, or makes one.
    fn call(&self, mut state: MutexGuard<'_, State>) {
        if state.ready.len() <= state.idle {
            self.0.given.notify_one();
            return;
        }
        if state.threads >= THREADS_MAX {
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = self.0.clone();
        let spawned = std::thread::Builder::new().name("fuse-zvol".to_owned()).spawn(move || shared.work());
        if spawned.is_ok() {
            return;
        }
        let mut state = self.0.state.lock();
        state.threads -= 1;
        // there is no other one that would
        if state.threads == 0 {
            drop(state);
            self.0.carry_out_one();
        }
    }
}

impl Shared {
    /// Carries out jobs until there has been none for a while.
    fn work(&self) {
        loop {
            if self.carry_out_one() {
                continue;
            }
            let mut state = self.state.lock();
            if !state.ready.is_empty() {
                continue;
            }
            state.idle += 1;
            let waited = self.given.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.ready.is_empty() {
                // under the same lock: nobody counts on this thread any more
                state.threads -= 1;
                return;
            }
        }
    }

    /// Carries out a job, if one may begin.
    fn carry_out_one(&self) -> bool {
        let mut state = self.state.lock();
        let Some((name, job, bytes)) = state.next() else { return false };
        drop(state);
        // a bug in one request ends that request: its reply goes with it
        let _done = catch_unwind(AssertUnwindSafe(job));
        self.state.lock().done(name, bytes);
        self.done.notify_all();
        true
    }
}

impl State {
    /// Takes the next job that may begin.
    fn next(&mut self) -> Option<(Arc<str>, Job, usize)> {
        let name = self.ready.pop_front()?;
        let lane = self.lanes.get_mut(&name)?;
        lane.ready -= 1;
        let (job, bytes) = lane.queue.pop_front()?;
        Some((name, job, bytes))
    }

    /// Notes that a job is done. The next of its lane may begin.
    fn done(&mut self, name: Arc<str>, bytes: usize) {
        self.open -= 1;
        let Some(lane) = self.lanes.get_mut(&name) else { return };
        lane.bytes -= bytes;
        if lane.queue.len() > lane.ready {
            lane.ready += 1;
            self.ready.push_back(name);
            return;
        }
        lane.begun -= 1;
        if lane.begun == 0 {
            self.lanes.remove(&name);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn what_waits_in_one_lane_takes_nothing_from_another() {
        let (lanes, gate, done) = (Lanes::default(), Arc::new(Mutex::new(())), Arc::new(AtomicUsize::new(0)));
        let held = gate.lock();
        for _ in 0..CROWD + PARALLEL {
            let (gate, done) = (gate.clone(), done.clone());
            lanes.run("suspended", 9, move || {
                drop(gate.lock());
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        // jobs of another one, which wait for each other
        let (all, (tell, told)) = (Arc::new(Barrier::new(PARALLEL)), channel());
        for _ in 0..PARALLEL {
            let (all, tell) = (all.clone(), tell.clone());
            lanes.run("healthy", 9, move || {
                all.wait();
                tell.send(()).unwrap();
            });
        }
        (0..PARALLEL).for_each(|_| told.recv().unwrap());
        {
            let state = lanes.0.state.lock();
            assert_eq!(state.lanes["suspended"].begun, PARALLEL);
            assert!(state.threads <= 2 * PARALLEL);
        }
        assert!(lanes.is_crowded("suspended") && !lanes.is_crowded("healthy"));
        drop(held);
        lanes.wait_idle();
        assert_eq!(done.load(Ordering::Relaxed), CROWD + PARALLEL);
        let state = lanes.0.state.lock();
        assert!(state.lanes.is_empty() && state.ready.is_empty() && state.open == 0);
    }

    #[test]
    fn a_lane_takes_no_more_data_than_its_bound() {
        let (lanes, gate) = (Arc::new(Lanes::default()), Arc::new(Mutex::new(())));
        let held = gate.lock();
        let wait = gate.clone();
        lanes.run("a", BYTES_MAX, move || drop(wait.lock()));
        let ((tell, told), further) = (channel(), lanes.clone());
        let thread = std::thread::Builder::new().spawn(move || {
            further.run("a", 1, || {});
            tell.send(()).unwrap();
        });
        lanes.run("b", BYTES_MAX, || {});
        lanes.run("a", 0, || {});
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "more was taken");
        drop(held);
        told.recv().unwrap();
        thread.unwrap().join().unwrap();
        lanes.wait_idle();
    }

    #[test]
    fn a_job_that_panics_leaves_room_for_others() {
        let (lanes, done) = (Lanes::default(), Arc::new(AtomicUsize::new(0)));
        for n in 0..4 * PARALLEL {
            let done = done.clone();
            lanes.run("a", 1, move || {
                assert!(n % 2 == 0, "a job that panics");
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        lanes.wait_idle();
        assert_eq!(done.load(Ordering::Relaxed), 2 * PARALLEL);
    }
}
