//! Many operations of one caller that are under way at a time.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::panic;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::tasks;

use super::buffer::Buffer;
use super::raw::{Ended, Ring};
use super::{Device, Way, threads};

/// A device that makes an operation at once, and takes longer than this, waits for something: others can be made meanwhile.
const SLOW: Duration = Duration::from_millis(2);
/// Operations that are under way in threads, at most.
const THREADS_DEPTH: usize = 32;
/// Bytes that are under way, at most, but for a single operation that has more.
const BYTES_MAX: usize = 8 << 20;
/// Bytes, and operations, from which on the kernel is told of them at once: it need not wait until all are there.
const FRESH_BYTES: usize = 256 << 10;
const FRESH_COUNT: usize = 16;

/// A read that fills its buffer, or a write of it.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) writes: bool,
    pub(crate) offset: u64,
    pub(crate) buffer: Buffer,
}

impl Op {
    /// Makes it, and waits for that. A device that panics has failed: its caller waits for the outcome, and holds a slot until then.
    pub(super) fn make(&mut self, device: &dyn Device) -> io::Result<()> {
        let make = || match self.writes {
            true => device.write_vectored_at(self.offset, &[IoSlice::new(&self.buffer)]),
            false => device.read_at(self.offset, &mut self.buffer),
        };
        let made = panic::catch_unwind(panic::AssertUnwindSafe(make));
        made.unwrap_or_else(|_| Err(io::Error::other("the device's code panicked")))
    }
}

/// The outcome of an operation, with its buffer.
#[derive(Debug)]
pub(crate) struct Landed {
    /// The caller's word for it.
    pub(crate) tag: u64,
    pub(crate) buffer: Buffer,
    pub(crate) result: io::Result<()>,
}

/// Outcomes that threads have for a flight.
#[derive(Debug, Default)]
pub(super) struct Replies {
    landed: Mutex<VecDeque<Landed>>,
    more: Condvar,
}

impl Replies {
    pub(super) fn send(&self, landed: Landed) {
        self.landed.lock().unwrap_or_else(PoisonError::into_inner).push_back(landed);
        self.more.notify_one();
    }

    fn try_take(&self) -> Option<Landed> {
        self.landed.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn take(&self) -> Option<Landed> {
        let mut landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
        while landed.is_empty() {
            landed = self.more.wait(landed).unwrap_or_else(PoisonError::into_inner);
        }
        landed.pop_front()
    }
}

/// An operation in the ring: enough to make it again.
struct InRing {
    device: Arc<dyn Device>,
    writes: bool,
    offset: u64,
    tag: u64,
}

/// Operations that are under way. They end in any order; each is told of by [`Flight::land`], once. All have ended when a flight is dropped.
#[derive(Default)]
pub(crate) struct Flight {
    ring: Option<Ring>,
    in_ring: Vec<Option<InRing>>,
    ring_count: usize,
    /// Operations that the kernel was not told of, and their bytes.
    fresh: (usize, usize),
    replies: Arc<Replies>,
    threads_count: usize,
    bytes: usize,
    /// The operations that were made at once.
    landed: VecDeque<Landed>,
    /// Whether a device that makes operations at once took long.
    slow: bool,
}

impl Flight {
    /// Whether one should land before another `len` bytes are begun.
    pub(crate) fn is_full(&self, len: usize) -> bool {
        let under_way = self.ring_count + self.threads_count;
        under_way > 0
            && (self.bytes + len > BYTES_MAX
                || self.threads_count >= THREADS_DEPTH
                || self.ring.as_ref().is_some_and(Ring::is_full))
    }

    /// Begins an operation. The kernel may not know of it before [`Flight::land`] or [`Flight::go`].
    pub(crate) fn begin(&mut self, device: &Arc<dyn Device>, mut op: Op, tag: u64) {
        let len = op.buffer.len();
        let is_alone = tasks::width() == 1;
        match device.way(op.offset, len) {
            Way::Ring(direct) => {
                let (writes, offset) = (op.writes, op.offset);
                match self.push(op, direct, device, tag) {
                    Ok(()) => self.bytes += len,
                    Err(buffer) => self.make(device, Op { writes, offset, buffer }, tag),
                }
            }
            Way::Threads if !is_alone => self.send(device, op, tag),
            Way::Here if self.slow && !is_alone => self.send(device, op, tag),
            Way::Threads | Way::Here => {
                let begun = Instant::now();
                let result = op.make(&**device);
                self.slow |= begun.elapsed() >= SLOW;
                self.landed.push_back(Landed { tag, buffer: op.buffer, result });
            }
        }
    }

    /// Says that devices which make operations at once take long for them: threads make them from now on.
    pub(crate) fn note_slow(&mut self) {
        self.slow = true;
    }

    /// Lets the kernel begin what it does not know of yet.
    pub(crate) fn go(&mut self) {
        self.fresh = (0, 0);
        if let Some(ring) = &mut self.ring {
            ring.submit();
        }
    }

    /// Waits until one of those under way has ended; none if there is none.
    pub(crate) fn land(&mut self) -> Option<Landed> {
        if let Some(landed) = self.landed.pop_front() {
            return Some(landed);
        }
        let sent = match (self.threads_count, self.ring_count) {
            (0, _) => None,
            // the other ones are not kept waiting by those in threads
            (_, 1..) => self.replies.try_take(),
            _ => self.replies.take(),
        };
        match sent {
            Some(landed) => Some(self.landed_sent(landed)),
            None => self.land_ring(),
        }
    }

    /// One of those under way that has ended already.
    pub(crate) fn try_land(&mut self) -> Option<Landed> {
        if let Some(landed) = self.landed.pop_front() {
            return Some(landed);
        }
        if self.threads_count > 0
            && let Some(landed) = self.replies.try_take()
        {
            return Some(self.landed_sent(landed));
        }
        let ended = self.ring.as_mut()?.reap()?;
        self.landed_ring(ended)
    }

    /// Whether a device that makes operations at once took long.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow
    }

    fn make(&mut self, device: &Arc<dyn Device>, mut op: Op, tag: u64) {
        let result = op.make(&**device);
        self.landed.push_back(Landed { tag, buffer: op.buffer, result });
    }

    fn send(&mut self, device: &Arc<dyn Device>, op: Op, tag: u64) {
        self.threads_count += 1;
        self.bytes += op.buffer.len();
        threads::make(device.clone(), op, tag, self.replies.clone());
    }

    fn push(&mut self, op: Op, direct: &Arc<super::Direct>, device: &Arc<dyn Device>, tag: u64) -> Result<(), Buffer> {
        if self.ring.is_none() {
            self.ring = Ring::take();
        }
        let Some(ring) = &mut self.ring else { return Err(op.buffer) };
        let len = op.buffer.len();
        let number = self.in_ring.iter().position(Option::is_none).unwrap_or(self.in_ring.len());
        ring.push(op.writes, direct, op.offset, op.buffer, number as u64)?;
        let entry = Some(InRing { device: device.clone(), writes: op.writes, offset: op.offset, tag });
        match self.in_ring.get_mut(number) {
            Some(slot) => *slot = entry,
            None => self.in_ring.push(entry),
        }
        self.ring_count += 1;
        self.fresh = (self.fresh.0 + 1, self.fresh.1 + len);
        if self.fresh.0 >= FRESH_COUNT || self.fresh.1 >= FRESH_BYTES {
            self.go();
        }
        Ok(())
    }

    fn land_ring(&mut self) -> Option<Landed> {
        let ended = match self.ring.as_mut()?.wait() {
            Ok(ended) => ended?,
            Err(error) => return self.give_up(error),
        };
        self.landed_ring(ended)
    }

    fn landed_sent(&mut self, landed: Landed) -> Landed {
        self.threads_count -= 1;
        self.bytes = self.bytes.saturating_sub(landed.buffer.len());
        landed
    }

    fn landed_ring(&mut self, ended: Ended) -> Option<Landed> {
        let InRing { device, writes, offset, tag } = self.in_ring.get_mut(ended.tag as usize)?.take()?;
        self.ring_count -= 1;
        let mut op = Op { writes, offset, buffer: ended.buffer };
        self.bytes = self.bytes.saturating_sub(op.buffer.len());
        let result = match ended.result {
            Ok(len) if len == op.buffer.len() => Ok(()),
            // a part of it, which is rare, or the kernel would not do it so: the plain way tells
            _ => op.make(&*device),
        };
        Some(Landed { tag, buffer: op.buffer, result })
    }

    /// The kernel does not answer: all that it has counts as failed.
    fn give_up(&mut self, error: io::Error) -> Option<Landed> {
        // its buffers stay with it
        self.ring = None;
        let lost = self.in_ring.drain(..).flatten().map(|lost| Landed {
            tag: lost.tag,
            buffer: Buffer::take(0),
            result: Err(io::Error::new(error.kind(), error.to_string())),
        });
        self.landed.extend(lost);
        (self.ring_count, self.bytes) = (0, 0);
        self.landed.pop_front()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        while self.land().is_some() {}
        if let Some(ring) = self.ring.take() {
            ring.keep();
        }
    }
}

#[cfg(test)]
#[path = "flight_tests.rs"]
mod tests;
