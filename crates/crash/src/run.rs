//! Many cuts of one tape, on all cores.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vdev::Device;

use crate::{Cut, Cutter, Overlay, Promise, Tape};

/// The time after which the check of one cut counts as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// The state after a power cut, and the promise to check.
#[derive(Debug)]
pub struct State<'a, P> {
    /// The cut.
    pub cut: Cut,
    /// The devices.
    pub devices: Vec<Arc<Overlay>>,
    /// The last promise before the cut.
    pub promised: Option<&'a Promise<P>>,
}

impl<P> State<'_, P> {
    /// The devices as trait objects.
    #[must_use]
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect()
    }
}

/// A cut that the store did not survive.
#[derive(Debug)]
pub struct Failure {
    /// The cut.
    pub cut: Cut,
    /// A description of the failure.
    pub what: String,
}

/// A report of the failures that says how to reproduce each: `again` makes the command from the seed of the cut.
#[must_use]
pub fn report(failures: &[Failure], again: &dyn Fn(u64) -> String) -> String {
    let line =
        |failure: &Failure| format!("{}: {}\n    again: {}\n", failure.cut, failure.what, again(failure.cut.seed));
    let first: String = failures.iter().take(10).map(line).collect();
    format!("{} cuts failed; the first:\n{first}", failures.len())
}

/// A number from the environment, or `default`.
#[must_use]
pub fn number_from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Checks each cut; a check that panics counts as failed. The cuts are processed in the order of their positions, on `threads` threads,
/// each of which holds an image of every device. A check that hangs ends the process with a message that names the cut.
pub fn try_cuts<P: Sync>(
    tape: &Tape<P>,
    mut cuts: Vec<Cut>,
    threads: usize,
    check: &(dyn Fn(&State<'_, P>) -> Result<(), String> + Sync),
) -> Vec<Failure> {
    cuts.sort_by_key(|cut| (cut.at, cut.seed));
    let share = cuts.len().div_ceil(threads.max(1)).max(1);
    let running: Vec<_> = cuts.chunks(share).map(|_| Mutex::new(None)).collect();
    let done = AtomicBool::new(false);
    let mut failures = Vec::new();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| watch(&running, &done));
        let work = |(cuts, now)| scope.spawn(move || try_some(tape, cuts, now, check));
        let workers: Vec<_> = cuts.chunks(share).zip(&running).map(work).collect();
        for worker in workers {
            // a worker catches the panics of checks, so it does not panic itself
            failures.extend(worker.join().unwrap_or_default());
        }
        done.store(true, Ordering::Release);
        watch.thread().unpark();
    });
    failures
}

type Running = Mutex<Option<(Instant, Cut)>>;

fn try_some<P>(
    tape: &Tape<P>,
    cuts: &[Cut],
    running: &Running,
    check: &(dyn Fn(&State<'_, P>) -> Result<(), String> + Sync),
) -> Vec<Failure> {
    let mut cutter = Cutter::new(tape);
    let mut failures = Vec::new();
    for cut in cuts {
        *running.lock() = Some((Instant::now(), *cut));
        let state = State { cut: *cut, devices: cutter.build(cut), promised: tape.promised(cut.at) };
        let result = catch_unwind(AssertUnwindSafe(|| check(&state)));
        if let Err(what) = result.unwrap_or_else(|panic| Err(words(&*panic))) {
            failures.push(Failure { cut: *cut, what });
        }
    }
    *running.lock() = None;
    failures
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without words"))
}

fn watch(running: &[Running], done: &AtomicBool) {
    while !done.load(Ordering::Acquire) {
        for (since, cut) in running.iter().filter_map(|one| *one.lock()) {
            if since.elapsed() > HANGS_AFTER {
                eprintln!("{cut}: the check has not ended after {} s", HANGS_AFTER.as_secs());
                std::process::abort();
            }
        }
        std::thread::park_timeout(Duration::from_secs(1));
    }
}
