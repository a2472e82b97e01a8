//! `zpool scrub`. There is no daemon: a scrub runs as long as its command.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pool::ScrubRange;
use zuse::{ScrubOptions, Scrubbed};

use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::state::Imported;
use crate::{pools, writable};

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// With `new`, only what was written since the last scrub that saw everything.
    Run {
        new: bool,
    },
    Pause,
    Stop,
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
        _ => What::Run { new: args.has('C') },
    };
    if args.has('w') && !matches!(what, What::Run { .. }) {
        return Err(usage("invalid option combination: -w cannot be used with -p or -s"));
    }
    if let Some(option) = ['e', 'E', 'S'].into_iter().find(|option| args.has(*option)) {
        return Err(failed(format!("scrub -{option} is not in this version of Zuse, which scrubs by txg alone")));
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
        What::Run { new } => scrub(record, new, &format!("cannot scrub {name}")),
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

fn scrub(record: &Imported, new: bool, doing: &str) -> Result<(), Failure> {
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
    let scrubbed = |view: std::sync::Arc<pool::Pool>| view.last_scrubbed_txg();
    let after = if new { spa.view().and_then(scrubbed).map_err(|e| cannot(e.to_string()))? } else { base::Txg(0) };
    let options = ScrubOptions { threads, range: ScrubRange { after, upto: None } };
    let scrubbed = zuse::scrub(&spa, &options, &AtomicBool::new(false), &progress);
    bar.finish_and_clear();
    match scrubbed.map_err(|e| cannot(e.to_string()))? {
        Scrubbed::Whole(_) | Scrubbed::Stopped => writable::close(&spa, doing),
    }
}
