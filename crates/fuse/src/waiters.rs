//! Threads for requests that wait: as many as there are such requests, up to a limit; none after some idle seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::{Condvar, Mutex};

/// The maximum number of threads.
const THREADS_MAX: usize = 128;
/// How long a thread waits for another request.
const IDLE: Duration = Duration::from_secs(2);

/// A job, which is told whether it runs in a thread of its own.
type Job = Box<dyn FnOnce(bool) + Send>;

/// The threads.
pub(crate) struct Waiters {
    /// Holds nothing: a job is passed to a thread that waits for one.
    pass: Sender<Job>,
    take: Receiver<Job>,
    running: Arc<AtomicUsize>,
    jobs: Arc<Jobs>,
}

/// The number of jobs that are not done.
#[derive(Default)]
struct Jobs {
    open: Mutex<usize>,
    done: Condvar,
}

impl Waiters {
    pub(crate) fn new() -> Waiters {
        let (pass, take) = bounded(0);
        Waiters { pass, take, running: Arc::default(), jobs: Arc::default() }
    }

    /// Waits until all jobs are done.
    pub(crate) fn wait_idle(&self) {
        let mut open = self.jobs.open.lock();
        while *open > 0 {
            self.jobs.done.wait(&mut open);
        }
    }

    /// Runs a job in another thread; in this one, if there are as many threads as there may be, or no more can be had.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.run_apart(move |_| job());
    }

    /// As [`Waiters::run`]; the job is told whether it runs in a thread of its own, where it may wait for other requests.
    pub(crate) fn run_apart(&self, job: impl FnOnce(bool) + Send + 'static) {
        let open = OpenJob::new(&self.jobs);
        let job: Job = Box::new(move |apart| {
            job(apart);
            drop(open);
        });
        let Err(refused) = self.pass.try_send(job) else { return };
        let job = refused.into_inner();
        let Some(running) = Running::one_more(&self.running) else { return job(false) };
        // the job is passed, so that it is still here if no thread can be had
        let (first, given) = bounded::<Job>(1);
        let take = self.take.clone();
        let spawned = std::thread::Builder::new().name("fuse-wait".to_owned()).spawn(move || {
            let _running = running;
            let mut next = given.recv().ok();
            while let Some(job) = next {
                job(true);
                next = take.recv_timeout(IDLE).ok();
            }
        });
        match spawned {
            Ok(_) => {
                // the thread waits for it
                let _ = first.send(job);
            }
            Err(_) => job(false),
        }
    }
}

/// A job that is not done.
struct OpenJob(Arc<Jobs>);

impl OpenJob {
    fn new(jobs: &Arc<Jobs>) -> OpenJob {
        *jobs.open.lock() += 1;
        OpenJob(jobs.clone())
    }
}

impl Drop for OpenJob {
    fn drop(&mut self) {
        *self.0.open.lock() -= 1;
        self.0.done.notify_all();
    }
}

/// One of the threads.
struct Running(Arc<AtomicUsize>);

impl Running {
    /// Counts one more, unless there are as many as there may be.
    fn one_more(all: &Arc<AtomicUsize>) -> Option<Running> {
        let more = |now: usize| (now < THREADS_MAX).then_some(now + 1);
        all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Running(all.clone()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn jobs_that_wait_for_one_another_all_run() {
        let (waiters, all) = (Waiters::new(), Arc::new(Barrier::new(21)));
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
        assert!(waiters.running.load(Ordering::Relaxed) <= 60 && *waiters.jobs.open.lock() == 0);
    }
}
