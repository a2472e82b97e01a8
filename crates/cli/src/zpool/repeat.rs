//! Commands that repeat their output: `[interval [count]]`, and the time before each round.

use std::time::Duration;

use crate::command::Call;
use crate::console;
use crate::error::{Failure, usage};

/// The longest interval: a hundred years.
const INTERVAL_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The repetition of a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Repeat {
    /// The time between two rounds; `None`: one round only.
    pub(super) interval: Option<Duration>,
    /// The number of rounds; `None`: no limit.
    pub(super) count: Option<u64>,
}

impl Repeat {
    /// Takes `[interval [count]]` off the end of the operands.
    pub(super) fn take(names: &mut Vec<String>) -> Result<Repeat, Failure> {
        let mut repeat = Repeat { interval: None, count: None };
        let last = |names: &[String]| names.last().and_then(|n| n.parse::<f64>().ok()).filter(|n| n.is_finite());
        let Some(number) = last(names) else { return Ok(repeat) };
        if number <= 0.0 {
            return Err(usage("interval cannot be zero"));
        }
        names.pop();
        repeat.interval = Some(seconds(number));
        if let Some(before) = last(names) {
            if before <= 0.0 {
                return Err(usage("interval cannot be zero"));
            }
            names.pop();
            repeat.interval = Some(seconds(before));
            repeat.count = Some(number as u64);
        }
        Ok(repeat)
    }

    /// Returns whether to continue after `done` rounds; waits for the interval first.
    pub(super) fn again(&self, done: u64) -> bool {
        let Some(interval) = self.interval else { return false };
        if self.count.is_some_and(|count| done >= count) {
            return false;
        }
        console::sleep(interval)
    }
}

/// The duration in seconds, limited to [`INTERVAL_MAX`].
fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or(INTERVAL_MAX).min(INTERVAL_MAX)
}

/// The current time in the form of an option `-T`: `u` seconds since 1970, `d` a date.
pub(super) fn timestamp(call: &Call<'_>) -> Result<Option<String>, Failure> {
    let Some(how) = call.args.text('T') else { return Ok(None) };
    let now = console::now();
    match how.chars().next() {
        Some('u') => Ok(Some(now.timestamp().as_second().to_string())),
        Some('d') => Ok(Some(now.strftime("%a %b %e %H:%M:%S %Z %Y").to_string())),
        _ => Err(usage("")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_the_end_are_interval_and_count() {
        let take = |words: &[&str]| {
            let mut names: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            let repeat = Repeat::take(&mut names).ok();
            (repeat.map(|r| (r.interval, r.count)), names.len())
        };
        assert_eq!(take(&["tank"]), (Some((None, None)), 1));
        assert_eq!(take(&["tank", "5"]), (Some((Some(Duration::from_secs(5)), None)), 1));
        assert_eq!(take(&["tank", "0.5", "2"]), (Some((Some(Duration::from_millis(500)), Some(2))), 1));
        assert_eq!(take(&["1e20"]), (Some((Some(INTERVAL_MAX), None)), 0));
        assert_eq!(take(&["0"]).0, None);
    }
}
