//! The queue of a leaf: which I/O a device gets next (OpenZFS: `vdev_queue.c`).
//!
//! Every read and write of a leaf asks its queue for a *slot*, makes the device's call in the thread that asked, and gives the slot back; a caller
//! with many of them has many under way ([`LeafFlight`]), each with a slot of its own. A request has
//! a class ([`IoClass`]); of each class so many may be active, and so many in all. A request that may not begin waits in the line of its class and is
//! woken when it has a slot: the thread that gives one back hands it on, and wakes nobody else.
//!
//! # Which request is next
//! Classes below their minimum come first, in turns, then those below their maximum, in order of priority. Scrub, removal, initialize and rebuild keep to
//! their minimum, and to `zfs_vdev_nia_credit` requests between two others, while interactive I/O is active, and to one until `zfs_vdev_nia_delay` of
//! them have ended after it. Unlike in OpenZFS they also leave four sync requests or reads ahead undisturbed between two of theirs: a device that does one
//! request at a time would else give half of itself to a scrub, whatever a single reader asks for. Such a reader asks again a moment after it had its answer, so the next
//! one is expected for a while when the last one ends. Within a class sync requests and trims are served in order of arrival. The others are served by offset among those that
//! came within the same half second, so that a device with an arm goes one way and nobody waits forever.
//!
//! # Invariants
//! * After each change nothing waits that may begin. If something waits, something is active, or expected for a moment, after which those who wait for that look again: nothing is
//!   bounded to less than one on an idle device.
//! * A slot is held for one operation of the device and nothing else.
//! * Who holds a slot waits for devices only, so that each slot comes back. A thread with many operations under way holds the slots of all until it
//!   has *landed* them. It does so before it waits in line ([`Queue::enter`]), whichever of its flights they belong to, and when a read has failed
//!   ([`land_all`]), as the pool may be suspended for that. What only would be of use soon is begun where there is room, and waits for nothing.
//! * A request that finds room takes one short lock and does not allocate (but for the first of so many at once).
//! * Flushes take no slot: they wait for all that was written, and nothing may wait for them here.
//!
//! # Deadman
//! Each slot knows since when it is held. [`Queue::overdue`] tells of those held longer than `zfs_deadman_ziotime_ms`, of each once. It is asked by
//! whoever ticks already; the queue has no thread.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

mod class;
mod device;
mod flight;
mod stats;
#[cfg(test)]
mod tests;

pub use class::IoClass;
use class::{Admission, CLASSES, Limits, is_foreground};
pub use device::Queued;
pub(crate) use flight::{LeafFlight, land_all};
pub use stats::{Direction, IoFigures, LATENCY_BUCKETS, QueueDepths, SIZE_BUCKETS};

/// Requests that wait are sorted by offset among those that arrived in the same 2^29 ns (OpenZFS: `VDQ_T_SHIFT`).
const WINDOW_SHIFT: u32 = 29;
/// Slow requests that are told of at a time (OpenZFS: `zfs_slow_io_events_per_second`).
const SLOW_MAX: usize = 20;
/// The next foreground request is expected for as long as the last one took, but no longer than this.
const EXPECTED_MAX: Duration = Duration::from_millis(2);
/// The number that a waiter has in place of that of a slot.
const NO_SLOT: usize = usize::MAX;

/// An I/O of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) class: IoClass,
    pub(crate) direction: Direction,
    /// From the front of the device, in bytes.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Whether it was made of several smaller ones.
    pub(crate) aggregated: bool,
}

/// An I/O that a device does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overdue {
    /// Its class.
    pub class: IoClass,
    /// Read or write.
    pub direction: Direction,
    /// From the front of the device, in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// How long the device has had it.
    pub age: Duration,
}

/// The queue of one leaf, with the account of what went through it. It may outlive the leaf.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    begun: Instant,
    limits: fn() -> Limits,
}

#[derive(Debug, Default)]
struct State {
    admission: Admission,
    lines: [BTreeMap<Key, Waiting>; CLASSES],
    waiting: usize,
    arrivals: u64,
    slots: Vec<Option<Active>>,
    free: Vec<usize>,
    figures: IoFigures,
    /// Requests that were slow, and nobody was told of.
    slow: Vec<Overdue>,
}

/// The place in a line: window of time and offset where the class is sorted by offset, then the arrival.
type Key = (u64, u64, u64);

#[derive(Debug)]
struct Waiting {
    request: Request,
    waiter: Arc<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    thread: Thread,
    /// The slot that it was given.
    slot: AtomicUsize,
}

/// A slot that is held.
#[derive(Debug, Clone, Copy)]
struct Active {
    request: Request,
    since: Instant,
    reported: bool,
}

/// Waiters that are to be woken, outside of the lock.
type Woken = SmallVec<[Arc<Waiter>; 4]>;

impl Default for Queue {
    fn default() -> Self {
        Queue::with_limits(Limits::tuned)
    }
}

impl Queue {
    fn with_limits(limits: fn() -> Limits) -> Queue {
        let mut state = State::default();
        // until the pool tells how much is dirty, nothing is held back for that
        state.admission.dirty = u64::MAX;
        Queue { state: Mutex::new(state), begun: Instant::now(), limits }
    }

    /// Makes the `call` of the device that `request` stands for, when it is its turn.
    pub(crate) fn run<T>(&self, request: Request, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let asked = Instant::now();
        let (index, began) = self.enter(request, asked);
        let mut slot = Slot { queue: self, index, times: None };
        let done = call();
        if done.is_ok() {
            slot.times = Some((began.duration_since(asked), began.elapsed()));
        }
        done
    }

    /// Takes a slot, if there is one.
    fn try_enter(&self, request: Request, now: Instant) -> Option<usize> {
        self.state().enter(request, now, &(self.limits)())
    }

    /// Whether a request of the class would have a slot now.
    fn has_room(&self, class: IoClass) -> bool {
        self.state().admission.admits(class, &(self.limits)())
    }

    /// Waits for a slot; gives its number, and when it was had.
    fn enter(&self, request: Request, asked: Instant) -> (usize, Instant) {
        if let Some(slot) = self.try_enter(request, asked) {
            return (slot, asked);
        }
        land_all();
        let (mut state, now) = (self.state(), Instant::now());
        if let Some(slot) = state.enter(request, now, &(self.limits)()) {
            return (slot, now);
        }
        let waiter = Arc::new(Waiter { thread: thread::current(), slot: AtomicUsize::new(NO_SLOT) });
        let since = asked.duration_since(self.begun);
        state.line_up(Waiting { request, waiter: waiter.clone() }, since);
        drop(state);
        loop {
            match waiter.slot.load(Ordering::Acquire) {
                NO_SLOT if request.class.is_interactive() => thread::park(),
                NO_SLOT => self.wait_for_calm(),
                index => return (index, Instant::now()),
            }
        }
    }

    /// Waits to be woken, or until nothing is expected any more that would go first.
    fn wait_for_calm(&self) {
        let (mut state, now) = (self.state(), Instant::now());
        // who takes a slot may have noticed that the time is over, and hands on nothing
        state.admission.expect_no_longer(now);
        let woken = state.hand_on(&(self.limits)());
        let until = state.admission.expected_until;
        drop(state);
        woken.iter().for_each(|waiter| waiter.thread.unpark());
        match until {
            Some(until) => thread::park_timeout(until.saturating_duration_since(now)),
            None => thread::park(),
        }
    }

    /// Takes a slot back, and hands on what is free now. `times`: how long the request waited and how long its device took, if that did it.
    fn leave(&self, index: usize, times: Option<(Duration, Duration)>) {
        let mut state = self.state();
        let Some(Active { request, since, .. }) = state.slots.get_mut(index).and_then(Option::take) else { return };
        state.free.push(index);
        let limits = (self.limits)();
        state.admission.end(request.class, &limits);
        if is_foreground(request.class) && state.admission.would_yield() {
            state.expect_another(since);
        }
        if let Some((waited, took)) = times {
            state.figures.count(&request, waited, took);
            if stats::is_slow(took) && state.slow.len() < SLOW_MAX {
                let Request { class, direction, offset, len, .. } = request;
                state.slow.push(Overdue { class, direction, offset, len, age: took });
            }
        }
        let mut woken = state.hand_on(&limits);
        woken.extend(state.who_watches());
        drop(state);
        woken.iter().for_each(|waiter| waiter.thread.unpark());
    }

    /// Says how much the pool has dirty, which bounds async writes beside other I/O; all that there can be (`u64::MAX`) where somebody waits for the
    /// txg.
    pub fn set_dirty(&self, bytes: u64) {
        let mut state = self.state();
        state.admission.dirty = bytes;
        let woken = state.hand_on(&(self.limits)());
        drop(state);
        woken.iter().for_each(|waiter| waiter.thread.unpark());
    }

    /// The account until now.
    #[must_use]
    pub fn figures(&self) -> IoFigures {
        self.state().figures.clone()
    }

    /// Returns the I/Os that wait and are active now.
    #[must_use]
    pub fn depths(&self) -> QueueDepths {
        let state = self.state();
        QueueDepths::of(&state.admission.queued, &state.admission.active)
    }

    /// The requests that their device has had for more than `limit` and that were not told of before.
    #[must_use]
    pub fn overdue(&self, limit: Duration) -> Vec<Overdue> {
        let mut state = self.state();
        let mut overdue = Vec::new();
        for active in state.slots.iter_mut().flatten().filter(|active| !active.reported) {
            let (age, Request { class, direction, offset, len, .. }) = (active.since.elapsed(), active.request);
            if age > limit {
                active.reported = true;
                overdue.push(Overdue { class, direction, offset, len, age });
            }
        }
        overdue
    }

    /// The requests that have ended and were slow, some of those since this was last asked.
    #[must_use]
    pub fn take_slow(&self) -> Vec<Overdue> {
        std::mem::take(&mut self.state().slow)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Lets a request begin, if it may.
    fn enter(&mut self, request: Request, now: Instant, limits: &Limits) -> Option<usize> {
        self.admission.expect_no_longer(now);
        self.admission.admits(request.class, limits).then(|| {
            self.admission.begin(request.class);
            self.occupy(request, now)
        })
    }

    /// Expects another foreground request: the last one of those, active `since`, has ended.
    fn expect_another(&mut self, since: Instant) {
        let now = Instant::now();
        self.admission.expected_until = Some(now + now.duration_since(since).min(EXPECTED_MAX));
    }

    /// One of those that wait for an expected request, who looks again when the time is over.
    fn who_watches(&self) -> Option<Arc<Waiter>> {
        if self.waiting == 0 || self.admission.expected_until.is_none() {
            return None;
        }
        let lines = IoClass::ALL.iter().zip(&self.lines).filter(|(class, _)| !class.is_interactive());
        let mut lines = lines.filter_map(|(_, line)| line.first_key_value());
        lines.next().map(|(_, waiting)| waiting.waiter.clone())
    }

    /// Puts a request that has begun into a slot.
    fn occupy(&mut self, request: Request, since: Instant) -> usize {
        let active = Some(Active { request, since, reported: false });
        let index = self.free.pop().unwrap_or(self.slots.len());
        match self.slots.get_mut(index) {
            Some(slot) => *slot = active,
            None => self.slots.push(active),
        }
        index
    }

    fn line_up(&mut self, waiting: Waiting, since: Duration) {
        let Request { class, offset, .. } = waiting.request;
        let window = u64::try_from(since.as_nanos() >> WINDOW_SHIFT).unwrap_or(u64::MAX);
        self.arrivals += 1;
        let key = if class.is_fifo() { (0, 0, self.arrivals) } else { (window, offset, self.arrivals) };
        if let Some(line) = self.lines.get_mut(class.index()) {
            line.insert(key, waiting);
            self.waiting += 1;
            self.admission.wait(class);
        }
    }

    /// Gives slots to those who wait and may begin.
    fn hand_on(&mut self, limits: &Limits) -> Woken {
        let mut woken = Woken::new();
        while self.waiting > 0
            && let Some(class) = self.admission.choose(limits)
            && let Some((_, next)) = self.lines.get_mut(class.index()).and_then(BTreeMap::pop_first)
        {
            self.waiting -= 1;
            self.admission.leave_line(class);
            self.admission.begin(class);
            let index = self.occupy(next.request, Instant::now());
            next.waiter.slot.store(index, Ordering::Release);
            woken.push(next.waiter);
        }
        woken
    }
}

/// A slot, given back when dropped, also by a panic.
struct Slot<'a> {
    queue: &'a Queue,
    index: usize,
    times: Option<(Duration, Duration)>,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.queue.leave(self.index, self.times);
    }
}
