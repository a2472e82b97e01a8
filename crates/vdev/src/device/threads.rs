//! Threads that wait for devices.
//!
//! Where the kernel makes no operations by itself, threads of the process make those of all [`Flight`](super::Flight)s, each one at a time. There are as
//! many as operations under way, so that a device which hangs has only those of its own; these are bounded by the depth of a flight, and by the
//! queue of the leaf. They are started as they are needed, and end when nothing was to be done for a while.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::Device;
use super::flight::{Landed, Op, Replies};

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
    fn make(self) {
        let Job { device, mut op, tag, replies } = self;
        let result = op.make(&*device);
        // who hears of it may close the device, and open it again
        drop(device);
        replies.send(Landed { tag, buffer: op.buffer, result });
    }
}

struct Pool {
    jobs: VecDeque<Job>,
    /// Threads that have nothing to do. They, and those that begin, are no fewer than the jobs.
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { jobs: VecDeque::new(), idle: 0 });
static MORE: Condvar = Condvar::new();

/// Has a thread make the operation; its outcome goes to `replies`. Without a thread to be had, the caller makes it.
pub(super) fn make(device: Arc<dyn Device>, op: Op, tag: u64, replies: Arc<Replies>) {
    let job = Job { device, op, tag, replies };
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if pool.idle > pool.jobs.len() {
        pool.jobs.push_back(job);
        return MORE.notify_one();
    }
    match thread::Builder::new().name("vdev-io".to_owned()).spawn(work) {
        Ok(_) => pool.jobs.push_back(job),
        Err(_) => {
            drop(pool);
            job.make();
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
            return;
        }
    }
}
