//! The place of a caller among the events of this process's pools (OpenZFS: `zfs_zevent_next`, `zfs_zevent_seek`).

use std::time::Duration;

use nvlist::NvList;
use pool::events::{EID, News, since, wait_since};

/// Places in the ring: before the oldest event, and behind the newest.
const START: u64 = 0;
const END: u64 = u64::MAX;

/// The place of a reader.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    /// The number of the event that was read last.
    read: u64,
}

/// An event, and how many were lost before it.
#[derive(Debug, PartialEq)]
pub(crate) struct Next {
    pub(crate) event: NvList,
    pub(crate) dropped: u64,
}

/// Returns the event after the place of a reader; waits for one, at most for `limit`.
pub(crate) fn next(cursor: &mut Cursor, limit: Duration) -> Option<Next> {
    let news = if limit.is_zero() { since(cursor.read) } else { wait_since(cursor.read, limit) };
    let event = news.events.into_iter().next()?;
    let dropped = news.dropped;
    cursor.read = event.get_u64(EID)?;
    Some(Next { event, dropped })
}

/// Moves a reader before the event `number`, to the oldest (0), or behind the newest (the largest number). Returns whether there is such an event.
pub(crate) fn seek(cursor: &mut Cursor, number: u64) -> bool {
    let News { events, last, .. } = since(0);
    let mut numbers = events.iter().filter_map(|event| event.get_u64(EID));
    cursor.read = match number {
        START => numbers.next().map_or(last, |first| first - 1),
        END => last,
        number if numbers.any(|known| known == number) => number - 1,
        _ => return false,
    };
    true
}
