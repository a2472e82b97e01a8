//! `zpool wait`: returns when the activities of a pool have ended.
//!
//! Activities run in the background of an open pool. If another command has the pool open, this waits for its end. If none has, this command opens
//! the pool and waits for what resumes then: a scan, what was destroyed, a discarded checkpoint, initialize and trim. An activity that OpenZFS started and this version
//! cannot continue would never end: that is an error.

use std::io::Write;
use std::time::{Duration, Instant};

use control::stats::{Activity, REBUILD_ACTIVE};
use ondisk::scan::{ScanFunc, ScanPhys, ScanState};
use pool::prop::nicenum;
use site::{Imported, Query};
use vdev::{VdevState, VdevType};

use super::describe;
use super::leaf_work::{Progress, Work};
use super::repeat::{Repeat, timestamp};
use super::vdevs::{Vdevs, brief_stats};
use crate::answers;
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, failed, usage};
use crate::pools::{self, stdout};
use crate::{messages, writable};

/// The activities that can be waited for, in the order of the columns.
const ACTIVITIES: [&str; 10] =
    ["discard", "free", "initialize", "replace", "remove", "resilver", "scrub", "trim", "raidz_expand", "condense"];
const DISCARD: usize = 0;
const FREE: usize = 1;
const INITIALIZE: usize = 2;
const REPLACE: usize = 3;
const REMOVE: usize = 4;
const RESILVER: usize = 5;
const SCRUB: usize = 6;
const TRIM: usize = 7;
const EXPAND: usize = 8;
/// Interval at which to check whether the other command is done.
const LOOK: Duration = Duration::from_millis(200);

/// The remaining bytes of each activity; at least one while it is in progress.
type Left = [u64; ACTIVITIES.len()];

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    let mut wanted = [true; ACTIVITIES.len()];
    if let Some(words) = args.text('t') {
        wanted = [false; ACTIVITIES.len()];
        for word in words.split(',') {
            let known = ACTIVITIES.iter().zip(&mut wanted).find(|(name, _)| **name == word);
            *known.ok_or_else(|| usage(format!("invalid activity '{word}'")))?.1 = true;
        }
    }
    let mut operands = args.names();
    let repeat = Repeat::take(&mut operands)?;
    let name = match operands.as_slice() {
        _ if repeat.count.is_some() => return Err(usage("too many arguments")),
        [] => return Err(usage("missing 'pool' argument")),
        [name] => name,
        _ => return Err(usage("too many arguments")),
    };
    let record = pools::find(name)?;
    let every = repeat.interval;
    let (mut row, mut next) = (0, Instant::now());
    loop {
        here().look_again();
        let left = left(&pools::query(&record)?)?;
        if let Some(every) = every.filter(|_| Instant::now() >= next) {
            print(call, &wanted, &left, row)?;
            row += 1;
            next += every;
        }
        if !is_any(&wanted, &left) {
            return Ok(0);
        }
        if site::writing::is_used(&record) {
            if !console::sleep(LOOK) {
                return Ok(1);
            }
            continue;
        }
        // the process that had the pool may have finished meanwhile
        here().look_again();
        let left = self::left(&pools::query(&record)?)?;
        if is_any(&wanted, &left) {
            finish(&record, &wanted, &left)?;
        }
    }
}

fn is_any(wanted: &[bool], left: &Left) -> bool {
    wanted.iter().zip(left).any(|(wanted, left)| *wanted && *left > 0)
}

/// The remaining bytes of each activity.
fn left(query: &Query) -> Result<Left, Failure> {
    let mut left = [0; ACTIVITIES.len()];
    let config = brief_stats(query)?;
    let activity = Activity::of(&config);
    let freeing = describe::props(query, &[])?.get_nvlist("freeing").and_then(|prop| answers::value(prop, "value"));
    left[FREE] = freeing.and_then(|value| value.number()).unwrap_or(0);
    left[DISCARD] = activity.checkpoint.as_ref().filter(|c| c.discarding).map_or(0, |c| c.space.max(1));
    let removal = activity.removal.as_ref().filter(|r| r.state == ScanState::Scanning);
    left[REMOVE] = removal.map_or(0, |r| r.to_copy.saturating_sub(r.copied).max(1));
    let expansion = activity.expansion.as_ref().filter(|e| e.state == ScanState::Scanning);
    left[EXPAND] = expansion.map_or(0, |e| e.to_reflow.saturating_sub(e.reflowed).max(1));
    let runs = |s: &&ScanPhys| s.state == ScanState::Scanning && s.flags & ScanPhys::FLAG_SCRUB_PAUSED == 0;
    if let Some(scan) = activity.scan.as_ref().filter(runs) {
        let at = if scan.func == ScanFunc::Scrub { SCRUB } else { RESILVER };
        left[at] = scan.to_examine.saturating_sub(scan.examined).max(1);
    }
    if activity.rebuilds.iter().any(|(_, rebuild)| rebuild.state == REBUILD_ACTIVE) {
        left[RESILVER] = left[RESILVER].max(1);
    }
    let vdevs = Vdevs::of(&config)?;
    for (at, work) in [(INITIALIZE, Work::Initialize), (TRIM, Work::Trim)] {
        // on a device that is not there nothing goes on
        let leaves = vdevs.root.leaves().into_iter().filter(|leaf| leaf.state >= VdevState::Degraded);
        let active = leaves.map(|leaf| leaf.progress(work)).filter(Progress::is_active);
        left[at] = active.map(|progress| progress.size.saturating_sub(progress.done).max(1)).sum();
    }
    if vdevs.root.walk().iter().any(|vdev| matches!(vdev.kind, VdevType::Replacing | VdevType::Spare)) {
        left[REPLACE] = left[RESILVER];
    }
    Ok(left)
}

/// Finishes the activities that no other process is working on, as far as this command can.
fn finish(record: &Imported, wanted: &[bool], before: &Left) -> Result<(), Failure> {
    let can_go_on = |activity| matches!(activity, FREE | DISCARD | INITIALIZE | SCRUB | RESILVER | TRIM);
    let other = (0..ACTIVITIES.len()).find(|n| wanted[*n] && before[*n] > 0 && !can_go_on(*n));
    if let Some(activity) = other {
        return Err(failed(format!(
            "cannot wait for {} in '{}': it is not running; start it again with its own command",
            ACTIVITIES[activity], record.name
        )));
    }
    let doing = format!("cannot wait for activity in '{}'", record.name);
    let spa = writable::open_as_it_is(record, &doing)?;
    spa.resume_scan().map_err(|e| failed(format!("{doing}: {}", messages::why(&e))))?;
    for (activity, _) in pool::Activity::ALL.into_iter().zip(wanted).filter(|(_, wanted)| **wanted) {
        writable::wait(&spa, &doing, activity)?;
    }
    here().close(&spa).map_err(|e| failed(format!("{doing}: {}", messages::why(&e))))
}

/// Prints a line of what remains (OpenZFS: `print_wait_status_row`).
fn print(call: &Call<'_>, wanted: &[bool], left: &Left, row: usize) -> Result<(), Failure> {
    let (scripted, exact) = (call.args.has('H'), call.args.has('p'));
    let shown = || (0..ACTIVITIES.len()).filter(|n| wanted[*n]);
    let width = |n: usize| ACTIVITIES[n].len().max(6) + 2;
    let mut out = stdout();
    if let Some(stamp) = timestamp(call)? {
        writeln!(out, "{stamp}")?;
    }
    if row == 0 && !scripted {
        shown().try_for_each(|n| write!(out, "{:>width$}", ACTIVITIES[n].to_ascii_uppercase(), width = width(n)))?;
        writeln!(out)?;
    }
    for n in shown() {
        let text = if exact { left[n].to_string() } else { nicenum(left[n]) };
        match scripted {
            true => write!(out, "{}{text}", if n == 0 { "" } else { "\t" })?,
            false => write!(out, "{text:>width$}", width = width(n))?,
        }
    }
    writeln!(out)?;
    out.flush()?;
    Ok(())
}
