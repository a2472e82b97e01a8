//! Heads that were swapped while a slice of a scan ran.
//!
//! A slice begins with the record of the last synced txg, and its progress is recorded in a later one. What was swapped in between is swapped
//! in its cursor before that: else it would go on in the blocks of the wrong head, and the other's would never be read.

use std::collections::VecDeque;

use base::{ObjectId, Txg};

use super::ScrubCursor;

/// The most swaps that are remembered. A slice during which there are more is read again.
const SWAPS_MAX: usize = 1024;

/// The swaps since a slice began, and some before.
#[derive(Default)]
pub(super) struct Swaps {
    all: VecDeque<(Txg, ObjectId, ObjectId)>,
    /// The last txg of which a swap is forgotten.
    forgotten: Txg,
}

impl Swaps {
    /// Notes that two heads were swapped in `txg`.
    pub(super) fn add(&mut self, txg: Txg, one: ObjectId, other: ObjectId) {
        if self.all.len() >= SWAPS_MAX
            && let Some((txg, ..)) = self.all.pop_front()
        {
            self.forgotten = txg;
        }
        self.all.push_back((txg, one, other));
    }

    /// Returns the cursor with the names that its heads have now; `None` if that is not known any more.
    pub(super) fn follow(&mut self, mut cursor: ScrubCursor) -> Option<ScrubCursor> {
        let Some(of) = cursor.of.take() else { return Some(cursor) };
        if self.forgotten > of {
            return None;
        }
        // no later cursor is older
        self.all.retain(|(txg, ..)| *txg > of);
        self.all.iter().for_each(|(_, one, other)| cursor.swap(*one, *other));
        Some(cursor)
    }
}
