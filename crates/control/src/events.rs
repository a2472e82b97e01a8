//! The place of a caller among the events of this process's pools (OpenZFS: `zfs_zevent_next`, `zfs_zevent_seek`).

use std::time::Duration;

use nvlist::NvList;
use pool::events::{EID, News, since, wait_since};

/// Places in the ring: before the oldest event, and behind the newest.
const START: u64 = 0;
const END: u64 = u64::MAX;

/// The longest that a request waits for an event: whoever wants to wait longer asks again.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How long [`Ioc::EventsNext`](crate::Ioc::EventsNext) waits for an event.
#[must_use]
pub fn wait_of(input: &NvList) -> Duration {
    Duration::from_millis(input.get_u64("wait_ms").unwrap_or(0)).min(WAIT_MAX)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_ever() {
        let mut input = NvList::new();
        assert_eq!(wait_of(&input), Duration::ZERO);
        input.insert("wait_ms", 250u64);
        assert_eq!(wait_of(&input), Duration::from_millis(250));
        input.insert("wait_ms", u64::MAX);
        assert_eq!(wait_of(&input), WAIT_MAX);
    }
}
