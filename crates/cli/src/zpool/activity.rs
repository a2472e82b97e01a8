//! The activities of a pool when it was last written: scrub, resilver, rebuild, removal, expansion, checkpoint.

use control::stats::{Activity, Checkpoint, Expansion, REBUILD_ACTIVE, REBUILD_COMPLETE, Removal};
use jiff::Timestamp;
use ondisk::scan::{ErrorScrubPhys, RebuildPhys, ScanFunc, ScanPhys, ScanState};
use pool::prop::{nicebytes, nicenum};

use crate::console;

/// A rebuild that was stopped (OpenZFS: `vdev_rebuild_state_t`).
const REBUILD_CANCELED: u64 = 2;
/// Estimates beyond this are not shown.
const ESTIMATE_MAX_SECONDS: u64 = 30 * 24 * 3600;

/// The lines of `zpool status`, each with its end. `name` gives a top-level vdev's name.
pub(super) fn lines(activity: &Activity, name: &dyn Fn(u64) -> String) -> String {
    let mut text = String::new();
    text.push_str(&scan_lines(activity, name));
    if let Some(removal) = &activity.removal {
        text.push_str(&removal_lines(removal, &name(removal.vdev)));
    }
    if let Some(checkpoint) = &activity.checkpoint {
        text.push_str(&checkpoint_line(checkpoint));
    }
    if let Some(expansion) = &activity.expansion {
        text.push_str(&expansion_lines(expansion, &name(expansion.vdev)));
    }
    text
}

fn scan_lines(activity: &Activity, name: &dyn Fn(u64) -> String) -> String {
    let mut text = String::new();
    let scan = activity.scan.as_ref();
    let scrub = scan.filter(|s| s.func == ScanFunc::Scrub);
    let later = |errors: &&ErrorScrubPhys| errors.start_time >= scan.map_or(0, |scan| scan.start_time);
    if let Some(errors) = activity.error_scrub.as_ref().filter(later) {
        text.push_str(&error_scrub_text(errors));
    } else if let Some(scrub) = scrub {
        text.push_str(&scan_text(scrub));
    }
    let resilver = scan.filter(|s| s.func == ScanFunc::Resilver);
    let resilver_end = resilver.map_or(0, |s| s.end_time);
    let (active, rebuilding, rebuild_end) =
        (activity.is_resilvering(), activity.is_rebuilding(), activity.rebuild_end());
    if let Some(resilver) = resilver
        && (active || (!rebuilding && resilver_end != 0 && resilver_end > rebuild_end))
    {
        text.push_str(&scan_text(resilver));
    } else if rebuilding || (!active && rebuild_end != 0 && rebuild_end > resilver_end) {
        for (top, rebuild) in &activity.rebuilds {
            text.push_str(&rebuild_text(rebuild, &name(*top)));
        }
    }
    if let (Some(scan), Some(checkpoint)) = (scan, activity.checkpoint.as_ref().filter(|c| !c.discarding)) {
        let done = matches!(scan.state, ScanState::Finished | ScanState::Canceled);
        if done && scan.end_time >= checkpoint.time {
            text.push_str("    scan warning: skipped blocks that are only referenced by the checkpoint.\n");
        } else if scan.state == ScanState::Scanning {
            text.push_str("    scan warning: skipping blocks that are only referenced by the checkpoint.\n");
        }
    }
    text
}

/// A time as `ctime(3)` has it, without the end of line.
pub(super) fn ctime(seconds: u64) -> String {
    let stamp = i64::try_from(seconds).ok().and_then(|s| Timestamp::from_second(s).ok());
    stamp.map_or_else(
        || seconds.to_string(),
        |stamp| stamp.to_zoned(console::time_zone()).strftime("%a %b %e %H:%M:%S %Y").to_string(),
    )
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes, seconds) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match days {
        0 => format!("{hours:02}:{minutes:02}:{seconds:02}"),
        _ => format!("{days} days {hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// `part` of `whole` in percent, as C prints it.
fn percent(part: u64, whole: u64) -> String {
    match (part, whole) {
        (0, 0) => "-nan".to_owned(),
        (_, 0) => "inf".to_owned(),
        _ => format!("{:.2}", 100.0 * part as f64 / whole as f64),
    }
}

/// The result of an error scrub (OpenZFS: `print_err_scrub_status`).
fn error_scrub_text(scrub: &ErrorScrubPhys) -> String {
    let examined = scrub.examined;
    let text = match scrub.state {
        ScanState::Finished => {
            let took = scrub.end_time.wrapping_sub(scrub.start_time);
            let (days, hours, minutes, seconds) = (took / 86400, took / 3600 % 24, took / 60 % 60, took % 60);
            let end = ctime(scrub.end_time);
            format!("scrubbed {examined} error blocks in {days} days {hours:02}:{minutes:02}:{seconds:02} on {end}\n")
        }
        ScanState::Canceled => format!("error scrub canceled on {}\n", ctime(scrub.end_time)),
        _ => {
            let begun = if scrub.paused { "error scrub paused, started" } else { "error scrub in progress since" };
            let done = percent(examined, scrub.to_examine.saturating_add(examined));
            let start = ctime(scrub.start_time);
            format!("{begun} {start}\n\t{done}% done, issued I/O for {examined} error blocks\n")
        }
    };
    format!(" scrub: {text}")
}

fn scan_text(scan: &ScanPhys) -> String {
    let scrub = scan.func == ScanFunc::Scrub;
    let (verb, noun) = if scrub { ("scrub repaired", "scrub") } else { ("resilvered", "resilver") };
    let took = duration(scan.end_time.wrapping_sub(scan.start_time));
    let processed = nicebytes(scan.processed);
    let head = match scan.state {
        ScanState::Finished => {
            format!("{verb} {processed} in {took} with {} errors on {}\n", scan.errors, ctime(scan.end_time))
        }
        ScanState::Canceled => format!("{noun} canceled on {}\n", ctime(scan.end_time)),
        ScanState::Scanning => {
            let total = scan.to_examine.saturating_sub(scan.skipped);
            let examined = nicebytes(scan.examined);
            let done = if scrub { "repaired" } else { "resilvered" };
            let paused = scrub && scan.flags & ScanPhys::FLAG_SCRUB_PAUSED != 0;
            let begun = if paused { "scrub paused, started" } else { &format!("{noun} in progress since") };
            let estimate = if paused { "" } else { ", no estimated completion time" };
            format!(
                "{begun} {}\n\t{examined} / {} scanned, {examined} / {} issued\n\t{processed} {done}, {}% done{estimate}\n",
                ctime(scan.start_time),
                nicebytes(scan.to_examine),
                nicebytes(total),
                percent(scan.examined, total),
            )
        }
        _ => "none requested\n".to_owned(),
    };
    format!("  scan: {head}")
}

fn rebuild_text(rebuild: &RebuildPhys, name: &str) -> String {
    let rebuilt = nicebytes(rebuild.bytes_rebuilt);
    let head = match rebuild.state {
        REBUILD_COMPLETE => {
            let took = duration(rebuild.scan_time_ms / 1000);
            format!("resilvered ({name}) {rebuilt} in {took} with 0 errors on {}\n", ctime(rebuild.end_time))
        }
        REBUILD_CANCELED => format!("resilver ({name}) canceled on {}\n", ctime(rebuild.end_time)),
        REBUILD_ACTIVE => format!(
            "resilver ({name}) in progress since {}\n\t{} scanned, {} issued\n\t{rebuilt} resilvered, no estimated completion time\n",
            ctime(rebuild.start_time),
            nicebytes(rebuild.bytes_scanned),
            nicebytes(rebuild.bytes_issued),
        ),
        _ => return String::new(),
    };
    format!("  scan: {head}")
}

fn now() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or(0)
}

fn removal_lines(removal: &Removal, name: &str) -> String {
    let mut text = match removal.state {
        ScanState::Finished => {
            let minutes = removal.end.saturating_sub(removal.start) / 60;
            format!(
                "remove: Removal of vdev {} copied {} in {}h{}m, completed on {}\n",
                removal.vdev,
                nicenum(removal.copied),
                minutes / 60,
                minutes % 60,
                ctime(removal.end)
            )
        }
        ScanState::Canceled => format!("remove: Removal of {name} canceled on {}\n", ctime(removal.end)),
        _ => {
            let copied = removal.copied.max(1);
            let rate = (copied / now().saturating_sub(removal.start).max(1)).max(1);
            let minutes = removal.to_copy.saturating_sub(copied) / rate / 60;
            let to_go = match minutes / 60 {
                hours if hours < ESTIMATE_MAX_SECONDS / 3600 => format!(", {hours}h{}m to go", minutes % 60),
                _ => ", (copy is slow, no estimated time)".to_owned(),
            };
            format!(
                "remove: Evacuation of {name} in progress since {}\n\t{} copied out of {} at {}/s, {}% done{to_go}\n",
                ctime(removal.start),
                nicenum(copied),
                nicenum(removal.to_copy),
                nicenum(rate),
                percent(copied, removal.to_copy),
            )
        }
    };
    if removal.mapping_memory > 0 {
        text.push_str(&format!("\t{} memory used for removed device mappings\n", nicenum(removal.mapping_memory)));
    }
    text
}

fn checkpoint_line(checkpoint: &Checkpoint) -> String {
    let space = nicenum(checkpoint.space);
    match checkpoint.discarding {
        true => format!("checkpoint: discarding, {space} remaining.\n"),
        false => format!("checkpoint: created {}, consumes {space}\n", ctime(checkpoint.time)),
    }
}

fn expansion_lines(expansion: &Expansion, name: &str) -> String {
    if expansion.state == ScanState::Finished {
        let took = duration(expansion.end.wrapping_sub(expansion.start));
        let copied = nicenum(expansion.reflowed);
        return format!("expand: expanded {name} copied {copied} in {took}, on {}\n", ctime(expansion.end));
    }
    let copied = expansion.reflowed.max(1);
    let rate = (copied / now().saturating_sub(expansion.start).max(1)).max(1);
    let seconds = expansion.to_reflow.saturating_sub(copied) / rate;
    let to_go = match seconds < ESTIMATE_MAX_SECONDS {
        true => format!(", {} to go", duration(seconds)),
        false => ", (copy is slow, no estimated time)".to_owned(),
    };
    format!(
        "expand: expansion of {name} in progress since {}\n\t{} / {} copied at {}/s, {}% done{to_go}\n",
        ctime(expansion.start),
        nicenum(copied),
        nicenum(expansion.to_reflow),
        nicenum(rate),
        percent(copied, expansion.to_reflow),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_shares() {
        assert_eq!(duration(61), "00:01:01");
        assert_eq!(duration(86400 * 2 + 3), "2 days 00:00:03");
        assert_eq!(percent(1, 0), "inf");
        assert_eq!(percent(1, 3), "33.33");
    }

    #[test]
    fn a_finished_removal_reads_as_openzfs_says_it() {
        let removal = Removal {
            state: ScanState::Finished,
            vdev: 1,
            start: 0,
            end: 130,
            to_copy: 0,
            copied: 323_584,
            mapping_memory: 72,
        };
        let text = console::in_test(|| removal_lines(&removal, "x"));
        assert!(text.starts_with("remove: Removal of vdev 1 copied 316K in 0h2m, completed on "), "{text}");
        assert!(text.ends_with("\n\t72 memory used for removed device mappings\n"), "{text}");
    }
}
