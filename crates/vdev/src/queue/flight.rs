//! Many reads and writes of one caller, each with a slot of its leaf's queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Direction, IoClass, Request};
use crate::device::{Buffer, Flight, Landed, Op};
use crate::{Device, Leaf};

/// Reads and writes of leaves that are under way at a time.
///
/// A caller who has a slot waits for devices only: when a queue has none for him, one of his own operations has to end first; without any under
/// way he waits in line as everybody does.
#[derive(Default)]
pub(crate) struct LeafFlight {
    flight: Flight,
    /// Slots that are held, by the number that the flight knows them by.
    held: Vec<Option<Held>>,
    landed: VecDeque<Landed>,
}

struct Held {
    leaf: Arc<Leaf>,
    device: Arc<dyn Device>,
    request: Request,
    slot: usize,
    waited: Duration,
    began: Instant,
    tag: u64,
}

impl LeafFlight {
    /// Begins to read into `buffer`, or to write it, as soon as there is room. `aggregated`, if that is for more than one who asked. False, if the leaf
    /// has no device.
    pub(crate) fn begin(
        &mut self,
        leaf: &Arc<Leaf>,
        (class, direction): (IoClass, Direction),
        offset: u64,
        buffer: Buffer,
        (tag, aggregated): (u64, bool),
    ) -> bool {
        let Some(device) = leaf.device() else { return false };
        let len = buffer.len();
        let request = Request { class, direction, offset, len: len as u64, aggregated };
        while self.flight.is_full(len) {
            self.land();
        }
        let (queue, asked) = (leaf.queue(), Instant::now());
        let slot = loop {
            match queue.try_enter(request, asked) {
                Some(slot) => break slot,
                None if self.flight.is_empty() => break queue.enter(request, asked).0,
                None => self.land(),
            }
        };
        let began = Instant::now();
        let waited = began.duration_since(asked);
        let held = Some(Held { leaf: leaf.clone(), device: device.clone(), request, slot, waited, began, tag });
        let number = self.held.iter().position(Option::is_none).unwrap_or(self.held.len());
        match self.held.get_mut(number) {
            Some(free) => *free = held,
            None => self.held.push(held),
        }
        let op = Op { writes: direction == Direction::Write, offset, buffer };
        self.flight.begin(&device, op, number as u64);
        true
    }

    /// The next one that has ended; it is waited for, if any is under way.
    pub(crate) fn next(&mut self) -> Option<Landed> {
        if self.landed.is_empty() {
            self.land();
        }
        self.landed.pop_front()
    }

    /// The next one that has ended already.
    pub(crate) fn ended(&mut self) -> Option<Landed> {
        if self.landed.is_empty() {
            let landed = self.flight.try_land();
            self.note(landed);
        }
        self.landed.pop_front()
    }

    /// Whether devices that make operations at once take long for them.
    pub(crate) fn is_slow(&self) -> bool {
        self.flight.is_slow()
    }

    /// Says that devices which make operations at once take long for them.
    pub(crate) fn note_slow(&mut self) {
        self.flight.note_slow();
    }

    /// Lets devices begin what they do not know of yet.
    pub(crate) fn go(&mut self) {
        self.flight.go();
    }

    /// Waits for one to end, and gives its slot back.
    fn land(&mut self) {
        let landed = self.flight.land();
        self.note(landed);
    }

    fn note(&mut self, landed: Option<Landed>) {
        let Some(landed) = landed else { return };
        let Some(held) = self.held.get_mut(landed.tag as usize).and_then(Option::take) else { return };
        let times = landed.result.is_ok().then(|| (held.waited, held.began.elapsed()));
        held.leaf.queue().leave(held.slot, times);
        let result = held.leaf.ended(&held.device, held.request, landed.result);
        self.landed.push_back(Landed { tag: held.tag, result, ..landed });
    }
}

impl Drop for LeafFlight {
    fn drop(&mut self) {
        while self.next().is_some() {}
    }
}
