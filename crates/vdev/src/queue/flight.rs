//! Many reads and writes of one caller, each with a slot of its leaf's queue.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Direction, IoClass, Request};
use crate::device::{Buffer, Flight, Landed, Op};
use crate::{Device, Leaf};

thread_local! {
    /// The flights of this thread.
    static FLIGHTS: RefCell<Vec<Rc<RefCell<UnderWay>>>> = const { RefCell::new(Vec::new()) };
}

/// Waits until every operation that this thread has under way has ended: then it holds no slot. The outcomes stay in their flights.
pub(crate) fn land_all() {
    let flights = FLIGHTS.with_borrow(Clone::clone);
    flights.iter().for_each(|flight| while flight.borrow_mut().land() {});
}

/// Reads and writes of leaves that are under way at a time. They belong to the thread that began them.
pub(crate) struct LeafFlight(Rc<RefCell<UnderWay>>);

#[derive(Default)]
struct UnderWay {
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

impl Default for LeafFlight {
    fn default() -> Self {
        let flight = Rc::default();
        FLIGHTS.with_borrow_mut(|flights| flights.push(Rc::clone(&flight)));
        LeafFlight(flight)
    }
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
        while self.under_way().flight.is_full(len) {
            self.under_way().land();
        }
        let (queue, asked) = (leaf.queue(), Instant::now());
        let slot = loop {
            match queue.try_enter(request, asked) {
                Some(slot) => break slot,
                // one of its own that ends makes room
                None if self.under_way().land() => {}
                None => break queue.enter(request, asked).0,
            }
        };
        let began = Instant::now();
        let waited = began.duration_since(asked);
        let held = Held { leaf: leaf.clone(), device, request, slot, waited, began, tag };
        self.under_way().begin(held, buffer);
        true
    }

    /// Whether [`LeafFlight::begin`] would begin it at once.
    pub(crate) fn has_room(&self, leaf: &Leaf, class: IoClass, len: usize) -> bool {
        !self.0.borrow().flight.is_full(len) && leaf.queue().has_room(class)
    }

    /// The next one that has ended; it is waited for, if any is under way.
    pub(crate) fn next(&mut self) -> Option<Landed> {
        let mut under_way = self.under_way();
        if under_way.landed.is_empty() {
            under_way.land();
        }
        under_way.landed.pop_front()
    }

    /// The next one that has ended already.
    pub(crate) fn ended(&mut self) -> Option<Landed> {
        let mut under_way = self.under_way();
        if under_way.landed.is_empty()
            && let Some(landed) = under_way.flight.try_land()
        {
            under_way.note(landed);
        }
        under_way.landed.pop_front()
    }

    /// Whether devices that make operations at once take long for them.
    pub(crate) fn is_slow(&self) -> bool {
        self.0.borrow().flight.is_slow()
    }

    /// Says that devices which make operations at once take long for them.
    pub(crate) fn note_slow(&mut self) {
        self.under_way().flight.note_slow();
    }

    /// Lets devices begin what they do not know of yet.
    pub(crate) fn go(&mut self) {
        self.under_way().flight.go();
    }

    fn under_way(&self) -> RefMut<'_, UnderWay> {
        self.0.borrow_mut()
    }
}

impl UnderWay {
    fn begin(&mut self, held: Held, buffer: Buffer) {
        let (device, request) = (held.device.clone(), held.request);
        let number = self.held.iter().position(Option::is_none).unwrap_or(self.held.len());
        match self.held.get_mut(number) {
            Some(free) => *free = Some(held),
            None => self.held.push(Some(held)),
        }
        let op = Op { writes: request.direction == Direction::Write, offset: request.offset, buffer };
        self.flight.begin(&device, op, number as u64);
    }

    /// Waits for one to end, and gives its slot back. False, if none is under way.
    fn land(&mut self) -> bool {
        let landed = self.flight.land();
        landed.map(|landed| self.note(landed)).is_some()
    }

    fn note(&mut self, landed: Landed) {
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
        // a thread that ends has no list any more
        let _ = FLIGHTS.try_with(|flights| flights.borrow_mut().retain(|flight| !Rc::ptr_eq(flight, &self.0)));
    }
}

#[cfg(test)]
#[path = "flight_tests.rs"]
mod tests;
