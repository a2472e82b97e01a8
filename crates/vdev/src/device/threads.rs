//! Threads that wait for devices.
//!
//! Where the kernel makes no operations by itself, a few threads of the process make those of all [`Flight`](super::Flight)s. They are started as they
//! are needed, and end when nothing was to be done for a while.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::Device;
use super::flight::{Landed, Op, Replies};

/// The most threads.
const THREADS_MAX: usize = 64;
/// After so long without work a thread ends.
const IDLE: Duration = Duration::from_secs(2);

/// An operation on its way.
struct Job {
    device: Arc<dyn Device>,
    op: Op,
    tag: u64,
    replies: Arc<Replies>,
}

impl Job {
    fn make(mut self) {
        // a device that panics must not leave its caller waiting
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.op.make(&*self.device)));
        let result = made.unwrap_or_else(|_| Err(std::io::Error::other("the device's code panicked")));
        self.replies.send(Landed { tag: self.tag, buffer: self.op.buffer, result });
    }
}

#[derive(Default)]
struct Pool {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { jobs: VecDeque::new(), threads: 0, idle: 0 });
static MORE: Condvar = Condvar::new();

/// Has a thread make the operation; its outcome goes to `replies`. Without a thread to be had, the caller makes it.
pub(super) fn make(device: Arc<dyn Device>, op: Op, tag: u64, replies: Arc<Replies>) {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    pool.jobs.push_back(Job { device, op, tag, replies });
    if pool.idle >= pool.jobs.len() {
        return MORE.notify_one();
    }
    if pool.threads < THREADS_MAX {
        match thread::Builder::new().name("vdev-io".to_owned()).spawn(work) {
            Ok(_) => pool.threads += 1,
            Err(_) if pool.threads == 0 => {
                let job = pool.jobs.pop_back();
                drop(pool);
                job.into_iter().for_each(Job::make);
            }
            Err(_) => {}
        }
    }
}

/// Makes what comes, until nothing does.
fn work() {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(job) = pool.jobs.pop_front() {
            drop(pool);
            job.make();
            pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        pool.idle += 1;
        let (woken, waited) = MORE.wait_timeout(pool, IDLE).unwrap_or_else(PoisonError::into_inner);
        pool = woken;
        pool.idle -= 1;
        if waited.timed_out() && pool.jobs.is_empty() {
            pool.threads -= 1;
            return;
        }
    }
}
