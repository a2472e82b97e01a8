//! `zfs holds`.

use std::io::Write;

use control::Ioc;
use jiff::Timestamp;
use nvlist::NvList;

use super::listed::{Listed, Wanted};
use super::select::{Selection, told};
use crate::columns::in_line;
use crate::command::Call;
use crate::console;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::Types;
use crate::pools::stdout;

/// A line: snapshot, tag, seconds since 1970.
type Line = (String, String, u64);

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let (scripted, recursive, parsable) = (call.args.has('H'), call.args.has('r'), call.args.has('p'));
    let names = call.args.names();
    if names.is_empty() {
        return Err(usage(""));
    }
    let mut errors = false;
    let mut lines: Vec<Line> = Vec::new();
    let mut snapshots = 0;
    let mut name_width = 0;
    for name in &names {
        let Some((head, snapshot)) = name.split_once('@') else {
            eprintln!("'{name}' is not a snapshot");
            errors = true;
            continue;
        };
        let (mut selection, operand) = match recursive {
            true => (Selection::new(Types::DATASETS), head),
            false => (Selection::new(Types::SNAPSHOTS), name.as_str()),
        };
        selection.recurse = recursive;
        let (entries, whole) = selection.run(&[operand.to_owned()], &Wanted::default())?;
        errors |= !whole;
        for entry in entries.iter().filter(|e| e.name().split_once('@').is_some_and(|(_, s)| s == snapshot)) {
            snapshots += 1;
            name_width = name_width.max(entry.name().len());
            lines.extend(holds_of(entry)?);
        }
    }
    print(&lines, name_width, scripted, parsable)?;
    if snapshots == 0 {
        eprintln!("no datasets available");
    }
    Ok(u8::from(errors))
}

fn holds_of(entry: &Listed) -> Result<Vec<Line>, Failure> {
    let name = entry.name();
    if !name.contains('@') {
        return Ok(Vec::new());
    }
    let holds = entry.source().call(Ioc::GetHolds, name, &NvList::new()).map_err(|e| failed(told(&e, name)))?;
    Ok(holds.iter().filter_map(|(tag, time)| Some((name.to_owned(), tag.to_owned(), time.as_u64()?))).collect())
}

fn print(lines: &[Line], name_width: usize, scripted: bool, parsable: bool) -> Result<(), Failure> {
    if scripted {
        crate::console::for_scripts();
    }
    let tag_width = lines.iter().map(|(_, tag, _)| tag.len()).max().unwrap_or(0);
    let mut out = stdout();
    if !scripted {
        writeln!(out, "{:<name_width$}  {:<tag_width$}  TIMESTAMP", "NAME", "TAG")?;
    }
    for (name, tag, time) in lines {
        let tag = in_line(tag);
        let when = if parsable { time.to_string() } else { date(*time) };
        match scripted {
            true => writeln!(out, "{name}\t{tag}\t{when}")?,
            false => writeln!(out, "{name:<name_width$}  {tag:<tag_width$}  {when}")?,
        }
    }
    out.flush()?;
    Ok(())
}

/// A date such as `Sat Nov 21 08:30 2026`, in local time.
fn date(seconds: u64) -> String {
    let stamp = i64::try_from(seconds).ok().and_then(|s| Timestamp::from_second(s).ok());
    stamp.map_or_else(
        || seconds.to_string(),
        |stamp| stamp.to_zoned(console::time_zone()).strftime("%a %b %e %H:%M %Y").to_string(),
    )
}
