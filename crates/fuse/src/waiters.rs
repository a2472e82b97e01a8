//! Threads for requests that wait: as many as there are such requests, up to a limit, beyond which requests wait for a thread; none after some
//! idle seconds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The maximum number of threads.
const THREADS_MAX: usize = 128;
/// The maximum number of jobs that wait for a thread.
const QUEUE_MAX: usize = 1024;
/// How long a thread waits for another job.
const IDLE: Duration = Duration::from_secs(2);

/// A job, which is told whether it runs in a thread of its own.
type Job = Box<dyn FnOnce(bool) + Send>;

/// The threads.
#[derive(Clone, Default)]
pub(crate) struct Waiters(Arc<Pool>);

#[derive(Default)]
struct Pool {
    /// The number of jobs that threads which answer requests run themselves, and how many of these there may be at a time.
    near: AtomicUsize,
    near_max: usize,
    state: Mutex<State>,
    /// A job is there, for a thread that waits for one.
    given: Condvar,
    /// A job is done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    /// Jobs that are not done.
    open: usize,
}

impl Waiters {
    /// Threads for the requests that `answering` threads take.
    pub(crate) fn new(answering: usize) -> Waiters {
        Waiters(Arc::new(Pool { near_max: answering / 2, ..Pool::default() }))
    }

    /// Counts a job that is done elsewhere, until this is dropped.
    pub(crate) fn open_job(&self) -> OpenJob {
        OpenJob::new(&self.0)
    }

    /// Runs a job that others may wait for: so it waits for no thread. One that answers requests may run it itself, as long as half of these threads are left
    /// for others, as another thread need not be woken for it; otherwise it has a thread at once, beyond the limit if need be.
    pub(crate) fn run_near(&self, job: impl FnOnce() + Send + 'static) {
        let most = self.0.near_max;
        let one_more = |near: usize| (near < most).then_some(near + 1);
        if self.0.near.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return self.run_first(job);
        }
        let _near = Near(&self.0.near);
        job();
    }

    fn run_first(&self, job: impl FnOnce() + Send + 'static) {
        let job = self.counted(move |_| job());
        let mut state = self.0.state.lock();
        state.queue.push_front(job);
        if !self.is_taken(state, usize::MAX) {
            let first = self.0.state.lock().queue.pop_front();
            if let Some(job) = first {
                job(false);
            }
        }
    }

    /// Runs a job in another thread, however many jobs wait for one. If no thread can be had the job is dropped.
    pub(crate) fn run_later(&self, job: impl FnOnce() + Send + 'static) {
        let job = self.counted(move |_| job());
        let mut state = self.0.state.lock();
        state.queue.push_back(job);
        if !self.is_taken(state, THREADS_MAX) {
            let mut state = self.0.state.lock();
            let dropped = if state.threads == 0 { state.queue.pop_back() } else { None };
            drop(state);
            drop(dropped);
        }
    }

    /// Waits until all jobs are done.
    pub(crate) fn wait_idle(&self) {
        let mut state = self.0.state.lock();
        while state.open > 0 {
            self.0.done.wait(&mut state);
        }
    }

    /// Runs a job in another thread; in this one, if no thread can be had, or too many jobs wait for one.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.run_apart(move |_| job());
    }

    /// As [`Waiters::run`]; the job is told whether it runs in a thread of its own, where it may wait for other requests.
    pub(crate) fn run_apart(&self, job: impl FnOnce(bool) + Send + 'static) {
        let job = self.counted(job);
        let mut state = self.0.state.lock();
        if state.queue.len() >= QUEUE_MAX {
            drop(state);
            return job(false);
        }
        state.queue.push_back(job);
        if !self.is_taken(state, THREADS_MAX) {
            self.run_alone();
        }
    }

    /// A job that counts until it is done, or dropped.
    fn counted(&self, job: impl FnOnce(bool) + Send + 'static) -> Job {
        let open = OpenJob::new(&self.0);
        Box::new(move |apart| {
            job(apart);
            drop(open);
        })
    }

    /// Has a thread take the job that was just queued, a new one if there are fewer than `most`; `false` if that cannot be had.
    fn is_taken(&self, mut state: MutexGuard<'_, State>, most: usize) -> bool {
        if state.queue.len() <= state.idle {
            self.0.given.notify_one();
            return true;
        }
        if state.threads >= most {
            return true;
        }
        state.threads += 1;
        drop(state);
        let running = Running(Some(self.0.clone()));
        std::thread::Builder::new().name("fuse-wait".to_owned()).spawn(move || running.work()).is_ok()
    }

    /// Runs a job in this thread if there is no other one that would.
    fn run_alone(&self) {
        let mut state = self.0.state.lock();
        let job = if state.threads == 0 { state.queue.pop_front() } else { None };
        drop(state);
        if let Some(job) = job {
            job(false);
        }
    }
}

/// A job that is run by a thread which answers requests.
struct Near<'a>(&'a AtomicUsize);

impl Drop for Near<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A job that is not done.
pub(crate) struct OpenJob(Arc<Pool>);

impl OpenJob {
    fn new(pool: &Arc<Pool>) -> OpenJob {
        pool.state.lock().open += 1;
        OpenJob(pool.clone())
    }
}

impl Drop for OpenJob {
    fn drop(&mut self) {
        self.0.state.lock().open -= 1;
        self.0.done.notify_all();
    }
}

/// One of the threads, which counts as long as this has its pool.
struct Running(Option<Arc<Pool>>);

impl Running {
    /// Runs jobs until there has been none for a while.
    fn work(mut self) {
        let Some(pool) = self.0.clone() else { return };
        let mut state = pool.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job(true);
                state = pool.state.lock();
                if state.threads > THREADS_MAX {
                    // one was made for a job that could not wait, and each of those has its own
                    state.threads -= 1;
                    self.0 = None;
                    return;
                }
                continue;
            }
            state.idle += 1;
            let waited = pool.given.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                // under the same lock: nobody counts on this thread any more
                state.threads -= 1;
                self.0 = None;
                return;
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(pool) = &self.0 {
            pool.state.lock().threads -= 1;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn jobs_that_wait_for_one_another_all_run() {
        let (waiters, all) = (Waiters::default(), Arc::new(Barrier::new(21)));
        for _ in 0..3 {
            for _ in 0..20 {
                let all = all.clone();
                waiters.run(move || {
                    all.wait();
                });
            }
            all.wait();
        }
        waiters.wait_idle();
        assert!(waiters.0.state.lock().threads <= 60 && waiters.0.state.lock().open == 0);
    }

    #[test]
    fn half_of_the_threads_that_answer_may_run_jobs_themselves() {
        let (waiters, here) = (Waiters::new(3), std::thread::current().id());
        let (tell, told) = std::sync::mpsc::channel();
        let job = || {
            let tell = tell.clone();
            move || tell.send(std::thread::current().id()).unwrap()
        };
        for _ in 0..2 {
            waiters.run_near(job());
            assert_eq!(told.try_recv(), Ok(here));
        }
        let (inner, second) = (waiters.clone(), job());
        waiters.run_near(move || inner.run_near(second));
        assert_ne!(told.recv().unwrap(), here);
        Waiters::new(1).run_near(job());
        assert_ne!(told.recv().unwrap(), here);
    }

    /// A job for which those wait that have all threads.
    #[test]
    fn a_job_that_others_wait_for_has_a_thread_at_once() {
        let waiters = Waiters::new(1);
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let told = Arc::new(Mutex::new(told));
        for _ in 0..2 * THREADS_MAX {
            let told = told.clone();
            // each waits until the sender is gone
            waiters.run(move || {
                let _gone = told.lock().recv();
            });
        }
        assert_eq!(waiters.0.state.lock().threads, THREADS_MAX);
        waiters.run_near(move || drop(tell));
        waiters.wait_idle();
    }

    /// Who hands over a job does not wait for those of others, however many there are.
    #[test]
    fn jobs_beyond_the_threads_wait_for_one() {
        let (waiters, go, apart) = (Waiters::default(), Arc::new(Mutex::new(())), Arc::new(AtomicUsize::new(0)));
        let held = go.lock();
        for _ in 0..2 * THREADS_MAX {
            let (go, apart) = (go.clone(), apart.clone());
            waiters.run_apart(move |is_apart| {
                drop(go.lock());
                apart.fetch_add(is_apart.into(), Ordering::Relaxed);
            });
        }
        assert_eq!(waiters.0.state.lock().threads, THREADS_MAX);
        drop(held);
        waiters.wait_idle();
        assert_eq!(apart.load(Ordering::Relaxed), 2 * THREADS_MAX);
    }
}
