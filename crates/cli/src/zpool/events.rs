//! `zpool events`.

use std::io::{self, Write};
use std::time::Duration;

use control::Ioc;
use nvlist::{NvList, Value};
use pool::events::{CLASS, POOL, TIME};
use site::Session;

use super::activity::ctime;
use crate::columns::in_line;
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, failed, usage};
use crate::pools::stdout;

/// How often `-f` looks for new events.
const EVERY: Duration = Duration::from_millis(500);
/// Columns by which a list within a list is indented.
const INDENT: usize = 8;

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let (verbose, scripted, follow) = (call.args.has('v'), call.args.has('H'), call.args.has('f'));
    let names = call.args.names();
    let only = match names.as_slice() {
        [] => None,
        [name] if pool::check_pool_name(name).is_ok() => Some(name.as_str()),
        [name] => return Err(usage(format!("invalid pool name '{name}'"))),
        _ => return Err(usage("too many arguments")),
    };
    let mut out = stdout();
    let session = here().machine().own_session(console::user());
    if call.args.has('c') {
        if only.is_some() || verbose || scripted || follow {
            return Err(usage("invalid options combined with -c"));
        }
        let cleared = ask(&session, Ioc::EventsClear)?.and_then(|answer| answer.get_u64("cleared"));
        writeln!(out, "cleared {} events", cleared.unwrap_or(0))?;
        out.flush()?;
        return Ok(0);
    }
    if !scripted {
        writeln!(out, "{:<30} CLASS", "TIME")?;
    }
    loop {
        while let Some(answer) = ask(&session, Ioc::EventsNext)? {
            if let Some(dropped @ 1..) = answer.get_u64("dropped") {
                writeln!(out, "dropped {dropped} events")?;
            }
            let event = answer.get_nvlist("event").filter(|event| only.is_none_or(|only| is_of(event, only)));
            let Some(event) = event else { continue };
            print_line(&mut out, event, scripted)?;
            if verbose {
                print_list(&mut out, event, INDENT)?;
                writeln!(out)?;
            }
        }
        out.flush()?;
        if !follow {
            return Ok(0);
        }
        if !console::sleep(EVERY) {
            return Ok(1);
        }
    }
}

/// The answer to a request; `None` if there is no event.
fn ask(session: &Session, ioc: Ioc) -> Result<Option<NvList>, Failure> {
    match session.call(ioc, "", &NvList::new()) {
        Ok(answer) => Ok(Some(answer)),
        Err(e) if matches!(*e.error, control::Error::NoEvent) => Ok(None),
        Err(e) => Err(failed(e.to_string())),
    }
}

/// Returns whether an event is about this pool, or about none.
fn is_of(event: &NvList, pool: &str) -> bool {
    event.get_str(POOL).is_none_or(|name| name == pool)
}

fn print_line(out: &mut impl Write, event: &NvList, scripted: bool) -> io::Result<()> {
    let (seconds, nanoseconds) = match event.get(TIME) {
        Some(Value::Int64Array(time)) => (time.first().copied().unwrap_or(0), time.get(1).copied().unwrap_or(0)),
        _ => (0, 0),
    };
    // `Tue Nov 24 06:05:12 2026`
    let when = ctime(seconds.max(0) as u64);
    let part = |at: std::ops::Range<usize>| when.get(at).unwrap_or("");
    let (day, year, time) = (part(4..10), part(20..24), part(11..19));
    let gap = if scripted { '\t' } else { ' ' };
    writeln!(out, "{day} {year} {time}.{nanoseconds:09}{gap}{}", event.get_str(CLASS).unwrap_or(""))
}

fn print_list(out: &mut impl Write, list: &NvList, depth: usize) -> io::Result<()> {
    for (name, value) in list {
        let name = &in_line(name);
        write!(out, "{:depth$}{name} = ", "")?;
        match value {
            Value::NvList(below) => {
                writeln!(out, "(embedded nvlist)")?;
                print_list(out, below, depth + INDENT)?;
                write!(out, "{:depth$}(end {name})", "")?;
            }
            Value::NvListArray(all) => {
                writeln!(out, "({} embedded nvlists)", all.len())?;
                for (n, below) in all.iter().enumerate() {
                    writeln!(out, "{:depth$}{name}[{n}] = (embedded nvlist)", "")?;
                    print_list(out, below, depth + INDENT)?;
                    writeln!(out, "{:depth$}(end {name}[{n}])", "")?;
                }
                writeln!(out, "{:depth$}(end {name})", "")?;
            }
            value => out.write_all(shown(name, value).as_bytes())?,
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Returns the name of a vdev's state by its number (OpenZFS: `zpool_state_to_name`).
fn state_name(state: u64) -> &'static str {
    match state {
        1 | 2 => "OFFLINE",
        3 => "REMOVED",
        4 => "UNAVAIL",
        5 => "FAULTED",
        6 => "DEGRADED",
        7 => "ONLINE",
        _ => "UNKNOWN",
    }
}

/// Returns a value as OpenZFS's `zpool events -v` shows it: numbers in hexadecimal.
fn shown(name: &str, value: &Value) -> String {
    fn each<T: std::fmt::LowerHex>(all: &[T]) -> String {
        all.iter().map(|one| format!("{one:#x} ")).collect()
    }
    match value {
        Value::Boolean => "1".to_owned(),
        Value::BooleanValue(is) => u8::from(*is).to_string(),
        Value::Byte(n) | Value::Uint8(n) => format!("{n:#x}"),
        Value::Int8(n) => format!("{n:#x}"),
        Value::Int16(n) => format!("{n:#x}"),
        Value::Uint16(n) => format!("{n:#x}"),
        Value::Int32(n) => format!("{n:#x}"),
        Value::Uint32(n) => format!("{n:#x}"),
        Value::Int64(n) | Value::Hrtime(n) => format!("{n:#x}"),
        Value::Uint64(n) if matches!(name, "vdev_state" | "vdev_laststate") => {
            format!("\"{}\" ({n:#x})", state_name(*n))
        }
        Value::Uint64(n) => format!("{n:#x}"),
        Value::String(text) => format!("\"{}\"", in_line(&text.to_string())),
        Value::Int8Array(all) => each(all),
        Value::Uint8Array(all) => each(all),
        Value::Int16Array(all) => each(all),
        Value::Uint16Array(all) => each(all),
        Value::Int32Array(all) => each(all),
        Value::Uint32Array(all) => each(all),
        Value::Int64Array(all) => each(all),
        Value::Uint64Array(all) => each(all),
        Value::StringArray(all) => all.iter().map(|text| format!("\"{}\" ", in_line(&text.to_string()))).collect(),
        _ => "<unknown>".to_owned(),
    }
}
