//! Maintenance of a list: building the index, and compaction when too much of it is dead.

use crate::NvList;
use crate::index::Index;
use crate::list::{INDEX_ABOVE, NONE, Slot};

/// Dead bytes that do not yet trigger a compaction.
const DEAD_FREE: usize = 1024;

/// Slot memory that is kept when a list shrinks: freeing and allocating it again would cost more than it saves.
const KEEP: usize = 1 << 20;

impl NvList {
    /// Indexes all names. A chain runs forward through the slots, and the `prev` of its first slot is its last: so `prev >= at` identifies
    /// a first slot.
    #[cold]
    pub(crate) fn build_index(&mut self) {
        let mut index = Box::new(Index::for_len(self.distinct));
        for (at, slot) in self.slots.iter().enumerate() {
            if slot.value.is_some() && slot.prev as usize >= at {
                let tag = index.tag(slot.name.get(&self.names));
                index.insert(tag, at as u32);
            }
        }
        self.index = Some(index);
    }

    /// Compacts when half of the memory is dead.
    #[inline]
    pub(crate) fn tidy(&mut self) {
        let dead = (self.slots.len() - self.live) * size_of::<Slot>() + self.dead_names;
        let all = self.slots.len() * size_of::<Slot>() + self.names.len();
        if dead > DEAD_FREE && dead > all / 2 {
            self.compact();
        }
    }

    /// Moves the pairs together, in order and in place, and updates the chains and the index.
    #[cold]
    fn compact(&mut self) {
        let moves = Moves::of(&self.slots);
        let (mut at, mut to) = (0, 0);
        self.slots.retain_mut(|slot| {
            let live = slot.value.is_some();
            if live {
                // nearly all slots are alone in their chains
                let alone = slot.prev == at;
                slot.prev = if alone { to } else { moves.to(slot.prev) };
                slot.next = if alone { NONE } else { moves.to(slot.next) };
                to += 1;
            }
            at += 1;
            live
        });
        let (room, used) = (self.slots.capacity(), self.slots.len());
        if room * size_of::<Slot>() > KEEP && room / 8 > used {
            self.slots.shrink_to(2 * used);
        }
        if self.dead_names > self.names.len() / 2 {
            self.compact_names();
        }
        if self.live <= INDEX_ABOVE / 2 {
            self.index = None;
        } else if let Some(index) = self.index.as_deref_mut() {
            index.moved(|slot| moves.to(slot));
        }
    }

    /// Copies the long names that are still in use. Pairs of the same name share its bytes.
    fn compact_names(&mut self) {
        let names = std::mem::take(&mut self.names);
        self.dead_names = 0;
        for at in 0..self.slots.len() {
            let Some(slot) = self.slots.get(at) else { break };
            let name = match self.slots.get(slot.prev as usize) {
                Some(before) if (slot.prev as usize) < at => before.name,
                _ => self.names.add(slot.name.get(&names)),
            };
            if let Some(slot) = self.slots.get_mut(at) {
                slot.name = name;
            }
        }
    }
}

/// The new slot numbers of a compaction, as the number of live slots before each: a bit per slot, and a count every 64.
struct Moves(Vec<(u64, u32)>);

impl Moves {
    fn of(slots: &[Slot]) -> Moves {
        let mut before = 0;
        let block = |block: &[Slot]| {
            let live = block.iter().rev().fold(0, |bits, slot| bits << 1 | u64::from(slot.value.is_some()));
            let first = before;
            before += live.count_ones();
            (live, first)
        };
        Moves(slots.chunks(64).map(block).collect())
    }

    /// The new number of a slot that holds a pair; [`NONE`] stays.
    fn to(&self, slot: u32) -> u32 {
        match self.0.get(slot as usize / 64) {
            Some((live, first)) => first + (live & ((1 << (slot % 64)) - 1)).count_ones(),
            None => NONE,
        }
    }
}
