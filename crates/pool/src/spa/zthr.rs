//! Background tasks of an open pool (OpenZFS: `zthr.c`).
//!
//! # What it is
//! A [`Zthr`] does work that is too long for one txg: it works in *slices*, and each slice leaves on disk how far it came, so that the next
//! slice, another process or OpenZFS goes on from there. It is [woken](Zthr::wake) when there is work, and rests when a slice says that
//! nothing is left. Between two slices it can be [held](Zthr::hold), [cancelled](Zthr::cancel) and [waited for](Zthr::wait); a slice that
//! lasts asks [`Zthr::is_interrupted`] and ends early.
//!
//! # Where slices run
//! * [`Work::Beside`]: in a thread of the task, which exists while the task is awake: at most one thread per task. In a seeded environment,
//!   and where no thread can be had, slices run in the thread that waits for the task: a seed repeats a run.
//! * [`Work::Sync`]: in the sync thread, one slice per txg. Txgs follow one another while the task is awake.
//!
//! # Errors
//! The error of a slice puts the task to rest. It is kept, and returned to each caller that waits, until the task is woken again. An error in
//! the sync also suspends the pool, because half of a slice must not reach the disk.
//!
//! # The end
//! A pool that is closed [stops](Zthr::stop) its tasks at the end of their slices. The thread of a task holds the pool only while it works on
//! a slice, so a pool whose last handle is dropped ends as well.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dmu::Tx;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Error;
use crate::spa::Spa;
use crate::spa::mos::Mos;

/// The interval at which a waiting caller looks at the progress.
const LOOK: Duration = Duration::from_millis(100);

/// The result of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There is more to do.
    More,
    /// There is more to do, but not before this time has passed.
    Rest(Duration),
    /// Nothing is left to do.
    Done,
}

/// The work of a task: one slice of it.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// A slice that takes and leaves txgs by itself.
    Beside(fn(&Arc<Spa>) -> Result<Next, Error>),
    /// A slice in the sync of a txg.
    Sync(fn(&Spa, &Mos, &Tx) -> Result<Next, Error>),
}

/// A background task (OpenZFS: `zthr_t`).
pub(crate) struct Zthr {
    name: &'static str,
    work: Work,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// True while there is work.
    awake: bool,
    /// Number of times that the task was woken: a slice that found nothing to do may have missed the last one.
    wakes: u64,
    /// Number of callers that hold the task.
    holds: u32,
    /// True while a slice runs.
    busy: bool,
    /// True once the pool is closing: no slice begins any more.
    stopped: bool,
    /// True while the task has a thread.
    thread: bool,
    /// The next slice begins no earlier.
    rest_until: Option<Instant>,
    /// The time at which a slice ends that runs in the thread of a caller with a limit.
    deadline: Option<Instant>,
    /// The error of the last slice.
    error: Option<Arc<Error>>,
}

impl State {
    /// Returns how long the next slice has to wait; `None` if it can begin.
    fn pause(&self) -> Option<Duration> {
        if self.holds > 0 {
            return Some(LOOK);
        }
        let left = self.rest_until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

/// A hold on a task: no slice runs while it exists.
pub(crate) struct Held(Arc<Zthr>);

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.holds -= 1;
        self.0.changed.notify_all();
    }
}

/// A slice that runs: however it ends, the task is told.
struct Running<'a> {
    zthr: &'a Zthr,
    wakes: u64,
    result: Result<Next, Arc<Error>>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.zthr.state.lock();
        state.busy = false;
        if std::thread::panicking() {
            state.thread = false;
        }
        match std::mem::replace(&mut self.result, Ok(Next::More)) {
            Ok(Next::More) => {}
            Ok(Next::Rest(time)) => state.rest_until = Some(Instant::now() + time),
            Ok(Next::Done) => state.awake &= state.wakes != self.wakes,
            Err(error) => {
                state.awake = false;
                state.error = Some(error);
            }
        }
        self.zthr.changed.notify_all();
    }
}

impl Zthr {
    /// A task that rests.
    pub(crate) fn new(name: &'static str, work: Work) -> Arc<Zthr> {
        Arc::new(Zthr { name, work, state: Mutex::default(), changed: Condvar::new() })
    }

    /// The name of its thread.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// Notes that there is work (OpenZFS: `zthr_wakeup`).
    pub(crate) fn wake(self: &Arc<Self>, spa: &Spa) {
        let mut state = self.state.lock();
        if state.stopped {
            return;
        }
        state.awake = true;
        state.wakes += 1;
        (state.error, state.rest_until) = (None, None);
        match self.work {
            Work::Sync(_) => {
                drop(state);
                spa.txgs().note_work();
                spa.txgs().follow_up();
            }
            Work::Beside(slice) => {
                if !state.thread && !spa.env().is_seeded() {
                    let (zthr, pool) = (self.clone(), spa.weak());
                    let thread = std::thread::Builder::new().name(self.name.to_owned());
                    // without one the slices run in the thread that waits for them
                    state.thread = thread.spawn(move || zthr.run(&pool, slice)).is_ok();
                }
                self.changed.notify_all();
            }
        }
    }

    /// As [`Zthr::wake`], from a sync in which a slice is still to come.
    pub(crate) fn wake_in_sync(&self) {
        let mut state = self.state.lock();
        state.awake |= !state.stopped;
        state.wakes += 1;
        state.error = None;
    }

    /// Returns whether there is work.
    pub(crate) fn is_awake(&self) -> bool {
        self.state.lock().awake
    }

    /// Returns whether the slice that runs is to end soon: the task is held or cancelled, or the pool is closing.
    pub(crate) fn is_interrupted(&self) -> bool {
        let state = self.state.lock();
        let late = state.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        !state.awake || state.holds > 0 || state.stopped || late
    }

    /// Keeps slices from running, and waits for the end of the one that runs (OpenZFS: `zthr_cancel`).
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        let mut state = self.state.lock();
        state.holds += 1;
        self.changed.notify_all();
        self.wait_idle(&mut state);
        Held(self.clone())
    }

    /// Puts the task to rest, and waits for the end of the slice that runs.
    pub(crate) fn cancel(&self) {
        let mut state = self.state.lock();
        state.awake = false;
        self.changed.notify_all();
        self.wait_idle(&mut state);
    }

    /// Ends the task because the pool is closing: waits for the end of the slice that runs, and of its thread.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.changed.notify_all();
        while state.busy || state.thread {
            self.changed.wait(&mut state);
        }
    }

    /// As [`Zthr::stop`], without waiting.
    pub(crate) fn stop_soon(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    fn wait_idle(&self, state: &mut MutexGuard<'_, State>) {
        while state.busy {
            self.changed.wait(state);
        }
    }

    /// Waits until the task rests, or until `deadline`; returns whether it rests. `look` is called every now and then.
    ///
    /// # Errors
    /// The error of its last slice; [`Error::Closed`] if the pool is closed meanwhile.
    pub(crate) fn wait(
        &self,
        spa: &Arc<Spa>,
        deadline: Option<Instant>,
        look: &mut dyn FnMut(),
    ) -> Result<bool, Error> {
        loop {
            let mut state = self.state.lock();
            if let Some(source) = state.error.clone() {
                return Err(Error::Background { task: self.name, source });
            }
            if !state.awake {
                return Ok(true);
            }
            if state.stopped {
                return Err(Error::Closed);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            match self.work {
                Work::Sync(_) => {
                    drop(state);
                    spa.txgs().wait_synced_until(spa.txgs().open(), deadline)?;
                }
                Work::Beside(slice) if !state.thread && !state.busy && state.pause().is_none() => {
                    state.deadline = deadline;
                    // its error is kept, and returned above
                    let _kept = self.slice(state, || slice(spa));
                    self.state.lock().deadline = None;
                }
                Work::Beside(_) => {
                    self.changed.wait_for(&mut state, left.unwrap_or(LOOK).min(LOOK));
                    drop(state);
                }
            }
            look();
        }
    }

    /// The life of the thread.
    fn run(&self, pool: &Weak<Spa>, slice: fn(&Arc<Spa>) -> Result<Next, Error>) {
        loop {
            let mut state = self.state.lock();
            while let Some(pause) = state.pause().filter(|_| state.awake && !state.stopped) {
                self.changed.wait_for(&mut state, pause);
            }
            let spa = if state.awake && !state.stopped { pool.upgrade() } else { None };
            let Some(spa) = spa else {
                state.thread = false;
                self.changed.notify_all();
                return;
            };
            // the handle is dropped before the end of the slice is told: the devices may then be opened by another
            let _kept = self.slice(state, move || slice(&spa));
        }
    }

    /// Runs a slice. Returns its error, which the task keeps.
    fn slice(
        &self,
        mut state: MutexGuard<'_, State>,
        slice: impl FnOnce() -> Result<Next, Error>,
    ) -> Result<(), Arc<Error>> {
        state.busy = true;
        let result = Err(Arc::new(Error::Bug(format!("a slice of {} panicked", self.name))));
        let mut running = Running { zthr: self, wakes: state.wakes, result };
        drop(state);
        running.result = slice().map_err(Arc::new);
        running.result.as_ref().map(drop).map_err(Arc::clone)
    }

    /// Runs a slice in the sync of a txg, if there is work.
    ///
    /// # Errors
    /// The error of the slice.
    pub(crate) fn sync(&self, spa: &Spa, mos: &Mos, tx: &Tx) -> Result<(), Error> {
        let Work::Sync(slice) = self.work else { return Ok(()) };
        let state = self.state.lock();
        if !state.awake || state.stopped || state.pause().is_some() {
            return Ok(());
        }
        let done = self.slice(state, || slice(spa, mos, tx));
        done.map_err(|source| Error::Background { task: self.name, source })?;
        if self.is_awake() {
            spa.txgs().note_work();
            spa.txgs().follow_up();
        }
        Ok(())
    }
}

impl std::fmt::Debug for Zthr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        let is = match () {
            () if state.stopped => "stopped",
            () if state.busy => "working",
            () if state.awake => "awake",
            () => "at rest",
        };
        write!(f, "{} ({is})", self.name)
    }
}

#[cfg(test)]
mod tests;
