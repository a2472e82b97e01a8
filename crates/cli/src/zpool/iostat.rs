//! `zpool iostat`.
//!
//! The figures are those of all commands since the import ([`iostats`]): the first lines are averages a second since then, later ones since the
//! lines before, as OpenZFS prints them. What this command reads itself is not among them. What waits in queues (`-q`) is that of commands that run
//! now, as of a second ago.

use std::io::Write;
use std::time::Duration;

use base::Guid;
use control::stats::{VdevStat, VdevStats};
use ondisk::label::key;
use site::Query;
use vdev::IoFigures;

use super::iostat_table::{Histogram, Kind, Layout, space};
use super::repeat::{Repeat, timestamp};
use super::scripts::{self, Scripts};
use super::vdev_props::unresolved;
use super::vdevs::{Class, NameFlags, Vdev, Vdevs, brief_stats};
use crate::args::Parsed;
use crate::command::Call;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, failed, usage};
use crate::pools::{self, stdout};

/// The settings of the figures, beside the names.
const FIGURES_WIDTH: usize = 42;
/// The least room for names.
const NAME_WIDTH: usize = 10;

/// How the command was called.
struct Options {
    names: NameFlags,
    verbose: bool,
    scripted: bool,
    parsable: bool,
    /// `-y`: not the figures since the import.
    only_later: bool,
    /// `-n`: headings once.
    once: bool,
    kinds: Vec<Kind>,
    scripts: Option<String>,
}

impl Options {
    fn of(args: &Parsed) -> Result<Options, Failure> {
        let scripts = scripts::wanted(args)?;
        let mut kinds = vec![Kind::Default];
        if args.has('l') {
            kinds.push(Kind::Latency);
        }
        if args.has('q') {
            kinds.push(Kind::Queues);
        }
        for (flag, kind) in [('w', Kind::Histogram), ('r', Kind::Sizes)] {
            if args.has(flag) {
                kinds = vec![kind];
            }
        }
        Ok(Options {
            names: NameFlags::of(args),
            verbose: args.has('v') || scripts.is_some(),
            scripted: args.has('H'),
            parsable: args.has('p'),
            only_later: args.has('y'),
            once: args.has('n'),
            kinds,
            scripts,
        })
    }

    fn histogram(&self) -> bool {
        self.kinds.iter().any(|kind| matches!(kind, Kind::Histogram | Kind::Sizes))
    }
}

/// The figures to be shown.
struct Wanted {
    /// These pools; all if there are none.
    pools: Vec<String>,
    /// These vdevs; all if there are none.
    vdevs: Vec<Guid>,
}

/// A pool as it is now.
struct Seen {
    query: Query,
    vdevs: Vdevs,
    /// The time since counting began.
    at: Duration,
}

pub(super) fn run(call: &Call<'_>) -> Outcome {
    let args = &call.args;
    if args.has('h') {
        return Err(usage(""));
    }
    console::uncounted();
    let options = Options::of(args)?;
    let mut operands = args.names();
    let repeat = take_repeat(&mut operands, args.has('g'))?;
    let wanted = Wanted::of(operands)?;
    let some = !wanted.pools.is_empty() || !here().all()?.is_empty();
    if !some && repeat.interval.is_none() {
        return Err(failed("no pools available"));
    }
    let histograms = [args.has('r'), args.has('w')];
    if histograms.contains(&true) && (args.has('c') || args.has('l') || args.has('q')) {
        return Err(usage("[-r|-w] isn't allowed with [-c|-l|-q]"));
    }
    if histograms == [true; 2] {
        return Err(usage("Only one of [-r|-w] can be passed at a time"));
    }
    watch(call, &options, &wanted, repeat)
}

/// Prints what there is, again and again.
fn watch(call: &Call<'_>, options: &Options, wanted: &Wanted, repeat: Repeat) -> Outcome {
    let mut before: Vec<Seen> = Vec::new();
    let (mut round, mut done) = (0u64, 0);
    loop {
        here().look_again();
        let (seen, status) = look(&wanted.pools)?;
        if status != 0 && seen.is_empty() {
            return Ok(status);
        }
        if seen.is_empty() {
            eprintln!("no pools available");
        } else {
            if before.len() != seen.len() {
                round = 0;
            }
            let skip = options.only_later && round == 0;
            round += 1;
            let head = is_headed(options, round, skip);
            let table = Table::new(options, wanted, &seen);
            table.print(call, &seen, &before, head, skip)?;
            if skip {
                before = seen;
                if !console::sleep(repeat.interval.unwrap_or_default()) {
                    return Ok(status);
                }
                continue;
            }
        }
        before = seen;
        done += 1;
        if !repeat.again(done) {
            return Ok(status);
        }
    }
}

/// Whether this round has the headings: the first has, each where there are lines of vdevs, and each that begins a page of a terminal.
fn is_headed(options: &Options, round: u64, skip: bool) -> bool {
    let page = || {
        let size = console::window()?;
        (size.ws_row > 0 && !options.once).then(|| u64::from(size.ws_row))
    };
    let first = round == 1 && !skip;
    let verbose = options.verbose;
    let wanted = first || skip != verbose || page().is_some_and(|rows| round.is_multiple_of(rows));
    wanted && !options.histogram() && !options.scripted
}

/// The interval and count at the end of the operands. With `-g`, a number may be a vdev.
fn take_repeat(operands: &mut Vec<String>, by_guid: bool) -> Result<Repeat, Failure> {
    let mut keep = 0;
    if by_guid {
        let all = everything()?;
        let is_vdev = |name: &String| all.iter().any(|pool| matches!(Vdevs::find(pool, name), Ok(Some(_))));
        keep = operands.len() - operands.iter().rev().take(2).take_while(|name| !is_vdev(name)).count();
    }
    let mut numbers = operands.split_off(keep);
    let repeat = Repeat::take(&mut numbers)?;
    operands.append(&mut numbers);
    Ok(repeat)
}

fn everything() -> Result<Vec<Query>, Failure> {
    Ok(pools::open_all()?.0)
}

impl Wanted {
    /// From operands: pools, vdevs, or a pool and vdevs of it.
    fn of(operands: Vec<String>) -> Result<Wanted, Failure> {
        let is_pool = |name: &String| Ok::<bool, Failure>(here().find(name)?.is_some());
        let pools = operands.iter().map(is_pool).collect::<Result<Vec<bool>, Failure>>()?;
        if !pools.contains(&false) {
            return Ok(Wanted { pools: operands, vdevs: Vec::new() });
        }
        let in_pools = |pools: &[Query], names: &[String]| -> Result<Option<Vec<Guid>>, Failure> {
            let find = |name: &String| {
                let found = pools.iter().find_map(|pool| Vdevs::find(pool, name).transpose()).transpose()?;
                Ok(found.map(|(vdev, _)| vdev.guid))
            };
            names.iter().map(find).collect()
        };
        if let Some(vdevs) = in_pools(&everything()?, &operands)? {
            return Ok(Wanted { pools: Vec::new(), vdevs });
        }
        let (Some(true), Some((first, rest))) = (pools.first(), operands.split_first()) else {
            return Err(failed("Unable to parse pools/vdevs list.\n"));
        };
        let pool = pools::query(&pools::find(first)?)?;
        match in_pools(std::slice::from_ref(&pool), rest)? {
            Some(vdevs) => Ok(Wanted { pools: vec![first.clone()], vdevs }),
            None => Err(unresolved(&pool, "either a list of pools, or list of vdevs", rest)),
        }
    }
}

/// The pools as they are now; 1 if one of them could not be looked at.
fn look(names: &[String]) -> Result<(Vec<Seen>, u8), Failure> {
    let mut all = Vec::new();
    let (status, _) = pools::for_each(names, |query| {
        let config = brief_stats(&query)?;
        let root = config.get_nvlist(key::VDEV_TREE).map(VdevStats::of).unwrap_or_default();
        let at = Duration::from_nanos(root.get(VdevStat::Timestamp));
        all.push(Seen { query, vdevs: Vdevs::of(&config)?, at });
        Ok(())
    })?;
    Ok((all, status))
}

/// One round of lines.
struct Table<'a> {
    options: &'a Options,
    wanted: &'a Wanted,
    layout: Layout,
    title: &'static str,
    scripts: Option<Scripts>,
}

/// A pool that is printed, as it is and as it was.
struct Pair<'a> {
    now: &'a Seen,
    before: Option<&'a Seen>,
    scale: f64,
}

impl Pair<'_> {
    /// Returns the work of the devices below a vdev since the lines before.
    fn io(&self, vdev: &Vdev) -> IoFigures {
        let before = self.before.and_then(|before| before.vdevs.by_guid(vdev.guid));
        before.map_or_else(|| vdev.io.clone(), |before| vdev.io.since(&before.io))
    }
}

impl<'a> Table<'a> {
    fn new(options: &'a Options, wanted: &'a Wanted, seen: &[Seen]) -> Table<'a> {
        let verbose = options.verbose || !wanted.vdevs.is_empty();
        let width = |one: &Seen| match verbose {
            true => one.vdevs.width(one.query.name(), options.names).max(one.query.name().len()),
            false => one.query.name().len(),
        };
        let columns = console::window().map_or(999, |size| usize::from(size.ws_col));
        let widest = seen.iter().map(width).max().unwrap_or(0);
        let name_width = widest.min(columns.saturating_sub(FIGURES_WIDTH)).max(NAME_WIDTH);
        let scripts = options.scripts.as_ref().map(|names| {
            let chosen = |vdev: &Vdev| wanted.vdevs.is_empty() || wanted.vdevs.contains(&vdev.guid);
            let pools: Vec<_> = seen.iter().map(|one| (one.query.name().to_owned(), one.vdevs.clone())).collect();
            Scripts::run(names, &pools, &chosen)
        });
        Table {
            options,
            wanted,
            layout: Layout { scripted: options.scripted, parsable: options.parsable, name_width },
            title: if wanted.vdevs.is_empty() { "pool" } else { "vdev" },
            scripts,
        }
    }

    fn separator(&self) -> String {
        let more = self.scripts.as_ref().map(Scripts::dashes).unwrap_or_default();
        self.layout.separator(self.title, &self.options.kinds, &more)
    }

    fn print(&self, call: &Call<'_>, seen: &[Seen], before: &[Seen], head: bool, skip: bool) -> Result<(), Failure> {
        let mut out = stdout();
        if let Some(stamp) = timestamp(call)? {
            writeln!(out, "{stamp}")?;
        }
        if head {
            let more = self.scripts.as_ref().map(|s| (s.titles(), s.dashes())).unwrap_or_default();
            let header = self.layout.header(self.title, &self.options.kinds, (&more.0, &more.1));
            out.write_all(header.as_bytes())?;
        }
        let (tabular, chosen) = (!self.options.histogram() && !self.options.scripted, !self.wanted.vdevs.is_empty());
        for now in seen.iter().filter(|_| !skip) {
            let before = before.iter().find(|one| one.query.guid() == now.query.guid());
            let from = before.map_or(Duration::ZERO, |before| before.at);
            let seconds = now.at.saturating_sub(from).as_secs_f64();
            // what was counted over a whole life is told as it is
            let whole = seconds <= 0.0 || (before.is_none() && self.options.histogram());
            let pair = Pair { now, before, scale: if whole { 1.0 } else { 1.0 / seconds } };
            self.pool(&mut out, &pair)?;
            if tabular && self.options.verbose && !chosen {
                out.write_all(self.separator().as_bytes())?;
            }
        }
        if !skip && tabular && ((seen.len() > 1 && !self.options.verbose) || chosen) {
            out.write_all(self.separator().as_bytes())?;
        }
        out.flush()?;
        Ok(())
    }

    /// A pool, and what is below it, if that is wanted.
    fn pool(&self, out: &mut impl Write, pair: &Pair<'_>) -> Result<(), Failure> {
        let vdevs = &pair.now.vdevs;
        // logs have room of their own
        let tops = vdevs.root.children.iter().filter(|top| top.class != Class::Logs).filter_map(space);
        let total = tops.fold((0, 0), |sum, (size, allocated)| (sum.0 + size, sum.1 + allocated));
        self.line(out, pair, &vdevs.root, Some(total), 0)?;
        if !self.options.verbose && self.wanted.vdevs.is_empty() {
            return Ok(());
        }
        for top in vdevs.root.of_class(Class::Normal) {
            self.vdev(out, pair, top, 2)?;
        }
        for class in Class::SECTIONS {
            self.section(out, pair, class.title(), vdevs.root.of_class(class).collect())?;
        }
        self.section(out, pair, "cache", vdevs.l2cache.iter().collect())
    }

    fn section(&self, out: &mut impl Write, pair: &Pair<'_>, title: &str, members: Vec<&Vdev>) -> Result<(), Failure> {
        let headed = !self.options.histogram() && !self.options.scripted && self.wanted.vdevs.is_empty();
        if headed && !members.is_empty() {
            out.write_all(self.layout.section(title, self.title, &self.options.kinds).as_bytes())?;
        }
        members.into_iter().try_for_each(|vdev| self.vdev(out, pair, vdev, 2))
    }

    fn vdev(&self, out: &mut impl Write, pair: &Pair<'_>, vdev: &Vdev, depth: usize) -> Result<(), Failure> {
        self.line(out, pair, vdev, space(vdev), depth)?;
        let mut children = vdev.children.iter().filter(|child| !child.is_hidden());
        children.try_for_each(|child| self.vdev(out, pair, child, depth + 2))
    }

    /// The line of a vdev, if it is wanted; its table, if that is.
    fn line(
        &self,
        out: &mut impl Write,
        pair: &Pair<'_>,
        vdev: &Vdev,
        space: Option<(u64, u64)>,
        depth: usize,
    ) -> Result<(), Failure> {
        let chosen = !self.wanted.vdevs.is_empty();
        if chosen && !self.wanted.vdevs.contains(&vdev.guid) {
            return Ok(());
        }
        let pool = pair.now.query.name();
        let (name, io) = (vdev.name(pool, self.options.names), pair.io(vdev));
        if self.options.histogram() {
            let sizes = self.options.kinds.contains(&Kind::Sizes);
            let histogram = if sizes { Histogram::sizes(&io) } else { Histogram::latencies(&io) };
            out.write_all(self.layout.histogram(&name, &histogram, pair.scale).as_bytes())?;
            return Ok(());
        }
        let mut text = self.layout.name(&name, if chosen { 0 } else { depth });
        for kind in &self.options.kinds {
            match kind {
                Kind::Default => text.push_str(&self.layout.default_cells(space, &io, pair.scale)),
                Kind::Queues => text.push_str(&self.layout.queue_cells(&vdev.queue)),
                _ => text.push_str(&self.layout.latency_cells(&io)),
            }
        }
        if let Some(scripts) = &self.scripts {
            text.push_str(&scripts.cells(pool, vdev));
        }
        writeln!(out, "{text}")?;
        Ok(())
    }
}
