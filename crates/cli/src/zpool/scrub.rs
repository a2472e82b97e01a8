//! `zpool scrub`. There is no daemon: a scrub runs as long as its command.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use pool::{Nearest, ScrubRange};
use zuse::{ScrubOptions, Scrubbed};

use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::state::Imported;
use crate::{pools, writable};

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Run(Blocks),
    /// Only the blocks in the list of errors.
    Errors,
    Pause,
    Stop,
}

/// Which blocks a scrub reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blocks {
    /// What was written since the last scrub that saw everything.
    New,
    /// What was written between two times, in seconds since 1970.
    Written(Option<u64>, Option<u64>),
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    let exclusive = [("s", "p"), ("e", "p"), ("e", "s"), ("e", "C"), ("p", "C"), ("s", "C")];
    let has = |flag: &str| flag.chars().all(|c| args.has(c));
    if let Some((a, b)) = exclusive.iter().find(|(a, b)| has(a) && has(b)) {
        return Err(usage(format!("invalid option combination: -{a} and -{b} are mutually exclusive")));
    }
    let what = match (args.has('s'), args.has('p')) {
        (true, _) => What::Stop,
        (_, true) => What::Pause,
        _ if args.has('e') => What::Errors,
        _ if args.has('C') => What::Run(Blocks::New),
        _ => What::Run(Blocks::Written(time(args.text('S'), false)?, time(args.text('E'), true)?)),
    };
    if (args.has('S') || args.has('E')) && !matches!(what, What::Run(Blocks::Written(..))) {
        return Err(usage("invalid option combination: start/end date is available only with normal scrub"));
    }
    if let What::Run(Blocks::Written(Some(start), Some(end))) = what
        && start > end
    {
        return Err(usage("invalid arguments: end date has to be later than start date"));
    }
    if args.has('w') && matches!(what, What::Stop | What::Pause) {
        return Err(usage("invalid option combination: -w cannot be used with -p or -s"));
    }
    let names = args.names();
    if names.is_empty() && !args.has('a') {
        return Err(usage("missing pool name argument"));
    }
    Ok(pools::for_each_record(&names, |record| one(record, what))?.0)
}

fn one(record: &Imported, what: What) -> Result<(), Failure> {
    let name = &record.name;
    match what {
        What::Run(blocks) => scrub(record, Some(blocks), &format!("cannot scrub {name}")),
        What::Errors => scrub(record, None, &format!("cannot scrub {name}")),
        What::Stop => {
            let doing = format!("cannot cancel scrubbing {name}");
            let was = writable::change(record, &doing, |spa| spa.scrub_cancel())?;
            if was { Ok(()) } else { Err(failed(format!("{doing}: there is no active scrub"))) }
        }
        What::Pause => {
            let doing = format!("cannot pause scrubbing {name}");
            let was = writable::change(record, &doing, |spa| spa.scrub_pause())?;
            if was { Ok(()) } else { Err(failed(format!("{doing}: there is no active scrub"))) }
        }
    }
}

/// Scrubs `blocks`; without any, what is in the list of errors.
fn scrub(record: &Imported, blocks: Option<Blocks>, doing: &str) -> Result<(), Failure> {
    let spa = writable::open(record, doing)?;
    let cannot = |why: String| failed(format!("{doing}: {why}"));
    let total = spa.view().and_then(|view| view.space()).map_or(0, |space| space.allocated);
    let bar = crate::verbs::progress::bar(total, false);
    let lost = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let progress = |bytes, damaged| {
        bar.inc(bytes);
        if damaged > 0 {
            bar.set_message(format!("{} damaged", lost.fetch_add(damaged, Ordering::Relaxed) + damaged));
        }
    };
    let stop = AtomicBool::new(false);
    let scrubbed = match blocks {
        Some(blocks) => {
            let range = spa.view().and_then(|view| range_of(&view, blocks)).map_err(|e| cannot(e.to_string()))?;
            zuse::scrub(&spa, &ScrubOptions { threads, range }, &stop, &progress).map(Some)
        }
        None => zuse::error_scrub(&spa, threads, &stop, &progress),
    };
    bar.finish_and_clear();
    match scrubbed.map_err(|e| cannot(e.to_string()))? {
        None | Some(Scrubbed::Whole(_) | Scrubbed::Stopped) => writable::close(&spa, doing),
    }
}

/// The txgs that blocks were written in, as far as times were noted: rather too many than too few.
fn range_of(view: &pool::Pool, blocks: Blocks) -> Result<ScrubRange, pool::Error> {
    let at = |time: Option<u64>, nearest| {
        let noted = time.map(|time| view.txg_at(time, nearest)).transpose();
        noted.map(Option::flatten)
    };
    match blocks {
        Blocks::New => Ok(ScrubRange { after: view.last_scrubbed_txg()?, upto: None }),
        Blocks::Written(start, end) => {
            let after = at(start, Nearest::Before)?.unwrap_or_default();
            Ok(ScrubRange { after, upto: at(end, Nearest::After)? })
        }
    }
}

/// A time of this machine's zone, `YYYY-MM-DD HH:MM` or `YYYY-MM-DD`; with `end`, the one when that minute or day is over (OpenZFS:
/// `date_string_to_sec`).
fn time(text: Option<String>, end: bool) -> Result<Option<u64>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let minute = DateTime::strptime("%Y-%m-%d %H:%M", &text).map(|time| (time, 60));
    let parsed = minute.or_else(|_| Date::strptime("%Y-%m-%d", &text).map(|day| (day.at(0, 0, 0, 0), 24 * 3600)));
    let zoned = parsed.and_then(|(time, len)| Ok((time.to_zoned(TimeZone::system())?.timestamp().as_second(), len)));
    let (seconds, len) = zoned.map_err(|_| usage("Failed to parse the date."))?;
    let seconds = u64::try_from(seconds).map_err(|_| usage("Failed to parse the date."))?;
    Ok(Some(if end { seconds + len } else { seconds }))
}
