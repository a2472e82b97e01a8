//! `zpool history`.

use std::io::{self, Write};

use control::Ioc;
use jiff::Timestamp;
use nvlist::NvList;
use ondisk::history::EVENT_NAMES;

use crate::columns::in_line;
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Outcome, failed};
use crate::messages;
use crate::pools::{self, stdout};
use crate::users::{self, Who};

/// The format of the output.
#[derive(Clone, Copy)]
struct Style {
    /// `-i`: with the pool's internal events.
    internal: bool,
    /// `-l`: with user and host.
    long: bool,
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let style = Style { internal: call.args.has('i'), long: call.args.has('l') };
    let names = call.args.names();
    let mut out = stdout();
    let mut any = false;
    let (status, _) = pools::for_each_record(&names, |record| {
        // where the pool is open in this process, the last commands may not be on disk yet
        if let Some(spa) = here().changing(record).filter(|spa| spa.suspended().is_none()) {
            spa.sync()
                .map_err(|e| failed(format!("cannot get history for '{}': {}", record.name, messages::why(&e))))?;
            here().look_again();
        }
        let pool = pools::query(record)?;
        any = true;
        writeln!(out, "History for '{}':", pool.name())?;
        let history = pool.call(Ioc::PoolGetHistory, pool.name(), &NvList::new());
        let history = history.map_err(|e| failed(format!("cannot get history for '{}': {e}", pool.name())))?;
        for record in history.get_nvlist_array("history record").unwrap_or_default() {
            print_record(&mut out, record, style)?;
        }
        Ok(writeln!(out)?)
    })?;
    out.flush()?;
    if names.is_empty() && !any {
        eprintln!("no pools available");
        return Ok(status);
    }
    Ok(status)
}

fn time_of(record: &NvList) -> String {
    let stamp = record.get_u64("history time").and_then(|t| i64::try_from(t).ok());
    let stamp = stamp.and_then(|t| Timestamp::from_second(t).ok());
    let mut text =
        stamp.map_or(String::new(), |t| t.to_zoned(console::time_zone()).strftime("%Y-%m-%d.%H:%M:%S").to_string());
    if let Some(elapsed) = record.get_i64("elapsed_ns") {
        text.push_str(&format!(" ({}ms)", elapsed / 1_000_000));
    }
    text
}

fn print_record(out: &mut impl Write, record: &NvList, style: Style) -> io::Result<()> {
    let time = time_of(record);
    let text = |key: &str| in_line(record.get_str(key).unwrap_or(""));
    let number = |key: &str| record.get_u64(key).unwrap_or(0);
    let internal = !record.contains("history command");
    if internal && !style.internal {
        return Ok(());
    }
    if !internal {
        write!(out, "{time} {}", text("history command"))?;
    } else if record.contains("history internal event") {
        let event = number("history internal event");
        let name = usize::try_from(event).ok().and_then(|n| EVENT_NAMES.get(n));
        let Some(name) = name else { return unrecognized(out, record, &time) };
        write!(out, "{time} [internal {name} txg:{}] {}", number("history txg") as i64, text("history internal str"))?;
    } else if record.contains("internal_name") {
        write!(out, "{time} [txg:{}] {}", number("history txg") as i64, text("internal_name"))?;
        if record.contains("dsname") {
            write!(out, " {} ({})", text("dsname"), number("dsid"))?;
        }
        write!(out, " {}", text("history internal str"))?;
    } else if record.contains("ioctl") {
        print_ioctl(out, record, &time)?;
    } else {
        writeln!(out, "{time} unrecognized record:")?;
        out.write_all(record.dump_escaped(4).as_bytes())?;
    }
    if style.long {
        print_who(out, record)?;
    }
    writeln!(out)
}

fn unrecognized(out: &mut impl Write, record: &NvList, time: &str) -> io::Result<()> {
    writeln!(out, "{time} unrecognized record:")?;
    out.write_all(record.dump_escaped(4).as_bytes())
}

fn print_ioctl(out: &mut impl Write, record: &NvList, time: &str) -> io::Result<()> {
    writeln!(out, "{time} ioctl {}", in_line(record.get_str("ioctl").unwrap_or("")))?;
    for (key, title) in [("in_nvl", "input"), ("out_nvl", "output")] {
        if let Some(list) = record.get_nvlist(key) {
            writeln!(out, "    {title}:")?;
            out.write_all(list.dump_escaped(8).as_bytes())?;
        }
    }
    if let Some(size) = record.get_i64("out_size") {
        writeln!(out, "    output nvlist omitted; original size: {}KB", size / 1024)?;
    }
    if let Some(errno) = record.get_i64("errno") {
        writeln!(out, "    errno: {errno}")?;
    }
    Ok(())
}

fn print_who(out: &mut impl Write, record: &NvList) -> io::Result<()> {
    write!(out, " [")?;
    if let Some(id) = record.get_u64("history who") {
        write!(out, "user {id} ")?;
        if let Some(name) = users::name_of(Who::User, id) {
            write!(out, "({name}) ")?;
        }
    }
    if let Some(host) = record.get_str("history hostname") {
        write!(out, "on {}", in_line(host))?;
    }
    if let Some(zone) = record.get_str("history zone") {
        write!(out, ":{}", in_line(zone))?;
    }
    write!(out, "]")
}
