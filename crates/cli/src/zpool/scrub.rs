//! `zpool scrub` and `zpool resilver`. They run in the background of the open pool, which this command has opened: it waits for them. When it
//! is interrupted, they resume with the next such command. In a server they go on, and are waited for with `-w`.

use std::time::Duration;

use base::Errno;
use control::stats::{Activity, FEATURE_STATS, VdevStat, VdevStats};
use control::{Control, Failed, Ioc};
use jiff::civil::{Date, DateTime};
use nvlist::NvList;
use ondisk::label::key;
use ondisk::scan::{ScanFunc, ScanState};
use pool::feature::by_name;
use site::Imported;

use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, failed, usage};
use crate::{messages, pools, writable};

/// The interval at which the progress is shown.
const LOOK: Duration = Duration::from_millis(100);

/// The operation that was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Run(Blocks),
    /// Reads only the blocks in the list of errors.
    Errors,
    Pause,
    Stop,
}

/// The blocks that a scrub reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blocks {
    /// Blocks written since the last scrub that covered everything.
    New,
    /// Blocks written between two times, in seconds since 1970.
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
    let waits = args.has('w');
    Ok(pools::for_each_record(&names, |record| one(record, what, waits))?.0)
}

fn one(record: &Imported, what: What, waits: bool) -> Result<(), Failure> {
    let name = &record.name;
    match what {
        What::Run(_) | What::Errors => scrub(record, what, waits, &format!("cannot scrub {name}")),
        What::Stop => stop(record, what, &format!("cannot cancel scrubbing {name}")),
        What::Pause => stop(record, what, &format!("cannot pause scrubbing {name}")),
    }
}

/// The request for an operation: type, command, dates.
fn request(what: What) -> NvList {
    let (kind, command, (start, end)) = match what {
        What::Run(Blocks::Written(start, end)) => (1u64, 0u64, (start, end)),
        What::Run(Blocks::New) => (1, 2, (None, None)),
        What::Errors => (3, 0, (None, None)),
        What::Pause => (1, 1, (None, None)),
        What::Stop => (0, 0, (None, None)),
    };
    let mut input = NvList::new();
    input.insert("scan_type", kind);
    input.insert("scan_command", command);
    if start.is_some() || end.is_some() {
        input.insert("scan_date_start", start.unwrap_or(0));
        input.insert("scan_date_end", end.unwrap_or(0));
    }
    input
}

fn stop(record: &Imported, what: What, doing: &str) -> Result<(), Failure> {
    let control = console::control(writable::open(record, doing)?);
    match control.call(Ioc::PoolScrub, &record.name, &request(what)) {
        // what does not run needs no pause
        Err(Failed { errno: Errno::ENOENT, .. }) if what == What::Pause => {}
        done => drop(done.map_err(|e| failed(format!("{doing}: {}", messages::why_failed(&e))))?),
    }
    if what == What::Pause {
        warn_of_checkpoint(&control, doing)?;
    }
    writable::close(control.spa(), doing)
}

/// Says which blocks a scrub does not read.
fn warn_of_checkpoint(control: &Control, doing: &str) -> Result<(), Failure> {
    let config = brief(control).map_err(|e| failed(format!("{doing}: {}", messages::why_failed(&e))))?;
    let features = config.get_nvlist(FEATURE_STATS);
    let uses = by_name("zpool_checkpoint").and_then(|def| features?.get_u64(def.guid));
    if uses.is_some_and(|uses| uses > 0) {
        println!("warning: will not scrub state that belongs to the checkpoint of pool '{}'", control.spa().name());
    }
    Ok(())
}

/// The configuration of the pool as it is now.
fn brief(control: &Control) -> Result<NvList, Failed> {
    control.call(Ioc::PoolStats, control.spa().name(), &pools::brief())
}

/// Scrubs. An unfinished resilver is completed first.
fn scrub(record: &Imported, what: What, waits: bool, doing: &str) -> Result<(), Failure> {
    let control = console::control(writable::open_as_it_is(record, doing)?);
    let spa = control.spa();
    let cannot = |e: Failed| failed(format!("{doing}: {}", messages::why_failed(&e)));
    let begun = Activity::of(&brief(&control).map_err(cannot)?).scan;
    if begun.is_some_and(|scan| scan.func == ScanFunc::Resilver && scan.state == ScanState::Scanning) {
        spa.resilver(true).map_err(|e| cannot(e.into()))?;
        wait(&control).map_err(cannot)?;
    }
    match control.call(Ioc::PoolScrub, &record.name, &request(what)) {
        Err(Failed { errno: Errno::ECANCELED, .. }) => return writable::close(spa, doing),
        begun => begun.map_err(|e| failed(format!("{doing}: {}", messages::why_failed(&e))))?,
    };
    if what != What::Errors {
        warn_of_checkpoint(&control, doing)?;
    }
    if waits || !here().is_of_machine() {
        wait(&control).map_err(cannot)?;
    }
    writable::close(spa, doing)
}

/// Waits until the scan has ended, and shows its progress on a terminal.
pub(super) fn wait(control: &Control) -> Result<(), Failed> {
    let config = brief(control)?;
    let total = config.get_nvlist(key::VDEV_TREE).map_or(0, |root| VdevStats::of(root).get(VdevStat::Alloc));
    let (spa, cancel) = (control.spa(), console::signals().cancel());
    let bar = crate::progress::bar(total, false);
    let ended = loop {
        match spa.scan_wait_for(LOOK) {
            // it goes on in the background
            Ok(false) if cancel.is_cancelled() => break Err(control::Error::Cancelled.into()),
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(e) => break Err(e.into()),
        }
        if let Some(figures) = spa.scan_figures() {
            bar.set_position(figures.bytes);
            if figures.lost > 0 {
                bar.set_message(format!("{} damaged", figures.lost));
            }
        }
    };
    bar.finish_and_clear();
    ended
}

/// `zpool resilver`: reads the data that devices missed, and writes it to them.
pub(super) fn resilver(call: &Call<'_>) -> Outcome {
    let names = call.args.names();
    if names.is_empty() {
        return Err(usage("missing pool name argument"));
    }
    let one = |record: &Imported| {
        let doing = format!("cannot restart resilver on {}", record.name);
        let control = console::control(writable::open_as_it_is(record, &doing)?);
        let mut input = NvList::new();
        input.insert("scan_type", 2u64);
        input.insert("scan_command", 0u64);
        let begun = control.call(Ioc::PoolScrub, &record.name, &input);
        begun.map_err(|e| failed(format!("{doing}: {}", messages::why_failed(&e))))?;
        if !here().is_of_machine() {
            wait(&control).map_err(|e| failed(format!("{doing}: {}", messages::why_failed(&e))))?;
        }
        writable::close(control.spa(), &doing)
    };
    Ok(pools::for_each_record(&names, one)?.0)
}

/// Parses a local time, `YYYY-MM-DD HH:MM` or `YYYY-MM-DD`; with `end`, the end of that minute or day (OpenZFS:
/// `date_string_to_sec`).
fn time(text: Option<String>, end: bool) -> Result<Option<u64>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let minute = DateTime::strptime("%Y-%m-%d %H:%M", &text).map(|time| (time, 60));
    let parsed = minute.or_else(|_| Date::strptime("%Y-%m-%d", &text).map(|day| (day.at(0, 0, 0, 0), 24 * 3600)));
    let zoned = parsed.and_then(|(time, len)| Ok((time.to_zoned(console::time_zone())?.timestamp().as_second(), len)));
    let (seconds, len) = zoned.map_err(|_| usage("Failed to parse the date."))?;
    let seconds = u64::try_from(seconds).map_err(|_| usage("Failed to parse the date."))?;
    Ok(Some(if end { seconds + len } else { seconds }))
}
