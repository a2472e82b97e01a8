//! `zpool`.

mod activity;
mod add;
mod checkpoint;
mod clear;
mod create;
mod ddtprune;
mod dedup;
mod describe;
mod destroy;
mod events;
mod export;
mod get;
mod history;
mod import;
mod iostat;
mod iostat_table;
mod labelclear;
mod leaf_work;
mod list;
mod newdevs;
mod online;
mod reason;
mod remove;
mod repeat;
mod scripts;
mod scrub;
mod set;
mod show;
mod status;
mod status_facts;
mod status_json;
mod sync;
mod table;
mod unavailable;
mod upgrade;
mod vdev_json;
mod vdev_props;
mod vdevs;
mod wait;

use std::ffi::OsString;
use std::io::{self, Write};

use pool::prop::POOL;

use crate::command::Tool;

pub(crate) const TOOL: Tool =
    Tool { name: "zpool", groups: table::GROUPS, aliases: &[], list_scripts: Some(scripts::list), epilogue };

/// Runs `zpool` with the arguments after its name; the exit status.
pub(crate) fn main(args: &[OsString]) -> u8 {
    TOOL.main(args)
}

/// Prints the table of properties after the usage of commands that take some, else where to find help.
fn epilogue(command: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
    if command.is_none() {
        return writeln!(out, "\nFor further help on a command or topic, run: zpool help [<topic>]");
    }
    if command == Some("create") {
        writeln!(out, "\n--size makes files that are not there, sparse: 512M, 1.5G.")?;
    }
    if command == Some("import") {
        write!(
            out,
            "\nUntil the export, commands find the pool by what is written below $ZUSE_STATE\n\
             (else $XDG_STATE_HOME/zuse, ~/.local/state/zuse).\n"
        )?;
    }
    if !matches!(command, Some("set" | "get" | "list")) {
        return Ok(());
    }
    writeln!(out, "\nthe following properties are supported:")?;
    writeln!(out, "\n\tPROPERTY             EDIT   VALUES\n")?;
    for def in POOL.iter().filter(|def| def.visible) {
        let edit = if def.is_read_only() { "  NO   " } else { " YES   " };
        let values = if def.values.is_empty() { "-" } else { def.values };
        writeln!(out, "\t{:<19}  {edit}{values}", def.name)?;
    }
    writeln!(out, "\t{:<19}   YES   disabled | enabled | active", "feature@...")?;
    writeln!(out, "\nThe feature@ properties must be appended with a feature name.\nSee zpool-features(7).")
}

/// A property of an open pool.
fn prop(pool: &Arc<Pool>, name: &str) -> Result<Option<PropValue>, pool::Error> {
    Ok(pool.prop(name)?.map(|value| as_imported(pool, name, value)))
}

/// All properties of an open pool.
fn props(pool: &Arc<Pool>) -> Result<Vec<(String, PropValue)>, pool::Error> {
    let each = |(name, value): (String, PropValue)| {
        let value = as_imported(pool, &name, value);
        (name, value)
    };
    Ok(pool.props()?.into_iter().map(each).collect())
}

/// Adjusts properties of the import: commands open a pool for reading however it was imported, and how it was is in
/// its record.
fn as_imported(pool: &Pool, name: &str, value: PropValue) -> PropValue {
    let (writable, load_guid) =
        here().opened_as(pool).map(|record| (!record.readonly, record.load_guid)).unwrap_or_default();
    match name {
        "readonly" if writable => PropValue { value: Value::Number(0), source: Source::Default, received: None },
        "health" if site::suspended::of(pool.guid()).is_some() => PropValue::text("SUSPENDED"),
        "load_guid" if load_guid != 0 => PropValue::computed(load_guid),
        _ => value,
    }
}

/// The JSON fields of each pool (OpenZFS: `fill_pool_info`).
fn describe(pool: &Arc<Pool>, with_type: bool, as_int: bool) -> NvList {
    let number = |n: u64| number_or_text(&n.to_string(), as_int);
    let mut list = NvList::new();
    list.insert("name", pool.name());
    if with_type {
        list.insert("type", "POOL");
    }
    let state = pool.tree().status().state.name();
    list.insert("state", if site::suspended::of(pool.guid()).is_some() { "SUSPENDED" } else { state });
    list.insert("pool_guid", number(pool.guid().0));
    list.insert("txg", number(pool.uberblock().txg.0));
    list.insert("spa_version", number(5000));
    list.insert("zpl_version", number(5));
    list
}

/// The key of a pool in JSON.
fn json_key(pool: &Pool, by_guid: bool) -> String {
    if by_guid { pool.guid().to_string() } else { pool.name().to_owned() }
}

/// The longest interval: a hundred years.
const INTERVAL_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The repetition of a command.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Repeat {
    /// The time between two rounds; `None`: one round only.
    interval: Option<Duration>,
    /// The number of rounds; `None`: no limit.
    count: Option<u64>,
}

impl Repeat {
    /// Takes `[interval [count]]` off the end of the operands.
    fn take(names: &mut Vec<String>) -> Result<Repeat, Failure> {
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
    fn again(&self, done: u64) -> bool {
        let Some(interval) = self.interval else { return false };
        if self.count.is_some_and(|count| done >= count) {
            return false;
        }
        std::thread::sleep(interval);
        true
    }
}

/// The duration in seconds, limited to [`INTERVAL_MAX`].
fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or(INTERVAL_MAX).min(INTERVAL_MAX)
}

/// The current time in the form of an option `-T`: `u` seconds since 1970, `d` a date.
fn timestamp(call: &Call<'_>) -> Result<Option<String>, Failure> {
    let Some(how) = call.args.text('T') else { return Ok(None) };
    let now = jiff::Zoned::now();
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
