//! The diagnosis of a leaf by its errors: so many of a kind within a time are too many.
//!
//! * *Failed I/O*: each read and write that the device fails counts.
//! * *Wrong bytes*: each place of the device that a checksum tells of counts, but only once within a quarter of an hour however often it is read, and
//!   not at all where a scrub or resilver met it, which is there to repair. Where other leaves of the same parent have met wrong bytes within the time
//!   as well, something else is wrong than the device, and all of it is forgotten.
//!
//! What was counted ends with the tree, or when the leaf is cleared; the verdict is the leaf's state, which the pool records.
//!
//! OpenZFS: the event daemon's `zfs-diagnosis` with an engine (`fmd_serd.c`) for each kind, and `zfs_ereport_is_duplicate`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Errors that are too many if no property says so, and the time within which they count (OpenZFS: `DEFAULT_IO_N`, `DEFAULT_IO_T`).
const DEFAULT: Threshold = Threshold { events: 10, within: Duration::from_secs(600) };
/// How long a place with wrong bytes is known (OpenZFS: `zfs_zevent_retain_expire_secs`).
const PLACE_KNOWN: Duration = Duration::from_secs(900);
/// Places with wrong bytes that are known (OpenZFS: `zfs_zevent_retain_max`). A threshold above that is never met.
const PLACES_MAX: usize = 2000;

/// How many errors within which time are too many; none are if it is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// The number of errors.
    pub events: u64,
    /// Within this time.
    pub within: Duration,
}

/// The thresholds of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// The threshold of I/Os that its device fails (OpenZFS: the vdev properties `io_n` and `io_t`).
    pub io: Threshold,
    /// The threshold of wrong bytes that it gives (OpenZFS: `checksum_n` and `checksum_t`).
    pub checksum: Threshold,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds { io: DEFAULT, checksum: DEFAULT }
    }
}

/// The judgement of the I/Os that a device has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There is nothing new.
    Nothing,
    /// Some failed.
    Some,
    /// Too many failed.
    TooMany,
}

/// The errors of a leaf, as far as they count.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    /// The thresholds; `None` until somebody says which, where the pool may have some.
    thresholds: Option<Thresholds>,
    /// Failed I/Os that were judged, as the counters had them.
    total: u64,
    /// How many of them came when.
    lately: VecDeque<(Instant, u64)>,
    /// Whether some were looked at before the thresholds were known.
    undecided: bool,
    /// Places with wrong bytes, and when they were met.
    places: VecDeque<(Instant, u64)>,
    /// Whether places were added since they were judged.
    new_places: bool,
    /// Whether they were found too many.
    is_convicted: bool,
}

impl Default for Diagnosis {
    fn default() -> Self {
        Diagnosis {
            thresholds: Some(Thresholds::default()),
            total: 0,
            lately: VecDeque::new(),
            undecided: false,
            places: VecDeque::new(),
            new_places: false,
            is_convicted: false,
        }
    }
}

impl Diagnosis {
    pub(crate) fn set_thresholds(&mut self, thresholds: Option<Thresholds>) {
        self.thresholds = thresholds;
    }

    pub(crate) fn has_thresholds(&self) -> bool {
        self.thresholds.is_some()
    }

    /// Nothing that went wrong counts any more, of `total` I/Os that failed in all.
    pub(crate) fn forgive(&mut self, total: u64) {
        *self = Diagnosis { thresholds: self.thresholds, total, ..Diagnosis::default() };
    }

    /// Whether anything happened that was not judged, where `total` I/Os have failed in all.
    pub(crate) fn has_news(&self, total: u64) -> bool {
        self.total != total || self.undecided || self.new_places
    }

    /// Judges the I/Os that have failed since this was last asked, `total` in all. By their number only if the thresholds are known.
    pub(crate) fn judge_io(&mut self, total: u64, now: Instant) -> Verdict {
        let new = total.saturating_sub(std::mem::replace(&mut self.total, total));
        if new > 0 {
            self.lately.push_back((now, new));
        } else if !self.undecided {
            return Verdict::Nothing;
        }
        self.undecided = self.thresholds.is_none();
        let Some(Thresholds { io, .. }) = self.thresholds else { return Verdict::Some };
        while self.lately.front().is_some_and(|(then, _)| now.duration_since(*then) > io.within) {
            self.lately.pop_front();
        }
        let sum = self.lately.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
        if io.events != 0 && sum >= io.events { Verdict::TooMany } else { Verdict::Some }
    }

    /// Notes wrong bytes at a place of the device.
    pub(crate) fn note_wrong(&mut self, place: u64, now: Instant) {
        let within = self.thresholds.unwrap_or_default().checksum.within;
        let is_old = |then: &Instant| now.duration_since(*then) > within.max(PLACE_KNOWN);
        while self.places.front().is_some_and(|(then, _)| is_old(then)) || self.places.len() >= PLACES_MAX {
            self.places.pop_front();
        }
        if !self.is_convicted && !self.places.iter().any(|(_, known)| *known == place) {
            self.places.push_back((now, place));
            self.new_places = true;
        }
    }

    /// Whether the wrong bytes are too many, as far as that was not said before. To be asked when the thresholds are known.
    pub(crate) fn judge_wrong(&mut self, now: Instant) -> bool {
        let events = self.thresholds.unwrap_or_default().checksum.events;
        std::mem::take(&mut self.new_places) && !self.is_convicted && events != 0 && self.wrong_lately(now) >= events
    }

    fn wrong_lately(&self, now: Instant) -> u64 {
        let within = self.thresholds.unwrap_or_default().checksum.within;
        self.places.iter().filter(|(then, _)| now.duration_since(*then) <= within).count() as u64
    }

    /// Whether it has given wrong bytes within the time, or was found to have given too many.
    pub(crate) fn was_wrong_lately(&self, now: Instant) -> bool {
        self.is_convicted || self.wrong_lately(now) > 0
    }

    /// The wrong bytes were too many: the leaf is `convicted`, or they do not count.
    pub(crate) fn settle_wrong(&mut self, convicted: bool) {
        self.is_convicted = convicted;
        self.new_places = false;
        if !convicted {
            self.places.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(events: u64, seconds: u64) -> Thresholds {
        let one = Threshold { events, within: Duration::from_secs(seconds) };
        Thresholds { io: one, checksum: one }
    }

    #[test]
    fn ten_within_ten_minutes_are_too_many() {
        let (mut one, start) = (Diagnosis::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(one.judge_io(9, start), Verdict::Some);
        assert_eq!(one.judge_io(9, start), Verdict::Nothing);
        assert_eq!(one.judge_io(10, at(601)), Verdict::Some, "nine are too old");
        assert_eq!(one.judge_io(19, at(602)), Verdict::TooMany);
        one.forgive(19);
        assert!(!one.has_news(19));
        assert_eq!(one.judge_io(28, at(603)), Verdict::Some);
        one.set_thresholds(Some(limits(0, 600)));
        assert_eq!(one.judge_io(100, at(604)), Verdict::Some, "never");
    }

    #[test]
    fn io_is_not_judged_by_number_before_the_thresholds_are_known() {
        let (mut one, now) = (Diagnosis::default(), Instant::now());
        one.set_thresholds(None);
        assert_eq!(one.judge_io(50, now), Verdict::Some);
        assert!(one.has_news(50));
        one.set_thresholds(Some(limits(20, 600)));
        assert_eq!(one.judge_io(50, now), Verdict::TooMany);
        assert!(!one.has_news(50));
    }

    #[test]
    fn a_place_counts_once() {
        let (mut one, start) = (Diagnosis::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        (0..100).for_each(|_| one.note_wrong(7, start));
        assert!(one.has_news(0) && !one.judge_wrong(start) && !one.has_news(0));
        (0..9).for_each(|place| one.note_wrong(100 + place, at(601)));
        assert!(!one.judge_wrong(at(601)), "the first is too old");
        assert!(one.was_wrong_lately(at(1201)) && !one.was_wrong_lately(at(1202)));
        one.note_wrong(7, at(602));
        assert!(!one.judge_wrong(at(602)), "it is known");
        one.note_wrong(8, at(602));
        assert!(one.judge_wrong(at(602)) && !one.judge_wrong(at(602)));
        one.settle_wrong(true);
        one.note_wrong(9, at(603));
        assert!(!one.has_news(0) && one.was_wrong_lately(at(9999)));
        one.forgive(0);
        assert!(!one.was_wrong_lately(at(603)));
        (0..3000).for_each(|place| one.note_wrong(place, at(604)));
        assert_eq!(one.places.len(), PLACES_MAX);
    }
}
