//! `zpool status`.

use std::io::{self, Write};

use pool::prop::nicenum;
use vdev::{VdevAux, VdevState, VdevType};

use super::reason::Reason;
use super::repeat::{Repeat, timestamp};
use super::scripts::{self, Scripts};
use super::status_facts::{Facts, Options, damaged};
use super::unavailable::{Seen, Unavailable, each};
use super::vdev_json::spare_state;
use super::vdevs::{Class, NameFlags, Vdev, Vdevs};
use super::{activity, dedup, status_json};
use crate::args::{JSON_FLAT_VDEVS, JSON_INT, JSON_POOL_KEY_GUID, POWER};
use crate::command::Call;
use crate::console::here;
use crate::error::{Failure, Outcome, usage};
use crate::pools::{self, stdout};

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    let options = Options {
        names: NameFlags::of(args),
        verbose: args.has('v'),
        explain: args.has('x'),
        parsable: args.has('p') || args.has(JSON_INT),
        dedup: args.has('D'),
        unhealthy: args.has('e'),
        slow: args.has('s'),
        power: args.has(POWER),
        direct: args.has('d'),
        initialize: args.has('i'),
        trim: args.has('t'),
    };
    let as_json = args.has('j');
    for (option, text) in [
        (JSON_FLAT_VDEVS, "'--json-flat-vdevs'"),
        (JSON_INT, "'--json-int'"),
        (JSON_POOL_KEY_GUID, "'json-pool-key-guid'"),
    ] {
        if args.has(option) && !as_json {
            return Err(usage(format!("{text} only works with '-j' option")));
        }
    }
    let scripts = scripts::wanted(args)?;
    let mut names = args.names();
    let repeat = Repeat::take(&mut names)?;
    let (mut done, mut first) = (0, true);
    loop {
        here().look_again();
        let scripts = scripts.as_ref().map(|scripts| run_scripts(scripts, &names)).transpose()?;
        let status = match as_json {
            true => status_json::print(call, &names, &options, scripts.as_ref())?,
            false => print(call, &names, &options, scripts.as_ref(), &mut first)?,
        };
        done += 1;
        if status != 0 || !repeat.again(done) {
            return Ok(status);
        }
    }
}

/// Runs scripts on all devices of the pools that are shown.
fn run_scripts(scripts: &str, names: &[String]) -> Result<Scripts, Failure> {
    let known: Vec<String> = names.iter().filter(|name| matches!(here().find(name), Ok(Some(_)))).cloned().collect();
    let mut all = Vec::new();
    if names.is_empty() || !known.is_empty() {
        pools::for_each(&known, |query| {
            all.push((query.name().to_owned(), Vdevs::ask(&query)?));
            Ok(())
        })?;
    }
    Ok(Scripts::run(scripts, &all, &|_| true))
}

/// Prints the pools. `first` says whether nothing was printed before; otherwise a blank line is printed between pools.
fn print(call: &Call<'_>, names: &[String], options: &Options, scripts: Option<&Scripts>, first: &mut bool) -> Outcome {
    let mut out = stdout();
    if let Some(stamp) = timestamp(call)? {
        writeln!(out, "{stamp}")?;
    }
    let mut count = 0;
    let status = each(names, |pool| {
        count += 1;
        let facts = match pool {
            Seen::Open(query) => Facts::of(*query)?,
            Seen::Unavailable(pool) => {
                if !std::mem::replace(first, false) {
                    writeln!(out)?;
                }
                return print_unavailable(&mut out, &pool, options);
            }
        };
        if options.explain && facts.reason.is_healthy() {
            if !names.is_empty() {
                writeln!(out, "pool '{}' is healthy", facts.name())?;
                *first = false;
            }
            return Ok(());
        }
        if !std::mem::replace(first, false) {
            writeln!(out)?;
        }
        print_pool(&mut out, &facts, options, scripts)
    })?;
    if names.is_empty() && count == 0 && status == 0 {
        eprintln!("no pools available");
    } else if options.explain && *first && names.is_empty() && status == 0 {
        writeln!(out, "all pools are healthy")?;
    }
    out.flush()?;
    Ok(status)
}

/// Prints the state of a pool, and what can be done about it.
fn print_state(out: &mut impl Write, name: &str, state: VdevState, reason: Reason) -> io::Result<()> {
    writeln!(out, "  pool: {name}\n state: {}", reason.state_name(state))?;
    let (status, action) = reason.status();
    for (title, text) in [("status", status), ("action", action)].iter().filter(|(_, text)| !text.is_empty()) {
        write!(out, "{title}: {text}")?;
    }
    if let Some(id) = reason.message_id() {
        writeln!(out, "   see: https://openzfs.github.io/openzfs-docs/msg/{id}")?;
    }
    Ok(())
}

fn print_unavailable(out: &mut impl Write, pool: &Unavailable, options: &Options) -> Result<(), Failure> {
    let name = &pool.name;
    print_state(out, name, VdevState::CantOpen, pool.reason)?;
    let width = pool.vdevs.width(name, options.names).max(10);
    let table = Table { name, open: false, options, width, scripts: None };
    table.print(out, &pool.vdevs)?;
    writeln!(out, "\nerrors: the pool cannot be opened: {}", pool.why)?;
    Ok(())
}

fn print_pool(
    out: &mut impl Write,
    facts: &Facts,
    options: &Options,
    scripts: Option<&Scripts>,
) -> Result<(), Failure> {
    let name = facts.name();
    print_state(out, name, facts.vdevs.root.state, facts.reason)?;
    let top_name = |n: u64| {
        let vdev = usize::try_from(n).ok().and_then(|n| facts.vdevs.root.children.get(n));
        vdev.map_or_else(|| n.to_string(), |v| v.name(name, options.names))
    };
    out.write_all(activity::lines(&facts.activity, &top_name).as_bytes())?;

    let width = facts.vdevs.width(name, options.names).max(10);
    let table = Table { name, open: true, options, width, scripts };
    table.print(out, &facts.vdevs)?;
    writeln!(out)?;
    match facts.errors {
        Some(0) => writeln!(out, "errors: No known data errors")?,
        Some(_) if options.verbose => print_errors(out, facts)?,
        Some(errors) => writeln!(out, "errors: {errors} data errors, use '-v' for a list")?,
        None => writeln!(out, "errors: List of errors unavailable: pool I/O is currently suspended")?,
    }
    if options.dedup {
        out.write_all(dedup::lines(&facts.dedup()?, options.parsable).as_bytes())?;
    }
    Ok(())
}

/// The table of vdevs.
struct Table<'a> {
    name: &'a str,
    /// Whether it opens.
    open: bool,
    options: &'a Options,
    width: usize,
    scripts: Option<&'a Scripts>,
}

impl Table<'_> {
    fn print(&self, out: &mut impl Write, vdevs: &Vdevs) -> io::Result<()> {
        let width = self.width;
        write!(out, "config:\n\n\t{:<width$}  {:<8} {:>5} {:>5} {:>5}", "NAME", "STATE", "READ", "WRITE", "CKSUM")?;
        let more = [(self.options.slow, "SLOW"), (self.options.power, "POWER"), (self.options.direct, "DIO")];
        for (_, title) in more.iter().filter(|(wanted, _)| *wanted) {
            write!(out, " {title:>5}")?;
        }
        writeln!(out, "{}", self.scripts.map(Scripts::titles).unwrap_or_default())?;
        self.vdev(out, &vdevs.root, 0, false)?;
        for class in Class::SECTIONS {
            let mut members = vdevs.root.of_class(class).peekable();
            if members.peek().is_some() {
                writeln!(out, "\t{}\t", class.title())?;
            }
            members.try_for_each(|vdev| self.vdev(out, vdev, 2, false))?;
        }
        for (title, members, spares) in [("cache", &vdevs.l2cache, false), ("spares", &vdevs.spares, true)] {
            if !members.is_empty() {
                writeln!(out, "\t{title}")?;
            }
            members.iter().try_for_each(|vdev| self.vdev(out, vdev, 2, spares))?;
        }
        Ok(())
    }

    fn vdev(&self, out: &mut impl Write, vdev: &Vdev, depth: usize, spare: bool) -> io::Result<()> {
        if self.options.unhealthy && depth > 0 && vdev.is_well() {
            return Ok(());
        }
        let leaf = vdev.children.is_empty();
        let state = spare_state(vdev).filter(|_| spare).unwrap_or_else(|| vdev.state.name());
        let name = vdev.name(self.name, self.options.names);
        let width = self.width.saturating_sub(depth);
        write!(out, "\t{:depth$}{name:<width$}  {state:<8}", "")?;
        if !spare {
            let number = |n: u64| if self.options.parsable { n.to_string() } else { nicenum(n) };
            for n in [vdev.errors.read, vdev.errors.write, vdev.errors.checksum] {
                write!(out, " {:>5}", number(n))?;
            }
            if self.options.slow {
                let text = if leaf || self.options.parsable {
                    number(if leaf { vdev.slow } else { 0 })
                } else {
                    "-".to_owned()
                };
                write!(out, " {text:>5}")?;
            }
            if self.options.power {
                write!(out, " {:>5}", "-")?;
            }
            if self.options.direct {
                write!(out, " {:>5}", "0")?;
            }
        }
        out.write_all(self.remarks(vdev).as_bytes())?;
        writeln!(out)?;
        for child in vdev.children.iter().filter(|c| depth > 0 || c.class == Class::Normal) {
            if !child.is_hidden() {
                self.vdev(out, child, depth + 2, spare)?;
            }
        }
        Ok(())
    }

    /// The remarks after the numbers.
    fn remarks(&self, vdev: &Vdev) -> String {
        let mut text = String::new();
        if vdev.not_present {
            text.push_str(&format!("  was {}", vdev.shown_path()));
        } else if vdev.aux != VdevAux::None {
            text.push_str(&format!("  {}", vdev.aux.message()));
        }
        if vdev.stale {
            text.push_str(if vdev.resilvering { "  (resilvering)" } else { "  (awaiting resilver)" });
        }
        if vdev.removing {
            text.push_str("  (removing)");
        } else if vdev.non_allocating {
            text.push_str("  (non-allocating)");
        }
        if let Some(scripts) = self.scripts {
            text.push_str(&scripts.cells(self.name, vdev));
        }
        let device = vdev.children.is_empty() && vdev.kind != VdevType::Root;
        for (asked, work) in self.options.work().into_iter().filter(|_| device && self.open) {
            match asked {
                true => text.push_str(&work.remark(&vdev.progress(work))),
                false => text.push_str(work.short_remark(&vdev.progress(work))),
            }
        }
        text
    }
}

/// Prints the names of damaged files; objects without a name by their numbers.
fn print_errors(out: &mut impl Write, facts: &Facts) -> Result<(), Failure> {
    writeln!(out, "errors: Permanent errors have been detected in the following files:\n")?;
    for path in damaged(facts)? {
        writeln!(out, "        {path}")?;
    }
    Ok(())
}
