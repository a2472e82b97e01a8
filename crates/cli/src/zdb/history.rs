//! `-h`: the history of the pool.

use std::io::Write;

use nvlist::NvList;
use ondisk::history::EVENT_NAMES;
use pool::Pool;

use crate::error::Failure;

use super::text::stamp;

/// Prints all records; with `-hh` each is printed again as it is stored.
pub(super) fn show(out: &mut dyn Write, pool: &Pool, verbosity: u32) -> Result<(), Failure> {
    let records = match pool.history() {
        Ok(records) => records,
        Err(e) => {
            eprintln!("Unable to read history: {e}");
            return Ok(());
        }
    };
    writeln!(out, "\nHistory:")?;
    for record in &records {
        let line = line(&record.list);
        match &line {
            Some(line) => write!(out, "{line}")?,
            None if verbosity > 1 => writeln!(out, "unrecognized record:")?,
            None => {}
        }
        if verbosity > 1 {
            write!(out, "{}", record.list.dump_escaped(2))?;
        }
    }
    Ok(())
}

/// The line of a record; `None` for a record of an unknown kind.
fn line(record: &NvList) -> Option<String> {
    let time = record.get_u64("history time").map(|t| stamp(t as i64)).unwrap_or_default();
    let text = |key: &str| record.get_str(key).unwrap_or("").to_owned();
    let txg = record.get_u64("history txg").unwrap_or(0);
    if let Some(command) = record.get_str("history command") {
        return Some(format!("{time} {command}\n"));
    }
    if let Some(event) = record.get_u64("history internal event") {
        let name = usize::try_from(event).ok().and_then(|n| EVENT_NAMES.get(n))?;
        return Some(format!(" {time} [internal {name} txg:{txg}] {}\n", text("history internal str")));
    }
    if let Some(name) = record.get_str("internal_name") {
        let dataset = match record.get_str("dsname") {
            Some(dsname) => format!(" {dsname} ({})", record.get_u64("dsid").unwrap_or(0)),
            None => String::new(),
        };
        return Some(format!("{time} [txg:{txg}] {name}{dataset} {}\n", text("history internal str")));
    }
    let ioctl = record.get_str("ioctl")?;
    let mut lines = format!("{time} ioctl {ioctl}\n");
    for (key, title) in [("in_nvl", "input"), ("out_nvl", "output")] {
        if let Some(list) = record.get_nvlist(key) {
            lines.push_str(&format!("    {title}:\n{}", list.dump_escaped(8)));
        }
    }
    if let Some(errno) = record.get_i64("errno") {
        lines.push_str(&format!("    errno: {errno}\n"));
    }
    Some(lines)
}
