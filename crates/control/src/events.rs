//! The place of a caller among events (OpenZFS: `zfs_zevent_next`, `zfs_zevent_seek`).
//!
//! One rule for all events there are: those of this process ([`OfProcess`]), and whatever another [`EventSource`] has, as those of all processes of
//! this machine in `site`.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvlist::NvList;
use pool::events::{EID, News, clear, since, wait_since};

use crate::{CancelToken, Error, Failed, Ioc};

/// Places among events: before the oldest, and behind the newest.
const START: u64 = 0;
const END: u64 = u64::MAX;

/// The longest that a request waits for an event: whoever wants to wait longer asks again.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The interval at which it is asked whether a wait was ended.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Where events come from; they have numbers that grow ([`EID`]).
pub trait EventSource {
    /// Returns the events after event `seen`.
    ///
    /// # Errors
    /// When they cannot be read.
    fn since(&self, seen: u64) -> Result<News, Failed>;

    /// Waits until there may be events after event `seen`, at most for `limit`.
    fn wait(&self, seen: u64, limit: Duration);

    /// Forgets all events; returns their number.
    ///
    /// # Errors
    /// When they cannot be forgotten.
    fn clear(&self) -> Result<u64, Failed>;
}

/// The events of this process's pools.
pub(crate) struct OfProcess;

impl EventSource for OfProcess {
    fn since(&self, seen: u64) -> Result<News, Failed> {
        Ok(since(seen))
    }

    fn wait(&self, seen: u64, limit: Duration) {
        drop(wait_since(seen, limit));
    }

    fn clear(&self) -> Result<u64, Failed> {
        Ok(clear())
    }
}

/// The place of a caller among events.
#[derive(Default)]
pub struct Events(Mutex<Cursor>);

#[derive(Default)]
struct Cursor {
    /// The number of the event that was fetched last.
    fetched: u64,
    ready: VecDeque<NvList>,
    /// Events that were lost before the next one.
    dropped: u64,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    fn cursor(&self) -> MutexGuard<'_, Cursor> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers [`Ioc::EventsNext`], [`Ioc::EventsClear`] and [`Ioc::EventsSeek`].
    ///
    /// # Errors
    /// ENOENT where there is no such event, EINTR where `cancel` has ended the wait for one, EINVAL for other requests.
    pub fn call(
        &self,
        source: &dyn EventSource,
        ioc: Ioc,
        input: &NvList,
        cancel: &CancelToken,
    ) -> Result<NvList, Failed> {
        match ioc {
            Ioc::EventsNext => self.next(source, wait_of(input), cancel),
            Ioc::EventsSeek => self.seek(source, input.get_u64("eid").unwrap_or(START)),
            Ioc::EventsClear => {
                let mut out = NvList::new();
                out.insert("cleared", source.clear()?);
                *self.cursor() = Cursor { fetched: source.since(START)?.last, ..Cursor::default() };
                Ok(out)
            }
            _ => Err(Error::Invalid(format!("{}: is no request about events", ioc.name())).into()),
        }
    }

    /// Takes the next event, and how many were lost before it; waits for one, at most for `limit`.
    fn next(&self, source: &dyn EventSource, limit: Duration, cancel: &CancelToken) -> Result<NvList, Failed> {
        let begun = Instant::now();
        loop {
            let mut cursor = self.cursor();
            if cursor.ready.is_empty() {
                let news = source.since(cursor.fetched)?;
                cursor.fetched = news.last;
                cursor.dropped += news.dropped;
                cursor.ready.extend(news.events);
            }
            if let Some(event) = cursor.ready.pop_front() {
                let mut out = NvList::new();
                out.insert("event", event);
                out.insert("dropped", std::mem::take(&mut cursor.dropped));
                return Ok(out);
            }
            let fetched = cursor.fetched;
            drop(cursor);
            let Some(left) = limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else {
                return Err(Error::NoEvent.into());
            };
            if cancel.is_cancelled() {
                return Err(Error::Cancelled.into());
            }
            source.wait(fetched, if cancel.can_be_cancelled() { left.min(ASK_EVERY) } else { left });
        }
    }

    /// Moves before the event `number`, to the oldest, or behind the newest.
    fn seek(&self, source: &dyn EventSource, number: u64) -> Result<NvList, Failed> {
        let News { events, last, .. } = source.since(START)?;
        let at = match number {
            START => 0,
            END => events.len(),
            number => events.iter().position(|event| event.get_u64(EID) == Some(number)).ok_or(Error::NoEvent)?,
        };
        *self.cursor() = Cursor { fetched: last, ready: events.into_iter().skip(at).collect(), dropped: 0 };
        Ok(NvList::new())
    }
}

/// How long [`Ioc::EventsNext`] waits for an event.
fn wait_of(input: &NvList) -> Duration {
    Duration::from_millis(input.get_u64("wait_ms").unwrap_or(0)).min(WAIT_MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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

    /// Events by their numbers, of which some were lost.
    struct Fixed(Mutex<Vec<u64>>);

    impl EventSource for Fixed {
        fn since(&self, seen: u64) -> Result<News, Failed> {
            let all = self.0.lock().unwrap().clone();
            let last = 9;
            let kept: Vec<u64> = all.into_iter().filter(|number| *number > seen).collect();
            let dropped = last - seen - kept.len() as u64;
            let event = |number: &u64| {
                let mut event = NvList::new();
                event.insert(EID, *number);
                event
            };
            Ok(News { events: kept.iter().map(event).collect(), dropped, last })
        }

        fn wait(&self, _seen: u64, _limit: Duration) {}

        fn clear(&self) -> Result<u64, Failed> {
            Ok(self.0.lock().unwrap().drain(..).count() as u64)
        }
    }

    #[test]
    fn events_come_in_order_from_the_place_that_is_sought() {
        let (events, source) = (Events::default(), Fixed(Mutex::new(vec![7, 8, 9])));
        let next = || {
            let out = events.call(&source, Ioc::EventsNext, &NvList::new(), &CancelToken::default()).ok()?;
            Some((out.get_nvlist("event")?.get_u64(EID)?, out.get_u64("dropped")?))
        };
        let seek = |number: u64| {
            let mut input = NvList::new();
            input.insert("eid", number);
            events.call(&source, Ioc::EventsSeek, &input, &CancelToken::default()).is_ok()
        };
        assert_eq!([next(), next()], [Some((7, 6)), Some((8, 0))]);
        assert!(seek(START));
        assert_eq!(next(), Some((7, 0)));
        assert!(seek(9) && !seek(3), "one that was lost is not there, and the place stays");
        assert_eq!([next(), next()], [Some((9, 0)), None]);
        assert!(seek(START) && seek(END));
        assert_eq!(next(), None);
        assert!(seek(START));
        let cleared = events.call(&source, Ioc::EventsClear, &NvList::new(), &CancelToken::default()).unwrap();
        assert_eq!((cleared.get_u64("cleared"), next()), (Some(3), None));
    }
}
