//! `zdb`: inspects pools and devices, and prints its findings in the words of OpenZFS's zdb.
//!
//! [`options`] reads the command line; this module decides what it asks for: a device's labels, a block, a dataset or
//! a whole pool. Each part of the output is a module of its own that writes to one `out`; [`text`] formats numbers and
//! times. With `-j` the same is one JSON object ([`json`]).
//!
//! Nothing is written to any pool. What cannot be read is reported, and the rest is shown.

mod backup;
mod blocks;
mod blockstats;
mod brt;
mod bytes;
mod checkpoint;
mod config;
mod counting;
mod ddt;
mod history;
mod indirect;
mod json;
mod l2arc;
mod labels;
mod labelstats;
mod livelists;
mod metaslabs;
mod objects;
mod open;
mod options;
mod progress;
mod read;
mod recorder;
mod refcounts;
mod shared;
mod spacemaps;
mod stats;
mod text;
mod top;
mod uberblock;
mod usage;

use std::ffi::OsString;
use std::io::Write;

use crate::command::report;
use crate::error::{Failure, Outcome, usage as misuse};
use crate::pools::stdout;

pub(crate) use usage::TEXT as USAGE;

use open::Opened;
use options::Options;

/// Runs `zdb` with the arguments after its name; the exit status.
pub(crate) fn main(args: &[OsString]) -> u8 {
    // bytes and streams are written as they are, but not to a terminal
    crate::console::for_scripts();
    match Options::parse(args).and_then(|options| run(&options)) {
        Ok(status) => status,
        Err(Failure::Usage(message)) => {
            if !message.is_empty() {
                eprintln!("{message}");
            }
            eprint!("{USAGE}");
            2
        }
        Err(failure) => report(&failure),
    }
}

fn run(options: &Options) -> Outcome {
    let operands = options.operands.as_slice();
    match operands {
        [block] if options.has('E') => return bytes::embedded(block),
        _ if options.has('E') => return Err(misuse("")),
        [] if options.has('C') && !options.has('e') => return config::cache(options.cachefile.as_deref()),
        [] => return Err(misuse("")),
        [device, ..] if options.has('l') => return labels::run(options, device),
        [_] if options.has('R') => return Err(misuse("")),
        _ if options.has('r') && operands.len() != 3 => return Err(misuse("")),
        _ if options.has('O') && !options.has('r') && operands.len() != 2 => return Err(misuse("")),
        _ => {}
    }
    let mut out = stdout();
    let done = on_pool(&mut out, options, operands);
    out.flush()?;
    if options.has('G') {
        eprintln!();
        pool::dbgmsg::messages().iter().for_each(|message| eprintln!("{}", message.text));
    }
    done
}

fn on_pool(out: &mut dyn Write, options: &Options, operands: &[String]) -> Outcome {
    let Some((target, rest)) = operands.split_first() else { return Err(misuse("")) };
    let opened = open::target(out, options, target)?;
    let pool = &opened.pool;
    let is_pool = !target.contains(['/', '@', '#']);
    match rest {
        [which, to] if options.has('r') => return objects::by_path::copy(out, options, pool, target, [which, to]),
        [path] if options.has('O') => return objects::by_path::show(out, options, pool, target, path),
        _ if options.has('B') => return backup::run(out, pool, target, rest.first().map_or("", String::as_str)),
        _ => {}
    }
    if options.has('R') && !options.json {
        rest.iter().try_for_each(|block| read::show(out, pool, block))?;
        return Ok(0);
    }
    if options.json {
        let (list, status) = json::pool(options, pool)?;
        writeln!(out, "{}", list.to_json())?;
        return Ok(status);
    }
    if !is_pool {
        return objects::dataset(out, options, pool, target, rest);
    }
    if !rest.is_empty() && options.has('d') && !options.has('m') {
        return objects::mos(out, options, pool, rest);
    }
    whole_pool(out, options, &opened)
}

/// The exit status when livelists or space maps contradict each other.
const CORRUPT: u8 = 3;

/// Shows everything that was asked for about a pool, in zdb's order. As in zdb, the rest is left out after a failed
/// check.
fn whole_pool(out: &mut dyn Write, options: &Options, opened: &Opened) -> Outcome {
    let pool = &opened.pool;
    let sound = !options.has('y') || livelists::verify(out, options, pool)?;
    if options.has('S') {
        ddt::simulate(out, pool)?;
        return Ok(0);
    }
    if !options.has('e') && options.level('C') > 1 {
        write!(out, "\nCached configuration:\n{}", opened.candidate.config.dump_escaped(8))?;
    }
    if options.has('C') {
        config::mos(out, pool)?;
    }
    if options.has('u') {
        uberblock::print(out, pool.uberblock(), options.level('u'), "\nUberblock:\n", "\n")?;
    }
    if options.has('D') {
        ddt::show(out, pool, options.level('D'))?;
    }
    if options.has('T') {
        brt::show(out, options, pool)?;
    }
    let metaslabs = options.level('d') > 2 || options.has('m');
    if metaslabs {
        metaslabs::show(out, options, pool)?;
    }
    if options.has('M') {
        metaslabs::show_groups(out, pool, options.level('M') > 1)?;
    }
    if metaslabs {
        metaslabs::show_logs(out, options, pool)?;
    }
    let mut status = 0;
    if options.has('d') || options.has('i') {
        status = objects::pool(out, options, pool)?;
    }
    if status == 0 && (options.has('b') || options.has('c')) {
        status = blockstats::show(out, options, pool)?;
    }
    if status == 0 {
        status = refcounts::verify(out, pool)?;
    }
    if options.has('s') {
        stats::show(out, pool)?;
    }
    if options.has('h') {
        history::show(out, pool, options.level('h'))?;
    }
    if status == 0 {
        status = checkpoint::verify(out, options, pool)?;
    }
    Ok(if sound || status != 0 { status } else { CORRUPT })
}
